"""Number formats of the emulated device against fractions, NumPy and ml_dtypes."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudnnlite.emulated.precision import round_tf32, scale_add, to_output

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def exactly_rounded(value: float, bits: int, smallest: int, *, ties_away: bool) -> float:
    """Round to `bits` significant bits, spacing at least ``2**smallest``, by fractions."""
    if value == 0 or not math.isfinite(value):
        return value
    unit = Fraction(2) ** max(math.frexp(value)[1] - bits, smallest)
    quotient = abs(Fraction(value)) / unit
    units = (
        math.floor(quotient + Fraction(1, 2)) if ties_away else round(quotient)
    )  # round: half to even
    return math.copysign(float(units * unit), value)


def bits_of(a: np.ndarray) -> np.ndarray:
    return a.view(f"u{a.dtype.itemsize}")


@settings(max_examples=300)
@given(value=float32, tie=st.booleans())
def test_tf32_has_ten_bits_and_ties_away(value: float, tie: bool) -> None:
    if tie:  # half of a unit above what TF32 has
        pattern = bits_of(np.array([value], np.float32)) & np.uint32(0xFFFFE000) | np.uint32(0x1000)
        value = float(pattern.view(np.float32)[0])
    expected = exactly_rounded(value, 11, -126 - 10, ties_away=True)
    if abs(expected) >= 2.0**128:
        expected = math.copysign(math.inf, value)
    result = round_tf32(np.array([value], np.float32))
    np.testing.assert_array_equal(bits_of(result), bits_of(np.array([expected], np.float32)))


def test_tf32_by_hand() -> None:
    unit = 2.0**-10
    values = [
        1 + unit / 2,
        1 + unit / 2 - 2**-23,
        1 + 1.5 * unit,
        -1 - unit / 2,
        2 - 2**-23,
        0.0,
        -0.0,
        2.0**-149,
    ]
    expected = [1 + unit, 1, 1 + 2 * unit, -1 - unit, 2, 0.0, -0.0, 0.0]
    result = round_tf32(np.array(values, np.float32))
    np.testing.assert_array_equal(bits_of(result), bits_of(np.array(expected, np.float32)))


def test_tf32_keeps_what_is_not_finite() -> None:
    patterns = np.array(
        [0x7F800000, 0xFF800000, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32
    )
    a = patterns.view(np.float32)
    np.testing.assert_array_equal(bits_of(round_tf32(a)), patterns)
    np.testing.assert_array_equal(bits_of(a), patterns)
    largest = np.finfo(np.float32).max
    np.testing.assert_array_equal(
        round_tf32(np.array([largest, -largest], np.float32)), [np.inf, -np.inf]
    )


def test_tf32_takes_views() -> None:
    a = np.random.default_rng(0).standard_normal((4, 6, 5), dtype=np.float32)
    view = a.transpose(2, 0, 1)[::2, :, 1::3]
    np.testing.assert_array_equal(round_tf32(view), round_tf32(np.ascontiguousarray(view)))


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
@pytest.mark.parametrize("source", [np.float32, np.float64])
@settings(max_examples=150)
@given(data=st.data())
def test_floats_are_rounded_once_to_even(
    dtype: np.dtype, source: type, data: st.DataObject
) -> None:
    info = ml_dtypes.finfo(dtype)
    value = data.draw(
        st.floats(-(2.0**20), 2.0**20) | st.floats(width=32, allow_nan=False, allow_infinity=False)
    )
    near = float(np.array(np.clip(value, float(info.min), float(info.max))).astype(dtype))
    step = math.ldexp(1, max(math.frexp(near)[1] - info.nmant - 1, int(info.minexp) - info.nmant))
    value = data.draw(
        st.sampled_from([value, near + step / 2, near - step / 2, near + step / 2 * (1 + 2.0**-28)])
    )
    with np.errstate(over="ignore"):
        acc = np.array([value], source)
    exact = exactly_rounded(
        float(acc[0]), info.nmant + 1, int(info.minexp) - info.nmant, ties_away=False
    )
    if abs(exact) > float(info.max):
        exact = math.copysign(math.inf, exact)
    result = to_output(acc, dtype)
    assert result.dtype == dtype
    assert float(result[0]) == exact


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_float32_accumulators_convert_as_numpy_and_ml_dtypes_do(dtype: np.dtype) -> None:
    patterns = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    acc = patterns.view(np.float32)
    acc = acc[~np.isnan(acc)]
    with np.errstate(all="ignore"):
        expected = acc.astype(dtype)
    np.testing.assert_array_equal(bits_of(to_output(acc, dtype)), bits_of(expected))


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_overflow_and_nan_are_quiet(dtype: np.dtype, source: type) -> None:
    acc = np.array([3.4028235e38, -3.4028235e38, np.inf, -np.inf, np.nan, 1e-45], source)
    np.testing.assert_array_equal(
        to_output(acc, dtype).astype(np.float64), [np.inf, -np.inf, np.inf, -np.inf, np.nan, 0]
    )


def test_float64_to_float32_overflows_quietly() -> None:
    np.testing.assert_array_equal(
        to_output(np.array([1e300, -1e300, 1.5]), "float32"), [np.inf, -np.inf, 1.5]
    )


@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_integers_saturate_and_round_to_even(source: type) -> None:
    acc = np.array(
        [0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 1e30, -128.5, -129, np.inf, -np.inf, np.nan],
        source,
    )
    expected = [0, 2, 2, 0, -2, 126, 127, 127, -128, -128, 127, -128, 0]
    np.testing.assert_array_equal(to_output(acc, np.int8), np.array(expected, np.int8), strict=True)
    np.testing.assert_array_equal(
        to_output(np.array([-1, 0.5, 255.5, 300, np.nan], source), np.uint8),
        np.array([0, 0, 255, 255, 0], np.uint8),
    )
    np.testing.assert_array_equal(
        to_output(np.array([2.0**31, -(2.0**31), -1e10, 3.5], source), np.int32),
        [2**31 - 1, -(2**31), -(2**31), 4],
    )


def test_integer_accumulators() -> None:
    acc = np.array([2**31 - 1, -(2**31), 128, -129, 5], np.int32)
    np.testing.assert_array_equal(
        to_output(acc, np.int8), np.array([127, -128, 127, -128, 5], np.int8)
    )
    np.testing.assert_array_equal(to_output(acc, np.int32), acc)
    np.testing.assert_array_equal(
        to_output(acc, np.float32), acc.astype(np.float64).astype(np.float32)
    )
    above_tie = np.array([2**24 + 2**16 + 1], np.int32)  # float32 would drop the 1 and leave a tie
    assert float(to_output(above_tie, BFLOAT16)[0]) == 2**24 + 2**17


@pytest.mark.parametrize("dtype", ["float32", "float16", BFLOAT16, "int8"], ids=str)
def test_beta_zero_does_not_read(dtype: np.dtype | str) -> None:
    acc = np.array([1.5, -2.0], np.float32)
    poison = np.full(2, np.nan, np.float32)
    for old in (poison, None):
        np.testing.assert_array_equal(
            scale_add(acc, 2.0, 0.0, old, dtype).astype(np.float32), [3, -4]
        )
        np.testing.assert_array_equal(
            scale_add(acc, 2.0, -0.0, old, dtype).astype(np.float32), [3, -4]
        )


def test_scales_in_the_type_of_the_accumulator_and_converts_last() -> None:
    half = np.array([60000], np.float16)
    # in float16 the sum would overflow on the way
    result = scale_add(np.array([60000], np.float32), 1.0, -0.5, half, np.float16)
    np.testing.assert_array_equal(result, np.array([30000], np.float16), strict=True)
    # in float16 the old value would swallow the new one twice
    result = scale_add(
        np.array([0.75], np.float32), 1.0, 1.0, np.array([2048], np.float16), np.float16
    )
    assert float(result[0]) == 2048
    result = scale_add(
        np.array([1.25], np.float32), 1.0, 1.0, np.array([2048], np.float16), np.float16
    )
    assert float(result[0]) == 2050
    # float64 stays float64
    result = scale_add(np.array([1.0]), 0.1, 1 / 3, np.array([1.0]), np.float64)
    assert result[0] == 0.1 + 1 / 3
    # float32 it is for float32, alpha and beta included
    result = scale_add(np.array([1], np.float32), 0.1, 0.0, None, np.float32)
    assert result[0] == np.float32(0.1)


def test_integers_are_scaled_in_float32() -> None:
    acc = np.array([100, -100, 3, 2**24 + 1], np.int32)
    np.testing.assert_array_equal(
        scale_add(acc, 0.5, 2.0, np.array([40, -40, 1, 0], np.int8), np.int8),
        np.array([127, -128, 4, 127], np.int8),
    )  # 3.5 goes to 4
    np.testing.assert_array_equal(scale_add(acc, 1.0, 0.0, None, np.int32), acc)
    assert scale_add(acc, 2.0, 0.0, None, np.int32)[3] == 2**25


def test_neither_operand_is_changed_and_overflow_is_quiet() -> None:
    acc, old = np.array([3e38, np.inf], np.float32), np.array([3e38, -np.inf], np.float32)
    np.testing.assert_array_equal(scale_add(acc, 2.0, 1.0, old, np.float32), [np.inf, np.nan])
    np.testing.assert_array_equal(acc, np.array([3e38, np.inf], np.float32))
    np.testing.assert_array_equal(old, np.array([3e38, -np.inf], np.float32))
    np.testing.assert_array_equal(scale_add(acc, 1e300, 0.0, None, np.float32), [np.inf, np.inf])


@pytest.mark.parametrize("source", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_is_rounded_to_nearest_even_and_saturates(name: str, source: type) -> None:
    """Halfway between two neighbours the even one, a hair beside it the nearer one."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    codes = np.arange(0x80, dtype=np.uint8)
    codes = codes[np.isfinite(codes.view(dtype).astype(np.float64))]
    numbers = codes.view(dtype).astype(np.float64)
    halfway = (numbers[1:] + numbers[:-1]) / 2
    even = np.where(codes[1:] % 2 == 0, numbers[1:], numbers[:-1])
    hair = 1e-12 if source == np.float64 else 1e-6
    cases = {
        "the numbers": (numbers, numbers),
        "halfway": (halfway, even),
        "above": (halfway * (1 + hair), numbers[1:]),
        "below": (halfway * (1 - hair), numbers[:-1]),
        "too large": (numbers[-1] * np.array([1.001, 1e3, np.inf]), np.full(3, numbers[-1])),
    }
    for case, (values, expected) in cases.items():
        for sign in (1, -1):
            result = to_output((sign * values).astype(source), dtype).astype(np.float64)
            assert (result == sign * expected).all(), case
    assert np.isnan(to_output(np.array([np.nan], source), dtype).astype(np.float64)).all()
