"""The least time of a problem: by the peaks of a GPU, which is its roofline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cudnnlite.enums import DataType, MathType
from cudnnlite.problems.work import Work

# The units that multiply: those of CUDA cores by the data type, and those of tensor cores.
FLOAT32, FLOAT64, TENSOR_FLOAT64 = "float32", "float64", "float64 on tensor cores"
TF32, HALF, INT8 = "TF32", "16 bits on tensor cores", "int8 on tensor cores"


@dataclass(frozen=True)
class Peaks:
    """The most that a GPU could do.

    Attributes
    ----------
    card : str
        The GPU's name.
    source : str
        The source of the figures.
    flops : mapping of str to float
        Operations a second, by the unit that multiplies; a multiplication and an addition are two.
        Without sparsity.
    bandwidth : float
        Bytes a second between the GPU and its memory.
    """

    card: str
    source: str
    flops: Mapping[str, float]
    bandwidth: float

    def unit_of(self, dtype: DataType, math_type: MathType) -> str | None:
        """Return the unit that multiplies data of a type; None if none is known."""
        for unit in _units_of(dtype, math_type):
            if unit in self.flops:
                return unit
        return None

    def __str__(self) -> str:
        figures = [f"{value / 1e12:.4g} T {unit}" for unit, value in self.flops.items()]
        figures.append(f"{self.bandwidth / 1e12:.4g} TB/s")
        return f"{self.card}: {', '.join(figures)} ({self.source})"


def _units_of(dtype: DataType, math_type: MathType) -> tuple[str, ...]:
    """Return the units that multiply data of a type, the preferred one first.

    A GPU without tensor cores for the type multiplies it in float32.
    """
    is_true = math_type == MathType.FMA
    if dtype == DataType.DOUBLE:
        return (TENSOR_FLOAT64, FLOAT64)
    if dtype in (DataType.HALF, DataType.BFLOAT16):
        return (FLOAT32,) if is_true else (HALF, FLOAT32)
    if dtype == DataType.FLOAT:
        return (FLOAT32,) if is_true else (TF32, FLOAT32)
    if dtype in (DataType.INT8, DataType.UINT8, DataType.INT8x4, DataType.INT8x32):
        return (INT8,)
    return ()


class Roofline(NamedTuple):
    """The least time of a problem, by the peaks of a GPU.

    Attributes
    ----------
    seconds : float
        The longer one of the time of the arithmetic and that of the memory.
    bound : str
        "arithmetic" or "memory": which of them it is.
    unit : str
        The unit that multiplies, by its name in `Peaks.flops`.
    """

    seconds: float
    bound: str
    unit: str

    def share(self, seconds: float) -> float:
        """Return the least time as a share of a time that was measured."""
        return self.seconds / seconds


def roofline(peaks: Peaks, work: Work, math_type: MathType) -> Roofline | None:
    """Return the least time of a problem in a math type; None if no peak is known."""
    unit = peaks.unit_of(work.dtype, math_type)
    if unit is None:
        return None
    arithmetic = work.flops / peaks.flops[unit]
    memory = work.nbytes / peaks.bandwidth
    if arithmetic >= memory:
        return Roofline(arithmetic, "arithmetic", unit)
    return Roofline(memory, "memory", unit)
