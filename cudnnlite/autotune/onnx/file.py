"""`OnnxFile`: an ONNX model, read within bounds, and the shapes of its values; no weights but those that shapes depend on."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from math import prod
from pathlib import Path
from typing import Any

from cudnnlite.arguments import by_system, check_file, integer, path_of, sequence, shown
from cudnnlite.errors import ArgumentError, MissingPackageError

# Shape inference reads the values of shapes, axes and scales; of what is larger it needs no more than the shape.
_SMALL = 65536
_MOST_BYTES = 2**31 - 1  # protobuf reads no more
# Functions that call others twice, and so on, double with each: 1.4 KB were 8 million nodes, and took 137 s.
_MOST_NODES = 1 << 16
_DEEPEST = 100  # of functions in each other; onnx refuses more, and what calls itself has no end
_BATCH = re.compile(r"batch|^(n|b|bs)$", re.IGNORECASE)


class OnnxFile:
    """A model that was read, with the shapes of its values; ArgumentError names the file and the cause where that fails.

    `where` is what messages call it.  `proto` is a copy: functions inlined where that is possible (`why_left` says why some may
    not be), large initializers without their values.  `unread` are the tensors whose external data shapes may depend on and
    which could not be read, with the reasons.
    """

    def __init__(self, model: Any, batch: Any = None, shapes: Any = None) -> None:
        onnx = import_onnx()
        self.where, folder, self.proto = _read(onnx, model)
        is_whole, opsets = f"{self.where} is not a whole ONNX model", self.proto.opset_import
        require(self.proto.HasField("graph"), f"{self.where} is not an ONNX model: it has no graph")
        require(opsets, f"{is_whole}: it does not say which operator set it uses")
        require(_is_text(self.proto), f"{is_whole}: a name in it is not UTF-8")
        _check_size(self.proto, self.where)
        self.unread: dict[str, str] = {}
        self._drop_weights(onnx, self.proto.graph, folder)
        why = "it uses other operator sets than the model"
        try:
            if self.proto.functions:
                self.proto = onnx.inliner.inline_local_functions(self.proto)
        except Exception as error:  # onnx's own kinds have no common base
            why = str(error)
        self.why_left = f"a function of the model that cannot be inlined: {why}"
        sizes = self._sizes(onnx, batch, shapes)
        try:
            self._infer_shapes(onnx.shape_inference.infer_shapes, sizes)
        except Exception as error:  # onnx's own kinds have no common base
            raise ArgumentError(f"{self.where} is not a valid ONNX model: {error}") from error

    def _drop_weights(self, onnx: Any, graph: Any, folder: Path | None) -> None:
        """Drop the values of large initializers; read, of those that lie in other files, what shapes may depend on."""
        types, external = onnx.TensorProto, onnx.external_data_helper
        scales = {name for node in graph.node if node.op_type in ("Resize", "Upsample") for name in node.input}

        def without_values(tensor: Any, dims: Any) -> Any:
            return types(name=tensor.name, data_type=tensor.data_type, dims=dims, data_location=types.EXTERNAL)

        for tensor in graph.initializer:
            is_shape = tensor.data_type in (types.INT64, types.INT32) or tensor.name in scales
            if prod(tensor.dims) > _SMALL:
                tensor.CopyFrom(without_values(tensor, tensor.dims))
            elif is_shape and external.uses_external_data(tensor):
                try:
                    require(folder, "only the path of a model says where its external data is")
                    external.load_external_data_for_tensor(tensor, str(folder))
                except Exception as error:  # onnx's own kinds have no common base
                    self.unread[tensor.name] = str(error)
        # Of what is made of sparse ones inference finds no shape.
        graph.initializer.extend(without_values(sparse.values, sparse.dims) for sparse in graph.sparse_initializer)
        del graph.sparse_initializer[:]

    def _infer_shapes(self, infer: Any, sizes: Mapping[str, int]) -> None:
        """Let onnx find the shapes of all values, where the symbolic axes of inputs have sizes."""
        declared = []
        for graph in graphs(self.proto.graph):
            for dim in (dim for info in (*graph.input, *graph.value_info) for dim in info.type.tensor_type.shape.dim):
                if dim.dim_param in sizes:
                    dim.dim_value = sizes[dim.dim_param]
            # What a model says of values inside is often older than its inputs, and inference would prefer it to what it finds.
            declared.append(list(graph.value_info))
            del graph.value_info[:]
            for info in graph.output:
                if info.type.HasField("tensor_type"):
                    info.type.tensor_type.ClearField("shape")
        self.proto = infer(self.proto, data_prop=True)
        # Of what inference knows nothing, the results of unknown operations for instance, the model is believed.
        for graph, said in zip(graphs(self.proto.graph), declared, strict=True):
            known = {info.name for info in (*graph.value_info, *graph.output) if shape_of(info) is not None}
            graph.value_info.extend(info for info in said if info.name not in known)
        if any(declared):
            self.proto = infer(self.proto, data_prop=True)

    def _sizes(self, onnx: Any, batch: Any, shapes: Any) -> dict[str, int]:
        """Return the sizes that were asked for by the names of symbolic axes; axes of inputs that have none get names."""
        constants = {tensor.name for tensor in self.proto.graph.initializer}
        inputs = {info.name: info for info in self.proto.graph.input if info.name not in constants}
        axes = []  # of inputs, each with its place
        for number, info in enumerate(inputs.values()):
            for place, dim in enumerate(info.type.tensor_type.shape.dim):
                if dim.dim_value <= 0:
                    dim.dim_param = dim.dim_param or f"unk__input_{number}_axis_{place}"
                axes.append((place, dim))
        known = ", ".join(f"{name} {show(shape_of(info))}" for name, info in inputs.items()) or "none"
        is_mapping = isinstance(shapes, (Mapping, type(None)))
        require(is_mapping, f"shapes={shown(shapes)} is not a mapping of input names to shapes")
        wanted = []  # axes, the sizes that they shall have, and who says so
        for name, given in (shapes or {}).items():
            said = f"shapes[{shown(name)}]"
            shape = tuple(integer(size, said) for size in sequence(given, said, "a sequence of integers"))
            require(name in inputs, f"{said}: {self.where} has no such input; its inputs: {known}")
            said, kind, before = f"{said}={shape}", inputs[name].type, shape_of(inputs[name])
            require(kind.HasField("tensor_type"), f"{said}: that input is not a tensor")
            if before is None:
                kind.tensor_type.shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=size) for size in shape)
            is_like = f"{said}: the model's input is {show(before)}"
            require(before is None or len(before) == len(shape), is_like)
            for axis, (dim, size) in enumerate(zip(kind.tensor_type.shape.dim, shape, strict=True)):
                require(dim.dim_param or dim.dim_value == size, f"{is_like}, of fixed size on axis {axis}")
                wanted.append((dim, size, said))
        if batch is not None:
            size, said = integer(batch, "batch"), f"batch={batch}"
            # Named so, or else every first one that is symbolic; a model may also fix it.
            batches = [dim for _, dim in axes if _BATCH.search(dim.dim_param)]
            batches = batches or [dim for place, dim in axes if place == 0 and (dim.dim_param or dim.dim_value == size)]
            require(batches, f"{said}: no input of {self.where} has a symbolic batch; its inputs: {known}")
            wanted += [(dim, size, said) for dim in batches]
        sizes: dict[str, int] = {}
        for dim, size, said in wanted:
            other = sizes.setdefault(dim.dim_param, size) if dim.dim_param else size
            require(other == size, f"{said}: the axis {dim.dim_param!r} would be of size {other} too")
        return sizes


def shape_of(value: Any) -> tuple[int | str, ...] | None:
    """Return a tensor's or a value's shape: names for symbolic sizes, empty if they mean nothing; None without a rank."""
    if hasattr(value, "dims"):
        return tuple(value.dims)
    if not value.type.tensor_type.HasField("shape"):
        return None
    # Some exporters write 0 or -1 for what is symbolic; unk__ is what inference, or we, called what has no name.
    names = [(dim.dim_value, dim.dim_param) for dim in value.type.tensor_type.shape.dim]
    return tuple(size if size > 0 else "" if name.startswith("unk__") else name for size, name in names)


def show(shape: tuple[int | str, ...] | None) -> str:
    """Return a shape as messages have it."""
    if shape is None:
        return "unknown"
    return f"({', '.join(str(size) or '?' for size in shape)}{',' if len(shape) == 1 else ''})"


def import_onnx() -> Any:
    """Return the package onnx."""
    try:
        import onnx.inliner
    except ImportError as error:
        why = f"reading an ONNX model needs the package onnx ({error}): pip install 'cudnnlite[onnx]'"
        raise MissingPackageError(why) from error
    return onnx


def require(holds: Any, why: str) -> None:
    """Raise an ArgumentError unless something holds."""
    if not holds:
        raise ArgumentError(why)


def graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and all graphs that its nodes hold, at any depth."""
    found = [graph]
    for each in found:  # which grows meanwhile
        yield each
        found += [inner for node in each.node for _, inner in subgraphs(node)]


