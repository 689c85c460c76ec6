"""The search over the knobs of engines.

A setting is an `Engine`: the number of an engine, and a value for each of its knobs.  The search
begins with the settings that cuDNN's heuristics name, and goes on to those that differ in one knob.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, NamedTuple

from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.autotune.progress import counting_seconds
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.errors import CudnnError, DeviceMemoryError
from cudnnlite.graph.engines import Configuration, Engine, configure, knobs_of, neighbours
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.graph.operation_graph import Graph
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.search.timing import Stopwatch
from cudnnlite.search.timing_policy import TimingPolicy

# How many of the fastest settings become candidates, which are checked and timed thoroughly.
FINALISTS = 4
# An engine is left out if its fastest setting takes more than this multiple of the shortest time.
_CUTOFF_RATIO = 1.5
# Milliseconds, the setting's text, which orders settings of equal time, and the setting.
_Entry = tuple[float, str, Engine]
_QUICK_TIMING = TimingPolicy(rounds=3, further_rounds=0, sample_ms=0.2)


class EngineRules(NamedTuple):
    """The functions of a graph's operation that a search over knobs calls.

    Attributes
    ----------
    row_of : callable
        (configuration) -> the row of a candidate, without times.
    why_excluded : callable
        (configuration, row) -> why the candidate may not be used; empty if it may.
    plan_of : callable
        (configuration, stack) -> the execution plan, which the stack owns.
    """

    row_of: Callable[[Configuration], AlgorithmResult]
    why_excluded: Callable[[Configuration, AlgorithmResult], str]
    plan_of: Callable[[Configuration, ExitStack], ExecutionPlan]


class KnobSearchResult(NamedTuple):
    """The result of a search over knobs.

    Attributes
    ----------
    rows : list of AlgorithmResult
        The fastest settings that the search did not begin with.
    trials, runs : int
        The number of settings that were tried, and of those that ran.
    seconds : float
        The time of the search.
    """

    rows: list[AlgorithmResult]
    trials: int
    runs: int
    seconds: float

    def __str__(self) -> str:
        trials = f"{self.trials:,} settings of knobs tried in {self.seconds:.1f} s"
        return f"of {trials} {self.runs:,} ran"


def search_knobs(
    graph: Graph,
    rules: EngineRules,
    operands: Mapping[str, DeviceArray],
    engines: Iterable[Engine],
    policy: TuningPolicy,
    progress: bool = False,
) -> KnobSearchResult:
    """Search for faster settings for the seconds that the policy gives.

    The engines that may still win take turns.  In the turn of an engine, the search takes the
    engine's fastest setting whose neighbours were not tried yet, and tries them: the settings that
    differ in one knob.  If all neighbours of the fastest setting are slower, the second fastest
    setting is next.

    Parameters
    ----------
    graph : Graph
        The problem's graph.  Its handle is on a stream of its own, which can be recorded.
    rules : EngineRules
        The rules that say which settings may be used, and how they are planned.
    operands : mapping
        Arrays by the operation's names.  The output is overwritten.
    engines : iterable of Engine
        The settings to begin with.
    policy : TuningPolicy
        The policy, whose `search_seconds` limit the search.  Settings that it excludes are not
        tried.
    progress : bool
        Whether a bar on stderr shows the seconds.
    """
    begin = time.perf_counter()
    seeds = set(engines)
    with ExitStack() as stack:
        trials = _Trials(graph, rules, operands, policy, stack)
        report = stack.enter_context(counting_seconds(progress, policy.search_seconds))

        def is_time_up() -> bool:
            return report(time.perf_counter() - begin, trials.runs)

        _Climb(trials, is_time_up).run(seeds)
        rows = [row for engine, row in trials.rows.items() if row and engine not in seeds]
    rows.sort(key=lambda row: row.time_ms or 0.0)
    finalists = [
        replace(row, time_ms=None, remark="found by its knobs") for row in rows[:FINALISTS]
    ]
    return KnobSearchResult(finalists, len(trials.rows), trials.runs, time.perf_counter() - begin)


class _Climb:
    """Goes from settings that ran to their neighbours, the fastest first, until the time is up."""

    def __init__(self, trials: _Trials, is_time_up: Callable[[], bool]) -> None:
        self._trials = trials
        self._is_time_up = is_time_up
        self._random = random.Random(0)
        # Settings whose neighbours were not tried yet, by the engine's number.
        self._heaps: defaultdict[int, list[_Entry]] = defaultdict(list)

    def run(self, seeds: Iterable[Engine]) -> None:
        """Try settings, and then all that can be reached from them."""
        self._try_all(sorted(seeds, key=str))
        while self._heaps and not self._is_time_up():
            for index in self._engines_that_may_win():
                self._try_neighbours(index)

    def _engines_that_may_win(self) -> list[int]:
        cutoff_ms = _CUTOFF_RATIO * min(heap[0][0] for heap in self._heaps.values())
        return [index for index, heap in self._heaps.items() if heap[0][0] <= cutoff_ms]

    def _try_neighbours(self, index: int) -> None:
        """Try the neighbours of an engine's fastest setting."""
        _, _, fastest = heapq.heappop(self._heaps[index])
        settings = [
            engine
            for engine in neighbours(fastest, self._trials.knobs(index))
            if engine not in self._trials.rows
        ]
        self._random.shuffle(settings)
        self._try_all(settings)
        if not self._heaps[index]:
            del self._heaps[index]

    def _try_all(self, settings: Iterable[Engine]) -> None:
        for engine in settings:
            if self._is_time_up():
                return
            ms = self._trials.time(engine)
            if ms is not None:
                heapq.heappush(self._heaps[engine.index], (ms, str(engine), engine))


