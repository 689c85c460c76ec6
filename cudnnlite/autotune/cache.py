"""`TuningCache`: what tunings found, remembered in a file that processes share."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from cudnnlite.autotune.cache_file import CacheFile, read_cache, write_cache
from cudnnlite.autotune.cache_path import CACHE_VARIABLE, parse_cache_path, parse_file
from cudnnlite.autotune.entries import SELECT, Filter, TuningEntry, entry_of, insert, readable, record_of
from cudnnlite.autotune.keys import TuningKey
from cudnnlite.autotune.locks import exclusive, lock_paths
from cudnnlite.errors import ArgumentError, ClosedError, TuningCacheError, TuningCacheWarning
from cudnnlite.warn import warn_user

__all__ = ["CACHE_VARIABLE", "TuningCache", "TuningEntry"]

RECENT = 1024  # entries that this process keeps at hand; the least recently used one goes first

T = TypeVar("T")


class TuningCache:
    """What tunings found, in a SQLite file that several threads and processes of one host may use at once.

    Hosts that share a folder need a file each, which `merge` brings together: SQLite's write-ahead log is in shared memory.

    A damaged or foreign file is set aside with a warning: it is renamed, beside what it was, and a new one is begun.  Where
    the file cannot be written (a full disk, a read-only folder) the entries are kept in this process's memory, with one
    warning, and written as soon as that works.  What this object has seen it does not look up again: it does not notice
    that another process replaced or cleared it.

    Parameters
    ----------
    path : str or Path, optional
        The file; made, with its folder, when something is first put in.  ":memory:": none, everything is forgotten with
        this object.  If not given, the environment variable `CUDNNLITE_TUNING_CACHE` decides, or else it is
        `cudnnlite/tuning.sqlite` in the user's cache folder.
    read_only : bool
        Whether the file is only read: it is neither made, written nor set aside.  It may lie in a folder that cannot be
        written; one to be shipped is best written by `export`.  What is put in is kept in memory.

    Raises
    ------
    ArgumentError
        The path is no path, or that of a folder or a device.

    Warns
    -----
    TuningCacheWarning
        The file is damaged, another application's, or from a newer version of cudnnlite, whose file is left as it is.

    Examples
    --------
    >>> with dnn.TuningCache("tuned.sqlite") as cache:
    ...     with dnn.Handle() as handle, dnn.autotuned(handle, cache=cache):
    ...         pass  # the program; what it measures on a GPU is in the file at once
    ...     print(cache.path.name, len(cache), cache.export("for_the_team.sqlite"))
    tuned.sqlite 0 0
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, read_only: bool = False) -> None:
        if not isinstance(read_only, bool):
            raise ArgumentError(f"read_only={read_only!r}; allowed: True, False")
        self._read_only = read_only
        self._path = parse_cache_path(path)
        self._recent: OrderedDict[str, TuningEntry] = OrderedDict()
        self._kept: dict[str, TuningEntry] = {}  # what is in no file
        self._lock = threading.RLock()
        self._told = self._closed = False
        self._file: CacheFile | None = None  # None: ":memory:"
        with _registry:
            _caches.add(self)
        if isinstance(self._path, Path):
            recent = self._recent
            self._file = CacheFile(self._path, read_only=read_only, survivors=lambda: list(recent.values()))
            weakref.finalize(self, self._file.close)
            self._look(self._file)

    def _look(self, file: CacheFile) -> None:
        """Say now what is wrong with the file, not in the middle of the work."""
        if self._read_only and not os.path.lexists(file.path):
            warn_user(f"{file.path} does not exist; the cache is an empty one in memory", TuningCacheWarning)
        with self._lock:
            try:
                file.look()
            except TuningCacheError as error:
                self._tell(f"{error}; the cache cannot be read")

    def __repr__(self) -> str:
        return f"<TuningCache {self._path}{' read-only' * self._read_only}{' closed' * self._closed}>"

    @property
    def path(self) -> Path | str:
        """The file's absolute path, or ":memory:"."""
        return self._path

    @property
    def read_only(self) -> bool:
        """Whether the file is only read, because that was asked for."""
        return self._read_only

    def __enter__(self) -> TuningCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; harmless when called again.  A cache that is never closed loses nothing."""
        with self._lock:
            if self._file is not None:
                if self._kept and not self._read_only and not self._closed:
                    with suppress(TuningCacheError):  # the user has been told
                        self._write(bool)
                self._file.close()
            self._closed = True

    def get(self, key: TuningKey) -> TuningEntry | None:
        """Return the entry of a key, or None.

        Where the file, or the entry, cannot be read there is none, with a warning.
        """
        if not isinstance(key, TuningKey):
            raise ArgumentError(f"key={key!r} is not a TuningKey")
        with self._lock:
            entry = self._recent.get(key.text)
            if entry is not None and not self._closed:
                self._recent.move_to_end(key.text)
                return entry
            self._require_open()
            entry = self._kept.get(key.text) or self._load(key)
            if entry is not None:
                self._remember(entry)
            return entry

    def put(self, entry: TuningEntry) -> None:
        """Remember an entry, in place of one of the same key; when this returns it survives the process.

        Where the file cannot be written it is kept in memory, with one warning for this cache; in a read-only cache
        without one.

        Raises
        ------
        ArgumentError
            Not an entry, or one of the emulated device, whose times say nothing of a GPU.
        """
        if not isinstance(entry, TuningEntry):
            raise ArgumentError(f"entry={entry!r} is not a TuningEntry")
        device = entry.key.device
        if device.is_emulated:
            raise ArgumentError(f"entry of {device.gpu}: times of the emulated device are not kept in a cache")
        record = record_of(entry)  # refuses what could not be read again
        with self._lock:
            self._require_open()
            self._remember(entry)
            if self._file is None or self._read_only:
                self._kept[entry.key.text] = entry
                return
            try:
                self._write(lambda connection: insert(connection, [record]))
            except TuningCacheError as error:
                self._kept[entry.key.text] = entry
                if not self._file.barred:  # the user has been told
                    self._tell(f"{error}; what is tuned is kept in this process's memory only")

    @property
    def unsaved(self) -> int:
        """How many entries are in this process's memory only, because the file could not be written."""
        with self._lock:
            return 0 if self._file is None else len(self._kept)

    def entries(
        self, *, gpu: str | None = None, cudnn: int | None = None, kind: str | None = None
    ) -> list[TuningEntry]:
        """Return the entries, the oldest first.

        Parameters
        ----------
        gpu : str, optional
            Only those of a GPU, by its name.
        cudnn : int, optional
            Only those of a version of cuDNN: 92800 for 9.28.0.
        kind : str, optional
            Only those of a kind of problem, such as "convolution_forward".

        Raises
        ------
        ArgumentError
            A filter of another type, or no kind of problem.
        TuningCacheError
            The file cannot be read.
        """
        wanted = Filter(gpu, cudnn, kind).check()
        condition, parameters = wanted.where()
        with self._lock:
            self._require_open()
            records = self._file.read(f"{SELECT} WHERE {condition}", parameters) if self._file is not None else []
            found, bad = readable(records)
            _tell_unreadable(bad, self._path)
            by_key = {entry.key.text: entry for entry in found}
            by_key.update((text, entry) for text, entry in self._kept.items() if wanted.accepts(entry))
        return sorted(by_key.values(), key=lambda entry: (entry.tuned_at, entry.key.digest))

    def __len__(self) -> int:
        with self._lock:
            self._require_open()
            if self._file is None:
                return len(self._kept)
            ((number,),) = self._file.read("SELECT count(*) FROM entries") or [(0,)]
            find = "SELECT 1 FROM entries WHERE digest = ?"
            return int(number) + sum(not self._file.read(find, (kept.key.digest,)) for kept in self._kept.values())

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        gpu: str | None = None,
        cudnn: int | None = None,
        kind: str | None = None,
    ) -> int:
        """Write the entries to one self-contained file, which can be shipped and used read-only or merged.

        Parameters
        ----------
        path : str or Path
            The file.  A tuning cache that is there is replaced, at once and as a whole; anything else is refused.
        gpu, cudnn, kind : optional
            As in `entries`.

        Returns
        -------
        int
            How many entries it has.

        Raises
        ------
        ArgumentError
            The path is this cache's own, or no path of a file; or as in `entries`.
        TuningCacheError
            It cannot be written, is in use, or is not a tuning cache; it is as it was.
        """
        target = parse_file(path)
        own = isinstance(self._path, Path) and all(map(os.path.exists, (target, self._path)))
        if own and os.path.samefile(target, self._path):
            raise ArgumentError(f"path={os.fspath(path)!r} is the cache itself; allowed: another file")
        entries = self.entries(gpu=gpu, cudnn=cudnn, kind=kind)
        write_cache(target, entries)
        return len(entries)

    def merge(self, path: str | os.PathLike[str]) -> int:
        """Take over the entries of another cache, all or nothing; where both have a key, the one that was tuned later.

        Parameters
        ----------
        path : str or Path
            The other file, which is only read.

        Returns
        -------
        int
            How many were taken over: those that were not here, and those that were newer.

        Raises
        ------
        ArgumentError
            No path of a file.
        TuningCacheError
            It is not there, not a tuning cache, or damaged; or this cache is read-only or cannot be written.  This cache
            is as it was.

        Warns
        -----
        TuningCacheWarning
            Entries that cannot be read are passed over.
        """
        source = parse_file(path)
        with self._lock:
            self._require_writable("merged into")
            entries, bad = read_cache(source)
            _tell_unreadable(bad, source)
            entries = [entry for entry in entries if not entry.key.device.is_emulated]
            if self._file is not None:
                records = [record_of(entry) for entry in entries]
                taken = self._write(partial(insert, records=records, newer=True), create=bool(records)) or 0
            else:
                newer = {e.key.text: e for e in entries if _is_newer(e, self._kept.get(e.key.text))}
                self._kept.update(newer)
                taken = len(newer)
            self._recent.clear()
            return taken

    def clear(self, *, gpu: str | None = None, cudnn: int | None = None, kind: str | None = None) -> int:
        """Remove the entries, or those of a GPU, a version of cuDNN or a kind, as in `entries`; return how many.

        Raises
        ------
        ArgumentError
            As in `entries`.
        TuningCacheError
            This cache is read-only or cannot be written.
        """
        wanted = Filter(gpu, cudnn, kind).check()
        condition, parameters = wanted.where()
        with self._lock:
            self._require_writable("cleared")
            self._recent.clear()
            if self._file is not None:
                delete = f"DELETE FROM entries WHERE {condition}"
                count = self._write(lambda c: int(c.execute(delete, parameters).rowcount), create=bool(self._kept))
                return count or 0
            gone = [text for text, entry in self._kept.items() if wanted.accepts(entry)]
            for text in gone:
                del self._kept[text]
            return len(gone)

    def exclusive(self, name: str) -> AbstractContextManager[None]:
        """Return a context in which this thread alone, of all threads and processes with this cache, holds `name`.

        It waits for whoever holds it; a thread that holds it may enter again.  The kernel frees it when a process dies.  The
        lock is a file beside the cache; where none can be made it is one in the temporary folder, and where that fails too,
        only the threads of this process keep out of each other's way.

        Parameters
        ----------
        name : str
            What is held: a device, say.

        Raises
        ------
        ArgumentError
            The name is not a string, or empty.
        """
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"name={name!r}; allowed: a string that is not empty")
        if not isinstance(self._path, Path):
            return exclusive(f"{id(self)}\0{name}")
        if not self._read_only:
            with suppress(OSError):  # the lock file is then elsewhere
                self._path.parent.mkdir(parents=True, exist_ok=True)
        return exclusive(f"{self._path}\0{name}", *lock_paths(self._path, name))

    def _load(self, key: TuningKey) -> TuningEntry | None:
        if self._file is None:
            return None
        try:
            records = self._file.read(f"{SELECT} WHERE digest = ?", (key.digest,))
            return entry_of(records[0]) if records else None
        except TuningCacheError as error:
            self._tell(f"{error}; the cache cannot be read")
        except ArgumentError as error:
            warn_user(
                f"{self._path} has an entry that cannot be read, which is passed over: {error}", TuningCacheWarning
            )
        return None

    def _remember(self, entry: TuningEntry) -> None:
        self._recent[entry.key.text] = entry
        self._recent.move_to_end(entry.key.text)
        if len(self._recent) > RECENT:
            self._recent.popitem(last=False)

    def _write(self, work: Callable[[sqlite3.Connection], T], *, create: bool = True) -> T | None:
        """Do `work` in one transaction, after writing what could not be written before."""
        assert self._file is not None

        def everything(connection: sqlite3.Connection) -> T:
            insert(connection, map(record_of, self._kept.values()), newer=True)
            return work(connection)

        result = self._file.write(everything, create=create)
        self._kept.clear()
        return result

    def _tell(self, message: str) -> None:
        """Warn, the first time."""
        if not self._told:
            self._told = True
            warn_user(message, TuningCacheWarning)

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the tuning cache {self._path} is closed")

    def _require_writable(self, verb: str) -> None:
        self._require_open()
        if self._read_only:
            raise TuningCacheError(f"{self._path} is opened read-only: nothing can be {verb}")


def _is_newer(entry: TuningEntry, other: TuningEntry | None) -> bool:
    return other is None or entry.tuned_at > other.tuned_at


def _tell_unreadable(number: int, path: Path | str) -> None:
    if number:  # they stay where they are
        noun = "entry" if number == 1 else "entries"
        warn_user(f"{path} has {number} {noun} that cannot be read, passed over", TuningCacheWarning)


# ---------------------------------------------------------------- forks

_caches: weakref.WeakSet[TuningCache] = weakref.WeakSet()
_registry = threading.Lock()
_paused: list[TuningCache] = []


def _before_fork() -> None:
    """Close every file: SQLite in a child would believe to hold the parent's locks, which no child inherits."""
    _registry.acquire()
    for cache in list(_caches):
        cache._lock.acquire()  # no thread is in the middle of anything
        _paused.append(cache)
        if cache._file is not None:
            cache._file.close()


def _after_fork() -> None:
    while _paused:
        _paused.pop()._lock.release()
    _registry.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
