"""`DropoutSpec`: how much is dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnnlite.arguments import real_number, shown
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.frozen import FrozenSpec


@dataclass(frozen=True, init=False, repr=False, eq=False)
class DropoutSpec(FrozenSpec):
    """With which probability a value is dropped: a frozen value.

    The random numbers' state goes with it, by its identity, but is no field: files and copies do not have it.
    """

    dropout: float

    def __init__(self, dropout: float, state: Any = None) -> None:
        self._freeze(dropout=parse_probability(dropout), state=state)


def parse_probability(value: Any, argument: str = "dropout") -> float:
    """Return a probability of dropping values; ArgumentError if it is none."""
    number = -1.0 if isinstance(value, (bool, str)) else real_number(value, argument)
    if 0 <= number <= 1:
        return number
    raise ArgumentError(f"{argument}={shown(value)}; allowed: a probability from 0 to 1")
