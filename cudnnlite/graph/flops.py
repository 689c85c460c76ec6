"""The multiplications and additions of a graph."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from cudnnlite.enums import DataType
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.records import Node

# By the kind of a convolution's node: the attributes of the images and of the filter whose sizes
# say how many products there are.
_CONVOLUTIONS = {
    "CONVOLUTION_FORWARD": ("y", "w"),
    "CONVOLUTION_BACKWARD_DATA": ("dy", "w"),
    "CONVOLUTION_BACKWARD_FILTER": ("dy", "dw"),
}


def flops_of(graph: GraphData) -> int:
    """Return the multiplications and additions of a graph's matrix products and convolutions.

    Scores that a causal mask hides do not count.
    """
    masked = _causal_scores(graph)
    return sum(_node_flops(graph, node, masked) for node in graph.nodes)


def _node_flops(graph: GraphData, node: Node, masked: _CausalMask | None) -> int:
    operands = {
        name: graph.tensors[numbers[0]].shape
        for name, numbers in (*node.reads, *node.writes)
        if numbers
    }
    names = _CONVOLUTIONS.get(node.kind, ("adesc", "bdesc", "cdesc"))
    if not operands.keys() >= {*names}:  # an operation of another kind, or what cuDNN refuses
        return 0
    if node.kind in _CONVOLUTIONS:
        images, filters = (operands[name] for name in names)
        return 2 * prod(images) * prod(filters[1:])
    a, b, c = (operands[name] for name in names)
    flops = 2 * prod(c) * a[-1]
    if masked is None:
        return flops
    rows, columns, shift = masked
    sizes = (rows, columns)
    if not any(shape[-2:] in (sizes, sizes[::-1]) for shape in (a, b, c)):
        return flops
    num_visible = sum(min(max(row + 1 + shift, 0), columns) for row in range(rows))
    return flops * num_visible // (rows * columns)


class _CausalMask(NamedTuple):
    """The scores under a causal mask: those are visible where row + shift >= column."""

    rows: int
    columns: int
    shift: int


def _causal_scores(graph: GraphData) -> _CausalMask | None:
    """Return the scores under a causal mask, as `Graph.causal` writes it; None without a mask."""
    indices: dict[int, tuple[int, int]] = {}  # the axis, counted from the end, and the shift
    for node in graph.nodes:
        attributes = dict(node.attributes)
        mode = attributes.get("mode")
        if node.kind != "POINTWISE":
            continue
        (output_number,) = (numbers[0] for _, numbers in node.writes)
        rank = len(graph.tensors[output_number].shape)
        if mode == "GEN_INDEX":
            indices[output_number] = int(attributes.get("axis", 0)) - rank, 0
            continue
        if mode not in ("ADD", "SUB", "CMP_GE") or len(node.read_numbers) != 2:
            continue
        if node.read_numbers[0] not in indices:
            continue
        axis, shift = indices[node.read_numbers[0]]
        other = graph.tensors[node.read_numbers[1]]
        if mode == "CMP_GE" and axis == -2 and indices.get(node.read_numbers[1]) == (-1, 0):
            rows, columns = graph.tensors[output_number].shape[-2:]
            return _CausalMask(rows, columns, shift)
        if mode != "CMP_GE" and other.value is not None and other.dtype == DataType.INT32:
            step = int(other.value)
            indices[output_number] = axis, shift + (step if mode == "ADD" else -step)
    return None
