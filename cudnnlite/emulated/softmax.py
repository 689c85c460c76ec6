"""Emulated softmax."""

from __future__ import annotations

import numpy as np

from cudnnlite.emulated.operation import Array, computes
from cudnnlite.enums import SoftmaxAlgorithm, SoftmaxMode
from cudnnlite.operations.operation import FLOATS


def _axes(values: Array, mode: SoftmaxMode) -> tuple[int, ...]:
    return (1,) if mode == SoftmaxMode.CHANNEL else tuple(range(1, values.ndim))


@computes("softmax_forward", "cudnnSoftmaxForward", dtypes=FLOATS)
def forward(x: Array, algorithm: SoftmaxAlgorithm, mode: SoftmaxMode) -> Array:
    """Return the softmax, or its logarithm."""
    axes = _axes(x, mode)
    shifted = x if algorithm == SoftmaxAlgorithm.FAST else x - x.max(axes, keepdims=True)
    sums = np.exp(shifted).sum(axes, keepdims=True)
    return np.asarray(shifted - np.log(sums) if algorithm == SoftmaxAlgorithm.LOG else np.exp(shifted) / sums)


@computes("softmax_backward", "cudnnSoftmaxBackward", dtypes=FLOATS)
def backward(y: Array, dy: Array, algorithm: SoftmaxAlgorithm, mode: SoftmaxMode) -> Array:
    """Return the gradient of x."""
    axes = _axes(y, mode)
    if algorithm == SoftmaxAlgorithm.LOG:
        return np.asarray(dy - np.exp(y) * dy.sum(axes, keepdims=True))
    return np.asarray(y * (dy - (y * dy).sum(axes, keepdims=True)))
