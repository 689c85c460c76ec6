"""Emulated backend descriptors: made, set, finalised and read as strictly as cuDNN does, by the generated table."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from cudnnlite._raw.attributes import ATTRIBUTES, KINDS_SINCE
from cudnnlite._raw.enums import BackendAttributeType, BackendDescriptorType
from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.registry import RefusalError, bad, emulates, unsupported
from cudnnlite.enums import DataType, Status, is_choice
from cudnnlite.graph.attributes import C_TYPES, ENUMS_OF_ATTRIBUTES, REQUIRED

Finalizer = Callable[["Native"], None]
FINALIZERS: dict[
    str, Finalizer
] = {}  # by kind: what cuDNN works out when a descriptor becomes final
# what cuDNN fills in; such attributes cannot be set
_READ_ONLY = {
    "ENGINEHEUR": {"results"},
    "ENGINE": {"knob_info", "numerical_note", "behavior_note", "layout_info"},
    "ENGINECFG": {"workspace_size", "intermediate_info"},
    "EXECUTION_PLAN": {"workspace_size", "computed_intermediate_uids"},
    "OPERATIONGRAPH": {"engine_global_count"},
}


class Native:
    """What an emulated `cudnnBackendDescriptor_t` points at.

    Attributes
    ----------
    kind : str
        Of which kind it is.
    values : dict
        Its attributes by name: a list of C values, of `Native` for descriptors.
    final : bool
        Whether it was finalised, so that it does not change any more.
    made : object
        What its finalizer worked out for those that refer to it.
    """

    def __init__(self, kind: str) -> None:
        self._cell = ctypes.create_string_buffer(64)  # its address is the descriptor
        self.address = ctypes.addressof(self._cell)
        self.kind = kind
        self.clear()

    def clear(self) -> None:
        """Make it as it was when it was created."""
        self.values: dict[str, list[Any]] = {}
        self.final = False
        self.made: Any = None

    def one(self, name: str, default: Any = None) -> Any:
        """Return an attribute that has one value."""
        return self.values[name][0] if name in self.values else default

    def fill(self, **values: list[Any]) -> Native:
        """Set attributes as cuDNN does itself, and make it final."""
        self.values.update(values)
        self.final = True
        return self

    def become(self, other: Native) -> None:
        """Take over what another descriptor of the same kind says."""
        self.values, self.final, self.made = dict(other.values), other.final, other.made


def finalizes(kind: str) -> Callable[[Finalizer], Finalizer]:
    """Register what is done when a descriptor of a kind becomes final."""

    def register(finalizer: Finalizer) -> Finalizer:
        FINALIZERS[kind] = finalizer
        return finalizer

    return register


def native(api: EmulatedApi, descriptor: Any, kind: str | None = None) -> Native:
    """Return what a descriptor points at; RefusalError if it is none, or one of another kind."""
    found = api.backend.get(getattr(descriptor, "value", descriptor) or 0)
    if found is None:
        raise RefusalError(Status.BAD_PARAM_NULL_POINTER, "not a live backend descriptor")
    if kind is not None and not (found.kind == kind and found.final):
        raise bad(f"{found.kind}, {'' if found.final else 'not '}final; wanted a final {kind}")
    return found  # type: ignore[no-any-return]


@emulates("cudnnBackendCreateDescriptor")
def create(given: SimpleNamespace) -> None:
    """Make a descriptor."""
    member = BackendDescriptorType(given.descriptorType)
    if member.name not in BackendDescriptorType.__members__:
        raise unsupported(f"descriptor type {given.descriptorType}")
    if given.api.library.version < KINDS_SINCE.get(member.name, 0):
        raise RefusalError(Status.INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "unknown descriptor type")
    made = Native(member.name)
    given.api.backend[made.address] = made
    given.descriptor[0] = type(given.descriptor[0])(made.address)


@emulates("cudnnBackendDestroyDescriptor")
def destroy(given: SimpleNamespace) -> None:
    """Forget a descriptor."""
    del given.api.backend[native(given.api, given.descriptor).address]


@emulates("cudnnBackendInitialize")
def initialize(given: SimpleNamespace) -> None:
    """Begin anew with a descriptor."""
    native(given.api, given.descriptor).clear()


def _attribute(given: SimpleNamespace, found: Native, count: int) -> tuple[str, str]:
    """Return the name and the type of the attribute that a call is about, if it fits the table."""
    number = given.attributeName
    by_number = {attribute[0]: name for name, attribute in ATTRIBUTES.get(found.kind, {}).items()}
    if number not in by_number:
        raise unsupported(f"{found.kind} has no attribute {number}")
    name = by_number[number]
    _, usual, many = ATTRIBUTES[found.kind][name]
    kind = BackendAttributeType(given.attributeType).name
    if kind not in ((usual, "DOUBLE") if usual == "FLOAT" else (usual,)):
        raise RefusalError(
            Status.BAD_PARAM_ATTRIBUTE_TYPE, f"{found.kind}.{name} is {usual}, not {kind}"
        )
    if not many and count > 1:
        raise bad(f"{found.kind}.{name} has one value, not {count}")
    return name, kind


@emulates("cudnnBackendSetAttribute")
def set_attribute(given: SimpleNamespace) -> None:
    """Set an attribute."""
    found, count, elements = (
        native(given.api, given.descriptor),
        given.elementCount,
        given.arrayOfElements,
    )
    name, type_name = _attribute(given, found, count)
    if found.final:
        raise bad(f"{found.kind} is final")
    if name in _READ_ONLY.get(found.kind, ()):
        raise bad(f"{found.kind}.{name} cannot be set")
    if count < 1 or not elements:
        raise RefusalError(
            Status.BAD_PARAM_NULL_POINTER, f"{found.kind}.{name}: {count} values at {elements}"
        )
    values = list((C_TYPES.get(type_name, ctypes.c_int) * count).from_address(elements))
    if type_name == "BACKEND_DESCRIPTOR":
        values = [native(given.api, value) for value in values]
        if not all(value.final for value in values):
            raise RefusalError(Status.BAD_PARAM_NOT_FINALIZED, f"{found.kind}.{name} is not final")
    if type_name == "HANDLE" and values[0] not in given.api.handles:
        raise bad(f"{found.kind}.{name} is not a live handle of the emulated device")
    # cuDNN takes any number here, and may compute with it.
    enum = DataType if type_name == "DATA_TYPE" else ENUMS_OF_ATTRIBUTES.get(type_name)
    if enum is not None and not all(is_choice(enum(value)) for value in values):
        raise bad(f"{found.kind}.{name}={values} is not of {enum.__name__}")
    found.values[name] = values


@emulates("cudnnBackendFinalize")
def finalize(given: SimpleNamespace) -> None:
    """Check a descriptor, and make it final."""
    found = native(given.api, given.descriptor)
    if found.final:
        raise bad(f"{found.kind} is final")
    missing = [name for name in REQUIRED.get(found.kind, ()) if name not in found.values]
    if missing:
        raise bad(f"{found.kind} lacks {', '.join(missing)}")
    if found.kind not in FINALIZERS:
        raise unsupported(f"the emulated device has no graphs with {found.kind}")
    FINALIZERS[found.kind](found)
    found.final = True


@emulates("cudnnBackendGetAttribute")
def get_attribute(given: SimpleNamespace) -> None:
    """Tell an attribute; descriptors are written into those that the caller made."""
    found, room, elements = (
        native(given.api, given.descriptor),
        given.requestedElementCount,
        given.arrayOfElements,
    )
    name, type_name = _attribute(given, found, 1)
    if not found.final:
        raise RefusalError(Status.BAD_PARAM_NOT_FINALIZED, f"{found.kind} is not final")
    values = found.values.get(name, [])
    given.elementCount[0] = len(values)
    if not room or not elements:
        return
    values = values[:room]
    array = (C_TYPES.get(type_name, ctypes.c_int) * room).from_address(elements)
    if type_name != "BACKEND_DESCRIPTOR":
        array[: len(values)] = values
        return
    for address, value in zip(array, values, strict=False):
        target = native(given.api, address)
        if target.kind != value.kind:
            raise bad(f"{found.kind}.{name} is {value.kind}, not {target.kind}")
        target.become(value)
