"""Whatever is wrong with a tuning cache's file or its folder: the work goes on, and nobody else's file is harmed."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import warnings
from contextlib import closing
from pathlib import Path

import pytest

from cudnnlite.autotune import cache as cache_module
from cudnnlite.autotune import cache_file, sqlite_files
from cudnnlite.autotune.cache import TuningCache
from cudnnlite.autotune.sqlite_files import FILE_SCHEMA
from cudnnlite.errors import TuningCacheError, TuningCacheWarning

from .tuning_entries import LATE, entry, run_child
from .tuning_files import (
    ALL_UNFIT,
    FOREIGN,
    LATER,
    MANY,
    fill,
    found_in,
    names,
    nothing_written,
    restarted,
    run,
    scrub_pages,
    sql,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tuning.sqlite"


@pytest.fixture
def filled(path):
    """The path of a cache with entries."""
    fill(path)
    return path


# ---------------------------------------------------------------- damaged and foreign files


@pytest.mark.parametrize(("what", "damage"), ALL_UNFIT.values(), ids=ALL_UNFIT)
def test_an_unfit_file_is_set_aside(filled, what, damage):
    damage(filled)
    before = filled.read_bytes()
    with pytest.warns(TuningCacheWarning, match=rf"tuning\.sqlite is .*; it is now .*\.{what}-1, and a new") as caught:
        cache = TuningCache(filled)
    assert [warning.filename for warning in caught] == [__file__]
    with cache:
        assert len(cache) == 0
        assert cache.get(entry().key) is None
        cache.put(entry())
    assert names(filled.parent) == ["tuning.sqlite", f"tuning.sqlite.{what}-1"]
    assert filled.with_name(f"tuning.sqlite.{what}-1").read_bytes() == before
    with restarted(filled) as cache:  # without a warning
        assert cache.get(entry().key) == entry()


def test_what_was_set_aside_is_never_overwritten(path):
    for number in (1, 2, 3):
        path.write_text(f"text {number}" * 100)
        with pytest.warns(TuningCacheWarning, match=f"damaged-{number}"):
            TuningCache(path).close()
    for number in (1, 2, 3):
        assert path.with_name(f"tuning.sqlite.damaged-{number}").read_text() == f"text {number}" * 100


@pytest.mark.processes
@pytest.mark.parametrize("owner", ["crashed", "is at work"])
def test_what_lies_beside_the_file_goes_with_it(path, owner):
    """A foreign database whose latest changes are not yet in the file itself: nothing of it is lost."""
    code = "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
    code += "for s in sys.argv[2:]: c.execute(s)\n"
    code += "print(flush=True); input() or os._exit(0)\n"
    code += "c.execute('INSERT INTO t VALUES (43)'); c.close()"
    statements = ["PRAGMA journal_mode = WAL", "CREATE TABLE t (a)", "INSERT INTO t VALUES (42)"]
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, path, *statements], stdin=pipe, stdout=pipe, text=True) as child:
        child.stdout.readline()
        if owner == "crashed":
            child.communicate("\n")
        assert path.with_name("tuning.sqlite-wal").stat().st_size > 0
        with pytest.warns(TuningCacheWarning, match="another application's database"):
            cache = TuningCache(path)
        with cache:
            cache.put(entry())
            if owner != "crashed":
                child.communicate("go on\n")
            cache.put(entry(1))
    aside = path.with_name("tuning.sqlite.foreign-1")
    assert sql(aside, "SELECT a FROM t") == [(42,)] if owner == "crashed" else [(42,), (43,)]
    assert found_in(restarted(path), 2) == [0, 1]
    assert set(names(path.parent)) <= {path.name, *(f"{aside.name}{suffix}" for suffix in ("", "-wal", "-shm"))}


def test_only_one_thread_sets_a_file_aside(path, monkeypatch):
    path.write_text("shopping list\n" * 100)
    calls, start = [], threading.Barrier(3)

    def slowly(*arguments):
        calls.append(arguments)
        threading.Event().wait(0.1)
        return set_aside(*arguments)

    def work(number):
        start.wait()
        with TuningCache(path) as cache:
            cache.put(entry(number))

    set_aside = cache_file.set_aside
    monkeypatch.setattr(cache_file, "set_aside", slowly)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    with pytest.warns(TuningCacheWarning, match="damaged-1"):
        run(threads)
    assert len(calls) == 1
    assert found_in(restarted(path), 3) == [0, 1, 2]


def test_a_link_is_set_aside_and_what_it_leads_to_stays(path):
    target = path.with_name("foreign.db")
    FOREIGN["with a table"](target := Path(shutil.copy(__file__, target)))
    path.symlink_to(target)
    with pytest.warns(TuningCacheWarning, match="foreign-1"), TuningCache(path) as cache:
        cache.put(entry())
    assert sql(target, "SELECT a FROM t") == [(1,)]
    assert path.with_name("tuning.sqlite.foreign-1").is_symlink()
    assert not path.is_symlink()


@pytest.mark.parametrize("blank", ["empty", "a database with nothing in it"])
def test_a_file_with_nothing_in_it_becomes_a_cache(path, blank):
    """So it is after a crash in the middle of making one."""
    path.touch()
    if blank != "empty":
        sql(path, "PRAGMA journal_mode = WAL", "VACUUM")
        assert path.stat().st_size
    with TuningCache(path) as cache:
        assert cache.get(entry().key) is None
        assert len(cache) == 0
        cache.put(entry())
    assert names(path.parent) == ["tuning.sqlite"]
    assert restarted(path).get(entry().key) == entry()


def test_a_file_from_a_newer_version_is_left_alone(filled):
    sql(filled, f"PRAGMA user_version = {FILE_SCHEMA + 1}", "ALTER TABLE entries RENAME TO tunings")
    with nothing_written(filled.parent):
        with pytest.warns(TuningCacheWarning, match=f"schema {FILE_SCHEMA + 1}, from a newer cudnnlite.*left as it is"):
            cache = TuningCache(filled)
        with cache:
            assert cache.get(entry().key) is None
            assert len(cache) == 0
            cache.put(entry())
            assert cache.get(entry().key) == entry()
            assert cache.entries() == [entry()]
            for use in (cache.clear, lambda: cache.merge(filled)):
                with pytest.raises(TuningCacheError, match="from a newer cudnnlite"):
                    use()


def test_one_that_is_replaced_by_a_good_one_is_used_again(filled, tmp_path):
    good = tmp_path / "good"
    shutil.copy(filled, good)
    sql(filled, f"PRAGMA user_version = {FILE_SCHEMA + 1}")
    with pytest.warns(TuningCacheWarning, match="newer"):
        cache = TuningCache(filled)
    with cache:
        cache.put(entry(MANY))
        os.replace(good, filled)
        assert cache.get(entry().key) == entry()
        cache.put(entry(MANY + 1))
    assert found_in(restarted(filled), MANY + 2) == list(range(MANY + 2))


@pytest.mark.parametrize("name", LATER)
@pytest.mark.parametrize("use", ["get", "put", "entries"])
def test_damage_in_the_middle_of_the_work(filled, name, use):
    def work(cache):
        if use == "get":  # some pages are still in SQLite's own memory, but not all of them
            assert set(found_in(cache)) < set(range(MANY))
        elif use == "put":
            for number in range(100, 140):
                cache.put(entry(number))
        else:
            cache.entries()

    with TuningCache(filled) as cache:
        at_hand = [cache.get(entry(number).key) for number in (3, 5)]
        LATER[name](filled)
        before = filled.read_bytes()
        with pytest.warns(TuningCacheWarning, match=r"it is now .*damaged-1, and a new cache is begun") as caught:
            work(cache)
        assert len(caught) == 1
        cache.put(entry(200))
        assert [cache.get(entry(number).key) for number in (3, 5)] == at_hand
    assert names(filled.parent) == ["tuning.sqlite", "tuning.sqlite.damaged-1"]
    if use != "put" and name != "the table is gone":  # which SQLite writes into the file later
        assert filled.with_name("tuning.sqlite.damaged-1").read_bytes() == before
    with restarted(filled) as cache:  # what was at hand is in the new file too
        assert {3, 5, 200} <= set(found_in(cache, 201))
        if use == "put":
            assert set(range(100, 140)) <= set(found_in(cache, 201))


def test_an_entry_that_cannot_be_read_is_passed_over_and_replaced(filled):
    digest = entry(4).key.digest
    sql(filled, f"UPDATE entries SET rows = '[{{}}]' WHERE digest = '{digest}'")
    with restarted(filled) as cache:
        with pytest.warns(TuningCacheWarning, match="an entry that cannot be read, which is passed over"):
            assert cache.get(entry(4).key) is None
        with pytest.warns(TuningCacheWarning, match="has 1 entry that cannot be read, passed over"):
            assert len(cache.entries()) == MANY - 1
        cache.put(entry(4))
    with restarted(filled) as cache:
        assert found_in(cache) == list(range(MANY))


BAD_VALUES = {
    "rows": ["''", "'[]'", "'{}'", "'[1]'", "'nonsense'", "x'ff00'", "7", "'[' || hex(zeroblob(9999)) || ']'"],
    "key": ["'{}'", "''", "5", "key || ' '", "replace(key, 'H200', 'H100')"],
    "digest": ["upper(digest)", "1"],
    "chosen": ["3", "-1", "'first'", "0.5"],
    "tuned_at": ["'today'", "0"],
    "seconds": ["-1", "'long'", "9e999"],
    "title": ["x'00'"],
}


@pytest.mark.parametrize(
    ("column", "value"), [(column, value) for column in BAD_VALUES for value in BAD_VALUES[column]]
)
def test_values_that_were_never_written(filled, column, value, tmp_path):
    sql(filled, f"UPDATE entries SET {column} = {value} WHERE digest = '{entry(4).key.digest}'")
    with restarted(filled) as cache, pytest.warns(TuningCacheWarning, match="1 entry that cannot be read"):
        assert len(cache.entries()) == MANY - 1
    with TuningCache(tmp_path / "other") as other:
        with pytest.warns(TuningCacheWarning, match="1 entry that cannot be read"):
            assert other.merge(filled) == MANY - 1
        assert set(range(MANY)) - set(found_in(other)) == {4}


def test_a_file_that_is_deleted_meanwhile_is_made_again(path):
    with TuningCache(path) as cache:
        cache.put(entry(0))
        for name in names(path.parent):
            (path.parent / name).unlink()
        cache.put(entry(1))
        assert found_in(cache, 2) == [0, 1]  # the first one from memory
    with restarted(path) as cache:
        assert found_in(cache, 2) == [1]


def test_a_file_that_is_replaced_meanwhile_is_used(filled, tmp_path):
    other = tmp_path / "other"
    with TuningCache(other) as cache:
        cache.put(entry(MANY))
    with TuningCache(filled) as cache:
        cache.get(entry(0).key)
        os.replace(other, filled)
        assert cache.get(entry(MANY).key) == entry(MANY)
        assert cache.get(entry(1).key) is None
        cache.put(entry(2))
    assert found_in(restarted(filled), MANY + 1) == [2, MANY]


def test_a_file_that_is_replaced_in_the_middle_of_a_put(filled, tmp_path, monkeypatch):
    insert = cache_module.insert

    def once(connection, records, **options):
        written = insert(connection, records, **options)
        if not (tmp_path / "away").exists():
            filled.rename(tmp_path / "away")
        return written

    with TuningCache(filled) as cache:
        monkeypatch.setattr(cache_module, "insert", once)
        cache.put(entry(MANY))
        monkeypatch.undo()
        cache.put(entry(MANY + 1))
    assert found_in(restarted(filled), MANY + 2) == [MANY, MANY + 1]


# ---------------------------------------------------------------- read-only


def test_a_read_only_cache_is_never_written(filled):
    with nothing_written(filled.parent), restarted(filled, read_only=True) as cache:
        assert cache.read_only
        assert "read-only" in repr(cache)
        assert found_in(cache) == list(range(MANY))
        cache.put(entry(MANY))
        cache.put(entry(0, tuned_at=LATE))
        assert cache.get(entry(MANY).key) == entry(MANY)
        assert cache.get(entry(0).key).tuned_at > entry(0).tuned_at
        assert len(cache) == len(cache.entries()) == MANY + 1
        for use in (cache.clear, lambda: cache.merge(filled)):
            with pytest.raises(TuningCacheError, match=r"tuning\.sqlite is opened read-only"):
                use()
    assert found_in(restarted(filled), MANY + 1) == list(range(MANY))


def test_what_is_put_into_a_read_only_cache_stays_when_much_is_put(filled, monkeypatch):
    monkeypatch.setattr(cache_module, "RECENT", 3)
    with restarted(filled, read_only=True) as cache:
        for number in range(MANY, MANY + 6):
            cache.put(entry(number))
        assert found_in(cache, MANY + 6) == list(range(MANY + 6))


@pytest.mark.parametrize(("what", "damage"), ALL_UNFIT.values(), ids=ALL_UNFIT)
def test_an_unfit_file_is_left_where_it_is_by_a_read_only_cache(filled, what, damage):
    damage(filled)
    with nothing_written(filled.parent):
        with pytest.warns(TuningCacheWarning, match=r"tuning\.sqlite is .*; it is left as it is"):
            cache = restarted(filled, read_only=True)
        with cache:
            assert len(cache) == 0
            assert cache.get(entry().key) is None
            cache.put(entry())
            assert cache.get(entry().key) == entry()


def test_damage_in_the_middle_of_the_work_of_a_read_only_cache(filled):
    with restarted(filled, read_only=True) as cache:
        first = cache.get(entry(3).key)
        scrub_pages(filled)
        with nothing_written(filled.parent), pytest.warns(TuningCacheWarning, match="it is left as it is"):
            assert set(found_in(cache)) < set(range(MANY))
        assert cache.get(entry(3).key) is first


def test_a_read_only_cache_without_a_file(path):
    with pytest.warns(TuningCacheWarning, match="does not exist; the cache is an empty one"):
        cache = restarted(path, read_only=True)
    with cache:
        assert cache.get(entry().key) is None
        assert len(cache) == 0
        cache.put(entry())
        assert not path.exists()
        fill(path, 3)  # now there is one
        assert found_in(cache, 3) == [0, 1, 2]


def test_a_reader_sees_what_a_writer_writes_meanwhile(filled):
    with TuningCache(filled) as writer, restarted(filled, read_only=True) as reader:
        for number in range(MANY, MANY + 10):
            writer.put(entry(number))
            assert reader.get(entry(number).key) == entry(number)


def test_a_reader_sees_what_a_writer_writes_later(filled):
    """The reader has the file open as one that never changes."""
    with restarted(filled, read_only=True) as reader:
        for number in range(MANY, MANY + 10):
            assert reader.get(entry(number).key) is None
            with TuningCache(filled) as writer:
                writer.put(entry(number))
                if number % 2:
                    assert reader.get(entry(number).key) == entry(number)
            assert reader.get(entry(number).key) == entry(number)
        assert found_in(reader, MANY + 10) == list(range(MANY + 10))


# ---------------------------------------------------------------- where nothing can be written


@pytest.fixture
def shared_folder():
    """A folder that every user can reach, as pytest's own cannot be."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for item in (folder, *folder.rglob("*")):
        if not item.is_symlink():
            item.chmod(0o755)
    shutil.rmtree(folder)


