"""`TuningCache`: what tunings found, remembered in a folder that processes share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cudnnlite.arguments import one_of, shown
from cudnnlite.autotune.entries import TuningEntry
from cudnnlite.autotune.keys import TuningKey
from cudnnlite.autotune.store import IN_MEMORY, EntryFolder, check_place, parse_cache_path, parse_folder
from cudnnlite.errors import ArgumentError, ClosedError, TuningCacheError
from cudnnlite.operations.problem import KINDS


class TuningCache:
    """What tunings found, in a folder that several threads and processes may use at once: a JSON file for each entry.

    A file is named by the hash of its key, which is readable in it.  Files may be copied from cache to cache, and removed.  A
    damaged one is set aside with a warning: renamed to end in `.damaged`.  One of a newer cudnnlite is left alone.  Where the
    folder cannot be written (a full disk, no permission) the entries are kept in this process's memory, with one warning, and
    written as soon as that works.

    Parameters
    ----------
    path : str or Path, optional
        The folder; made when something is first put in.  ":memory:": none, everything is forgotten with this object.  If not
        given, the environment variable `CUDNNLITE_TUNING_CACHE` decides, or else it is `cudnnlite/tuning` in the user's
        cache folder.
    read_only : bool
        Whether the folder is only read: nothing in it is made, written or set aside.  What is put in is kept in memory.

    Attributes
    ----------
    path : Path or str
        The folder's absolute path, or ":memory:".
    read_only : bool
        As given.

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
        one_of(read_only, "read_only", True, False)
        self.path, self.read_only, self._closed = parse_cache_path(path), read_only, False
        # no lock: each use of it is one step for Python, so that a fork, or another thread, may come between any two
        self._kept: dict[str, TuningEntry] = {}  # by digest: what is in no file
        if isinstance(self.path, Path):
            self._folder = EntryFolder(self.path, read_only=read_only)
            self._folder.look()
        else:  # a folder that cannot be
            self._folder = EntryFolder(Path(os.devnull, self.path), read_only=True)

    def __repr__(self) -> str:
        return f"<TuningCache {self.path}{' read-only' * self.read_only}{' closed' * self._closed}>"

    @property
    def unsaved(self) -> int:
        """How many entries are in this process's memory only, because the folder could not be written."""
        return len(self._kept) if isinstance(self.path, Path) else 0

    def __enter__(self) -> TuningCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Refuse further use; harmless when called again.  A cache that is never closed loses nothing that was written."""
        if not self._closed:
            self._save()
        self._closed = True

    def get(self, key: TuningKey) -> TuningEntry | None:
        """Return the entry of a key, or None; where its file cannot be read there is none, with a warning."""
        if not isinstance(key, TuningKey):
            raise ArgumentError(f"key={shown(key)} is not a TuningKey")
        self._require_open()
        return self._kept.get(key.digest) or self._folder.read(key.digest)

    def put(self, entry: TuningEntry) -> None:
        """Remember an entry, in place of one of the same key; when this returns it survives the process.

        Where the folder cannot be written it is kept in memory, with one warning for this cache; in a read-only cache without
        one.  So it is where a newer cudnnlite has put an entry of that key, which stays.

        Raises
        ------
        ArgumentError
            Not an entry, or one of the emulated device, whose times say nothing of a GPU.
        """
        if not isinstance(entry, TuningEntry):
            raise ArgumentError(f"entry={shown(entry)} is not a TuningEntry")
        device = entry.key.device
        if device.is_emulated:
            raise ArgumentError(f"entry of {device.gpu}: times of the emulated device are not kept in a cache")
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
        for name, value, wanted in (("gpu", gpu, str), ("cudnn", cudnn, int), ("kind", kind, str)):
            if value is not None and type(value) is not wanted:
                raise ArgumentError(f"{name}={shown(value)} is not of type {wanted.__name__}")
        if kind is not None and kind not in KINDS:
            raise ArgumentError(f"kind={shown(kind)} is not a kind of problem; allowed: {', '.join(KINDS)}")
        self._require_open()
        found = {entry.key.digest: entry for entry in self._folder.entries() + list(self._kept.values())}
        chosen = [
            entry
            for entry in found.values()
            if gpu in (None, entry.key.device.gpu)
            and cudnn in (None, entry.key.device.cudnn)
            and kind in (None, entry.key.kind)
        ]
        return sorted(chosen, key=lambda entry: (entry.tuned_at, entry.key.digest))

    def __len__(self) -> int:
        self._require_open()
        return len({file.stem for file in self._folder.files()} | self._kept.keys())

    def export(self, path: str | os.PathLike[str], **filters: Any) -> int:
        """Write the entries, filtered as in `entries`, to another folder, which can be shipped; return how many are written.

        A tuning cache that is there has these entries afterwards and no others, but for those of a newer cudnnlite: they are
        kept, and counted in a warning.  Anything else is refused.

        Raises
        ------
        ArgumentError, TuningCacheError
            The path is this cache's own, or none; it cannot be written, or is not a tuning cache; or as in `entries`.
        """
        target, entries = EntryFolder(parse_folder(path)), self.entries(**filters)
        if isinstance(self.path, Path) and target.path.resolve() == self.path.resolve():
            raise ArgumentError(f"path={os.fspath(path)!r} is the cache itself; allowed: another folder")
        check_place(target.path, to_write=True)
        target.make()
        written = sum(map(target.write, entries))
        wanted = {entry.key.digest for entry in entries}
        target.remove({other.key.digest for other in target.entries()} - wanted)
        if target.newer:
            target.tell("kept", f"{target.path} keeps {len(target.newer)} of a newer cudnnlite: they are not removed")
        return written

    def merge(self, path: str | os.PathLike[str]) -> int:
        """Take over the entries of another cache's folder that are not here, or newer there; return how many.

        It is only read; entries that cannot be are passed over, with a warning.

        Raises
        ------
        ArgumentError, TuningCacheError
            It is not there, or not a tuning cache; or this cache is read-only or cannot be written.  What was taken over
            until then stays.
        """
        source, taken = EntryFolder(parse_folder(path), read_only=True), 0
        self._require_open(to_write=True)
        check_place(source.path)
        if not source.path.is_dir():
            raise TuningCacheError(f"{source.path} does not exist")
        for entry in source.entries():
            mine = self.get(entry.key)
            if entry.key.device.is_emulated or (mine is not None and mine.tuned_at >= entry.tuned_at):
                continue
            if self.path == IN_MEMORY:
                self._kept[entry.key.digest] = entry
                taken += 1
            elif self._folder.write(entry):
                self._kept.pop(entry.key.digest, None)
                taken += 1
        return taken

    def clear(self, **filters: Any) -> int:
        """Remove the entries, filtered as in `entries`; return how many.

        Raises
        ------
        ArgumentError, TuningCacheError
            This cache is read-only or cannot be written; or as in `entries`.
        """
        self._require_open(to_write=True)
        digests = {entry.key.digest for entry in self.entries(**filters)}
        for digest in digests:
            self._kept.pop(digest, None)
        self._folder.remove(digests)
        return len(digests)

    def _save(self, *entries: TuningEntry) -> None:
        """Write entries, after what could not be written before; keep what cannot be written now."""
        refusal = None
        for entry in [*list(self._kept.values()), *entries]:
            try:
                written = self._folder.write(entry)
            except TuningCacheError as error:
                written, refusal = False, error
            if not written:
                self._kept[entry.key.digest] = entry
            elif self._kept.get(entry.key.digest) is entry:
                self._kept.pop(entry.key.digest, None)
        if refusal is not None:
            self._folder.tell(self.path, f"{refusal}; what is tuned is kept in this process's memory only")

    def _require_open(self, *, to_write: bool = False) -> None:
        if self._closed:
            raise ClosedError(f"the tuning cache {self.path} is closed")
        if to_write and self.read_only:
            raise TuningCacheError(f"{self.path} is opened read-only")