def subgraphs(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield the graphs that a node holds, each with the attribute's name: the branches of If, the body of Loop and Scan."""
    for attribute in node.attribute:
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield attribute.name, inner


def _read(onnx: Any, model: Any) -> tuple[str, Path | None, Any]:
    """Return what messages call it, its folder and the whole model."""
    if isinstance(model, onnx.ModelProto):
        return f"model {model.graph.name!r}", None, deepcopy(model)
    is_data = isinstance(model, (bytes, bytearray, memoryview))
    is_known = is_data or isinstance(model, (str, os.PathLike))
    require(is_known, f"model of type {type(model).__name__}; allowed: a path, bytes, an onnx.ModelProto")
    path = Path() if is_data else path_of(model, "model")
    where = f"model of {len(model)} bytes" if is_data else f"model={str(path)!r}"
    try:
        if is_data:
            return where, None, onnx.load_model_from_string(bytes(model))
        check_file(path, _MOST_BYTES, where)
        return where, path.parent, onnx.load_model(path, load_external_data=False)
    except ArgumentError:
        raise
    except OSError as error:
        raise ArgumentError(f"{where} cannot be read: {by_system(error).strerror}") from error
    except Exception as error:  # protobuf's, or that of the format that the file's ending names
        raise ArgumentError(f"{where} is not an ONNX model, or not all of one: {error}") from error


def _is_text(message: Any) -> bool:
    """Tell whether every string is one, which protobuf leaves to whoever reads it."""
    messages = [message]
    while messages:
        for field, found in messages.pop().ListFields():
            values = found if hasattr(found, "append") else [found]
            if field.type == field.TYPE_STRING and not all(isinstance(value, str) for value in values):
                return False
            messages += values if field.type == field.TYPE_MESSAGE else []
    return True


def _check_size(model: Any, where: str) -> None:
    """Refuse a model that with its functions inlined is too large, before that is tried."""
    bodies = {(function.domain, function.name): _operations(function) for function in model.functions}
    found = _operations(model.graph)
    for _ in range(_DEEPEST + 1):
        require(found.total() <= _MOST_NODES, f"{where} has more than {_MOST_NODES} nodes, its functions inlined")
        called = {operation: found.pop(operation) for operation in bodies.keys() & found.keys()}
        if not called:
            return
        for operation, times in called.items():
            found.update({inner: times * number for inner, number in bodies[operation].items()})
    raise ArgumentError(f"{where} has functions in each other to a depth of more than {_DEEPEST}")


def _operations(holder: Any) -> Counter[tuple[str, str]]:
    """Count the nodes of a graph or a function by their operations."""
    return Counter((node.domain, node.op_type) for graph in graphs(holder) for node in graph.node)
