"""Convolution with bias and activation; what an H200 supports of it has a recorder of its own."""

from __future__ import annotations

import numpy as np
from oracles import onnx_convolution
from tolerances import CONVOLUTION_BOUNDS

import cudnnlite as dnn
import samples as s

FUNCTIONS = {"RELU": lambda v: np.maximum(v, 0), "IDENTITY": lambda v: v}


def _blended(alpha, x, w, bias, conv, activation):
    name = (
        dnn.ActivationSpec(activation).mode.name
        if isinstance(activation, str)
        else activation.mode.name
    )
    sums = onnx_convolution(
        x,
        w,
        conv.pads(x.ndim - 2),
        *conv.steps(x.ndim - 2)[1:],
        conv.groups,
        conv.mode == dnn.enums.ConvolutionMode.CONVOLUTION,
    )
    return FUNCTIONS[name](alpha * sums + bias)


def _reference(x, w, bias, **options):
    return _blended(1.0, x, w, bias, **options)


def _bias(filters, rank):
    return (1, filters, *[1] * (rank - 2))


def _drawn(draw, images):
    from hypothesis import strategies as st

    shapes, options = s.SAMPLES["convolution_forward"].drawn(draw, images)
    activation = dnn.ActivationSpec(draw(st.sampled_from(("relu", "identity"))))
    return {**shapes, "bias": _bias(shapes["w"][0], len(images))}, {
        **options,
        "activation": activation,
    }


SAMPLES = {
    "convolution_bias_activation_forward": s.Sample(
        {
            "conv": dnn.ConvolutionSpec(padding=1, math_type="fma"),
            "activation": dnn.ActivationSpec("relu"),
        },
        (2, 4, 9, 7),
        lambda images, plain: {"x": images, "w": (6, 4, 3, 2), "bias": (1, 6, 1, 1)},
        _reference,
        packed=frozenset({"bias"}),
        blended=_blended,
        bounds=CONVOLUTION_BOUNDS,
        drawn=_drawn,
        sets=(),
    ),
}
