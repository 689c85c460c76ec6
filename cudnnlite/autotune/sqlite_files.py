"""Opening a SQLite file as a tuning cache, and telling why it is none."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

from cudnnlite.autotune.entries import PROBE

APPLICATION_ID = 0x63444E4C  # "cDNL", in SQLite's header: whose file it is
FILE_SCHEMA = 1  # of the tables; a file of an older one is to be brought up to date where it is opened for writing
SIDECARS = ("-wal", "-shm", "-journal")
BUSY_SECONDS = 10.0  # how long to wait while another process writes

_SMALLEST = 512  # bytes of a SQLite file; one of a single byte would pass for an empty one


class Unfit(Exception):  # noqa: N818  (a verdict, which never leaves the package)
    """Why a file cannot be used as a cache.

    Attributes
    ----------
    what : str
        "absent", "empty", "damaged", "foreign" or "newer".
    """

    def __init__(self, what: str, why: str) -> None:
        super().__init__(why)
        self.what = what

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing to lose: a cache may begin here."""
        return self.what in ("absent", "empty")

    @property
    def is_newer(self) -> bool:
        """Whether a newer version of cudnnlite wrote it."""
        return self.what == "newer"


def is_damage(error: Exception) -> bool:
    """Tell whether SQLite says that a file is no database, or a broken one, or that its table is another one."""
    # the kinds of trouble that may pass (locked, full, read-only, input and output) are subclasses
    return type(error) is sqlite3.DatabaseError or str(error).startswith(("no such table", "no such column"))


def open_cache(path: Path, *, writable: bool, thorough: bool = False) -> tuple[sqlite3.Connection, bool]:
    """Return a connection to a cache that exists, and whether SQLite takes it as immutable.

    Parameters
    ----------
    path : Path
        The file.
    writable : bool
        Whether it may be written; if the file system refuses, it is opened for reading.
    thorough : bool
        Whether to look at every page.

    Raises
    ------
    Unfit
        It is not a cache, or a broken one.
    sqlite3.Error, OSError
        It cannot be read now.
    """
    if 0 < os.stat(path).st_size < _SMALLEST:
        raise Unfit("damaged", "is not a SQLite file")
    # A file in WAL mode is read with files beside it, which SQLite makes, and a reader cannot remove.  Where there are none
    # nobody has the file open, and it is complete.
    beside = [suffix for suffix in SIDECARS if _size(f"{path}{suffix}") is not None]
    modes = ["ro", "immutable"] if beside else ["immutable"]
    refusal: sqlite3.OperationalError | None = None
    for mode in ["rw", *modes] if writable else modes:
        if mode == "immutable" and any(_size(f"{path}{suffix}") for suffix in ("-wal", "-journal")):
            continue  # the file alone is not
        try:
            return _checked(path, mode, thorough), mode == "immutable"
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise
            refusal = refusal or error
    assert refusal is not None
    raise refusal


def identity(path: Path, *, immutable: bool = False) -> tuple[object, ...] | None:
    """Return what tells the file at a path from another one; None if there is none.

    With `immutable` also from the same file after a change: SQLite does not look for any in a file that it takes as immutable.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    file = (found.st_dev, found.st_ino)
    if not immutable:
        return file
    return (*file, found.st_mtime_ns, found.st_size, *(_size(f"{path}{suffix}") is not None for suffix in SIDECARS))


@contextmanager
def begun(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file to make a cache in it; close it in the end."""
    with closing(connect(path, "rwc")) as connection:
        _prepare(connection)
        yield connection


def write_alone(path: Path, work: Callable[[sqlite3.Connection], object]) -> None:
    """Make a file of its own, with nothing beside it, by `work(connection)`; a cache of its name is replaced at once or not.

    Raises
    ------
    Unfit
        What has its name is not a cache.
    sqlite3.Error, OSError
        It could not be written, or what has its name is in use.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with closing(connect(draft, "rwc")) as connection:
            connection.execute("PRAGMA journal_mode = MEMORY")  # it is of no use unfinished
            connection.execute("PRAGMA synchronous = FULL")
            work(connection)
        if _size(path):
            _stop_wal(path)
        for suffix in SIDECARS:
            if os.path.lexists(f"{path}{suffix}"):  # it would be taken for the new file's
                raise FileExistsError(0, f"it is in use: there is {path.name}{suffix}")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _stop_wal(path: Path) -> None:
    """Bring everything into the file itself; an error if somebody else has it open."""
    connection, _ = open_cache(path, writable=True)
    with closing(connection):
        connection.execute("PRAGMA busy_timeout = 1000")
        connection.execute("PRAGMA journal_mode = DELETE")


def _checked(path: Path, mode: str, thorough: bool) -> sqlite3.Connection:
    connection = connect(path, mode)
    try:
        _check(connection, thorough)
        if mode == "rw":  # not before it is known to be ours
            _prepare(connection)
        return connection
    except BaseException:
        connection.close()
        raise


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open a file as it is: 'ro', 'rw', 'rwc' or 'immutable'."""
    how = "immutable=1" if mode == "immutable" else f"mode={mode}"
    connection = sqlite3.connect(
        f"file://{quote(os.fsencode(path))}?{how}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA trusted_schema = OFF")  # whoever made the file
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")  # damaged text is found out later
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    """Set how a file is written."""
    connection.execute("PRAGMA synchronous = FULL")  # what was saved survives a power failure
    with suppress(sqlite3.OperationalError):  # read-only, or somebody is just reading: they take turns
        connection.execute("PRAGMA journal_mode = WAL")  # readers and a writer work at once


def _check(connection: sqlite3.Connection, thorough: bool) -> None:
    """Raise Unfit unless it is a cache that this version can use."""
    try:
        connection.execute("BEGIN")  # one state of the file for all questions
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (things,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != APPLICATION_ID:
            if not (application or version or things):
                raise Unfit("empty", "holds nothing")
            raise Unfit("foreign", "is another application's database")
        if version > FILE_SCHEMA:
            raise Unfit("newer", f"is of schema {version}, from a newer cudnnlite; this one has {FILE_SCHEMA}")
        if version != FILE_SCHEMA:
            raise Unfit("damaged", f"is of schema {version}, which no cudnnlite has written")
        connection.execute(PROBE)
        if thorough:
            (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if verdict != "ok":
                raise Unfit("damaged", f"is damaged ({verdict.splitlines()[-1]})")
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        raise Unfit("damaged", f"is damaged ({error})") from error


def _size(path: str | Path) -> int | None:
    try:
        return os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return None
