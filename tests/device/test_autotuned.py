"""Who chooses the algorithm of a call that names none: a chooser, a tuner, or the heuristic."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite import rnn_forward
from cudnnlite.devices import plan_cache
from cudnnlite.plans.choice import set_chooser
from cudnnlite.plans.operands import alignment_of
from cudnnlite.types import Problem
from cudnnlite.workbench.tuning import tuner as tuner_module
from cudnnlite.workbench.tuning.cache import TuningCache
from cudnnlite.workbench.tuning.recording import record_problems
from cudnnlite.workbench.tuning.representative_problem import rounded

from .problems import PATTERN, fill, memory_of, poisoned, upload, with_gaps
from .problems import Problem as Case
from .test_plan import count_calls
from .test_rnn_plan import LENGTHS, Network
from .test_tuner import (
    FIND,
    FORWARD,
    HEURISTIC,
    QUICK,
    RNN_FORWARD,
    W,
    X,
    forward_calls,
    hurry,
    misaligned,
    problem_of,
)

A, M, R = dnn.enums.ConvolutionFwdAlgo, dnn.MathType, dnn.enums.RNNAlgo
FIRST = dnn.AlgorithmResult(A.IMPLICIT_GEMM, M.FMA)
STATIC = dnn.AlgorithmResult(R.PERSIST_STATIC, M.FMA, deterministic=None)
MAKING = ("cudnnCreateConvolutionDescriptor", "cudnnCreateRNNDescriptor", HEURISTIC, FIND)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


class Chooser:
    """Chooses what it is told to, and keeps what it was asked."""

    def __init__(self, choice: Any) -> None:
        self.choice = choice
        self.requests: list[tuple[Any, Mapping[str, int], int | None]] = []
        self.revision = 0

    def choose(
        self,
        problem: Any,
        alignments: Mapping[str, int],
        limit: int | None,
        *,
        for_call: bool = False,
        replay: bool = False,
        **options: bool,
    ) -> Any:
        assert for_call
        self.requests.append((problem, alignments, limit))
        return self.choice


@pytest.fixture
def chooser(handle: dnn.Handle) -> Iterator[Chooser]:
    """A chooser of this handle's."""
    new_chooser = Chooser(FIRST)
    set_chooser(handle, new_chooser)
    yield new_chooser
    assert handle._chooser is new_chooser


@pytest.fixture
def case(handle: dnn.Handle) -> Iterator[Case]:
    case = Case(handle, X, W, padding=1, math_type="fma")
    yield case
    vars(case).clear()  # pytest keeps it for longer than the handle's fixture allows


# ---------------------------------------------------------------- what a chooser is asked


def test_a_handle_has_no_chooser(handle: dnn.Handle, case: Case) -> None:
    assert handle._chooser is None
    case.check()


def test_a_call_without_an_algorithm_asks(handle: dnn.Handle, case: Case, chooser: Chooser) -> None:
    y = case.run()
    case.assert_right(y, FIRST.algorithm)
    ((problem, alignments, limit),) = chooser.requests
    assert problem == problem_of(case)
    assert set(alignments) == {"x", "w", "out"}
    assert set(alignments.values()) == {256}
    assert limit is None


