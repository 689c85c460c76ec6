"""Problems from ONNX models: shapes as ONNX's reference implementation computes them, and a reason for all that is skipped."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_models import DTYPES, absent, model, resnet50, value

import cudnnlite as dnn
from cudnnlite.autotune.onnx_file import MissingPackageError
from cudnnlite.autotune.onnx_model import problems_from_onnx
from cudnnlite.problem_list import ProblemList, SkippedNode
from cudnnlite.problems import ConvolutionForwardProblem, RNNForwardProblem

DATA = Path(__file__).parent.parent / "data"
IMAGE, FILTER = (2, 6, 12, 13), (4, 6, 3, 3)


def conv(x: str = "x", w: str = "w", y: str = "y", name: str = "conv", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, w], [y], name, **attributes)


def one_conv(x: Any = IMAGE, w: Any = FILTER, dtype: int = TensorProto.FLOAT, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one convolution."""
    return model([conv(**attributes)], {"x": x}, [absent("w", w, dtype)], dtype=dtype)


def only(found: ProblemList) -> Any:
    """Return the one problem of a model without anything skipped."""
    assert found.skipped == []
    ((listed),) = found
    assert listed.count == 1
    return listed.problem


def why(found: ProblemList) -> str:
    """Return the reason of a model of which the one node was skipped."""
    assert len(found) == 0
    (node,) = found.skipped
    return node.why


# ---------------------------------------------------------------- convolutions


def test_a_convolution():
    given_model = one_conv(strides=[2, 1], pads=[1, 0, 1, 0], dilations=[1, 2], kernel_shape=[3, 3])
    found = problems_from_onnx(given_model)
    assert only(found) == ConvolutionForwardProblem(
        dnn.TensorSpec(IMAGE), dnn.FilterSpec(FILTER), dnn.ConvolutionSpec((1, 0), (2, 1), (1, 2))
    )
    assert found[0].names == ("conv",)
    assert found.notes == []


def test_groups_and_ranks():
    for rank in (1, 2, 3):
        x, w = (2, 6, *(7, 8, 9)[:rank]), (4, 3, *(3, 2, 1)[:rank])
        problem = only(problems_from_onnx(one_conv(x, w, group=2)))
        spec = dnn.ConvolutionSpec(0, 1, 1, 2)
        assert problem == ConvolutionForwardProblem(dnn.TensorSpec(x), dnn.FilterSpec(w), spec)
        last = only(problems_from_onnx(one_conv(x, w, group=2), layout="nhwc"))
        name = ("NWC", "NHWC", "NDHWC")[rank - 1]
        assert last == ConvolutionForwardProblem(dnn.TensorSpec(x, layout=name), dnn.FilterSpec(w, layout=name), spec)
        assert (last.x.layout, last.w.layout, last.y.layout) == (name, name, name)
        assert last.y.shape == problem.y.shape


@pytest.mark.parametrize("name", DTYPES)
def test_data_types(name):
    found = problems_from_onnx(one_conv(dtype=DTYPES[name]))
    problem = only(found)
    assert (problem.x.dtype, problem.w.dtype, problem.y.dtype) == (dnn.TensorSpec((1,), name).dtype,) * 3
    other = only(problems_from_onnx(one_conv(), dtype=name))
    assert other == problem


@st.composite
def convolutions(draw: Any) -> dict[str, Any]:
    """Draw a Conv node's attributes, and the shapes of its inputs."""
    rank = draw(st.integers(1, 3))

    def steps(low: int, high: int, number: int = rank) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=number, max_size=number))

    groups = draw(st.sampled_from((1, 1, 2, 3)))
    channels, filters = draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    taps, strides, dilations = steps(1, 4), steps(1, 3), steps(1, 2)
    reach = [d * (t - 1) + 1 for d, t in zip(dilations, taps, strict=True)]
    image = [r + extra for r, extra in zip(reach, steps(0, 7), strict=True)]
    attributes: dict[str, Any] = {"group": groups, "strides": strides, "dilations": dilations}
    auto_pad = draw(st.sampled_from((None, "NOTSET", None, "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")))
    if auto_pad is not None:
        attributes["auto_pad"] = auto_pad
    padded = draw(st.sampled_from(("no", "alike", "less behind", "in any way")))
    if auto_pad in (None, "NOTSET") and padded != "no":
        before = steps(1, 2)
        behind = {"alike": before, "less behind": [size - 1 for size in before]}
        attributes["pads"] = [*before, *behind.get(padded, steps(0, 2))]
    for name, plain in (("strides", 1), ("dilations", 1)):
        if set(attributes[name]) == {plain} and draw(st.booleans()):
            del attributes[name]
    if draw(st.booleans()):
        attributes["kernel_shape"] = taps
    return {"x": (2, channels * groups, *image), "w": (filters, channels, *taps), "attributes": attributes}


def onnx_conv(x: Any, w: Any, **attributes: Any) -> Any:
    """Return what ONNX's reference implementation computes."""
    (y,) = ReferenceEvaluator(model([conv(**attributes)], {"x": x.shape}, {"w": w})).run(None, {"x": x})
    return y


