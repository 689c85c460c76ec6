"""`Claim`: which worker works on which GPU of a host, and `measuring_alone`: one at a time on each."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from cudnnlite.autotune.cache import TuningCache
from cudnnlite.devices.choice import get_device, visible_gpus
from cudnnlite.devices.device import Device, DeviceFacts

_MOST_SHARERS = 64

Gpu = tuple[int, DeviceFacts]  # the number that this process knows it by, and what it is


class Claim:
    """The GPU that has the fewest workers of this user on this host; claimed until this object goes, or its process.

    A worker is a process, or a thread of one.  Each takes the first GPU that nobody has; where all are taken the first that
    has one worker, and so on.  The claims are locks on files in the temporary folder, which the kernel frees when a process
    dies.  GPUs are told apart by their UUIDs: CUDA may number them otherwise in each process.  `index` and `gpu` are the one
    of `gpus`, which is not empty, that was taken.
    """

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self.index, self.gpu = gpus[os.getpid() % len(gpus)]  # where no file can be locked
        for number in range(_MOST_SHARERS * len(gpus)):
            sharers, place = divmod(number, len(gpus))
            index, gpu = gpus[place]
            release = _lock(_path(gpu.uuid, f"{sharers}.claim"), wait=False)
            if release is not None:
                self.index, self.gpu = index, gpu
                self._finalizer = weakref.finalize(self, release)
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
    """Let this thread alone, of all workers of this user on this host, and of all that use a cache, measure on a GPU.

    A thread that does may enter again.
    """
    if device.times_mean_nothing:
        yield
        return
    uuid = device.facts().uuid
    # the first lock where processes share a temporary folder, the second where they share the cache
    paths = [_path(uuid, "lock")]
    if cache is not None and isinstance(cache.path, Path) and not cache.read_only:
        paths.append(cache.path / f"{_plain(uuid)}.lock")
        with suppress(OSError):
            cache.path.mkdir(parents=True, exist_ok=True)
    held: set[Path] = _this_thread.__dict__.setdefault("held", set())
    with ExitStack() as stack:
        for path in paths:
            if path not in held and (release := _lock(path, wait=True)) is not None:
                held.add(path)
                stack.callback(held.discard, path)
                stack.callback(release)
        yield


_this_thread = threading.local()  # its claim goes with it, and the locks that it holds


def _plain(uuid: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in uuid)


def _path(uuid: str, suffix: str) -> Path:
    # with the user in the name: a lock file of another user's could not be opened there
    return Path(tempfile.gettempdir()) / f"cudnnlite-{os.getuid()}-{_plain(uuid)}.{suffix}"


def _lock(path: Path, *, wait: bool) -> Callable[[], None] | None:
    """Hold the lock of a file; return what ends that.  None if somebody else has it, or where no file can be locked."""
    from filelock import FileLock, Timeout

    # Whichever thread ends it.  A mere file, instead of a lock that the file system lacks, would outlive who dies.
    lock = FileLock(path, mode=0o666, thread_local=False, fallback_to_soft=False)
    owner = os.getpid()

    def release() -> None:
        if owner == os.getpid():  # and not a process that was forked from it
            with suppress(OSError):  # nothing is left lying about: who waits for the file finds that it is gone
                path.unlink()
            lock.release()

    try:
        if path.parent.is_dir():  # which would be made
            lock.acquire(blocking=wait, poll_interval=0.01)
            return release
    except (Timeout, OSError):
        pass
    return None
