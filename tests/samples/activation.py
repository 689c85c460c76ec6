"""Activations."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

import cudnnlite as dnn
import samples as s
from cudnnlite.emulated import activation as emulated_activation

FUNCTIONS = {  # as ONNX and SciPy define them
    "SIGMOID": lambda x, coef: expit(x),
    "RELU": lambda x, coef: np.maximum(x, 0),
    "TANH": lambda x, coef: np.tanh(x),
    "CLIPPED_RELU": lambda x, coef: np.clip(x, 0, coef),
    "ELU": lambda x, coef: np.where(x > 0, x, coef * (np.exp(x) - 1)),
    "SWISH": lambda x, coef: x * expit(coef * x),
}


def _reference(x, activation):
    return FUNCTIONS[activation.mode.name](x, activation.coef)


def _slope(y, dy, x, activation):
    """Return the emulation's gradient, with PyTorch's slope at kinks.

    At kinks an H200 takes the slope of the other side.
    """
    mode, coef = activation.mode.name, activation.coef
    dx = emulated_activation.backward(y, dy, x, activation)
    if mode == "ELU":
        return np.where(x == 0, coef * dy, dx)
    return np.where(x == coef, 0, dx) if mode == "CLIPPED_RELU" else dx


def _make(plain):
    return {"activation": dnn.ActivationSpec(**plain)}


def _drawn(draw, images):
    from hypothesis import strategies as st

    mode = draw(st.sampled_from([*FUNCTIONS]))
    coef = draw(st.sampled_from((0.5, 1.5))) if mode in ("CLIPPED_RELU", "ELU", "SWISH") else None
    return {"activation": dnn.ActivationSpec(mode, coef)}


_SETS = (
    *({"mode": mode} for mode in FUNCTIONS),
    {"mode": "CLIPPED_RELU", "coef": 0.5},
    {"mode": "ELU", "coef": 0.5},
    {"mode": "SWISH", "coef": 1.5},
    {"mode": "RELU", "nan": "NOT_PROPAGATE"},
)
_FORWARD = s.Sample(
    {"activation": dnn.ActivationSpec("swish", 1.5)},
    reference=_reference,
    drawn=_drawn,
    sets=_SETS,
    make=_make,
)
SAMPLES = {
    "activation_forward": _FORWARD._replace(combinations=s.usual_and_between_layouts(_SETS)),
    "activation_backward": _FORWARD._replace(reference=_slope),
}
