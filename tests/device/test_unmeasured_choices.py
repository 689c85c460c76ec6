"""Choices of a tuner that does not measure, or cannot: what its policy allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tolerances import assert_close, bound

import cudnnlite as dnn
from cudnnlite import OperationPlan, RNNPlan
from cudnnlite.devices.arrays import part_of
from cudnnlite.problems.results import CACHE, HEURISTIC

from .problems import Problem as Case
from .problems import poisoned
from .test_rnn_plan import Network

X, W = (2, 4, 9, 8), (6, 4, 3, 3)
WINOGRAD = dnn.enums.ConvolutionFwdAlgo.WINOGRAD
FAST_TANH = 2e-5  # the least exact algorithm of a network in true float32
MATMUL_BOUND = 2e-3  # float16, and TF32 where float32 is multiplied


def unaligned(handle: dnn.Handle, x: dnn.DeviceArray) -> dnn.DeviceArray:
    """Return a copy of an array whose address is a multiple of its values' size alone."""
    memory = handle.empty((x.size + 1,), x.dtype)
    copy = part_of(memory, x.spec, memory.spec.nbytes // memory.size)
    copy.copy_from(x.numpy())
    return copy


@pytest.mark.parametrize("how", ["aligned", "unaligned", "replay", "recorded", "one line"])
@pytest.mark.filterwarnings("ignore::cudnnlite.errors.TuningWarning")
@pytest.mark.filterwarnings("ignore::cudnnlite.errors.AlignmentWarning")
def test_the_policy_holds_where_nothing_is_measured(handle: dnn.Handle, how: str) -> None:
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
    with dnn.autotuned(handle, cache=":memory:", policy=policy, measure=False):
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
        dnn.autotuned(handle, cache=":memory:", policy=nothing, measure=False),
        pytest.raises(dnn.NoAlgorithmError, match="math type"),
    ):
        compute()


def check_strictly(case: Case, y: dnn.DeviceArray) -> None:
    """Compare a result of true float32."""
    assert_close(y.numpy(), case.expected(), bound(case.dtype, dnn.MathType.FMA, WINOGRAD, W))


@pytest.mark.filterwarnings("ignore::cudnnlite.errors.TuningWarning")
@pytest.mark.filterwarnings("ignore::cudnnlite.errors.AlignmentWarning")
def test_an_engine_runs_unaligned_operands_where_no_algorithm_serves(
    handle: dnn.Handle,
) -> None:
    case = Case(handle, X, W, padding=((0, 1), (1, 0)), math_type="fma")
    policy = dnn.TuningPolicy(workspace_limit="1 GiB")
    with dnn.autotuned(handle, cache=":memory:", policy=policy, measure=False):
        y = dnn.convolution_forward(handle, unaligned(handle, case.x), case.w, case.conv)
    check_strictly(case, y)


