"""`lower`: a graph as cuDNN's backend descriptors."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from cudnnlite._raw.attributes import ATTRIBUTES
from cudnnlite.enums import DataType
from cudnnlite.graph.backend_descriptor import BackendDescriptor
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.node_attributes import CONFIGURATIONS, attributes_of, parse_any_dtype
from cudnnlite.graph.operation_graph import ALIGNMENT, Graph
from cudnnlite.graph.records import Node, TensorRecord

_SCALARS = ("alpha", "beta", "alpha1", "alpha2")


def lower(data: GraphData, handle: Any, stack: ExitStack) -> Graph:
    """Return the graph as descriptors, final.

    Parameters
    ----------
    data : GraphData
        What is computed.
    handle : Handle
        The device that it is for.
    stack : ExitStack
        Owns the descriptors.

    Raises
    ------
    NotSupportedError, BadParamError
        cuDNN has no such graphs.
    """
    native = Graph(handle, stack)
    lowering = _Lowering(data, native)
    lowering.add_operands()
    for node in data.nodes:
        lowering.add(node)
    return native.finish()


def _c_values(node: Node) -> dict[str, Any]:
    """Return the attributes of an operation as a `BackendDescriptor` takes them."""
    types = attributes_of(node.kind)
    return {
        name: parse_any_dtype(value) if types[name][1] == "DATA_TYPE" else value
        for name, value in node.attributes
    }


def _scalar_type(node: Node) -> str:
    """Return the type in which cuDNN takes the scalars of an operation."""
    attributes = dict(node.attributes)
    compute_type = attributes.get("comp_type", attributes.get("math_prec"))
    return "DOUBLE" if compute_type == "float64" else "FLOAT"


class _Lowering:
    """One descriptor for each view of a tensor; those in memory have the number of their name."""

    def __init__(self, data: GraphData, native: Graph) -> None:
        self._data = data
        self._native = native
        self._descriptors: dict[Any, BackendDescriptor] = {}
        self._last_number = 0

    def add_operands(self) -> None:
        """Make the descriptors of tensors in memory first, in the order of the graph."""
        numbers = {
            number
            for node in self._data.nodes
            for number in (*node.read_numbers, *node.written_numbers)
        }
        for number in sorted(numbers):
            record = self._data.tensors[number]
            if record.name and record.value is None:
                self._tensor(record, number)

    def add(self, node: Node) -> None:
        """Make the descriptors of an operation."""
        attributes = _c_values(node)
        operation_kind = f"OPERATION_{node.kind}"
        values: dict[str, Any] = {}
        for name, numbers in (*node.reads, *node.writes):
            tensors = [self._tensor(self._data.tensors[number], number) for number in numbers]
            takes_several = ATTRIBUTES[operation_kind][name][2]
            values[name] = tensors if takes_several else tensors[0]
        if node.kind in CONFIGURATIONS:
            kind, attribute = CONFIGURATIONS[node.kind]
            configuration = {
                name: value for name, value in attributes.items() if name in ATTRIBUTES[kind]
            }
            values[attribute] = self._native.make(kind, **configuration)
            attributes = {
                name: value for name, value in attributes.items() if name not in configuration
            }
        scalars = {name: value for name, value in attributes.items() if name in _SCALARS}
        others = {name: value for name, value in attributes.items() if name not in _SCALARS}
        self._native.add(operation_kind, values | others, scalars, _scalar_type(node))

    def _tensor(self, record: TensorRecord, number: int) -> BackendDescriptor:
        key = (record.name, record.shape, record.strides) if record.name else number
        if key not in self._descriptors:
            self._descriptors[key] = self._make(record)
        return self._descriptors[key]

    def _make(self, record: TensorRecord) -> BackendDescriptor:
        self._last_number += 1
        if record.name:
            self._native.uids[self._name_of_view(record.name)] = self._last_number
        is_number = record.value is not None
        return self._native.make(
            "TENSOR",
            data_type=DataType(record.dtype),
            dimensions=record.shape,
            strides=record.strides,
            unique_id=self._last_number,
            byte_alignment=ALIGNMENT,
            is_virtual=not record.name,
            **({"is_by_value": True} if is_number else {}),
        )

    def _name_of_view(self, name: str) -> str:
        """Return the name of a tensor, or of another view of it: cuDNN wants a number for each."""
        native = self._native
        if name not in native.uids:
            return name
        view = f"{name} {len(native.other_views)}"
        native.other_views[view] = name
        return view