def test_any_convolution_is_what_onnx_computes():
    """The problem has ONNX's output shape, and its padding ONNX's output; no such padding is there for what is skipped."""
    seen: Counter[str] = Counter()

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(convolutions())
    def check(drawn: dict[str, Any]) -> None:
        attributes, rank = drawn["attributes"], len(drawn["x"]) - 2
        rng = np.random.default_rng(0)
        x, w = (rng.integers(-3, 4, drawn[name]).astype(np.float32) for name in "xw")  # small integers: exact
        expected = onnx_conv(x, w, **attributes)
        found = problems_from_onnx(model([conv(**attributes)], {"x": x.shape}, {"w": w}))
        pads = attributes.get("pads", [0] * 2 * rank)
        if not found.skipped:
            problem = only(found)
            assert (problem.x.shape, problem.w.shape, problem.y.shape) == (x.shape, w.shape, expected.shape)
            padding, stride, dilation = problem.conv.steps(rank)
            same = onnx_conv(
                x, w, pads=[*padding, *padding], strides=stride, dilations=dilation, group=problem.conv.groups
            )
            np.testing.assert_array_equal(same, expected)
            seen[attributes.get("auto_pad", "absent")] += 1
            seen["asymmetric"] += pads[:rank] != pads[rank:]
            return
        assert why(found).startswith("asymmetric padding (")
        seen["skipped"] += 1
        for padding in np.ndindex((4,) * rank if rank < 3 else (0,)):
            other = onnx_conv(x, w, **attributes | {"pads": [*padding, *padding], "auto_pad": "NOTSET"})
            assert other.shape != expected.shape or not np.array_equal(other, expected)
            seen["tried"] += 1

    check()
    assert min(seen[name] for name in ("absent", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")) >= 10, seen
    assert min(seen["skipped"], seen["tried"], seen["asymmetric"]) >= 10, seen


@pytest.mark.parametrize(
    ("attributes", "padding"),
    [
        ({"auto_pad": "SAME_UPPER"}, (1, 1)),
        ({"auto_pad": "SAME_LOWER", "strides": [2, 2]}, (1, 1)),
        ({"auto_pad": "SAME_UPPER", "dilations": [2, 2]}, (2, 2)),
        ({"auto_pad": "VALID", "pads": [9, 9, 9, 9]}, (0, 0)),
        ({"pads": [1, 1, 0, 1], "strides": [2, 1]}, (1, 1)),  # 12 rows in steps of 2: the last is never reached
    ],
    ids=str,
)
def test_padding(attributes, padding):
    problem = only(problems_from_onnx(one_conv((2, 6, 12, 12), **attributes)))
    assert problem.conv.steps(2)[0] == padding


@pytest.mark.parametrize(
    ("x", "w", "attributes", "reason"),
    [
        (IMAGE, FILTER, {"pads": [0, 0, 1, 1]}, "asymmetric padding (0, 1), (0, 1); cuDNN pads both sides of an axis alike"),
        (IMAGE, FILTER, {"pads": [1, 0, 1, 1]}, "asymmetric padding (1, 1), (0, 1)"),
        ((2, 6, 12), (4, 6, 2), {"auto_pad": "SAME_UPPER"}, "asymmetric padding (0, 1) of auto_pad=SAME_UPPER"),
        (IMAGE, (4, 6, 14, 3), {}, "the filter reaches over 14"),
        (IMAGE, (4, 5, 3, 3), {}, "takes 5 channels"),
        (IMAGE, FILTER, {"group": 4}, "groups=4 does not divide"),
        (IMAGE, FILTER, {"group": 0}, "groups=0"),
        (IMAGE, (4, 6, 3), {}, "cuDNN convolves 1 to 3 spatial axes"),
        ((2, 6, 5, 5, 5, 5), (4, 6, 1, 1, 1, 1), {}, "cuDNN convolves 1 to 3 spatial axes"),
        ((2, 6), (4, 6), {}, "cuDNN convolves 1 to 3 spatial axes"),
        (IMAGE, FILTER, {"kernel_shape": [3, 2]}, "kernel_shape=(3, 2), but its filter is (4, 6, 3, 3)"),
        (IMAGE, FILTER, {"strides": [1]}, "do not fit 2 spatial axes"),
        (IMAGE, FILTER, {"strides": [1, 0]}, "do not fit 2 spatial axes"),
        (IMAGE, FILTER, {"pads": [1, 1]}, "do not fit 2 spatial axes"),
        (IMAGE, FILTER, {"pads": [-1, 0, -1, 0]}, "padding=-1"),
        (IMAGE, FILTER, {"auto_pad": "SAME"}, "auto_pad='SAME' is not one of"),
        (IMAGE, FILTER, {"strides": 2}, "attribute strides is not of type INTS"),
        ((2, 6, "height", None), FILTER, {}, "the shape of its input 'x' is not known: (2, 6, height, ?)"),
        (("N", 6, 12, 12), FILTER, {}, "the shape of its input 'x' is not known: (N, 6, 12, 12)"),
        ((0, 6, 12, 12), FILTER, {}, "the shape of its input 'x' is not known: (?, 6, 12, 12)"),
        (None, FILTER, {}, "the shape of its input 'x' is not known: unknown"),
    ],
    ids=str,
)
def test_a_convolution_that_is_no_problem_is_named_with_the_reason(x, w, attributes, reason):
    found = problems_from_onnx(one_conv(x, w, **attributes))
    assert reason in why(found)
    assert (found.skipped[0].name, found.skipped[0].what) == ("conv", "Conv")


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (helper.make_node("ConvTranspose", ["x", "w"], ["y"], "up"), "cuDNN's backward convolution by the data"),
        (helper.make_node("ConvInteger", ["a", "b"], ["y"], "up"), "quantized"),
        (helper.make_node("QLinearConv", ["a", "s", "z", "b", "s", "z", "s", "z"], ["y"], "up"), "quantized"),
        (helper.make_node("DeformConv", ["x", "w", "offset"], ["y"], "up"), "no deformable convolution"),
        (helper.make_node("FusedConv", ["x", "w"], ["y"], "up", domain="com.microsoft"), "of com.microsoft, which is not"),
    ],
    ids=lambda value: getattr(value, "op_type", None),
)
def test_other_convolutions_are_named_with_the_reason(node, reason):
    inputs = [value("x", IMAGE), value("w", FILTER), value("a", IMAGE, TensorProto.UINT8)]
    inputs += [value("b", FILTER, TensorProto.UINT8), value("s", []), value("z", [], TensorProto.UINT8)]
    inputs += [value("offset", (2, 18, 10, 11))]
    found = problems_from_onnx(model([node], inputs, domains=["com.microsoft"]))
    assert reason in why(found)
    assert found.skipped[0].name == "up"
    assert found.skipped[0].what.endswith(node.op_type)


