"""`TuningRun`: one tuning of many problems, from the cache, in this process, or by workers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple

from cudnnlite import AlgorithmTable, Handle, errors
from cudnnlite.devices.device import Device
from cudnnlite.devices.device_choice import get_device
from cudnnlite.devices.peaks import peaks_of
from cudnnlite.problems.roofline import Peaks
from cudnnlite.types import Problem
from cudnnlite.warn import warn_user
from cudnnlite.workbench.tuning.cache import IN_MEMORY, TuningCache
from cudnnlite.workbench.tuning.entries import DeviceIdentity, TuningEntry, make_key
from cudnnlite.workbench.tuning.gpu_locks import locked_device
from cudnnlite.workbench.tuning.policy import TuningPolicy
from cudnnlite.workbench.tuning.problem_list import ListedProblem
from cudnnlite.workbench.tuning.progress import Report
from cudnnlite.workbench.tuning.tuned_problem import TunedProblem
from cudnnlite.workbench.tuning.tuner import Tuner


class Worker(NamedTuple):
    """A process that measured: the host's name, the process's number, the device and its UUID."""

    host: str
    process: int
    device: DeviceIdentity
    uuid: str

    def __str__(self) -> str:
        return f"{self.host}, process {self.process}, {self.device.gpu} {self.uuid}"


class ProblemResult(NamedTuple):
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
    cache: str = IN_MEMORY,
    token: str = "",
) -> ProblemResult:
    """Tune a problem in a worker, and put the result into a cache.

    The worker measures on the device that `locked_device` chooses for `device` and `like`.  `cache`
    is the path of the cache.  `token` is not used: see `hand_over`.

    NoDeviceError or LibraryError if the worker has no device or no libcudnn.
    """
    # The handle, which `tune_on` makes, and the cache are closed with the task. A thread of a pool
    # does not say when it ends, and closing a handle later would disturb other measurements.
    with locked_device(device, like) as task_device:
        # A cache in memory must take the entries of this device, to return them to the run. A cache
        # file says itself whether it is a rehearsal.
        rehearsal = None
        if cache == IN_MEMORY:
            rehearsal = not task_device.has_real_timing
        with TuningCache(cache, rehearsal=rehearsal) as task_cache:
            return tune_on(task_device, problem, policy, task_cache)


def tune_on(
    handle_or_device: Handle | Device, problem: Problem, policy: TuningPolicy, cache: TuningCache
) -> ProblemResult:
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
        return ProblemResult(why_none=str(error))
    key = make_key(problem, alignments={}, policy=policy, device=tuner.device)
    entry = cache.get(key)
    worker = Worker(os.uname().nodename, os.getpid(), tuner.device, uuid)
    return ProblemResult(table, from_cache=not tuner.measured, entry=entry, worker=worker)


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
                self.record(index, ProblemResult(entry.table(memory, peaks), from_cache=True))
        return [index for index in range(len(self.problems)) if index not in self.tuned]

    def tune_here(self, missing: Sequence[int], handle: Handle) -> None:
        """Tune problems on a handle in this thread."""
        for index in missing:
            problem = self.problems[index].problem
            self.record(index, tune_on(handle, problem, self.policy, self.cache))

    def spread(
        self, missing: Sequence[int], executor: Executor, device: str, cache: str = IN_MEMORY
    ) -> None:
        """Tune problems with an executor's workers.

        `device` names the workers' device as in `locked_device`: "cuda" for any GPU, "cuda:1" for
        one.  `cache` is the path of the cache that the workers reach.  After an exception, the
        tasks that did not begin are cancelled, and the results so far are saved.  The executor's
        futures need `add_done_callback`, `cancel`, `done` and `result`.
        """
        unsettled: dict[Future[ProblemResult], int] = {}
        finished: SimpleQueue[Future[ProblemResult]] = SimpleQueue()
        try:
            for index in missing:
                problem = self.problems[index].problem
                arguments = (problem, self.policy, device, self.device, cache)
                future = hand_over(executor, tune_task, *arguments)
                unsettled[future] = index
                future.add_done_callback(finished.put)
            while unsettled:
                future = finished.get()
                self.record(unsettled[future], _answer_of(future))
                del unsettled[future]
        finally:
            for future in unsettled:
                # Dask's client drops the result of a future that is cancelled.
                if not future.done():
                    future.cancel()
            for future in unsettled:
                # A task that was cancelled or failed has no result: its future raises what the
                # task raised, which may be a KeyboardInterrupt of a worker.
                with suppress(Exception, KeyboardInterrupt):
                    if future.done():
                        self.store_entry(future.result())

    def record(self, index: int, answer: ProblemResult) -> None:
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

    def _count(self, worker: Worker, answer: ProblemResult) -> None:
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

    def store_entry(self, answer: ProblemResult) -> None:
        """Put the entry of a result into the cache, unless the cache has one under its key."""
        entry = answer.entry
        if entry is None or entry.key.device.is_emulated != self.cache.rehearsal:
            return
        if self.cache.get(entry.key) is None:
            self.cache.put(entry)


def _answer_of(future: Future[ProblemResult]) -> ProblemResult:
    """Return the answer of a finished task, or why it has none."""
    try:
        return future.result()
    except errors.CudnnliteError:
        # Such as NoDeviceError: the worker can tune no problem at all, so the run ends.
        raise
    except Exception as error:  # an error of the executor or of the worker
        return ProblemResult(why_none=f"not tuned: {_describe(error)}")


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