def choices_of(tuner: dnn.Tuner, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets what the tuner returns each time it is asked."""
    choices: list[Any] = []
    choose = tuner.choose

    def noted(*arguments: Any, **options: Any) -> Any:
        choices.append(choose(*arguments, **options))
        return choices[-1]

    monkeypatch.setattr(tuner, "choose", noted)
    return choices


@pytest.mark.filterwarnings("ignore::cudnnlite.errors.TuningWarning")
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
    call = OperationPlan.__call__

    def noted(self: Any, *operands: Any, **options: Any) -> Any:
        choices.append(self.choice)
        return call(self, *operands, **options)

    monkeypatch.setattr(OperationPlan, "__call__", noted)
    return choices


@pytest.mark.parametrize("options", [{"measure": False}, {}], ids=str)
@pytest.mark.filterwarnings("ignore::cudnnlite.errors.TuningWarning")
def test_one_line_calls_with_replay_have_plans_of_their_tuner(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool]
) -> None:
    case = Case(handle, X, W, padding=1)
    choices = algorithms_that_run(monkeypatch)
    case.run(replay=True)
    descriptor = dnn.TuningPolicy(interface="descriptor", math_type="fma")
    with dnn.autotuned(handle, cache=":memory:", policy=descriptor, **options):
        check_strictly(case, case.run(replay=True))
    assert not isinstance(choices[-1].algorithm, dnn.types.Engine)
    nothing = dnn.TuningPolicy(math_type="tensor_op_allow_conversion")
    with (
        dnn.autotuned(handle, cache=":memory:", policy=nothing, **options),
        pytest.raises(dnn.NoAlgorithmError, match="math type"),
    ):
        case.run(replay=True)
    case.run(replay=True)
    assert choices[-1] == choices[0]


@pytest.mark.filterwarnings("ignore::cudnnlite.errors.TuningWarning")
@pytest.mark.filterwarnings("ignore::cudnnlite.errors.AlignmentWarning")
def test_a_choice_that_was_named_before_takes_operands_that_are_not_aligned(
    handle: dnn.Handle,
) -> None:
    case = Case(handle, X, W, padding=1, math_type="fma")
    policy = dnn.TuningPolicy(interface="graph")
    with dnn.autotuned(handle, cache=":memory:", policy=policy, measure=False) as tuner:
        problem = dnn.convolution_forward.problem(case.x, case.w, case.conv)
        choice = tuner.choose(problem)
        y = dnn.convolution_forward(handle, case.x, case.w, case.conv, algorithm=choice)
        check_strictly(case, y)
        x = unaligned(handle, case.x)
        check_strictly(case, dnn.convolution_forward(handle, x, case.w, case.conv))


@pytest.mark.filterwarnings("ignore::cudnnlite.errors.TuningWarning")
def test_the_tuner_is_asked_for_a_graph_that_was_recorded_first(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(8)
    a, b = (handle.array(rng.standard_normal((1, 16, 16)), dtype="float16") for _ in "ab")
    expected = a.numpy().astype(np.float64) @ b.numpy().astype(np.float64)
    y = handle.zeros((1, 16, 16), dtype="float16")
    handle.workspace.reserve(64 << 20, handle.stream)
    with dnn.autotuned(handle, cache=":memory:") as tuner:
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


@pytest.mark.filterwarnings("ignore::cudnnlite.errors.TuningWarning")
def test_a_graph_for_which_the_policy_allows_nothing(handle: dnn.Handle) -> None:
    check_that_no_engine_is_allowed(handle, dnn.TuningPolicy(interface="descriptor"))


@pytest.mark.filterwarnings("ignore::cudnnlite.errors.TuningWarning")
def test_a_graph_without_an_engine_of_the_math_type() -> None:
    """On the emulated device: a GPU has an FMA engine for it."""
    with dnn.Handle("emulated") as handle:
        check_that_no_engine_is_allowed(handle, dnn.TuningPolicy(math_type="fma"))


def check_that_no_engine_is_allowed(handle: dnn.Handle, policy: dnn.TuningPolicy) -> None:
    a, b = handle.zeros((1, 16, 16), dtype="float16"), handle.zeros((1, 16, 16), dtype="float16")
    with (
        dnn.autotuned(handle, cache=":memory:", policy=policy, measure=False),
        pytest.raises(dnn.NoAlgorithmError),
    ):
        dnn.matmul(handle, a, b)


@pytest.mark.filterwarnings("ignore::cudnnlite.errors.TuningWarning")
def test_the_policy_holds_for_graphs_where_nothing_is_measured(
    handle: dnn.Handle,
) -> None:
    graph = dnn.Graph()
    a = graph.input("a", (1, 24, 16), "float16")
    b = graph.input("b", (1, 16, 8), "float16")
    graph.output("y", graph.matmul(a, b))
    policy = dnn.TuningPolicy(deterministic=True, workspace_limit=1 << 20)
    with (
        dnn.autotuned(handle, cache=":memory:", policy=policy, measure=False),
        graph.plan(handle) as plan,
    ):
        assert plan.choice.source == HEURISTIC
        assert plan.choice.deterministic
        assert plan.workspace <= 1 << 20


@pytest.mark.parametrize("as_plan", [False, True])
@pytest.mark.filterwarnings("ignore::cudnnlite.errors.TuningWarning")
def test_the_policy_holds_for_recurrent_networks(handle: dnn.Handle, *, as_plan: bool) -> None:
    network = Network(handle, "gru", 6, 8, math_type="default")

    def compute() -> None:
        if not as_plan:
            network.assert_right(network.run(), network.expected(), bound=FAST_TANH)
            return
        with network.plan() as plan:
            assert plan.choice.math_type == dnn.MathType.FMA
            network.assert_right(network.call(plan), network.expected(), bound=FAST_TANH)

    policy = dnn.TuningPolicy(math_type="fma")
    with dnn.autotuned(handle, cache=":memory:", policy=policy, measure=False) as tuner:
        for _ in range(3):
            compute()
        assert tuner.measured == 0
    limit = dnn.TuningPolicy(workspace_limit=0)
    with (
        dnn.autotuned(handle, cache=":memory:", policy=limit, measure=False),
        pytest.raises(dnn.NoAlgorithmError, match="the limit is 0 B"),
    ):
        compute()


@pytest.mark.filterwarnings("ignore::cudnnlite.errors.TuningWarning")
def test_the_policy_holds_for_a_recurrent_network_that_is_recorded(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(handle, "gru", 6, 8, math_type="default")
    math_types = set()
    run = RNNPlan.__call__

    def noted(self: Any, *operands: Any, **how: Any) -> Any:
        math_types.add(self.key.choice.math_type)
        return run(self, *operands, **how)

    monkeypatch.setattr(RNNPlan, "__call__", noted)
    out = network.outputs()
    handle.workspace.reserve(64 << 20, handle.stream)
    policy = dnn.TuningPolicy(math_type="fma")
    with dnn.autotuned(handle, cache=":memory:", policy=policy) as tuner:
        with dnn.capture(handle) as graph:
            network.run(out=out)
        graph.launch()
        graph.close()
        network.assert_right(out, network.expected(), bound=FAST_TANH)
        assert tuner.measured == 0
    assert math_types == {dnn.MathType.FMA}


@pytest.mark.parametrize("policy", [dnn.TuningPolicy(), dnn.TuningPolicy(interface="graph")])
@pytest.mark.filterwarnings("ignore::cudnnlite.errors.TuningWarning")
def test_a_call_that_is_first_made_while_a_graph_is_recorded(
    handle: dnn.Handle, policy: dnn.TuningPolicy
) -> None:
    case = Case(handle, X, W, padding=1, math_type="fma")
    out = poisoned(handle, case.output_spec)
    handle.workspace.reserve(1 << 20, handle.stream)
    with dnn.autotuned(handle, cache=":memory:", policy=policy) as tuner:
        with dnn.capture(handle) as graph:
            case.run(out=out)
        graph.launch()
        check_strictly(case, out)
        graph.close()
        for _ in range(3):
            check_strictly(case, case.run())
        assert tuner.measured == 1
