"""`PreparedCall`: a C function whose arguments were marshalled once, for calls in a hot loop.

Of the microsecond that ctypes takes to call a function with thirteen arguments, two thirds go into converting them.  Here that
is done when an argument changes, and only for that one.
"""

from __future__ import annotations

import ctypes
from typing import Any

from cudnnlite._raw.record import Function


class PreparedCall:
    """Call it as ``call.function(*call.arguments)``.

    Parameters
    ----------
    function : callable
        A bound, checked function; if it is a C function pointer it must be nobody else's, because its `argtypes` are
        dropped: the arguments come converted.
    record : Function
        What is known of it.
    arguments : object
        All of them, in order.

    Attributes
    ----------
    arguments : tuple
        Converted by the argument types of the prototype.  They keep nothing alive.
    """

    __slots__ = ("_indices", "_record", "arguments", "function")

    def __init__(self, function: Any, record: Function, *arguments: Any) -> None:
        if is_pointer(function):
            function.argtypes = None
        self.function = function
        self._record = record
        self._indices = {name: index for index, name in enumerate(record.argnames)}
        self.arguments = tuple(_convert(kind, value) for kind, value in zip(record.argtypes, arguments, strict=True))

    def replace(self, **values: Any) -> None:
        """Change arguments, by their names in the header."""
        arguments = list(self.arguments)
        for name, value in values.items():
            index = self._indices[name]
            arguments[index] = _convert(self._record.argtypes[index], value)
        self.arguments = tuple(arguments)


def is_pointer(function: Any) -> bool:
    """Tell whether a function is C's own, not a Python wrapper around it."""
    return isinstance(function, ctypes._CFuncPtr)  # type: ignore[attr-defined]


def _convert(kind: Any, value: Any) -> Any:
    """Return what ctypes passes on without a further look, checked by the prototype's type."""
    checked = kind.from_param(value)
    # numbers stay instances: what from_param makes of them, a function pointer with types of its own (a callback) refuses
    return checked if value is None or issubclass(kind, ctypes.c_void_p) else kind(value)
