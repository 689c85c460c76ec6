"""Conversion of a graph to plain values, which JSON can hold, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from cudnnlite.arguments import integer, integers, real_number, shown
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.node_attributes import parse_any_dtype, type_name
from cudnnlite.graph.records import TensorRecord
from cudnnlite.specs.layout import MAX_RANK

FORMAT = 1
_MISTAKES = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    OverflowError,
    RecursionError,
    MemoryError,
)
_NOT_FINITE = ("inf", "-inf", "nan")


def graph_to_plain(graph: Any) -> dict[str, Any]:
    """Return a `GraphData` as a JSON value, in which infinities and NaN are texts."""
    # Without dynamic shapes the text must stay that of older versions: it is a key of caches.
    options = {"dynamic_shapes": True} if graph.dynamic_shapes else {}
    return {
        "format": FORMAT,
        "compute_type": type_name(graph.compute_type),
        **options,
        "tensors": [_plain_tensor(record) for record in graph.tensors],
        "nodes": [
            {
                "kind": node.kind,
                "attributes": {name: _plain(value) for name, value in node.attributes},
                "reads": {name: list(numbers) for name, numbers in node.reads},
                "writes": {name: list(numbers) for name, numbers in node.writes},
            }
            for node in graph.nodes
        ],
    }


def graph_from_plain(kind: Any, plain: Any) -> Any:
    """Return the graph of a value of `graph_to_plain`, as a `kind`: a class of `GraphData`.

    Raises
    ------
    ArgumentError
        The value is no graph of this format; the message says where it differs.
    """
    try:
        if plain["format"] != FORMAT:
            raise ValueError(f"its format is {shown(plain['format'])}; needed: {FORMAT}")
        dynamic_shapes = plain.get("dynamic_shapes", False)
        graph = kind(plain["compute_type"], dynamic_shapes=dynamic_shapes)
        _add_tensors(graph, plain["tensors"])
        for node in plain["nodes"]:
            attributes = {name: _number(value) for name, value in node["attributes"].items()}
            reads = _tensor_numbers(graph, node["reads"])
            writes = _tensor_numbers(graph, node["writes"])
            graph._add_node(node["kind"], attributes, reads, writes)
    except _MISTAKES as error:
        detail: object = error
        if isinstance(error, KeyError):
            detail = f"it has no {shown(error.args[0])}"
        raise ArgumentError(f"{shown(plain)} is no graph: {detail}") from error
    return graph


def _plain_tensor(record: TensorRecord) -> dict[str, Any]:
    plain = asdict(record) | {
        "shape": list(record.shape),
        "strides": list(record.strides),
        "dtype": type_name(record.dtype),
        "value": _plain(record.value),
    }
    # Without array axes the text must stay that of older versions: it is a key of caches.
    axes = plain.pop("array_axes")
    if axes is not None:
        plain["array_axes"] = [list(numbers) for numbers in axes]
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _number(value: Any) -> Any:
    """Return an infinity or NaN from its text; return any other value as it is."""
    if isinstance(value, str) and value in _NOT_FINITE:
        return float(value)
    return value


def _add_tensors(graph: Any, tensors: Sequence[Mapping[str, Any]]) -> None:
    """Add tensors in their order, so that each has the number by which nodes refer to it."""
    for tensor in tensors:
        name, value, view_of = (tensor[key] for key in ("name", "value", "view_of"))
        shape, strides, dtype = (tensor[key] for key in ("shape", "strides", "dtype"))
        if view_of is not None:
            graph.view(_tensor(graph, view_of), shape, strides)
        elif value is not None:
            scalar = graph.scalar(name, real_number(_number(value), "value"), dtype)
            if shape:  # a shape of ones, of the rank that an operation needs
                ones = (1,) * len(integers(shape, "shape", MAX_RANK))
                record = replace(scalar.record, shape=ones, strides=ones)
                graph.tensors[scalar.number] = record
        elif name:
            array = graph.input(name, shape, dtype, strides)
            if "array_axes" in tensor:
                array_shape, array_strides = map(tuple, tensor["array_axes"])
                graph.tensors[array.number] = array.record.with_array(array_shape, array_strides)
        else:
            graph.virtual(shape, parse_any_dtype(dtype), strides)


def _tensor(graph: Any, number: Any) -> Any:
    return graph.tensor(integer(number, "view_of", 0, len(graph.tensors) - 1))


def _tensor_numbers(
    graph: Any, numbers_by_name: Mapping[str, Sequence[Any]]
) -> dict[str, tuple[int, ...]]:
    """Return the numbers of a node's tensors by attribute, checked."""
    last = len(graph.tensors) - 1
    return {
        name: tuple(integer(number, name, 0, last) for number in numbers)
        for name, numbers in numbers_by_name.items()
    }
