"""`CacheFile`: the SQLite file of a tuning cache: opened, checked, begun, and set aside where it is damaged or not ours.

Nothing here opens the file but SQLite: closing any other descriptor of it would drop the locks that SQLite holds.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from cudnnlite.autotune import sqlite_files
from cudnnlite.autotune.entries import CREATE, SELECT, Record, TuningEntry, insert, readable, record_of
from cudnnlite.autotune.locks import exclusive, lock_paths
from cudnnlite.autotune.sqlite_files import APPLICATION_ID, FILE_SCHEMA, SIDECARS, Unfit, identity, is_damage
from cudnnlite.errors import TuningCacheError, TuningCacheWarning
from cudnnlite.warn import warn_user

_ATTEMPTS = 4
_FAILURES = (sqlite3.Error, OSError, UnicodeError, OverflowError)
_abandoned: list[sqlite3.Connection] = []

T = TypeVar("T")


class CacheFile:
    """The file behind a cache.  Whoever uses it from several threads holds a lock meanwhile.

    It is opened when it is first needed, and again when the file at its path is another one, or the process is.

    Parameters
    ----------
    path : Path
        Absolute.  The file need not exist; it is made when something is first written.
    read_only : bool
        Whether it is never written, made or set aside.
    survivors : callable, optional
        Returns the entries that a file begins with that replaces a damaged one.
    """

    def __init__(
        self, path: Path, *, read_only: bool = False, survivors: Callable[[], Iterable[TuningEntry]] = tuple
    ) -> None:
        self.path = path
        self.read_only = read_only
        self._survivors = survivors
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[object, ...] | None = None  # the identity of the file that is open
        self._immutable = False
        self._pid = 0
        self._barred: tuple[tuple[object, ...] | None, str] | None = None

    @property
    def barred(self) -> str:
        """Why the file is left alone, and the cache is an empty one; the user has been warned.  Empty if it is not."""
        return self._barred[1] if self._barred is not None and self._barred[0] == self._identity() else ""

    def look(self) -> None:
        """Open the file if there is one; TuningCacheError if it cannot be."""
        self.read("SELECT 1")

    def read(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query; none where there is no file, or a barred one.

        Raises
        ------
        TuningCacheError
            The file cannot be read.
        """
        return self._run(lambda connection: connection.execute(sql, parameters).fetchall(), create=False) or []

    def write(self, work: Callable[[sqlite3.Connection], T], *, create: bool = True) -> T | None:
        """Do `work` in one transaction; it may be done again if the file is replaced meanwhile.

        Parameters
        ----------
        work : callable
            Is called with the connection.
        create : bool
            Whether a file is made if there is none.  If not, nothing is done without one.

        Returns
        -------
        object
            What the work returns; None where there is no file.

        Raises
        ------
        TuningCacheError
            The file cannot be written; nothing of the work is in it.
        """
        if self.read_only:
            raise TuningCacheError(f"{self.path} is opened read-only")
        return self._run(partial(_transaction, work), create=create, writes=True)

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._pid == os.getpid():
            connection.close()
        else:
            # forked by something that did not tell Python: to close it would touch what the parent uses
            _abandoned.append(connection)

    def _run(self, work: Callable[[sqlite3.Connection], T], *, create: bool, writes: bool = False) -> T | None:
        thorough = False
        for _ in range(_ATTEMPTS):
            try:
                connection = self._connect(create, thorough)
                if connection is None:
                    return None
                result = work(connection)
                # a file that was replaced meanwhile took with it what was written; one that is taken as immutable and was
                # changed was perhaps not read as it ever was
                if not (writes or self._immutable) or self._identity() == self._opened:
                    return result
            except _FAILURES as error:
                self.close()
                if self._immutable and self._identity() != self._opened:
                    continue
                if thorough or not is_damage(error):
                    raise TuningCacheError(f"{self.path}: {_told(error)}") from error
                thorough = True
        raise TuningCacheError(f"{self.path}: it changes again and again while it is used")

    def _identity(self) -> tuple[object, ...] | None:
        return identity(self.path, immutable=self._immutable)

    def _connect(self, create: bool, thorough: bool) -> sqlite3.Connection | None:
        """Return the connection; None where there is nothing to read and nothing may be made."""
        if self._connection is not None:
            if self._pid == os.getpid() and self._identity() == self._opened:
                return self._connection
            self.close()
        if self.barred:
            self._refuse(create)
            return None
        try:
            return self._open(thorough)
        except Unfit as unfit:
            if unfit.is_blank and not create:
                return None
            if unfit.is_newer or self.read_only:
                return self._bar(str(unfit), create)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # one at a time: what was damaged a moment ago may be another process's new file by now
        with exclusive(f"{self.path}", *lock_paths(self.path)):
            return self._begin(create, thorough)

    def _begin(self, create: bool, thorough: bool) -> sqlite3.Connection | None:
        """Make the file, after setting aside what is in its place."""
        records: list[Record] = []
        moved = ""
        try:
            return self._open(thorough)  # another process was faster
        except Unfit as unfit:
            if unfit.is_newer:
                return self._bar(str(unfit), create)
            if not unfit.is_blank:
                try:
                    aside = set_aside(self.path, unfit.what)
                except OSError as error:
                    return self._bar(f"{unfit}, and it cannot be set aside ({_told(error)})", create)
                moved = f"{self.path} {unfit}; it is now {aside}, and a new cache is begun"
                records = [record_of(entry) for entry in self._survivors()]
        try:
            with sqlite_files.begun(self.path) as connection:
                _transaction(partial(_make_table, records=records), connection)
        finally:
            if moved:
                warn_user(moved, TuningCacheWarning)
        return self._open(thorough=False)

    def _open(self, thorough: bool) -> sqlite3.Connection:
        """Open and check the file; Unfit if it is not there or not a cache."""
        while True:
            self._immutable = False
            before = self._identity()
            if before is None:
                raise Unfit("absent", "does not exist")
            try:
                connection, self._immutable = sqlite_files.open_cache(
                    self.path, writable=not self.read_only, thorough=thorough
                )
            except FileNotFoundError:
                continue
            self._opened = self._identity()
            if self._opened is not None and self._opened[:2] == before:
                self._connection, self._pid, self._barred = connection, os.getpid(), None
                return connection
            connection.close()

    def _bar(self, why: str, create: bool) -> sqlite3.Connection | None:
        """Leave the file alone until there is another one."""
        self._immutable = False
        self._barred = self._identity(), why
        warn_user(
            f"{self.path} {why}; it is left as it is, and the cache is an empty one in memory", TuningCacheWarning
        )
        self._refuse(create)
        return None

    def _refuse(self, create: bool) -> None:
        if create:
            raise TuningCacheError(f"{self.path} {self.barred}")