# nobody: permissions do not bind root
ANOTHER_USER = "\nif os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
USE = """
cache = TuningCache(path, read_only=READ_ONLY)
found = sum(cache.get(entry(n).key) == entry(n) for n in range(40))
cache.put(entry(40)); cache.put(entry(41))
again = [cache.get(entry(n).key) == entry(n) for n in (40, 41)]
with cache.exclusive("gpu"): pass
result = [found, again, attempt(lambda: len(cache)), told, attempt(cache.clear)]
result.append(attempt(lambda: cache.export(folder + "/copy")))
cache.close()
print(json.dumps(result))
"""


@pytest.mark.processes
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("kind", ["exported", "left in WAL mode"])
def test_a_folder_that_cannot_be_written(shared_folder, read_only, kind):
    """The file is read all the same, and what is put is kept in memory."""
    path = shared_folder / "tuning.sqlite"
    fill(path)
    if kind == "exported":
        with TuningCache(path) as cache:
            cache.export(shared_folder / "exported.sqlite")
        path = shared_folder / "exported.sqlite"
    path.chmod(0o444)
    shared_folder.chmod(0o555)
    with nothing_written(shared_folder):
        found, again, length, told, cleared, exported = run_child(
            ANOTHER_USER + USE.replace("READ_ONLY", str(read_only)), path
        )
    assert found == MANY
    assert again == [True, True]
    assert length == MANY + 2
    assert len(told) == (0 if read_only else 1)
    assert all("TuningCacheWarning" in text and "kept in this process's memory only" in text for text in told)
    assert cleared.startswith(f"TuningCacheError: {path}")
    assert exported.startswith(f"TuningCacheError: {shared_folder}/copy: ")


