"""`examples/onnx_network.py`, of every operation that it has, against `onnx.reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.examples import example_module
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import conv, model, value

import cudnnlite as dnn

Array = np.ndarray[Any, Any]
R = np.random.default_rng(16)


@pytest.fixture(scope="module")
def examples() -> Iterator[Any]:
    """The module of examples/, found as a script there finds it."""
    with example_module("onnx_network") as module:
        yield module


@pytest.fixture
def network_of(handle: dnn.Handle, examples: Any) -> Iterator[Any]:
    """Makes networks, which are closed behind the test."""
    with ExitStack() as stack:
        yield lambda proto, **options: stack.enter_context(
            examples.Network(handle, proto, **options)
        )


def node(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    names = [name if name != "_" else "" for name in inputs.split()]
    outputs = [name if name != "_" else "" for name in output.split()]
    return helper.make_node(kind, names, outputs, f"the {kind} of {outputs[-1]}", **attributes)


def normal(*shape: int, scale: float = 1.0) -> Array:
    return (scale * R.standard_normal(shape)).astype(np.float32)


def moments(channels: int, prefix: str = "") -> dict[str, Array]:
    return {
        f"{prefix}scale": normal(channels),
        f"{prefix}shift": normal(channels),
        f"{prefix}mean": normal(channels),
        f"{prefix}variance": R.uniform(0.5, 2, channels).astype(np.float32),
    }


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


IMAGE = (2, 6, 11, 9)
BN = "scale shift mean variance"
# name: nodes, inputs, constants
MODELS: dict[str, tuple[list[onnx.NodeProto], dict[str, Any], dict[str, Array]]] = {
    "conv-plain": (
        [node("Conv", "x w", "y", pads=[1, 2, 1, 2], strides=[2, 1])],
        {"x": IMAGE},
        {"w": normal(8, 6, 3, 5)},
    ),
    "conv-folded": (
        [
            node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
            node("BatchNormalization", f"a {BN}", "b", epsilon=1e-3),
            node("Relu", "b", "y"),
        ],
        {"x": IMAGE},
        {"w": normal(8, 6, 3, 3), **moments(8)},
    ),
    "conv-residual": (
        [
            node("Conv", "x w b", "a", pads=[1, 1, 1, 1]),
            node("BatchNormalization", f"a {BN}", "c"),
            node("Conv", "x v", "d"),
            node("Add", "c d", "e"),
            node("Relu", "e", "f"),
            node("Conv", "f u", "g", group=2),
            node("Add", "f g", "h"),
            node("Relu", "h", "y"),
        ],
        {"x": IMAGE},
        {
            "w": normal(8, 6, 3, 3),
            "b": normal(8),
            "v": normal(8, 6, 1, 1),
            "u": normal(8, 4, 1, 1),
            **moments(8),
        },
    ),
    "conv-groups-dilated-same": (
        [
            node("Conv", "x w b", "a", group=3, dilations=[2, 1], auto_pad="SAME_UPPER"),
            node("Sigmoid", "a", "y"),
        ],
        {"x": IMAGE},
        {"w": normal(9, 2, 3, 3), "b": normal(9)},
    ),
    "conv-bias-added": (
        [node("Conv", "x w", "a"), node("Add", "a b", "c"), node("Tanh", "c", "y")],
        {"x": IMAGE},
        {"w": normal(4, 6, 2, 3), "b": normal(4, 1, 1)},
    ),
    "conv-1d": (
        [
            node("Conv", "x w b", "a", pads=[1, 1]),
            node("Relu", "a", "r"),
            node("MaxPool", "r", "y", kernel_shape=[2], strides=[2]),
        ],
        {"x": (3, 4, 13)},
        {"w": normal(5, 4, 3), "b": normal(5)},
    ),
    "conv-transposed": (
        [
            node(
                "ConvTranspose",
                "x w b",
                "a",
                strides=[2, 3],
                pads=[1, 0, 1, 0],
                output_padding=[1, 2],
            ),
            node("Elu", "a", "y", alpha=0.7),
        ],
        {"x": (2, 4, 5, 3)},
        {"w": normal(4, 3, 3, 4), "b": normal(3)},
    ),
    "conv-transposed-dilated": (
        [node("ConvTranspose", "x w", "y", dilations=[1, 2])],
        {"x": (2, 4, 5, 3)},
        {"w": normal(4, 3, 3, 2)},
    ),
    "names-alike": (
        [
            conv("x", "w", "a", pads=[1] * 4),
            conv("a", "v", "b", pads=[2] * 4, dilations=[2, 2]),
            conv("b", "u", "conv", name=""),
            node("Relu", "conv", "y"),
        ],
        {"x": IMAGE},
        {"w": normal(6, 6, 3, 3), "v": normal(6, 6, 3, 3), "u": normal(4, 6, 3, 3)},
    ),
    "lenet": (
        [
            node("Conv", "x w1 b1", "c1"),
            node("Relu", "c1", "r1"),
            node("MaxPool", "r1", "p1", kernel_shape=[2, 2], strides=[2, 2]),
            node("Flatten", "p1", "f"),
            node("Gemm", "f w2 b2", "g", transB=1, alpha=0.5, beta=2.0),
            node("Relu", "g", "h"),
            node("MatMul", "h w3", "m"),
            node("Add", "m b3", "s"),
            node("Softmax", "s", "y"),
        ],
        {"x": (3, 1, 8, 10)},
        {
            "w1": normal(4, 1, 3, 3, scale=0.3),
            "b1": normal(4),
            "w2": normal(7, 48, scale=0.15),
            "b2": normal(7),
            "w3": normal(7, 5, scale=0.4),
            "b3": normal(5),
        },  # as trained ones are: a softmax of large numbers multiplies float16's errors
    ),
    "pools": (
        [
            node("MaxPool", "x", "a", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 0]),
            node("AveragePool", "a", "b", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            node(
                "AveragePool",
                "b",
                "y",
                kernel_shape=[2, 3],
                pads=[0, 1, 0, 1],
                count_include_pad=1,
                strides=[1, 2],
            ),
        ],
        {"x": IMAGE},
        {},
    ),
    "pools-same": (
        [
            node("MaxPool", "x", "a", kernel_shape=[3, 3], strides=[2, 1], auto_pad="SAME_UPPER"),
            node(
                "AveragePool", "a", "b", kernel_shape=[2, 3], strides=[2, 2], auto_pad="SAME_UPPER"
            ),
            node(
                "AveragePool", "b", "y", kernel_shape=[3, 4], strides=[1, 2], auto_pad="SAME_LOWER"
            ),
        ],
        {"x": (2, 6, 15, 13)},
        {},
    ),
    "pools-uneven": (
        [
            node("MaxPool", "x", "a", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 2, 1]),
            node("AveragePool", "a", "y", kernel_shape=[2, 3], strides=[2, 2], pads=[0, 1, 1, 2]),
        ],
        {"x": (2, 6, 10, 9)},
        {},
    ),
    "pools-ceil": (
        [
            node("MaxPool", "x", "a", kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1),
            node("AveragePool", "a", "b", kernel_shape=[2, 3], strides=[2, 3], ceil_mode=1),
            node("Conv", "x w", "c", strides=[4, 6], pads=[0, 0, 1, 0]),
            node("Concat", "b c", "y", axis=1),
        ],
        {"x": (2, 6, 10, 9)},
        {"w": normal(4, 6, 2, 2)},
    ),
    "pools-whole": (
        [
            node("GlobalAveragePool", "x", "a"),
            node("GlobalMaxPool", "x", "b"),
            node("Concat", "a b", "c", axis=1),
            node("Flatten", "c", "y"),
        ],
        {"x": IMAGE},
        {},
    ),
    "normalised": (
        [
            node("LRN", "x", "a", size=3, alpha=0.3, beta=0.6, bias=1.5),
            node("BatchNormalization", f"a {BN}", "y"),
        ],
        {"x": (6, 6, 11, 9)},
        moments(6),  # onnx.reference takes the batch for the number of channels in its LRN
    ),
    "normalised-matrix": ([node("BatchNormalization", f"x {BN}", "y")], {"x": (5, 6)}, moments(6)),
    "gemm-normalised": (
        [
            node("Gemm", "x w", "a"),
            node("BatchNormalization", f"a {BN}", "b"),
            node("Clip", "b low high", "y"),
        ],
        {"x": (5, 6)},
        {
            "w": normal(6, 4),
            **moments(4),
            "low": np.array(0, np.float32),
            "high": np.array(0.8, np.float32),
        },
    ),
    "inception": (
        [
            node("Conv", "x w1 b1", "a"),
            node("Relu", "a", "p"),
            node("Conv", "x w2", "b", pads=[1, 1, 1, 1]),
            node("BatchNormalization", f"b {BN}", "c"),
            node("Relu", "c", "q"),
            node("MaxPool", "x", "r", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            node("Concat", "p q r x", "d", axis=1),
            node("Conv", "d w3", "y"),
        ],
        {"x": IMAGE},
        {
            "w1": normal(4, 6, 1, 1),
            "b1": normal(4),
            "w2": normal(3, 6, 3, 3),
            **moments(3),
            "w3": normal(2, 19, 1, 1),
        },
    ),
    "dense": (
        [
            node("Conv", "x w1 b1", "a"),
            node("Relu", "a", "p"),
            node("Concat", "x p", "c", axis=1),
            node("Conv", "c w2 b2", "d"),
            node("Concat", "c d", "e", axis=-3),
            node("Relu", "e", "y"),
        ],
        {"x": IMAGE},
        {"w1": normal(4, 6, 1, 1), "b1": normal(4), "w2": normal(3, 10, 1, 1), "b2": normal(3)},
    ),
    "concat-constants": (
        [
            node("Concat", "c x", "a", axis=-1),
            node("Conv", "a w", "b"),
            node("Concat", "b d d", "y", axis=-3),
        ],
        {"x": IMAGE},
        {"c": normal(2, 6, 11, 2), "w": normal(4, 6, 1, 1), "d": normal(2, 3, 11, 11)},
    ),
    "arithmetic": (
        [
            node("Mul", "x s", "a"),
            node("Add", "a x2", "b"),
            node("Sub", "half b", "c"),
            node("Max", "c x2", "d"),
            node("Min", "d one", "y"),
        ],
        {"x": IMAGE, "x2": (6, 11, 9)},
        {"s": normal(6, 1, 1), "half": np.array([0.5], np.float32), "one": normal(1, 1, 1, 9)},
    ),
    "attention-over-channels": (  # squeeze and excitation
        [
            node("GlobalAveragePool", "x", "a"),
            node("Conv", "a w1 b1", "b"),
            node("Relu", "b", "c"),
            node("Conv", "c w2 b2", "d"),
            node("Sigmoid", "d", "e"),
            node("Mul", "x e", "y"),
        ],
        {"x": IMAGE},
        {"w1": normal(3, 6, 1, 1), "b1": normal(3), "w2": normal(6, 3, 1, 1), "b2": normal(6)},
    ),
    "softmax-axes": (
        [
            node("Softmax", "x", "a", axis=1),
            node("LogSoftmax", "a", "b", axis=2),
            node("Softmax", "b", "y"),
        ],
        {"x": IMAGE},
        {},
    ),
    "means": (
        [
            node("ReduceMean", "x axes", "a", keepdims=1),
            node("Sub", "x a", "b"),
            node("ReduceSum", "b rows", "c", keepdims=0),
            node("ReduceMax", "c last", "y", keepdims=0),
        ],
        {"x": IMAGE},
        {"axes": ints(2, 3), "rows": ints(2), "last": ints(-1)},
    ),
    "least": ([node("ReduceMin", "x", "y")], {"x": IMAGE}, {}),
    "views": (
        [
            node("Shape", "x", "n", start=0, end=1),
            node("Concat", "n rest", "to", axis=0),
            node("Reshape", "x to", "a"),
            node("Unsqueeze", "a one", "b"),
            node("Transpose", "b", "c", perm=[0, 3, 1, 2]),
            node("Squeeze", "c two", "d"),
            node("Dropout", "d", "e"),
            node("Identity", "e", "f"),
            node("Relu", "f", "y"),
        ],
        {"x": IMAGE},
        {"rest": ints(-1, 9), "one": ints(1), "two": ints(2)},
    ),
    "lstm": (
        [node("LSTM", "x w r b _ h c", "y hy cy", hidden_size=5)],
        {"x": (7, 3, 4), "h": (1, 3, 5)},
        {"w": normal(1, 20, 4), "r": normal(1, 20, 5), "b": normal(1, 40), "c": normal(1, 3, 5)},
    ),
    "lstm-both": (
        [
            node("LSTM", "x w r b", "a hy cy", hidden_size=5, direction="bidirectional"),
            node("Transpose", "a", "t", perm=[0, 2, 1, 3]),
            node("Reshape", "t to", "y"),
        ],
        {"x": (7, 3, 4)},
        {"w": normal(2, 20, 4), "r": normal(2, 20, 5), "b": normal(2, 40), "to": ints(0, 0, -1)},
    ),
    "gru": (
        [
            node("GRU", "x w r b", "a hy", hidden_size=5, linear_before_reset=1),
            node("Squeeze", "a one", "s"),
            node("MatMul", "s v", "y"),
        ],
        {"x": (7, 3, 4)},
        {
            "w": normal(1, 15, 4),
            "r": normal(1, 15, 5),
            "b": normal(1, 30),
            "v": normal(5, 2),
            "one": ints(1),
        },
    ),
    "rnn-tanh-last-state": (
        [node("RNN", "x w r", "_ y", hidden_size=5)],
        {"x": (7, 3, 4)},
        {"w": normal(1, 5, 4), "r": normal(1, 5, 5, scale=0.4)},
    ),
}
ASYMMETRIC = (
    [node("Conv", "x w b", "y", pads=[0, 1, 2, 3])],
    {"x": IMAGE},
    {"w": normal(8, 6, 3, 3), "b": normal(8)},
)


def made(name: str) -> onnx.ModelProto:
    nodes, inputs, constants = MODELS[name]
    outputs = [
        "y",
        *(one for one in ("hy", "cy") if any(one in one_node.output for one_node in nodes)),
    ]
    return model(nodes, inputs, constants, outputs=outputs)


def check(network: Any, proto: onnx.ModelProto, inputs: dict[str, Any], tolerance: float) -> None:
    arrays = {name: normal(*shape) for name, shape in inputs.items()}
    names = [info.name for info in proto.graph.output]
    expected = dict(zip(names, ReferenceEvaluator(proto).run(None, arrays), strict=True))
    results = network(**arrays)
    assert {*results} == {*expected}
    for name, array in expected.items():
        assert results[name].shape == array.shape
        error = np.abs(results[name].astype(np.float64) - array).max() / max(
            1.0, np.abs(array).max()
        )
        assert error < tolerance, name


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_onnx(name: str, layout: str, network_of: Any) -> None:
    proto = made(name)
    network = network_of(proto, layout=layout, math_type=dnn.TRUE_FLOAT32)
    for _ in range(2):  # what lies in the memory from the first run must not show in the second
        check(network, proto, MODELS[name][1], 2e-5)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float64", 1e-6), ("float16", 4e-3)]
)  # the reference has float32
@pytest.mark.parametrize(
    "name", ["conv-residual", "lenet", "pools", "inception", "gru", "arithmetic"]
)
def test_other_data_types(name: str, dtype: str, tolerance: float, network_of: Any) -> None:
    proto = made(name)
    network = network_of(proto, dtype=dtype, layout="NHWC" if name != "gru" else "NCHW")
    check(network, proto, MODELS[name][1], tolerance)


def test_every_operation_is_in_a_model(examples: Any) -> None:
    used = {node.op_type for nodes, _, _ in MODELS.values() for node in nodes}
    assert {*examples.OPERATIONS} <= used
    assert len(MODELS) >= 15


def test_normalisation_bias_addition_and_relu_are_no_steps_of_their_own(network_of: Any) -> None:
    network = network_of(made("conv-residual"))
    assert [step.kind for step in network.steps] == ["Conv"] * 3
    assert [step.name for step in network.steps] == ["a", "d", "g"]
    assert network.steps[0].flops == 2 * 2 * 8 * 11 * 9 * 6 * 9


@pytest.mark.parametrize("name", ["conv-residual", "inception", "gru", "lenet"])
def test_its_problems_have_the_names_of_layers(name: str, network_of: Any) -> None:
    network = network_of(made(name), layout="NHWC" if name == "conv-residual" else "NCHW")
    with dnn.record_problems() as recorded:
        network.run()
    listed = network.problem_list()
    counts = {item.problem: item.count for item in recorded}
    copies = {problem for problem in counts if problem.operation.function == "cudnnTransformTensor"}
    assert {item.problem: item.count for item in listed} == {
        problem: count for problem, count in counts.items() if problem not in copies
    }
    names = [one for item in listed for one in item.names]
    assert sorted(names) == sorted(step.name for step in network.steps if step.kind != "Copy")


def test_it_prints_as_a_table(network_of: Any) -> None:
    network = network_of(made("lenet"))
    heading, *lines = str(network).splitlines()
    assert heading.split() == ["layer", "operation", "GFLOP", "chosen"]
    assert len(lines) == len(network.steps)
    for line, step in zip(lines, network.steps, strict=True):
        assert line.split()[:2] == [step.name, step.kind]
        is_chosen = line.split()[3] != "-"
        assert is_chosen == (step.kind in ("Conv", "Gemm", "MatMul"))


def test_the_program_runs_a_file(
    handle: dnn.Handle, tmp_path: Path, examples: Any, capsys: Any, monkeypatch: Any
) -> None:
    proto, file = made("lenet"), tmp_path / "model.onnx"
    onnx.save(proto, file)
    monkeypatch.setenv("CUDNNLITE_DEVICE", handle.device.kind)
    saved = tmp_path / "problems.json"
    monkeypatch.setattr(sys, "argv", ["onnx_network.py", str(file), "--problems", str(saved)])
    examples.main()
    printed = capsys.readouterr().out
    assert printed.startswith("layer ")
    assert "y: (" in printed
    assert dnn.ProblemList.load(saved)[0].names


def test_branches_are_written_where_a_concat_wants_them(network_of: Any) -> None:
    network = network_of(made("inception"))
    assert [step.kind for step in network.steps] == [
        "Conv",
        "Conv",
        "MaxPool",
        "Copy",
        "Conv",
    ]  # x itself is copied
    assert network.steps[0].writes[0].strides == (19 * 99, 99, 9, 1)


def test_memory_is_used_again(network_of: Any) -> None:
    rng, depth = np.random.default_rng(1), 12
    nodes = [
        node("Conv", f"{'x' if not i else f'a{i - 1}'} w", f"a{i}", pads=[1] * 4)
        for i in range(depth)
    ]
    proto = model(
        nodes, {"x": IMAGE}, {"w": 0.2 * rng.standard_normal((6, 6, 3, 3)).astype(np.float32)}
    )
    network = network_of(proto)
    assert len({place.memory.ptr for place in network.places}) == 2
    assert [place.size for place in network.places] == [np.prod(IMAGE)] * depth


@pytest.mark.parametrize("name", MODELS)
def test_values_that_live_at_the_same_time_lie_apart(name: str, network_of: Any) -> None:
    places = network_of(made(name)).places
    for one in places:
        assert one.size <= np.prod(one.memory.shape)
        for other in places:
            together = one.begin <= other.until and other.begin <= one.until
            assert one is other or one.memory.ptr != other.memory.ptr or not together


def test_a_captured_run_is_the_same(handle: dnn.Handle, network_of: Any) -> None:
    proto, (_, inputs, _) = made("conv-residual"), MODELS["conv-residual"]
    network = network_of(proto)
    expected = network(x=normal(*inputs["x"]))["y"]
    with dnn.capture(handle) as graph:
        network.run()
    dnn.set_tensor(handle, network.outputs["y"], 7.0)
    graph.launch()
    np.testing.assert_array_equal(network.outputs["y"].numpy(), expected)
    graph.close()


def test_symbolic_batches(network_of: Any) -> None:
    proto = model([node("Conv", "x w", "y")], {"x": ("batch", 3, 6, 5)}, {"w": normal(2, 3, 3, 3)})
    for batch in (1, 4):
        network = network_of(proto, batch=batch)
        check(network, proto, {"x": (batch, 3, 6, 5)}, 1e-3)
        with pytest.raises(
            ValueError, match=rf"has shape \({batch + 1}, 3, 6, 5\); needed: \({batch}, 3, 6, 5\)"
        ):
            network(x=normal(batch + 1, 3, 6, 5))


def test_shapes_that_follow_the_batch(network_of: Any) -> None:
    nodes = [
        conv(),
        node("Shape", "y", "n", start=0, end=1),
        node("Concat", "n rest", "to", axis=0),
        node("Reshape", "y to", "f"),
        node("Gemm", "f m", "z"),
    ]
    constants = {"w": normal(2, 3, 3, 3), "rest": ints(-1), "m": normal(24, 5)}
    proto = model(nodes, {"x": ("batch", 3, 6, 5)}, constants)
    before = proto.SerializeToString()
    check(network_of(proto, batch=3, math_type=dnn.TRUE_FLOAT32), proto, {"x": (3, 3, 6, 5)}, 2e-5)
    assert proto.SerializeToString() == before


@pytest.mark.parametrize("axis", [1, 2, None])
def test_an_old_softmax_is_over_all_axes_behind(axis: int | None, network_of: Any) -> None:
    x = normal(2, 3, 4, 5)
    nodes = [node("Softmax", "x", "y", **({} if axis is None else {"axis": axis}))]
    result = network_of(model(nodes, {"x": x.shape}, opset=11))(x=x)["y"]
    flat = np.exp(x.reshape(*x.shape[: axis or 1], -1).astype(np.float64))
    np.testing.assert_allclose(
        result, (flat / flat.sum(-1, keepdims=True)).reshape(x.shape), atol=1e-6
    )


@pytest.mark.parametrize("axis", [1, -1, None])
@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_an_old_softmax_of_a_constant(
    is_nested: bool, kind: str, axis: int | None, network_of: Any
) -> None:
    """onnx.reference has the softmax of operator set 13, whatever the model's is."""
    x, c = normal(2, 3, 4, 5), normal(2, 3, 4, 5)
    softmax = node(kind, "c", "s", **({} if axis is None else {"axis": axis}))
    if is_nested:
        then = helper.make_graph([softmax], "then", [], [value("s", c.shape)])
        other = helper.make_graph([node("Neg", "c", "n")], "else", [], [value("n", c.shape)])
        softmax = node("If", "yes", "s", then_branch=then, else_branch=other)
    constants = {"c": c, "yes": np.array(True)}
    proto = model([softmax, node("Add", "x s", "y")], {"x": x.shape}, constants, opset=11)
    flat = c.reshape(*c.shape[: (axis or 1) % 4], -1).astype(np.float64)
    logarithms = flat - np.log(np.exp(flat).sum(-1, keepdims=True))
    expected = logarithms if kind == "LogSoftmax" else np.exp(logarithms)
    np.testing.assert_allclose(
        network_of(proto)(x=x)["y"], x + expected.reshape(c.shape), atol=2e-6
    )