def test_what_was_chosen_is_recalled(
    handle: dnn.Handle, case: Case, chooser: Chooser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second call poses no problem and makes no plan: it is the call alone."""
    out = poisoned(handle, case.output_spec)
    case.run(out=out)
    calls = count_calls(monkeypatch, handle.api, *MAKING)
    with monkeypatch.context() as patch:
        patch.setattr(Problem, "__init__", None)
        for _ in range(3):
            case.run(out=out)
    assert calls == []
    assert len(chooser.requests) == 1


def test_a_chooser_that_changed_its_mind_is_asked_again(
    handle: dnn.Handle, case: Case, chooser: Chooser, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = forward_calls(monkeypatch, handle)
    case.run()
    chooser.choice, chooser.revision = dnn.AlgorithmResult(A.GEMM, M.FMA), 1
    case.run()
    case.run()
    assert [call.algorithm for call in calls] == [A.IMPLICIT_GEMM, A.GEMM, A.GEMM]
    assert len(chooser.requests) == 2


def test_a_plan_outlives_its_oldest_keys(
    handle: dnn.Handle, case: Case, chooser: Chooser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of 200 kinds that have one plan: more than the handle keeps, and none closes it."""
    monkeypatch.setattr(plan_cache, "MAX_CACHED", 100)
    out = poisoned(handle, case.output_spec)
    case.run(out=out)
    calls = count_calls(monkeypatch, handle.api, *MAKING)
    for chooser.revision in range(1, 200):
        case.run(out=out)
    assert calls == []
    assert len(handle.plans) <= 100
    case.assert_right(out, FIRST.algorithm)


def test_a_whole_networks_plans_are_kept(handle: dnn.Handle, chooser: Chooser) -> None:
    """A chooser's plan has two keys; training ResNet-50 has 69 problems."""
    w = handle.full(W, 1)
    heights = range(10, 160)
    for _ in range(2):
        for height in heights:
            dnn.convolution_forward(handle, handle.zeros((2, W[1], height, 8)), w)
    assert len(chooser.requests) == len(heights)


def test_operands_of_one_alignment_have_one_key(
    handle: dnn.Handle, case: Case, chooser: Chooser
) -> None:
    buffer = handle.empty((case.output_spec.size + 64,))
    outs = [
        buffer[start : start + case.output_spec.size].reshape(case.output_spec.shape)
        for start in range(4, 60, 8)
    ]
    for out in outs:
        case.run(out=out)
    assert len(chooser.requests) == 1


def test_the_choice_is_what_runs(
    handle: dnn.Handle, case: Case, chooser: Chooser, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = forward_calls(monkeypatch, handle)
    case.run()
    assert [(call.algorithm, call.math_type) for call in calls] == [(A.IMPLICIT_GEMM, M.FMA)]
    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan:
        assert plan.choice == replace(FIRST, workspace=plan.workspace)


@pytest.mark.parametrize(
    "algorithm", ["gemm", A.GEMM, dnn.AlgorithmResult(A.GEMM, M.FMA)], ids=repr
)
def test_a_given_algorithm_is_respected(
    handle: dnn.Handle,
    case: Case,
    chooser: Chooser,
    monkeypatch: pytest.MonkeyPatch,
    algorithm: Any,
) -> None:
    calls = forward_calls(monkeypatch, handle)
    case.run(algorithm=algorithm)
    with dnn.convolution_forward.plan(
        handle, case.x, case.w, case.conv, algorithm=algorithm
    ) as plan:
        plan(case.x, case.w)
    assert {call.algorithm for call in calls} == {A.GEMM}
    assert chooser.requests == []


def test_none_leaves_it_to_the_heuristic(handle: dnn.Handle, case: Case, chooser: Chooser) -> None:
    chooser.choice = None
    case.check()
    with dnn.convolution_forward.plan(
        handle, case.x, case.w, case.conv, interface="descriptor"
    ) as plan:
        assert plan.choice.algorithm == case.choice()


def test_plan_and_call_pose_the_same(handle: dnn.Handle, case: Case, chooser: Chooser) -> None:
    out = upload(handle, with_gaps(case.y_shape, "float32"), case.old_host)
    options: dict[str, Any] = {
        "alpha": 2,
        "beta": np.float32(0.5),
        "out": out,
        "workspace_limit": "1 MiB",
    }
    case.run(**options)
    with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv, **options) as plan:
        assert plan.choice == replace(FIRST, workspace=plan.workspace)
    assert chooser.requests[0] == chooser.requests[1]
    problem, alignments, limit = chooser.requests[0]
    assert problem == problem_of(case, out=out.spec, alpha=2.0, beta=0.5)
    assert alignments == {"x": 256, "w": 256, "out": 256}
    assert limit == 1 << 20


def test_a_plan_of_specs_knows_no_alignment(
    handle: dnn.Handle, case: Case, chooser: Chooser
) -> None:
    w = dnn.FilterSpec(W)
    with dnn.convolution_forward.plan(handle, case.x.spec, w, case.conv) as plan:
        case.assert_right(plan(case.x, case.w), FIRST.algorithm)
    with dnn.convolution_forward.plan(handle, case.x, w, case.conv):
        pass
    assert [alignments for _, alignments, _ in chooser.requests] == [{}, {"x": 256}]


@pytest.mark.parametrize(
    ("offset", "expected"), [(4, 4), (8, 8), (64, 64), (100, 4), (256, 256), (384, 128)]
)
def test_alignment_is_told(
    handle: dnn.Handle, case: Case, chooser: Chooser, offset: int, expected: int
) -> None:
    x = misaligned(handle, case.x_host, offset)
    assert alignment_of(x) == expected
    case.assert_right(dnn.convolution_forward(handle, x, case.w, case.conv), FIRST.algorithm)
    out = misaligned(handle, case.old_host, offset)
    case.assert_right(case.run(out=out), FIRST.algorithm)
    assert [alignments for _, alignments, _ in chooser.requests] == [
        {"x": expected, "w": 256},
        {"x": 256, "w": 256, "out": expected},
    ]


def test_the_limit_is_told(handle: dnn.Handle, case: Case, chooser: Chooser) -> None:
    """The call's own, the size of the caller's buffer, or the handle's."""
    case.run(workspace_limit=77)
    case.run(workspace=handle.empty((55,), "uint8"))
    handle.workspace.limit = 99
    case.run()
    case.run(workspace_limit=77)
    assert [limit for *_, limit in chooser.requests] == [77, 55, 99]


def test_a_choice_that_needs_more_than_the_limit_is_refused(
    handle: dnn.Handle, case: Case, chooser: Chooser
) -> None:
    chooser.choice = dnn.AlgorithmResult(A.WINOGRAD_NONFUSED, M.FMA)
    with pytest.raises(dnn.WorkspaceLimitError, match="WINOGRAD_NONFUSED needs a workspace of"):
        case.run(workspace_limit=1)


def test_an_empty_batch_asks_nobody(handle: dnn.Handle, case: Case, chooser: Chooser) -> None:
    """There is nothing to choose."""
    x = handle.empty((0, *X[1:]))
    assert dnn.convolution_forward(handle, x, case.w, case.conv).shape == (0, *case.y_shape[1:])
    with dnn.convolution_forward.plan(handle, x, case.w, case.conv) as plan:
        assert plan.choice is None
    assert chooser.requests == []


def test_equal_calls_are_one_key(handle: dnn.Handle, case: Case, chooser: Chooser) -> None:
    for conv in (case.conv, case.conv.replace(), dnn.ConvolutionSpec(1, math_type="fma")):
        dnn.convolution_forward(handle, case.x, case.w, conv)
    assert len(chooser.requests) == 1
    variants: list[dict[str, Any]] = [
        {"alpha": 2.0},
        {"beta": 1.0, "out": case.run()},
        {"workspace_limit": 1 << 30},
        {"conv": case.conv.replace(padding=0)},
        {
            "x": handle.array(case.x_host, layout="NHWC"),
            "w": handle.array(case.w_host, layout="NHWC"),
        },
    ]
    for other in variants:
        arguments = {"x": case.x, "w": case.w, "conv": case.conv} | other
        dnn.convolution_forward(handle, **arguments)
    assert len(chooser.requests) == 1 + 1 + len(variants)  # one of them made its `out`


WRONG: dict[str, Any] = {
    "conv_list": {"conv": [1]},
    "conv_none": {"conv": None},
    "alpha": {"alpha": "1"},
    "beta": {"beta": "much"},
    "beta_alone": {"beta": 1.0, "out": None},
    "limit": {"workspace_limit": "much"},
    "algorithm": {"algorithm": "fastest"},
    "channels": {"w": (6, 3, 3, 3)},
    "rank": {"w": (6, 4, 3)},
    "filter_dtype": {"w": "float16"},
    "out_shape": {"out": (2, 6, 9, 7)},
    "host": {"x": np.zeros(X, np.float32)},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told_as_without(handle: dnn.Handle, case: Case, name: str) -> None:
    """The same exception with the same message, whoever would choose; nothing is written."""
    options = dict(WRONG[name])
    for argument in ("w", "out"):
        if isinstance(options.get(argument), tuple):
            options[argument] = handle.empty(options[argument])
    if options.get("w") == "float16":
        options["w"] = handle.array(case.w_host, dtype="float16")
    out = handle.empty(case.y_shape)
    fill(out, PATTERN)
    arguments = {"x": case.x, "w": case.w, "conv": case.conv, "out": out} | options
    errors = []
    for chooser_or_none in (None, Chooser(FIRST)):
        set_chooser(handle, chooser_or_none)
        with pytest.raises(dnn.CudnnliteError) as caught:
            dnn.convolution_forward(handle, **arguments)
        errors.append((caught.type, str(caught.value)))
        del caught
        assert chooser_or_none is None or chooser_or_none.requests == [] or name == "beta_alone"
    set_chooser(handle, None)
    assert errors[0] == errors[1]
    assert (memory_of(out) == PATTERN).all()


# ---------------------------------------------------------------- RNNs


def test_an_rnn_asks(handle: dnn.Handle, chooser: Chooser) -> None:
    chooser.choice = STATIC
    network = Network(handle)
    for training in (False, True):
        out = network.run(training=training, workspace_limit="1 GiB")
        network.assert_right(out)
        problem, alignments, limit = chooser.requests[-1]
        data = dnn.specs.RNNDataSpec(network.x.shape)
        assert problem == rnn_forward.problem(network.spec, None, data, training=training)
        assert alignments == {}
        assert limit == 1 << 30
    assert out.reserve.call.key.choice.algorithm == R.PERSIST_STATIC
    dnn.rnn_backward_data(handle, out.reserve, out.y)
    network.run(training=True, workspace_limit="1 GiB")
    with network.plan() as plan:
        network.assert_right(network.call(plan))
        assert plan.choice == replace(STATIC, workspace=plan.workspace)
    assert len(chooser.requests) == 3


@pytest.mark.parametrize(
    "algorithm", ["standard", R.STANDARD, dnn.AlgorithmResult(R.STANDARD, M.FMA)], ids=repr
)
def test_a_given_algorithm_of_an_rnn_is_respected(
    handle: dnn.Handle, chooser: Chooser, algorithm: Any
) -> None:
    network = Network(handle)
    network.assert_right(network.run(algorithm=algorithm))
    with network.plan(algorithm=algorithm) as plan:
        assert plan.choice.algorithm == R.STANDARD
    assert chooser.requests == []


def test_none_leaves_an_rnn_to_the_heuristic(handle: dnn.Handle, chooser: Chooser) -> None:
    chooser.choice = None
    network = Network(handle, lengths=LENGTHS)
    network.assert_right(network.run())
    with network.plan() as plan:
        assert plan.choice.algorithm == R.STANDARD


def test_a_choice_that_does_not_do_it_after_all(handle: dnn.Handle, chooser: Chooser) -> None:
    """It was measured with similar lengths: what these refuse, STANDARD does."""
    chooser.choice = STATIC
    network = Network(handle, lengths=LENGTHS)
    for _ in range(2):
        network.assert_right(network.run())
    trained = network.run(training=True)
    network.assert_right(trained)
    dnn.rnn_backward_data(handle, trained.reserve, trained.y)
    dnn.rnn_backward_weights(handle, trained.reserve)


def test_a_choice_that_needs_too_much_after_all(
    handle: dnn.Handle, chooser: Chooser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer sequences than were measured may need more than the limit; STANDARD may not."""
    chooser.choice = STATIC
    network = Network(handle)
    real, queries = handle.api.cudnnGetRNNTempSpaceSizes, []
    from cudnnlite.descriptors.rnn import read_rnn

    def more(*arguments: Any) -> None:
        real(*arguments)
        if read_rnn(handle.api, arguments[1]).algorithm == R.PERSIST_STATIC:
            arguments[4].value = 1 << 40
            queries.append(arguments)

    monkeypatch.setattr(handle.api, "cudnnGetRNNTempSpaceSizes", more)
    network.assert_right(network.run(workspace_limit="1 GiB"))
    assert len(queries) == 1


def test_a_plan_with_lengths_takes_others(handle: dnn.Handle, chooser: Chooser) -> None:
    """Though these are full: what is chosen must do unequal ones, so that is what is posed."""
    network = Network(handle, lengths=(5, 5, 5, 5))
    chooser.choice = None
    with network.plan() as plan:
        network.assert_right(network.call(plan))
        network.lengths = (5, 3, 5, 1)
        network.assert_right(network.call(plan))
    assert [problem.data.lengths for problem, *_ in chooser.requests] == [(5, 5, 5, 4)]
    network.lengths = None
    with network.plan():
        pass
    assert chooser.requests[-1][0].data.is_full


@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (1, 3), (2, 1), (7, 1)])
def test_a_plan_with_lengths_of_few(
    handle: dnn.Handle, chooser: Chooser, steps: int, batch: int
) -> None:
    network = Network(handle, steps=steps, batch=batch, lengths=(steps,) * batch)
    chooser.choice = None
    with network.plan() as plan:
        network.assert_right(network.call(plan))
    ((problem, *_),) = chooser.requests
    assert not problem.data.is_full
    assert problem.data.batch == batch


def test_with_a_buffer_of_ones_own_the_choice_makes_do(
    handle: dnn.Handle, chooser: Chooser
) -> None:
    chooser.choice = None
    network = Network(handle)
    workspace = handle.empty((16 << 20,), "uint8")  # a GPU wants 8 MiB
    network.assert_right(network.run(workspace=workspace))
    network.assert_right(network.run(workspace=workspace, workspace_limit="32 MiB"))
    handle.workspace.limit = "48 MiB"
    network.assert_right(network.run(workspace=workspace))
    network.assert_right(network.run())
    assert [limit >> 20 for *_, limit in chooser.requests] == [16, 32, 16, 48]


RNN_WRONG: dict[str, Any] = {
    "training": {"training": 1},
    "training_list": {"training": [True]},
    "spec": {"spec": "lstm"},
    "lengths": {"lengths": (5, 5, 5)},
    "algorithm": {"algorithm": "fastest"},
    "weights": {"weights": None},
    "workspace": {"workspace": np.zeros(100, np.uint8)},
}


@pytest.mark.parametrize("name", RNN_WRONG)
def test_what_is_wrong_of_an_rnn_is_told_as_without(handle: dnn.Handle, name: str) -> None:
    network, errors = Network(handle), []
    for chooser_or_none in (None, Chooser(STATIC)):
        set_chooser(handle, chooser_or_none)
        with pytest.raises(dnn.CudnnliteError) as caught:
            network.run(**RNN_WRONG[name])
        errors.append((caught.type, str(caught.value)))
        del caught
    set_chooser(handle, None)
    assert errors[0] == errors[1]


# ---------------------------------------------------------------- autotuned


def test_every_call_inside_uses_the_tuned_choice(
    handle: dnn.Handle, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(handle)
    calls = forward_calls(monkeypatch, handle)
    with dnn.autotuned(
        handle, cache=":memory:", policy=dnn.TuningPolicy(interface="descriptor")
    ) as tuner:
        assert handle._chooser is tuner
        case.assert_right(case.run(), tuner.choose(problem_of(case)).algorithm)
        network.assert_right(network.run())
        assert tuner.measured == 2
        best = tuner.tune(problem_of(case)).best()
        del calls[:]
        case.assert_right(case.run(), best.algorithm, math_type=best.math_type)
        assert {(call.algorithm, call.math_type) for call in calls} <= {
            (best.algorithm, best.math_type)
        }
        assert (
            len(calls) == 1 or best.replay
        )  # with new addresses a replaying plan measures, and records; or launches
        with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan:
            assert plan.choice == best
        with network.plan() as rnn_plan:
            choice = tuner.choose(
                rnn_forward.problem(network.spec, None, dnn.specs.RNNDataSpec(network.x.shape))
            )
            assert rnn_plan.choice.algorithm == choice.algorithm
        assert tuner.measured == 2
    assert handle._chooser is None


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_results_are_right(handle: dnn.Handle, dtype: str) -> None:
    """With out and beta too, which the tuning must not touch; with layouts; strided."""
    case = Case(handle, X, W, dtype, padding=1)
    with dnn.autotuned(
        handle, cache=":memory:", policy=dnn.TuningPolicy(layouts=["NHWC", "NCHW"])
    ) as tuner:
        for beta in (0.0, -0.5):
            for spec in (case.output_spec, with_gaps(case.y_shape, dtype, last=True)):
                best = tuner.choose(problem_of(case, out=spec, beta=beta))
                for _ in range(2):
                    out = upload(handle, spec, case.old_host)
                    y = case.run(out=out, beta=beta)
                    case.assert_right(y, best.algorithm, beta=beta, math_type=best.math_type)
        assert tuner.measured == 4


def test_the_second_call_measures_nothing(
    handle: dnn.Handle, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No choice replays: a plan that does records CUDA graphs in later calls.
    policy = dnn.TuningPolicy(interface="descriptor", objective="device")
    network = Network(handle)
    out = poisoned(handle, case.output_spec)
    runs = forward_calls(monkeypatch, handle)
    with dnn.autotuned(handle, cache=":memory:", policy=policy) as tuner:
        case.run(out=out)
        network.run()
        best = tuner.tune(problem_of(case, out=case.output_spec)).best()
        calls = count_calls(
            monkeypatch, handle.api, *MAKING, "cudnnSetStream", "cudnnGetRNNTempSpaceSizes"
        )
        del runs[:]
        for _ in range(3):
            case.run(out=out)
            network.run()
        assert calls == []
        assert len(runs) == 3
        case.assert_right(out, best.algorithm)


def test_a_new_tuner_finds_what_another_made_a_plan_of(handle: dnn.Handle, case: Case) -> None:
    """The same choice is the same plan."""
    with dnn.autotuned(handle, cache=":memory:") as tuner:
        case.run()
        plan_count = len(handle.plans)
        best = tuner.choose(problem_of(case))
    case.run(algorithm=best)
    assert len(handle.plans) == plan_count


def test_a_misaligned_view_is_another_problem(handle: dnn.Handle, case: Case) -> None:
    x = misaligned(handle, case.x_host, 4)
    with dnn.autotuned(handle, cache=":memory:") as tuner:
        case.run()
        for _ in range(2):
            y = dnn.convolution_forward(handle, x, case.w, case.conv)
        assert tuner.measured == 2
        case.assert_right(y, tuner.choose(problem_of(case), {"x": 4}).algorithm)
        assert tuner.measured == 2


def test_policy_and_limit_bind_the_choice(handle: dnn.Handle, case: Case) -> None:
    network = Network(handle, math_type="default")
    with dnn.autotuned(
        handle, cache=":memory:", policy=dnn.TuningPolicy(allow_tf32=False, workspace_limit="1 GiB")
    ):
        with network.plan() as plan:
            assert plan.choice.math_type == M.FMA
        with dnn.convolution_forward.plan(
            handle, case.x, case.w, case.conv, workspace_limit=0
        ) as tight:
            assert tight.workspace == 0
            case.assert_right(tight(case.x, case.w), tight.choice.algorithm)
        case.run(workspace_limit=0)
        handle.workspace.limit = 0
        case.run()
        case.assert_right(case.run(), A.IMPLICIT_GEMM)
    handle.workspace.limit = None


# ---------------------------------------------------------------- how long it lasts


class OwnError(Exception):
    """What a block raises."""


def test_the_chooser_before_comes_back(handle: dnn.Handle, case: Case) -> None:
    """Also where the block fails; blocks may be nested."""
    before = Chooser(FIRST)
    set_chooser(handle, before)

    def fail() -> None:
        with dnn.autotuned(handle, cache=":memory:") as outer:
            with dnn.autotuned(
                handle, cache=":memory:", policy=dnn.TuningPolicy(objective="latency")
            ) as inner:
                assert handle._chooser is inner
                case.run()
                assert (inner.measured, outer.measured) == (1, 0)
            assert handle._chooser is outer
            case.run()
            assert (inner.measured, outer.measured) == (1, 1)
            raise OwnError

    with pytest.raises(OwnError):
        fail()
    assert handle._chooser is before
    set_chooser(handle, None)
    gc.collect()


def test_only_this_handle_is_tuned(handle: dnn.Handle, case: Case) -> None:
    with dnn.autotuned(handle, cache=":memory:") as tuner, dnn.Handle(handle.device) as other:
        assert other._chooser is None
        dnn.convolution_forward(other, case.x, case.w, case.conv)
        assert tuner.measured == 0


def test_its_own_cache_is_closed_and_the_users_is_not(
    handle: dnn.Handle, tmp_path: Path, case: Case
) -> None:
    path = tmp_path / "tuning"
    with dnn.autotuned(handle, cache=path) as tuner:
        case.run()
        assert tuner.cache.path == path
    with pytest.raises(dnn.errors.ClosedError):
        len(tuner.cache)
    with TuningCache(path) as cache:
        with dnn.autotuned(handle, cache=cache) as tuner:
            assert tuner.cache is cache
            case.run()
            assert tuner.measured == (handle.device.kind == "emulated"), (
                "a GPU's times are in the file"
            )
        assert len(cache) == (handle.device.kind == "cuda")


def test_the_users_folder_is_the_default(
    handle: dnn.Handle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDNNLITE_TUNING_CACHE", str(tmp_path / "mine"))
    with dnn.autotuned(handle) as tuner:
        assert tuner.cache.path == tmp_path / "mine"


def test_only_the_users_calls_are_recorded(handle: dnn.Handle, case: Case) -> None:
    network = Network(handle)
    with record_problems() as problems, dnn.autotuned(handle, cache=":memory:") as tuner:
        for _ in range(3):
            case.run()
        network.run()
        tuner.tune(problem_of(case, alpha=2.0))
    rnn = rnn_forward.problem(network.spec, None, dnn.specs.RNNDataSpec(network.x.shape))
    problem = problem_of(case)
    assert {entry.problem: entry.count for entry in problems} == {problem: 3, rnn: 1}
    assert isinstance(problem, Problem)
    assert tuner.measured == 3


def test_sequences_of_many_lengths_are_measured_a_few_times(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dnn.Tuner, "timing", QUICK._replace(on_chip=0))  # nothing is compiled
    most = 24
    network = Network(handle, "tanh", steps=most, batch=2)
    with dnn.autotuned(handle, cache=":memory:") as tuner:
        for steps in range(1, most + 1):
            for last in {1, (steps + 1) // 2, steps}:
                other = network.with_sequences((steps, last), steps)
                other.assert_right(other.run())
        few = len({rounded(steps) for steps in range(1, most + 1)})
        assert tuner.measured <= 2 * few < most
        measured = tuner.measured
        other = network.with_sequences((23, 3), 23)
        other.assert_right(other.run())
        assert tuner.measured == measured


def test_what_was_tuned_exactly_counts_before_what_is_typical(handle: dnn.Handle) -> None:
    network = Network(handle, lengths=(5, 4, 4, 2))
    problem = rnn_forward.problem(
        network.spec, None, dnn.specs.RNNDataSpec(network.x.shape, network.lengths)
    )
    with dnn.autotuned(handle, cache=":memory:") as tuner:
        tuner.tune(problem)
        network.assert_right(network.run())
        assert tuner.measured == 1


@pytest.mark.parametrize(("steps", "length"), [(8, 5), (2, 1), (7, 6)])
def test_one_sequence_that_ends_early(handle: dnn.Handle, steps: int, length: int) -> None:
    """What stands for it must not be a full one, which more algorithms do."""
    network = Network(handle, steps=steps, batch=1, lengths=(length,), hidden_size=72)
    with dnn.autotuned(handle, cache=":memory:") as tuner:
        network.assert_right(network.run())
        with network.plan() as plan:
            network.assert_right(network.call(plan))
        assert tuner.measured == 1


def test_a_tuned_plan_of_an_rnn_takes_other_lengths(handle: dnn.Handle) -> None:
    network = Network(handle, lengths=(5, 5, 5, 5))
    with dnn.autotuned(handle, cache=":memory:"), network.plan() as plan:
        network.assert_right(network.call(plan))
        network.lengths = LENGTHS
        network.assert_right(network.call(plan))


def test_training_with_a_tuned_choice(handle: dnn.Handle) -> None:
    network = Network(handle)
    with dnn.autotuned(handle, cache=":memory:") as tuner:
        trained = network.run(training=True)
        network.assert_right(trained)
        gradients = dnn.rnn_backward_data(handle, trained.reserve, trained.y)
        dnn.rnn_backward_weights(handle, trained.reserve)
        assert tuner.measured == 1
    expected = network.run(training=True, algorithm="standard")
    theirs = dnn.rnn_backward_data(handle, expected.reserve, expected.y)
    np.testing.assert_allclose(gradients.dx.numpy(), theirs.dx.numpy(), rtol=1e-3, atol=1e-4)


# ---------------------------------------------------------------- while a graph is being recorded


def test_nothing_is_measured_while_a_graph_is_recorded(
    handle: dnn.Handle, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heuristic chooses, with one warning for each problem; afterwards it is tuned as ever."""
    network = Network(handle)
    out, outs = poisoned(handle, case.output_spec), network.outputs()
    case.run(out=out)  # in a capture nothing is allocated: plans and workspace are there
    network.run(out=outs)
    for array in (out, *outs):
        fill(array, 0xFF)
    runs = forward_calls(monkeypatch, handle)
    with dnn.autotuned(
        handle, cache=":memory:", policy=dnn.TuningPolicy(interface="descriptor")
    ) as tuner:
        with monkeypatch.context() as patch:
            patch.setattr(handle.device, "is_capturing", lambda stream: stream is handle.stream)
            with pytest.warns(
                dnn.errors.TuningWarning,
                match=r"convolution forward of .* was never tuned, and it cannot be tuned while",
            ) as records:
                case.run(out=out)
            assert len(records) == 1
            assert records[0].filename.endswith("problems.py"), "where the call stands"
            with pytest.warns(dnn.errors.TuningWarning, match="RNN forward of"):
                rnn_result = network.run(out=outs)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                case.run(out=out)
                network.run(out=outs)
                with dnn.convolution_forward.plan(handle, case.x, case.w, case.conv) as plan:
                    assert not isinstance(plan.choice.algorithm, dnn.types.Engine)
            assert tuner.measured == 0
        case.assert_right(out, plan.choice.algorithm)
        network.assert_right(rnn_result)
        case.run(out=out)
        assert tuner.measured == 1
        with monkeypatch.context() as patch:
            patch.setattr(handle.device, "is_capturing", lambda stream: True)
            del runs[:]
            case.run(out=out)  # without a warning: it is known now
            choice = tuner.choose(problem_of(case))
            assert choice.replay or runs[0].algorithm == choice.algorithm
        case.assert_right(out, choice.algorithm)


def test_without_memory_for_measuring_the_program_goes_on(
    handle: dnn.Handle, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that works without the tuner works with it."""
    out = poisoned(handle, case.output_spec)
    case.run(out=out)
    with dnn.autotuned(handle, cache=":memory:") as tuner:
        operation = problem_of(case).operation
        search = tuner_module.SEARCHES[operation]._replace(operands_of=no_memory)
        monkeypatch.setitem(tuner_module.SEARCHES, operation, search)
        for first in (True, False):
            with warnings.catch_warnings(record=True) as records:
                warnings.simplefilter("always")
                case.run(out=out)
            assert len(records) == first
        case.assert_right(out, case.choice())
        with pytest.raises(dnn.DeviceMemoryError, match="nothing left"):
            tuner.choose(problem_of(case))  # asked for itself
        assert tuner.measured == 0


def no_memory(*_: Any) -> Any:
    raise dnn.DeviceMemoryError("nothing left")


def test_nothing_is_measured_where_that_is_not_wanted(handle: dnn.Handle, case: Case) -> None:
    with dnn.autotuned(handle, cache=":memory:", measure=False) as tuner:
        with pytest.warns(
            dnn.errors.TuningWarning,
            match="and this tuner does not measure: cuDNN's heuristic chooses",
        ):
            y = case.run()
        case.assert_right(y, case.choice())
        assert tuner.measured == 0
        tuner.tune(problem_of(case))  # asked for by name
        assert tuner.measured == 1
        assert case.run() is not None  # and found from now on, without a warning


def test_what_nothing_satisfies_is_measured_once(handle: dnn.Handle, case: Case) -> None:
    with dnn.autotuned(handle, cache=":memory:", policy=dnn.TuningPolicy(max_error=0)) as tuner:
        for _ in range(3):
            with pytest.raises(dnn.NoAlgorithmError, match="the bound is 0"):
                case.run()
        assert tuner.measured == 1


def test_a_row_that_failed_is_refused(handle: dnn.Handle, case: Case) -> None:
    wrong = dnn.AlgorithmResult(A.GEMM, M.FMA, why_not="wrong: relative error 5.0e-01")
    for row in (wrong, dnn.AlgorithmResult(A.GEMM, M.FMA, status=dnn.enums.Status.NOT_SUPPORTED)):
        with pytest.raises(
            dnn.ArgumentError,
            match=r"algorithm=GEMM .* cannot be used: (wrong: relative|NOT_SUPPORTED)",
        ):
            case.run(algorithm=row)


def test_a_real_graph_can_be_recorded(handle: dnn.Handle) -> None:
    """On CUDA alone: the emulated device has no graphs.

    A graph cannot wait for what belongs to another stream.
    """
    handle.synchronize()
    handle.stream = handle.device.create_stream()
    case = Case(handle, X, W, padding=1, math_type="fma")
    for tuned in (False, True):
        out = poisoned(handle, case.output_spec)
        case.run(out=out)  # plan and workspace are there
        with (
            dnn.autotuned(handle, cache=":memory:") as tuner,
            warnings.catch_warnings(record=True) as records,
        ):
            warnings.simplefilter("always")
            if tuned:
                case.run(out=out)
            handle.synchronize()
            graph = handle.device.capture(lambda out=out: case.run(out=out), handle.stream)
            assert tuner.measured == tuned
            if handle.device.kind == "emulated":
                assert graph is None
                continue
            assert graph is not None
            assert sum(warning.category is dnn.errors.TuningWarning for warning in records) == (
                not tuned
            )
            fill(out, 0xFF)
            graph()
            handle.synchronize()
            algorithm = tuner.choose(problem_of(case)).algorithm if tuned else case.choice()
            case.assert_right(out, algorithm)
        del graph
    handle.synchronize()


# ---------------------------------------------------------------- the heuristic


def asked_with(monkeypatch: pytest.MonkeyPatch, handle: dnn.Handle) -> list[dnn.MathType]:
    """Return a list of the math types that the heuristic is asked with."""
    real, math_types = handle.api.cudnnGetConvolutionForwardAlgorithm_v7, []

    def ask(*arguments: Any) -> None:
        math_types.append(dnn.ConvolutionDescriptor.read(handle.api, arguments[3]).math_type)
        real(*arguments)

    monkeypatch.setattr(handle.api, HEURISTIC, ask)
    return math_types


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("dtype", "math_type", "expected"),
    [
        ("float16", "DEFAULT", "TENSOR_OP"),
        ("bfloat16", "DEFAULT", "TENSOR_OP"),
        ("float16", "FMA", "FMA"),
        ("float16", "TENSOR_OP", "TENSOR_OP"),
        ("bfloat16", "TENSOR_OP_ALLOW_CONVERSION", "TENSOR_OP_ALLOW_CONVERSION"),
        ("float32", "DEFAULT", "DEFAULT"),
        ("float32", "FMA", "FMA"),
        ("float64", "DEFAULT", "DEFAULT"),
    ],
)
def test_half_precision_prefers_tensor_cores(
    handle: dnn.Handle,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    math_type: str,
    expected: str,
    layout: str,
) -> None:
    """Where the user left the math type open, and named no algorithm."""
    case = Case(handle, (2, 8, 9, 8), (8, 8, 3, 3), dtype, layout, padding=1, math_type=math_type)
    math_types = asked_with(monkeypatch, handle)
    y = case.run(interface="descriptor")
    with dnn.convolution_forward.plan(
        handle, case.x, case.w, case.conv, interface="descriptor"
    ) as plan:
        assert plan.conv.math_type.name == math_type, "the spec stays the user's"
        case.assert_right(y, plan.choice.algorithm, math_type=plan.choice.math_type)
    assert [one.name for one in math_types] == [expected] * 2
    assert math_type != "FMA" or plan.choice.math_type == M.FMA


def test_a_named_algorithm_keeps_the_math_type(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(handle, X, W, "float16", padding=1)
    calls = forward_calls(monkeypatch, handle)
    case.run(algorithm="implicit_gemm")
    case.run(algorithm=dnn.AlgorithmResult(A.IMPLICIT_GEMM, M.FMA))
    assert [call.math_type for call in calls] == [M.DEFAULT, M.FMA]
    table = dnn.convolution_forward.heuristic(handle, case.x, case.w, case.conv)
    assert table[0].ok


def test_an_rnn_without_a_chooser_runs_as_before(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(handle)
    calls = count_calls(monkeypatch, handle.api, RNN_FORWARD, FORWARD)
    network.assert_right(network.run())
    assert calls == [RNN_FORWARD]
