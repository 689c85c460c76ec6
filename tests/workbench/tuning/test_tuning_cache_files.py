"""Damaged files and folders of a tuning cache.

Tuning goes on, and no file of somebody else is changed.
"""

import errno
import itertools
import json
import os
import pickle
import shutil
import tempfile
import threading
import time
import warnings
from pathlib import Path

import pytest
from helpers.tuning_entries import LATE, entries_of_format_4, entry, run_child
from helpers.tuning_files import (
    DAMAGE,
    MANY,
    NEWER,
    change,
    file_of,
    fill,
    found_in,
    names,
    nothing_written,
    run,
)

from cudnnlite.errors import TuningCacheError, TuningCacheWarning
from cudnnlite.operations.graph.graph import any_problem_from_plain
from cudnnlite.workbench.tuning.cache import TuningCache
from cudnnlite.workbench.tuning.entries import FORMAT, TuningKey, canonical, row_to_plain


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tuning"


@pytest.fixture
def filled(path):
    """The path of a cache with entries."""
    fill(path)
    return path


def put(cache, *entries):
    for new_entry in entries:
        cache.put(new_entry)


# ---------------------------------------------------------------- files of this format

OF_FORMAT_4 = Path(__file__).parents[2] / "data" / "tuning_cache_of_format_4"
KINDS = ("convolution", "network", "graph")


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_of_format_4_is_found(kind, path):
    """The key that is made today names the file, and every field of every row comes back."""
    entry_of_kind = entries_of_format_4()[kind]
    shutil.copytree(OF_FORMAT_4, path)
    with TuningCache(path) as cache, nothing_written(path):
        stored = cache.get(entry_of_kind.key)
        assert len(cache) == len(KINDS)
    assert stored.key == entry_of_kind.key
    assert stored.tuned_at == entry_of_kind.tuned_at
    assert [*map(row_to_plain, stored.rows)] == [*map(row_to_plain, entry_of_kind.rows)]
    assert any_problem_from_plain(stored.key.plain["problem"]) == entry_of_kind.key.problem


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_today_is_format_4(kind):
    """A change of the text needs another FORMAT, and another SCHEMA if it is one of the key."""
    assert FORMAT == 4
    entry_of_kind = entries_of_format_4()[kind]
    file = OF_FORMAT_4 / f"{entry_of_kind.key.digest}.json"
    assert json.loads(entry_of_kind.to_json()) == json.loads(file.read_text())


# ---------------------------------------------------------------- damaged and foreign files


@pytest.mark.parametrize(
    ("damage", "use"), list(zip(DAMAGE, itertools.cycle(("get", "entries", "merge")), strict=False))
)
def test_a_damaged_file_is_set_aside(filled, damage, use, tmp_path):
    file = file_of(filled, 4)
    DAMAGE[damage](file)
    before = file.read_bytes()
    with TuningCache(tmp_path / "other" if use == "merge" else filled) as cache:
        uses = {"get": lambda: len(found_in(cache)), "entries": lambda: len(cache.entries())}
        uses["merge"] = lambda: cache.merge(filled)
        with pytest.warns(
            TuningCacheWarning, match=rf"{file.name} is no entry .* \(.*; it is "
        ) as caught:
            assert uses[use]() == MANY - 1
        assert [
            warning.filename.endswith(("_cache_files.py", "tuning_files.py")) for warning in caught
        ] == [True]
        aside = [name for name in names(filled) if name.endswith(".damaged")]
        if use == "merge":  # which only reads
            assert (aside, file.read_bytes()) == ([], before)
            return
        assert [(filled / name).read_bytes() for name in aside] == [before]
        assert len(cache) == MANY - 1
        cache.put(entry(4))
    with TuningCache(filled) as cache:  # without a warning
        assert found_in(cache) == list(range(MANY))


NO_ENTRIES = {
    "a link to a device": (lambda file: file.symlink_to("/dev/zero"), "is no regular file"),
    "a pipe": (os.mkfifo, "is no regular file"),
    "a folder": (os.mkdir, "is no regular file"),
    "a huge file": (
        lambda file: (file.touch(), os.truncate(file, (64 << 20) + 1)),
        "is larger than 64 MiB",
    ),
}


