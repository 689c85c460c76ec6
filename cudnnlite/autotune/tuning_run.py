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
from contextlib import AbstractContextManager, nullcontext, suppress
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
from cudnnlite.devices.peaks import peaks_of
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.problem_list import ListedProblem
from cudnnlite.problems.roofline import Peaks
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.warn import warn_user

# Executors whose workers reach the same devices and files as this process.
LOCAL_EXECUTORS = (ProcessPoolExecutor, ThreadPoolExecutor)


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
    why_none: str = ""  # why the search failed
    # Whether the result was in the cache. A worker finds it there if another process stored it
    # after this run looked it up.
    from_cache: bool = False
    # The result as an entry of the cache. None if no candidate works, or if the device is emulated
    # and the cache is for GPUs.
    entry: TuningEntry | None = None
    worker: Worker | None = None


def tune_task(
    problem: Problem,
    policy: TuningPolicy,
    device: str,
    like: DeviceIdentity | None = None,
    avoid_uuid: str = "",
    cache: str = IN_MEMORY,
    token: str = "",
) -> Answer:
    """Tune a problem in a worker, and put the result into a cache.

    The worker measures on the device that `locked_device` chooses for `device`, `like` and
    `avoid_uuid`.  `cache` is the path of the cache.  `token` is not used: see `hand_over`.

    NoDeviceError or LibraryError if the worker has no device or no libcudnn.
    """
    # The handle, which `tune_on` makes, and the cache are closed with the task. A thread of a pool
    # does not say when it ends, and closing a handle later would disturb other measurements.
    with locked_device(device, like, avoid_uuid) as task_device:
        # A cache in memory must take the entries of this device, to return them to the run. A cache
        # file says itself whether it is a rehearsal.
        rehearsal = None
        if cache == IN_MEMORY:
            rehearsal = not task_device.has_real_timing
        with TuningCache(cache, rehearsal=rehearsal) as task_cache:
            return tune_on(task_device, problem, policy, task_cache)


def tune_on(
    handle_or_device: Handle | Device, problem: Problem, policy: TuningPolicy, cache: TuningCache
) -> Answer:
    """Tune a problem on a handle, which stays open, or on a device with a new handle.

    The policy's workspace limit must be in bytes.
    """
    try:
        context: AbstractContextManager[Handle]
        if isinstance(handle_or_device, Handle):
            context = nullcontext(handle_or_device)
        else:
            context = Handle(handle_or_device)
        with context as handle:
            uuid = handle.device.facts().uuid
            tuner = Tuner(handle, cache, policy)
            table = tuner.tune(problem)
    except (
        errors.CudnnError,
        errors.DeviceMemoryError,
        errors.NoAlgorithmError,
        errors.ArgumentError,
    ) as error:
        # These errors concern this problem only, and the worker goes on. They are returned as a
        # text, because Dask cannot pass on an exception that is a MemoryError too.
        return Answer(why_none=str(error))
    key = make_key(problem, alignments={}, policy=policy, device=tuner.device)
    entry = cache.get(key)
    worker = Worker(os.uname().nodename, os.getpid(), tuner.device, uuid)
    return Answer(table, from_cache=not tuner.measured, entry=entry, worker=worker)


def identify(device: str | Device, token: str = "") -> tuple[DeviceIdentity, int, Peaks | None]:
    """Return the identity of a worker's device, the bytes of its memory, and its peaks.

    `token` is not used: see `hand_over`.
    """
    worker_device = get_device(device)
    memory = worker_device.memory_info()[1]
    return DeviceIdentity.of(worker_device), memory, peaks_of(worker_device)


@dataclass
class TuningRun:
    """One tuning of many distinct problems.

    `tuned` has the results by the indices of the problems.
    """

    problems: Sequence[ListedProblem]
    cache: TuningCache
    policy: TuningPolicy  # with the workspace limit in bytes
    device: DeviceIdentity  # the device that the problems are tuned for
    report: Report
    tuned: dict[int, TunedProblem] = field(default_factory=dict)
    workers: Counter[Worker] = field(default_factory=Counter)  # how many problems each measured
    _has_warned: bool = False

    def look_up(self, memory: int, peaks: Peaks | None) -> list[int]:
        """Take results from the cache, and return the indices of the other problems.

        The tables of the results contain `memory`, the device's memory in bytes, and `peaks`, its
        peaks, if they are known.
        """
        for index, item in enumerate(self.problems):
            key = make_key(item.problem, alignments={}, policy=self.policy, device=self.device)
            entry = self.cache.get(key)
            if entry:
                self.record(index, Answer(entry.table(memory, peaks), from_cache=True))
        return [index for index in range(len(self.problems)) if index not in self.tuned]

    def spread(
        self, missing: Sequence[int], executor: Executor | None, device: str, handle: Handle | None
    ) -> None:
        """Tune problems with an executor's workers, and on a handle in this thread.

        `device` names the workers' device as in `locked_device`: "cuda" for any GPU, "cuda:1" for
        one.  After an exception, the tasks that did not begin are cancelled, and the results so far
        are saved.  The executor's futures need `add_done_callback`, `cancel`, `done` and `result`.
        """
        work = _Work(self, executor, device, handle)
        try:
            for index in missing:
                work.submit(index)
            while work.unsettled:
                was_tuned_here = False
                if handle is not None and not work.has_finished_tasks:
                    was_tuned_here = self._tune_one_here(work, handle)
                if not was_tuned_here:
                    work.settle_next()
        finally:
            work.stop()

    def _tune_one_here(self, work: _Work, handle: Handle) -> bool:
        """Tune a problem in this thread; return False if the workers have begun all of them."""
        index = work.take_back()
        if index is None:
            return False
        problem = self.problems[index].problem
        self.record(index, tune_on(handle, problem, self.policy, self.cache))
        return True

    def record(self, index: int, answer: Answer) -> None:
        """Add the result for a problem to the cache and to `tuned`, and report it."""
        self.store_entry(answer)
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
        """Count a problem that a worker measured; warn, once, if its device is of another kind."""
        if worker.device != self.device and not self._has_warned:
            self._has_warned = True
            warn_user(
                f"{worker} is not of the requested kind, {self.device}. Its results are stored in "
                "the cache for its own kind",
                errors.TuningWarning,
            )
        if not answer.from_cache:
            self.workers[worker] += 1

    def store_entry(self, answer: Answer) -> None:
        """Put the entry of a result into the cache, unless the cache has one under its key."""
        entry = answer.entry
        if entry is None or entry.key.device.is_emulated != self.cache.rehearsal:
            return
        if self.cache.get(entry.key) is None:
            self.cache.put(entry)


