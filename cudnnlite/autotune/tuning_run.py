"""`TuningRun`: one tuning of many problems, from the cache, in this process, or by workers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple

from cudnnlite import errors
from cudnnlite.autotune.cache import IN_MEMORY, TuningCache
from cudnnlite.autotune.entries import DeviceIdentity, TuningEntry, make_key
from cudnnlite.autotune.gpu_locks import locked_device
from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.autotune.progress import Report
from cudnnlite.autotune.tuned_problem import TunedProblem
from cudnnlite.autotune.tuner import Tuner
from cudnnlite.autotune.worker_pool import WorkerDiedError
from cudnnlite.devices.choice import get_device
from cudnnlite.devices.device import Device
from cudnnlite.devices.handle import Handle
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.problem_list import ListedProblem
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.warn import warn_user

# Executors whose workers reach the same devices and files as this process.
HERE = (ProcessPoolExecutor, ThreadPoolExecutor)


class Worker(NamedTuple):
    """A process that measured: the host's name, the process's number, the device and its UUID."""

    host: str
    process: int
    device: DeviceIdentity
    uuid: str

    def __str__(self) -> str:
        return f"{self.host}, process {self.process}, {self.device.gpu} {self.uuid}"


class Answer(NamedTuple):
    """The result for a problem, from a worker or from the cache."""

    table: AlgorithmTable | None = None  # every candidate; None if the search failed as a whole
    why_none: str = ""  # why it failed
    # Whether it was in the cache. Another process may have put it there meanwhile.
    from_cache: bool = False
    # The entry for the cache. None for an emulated device, or if no candidate works.
    entry: TuningEntry | None = None
    worker: Worker | None = None


def tune_task(
    problem: Problem,
    policy: TuningPolicy,
    device: str,
    like: DeviceIdentity | None = None,
    avoid: str = "",
    cache: str = IN_MEMORY,
    token: str = "",  # of `hand_over`
) -> Answer:
    """Tune a problem in a worker, on a `locked_device`, into a cache.

    NoDeviceError or LibraryError if the worker has no device or no libcudnn.
    """
    # The handle and the cache are closed with the task. A thread of a pool does not say when it
    # ends, and a handle that is closed later would disturb other measurements.
    with (
        locked_device(device, like, avoid) as device_of_thread,
        TuningCache(cache) as cache_of_task,
    ):
        return tune_on(device_of_thread, problem, policy, cache_of_task)


def tune_on(
    place: Device | Handle, problem: Problem, policy: TuningPolicy, cache: TuningCache
) -> Answer:
    """Tune a problem on a handle, or on a device with a new handle.

    The policy's workspace limit must be in bytes.
    """
    try:
        with nullcontext(place) if isinstance(place, Handle) else Handle(place) as handle:
            tuner = Tuner(handle, cache, policy)
            table = tuner.tune(problem)
    except (
        errors.CudnnError,
        errors.DeviceMemoryError,
        errors.NoAlgorithmError,
        errors.ArgumentError,
    ) as error:
        # The error must not stop the worker. It is returned as a text, because Dask cannot pass on
        # an exception that is a MemoryError too.
        return Answer(why_none=str(error))
    entry = cache.get(make_key(problem, {}, policy, tuner.device))
    worker = Worker(os.uname().nodename, os.getpid(), tuner.device, handle.device.facts().uuid)
    return Answer(table, from_cache=not tuner.measured, entry=entry, worker=worker)


def identify(device: str | Device, token: str = "") -> tuple[DeviceIdentity, int]:
    """Return the kind of a worker's device, and the bytes of its memory.

    `token` is that of `hand_over`.
    """
    worker_device = get_device(device)
    return DeviceIdentity.of(worker_device), worker_device.memory_info()[1]


@dataclass
class TuningRun:
    """One tuning of many distinct problems; `tuned` has the results by their indices."""

    problems: Sequence[ListedProblem]
    cache: TuningCache
    policy: TuningPolicy  # with the workspace limit in bytes
    device: DeviceIdentity  # the device that the problems are tuned for
    report: Report
    tuned: dict[int, TunedProblem] = field(default_factory=dict)
    workers: Counter[Worker] = field(default_factory=Counter)  # how many problems each measured
    _has_warned: bool = False

    def look_up(self, memory: int) -> list[int]:
        """Take results from the cache, and return the indices of the other problems.

        `memory` is that of the device in bytes.
        """
        for index, item in enumerate(self.problems):
            entry = self.cache.get(make_key(item.problem, {}, self.policy, self.device))
            if entry:
                self.note(index, Answer(entry.table(memory), from_cache=True))
        return [index for index in range(len(self.problems)) if index not in self.tuned]

    def spread(
        self, missing: Sequence[int], executor: Executor | None, device: str, handle: Handle | None
    ) -> None:
        """Tune problems with an executor's workers, and on a handle in this thread.

        `device` is that of `locked_device`.  After an exception, the tasks that did not begin are
        cancelled, and the results so far are saved.  Of the futures only `add_done_callback`,
        `cancel`, `done` and `result` are used.
        """
        work = _Work(self, executor, device, handle)
        try:
            for index in missing:
                work.submit(index)
            while work.waiting:
                if handle is None or not work.is_quiet or not self._tune_one_here(work, handle):
                    work.settle_next()
        finally:
            work.stop()

    def _tune_one_here(self, work: _Work, handle: Handle) -> bool:
        """Tune a problem in this thread; return False if the workers have begun all of them."""
        index = work.take_back()
        if index is None:
            return False
        problem = self.problems[index].problem
        self.note(index, tune_on(handle, problem, self.policy, self.cache))
        return True

    def note(self, index: int, answer: Answer) -> None:
        """Remember and report the result for a problem."""
        self.remember(answer)
        worker = answer.worker
        if worker is not None:
            self._count(worker, answer)
        item = self.problems[index]
        table = answer.table or AlgorithmTable((), title=str(item.problem), timing="none")
        choice = None
        why_none = answer.why_none
        try:
            choice = table.best()
        except errors.NoAlgorithmError as error:
            why_none = why_none or str(error)
        self.tuned[index] = TunedProblem(
            item.problem, table, choice, why_none, item.count, item.names, answer.from_cache
        )
        self.report(len(self.tuned), len(self.problems), self.tuned[index])

    def _count(self, worker: Worker, answer: Answer) -> None:
        """Count the problems of a worker; warn, once, if its device is of another kind."""
        if worker.device != self.device and not self._has_warned:
            self._has_warned = True
            devices = f"{worker} measured for itself; asked for is {self.device}"
            warn_user(
                f"{devices}. What it found is remembered for what it has", errors.TuningWarning
            )
        if not answer.from_cache:
            self.workers[worker] += 1

    def remember(self, answer: Answer) -> None:
        """Put a worker's entry into the cache, unless it has one."""
        entry = answer.entry
        if entry is not None and self.cache.get(entry.key) is None:
            self.cache.put(entry)


