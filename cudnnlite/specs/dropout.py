"""`DropoutSpec`: how much is dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    if not isinstance(value, (bool, str)):
        try:
            if 0 <= value <= 1:
                return float(value)
        except TypeError:
            pass
    raise ArgumentError(f"{argument}={value!r}; allowed: a probability from 0 to 1")
