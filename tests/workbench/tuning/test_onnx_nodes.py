"""Problems from ONNX nodes.

Shapes are those of ONNX's reference implementation, and every skipped node has a reason.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_models import (
    DTYPES,
    FILTER,
    GATES,
    IMAGE,
    absent,
    conv,
    model,
    one_conv,
    one_rnn,
    only,
    value,
    why,
)

import cudnnlite as dnn
from cudnnlite import convolution_forward, rnn_forward
from cudnnlite.workbench.tuning.onnx.model_problems import problems_from_onnx

# ---------------------------------------------------------------- convolutions


def test_a_convolution():
    given_model = one_conv(strides=[2, 1], pads=[1, 0, 1, 0], dilations=[1, 2], kernel_shape=[3, 3])
    problems = problems_from_onnx(given_model)
    assert only(problems) == convolution_forward.problem(
        dnn.TensorSpec(IMAGE), dnn.FilterSpec(FILTER), dnn.ConvolutionSpec((1, 0), (2, 1), (1, 2))
    )
    assert problems[0].names == ("conv",)
    assert problems.notes == []


def test_groups_and_ranks():
    for rank in (1, 2, 3):
        x, w = (2, 6, *(7, 8, 9)[:rank]), (4, 3, *(3, 2, 1)[:rank])
        problem = only(problems_from_onnx(one_conv(x, w, group=2)))
        spec = dnn.ConvolutionSpec(0, 1, 1, 2)
        assert problem == convolution_forward.problem(dnn.TensorSpec(x), dnn.FilterSpec(w), spec)
        last = only(problems_from_onnx(one_conv(x, w, group=2), layout="nhwc"))
        name = ("NWC", "NHWC", "NDHWC")[rank - 1]
        assert last == convolution_forward.problem(
            dnn.TensorSpec(x, layout=name), dnn.FilterSpec(w, layout=name), spec
        )
        assert (last.x.layout, last.w.layout, last.y.layout) == (name, name, name)
        assert last.y.shape == problem.y.shape


@pytest.mark.parametrize("name", DTYPES)
def test_data_types(name):
    problems = problems_from_onnx(one_conv(dtype=DTYPES[name]))
    problem = only(problems)
    assert (problem.x.dtype, problem.w.dtype, problem.y.dtype) == (
        dnn.TensorSpec((1,), name).dtype,
    ) * 3
    other = only(problems_from_onnx(one_conv(), dtype=name))
    assert other == problem


# The paddings of Conv nodes: `auto_pad`, and how `pads` are drawn.
PADDINGS = [
    *itertools.product((None, "NOTSET"), ("no", "alike", "never reached", "in any way")),
    ("VALID", "no"),
    ("SAME_UPPER", "no"),
    ("SAME_LOWER", "no"),
]


@st.composite
def convolutions(draw: Any, auto_pad: str | None, padding: str) -> dict[str, Any]:
    """Draw a Conv node's attributes, and the shapes of its inputs."""
    rank = draw(st.integers(1, 3))

    def steps(low: int, high: int, number: int = rank) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=number, max_size=number))

    groups = draw(st.sampled_from((1, 1, 2, 3)))
    channels, filters = draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    taps, strides, dilations = steps(1, 4), steps(1, 3), steps(1, 2)
    extra, before, behind = steps(0, 7), steps(1, 2), steps(0, 2)
    if padding == "alike":
        behind = before
    elif padding == "never reached":  # no step ends in the last row of the padding
        strides = steps(2, 3)
        behind = [size - 1 for size in before]
        extra = [e + ((e + 2 * b) % s == 0) for e, b, s in zip(extra, before, strides, strict=True)]
    reach = [d * (t - 1) + 1 for d, t in zip(dilations, taps, strict=True)]
    image = [r + e for r, e in zip(reach, extra, strict=True)]
    attributes: dict[str, Any] = {"group": groups, "strides": strides, "dilations": dilations}
    if auto_pad is not None:
        attributes["auto_pad"] = auto_pad
    if padding != "no":
        attributes["pads"] = [*before, *behind]
    for name, plain in (("strides", 1), ("dilations", 1)):
        if set(attributes[name]) == {plain} and draw(st.booleans()):
            del attributes[name]
    if draw(st.booleans()):
        attributes["kernel_shape"] = taps
    return {
        "x": (2, channels * groups, *image),
        "w": (filters, channels, *taps),
        "attributes": attributes,
    }


