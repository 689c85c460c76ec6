"""`EntryFolder`: a JSON file for each entry, named by the hash of its key; what is damaged is set aside."""

from __future__ import annotations

import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

from cudnnlite.autotune.entries import TuningEntry, entry_from_json, entry_to_json
from cudnnlite.errors import ArgumentError, TuningCacheError, TuningCacheWarning
from cudnnlite.warn import warn_user

_ENTRY = re.compile(r"[0-9a-f]{64}\.json")
_OURS = re.compile(r"[0-9a-f]{64}\.json(\..*\.damaged)?|\..*\.tmp|.*\.lock")
_SQLITE = b"SQLite format 3\0"  # the cache was such a file once
_OLD = (
    "is a tuning cache of an older version of cudnnlite, an SQLite file; it is left as it is, and nothing of it is used"
)


class EntryFolder:
    """The folder of a tuning cache, which any number of threads and processes may use at once.

    A file is written beside its place and put there as a whole, so nobody sees half of one.  Files of other names are nobody's
    business here; the folder is made when something is first written.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self._told: set[object] = set()

    def look(self) -> None:
        """Say now what is wrong with the place, not in the middle of the work."""
        old = self.path.parent / f"{self.path.name}.sqlite"  # beside the new default
        if why := why_unfit(self.path):
            self.tell(
                self.path, f"{self.path} {why}. Tune again, with the path of a folder: until then memory has to do"
            )
        elif not os.path.lexists(self.path):
            if _beginning(old) == _SQLITE:
                self.tell(old, f"{old} {_OLD}. Tune the models again, into {self.path}; then it may be removed")
            elif self.read_only:
                self.tell(self.path, f"{self.path} does not exist; the cache is an empty one in memory")

    def files(self) -> list[Path]:
        """Return the files of all entries; TuningCacheError if the folder cannot be read."""
        try:
            return sorted(file for file in self.path.iterdir() if _ENTRY.fullmatch(file.name))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise TuningCacheError(f"{self.path}: {error.strerror}") from error

    def file(self, digest: str) -> Path:
        """Return where the entry is whose key has a digest."""
        return self.path / f"{digest}.json"

    def read(self, file: Path) -> TuningEntry | None:
        """Return an entry; None, with a warning, where there is something else."""
        try:
            data = file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.tell((self.path, "read"), f"{file}: {error.strerror}; the cache cannot be read")
            return None
        try:
            return entry_from_json(data, file.stem)
        except TuningCacheError as error:
            self.tell(file, f"{file} {error}; it is left as it is, and not used")
        except ArgumentError as error:
            self._set_aside(file, data, str(error))
        return None

    def entries(self) -> list[TuningEntry]:
        """Return all that can be read; TuningCacheError if the folder cannot."""
        return [entry for file in self.files() if (entry := self.read(file)) is not None]

    def write(self, entry: TuningEntry) -> None:
        """Write an entry, in place of one of the same key; OSError if that fails, which changes nothing."""
        text, file = entry_to_json(entry), self.file(entry.key.digest)
        self.path.mkdir(parents=True, exist_ok=True)
        draft = self.path / f".{file.name}.{secrets.token_hex(4)}.tmp"
        try:
            with open(draft, "x", encoding="ascii") as new:
                new.write(text)
                new.flush()
                os.fsync(new.fileno())
            os.replace(draft, file)
        except BaseException:
            with suppress(OSError):
                draft.unlink()
            raise
        with suppress(OSError):  # so that the new name survives a power failure too, where folders can be flushed
            folder = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def sweep(self) -> None:
        """Remove what processes left that died while they wrote."""
        for draft in self.path.glob(".*.tmp"):
            with suppress(FileNotFoundError):
                if time.time() - draft.stat().st_mtime > 3600:  # nobody is at it
                    draft.unlink()

    def tell(self, about: object, message: str) -> None:
        """Warn, the first time that it is about this."""
        if about not in self._told:
            self._told.add(about)
            warn_user(message, TuningCacheWarning)

    def _set_aside(self, file: Path, data: bytes, why: str) -> None:
        aside = file.with_name(f"{file.name}.{secrets.token_hex(4)}.damaged")
        try:
            if self.read_only:
                raise PermissionError
            os.rename(file, aside)
            if aside.read_bytes() != data:  # another process was faster, and this is the entry that it put there since
                os.rename(aside, file)
                return
        except FileNotFoundError:
            return
        except OSError:
            self.tell(file, f"{file} {why}; it is left as it is, and not used")
        else:
            warn_user(f"{file} {why}; it is now {aside}", TuningCacheWarning)


def why_unfit(path: Path) -> str:
    """Return why no cache can be at a path; empty if one can."""
    beginning = _beginning(path)
    if beginning == _SQLITE:
        return _OLD
    return "is a file, and no tuning cache, which is a folder; it is left as it is" if beginning else ""


def check_place(path: Path, *, to_write: bool = False) -> None:
    """Raise TuningCacheError where there is no cache at a path, but something else."""
    why = why_unfit(path)
    if to_write and path.is_dir() and (others := sorted(n for n in os.listdir(path) if not _OURS.fullmatch(n))):
        why = f"is no tuning cache: it has {others[0]}"
    if why:
        raise TuningCacheError(f"{path} {why}")


def _beginning(path: Path) -> bytes:
    """Return the first bytes of a file; none of a folder, or where there is nothing."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_SQLITE))
    except OSError:
        return b""
