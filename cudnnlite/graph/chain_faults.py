"""What cuDNN computes wrongly of pointwise operations, and of outputs in the middle of attention.

Found on an H200 with cuDNN 9.19 and 9.28 (2026-11-29), by running every engine that the heuristics
name over poisoned outputs, against formulas in float64 (`tools/record/graph_chains.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cudnnlite.enums import DataType
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.questions import behind_products
from cudnnlite.graph.records import Node, Shape, TensorRecord

BUILT_IN_ENGINE = 0  # the engine whose epilogues are compiled into the library
_FMA_ENGINE = 8  # the engine that multiplies float32 in chains behind convolutions as float32
_CLIPS = frozenset({"relu_lower_clip", "relu_upper_clip", "relu_lower_clip_slope"})
_CONVOLUTION, _PRODUCT, _POINTWISE = "CONVOLUTION_FORWARD", "MATMUL", "POINTWISE"
_NORMALIZATION = "NORM_FORWARD"
_FUNCTIONS_OF_SUMS = ("RELU_FWD", "TANH_FWD", "SIGMOID_FWD", "ELU_FWD")
WhyWrong = Callable[[Shape, Shape], "str | None"]


def why_chain_is_wrong(graph: GraphData) -> str | None:
    """Return why pointwise operations, alone or behind others, would be wrong, or None."""
    kinds = {node.kind for node in graph.nodes}
    if _NORMALIZATION in kinds:
        for node in graph.nodes:
            mode = dict(node.attributes).get("mode", "")
            # Seen of RELU_BWD and GELU_BWD.
            if mode.endswith("_BWD"):
                return (
                    f"cuDNN ends the process when it is asked for {mode} behind a "
                    "normalisation; compute it by a graph of its own"
                )
    if _CONVOLUTION in kinds:
        fault = _why_sum_behind_convolution_is_wrong(graph)
        if fault is not None:
            return fault
    why_operand_is_wrong: WhyWrong | None = None
    if kinds == {_POINTWISE}:
        why_operand_is_wrong = why_operand_alone_is_wrong
    elif kinds == {_CONVOLUTION, _POINTWISE}:
        why_operand_is_wrong = why_operand_behind_convolution_is_wrong
    for node in graph.nodes:
        if node.kind != _POINTWISE:
            continue
        fault = _why_relu_is_wrong(node)
        if fault is None and why_operand_is_wrong is not None:
            fault = _why_an_operand_is_wrong(graph, node, why_operand_is_wrong)
        if fault is not None:
            return fault
    return None


def why_epilogue_is_wrong(engine: int, graph: GraphData) -> str | None:
    """Return why an engine computes an epilogue wrongly that other engines compute, or None."""
    kinds = {node.kind for node in graph.nodes}
    for node in graph.nodes:
        attributes = dict(node.attributes)
        mode = attributes.get("mode", "")
        if engine == _FMA_ENGINE and mode.endswith("_BWD") and _CONVOLUTION in kinds:
            return f"it computes NaN for {mode} behind a convolution"
        if engine != BUILT_IN_ENGINE:
            continue
        if mode == "TANH_FWD" and _CONVOLUTION in kinds:
            first = 355 if graph.compute_type == DataType.DOUBLE else 44
            return f"it computes 0 or NaN for the tanh of values from {first} on"
        if mode == "RELU_FWD" and _PRODUCT in kinds and _CLIPS & attributes.keys():
            return "it ignores the slope and the clips of a ReLU behind a product"
    return None


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


def _why_sum_behind_convolution_is_wrong(graph: GraphData) -> str | None:
    """Return why the sum of a convolution and a bias may not be an output, or None.

    Every engine that 9.19 names for such a graph in float32 fails with INTERNAL_ERROR when it runs.
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
        record = graph.tensors[node.read_numbers[0]]
        if node.read_numbers[0] in sums and record.name and record.dtype == DataType.FLOAT:
            return (
                f"cuDNN fails where {record.name}, the float32 sum of a convolution and a bias, is "
                f"an output beside its {mode}; compute {mode} by a graph of its own"
            )
    return None


def _is_bias(record: TensorRecord) -> bool:
    """Whether a tensor has one value for each channel."""
    return record.value is None and math.prod(record.shape) == record.shape[1]


# ---------------------------------------------------------------------------------- operands


def _why_an_operand_is_wrong(
    graph: GraphData, node: Node, why_operand_is_wrong: WhyWrong
) -> str | None:
    """Return the first fault of the tensors that an operation reads."""
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
    return tuple(axis for axis in axes if shape[axis] > 1)


# ---------------------------------------------------------------------------------- attention


def why_outputs_of_attention_are_wrong(graph: GraphData) -> str | None:
    """Return why a graph of attention may not write what other operations of it read, or None.

    The engines leave such an output unwritten, and one of them computes a wrong result beside it.
    Right are the sums of rows before the products of gradients, and sums that IDENTITY alone
    reads.
    """
    computed = behind_products(graph)
    in_the_middle = None
    for node in graph.nodes:
        if dict(node.attributes).get("mode") == "IDENTITY":
            continue
        for number in node.read_numbers:
            if number in computed and graph.tensors[number].name:
                in_the_middle = graph.tensors[number].name
    if in_the_middle is None:
        return None
    return (
        f"cuDNN leaves the output {in_the_middle} of attention unwritten, because other "
        "operations read it; compute it by a graph of its own"
    )
