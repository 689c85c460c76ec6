"""Graphs as values: what they infer, refuse, print and save, and that they compare and copy; no device is needed."""

from __future__ import annotations

import copy
import cProfile
import functools
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite._raw.attributes import ATTRIBUTES
from cudnnlite.graph.node_attributes import CONFIGURATIONS

FLOAT, HALF, INT32, BOOLEAN = (
    dnn.DataType.FLOAT,
    dnn.DataType.HALF,
    dnn.DataType.INT32,
    dnn.DataType.BOOLEAN,
)


def attention(scale: float = 0.125, masked: float = -math.inf) -> dnn.Graph:
    """Return attention with a causal mask, written by hand."""
    graph = dnn.Graph()
    q = graph.input("q", (2, 4, 6, 8), "float16")
    k = graph.input("k", (2, 2, 5, 8), "float16", (80, 40, 8, 1))
    v = graph.input("v", (2, 2, 5, 16), "float16")
    scores = graph.causal(q @ k.transposed() * graph.scalar("scale", scale), masked)
    probabilities, stats = graph.softmax_with_stats(scores, "float16")
    graph.output("stats", stats)
    graph.output("o", graph.matmul(probabilities, v), "float16")
    return graph


# ---------------------------------------------------------------- values


def test_graphs_are_equal_if_they_consist_of_the_same():
    graph, same = attention(), attention()
    assert graph == same
    assert hash(graph) == hash(same)
    assert len({graph, same}) == 1
    assert graph != attention(scale=0.25)
    assert graph != attention(masked=-1e9)
    assert graph != graph.to_json()
    assert dnn.Graph() != dnn.Graph("float16")
    assert dnn.Graph("float32") == dnn.Graph(np.float32)


def test_what_is_hashed_does_not_change_any_more():
    graph = attention()
    hash(graph)
    text = graph.to_json()
    q = graph.tensor("q")
    for change in (
        lambda: graph.input("x", (1, 2, 3)),
        lambda: graph.scalar("half", 0.5),
        lambda: graph.exp(q),
        lambda: q + 1,
        lambda: q.transposed(),
        lambda: graph.virtual((2, 3)),
        lambda: graph.output("p", graph.tensor(6)),
    ):
        with pytest.raises(dnn.ArgumentError, match=r"hashed or planned.*copy"):
            change()
    assert graph.to_json() == text


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_copy_is_equal_open_and_independent(duplicate):
    graph = attention()
    graph.freeze()
    copied = duplicate(graph)
    assert copied == graph
    assert type(copied) is dnn.Graph
    copied.output("scores", copied.exp(copied.tensor("o")))
    assert copied != graph
    assert "scores" not in graph.outputs


def test_tensors_copy_with_their_graph():
    q = attention().tensor("q")
    assert copy.copy(q).graph is q.graph
    copied = pickle.loads(pickle.dumps(q))
    assert copied.graph == q.graph
    assert copied.record == q.record


# ---------------------------------------------------------------- JSON


@pytest.mark.parametrize("scale", [0.125, math.inf, -math.inf, math.nan])
def test_json_there_and_back(scale):
    graph = attention(scale)
    text = graph.to_json()
    strict = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert strict["format"] == 1
    restored = dnn.Graph.from_json(text)
    assert restored == graph
    assert restored.to_json() == text
    assert restored.inputs == graph.inputs
    assert restored.outputs == graph.outputs
    assert str(restored) == str(graph)
    assert dnn.Graph.from_plain(graph.to_plain()) == graph


def test_an_attribute_that_is_not_finite_comes_back():
    graph = dnn.Graph()
    x = graph.input("x", (1, 2, 3))
    graph.output("y", graph.pointwise("RELU_FWD", x, relu_upper_clip=math.inf))
    assert dnn.Graph.from_json(graph.to_json()).nodes == graph.nodes


