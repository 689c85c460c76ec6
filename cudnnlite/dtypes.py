"""cuDNN's data types: the NumPy dtype, size, vector length and compute type of each."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from math import isfinite, isinf
from typing import Any, Literal, TypeAlias

import numpy as np

from cudnnlite.arguments import shown
from cudnnlite.enums import DataType, parse_enum
from cudnnlite.errors import ArgumentError

# NumPy's names.  The members of `DataType` have cuDNN's: FLOAT, HALF, ...
_NAMES = {
    DataType.FLOAT: "float32",
    DataType.DOUBLE: "float64",
    DataType.HALF: "float16",
    DataType.BFLOAT16: "bfloat16",
    DataType.INT8: "int8",
    DataType.UINT8: "uint8",
    DataType.INT32: "int32",
    DataType.UINT32: "uint32",
    DataType.INT64: "int64",
    DataType.INT8x4: "int8x4",
    DataType.UINT8x4: "uint8x4",
    DataType.INT8x32: "int8x32",
    DataType.FP8_E4M3: "float8_e4m3fn",
    DataType.FP8_E5M2: "float8_e5m2",
}
ARRAY_DTYPES = tuple(_NAMES)
PLAIN_NAMES = {name: dtype for dtype, name in _NAMES.items()}

# The vector types of NCHW_VECT_C: the number of channels in one element of the tensor, and the
# plain type of each channel.
_VECTORS = {
    DataType.INT8x4: (4, DataType.INT8),
    DataType.UINT8x4: (4, DataType.UINT8),
    DataType.INT8x32: (32, DataType.INT8),
}
_LARGEST = {
    DataType.FLOAT: "3.4028234e+38",
    DataType.BFLOAT16: "3.3895313e+38",
    DataType.HALF: "65504",
}
DtypeName: TypeAlias = Literal[
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int64",
    "int32",
    "int8",
    "uint32",
    "uint8",
    "int8x4",
    "uint8x4",
    "int8x32",
]
# The types of values that users may pass as a data type.
AnyDtype: TypeAlias = DataType | DtypeName | type[Any] | np.dtype[Any]
_ML_DTYPES = {DataType.BFLOAT16, DataType.FP8_E4M3, DataType.FP8_E5M2}
_HALVES = {DataType.HALF, DataType.BFLOAT16}
_COMPUTE = {
    DataType.DOUBLE: DataType.DOUBLE,
    DataType.INT8: DataType.INT32,
    DataType.UINT8: DataType.INT32,
}


def parse_dtype(value: object, argument: str = "dtype") -> DataType:
    """Return the `DataType` of a name, a dtype of NumPy or PyTorch, a scalar type or a `DataType`.

    Names are 'float32', 'bfloat16' and so on.  ArgumentError if cuDNN has no such data type, or if
    cudnnlite cannot exchange it with NumPy.
    """
    if type(value) is DataType:
        if value not in _NAMES:
            raise ArgumentError(
                f"{argument}={value.name}: cudnnlite has no arrays of it; "
                f"allowed: {', '.join(PLAIN_NAMES)}"
            )
        return value
    try:
        hash(value)
    except (TypeError, ValueError):  # ValueError comes from a timedelta64 without a unit
        raise ArgumentError(
            f"{argument}={shown(value)} is not a data type; allowed: {', '.join(PLAIN_NAMES)}"
        ) from None
    return _parse_dtype(value, argument)


@lru_cache(maxsize=256, typed=True)  # 1 and True are equal, but only one of them is a C value
def _parse_dtype(value: Any, argument: str) -> DataType:
    if isinstance(value, str) and value.lower() in PLAIN_NAMES:
        return PLAIN_NAMES[value.lower()]
    if isinstance(value, str) and value.lower() == "float":
        raise ArgumentError(
            f"{argument}={shown(value)}: NumPy's float is float64, cuDNN's FLOAT is float32; "
            "name the one you mean"
        )
    if (type(value).__module__, type(value).__name__) == ("torch", "dtype"):
        value = str(value).removeprefix("torch.")
    name = ""
    # numpy.dtype would also take None, and any object with an attribute `dtype`.
    if isinstance(value, (str, type, np.dtype)):
        with suppress(Exception):  # NumPy's parser raises exceptions of many kinds
            name = np.dtype(value).name
    if name in PLAIN_NAMES:
        return PLAIN_NAMES[name]
    try:
        return parse_dtype(parse_enum(DataType, value, argument), argument)
    except ArgumentError:
        raise ArgumentError(
            f"{argument}={shown(value)} is not a data type; allowed: {', '.join(PLAIN_NAMES)}"
        ) from None


def dtype_name(dtype: DataType) -> str:
    """Return NumPy's name: 'float32' for `DataType.FLOAT`."""
    return _NAMES.get(dtype, dtype.name)


