"""The tuner on graphs: engines are timed, the choice is remembered, calls use it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from tolerances import GRAPH_BOUNDS, assert_close

import cudnnlite as dnn
from cudnnlite import OperationPlan
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.plans.choice import set_chooser
from cudnnlite.workbench.tuning.timing_policy import TimingPolicy
from cudnnlite.workbench.tuning.tuner import best_replayed

from .problems import poisoned, random_values, upload

QUICK = TimingPolicy(rounds=3, further_rounds=0, sample_ms=0.1)


def product(columns: int = 48) -> dnn.Graph:
    """Return a product with an activation."""
    graph = dnn.Graph()
    a = graph.input("a", (1, 64, 32), "float16")
    b = graph.input("b", (1, 32, columns), "float16")
    graph.output("y", graph.gelu(graph.matmul(a, b)), "float16")
    return graph


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dnn.Tuner, "timing", QUICK)


@pytest.fixture
def tuner(handle: dnn.Handle) -> dnn.Tuner:
    return dnn.Tuner(handle, cache=":memory:")


def test_engines_are_ranked_and_remembered(handle: dnn.Handle, tuner: dnn.Tuner) -> None:
    graph = product()
    table = tuner.tune(graph)
    assert table[0].ok
    assert isinstance(table[0].algorithm, dnn.types.Engine)
    assert table.title.startswith("graph of MATMUL, GELU_FWD: a 1x64x32 float16")
    equal = dnn.Graph.from_json(graph.to_json())
    assert tuner.is_remembered(equal)
    assert tuner.choose(equal).algorithm == table.best().algorithm
    assert tuner.measured == 1
    assert not tuner.is_remembered(product(56))


def test_a_plan_takes_the_choice(handle: dnn.Handle, tuner: dnn.Tuner) -> None:
    graph = product()
    choice = tuner.choose(graph)
    assert choice is not None
    with graph.plan(handle, engine=choice) as plan:
        assert plan.choice.algorithm == choice.algorithm
    with pytest.raises(dnn.ArgumentError, match=r"engine\.algorithm"):
        graph.plan(handle, engine=dnn.AlgorithmResult(0, dnn.MathType.DEFAULT))


def test_one_line_calls_are_tuned(handle: dnn.Handle) -> None:
    """Also where the arrays are new: the choice is made once for a kind of call."""
    rng = np.random.default_rng(0)
    specs = [dnn.TensorSpec((1, 64, 32), "float16"), dnn.TensorSpec((1, 32, 48), "float16")]
    values = [random_values(rng, spec.shape, spec.dtype) for spec in specs]
    expected = np.maximum(values[0].astype(np.float64) @ values[1].astype(np.float64), 0)
    with dnn.autotuned(handle, cache=":memory:") as tuner:
        for _ in range(2):
            arrays = [
                upload(handle, spec, value) for spec, value in zip(specs, values, strict=True)
            ]
            out = poisoned(handle, dnn.TensorSpec((1, 64, 48), "float16"))
            dnn.matmul(handle, *arrays, activation="relu", out=out)
            bound = GRAPH_BOUNDS["product"]["float16"]
            assert_close(out.numpy().astype(np.float64), expected, bound)
        assert tuner.measured == 1
        dnn.matmul(handle, *arrays)
        assert tuner.measured == 2


def test_dropout_is_tuned_and_takes_other_seeds(handle: dnn.Handle) -> None:
    """A call that is replayed could not: the choice is never one."""
    spec = dnn.TensorSpec((1, 2, 64, 64), "float16")
    values = np.random.default_rng(0).standard_normal(spec.shape).astype(np.float16)
    q = upload(handle, spec, values)
    function = dnn.scaled_dot_product_attention_forward
    with dnn.autotuned(handle, cache=":memory:"):
        first, second = (function(handle, q, q, q, dropout=0.5, seed=seed) for seed in (1, 2))
        assert (first.numpy() != second.numpy()).any()


def test_lengths_of_sequences_are_whole_while_it_measures(
    handle: dnn.Handle, tuner: dnn.Tuner
) -> None:
    spec = dnn.TensorSpec((2, 2, 64, 64), "float16")
    lengths = dnn.TensorSpec((2, 1, 1, 1), "int32")
    graph = dnn.scaled_dot_product_attention_forward.graph(
        spec, spec, spec, q_lengths=lengths, kv_lengths=lengths
    )
    table = tuner.tune(graph)
    assert table[0].ok
    assert "not finite" not in table[0].remark


def test_what_the_policy_asks_for_holds(handle: dnn.Handle) -> None:
    graph = product()
    policies = {
        "its error is": dnn.TuningPolicy(max_error=1e-9),
        "nothing": dnn.TuningPolicy(interface="descriptor"),
    }
    for policy in policies.values():
        with (
            dnn.Tuner(handle, cache=":memory:", policy=policy) as tuner,
            pytest.raises(dnn.NoAlgorithmError),
        ):
            tuner.choose(graph)
    policy = dnn.TuningPolicy(deterministic=True, workspace_limit=0)
    with dnn.Tuner(handle, cache=":memory:", policy=policy) as tuner:
        choice = tuner.choose(graph)
        assert choice is not None
        assert choice.deterministic
        assert choice.workspace == 0


@pytest.mark.parametrize("columns", [48, 1])
def test_errors_beside_float64_are_measured(handle: dnn.Handle, columns: int) -> None:
    policy = dnn.TuningPolicy(max_error=1e-3)
    with dnn.Tuner(handle, cache=":memory:", policy=policy) as tuner:
        table = tuner.tune(product(columns))
        errors = [(row.error, row.max_error) for row in table if row.ok]
        assert errors
        assert all(0 < error <= 1e-3 and largest is not None for error, largest in errors)
        with pytest.raises(dnn.NoAlgorithmError, match="its error was not measured"):
            tuner.choose(without_a_reference())


def without_a_reference() -> dnn.Graph:
    """Return a convolution, which has no float64 reference as a graph."""
    graph = dnn.Graph()
    x = graph.input("x", (2, 8, 9, 7), "float16", (504, 1, 56, 8))
    w = graph.input("w", (8, 8, 3, 3), "float16", (72, 1, 24, 8))
    graph.output("y", graph.convolution_forward(x, w), "float16")
    return graph


def test_a_wrong_number_of_the_engine_that_the_heuristics_prefer_is_seen(
    handle: dnn.Handle, tuner: dnn.Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other engines are compared with float64, and not with a wrong result."""
    call = OperationPlan.__call__
    engines: list[object] = []

    def faulty(
        plan: OperationPlan[dict[str, dnn.DeviceArray]], *operands: object, **options: object
    ) -> object:
        result = call(plan, *operands, **options)
        engines.append(plan.choice.algorithm)
        if plan.choice.algorithm == engines[0]:
            for array in result.values():
                array.fill(0)
        return result

    monkeypatch.setattr(OperationPlan, "__call__", faulty)
    table = tuner.tune(product())
    for row in table:
        if row.algorithm == engines[0]:
            assert row.why_not.startswith("wrong: relative error 1")
        else:
            assert not row.why_not.startswith("wrong")


