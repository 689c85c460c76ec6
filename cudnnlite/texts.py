"""Text for people: tables in columns, numbers of things, names that may contain anything."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from signal import Signals

SIGNALS = {int(each): each.name for each in Signals}  # most of the real-time ones have no name


def aligned(
    rows: Sequence[Sequence[str]], numeric: Collection[str] = (), empty: Collection[str] = ()
) -> list[str]:
    """Return the lines of a table, unwrapped, its columns padded; the cells' first row is the heading.

    The columns with a heading in `numeric` stand to the right.  `empty` are cells that say nothing:
    a column that has no others is left out.
    """
    padded = []
    for heading, *cells in zip(*rows, strict=True):
        if not empty or not set(cells) <= set(empty):
            pad = str.rjust if heading in numeric else str.ljust
            width = max(map(len, (heading, *cells)))
            padded.append([pad(cell, width) for cell in (heading, *cells)])
    return ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return '1 problem', '2 problems'."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def printable(text: str) -> str:
    """Return a text with a mark for each character that cannot be shown, or be part of a page: a name may contain any."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
