"""An invalid argument of a tuner is refused by name, before anything is written or measured."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers.refusals import ARGUMENT, ARRAY, refuses

import cudnnlite as dnn
from cudnnlite import convolution_forward, rnn_forward
from cudnnlite.autotune.cache import TuningCache
from cudnnlite.devices.device_choice import get_device
from cudnnlite.problems.problem import Problem

from .problems import PATTERN, fill, memory_of
from .problems import Problem as Case
from .test_plan import count_calls
from .test_rnn_plan import Network
from .test_tuner import RUNNING, W, X, Y, hurry, problem_of

SPEC = dnn.RNNSpec("lstm", 6, 8, math_type="fma")


class Bench:
    """A tuner, problems with operands that are theirs, and an output with a known pattern in it."""

    def __init__(self, handle: dnn.Handle) -> None:
        self.handle = handle
        self.tuner = dnn.Tuner(handle, ":memory:")
        self.case = Case(handle, X, W, padding=1, math_type="fma")
        self.problem = problem_of(self.case)
        self.adding = problem_of(self.case, beta=1.0)
        self.operands = {"x": self.case.x, "w": self.case.w}
        self.out = handle.empty(Y)
        fill(self.out, PATTERN)
        self.network = Network(handle)
        self.rnn = rnn_forward.problem(
            self.network.spec, None, dnn.RNNDataSpec(self.network.x.shape)
        )
        self.rnn_operands = {"x": self.network.x, "weights": self.network.weights}

    def tune(self, **changes: Any) -> Any:
        """Tune the convolution with some operands replaced; those that are None are left out."""
        operands = self.operands | changes
        return self.tuner.tune(
            self.problem, {name: array for name, array in operands.items() if array is not None}
        )

    def tune_rnn(self, **changes: Any) -> Any:
        """Do the same with the network."""
        operands = self.rnn_operands | changes
        return self.tuner.tune(
            self.rnn, {name: array for name, array in operands.items() if array is not None}
        )


@pytest.fixture
def bench(handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A bench that is compared before and after the test."""
    hurry(monkeypatch)
    bench = Bench(handle)
    operands = [bench.case.x, bench.case.w, bench.network.x, bench.network.weights.array]
    before = [memory_of(array) for array in operands]
    stream = handle.stream
    yield bench
    assert (memory_of(bench.out) == PATTERN).all(), "out was written"
    for array, values in zip(operands, before, strict=True):
        np.testing.assert_array_equal(memory_of(array), values)
    assert handle.stream is stream
    assert handle.chooser is None
    assert bench.tuner.measured == 0
    assert bench.tuner.tune(bench.problem)[0].ok, "the tuner works on"
    vars(bench).clear()  # pytest keeps the bench for longer than the handle's fixture allows
    operands.clear()


# ---------------------------------------------------------------- making one

MAKING: dict[str, tuple[Callable[[dnn.Handle], Any], str]] = {
    "handle_none": (lambda handle: dnn.Tuner(None), "handle=None is not a Handle; it comes first"),
    "handle_text": (lambda handle: dnn.Tuner("cuda"), "handle='cuda' is not a Handle"),
    "handle_device": (lambda handle: dnn.Tuner(handle.device), "handle=<.*> is not a Handle"),
    "order": (
        lambda handle: dnn.Tuner(dnn.TuningPolicy(), handle),
        "handle=TuningPolicy.* is not a Handle",
    ),
    "cache_number": (lambda handle: dnn.Tuner(handle, 3), "3"),
    "cache_bytes": (lambda handle: dnn.Tuner(handle, b"tuning"), "tuning"),
    "cache_policy": (lambda handle: dnn.Tuner(handle, dnn.TuningPolicy()), "TuningPolicy"),
    "policy_text": (
        lambda handle: dnn.Tuner(handle, ":memory:", "latency"),
        "policy='latency' is not a TuningPolicy",
    ),
    "policy_dict": (
        lambda handle: dnn.Tuner(handle, ":memory:", {"deterministic": True}),
        "policy=.* is not a TuningPolicy",
    ),
    "policy_class": (
        lambda handle: dnn.Tuner(handle, ":memory:", dnn.TuningPolicy),
        "policy=.* is not a TuningPolicy",
    ),
}


