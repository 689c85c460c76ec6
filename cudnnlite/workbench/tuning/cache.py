"""`TuningCache`: the results of tunings, in a folder that processes share."""

from __future__ import annotations

import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path
from stat import S_IFDIR, S_IFREG
from typing import Any

from cudnnlite.arguments import (
    absolute_path,
    file_type,
    instance_of,
    integer,
    one_of,
    path_of,
    refused_as,
    require_system_error,
)
from cudnnlite.descriptors.native import Closable
from cudnnlite.errors import ArgumentError, ClosedError, TuningCacheError, TuningCacheWarning
from cudnnlite.files import UnfitFileError, read_file, write_atomically
from cudnnlite.graph.problem import KIND as GRAPH
from cudnnlite.problems.catalogue import TUNABLE
from cudnnlite.warn import warn_user
from cudnnlite.workbench.tuning.entries import DeviceIdentity, TuningEntry, TuningKey
from cudnnlite.workbench.tuning.plan_files import (
    FOLDER,
    PlanFiles,
    copy_plans,
    remove_plans,
    sign_plans,
)

# The kinds of problems that entries have.
KINDS = (*TUNABLE, GRAPH)
CACHE_VARIABLE = "CUDNNLITE_TUNING_CACHE"
IN_MEMORY = ":memory:"
REHEARSAL = "REHEARSAL.txt"  # the file that marks the folder of a rehearsal
_REHEARSAL_TEXT = """\
This tuning cache is a rehearsal: its times are those of cudnnlite's emulated device, and say nothing
about a GPU.  No tuning on a GPU reads it, and it is merged with other rehearsals only.
"""
_ENTRY = re.compile(r"[0-9a-f]{64}\.json")
_OURS = re.compile(
    rf"[0-9a-f]{{64}}\.json(\..*\.damaged)?|\..*\.tmp|.*\.lock|{FOLDER}|{re.escape(REHEARSAL)}"
)