def onnx_conv(x: Any, w: Any, **attributes: Any) -> Any:
    """Return what ONNX's reference implementation computes."""
    (y,) = ReferenceEvaluator(model([conv(**attributes)], {"x": x.shape}, {"w": w})).run(
        None, {"x": x}
    )
    return y


def test_any_convolution_is_what_onnx_computes():
    """The problem has ONNX's output shape, and its padding ONNX's output; none is skipped.

    Its padding differs at the ends of an axis only where no padding that is the same there does.
    """
    cases: Counter[str] = Counter()

    def check(drawn: dict[str, Any]) -> None:
        attributes, rank = drawn["attributes"], len(drawn["x"]) - 2
        rng = np.random.default_rng(0)
        x, w = (
            rng.integers(-3, 4, drawn[name]).astype(np.float32) for name in "xw"
        )  # small integers: exact
        expected = onnx_conv(x, w, **attributes)
        problems = problems_from_onnx(model([conv(**attributes)], {"x": x.shape}, {"w": w}))
        pads = attributes.get("pads", [0] * 2 * rank)
        problem = only(problems)
        assert (problem.x.shape, problem.w.shape, problem.y.shape) == (
            x.shape,
            w.shape,
            expected.shape,
        )
        before, behind = zip(*problem.conv.pads(rank), strict=True)
        _, stride, dilation = problem.conv.steps(rank)
        same = onnx_conv(
            x,
            w,
            pads=[*before, *behind],
            strides=stride,
            dilations=dilation,
            group=problem.conv.groups,
        )
        np.testing.assert_array_equal(same, expected)
        if problem.conv.is_symmetric:
            cases["asymmetric"] += pads[:rank] != pads[rank:]
            return
        cases["kept"] += 1
        for padding in np.ndindex((4,) * rank if rank < 3 else (0,)):
            other = onnx_conv(
                x, w, **attributes | {"pads": [*padding, *padding], "auto_pad": "NOTSET"}
            )
            assert other.shape != expected.shape or not np.array_equal(other, expected)
            cases["tried"] += 1

    for auto_pad, padding in PADDINGS:
        given_kind = given(convolutions(auto_pad, padding))
        settings(max_examples=25, derandomize=True, database=None)(given_kind(check))()
    assert min(cases["kept"], cases["tried"], cases["asymmetric"]) >= 10, cases


@pytest.mark.parametrize(
    ("attributes", "padding"),
    [
        ({"auto_pad": "SAME_UPPER"}, (1, 1)),
        ({"auto_pad": "SAME_LOWER", "strides": [2, 2]}, (1, 1)),
        ({"auto_pad": "SAME_UPPER", "dilations": [2, 2]}, (2, 2)),
        ({"auto_pad": "VALID", "pads": [9, 9, 9, 9]}, (0, 0)),
        (
            {"pads": [1, 1, 0, 1], "strides": [2, 1]},
            (1, 1),
        ),  # 12 rows in steps of 2: the last is never reached
        ({"pads": [0, 0, 1, 1]}, ((0, 1), (0, 1))),
        ({"pads": [1, 0, 1, 1]}, (1, (0, 1))),
        ({"auto_pad": "SAME_UPPER", "strides": [2, 2]}, ((0, 1), (0, 1))),
        ({"auto_pad": "SAME_UPPER", "strides": [1, 2]}, (1, (0, 1))),
    ],
    ids=str,
)
def test_padding(attributes, padding):
    problem = only(problems_from_onnx(one_conv((2, 6, 12, 12), **attributes)))
    assert problem.conv.pads(2) == dnn.ConvolutionSpec(padding).pads(2)


