"""The peaks of GPUs: from the properties of a device, and as NVIDIA states them of some cards."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from cudnnlite.devices.device import Device, DeviceFigures
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.roofline import FLOAT32, FLOAT64, HALF, INT8, TENSOR_FLOAT64, TF32, Peaks


class _ArithmeticRates(NamedTuple):
    """Operations a clock of one multiprocessor, by the unit.

    `tensor_clock` is the clock at which NVIDIA states the tensor cores' peaks, as a share of the
    highest clock: from Hopper on it is lower.
    """

    flops: Mapping[str, int]
    tensor_clock: float = 1.0


# Operations a clock and multiprocessor by compute capability: the white papers of the architectures
# and the table "Throughput of Native Arithmetic Instructions" of the CUDA C++ Programming Guide.
# The share of Hopper is 1830 of 1980 MHz (H100 SXM: 989.4 T at 132 multiprocessors), that of
# Blackwell follows from 2250 T of a B200 (148 multiprocessors, 1965 MHz).
_ARCHITECTURES = {
    "7.0": _ArithmeticRates({FLOAT32: 128, FLOAT64: 64, HALF: 1024}),
    "7.5": _ArithmeticRates({FLOAT32: 128, FLOAT64: 4, HALF: 1024, INT8: 2048}),
    "8.0": _ArithmeticRates(
        {FLOAT32: 128, FLOAT64: 64, TENSOR_FLOAT64: 128, TF32: 1024, HALF: 2048, INT8: 4096}
    ),
    "8.6": _ArithmeticRates({FLOAT32: 256, FLOAT64: 4, TF32: 512, HALF: 1024, INT8: 2048}),
    "8.9": _ArithmeticRates({FLOAT32: 256, FLOAT64: 4, TF32: 512, HALF: 1024, INT8: 2048}),
    "9.0": _ArithmeticRates(
        {FLOAT32: 256, FLOAT64: 128, TENSOR_FLOAT64: 256, TF32: 2048, HALF: 4096, INT8: 8192},
        tensor_clock=1830 / 1980,
    ),
    "10.0": _ArithmeticRates(
        {FLOAT32: 256, FLOAT64: 128, TENSOR_FLOAT64: 128, TF32: 4096, HALF: 8192, INT8: 16384},
        tensor_clock=0.9443,
    ),
    "12.0": _ArithmeticRates({FLOAT32: 256, FLOAT64: 4, TF32: 512, HALF: 1024, INT8: 2048}),
}
_TENSOR_UNITS = (TF32, HALF, INT8)
# GeForce cards have half of the tensor cores' rate where sums are in float32, as cuDNN's are.
_HALVED_ON_GEFORCE = (TF32, HALF)
_WITH_HALVED_TENSOR_CORES = ("8.6", "8.9", "12.0")


def peaks_of(device: Device) -> Peaks | None:
    """Return the peaks of a device; None of one that is emulated, or if they are not known."""
    figures = device.figures()
    return None if figures is None else peaks_from(figures)


def peaks_from(figures: DeviceFigures) -> Peaks | None:
    """Return the peaks that follow from a device's figures.

    None if the rates of its architecture are not known here.
    """
    architecture = _ARCHITECTURES.get(figures.compute_capability)
    if architecture is None:
        return None
    is_halved = (
        "GeForce" in figures.name and figures.compute_capability in _WITH_HALVED_TENSOR_CORES
    )
    clocks = figures.multiprocessors * figures.clock_hz
    flops = {}
    for unit, operations in architecture.flops.items():
        peak = clocks * operations
        if unit in _TENSOR_UNITS:
            peak *= architecture.tensor_clock
        if is_halved and unit in _HALVED_ON_GEFORCE:
            peak /= 2
        flops[unit] = peak
    return Peaks(figures.name, "from the device's properties", flops, figures.bandwidth)


def _stated(card: str, source: str, bandwidth: float, **teraflops: float) -> Peaks:
    units = {
        "float32": FLOAT32,
        "float64": FLOAT64,
        "tensor_float64": TENSOR_FLOAT64,
        "tf32": TF32,
        "half": HALF,
        "int8": INT8,
    }
    flops = {units[name]: 1e12 * value for name, value in teraflops.items()}
    return Peaks(card, f"as NVIDIA states: {source}", MappingProxyType(flops), 1e12 * bandwidth)


# Of H100 and H200, which have the same chip and memory of different kinds.
_GH100 = {
    "float32": 67,
    "float64": 34,
    "tensor_float64": 67,
    "tf32": 494.5,
    "half": 989.5,
    "int8": 1979,
}
# Without sparsity; where a data sheet states a figure with sparsity, half of it.
CARDS: Mapping[str, Peaks] = MappingProxyType(
    {
        "V100": _stated(
            "Tesla V100-SXM2", "V100 data sheet", 0.9, float32=15.7, float64=7.8, half=125
        ),
        "A100": _stated(
            "NVIDIA A100-SXM4-80GB",
            "A100 data sheet",
            2.039,
            float32=19.5,
            float64=9.7,
            tensor_float64=19.5,
            tf32=156,
            half=312,
            int8=624,
        ),
        "H100": _stated(
            "NVIDIA H100 80GB HBM3",
            "H100 data sheet, SXM",
            3.35,
            **_GH100,
        ),
        "H200": _stated(
            "NVIDIA H200",
            "H200 data sheet, SXM",
            4.8,
            **_GH100,
        ),
        "B200": _stated(
            "NVIDIA B200",
            "HGX B200 data sheet, an eighth",
            8.0,
            float32=75,
            float64=37,
            tensor_float64=37,
            tf32=1125,
            half=2250,
            int8=4500,
        ),
        "RTX 4090": _stated(
            "NVIDIA GeForce RTX 4090",
            "white paper of the Ada architecture",
            1.008,
            float32=82.6,
            tf32=82.6,
            half=165.2,
            int8=660.6,
        ),
    }
)


def parse_card(name: str, argument: str = "card") -> Peaks:
    """Return the stated peaks of a card; ArgumentError if it is not in the table."""
    for known_name, peaks in CARDS.items():
        if name.lower() in (known_name.lower(), peaks.card.lower()):
            return peaks
    raise ArgumentError(f"{argument}={name!r}; allowed: {', '.join(CARDS)}")
