"""Number formats of the emulated device: TF32 operands, and the rounding of accumulators."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from cudnnlite.dtypes import numpy_dtype
from cudnnlite.enums import DataType

Array = NDArray[Any]
# Types that ml_dtypes rounds by way of float32.
_NARROW = tuple(
    np.dtype(dtype)
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
)
_LARGEST_FLOAT8 = dict(zip(_NARROW[1:], (448.0, 57344.0), strict=True))


def wide_dtype(dtype: DataType) -> np.dtype[Any]:
    """Return the type that floats are computed in: float64 for float64, float32 otherwise."""
    return np.dtype(np.float64 if dtype == DataType.DOUBLE else np.float32)


def round_tf32(a: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return float32 values rounded to TF32: 10 instead of 23 explicit bits of mantissa.

    Ties go away from zero, as in the instruction ``cvt.rna.tf32.f32``.  On an H200 with cuDNN 9.19
    the implicit-GEMM kernels ``sm80_xmma_fprop_implicit_gemm_tf32f32`` do so (1 + 2**-11 becomes
    1 + 2**-10); its ``sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32`` and CUTLASS 1 x 1 kernels send
    ties to even.  Neither truncates.  Infinities, NaNs and subnormals stay as they are; a value
    whose rounding leaves the range, such as the largest finite float32, becomes infinite (as
    measured on the H200).
    """
    # Sign and magnitude are separate in the format, so adding half a unit to the bits moves away
    # from zero for both signs, and a carry out of the mantissa lands in the exponent.  A NaN could
    # carry into its sign, and is left alone.
    bits = a.view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(a), rounded, a)


def lowest_number(dtype: DataType) -> float:
    """Return the lowest finite number of a storage type."""
    limits: Any = ml_dtypes.finfo(numpy_dtype(dtype))  # type: ignore[no-untyped-call]
    return float(limits.min)


def to_output(acc: Array, dtype: DTypeLike) -> Array:
    """Convert accumulators (float32, float64, int32) to a storage dtype, without warnings.

    The result may share memory.  Floating point, ml_dtypes' too, is rounded to nearest, ties to
    even, once; overflow gives infinity where the format has one, but the largest number of float8,
    whose conversions saturate (``cvt.rn.satfinite``).  Integers are rounded to nearest, ties to
    even, then saturated; NaN gives 0 (``cvt.rni.sat``).
    """
    dtype = np.dtype(dtype)
    if dtype == acc.dtype:
        return acc
    with np.errstate(all="ignore"):
        if dtype.kind in "iu":
            return _to_integer(acc, dtype)
        if dtype in _NARROW and acc.dtype != np.float32:
            # ml_dtypes goes by way of float32, which would round twice.
            acc = _round_to_odd(acc.astype(np.float64))
        if dtype in _LARGEST_FLOAT8:
            largest = _LARGEST_FLOAT8[dtype]
            acc = np.clip(acc, -largest, largest)
        return acc.astype(dtype)


def scale_add(
    acc: Array, alpha: float, beta: float, y_old: Array | None, dtype: DTypeLike
) -> Array:
    """Return ``alpha * acc + beta * y_old`` in a dtype: the blend that ends most cuDNN operations.

    It is computed in float64 for float64 accumulators, else in float32 (cuDNN's type for alpha and
    beta), and converted last; see `to_output`.  An int32 accumulator with alpha 1 and beta 0 is
    converted as it is: float32 could not hold it.  With beta 0 `y_old` is not read: NaNs in fresh
    memory do not reach the result.
    """
    if alpha == 1 and beta == 0:
        return to_output(acc, dtype)
    scale: Any = np.float64 if acc.dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        blend = acc.astype(scale) * scale(alpha)
        if beta != 0 and y_old is not None:
            blend += y_old.astype(scale) * scale(beta)
    return to_output(blend, dtype)


def _to_integer(acc: Array, dtype: np.dtype[Any]) -> Array:
    limits = np.iinfo(dtype)
    if acc.dtype.kind in "iu":
        return np.clip(acc.astype(np.int64), limits.min, limits.max).astype(dtype)
    if dtype.itemsize > 2:
        # float32 holds the limits of 8 and 16 bits exactly; those of 32 bits need float64.
        acc = acc.astype(np.float64)
    rounded = np.rint(acc)
    rounded = np.clip(np.where(np.isnan(rounded), 0, rounded), limits.min, limits.max)
    return rounded.astype(dtype)


def _round_to_odd(a: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return float32 values, inexact ones with an odd mantissa.

    A second rounding does not change the result then.
    """
    nearest = a.astype(np.float32)
    bits = nearest.view(np.uint32)
    bits -= np.abs(nearest) > np.abs(a)  # towards zero
    bits |= (nearest != a) & ~np.isnan(a)
    return bits.view(np.float32)
