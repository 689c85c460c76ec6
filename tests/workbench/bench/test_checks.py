"""Errors in units of the last place, and what is called wrong."""

import ml_dtypes
import numpy as np
import pytest

from cudnnlite.enums import DataType, MathType
from cudnnlite.workbench.bench.checks import accuracy_of, differing_runs, largest_ulp_error

TYPES = {
    DataType.HALF: np.float16,
    DataType.FLOAT: np.float32,
    DataType.DOUBLE: np.float64,
    DataType.BFLOAT16: ml_dtypes.bfloat16,
}


@pytest.mark.parametrize(("dtype", "kind"), TYPES.items())
def test_a_neighbour_is_one_unit_away(dtype, kind):
    values = np.random.default_rng(5).standard_normal(100).astype(kind)
    bits = values.view(f"i{values.itemsize}")
    for distance in (0, 1, 3):
        away = (bits + distance).view(kind)  # a larger magnitude of the same sign
        same_binade = np.floor(np.log2(np.abs(away.astype(np.float64)))) == np.floor(
            np.log2(np.abs(values.astype(np.float64)))
        )
        error = largest_ulp_error(away[same_binade], values[same_binade], dtype)
        assert error == distance


@pytest.mark.parametrize(("dtype", "kind"), TYPES.items())
def test_rounding_is_half_a_unit(dtype, kind):
    exact = np.random.default_rng(6).standard_normal(1000)
    exact = np.concatenate([exact, exact * 2.0**-20])  # float16 has few bits left there
    if kind is np.float64:
        assert largest_ulp_error(exact, exact, dtype) == 0
        return
    error = largest_ulp_error(exact.astype(kind), exact, dtype)
    assert 0.4 < error <= 0.5


def test_zero_has_the_unit_of_the_smallest_normal_value():
    smallest = float(np.finfo(np.float16).smallest_subnormal)
    assert largest_ulp_error(np.array([2 * smallest]), np.zeros(1), DataType.HALF) == 2


def test_small_values_may_have_the_unit_of_a_larger_one():
    actual, expected = np.array([2.0**-20 + 2.0**-10]), np.array([2.0**-20])
    assert largest_ulp_error(actual, expected, DataType.HALF, least=1.0) == 1
    assert largest_ulp_error(actual, expected, DataType.HALF) == 2.0**-10 / 2.0**-24


def test_what_is_not_finite_is_infinitely_far():
    for value in (np.nan, np.inf):
        assert largest_ulp_error(np.array([value]), np.ones(1), DataType.FLOAT) == np.inf


def checked(change, dtype=DataType.FLOAT, math_type=MathType.FMA):
    expected = np.random.default_rng(7).standard_normal((3, 5000))
    actual = expected.astype(np.float32)
    change(actual)
    return accuracy_of([actual], [expected], dtype, math_type)


def test_rounding_is_not_wrong():
    accuracy = checked(lambda actual: None)
    assert accuracy.finding == ""
    assert 0 < accuracy.l2 < 1e-7
    assert 0.4 < accuracy.ulp <= 1


@pytest.mark.parametrize("math_type", [MathType.FMA, MathType.TENSOR_OP])
@pytest.mark.parametrize("place", [(0, 0), (1, 77), (2, 4999)])
def test_one_wrong_number_among_thousands_is_found(place, math_type):
    def change(actual):
        actual[place] += 1

    # The L2 error alone does not show it: it would be that of reduced precision.
    assert checked(change, math_type=math_type).finding == "wrong: 1 compared value far off"


def test_zeros_are_called_so():
    def change(actual):
        actual[:] = 0

    assert checked(change).finding == "zeros where the reference is not"
    zeros = np.zeros((2, 3))
    assert accuracy_of([zeros], [zeros], DataType.FLOAT, MathType.FMA).finding == ""


def test_a_value_that_was_not_written_is_found():
    def change(actual):
        actual[2, 3] = np.nan

    assert "1 compared values are not finite, or were not written" in checked(change).finding


def test_integers_have_no_units():
    values = np.arange(5, dtype=np.int8)
    assert accuracy_of([values], [values], DataType.INT8, MathType.DEFAULT).ulp is None


def test_runs_that_differ_are_counted():
    assert differing_runs([b"ab", b"ab", b"ab"]) == ""
    assert differing_runs([b"ab"]) == ""
    assert differing_runs([b"ab", b"ac", b"ab", b"xx"]) == (
        "2 of 3 repetitions have other bits than the first run"
    )
