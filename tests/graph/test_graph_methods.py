"""The methods of `Graph`: their arguments, and the plain form of what each one adds to a graph.

Plain forms are keys of tuning caches, so they stay the same from version to version.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import cudnnlite as dnn
from cudnnlite.graph.convolution_formulas import convolution_data, fused_data
from cudnnlite.graph.flops import flops_of

POOLING = {"stride": (1, 2), "padding": ((0, 1), (1, 0))}
# The arguments of each public method.
ARGUMENTS = {
    "abs": "x",
    "as_tensor": "value, dtype='float32'",
    "bernoulli": "shape, probability, seed, offset",
    "causal": "scores, masked=-inf, *, bottom_right=False",
    "convolution_backward_data": "w, dy, shape, conv=None",
    "convolution_backward_filter": "x, dy, shape, conv=None",
    "convolution_forward": "x, w, conv=None",
    "div": "x, b, dtype=None",
    "elu": "x, alpha=1.0",
    "erf": "x",
    "exp": "x",
    "freeze": "",
    "from_json": "text",
    "from_plain": "plain",
    "gelu": "x, *, approximate=False",
    "gen_stats": "x",
    "identity": "x, dtype=None",
    "index": "x, axis",
    "input": "name, shape, dtype='float32', strides=None, layout=None",
    "log": "x",
    "matmul": (
        "a, b, *, dtype=None, compute_type=None, m_lengths=None, n_lengths=None, k_lengths=None"
    ),
    "node": "kind, attributes=None, *, reads, writes",
    "normalization_backward": "mode, dy, x, scale, mean, inv_variance, *, has_bias=True",
    "normalization_forward": "mode, x, scale, bias=None, *, epsilon=1e-05, training=False",
    "output": "name, tensor, dtype=None, strides=None, shape=None, layout=None",
    "plan": (
        "handle, *, engine=None, math_type=<MathType.DEFAULT: 0>, deterministic=False, "
        "workspace_limit=None, replay=False"
    ),
    "pointwise": "mode, x, b=None, t=None, *, dtype=None, precision=None, **attributes",
    "reciprocal": "x",
    "reduce": "operator, x, axes=-1",
    "relu": "x, *, negative_slope=0.0, lower=0.0, upper=inf",
    "resample_backward": (
        "mode, dy, shape, window, *, stride, padding, padding_mode='NEG_INF', "
        "ceil_mode=False, nan_propagation='PROPAGATE', x=None, y=None, indices=None"
    ),
    "resample_forward": (
        "mode, x, window, *, stride, padding, padding_mode='NEG_INF', ceil_mode=False, "
        "nan_propagation='PROPAGATE'"
    ),
    "resample_forward_with_indices": (
        "x, window, *, stride, padding, ceil_mode=False, nan_propagation='PROPAGATE'"
    ),
    "reshape": "x, shape, strides=None",
    "rows": "",
    "rsqrt": "x",
    "scalar": "name, value, dtype='float32'",
    "sigmoid": "x",
    "softmax": "x, dtype=None",
    "softmax_with_stats": "x, dtype=None",
    "softplus": "x, beta=1.0",
    "sqrt": "x",
    "swish": "x, beta=1.0",
    "tanh": "x",
    "tensor": "name",
    "to_json": "",
    "to_plain": "",
    "transposed": "x, dtype=None",
    "view": "tensor, shape, strides",
    "virtual": "shape, dtype=None, strides=None",
    "where": "mask, x, other",
    "window": "scores, size, masked=-inf",
    "within_lengths": "scores, row_lengths, column_lengths, masked=-inf",
}
# The operations that each method adds, and the beginning of the SHA-256 of the graph's JSON.
ADDED: dict[str, tuple[Callable[[dnn.Graph], object], str, str]] = {
    "abs": (lambda g: g.abs(g.tensor("x")), "ABS", "c3e9975b8831027a"),
    "as_tensor": (lambda g: g.as_tensor(2.5), "", "669be4a2b9eb7b0b"),
    "bernoulli": (lambda g: g.bernoulli((1, 2, 8, 8), 0.5, *seeds(g)), "RNG", "3237433545035578"),
    "causal": (
        lambda g: g.causal(g.tensor("x")),
        "GEN_INDEX, GEN_INDEX, CMP_GE, BINARY_SELECT",
        "1d139253b4810579",
    ),
    "convolution_backward_data": (
        lambda g: g.convolution_backward_data(
            g.tensor("w"), g.tensor("dy"), (1, 2, 8, 8), dnn.ConvolutionSpec(1, 2)
        ),
        "CONVOLUTION_BACKWARD_DATA",
        "89c9f7c3ead036e7",
    ),
    "convolution_backward_filter": (
        lambda g: g.convolution_backward_filter(
            g.tensor("x"), g.tensor("dy"), (3, 2, 3, 3), dnn.ConvolutionSpec(1, 2)
        ),
        "CONVOLUTION_BACKWARD_FILTER",
        "80d593039ea9a7b0",
    ),
    "convolution_forward": (
        lambda g: g.convolution_forward(
            g.tensor("x"),
            g.tensor("w"),
            dnn.ConvolutionSpec(((1, 2), (0, 1)), mode="cross_correlation"),
        ),
        "CONVOLUTION_FORWARD",
        "906fd6b276dbc7f1",
    ),
    "div": (lambda g: g.div(g.tensor("x"), 4.0, "float16"), "MUL", "15f1107926b42438"),
    "elu": (lambda g: g.elu(g.tensor("x"), 0.5), "ELU_FWD", "5da5a4554659d3c8"),
    "erf": (lambda g: g.erf(g.tensor("x")), "ERF", "ece02ae5280199b0"),
    "exp": (lambda g: g.exp(g.tensor("x")), "EXP", "41cb56aeb92e26ad"),
    "gelu": (
        lambda g: g.gelu(g.tensor("x"), approximate=True),
        "GELU_APPROX_TANH_FWD",
        "283984201b848428",
    ),
    "gen_stats": (lambda g: g.gen_stats(g.tensor("x")), "GEN_STATS", "d200d0c00a615ec4"),
    "identity": (lambda g: g.identity(g.tensor("x"), "float16"), "IDENTITY", "6d04a1ce7b051bba"),
    "index": (lambda g: g.index(g.tensor("x"), -1), "GEN_INDEX", "f3da80231857cfbc"),
    "log": (lambda g: g.log(g.tensor("x")), "LOG", "e3afa270b9c32210"),
    "matmul": (
        lambda g: g.matmul(g.tensor("x"), g.tensor("x"), dtype="float16", m_lengths=lengths(g)),
        "MATMUL",
        "5a572e0f3f0e5b90",
    ),
    "normalization_backward": (
        lambda g: g.normalization_backward(
            "LAYER", g.tensor("x"), g.tensor("x"), g.tensor("scale"), *statistics(g)
        ),
        "NORM_BACKWARD",
        "ac565e1a6accba37",
    ),
    "normalization_forward": (
        lambda g: g.normalization_forward(
            "INSTANCE", g.tensor("x"), g.tensor("scale"), g.tensor("scale"), training=True
        ),
        "NORM_FORWARD",
        "5faff56dd4aa180d",
    ),
    "pointwise": (
        lambda g: g.pointwise("ADD", g.tensor("x"), 1, dtype="float16"),
        "ADD",
        "177a6e8500199729",
    ),
    "reciprocal": (lambda g: g.reciprocal(g.tensor("x")), "RECIPROCAL", "113c6381ecbc3acf"),
    "reduce": (lambda g: g.reduce("AMAX", g.tensor("x"), (0, -1)), "REDUCTION", "cd18d446640282c3"),
    "relu": (
        lambda g: g.relu(g.tensor("x"), negative_slope=2, lower=1, upper=6),
        "MUL, ADD, MIN, MIN",
        "6b0f45f8df7abb71",
    ),
    "resample_backward": (
        lambda g: g.resample_backward(
            "MAXPOOL", g.tensor("pooled"), (1, 2, 8, 8), (2, 2), x=g.tensor("x"), **POOLING
        ),
        "RESAMPLE_BWD",
        "5fb7754e6ee6923b",
    ),
    "resample_forward": (
        lambda g: g.resample_forward("MAXPOOL", g.tensor("x"), (2, 2), ceil_mode=True, **POOLING),
        "RESAMPLE_FWD",
        "408913800eecf8a8",
    ),
    "resample_forward_with_indices": (
        lambda g: g.resample_forward_with_indices(g.tensor("x"), (2, 2), **POOLING),
        "RESAMPLE_FWD",
        "205201363dea7d9a",
    ),
    "reshape": (lambda g: g.reshape(g.tensor("x"), (1, 16, 8)), "RESHAPE", "d469944c50463853"),
    "rsqrt": (lambda g: g.rsqrt(g.tensor("x")), "RSQRT", "dd23d48b785d245f"),
    "scalar": (lambda g: g.scalar("number", 0.5), "", "c861a62e50d228db"),
    "sigmoid": (lambda g: g.sigmoid(g.tensor("x")), "SIGMOID_FWD", "3d321f6f2d46d60d"),
    "softmax": (
        lambda g: g.softmax(g.tensor("x"), "float16"),
        "REDUCTION, SUB, EXP, REDUCTION, LOG, ADD, DIV",
        "87c260c00fe43c4b",
    ),
    "softmax_with_stats": (
        lambda g: g.softmax_with_stats(g.tensor("x")),
        "REDUCTION, SUB, EXP, REDUCTION, LOG, ADD, DIV",
        "5f716c762bbb13e1",
    ),
    "softplus": (lambda g: g.softplus(g.tensor("x"), 2.0), "SOFTPLUS_FWD", "845544cc368d6fe2"),
    "sqrt": (lambda g: g.sqrt(g.tensor("x")), "SQRT", "74438547697d3193"),
    "swish": (lambda g: g.swish(g.tensor("x"), 2.0), "SWISH_FWD", "d5509c2cf3a2f866"),
    "tanh": (lambda g: g.tanh(g.tensor("x")), "TANH_FWD", "d76fe118778f13b0"),
    "transposed": (
        lambda g: g.transposed(g.exp(g.tensor("x")), "float16"),
        "EXP, RESHAPE",
        "c106cf3d50e7d3b4",
    ),
    "view": (
        lambda g: g.view(g.tensor("x"), (1, 2, 4, 8), (128, 64, 16, 1)),
        "",
        "db13bbabf455351f",
    ),
    "where": (
        lambda g: g.where(g.tensor("x") >= 0, g.tensor("x"), -1.0),
        "CMP_GE, BINARY_SELECT",
        "77b44a32e0d8e0ff",
    ),
    "window": (
        lambda g: g.window(g.tensor("x"), 3, -1e9),
        "GEN_INDEX, GEN_INDEX, ADD, CMP_GT, BINARY_SELECT",
        "80d00262184dc2b5",
    ),
    "within_lengths": (
        lambda g: g.within_lengths(g.tensor("x"), lengths(g), lengths(g, "columns")),
        "GEN_INDEX, CMP_LT, GEN_INDEX, CMP_LT, LOGICAL_AND, BINARY_SELECT",
        "9b9fd17f5fa5f73f",
    ),
    "operators": (
        lambda g: -(1 - g.tensor("x") * 2) / g.tensor("x") @ g.tensor("x").transposed(),
        "MUL, SUB, NEG, DIV, MATMUL",
        "1bcf0e180b700bdb",
    ),
}
SPECS = {
    "x": dnn.TensorSpec((1, 2, 8, 8), "float16", layout="NHWC"),
    "w": dnn.FilterSpec((3, 2, 3, 3), "float16", layout="NHWC"),
    "bias": dnn.TensorSpec((1, 3, 1, 1), "float16"),
    "z": dnn.TensorSpec((1, 3, 8, 8), "float16", layout="NHWC"),
    "y": dnn.TensorSpec((1, 3, 8, 8), "float16", layout="NHWC"),
}
ROWS = {
    "w": dnn.FilterSpec((3, 2, 3)),
    "dy": dnn.TensorSpec((1, 3, 8)),
    "dx": dnn.TensorSpec((1, 2, 8)),
}
# The graphs of convolutions that are described by specs.
CONVOLUTIONS = {
    "rows": (
        lambda: convolution_data(
            "CONVOLUTION_BACKWARD_DATA", ROWS, dnn.ConvolutionSpec(1), 2.0, 0.5
        ),
        "CONVOLUTION_BACKWARD_DATA",
        "8cc97da7526f724b",
    ),
    "fused": (
        lambda: fused_data(
            SPECS, dnn.ConvolutionSpec(1), dnn.ActivationSpec("clipped_relu", 6.0), 0.5, 2.0
        ),
        "CONVOLUTION_FORWARD, ADD, ADD, RELU_FWD",
        "1cefd018ad2147eb",
    ),
    "without an addition": (
        lambda: fused_data(
            {name: spec for name, spec in SPECS.items() if name != "z"},
            dnn.ConvolutionSpec(1),
            dnn.ActivationSpec("swish", 2.0),
        ),
        "CONVOLUTION_FORWARD, ADD, SWISH_FWD",
        "bc45e554f3fd403c",
    ),
}


def seeds(graph: dnn.Graph) -> list[dnn.types.GraphTensor]:
    """Return the two inputs of random numbers."""
    return [graph.input(name, (1, 1, 1, 1), "int64") for name in ("seed", "offset")]


def lengths(graph: dnn.Graph, name: str = "rows") -> dnn.types.GraphTensor:
    """Return an input of the lengths of sequences."""
    return graph.input(name, (1, 1, 1, 1), "int32")


def statistics(graph: dnn.Graph) -> list[dnn.types.GraphTensor]:
    """Return the mean and the inverse standard deviation of a normalisation."""
    return [graph.input(name, (1, 1, 1, 1)) for name in ("mean", "inv_variance")]


def graph_of_inputs() -> dnn.Graph:
    """Return a graph with the inputs of the methods' calls."""
    graph = dnn.Graph()
    graph.input("x", (1, 2, 8, 8), "float16")
    graph.input("w", (3, 2, 3, 3), "float16")
    graph.input("dy", (1, 3, 4, 4), "float16")
    graph.input("scale", (1, 2, 1, 1))
    graph.input("pooled", (1, 2, 8, 4), "float16")
    return graph


