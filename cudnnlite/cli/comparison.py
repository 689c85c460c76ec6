"""Entries of tuning caches in words, and comparisons of two caches: as lines, as CSV, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from statistics import geometric_mean
from typing import Any, NamedTuple

from cudnnlite._raw.library import format_version
from cudnnlite.cli.common import failure
from cudnnlite.cli.tunings import csv_text
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.results import named
from cudnnlite.sizes import format_size
from cudnnlite.texts import aligned, counted, printable
from cudnnlite.workbench.tuning.entries import TuningEntry
from cudnnlite.workbench.tuning.problem_list import summary
from cudnnlite.workbench.tuning.tuned_problem import cost

_HEADING = ("A ms", "B ms", "B/A", "choice of A", "choice of B", "problem", "wanted")


class TunedPair(NamedTuple):
    """A problem that both sides have.

    Attributes
    ----------
    a_ms, b_ms : float or None
        The time of each side's choice by the policy's objective; None if it was not timed.
    ratio : float or None
        b_ms over a_ms.
    a, b : str
        The choices.
    problem : str
        The problem in short.
    policy : str
        The policy's settings that are not the default.
    """

    a_ms: float | None
    b_ms: float | None
    ratio: float | None
    a: str
    b: str
    problem: str
    policy: str


class Comparison:
    """The problems that two sides have, compared.

    Parameters
    ----------
    a, b : sequence of TuningEntry
        The entries of each side, the oldest first.  If a side has several entries of a problem, the
        newest counts.
    """

    def __init__(self, a: Sequence[TuningEntry], b: Sequence[TuningEntry]) -> None:
        newest_a, newest_b = _newest_by_problem(a), _newest_by_problem(b)
        self._sides = (a, b)
        self.pairs = [
            _pair(entry, newest_b[problem])
            for problem, entry in newest_a.items()
            if problem in newest_b
        ]
        ratios = [pair.ratio for pair in self.pairs if pair.ratio is not None]
        self.timed = len(ratios)
        self.mean = geometric_mean(ratios) if ratios else None
        self.left_out = {
            "in A only": len(newest_a) - len(self.pairs),
            "in B only": len(newest_b) - len(self.pairs),
            "without a time": len(self.pairs) - self.timed,
            "older": len(a) + len(b) - len(newest_a) - len(newest_b),
        }

    def lines(self, names: Sequence[str]) -> Iterator[str]:
        """Yield the lines for people; `names` are those of the sides."""
        for letter, name, side in zip("AB", names, self._sides, strict=True):
            yield _side_line(letter, name, side)
        if self.pairs:
            yield from aligned([_HEADING, *map(_cells, self.pairs)], _HEADING[:3])
        mean = "-" if self.mean is None else f"{self.mean:.4f}"
        yield f"geometric mean of B/A: {mean}, of {counted(self.timed, 'problem')}"
        reasons = [f"{count} {reason}" for reason, count in self.left_out.items() if count]
        if reasons:
            yield f"left out: {', '.join(reasons)}"

    def csv(self) -> str:
        """Return the pairs as CSV, times in milliseconds."""
        return csv_text([_HEADING, *self.pairs]).rstrip("\n")

    def plain(self, names: Sequence[str]) -> dict[str, Any]:
        """Return everything, as JSON can hold it."""
        name_of_a, name_of_b = names
        return {
            "a": name_of_a,
            "b": name_of_b,
            "problems": [pair._asdict() for pair in self.pairs],
            "geometric_mean": self.mean,
            "left_out": self.left_out,
        }


def _newest_by_problem(side: Sequence[TuningEntry]) -> dict[str, TuningEntry]:
    """Return the newest entry of each problem and policy, whatever device it was measured on."""
    return {json.dumps(entry.key.plain | {"device": None}, sort_keys=True): entry for entry in side}


def _side_line(letter: str, name: str, side: Sequence[TuningEntry]) -> str:
    """Return the line of a side: how many entries it has, and where they were measured."""
    devices = {
        f"{entry.key.device.gpu} with cuDNN {format_version(entry.key.device.cudnn)}"
        for entry in side
    }
    count = counted(len(side), "entry", "entries")
    return printable(f"{letter}: {name}: {count}: {', '.join(sorted(devices)) or '-'}")


def _cells(pair: TunedPair) -> list[str]:
    """Return a row of the table."""
    numbers = [
        "-" if number is None else f"{number:.4f}" for number in (pair.a_ms, pair.b_ms, pair.ratio)
    ]
    choice_of_b = "same" if pair.a == pair.b else pair.b
    return [*numbers, pair.a, choice_of_b, pair.problem, pair.policy]


def problem_text(entry: TuningEntry) -> str:
    """Return the problem in short; its title then, if this version has no such problem."""
    try:
        return printable(summary(entry.key.problem))
    except ArgumentError:
        return printable(entry.title)


def policy_text(entry: TuningEntry) -> str:
    """Return the settings of an entry's policy that are not the default, and unusual alignments."""
    policy: Mapping[str, Any] = entry.key.plain["policy"]
    alignments: Mapping[str, int] = entry.key.plain["alignments"]
    # Keys also name some fields whose value is the default, None.
    texts = [f"{name}={_text(name, value)}" for name, value in policy.items() if value is not None]
    texts += [f"{operand} aligned to {nbytes}" for operand, nbytes in alignments.items()]
    return printable(", ".join(texts)) or "-"


def _text(name: str, value: Any) -> str:
    """Return a field of a policy as text."""
    if name == "workspace_limit" and isinstance(value, int):
        return format_size(value)
    if isinstance(value, list):
        return "+".join(map(str, value))
    return str(value)


def _pair(a: TuningEntry, b: TuningEntry) -> TunedPair:
    a_ms, b_ms = _time_ms(a), _time_ms(b)
    ratio = None
    if a_ms is not None and b_ms is not None and 0 < b_ms / a_ms < inf:
        ratio = b_ms / a_ms
    return TunedPair(
        a_ms,
        b_ms,
        ratio,
        named(a.rows[a.chosen]),
        named(b.rows[b.chosen]),
        problem_text(a),
        policy_text(a),
    )


def _time_ms(entry: TuningEntry) -> float | None:
    """Return the time of an entry's choice by its policy's objective.

    None if it was not timed so, or if the number is no time: the file may be somebody else's.
    """
    row, policy = entry.rows[entry.chosen], entry.key.policy
    if policy.get("objective") == "latency" and row.call_us is None:
        return None
    time_ms = cost(row, policy)
    if time_ms is None or not 0 < time_ms < inf:
        return None
    return time_ms


def refuse_rehearsal_beside_gpu(names: Sequence[str], rehearsals: Sequence[bool]) -> None:
    """End the command if of several caches some are rehearsals and others are not."""
    if any(rehearsals) and not all(rehearsals):
        name = names[rehearsals.index(True)]
        raise failure(f"{name} is a rehearsal on the emulated device: no GPU is compared with it")
