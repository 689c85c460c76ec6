"""RNN plans: made once, called with other lengths, weights and streams.

The tests count what cuDNN is asked again.  `Network` serves the other tests of RNN calls too.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rnn_oracles import RNNResult, onnx_rnn, random_weights
from tolerances import assert_close

import cudnnlite as dnn
from cudnnlite._raw.api import library_api
from cudnnlite._raw.check import status_error
from cudnnlite.descriptors.rnn import RNNDataDescriptor, RNNStateDescriptor, read_rnn
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.enums import parse_enum
from cudnnlite.operations.rnn.choice import heuristic
from cudnnlite.plans.choice import set_chooser
from cudnnlite.workbench.tuning.recording import record_problems
from cudnnlite.workbench.tuning.rnn_search import (
    all_candidates,
    compiled_if_small,
    search_rnn_forward,
)
from cudnnlite.workbench.tuning.timing_policy import TimingPolicy

from .problems import busy, fill, poisoned
from .test_plan import count_calls

Array = np.ndarray[Any, Any]
T, N = 5, 4
LENGTHS = (5, 5, 3, 1)  # sorted, as packed data wants them
LAYOUTS = ("sequence_major", "batch_major", "packed")
CELLS = {
    "relu": ("relu", None),
    "tanh": ("tanh", None),
    "lstm": ("lstm", None),
    "gru": ("gru", None),
    "lstm_projection": ("lstm", 5),
}
STANDARD, FMA = dnn.enums.RNNAlgo.STANDARD, dnn.MathType.FMA
# What another handle, stream or algorithm may not change. Other tests check how near the numbers
# are.
BOUNDS = {"float64": 1e-12, "float32": 2e-5, "float16": 1e-2, "bfloat16": 5e-2}
TF32_BOUND = 5e-3
DEVICE_CALLS = (
    "cudnnCreateRNNDescriptor",
    "cudnnSetRNNDescriptor_v8",
    "cudnnBuildRNNDynamic",
    "cudnnGetRNNWeightSpaceSize",
    "cudnnGetRNNWeightParams",
    "cudnnGetRNNTempSpaceSizes",
    "cudnnRNNForward",
    "cudnnRNNBackwardData_v8",
    "cudnnRNNBackwardWeights_v8",
)


ALGORITHMS = ("STANDARD", "PERSIST_STATIC", "PERSIST_DYNAMIC", "PERSIST_STATIC_SMALL_H")


class Network:
    """A network with random weights on one handle, sequences for it, and what has to come out.

    Parameters
    ----------
    handle : Handle
    name : str
        One of `CELLS`.
    input_size, hidden_size, num_layers, bidirectional
        As in RNNSpec.
    steps, batch : int
    lengths : tuple of int, optional
        In packed layout they are always given.
    layout : str
    seed : int
    options
        Of the RNNSpec; true float32 unless they say otherwise.
    """

    def __init__(
        self,
        handle: dnn.Handle,
        name: str = "lstm",
        input_size: int = 6,
        hidden_size: int = 8,
        num_layers: int = 1,
        bidirectional: bool = False,
        *,
        steps: int = T,
        batch: int = N,
        lengths: tuple[int, ...] | None = None,
        layout: str = "sequence_major",
        seed: int = 0,
        **options: Any,
    ) -> None:
        cell, projection = CELLS[name]
        options.setdefault("math_type", "fma")
        if projection is not None:
            options.setdefault("projection_size", projection)
        self.handle, self.cell, self.layout = handle, cell, layout
        self.spec = dnn.RNNSpec(cell, input_size, hidden_size, num_layers, bidirectional, **options)
        self.dtype = numpy_dtype(self.spec.dtype)
        rng = np.random.default_rng(seed)
        values = random_weights(
            rng,
            cell,
            input_size,
            hidden_size,
            num_layers,
            bidirectional,
            self.spec.projection_size,
            str(options.get("bias", "double")),
            skip_input=options.get("input_mode") == "skip",
        )
        self.values = {name: value.astype(self.dtype) for name, value in values.items()}
        self.weights = dnn.RNNWeights.from_arrays(handle, self.spec, self.values)
        self.lengths = (steps,) * batch if lengths is None and layout == "packed" else lengths
        self.x_host = rng.standard_normal((steps, batch, input_size)).astype(self.dtype)
        self.hx_host = rng.standard_normal(self.spec.hidden_shape(batch)).astype(self.dtype)
        self.cx_host = (
            rng.standard_normal(self.spec.cell_shape(batch)).astype(self.dtype)
            if cell == "lstm"
            else None
        )
        self.x = handle.array(self.pack(self.x_host, self.lengths))
        self.hx = handle.array(self.hx_host)
        self.cx = None if self.cx_host is None else handle.array(self.cx_host)

    def pack(self, values: Array, lengths: Any = None) -> Array:
        """Bring (T, N, vector) into the network's layout."""
        if self.layout == "packed":
            return np.concatenate([step[[t < n for n in lengths]] for t, step in enumerate(values)])
        return (
            np.ascontiguousarray(values.swapaxes(0, 1)) if self.layout == "batch_major" else values
        )

    def unpack(self, values: Array, lengths: Any, steps: int) -> Array:
        """Bring an output to (T, N, vector), with zeros beyond the ends of packed sequences."""
        if self.layout != "packed":
            return values.swapaxes(0, 1) if self.layout == "batch_major" else values
        wide = np.zeros((steps, len(lengths), values.shape[1]), values.dtype)
        wide[np.arange(steps)[:, None] < lengths] = values
        return wide

    def arguments(self) -> dict[str, Any]:
        """Return the operands of a call by name."""
        return {
            "spec": self.spec,
            "weights": self.weights,
            "x": self.x,
            "hx": self.hx,
            "cx": self.cx,
            "lengths": self.lengths,
            "layout": self.layout,
        }

    def run(self, **options: Any) -> Any:
        """Call `rnn_forward`, with some arguments replaced."""
        return dnn.rnn_forward(self.handle, **self.arguments() | options)

    def find(
        self,
        algorithms: Iterable[str] = ALGORITHMS,
        timing: TimingPolicy | None = None,
        workspace_limit: int | str | None = None,
        *,
        training: bool = False,
        replay: bool = False,
        **options: Any,
    ) -> dnn.AlgorithmTable:
        """Search as a tuner does, among these algorithms, with some operands replaced."""
        operands = self.arguments() | options
        spec, x, lengths, layout = (operands.pop(n) for n in ("spec", "x", "lengths", "layout"))
        timing = timing or dnn.Tuner(self.handle, ":memory:").timing
        problem = dnn.rnn_forward.problem(
            spec.replace(dropout=0.0), None, x, lengths=lengths, layout=layout, training=training
        )
        rows = all_candidates(
            problem, [parse_enum(dnn.enums.RNNAlgo, name, "algorithms") for name in algorithms]
        )
        return search_rnn_forward(
            self.handle,
            problem,
            operands | {"x": x},
            [compiled_if_small(problem, row, timing.on_chip) for row in rows],
            self.handle.workspace.limit_for(workspace_limit),
            timing,
            objective="latency",
            replay=replay,
        )

    def plan(self, **options: Any) -> dnn.RNNPlan:
        """Call `rnn_forward.plan`, with some arguments replaced."""
        arguments = {
            "spec": self.spec,
            "weights": None,
            "x": self.x,
            "lengths": self.lengths,
            "layout": self.layout,
        } | options
        return dnn.rnn_forward.plan(self.handle, **arguments)

    def call(self, plan: dnn.RNNPlan, **options: Any) -> Any:
        """Call a plan with these operands."""
        operands = {
            key: value for key, value in self.arguments().items() if key not in ("spec", "layout")
        }
        return plan(**operands | options)

    def outputs(self) -> tuple[dnn.DeviceArray, ...]:
        """Return poisoned arrays for `out`."""
        y = dnn.TensorSpec((*self.x.shape[:-1], self.spec.output_size), self.spec.dtype)
        batch = self.hx_host.shape[1]
        specs = [y, dnn.TensorSpec(self.spec.hidden_shape(batch), self.spec.dtype)]
        specs += [dnn.TensorSpec(self.spec.cell_shape(batch), self.spec.dtype)] * (
            self.cx is not None
        )
        return tuple(poisoned(self.handle, spec) for spec in specs)

    def expected(
        self,
        lengths: Any = None,
        x_host: Array | None = None,
        hx: Array | None = None,
        cx: Array | None = None,
    ) -> RNNResult:
        """Return what ONNX computes in float64."""
        return onnx_rnn(
            self.cell,
            self.values,
            self.x_host if x_host is None else x_host,
            self.hx_host if hx is None else hx,
            self.cx_host if cx is None else cx,
            self.lengths if lengths is None else lengths,
        )

    @property
    def bound(self) -> float:
        """How far a result may be off."""
        tf32 = self.spec.dtype == dnn.DataType.FLOAT and self.spec.math_type != FMA
        return TF32_BOUND if tf32 else BOUNDS[self.dtype.name]

    def assert_right(
        self, out: Any, expected: RNNResult | None = None, *, bound: float | None = None
    ) -> None:
        """Compare y, hy and cy with ONNX's."""
        reference = self.expected() if expected is None else expected
        steps, batch = reference.y.shape[:2]
        y = self.unpack(out[0].numpy(), self.lengths or (steps,) * batch, steps)
        allowed = self.bound if bound is None else bound
        assert_close(y, reference.y, allowed)
        assert_close(out[1].numpy(), reference.hy, allowed)
        assert (reference.cy is None) == (len(out) < 3 or out[2] is None)
        if reference.cy is not None:
            assert_close(out[2].numpy(), reference.cy, allowed)

    def with_sequences(self, lengths: tuple[int, ...] | None, steps: int, seed: int = 9) -> Network:
        """Return the same network with other sequences of the same number."""
        other = copy.copy(self)
        batch = self.hx_host.shape[1]
        other.lengths = (steps,) * batch if lengths is None and self.layout == "packed" else lengths
        rng = np.random.default_rng(seed)
        other.x_host = rng.standard_normal((steps, batch, self.spec.input_size)).astype(self.dtype)
        other.x = self.handle.array(self.pack(other.x_host, other.lengths))
        return other


