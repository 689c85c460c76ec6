"""The base class of every generated enumeration."""

from __future__ import annotations

import enum
import sys
from collections.abc import Collection, Iterable
from typing import Any, NoReturn

from cudnnlite.arguments import shown
from cudnnlite.errors import ArgumentError

_INT_FORMATS = frozenset("bcdoxXneEfFgG%")


def refuse_c_name(
    module: str,
    name: str,
    kinds: Iterable[type[CEnum]],
    names: Collection[str] | None = None,
) -> NoReturn:
    """Raise AttributeError for a name that a module of enumerations lacks.

    For the name in C of a member of `kinds` the message says which member it is.  `names` are the
    enumerations that the module has; all if not given.
    """
    text = f"module {module!r} has no attribute {name!r}"
    if name.startswith("_"):  # Tools and imports ask each module for such names.
        raise AttributeError(text)
    for kind in kinds:
        member = kind._member_of_c_name(name)
        if member is not None:
            place = "" if names is None or kind.__name__ in names else "dnn.raw.enums."
            text += f"; it is {place}{kind.__name__}.{member.name}"
            break
    raise AttributeError(text)


class CEnum(enum.IntEnum):
    """A C enumeration, open to values that a newer cuDNN may return.

    An unknown integer becomes a pseudo-member named ``UNKNOWN_17``: equal to the integer, the same
    object for every look-up, and absent from iteration.  An integer of more than 32 bits, which C
    would truncate, raises an `ArgumentError`.  The name of a member in C, in any case, becomes the
    member.  Anything else raises ValueError, as in any enumeration.
    """

    @classmethod
    def _missing_(cls, value: object) -> CEnum | None:
        if isinstance(value, str):
            return cls._member_of_c_name(value)
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

    @classmethod
    def _member_of_c_name(cls, c_name: str) -> CEnum | None:
        """Return the member with a name in C; None if there is none."""
        # The generated module that an enumeration is defined in has its names in C, too.
        names_of_module = getattr(sys.modules[cls.__module__], "C_MEMBERS", {})
        c_names = names_of_module.get(cls, ())
        for name, member in zip(c_names, cls.__members__.values(), strict=False):
            if name.upper() == c_name.upper():
                return member
        return None

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
