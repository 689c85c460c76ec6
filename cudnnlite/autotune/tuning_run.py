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
    from_cache: bool = (
        False  # whether it was remembered; another process may have measured it meanwhile
    )
    entry: TuningEntry | None = (
        None  # to be remembered: not of an emulated device, nor where nothing works
    )
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
    # nothing outlives the task: a thread of a pool does not say when it ends, and a handle disturbs where it is closed
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
        # which is not the worker's fault; nor raised: an exception that is a MemoryError too does not travel through Dask
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
    _told: bool = False

    def look_up(self, memory: int) -> list[int]:
        """Answer what is remembered, for a device with so many bytes; return the other problems."""
        for index, listed in enumerate(self.listed):
            if entry := self.cache.get(make_key(listed.problem, {}, self.policy, self.device)):
                self._take(index, Answer(entry.table(memory), from_cache=True))
        return [index for index in range(len(self.listed)) if index not in self.tuned]

    def spread(
        self, missing: Sequence[int], executor: Executor | None, device: str, own: Handle | None
    ) -> None:
        """Let an executor's workers tune problems on a device, as in `locked_device`; and this thread, if it has a handle.

        What they have not begun is taken back if this is left by an exception; what they have done is kept.  Of the futures
        nothing is asked but `add_done_callback`, `cancel`, `done` and `result`.
        """
        waiting: dict[Future[Answer], int] = {}
        died: set[int] = set()  # problems whose worker did
        done: SimpleQueue[Future[Answer]] = SimpleQueue()
        place = (
            self.cache.path
            if isinstance(executor, HERE) and not self.cache.read_only
            else IN_MEMORY
        )
        avoid = "" if own is None else own.device.facts().uuid

        def submit(index: int) -> None:
            task = (
                tune_task,
                self.listed[index].problem,
                self.policy,
                device,
                self.device,
                avoid,
                str(place),
            )
            future = Future[Answer]() if executor is None else hand_over(executor, *task)
            waiting[future] = index
            future.add_done_callback(done.put)

        def settle(index: int, future: Future[Answer]) -> None:
            try:
                answer = future.result()
            except errors.CudnnliteError:  # the worker cannot work: nor could it tune the others
                raise
            except WorkerDiedError as error:
                if index not in died:
                    died.add(index)
                    warn_user(f"{error}; what it was at is tried once more", errors.TuningWarning)
                    submit(index)
                    return
                answer = Answer(why_none=f"{error}; as before, when it was tried first")
            except Exception as error:  # whose fault it is cannot be told from here
                answer = Answer(why_none=f"not tuned: {type(error).__name__}: {error}".rstrip(": "))
            self._take(index, answer)

        try:
            for index in missing:
                submit(index)
            while waiting:
                if own is not None and done.empty():  # take one back, but not what a worker died of
                    fresh = (
                        future
                        for future in waiting
                        if waiting[future] not in died and future.cancel()
                    )
                    if taken := next(fresh, None):
                        index = waiting.pop(taken)
                        self._take(
                            index, tune_on(own, self.listed[index].problem, self.policy, self.cache)
                        )
                        continue
                if (future := done.get()) in waiting:  # it was not taken back
                    settle(waiting[future], future)
                    del waiting[future]
        finally:
            for future in waiting:
                future.cancel()
            for future in [each for each in waiting if each.done()]:
                with suppress(
                    Exception, KeyboardInterrupt
                ):  # cancelled, or failed: there is no answer
                    self._keep(future.result())

    def _take(self, index: int, answer: Answer) -> None:
        """Note and report what became of a problem."""
        self._keep(answer)
        listed, worker, chosen, why_none = self.listed[index], answer.worker, None, answer.why_none
        if worker and worker.device != self.device and not self._told:
            self._told = True
            told = f"{worker} measured for itself; asked for is {self.device}"
            warn_user(f"{told}. What it found is remembered for what it has", errors.TuningWarning)
        if worker and not answer.from_cache:
            self.workers[worker] += 1
        table = answer.table or AlgorithmTable((), title=str(listed.problem), timing="none")
        try:
            chosen = table.best()
        except errors.NoAlgorithmError as error:
            why_none = why_none or str(error)
        tuned = TunedProblem(
            listed.problem, table, chosen, why_none, listed.count, listed.names, answer.from_cache
        )
        self.tuned[index] = tuned
        self.report(len(self.tuned), len(self.listed), tuned)

    def _keep(self, answer: Answer) -> None:
        """Remember what was found elsewhere, unless that is known."""
        if (entry := answer.entry) and self.cache.get(entry.key) is None:
            self.cache.put(entry)


def hand_over(executor: Executor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Let an executor call a function; ArgumentError if it takes no work.

    Its last argument is a token, another one each time: Dask answers equal calls once, and what was true may not be so now.
    """
    try:
        return executor.submit(function, *arguments, os.urandom(16).hex())
    except BrokenExecutor as error:
        (broken := Future[Any]()).set_exception(error)
        return broken
    except RuntimeError as error:
        raise errors.ArgumentError(f"executor={executor!r} takes no work: {error}") from error
