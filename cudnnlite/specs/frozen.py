"""`FrozenSpec`: what the specs share as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from inspect import signature
from typing import Any, TypeVar

from cudnnlite.arguments import shown
from cudnnlite.dtypes import compute_type_for, dtype_name
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError

SpecT = TypeVar("SpecT", bound="FrozenSpec")

SPECS: dict[str, type[FrozenSpec]] = {}  # by name, as files have it


class FrozenSpec:
    """A frozen dataclass that sets its fields once and computes its hash once.

    One-line operations look their plan up by specs, so the hash is kept; it is never pickled, because hashes differ between
    processes.  Specs are compared as tuples are: a NaN is equal to itself (since Python 3.13 a dataclass's own comparison would
    say it is not).
    """

    _hash: int
    _key: tuple[Any, ...]

    def __init_subclass__(cls) -> None:
        if "__init__" in vars(cls):  # not what only gathers what others share
            SPECS.setdefault(cls.__name__, cls)

    def _freeze(self, **values: Any) -> None:
        """Set the fields, and the hash over all of them."""
        for name, value in values.items():
            object.__setattr__(self, name, value)
        key = tuple(values.values())
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "_hash", hash(key))

    def values(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_values(cls, values: Any) -> Any:
        """Return the spec whose `values` these are, checked as a constructor checks its arguments; enums may be names.

        Raises
        ------
        ArgumentError
            A field is missing, not known, or has a value that is not allowed.
        """
        try:
            if isinstance(values, Mapping):
                return cls._from(values)
            error: Exception | str = "they are no mapping"
        except (KeyError, TypeError) as caught:
            error = caught
        raise ArgumentError(f"values={shown(values)} are not a {cls.__name__}'s: {error}")

    @classmethod
    def _from(cls, values: Mapping[str, Any]) -> Any:
        return cls(**values)

    def replace(self: SpecT, **changes: Any) -> SpecT:
        """Return a copy with some fields changed; a compute type that is its dtype's own goes with another dtype."""
        values = self.values()
        if "dtype" in changes and values.get("compute_type") == compute_type_for(values["dtype"]):
            changes = {"compute_type": None, **changes}
        return type(self)._from(values | changes)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        parts, defaults = [], signature(type(self)).parameters
        for name, value in self.values().items():
            if name not in defaults or value != defaults[name].default:
                text = dtype_name(value) if isinstance(value, DataType) else getattr(value, "name", value)
                parts.append(f"{name}={text!r}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        assert isinstance(other, FrozenSpec)
        return self._hash == other._hash and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> Any:
        return _thaw, (type(self), self.values())


def _thaw(kind: type[FrozenSpec], values: dict[str, Any]) -> FrozenSpec:
    spec = kind.__new__(kind)
    spec._freeze(**values)
    return spec
