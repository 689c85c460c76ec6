"""The errors of a result, and the bounds above which rounding does not explain them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cudnnlite.enums import DataType, MathType

Array = np.ndarray[Any, Any]

# A larger error does not come from rounding: the algorithm computed something else.
_LARGEST_ERRORS = {DataType.DOUBLE: 1e-9, DataType.FLOAT: 1e-2}
_LARGEST_REDUCED_ERROR = 0.1  # in TF32, float16 and bfloat16
_TF32_ERROR = 3e-4  # on an H200


class Errors(NamedTuple):
    """The errors of results, relative to the expected values; infinite if a result is not finite.

    `l2` is the L2 norm of the difference, relative to that of the expected values.  `largest` is
    the largest difference, relative to the largest expected value.
    """

    l2: float
    largest: float


def relative_errors(results: Sequence[Array], expected: Sequence[Array]) -> Errors:
    """Compare all arrays together, in float64.

    The errors are absolute if all expected values are zero.
    """
    actual = _flatten(results)
    reference = _flatten(expected)
    if not np.isfinite(actual).all():
        return Errors(float("inf"), float("inf"))
    difference = actual - reference
    return Errors(
        _norm(difference) / (_norm(reference) or 1.0),
        _largest(difference) / (_largest(reference) or 1.0),
    )


def _flatten(arrays: Sequence[Array]) -> Array:
    return np.concatenate([values.astype(np.float64).ravel() for values in arrays])


def _largest(values: Array) -> float:
    return float(np.max(np.abs(values), initial=0.0))


def _norm(values: Array) -> float:
    """Return the L2 norm, without BLAS: its threads go on spinning while calls are timed."""
    return float(np.sqrt(np.einsum("i,i->", values, values)))


def why_wrong(error: float, dtype: DataType, math_type: MathType) -> str:
    """Return why a candidate with this relative L2 error cannot be used; empty if it can."""
    is_reduced = math_type != MathType.FMA or dtype in (DataType.HALF, DataType.BFLOAT16)
    bound = _LARGEST_ERRORS.get(dtype, 0.0)
    if is_reduced and dtype != DataType.DOUBLE:
        bound = _LARGEST_REDUCED_ERROR
    if error <= bound:
        return ""
    return f"wrong: relative error {error:.1e}"


def why_inexact(error: float, bound: float | None) -> str:
    """Return why an error is larger than the user allows; empty if it is not."""
    if bound is None or error <= bound:
        return ""
    return f"its error is {error:.1e}, the bound is {bound:.1e}"


def remark_on(error: float, dtype: DataType, math_type: MathType) -> str:
    """Return a remark if a float32 result without TF32 is no more exact than TF32; else no text.

    Winograd's algorithm with 5 x 5 taps is an example.
    """
    is_float32 = dtype == DataType.FLOAT and math_type == MathType.FMA
    if is_float32 and error > _TF32_ERROR:
        return "no more exact than TF32"
    return ""
