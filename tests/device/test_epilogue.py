"""`convolution_forward(..., activation=)`: pointwise operations in the kernel of a convolution, against ONNX and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_oracles import ACTIVATIONS
from helpers.extents import each_pair
from oracles import onnx_convolution
from tolerances import assert_close

import cudnnlite as dnn
from cudnnlite.graph.convolution_formulas import add_input, add_output
from cudnnlite.operations.graph.activations import ACTIVATIONS as NAMES

from .problems import LAST, Array, poisoned, random_values, upload

BOUNDS = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
# name: (x shape, w shape, ConvolutionSpec options)
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "2-D": ((2, 8, 7, 9), (16, 8, 3, 2), {"padding": ((0, 1), 1), "stride": (1, 2)}),
    "groups": ((2, 16, 7, 6), (16, 8, 3, 3), {"padding": "same", "groups": 2}),
    "1-D": ((2, 8, 19), (16, 8, 3), {"padding": 2, "dilation": 2}),
}


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


EPILOGUES: dict[str, tuple[Any, Any]] = {
    "a number": (lambda graph, y: y * 2.0 + 0.5, lambda y: 2 * y + 0.5),
    "a gate": (lambda graph, y: y * graph.sigmoid(y * 1.5), lambda y: y * sigmoid(1.5 * y)),
    "leaky": (
        lambda graph, y: graph.relu(y, negative_slope=0.3),
        lambda y: np.where(y > 0, y, 0.3 * y),
    ),
    "clipped below": (
        lambda graph, y: graph.relu(y, lower=0.5),
        lambda y: np.maximum(y, 0.5),
    ),
    "clipped below 0": (
        lambda graph, y: graph.relu(y, lower=-1.0, upper=1.5),
        lambda y: np.clip(y, -1.0, 1.5),
    ),
    "leaky below -1": (
        lambda graph, y: graph.relu(y, lower=-1.0, negative_slope=0.3),
        lambda y: np.where(y > -1.0, y, -1.0 + 0.3 * (y + 1.0)),
    ),
    "nothing": (lambda graph, y: y, lambda y: y),
}


class Case:
    """Operands with channels last, and the convolution with its bias in float64."""

    def __init__(
        self,
        handle: dnn.Handle,
        name: str = "2-D",
        dtype: str = "float16",
        *,
        bias: bool = True,
        layout: str = "last",
        math_type: str = "default",
    ) -> None:
        x_shape, w_shape, options = CASES[name]
        rng = np.random.default_rng(0)
        spatial = len(x_shape) - 2
        shapes = {"x": x_shape, "w": w_shape, "bias": (1, w_shape[0], *(1,) * spatial)}
        hosts = {role: random_values(rng, shape, dtype) for role, shape in shapes.items()}
        self.handle, self.dtype = handle, dtype
        self.layout = LAST[len(x_shape)] if layout == "last" else None
        arrays = {
            role: upload(handle, dnn.TensorSpec(shape, dtype, self.layout), hosts[role])
            for role, shape in shapes.items()
        }
        self.conv = dnn.ConvolutionSpec(**options, math_type=math_type)
        conv = self.conv.for_shapes(x_shape, w_shape)
        wide = {role: host.astype(np.float64) for role, host in hosts.items()}
        steps = conv.steps(spatial)[1:]
        self.y = onnx_convolution(wide["x"], wide["w"], conv.pads(spatial), *steps, conv.groups)
        self.operands: tuple[Any, ...] = (arrays["x"], arrays["w"])
        self.options: dict[str, Any] = {}
        if bias:
            self.y = self.y + wide["bias"]
            self.options = {"bias": arrays["bias"]}

    def call(self, epilogue: Any, **options: Any) -> dnn.DeviceArray:
        spec = dnn.TensorSpec(self.y.shape, self.dtype, self.layout)
        return dnn.convolution_forward(
            self.handle,
            *self.operands,
            self.conv,
            **self.options,
            **{"out": poisoned(self.handle, spec), "activation": epilogue} | options,
        )

    def check(self, result: dnn.DeviceArray, expected: Array) -> None:
        bound = BOUNDS[self.dtype]
        if self.dtype == "float32" and self.conv.math_type == dnn.MathType.DEFAULT:
            bound = 1.2e-3
        assert_close(result.numpy(), expected, bound, self.y)


@each_pair(name=CASES, dtype=BOUNDS, bias=[True, False])
def test_activations_by_name(handle: dnn.Handle, name: str, dtype: str, bias: bool) -> None:
    case = Case(handle, name, dtype, bias=bias)
    for activation in NAMES:
        expected = case.y
        if activation == "leaky_relu":
            expected = np.where(case.y > 0, case.y, 0.01 * case.y)
        else:
            expected = ACTIVATIONS[activation](case.y)
        case.check(case.call(activation), expected)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("activation", ["gelu", "sigmoid", "elu", "relu"])
@pytest.mark.parametrize("bias", [True, False])
def test_operands_in_several_layouts(
    handle: dnn.Handle, activation: str, dtype: str, bias: bool
) -> None:
    """Results are right, or the call is refused: an H200's compiled engines read all as one layout."""
    case = Case(handle, dtype=dtype, bias=bias)
    for layouts in ("FFL", "LFL", "FLL", "LLF"):
        x, w = (
            upload(handle, dnn.TensorSpec(a.shape, dtype, "NCHW"), a.numpy()) if is_first else a
            for a, is_first in zip(
                case.operands, [layout == "F" for layout in layouts], strict=False
            )
        )
        spec = dnn.TensorSpec(case.y.shape, dtype, "NCHW" if layouts[-1] == "F" else "NHWC")
        out = poisoned(handle, spec)
        try:
            result = dnn.convolution_forward(
                handle, x, w, case.conv, **case.options, activation=activation, out=out
            )
        except (dnn.NotSupportedError, dnn.errors.BadParamError):
            continue
        case.check(result, ACTIVATIONS[activation](case.y))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", EPILOGUES)