@pytest.mark.processes
def test_a_file_that_may_not_be_read(shared_folder):
    path = shared_folder / "tuning.sqlite"
    fill(path)
    path.chmod(0)
    shared_folder.chmod(0o555)
    found, again, length, told, cleared, _ = run_child(ANOTHER_USER + USE.replace("READ_ONLY", "False"), path)
    assert (found, again) == (0, [True, True])
    assert len(told) == 1
    assert "cannot be read" in told[0]
    assert all(text.startswith(f"TuningCacheError: {path}: ") for text in (length, cleared))
    path.chmod(0o644)
    assert found_in(restarted(path)) == list(range(MANY))


@pytest.mark.processes
def test_an_unfit_file_in_a_folder_that_cannot_be_written(shared_folder):
    path = shared_folder / "tuning.sqlite"
    path.write_text("shopping list\n" * 100)
    shared_folder.chmod(0o555)
    with nothing_written(shared_folder):
        found, again, length, told, cleared, _ = run_child(ANOTHER_USER + USE.replace("READ_ONLY", "False"), path)
    assert (found, again, length) == (0, [True, True], 2)
    assert len(told) == 1
    assert "it cannot be set aside (Permission denied); it is left as it is" in told[0]
    assert cleared.startswith(f"TuningCacheError: {path} ")


