"""`TuningEntry`: what is remembered of one tuning, and the JSON that holds it."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from math import inf
from typing import Any

from cudnnlite.autotune.keys import TuningKey, check_types
from cudnnlite.autotune.rows import row_from_plain, row_to_plain
from cudnnlite.errors import ArgumentError, TuningCacheError
from cudnnlite.search.results import AlgorithmResult

# Of the JSON: another number where it says something that this version would not understand, a new field of a row too.  An
# older version then leaves the file alone, and does not take it for a damaged one.
FORMAT = 1


@dataclass(frozen=True)
class TuningEntry:
    """What is remembered of one tuning; ValueError if a value is not allowed.

    `key` says what was tuned, for whom, on what.  `title` and `timing` are the table's, `rows` all its candidates in order, the
    failed ones too (their `passed_over` is not written), `chosen` is the index of one.  `tuned_at` is ISO 8601, kept in UTC to
    the microsecond, so that later is greater.  `cudnnlite` is the version that tuned, in `seconds`.
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
        check_types(self)
        if not (0 <= self.chosen < len(self.rows) and 0 <= self.seconds < inf):
            what = f"chosen={self.chosen} of {len(self.rows)} rows, seconds={self.seconds}"
            raise ArgumentError(f"{what}; allowed: one of the rows, a finite time")
        utc = datetime.fromisoformat(self.tuned_at).astimezone(timezone.utc)
        object.__setattr__(self, "tuned_at", utc.isoformat(timespec="microseconds"))


def entry_to_json(entry: TuningEntry) -> str:
    """Return the JSON of an entry, its key readable; ArgumentError if a row cannot be written."""
    values: dict[str, Any] = {"format": FORMAT, **{item.name: getattr(entry, item.name) for item in fields(entry)}}
    return json.dumps(values | {"key": entry.key.plain, "rows": [row_to_plain(row) for row in entry.rows]}, indent=1)


def entry_from_json(text: str | bytes, digest: str) -> TuningEntry:
    """Return the entry that was written, whose key has this digest.

    ArgumentError if it is not what was written; TuningCacheError if a newer version of cudnnlite has written it.
    """
    try:
        values = json.loads(text)
        form = values.pop("format")
        if type(form) is int and form > FORMAT:
            raise TuningCacheError(f"is of format {form}, from a newer cudnnlite; this one has {FORMAT}")
        key = TuningKey.of(values.pop("key"))
        if type(form) is not int or form < 1 or key.digest != digest:
            raise ValueError("its key is not that of its name")
        key.device, key.kind  # noqa: B018  (raise if a part is missing)
        return TuningEntry(key=key, rows=tuple(map(row_from_plain, values.pop("rows"))), **values)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError) as error:
        raise ArgumentError(f"is no entry of a tuning cache ({error})") from error
