"""Read an ONNX model, check that it is complete, and infer the shapes of its values."""

from __future__ import annotations

import os
from collections import Counter
from copy import deepcopy
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from cudnnlite.arguments import path_of, refused_as
from cudnnlite.errors import ArgumentError
from cudnnlite.files import read_named_file
from cudnnlite.workbench.tuning.onnx.protobuf import messages_within, require, shape_of

# Shape inference reads the values of shapes, axes and scales. It needs only the shape of a larger
# tensor.
_MAX_VALUES = 65536
# The number of nodes doubles with each function that calls the next one twice. A model of 1.4 KB
# had 8 million nodes, and took 137 s.
_MAX_NODES = 1 << 16
# The maximal depth of functions that call each other. onnx refuses a greater depth, and a recursion
# has no end.
_MAX_DEPTH = 100
_MAIN_GRAPH = None  # its key among the functions of a model


class ModelSource(NamedTuple):
    """A model that may be changed, its label in messages, and the folder of its external data."""

    proto: Any
    label: str
    folder: Path | None


def read_model(onnx: Any, model: Any) -> ModelSource:
    """Read a model from a path or bytes, or copy a ModelProto."""
    if isinstance(model, onnx.ModelProto):
        return ModelSource(deepcopy(model), f"model {model.graph.name!r}", None)
    if isinstance(model, (bytes, bytearray, memoryview)):
        label = f"model of {len(model)} bytes"
        with refused_as(ArgumentError, f"{label} cannot be read"):
            data = bytes(model)
        return ModelSource(_parse_model(onnx, data, label, suffix=""), label, None)
    require(
        isinstance(model, (str, os.PathLike)),
        f"model of type {type(model).__name__}; allowed: a path, bytes, an onnx.ModelProto",
    )
    path = path_of(model, "model")
    label = f"model={str(path)!r}"
    with refused_as(ArgumentError, f"{label} cannot be read"):
        data = read_named_file(path)
    return ModelSource(_parse_model(onnx, data, label, path.suffix), label, path.parent)


def _parse_model(onnx: Any, data: bytes, label: str, suffix: str) -> Any:
    """Return the model in some bytes; the suffix of a file's name determines the format."""
    why = f"{label} is not an ONNX model, or not all of one"
    # The errors are protobuf's, or those of the format that the suffix names.
    with refused_as(ArgumentError, why, Exception):
        file_format = onnx.serialization.registry.get_format_from_file_extension(suffix)
        return onnx.load_model_from_string(data, file_format)


def check_model(onnx: Any, proto: Any, label: str) -> None:
    """Refuse a model that is incomplete, or too large with its functions inlined."""
    require(proto.HasField("graph"), f"{label} is not an ONNX model: it has no graph")
    incomplete = f"{label} is not a whole ONNX model"
    require(proto.opset_import, f"{incomplete}: it does not say which operator set it uses")
    # protobuf returns texts that are not UTF-8 as bytes.
    require(not messages_within(proto, bytes), f"{incomplete}: a name in it is not UTF-8")
    _check_inlined_size(onnx, proto, label)


def _check_inlined_size(onnx: Any, proto: Any, label: str) -> None:
    """Refuse a model with too many nodes, or with too many levels of functions.

    It is checked before the functions are inlined.  The calls are expanded one level at a time,
    which needs only the numbers of nodes.
    """
    operations = _count_operations(onnx, proto)
    nodes: Counter[Any] = Counter([_MAIN_GRAPH])
    for _ in range(_MAX_DEPTH + 2):
        require(
            nodes.total() <= _MAX_NODES,
            f"{label} has more than {_MAX_NODES} nodes, its functions inlined",
        )
        calls = {function: nodes.pop(function) for function in operations.keys() & nodes.keys()}
        if not calls:
            return
        for function, times in calls.items():
            for operation, count in operations[function].items():
                nodes[operation] += times * count
    raise ArgumentError(f"{label} has functions in each other to a depth of more than {_MAX_DEPTH}")