class _Work:
    """The problems of a run whose results are not recorded yet, each with a future.

    An executor's workers or this thread tune them.
    """

    def __init__(
        self, run: TuningRun, executor: Executor | None, device: str, handle: Handle | None
    ) -> None:
        # The indices of the problems whose tasks wait, run, or have finished.
        self.unsettled: dict[Future[Answer], int] = {}
        self._run = run
        self._executor = executor
        self._device = device
        self._finished: SimpleQueue[Future[Answer]] = SimpleQueue()
        self._second_tries: set[int] = set()  # the problems at which a worker died
        self._worker_cache = IN_MEMORY
        if isinstance(executor, LOCAL_EXECUTORS) and not run.cache.read_only:
            self._worker_cache = str(run.cache.path)
        # This thread measures on the GPU of its handle, so the workers try that GPU last.
        self._avoid_uuid = ""
        if handle is not None:
            self._avoid_uuid = handle.device.facts().uuid

    @property
    def has_finished_tasks(self) -> bool:
        """Whether `settle_next` need not wait."""
        return not self._finished.empty()

    def submit(self, index: int) -> None:
        """Let a worker tune a problem; without an executor it waits for this thread."""
        run = self._run
        if self._executor is None:
            # Nothing runs this future: it waits until `take_back` cancels it.
            future = Future[Answer]()
        else:
            problem = run.problems[index].problem
            future = hand_over(
                self._executor,
                tune_task,
                problem,
                run.policy,
                self._device,
                run.device,
                self._avoid_uuid,
                self._worker_cache,
            )
        self.unsettled[future] = index
        future.add_done_callback(self._finished.put)

    def take_back(self) -> int | None:
        """Cancel a task that no worker has begun, and return its problem; None if there is none.

        A problem at which a worker died is left to the workers, so that it does not end this
        process.
        """
        for future, index in self.unsettled.items():
            if index in self._second_tries:
                continue
            # If this succeeds, it also puts the future into `_finished`.
            is_cancelled = future.cancel()
            if is_cancelled:
                del self.unsettled[future]
                return index
        return None

    def settle_next(self) -> None:
        """Wait for the next finished task, and record its result.

        Nothing is recorded if `take_back` cancelled the task.
        """
        future = self._finished.get()
        is_taken_back = future not in self.unsettled
        if is_taken_back:
            return
        self._settle(self.unsettled[future], future)
        del self.unsettled[future]

    def _settle(self, index: int, future: Future[Answer]) -> None:
        """Record the result of a finished task, or submit its problem again if the worker died."""
        try:
            answer = future.result()
        except errors.CudnnliteError:
            # Such as NoDeviceError: the worker can tune no problem at all, so the run ends.
            raise
        except WorkerDiedError as error:
            if index not in self._second_tries:
                self._second_tries.add(index)
                warn_user(f"{error}; its problem is tried once more", errors.TuningWarning)
                self.submit(index)
                return
            answer = Answer(why_none=f"{error}; a worker died at the first try too")
        except Exception as error:  # an error of the executor or of the worker
            answer = Answer(why_none=f"not tuned: {_describe(error)}")
        self._run.record(index, answer)

    def stop(self) -> None:
        """Cancel the tasks that did not begin, and save the results so far."""
        for future in self.unsettled:
            future.cancel()
        for future in self.unsettled:
            # A task that was cancelled or failed has no result: its future raises what the task
            # raised, which may be a KeyboardInterrupt of a worker.
            with suppress(Exception, KeyboardInterrupt):
                if future.done():
                    self._run.store_entry(future.result())


def _describe(error: Exception) -> str:
    """Return the type and the text of an error, or the type alone if it has no text."""
    name, text = type(error).__name__, str(error)
    if not text:
        return name
    return f"{name}: {text}"


def hand_over(executor: Executor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Let an executor call a function; ArgumentError if the executor takes no work.

    The function gets one argument more, a new token.  Without it Dask would make equal calls only
    once, though the result may have changed.
    """
    token = os.urandom(16).hex()
    try:
        return executor.submit(function, *arguments, token)
    except BrokenExecutor as error:
        # The call fails by its future, as the earlier calls of a broken executor do.
        future = Future[Any]()
        future.set_exception(error)
        return future
    except RuntimeError as error:
        raise errors.ArgumentError(f"executor={executor!r} takes no work: {error}") from error