def read_cache(path: Path) -> tuple[list[TuningEntry], int]:
    """Return the entries of a cache file, and how many it has that cannot be read.

    Raises
    ------
    TuningCacheError
        It is not there, cannot be read, or is not a cache.
    """
    before = after = None
    try:
        while before is None or after != before:
            before = identity(path, immutable=True)
            connection, immutable = sqlite_files.open_cache(path, writable=False)
            with closing(connection):
                found = readable(connection.execute(SELECT))
            after = identity(path, immutable=True) if immutable else before
        return found
    except FileNotFoundError:
        raise TuningCacheError(f"{path} does not exist") from None
    except Unfit as unfit:
        raise TuningCacheError(f"{path} {unfit}: it is no tuning cache that could be read") from unfit
    except _FAILURES as error:
        raise TuningCacheError(f"{path}: {_told(error)}") from error


def write_cache(path: Path, entries: Iterable[TuningEntry]) -> None:
    """Write a cache file with nothing beside it; one that is there is replaced as a whole, or is as it was.

    Raises
    ------
    TuningCacheError
        It cannot be written, is in use, or is not a cache.
    """
    work = partial(_make_table, records=[record_of(entry) for entry in entries])
    try:
        with exclusive(f"{path}", *lock_paths(path)):
            sqlite_files.write_alone(path, partial(_transaction, work))
    except Unfit as unfit:
        raise TuningCacheError(f"{path} {unfit}: it is no tuning cache that could be replaced") from unfit
    except _FAILURES as error:
        raise TuningCacheError(f"{path}: {_told(error)}") from error


def _transaction(work: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
        return result
    except BaseException:
        with suppress(sqlite3.Error):  # it has rolled back by itself where the disk is full
            connection.execute("ROLLBACK")
        raise


def _make_table(connection: sqlite3.Connection, records: Iterable[Record]) -> None:
    connection.execute(CREATE)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FILE_SCHEMA}")
    insert(connection, records)


def set_aside(path: Path, what: str) -> Path:
    """Rename a file, with what SQLite keeps beside it, to a name that nothing has; return that."""
    for number in count(1):
        aside = path.with_name(f"{path.name}.{what}-{number}")
        if not any(os.path.lexists(f"{aside}{suffix}") for suffix in ("", *SIDECARS)):
            break
    for suffix in (*SIDECARS, ""):  # the file last: a new one in its place would take over what lies beside it
        with suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{aside}{suffix}")
    return aside


def _told(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
