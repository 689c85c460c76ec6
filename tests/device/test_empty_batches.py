"""Operations over an empty batch: their results are empty, or sums of nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn

Operands = dict[str, dnn.DeviceArray]


def check(results: Any, *expected: Any) -> None:
    """Compare results with NumPy's."""
    arrays = results if isinstance(results, tuple) else (results,)
    for result, values in zip(arrays, expected, strict=True):
        assert result.shape == values.shape
        np.testing.assert_array_equal(result.numpy(), values)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((0, 8, 16), (0, 16, 24)),
        ((0, 8, 16), (16, 24)),
        ((1, 8, 16), (0, 16, 24)),
        ((0, 2, 8, 16), (0, 2, 16, 24)),
        ((0, 16), (16, 24)),
        ((2, 0, 16), (2, 16, 24)),
        ((8, 16), (16, 0)),
        ((8, 0), (0, 24)),
    ],
    ids=str,
)
def test_products(handle: dnn.Handle, a: Any, b: Any) -> None:
    left, right = handle.empty(a, "float16"), handle.empty(b, "float16")
    left.copy_from(np.ones(a, np.float16))
    right.copy_from(np.ones(b, np.float16))
    expected = np.ones(a) @ np.ones(b)
    check(dnn.matmul(handle, left, right), expected)
    out = handle.array(np.full(expected.shape, np.nan), dtype="float16")
    check(dnn.matmul(handle, left, right, out=out), expected)
    if expected.size == 0:
        check(dnn.matmul(handle, left, right, activation="relu", alpha=2.0), expected)
    with dnn.matmul.plan(handle, left.spec, right.spec) as plan:
        assert plan.workspace == 0
        check(plan(left, right)["y"], expected)


def test_gradients_of_a_layer(handle: dnn.Handle) -> None:
    """Those of the weights are sums over rows, of which there are none."""
    x, w, dy = (handle.empty(shape, "float16") for shape in ((0, 16), (16, 24), (0, 24)))
    check(dnn.matmul_backward_a(handle, dy, w), np.zeros((0, 16)))
    check(dnn.matmul_backward_b(handle, dy, x), np.zeros((16, 24)))


def test_gradients_of_a_matrix_beside_a_batch(handle: dnn.Handle) -> None:
    x, dy = handle.empty((0, 5, 16), "float16"), handle.empty((0, 5, 24), "float16")
    check(dnn.matmul_backward_b(handle, dy, x, b=(16, 24)), np.zeros((16, 24)))
    check(dnn.matmul_backward_b(handle, dy, x), np.zeros((0, 16, 24)))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("mode", ["layer", "rms", "instance"])
def test_normalisations(handle: dnn.Handle, mode: str, layout: str) -> None:
    x = handle.empty((0, 8, 3, 4), layout=layout)
    channels = (1, 8, 1, 1)
    scale, bias = (handle.array(np.ones(channels, np.float32)) for _ in range(2))
    forward = getattr(dnn, f"{mode}_normalization_forward")
    backward = getattr(dnn, f"{mode}_normalization_backward")
    options = {"bias": bias} if mode == "rms" else {}
    parameters = (scale,) if mode == "rms" else (scale, bias)
    y, *statistics = forward(handle, x, *parameters, training=True, **options)
    assert y.spec.layout == layout
    assert all(values.shape[0] == values.size == 0 for values in statistics)
    check(forward(handle, x, *parameters, **options), np.zeros(x.shape))
    gradients = [np.zeros(x.shape), np.zeros(channels), np.zeros(channels)]
    if mode == "rms":
        gradients.pop()
    check(backward(handle, y, x, scale, *statistics), *gradients)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention(handle: dnn.Handle, dropout: float) -> None:
    q, k = handle.empty((0, 4, 6, 16), "float16"), handle.empty((0, 2, 5, 16), "float16")
    bias = handle.array(np.ones((1, 4, 6, 5)), dtype="float16")
    options = {"causal": True, "bias": bias, "dropout": dropout, "seed": 3}
    o, stats = dnn.scaled_dot_product_attention_forward(
        handle, q, k, k, return_stats=True, **options
    )
    check((o, stats), np.zeros(q.shape), np.zeros((0, 4, 6, 1)))
    check(dnn.scaled_dot_product_attention_forward(handle, q, k, k, **options), np.zeros(q.shape))
    backward = dnn.scaled_dot_product_attention_backward
    gradients = [np.zeros(array.shape) for array in (q, k, k)]
    check(backward(handle, q, k, k, o, q, stats, **options), *gradients)
    with_dbias = backward(handle, q, k, k, o, q, stats, return_dbias=True, **options)
    check(with_dbias, *gradients, np.zeros(bias.shape))


def test_columns(handle: dnn.Handle) -> None:
    check(dnn.im2col(handle, handle.empty((0, 3, 5, 6)), (1, 3, 2, 2)), np.zeros((12, 0)))
    with dnn.im2col.plan(handle, dnn.TensorSpec((0, 3, 5, 6)), (1, 3, 2, 2)) as plan:
        assert plan(handle.empty((0, 3, 5, 6))).shape == (12, 0)


def test_a_graph_of_a_user(handle: dnn.Handle) -> None:
    graph = dnn.Graph()
    x = graph.input("x", (0, 4, 8), "float16")
    graph.output("y", graph.relu(graph.matmul(x, graph.input("w", (1, 8, 5), "float16"))))
    operands = {"x": handle.empty((0, 4, 8), "float16"), "w": handle.empty((1, 8, 5), "float16")}
    with graph.plan(handle) as plan:
        assert plan.choice is None
        assert plan(**operands)["y"].shape == (0, 4, 5)


def test_what_is_no_sum_is_refused(handle: dnn.Handle) -> None:
    """A product of nothing is zero; what is behind it would have to be computed."""
    a, b = handle.empty((8, 0), "float16"), handle.empty((0, 24), "float16")
    with pytest.raises(dnn.ArgumentError, match=r"^y has values, and the batch is empty"):
        dnn.matmul(handle, a, b, activation="gelu")


def test_a_tuner_measures_no_empty_batch(handle: dnn.Handle) -> None:
    with dnn.autotuned(handle, cache=":memory:"):
        a, b = handle.empty((0, 8, 16), "float16"), handle.empty((16, 24), "float16")
        check(dnn.matmul(handle, a, b), np.zeros((0, 8, 24)))