def test_no_folder_can_be_made_at_all(tmp_path):
    """A path below a file: also root cannot make that."""
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "tuning.sqlite"
    with TuningCache(path) as cache:
        assert cache.get(entry().key) is None
        with pytest.warns(TuningCacheWarning, match=r"tuning\.sqlite: .*kept in this process's memory only") as caught:
            cache.put(entry())
        cache.put(entry(1))
        assert len(caught) == 1
        assert found_in(cache, 2) == [0, 1]
        assert len(cache) == 2
        with cache.exclusive("gpu"):
            pass
        with pytest.raises(TuningCacheError, match=r"tuning\.sqlite: (Not a directory|File exists)"):
            cache.clear()
        with pytest.raises(TuningCacheError, match=r"copy: "):
            cache.export(tmp_path / "file" / "copy")
        assert cache.export(tmp_path / "copy") == 2  # what is in memory is not lost
    assert found_in(restarted(tmp_path / "copy"), 2) == [0, 1]


DISK_FULL = """
import resource
with TuningCache(path) as cache:
    for n in range(40): cache.put(entry(n))
    size = max(os.path.getsize(f) for f in (path, path + "-wal") if os.path.exists(f))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10000, resource.RLIM_INFINITY))
    for n in range(40, 140): cache.put(entry(n))
    full = [cache.get(entry(n).key) == entry(n) for n in range(140)]
    length = len(cache)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
    failed = attempt(lambda: cache.export(folder + "/copy"))
    left = sorted(os.listdir(folder))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if AGAIN: cache.put(entry(140))
print(json.dumps([full, length, failed, told, left]))
"""