def _count_operations(onnx: Any, proto: Any) -> dict[Any, Counter[Any]]:
    """Return how often each function, and the main graph, has each operation."""
    bodies: dict[Any, Any] = {
        (function.domain, function.name): function for function in proto.functions
    }
    bodies[_MAIN_GRAPH] = proto.graph
    return {
        name: Counter((node.domain, node.op_type) for node in messages_within(body, onnx.NodeProto))
        for name, body in bodies.items()
    }


def drop_weights(onnx: Any, graph: Any, folder: Path | None) -> dict[str, str]:
    """Drop the values of large initializers, and load small ones that shapes may depend on.

    Returns why values cannot be loaded, by the names of their initializers.
    """
    unreadable: dict[str, str] = {}
    scales = {
        name for node in graph.node if node.op_type in ("Resize", "Upsample") for name in node.input
    }
    for tensor in graph.initializer:
        if prod(tensor.dims) > _MAX_VALUES:
            tensor.CopyFrom(
                onnx.TensorProto(
                    name=tensor.name,
                    data_type=tensor.data_type,
                    dims=tensor.dims,
                    data_location=onnx.TensorProto.EXTERNAL,
                )
            )
        elif _is_needed(onnx, tensor, scales):
            try:
                _load_values(onnx, tensor, folder)
            except Exception as error:  # onnx's own errors have no common base
                unreadable[tensor.name] = str(error)
    _replace_sparse_initializers(onnx, graph)
    return unreadable


def _is_needed(onnx: Any, tensor: Any, scales: set[str]) -> bool:
    """Return whether a tensor has external data that shapes may depend on: integers, or scales."""
    if not onnx.external_data_helper.uses_external_data(tensor):
        return False
    is_integer = tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    return is_integer or tensor.name in scales


def _load_values(onnx: Any, tensor: Any, folder: Path | None) -> None:
    """Load the external data of a tensor into it."""
    require(folder is not None, "only the path of a model says where its external data is")
    itemsize = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    # onnx uses the last length. So it reads only the bytes of the tensor, whatever length the model
    # declares.
    tensor.external_data.add(key="length", value=str(prod(tensor.dims) * itemsize))
    onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))


def _replace_sparse_initializers(onnx: Any, graph: Any) -> None:
    """Replace sparse initializers by dense ones without values.

    Shape inference does not find the shapes of sparse ones.
    """
    for sparse in graph.sparse_initializer:
        graph.initializer.add(
            name=sparse.values.name,
            data_type=sparse.values.data_type,
            dims=sparse.dims,
            data_location=onnx.TensorProto.EXTERNAL,
        )
    del graph.sparse_initializer[:]


def infer_shapes(onnx: Any, proto: Any) -> Any:
    """Return a model with the shapes that onnx infers.

    If onnx infers no shape of a value, the value has the shape that the model declares.
    """
    declared = [_remove_shapes(graph) for graph in messages_within(proto.graph, onnx.GraphProto)]
    inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    if not any(declared):
        return inferred
    # For instance, onnx cannot infer the results of operations that it does not know. They have the
    # shapes that the model declares.
    graphs = messages_within(inferred.graph, onnx.GraphProto)
    for graph, infos in zip(graphs, declared, strict=True):
        values = (*graph.value_info, *graph.output)
        inferred_names = {info.name for info in values if shape_of(info) is not None}
        graph.value_info.extend(info for info in infos if info.name not in inferred_names)
    return onnx.shape_inference.infer_shapes(inferred, data_prop=True)


def _remove_shapes(graph: Any) -> list[Any]:
    """Remove the declared shapes of a graph's inner values and outputs.

    Returns the declarations of the inner values.  Declared shapes are often older than the model's
    inputs, and inference would prefer them.
    """
    infos = list(graph.value_info)
    del graph.value_info[:]
    for info in graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    return infos
