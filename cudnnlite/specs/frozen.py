"""`FrozenSpec`: the base class of specs; and specs as plain values, as JSON has them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
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
    because hashes differ between processes.  Specs are compared by `exact_key`: a NaN is equal to
    itself, and 0.0 is not equal to -0.0.
    """

    _hash: int
    _key: tuple[Any, ...]

    def __init_subclass__(cls, c_functions: str = "") -> None:
        """Note a spec, and complete its docstring with the C functions that it is passed to."""
        if "__init__" not in vars(cls):  # a base class of specs
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
        parts = [exact_key(part) if type(part) is tuple else part for part in values.values()]
        key = exact_key(parts)
        vars(self).update(values, _key=key, _hash=hash(key))

    def values(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_values(cls, values: Any) -> Any:
        """Return the spec with these `values`, which are checked as a constructor checks them.

        Enums may be names.

        Raises
        ------
        ArgumentError
            A field is missing, not known, or has a value that is not allowed.
        """
        try:
            cls._check_names(values)
            return cls._from(values)
        except (KeyError, TypeError) as error:
            raise ArgumentError(
                f"values={shown(values)} are not a {cls.__name__}'s: {error}"
            ) from None

    @classmethod
    def _from(cls, values: Mapping[str, Any]) -> Any:
        return cls(**values)

    @classmethod
    def _check_names(cls, values: Any) -> None:
        """Raise TypeError for a name that is no field, such as a tensor's layout."""
        if not isinstance(values, Mapping):
            raise TypeError("they are no mapping")
        names = [item.name for item in fields(cls)]  # type: ignore[arg-type]
        for name in values:
            if name not in names:
                hint = meant(str(name), names) or f"; its fields: {', '.join(names)}"
                raise TypeError(f"{cls.__name__} has no field {name!r}{hint}")

    def replace(self: SpecT, **changes: Any) -> SpecT:
        """Return a copy with some fields changed.

        With another dtype, a compute type that is the dtype's own changes too.
        """
        self._check_names(changes)
        values = self.values()
        if "dtype" in changes and values.get("compute_type") == compute_type_for(values["dtype"]):
            changes = {"compute_type": None, **changes}
        return type(self)._from(values | changes)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        parts = []
        defaults = _parameters_of(type(self))  # type: ignore[arg-type]
        for name, value in self.values().items():
            is_default = name in defaults and exact_key([value]) == exact_key(
                [defaults[name].default]
            )
            if not is_default:
                parts.append(f"{name}={display_value(value)!r}")
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


def exact_key(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return values as a part of a key, in which zeros and NaN are texts.

    As floats 0.0 and -0.0 would be one key, so that the second call would have the first one's sign
    of zero; and a NaN would not be equal to another, so that each call would have its own plan.
    """
    return tuple(
        [
            str(value) if type(value) is float and not (value < 0 or value > 0) else value
            for value in values
        ]
    )


@cache
def _parameters_of(kind: type[FrozenSpec]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(kind).parameters


def display_value(value: Any) -> Any:
    """Return a field's value as `repr` shows it: enums by their names."""
    if isinstance(value, DataType):
        return dtype_name(value)
    return getattr(value, "name", value)


def _thaw(kind: type[FrozenSpec], values: dict[str, Any]) -> FrozenSpec:
    spec = kind.__new__(kind)
    spec._freeze(**values)
    return spec


def whole_or_made(
    kind: type[SpecT],
    first: Any,
    options: Mapping[str, Any] = {},
    **arguments: Any,
) -> SpecT:
    """Return the spec that is given instead of its first argument, or make one.

    Arguments beside a whole spec are refused.  Of `arguments`, None means not given.
    """
    present = {name: value for name, value in arguments.items() if value is not None}
    present |= options
    if not isinstance(first, kind):
        return kind(first, **present)  # type: ignore[call-arg]
    for name, value in present.items():
        raise ArgumentError(
            f"{name}={shown(value)} is given beside a whole spec, {first}, which has its own"
        )
    return first


def to_plain(value: Any) -> Any:
    """Return the fields of a spec as plain values, enums by their names.

    The name of the spec's class is under 'spec'.  TypeError if a value has no plain form.
    """
    if isinstance(value, FrozenSpec):
        plain_fields = {name: to_plain(field) for name, field in value.values().items()}
        return {"spec": type(value).__name__, **plain_fields}
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
    """Return the spec of plain values, as `to_plain` made them.

    ArgumentError if they are no spec, lack a field, or have a value that is not allowed.
    """
    name = plain.get("spec") if isinstance(plain, dict) else None
    kind = SPECS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ArgumentError(
            f"{argument}={shown(plain)} is not a spec; allowed: "
            f"an object with 'spec', one of {[*SPECS]}"
        )
    values = {name: _tuples(value) for name, value in plain.items() if name != "spec"}
    names = [item.name for item in fields(kind)]  # type: ignore[arg-type]
    if set(values) != set(names):
        raise ArgumentError(
            f"{argument}={shown(plain)} is not a {kind.__name__}; "
            f"it must have the fields {', '.join(names)}"
        )
    return kind.from_values(values)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
