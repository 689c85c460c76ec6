"""Convolution and its gradients; what an H200 supports of them has a recorder of its own."""

from __future__ import annotations

from oracles import onnx_convolution, onnx_gradient_of_w, onnx_gradient_of_x
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
        conv.mode == dnn.enums.ConvolutionMode.CONVOLUTION,
    )


def _drawn(draw, images):
    taps = s.steps(draw, ((1, min(3, size)) for size in images[2:]))
    padding, stride = s.steps(draw, ((0, 2) for _ in taps)), s.steps(draw, ((1, 3) for _ in taps))
    (filters,) = s.steps(draw, ((1, 4),))
    conv = dnn.ConvolutionSpec(padding, stride, math_type="fma")
    return {"x": images, "w": (filters, images[1], *taps)}, {"conv": conv}


def _steps(conv, rank):
    return *conv.steps(rank - 2), conv.groups, conv.mode == dnn.enums.ConvolutionMode.CONVOLUTION


def _gradient_of_x(w, dy, conv):
    """With stride 1, so that the shape of x follows; other strides have a test of their own."""
    padding, _, dilation = conv.steps(dy.ndim - 2)
    axes = zip(dy.shape[2:], w.shape[2:], padding, dilation, strict=True)
    image = [size - 2 * pad + step * (taps - 1) for size, taps, pad, step in axes]
    return onnx_gradient_of_x(
        (len(dy), w.shape[1] * conv.groups, *image), w, dy, *_steps(conv, dy.ndim)
    )


def _gradient_of_w(x, dy, conv):
    padding, _, dilation = conv.steps(dy.ndim - 2)
    axes = zip(x.shape[2:], dy.shape[2:], padding, dilation, strict=True)
    taps = [(size + 2 * pad - out) // step + 1 for size, out, pad, step in axes]
    return onnx_gradient_of_w(
        x, (dy.shape[1], x.shape[1] // conv.groups, *taps), dy, *_steps(conv, dy.ndim)
    )


def _drawn_gradient(written):
    def drawn(draw, images):
        shapes, options = _drawn(draw, images)
        conv = options["conv"].replace(stride=1)
        shapes["dy"] = conv.output_shape(shapes["x"], shapes["w"])
        del shapes[written]
        return shapes, {"conv": conv}

    return drawn


GROUPED = dnn.ConvolutionSpec(
    padding=(1, 0), dilation=(2, 1), groups=2, mode="convolution", math_type="fma"
)
SAMPLES = {
    "convolution_forward": s.Sample(
        {"conv": dnn.ConvolutionSpec(padding=1, math_type="fma")},
        (2, 4, 9, 7),
        lambda images, plain: {"x": images, "w": (6, 4, 3, 2)},
        _reference,
        bounds=CONVOLUTION_BOUNDS,
        drawn=_drawn,
        sets=(),
    ),
    "convolution_backward_data": s.Sample(
        {"conv": GROUPED},
        (2, 4, 9, 7),
        lambda images, plain: {"w": (6, 2, 3, 2), "dy": (2, 6, 7, 6)},
        _gradient_of_x,
        forward="convolution_forward",
        bounds=CONVOLUTION_BOUNDS,
        drawn=_drawn_gradient("x"),
        sets=(),
    ),
    "convolution_backward_filter": s.Sample(
        {"conv": GROUPED},
        (2, 4, 9, 7),
        lambda images, plain: {"x": images, "dy": (2, 6, 7, 6)},
        _gradient_of_w,
        forward="convolution_forward",
        bounds=CONVOLUTION_BOUNDS,
        drawn=_drawn_gradient("w"),
        sets=(),
    ),
}