def edited(**changes):
    """Return a function that changes a graph's plain values by path: tensors_0_shape=..."""

    def edit(plain):
        for path, value in changes.items():
            *steps, last = (int(step) if step.isdigit() else step for step in path.split("__"))
            place = plain
            for step in steps:
                place = place[step]
            place[last] = value
        return plain

    return edit


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (edited(format=2), "its format is 2; needed: 1"),
        (edited(compute_type="float33"), "compute_type='float33'"),
        (edited(tensors=None), "no graph"),
        (edited(tensors__0__shape=[2, 4, 0, 8]), "shape"),
        (edited(tensors__0__shape="2468"), "shape"),
        (edited(tensors__0__strides=[1]), "strides"),
        (edited(tensors__0__strides=[-1, 1, 1, 1]), "strides"),
        (edited(tensors__0__name="out"), "name='out'"),
        (edited(tensors__0__name=3), "name=3"),
        (edited(tensors__1__name="q"), "name='q' is the name of another tensor"),
        (edited(tensors__0__dtype="complex64"), "complex64"),
        (edited(tensors__3__view_of=99), "view_of=99"),
        (edited(tensors__3__view_of="k"), "view_of='k'"),
        (edited(tensors__3__shape=[2, 2, 8, 99]), "reaches behind"),
        (edited(tensors__5__value="many"), "value='many'"),
        (edited(nodes__0__kind="MATMULL"), "kind='MATMULL'; allowed: "),
        (edited(nodes__0__kind=None), "kind=None"),
        (edited(nodes__0__attributes={"mode": "ADD"}), "no attribute 'mode'"),
        (edited(nodes__0__attributes={"comp_type": 1e9}), "comp_type"),
        (edited(nodes__0__attributes=[]), "no graph"),
        (edited(nodes__0__reads={"adesc": [0], "bdesc": [99]}), "bdesc=99"),
        (edited(nodes__0__reads={"adesc": [0], "bdesc": [True]}), "bdesc=True"),
        (edited(nodes__0__reads={"adesc": [0, 1], "bdesc": [3]}), "takes one tensor; 2"),
        (edited(nodes__0__reads={"adesc": [0], "bdesc": [6]}), "which no operation computes"),
        (edited(nodes__0__reads={"comp_type": [0]}), "comp_type takes DATA_TYPE"),
        (edited(nodes__0__writes={"cdesc": [0]}), "which has its values already"),
        (edited(nodes__0__writes={"cdesc": [5]}), "which has its values already"),
        (lambda plain: {key: plain[key] for key in plain if key != "nodes"}, "it has no 'nodes'"),
        (lambda plain: [plain], "no graph"),
        (lambda plain: None, "no graph"),
        (lambda plain: 3, "no graph"),
    ],
)
def test_malformed_graphs_are_refused(edit, match):
    text = json.dumps(edit(attention().to_plain()))
    with pytest.raises(dnn.ArgumentError, match=match):
        dnn.Graph.from_json(text)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, None, 3, b"\xff", "nan", "\0"])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(dnn.ArgumentError, match=r"is no (JSON|graph)"):
        dnn.Graph.from_json(text)


# ---------------------------------------------------------------- as a table


def test_a_graph_prints_as_a_table():
    graph = dnn.Graph()
    a = graph.input("a", (3, 5, 7), "float16")
    b = graph.input("b", (3, 9, 7), "float16", (64, 7, 1))
    y = graph.gelu(a @ b.transposed() + 0.5)
    graph.output("y", y, "bfloat16")
    assert str(graph).splitlines() == [
        "result  operation  operands      attributes",
        "t3      MATMUL     a, bᵀ         comp_type=float32",
        "t5      ADD        t3, number_0  math_prec=float32",
        "y       GELU_FWD   t5            math_prec=float32",
        "",
        "  a 3x5x7 float16",
        "  b 3x9x7 float16 strides (64, 7, 1)",
        "  y 3x5x9 bfloat16",
        "  number_0=0.5",
    ]
    assert repr(graph) == "<Graph of 3 operations: a, b -> y>"
    assert repr(a) == "<tensor a 3x5x7 float16>"
    assert repr(a @ b.transposed()) == "<tensor virtual 3x5x9 float32>"


def test_an_empty_graph_prints():
    assert repr(dnn.Graph()) == "<Graph of 0 operations:  -> >"
    assert str(dnn.Graph()).splitlines()[0].split() == [
        *("result", "operation", "operands", "attributes")
    ]


# ---------------------------------------------------------------- shapes and data types


