"""`Finding`: the result of one check: what was found, how serious it is, and what to do."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Verdict(enum.IntEnum):
    """How serious a finding is; a greater value is worse."""

    OK = 0  # Nothing is wrong.
    NOTE = 1  # Changes nothing that the user asked for, or is what the user asked for.
    # Works now, but may later be slow, give other numbers, or conflict with another library.
    WARNING = 2
    BROKEN = 3  # Keeps cudnnlite from doing what this environment asks of it.

    @property
    def word(self) -> str:
        """The name as it is printed and written: 'ok', 'note', 'warning', 'broken'."""
        return self.name.lower()


OK, NOTE, WARNING, BROKEN = Verdict


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes
    ----------
    check : str
        A stable name of the check, such as 'library.loaded'; the part before the dot is the area.
    verdict : Verdict
        The severity of the finding.
    text : str
        The finding in words.
    fix : str
        What to do about it, in one line. Every WARNING and BROKEN finding has a fix.
    lines : tuple of str
        Details that need a line each, such as paths.
    facts : mapping
        The finding for programs, as values that JSON can hold.
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

    def to_plain(self) -> dict[str, Any]:
        """Return the finding as values that JSON can hold."""
        return {
            "check": self.check,
            "status": self.verdict.word,
            "text": self.text,
            "fix": self.fix,
            "lines": list(self.lines),
            "facts": dict(self.facts),
        }


def finding_of(
    check: str,
    facts: Mapping[str, Any],
    verdict: Verdict,
    message: str,
    fix: str = "",
) -> Finding:
    """Return a finding whose `text` is the first line of a message; the others are its `lines`."""
    text, *lines = [line.strip() for line in message.splitlines()]
    return Finding(check, verdict, text, fix, tuple(lines), facts)
