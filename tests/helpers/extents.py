"""How much of a recorded table, a grid or a random suite a test covers: a sample, or all of it.

A run of pytest takes the sample.  `-m exhaustive` takes everything, as CI does in a step of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import pytest

Row = TypeVar("Row")
SAMPLE, ALL = "sample", "all"
EXTENTS = (SAMPLE, pytest.param(ALL, marks=pytest.mark.exhaustive))
each_extent = pytest.mark.parametrize("extent", EXTENTS)


def rows_of(
    rows: Iterable[Row], extent: str, traits_of: Callable[[Row], Iterable[Hashable]]
) -> list[Row]:
    """Return all rows, or a sample: each row with a trait that no row before it in the sample has.

    A trait of a recorded row is a value of one of its parameters together with the outcome, so the
    sample has each value with each outcome that the value ever had.
    """
    if extent == ALL:
        return [*rows]
    sample: list[Row] = []
    seen: set[Hashable] = set()
    for row in rows:
        traits = {*traits_of(row)}
        if not traits <= seen:
            sample.append(row)
            seen |= traits
    return sample


def traits(parameters: Iterable[object], *outcome: object) -> list[str]:
    """Return the traits of a row: each parameter with its place, and the outcome."""
    return [f"{place} {parameter!r} {outcome!r}" for place, parameter in enumerate(parameters)]