def test_shapes_and_types_that_are_inferred():
    graph = dnn.Graph()
    x = graph.input("x", (2, 3, 5, 7), "float16")
    row = graph.input("row", (1, 3, 1, 1))
    images = {
        "operators": (x + row) * 2 - 1 / x,
        "negative": -x,
        "exp": graph.exp(x),
        "relu": graph.relu(x, upper=6.0, negative_slope=0.1),
        "where": graph.where(x > row, x, 0.0),
        "causal": graph.causal(x),
        "softmax": graph.softmax(x),
    }
    for name, tensor in images.items():
        assert (tensor.shape, tensor.dtype) == ((2, 3, 5, 7), FLOAT), name
        assert tensor.name == ""
    for comparison in (x > 1, x >= row, x < row, x <= 2.0):
        assert (comparison.shape, comparison.dtype) == ((2, 3, 5, 7), BOOLEAN)
    assert (graph.index(x, -1).dtype, graph.index(x, 2).shape) == (INT32, (2, 3, 5, 7))
    assert graph.identity(x, "bfloat16").dtype == dnn.DataType.BFLOAT16
    assert graph.reduce("ADD", x).shape == (2, 3, 5, 1)
    assert graph.reduce("max", x, (0, -2)).shape == (1, 3, 1, 7)
    assert [each.shape for each in graph.gen_stats(x)] == [(1, 3, 1, 1)] * 2
    assert graph.reshape(x, (6, 35)).shape == (6, 35)
    assert graph.exp(x).transposed("float16").dtype == HALF


@pytest.mark.parametrize("divisor", [8, 5.5, -0.1, np.float32(3)])
def test_a_division_by_a_number_is_a_product(divisor: float) -> None:
    """Which cuDNN has engines for behind a product and a convolution, unlike DIV."""
    graph = dnn.Graph()
    x = graph.input("x", (2, 3, 5, 7), "float16")
    by_operator, by_method = x / divisor, graph.div(x, divisor, "bfloat16")
    assert (by_operator.dtype, by_method.dtype) == (FLOAT, dnn.DataType.BFLOAT16)
    modes = [dict(node.attributes)["mode"] for node in graph.nodes]
    assert modes == ["MUL", "MUL"]
    for record in graph.scalars.values():
        assert record.value == pytest.approx(1 / divisor, rel=1e-12)


def test_what_stays_a_division() -> None:
    """By a tensor, of a number, by 0, and by what has no reciprocal in float32."""
    graph = dnn.Graph()
    x = graph.input("x", (2, 3, 5, 7))
    divisions = [x / x, x / graph.scalar("two", 2), 2 / x, x / 0, x / 1e-40, x / 3e38]
    assert len(divisions) == len(graph.nodes)
    assert {dict(node.attributes)["mode"] for node in graph.nodes} == {"DIV"}
    with pytest.raises(dnn.ArgumentError, match="b='2' must be a real number"):
        graph.div(x, "2")  # type: ignore[arg-type]


def test_transposes_are_views_in_memory_and_operations_elsewhere():
    graph = dnn.Graph()
    x = graph.input("x", (2, 5, 7))
    view = x.transposed()
    assert (view.shape, view.strides, view.name) == ((2, 7, 5), (35, 1, 7), "x")
    assert view.transposed().shape == (2, 5, 7)
    assert graph.nodes == []
    virtual = graph.exp(x).transposed()
    assert (virtual.shape, virtual.strides, virtual.name) == ((2, 7, 5), (35, 1, 7), "")
    assert [node.kind for node in graph.nodes] == ["POINTWISE", "RESHAPE"]


@pytest.mark.parametrize(
    ("a", "b", "product"),
    [
        ((3, 5, 7), (3, 7, 2), (3, 5, 2)),
        ((3, 5, 7), (1, 7, 2), (3, 5, 2)),
        ((2, 8, 5, 7), (2, 2, 7, 3), (2, 8, 5, 3)),
        ((2, 2, 5, 7), (2, 8, 7, 3), (2, 8, 5, 3)),
    ],
)
def test_shapes_of_products(a, b, product):
    graph = dnn.Graph()
    assert (graph.input("a", a) @ graph.input("b", b)).shape == product