def test_values_that_the_type_cannot_hold_are_not_compared(
    handle: dnn.Handle, tuner: dnn.Tuner
) -> None:
    """The exponentials of sums of products are infinite in float16."""
    graph = dnn.Graph()
    a = graph.input("a", (1, 64, 32), "float16")
    b = graph.input("b", (1, 32, 48), "float16")
    graph.output("y", graph.exp(graph.matmul(a, b)), "float16")
    row = tuner.tune(graph)[0]
    assert row.ok
    assert row.error is None


def test_the_users_operands(handle: dnn.Handle, tuner: dnn.Tuner) -> None:
    a = handle.array(np.ones((1, 64, 32)), dtype="float16")
    b = handle.array(np.ones((1, 32, 48)), dtype="float16")
    assert tuner.tune(product(), {"a": a, "b": b})[0].ok
    with pytest.raises(dnn.ArgumentError, match=r"operands=\['a'\]; needed: a, b"):
        tuner.tune(product(), {"a": a})
    with pytest.raises(dnn.ArgumentError, match="b is TensorSpec"):
        tuner.tune(product(), {"a": a, "b": a})


def test_a_graph_that_is_computed_wrongly_is_not_tuned(
    handle: dnn.Handle, tuner: dnn.Tuner
) -> None:
    graph = dnn.Graph()
    x = graph.input("x", (2, 8, 5, 5), "bfloat16", (200, 1, 40, 8))
    graph.output(
        "y",
        graph.resample_forward("MAXPOOL", x, (2, 2), stride=(2, 2), padding=((0, 0), (0, 0))),
        "bfloat16",
    )
    with pytest.raises(dnn.ArgumentError, match="pools bfloat16 with channels last wrongly"):
        tuner.tune(graph)


