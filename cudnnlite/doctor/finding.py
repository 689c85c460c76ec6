"""`Finding`: one thing that was looked at, what was found, and what to do about it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Verdict(enum.IntEnum):
    """How bad it is; the worse, the greater."""

    OK = 0  # as it should be
    NOTE = 1  # changes nothing that was asked for, or was asked for
    WARNING = 2  # works now, and may surprise later: slowly, with other numbers, or beside another library
    BROKEN = 3  # keeps cudnnlite from doing what this environment asks of it

    @property
    def word(self) -> str:
        """The name as it is printed and written: 'ok', 'note', 'warning', 'broken'."""
        return self.name.lower()


OK, NOTE, WARNING, BROKEN = Verdict


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    check: str  # what was looked at, as a name that stays: 'library.loaded'; the part before the dot is the area
    verdict: Verdict
    text: str  # what was found
    fix: str = ""  # what to do about it, in one line; every WARNING and everything BROKEN has one
    lines: tuple[str, ...] = ()  # what belongs to the text and is many: paths
    facts: Mapping[str, Any] = field(
        default_factory=dict
    )  # the same for programs, as JSON can hold it

    def __post_init__(self) -> None:
        if self.verdict >= Verdict.WARNING and not self.fix:
            raise ValueError(f"{self.check}: a problem without a fix: {self.text}")

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        columns = {
            "check": self.check,
            "status": self.verdict.word,
            "text": self.text,
            "fix": self.fix,
        }
        return {**columns, "lines": list(self.lines), "facts": dict(self.facts)}


def first(
    check: str, facts: Mapping[str, Any], *rules: tuple[object, Verdict, str, str]
) -> Finding:
    """Return what the first rule says that applies: whether it does, how bad that is, what was found, what to do."""
    verdict, text, fix = next(rule[1:] for rule in rules if rule[0])
    text, *lines = map(str.strip, text.splitlines())
    return Finding(check, verdict, text, fix, tuple(lines), facts)