@pytest.mark.parametrize(
    ("mode", "scale", "statistics"),
    [
        ("LAYER", (1, 3, 5, 7), (2, 1, 1, 1)),
        ("LAYER", (1, 1, 1, 7), (2, 3, 5, 1)),
        ("RMS", (1, 3, 1, 1), (2, 1, 5, 7)),
        ("INSTANCE", (1, 3, 1, 1), (2, 3, 1, 1)),
    ],
)
def test_shapes_of_normalisations(mode, scale, statistics):
    graph = dnn.Graph()
    x, weights = graph.input("x", (2, 3, 5, 7), "float16"), graph.input("scale", scale)
    y, mean, inverse = graph.normalization_forward(mode, x, weights, training=True)
    assert (y.shape, y.dtype) == (x.shape, HALF)
    assert (inverse.shape, inverse.dtype) == (statistics, FLOAT)
    assert (mean is None) == (mode == "RMS")
    inference = graph.normalization_forward(mode, x, weights, weights)
    assert inference.mean is inference.inv_variance is None
    gradients = graph.normalization_backward(mode, x, x, weights, mean, inverse)
    assert [each.shape for each in gradients] == [x.shape, scale, scale]
    assert (
        graph.normalization_backward(mode, x, x, weights, mean, inverse, has_bias=False)[2] is None
    )


def test_shapes_of_convolutions_and_poolings():
    graph = dnn.Graph()
    x, w = graph.input("x", (2, 3, 9, 8)), graph.input("w", (5, 3, 3, 2))
    conv = dnn.ConvolutionSpec(((0, 1), (2, 1)), stride=2)
    y = graph.convolution_forward(x, w, conv)
    assert y.shape == conv.output_shape((2, 3, 9, 8), (5, 3, 3, 2))
    assert graph.convolution_backward_data(w, y, x.shape, conv).shape == x.shape
    assert graph.convolution_backward_filter(x, y, w.shape, conv).shape == w.shape
    attributes = dict(graph.nodes[0].attributes)
    assert (attributes["pre_paddings"], attributes["post_paddings"]) == ((0, 2), (1, 1))
    pooling = {"stride": (2, 3), "padding": ((1, 0), (0, 0))}
    assert graph.resample_forward("MAXPOOL", x, (3, 2), **pooling).shape == (2, 3, 4, 3)
    ceiled = graph.resample_forward("MAXPOOL", x, (4, 4), **pooling, ceil_mode=True)
    assert ceiled.shape == (2, 3, 4, 3)
    assert dict(graph.nodes[-1].attributes)["post_paddings"] == (0, 2)
    y, indices = graph.resample_forward_with_indices(x, (3, 2), **pooling)
    assert (y.shape, y.dtype) == ((2, 3, 4, 3), FLOAT)
    assert (indices.shape, indices.dtype) == (y.shape, dnn.DataType.INT32)
    for read in ({}, {"x": x, "y": y}, {"indices": indices}):
        dx = graph.resample_backward("MAXPOOL", y, x.shape, (3, 2), **pooling, **read)
        assert (dx.shape, dx.dtype) == (x.shape, FLOAT)
    assert [*dict(graph.nodes[-1].reads)] == ["dydesc", "idxdesc"]


def test_inputs_outputs_and_numbers_by_name():
    graph = attention()
    assert [*graph.inputs] == ["q", "k", "v"]
    assert [*graph.outputs] == ["stats", "o"]
    assert {name: record.value for name, record in graph.scalars.items()} == {
        "scale": 0.125,
        "number_0": -math.inf,
    }
    assert {record.shape for record in graph.scalars.values()} == {(1, 1, 1, 1)}
    assert graph.inputs["k"].strides == (80, 40, 8, 1)
    assert graph.tensor("o").dtype == HALF
    assert graph.tensor(0).name == "q"


def test_names_of_numbers_leave_those_of_users_alone():
    graph = dnn.Graph()
    x = graph.input("number_0", (2, 3))
    x + 1
    x * 2
    assert [*graph.scalars] == ["number_1", "number_2"]


@pytest.mark.parametrize("kind", sorted(CONFIGURATIONS))
def test_configurations_are_cudnns(kind):
    configuration, attribute = CONFIGURATIONS[kind]
    assert ATTRIBUTES[f"OPERATION_{kind}"][attribute][1] == "BACKEND_DESCRIPTOR"
    assert not ATTRIBUTES[configuration].keys() & ATTRIBUTES[f"OPERATION_{kind}"].keys() - {"mode"}


