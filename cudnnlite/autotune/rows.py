"""The rows of a search as plain values (strings, numbers, dicts): what JSON can hold, and back."""

from __future__ import annotations

import re
from dataclasses import fields
from math import isfinite
from operator import index
from typing import Any, get_args, get_type_hints

from cudnnlite._raw import enums
from cudnnlite._raw.cenum import CEnum
from cudnnlite.backend.engines import Engine
from cudnnlite.errors import ArgumentError
from cudnnlite.search.results import AlgorithmResult, ConvolutionResult, RNNResult

LEFT_OUT = ("passed_over",)  # belongs to a choice, not to the candidate

_KINDS = (AlgorithmResult, ConvolutionResult, RNNResult)
_HINTS = {name: hint for kind in _KINDS for name, hint in get_type_hints(kind).items() if name not in LEFT_OUT}
# of each field, whether it may be None, and what else it is
_FIELDS: dict[str, tuple[bool, Any]] = {
    name: (type(None) in get_args(hint), (get_args(hint) or (hint,))[0]) for name, hint in _HINTS.items()
}
_MISTAKES = (TypeError, ValueError, LookupError, AttributeError)


def row_to_plain(row: AlgorithmResult) -> dict[str, Any]:
    """Return every field of a row but `passed_over`, those of other kinds too, empty; ArgumentError if one has a wrong type.

    Enums are their members' names, for `algorithm` with the enum's name in front ("RNNAlgo.STANDARD"), an engine is its number
    and its knobs; floats that are not finite, for which JSON has no numbers, are the strings "nan", "inf" and "-inf".
    """
    plain = {}
    for name, (optional, kind) in _FIELDS.items():
        value = getattr(row, name)
        try:
            plain[name] = None if value is None and optional else _write(kind, value)
        except _MISTAKES as error:
            raise ArgumentError(f"{name}={value!r} of a row cannot be written: {error}") from error
    return plain


def row_from_plain(plain: Any) -> AlgorithmResult:
    """Return the row that `row_to_plain` was given; ArgumentError if it is none.

    A field that is missing has its default: the row was written before there was such a field.  One that is not known is
    refused: what the row says cannot be understood without it.
    """
    values: dict[str, Any] = {}
    name = value = None
    try:
        for name, value in plain.items():
            optional, kind = _FIELDS[name]
            values[name] = None if value is None and optional else _read(kind, value)
        algorithm = values.get("algorithm")
        kind = RNNResult if isinstance(algorithm, enums.RNNAlgo) else ConvolutionResult
        kind = AlgorithmResult if isinstance(algorithm, Engine) else kind
        own = {item.name for item in fields(kind)}
        return kind(**{name: value for name, value in values.items() if name in own or value not in (None, "")})
    except _MISTAKES as error:
        raise ArgumentError(f"{plain!r} is not a row; {name}={value!r} was read last: {error!r}") from error


def _write(kind: Any, value: Any) -> Any:
    if isinstance(value, Engine):
        return value.to_plain()
    if kind is Any:
        named = f"{type(value).__name__}.{value.name}"
        if type(_read(kind, named)) is not type(value):
            raise TypeError("not a member of cuDNN's enums")
        return named
    if issubclass(kind, CEnum):
        return kind(value).name
    if kind is float:
        return float(value) if isfinite(value) else str(float(value))
    plain = index(value) if kind is int else bool(value) if kind is bool else value  # NumPy's numbers too
    return _read(kind, plain)


def _read(kind: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return Engine.from_plain(value)
    if kind is Any or issubclass(kind, CEnum):
        if kind is Any:
            name, _, value = value.partition(".")
            kind = getattr(enums, name)
        # UNKNOWN_17 is the member 17, which may have a name by now
        unknown = re.fullmatch(r"UNKNOWN_(-?\d+)", value)
        member = kind(int(unknown[1])) if unknown else kind[value]
        if not isinstance(member, CEnum):
            raise TypeError("not a member of cuDNN's enums")
        return member
    if kind is float and (value in ("nan", "inf", "-inf") or type(value) is int):
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"not of type {kind.__name__}")
    return value
