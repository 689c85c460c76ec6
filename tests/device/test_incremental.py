"""Tuning in real calls: results while it goes on, failures, interrupts, and what is kept."""

from __future__ import annotations

import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.clock import Clock
from helpers.extents import ALL, SAMPLE, each_extent
from helpers.harness import World
from oracles import onnx_gradient_of_w, onnx_gradient_of_x
from tolerances import assert_close, bound

import cudnnlite as dnn
from cudnnlite._raw.enums import BackendBehaviorNote, BackendNumericalNote
from cudnnlite.autotune import incremental
from cudnnlite.descriptors.native import LIVE
from cudnnlite.devices import plan_cache
from cudnnlite.devices.arrays import part_of
from cudnnlite.graph.backend_descriptor import BackendDescriptor
from cudnnlite.graph.engines import HEURISTICS, configurations
from cudnnlite.operations.convolution.graphs import graph_of
from cudnnlite.operations.convolution.plan import ConvolutionPlan
from cudnnlite.operations.graph.graph import plan_graph
from cudnnlite.operations.rnn.plan import RNNPlan
from cudnnlite.operations.rnn.trials import TrialRNNPlan
from cudnnlite.plans import trial_call
from cudnnlite.plans.graph_plan import GraphPlan, Requirements
from cudnnlite.plans.trial_call import TrialCall
from cudnnlite.problems.results import CACHE, HEURISTIC, REAL_CALLS
from cudnnlite.search import race as race_module
from cudnnlite.search import trial_budget
from cudnnlite.search.database import Database, family_of, row_to_plain
from cudnnlite.search.timing_policy import TimingPolicy

from .problems import UNSUPPORTED, poisoned
from .problems import Problem as Case
from .test_rnn_plan import Network

X, W = (2, 4, 9, 8), (6, 4, 3, 3)
# More calls than a race has, so that some are made when it is over.
# More than may try candidates: on a GPU a call does not know yet how long the last ones took.
CALLS = 2 * TimingPolicy().real_calls
WINOGRAD = dnn.ConvolutionFwdAlgo.WINOGRAD
FAST_TANH = 2e-5  # the least exact algorithm of a network in true float32
MATMUL_BOUND = 2e-3  # float16, and TF32 where float32 is multiplied

Tuned = Callable[..., Any]


@pytest.fixture
def tuner(handle: dnn.Handle) -> Iterator[dnn.Tuner]:
    """A tuner of the handle's calls, with a cache in memory."""
    with dnn.autotuned(handle, cache=":memory:", incremental=True) as tuner:
        yield tuner


@pytest.fixture
def case(handle: dnn.Handle) -> Iterator[Case]:
    case = Case(handle, X, W, padding=1, math_type="fma")
    yield case
    vars(case).clear()


def loosest(case: Case) -> float:
    """Return the bound of the least exact candidate that the case's math type allows."""
    return bound(case.dtype, case.conv.math_type, WINOGRAD, case.w_shape)


def check(case: Case, y: dnn.DeviceArray, **scalars: Any) -> None:
    """Compare a result whose candidate is not known."""
    assert_close(y.numpy(), case.expected(**scalars), loosest(case))


def trial_call_of(plan: Any) -> TrialCall:
    """Return the call of a plan whose calls try candidates."""
    call = plan._prepared
    assert isinstance(call, TrialCall)
    return call


def race_of(plan: Any) -> Any:
    """Return the race of a plan whose calls try candidates."""
    return trial_call_of(plan)._race


def candidates_of(plan: Any) -> Any:
    """Return the further candidates of a plan whose calls try them."""
    return trial_call_of(plan)._candidates


def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that gets each call of a prepared call while candidates take turns."""
    runs: list[object] = []
    run = trial_call.call_prepared

    def counted(prepared: object) -> None:
        runs.append(prepared)
        run(prepared)

    monkeypatch.setattr(trial_call, "call_prepared", counted)
    return runs


# ---------------------------------------------------------------- results while tuning goes on


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_each_call_has_its_result(
    handle: dnn.Handle, tuner: dnn.Tuner, dtype: str, layout: str
) -> None:
    case = Case(handle, (2, 8, 9, 8), (16, 8, 3, 3), dtype, layout, padding=1)
    for _ in range(CALLS):
        check(case, case.run())
    assert tuner.measured == 1


@pytest.mark.parametrize("options", [{}, {"groups": 4}, {"stride": (2, 1)}, {"dilation": 2}])
def test_plans_and_one_line_calls_share_a_race(
    handle: dnn.Handle, tuner: dnn.Tuner, options: dict[str, Any]
) -> None:
    filters = (8, 8 // options.get("groups", 1), 3, 3)
    case = Case(handle, (2, 8, 9, 8), filters, padding=1, math_type="fma", **options)
    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan:
        race = race_of(plan)
        assert plan.choice.source == HEURISTIC
        for _ in range(CALLS):
            check(case, plan(case.x, case.w, out=poisoned(handle, case.output_spec)))
            check(case, case.run())
        assert race.winner is not None
        assert plan.choice.source == REAL_CALLS
        assert not isinstance(plan._prepared, TrialCall)
    assert tuner.measured == 1
    assert race.calls <= TimingPolicy().real_calls


def test_gradients(handle: dnn.Handle, tuner: dnn.Tuner) -> None:
    conv = dnn.ConvolutionSpec(padding=1, stride=(2, 1), math_type="fma")
    rng = np.random.default_rng(4)
    x = rng.standard_normal(X).astype(np.float32)
    w = rng.standard_normal(W).astype(np.float32)
    dy = rng.standard_normal(conv.output_shape(X, W)).astype(np.float32)
    steps = (conv.pads(2), *conv.steps(2)[1:])
    expected_dx = onnx_gradient_of_x(X, w, dy, *steps)
    expected_dw = onnx_gradient_of_w(x, W, dy, *steps)
    device_x, device_w, device_dy = map(handle.array, (x, w, dy))
    for _ in range(CALLS):
        dx = poisoned(handle, device_x.spec)
        dnn.convolution_backward_data(handle, device_w, device_dy, conv, out=dx)
        assert_close(dx.numpy(), expected_dx, 1e-4)
        dw = poisoned(handle, device_w.spec)
        dnn.convolution_backward_filter(handle, device_x, device_dy, conv, out=dw)
        assert_close(dw.numpy(), expected_dw, 1e-4)
    assert tuner.measured == 2


def test_what_is_added_to_is_added_to_once(
    handle: dnn.Handle, tuner: dnn.Tuner, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = count_runs(monkeypatch)
    for _ in range(CALLS):
        before = len(runs)
        out = handle.array(case.old_host)
        y = case.run(alpha=0.5, beta=2.0, out=out)
        check(case, y, alpha=0.5, beta=2.0)
        assert len(runs) - before <= 1
    assert tuner.measured == 1


def test_an_output_in_the_memory_of_an_input_is_computed_once(
    handle: dnn.Handle, tuner: dnn.Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = dnn.Graph()
    a = graph.input("a", (1, 16, 16), "float32")
    b = graph.input("b", (1, 16, 16), "float32")
    graph.output("y", graph.relu(graph.matmul(a, b)), "float32")
    with graph.plan(handle) as plan:
        size = plan.problem.specs["a"].nbytes
        addresses = {"a": size, "b": 2 * size, "y": 3 * size}
        assert trial_call.may_run_twice(plan, addresses)
        addresses["y"] = size + 16
        assert not trial_call.may_run_twice(plan, addresses)


def test_a_fused_convolution(handle: dnn.Handle, tuner: dnn.Tuner, case: Case) -> None:
    bias = np.random.default_rng(5).standard_normal((1, 6, 1, 1)).astype(np.float32)
    expected = np.maximum(case.expected() + bias, 0)
    device_bias = handle.array(bias)
    for _ in range(CALLS):
        y = dnn.convolution_bias_activation_forward(
            handle, case.x, case.w, device_bias, case.conv, "relu"
        )
        assert_close(y.numpy(), expected, loosest(case))


def test_a_graph(handle: dnn.Handle, tuner: dnn.Tuner) -> None:
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal((2, 16, 16)).astype(np.float16) for _ in "ab")
    expected = a.astype(np.float64) @ b.astype(np.float64)
    device_a, device_b = handle.array(a), handle.array(b)
    for _ in range(CALLS):
        assert_close(dnn.matmul(handle, device_a, device_b).numpy(), expected, MATMUL_BOUND)


def several_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a graph have its engine thrice, by settings of knobs that the engine ignores."""
    candidates = incremental.graphs.engine_candidates

    def repeated(*arguments: Any) -> Iterator[dnn.AlgorithmResult]:
        for row in candidates(*arguments):
            yield row
            for _ in range(2):
                yield dnn.AlgorithmResult(
                    dnn.Engine(row.algorithm.index, row.algorithm.knobs), dnn.MathType.FMA
                )

    monkeypatch.setattr(incremental.graphs, "engine_candidates", repeated)
    monkeypatch.setattr(race_module, "identity_of", lambda row: object())


def test_the_numbers_of_a_graph_hold_for_each_candidate(
    handle: dnn.Handle, tuner: dnn.Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    several_engines(monkeypatch)
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal((2, 16, 16)).astype(np.float16) for _ in "ab")
    product = a.astype(np.float64) @ b.astype(np.float64)
    device_a, device_b = handle.array(a), handle.array(b)
    for number in range(1, CALLS):
        y = dnn.matmul(handle, device_a, device_b, alpha=float(number))
        assert_close(y.numpy(), number * product, MATMUL_BOUND)
    assert tuner.measured == 1


