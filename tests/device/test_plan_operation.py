"""`plan_operation`: the plan of any operation's call; in a CUDA graph, beside the call itself, and with what does not fit."""

from __future__ import annotations

import gc
import inspect
import re
import weakref
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from cudnnlite.operations.planning import _OTHERS

import cudnnlite as dnn
from cudnnlite.problems.catalogue import OPERATIONS

from .test_bad_input import ARGUMENT, ARRAY, refuses


class Planned(NamedTuple):
    """An operation, what it is called with, and how many of that its plan is."""

    function: Callable[..., Any]
    given: tuple[Any, ...]
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
    function, given, count, options = planned(handle, name)
    arrays = given[1 : 1 + count] if name == "attention" else given[:count]
    before = len(handle.plans)
    with function.plan(handle, *given, **options) as plan:
        assert len(handle.plans) == before  # nothing was kept, and nothing ran
        out = function(handle, *given, **options)
        expected = out.numpy()
        if name != "reduce":  # which takes a shape from what it writes
            np.testing.assert_array_equal(plan(*arrays).numpy(), expected)
        out.device.fill(out.ptr, out.nbytes, 0xFF, out.stream)
        assert plan(*arrays, out=out) is out
        np.testing.assert_array_equal(out.numpy(), expected)
    with pytest.raises(dnn.ClosedError):
        plan(*arrays)


def test_dropout(handle: dnn.Handle) -> None:
    """The states are advanced by each call and each launch, and are kept for as long as a graph needs them."""
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
            with pytest.raises(dnn.ClosedError, match="closed"):
                plan(x)


@pytest.mark.parametrize(
    "name",
    [
        "capture",
        "convolution_forward.find",
        "convolution_forward.plan",
        "convolution_forward.heuristic",
        "fold_batch_normalization",
        "multi_head_attention_backward_data",
        "rnn_backward_weights",
        "plan_rnn",
        "pack_sequences",
    ],
)
def test_what_runs_no_plan_of_its_own_is_refused_unrun(handle: dnn.Handle, name: str) -> None:
    x = handle.array(np.ones((1, 1, 4, 4), np.float32))
    with (
        dnn.trace() as trace,
        pytest.raises(dnn.ArgumentError, match=f"^operation=.*{name}.*; needed: a function"),
    ):
        getattr(dnn, name).plan(handle, x, x, dnn.ConvolutionSpec())
    assert not trace.calls


def test_every_other_operation_has_a_plan() -> None:
    public = {
        n
        for n in dir(dnn)
        if inspect.isfunction(f := getattr(dnn, n)) and ".operations." in f.__module__
    }
    verbs = r"(plan|find|get|record|pack|fold)_|capture$|(multi_head_attention|rnn)_backward"
    assert {name for name in public if not re.match(verbs, name)} == public & {
        *OPERATIONS,
        *_OTHERS,
    }


def test_a_plan_keeps_no_operand_and_its_error_tells_of_no_other(handle: dnn.Handle) -> None:
    x = handle.array(np.ones((1, 1, 4, 4), np.float32))
    known = weakref.ref(x)
    gc.collect()
    gc.disable()
    try:
        plan = dnn.pooling_forward.plan(handle, x, dnn.PoolingSpec(2))
        plan.close()
        del plan, x
        assert known() is None
    finally:
        gc.enable()
    x = handle.array(np.ones((1, 1, 4, 4), np.int32))
    with pytest.raises(dnn.CudnnliteError) as caught:
        dnn.pooling_forward.plan(handle, x, dnn.PoolingSpec(2))
    assert caught.value.__context__ is None