@pytest.mark.parametrize(
    ("x", "w", "attributes", "reason"),
    [
        (IMAGE, (4, 6, 14, 3), {}, "reaches over 14"),
        (IMAGE, (4, 5, 3, 3), {}, "takes 5 channels"),
        (IMAGE, FILTER, {"group": 4}, "groups=4 does not divide"),
        (IMAGE, FILTER, {"group": 0}, "groups=0"),
        (IMAGE, (4, 6, 3), {}, "cuDNN convolves 1 to 3 spatial axes"),
        ((2, 6, 5, 5, 5, 5), (4, 6, 1, 1, 1, 1), {}, "cuDNN convolves 1 to 3 spatial axes"),
        ((2, 6), (4, 6), {}, "cuDNN convolves 1 to 3 spatial axes"),
        (
            IMAGE,
            FILTER,
            {"kernel_shape": [3, 2]},
            "kernel_shape=(3, 2), but its filter is (4, 6, 3, 3)",
        ),
        (IMAGE, FILTER, {"strides": [1]}, "do not fit 2 spatial axes"),
        (IMAGE, FILTER, {"strides": [1, 0]}, "do not fit 2 spatial axes"),
        (IMAGE, FILTER, {"pads": [1, 1]}, "do not fit 2 spatial axes"),
        (IMAGE, FILTER, {"pads": [-1, 0, -1, 0]}, "padding=-1"),
        (IMAGE, FILTER, {"auto_pad": "SAME"}, "auto_pad='SAME' is not one of"),
        (IMAGE, FILTER, {"strides": 2}, "attribute strides is not of type INTS"),
        (
            (2, 6, "height", None),
            FILTER,
            {},
            "the shape of its input 'x' is not known: (2, 6, height, ?)",
        ),
        (("N", 6, 12, 12), FILTER, {}, "the shape of its input 'x' is not known: (N, 6, 12, 12)"),
        ((0, 6, 12, 12), FILTER, {}, "the shape of its input 'x' is not known: (?, 6, 12, 12)"),
        (None, FILTER, {}, "the shape of its input 'x' is not known: unknown"),
    ],
    ids=str,
)
def test_a_convolution_that_is_no_problem_is_named_with_the_reason(x, w, attributes, reason):
    problems = problems_from_onnx(one_conv(x, w, **attributes))
    assert reason in why(problems)
    assert (problems.skipped[0].name, problems.skipped[0].what) == ("conv", "Conv")


@pytest.mark.parametrize(
    ("shape", "open_axes"),
    [
        ((2, 6, "height", None), ("height", "?")),
        (("N", 6, 12, 12), ("N",)),
        (None, ()),
        ((2, 5, 12, 12), ()),
    ],
    ids=str,
)
def test_the_axes_that_a_model_leaves_open(shape, open_axes):
    (node,) = problems_from_onnx(one_conv(shape, FILTER)).skipped
    assert node.open_axes == open_axes


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (helper.make_node("ConvTranspose", ["x", "w"], ["y"], "up", group=5), "groups=5"),
        (
            helper.make_node("ConvTranspose", ["x", "w"], ["y"], "up", output_padding=[1, 1]),
            "no convolution of such images",
        ),
        (helper.make_node("ConvInteger", ["a", "b"], ["y"], "up"), "quantized"),
        (
            helper.make_node("QLinearConv", ["a", "s", "z", "b", "s", "z", "s", "z"], ["y"], "up"),
            "quantized",
        ),
        (
            helper.make_node("DeformConv", ["x", "w", "offset"], ["y"], "up"),
            "no deformable convolution",
        ),
        (
            helper.make_node("FusedConv", ["x", "w"], ["y"], "up", domain="com.microsoft"),
            "of com.microsoft, which is not",
        ),
    ],
    ids=lambda value: getattr(value, "op_type", None),
)
def test_other_convolutions_are_named_with_the_reason(node, reason):
    inputs = [value("x", IMAGE), value("w", FILTER), value("a", IMAGE, TensorProto.UINT8)]
    inputs += [
        value("b", FILTER, TensorProto.UINT8),
        value("s", []),
        value("z", [], TensorProto.UINT8),
    ]
    inputs += [value("offset", (2, 18, 10, 11))]
    problems = problems_from_onnx(model([node], inputs, domains=["com.microsoft"]))
    assert reason in why(problems)
    assert problems.skipped[0].name == "up"
    assert problems.skipped[0].what.endswith(node.op_type)


