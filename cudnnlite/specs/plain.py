"""Specs as plain values (strings, numbers, lists, dicts): what JSON can hold, and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from cudnnlite._raw.cenum import CEnum
from cudnnlite.arguments import shown
from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.frozen import SPECS, FrozenSpec


def to_plain(value: Any) -> Any:
    """Return every field of a spec, under 'spec' the name of its class; enums as their names.

    Raises
    ------
    TypeError
        A field holds something that has no plain form yet.
    """
    if isinstance(value, FrozenSpec):
        return {"spec": type(value).__name__, **{name: to_plain(field) for name, field in value.values().items()}}
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
    """Return the spec that `to_plain` was given.

    Raises
    ------
    ArgumentError
        It is no spec, lacks a field, or has one that is not allowed.
    """
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