@pytest.mark.parametrize("name", MAKING)
@pytest.mark.parametrize("way", ["Tuner", "autotuned"])
def test_a_tuner_of_what(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, name: str, way: str
) -> None:
    make, message = MAKING[name]
    if way == "autotuned":

        def block(handle: Any, cache: Any = None, policy: Any = None) -> None:
            with dnn.autotuned(handle, cache=cache, policy=policy):
                pytest.fail("the block was entered")

        monkeypatch.setattr(dnn, "Tuner", block)
    refuses(dnn.ArgumentError, message, lambda: make(handle))
    assert handle.chooser is None


@pytest.mark.parametrize(
    "way", [dnn.Tuner, lambda handle: dnn.autotuned(handle).__enter__()], ids=["Tuner", "autotuned"]
)
def test_a_handle_that_was_closed(device: Any, way: Any) -> None:
    handle = dnn.Handle(device)
    handle.close()
    refuses(dnn.ClosedError, "this Handle was closed", lambda: way(handle))


@pytest.mark.parametrize("remembered", [False, True])
def test_a_handle_that_was_closed_later(
    device: Any, monkeypatch: pytest.MonkeyPatch, remembered: bool
) -> None:
    hurry(monkeypatch)
    problem = convolution_forward.problem(dnn.TensorSpec(X), dnn.FilterSpec(W))
    with dnn.Handle(device) as handle:
        tuner = dnn.Tuner(handle, ":memory:")
        if remembered:
            tuner.tune(problem)
    for call in (lambda: tuner.tune(problem), lambda: tuner.choose(problem)):
        refuses(dnn.ClosedError, "this Handle was closed", call)


def test_another_thread(bench: Bench) -> None:
    outcomes: list[Any] = []

    def work() -> None:
        calls = (
            lambda: dnn.Tuner(bench.handle),
            lambda: bench.tuner.tune(bench.problem),
            lambda: bench.tuner.choose(bench.problem),
            lambda: bench.tune(),
            lambda: bench.tune_rnn(),
        )
        for call in calls:
            try:
                outcomes.append(call())
            except dnn.ThreadError as error:
                outcomes.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(outcomes) == 5
    assert all(isinstance(message, str) and "is used on" in message for message in outcomes)


