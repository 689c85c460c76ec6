"""`TuningRun`: one tuning of many problems: looked up, measured here, or by workers in whichever process, on whichever host."""

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

HERE = (ProcessPoolExecutor, ThreadPoolExecutor)  # whose workers reach what this process does


class Worker(NamedTuple):
    """Who measured: the host's name, the process's number there, the device, and which one of its kind that is."""

    host: str
    process: int
    device: DeviceIdentity
    uuid: str

    def __str__(self) -> str:
        return f"{self.host}, process {self.process}, {self.device.gpu} {self.uuid}"


class Answer(NamedTuple):
    """What became of a problem, at a worker or without one."""

    table: AlgorithmTable | None = None  # every candidate; None where the search failed as a whole
    why_none: str = ""  # why it did
    # Whether it was remembered; another process may have measured it meanwhile.
    from_cache: bool = False
    # To be remembered: not of an emulated device, nor where nothing works.
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
    """Tune a problem in a worker, on a `locked_device`, into a cache; NoDeviceError or LibraryError if it cannot work."""
    # nothing outlives the task: a thread of a pool does not say when it ends, and a handle disturbs
    # where it is closed
    with locked_device(device, like, avoid) as found, TuningCache(cache) as opened:
        return tune_on(found, problem, policy, opened)


def tune_on(
    where: Device | Handle, problem: Problem, policy: TuningPolicy, cache: TuningCache
) -> Answer:
    """Tune a problem under a policy whose limit is in bytes, on a device with a handle of its own, or on one that is given."""
    try:
        with nullcontext(where) if isinstance(where, Handle) else Handle(where) as handle:
            tuner = Tuner(handle, cache, policy)
            table = tuner.tune(problem)
    except (
        errors.CudnnError,
        errors.DeviceMemoryError,
        errors.NoAlgorithmError,
        errors.ArgumentError,
    ) as error:
        # which is not the worker's fault; nor raised: an exception that is a MemoryError too does
        # not travel through Dask
        return Answer(why_none=str(error))
    entry = cache.get(make_key(problem, {}, policy, tuner.device))
    worker = Worker(os.uname().nodename, os.getpid(), tuner.device, handle.device.facts().uuid)
    return Answer(table, from_cache=not tuner.measured, entry=entry, worker=worker)


def identify(device: str | Device, token: str = "") -> tuple[DeviceIdentity, int]:
    """Return what a worker would measure on, and the bytes of its memory; `token` as in `hand_over`."""
    found = get_device(device)
    return DeviceIdentity.of(found), found.memory_info()[1]