def test_a_plan_of_attention_derives_no_spec_again(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, given, _, _ = planned(handle, "attention")
    with function.plan(handle, *given) as plan:
        monkeypatch.setattr("cudnnlite.operations.attention.plan.TensorSpec", None)
        plan(*given[1:])


def test_what_a_plan_refuses(handle: dnn.Handle) -> None:
    x, pooling = handle.array(np.ones((2, 1, 4), np.float32)), dnn.PoolingSpec(2)
    for wrong in (3, None, np.add, dnn.Handle, handle.array, "pooling_forward"):
        refuses(ARGUMENT, "operation=", lambda wrong=wrong: wrong.plan(handle, x))
    for way, of in product(("data", "weights"), ("rnn", "multi_head_attention")):
        told = f"pooling_forward, or that of {of}_forward with training=True, whose plan has a backward_{way}$"
        function = getattr(dnn, f"{of}_backward_{way}")
        refuses(ARGUMENT, told, lambda function=function: function.plan(handle))
    for wrong in (dnn.convolution_backward_data.find, dnn.plan_rnn, 3):
        refuses(
            ARGUMENT,
            "such as dnn.pooling_forward$",
            lambda wrong=wrong: wrong.plan(handle),
        )
    refuses(
        ARGUMENT,
        "operation=pooling_forward: missing",
        lambda: dnn.pooling_forward.plan(handle, x),
    )
    for wrong, hint in (
        ("alhpa", r"'alhpa'; did you mean alpha\?$"),
        ("window", r"'window'; it is a field of pooling: "),
    ):
        refuses(
            ARGUMENT,
            hint,
            lambda wrong=wrong: dnn.pooling_forward.plan(handle, x, **{wrong: 2}),
        )
    refuses(ARRAY, r"\bx\b", lambda: dnn.pooling_forward.plan(handle, [1.0], pooling))
    refuses(ARGUMENT, "pooling=", lambda: dnn.pooling_forward.plan(handle, x, 2))
    assert type(handle.plans).__name__ == "PlanCache"
    attention, other = dnn.AttentionSpec(1, 4), handle.array(np.ones((2, 2, 4), np.float32))
    weights = dnn.AttentionWeights(handle, attention)
    with dnn.multi_head_attention_forward.plan(handle, attention, weights, x, x, x) as plan:
        refuses(ARGUMENT, "q is", lambda: plan(weights, other, x, x))
        refuses(ARGUMENT, "v is", lambda: plan(weights, x, x, other))
        refuses(ARRAY, r"\bq\b", lambda: plan(weights, None, x, x))
    with dnn.ctc_loss.plan(handle, x, [1], [1], [2]) as plan:
        refuses(ARGUMENT, "x is", lambda: plan(other, [1], [1], [2]))


# ---------------------------------------------------------------- the order of operands


def equal_shapes(
    handle: dnn.Handle,
) -> dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]]:
    """Return calls whose operands could be swapped unnoticed: function, operands by argument, and other arguments."""
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
    "convolution_forward",
    "convolution_transpose",
    "convolution_backward_data",
    "convolution_backward_filter",
    "fused",
    "inference",
    "backward",
    "backward_relu",
)


@pytest.mark.parametrize("name", ORDERED)
def test_a_plan_takes_operands_in_the_order_of_the_arguments(handle: dnn.Handle, name: str) -> None:
    function, operands, options = equal_shapes(handle)[name]
    assert sorted(operands, key=[*inspect.signature(function).parameters].index) == [*operands]
    expected = function(handle, **operands, **options)
    with function.plan(handle, **operands, **options) as plan:
        reserve = {"reserve": options["reserve"]} if "reserve" in options else {}
        found = plan(*operands.values(), **reserve)
    pairs = (
        zip(expected, found, strict=True) if isinstance(expected, tuple) else [(expected, found)]
    )
    for one, other in pairs:
        np.testing.assert_array_equal(other.numpy(), one.numpy())


def test_every_operation_reads_in_the_order_of_its_function() -> None:
    """A declaration's order is what a plan takes; `convolution_transpose` alone runs another function's operation."""
    functions = {
        name: getattr(dnn, name) for name in dnn.__all__ if inspect.isfunction(getattr(dnn, name))
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