@pytest.mark.processes
@pytest.mark.parametrize("again", ["by the next put", "when it is closed"])
def test_a_file_that_cannot_grow(path, again):
    """The kernel refuses; later it does not, and what was kept in memory is written too."""
    full, length, failed, told, left = run_child(DISK_FULL.replace("AGAIN", str("put" in again)), path)
    assert full == [True] * 140
    assert length == 140
    assert failed.startswith(f"TuningCacheError: {path.parent}/copy: ")
    assert len(told) == 1
    assert told[0].startswith(f"TuningCacheWarning: {path}: ")
    assert not [name for name in left if "copy" in name]
    assert found_in(restarted(path), 141) == list(range(141 if "put" in again else 140))


@pytest.fixture
def full(monkeypatch):
    """Let files grow no more than to so many pages: a full disk, as SQLite reports it."""
    connect = sqlite_files.connect

    def limit(pages):
        def connect_to_little(path, mode):
            connection = connect(path, mode)
            if mode in ("rw", "rwc"):
                connection.execute(f"PRAGMA max_page_count = {pages}")
            return connection

        monkeypatch.setattr(sqlite_files, "connect", connect_to_little)

    return limit


def test_a_full_disk(filled, full, tmp_path):
    other = tmp_path / "other"
    fill(other, 3 * MANY)

    def put_many(cache):
        for number in range(MANY, 2 * MANY):
            cache.put(entry(number))

    full(1)  # the file may stay as large as it is
    with restarted(filled) as cache:
        with pytest.warns(TuningCacheWarning, match="database or disk is full; what .* memory only") as caught:
            put_many(cache)
        assert len(caught) == 1
        assert found_in(cache, 2 * MANY) == list(range(2 * MANY))
        assert len(cache) == len(cache.entries()) == 2 * MANY
        assert cache.unsaved == MANY
        with nothing_written(tmp_path):
            with pytest.raises(TuningCacheError, match=r"tuning\.sqlite: database or disk is full"):
                cache.merge(other)
            with pytest.raises(TuningCacheError, match="copy: database or disk is full"):
                cache.export(tmp_path / "copy")
            with pytest.raises(TuningCacheError, match="other: database or disk is full"):
                cache.export(other)  # which is as it was
        assert found_in(cache, 3 * MANY) == list(range(2 * MANY))
        full(2**30)
        cache.put(entry(2 * MANY))
    assert found_in(restarted(filled), 3 * MANY) == list(range(2 * MANY + 1))