def test_a_data_type_that_is_no_float_is_a_reason():
    assert "its input 'x' is int8; cudnnlite convolves float32" in why(problems_from_onnx(one_conv(dtype=TensorProto.INT8)))


def test_nodes_of_equal_problems_are_counted_together():
    nodes = [conv("x", "w", "a", "first", pads=[1] * 4), conv("a", "v", "b", "", pads=[1] * 4), conv("a", "u", "c", "third")]
    shapes = {"w": (6, 6, 3, 3), "v": (6, 6, 3, 3), "u": (6, 6, 3, 3)}
    weights = [absent(name, shape) for name, shape in shapes.items()]
    found = problems_from_onnx(model(nodes, {"x": IMAGE}, weights))
    assert [(listed.count, listed.names) for listed in found] == [(2, ("first", "b")), (1, ("third",))]  # b: what it writes


@pytest.mark.parametrize("nodes", [[], [helper.make_node("Relu", ["x"], ["y"])]], ids=["empty", "relu"])
def test_a_model_without_such_nodes_makes_an_empty_list(nodes):
    found = problems_from_onnx(model(nodes, {"x": IMAGE}))
    assert (len(found), found.skipped, found.notes) == (0, [], [])


# ---------------------------------------------------------------- a whole network


def test_resnet50():
    described = json.loads((DATA / "resnet50_layers.json").read_text())["layers"]
    found = problems_from_onnx(resnet50(), batch=32)
    assert (len(found), found.total) == (23, 53)
    assert (found.skipped, found.notes) == ([], [])
    counts = {listed.problem: listed.count for listed in found}
    assert counts == {
        ConvolutionForwardProblem(
            dnn.TensorSpec((32, layer["c"], layer["h"], layer["w"])),
            dnn.FilterSpec((layer["k"], layer["c"], layer["r"], layer["s"])),
            dnn.ConvolutionSpec(layer["pad"], layer["stride"]),
        ): layer["count"]
        for layer in described
    }
    # As published: 4.089 billion multiplications for an image, of which the last layer has 2048 * 1000; and 25 557 032
    # parameters, of which it has 2049 * 1000 and the normalizations 53 120.
    assert sum(p.flops * count for p, count in counts.items()) == pytest.approx(2 * 32 * (4.089e9 - 2.048e6), rel=2e-4)
    assert sum(p.w.size * count for p, count in counts.items()) == 25_557_032 - 2_049_000 - 53_120
    assert found[0].names == ("conv1",)
    assert found[-1].names == ("layer4.1.conv2", "layer4.2.conv2")
    assert sum(len(listed.names) for listed in found) == 53


# ---------------------------------------------------------------- symbolic shapes