def test_every_operation_of_cudnn_can_be_written():
    """Of each kind a node, its tensors where it takes tensors: whatever cuDNN has, a graph can hold."""
    for name, attributes in ATTRIBUTES.items():
        if not name.startswith("OPERATION_"):
            continue
        kind = name.removeprefix("OPERATION_")
        configured = CONFIGURATIONS.get(kind, ("", ""))[1]
        tensors = [
            attribute
            for attribute, (_, type_name, _) in attributes.items()
            if type_name == "BACKEND_DESCRIPTOR" and attribute != configured
        ]
        if not tensors:
            continue
        graph = dnn.Graph()
        x = graph.input("x", (2, 3, 4))
        *reads, written = tensors
        graph.node(kind, reads=dict.fromkeys(reads, x), writes={written: graph.virtual((2, 3, 4))})
        assert dnn.Graph.from_json(graph.to_json()) == graph, kind


# ---------------------------------------------------------------- refusals

X = (2, 3, 5, 7)
REFUSED = {
    "compute type": (lambda g, x: dnn.Graph("float33"), "compute_type='float33'"),
    "name": (lambda g, x: g.input("a b", X), "name='a b'; needed: an identifier"),
    "name of an argument": (lambda g, x: g.input("workspace", X), "none of operation, out, "),
    "name twice": (lambda g, x: g.input("x", X), "name='x' is the name of another tensor"),
    "name of a number": (lambda g, x: g.scalar("x", 1), "name='x'"),
    "empty shape": (lambda g, x: g.input("y", ()), "shape"),
    "empty axis": (lambda g, x: g.input("y", (2, 3, 0)), "size 0 on axis 2; allowed: 1 to"),
    "size": (lambda g, x: g.input("y", (2, 2.5)), r"shape=\(2, 2.5\)"),
    "dtype": (lambda g, x: g.input("y", X, "bool"), "dtype='bool'"),
    "strides": (lambda g, x: g.input("y", X, strides=(1, 2)), "strides"),
    "layout": (
        lambda g, x: g.input("y", X, layout="NHCW"),
        "layout='NHCW' is not a layout of rank 4",
    ),
    "layout of another rank": (lambda g, x: g.output("y", -x, layout="NWC"), "allowed: NCHW, NHWC"),
    "layout and strides": (
        lambda g, x: g.input("y", X, strides=(105, 35, 7, 1), layout="NCHW"),
        "are both given; allowed: one of them",
    ),
    "value": (lambda g, x: g.scalar("s", "1"), "value='1' must be a real number"),
    "integer": (lambda g, x: g.scalar("s", 2.5, "int32"), "value=2.5; needed: an integer"),
    "large number": (lambda g, x: g.scalar("s", 1e5, "float16"), "value=100000.0; allowed: up to"),
    "output of an input": (lambda g, x: g.output("y", x), "is in memory already"),
    "output of a number": (lambda g, x: g.output("y", g.scalar("s", 1)), "is in memory already"),
    "output of nothing": (lambda g, x: g.output("y", g.virtual(X)), "no operation computes"),
    "output of truths": (lambda g, x: g.output("y", x > 1), "BOOLEAN.*no arrays"),
    "output twice": (
        lambda g, x: g.output("z", g.output("y", g.exp(x))),
        "tensor is y 2x3x5x7 float32, which is in memory already",
    ),
    "another graph's": (lambda g, x: g.exp(dnn.Graph().input("q", X)), "of another graph"),
    "no tensor": (lambda g, x: x + "1", "value='1' must be a real number"),
    "an array": (lambda g, x: x + np.ones(X, np.float32), "must be a real number"),
    "an array before": (lambda g, x: np.ones(X, np.float32) + x, "must be a real number"),
    "no broadcast": (lambda g, x: x + g.input("y", (2, 3, 5, 2)), "ADD of shapes .2, 3, 5, 7"),
    "other rank": (lambda g, x: x + g.input("y", (5, 7)), "they have one rank"),
    "mode": (lambda g, x: g.pointwise("PLUS", x, x), "mode='PLUS'"),
    "operands": (lambda g, x: g.pointwise("ADD", x), "mode=ADD takes 2 operands; 1 were given"),
    "attribute": (lambda g, x: g.pointwise("EXP", x, slope=1), "no attribute 'slope'; allowed: "),
    "attribute's value": (lambda g, x: g.pointwise("ELU_FWD", x, elu_alpha="1"), "elu_alpha='1'"),
    "product": (lambda g, x: x @ x, "b has shape .*needed beside a of shape .* 7 rows"),
    "product of vectors": (lambda g, x: g.matmul(g.input("v", (3,)), x), "2 axes at least"),
    "batches": (lambda g, x: x @ g.input("y", (3, 3, 7, 2)), "b has shape"),
    "axis": (lambda g, x: g.index(x, 4), "axis=4; allowed: -4 to 3"),
    "axes": (lambda g, x: g.reduce("ADD", x, (0, 9)), "axes=9; allowed: -4 to 3"),
    "no axes": (lambda g, x: g.reduce("ADD", x, ()), "axes"),
    "operator": (lambda g, x: g.reduce("SUM", x), "operator='SUM'"),
    "reshape": (lambda g, x: g.reshape(x, (2, 3, 5)), "shape=.*needed: 210 values"),
    "view": (lambda g, x: g.view(x, (2, 3, 5, 8), (105, 35, 7, 1)), "reaches behind"),
    "view of nothing": (lambda g, x: g.view(g.exp(x), X, (1,) * 4), "not in memory"),
    "tensor": (lambda g, x: g.tensor("y"), "name='y'; allowed: x"),
    "number": (lambda g, x: g.tensor(7), "name=7; allowed: 0 to 0"),
    "normalisation": (lambda g, x: g.normalization_forward("layer", x, x, epsilon=None), "epsilon"),
    "scale's rank": (
        lambda g, x: g.normalization_forward("LAYER", x, g.input("s", (3, 1))),
        "scale has shape .*needed: the rank of x",
    ),
    "training": (lambda g, x: g.normalization_forward("RMS", x, x, training=1), "training=1"),
    "filter": (
        lambda g, x: g.convolution_forward(x, g.input("w", (4, 2, 3, 3))),
        r"\bw\b|channels",
    ),
    "conv": (lambda g, x: g.convolution_forward(x, x, 3), "conv=3 is not a ConvolutionSpec"),
    "gradient": (
        lambda g, x: g.convolution_backward_data(
            g.input("w", (4, 3, 2, 2)), g.input("dy", (2, 4, 9, 9)), (2, 3, 8, 8)
        ),
        r"dy has shape \(2, 4, 9, 9\); the convolution of .* has \(2, 4, 7, 7\)",
    ),
    "window": (lambda g, x: pool(g, x, window=(3,)), "window=.3,.; needed: 2"),
    "large window": (lambda g, x: pool(g, x, window=(9, 9)), "window=.9, 9. is larger than x"),
    "stride": (lambda g, x: pool(g, x, stride=(0, 1)), "stride=0; allowed: 1"),
    "padding": (lambda g, x: pool(g, x, padding=(1, 1)), "padding=1"),
    "negative padding": (lambda g, x: pool(g, x, padding=((-1, 0), (0, 0))), "padding=-1"),
    "shape of images": (
        lambda g, x: g.resample_backward(
            "MAXPOOL", x, (2, 3), (1,), stride=(1,), padding=((0, 0),)
        ),
        "shape=.2, 3.; needed: 4 axes",
    ),
    "dy": (lambda g, x: unpool(g, x, shape=(2, 3, 9, 8)), "dy has shape .*needed for images"),
    "y": (lambda g, x: unpool(g, x, y=g.input("y", (1, 3, 9, 8))), "y has shape .*needed"),
    "kind": (lambda g, x: g.node("ATTENTION", reads={}, writes={}), "kind='ATTENTION'; allowed: "),
    "reads": (lambda g, x: g.node("RESHAPE", reads=x, writes={}), "reads=.* is not a mapping"),
    "no writes": (lambda g, x: g.node("RESHAPE", reads={"xdesc": x}, writes={}), "writes={}"),
    "writes an input": (
        lambda g, x: g.node("RESHAPE", reads={"xdesc": x}, writes={"ydesc": x}),
        "writes has x .*in memory already",
    ),
    "tensor as attribute": (
        lambda g, x: g.node(
            "RESHAPE", {"xdesc": x}, reads={"xdesc": x}, writes={"ydesc": g.virtual(X)}
        ),
        "RESHAPE.xdesc takes tensors",
    ),
    "a number of two ranks": (
        lambda g, x: (x + (s := g.scalar("s", 1)), g.exp(g.input("v", (2, 3))) + s),
        "s=1 meets tensors of rank 4 and 2",
    ),
}


