"""`lower`: makes the descriptors of cuDNN's backend for a graph."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from cudnnlite._raw.attributes import ATTRIBUTES
from cudnnlite.enums import DataType
from cudnnlite.graph.backend_descriptor import BackendDescriptor
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.node_attributes import CONFIGURATIONS, attributes_of, parse_any_dtype
from cudnnlite.graph.operation_graph import ALIGNMENT, OperationGraph
from cudnnlite.graph.records import Node, Shape, TensorRecord, packed_strides
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layout import CHANNELS_LAST
from cudnnlite.specs.layout import packed_strides as strides_of_layout

_KINDS_OF_IMAGES = ("CONVOLUTION", "POINTWISE")
_RANKS = (4, 5)  # of images
_SCALARS = ("alpha", "beta", "alpha1", "alpha2")


def lower(
    data: GraphData,
    handle: Any,
    stack: ExitStack,
    device_properties: BackendDescriptor | None = None,
) -> OperationGraph:
    """Return a graph as finalized descriptors of cuDNN's backend.

    Parameters
    ----------
    data : GraphData
        The graph to lower.
    handle : Handle or CudnnApi
        The handle whose device runs the graph; a function table if `device_properties` describe it.
    stack : ExitStack
        Owns the descriptors.
    device_properties : BackendDescriptor, optional
        The final "DEVICEPROP" of a device that has no handle.

    Raises
    ------
    NotSupportedError, BadParamError
        cuDNN has no such graph.
    """
    native = OperationGraph(handle, data, stack, device_properties)
    lowering = _Lowering(data, native)
    lowering.add_operands()
    for node in data.nodes:
        lowering.add(node)
    return native.finish()


def _c_values(node: Node) -> dict[str, Any]:
    """Return the attributes of an operation as a `BackendDescriptor` takes them."""
    known_attributes = attributes_of(node.kind)
    values = {}
    for name, value in node.attributes:
        _, attribute_type, _ = known_attributes[name]
        values[name] = value
        if attribute_type == "DATA_TYPE":
            values[name] = parse_any_dtype(value)
    return values


def _scalar_type(node: Node) -> str:
    """Return the type in which cuDNN takes the scalars of an operation."""
    attributes = dict(node.attributes)
    compute_type = attributes.get("comp_type", attributes.get("math_prec"))
    return "DOUBLE" if compute_type == "float64" else "FLOAT"


def has_channels_last_results(data: GraphData) -> bool:
    """Whether a chain of operations, alone or behind convolutions, writes channels last."""
    kinds = {node.kind for node in data.nodes}
    is_chain = "POINTWISE" in kinds
    if not is_chain or not all(kind.startswith(_KINDS_OF_IMAGES) for kind in kinds):
        return False
    images = [record for record in data.outputs.values() if len(record.shape) in _RANKS]
    return any(record.spec.is_channels_last for record in images) or (
        bool(images) and _may_have_channels_last(data)
    )


def described_strides(record: TensorRecord, *, all_fit: bool) -> Shape:
    """Return the strides that cuDNN is told of an image in a graph with channels last.

    A virtual one has them, too: with channels first there, the heuristics of cuDNN 9.19 name no
    engine where an operand is an image, such as a residual behind which is ReLU (H200).  Strides
    that are given stay.  In memory the strides of axes of size 1 say nothing, and cuDNN took images
    of one pixel for others: if all images may have channels last (`all_fit`), that is told.
    """
    rank = len(record.shape)
    if rank not in _RANKS:
        return record.strides
    is_free = record.strides == packed_strides(record.shape)
    if record.name:
        is_free = all_fit and record.value is None
    return strides_of_layout(record.shape, CHANNELS_LAST[rank]) if is_free else record.strides


def _may_have_channels_last(data: GraphData) -> bool:
    """Whether all images in memory, filters among them, are packed with channels last."""
    records = (*data.inputs.values(), *data.outputs.values())
    return all(
        TensorSpec(record.shape, record.dtype, strides=record.strides).fits(
            CHANNELS_LAST[len(record.shape)]
        )
        for record in records
        if len(record.shape) in _RANKS
    )


class _Lowering:
    """Adds operations to a native graph, with one tensor descriptor for each view of a tensor.

    Each descriptor has a unique id of cuDNN.  `OperationGraph.uids` maps the names of the views in memory to
    their ids.
    """

    def __init__(self, data: GraphData, native: OperationGraph) -> None:
        self._data = data
        self._native = native
        self._descriptors: dict[Any, BackendDescriptor] = {}
        self._last_uid = 0
        self._is_channels_last = has_channels_last_results(data)
        self._all_fit = self._is_channels_last and _may_have_channels_last(data)

    def add_operands(self) -> None:
        """Make the descriptors of tensors in memory first, in the order of the graph."""
        indices = {
            index
            for node in self._data.nodes
            for index in (*node.read_numbers, *node.written_numbers)
        }
        for index in sorted(indices):
            record = self._data.tensors[index]
            if record.name and record.value is None:
                self._tensor_descriptor(index)

    def add(self, node: Node) -> None:
        """Make the descriptors of an operation."""
        attributes = _c_values(node)
        operation_kind = f"OPERATION_{node.kind}"
        descriptors: dict[str, Any] = {}
        for attribute_name, tensor_indices in (*node.reads, *node.writes):
            tensors = [self._tensor_descriptor(index) for index in tensor_indices]
            _, _, takes_several = ATTRIBUTES[operation_kind][attribute_name]
            descriptors[attribute_name] = tensors if takes_several else tensors[0]
        if node.kind in CONFIGURATIONS:
            # cuDNN takes some attributes of this operation in a descriptor of their own.
            configuration_kind, configuration_attribute = CONFIGURATIONS[node.kind]
            configuration = {}
            for name in list(attributes):
                if name in ATTRIBUTES[configuration_kind]:
                    configuration[name] = attributes.pop(name)
            descriptors[configuration_attribute] = self._native.make(
                configuration_kind, **configuration
            )
        scalars = {name: attributes.pop(name) for name in _SCALARS if name in attributes}
        self._native.add(operation_kind, descriptors | attributes, scalars, _scalar_type(node))

    def _tensor_descriptor(self, tensor_index: int) -> BackendDescriptor:
        """Return the descriptor of a tensor of the graph; equal views in memory share one."""
        record = self._data.tensors[tensor_index]
        key: Any = tensor_index
        if record.name:
            key = (record.name, record.shape, record.strides)
        if key not in self._descriptors:
            self._descriptors[key] = self._make(record)
        return self._descriptors[key]

    def _make(self, record: TensorRecord) -> BackendDescriptor:
        """Make a tensor descriptor with the next unique id."""
        self._last_uid += 1
        attributes: dict[str, Any] = {
            "data_type": DataType(record.dtype),
            "dimensions": record.shape,
            "strides": self._strides(record),
            "unique_id": self._last_uid,
            "byte_alignment": ALIGNMENT,
            "is_virtual": not record.name,
        }
        if record.value is not None:
            attributes["is_by_value"] = True
        if record.name:
            view_name = self._register_view(record.name)
            self._native.uids[view_name] = self._last_uid
        return self._native.make("TENSOR", **attributes)

    def _strides(self, record: TensorRecord) -> Shape:
        if not self._is_channels_last:
            return record.strides
        return described_strides(record, all_fit=self._all_fit)

    def _register_view(self, name: str) -> str:
        """Return a unique name for a view of a tensor in memory.

        The first view has the name of the tensor.  Each other one is recorded in `other_views`,
        because a call has to pass the tensor's address for the unique id of every view.
        """
        native = self._native
        if name not in native.uids:
            return name
        # The number of other views grows with each of them, so the name is unique.
        view_name = f"{name} {len(native.other_views)}"
        native.other_views[view_name] = name
        return view_name
