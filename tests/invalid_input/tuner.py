"""Invalid arguments of tuners, their caches, problems and models."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from device.problems import PATTERN, Problem, fill
from device.test_rnn_plan import Network
from device.test_tuner import QUICK, W, X, Y, problem_of

import cudnnlite as dnn
from cudnnlite.devices.device_choice import get_device

from . import case
from .case import ARRAY, Case


class Bench(case.Bench):
    """A tuner, problems with operands that are theirs, and an output with a known pattern in it."""

    def __init__(self, handle: dnn.Handle) -> None:
        super().__init__(handle)
        self.stream = handle.stream
        self.tuner = dnn.Tuner(handle, ":memory:")
        self.tuner.timing = QUICK
        self.case = Problem(handle, X, W, padding=1, math_type="fma")
        self.problem = problem_of(self.case)
        self.adding = problem_of(self.case, beta=1.0)
        self.operands = {"x": self.case.x, "w": self.case.w}
        self.out = handle.empty(Y)
        fill(self.out, PATTERN)
        self.network = Network(handle)
        self.rnn = self.problem_of(self.network)
        self.rnn_operands = {"x": self.network.x, "weights": self.network.weights}
        self.watch(
            x=self.case.x,
            w=self.case.w,
            out=self.out,
            rnn_x=self.network.x,
            weights=self.network.weights.array,
        )

    def problem_of(self, network: Network) -> dnn.types.Problem:
        """Return the problem of a network."""
        data = dnn.specs.RNNDataSpec(network.x.shape)
        return dnn.rnn_forward.problem(network.spec, None, data)

    def tune(self, **changes: Any) -> Any:
        """Tune the convolution with some operands replaced; those that are None are left out."""
        return self.tuner.tune(self.problem, changed(self.operands, changes))

    def tune_rnn(self, **changes: Any) -> Any:
        """Do the same with the network."""
        return self.tuner.tune(self.rnn, changed(self.rnn_operands, changes))

    def tune_gru(self) -> Any:
        """Tune a network without a cell state, and give it one."""
        network = Network(self.handle, "gru")
        operands = {"x": network.x, "weights": network.weights, "cx": network.hx}
        return self.tuner.tune(self.problem_of(network), operands)

    def tune_plan(self) -> Any:
        """Tune a plan instead of its problem."""
        with dnn.convolution_forward.plan(self.handle, self.case.x, self.case.w) as plan:
            return self.tuner.tune(plan)

    def tune_graph_plan(self) -> Any:
        """Tune a plan instead of its graph."""
        a = dnn.TensorSpec((1, 16, 16), "float16")
        with dnn.matmul.plan(self.handle, a, a) as plan:
            return self.tuner.tune(plan)

    def assert_works(self) -> None:
        assert self.handle.stream is self.stream
        assert self.handle._chooser is None
        assert self.tuner.measured == 0
        assert not self.tuner.is_remembered(self.problem)
        assert self.tuner.tune(self.problem)[0].ok


def changed(operands: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return operands with some replaced, and some left out."""
    return {name: array for name, array in (operands | changes).items() if array is not None}


def elsewhere(call: Callable[[dnn.Handle], Any]) -> Any:
    """Make a call with a handle on another device."""
    with dnn.Handle(get_device("emulated:44")) as other:
        return call(other)


def enter(*arguments: Any, **options: Any) -> Any:
    """Enter a block in which a tuner chooses."""
    with dnn.autotuned(*arguments, **options):
        raise AssertionError("the block was entered")


def closed(array: dnn.DeviceArray) -> dnn.DeviceArray:
    array.close()
    return array


def with_value(array: np.ndarray[Any, Any], value: float) -> np.ndarray[Any, Any]:
    """Return an array whose first values are replaced."""
    array = array.copy()
    array[0] = value
    return array


def weights_with(network: Network, value: float) -> dnn.RNNWeights:
    """Return a network's weights with one replaced."""
    values = {name: array.copy() for name, array in network.values.items()}
    next(iter(values.values()))[...] = value
    return dnn.RNNWeights.from_arrays(network.handle, network.spec, values)


