"""`OnnxFile`: an ONNX model without the weights that shapes do not depend on, from a file, bytes or a ModelProto."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from cudnnlite.arguments import check_file, path_of
from cudnnlite.errors import ArgumentError, MissingPackageError

# Shape inference reads the values of shapes, axes and scales; of what is larger it needs no more than the shape.
_SMALL = 65536
_MOST_BYTES = 2**31 - 1  # protobuf reads no more
# Functions that call others twice, and so on, double with each: 1.4 KB were 8 million nodes, and took 137 s.
_MOST_NODES = 1 << 16


class OnnxFile:
    """A model that was read; ArgumentError names the file and the cause where that fails.

    `where` is what messages call it.  `proto` is a copy: functions inlined where that is possible (`why_not_inlined` says why
    some may be left), large initializers without their values.  `unread` are the tensors whose external data shapes may depend
    on and which could not be read, with the reasons.
    """

    def __init__(self, model: Any) -> None:
        onnx = import_onnx()
        self.where, folder, self.proto = _read(onnx, model)
        if not self.proto.HasField("graph"):
            raise ArgumentError(f"{self.where} is not an ONNX model: it has no graph")
        if not self.proto.opset_import:
            raise ArgumentError(f"{self.where} is not a whole ONNX model: it does not say which operator set it uses")
        if not _is_text(self.proto):
            raise ArgumentError(f"{self.where} is not a whole ONNX model: a name in it is not UTF-8")
        if _expanded(self.proto) > _MOST_NODES:  # onnx goes through all of them
            raise ArgumentError(f"{self.where} has more than {_MOST_NODES} nodes, its functions inlined")
        self.unread: dict[str, str] = {}
        self._drop_weights(onnx, self.proto.graph, folder)
        self.why_not_inlined = "it uses other operator sets than the model"
        try:
            if self.proto.functions:
                self.proto = onnx.inliner.inline_local_functions(self.proto)
        except Exception as error:  # onnx's own kinds have no common base
            self.why_not_inlined = str(error)

    def _drop_weights(self, onnx: Any, graph: Any, folder: Path | None) -> None:
        """Leave the values of small initializers, read those that shapes may need, and drop all others."""
        types, outside = onnx.TensorProto, onnx.TensorProto.EXTERNAL
        scales = {name for node in graph.node if node.op_type in ("Resize", "Upsample") for name in node.input}
        for tensor in graph.initializer:
            is_shape = tensor.data_type in (types.INT64, types.INT32) or tensor.name in scales
            is_outside = onnx.external_data_helper.uses_external_data(tensor)
            if prod(tensor.dims) > _SMALL or (is_outside and not is_shape):
                of_type = types(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, data_location=outside)
                tensor.CopyFrom(of_type)
            elif is_outside and folder is None:
                self.unread[tensor.name] = "only the path of a model says where its external data is"
            elif is_outside:
                try:
                    onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
                except Exception as error:  # onnx's own kinds have no common base
                    self.unread[tensor.name] = str(error)
        for sparse in graph.sparse_initializer:
            name, kind = sparse.values.name, sparse.values.data_type
            graph.initializer.add(name=name, data_type=kind, dims=sparse.dims, data_location=outside)
        del graph.sparse_initializer[:]


def _expanded(model: Any) -> int:
    """Return how many nodes a model has with its functions inlined, counted no further than to one more than the most."""
    known: dict[tuple[str, str], int] = {}
    functions = {(function.domain, function.name): function for function in model.functions}

    def count(holder: Any) -> int:
        total = 0
        for node in (node for graph in graphs(holder) for node in graph.node):
            called = (node.domain, node.op_type)
            if called in functions and called not in known:
                known[called] = _MOST_NODES + 1  # while it is counted: what calls itself has no end
                known[called] = count(functions[called])
            total = min(total + known.get(called, 1), _MOST_NODES + 1)
        return total

    return count(model.graph)


def import_onnx() -> Any:
    """Return the package onnx."""
    try:
        import onnx.external_data_helper
        import onnx.inliner
        import onnx.shape_inference
    except ImportError as error:
        raise MissingPackageError(
            f"reading an ONNX model needs the package onnx ({error}): pip install 'cudnnlite[onnx]'"
        ) from error
    return onnx


def graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and all graphs that its nodes hold, at any depth."""
    yield graph
    for node in graph.node:
        for _, inner in subgraphs(node):
            yield from graphs(inner)


def subgraphs(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield the graphs that a node holds, each with the attribute's name: the branches of If, the body of Loop and Scan."""
    for attribute in node.attribute:
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield attribute.name, inner


def _read(onnx: Any, model: Any) -> tuple[str, Path | None, Any]:
    """Return what messages call it, its folder and the whole model."""
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return f"model {model.graph.name!r}", None, copy
    if isinstance(model, (bytes, bytearray, memoryview)):
        where, folder = f"model of {len(model)} bytes", None
    elif isinstance(model, (str, os.PathLike)):
        path = path_of(model, "model")
        where, folder = f"model={str(path)!r}", path.parent
    else:
        raise ArgumentError(f"model of type {type(model).__name__}; allowed: a path, bytes, an onnx.ModelProto")
    try:
        if folder is None:
            return where, folder, onnx.load_model_from_string(bytes(model))
        check_file(path, _MOST_BYTES, where)
        return where, folder, onnx.load_model(path, load_external_data=False)
    except ArgumentError:
        raise
    except OSError as error:
        raise ArgumentError(f"{where} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # protobuf's, or that of the format that the file's ending names
        raise ArgumentError(f"{where} is not an ONNX model, or not all of one: {error}") from error


def _is_text(message: Any) -> bool:
    """Tell whether every string is one, which protobuf leaves to whoever reads it."""
    for field, found in message.ListFields():
        is_string = field.type == field.TYPE_STRING
        if is_string or field.type == field.TYPE_MESSAGE:
            values = [found] if isinstance(found, (str, bytes)) or hasattr(found, "ListFields") else found
            if not all(isinstance(value, str) if is_string else _is_text(value) for value in values):
                return False
    return True
