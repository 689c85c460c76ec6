"""`FrozenSpec`: what the specs share as values."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


class FrozenSpec:
    """A frozen dataclass that sets its fields once and computes its hash once.

    One-line operations look their plan up by specs, so the hash is kept; it is never pickled, because hashes differ between
    processes.
    """

    _hash: int

    def _freeze(self, **values: Any) -> None:
        """Set the fields, and the hash over all of them."""
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_hash", hash(tuple(values.values())))

    def values(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Any:
        """Return the spec whose `values` these are, checked as a constructor checks its arguments; enums may be names."""
        return cls(**values)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> Any:
        return _thaw, (type(self), self.values())


def _thaw(kind: type[FrozenSpec], values: dict[str, Any]) -> FrozenSpec:
    spec = kind.__new__(kind)
    spec._freeze(**values)
    return spec