def test_an_attribute_that_refers_to_a_function_outside_of_one_is_a_reason():
    given_model = one_conv()
    given_model.graph.node[0].attribute.add(
        name="pads", ref_attr_name="pads", type=AttributeProto.INTS
    )
    assert "attribute pads is not of type INTS" in why(problems_from_onnx(given_model))


def test_a_data_type_that_is_no_float_is_a_reason():
    assert "its input 'x' is int8; cudnnlite convolves float32" in why(
        problems_from_onnx(one_conv(dtype=TensorProto.INT8))
    )


def test_nodes_of_equal_problems_are_counted_together():
    nodes = [
        conv("x", "w", "a", "first", pads=[1] * 4),
        conv("a", "v", "b", "", pads=[1] * 4),
        conv("a", "u", "c", "third"),
    ]
    shapes = {"w": (6, 6, 3, 3), "v": (6, 6, 3, 3), "u": (6, 6, 3, 3)}
    weights = [absent(name, shape) for name, shape in shapes.items()]
    problems = problems_from_onnx(model(nodes, {"x": IMAGE}, weights))
    assert [(entry.count, entry.names) for entry in problems] == [
        (2, ("first", "b")),
        (1, ("third",)),
    ]  # b: what it writes


@pytest.mark.parametrize(
    "nodes", [[], [helper.make_node("Relu", ["x"], ["y"])]], ids=["empty", "relu"]
)
def test_a_model_without_such_nodes_makes_an_empty_list(nodes):
    problems = problems_from_onnx(model(nodes, {"x": IMAGE}))
    assert (len(problems), problems.skipped, problems.notes) == (0, [], [])


# ---------------------------------------------------------------- recurrent networks


@pytest.mark.parametrize(
    ("kind", "options", "cell"),
    [
        ("LSTM", {}, "lstm"),
        ("LSTM", {"activations": ["Sigmoid", "Tanh", "Tanh"], "hidden_size": 0}, "lstm"),
        ("GRU", {}, "gru"),
        ("GRU", {"activations": ["sigmoid", "tanh"]}, "gru"),
        ("RNN", {}, "tanh"),
        ("RNN", {"activations": ["Tanh"]}, "tanh"),
        ("RNN", {"activations": ["Relu"]}, "relu"),
    ],
    ids=str,
)
def test_a_recurrent_layer(kind, options, cell):
    problem = only(problems_from_onnx(one_rnn(kind, **options)))
    assert problem == rnn_forward.problem(
        dnn.RNNSpec(cell, 6, 4), None, dnn.specs.RNNDataSpec((5, 3, 6))
    )
    without = only(problems_from_onnx(one_rnn(kind, bias=False, **options)))
    assert without.spec == dnn.RNNSpec(cell, 6, 4, bias="none")
    activations = options.get("activations", []) * 2
    attributes = {**options, "activations": activations} if activations else options
    problem = only(
        problems_from_onnx(one_rnn(kind, directions=2, direction="bidirectional", **attributes))
    )
    assert problem.spec == dnn.RNNSpec(cell, 6, 4, 1, True)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("layout", [0, 1])