@pytest.mark.parametrize("kind", NO_ENTRIES)
def test_what_is_no_entry_s_file_is_not_read(filled, kind):
    """It would never end, or wait for somebody who writes."""
    make, why = NO_ENTRIES[kind]
    file = file_of(filled, 4)
    file.unlink()
    make(file)
    before = file.lstat()
    with TuningCache(filled) as cache:
        with pytest.warns(TuningCacheWarning, match=f"{file.name} {why}; it is left as it is"):
            assert len(cache.entries()) == MANY - 1
        assert len(found_in(cache)) == MANY - 1
    assert file.lstat() == before


@pytest.mark.parametrize(
    "part",
    [
        {"device": {}},
        {"problem": {}},
        {"problem": "kind"},
        {"policy": None},
        {"policy": "x"},
        {"alignments": [1]},
    ],
)
def test_a_key_that_lacks_what_every_entry_is_asked_for(filled, part):
    """Though its hash is the file's name."""
    key = TuningKey(canonical(entry().key.plain | part))
    file = file_of(filled).rename(filled / f"{key.digest}.json")
    change(file, key=key.plain)
    with (
        TuningCache(filled) as cache,
        pytest.warns(TuningCacheWarning, match=f"{file.name} is no entry .* it is now"),
    ):
        assert len(cache.entries()) == MANY - 1


def test_what_was_set_aside_is_never_overwritten(filled):
    for number in range(3):
        file_of(filled).write_text(f"text {number}")
        with pytest.warns(TuningCacheWarning, match=r"it is now .*\.damaged"):
            assert TuningCache(filled).get(entry().key) is None
    assert sorted(file.read_text() for file in filled.glob("*.damaged")) == [
        f"text {number}" for number in range(3)
    ]