def test_functions_of_the_result(handle: dnn.Handle, name: str, dtype: str) -> None:
    """As one call, whose plan is kept, and as a plan."""
    case = Case(handle, dtype=dtype)
    epilogue, formula = EPILOGUES[name]
    for _ in range(2):
        case.check(case.call(epilogue), formula(case.y))
    plan = dnn.convolution_forward.plan(
        handle, *case.operands, case.conv, **case.options, activation=epilogue
    )
    with plan:
        assert isinstance(plan.choice.algorithm, dnn.types.Engine)
        result = plan(*case.operands, *case.options.values())
        case.check(result, formula(case.y))
        assert result.spec.layout == "NHWC"


def test_a_function_may_write_another_graph_each_time(handle: dnn.Handle) -> None:
    case = Case(handle)
    for slope in (0.1, 0.5, 0.1):
        result = case.call(lambda graph, y, s=slope: graph.relu(y, negative_slope=s))
        case.check(result, np.where(case.y > 0, case.y, slope * case.y))


def test_a_function_is_asked_once_a_call(handle: dnn.Handle) -> None:
    """The plan is that of the graph in its key, also if the function then says something else."""
    case = Case(handle)
    factors = []

    def anneal(graph: dnn.Graph, y: Any) -> Any:
        factors.append(1 + len(factors))
        return y * float(factors[-1])

    for factor in (1, 2, 3):
        case.check(case.call(anneal), factor * case.y)
    assert factors == [1, 2, 3]
    case.check(case.call(lambda graph, y: y * 2.0), 2 * case.y)
    operands = (*case.operands, *case.options.values())
    plan = dnn.convolution_forward.plan(
        handle, *case.operands, case.conv, **case.options, activation=anneal
    )
    with plan:
        case.check(plan(*operands), 4 * case.y)
    assert factors == [1, 2, 3, 4]


