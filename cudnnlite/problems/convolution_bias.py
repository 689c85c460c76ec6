"""The gradient of a convolution's bias as a declaration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnnlite.dtypes import itemsize
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.operation import Description, Operation
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, span

_VALUES_OF_A_LOAD = 4


def _bias(dy: TensorSpec) -> TensorSpec:
    if dy.rank not in CHANNELS_FIRST:
        raise ArgumentError(f"dy={dy}: it must be (N, C, *spatial), of rank 3, 4 or 5")
    return dy.packed((1, dy.shape[1], *[1] * (dy.rank - 2)))


def _hint(problem: Any) -> str:
    """Return a known reason why cuDNN refuses a problem; empty if there is none."""
    if problem.dy.dtype != DataType.BFLOAT16:
        return ""
    return (
        "bfloat16 is not summed: transform_tensor(handle, dy, dtype='float32') converts it "
        "if the channels come first"
    )


def _alignments(specs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the alignments that vector loads of four values need, at most 16 bytes.

    With less, an H200's CUDA context ends.
    """
    return {name: min(16, _VALUES_OF_A_LOAD * itemsize(spec.dtype)) for name, spec in specs.items()}


def _packed(problem: Any) -> Any:
    """Return the problem of a packed dy if vectors of four values would be misaligned in this one.

    The loads follow the strides, so that images or channels which do not begin at multiples of four
    values end an H200's CUDA context: (2, 1, 4, 6) with strides (90, 30, 6, 1).
    """
    dy = problem.dy
    steps = [step for size, step in zip(dy.shape[:2], dy.strides[:2], strict=True) if size > 1]
    is_packed = span(dy.shape, dy.strides) == dy.size
    if is_packed or not any(step % _VALUES_OF_A_LOAD for step in steps):
        return None
    return problem.replace(dy=TensorSpec(dy.shape, dy.dtype))


BACKWARD = Operation(
    "convolution_backward_bias",
    "cudnnConvolutionBackwardBias",
    reads=("dy",),
    writes=("db",),
    infer=_bias,
    description=Description(hint=_hint),
    alignments=_alignments,
    packed=_packed,
)
