"""Emulated arithmetic on whole tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cudnnlite.emulated.operation import Array, computes, in_one_layout
from cudnnlite.enums import NanPropagation, OpTensorOp, ReduceTensorOp
from cudnnlite.operations.operation import FLOATS
from cudnnlite.specs.pointwise import OpTensorSpec, ReduceTensorSpec


def _a_bias(small: str, large: str) -> Any:
    """Return what refuses, of repeated operands, all but those with one value for each channel: no GPU was asked yet."""

    def refuse(specs: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        shape, whole = specs[small].shape, specs[large].shape
        bias = (1, whole[1], *[1] * (len(whole) - 2))
        alike = "" if shape in (whole, bias) else f"{small} of shape {shape} beside {large} of shape {whole}"
        return alike or in_one_layout(specs, options)

    return refuse


@computes("add_tensor", "cudnnAddTensor", refuse=_a_bias("a", "c"))
def add(a: Array, c: Array) -> Array:
    """Return what is added."""
    return a


@computes("scale_tensor", "cudnnScaleTensor")
def scale(y: Array) -> Array:
    """Return what is scaled."""
    return y


@computes("set_tensor", "cudnnSetTensor")
def fill(y: Array, value: float) -> Array:
    """Return the value, everywhere."""
    return np.full_like(y, value)


def _op_refused(specs: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    # what cuDNN computes for NOT its documentation leaves open
    return "NOT" if options["op"].op == OpTensorOp.NOT else _a_bias("b", "a")(specs, options)


@computes("op_tensor", "cudnnOpTensor", dtypes=FLOATS, refuse=_op_refused)
def op(a: Array, b: Array, op: OpTensorSpec, alpha1: float, alpha2: float) -> Array:
    """Return what is made of a and b."""
    one, two = a * a.dtype.type(alpha1), b * b.dtype.type(alpha2)
    propagate = op.nan == NanPropagation.PROPAGATE
    functions: dict[OpTensorOp, Any] = {
        OpTensorOp.ADD: np.add, OpTensorOp.MUL: np.multiply,
        OpTensorOp.MIN: np.minimum if propagate else np.fmin, OpTensorOp.MAX: np.maximum if propagate else np.fmax,
        OpTensorOp.SQRT: lambda one, two: np.sqrt(one),
    }  # fmt: skip
    return np.asarray(functions[op.op](one, two))


@computes(
    "reduce_tensor", "cudnnReduceTensor", workspace=lambda specs: specs["a"].nbytes,
    workspace_function="cudnnGetReductionWorkspaceSize",
)  # fmt: skip
def reduce(a: Array, c: Array, op: ReduceTensorSpec) -> Array:
    """Return the reduction along the axes on which c has a size of 1."""
    axes = tuple(axis for axis, size in enumerate(c.shape) if size == 1)
    propagate = op.nan == NanPropagation.PROPAGATE
    functions: dict[ReduceTensorOp, Any] = {
        ReduceTensorOp.ADD: np.add.reduce, ReduceTensorOp.MUL: np.multiply.reduce, ReduceTensorOp.AVG: np.mean,
        ReduceTensorOp.MIN: np.minimum.reduce if propagate else np.fmin.reduce,
        ReduceTensorOp.MAX: np.maximum.reduce if propagate else np.fmax.reduce,
    }  # fmt: skip
    of_others: dict[ReduceTensorOp, Any] = {
        ReduceTensorOp.AMAX: lambda: functions[ReduceTensorOp.MAX](np.abs(a), axis=axes, keepdims=True),
        ReduceTensorOp.NORM1: lambda: np.abs(a).sum(axes, keepdims=True),
        ReduceTensorOp.NORM2: lambda: np.sqrt((a * a).sum(axes, keepdims=True)),
        ReduceTensorOp.MUL_NO_ZEROS: lambda: np.where(a == 0, 1, a).prod(axes, keepdims=True),
    }
    return np.asarray(of_others[op.op]() if op.op in of_others else functions[op.op](a, axis=axes, keepdims=True))
