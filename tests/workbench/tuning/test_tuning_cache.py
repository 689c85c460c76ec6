"""The tuning cache in one process: put, find, export, merge, clear, and the default folder."""

import json
import os
import shutil
import stat
import threading
from dataclasses import replace

import pytest
from helpers.tuning_entries import EARLY, H100, H200, LATE, entry, rnn
from helpers.tuning_files import MANY, file_of, fill, found_in, names, nothing_written, run

from cudnnlite import ArgumentError
from cudnnlite.enums import ConvolutionFwdAlgo
from cudnnlite.errors import ClosedError, TuningCacheError
from cudnnlite.workbench.tuning.cache import CACHE_VARIABLE, REHEARSAL, TuningCache
from cudnnlite.workbench.tuning.entries import DeviceIdentity, TuningEntry, TuningKey


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tuning"


@pytest.fixture
def filled(path):
    """The path of a cache with entries."""
    fill(path)
    return path


# ---------------------------------------------------------------- put and get


@pytest.mark.parametrize("where", ["folder", ":memory:"])
def test_what_is_put_is_found(path, where):
    with TuningCache(path if where == "folder" else where) as cache:
        assert cache.get(entry().key) is None
        assert len(cache) == 0
        cache.put(entry())
        cache.put(entry(problem=rnn()))
        assert cache.get(entry().key) == entry()
        assert cache.get(TuningKey(entry().key.text)) == entry()
        assert cache.get(entry(problem=rnn()).key).rows[0].algorithm.name == "STANDARD"
        assert cache.get(entry(1).key) is None
        assert len(cache) == len(cache.entries()) == 2


def test_an_entry_is_a_file_that_can_be_read(path):
    """Named by the hash of its key; the key is in it, in words."""
    fill(path, 2)
    assert names(path) == sorted(file_of(path, number).name for number in range(2))
    plain = json.loads(file_of(path, 1).read_text())
    assert plain["key"] == entry(1).key.plain
    assert plain["key"]["device"]["gpu"] == "NVIDIA H200"
    assert plain["rows"][0]["algorithm"] == "ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM"
    assert found_in(TuningCache(path)) == [0, 1]  # also of a cache that was never closed


def test_rows_come_back_from_the_file_whatever_they_hold(path):
    odd = [
        replace(
            entry().rows[0],
            algorithm=ConvolutionFwdAlgo(17),
            time_ms=float("nan"),
            error=float("inf"),
        ),
        replace(
            entry().rows[0],
            max_error=-float("inf"),
            find_ms=None,
            deterministic=None,
            why_not="zu groß\n\0 \"'",
        ),
    ]
    put = replace(entry(), rows=tuple(odd), title="Größe 卷积 \ud800", chosen=1)
    TuningCache(path).put(put)
    result = TuningCache(path).get(put.key)
    assert repr(result) == repr(put)
    assert result.rows[0].algorithm is ConvolutionFwdAlgo(17)


def test_the_last_one_put_counts(path):
    with TuningCache(path) as cache:
        for tuned_at, time_ms in ((LATE, 0.5), (EARLY, 0.25)):  # also where a clock was wrong
            cache.put(entry(tuned_at=tuned_at, time_ms=time_ms))
    with TuningCache(path) as cache:
        assert cache.get(entry().key).rows[0].time_ms == 0.25
        assert len(cache) == 1


def test_what_is_in_memory_is_not_written_again_by_each_put(monkeypatch):
    """It was: 113 entries of 43 rows each took seconds."""
    written, to_json = [], TuningEntry.to_json
    monkeypatch.setattr(TuningEntry, "to_json", lambda self: written.append(self) or to_json(self))
    with TuningCache(":memory:") as cache:
        for number in range(MANY):
            cache.put(entry(number))
        assert (len(written), len(cache)) == (MANY, MANY)


