"""The two searches: what they return, that it can be applied, and what the limits do."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn

from .problems import ALGORITHMS, PATTERN, Problem, fill, memory_of, poisoned

SHAPES = ((2, 16, 12, 14), (24, 16, 3, 3))
SEARCHES = {"get": dnn.convolution_forward.heuristic, "find": dnn.convolution_forward.find}
search = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
KINDS = {
    "float32": ("float32", "NCHW", "DEFAULT"),
    "float32_fma": ("float32", "NCHW", "FMA"),
    "float16_last": ("float16", "NHWC", "DEFAULT"),
    "bfloat16": ("bfloat16", "NCHW", "DEFAULT"),
    "float64": ("float64", "NCHW", "DEFAULT"),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def problem_of(handle: dnn.Handle, kind: str = "float32") -> Problem:
    dtype, layout, math_type = KINDS[kind]
    return Problem(handle, *SHAPES, dtype, layout, padding=1, math_type=math_type)


def demanding(handle: dnn.Handle) -> tuple[Problem, dnn.AlgorithmTable]:
    """Return a problem and its ranking; the first algorithm does not need the least workspace."""
    candidates = (
        ((2, 16, 12, 14), (24, 16, 3, 3), "NCHW"),
        ((16, 64, 28, 30), (64, 64, 3, 3), "NCHW"),
        ((4, 32, 28, 30), (48, 32, 5, 5), "NCHW"),
        ((2, 64, 12, 14), (64, 64, 5, 5), "NHWC"),
    )
    for x_shape, w_shape, layout in candidates:
        problem = Problem(handle, x_shape, w_shape, "float32", layout, padding=1, math_type="fma")
        table = dnn.convolution_forward.heuristic(handle, problem.x, problem.w, problem.conv)
        if any(row.ok and row.workspace < table[0].workspace for row in table):
            return problem, table
    pytest.fail("for none of the problems does the heuristic prefer an algorithm with workspace")


@search
@kinds
def test_keeps_every_algorithm_the_failed_ones_last(
    handle: dnn.Handle, search: Any, kind: str
) -> None:
    problem = problem_of(handle, kind)
    table = search(handle, problem.x, problem.w, problem.conv)
    assert {row.algorithm for row in table} == set(ALGORITHMS)
    ok = [row.ok for row in table]
    assert ok == sorted(ok, reverse=True)
    assert ok[0]
    assert not ok[-1]
    assert all(row.status != dnn.enums.Status.SUCCESS for row in table if not row.ok)


@kinds
def test_find_times_what_ran_fastest_first(handle: dnn.Handle, kind: str) -> None:
    problem = problem_of(handle, kind)
    table = dnn.convolution_forward.find(handle, problem.x, problem.w, problem.conv)
    times = [row.time_ms for row in table if row.ok]
    assert all(time is not None and time > 0 for time in times)
    assert times == sorted(times)
    assert "cudnnFind" in table.timing
    assert str(handle.device) in table.timing


def test_what_one_kernel_of_the_emulated_device_stands_for(handle: dnn.Handle) -> None:
    """It is timed once, and the table says so; a GPU has a kernel for each."""
    problem = problem_of(handle)
    dy = handle.zeros(problem.y_shape)
    for table in (
        dnn.convolution_forward.find(handle, problem.x, problem.w, problem.conv),
        dnn.convolution_backward_data.find(handle, problem.w, dy, problem.conv, x=problem.x),
        dnn.convolution_backward_filter.find(handle, problem.x, dy, problem.conv, w=problem.w),
    ):
        firsts: dict[float | None, Any] = {}
        for row in table:
            first = firsts.setdefault(row.time_ms, row)
            one = handle.device.kind == "emulated" and row.ok and first is not row
            assert row.same_kernel == (f"{first.algorithm} ({first.math_type})" if one else "")
            assert row.remark == ""
        assert ("here the same kernel" in str(table)) == (handle.device.kind == "emulated")


def test_get_times_nothing(handle: dnn.Handle) -> None:
    problem = problem_of(handle)
    table = dnn.convolution_forward.heuristic(handle, problem.x, problem.w, problem.conv)
    assert all(row.time_ms is None for row in table)


def test_a_result_may_have_names(handle: dnn.Handle) -> None:
    """It is applied as one of members: its math type is compared with that of the convolution."""
    problem = problem_of(handle)
    conv = problem.conv.replace(math_type="fma")
    row = dnn.AlgorithmResult("implicit_precomp_gemm", "fma")  # type: ignore[arg-type]
    with dnn.convolution_forward.plan(handle, problem.x, problem.w, conv, algorithm=row) as plan:
        assert plan.choice.algorithm is dnn.enums.ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM
        assert plan.choice.math_type is dnn.MathType.FMA


@search
@kinds
def test_every_row_that_is_ok_can_be_applied(handle: dnn.Handle, search: Any, kind: str) -> None:
    """The right numbers, in the row's math type, inside the workspace that the plan names."""
    problem = problem_of(handle, kind)
    rows = [row for row in search(handle, problem.x, problem.w, problem.conv) if row.ok]
    for row in rows:
        problem.assert_right(problem.run(algorithm=row), row.algorithm, math_type=row.math_type)
        with dnn.convolution_forward.plan(
            handle, problem.x, problem.w, problem.conv, algorithm=row
        ) as plan:
            assert (plan.choice.algorithm, plan.choice.math_type) == (row.algorithm, row.math_type)
            guarded = handle.empty((plan.workspace + 512,), "uint8")
            fill(guarded, PATTERN)
            out = poisoned(handle, plan.y)
            plan(problem.x, problem.w, out=out, workspace=guarded)
        problem.assert_right(out, row.algorithm, math_type=row.math_type)
        assert (memory_of(guarded)[plan.workspace :] == PATTERN).all()
    assert rows


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_fma_is_kept(handle: dnn.Handle, layout: str, search: Any) -> None:
    """Who asks for true float32 is offered nothing else."""
    problem = Problem(handle, *SHAPES, "float32", layout, padding=1, math_type="true_float32")
    table = search(handle, problem.x, problem.w, problem.conv)
    assert {row.math_type for row in table if row.ok} == {dnn.MathType.FMA}