def algorithm_of(handle: dnn.Handle, name: str, arguments: tuple[Any, ...]) -> dnn.enums.RNNAlgo:
    """Return the algorithm of the RNN descriptor that a C function is called with."""
    if name == "cudnnSetRNNDescriptor_v8":
        value = arguments[1]
        return dnn.enums.RNNAlgo(getattr(value, "value", value))
    return read_rnn(handle.api, arguments[1]).algorithm


def forget_plans(handle: dnn.Handle) -> None:
    """Let one-line calls make their plans anew."""
    cached = handle.plans._cached
    while cached:
        cached.popitem()[1][0].close()


def refuse(
    monkeypatch: pytest.MonkeyPatch,
    handle: dnn.Handle,
    name: str,
    status: dnn.enums.Status = dnn.enums.Status.NOT_SUPPORTED,
    algorithm: dnn.enums.RNNAlgo | None = None,
) -> list[dnn.enums.RNNAlgo]:
    """Let a C function refuse an algorithm, or all but STANDARD; return the list of refusals."""
    refused: list[dnn.enums.RNNAlgo] = []
    function = getattr(handle.api, name)

    def call(*arguments: Any) -> Any:
        called_algorithm = algorithm_of(handle, name, arguments)
        if called_algorithm == algorithm or (algorithm is None and called_algorithm != STANDARD):
            refused.append(called_algorithm)
            raise status_error(name, int(status), "", None)
        return function(*arguments)

    monkeypatch.setattr(handle.api, name, call)
    return refused


# ---------------------------------------------------------------- many calls of one plan


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_lengths_and_steps_change(handle: dnn.Handle, name: str, layout: str) -> None:
    first = Network(handle, name, num_layers=2, bidirectional=True, lengths=LENGTHS, layout=layout)
    sequence_sizes = [
        ((4, 3, 3, 2), 5),
        ((2, 1, 1, 1), 2),
        ((9, 7, 4, 4), 9),
        (None, 5),
        (None, 3),
        (LENGTHS, 5),
    ]
    with first.plan() as plan:
        networks = [
            first,
            *(first.with_sequences(lengths, steps) for lengths, steps in sequence_sizes),
            first,
        ]
        results = [network.call(plan) for network in networks]
    for network, out in zip(networks, results, strict=True):
        network.assert_right(out)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_another_batch_is_refused(handle: dnn.Handle, layout: str) -> None:
    network, other = Network(handle, layout=layout), Network(handle, layout=layout, batch=N + 1)
    with network.plan() as plan:
        with pytest.raises(dnn.ArgumentError, match=r"x=.*5 sequences.*made for 4"):
            other.call(plan)
        network.assert_right(network.call(plan))


@pytest.mark.parametrize("layout", ["sequence_major", "batch_major"])
def test_unequal_lengths_want_a_plan_that_knows_of_them(handle: dnn.Handle, layout: str) -> None:
    network = Network(handle, layout=layout)
    shorter = network.with_sequences(LENGTHS, T)
    with network.plan() as full, network.plan(lengths=(T,) * N) as padded:
        if layout == "sequence_major":
            with pytest.raises(dnn.ArgumentError, match=r"lengths=\(5, 5, 3, 1\).*full length"):
                shorter.call(full)
        network.assert_right(network.call(full))
        network.assert_right(network.call(full, lengths=[T] * N))
        network.assert_right(network.call(padded, lengths=None))
        shorter.assert_right(shorter.call(padded))


