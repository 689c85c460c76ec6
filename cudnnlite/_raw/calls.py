"""`CFunction` and `PreparedCall`: C functions of Python values, or of arguments marshalled once.

Arguments are converted by the prototype's types, but in Python and not by ctypes on its way to C:
what a signal handler raises there comes out as itself, where ctypes would make an `ArgumentError`
of it.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from functools import partial
from math import inf, isfinite, isinf
from operator import index
from textwrap import shorten
from typing import Any, NamedTuple
from weakref import ref

from cudnnlite._raw.cenum import CEnum
from cudnnlite._raw.enums import C_NAMES
from cudnnlite._raw.fork_lock import fork_lock
from cudnnlite._raw.functions import C_TYPES
from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite._raw.null_pointers import check_null, may_crash
from cudnnlite._raw.opaque import Opaque
from cudnnlite._raw.record import Function
from cudnnlite.arguments import real_number, refuse_masked, shown, with_article
from cudnnlite.enums import __all__ as public_enums
from cudnnlite.errors import ArgumentError

Call = Callable[..., Any]
# (function, record, *converted arguments) -> what the function returns
CallObserver = Callable[..., Any]

_UNTYPED = ctypes.CFUNCTYPE(ctypes.py_object)
# It needs a device too, though it takes no handle.
_WAITS_FOR_GPU = "cudnnBackendFinalize"
_REAL_TYPES = (ctypes.c_float, ctypes.c_double)
_FIRST_ADDRESS = 4096  # Nothing is ever mapped below.
# The names of pointers that the host follows.  A device refuses the others itself.
_FOLLOWED_BY_HOST = ("alpha", "beta", "message", "paddingFill")
# The smallest and the largest number of values that C may be asked to read or write.
_COUNT_LIMITS = {"requestedAlgoCount": (0, inf), "nbDims": (-inf, 8), "max_size": (1, inf)}
# By the type of a parameter as C spells it.
ENUMS = {f"{const}{name}": enum for enum, name in C_NAMES.items() for const in ("", "const ")}

_RESULT_TYPES = {
    ctypes.c_int: "cudnnStatus_t",
    ctypes.c_size_t: "size_t",
    ctypes.c_char_p: "const char *",
    None: "void",
}


class CallArgumentError(ArgumentError, ctypes.ArgumentError):
    """An argument of a C function is of a wrong type, or a value with which C is known to crash."""


# If there is an observer, it makes all calls.
_call_observer: CallObserver | None = None


class Alive:
    """Weak references to objects.

    When an object goes, only C code runs, so that no interrupt is lost.
    """

    def __init__(self) -> None:
        self._refs: set[ref[Any]] = set()

    def add(self, item: object) -> None:
        """Remember an object until it goes."""
        self._refs.add(ref(item, self._refs.discard))

    def __iter__(self) -> Iterator[Any]:
        # A garbage collection may remove references while `tuple` goes through the set.  The copy
        # of a set allocates its memory before it starts.
        items = [reference() for reference in self._refs.copy()]
        return iter([item for item in items if item is not None])


_functions = Alive()
PREPARED = Alive()


def observe_calls(observer: CallObserver | None) -> None:
    """Let an observer make every call of every table from now on; with None, call C directly again.

    Every `CFunction.call` and `PreparedCall.function` is set here, once.  A call does not have to
    check for an observer, so that it costs nothing if there is none.
    """
    global _call_observer  # noqa: PLW0603  (functions of every table are observed, or none is)
    with fork_lock:
        _call_observer = observer
        for function in _functions:
            function.call = _observable(function.unobserved, function.record)
        for prepared in PREPARED:
            prepared.function = prepared.bound.call


def _observable(call: Call, record: Function) -> Call:
    """Return the call to make now: the function itself, or the observer's call of it."""
    if _call_observer is None:
        return call
    return partial(_call_observer, call, record)


def through_c(record: Function, enter: Call) -> Any:
    """Return a C function with `record`'s arguments; it returns a call of `enter` with what C saw.

    Only the arguments pass through C; `enter` is called outside of the callback.  If an exception
    is raised inside a callback, by a signal handler for instance, ctypes prints a traceback and
    goes on with an undefined status.  `partial` is written in C and runs no bytecode, so that no
    signal handler can run in this callback.
    """
    return ctypes.CFUNCTYPE(ctypes.py_object, *record.argtypes)(partial(partial, enter))


def untyped(callback: Any) -> Call:
    """Return a callback, which the caller keeps alive, as a function of converted arguments."""
    return _UNTYPED(ctypes.cast(callback, ctypes.c_void_p).value or 0)


