"""Columns."""

from __future__ import annotations

import numpy as np

import cudnnlite as dnn
import samples as s


def _reference(x, w, conv):
    """Return what one-hot filters make of the images, one after the other, by ONNX."""
    from oracles import onnx_convolution

    taps = np.eye(int(np.prod(w.shape[1:]))).reshape(-1, *w.shape[1:])
    steps = conv.steps(x.ndim - 2)
    y = onnx_convolution(
        x, taps, *steps, conv.groups, conv.mode == dnn.enums.ConvolutionMode.CONVOLUTION
    )
    return y.swapaxes(0, 1).reshape(len(taps), -1)


def _w(images, taps=(3, 2)):
    return dnn.FilterSpec((6, images[1], *taps[: len(images) - 2]))


def _make(plain):
    plain = {"stride": 1} | plain
    return {"w": _w(s.IMAGES[4]), "conv": dnn.ConvolutionSpec(padding=1, **plain)}


_SETS = ({}, {"stride": 2}, {"dilation": 2}, {"mode": "convolution"})


def _combinations(name):
    return (key for key in s.usual_combinations(name, _SETS) if key[2] == 4)


def _drawn(draw, images):
    from hypothesis import strategies as st

    images = images[:4]
    taps = s.steps(draw, ((1, min(3, size)) for size in images[2:]))
    padding, stride = s.steps(draw, ((0, 2) for _ in taps)), s.steps(draw, ((1, 3) for _ in taps))
    mode = draw(st.sampled_from(("cross_correlation", "convolution")))
    return {"x": images}, {
        "w": _w(images, taps),
        "conv": dnn.ConvolutionSpec(padding, stride, mode=mode),
    }


SAMPLES = {
    "im2col": s.Sample(
        {"w": _w((2, 4, 9, 7)), "conv": dnn.ConvolutionSpec(padding=1)},
        (2, 4, 9, 7),
        reference=_reference,
        drawn=_drawn,
        make=_make,
        combinations=_combinations,
    ),
}