def test_what_is_symbolic_is_replaced_wherever_it_occurs():
    nodes = [
        conv("x", "w", "a", "one"),
        helper.make_node("Add", ["a", "other"], ["sum"]),
        conv("sum", "v", "b", "two"),
    ]
    weights = [absent("w", FILTER), absent("v", (4, 4, 3, 3))]
    inputs = {"x": ("batch", 6, "size", "size"), "other": ("batch", 4, 1, "width")}

    def shapes(**options: Any) -> list[tuple[int, ...]]:
        found = problems_from_onnx(model(nodes, inputs, weights), **options)
        assert len(found) + len(found.skipped) == 2
        return [listed.problem.x.shape for listed in found]

    assert shapes() == []
    assert shapes(batch=8) == []
    assert shapes(shapes={"x": (3, 6, 9, 9)}) == [(3, 6, 9, 9), (3, 4, 7, 7)]  # the sum is as wide as its wider term
    assert shapes(shapes={"x": (3, 6, 9, 9), "other": (3, 4, 1, 1)}) == [(3, 6, 9, 9), (3, 4, 7, 7)]
    assert shapes(batch=5, shapes={"x": (5, 6, 9, 9)}) == [(5, 6, 9, 9), (5, 4, 7, 7)]


@pytest.mark.parametrize(
    ("inputs", "batch_of"),
    [
        ({"x": ("batch", 6, 9, 9)}, "batch"),
        ({"x": ("N", 6, 9, 9)}, "n"),
        ({"x": ("s77", 6, 9, 9)}, "first"),
        ({"x": (None, 6, 9, 9)}, "unnamed"),
        ({"x": (-1, 6, 9, 9)}, "minus one"),
    ],
    ids=str,
)
def test_the_batch_is_found(inputs, batch_of):
    nodes = [conv(), helper.make_node("Relu", ["y"], ["z"])]
    problem = only(problems_from_onnx(model(nodes, inputs, [absent("w", FILTER)]), batch=np.int64(7)))
    assert problem.x.shape == (7, 6, 9, 9), batch_of


def test_the_batch_is_found_behind_the_steps_of_a_sequence():
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], "lstm", hidden_size=4)
    weights = [absent("w", (1, 16, 3)), absent("r", (1, 16, 4))]
    found = problems_from_onnx(model([node], {"x": ("time", "batch_size", 3)}, weights), batch=7)
    assert "(time, 7, 3)" in why(found)
    found = problems_from_onnx(model([node], {"x": ("time", "batch_size", 3)}, weights), batch=7, shapes={"x": (5, 7, 3)})
    assert only(found).data.shape == (5, 7, 3)


def test_the_batch_of_a_model_that_fixes_it_may_be_given_as_it_is():
    assert only(problems_from_onnx(one_conv(), batch=2)).x.shape == IMAGE
    with pytest.raises(dnn.ArgumentError) as caught:
        problems_from_onnx(one_conv(), batch=3)
    assert "batch=3" in str(caught.value)
    assert "has a symbolic batch; its inputs: x (2, 6, 12, 13)" in str(caught.value)


def test_old_types_inside_a_model_do_not_count():
    """As scripts leave them that make the batch of a finished model symbolic."""
    given_model = model([conv(y="a"), conv("a", "v", "b", "two")], {"x": ("n", 6, 9, 9)}, [absent("w", FILTER), absent("v", (1, 4, 3, 3))])  # fmt: skip
    given_model.graph.value_info.append(value("a", (1, 4, 7, 7)))
    given_model.graph.output.append(value("a", (1, 4, 7, 7)))
    found = problems_from_onnx(given_model, batch=5)
    assert [listed.problem.x.shape for listed in found] == [(5, 6, 9, 9), (5, 4, 7, 7)]
    assert len(problems_from_onnx(given_model).skipped) == 2


def test_types_inside_a_model_count_where_inference_ends():
    nodes = [helper.make_node("Custom", ["x"], ["a"], domain="my.own"), conv("a"), conv("y", "v", "z", "two")]
    given_model = model(nodes, {"x": ("n", 6, 9, 9)}, [absent("w", FILTER), absent("v", (1, 4, 3, 3))], domains=["my.own"])
    assert [node.why for node in problems_from_onnx(given_model, batch=5).skipped] == [
        "the shape of its input 'a' is not known: unknown",
        "the shape of its input 'y' is not known: unknown",
    ]
    given_model.graph.value_info.append(value("a", ("n", 6, 20, 20)))
    found = problems_from_onnx(given_model, batch=5)
    assert [listed.problem.x.shape for listed in found] == [(5, 6, 20, 20), (5, 4, 18, 18)]


