"""Parsers for the values that users pass: integers, real numbers, cudnnlite's objects, paths.

A parser raises `ArgumentError` for a value that it does not accept.  An exception that a value's
own methods raise is passed on unchanged, except one of `__repr__`.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from operator import index
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cudnnlite.errors import ArgumentError, CudnnliteError

# cuDNN's descriptors hold C ints, and ctypes would silently truncate a larger number.
MAX_INT = 2**31 - 1
# The integers of cuDNN's graphs are wider.
MAX_INT64 = 2**63 - 1
# Characters of a value that a message shows.
_MOST_SHOWN = 400
# NAME_MAX in bytes.  Beyond it every system call on a path fails with an error of its own.
_LONGEST_NAME = 255
# Iterating over a dict gives its keys, which nobody means as a sequence of integers.
_UNORDERED = (set, frozenset, dict)
# The kinds of NumPy's data types of complex numbers, times and texts.
_NOT_REAL = ("c", "m", "M", "S", "U")
KindT = TypeVar("KindT")


def shown(value: object) -> str:
    """Return a value as a message shows it, cut after 400 characters.

    A value whose `repr` raises an exception is shown by its type.  Python raises one for integers
    of more than 4300 digits, and for lists that are nested deeper than its stack.
    """
    if type(value) in (str, bytes, bytearray):
        value = value[: _MOST_SHOWN + 1]  # type: ignore[index]
    try:
        text = str.__str__(repr(value))
    except Exception:  # whatever a user's `__repr__` raises
        # A metaclass may replace the attribute `__name__`.
        name = type.__dict__["__name__"].__get__(type(value))
        text = f"<{name} that cannot be shown>"
    return cut(text)


def cut(text: str) -> str:
    """Return a name or a list of names as a message shows it, cut after 400 characters."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def integer(
    value: Any, argument: str, smallest: int = 1, largest: int = MAX_INT, hint: str = ""
) -> int:
    """Return an integer within bounds.

    ArgumentError for everything else; a bool is not an integer here.
    """
    number: int | None = None
    try:
        if not isinstance(value, bool):
            number = index(value)
    except TypeError:
        pass
    if number is None:
        raise ArgumentError(f"{argument}={shown(value)} is not an integer{hint}")
    refuse_masked(value, argument)
    if not smallest <= number <= largest:
        raise ArgumentError(f"{argument}={shown(value)}; allowed: {smallest} to {largest}")
    return number


def integers(values: Any, argument: str, most: int) -> tuple[int, ...]:
    """Return a sequence of integers, at most `most + 1` of them.

    The caller refuses a result of `most + 1` integers as too long.  ArgumentError for bools, and
    for sets and dicts.
    """
    if isinstance(values, _UNORDERED):
        raise ArgumentError(
            f"{argument}={shown(values)} is a {type(values).__name__}, "
            "which has no order; give a tuple"
        )
    try:
        items = tuple(islice(values, most + 1))
        kinds = set(map(type, items))
        has_masked = any(issubclass(kind, masked_types()) for kind in kinds)
        if bool not in kinds and not has_masked:
            return tuple(map(index, items))
    except TypeError:
        pass
    raise ArgumentError(f"{argument}={shown(values)} is not a sequence of integers")


def real_number(value: Any, argument: str) -> float:
    """Return a real number as a float.

    ArgumentError for text, complex numbers, masked values, NumPy's times, and numbers too large for
    a float.
    """
    if type(value) is float:
        return value
    refuse_masked(value, argument)
    try:
        # float() would parse bytes, which have neither method.
        is_number = hasattr(value, "__float__") or hasattr(value, "__index__")
        if is_number and not _becomes_another_number(value):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ArgumentError(f"{argument}={shown(value)} must be a real number")


def masked_types() -> tuple[type, ...]:
    """Return the type of masked arrays; an empty tuple if `numpy.ma` is not loaded.

    There are no masked arrays then.  To load the module takes 7 ms.
    """
    module = sys.modules.get("numpy.ma")
    masked_array = getattr(module, "MaskedArray", None)  # another thread may be loading the module
    return () if masked_array is None else (masked_array,)


def refuse_masked(value: Any, argument: str) -> None:
    """Raise ArgumentError for a masked value of `numpy.ma`; NumPy would convert it to NaN."""
    if isinstance(value, masked_types()) and np.ma.is_masked(value):
        raise ArgumentError(f"{argument}={shown(value)} is masked, and has no value")


