"""How far a convolution may be from float64 sums: the one table that every test of numbers looks into.

The error is the relative L2 norm of the difference to sums in float64 over inputs that were first rounded to the storage
type, so it holds the arithmetic and the rounding of the output, and nothing else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cudnnlite import ConvolutionFwdAlgo, MathType

ALL_MATH = ("DEFAULT", "FMA", "TENSOR_OP", "TENSOR_OP_ALLOW_CONVERSION")
TF32_MATH = ("DEFAULT", "TENSOR_OP", "TENSOR_OP_ALLOW_CONVERSION")
ALL_FAMILIES = ("direct", "fft", "winograd")
ANY = 1 << 20
_STRAY = 50  # a single value may be off by so many times the bound, measured in units of the output's RMS


class Row(NamedTuple):
    """What may be expected of some algorithms.

    Attributes
    ----------
    dtypes : tuple of str
        Of x and w.
    math_types : tuple of str
    families : tuple of str
        "direct" (every GEMM), "fft", "winograd".
    largest_tap : int
        The longest edge of the filter.
    longest_sum : int
        Channels of a group times taps: what one output value is the sum of.
    bound : float
        0: every bit.
    """

    dtypes: tuple[str, ...]
    math_types: tuple[str, ...]
    families: tuple[str, ...]
    largest_tap: int
    longest_sum: int
    bound: float


# The first row that fits counts.  In brackets: the worst of 676 combinations on an H200 with cuDNN 9.19.
TABLE = (
    Row(("int8", "uint8"), ALL_MATH, ("direct",), ANY, 1 << 16, 0.0),  # int32 sums are exact
    Row(("float64",), ALL_MATH, ALL_FAMILIES, ANY, 256, 1e-14),
    Row(("float64",), ALL_MATH, ALL_FAMILIES, ANY, ANY, 1e-12),  # [1.4e-15]
    Row(("float32",), ("FMA",), ("direct",), ANY, 256, 2e-6),
    Row(("float32",), ("FMA",), ("direct",), ANY, ANY, 1e-5),  # [6.9e-7]
    Row(("float32",), ("FMA",), ("fft",), ANY, ANY, 1e-4),  # [4.2e-7]
    Row(("float32",), ("FMA",), ("winograd",), 3, ANY, 1e-4),  # [2e-6]
    # 'True float32' too: what Winograd loses, it loses in its transforms. [8.3e-4 here, 1.3e-3 in another measurement]
    Row(("float32",), ("FMA",), ("winograd",), 5, ANY, 3e-3),
    Row(("float32",), TF32_MATH, ("direct", "fft"), ANY, ANY, 1e-3),  # [5.7e-4]
    Row(("float32",), TF32_MATH, ("winograd",), 3, ANY, 1e-3),
    Row(("float32",), TF32_MATH, ("winograd",), 5, ANY, 3e-3),  # [8.8e-4]
    Row(("float16",), ALL_MATH, ("direct", "fft"), ANY, ANY, 1e-3),  # [2.2e-4: the output's rounding]
    Row(("float16",), ALL_MATH, ("winograd",), 3, ANY, 1e-3),
    Row(("float16",), ALL_MATH, ("winograd",), 5, ANY, 3e-3),  # [8.5e-4]
    Row(("bfloat16",), ALL_MATH, ALL_FAMILIES, ANY, ANY, 5e-3),  # [1.9e-3: the output's rounding]
)
SCALED_INTEGER = 1e-6  # int8 to float32 with an alpha or beta that float32 has to round


def family(algorithm: Any) -> str:
    """Return the family of an algorithm."""
    name = ConvolutionFwdAlgo(algorithm).name
    return next((kind for kind in ("fft", "winograd") if kind.upper() in name), "direct")


def bound(dtype: str, math_type: Any, algorithm: Any, w_shape: tuple[int, ...]) -> float:
    """Look up the bound; a KeyError says that the table has no row for the combination."""
    math, kind = MathType(math_type).name, family(algorithm)
    largest_tap, longest_sum = max(w_shape[2:]), int(np.prod(w_shape[1:]))
    for row in TABLE:
        if (
            dtype in row.dtypes
            and math in row.math_types
            and kind in row.families
            and largest_tap <= row.largest_tap
            and longest_sum <= row.longest_sum
        ):
            return row.bound
    raise KeyError((dtype, math, kind, largest_tap, longest_sum))


def assert_close(got: Any, expected: Any, bound: float, magnitude: Any = None) -> None:
    """Compare every element.

    Parameters
    ----------
    got : ndarray
        Any dtype.
    expected : ndarray of float64
    bound : float
        The largest relative L2 error; 0 for equality.
    magnitude : ndarray, optional
        What `expected` would be about if its terms did not cancel (the root of the sum of their squares).  Where a handful of
        outputs is all there is, they may cancel by chance, and an error relative to them would mean nothing.
    """
    assert got.shape == expected.shape
    wide = got.astype(np.float64)
    assert np.isfinite(wide).all(), f"{np.count_nonzero(~np.isfinite(wide))} of {wide.size} values are not finite"
    if bound == 0:
        np.testing.assert_array_equal(wide, expected)
        return
    norm = max(np.linalg.norm(expected), 0.0 if magnitude is None else np.linalg.norm(magnitude))
    difference = np.abs(wide - expected)
    error = np.linalg.norm(difference)
    assert error <= bound * norm, f"relative L2 error {error / norm:.2e}, allowed {bound:.0e}"
    worst = np.unravel_index(difference.argmax(), difference.shape)
    rms = norm / np.sqrt(expected.size)
    assert difference[worst] <= _STRAY * bound * rms, f"at {worst}: {wide[worst]} instead of {expected[worst]}"
