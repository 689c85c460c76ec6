"""Benchmarks one problem: plans, runs, checks and times its candidates."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from cudnnlite import AlgorithmResult, Handle
from cudnnlite.enums import MathType
from cudnnlite.errors import ArgumentError, CudnnError, DeviceMemoryError, NoAlgorithmError
from cudnnlite.problems.results import named
from cudnnlite.problems.roofline import Peaks, roofline
from cudnnlite.problems.work import Work, work_of
from cudnnlite.workbench.bench.checks import accuracy_of, differing_runs
from cudnnlite.workbench.bench.guards import GuardedMemory, digest_of, guarded_trial
from cudnnlite.workbench.bench.rows import BenchRow
from cudnnlite.workbench.tuning.contest import own_stream
from cudnnlite.workbench.tuning.policy import TuningPolicy
from cudnnlite.workbench.tuning.problem_list import ListedProblem, summary
from cudnnlite.workbench.tuning.trial import Trial
from cudnnlite.workbench.tuning.tuner import Tuner, search_of

MODES = ("list", "plan", "run", "check", "time")
RUNS = 5  # of a candidate, whose bits are compared
_REPLAYED = ", replayed"  # what the name of a candidate has whose calls are replayed


@dataclass(frozen=True)
class BenchOptions:
    """The options of the measurement of each problem.

    Attributes
    ----------
    mode : str
        One of `MODES`, each of which does what the one before does, too: "list" nothing on a
        device, "plan" makes plans, "run" runs each once, "check" checks the results, "time" times
        the calls.
    every : bool
        Every candidate, and not only the chosen one.
    choice : str
        Only the candidate of that name, as rows have it; empty for no such limit.
    runs : int
        The number of runs that are compared bit by bit.
    policy : TuningPolicy
        The policy that a candidate must satisfy.
    """

    mode: str = "time"
    every: bool = False
    choice: str = ""
    runs: int = RUNS
    policy: TuningPolicy = field(default_factory=TuningPolicy)

    def does(self, mode: str) -> bool:
        """Return whether what a mode does is done."""
        return MODES.index(self.mode) >= MODES.index(mode)


def bench_problem(
    handle: Handle | None,
    item: ListedProblem,
    options: BenchOptions,
    peaks: Peaks | None = None,
) -> list[BenchRow]:
    """Return a row for each candidate of a problem that the options ask for, the chosen one first.

    Parameters
    ----------
    handle : Handle or None
        The device; None for the mode "list".  The call waits for it.
    item : ListedProblem
        The problem.
    options : BenchOptions
        The options that say what is measured.
    peaks : Peaks, optional
        The peaks for the roofline.

    Raises
    ------
    ArgumentError
        The problem cannot be tuned, or has no candidate with the name that was asked for.
    """
    work = work_of(item.problem)
    row = BenchRow(
        summary(item.problem),
        "; ".join(item.names),
        item.count,
        flops=work.flops,
        nbytes=work.nbytes,
    )
    if handle is None or not options.does("plan"):
        return [_with_roofline(row, work, item.problem.math_type, peaks)]
    candidates = _candidates_of(handle, item, options)
    shown = _select(candidates, options)
    if not shown:
        return [replace(row, status=_why_none(candidates.rows))]
    bench = _Bench(handle, item, options, row, work, peaks)
    return bench.rows(shown, candidates)


class _Candidates(NamedTuple):
    """The candidates of a problem, and the choice.

    Attributes
    ----------
    rows : list of AlgorithmResult
        The candidates.
    chosen : AlgorithmResult or None
        The choice of the tuner, or of cuDNN's heuristic where nothing is timed.
    plan_seconds : dict of str to float
        The seconds that the first plan of a candidate took, by the candidate's name.
    """

    rows: list[AlgorithmResult]
    chosen: AlgorithmResult | None
    plan_seconds: dict[str, float]


def _candidates_of(handle: Handle, item: ListedProblem, options: BenchOptions) -> _Candidates:
    if options.does("time"):
        with Tuner(handle, ":memory:", options.policy) as tuner:
            table = tuner.tune(item.problem)
        best = None
        with suppress(NoAlgorithmError):
            best = table.best()
        return _Candidates([*table], best, {})
    policy = options.policy.within(None, handle.device.memory_info()[1])
    with own_stream(handle), ExitStack() as stack:
        trial = guarded_trial(handle, item.problem, policy, stack, GuardedMemory(handle))
        rows = search_of(item.problem).list_candidates(handle, item.problem, policy, trial)
        return _planned_candidates(trial, rows, options)


def _planned_candidates(
    trial: Trial, rows: list[AlgorithmResult], options: BenchOptions
) -> _Candidates:
    """Return the candidates in the order of cuDNN's heuristic, those that are asked for planned.

    Without `every` no plan is made after the first that serves: some are compiled for seconds.
    """
    if options.choice:
        rows = [row for row in rows if _has_name(row, options.choice)] or rows
    rows.sort(key=lambda row: (row.heuristic is None, row.heuristic or 0))
    chosen: AlgorithmResult | None = None
    plan_seconds: dict[str, float] = {}
    results = []
    for row in rows:
        result = row
        if options.every or chosen is None:
            start = time.perf_counter()
            result = trial.run(row, contest=None)
            plan_seconds[named(row)] = time.perf_counter() - start
            if result.ok and chosen is None:
                chosen = result
        results.append(result)
    return _Candidates(results, chosen, plan_seconds)


def _select(candidates: _Candidates, options: BenchOptions) -> list[AlgorithmResult]:
    """Return the candidates that are shown, the chosen one first."""
    rows, chosen = candidates.rows, candidates.chosen
    if options.choice:
        selected = [row for row in rows if named(row) == options.choice]
        selected = selected or [row for row in rows if _has_name(row, options.choice)]
        if not selected:
            names = ", ".join(map(named, rows))
            raise ArgumentError(f"choice={options.choice!r} is no candidate; there are {names}")
        return selected[:1]
    first = [row for row in rows if chosen is not None and named(row) == named(chosen)][:1]
    if not options.every:
        return first
    return [*first, *(row for row in rows if row not in first)]


def _has_name(row: AlgorithmResult, name: str) -> bool:
    """Return whether a candidate has a name, whether or not its calls are replayed."""
    return named(row).replace(_REPLAYED, "") == name.replace(_REPLAYED, "")


def _why_none(results: Sequence[AlgorithmResult]) -> str:
    """Return why no candidate can be used, in one line."""
    reasons = dict.fromkeys(row.why_not or str(row.status) for row in results)
    texts = [reason for reason in reasons if reason]
    return f"not served: {'; '.join(texts[:3]) or 'there is no candidate'}"


class _Bench:
    """The candidates of one problem, measured one after the other."""

    def __init__(
        self,
        handle: Handle,
        item: ListedProblem,
        options: BenchOptions,
        row: BenchRow,
        work: Work,
        peaks: Peaks | None,
    ) -> None:
        self._handle, self._item, self._options = handle, item, options
        self._row, self._work, self._peaks = row, work, peaks
        self._memory = GuardedMemory(handle)

    def rows(self, shown: Sequence[AlgorithmResult], candidates: _Candidates) -> list[BenchRow]:
        """Return the row of each candidate that is shown."""
        policy = self._options.policy.within(None, self._handle.device.memory_info()[1])
        chosen = candidates.chosen
        rows = []
        with own_stream(self._handle), ExitStack() as stack:
            trial = guarded_trial(self._handle, self._item.problem, policy, stack, self._memory)
            for result in shown:
                row = self._row_of(trial, result)
                is_chosen = chosen is not None and named(result) == named(chosen)
                seconds = candidates.plan_seconds.get(named(result), row.plan_seconds)
                rows.append(replace(row, is_chosen=is_chosen, plan_seconds=seconds))
        return rows

    def _row_of(self, trial: Trial, result: AlgorithmResult) -> BenchRow:
        row = replace(
            self._row,
            candidate=named(result),
            deterministic=result.deterministic,
            workspace=result.workspace,
            error=result.error,
            max_error=result.max_error,
        )
        row = self._with_times(row, result)
        if not result.ok:
            return replace(row, status=result.why_not or str(result.status))
        # A replayed call is the same call, recorded as a CUDA graph.
        result = replace(result, replay=False)
        start = time.perf_counter()
        try:
            with trial.plan(result) as plan:
                row = replace(
                    row, plan_seconds=time.perf_counter() - start, workspace=plan.workspace
                )
                return self._with_runs(row, trial, plan, result)
        except (CudnnError, DeviceMemoryError) as error:
            return replace(row, status=str(error))

    def _with_times(self, row: BenchRow, result: AlgorithmResult) -> BenchRow:
        """Return a row with the times of the tuner and what follows from them."""
        row = _with_roofline(row, self._work, result.math_type, self._peaks)
        if result.time_ms is None:
            return row
        device_us = 1e3 * result.time_ms
        row = replace(
            row,
            device_us=device_us,
            device_spread_us=None if result.spread_ms is None else 1e3 * result.spread_ms,
            call_us=result.call_us,
            host_us=result.host_us,
        )
        if not self._handle.device.has_real_timing or not device_us:
            return row  # Rates of NumPy would be read as those of a GPU.
        share = None if row.least_us is None else row.least_us / device_us
        return replace(
            row,
            tflops=self._work.flops / device_us / 1e6,
            gbps=self._work.nbytes / device_us / 1e3,
            roofline=share,
        )

    def _with_runs(
        self, row: BenchRow, trial: Trial, plan: Any, result: AlgorithmResult
    ) -> BenchRow:
        """Return a row with what running the plan shows, as far as the mode asks for it."""
        if not self._options.does("run"):
            return row
        call = trial.call_of(plan)
        trial.run_over_poison(call)
        self._handle.synchronize()
        names = self._handle.device.kernel_names(call, self._handle.stream)
        row = replace(row, kernels=tuple(dict.fromkeys(names or ())))
        if self._options.does("check"):
            return self._checked(row, trial, plan, call, result.math_type)
        return row

    def _checked(
        self,
        row: BenchRow,
        trial: Trial,
        plan: Any,
        call: Callable[[], object],
        math_type: MathType,
    ) -> BenchRow:
        """Return a row with errors, equal bits, and writes outside of the operands."""
        runs = [self._digest_of_run(trial, call) for _ in range(self._options.runs)]
        difference = differing_runs(runs)
        findings = self._memory.findings()
        if difference and row.deterministic:
            findings.append(f"{difference}, and cuDNN says that it is deterministic")
        row = replace(row, same_bits=not difference, runs=len(runs))
        why_not_compared = trial.why_no_reference()
        if not why_not_compared:
            accuracy = accuracy_of(*trial.results_and_reference(plan), trial.dtype, math_type)
            row = replace(row, error=accuracy.l2, max_error=accuracy.largest, ulp=accuracy.ulp)
            if accuracy.finding:
                findings.insert(0, accuracy.finding)
        return replace(row, findings=tuple(findings), why_not_compared=why_not_compared)

    def _digest_of_run(self, trial: Trial, call: Callable[[], object]) -> bytes:
        """Run the call over restored outputs, and return a digest of all outputs."""
        trial.run_over_poison(call)
        return b"".join(digest_of(self._handle, array) for array in trial.outputs())


def _with_roofline(row: BenchRow, work: Work, math_type: MathType, peaks: Peaks | None) -> BenchRow:
    """Return a row with the least time by the peaks, and what bounds it."""
    if peaks is None:
        return row
    least = roofline(peaks, work, math_type)
    if least is None:
        return row
    return replace(row, least_us=1e6 * least.seconds, bound=least.bound, unit=least.unit)
