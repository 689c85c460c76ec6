"""Shapes in an ONNX model: symbolic ones replaced, the others inferred."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from cudnnlite.arguments import integer, sequence, shown
from cudnnlite.autotune.onnx.file import OnnxFile, graphs, import_onnx
from cudnnlite.errors import ArgumentError

_BATCH = re.compile(r"batch|^(n|b|bs)$", re.IGNORECASE)


def infer_shapes(file: OnnxFile, batch: Any = None, shapes: Any = None) -> Any:
    """Return the model with the shapes of its values; its inputs get the sizes that `problems_from_onnx` was asked for.

    ArgumentError where these do not go with the inputs, or the model is not valid.
    """
    model = file.proto
    sizes = _replace_in_inputs(file, batch, _parse_shapes(shapes))
    declared = []
    for graph in graphs(model.graph):
        for info in (*graph.input, *graph.value_info):
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_param in sizes:
                    dim.dim_value = sizes[dim.dim_param]
        # What a model says of values inside is often older than its inputs, and inference would prefer it to what it finds.
        declared.append(list(graph.value_info))
        del graph.value_info[:]
        for info in graph.output:
            if info.type.HasField("tensor_type"):
                info.type.tensor_type.ClearField("shape")
    inferred = _infer(file.where, model)
    # Of what inference knows nothing, the results of unknown operations for instance, the model is believed.
    for graph, found, said in zip(graphs(model.graph), graphs(inferred.graph), declared, strict=True):
        known = {info.name for info in (*found.value_info, *found.output) if shape_of(info) is not None}
        graph.value_info.extend(info for info in said if info.name not in known)
    return _infer(file.where, model) if any(graph.value_info for graph in graphs(model.graph)) else inferred


def shape_of(value: Any) -> tuple[int | str, ...] | None:
    """Return the shape of a TensorProto, or what a ValueInfoProto knows of one.

    Symbolic sizes are names, empty where they mean nothing; the whole is None where not even the rank is known.
    """
    if hasattr(value, "dims"):
        return tuple(value.dims)
    kind = value.type.tensor_type
    return tuple(_size(dim) for dim in kind.shape.dim) if kind.HasField("shape") else None


def show(shape: tuple[int | str, ...] | None) -> str:
    """Return a shape as messages have it."""
    if shape is None:
        return "unknown"
    return f"({', '.join(str(size) or '?' for size in shape)}{',' if len(shape) == 1 else ''})"


def _infer(where: str, model: Any) -> Any:
    try:
        return import_onnx().shape_inference.infer_shapes(model, check_type=False, strict_mode=False, data_prop=True)
    except Exception as error:  # onnx's own kinds have no common base
        raise ArgumentError(f"{where} is not a valid ONNX model: {error}") from error


def _size(dim: Any) -> int | str:
    """Return an axis' size, its name, or nothing: what inference could not name has none that means anything."""
    if dim.dim_value > 0:  # some exporters write 0 or -1 for what is symbolic
        return int(dim.dim_value)
    return "" if dim.dim_param.startswith("unk__") else str(dim.dim_param)


def _replace_in_inputs(file: OnnxFile, batch: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Write the sizes that were asked for into the inputs; return those of the symbolic axes by name."""
    constants = {tensor.name for tensor in file.proto.graph.initializer}
    inputs = {info.name: info for info in file.proto.graph.input if info.name not in constants}
    known = ", ".join(f"{name} {show(shape_of(info))}" for name, info in inputs.items()) or "none"
    first = [(shape_of(info) or ("",))[0] for info in inputs.values()]
    wanted = []  # axes with their names, the sizes that they shall have, and who says so
    batch_axes = _batch_axes(inputs.values())
    for name, shape in shapes.items():
        if name not in inputs:
            raise ArgumentError(f"shapes[{name!r}]: {file.where} has no such input; its inputs: {known}")
        argument = f"shapes[{name!r}]={shape}"
        axes = _axes_for(inputs[name], shape, argument)
        wanted += [(dim, dim.dim_param, size, argument) for dim, size in zip(axes, shape, strict=True)]
    if batch is not None:
        number = integer(batch, "batch")
        if not batch_axes and number not in first:
            raise ArgumentError(f"batch={number}: no input of {file.where} has a symbolic batch; its inputs: {known}")
        wanted += [(dim, dim.dim_param, number, f"batch={number}") for dim in batch_axes]
    sizes: dict[str, int] = {}
    for dim, name, size, argument in wanted:
        before = sizes.setdefault(name, size) if name else dim.dim_value
        if before > 0 and before != size:
            raise ArgumentError(f"{argument}: the axis {name!r} would be of size {before} too")
        dim.dim_value = size
    return sizes


def _batch_axes(inputs: Iterable[Any]) -> list[Any]:
    """Return the axes that stand for the batch: those named so, or else every first one that is symbolic."""
    axes = [axis for info in inputs for axis in enumerate(info.type.tensor_type.shape.dim) if axis[1].dim_value <= 0]
    named = [dim for _, dim in axes if _BATCH.search(dim.dim_param)]
    return named or [dim for position, dim in axes if position == 0]


def _axes_for(info: Any, shape: tuple[int, ...], argument: str) -> Any:
    """Return the axes of an input, which may get a shape; made where the model says nothing of its rank."""
    before = shape_of(info)
    if before is None:
        if not info.type.HasField("tensor_type"):
            raise ArgumentError(f"{argument}: that input is not a tensor")
        info.type.tensor_type.shape.SetInParent()
        return [info.type.tensor_type.shape.dim.add() for _ in shape]
    if len(before) != len(shape):
        raise ArgumentError(f"{argument}: the model's input is {show(before)}")
    for axis, (old, new) in enumerate(zip(before, shape, strict=True)):
        if isinstance(old, int) and old != new:
            raise ArgumentError(f"{argument}: the model's input is {show(before)}, of fixed size on axis {axis}")
    return info.type.tensor_type.shape.dim


def _parse_shapes(shapes: Any) -> dict[str, tuple[int, ...]]:
    if not isinstance(shapes, (Mapping, type(None))):
        raise ArgumentError(f"shapes={shown(shapes)} is not a mapping of input names to shapes")
    found = {}
    for name, shape in (shapes or {}).items():
        argument = f"shapes[{shown(name)}]"
        found[name] = tuple(integer(size, argument) for size in sequence(shape, argument, "a sequence of integers"))
    return found
