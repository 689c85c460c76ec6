"""Graphs and the operations that are written as graphs, against float64 sums of NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tolerances import GRAPH_BOUNDS, assert_near

import cudnnlite as dnn

from .problems import fill, poisoned, random_values
from .test_bad_input import ARGUMENT, ARRAY, refuses

Array = np.ndarray[Any, Any]
HALVES = ("float16", "bfloat16")
FLOATS = ("float32", *HALVES)
MODES = ("layer", "rms", "instance")


class Operands:
    """Random operands on the device, and beside them what they hold, in float64."""

    def __init__(self, handle: dnn.Handle, seed: int = 0) -> None:
        self.handle = handle
        self.rng = np.random.default_rng(seed)

    def make(
        self, shape: tuple[int, ...], dtype: str, order: tuple[int, ...] | None = None
    ) -> tuple[dnn.DeviceArray, Array]:
        """Return an array whose axes lie in memory in the order given, and its values."""
        values = random_values(self.rng, shape, dtype)
        strides = None
        if order is not None:
            strides = [0] * len(shape)
            step = 1
            for axis in reversed(order):
                strides[axis] = step
                step *= shape[axis]
        spec = dnn.TensorSpec(shape, dtype, strides=strides)
        array = self.handle.empty(spec)
        array.copy_from(values)
        return array, values.astype(np.float64)

    def poisoned(self, shape: tuple[int, ...], dtype: str) -> dnn.DeviceArray:
        return poisoned(self.handle, dnn.TensorSpec(shape, dtype))


def softmax(scores: Array) -> tuple[Array, Array]:
    """Return the softmax along the last axis, and the logarithm of the sum of exponentials."""
    largest = scores.max(-1, keepdims=True)
    powers = np.exp(scores - largest)
    total = powers.sum(-1, keepdims=True)
    return powers / total, largest + np.log(total)


def masked(scores: Array, *, causal: bool) -> Array:
    """Return scores in which a query sees the keys up to its own step alone."""
    if not causal:
        return scores
    rows, columns = np.indices(scores.shape[-2:])
    return np.where(rows >= columns, scores, -np.inf)


def attention(
    q: Array, k: Array, v: Array, scale: float, bias: Array | float = 0.0, *, causal: bool
) -> tuple[Array, Array]:
    """Return o and the statistics; heads of q in groups share one of k and v."""
    groups = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, groups, 1), np.repeat(v, groups, 1)
    weights, stats = softmax(masked(scale * q @ k.swapaxes(-1, -2) + bias, causal=causal))
    return weights @ v, stats


def attention_gradients(
    q: Array, k: Array, v: Array, do: Array, scale: float, *, causal: bool
) -> tuple[Array, Array, Array]:
    """Return dq, dk and dv."""
    weights, _ = softmax(masked(scale * q @ k.swapaxes(-1, -2), causal=causal))
    dv = weights.swapaxes(-1, -2) @ do
    dweights = do @ v.swapaxes(-1, -2)
    dscores = scale * weights * (dweights - (dweights * weights).sum(-1, keepdims=True))
    return dscores @ k, dscores.swapaxes(-1, -2) @ q, dv


# ------------------------------------------------------------------------------------- attention

SHAPES = {  # batch, heads of q, heads of k and v, steps of q, steps of k, size of q and k, size of v
    "equal": (2, 3, 3, 64, 64, 64, 64),
    "groups": (2, 6, 2, 64, 128, 64, 64),
    "sizes_apart": (1, 2, 2, 72, 136, 64, 32),
    "beyond_a_tile": (1, 2, 1, 192, 192, 32, 32),
    "one_query": (2, 4, 4, 1, 64, 64, 64),
    "one_query_of_groups": (2, 4, 2, 1, 64, 64, 64),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", SHAPES)
def test_attention_forward(handle: dnn.Handle, name: str, dtype: str, causal: bool) -> None:
    if (name, dtype) == ("one_query_of_groups", "float32"):
        return  # it is refused, see below
    batch, heads, kv_heads, steps, kv_steps, size, v_size = SHAPES[name]
    operands = Operands(handle)
    q, q_values = operands.make((batch, heads, steps, size), dtype)
    k, k_values = operands.make((batch, kv_heads, kv_steps, size), dtype)
    v, v_values = operands.make((batch, kv_heads, kv_steps, v_size), dtype)
    scale = 0.37
    o = operands.poisoned((batch, heads, steps, v_size), dtype)
    stats = operands.poisoned((batch, heads, steps, 1), "float32")
    results = dnn.scaled_dot_product_attention_forward(
        handle, q, k, v, scale=scale, causal=causal, return_stats=True, out=(o, stats)
    )
    assert results == (o, stats)
    expected, expected_stats = attention(q_values, k_values, v_values, scale, causal=causal)
    assert_near(o.numpy(), expected, GRAPH_BOUNDS[dtype])
    assert_near(stats.numpy(), expected_stats, GRAPH_BOUNDS[dtype])
    alone = dnn.scaled_dot_product_attention_forward(handle, q, k, v, scale=scale, causal=causal)
    np.testing.assert_array_equal(alone.numpy(), o.numpy())


def test_attention_has_a_usual_scale(handle: dnn.Handle) -> None:
    operands = Operands(handle)
    q, values = operands.make((1, 2, 64, 64), "float16")
    o = dnn.scaled_dot_product_attention_forward(handle, q, q, q)
    expected, _ = attention(values, values, values, 0.125, causal=False)
    assert_near(o.numpy(), expected, GRAPH_BOUNDS["float16"])


@pytest.mark.parametrize("shape", [(2, 3, 64, 128), (1, 3, 64, 128), (1, 1, 64, 128)])
def test_attention_with_a_bias(handle: dnn.Handle, shape: tuple[int, ...]) -> None:
    operands = Operands(handle)
    q, q_values = operands.make((2, 3, 64, 64), "float16")
    k, k_values = operands.make((2, 3, 128, 64), "float16")
    v, v_values = operands.make((2, 3, 128, 64), "float16")
    bias, bias_values = operands.make(shape, "float16")
    o = dnn.scaled_dot_product_attention_forward(handle, q, k, v, scale=0.2, bias=bias)
    expected, _ = attention(q_values, k_values, v_values, 0.2, bias_values, causal=False)
    assert_near(o.numpy(), expected, GRAPH_BOUNDS["float16"])


def test_attention_of_steps_before_heads(handle: dnn.Handle) -> None:
    """(batch, steps, heads, size) in memory is a matter of strides."""
    operands = Operands(handle)
    order = (0, 2, 1, 3)
    q, q_values = operands.make((2, 3, 64, 64), "float16", order)
    k, k_values = operands.make((2, 3, 96, 64), "float16", order)
    v, v_values = operands.make((2, 3, 96, 64), "float16", order)
    o = dnn.scaled_dot_product_attention_forward(handle, q, k, v, causal=True)
    expected, _ = attention(q_values, k_values, v_values, 0.125, causal=True)
    assert_near(o.numpy(), expected, GRAPH_BOUNDS["float16"])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
def test_attention_backward(handle: dnn.Handle, dtype: str, causal: bool) -> None:
    operands = Operands(handle)
    q, q_values = operands.make((2, 3, 64, 64), dtype)
    k, k_values = operands.make((2, 3, 128, 64), dtype)
    v, v_values = operands.make((2, 3, 128, 64), dtype)
    do, do_values = operands.make((2, 3, 64, 64), dtype)
    options: dict[str, Any] = {"scale": 0.2, "causal": causal}
    o, stats = dnn.scaled_dot_product_attention_forward(
        handle, q, k, v, return_stats=True, **options
    )
    out = tuple(operands.poisoned(array.shape, dtype) for array in (q, k, v))
    gradients = dnn.scaled_dot_product_attention_backward(
        handle, q, k, v, o, do, stats, out=out, **options
    )
    assert gradients == out
    expected = attention_gradients(q_values, k_values, v_values, do_values, 0.2, causal=causal)
    for gradient, values in zip(gradients, expected, strict=True):
        assert_near(gradient.numpy(), values, GRAPH_BOUNDS[dtype] * 4)


def test_the_oracle_of_the_gradients_is_that_of_the_forward_pass() -> None:
    """By differences, in float64."""
    rng = np.random.default_rng(1)
    q, k, v, do = (rng.standard_normal((1, 2, 5, 3)) for _ in range(4))
    gradients = attention_gradients(q, k, v, do, 0.4, causal=True)
    step = 1e-6
    for operand, gradient in zip((q, k, v), gradients, strict=True):
        index = (0, 1, 2, 1)
        sums = []
        for shift in (step, -step):
            operand[index] += shift
            sums.append((attention(q, k, v, 0.4, causal=True)[0] * do).sum())
            operand[index] -= shift
        assert math.isclose((sums[0] - sums[1]) / (2 * step), gradient[index], rel_tol=1e-6)


def test_what_attention_refuses(handle: dnn.Handle) -> None:
    q = handle.zeros((2, 4, 64, 64), "float16")
    forward = dnn.scaled_dot_product_attention_forward

    def of(**changed: Any) -> Callable[[], Any]:
        arguments = {"q": q, "k": q, "v": q} | changed
        return lambda: forward(handle, **arguments)

    for shape, why in (
        ((2, 4, 64), "k has shape"),
        ((1, 4, 64, 64), "k has shape .*the batch 2"),
        ((2, 3, 64, 64), "k has shape .*heads that divide 4"),
        ((2, 4, 64, 32), "k has shape .*size 64"),
    ):
        refuses(ARGUMENT, why, of(k=handle.empty(shape, "float16")))
    refuses(ARGUMENT, "v has shape", of(v=handle.empty((2, 4, 32, 64), "float16")))
    refuses(ARGUMENT, "k is .*the data type of q", of(k=handle.empty((2, 4, 64, 64), "bfloat16")))
    double = handle.empty((2, 4, 64, 64), "float64")
    refuses(ARGUMENT, "q is .*allowed: float16", of(q=double, k=double, v=double))
    refuses(ARGUMENT, "bias has shape", of(bias=handle.empty((2, 4, 64, 32), "float16")))
    refuses(ARGUMENT, "causal=", of(causal=1))
    refuses(ARGUMENT, "scale=", of(scale="x"))
    refuses(ARGUMENT, "out", of(out=handle.empty((2, 4, 64, 32), "float16")))
    refuses(ARRAY, "q", of(q=[1.0]))


@pytest.mark.parametrize("shapes", [((1, 2, 64, 160),) * 2, ((1, 4, 1, 64), (1, 2, 64, 64))])
def test_attention_that_cudnn_computes_wrongly_is_refused(
    handle: dnn.Handle, shapes: tuple[tuple[int, ...], ...]
) -> None:
    """In float32 large heads, and one query with heads in groups: found on an H100, cuDNN 9.19."""
    q, k = map(handle.zeros, shapes)
    refuses(
        ARGUMENT,
        "in float32 wrongly",
        lambda: dnn.scaled_dot_product_attention_forward(handle, q, k, k),
    )


def test_float32_has_no_gradients_of_attention(handle: dnn.Handle) -> None:
    q, stats = handle.zeros((1, 2, 64, 64)), handle.zeros((1, 2, 64, 1))
    with pytest.raises((dnn.NotSupportedError, dnn.ArgumentError)):
        dnn.scaled_dot_product_attention_backward(handle, q, q, q, q, q, stats)


# --------------------------------------------------------------------------------- normalisation


def axes_of(mode: str, rank: int) -> tuple[int, ...]:
    """Return the axes that are normalised."""
    return tuple(range(2 if mode == "instance" else 1, rank))


def normalized(
    mode: str, x: Array, scale: Array, bias: Array | float, epsilon: float
) -> tuple[Array, Array, Array]:
    """Return y, mean and inverse deviation."""
    axes = axes_of(mode, x.ndim)
    mean = np.zeros_like(x.mean(axes, keepdims=True))
    if mode != "rms":
        mean = x.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(np.square(x - mean).mean(axes, keepdims=True) + epsilon)
    return (x - mean) * inverse * scale + bias, mean, inverse


def normalization_gradients(
    mode: str, dy: Array, x: Array, scale: Array, epsilon: float
) -> tuple[Array, Array, Array]:
    """Return dx, dscale and dbias."""
    axes = axes_of(mode, x.ndim)
    _, mean, inverse = normalized(mode, x, scale, 0.0, epsilon)
    z = (x - mean) * inverse
    others = tuple(axis for axis in range(x.ndim) if scale.shape[axis] == 1)
    dscale, dbias = (dy * z).sum(others, keepdims=True), dy.sum(others, keepdims=True)
    dz = dy * scale
    dx = dz - z * (dz * z).mean(axes, keepdims=True)
    if mode != "rms":
        dx = dx - dz.mean(axes, keepdims=True)
    return dx * inverse, dscale, dbias


def parameters_of(mode: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of scale and bias."""
    if mode == "instance":
        return (1, shape[1], *(1,) * (len(shape) - 2))
    return (1, *shape[1:])


