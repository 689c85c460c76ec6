"""Convolution; what an H200 supports of it has a recorder of its own."""

from __future__ import annotations

from oracles import onnx_convolution
from tolerances import CONVOLUTION_BOUNDS

import cudnnlite as dnn
import samples as s


def _reference(x, w, conv):
    return onnx_convolution(
        x,
        w,
        conv.pads(x.ndim - 2),
        *conv.steps(x.ndim - 2)[1:],
        conv.groups,
        conv.mode == dnn.ConvolutionMode.CONVOLUTION,
    )


def _drawn(draw, images):
    taps = s.steps(draw, ((1, min(3, size)) for size in images[2:]))
    padding, stride = s.steps(draw, ((0, 2) for _ in taps)), s.steps(draw, ((1, 3) for _ in taps))
    (filters,) = s.steps(draw, ((1, 4),))
    conv = dnn.ConvolutionSpec(padding, stride, math_type="fma")
    return {"x": images, "w": (filters, images[1], *taps)}, {"conv": conv}


SAMPLES = {
    "convolution_forward": s.Sample(
        {"conv": dnn.ConvolutionSpec(padding=1, math_type="fma")}, (2, 4, 9, 7),
        lambda images, plain: {"x": images, "w": (6, 4, 3, 2)}, _reference,
        bounds=CONVOLUTION_BOUNDS, drawn=_drawn, sets=(),
    ),
}  # fmt: skip