def test_an_entry_of_another_cudnn_is_kept_but_not_returned(path):
    fill(path, 1, device=replace(H200, cudnn=91900))
    with TuningCache(path) as cache:
        assert cache.get(entry().key) is None
        cache.put(entry())
        assert cache.get(entry().key).key.device == H200
        assert {stored_entry.key.device.cudnn for stored_entry in cache.entries()} == {91900, 92800}


def test_what_another_cache_has_put_is_found(path):
    with (
        TuningCache(path) as one,
        TuningCache(path) as other,
        TuningCache(path.parent, read_only=True) as elsewhere,
    ):
        assert other.get(entry().key) is None  # there was no folder yet
        one.put(entry())
        assert other.get(entry().key) == entry()
        other.put(entry(1))
        assert one.get(entry(1).key) == entry(1)
        other.put(entry(1, time_ms=0.25))
        assert one.get(entry(1).key) == entry(1, time_ms=0.25)
        file_of(path).unlink()
        assert one.get(entry().key) is None
        assert elsewhere.get(entry(1).key) is None


def test_filters(path):
    with TuningCache(path) as cache:
        put = [
            entry(0, tuned_at=LATE),
            entry(1),
            entry(0, device=H100),
            entry(problem=rnn(), device=H100),
        ]
        put.append(entry(2, device=replace(H200, cudnn=91900)))
        for new_entry in put:
            cache.put(new_entry)
        assert cache.entries() == sorted(
            put, key=lambda new_entry: (new_entry.tuned_at, new_entry.key.digest)
        )
        assert cache.entries(gpu=H100.gpu, kind="convolution_forward") == [put[2]]
        assert cache.entries(cudnn=91900) == [put[4]]
        assert cache.entries(gpu="no such GPU") == []
        assert cache.clear(gpu=H100.gpu, kind="rnn_forward") == 1
        assert cache.get(put[3].key) is None
        assert cache.clear(cudnn=92800) == 3
        assert cache.entries() == [put[4]]
        assert cache.clear() == 1
        assert (len(cache), names(path)) == (0, [])
        cache.put(entry())
        assert cache.get(entry().key) == entry()


@pytest.mark.parametrize("method", ["entries", "clear", "export"])
@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"cudnn": "9.28"}, "cudnn='9.28' is not an integer"),
        ({"cudnn": True}, "cudnn=True is not an integer"),
        ({"gpu": 1}, "gpu=1 is not a str"),
        ({"kind": "pool"}, "kind='pool'; allowed: None, 'convolution_forward', .*, 'rnn_forward'"),
    ],
)
def test_a_filter_that_accepts_nothing(filled, method, filters, message):
    with (
        nothing_written(filled.parent),
        TuningCache(filled) as cache,
        pytest.raises(ArgumentError, match=message),
    ):
        getattr(cache, method)(*[filled.with_name("other")] * (method == "export"), **filters)


def test_arguments_of_a_wrong_type(path):
    with TuningCache(path) as cache:
        with pytest.raises(ArgumentError, match="key='text' is not a TuningKey"):
            cache.get("text")
        with pytest.raises(ArgumentError, match="entry=None is not a TuningEntry"):
            cache.put(None)
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
        lambda: cache.get(entry().key),
        lambda: cache.put(entry()),
        cache.entries,
        lambda: len(cache),
        cache.clear,
        lambda: cache.merge(path),
        lambda: cache.export(path.with_name("other")),
    ]
    for use in uses:
        with pytest.raises(ClosedError, match="is closed"):
            use()


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
        assert one.unsaved == other.unsaved == 0
    assert found_in(TuningCache(path), 60) == list(range(60))


@pytest.mark.parametrize("place", [":memory:", "folder"])
def test_times_of_the_emulated_device_are_refused(tmp_path, place):
    emulated = DeviceIdentity("emulated (NumPy)", "", "", 92800, kind="emulated")
    with TuningCache(tmp_path / "own" if place == "folder" else place) as cache:
        with pytest.raises(ArgumentError, match="times of the emulated device are not kept"):
            cache.put(entry(1, device=emulated))
        cache.put(entry(1))
        assert (len(cache), cache.unsaved) == (1, 0)


