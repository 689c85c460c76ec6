"""Emulated activations."""

from __future__ import annotations

import numpy as np

from cudnnlite.emulated.operation_call import Array, computes, never_refused
from cudnnlite.enums import ActivationMode, NanPropagation
from cudnnlite.problems import activation as declarations
from cudnnlite.problems.operation import FLOATS
from cudnnlite.specs.layers import ActivationSpec


def _relu(x: Array, spec: ActivationSpec) -> Array:
    upper = spec.coef if spec.mode == ActivationMode.CLIPPED_RELU else None
    if spec.nan != NanPropagation.PROPAGATE:
        # A NaN that is not propagated becomes the smallest value.
        x = np.where(np.isnan(x), 0, x)
    return np.clip(x, 0, upper)


def _sigmoid(x: Array) -> Array:
    # This form does not overflow anywhere.
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * x))


@computes(declarations.FORWARD, dtypes=FLOATS, why_refused=never_refused)
def forward(x: Array, activation: ActivationSpec) -> Array:
    """`cudnnActivationForward`: return the function of each value."""
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


@computes(declarations.BACKWARD, dtypes=FLOATS)
def backward(y: Array, dy: Array, x: Array, activation: ActivationSpec) -> Array:
    """`cudnnActivationBackward`: return the gradient of x.

    That of sigmoid and tanh is computed from y, the others from x.  At a kink the slope is the one
    that cuDNN returned on an H200.
    """
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
