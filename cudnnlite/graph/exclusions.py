"""Engines and graphs that a user excludes: the file that `CUDNNLITE_FAULTS` names.

It is a JSON list of objects, each a row like those of `faults.FAULTS`::

    [{"operation": "MATMUL", "engines": [7], "since": "9.19.0", "until": "9.24.0",
      "why": "it was wrong in our nightly run"}]
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cudnnlite._raw.enums import BackendDescriptorType
from cudnnlite._raw.library import version_number
from cudnnlite.arguments import integers, one_of, shown
from cudnnlite.errors import ArgumentError
from cudnnlite.files import read_named_file

VARIABLE = "CUDNNLITE_FAULTS"
ATTENTION = "attention"  # an operation of several nodes
_PREFIX = "OPERATION_"
_FIELDS = ("operation", "engines", "since", "until", "why")
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,2})(?:\.(\d{1,2}))?")
_FIRST_MAJOR = 9  # of the versions that are loaded; their numbers are made otherwise before
_FIRST, _LAST = f"{_FIRST_MAJOR}.0", "999.0"
_MOST_ENGINES = 10_000


class Exclusion(NamedTuple):
    """A row of a user's file.

    Attributes
    ----------
    operation : str
        The operation of the graphs, or "attention"; empty for all.
    engines : frozenset of int or None
        The engines that are passed over; None: the graphs are refused.
    since, until : int
        The first version of cuDNN that is meant, and the first that is not.
    why : str
        The reason, for messages.
    """

    operation: str
    engines: frozenset[int] | None
    since: int
    until: int
    why: str

    def reason(self, _graph: Any, version: int) -> str | None:
        """Return why a graph of the operation is excluded with a version of cuDNN, or None."""
        return self.why if self.since <= version < self.until else None


def user_exclusions() -> tuple[Exclusion, ...]:
    """Return the rows of the file that the environment names; none if it names no file.

    Raises
    ------
    ArgumentError
        The file cannot be read, or has a row of another form; the message names both.
    """
    path = os.environ.get(VARIABLE, "")
    return read_exclusions(path) if path else ()


@cache
def read_exclusions(path: str) -> tuple[Exclusion, ...]:
    """Return the rows of a file, which is read once; the errors are those of `user_exclusions`."""
    try:
        plain = json.loads(read_named_file(Path(path)))
    except (OSError, ValueError, RecursionError) as error:
        raise ArgumentError(f"{VARIABLE}={shown(path)}: it cannot be read: {error}") from error
    if not isinstance(plain, list):
        raise ArgumentError(f"{VARIABLE}={shown(path)}: {shown(plain)}; needed: a list of objects")
    return tuple(_exclusion(row, f"{VARIABLE}={path}, row {n}") for n, row in enumerate(plain))


def _exclusion(row: Any, place: str) -> Exclusion:
    if not isinstance(row, Mapping):
        raise ArgumentError(f"{place}: {shown(row)}; needed: an object with {', '.join(_FIELDS)}")
    for field in {*row} - {*_FIELDS}:
        raise ArgumentError(f"{place}: field {shown(field)}; allowed: {', '.join(_FIELDS)}")
    operations = [
        kind.name.removeprefix(_PREFIX)
        for kind in BackendDescriptorType
        if kind.name.startswith(_PREFIX)
    ]
    operation = one_of(row.get("operation", ""), f"{place}: operation", "", ATTENTION, *operations)
    engines = row.get("engines")
    if engines is not None:
        numbers = integers(engines, f"{place}: engines", _MOST_ENGINES)
        if not 0 < len(numbers) <= _MOST_ENGINES or min(numbers) < 0:
            raise ArgumentError(
                f"{place}: engines={shown(engines)}; needed: numbers from 0, "
                f"{_MOST_ENGINES} at most"
            )
        engines = frozenset(numbers)
    why = row.get("why")
    if not isinstance(why, str) or not why:
        raise ArgumentError(f"{place}: why={shown(why)}; needed: the reason, for messages")
    since = _version(row.get("since", _FIRST), f"{place}: since")
    until = _version(row.get("until", _LAST), f"{place}: until")
    if since >= until:
        given = ", ".join(
            f"{name}={shown(row[name])}" for name in ("since", "until") if name in row
        )
        raise ArgumentError(f"{place}: {given}; needed: since before until, from {_FIRST} on")
    return Exclusion(operation, engines, since, until, f"{why} ({VARIABLE})")


def _version(text: Any, argument: str) -> int:
    """Return "9.28" or "9.28.0" as cudnnGetVersion returns it, 92800."""
    found = _VERSION.fullmatch(text) if isinstance(text, str) else None
    if found is None or int(found[1]) < _FIRST_MAJOR:
        raise ArgumentError(
            f"{argument}={shown(text)}; needed: a version such as '9.28.0', from {_FIRST} on"
        )
    return version_number(".".join(part or "0" for part in found.groups()))
