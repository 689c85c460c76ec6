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
from textwrap import shorten
from typing import Any
from weakref import ref

from cudnnlite._raw.cenum import CEnum
from cudnnlite._raw.enums import C_NAMES
from cudnnlite._raw.fork_lock import fork_lock
from cudnnlite._raw.functions import C_TYPES
from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite._raw.opaque import Opaque
from cudnnlite._raw.record import Function
from cudnnlite.arguments import real_number, refuse_masked, shown, with_article
from cudnnlite.enums import __all__ as public_enums
from cudnnlite.errors import ArgumentError

Call = Callable[..., Any]
CallObserver = Callable[
    ..., Any
]  # (function, record, *converted arguments) -> what the function returns

_UNTYPED = ctypes.CFUNCTYPE(ctypes.py_object)
_REAL_TYPES = (ctypes.c_float, ctypes.c_double)
_FIRST_ADDRESS = 4096  # nothing is ever mapped below
_FOLLOWED = (
    "alpha",
    "beta",
    "message",
    "paddingFill",
)  # by the host; what a device follows, it refuses itself
_COUNTS = {
    "requestedAlgoCount": (0, inf),
    "nbDims": (-inf, 8),
    "max_size": (1, inf),
}  # C reads or writes so many
# Tried with cuDNN 9.28 and 9.0, and those that need a GPU with 9.19 on an H200: these follow
# pointers without a look, every descriptor and typed pointer of the first list and what is named in
# the second; the others answer BAD_PARAM, or leave out a result.
_CRASH_AT_NULL: dict[str, frozenset[str]] = {
    f"cudnn{name}": frozenset()
    for name in (
        "BackendCreateDescriptor",
        "CreateLRNDescriptor",
        "DeriveBNTensorDescriptor",
        "DeriveNormTensorDescriptor",
        "DropoutGetReserveSpaceSize",
        "GetActivationDescriptor",
        "GetConvolution2dDescriptor",
        "GetConvolution2dForwardOutputDim",
        "GetConvolutionGroupCount",
        "GetConvolutionMathType",
        "GetConvolutionNdDescriptor",
        "GetFilter4dDescriptor",
        "GetFilterNdDescriptor",
        "GetFilterSizeInBytes",
        "GetOpTensorDescriptor",
        "GetPooling2dDescriptor",
        "GetPooling2dForwardOutputDim",
        "GetPoolingNdDescriptor",
        "GetReduceTensorDescriptor",
        "GetTensorNdDescriptor",
        "GetTensorSizeInBytes",
        "SetConvolutionNdDescriptor",
        "SetFilterNdDescriptor",
        "SetLRNDescriptor",
        "SetPoolingNdDescriptor",
        "SetSeqDataDescriptor",
        "SetTensorNdDescriptor",
        "SetTensorNdDescriptorEx",
    )
} | {
    f"cudnn{name}": frozenset(arguments.split())
    for name, arguments in (
        ("BatchNormalizationBackward", "dBnScaleBiasDesc dxDesc dyDesc xDesc"),
        ("BatchNormalizationBackwardEx", "dBnScaleBiasDesc dxDesc dyDesc handle xDesc"),
        ("BatchNormalizationForwardInference", "bnScaleBiasMeanVarDesc handle xDesc yDesc"),
        (
            "CTCLoss",
            "costs ctcLossDesc gradientsDesc handle hostInputLengths hostLabelLengths probs probsDesc",
        ),
        ("CTCLoss_v8", "ctcLossDesc probsDesc"),
        ("DivisiveNormalizationBackward", "dXdMeansDesc handle normDesc xDesc"),
        ("DivisiveNormalizationForward", "handle normDesc xDesc yDesc"),
        ("DropoutBackward", "dxdesc dydesc"),
        ("DropoutForward", "xdesc ydesc"),
        ("DropoutGetStatesSize", "sizeInBytes"),
        ("FusedOpsExecute", "handle plan varPack"),
        (
            "GetCTCLossWorkspaceSize",
            "ctcLossDesc handle inputLengths labelLengths probsDesc sizeInBytes",
        ),
        ("GetCTCLossWorkspaceSize_v8", "ctcLossDesc probsDesc"),
        ("GetConvolutionBackwardDataAlgorithmMaxCount", "count"),
        ("GetConvolutionBackwardFilterAlgorithmMaxCount", "count"),
        ("GetConvolutionForwardAlgorithmMaxCount", "count"),
        ("GetConvolutionForwardAlgorithm_v7", "handle perfResults"),
        ("GetLRNDescriptor", "normDesc"),
        ("GetPoolingNdForwardOutputDim", "inputTensorDesc"),
        ("GetRNNWeightParams", "bAddr mAddr"),
        ("GetReductionIndicesSize", "reduceTensorDesc sizeInBytes"),
        ("GetReductionWorkspaceSize", "aDesc cDesc reduceTensorDesc sizeInBytes"),
        ("GetSeqDataDescriptor", "axes dataType dimA nbDims seqLengthArray seqLengthArraySize"),
        ("GetStream", "streamId"),
        ("Im2Col", "convDesc handle wDesc xDesc"),
        ("InitTransformDest", "srcDesc"),
        ("LRNCrossChannelBackward", "alpha beta dxDesc dyDesc handle normDesc xDesc"),
        ("LRNCrossChannelForward", "alpha beta handle normDesc xDesc yDesc"),
        ("NormalizationBackward", "dNormScaleBiasDesc dxDesc dyDesc normMeanVarDesc xDesc"),
        ("OpTensor", "opTensorDesc"),
        ("RNNBackwardData_v8", "dy"),
        ("ReduceTensor", "reduceTensorDesc workspace"),
        ("SetRNNDataDescriptor", "seqLengthArray"),
        ("SpatialTfGridGeneratorBackward", "stDesc"),
        ("SpatialTfGridGeneratorForward", "stDesc"),
        ("SpatialTfSamplerBackward", "dxDesc dyDesc stDesc xDesc"),
        ("SpatialTfSamplerForward", "alpha beta stDesc xDesc yDesc"),
        ("TransformFilter", "destDesc srcDesc"),
    )
}


