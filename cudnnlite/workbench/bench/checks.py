"""Checks of a result: errors against float64, zeros, and bits that change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cudnnlite.enums import DataType, MathType
from cudnnlite.texts import counted
from cudnnlite.workbench.tuning.accuracy import relative_errors, why_wrong

Array = np.ndarray[Any, Any]

# By data type: the bits of a value's significand, the hidden one included, and the exponent of the
# smallest normal value.
_FORMATS = {
    DataType.DOUBLE: (53, -1022),
    DataType.FLOAT: (24, -126),
    DataType.HALF: (11, -14),
    DataType.BFLOAT16: (8, -126),
}
# How far a single value may be off, as a share of itself and of the RMS: fifty times the L2 errors
# that were measured on an H200, of which Winograd's with 5 x 5 taps are the largest.
_STRAY_DOUBLE, _STRAY_FLOAT, _STRAY_REDUCED = 1e-6, 0.05, 0.1


class Accuracy(NamedTuple):
    """How far results are from float64.

    Attributes
    ----------
    l2 : float
        The L2 norm of the difference, relative to that of the expected values.
    largest : float
        The largest difference, relative to the largest expected value.
    ulp : float or None
        The largest difference of a value, in units of the last place of its expected value.  For
        values below the RMS of their array these are the units of the RMS: where terms cancel, the
        sum has no more digits.  None for integers.
    finding : str
        What is wrong in words; empty if rounding explains the errors.
    """

    l2: float
    largest: float
    ulp: float | None
    finding: str


def accuracy_of(
    results: Sequence[Array], expected: Sequence[Array], dtype: DataType, math_type: MathType
) -> Accuracy:
    """Compare results with those computed in float64.

    Parameters
    ----------
    results, expected : sequence of array
        Arrays of equal shapes; all are compared together.
    dtype : DataType
        The type of the results, whose rounding is a unit in the last place.
    math_type : MathType
        With it the results were computed.
    """
    l2, largest = relative_errors(results, expected)
    ulp = None
    if dtype in _FORMATS:
        ulp = max(
            (
                largest_ulp_error(actual, reference, dtype, least=_rms(reference))
                for actual, reference in zip(results, expected, strict=True)
            ),
            default=0.0,
        )
    return Accuracy(l2, largest, ulp, _finding(results, expected, l2, dtype, math_type))


def _finding(
    results: Sequence[Array],
    expected: Sequence[Array],
    l2: float,
    dtype: DataType,
    math_type: MathType,
) -> str:
    is_zero = not any(np.any(values) for values in results)
    if is_zero and any(np.any(values) for values in expected):
        return "zeros where the reference is not"
    bad = sum(int(np.sum(~np.isfinite(values.astype(np.float64)))) for values in results)
    if bad:
        return f"{bad} compared values are not finite, or were not written"
    if l2 == 0:
        return ""
    reason = why_wrong(l2, dtype, math_type)
    if reason:
        return reason
    count = stray_values(results, expected, _stray_bound(dtype, math_type))
    if count:
        return f"wrong: {counted(count, 'compared value')} far off"
    return ""


def largest_ulp_error(
    actual: Array, expected: Array, dtype: DataType, *, least: float = 0.0
) -> float:
    """Return the largest difference in units in the last place of the expected values.

    For expected values below `least`, the unit is that of `least`.  The result is infinite if a
    value is not finite.
    """
    if not actual.size:
        return 0.0
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    if not np.isfinite(actual).all():
        return float("inf")
    bits, least_exponent = _FORMATS[dtype]
    sizes = np.maximum(np.abs(expected), least)
    _, exponents = np.frexp(sizes)  # a value is in [0.5, 1) times 2 to its exponent
    exponents = np.where(sizes == 0, least_exponent, exponents - 1)
    units = np.ldexp(1.0, np.maximum(exponents, least_exponent) - (bits - 1))
    return float(np.max(np.abs(actual - expected) / units))


def _stray_bound(dtype: DataType, math_type: MathType) -> float:
    if dtype == DataType.DOUBLE:
        return _STRAY_DOUBLE
    if dtype == DataType.FLOAT and math_type == MathType.FMA:
        return _STRAY_FLOAT
    return _STRAY_REDUCED


def stray_values(results: Sequence[Array], expected: Sequence[Array], bound: float) -> int:
    """Return how many values are off by more than rounding explains.

    The allowance is `bound` times the sum of the value and the RMS of its array.
    """
    count = 0
    for actual, reference in zip(results, expected, strict=True):
        values = reference.astype(np.float64)
        difference = np.abs(actual.astype(np.float64) - values)
        count += int(np.sum(difference > bound * (np.abs(values) + _rms(values))))
    return count


def _rms(values: Array) -> float:
    if not values.size:
        return 0.0
    return float(np.sqrt(np.mean(np.square(values.astype(np.float64)))))


def differing_runs(runs: Sequence[bytes]) -> str:
    """Return in words how runs differ from the first; empty if all have the same bits.

    `runs` has the digest of each run's outputs.
    """
    different = sum(run != runs[0] for run in runs[1:])
    if not different:
        return ""
    return f"{different} of {len(runs) - 1} repetitions have other bits than the first run"
