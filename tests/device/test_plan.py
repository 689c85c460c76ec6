"""A plan: made once, called many times, for arrays of its specs and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite._raw.calls import CFunction, PreparedCall

from .problems import PATTERN, Problem, fill, memory_of, poisoned, upload, with_gaps

X, W = (2, 8, 9, 11), (6, 8, 3, 2)
DEVICE_CALLS = (
    "cudnnConvolutionForward",
    "cudnnBackendExecute",
    "cudnnBackendFinalize",
    "cudnnGetConvolutionForwardAlgorithm_v7",
    "cudnnGetConvolutionForwardWorkspaceSize",
    "cudnnFindConvolutionForwardAlgorithmEx",
)


def count_calls(monkeypatch: pytest.MonkeyPatch, api: Any, *names: str) -> list[str]:
    """Return a list to which each call of these C functions adds its name."""
    calls: list[str] = []

    def spy(name: str, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append(name)
            return function(*arguments)

        return call

    for name in names:
        monkeypatch.setattr(api, name, spy(name, getattr(api, name)))
    return calls


def test_made_from_specs(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, "float32", "NHWC", padding=1, math_type="fma")
    x, w = dnn.TensorSpec(X, "float32", "NHWC"), dnn.FilterSpec(W, "float32", "NHWC")
    with dnn.convolution_forward.plan(handle, x, w, problem.conv) as plan:
        assert (plan.x, plan.w, plan.y) == (
            x,
            w,
            dnn.TensorSpec(problem.y_shape, "float32", "NHWC"),
        )
        problem.assert_right(plan(problem.x, problem.w), plan.choice.algorithm)


def test_says_what_it_chose(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    table = dnn.convolution_forward.heuristic(handle, problem.x, problem.w, problem.conv)
    with dnn.convolution_forward.plan(
        handle, problem.x, problem.w, problem.conv, interface="descriptor"
    ) as plan:
        assert plan.choice == table.best()
        assert plan.choice.math_type == dnn.MathType.FMA
        assert repr(plan) == f"<plan of {plan.problem}>"
    with dnn.convolution_forward.plan(handle, problem.x, problem.w, problem.conv) as plan:
        assert isinstance(plan.choice.algorithm, dnn.types.Engine)
        assert plan.choice.math_type == dnn.MathType.FMA
    with dnn.convolution_forward.plan(
        handle, problem.x, problem.w, problem.conv, algorithm="IMPLICIT_GEMM"
    ) as plan:
        assert plan.choice.algorithm == dnn.enums.ConvolutionFwdAlgo.IMPLICIT_GEMM


def test_scalars_belong_to_the_plan(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    with dnn.convolution_forward.plan(
        handle, problem.x, problem.w, problem.conv, alpha=-0.5, beta=2.0
    ) as plan:
        for _ in range(3):
            out = handle.array(problem.old_host)
            assert plan(problem.x, problem.w, out=out) is out
            problem.assert_right(out, plan.choice.algorithm, alpha=-0.5, beta=2.0)
        with pytest.raises(dnn.ArgumentError, match="out"):
            plan(problem.x, problem.w)


def test_planned_for_an_output_with_gaps(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    spec = with_gaps(problem.y_shape, "float32")
    with dnn.convolution_forward.plan(handle, problem.x, problem.w, problem.conv, out=spec) as plan:
        out = upload(handle, spec, np.full(problem.y_shape, np.nan, np.float32))
        problem.assert_right(plan(problem.x, problem.w, out=out), plan.choice.algorithm)
        assert plan(problem.x, problem.w).spec == spec


@pytest.mark.parametrize(
    "algorithm", ["GEMM", "FFT", "FFT_TILING", "WINOGRAD_NONFUSED", "IMPLICIT_PRECOMP_GEMM"]
)
def test_a_workspace_of_ones_own(handle: dnn.Handle, algorithm: str) -> None:
    """The call stays inside the workspace, and the handle allocates none.

    One byte too few, or memory in use, is an error.
    """
    problem = Problem(handle, (2, 8, 12, 14), (6, 8, 5, 5), "float16", padding=2)
    try:
        plan = dnn.convolution_forward.plan(
            handle, problem.x, problem.w, problem.conv, algorithm=algorithm
        )
    except dnn.NotSupportedError:
        return
    with plan:
        out = poisoned(handle, plan.y)
        workspace = handle.empty((plan.workspace + 256,), "uint8")
        fill(workspace, PATTERN)
        plan(problem.x, problem.w, out=out, workspace=workspace)
        problem.assert_right(out, plan.choice.algorithm)
        assert (memory_of(workspace)[plan.workspace :] == PATTERN).all()
        assert handle.workspace.size == 0
        if plan.workspace:
            with pytest.raises(dnn.ArgumentError, match="workspace"):
                plan(problem.x, problem.w, workspace=handle.empty((plan.workspace - 1,), "uint8"))
        for array in (problem.x, problem.w, out):
            over = dnn.DeviceArray(
                workspace.spec, workspace.device, array.ptr, array, handle.stream
            )
            with pytest.raises(
                dnn.ArgumentError, match=r"workspace overlaps (x|w|out)\b"
            ):  # it may reach the next one
                plan(problem.x, problem.w, out=out, workspace=over)
        with pytest.raises(dnn.ArrayTypeError, match="workspace"):
            plan(problem.x, problem.w, workspace=np.empty(plan.workspace + 1, np.uint8))
        problem.assert_right(out, plan.choice.algorithm)


@pytest.mark.parametrize(
    ("interface", "function"),
    [("descriptor", "cudnnConvolutionForward"), ("graph", "cudnnBackendExecute")],
)
def test_a_call_is_one_c_call(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, interface: str, function: str
) -> None:
    """Everything else is done when the plan is made; the one-line call keeps its plan."""
    problem = Problem(handle, X, W, padding=1)
    calls = count_calls(monkeypatch, handle.api, *DEVICE_CALLS)
    out = handle.empty(problem.y_shape)
    options = {"out": out, "interface": interface}
    with dnn.convolution_forward.plan(
        handle, problem.x, problem.w, problem.conv, **options
    ) as plan:
        assert function not in calls
        plan(problem.x, problem.w, out=out)  # an engine's plan describes the addresses once
        calls.clear()
        plan(problem.x, problem.w, out=out)
        plan(problem.x, problem.w, out=out)
    assert calls == [function] * 2
    dnn.convolution_forward(handle, problem.x, problem.w, problem.conv, **options)
    calls.clear()
    dnn.convolution_forward(handle, problem.x, problem.w, dnn.ConvolutionSpec(padding=1), **options)
    assert calls == [function]


CHANGES = {  # between a call and the same again: what it does, and what the second then raises
    "nothing": (lambda handle, plan, x, out: None, None),
    "workspace": (lambda handle, plan, x, out: handle.workspace.release(), None),
    "array closed": (lambda handle, plan, x, out: x.close(), dnn.errors.ClosedError),
    "plan closed": (lambda handle, plan, x, out: plan.close(), dnn.errors.ClosedError),
    "output read-only": (
        lambda handle, plan, x, out: setattr(out, "readonly", True),
        dnn.ArrayTypeError,
    ),
}


@pytest.mark.parametrize("algorithm", [None, "GEMM"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_same_call_again_sees_what_changed_meanwhile(
    handle: dnn.Handle, change: str, algorithm: str | None
) -> None:
    problem = Problem(handle, X, W, padding=1)
    happens, error = CHANGES[change]
    x, out = handle.array(problem.x.numpy()), handle.empty(problem.y_shape)
    with dnn.convolution_forward.plan(
        handle, x, problem.w, problem.conv, algorithm=algorithm
    ) as plan:
        for _ in range(2):
            plan(x, problem.w, out=out)
        happens(handle, plan, x, out)
        if error is not None:
            with pytest.raises(error):
                plan(x, problem.w, out=out)
            return
        blockers = [poisoned(handle, dnn.TensorSpec((1, 1, 1, 4096))) for _ in range(3)]
        plan(x, problem.w, out=out)
        problem.assert_right(out, plan.choice.algorithm)
        del blockers


def test_a_plan_keeps_its_own_limit_when_the_workspace_was_released(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1)
    rows = dnn.convolution_forward.heuristic(handle, problem.x, problem.w, problem.conv)
    algorithm = max((row for row in rows if row.ok), key=lambda row: row.workspace)
    handle.workspace.limit = 0
    plan = dnn.convolution_forward.plan(
        handle, problem.x, problem.w, problem.conv, algorithm=algorithm, workspace_limit="1 GiB"
    )
    assert plan.workspace > 0
    out = handle.empty(problem.y_shape)
    for _ in range(2):
        plan(problem.x, problem.w, out=out)
        handle.workspace.release()
    problem.assert_right(out, plan.choice.algorithm)
    plan.close()


VALUES = {  # of an argument that is parsed before a plan is looked for
    "replay": (None, 0, "", [], 1, "yes"),
    "interface": (0, "", [], "cuda", True),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_is_refused_is_refused_at_every_call(handle: dnn.Handle, name: str) -> None:
    problem = Problem(handle, X, W, padding=1)
    for _ in range(2):
        problem.run()
        problem.run(**{name: False if name == "replay" else "graph"})
        for value in VALUES[name]:
            with pytest.raises(dnn.ArgumentError, match=f"^{name}="):
                problem.run(**{name: value})


@pytest.mark.parametrize("operands", ["the same", "others"])
def test_a_call_that_is_repeated_says_that_c_failed(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, operands: str
) -> None:
    x, other = (handle.array(np.ones((2, 4, 6, 5), np.float32)) for _ in range(2))
    function, fails = handle.api.cudnnPoolingForward, []

    def pooling(*arguments: Any) -> Any:
        return fails[0] if fails else function.call(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(
            handle.api, "cudnnPoolingForward", CFunction(pooling, function.record, function.check)
        )
        plan = dnn.pooling_forward.plan(handle, x, dnn.PoolingSpec(2))
    with plan:
        y = plan(x)
        plan(x, out=y)
        fails.append(dnn.enums.Status.EXECUTION_FAILED)
        with pytest.raises(dnn.CudnnError, match=r"EXECUTION_FAILED[\s\S]*x = TensorSpec"):
            plan(x if operands == "the same" else other, out=y)
        fails.clear()
        assert (plan(x, out=y).numpy() == 1).all()


def test_a_plan_remembers_few_sets_of_addresses(own_handle: dnn.Handle) -> None:
    arrays = [own_handle.array(np.full((1, 2, 4, 4), n, np.float32)) for n in range(40)]
    with dnn.pooling_forward.plan(own_handle, arrays[0], dnn.PoolingSpec(2)) as plan:
        y = plan(arrays[0])
        for n, x in enumerate(arrays * 2):
            assert (plan(x, out=y).numpy() == n % 40).all()
        assert len(plan._last.checked) <= 16


def test_an_interrupt_while_addresses_change_leaves_none_behind(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call with the operands of before writes to its own output."""
    x, w = (
        handle.array(np.ones((1, 2, 5, 5), np.float32)),
        handle.array(np.ones((3, 2, 3, 3), np.float32)),
    )
    ours, theirs = handle.empty((1, 3, 3, 3)), handle.array(np.full((1, 3, 3, 3), 7, np.float32))
    real = PreparedCall.replace

    def interrupted(call: PreparedCall, **addresses: Any) -> None:
        real(call, **addresses)
        raise KeyboardInterrupt

    with dnn.convolution_forward.plan(handle, x, w, algorithm="implicit_gemm") as plan:
        plan(x, w, out=ours)
        with monkeypatch.context() as patch:
            patch.setattr(PreparedCall, "replace", interrupted)
            with pytest.raises(KeyboardInterrupt):
                plan(x, w, out=theirs)
        fill(ours, 0)
        plan(x, w, out=ours)
    assert (ours.numpy() == 18).all()
    assert (theirs.numpy() == 7).all()