def test_shapes_that_are_computed():
    """Reshape to the shape of another tensor: what data propagation is for."""
    nodes = [
        helper.make_node("Shape", ["x"], ["whole"]),
        helper.make_node("Gather", ["whole", "zero"], ["n"], axis=0),
        helper.make_node("Concat", ["n", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["image"]),
        conv("image"),
    ]
    constants = {"zero": np.array([0]), "rest": np.array([6, 4, 8]), "w": np.zeros(FILTER, np.float32)}
    found = problems_from_onnx(model(nodes, {"x": ("batch", 192)}, constants), batch=3)
    assert only(found).x.shape == (3, 6, 4, 8)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch": 0}, "batch=0"),
        ({"batch": -1}, "batch=-1"),
        ({"batch": 1.0}, "batch=1.0"),
        ({"batch": "4"}, "batch='4'"),
        ({"batch": True}, "batch=True"),
        ({"shapes": (1, 3, 9, 9)}, "shapes=(1, 3, 9, 9)"),
        ({"shapes": {"y": (1,)}}, "shapes['y']: model 'a graph' has no such input; its inputs: x (n, 6, size, size)"),
        ({"shapes": {"w": FILTER}}, "shapes['w']: "),
        ({"shapes": {"x": (1, 6, 9)}}, "shapes['x']=(1, 6, 9): the model's input is (n, 6, size, size)"),
        ({"shapes": {"x": (1, 3, 9, 9)}}, "of fixed size on axis 1"),
        ({"shapes": {"x": (1, 6, 9, 8)}}, "the axis 'size' would be of size 9 too"),
        ({"shapes": {"x": (1, 6, 0, 9)}}, "shapes['x']=0"),
        ({"shapes": {"x": (1, 6, "9", 9)}}, "shapes['x']='9'"),
        ({"shapes": {"x": "1699"}}, "shapes['x']='1699'"),
        ({"shapes": {"x": 5}}, "shapes['x']=5"),
        ({"batch": 2, "shapes": {"x": (1, 6, 9, 9)}}, "batch=2: the axis 'n' would be of size 1 too"),
        ({"dtype": "int8"}, "dtype='int8'; allowed: float32, float16, float64, bfloat16"),
        ({"dtype": "float"}, "dtype='float'"),
        ({"layout": "CHWN"}, "layout='CHWN'"),
        ({"layout": 4}, "layout=4"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(options, named):
    with pytest.raises(dnn.ArgumentError) as caught:
        problems_from_onnx(one_conv(("n", 6, "size", "size")), **options)
    assert named in str(caught.value)


def test_a_model_is_left_as_it_is():
    given_model = resnet50()
    before = given_model.SerializeToString(deterministic=True)
    problems_from_onnx(given_model, batch=3)
    assert given_model.SerializeToString(deterministic=True) == before


# ---------------------------------------------------------------- recurrent networks

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def one_rnn(
    kind: str = "LSTM",
    x: Any = (5, 3, 6),
    hidden: int = 4,
    directions: int = 1,
    *,
    bias: bool = True,
    lengths: Any = None,
    peepholes: bool = False,
    dtype: int = TensorProto.FLOAT,
    **attributes: Any,
) -> onnx.ModelProto:
    """Return a model of one recurrent layer; `lengths` may be an array or the name of an input."""
    rows = GATES[kind] * hidden
    weights = [
        absent("w", (directions, rows, x[2]), dtype),
        absent("r", (directions, rows, hidden), dtype),
        absent("b", (directions, 2 * rows), dtype),
        absent("p", (directions, 3 * hidden), dtype),
    ]
    inputs = [value("x", x, dtype)]
    if isinstance(lengths, str):
        inputs.append(value(lengths, (3,), TensorProto.INT32))
    elif lengths is not None:
        weights.append(numpy_helper.from_array(np.array(lengths, np.int32), "lengths"))
    names = ["x", "w", "r", "b" if bias else "", "" if lengths is None else "lengths", "", ""]
    names = names[:-1] if kind != "LSTM" else [*names, "p" if peepholes else ""]
    if kind == "GRU":
        attributes.setdefault("linear_before_reset", 1)
    attributes.setdefault("hidden_size", hidden)
    node = helper.make_node(kind, names, ["y", "hy"], "rnn", **attributes)
    return model([node], inputs, weights, dtype=dtype)


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
    assert problem == RNNForwardProblem(dnn.RNNSpec(cell, 6, 4), dnn.RNNDataSpec((5, 3, 6)))
    without = only(problems_from_onnx(one_rnn(kind, bias=False, **options)))
    assert without.spec == dnn.RNNSpec(cell, 6, 4, bias="none")
    given = options.get("activations", []) * 2
    both = {**options, "activations": given} if given else options
    problem = only(problems_from_onnx(one_rnn(kind, directions=2, direction="bidirectional", **both)))
    assert problem.spec == dnn.RNNSpec(cell, 6, 4, 1, True)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("layout", [0, 1])
def test_a_recurrent_layer_has_the_shapes_that_onnx_computes(kind, directions, layout):
    """ONNX puts the directions on an axis of their own: (T, D, N, H), or (N, T, D, H) with layout=1."""
    attributes = {"direction": "bidirectional" if directions == 2 else "forward", "layout": layout, "hidden_size": 4}
    rows = GATES[kind] * 4
    arrays = {"w": np.zeros((directions, rows, 6), np.float32), "r": np.zeros((directions, rows, 4), np.float32)}
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
    found = problems_from_onnx(one_rnn(lengths=[5, 2, 1]))
    assert only(found).data == dnn.RNNDataSpec((5, 3, 6), (5, 2, 1))
    assert found.notes == []
    assert only(problems_from_onnx(one_rnn(lengths=[2, 5, 5], layout=1, x=(3, 5, 6)))).data.lengths == (2, 5, 5)
    inner = one_rnn(lengths="lengths")
    constant = helper.make_node("Constant", [], ["lengths"], value=numpy_helper.from_array(np.array([4, 5, 1], np.int32)))
    inner.graph.node.insert(0, constant)
    del inner.graph.input[1]
    assert only(problems_from_onnx(inner)).data.lengths == (4, 5, 1)


def test_lengths_that_are_computed_are_taken_to_be_full():
    found = problems_from_onnx(one_rnn(lengths="lengths"))
    assert only(found).data == dnn.RNNDataSpec((5, 3, 6))
    assert found.notes == ["rnn: the sequences' lengths are not in the model; all are taken to be 5"]
    found = problems_from_onnx(one_rnn(lengths="lengths", layout=1, x=(3, 7, 6)))
    assert found.notes == ["rnn: the sequences' lengths are not in the model; all are taken to be 7"]


def test_a_reversed_layer_is_a_forward_one_with_a_note():
    found = problems_from_onnx(one_rnn(direction="reverse"))
    assert only(found).spec == dnn.RNNSpec("lstm", 6, 4)
    assert found.notes == ["rnn: direction=reverse, which cuDNN does as forward on sequences turned round"]


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("LSTM", {"peepholes": True}, "it has peepholes (input P)"),
        ("LSTM", {"clip": 3.0}, "clip=3 bounds what goes into the activations; cuDNN bounds the cell state only"),
        ("LSTM", {"input_forget": 1}, "input_forget=1 couples two gates"),
        ("LSTM", {"activations": ["HardSigmoid", "Tanh", "Tanh"]}, "activations=HardSigmoid, Tanh, Tanh; cuDNN has sigmoid, tanh, tanh only"),
        ("LSTM", {"activations": ["Sigmoid"]}, "activations=Sigmoid;"),
        ("GRU", {"linear_before_reset": 0}, "linear_before_reset=0; cuDNN's GRU resets after the recurrent product"),
        ("GRU", {"clip": 1.5}, "clip=1.5"),
        ("RNN", {"activations": ["Affine"]}, "activations=Affine; cuDNN has tanh or relu only"),
        ("RNN", {"activations": ["Relu", "Tanh"], "direction": "bidirectional", "directions": 2}, "Relu, Tanh;"),
        ("LSTM", {"direction": "backward"}, "direction='backward' is not one of"),
        ("LSTM", {"direction": "bidirectional"}, "W has shape (1, 16, 6); hidden_size=4 and its input ask for (2, 16, 6)"),
        ("LSTM", {"hidden_size": 5}, "W has shape (1, 16, 6)"),
        ("LSTM", {"hidden_size": 4.0}, "attribute hidden_size is not of type INT"),
        ("LSTM", {"lengths": [5, 0, 1]}, "lengths=(5, 0, 1); allowed: at least one, each 1 or more"),
        ("LSTM", {"lengths": [5, 6, 1]}, "6 is longer than the data"),
        ("LSTM", {"lengths": [5, 5]}, "lengths has 2 entries for a batch of 3"),
        ("LSTM", {"x": ("steps", 3, 6)}, "the shape of its input 'x' is not known: (steps, 3, 6)"),
        ("LSTM", {"dtype": TensorProto.INT32}, "its input 'x' is int32"),
    ],
    ids=str,
)
def test_a_recurrent_layer_that_is_no_problem_is_named_with_the_reason(kind, options, reason):
    found = problems_from_onnx(one_rnn(kind, **options))
    assert reason in why(found)
    assert (found.skipped[0].name, found.skipped[0].what) == ("rnn", kind)


