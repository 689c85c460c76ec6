"""`measuring_alone`: one worker at a time on a GPU; `locked_device`: on one that is free, where any will do."""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path

from cudnnlite.arguments import refusals_ignored
from cudnnlite.autotune.cache import TuningCache
from cudnnlite.autotune.entries import DeviceIdentity
from cudnnlite.devices.choice import get_device, visible_gpus
from cudnnlite.devices.device import Device

_POLL_S = 0.01
_this_thread = threading.local()  # the GPU that it had last
_emulated: dict[
    int, threading.RLock
] = {}  # a lock for each process, since a thread that has it is not in a forked one


@contextmanager
def measuring_alone(device: Device, cache: TuningCache | None = None) -> Iterator[None]:
    """Let this thread alone, of all workers of this user on this host, and of all that use a cache, measure on a GPU.

    A thread that does may enter again.  The locks are the kernel's, on files: they end with the
    process.
    """
    with ExitStack() as stack:
        if not device.has_real_timing:
            # a graph that one thread records forbids another to wait for the device
            stack.enter_context(_emulated.setdefault(os.getpid(), threading.RLock()))
        else:
            # the first lock where processes share a temporary folder, the second where they share
            # the cache
            _hold(stack, device.facts().uuid)
            if cache is not None and isinstance(cache.path, Path) and not cache.read_only:
                _hold(stack, device.facts().uuid, cache.path)
        yield


@contextmanager
def locked_device(
    device: str, like: DeviceIdentity | None = None, avoid: str = ""
) -> Iterator[Device]:
    """Yield the device that this thread may measure on, alone until the end of the block.

    "cuda" leaves open which GPU, and so does "auto" where there are any: the one that this thread
    had before, or else one that nobody measures on; of the kind that is wanted, if this process
    sees such; the one with a UUID to be avoided last of all. UUIDs tell them apart, since CUDA may
    number them otherwise in each process.
    """
    seen = list(enumerate(visible_gpus())) if device.lower() in ("cuda", "auto") else []
    gpus = [(index, gpu) for index, gpu in seen if like is None or like.is_like(gpu)] or seen
    # processes that start together begin at different ones
    begin, last = os.getpid(), getattr(_this_thread, "gpu", None)
    gpus = sorted(
        gpus,
        key=lambda each: (each[1].uuid == avoid, each[0] != last, (each[0] - begin) % len(seen)),
    )
    with ExitStack() as stack:
        for index, gpu in cycle(gpus):
            if _hold(stack, gpu.uuid, wait=False):
                _this_thread.gpu, device = index, f"cuda:{index}"
                break
            time.sleep(_POLL_S / len(gpus))
        found = get_device(device)
        stack.enter_context(measuring_alone(found))
        yield found


def _hold(stack: ExitStack, uuid: str, folder: Path | None = None, *, wait: bool = True) -> bool:
    """Hold a GPU's lock in a folder until a stack ends; False if somebody has it.  Where none can be had, nobody has it."""
    from filelock import FileLock, Timeout

    name = re.sub(r"\W", "-", uuid) + ".lock"

    def release() -> None:
        if lock.lock_counter == 1:  # which it never is in a process that was forked from this one
            with (
                refusals_ignored()
            ):  # nothing is left lying about: who waits for the file finds that it is gone
                path.unlink()
        lock.release()

    # another user's could not be opened; FileNotFoundError where no temporary folder can be written
    with refusals_ignored():
        path = (
            folder / name
            if folder
            else Path(tempfile.gettempdir(), f"cudnnlite-{os.getuid()}-{name}")
        )
        # one object for a path, which counts for each thread; a mere file, where there are no
        # locks, outlives who dies
        lock = FileLock(path, mode=0o666, is_singleton=True, fallback_to_soft=False)
        try:
            lock.acquire(blocking=wait, poll_interval=_POLL_S)
        except Timeout:
            return False
        stack.callback(release)
    return True
