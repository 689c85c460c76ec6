"""The peaks of GPUs beside what NVIDIA states, and the roofline by hand."""

import pytest

from cudnnlite.devices.device import DeviceFigures
from cudnnlite.devices.peaks import CARDS, parse_card, peaks_from
from cudnnlite.enums import DataType, MathType
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.roofline import FLOAT32, HALF, INT8, TENSOR_FLOAT64, TF32, Peaks, roofline
from cudnnlite.problems.work import Work

# Multiprocessors, Hz, Hz of the memory and bits of the bus, as published lists of the cards have
# them.  tests/device/test_bench.py reads those of the GPU that is there.
PROPERTIES = {
    "V100": DeviceFigures("Tesla V100-SXM2-16GB", "7.0", 80, 1530e6, 877e6, 4096),
    "A100": DeviceFigures("NVIDIA A100-SXM4-80GB", "8.0", 108, 1410e6, 1593e6, 5120),
    "H100": DeviceFigures("NVIDIA H100 80GB HBM3", "9.0", 132, 1980e6, 2619e6, 5120),
    "H200": DeviceFigures("NVIDIA H200", "9.0", 132, 1980e6, 3201e6, 6144),
    "B200": DeviceFigures("NVIDIA B200", "10.0", 148, 1965e6, 3996e6, 8192),
    "RTX 4090": DeviceFigures("NVIDIA GeForce RTX 4090", "8.9", 128, 2520e6, 10501e6, 384),
}


@pytest.mark.parametrize("card", CARDS)
def test_peaks_of_properties_are_those_that_nvidia_states(card):
    computed, stated = peaks_from(PROPERTIES[card]), CARDS[card]
    assert set(stated.flops) <= set(computed.flops)
    for unit, flops in stated.flops.items():
        assert computed.flops[unit] == pytest.approx(flops, rel=0.02), unit
    # NVIDIA rounds 4.92 TB/s of an H200 down to 4.8, and 8.18 of a B200 to 8.
    assert computed.bandwidth == pytest.approx(stated.bandwidth, rel=0.03)


def test_an_unknown_architecture_has_no_peaks():
    assert peaks_from(PROPERTIES["H200"]._replace(compute_capability="99.0")) is None


@pytest.mark.parametrize(
    ("dtype", "math_type", "unit"),
    [
        (DataType.FLOAT, MathType.FMA, FLOAT32),
        (DataType.FLOAT, MathType.DEFAULT, TF32),
        (DataType.FLOAT, MathType.TENSOR_OP, TF32),
        (DataType.HALF, MathType.DEFAULT, HALF),
        (DataType.BFLOAT16, MathType.TENSOR_OP, HALF),
        (DataType.HALF, MathType.FMA, FLOAT32),
        (DataType.DOUBLE, MathType.DEFAULT, TENSOR_FLOAT64),
        (DataType.INT8, MathType.DEFAULT, INT8),
    ],
)
def test_the_unit_follows_from_data_and_arithmetic(dtype, math_type, unit):
    assert CARDS["H200"].unit_of(dtype, math_type) == unit


def test_a_card_without_tensor_cores_for_a_type_multiplies_in_float32():
    v100 = CARDS["V100"]
    assert v100.unit_of(DataType.FLOAT, MathType.DEFAULT) == FLOAT32
    assert v100.unit_of(DataType.INT8, MathType.DEFAULT) is None


def test_the_roofline_by_hand():
    card = Peaks("a card", "made up", {HALF: 100e12}, 2e12)

    def least(flops, nbytes):
        return roofline(card, Work(flops, nbytes, DataType.HALF), MathType.DEFAULT)

    by_arithmetic = least(300_000_000, 2_000_000)
    assert by_arithmetic == (pytest.approx(3e-6), "arithmetic", HALF)
    assert by_arithmetic.share(6e-6) == pytest.approx(0.5)
    by_memory = least(100_000_000, 8_000_000)
    assert by_memory == (pytest.approx(4e-6), "memory", HALF)
    assert by_memory.share(5e-6) == pytest.approx(0.8)
    assert roofline(card, Work(1, 1, DataType.FLOAT), MathType.FMA) is None


def test_cards_have_short_and_long_names():
    assert parse_card("h200") is parse_card("NVIDIA H200") is CARDS["H200"]
    with pytest.raises(ArgumentError, match="card='H2000'; allowed: V100, A100"):
        parse_card("H2000")
    assert "989.5 T 16 bits on tensor cores" in str(CARDS["H200"])
