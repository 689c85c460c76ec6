"""What users give, parsed in one place for each kind of value: integers, real numbers, objects of ours, paths.

Whatever is given, `ArgumentError` is what comes out; an exception out of a value's own methods
comes out as itself.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from operator import index
from pathlib import Path
from typing import Any, TypeVar

from numpy.ma import MaskedArray, is_masked

from cudnnlite.errors import ArgumentError, CudnnliteError

# cuDNN's descriptors hold C ints, and ctypes would truncate a larger one without a word.
MAX_INT = 2**31 - 1
_MOST_SHOWN = 400
# Bytes: NAME_MAX, beyond which the system has an error of its own for each question.
_LONGEST_NAME = 255
_UNORDERED = (set, frozenset, dict)  # a dict has an order, but not of what it holds
KindT = TypeVar("KindT")


def shown(value: object) -> str:
    """Return a value as a message shows it: not too long."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def integer(
    value: Any, argument: str, smallest: int = 1, largest: int = MAX_INT, hint: str = ""
) -> int:
    """Return an integer within bounds; a bool is none."""
    try:
        number = index(value) if not isinstance(value, bool) else None
    except TypeError:
        number = None
    if number is None:
        raise ArgumentError(f"{argument}={shown(value)} is not an integer{hint}")
    refuse_masked(value, argument)
    if not smallest <= number <= largest:
        raise ArgumentError(f"{argument}={shown(value)}; allowed: {smallest} to {largest}")
    return number


def integers(values: Any, argument: str, most: int) -> tuple[int, ...]:
    """Return integers, of too many one more than `most`.  A bool is none, a set no sequence."""
    if isinstance(values, _UNORDERED):
        raise ArgumentError(
            f"{argument}={shown(values)} is a {type(values).__name__}, which has no order; give a tuple"
        )
    try:
        given = tuple(islice(values, most + 1))
        kinds = set(map(type, given))
        if bool not in kinds and not any(issubclass(kind, MaskedArray) for kind in kinds):
            return tuple(map(index, given))
    except TypeError:
        pass
    raise ArgumentError(f"{argument}={shown(values)} is not a sequence of integers")


def real_number(value: Any, argument: str) -> float:
    """Return a real number as a float.

    ArgumentError for text, complex and masked numbers, times, and what a float has no room for.
    """
    if type(value) is float:
        return value
    refuse_masked(value, argument)
    try:
        # bytes have neither method, but float() reads them
        is_number = hasattr(value, "__float__") or hasattr(value, "__index__")
        if is_number and not _becomes_another_number(value):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ArgumentError(f"{argument}={shown(value)} must be a real number")


def refuse_masked(value: Any, argument: str) -> None:
    """Raise ArgumentError for a masked value of `numpy.ma`, which as a number would be a NaN."""
    if isinstance(value, MaskedArray) and is_masked(value):
        raise ArgumentError(f"{argument}={shown(value)} is masked, and has no value")


def _becomes_another_number(value: Any) -> bool:
    """Tell whether a value of NumPy or PyTorch is no real number, though `float` makes one of it.

    Of NumPy's complex values that is the real part, of a time the count without its unit, and text
    is read.
    """
    dtype = getattr(value, "dtype", None)
    is_of_numpy = getattr(dtype, "kind", "") in ("c", "m", "M", "S", "U")
    is_complex_of_torch = getattr(dtype, "is_complex", False) is True
    return isinstance(value, complex) or is_of_numpy or is_complex_of_torch


def instance_of(value: Any, kind: type[KindT], argument: str, hint: str = "") -> KindT:
    """Return an object of a class."""
    if not isinstance(value, kind):
        raise ArgumentError(f"{argument}={shown(value)} is not {with_article(kind)}{hint}")
    return value


def with_article(kind: type) -> str:
    """Return what a message calls an object of a class: 'a TensorSpec', 'an RNNSpec'."""
    has_vowel = kind.__name__.startswith(("A", "E", "I", "O", "RNN"))
    article = "an" if has_vowel else "a"
    return f"{article} {kind.__name__}"


def sequence(values: Any, argument: str, what: str, most: int = 1 << 20) -> tuple[Any, ...]:
    """Return the values of anything that can be iterated over, and is no text."""
    items = None
    if not isinstance(values, (str, bytes)):
        with suppress(TypeError):
            items = tuple(islice(values, most + 1))
    if items is None:
        raise ArgumentError(f"{argument}={shown(values)} is not {what}")
    if len(items) > most:
        raise ArgumentError(f"{argument}={shown(values)} is not {what}: it is too long")
    return items


def one_of(value: Any, argument: str, *allowed: str | bool | None) -> Any:
    """Return one of a few texts, bools or None; compared so that arrays may be given, and 1 is not True."""
    if not any(value is each or (isinstance(value, str) and value == each) for each in allowed):
        raise ArgumentError(f"{argument}={shown(value)}; allowed: {', '.join(map(repr, allowed))}")
    return value


def path_of(
    value: Any, argument: str = "path", what: str = "a path", *, expand: bool = True
) -> Path:
    """Return a path that the system can be asked for, ``~`` replaced where it is to be."""
    with suppress(TypeError, UnicodeError, RuntimeError):  # half a character; the home of nobody
        text = os.fspath(value)
        longest = max(map(len, os.fsencode(text).split(b"/")))
        is_path = isinstance(text, str) and text and "\0" not in text
        if is_path and longest <= _LONGEST_NAME:
            return Path(text).expanduser() if expand else Path(text)
    raise ArgumentError(f"{argument}={shown(value)} is not {what}")


def absolute_path(path: Path, argument: str = "path") -> Path:
    """Return the absolute path; ArgumentError where the current folder does not exist any more."""
    try:
        return path.absolute()
    except FileNotFoundError as error:
        raise ArgumentError(
            f"{argument}={str(path)!r} is relative to the current folder, which was removed"
        ) from error


def by_system(error: OSError) -> OSError:
    """Return what the system refused; a signal handler's own `TimeoutError`, an OSError without a number, comes out."""
    if error.errno is None:
        raise error
    return error


@contextmanager
def refusals_ignored() -> Iterator[None]:
    """Leave the block where the system refuses something."""
    try:
        yield
    except OSError as error:
        by_system(error)


@contextmanager
def refused_as(
    kind: type[CudnnliteError], what: object, *refusals: type[Exception]
) -> Iterator[None]:
    """Let what the system refuses in the block, or else these exceptions, be an error of that kind: what, and why."""
    refusals = refusals or (OSError,)
    try:
        yield
    except refusals as error:
        why = by_system(error).strerror if isinstance(error, OSError) else error
        raise kind(f"{what}: {why}") from error


def file_type(path: str | os.PathLike[str], *, follow: bool = True) -> int:
    """Return what is at a path, as `stat.S_IFMT` has it; 0 where nothing is, or the system does not say.

    `os.path.isdir` and its like ask as well, but a signal handler's `TimeoutError` would be an
    answer to them.
    """
    try:
        return stat.S_IFMT(os.stat(path, follow_symlinks=follow).st_mode)
    except OSError as error:
        by_system(error)
        return 0