_NEEDED_BY = {  # what may be null where another argument asks for nothing
    ("cudnnCTCLoss", "gradientsDesc"): "gradients",
    ("cudnnGetSeqDataDescriptor", "seqLengthArray"): "seqLengthSizeRequested",
    ("cudnnGetTensorNdDescriptor", "dimA"): "nbDimsRequested",
    ("cudnnGetTensorNdDescriptor", "strideA"): "nbDimsRequested",
    ("cudnnReduceTensor", "workspace"): "workspaceSizeInBytes",
}


# by the types of parameters
ENUMS = {f"{const}{name}": enum for enum, name in C_NAMES.items() for const in ("", "const ")}


_RESULTS = {
    ctypes.c_int: "cudnnStatus_t",
    ctypes.c_size_t: "size_t",
    ctypes.c_char_p: "const char *",
    None: "void",
}


class CallArgumentError(ArgumentError, ctypes.ArgumentError):
    """An argument of a C function is of a wrong type, or a value with which C is known to crash."""


_call_observer: CallObserver | None = None  # makes all calls, if there is one


class Alive:
    """Weak references to objects; all that runs when one goes is C, where no interrupt is lost."""

    def __init__(self) -> None:
        self._refs: set[ref[Any]] = set()

    def add(self, one: object) -> None:
        """Remember an object until it goes."""
        self._refs.add(ref(one, self._refs.discard))

    def __iter__(self) -> Iterator[Any]:
        # Of `tuple` a collection may remove references while it goes through them; a copy of a set
        # allocates before.
        return iter([one for reference in self._refs.copy() if (one := reference()) is not None])


_functions, PREPARED = Alive(), Alive()


def observe_calls(observer: CallObserver | None) -> None:
    """Let an observer make every call of every table from now on; None: call C directly again.

    Every `CFunction.call` and `PreparedCall.function` is set here, once.  So a call does not ask
    whether somebody observes, and costs nothing where nobody does.
    """
    global _call_observer  # noqa: PLW0603  (functions of every table are observed, or none is)
    with fork_lock:
        _call_observer = observer
        for function in _functions:
            function.call = _observable(function.unobserved, function.record)
        for prepared in PREPARED:
            prepared.function = prepared.bound.call


def _observable(call: Call, record: Function) -> Call:
    """Return a function as it is called now: directly, or by the observer."""
    if _call_observer is None:
        return call
    return partial(_call_observer, call, record)


def through_c(record: Function, enter: Call) -> Any:
    """Return a C function of `record`'s arguments that returns a call of `enter` with what C saw.

    Only the arguments pass through C.  Of an exception inside a callback, a signal handler's for
    instance, ctypes would print a traceback and go on with a status that nobody wrote; `partial`,
    which is C, runs no bytecode, so that there is no place in a callback where a handler could run.
    """
    return ctypes.CFUNCTYPE(ctypes.py_object, *record.argtypes)(partial(partial, enter))


def untyped(callback: Any) -> Call:
    """Return a callback, which has to be kept alive, as what takes converted arguments."""
    return _UNTYPED(ctypes.cast(callback, ctypes.c_void_p).value or 0)