def test_find_leaves_the_inputs_alone(handle: dnn.Handle) -> None:
    problem = problem_of(handle)
    before = memory_of(problem.x), memory_of(problem.w)
    dnn.convolution_forward.find(handle, problem.x, problem.w, problem.conv)
    np.testing.assert_array_equal(memory_of(problem.x), before[0])
    np.testing.assert_array_equal(memory_of(problem.w), before[1])


@pytest.mark.parametrize("beta", [1.0, -0.5])
def test_find_leaves_out_alone_where_beta_reads_it(handle: dnn.Handle, beta: float) -> None:
    problem = problem_of(handle)
    out = handle.array(problem.old_host)
    before = memory_of(out)
    table = dnn.convolution_forward.find(
        handle, problem.x, problem.w, problem.conv, beta=beta, out=out
    )
    np.testing.assert_array_equal(memory_of(out), before)
    problem.check(algorithm=table.best(), beta=beta, out=out)


def test_find_with_out_and_beta_0(handle: dnn.Handle) -> None:
    """`out` may be overwritten, and stays usable."""
    problem = problem_of(handle)
    out = poisoned(handle, problem.output_spec)
    best = dnn.convolution_forward.find(handle, problem.x, problem.w, problem.conv, out=out).best()
    problem.assert_right(problem.run(algorithm=best, out=out), best.algorithm)


def test_find_leaves_no_memory_behind(handle: dnn.Handle) -> None:
    problem = problem_of(handle)
    dnn.convolution_forward.find(handle, problem.x, problem.w, problem.conv)
    handle.synchronize()
    before = handle.device.memory_used(), handle.workspace.size
    dnn.convolution_forward.find(handle, problem.x, problem.w, problem.conv)
    handle.synchronize()
    assert (handle.device.memory_used(), handle.workspace.size) == before


@search
def test_searches_for_another_output(handle: dnn.Handle, search: Any) -> None:
    """int8 to float32: what the table is for is what `out` says."""
    problem = Problem(handle, (2, 64, 7, 9), (32, 64, 3, 3), "int8", "NHWC", padding=1)
    out = handle.empty(problem.y_shape, "float32", "NHWC")
    best = search(handle, problem.x, problem.w, problem.conv, out=out).best()
    problem.assert_right(problem.run(algorithm=best, out=out), best.algorithm)


@pytest.mark.parametrize("limit", [0, "1 KiB"])
def test_find_keeps_its_workspace_limit(handle: dnn.Handle, limit: Any) -> None:
    problem = problem_of(handle)
    table = dnn.convolution_forward.find(
        handle, problem.x, problem.w, problem.conv, workspace_limit=limit
    )
    allowed = 0 if limit == 0 else 1024
    assert all(row.workspace <= allowed for row in table if row.ok)
    assert table[0].ok
    assert len(table) >= len(ALGORITHMS)


@pytest.mark.parametrize("is_planned", [False, True], ids=["call", "plan"])
def test_a_limit_that_costs_something_warns(handle: dnn.Handle, is_planned: bool) -> None:
    problem, table = demanding(handle)
    limit = table[0].workspace - 1
    function = dnn.convolution_forward.plan if is_planned else dnn.convolution_forward
    with pytest.warns(dnn.errors.WorkspaceLimitWarning, match=table[0].algorithm.name) as caught:
        result = function(
            handle,
            problem.x,
            problem.w,
            problem.conv,
            workspace_limit=limit,
            interface="descriptor",
        )
    assert len(caught) == 1
    if is_planned:
        with result as plan:
            result = plan(problem.x, problem.w)
    problem.assert_right(result, table.best(workspace_limit=limit).algorithm)
    assert handle.workspace.size <= limit
    assert caught[0].filename == __file__, (
        "the warning points somewhere else than at the user's line"
    )


def test_a_limit_that_costs_nothing_is_silent(handle: dnn.Handle) -> None:
    problem, table = demanding(handle)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = problem.run(workspace_limit=table[0].workspace)
    problem.assert_right(y, table[0].algorithm)


def test_the_handles_limit_counts_where_the_call_has_none(device: Any) -> None:
    with dnn.Handle(device) as handle:
        problem, table = demanding(handle)
        limit = table[0].workspace - 1
    with dnn.Handle(device, workspace_limit=limit) as handle:
        problem.handle = handle
        with pytest.warns(dnn.errors.WorkspaceLimitWarning):
            y = dnn.convolution_forward(
                handle, problem.x, problem.w, problem.conv, interface="descriptor"
            )
        problem.assert_right(y, table.best(workspace_limit=limit).algorithm)
        assert handle.workspace.peak <= limit


def test_a_forced_algorithm_over_the_limit_is_an_error(handle: dnn.Handle) -> None:
    problem, table = demanding(handle)
    row = table[0]
    for algorithm in (row, row.algorithm, row.algorithm.name):
        with pytest.raises(dnn.WorkspaceLimitError, match=row.algorithm.name):
            problem.run(algorithm=algorithm, workspace_limit=row.workspace - 1)
    problem.assert_right(problem.run(algorithm=row, workspace_limit=row.workspace), row.algorithm)
