"""Emulated activations, softmax among them."""

from __future__ import annotations

import numpy as np

from cudnnlite.emulated.operation import Array, computes, in_any_layout
from cudnnlite.enums import ActivationMode, NanPropagation, SoftmaxAlgorithm, SoftmaxMode
from cudnnlite.problems.operation import FLOATS
from cudnnlite.specs.layers import ActivationSpec


def _relu(x: Array, spec: ActivationSpec) -> Array:
    # a NaN that is not propagated is the smallest value
    values = x if spec.nan == NanPropagation.PROPAGATE else np.where(np.isnan(x), 0, x)
    return np.clip(values, 0, spec.coef if spec.mode == ActivationMode.CLIPPED_RELU else None)


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * x))  # overflows nowhere


@computes("activation_forward", dtypes=FLOATS, refuse=in_any_layout)
def forward(x: Array, activation: ActivationSpec) -> Array:
    """Return the function of each value."""
    coef = x.dtype.type(activation.coef)
    match activation.mode:
        case ActivationMode.SIGMOID:
            return _sigmoid(x)
        case ActivationMode.TANH:
            return np.asarray(np.tanh(x))
        case ActivationMode.ELU:
            return np.where(x > 0, x, coef * np.expm1(np.minimum(x, 0)))
        case ActivationMode.SWISH:
            return np.asarray(x * _sigmoid(coef * x))
    return _relu(x, activation)


@computes("activation_backward", dtypes=FLOATS)
def backward(y: Array, dy: Array, x: Array, activation: ActivationSpec) -> Array:
    """Return the gradient of x: of sigmoid and tanh from y, of the others from x; at a kink the slope that an H200 takes."""
    coef = x.dtype.type(activation.coef)
    match activation.mode:
        case ActivationMode.SIGMOID:
            return np.asarray(dy * y * (1 - y))
        case ActivationMode.TANH:
            return np.asarray(dy * (1 - y * y))
        case ActivationMode.ELU:
            return np.where(x >= 0, dy, dy * coef * np.exp(np.minimum(x, 0)))
        case ActivationMode.SWISH:
            sigmoid = _sigmoid(coef * x)
            return np.asarray(dy * sigmoid * (1 + coef * x * (1 - sigmoid)))
        case ActivationMode.CLIPPED_RELU:
            return np.where((x > 0) & (x <= coef), dy, 0)
    return np.where(x > 0, dy, 0)


def _axes(values: Array, mode: SoftmaxMode) -> tuple[int, ...]:
    return (1,) if mode == SoftmaxMode.CHANNEL else tuple(range(1, values.ndim))


@computes(
    "softmax_forward", dtypes=FLOATS, refuse=in_any_layout
)  # what is computed wrongly is refused before
def softmax(x: Array, algorithm: SoftmaxAlgorithm, mode: SoftmaxMode) -> Array:
    """Return the softmax, or its logarithm."""
    axes = _axes(x, mode)
    shifted = x if algorithm == SoftmaxAlgorithm.FAST else x - x.max(axes, keepdims=True)
    sums = np.exp(shifted).sum(axes, keepdims=True)
    return np.asarray(
        shifted - np.log(sums) if algorithm == SoftmaxAlgorithm.LOG else np.exp(shifted) / sums
    )


@computes("softmax_backward", dtypes=FLOATS)
def softmax_backward(y: Array, dy: Array, algorithm: SoftmaxAlgorithm, mode: SoftmaxMode) -> Array:
    """Return the gradient of x."""
    axes = _axes(y, mode)
    if algorithm == SoftmaxAlgorithm.LOG:
        return np.asarray(dy - np.exp(y) * dy.sum(axes, keepdims=True))
    return np.asarray(y * (dy - (y * dy).sum(axes, keepdims=True)))