@pytest.mark.parametrize("as_plan", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_recurrent_network(
    handle: dnn.Handle, tuner: dnn.Tuner, *, training: bool, as_plan: bool
) -> None:
    """The gradients come from the algorithm that ran forward, whichever that was."""
    network = Network(handle, "gru", 6, 8)
    expected = network.expected()
    plan: Any = None
    if as_plan:
        plan = network.plan(training=training)
        assert isinstance(plan, TrialRNNPlan)
    first_dx = None
    for _ in range(CALLS):
        out = network.call(plan) if as_plan else network.run(training=training)
        results = (out.y, out.hy, out.cy)
        network.assert_right(results, expected, bound=FAST_TANH)
        if training:
            dx = dnn.rnn_backward_data(handle, out.reserve, out.y).dx.numpy()
            first_dx = dx if first_dx is None else first_dx
            assert_close(dx, first_dx.astype(np.float64), 2e-4)
            weights = dnn.rnn_backward_weights(handle, out.reserve)
            assert np.isfinite(weights.array.numpy()).all()
    assert tuner.measured == 1
    if as_plan:
        assert plan.choice.source == REAL_CALLS
        plan.close()


def test_a_reserve_space_is_used_by_the_candidate_that_filled_it(
    handle: dnn.Handle, tuner: dnn.Tuner
) -> None:
    network = Network(handle, "gru", 6, 8)
    with dnn.rnn_forward.plan(
        handle, network.spec, network.weights, network.x, training=True
    ) as plan:
        outputs = [plan(network.weights, network.x) for _ in range(CALLS)]
        dy = outputs[0].y
        gradients = [plan.backward_data(out.reserve, dy).dx.numpy() for out in reversed(outputs)]
    for dx in gradients[1:]:
        assert_close(dx, gradients[0].astype(np.float64), 1e-2)


def test_a_winner_that_fails_is_the_calls_own_error(
    handle: dnn.Handle,
    tuner: dnn.Tuner,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And no later call fails for it; before the choice is made, the first candidate computes."""
    network = Network(handle, "gru", 6, 8)
    expected = network.expected()
    with caplog.at_level("INFO", "cudnnlite"), network.plan() as plan:
        trials: Any = plan._trials
        race = trials._race
        while race.winner is None:
            trials._timer.collect()
            if race.next_turn(trials._timer.pending) is None:
                break
            network.assert_right(network.call(plan), expected, bound=FAST_TANH)
        race.winner = 1
        run, fails = RNNPlan.__call__, True

        def failing(self: Any, *operands: Any, **options: Any) -> Any:
            if fails and self is not plan:
                raise dnn.DeviceMemoryError("no memory today")
            return run(self, *operands, **options)

        monkeypatch.setattr(RNNPlan, "__call__", failing)
        network.assert_right(network.call(plan), expected, bound=FAST_TANH)
        assert trials.winner is None
        fails = False
        for _ in range(2 * CALLS):
            network.assert_right(network.call(plan), expected, bound=FAST_TANH)
        assert plan.choice.source == REAL_CALLS
        assert plan.choice.workspace > 0
        assert f"{dnn.rnn_forward.problem(network.spec, network.weights, network.x)}" in caplog.text
    caplog.clear()  # a record has the error, and that the arrays of the call


# ---------------------------------------------------------------- under constraints


def test_the_policy_narrows_the_candidates(handle: dnn.Handle) -> None:
    policy = dnn.TuningPolicy(
        deterministic=True, allow_tf32=False, interface="descriptor", workspace_limit=1 << 16
    )
    case = Case(handle, X, W, padding=1)
    with (
        dnn.autotuned(handle, cache=":memory:", policy=policy, incremental=True),
        dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan,
    ):
        race = race_of(plan)
        for _ in range(CALLS):
            assert_close(plan(case.x, case.w).numpy(), case.expected(), 1e-4)
        rows = [runner.row for runner in race.runners]
        assert len(rows) > 1
        for row in rows:
            assert not isinstance(row.algorithm, dnn.Engine)
            assert row.deterministic
            assert row.math_type == dnn.MathType.FMA
        assert plan.choice.workspace <= 1 << 16
        assert plan.workspace <= 1 << 16


def test_a_policy_that_allows_nothing(handle: dnn.Handle, case: Case) -> None:
    policy = dnn.TuningPolicy(math_type="tensor_op_allow_conversion")
    with (
        dnn.autotuned(handle, cache=":memory:", policy=policy, incremental=True),
        pytest.raises(dnn.NoAlgorithmError, match="math type"),
    ):
        case.run()


def unaligned(handle: dnn.Handle, x: dnn.DeviceArray) -> dnn.DeviceArray:
    """Return a copy of an array whose address is a multiple of its values' size alone."""
    memory = handle.empty((x.size + 1,), x.dtype)
    copy = part_of(memory, x.spec, memory.spec.nbytes // memory.size)
    copy.copy_from(x.numpy())
    return copy


@pytest.mark.parametrize("options", [{"incremental": True}, {"measure": False}], ids=str)
@pytest.mark.parametrize("how", ["aligned", "unaligned", "replay", "recorded", "one line"])
@pytest.mark.filterwarnings("ignore::cudnnlite.TuningWarning")
@pytest.mark.filterwarnings("ignore::cudnnlite.AlignmentWarning")
def test_the_policy_holds_where_nothing_is_measured(
    handle: dnn.Handle, how: str, options: dict[str, bool]
) -> None:
    case = Case(handle, X, W, padding=1)
    x = unaligned(handle, case.x) if how == "unaligned" else case.x
    out = poisoned(handle, case.output_spec)
    handle.workspace.reserve(1 << 20, handle.stream)

    def compute() -> None:
        if how == "one line":
            dnn.convolution_forward(handle, x, case.w, case.conv, out=out)
            return
        replay = how == "replay"
        with dnn.convolution_forward.plan(handle, x, case.w, case.conv, replay=replay) as plan:
            assert plan.choice.source == HEURISTIC
            assert plan.choice.math_type == dnn.MathType.FMA
            assert plan.choice.workspace <= 1 << 16
            assert plan.choice.deterministic
            plan(x, case.w, out=out)
            if how == "aligned":
                plan(unaligned(handle, x), case.w, out=out)

    policy = dnn.TuningPolicy(allow_tf32=False, deterministic=True, workspace_limit=1 << 16)
    with dnn.autotuned(handle, cache=":memory:", policy=policy, **options):
        if how == "recorded":
            with dnn.capture(handle) as graph:
                compute()
            graph.launch()
            graph.close()
        else:
            compute()
        check_strictly(case, out)
    nothing = dnn.TuningPolicy(math_type="tensor_op_allow_conversion")
    with (
        dnn.autotuned(handle, cache=":memory:", policy=nothing, **options),
        pytest.raises(dnn.NoAlgorithmError, match="math type"),
    ):
        compute()


def check_strictly(case: Case, y: dnn.DeviceArray) -> None:
    """Compare a result of true float32."""
    assert_close(y.numpy(), case.expected(), bound(case.dtype, dnn.MathType.FMA, WINOGRAD, W))


@pytest.mark.parametrize("options", [{"incremental": True}, {"measure": False}], ids=str)
@pytest.mark.filterwarnings("ignore::cudnnlite.TuningWarning")
@pytest.mark.filterwarnings("ignore::cudnnlite.AlignmentWarning")
def test_an_engine_runs_unaligned_operands_where_no_algorithm_serves(
    handle: dnn.Handle, options: dict[str, bool]
) -> None:
    case = Case(handle, X, W, padding=((0, 1), (1, 0)), math_type="fma")
    policy = dnn.TuningPolicy(workspace_limit="1 GiB")
    with dnn.autotuned(handle, cache=":memory:", policy=policy, **options):
        y = dnn.convolution_forward(handle, unaligned(handle, case.x), case.w, case.conv)
    check(case, y)


def choices_of(tuner: dnn.Tuner, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets what the tuner returns each time it is asked."""
    choices: list[Any] = []
    choose = tuner.choose

    def noted(*arguments: Any, **options: Any) -> Any:
        choices.append(choose(*arguments, **options))
        return choices[-1]

    monkeypatch.setattr(tuner, "choose", noted)
    return choices


@pytest.mark.filterwarnings("ignore::cudnnlite.TuningWarning")
def test_a_choice_that_another_program_saves_later_is_used(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = dnn.TuningPolicy(math_type="fma")
    with (
        dnn.Handle("emulated") as handle,
        dnn.TuningCache(tmp_path, rehearsal=True) as cache,
        dnn.autotuned(handle, cache=cache, policy=policy, measure=False) as tuner,
    ):
        case = Case(handle, X, W, padding=1)
        check_strictly(case, case.run())
        with dnn.Handle(handle.device) as other, dnn.Tuner(other, cache, policy) as searching:
            searching.tune(dnn.convolution_forward.problem(case.x, case.w, case.conv))
        choices = choices_of(tuner, monkeypatch)
        for _ in range(3):
            check_strictly(case, case.run())
        assert [choice.source for choice in choices] == [CACHE]
        vars(case).clear()


def algorithms_that_run(monkeypatch: pytest.MonkeyPatch) -> list[dnn.AlgorithmResult]:
    """Return a list that gets the choice of each convolution plan that is called."""
    choices: list[Any] = []
    call = ConvolutionPlan.__call__

    def noted(self: Any, *operands: Any, **options: Any) -> Any:
        choices.append(self.choice)
        return call(self, *operands, **options)

    monkeypatch.setattr(ConvolutionPlan, "__call__", noted)
    return choices


@pytest.mark.parametrize("options", [{"incremental": True}, {"measure": False}, {}], ids=str)
@pytest.mark.filterwarnings("ignore::cudnnlite.TuningWarning")
def test_one_line_calls_with_replay_have_plans_of_their_tuner(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool]
) -> None:
    case = Case(handle, X, W, padding=1)
    choices = algorithms_that_run(monkeypatch)
    case.run(replay=True)
    descriptor = dnn.TuningPolicy(interface="descriptor", math_type="fma")
    with dnn.autotuned(handle, cache=":memory:", policy=descriptor, **options):
        check_strictly(case, case.run(replay=True))
    assert not isinstance(choices[-1].algorithm, dnn.Engine)
    nothing = dnn.TuningPolicy(math_type="tensor_op_allow_conversion")
    with (
        dnn.autotuned(handle, cache=":memory:", policy=nothing, **options),
        pytest.raises(dnn.NoAlgorithmError, match="math type"),
    ):
        case.run(replay=True)
    case.run(replay=True)
    assert choices[-1] == choices[0]


@pytest.mark.filterwarnings("ignore::cudnnlite.TuningWarning")
@pytest.mark.filterwarnings("ignore::cudnnlite.AlignmentWarning")
def test_a_choice_that_was_named_before_takes_operands_that_are_not_aligned(
    handle: dnn.Handle,
) -> None:
    case = Case(handle, X, W, padding=1)
    policy = dnn.TuningPolicy(interface="graph")
    with dnn.autotuned(handle, cache=":memory:", policy=policy, measure=False) as tuner:
        problem = dnn.convolution_forward.problem(case.x, case.w, case.conv)
        choice = tuner.choose(problem)
        y = dnn.convolution_forward(handle, case.x, case.w, case.conv, algorithm=choice)
        check(case, y)
        x = unaligned(handle, case.x)
        check(case, dnn.convolution_forward(handle, x, case.w, case.conv))


@pytest.mark.parametrize("options", [{"incremental": True}, {}], ids=str)
@pytest.mark.filterwarnings("ignore::cudnnlite.TuningWarning")
def test_the_tuner_is_asked_for_a_graph_that_was_recorded_first(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool]
) -> None:
    rng = np.random.default_rng(8)
    a, b = (handle.array(rng.standard_normal((1, 16, 16)), dtype="float16") for _ in "ab")
    expected = a.numpy().astype(np.float64) @ b.numpy().astype(np.float64)
    y = handle.zeros((1, 16, 16), dtype="float16")
    handle.workspace.reserve(64 << 20, handle.stream)
    with dnn.autotuned(handle, cache=":memory:", **options) as tuner:
        with dnn.capture(handle) as graph:
            for _ in range(2):
                dnn.matmul(handle, a, b, out=y)
        graph.launch()
        assert_close(y.numpy(), expected, MATMUL_BOUND)
        choices = choices_of(tuner, monkeypatch)
        for _ in range(3):
            dnn.matmul(handle, a, b, out=y)
        assert len(choices) == 1
        graph.launch()
        assert_close(y.numpy(), expected, MATMUL_BOUND)
        graph.close()


@pytest.mark.filterwarnings("ignore::cudnnlite.TuningWarning")
def test_a_graph_for_which_the_policy_allows_nothing(handle: dnn.Handle) -> None:
    check_that_no_engine_is_allowed(handle, dnn.TuningPolicy(interface="descriptor"))


@pytest.mark.filterwarnings("ignore::cudnnlite.TuningWarning")
def test_a_graph_without_an_engine_of_the_math_type(emulated_handle: dnn.Handle) -> None:
    """On the emulated device: a GPU has an FMA engine for it."""
    check_that_no_engine_is_allowed(emulated_handle, dnn.TuningPolicy(math_type="fma"))


def check_that_no_engine_is_allowed(handle: dnn.Handle, policy: dnn.TuningPolicy) -> None:
    """Neither where nothing is measured nor in real calls."""
    a, b = handle.zeros((1, 16, 16), dtype="float16"), handle.zeros((1, 16, 16), dtype="float16")
    for options in ({"measure": False}, {"incremental": True}):
        with (
            dnn.autotuned(handle, cache=":memory:", policy=policy, **options),
            pytest.raises(dnn.NoAlgorithmError),
        ):
            dnn.matmul(handle, a, b)


def test_the_policy_holds_for_a_recurrent_network_that_is_recorded(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its trials go on, too."""
    network = Network(handle, "gru", 6, 8, math_type="default")
    math_types = set()
    run = RNNPlan.__call__

    def noted(self: Any, *operands: Any, **how: Any) -> Any:
        math_types.add(self.key.choice.math_type)
        return run(self, *operands, **how)

    monkeypatch.setattr(RNNPlan, "__call__", noted)
    out = network.outputs()
    policy = dnn.TuningPolicy(math_type="fma")
    with dnn.autotuned(handle, cache=":memory:", policy=policy, incremental=True) as tuner:
        for _ in range(2):
            network.run(out=out)
        with dnn.capture(handle) as graph:
            network.run(out=out)
        graph.launch()
        graph.close()
        network.assert_right(out, network.expected(), bound=FAST_TANH)
        assert tuner.measured == 0
    assert math_types == {dnn.MathType.FMA}


def test_a_network_with_one_candidate_is_asked_for_once(
    handle: dnn.Handle, tuner: dnn.Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(handle, "gru", 6, 8, dtype="float64")
    asked = []
    workspace_of = incremental.workspace_of

    def noted(*arguments: Any) -> int:
        asked.append(arguments)
        return workspace_of(*arguments)

    monkeypatch.setattr(incremental, "workspace_of", noted)
    for _ in range(5):
        network.assert_right(network.run(), network.expected(), bound=1e-10)
    assert len(asked) == 1
    assert tuner.measured == 0


@pytest.mark.parametrize("options", [{"incremental": True}, {"measure": False}], ids=str)
@pytest.mark.filterwarnings("ignore::cudnnlite.TuningWarning")
def test_the_policy_holds_for_graphs_where_nothing_is_measured(
    handle: dnn.Handle, options: dict[str, bool]
) -> None:
    graph = dnn.Graph()
    a = graph.input("a", (1, 24, 16), "float16")
    b = graph.input("b", (1, 16, 8), "float16")
    graph.output("y", graph.matmul(a, b))
    policy = dnn.TuningPolicy(deterministic=True, workspace_limit=1 << 20)
    with (
        dnn.autotuned(handle, cache=":memory:", policy=policy, **options),
        graph.plan(handle) as plan,
    ):
        assert plan.choice.source == HEURISTIC
        assert plan.choice.deterministic
        assert plan.workspace <= 1 << 20


@pytest.mark.parametrize("as_plan", [False, True])
@pytest.mark.parametrize("options", [{"incremental": True}, {"measure": False}], ids=str)
@pytest.mark.filterwarnings("ignore::cudnnlite.TuningWarning")
def test_the_policy_holds_for_recurrent_networks(
    handle: dnn.Handle, options: dict[str, bool], *, as_plan: bool
) -> None:
    network = Network(handle, "gru", 6, 8, math_type="default")

    def compute() -> None:
        if not as_plan:
            network.assert_right(network.run(), network.expected(), bound=FAST_TANH)
            return
        with network.plan() as plan:
            assert plan.choice.math_type == dnn.MathType.FMA
            network.assert_right(network.call(plan), network.expected(), bound=FAST_TANH)

    policy = dnn.TuningPolicy(math_type="fma")
    with dnn.autotuned(handle, cache=":memory:", policy=policy, **options) as tuner:
        for _ in range(3 if as_plan else 2 * CALLS):
            compute()
        ends_a_race = tuner.incremental and not as_plan
        assert tuner.measured == int(ends_a_race)
    limit = dnn.TuningPolicy(workspace_limit=0)
    with (
        dnn.autotuned(handle, cache=":memory:", policy=limit, **options),
        pytest.raises(dnn.NoAlgorithmError, match="the limit is 0 B"),
    ):
        compute()


@pytest.mark.parametrize("as_network", [False, True])
def test_trials_take_their_share_of_the_time(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, *, as_network: bool
) -> None:
    """On a clock by which each C call of a candidate takes the host a second."""
    share = 0.25
    handle.timing = TimingPolicy(real_share=share, real_sample_ms=0.0)
    clock = Clock(monkeypatch)
    network = Network(handle, "lstm")
    case = Case(handle, X, W, padding=1, math_type="fma")
    if as_network:
        clock.slow_down(RNNPlan, "__call__", 1.0)
    else:
        clock.slow_down(trial_call, "call_prepared", 1.0)

    def call() -> None:
        if as_network:
            network.run()
        else:
            check(case, case.run())

    with dnn.autotuned(handle, cache=":memory:", incremental=True) as tuner:
        real_calls = tuner._real_calls
        assert real_calls is not None
        call()
        (race,) = real_calls._races.values()
        trial_seconds, waiting_calls = clock.seconds, 0
        longest = clock.seconds
        while not tuner.measured:
            calls_before, before = race.calls, clock.seconds
            call()
            handle.synchronize()
            if race.calls == calls_before:
                waiting_calls += 1
                continue
            trial_seconds += clock.seconds - before
            longest = max(longest, clock.seconds - before)
            assert trial_seconds - longest <= share * clock.seconds
        assert race.calls > 1
        assert waiting_calls > race.calls
    vars(case).clear()


def test_the_time_of_the_device_counts_as_that_of_a_trial(
    handle: dnn.Handle, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that of the run before, and no other trial begins before it is known."""
    handle.timing = TimingPolicy(real_share=0.25, real_sample_ms=0.0)
    events = Events(handle, monkeypatch, run_ms=1e6)
    clock = Clock(monkeypatch)
    with (
        dnn.autotuned(handle, cache=":memory:", incremental=True),
        dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan,
    ):
        race = race_of(plan)
        for _ in range(3):
            check(case, plan(case.x, case.w))
            assert race.calls == 1
        events.reach_all()
        clock.seconds = 7000.0  # two runs took 2000 s
        check(case, plan(case.x, case.w))
        assert race.calls == 1
        assert race.runners[0].times_ms == [1e6]
        clock.seconds = 8001.0
        check(case, plan(case.x, case.w))
        assert race.calls == 2


def test_closing_a_candidate_counts_as_a_trial(
    handle: dnn.Handle, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with (
        dnn.autotuned(handle, cache=":memory:", incremental=True),
        dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan,
    ):
        race = race_of(plan)
        while len(race.runners) < 2 or not race.runners[1].runs:
            check(case, plan(case.x, case.w))
        handle.synchronize()
        race.exclude(1, "it shall be closed")
        clock.slow_down(ConvolutionPlan, "close", 3600.0)
        check(case, plan(case.x, case.w))
        assert clock.seconds == 3600.0
        assert race.budget.is_overspent(0.99)


# ---------------------------------------------------------------- winners of the database


def set_winners(monkeypatch: pytest.MonkeyPatch, problem: Any, *winners: Any) -> None:
    """Let a database have these choices for problems of the family of `problem`."""
    rows = {str(number): row_to_plain(winner) for number, winner in enumerate(winners)}
    database = Database("", "", "", families={family_of(problem): rows})
    monkeypatch.setattr(incremental, "database_of", lambda device: database)


NOWHERE = dnn.AlgorithmResult(dnn.Engine(9999), dnn.MathType.DEFAULT)


def only_winners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the heuristics name no other engine than a plan's first."""
    monkeypatch.setattr(incremental, "configurations", lambda *arguments: iter(()))


def watch_winners(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, bool]]:
    """Return a list that gets each winner's engine, and whether cuDNN has it for the problem."""
    configure = incremental.configure_if_possible
    engines: list[tuple[Any, bool]] = []

    def configured(graph: Any, engine: Any, stack: Any) -> Any:
        configuration = configure(graph, engine, stack)
        engines.append((engine, configuration is not None))
        return configuration

    monkeypatch.setattr(incremental, "configure_if_possible", configured)
    return engines


def winner_of(handle: dnn.Handle, case: Case, **policy: Any) -> dnn.AlgorithmResult:
    """Return an engine that works, and is not the one that calls run without tuning."""
    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan:
        first = plan.choice.algorithm
    table = dnn.Tuner(handle, ":memory:", dnn.TuningPolicy(**policy)).tune(plan.problem)
    rows = [row for row in table if row.ok and isinstance(row.algorithm, dnn.Engine)]
    return next(row for row in rows if row.algorithm != first and bool(row.layout) == bool(policy))


def tried(handle: dnn.Handle, case: Case, **policy: Any) -> list[tuple[Any, str]]:
    """Return the candidates of a plan's calls, whose results are right."""
    tuning = dnn.TuningPolicy(**policy)
    with (
        dnn.autotuned(handle, cache=":memory:", policy=tuning, incremental=True),
        dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan,
    ):
        race = race_of(plan)
        for _ in range(CALLS):
            check(case, plan(case.x, case.w, out=poisoned(handle, case.output_spec)))
        return [(runner.row.algorithm, runner.row.layout) for runner in race.runners]


def test_a_winner_in_another_layout(
    handle: dnn.Handle, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = dnn.convolution_forward.problem(case.x.spec, case.w.spec, case.conv)
    winner = winner_of(handle, case, layouts=("NHWC",))
    set_winners(monkeypatch, problem, NOWHERE, winner)
    only_winners(monkeypatch)
    identity = winner.algorithm, "NHWC"
    assert identity in tried(handle, case, layouts=("NHWC",))
    assert identity not in tried(handle, case, layouts=())
    assert identity not in tried(handle, case, layouts=("NHWC",), interface="descriptor")


def test_rules_hold_for_winners(
    handle: dnn.Handle, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """True float32 and the policy take away a winner, and so does a compilation for short calls."""
    problem = dnn.convolution_forward.problem(case.x.spec, case.w.spec, case.conv)
    winner = winner_of(handle, case)
    set_winners(monkeypatch, problem, winner)
    only_winners(monkeypatch)
    identity = winner.algorithm, ""
    assert identity in tried(handle, case, interface="graph")
    configure = incremental.configure_if_possible

    def is_tried(*, deterministic: bool = False, **changes: Any) -> bool:
        def changed(*arguments: Any) -> Any:
            configuration = configure(*arguments)
            return configuration and configuration._replace(**changes)

        monkeypatch.setattr(incremental, "configure_if_possible", changed)
        return identity in tried(handle, case, interface="graph", deterministic=deterministic)

    assert not is_tried(numerical=frozenset({BackendNumericalNote.TENSOR_CORE}))
    nondeterministic = frozenset({BackendNumericalNote.NONDETERMINISTIC})
    assert is_tried(numerical=nondeterministic)
    assert not is_tried(numerical=nondeterministic, deterministic=True)
    compiled = frozenset({BackendBehaviorNote.RUNTIME_COMPILATION})
    for compile_ms, expected in ((0.0, True), (1000.0, False)):
        handle.timing = handle.timing._replace(real_compile_ms=compile_ms)
        assert is_tried(behavior=compiled) is expected


def test_a_winner_of_a_graph(
    handle: dnn.Handle, tuner: dnn.Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(8)
    a, b = (rng.standard_normal((2, 16, 16)).astype(np.float16) for _ in "ab")
    product = a.astype(np.float64) @ b.astype(np.float64)
    device_a, device_b = handle.array(a), handle.array(b)
    with dnn.matmul.plan(handle, device_a, device_b) as plan:
        first = plan.choice
        set_winners(monkeypatch, plan.problem, NOWHERE, first)
        engines = watch_winners(monkeypatch)
        for _ in range(CALLS):
            (y,) = plan(device_a, device_b).values()
            assert_close(y.numpy(), product, MATMUL_BOUND)
    assert engines == [(NOWHERE.algorithm, False), (first.algorithm, True)]


def test_winners_that_cudnn_refuses_leave_nothing(
    handle: dnn.Handle, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only some are looked at."""
    problem = dnn.convolution_forward.problem(case.x.spec, case.w.spec, case.conv)
    refused = [dnn.AlgorithmResult(dnn.Engine(9000 + n), dnn.MathType.FMA) for n in range(40)]
    engines = watch_winners(monkeypatch)

    def live_after_all_calls() -> int:
        with (
            dnn.autotuned(handle, cache=":memory:", incremental=True),
            dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan,
        ):
            while isinstance(plan._prepared, TrialCall):
                check(case, plan(case.x, case.w))
            return sum(isinstance(item, BackendDescriptor) for item in LIVE)

    without = live_after_all_calls()
    assert engines == []
    set_winners(monkeypatch, problem, *refused)
    # Not one for each of them; another engine may have won.
    assert live_after_all_calls() < without + 8
    assert engines == [(winner.algorithm, False) for winner in refused[: incremental.MOST_WINNERS]]


def test_the_beginning_of_trials_takes_its_share(
    handle: dnn.Handle, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes plans where the policy excludes the heuristic's choice."""
    clock = Clock(monkeypatch)
    clock.slow_down(ConvolutionPlan, "prepare", 5.0)
    handle.timing = handle.timing._replace(real_share=0.3)
    policy = dnn.TuningPolicy(interface="descriptor")
    with (
        dnn.autotuned(handle, cache=":memory:", policy=policy, incremental=True),
        dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan,
    ):
        assert race_of(plan).is_overspent
        clock.seconds += 10.0
        assert not race_of(plan).is_overspent


def test_no_event_is_asked_for_while_a_graph_is_recorded(
    handle: dnn.Handle, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere a trial may not have ended: in CUDA's global mode a query ends the recording."""
    handle.timing = TimingPolicy(real_share=0.5)
    other = Case(handle, (2, 4, 7, 8), W, padding=1, math_type="fma")
    events = Events(handle, monkeypatch, run_ms=1.0)
    with (
        dnn.autotuned(handle, cache=":memory:", incremental=True),
        dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan,
        dnn.convolution_forward.plan(handle, other.x, other.w, other.conv) as recorded,
    ):
        check(case, plan(case.x, case.w))
        assert race_of(plan).calls == 1
        out = poisoned(handle, other.output_spec)
        monkeypatch.setattr(handle.device, "is_capturing", lambda stream: True)
        monkeypatch.setattr(handle.device, "elapsed_between", events.refuse)
        recorded(other.x, other.w, out=out)
        monkeypatch.undo()
        handle.synchronize()
        check(other, out)
    vars(other).clear()


def test_errors_are_not_measured_in_real_calls(handle: dnn.Handle) -> None:
    policy = dnn.TuningPolicy(max_error=1e-3)
    with pytest.raises(dnn.ArgumentError, match=r"policy\.max_error=0\.001"):
        dnn.Tuner(handle, ":memory:", policy, incremental=True)
    with pytest.raises(dnn.ArgumentError, match=r"policy\.objective='energy'"):
        dnn.Tuner(handle, ":memory:", dnn.TuningPolicy(objective="energy"), incremental=True)
    with pytest.raises(dnn.ArgumentError, match=r"policy\.flush_l2=True"):
        dnn.Tuner(handle, ":memory:", dnn.TuningPolicy(flush_l2=True), incremental=True)
    with pytest.raises(dnn.ArgumentError, match=r"policy\.search='knobs'"):
        dnn.Tuner(handle, ":memory:", dnn.TuningPolicy(search="knobs"), incremental=True)
    with pytest.raises(dnn.ArgumentError, match="incremental=1"):
        dnn.Tuner(handle, ":memory:", incremental=1)  # type: ignore[arg-type]


def test_a_workspace_limit_of_a_call(handle: dnn.Handle, tuner: dnn.Tuner, case: Case) -> None:
    with warnings.catch_warnings():
        # What cuDNN's heuristic prefers is excluded, of which the first call warns.
        warnings.simplefilter("ignore", dnn.WorkspaceLimitWarning)
        for _ in range(CALLS):
            check(case, case.run(workspace_limit=0))
    assert handle.workspace.peak == 0


def test_a_workspace_of_the_callers(handle: dnn.Handle, tuner: dnn.Tuner, case: Case) -> None:
    scratch = handle.empty((1 << 20,), "uint8")
    for _ in range(CALLS):
        check(case, case.run(workspace=scratch))


@pytest.mark.parametrize("leases", [False, True])
def test_a_workspace_of_the_callers_suffices_to_the_end(
    handle: dnn.Handle,
    tuner: dnn.Tuner,
    case: Case,
    monkeypatch: pytest.MonkeyPatch,
    *,
    leases: bool,
) -> None:
    """The plan takes over no candidate that needs more, nor asks for the handle's workspace."""
    needed = 1 << 26  # more than any candidate needs
    sizes: dict[Any, int] = {}  # of each candidate; the second one needs more than the caller has
    with ExitStack() as stack:
        plan = stack.enter_context(dnn.convolution_forward.plan(handle, case.x, case.w, case.conv))
        race, candidates = race_of(plan), candidates_of(plan)
        make_plan = candidates.make_plan

        def sized(row: Any) -> Any:
            is_second = len(sizes) == 1
            size = sizes.setdefault((row.algorithm, row.layout), needed + is_second)
            candidate_plan = make_plan(row)
            assert candidate_plan.workspace <= needed
            candidate_plan.workspace = size
            candidate_plan.choice = replace(candidate_plan.choice, workspace=size)
            return candidate_plan

        monkeypatch.setattr(candidates, "make_plan", sized)
        plan.workspace = needed
        scratch = handle.empty((needed,), "uint8")
        if leases:
            stack.enter_context(handle.workspace.lease(1, handle.stream))
        while len(race.runners) < 4:
            check(case, plan(case.x, case.w, workspace=scratch))
        for number, ms in enumerate((3e-6, 1e-6, 5e-7, 2e-6)):
            race.runners[number].times_ms[:] = [ms]
        race.winner = 2
        while plan.choice.source != REAL_CALLS:
            handle.synchronize()
            check(case, plan(case.x, case.w, workspace=scratch))
        assert plan.choice.algorithm == race.runners[1].row.algorithm
        assert plan.workspace == needed
        assert race.winner == 2
        check(case, plan(case.x, case.w, workspace=scratch))


def test_a_candidate_that_fails_for_the_callers_workspace_is_not_taken_over(
    handle: dnn.Handle, tuner: dnn.Tuner, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the race end, whose winner needs more than the caller has."""
    run = trial_call.call_prepared
    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan:
        race, call = race_of(plan), trial_call_of(plan)
        while len(race.runners) < 4:
            check(case, plan(case.x, case.w))
        handle.synchronize()
        scratch = handle.empty((1 << 26,), "uint8")
        row = race.runners[2].row
        race.runners[2].row = replace(row, workspace=scratch.nbytes + 1)
        for number, ms in enumerate((3e-6, 1e-6, 5e-7, 2e-6)):
            race.runners[number].times_ms[:] = [ms] * 2
        race.winner = 2

        def failing(prepared: Any) -> None:
            if prepared is not first:
                raise dnn.NotSupportedError("cudnnX", dnn.Status.NOT_SUPPORTED, "not today")
            run(prepared)

        first = call._first_call
        monkeypatch.setattr(trial_call, "call_prepared", failing)
        check(case, plan(case.x, case.w, workspace=scratch))
        assert "not today" in race.runners[1].why_out
        assert plan.choice.source == HEURISTIC


def test_operands_that_are_not_aligned(handle: dnn.Handle, tuner: dnn.Tuner) -> None:
    """No candidate is tried for them, and a plan's race goes on with others."""
    case = Case(handle, X, W, padding=1, math_type="fma")
    x = unaligned(handle, case.x)
    with dnn.convolution_forward.plan(handle, case.x.spec, case.w.spec, case.conv) as plan:
        race = race_of(plan)
        for _ in range(CALLS):
            calls = race.calls
            check(case, plan(x, case.w))
            assert race.calls == calls
            check(case, plan(case.x, case.w))
        assert plan.choice.source == REAL_CALLS
        check(case, plan(x, case.w))


def test_the_first_descriptor_call_runs_for_operands_that_are_not_aligned(
    handle: dnn.Handle, case: Case
) -> None:
    """It takes them in place, so that the trials see them."""
    x = unaligned(handle, case.x)
    policy = dnn.TuningPolicy(interface="descriptor")
    with (
        dnn.autotuned(handle, cache=":memory:", policy=policy, incremental=True),
        dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan,
    ):
        race = race_of(plan)
        for _ in range(CALLS):
            check(case, plan(x, case.w))
        assert race.calls == 0


def test_nothing_is_tried_while_a_graph_is_recorded(
    handle: dnn.Handle, tuner: dnn.Tuner, case: Case
) -> None:
    out = poisoned(handle, case.output_spec)
    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan:
        race = race_of(plan)
        plan(case.x, case.w, out=out)
        calls = race.calls
        with dnn.capture(handle) as graph:
            plan(case.x, case.w, out=out)
        assert race.calls == calls
        for _ in range(CALLS):
            plan(case.x, case.w, out=out)
            out.fill(7)
            graph.launch()  # also when the plan has another call
            check(case, out)
        assert plan.choice.source == REAL_CALLS
    graph.close()


@pytest.mark.parametrize("policy", [dnn.TuningPolicy(), dnn.TuningPolicy(interface="graph")])
def test_a_call_that_is_first_made_while_a_graph_is_recorded(
    handle: dnn.Handle, case: Case, policy: dnn.TuningPolicy
) -> None:
    out = case.run(out=poisoned(handle, case.output_spec), algorithm="IMPLICIT_GEMM")
    handle.workspace.reserve(1 << 20, handle.stream)
    with dnn.autotuned(handle, cache=":memory:", policy=policy, incremental=True) as tuner:
        with dnn.capture(handle) as graph:
            case.run(out=out)
        graph.launch()
        check(case, out)
        graph.close()
        for _ in range(CALLS):
            check(case, case.run())
        assert tuner.measured == 1


def test_a_plan_with_replay_is_the_heuristics(
    handle: dnn.Handle, tuner: dnn.Tuner, case: Case
) -> None:
    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv, replay=True) as plan:
        for _ in range(CALLS):
            check(case, plan(case.x, case.w))
        assert plan.choice.source == HEURISTIC
    assert tuner.measured == 0


def test_streams_change(handle: dnn.Handle, tuner: dnn.Tuner, case: Case) -> None:
    streams = [handle.stream, handle.device.create_stream(), handle.device.create_stream()]
    for number in range(CALLS):
        handle.stream = streams[number % 3]
        check(case, case.run())
    assert tuner.measured == 1


def test_threads(device: Any) -> None:
    errors: list[str] = []
    cache = dnn.TuningCache(":memory:")

    def work(seed: int) -> None:
        try:
            stream = device.create_stream()
            with (
                dnn.Handle(device, stream=stream) as handle,
                dnn.autotuned(handle, cache=cache, incremental=True),
            ):
                for size in (7, 8, 9):
                    case = Case(handle, (2, 4, size, 8), W, seed=seed, padding=1, math_type="fma")
                    for _ in range(CALLS):
                        check(case, case.run())
        except BaseException:
            errors.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, "\n".join(errors)


def test_one_thread_waits_for_the_device_while_another_makes_plans(device: Any) -> None:
    """cuDNN 9.19 records a stream in a heuristic, where CUDA refuses to wait for the device."""
    errors: list[str] = []
    is_done = threading.Event()

    def make_plans() -> None:
        try:
            with dnn.Handle(device, stream=device.create_stream()) as handle:
                conv = dnn.ConvolutionSpec(padding=1, math_type="fma")
                w = handle.zeros(W)
                for size in range(5, 5 + (150 if device.has_real_timing else 5)):
                    dnn.convolution_forward.plan(
                        handle, handle.zeros((2, 4, size, 8)), w, conv
                    ).close()
        except BaseException:
            errors.append(traceback.format_exc())
        finally:
            is_done.set()

    thread = threading.Thread(target=make_plans)
    thread.start()
    while not is_done.wait(0.0003):
        device.synchronize()
    thread.join()
    assert not errors, "\n".join(errors)


class Events:
    """A device's events: which are reached, and how many runs of how many milliseconds lie between.

    All that is recorded and run is in `log`; an event is its place there.
    """

    def __init__(self, handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, run_ms: float) -> None:
        self.log: list[str] = []
        self.reached = 0
        self._run_ms = run_ms
        run = trial_call.call_prepared

        def logged_run(prepared: Any) -> None:
            self.log.append("run")
            run(prepared)

        monkeypatch.setattr(trial_call, "call_prepared", logged_run)
        monkeypatch.setattr(handle.device, "record_event", self._record)
        monkeypatch.setattr(handle.device, "elapsed_between", self._elapsed)

    def _record(self, stream: Any) -> int:
        self.log.append("event")
        return len(self.log)

    def _elapsed(self, start: int, end: int) -> float | None:
        if end > self.reached:
            return None
        return self.log[start:end].count("run") * self._run_ms

    def reach_all(self) -> None:
        self.reached = len(self.log)

    def refuse(self, start: int, end: int) -> float | None:
        raise AssertionError("an event was asked for")


def test_repeats_behind_a_first_run_are_timed_together(
    handle: dnn.Handle, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle.timing = TimingPolicy(real_sample_ms=0.1)
    events = Events(handle, monkeypatch, run_ms=0.02)
    calls = []
    policy = dnn.TuningPolicy(objective="device")  # the host's time varies
    with (
        dnn.autotuned(handle, cache=":memory:", policy=policy, incremental=True),
        dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan,
    ):
        race = race_of(plan)
        while race.winner is None:
            events.reach_all()
            before = len(events.log)
            check(case, plan(case.x, case.w))
            calls.append(events.log[before:])
    timed = [call for call in calls if call.count("event") == 2]
    assert timed[0] == ["run", "event", "run", "event"]  # its time is not known yet
    assert timed[1] == ["run", "event", *["run"] * 4, "event"]
    assert ["run", "event", *["run"] * 5, "event"] in timed
    known = [runner.ms for runner in race.runners if runner.times_ms]
    assert len(known) > 1
    assert known == pytest.approx([0.02] * len(known))


def test_a_winner_is_taken_over_when_the_device_has_done_all_calls(
    handle: dnn.Handle, tuner: dnn.Tuner, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then a plan that is to be closed may be running."""
    handle.timing = TimingPolicy(real_calls=3, confirming_calls=0)
    events = Events(handle, monkeypatch, run_ms=0.02)
    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan:
        race = race_of(plan)
        race.exclude(0, "the winner shall be another one")
        ends = []
        for _ in range(2):  # two candidates, each of which is timed
            check(case, plan(case.x, case.w))
            ends.append(len(events.log))
        events.reached = ends[0]
        race.calls = TimingPolicy().real_calls
        check(case, plan(case.x, case.w))  # of the first of them, which leads
        assert race.winner is None
        race.runners[1].times_ms[:] = [1e6]
        events.reached = ends[1]
        check(case, plan(case.x, case.w))
        assert race.winner == 2
        assert plan.choice.source == HEURISTIC
        events.reach_all()
        check(case, plan(case.x, case.w))
        assert plan.choice.source == REAL_CALLS


def test_no_winner_is_closed_while_it_runs(
    handle: dnn.Handle, tuner: dnn.Tuner, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no memory to take it over, though its call was made."""

    def scarce(*arguments: Any) -> int:
        raise dnn.DeviceMemoryError("no memory")

    events = Events(handle, monkeypatch, run_ms=0.02)
    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan:
        race, call = race_of(plan), plan._prepared
        race.exclude(0, "the winner shall be another one")
        while len(race.runners) < 3:
            check(case, plan(case.x, case.w))
            events.reach_all()
        call._timer.collect()
        race.runners[1].times_ms[:] = [1e-6] * 2  # one sample is judged by its noise
        winner_plan = call._plan_of(1)
        monkeypatch.setattr(handle.workspace, "reserve", scarce)
        race.winner = 1
        for _ in range(2):
            check(case, plan(case.x, case.w))
            assert race.runners[1].why_out == "no memory"
            assert not winner_plan._closed
        events.reach_all()
        check(case, plan(case.x, case.w))
        assert winner_plan._closed


def test_a_winner_is_taken_over_though_the_device_is_always_a_call_behind(
    handle: dnn.Handle, tuner: dnn.Tuner, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = Events(handle, monkeypatch, run_ms=0.02)
    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan:
        race = race_of(plan)
        race.exclude(0, "the winner shall be another one")
        for _ in range(2 * CALLS):
            before = len(events.log)
            check(case, plan(case.x, case.w))
            events.reached = before
        assert race.winner is not None
        assert plan.choice.source == REAL_CALLS


def test_no_plan_is_closed_before_its_run_on_another_stream(
    handle: dnn.Handle, tuner: dnn.Tuner, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = handle.stream, handle.device.create_stream()
    ended: set[int] = set()
    numbers = iter(range(1000))
    monkeypatch.setattr(handle.device, "record_event", lambda stream: next(numbers))
    monkeypatch.setattr(
        handle.device, "elapsed_between", lambda start, end: 0.02 if end in ended else None
    )
    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan:
        race = race_of(plan)
        race.exclude(0, "another one shall lead")
        out = poisoned(handle, case.output_spec)
        plan(case.x, case.w, out=out)
        number = race.leader
        assert number
        call = plan._prepared
        call._timer._samples.clear()
        leader_plan = call._plans[number]
        for stream in streams:  # each runs the leader, untimed
            handle.stream = stream
            race.calls = TimingPolicy().real_calls
            race.runners[number].times_ms[:] = [0.02]
            call._run_leader(call._leader, handle._stream)
            race.winner = None
        last = next(numbers) - 1
        ended.add(last)  # the run on the second stream
        race.exclude(number, "to be closed")
        call._close_losers()
        assert not leader_plan._closed
        handle.device.synchronize()
        ended.add(last - 1)
        call._close_losers()
        assert leader_plan._closed


def test_the_workspace_is_there_when_a_winner_is_taken_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With that of outputs that no call returns, so that the next call may be recorded."""
    several_engines(monkeypatch)
    graph = dnn.Graph()
    a, b = (graph.input(name, (1, 16, 16), "float32") for name in "ab")
    product = graph.matmul(a, b)
    graph.output("h", product, "float32")
    graph.output("y", graph.relu(product), "float32")
    with (
        dnn.Handle("emulated") as handle,
        dnn.autotuned(handle, cache=":memory:", incremental=True),
        plan_graph(handle, graph, None, Requirements(), None, scratch=["h"]) as plan,
    ):
        candidates = candidates_of(plan)
        make_plan = candidates.make_plan

        def with_larger_workspace(row: Any) -> Any:
            candidate_plan = make_plan(row)
            candidate_plan.workspace += 1 << 20
            return candidate_plan

        monkeypatch.setattr(candidates, "make_plan", with_larger_workspace)
        arrays = {name: handle.zeros((1, 16, 16)) for name in "ab"}
        y = handle.empty((1, 16, 16))
        race_of(plan).exclude(0, "the winner shall be another one")
        while plan.choice.source != REAL_CALLS:
            plan(**arrays, out={"y": y})
        assert plan.workspace > 1 << 20
        assert handle.workspace.size >= plan.workspace


@pytest.mark.parametrize("fails", [False, True])
def test_no_plan_is_closed_before_its_trial_has_ended(
    handle: dnn.Handle,
    tuner: dnn.Tuner,
    case: Case,
    monkeypatch: pytest.MonkeyPatch,
    *,
    fails: bool,
) -> None:
    """Nor if one of the repeats fails: others may be running."""
    events = Events(handle, monkeypatch, run_ms=0.02)
    run = trial_call.call_prepared
    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan:
        check(case, plan(case.x, case.w))
        events.reach_all()
        race, call = race_of(plan), plan._prepared
        runs = 0

        def failing(prepared: Any) -> None:
            nonlocal runs
            run(prepared)
            runs += 1
            if fails and runs == 2:
                raise dnn.NotSupportedError("cudnnX", dnn.Status.NOT_SUPPORTED, "not today")

        monkeypatch.setattr(trial_call, "call_prepared", failing)
        plan(case.x, case.w)
        candidate_plan = call._plans[1]
        if not fails:
            race.exclude(1, "to be closed")
        call._close_losers()
        assert not candidate_plan._closed
        handle.synchronize()
        events.reach_all()
        call._timer.collect()
        call._close_losers()
        assert candidate_plan._closed


def test_a_plan_waits_for_its_own_calls_where_another_one_ended_the_race(
    handle: dnn.Handle, tuner: dnn.Tuner, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = Events(handle, monkeypatch, run_ms=0.02)
    arguments = handle, case.x, case.w, case.conv
    with dnn.convolution_forward.plan(*arguments) as late:
        check(case, late(case.x, case.w))
        after_late = len(events.log)
        with dnn.convolution_forward.plan(*arguments) as other:
            race = race_of(other)
            assert race is race_of(late)
            while race.winner is None:
                check(case, other(case.x, case.w))
                # All but the events of the late plan.
                monkeypatch.setattr(
                    handle.device,
                    "elapsed_between",
                    lambda start, end: None if end <= after_late else 0.02,
                )
        check(case, late(case.x, case.w))
        assert late.choice.source == HEURISTIC
        monkeypatch.setattr(handle.device, "elapsed_between", lambda start, end: 0.02)
        for _ in range(2):
            check(case, late(case.x, case.w))
        assert late.choice.source == REAL_CALLS


@pytest.mark.gpu
def test_events_are_asked_while_a_graph_is_recorded_elsewhere() -> None:
    """In CUDA's global mode, which PyTorch records in: neither the call nor the recording fails."""
    from cuda.bindings import driver

    with dnn.Handle(device="cuda") as handle:
        device = handle.device
        start, end = (device.record_event(handle.stream) for _ in range(2))
        handle.synchronize()
        recorded = device.create_stream()
        stream = int(recorded.handle)
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        assert driver.cuStreamBeginCapture(stream, mode)[0] == 0
        ms = device.elapsed_between(start, end)
        error, graph = driver.cuStreamEndCapture(stream)
        assert error == 0
        driver.cuGraphDestroy(graph)
        assert ms is None or ms >= 0
        elapsed_ms = device.elapsed_between(start, end)
        assert elapsed_ms is not None
        assert elapsed_ms >= 0


def test_the_block_ends_before_the_race(handle: dnn.Handle, case: Case) -> None:
    with dnn.autotuned(handle, cache=":memory:", incremental=True) as tuner:
        plan = dnn.convolution_forward.plan(handle, case.x, case.w, case.conv)
    for _ in range(CALLS):
        check(case, plan(case.x, case.w))
    assert tuner.measured == 0
    check(case, case.run())
    plan.close()


# ---------------------------------------------------------------- what is remembered


def test_the_choice_is_remembered_with_how_it_was_found(
    handle: dnn.Handle, tuner: dnn.Tuner, case: Case
) -> None:
    for _ in range(CALLS):
        check(case, case.run())
    problem = dnn.convolution_forward.problem(case.x.spec, case.w.spec, case.conv)
    table = tuner.tune(problem)
    assert "real calls" in table.timing
    assert tuner.measured == 1
    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan:
        assert plan.choice.source == CACHE
        assert plan.choice.algorithm == table.best().algorithm
        assert f"chosen by {CACHE}" in str(plan.choice)


def test_the_result_of_a_search_is_not_replaced(
    handle: dnn.Handle, tuner: dnn.Tuner, case: Case
) -> None:
    """A search measures more than the calls of a plan that goes on."""
    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan:
        check(case, plan(case.x, case.w))
        searched = tuner.tune(plan.problem)
        while isinstance(plan._prepared, TrialCall):
            check(case, plan(case.x, case.w))
        assert plan.choice.source == REAL_CALLS
        assert "real calls" not in tuner.tune(plan.problem).timing
        assert len(tuner.tune(plan.problem)) == len(searched)
    check(case, case.run())


def test_a_choice_is_saved_to_a_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device = pretend_device(monkeypatch)
    with dnn.Handle(device) as handle:
        with dnn.autotuned(handle, cache=tmp_path / "cache", incremental=True):
            case = Case(handle, X, W, padding=1, math_type="fma")
            for _ in range(CALLS):
                case.run()
        with dnn.TuningCache(tmp_path / "cache") as cache:
            (entry,) = cache.entries()
        assert "real calls" in entry.timing
        with (
            dnn.autotuned(handle, cache=tmp_path / "cache", measure=False),
            dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan,
        ):
            assert plan.choice.source == CACHE
            assert plan.choice.algorithm == entry.rows[entry.chosen].algorithm
        vars(case).clear()


def pretend_device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an emulated device that says that it is a GPU."""
    device = World(monkeypatch).device
    device.kind = "cuda"
    return device


# ---------------------------------------------------------------- failures


def add_winners(monkeypatch: pytest.MonkeyPatch, handle: dnn.Handle, case: Case) -> None:
    """Let a database have a choice that works, one that cuDNN has not, and a converted one."""
    problem = dnn.convolution_forward.problem(case.x.spec, case.w.spec, case.conv)
    with graph_of_engines(handle, problem) as (first, second):
        converted = dnn.ConvolutionResult(first, dnn.MathType.FMA, layout="NHWC")
        set_winners(
            monkeypatch,
            problem,
            NOWHERE,
            dnn.AlgorithmResult(second, dnn.MathType.FMA),
            converted,
        )


@contextmanager
def graph_of_engines(handle: dnn.Handle, problem: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the first two engines that the heuristics name for a problem."""
    with ExitStack() as stack:
        graph = graph_of(handle, problem, stack)
        found = configurations(graph, HEURISTICS, stack)
        yield next(found).engine, next(found).engine


@each_extent
@pytest.mark.parametrize("accumulates", [False, True])
def test_each_failing_c_call(
    monkeypatch: pytest.MonkeyPatch, extent: str, *, accumulates: bool
) -> None:
    """The call has its result or its own error, and tuning goes on."""
    outcomes = set()
    for nth in range(1, 400, {SAMPLE: 41, ALL: 13}[extent]):
        world = World(monkeypatch)
        with dnn.Handle(world.device) as handle:
            case = Case(handle, X, W, padding=1, math_type="fma")
            add_winners(monkeypatch, handle, case)
            with dnn.autotuned(handle, cache=":memory:", incremental=True) as tuner:
                world.ledger.fail(len(world.ledger.started) + nth, dnn.Status.NOT_SUPPORTED)
                scalars = {"alpha": 1.0, "beta": 0.5} if accumulates else {}
                for _ in range(CALLS + 1):
                    out = handle.array(case.old_host)
                    try:
                        y = case.run(out=out, **scalars)
                    except dnn.CudnnError:
                        outcomes.add("error")
                        continue
                    check(case, y, **scalars)
                    outcomes.add("result")
                assert tuner.measured == 1
            vars(case).clear()
        assert world.ledger.leaked() == world.ledger.not_destroyed()
    assert "result" in outcomes


def test_a_candidate_that_fails_when_it_runs(
    handle: dnn.Handle, tuner: dnn.Tuner, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, count = trial_call.call_prepared, 0

    def failing(prepared: Any) -> None:
        nonlocal count
        count += 1
        if count % 3 == 0 and prepared is not first:
            raise dnn.NotSupportedError("cudnnX", dnn.Status.NOT_SUPPORTED, "not today")
        run(prepared)

    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan:
        first = plan._prepared._first_call
        race = race_of(plan)
        monkeypatch.setattr(trial_call, "call_prepared", failing)
        for _ in range(2 * CALLS):
            check(case, plan(case.x, case.w))
        assert race.winner is not None
        assert any("not today" in runner.why_out for runner in race.runners)


def test_an_error_after_something_was_added_is_the_calls_own(
    handle: dnn.Handle, tuner: dnn.Tuner, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what was added, so that no other candidate may compute the result."""
    run = trial_call.call_prepared

    def failing(prepared: Any) -> None:
        run(prepared)
        if prepared is not first:
            raise dnn.CudnnError("cudnnX", dnn.Status.EXECUTION_FAILED, "broken")

    options = {"beta": 1.0, "out": handle.array(case.old_host)}
    case.run(**options)
    plan = next(
        entry for entry, _ in handle.plans._cached.values() if isinstance(entry, ConvolutionPlan)
    )
    first = plan._prepared._first_call
    monkeypatch.setattr(trial_call, "call_prepared", failing)
    errors = 0
    for _ in range(2 * CALLS):
        out = handle.array(case.old_host)
        try:
            y = case.run(beta=1.0, out=out)
        except dnn.CudnnError:
            errors += 1
            continue
        check(case, y, beta=1.0)
    assert errors
    assert plan.choice.source == REAL_CALLS


def test_a_lack_of_memory(
    handle: dnn.Handle, tuner: dnn.Tuner, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate without memory for its workspace is left out, and no call fails."""
    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv, interface=None) as plan:
        call = plan._prepared
        call.leased = 0
        y = poisoned(handle, case.output_spec)
        plan(case.x, case.w, out=y)
        allocate = handle.device.allocate

        def scarce(nbytes: int, stream: Any) -> Any:
            if nbytes > 64:
                raise dnn.DeviceMemoryError("no memory")
            return allocate(nbytes, stream)

        monkeypatch.setattr(handle.device, "allocate", scarce)
        for _ in range(2 * CALLS):
            plan(case.x, case.w, out=y)
        monkeypatch.undo()
        check(case, y)
        excluded = [runner for runner in call._race.runners if runner.is_transient]
        assert excluded
        assert all("no memory" in runner.why_out for runner in excluded)
        assert call._race.winner is not None


class Interrupter:
    """Raises KeyboardInterrupt at the nth line that some modules run."""

    def __init__(self, nth: int, *modules: Any) -> None:
        self._left = nth
        self._files = {module.__file__ for module in modules}
        self.has_raised = False

    def __enter__(self) -> Interrupter:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: Any, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        if event == "line" and not self.has_raised:
            self._left -= 1
            if self._left == 0:
                self.has_raised = True
                raise KeyboardInterrupt
        return self._trace


# An interrupt just before the end of a `with` block leaves a descriptor to garbage collection.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@each_extent
@pytest.mark.parametrize("start", range(0, 1400, 100))
def test_interrupts(
    emulated_handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, start: int, extent: str
) -> None:
    """Whatever line is interrupted, later calls have their results, and tuning ends."""
    handle = emulated_handle
    for nth in range(start + 1, start + 101, {SAMPLE: 37, ALL: 11}[extent]):
        case = Case(handle, X, W, padding=1, math_type="fma")
        add_winners(monkeypatch, handle, case)
        modules = trial_call, race_module, incremental, trial_budget
        with dnn.autotuned(handle, cache=":memory:", incremental=True) as tuner:
            plan = None
            with Interrupter(nth, *modules) as interrupter:
                for _ in range(CALLS):
                    try:
                        if plan is None:
                            plan = dnn.convolution_forward.plan(handle, case.x, case.w, case.conv)
                        plan(case.x, case.w)
                    except KeyboardInterrupt:
                        pass
            assert plan is not None
            for _ in range(CALLS):
                check(case, plan(case.x, case.w))
            assert not isinstance(plan._prepared, TrialCall)
            assert plan.choice.source == REAL_CALLS
            assert tuner.measured >= 1
            plan.close()
        vars(case).clear()
        if not interrupter.has_raised:
            return


@pytest.fixture
def emulated_handle() -> Iterator[dnn.Handle]:
    with dnn.Handle("emulated") as handle:
        yield handle


# ---------------------------------------------------------------- candidates are read when needed


def open_answers() -> int:
    """Return how many answers of cuDNN's heuristics are open."""
    return sum(
        isinstance(item, BackendDescriptor) and item.kind.name == "ENGINEHEUR" and not item.closed
        for item in LIVE
    )


class ReadEngines:
    """What is read of the engines that cuDNN names for the calls of a convolution.

    There are many: each that need not be compiled is followed by fifty with numbers that cuDNN does
    not have.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.is_complete = False
        self._configurations = incremental.configurations
        monkeypatch.setattr(incremental, "configurations", self._read)

    def _read(self, *arguments: Any) -> Iterator[Any]:
        for configuration in self._configurations(*arguments):
            self.count += 1
            yield configuration
            if not configuration.compiled:
                for number in range(50):
                    yield configuration._replace(engine=dnn.Engine(1000 + number))
        self.is_complete = True


def test_a_call_reads_as_many_candidates_as_it_needs(
    handle: dnn.Handle, tuner: dnn.Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(handle, X, W, "float16", padding=1)
    engines = ReadEngines(monkeypatch)
    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan:
        race = race_of(plan)
        check(case, plan(case.x, case.w))
        assert engines.count == 0
        assert len(race.runners) == 1
        tried = 1
        while race.winner is None:
            check(case, plan(case.x, case.w))
            before, tried = tried, sum(runner.runs > 0 for runner in race.runners)
            assert tried <= before + 1
        assert engines.count > 0
        assert not engines.is_complete
    vars(case).clear()


def test_what_is_open_while_candidates_are_read_is_closed_with_the_race(
    handle: dnn.Handle, tuner: dnn.Tuner, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    ReadEngines(monkeypatch)
    before = open_answers()
    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan:
        race = race_of(plan)
        while len(race.runners) < 2:
            assert open_answers() == before
            check(case, plan(case.x, case.w))
        assert open_answers() > before
        while isinstance(plan._prepared, TrialCall):
            check(case, plan(case.x, case.w))
        assert open_answers() == before


def test_what_is_open_while_candidates_are_read_is_closed_with_the_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if the race that the plan took part in is remembered no more, or goes on."""
    ReadEngines(monkeypatch)
    monkeypatch.setattr(incremental, "MOST_RACES", 1)
    world = World(monkeypatch)
    with dnn.Handle(world.device) as handle:
        case = Case(handle, X, W, padding=1, math_type="fma")
        before = open_answers()
        with dnn.autotuned(handle, cache=":memory:", incremental=True):
            arguments = handle, case.x, case.w, case.conv
            plans = [dnn.convolution_forward.plan(*arguments) for _ in range(2)]
            assert race_of(plans[0]) is race_of(plans[1])
            dnn.convolution_forward.plan(handle, case.x, case.w).close()  # another race
            while open_answers() == before:
                check(case, plans[0](case.x, case.w))
            plans[0].close()
            assert open_answers() == before
            while open_answers() == before:
                check(case, plans[1](case.x, case.w))
            rows = [race_module.identity_of(each.row) for each in race_of(plans[1]).runners]
            assert len(set(rows)) == len(rows)
            plans[1].close()
            assert open_answers() == before
        vars(case).clear()
    assert world.ledger.leaked() == {}


@pytest.mark.parametrize("always", [False, True])
def test_candidates_that_cannot_be_read(
    handle: dnn.Handle,
    tuner: dnn.Tuner,
    case: Case,
    monkeypatch: pytest.MonkeyPatch,
    *,
    always: bool,
) -> None:
    """The call has its result, and the next one reads them again, as long as calls are left."""
    configurations = incremental.configurations
    failures = 0

    def failing(*arguments: Any) -> Iterator[Any]:
        nonlocal failures
        for configuration in configurations(*arguments):
            if always or not failures:
                failures += 1
                raise dnn.CudnnError("cudnnX", dnn.Status.INTERNAL_ERROR, "not now")
            yield configuration

    monkeypatch.setattr(incremental, "configurations", failing)
    before = open_answers()
    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan:
        race = race_of(plan)
        for _ in range(CALLS):
            check(case, plan(case.x, case.w))
            if always or not failures:
                assert open_answers() == before
        assert race.winner is not None
        assert not isinstance(plan._prepared, TrialCall)
        if always:
            assert 1 < failures < TimingPolicy().real_calls
            assert plan.choice.source == HEURISTIC
            assert tuner.measured == 0
        else:
            assert failures == 1
            assert plan.choice.source == REAL_CALLS
            assert len(race.runners) > 1


def test_a_plan_without_other_candidates_keeps_its_choice(
    handle: dnn.Handle, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental, "configurations", lambda *arguments: iter(()))
    policy = dnn.TuningPolicy(interface="graph")
    with (
        dnn.autotuned(handle, cache=":memory:", policy=policy, incremental=True) as tuner,
        dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan,
    ):
        assert isinstance(plan._prepared, TrialCall)
        for _ in range(CALLS):
            check(case, plan(case.x, case.w))
        assert plan.choice.source == HEURISTIC
        assert not isinstance(plan._prepared, TrialCall)
        assert tuner.measured == 0


# ---------------------------------------------------------------- what is kept


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """After many problems: the plans that a handle keeps, with one candidate each, or few."""
    most = 100
    monkeypatch.setattr(plan_cache, "MAX_CACHED", most)
    world = World(monkeypatch)
    with dnn.Handle(world.device) as handle:
        w = handle.array(np.ones((4, 4, 3, 3), np.float32))
        with dnn.autotuned(handle, cache=":memory:", incremental=True):
            plans_of_candidates = 0
            for size in range(5, 145):
                x = handle.empty((1, 4, size, 5))
                for _ in range(17 if size % 10 == 0 else 2):
                    dnn.convolution_forward(handle, x, w)
                call = next(reversed(handle.plans._cached.values()))[0]._prepared
                if isinstance(call, TrialCall):
                    plans_of_candidates = max(plans_of_candidates, len(call._plans))
            assert len(handle.plans) <= most
            assert 1 <= plans_of_candidates <= TimingPolicy().real_calls
        del x, w, call
        handle.plans.close()
    assert world.ledger.leaked() == {}
    assert world.memory_used == 0


def test_races_that_are_not_over_are_bounded(
    emulated_handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental, "MOST_RACES", 8)
    handle = emulated_handle
    w = handle.array(np.ones((4, 4, 3, 3), np.float32))
    with dnn.autotuned(handle, cache=":memory:", incremental=True) as tuner:
        for size in range(5, 25):
            x = handle.empty((1, 4, size, 5))
            dnn.convolution_forward(handle, x, w)
        assert tuner._real_calls is not None
        assert len(tuner._real_calls._races) == 8
        for _ in range(CALLS):
            dnn.convolution_forward(handle, x, w)
        assert len(tuner._real_calls._races) == 7


def test_random_legal_problems(handle: dnn.Handle, tuner: dnn.Tuner) -> None:
    rng = np.random.default_rng(8)
    for seed in range(12):
        groups = int(rng.choice([1, 1, 2, 4]))
        channels, filters = 4 * int(rng.integers(1, 4)), 4 * int(rng.integers(1, 4))
        taps = tuple(int(rng.integers(1, 4)) for _ in range(2))
        case = Case(
            handle,
            (int(rng.integers(1, 4)), channels, 9, 7),
            (filters, channels // groups, *taps),
            str(rng.choice(["float32", "float16", "bfloat16"])),
            str(rng.choice(["NCHW", "NHWC"])),
            seed=seed,
            groups=groups,
            padding=int(rng.integers(0, 2)),
            stride=int(rng.integers(1, 3)),
        )
        try:
            case.run()
        except UNSUPPORTED:
            continue
        for _ in range(CALLS):
            check(case, case.run())
        vars(case).clear()
    assert tuner.measured >= 6


def test_graph_plans_have_their_own_engine_back(
    handle: dnn.Handle, tuner: dnn.Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph with outputs in scratch memory, behind the workspace of each engine."""
    several_engines(monkeypatch)
    rng = np.random.default_rng(9)
    q = rng.standard_normal((1, 2, 16, 16)).astype(np.float16)
    array = handle.array(q)
    wide = q.astype(np.float64)
    scores = wide @ wide.transpose(0, 1, 3, 2) * 16**-0.5
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    expected = powers / powers.sum(-1, keepdims=True) @ wide
    for _ in range(CALLS):
        o = dnn.scaled_dot_product_attention_forward(handle, array, array, array)
        assert_close(o.numpy(), expected, 5e-3)
    plans = [entry for entry, _ in handle.plans._cached.values() if isinstance(entry, GraphPlan)]
    assert plans
    assert tuner.measured == 1
