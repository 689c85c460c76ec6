"""What some engines of cuDNN compute wrongly, as conditions of `faults.FAULTS`.

Those of convolutions and their gradients were found by sweeps over the engines of cuDNN 9.19, over
outputs and scratch memory that were filled before (`tools/record/gradient_engines.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from cudnnlite.dtypes import itemsize
from cudnnlite.enums import DataType
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.questions import (
    VECTOR_BYTES,
    behind_products,
    in_memory,
    mode_of,
    multiplies_in_tf32,
    operand,
    paddings,
    products_of,
    result,
)
from cudnnlite.graph.records import TensorRecord

_CLIPS = frozenset({"relu_lower_clip", "relu_upper_clip", "relu_lower_clip_slope"})
_POINTWISE = "POINTWISE"
# The images that engines copy to channels last in scratch memory, by the operation.
_COPIED_IMAGES = {
    "CONVOLUTION_FORWARD": "x",
    "CONVOLUTION_BACKWARD_DATA": "dy",
    "CONVOLUTION_BACKWARD_FILTER": "dy",
}


def modes_of(graph: GraphData) -> list[str]:
    """Return the modes of the pointwise operations."""
    nodes = (node for node in graph.nodes if node.kind == _POINTWISE)
    return [mode_of(node) for node in nodes]


# ---------------------------------------------------------------------------------- convolutions


def why_uneven_padding_is_wrong(graph: GraphData) -> str | None:
    """Return why an engine that takes the padding before an axis for that behind it is wrong."""
    for node in graph.nodes:
        before, behind = paddings(node)
        if before != behind:
            return "it computes wrong numbers where padding differs at the two ends of an axis"
    return None


def why_lines_are_wrong(graph: GraphData) -> str | None:
    """Return why an engine for gradients of one spatial axis is wrong, or None.

    Of graphs with channels last and groups one was seen, which was wrong; other layouts and one
    group were right.
    """
    for node in graph.nodes:
        x, dw = operand(graph, node, "x"), result(graph, node, "dw")
        if x is None or dw is None or min(len(x.shape), len(dw.shape)) < 2:
            continue
        if x.shape[1] != dw.shape[1] and x.spec.is_channels_last:
            return "it computes a wrong gradient of groups with channels last"
    return why_uneven_padding_is_wrong(graph)


def why_scratch_is_read_unwritten(graph: GraphData) -> str | None:
    """Return why an engine reads scratch memory that it did not write, or None."""
    for node in graph.nodes:
        name = _COPIED_IMAGES.get(node.kind)
        images = operand(graph, node, name) if name else None
        if images is None or images.spec.is_channels_last:
            continue
        nbytes = prod(images.shape[2:]) * itemsize(images.dtype)
        if nbytes % VECTOR_BYTES:
            return (
                f"it computes wrong numbers with channels first where an image of {images.name} "
                f"takes {nbytes} bytes, no multiple of {VECTOR_BYTES}"
            )
    return None


def why_alpha_comes_too_late(graph: GraphData) -> str | None:
    """Return why a gradient of filters in float16 with an alpha below 1 would be infinite."""
    for node in graph.nodes:
        dw = result(graph, node, "dw")
        alpha: float = dict(node.attributes).get("alpha", 1.0)
        if dw is not None and dw.dtype == DataType.HALF and abs(alpha) < 1:
            return (
                "it rounds the gradient to float16, where large values become infinite, before it "
                "multiplies by alpha"
            )
    return None


def why_tanh_is_wrong(graph: GraphData) -> str | None:
    """Return why a tanh behind a convolution is wrong, or None."""
    if "TANH_FWD" not in modes_of(graph):
        return None
    first = 355 if graph.compute_type == DataType.DOUBLE else 44
    return f"it computes 0 or NaN for the tanh of values from {first} on"


def why_gradients_of_activations_are_wrong(graph: GraphData) -> str | None:
    """Return why the gradient of an activation behind a convolution is wrong, or None."""
    for mode in modes_of(graph):
        if mode.endswith("_BWD"):
            return f"it computes NaN for {mode} behind a convolution"
    return None


# ------------------------------------------------------------------------------------- products


def why_clips_are_ignored(graph: GraphData) -> str | None:
    """Return why a ReLU behind a product is wrong, or None."""
    for node in graph.nodes:
        attributes = dict(node.attributes)
        if attributes.get("mode") == "RELU_FWD" and _CLIPS & attributes.keys():
            return "it ignores the slope and the clips of a ReLU behind a product"
    return None


def why_float32_is_not_narrowed(graph: GraphData) -> str | None:
    """Return why a product of float32 with a result of another type is wrong, or None.

    The fault was seen where nothing is behind the product; with more behind it nobody asked.
    """
    has_narrow_result = any(y.dtype != DataType.FLOAT for y in graph.outputs.values())
    if has_narrow_result and multiplies_in_tf32(graph):
        return "it writes no numbers where a product of float32 has a result of another type"
    return None


def why_one_bias_is_taken_for_all(graph: GraphData) -> str | None:
    """Return why an operand of each of several matrices is wrong behind a product, or None."""
    for record in _operands_behind(graph):
        if prod(record.shape[:-2]) > 1:
            return f"it adds {record.name} of the first matrix to all"
    return None


def why_a_column_is_not_written(graph: GraphData) -> str | None:
    """Return why the result of one column is wrong behind a product, or None.

    It writes the first value and 0 for the others, in each of 56 configurations and two types.
    """
    for record in _matrices(graph.outputs.values()):
        rows, columns = record.shape[-2:]
        is_by_columns = record.strides[-1] != 1 and record.strides[-2] == 1
        if columns == 1 and rows > 1 and is_by_columns and modes_of(graph):
            return f"it writes the first value of {record.name} alone, which has one column"
    return None


def why_rows_are_misaligned(graph: GraphData) -> str | None:
    """Return which matrix of a product has rows that an engine does not read, or None.

    15 of 21 graphs were wrong, 5 more failed; with all rows at multiples of 16 bytes, and a packed
    result by rows, all were right.
    """
    records = [
        record for node in products_of(graph) for record in in_memory(graph, node.read_numbers)
    ]
    outputs = _matrices(graph.outputs.values())
    for record in (*_matrices(records), *outputs):
        pitch = record.strides[-2] if record.strides[-1] == 1 else record.strides[-1]
        nbytes = pitch * itemsize(record.dtype)
        if nbytes % VECTOR_BYTES:
            return (
                f"it needs rows, or columns, at multiples of {VECTOR_BYTES} bytes; those of "
                f"{record.name} are {nbytes} bytes apart"
            )
    for record in outputs:
        if record.strides[-2:] != (record.shape[-1], 1):
            return f"it needs a result of packed rows; the strides of {record.name} are {record.strides}"
    return None


def _matrices(records: Iterable[TensorRecord]) -> list[TensorRecord]:
    return [record for record in records if len(record.shape) > 1]


def _operands_behind(graph: GraphData) -> list[TensorRecord]:
    """Return the operands in memory of pointwise operations behind a product."""
    behind = behind_products(graph)
    return [
        record
        for node in graph.nodes
        if node.kind == _POINTWISE and not behind.isdisjoint(node.read_numbers)
        for record in in_memory(graph, node.read_numbers)
    ]


# ------------------------------------------------------------------------------- normalisations


def why_variance_is_wrong(graph: GraphData) -> str | None:
    """Return why the variance of layer normalisation is wrong, or None."""
    if _has_mode(graph, "NORM_FORWARD", "LAYER"):
        return (
            "it computes NaN or a wrong variance of rows whose deviation is small beside their mean"
        )
    return None


def why_stream_is_ignored(graph: GraphData) -> str | None:
    """Return why gradients of instance normalisation are wrong, or None.

    All 26 plans were wrong on another stream that was busy, where there was more than one image,
    and right on the default stream.  Wherever it serves, engine 2 does, and is right.
    """
    if _has_mode(graph, "NORM_BACKWARD", "INSTANCE"):
        return "it computes dscale and dbias on the default stream, whatever stream the handle has"
    return None


def _has_mode(graph: GraphData, kind: str, mode: str) -> bool:
    return any(node.kind == kind and mode_of(node) == mode for node in graph.nodes)
