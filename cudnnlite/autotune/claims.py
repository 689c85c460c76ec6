"""`Claim`: which worker works on which GPU of a host, and `measuring_alone`: one at a time on each."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from cudnnlite.autotune.cache import TuningCache
from cudnnlite.autotune.locks import exclusive
from cudnnlite.devices.choice import get_device, visible_gpus
from cudnnlite.devices.device import Device, DeviceFacts

_MOST_SHARERS = 64

Gpu = tuple[int, DeviceFacts]  # the number that this process knows it by, and what it is


class Claim:
    """The GPU that has the fewest workers of this user on this host; claimed until this object goes, or its process.

    A worker is a process, or a thread of one.  Each takes the first GPU that nobody has; where all are taken the first that
    has one worker, and so on.  The claims are locks on files in the temporary folder, which the kernel frees when a process
    dies.  GPUs are told apart by their UUIDs: CUDA may number them otherwise in each process.

    Parameters
    ----------
    gpus : sequence of (int, DeviceFacts)
        From which to choose; not empty.

    Attributes
    ----------
    index : int
        The GPU's number in this process.
    gpu : DeviceFacts
        What it is.
    """

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self.index, self.gpu = gpus[os.getpid() % len(gpus)]  # where no file can be locked
        for number in range(_MOST_SHARERS * len(gpus)):
            sharers, place = divmod(number, len(gpus))
            index, gpu = gpus[place]
            path = _path(gpu.uuid, f"{sharers}.claim")
            try:
                locked = _lock(path)
            except OSError:  # no such folder, another user's file, a file system without locks
                continue
            if locked is not None:
                self.index, self.gpu = index, gpu
                self._finalizer = weakref.finalize(self, _release, locked, path, os.getpid())
                return

    def close(self) -> None:
        """Let others have the GPU; harmless when called again."""
        finalizer = getattr(self, "_finalizer", None)
        if finalizer is not None:
            finalizer()


def pinned_device(device: str, like: tuple[str, str] | None = None) -> Device:
    """Return the device that this worker works on: for "cuda" the GPU that it claims, always the same one.

    Parameters
    ----------
    device : str
        As in `Handle`: "cuda" leaves open which GPU, and so does "auto" where there are any.  Anything else is taken as it is.
    like : (str, str), optional
        Name and compute capability of the GPU that is wanted, if this process sees one.
    """
    if device.lower() not in ("cuda", "auto"):
        return get_device(device)
    gpus = list(enumerate(visible_gpus()))
    if not gpus:
        return get_device(device)
    gpus = [gpu for gpu in gpus if is_like(gpu[1], like)] or gpus
    claim: Claim | None = getattr(_this_thread, "claim", None)
    if claim is None or (claim.index, claim.gpu) not in gpus:
        claim = _this_thread.claim = Claim(gpus)
    return get_device(f"cuda:{claim.index}")


def is_like(gpu: DeviceFacts, like: tuple[str, str] | None) -> bool:
    """Tell whether a GPU has a name and a compute capability; any has None."""
    return like is None or (gpu.name, gpu.compute_capability) == like


@contextmanager
def measuring_alone(device: Device, cache: TuningCache | None = None) -> Iterator[None]:
    """Let this thread alone, of all workers of this user on this host, and of all that use a cache, measure on a GPU."""
    if device.times_mean_nothing:
        yield
        return
    uuid = device.facts().uuid
    # the first lock where processes share a temporary folder, the second where they share the cache
    shared = nullcontext() if cache is None else cache.exclusive(uuid)
    with exclusive(f"measuring on {uuid}", _path(uuid, "lock")), shared:
        yield


_this_thread = threading.local()  # its claim goes with it


def _path(uuid: str, suffix: str) -> Path:
    # with the user in the name: a lock file of another user's could not be opened there
    name = "".join(letter if letter.isalnum() else "-" for letter in uuid)
    return Path(tempfile.gettempdir()) / f"cudnnlite-{os.getuid()}-{name}.{suffix}"


def _lock(path: Path) -> int | None:
    """Return a file descriptor that holds the lock of a file; None if somebody else has it."""
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_RDWR, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:  # who held it has removed it just now
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _release(descriptor: int, path: Path, process: int) -> None:
    if process != os.getpid():
        return  # this process was forked from the one that holds it
    try:
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
