"""Graphs near one for which cuDNN has no engine: each with one change, the small changes first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import prod
from typing import NamedTuple

from cudnnlite.enums import DataType
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.node_attributes import type_name
from cudnnlite.graph.records import Groups, Node, Shape, TensorRecord, packed_strides
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layout import CHANNELS_LAST

_MOST_CHANGES = 6  # of each kind, so that no kind takes all the questions
_MOST_NAMES = 6  # of tensors that a description lists
_MULTIPLE = 8  # of which kernels like sizes to be multiples
_MATRIX_RANK = 3  # of products: a batch of matrices
# Other types for each type, the likely ones first.
_OTHER_TYPES = {
    DataType.HALF: (DataType.BFLOAT16, DataType.FLOAT),
    DataType.BFLOAT16: (DataType.HALF, DataType.FLOAT),
    DataType.FLOAT: (DataType.HALF, DataType.BFLOAT16),
    DataType.DOUBLE: (),
}
# Descriptor calls that do what one operation does, by its name in `GraphData.rows`.
_CALLS = {
    "REDUCTION": "reduce_tensor",
    "RESHAPE": "transform_tensor",
    "IDENTITY": "transform_tensor",
    "GEN_STATS": "reduce_tensor",
    "RESAMPLE_FWD": "pooling_forward",
    "RESAMPLE_BWD": "pooling_backward",
    "CONVOLUTION_FORWARD": "convolution_forward",
    "CONVOLUTION_BACKWARD_DATA": "convolution_backward_data",
    "CONVOLUTION_BACKWARD_FILTER": "convolution_backward_filter",
    **dict.fromkeys(("ADD", "MUL", "MIN", "MAX", "SQRT"), "op_tensor"),
}
_ACTIVATIONS = ("RELU", "TANH", "SIGMOID", "ELU", "SWISH")
# The operations that may be left out; without a product or convolution the graph is another one.
_DROPPED = ("POINTWISE", "REDUCTION", "RESHAPE")
_SOFTMAX = ["REDUCTION", "SUB", "EXP", "REDUCTION", "DIV"]


class Change(NamedTuple):
    """A graph with one change.

    Attributes
    ----------
    description : str
        The change in words that continue "served ...": "with a, b as float16".
    graph : GraphData
        The changed graph, which may be inconsistent: cuDNN refuses it then.
    """

    description: str
    graph: GraphData


def changes(graph: GraphData) -> Iterator[Change]:
    """Yield graphs with one change each, in the order in which one would try them."""
    kinds: tuple[Callable[[GraphData], Iterator[Change]], ...] = (
        _with_statistics,
        _with_gradient_of_bias,
        _with_other_padding,
        _with_other_types,
        _with_other_layouts,
        _with_round_sizes,
        _with_three_axes,
        _without_operation,
        _up_to_operation,
        _with_more_outputs,
    )
    for kind in kinds:
        yield from islice(kind(graph), _MOST_CHANGES)


def descriptor_call(graph: GraphData) -> str | None:
    """Return the name of the descriptor call that computes a graph of one operation, or None."""
    labels = _labels(graph)
    if labels in (_SOFTMAX, [*_SOFTMAX[:-1], "LOG", "ADD", "DIV"]):
        return "softmax_forward"
    if len(labels) != 1:
        return None
    (label,) = labels
    mode, _, direction = label.rpartition("_")
    if mode in _ACTIVATIONS:
        return "activation_forward" if direction == "FWD" else "activation_backward"
    return _CALLS.get(label)


def _changed(
    graph: GraphData, tensors: Sequence[TensorRecord], nodes: Sequence[Node] | None = None
) -> GraphData:
    """Return another graph of these tensors and operations."""
    other = type(graph)(graph.compute_type)
    other.tensors = [*tensors]
    other.nodes = [*(graph.nodes if nodes is None else nodes)]
    return other


def _labels(graph: GraphData) -> list[str]:
    return [kind for _, kind, _, _ in graph.rows()]


def _names(records: Iterable[TensorRecord]) -> str:
    """Return the names of those tensors that are in memory."""
    names = [*dict.fromkeys(record.name for record in records if record.name)]
    return ", ".join(names) if len(names) <= _MOST_NAMES else "all tensors"


def _in_memory(graph: GraphData) -> dict[int, TensorRecord]:
    """Return the tensors in memory, other views of them among them, by their numbers."""
    return {
        number: record
        for number, record in enumerate(graph.tensors)
        if record.name and record.value is None
    }


def _written(graph: GraphData) -> set[int]:
    return {number for node in graph.nodes for number in node.written_numbers}


# --------------------------------------------------------------------------- rules of one kind


def _with_statistics(graph: GraphData) -> Iterator[Change]:
    """Yield a softmax with the logarithm of its sums, without which attention has no engine."""
    names = _labels(graph)
    if "LOG" in names or not {"MATMUL", "EXP", "DIV"} <= {*names}:
        return
    sums = [node for node in graph.nodes if dict(node.attributes).get("operator") == "ADD"]
    largest = [node for node in graph.nodes if dict(node.attributes).get("operator") == "MAX"]
    if len(sums) != 1 or len(largest) != 1:
        return
    (total,), (maximum,) = sums[0].written_numbers, largest[0].written_numbers
    record = graph.tensors[total]
    count = len(graph.tensors)
    mode = {"math_prec": type_name(graph.compute_type)}
    logarithm = _pointwise({"mode": "LOG"} | mode, {"xdesc": total}, count)
    stats = _pointwise({"mode": "ADD"} | mode, {"xdesc": maximum, "bdesc": count}, count + 1)
    index = graph.nodes.index(sums[0]) + 1
    nodes = [*graph.nodes[:index], logarithm, stats, *graph.nodes[index:]]
    yield Change(
        "with the statistics that Graph.softmax_with_stats computes",
        _changed(graph, [*graph.tensors, record, record], nodes),
    )


def _pointwise(attributes: dict[str, str], reads: dict[str, int], result: int) -> Node:
    return Node(
        "POINTWISE",
        tuple(attributes.items()),
        tuple((name, (number,)) for name, number in reads.items()),
        (("ydesc", (result,)),),
    )


def _with_gradient_of_bias(graph: GraphData) -> Iterator[Change]:
    """Yield the gradients of a normalisation with that of its bias."""
    for index, node in enumerate(graph.nodes):
        writes = dict(node.writes)
        if node.kind != "NORM_BACKWARD" or "dbias_desc" in writes or "dscale_desc" not in writes:
            continue
        (dscale,) = writes["dscale_desc"]
        record = replace(graph.tensors[dscale], name="dbias")
        node_with_gradient = replace(
            node, writes=(*node.writes, ("dbias_desc", (len(graph.tensors),)))
        )
        nodes = [*graph.nodes[:index], node_with_gradient, *graph.nodes[index + 1 :]]
        yield Change(
            "with the gradient of a bias, dbias", _changed(graph, [*graph.tensors, record], nodes)
        )


def _with_other_padding(graph: GraphData) -> Iterator[Change]:
    """Yield poolings that pad with other values."""
    for mode in ("NEG_INF", "ZERO"):
        nodes = [
            replace(
                node,
                attributes=tuple(
                    (name, mode if name == "padding_mode" else value)
                    for name, value in node.attributes
                ),
            )
            for node in graph.nodes
        ]
        if nodes != graph.nodes:
            yield Change(f"with padding_mode {mode}", _changed(graph, graph.tensors, nodes))


# ---------------------------------------------------------------------------------------- types


def _with_other_types(graph: GraphData) -> Iterator[Change]:
    """Yield graphs whose outputs, small operands, or all tensors have another data type."""
    memory = {
        number: record
        for number, record in _in_memory(graph).items()
        if record.dtype in _OTHER_TYPES
    }
    written = _written(graph)
    inputs = [number for number in memory if number not in written]
    if not inputs:
        return
    first = memory[inputs[0]]
    factors = {
        number for node in graph.nodes if node.kind == "MATMUL" for number in node.read_numbers
    }
    parameters = [
        number for number in inputs if memory[number].shape != first.shape and number not in factors
    ]
    yield from _with_type(graph, [*written & memory.keys()], DataType.FLOAT)
    if first.dtype != DataType.FLOAT:
        yield from _with_type(graph, parameters, DataType.FLOAT)
    if first.dtype == DataType.DOUBLE:
        graph = _in_float32(graph)
        memory = {number: graph.tensors[number] for number in memory}
        first = memory[inputs[0]]
        description = f"with {_names(memory.values())} as {type_name(DataType.FLOAT)}"
        yield Change(f"{description}, as handle.array(values, dtype='float32') makes them", graph)
    same = [number for number, record in memory.items() if record.dtype == first.dtype]
    for dtype in _OTHER_TYPES[first.dtype]:
        yield from _with_type(graph, same, dtype)


def _with_type(graph: GraphData, numbers: Sequence[int], dtype: DataType) -> Iterator[Change]:
    """Yield the graph in which some tensors have a type, if that is another."""
    numbers = sorted(number for number in numbers if graph.tensors[number].dtype != dtype)
    if not numbers:
        return
    tensors = [*graph.tensors]
    for number in numbers:
        tensors[number] = replace(tensors[number], dtype=dtype)
    names = _names(tensors[number] for number in numbers)
    yield Change(f"with {names} as {type_name(dtype)}", _changed(graph, tensors))


def _in_float32(graph: GraphData) -> GraphData:
    """Return the graph with float32 wherever it has float64: in memory, between, in arithmetic."""
    double, single = type_name(DataType.DOUBLE), type_name(DataType.FLOAT)
    tensors = [
        replace(record, dtype=DataType.FLOAT) if record.dtype == DataType.DOUBLE else record
        for record in graph.tensors
    ]
    nodes = [
        replace(
            node,
            attributes=tuple(
                (name, single if value == double else value) for name, value in node.attributes
            ),
        )
        for node in graph.nodes
    ]
    return _changed(graph, tensors, nodes)


# ---------------------------------------------------------------------------- layouts and sizes


def _with_other_layouts(graph: GraphData) -> Iterator[Change]:
    """Yield graphs of images with channels last, and with channels first.

    Matrices are left as they are: some strides of attention end the process.
    """
    has_views = any(record.view_of is not None for record in graph.tensors)
    if has_views or any(node.kind == "MATMUL" for node in graph.nodes):
        return
    layouts = {CHANNELS_LAST[len(record.shape)] for record in _images(graph.tensors)}
    last = {record.shape: _channels_last(record.shape) for record in _images(graph.tensors)}
    first = {record.shape: packed_strides(record.shape) for record in _images(graph.tensors)}
    for description, strides in ((f"in {', '.join(layouts)}", last), ("packed in C order", first)):
        tensors = [
            replace(record, strides=strides[record.shape]) if record.shape in strides else record
            for record in graph.tensors
        ]
        different = [
            new for new, old in zip(tensors, graph.tensors, strict=True) if new != old and new.name
        ]
        if different:
            yield Change(f"with {_names(different)} {description}", _changed(graph, tensors))


def _images(records: Iterable[TensorRecord]) -> Iterator[TensorRecord]:
    """Yield the tensors that have channels and at least two axes of pixels."""
    for record in records:
        if record.value is None and len(record.shape) in CHANNELS_LAST and len(record.shape) > 3:
            yield record


def _channels_last(shape: Shape) -> Shape:
    return TensorSpec(shape, layout=CHANNELS_LAST[len(shape)]).strides


def _with_round_sizes(graph: GraphData) -> Iterator[Change]:
    """Yield graphs in which sizes are multiples of 8: each size alone, then all of them."""
    # The last axis of every tensor comes first, then the axis before it.
    sizes: dict[int, None] = {}
    for axis in (1, 2, 3):
        for record in _in_memory(graph).values():
            if axis > len(record.shape):
                continue
            size = record.shape[-axis]
            if size > 1 and size % _MULTIPLE:
                sizes[size] = None
    for size in islice(sizes, _MOST_CHANGES - 1):
        up = _rounded(size)
        yield Change(
            f"with axes of {size} rounded up to {up}", _with_sizes(graph, frozenset({size}))
        )
    if len(sizes) > 1:
        yield Change("with all axes rounded up to multiples of 8", _with_sizes(graph, {*sizes}))


def _rounded(size: int) -> int:
    return -(-size // _MULTIPLE) * _MULTIPLE


def _with_sizes(graph: GraphData, sizes: frozenset[int] | set[int]) -> GraphData:
    """Return the graph with some sizes rounded up, wherever they are."""
    tensors = []
    for record in graph.tensors:
        shape = tuple(_rounded(size) if size in sizes else size for size in record.shape)
        tensors.append(replace(record, shape=shape, strides=_in_order(shape, record.strides)))
    return _changed(graph, tensors)


def _in_order(shape: Shape, strides: Shape) -> Shape:
    """Return strides without gaps in which axes have the same order in memory."""
    result = [1] * len(shape)
    elements = 1
    for axis in sorted(range(len(shape)), key=lambda axis: (strides[axis], -axis)):
        result[axis] = elements
        elements *= shape[axis]
    return tuple(result)


def _with_three_axes(graph: GraphData) -> Iterator[Change]:
    """Yield the graph of matrices with one axis before them, if it has another number of those."""
    kinds = {node.kind for node in graph.nodes}
    has_axes = any(dict(node.attributes).get("axis") is not None for node in graph.nodes)
    ranks = {len(record.shape) for record in graph.tensors}
    if not kinds <= {"MATMUL", "POINTWISE", "REDUCTION"} or has_axes or len(ranks) != 1:
        return
    (rank,) = ranks
    if rank in (1, _MATRIX_RANK):
        return
    tensors = [
        replace(
            record,
            shape=(prod(record.shape[:-2]), *record.shape[-2:]),
            strides=_three_strides(record),
        )
        for record in graph.tensors
    ]
    description = "with one more axis in front" if rank == 2 else "with all but two axes as one"
    yield Change(description, _changed(graph, tensors))


def _three_strides(record: TensorRecord) -> Shape:
    """Return strides of packed matrices, in a tensor whose axes before the last two are one."""
    rows, columns = record.shape[-2:]
    matrix = _in_order((rows, columns), record.strides[-2:])
    return (rows * columns, *matrix)


# ----------------------------------------------------------------------------- fewer operations


def _without_operation(graph: GraphData) -> Iterator[Change]:
    """Yield graphs without one operation, and without those whose results it alone read."""
    last = len(graph.nodes) - 1
    for index in dict.fromkeys((last, 0, *range(last - 1, 0, -1))):
        change = _without(graph, index)
        if change is not None:
            yield change


def _without(graph: GraphData, index: int) -> Change | None:
    """Return the graph in which the operand of an operation takes the place of its result."""
    dropped = graph.nodes[index]
    if dropped.kind not in _DROPPED:
        return None
    operands = [number for number in dropped.read_numbers if graph.tensors[number].value is None]
    if not operands or len(dropped.written_numbers) != 1:
        return None
    operands.sort(key=lambda number: bool(graph.tensors[number].name))  # virtual ones first
    operand, (result,) = operands[0], dropped.written_numbers
    tensors = [*graph.tensors]
    record, old = tensors[operand], tensors[result]
    if old.name and record.name:
        if operand not in _written(graph):
            return None
        tensors[result] = replace(old, name="")  # the operand is an output by itself
    elif old.name:
        tensors[result] = replace(old, name="")
        strides = old.strides if record.shape == old.shape else packed_strides(record.shape)
        tensors[operand] = replace(record, name=old.name, dtype=old.dtype, strides=strides)
    elif record.shape != old.shape:
        return None
    nodes = [
        replace(node, reads=_with_operand(node.reads, result, operand))
        for node in graph.nodes
        if node is not dropped
    ]
    live_nodes = _alive(tensors, nodes)
    if not live_nodes:
        return None
    other = _changed(graph, tensors, live_nodes)
    return Change(_description(graph, index, live_nodes), other)


def _with_operand(reads: Groups, result: int, operand: int) -> Groups:
    return tuple(
        (name, tuple(operand if number == result else number for number in numbers))
        for name, numbers in reads
    )


def _alive(tensors: Sequence[TensorRecord], nodes: Sequence[Node]) -> list[Node]:
    """Return the operations whose results are in memory, or read by such operations."""
    needed_numbers: set[int] = set()
    alive: list[Node] = []
    for node in reversed(nodes):
        if any(number in needed_numbers or tensors[number].name for number in node.written_numbers):
            needed_numbers.update(node.read_numbers)
            alive.append(node)
    return alive[::-1]


def _description(graph: GraphData, index: int, live_nodes: Sequence[Node]) -> str:
    """Return which operations a graph lacks."""
    written = {number for node in live_nodes for number in node.written_numbers}
    labels = [
        label
        for label, node in zip(_labels(graph), graph.nodes, strict=True)
        if written.isdisjoint(node.written_numbers)
    ]
    if len(labels) == 1 and index == len(graph.nodes) - 1:
        return f"without the last operation, {labels[0]}"
    if len(labels) == 1 and index == 0:
        return f"without the first operation, {labels[0]}"
    return f"without {', '.join(labels)}"


def _up_to_operation(graph: GraphData) -> Iterator[Change]:
    """Yield the first operations of the graph, most of them first.

    The tensors that the left-out operations would read become outputs.
    """
    labels = _labels(graph)
    for count in range(len(labels) - 1, 0, -1):
        nodes, others = graph.nodes[:count], graph.nodes[count:]
        read_numbers = {number for node in others for number in node.read_numbers}
        written = {number for node in nodes for number in node.written_numbers}
        tensors = [*graph.tensors]
        for number in read_numbers & written:
            tensors[number] = _as_output(tensors[number], number)
        if nodes == _alive(tensors, nodes):
            yield Change(
                f"up to operation {count}, {labels[count - 1]}", _changed(graph, tensors, nodes)
            )


def _with_more_outputs(graph: GraphData) -> Iterator[Change]:
    """Yield graphs in which a result between operations is in memory."""
    for index, (node, label) in enumerate(zip(graph.nodes, _labels(graph), strict=True), 1):
        for number in node.written_numbers:
            tensors = [*graph.tensors]
            tensors[number] = _as_output(tensors[number], number)
            if tensors == graph.tensors:
                continue
            yield Change(
                f"with the result of operation {index}, {label}, as an output",
                _changed(graph, tensors),
            )


def _as_output(record: TensorRecord, number: int) -> TensorRecord:
    """Return a tensor in memory; as it is where it is there already, or no float."""
    if record.name or record.dtype not in _OTHER_TYPES:
        return record
    return replace(record, name=f"result_{number}")
