"""The functions of public operations: `.plan`, `.problem` and the tables.

Each plan is compared with the call itself, and runs in a CUDA graph.
"""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.refusals import ARGUMENT, ARRAY, refuses

import cudnnlite as dnn
from cudnnlite.plans.function import OperationFunction
from cudnnlite.problems.catalogue import OPERATIONS

from .operation_samples import SAMPLES, Case


class Planned(NamedTuple):
    """An operation, what it is called with, and how many of that its plan is."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    operands: int = 1
    options: dict[str, Any] = {}  # noqa: RUF012  (never changed)


def planned(handle: dnn.Handle, name: str) -> Planned:
    rng = np.random.default_rng(0)
    x, y = (handle.array(rng.standard_normal((2, 4, 6, 5)).astype(np.float32)) for _ in range(2))
    sequence = handle.array(rng.standard_normal((1, 5, 4)).astype(np.float32))
    attention = dnn.AttentionSpec(1, 4)
    return {
        "pooling": lambda: Planned(dnn.pooling_forward, (x, dnn.PoolingSpec(2))),
        "softmax_backward": lambda: Planned(dnn.softmax_backward, (y, x), 2, {"mode": "instance"}),
        "reduce": lambda: Planned(dnn.reduce_tensor, (x, "add"), 1, {"axes": (0, 2), "alpha": 0.5}),
        "transform": lambda: Planned(dnn.transform_tensor, (x,), 1, {"layout": "NHWC"}),
        "transpose": lambda: Planned(
            dnn.convolution_backward_data,
            (handle.array(np.ones((4, 3, 2, 2), np.float32)), x, dnn.ConvolutionSpec()),
            2,
            {"x": (2, 3, 7, 6)},
        ),
        "attention": lambda: Planned(
            dnn.multi_head_attention_forward,
            (attention, dnn.AttentionWeights(handle, attention), sequence, sequence, sequence),
            4,
        ),
    }[name]()


@pytest.mark.parametrize(
    "name", ["pooling", "softmax_backward", "reduce", "transform", "transpose", "attention"]
)
def test_a_plan_does_what_the_call_does(handle: dnn.Handle, name: str) -> None:
    function, operands, count, options = planned(handle, name)
    arrays = operands[1 : 1 + count] if name == "attention" else operands[:count]
    before = len(handle.plans)
    with function.plan(handle, *operands, **options) as plan:
        assert len(handle.plans) == before  # nothing was kept, and nothing ran
        out = function(handle, *operands, **options)
        expected = out.numpy()
        if name != "reduce":  # which takes a shape from what it writes
            np.testing.assert_array_equal(plan(*arrays).numpy(), expected)
        out.device.fill(out.ptr, out.nbytes, 0xFF, out.stream)
        assert plan(*arrays, out=out) is out
        np.testing.assert_array_equal(out.numpy(), expected)
    with pytest.raises(dnn.errors.ClosedError):
        plan(*arrays)


NUMBERS: dict[str, Callable[..., Any]] = {
    "pooling": lambda handle, x, value: (
        dnn.pooling_forward,
        (x, dnn.PoolingSpec(2)),
        {"alpha": value},
    ),
    "activation": lambda handle, x, value: (
        dnn.activation_forward,
        (x, dnn.ActivationSpec("elu", value)),
        {},
    ),
    "op_tensor": lambda handle, x, value: (dnn.op_tensor, (x, x, "mul"), {"alpha1": value}),
    "convolution": lambda handle, x, value: (
        dnn.convolution_forward,
        (x, handle.array(np.ones((2, 3, 3, 2), np.float32))),
        {"alpha": value},
    ),
    "normalization": lambda handle, x, value: (
        dnn.batch_normalization_inference,
        (x, *(handle.array(np.ones((1, 3, 1, 1), np.float32)) for _ in range(4))),
        {"alpha": value},
    ),
    "graph": lambda handle, x, value: (
        dnn.layer_normalization_forward,
        (x, handle.array(np.ones((1, 3, 6, 4), np.float32)), handle.full((1, 3, 6, 4), 0.5)),
        {"epsilon": value},
    ),
}


@pytest.mark.parametrize("first", [0.0, -0.0])
@pytest.mark.parametrize("name", NUMBERS)
def test_zeros_have_a_plan_each_and_nans_have_one(
    handle: dnn.Handle, name: str, first: float
) -> None:
    """0.0 equals -0.0, and NaN does not equal itself."""
    values = np.abs(np.random.default_rng(0).standard_normal((2, 3, 6, 4))) + 1
    x = handle.array(-values.astype(np.float32))
    for value in (first, -first):
        function, operands, options = NUMBERS[name](handle, x, value)
        y = function(handle, *operands, **options).numpy()
        arrays = [operand for operand in operands if isinstance(operand, dnn.DeviceArray)]
        with function.plan(handle, *operands, **options) as plan:
            alone = plan(*arrays)
            alone = alone["y"] if isinstance(alone, dict) else alone
            np.testing.assert_array_equal(np.signbit(y), np.signbit(alone.numpy()))
    before = len(handle.plans)
    assert before >= 2
    for value in (float("nan"), float("nan")):
        function, operands, options = NUMBERS[name](handle, x, value)
        function(handle, *operands, **options)
    assert len(handle.plans) == before + 1


def test_dropout(handle: dnn.Handle) -> None:
    """Each call and each launch advances the dropout states; a graph keeps them alive."""
    state, x = dnn.DropoutState(handle, 3), handle.array(np.ones((1, 1, 40, 50), np.float32))
    saved = state.save()
    expected = [
        dnn.dropout_forward(handle, x, 0.5, dropout_state=state)[0].numpy() for _ in range(4)
    ]
    state.restore(saved)
    plan = dnn.dropout_forward.plan(handle, x, 0.5, dropout_state=state)
    y, reserve = plan(x)
    back = dnn.dropout_backward.plan(handle, x, 0.5, reserve, dropout_state=state)
    dx = back(x, reserve=reserve)
    np.testing.assert_array_equal(y.numpy(), expected[0])
    np.testing.assert_array_equal(dx.numpy(), expected[0])
    with dnn.capture(handle) as graph:
        plan(x, out=y, reserve=reserve)
        back(x, out=dx, reserve=reserve)
    plan.close(), back.close()
    for mask in expected[1:3]:
        graph.launch()
        np.testing.assert_array_equal(y.numpy(), mask)
        np.testing.assert_array_equal(dx.numpy(), mask)
    state.close()  # the graph has them
    graph.launch()
    np.testing.assert_array_equal(y.numpy(), expected[3])
    graph.close()


def test_a_plan_of_attention_is_for_arrays_of_its_rank(handle: dnn.Handle) -> None:
    spec, values = (
        dnn.AttentionSpec(2, 4),
        np.random.default_rng(2).standard_normal((3, 2, 4), dtype=np.float32),
    )
    weights, q, beams = (
        dnn.AttentionWeights(handle, spec),
        handle.array(values),
        handle.array(values[:, None]),
    )
    with dnn.multi_head_attention_forward.plan(handle, spec, weights, q, q, q) as plan:
        assert plan(weights, q, q, q).shape == (3, 2, 8)
        with pytest.raises(dnn.ArgumentError, match=r"^q is .*; needed: TensorSpec\(\(3, 2, 4\)"):
            plan(weights, beams, beams, beams)
    assert dnn.multi_head_attention_forward(handle, spec, weights, beams, beams, beams).shape == (
        3,
        1,
        2,
        8,
    )


def test_dropout_on_another_stream(handle: dnn.Handle) -> None:
    with dnn.Handle(handle.device) as other:
        other.stream = handle.device.create_stream()
        state, x = dnn.DropoutState(other, 3), handle.array(np.ones((1, 1, 40, 50), np.float32))
        expected = dnn.dropout_forward(other, x, 0.5, dropout_state=dnn.DropoutState(other, 3))[
            0
        ].numpy()
        with dnn.dropout_forward.plan(handle, x, 0.5, dropout_state=state) as plan:
            np.testing.assert_array_equal(plan(x)[0].numpy(), expected)
            state.close()
            with pytest.raises(dnn.errors.ClosedError, match="closed"):
                plan(x)


# ---------------------------------------------------------------- the functions of operations

# Public functions that run no plan of their own.
WITHOUT_PLANS = {"fold_batch_normalization", "pack_sequences"}
BACKWARD = [
    f"{network}_backward_{way}"
    for network, way in product(("rnn", "multi_head_attention"), ("data", "weights"))
]
every_operation = pytest.mark.parametrize("name", SAMPLES)


def test_every_operation_is_one_object_with_functions() -> None:
    operations = {
        name: function
        for name in dnn.__all__
        if ".operations." in getattr(function := getattr(dnn, name), "__module__", "")
        and callable(function)
        and not inspect.isclass(function)
    }
    without = {
        name for name, function in operations.items() if not isinstance(function, OperationFunction)
    }
    assert without == WITHOUT_PLANS
    assert {name for name in OPERATIONS if hasattr(dnn, name)} <= operations.keys() - without
    for name in operations.keys() - without:
        parameters = [*inspect.signature(operations[name]).parameters]
        assert parameters[0] == "handle"
        assert (operations[name].plan.__name__, operations[name].problem.__name__) == (
            "plan",
            "problem",
        )
        has_search = hasattr(operations[name], "convert_filter")
        assert hasattr(operations[name], "find") == has_search
        assert hasattr(operations[name], "heuristic") == (has_search or name == "rnn_forward")


@every_operation
def test_each_function_takes_the_arguments_of_the_call(handle: dnn.Handle, name: str) -> None:
    """Of arrays and of specs alike; the problem without a handle, and without a C call."""
    case, function = Case(handle, name), getattr(dnn, name)
    arguments = case.keywords()
    specs = {argument: as_spec(value) for argument, value in arguments.items()}
    with dnn.trace() as trace:
        problem = function.problem(**arguments)
        assert function.problem(**specs) == problem
    assert not trace.calls
    assert problem.kind == name
    for described in (arguments, specs):
        with function.plan(handle, **described) as plan:
            assert plan.problem == problem
            case.outs = {operand: case.fresh(operand) for operand in case.outs}
            case.assert_right(plan(*case.arrays.values(), out=case.given()["out"]))
            case.outs = {operand: case.fresh(operand) for operand in case.outs}
            case.assert_right(plan(**case.given()))


def as_spec(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(as_spec, value))
    return value.spec if isinstance(value, dnn.DeviceArray) else value


@pytest.mark.parametrize("name", [name for name in SAMPLES if OPERATIONS[name].algorithms])
def test_the_tables_take_the_arguments_of_the_call(handle: dnn.Handle, name: str) -> None:
    case, function = Case(handle, name), getattr(dnn, name)
    arguments = case.keywords()
    specs = {argument: as_spec(value) for argument, value in arguments.items()}
    ranked = function.heuristic(handle, **arguments)
    assert [row.algorithm for row in function.heuristic(handle, **specs)] == [
        row.algorithm for row in ranked
    ]
    assert ranked[0].ok
    if not OPERATIONS[name].algorithms.find:
        refuses(ARGUMENT, "cuDNN has no search", lambda: function.find(handle, **arguments))
        return
    table = function.find(handle, **arguments)
    assert {row.algorithm for row in table} == {row.algorithm for row in ranked}
    case.assert_right(function(handle, **arguments, algorithm=table.best()))
    refuses(ARRAY, r"\b(x|w|dy)\b", lambda: function.find(handle, **specs))
    for chooses in ({"algorithm": table[0]}, {"interface": "graph"}, {"replay": True}):
        for ranking in (function.heuristic, function.find):
            (argument,) = chooses
            refuses(
                ARGUMENT,
                argument,
                lambda ranking=ranking, chooses=chooses: ranking(handle, **arguments, **chooses),
            )


@pytest.mark.parametrize("name", BACKWARD)
def test_a_backward_pass_with_weights_has_no_plan_of_its_own(handle: dnn.Handle, name: str) -> None:
    forward = name.partition("_backward")[0] + "_forward"
    method = "backward" + name.partition("_backward")[2]
    function = getattr(dnn, name)
    arguments = dict.fromkeys([*inspect.signature(function).parameters][1:])
    with dnn.trace() as trace:
        refuses(
            ARGUMENT,
            rf"{forward}\.plan\(.*training=True\).*{method}",
            lambda: function.plan(handle, **arguments),
        )
        refuses(ARGUMENT, rf"{forward}\.plan", lambda: function.problem(**arguments))
    assert not trace.calls


def test_a_plan_keeps_no_operand_and_its_error_tells_of_no_other(handle: dnn.Handle) -> None:
    x = handle.array(np.ones((1, 1, 4, 4), np.float32))
    reference = weakref.ref(x)
    gc.collect()
    gc.disable()
    try:
        plan = dnn.pooling_forward.plan(handle, x, dnn.PoolingSpec(2))
        plan.close()
        del plan, x
        assert reference() is None
    finally:
        gc.enable()
    x = handle.array(np.ones((1, 1, 4, 4), np.int32))
    with pytest.raises(dnn.CudnnliteError) as caught:
        dnn.pooling_forward.plan(handle, x, dnn.PoolingSpec(2))
    assert caught.value.__context__ is None


def test_a_plan_of_attention_derives_no_spec_again(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, operands, _, _ = planned(handle, "attention")
    with function.plan(handle, *operands) as plan:
        plan(*operands[1:])
        made_by = spec_makers(monkeypatch)
        plan(*operands[1:])
    assert not [module for module in made_by if module.startswith(OURS)]  # the emulation's are its


OURS = ("cudnnlite.operations", "cudnnlite.plans")


def spec_makers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each new `TensorSpec` adds the modules that are at work."""
    make, modules = dnn.TensorSpec.__init__, []

    def spy(spec: dnn.TensorSpec, *arguments: Any, **options: Any) -> None:
        frame = inspect.currentframe()
        names = []
        while frame is not None:
            names.append(frame.f_globals.get("__name__", ""))
            frame = frame.f_back
        if not any(name.startswith("cudnnlite.emulated") for name in names):
            modules.extend(names)
        make(spec, *arguments, **options)

    monkeypatch.setattr(dnn.TensorSpec, "__init__", spy)
    return modules