def test_a_recurrent_layer_has_the_shapes_that_onnx_computes(kind, directions, layout):
    """ONNX puts the directions on an axis of their own.

    That is (T, D, N, H), or (N, T, D, H) with layout=1.
    """
    attributes = {
        "direction": "bidirectional" if directions == 2 else "forward",
        "layout": layout,
        "hidden_size": 4,
    }
    rows = GATES[kind] * 4
    arrays = {
        "w": np.zeros((directions, rows, 6), np.float32),
        "r": np.zeros((directions, rows, 4), np.float32),
    }
    if kind == "GRU":
        attributes["linear_before_reset"] = 1
    node = helper.make_node(kind, ["x", "w", "r"], ["y", "hy"], "rnn", **attributes)
    given_model = model([node], {"x": (5, 3, 6)}, arrays)
    y, hy = ReferenceEvaluator(given_model).run(None, {"x": np.zeros((5, 3, 6), np.float32)})
    problem = only(problems_from_onnx(given_model))
    out = problem.data.with_vectors(problem.spec.output_size).shape
    assert out == (y.shape[0], y.shape[1] if layout else y.shape[2], directions * y.shape[3])
    states = problem.spec.hidden_shape(problem.data.batch)
    assert states == ((hy.shape[1], hy.shape[0], hy.shape[2]) if layout else hy.shape)
    assert problem.data.layout.name == ("BATCH_MAJOR_UNPACKED" if layout else "SEQ_MAJOR_UNPACKED")


@pytest.mark.parametrize("name", DTYPES)
def test_data_types_of_recurrent_layers(name):
    problem = only(problems_from_onnx(one_rnn("GRU", dtype=DTYPES[name])))
    assert (problem.spec.dtype, problem.data.dtype) == (dnn.TensorSpec((1,), name).dtype,) * 2
    assert only(problems_from_onnx(one_rnn("GRU"), dtype=name, layout="NHWC")) == problem


def test_lengths_in_the_model_count():
    problems = problems_from_onnx(one_rnn(lengths=[5, 2, 1]))
    assert only(problems).data == dnn.specs.RNNDataSpec((5, 3, 6), (5, 2, 1))
    assert problems.notes == []
    assert only(
        problems_from_onnx(one_rnn(lengths=[2, 5, 5], layout=1, x=(3, 5, 6)))
    ).data.lengths == (2, 5, 5)
    inner = one_rnn(lengths="lengths")
    constant = helper.make_node(
        "Constant", [], ["lengths"], value=numpy_helper.from_array(np.array([4, 5, 1], np.int32))
    )
    inner.graph.node.insert(0, constant)
    del inner.graph.input[1]
    assert only(problems_from_onnx(inner)).data.lengths == (4, 5, 1)


def test_lengths_that_are_computed_are_taken_to_be_full():
    problems = problems_from_onnx(one_rnn(lengths="lengths"))
    assert only(problems).data == dnn.specs.RNNDataSpec((5, 3, 6))
    assert problems.notes == [
        "rnn: the sequences' lengths are not in the model; all are taken to be 5"
    ]
    problems = problems_from_onnx(one_rnn(lengths="lengths", layout=1, x=(3, 7, 6)))
    assert problems.notes == [
        "rnn: the sequences' lengths are not in the model; all are taken to be 7"
    ]


def test_weights_without_axes_are_a_reason():
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], "rnn")
    weights = [absent("w", (1, 16, 6)), absent("r", ())]
    assert "W has shape (1, 16, 6)" in why(
        problems_from_onnx(model([node], {"x": (5, 3, 6)}, weights))
    )


