"""The tuning cache in one process: what is put is found, whatever is wrong with the file, and nobody else's file is harmed."""

import gc
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import warnings
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from cudnnlite import ArgumentError
from cudnnlite._raw.enums import ConvolutionFwdAlgo
from cudnnlite.autotune import cache as cache_module
from cudnnlite.autotune import cache_file, sqlite_files
from cudnnlite.autotune.cache import CACHE_VARIABLE, TuningCache
from cudnnlite.autotune.cache_path import default_path
from cudnnlite.autotune.keys import SCHEMA, TuningKey
from cudnnlite.errors import ClosedError, TuningCacheError, TuningCacheWarning

from .tuning_entries import EARLY, H100, H200, LATE, entry, rnn, run_child

MANY = 40  # enough for a table of several pages


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tuning.sqlite"


@pytest.fixture
def filled(path):
    """The path of a cache with entries."""
    fill(path)
    return path


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


# ---------------------------------------------------------------- put and get


@pytest.mark.parametrize("where", ["file", ":memory:"])
def test_what_is_put_is_found(path, where):
    with TuningCache(path if where == "file" else where) as cache:
        assert cache.get(entry().key) is None
        assert len(cache) == 0
        cache.put(entry())
        cache.put(entry(problem=rnn()))
        assert cache.get(entry().key) == entry()
        assert cache.get(TuningKey(entry().key.text)) == entry()
        assert cache.get(entry(problem=rnn()).key).rows[0].algorithm.name == "STANDARD"
        assert cache.get(entry(1).key) is None
        assert len(cache) == 2


def test_it_is_found_again_from_the_file(path):
    fill(path)
    with restarted(path) as cache:
        assert found_in(cache) == list(range(MANY))
        assert len(cache) == MANY
    assert names(path.parent) == ["tuning.sqlite"]  # nothing else is left beside it


def test_rows_come_back_from_the_file_whatever_they_hold(path):
    odd = [
        replace(entry().rows[0], algorithm=ConvolutionFwdAlgo(17), time_ms=float("nan"), error=float("inf")),
        replace(entry().rows[0], max_error=-float("inf"), reserve=None, deterministic=None, why_not="zu groß\n\0 \"'"),
    ]
    put = replace(entry(), rows=tuple(odd), title="Größe 卷积", chosen=1)
    with TuningCache(path) as cache:
        cache.put(put)
    with restarted(path) as cache:
        got = cache.get(put.key)
    assert repr(got) == repr(put)
    assert got.rows[0].algorithm is ConvolutionFwdAlgo(17)


def test_the_last_one_put_counts(path):
    with TuningCache(path) as cache:
        for tuned_at, time_ms in ((LATE, 0.5), (EARLY, 0.25)):  # also where a clock was wrong
            cache.put(entry(tuned_at=tuned_at, time_ms=time_ms))
    with restarted(path) as cache:
        assert cache.get(entry().key).rows[0].time_ms == 0.25
        assert len(cache) == 1


def test_an_entry_of_another_cudnn_is_kept_but_not_returned(path):
    other = replace(H200, cudnn=91900)
    fill(path, 1, device=other)
    with restarted(path) as cache:
        assert cache.get(entry().key) is None
        cache.put(entry())
        assert cache.get(entry().key).key.device == H200
        assert {kept.key.device.cudnn for kept in cache.entries()} == {91900, 92800}


def test_what_another_cache_has_put_is_found(path):
    with TuningCache(path) as one, TuningCache(path) as other:
        assert other.get(entry().key) is None  # there was no file yet
        one.put(entry())
        assert other.get(entry().key) == entry()
        other.put(entry(1))
        assert one.get(entry(1).key) == entry(1)


