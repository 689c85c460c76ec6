"""Locks of GPUs: on each GPU one worker measures at a time."""

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
from cudnnlite.devices.device import Device, DeviceFacts
from cudnnlite.devices.device_choice import get_device, visible_gpus
from cudnnlite.workbench.tuning.cache import TuningCache
from cudnnlite.workbench.tuning.entries import DeviceIdentity

_POLL_S = 0.01
_this_thread = threading.local()  # `gpu` is the index of the last GPU that it locked
# The locks by the number of the process. A forked process needs its own, because the thread that
# holds a lock does not exist there.
_emulated_locks: dict[int, threading.RLock] = {}


@contextmanager
def measuring_alone(device: Device, cache: TuningCache | None = None) -> Iterator[None]:
    """Let no other worker measure on a GPU until the end of the block.

    Other workers are those of this user on this host, and those that use the same cache.  A thread
    may enter again.  The system locks files, and releases them when the process ends.
    """
    with ExitStack() as stack:
        if not device.has_real_timing:
            # While one thread records a graph, no other thread may wait for the device.
            stack.enter_context(_emulated_locks.setdefault(os.getpid(), threading.RLock()))
        else:
            # The first lock is for processes that share a temporary folder, the second one for
            # those that share the cache.
            uuid = device.facts().uuid
            _hold_lock(stack, uuid)
            if cache is not None and isinstance(cache.path, Path) and not cache.read_only:
                _hold_lock(stack, uuid, cache.path)
        yield


@contextmanager
def locked_device(device: str, like: DeviceIdentity | None = None) -> Iterator[Device]:
    """Yield a device that this thread may measure on, alone until the end of the block.

    With "cuda", or with "auto" on a machine with GPUs, it is any GPU that no other worker measures
    on.  If this process sees a GPU of the kind `like`, it is of that kind.  The GPU that this
    thread had before is tried first.  UUIDs identify GPUs, because CUDA may number them differently
    in each process.
    """
    gpus: list[tuple[int, DeviceFacts]] = []
    if device.lower() in ("cuda", "auto"):
        gpus = _order_gpus(like)
    with ExitStack() as stack:
        for index, gpu in cycle(gpus):  # no turn if there is no choice of GPUs
            if _hold_lock(stack, gpu.uuid, wait=False):
                _this_thread.gpu = index
                device = f"cuda:{index}"
                break
            time.sleep(_POLL_S / len(gpus))
        locked = get_device(device)
        stack.enter_context(measuring_alone(locked))
        yield locked


def _order_gpus(like: DeviceIdentity | None) -> list[tuple[int, DeviceFacts]]:
    """Return the GPUs with their indices, in the order in which `locked_device` tries them."""
    visible = list(enumerate(visible_gpus()))
    same_kind = [(index, gpu) for index, gpu in visible if like is None or like.is_like(gpu)]
    last_index = getattr(_this_thread, "gpu", None)
    # Processes that start together begin at different GPUs.
    first_index = os.getpid()

    def order(item: tuple[int, DeviceFacts]) -> tuple[bool, int]:
        index, _ = item
        return index != last_index, (index - first_index) % len(visible)

    return sorted(same_kind or visible, key=order)


def _hold_lock(
    stack: ExitStack, uuid: str, folder: Path | None = None, *, wait: bool = True
) -> bool:
    """Hold a GPU's lock in a folder until a stack ends; return False if another worker has it.

    On a system without locks the result is True.
    """
    from filelock import FileLock, Timeout

    name = re.sub(r"\W", "-", uuid) + ".lock"

    def release() -> None:
        # Only this process, not one that was forked from it, may remove the file.
        is_last_in_this_process = lock.lock_counter == 1
        if is_last_in_this_process:
            # A worker that waits for the lock notices that the file is removed.
            with refusals_ignored():
                path.unlink()
        lock.release()

    # The system refuses a file of another user, and a temporary folder that cannot be written.
    with refusals_ignored():
        if folder:
            path = folder / name
        else:
            path = Path(tempfile.gettempdir(), f"cudnnlite-{os.getuid()}-{name}")
        # There is one object for each path, and it has a counter for each thread. The fallback to
        # a mere file is off: the file would outlive a process that dies.
        lock = FileLock(path, mode=0o666, is_singleton=True, fallback_to_soft=False)
        try:
            lock.acquire(blocking=wait, poll_interval=_POLL_S)
        except Timeout:
            return False
        stack.callback(release)
    return True