@pytest.mark.parametrize("activation", ["relu", "sigmoid", "elu"])
def test_built_in_activations_in_any_layout(handle: dnn.Handle, activation: str) -> None:
    for dtype in BOUNDS:
        case = Case(handle, dtype=dtype, layout="first")
        case.check(case.call(activation), ACTIVATIONS[activation](case.y))


def test_tanh_needs_channels_last(handle: dnn.Handle) -> None:
    """With channels first cuDNN has one engine, which writes NaN for large values."""
    for dtype in ("float16", "bfloat16"):
        case = Case(handle, dtype=dtype)
        case.check(case.call("tanh"), np.tanh(case.y))
    with pytest.raises(dnn.NotSupportedError, match="0 or NaN for the tanh of values from 44 on"):
        Case(handle, layout="first").call("tanh")


def test_true_float32(handle: dnn.Handle) -> None:
    case = Case(handle, dtype="float32", math_type="fma")
    case.check(case.call("gelu"), ACTIVATIONS["gelu"](case.y))


def test_what_has_no_engine_says_what_has(handle: dnn.Handle) -> None:
    case = Case(handle, layout="first")
    with pytest.raises(dnn.NotSupportedError, match="with channels last"):
        case.call("gelu")


def test_a_choice_between_values_has_no_engine(handle: dnn.Handle) -> None:
    """Its condition is a tensor of booleans, which no array may be and a graph may have."""
    x, w = (
        handle.array(np.ones(shape), dtype="float16", layout="NHWC")
        for shape in ((1, 8, 4, 4), (8, 8, 1, 1))
    )
    with pytest.raises(dnn.NotSupportedError, match="BINARY_SELECT"):
        dnn.convolution_forward(
            handle, x, w, activation=lambda graph, y: graph.where(y > 0.0, y, y * 0.1)
        )


def test_plans_replay_and_take_engines(handle: dnn.Handle) -> None:
    case = Case(handle)
    operands = (*case.operands, *case.options.values())
    expected = ACTIVATIONS["gelu"](case.y)
    plan = dnn.convolution_forward.plan(
        handle, *case.operands, case.conv, **case.options, activation="gelu", replay=True
    )
    with plan:
        for _ in range(3):
            case.check(plan(*operands), expected)
        assert plan.replay is not None
        assert plan.graph.outputs.keys() == {"y"}
        choice = plan.choice
    case.check(case.call("gelu", algorithm=choice), expected)
    case.check(case.call("gelu", algorithm=choice.algorithm, interface="graph"), expected)


def test_operands_that_are_not_aligned_are_copied(handle: dnn.Handle) -> None:
    case = Case(handle)
    x, w = case.operands
    memory = handle.empty((x.nbytes + 8,), "uint8")
    moved = dnn.DeviceArray(x.spec, memory.device, memory.ptr + 8, memory, handle.stream)
    handle.device.copy_within(moved.ptr, x.ptr, x.nbytes, handle.stream)
    case.operands = (moved, w)
    with pytest.warns(dnn.errors.AlignmentWarning):
        case.check(case.call("swish"), ACTIVATIONS["swish"](case.y))


def test_the_problem_is_a_graph(handle: dnn.Handle) -> None:
    """Which can be planned, saved and tuned."""
    case = Case(handle)
    problem = dnn.convolution_forward.problem(
        *case.operands, case.conv, **case.options, activation="gelu"
    )
    assert [row[1] for row in problem.graph.rows()] == ["CONVOLUTION_FORWARD", "ADD", "GELU_FWD"]
    with problem.graph.plan(handle) as plan:
        case.check(plan(*case.operands, *case.options.values())["y"], ACTIVATIONS["gelu"](case.y))
    assert dnn.Tuner(handle, cache=None).tune(problem.graph).best().ok


