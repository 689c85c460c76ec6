"""How far results may be from float64 sums: the one table that every test of numbers uses.

The error is the relative L2 norm of the difference to sums in float64 over inputs that were first
rounded to the storage type, so it holds the arithmetic and the rounding of the output, and nothing
else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cudnnlite import MathType
from cudnnlite.enums import ConvolutionFwdAlgo
from cudnnlite.types import Engine

ALL_MATH = ("DEFAULT", "FMA", "TENSOR_OP", "TENSOR_OP_ALLOW_CONVERSION")
TF32_MATH = ("DEFAULT", "TENSOR_OP", "TENSOR_OP_ALLOW_CONVERSION")
ALL_FAMILIES = ("direct", "fft", "winograd")
ANY = 1 << 20
# A single value may be off by so many times the bound, in units of the output's RMS.
_STRAY = 50


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


# The first row that fits counts. In brackets: the worst of 676 combinations on an H200 with cuDNN
# 9.19.
TABLE = (
    Row(("int8", "uint8"), ALL_MATH, ("direct",), ANY, 1 << 16, 0.0),  # int32 sums are exact
    Row(("float64",), ALL_MATH, ALL_FAMILIES, ANY, 256, 1e-14),
    Row(("float64",), ALL_MATH, ALL_FAMILIES, ANY, ANY, 1e-12),  # [1.4e-15]
    Row(("float32",), ("FMA",), ("direct",), ANY, 256, 2e-6),
    Row(("float32",), ("FMA",), ("direct",), ANY, ANY, 1e-5),  # [6.9e-7]
    Row(("float32",), ("FMA",), ("fft",), ANY, ANY, 1e-4),  # [4.2e-7]
    Row(("float32",), ("FMA",), ("winograd",), 3, ANY, 1e-4),  # [2e-6]
    # For 'true float32' too, because Winograd loses in its transforms. [8.3e-4 here, 1.3e-3 in
    # another measurement]
    Row(("float32",), ("FMA",), ("winograd",), 5, ANY, 3e-3),
    Row(("float32",), TF32_MATH, ("direct", "fft"), ANY, ANY, 1e-3),  # [5.7e-4]
    Row(("float32",), TF32_MATH, ("winograd",), 3, ANY, 1e-3),
    Row(("float32",), TF32_MATH, ("winograd",), 5, ANY, 3e-3),  # [8.8e-4]
    Row(
        ("float16",), ALL_MATH, ("direct", "fft"), ANY, ANY, 1e-3
    ),  # [2.2e-4: the output's rounding]
    Row(("float16",), ALL_MATH, ("winograd",), 3, ANY, 1e-3),
    Row(("float16",), ALL_MATH, ("winograd",), 5, ANY, 3e-3),  # [8.5e-4]
    Row(("bfloat16",), ALL_MATH, ALL_FAMILIES, ANY, ANY, 5e-3),  # [1.9e-3: the output's rounding]
)
# With beta, engines 22 and 23 of an H200 also round before they add: 2^-8 twice, where one value is
# most of the output [5.8e-3].
TWICE_ROUNDED = {"bfloat16": 8e-3}
SCALED_INTEGER = 1e-6  # int8 to float32 with an alpha or beta that float32 has to round


def family(algorithm: Any) -> str:
    """Return the family of an algorithm."""
    if isinstance(algorithm, Engine):  # which family it is, no name tells
        return "direct"
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


def assert_close(result: Any, expected: Any, bound: float, magnitude: Any = None) -> None:
    """Compare every element.

    Parameters
    ----------
    result : ndarray
        Any dtype.
    expected : ndarray of float64
    bound : float
        The largest relative L2 error; 0 for equality.
    magnitude : ndarray, optional
        What `expected` would be about if its terms did not cancel (the root of the sum of their
        squares).  Where a handful of outputs is all there is, they may cancel by chance, and an
        error relative to them would mean nothing.
    """
    assert result.shape == expected.shape
    wide = result.astype(np.float64)
    assert np.isfinite(wide).all(), (
        f"{np.count_nonzero(~np.isfinite(wide))} of {wide.size} values are not finite"
    )
    if bound == 0:
        np.testing.assert_array_equal(wide, expected)
        return
    norm = max(np.linalg.norm(expected), 0.0 if magnitude is None else np.linalg.norm(magnitude))
    difference = np.abs(wide - expected)
    error = np.linalg.norm(difference)
    assert error <= bound * norm, f"relative L2 error {error / norm:.2e}, allowed {bound:.0e}"
    worst = np.unravel_index(difference.argmax(), difference.shape)
    rms = norm / np.sqrt(expected.size)
    assert difference[worst] <= _STRAY * bound * rms, (
        f"at {worst}: {wide[worst]} instead of {expected[worst]}"
    )


# Recurrent networks. The error is the relative L2 norm, as above, of y, hy or cy each, and of each
# gradient.


class RNNRow(NamedTuple):
    """What may be expected of some algorithms of recurrent networks.

    Attributes
    ----------
    dtypes, math_types : tuple of str
    algorithms : tuple of str
    cells : tuple of str
    longest_chain : int
        Steps times layers: how often a rounded value goes through a cell again.
    bound : float
        Of y, hy and cy.
    gradient_bound : float
        Of dx, dhx, dcx and the gradient of each matrix and bias.
    """

    dtypes: tuple[str, ...]
    math_types: tuple[str, ...]
    algorithms: tuple[str, ...]
    cells: tuple[str, ...]
    longest_chain: int
    bound: float
    gradient_bound: float


STANDARD = ("STANDARD",)
ANY_RNN = ("STANDARD", "PERSIST_STATIC", "PERSIST_STATIC_SMALL_H", "PERSIST_DYNAMIC")
SMOOTH = ("tanh", "lstm", "gru")
ANY_CELL = (*SMOOTH, "relu")

# The first row that fits counts.  In brackets: the worst forward error, of an H200 with cuDNN 9.19
# unless it says otherwise, and behind the semicolon the worst error of a gradient on the emulated
# device: on the H200 gradients were only compared with each other.  A bound is 3 to 5 times a
# forward error.  Of gradients it is 10 times what was seen, because the emulated device rounds less
# often than kernels do.  A relu that is 0 on one side and not on the other changes whole terms,
# hence its rows.
RNN_TABLE = (
    RNNRow(("float64",), ALL_MATH, ANY_RNN, ANY_CELL, 20, 1e-12, 1e-11),  # [emulated: 4e-15; 3e-15]
    RNNRow(("float64",), ALL_MATH, ANY_RNN, ANY_CELL, ANY, 1e-10, 1e-9),
    RNNRow(
        ("float32",), ("FMA",), STANDARD, ANY_CELL, 20, 1e-6, 1e-5
    ),  # [1e-7, emulated: 2e-7; 6e-7]
    RNNRow(("float32",), ("FMA",), STANDARD, ANY_CELL, ANY, 1e-5, 1e-4),
    RNNRow(
        ("float32",), ("FMA",), ANY_RNN, ANY_CELL, ANY, 2e-5, 2e-4
    ),  # [5e-6: a fast tanh; -, which emulation has not]
    RNNRow(
        ("float32",), TF32_MATH, ANY_RNN, SMOOTH, ANY, 2e-3, 1e-2
    ),  # [4e-4, through float16 3e-4; 1.2e-3]
    RNNRow(
        ("float32",), TF32_MATH, ANY_RNN, ("relu",), ANY, 2e-3, 2e-1
    ),  # [4e-4; two of the H200's algorithms: 5e-2]
    RNNRow(("float16",), ALL_MATH, ANY_RNN, SMOOTH, ANY, 2e-3, 1e-2),  # [4e-4; 8e-4]
    RNNRow(
        ("float16",), ALL_MATH, ANY_RNN, ("relu",), ANY, 2e-3, 2e-1
    ),  # [4e-4; 5e-3, and as TF32]
    RNNRow(("bfloat16",), ALL_MATH, ANY_RNN, SMOOTH, ANY, 1.5e-2, 8e-2),  # [a few 1e-3; 7e-3]
    RNNRow(("bfloat16",), ALL_MATH, ANY_RNN, ("relu",), ANY, 1.5e-2, 5e-1),  # [a few 1e-3; 5.4e-2]
)
# Central differences of ONNX's float64 over a step of 1e-6, relative to the gradient's norm.
RNN_SUM = 1e-7


def rnn_bound(
    dtype: str, math_type: Any, algorithm: str, cell: str, chain: int, *, gradient: bool = False
) -> float:
    """Look up the bound for a chain of steps times layers; a KeyError says that there is no row."""
    math = MathType(math_type).name
    for row in RNN_TABLE:
        if (
            dtype in row.dtypes
            and math in row.math_types
            and algorithm in row.algorithms
            and cell in row.cells
            and chain <= row.longest_chain
        ):
            return row.gradient_bound if gradient else row.bound
    raise KeyError((dtype, math, algorithm, cell, chain))


# Operations of few steps: the largest error, relative to the largest value of the operands and of
# the result. [an H200 with cuDNN 9.19, pooling and softmax: 6.1e-16, 2.6e-7, 7.4e-4, 5e-3]
OPERATION_BOUNDS = {"float64": 1e-13, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
# A convolution with FMA and small filters, by the same measure. The bound is that of the table
# above for the worst algorithm.
CONVOLUTION_BOUNDS = {"float64": 1e-12, "float32": 1e-4}


def assert_near(result: Any, expected: Any, bound: float, largest: float = 0.0) -> None:
    """Compare every element by the largest error.

    The error is relative to `largest` or the largest expected value; a bound of 0 is for equality.
    """
    assert result.shape == expected.shape
    error, size = np.abs(result.astype(np.float64) - expected), max(np.abs(expected).max(), largest)
    worst = np.unravel_index(error.argmax(), error.shape)
    assert error[worst] <= bound * size, (
        f"at {worst}: {result[worst]} instead of {expected[worst]}; {error[worst] / size:.1e}"
    )


# CTC losses and their gradients, by the largest error relative to the largest value. [an H200 with
# cuDNN 9.19: 2e-6]
CTC_BOUND = 1e-5
# Multi-head attention, by the relative L2 norm: the output, and each gradient. [an H200: 4e-16,
# 3e-7, 5e-4, 4e-3; TF32 4e-4]
ATTENTION_BOUNDS = {
    "float64": (1e-13, 1e-12),
    "float32": (2e-6, 2e-5),
    "tf32": (2e-3, 1e-2),
    "float16": (2e-3, 1e-2),
    "bfloat16": (1.5e-2, 8e-2),
}
# Operations that are graphs, by the relative L2 norm, by the data type of their operands: float32
# is multiplied in TF32, and attention rounds its probabilities to the operands' type. [an H100,
# float32: TANH_FWD 4.2e-6, which it approximates]
GRAPH_BOUNDS = {
    "attention": {"float16": 2e-3, "bfloat16": 1.5e-2, "float32": 2e-3},
    "stats": {"float16": 1e-3, "bfloat16": 4e-3, "float32": 1e-3},
    "attention gradients": {"float16": 1e-2, "bfloat16": 8e-2},
    "product": {"float16": 1e-3, "bfloat16": 5e-3, "float32": 1e-3},
    "pointwise": {"float16": 1e-3, "bfloat16": 5e-3, "float32": 1e-5},
    "normalisation": {"float16": 1e-3, "bfloat16": 5e-3, "float32": 5e-6},
    "normalisation gradients": {"float16": 3e-3, "bfloat16": 2e-2, "float32": 2e-5},
}

# Layer normalisation of float32 rows of 100 + 0.01 * noise, and of constant rows, relative to the
# largest value: the mean is off by a few units in the last place.  [an H200 with cuDNN 9.19: 0.005
# by engine 1; with 9.28, engines 3 to 6: NaN, or 0.84]
NARROW_ROWS = 0.03

# Graphs on the emulated device beside a GPU: the largest difference relative to the largest value.
RECORDED_GRAPH_BOUNDS = {"float32": 2e-3, "float16": 3e-3, "bfloat16": 2e-2}
# Of graphs on a GPU: an error relative to the largest value that no rounding makes.
WRONG_GRAPH = 0.1

# Random calls (tests/fuzz/random_calls.py) with values of every size, each value by itself: its error
# relative to the sum of the absolute values that it is the sum of, by the least precise data type
# of the call.  "product" is for what tensor cores multiply, float32 in TF32.
ELEMENT_BOUNDS = {
    "copy": {"float64": 0.0, "float32": 0.0, "float16": 0.0, "bfloat16": 0.0},
    # A copy into float64, whose factors are float32.
    "widened copy": {"float64": 0.0, "float32": 1e-6, "float16": 1e-6, "bfloat16": 1e-6},
    "layer": {"float64": 1e-12, "float32": 5e-5, "float16": 4e-3, "bfloat16": 3e-2},
    "product": {"float64": 1e-12, "float32": 3e-3, "float16": 4e-3, "bfloat16": 3e-2},
}
