"""What a problem has to do at least: operations of the direct method, and bytes of its operands."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from cudnnlite.dtypes import itemsize
from cudnnlite.enums import DataType, RNNMode
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.graph.records import Node
from cudnnlite.problems import rnn
from cudnnlite.problems.problem import Problem
from cudnnlite.specs.filter import as_tensor
from cudnnlite.specs.rnn_weights import weight_parts

# By the kind of a convolution's node: the attributes of the images and of the filter whose sizes
# say how many products there are.
_CONVOLUTIONS = {
    "CONVOLUTION_FORWARD": ("y", "w"),
    "CONVOLUTION_BACKWARD_DATA": ("dy", "w"),
    "CONVOLUTION_BACKWARD_FILTER": ("dy", "dw"),
}


class Work(NamedTuple):
    """What a problem has to do at least.

    Attributes
    ----------
    flops : int
        Multiplications and additions of the direct method, those of the padding included.  Scores
        that a causal mask hides do not count.
    nbytes : int
        Bytes of all operands: each input read once, each output written once.
    dtype : DataType
        The type of the first operand, which decides about the peak.
    """

    flops: int
    nbytes: int
    dtype: DataType


def work_of(problem: Problem) -> Work:
    """Return what a problem has to do at least."""
    if isinstance(problem, GraphProblem):
        first = next(iter(problem.specs.values()))
        return Work(graph_flops(problem.graph), _bytes_of_operands(problem), first.dtype)
    if problem.operation is rnn.FORWARD:
        return Work(problem.flops, _bytes_of_network(problem), problem.spec.dtype)
    first = problem.values[problem.operation.reads[0]]
    return Work(problem.flops, _bytes_of_operands(problem), first.dtype)


def _bytes_of_operands(problem: Problem) -> int:
    """Return the bytes of all operands; an output that is blended is read, too."""
    nbytes = sum(as_tensor(spec).nbytes for spec in problem.specs.values())
    if problem.values.get("beta"):
        nbytes += sum(as_tensor(problem.values[name]).nbytes for name in problem.operation.writes)
    return int(nbytes)


def _bytes_of_network(problem: Problem) -> int:
    """Return the bytes of a recurrent network's weights, input, output and last states."""
    spec, data = problem.spec, problem.data
    values = sum(prod(part.shape) for part in weight_parts(spec))
    values += sum(data.lengths) * (spec.input_size + spec.output_size)
    state = spec.num_layers * spec.directions * data.batch
    values += state * spec.state_size
    if spec.cell == RNNMode.LSTM:
        values += state * spec.hidden_size
    return int(values * itemsize(spec.dtype))


def graph_flops(graph: GraphData) -> int:
    """Return the multiplications and additions of a graph's matrix products and convolutions."""
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
    seen = sum(min(row + 1, columns) for row in range(rows))
    return flops * seen // (rows * columns)


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
        (written,) = (numbers[0] for _, numbers in node.writes)
        rank = len(graph.tensors[written].shape)
        if mode == "GEN_INDEX":
            index_axes[written] = int(attributes["axis"]) - rank
        elif mode == "CMP_GE":
            reads = dict(node.reads)
            axes = [index_axes.get(reads[name][0]) for name in ("xdesc", "bdesc")]
            if axes == [-2, -1]:
                rows, columns = graph.tensors[written].shape[-2:]
                return rows, columns
    return None