# ---------------------------------------------------------------- rehearsals

EMULATED = DeviceIdentity("emulated (NumPy)", "", "", 92800, kind="emulated")


def rehearse(path, count=2, **options):
    """Make a rehearsal with entries."""
    with TuningCache(path, rehearsal=True) as cache:
        for number in range(count):
            cache.put(entry(number, device=EMULATED, **options))


@pytest.mark.parametrize("place", [":memory:", "folder"])
def test_a_rehearsal_takes_entries_of_the_emulated_device_alone(tmp_path, place):
    where = place if place == ":memory:" else tmp_path / "own"
    with TuningCache(where, rehearsal=True) as cache:
        assert cache.rehearsal
        cache.put(entry(1, device=EMULATED))
        with pytest.raises(ArgumentError, match=r"NVIDIA H200: .* is a rehearsal"):
            cache.put(entry(1))
        assert cache.get(entry(1, device=EMULATED).key) == entry(1, device=EMULATED)
        assert cache.get(entry(1).key) is None
        assert "rehearsal" in repr(cache)


def test_a_rehearsal_is_known_by_its_folder(path):
    rehearse(path)
    assert REHEARSAL in names(path)
    with TuningCache(path) as again:
        assert again.rehearsal
        assert len(again) == 2
    with pytest.raises(ArgumentError, match="is a rehearsal on the emulated device"):
        TuningCache(path, rehearsal=False)


def test_a_cache_for_gpus_never_becomes_a_rehearsal(filled):
    with nothing_written(filled), pytest.raises(ArgumentError, match="is a cache for GPUs"):
        TuningCache(filled, rehearsal=True)
    with TuningCache(filled) as cache:
        assert not cache.rehearsal
        assert "rehearsal" not in repr(cache)


