"""`Task` and `Answer`: what a worker is asked, in whichever process or on whichever host it is, and what it returns."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from cudnnlite.autotune.cache import TuningCache
from cudnnlite.autotune.cache_path import IN_MEMORY
from cudnnlite.autotune.claims import measuring_alone, pinned_device
from cudnnlite.autotune.entries import TuningEntry
from cudnnlite.autotune.keys import DeviceIdentity
from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.autotune.remembered import Remembered, identity_of
from cudnnlite.autotune.tuner import Tuner
from cudnnlite.devices.device import Device
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError, CudnnError, DeviceMemoryError, NoAlgorithmError
from cudnnlite.operations.problem import Problem
from cudnnlite.search.results import AlgorithmTable

# what says that a problem cannot be tuned, and nothing of the worker
_ANSWERS = (CudnnError, DeviceMemoryError, NoAlgorithmError, ArgumentError)
BOOT = Path("/proc/sys/kernel/random/boot_id")  # another one on each machine, and after each start


class CachePlace(NamedTuple):
    """Where a cache is, so that another process can tell whether the path leads it to the same one.

    Attributes
    ----------
    path : str
        Its folder.
    machine : tuple of str
        Host name and boot: device and inode tell folders apart on one machine only.
    folder : (int, int)
        Device and inode of the folder that it is in, which is there before the cache is.
    """

    path: str
    machine: tuple[str, str]
    folder: tuple[int, int]

    @classmethod
    def of(cls, cache: TuningCache) -> CachePlace | None:
        """Return the place of a cache that others may write too; None if there is no such folder."""
        if not isinstance(cache.path, Path) or cache.read_only or not this_machine()[1]:
            return None
        with suppress(OSError):
            cache.path.parent.mkdir(parents=True, exist_ok=True)
            return cls(str(cache.path), this_machine(), _identity(cache.path.parent))
        return None

    @property
    def is_here(self) -> bool:
        """Whether this process reaches the cache by the path."""
        with suppress(OSError):
            return self.machine == this_machine() and self.folder == _identity(Path(self.path).parent)
        return False


class Worker(NamedTuple):
    """Who measured.

    Attributes
    ----------
    host : str
        The host's name.
    process : int
        The process's number there.
    device : DeviceIdentity
        What it measured on.
    uuid : str
        Which one of its kind that is.
    """

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
    """What a worker is asked.

    Attributes
    ----------
    problem : Problem
        What to tune.
    policy : TuningPolicy
        What is wanted.
    device : str
        As in `pinned_device`.
    like : (str, str), optional
        As in `pinned_device`.
    place : CachePlace, optional
        The cache, if workers that can reach it shall use it.  Those that cannot remember nothing themselves.
    token : str
        Another one for each asking: dask answers equal calls once, and what was true before may not be so now.
    """

    problem: Problem
    policy: TuningPolicy
    device: str
    like: tuple[str, str] | None = None
    place: CachePlace | None = None
    token: str = ""


@dataclass(frozen=True)
class Answer:
    """What a worker returns.

    Attributes
    ----------
    worker : Worker
        Who worked.
    table : AlgorithmTable, optional
        Every candidate; None where the search failed as a whole.
    why_none : str
        Why there is no table.
    from_cache : bool
        Whether another process had measured it meanwhile.
    entry : TuningEntry, optional
        What is to be remembered; None on an emulated device, or where no candidate works.
    """

    worker: Worker
    table: AlgorithmTable | None = None
    why_none: str = ""
    from_cache: bool = False
    entry: TuningEntry | None = None


def tune_task(task: Task) -> Answer:
    """Tune a problem in a worker, on a handle of its own.

    Raises
    ------
    NoDeviceError, LibraryError
        The worker cannot work at all.
    """
    here = task.place is not None and task.place.is_here
    path = task.place.path if task.place is not None and here else IN_MEMORY
    device = pinned_device(task.device, task.like)
    try:
        # Nothing of it outlives the task, but the GPU: a thread of somebody's pool does not say when it ends.  And a handle
        # that is made or closed disturbs what is measured.
        with measuring_alone(device), TuningCache(path) as cache, Handle(device) as handle:
            return tune_with(Tuner(handle, cache, task.policy), task.problem)
    except _ANSWERS as error:  # no memory for a handle
        return Answer(Worker.on(device), why_none=str(error))


def tune_with(tuner: Tuner, problem: Problem) -> Answer:
    """Tune a problem with a tuner of this thread.

    A search that fails as a whole, for want of memory for instance, is an answer too.
    """
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
    """Return what a worker measures on, and the bytes of its memory; `token` as in `Task`."""
    found = pinned_device(device)
    return identity_of(found), found.memory_info()[1]


@lru_cache(maxsize=1)
def this_machine(boot_id: Path = BOOT) -> tuple[str, str]:
    """Return host name and boot; the latter is empty where no file tells it."""
    try:
        boot = boot_id.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        boot = ""
    return os.uname().nodename, boot


def _identity(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino
