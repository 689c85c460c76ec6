"""An array that would lose values is converted only where the caller says so."""

from __future__ import annotations

import numpy as np
import pytest

import cudnnlite as dnn

LOSSES = {
    "overflow": ([300], "int8", 44),
    "fraction": ([1.5], "int32", 1),
    "sign": (np.array([-1]), "uint8", 255),
    "imaginary": ([2 + 1j], "float32", 2),
    "mask": (np.ma.masked_array([2.0, 3.0], [0, 1]), "float64", 2),
    "too large": ([1e300], "float16", np.inf),
    "too large for bfloat16": (np.float32([3.4e38]), "bfloat16", np.inf),
    "too large for e5m2": ([1e6], "float8_e5m2", np.inf),
    "of the device": (None, "int8", 1),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_what_would_be_lost_is_asked_for(own_handle, loss):
    values, dtype, expected = LOSSES[loss]
    values = own_handle.array([1.5]) if values is None else values
    with pytest.raises(dnn.ArgumentError, match=r"would lose.*casting=\"unsafe\""):
        own_handle.array(values, dtype=dtype)
    assert own_handle.array(values, dtype=dtype, casting="unsafe").numpy()[0] == expected
    with pytest.raises(dnn.ArgumentError, match="casting='same_kind'; allowed: 'unsafe', None"):
        own_handle.array(values, dtype=dtype, casting="same_kind")


@pytest.mark.parametrize("value", [500.0, -500.0, 10**6, np.float16(500), np.inf, -np.inf])
def test_no_nan_of_float8_is_made_of_a_number(own_handle, value):
    calls = {
        "array": lambda casting: own_handle.array(
            [1.0, value], dtype="float8_e4m3fn", casting=casting
        ),
        "copy_from": lambda casting: own_handle.zeros((2,), "float8_e4m3fn").copy_from(
            [1.0, value], casting=casting
        ),
        "full": lambda casting: own_handle.full((2,), value, "float8_e4m3fn", casting=casting),
    }
    for call in calls.values():
        with pytest.raises(dnn.ArgumentError, match=r"would lose values.*too large.*casting"):
            call(None)
        call("unsafe")
    with pytest.raises(dnn.ArgumentError, match=r"would lose values.*too large"):
        own_handle.zeros((2,), "float8_e4m3fn").fill(value)


def test_the_largest_values_and_nan_of_float8_are_kept(own_handle):
    for dtype, values in (
        ("float8_e4m3fn", [448.0, -448.0, np.nan]),
        ("float8_e5m2", [57344.0, -np.inf, np.nan]),
    ):
        array = own_handle.array(values, dtype=dtype)
        np.testing.assert_array_equal(array.numpy().astype(np.float64), values)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_no_integer_is_made_of_what_is_no_number(own_handle, value):
    with pytest.raises(dnn.ArgumentError, match="would lose"):
        own_handle.array([value], dtype="int32")
    assert own_handle.array([value], dtype="float16").numpy().dtype == np.float16


@pytest.mark.parametrize("values", [["1"], np.array(["2020-01-01"], "M8[D]"), [b"x"]])
def test_what_is_no_number_is_no_array(own_handle, values):
    with pytest.raises(dnn.ArrayTypeError, match="no numbers"):
        own_handle.array(values, dtype="int64")


def test_what_loses_nothing_needs_no_word(own_handle):
    for values, dtype in (
        ([1.0, -2.0], "int8"),
        ([True], "float16"),
        (np.float64([1 / 3]), "float16"),
        ([3], "bfloat16"),
    ):
        assert own_handle.array(values, dtype=dtype).numpy() == pytest.approx(
            np.asarray(values, np.float64), rel=1e-2
        )
    assert own_handle.array(np.ma.masked_array([1.0, 2.0])).numpy().tolist() == [1, 2]
