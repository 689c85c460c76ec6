"""Shapes in an ONNX model: symbolic ones replaced, the others inferred."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterable, Mapping
from operator import index
from typing import Any, NamedTuple

from cudnnlite.autotune.onnx.file import OnnxFile, graphs, import_onnx, subgraphs
from cudnnlite.errors import ArgumentError

_BATCH = re.compile(r"batch|^(n|b|bs)$", re.IGNORECASE)


class TensorType(NamedTuple):
    """What is known of a value.

    Attributes
    ----------
    elem_type : int
        A member of onnx.TensorProto.DataType; 0 where it is not known.
    shape : tuple or None
        Sizes; names where they are symbolic, empty where nothing is known; None where not even the rank is.
    """

    elem_type: int = 0
    shape: tuple[int | str, ...] | None = None

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The shape, where all of it is known."""
        if self.shape is None:
            return None
        sizes = tuple(size for size in self.shape if isinstance(size, int))
        return sizes if len(sizes) == len(self.shape) else None

    def __str__(self) -> str:
        if self.shape is None:
            return "unknown"
        return f"({', '.join(str(size) or '?' for size in self.shape)}{',' if len(self.shape) == 1 else ''})"


class Scope(NamedTuple):
    """What the nodes of a graph can refer to, its own names before those of the graphs around it.

    Attributes
    ----------
    types : ChainMap of str to TensorType
        Every value.
    constants : ChainMap of str to onnx.TensorProto
        Those whose contents stand in the model.
    """

    types: ChainMap[str, TensorType]
    constants: ChainMap[str, Any]

    def inside(self, graph: Any) -> Scope:
        """Return the scope of a graph that a node of this one holds."""
        inner = Scope(self.types.new_child(), self.constants.new_child())
        for tensor in graph.initializer:
            inner.types[tensor.name] = TensorType(tensor.data_type, tuple(tensor.dims))
            inner.constants[tensor.name] = tensor
        for info in (*graph.input, *graph.value_info, *graph.output):
            found = _tensor_type(info)
            if found != TensorType():
                inner.types[info.name] = found
        for node in graph.node:
            if node.op_type == "Constant":
                inner.constants.update((node.output[0], item.t) for item in node.attribute if item.name == "value")
        return inner


def infer_shapes(file: OnnxFile, batch: Any = None, shapes: Any = None) -> Any:
    """Return the model with the shapes of its values.

    Parameters
    ----------
    file : OnnxFile
        The model.
    batch, shapes
        As in `problems_from_onnx`.

    Raises
    ------
    ArgumentError
        `batch` or `shapes` does not go with the inputs, or the model is not valid.
    """
    onnx = import_onnx()
    model = onnx.ModelProto()
    model.CopyFrom(file.proto)
    inputs = {info.name: info for info in model.graph.input if info.name in file.inputs}
    sizes = _replace_in_inputs(file.where, inputs, batch, shapes)
    declared = []
    for graph in graphs(model.graph):
        for info in (*graph.input, *graph.value_info):
            _replace_names(info, sizes)
        # What a model says of values inside is often older than its inputs, and inference would prefer it to what it finds.
        declared.append(list(graph.value_info))
        del graph.value_info[:]
        for info in graph.output:
            info.type.tensor_type.ClearField("shape") if info.type.HasField("tensor_type") else None
    inferred = _infer(onnx, file.where, model)
    # Of what inference knows nothing, the results of unknown operations for instance, the model is believed.
    believed = False
    for graph, found, said in zip(graphs(model.graph), graphs(inferred.graph), declared, strict=True):
        known = {info.name for info in (*found.value_info, *found.output) if _tensor_type(info).shape is not None}
        graph.value_info.extend(info for info in said if info.name not in known)
        believed = believed or len(graph.value_info) > 0
    return _infer(onnx, file.where, model) if believed else inferred


def ancestors(model: Any, name: str) -> set[str]:
    """Return the names of all values that a value is computed from, itself among them."""
    producers = {output: node for graph in graphs(model.graph) for node in graph.node for output in node.output}
    found, waiting = {name}, [name]
    while waiting:
        node = producers.get(waiting.pop())
        if node is not None:
            inside = [other for _, body in subgraphs(node) for graph in graphs(body) for other in graph.node]
            read = {name for one in (node, *inside) for name in one.input} - found
            found |= read
            waiting += read
    return found


def _infer(onnx: Any, where: str, model: Any) -> Any:
    try:
        return onnx.shape_inference.infer_shapes(model, check_type=False, strict_mode=False, data_prop=True)
    except Exception as error:  # onnx's own kinds have no common base
        raise ArgumentError(f"{where} is not a valid ONNX model: {error}") from error