def test_stacked_layers_are_problems_of_one_layer_each():
    """As PyTorch writes them: the axis of the directions is squeezed, or merged, between the layers."""
    nodes, weights, x = [], [], "x"
    for layer, columns in enumerate((6, 8, 8)):
        weights += [absent(f"w{layer}", (2, 16, columns)), absent(f"r{layer}", (2, 16, 4)), absent(f"b{layer}", (2, 32))]
        names = [x, f"w{layer}", f"r{layer}", f"b{layer}"]
        nodes.append(helper.make_node("LSTM", names, [f"y{layer}"], hidden_size=4, direction="bidirectional"))
        nodes.append(helper.make_node("Transpose", [f"y{layer}"], [f"t{layer}"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"t{layer}", "shape"], [f"x{layer}"]))
        x = f"x{layer}"
    shape = numpy_helper.from_array(np.array([0, 0, -1]), "shape")
    found = problems_from_onnx(model(nodes, {"x": ("T", "N", 6)}, [*weights, shape]), shapes={"x": (5, 3, 6)})
    assert [(listed.problem.spec.input_size, listed.count) for listed in found] == [(6, 1), (8, 2)]
    assert {listed.problem.spec.num_layers for listed in found} == {1}
    assert found[1].names == ("y1", "y2")


# ---------------------------------------------------------------- graphs inside nodes, and functions


