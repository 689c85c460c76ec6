"""`Expected`, and the comparison of a result with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tolerances import ELEMENT_BOUNDS

import cudnnlite as dnn
from fuzz.random_draw import Array, largest_of, tiny_of, wide


@dataclass
class Expected:
    """One result of a call.

    Attributes
    ----------
    values : ndarray of float64
    magnitude : ndarray of float64
        The sum of the absolute values of what each value is the sum of, at least.
    dtype : str
        Of the result, if the caller makes it.
    kind : str
        Which bounds count, of `tolerances.ELEMENT_BOUNDS`.
    spreads : bool
        Kernels may multiply every value of a tile by every other, so that beside an infinity all
        values are open.
    open : ndarray of bool, or bool
        Where nothing is said about the values.
    layout : TensorSpec, optional
        If the result can only lie so.
    is_exact : bool
        Whether integers are no rounded numbers.
    """

    values: Array
    magnitude: Array | None = None
    dtype: str = "float32"
    kind: str = "layer"
    spreads: bool = False
    open: Array | bool = False
    spec: dnn.TensorSpec | None = None
    name: str = "y"
    factor: float = 1.0
    floor: Array | float = 0.0
    is_exact: bool = False


class WrongError(AssertionError):
    """A result that is not right."""


def compare(result: Array, expected: Expected, hosts: Sequence[Array]) -> None:
    """Raise `WrongError` if a result is not what is expected.

    Parameters
    ----------
    result : ndarray
    expected : Expected
    hosts : sequence of ndarray
        The operands: the least precise data type decides the bound.
    """
    name, values = expected.name, expected.values
    if result.shape != values.shape:
        raise WrongError(f"{name}: shape {result.shape} instead of {values.shape}")
    got, dtype = wide(result), result.dtype
    magnitude = np.abs(values) if expected.magnitude is None else expected.magnitude
    is_nan = np.isnan(magnitude) & (expected.magnitude is not None) & (expected.kind == "product")
    if magnitude.size and expected.spreads:
        finite = magnitude[np.isfinite(magnitude)]
        magnitude = np.where(np.isfinite(magnitude), finite.max(initial=0.0), magnitude)
    dtypes = {dtype.name, *(host.dtype.name for host in hosts)}
    bounds = ELEMENT_BOUNDS[expected.kind]
    relative = max(bounds.get(each, 0.0) for each in dtypes) * expected.factor
    relative = relative or bounds["float32"]
    output_bound = {"float64": 1e-15, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}.get(
        dtype.name, 0.13 if "float8" in dtype.name else 0.0
    )
    is_narrow = dtypes - {"float64", "bool"}  # something may be computed in float32
    limit, computed_limit = largest_of(dtype), 3.4e38 if is_narrow else 1.7e308
    tiny = max(tiny_of(dtype), 1.2e-38 if is_narrow else 0.0)
    with np.errstate(all="ignore"):
        sizes = np.where(np.isfinite(values), np.abs(values), 0.0)
        terms = np.where(np.isfinite(values), magnitude, 0.0)
        allowed = relative * terms + output_bound * sizes + tiny + expected.floor
        allowed = allowed + (1.001 if dtype.kind in "iub" and not expected.is_exact else 0.0)
        open_places = np.broadcast_to(expected.open, values.shape) | is_nan
        open_places = open_places | (np.isfinite(values) & (magnitude > computed_limit / 16))
        are_finite = all(np.isfinite(wide(host)).all() for host in hosts)
        if are_finite and "float64" in dtypes:  # the oracle itself overflows
            open_places = open_places | ~np.isfinite(values)
        # A kernel that transforms, or multiplies padding too, spreads what overflows on the way.  The
        # largest float32 is infinite in TF32, and its product with padding is NaN.
        overflows = not are_finite or (magnitude > computed_limit / 16).any()
        overflows |= bool(is_narrow) and any((np.abs(wide(host)) > 3.4e38).any() for host in hosts)
        if expected.spreads and overflows:
            open_places = open_places | np.isfinite(values)
        beyond = np.abs(values) + allowed >= limit * (1 - output_bound)
        clipped = np.clip(values, -limit if dtype.kind != "u" else 0, limit)
        right = np.abs(got - values) <= allowed
        # What is too large becomes infinite, or the largest value, or, of FP8 without infinities,
        # NaN.
        same_sign = np.signbit(got) == np.signbit(values)
        saturated = same_sign & (np.isinf(got) | (np.abs(got - clipped) <= allowed))
        right |= np.isfinite(values) & beyond & (saturated | (np.isnan(got) & (limit < 500)))
        if dtype.kind in "iub":
            right |= beyond | ~np.isfinite(values)
        elif expected.spreads:  # of a sum in parts, a part may be too large with either sign
            right |= (beyond | ~np.isfinite(values)) & ~np.isfinite(got)
        else:
            right |= np.isnan(values) & np.isnan(got)
            right |= np.isinf(values) & (saturated | (np.isnan(got) & (limit < 500)))
    bad = ~(right | open_places)
    if not bad.any():
        return
    error = np.where(bad, np.nan_to_num(np.abs(got - values) / allowed, nan=np.inf), -1.0)
    worst = tuple(int(place) for place in np.unravel_index(error.argmax(), error.shape))
    kind = "NaN" if np.isnan(got[worst]) else "inf" if np.isinf(got[worst]) else "number"
    needed = values[worst]
    instead = "NaN" if np.isnan(needed) else "inf" if np.isinf(needed) else "number"
    raise WrongError(
        f"{name}: {kind} instead of {instead}: {int(bad.sum())} of {bad.size} values, at {worst} "
        f"{got[worst]:.6g} instead of {needed:.6g}, allowed {allowed[worst]:.2g}"
    )
