"""Emulated arithmetic on whole tensors, and reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnnlite.emulated.operation import (
    DOCUMENTED_DTYPES,
    Array,
    Values,
    computes,
    never_refused,
)
from cudnnlite.enums import DataType, NanPropagation, OpTensorOp, ReduceTensorOp
from cudnnlite.problems import pointwise as declarations
from cudnnlite.problems.operation import FLOATS
from cudnnlite.specs.layers import OpTensorSpec, ReduceTensorSpec


@computes(declarations.ADD, dtypes=FLOATS)
def add(a: Array, c: Array) -> Array:
    """`cudnnAddTensor`: return the values to add."""
    return a


@computes(declarations.SCALE, dtypes=FLOATS)
def scale(y: Array) -> Array:
    """`cudnnScaleTensor`: return the values to scale."""
    return y


@computes(declarations.SET, dtypes=FLOATS)
def fill(y: Array, value: float) -> Array:
    """`cudnnSetTensor`: return the value, everywhere."""
    return np.full_like(y, value)


@computes(
    declarations.OP,
    dtypes=(*FLOATS, DataType.INT8),
    same_dtype=("a", "b"),
    why_refused=never_refused,
)
def combine(a: Array, b: Array, op: OpTensorSpec, alpha1: float, alpha2: float) -> Array:
    """`cudnnOpTensor`: return the function of each pair of values, scaled before."""
    first = a * a.dtype.type(alpha1)
    second = b * b.dtype.type(alpha2)
    propagates_nan = op.nan == NanPropagation.PROPAGATE
    functions: dict[OpTensorOp, Any] = {
        OpTensorOp.ADD: np.add,
        OpTensorOp.MUL: np.multiply,
        OpTensorOp.MIN: np.minimum if propagates_nan else np.fmin,
        OpTensorOp.MAX: np.maximum if propagates_nan else np.fmax,
        OpTensorOp.SQRT: lambda first, second: np.sqrt(first),
        OpTensorOp.NOT: lambda first, second: 1 - first,  # as an H200 does
    }
    return np.asarray(functions[op.op](first, second))


def _workspace(specs: Values) -> int:
    """`cudnnGetReductionWorkspaceSize`: return the bytes of workspace for a reduction."""
    return int(specs["a"].nbytes)


@computes(
    declarations.REDUCE,
    dtypes=(*DOCUMENTED_DTYPES, DataType.INT8),
    same_dtype=("a",),
    why_refused=never_refused,
    workspace=_workspace,
)
def reduce(a: Array, c: Array, op: ReduceTensorSpec) -> Array:
    """`cudnnReduceTensor`: return the reduction along the axes on which c has a size of 1."""
    axes: Any = {
        "axis": tuple(axis for axis, size in enumerate(c.shape) if size == 1),
        "keepdims": True,
    }
    propagates_nan = op.nan == NanPropagation.PROPAGATE
    minimum = np.minimum if propagates_nan else np.fmin
    maximum = np.maximum if propagates_nan else np.fmax
    functions: dict[ReduceTensorOp, Any] = {
        ReduceTensorOp.ADD: lambda: a.sum(**axes),
        ReduceTensorOp.MUL: lambda: a.prod(**axes),
        ReduceTensorOp.MIN: lambda: minimum.reduce(a, **axes),
        ReduceTensorOp.MAX: lambda: maximum.reduce(a, **axes),
        ReduceTensorOp.AMAX: lambda: maximum.reduce(np.abs(a), **axes),
        ReduceTensorOp.AVG: lambda: a.mean(**axes),
        ReduceTensorOp.NORM1: lambda: np.abs(a).sum(**axes),
        ReduceTensorOp.NORM2: lambda: np.sqrt((a * a).sum(**axes)),
        ReduceTensorOp.MUL_NO_ZEROS: lambda: np.where(a == 0, 1, a).prod(**axes),
    }
    return np.asarray(functions[op.op]())


def _why_indices_refused(specs: Values, options: Values) -> str | None:
    """Refuse indices beside NaNs that do not count, about which no H200 was asked.

    An H200 takes tensors with gaps, and reduces them into one without.
    """
    if options["op"].nan != NanPropagation.PROPAGATE:
        return "indices with NOT_PROPAGATE"
    return None


@computes(
    declarations.REDUCE_WITH_INDICES,
    dtypes=DOCUMENTED_DTYPES,
    same_dtype=("a", "c"),
    why_refused=_why_indices_refused,
    workspace=_workspace,
)
def reduce_with_indices(
    a: Array, c: Array, indices: Array, op: ReduceTensorSpec
) -> tuple[Array, Array]:
    """`cudnnReduceTensor`: return the reduction, and each value's index along the reduced axes."""
    remaining_axes = [axis for axis, size in enumerate(c.shape) if size > 1]
    rows = np.moveaxis(a, remaining_axes, range(len(remaining_axes)))
    rows = rows.reshape(*(c.shape[axis] for axis in remaining_axes), -1)
    if op.op == ReduceTensorOp.AMAX:
        rows = np.abs(rows)
    if op.op == ReduceTensorOp.MIN:
        positions = np.argmin(rows, axis=-1)
    else:
        positions = np.argmax(rows, axis=-1)
    return reduce(a, c, op), positions.reshape(c.shape)
