"""How far a result is from the right one, and which errors no rounding explains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cudnnlite.enums import DataType, MathType

Array = np.ndarray[Any, Any]

# Errors beyond these are no matter of rounding: the algorithm computed something else.
_WRONG = {DataType.DOUBLE: 1e-9, DataType.FLOAT: 1e-2}
_WRONG_REDUCED = 0.1  # TF32, float16, bfloat16
_TF32 = 3e-4  # what TF32 costs on an H200


class Errors(NamedTuple):
    """How far results are from what is expected, infinite where one is not finite.

    `l2` is the L2 norm of the difference over that of what is expected, `largest` the largest
    difference over the largest value.
    """

    l2: float
    largest: float


def relative_errors(got: Sequence[Array], expected: Sequence[Array]) -> Errors:
    """Compare arrays, all of them together, in float64; where all of what is expected is zero, return the plain norms."""
    ours = np.concatenate([values.astype(np.float64).ravel() for values in got])
    right = np.concatenate([values.astype(np.float64).ravel() for values in expected])
    if not np.isfinite(ours).all():
        return Errors(float("inf"), float("inf"))
    difference = ours - right
    norm, most = _norm(right), float(np.max(np.abs(right), initial=0.0))
    return Errors(
        _norm(difference) / (norm or 1.0),
        float(np.max(np.abs(difference), initial=0.0)) / (most or 1.0),
    )


def _norm(values: Array) -> float:
    """Return the L2 norm without BLAS, whose threads go on spinning while calls are timed."""
    return float(np.sqrt(np.einsum("i,i->", values, values)))


def why_wrong(error: float, dtype: DataType, math_type: MathType) -> str:
    """Return why what computes with that relative L2 error cannot be used; empty if it can."""
    reduced = math_type != MathType.FMA or dtype in (DataType.HALF, DataType.BFLOAT16)
    bound = _WRONG_REDUCED if reduced and dtype != DataType.DOUBLE else _WRONG.get(dtype, 0.0)
    return "" if error <= bound else f"wrong: relative error {error:.1e}"


def why_inexact(error: float, bound: float | None) -> str:
    """Return why an error is more than the user allows; empty if it is not."""
    return (
        ""
        if bound is None or error <= bound
        else f"its error is {error:.1e}, the bound is {bound:.1e}"
    )


def remark_on(error: float, dtype: DataType, math_type: MathType) -> str:
    """Return what to say of true float32 that is no more exact than TF32, as Winograd's with 5 x 5 taps; else nothing."""
    inexact = dtype == DataType.FLOAT and math_type == MathType.FMA and error > _TF32
    return "no more exact than TF32" if inexact else ""
