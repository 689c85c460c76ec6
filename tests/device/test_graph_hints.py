"""What the error for a graph without an engine names instead; an H100 recorded both."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import cudnnlite as dnn


def wide_product() -> dnn.Graph:
    graph = dnn.Graph()
    a, b = graph.input("a", (3, 64, 32), "float64"), graph.input("b", (3, 32, 48), "float64")
    graph.output("y", a @ b, "float64")
    return graph


def product_of_four_axes() -> dnn.Graph:
    graph = dnn.Graph()
    a, b = graph.input("a", (2, 3, 64, 32), "float16"), graph.input("b", (2, 3, 32, 48), "float16")
    graph.output("y", a @ b, "float16")
    return graph


def sum_in_float16() -> dnn.Graph:
    graph = dnn.Graph()
    a, b = graph.input("a", (3, 64, 32), "float16"), graph.input("b", (3, 32, 48), "float16")
    graph.output("y", graph.reduce("ADD", a @ b), "float16")
    return graph


def choice_behind_a_product() -> dnn.Graph:
    graph = dnn.Graph()
    a, b = graph.input("a", (3, 64, 32), "float16"), graph.input("b", (3, 32, 48), "float16")
    z = graph.input("z", (1, 1, 48), "float16")
    y = a @ b
    graph.output("y", graph.where(z > 0, y, graph.abs(y)))
    return graph


def images_with_channels_first() -> dnn.Graph:
    graph = dnn.Graph()
    graph.output("y", graph.tanh(graph.input("x", (2, 8, 4, 8), "float16")), "float16")
    return graph


def pooling_with_zeros() -> dnn.Graph:
    graph = dnn.Graph()
    x = graph.input("x", (2, 8, 7, 9), "float16")
    y = graph.resample_forward(
        "MAXPOOL", x, (3, 2), stride=(2, 1), padding=((1, 1), (1, 1)), padding_mode="ZERO"
    )
    graph.output("y", y, "float16")
    return graph


def softmax_alone() -> dnn.Graph:
    graph = dnn.Graph()
    graph.output("y", graph.softmax(graph.input("x", (2, 8, 4, 8), "float16")), "float16")
    return graph


def attention(size: int = 64, *, has_statistics: bool = True) -> dnn.Graph:
    graph = dnn.Graph()
    q, k, v = (graph.input(name, (2, 2, 64, size), "float16") for name in "qkv")
    scores = q @ k.transposed() * size**-0.5
    if has_statistics:
        probabilities, stats = graph.softmax_with_stats(scores, "float16")
        graph.output("stats", stats)
    else:
        powers = graph.exp(scores - graph.reduce("MAX", scores))
        probabilities = graph.div(powers, graph.reduce("ADD", powers), "float16")
    graph.output("o", probabilities @ v, "float16")
    return graph


def gradients_without_a_bias() -> dnn.Graph:
    graph = dnn.Graph()
    dy, x = (graph.input(name, (2, 3, 7, 5), "float16") for name in ("dy", "x"))
    scale = graph.input("scale", (1, 3, 1, 1))
    mean, inv_variance = (graph.input(name, (2, 3, 1, 1)) for name in ("mean", "inv_variance"))
    result = graph.normalization_backward(
        "INSTANCE", dy, x, scale, mean, inv_variance, has_bias=False
    )
    graph.output("dx", result.dx, "float16")
    graph.output("dscale", result.dscale)
    return graph


HINTS = {
    wide_product: "served with a, b, y as float32, as handle.array(values, dtype='float32') "
    "makes them",
    product_of_four_axes: "served with all but two axes as one",
    sum_in_float16: "served with y as float32",
    choice_behind_a_product: "served without CMP_GT, ABS, BINARY_SELECT",
    images_with_channels_first: "served with x, y in NHWC; dnn.activation_forward is the "
    "descriptor call",
    pooling_with_zeros: "served with padding_mode NEG_INF; dnn.pooling_forward is the descriptor "
    "call",
    softmax_alone: "dnn.softmax_forward is the descriptor call",
    gradients_without_a_bias: "served with the gradient of a bias, dbias",
    lambda: attention(36): "served with axes of 36 rounded up to 40",
    lambda: attention(has_statistics=False): "served with the statistics that "
    "Graph.softmax_with_stats computes",
}


@pytest.mark.parametrize(("graph", "hint"), HINTS.items(), ids=[*HINTS.values()])
def test_the_nearest_graph_that_is_served(
    handle: dnn.Handle, graph: Callable[[], dnn.Graph], hint: str
) -> None:
    with pytest.raises(dnn.NotSupportedError) as refusal:
        graph().plan(handle)
    who = "cuDNN's heuristics name"
    if handle.device.kind == "emulated":
        who = "the emulated device has"
    assert refusal.value.detail.endswith(f": {who} no engine for such a graph; {hint}")


def test_without_anything_near(handle: dnn.Handle) -> None:
    """Three operations, none of which has a descriptor call for the whole."""
    graph = dnn.Graph()
    x = graph.input("x", (2, 8, 4, 8), "float16")
    graph.output("y", graph.rsqrt(graph.abs(graph.reduce("MAX", x, (0, 1)))), "float16")
    with pytest.raises(dnn.NotSupportedError) as refusal:
        graph.plan(handle)
    assert "graph of REDUCTION, ABS, RSQRT: " in refusal.value.detail
    assert "descriptor call" not in refusal.value.detail


def test_engines_that_are_passed_over_have_reasons_alone(handle: dnn.Handle) -> None:
    graph = dnn.Graph()
    a, b = graph.input("a", (3, 64, 32)), graph.input("b", (3, 32, 48))
    graph.output("y", a @ b)
    with pytest.raises(dnn.NotSupportedError) as refusal:
        graph.plan(handle, math_type="fma")
    assert "math type FMA was asked for" in refusal.value.detail
    assert "served" not in refusal.value.detail