def test_what_is_at_hand_is_bounded_and_the_rest_is_in_the_file(path, monkeypatch):
    monkeypatch.setattr(cache_module, "RECENT", 3)
    with TuningCache(path) as cache:
        for number in range(5):
            cache.put(entry(number))
        assert cache.get(entry(2).key) is cache.get(entry(2).key)
        cache.get(entry(0).key)  # now 3 is the oldest at hand, then 4, 2, 0 are left
        reads = []
        read = cache._file.read
        monkeypatch.setattr(cache._file, "read", lambda *query: reads.append(query) or read(*query))
        for number in (4, 2, 0):
            assert cache.get(entry(number).key) == entry(number)
        assert reads == []
        assert found_in(cache, 5) == [0, 1, 2, 3, 4]
        assert reads


def test_filters(path):
    with TuningCache(path) as cache:
        put = [entry(0, tuned_at=LATE), entry(1), entry(0, device=H100), entry(problem=rnn(), device=H100)]
        put.append(entry(2, device=replace(H200, cudnn=91900)))
        for each in put:
            cache.put(each)
        assert cache.entries() == sorted(put, key=lambda each: (each.tuned_at, each.key.digest))
        assert cache.entries(gpu=H100.gpu, kind="convolution_forward") == [put[2]]
        assert cache.entries(cudnn=91900) == [put[4]]
        assert cache.entries(gpu="no such GPU") == []
        assert cache.clear(gpu=H100.gpu, kind="rnn_forward") == 1
        assert cache.get(put[3].key) is None
        assert cache.clear(cudnn=92800) == 3
        assert cache.entries() == [put[4]]
        assert cache.clear() == 1
        assert len(cache) == 0
        cache.put(entry())
        assert cache.get(entry().key) == entry()


@pytest.mark.parametrize("method", ["entries", "clear", "export"])
@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"cudnn": "9.28"}, "cudnn='9.28' is not of type int"),
        ({"cudnn": True}, "cudnn=True is not of type int"),
        ({"gpu": 1}, "gpu=1 is not of type str"),
        (
            {"kind": "convolution"},
            "kind='convolution' is not a kind of problem; allowed: convolution_forward, rnn_forward",
        ),
    ],
)
def test_a_filter_that_accepts_nothing(filled, method, filters, message):
    with restarted(filled) as cache, pytest.raises(ArgumentError, match=message):
        getattr(cache, method)(*[filled.with_name("other")] * (method == "export"), **filters)
    assert names(filled.parent) == ["tuning.sqlite"]


def test_arguments_of_a_wrong_type(path):
    with TuningCache(path) as cache:
        with pytest.raises(ArgumentError, match="key='text' is not a TuningKey"):
            cache.get("text")
        with pytest.raises(ArgumentError, match="entry=None is not a TuningEntry"):
            cache.put(None)
        with pytest.raises(ArgumentError, match="is no key of a tuning"):
            cache.put(replace(entry(), key=TuningKey("{}")))
        with pytest.raises(ArgumentError, match="workspace='much' of a row"):
            cache.put(replace(entry(), rows=(replace(entry().rows[0], workspace="much"),)))
        assert len(cache) == 0
    with pytest.raises(ArgumentError, match="read_only=1"):
        TuningCache(path, read_only=1)
    assert not path.exists()


