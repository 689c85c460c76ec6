"""Emulated softmax.

The declaration refuses the problems that cuDNN computes wrongly, before the emulation is reached.
"""

from __future__ import annotations

import numpy as np

from cudnnlite.emulated.operation import Array, computes, never_refused
from cudnnlite.enums import SoftmaxAlgorithm, SoftmaxMode
from cudnnlite.problems import softmax as declarations
from cudnnlite.problems.operation import FLOATS


def _axes(values: Array, mode: SoftmaxMode) -> tuple[int, ...]:
    if mode == SoftmaxMode.CHANNEL:
        return (1,)
    return tuple(range(1, values.ndim))


@computes(declarations.FORWARD, dtypes=FLOATS, why_refused=never_refused)
def forward(x: Array, algorithm: SoftmaxAlgorithm, mode: SoftmaxMode) -> Array:
    """`cudnnSoftmaxForward`: return the softmax, or its logarithm."""
    axes = _axes(x, mode)
    shifted = x
    if algorithm != SoftmaxAlgorithm.FAST:
        shifted = x - x.max(axes, keepdims=True)
    powers = np.exp(shifted)
    sums = powers.sum(axes, keepdims=True)
    if algorithm == SoftmaxAlgorithm.LOG:
        return np.asarray(shifted - np.log(sums))
    return np.asarray(powers / sums)


@computes(declarations.BACKWARD, dtypes=FLOATS)
def backward(y: Array, dy: Array, algorithm: SoftmaxAlgorithm, mode: SoftmaxMode) -> Array:
    """`cudnnSoftmaxBackward`: return the gradient of x."""
    axes = _axes(y, mode)
    if algorithm == SoftmaxAlgorithm.LOG:
        return np.asarray(dy - np.exp(y) * dy.sum(axes, keepdims=True))
    return np.asarray(y * (dy - (y * dy).sum(axes, keepdims=True)))
