"""`TuningEntry`: what is remembered of one tuning, and the table of a cache file that holds it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from math import isfinite
from typing import Any, NamedTuple

from cudnnlite.autotune.keys import TuningKey
from cudnnlite.autotune.rows import row_from_plain, row_to_plain
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.problem import KINDS
from cudnnlite.search.results import AlgorithmResult

_STORED = ("digest", "key", "title", "timing", "rows", "chosen", "tuned_at", "seconds", "cudnnlite")
# what is in the key too, so that a table can be filtered
_DERIVED = ("kind", "gpu", "compute_capability", "driver", "cudnn")
_TYPES = {"chosen": "INTEGER", "cudnn": "INTEGER", "seconds": "REAL"}

_COLUMNS = (*_STORED, *_DERIVED)
_LISTED = ", ".join(_COLUMNS)
_DECLARED = ", ".join(f"{name} {_TYPES.get(name, 'TEXT')} NOT NULL" for name in _COLUMNS)
_UPDATED = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name != "digest")

CREATE = f"CREATE TABLE IF NOT EXISTS entries ({_DECLARED}, PRIMARY KEY (digest))"
SELECT = f"SELECT {', '.join(_STORED)} FROM entries"
PROBE = f"SELECT {_LISTED} FROM entries LIMIT 0"  # fails where the table is another one
_UPSERT = (
    f"INSERT INTO entries ({_LISTED}) VALUES ({', '.join('?' * len(_COLUMNS))}) "
    f"ON CONFLICT (digest) DO UPDATE SET {_UPDATED}"
)
_UPSERT_NEWER = f"{_UPSERT} WHERE excluded.tuned_at > entries.tuned_at"


@dataclass(frozen=True)
class TuningEntry:
    """What is remembered of one tuning.

    Parameters
    ----------
    key : TuningKey
        What was tuned, for whom, on what.
    title : str
        What the table is called.
    timing : str
        Where the times come from, with the device.
    rows : tuple of AlgorithmResult
        Every candidate, also the failed ones, in the table's order.  Their `passed_over` is not kept.
    chosen : int
        The index of the row that was chosen.
    tuned_at : str
        When, in ISO 8601 with an offset; kept in UTC, to the microsecond, so that later is greater.
    seconds : float
        What the tuning took.
    cudnnlite : str
        The version of cudnnlite that tuned.

    Raises
    ------
    ArgumentError
        A value that is not allowed.
    """

    key: TuningKey
    title: str
    timing: str
    rows: tuple[AlgorithmResult, ...]
    chosen: int
    tuned_at: str
    seconds: float
    cudnnlite: str

    def __post_init__(self) -> None:
        wanted: dict[str, Any] = {"key": TuningKey, "chosen": int, "seconds": (int, float)}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name != "rows" and (not isinstance(value, wanted.get(item.name, str)) or isinstance(value, bool)):
                raise ArgumentError(f"{item.name}={value!r} is not of type {item.type}")
        if not self.rows or not all(isinstance(row, AlgorithmResult) for row in self.rows):
            raise ArgumentError(f"rows={self.rows!r}; allowed: at least one AlgorithmResult, and nothing else")
        if not 0 <= self.chosen < len(self.rows):
            raise ArgumentError(f"chosen={self.chosen}; allowed: 0 to {len(self.rows) - 1}")
        if not (isfinite(self.seconds) and self.seconds >= 0):
            raise ArgumentError(f"seconds={self.seconds}; allowed: a finite number, not negative")
        rows = tuple(replace(row, passed_over=()) if row.passed_over else row for row in self.rows)
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "tuned_at", _utc(self.tuned_at))


class Filter(NamedTuple):
    """Which entries are meant: those that have every value that is given."""

    gpu: str | None = None
    cudnn: int | None = None
    kind: str | None = None

    def check(self) -> Filter:
        """Return it; ArgumentError if it can accept nothing."""
        for name, value, wanted in (("gpu", self.gpu, str), ("cudnn", self.cudnn, int), ("kind", self.kind, str)):
            if value is not None and type(value) is not wanted:
                raise ArgumentError(f"{name}={value!r} is not of type {wanted.__name__}")
        if self.kind is not None and self.kind not in KINDS:
            raise ArgumentError(f"kind={self.kind!r} is not a kind of problem; allowed: {', '.join(KINDS)}")
        return self

    def where(self) -> tuple[str, tuple[Any, ...]]:
        """Return an SQL condition, and its parameters."""
        given = {name: value for name, value in self._asdict().items() if value is not None}
        return " AND ".join(["1", *(f"{name} = ?" for name in given)]), tuple(given.values())

    def accepts(self, entry: TuningEntry) -> bool:
        """Tell whether an entry is meant."""
        values = _derived(entry.key)
        return all(value is None or value == values[name] for name, value in self._asdict().items())


Record = tuple[Any, ...]  # what the columns hold


def insert(connection: sqlite3.Connection, records: Iterable[Record], *, newer: bool = False) -> int:
    """Write records, in place of those of the same key (with `newer`: of older ones only); return how many were."""
    written = 0
    for record in records:
        written += connection.execute(_UPSERT_NEWER if newer else _UPSERT, record).rowcount
    return written


def record_of(entry: TuningEntry) -> Record:
    """Return what the columns hold of an entry.

    Raises
    ------
    ArgumentError
        The key is none, or a row holds what cannot be written.
    """
    rows = json.dumps([row_to_plain(row) for row in entry.rows], separators=(",", ":"), allow_nan=False)
    values = {item.name: getattr(entry, item.name) for item in fields(entry)}
    values |= {"digest": entry.key.digest, "key": entry.key.text, "rows": rows} | _derived(entry.key)
    return tuple(values[name] for name in _COLUMNS)


def entry_of(record: Record) -> TuningEntry:
    """Return the entry of a record that `SELECT` yields.

    Raises
    ------
    ArgumentError
        It is not what was written: the digest is another text's, or a value cannot be read.
    """
    digest, text, title, timing, rows, chosen, tuned_at, seconds, version = record
    if not isinstance(text, str) or (key := TuningKey(text)).digest != digest:
        raise ArgumentError(f"the digest {digest!r} is not that of its key")
    key.device  # noqa: B018  (raises if a part is missing)
    try:
        plain = json.loads(rows)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"the rows of {digest} cannot be read: {error}") from error
    if not isinstance(plain, list):
        raise ArgumentError(f"the rows of {digest} are no list")
    return TuningEntry(key, title, timing, tuple(map(row_from_plain, plain)), chosen, tuned_at, seconds, version)


def readable(records: Iterable[Record]) -> tuple[list[TuningEntry], int]:
    """Return the entries of those records that can be read, and the number of the others."""
    found, bad = [], 0
    for record in records:
        try:
            found.append(entry_of(record))
        except ArgumentError:
            bad += 1
    return found, bad


def _derived(key: TuningKey) -> dict[str, Any]:
    device = key.device.to_plain()
    return {name: key.kind if name == "kind" else device[name] for name in _DERIVED}


def _utc(text: str) -> str:
    """Return a time in UTC, always of the same length."""
    try:
        time = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    except ValueError as error:
        raise ArgumentError(f"tuned_at={text!r} is no time in ISO 8601: {error}") from error
    if time.tzinfo is None:
        raise ArgumentError(f"tuned_at={text!r} has no offset; allowed: UTC, such as 2026-01-31T12:00:00+00:00")
    return time.astimezone(timezone.utc).isoformat(timespec="microseconds")