def test_a_plan_of_several_outputs_is_called_without_operands(handle: dnn.Handle) -> None:
    """It was a KeyError."""
    x, grid = (handle.zeros(shape) for shape in ((2, 3, 4, 4), (2, 4, 4, 2)))
    with (
        dnn.spatial_transformer_sample_backward.plan(handle, x, grid, x) as plan,
        pytest.raises(TypeError, match="takes x, grid, dy; 0 arrays were given"),
    ):
        plan()


def test_what_a_plan_is_called_with(handle: dnn.Handle) -> None:
    """Operands in order or by name; what is missing, unknown or given twice is named."""
    y, dy, x = (handle.array(np.ones((2, 1, 4), np.float32)) for _ in range(3))
    with dnn.pooling_backward.plan(handle, y, dy, x, dnn.PoolingSpec(1)) as plan:
        expected = plan(y, dy, x).numpy()
        for result in (plan(y=y, dy=dy, x=x), plan(y, x=x, dy=dy), plan(x=x, dy=dy, y=y)):
            np.testing.assert_array_equal(result.numpy(), expected)
        for match, call in (
            ("missing x", lambda: plan(y, dy=dy)),
            ("takes y, dy, x; 0 arrays were given", plan),
            ("takes y, dy, x; 2 arrays were given", lambda: plan(y, dy)),
            ("takes y, dy, x; 4 arrays were given", lambda: plan(y, dy, x, x)),
            ("unexpected keyword argument 'w'", lambda: plan(y, dy, x=x, w=x)),
            ("multiple values for argument 'y'", lambda: plan(y, dy, x=x, y=y)),
            ("no reserve space", lambda: plan(y, dy, x, reserve=x)),
        ):
            with pytest.raises(TypeError, match=match):
                call()


