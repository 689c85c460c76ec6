"""What a call asks for is what it gets: arithmetic, scalars, limits, the caller's own memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn

from .problems import Problem

X, W = (2, 16, 12, 14), (24, 16, 3, 3)


class Number:
    """A real number that can change."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return float(self.value)


def test_a_result_does_not_undo_true_float32(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1)
    loose = dnn.convolution_forward.find(handle, problem.x, problem.w, problem.conv)[0]
    assert loose.math_type == dnn.TF32
    strict = problem.conv.replace(math_type=dnn.TRUE_FLOAT32)
    with pytest.raises(dnn.ArgumentError, match=r"algorithm.*DEFAULT.*FMA"):
        dnn.convolution_forward(handle, problem.x, problem.w, strict, algorithm=loose)
    tight = dnn.convolution_forward.find(handle, problem.x, problem.w, strict)[0]
    dnn.convolution_forward(
        handle, problem.x, problem.w, problem.conv, algorithm=tight
    )  # more than was asked for


@pytest.mark.parametrize("kind", [Number, np.float32, np.float64, np.array, int])
def test_scalars_are_read_at_each_call(handle: dnn.Handle, kind: Any) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    one = problem.run(alpha=1.0).numpy()
    alpha = kind(2)
    assert np.allclose(problem.run(alpha=alpha).numpy(), 2 * one, rtol=1e-5)
    if kind is Number:
        alpha.value = 5.0
        assert np.allclose(problem.run(alpha=alpha).numpy(), 5 * one, rtol=1e-5)


def test_one_plan_for_all_spellings(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1)
    for algorithm in (
        dnn.enums.ConvolutionFwdAlgo.IMPLICIT_GEMM,
        "IMPLICIT_GEMM",
        "implicit_gemm",
    ):
        for alpha in (1.0, 1, np.float32(1)):
            problem.run(algorithm=algorithm, alpha=alpha)
    assert len(handle.plans) == 1


def needy(problem: Problem) -> dnn.AlgorithmResult:
    """Return an algorithm that needs workspace."""
    table = dnn.convolution_forward.heuristic(problem.handle, problem.x, problem.w, problem.conv)
    return next(row for row in table if row.ok and row.workspace > 0)


def test_the_calls_limit_counts_instead_of_the_handles(device: Any) -> None:
    with dnn.Handle(device, workspace_limit=1) as handle:
        problem = Problem(handle, X, W, padding=1, math_type="fma")
        row = needy(problem)
        with pytest.raises(dnn.WorkspaceLimitError):
            problem.run(algorithm=row)
        problem.assert_right(problem.run(algorithm=row, workspace_limit="1 GiB"), row.algorithm)
        assert handle.workspace.size >= row.workspace


def test_ones_own_buffer_counts_instead_of_the_handles_limit(device: Any) -> None:
    with dnn.Handle(device, workspace_limit=0) as handle:
        problem = Problem(handle, X, W, padding=1, math_type="fma")
        row = needy(problem)
        buffer = handle.empty((row.workspace,), "uint8")
        problem.assert_right(problem.run(algorithm=row, workspace=buffer), row.algorithm)
        assert handle.workspace.size == 0


def test_a_workspace_with_gaps_is_refused(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    row = needy(problem)
    gappy = handle.empty(dnn.TensorSpec((row.workspace,), "uint8", strides=(4,)))
    with pytest.raises(dnn.ArgumentError, match=r"workspace.*gaps"):
        problem.run(algorithm=row, workspace=gappy)


def test_what_a_searchs_limit_excluded_is_told(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    needed = {
        row.algorithm: row.workspace
        for row in dnn.convolution_forward.heuristic(handle, problem.x, problem.w, problem.conv)
    }
    table = dnn.convolution_forward.find(
        handle, problem.x, problem.w, problem.conv, workspace_limit=0
    )
    excluded = {row.algorithm for row in table if not row.ok and row.workspace > 0}
    assert excluded
    assert all(needed[algorithm] > 0 for algorithm in excluded)
    remarks = {row.algorithm: why for row, why in table.best().passed_over}
    assert all("needs more than the search's 0 B" in remarks[algorithm] for algorithm in excluded)
    assert "needs more than the search's 0 B" in str(table)


def test_an_array_on_another_thread_comes_home(handle: dnn.Handle) -> None:
    """A new thread has no current device; a copy to the host needs one."""
    from concurrent.futures import ThreadPoolExecutor

    values = np.random.default_rng(0).standard_normal(X).astype(np.float32)
    array = handle.array(values)
    with ThreadPoolExecutor(1) as pool:
        assert np.array_equal(pool.submit(array.numpy).result(), values)
