"""`set_input_sizes`: set the symbolic axes of a model's inputs to the sizes of the caller."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cudnnlite.arguments import integer, sequence, shown
from cudnnlite.workbench.tuning.onnx.protobuf import (
    NO_NAME,
    UNNAMED_AXIS,
    format_shape,
    messages_within,
    require,
    shape_of,
)

_BATCH = re.compile(r"batch|^(n|b|bs)$", re.IGNORECASE)


class _Axis(NamedTuple):
    """An axis of an input."""

    position: int
    dim: Any  # onnx's Dimension, which can be changed


class _Assignment(NamedTuple):
    """A size for an axis."""

    dim: Any
    size: int
    argument: str  # the caller's argument that gave the size, for messages


def set_input_sizes(onnx: Any, graph: Any, label: str, batch: Any, shapes: Any) -> None:
    """Set the sizes of symbolic axes, wherever the names of these axes occur in the graph.

    If an axis of an input has no name, it gets one.
    """
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {info.name: info for info in graph.input if info.name not in constants}
    axes = _name_axes(onnx, inputs)
    inputs_shown = ", ".join(
        f"{name} {format_shape(shape_of(info))}" for name, info in inputs.items()
    )
    inputs_shown = inputs_shown or "none"
    why_unknown = f"{label} has no such input; its inputs: {inputs_shown}"
    assignments = list(_assign_shapes(onnx, inputs, shapes, why_unknown))
    if batch is not None:
        why_none = f"no input of {label} has a symbolic batch; its inputs: {inputs_shown}"
        assignments += _assign_batch(axes, batch, why_none)
    sizes = _sizes_by_name(assignments)
    for dim in messages_within(graph, onnx.TensorShapeProto.Dimension):
        if dim.dim_param in sizes:
            dim.dim_value = sizes[dim.dim_param]


def _name_axes(onnx: Any, inputs: Mapping[str, Any]) -> list[_Axis]:
    """Return the axes of all inputs.  An axis without a size and a name gets a name first."""
    axes = [
        _Axis(position, dim)
        for info in inputs.values()
        for shape in messages_within(info, onnx.TensorShapeProto)
        for position, dim in enumerate(shape.dim)
    ]
    for number, (_, dim) in enumerate(axes):
        if dim.dim_value <= 0:
            has_name = dim.dim_param not in ("", NO_NAME)
            if not has_name:
                dim.dim_param = f"{UNNAMED_AXIS}{number}_of_inputs"
    return axes


def _assign_shapes(
    onnx: Any, inputs: Mapping[str, Any], shapes: Any, why_unknown: str
) -> Iterator[_Assignment]:
    """Yield the sizes of `shapes`, after checking them.

    An input that declares no shape gets this one.
    """
    if shapes is None:
        return
    require(
        isinstance(shapes, Mapping),
        f"shapes={shown(shapes)} is not a mapping of input names to shapes",
    )
    for name, sizes in shapes.items():
        key = f"shapes[{shown(name)}]"
        shape = tuple(integer(size, key) for size in sequence(sizes, key, "a sequence of integers"))
        require(name in inputs, f"{key}: {why_unknown}")
        yield from _assign_shape(onnx, inputs[name], shape, f"{key}={shape}")


def _assign_shape(
    onnx: Any, info: Any, shape: tuple[int, ...], argument: str
) -> Iterator[_Assignment]:
    """Yield the sizes of one input's axes; sizes that the model fixes cannot be changed."""
    require(info.type.HasField("tensor_type"), f"{argument}: that input is not a tensor")
    declared = shape_of(info)
    dims = info.type.tensor_type.shape.dim
    if declared is None:
        dims.extend(onnx.TensorShapeProto.Dimension(dim_value=size) for size in shape)
    mismatch = f"{argument}: the model's input is {format_shape(declared)}"
    require(len(dims) == len(shape), mismatch)
    for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        is_free = dim.dim_param or dim.dim_value == size
        require(is_free, f"{mismatch}, of fixed size on axis {axis}")
        yield _Assignment(dim, size, argument)


def _assign_batch(axes: list[_Axis], batch: Any, why_none: str) -> list[_Assignment]:
    """Assign the batch to every axis with a name like a batch's.

    If there is none, assign it to the first axes.
    """
    size = integer(batch, "batch")
    argument = f"batch={batch}"
    dims = [dim for _, dim in axes if _BATCH.search(dim.dim_param)]
    if not dims:
        # The model may have fixed the same size.
        dims = [
            dim
            for position, dim in axes
            if position == 0 and (dim.dim_param or dim.dim_value == size)
        ]
    require(dims, f"{argument}: {why_none}")
    return [_Assignment(dim, size, argument) for dim in dims]


def _sizes_by_name(assignments: list[_Assignment]) -> dict[str, int]:
    """Return the size of each name of axes; ArgumentError if a name would have two sizes."""
    sizes: dict[str, int] = {}
    for dim, size, argument in assignments:
        if not dim.dim_param:
            continue
        other = sizes.setdefault(dim.dim_param, size)
        require(
            other == size, f"{argument}: the axis {dim.dim_param!r} would be of size {other} too"
        )
    return sizes