# ---------------------------------------------------------------- the order of operands


def equal_shapes(
    handle: dnn.Handle,
) -> dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]]:
    """Return calls with operands of equal shape.

    Each is (function, operands by argument, other arguments).
    """
    rng = np.random.default_rng(0)

    def image() -> dnn.DeviceArray:
        return handle.array(rng.uniform(0.5, 2, (3, 4, 4, 4)).astype(np.float32), layout="NHWC")

    def each() -> dnn.DeviceArray:
        return handle.array(rng.uniform(0.5, 2, (1, 4, 1, 1)).astype(np.float32), layout="NHWC")

    def cube() -> dnn.DeviceArray:
        return handle.array(rng.standard_normal((3, 3, 3, 3)).astype(np.float32))

    padded = {"conv": dnn.ConvolutionSpec(padding=1, math_type="fma")}
    relu, norm = {"activation": "relu"}, {"norm": dnn.LRNSpec(3)}
    statistics = {name: each() for name in ("scale", "saved_mean", "saved_inv_variance")}
    x, scale, bias = image(), each(), each()
    running = {"running_mean": each(), "running_var": each()}
    y, mean, inverse, reserve = dnn.batch_normalization_training(
        handle, x, scale, bias, activation="relu", **running
    )
    saved = {"saved_mean": mean, "saved_inv_variance": inverse}
    fused = {"x": x, "dy": image(), "scale": scale, **saved, "y": y, "bias": bias}
    normalised = {"x": image(), "scale": each(), "bias": each(), **running}
    state = dnn.DropoutState(handle, seed=3)
    _, masks = dnn.dropout_forward(handle, x, 0.5, dropout_state=state)
    return {
        "activation_backward": (
            dnn.activation_backward,
            {"y": image(), "dy": image(), "x": image()},
            {"activation": "swish"},
        ),
        "softmax_backward": (dnn.softmax_backward, {"y": image(), "dy": image()}, {}),
        "lrn_backward": (dnn.lrn_backward, {"y": image(), "dy": image(), "x": image()}, norm),
        "divisive": (dnn.divisive_normalization_backward, {"x": image(), "dy": image()}, norm),
        "pooling_backward": (
            dnn.pooling_backward,
            {"y": image(), "dy": image(), "x": image()},
            {"pooling": dnn.PoolingSpec(1)},
        ),
        "op_tensor": (dnn.op_tensor, {"a": image(), "b": image()}, {"op": "add", "alpha2": -3.0}),
        "convolution_forward": (dnn.convolution_forward, {"x": cube(), "w": cube()}, padded),
        "convolution_transpose": (dnn.convolution_transpose, {"x": cube(), "w": cube()}, padded),
        "convolution_backward_data": (
            dnn.convolution_backward_data,
            {"w": cube(), "dy": cube()},
            padded,
        ),
        "convolution_backward_filter": (
            dnn.convolution_backward_filter,
            {"x": cube(), "dy": cube()},
            padded | {"w": (3, 3, 3, 3)},
        ),
        "fused": (
            dnn.convolution_bias_activation_forward,
            {
                "x": cube(),
                "w": cube(),
                "bias": handle.array(np.ones((1, 3, 1, 1), np.float32)),
                "z": cube(),
            },
            padded | relu,
        ),
        "inference": (
            dnn.batch_normalization_inference,
            {"x": image(), **{name: each() for name in ("scale", "bias", "mean", "variance")}},
            {},
        ),
        "add_tensor": (dnn.add_tensor, {"a": image(), "c": image()}, {"beta": 0.5}),
        "scale_tensor": (dnn.scale_tensor, {"y": image()}, {"alpha": 3.0}),
        "set_tensor": (dnn.set_tensor, {"y": image()}, {"value": 3.0}),
        "dropout_backward": (
            dnn.dropout_backward,
            {"dy": image(), "reserve": masks},
            {"dropout": 0.5, "dropout_state": state},
        ),
        "training": (dnn.batch_normalization_training, normalised, {}),
        "training_relu": (dnn.batch_normalization_training, normalised, relu),
        "training_add_relu": (
            dnn.batch_normalization_training,
            {**normalised, "z": image()},
            relu,
        ),
        "backward": (dnn.batch_normalization_backward, {"x": x, "dy": image(), **statistics}, {}),
        "backward_relu": (dnn.batch_normalization_backward, fused, relu | {"reserve": reserve}),
    }


