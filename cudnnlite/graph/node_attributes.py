"""Attributes of a graph's operations: which there are, and their values as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cudnnlite._raw.attributes import ATTRIBUTES
from cudnnlite.arguments import real_number, shown
from cudnnlite.dtypes import dtype_name, numpy_dtype, parse_dtype, refuse_overflow
from cudnnlite.enums import DataType, parse_enum
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.attributes import ENUMS_OF_ATTRIBUTES, SECOND_TYPES, encode

_PREFIX = "OPERATION_"
TENSOR = "BACKEND_DESCRIPTOR"  # the type of an attribute that takes tensors
_NATIVE_TYPES = frozenset({"HANDLE", "VOID_PTR", "CHAR"})  # of values that are no data
_NUMBERS = {"BOOLEAN": bool, "INT32": int, "INT64": int, "FLOAT": float, "DOUBLE": float}
# The descriptor that configures an operation, where it has one, and its attribute for it.
CONFIGURATIONS: Mapping[str, tuple[str, str]] = {
    "POINTWISE": ("POINTWISE", "pw_descriptor"),
    "MATMUL": ("MATMUL", "desc"),
    "REDUCTION": ("REDUCTION", "desc"),
    "CONVOLUTION_FORWARD": ("CONVOLUTION", "conv_desc"),
    "CONVOLUTION_BACKWARD_DATA": ("CONVOLUTION", "conv_desc"),
    "CONVOLUTION_BACKWARD_FILTER": ("CONVOLUTION", "conv_desc"),
    "RESAMPLE_FWD": ("RESAMPLE", "desc"),
    "RESAMPLE_BWD": ("RESAMPLE", "desc"),
    "RNG": ("RNG", "desc"),
}


def attributes_of(kind: object) -> dict[str, tuple[int, str, bool]]:
    """Return the attributes of an operation, with those of the descriptor that configures it.

    An attribute is its number, its type, and whether it takes several values.  ArgumentError if
    cuDNN has no such operation.
    """
    if not isinstance(kind, str) or _PREFIX + kind not in ATTRIBUTES:
        kinds = [name.removeprefix(_PREFIX) for name in ATTRIBUTES if name.startswith(_PREFIX)]
        raise ArgumentError(f"kind={shown(kind)}; allowed: {', '.join(kinds)}")
    attributes = dict(ATTRIBUTES[_PREFIX + kind])
    if kind not in CONFIGURATIONS:
        return attributes
    configuration, attribute = CONFIGURATIONS[kind]
    del attributes[attribute]
    return ATTRIBUTES[configuration] | attributes


def takes_tensors(kind: str, name: str) -> bool:
    """Whether an attribute of an operation may be a tensor."""
    has_tensor_type = attributes_of(kind)[name][1] == TENSOR
    return has_tensor_type or SECOND_TYPES.get((_PREFIX + kind, name)) == TENSOR


def attribute_value(kind: str, name: str, value: Any) -> Any:
    """Return an attribute's value as data: a number, a tuple, or the name of a member or data type.

    Raises
    ------
    ArgumentError
        A value has another type; the message names the type that is needed.
    """
    _, type_of_value, takes_several = attributes_of(kind)[name]
    if type_of_value == TENSOR:
        raise ArgumentError(f"{kind}.{name} takes tensors; give them by `reads` or `writes`")
    if type_of_value in _NATIVE_TYPES:
        raise ArgumentError(f"{kind}.{name} takes native objects, which are no data")
    if type_of_value == "DATA_TYPE" and not takes_several:
        return type_name(parse_any_dtype(value, name))
    if type_of_value in ENUMS_OF_ATTRIBUTES and not takes_several:
        return parse_enum(ENUMS_OF_ATTRIBUTES[type_of_value], value, name).name
    # `encode` refuses what C would refuse.  A scalar may also be DOUBLE, if the operation says so.
    type_in_c = "DOUBLE" if type_of_value == "FLOAT" else None
    encode(_owner_of(kind, name), name, value, type_in_c)
    number: Any = _NUMBERS.get(type_of_value, lambda number: number)
    return tuple(map(number, value)) if takes_several else number(value)


def _owner_of(kind: str, name: str) -> str:
    """Return the kind of the descriptor that an attribute of an operation belongs to."""
    configuration, _ = CONFIGURATIONS.get(kind, ("", ""))
    return configuration if name in ATTRIBUTES.get(configuration, {}) else _PREFIX + kind


def parse_number(value: object, dtype: DataType, argument: str) -> float:
    """Return a number that a data type has room for; ArgumentError for any other."""
    number = real_number(value, argument)
    kind = numpy_dtype(dtype)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        if not number.is_integer() or not limits.min <= number <= limits.max:
            raise ArgumentError(
                f"{argument}={shown(value)}; needed: an integer, as {kind} has them"
            )
    refuse_overflow(number, dtype, argument)
    return number


def type_name(dtype: DataType) -> str:
    """Return how a data type is written: "bool" too, of which there are no arrays."""
    return "bool" if dtype == DataType.BOOLEAN else dtype_name(dtype)


def parse_any_dtype(value: object, argument: str = "dtype") -> DataType:
    """Return a data type; of tensors between operations "bool" too."""
    is_text = isinstance(value, str) and value == "bool"
    is_type = value is bool or value is np.bool_
    is_member = type(value) is DataType and value == DataType.BOOLEAN
    if is_text or is_type or is_member:
        return DataType.BOOLEAN
    return parse_dtype(value, argument)