def test_constants_of_old_operator_sets(network_of: Any) -> None:
    """Axes were attributes, and the values of shapes go through Gather and Unsqueeze."""
    nodes = [
        node("Unsqueeze", "c", "a", axes=[0, 3]),
        node("Add", "x a", "b"),
        node("Shape", "b", "n"),
        node("Gather", "n last", "g"),
        node("Unsqueeze", "g", "u", axes=[0]),
        node("Concat", "rest u", "to", axis=-1),
        node("Reshape", "b to", "y"),
    ]
    constants = {"c": normal(3, 4), "last": np.array(-1), "rest": ints(-1)}
    proto = model(nodes, {"x": (2, 3, 4, 5)}, constants, opset=11)
    x = normal(2, 3, 4, 5)
    expected = (x + constants["c"][:, :, None]).reshape(-1, 5)
    np.testing.assert_allclose(network_of(proto)(x=x)["y"], expected, atol=1e-6)


def test_averages_that_count_uneven_padding(network_of: Any, examples: Any) -> None:
    x = normal(2, 6, 10, 9)
    pool = node(
        "AveragePool", "x", "y", kernel_shape=[2, 3], pads=[0, 1, 1, 2], count_include_pad=1
    )
    proto = model([pool], {"x": x.shape})
    check(network_of(proto, layout="NHWC"), proto, {"x": x.shape}, 2e-5)
    with pytest.raises(examples.UnsupportedNodeError, match=r"AveragePool 'y': .*channels last"):
        network_of(proto)