ORDERED = (
    "activation_backward",
    "softmax_backward",
    "lrn_backward",
    "divisive",
    "pooling_backward",
    "op_tensor",
    "add_tensor",
    "scale_tensor",
    "set_tensor",
    "dropout_backward",
    "convolution_forward",
    "convolution_transpose",
    "convolution_backward_data",
    "convolution_backward_filter",
    "fused",
    "inference",
    "training",
    "training_relu",
    "training_add_relu",
    "backward",
    "backward_relu",
)


def _gradients_of_reserve(
    handle: dnn.Handle,
    operands: Mapping[str, dnn.DeviceArray],
    y: dnn.DeviceArray,
    mean: dnn.DeviceArray,
    inverse: dnn.DeviceArray,
    reserve: dnn.DeviceArray,
) -> tuple[dnn.DeviceArray, ...]:
    """Return the gradients that the reserve space of a training call leads to."""
    return dnn.batch_normalization_backward(
        handle,
        operands["x"],
        operands["x"],
        operands["scale"],
        mean,
        inverse,
        activation="relu",
        y=y,
        bias=operands["bias"],
        reserve=reserve,
        added="z" in operands,
    )


@pytest.mark.parametrize("name", ORDERED)
def test_a_plan_takes_operands_in_the_order_of_the_arguments(handle: dnn.Handle, name: str) -> None:
    function, operands, options = equal_shapes(handle)[name]
    assert sorted(operands, key=[*inspect.signature(function).parameters].index) == [*operands]
    before = {name: array.numpy() for name, array in operands.items()}

    def results(call: Callable[[], Any]) -> list[Any]:
        """Return what a call returns and what it leaves in its operands, which are as before it.

        Of a reserve space, only what a backward call makes of it is defined: two calls on an H200
        left different bytes.
        """
        for operand, values in before.items():
            operands[operand].copy_from(values)
        returned = call()
        outputs = returned if isinstance(returned, tuple) else (returned,)
        if function is dnn.batch_normalization_training and "activation" in options:
            *outputs, reserve = outputs
            outputs += _gradients_of_reserve(handle, operands, *outputs, reserve)
        return [array.numpy() for array in (*outputs, *operands.values())]

    expected = results(lambda: function(handle, **operands, **options))
    with function.plan(handle, **operands, **options) as plan:
        reserve = {"reserve": options["reserve"]} if "reserve" in options else {}
        ways = (
            lambda: plan(*operands.values(), **reserve),
            lambda: plan(**operands, **reserve),
        )
        for way in ways:
            for one, other in zip(expected, results(way), strict=True):
                np.testing.assert_array_equal(other, one)


