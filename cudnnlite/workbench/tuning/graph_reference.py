"""A graph's outputs in float64, straight from what its operations mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cudnnlite import TensorSpec
from cudnnlite.devices.storage import read_values, write_values
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.records import Node

Array = np.ndarray[Any, Any]

# Values of the largest tensor of one image that NumPy computes in reasonable time.
_MOST_VALUES = 1 << 25


def _erf(x: Array) -> Array:
    flat = [math.erf(value) for value in x.ravel().tolist()]
    result: Array = np.array(flat).reshape(x.shape)
    return result


_UNARY: Mapping[str, Callable[[Array], Array]] = {
    "IDENTITY": lambda x: x,
    "EXP": np.exp,
    "LOG": np.log,
    "NEG": np.negative,
    "ABS": np.abs,
    "SQRT": np.sqrt,
    "RSQRT": lambda x: 1 / np.sqrt(x),
    "RELU_FWD": lambda x: np.maximum(x, 0),
    "TANH_FWD": np.tanh,
    "SIGMOID_FWD": lambda x: 1 / (1 + np.exp(-x)),
    "SWISH_FWD": lambda x: x / (1 + np.exp(-x)),
    "SOFTPLUS_FWD": lambda x: np.logaddexp(0, x),
    "GELU_FWD": lambda x: 0.5 * x * (1 + _erf(x * math.sqrt(0.5))),
    "GELU_APPROX_TANH_FWD": lambda x: (
        0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
}
_BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "DIV": np.divide,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "CMP_GE": np.greater_equal,
    "CMP_GT": np.greater,
    "CMP_LE": np.less_equal,
    "CMP_LT": np.less,
    "LOGICAL_AND": np.logical_and,
}
_REDUCTIONS: Mapping[str, Callable[..., Array]] = {"ADD": np.sum, "MAX": np.max, "MIN": np.min}
# Attributes that change what a mode computes; the formulas above have their defaults.
_PARAMETERS = ("relu_", "elu_", "softplus_", "swish_", "alpha")


def why_no_reference(graph: GraphData) -> str:
    """Return why a graph is not computed in float64 here; empty if it is."""
    batch = _batch_of(graph)
    for node in graph.nodes:
        reason = _why_unknown(node) or _why_not_by_images(graph, node, batch)
        if reason:
            return reason
    largest = values_of_largest(graph)
    if largest > _MOST_VALUES:
        return f"a tensor of {largest} values for one image is too large for NumPy"
    return ""


def values_of_largest(graph: GraphData) -> int:
    """Return the number of values that the largest tensor has for one image."""
    sizes = [math.prod(graph.tensors[number].shape) for number in _used_numbers(graph)]
    return max(sizes) // _batch_of(graph)


def _why_unknown(node: Node) -> str:
    attributes = dict(node.attributes)
    if node.kind == "MATMUL":
        if set(dict(node.reads)) != {"adesc", "bdesc"}:
            return "a product of which parts are left out has no reference"
        return ""
    if node.kind == "REDUCTION":
        operator = str(attributes["operator"])
        return "" if operator in _REDUCTIONS else f"a reduction by {operator} has no reference"
    if node.kind != "POINTWISE":
        return f"{node.kind} has no reference"
    mode = str(attributes["mode"])
    if mode not in {*_UNARY, *_BINARY, "GEN_INDEX", "BINARY_SELECT"}:
        return f"{mode} has no reference"
    if any(name.startswith(_PARAMETERS) for name in attributes):
        return f"{mode} with parameters has no reference"
    return ""


def _why_not_by_images(graph: GraphData, node: Node, batch: int) -> str:
    """Return why an operation cannot be computed image by image; empty if it can."""
    reads = [graph.tensors[number].shape for number in node.read_numbers]
    writes = [graph.tensors[number].shape for number in node.written_numbers]
    if node.kind == "MATMUL" and any(len(shape) < 3 for shape in reads):
        return "a product without a batch axis has no reference"
    if any(shape[0] not in (1, batch) for shape in (*reads, *writes)):
        return f"{node.kind} across images has no reference"
    if any(shape[0] == batch for shape in reads) and any(shape[0] != batch for shape in writes):
        return f"{node.kind} across images has no reference"
    attributes = dict(node.attributes)
    if attributes.get("mode") == "GEN_INDEX" and int(attributes["axis"]) == 0:
        return "an index of images has no reference"
    computed = {number for other in graph.nodes for number in other.written_numbers}
    if any(graph.tensors[number].view_of in computed for number in node.read_numbers):
        return "a view of what another operation writes has no reference"
    return ""


def _used_numbers(graph: GraphData) -> set[int]:
    """Return the numbers of the tensors that operations read or write.

    An operand may have other axes than the view of it that they read: a matrix that all images
    share begins with its rows.
    """
    return {
        number for node in graph.nodes for number in (*node.read_numbers, *node.written_numbers)
    }


def _batch_of(graph: GraphData) -> int:
    """Return the size of the first axis of results, along which images are computed one by one."""
    written = [
        graph.tensors[number].shape for node in graph.nodes for number in node.written_numbers
    ]
    return max(shape[0] for shape in written)


def computed_images(graph: GraphData) -> list[int]:
    """Return the indices of the images that are compared: the first and the last."""
    return sorted({0, _batch_of(graph) - 1})


def image_of(values: Array, image: int) -> Array:
    """Return one image of a tensor; a tensor that all images share is its own."""
    if values.shape[0] == 1:
        return values
    return values[image : image + 1]


def reference(graph: GraphData, inputs: Mapping[str, Array], image: int) -> dict[str, Array]:
    """Return every output for one image in float64, by name.

    Parameters
    ----------
    graph : GraphData
        A graph for which `why_no_reference` is empty.
    inputs : mapping of str to array
        All inputs, with all images.
    image : int
        The index on the first axis.

    Raises
    ------
    ArgumentError
        An operation has no reference.
    """
    reason = why_no_reference(graph)
    if reason:
        raise ArgumentError(reason)
    values: dict[int, Array] = {}
    for number in _used_numbers(graph):
        record = graph.tensors[number]
        if record.value is not None:
            values[number] = np.full(record.shape, record.value, np.float64)
        elif record.name in inputs:
            whole = inputs[record.name].astype(np.float64)
            values[number] = image_of(_viewed(graph, number, whole), image)
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            ((_, (written,)),) = node.writes
            values[written] = _computed(graph, node, values, written)
    return {
        record.name: values[number]
        for number, record in enumerate(graph.tensors)
        if record.name in graph.outputs and record.view_of is None
    }


def _viewed(graph: GraphData, number: int, values: Array) -> Array:
    """Return the values of an input as a view of its memory has them."""
    record = graph.tensors[number]
    if record.view_of is None:
        return values
    whole = graph.tensors[record.view_of]
    source = TensorSpec(whole.shape, DataType.DOUBLE, strides=whole.strides)
    memory = np.zeros(source.nbytes, np.uint8)
    write_values(memory, source, slice(None), values)
    return read_values(memory, TensorSpec(record.shape, DataType.DOUBLE, strides=record.strides))


def _computed(graph: GraphData, node: Node, values: Mapping[int, Array], written: int) -> Array:
    attributes = dict(node.attributes)
    operands = {name: values[numbers[0]] for name, numbers in node.reads}
    if node.kind == "MATMUL":
        a, b = operands["adesc"], operands["bdesc"]
        product: Array = np.matmul(_repeated(a, b), _repeated(b, a))
        return product
    x = operands["xdesc"]
    if node.kind == "REDUCTION":
        shape = graph.tensors[written].shape
        axes = tuple(
            axis for axis, size in enumerate(shape) if axis and size == 1 and x.shape[axis] != 1
        )
        reduced: Array = _REDUCTIONS[str(attributes["operator"])](x, axis=axes, keepdims=True)
        return reduced
    mode = str(attributes["mode"])
    if mode == "GEN_INDEX":
        axis = int(attributes["axis"])
        shape_of_axis = [1] * x.ndim
        shape_of_axis[axis] = -1
        return np.broadcast_to(np.arange(x.shape[axis]).reshape(shape_of_axis), x.shape)
    if mode == "BINARY_SELECT":
        return np.where(operands["tdesc"].astype(bool), x, operands["bdesc"])
    if mode in _BINARY:
        return _BINARY[mode](x, operands["bdesc"])
    return _UNARY[mode](x)


def _repeated(a: Array, b: Array) -> Array:
    """Return a with each matrix repeated as often as b has matrices for it.

    Several heads of queries share one of keys.
    """
    for axis in range(1, a.ndim - 2):
        if a.shape[axis] not in (1, b.shape[axis]) and b.shape[axis] > a.shape[axis]:
            a = np.repeat(a, b.shape[axis] // a.shape[axis], axis)
    return a
