"""Invalid arguments of convolutions."""

from __future__ import annotations

import cudnnlite as dnn

from .case import Case

X, W = dnn.TensorSpec((0, 3, 8, 8)), dnn.FilterSpec((4, 3, 3, 3))


def make_plan(h, padding=1, **options):
    return dnn.convolution_forward.plan(h, X, W, dnn.ConvolutionSpec(padding), **options)


def make_gradient(h, x, out):
    dy, w = h.empty((1, 4, 6, 6)), h.empty((4, 3, 3, 3))
    return dnn.convolution_backward_data(h, w, dy, x=x, out=h.empty((1, 3, 8, 8), *out))


CASES: dict[str, Case] = {
    "a number as a spec": (
        lambda h: dnn.convolution_forward(h, h.empty((1, 3, 8, 8)), h.empty((4, 3, 3, 3)), 1),
        r"conv=1 is not a ConvolutionSpec: dnn.ConvolutionSpec\(padding, stride, dilation, ...\)",
    ),
    "a window of images whose channels are last": (
        lambda h: dnn.convolution_forward(
            h,
            h.empty((1, 8, 9, 9), layout="NHWC")[:, :, 1:, 1:],
            h.empty((4, 8, 3, 3), layout="NHWC"),
            algorithm="IMPLICIT_GEMM",
        ),
        r"(?m)^x: with gaps, or axes in an order of their own; .copy\(\) is without gaps$",
    ),
    "a result of another data type": (  # the first line says it
        lambda h: dnn.convolution_forward(
            h,
            h.empty((1, 4, 9, 9)),
            h.empty((4, 4, 3, 3)),
            interface="descriptor",
            out=h.empty((1, 4, 7, 7), "float16"),
        ),
        r"^[^\n]*: out is float16, x is float32; give out the dtype of x\n  x = ",
    ),
    "integers with the channels first": (
        lambda h: dnn.convolution_forward(
            h, h.empty((1, 8, 9, 9), "int8"), h.empty((4, 8, 3, 3), "int8")
        ),
        r"int8 runs with the channels last \(layout='NHWC'\) in x and w, and in multiples of four",
    ),
    "a bias of bfloat16": (
        lambda h: dnn.convolution_backward_bias(h, h.empty((1, 8, 9, 9), "bfloat16")),
        (
            r"(?m)^bfloat16 is not summed: transform_tensor\(handle, dy, dtype='float32'\) "
            r"converts it if the channels"
        ),
    ),
    "a replay of no images": (lambda h: make_plan(h, replay=3), "replay=3"),
    "both of no images": (
        lambda h: make_plan(h, interface="descriptor", algorithm=dnn.Engine(0)),
        "interface='descriptor' and",
    ),
    "uneven no images": (
        lambda h: make_plan(h, ((0, 1), 0), interface="descriptor"),
        "only graphs pad the two ends",
    ),
    "an output of another type": (
        lambda h: make_gradient(h, dnn.TensorSpec((1, 3, 8, 8)), ("float16",)),
        "out is .*float16.*; the result is as x says, TensorSpec",
    ),
    "an output that lies otherwise": (
        lambda h: make_gradient(h, dnn.TensorSpec((1, 3, 8, 8)), ("float32", "NHWC")),
        "out is .*NHWC.*; the result is as x says",
    ),
}
