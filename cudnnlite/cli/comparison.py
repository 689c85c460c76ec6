"""Entries of tuning caches in words, and two sides of them compared: as lines, as CSV, as plain values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import inf
from statistics import geometric_mean
from typing import Any, NamedTuple

from cudnnlite._raw.library import format_version
from cudnnlite.autotune.entries import TuningEntry
from cudnnlite.autotune.tuned_problem import cost
from cudnnlite.cli.tunings import csv_text
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.problem_list import summary
from cudnnlite.problems.results import named
from cudnnlite.sizes import format_size
from cudnnlite.texts import aligned, counted, printable

_HEADING = ("A ms", "B ms", "B/A", "choice of A", "choice of B", "problem", "wanted")


class Pair(NamedTuple):
    """A problem on both sides: the choices, their milliseconds by the policy's objective, if timed, and B's over A's."""

    a_ms: float | None
    b_ms: float | None
    ratio: float | None
    a: str
    b: str
    problem: str
    wanted: str


class Comparison:
    """Two sides' entries, the oldest first; where one side has a problem more than once, its newest counts."""

    def __init__(self, *sides: Sequence[TuningEntry]) -> None:
        # by what an entry is remembered for, whatever it was measured on
        first, second = (
            {
                json.dumps(entry.key.plain | {"device": None}, sort_keys=True): entry
                for entry in side
            }
            for side in sides
        )
        self._sides, self.pairs = (
            sides,
            [_pair(entry, second[key]) for key, entry in first.items() if key in second],
        )
        ratios, both = (
            [pair.ratio for pair in self.pairs if pair.ratio is not None],
            len(self.pairs),
        )
        self.timed, self.mean = len(ratios), geometric_mean(ratios) if ratios else None
        alone = {"in A only": len(first) - both, "in B only": len(second) - both}
        older = sum(map(len, sides)) - len(first) - len(second)
        self.left_out = {**alone, "without a time": both - self.timed, "older": older}

    def lines(self, names: Sequence[str]) -> Iterator[str]:
        """Yield the lines for people; `names` are those of the sides."""
        for letter, name, side in zip("AB", names, self._sides, strict=True):
            origins = {
                f"{entry.key.device.gpu} with cuDNN {format_version(entry.key.device.cudnn)}"
                for entry in side
            }
            yield printable(
                f"{letter}: {name}: {counted(len(side), 'entry', 'entries')}: {', '.join(sorted(origins)) or '-'}"
            )
        times = [
            ["-" if value is None else f"{value:.4f}" for value in pair[:3]] for pair in self.pairs
        ]
        texts = [[pair.a, "same" if pair.a == pair.b else pair.b, *pair[5:]] for pair in self.pairs]
        if self.pairs:
            yield from aligned(
                [_HEADING, *(each + text for each, text in zip(times, texts, strict=True))],
                _HEADING[:3],
            )
        mean = "-" if self.mean is None else f"{self.mean:.4f}"
        yield f"geometric mean of B/A: {mean}, of {counted(self.timed, 'problem')}"
        if any(self.left_out.values()):
            yield f"left out: {', '.join(f'{number} {why}' for why, number in self.left_out.items() if number)}"

    def csv(self) -> str:
        """Return the pairs as CSV, times in milliseconds."""
        return csv_text([_HEADING, *self.pairs]).rstrip("\n")

    def plain(self, names: Sequence[str]) -> dict[str, Any]:
        """Return everything, as JSON can hold it."""
        sides, pairs = dict(zip("ab", names, strict=True)), [pair._asdict() for pair in self.pairs]
        return {**sides, "problems": pairs, "geometric_mean": self.mean, "left_out": self.left_out}


def what(entry: TuningEntry) -> str:
    """Return the problem in short; as it was called then, if this version has no such problem."""
    try:
        return printable(summary(entry.key.problem))
    except ArgumentError:
        return printable(entry.title)


def wanted(entry: TuningEntry) -> str:
    """Return what the entry's policy asks for beyond the usual, and where operands were not aligned as usual."""
    plain = entry.key.plain
    texts = [f"{name}={_text(name, value)}" for name, value in plain["policy"].items()]
    texts += [f"{name} aligned to {value}" for name, value in plain["alignments"].items()]
    return printable(", ".join(texts)) or "-"


def _text(name: str, value: Any) -> str:
    if name == "workspace_limit" and isinstance(value, int):
        return format_size(value)
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def _pair(*entries: TuningEntry) -> Pair:
    chosen = [entry.rows[entry.chosen] for entry in entries]
    policies = [entry.key.policy for entry in entries]
    times = [
        None
        if policy.get("objective") == "latency" and row.call_us is None
        else cost(row, policy)  # no stand-in
        for row, policy in zip(chosen, policies, strict=True)
    ]
    a, b = (
        ms if ms is not None and 0 < ms < inf else None for ms in times
    )  # files of others may hold any number
    ratio, (choice, other) = b / a if a is not None and b is not None else 0, map(named, chosen)
    within = ratio if 0 < ratio < inf else None  # two such numbers may be too far apart for a float
    return Pair(a, b, within, choice, other, what(entries[0]), wanted(entries[0]))
