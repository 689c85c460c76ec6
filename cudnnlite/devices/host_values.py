"""Values of users as NumPy arrays of a dtype that cuDNN has."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnnlite.arguments import masked_types, one_of
from cudnnlite.dtypes import ARRAY_DTYPES, numpy_dtype, parse_dtype, readable, unread_torch_dtype
from cudnnlite.errors import ArgumentError, ArrayTypeError

Array = np.ndarray[Any, Any]


def host_values(values: Any, dtype: Any = None, casting: str | None = None) -> Array:
    """Return numbers as an array, of a dtype if one is given; see `Handle.array`."""
    one_of(casting, "casting", "unsafe", None)
    name = unread_torch_dtype(values)
    if name:
        values = readable(values)
        dtype = name if dtype is None else dtype
    source = _as_array(values)
    target_dtype = numpy_dtype(parse_dtype(source.dtype if dtype is None else dtype))
    if source.dtype != target_dtype or isinstance(values, masked_types()):
        return _converted(values, source, target_dtype, casting)
    return source


def _as_array(values: Any) -> Array:
    """Return values as NumPy's array of numbers, or of whatever else NumPy makes but objects."""
    try:
        source = np.asarray(values)
    except (ValueError, MemoryError, OverflowError) as error:  # a ragged list; a range of too many
        raise ArgumentError(f"values cannot be turned into an array: {error}") from error
    except (TypeError, RuntimeError) as error:  # another device's array; PyTorch's with a gradient
        raise ArrayTypeError(
            f"values of type {type(values).__name__} cannot be copied from the host: {error}"
        ) from error
    if source.dtype.kind == "O" and hasattr(values, "__dlpack__"):
        try:
            source = np.from_dlpack(values)
        except (TypeError, ValueError, AttributeError, RuntimeError, BufferError) as error:
            raise ArrayTypeError(
                f"values of type {type(values).__name__} cannot be copied: {error}"
            ) from error
    if source.dtype.kind == "O":
        type_names = sorted({type(value).__name__ for value in source.ravel()[:1000]})
        kinds = ", ".join(type_names or [type(values).__name__])
        raise ArrayTypeError(f"an array of {kinds} objects cannot be copied to a device")
    return source


def _converted(values: Any, source: Array, dtype: np.dtype[Any], casting: str | None) -> Array:
    """Return an array in another dtype.

    Floats are rounded.  Anything else that would be lost is an ArgumentError, unless `casting` is
    "unsafe".
    """
    is_complex = source.dtype.kind == "c"
    is_number = source.dtype.kind in "biufc" or source.dtype in map(numpy_dtype, ARRAY_DTYPES)
    if not is_number:
        raise ArrayTypeError(
            f"values of {source.dtype} are no numbers, and cannot be copied to a device"
        )
    numbers = source.real if is_complex else source
    with np.errstate(invalid="ignore", over="ignore"):
        converted = numbers.astype(dtype, copy=False)
    if casting is None:
        loss = _loss(values, source, converted)
        if loss:
            raise ArgumentError(
                f'values of {source.dtype} as {dtype} would lose {loss}; casting="unsafe" lets them'
            )
    return converted


def is_overflow(numbers: Array, converted: Array) -> bool:
    """Return whether a conversion made infinity or NaN of a number, or NaN of infinity.

    NumPy's signal for an overflow does not say that of bfloat16 and float8.  float8_e4m3fn has no
    infinity.
    """
    if np.isfinite(converted).all():
        return False
    is_lost = np.isfinite(numbers) & ~np.isfinite(converted)
    becomes_nan = np.isnan(converted) & ~np.isnan(numbers)
    return bool((is_lost | becomes_nan).any())


def _loss(values: Any, source: Array, converted: Array) -> str:
    """Return the loss of a conversion, besides the rounding of floats; empty if there is none."""
    if isinstance(values, masked_types()) and np.ma.is_masked(values):
        return "masked values"
    if source.dtype.kind == "c":
        return "imaginary parts"
    if converted.dtype.kind not in "iu":
        return "values that are too large" if is_overflow(source, converted) else ""
    if np.can_cast(source.dtype, converted.dtype):
        return ""
    if (converted == source).all():
        return ""
    return "values that it has not, such as fractions, NaN or larger ones"
