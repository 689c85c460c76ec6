"""`FrozenSpec`: what the specs share as values; and they as plain ones (strings, numbers, lists, dicts), as JSON has them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from cudnnlite._raw.cenum import CEnum
from cudnnlite.arguments import shown
from cudnnlite.dtypes import compute_type_for, dtype_name
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.unknown import meant, suggest_keywords

SpecT = TypeVar("SpecT", bound="FrozenSpec")

SPECS: dict[str, type[FrozenSpec]] = {}  # by name, as files have it
_RAISES = """\
Raises
------
ArgumentError
    A value that is not allowed; the message names the argument.

"""
_NOTES = """\
Notes
-----
C functions: {}.

"""


class FrozenSpec:
    """A frozen dataclass that sets its fields once and computes its hash once.

    One-line operations look their plan up by specs, so the hash is kept; it is never pickled,
    because hashes differ between processes.  Specs are compared as tuples are: a NaN is equal to
    itself (since Python 3.13 a dataclass's own comparison would say it is not).
    """

    _hash: int
    _key: tuple[Any, ...]

    def __init_subclass__(cls, c_functions: str = "") -> None:
        """Note a spec, and complete its docstring with the C functions that it is passed to."""
        if "__init__" not in vars(cls):  # what only gathers what others share
            return
        cls.__init__ = suggest_keywords(cls.__init__)  # type: ignore[method-assign]
        if SPECS.setdefault(cls.__name__, cls) is cls:
            functions = ", ".join(f"`{name}`" for name in c_functions.split())
            sections = _RAISES + (_NOTES.format(functions) if functions else "")
            text = inspect.cleandoc(cls.__doc__ or "")
            cls.__doc__ = re.sub(
                "^(?=(Notes|Examples)\n---)", sections, text, count=1, flags=re.MULTILINE
            )

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
            cls._check_known(values)
            return cls._from(values)
        except (KeyError, TypeError) as error:
            raise ArgumentError(
                f"values={shown(values)} are not a {cls.__name__}'s: {error}"
            ) from None

    @classmethod
    def _from(cls, values: Mapping[str, Any]) -> Any:
        return cls(**values)

    @classmethod
    def _check_known(cls, given: Any) -> None:
        known = [item.name for item in fields(cls)]  # type: ignore[arg-type]
        if not isinstance(given, Mapping):
            raise TypeError("they are no mapping")
        for name in (
            each for each in given if each not in known
        ):  # such as the layout of a tensor, which has strides
            hint = meant(str(name), known) or f"; its fields: {', '.join(known)}"
            raise TypeError(f"{cls.__name__} has no field {name!r}{hint}")

    def replace(self: SpecT, **changes: Any) -> SpecT:
        """Return a copy with some fields changed; a compute type that is its dtype's own goes with another dtype."""
        self._check_known(changes)
        values = self.values()
        if "dtype" in changes and values.get("compute_type") == compute_type_for(values["dtype"]):
            changes = {"compute_type": None, **changes}
        return type(self)._from(values | changes)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        parts, defaults = [], inspect.signature(type(self)).parameters
        for name, value in self.values().items():
            if name not in defaults or value != defaults[name].default:
                text = (
                    dtype_name(value)
                    if isinstance(value, DataType)
                    else getattr(value, "name", value)
                )
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


def whole_or_made(
    kind: type[SpecT], first: Any, options: Mapping[str, Any] = {}, **others: Any
) -> SpecT:
    """Return the spec that is given instead of its first argument, or make one; what is beside a whole one is refused.

    Of `others` None means not given; `options` are all given.
    """
    given = {name: value for name, value in others.items() if value is not None} | {**options}
    if not isinstance(first, kind):
        return kind(first, **given)  # type: ignore[call-arg]
    for name, value in given.items():
        raise ArgumentError(
            f"{name}={shown(value)} is given beside a whole spec, {first}, which has its own"
        )
    return first


def to_plain(value: Any) -> Any:
    """Return every field of a spec, under 'spec' the name of its class; enums as names.  TypeError if one has no plain form."""
    if isinstance(value, FrozenSpec):
        return {
            "spec": type(value).__name__,
            **{name: to_plain(field) for name, field in value.values().items()},
        }
    if isinstance(value, DataType):
        return dtype_name(value)
    if isinstance(value, CEnum):
        return value.name
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{value!r} of type {type(value).__name__} has no plain form")


def from_plain(plain: Any, argument: str = "spec") -> Any:
    """Return the spec that `to_plain` was given; ArgumentError if it is none, lacks a field, or has one that is not allowed."""
    name = plain.get("spec") if isinstance(plain, dict) else None
    kind = SPECS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ArgumentError(
            f"{argument}={shown(plain)} is not a spec; allowed: an object with 'spec', one of {[*SPECS]}"
        )
    values = {name: _tuples(value) for name, value in plain.items() if name != "spec"}
    known = [item.name for item in fields(kind)]  # type: ignore[arg-type]
    if {*values} != {*known}:
        raise ArgumentError(
            f"{argument}={shown(plain)} is not a {kind.__name__}; it must have the fields {', '.join(known)}"
        )
    return kind.from_values(values)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
