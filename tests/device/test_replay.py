"""Plans with ``replay=True`` give the results of plans without, on both devices."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite.types import Replay, ReplayCosts
from cudnnlite.workbench.tuning.replayed_rows import with_replay

from .problems import Problem, fill, memory_of, poisoned, upload, with_gaps
from .rnn_problems import Case, overwrite
from .rnn_problems import Problem as Network

X, W = (3, 4, 9, 11), (5, 4, 3, 3)
FFT, GEMM = dnn.enums.ConvolutionFwdAlgo.FFT, dnn.enums.ConvolutionFwdAlgo.GEMM
MOST = 8 + 2  # graphs over operands, and over the plan's own buffers

each_cell = pytest.mark.parametrize("cell", ["lstm", "gru"])
each_states = pytest.mark.parametrize("states", [False, True], ids=["no states", "states"])


def network_of(
    handle: dnn.Handle, cell: str = "lstm", *, seed_scale: float | None = None, **options: Any
) -> Network:
    case = Case(
        cell, num_layers=2, bidirectional=True, dtype="float32", scale=seed_scale, **options
    )
    return Network(handle, case)


def call(plan: dnn.RNNPlan, network: Network, *, x: Any = None, **options: Any) -> Any:
    x = network.x if x is None else x
    return plan(
        network.weights, x, network.hx, network.cx, **{"lengths": network.lengths} | options
    )


def plan_of(handle: dnn.Handle, network: Network, **options: Any) -> dnn.RNNPlan:
    return dnn.rnn_forward.plan(
        handle, network.spec, None, network.x, lengths=network.lengths, replay=True, **options
    )


def assert_same(results: Any, expected: Any) -> None:
    for one, other in zip(results, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_array_equal(one.numpy(), other.numpy())


# ---------------------------------------------------------------- recurrent networks


@each_cell
@each_states
def test_the_same_addresses_are_launched(handle: dnn.Handle, cell: str, states: bool) -> None:
    network = network_of(handle, cell, states=states)
    with plan_of(handle, network) as plan:
        assert plan.replay == (0, 0, 0, 0, None, "")
        out = call(plan, network)
        network.assert_forward(out, None)
        assert (plan.replay.eager, plan.replay.graphs) == (1, 1)
        for turn in range(3):
            for array in out:
                if array is not None:
                    fill(array, 0xFF)
            call(plan, network, out=out)
            network.assert_forward(out, None)
            assert (plan.replay.launched, plan.replay.eager, plan.replay.graphs) == (turn + 1, 1, 1)
        values = network.x.numpy()
        overwrite(network.x, values[::-1])  # another input in the same place
        with dnn.rnn_forward.plan(handle, network.spec, None, network.x) as eager:
            assert_same(call(plan, network, out=out), call(eager, network))


@each_cell
@each_states
def test_new_arrays_at_each_call(handle: dnn.Handle, cell: str, states: bool) -> None:
    network, rng = network_of(handle, cell, states=states), np.random.default_rng(0)
    history = []
    with (
        plan_of(handle, network) as plan,
        dnn.rnn_forward.plan(handle, network.spec, None, network.x) as eager,
    ):
        for _ in range(12):
            x = handle.array(rng.standard_normal(network.x.shape).astype(np.float32))
            outputs, expected = call(plan, network, x=x), call(eager, network, x=x)
            assert_same(outputs, expected)
            history.append((x, outputs, expected))
        for x, outputs, expected in history:
            assert_same(outputs, expected)  # nothing was overwritten later
            network_x = x.numpy()
            assert np.isfinite(network_x).all()
        report = plan.replay
        assert report.launched + report.staged + report.eager == 12
        assert report.graphs <= MOST
        if handle.device.kind == "emulated":
            assert (report.eager, report.staged, report.costs) == (1, 11, None)
        else:
            assert report.costs is not None
            assert min(report.costs) > 0
            if 1.06 * report.costs.staged_us < report.costs.eager_us:
                assert report.staged >= 11 - report.launched - 1
            if report.costs.staged_us > 1.06 * report.costs.eager_us:
                assert report.staged == 0


def test_addresses_that_come_again_are_recorded(handle: dnn.Handle) -> None:
    network = network_of(handle)
    outs = [network.poisoned(network.spec.output_size) for _ in range(3)]
    with plan_of(handle, network) as plan:
        for _ in range(4):
            for out in outs:
                for array in out:
                    fill(array, 0xFF)
                call(plan, network, out=out)
                network.assert_forward(dnn.types.RNNOutput(*out), None)
        if handle.device.kind == "emulated":  # recorded at their second time
            assert plan.replay == (7, 4, 1, 4, None, "")


def test_the_number_of_graphs_is_bounded(handle: dnn.Handle) -> None:
    network = network_of(handle)
    outs = [network.poisoned(network.spec.output_size) for _ in range(12)]
    with plan_of(handle, network) as plan:
        sizes = []
        for _ in range(6):
            for out in outs:
                call(plan, network, out=out)
            assert plan.replay.graphs <= MOST
            handle.synchronize()
            gc.collect()
            sizes.append(handle.device.memory_used())
        assert sizes[-1] == sizes[1]
    for out in outs:
        network.assert_forward(dnn.types.RNNOutput(*out), None)


@pytest.mark.parametrize("again", [1, 2])
def test_lengths_change(handle: dnn.Handle, again: int) -> None:
    network = network_of(handle, lengths=(3, 5, 1))
    length_lists = [(3, 5, 1), (5, 5, 5), (1, 2, 5), (4, 4, 4), (2, 2, 2), (3, 1, 1)]
    with (
        plan_of(handle, network) as plan,
        dnn.rnn_forward.plan(handle, network.spec, None, network.x, lengths=[3, 5, 1]) as eager,
    ):
        for _ in range(2):
            for lengths in length_lists:
                for _ in range(again):
                    assert_same(
                        call(plan, network, lengths=lengths), call(eager, network, lengths=lengths)
                    )
        network.assert_forward(call(plan, network), None)


def test_weights_and_workspace_change(handle: dnn.Handle) -> None:
    network = network_of(handle)
    other = dnn.RNNWeights.from_arrays(
        handle, network.spec, {n: 2 * v for n, v in network.case.values.weights.items()}
    )
    with (
        plan_of(handle, network) as plan,
        dnn.rnn_forward.plan(handle, network.spec, None, network.x) as eager,
    ):
        for turn in range(8):
            weights = (network.weights, other)[turn % 2]
            operands = weights, network.x, network.hx, network.cx
            assert_same(plan(*operands), eager(*operands))
            if turn % 3 == 2:
                handle.workspace.release()
                handle.workspace.reserve(1 << (12 + turn), handle.stream)
        workspace = handle.empty((max(plan.workspace, 1),), "uint8")
        for _ in range(3):
            network.assert_forward(call(plan, network, workspace=workspace), None)


def test_other_streams(handle: dnn.Handle) -> None:
    network, rng = network_of(handle), np.random.default_rng(1)
    with (
        plan_of(handle, network) as plan,
        dnn.rnn_forward.plan(handle, network.spec, None, network.x) as eager,
    ):
        out = call(plan, network)
        for _ in range(3):
            handle.stream = handle.device.create_stream()
            network.assert_forward(call(plan, network, out=out), None)
            x = handle.array(rng.standard_normal(network.x.shape).astype(np.float32))
            assert_same(call(plan, network, x=x), call(eager, network, x=x))


def test_a_training_step(handle: dnn.Handle) -> None:
    network = network_of(handle)
    with plan_of(handle, network, training=True) as plan:
        trained = call(plan, network)
        for _ in range(3):
            for array in trained[:3]:
                fill(array, 0xFF)
            again = call(plan, network, out=trained[:3], reserve=trained.reserve)
            network.assert_forward(again, None)
            network.assert_backward(*network.backward(again.reserve), None)
        assert plan.replay.launched == 3
        new = call(plan, network)
        network.assert_forward(new, None)
        network.assert_backward(*network.backward(new.reserve), None)


# ---------------------------------------------------------------- convolutions


@pytest.mark.parametrize("interface", ["graph", "descriptor"])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_a_convolution(handle: dnn.Handle, interface: str, beta: float) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    options: Any = {"beta": beta, "alpha": 0.5, "interface": interface}
    with (
        dnn.convolution_forward.plan(
            handle, problem.x, problem.w, problem.conv, replay=True, **options
        ) as plan,
        dnn.convolution_forward.plan(
            handle, problem.x, problem.w, problem.conv, **options
        ) as eager,
    ):
        history = []
        rng = np.random.default_rng(2)
        for turn in range(9):
            x = problem.x if turn % 2 else handle.array(rng.standard_normal(X).astype(np.float32))
            outs = [handle.array(problem.old_host) for _ in range(2)]
            history.append((x, outs))
            plan(x, problem.w, out=outs[0])
            eager(x, problem.w, out=outs[1])
            np.testing.assert_array_equal(outs[0].numpy(), outs[1].numpy())
            if turn % 2:
                problem.assert_right(
                    outs[0], plan.choice.algorithm, alpha=0.5, beta=beta, old=problem.old_host
                )
        assert sum(plan.replay[:3]) == 9
        assert plan.replay.why_not == ""
        x, (y, _) = history[0]
        before = plan.replay.launched
        for _ in range(3):
            overwrite(y, problem.old_host)
            plan(x, problem.w, out=y)
        assert plan.replay.launched == before + 3
        assert eager.replay is None


def test_what_lies_between_the_values_of_a_result_stays(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    spec = with_gaps(problem.y_shape, "float32")
    with dnn.convolution_forward.plan(
        handle, problem.x, problem.w, problem.conv, out=spec, replay=True, interface="descriptor"
    ) as plan:
        outs = [upload(handle, spec, np.zeros(problem.y_shape, np.float32)) for _ in range(4)]
        for _ in range(3):
            for out in outs:
                plan(problem.x, problem.w, out=out)
        expected = memory_of(outs[0])
        for out in outs:
            problem.assert_right(out, plan.choice.algorithm)
            np.testing.assert_array_equal(memory_of(out), expected)
        assert plan.replay.staged == 0


def test_what_is_not_aligned_is_refused_as_ever(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    whole = handle.array(np.zeros(np.prod(X) + 1, np.float32))
    spec = problem.x.spec
    off = dnn.devices.arrays.part_of(whole, spec, 4)
    with dnn.convolution_forward.plan(
        handle, spec, problem.w, problem.conv, interface="graph", replay=True
    ) as plan:
        results = [plan(problem.x, problem.w) for _ in range(3)]
        with pytest.raises(dnn.ArgumentError, match=r"x begins at .* aligned to 16 bytes"):
            plan(off, problem.w)
        results.append(plan(problem.x, problem.w))
        for y in results:
            problem.assert_right(y, plan.choice.algorithm)


@pytest.mark.parametrize("operand", ["data", "filter"])
def test_a_gradient(handle: dnn.Handle, operand: str) -> None:
    rng, conv = np.random.default_rng(3), dnn.ConvolutionSpec(padding=1, math_type="fma")
    w, dy_shape = handle.array(rng.standard_normal(W).astype(np.float32)), (X[0], W[0], *X[2:])
    make = getattr(dnn, f"convolution_backward_{operand}").plan
    draw = {
        "data": lambda: w,
        "filter": lambda: handle.array(rng.standard_normal(X).astype(np.float32)),
    }[operand]
    operands = draw(), handle.array(rng.standard_normal(dy_shape).astype(np.float32))
    with make(handle, *operands, conv, replay=True) as plan, make(handle, *operands, conv) as eager:
        history = []
        for _ in range(6):
            history.append((draw(), handle.array(rng.standard_normal(dy_shape).astype(np.float32))))
            history.append((plan(*history[-1]), eager(*history[-1])))
        for replayed, expected in history[1::2]:
            np.testing.assert_array_equal(replayed.numpy(), expected.numpy())
        out = plan(*operands)
        for _ in range(3):
            plan(*operands, out=out)
        assert plan.replay.graphs >= 1  # which of the ways is taken, their times decide
        assert plan.replay.launched + plan.replay.staged + plan.replay.eager >= 10
        np.testing.assert_array_equal(out.numpy(), eager(*operands).numpy())


def test_an_empty_batch(handle: dnn.Handle) -> None:
    x, w = handle.empty((0, *X[1:])), handle.array(np.ones(W, np.float32))
    with dnn.convolution_forward.plan(handle, x, w, replay=True) as plan:
        assert plan(x, w).shape == (0, 5, 7, 9)


# ---------------------------------------------------------------- as a search's result


def test_a_result_that_replays(handle: dnn.Handle) -> None:
    """`rnn_forward` keeps a plan that replays for it, `rnn_forward.plan` makes one."""
    network = network_of(handle)
    row = replace(
        dnn.AlgorithmResult(dnn.enums.RNNAlgo.STANDARD, network.spec.math_type), replay=True
    )
    assert "replayed" in str(row)
    assert "replayed" in str(dnn.AlgorithmTable([row], title="", timing="").explain())
    with dnn.rnn_forward.plan(handle, network.spec, None, network.x, algorithm=row) as plan:
        assert plan.choice.replay
        for _ in range(3):
            network.assert_forward(call(plan, network))
        assert sum(plan.replay[:3]) == 3
    out = network.forward(algorithm=row)
    for _ in range(4):
        for array in out:
            fill(array, 0xFF)
        network.assert_forward(network.forward(algorithm=row, out=out))
        network.assert_forward(network.forward(algorithm=row))


@pytest.mark.parametrize("interface", ["descriptor", "graph"])
def test_a_tuned_convolution_that_replays(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, interface: str
) -> None:
    """One-line calls inside `autotuned`, and plans, take a choice as it is."""
    problem = Problem(handle, X, W, math_type="fma")
    with dnn.convolution_forward.plan(
        handle, problem.x, problem.w, problem.conv, interface=interface
    ) as plan:
        row = replace(plan.choice, replay=True)
    with dnn.autotuned(handle, cache=":memory:") as tuner:
        monkeypatch.setattr(tuner, "choose", lambda *_, **__: row)
        out = poisoned(handle, problem.output_spec)
        for turn in range(6):
            fill(out, 0xFF)
            y = dnn.convolution_forward(
                handle, problem.x, problem.w, problem.conv, out=out if turn % 2 else None
            )
            np.testing.assert_allclose(y.numpy(), problem.expected(), rtol=1e-4, atol=1e-5)
    with dnn.convolution_forward.plan(
        handle, problem.x, problem.w, problem.conv, algorithm=row
    ) as plan:
        for _ in range(3):
            np.testing.assert_allclose(
                plan(problem.x, problem.w).numpy(), problem.expected(), rtol=1e-4, atol=1e-5
            )
        assert sum(plan.replay[:3]) == 3


@pytest.mark.parametrize(
    ("staged", "first"),
    [
        (30.0, (FFT, True)),
        (56.0, (GEMM, False)),
        (None, (GEMM, False)),
        (dnn.CudnnError, (GEMM, False)),
    ],
)
def test_it_is_ranked_by_what_a_call_takes(staged: Any, first: Any) -> None:
    """What the plan itself takes, and its measurement leaves out, is added: 5 us here."""
    eager = dnn.AlgorithmResult(GEMM, dnn.MathType.FMA, time_ms=0.056, call_us=60.0)
    hidden = dnn.AlgorithmResult(FFT, dnn.MathType.FMA, time_ms=0.02, call_us=100.0)
    algorithms = []

    def measure(row: dnn.AlgorithmResult) -> Replay:
        algorithms.append(row.algorithm)
        if staged is dnn.CudnnError:
            raise dnn.NotSupportedError("cudnnConvolutionForward", 3000, "")
        return Replay(costs=None if staged is None else ReplayCosts(95.0, staged, 25.0, 99.0))

    rows = with_replay([eager, hidden], measure)
    assert (rows[0].algorithm, rows[0].replay) == first
    assert algorithms == [FFT]  # of GEMM the device takes nearly as much as a call
    assert [row.call_us for row in rows if row.replay] == (
        [staged + 5.0] if isinstance(staged, float) else []
    )
    assert (
        len(with_replay([replace(eager, call_us=19.0, time_ms=0.001)], measure)) == 1
    )  # nothing to gain
    del algorithms[:]
    with_replay([eager, *(replace(hidden, time_ms=ms) for ms in (0.03, 0.01, 0.02))], measure)
    assert len(algorithms) == 2
    del algorithms[:]
    other = replace(hidden, algorithm=dnn.enums.ConvolutionFwdAlgo.DIRECT, time_ms=0.03)
    with_replay([eager, hidden, replace(hidden, math_type=dnn.MathType.DEFAULT), other], measure)
    assert algorithms == [FFT, other.algorithm]  # rows of one time are one kernel


def test_the_search_counts_copies(handle: dnn.Handle) -> None:
    """The table has what replayed calls cost, where replay may win.

    On the emulated device times mean nothing.
    """
    network = Network(
        handle,
        Case(
            "lstm", num_layers=3, dtype="float32", steps=40, batch=4, input_size=32, hidden_size=64
        ),
    )
    problem = dnn.rnn_forward.problem(network.spec, network.weights, network.x)
    operands = {"weights": network.weights, "x": network.x}
    on_device = dnn.TuningPolicy(objective="device")
    with dnn.Tuner(handle, cache=":memory:", policy=on_device) as tuner:
        assert not any(row.replay for row in tuner.tune(problem, operands))
    with dnn.Tuner(handle, cache=":memory:") as tuner:
        table = tuner.tune(problem, operands)
    replayed = [row for row in table if row.replay]
    for row in replayed:
        (eager,) = [
            r
            for r in table
            if (r.algorithm, r.math_type, r.replay) == (row.algorithm, row.math_type, False)
        ]
        assert row.call_us != eager.call_us
        assert row.ok
    if handle.device.kind == "emulated":
        assert replayed == []
    times = [row.call_us for row in table if row.ok and row.call_us is not None]
    assert table.best().call_us <= min(times) * 1.2
    dnn.rnn_forward(handle, network.spec, network.weights, network.x, algorithm=table.best())


# ---------------------------------------------------------------- the rest


@pytest.mark.parametrize("replay", [1, "yes", None])
def test_replay_is_true_or_false(handle: dnn.Handle, replay: Any) -> None:
    problem, network = Problem(handle, X, W), network_of(handle)
    with pytest.raises(dnn.ArgumentError, match=r"replay=.*; allowed: True, False"):
        dnn.convolution_forward.plan(handle, problem.x, problem.w, replay=replay)
    with pytest.raises(dnn.ArgumentError, match=r"replay=.*; allowed: True, False"):
        dnn.rnn_forward.plan(handle, network.spec, None, network.x, replay=replay)


def test_in_a_capture_it_records_its_call(handle: dnn.Handle) -> None:
    network = network_of(handle)
    with plan_of(handle, network) as plan:
        out = call(plan, network)
        call(plan, network, out=out)
        before = plan.replay
        for array in out:
            fill(array, 0xFF)
        with dnn.capture(handle) as graph:
            call(plan, network, out=out)
        assert np.isnan(out.y.numpy()).all()
        assert plan.replay == before
    with graph:
        graph.launch()
        network.assert_forward(out, None)


def test_closed_with_all_that_it_kept(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1)
    plan = dnn.convolution_forward.plan(handle, problem.x, problem.w, problem.conv, replay=True)
    results = [plan(problem.x, problem.w) for _ in range(4)]
    plan.close()
    plan.close()
    with pytest.raises(dnn.errors.ClosedError):
        plan(problem.x, problem.w, out=results[0])


def test_calls_are_recorded_as_problems_as_ever(handle: dnn.Handle) -> None:
    network = network_of(handle)
    with plan_of(handle, network) as plan, dnn.record_problems() as problems:
        out = call(plan, network)
        for _ in range(4):
            call(plan, network, out=out)
    assert [entry.count for entry in problems] == [5]


def test_a_call_that_cannot_be_recorded_is_made_as_it_is(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")

    def broken() -> Any:
        raise dnn.errors.CaptureError("not today")

    monkeypatch.setattr(handle.device, "recorder", broken)
    with dnn.convolution_forward.plan(
        handle, problem.x, problem.w, problem.conv, replay=True
    ) as plan:
        for _ in range(3):
            problem.assert_right(plan(problem.x, problem.w), plan.choice.algorithm)
        assert plan.replay == (0, 0, 3, 0, None, "not today")


def test_poisoned_results_are_replaced_wholly(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    with dnn.convolution_forward.plan(
        handle, problem.x, problem.w, problem.conv, replay=True
    ) as plan:
        outs = [poisoned(handle, problem.output_spec) for _ in range(5)]
        for out in outs:
            plan(problem.x, problem.w, out=out)
            problem.assert_right(out, plan.choice.algorithm)