@dataclass
class TuningRun:
    """One tuning of many problems, each listed once, and what became of each, by their places in the list."""

    listed: Sequence[ListedProblem]
    cache: TuningCache
    policy: TuningPolicy  # its limit is in bytes
    device: DeviceIdentity  # what it is for
    report: Report
    tuned: dict[int, TunedProblem] = field(default_factory=dict)
    workers: Counter[Worker] = field(default_factory=Counter)  # how many problems each measured
    _has_warned: bool = False

    def look_up(self, memory: int) -> list[int]:
        """Answer what is remembered, for a device with so many bytes; return the other problems."""
        for index, listed in enumerate(self.listed):
            if entry := self.cache.get(make_key(listed.problem, {}, self.policy, self.device)):
                self.note(index, Answer(entry.table(memory), from_cache=True))
        return [index for index in range(len(self.listed)) if index not in self.tuned]

    def spread(
        self, missing: Sequence[int], executor: Executor | None, device: str, handle: Handle | None
    ) -> None:
        """Let an executor's workers tune problems on a device, as in `locked_device`; and this thread, if it has a handle.

        What they have not begun is taken back if this is left by an exception; what they have done
        is kept.  Of the futures nothing is asked but `add_done_callback`, `cancel`, `done` and
        `result`.
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
        """Tune a problem in this thread; return False if the workers have begun all."""
        index = work.take_back()
        if index is None:
            return False
        problem = self.listed[index].problem
        self.note(index, tune_on(handle, problem, self.policy, self.cache))
        return True

    def note(self, index: int, answer: Answer) -> None:
        """Remember and report what became of a problem."""
        self.remember(answer)
        worker = answer.worker
        if worker is not None:
            self._count(worker, answer)
        listed = self.listed[index]
        table = answer.table or AlgorithmTable((), title=str(listed.problem), timing="none")
        chosen, why_none = None, answer.why_none
        try:
            chosen = table.best()
        except errors.NoAlgorithmError as error:
            why_none = why_none or str(error)
        self.tuned[index] = TunedProblem(
            listed.problem, table, chosen, why_none, listed.count, listed.names, answer.from_cache
        )
        self.report(len(self.tuned), len(self.listed), self.tuned[index])

    def _count(self, worker: Worker, answer: Answer) -> None:
        """Count who measured; warn, once, of one with another device."""
        if worker.device != self.device and not self._has_warned:
            self._has_warned = True
            devices = f"{worker} measured for itself; asked for is {self.device}"
            warn_user(
                f"{devices}. What it found is remembered for what it has", errors.TuningWarning
            )
        if not answer.from_cache:
            self.workers[worker] += 1

    def remember(self, answer: Answer) -> None:
        """Put what was found elsewhere into the cache, unless it is there."""
        entry = answer.entry
        if entry is not None and self.cache.get(entry.key) is None:
            self.cache.put(entry)


class _Work:
    """Problems of a run that an executor's workers tune; without one, they wait to be taken back."""

    def __init__(
        self, run: TuningRun, executor: Executor | None, device: str, handle: Handle | None
    ) -> None:
        self.waiting: dict[Future[Answer], int] = {}
        self._run, self._executor, self._device = run, executor, device
        self._done: SimpleQueue[Future[Answer]] = SimpleQueue()
        self._tried_twice: set[int] = set()  # problems at which a worker died
        writes_cache = isinstance(executor, HERE) and not run.cache.read_only
        self._cache = str(run.cache.path if writes_cache else IN_MEMORY)
        self._avoid = "" if handle is None else handle.device.facts().uuid

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is done that was not settled yet."""
        return self._done.empty()

    def submit(self, index: int) -> None:
        """Let a worker tune a problem."""
        run = self._run
        if self._executor is None:
            future = Future[Answer]()
        else:
            problem = run.listed[index].problem
            task = (problem, run.policy, self._device, run.device, self._avoid, self._cache)
            future = hand_over(self._executor, tune_task, *task)
        self.waiting[future] = index
        future.add_done_callback(self._done.put)

    def take_back(self) -> int | None:
        """Take back a problem that no worker has begun, and none died of; return None if there is none."""
        for future, index in self.waiting.items():
            if index not in self._tried_twice and future.cancel():
                del self.waiting[future]
                return index
        return None

    def settle_next(self) -> None:
        """Wait until something is done, and note what became of it."""
        future = self._done.get()
        if future in self.waiting:  # it was not taken back
            self._settle(self.waiting[future], future)
            del self.waiting[future]

    def _settle(self, index: int, future: Future[Answer]) -> None:
        try:
            answer = future.result()
        except errors.CudnnliteError:  # the worker cannot work: nor could it tune the others
            raise
        except WorkerDiedError as error:
            if index not in self._tried_twice:
                self._tried_twice.add(index)
                warn_user(f"{error}; what it was at is tried once more", errors.TuningWarning)
                self.submit(index)
                return
            answer = Answer(why_none=f"{error}; as before, when it was tried first")
        except Exception as error:  # whose fault it is cannot be told from here
            answer = Answer(why_none=f"not tuned: {type(error).__name__}: {error}".rstrip(": "))
        self._run.note(index, answer)

    def stop(self) -> None:
        """Cancel what is not begun, and keep what is done."""
        for future in self.waiting:
            future.cancel()
        for future in list(self.waiting):
            # If it was cancelled, or failed, there is no answer.
            with suppress(Exception, KeyboardInterrupt):
                if future.done():
                    self._run.remember(future.result())


def hand_over(executor: Executor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Let an executor call a function; ArgumentError if it takes no work.

    Its last argument is a token, another one each time: Dask answers equal calls once, and what was
    true may not be so now.
    """
    try:
        return executor.submit(function, *arguments, os.urandom(16).hex())
    except BrokenExecutor as error:
        (broken := Future[Any]()).set_exception(error)
        return broken
    except RuntimeError as error:
        raise errors.ArgumentError(f"executor={executor!r} takes no work: {error}") from error
