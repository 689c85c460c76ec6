"""The search over engines' knobs: from what cuDNN's heuristics name, the fastest first, to what differs in one knob."""

from __future__ import annotations

import heapq
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, NamedTuple

from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.autotune.progress import counting_seconds
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.errors import CudnnError, DeviceMemoryError
from cudnnlite.graph.engines import Engine, configure, knobs_of, neighbours
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.graph.operation_graph import Graph
from cudnnlite.operations.convolution.engines import excluded, row_of
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.search.timing import Stopwatch
from cudnnlite.search.timing_policy import TimingPolicy

FINALISTS = (
    4  # the fastest that were found are timed thoroughly, and checked, among all other candidates
)
_MAY_WIN = 1.5  # an engine whose best takes so many times the best of all is left alone
_Entry = tuple[float, str, Engine]  # milliseconds, what settles ties, the setting
_QUICK = TimingPolicy(rounds=3, further_rounds=0, sample_ms=0.2)


class Climbed(NamedTuple):
    """What a search over knobs found.

    Attributes
    ----------
    rows : list of AlgorithmResult
        The fastest settings that were not known before.
    tried, ran : int
        How many settings were tried, and how many of them cuDNN runs.
    seconds : float
        What it took.
    """

    rows: list[AlgorithmResult]
    tried: int
    ran: int
    seconds: float

    def __str__(self) -> str:
        return f"of {self.tried:,} settings of knobs tried in {self.seconds:.1f} s {self.ran:,} ran"


def climb(
    graph: Graph,
    problem: Problem,
    operands: Mapping[str, DeviceArray],
    engines: Iterable[Engine],
    policy: TuningPolicy,
    progress: bool = False,
) -> Climbed:
    """Search for faster settings for the seconds that the policy gives.

    In turn for each engine that may still win, what differs in one knob from its fastest setting
    that was not looked around yet is tried, so that a setting whose neighbours are all slower is
    left for the second fastest.

    Parameters
    ----------
    graph : Graph
        The problem's; its handle is on a stream of its own that can be recorded.
    problem : Problem
        What is computed.
    operands : mapping
        By the operation's names; what is written is overwritten.
    engines : iterable of Engine
        Where to begin.
    policy : TuningPolicy
        Its `search_seconds`; and what it excludes is not tried.
    progress : bool
        Whether a bar on stderr shows the seconds.
    """
    begin, order = time.perf_counter(), random.Random(0)
    with ExitStack() as stack:
        trials = _Trials(graph, problem, operands, policy, stack)
        tell = stack.enter_context(counting_seconds(progress, policy.search_seconds))
        known, heaps = (
            set(engines),
            defaultdict[int, list[_Entry]](list),
        )  # by the engine's number, the fastest first

        def enter(engine: Engine) -> None:
            if (ms := trials.time(engine)) is not None:
                heapq.heappush(heaps[engine.index], (ms, str(engine), engine))

        for engine in sorted(known, key=str):
            if tell(time.perf_counter() - begin, trials.ran):
                break
            enter(engine)
        while heaps and not tell(time.perf_counter() - begin, trials.ran):
            most = _MAY_WIN * min(heap[0][0] for heap in heaps.values())
            for index in [index for index, heap in heaps.items() if heap[0][0] <= most]:
                _, _, engine = heapq.heappop(heaps[index])
                around = [
                    other
                    for other in neighbours(engine, trials.knobs(index))
                    if other not in trials.rows
                ]
                order.shuffle(around)
                for other in around:
                    if tell(time.perf_counter() - begin, trials.ran):
                        break
                    enter(other)
                if not heaps[index]:
                    del heaps[index]
        found = [row for each, row in trials.rows.items() if row and each not in known]
        found.sort(key=lambda row: row.time_ms or 0.0)
        tried = len(trials.rows)
    finalists = [
        replace(row, time_ms=None, remark="found by its knobs") for row in found[:FINALISTS]
    ]
    return Climbed(finalists, tried, trials.ran, time.perf_counter() - begin)


class _Trials:
    """Tries settings on one graph, over the same operands."""

    def __init__(
        self,
        graph: Graph,
        problem: Problem,
        operands: Mapping[str, DeviceArray],
        policy: TuningPolicy,
        stack: ExitStack,
    ) -> None:
        self._graph, self._problem, self._policy = graph, problem, policy
        self._handle = handle = graph.handle
        self._addresses = {name: array.ptr for name, array in operands.items()}
        self._knobs: dict[int, Any] = {}
        self._stopwatch = Stopwatch(handle.device, handle.stream, _QUICK, flush_l2=policy.flush_l2)
        stack.callback(self._stopwatch.close)
        self.rows: dict[Engine, AlgorithmResult | None] = {}  # None: it does not run, or may not
        self.ran = 0

    def knobs(self, index: int) -> Any:
        """Return an engine's knobs."""
        if index not in self._knobs:
            self._knobs[index] = ()
            with suppress(CudnnError):  # this engine tells none
                self._knobs[index] = knobs_of(self._graph, index)
        return self._knobs[index]

    def time(self, engine: Engine) -> float | None:
        """Return the milliseconds of a setting on the device; None where it does not run, or may not."""
        row = None
        with ExitStack() as stack, suppress(CudnnError, DeviceMemoryError):
            row = self._row(engine, stack)
        self.rows[engine] = row
        self.ran += row is not None
        return None if row is None else row.time_ms

    def _row(self, engine: Engine, stack: ExitStack) -> AlgorithmResult | None:
        problem, policy, handle = self._problem, self._policy, self._handle
        configuration = configure(self._graph, engine, stack)
        row, first = row_of(configuration, problem), problem.values[problem.operation.reads[0]]
        if excluded(configuration, problem) or policy.why_not(row, first.dtype):
            return None
        plan = ExecutionPlan(self._graph, configuration, stack)
        if policy.workspace_limit is not None and plan.workspace > int(policy.workspace_limit):
            return None
        stack.callback(handle.stream.sync)  # before the plan goes
        plan.replace(
            workSpace=handle.workspace.reserve(plan.workspace, handle.stream), **self._addresses
        )
        ms = self._stopwatch.first(plan)
        if self._stopwatch.is_worth(ms):
            ms = self._stopwatch.repeat([plan], [ms])[0].ms
        return replace(row, workspace=plan.workspace, time_ms=ms)
