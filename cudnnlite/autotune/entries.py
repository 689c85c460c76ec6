"""`TuningEntry`: what is remembered of one tuning, and the JSON that holds it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from math import isfinite
from typing import Any

from cudnnlite.autotune.keys import TuningKey
from cudnnlite.autotune.rows import row_from_plain, row_to_plain
from cudnnlite.errors import ArgumentError, TuningCacheError
from cudnnlite.operations.problem import KINDS
from cudnnlite.search.results import AlgorithmResult

# Of the JSON: another number where it says something that this version would not understand, a new field of a row too.  An
# older version then leaves the file alone, and does not take it for a damaged one.
FORMAT = 1


@dataclass(frozen=True)
class TuningEntry:
    """What is remembered of one tuning; ArgumentError if a value is not allowed.

    Attributes
    ----------
    key : TuningKey
        What was tuned, for whom, on what.
    title, timing : str
        What the table is called, and where its times come from.
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
        object.__setattr__(self, "rows", tuple(replace(row, passed_over=()) for row in self.rows))
        object.__setattr__(self, "tuned_at", _utc(self.tuned_at))


def parse_filter(gpu: str | None, cudnn: int | None, kind: str | None) -> Callable[[TuningEntry], bool]:
    """Return what tells whether an entry has every value that is given; ArgumentError if none could."""
    for name, value, wanted in (("gpu", gpu, str), ("cudnn", cudnn, int), ("kind", kind, str)):
        if value is not None and type(value) is not wanted:
            raise ArgumentError(f"{name}={value!r} is not of type {wanted.__name__}")
    if kind is not None and kind not in KINDS:
        raise ArgumentError(f"kind={kind!r} is not a kind of problem; allowed: {', '.join(KINDS)}")
    return lambda entry: (
        gpu in (None, entry.key.device.gpu)
        and cudnn in (None, entry.key.device.cudnn)
        and kind in (None, entry.key.kind)
    )


def entry_to_json(entry: TuningEntry) -> str:
    """Return the JSON of an entry, its key readable; ArgumentError if the key is none, or a row cannot be written."""
    values = {item.name: getattr(entry, item.name) for item in fields(entry)}
    values |= {"key": entry.key.plain, "rows": [row_to_plain(row) for row in entry.rows]}
    text = json.dumps({"format": FORMAT, **values}, indent=1)
    entry_from_json(text, entry.key.digest)  # refuses what could not be read again
    return text


def entry_from_json(text: str | bytes, digest: str) -> TuningEntry:
    """Return the entry that was written, whose key has this digest.

    Raises
    ------
    ArgumentError
        It is not what was written.
    TuningCacheError
        A newer version of cudnnlite has written it.
    """
    try:
        values = json.loads(text)
        form = values.pop("format")
        if type(form) is int and form > FORMAT:
            raise TuningCacheError(f"is of format {form}, from a newer cudnnlite; this one has {FORMAT}")
        key = TuningKey.of(values.pop("key"))
        if form is True or form != FORMAT or key.digest != digest:
            raise ValueError("its key is not that of its name")
        key.device  # noqa: B018  (raises if a part is missing)
        return TuningEntry(key=key, rows=tuple(map(row_from_plain, values.pop("rows"))), **values)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError) as error:
        raise ArgumentError(f"is no entry of a tuning cache ({error})") from error


def _utc(text: str) -> str:
    """Return a time in UTC, always of the same length."""
    try:
        time = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    except ValueError as error:
        raise ArgumentError(f"tuned_at={text!r} is no time in ISO 8601: {error}") from error
    if time.tzinfo is None:
        raise ArgumentError(f"tuned_at={text!r} has no offset; allowed: UTC, such as 2026-01-31T12:00:00+00:00")
    return time.astimezone(timezone.utc).isoformat(timespec="microseconds")