class _Doc:
    """A docstring that is the class's own on the class, and the C prototype on an instance.

    `help` shows the docstring of an instance.
    """

    def __init__(self, class_doc: str | None) -> None:
        self._class_doc = class_doc

    def __get__(self, function: CFunction | None, owner: object) -> str | None:
        if function is None:
            return self._class_doc
        # Only documentation needs the stubs.
        from cudnnlite._raw.signatures import Signatures

        record = function.record
        facts = getattr(Signatures, record.name).__doc__ or ""  # python -OO removes docstrings
        text = f"{_prototype(record)}\n\n{facts}"
        if record.returns_status:
            text += "\nAnother status than success raises a `CudnnError`."
        return text.rstrip()


def _prototype(record: Function) -> str:
    """Return the declaration of a C function, an argument a line."""
    pairs = zip(C_TYPES[record.name], record.argnames, strict=True)
    arguments = ",\n    ".join(f"{c_type} {name}" for c_type, name in pairs) or "void"
    text = f"{_RESULT_TYPES[record.restype]} {record.name}(\n    {arguments}\n)"
    return re.sub(r"\[\] (\w+)", r" \1[]", text).replace("* ", "*")


class CFunction:
    """A function of a table: it converts its arguments, calls C, and checks the status.

    `call` takes converted arguments and returns what C returns; a status is 0 (or None) for
    success.  `check` raises the `CudnnError` of a status that is not 0; it is None if C returns no
    status.  `record` is the declaration of the function.
    """

    __doc__ = _Doc(__doc__)
    __slots__ = ("__weakref__", "call", "check", "record", "unobserved")

    def __init__(
        self, call: Call, record: Function, check: Callable[[int], None] | None = None
    ) -> None:
        # A function that may wait for a GPU must not hold the lock that a fork waits for.
        may_wait_for_gpu = record.needs_device or record.name == _WAITS_FOR_GPU
        self.unobserved = call if may_wait_for_gpu else partial(self._call_first, call)
        self.call = _observable(self.unobserved, record)
        self.record = record
        self.check = check
        _functions.add(self)

    def _call_first(self, call: Call, *arguments: Any) -> Any:
        """Call C for the first time: libcudnn then looks the function up, and holds its locks."""
        # The timeout prevents a deadlock: the thread of a finalizer may hold the lock.
        is_locked = fork_lock.acquire(timeout=5)
        try:
            result = call(*arguments)
            self.unobserved = call
            self.call = _observable(call, self.record)
            for prepared in PREPARED:
                if prepared.bound is self:
                    prepared.function = self.call
        finally:
            if is_locked:
                fork_lock.release()
        return result

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if keywords:
            raise TypeError(
                f"{self.record.name} takes its arguments by position: "
                f"{', '.join(self.record.argnames)}"
            )
        result = self.call(*convert(self.record, arguments))
        if self.check is None:
            return result
        if result:
            self.check(result)
        return None

    def __repr__(self) -> str:
        return f"<{self.record.name}({', '.join(self.record.argnames)})>"