def test_a_closed_cache(path):
    cache = TuningCache(path)
    cache.put(entry())
    cache.close()
    cache.close()
    assert "closed" in repr(cache)
    uses = [
        lambda: cache.get(entry().key), lambda: cache.put(entry()), cache.entries, lambda: len(cache), cache.clear,
        lambda: cache.merge(path), lambda: cache.export(path.with_name("other")),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(ClosedError, match="is closed"):
            use()


def test_a_cache_that_is_never_closed_loses_nothing(path):
    TuningCache(path).put(entry())
    gc.collect()  # a connection that is left open would warn, from Python 3.13 on
    assert names(path.parent) == ["tuning.sqlite"]
    assert restarted(path).get(entry().key) == entry()


def test_threads(path):
    """Each puts its own and one that all put, and reads what others do, through one cache."""
    failures = []

    def work(cache, first):
        try:
            for number in range(first, first + 10):
                cache.put(entry(number))
                cache.put(entry(1000))
                assert cache.get(entry(number).key) == entry(number)
                assert cache.get(entry(1000).key) == entry(1000)
                assert len(cache.entries()) >= number - first + 2
        except BaseException as error:
            failures.append(error)

    with TuningCache(path) as one, TuningCache(path) as other:
        run([threading.Thread(target=work, args=((one, other)[n % 2], 10 * n)) for n in range(6)])
        assert failures == []
        assert len(one) == len(other) == 61
    with restarted(path) as cache:
        assert found_in(cache, 60) == list(range(60))


# ---------------------------------------------------------------- where it is


def test_the_default_path(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    assert default_path() == tmp_path / "cudnnlite" / "tuning.sqlite"
    with TuningCache() as cache:
        assert cache.path == default_path()
        assert cache.get(entry().key) is None
        assert not default_path().parent.exists()  # nothing is made before there is something to keep
        cache.put(entry())
    assert default_path().exists()


def test_the_environment_says_where(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not"))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "here" / "it.sqlite"))
    with TuningCache() as cache:
        cache.put(entry())
    assert cache.path == tmp_path / "here" / "it.sqlite"
    assert cache.path.exists()
    with TuningCache(tmp_path / "given") as cache:  # which counts more
        assert cache.path == tmp_path / "given"
    monkeypatch.setenv(CACHE_VARIABLE, ":memory:")
    assert TuningCache().path == ":memory:"
    monkeypatch.setenv(CACHE_VARIABLE, "")
    assert TuningCache().path == tmp_path / "not" / "cudnnlite" / "tuning.sqlite"
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    with pytest.raises(ArgumentError, match=rf"^{CACHE_VARIABLE}='.*' is a folder, not a file"):
        TuningCache()


def test_a_relative_path_is_meant_from_where_one_is_now(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with TuningCache("a name with #?%.sqlite") as cache:
        (tmp_path / "sub").mkdir()
        monkeypatch.chdir(tmp_path / "sub")
        cache.put(entry())
        assert cache.path == tmp_path / "a name with #?%.sqlite"
    assert names(tmp_path) == ["a name with #?%.sqlite", "sub"]


def test_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert TuningCache("~/tuning").path == tmp_path / "tuning"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "path='' is not the path of a file"),
        ("a\0b", "is not the path of a file"),
        (b"tuning", "path=b'tuning' is not the path of a file"),
        (3, "path=3 is not the path of a file"),
        (os.devnull, f"path='{os.devnull}' is a device, not a file"),
        ("/", "path='/' is a folder, not a file"),
    ],
)
def test_what_is_no_path(given, message):
    with pytest.raises(ArgumentError, match=message):
        TuningCache(given)
    with TuningCache(":memory:") as cache:
        for use in (cache.export, cache.merge):
            with pytest.raises(ArgumentError, match=message):
                use(given)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


# ---------------------------------------------------------------- damaged and foreign files


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

    set_aside = cache_file._set_aside
    monkeypatch.setattr(cache_file, "_set_aside", slowly)
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
    sql(filled, f"PRAGMA user_version = {SCHEMA + 1}", "ALTER TABLE entries RENAME TO tunings")
    with nothing_written(filled.parent):
        with pytest.warns(TuningCacheWarning, match=f"schema {SCHEMA + 1}, from a newer cudnnlite.*left as it is"):
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
    sql(filled, f"PRAGMA user_version = {SCHEMA + 1}")
    with pytest.warns(TuningCacheWarning, match="newer"):
        cache = TuningCache(filled)
    with cache:
        cache.put(entry(MANY))
        os.replace(good, filled)
        assert cache.get(entry().key) == entry()
        cache.put(entry(MANY + 1))
    assert found_in(restarted(filled), MANY + 2) == list(range(MANY + 2))


# damage that happens while the file is open, or is seen only where it is read
LATER = {
    "the pages are noise": scrub_pages,
    "the pages are zeros": lambda path: overwrite(path, at=4096, with_what=bytes(path.stat().st_size - 4096)),
    "the table is gone": lambda path: sql(path, "DROP TABLE entries"),
    "it is text": lambda path: path.write_text("shopping list\n" * 5000),
    "it was shortened": truncate(4096),
}


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
    connect = sqlite_files._connect

    def limit(pages):
        def connect_to_little(path, mode):
            connection = connect(path, mode)
            if mode in ("rw", "rwc"):
                connection.execute(f"PRAGMA max_page_count = {pages}")
            return connection

        monkeypatch.setattr(sqlite_files, "_connect", connect_to_little)

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


# ---------------------------------------------------------------- export and merge


def test_an_export_is_one_file(filled, tmp_path):
    copy = tmp_path / "copy.sqlite"
    with restarted(filled) as cache:
        cache.put(entry(problem=rnn(), device=H100))
        assert cache.export(copy) == MANY + 1
        assert not [name for name in names(tmp_path) if name.startswith(("copy.sqlite-", ".copy"))]
    assert sql(copy, "PRAGMA journal_mode", "PRAGMA integrity_check") == [("ok",)]
    assert sql(copy, "PRAGMA journal_mode") == [("delete",)]
    with nothing_written(tmp_path), restarted(copy, read_only=True) as cache:
        assert found_in(cache) == list(range(MANY))
        assert cache.get(entry(problem=rnn(), device=H100).key) == entry(problem=rnn(), device=H100)


def test_an_export_of_some(filled, tmp_path):
    with restarted(filled) as cache:
        cache.put(entry(problem=rnn(), device=H100))
        assert cache.export(tmp_path / "a", gpu=H100.gpu) == 1
        assert cache.export(tmp_path / "b", cudnn=1) == 0
        assert cache.export(tmp_path / "c", kind="convolution_forward") == MANY
    assert restarted(tmp_path / "a", read_only=True).entries() == [entry(problem=rnn(), device=H100)]
    assert len(restarted(tmp_path / "b", read_only=True)) == 0
    assert len(restarted(tmp_path / "c", read_only=True)) == MANY


def test_an_export_from_memory(tmp_path):
    with TuningCache(":memory:") as cache:
        cache.put(entry())
        assert cache.export(tmp_path / "copy") == 1
    assert restarted(tmp_path / "copy").get(entry().key) == entry()


def test_an_export_replaces_an_older_export(filled, tmp_path):
    copy = tmp_path / "copy"
    fill(copy, 1, device=H100)
    with restarted(filled) as cache, restarted(copy, read_only=True) as reader:
        assert len(reader) == 1
        reader.close()
        cache.export(copy)
        cache.export(copy)
    assert found_in(restarted(copy), MANY) == list(range(MANY))
    assert len(restarted(copy)) == MANY


def test_an_export_over_an_empty_file(filled, tmp_path):
    (tmp_path / "copy").touch()
    with restarted(filled) as cache:
        cache.export(tmp_path / "copy")
    assert len(restarted(tmp_path / "copy")) == MANY


@pytest.mark.parametrize("damage", [do for _, do in ALL_UNFIT.values()], ids=ALL_UNFIT)
def test_an_export_never_overwrites_what_is_not_a_cache(filled, tmp_path, damage):
    target = tmp_path / "target"
    shutil.copy(filled, target)
    damage(target)
    with restarted(filled) as cache:
        before = target.read_bytes()
        with pytest.raises(TuningCacheError, match=r"target is .*: it is no tuning cache that could be replaced"):
            cache.export(target)
        assert target.read_bytes() == before
    assert names(tmp_path) == ["target", "tuning.sqlite"]


def test_an_export_over_a_cache_that_is_in_use(filled, tmp_path):
    target = tmp_path / "target"
    with TuningCache(target) as other, restarted(filled) as cache:
        other.put(entry(0))
        with pytest.raises(TuningCacheError, match="target: "):
            cache.export(target)
        other.put(entry(1))
        assert found_in(other, 2) == [0, 1]
    assert found_in(restarted(target), MANY) == [0, 1]


def test_an_export_where_something_lies_beside(filled, tmp_path):
    """What SQLite keeps beside a file would be taken for the new one's."""
    (tmp_path / "copy-wal").write_bytes(b"x")
    with restarted(filled) as cache, pytest.raises(TuningCacheError, match="it is in use: there is copy-wal"):
        cache.export(tmp_path / "copy")
    assert names(tmp_path) == ["copy-wal", "tuning.sqlite"]


@pytest.mark.parametrize("how", ["same", "link"])
def test_an_export_over_itself(filled, how, tmp_path):
    (tmp_path / "link").symlink_to(filled)
    with restarted(filled) as cache, pytest.raises(ArgumentError, match="is the cache itself"):
        cache.export(filled if how == "same" else tmp_path / "link")
    assert len(restarted(filled)) == MANY


def test_an_export_into_no_folder(filled, tmp_path):
    with restarted(filled) as cache, pytest.raises(TuningCacheError, match=r"no/copy: unable to open database file"):
        cache.export(tmp_path / "no" / "copy")
    assert names(tmp_path) == ["tuning.sqlite"]


@pytest.mark.parametrize("where", ["file", ":memory:"])
def test_merge(filled, tmp_path, where):
    other = tmp_path / "other"
    with TuningCache(other) as cache:
        cache.put(entry(0, tuned_at=LATE, time_ms=0.25))  # newer than ours
        cache.put(entry(1, tuned_at="2026-01-31T09:00:00+00:00", time_ms=0.25))  # older
        cache.put(entry(2, time_ms=0.25))  # of the same time
        cache.put(entry(MANY))
        cache.put(entry(0, device=H100))
    with TuningCache(filled if where == "file" else where) as cache:
        for number in range(MANY):
            cache.put(entry(number))
        with nothing_written(tmp_path) if where == ":memory:" else closing(sqlite3.connect(other)):
            assert cache.merge(other) == 3
            assert cache.merge(other) == 0
        assert cache.get(entry(0).key) == entry(0, tuned_at=LATE, time_ms=0.25)
        assert [cache.get(entry(number).key) for number in (1, 2, MANY)] == [entry(1), entry(2), entry(MANY)]
        assert cache.get(entry(0, device=H100).key) == entry(0, device=H100)
        assert len(cache) == MANY + 2
        if where == "file":
            assert cache.merge(filled) == 0  # itself
    if where == "file":
        with restarted(filled) as cache:
            assert cache.get(entry(0).key).rows[0].time_ms == 0.25
            assert len(cache) == MANY + 2


def test_merge_while_the_other_is_in_use(filled, tmp_path):
    with TuningCache(tmp_path / "other") as other, restarted(filled) as cache:
        other.put(entry(MANY))
        assert cache.merge(tmp_path / "other") == 1
        other.put(entry(MANY + 1))
        assert cache.merge(tmp_path / "other") == 1


@pytest.mark.parametrize("damage", [*(do for _, do in ALL_UNFIT.values()), *LATER.values()], ids=[*ALL_UNFIT, *LATER])
def test_merge_of_an_unfit_file_changes_nothing(filled, tmp_path, damage):
    other = tmp_path / "other"
    fill(other, 2 * MANY, tuned_at=LATE)
    damage(other)
    with restarted(filled) as cache:
        before = other.read_bytes()
        with pytest.raises(TuningCacheError, match=r"/other is .*: it is no tuning cache that could be read|/other: "):
            cache.merge(other)
        assert other.read_bytes() == before
        assert found_in(cache, 2 * MANY) == list(range(MANY))
    assert names(tmp_path) == ["other", "tuning.sqlite"]


def test_merge_of_a_file_from_a_newer_version(filled, tmp_path):
    other = shutil.copy(filled, tmp_path / "other")
    sql(other, f"PRAGMA user_version = {SCHEMA + 1}")
    with restarted(filled) as cache, pytest.raises(TuningCacheError, match="from a newer cudnnlite"):
        cache.merge(other)


@pytest.mark.parametrize("blank", ["absent", "empty"])
def test_merge_of_nothing(filled, tmp_path, blank):
    other = tmp_path / "other"
    if blank == "empty":
        other.touch()
    with restarted(filled) as cache, pytest.raises(TuningCacheError, match=r"other (does not exist|holds nothing)"):
        cache.merge(other)
    assert other.exists() == (blank == "empty")


def test_merge_into_a_cache_that_has_no_file_yet(filled, tmp_path):
    with TuningCache(tmp_path / "sub" / "new") as cache:
        assert cache.merge(filled) == MANY
    assert found_in(restarted(tmp_path / "sub" / "new")) == list(range(MANY))


def test_clear_where_there_is_no_file_makes_none(path):
    with TuningCache(path) as cache:
        assert cache.clear() == 0
    assert not path.exists()


# ---------------------------------------------------------------- one at a time


@pytest.mark.parametrize("where", ["file", ":memory:"])
def test_one_thread_at_a_time(path, where):
    inside, overlaps = [], []

    def work(cache):
        for _ in range(20):
            with cache.exclusive("gpu 0"):
                inside.append(1)
                overlaps.append(len(inside))
                threading.Event().wait(0.0005)
                inside.pop()

    with TuningCache(path if where == "file" else where) as cache:
        run([threading.Thread(target=work, args=(cache,)) for _ in range(4)])
    assert overlaps == [1] * 80
    assert names(path.parent) == []


def test_names_do_not_disturb_each_other(path):
    with TuningCache(path) as cache:
        for name in ("a/b", "a_b", "a:b", "..", "x" * 300, "y" * 300, "é", "卷"):
            entered = threading.Event()
            thread = threading.Thread(target=lambda n=name, e=entered: enter(cache, n, e))
            with cache.exclusive("a b"), cache.exclusive("A_B"):
                thread.start()
                assert entered.wait(30), name
            thread.join()
        assert names(path.parent) == []


def enter(cache, name, event):
    with cache.exclusive(name):
        event.set()


def test_two_caches_of_one_file_exclude_each_other_and_others_do_not(path):
    with TuningCache(path) as one, TuningCache(path) as same, TuningCache(path.with_name("other")) as other:
        events = {cache: threading.Event() for cache in (same, other)}
        threads = [threading.Thread(target=enter, args=(cache, "gpu", event)) for cache, event in events.items()]
        with one.exclusive("gpu"):
            for thread in threads:
                thread.start()
            assert events[other].wait(30)
            assert not events[same].wait(0.1)
        assert events[same].wait(30)
        for thread in threads:
            thread.join()


def test_the_holder_may_enter_again(path):
    with TuningCache(path) as cache:
        with cache.exclusive("gpu"), cache.exclusive("gpu"):
            assert names(path.parent) == ["tuning.sqlite.gpu.lock"]
        assert names(path.parent) == []
        with pytest.raises(ZeroDivisionError), cache.exclusive("gpu"):
            raise ZeroDivisionError
        assert names(path.parent) == []


@pytest.mark.parametrize("name", ["", None, 3, b"gpu"])
def test_what_is_no_name(path, name):
    with (
        TuningCache(path) as cache,
        pytest.raises(ArgumentError, match=r"name=.*; allowed: a string that is not empty"),
    ):
        cache.exclusive(name)
