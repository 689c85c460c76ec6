"""What cuDNN is told of tensors that are never in memory."""

from __future__ import annotations

import itertools

import pytest

import cudnnlite as dnn
from cudnnlite.graph.lowering import described_strides, has_channels_last_results

SHAPES = {"x": (2, 8, 5, 7), "w": (24, 8, 3, 3), "bias": (1, 24, 1, 1), "z": (2, 24, 5, 7)}


def residual(layout: str, order: tuple[str, ...]) -> dnn.Graph:
    """Return relu(conv(x, w) + z + bias), whose inputs are declared in an order."""
    graph = dnn.Graph()
    t = {name: graph.input(name, SHAPES[name], "float16", layout=layout) for name in order}
    y = graph.convolution_forward(t["x"], t["w"], dnn.ConvolutionSpec(padding=1))
    graph.output("y", graph.relu(y + t["z"] + t["bias"]), "float16", layout=layout)
    return graph


@pytest.mark.parametrize("order", list(itertools.permutations(SHAPES)))
def test_virtual_images_have_the_layout_of_the_result(order):
    graph = residual("NHWC", order)
    assert has_channels_last_results(graph)
    virtual = [record for record in graph.tensors if not record.name]
    assert len(virtual) == 3
    for record in virtual:
        expected = dnn.TensorSpec(record.shape, layout="NHWC").strides
        assert described_strides(record, all_fit=True) == expected
    assert not has_channels_last_results(residual("NCHW", order))


def test_strides_that_are_given_stay():
    graph = dnn.Graph()
    strides = (35 * 24, 1, 7 * 24, 24)
    given = graph.virtual(SHAPES["z"], "float32", strides)
    assert described_strides(given.record, all_fit=True) == strides
    x = graph.input("x", SHAPES["x"]).record
    assert described_strides(x, all_fit=False) == (280, 35, 7, 1)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_an_image_of_one_pixel_has_the_layout_of_the_others(layout):
    """Its strides on axes of size 1 say nothing, and cuDNN went by them."""
    graph = dnn.Graph()
    x = graph.input("x", (3, 4, 1, 1), "float32", layout="NHWC")
    w = graph.input("w", (5, 4, 1, 1), "float32", layout=layout)
    y = graph.convolution_forward(x, w, dnn.ConvolutionSpec())
    graph.output("y", graph.swish(y), "float32", layout=layout)
    assert has_channels_last_results(graph)
    for record in graph.tensors:
        expected = dnn.TensorSpec(record.shape, layout="NHWC").strides
        assert described_strides(record, all_fit=True) == expected
