"""`Finding`: one thing that was looked at, what was found, and what to do about it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


class Verdict(enum.IntEnum):
    """How bad it is; the worse, the greater.

    OK is as it should be.  A NOTE changes nothing that was asked for, or was asked for.  A WARNING works now, and may surprise
    later: slowly, with other numbers, or beside another library.  What is BROKEN keeps cudnnlite from doing what this
    environment asks of it.
    """

    OK = 0
    NOTE = 1
    WARNING = 2
    BROKEN = 3

    @property
    def word(self) -> str:
        """The name as it is printed and written: 'ok', 'note', 'warning', 'broken'."""
        return self.name.lower()


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Parameters
    ----------
    check : str
        What was looked at, as a name that stays: 'library.loaded'.  The part before the dot is the area.
    verdict : Verdict
        How bad it is.
    text : str
        What was found.
    fix : str
        What to do about it, in one line; every WARNING and everything BROKEN has one.
    lines : sequence of str
        What belongs to the text and is many: paths.
    facts : dict
        The same for programs, as JSON can hold it.
    """

    check: str
    verdict: Verdict
    text: str
    fix: str = ""
    lines: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.verdict >= Verdict.WARNING and not self.fix:
            raise ValueError(f"{self.check}: a problem without a fix: {self.text}")

    @property
    def area(self) -> str:
        """'library', 'cuda', 'environment', 'cache', or 'doctor' where a check failed."""
        return self.check.partition(".")[0]

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {
            "check": self.check,
            "status": self.verdict.word,
            "text": self.text,
            "fix": self.fix,
            "lines": list(self.lines),
            "facts": dict(self.facts),
        }


def worst(findings: Iterable[Finding]) -> Verdict:
    """Return the greatest verdict; OK where there is none."""
    return max((finding.verdict for finding in findings), default=Verdict.OK)