def test_packed_data_wants_lengths_at_each_call(handle: dnn.Handle) -> None:
    network = Network(handle, layout="packed", lengths=LENGTHS)
    with network.plan() as plan:
        with pytest.raises(dnn.ArgumentError, match="lengths"):
            network.call(plan, lengths=None)
        network.assert_right(network.call(plan))


def test_a_list_of_lengths_may_change(handle: dnn.Handle) -> None:
    """What the caller changes in place between two calls counts for the second."""
    network = Network(handle, lengths=LENGTHS)
    for kind in (list, np.array):
        lengths: Any = kind(LENGTHS)
        with network.plan() as plan:
            for changed in (5, 4, 2, 2):
                lengths[0] = changed
                network.assert_right(
                    network.call(plan, lengths=lengths), network.expected(tuple(lengths))
                )
                network.assert_right(network.run(lengths=lengths), network.expected(tuple(lengths)))


def test_states_come_and_go(handle: dnn.Handle) -> None:
    """Whether hx and cx are given may differ from call to call."""
    network = Network(handle)
    nothing_h, nothing_c = np.zeros_like(network.hx_host), np.zeros_like(network.cx_host)
    with network.plan() as plan:
        for _ in range(2):
            network.assert_right(network.call(plan))
            network.assert_right(
                network.call(plan, hx=None, cx=None), network.expected(hx=nothing_h, cx=nothing_c)
            )
            network.assert_right(network.call(plan, cx=None), network.expected(cx=nothing_c))
            network.assert_right(network.call(plan, hx=None), network.expected(hx=nothing_h))


def test_made_from_a_spec(handle: dnn.Handle) -> None:
    network = Network(handle, "gru")
    with network.plan(x=dnn.TensorSpec(network.x.shape)) as plan:
        network.assert_right(network.call(plan))


def test_says_what_it_chose(handle: dnn.Handle) -> None:
    network = Network(handle)
    with network.plan() as plan, network.plan(algorithm="standard", training=True) as other:
        assert plan.spec is network.spec
        choice = heuristic(network.spec, dnn.specs.RNNDataSpec(network.x.shape))
        assert plan.choice == replace(choice, workspace=plan.workspace)
        assert (other.choice.algorithm, other.choice.math_type) == (STANDARD, FMA)
        assert repr(other).startswith("<RNNPlan of RNNSpec('lstm', input_size=6, hidden_size=8")
        assert "STANDARD" in repr(other)


def test_sizes_are_those_of_the_last_call(handle: dnn.Handle) -> None:
    network = Network(handle)
    longer = network.with_sequences(None, 40)
    with (
        network.plan(training=True, algorithm="standard") as plan,
        network.plan(algorithm="standard") as inference,
    ):
        made_for = plan.workspace, plan.reserve
        sizes = []
        for one in (network, longer, network):
            sizes.append((one.call(plan).reserve.nbytes, plan.reserve))
            assert plan.workspace > 0
        assert sizes[0] == sizes[2]
        assert made_for == (
            plan.workspace,
            plan.reserve,
        )  # a plan is made for sequences, though others may follow
        assert sizes[1][1] > sizes[0][1]
        assert all(held >= needed > 0 for held, needed in sizes)
        network.call(inference)
        assert inference.reserve == 0


# ---------------------------------------------------------------- the functions of rnn_forward


def test_a_plan_takes_the_arguments_of_a_call(handle: dnn.Handle) -> None:
    network = Network(handle)
    hx, cx = network.hx, network.cx
    with dnn.rnn_forward.plan(handle, network.spec, network.weights, network.x, hx, cx) as plan:
        network.assert_right(network.call(plan))
    specs = (network.x.spec, network.hx.spec, network.cx.spec)
    with dnn.rnn_forward.plan(handle, network.spec, None, *specs) as plan:
        network.assert_right(network.call(plan))


def test_a_problem_of_arrays_and_of_specs(handle: dnn.Handle) -> None:
    network = Network(handle, lengths=LENGTHS)
    data = dnn.specs.RNNDataSpec(network.x.shape, LENGTHS)
    problem = dnn.rnn_forward.problem(network.spec, None, data)
    arguments = network.arguments()
    assert dnn.rnn_forward.problem(**arguments) == problem
    assert dnn.rnn_forward.problem(**arguments | {"x": network.x.spec}) == problem
    assert dnn.rnn_forward.problem(**arguments, training=True) != problem
    for wrong in ({"weights": 3}, {"hx": dnn.TensorSpec((1, 1, 1))}, {"training": 1}):
        with pytest.raises(dnn.ArgumentError, match=next(iter(wrong))):
            dnn.rnn_forward.problem(**arguments | wrong)


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_the_heuristic_is_what_a_call_runs_with(handle: dnn.Handle, lengths: Any) -> None:
    network = Network(handle, lengths=lengths)
    (row,) = dnn.rnn_forward.heuristic(handle, **network.arguments())
    reserve = network.run(training=True).reserve
    choice = reserve.call.key.choice
    assert (row.algorithm, row.math_type) == (choice.algorithm, choice.math_type)
    network.assert_right(network.run(algorithm=row))
    for name in ("algorithm", "workspace", "out", "reserve", "replay"):
        value = True if name == "replay" else "standard"
        with pytest.raises(dnn.ArgumentError, match=f"{name} is given to heuristic"):
            dnn.rnn_forward.heuristic(handle, **network.arguments() | {name: value})


def test_a_call_that_replays(handle: dnn.Handle) -> None:
    network = Network(handle)
    plans = len(handle.plans)
    for _ in range(4):
        network.assert_right(network.run(replay=True))
    assert len(handle.plans) == plans + 1
    trained = network.run(replay=True, training=True)
    with network.plan(training=True) as plan:  # which makes the backward passes of either
        gradients = plan.backward_data(trained.reserve, trained.y)
    expected = network.run(training=True)
    expected_gradients = dnn.rnn_backward_data(handle, expected.reserve, expected.y)
    np.testing.assert_array_equal(gradients.dx.numpy(), expected_gradients.dx.numpy())


def test_the_backward_passes_have_no_plan_of_their_own(handle: dnn.Handle) -> None:
    reserve = Network(handle).run(training=True).reserve
    for function in (dnn.rnn_backward_data, dnn.rnn_backward_weights):
        with pytest.raises(dnn.ArgumentError, match=r"rnn_forward\.plan\(.*training=True"):
            function.plan(handle, reserve)
        with pytest.raises(dnn.ArgumentError, match=r"rnn_forward\.plan\(.*training=True"):
            function.problem(reserve)