def branch(name: str, *nodes: onnx.NodeProto, constants: Any = ()) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, [], [value(nodes[-1].output[0])], constants)


def test_branches_are_walked():
    same = [conv("x", "w", "a", "one", pads=[1] * 4), conv("a", "v", "b", "two")]
    inner = branch("inner", conv("x", "w", "c", "deep", pads=[1] * 4))
    nested = helper.make_node("If", ["flag"], ["d"], "nested", then_branch=inner, else_branch=inner)
    nodes = [
        helper.make_node("If", ["flag"], ["y"], "choice", then_branch=branch("then", *same, constants=[absent("v", (4, 4, 3, 3))]),
                         else_branch=branch("else", nested, helper.make_node("Relu", ["d"], ["e"]))),
        conv("y", "v", "z", "after"),
    ]  # fmt: skip
    inputs = [value("x", ("batch", 6, 9, 9)), value("flag", [], TensorProto.BOOL)]
    found = problems_from_onnx(model(nodes, inputs, [absent("w", FILTER)]), batch=2)
    assert [(listed.problem.x.shape[1:], listed.count, listed.names) for listed in found] == [
        ((6, 9, 9), 3, ("choice/else_branch/nested/else_branch/deep", "choice/else_branch/nested/then_branch/deep",
                        "choice/then_branch/one")),
        ((4, 9, 9), 1, ("choice/then_branch/two",)),
    ]  # fmt: skip
    # the branches have different shapes; and v is known in one of them only
    assert [node.name for node in found.skipped] == ["after"]
    assert found.notes == [
        "choice/else_branch/nested (If): the problems of both branches are counted once",
        "choice (If): the problems of both branches are counted once",
    ]


def test_bodies_of_loops_are_walked():
    flag, number = TensorProto.BOOL, TensorProto.INT64
    nodes = [conv("x", "w", "a", "inside"), conv("state", "w", "next", "changing"), helper.make_node("Identity", ["go"], ["on"])]
    body = helper.make_graph(
        nodes, "body", [value("i", [], number), value("go", [], flag), value("state")], [value("on", [], flag), value("next")]
    )
    loop = helper.make_node("Loop", ["times", "", "x"], ["y"], "loop", body=body)
    found = problems_from_onnx(model([loop], [value("x", IMAGE), value("times", [], number)], [absent("w", FILTER)]))
    assert [(listed.count, listed.names) for listed in found] == [(1, ("loop/body/inside",))]
    assert found.notes == ["loop (Loop): each problem of its body is counted once"]
    assert [node.name for node in found.skipped] == ["loop/body/changing"]  # its state may have another shape each time


def test_bodies_of_scans_are_walked():
    body = helper.make_graph([conv("part", "w", "y", "inside")], "body", [value("part", None)], [value("y")])
    scan = helper.make_node("Scan", ["x"], ["ys"], "scan", body=body, num_scan_inputs=1)
    found = problems_from_onnx(model([scan], {"x": (10, *IMAGE)}, [absent("w", FILTER)]))
    assert only(found).x.shape == IMAGE
    assert found.notes == ["scan (Scan): each problem of its body is counted once"]


def functions() -> list[onnx.FunctionProto]:
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("own", 1)]
    block = helper.make_function("own", "Block", ["a", "b"], ["c"], [conv("a", "b", "c", "inside")], opsets, ["pads"])
    attribute = block.node[0].attribute.add(name="pads", ref_attr_name="pads", type=onnx.AttributeProto.INTS)
    assert attribute.ref_attr_name
    outer = helper.make_node("Block", ["a", "b"], ["c"], domain="own", pads=[1, 1, 1, 1])
    twice = helper.make_function("own", "Twice", ["a", "b"], ["d"], [outer, helper.make_node("Relu", ["c"], ["d"])], opsets)
    return [block, twice]


def calls() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Block", ["x", "w"], ["a"], "first", domain="own", pads=[1, 1, 1, 1]),
        helper.make_node("Twice", ["x", "w"], ["y"], "second", domain="own"),
    ]
    return model(nodes, {"x": ("n", *IMAGE[1:])}, [absent("w", FILTER)], functions=functions(), domains=["own"])


def test_functions_of_the_model_are_inlined():
    found = problems_from_onnx(calls(), batch=2)
    (listed,) = found
    assert listed.problem == ConvolutionForwardProblem(
        dnn.TensorSpec(IMAGE), dnn.FilterSpec(FILTER), dnn.ConvolutionSpec(1)
    )
    assert listed.count == 2
    assert found.skipped == []


def test_functions_that_cannot_be_inlined_are_named(monkeypatch):
    def refuse(_):
        raise RuntimeError("for a reason")

    monkeypatch.setattr("onnx.inliner.inline_local_functions", refuse)
    found = problems_from_onnx(calls(), batch=2)
    reason = "a function of the model that cannot be inlined: for a reason"
    assert found.skipped == [SkippedNode("first", "own.Block", reason), SkippedNode("second", "own.Twice", reason)]
    assert len(found) == 0


