"""Emulated activations."""

from __future__ import annotations

import numpy as np

from cudnnlite.emulated.operation import Array, computes
from cudnnlite.enums import ActivationMode, NanPropagation
from cudnnlite.operations.operation import FLOATS
from cudnnlite.specs.layers import ActivationSpec


def _relu(x: Array, spec: ActivationSpec) -> Array:
    # a NaN that is not propagated is the smallest value
    values = x if spec.nan == NanPropagation.PROPAGATE else np.where(np.isnan(x), 0, x)
    return np.clip(values, 0, spec.coef if spec.mode == ActivationMode.CLIPPED_RELU else None)


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * x))  # overflows nowhere


@computes("activation_forward", "cudnnActivationForward", dtypes=FLOATS)
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


@computes("activation_backward", "cudnnActivationBackward", dtypes=FLOATS)
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
