"""`EntryFolder`: where a tuning cache lies: a JSON file for each entry, named by the hash of its key."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cudnnlite.arguments import check_file, path_of, shown
from cudnnlite.autotune.entries import TuningEntry, entry_from_json, entry_to_json
from cudnnlite.errors import ArgumentError, TuningCacheError, TuningCacheWarning
from cudnnlite.warn import warn_user

CACHE_VARIABLE = "CUDNNLITE_TUNING_CACHE"
IN_MEMORY = ":memory:"
_ENTRY = re.compile(r"[0-9a-f]{64}\.json")
_OURS = re.compile(r"[0-9a-f]{64}\.json(\..*\.damaged)?|\..*\.tmp|.*\.lock")
_MOST_BYTES = 64 << 20  # of an entry, which has some kilobytes
_SQLITE = b"SQLite format 3\0"  # the cache was such a file once


class EntryFolder:
    """The folder of a tuning cache, which any number of threads and processes may use at once.

    A file is written beside its place and put there as a whole, so nobody sees half of one.  Files of other names are nobody's
    business here; the folder is made when something is first written.  `newer` are the files met so far that a newer
    cudnnlite has written: they are neither replaced nor removed.  What the system refuses is a TuningCacheError.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self.newer: set[Path] = set()
        self._told: set[object] = set()

    def look(self) -> None:
        """Say now what is wrong with the place, not in the middle of the work."""
        old = self.path.parent / f"{self.path.name}.sqlite"  # beside the new default
        if why := _why_unfit(self.path):
            self.tell(self.path, f"{why}; until then memory has to do")
        elif not os.path.lexists(self.path):
            if _is_sqlite(old):
                self.tell(old, _why_unfit(old))
            elif self.read_only:
                self.tell(self.path, f"{self.path} does not exist; the cache is an empty one in memory")

    def files(self) -> list[Path]:
        """Return the files of all entries."""
        with self._refusals_told(), suppress(FileNotFoundError, NotADirectoryError):
            return sorted(file for file in self.path.iterdir() if _ENTRY.fullmatch(file.name))
        return []

    def entries(self) -> list[TuningEntry]:
        """Return all entries that can be read."""
        return [entry for file in self.files() if (entry := self.read(file.stem)) is not None]

    def read(self, digest: str) -> TuningEntry | None:
        """Return the entry whose key has a digest; None, with a warning, where there is something else."""
        file = self.path / f"{digest}.json"
        self.newer.discard(file)
        data = None
        try:
            check_file(file, _MOST_BYTES, str(file))
            data = file.read_bytes()
            return entry_from_json(data, digest)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            self.tell("reading", f"{file}: {error.strerror}; the cache cannot be read")
        except TuningCacheError as error:
            self.newer.add(file)
            self.tell("newer", f"{file} {error}; it is left as it is, and not used, as are others like it")
        except ArgumentError as error:
            if data is None:  # nobody knows what it is
                self.tell(file, f"{error}; it is left as it is, and not used")
            else:
                self._set_aside(file, data, f"{file} {error}")
        return None

    def make(self) -> None:
        """Make the folder, unless it is there."""
        with self._refusals_told():
            self.path.mkdir(parents=True, exist_ok=True)

    def write(self, entry: TuningEntry) -> bool:
        """Write an entry, in place of one of the same key; an error changes nothing.

        Returns whether it is written: not into a folder that is only read, or over what a newer cudnnlite has written.
        """
        if self.read_only:
            return False
        text, file = entry_to_json(entry), self.path / f"{entry.key.digest}.json"
        self.read(file.stem)
        if file in self.newer:
            return False
        self.make()
        draft = self.path / f".{file.name}.{secrets.token_hex(4)}.tmp"
        with self._refusals_told():
            try:
                with open(draft, "x", encoding="ascii") as new:
                    new.write(text)
                    new.flush()
                    os.fsync(new.fileno())
                os.replace(draft, file)
            finally:
                draft.unlink(missing_ok=True)  # it is there after a failure
        return True

    def remove(self, digests: set[str]) -> None:
        """Remove entries, and what processes left that died while they wrote."""
        with self._refusals_told():
            for file in self.files():
                if file.stem in digests and file not in self.newer:
                    file.unlink(missing_ok=True)
            for draft in self.path.glob(".*.tmp"):
                with suppress(FileNotFoundError):  # somebody was at it, and has finished
                    if time.time() - draft.stat().st_mtime > 3600:
                        draft.unlink()

    def tell(self, about: object, message: str) -> None:
        """Warn, the first time that it is about this."""
        if about not in self._told:
            self._told.add(about)
            warn_user(message, TuningCacheWarning)

    def _set_aside(self, file: Path, data: bytes, what: str) -> None:
        aside = file.with_name(f"{file.name}.{secrets.token_hex(4)}.damaged")
        try:
            if self.read_only:
                raise PermissionError
            os.rename(file, aside)
            if aside.read_bytes() == data:
                warn_user(f"{what}; it is now {aside}", TuningCacheWarning)
            else:  # another process was faster, and this is the entry that it put there since
                os.rename(aside, file)
        except FileNotFoundError:
            pass
        except OSError:
            self.tell(file, f"{what}; it is left as it is, and not used")

    @contextmanager
    def _refusals_told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TuningCacheError(f"{self.path}: {error.strerror}") from error


def parse_cache_path(path: str | os.PathLike[str] | None) -> Path | str:
    """Return an absolute path, or ":memory:"; for None what the environment says, or `default_path()`."""
    argument = "path" if path is not None else CACHE_VARIABLE
    path = path if path is not None else os.environ.get(CACHE_VARIABLE) or default_path()
    return IN_MEMORY if isinstance(path, str) and path == IN_MEMORY else parse_folder(path, argument)


def default_path() -> Path:
    """Return where the cache is if no path is given, and the environment has none: in the user's cache folder."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("cudnnlite", appauthor=False)) / "tuning"


def parse_folder(path: str | os.PathLike[str], argument: str = "path") -> Path:
    """Return the absolute path of a folder, which need not be there; ArgumentError if it is none, or a device's.

    A file passes here: it may be a cache of an older version.
    """
    found = path_of(path, argument, "the path of a folder").absolute()
    if os.fspath(path) == IN_MEMORY:
        raise ArgumentError(f"{argument}={IN_MEMORY} is not the path of a folder")
    if os.path.exists(found) and not (os.path.isdir(found) or os.path.isfile(found)):
        raise ArgumentError(f"{argument}={shown(path)} is a device, not a folder")
    return found


def check_place(path: Path, *, to_write: bool = False) -> None:
    """Raise TuningCacheError where there is no cache, but something else."""
    why = _why_unfit(path)
    if to_write and os.path.isdir(path) and (others := sorted(n for n in os.listdir(path) if not _OURS.fullmatch(n))):
        why = f"{path} is no tuning cache: it has {others[0]}"
    if why:
        raise TuningCacheError(why)


def _why_unfit(path: Path) -> str:
    """Return why no cache can be at a path; empty if one can."""
    if not os.path.isfile(path):
        return ""
    old = "a tuning cache of an older version of cudnnlite, an SQLite file"
    what = old if _is_sqlite(path) else "a file, and no tuning cache"
    return f"{path} is {what}; it is left as it is, and not used. Tune again, into a folder"


def _is_sqlite(path: Path) -> bool:
    with suppress(OSError), open(path, "rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE
    return False
