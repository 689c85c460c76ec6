"""What cuDNN computes wrongly of pointwise operations, as conditions of `faults.FAULTS`.

Found on an H200 with cuDNN 9.19 and 9.28 (2026-11-29), by running every engine that the heuristics
name over poisoned outputs, against formulas in float64 (`tools/record/graph_chains.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cudnnlite.enums import DataType
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.questions import mode_of
from cudnnlite.graph.records import Node, Shape, TensorRecord

_CONVOLUTION, _PRODUCT, _POINTWISE = "CONVOLUTION_FORWARD", "MATMUL", "POINTWISE"
_FUNCTIONS_OF_SUMS = ("RELU_FWD", "TANH_FWD", "SIGMOID_FWD", "ELU_FWD")
WhyWrong = Callable[[Shape, Shape], "str | None"]


def why_gradient_behind_normalization_ends_the_process(graph: GraphData) -> str | None:
    """Return why cuDNN may not be asked for a gradient behind a normalisation, or None.

    Seen of RELU_BWD and GELU_BWD.
    """
    for node in graph.nodes:
        mode = mode_of(node)
        if node.kind == _POINTWISE and mode.endswith("_BWD"):
            return (
                f"cuDNN ends the process when it is asked for {mode} behind a normalisation; "
                "compute it by a graph of its own"
            )
    return None


def why_a_relu_is_wrong(graph: GraphData) -> str | None:
    """Return why every engine computes a ReLU of a graph wrongly, or None."""
    reasons = (_why_relu_is_wrong(node) for node in graph.nodes if node.kind == _POINTWISE)
    return next(filter(None, reasons), None)


def why_a_shape_behind_convolution_is_wrong(graph: GraphData) -> str | None:
    """Return which operand behind a convolution would be read wrongly for its shape, or None."""
    if {node.kind for node in graph.nodes} != {_CONVOLUTION, _POINTWISE}:
        return None
    return _why_an_operand_is_wrong(graph, why_operand_behind_convolution_is_wrong)


def why_a_shape_alone_is_wrong(graph: GraphData) -> str | None:
    """Return which operand of pointwise operations alone would be read wrongly, or None."""
    if {node.kind for node in graph.nodes} != {_POINTWISE}:
        return None
    return _why_an_operand_is_wrong(graph, why_operand_alone_is_wrong)


def _why_relu_is_wrong(node: Node) -> str | None:
    """Return why every engine computes a ReLU wrongly, or None.

    With a slope they compute max(min(x, upper), lower + slope * (x - lower)).  The gradient is
    right.
    """
    attributes = dict(node.attributes)
    slope = attributes.get("relu_lower_clip_slope", 0.0)
    if attributes.get("mode") != "RELU_FWD" or not slope:
        return None
    if attributes.get("relu_upper_clip", math.inf) != math.inf:
        return (
            "cuDNN computes RELU_FWD with relu_lower_clip_slope and relu_upper_clip wrongly: "
            "large values exceed the clip; Graph.relu clips by an operation of its own"
        )
    if slope > 1:
        return (
            f"cuDNN computes RELU_FWD with relu_lower_clip_slope={slope:g} wrongly: above 1 "
            "the slope is that of positive values; Graph.relu computes it as a minimum"
        )
    return None


def why_sum_behind_convolution_is_wrong(graph: GraphData) -> str | None:
    """Return why the sum of a convolution and a bias may not be an output, or None.

    Every engine that is named for such a graph in float32 fails with INTERNAL_ERROR when it runs.
    In float16 and bfloat16, with other functions, and with a sum of two images, they are right.
    """
    sums: set[int] = set()
    for node in graph.nodes:
        attributes = dict(node.attributes)
        mode = attributes.get("mode")
        if mode == "ADD" and any(_is_bias(graph.tensors[number]) for number in node.read_numbers):
            sums.update(node.written_numbers)
        if mode not in _FUNCTIONS_OF_SUMS or attributes.get("relu_lower_clip_slope"):
            continue
        for number in sums.intersection(node.read_numbers):
            record = graph.tensors[number]
            if record.name and record.dtype == DataType.FLOAT:
                return (
                    f"cuDNN fails where {record.name}, the float32 sum of a convolution and a "
                    f"bias, is an output beside its {mode}; compute {mode} by a graph of its own"
                )
    return None


def _is_bias(record: TensorRecord) -> bool:
    """Whether a tensor has one value for each channel."""
    if record.value is not None or len(record.shape) < 2:
        return False
    return math.prod(record.shape) == record.shape[1]


# ---------------------------------------------------------------------------------- operands


def _why_an_operand_is_wrong(graph: GraphData, why_operand_is_wrong: WhyWrong) -> str | None:
    """Return the first fault of the tensors that pointwise operations read."""
    for node in graph.nodes:
        if node.kind != _POINTWISE:
            continue
        result = graph.tensors[node.written_numbers[0]].shape
        for number in node.read_numbers:
            record = graph.tensors[number]
            if record.value is None and len(record.shape) == len(result):
                fault = why_operand_is_wrong(record.shape, result)
                if fault is not None:
                    return f"{record.name or 'a tensor'}: {fault}"
    return None


def why_operand_behind_convolution_is_wrong(operand: Shape, result: Shape) -> str | None:
    """Return why an operand behind a convolution would be read wrongly, or None.

    Engines add or multiply values of other places.  Some end the CUDA context by a misaligned
    address.
    """
    if repeats_whole_pixels_or_channels(operand, result):
        return None
    return (
        f"cuDNN reads an operand of shape {operand} behind a convolution of shape {result} "
        "wrongly; right are the shape of the result, one value for each channel (1, C, 1, 1), one "
        "for each pixel (N, 1, H, W), and one for all"
    )


def why_operand_alone_is_wrong(operand: Shape, result: Shape) -> str | None:
    """Return why an operand would be read wrongly where all operations are pointwise, or None."""
    if len(result) == 2:
        rows, columns = result
        return (
            "cuDNN leaves most of a result of two axes unwritten; give three, "
            f"(1, {rows}, {columns})"
        )
    repeated = _repeated_axes(operand, result)
    if len(result) != 3 or len(repeated) < 2 or repeated == _long_axes(result, range(3)):
        return None
    return (
        f"cuDNN reads an operand of shape {operand} beside {result} wrongly: of three axes it "
        "repeats one or all; give four axes with channels last"
    )


def repeats_whole_pixels_or_channels(operand: Shape, result: Shape) -> bool:
    """Whether an operand has the shape of images, or one value a channel, a pixel, or for all."""
    rank = len(result)
    return _repeated_axes(operand, result) in (
        (),
        _long_axes(result, (1,)),
        _long_axes(result, (0, *range(2, rank))),
        _long_axes(result, range(rank)),
    )


def _repeated_axes(operand: Shape, result: Shape) -> tuple[int, ...]:
    """Return the axes along which an operation repeats the values of an operand."""
    sizes = enumerate(zip(operand, result, strict=True))
    return tuple(axis for axis, (size, result_size) in sizes if size != result_size)


def _long_axes(shape: Shape, axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(axis for axis in axes if axis < len(shape) and shape[axis] > 1)
