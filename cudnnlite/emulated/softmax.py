"""Emulated softmax.

Problems that cuDNN computes wrongly reach it as those of packed copies, which the declaration names.
"""

from __future__ import annotations

from math import prod

import numpy as np

from cudnnlite.emulated.operation_call import Array, Call, computes, never_refused
from cudnnlite.enums import DataType, SoftmaxAlgorithm, SoftmaxMode
from cudnnlite.problems import softmax as declarations
from cudnnlite.problems.operation import FLOATS
from cudnnlite.specs import TensorSpec

# The most values of a sum in which an H200 was seen to take rows of -inf for masked: it does with 3,
# 40 and 80 values, not with 1000.
_LONGEST_MASKED_ROW = 80


def _axes(values: Array, mode: SoftmaxMode) -> tuple[int, ...]:
    if mode == SoftmaxMode.CHANNEL:
        return (1,)
    return tuple(range(1, values.ndim))


@computes(declarations.FORWARD, dtypes=FLOATS, why_refused=never_refused, takes_call=True)
def forward(
    x: Array, algorithm: SoftmaxAlgorithm, mode: SoftmaxMode, call: Call | None = None
) -> Array:
    """`cudnnSoftmaxForward`: return the softmax, or its logarithm."""
    axes = _axes(x, mode)
    shifted = x
    if algorithm != SoftmaxAlgorithm.FAST:
        largest = x.max(axes, keepdims=True)
        shifted = x - largest
        if call is not None and _masks_rows(call, mode):
            shifted = np.where(np.isneginf(largest), -np.inf, shifted)
    powers = np.exp(shifted)
    sums = powers.sum(axes, keepdims=True)
    is_masked = (sums == 0) & (algorithm != SoftmaxAlgorithm.FAST)
    if algorithm == SoftmaxAlgorithm.LOG:
        return np.where(is_masked, -np.inf, shifted - np.log(sums))
    return np.where(is_masked, 0, powers / sums)


def _masks_rows(call: Call, mode: SoftmaxMode) -> bool:
    """Return whether the softmax of values that are all -inf is 0, and not NaN.

    On an H200 it is if the values of a sum are few and neighbours in memory, and not in float64.
    """
    x: TensorSpec = call.specs["x"]
    axes = (1,) if mode == SoftmaxMode.CHANNEL else range(1, x.rank)
    count = prod(x.shape[axis] for axis in axes)
    is_one_row = x.size == prod(x.shape[:2]) or x.strides[1] == 1
    is_row = mode == SoftmaxMode.INSTANCE or is_one_row
    return x.dtype != DataType.DOUBLE and is_row and count <= _LONGEST_MASKED_ROW


@computes(declarations.BACKWARD, dtypes=FLOATS)
def backward(y: Array, dy: Array, algorithm: SoftmaxAlgorithm, mode: SoftmaxMode) -> Array:
    """`cudnnSoftmaxBackward`: return the gradient of x."""
    axes = _axes(y, mode)
    if algorithm == SoftmaxAlgorithm.LOG:
        return np.asarray(dy - np.exp(y) * dy.sum(axes, keepdims=True))
    return np.asarray(y * (dy - (y * dy).sum(axes, keepdims=True)))