def test_a_pickle_is_not_loaded(filled, tmp_path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    file_of(filled).write_bytes(pickle.dumps(Harm()))
    with pytest.warns(TuningCacheWarning, match="is no entry"):
        assert TuningCache(filled).get(entry().key) is None
    assert not (tmp_path / "harm").exists()


def test_a_good_file_that_another_process_puts_there_meanwhile_is_not_set_aside(
    filled, monkeypatch
):
    """Between this one's look at a damaged file and its setting it aside."""
    good, rename = file_of(filled).read_bytes(), os.rename

    def late(old, new):
        if old.read_bytes() == b"damage":
            old.write_bytes(good)
        rename(old, new)

    file_of(filled).write_bytes(b"damage")
    monkeypatch.setattr("os.rename", late)
    assert TuningCache(filled).get(entry().key) is None
    assert found_in(TuningCache(filled)) == list(range(MANY))
    assert not list(filled.glob("*.damaged"))


def test_files_of_other_names_are_nobodys_business(filled):
    for name in (
        "README.md",
        "x.json",
        f"{'0' * 63}.json",
        f"{'A' * 64}.json",
        f"{'0' * 64}.jsonl",
        ".x.tmp",
    ):
        (filled / name).write_text("mine")
    with nothing_written(filled), TuningCache(filled) as cache:
        assert found_in(cache) == list(range(MANY))
        assert len(cache) == len(cache.entries()) == MANY
    with TuningCache(filled) as cache:
        assert cache.clear() == MANY
    assert len(names(filled)) == 6


def test_a_file_of_an_earlier_version_is_read(filled):
    """It has every field of a row, the empty ones too, and other spaces."""
    lean = file_of(filled).stat().st_size
    change(file_of(filled), rows=[row_to_plain(row) for row in entry().rows])
    assert file_of(filled).stat().st_size > lean
    assert found_in(TuningCache(filled)) == list(range(MANY))


def test_what_died_while_it_wrote_is_swept_up_by_clear(filled):
    for name, age in (("old", 4000), ("young", 10)):
        (filled / f".{name}.tmp").touch()
        os.utime(filled / f".{name}.tmp", (time.time() - age,) * 2)
    TuningCache(filled).clear()
    assert names(filled) == [".young.tmp"]


def test_an_entry_of_a_newer_version_is_left_alone(filled, tmp_path):
    """It is not read, replaced or removed; what is put under its key is kept in memory."""
    for number in (0, 1):
        change(file_of(filled, number), **NEWER)
    fill(tmp_path / "other", 1, tuned_at=LATE)
    with TuningCache(filled) as cache:
        with nothing_written(filled):
            with pytest.warns(
                TuningCacheWarning,
                match=f"format {NEWER['format']}, from a newer cudnnlite.*left as it is",
            ):
                assert found_in(cache) == list(range(2, MANY))
            assert len(cache.entries()) == MANY - 2  # without another warning
            cache.put(entry(0))
            assert cache.get(entry(0).key) == entry(0)
            assert (len(cache), cache.unsaved) == (MANY, 1)
        assert cache.clear() == MANY - 1
        assert cache.merge(tmp_path / "other") == 0
    assert names(filled) == sorted(file_of(filled, number).name for number in (0, 1))


def test_an_export_keeps_and_counts_what_a_newer_version_wrote(filled, tmp_path):
    """In the folder that it replaces: under keys that are exported, and under others."""
    copy, newer = tmp_path / "copy", (0, MANY, MANY + 1)
    fill(copy, MANY + 3)
    for number in newer:
        change(file_of(copy, number), **NEWER)
    before = [file_of(copy, number).read_bytes() for number in newer]
    with TuningCache(filled) as cache, pytest.warns(TuningCacheWarning) as caught:
        assert cache.export(copy) == MANY - 1
    assert [str(one.message).partition(" keeps ")[2][:2] for one in caught] == ["", "3 "]
    assert names(copy) == sorted(file_of(copy, number).name for number in range(MANY + 2))
    assert [file_of(copy, number).read_bytes() for number in newer] == before


def test_an_export_counts_nothing_else_as_newer(filled, tmp_path):
    """What lies there and cannot be read, such as a folder of an entry's name, is told as that."""
    (tmp_path / "copy" / f"{'0' * 64}.json").mkdir(parents=True)
    with pytest.warns(TuningCacheWarning) as caught:
        assert TuningCache(filled).export(tmp_path / "copy") == MANY
    assert not any("newer" in str(one.message) for one in caught)


def test_a_folder_that_is_deleted_or_replaced_meanwhile_is_used(path, tmp_path):
    fill(tmp_path / "other", 3)
    with TuningCache(path) as cache:
        cache.put(entry(0))
        shutil.rmtree(path)
        cache.put(entry(1))
        assert found_in(cache, 2) == [1]
        shutil.rmtree(path)
        os.rename(tmp_path / "other", path)
        assert cache.get(entry(2).key) == entry(2)


# ---------------------------------------------------------------- a file of another kind


def test_a_file_instead_of_a_folder_is_left_alone(path):
    path.write_text("shopping list")
    with nothing_written(path.parent):
        with pytest.warns(
            TuningCacheWarning, match="is a file, and no tuning cache; .* left as it is"
        ):
            cache = TuningCache(path)
        cache.put(entry())
        assert cache.get(entry().key) == entry()


# ---------------------------------------------------------------- read-only


def test_a_read_only_cache_is_never_written(filled):
    DAMAGE["text"](file_of(filled, 3))
    with nothing_written(filled), TuningCache(filled, read_only=True) as cache:
        assert cache.read_only
        assert "read-only" in repr(cache)
        with pytest.warns(
            TuningCacheWarning, match="is no entry .*; it is left as it is"
        ) as caught:
            assert [len(found_in(cache)), cache.get(entry(3).key)] == [MANY - 1, None]
        assert len(caught) == 1
        cache.put(entry(MANY))
        cache.put(entry(0, tuned_at=LATE))
        assert cache.get(entry(MANY).key) == entry(MANY)
        assert cache.get(entry(0).key).tuned_at > entry(0).tuned_at
        assert len(cache.entries()) == MANY
        for use in (cache.clear, lambda: cache.merge(filled)):
            with pytest.raises(TuningCacheError, match=r"tuning is opened read-only"):
                use()


def test_a_read_only_cache_without_a_folder(path):
    with pytest.warns(TuningCacheWarning, match="does not exist; the cache is an empty one"):
        cache = TuningCache(path, read_only=True)
    with cache:
        assert cache.get(entry().key) is None
        assert len(cache) == 0
        cache.put(entry())
        assert not path.exists()
        fill(path, 3)  # now there is one
        assert found_in(cache, 3) == [0, 1, 2]


def test_a_read_only_cache_in_memory_misses_no_folder():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TuningCache(":memory:", read_only=True)


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


# As nobody: permissions do not bind root.
USE = """
if os.getuid() == 0: os.setgid(65534); os.setuid(65534)
def use(path, read_only):
    told.clear()
    cache = TuningCache(path, read_only=read_only)
    found = sum(cache.get(entry(n).key) == entry(n) for n in range(12))
    cache.put(entry(12)); cache.put(entry(13))
    again = [cache.get(entry(n).key) == entry(n) for n in (12, 13)]
    result = [found, again, attempt(lambda: len(cache)), attempt(cache.clear)]
    result.append(attempt(lambda: cache.export(os.path.dirname(path) + "/copy")))
    cache.close()
    return [*result, list(told)]
print(json.dumps({name: use(f"{folder}/{name}/tuning", name == "read-only") for name in NAMES}))
"""


@pytest.mark.processes
def test_what_another_user_cannot_write_or_read(commands, shared_folder):
    """The cache is read all the same, and new entries stay in memory.

    A read-only cache does the same.
    """
    counts = {
        "unwritable": MANY,
        "read-only": MANY,
        "damaged": MANY - 1,
        "unreadable": 0,
        "unreadable file": MANY - 1,
    }
    paths = {name: shared_folder / name / "tuning" for name in counts}
    for path in paths.values():
        fill(path)
    DAMAGE["text"](file_of(paths["damaged"]))
    *unwritable, unreadable, unreadable_file = paths.values()
    before = {file: file.read_bytes() for path in unwritable for file in path.iterdir()}
    for path in unwritable:
        path.chmod(0o555)
        path.parent.chmod(0o555)
    unreadable.chmod(0)
    file_of(unreadable_file).chmod(0)
    reports = run_child(commands, USE.replace("NAMES", repr([*counts])), shared_folder / "any")
    unreadable.chmod(0o755)
    file_of(unreadable_file).chmod(0o644)
    assert {file: file.read_bytes() for path in unwritable for file in path.iterdir()} == before
    assert {name: (count, again) for name, (count, again, *_) in reports.items()} == {
        name: (count, [True, True]) for name, count in counts.items()
    }
    message = "kept in this process's memory only"
    for path in unwritable:
        _, _, length, cleared, exported, messages = reports[path.parent.name]
        assert length == MANY + 2
        assert cleared.startswith(f"TuningCacheError: {path}")
        assert exported.startswith(f"TuningCacheError: {path.parent}/copy: ")
        assert sum(
            f"TuningCacheWarning: {path}: " in text and message in text for text in messages
        ) == (path.parent.name != "read-only")
        damage = [text for text in messages if "is no entry" in text]
        assert ["it is left as it is" in text for text in damage] == [True] * (
            path.parent.name == "damaged"
        )
    for path in (unreadable, unreadable_file):
        _, _, length, _, _, messages = reports[path.parent.name]
        assert sum("cannot be read" in text for text in messages) == 1
        assert length == MANY + 2 or length.startswith(
            f"TuningCacheError: {path}: Permission denied"
        )
        assert found_in(TuningCache(path)) == list(range(MANY))


REACH = """
if os.getuid() == 0: os.setgid(65534); os.setuid(65534)
cache = TuningCache(path)
cache.put(entry())
print(json.dumps(cache.get(entry().key) == entry()))
"""


@pytest.mark.processes
def test_a_folder_that_another_user_cannot_reach(commands, shared_folder):
    """One may not even ask whether it is there."""
    (shared_folder / "closed").mkdir(mode=0)
    assert run_child(commands, REACH, shared_folder / "closed" / "tuning")


def test_no_folder_can_be_made_at_all(tmp_path):
    """A path below a file: also root cannot make that."""
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "tuning"
    with TuningCache(path) as cache:
        assert cache.get(entry().key) is None
        with pytest.warns(
            TuningCacheWarning, match=r"tuning: .*kept in this process's memory only"
        ) as caught:
            put(cache, entry(), entry(1))
        assert len(caught) == 1
        assert found_in(cache, 2) == [0, 1]
        assert len(cache) == cache.unsaved == 2
        with pytest.raises(TuningCacheError, match=r"copy: "):
            cache.export(tmp_path / "file" / "copy")
        assert cache.export(tmp_path / "copy") == 2  # what is in memory is not lost
    assert found_in(TuningCache(tmp_path / "copy"), 2) == [0, 1]


DISK_FULL = """
import resource
def fill(path, again):
    told.clear()
    with TuningCache(path) as cache:
        for n in range(5): cache.put(entry(n))
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))
        for n in range(5, 12): cache.put(entry(n))
        full = [cache.get(entry(n).key) == entry(n) for n in range(12)]
        length, unsaved = len(cache), cache.unsaved
        failed = attempt(lambda: cache.export(path + "-copy"))
        left = sorted(name for name in os.listdir(path) if not name.endswith(".json"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        if again: cache.put(entry(12))
    return [full, length, unsaved, failed, left, list(told)]
print(json.dumps([fill(path + "-1", True), fill(path + "-2", False)]))
"""


@pytest.mark.processes
def test_files_that_cannot_grow(commands, path):
    """The kernel refuses to grow files, and later allows it again.

    What stayed in memory is then written too, by the next `put` or when the cache is closed.
    """
    for number, (full, length, unsaved, failed, left, messages) in enumerate(
        run_child(commands, DISK_FULL, path), 1
    ):
        cache_path = path.with_name(f"tuning-{number}")
        assert (full, length, unsaved, left) == ([True] * 12, 12, 7, [])
        assert failed.startswith(f"TuningCacheError: {cache_path}-copy: File too large")
        assert len(messages) == 1
        assert messages[0].startswith(
            f"TuningCacheWarning: {cache_path}: File too large; what is tuned is kept"
        )
        assert found_in(TuningCache(cache_path), 13) == list(range(13 if number == 1 else 12))


@pytest.mark.parametrize("step", ["fsync", "replace", "mkdir"])
def test_a_full_disk(filled, step, tmp_path, monkeypatch):
    """Whichever step fails: what was there is as it was, and nothing is left lying about."""
    fill(tmp_path / "other", MANY + 1, tuned_at=LATE)

    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with TuningCache(filled) as cache, monkeypatch.context() as patch:
        patch.setattr(Path if step == "mkdir" else os, step, refuse)
        with nothing_written(tmp_path):
            with pytest.warns(
                TuningCacheWarning, match="No space left on device; what .* memory only"
            ) as caught:
                put(cache, entry(0, tuned_at=LATE), entry(MANY))
            assert len(caught) == 1
            with pytest.raises(TuningCacheError, match=r"tuning: No space left on device"):
                cache.merge(tmp_path / "other")
            with pytest.raises(TuningCacheError, match="copy: No space left on device"):
                cache.export(tmp_path / "copy")
        assert cache.get(entry(0).key) == entry(0, tuned_at=LATE)
        assert (cache.unsaved, len(cache)) == (2, MANY + 1)
        patch.undo()
        cache.put(entry(MANY + 1))
        assert cache.unsaved == 0
    assert TuningCache(filled).get(entry(0).key) == entry(0, tuned_at=LATE)
    assert len(TuningCache(filled)) == MANY + 2


def test_only_one_thread_sets_a_file_aside(filled):
    DAMAGE["text"](file_of(filled))
    start, results = threading.Barrier(4), []

    def work(cache):
        start.wait()
        results.append(cache.get(entry().key))

    with pytest.warns(TuningCacheWarning) as caught:
        run([threading.Thread(target=work, args=(TuningCache(filled),)) for _ in range(4)])
    assert (results, len(caught), len(list(filled.glob("*.damaged")))) == ([None] * 4, 1, 1)


def test_a_warning_that_is_an_error_comes_after_what_it_tells(path):
    path.parent.joinpath("file").touch()
    with TuningCache(path.parent / "file" / "tuning") as cache, warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TuningCacheWarning, match="memory only"):
            cache.put(entry())
        assert cache.get(entry().key) == entry()


def test_warnings_that_are_errors_lose_nothing(filled):
    DAMAGE["text"](file_of(filled))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TuningCacheWarning, match="damaged"):
            TuningCache(filled).get(entry().key)
    assert len(list(filled.glob("*.damaged"))) == 1
    assert found_in(TuningCache(filled)) == list(range(1, MANY))