def _becomes_another_number(value: Any) -> bool:
    """Return whether `float` would accept a value that is not a real number.

    `float` takes the real part of NumPy's and PyTorch's complex values, drops the unit of NumPy's
    times, and parses NumPy's texts.
    """
    if isinstance(value, complex):
        return True
    dtype = getattr(value, "dtype", None)
    if getattr(dtype, "kind", "") in _NOT_REAL:
        return True
    return getattr(dtype, "is_complex", False) is True  # a type of PyTorch


def instance_of(value: Any, kind: type[KindT], argument: str, hint: str = "") -> KindT:
    """Return a value that is an instance of a class; ArgumentError for any other."""
    if not isinstance(value, kind):
        raise ArgumentError(f"{argument}={shown(value)} is not {with_article(kind)}{hint}")
    return value


def with_article(kind: type) -> str:
    """Return the name of a class with its article: 'a TensorSpec', 'an RNNSpec'."""
    has_vowel = kind.__name__.startswith(("A", "E", "I", "O", "RNN"))
    article = "an" if has_vowel else "a"
    return f"{article} {kind.__name__}"


def sequence(values: Any, argument: str, description: str, most: int = 1 << 20) -> tuple[Any, ...]:
    """Return the items of an iterable as a tuple; ArgumentError for text.

    `description` names the iterable in the message: "an iterable of problems".
    """
    items = None
    if not isinstance(values, (str, bytes)):
        with suppress(TypeError):
            items = tuple(islice(values, most + 1))
    if items is None:
        raise ArgumentError(f"{argument}={shown(values)} is not {description}")
    if len(items) > most:
        raise ArgumentError(f"{argument}={shown(values)} is not {description}: it is too long")
    return items


def one_of(value: Any, argument: str, *allowed: str | bool | None) -> Any:
    """Return a value that is one of a few texts, bools or None; ArgumentError for any other.

    Only texts are compared with ``==``: an array would compare by element, and 1 equals True.
    """
    for choice in allowed:
        if value is choice:
            return value
    if not isinstance(value, str) or value not in allowed:
        raise ArgumentError(f"{argument}={shown(value)}; allowed: {', '.join(map(repr, allowed))}")
    return value


def path_of(
    value: Any, argument: str = "path", description: str = "a path", *, expand: bool = True
) -> Path:
    """Return a path that system calls accept; with `expand`, ``~`` becomes the home folder."""
    # UnicodeError: a lone surrogate.  RuntimeError: the home folder of an unknown user.
    with suppress(TypeError, UnicodeError, RuntimeError):
        text = os.fspath(value)
        if _is_path(text):
            return Path(text).expanduser() if expand else Path(text)
    raise ArgumentError(f"{argument}={shown(value)} is not {description}")


def _is_path(text: object) -> bool:
    """Return whether system calls accept a text as a path; UnicodeError for a lone surrogate."""
    if not isinstance(text, str) or not text:
        return False
    longest = max(map(len, os.fsencode(text).split(b"/")))
    return "\0" not in text and longest <= _LONGEST_NAME


def absolute_path(path: Path, argument: str = "path") -> Path:
    """Return the absolute path; ArgumentError if the current folder was removed."""
    try:
        return path.absolute()
    except FileNotFoundError as error:
        raise ArgumentError(
            f"{argument}={str(path)!r} is relative to the current folder, which was removed"
        ) from error


def require_system_error(error: OSError) -> OSError:
    """Return an error that a system call raised, and raise any other.

    A signal handler may raise `TimeoutError`, which is an OSError without a number.
    """
    if error.errno is None:
        raise error
    return error


@contextmanager
def refusals_ignored() -> Iterator[None]:
    """Leave the block silently at the first system call that fails."""
    try:
        yield
    except OSError as error:
        require_system_error(error)


@contextmanager
def refused_as(
    kind: type[CudnnliteError], description: object, *refusals: type[Exception]
) -> Iterator[None]:
    """Turn the `refusals` of the block into an error of a kind: "description: why".

    `refusals` are types of exceptions; if none is given, the errors of system calls.
    """
    refusals = refusals or (OSError,)
    try:
        yield
    except refusals as error:
        why = require_system_error(error).strerror if isinstance(error, OSError) else error
        raise kind(f"{description}: {why}") from error


def file_type(path: str | os.PathLike[str], *, follow: bool = True) -> int:
    """Return the file type at a path as `stat.S_IFMT` has it; 0 if there is none or `stat` fails.

    `os.path.isdir` and its like would also take a signal handler's `TimeoutError` for a missing
    file.
    """
    try:
        return stat.S_IFMT(os.stat(path, follow_symlinks=follow).st_mode)
    except OSError as error:
        require_system_error(error)
        return 0