def test_a_cache_that_was_closed(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a GPU's times would be looked up."""
    hurry(monkeypatch)
    cache = TuningCache(":memory:")
    cache.close()
    monkeypatch.setattr(type(device), "kind", "cuda")
    with dnn.Handle(device) as handle:
        tuner = dnn.Tuner(handle, cache)
        problem = convolution_forward.problem(dnn.TensorSpec(X), dnn.FilterSpec(W))
        for call in (
            lambda: tuner.tune(problem),
            lambda: tuner.choose(problem),
            lambda: tuner.is_remembered(problem),
        ):
            refuses(dnn.ClosedError, "the tuning cache :memory: is closed", call)


# ---------------------------------------------------------------- problems

PROBLEMS: dict[str, Any] = {
    "none": None,
    "text": "convolution_forward",
    "spec": dnn.TensorSpec(X),
    "convolution": dnn.ConvolutionSpec(),
    "network": SPEC,
    "plain": convolution_forward.problem(dnn.TensorSpec(X), dnn.FilterSpec(W)).to_plain(),
    "class": Problem,
    "list": [convolution_forward.problem(dnn.TensorSpec(X), dnn.FilterSpec(W))],
}


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("method", ["tune", "choose", "is_remembered"])
def test_what_is_no_problem(bench: Bench, method: str, name: str) -> None:
    message = r"problem=.* cannot be tuned; allowed: convolution_forward, .*rnn_forward"
    refuses(dnn.ArgumentError, message, lambda: getattr(bench.tuner, method)(PROBLEMS[name]))


def test_a_plan_is_no_problem_but_has_one(bench: Bench) -> None:
    handle = bench.tuner.handle
    with dnn.convolution_forward.plan(handle, dnn.TensorSpec(X), dnn.FilterSpec(W)) as plan:
        refuses(
            dnn.ArgumentError,
            r"cannot be tuned; plan\.problem can; allowed",
            lambda: bench.tuner.tune(plan),
        )
    a = handle.full((1, 16, 16), 1, "float16")
    with dnn.matmul.plan(handle, a, a) as plan:
        refuses(
            dnn.ArgumentError,
            r"cannot be tuned; plan\.graph can; allowed",
            lambda: bench.tuner.tune(plan),
        )


@pytest.mark.parametrize("method", ["tune", "choose"])
def test_an_empty_batch(bench: Bench, method: str) -> None:
    empty = convolution_forward.problem(dnn.TensorSpec((0, *X[1:])), dnn.FilterSpec(W))
    refuses(
        dnn.ArgumentError,
        r"x=TensorSpec\(\(0, .*is an empty batch",
        lambda: getattr(bench.tuner, method)(empty),
    )


ALIGNMENTS: dict[str, tuple[Any, str]] = {
    "three": ({"x": 3}, r"alignments\['x'\]=3; allowed: a power of two"),
    "zero": ({"w": 0}, r"alignments\['w'\]=0; allowed"),
    "negative": ({"x": -4}, r"alignments\['x'\]=-4; allowed"),
    "text": ({"x": "16"}, r"alignments\['x'\]='16'; allowed"),
    "not_whole": ({"x": 16.0}, r"alignments\['x'\]=16.0; allowed"),
    "beyond": ({"x": 1000}, r"alignments\['x'\]=1000; allowed"),
}


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_alignments_that_are_none(bench: Bench, name: str) -> None:
    alignments, message = ALIGNMENTS[name]
    refuses(dnn.ArgumentError, message, lambda: bench.tuner.choose(bench.problem, alignments))


@pytest.mark.parametrize("limit", [-1, "much", 1.5, True], ids=repr)
def test_limits_that_are_none(bench: Bench, limit: Any) -> None:
    refuses(
        dnn.ArgumentError, "workspace_limit", lambda: bench.tuner.choose(bench.problem, None, limit)
    )


# ---------------------------------------------------------------- operands

OPERANDS: dict[str, tuple[Any, Any, str]] = {
    "a_list": (
        lambda b: b.tuner.tune(b.problem, ["x", "w"]),
        ARGUMENT,
        "operands=.* is not a mapping",
    ),
    "a_number": (lambda b: b.tuner.tune(b.problem, 5), ARGUMENT, "operands=5 is not a mapping"),
    "an_array": (
        lambda b: b.tuner.tune(b.problem, b.case.x),
        ARGUMENT,
        "operands=.* is not a mapping",
    ),
    "nothing": (
        lambda b: b.tuner.tune(b.problem, {}),
        ARGUMENT,
        r"operands=\[\]; needed: \['w', 'x'\]",
    ),
    "x_missing": (lambda b: b.tune(x=None), ARGUMENT, r"operands=\['w'\]; needed: \['w', 'x'\]"),
    "w_missing": (lambda b: b.tune(w=None), ARGUMENT, r"operands=\['x'\]; needed: \['w', 'x'\]"),
    "out_missing": (
        lambda b: b.tuner.tune(b.adding, b.operands),
        ARGUMENT,
        r"needed: \['out', 'w', 'x'\]",
    ),
    "misspelled": (lambda b: b.tune(y=b.out), ARGUMENT, r"operands=\['w', 'x', 'y'\]; needed"),
    "of_an_rnn": (
        lambda b: b.tuner.tune(b.problem, b.rnn_operands),
        ARGUMENT,
        r"operands=\['weights', 'x'\]",
    ),
    "odd_names": (
        lambda b: b.tuner.tune(b.problem, {1: b.case.x, "w": b.case.w}),
        ARGUMENT,
        r"operands=\['1', 'w'\]",
    ),
    "host": (lambda b: b.tune(x=b.case.x_host), ARRAY, "x is a host array"),
    "host_w": (lambda b: b.tune(w=b.case.w_host.tolist()), ARRAY, "w is a host array"),
    "no_array": (lambda b: b.tune(x="x"), ARRAY, "x of type str is no array"),
    "a_spec": (lambda b: b.tune(x=b.case.x.spec), ARRAY, "x of type TensorSpec is no array"),
    "x_shape": (
        lambda b: b.tune(x=b.handle.empty((1, *X[1:]))),
        ARGUMENT,
        r"x is TensorSpec\(\(1, .*the problem has",
    ),
    "x_dtype": (
        lambda b: b.tune(x=b.handle.empty(X, "float16")),
        ARGUMENT,
        "x is TensorSpec.*float16.*the problem has",
    ),
    "x_layout": (
        lambda b: b.tune(x=b.handle.empty(X, None, "NHWC")),
        ARGUMENT,
        "x is TensorSpec.*NHWC.*the problem has",
    ),
    "w_shape": (
        lambda b: b.tune(w=b.handle.empty((5, *W[1:]))),
        ARGUMENT,
        r"w is TensorSpec\(\(5, .*the problem has",
    ),
    "w_dtype": (
        lambda b: b.tune(w=b.handle.empty(W, "float64")),
        ARGUMENT,
        "w is TensorSpec.*float64.*the problem has",
    ),
    "w_layout": (
        lambda b: b.tune(w=b.handle.empty(W, None, "NHWC")),
        ARGUMENT,
        "w is TensorSpec.*NHWC.*the problem has",
    ),
    "w_rank": (
        lambda b: b.tune(w=b.handle.empty((6, 4))),
        ARGUMENT,
        "w has rank 2; needed: 3 to 5",
    ),
    "swapped": (lambda b: b.tune(x=b.case.w, w=b.case.x), ARGUMENT, "the problem has"),
    "out_shape": (
        lambda b: b.tune(out=b.handle.empty((2, 6, 9, 7))),
        ARGUMENT,
        r"out is TensorSpec\(.*the problem has",
    ),
    "out_strides": (
        lambda b: b.tune(out=b.handle.empty(dnn.TensorSpec(Y, layout="NHWC"))),
        ARGUMENT,
        "out is TensorSpec.*NHWC",
    ),
    "closed": (lambda b: b.tune(x=closed(b)), dnn.ClosedError, "this DeviceArray was closed"),
    "rnn_x_missing": (
        lambda b: b.tune_rnn(x=None),
        ARGUMENT,
        r"operands=\['weights'\]; needed: \['weights', 'x'\]",
    ),
    "rnn_weights_missing": (
        lambda b: b.tune_rnn(weights=None),
        ARGUMENT,
        r"operands=\['x'\]; needed",
    ),
    "rnn_y": (lambda b: b.tune_rnn(y=b.out), ARGUMENT, r"operands=\['weights', 'x', 'y'\]; needed"),
    "rnn_odd_names": (
        lambda b: b.tuner.tune(b.rnn, {"x": b.network.x, 2: 3}),
        ARGUMENT,
        r"operands=\['2', 'x'\]",
    ),
    "rnn_host": (lambda b: b.tune_rnn(x=b.network.x_host), ARRAY, "x is a host array"),
    "rnn_x_shape": (
        lambda b: b.tune_rnn(x=b.handle.empty((4, 4, 6))),
        ARGUMENT,
        r"x is TensorSpec\(\(4, .*the problem has",
    ),
    "rnn_x_dtype": (
        lambda b: b.tune_rnn(x=b.handle.empty((5, 4, 6), "float64")),
        ARGUMENT,
        "x is TensorSpec.*float64",
    ),
    "rnn_weights_array": (
        lambda b: b.tune_rnn(weights=b.network.weights.array),
        ARGUMENT,
        "weights of type DeviceArray",
    ),
    "rnn_weights_dict": (
        lambda b: b.tune_rnn(weights=b.network.values),
        ARGUMENT,
        "weights of type dict",
    ),
    "rnn_other_weights": (
        lambda b: b.tune_rnn(weights=dnn.RNNWeights(b.handle, dnn.RNNSpec("gru", 6, 8))),
        ARGUMENT,
        "weights are for",
    ),
    "rnn_hx_shape": (
        lambda b: b.tune_rnn(hx=b.handle.empty((1, 4, 9))),
        ARGUMENT,
        r"hx is TensorSpec\(\(1, 4, 9\)",
    ),
    "rnn_hx_host": (lambda b: b.tune_rnn(hx=b.network.hx_host), ARRAY, "hx is a host array"),
    "rnn_cx_shape": (
        lambda b: b.tune_rnn(cx=b.handle.empty((2, 4, 8))),
        ARGUMENT,
        r"cx is TensorSpec\(\(2, 4, 8\)",
    ),
}


def closed(bench: Bench) -> dnn.DeviceArray:
    array = bench.handle.array(bench.case.x_host)
    array.close()
    return array


@pytest.mark.parametrize("name", OPERANDS)
def test_operands_that_are_not_the_problems(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    call, error, message = OPERANDS[name]
    calls = count_calls(monkeypatch, bench.handle.api, *RUNNING)
    refuses(error, message, lambda: call(bench))
    assert calls == []
    assert not bench.tuner.is_remembered(bench.problem)


def test_cx_of_a_network_without_one(handle: dnn.Handle) -> None:
    network = Network(handle, "gru")
    problem = rnn_forward.problem(network.spec, None, dnn.RNNDataSpec(network.x.shape))
    operands = {"x": network.x, "weights": network.weights, "cx": network.hx}
    refuses(
        dnn.ArgumentError,
        "cx is given to a GRU",
        lambda: dnn.Tuner(handle, ":memory:").tune(problem, operands),
    )


@pytest.mark.parametrize("operand", ["x", "w", "out"])
def test_operands_on_another_device(bench: Bench, operand: str) -> None:
    shapes = {"x": X, "w": W, "out": Y}
    with dnn.Handle(get_device("emulated:44")) as other:
        array = other.empty(shapes[operand])
        refuses(
            dnn.ArrayTypeError,
            f"{operand} is on <emulated:44>, the handle on",
            lambda: bench.tune(**{operand: array}),
        )


def test_weights_on_another_device(bench: Bench) -> None:
    with dnn.Handle(get_device("emulated:44")) as other:
        weights = dnn.RNNWeights(other, bench.network.spec)
        refuses(
            dnn.ArrayTypeError,
            "weights is on <emulated:44>",
            lambda: bench.tune_rnn(weights=weights),
        )
        x = other.empty((5, 4, 6))
        refuses(dnn.ArrayTypeError, "x is on <emulated:44>", lambda: bench.tune_rnn(x=x))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("operand", ["x", "weights", "hx", "cx"])
def test_values_of_an_rnn_that_are_not_finite(bench: Bench, operand: str, value: float) -> None:
    """Such operands allow no check, and no algorithm is at fault.

    test_tuner has the same test of a convolution.
    """
    network = bench.network
    hosts = {"x": network.x_host, "hx": network.hx_host, "cx": network.cx_host}
    if operand == "weights":
        values = {name: array.copy() for name, array in network.values.items()}
        next(iter(values.values()))[...] = value
        changed: Any = dnn.RNNWeights.from_arrays(bench.handle, network.spec, values)
    else:
        host = hosts[operand].copy()
        host[0] = value
        changed = bench.handle.array(host)
    with np.errstate(all="ignore"):
        refuses(
            dnn.ArgumentError,
            "hold values that are not finite",
            lambda: bench.tune_rnn(**{operand: changed}),
        )


@pytest.mark.parametrize(("length", "value"), [(5, 1.0), (3, np.nan)])
def test_what_lies_beyond_a_sequences_end_is_not_looked_at(
    bench: Bench, length: int, value: float
) -> None:
    network = bench.network
    host = network.x_host.copy()
    host[length:] = value
    x = bench.handle.array(host)
    problem = rnn_forward.problem(network.spec, None, dnn.RNNDataSpec(x.shape, (length,) * 4))
    assert dnn.Tuner(bench.handle, ":memory:").tune(problem, bench.rnn_operands | {"x": x})[0].ok
