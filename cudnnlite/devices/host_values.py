"""What users give as values: numbers in a NumPy array, of a dtype that cuDNN has."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.ma import MaskedArray, is_masked

from cudnnlite.arguments import one_of
from cudnnlite.dtypes import ARRAY_DTYPES, numpy_dtype, parse_dtype, readable
from cudnnlite.errors import ArgumentError, ArrayTypeError

Array = np.ndarray[Any, Any]


def host_values(values: Any, dtype: Any = None, casting: str | None = None) -> Array:
    """Return numbers as an array, of a dtype if one is given; see `Handle.array`."""
    one_of(casting, "casting", "unsafe", None)
    if (wide := readable(values)) is not values:
        values, dtype = wide, "bfloat16" if dtype is None else dtype
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
        kinds = ", ".join(
            sorted({type(value).__name__ for value in source.ravel()[:1000]})
            or [type(values).__name__]
        )
        raise ArrayTypeError(f"an array of {kinds} objects cannot be copied to a device")
    wanted = numpy_dtype(parse_dtype(source.dtype if dtype is None else dtype))
    if source.dtype != wanted or isinstance(values, MaskedArray):
        source = _converted(values, source, wanted, casting)
    return source


def _converted(values: Any, source: Array, dtype: np.dtype[Any], casting: str | None) -> Array:
    """Return an array in another dtype; floats are rounded to what that has, but nothing else is lost unless it may be."""
    is_number = source.dtype.kind in "biufc" or source.dtype in map(numpy_dtype, ARRAY_DTYPES)
    if not is_number:
        raise ArrayTypeError(
            f"values of {source.dtype} are no numbers, and cannot be copied to a device"
        )
    what = (
        "masked values"
        if is_masked(values)
        else "imaginary parts"
        if source.dtype.kind == "c"
        else ""
    )
    try:
        with np.errstate(invalid="ignore", over="ignore" if casting else "raise"):
            converted = (source.real if source.dtype.kind == "c" else source).astype(
                dtype, copy=False
            )
    except FloatingPointError:
        what = "values that are too large"
    if casting is None:
        if dtype.kind in "iu" and not (
            what or np.can_cast(source.dtype, dtype) or (converted == source).all()
        ):
            what = "values that it has not, such as fractions, NaN or larger ones"
        if what:
            raise ArgumentError(
                f'values of {source.dtype} as {dtype} would lose {what}; casting="unsafe" lets them'
            )
    return converted