def test_a_graph_as_a_problem_is_a_value() -> None:
    problem = GraphProblem(product())
    restored = pickle.loads(pickle.dumps(problem))
    assert restored == problem
    assert hash(restored) == hash(problem)
    assert problem != GraphProblem(product(56))
    assert problem.flops == 2 * 64 * 32 * 48
    json.dumps(problem.to_plain())


class _SaysThatItIsReal(EmulatedDevice):
    """An emulated device whose times go to the cache."""

    kind = "cuda"
    has_real_timing = True


def test_the_choice_is_in_the_cache(tmp_path: Path) -> None:
    graph = product()
    with dnn.Handle(_SaysThatItIsReal(0)) as handle:
        with dnn.Tuner(handle, cache=tmp_path) as tuner:
            best = tuner.tune(graph).best()
        with dnn.Tuner(handle, cache=tmp_path, measure=False) as tuner:
            choice = tuner.choose(dnn.Graph.from_json(graph.to_json()))
            assert choice is not None
            assert choice.algorithm == best.algorithm
            assert tuner.measured == 0
            (entry,) = tuner.cache.entries()
            assert entry.key.problem == GraphProblem(graph)


def test_what_is_replayed_is_chosen_by_the_time_on_the_device() -> None:
    """Called eagerly the first is faster, because the host takes longer for the second."""
    eager, replayed = (
        dnn.AlgorithmResult(
            dnn.types.Engine(index), dnn.MathType.DEFAULT, time_ms=time_ms, call_us=call_us
        )
        for index, time_ms, call_us in ((1, 0.02, 21.0), (2, 0.005, 60.0))
    )
    refused = dnn.AlgorithmResult(
        dnn.types.Engine(3), dnn.MathType.DEFAULT, time_ms=0.001, why_not="it is wrong"
    )
    table = dnn.AlgorithmTable((eager, replayed, refused), title="", timing="")
    assert table.best() == eager
    assert best_replayed(table) == replayed


@pytest.mark.parametrize("replay", [False, True])
def test_a_plan_says_whether_it_replays(handle: dnn.Handle, replay: bool) -> None:
    option_sets = []

    class Chooser:
        revision = 0

        def choose(self, *arguments: object, **options: object) -> None:
            option_sets.append(options)

    set_chooser(handle, Chooser())
    x = handle.array(np.ones((2, 8, 9, 9)), dtype="float32")
    w = handle.array(np.ones((8, 8, 3, 3)), dtype="float32")
    spec = dnn.RNNSpec("gru", 8, 8)
    sequence = handle.array(np.ones((5, 2, 8)), dtype="float32")
    weights = dnn.RNNWeights(handle, spec)
    dnn.convolution_forward.plan(handle, x, w, replay=replay).close()
    dnn.rnn_forward.plan(handle, spec, weights, sequence, replay=replay).close()
    product().plan(handle, replay=replay).close()
    options = {"for_call": True, "replay": replay}
    assert option_sets == [options, options, options]


def test_scratch_outputs_take_their_part_of_the_tuner_s_limit() -> None:
    limits = []

    class Chooser:
        revision = 0

        def choose(
            self, problem: object, operands: object, workspace_limit: int, **_: object
        ) -> None:
            limits.append(workspace_limit)

    limit = 1 << 20
    heads = [dnn.TensorSpec((1, 2, 64, 64), "float16")] * 5
    stats = dnn.TensorSpec((1, 2, 64, 1))
    with dnn.Handle("emulated", workspace_limit=limit) as handle:
        set_chooser(handle, Chooser())
        with dnn.scaled_dot_product_attention_backward.plan(handle, *heads, stats) as plan:
            (engine_limit,) = limits
            assert limit - engine_limit >= plan.workspace - plan.choice.workspace > 0
