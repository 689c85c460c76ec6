"""`TuningRun`: one tuning of many problems: looked up, measured here, or by the workers of an executor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from cudnnlite.autotune.progress import Report
from cudnnlite.autotune.remembered import Remembered
from cudnnlite.autotune.store import IN_MEMORY
from cudnnlite.autotune.tuned import TunedProblem
from cudnnlite.autotune.tuner import Tuner
from cudnnlite.autotune.worker_pool import WorkerDiedError
from cudnnlite.autotune.workers import Answer, Task, Worker, tune_task, tune_with
from cudnnlite.errors import ArgumentError, CudnnliteError, NoAlgorithmError, TuningWarning
from cudnnlite.operations.problem_list import ListedProblem
from cudnnlite.search.table import AlgorithmTable
from cudnnlite.warn import warn_user

_TRIES = 2  # of a problem whose worker process died


class TuningRun:
    """One tuning of many problems, each listed once, and what became of each.

    Below, problems go by their places in the list.  `workers` counts how many problems each worker measured.
    """

    def __init__(self, listed: Sequence[ListedProblem], known: Remembered, report: Report) -> None:
        self._listed, self._known, self._report = listed, known, report
        self._tuned: dict[int, TunedProblem] = {}
        self._told = False
        self.workers: Counter[Worker] = Counter()

    @property
    def tunings(self) -> tuple[TunedProblem, ...]:
        """What became of every problem, in the order of the list."""
        return tuple(self._tuned[index] for index in range(len(self._listed)))

    def look_up(self) -> list[int]:
        """Answer what is remembered; return the other problems."""
        missing = []
        for index, listed in enumerate(self._listed):
            table = self._known.table(listed.problem)
            if table is None:
                missing.append(index)
            else:
                self._add(index, table, from_cache=True)
        return missing

    def work(self, missing: Sequence[int], tuner: Tuner) -> None:
        """Tune problems in this thread."""
        for index in missing:
            self._take(index, tune_with(tuner, self._listed[index].problem))

    def spread(self, missing: Sequence[int], executor: Executor, device: str, own: Tuner | None = None) -> None:
        """Let the workers of an executor tune problems on a device, as in `claimed_device`; this thread too if it has a tuner.

        What they have not begun is taken back if this is left by an exception; what they have done is kept.  Of the futures
        nothing is asked but `add_done_callback`, `cancel`, `done` and `result`.
        """
        waiting: dict[Future[Answer], int] = {}
        tries: Counter[int] = Counter()
        done: SimpleQueue[Future[Answer]] = SimpleQueue()
        like, cache = (self._known.device.gpu, self._known.device.compute_capability), self._known.cache
        shared = isinstance(cache.path, Path) and not cache.read_only and is_here(executor)
        place = str(cache.path) if shared else IN_MEMORY
        avoid = "" if own is None else own.handle.device.facts().uuid

        def submit(index: int) -> None:
            task = Task(self._listed[index].problem, self._known.policy, device, like, avoid, place)
            try:
                future = hand_over(executor, tune_task, task)
            except BrokenExecutor as error:
                self._fail(index, _named(error))
                return
            waiting[future] = index
            tries[index] += 1
            future.add_done_callback(done.put)

        def settle(index: int, future: Future[Answer]) -> None:
            try:
                answer = future.result()
            except CudnnliteError:  # the worker cannot work: nor could it tune the others
                raise
            except WorkerDiedError as error:
                if tries[index] < _TRIES:
                    warn_user(f"{error}; what it was at is tried once more", TuningWarning)
                    submit(index)
                else:
                    self._fail(index, f"{error}; as before, when it was tried first")
            except Exception as error:  # whose fault it is cannot be told from here
                self._fail(index, _named(error))
            else:
                self._take(index, answer)

        def take_back() -> int | None:
            for future, index in reversed(waiting.items()):
                if tries[index] == 1 and future.cancel():  # not what a worker died of
                    del waiting[future]
                    return index
            return None

        try:
            for index in missing:
                submit(index)
            while waiting:
                taken = take_back() if own is not None and done.empty() else None
                if own is not None and taken is not None:
                    self.work([taken], own)
                elif (future := done.get()) in waiting:  # it was not taken back
                    settle(waiting[future], future)
                    del waiting[future]
        finally:
            for future in waiting:
                future.cancel()
            for future in [each for each in waiting if each.done()]:
                with suppress(Exception, KeyboardInterrupt):  # cancelled, or failed: there is no answer
                    self._keep(future.result())

    def _take(self, index: int, answer: Answer) -> None:
        self._keep(answer)
        if answer.worker.device != self._known.device and not self._told:
            self._told = True
            warn_user(
                f"{answer.worker} measured for itself; asked for is {self._known.device}. What it found is remembered for "
                "what it has",
                TuningWarning,
            )
        if answer.table is None:
            self._fail(index, answer.why_none)
        else:
            self.workers.update([] if answer.from_cache else [answer.worker])
            self._add(index, answer.table, from_cache=answer.from_cache)

    def _keep(self, answer: Answer) -> None:
        if answer.entry is not None:
            self._known.keep(answer.entry)

    def _fail(self, index: int, why: str) -> None:
        table = AlgorithmTable((), title=str(self._listed[index].problem), timing="none")
        self._add(index, table, why_none=why)

    def _add(self, index: int, table: AlgorithmTable, *, from_cache: bool = False, why_none: str = "") -> None:
        listed, chosen = self._listed[index], None
        if not why_none:
            try:
                chosen = table.best()
            except NoAlgorithmError as error:
                why_none = str(error)
        tuned = TunedProblem(listed.problem, table, chosen, why_none, listed.count, listed.names, from_cache)
        self._tuned[index] = tuned
        self._report(len(self._tuned), len(self._listed), tuned)


def hand_over(executor: Executor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Let an executor call a function; BrokenExecutor, or ArgumentError, if it takes no work."""
    try:
        return executor.submit(function, *arguments)
    except BrokenExecutor:
        raise
    except RuntimeError as error:
        raise ArgumentError(f"executor={executor!r} takes no work: {error}") from error


def is_here(executor: Executor) -> bool:
    """Tell whether an executor's workers are known to be on this machine, where they reach what this process does."""
    return isinstance(executor, (ProcessPoolExecutor, ThreadPoolExecutor))


def _named(error: Exception) -> str:
    return f"not tuned: {type(error).__name__}: {error}".rstrip(": ")
