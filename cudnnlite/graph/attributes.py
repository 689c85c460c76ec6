"""Attributes of backend descriptors: their C types, and conversion from and to Python values."""

from __future__ import annotations

import ctypes
from collections.abc import Container
from typing import Any

from cudnnlite._raw import enums
from cudnnlite._raw.attributes import ATTRIBUTES
from cudnnlite._raw.cenum import CEnum
from cudnnlite._raw.enums import BackendAttributeType
from cudnnlite._raw.opaque import Opaque
from cudnnlite._raw.types import cudnnBackendDescriptor_t, cudnnHandle_t
from cudnnlite.arguments import real_number, refuse_masked, shown
from cudnnlite.dtypes import PLAIN_NAMES, parse_dtype, refuse_overflow
from cudnnlite.enums import parse_enum
from cudnnlite.errors import ArgumentError

# The ctypes type of each type of attribute.  Enumerations are not listed: all are ints.
C_TYPES: dict[str, Any] = {
    "HANDLE": ctypes.c_void_p,
    "BACKEND_DESCRIPTOR": ctypes.c_void_p,
    "VOID_PTR": ctypes.c_void_p,
    "BOOLEAN": ctypes.c_bool,
    "CHAR": ctypes.c_char,
    "INT32": ctypes.c_int32,
    "INT64": ctypes.c_int64,
    "FLOAT": ctypes.c_float,
    "DOUBLE": ctypes.c_double,
}
_NATIVE_TYPES: dict[str, type[Opaque]] = {
    "HANDLE": cudnnHandle_t,
    "BACKEND_DESCRIPTOR": cudnnBackendDescriptor_t,
}
ENUMS_OF_ATTRIBUTES: dict[str, type[CEnum]] = {
    "CONVOLUTION_MODE": enums.ConvolutionMode,
    "HEUR_MODE": enums.BackendHeurMode,
    "KNOB_TYPE": enums.BackendKnobType,
    "NAN_PROPOGATION": enums.NanPropagation,
    "NUMERICAL_NOTE": enums.BackendNumericalNote,
    "BEHAVIOR_NOTE": enums.BackendBehaviorNote,
    "LAYOUT_TYPE": enums.BackendLayoutType,
    "ATTRIB_NAME": enums.BackendAttributeName,
    "POINTWISE_MODE": enums.PointwiseMode,
    "GENSTATS_MODE": enums.GenStatsMode,
    "BN_FINALIZE_STATS_MODE": enums.BnFinalizeStatsMode,
    "REDUCTION_OPERATOR_TYPE": enums.ReduceTensorOp,
    "TENSOR_REORDERING_MODE": enums.BackendTensorReordering,
    "RESAMPLE_MODE": enums.ResampleMode,
    "PADDING_MODE": enums.PaddingMode,
    "SIGNAL_MODE": enums.SignalMode,
    "NORM_MODE": enums.BackendNormMode,
    "NORM_FWD_PHASE": enums.BackendNormFwdPhase,
    "RNG_DISTRIBUTION": enums.RngDistribution,
    "CUDA_GRAPH_RETENTION": enums.CudaGraphRetention,
    "OPERATIONGRAPH_MODE": enums.BackendOperationGraphMode,
    "RESHAPE_MODE": enums.BackendReshapeMode,
    "MOE_GROUPED_MATMUL_MODE": enums.MoeGroupedMatmulMode,
}
# Attributes that cuDNN takes in a second type, by which it knows a tensor from a number.
SECOND_TYPES = {("OPERATION_RNG", "seed"): "BACKEND_DESCRIPTOR"}
# The attributes without which cuDNN does not finalise a descriptor, for the kinds that cudnnlite
# makes.
REQUIRED = {
    "TENSOR": ("data_type", "dimensions", "strides", "byte_alignment", "unique_id"),
    "CONVOLUTION": (
        "comp_type",
        "conv_mode",
        "dilations",
        "filter_strides",
        "pre_paddings",
        "post_paddings",
        "spatial_dims",
    ),
    "POINTWISE": ("mode", "math_prec"),
    "OPERATION_CONVOLUTION_FORWARD": ("conv_desc", "x", "w", "y"),
    "OPERATION_CONVOLUTION_BACKWARD_DATA": ("conv_desc", "dx", "w", "dy"),
    "OPERATION_CONVOLUTION_BACKWARD_FILTER": ("conv_desc", "x", "dw", "dy"),
    "OPERATION_POINTWISE": ("pw_descriptor",),
    "OPERATIONGRAPH": ("ops",),
    "ENGINE": ("operation_graph", "global_index"),
    "ENGINECFG": ("engine",),
    "ENGINEHEUR": ("operation_graph", "mode"),
    "KNOB_CHOICE": ("knob_type", "knob_value"),
    "VARIANT_PACK": ("unique_ids", "data_pointers"),
}
# The kind of the descriptors that cuDNN fills when an attribute is read.
KINDS_READ = {
    "RESULTS": "ENGINECFG",
    "ENGINE": "ENGINE",
    "KNOB_INFO": "KNOB_INFO",
    "KNOB_CHOICES": "KNOB_CHOICE",
    "LAYOUT_INFO": "LAYOUT_INFO",
    "OPERATION_GRAPH": "OPERATIONGRAPH",
    "ENGINE_CONFIG": "ENGINECFG",
}