def functions_of(mode: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the public functions of a normalisation."""
    return (
        getattr(dnn, f"{mode}_normalization_forward"),
        getattr(dnn, f"{mode}_normalization_backward"),
    )


NORMALIZED = {"rows": (24, 96, 1, 1), "images": (3, 8, 6, 4), "volumes": (2, 8, 3, 4, 5)}


@pytest.mark.parametrize("shape", NORMALIZED)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", MODES)
def test_normalization(handle: dnn.Handle, mode: str, dtype: str, shape: str) -> None:
    sizes = NORMALIZED[shape]
    if mode == "instance" and shape == "rows":
        sizes = (24, 6, 16, 1)  # there is nothing to normalise along axes of size 1
    operands = Operands(handle)
    x, x_values = operands.make(sizes, dtype)
    scale, scale_values = operands.make(parameters_of(mode, sizes), "float32")
    bias, bias_values = operands.make(parameters_of(mode, sizes), "float32")
    forward, backward = functions_of(mode)
    epsilon = 0.01
    y = operands.poisoned(sizes, dtype)
    assert forward(handle, x, scale, bias=bias, epsilon=epsilon, out=y) is y
    expected, mean, inverse = normalized(mode, x_values, scale_values, bias_values, epsilon)
    assert_near(y.numpy(), expected, GRAPH_BOUNDS[dtype])
    results = forward(
        handle,
        x,
        scale,
        **({} if mode == "rms" else {"bias": bias}),
        epsilon=epsilon,
        training=True,
    )
    assert_near(results[-1].numpy(), inverse, GRAPH_BOUNDS["float32"])
    if mode != "rms":
        assert_near(results[1].numpy(), mean, GRAPH_BOUNDS["float32"], largest=1.0)
    dy, dy_values = operands.make(sizes, dtype)
    gradients = backward(handle, dy, x, scale, *results[1:])
    expected_gradients = normalization_gradients(mode, dy_values, x_values, scale_values, epsilon)
    assert len(gradients) == (2 if mode == "rms" else 3)
    for gradient, values in zip(gradients, expected_gradients, strict=False):
        assert_near(gradient.numpy(), values, GRAPH_BOUNDS[dtype] * 2)


@pytest.mark.parametrize("mode", MODES)
def test_the_oracle_of_a_normalizations_gradients(mode: str) -> None:
    """By differences, in float64."""
    rng = np.random.default_rng(2)
    shape = (2, 3, 4, 5)
    x, dy = rng.standard_normal(shape), rng.standard_normal(shape)
    scale = rng.standard_normal(parameters_of(mode, shape))
    dx, dscale, _ = normalization_gradients(mode, dy, x, scale, 0.1)
    step = 1e-6
    for operand, gradient in ((x, dx), (scale, dscale)):
        index = tuple(size - 1 for size in operand.shape)
        sums = []
        for shift in (step, -step):
            operand[index] += shift
            sums.append((normalized(mode, x, scale, 0.0, 0.1)[0] * dy).sum())
            operand[index] -= shift
        assert math.isclose((sums[0] - sums[1]) / (2 * step), gradient[index], rel_tol=1e-5)


def test_what_a_normalization_refuses(handle: dnn.Handle) -> None:
    x = handle.zeros((4, 8, 2, 2))
    row = handle.zeros((1, 8, 2, 2))
    layer = dnn.layer_normalization_forward
    for scale in (handle.zeros((8,)), handle.zeros((1, 4, 2, 2)), handle.zeros((4, 8, 2, 2))):
        refuses(ARGUMENT, "scale", lambda scale=scale: layer(handle, x, scale, scale))
    refuses(ARGUMENT, "bias", lambda: layer(handle, x, row, handle.zeros((1, 8, 2, 1))))
    refuses(ARGUMENT, "epsilon=", lambda: layer(handle, x, row, row, epsilon="x"))
    refuses(ARGUMENT, "training=", lambda: layer(handle, x, row, row, training=1))
    refuses(ARGUMENT, "out", lambda: layer(handle, x, row, row, out=row))


# --------------------------------------------------------------------------------------- products


def gelu(x: Array) -> Array:
    erf = np.vectorize(math.erf)
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


ACTIVATIONS: dict[str | None, Callable[[Array], Array]] = {
    None: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": gelu,
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_product_with_bias_and_activation(handle: dnn.Handle, activation: str | None) -> None:
    operands = Operands(handle)
    a, a_values = operands.make((3, 24, 40), "float16")
    b, b_values = operands.make((3, 40, 56), "float16")
    bias, bias_values = operands.make((1, 1, 56), "float16")
    out = operands.poisoned((3, 24, 56), "float16")
    y = dnn.matmul(handle, a, b, bias=bias, activation=activation, out=out)
    assert y is out
    expected = ACTIVATIONS[activation](a_values @ b_values + bias_values)
    assert_near(y.numpy(), expected, GRAPH_BOUNDS["float16"])


@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_product_of_transposed_matrices(handle: dnn.Handle, dtype: str, transposed: str) -> None:
    operands = Operands(handle)
    a, a_values = operands.make((2, 24, 40), dtype, (0, 2, 1) if "a" in transposed else None)
    b, b_values = operands.make((2, 40, 56), dtype, (0, 2, 1) if "b" in transposed else None)
    y = dnn.matmul(handle, a, b, dtype="float32")
    assert y.dtype == np.float32
    assert_near(y.numpy(), a_values @ b_values, GRAPH_BOUNDS["tf32"])


def test_one_matrix_for_every_batch(handle: dnn.Handle) -> None:
    operands = Operands(handle)
    a, a_values = operands.make((3, 24, 40), "bfloat16")
    b, b_values = operands.make((1, 40, 56), "bfloat16")
    y = dnn.matmul(handle, a, b)
    assert_near(y.numpy(), a_values @ b_values, GRAPH_BOUNDS["bfloat16"])


def test_what_a_product_refuses(handle: dnn.Handle) -> None:
    a, b = handle.zeros((2, 8, 16), "float16"), handle.zeros((2, 16, 8), "float16")
    refuses(ARGUMENT, "b has shape", lambda: dnn.matmul(handle, a, a))
    refuses(ARGUMENT, "a has shape", lambda: dnn.matmul(handle, a.reshape(16, 16), b))
    refuses(ARGUMENT, "b is", lambda: dnn.matmul(handle, a, handle.zeros((2, 16, 8))))
    refuses(ARGUMENT, "activation=", lambda: dnn.matmul(handle, a, b, activation="gelo"))
    wrong = handle.zeros((3, 8, 8), "float16")
    refuses(ARGUMENT, "bias", lambda: dnn.matmul(handle, a, b, bias=wrong))


# --------------------------------------------------------------------------- graphs and their plans


def epilogue_graph(dtype: str = "float16") -> dnn.Graph:
    """Return relu(a b * factor + bias)."""
    graph = dnn.Graph()
    a = graph.input("a", (2, 24, 40), dtype)
    b = graph.input("b", (2, 40, 56), dtype)
    bias = graph.input("bias", (1, 1, 56), dtype)
    factor = graph.scalar("factor", 0.5)
    graph.output("y", graph.relu(a @ b * factor + bias), dtype)
    return graph


def epilogue_operands(operands: Operands) -> tuple[dict[str, dnn.DeviceArray], Array]:
    """Return its inputs, and what it computes of them."""
    made = {
        name: operands.make(shape, "float16")
        for name, shape in {"a": (2, 24, 40), "b": (2, 40, 56), "bias": (1, 1, 56)}.items()
    }
    a, b, bias = (values for _, values in made.values())
    return {name: array for name, (array, _) in made.items()}, np.maximum(a @ b * 0.5 + bias, 0)


@pytest.mark.parametrize("replay", [False, True])
def test_a_plan_of_a_graph(handle: dnn.Handle, replay: bool) -> None:
    """Called by name and in order, with new outputs and given ones, over other buffers."""
    operands = Operands(handle)
    with epilogue_graph().plan(handle, replay=replay) as plan:
        for _ in range(3):
            arrays, expected = epilogue_operands(operands)
            out = operands.poisoned((2, 24, 56), "float16")
            results = [plan(**arrays, out={"y": out}), plan(*arrays.values())]
            results.append(plan(arrays["a"], bias=arrays["bias"], b=arrays["b"]))
            assert results[0]["y"] is out
            for result in results:
                assert [*result] == ["y"]
                assert_near(result["y"].numpy(), expected, GRAPH_BOUNDS["float16"])
            fill(out, 0xFF)
            assert_near(plan(**arrays, out=out)["y"].numpy(), expected, GRAPH_BOUNDS["float16"])
        assert plan.choice.algorithm is not None
        assert (plan.replay is not None) == replay


def test_a_graphs_plan_in_a_cuda_graph(handle: dnn.Handle) -> None:
    operands = Operands(handle)
    arrays, expected = epilogue_operands(operands)
    out = operands.poisoned((2, 24, 56), "float16")
    with epilogue_graph().plan(handle) as plan:
        plan(**arrays, out=out)
        with dnn.capture(handle) as graph:
            plan(**arrays, out=out)
    fill(out, 0xFF)
    graph.launch()
    assert_near(out.numpy(), expected, GRAPH_BOUNDS["float16"])
    graph.close()


def test_a_plan_takes_what_it_was_asked_for(handle: dnn.Handle) -> None:
    operands = Operands(handle)
    arrays, expected = epilogue_operands(operands)
    graph = epilogue_graph()
    with graph.plan(handle, deterministic=True, workspace_limit="64 MiB") as plan:
        assert plan.choice.deterministic
        assert plan.workspace <= 64 << 20
        engine = plan.choice.algorithm
        expected_bits = plan(**arrays)["y"].numpy()
    with graph.plan(handle, engine=engine) as plan:
        assert plan.choice.algorithm == engine
        np.testing.assert_array_equal(plan(**arrays)["y"].numpy(), expected_bits)
    assert_near(expected_bits, expected, GRAPH_BOUNDS["float16"])


def test_a_product_in_true_float32_is_refused(handle: dnn.Handle) -> None:
    """An H100 multiplies in TF32, also by the engine that does not note it."""
    graph = dnn.Graph()
    a, b = graph.input("a", (2, 24, 40)), graph.input("b", (2, 40, 56))
    graph.output("y", a @ b)
    operands = Operands(handle)
    (a_array, a_values), (b_array, b_values) = (
        operands.make(shape, "float32") for shape in ((2, 24, 40), (2, 40, 56))
    )
    with pytest.raises(dnn.NotSupportedError, match="math type FMA was asked for"):
        graph.plan(handle, math_type="fma")
    with graph.plan(handle) as plan:
        assert plan.choice.math_type == dnn.MathType.DEFAULT
        assert_near(
            plan(a=a_array, b=b_array)["y"].numpy(), a_values @ b_values, GRAPH_BOUNDS["tf32"]
        )


def test_a_reduction_behind_a_product(handle: dnn.Handle) -> None:
    graph = dnn.Graph()
    a, b = graph.input("a", (2, 24, 40), "float16"), graph.input("b", (2, 40, 56), "float16")
    graph.output("largest", graph.reduce("MAX", graph.matmul(a, b), axes=2))
    operands = Operands(handle)
    a_array, a_values = operands.make((2, 24, 40), "float16")
    b_array, b_values = operands.make((2, 40, 56), "float16")
    with graph.plan(handle) as plan:
        largest = plan(a=a_array, b=b_array)["largest"]
    expected = (a_values @ b_values).max(2, keepdims=True)
    assert_near(largest.numpy(), expected, GRAPH_BOUNDS["float16"])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_pooling_with_other_padding_at_each_end(handle: dnn.Handle, layout: str) -> None:
    spec = dnn.TensorSpec((2, 8, 7, 9), "float16", layout)
    graph = dnn.Graph()
    x = graph.input("x", spec.shape, "float16", spec.strides)
    y = graph.resample_forward(
        "MAXPOOL", x, (3, 2), stride=(2, 2), padding=((0, 1), (1, 0)), ceil_mode=True
    )
    y_spec = dnn.TensorSpec(y.shape, "float16", layout)
    graph.output("y", y, strides=y_spec.strides)
    values = random_values(np.random.default_rng(0), spec.shape, "float16")
    array = handle.empty(spec)
    array.copy_from(values)
    with graph.plan(handle) as plan:
        result = plan(x=array)["y"].numpy()
    padded = np.pad(
        values.astype(np.float64), ((0, 0), (0, 0), (0, 2), (1, 1)), constant_values=-np.inf
    )
    expected = np.stack(
        [
            np.stack(
                [
                    padded[:, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 2].max((2, 3))
                    for column in range(y.shape[3])
                ],
                -1,
            )
            for row in range(y.shape[2])
        ],
        -2,
    )
    assert y.shape == (2, 8, 4, 5)
    np.testing.assert_array_equal(result.astype(np.float64), expected)


def test_a_product_of_two_views_of_one_tensor(handle: dnn.Handle) -> None:
    graph = dnn.Graph()
    x = graph.input("x", (2, 24, 40), "float16")
    graph.output("y", x @ x.transposed())
    operands = Operands(handle)
    array, values = operands.make((2, 24, 40), "float16")
    with graph.plan(handle) as plan:
        y = plan(x=array)["y"]
    assert_near(y.numpy(), values @ values.swapaxes(1, 2), GRAPH_BOUNDS["float16"])


UNSUPPORTED: dict[str, Callable[[dnn.Graph, dnn.GraphTensor], Any]] = {
    "softmax alone": lambda graph, x: graph.softmax(x),
    "reduction alone": lambda graph, x: graph.reduce("ADD", x),
    "statistics alone": lambda graph, x: graph.gen_stats(x)[0],
    "product of rank 4": lambda graph, x: graph.matmul(x, graph.transposed(x)),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_graphs_without_an_engine(handle: dnn.Handle, name: str) -> None:
    graph = dnn.Graph()
    x = graph.input("x", (2, 8, 16, 16), "float16")
    graph.output("y", UNSUPPORTED[name](graph, x))
    with pytest.raises(dnn.CudnnError) as refusal:
        graph.plan(handle)
    assert refusal.value.status in (dnn.Status.NOT_SUPPORTED, dnn.Status.BAD_PARAM)


def test_what_a_graphs_plan_refuses(handle: dnn.Handle) -> None:
    operands = Operands(handle)
    arrays, _ = epilogue_operands(operands)
    with epilogue_graph().plan(handle) as plan:
        wrong = handle.zeros((2, 24, 41), "float16")
        refuses(ARGUMENT, "a is", lambda: plan(**arrays | {"a": wrong}))
        refuses(ARGUMENT, "out has shape", lambda: plan(**arrays, out={"y": wrong}))
        refuses(ARGUMENT, "out has 'z'; allowed: y", lambda: plan(**arrays, out={"z": wrong}))
        for names, why in (
            ({"a": arrays["a"]}, "missing b, bias"),
            (arrays | {"c": wrong}, "unexpected keyword argument 'c'"),
        ):
            with pytest.raises(TypeError, match=why):
                plan(**names)
    with pytest.raises(dnn.ClosedError):
        plan(**arrays)
    refuses(ARGUMENT, "operations and 0 outputs", lambda: dnn.Graph().plan(handle))
    refuses(ARGUMENT, "handle=", lambda: epilogue_graph().plan(None))
    refuses(ARGUMENT, "engine=", lambda: epilogue_graph().plan(handle, engine=3))
    refuses(ARGUMENT, "deterministic=", lambda: epilogue_graph().plan(handle, deterministic=1))


def test_the_handle_keeps_the_plans_of_one_line_calls(handle: dnn.Handle) -> None:
    operands = Operands(handle)
    a, _ = operands.make((2, 24, 40), "float16")
    b, _ = operands.make((2, 40, 56), "float16")
    for _ in range(3):
        dnn.matmul(handle, a, b)
    assert len(handle.plans) == 1
    dnn.matmul(handle, a, b, activation="relu")
    assert len(handle.plans) == 2


def test_the_verbs_of_an_operation_that_is_a_graph(handle: dnn.Handle) -> None:
    a, b = dnn.TensorSpec((2, 24, 40), "float16"), dnn.TensorSpec((2, 40, 56), "float16")
    graph = dnn.matmul.graph(a, b, activation="relu")
    assert graph == dnn.matmul.graph(a, b, activation="relu")
    assert graph != dnn.matmul.graph(a, b, activation="gelu")
    assert [*graph.inputs], [*graph.outputs] == (["a", "b"], ["y"])
    with pytest.raises(dnn.ArgumentError, match=r"matmul\.graph\("):
        dnn.matmul.problem(a, b)
    operands = Operands(handle)
    a_array, a_values = operands.make(a.shape, "float16")
    b_array, b_values = operands.make(b.shape, "float16")
    with dnn.matmul.plan(handle, a, b, activation="relu") as plan:
        y = plan(a_array, b_array)["y"]
    assert_near(y.numpy(), np.maximum(a_values @ b_values, 0), GRAPH_BOUNDS["float16"])