class _Doc:
    """The docstring of a class; of its instances, which `help` asks for, what the header says."""

    def __init__(self, of_class: str | None) -> None:
        self._of_class = of_class

    def __get__(self, function: CFunction | None, owner: object) -> str | None:
        if function is None:
            return self._of_class
        from cudnnlite._raw.signatures import Signatures  # which nothing else needs while it runs

        record = function.record
        arguments = (
            ",\n    ".join(map(" ".join, zip(C_TYPES[record.name], record.argnames, strict=True)))
            or "void"
        )
        prototype = f"{_RESULTS[record.restype]} {record.name}(\n    {arguments}\n)"
        prototype = re.sub(r"\[\] (\w+)", r" \1[]", prototype).replace("* ", "*")
        facts = getattr(Signatures, record.name).__doc__ or ""  # python -OO removes docstrings
        text = f"{prototype}\n\n{facts}"
        if record.returns_status:
            text += "\nAnother status than success raises a `CudnnError`."
        return text.rstrip()


class CFunction:
    """A function of a table: it converts its arguments, calls C, and checks the status.

    `call` takes converted arguments and returns what C returns: where that is a status, 0 (or None)
    for success; `check` raises the `CudnnError` of one that is not 0, and is None where C returns
    none.  `record` is what is known of the function.
    """

    __doc__ = _Doc(__doc__)
    __slots__ = ("__weakref__", "call", "check", "record", "unobserved")

    def __init__(
        self, call: Call, record: Function, check: Callable[[int], None] | None = None
    ) -> None:
        # those that may wait for a GPU keep no lock that others wait for
        direct = record.needs_device or record.name in (
            "cudnnBackendFinalize",
            "cudnnBackendInitialize",
        )
        self.unobserved = call if direct else partial(self._first, call)
        self.call = _observable(self.unobserved, record)
        self.record = record
        self.check = check
        _functions.add(self)

    def _first(self, call: Call, *arguments: Any) -> Any:
        """Call C for the first time: libcudnn looks a function up then, behind locks of its own."""
        # not for ever: the thread of a finalizer may hold what a fork waits for
        held = fork_lock.acquire(timeout=5)
        try:
            result = call(*arguments)
            self.unobserved = call
            self.call = _observable(call, self.record)
            for prepared in PREPARED:
                if prepared.bound is self:
                    prepared.function = self.call
        finally:
            if held:
                fork_lock.release()
        return result

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if named:
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

    ``status = call.function(*call.arguments)``, and where that is not 0, ``call.check(status)``
    raises the error.  Of the microsecond that ctypes takes to call a function with thirteen
    arguments, two thirds go into converting them; here that is done when an argument changes, and
    only for that one.  An `errcheck` of ctypes would take another tenth of it.
    """

    _instead_of_copy = "it holds addresses of one process: prepare another"
    __slots__ = ("__weakref__", "_places", "_record", "arguments", "bound", "check", "function")

    def __init__(self, function: CFunction, *arguments: Any) -> None:
        self.bound = function
        self.function = function.call
        self.check = function.check
        self._record = function.record
        convert(self._record, arguments)
        keeps = [_keeping(self._record, index) for index in range(len(arguments))]
        self._places = {
            name: (index, keeps[index]) for index, name in enumerate(self._record.argnames)
        }
        self.arguments = tuple(keep(value) for keep, value in zip(keeps, arguments, strict=True))
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
            index, keep = self._places[name]
            try:
                arguments[index] = keep(value)
            except (TypeError, ArgumentError, ctypes.ArgumentError) as error:
                raise _refusal(self._record, index, value, error) from error
        self.arguments = tuple(arguments)

    def marshalled(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return arguments as ctypes makes them at each call otherwise, which takes it time.

        What they are is not seen any more, so that a function which somebody put into the table
        gets them as they were.
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
    """Return arguments as ctypes passes them on without a further look.

    TypeError if there are too few or too many; CallArgumentError for one of a wrong type, or one of
    which it is known that C would cut it off or crash.
    """
    if len(arguments) != len(record.argtypes):
        raise TypeError(
            f"{record.name} takes {len(record.argtypes)} arguments "
            f"({', '.join(record.argnames)}); {len(arguments)} were given"
        )
    converted: list[Any] = []
    try:
        for kind, value in zip(record.argtypes, arguments, strict=True):
            if (value is None and record.name in _CRASH_AT_NULL) or hasattr(value, "__index__"):
                _check(kind, value, record, len(converted), arguments)
            if kind in _REAL_TYPES and hasattr(value, "__float__"):
                _check_real(kind, value, record.argnames[len(converted)])
            converted.append(kind.from_param(value))
    except (TypeError, ArgumentError, ctypes.ArgumentError) as error:
        raise _refusal(record, len(converted), arguments[len(converted)], error) from error
    return converted


def _refusal(record: Function, position: int, value: Any, error: Exception) -> CallArgumentError:
    why = _what_is_needed(record.argtypes[position], _enum_of(record, position), value) or error
    return CallArgumentError(
        f"{record.name}, argument {position + 1} ({record.argnames[position]}): {why}"
    )


def _enum_of(record: Function, position: int) -> type[CEnum] | None:
    """Return the enum that C declares an argument as, and does not enforce; None if it is none."""
    return ENUMS.get(C_TYPES[record.name][position])


def _what_is_needed(kind: Any, enum: type[CEnum] | None, value: Any) -> str:
    """Return what to pass instead of a value of a wrong type; empty where the error says so."""
    if kind in _REAL_TYPES and isinstance(value, float):
        return ""
    if (
        issubclass(kind, ctypes._SimpleCData)
        and kind._type_ not in "zP"
        and not hasattr(value, "__index__")
    ):
        needed = "a number" if kind._type_ in "fd" else "an integer"
        if enum:
            members = shorten(", ".join(map(str, enum)), 400, placeholder=" ...")
            module = "dnn" if enum.__name__ in public_enums else "dnn.raw.enums"
            needed = f"{with_article(enum)} or an integer; pass one of {module}.{enum.__name__}: {members}"
        return f"{shown(value)} is not {needed}"
    if isinstance(value, float) and kind is ctypes.c_void_p:
        return f"{value} is no address; a host scalar goes by ctypes.byref(ctypes.c_float({value}))"
    if value is None or isinstance(value, (int, float)):
        return ""
    is_no = f"a {type(value).__name__} is no"
    if hasattr(kind, "contents"):
        return (
            f"{is_no} pointer to a {kind._type_.__name__}; "
            "pass one of ctypes, by ctypes.byref or as an array"
        )
    if issubclass(kind, Opaque):
        if not hasattr(value, "spec") or hasattr(value, "api"):
            return ""
        return f"{is_no} {kind.__name__}; one of its .spec is dnn.{kind.__name__[5:-2]}(x.spec)"
    if issubclass(kind, ctypes.c_void_p):
        return (
            f"{is_no} address; pass .ptr of a device array, and what is on the host by ctypes.byref"
        )
    return ""


def _check(
    kind: Any, value: int | None, record: Function, position: int, arguments: tuple[Any, ...]
) -> None:
    """Raise TypeError for what C would cut off, or crash at."""
    name = record.argnames[position]
    refuse_masked(value, name)
    if isinstance(value, CEnum) and (enum := _enum_of(record, position)) not in (None, type(value)):
        raise TypeError(f"{type(value).__name__}.{value} is no {enum.__name__}")
    smallest, largest = _COUNTS.get(name, (-inf, inf))
    if value is None:
        named = _CRASH_AT_NULL[record.name]
        may_be_null = (
            name not in named
            if named
            else not (issubclass(kind, Opaque) or hasattr(kind, "contents"))
        )
        needed_by = _NEEDED_BY.get((record.name, name))
        if not may_be_null and (
            needed_by is None or arguments[record.argnames.index(needed_by)] not in (0, None)
        ):
            raise TypeError("a null pointer, which C would follow")
    elif issubclass(kind, ctypes.c_void_p):
        if 0 < value < _FIRST_ADDRESS and name.startswith(_FOLLOWED):
            raise TypeError(
                f"{value} is no address; "
                f"a host scalar goes by ctypes.byref(ctypes.c_float({value}))"
            )
    elif (
        issubclass(kind, ctypes._SimpleCData)
        and kind._type_ not in "fdzP"
        and kind(value).value != value
    ):
        raise TypeError(f"{shown(value)} does not fit into a {kind.__name__}")
    elif not smallest <= value <= largest:
        raise TypeError(f"{value}; allowed: from {smallest} to {largest}")


def _check_real(kind: Any, value: Any, argument: str) -> None:
    """Raise ArgumentError for no real number, TypeError for one that is infinite as a C float."""
    number = real_number(value, argument)
    if isfinite(number) and isinf(kind(number).value):
        raise TypeError(f"{number} does not fit into a {kind.__name__}")


def _keeping(record: Function, position: int) -> Callable[[Any], Any]:
    """Return what makes an argument ready for many calls; of a number an instance of its type."""
    kind = record.argtypes[position]
    others = (0,) * len(record.argnames)  # The other arguments are not known here.
    passed_on: Callable[[Any], Any] = kind.from_param
    is_number = issubclass(kind, ctypes._SimpleCData) and not issubclass(kind, ctypes.c_void_p)
    crashes = record.name in _CRASH_AT_NULL
    if not (is_number or crashes or record.argnames[position].startswith(_FOLLOWED)):
        return passed_on  # a device's address, which plans replace at each call

    def checked(value: Any) -> Any:
        if (value is None and crashes) or hasattr(value, "__index__"):
            _check(kind, value, record, position, others)
        if kind in _REAL_TYPES and hasattr(value, "__float__"):
            _check_real(kind, value, record.argnames[position])
        passed = passed_on(value)
        return kind(getattr(value, "value", value)) if is_number else passed

    return checked