CANNOT_BE_TUNED = r"problem=.* cannot be tuned; allowed: convolution_forward, .*rnn_forward"
NOT_FINITE = "hold values that are not finite"
MAKING_CASES: dict[str, Case] = {
    "no handle": Case(lambda _: dnn.Tuner(None), "handle=None is not a Handle; it comes first"),
    "no handle of a block": Case(lambda _: enter("cuda"), "handle='cuda' is not a Handle"),
    "a number as a cache": Case(lambda b: dnn.Tuner(b.handle, 3), "3"),
    "bytes as a cache of a block": Case(lambda b: enter(b.handle, cache=b"tuning"), "tuning"),
    "a policy as a cache": Case(lambda b: dnn.Tuner(b.handle, dnn.TuningPolicy()), "TuningPolicy"),
    "a text as a policy": Case(
        lambda b: dnn.Tuner(b.handle, ":memory:", "latency"),
        "policy='latency' is not a TuningPolicy",
    ),
    "a class as a policy of a block": Case(
        lambda b: enter(b.handle, policy=dnn.TuningPolicy), "policy=.* is not a TuningPolicy"
    ),
    "max_error": Case(lambda _: dnn.TuningPolicy(max_error=10**400), r"^max_error="),
    "bool as a limit": Case(
        lambda _: dnn.TuningPolicy(workspace_limit=True), r"^workspace_limit=True is not a size"
    ),
    "endless layouts": Case(lambda _: dnn.TuningPolicy(layouts=itertools.count()), r"^layouts="),
    "the home of nobody": Case(lambda _: dnn.TuningCache("~nouser/x"), r"^path='~nouser/x'"),
    "too long a name": Case(lambda _: dnn.TuningCache("x" * 5000).merge("y" * 5000), r"^path='x+"),
}
PROBLEM_CASES: dict[str, Case] = {
    "none": Case(lambda b: b.tuner.tune(None), CANNOT_BE_TUNED),
    "a list": Case(lambda b: b.tuner.tune([b.problem]), CANNOT_BE_TUNED),
    "plain data": Case(lambda b: b.tuner.choose(b.problem.to_plain()), CANNOT_BE_TUNED),
    "a class": Case(lambda b: b.tuner.is_remembered(dnn.types.Problem), CANNOT_BE_TUNED),
    "a plan": Case(lambda b: b.tune_plan(), r"cannot be tuned; plan\.problem can; allowed"),
    "a plan of a graph": Case(
        lambda b: b.tune_graph_plan(), r"cannot be tuned; plan\.graph can; allowed"
    ),
    "an empty batch": Case(
        lambda b: b.tuner.tune(empty_batch()), r"x=TensorSpec\(\(0, .*is an empty batch"
    ),
    "an empty batch to choose for": Case(
        lambda b: b.tuner.choose(empty_batch()), r"x=TensorSpec\(\(0, .*is an empty batch"
    ),
    "an alignment of three": Case(
        lambda b: b.tuner.choose(b.problem, {"x": 3}),
        r"alignments\['x'\]=3; allowed: a power of two",
    ),
    "no alignment": Case(
        lambda b: b.tuner.choose(b.problem, {"w": 0}), r"alignments\['w'\]=0; allowed"
    ),
    "a fraction as an alignment": Case(
        lambda b: b.tuner.choose(b.problem, {"x": 16.0}), r"alignments\['x'\]=16.0; allowed"
    ),
    "a negative limit": Case(lambda b: b.tuner.choose(b.problem, None, -1), "workspace_limit"),
    "a text as a limit": Case(lambda b: b.tuner.choose(b.problem, None, "much"), "workspace_limit"),
    "a model of nobody": Case(
        lambda _: dnn.problems_from_onnx("~nouser/x.onnx"), r"^model='~nouser/x.onnx'"
    ),
    "no list to extend by": Case(
        lambda _: dnn.ProblemList().extend(3), r"^others=3 is not a list of problems"
    ),
    "problems without an end": Case(
        lambda b: dnn.tune_model(range(2**62), device=b.handle), r"^problems=range\(.*too long"
    ),
    "endless problems of a list": Case(lambda _: dnn.ProblemList(itertools.count()), r"^problems="),
}
OPERAND_CASES: dict[str, Case] = {
    "a list": Case(lambda b: b.tuner.tune(b.problem, ["x", "w"]), "operands=.* is not a mapping"),
    "nothing": Case(lambda b: b.tuner.tune(b.problem, {}), r"operands=\[\]; needed: \['w', 'x'\]"),
    "x missing": Case(lambda b: b.tune(x=None), r"operands=\['w'\]; needed: \['w', 'x'\]"),
    "out missing": Case(
        lambda b: b.tuner.tune(b.adding, b.operands), r"needed: \['out', 'w', 'x'\]"
    ),
    "misspelled": Case(lambda b: b.tune(y=b.out), r"operands=\['w', 'x', 'y'\]; needed"),
    "odd names": Case(
        lambda b: b.tuner.tune(b.problem, {1: b.case.x, "w": b.case.w}), r"operands=\['1', 'w'\]"
    ),
    "host": Case(lambda b: b.tune(x=b.case.x_host), "x is a host array", ARRAY),
    "a list of w": Case(lambda b: b.tune(w=b.case.w_host.tolist()), "w is a host array", ARRAY),
    "a spec": Case(lambda b: b.tune(x=b.case.x.spec), "x of type TensorSpec is no array", ARRAY),
    "shape of x": Case(
        lambda b: b.tune(x=b.empty(1, *X[1:])), r"x is TensorSpec\(\(1, .*the problem has"
    ),
    "type of w": Case(
        lambda b: b.tune(w=b.empty(*W, dtype="float64")),
        "w is TensorSpec.*float64.*the problem has",
    ),
    "layout of w": Case(
        lambda b: b.tune(w=b.handle.empty(W, None, "NHWC")),
        "w is TensorSpec.*NHWC.*the problem has",
    ),
    "rank of w": Case(lambda b: b.tune(w=b.empty(6, 4)), "w has rank 2; needed: 3 to 5"),
    "shape of out": Case(
        lambda b: b.tune(out=b.empty(2, 6, 9, 7)), r"out is TensorSpec\(.*the problem has"
    ),
    "closed": Case(
        lambda b: b.tune(x=closed(b.handle.array(b.case.x_host))),
        "this DeviceArray was closed",
        dnn.errors.ClosedError,
    ),
    "x on another device": Case(
        lambda b: elsewhere(lambda other: b.tune(x=other.empty(X))),
        "x is on <emulated:44>, the handle on",
        ARRAY,
    ),
    "out on another device": Case(
        lambda b: elsewhere(lambda other: b.tune(out=other.empty(Y))),
        "out is on <emulated:44>, the handle on",
        ARRAY,
    ),
}
RNN_CASES: dict[str, Case] = {
    "x missing": Case(
        lambda b: b.tune_rnn(x=None), r"operands=\['weights'\]; needed: \['weights', 'x'\]"
    ),
    "y": Case(lambda b: b.tune_rnn(y=b.out), r"operands=\['weights', 'x', 'y'\]; needed"),
    "host": Case(lambda b: b.tune_rnn(x=b.network.x_host), "x is a host array", ARRAY),
    "shape of x": Case(
        lambda b: b.tune_rnn(x=b.empty(4, 4, 6)), r"x is TensorSpec\(\(4, .*the problem has"
    ),
    "weights in a dict": Case(
        lambda b: b.tune_rnn(weights=b.network.values), "weights of type dict"
    ),
    "other weights": Case(
        lambda b: b.tune_rnn(weights=dnn.RNNWeights(b.handle, dnn.RNNSpec("gru", 6, 8))),
        "weights are for",
    ),
    "hx": Case(lambda b: b.tune_rnn(hx=b.empty(1, 4, 9)), r"hx is TensorSpec\(\(1, 4, 9\)"),
    "hx on the host": Case(lambda b: b.tune_rnn(hx=b.network.hx_host), "hx is a host array", ARRAY),
    "cx": Case(lambda b: b.tune_rnn(cx=b.empty(2, 4, 8)), r"cx is TensorSpec\(\(2, 4, 8\)"),
    "cx of a gru": Case(lambda b: b.tune_gru(), "cx is given to a GRU"),
    "weights on another device": Case(
        lambda b: elsewhere(
            lambda other: b.tune_rnn(weights=dnn.RNNWeights(other, b.network.spec))
        ),
        "weights is on <emulated:44>",
        ARRAY,
    ),
    "x on another device": Case(
        lambda b: elsewhere(lambda other: b.tune_rnn(x=other.empty((5, 4, 6)))),
        "x is on <emulated:44>",
        ARRAY,
    ),
    "nan in x": Case(
        lambda b: b.tune_rnn(x=b.handle.array(with_value(b.network.x_host, np.nan))), NOT_FINITE
    ),
    "infinity in hx": Case(
        lambda b: b.tune_rnn(hx=b.handle.array(with_value(b.network.hx_host, np.inf))), NOT_FINITE
    ),
    "infinity in cx": Case(
        lambda b: b.tune_rnn(cx=b.handle.array(with_value(b.network.cx_host, -np.inf))), NOT_FINITE
    ),
    "nan in weights": Case(
        lambda b: b.tune_rnn(weights=weights_with(b.network, np.nan)), NOT_FINITE
    ),
}


def empty_batch() -> dnn.types.Problem:
    """Return the problem of no images."""
    return dnn.convolution_forward.problem(dnn.TensorSpec((0, *X[1:])), dnn.FilterSpec(W))


CASES = case.grouped(
    making=MAKING_CASES, problem=PROBLEM_CASES, operands=OPERAND_CASES, rnn=RNN_CASES
)
