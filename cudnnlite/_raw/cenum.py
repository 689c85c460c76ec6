"""The base class of every generated enumeration."""

from __future__ import annotations

import enum
from typing import Any

from cudnnlite.arguments import shown
from cudnnlite.errors import ArgumentError

_INT_FORMATS = frozenset("bcdoxXneEfFgG%")


class CEnum(enum.IntEnum):
    """A C enumeration, open to values that a newer cuDNN may return.

    An unknown integer becomes a pseudo-member named ``UNKNOWN_17``: equal to the integer, the same
    object for every look-up, and absent from iteration.  Anything but an integer raises ValueError,
    as in any enumeration.  An integer of more than 32 bits, which C would truncate, raises an
    `ArgumentError`.
    """

    @classmethod
    def _missing_(cls, value: object) -> CEnum | None:
        if not isinstance(value, int):
            return None
        # ctypes would truncate a larger integer, perhaps to the value of another member.
        if not -(2**31) <= value < 2**31:
            raise ArgumentError(f"{shown(value)} is not a {cls.__name__}: C's enums are of 32 bits")
        member = int.__new__(cls, value)
        member._name_ = f"UNKNOWN_{value}"
        member._value_ = int(value)
        # setdefault is atomic, so that two threads with one new value get the same object.
        members: dict[int, Any] = cls._value2member_map_
        return members.setdefault(member._value_, member)  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: object) -> tuple[type[CEnum], tuple[int]]:
        # By value: Python 3.11 pickles by name, and has no pseudo-member under its name.
        return type(self), (int(self),)

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        # Python 3.10 to 3.13 format an IntEnum in different ways.
        if spec[-1:] in _INT_FORMATS:
            return int.__format__(self, spec)
        return format(self.name, spec)