class _Trials:
    """Tries settings on one graph, over the same operands."""

    def __init__(
        self,
        graph: Graph,
        rules: EngineRules,
        operands: Mapping[str, DeviceArray],
        policy: TuningPolicy,
        stack: ExitStack,
    ) -> None:
        self._graph, self._rules, self._policy = graph, rules, policy
        self._handle = handle = graph.handle
        self._addresses = {name: array.ptr for name, array in operands.items()}
        self._knobs: dict[int, Any] = {}
        self._stopwatch = Stopwatch(
            handle.device, handle.stream, _QUICK_TIMING, flush_l2=policy.flush_l2
        )
        stack.callback(self._stopwatch.close)
        # None for a setting that does not run, or is excluded.
        self.rows: dict[Engine, AlgorithmResult | None] = {}
        self.runs = 0

    def knobs(self, index: int) -> Any:
        """Return an engine's knobs."""
        if index not in self._knobs:
            self._knobs[index] = ()
            with suppress(CudnnError):  # cuDNN does not list the knobs of this engine
                self._knobs[index] = knobs_of(self._graph, index)
        return self._knobs[index]

    def time(self, engine: Engine) -> float | None:
        """Return the milliseconds of a setting on the device.

        None if it does not run, or is excluded.
        """
        row = None
        with ExitStack() as stack, suppress(CudnnError, DeviceMemoryError):
            row = self._run(engine, stack)
        self.rows[engine] = row
        if row is None:
            return None
        self.runs += 1
        return row.time_ms

    def _run(self, engine: Engine, stack: ExitStack) -> AlgorithmResult | None:
        """Return the row of a setting, with its time; None if it is excluded."""
        policy, handle = self._policy, self._handle
        configuration = configure(self._graph, engine, stack)
        row = self._rules.row_of(configuration)
        if self._rules.why_excluded(configuration, row):
            return None
        plan = self._rules.plan_of(configuration, stack)
        if policy.workspace_limit is not None and plan.workspace > int(policy.workspace_limit):
            return None
        # The plan is destroyed behind this call, when the device no longer needs it.
        stack.callback(handle.stream.sync)
        plan.replace(
            workSpace=handle.workspace.reserve(plan.workspace, handle.stream), **self._addresses
        )
        ms = self._stopwatch.first(plan)
        if self._stopwatch.may_be_best(ms):
            ms = self._stopwatch.repeat([plan], [ms])[0].ms
        return replace(row, workspace=plan.workspace, time_ms=ms)
