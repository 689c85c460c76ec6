"""Errors relative to what is expected, and what no rounding explains."""

import numpy as np
import pytest

from cudnnlite.enums import DataType, MathType
from cudnnlite.workbench.tuning.accuracy import (
    Errors,
    relative_errors,
    remark_on,
    why_inexact,
    why_wrong,
)

rng = np.random.default_rng(0)
D, M = DataType, MathType


def test_of_what_is_right_there_is_none():
    values = [rng.standard_normal((3, 4)), rng.standard_normal(5)]
    assert relative_errors(values, values) == Errors(0.0, 0.0)


def test_both_norms_over_all_arrays_together():
    expected = [np.array([3.0, 0.0]), np.array([[0.0], [4.0]])]  # norm 5, largest 4
    results = [np.array([3.0, 0.3]), np.array([[-0.4], [4.0]])]
    errors = relative_errors(results, expected)
    assert errors.l2 == pytest.approx(0.5 / 5)
    assert errors.largest == pytest.approx(0.4 / 4)


def test_as_numpy_says():
    expected = rng.standard_normal((7, 11))
    result = expected + 1e-3 * rng.standard_normal(expected.shape)
    l2, largest = relative_errors([result], [expected])
    assert l2 == pytest.approx(np.linalg.norm(result - expected) / np.linalg.norm(expected))
    assert largest == pytest.approx(np.abs(result - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_they_are_relative(scale):
    expected = rng.standard_normal(50)
    result = expected * (1 + 1e-4 * rng.standard_normal(50))
    assert relative_errors([result * scale], [expected * scale]) == pytest.approx(
        relative_errors([result], [expected])
    )


def test_where_all_is_zero_they_are_plain():
    assert relative_errors([np.zeros(4)], [np.zeros(4)]) == Errors(0.0, 0.0)
    errors = relative_errors([np.array([0.0, 3e-3, -4e-3])], [np.zeros(3)])
    assert errors == pytest.approx((5e-3, 4e-3))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 9])
def test_one_value_that_is_not_finite(value, place):
    expected = rng.standard_normal(10)
    result = expected.copy()
    result[place] = value
    assert relative_errors([result], [expected]) == Errors(np.inf, np.inf)


def test_narrow_types_are_widened_first():
    """60000 squared is beyond float16, and so is a sum of them."""
    expected = np.full(100, 60000.0)
    assert relative_errors([expected.astype(np.float16)], [expected]) == Errors(0.0, 0.0)
    result = expected.astype(np.float16)
    result[0] = -60000
    assert relative_errors([result], [expected]).l2 == pytest.approx(0.2)


def test_arrays_of_other_sizes_are_no_result():
    with pytest.raises(ValueError, match="broadcast"):
        relative_errors([np.zeros(3)], [np.zeros(4)])


# What an H200 computes (relative L2 errors that were seen), and what some wrong result has.
RIGHT = [
    (D.DOUBLE, M.DEFAULT, 1.4e-15),
    (D.DOUBLE, M.TENSOR_OP, 1e-12),
    (D.FLOAT, M.FMA, 3e-3),  # Winograd of a 5x5 filter
    (D.FLOAT, M.DEFAULT, 8.8e-4),
    (D.FLOAT, M.TENSOR_OP_ALLOW_CONVERSION, 1e-3),
    (D.HALF, M.FMA, 1e-3),
    (D.HALF, M.TENSOR_OP, 2e-2),  # accumulated in float16
    (D.BFLOAT16, M.FMA, 5e-3),
    (D.BFLOAT16, M.DEFAULT, 5e-2),
]


@pytest.mark.parametrize(("dtype", "math_type", "error"), RIGHT, ids=str)
def test_what_rounding_explains_can_be_used(dtype, math_type, error):
    assert why_wrong(error, dtype, math_type) == ""
    assert why_wrong(0.0, dtype, math_type) == ""


@pytest.mark.parametrize("error", [0.2, 1.4, float("inf"), float("nan")])
@pytest.mark.parametrize(("dtype", "math_type"), [(d, m) for d, m, _ in RIGHT], ids=str)
def test_what_rounding_does_not_explain(dtype, math_type, error):
    """1.4 is what independent numbers of the same size have; NaN is not less than any bound."""
    assert why_wrong(error, dtype, math_type) == f"wrong: relative error {error:.1e}"


@pytest.mark.parametrize(
    ("dtype", "math_type", "error"),
    [(D.DOUBLE, M.DEFAULT, 1e-7), (D.DOUBLE, M.TENSOR_OP, 1e-4), (D.FLOAT, M.FMA, 0.03)],
)
def test_a_narrower_computation_is_wrong(dtype, math_type, error):
    """The errors are those of float64 in float32 or TF32, and of true float32 in half precision."""
    assert why_wrong(error, dtype, math_type)


@pytest.mark.parametrize(
    ("error", "bound", "reason"),
    [
        (0.5, None, ""),
        (1e-4, 1e-4, ""),
        (1.1e-4, 1e-4, "its error is 1.1e-04, the bound is 1.0e-04"),
        (0.0, 0.0, ""),
        (1e-300, 0.0, "its error is 1.0e-300, the bound is 0.0e+00"),
        (float("inf"), 1.0, "its error is inf, the bound is 1.0e+00"),
        (float("nan"), 1.0, "its error is nan, the bound is 1.0e+00"),
    ],
)
def test_what_the_user_allows(error, bound, reason):
    assert why_inexact(error, bound) == reason


@pytest.mark.parametrize(
    ("dtype", "math_type", "error", "has_remark"),
    [
        (D.FLOAT, M.FMA, 1e-6, False),
        (D.FLOAT, M.FMA, 8.3e-4, True),  # Winograd of a 5x5 filter
        (D.FLOAT, M.DEFAULT, 8.3e-4, False),
        (D.HALF, M.FMA, 8.3e-4, False),
        (D.DOUBLE, M.FMA, 8.3e-4, False),
    ],
)
def test_true_float32_that_is_not_more_exact_than_tf32(dtype, math_type, error, has_remark):
    assert remark_on(error, dtype, math_type) == ("no more exact than TF32" if has_remark else "")