class PreparedCall(NonCopyable):
    """A C function whose arguments were marshalled once, for many calls; they keep nothing alive.

    To make the call: ``status = call.function(*call.arguments)``; if the status is not 0,
    ``call.check(status)`` raises the error.

    ctypes takes a microsecond to call a function with thirteen arguments, and two thirds of it to
    convert them.  Here an argument is converted only when it changes.  An `errcheck` of ctypes
    would take another tenth of a microsecond.
    """

    _instead_of_copy = "it holds addresses of one process: prepare another"
    __slots__ = ("__weakref__", "_places", "_record", "arguments", "bound", "check", "function")

    def __init__(self, function: CFunction, *arguments: Any) -> None:
        self.bound = function
        self.function = function.call
        self.check = function.check
        self._record = function.record
        convert(self._record, arguments)
        converters = [_converter(self._record, position) for position in range(len(arguments))]
        self._places = {
            name: (position, converters[position])
            for position, name in enumerate(self._record.argnames)
        }
        self.arguments = tuple(
            converter(value) for converter, value in zip(converters, arguments, strict=True)
        )
        PREPARED.add(self)

    def __call__(self) -> None:
        """Call it, and check the status."""
        if status := self.function(*self.arguments):
            assert self.check is not None
            self.check(status)

    def replace(self, **values: Any) -> None:
        """Change arguments, by their names in the header."""
        arguments = list(self.arguments)
        for name, value in values.items():
            position, converter = self._places[name]
            try:
                arguments[position] = converter(value)
            except (TypeError, ArgumentError, ctypes.ArgumentError) as error:
                raise _refusal(self._record, position, value, error) from error
        self.arguments = tuple(arguments)

    def marshalled(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return arguments as ctypes would convert them at each call, which takes time.

        Converted arguments do not show their values.  So a function that a user put into the table
        gets the arguments unchanged.
        """
        if self.check is None:
            return arguments
        return tuple(map(_marshalled, arguments))


def _marshalled(argument: Any) -> Any:
    if not isinstance(argument, ctypes._SimpleCData):
        return argument
    kind = ctypes.c_void_p if isinstance(argument, ctypes.c_void_p) else type(argument)
    return kind.from_param(argument.value)


def convert(record: Function, arguments: tuple[Any, ...]) -> list[Any]:
    """Return arguments in the form that ctypes passes on without converting them again.

    Raises
    ------
    TypeError
        There are too few or too many arguments.
    CallArgumentError
        An argument has a wrong type, or a value that C would truncate or crash at.
    """
    parameters = _parameters_of(record)
    if len(arguments) != len(parameters):
        raise TypeError(
            f"{record.name} takes {len(parameters)} arguments "
            f"({', '.join(record.argnames)}); {len(arguments)} were given"
        )
    converted: list[Any] = []
    try:
        for parameter, value in zip(parameters, arguments, strict=True):
            if value is None:
                check_null(record, len(converted), arguments)
            elif hasattr(value, "__index__"):
                _check_integer(parameter, value)
            if parameter.is_real and hasattr(value, "__float__"):
                _check_real(parameter.kind, value, parameter.name)
            converted.append(parameter.from_param(value))
    except (TypeError, ArgumentError, ctypes.ArgumentError) as error:
        raise _refusal(record, len(converted), arguments[len(converted)], error) from error
    return converted


class _Parameter(NamedTuple):
    """The type of a parameter of a C function, and its conversion.

    Attributes
    ----------
    kind : type
        Its ctypes type.
    from_param : callable
        The conversion of `kind`.
    name : str
        Its name in the header.
    enum : type or None
        The enum that C declares it as, and does not enforce.
    is_real, is_address, is_integer : bool
        Whether it is a real number, an untyped pointer, an integer.
    count_limits : (float, float) or None
        The smallest and the largest integer that are allowed, if they are limited.
    """

    kind: Any
    from_param: Callable[[Any], Any]
    name: str
    enum: type[CEnum] | None
    is_real: bool
    is_address: bool
    is_integer: bool
    count_limits: tuple[float, float] | None


# By the function's name, which is unique in the generated table.
_parameters: dict[str, tuple[_Parameter, ...]] = {}


def _parameters_of(record: Function) -> tuple[_Parameter, ...]:
    """Return the parameters of a function, in order; they are worked out at its first call."""
    parameters = _parameters.get(record.name)
    if parameters is None:
        parameters = tuple(_parameter(record, position) for position in range(len(record.argtypes)))
        _parameters[record.name] = parameters
    return parameters


def _parameter(record: Function, position: int) -> _Parameter:
    """Return the description of a parameter of a function."""
    kind, name = record.argtypes[position], record.argnames[position]
    is_address = issubclass(kind, ctypes.c_void_p)
    is_simple = issubclass(kind, ctypes._SimpleCData)
    return _Parameter(
        kind,
        kind.from_param,
        name,
        _enum_of(record, position),
        is_real=kind in _REAL_TYPES,
        is_address=is_address,
        is_integer=is_simple and not is_address and kind._type_ not in "fdzP",
        count_limits=_COUNT_LIMITS.get(name),
    )


def _converter(record: Function, position: int) -> Callable[[Any], Any]:
    """Return a function that converts an argument for many calls; a number becomes a C number."""
    parameter = _parameters_of(record)[position]
    kind, from_param = parameter.kind, parameter.from_param
    is_number = issubclass(kind, ctypes._SimpleCData) and not issubclass(kind, ctypes.c_void_p)
    is_on_device = not parameter.name.startswith(_FOLLOWED_BY_HOST)
    # The sizes beside a pointer are not known here.  With 0 for a size the pointer may be null.
    unknown_arguments = (0,) * len(record.argnames)

    def convert_address(value: Any) -> Any:
        if value is None:
            check_null(record, position, unknown_arguments)
        return from_param(value)

    def convert_argument(value: Any) -> Any:
        if value is None:
            check_null(record, position, unknown_arguments)
        elif hasattr(value, "__index__"):
            _check_integer(parameter, value)
        if parameter.is_real and hasattr(value, "__float__"):
            _check_real(kind, value, parameter.name)
        converted = from_param(value)
        if is_number:
            return kind(getattr(value, "value", value))
        return converted

    if is_number or not is_on_device:
        return convert_argument
    # Plans replace a device's address at each call.
    return convert_address if may_crash(record) else from_param


def _check_integer(parameter: _Parameter, value: Any) -> None:
    """Raise TypeError for an integer that C would truncate, or crash at."""
    number = value
    if isinstance(value, CEnum):
        _check_enum(parameter.enum, value)
    elif type(value) is not int:
        refuse_masked(value, parameter.name)
        try:
            number = index(value)
        except TypeError:  # NumPy's arrays have `__index__` too; the conversion refuses them.
            return
    if parameter.is_address:
        if 0 < number < _FIRST_ADDRESS and parameter.name.startswith(_FOLLOWED_BY_HOST):
            raise TypeError(_how_to_pass_scalar(value))
        return
    if parameter.is_integer and parameter.kind(number).value != number:
        raise TypeError(f"{shown(value)} does not fit into a {parameter.kind.__name__}")
    if parameter.count_limits is not None:
        smallest, largest = parameter.count_limits
        if not smallest <= number <= largest:
            raise TypeError(f"{value}; allowed: from {smallest} to {largest}")


def _check_enum(enum: type[CEnum] | None, value: CEnum) -> None:
    """Raise TypeError for a member of another enum than a parameter's."""
    if enum is not None and enum is not type(value):
        raise TypeError(f"{type(value).__name__}.{value} is no {enum.__name__}")


def _check_real(kind: Any, value: Any, argument: str) -> None:
    """Raise ArgumentError for no real number, TypeError for one that is infinite as a C float."""
    number = real_number(value, argument)
    if isfinite(number) and isinf(kind(number).value):
        raise TypeError(f"{number} does not fit into a {kind.__name__}")


def _enum_of(record: Function, position: int) -> type[CEnum] | None:
    """Return the enum that C declares an argument as, and does not enforce; None if it is none."""
    return ENUMS.get(C_TYPES[record.name][position])


def _refusal(record: Function, position: int, value: Any, error: Exception) -> CallArgumentError:
    """Return the error for an argument of a C function, which says what to pass instead."""
    reason = _why_wrong_type(record, position, value) or str(error)
    return CallArgumentError(
        f"{record.name}, argument {position + 1} ({record.argnames[position]}): {reason}"
    )


def _why_wrong_type(record: Function, position: int, value: Any) -> str | None:
    """Return why a value has a wrong type, and what to pass instead.

    None if the type is right, or if the error of the conversion names it.
    """
    kind = record.argtypes[position]
    if kind in _REAL_TYPES:
        is_number = hasattr(value, "__float__") or hasattr(value, "__index__")
        return None if is_number else f"{shown(value)} is not a number"
    if issubclass(kind, ctypes._SimpleCData) and kind._type_ not in "zP":
        return _why_not_integer(_enum_of(record, position), value)
    if kind is ctypes.c_void_p and isinstance(value, float):
        return _how_to_pass_scalar(value)
    if value is None or isinstance(value, (int, float)):
        return None
    return _why_no_pointer(kind, value)


def _why_not_integer(enum: type[CEnum] | None, value: Any) -> str | None:
    if _is_integer(value):
        return None
    if enum is None:
        return f"{shown(value)} is not an integer"
    members = shorten(", ".join(map(str, enum)), 400, placeholder=" ...")
    module = "dnn.enums" if enum.__name__ in public_enums else "dnn.raw.enums"
    return (
        f"{shown(value)} is not {with_article(enum)} or an integer; "
        f"pass one of {module}.{enum.__name__}: {members}"
    )


def _why_no_pointer(kind: Any, value: Any) -> str | None:
    """Return a message about an object that is no pointer of ctypes; None if it is one."""
    description = f"{shown(value)} of type {type(value).__name__}"
    if hasattr(kind, "contents"):
        return (
            f"{description} is no pointer to a {kind._type_.__name__}; "
            "pass one of ctypes, by ctypes.byref or as an array"
        )
    if issubclass(kind, Opaque):
        is_array = hasattr(value, "spec") and not hasattr(value, "api")
        if not is_array:
            return None
        descriptor = kind.__name__.removeprefix("cudnn").removesuffix("_t")
        return (
            f"{description} is no {kind.__name__}; "
            f"one of its .spec is dnn.descriptors.{descriptor}(x.spec)"
        )
    if issubclass(kind, ctypes.c_void_p):
        return (
            f"{description} is no address; "
            "pass .ptr of a device array, and a value on the host by ctypes.byref"
        )
    return None


def _how_to_pass_scalar(value: Any) -> str:
    return f"{value} is no address; a host scalar goes by ctypes.byref(ctypes.c_float({value}))"


def _is_integer(value: Any) -> bool:
    """Tell whether a value becomes an integer; NumPy's arrays have `__index__`, and need not."""
    try:
        index(value)
    except TypeError:
        return False
    return True