def _tensor_type(info: Any) -> TensorType:
    kind = info.type.tensor_type
    if not info.type.HasField("tensor_type"):
        return TensorType()
    if not kind.HasField("shape"):
        return TensorType(kind.elem_type)
    return TensorType(kind.elem_type, tuple(_size(dim) for dim in kind.shape.dim))


def _size(dim: Any) -> int | str:
    """Return an axis' size, its name, or nothing: what inference could not name has none that means anything."""
    if dim.dim_value > 0:  # some exporters write 0 or -1 for what is symbolic
        return int(dim.dim_value)
    return "" if dim.dim_param.startswith("unk__") else str(dim.dim_param)


def _replace_in_inputs(where: str, inputs: dict[str, Any], batch: Any, shapes: Any) -> dict[str, int]:
    """Write the sizes that were asked for into the inputs; return those of the symbolic axes by name."""
    known = ", ".join(f"{name} {_tensor_type(info)}" for name, info in inputs.items()) or "none"
    first = [(_tensor_type(info).shape or ("",))[0] for info in inputs.values()]
    batch_axes = _batch_axes(inputs.values())
    sizes: dict[str, int] = {}
    for name, shape in _parse_shapes(shapes).items():
        if name not in inputs:
            raise ArgumentError(f"shapes[{name!r}]: {where} has no such input; its inputs: {known}")
        _replace_shape(inputs[name], shape, sizes)
    if batch is not None:
        number = _parse_size(batch, "batch")
        if not batch_axes and number not in first:
            raise ArgumentError(f"batch={number}: no input of {where} has a symbolic batch; its inputs: {known}")
        for dim, name in batch_axes:
            _replace_axis(dim, name, number, sizes, f"batch={number}")
    return sizes


def _batch_axes(inputs: Iterable[Any]) -> list[tuple[Any, str]]:
    """Return the axes that stand for the batch, with their names: those named so, or else every first one that is symbolic."""
    axes = [axis for info in inputs for axis in enumerate(info.type.tensor_type.shape.dim) if axis[1].dim_value <= 0]
    named = [(dim, dim.dim_param) for _, dim in axes if _BATCH.search(dim.dim_param)]
    return named or [(dim, dim.dim_param) for position, dim in axes if position == 0]


def _replace_shape(info: Any, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    before, argument = _tensor_type(info), f"shapes[{info.name!r}]={shape}"
    if before.shape is None:
        if not info.type.HasField("tensor_type"):
            raise ArgumentError(f"{argument}: that input is not a tensor")
        info.type.tensor_type.shape.SetInParent()
        for size in shape:
            info.type.tensor_type.shape.dim.add().dim_value = size
        return
    if len(before.shape) != len(shape):
        raise ArgumentError(f"{argument}: the model's input is {before}")
    for axis, (dim, size) in enumerate(zip(info.type.tensor_type.shape.dim, shape, strict=True)):
        if dim.dim_value > 0 and dim.dim_value != size:
            raise ArgumentError(f"{argument}: the model's input is {before}, of fixed size on axis {axis}")
        _replace_axis(dim, dim.dim_param, size, sizes, argument)


def _replace_axis(dim: Any, name: str, size: int, sizes: dict[str, int], argument: str) -> None:
    before = sizes.setdefault(name, size) if name else dim.dim_value
    if before > 0 and before != size:
        raise ArgumentError(f"{argument}: the axis {name!r} would be of size {before} too")
    dim.dim_value = size


def _replace_names(info: Any, sizes: Mapping[str, int]) -> None:
    for dim in info.type.tensor_type.shape.dim if info.type.HasField("tensor_type") else ():
        if dim.dim_param in sizes:
            dim.dim_value = sizes[dim.dim_param]


def _parse_shapes(shapes: Any) -> dict[str, tuple[int, ...]]:
    if shapes is None:
        return {}
    if not isinstance(shapes, Mapping):
        raise ArgumentError(f"shapes={shapes!r} is not a mapping of input names to shapes")
    found = {}
    for name, shape in shapes.items():
        if isinstance(shape, str) or not isinstance(shape, Iterable):
            raise ArgumentError(f"shapes[{name!r}]={shape!r} is not a sequence of integers")
        found[name] = tuple(_parse_size(size, f"shapes[{name!r}]") for size in shape)
    return found


def _parse_size(value: Any, argument: str) -> int:
    try:
        size = index(value)
    except TypeError:
        raise ArgumentError(f"{argument}={value!r} is not an integer") from None
    if isinstance(value, bool) or size < 1:
        raise ArgumentError(f"{argument}={value!r}; allowed: an integer from 1")
    return size
