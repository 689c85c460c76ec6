"""`Task` and `Answer`: what a worker is asked, in whichever process or on whichever host it is, and what it returns."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import NamedTuple

from cudnnlite.autotune.cache import TuningCache
from cudnnlite.autotune.claims import claimed_device
from cudnnlite.autotune.entries import TuningEntry
from cudnnlite.autotune.keys import DeviceIdentity
from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.autotune.remembered import Remembered, identity_of
from cudnnlite.autotune.store import IN_MEMORY
from cudnnlite.autotune.tuner import Tuner
from cudnnlite.devices.choice import get_device
from cudnnlite.devices.device import Device
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError, CudnnError, DeviceMemoryError, NoAlgorithmError
from cudnnlite.operations.problem import Problem
from cudnnlite.search.table import AlgorithmTable

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
        return cls(os.uname().nodename, os.getpid(), identity_of(device), device.facts().uuid)

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
    worker = Worker.on(device)
    try:
        table = tuner.tune(problem)
    except _ANSWERS as error:
        return Answer(worker, why_none=str(error))
    memory = device.memory_info()[1]
    policy = tuner.policy.within(tuner.handle.workspace.limit_for(None), memory)
    entry = Remembered(tuner.cache, policy, tuner.device, memory).entry(problem)
    return Answer(worker, table, from_cache=tuner.measured == before, entry=entry)


def identify(device: str, token: str) -> tuple[DeviceIdentity, int]:
    """Return what a worker would measure on, and the bytes of its memory; `token` as in `Task`."""
    found = get_device(device)
    return identity_of(found), found.memory_info()[1]