def unpool(graph, dy, shape=None, **tensors):
    steps = {"window": (1, 1), "stride": (1, 1), "padding": ((0, 0), (0, 0))}
    shape = dy.shape if shape is None else shape
    return graph.resample_backward("MAXPOOL", dy, shape, **steps, **tensors)


def pool(graph, x, **changes):
    options = {"window": (2, 2), "stride": (1, 1), "padding": ((0, 0), (0, 0))} | changes
    return graph.resample_forward("MAXPOOL", x, **options)


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name(case):
    call, match = REFUSED[case]
    graph = dnn.Graph()
    x = graph.input("x", X)
    with pytest.raises(dnn.ArgumentError, match=match):
        call(graph, x)


@pytest.mark.parametrize(
    "name", ["choice", "close", "graph", "_prepared", "values", "kind", "lambda"]
)
def test_names_hide_nothing_of_a_plan(name):
    graph = dnn.Graph()
    graph.output("y", graph.exp(graph.input(name, (2, 3, 4))))
    with dnn.Handle(device="emulated") as handle, graph.plan(handle) as plan:
        x = handle.zeros((2, 3, 4))
        assert plan(**{name: x})["y"].numpy().tolist() == np.ones((2, 3, 4)).tolist()
        assert plan.graph is graph
        assert isinstance(plan.choice, dnn.AlgorithmResult)


