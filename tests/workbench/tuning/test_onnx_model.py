"""Whole ONNX models: symbolic shapes, graphs inside nodes, functions, files; and ResNet-50."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx_models import (
    FILTER,
    IMAGE,
    absent,
    conv,
    model,
    one_conv,
    one_rnn,
    only,
    resnet50,
    value,
    why,
)

import cudnnlite as dnn
from cudnnlite import convolution_forward
from cudnnlite.errors import MissingPackageError
from cudnnlite.workbench.tuning.onnx.model_problems import problems_from_onnx
from cudnnlite.workbench.tuning.problem_list import SkippedNode

DATA = Path(__file__).parents[2] / "data"


# ---------------------------------------------------------------- a whole network


def test_resnet50():
    described = json.loads((DATA / "resnet50_layers.json").read_text())["layers"]
    problems = problems_from_onnx(resnet50(), batch=32)
    assert (len(problems), problems.total) == (23, 53)
    assert (problems.skipped, problems.notes) == ([], [])
    counts = {entry.problem: entry.count for entry in problems}
    assert counts == {
        convolution_forward.problem(
            dnn.TensorSpec((32, layer["c"], layer["h"], layer["w"])),
            dnn.FilterSpec((layer["k"], layer["c"], layer["r"], layer["s"])),
            dnn.ConvolutionSpec(layer["pad"], layer["stride"]),
        ): layer["count"]
        for layer in described
    }
    # As published, an image takes 4.089 billion multiplications, of which the last layer has 2048 *
    # 1000. There are 25 557 032 parameters, of which the last layer has 2049 * 1000 and the
    # normalizations 53 120.
    assert sum(p.flops * count for p, count in counts.items()) == pytest.approx(
        2 * 32 * (4.089e9 - 2.048e6), rel=2e-4
    )
    assert sum(p.w.size * count for p, count in counts.items()) == 25_557_032 - 2_049_000 - 53_120
    assert problems[0].names == ("conv1",)
    assert problems[-1].names == ("layer4.1.conv2", "layer4.2.conv2")
    assert sum(len(entry.names) for entry in problems) == 53


def test_resnet50_as_onnx_ships_it():
    """Read the models that ONNX ships beside its own tests.

    Their weights are computed by ConstantOfShape.
    """
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    theirs, ours = (
        problems_from_onnx(folder / "light_resnet50.onnx"),
        problems_from_onnx(resnet50(), batch=1),
    )
    assert {entry.problem: entry.count for entry in theirs} == {
        entry.problem: entry.count for entry in ours
    }
    totals = {}
    for path in sorted(folder.glob("light_*.onnx")):
        problems = problems_from_onnx(path)
        assert (problems.skipped, problems.notes) == ([], [])
        totals[path.stem.removeprefix("light_")] = problems.total
    # as published: AlexNet's 5, VGG-19's 16, GoogLeNet's 57, SqueezeNet's 26 layers
    assert (
        totals.items()
        >= {"bvlc_alexnet": 5, "vgg19": 16, "inception_v1": 57, "squeezenet": 26}.items()
    )


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
        problems = problems_from_onnx(model(nodes, inputs, weights), **options)
        assert len(problems) + len(problems.skipped) == 2
        return [entry.problem.x.shape for entry in problems]

    assert shapes() == []
    assert shapes(batch=8) == []
    assert shapes(shapes={"x": (3, 6, 9, 9)}) == [
        (3, 6, 9, 9),
        (3, 4, 7, 7),
    ]  # the sum is as wide as its wider term
    assert shapes(shapes={"x": (3, 6, 9, 9), "other": (3, 4, 1, 1)}) == [(3, 6, 9, 9), (3, 4, 7, 7)]
    assert shapes(batch=5, shapes={"x": (5, 6, 9, 9)}) == [(5, 6, 9, 9), (5, 4, 7, 7)]


def test_what_is_symbolic_is_replaced_in_inputs_of_other_kinds_too():
    images = helper.make_sequence_type_proto(
        helper.make_tensor_type_proto(TensorProto.FLOAT, ("n", 6, 9, 9))
    )
    inputs = [
        value("x", ("n", 6)),
        helper.make_value_info("images", images),
        value("place", [], TensorProto.INT64),
    ]
    nodes = [helper.make_node("SequenceAt", ["images", "place"], ["image"]), conv("image")]
    for model_inputs in (inputs, inputs[1:]):
        assert only(
            problems_from_onnx(model(nodes, model_inputs, [absent("w", FILTER)]), batch=5)
        ).x.shape == (5, 6, 9, 9)


def test_tuning_a_model_of_open_sizes_says_what_gives_them(tmp_path):
    path = tmp_path / "open.onnx"
    path.write_bytes(
        model([conv()], {"x": ("batch", 6, 9, 9)}, [absent("w", FILTER)]).SerializeToString()
    )
    with pytest.warns(
        dnn.errors.TuningWarning,
        match=r"give the sizes: batch= for an open batch, or problems_from_onnx\(\.\.\., shapes=\)$",
    ):
        tuning = dnn.tune_model(path, device="emulated", cache=":memory:")
    assert [node.name for node in tuning.skipped] == ["conv"]


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
    problem = only(
        problems_from_onnx(model(nodes, inputs, [absent("w", FILTER)]), batch=np.int64(7))
    )
    assert problem.x.shape == (7, 6, 9, 9), batch_of


def test_axes_without_names_are_shown_without():
    nodes = [conv(y="a"), conv("a", "v", "b", "two")]
    problems = problems_from_onnx(
        model(nodes, {"x": (-1, 6, None, 9)}, [absent("w", FILTER), absent("v", (1, 4, 3, 3))])
    )
    assert [node.why.partition(": ")[2] for node in problems.skipped] == [
        "(?, 6, ?, 9)",
        "(?, 4, ?, 7)",
    ]


def test_axes_named_by_a_question_mark_are_several_sizes():
    onnx_model = model([conv()], {"x": ("?", 6, "?", "?")}, [absent("w", FILTER)])
    assert "is not known: (7, 6, ?, ?)" in why(problems_from_onnx(onnx_model, batch=7))
    problems = problems_from_onnx(onnx_model, batch=7, shapes={"x": (7, 6, 12, 9)})
    assert only(problems).x.shape == (7, 6, 12, 9)


def test_weights_that_are_inputs_too_are_no_inputs():
    """As up to version 3 of the format, where every initializer was listed among the inputs."""
    given_model = model([conv()], {"x": (6, 6, "N", "N"), "w": FILTER}, [absent("w", FILTER)])
    given_model.ir_version = 3
    assert only(problems_from_onnx(given_model, batch=9)).x.shape == (6, 6, 9, 9)
    with pytest.raises(
        dnn.ArgumentError, match=r"has no such input; its inputs: x \(6, 6, N, N\)$"
    ):
        problems_from_onnx(given_model, shapes={"w": FILTER})


def test_sparse_weights():
    values, places = (
        numpy_helper.from_array(np.ones(2, np.float32), "w"),
        numpy_helper.from_array(np.array([0, 5])),
    )
    given_model = model([conv()], {"x": IMAGE})
    given_model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, FILTER))
    assert only(problems_from_onnx(given_model)).w.shape == FILTER


def test_the_domain_of_onnx_has_two_names():
    given_model = one_conv()
    given_model.graph.node[0].domain = given_model.opset_import[0].domain = "ai.onnx"
    assert only(problems_from_onnx(given_model)) == only(problems_from_onnx(one_conv()))


def test_the_batch_is_found_behind_the_steps_of_a_sequence():
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], "lstm", hidden_size=4)
    weights = [absent("w", (1, 16, 3)), absent("r", (1, 16, 4))]
    problems = problems_from_onnx(model([node], {"x": ("time", "batch_size", 3)}, weights), batch=7)
    assert "(time, 7, 3)" in why(problems)
    problems = problems_from_onnx(
        model([node], {"x": ("time", "batch_size", 3)}, weights), batch=7, shapes={"x": (5, 7, 3)}
    )
    assert only(problems).data.shape == (5, 7, 3)


def test_the_batch_of_a_model_that_fixes_it_may_be_given_as_it_is():
    assert only(problems_from_onnx(one_conv(), batch=2)).x.shape == IMAGE
    with pytest.raises(dnn.ArgumentError) as caught:
        problems_from_onnx(one_conv(), batch=3)
    assert "batch=3" in str(caught.value)
    assert "has a symbolic batch; its inputs: x (2, 6, 12, 13)" in str(caught.value)


@pytest.mark.parametrize("place", ["value_info", "output"])
def test_old_types_inside_a_model_do_not_count(place):
    """As scripts leave them that make the batch of a finished model symbolic."""
    nodes, weights = (
        [conv(y="a"), conv("a", "v", "b", "two")],
        [absent("w", FILTER), absent("v", (1, 4, 3, 3))],
    )
    given_model = model(nodes, {"x": ("n", 6, 9, 9)}, weights)
    getattr(given_model.graph, place).append(value("a", (1, 4, 7, 7)))
    problems = problems_from_onnx(given_model, batch=5)
    assert [entry.problem.x.shape for entry in problems] == [(5, 6, 9, 9), (5, 4, 7, 7)]
    reasons = [node.why.partition(": ")[2] for node in problems_from_onnx(given_model).skipped]
    assert reasons == ["(n, 6, 9, 9)", "(n, 4, 7, 7)"]


def test_types_inside_a_model_count_where_inference_ends():
    nodes = [
        helper.make_node("Custom", ["x"], ["a"], domain="my.own"),
        conv("a"),
        conv("y", "v", "z", "two"),
    ]
    given_model = model(
        nodes,
        {"x": ("n", 6, 9, 9)},
        [absent("w", FILTER), absent("v", (1, 4, 3, 3))],
        domains=["my.own"],
    )
    assert [node.why for node in problems_from_onnx(given_model, batch=5).skipped] == [
        "the shape of its input 'a' is not known: unknown",
        "the shape of its input 'y' is not known: unknown",
    ]
    given_model.graph.value_info.append(value("a", ("n", 6, 20, 20)))
    problems = problems_from_onnx(given_model, batch=5)
    assert [entry.problem.x.shape for entry in problems] == [(5, 6, 20, 20), (5, 4, 18, 18)]


def test_shapes_that_are_computed():
    """Reshape to the shape of another tensor: what data propagation is for."""
    nodes = [
        helper.make_node("Shape", ["x"], ["whole"]),
        helper.make_node("Gather", ["whole", "zero"], ["n"], axis=0),
        helper.make_node("Concat", ["n", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["image"]),
        conv("image"),
    ]
    constants = {
        "zero": np.array([0]),
        "rest": np.array([6, 4, 8]),
        "w": np.zeros(FILTER, np.float32),
    }
    problems = problems_from_onnx(model(nodes, {"x": ("batch", 192)}, constants), batch=3)
    assert only(problems).x.shape == (3, 6, 4, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch=0"),
        ({"batch": -1}, "batch=-1"),
        ({"batch": 1.0}, "batch=1.0"),
        ({"batch": "4"}, "batch='4'"),
        ({"batch": True}, "batch=True"),
        ({"shapes": (1, 3, 9, 9)}, "shapes=(1, 3, 9, 9)"),
        (
            {"shapes": {"y": (1,)}},
            "shapes['y']: model 'a graph' has no such input; its inputs: x (n, 6, size, size)",
        ),
        ({"shapes": {"w": FILTER}}, "shapes['w']: "),
        (
            {"shapes": {"x": (1, 6, 9)}},
            "shapes['x']=(1, 6, 9): the model's input is (n, 6, size, size)",
        ),
        ({"shapes": {"x": (1, 3, 9, 9)}}, "of fixed size on axis 1"),
        ({"shapes": {"x": (1, 6, 9, 8)}}, "the axis 'size' would be of size 9 too"),
        ({"shapes": {"x": (1, 6, 0, 9)}}, "shapes['x']=0"),
        ({"shapes": {"x": (1, 6, "9", 9)}}, "shapes['x']='9'"),
        ({"shapes": {"x": "1699"}}, "shapes['x']='1699'"),
        ({"shapes": {"x": 5}}, "shapes['x']=5"),
        (
            {"batch": 2, "shapes": {"x": (1, 6, 9, 9)}},
            "batch=2: the axis 'n' would be of size 1 too",
        ),
        ({"dtype": "int8"}, "dtype='int8'; allowed: float32, float16, float64, bfloat16"),
        ({"dtype": "float"}, "dtype='float'"),
        ({"layout": "CHWN"}, "layout='CHWN'"),
        ({"layout": 4}, "layout=4"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(dnn.ArgumentError) as caught:
        problems_from_onnx(one_conv(("n", 6, "size", "size")), **options)
    assert message in str(caught.value)


def test_a_model_is_left_as_it_is():
    given_model = resnet50()
    before = given_model.SerializeToString(deterministic=True)
    problems_from_onnx(given_model, batch=3)
    assert given_model.SerializeToString(deterministic=True) == before


# --------------------------------------------------------------- graphs inside nodes, and functions


def branch(name: str, *nodes: onnx.NodeProto, constants: Any = ()) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, [], [value(nodes[-1].output[0])], constants)


def test_branches_are_walked():
    same = [conv("x", "w", "a", "one", pads=[1] * 4), conv("a", "v", "b", "two")]
    inner = branch("inner", conv("x", "w", "c", "deep", pads=[1] * 4))
    nested = helper.make_node("If", ["flag"], ["d"], "nested", then_branch=inner, else_branch=inner)
    one = branch("then", *same, constants=[absent("v", (4, 4, 3, 3))])
    other = branch("else", nested, helper.make_node("Relu", ["d"], ["e"]))
    nodes = [
        helper.make_node("If", ["flag"], ["y"], "choice", then_branch=one, else_branch=other),
        conv("y", "v", "z", "after"),
    ]
    inputs = [value("x", ("batch", 6, 9, 9)), value("flag", [], TensorProto.BOOL)]
    problems = problems_from_onnx(model(nodes, inputs, [absent("w", FILTER)]), batch=2)
    assert [(entry.problem.x.shape[1:], entry.count, entry.names) for entry in problems] == [
        (
            (6, 9, 9),
            3,
            (
                "choice/else_branch/nested/else_branch/deep",
                "choice/else_branch/nested/then_branch/deep",
                "choice/then_branch/one",
            ),
        ),
        ((4, 9, 9), 1, ("choice/then_branch/two",)),
    ]
    # the branches have different shapes; and v is known in one of them only
    assert [node.name for node in problems.skipped] == ["after"]
    assert problems.notes == [
        "choice/else_branch/nested (If): the problems of both branches are counted once",
        "choice (If): the problems of both branches are counted once",
    ]


def test_graphs_that_lie_too_deep_in_each_other_are_refused():
    given_model = one_conv()
    graph = given_model.graph
    for _ in range(500):
        graph = (
            graph.node.add(op_type="If")
            .attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH)
            .g
        )
    with pytest.raises(dnn.ArgumentError, match="is not a valid ONNX model"):
        problems_from_onnx(given_model)


def test_bodies_of_loops_are_walked():
    flag, number = TensorProto.BOOL, TensorProto.INT64
    nodes = [
        conv("x", "w", "a", "inside"),
        conv("state", "w", "next", "changing"),
        helper.make_node("Identity", ["go"], ["on"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [value("i", [], number), value("go", [], flag), value("state")],
        [value("on", [], flag), value("next")],
    )
    loop = helper.make_node("Loop", ["times", "", "x"], ["y"], "loop", body=body)
    problems = problems_from_onnx(
        model([loop], [value("x", IMAGE), value("times", [], number)], [absent("w", FILTER)])
    )
    assert [(entry.count, entry.names) for entry in problems] == [(1, ("loop/body/inside",))]
    assert problems.notes == ["loop (Loop): each problem of its body is counted once"]
    assert [node.name for node in problems.skipped] == [
        "loop/body/changing"
    ]  # its state may have another shape each time


def test_bodies_of_scans_are_walked():
    body = helper.make_graph(
        [conv("part", "w", "y", "inside")], "body", [value("part", None)], [value("y")]
    )
    scan = helper.make_node("Scan", ["x"], ["ys"], "scan", body=body, num_scan_inputs=1)
    problems = problems_from_onnx(model([scan], {"x": (10, *IMAGE)}, [absent("w", FILTER)]))
    assert only(problems).x.shape == IMAGE
    assert problems.notes == ["scan (Scan): each problem of its body is counted once"]


def functions() -> list[onnx.FunctionProto]:
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("own", 1)]
    block = helper.make_function(
        "own", "Block", ["a", "b"], ["c"], [conv("a", "b", "c", "inside")], opsets, ["pads"]
    )
    attribute = block.node[0].attribute.add(
        name="pads", ref_attr_name="pads", type=onnx.AttributeProto.INTS
    )
    assert attribute.ref_attr_name
    outer = helper.make_node("Block", ["a", "b"], ["c"], domain="own", pads=[1, 1, 1, 1])
    twice = helper.make_function(
        "own", "Twice", ["a", "b"], ["d"], [outer, helper.make_node("Relu", ["c"], ["d"])], opsets
    )
    return [block, twice]


def calls() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Block", ["x", "w"], ["a"], "first", domain="own", pads=[1, 1, 1, 1]),
        helper.make_node("Twice", ["x", "w"], ["y"], "second", domain="own"),
    ]
    return model(
        nodes,
        {"x": ("n", *IMAGE[1:])},
        [absent("w", FILTER)],
        functions=functions(),
        domains=["own"],
    )


def test_functions_of_the_model_are_inlined():
    problems = problems_from_onnx(calls(), batch=2)
    (entry,) = problems
    assert entry.problem == convolution_forward.problem(
        dnn.TensorSpec(IMAGE), dnn.FilterSpec(FILTER), dnn.ConvolutionSpec(1)
    )
    assert entry.count == 2
    assert problems.skipped == []


def test_functions_that_cannot_be_inlined_are_named(monkeypatch):
    def refuse(_):
        raise RuntimeError("for a reason")

    monkeypatch.setattr("onnx.inliner.inline_local_functions", refuse)
    problems = problems_from_onnx(calls(), batch=2)
    reason = "a function of the model that cannot be inlined: for a reason"
    assert problems.skipped == [
        SkippedNode("first", "own.Block", reason),
        SkippedNode("second", "own.Twice", reason),
    ]
    assert len(problems) == 0


def test_a_function_of_another_operator_set_is_named():
    """ONNX leaves it where it is, and says nothing."""
    older = helper.make_function(
        "own", "Old", ["a", "b"], ["c"], [conv("a", "b", "c")], [helper.make_opsetid("", 18)]
    )
    node = helper.make_node("Old", ["x", "w"], ["y"], "old", domain="own")
    given_model = model(
        [node], {"x": IMAGE}, [absent("w", FILTER)], functions=[older], domains=["own"]
    )
    assert why(problems_from_onnx(given_model)).endswith(
        "inlined: it uses other operator sets than the model"
    )


def test_functions_that_lie_too_deep_in_each_other_are_refused():
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("own", 1)]
    nodes = [helper.make_node("Relu", ["a"], ["b"])]
    nodes += [helper.make_node(f"f{level}", ["a"], ["b"], domain="own") for level in range(1500)]
    chain = [
        helper.make_function("own", f"f{level}", ["a"], ["b"], [node], opsets)
        for level, node in enumerate(nodes)
    ]
    last = helper.make_node("f1500", ["x"], ["y"], domain="own")
    with pytest.raises(dnn.ArgumentError, match="depth"):
        problems_from_onnx(model([last], {"x": IMAGE}, functions=chain, domains=["own"]))


# ---------------------------------------------------------------- files


def test_paths_bytes_and_protos(tmp_path):
    given_model, path = one_conv(), tmp_path / "conv.onnx"
    onnx.save(given_model, path)
    expected = list(problems_from_onnx(given_model))
    assert len(expected) == 1
    for form in (
        path,
        str(path),
        path.read_bytes(),
        bytearray(path.read_bytes()),
        memoryview(path.read_bytes()),
    ):
        assert list(problems_from_onnx(form)) == expected
    text = tmp_path / "conv.textproto"
    onnx.save(given_model, text)
    assert list(problems_from_onnx(text)) == expected


def test_external_data_is_not_needed(tmp_path):
    weights = {
        "w": np.ones(FILTER, np.float32),
        "shape": np.array([2, 6, 12, 13]),
        "bias": np.ones(4, np.float32),
    }
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["image"]),
        helper.make_node("Conv", ["image", "w", "bias"], ["y"]),
    ]
    given_model = model(nodes, {"x": (2 * 6 * 12 * 13,)}, weights)
    path, beside = tmp_path / "model.onnx", tmp_path / "weights.bin"
    onnx.save(given_model, path, save_as_external_data=True, location=beside.name, size_threshold=0)
    assert len(path.read_bytes()) < 1000
    assert (
        only(problems_from_onnx(path)).x.shape == IMAGE
    )  # the new shape is read from the file beside it
    with pytest.raises(dnn.ArgumentError) as caught:  # whose folder is not known here
        problems_from_onnx(path.read_bytes())
    assert "the shapes of y may depend on external data that cannot be read: " in str(caught.value)
    assert "'shape': only the path of a model says where its external data is" in str(caught.value)
    for content in (b"short", None):
        beside.unlink()
        if content is not None:
            beside.write_bytes(content)
        with pytest.raises(dnn.ArgumentError) as caught:
            problems_from_onnx(path)
        assert f"model={str(path)!r}: the shapes of y may depend on external data" in str(
            caught.value
        )
        assert "'shape': " in str(caught.value)


def test_scales_in_external_data(tmp_path):
    nodes = [
        helper.make_node("Resize", ["x", "", "scales"], ["image"], mode="nearest"),
        conv("image"),
    ]
    constants = {"scales": np.array([1, 1, 2, 3], np.float32), "w": np.zeros(FILTER, np.float32)}
    path = tmp_path / "model.onnx"
    onnx.save(
        model(nodes, {"x": IMAGE}, constants),
        path,
        save_as_external_data=True,
        location="data.bin",
        size_threshold=0,
    )
    assert only(problems_from_onnx(path)).x.shape == (2, 6, 24, 39)
    (tmp_path / "data.bin").unlink()
    with pytest.raises(
        dnn.ArgumentError, match=r"the shapes of conv may depend on external data .*'scales': "
    ):
        problems_from_onnx(path)


@pytest.mark.parametrize("length", [None, 1 << 34])
def test_of_external_data_no_more_is_read_than_the_tensor_holds(tmp_path, length):
    """Whatever the model says; a file may hold the weights too."""
    rest, path = absent("rest", (4,), TensorProto.INT64), tmp_path / "model.onnx"
    if length is not None:
        rest.external_data.add(key="length", value=str(length))
    with open(tmp_path / "absent.bin", "wb") as file:
        file.write(np.array(IMAGE).tobytes())
        file.truncate(1 << 34)
    reshape = helper.make_node("Reshape", ["x", "rest"], ["image"])
    onnx.save(
        model([reshape, conv("image")], {"x": (2 * 6 * 12 * 13,)}, [absent("w", FILTER), rest]),
        path,
    )
    assert only(problems_from_onnx(path)).x.shape == IMAGE


def test_external_data_counts_where_a_shape_is_missing():
    """ "rest" is a shape here; a node with symbolic axes is skipped only where data is unread."""
    reshape = helper.make_node("Reshape", ["x", "rest"], ["image"])
    weights = [absent("w", FILTER), absent("rest", (4,), TensorProto.INT64)]
    with pytest.raises(
        dnn.ArgumentError, match=r"the shapes of conv may depend on external data .*: 'rest': "
    ):
        problems_from_onnx(model([reshape, conv("image")], {"x": ("n", 6, 9, 9)}, weights))
    assert "(n, 6, 9, 9)" in why(
        problems_from_onnx(model([conv()], {"x": ("n", 6, 9, 9)}, weights[:1]))
    )


def test_external_data_does_not_count_for_a_cell_that_cudnn_has_not():
    nodes = [
        helper.make_node("Reshape", ["s", "rest"], ["steps"]),
        helper.make_node(
            "GRU", ["steps", "v", "r"], ["h"], "gru", hidden_size=4, linear_before_reset=0
        ),
        conv(),
    ]
    weights = [
        absent("w", FILTER),
        absent("rest", (3,), TensorProto.INT64),
        absent("v", (1, 12, 6)),
    ]
    problems = problems_from_onnx(
        model(nodes, {"x": IMAGE, "s": (90,)}, [*weights, absent("r", (1, 12, 4))])
    )
    assert [one.name for one in problems.skipped] == ["gru"]
    assert "linear_before_reset=0" in problems.skipped[0].why
    assert problems[0].names == ("conv",)


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
    problems = problems_from_onnx(path)
    assert only(problems).data.is_full
    assert len(problems.notes) == 1


def test_files_that_cannot_be_opened_are_named(tmp_path):
    for path in (tmp_path / "absent.onnx", tmp_path, tmp_path / "no" / "folder.onnx"):
        with pytest.raises(dnn.ArgumentError) as caught:
            problems_from_onnx(path)
        assert f"model={str(path)!r} cannot be read: " in str(caught.value)


def test_what_is_no_model_is_named(tmp_path):
    whole = one_conv().SerializeToString()
    contents = [
        b"",
        bytes(1),
        b"hello, this is no model",
        b"PNG" + bytes(64),
        np.arange(1000).tobytes(),
        bytes([8, 7]),
    ]
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


@pytest.mark.parametrize(
    "given_model", [None, 7, ["model.onnx"], one_conv().graph, str.encode], ids=repr
)
def test_what_is_neither_path_nor_model_is_named(given_model):
    with pytest.raises(
        dnn.ArgumentError,
        match=f"model of type {type(given_model).__name__}; allowed: a path, bytes",
    ):
        problems_from_onnx(given_model)


def test_a_model_that_ends_behind_its_graph_is_named():
    given_model = one_conv()
    del given_model.opset_import[:]
    with pytest.raises(
        dnn.ArgumentError, match="is not a whole ONNX model: it does not say which operator set"
    ):
        problems_from_onnx(given_model)


def test_a_model_that_is_not_valid_is_named():
    given_model = model([helper.make_node("Custom", ["x"], ["y"], domain="unknown")], {"x": IMAGE})
    with pytest.raises(
        dnn.ArgumentError, match=r"model 'a graph' is not a valid ONNX model: .*unknown"
    ):
        problems_from_onnx(given_model)
    given_model = model([helper.make_node("Reshape", ["x"], ["y"])], {"x": IMAGE})
    with pytest.raises(dnn.ArgumentError, match=r"is not a valid ONNX model: .*Reshape"):
        problems_from_onnx(given_model)


WHOLE = [
    given_model.SerializeToString()
    for given_model in (one_conv(), one_rnn(lengths=[5, 2, 1]), calls())
]


@settings(max_examples=400, derandomize=True, database=None)
@given(
    st.sampled_from(WHOLE),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 255),
    st.sampled_from((None, 2)),
)
def test_a_broken_byte_is_an_error_a_reason_or_another_model(whole, place, byte, batch):
    content = bytearray(whole)
    content[int(place * len(content))] = byte
    try:
        problems = problems_from_onnx(bytes(content), batch=batch)
    except dnn.ArgumentError:
        return
    assert str(problems)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "onnx.external_data_helper")
    with pytest.raises(MissingPackageError, match=r"pip install 'cudnnlite\[onnx\]'") as caught:
        problems_from_onnx("model.onnx")
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, dnn.CudnnliteError)