def test_a_reversed_layer_is_a_forward_one_with_a_note():
    problems = problems_from_onnx(one_rnn(direction="reverse"))
    assert only(problems).spec == dnn.RNNSpec("lstm", 6, 4)
    assert problems.notes == [
        "rnn: direction=reverse, which cuDNN does as forward on sequences turned round"
    ]


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("LSTM", {"peepholes": True}, "it has peepholes (input P)"),
        (
            "LSTM",
            {"clip": 3.0},
            "clip=3 bounds what goes into the activations; cuDNN bounds the cell state only",
        ),
        ("LSTM", {"input_forget": 1}, "input_forget=1 couples two gates"),
        (
            "LSTM",
            {"activations": ["HardSigmoid", "Tanh", "Tanh"]},
            "activations=HardSigmoid, Tanh, Tanh; cuDNN has sigmoid, tanh, tanh only",
        ),
        ("LSTM", {"activations": ["Sigmoid"]}, "activations=Sigmoid;"),
        (
            "GRU",
            {"linear_before_reset": 0},
            "linear_before_reset=0; cuDNN's GRU resets after the recurrent product",
        ),
        ("GRU", {"clip": 1.5}, "clip=1.5"),
        ("RNN", {"activations": ["Affine"]}, "activations=Affine; cuDNN has tanh or relu only"),
        (
            "RNN",
            {"activations": ["Relu", "Tanh"], "direction": "bidirectional", "directions": 2},
            "Relu, Tanh;",
        ),
        ("LSTM", {"direction": "backward"}, "direction='backward' is not one of"),
        (
            "LSTM",
            {"direction": "bidirectional"},
            "W has shape (1, 16, 6); hidden_size=4 and its input need (2, 16, 6)",
        ),
        ("LSTM", {"hidden_size": 5}, "W has shape (1, 16, 6)"),
        ("LSTM", {"hidden_size": 4.0}, "attribute hidden_size is not of type INT"),
        (
            "LSTM",
            {"lengths": [5, 0, 1]},
            "lengths=(5, 0, 1); allowed: at least one, each 1 or more",
        ),
        ("LSTM", {"lengths": [5, 6, 1]}, "6 is longer than the data"),
        ("LSTM", {"lengths": [5, 5]}, "lengths has 2 entries for a batch of 3"),
        ("LSTM", {"x": ("steps", 3, 6)}, "the shape of its input 'x' is not known: (steps, 3, 6)"),
        ("LSTM", {"dtype": TensorProto.INT32}, "its input 'x' is int32"),
    ],
    ids=str,
)
def test_a_recurrent_layer_that_is_no_problem_is_named_with_the_reason(kind, options, reason):
    problems = problems_from_onnx(one_rnn(kind, **options))
    assert reason in why(problems)
    assert (problems.skipped[0].name, problems.skipped[0].what) == ("rnn", kind)


def test_stacked_layers_are_problems_of_one_layer_each():
    """PyTorch squeezes, or merges, the axis of the directions between the layers."""
    nodes, weights, x = [], [], "x"
    for layer, columns in enumerate((6, 8, 8)):
        weights += [
            absent(f"w{layer}", (2, 16, columns)),
            absent(f"r{layer}", (2, 16, 4)),
            absent(f"b{layer}", (2, 32)),
        ]
        names = [x, f"w{layer}", f"r{layer}", f"b{layer}"]
        nodes.append(
            helper.make_node("LSTM", names, [f"y{layer}"], hidden_size=4, direction="bidirectional")
        )
        nodes.append(helper.make_node("Transpose", [f"y{layer}"], [f"t{layer}"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"t{layer}", "shape"], [f"x{layer}"]))
        x = f"x{layer}"
    shape = numpy_helper.from_array(np.array([0, 0, -1]), "shape")
    problems = problems_from_onnx(
        model(nodes, {"x": ("T", "N", 6)}, [*weights, shape]), shapes={"x": (5, 3, 6)}
    )
    assert [(entry.problem.spec.input_size, entry.count) for entry in problems] == [(6, 1), (8, 2)]
    assert {entry.problem.spec.num_layers for entry in problems} == {1}
    assert problems[1].names == ("y1", "y2")