def missing_attributes(kind: str, names: Container[str]) -> list[str]:
    """Return the attributes, beside `names`, that cuDNN needs to finalise a descriptor.

    A plan is made from an engine's configuration, or restored from a text for a device.  cuDNN
    9.28 ends the process with a segmentation fault if neither is set, or the device is not.
    """
    if kind != "EXECUTION_PLAN":
        return [name for name in REQUIRED.get(kind, ()) if name not in names]
    if "engine_config" in names:
        return []
    if "json_representation" not in names:
        return ["engine_config or json_representation"]
    return [] if "handle" in names or "deviceprop" in names else ["handle or deviceprop"]


def attribute(kind: str, name: str) -> tuple[int, str, bool]:
    """Return an attribute's number, the name of its type, and whether it takes several values.

    ArgumentError if the kind has no such attribute.
    """
    attributes = ATTRIBUTES.get(kind, {})
    if not isinstance(name, str) or name not in attributes:
        raise ArgumentError(
            f"{kind} has no attribute {shown(name)}; allowed: {', '.join(attributes) or 'none'}"
        )
    return attributes[name]


def encode(
    kind: str, name: str, value: Any, type_name: str | None = None
) -> tuple[int, BackendAttributeType, Any]:
    """Return the number of an attribute, its C type, and an array of C values.

    Raises
    ------
    ArgumentError
        There is no such attribute, or the value has another type; the message names it.
    """
    number, default_type, has_several = attribute(kind, name)
    if (kind, name) in SECOND_TYPES and isinstance(getattr(value, "ptr", None), Opaque):
        default_type = SECOND_TYPES[kind, name]
    type_name = _value_type(kind, name, default_type, type_name)
    if type_name == "CHAR":
        return number, BackendAttributeType.CHAR, _text(kind, name, value)
    try:
        if isinstance(value, (tuple, list)) != has_several:
            raise TypeError
        values = value if has_several else [value]
        encoded = [_encode(type_name, element) for element in values]
        c_type = C_TYPES.get(type_name, ctypes.c_int)
        elements = (c_type * len(encoded))(*encoded)
    except (TypeError, ValueError, OverflowError) as error:  # ArgumentError is a ValueError
        quantity = "several values of" if has_several else "one"
        reason = f" ({error})" if str(error) else ""
        raise ArgumentError(
            f"{kind}.{name}={shown(value)}; needed: {quantity} {type_name}{reason}"
        ) from error
    return number, BackendAttributeType[type_name], elements


def _value_type(kind: str, name: str, default_type: str, type_name: str | None) -> str:
    """Return the type of an attribute's values: its own, or DOUBLE instead of FLOAT."""
    if not type_name:
        return default_type
    allowed = ["FLOAT", "DOUBLE"] if default_type == "FLOAT" else [default_type]
    if type_name not in allowed:
        raise ArgumentError(
            f"type_name={shown(type_name)} of {kind}.{name}; allowed: {', '.join(allowed)}"
        )
    return type_name


def _text(kind: str, name: str, value: Any) -> ctypes.Array[ctypes.c_char]:
    """Return the characters of a text, without the zero that ends it in C."""
    is_text = isinstance(value, str) and bool(value)
    if not is_text or not value.isascii() or "\0" in value:
        raise ArgumentError(
            f"{kind}.{name}={shown(value)}; needed: a text of ASCII characters other than zero"
        )
    encoded = value.encode("ascii")
    return (ctypes.c_char * len(encoded)).from_buffer_copy(encoded)


def _encode(type_name: str, value: Any) -> Any:
    """Return a value that ctypes accepts.

    TypeError, ValueError or OverflowError for a value that the type does not have.
    """
    if type_name == "DATA_TYPE":
        return int(_data_type(value))
    if type_name == "KNOB_TYPE" and isinstance(value, enums.BackendKnobType):
        return int(value)  # cuDNN may return a knob that these headers do not have
    if type_name in ENUMS_OF_ATTRIBUTES:
        return int(parse_enum(ENUMS_OF_ATTRIBUTES[type_name], value, type_name.lower()))
    if type_name in _NATIVE_TYPES:
        return _address(_NATIVE_TYPES[type_name], value)
    if isinstance(value, bool) != (type_name == "BOOLEAN"):
        raise TypeError
    if type_name in ("FLOAT", "DOUBLE"):
        number = real_number(value, "value")
        if type_name == "FLOAT":
            refuse_overflow(number, enums.DataType.FLOAT, "value")
        return number
    refuse_masked(value, "value")
    if value and type_name in ("INT32", "INT64", "VOID_PTR"):
        # ctypes truncates a number that is too large.
        c_value = C_TYPES[type_name](value).value
        if c_value != value:
            raise OverflowError
    return value


def _data_type(value: Any) -> enums.DataType:
    """Return a data type; graphs have some that arrays do not have, such as BOOLEAN and INT4."""
    try:
        return parse_dtype(value)
    except ArgumentError:
        return parse_enum(enums.DataType, value, "data_type", PLAIN_NAMES)


def _address(kind: type[Opaque], value: Any) -> int:
    """Return the address of a native object, or of the native object that an owner has.

    Integers are refused, because cuDNN would dereference any address.
    """
    native = kind.from_param(value)
    if native is None or not native.value:
        raise TypeError("it is a null pointer")
    return int(native.value)


def decode(type_name: str, value: Any) -> Any:
    """Return the Python value of a C value: an enum's member, a number, a bool."""
    if type_name == "DATA_TYPE":
        return enums.DataType(value)
    if type_name in ENUMS_OF_ATTRIBUTES:
        return ENUMS_OF_ATTRIBUTES[type_name](value)
    return value