@pytest.mark.parametrize("name", ["Gelu", "GELU-tanh"])
def test_names_of_activations_are_in_any_case(handle: dnn.Handle, name: str) -> None:
    """As the names of enums are; the problem is that of the plain name."""
    case = Case(handle)
    plain = name.lower().replace("-", "_")
    case.check(case.call(name), ACTIVATIONS[plain](case.y))
    a, b = dnn.TensorSpec((8, 16), "float16"), dnn.TensorSpec((16, 8), "float16")
    assert dnn.matmul.graph(a, b, activation=name) == dnn.matmul.graph(a, b, activation=plain)
    with pytest.raises(dnn.ArgumentError, match=r"^activation='geluu'; .*None; did you mean gelu"):
        dnn.matmul.graph(a, b, activation="geluu")


# ------------------------------------------------------------------ operands behind a convolution

BROADCAST: dict[str, list[tuple[str, tuple[int, ...]]]] = {
    "a mask": [("MUL", (2, 1, 5, 6))],
    "an image": [("MUL", (2, 16, 5, 6))],
    "scale, bias and mask": [
        ("MUL", (1, 16, 1, 1)),
        ("ADD", (1, 16, 1, 1)),
        ("MUL", (2, 1, 5, 6)),
    ],
    "mask and bias": [("MUL", (2, 1, 5, 6)), ("ADD", (1, 16, 1, 1))],
}
WRONG_BROADCAST = {"values of each image": (2, 16, 1, 1), "a row": (1, 1, 1, 6)}


def graph_with_operands(
    handle: dnn.Handle, chain: list[tuple[str, tuple[int, ...]]], dtype: str
) -> tuple[dnn.Graph, dict[str, dnn.DeviceArray], Array]:
    """Return a convolution with operands and ReLU behind it, its arrays, and the right result."""
    rng = np.random.default_rng(0)

    def array(shape: tuple[int, ...]) -> dnn.DeviceArray:
        return handle.array(random_values(rng, shape, dtype), dtype=dtype, layout="NHWC")

    arrays = {"x": array((2, 8, 5, 6)), "w": array((16, 8, 3, 3))}
    graph = dnn.Graph()
    inputs = {name: add_input(graph, name, one.spec) for name, one in arrays.items()}
    y = graph.convolution_forward(
        inputs["x"], inputs["w"], dnn.ConvolutionSpec(padding=1, math_type="fma")
    )
    x_host, w_host = (arrays[name].numpy().astype(np.float64) for name in "xw")
    expected = onnx_convolution(x_host, w_host, (1, 1), (1, 1), (1, 1))
    for number, (mode, shape) in enumerate(chain):
        name = f"operand_{number}"
        arrays[name] = array(shape)
        y = graph.pointwise(mode, y, add_input(graph, name, arrays[name].spec))
        operation = np.multiply if mode == "MUL" else np.add
        expected = operation(expected, arrays[name].numpy().astype(np.float64))
    add_output(graph, "y", graph.relu(y), dnn.TensorSpec(expected.shape, dtype, "NHWC"))
    return graph, arrays, np.maximum(expected, 0)


@each_pair(name=BROADCAST, dtype=["float16", "bfloat16", "float32"])
def test_operands_that_are_broadcast(handle: dnn.Handle, name: str, dtype: str) -> None:
    graph, arrays, expected = graph_with_operands(handle, BROADCAST[name], dtype)
    with graph.plan(handle) as plan:
        bound = BOUNDS[dtype] if dtype != "float32" else 2e-3  # TF32
        assert_close(plan(**arrays)["y"].numpy(), expected, bound)


@pytest.mark.parametrize("name", WRONG_BROADCAST)
def test_operands_that_an_h200_reads_wrongly(handle: dnn.Handle, name: str) -> None:
    graph, _, _ = graph_with_operands(handle, [("MUL", WRONG_BROADCAST[name])], "float16")
    with pytest.raises(dnn.ArgumentError, match=r"reads an operand of shape .* wrongly"):
        graph.plan(handle)