# ---------------------------------------------------------------- files


def test_paths_bytes_and_protos(tmp_path):
    given_model, path = one_conv(), tmp_path / "conv.onnx"
    onnx.save(given_model, path)
    expected = list(problems_from_onnx(given_model))
    assert len(expected) == 1
    for form in (path, str(path), path.read_bytes(), bytearray(path.read_bytes()), memoryview(path.read_bytes())):
        assert list(problems_from_onnx(form)) == expected
    text = tmp_path / "conv.textproto"
    onnx.save(given_model, text)
    assert list(problems_from_onnx(text)) == expected


def test_external_data_is_not_needed(tmp_path):
    weights = {"w": np.ones(FILTER, np.float32), "shape": np.array([2, 6, 12, 13]), "bias": np.ones(4, np.float32)}
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["image"]), helper.make_node("Conv", ["image", "w", "bias"], ["y"])]
    given_model = model(nodes, {"x": (2 * 6 * 12 * 13,)}, weights)
    path, beside = tmp_path / "model.onnx", tmp_path / "weights.bin"
    onnx.save(given_model, path, save_as_external_data=True, location=beside.name, size_threshold=0)
    assert len(path.read_bytes()) < 1000
    assert only(problems_from_onnx(path)).x.shape == IMAGE  # the new shape is read from the file beside it
    with pytest.raises(dnn.ArgumentError) as caught:  # whose folder is not known here
        problems_from_onnx(path.read_bytes())
    assert "the shapes of y depend on external data that cannot be read: " in str(caught.value)
    assert "'shape': only the path of a model says where its external data is" in str(caught.value)
    for content in (b"short", None):
        beside.unlink()
        if content is not None:
            beside.write_bytes(content)
        with pytest.raises(dnn.ArgumentError) as caught:
            problems_from_onnx(path)
        assert f"model={str(path)!r}: the shapes of y depend on external data" in str(caught.value)
        assert "'shape': " in str(caught.value)


def test_lengths_in_external_data(tmp_path):
    path = tmp_path / "model.onnx"
    given_model = one_rnn(lengths=[5, 2, 1])
    onnx.external_data_helper.set_external_data(given_model.graph.initializer[-1], "lengths.bin")
    tensor = given_model.graph.initializer[-1]
    (tmp_path / "lengths.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    path.write_bytes(given_model.SerializeToString())
    assert only(problems_from_onnx(path)).data.lengths == (5, 2, 1)
    (tmp_path / "lengths.bin").unlink()
    found = problems_from_onnx(path)
    assert only(found).data.is_full
    assert len(found.notes) == 1


def test_files_that_cannot_be_opened_are_named(tmp_path):
    for path in (tmp_path / "absent.onnx", tmp_path, tmp_path / "no" / "folder.onnx"):
        with pytest.raises(dnn.ArgumentError) as caught:
            problems_from_onnx(path)
        assert f"model={str(path)!r} cannot be read: " in str(caught.value)


def test_what_is_no_model_is_named(tmp_path):
    whole = one_conv().SerializeToString()
    contents = [b"", bytes(1), b"hello, this is no model", b"PNG" + bytes(64), np.arange(1000).tobytes(), bytes([8, 7])]
    contents += [whole[:length] for length in range(0, len(whole), 7)]
    path = tmp_path / "model.onnx"
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(dnn.ArgumentError) as caught:
            problems_from_onnx(path)
        assert str(caught.value).startswith(f"model={str(path)!r} is not ")
        with pytest.raises(dnn.ArgumentError, match=f"model of {len(content)} bytes is not "):
            problems_from_onnx(content)
    (tmp_path / "model.json").write_text("{")
    with pytest.raises(dnn.ArgumentError, match="is not an ONNX model"):
        problems_from_onnx(tmp_path / "model.json")


@pytest.mark.parametrize("given_model", [None, 7, ["model.onnx"], one_conv().graph, b"a.onnx".decode], ids=repr)
def test_what_is_neither_path_nor_model_is_named(given_model):
    with pytest.raises(dnn.ArgumentError, match=f"model of type {type(given_model).__name__}; allowed: a path, bytes"):
        problems_from_onnx(given_model)


def test_a_model_that_is_not_valid_is_named():
    given_model = model([helper.make_node("Custom", ["x"], ["y"], domain="unknown")], {"x": IMAGE})
    with pytest.raises(dnn.ArgumentError, match=r"model 'a graph' is not a valid ONNX model: .*unknown"):
        problems_from_onnx(given_model)
    given_model = model([helper.make_node("Reshape", ["x"], ["y"])], {"x": IMAGE})
    with pytest.raises(dnn.ArgumentError, match="is not a valid ONNX model: .*Reshape"):
        problems_from_onnx(given_model)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "onnx.external_data_helper")
    with pytest.raises(MissingPackageError, match=r"pip install 'cudnnlite\[onnx\]'") as caught:
        problems_from_onnx("model.onnx")
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, dnn.CudnnliteError)