def test_a_graph_without_outputs_is_no_plan():
    graph = dnn.Graph()
    graph.exp(graph.input("x", (2, 3, 4)))
    with (
        dnn.Handle(device="emulated") as handle,
        pytest.raises(dnn.ArgumentError, match=r"1 operations and 0 outputs: graph.output"),
    ):
        graph.plan(handle)


# ---------------------------------------------------------------- layouts


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((2, 3, 5, 7), "NHWC"),
        ((2, 3, 5, 7), "NCHW"),
        ((2, 3, 5), "NWC"),
        ((2, 3, 4, 5, 7), "NDHWC"),
    ],
)
def test_a_layout_stands_for_its_strides(shape: tuple[int, ...], layout: str) -> None:
    graph, same = dnn.Graph(), dnn.Graph()
    spec = dnn.TensorSpec(shape, "float16", layout)
    graph.output("y", -graph.input("x", shape, "float16", layout=layout), layout=layout)
    same.output("y", -same.input("x", shape, "float16", spec.strides), strides=spec.strides)
    assert graph == same
    assert graph.inputs["x"].spec == spec
    assert graph.outputs["y"].spec.layout == layout


def test_a_layout_is_that_of_the_array_in_memory() -> None:
    graph = dnn.Graph()
    y = graph.exp(graph.input("x", (1, 6, 4, 5)))
    graph.output("y", y, layout="NWC", shape=(6, 4, 5))
    assert graph.outputs["y"].spec == dnn.TensorSpec((6, 4, 5), layout="NWC")


# ---------------------------------------------------------------- arrays with other axes


def matrix_graph(**options: Any) -> dnn.Graph:
    """Return a product whose result is a matrix, of batches of one."""
    graph = dnn.Graph()
    a, b = graph.input("a", (1, 8, 4), "float16"), graph.input("b", (1, 4, 6), "float16")
    graph.output("y", a @ b, "float16", **options)
    return graph


def test_an_output_may_have_other_axes_in_memory() -> None:
    graph = matrix_graph(shape=(8, 6), strides=(16, 1))
    record = graph.outputs["y"]
    assert record.spec == dnn.TensorSpec((8, 6), "float16", strides=(16, 1))
    assert (record.shape, record.strides[1:]) == ((1, 8, 6), (16, 1))
    same = dnn.Graph.from_json(graph.to_json())
    assert same == graph
    assert same.outputs["y"].spec == record.spec
    assert matrix_graph(shape=(1, 8, 6)) == matrix_graph() != graph
    assert "array_axes" not in matrix_graph().to_json(), "as it was remembered before"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": (8, 5)}, "needed: an array with a view"),
        ({"shape": (2, 4, 2, 3), "strides": (32, 7, 3, 1)}, "needed: an array with a view"),
        ({"shape": (8, 6), "strides": (6,)}, "strides"),
        ({"shape": "86"}, "shape="),
    ],
)
def test_axes_that_an_output_cannot_have(options: dict[str, Any], message: str) -> None:
    with pytest.raises(dnn.ArgumentError, match=message):
        matrix_graph(**options)


