"""`RefusedOperators`: a device array has no truth value, no equality and no arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import TYPE_CHECKING, NoReturn

from cudnnlite.devices.foreign import is_readable
from cudnnlite.errors import ArrayTypeError
from cudnnlite.other_libraries import OPERATORS


def _refuse(operator: str) -> Callable[..., NoReturn]:
    """Return a method that raises ArrayTypeError, and says what computes the operator's result."""

    def method(_self: object, _other: object = None) -> NoReturn:
        raise ArrayTypeError(f"a DeviceArray has no operator {operator}; {OPERATORS[operator]}")

    return method


class RefusedOperators:
    """A class whose objects refuse operators with what to write instead.

    By Python's defaults each array would be true, and two arrays of the same values different.  An
    array is equal to itself alone, and its hash is that of its identity.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        raise ArrayTypeError(
            "a DeviceArray has no truth value; x.numpy() copies it to the host, "
            "and `x is None` asks whether there is one"
        )

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if is_readable(other) or isinstance(other, (Number, list, tuple)):
            raise ArrayTypeError(
                "a DeviceArray is not compared with ==; x.numpy() copies it to the host, "
                "and `x is y` asks whether both are one object"
            )
        return NotImplemented

    __hash__ = object.__hash__

    if not TYPE_CHECKING:  # a type checker finds an operator that is not declared
        __add__ = __radd__ = _refuse("+")
        __sub__ = __rsub__ = _refuse("-")
        __mul__ = __rmul__ = _refuse("*")
        __truediv__ = __rtruediv__ = _refuse("/")
        __matmul__ = __rmatmul__ = _refuse("@")
        __pow__ = __rpow__ = _refuse("**")
        __neg__ = _refuse("-x")
        __lt__ = _refuse("<")
        __le__ = _refuse("<=")
        __gt__ = _refuse(">")
        __ge__ = _refuse(">=")

        def __setitem__(self, _key: object, _value: object) -> NoReturn:
            raise ArrayTypeError(
                "a DeviceArray has no item assignment; "
                "x[0].fill(1) and x[0].copy_from(values) write in place"
            )