def test_a_folder_with_other_files_becomes_no_rehearsal(tmp_path):
    (tmp_path / "a.jpg").touch()
    with pytest.raises(TuningCacheError, match=r"is no tuning cache: it has a\.jpg"):
        TuningCache(tmp_path, rehearsal=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jpg"]


def test_rehearsals_are_exported_and_merged(tmp_path):
    one, other, shipped = (tmp_path / name for name in ("one", "other", "shipped"))
    rehearse(one, 3)
    rehearse(other, 1, tuned_at=LATE, time_ms=0.25)
    with TuningCache(one) as cache:
        assert cache.export(shipped, gpu="emulated (NumPy)") == 3
    with TuningCache(other) as cache:
        assert cache.merge(shipped) == 2  # its own first entry is the newer one
        assert [len(cache.entries()), cache.entries()[-1].rows[0].time_ms] == [3, 0.25]
        assert cache.clear() == 3
    assert REHEARSAL in names(shipped)
    assert names(other) == [REHEARSAL]


def test_a_rehearsal_and_a_cache_for_gpus_are_never_mixed(tmp_path, filled):
    rehearsed = tmp_path / "rehearsed"
    rehearse(rehearsed)
    with nothing_written(tmp_path):
        for target, source in ((filled, rehearsed), (rehearsed, filled)):
            with TuningCache(target) as cache:
                with pytest.raises(TuningCacheError, match="never merged"):
                    cache.merge(source)
                with pytest.raises(ArgumentError, match="rehearsal"):
                    cache.export(source)


# ---------------------------------------------------------------- where it is


def test_the_default_path(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    with TuningCache() as cache:
        assert cache.path == tmp_path / "cudnnlite" / "tuning"
        assert cache.get(entry().key) is None
        assert not cache.path.parent.exists()  # nothing is made before there is something to keep
        cache.put(entry())
    assert names(cache.path) == [file_of(cache.path).name]


def test_the_environment_says_where(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not"))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "here" / "it"))
    with TuningCache() as cache:
        cache.put(entry())
    assert cache.path == tmp_path / "here" / "it"
    assert cache.path.exists()
    with TuningCache(tmp_path / "given") as cache:  # which counts more
        assert cache.path == tmp_path / "given"
    monkeypatch.setenv(CACHE_VARIABLE, ":memory:")
    assert TuningCache().path == ":memory:"
    monkeypatch.setenv(CACHE_VARIABLE, "")
    assert TuningCache().path == tmp_path / "not" / "cudnnlite" / "tuning"


def test_a_relative_path_is_meant_from_where_one_is_now(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with TuningCache("a name with #?%") as cache:
        (tmp_path / "sub").mkdir()
        monkeypatch.chdir(tmp_path / "sub")
        cache.put(entry())
        assert cache.path == tmp_path / "a name with #?%"
    assert names(tmp_path) == ["a name with #?%", "sub"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert TuningCache("~/tuning").path == tmp_path / "tuning"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("", "path='' is not the path of a folder"),
        ("a\0b", "is not the path of a folder"),
        (b"tuning", "path=b'tuning' is not the path of a folder"),
        (3, "path=3 is not the path of a folder"),
    ],
)
def test_what_is_no_path(argument, message):
    with pytest.raises(ArgumentError, match=message):
        TuningCache(argument)
    with TuningCache(":memory:") as cache:
        for use in (cache.export, cache.merge):
            with pytest.raises(ArgumentError, match=message):
                use(argument)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


# ---------------------------------------------------------------- export and merge


def test_an_export_has_what_is_wanted(filled, tmp_path):
    with TuningCache(filled) as cache:
        cache.put(entry(problem=rnn(), device=H100))
        assert cache.export(tmp_path / "all") == MANY + 1
        assert cache.export(tmp_path / "a", gpu=H100.gpu) == 1
        assert cache.export(tmp_path / "new" / "c", kind="convolution_forward") == MANY
        assert cache.entries(kind="graph") == []
    with nothing_written(tmp_path):
        assert TuningCache(tmp_path / "a", read_only=True).entries() == [
            entry(problem=rnn(), device=H100)
        ]
        assert found_in(TuningCache(tmp_path / "new" / "c", read_only=True)) == list(range(MANY))
        assert len(TuningCache(tmp_path / "all", read_only=True)) == MANY + 1


def test_an_export_of_nothing_leaves_an_older_export(filled, tmp_path):
    """The name of a GPU that is misspelt, for instance, removes nothing."""
    fill(tmp_path / "copy", 1, device=H100)
    refusal = pytest.raises(TuningCacheError, match=r"has no entry with gpu='H20O': .*copy is not")
    with nothing_written(tmp_path), TuningCache(filled) as cache, refusal:
        cache.export(tmp_path / "copy", gpu="H20O")
    refusal = pytest.raises(TuningCacheError, match=r"has no entry: .*copy is not written")
    with nothing_written(tmp_path), TuningCache(":memory:") as cache, refusal:
        cache.export(tmp_path / "copy")


def test_an_export_from_memory(tmp_path):
    with TuningCache(":memory:") as cache:
        cache.put(entry())
        assert cache.export(tmp_path / "copy") == 1
    assert TuningCache(tmp_path / "copy").get(entry().key) == entry()


def test_an_export_replaces_an_older_export(filled, tmp_path):
    fill(tmp_path / "copy", 1, device=H100)
    (tmp_path / "copy" / "gpu.lock").touch()
    with TuningCache(filled) as cache:
        cache.export(tmp_path / "copy")
        cache.export(tmp_path / "copy")
    assert len(TuningCache(tmp_path / "copy")) == MANY
    assert found_in(TuningCache(tmp_path / "copy")) == list(range(MANY))


@pytest.mark.parametrize(
    "kind_of_target", ["a file", "a folder of something else", "an unwritable place"]
)
def test_an_export_never_touches_what_is_not_a_cache(filled, tmp_path, kind_of_target):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("milk")
    target = tmp_path / {"a file": "notes/todo.txt", "an unwritable place": "notes/todo.txt/x"}.get(
        kind_of_target, "notes"
    )
    refusal = pytest.raises(
        TuningCacheError,
        match=r"is no tuning cache: it has todo|and no tuning cache|Not a directory",
    )
    with nothing_written(tmp_path), TuningCache(filled) as cache, refusal:
        cache.export(target)


@pytest.mark.parametrize("how", ["same", "link"])
def test_an_export_over_itself(filled, how, tmp_path):
    (tmp_path / "link").symlink_to(filled)
    with TuningCache(filled) as cache, pytest.raises(ArgumentError, match="is the cache itself"):
        cache.export(filled if how == "same" else tmp_path / "link")
    assert len(TuningCache(filled)) == MANY


@pytest.mark.parametrize("below", ["", "tuning"])
def test_a_link_that_leads_to_itself_is_no_place(filled, tmp_path, below):
    (tmp_path / "link").symlink_to("link")
    with TuningCache(filled) as cache:
        for use in (cache.export, cache.merge):
            with pytest.raises(TuningCacheError, match=r"link.*: |does not exist"):
                use(tmp_path / "link" / below)


@pytest.mark.parametrize("where", ["folder", ":memory:"])
def test_merge(filled, tmp_path, where):
    other = tmp_path / "other"
    with TuningCache(other) as cache:
        cache.put(entry(0, tuned_at=LATE, time_ms=0.25))  # newer than ours
        cache.put(entry(1, tuned_at="2026-01-31T09:00:00+00:00", time_ms=0.25))  # older
        cache.put(entry(2, time_ms=0.25))  # of the same time
        cache.put(entry(MANY))
        cache.put(entry(0, device=H100))
    with TuningCache(filled if where == "folder" else where) as cache:
        for number in range(MANY):
            cache.put(entry(number))
        with nothing_written(other):
            assert cache.merge(other) == 3
            assert cache.merge(other) == 0
        assert cache.get(entry(0).key) == entry(0, tuned_at=LATE, time_ms=0.25)
        assert [cache.get(entry(number).key) for number in (1, 2, MANY)] == [
            entry(1),
            entry(2),
            entry(MANY),
        ]
        assert cache.get(entry(0, device=H100).key) == entry(0, device=H100)
        assert len(cache) == MANY + 2
        if where == "folder":
            assert cache.merge(filled) == 0  # itself
    if where == "folder":
        assert TuningCache(filled).get(entry(0).key).rows[0].time_ms == 0.25


def test_copying_files_is_merging_too(filled, tmp_path):
    fill(tmp_path / "other", 3, device=H100)
    with TuningCache(filled) as cache:
        assert cache.get(entry(1, device=H100).key) is None
        shutil.copytree(tmp_path / "other", filled, dirs_exist_ok=True)
        assert cache.get(entry(1, device=H100).key) == entry(1, device=H100)
        assert len(cache) == len(cache.entries()) == MANY + 3


def test_merge_of_what_is_no_cache_changes_nothing(filled, tmp_path):
    (tmp_path / "notes.txt").write_text("milk")
    with nothing_written(tmp_path), TuningCache(filled) as cache:
        with pytest.raises(TuningCacheError, match="is a file, and no tuning cache"):
            cache.merge(tmp_path / "notes.txt")
        with pytest.raises(TuningCacheError, match="other does not exist"):
            cache.merge(tmp_path / "other")
        with pytest.raises(TuningCacheError, match=r"is no tuning cache: it has notes\.txt"):
            cache.merge(tmp_path)


def test_a_cache_with_a_readme_is_merged(filled, tmp_path):
    (filled / "README.md").write_text("who tuned this")
    with TuningCache(tmp_path / "mine") as cache:
        assert cache.merge(filled) == MANY


def test_merge_into_a_cache_that_has_no_folder_yet(filled, tmp_path):
    with TuningCache(tmp_path / "sub" / "new") as cache:
        assert cache.merge(filled) == MANY
    assert found_in(TuningCache(tmp_path / "sub" / "new")) == list(range(MANY))


def test_clear_where_there_is_no_folder_makes_none(path):
    with TuningCache(path) as cache:
        assert cache.clear() == 0
    assert not path.exists()