class TuningCache(Closable):
    """The results of tunings, in a folder with a JSON file for each entry.

    Several threads and processes may use the folder at once.  A file's name is the hash of its key,
    and the key is readable in the file.  A file may be copied to another cache, and removed.  A
    damaged file is renamed to end in `.damaged`, with a warning.  A file of a newer cudnnlite is
    left alone.  If the folder cannot be written (a full disk, no permission), entries are kept in
    memory, with one warning, and written as soon as that works.

    Parameters
    ----------
    path : str or Path, optional
        The folder.  It is created when the first entry is put in.  With ":memory:" there is no
        folder, and the entries are lost with this object.  The default is `CUDNNLITE_TUNING_CACHE`
        in the environment, or else `cudnnlite/tuning` in the user's cache folder.
    read_only : bool
        Whether the folder is only read.  Then no file is created, written or renamed, and new
        entries are kept in memory.
    trust_code : bool
        Whether compiled plans are restored that another account wrote into the folder.  They are
        native code, which runs with this process's rights.
    rehearsal : bool, optional
        Whether the entries are those of the emulated device, to try on a machine without a GPU how
        a cache is exported, merged and compared.  A rehearsal is in a folder of its own, which the
        file `REHEARSAL.txt` marks, and takes no entry of a GPU, as other caches take none of the
        emulated device.  By default a marked folder is a rehearsal, and any other is none.

    Attributes
    ----------
    path, read_only, trust_code, rehearsal
        The folder's absolute path, or ":memory:"; and the arguments.

    Raises
    ------
    ArgumentError
        The path is not a path; or a rehearsal is to be opened as a cache for GPUs, or the other way
        round.
    TuningCacheError
        A folder that is to become a rehearsal cannot be marked, or has files that no cache has.

    Warns
    -----
    TuningCacheWarning
        The path is that of a file, which is left as it is, and not used.

    Examples
    --------
    >>> with dnn.TuningCache("tuned") as cache:
    ...     with dnn.Handle() as handle, dnn.autotuned(handle, cache=cache):
    ...         pass  # the program; what it measures on a GPU is in the folder at once
    ...     print(cache.path.name, len(cache), cache.export("for_the_team"))
    tuned 0 0
    """

    _instead_of_copy = "open another on its path"

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        read_only: bool = False,
        trust_code: bool = False,
        rehearsal: bool | None = None,
    ) -> None:
        one_of(read_only, "read_only", True, False)
        self.trust_code = one_of(trust_code, "trust_code", True, False)
        one_of(rehearsal, "rehearsal", True, False, None)
        self.path, self.read_only, self._closed = parse_cache_path(path), read_only, False
        self._is_written = isinstance(self.path, Path) and not read_only
        # An absolute path replaces /dev/null. ":memory:" becomes a path that cannot exist.
        self._folder = Path(os.devnull, self.path)
        # The containers below need no lock. Each use of one is a single step for Python, so another
        # thread, or a fork, may come between any two.
        self._unsaved: dict[TuningKey, TuningEntry] = {}  # the entries that are in no file
        # The files of a newer cudnnlite that were read so far. They are not replaced or removed.
        self._newer: set[Path] = set()
        self._warnings: set[object] = set()  # the subjects of the warnings so far
        self.rehearsal = self._parse_rehearsal(rehearsal)
        if why := _why_unfit(self._folder):
            self._warn_once(self.path, f"{why}; until then memory has to do")
        elif read_only and isinstance(self.path, Path) and not file_type(self.path, follow=False):
            self._warn_once(
                self.path, f"{self.path} does not exist; the cache is an empty one in memory"
            )

    def _parse_rehearsal(self, rehearsal: bool | None) -> bool:
        """Return whether this cache is a rehearsal; mark a folder that becomes one."""
        is_marked = is_rehearsal(self._folder)
        if rehearsal is None or rehearsal == is_marked:
            return is_marked
        if not rehearsal:
            raise ArgumentError(
                f"{self.path} is a rehearsal on the emulated device; allowed: rehearsal=True"
            )
        if entry_files(self._folder):
            raise ArgumentError(
                f"{self.path} is a cache for GPUs; a rehearsal needs a folder of its own"
            )
        if self._is_written:
            if file_type(self._folder) == S_IFDIR:
                _refuse_another(self._folder)
            with refused_as(TuningCacheError, self._folder):
                write_atomically(self._folder / REHEARSAL, _REHEARSAL_TEXT.encode("ascii"))
        return True

    def __repr__(self) -> str:
        how = " read-only" if self.read_only else ""
        kind = " rehearsal" if self.rehearsal else ""
        state = " closed" if self._closed else ""
        return f"<TuningCache {self.path}{kind}{how}{state}>"

    @property
    def unsaved(self) -> int:
        """The number of entries that are in memory only, because the folder cannot be written."""
        return len(self._unsaved) if isinstance(self.path, Path) else 0

    def close(self) -> None:
        """Refuse further use.

        A second call does nothing.  A cache that is never closed loses no entry that was written.
        """
        self._save()
        self._closed = True

    def get(self, key: TuningKey) -> TuningEntry | None:
        """Return the entry of a key, or None.

        If the file cannot be read, the result is None, with a warning.
        """
        instance_of(key, TuningKey, "key")
        self._require_open()
        if entry := self._unsaved.get(key):
            return entry
        return self._read(self._file_of(key))

    def _file_of(self, key: TuningKey) -> Path:
        """Return the path of the file that an entry has."""
        return self._folder / f"{key.digest}.json"

    def put(self, entry: TuningEntry) -> None:
        """Save an entry, in place of another one with the same key.

        After the call the entry is on disk.  If the folder cannot be written, the entry is kept in
        memory, with one warning for this cache.  It is kept in memory without a warning if the
        cache is read-only, or if a newer cudnnlite has written an entry with that key, which stays.
        An entry of the emulated device raises ArgumentError, because its times say nothing about a
        GPU; in a rehearsal an entry of a GPU does.
        """
        device = instance_of(entry, TuningEntry, "entry").key.device
        if device.is_emulated and not self.rehearsal:
            raise ArgumentError(
                f"entry of {device.gpu}: times of the emulated device are not kept in a cache, "
                "except in a rehearsal: TuningCache(path, rehearsal=True)"
            )
        if self.rehearsal and not device.is_emulated:
            raise ArgumentError(
                f"entry of {device.gpu}: {self.path} is a rehearsal on the emulated device"
            )
        self._require_open()
        self._save(entry)

    def plans_for(self, device: DeviceIdentity) -> PlanFiles | None:
        """Return the compiled plans for a device; None if the cache has no folder."""
        if not isinstance(self.path, Path):
            return None
        return PlanFiles(self.path, device, read_only=self.read_only, trust_code=self.trust_code)

    def entries(
        self, *, gpu: str | None = None, cudnn: int | None = None, kind: str | None = None
    ) -> list[TuningEntry]:
        """Return the entries, the oldest first; TuningCacheError if the folder cannot be read.

        ``entry.key.problem`` is the problem, ``entry.key.device`` the device, and
        ``entry.rows[entry.chosen]`` the choice.  The filters select a GPU ("NVIDIA H200"), a
        version of cuDNN (92800 for 9.28.0), and a kind of problem ("convolution_forward").  A
        filter of another type, or an unknown kind of problem, raises ArgumentError.
        """
        filters = (
            ("device", "gpu", gpu if gpu is None else instance_of(gpu, str, "gpu")),
            ("device", "cudnn", cudnn if cudnn is None else integer(cudnn, "cudnn")),
            ("problem", "kind", one_of(kind, "kind", None, *KINDS)),
        )
        self._require_open()
        saved = filter(None, map(self._read, entry_files(self._folder)))
        by_key = {entry.key: entry for entry in (*saved, *list(self._unsaved.values()))}
        entries = list(by_key.values())
        for part, name, value in filters:
            if value is not None:
                entries = [entry for entry in entries if entry.key.plain[part][name] == value]
        return sorted(entries, key=lambda entry: (entry.tuned_at, entry.key.digest))

    def __len__(self) -> int:
        self._require_open()
        saved = {file.stem for file in entry_files(self._folder)}
        unsaved = [key for key in list(self._unsaved) if key.digest not in saved]
        return len(saved) + len(unsaved)

    def export(self, path: str | os.PathLike[str], **filters: Any) -> int:
        """Write the entries to another folder; return how many are written.

        The filters are those of `entries`.  All compiled plans are copied, with their signatures:
        they are restored by this account, and by others only with `trust_code`.  If the folder is a
        tuning cache already, its other entries are removed.  Only the entries of a newer
        cudnnlite stay, and a warning counts them.  TuningCacheError if no entry passes the filters,
        if the folder has entries and this cache has none, or if the folder is something else or
        cannot be written; ArgumentError for this cache's own folder, and for a rehearsal in place
        of a cache for GPUs, or the other way round.
        """
        folder, entries = check_place(path), self.entries(**filters)
        # `Path.resolve` raises an error for a link that leads to itself.
        if os.path.realpath(folder) == os.path.realpath(self._folder):
            raise ArgumentError(
                f"path={os.fspath(path)!r} is the cache itself; allowed: another folder"
            )
        wanted = [f"{name}={value!r}" for name, value in filters.items() if value is not None]
        if not entries and (wanted or entry_files(folder)):
            conditions = f" with {', '.join(wanted)}" if wanted else ""
            raise TuningCacheError(f"{self.path} has no entry{conditions}: {folder} is not written")
        with refused_as(TuningCacheError, folder):
            folder.mkdir(parents=True, exist_ok=True)
        _refuse_another(folder)
        target = TuningCache(folder, rehearsal=self.rehearsal)
        written = sum(map(target._write, entries))
        target._remove({other.key for other in target.entries()} - {entry.key for entry in entries})
        remove_plans(folder)
        copy_plans(self._folder, folder)
        if target._newer:
            target._warn_once(
                "kept",
                f"{folder} keeps {len(target._newer)} of a newer cudnnlite: they are not removed",
            )
        return written

    def merge(self, path: str | os.PathLike[str], *, trust_code: bool = False) -> int:
        """Copy entries from another cache's folder; return how many.

        An entry is copied if this cache has none with its key, or an older one.  Compiled plans are
        native code: they are copied, and signed by this account, only with `trust_code`.  Without
        it they are compiled again.  The other folder is only read.  An entry that cannot be read is
        skipped, with a warning.  TuningCacheError if the folder does not exist or is no tuning
        cache, if one of the two caches is a rehearsal and the other is not, or if this cache is
        read-only or cannot be written.  The entries that were copied before the error stay.
        """
        one_of(trust_code, "trust_code", True, False)
        self._require_open(to_write=True)
        folder = check_place(path)
        if file_type(folder) != S_IFDIR:
            raise TuningCacheError(f"{folder} does not exist")
        if not entry_files(folder):
            _refuse_another(folder)
        source = TuningCache(folder, read_only=True)
        if source.rehearsal != self.rehearsal:
            rehearsal, other = (folder, self.path) if source.rehearsal else (self.path, folder)
            raise TuningCacheError(
                f"{rehearsal} is a rehearsal on the emulated device and {other} is not: "
                "they are never merged"
            )
        count = 0
        for entry in source.entries():
            own_entry = self.get(entry.key)
            is_newer = own_entry is None or own_entry.tuned_at < entry.tuned_at
            if is_newer and self._write(entry):
                count += 1
        if trust_code and isinstance(self.path, Path):
            sign_plans(folder, self.path)
        return count

    def clear(self, **filters: Any) -> int:
        """Remove the entries; return how many.

        The filters are those of `entries`.  Without `kind`, the compiled plans for that GPU and
        version of cuDNN are removed, too.  TuningCacheError if this cache cannot be written.
        """
        self._require_open(to_write=True)
        keys = {entry.key for entry in self.entries(**filters)}
        self._remove(keys)
        if isinstance(self.path, Path) and filters.get("kind") is None:
            remove_plans(self.path, gpu=filters.get("gpu"), cudnn=filters.get("cudnn"))
        return len(keys)

    def _save(self, *entries: TuningEntry) -> None:
        """Write entries, after those that could not be written before; keep what still cannot."""
        unsaved = list(self._unsaved.values()) if self._is_written else []
        for entry in [*unsaved, *entries]:
            try:
                if not self._write(entry):
                    self._unsaved[entry.key] = entry
            except TuningCacheError as error:
                self._unsaved[entry.key] = entry
                self._warn_once(
                    self.path, f"{error}; what is tuned is kept in this process's memory only"
                )

    def _read(self, file: Path) -> TuningEntry | None:
        """Return the entry in a file; None if there is no file.

        If the file cannot be used, the result is None, with a warning.  A damaged file is renamed.
        """
        self._newer.discard(file)
        try:
            data = read_file(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except UnfitFileError as error:
            self._warn_once(file, f"{file} {error.strerror}; it is left as it is, and not used")
            return None
        except OSError as error:
            why = require_system_error(error).strerror
            self._warn_once("reading", f"{file}: {why}; the cache cannot be read")
            return None
        try:
            return TuningEntry.from_json(data, file)
        except TuningCacheError as error:
            self._newer.add(file)
            self._warn_once(
                "newer", f"{error}; it is left as it is, and not used, as are others like it"
            )
        except ArgumentError as error:
            if self.read_only or not _set_aside(file, data, str(error)):
                self._warn_once(file, f"{error}; it is left as it is, and not used")
        return None

    def _write(self, entry: TuningEntry) -> bool:
        """Write an entry's file in one step; return False if a newer cudnnlite has written it.

        A cache that writes no files keeps the entry in memory.
        """
        text = entry.to_json()
        if not self._is_written:
            self._unsaved[entry.key] = entry
            return True
        file = self._file_of(entry.key)
        self._read(file)
        if file in self._newer:
            return False
        with refused_as(TuningCacheError, self._folder):
            write_atomically(file, text.encode("ascii"))
        # An entry that another thread put meanwhile stays.
        unsaved = self._unsaved.get(entry.key)
        if unsaved and unsaved.tuned_at <= entry.tuned_at:
            self._unsaved.pop(entry.key, None)
        return True

    def _remove(self, keys: set[TuningKey]) -> None:
        """Remove entries, and the drafts of processes that died while they wrote."""
        for key in keys:
            self._unsaved.pop(key, None)
        files = {self._file_of(key) for key in keys}
        with refused_as(TuningCacheError, self._folder):
            for file in entry_files(self._folder):
                if file in files and file not in self._newer:
                    file.unlink(missing_ok=True)
            for draft in self._folder.glob(".*.tmp"):
                with suppress(FileNotFoundError):  # its process has finished meanwhile
                    if time.time() - draft.stat().st_mtime > 3600:
                        draft.unlink()

    def _warn_once(self, about: object, message: str) -> None:
        """Warn, unless there was a warning about this subject before."""
        if about not in self._warnings:
            self._warnings.add(about)
            warn_user(message, TuningCacheWarning)

    def _require_open(self, *, to_write: bool = False) -> None:
        if self._closed:
            raise ClosedError(f"the tuning cache {self.path} is closed")
        if to_write and self.read_only:
            raise TuningCacheError(f"{self.path} is opened read-only")


def parse_cache_path(path: str | os.PathLike[str] | None) -> Path | str:
    """Return an absolute path, or ":memory:".

    For None it is the path in the environment, or else a folder in the user's cache folder.
    """
    argument = "path" if path is not None else CACHE_VARIABLE
    if path is None and not (path := os.environ.get(CACHE_VARIABLE)):
        with refused_as(TuningCacheError, "the user's cache folder cannot be found"):
            import platformdirs

        path = platformdirs.user_cache_path("cudnnlite", appauthor=False) / "tuning"
    if isinstance(path, str) and path == IN_MEMORY:
        return IN_MEMORY
    return check_place(path, argument, file_too=True)


def check_place(
    path: str | os.PathLike[str], argument: str = "path", *, file_too: bool = False
) -> Path:
    """Return the absolute path of a folder, which need not exist.

    ArgumentError if it is not a path; TuningCacheError if it is the path of a file.
    """
    folder = absolute_path(path_of(path, argument, "the path of a folder"), argument)
    if os.fspath(path) == IN_MEMORY:
        raise ArgumentError(f"{argument}={IN_MEMORY} is not the path of a folder")
    if not file_too and (why := _why_unfit(folder)):
        raise TuningCacheError(why)
    return folder


def check_cache_kind(cache: TuningCache, *, is_gpu: bool) -> None:
    """Raise ArgumentError for a rehearsal beside a GPU."""
    if cache.rehearsal and is_gpu:
        raise ArgumentError(
            f"cache={cache.path} is a rehearsal on the emulated device, and the times are a GPU's; "
            "allowed: another folder"
        )


def entry_files(folder: Path) -> list[Path]:
    """Return the files of all entries in a folder, which need not exist."""
    with refused_as(TuningCacheError, folder), suppress(FileNotFoundError, NotADirectoryError):
        return [folder / name for name in sorted(os.listdir(folder)) if _ENTRY.fullmatch(name)]
    return []


def is_rehearsal(folder: Path) -> bool:
    """Return whether a folder, which need not exist, is marked as a rehearsal."""
    return file_type(folder / REHEARSAL) == S_IFREG


def _refuse_another(folder: Path) -> None:
    """Raise TuningCacheError for a folder with a file that no cache has."""
    with refused_as(TuningCacheError, folder):
        foreign_names = sorted(name for name in os.listdir(folder) if not _OURS.fullmatch(name))
    if foreign_names:
        raise TuningCacheError(f"{folder} is no tuning cache: it has {foreign_names[0]}")


def _set_aside(file: Path, data: bytes, why: str) -> bool:
    """Rename a damaged file that held this data, with a warning; return False if that fails."""
    aside = file.with_name(f"{file.name}.{secrets.token_hex(4)}.damaged")
    try:
        os.rename(file, aside)
        if read_file(aside) == data:
            warn_user(f"{why}; it is now {aside}", TuningCacheWarning)
        else:  # another process has renamed it already, and written this entry in its place
            os.rename(aside, file)
    except OSError as error:
        return isinstance(require_system_error(error), FileNotFoundError)
    return True


def _why_unfit(path: Path) -> str:
    """Return why no cache can be at a path; empty if one can."""
    if file_type(path) in (0, S_IFDIR):
        return ""
    return f"{path} is a file, and no tuning cache; it is left as it is, and not used"