class _Work:
    """The problems of a run that wait for a worker of the executor, or for this thread."""

    def __init__(
        self, run: TuningRun, executor: Executor | None, device: str, handle: Handle | None
    ) -> None:
        self.waiting: dict[Future[Answer], int] = {}
        self._run, self._executor, self._device = run, executor, device
        self._finished: SimpleQueue[Future[Answer]] = SimpleQueue()
        self._second_tries: set[int] = set()  # the problems at which a worker died
        writes_cache = isinstance(executor, HERE) and not run.cache.read_only
        self._cache = str(run.cache.path if writes_cache else IN_MEMORY)
        self._avoid = "" if handle is None else handle.device.facts().uuid

    @property
    def is_quiet(self) -> bool:
        """Whether no result waits to be settled."""
        return self._finished.empty()

    def submit(self, index: int) -> None:
        """Let a worker tune a problem."""
        run = self._run
        if self._executor is None:
            future = Future[Answer]()
        else:
            problem = run.problems[index].problem
            task = (problem, run.policy, self._device, run.device, self._avoid, self._cache)
            future = hand_over(self._executor, tune_task, *task)
        self.waiting[future] = index
        future.add_done_callback(self._finished.put)

    def take_back(self) -> int | None:
        """Take back a problem that no worker has begun, and at which none died, or None."""
        for future, index in self.waiting.items():
            if index not in self._second_tries and future.cancel():
                del self.waiting[future]
                return index
        return None

    def settle_next(self) -> None:
        """Wait for the next result, and note it."""
        future = self._finished.get()
        is_taken_back = future not in self.waiting
        if is_taken_back:
            return
        self._settle(self.waiting[future], future)
        del self.waiting[future]

    def _settle(self, index: int, future: Future[Answer]) -> None:
        try:
            answer = future.result()
        except errors.CudnnliteError:  # The worker cannot tune another problem either.
            raise
        except WorkerDiedError as error:
            if index not in self._second_tries:
                self._second_tries.add(index)
                warn_user(f"{error}; what it was at is tried once more", errors.TuningWarning)
                self.submit(index)
                return
            answer = Answer(why_none=f"{error}; as before, when it was tried first")
        except Exception as error:  # the executor's, or the worker's
            answer = Answer(why_none=f"not tuned: {type(error).__name__}: {error}".rstrip(": "))
        self._run.note(index, answer)

    def stop(self) -> None:
        """Cancel the tasks that did not begin, and save the results so far."""
        for future in self.waiting:
            future.cancel()
        for future in list(self.waiting):
            # A future that was cancelled or failed has no answer.
            with suppress(Exception, KeyboardInterrupt):
                if future.done():
                    self._run.remember(future.result())


def hand_over(executor: Executor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Let an executor call a function; ArgumentError if it takes no work.

    The last argument of the call is a new token.  Without it Dask would make equal calls only once,
    though the result may have changed.
    """
    token = os.urandom(16).hex()
    try:
        return executor.submit(function, *arguments, token)
    except BrokenExecutor as error:
        future = Future[Any]()
        future.set_exception(error)
        return future
    except RuntimeError as error:
        raise errors.ArgumentError(f"executor={executor!r} takes no work: {error}") from error
