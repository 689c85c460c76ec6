"""A data type with which cuDNN computes wrongly is refused by the tensor's name, before it is asked.

The rows were recorded on an H200 with cuDNN 9.19 and 9.28 (2026-11-29).
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers.faults import why_wrong

import cudnnlite as dnn

HEADS, MATRICES = (2, 2, 16, 32), (2, 16, 24)


def spec(shape: tuple[int, ...], dtype: str) -> dnn.TensorSpec:
    return dnn.TensorSpec(shape, dtype)


def attention(dtype: str, **options: bool) -> dnn.Graph:
    q = spec(HEADS, dtype)
    bias = spec((2, 1, 16, 16), dtype)
    return dnn.scaled_dot_product_attention_forward.graph(
        q, q, q, bias=bias, return_stats=True, **options
    )


def attention_of_lengths(dtype: str) -> dnn.Graph:
    q, lengths = spec(HEADS, dtype), spec((2, 1, 1, 1), "int32")
    return dnn.scaled_dot_product_attention_forward.graph(
        q, q, q, q_lengths=lengths, kv_lengths=lengths, dropout=0.25
    )


def gradients(dtype: str, *, return_dbias: bool = False) -> dnn.Graph:
    q, stats = spec(HEADS, dtype), spec((2, 2, 16, 1), "float32")
    bias = spec((1, 2, 16, 16), dtype)
    return dnn.scaled_dot_product_attention_backward.graph(
        *[q] * 5, stats, bias=bias, causal=True, return_dbias=return_dbias
    )


def gradients_of_bias(dtype: str) -> dnn.Graph:
    return gradients(dtype, return_dbias=True)


def grouped_gradients(dtype: str) -> dnn.Graph:
    q, k = spec((2, 4, 16, 32), dtype), spec(HEADS, dtype)
    stats = spec((2, 4, 16, 1), "float32")
    return dnn.scaled_dot_product_attention_backward.graph(q, k, k, q, q, stats)


def layer_normalization(dtype: str) -> dnn.Graph:
    x, scale = spec((4, 24, 1, 1), dtype), spec((1, 24, 1, 1), "float32")
    return dnn.layer_normalization_forward.graph(x, scale, scale, training=True)


def layer_gradients(dtype: str) -> dnn.Graph:
    x, scale = spec((4, 24, 1, 1), dtype), spec((1, 24, 1, 1), "float32")
    sums = spec((4, 1, 1, 1), "float32")
    return dnn.layer_normalization_backward.graph(x, x, scale, sums, sums)


def product(dtype: str) -> dnn.Graph:
    a, b, bias = spec(MATRICES, dtype), spec((2, 24, 8), dtype), spec((8,), dtype)
    return dnn.matmul.graph(a, b, bias=bias, activation="relu")


def convolution(dtype: str) -> dnn.Graph:
    graph = dnn.Graph()
    x, w = graph.input("x", (2, 8, 5, 6), dtype), graph.input("w", (4, 8, 3, 3), dtype)
    bias = graph.input("bias", (1, 4, 1, 1), dtype)
    y = graph.convolution_forward(x, w, dnn.ConvolutionSpec(1)) + bias
    graph.output("y", graph.relu(y), dtype)
    return graph


# The graph, the tensor, the type that is allowed, and types that are wrong or end the process.
ROWS = [
    (attention, "k", "the others'", ("float32", "int32")),
    (attention, "v", "the others'", ("float32",)),
    (attention, "o", "the others'", ("float32",)),
    (attention, "bias", "float32", ("uint8", "int8", "int64", "float64", "float8_e5m2")),
    (attention, "stats", "float32", ("float16", "bfloat16", "float64", "int8")),
    (attention_of_lengths, "q_lengths", "int32", ("float16", "int64", "float8_e4m3fn")),
    (attention_of_lengths, "kv_lengths", "int32", ("bfloat16", "float32")),
    (gradients, "k", "the others'", ("float32", "int64")),
    (gradients, "v", "the others'", ("float32", "int32")),
    (gradients, "o", "the others'", ("float32", "int8")),
    (gradients, "do", "the others'", ("float32", "float64")),
    (gradients, "stats", "float32", ("float64", "int8", "float8_e5m2")),
    (gradients, "bias", "float32", ("uint8", "int64", "float64")),
    (gradients, "row_sums", "float32", ("int8", "bfloat16", "float8_e4m3fn")),
    (gradients, "dq_sums", "float32", ("int8", "float16")),
    (gradients, "dq", "the others'", ("float32", "uint8")),
    (gradients, "dk", "the others'", ("float32",)),
    (gradients, "dv", "the others'", ("float32", "int8")),
    (gradients_of_bias, "bias", "the others'", ("float32", "uint8", "int64")),
    (gradients_of_bias, "dbias", "the others'", ("float32", "int8")),
    (grouped_gradients, "dk", "the others'", ("float32", "int8")),
    (layer_normalization, "scale", "float32", ("int8", "float64")),
    (layer_normalization, "bias", "float32", ("float16", "bfloat16")),
    (layer_normalization, "mean", "float32", ("float64",)),
    (layer_normalization, "inv_variance", "float32", ("int32",)),
    (layer_gradients, "dx", "the others'", ("float32",)),
    (layer_gradients, "dscale", "float32", ("float16",)),
    (product, "bias", "float32", ("float64",)),
    (product, "y", "float32", ("float64", "int64", "int8")),
    (convolution, "w", "the others'", ("float16", "bfloat16")),
    (convolution, "bias", "float32", ("float64",)),
    (convolution, "y", "float32", ("float64", "int8", "int32")),
]


def with_dtype(graph: dnn.Graph, name: str, dtype: str) -> dnn.Graph:
    """Return a graph in which one tensor has another data type."""
    plain = graph.to_plain()
    for tensor in plain["tensors"]:
        if tensor["name"] == name:
            tensor["dtype"] = dtype
    return dnn.Graph.from_plain(plain)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("make", "name", "allowed", "wrong"), ROWS)
def test_a_type_that_is_wrong_is_refused_by_name(make, name, allowed, wrong, dtype, own_handle):
    graph = make(dtype)
    right = dtype if allowed == "the others'" else allowed
    assert why_wrong(with_dtype(graph, name, right)) is None
    for other in wrong:
        changed = with_dtype(graph, name, other)
        if other == dtype:
            continue
        with pytest.raises(dnn.ArgumentError, match=rf"^{name} is {other}; needed .*{right}"):
            changed.plan(own_handle)


@pytest.mark.parametrize("make", [attention, gradients])
@pytest.mark.parametrize("other", ["float32", "int8", "float8_e4m3fn"])
def test_another_type_of_q_is_named_beside_the_next_operand(make, other, own_handle):
    changed = with_dtype(make("float16"), "q", other)
    with pytest.raises(dnn.ArgumentError, match=rf"^(k|do) is float16; needed beside q of {other}"):
        changed.plan(own_handle)


@pytest.mark.parametrize("other", ["int8", "int32", "int64"])
def test_a_product_of_integers_and_floats_is_refused(other, own_handle):
    """int64 by float32 is NaN (H200, 9.19)."""
    changed = with_dtype(product("float32"), "a", other)
    with pytest.raises(
        dnn.ArgumentError, match=rf"^b is float32; needed beside a of {other}: int8"
    ):
        changed.plan(own_handle)


def test_the_bias_of_attention_is_refused_before_cudnn_is_asked(own_handle):
    q = own_handle.array(np.ones((1, 1, 9, 16)), dtype="float16")
    bias = own_handle.array(np.ones((1, 1, 9, 9), np.uint8))
    with pytest.raises(dnn.ArgumentError, match=r"^bias is uint8; needed .*: float16 or float32"):
        dnn.scaled_dot_product_attention_forward(own_handle, q, q, q, bias=bias)
    o, stats = dnn.scaled_dot_product_attention_forward(own_handle, q, q, q, return_stats=True)
    bias = own_handle.array(np.ones((1, 1, 9, 9), np.float32))
    with pytest.raises(dnn.ArgumentError, match=r"^bias is float32; needed .*: float16;"):
        dnn.scaled_dot_product_attention_backward(
            own_handle, q, q, q, o, q, stats, bias=bias, return_dbias=True
        )


@pytest.mark.parametrize("order", list(itertools.permutations("xws")))
def test_the_order_of_inputs_decides_nothing(order):
    """int8 times a float32 scale is int8 again, whichever input was declared first."""
    shapes = {"x": (2, 8, 5, 6), "w": (4, 8, 3, 3), "s": (1, 4, 1, 1)}
    graph = dnn.Graph()
    t = {n: graph.input(n, shapes[n], "float32" if n == "s" else "int8") for n in order}
    y = graph.convolution_forward(t["x"], t["w"], dnn.ConvolutionSpec(1)) * t["s"]
    graph.output("y", y, "int8")
    assert why_wrong(graph) is None


@pytest.mark.parametrize("order", list(itertools.permutations(("a", "b", "bias"))))
def test_what_multiplies_is_named_beside_a_wrong_type(order):
    shapes = {"a": (2, 5, 24), "b": (2, 24, 8), "bias": (1, 1, 8)}
    graph = dnn.Graph()
    t = {n: graph.input(n, shapes[n], "float64" if n == "bias" else "float16") for n in order}
    graph.output("y", graph.matmul(t["a"], t["b"]) + t["bias"], "float16")
    reason = why_wrong(graph)
    assert reason is not None
    assert reason.startswith("bias is float64; needed beside a of float16: float16")


def test_a_product_that_lacks_an_operand_is_left_to_cudnn(own_handle):
    graph = dnn.Graph()
    b = graph.input("b", (2, 24, 8), "float16")
    c = graph.virtual((2, 5, 8))
    graph.node("MATMUL", {"comp_type": "float32"}, reads={"bdesc": b}, writes={"cdesc": c})
    d = graph.input("d", (2, 8, 6), "float16")
    graph.output("y", graph.matmul(graph.exp(c), d), "float16")
    with pytest.raises(dnn.CudnnError):
        graph.plan(own_handle)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_two_products_side_by_side_are_no_attention(dtype):
    graph = dnn.Graph()
    a, b, d = (
        graph.input(name, shape, dtype)
        for name, shape in {"a": (2, 16, 24), "b": (2, 24, 5), "d": (2, 24, 5)}.items()
    )
    graph.output("y", graph.swish(graph.matmul(a, b)) * graph.matmul(a, d), dtype)
    assert why_wrong(graph) is None


def test_a_product_of_a_product_is_refused_without_a_softmax():
    graph = dnn.Graph()
    a = graph.input("a", (2, 16, 24), "float32")
    b = graph.input("b", (2, 24, 32), "float32", (768, 1, 24))
    d = graph.input("d", (2, 32, 40), "float32", (1280, 1, 32))
    graph.output("y", graph.matmul(graph.relu(graph.matmul(a, b)), d), "float32")
    reason = why_wrong(graph)
    assert reason is not None
    assert "product of a product" in reason
    assert "size of a head" not in reason
