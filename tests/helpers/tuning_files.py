"""Folders of tuning caches, whole and damaged, and what the tests look at in them."""

import json
from contextlib import contextmanager

from cudnnlite.workbench.tuning.cache import TuningCache
from cudnnlite.workbench.tuning.entries import FORMAT

from .tuning_entries import entry

MANY = 12


def fill(path, count=MANY, **options):
    """Make a cache with entries."""
    with TuningCache(path) as cache:
        for number in range(count):
            cache.put(entry(number, **options))


def file_of(path, number=0, **options):
    """Where an entry is."""
    return path / f"{entry(number, **options).key.digest}.json"


def names(folder):
    return sorted(item.name for item in folder.iterdir())


def run(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def found_in(cache, count=MANY):
    """The numbers of the entries that a cache finds, each as it was put."""
    numbers = []
    for number in range(count):
        stored = cache.get(entry(number).key)
        if stored is not None:
            assert stored == entry(number)
            numbers.append(number)
    return numbers


@contextmanager
def nothing_written(folder):
    """Whatever happens inside, the files are the same afterwards, byte for byte."""
    before = {item: item.read_bytes() for item in folder.rglob("*") if item.is_file()}
    yield
    assert {item: item.read_bytes() for item in folder.rglob("*") if item.is_file()} == before


def change(file, **values):
    """Put other values into the JSON of a file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


# damage to the file of an entry
DAMAGE = {
    "nothing": lambda file: file.write_bytes(b""),
    "text": lambda file: file.write_text("shopping list\n" * 100),
    "noise": lambda file: file.write_bytes(bytes(range(256))),
    "half of it": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "one bit": lambda file: file.write_text(file.read_text().replace("H200", "H201")),
    "too deep": lambda file: file.write_text("[" * 99999),
    "other JSON": lambda file: file.write_text("[1]"),
    "an object": lambda file: file.write_text("{}"),
    "another entry's": lambda file: file.write_text(
        next(f for f in file.parent.glob("*.json") if f != file).read_text()
    ),
    **{
        f"{name}={value!r}"[:30]: lambda file, name=name, value=value: change(file, **{name: value})
        for name, values in {
            "format": [0, FORMAT - 1, "1", None, True, -7],
            "key": [{}, "", 5, None],
            "rows": [[], {}, [1], [{}], "x", 7, None],
            "chosen": [3, -1, "first", 0.5],
            "tuned_at": ["today", 0, None],
            "seconds": [-1, "long", float("nan"), float("inf"), 10**400],
            "title": [0, None],
            "unknown": [1],
        }.items()
        for value in values
    },
}
NEWER = {"format": FORMAT + 1, "rows": "whatever that is by then"}