def test_a_full_disk_from_the_start(path, full):
    full(1)
    with TuningCache(path) as cache:
        with pytest.warns(TuningCacheWarning, match="database or disk is full"):
            cache.put(entry())
        assert found_in(cache, 1) == [0]
        full(2**30)
        cache.put(entry(1))
    assert found_in(restarted(path), 2) == [0, 1]
    assert names(path.parent) == ["tuning.sqlite"]


def test_somebody_writes_for_too_long(filled, monkeypatch):
    monkeypatch.setattr(sqlite_files, "BUSY_SECONDS", 0.05)
    with restarted(filled) as cache, closing(sqlite3.connect(filled, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.warns(TuningCacheWarning, match="database is locked; what is tuned is kept"):
            cache.put(entry(MANY))
        assert found_in(cache, MANY + 1) == list(range(MANY + 1))  # reading goes on
        other.execute("ROLLBACK")
        cache.put(entry(MANY + 1))
    assert found_in(restarted(filled), MANY + 2) == list(range(MANY + 2))


def test_warnings_that_are_errors_lose_nothing(path):
    path.write_text("shopping list\n" * 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TuningCacheWarning, match="damaged-1"):
            TuningCache(path)
    assert names(path.parent) == ["tuning.sqlite", "tuning.sqlite.damaged-1"]
    assert len(restarted(path)) == 0
