"""`TuningRun`: one tuning of many problems: looked up, measured here, or by the workers of an executor."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import suppress
from queue import SimpleQueue

from cudnnlite.autotune.progress import Report
from cudnnlite.autotune.remembered import Remembered
from cudnnlite.autotune.tuned import TunedProblem
from cudnnlite.autotune.tuner import Tuner
from cudnnlite.autotune.worker_pool import WorkerDiedError
from cudnnlite.autotune.workers import Answer, CachePlace, Task, Worker, tune_task, tune_with
from cudnnlite.errors import ArgumentError, CudnnliteError, NoAlgorithmError, TuningWarning
from cudnnlite.operations.problem_list import ListedProblem
from cudnnlite.search.results import AlgorithmResult, AlgorithmTable
from cudnnlite.warn import warn_user

_TRIES = 2  # of a problem whose worker process died


class TuningRun:
    """One tuning of many problems, and what became of each.

    Parameters
    ----------
    listed : sequence of ListedProblem
        The problems, each once.  Below they go by their places in it.
    known : Remembered
        What the cache knows, and the policy.
    report : callable
        Called with (done, of how many, TunedProblem) for each.

    Attributes
    ----------
    workers : Counter of Worker
        Who measured, and how many problems.
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
                self._finish(index, table, from_cache=True)
        return missing

    def work(self, missing: Iterable[int], tuner: Tuner) -> None:
        """Tune problems in this thread."""
        for index in missing:
            self._take(index, tune_with(tuner, self._listed[index].problem))

    def spread(
        self, missing: Sequence[int], executor: Executor, device: str, tuner: Callable[[], Tuner] | None = None
    ) -> None:
        """Let the workers of an executor tune problems, and this thread too if a tuner can be made for it.

        What they have not begun is taken back if this is left by an exception; what they have done is kept.

        Parameters
        ----------
        missing : sequence of int
            The problems.
        executor : Executor
            Of its futures nothing is asked but `add_done_callback`, `cancel`, `done` and `result`.
        device : str
            As in `Task`.
        tuner : callable, optional
            Makes a tuner, once the workers are at work.
        """
        tasks = _Tasks(executor)
        like = (self._known.device.gpu, self._known.device.compute_capability)
        place = CachePlace.of(self._known.cache)

        def submit(index: int) -> None:
            problem = self._listed[index].problem
            try:
                tasks.submit(index, Task(problem, self._known.policy, device, like, place, os.urandom(16).hex()))
            except BrokenExecutor as error:
                self._fail(index, _named(error))

        def settle(index: int, future: Future[Answer]) -> None:
            try:
                answer = future.result()
            except CudnnliteError:  # the worker cannot work: nor could it tune the others
                raise
            except WorkerDiedError as error:
                if tasks.tries[index] < _TRIES:
                    warn_user(f"{error}; what it was at is tried once more", TuningWarning)
                    submit(index)
                else:
                    self._fail(index, f"{error}; as before, when it was tried first")
            except Exception as error:  # whose fault it is cannot be told from here
                self._fail(index, _named(error))
            else:
                self._take(index, answer)

        try:
            for index in missing:
                submit(index)
            own = tuner() if tuner is not None else None
            while tasks.waiting:
                taken = None if own is None else tasks.take_back()
                if own is not None and taken is not None:
                    self.work([taken], own)
                elif (future := tasks.next()) in tasks.waiting:  # it was not taken back
                    settle(tasks.waiting[future], future)
                    del tasks.waiting[future]
        finally:
            for answer in tasks.abandon():
                self._keep(answer)

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
            if not answer.from_cache:
                self.workers[answer.worker] += 1
            self._finish(index, answer.table, answer.from_cache)

    def _keep(self, answer: Answer) -> None:
        if answer.entry is not None:
            self._known.keep(answer.entry)

    def _fail(self, index: int, why: str) -> None:
        table = AlgorithmTable((), title=str(self._listed[index].problem), timing="none")
        self._add(index, table, None, why, False)

    def _finish(self, index: int, table: AlgorithmTable, from_cache: bool) -> None:
        try:
            chosen = table.best()
        except NoAlgorithmError as error:
            self._add(index, table, None, str(error), from_cache)
        else:
            self._add(index, table, chosen, "", from_cache)

    def _add(
        self, index: int, table: AlgorithmTable, chosen: AlgorithmResult | None, why_none: str, from_cache: bool
    ) -> None:
        listed = self._listed[index]
        tuned = TunedProblem(listed.problem, table, chosen, why_none, listed.count, listed.names, from_cache)
        self._tuned[index] = tuned
        self._report(len(self._tuned), len(self._listed), tuned)


class _Tasks:
    """The tasks that an executor was given.

    Attributes
    ----------
    waiting : dict of Future to int
        Those whose answers nobody has seen, with the problem of each.
    tries : Counter of int
        How often each problem was given to it.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._done: SimpleQueue[Future[Answer]] = SimpleQueue()
        self.waiting: dict[Future[Answer], int] = {}
        self.tries: Counter[int] = Counter()

    def submit(self, index: int, task: Task) -> None:
        """Hand a task over; BrokenExecutor, or ArgumentError, if the executor takes none."""
        try:
            future: Future[Answer] = self._executor.submit(tune_task, task)
        except BrokenExecutor:
            raise
        except RuntimeError as error:
            raise ArgumentError(f"executor={self._executor!r} takes no work: {error}") from error
        self.waiting[future] = index
        self.tries[index] += 1
        future.add_done_callback(self._done.put)

    def next(self) -> Future[Answer]:
        """Wait until a task is done, or was taken back; return its future."""
        return self._done.get()

    def take_back(self) -> int | None:
        """Return a problem that no worker has begun, the last one; None if there is none, or something else to be seen."""
        if self._done.empty():
            for future, index in reversed(self.waiting.items()):
                if self.tries[index] == 1 and future.cancel():  # not what a worker died of
                    del self.waiting[future]
                    return index
        return None

    def abandon(self) -> list[Answer]:
        """Take back what nobody will look at; return the answers that are there all the same."""
        for future in self.waiting:
            future.cancel()
        answers = []
        for future in self.waiting:
            if future.done():
                with suppress(Exception, KeyboardInterrupt):  # cancelled, or failed: there is none
                    answers.append(future.result())
        return answers


def _named(error: Exception) -> str:
    return f"not tuned: {type(error).__name__}: {error}".rstrip(": ")