def test_the_order_of_every_operation_with_several_operands_is_shown(handle: dnn.Handle) -> None:
    covered = {equal_shapes(handle)[name][0].__name__ for name in ORDERED}
    exceptions = {
        # One operand, or operands whose specs differ.
        *("pooling_forward", "softmax_forward", "activation_forward", "lrn_forward"),
        *("reduce_tensor", "transform_tensor", "transform_filter", "dropout_forward"),
        *("convolution_backward_bias", "divisive_normalization_forward", "im2col"),
        *("spatial_transformer_grid", "spatial_transformer_grid_backward"),
        *("spatial_transformer_sample", "spatial_transformer_sample_backward"),
        # Its plan takes weights, too.
        "rnn_forward",
    }
    operations = {
        name
        for name in dnn.__all__
        if isinstance(function := getattr(dnn, name), OperationFunction)
        and inspect.signature(function.problem).return_annotation == "Problem"
    }
    assert operations - covered - exceptions == set()


def test_every_operation_reads_in_the_order_of_its_function() -> None:
    """A plan takes operands in the declaration's order.

    `convolution_transpose` alone runs another function's operation.
    """
    functions = {
        name: function
        for name in dnn.__all__
        if isinstance(function := getattr(dnn, name), OperationFunction)
    }
    for operation in OPERATIONS.values():
        names = [
            name
            for name in functions
            if operation.name == name or operation.name.startswith(f"{name}_")
        ]
        if not names:
            continue  # a part of another operation
        parameters = [*inspect.signature(functions[max(names, key=len)]).parameters]
        places = [parameters.index(operand) for operand in operation.reads if operand in parameters]
        assert places == sorted(places), operation