def mixed_types(argument: str, dtype: DataType, model: str, model_dtype: DataType) -> str:
    """Return the message for an argument that needs the data type of another one, the model.

    float64 is NumPy's default, so that a model of it is the stray one.
    """
    if model_dtype == DataType.DOUBLE:
        argument, dtype, model, model_dtype = model, model_dtype, argument, dtype
    message = (
        f"{argument} is {dtype_name(dtype)}, {model} is {dtype_name(model_dtype)}; "
        f"needed: the data type of {model}"
    )
    types = {dtype, model_dtype}
    if types == _HALVES:
        message += "; dnn.transform_tensor converts to float32, and from that"
    elif types <= {DataType.FLOAT, *_HALVES}:
        message += f"; dnn.transform_tensor(handle, {argument}, dtype={dtype_name(model_dtype)!r}) converts"
    return message + float64_hint(dtype, model_dtype)


def float64_hint(dtype: DataType, needed: DataType) -> str:
    """Return how an array becomes of another data type than float64; empty if it is not that."""
    if dtype != DataType.DOUBLE:
        return ""
    return f"; handle.array(values, dtype={dtype_name(needed)!r}) makes an array of it"


def vector_length(dtype: DataType) -> int:
    """Return the number of channels in one element.

    It is 4 or 32 for the vector types of NCHW_VECT_C, otherwise 1.
    """
    return _VECTORS[dtype][0] if dtype in _VECTORS else 1


@lru_cache(maxsize=64)
def numpy_dtype(dtype: DataType) -> np.dtype[Any]:
    """Return the NumPy dtype of one value; of a vector type, that of one channel."""
    if dtype in _VECTORS:
        dtype = _VECTORS[dtype][1]
    if dtype in _ML_DTYPES:
        import ml_dtypes

        narrow: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _NAMES[dtype]))
        return narrow
    return np.dtype(_NAMES[dtype])


def readable(values: Any) -> Any:
    """Return PyTorch's tensors of bfloat16 and float8 as float32; everything else unchanged.

    That is exact.  NumPy cannot read these tensors.
    """
    return values.float() if unread_torch_dtype(values) else values


def unread_torch_dtype(values: object) -> str:
    """Return the name of the type of PyTorch's tensors that NumPy cannot read; empty for others."""
    package, _, name = str(getattr(values, "dtype", "")).partition(".")
    return name if package == "torch" and PLAIN_NAMES.get(name) in _ML_DTYPES else ""


def itemsize(dtype: DataType) -> int:
    """Return the bytes of one element of a tensor; of a vector type, with all its channels."""
    return numpy_dtype(dtype).itemsize * vector_length(dtype)


def compute_type_for(dtype: DataType) -> DataType:
    """Return the type that cuDNN accumulates in.

    It is double for double, int32 for int8 and uint8, float for everything else.
    """
    if dtype in _VECTORS:
        dtype = _VECTORS[dtype][1]
    return _COMPUTE.get(dtype, DataType.FLOAT)


def refuse_overflow(number: float, dtype: DataType, argument: str) -> None:
    """Raise ArgumentError for a finite number that a data type would round to infinity."""
    if dtype not in _LARGEST or not isfinite(number):
        return
    with np.errstate(over="ignore"):
        rounded = float(numpy_dtype(dtype).type(number))
    if isinf(rounded):
        raise ArgumentError(
            f"{argument}={number}; allowed: up to {_LARGEST[dtype]}, a {dtype_name(dtype)}"
        )
