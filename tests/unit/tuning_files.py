"""Files of tuning caches, whole and damaged, and what the tests look at in them."""

import os
import sqlite3
import tempfile
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

from cudnnlite.autotune.cache import TuningCache

from .tuning_entries import entry

MANY = 40  # enough for a table of several pages


@cache
def content(count, **options):
    """The bytes of a cache with entries, made once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tuning.sqlite")
        with TuningCache(path) as made:
            for number in range(count):
                made.put(entry(number, **options))
        assert names(path.parent) == ["tuning.sqlite"]
        return path.read_bytes()


def fill(path, count=MANY, **options):
    """Make a cache with entries, which nobody has open."""
    assert not path.exists()
    path.write_bytes(content(count, **options))


def names(folder):
    return sorted(item.name for item in folder.iterdir())


def run(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def found_in(cache, count=MANY):
    """The numbers of the entries that a cache finds, each as it was put."""
    found = []
    for number in range(count):
        got = cache.get(entry(number).key)
        if got is not None:
            assert got == entry(number)
            found.append(number)
    return found


def sql(path, *statements):
    with closing(sqlite3.connect(path)) as connection:
        found = [connection.execute(statement).fetchall() for statement in statements]
        connection.commit()
    return found[-1]


def restarted(path, **options):
    """A cache that has nothing in its memory."""
    return TuningCache(path, **options)


@contextmanager
def nothing_written(folder):
    """Whatever happens inside, the files are the same afterwards, byte for byte."""
    before = {item.name: item.read_bytes() for item in folder.iterdir() if item.is_file()}
    yield
    assert {item.name: item.read_bytes() for item in folder.iterdir() if item.is_file()} == before


def overwrite(path, *, at, with_what):
    data = bytearray(path.read_bytes())
    data[at : at + len(with_what)] = with_what
    path.write_bytes(data)


def truncate(size):
    return lambda path: os.truncate(path, size if size > 0 else path.stat().st_size + size)


def scrub_pages(path):
    """Every page but the first one is noise: the file opens, and fails when it is read."""
    overwrite(path, at=4096, with_what=bytes(range(256)) * ((path.stat().st_size - 4096) // 256))


# damage that is seen when the file is opened
AT_ONCE = {
    "text": lambda path: path.write_text("shopping list\n" * 100),
    "one byte": lambda path: path.write_bytes(b"x"),
    "zeros": lambda path: path.write_bytes(bytes(8192)),
    "noise": lambda path: path.write_bytes(bytes(range(7, 250)) * 50),
    "half a header": truncate(50),
    "a header": truncate(100),
    "half a page": truncate(2048),
    "one page": truncate(4096),
    "the last page is missing": truncate(-4096),
    "the magic is scrubbed": lambda path: overwrite(path, at=0, with_what=b"SQLite fromat 3\0"),
    "the schema is scrubbed": lambda path: overwrite(path, at=100, with_what=bytes(200)),
    "no table": lambda path: sql(path, "DROP TABLE entries"),
    "another table": lambda path: sql(path, "ALTER TABLE entries RENAME COLUMN timing TO pastime"),
    "schema 0": lambda path: sql(path, "PRAGMA user_version = 0"),
    "a schema that never was": lambda path: sql(path, "PRAGMA user_version = -7"),
}
FOREIGN = {
    "with a table": lambda path: path.unlink() or sql(path, "CREATE TABLE t (a)", "INSERT INTO t VALUES (1)"),
    "with a mark": lambda path: sql(path, "PRAGMA application_id = 252006675"),
    "with a version": lambda path: path.unlink() or sql(path, "PRAGMA user_version = 3"),
    "in WAL mode": lambda path: path.unlink() or sql(path, "PRAGMA journal_mode = WAL", "CREATE TABLE t (a)"),
}
ALL_UNFIT = {
    **{name: ("damaged", do) for name, do in AT_ONCE.items()},
    **{n: ("foreign", do) for n, do in FOREIGN.items()},
}

# damage that happens while the file is open, or is seen only where it is read
LATER = {
    "the pages are noise": scrub_pages,
    "the pages are zeros": lambda path: overwrite(path, at=4096, with_what=bytes(path.stat().st_size - 4096)),
    "the table is gone": lambda path: sql(path, "DROP TABLE entries"),
    "it is text": lambda path: path.write_text("shopping list\n" * 5000),
    "it was shortened": truncate(4096),
}
