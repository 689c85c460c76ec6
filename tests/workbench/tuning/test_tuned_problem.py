"""A tuned problem: its title, why rows were not chosen, the runner-up; a workspace that all share."""

from dataclasses import replace

import pytest
from helpers.tunings import (
    CLOSE,
    GEMM,
    KIB,
    MIB,
    NOTHING,
    PRECOMP,
    STATIC,
    WINOGRAD,
    A,
    M,
    Row,
    failed,
    lstm,
    model,
    table,
    tuned,
)

from cudnnlite.problems.results import named, within_noise
from cudnnlite.workbench.tuning.problem_list import summary
from cudnnlite.workbench.tuning.tuned_problem import shared_workspace


def test_titles():
    assert tuned().title == "32x64x56x56 by 64x64x3x3 to 32x64x56x56, float16 NHWC, padding=1"
    assert tuned(names=("a",)).title == "a"
    assert tuned(names=("a", "b", "c")).title == "a and 2 more"
    assert tuned(names=("a\nb",)).title == "a�b"
    assert (
        summary(lstm())
        == "bidirectional LSTM 256 to 128 x 2, T=100 N=64, float32, training, math_type='FMA'"
    )


def test_reasons():
    full_table = table()
    assert tuned().reasons() == (
        "",
        "1.8 % slower",
        "82.3 % slower",
        "4.56 times the time",
        "27.4 times the time; not repeated: more than 3 times the best",
        "needs 300 MiB, the limit is 64 MiB",
        "wrong: relative error inf",
        "NOT_SUPPORTED",
    )
    choice = full_table.best(workspace_limit=KIB)
    other = tuned()._replace(chosen=choice)
    assert other.reasons()[:4] == (
        "needs 96 KiB, the limit is 1 KiB (0.0274 ms faster)",
        "needs 172 KiB, the limit is 1 KiB (0.0268 ms faster)",
        "",
        "2.5 times the time",
    )
    assert tuned((PRECOMP, Row(A.GEMM, M.FMA))).reasons() == ("", "not timed")
    assert tuned((PRECOMP, CLOSE)).reasons({"objective": "latency"}) == ("", "2.3 % faster")
    assert failed().reasons() == ("NOT_SUPPORTED", "wrong: relative error inf")
    assert tuned()._replace(chosen=None).reasons()[:2] == ("", "")


def test_the_runner_up():
    assert tuned().runner_up() == 1
    assert tuned()._replace(chosen=WINOGRAD).runner_up() == 3  # the two before it were passed over
    assert tuned((PRECOMP,)).runner_up() is None
    assert tuned((PRECOMP, NOTHING, Row(A.GEMM, M.FMA))).runner_up() is None
    assert failed().runner_up() is None
    assert tuned((PRECOMP, WINOGRAD, CLOSE)).runner_up() == 2
    assert tuned((WINOGRAD, CLOSE, PRECOMP)).runner_up() == 2
    assert tuned((WINOGRAD, CLOSE, PRECOMP)).runner_up({"objective": "latency"}) == 1


def test_the_runner_up_runs_another_kernel():
    same = replace(PRECOMP, math_type=M.DEFAULT, same_kernel=named(PRECOMP))
    assert tuned((PRECOMP, same, WINOGRAD)).runner_up() == 2


def test_noise():
    assert within_noise(PRECOMP, CLOSE)
    assert within_noise(CLOSE, PRECOMP)
    assert not within_noise(PRECOMP, WINOGRAD)
    assert not within_noise(PRECOMP, PRECOMP.__class__(A.GEMM, M.FMA, time_ms=PRECOMP.time_ms))


def test_a_row_is_found_though_its_error_is_not_a_number():
    """A NaN that was in another process equals nothing, not even itself."""
    row, same_row = (
        Row(A.GEMM, M.FMA, time_ms=1.0, max_error=float(text)) for text in ("nan", "NaN")
    )
    assert row != same_row
    assert tuned((PRECOMP, row))._replace(chosen=same_row).place == 1


def test_totals():
    assert tuned(count=3).total_ms() == 3 * 0.0333
    assert tuned(count=3).total_ms({"objective": "latency"}) == pytest.approx(3 * 0.0355)
    assert failed().total_ms() is None
    assert (
        tuned((STATIC,), lstm()).total_ms({"objective": "latency"}) == 1.067
    )  # on the device: no call was timed


def total_within(problems, size, of):
    """Return the least total under a shared workspace, by its definition.

    It is None if a problem does not fit.
    """
    total = 0.0
    for problem in problems:
        fits = [
            of(row)
            for row in problem.table
            if row.ok and of(row) is not None and row.workspace <= size
        ]
        if not fits:
            return None
        total += problem.count * min(fits)
    return total


@pytest.mark.parametrize("seed", range(5))
def test_the_workspace_that_all_share(seed):
    problems = model(9, seed)
    curve = shared_workspace(problems)
    sizes, totals = [size for size, _ in curve], [total for _, total in curve]
    assert sizes == sorted(set(sizes))
    assert totals == sorted(set(totals), reverse=True)
    for size in sorted({row.workspace for problem in problems for row in problem.table}):
        least_total = total_within(problems, size, lambda row: row.time_ms)
        totals_within = [total for least, total in curve if least <= size]
        assert (totals_within[-1] if totals_within else None) == pytest.approx(least_total)
    assert totals[-1] == pytest.approx(sum(problem.total_ms() for problem in problems))


def test_the_time_of_a_call_counts_under_latency():
    problems, latency = [tuned((PRECOMP, CLOSE, WINOGRAD, GEMM), count=2)], {"objective": "latency"}
    assert shared_workspace(problems, latency) == [
        (8, 2 * 0.0608),
        (96 * KIB, 2 * 0.0355),
        (172 * KIB, 2 * 0.0347),
    ]
    assert shared_workspace(problems) == [(8, 2 * 0.0607), (96 * KIB, 2 * 0.0333)]


def test_more_workspace_that_gains_nothing_is_no_step():
    rows = [Row(A.GEMM, M.FMA, time_ms=0.5, workspace=size) for size in (MIB, KIB, 2 * KIB)]
    assert shared_workspace([tuned(rows)]) == [(KIB, 0.5)]


def test_the_curve_begins_where_every_problem_can_run():
    problems = [tuned((PRECOMP, WINOGRAD)), tuned((GEMM,), count=2), failed()]
    least = 0.0333 + 2 * 0.9123
    assert shared_workspace(problems) == [(81 * MIB, least)]
