"""The tuning cache in one process: what is put is found, exported, merged and cleared; and one holder of a name at a time."""

import gc
import os
import shutil
import sqlite3
import stat
import threading
from contextlib import closing
from dataclasses import replace

import pytest

from cudnnlite import ArgumentError
from cudnnlite._raw.enums import ConvolutionFwdAlgo
from cudnnlite.autotune import cache as cache_module
from cudnnlite.autotune import sqlite_files
from cudnnlite.autotune.cache import CACHE_VARIABLE, TuningCache
from cudnnlite.autotune.cache_path import default_path
from cudnnlite.autotune.keys import DeviceIdentity, TuningKey
from cudnnlite.autotune.sqlite_files import FILE_SCHEMA
from cudnnlite.errors import ClosedError, TuningCacheError

from .tuning_entries import EARLY, H100, H200, LATE, entry, rnn
from .tuning_files import (
    ALL_UNFIT,
    LATER,
    MANY,
    fill,
    found_in,
    names,
    nothing_written,
    restarted,
    run,
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
    reads, connect = [], sqlite_files.connect

    def connect_and_listen(*arguments):
        connection = connect(*arguments)
        connection.set_trace_callback(reads.append)
        return connection

    monkeypatch.setattr(cache_module, "RECENT", 3)
    monkeypatch.setattr(sqlite_files, "connect", connect_and_listen)
    with TuningCache(path) as cache:
        for number in range(5):
            cache.put(entry(number))
        assert cache.get(entry(2).key) is cache.get(entry(2).key)
        cache.get(entry(0).key)  # now 3 is the oldest at hand, then 4, 2, 0 are left
        reads.clear()
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
    sql(other, f"PRAGMA user_version = {FILE_SCHEMA + 1}")
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


@pytest.mark.parametrize("place", [":memory:", "file"])
def test_times_of_the_emulated_device_are_refused(tmp_path, place):
    emulated = DeviceIdentity("emulated (NumPy)", "", "", 92800, kind="emulated")
    with TuningCache(tmp_path / "own" if place == "file" else place) as cache:
        with pytest.raises(ArgumentError, match="times of the emulated device are not kept"):
            cache.put(entry(1, device=emulated))
        cache.put(entry(1))
        assert (len(cache), cache.unsaved) == (1, 0)
