"""Emulated backend descriptors, made, set and read by the generated table as strictly as by cuDNN.

`cudnnlite.emulated.finalization` makes them final.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

from cudnnlite._raw.attributes import ATTRIBUTES, KINDS_SINCE
from cudnnlite._raw.enums import BackendAttributeType, BackendDescriptorType
from cudnnlite.emulated.registry import (
    EmulationState,
    RefusalError,
    bad_parameter,
    emulates,
    unsupported,
)
from cudnnlite.enums import DataType, Status, is_choice
from cudnnlite.graph.attributes import C_TYPES, ENUMS_OF_ATTRIBUTES, SECOND_TYPES

# Attributes that cuDNN fills in, and that cannot be set.
READ_ONLY = {
    "ENGINEHEUR": {"results"},
    "ENGINE": {"knob_info", "numerical_note", "behavior_note", "layout_info"},
    "ENGINECFG": {"workspace_size", "intermediate_info"},
    "EXECUTION_PLAN": {"workspace_size", "computed_intermediate_uids"},
    "OPERATIONGRAPH": {"engine_global_count"},
}


class BackendObject:
    """The object behind an emulated `cudnnBackendDescriptor_t`.

    Attributes
    ----------
    kind : str
        Its kind, as the generated table names it.
    attributes : dict
        The attributes by name: each is a list of C values, or of `BackendObject` for descriptors.
    is_final : bool
        Whether it was finalised, after which it does not change.
    content : object
        The result of finalising, for the objects that refer to this one.
    """

    def __init__(self, kind: str) -> None:
        # The address of the buffer is the descriptor.
        self._buffer = ctypes.create_string_buffer(64)
        self.address = ctypes.addressof(self._buffer)
        self.kind = kind
        self.clear()

    def clear(self) -> None:
        """Return to the state after creation."""
        self.attributes: dict[str, list[Any]] = {}
        self.is_final = False
        self.content: Any = None

    def value(self, name: str, default: Any = None) -> Any:
        """Return an attribute that has one value."""
        return self.attributes[name][0] if name in self.attributes else default

    def finalize_with(self, **attributes: list[Any]) -> BackendObject:
        """Set attributes, read-only ones too, and make it final."""
        self.attributes.update(attributes)
        self.is_final = True
        return self

    def copy_from(self, other: BackendObject) -> None:
        """Become a copy of another object of the same kind."""
        self.attributes = dict(other.attributes)
        self.is_final = other.is_final
        self.content = other.content


def backend_object(api: EmulationState, descriptor: Any) -> BackendObject:
    """Return the object behind a descriptor; RefusalError if there is none."""
    address = getattr(descriptor, "value", descriptor) or 0
    if address not in api.backend:
        raise RefusalError(Status.BAD_PARAM_NULL_POINTER, "not a live backend descriptor")
    target: BackendObject = api.backend[address]
    return target


def final_object(api: EmulationState, descriptor: Any, kind: str) -> BackendObject:
    """Return the object behind a descriptor; RefusalError unless it is a final one of a kind."""
    target = backend_object(api, descriptor)
    if target.kind != kind or not target.is_final:
        state = "final" if target.is_final else "not final"
        raise bad_parameter(f"{target.kind}, {state}; wanted a final {kind}")
    return target


@emulates("cudnnBackendCreateDescriptor")
def create(c_call: SimpleNamespace) -> None:
    """`cudnnBackendCreateDescriptor`: make a descriptor."""
    member = BackendDescriptorType(c_call.descriptorType)
    if member.name not in BackendDescriptorType.__members__:
        raise unsupported(f"descriptor type {c_call.descriptorType}")
    if c_call.api.library.version < KINDS_SINCE.get(member.name, 0):
        raise RefusalError(Status.INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "unknown descriptor type")
    new_object = BackendObject(member.name)
    c_call.api.backend[new_object.address] = new_object
    c_call.descriptor[0] = type(c_call.descriptor[0])(new_object.address)


@emulates("cudnnBackendDestroyDescriptor")
def destroy(c_call: SimpleNamespace) -> None:
    """`cudnnBackendDestroyDescriptor`: destroy a descriptor."""
    del c_call.api.backend[backend_object(c_call.api, c_call.descriptor).address]


@emulates("cudnnBackendInitialize")
def initialize(c_call: SimpleNamespace) -> None:
    """`cudnnBackendInitialize`: return a descriptor to the state after creation."""
    backend_object(c_call.api, c_call.descriptor).clear()


@cache
def _names_by_number(kind: str) -> Mapping[int, str]:
    """Return the names of the attributes that a kind of descriptor has, by their numbers."""
    return {attribute[0]: name for name, attribute in ATTRIBUTES.get(kind, {}).items()}


def _attribute(c_call: SimpleNamespace, target: BackendObject, count: int) -> tuple[str, str]:
    """Return the name and the type of the attribute that a call is about, if it fits the table."""
    number = c_call.attributeName
    name = _names_by_number(target.kind).get(number)
    if name is None:
        raise unsupported(f"{target.kind} has no attribute {number}")
    _, table_type, is_list = ATTRIBUTES[target.kind][name]
    type_name = BackendAttributeType(c_call.attributeType).name
    allowed_types = [table_type]
    if table_type == "FLOAT":
        allowed_types.append("DOUBLE")
    if (target.kind, name) in SECOND_TYPES:
        allowed_types.append(SECOND_TYPES[target.kind, name])
    if type_name not in allowed_types:
        raise RefusalError(
            Status.BAD_PARAM_ATTRIBUTE_TYPE,
            f"{target.kind}.{name} is {table_type}, not {type_name}",
        )
    if not is_list and count > 1:
        raise bad_parameter(f"{target.kind}.{name} has one value, not {count}")
    return name, type_name


@emulates("cudnnBackendSetAttribute")
def set_attribute(c_call: SimpleNamespace) -> None:
    """`cudnnBackendSetAttribute`: set an attribute."""
    target = backend_object(c_call.api, c_call.descriptor)
    count = c_call.elementCount
    elements = c_call.arrayOfElements
    name, type_name = _attribute(c_call, target, count)
    if target.is_final:
        raise bad_parameter(f"{target.kind} is final")
    if name in READ_ONLY.get(target.kind, ()):
        raise bad_parameter(f"{target.kind}.{name} cannot be set")
    if count < 1 or not elements:
        raise RefusalError(
            Status.BAD_PARAM_NULL_POINTER, f"{target.kind}.{name}: {count} values at {elements}"
        )
    values = list((C_TYPES.get(type_name, ctypes.c_int) * count).from_address(elements))
    target.attributes[name] = _checked_values(
        c_call.api, f"{target.kind}.{name}", type_name, values
    )


def _checked_values(
    api: EmulationState, attribute: str, type_name: str, values: list[Any]
) -> list[Any]:
    """Return the values of an attribute, with objects for descriptors, if they are allowed."""
    if type_name == "BACKEND_DESCRIPTOR":
        objects = [backend_object(api, value) for value in values]
        if not all(member.is_final for member in objects):
            raise RefusalError(Status.BAD_PARAM_NOT_FINALIZED, f"{attribute} is not final")
        return objects
    if type_name == "HANDLE" and values[0] not in api.handles:
        raise bad_parameter(f"{attribute} is not a live handle of the emulated device")
    # cuDNN takes any number here, and may compute with it.
    enum = DataType if type_name == "DATA_TYPE" else ENUMS_OF_ATTRIBUTES.get(type_name)
    if enum is not None and not all(is_choice(enum(value)) for value in values):
        raise bad_parameter(f"{attribute}={values} is not of {enum.__name__}")
    return values


@emulates("cudnnBackendGetAttribute")
def get_attribute(c_call: SimpleNamespace) -> None:
    """`cudnnBackendGetAttribute`: write an attribute, descriptors into those of the caller."""
    source = backend_object(c_call.api, c_call.descriptor)
    capacity = c_call.requestedElementCount
    elements = c_call.arrayOfElements
    name, type_name = _attribute(c_call, source, 1)
    if not source.is_final:
        raise RefusalError(Status.BAD_PARAM_NOT_FINALIZED, f"{source.kind} is not final")
    values = source.attributes.get(name, [])
    c_call.elementCount[0] = len(values)
    if not capacity or not elements:
        return
    values = values[:capacity]
    array = (C_TYPES.get(type_name, ctypes.c_int) * capacity).from_address(elements)
    if type_name != "BACKEND_DESCRIPTOR":
        array[: len(values)] = values
        return
    for address, value in zip(array, values, strict=False):
        target = backend_object(c_call.api, address)
        if target.kind != value.kind:
            raise bad_parameter(f"{source.kind}.{name} is {value.kind}, not {target.kind}")
        target.copy_from(value)
