"""`measuring_alone`: one worker at a time on a GPU; `claimed_device`: on one that is free, where any will do."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from stat import S_IFDIR

from cudnnlite.arguments import by_system, file_type, refusals_ignored
from cudnnlite.autotune.cache import TuningCache
from cudnnlite.devices.choice import get_device, visible_gpus
from cudnnlite.devices.device import Device, DeviceFacts

_POLL_S = 0.01
_this_thread = threading.local()  # the GPU that it had last
_emulated = threading.RLock()  # a graph that one thread records forbids another to wait for the device


@contextmanager
def measuring_alone(device: Device, cache: TuningCache | None = None) -> Iterator[None]:
    """Let this thread alone, of all workers of this user on this host, and of all that use a cache, measure on a GPU.

    A thread that does may enter again.  The locks are the kernel's, on files: they end with the process.
    """
    with ExitStack() as stack:
        if device.times_mean_nothing:
            stack.enter_context(_emulated)
        else:
            uuid = device.facts().uuid
            # the first lock where processes share a temporary folder, the second where they share the cache
            _hold(stack, _lock_of(uuid), wait=True)
            if cache is not None and isinstance(cache.path, Path) and not cache.read_only:
                with refusals_ignored():
                    cache.path.mkdir(parents=True, exist_ok=True)
                _hold(stack, _lock_of(uuid, cache.path), wait=True)
        yield


@contextmanager
def claimed_device(device: str, like: tuple[str, str] | None = None, avoid: str = "") -> Iterator[Device]:
    """Yield the device that this thread may measure on, alone until the end of the block.

    "cuda" leaves open which GPU, and so does "auto" where there are any: the one that this thread had before, or else one that
    nobody measures on; of a name and compute capability, if this process sees such; the one with a UUID to be avoided last of
    all.  UUIDs tell them apart, since CUDA may number them otherwise in each process.
    """
    gpus = list(enumerate(visible_gpus())) if device.lower() in ("cuda", "auto") else []
    gpus = [gpu for gpu in gpus if is_like(gpu[1], like)] or gpus
    begin = os.getpid() % max(1, len(gpus))  # processes that start together begin at different ones
    gpus = [*gpus[begin:], *gpus[:begin]]
    gpus.sort(key=lambda gpu: (gpu[1].uuid == avoid, gpu[0] != getattr(_this_thread, "gpu", None)))
    with ExitStack() as stack:
        while gpus:
            index = next((index for index, gpu in gpus if _hold(stack, _lock_of(gpu.uuid), wait=False)), None)
            if index is not None:
                _this_thread.gpu, device = index, f"cuda:{index}"
                break
            time.sleep(_POLL_S)
        found = get_device(device)
        stack.enter_context(measuring_alone(found))
        yield found


def is_like(gpu: DeviceFacts, like: tuple[str, str] | None) -> bool:
    """Tell whether a GPU has a name and a compute capability; any has None."""
    return like is None or (gpu.name, gpu.compute_capability) == like


def _lock_of(uuid: str, folder: Path | None = None) -> Path:
    """Return the file of a GPU's lock in a cache, or in the temporary folder, where another user's could not be opened."""
    name = f"{''.join(letter if letter.isalnum() else '-' for letter in uuid)}.lock"
    return folder / name if folder else Path(tempfile.gettempdir(), f"cudnnlite-{os.getuid()}-{name}")


def _hold(stack: ExitStack, path: Path, *, wait: bool) -> bool:
    """Hold the lock of a file until a stack ends; False if somebody else has it.  Where none can be had, nobody has it."""
    from filelock import FileLock, Timeout

    # One object for a path, which counts for each thread.  A mere file, instead of a lock that the file system lacks, would
    # outlive who dies.
    lock, owner = FileLock(path, mode=0o666, is_singleton=True, fallback_to_soft=False), os.getpid()

    def release() -> None:
        if owner == os.getpid():  # and not a process that was forked from it
            if lock.lock_counter == 1:
                with refusals_ignored():  # nothing is left lying about: who waits for the file finds that it is gone
                    path.unlink()
            lock.release()

    try:
        if file_type(path.parent) == S_IFDIR:  # which would be made
            lock.acquire(blocking=wait, poll_interval=_POLL_S)
            stack.callback(release)
    except Timeout:
        return False
    except OSError as error:
        by_system(error)
    return True


def _renew() -> None:
    global _emulated  # noqa: PLW0603  (read at each use)
    _emulated = threading.RLock()  # a thread that held it is not in a forked process


os.register_at_fork(after_in_child=_renew)
