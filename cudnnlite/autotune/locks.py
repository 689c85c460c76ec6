"""`exclusive`: one holder at a time for a name, over the threads of this process and over processes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from cudnnlite.errors import ArgumentError

_LONGEST = 64


@contextmanager
def exclusive(identity: str, *paths: Path) -> Iterator[None]:
    """Hold the lock of `identity`; wait for it if somebody else has it.

    A thread that holds it may take it again.  When a process dies its lock is free: the kernel sees to that.  A process that
    was forked from a holder does not hold it.

    Parameters
    ----------
    identity : str
        What is locked, for the threads of this process.
    *paths : Path
        Where the file that processes lock may be; the first that can be made is taken.  Where none can, only the threads
        of this process keep out of each other's way.
    """
    with _registry:
        lock = _locks.get(identity)
        if lock is None:
            lock = _locks[identity] = _Lock()
    with lock.mutex:
        if not lock.depth:
            lock.file = _first(paths)
        lock.depth += 1
        try:
            yield
        finally:
            lock.depth -= 1
            if not lock.depth and lock.file is not None:
                file, lock.file = lock.file, None
                file.release()


def lock_paths(path: Path, name: str = "") -> tuple[Path, ...]:
    """Return where the lock file of a cache may be: beside it, or else in the temporary folder."""
    suffix = f".{_sanitised(name)}.lock" if name else ".lock"
    where = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    # with the user in the name: a lock file of another user's could not be opened there
    other = Path(tempfile.gettempdir()) / f"cudnnlite-{os.getuid()}-{where}{suffix}"
    return path.with_name(path.name + suffix), other


def _sanitised(name: str) -> str:
    """Return a name that can be part of a file's; different for different names."""
    if not isinstance(name, str):
        raise ArgumentError(f"name={name!r} is not a string")
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_LONGEST]
    return plain if plain == name else f"{plain}.{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"


class _Lock:
    """What threads wait for, and the file that the one which has it holds."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.depth = 0
        self.file: _LockFile | None = None


class _LockFile:
    """A locked file; removed when it is released, so that nothing is left lying about."""

    def __init__(self, path: Path) -> None:
        self._path = path
        while True:
            self._fd = _open(path)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                if _is_at(self._fd, path):
                    break
            except BaseException:
                os.close(self._fd)
                raise
            os.close(self._fd)  # who held it has removed it: whoever comes now locks another file
        self._pid = os.getpid()
        _held.add(self)

    def release(self) -> None:
        if self._pid != os.getpid():
            return  # it is the parent's
        _held.discard(self)
        try:
            self._path.unlink()
        except OSError:  # the next holder has the same file
            pass
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # a forked process may still have the file open
            os.close(self._fd)

    def close_in_child(self) -> None:
        """Close what was inherited: an open file holds the lock, whichever process has it open."""
        os.close(self._fd)


_locks: WeakValueDictionary[str, _Lock] = WeakValueDictionary()  # those that somebody holds or waits for
_registry = threading.Lock()
_held: set[_LockFile] = set()


def _first(paths: tuple[Path, ...]) -> _LockFile | None:
    for path in paths:
        try:
            return _LockFile(path)
        except OSError:  # no such folder, no permission, a file system without locks
            continue
    return None


def _open(path: Path) -> int:
    flags = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags | os.O_RDWR, 0o666)
    except PermissionError:  # another user's, in a shared folder
        return os.open(path, (flags & ~os.O_CREAT) | os.O_RDONLY)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _forget_in_child() -> None:
    """Leave the parent's locks to the parent."""
    global _locks, _registry  # other threads of the parent may have held them
    _locks, _registry = WeakValueDictionary(), threading.Lock()
    for file in _held:
        file.close_in_child()
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)
