"""The float64 reference of graphs beside NumPy straight from the definitions."""

import math

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.layers.matmul import product_graph
from cudnnlite.workbench.bench.lists import attention_problem, matmul_problem
from cudnnlite.workbench.tuning.graph_reference import computed_images, reference, why_no_reference

RANDOM = np.random.default_rng(8)


def attention(q, k, v, causal):
    heads = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, heads, 1), np.repeat(v, heads, 1)
    scores = np.einsum("nhtd,nhsd->nhts", q, k) / math.sqrt(q.shape[-1])
    if causal:
        hidden = np.triu(np.ones(scores.shape[-2:], bool), 1)
        scores = np.where(hidden, -np.inf, scores)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("nhts,nhsd->nhtd", powers / powers.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "steps", "kv_steps", "size"),
    [(4, 2, 6, 9, 8), (3, 3, 1, 5, 4), (2, 1, 7, 7, 1)],
)
def test_attention(heads, kv_heads, steps, kv_steps, size, causal):
    problem = attention_problem(
        3, heads, steps, size, "float16", kv_heads=kv_heads, kv_steps=kv_steps, causal=causal
    )
    inputs = {
        name: RANDOM.standard_normal(record.shape).astype(np.float16)
        for name, record in problem.graph.inputs.items()
    }
    expected = attention(*(inputs[name].astype(np.float64) for name in "qkv"), causal)
    assert computed_images(problem.graph) == [0, 2]
    for image in (0, 2):
        (o,) = reference(problem.graph, inputs, image).values()
        np.testing.assert_allclose(o, expected[image : image + 1], rtol=1e-12, atol=1e-12)


def test_a_product_with_bias_and_activation():
    problem = matmul_problem(2, 5, 7, 3, "float16", bias=True, activation="gelu")
    inputs = {
        name: RANDOM.standard_normal(record.shape).astype(np.float16)
        for name, record in problem.graph.inputs.items()
    }
    a, b, bias = (values.astype(np.float64) for values in inputs.values())
    x = a @ b + bias
    gelu = np.vectorize(lambda value: value * (1 + math.erf(value / math.sqrt(2))) / 2)(x)
    for image in (0, 1):
        (y,) = reference(problem.graph, inputs, image).values()
        np.testing.assert_allclose(y, gelu[image : image + 1], rtol=1e-12)


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((2, 3, 5, 7), (7, 4)),
        ((2, 3, 5, 7), (1, 1, 7, 4)),
        ((5, 7), (3, 7, 4)),
        ((5, 7), (7, 4)),
        ((2, 3, 5, 7), (2, 3, 7, 4)),
    ],
)
def test_products_of_any_axes(a_shape, b_shape):
    specs = {"a": dnn.TensorSpec(a_shape), "b": dnn.TensorSpec(b_shape)}
    graph = product_graph(specs, None, None, has_alpha=False)
    inputs = {name: RANDOM.standard_normal(spec.shape) for name, spec in specs.items()}
    expected = (inputs["a"] @ inputs["b"]).reshape(graph.outputs["y"].shape)
    images = computed_images(graph)
    assert images == sorted({0, len(expected) - 1})
    for image in images:
        (y,) = reference(graph, inputs, image).values()
        np.testing.assert_allclose(y, expected[image : image + 1], rtol=1e-12)


def test_what_mixes_images_has_no_reference():
    graph = dnn.Graph()
    x = graph.input("x", (4, 5, 7))
    total = graph.virtual((1, 5, 7))
    graph.node("REDUCTION", {"operator": "ADD"}, reads={"xdesc": x}, writes={"ydesc": total})
    graph.output("y", graph.exp(x) * graph.exp(total))
    assert why_no_reference(graph) == "REDUCTION across images has no reference"


def test_what_has_no_reference_says_so():
    graph = dnn.Graph()
    x = graph.input("x", (2, 8, 9, 7), "float16")
    w = graph.input("w", (4, 8, 3, 3), "float16")
    graph.output("y", graph.convolution_forward(x, w), "float16")
    assert why_no_reference(graph) == "CONVOLUTION_FORWARD has no reference"
    with pytest.raises(ArgumentError, match="CONVOLUTION_FORWARD has no reference"):
        reference(graph, {}, 0)
    leaky = matmul_problem(1, 5, 7, 3, "float16", activation="leaky_relu").graph
    assert why_no_reference(leaky) == "RELU_FWD with parameters has no reference"
    large = attention_problem(1, 64, 2048, 8, "float16").graph
    assert "is too large for NumPy" in why_no_reference(large)
