"""How much of a recorded table, a product or a random suite a test covers: a sample, or all of it.

A run of pytest takes the sample.  `-m exhaustive` takes everything, as CI does in a step of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable
from enum import Enum
from typing import Any, TypeVar

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


def each_pair(**axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Return the mark that runs a test with every combination of the values of three or more axes.

    A sample of them has every pair of values of two axes.  The others are exhaustive.
    """
    values = [[*axis] for axis in axes.values()]
    combinations = [*itertools.product(*values)]
    sample = with_all_pairs([*itertools.product(*(range(len(axis)) for axis in values))])
    parameters = [
        pytest.param(
            *combination,
            id="-".join(map(id_of, combination)),
            marks=() if number in sample else pytest.mark.exhaustive,
        )
        for number, combination in enumerate(combinations)
    ]
    return pytest.mark.parametrize(",".join(axes), parameters)


def with_all_pairs(combinations: list[tuple[int, ...]]) -> set[int]:
    """Return the numbers of combinations that have every pair which all of them have.

    First come those with many new pairs, so that few are enough.
    """
    pairs_of = [
        {*itertools.combinations(enumerate(combination), 2)} for combination in combinations
    ]
    sample: set[int] = set()
    seen: set[Any] = set()
    for fewest_new in range(len(pairs_of[0]), 0, -1):
        for number, pairs in enumerate(pairs_of):
            if len(pairs - seen) >= fewest_new:
                sample.add(number)
                seen |= pairs
    return sample


def id_of(value: object) -> str:
    """Return a value's part in the name of a test."""
    return value.name if isinstance(value, Enum) else str(value)
