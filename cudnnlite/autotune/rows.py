"""The rows of a search as plain values (strings, numbers, dicts): what JSON can hold, and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from math import isfinite
from operator import index
from typing import Any, NamedTuple, get_args, get_type_hints

from cudnnlite._raw import enums
from cudnnlite._raw.cenum import CEnum
from cudnnlite.errors import ArgumentError
from cudnnlite.search.results import AlgorithmResult

LEFT_OUT = ("passed_over",)  # belongs to a choice, not to the candidate

_NOT_FINITE = ("nan", "inf", "-inf")  # JSON has no numbers for them
_UNKNOWN = re.compile(r"UNKNOWN_(-?\d+)")


def row_to_plain(row: AlgorithmResult) -> dict[str, Any]:
    """Return every field of a row but `passed_over`.

    Enums are their members' names, for `algorithm` with the enum's name in front ("RNNAlgo.STANDARD"); floats that are not
    finite are the strings "nan", "inf" and "-inf".

    Raises
    ------
    ArgumentError
        A field holds something that is not of its type.
    """
    plain = {}
    for name, codec in _codecs().items():
        value = getattr(row, name)
        try:
            plain[name] = None if value is None and codec.optional else codec.write(value)
        except (TypeError, ValueError, AttributeError) as error:
            raise ArgumentError(f"{name}={value!r} of a row cannot be written: {error}") from error
    return plain


def row_from_plain(plain: Any) -> AlgorithmResult:
    """Return the row that `row_to_plain` was given.

    A field that is missing has its default: the row was written before there was such a field.  One that is not known is
    refused: what the row says cannot be understood without it.

    Raises
    ------
    ArgumentError
        It is no row, has a field that this version does not know, or a value that is not allowed.
    """
    if not isinstance(plain, Mapping):
        raise ArgumentError(f"{plain!r} is not a row; allowed: an object")
    codecs = _codecs()
    values: dict[str, Any] = {}
    for name, value in plain.items():
        codec = codecs.get(name)
        if codec is None:
            raise ArgumentError(f"{name!r} is not a field of a row; allowed: {', '.join(codecs)}")
        try:
            values[name] = None if value is None and codec.optional else codec.read(value)
        except (TypeError, ValueError, LookupError) as error:
            raise ArgumentError(f"{name}={value!r} is not allowed in a row: {error}") from error
    for name in codecs.keys() - values.keys():
        if codecs[name].required:
            raise ArgumentError(f"{plain!r} is not a row: it has no {name}")
    return AlgorithmResult(**values)


class _Codec(NamedTuple):
    """How a field is written and read."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    optional: bool
    required: bool


@lru_cache(maxsize=1)
def _codecs() -> dict[str, _Codec]:
    """Return the fields of a row, each with its codec by its type; TypeError where a type has none yet."""
    hints = get_type_hints(AlgorithmResult)
    found = {}
    for item in fields(AlgorithmResult):
        if item.name not in LEFT_OUT:
            kinds = get_args(hints[item.name]) or (hints[item.name],)
            (kind,) = (kind for kind in kinds if kind is not type(None))
            found[item.name] = _Codec(*_by_type(kind), len(kinds) > 1, item.default is MISSING)
    return found


def _by_type(kind: type) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    if kind is CEnum:
        return _write_any_enum, _read_any_enum
    if issubclass(kind, CEnum):
        return lambda value: kind(value).name, lambda value: _member(kind, value)
    if kind is float:
        return _write_float, _read_float
    if kind in _PLAIN:
        return _PLAIN[kind], lambda value: _of_type(kind, value)
    raise TypeError(f"a row has a field of type {kind!r}, which has no plain form yet")


def _write_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value


_PLAIN: dict[type, Callable[[Any], Any]] = {bool: bool, int: index, str: _write_text}


def _of_type(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"not of type {kind.__name__}")
    return value


def _write_float(value: Any) -> float | str:
    number = float(value)
    return number if isfinite(number) else str(number)


def _read_float(value: Any) -> float:
    if isinstance(value, str) and value not in _NOT_FINITE:
        raise ValueError(f"allowed: a number, {', '.join(_NOT_FINITE)}")
    if not isinstance(value, (int, float, str)) or isinstance(value, bool):
        raise TypeError("not a number")
    return float(value)


def _write_any_enum(value: CEnum) -> str:
    if _enum(type(value).__name__) is not type(value):
        raise TypeError("not a member of cuDNN's enums")
    return f"{type(value).__name__}.{value.name}"


def _read_any_enum(value: str) -> CEnum:
    kind, _, member = _write_text(value).partition(".")
    return _member(_enum(kind), member)


def _enum(name: str) -> type[CEnum]:
    kind = getattr(enums, name, None)
    if not (isinstance(kind, type) and issubclass(kind, CEnum) and kind is not CEnum):
        raise ValueError(f"cuDNN has no enum {name}")
    return kind


def _member(kind: type[CEnum], name: Any) -> CEnum:
    """Return a member by its name; UNKNOWN_17 is the member 17, which may have a name by now."""
    unknown = _UNKNOWN.fullmatch(_write_text(name))
    if unknown:
        return kind(int(unknown[1]))
    if name not in kind.__members__:
        raise ValueError(f"{kind.__name__} has no member {name}")
    return kind[name]
