"""What cuDNN 9.19 and 9.28 compute wrongly of chains is refused, or left to another engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.faults import why_engine_is_wrong, why_wrong

import cudnnlite as dnn
from cudnnlite.graph.convolution_formulas import convolution_data

IMAGES = (2, 24, 5, 7)
NHWC = dnn.TensorSpec(IMAGES, "float16", "NHWC").strides


def convolution(graph: dnn.Graph, dtype: str = "float16") -> Any:
    """Return the result, of shape `IMAGES`, of a convolution with channels last."""
    specs = [dnn.TensorSpec(shape, dtype, "NHWC") for shape in ((2, 8, 5, 7), (24, 8, 1, 1))]
    x, w = (
        graph.input(name, spec.shape, dtype, spec.strides)
        for name, spec in zip("xw", specs, strict=True)
    )
    return graph.convolution_forward(x, w)


def product(graph: dnn.Graph) -> Any:
    a, b = graph.input("a", (2, 8, 16), "float16"), graph.input("b", (2, 16, 24), "float16")
    return graph.matmul(a, b)


@pytest.mark.parametrize(
    "attributes",
    [
        {"relu_lower_clip_slope": 0.25},
        {"relu_upper_clip": 2.0},
        {"relu_lower_clip": -1.0},
        {"relu_lower_clip": 0.5, "relu_upper_clip": 2.0},
    ],
    ids=str,
)
def test_an_engine_loses_what_a_relu_has_behind_a_product(attributes: dict[str, float]) -> None:
    graph = dnn.Graph()
    graph.output("y", graph.pointwise("RELU_FWD", product(graph), **attributes), "float32")
    assert why_wrong(graph) is None
    assert "ReLU behind a product" in (why_engine_is_wrong(0, graph, 91900) or "")
    assert why_engine_is_wrong(7, graph, 91900) is None
    behind_convolution = dnn.Graph()
    y = behind_convolution.pointwise("RELU_FWD", convolution(behind_convolution), **attributes)
    behind_convolution.output("y", y, "float16", NHWC)
    assert why_engine_is_wrong(0, behind_convolution, 91900) is None


def test_a_plain_relu_has_all_engines() -> None:
    graph = dnn.Graph()
    graph.output("y", graph.relu(product(graph)), "float32")
    assert why_engine_is_wrong(0, graph, 91900) is None


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16", "float64"])
def test_an_engine_loses_large_values_of_tanh(dtype: str) -> None:
    graph = dnn.Graph("float64" if dtype == "float64" else "float32")
    graph.output("y", graph.tanh(convolution(graph, dtype)), dtype, NHWC)
    first = 355 if dtype == "float64" else 44
    assert f"values from {first} on" in (why_engine_is_wrong(0, graph, 91900) or "")
    assert why_engine_is_wrong(52, graph, 91900) is None
    behind_product = dnn.Graph()
    behind_product.output("y", behind_product.tanh(product(behind_product)), "float16")
    assert why_engine_is_wrong(0, behind_product, 91900) is None


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"relu_lower_clip_slope": 0.25, "relu_upper_clip": 2.0}, "large values exceed the clip"),
        ({"relu_lower_clip_slope": 4.0}, "above 1 the slope is that of positive values"),
        ({"relu_lower_clip_slope": 1.0}, None),
        ({"relu_lower_clip_slope": -0.25}, None),
        ({"relu_lower_clip": 0.5, "relu_upper_clip": 2.0}, None),
    ],
    ids=str,
)
def test_a_relu_that_no_engine_computes_is_refused(
    handle: dnn.Handle, attributes: dict[str, float], message: str | None
) -> None:
    graph = dnn.Graph()
    x = graph.input("x", (2, 8, 16), "float16")
    graph.output("y", graph.pointwise("RELU_FWD", x, **attributes), "float16")
    if message is None:
        assert why_wrong(graph) is None
        return
    with pytest.raises(dnn.ArgumentError, match=message):
        graph.plan(handle)


@pytest.mark.parametrize("upper", [np.inf, 2.0])
@pytest.mark.parametrize("slope", [0.0, 0.25, 4.0, -0.5])
@pytest.mark.parametrize("base", ["alone", "product"])
def test_relu_with_a_slope_and_a_clip(
    handle: dnn.Handle, base: str, slope: float, upper: float
) -> None:
    rng = np.random.default_rng(0)
    graph = dnn.Graph()
    if base == "product":
        x = product(graph)
    else:
        x = graph.input("x", (2, 8, 24), "float16")
    graph.output("y", graph.relu(x, negative_slope=slope, upper=upper), "float32")
    hosts = {
        name: (4 * rng.standard_normal(record.shape)).astype(np.float16)
        for name, record in graph.inputs.items()
    }
    with graph.plan(handle) as plan:
        y = plan(**{name: handle.array(host) for name, host in hosts.items()})["y"].numpy()
    wide = [host.astype(np.float64) for host in hosts.values()]
    values = wide[0] @ wide[1] if base == "product" else wide[0]
    expected = np.minimum(np.where(values > 0, values, slope * values), upper)
    assert abs(y - expected).max() <= 1e-5 * abs(values).max()


@pytest.mark.parametrize(
    ("shape", "is_right"),
    [
        (IMAGES, True),
        ((1, 24, 1, 1), True),
        ((2, 1, 5, 7), True),
        ((1, 1, 1, 1), True),
        ((2, 24, 1, 1), False),
        ((1, 1, 5, 7), False),
        ((1, 24, 5, 7), False),
        ((2, 1, 1, 1), False),
        ((1, 1, 1, 7), False),
        ((2, 24, 5, 1), False),
    ],
)
@pytest.mark.parametrize("mode", ["ADD", "MUL"])
def test_operands_behind_a_convolution(
    handle: dnn.Handle, mode: str, shape: tuple[int, ...], is_right: bool
) -> None:
    """Engines read the others at other places, or at misaligned addresses, which loses the device."""
    graph = dnn.Graph()
    strides = dnn.TensorSpec(shape, "float16", "NHWC").strides
    b = graph.input("b", shape, "float16", strides)
    y = graph.relu(graph.pointwise(mode, convolution(graph), b))
    graph.output("y", y, "float16", NHWC)
    if not is_right:
        with pytest.raises(dnn.ArgumentError, match="behind a convolution of shape"):
            graph.plan(handle)
        return
    rng = np.random.default_rng(0)
    hosts = {
        name: (rng.integers(-8, 9, record.shape) / 4).astype(np.float16)
        for name, record in graph.inputs.items()
    }
    with graph.plan(handle) as plan:
        arrays = {
            name: handle.array(host, layout="NHWC" if host.ndim == 4 else None)
            for name, host in hosts.items()
        }
        result = plan(**arrays)["y"].numpy()
    sums = np.einsum(
        "nchw,kc->nkhw", hosts["x"].astype(float), hosts["w"].astype(float)[:, :, 0, 0]
    )
    expected = np.maximum(sums + hosts["b"] if mode == "ADD" else sums * hosts["b"], 0)
    assert abs(result - expected).max() <= 2e-3 * abs(expected).max()


@pytest.mark.parametrize(
    ("shape", "is_right"),
    [
        ((3, 24, 40), True),
        ((1, 24, 40), True),
        ((3, 1, 40), True),
        ((3, 24, 1), True),
        ((1, 1, 1), True),
        ((1, 1, 40), False),
        ((1, 24, 1), False),
        ((3, 1, 1), False),
    ],
)
def test_operands_of_rows_alone(handle: dnn.Handle, shape: tuple[int, ...], is_right: bool) -> None:
    graph = dnn.Graph()
    x, b = graph.input("x", (3, 24, 40), "float32"), graph.input("b", shape, "float32")
    graph.output("y", graph.relu(x + b), "float32")
    if not is_right:
        with pytest.raises(dnn.ArgumentError, match="of three axes it repeats one or all"):
            graph.plan(handle)
        return
    rng = np.random.default_rng(0)
    hosts = {
        name: rng.standard_normal(record.shape).astype(np.float32)
        for name, record in graph.inputs.items()
    }
    with graph.plan(handle) as plan:
        y = plan(**{name: handle.array(host) for name, host in hosts.items()})["y"].numpy()
    assert abs(y - np.maximum(hosts["x"] + hosts["b"], 0)).max() <= 1e-6


def test_two_axes_alone_are_refused(handle: dnn.Handle) -> None:
    """9.19 leaves most of the result unwritten; 9.28 has no engine."""
    graph = dnn.Graph()
    graph.output("y", graph.relu(graph.input("x", (24, 40), "float16")), "float16")
    with pytest.raises(dnn.ArgumentError, match=r"give three, \(1, 24, 40\)"):
        graph.plan(handle)


def attention(output: str, *, causal: bool) -> dnn.Graph:
    """Return a graph of attention with a further output, or with its statistics."""
    graph = dnn.Graph()
    q, k, v = (
        graph.input(name, (2, 2, steps, 64), "float16")
        for name, steps in zip("qkv", (16, 64, 64), strict=True)
    )
    products = graph.matmul(q, k.transposed())
    scaled = products * 0.125
    masked = graph.causal(scaled) if causal else scaled
    largest = graph.reduce("MAX", masked)
    powers = graph.exp(masked - largest)
    total = graph.reduce("ADD", powers)
    stats = largest + graph.log(total)
    probabilities = graph.div(powers, total, dtype="float16")
    tensors = {
        "products": products,
        "scaled": scaled,
        "masked": masked,
        "largest": largest,
        "powers": powers,
        "total": total,
        "probabilities": probabilities,
        "stats": stats,
    }
    graph.output(output, tensors[output])
    graph.output("o", graph.matmul(probabilities, v), "float16")
    return graph


@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize(
    "output", ["products", "scaled", "largest", "powers", "total", "probabilities"]
)
def test_attention_writes_nothing_from_its_middle(
    handle: dnn.Handle, output: str, causal: bool
) -> None:
    with pytest.raises(
        dnn.ArgumentError, match=f"leaves the output {output} of attention unwritten"
    ):
        attention(output, causal=causal).plan(handle)


def test_attention_writes_its_statistics(handle: dnn.Handle) -> None:
    for causal in (False, True):
        graph = attention("stats", causal=causal)
        assert why_wrong(graph) is None
        graph.plan(handle).close()


@pytest.mark.parametrize("mode", ["EXP", "MUL"])
def test_gradients_of_attention_write_nothing_from_their_middle(
    handle: dnn.Handle, mode: str
) -> None:
    from cudnnlite.operations.attention.attention_graphs import backward_graph

    specs: dict[str, Any] = {
        name: dnn.TensorSpec((2, 2, 64, 64), "float16") for name in ("q", "k", "v", "o", "do")
    }
    specs["stats"] = dnn.TensorSpec((2, 2, 64, 1))
    graph = backward_graph(specs, 0.125, False, None, 0.0)
    assert why_wrong(graph) is None
    nodes = [node for node in graph.nodes if dict(node.attributes).get("mode") == mode]
    graph.output("middle", graph.tensor(nodes[-1].written_numbers[0]), "float16")
    with pytest.raises(dnn.ArgumentError, match="leaves the output middle of attention unwritten"):
        graph.plan(handle)


def test_two_products_side_by_side_are_no_attention() -> None:
    graph = dnn.Graph()
    a, b, d = (graph.input(name, (1, 16, 16), "float16") for name in "abd")
    first = graph.matmul(a, b)
    graph.output("first", first, "float16")
    graph.output("y", graph.swish(first) * graph.matmul(a, d), "float16")
    assert "unwritten" not in (why_wrong(graph) or "")


PLACES = ("before the product", "the product", "behind the product")


@pytest.mark.parametrize(
    ("place", "is_reduced"),
    [(PLACES[0], False), *((place, kind) for place in PLACES[1:] for kind in (False, True))],
)
def test_further_outputs_of_a_product(place, is_reduced, own_handle):
    """An H200 wrote those behind the product, and had no engine for what is before it."""
    rng = np.random.default_rng(7)
    host_a, host_b = (rng.integers(-2, 3, shape) for shape in ((2, 8, 16), (2, 16, 24)))
    operand_a = host_a
    graph = dnn.Graph()
    a, b = graph.input("a", host_a.shape, "float16"), graph.input("b", host_b.shape, "float16")
    if not is_reduced:
        a, host_a = graph.pointwise("RELU_FWD", a, dtype="float16"), np.maximum(host_a, 0)
    y = graph.matmul(a, b)
    tensors, hosts = [a, y, graph.relu(y)], [host_a, host_a @ host_b]
    hosts.append(np.maximum(hosts[1], 0))
    graph.output("between", tensors[PLACES.index(place)], "float16")
    last, expected = tensors[2] * 0.5, hosts[2] * 0.5
    if is_reduced:
        last, expected = graph.reduce("ADD", tensors[2], (-1,)), hosts[2].sum(-1, keepdims=True)
    graph.output("last", last, "float32" if is_reduced else "float16")
    if place == PLACES[0]:
        with pytest.raises(dnn.NotSupportedError):
            graph.plan(own_handle)
        return
    arrays = [own_handle.array(host, dtype="float16") for host in (operand_a, host_b)]
    with graph.plan(own_handle) as plan:
        written = plan(*arrays)
    np.testing.assert_array_equal(written["between"].numpy(), hosts[PLACES.index(place)])
    np.testing.assert_array_equal(written["last"].numpy(), expected)


def sum_behind_convolution(function: str, dtype: str = "float32", **attributes: float) -> dnn.Graph:
    """Return a graph whose outputs are a convolution and a bias, and a function of the sum."""
    graph = dnn.Graph()
    bias = graph.input("bias", (1, 24, 1, 1), dtype)
    sums = convolution(graph, dtype) + bias
    graph.output("sums", sums, dtype, NHWC)
    graph.output("y", graph.pointwise(function, sums, **attributes), dtype, NHWC)
    return graph


@pytest.mark.parametrize("function", ["RELU_FWD", "TANH_FWD", "SIGMOID_FWD", "ELU_FWD"])
def test_a_sum_of_float32_is_no_output_beside_its_function(function: str) -> None:
    """Every engine of 9.19 fails when it runs (H200)."""
    assert f"an output beside its {function}" in (why_wrong(sum_behind_convolution(function)) or "")
    assert why_wrong(sum_behind_convolution(function, "float16")) is None
    assert why_wrong(sum_behind_convolution(function, "bfloat16")) is None


def test_a_sum_beside_other_functions_is_right() -> None:
    for function in ("SWISH_FWD", "SOFTPLUS_FWD", "GELU_APPROX_TANH_FWD", "EXP"):
        assert why_wrong(sum_behind_convolution(function)) is None
    assert why_wrong(sum_behind_convolution("RELU_FWD", relu_lower_clip_slope=0.25)) is None
    graph = dnn.Graph()
    image = graph.input("z", IMAGES, "float32", strides=NHWC)
    sums = convolution(graph, "float32") + image
    graph.output("sums", sums, "float32", NHWC)
    graph.output("y", graph.relu(sums), "float32", NHWC)
    assert why_wrong(graph) is None


@pytest.mark.parametrize("function", ["RELU_BWD", "SWISH_BWD", "TANH_BWD"])
def test_an_engine_writes_nan_for_gradients_of_functions(function: str) -> None:
    graph = dnn.Graph()
    y = convolution(graph, "float32")
    dy = graph.input("dy", IMAGES, "float32", strides=NHWC)
    graph.output("dx", graph.pointwise(function, y, dy), "float32", NHWC)
    assert "computes NaN" in (why_engine_is_wrong(8, graph, 91900) or "")
    assert why_engine_is_wrong(7, graph, 91900) is None


@pytest.mark.parametrize("engine", [37, 39])
def test_engines_round_a_gradient_before_they_multiply_by_alpha(engine: int) -> None:
    def gradient(dtype: str, alpha: float) -> Any:
        x, dy = dnn.TensorSpec((2, 8, 9, 9), dtype), dnn.TensorSpec((2, 16, 7, 7), dtype)
        specs = {"x": x, "dy": dy, "dw": dnn.FilterSpec((16, 8, 3, 3), dtype)}
        conv = dnn.ConvolutionSpec()
        return convolution_data("CONVOLUTION_BACKWARD_FILTER", specs, conv, alpha, 0.0)

    why = why_engine_is_wrong(engine, gradient("float16", 0.5), 91900)
    assert "rounds the gradient to float16" in (why or "")
    assert why_engine_is_wrong(engine, gradient("float16", 1.0), 91900) is None
    assert why_engine_is_wrong(engine, gradient("float32", 0.5), 91900) is None
    assert why_engine_is_wrong(engine + 1, gradient("float16", 0.5), 91900) is None
