"""Text for people: aligned tables, counted nouns, names without control characters."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(
    rows: Sequence[Sequence[str]], numeric: Collection[str] = (), empty: Collection[str] = ()
) -> list[str]:
    """Return the lines of a table with padded columns; the first row is the heading.

    Lines are not wrapped.  Columns whose heading is in `numeric` are aligned to the right.  A
    column that has only cells from `empty` is left out.
    """
    padded = []
    for heading, *cells in zip(*rows, strict=True):
        if not empty or not set(cells) <= set(empty):
            pad = str.rjust if heading in numeric else str.ljust
            width = max(map(len, (heading, *cells)))
            padded.append([pad(cell, width) for cell in (heading, *cells)])
    return ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: '1 problem', '2 problems'."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {plural or noun + 's'}"


def figure(value: float | None, form: str = ".4g") -> str:
    """Return a number in a format of its own; the empty text for None."""
    return "" if value is None else format(value, form)


def yes_or_no(value: bool | None) -> str:
    """Return "yes" or "no"; the empty text for None."""
    if value is None:
        return ""
    return "yes" if value else "no"


def printable(text: str) -> str:
    """Return a text with a replacement mark for each character that cannot be printed."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number: most of the real-time signals have no name."""
    from signal import Signals  # for a process that was killed alone

    names = {int(signal): signal.name for signal in Signals}
    return names.get(number, f"signal {number}")