def shown(graph: Any) -> tuple[str, str]:
    """Return the operations of a graph, and the beginning of the SHA-256 of its JSON."""
    kinds = ", ".join(kind for _, kind, _, _ in graph.rows())
    return kinds, hashlib.sha256(graph.to_json().encode()).hexdigest()[:16]


def arguments_of(method: Callable[..., Any]) -> str:
    """Return the arguments of a method as its signature has them, without annotations."""
    signature = inspect.signature(method)
    parameters = [
        parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()
    ]
    bare = signature.replace(parameters=parameters, return_annotation=signature.empty)
    return str(bare)[1:-1]


def test_the_methods_and_their_arguments() -> None:
    graph = dnn.Graph()
    public_names = [name for name in dir(graph) if not name.startswith("_")]
    methods = {
        name: arguments_of(getattr(graph, name))
        for name in public_names
        if callable(getattr(graph, name))
    }
    assert methods == ARGUMENTS
    assert [name for name in public_names if name not in methods] == [
        "compute_type",
        "dynamic_shapes",
        "inputs",
        "nodes",
        "outputs",
        "scalars",
        "tensors",
    ]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_each_has_a_docstring_and_is_called_by_the_name_of_the_class(name: str) -> None:
    assert inspect.getdoc(getattr(dnn.Graph, name))
    with pytest.raises(TypeError, match=rf"^Graph(Data)?\.{name}\(\) takes .* positional"):
        getattr(dnn.Graph(), name)(*[None] * 20)


@pytest.mark.parametrize("name", ADDED)
def test_what_a_method_adds(name: str) -> None:
    call, *expected = ADDED[name]
    graph = graph_of_inputs()
    call(graph)
    assert shown(graph) == tuple(expected)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_graphs_of_convolutions(name: str) -> None:
    make_graph, *expected = CONVOLUTIONS[name]
    assert shown(make_graph()) == tuple(expected)


@pytest.mark.parametrize(
    ("causal", "visible"), [(False, 15), (True, 1 + 2 + 3), ("bottom_right", 3 + 4 + 5)]
)
def test_flops_count_the_scores_that_a_causal_mask_leaves(causal: Any, visible: int) -> None:
    """Of three queries and five keys."""
    q, k = (dnn.TensorSpec((2, 4, steps, 8), "float16") for steps in (3, 5))
    graph = dnn.scaled_dot_product_attention_forward.graph(q, k, k, causal=causal)
    assert flops_of(graph) == 2 * (2 * 2 * 4 * visible * 8)  # two products
