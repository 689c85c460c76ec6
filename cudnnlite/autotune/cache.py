"""`TuningCache`: what tunings found, remembered in a folder that processes share."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from cudnnlite.autotune.cache_path import CACHE_VARIABLE, parse_cache_path, parse_folder
from cudnnlite.autotune.entries import TuningEntry, entry_to_json, parse_filter
from cudnnlite.autotune.keys import TuningKey
from cudnnlite.autotune.store import EntryFolder, check_place
from cudnnlite.errors import ArgumentError, ClosedError, TuningCacheError

__all__ = ["CACHE_VARIABLE", "TuningCache", "TuningEntry"]

RECENT = 1024  # entries that this process keeps at hand


class TuningCache:
    """What tunings found, in a folder that several threads and processes may use at once: a JSON file for each entry.

    A file is named by the hash of its key, which is readable in it.  Files may be copied from cache to cache, and removed.  A
    damaged one is set aside with a warning: renamed to end in `.damaged`.  Where the folder cannot be written (a full disk,
    no permission) the entries are kept in this process's memory, with one warning, and written as soon as that works.  What
    this object has seen it does not look up again: it does not notice that another process replaced or removed it.

    Parameters
    ----------
    path : str or Path, optional
        The folder; made when something is first put in.  ":memory:": none, everything is forgotten with this object.  If not
        given, the environment variable `CUDNNLITE_TUNING_CACHE` decides, or else it is `cudnnlite/tuning` in the user's
        cache folder.
    read_only : bool
        Whether the folder is only read: nothing in it is made, written or set aside.  What is put in is kept in memory.

    Raises
    ------
    ArgumentError
        The path is no path, or that of a device.

    Warns
    -----
    TuningCacheWarning
        There is a file instead, such as a cache of an older version, which was one: it is left as it is, and not used.

    Examples
    --------
    >>> with dnn.TuningCache("tuned") as cache:
    ...     with dnn.Handle() as handle, dnn.autotuned(handle, cache=cache):
    ...         pass  # the program; what it measures on a GPU is in the folder at once
    ...     print(cache.path.name, len(cache), cache.export("for_the_team"))
    tuned 0 0
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, read_only: bool = False) -> None:
        if not isinstance(read_only, bool):
            raise ArgumentError(f"read_only={read_only!r}; allowed: True, False")
        self._path, self._read_only, self._closed = parse_cache_path(path), read_only, False
        self._folder = EntryFolder(self._path, read_only=read_only) if isinstance(self._path, Path) else None
        # no lock: each use of these is one step for Python, so that a fork, or another thread, may come between any two
        self._recent: dict[str, TuningEntry] = {}
        self._kept: dict[str, TuningEntry] = {}  # what is in no file
        if self._folder is not None:
            self._folder.look()

    def __repr__(self) -> str:
        return f"<TuningCache {self._path}{' read-only' * self._read_only}{' closed' * self._closed}>"

    @property
    def path(self) -> Path | str:
        """The folder's absolute path, or ":memory:"."""
        return self._path

    @property
    def read_only(self) -> bool:
        """Whether the folder is only read, because that was asked for."""
        return self._read_only

    @property
    def unsaved(self) -> int:
        """How many entries are in this process's memory only, because the folder could not be written."""
        return 0 if self._folder is None else len(self._kept)

    def __enter__(self) -> TuningCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Refuse further use; harmless when called again.  A cache that is never closed loses nothing that was written."""
        if not self._closed:
            self._save()
        self._closed = True

    def get(self, key: TuningKey) -> TuningEntry | None:
        """Return the entry of a key, or None; where its file cannot be read there is none, with a warning."""
        if not isinstance(key, TuningKey):
            raise ArgumentError(f"key={key!r} is not a TuningKey")
        self._require_open()
        known = self._kept.get(key.text) or self._recent.get(key.text)
        if known is None and (known := self._load(key.digest)) is not None:
            self._remember(known)
        return known

    def put(self, entry: TuningEntry) -> None:
        """Remember an entry, in place of one of the same key; when this returns it survives the process.

        Where the folder cannot be written it is kept in memory, with one warning for this cache; in a read-only cache
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
        entry_to_json(entry)  # refuses what could not be read again
        self._require_open()
        self._save(entry)

    def entries(
        self, *, gpu: str | None = None, cudnn: int | None = None, kind: str | None = None
    ) -> list[TuningEntry]:
        """Return the entries, the oldest first.

        Parameters
        ----------
        gpu, cudnn, kind : optional
            Only those of a GPU, by its name; of a version of cuDNN, 92800 for 9.28.0; of a kind of problem, such as
            "convolution_forward".

        Raises
        ------
        ArgumentError, TuningCacheError
            A filter of another type, or no kind of problem; the folder cannot be read.
        """
        wanted = parse_filter(gpu, cudnn, kind)
        self._require_open()
        found = [] if self._folder is None else self._folder.entries()
        by_key = {entry.key.text: entry for entry in [*found, *self._kept.values()] if wanted(entry)}
        return sorted(by_key.values(), key=lambda entry: (entry.tuned_at, entry.key.digest))

    def __len__(self) -> int:
        self._require_open()
        files = [] if self._folder is None else self._folder.files()
        return len({file.stem for file in files} | {entry.key.digest for entry in list(self._kept.values())})

    def export(
        self, path: str | os.PathLike[str], *, gpu: str | None = None, cudnn: int | None = None, kind: str | None = None
    ) -> int:
        """Write the entries, filtered as in `entries`, to another folder, which can be shipped; return how many.

        A tuning cache that is there has these entries afterwards and no others; anything else is refused.

        Raises
        ------
        ArgumentError, TuningCacheError
            The path is this cache's own, or none; it cannot be written, or is not a tuning cache; or as in `entries`.
        """
        target = EntryFolder(parse_folder(path))
        own = isinstance(self._path, Path) and all(map(os.path.exists, (target.path, self._path)))
        if own and os.path.samefile(target.path, self._path):
            raise ArgumentError(f"path={os.fspath(path)!r} is the cache itself; allowed: another folder")
        entries = self.entries(gpu=gpu, cudnn=cudnn, kind=kind)
        wanted = {target.file(entry.key.digest) for entry in entries}
        try:
            check_place(target.path, to_write=True)
            target.path.mkdir(parents=True, exist_ok=True)
            for entry in entries:
                target.write(entry)
            for file in target.files():
                if file not in wanted:
                    file.unlink(missing_ok=True)
        except OSError as error:
            raise TuningCacheError(f"{target.path}: {error.strerror}") from error
        return len(entries)

    def merge(self, path: str | os.PathLike[str]) -> int:
        """Take over the entries of another cache's folder that are not here, or newer there; return how many.

        It is only read; entries that cannot be are passed over, with a warning.

        Raises
        ------
        ArgumentError, TuningCacheError
            It is not there, or not a tuning cache; or this cache is read-only or cannot be written.  What was taken over
            until then stays.
        """
        source = parse_folder(path)
        self._require_writable("merged into")
        check_place(source)
        if not source.is_dir():
            raise TuningCacheError(f"{source} does not exist")
        taken = 0
        for entry in EntryFolder(source, read_only=True).entries():
            mine = self._kept.get(entry.key.text) or self._load(entry.key.digest)
            if not entry.key.device.is_emulated and (mine is None or entry.tuned_at > mine.tuned_at):
                self._save(entry, or_raise=True)
                taken += 1
        return taken

    def clear(self, *, gpu: str | None = None, cudnn: int | None = None, kind: str | None = None) -> int:
        """Remove the entries, or those of a GPU, a version of cuDNN or a kind, as in `entries`; return how many.

        Raises
        ------
        ArgumentError, TuningCacheError
            This cache is read-only or cannot be written; or as in `entries`.
        """
        self._require_writable("cleared")
        gone = self.entries(gpu=gpu, cudnn=cudnn, kind=kind)
        self._recent.clear()
        try:
            for entry in gone:
                self._kept.pop(entry.key.text, None)
                if self._folder is not None:
                    self._folder.file(entry.key.digest).unlink(missing_ok=True)
            if self._folder is not None:
                self._folder.sweep()
        except OSError as error:
            raise TuningCacheError(f"{self._path}: {error.strerror}") from error
        return len(gone)

    def _save(self, *entries: TuningEntry, or_raise: bool = False) -> None:
        """Write entries, after what could not be written before; keep them where that fails."""
        if self._folder is None or self._read_only:
            self._kept.update((entry.key.text, entry) for entry in entries)
            return
        for entry in [*list(self._kept.values()), *entries]:
            try:
                self._folder.write(entry)
            except OSError as error:
                if or_raise:
                    raise TuningCacheError(f"{self._path}: {error.strerror}") from error
                self._kept[entry.key.text] = entry
                why = f"{error.strerror}; what is tuned is kept in this process's memory only"
                self._folder.tell(self._folder.path, f"{self._path}: {why}")
                continue  # another entry may fare better
            self._remember(entry)
            if self._kept.get(entry.key.text) is entry:
                self._kept.pop(entry.key.text, None)

    def _load(self, digest: str) -> TuningEntry | None:
        return None if self._folder is None else self._folder.read(self._folder.file(digest))

    def _remember(self, entry: TuningEntry) -> None:
        if len(self._recent) >= RECENT:
            self._recent.clear()
        self._recent[entry.key.text] = entry

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the tuning cache {self._path} is closed")

    def _require_writable(self, verb: str) -> None:
        self._require_open()
        if self._read_only:
            raise TuningCacheError(f"{self._path} is opened read-only: nothing can be {verb}")