def test_the_reserve_of_a_call_outlives_a_guess_that_failed(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For longer sequences the plan falls back to STANDARD.

    The backward pass of the first call still uses the heuristic's choice.
    """
    network = Network(handle)
    limit = 1 << 30
    first = network.run(training=True, workspace_limit=limit)
    assert first.reserve.call.key.choice.algorithm != STANDARD
    query = handle.api.cudnnGetRNNTempSpaceSizes

    def want_more(*arguments: Any) -> None:
        query(*arguments)
        if read_rnn(handle.api, arguments[1]).algorithm != STANDARD:
            arguments[4].value = 1 << 40

    with monkeypatch.context() as patch:
        patch.setattr(handle.api, "cudnnGetRNNTempSpaceSizes", want_more)
        longer = network.with_sequences(None, 40)
        second = longer.run(training=True, workspace_limit=limit)
        assert second.reserve.call.key.choice.algorithm == STANDARD
    gradients = dnn.rnn_backward_data(handle, first.reserve, first.y)
    expected = network.run(training=True)
    expected_gradients = dnn.rnn_backward_data(handle, expected.reserve, expected.y)
    np.testing.assert_array_equal(gradients.dx.numpy(), expected_gradients.dx.numpy())


class CountingChooser:
    """Chooses what it is told to, and counts how often it is asked."""

    def __init__(self, choice: Any) -> None:
        self.choice, self.revision, self.count = choice, 0, 0

    def choose(
        self,
        problem: Any,
        alignments: Any,
        limit: Any,
        *,
        for_call: bool = False,
        replay: bool = False,
    ) -> Any:
        assert for_call
        self.count += 1
        return self.choice


def test_a_tuner_is_asked_once_for_a_choice(handle: dnn.Handle) -> None:
    network = Network(handle)
    chooser = CountingChooser(dnn.AlgorithmResult(STANDARD, FMA))
    set_chooser(handle, chooser)
    for _ in range(3):
        network.assert_right(network.run())
    with network.plan() as plan:
        assert plan.choice.algorithm == STANDARD
    assert chooser.count == 1
    other = network.with_sequences((5, 3, 1, 2), 5)
    for _ in range(3):
        other.assert_right(other.run())
    assert chooser.count == 2
    chooser.revision += 1
    network.run()
    assert chooser.count == 3


def test_a_tuner_without_a_choice_is_asked_again(handle: dnn.Handle) -> None:
    network = Network(handle)
    network.run()
    plans = len(handle.plans)
    chooser = CountingChooser(None)
    set_chooser(handle, chooser)
    for _ in range(3):
        network.assert_right(network.run())
    assert chooser.count == 3
    assert len(handle.plans) == plans  # the heuristic's plan, which was there
    chooser.choice = dnn.AlgorithmResult(STANDARD, FMA)
    trained = network.run(training=True)
    assert trained.reserve.call.key.choice.algorithm == STANDARD


# ---------------------------------------------------------------- what cuDNN is asked


def test_a_call_is_one_c_call(handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(handle, lengths=LENGTHS)
    calls = count_calls(monkeypatch, handle.api, *DEVICE_CALLS)
    with network.plan(training=True) as plan:
        assert "cudnnRNNForward" not in calls
        network.call(plan)
        calls.clear()
        for _ in range(3):
            out = network.call(plan)
        assert calls == ["cudnnRNNForward"] * 3
    network.run()
    calls.clear()
    network.run(lengths=list(LENGTHS), spec=pickle.loads(pickle.dumps(network.spec)))
    assert calls == ["cudnnRNNForward"]
    out = network.run(training=True)
    dnn.rnn_backward_data(handle, out.reserve, out.y)
    calls.clear()
    out = network.run(training=True)
    dnn.rnn_backward_data(handle, out.reserve, out.y)
    dnn.rnn_backward_weights(handle, out.reserve)
    assert calls == ["cudnnRNNForward", "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"]


def test_sizes_are_asked_again_only_for_other_sequences(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(handle, lengths=LENGTHS)
    same, shorter = network.with_sequences(LENGTHS, T), network.with_sequences((5, 4, 3, 1), T)
    longer = network.with_sequences(LENGTHS, T + 2)
    calls = count_calls(monkeypatch, handle.api, "cudnnGetRNNTempSpaceSizes")
    with network.plan(training=True) as plan:
        query_counts = []
        for one in (network, network, same, shorter, shorter, longer, same, network):
            calls.clear()
            one.assert_right(one.call(plan))
            query_counts.append(len(calls))
    assert query_counts == [0, 0, 0, 1, 0, 1, 1, 0]  # the plan itself asked for the first ones


def test_backward_after_other_sequences(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backward passes of one call come after another call of the plan.

    The plan describes their sequences to cuDNN again.
    """
    network = Network(handle, lengths=LENGTHS)
    other = network.with_sequences((2, 2, 1, 1), 3)
    alone = network.run(training=True)
    expected = dnn.rnn_backward_data(handle, alone.reserve, alone.y)
    gradient = dnn.rnn_backward_weights(handle, alone.reserve)
    first = network.run(training=True)
    second = other.run(training=True)
    gradients = dnn.rnn_backward_data(handle, first.reserve, first.y)
    other.assert_right(second)
    dnn.rnn_backward_data(handle, second.reserve, second.y)
    again = dnn.rnn_backward_weights(handle, first.reserve)
    for one, two in zip(gradients, expected, strict=True):
        assert_close(one.numpy(), two.numpy().astype(np.float64), 1e-4)
    for name, value in gradient.numpy().items():
        assert_close(again[name].numpy(), value.astype(np.float64), 1e-4)
    network.assert_right(network.run())


def test_equal_requests_find_the_same_plan(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(handle)
    network.run(algorithm="standard")
    calls = count_calls(monkeypatch, handle.api, "cudnnSetRNNDescriptor_v8")
    row = dnn.AlgorithmResult(
        STANDARD, FMA, time_ms=3.0, workspace=7, error=1e-7, deterministic=None
    )
    for algorithm in ("standard", "STANDARD", STANDARD, 0, row):
        for spec in (
            network.spec,
            network.spec.replace(),
            pickle.loads(pickle.dumps(network.spec)),
        ):
            for layout in (
                "sequence_major",
                dnn.enums.RNNDataLayout.SEQ_MAJOR_UNPACKED,
                "SEQ_MAJOR_UNPACKED",
            ):
                for zero in (0.0, 0, np.float32(0)):
                    network.run(algorithm=algorithm, spec=spec, layout=layout, padding_fill=zero)
    network.run(algorithm="standard", lengths=[T] * N)
    assert calls == []
    assert len(handle.plans) == 1
    different: list[dict[str, Any]] = [
        {"training": True},
        {"padding_fill": 1.0},
        {"padding_fill": -0.0},
        {"lengths": LENGTHS},
        {"workspace_limit": "1 GiB"},
        {"spec": network.spec.replace(clip=(-1, 1))},
        {"algorithm": "persist_static"},
    ]
    for options in different:
        network.run(**{"algorithm": "standard"} | options)
    assert len(calls) == len(different)
    assert len(handle.plans) == 1 + len(different)


@pytest.mark.parametrize("fill", [float("nan"), float("inf"), -0.0, 2.5], ids=str)
def test_every_padding_fill_finds_its_plan(handle: dnn.Handle, fill: float) -> None:
    """Also NaN, which is not equal to itself, and -0.0, which is equal to the default."""
    network = Network(handle, lengths=LENGTHS)
    for _ in range(3):
        out = network.run(padding_fill=float(str(fill)))
        beyond = np.arange(T)[:, None] >= np.array(LENGTHS)
        np.testing.assert_array_equal(out.y.numpy()[beyond], np.float32(fill))
        assert (np.signbit(out.y.numpy()[beyond]) == np.signbit(fill)).all()
    assert len(handle.plans) == 1


def test_a_whole_spec_brings_its_fill(handle: dnn.Handle) -> None:
    """Into the problem, the plan's calls and what is recorded of them."""
    network = Network(handle, lengths=LENGTHS)
    data = dnn.specs.RNNDataSpec(network.x.shape, lengths=LENGTHS, padding_fill=7.0)
    problem = dnn.rnn_forward.problem(network.spec, None, data)
    arguments = (network.spec, network.weights, network.x)
    assert problem.data == data
    assert problem == dnn.rnn_forward.problem(*arguments, lengths=LENGTHS, padding_fill=7)
    beyond = np.arange(T)[:, None] >= np.array(LENGTHS)
    with (
        dnn.rnn_forward.plan(handle, network.spec, None, data) as plan,
        record_problems() as problems,
    ):
        y = plan(network.weights, network.x, lengths=LENGTHS).y.numpy()
    np.testing.assert_array_equal(y[beyond], np.float32(7))
    assert [entry.problem for entry in problems] == [problem]
    for other in (3, -0.0):
        refusal = f"^padding_fill={other:g} is given beside a whole spec"
        with pytest.raises(dnn.ArgumentError, match=refusal):
            dnn.rnn_forward.plan(handle, network.spec, None, data, padding_fill=other)


DESCRIBING = (
    "cudnnSetRNNDataDescriptor 1",
    "cudnnSetRNNDataDescriptor 2",
    "cudnnGetRNNTempSpaceSizes 1",
)


@pytest.mark.parametrize("first", [False, True], ids=["after_a_call", "at_the_first_call"])
@pytest.mark.parametrize("way", ["plan", "rnn_forward"])
@pytest.mark.parametrize("where", DESCRIBING)
def test_sequences_that_could_not_be_described(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, where: str, way: str, first: bool
) -> None:
    """After a failed call the next one describes its sequences again.

    With the failed call's it would read out of bounds.
    """
    name, nth = where.split()
    network = Network(handle, "gru", lengths=LENGTHS)
    longer = network.with_sequences((50, 50, 30, 10), 50)
    out, outs = network.outputs(), longer.outputs()
    plan = network.plan(algorithm="standard") if way == "plan" else None

    def call(one: Network, arrays: Any) -> Any:
        return (
            one.run(algorithm="standard", out=arrays)
            if plan is None
            else one.call(plan, out=arrays)
        )

    if not first:
        network.assert_right(call(network, out))
    with monkeypatch.context() as patch:
        fail_at(patch, handle, name, int(nth))
        with pytest.raises(dnn.errors.BadParamError, match=name):
            call(longer, outs)
    for one, arrays in ((network, out), (longer, outs), (network, out)):
        for array in arrays:
            fill(array, 0xFF)
        one.assert_right(call(one, arrays))
    if plan is not None:
        plan.close()


@pytest.mark.parametrize("options", [{}, {"replay": True}, {"training": True}], ids=str)
def test_an_interrupt_once_sequences_are_described(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """The next call completes what the interrupted one did not do.

    Otherwise cuDNN would have the sequences of an older call.
    """
    if handle.device.kind == "cuda":
        handle.stream = handle.device.create_stream()  # the default one is not recorded
    network = Network(handle, "gru")
    longer = network.with_sequences(None, 50)

    def interrupted(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    with network.plan(**options) as plan:
        for _ in range(3):
            network.assert_right(network.call(plan))
        with monkeypatch.context() as patch:
            patch.setattr(handle.api, "prepare", interrupted)
            with pytest.raises(KeyboardInterrupt):
                longer.call(plan)
        for one in (longer, longer, network):
            one.assert_right(one.call(plan))


def test_the_same_sequences_in_other_memory_are_not_described_again(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, described = Network(handle), list[Any]()
    with network.plan(lengths=None) as plan:
        plan(network.weights, network.x, network.hx, network.cx)
        describe = dnn.RNNPlan.describe
        monkeypatch.setattr(
            dnn.RNNPlan, "describe", lambda *a: (described.append(a), describe(*a))[1]
        )
        for x in (network.x, network.x.copy(), handle.array(network.x_host)):
            network.assert_right(plan(network.weights, x, network.hx, network.cx))
        assert not described
        plan(network.weights, network.with_sequences(None, 50).x, network.hx, network.cx)
        assert len(described) == 1


def fail_at(monkeypatch: pytest.MonkeyPatch, handle: dnn.Handle, name: str, nth: int) -> None:
    """Let the `nth` further call of a C function fail, also for descriptors."""
    calls: list[int] = []

    def failing(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == nth:
                raise status_error(name, int(dnn.enums.Status.BAD_PARAM), "", None)
            return function(*arguments)

        return call

    for api in (handle.api, library_api()):
        monkeypatch.setattr(api, name, failing(getattr(api, name)))


def test_sequences_beyond_the_workspace_limit(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer ones are refused; the same call as before is what it was before."""
    network = Network(handle, "gru")
    longer = network.with_sequences(None, 50)
    out = network.outputs()
    limit = 1 << 30
    ask = handle.api.cudnnGetRNNTempSpaceSizes

    def much_for_the_longer(*arguments: Any) -> Any:
        ask(*arguments)
        if RNNDataDescriptor.read(handle.api, arguments[3]).max_length == 50:
            arguments[4].value = limit + 1

    monkeypatch.setattr(handle.api, "cudnnGetRNNTempSpaceSizes", much_for_the_longer)
    with network.plan(algorithm="standard", workspace_limit=limit) as plan:
        for _ in range(2):
            network.assert_right(network.call(plan, out=out))
            with pytest.raises(
                dnn.WorkspaceLimitError,
                match="STANDARD needs a workspace of 1 GiB; the limit is 1 GiB",
            ):
                longer.call(plan)
        network.assert_right(network.call(plan, out=out))


# ---------------------------------------------------------------- the choice

# (dtype, hidden size): what the heuristic takes something else than STANDARD for
PERSISTENT = {"float32_small": ("float32", 16), "float16": ("float16", 192)}


@pytest.mark.parametrize(
    "function", ["cudnnSetRNNDescriptor_v8", "cudnnGetRNNTempSpaceSizes", "cudnnRNNForward"]
)
@pytest.mark.parametrize("kind", PERSISTENT)
def test_what_cudnn_refuses_is_tried_once(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, kind: str, function: str
) -> None:
    """From the first refusal on, the request means STANDARD."""
    dtype, hidden = PERSISTENT[kind]
    network = Network(handle, hidden_size=hidden, dtype=dtype, math_type="default")
    expected = heuristic(network.spec, dnn.specs.RNNDataSpec(network.x.shape, dtype=dtype))
    assert expected.algorithm != STANDARD
    refused = refuse(monkeypatch, handle, function)
    calls = count_calls(monkeypatch, handle.api, "cudnnSetRNNDescriptor_v8")
    for _ in range(3):
        network.assert_right(network.run())
    assert refused == [expected.algorithm]
    assert len(calls) == 2
    ((plan, _),) = handle.plans._cached.values()
    assert (plan.choice.algorithm, plan.choice.math_type) == (STANDARD, expected.math_type)


def test_a_leased_workspace_does_not_replace_the_choice(handle: dnn.Handle) -> None:
    network = Network(handle, hidden_size=16, math_type="default")
    expected = heuristic(network.spec, dnn.specs.RNNDataSpec(network.x.shape))
    with handle.workspace.lease(1, handle.stream), pytest.raises(dnn.WorkspaceLimitError):
        network.run()
    network.assert_right(network.run())
    ((plan, _),) = handle.plans._cached.values()
    assert plan.choice.algorithm == expected.algorithm != STANDARD


def test_what_cudnn_refuses_is_tried_once_in_training(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(handle, hidden_size=16)
    first = network.run(training=True, algorithm="standard")
    expected = dnn.rnn_backward_data(handle, first.reserve, first.y)
    refused = refuse(monkeypatch, handle, "cudnnRNNForward")
    for _ in range(3):
        out = network.run(training=True)
        gradients = dnn.rnn_backward_data(handle, out.reserve, out.y)
        dnn.rnn_backward_weights(handle, out.reserve)
    assert len(refused) == 1
    for one, two in zip(gradients, expected, strict=True):
        assert_close(one.numpy(), two.numpy().astype(np.float64), 1e-4)


@pytest.mark.parametrize(
    "status", [dnn.enums.Status.BAD_PARAM, dnn.enums.Status.EXECUTION_FAILED], ids=str
)
def test_other_failures_are_not_covered_up(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, status: dnn.enums.Status
) -> None:
    network = Network(handle, hidden_size=16)
    with monkeypatch.context() as patch:
        refused = refuse(patch, handle, "cudnnRNNForward", status)
        with pytest.raises(dnn.CudnnError, match=f"cudnnRNNForward returned {status.name}"):
            network.run()
        assert len(refused) == 1
        forget_plans(handle)  # they keep the function that fails
    network.assert_right(network.run())


@pytest.mark.parametrize("form", ["name", "member", "result"])
def test_an_algorithm_that_was_named_is_not_replaced(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    network = Network(handle)
    refuse(monkeypatch, handle, "cudnnRNNForward")
    algorithm = dnn.enums.RNNAlgo.PERSIST_STATIC
    argument: Any = {
        "name": "persist_static",
        "member": algorithm,
        "result": dnn.AlgorithmResult(algorithm, FMA),
    }[form]
    for _ in range(2):
        with pytest.raises(dnn.NotSupportedError, match=r"lstm[\s\S]*PERSIST_STATIC") as caught:
            network.run(algorithm=argument)
        assert caught.value.specs["rnn"] == network.spec
    network.assert_right(network.run())


def test_a_named_algorithm_is_tried_though_the_heuristics_was_refused(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both requests are for the same algorithm; only one of them was a guess."""
    network = Network(handle, hidden_size=16)
    guess = heuristic(network.spec, dnn.specs.RNNDataSpec(network.x.shape))
    assert guess.algorithm != STANDARD
    refused = refuse(monkeypatch, handle, "cudnnRNNForward")
    network.assert_right(network.run())
    for algorithm in (guess.algorithm, guess):
        with pytest.raises(dnn.NotSupportedError, match=guess.algorithm.name):
            network.run(algorithm=algorithm)
    network.assert_right(network.run())
    assert refused == [guess.algorithm] * 3


def test_a_limit_that_only_standard_keeps(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the heuristic's choice needs too much workspace, STANDARD is used.

    A choice that was named is not replaced.
    """
    network = Network(handle, hidden_size=16)
    ask, limit = handle.api.cudnnGetRNNTempSpaceSizes, 1 << 30

    def much_but_for_standard(*arguments: Any) -> Any:
        ask(*arguments)
        if read_rnn(handle.api, arguments[1]).algorithm != STANDARD:
            arguments[4].value = limit + 1

    monkeypatch.setattr(handle.api, "cudnnGetRNNTempSpaceSizes", much_but_for_standard)
    for _ in range(2):
        network.assert_right(network.run(workspace_limit=limit))
    guess = heuristic(network.spec, dnn.specs.RNNDataSpec(network.x.shape)).algorithm
    with pytest.raises(dnn.WorkspaceLimitError, match=f"{guess.name} needs a workspace of 1 GiB"):
        network.run(workspace_limit=limit, algorithm=guess)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_true_float32_is_never_undone(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    network = Network(handle, dtype=dtype)
    math_types: list[int] = []
    function = handle.api.cudnnSetRNNDescriptor_v8

    def spy(*arguments: Any) -> Any:
        math_types.append(int(arguments[8]))
        return function(*arguments)

    monkeypatch.setattr(handle.api, "cudnnSetRNNDescriptor_v8", spy)
    network.run()
    network.run(algorithm="persist_static" if dtype != "float64" else "standard")
    out = network.run(training=True)
    dnn.rnn_backward_data(handle, out.reserve, out.y)
    dnn.rnn_backward_weights(handle, out.reserve)
    network.plan().close()
    table = network.find(algorithms=["standard", "persist_static"])
    network.run(algorithm=table.best())
    dnn.RNNWeights(handle, network.spec)
    assert len(math_types) >= 7
    assert set(math_types) == {FMA}
    assert {row.math_type for row in table} == {FMA}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_default_math_of_half_precision_uses_tensor_cores(handle: dnn.Handle, dtype: str) -> None:
    network = Network(handle, hidden_size=256, dtype=dtype, math_type="default")
    with network.plan() as plan:
        assert plan.choice.math_type == dnn.MathType.TENSOR_OP
        network.assert_right(network.call(plan))


@pytest.mark.parametrize("math_type", list(dnn.MathType), ids=str)
def test_the_specs_own_math_type_may_always_be_asked_for(
    handle: dnn.Handle, math_type: dnn.MathType
) -> None:
    network = Network(handle, math_type=math_type)
    network.assert_right(
        network.run(algorithm=dnn.AlgorithmResult(STANDARD, math_type)), bound=TF32_BOUND
    )
    with network.plan(algorithm="standard") as plan:
        assert plan.choice.math_type == math_type


# ---------------------------------------------------------------- PERSIST_DYNAMIC


class Builds:
    """Which descriptors were built, for which batch, and whether a forward call came before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, handle: dnn.Handle) -> None:
        self.built: dict[int, int] = {}
        self.unbuilt: list[str] = []
        self.forwards = 0
        api, build, destroy = (
            handle.api,
            handle.api.cudnnBuildRNNDynamic,
            handle.api.cudnnDestroyRNNDescriptor,
        )
        forward, describe = handle.api.cudnnRNNForward, handle.api.cudnnSetRNNDescriptor_v8

        def building(native: Any, rnn: Any, batch: Any) -> Any:
            result = build(native, rnn, batch)
            self.built[rnn.value] = int(batch)
            return result

        def forgetting(function: Any) -> Any:
            def call(rnn: Any, *arguments: Any) -> Any:
                self.built.pop(rnn.value, None)
                return function(rnn, *arguments)

            return call

        def forwarding(*arguments: Any) -> Any:
            if read_rnn(api, arguments[1]).algorithm == dnn.enums.RNNAlgo.PERSIST_DYNAMIC:
                self.forwards += 1
                if arguments[1].value not in self.built:
                    self.unbuilt.append(f"call {self.forwards}")
            return forward(*arguments)

        monkeypatch.setattr(api, "cudnnBuildRNNDynamic", building)
        monkeypatch.setattr(api, "cudnnDestroyRNNDescriptor", forgetting(destroy))
        monkeypatch.setattr(api, "cudnnSetRNNDescriptor_v8", forgetting(describe))
        monkeypatch.setattr(api, "cudnnRNNForward", forwarding)


@pytest.fixture
def builds(handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch) -> Builds:
    return Builds(monkeypatch, handle)


DYNAMIC = "PERSIST_DYNAMIC"


def by_rnn_forward(network: Network) -> None:
    for _ in range(2):
        network.assert_right(network.run(algorithm=DYNAMIC))


def by_a_result(network: Network) -> None:
    row = dnn.AlgorithmResult(dnn.enums.RNNAlgo.PERSIST_DYNAMIC, FMA)
    for _ in range(2):
        network.assert_right(network.run(algorithm=row))


def by_a_plan(network: Network) -> None:
    for _ in range(2):
        with network.plan(algorithm=DYNAMIC) as plan:
            network.assert_right(network.call(plan))
            network.assert_right(network.call(plan))


def by_training(network: Network) -> None:
    for _ in range(2):
        out = network.run(algorithm=DYNAMIC, training=True)
        network.assert_right(out[:3])
        dnn.rnn_backward_data(network.handle, out.reserve, out.y)
        dnn.rnn_backward_weights(network.handle, out.reserve)


def by_the_search(network: Network) -> None:
    for training in (False, True):
        table = network.find(algorithms=[DYNAMIC], training=training)
        assert table[0].ok
        network.assert_right(network.run(algorithm=table.best()))


def by_the_whole_search(network: Network) -> None:
    table = network.find()
    (row,) = (row for row in table if row.algorithm == dnn.enums.RNNAlgo.PERSIST_DYNAMIC)
    network.assert_right(network.run(algorithm=row))


def after_other_steps(network: Network) -> None:
    with network.plan(algorithm=DYNAMIC) as plan:
        for steps in (T, 2, 9, T):
            other = network.with_sequences(None, steps)
            other.assert_right(other.call(plan))
            other.assert_right(other.run(algorithm=DYNAMIC))


def after_another_batch(network: Network) -> None:
    for batch in (N, 2, 7, N):
        other = Network(network.handle, batch=batch)
        other.assert_right(other.run(algorithm=DYNAMIC))


def after_eviction_from_the_cache(network: Network) -> None:
    network.run(algorithm=DYNAMIC)
    for number in range(130):
        network.run(algorithm="standard", padding_fill=number)
    network.assert_right(network.run(algorithm=DYNAMIC))


def in_packed_layout(network: Network) -> None:
    packed = Network(network.handle, layout="packed")
    packed.assert_right(packed.run(algorithm=DYNAMIC))


@pytest.mark.parametrize(
    "way",
    [
        by_rnn_forward,
        by_a_result,
        by_a_plan,
        by_training,
        by_the_search,
        by_the_whole_search,
        after_other_steps,
        after_another_batch,
        after_eviction_from_the_cache,
        in_packed_layout,
    ],
    ids=lambda way: way.__name__,
)
def test_persist_dynamic_is_always_built_before(
    handle: dnn.Handle, builds: Builds, way: Any
) -> None:
    """Without it cuDNN returns SUCCESS and garbage, so there must be no way around it."""
    way(Network(handle))
    assert builds.forwards > 0
    assert builds.unbuilt == []


def test_persist_dynamic_is_built_once_for_a_plan(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(handle)
    calls = count_calls(monkeypatch, handle.api, "cudnnBuildRNNDynamic")
    with network.plan(algorithm=DYNAMIC) as plan:
        for steps in (T, 2, 9, T):
            network.with_sequences(None, steps).call(plan)
        assert len(calls) == 1
    for algorithm in ("standard", "persist_static", None):
        network.run(algorithm=algorithm)
    assert len(calls) == 1


@pytest.mark.parametrize("steps", [1, 2])
def test_a_refused_build_is_no_plan(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    network = Network(handle, steps=steps)
    with monkeypatch.context() as patch:
        refuse(patch, handle, "cudnnBuildRNNDynamic")
        with pytest.raises(dnn.NotSupportedError, match="cudnnBuildRNNDynamic"):
            network.run(algorithm=DYNAMIC)
        assert len(handle.plans) == 0
    network.assert_right(network.run(algorithm=DYNAMIC))


def raw_dynamic(network: Network, *, build: bool) -> Array:
    """Run PERSIST_DYNAMIC by the C functions alone; return y."""
    import ctypes

    handle, spec, weights = network.handle, network.spec, network.weights
    x_data = dnn.specs.RNNDataSpec(network.x.shape)
    with (
        dnn.RNNDescriptor(spec, DYNAMIC, api=handle.api) as rnn,
        dnn.descriptors.RNNDataDescriptor(x_data) as x_desc,
        dnn.descriptors.RNNDataDescriptor(x_data.with_vectors(spec.output_size)) as y_desc,
        RNNStateDescriptor(network.hx.spec) as h_desc,
        RNNStateDescriptor(network.hx.spec) as c_desc,
    ):
        if build:
            handle.api.cudnnBuildRNNDynamic(handle.ptr, rnn.ptr, network.x.shape[1])
        workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        handle.api.cudnnGetRNNTempSpaceSizes(handle.ptr, rnn.ptr, 0, x_desc.ptr, workspace, reserve)
        scratch = handle.empty((max(workspace.value, 1),), "uint8")
        y, hy, cy = network.outputs()
        handle.api.cudnnRNNForward(
            handle.ptr,
            rnn.ptr,
            0,
            None,
            x_desc.ptr,
            network.x.ptr,
            y_desc.ptr,
            y.ptr,
            h_desc.ptr,
            network.hx.ptr,
            hy.ptr,
            c_desc.ptr,
            network.cx.ptr,
            cy.ptr,
            weights.nbytes,
            weights.array.ptr,
            workspace.value,
            scratch.ptr,
            0,
            None,
        )
        return y.numpy()


def test_what_happens_without_the_build(handle: dnn.Handle) -> None:
    """The emulated device refuses; a GPU returns SUCCESS and a wrong output (zeros on an H200)."""
    network = Network(handle)
    expected = network.expected().y
    assert_close(raw_dynamic(network, build=True), expected, network.bound)
    if handle.device.kind == "emulated":
        with pytest.raises(dnn.errors.BadParamError, match="cudnnBuildRNNDynamic was not called"):
            raw_dynamic(network, build=False)
    else:
        result = np.nan_to_num(raw_dynamic(network, build=False).astype(np.float64))
        assert np.linalg.norm(result - expected) > 0.1 * np.linalg.norm(expected)
    network.assert_right(network.run(algorithm=DYNAMIC))


# ---------------------------------------------------------------- handles and streams


def test_a_view_of_weights(handle: dnn.Handle) -> None:
    network = Network(handle)
    with dnn.Handle(handle.device, stream=handle.device.create_stream()) as other:
        view = network.weights.view(other)
        assert view is not network.weights
        assert view.array.ptr == network.weights.array.ptr
        assert view.array.stream is other.stream
        assert network.weights.array.stream is handle.stream
        assert view.layout()[:] == network.weights.layout()[:]
        out = dnn.rnn_forward(other, network.spec, view, network.x, network.hx, network.cx)
        other.synchronize()
        network.assert_right(out)
        changed = Network(handle, seed=1)
        network.weights.update(changed.values)
        handle.synchronize()
        changed.assert_right(
            dnn.rnn_forward(other, network.spec, view, changed.x, changed.hx, changed.cx)
        )
        network.weights.close()
        changed.assert_right(
            dnn.rnn_forward(other, network.spec, view, changed.x, changed.hx, changed.cx)
        )
        view.close()
        with pytest.raises(dnn.errors.ClosedError):
            dnn.rnn_forward(other, network.spec, view, network.x)


def test_the_stream_changes_between_calls(handle: dnn.Handle) -> None:
    network = Network(handle, lengths=LENGTHS)
    streams = [handle.stream, handle.device.create_stream(), handle.device.create_stream()]
    results = []
    with network.plan() as plan:
        for stream in streams * 2:
            handle.stream = stream
            results += [network.call(plan), network.run()]
            assert results[-1].y.stream is stream
    for out in results:
        network.assert_right(out)
    for stream in streams:
        stream.sync()


def watch_waits(
    monkeypatch: pytest.MonkeyPatch, handle: dnn.Handle
) -> list[tuple[Any, Any]] | None:
    """Return a list of (stream, the stream it waited for); None where streams cannot be watched."""
    if handle.device.kind != "emulated":
        return None  # there the numbers tell
    waits: list[tuple[Any, Any]] = []
    monkeypatch.setattr(
        type(handle.stream), "wait", lambda stream, other: waits.append((stream, other))
    )
    return waits


@pytest.mark.parametrize("operand", ["x", "weights", "hx", "cx", "out"])
def test_an_operand_of_another_stream(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, operand: str
) -> None:
    """The call waits for the stream that made it, which is busy; and that stream for the call."""
    network = Network(handle)
    handle.synchronize()
    default, other = handle.stream, handle.device.create_stream()
    handle.stream = other
    held = busy(handle)
    replaced: dict[str, Any] = {}
    if operand == "weights":
        replaced["weights"] = dnn.RNNWeights.from_arrays(handle, network.spec, network.values)
    elif operand == "out":
        replaced["out"] = tuple(
            handle.array(np.zeros(array.shape, np.float32)) for array in network.outputs()
        )
    else:
        replaced[operand] = handle.array(getattr(network, f"{operand}_host"))
    handle.stream = default
    waits = watch_waits(monkeypatch, handle)
    out = network.run(**replaced)
    network.assert_right(out)
    assert waits is None or waits == [(default, other), (other, default)]
    other.sync()
    del held


def test_backward_operands_of_another_stream(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(handle)
    alone = network.run(training=True)
    dy = np.random.default_rng(5).standard_normal(alone.y.shape).astype(np.float32)
    expected = dnn.rnn_backward_data(handle, alone.reserve, handle.array(dy))
    weight_gradients = dnn.rnn_backward_weights(handle, alone.reserve).numpy()
    handle.synchronize()
    default, other = handle.stream, handle.device.create_stream()
    handle.stream = other
    held = busy(handle)
    out = network.run(training=True)
    other_dy = handle.array(dy)
    handle.stream = default
    waits = watch_waits(monkeypatch, handle)
    result = dnn.rnn_backward_data(handle, out.reserve, other_dy)
    gradients = dnn.rnn_backward_weights(handle, out.reserve)
    for one, two in zip(result, expected, strict=True):
        assert_close(one.numpy(), two.numpy().astype(np.float64), 1e-4)
    for name, value in gradients.numpy().items():
        assert_close(value, weight_gradients[name].astype(np.float64), 1e-4)
    assert waits is None or waits == [(default, other), (other, default)] * 2
    other.sync()
    del held


# ---------------------------------------------------------------- the end


def test_closed(handle: dnn.Handle) -> None:
    network = Network(handle)
    plan = network.plan(training=True)
    out = network.call(plan)
    plan.close()
    plan.close()
    assert plan.closed
    assert repr(plan).startswith("<closed RNNPlan of RNNSpec")
    for call in (
        lambda: network.call(plan),
        lambda: plan.backward_data(out.reserve, out.y),
        lambda: plan.backward_weights(out.reserve),
    ):
        with pytest.raises(dnn.errors.ClosedError, match="RNNPlan"):
            call()
    dnn.rnn_backward_data(handle, out.reserve, out.y)  # the results outlive the plan
    network.assert_right(network.run())


def test_closed_with_its_handle(device: Any) -> None:
    with dnn.Handle(device) as handle:
        network = Network(handle)
        plan = network.plan()
        out = network.call(plan)
    assert plan.closed
    network.assert_right(out)
    with pytest.raises(dnn.errors.ClosedError):
        network.call(plan)


def test_a_reserve_of_another_plan_is_refused(handle: dnn.Handle) -> None:
    network = Network(handle)
    with (
        network.plan(training=True) as plan,
        network.plan(training=True, algorithm="standard", padding_fill=1) as other,
    ):
        out = network.call(plan)
        with pytest.raises(dnn.ArgumentError, match="reserve"):
            other.backward_data(out.reserve, out.y)
        with pytest.raises(dnn.ArgumentError, match="reserve"):
            other.backward_weights(out.reserve)
        plan.backward_data(out.reserve, out.y)
        plan.backward_weights(out.reserve)
