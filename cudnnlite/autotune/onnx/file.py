"""`OnnxFile`: an ONNX model without the weights that shapes do not depend on, from a file, bytes or a ModelProto."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from cudnnlite.errors import ArgumentError, MissingPackageError

# Shape inference reads the values of shapes, axes and scales; of what is larger it needs no more than the shape.
_SMALL = 65536


class OnnxFile:
    """A model that was read.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
        Where from.  A ModelProto is left as it is.

    Attributes
    ----------
    where : str
        What messages call it.
    proto : onnx.ModelProto
        The model: functions inlined, large initializers replaced by inputs of their type.
    inputs : list of str
        The names of the inputs that are not initializers.
    unread : dict of str to str
        Tensors whose external data shapes may depend on and which could not be read, with the reasons.
    functions : dict of (str, str) to onnx.FunctionProto
        The model's functions by domain and name, where they could not be inlined.
    why_not_inlined : str
        The reason then.

    Raises
    ------
    ArgumentError
        It cannot be read, or is no ONNX model; the message names the file and the cause.
    MissingPackageError
        The package onnx is not installed.
    """

    def __init__(self, model: Any) -> None:
        onnx = import_onnx()
        self.where, folder, given = _read(onnx, model)
        if not given.HasField("graph"):
            raise ArgumentError(f"{self.where} is not an ONNX model: it has no graph")
        if not given.opset_import:
            raise ArgumentError(f"{self.where} is not a whole ONNX model: it does not say which operator set it uses")
        if not _is_text(given):
            raise ArgumentError(f"{self.where} is not a whole ONNX model: a name in it is not UTF-8")
        self.unread: dict[str, str] = {}
        self.proto = self._without_weights(onnx, given, folder)
        initializers = {tensor.name for tensor in (*given.graph.initializer, *_sparse_values(given.graph))}
        self.inputs = [info.name for info in given.graph.input if info.name not in initializers]
        self.functions: dict[tuple[str, str], Any] = {}
        self.why_not_inlined = ""
        if self.proto.functions:
            self._inline()

    def _without_weights(self, onnx: Any, given: Any, folder: Path | None) -> Any:
        light, graph = onnx.ModelProto(), given.graph
        light.ir_version = given.ir_version
        light.opset_import.extend(given.opset_import)
        light.functions.extend(given.functions)
        for name in ("node", "input", "output", "value_info"):
            getattr(light.graph, name).extend(getattr(graph, name))
        light.graph.name = graph.name or "graph"
        known = {info.name for info in graph.input}
        scales = {name for node in graph.node if node.op_type in ("Resize", "Upsample") for name in node.input}
        integers = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
        for tensor in (*graph.initializer, *_sparse_values(graph)):
            external = onnx.external_data_helper.uses_external_data(tensor)
            wanted = not external or tensor.data_type in integers or tensor.name in scales
            if wanted and prod(tensor.dims) <= _SMALL:
                kept = light.graph.initializer.add()
                kept.CopyFrom(tensor)
                if external:
                    self._load(onnx, kept, folder)
            elif tensor.name not in known:
                info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
                light.graph.input.append(info)
        return light

    def _load(self, onnx: Any, tensor: Any, folder: Path | None) -> None:
        if folder is None:
            self.unread[tensor.name] = "only the path of a model says where its external data is"
            return
        try:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        except Exception as error:  # onnx's own kinds have no common base
            self.unread[tensor.name] = str(error)

    def _inline(self) -> None:
        try:
            from onnx.inliner import inline_local_functions

            self.proto = inline_local_functions(self.proto)
        except Exception as error:  # before onnx 1.15 there is no inliner; what it raises has no common base
            self.functions = {(function.domain, function.name): function for function in self.proto.functions}
            self.why_not_inlined = str(error)


def import_onnx() -> Any:
    """Return the package onnx."""
    try:
        import onnx.external_data_helper
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
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for inner in attribute.graphs:
            yield attribute.name, inner


def _read(onnx: Any, model: Any) -> tuple[str, Path | None, Any]:
    """Return what messages call it, its folder and the whole model."""
    if isinstance(model, onnx.ModelProto):
        return f"model {model.graph.name!r}", None, model
    where = "model"
    try:
        if isinstance(model, (bytes, bytearray, memoryview)):
            where = f"model of {len(model)} bytes"
            return where, None, onnx.load_model_from_string(bytes(model))
        if not isinstance(model, (str, os.PathLike)):
            kind = type(model).__name__
            raise ArgumentError(f"model of type {kind}; allowed: a path, bytes, an onnx.ModelProto")
        path = Path(model)
        where = f"model={str(path)!r}"
        return where, path.parent, onnx.load_model(path, load_external_data=False)
    except ArgumentError:
        raise
    except OSError as error:
        raise ArgumentError(f"{where} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # protobuf's, or that of the format that the file's ending names
        raise ArgumentError(f"{where} is not an ONNX model, or not all of one: {error}") from error


def _is_text(message: Any) -> bool:
    """Tell whether every string is one, which protobuf leaves to whoever reads it; contents of tensors are not looked at."""
    if message.DESCRIPTOR.name == "TensorProto":
        return isinstance(message.name, str)
    for described, value in message.ListFields():
        if described.type == described.TYPE_STRING:
            if not all(isinstance(text, str) for text in ([value] if isinstance(value, (str, bytes)) else value)):
                return False
        elif described.type == described.TYPE_MESSAGE and not all(
            _is_text(inner) for inner in ([value] if hasattr(value, "ListFields") else value)
        ):
            return False
    return True


def _sparse_values(graph: Any) -> list[Any]:
    """Return what stands for the sparse initializers: tensors of their names, types and shapes, without values."""
    dense = []
    for sparse in graph.sparse_initializer:
        values = type(sparse.values)(name=sparse.values.name, data_type=sparse.values.data_type)
        values.dims.extend(sparse.dims)
        dense.append(values)
    return dense