@pytest.mark.parametrize("axes", [[[8, 5], [5, 1]], [[8, 6]], "axes", None, [[8, 6], [6, "1"]]])
def test_saved_axes_that_are_none(axes: Any) -> None:
    plain = matrix_graph(shape=(8, 6)).to_plain()
    (output,) = (tensor for tensor in plain["tensors"] if tensor["name"] == "y")
    output["array_axes"] = axes
    with pytest.raises(dnn.ArgumentError):
        dnn.Graph.from_plain(plain)


# ---------------------------------------------------------------- large and hostile graphs


def calls_of(work):
    """Return how many functions a piece of work calls, in Python and in C."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())


def long_chain(length):
    graph = dnn.Graph()
    x = y = graph.input("x", (1, 8, 4))
    for number in range(length):
        y = graph.relu(y) + 1.5
        y = y * graph.input(f"b{number}", (1, 8, 4)) @ graph.view(x, (1, 4, 4), (32, 4, 1))
    graph.output("y", y)
    return graph


@pytest.mark.parametrize(
    "work",
    [
        long_chain,
        lambda length: hash(long_chain(length)),
        lambda length: dnn.Graph.from_plain(long_chain(length).to_plain()),
        lambda length: str(long_chain(length)),
    ],
    ids=["build", "hash", "from_plain", "str"],
)
def test_the_work_grows_with_the_length_of_a_graph(work):
    few, many = (calls_of(lambda length=length: work(length)) for length in (20, 80))
    assert many < 4.4 * few


NESTED = functools.reduce(lambda value, _: [value], range(3000), [])


HOSTILE = {
    "digits": 10**5000,
    "nested": NESTED,
    "list": [10**5000],
    "mapping": {"x": NESTED},
    "array": np.ones(3),
}


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize(
    "key",
    [
        "format",
        "compute_type",
        "tensors",
        "nodes",
        "dynamic_shapes",
        *(f"tensors__0__{name}" for name in ("name", "shape", "dtype", "strides", "view_of")),
        "tensors__0__array_axes",
        "tensors__5__value",
        "tensors__5__shape",
        *(f"nodes__0__{name}" for name in ("kind", "attributes", "reads", "writes")),
        "nodes__0__attributes__comp_type",
        "nodes__0__reads__adesc",
    ],
)
def test_hostile_values_are_refused(key, value):
    plain = edited(**{key: HOSTILE[value]})(attention().to_plain())
    with pytest.raises(dnn.ArgumentError) as caught:
        dnn.Graph.from_plain(plain)
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize("number", [10**6, -1, "x", None, 10**4000])
def test_a_tensor_that_a_graph_does_not_have(number):
    graph = dnn.Graph()
    graph.input("x", (2, 3))
    with pytest.raises(dnn.ArgumentError, match="number="):
        dnn.types.GraphTensor(graph, number)
    with pytest.raises(dnn.ArgumentError, match="is not a Graph"):
        dnn.types.GraphTensor(number, 0)


@pytest.mark.parametrize(
    ("flag", "call"),
    [
        ("dynamic_shapes", lambda graph, x, flag: dnn.Graph(dynamic_shapes=flag)),
        ("approximate", lambda graph, x, flag: graph.gelu(x, approximate=flag)),
        ("negative_slope", lambda graph, x, flag: graph.relu(x, negative_slope=flag)),
        ("upper", lambda graph, x, flag: graph.relu(x, upper=flag)),
        (
            "training",
            lambda graph, x, flag: graph.normalization_forward("RMS", x, x, training=flag),
        ),
    ],
)
def test_flags_are_no_arrays(flag, call):
    graph = dnn.Graph()
    x = graph.input("x", (2, 3, 4))
    with pytest.raises(dnn.ArgumentError, match=f"{flag}="):
        call(graph, x, np.ones(3))


def test_long_names_are_cut_in_messages():
    graph = dnn.Graph()
    x = graph.input("x" * 5000, (2, 3, 4))
    for call in (
        lambda: graph.input("x" * 5000, (2, 3, 4)),
        lambda: graph.output("y", x),
        lambda: graph.tensor("y"),
        lambda: graph.bernoulli((2, 3), 0.5, x, x),
    ):
        with pytest.raises(dnn.ArgumentError, match=r"xxx\.\.\.") as caught:
            call()
        assert len(str(caught.value)) < 1000
    assert len(repr(graph)) < 1000