@pytest.mark.parametrize(
    ("declared", "shown"),
    [
        (("?", 3, "?", "?"), r"\(\?, 3, \?, \?\)"),
        ((None, 3, None, 5), r"\(\?, 3, \?, 5\)"),
        (("batch", 3, "height", 5), r"\(batch, 3, height, 5\)"),
    ],
)
def test_several_open_axes_need_a_shape(
    declared: tuple[Any, ...], shown: str, network_of: Any
) -> None:
    proto = model([node("Conv", "x w", "y")], {"x": declared}, {"w": normal(2, 3, 3, 3)})
    with pytest.raises(ValueError, match=rf"'x' {shown} has several open axes"):
        network_of(proto, batch=2)
    network = network_of(proto, shapes={"x": (2, 3, 6, 5)}, math_type=dnn.TRUE_FLOAT32)
    check(network, proto, {"x": (2, 3, 6, 5)}, 2e-5)
    with pytest.raises(ValueError, match=rf"'x' {shown} cannot have the shape \(2, 4, 6, 5\)"):
        network_of(proto, shapes={"x": (2, 4, 6, 5)})


def test_sequences_of_several_lengths(network_of: Any) -> None:
    """onnx.reference does not look at the lengths: it is asked about each sequence by itself."""
    weights = {"w": normal(1, 20, 4), "r": normal(1, 20, 5), "b": normal(1, 40)}
    lengths, x = [7, 2, 4], normal(7, 3, 4)
    constants = {**weights, "n": np.array(lengths, np.int32)}
    proto = model([node("LSTM", "x w r b n", "y hy", hidden_size=5)], {"x": x.shape}, constants)
    network = network_of(proto, math_type=dnn.TRUE_FLOAT32)
    results = network(x=x)
    for index, length in enumerate(lengths):
        alone = model(
            [node("LSTM", "x w r b", "y hy", hidden_size=5)], {"x": (length, 1, 4)}, weights
        )
        y, hy = ReferenceEvaluator(alone).run(None, {"x": x[:length, index : index + 1]})
        np.testing.assert_allclose(results["y"][:length, :, index : index + 1], y, atol=2e-5)
        np.testing.assert_allclose(results["hy"][:, index : index + 1], hy, atol=2e-5)
        assert not results["y"][length:, :, index].any()


