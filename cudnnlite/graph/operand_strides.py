"""Strides that cuDNN takes, while its kernels compute with others: conditions of `faults.FAULTS`.

Found on an H200 with cuDNN 9.19 (2026-11-29) by `tests/fuzz/random_calls.py`: of the calls that
these rules refuse, each one that cuDNN served was wrong, or lost the context by a misaligned
address, unless its values told nothing.
"""

from __future__ import annotations

from math import prod

from cudnnlite.graph.data import GraphData
from cudnnlite.graph.questions import behind_products, in_memory, mode_of, operand
from cudnnlite.graph.records import Node, Shape, TensorRecord
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST, span

_PRODUCT, _CONVOLUTION, _POINTWISE = "MATMUL", "CONVOLUTION_FORWARD", "POINTWISE"
_CLIPS_OF_RELU = ("relu_lower_clip", "relu_lower_clip_slope", "relu_upper_clip")


def why_gaps_behind_convolution_are_read(graph: GraphData) -> str | None:
    """Return which operand behind a convolution has gaps, or None.

    All engines, of operands of each shape and type, read the gaps as values (386 graphs).
    """
    is_behind = False
    for node in graph.nodes:
        is_behind = is_behind or node.kind == _CONVOLUTION
        if node.kind != _POINTWISE or not is_behind:
            continue
        for record in in_memory(graph, node.read_numbers):
            if span(record.shape, record.strides) != prod(record.shape):
                return (
                    f"cuDNN reads gaps of {record.name} behind a convolution as values; its "
                    f"strides are {record.strides}: give a packed array"
                )
    return None


def why_images_are_wrong(graph: GraphData) -> str | None:
    """Return why kernels compiled for a chain behind a convolution read images wrongly, or None.

    They read packed images with channels last alone.  A convolution without a chain, and additions
    of arrays with a plain ReLU, or without one, have other kernels, too, if the result has the type
    of x.
    """
    first, *chain = graph.nodes
    x = operand(graph, first, "x")
    if first.kind != _CONVOLUTION or x is None:
        return None
    outputs = list(graph.outputs.values())
    has_type_of_x = all(y.dtype == x.dtype for y in outputs)
    if has_type_of_x and (not chain or _is_bias_and_relu(graph, chain)):
        return None
    images = in_memory(graph, first.read_numbers) + outputs
    for node in chain:
        of_result = graph.tensors[node.written_numbers[0]].shape
        read = in_memory(graph, node.read_numbers)
        images += [record for record in read if record.shape == of_result]
    for record in images:
        if not _is_packed_with_channels_last(record):
            layout = CHANNELS_LAST.get(len(record.shape), "channels last")
            return (
                f"it reads {record.name} as packed with channels last; its strides are "
                f"{record.strides}: give layout={layout!r} to all images and filters"
            )
    return None


def why_pixels_are_wrong(graph: GraphData) -> str | None:
    """Return which tensor is read in other strides where all operations are pointwise.

    Values of the gaps are read as data.  Images of rank 4 and 5 are read as packed with channels
    last, and those of rank 3 as packed, with their axes in order: with the channels in front of the
    batch, or the width in front of the height, half of the results were wrong, and some calls lost
    the context.
    """
    if {node.kind for node in graph.nodes} != {_POINTWISE}:
        return None
    records = (*graph.inputs.values(), *graph.outputs.values())
    # If all have channels first, cuDNN names no engine, and the refusal says what it has.
    are_first = all(record.spec.fits(CHANNELS_FIRST.get(len(record.shape))) for record in records)
    for record in records:
        shape, strides = record.shape, record.spec.strides
        if span(shape, record.strides) != prod(shape):
            return (
                f"cuDNN reads gaps of {record.name} as values where all operations are pointwise; "
                f"its strides are {strides}: give a packed array"
            )
        if are_first or len(shape) not in CHANNELS_LAST:
            continue
        if len(shape) == 3 and not record.spec.fits(CHANNELS_FIRST[3]):
            return (
                f"cuDNN reads the axes of {record.name} in order where all operations are "
                f"pointwise; its strides are {strides}: give a packed array"
            )
        if len(shape) > 3 and not _is_packed_with_channels_last(record):
            return (
                f"cuDNN reads {record.name} as packed with channels last where all operations are "
                f"pointwise; its strides are {strides}: give layout={CHANNELS_LAST[len(shape)]!r}"
            )
    return None


def why_rows_are_wrong(graph: GraphData) -> str | None:
    """Return which tensor behind a normalisation has other strides than x, of the same shape.

    A kernel that was compiled for one such graph ended the CUDA context.
    """
    if {node.kind for node in graph.nodes} != {"NORM_FORWARD", _POINTWISE}:
        return None
    normalized = (node for node in graph.nodes if node.kind == "NORM_FORWARD")
    x = operand(graph, next(normalized), "xdesc")
    if x is None:
        return None
    for record in (*graph.inputs.values(), *graph.outputs.values()):
        if record.shape == x.shape and record.strides != x.strides:
            return (
                f"cuDNN ends the CUDA context where {record.name} behind a normalisation has "
                f"other strides than x; they are {record.spec.strides}: give {x.strides}"
            )
    return None


def is_packed_matrix(shape: Shape, strides: Shape, *, is_result: bool) -> bool:
    """Whether the elements of a row, or those of a column, are neighbours in each matrix.

    Kernels have one stride, that between rows or between columns.  A result of one column may have
    any, if it is no smaller than that of the axis of size 1.
    """
    rows, columns = shape[-2:]
    if columns > 1:
        return strides[-1] == 1 or (rows > 1 and strides[-2] == 1)
    return rows == 1 or strides[-2] == 1 or (is_result and strides[-1] <= strides[-2])


def why_matrices_are_wrong(graph: GraphData) -> str | None:
    """Return which operand behind a product, or which result, has no packed rows or columns."""
    behind = behind_products(graph)
    for node in graph.nodes:
        is_behind = not behind.isdisjoint(node.read_numbers)
        operands = node.read_numbers if node.kind == _POINTWISE and is_behind else ()
        results = node.written_numbers if node.kind == _PRODUCT or operands else ()
        for numbers, is_result in ((operands, False), (results, True)):
            for record in in_memory(graph, numbers):
                is_matrix = len(record.shape) > 1
                if is_matrix and not is_packed_matrix(
                    record.shape, record.strides, is_result=is_result
                ):
                    return (
                        f"cuDNN takes the rows or the columns of {record.name} beside a product "
                        f"for packed ones; its strides are {record.spec.strides}: give a packed "
                        "array"
                    )
    return None


def _is_packed_with_channels_last(record: TensorRecord) -> bool:
    layout = CHANNELS_LAST.get(len(record.shape))
    return layout is not None and record.spec.fits(layout)


def _is_bias_and_relu(graph: GraphData, chain: list[Node]) -> bool:
    """Whether operations add arrays, with a ReLU without clips behind them or without one."""
    if any(
        graph.tensors[number].value is not None for node in chain for number in node.read_numbers
    ):
        return False
    modes = [mode_of(node) for node in chain]
    has_clips = any(dict(chain[-1].attributes).get(name) is not None for name in _CLIPS_OF_RELU)
    additions = modes[:-1] if modes[-1] == "RELU_FWD" and not has_clips else modes
    return bool(additions) and {*additions} == {"ADD"}
