"""What cuDNN is told of tensors that are never in memory."""

from __future__ import annotations

import itertools

import pytest

import cudnnlite as dnn
from cudnnlite.graph.lowering import has_channels_last_results, strides_between

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
        assert strides_between(record) == dnn.TensorSpec(record.shape, layout="NHWC").strides
    assert not has_channels_last_results(residual("NCHW", order))


def test_strides_that_are_given_stay():
    graph = dnn.Graph()
    strides = (35 * 24, 1, 7 * 24, 24)
    given = graph.virtual(SHAPES["z"], "float32", strides)
    assert strides_between(given.record) == strides
    assert strides_between(graph.input("x", SHAPES["x"]).record) == (280, 35, 7, 1)
