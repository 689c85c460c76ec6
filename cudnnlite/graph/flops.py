"""The multiplications and additions of a graph."""

from __future__ import annotations

from math import prod

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


def _node_flops(graph: GraphData, node: Node, masked: tuple[int, int] | None) -> int:
    operands = {
        name: graph.tensors[numbers[0]].shape
        for name, numbers in (*node.reads, *node.writes)
        if numbers
    }
    if node.kind in _CONVOLUTIONS:
        images, filters = (operands[name] for name in _CONVOLUTIONS[node.kind])
        return 2 * prod(images) * prod(filters[1:])
    if node.kind != "MATMUL":
        return 0
    a, b, c = (operands[name] for name in ("adesc", "bdesc", "cdesc"))
    flops = 2 * prod(c) * a[-1]
    if masked is None:
        return flops
    has_scores = any(shape[-2:] in (masked, masked[::-1]) for shape in (a, b, c))
    if not has_scores:
        return flops
    rows, columns = masked
    num_visible = sum(min(row + 1, columns) for row in range(rows))
    return flops * num_visible // (rows * columns)


def _causal_scores(graph: GraphData) -> tuple[int, int] | None:
    """Return (rows, columns) of scores under a causal mask; None if there is no such mask.

    The mask is what `Graph.causal` writes: row >= column.
    """
    index_axes: dict[int, int] = {}
    for node in graph.nodes:
        attributes = dict(node.attributes)
        mode = attributes.get("mode")
        if node.kind != "POINTWISE":
            continue
        (output_number,) = (numbers[0] for _, numbers in node.writes)
        rank = len(graph.tensors[output_number].shape)
        if mode == "GEN_INDEX":
            index_axes[output_number] = int(attributes["axis"]) - rank
        elif mode == "CMP_GE":
            reads = dict(node.reads)
            axes = [index_axes.get(reads[name][0]) for name in ("xdesc", "bdesc")]
            if axes == [-2, -1]:
                rows, columns = graph.tensors[output_number].shape[-2:]
                return rows, columns
    return None
