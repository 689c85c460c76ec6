"""Emulated arithmetic on whole tensors, and their conversion to other layouts and types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cudnnlite._raw.enums import FoldingDirection
from cudnnlite.emulated.operation import DOCUMENTED, Array, computes, in_any_layout
from cudnnlite.enums import DataType, NanPropagation, OpTensorOp, ReduceTensorOp, Status
from cudnnlite.problems.operation import FLOATS
from cudnnlite.specs import FilterSpec
from cudnnlite.specs.layers import OpTensorSpec, ReduceTensorSpec, TensorTransformSpec
from cudnnlite.specs.layout import CHANNELS_FIRST


@computes("add_tensor", dtypes=FLOATS)
def add(a: Array, c: Array) -> Array:
    """Return what is added."""
    return a


@computes("scale_tensor", dtypes=FLOATS)
def scale(y: Array) -> Array:
    """Return what is scaled."""
    return y


@computes("set_tensor", dtypes=FLOATS)
def fill(y: Array, value: float) -> Array:
    """Return the value, everywhere."""
    return np.full_like(y, value)


def _scratch(specs: Mapping[str, Any]) -> int:
    return int(specs["a"].nbytes)


@computes("op_tensor", dtypes=(*FLOATS, DataType.INT8), alike=("a", "b"), refuse=in_any_layout)
def op(a: Array, b: Array, op: OpTensorSpec, alpha1: float, alpha2: float) -> Array:
    """Return what is made of a and b."""
    one, two = a * a.dtype.type(alpha1), b * b.dtype.type(alpha2)
    propagate = op.nan == NanPropagation.PROPAGATE
    functions: dict[OpTensorOp, Any] = {
        OpTensorOp.ADD: np.add,
        OpTensorOp.MUL: np.multiply,
        OpTensorOp.MIN: np.minimum if propagate else np.fmin,
        OpTensorOp.MAX: np.maximum if propagate else np.fmax,
        OpTensorOp.SQRT: lambda one, two: np.sqrt(one),
        OpTensorOp.NOT: lambda one, two: 1 - one,  # as an H200 does
    }
    return np.asarray(functions[op.op](one, two))


@computes(
    "reduce_tensor",
    dtypes=(*DOCUMENTED, DataType.INT8),
    alike=("a",),
    refuse=in_any_layout,
    workspace=_scratch,
)
def reduce(a: Array, c: Array, op: ReduceTensorSpec) -> Array:
    """Return the reduction along the axes on which c has a size of 1."""
    along: Any = {
        "axis": tuple(axis for axis, size in enumerate(c.shape) if size == 1),
        "keepdims": True,
    }
    propagate = op.nan == NanPropagation.PROPAGATE
    minimum, maximum = (np.minimum, np.maximum) if propagate else (np.fmin, np.fmax)
    functions: dict[ReduceTensorOp, Any] = {
        ReduceTensorOp.ADD: lambda: a.sum(**along),
        ReduceTensorOp.MUL: lambda: a.prod(**along),
        ReduceTensorOp.MIN: lambda: minimum.reduce(a, **along),
        ReduceTensorOp.MAX: lambda: maximum.reduce(a, **along),
        ReduceTensorOp.AMAX: lambda: maximum.reduce(np.abs(a), **along),
        ReduceTensorOp.AVG: lambda: a.mean(**along),
        ReduceTensorOp.NORM1: lambda: np.abs(a).sum(**along),
        ReduceTensorOp.NORM2: lambda: np.sqrt((a * a).sum(**along)),
        ReduceTensorOp.MUL_NO_ZEROS: lambda: np.where(a == 0, 1, a).prod(**along),
    }
    return np.asarray(functions[op.op]())


def _places_refused(specs: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Of NaNs that do not count no H200 was asked; a tensor with gaps it reduces into one without."""
    if options["op"].nan != NanPropagation.PROPAGATE:
        return "indices with NOT_PROPAGATE"
    return ""


@computes(
    "reduce_tensor_with_indices",
    dtypes=DOCUMENTED,
    alike=("a", "c"),
    refuse=_places_refused,
    workspace=_scratch,
)
def reduce_with_places(
    a: Array, c: Array, indices: Array, op: ReduceTensorSpec
) -> tuple[Array, ...]:
    """Return the reduction, and where along the reduced axes each value was found."""
    kept = [axis for axis, size in enumerate(c.shape) if size > 1]
    rows = np.moveaxis(a, kept, range(len(kept))).reshape(*(c.shape[axis] for axis in kept), -1)
    find = np.argmin if op.op == ReduceTensorOp.MIN else np.argmax
    places = find(np.abs(rows) if op.op == ReduceTensorOp.AMAX else rows, axis=-1)
    return reduce(a, c, op), places.reshape(c.shape)


def _conversion_refused(specs: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Refuse to convert data types but of packed tensors with channels first: of others no H200 was asked."""
    kinds = {spec.dtype for spec in specs.values()}
    packed = all(spec.fits(CHANNELS_FIRST[spec.rank]) for spec in specs.values())
    if len(kinds) == 1 or (
        packed and kinds <= {*FLOATS} and kinds != {DataType.HALF, DataType.BFLOAT16}
    ):
        return ""
    return f"from {specs['x']} to {specs['y']}"


@computes(
    "transform_tensor",
    dtypes=(*FLOATS, DataType.INT8),
    alike=("y",),
    refuse=_conversion_refused,
    refused=Status.NOT_SUPPORTED,
)
def transform_tensor(x: Array) -> Array:
    """Return the values, to be laid out in another way, or stored in another type."""
    return x


@computes(
    "transform_tensor_ex",
    dtypes=(*FLOATS, DataType.INT8),
    alike=("y",),
    refuse=lambda specs, options: "",
)
def transform_extended(x: Array, transform: TensorTransformSpec) -> Array:
    """Return the values padded and folded, or unfolded."""
    padded = np.pad(x, transform.padding)
    n, c, *image = padded.shape
    axes, fold = range(len(image)), transform.fold
    if not fold:
        return np.asarray(padded)
    if transform.direction == FoldingDirection.UNFOLD:
        taken = padded.reshape(n, *fold, -1, *image)
        last = 1 + len(fold)  # where the channels are
        order = (0, last, *(axis for i in axes for axis in (last + 1 + i, 1 + i)))
        return np.asarray(taken.transpose(order).reshape(transform.output_shape(x.shape)))
    blocks = padded.reshape(
        n,
        c,
        *(part for size, step in zip(image, fold, strict=True) for part in (size // step, step)),
    )
    order = (0, *(3 + 2 * i for i in axes), 1, *(2 + 2 * i for i in axes))
    return np.asarray(blocks.transpose(order).reshape(transform.output_shape(x.shape)))


@computes(
    "transform_filter_ex",
    dtypes=(*FLOATS, DataType.INT8),
    alike=("y",),
    refuse=lambda specs, options: "",
)
def transform_filter(
    x: Array, source: FilterSpec, target: FilterSpec, transform: TensorTransformSpec
) -> Array:
    """Return the same of a filter."""
    return np.asarray(transform_extended(x, transform))