def test_groups_of_a_transposed_convolution(network_of: Any) -> None:
    """onnx.reference fails with groups: it is asked about each by itself."""
    x, w = normal(2, 4, 5, 3), normal(4, 3, 3, 2)
    proto = model(
        [node("ConvTranspose", "x w", "y", group=2, strides=[2, 1])], {"x": x.shape}, {"w": w}
    )
    result = network_of(proto, math_type=dnn.TRUE_FLOAT32)(x=x)["y"]
    alone = model(
        [node("ConvTranspose", "x w", "y", strides=[2, 1])], {"x": (2, 2, 5, 3), "w": (2, 3, 3, 2)}
    )
    halves = [
        ReferenceEvaluator(alone).run(None, {"x": x[:, part], "w": w[part]})[0]
        for part in (slice(2), slice(2, 4))
    ]
    np.testing.assert_allclose(result, np.concatenate(halves, 1), atol=2e-5)


REFUSED: dict[str, tuple[list[onnx.NodeProto], str]] = {
    "unknown": (
        [
            node("Erf", "x", "a"),
            node("Relu", "a", "b"),
            node("Erf", "b", "c"),
            node("Gelu", "c", "y"),
        ],
        r"this program has not: Erf \(2 nodes\), Gelu \(1 node\)$",
    ),
    "of-another-domain": (
        [helper.make_node("Relu", ["x"], ["y"], domain="others"), node("Abs", "low", "z")],
        r"this program has not: others.Relu \(1 node\)$",
    ),
    "random": (
        [node("RandomNormal", "", "a", shape=[1, 6, 4, 4]), node("Add", "x a", "y")],
        r"RandomNormal \(1 node\)",
    ),
    "if": (
        [
            node(
                "If",
                "yes",
                "y",
                then_branch=helper.make_graph([node("Relu", "x", "p")], "p", [], [value("p")]),
                else_branch=helper.make_graph([node("Neg", "x", "q")], "q", [], [value("q")]),
            )
        ],
        r"this program has not: If \(1 node\)$",
    ),
    "constant": (
        [node("Reshape", "low zero", "a"), node("Add", "x a", "y")],
        "the constants cannot be computed: ",
    ),
    "ceil-counted": (
        [
            node(
                "AveragePool",
                "x",
                "y",
                kernel_shape=[3, 3],
                strides=[2, 2],
                pads=[1, 1, 1, 1],
                ceil_mode=1,
                count_include_pad=1,
            )
        ],
        "AveragePool 'y': .*last window reaches beyond the padding",
    ),
    "pool-dilated": (
        [node("MaxPool", "x", "y", kernel_shape=[2, 2], dilations=[2, 2], strides=[3, 3])],
        "dilations",
    ),
    "pool-indices": ([node("MaxPool", "x", "y z", kernel_shape=[2, 2])], "MaxPool 'y'"),
    "gemm-column": (
        [node("Flatten", "x", "f"), node("Gemm", "f square column", "y", transB=1)],
        "its C is not one row",
    ),
    "clip": ([node("Clip", "x low high", "y")], "limits -1.0 and 1.0"),
    "product": ([node("MatMul", "x x", "y")], "its input 'x' is not constant"),
    "gru": (
        [node("Squeeze", "x zero", "s"), node("GRU", "s w r", "y", hidden_size=5)],
        "linear_before_reset=0",
    ),
    "reverse": (
        [
            node("Squeeze", "x zero", "s"),
            node("RNN", "s w r", "y", hidden_size=5, direction="reverse"),
        ],
        "direction",
    ),
    "reduction": ([node("ReduceMean", "x zero", "y")], "nothing to reduce"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_has_not_is_named_before_anything_runs(name: str, examples: Any) -> None:
    nodes, message = REFUSED[name]
    gates = 3 if name == "gru" else 1
    constants = {
        "low": np.array(-1, np.float32),
        "high": np.array(1, np.float32),
        "zero": ints(0),
        "yes": np.array(True),
        "w": normal(1, gates * 5, 4),
        "r": normal(1, gates * 5, 5),
        "column": normal(3, 1),
        "square": normal(3, 96),
    }
    proto = model(nodes, {"x": (1, 6, 4, 4)}, constants, opset=20, domains=["others"])
    with dnn.Handle(device="emulated") as handle, dnn.record_problems() as problems:
        with pytest.raises(examples.UnsupportedNodeError, match=message):
            examples.Network(handle, proto)
        assert len(problems) == 0
