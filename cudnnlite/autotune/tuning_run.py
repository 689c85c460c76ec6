"""`TuningRun`: one tuning of many problems: looked up, measured here, or by workers in whichever process, on whichever host."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from cudnnlite.autotune.cache import IN_MEMORY, Remembered, TuningCache
from cudnnlite.autotune.claims import claimed_device
from cudnnlite.autotune.entries import DeviceIdentity, TuningEntry, make_key
from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.autotune.progress import Report
from cudnnlite.autotune.tuned import TunedProblem
from cudnnlite.autotune.tuner import Tuner
from cudnnlite.autotune.worker_pool import WorkerDiedError
from cudnnlite.devices.choice import get_device
from cudnnlite.devices.device import Device
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import (
    ArgumentError,
    CudnnError,
    CudnnliteError,
    DeviceMemoryError,
    NoAlgorithmError,
    TuningWarning,
)  # fmt: skip
from cudnnlite.operations.problem import Problem
from cudnnlite.operations.problem_list import ListedProblem
from cudnnlite.search.table import AlgorithmTable
from cudnnlite.warn import warn_user

_TRIES = 2  # of a problem whose worker process died
# what says that a problem cannot be tuned, and nothing of the worker
_ANSWERS = (CudnnError, DeviceMemoryError, NoAlgorithmError, ArgumentError)


class Worker(NamedTuple):
    """Who measured: the host's name, the process's number there, the device, and which one of its kind that is."""

    host: str
    process: int
    device: DeviceIdentity
    uuid: str

    @classmethod
    def on(cls, device: Device) -> Worker:
        """Return what this process is on a device."""
        return cls(os.uname().nodename, os.getpid(), DeviceIdentity.of(device), device.facts().uuid)

    def __str__(self) -> str:
        return f"{self.host}, process {self.process}, {self.device.gpu} {self.uuid}"


@dataclass(frozen=True)
class Task:
    """What a worker is asked: to tune a problem under a policy, on a device as in `claimed_device`.

    `cache` is a folder that workers shall write into themselves.  The token is another one each time: dask answers equal calls
    once, and what was true before may not be so now.
    """

    problem: Problem
    policy: TuningPolicy
    device: str
    like: tuple[str, str] | None = None
    avoid: str = ""
    cache: str = IN_MEMORY
    token: str = field(default_factory=lambda: os.urandom(16).hex())


@dataclass(frozen=True)
class Answer:
    """What a worker returns: every candidate, or, where the search failed as a whole, why there is none.

    `from_cache` tells whether another process had measured it meanwhile; `entry` is what is to be remembered, None on an
    emulated device, or where no candidate works.
    """

    worker: Worker
    table: AlgorithmTable | None = None
    why_none: str = ""
    from_cache: bool = False
    entry: TuningEntry | None = None


def tune_task(task: Task) -> Answer:
    """Tune a problem in a worker; NoDeviceError or LibraryError if the worker cannot work at all."""
    # Nothing outlives the task: a thread of somebody's pool does not say when it ends.  And a handle that is made or closed
    # disturbs what is measured.
    with claimed_device(task.device, task.like, task.avoid) as device:
        try:
            with TuningCache(task.cache) as cache, Handle(device) as handle:
                return tune_with(Tuner(handle, cache, task.policy), task.problem)
        except _ANSWERS as error:  # no memory for a handle
            return Answer(Worker.on(device), why_none=str(error))


def tune_with(tuner: Tuner, problem: Problem) -> Answer:
    """Tune a problem with a tuner of this thread; a search that fails, for want of memory for instance, is an answer too."""
    device, before = tuner.handle.device, tuner.measured
    try:
        table = tuner.tune(problem)
    except _ANSWERS as error:
        return Answer(Worker.on(device), why_none=str(error))
    policy = tuner.policy.within(tuner.handle.workspace.limit_for(None), device.memory_info()[1])
    entry = tuner.cache.get(make_key(problem, {}, policy, tuner.device))
    return Answer(Worker.on(device), table, from_cache=tuner.measured == before, entry=entry)


def identify(device: str, token: str) -> tuple[DeviceIdentity, int]:
    """Return what a worker would measure on, and the bytes of its memory; `token` as in `Task`."""
    found = get_device(device)
    return DeviceIdentity.of(found), found.memory_info()[1]


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
        for index, listed in enumerate(self._listed):
            if table := self._known.find(self._known.key(listed.problem)):
                self._add(index, table, from_cache=True)
        return [index for index in range(len(self._listed)) if index not in self._tuned]

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
                self._add(index, None, _named(error))
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
                    self._add(index, None, f"{error}; as before, when it was tried first")
            except Exception as error:  # whose fault it is cannot be told from here
                self._add(index, None, _named(error))
            else:
                self._take(index, answer)

        def taken_back() -> int | None:
            for future, index in reversed(waiting.items()):
                if tries[index] == 1 and future.cancel():  # not what a worker died of
                    del waiting[future]
                    return index
            return None

        try:
            for index in missing:
                submit(index)
            while waiting:
                if own is not None and done.empty() and (taken := taken_back()) is not None:
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
            told = f"{answer.worker} measured for itself; asked for is {self._known.device}"
            warn_user(f"{told}. What it found is remembered for what it has", TuningWarning)
        self.workers.update([] if answer.from_cache or answer.table is None else [answer.worker])
        self._add(index, answer.table, answer.why_none, from_cache=answer.from_cache)

    def _keep(self, answer: Answer) -> None:
        """Remember what was found elsewhere, unless that is known."""
        if (entry := answer.entry) and not entry.key.device.is_emulated and self._known.cache.get(entry.key) is None:
            self._known.cache.put(entry)

    def _add(self, index: int, table: AlgorithmTable | None, why_none: str = "", *, from_cache: bool = False) -> None:
        listed, chosen = self._listed[index], None
        if table is None:
            table = AlgorithmTable((), title=str(listed.problem), timing="none")
        else:
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
