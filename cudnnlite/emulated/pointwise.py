"""Emulated arithmetic on whole tensors, and reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnnlite.emulated.operation_call import (
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


@computes(declarations.ADD, dtypes=FLOATS, why_refused=never_refused)
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


# The index that an H200 writes where no value is larger than -infinity: of 7 and 70 values; of 3000
# values it writes -1.
_NO_POSITION = np.iinfo(np.int32).max
_LONGEST_ROW = 70


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
    minimum: Any = np.minimum if propagates_nan else np.fmin
    maximum: Any = np.maximum if propagates_nan else np.fmax
    # On an H200 the largest value of -infinities is the lowest number, and so of ignored NaNs.
    largest = np.finfo(a.dtype).max
    functions: dict[ReduceTensorOp, Any] = {
        ReduceTensorOp.ADD: lambda: a.sum(**axes),
        ReduceTensorOp.MUL: lambda: a.prod(**axes),
        ReduceTensorOp.MIN: lambda: minimum.reduce(a, **axes, initial=largest),
        ReduceTensorOp.MAX: lambda: maximum.reduce(a, **axes, initial=-largest),
        ReduceTensorOp.AMAX: lambda: maximum.reduce(np.abs(a), **axes, initial=0),
        ReduceTensorOp.AVG: lambda: a.mean(**axes),
        ReduceTensorOp.NORM1: lambda: np.abs(a).sum(**axes),
        ReduceTensorOp.NORM2: lambda: np.sqrt((a * a).sum(**axes)),
        ReduceTensorOp.MUL_NO_ZEROS: lambda: np.where(a == 0, 1, a).prod(**axes),
    }
    return np.asarray(functions[op.op]())


@computes(
    declarations.REDUCE_WITH_INDICES,
    dtypes=DOCUMENTED_DTYPES,
    same_dtype=("a", "c"),
    why_refused=never_refused,
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
    elif op.op == ReduceTensorOp.MIN:
        rows = -rows
    if op.nan != NanPropagation.PROPAGATE:
        rows = np.where(np.isnan(rows), -np.inf, rows)
    no_position = _NO_POSITION if rows.shape[-1] <= _LONGEST_ROW else -1
    positions = np.where(np.isneginf(rows).all(-1), no_position, rows.argmax(-1))
    return reduce(a, c, op), positions.reshape(c.shape)
