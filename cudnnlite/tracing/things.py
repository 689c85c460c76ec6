"""What the program in C is made of: variables, and statements that name them."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cudnnlite._raw.cenum import CEnum
from cudnnlite._raw.enums import C_MEMBERS, C_NAMES

ENUMS: dict[str, type[CEnum]] = {name: kind for kind, name in C_NAMES.items()}  # by their names in C
_SPACES = re.compile("space|states|weights")  # memory that is as large as cuDNN said


@dataclass(eq=False)
class Thing:
    """What a variable stands for: a handle, a descriptor, a stream, memory, an answer of cuDNN's."""

    c_type: str  # of an array with its length behind: ``int[8]``
    name: str = ""  # what it would like to be called
    destroy: str = ""  # the statement that gives it back at the end, {} for its name; empty if nothing has to
    named_by_use: bool = field(default=False, init=False)

    def used_as(self, name: str) -> None:
        """Take the name of the first parameter that it is given as, where that is no mere setter's."""
        if not self.named_by_use:
            self.name, self.named_by_use = snake(name), True


@dataclass(eq=False)
class Buffer(Thing):
    """An allocation on a device: from `base` on so many bytes."""

    base: int = 0
    nbytes: int = 0
    device: Any = None
    outside: bool = False  # whether it was there before
    shared: bool = False  # whether others may write to it unseen: it was there before, or was handed to another library
    unread: bool = False  # whether something was written that nobody has read
    digests: dict[tuple[int, int], bytes] = field(default_factory=dict)  # when looked at last; by offset and bytes
    parts: dict[int, tuple[int, Thing]] = field(
        default_factory=dict
    )  # by offset: bytes, and cuDNN's answer where that is


class Place(NamedTuple):
    """Somewhere in a buffer; `part` is the variable in which cuDNN tells where that is, on whichever device."""

    buffer: Buffer
    offset: int = 0
    part: Thing | None = None


class Size(NamedTuple):
    """How large a buffer is made: what cuDNN was asked for, where it is scratch memory; else so many bytes."""

    buffer: Buffer
    answer: Thing | None

    @property
    def variable(self) -> Thing | None:
        """The answer that says it."""
        return self.answer if _SPACES.search(self.buffer.name) else None


class Contents(NamedTuple):
    """The name of a file with what is copied into a buffer."""

    buffer: Buffer
    content: bytes


Part = str | Thing | Place | Size | Contents


@dataclass(eq=False)
class Step:
    """One statement of the program."""

    parts: list[Part]  # its text; variables get their names later
    of: tuple[Thing, ...] | None = None  # it is of use where one of these is; None: always
    where: tuple[str, int] = ("", 0)  # the file and line of Python that it was made for
    note: str = ""
    begins: Thing | None = None  # what is there from here on
    ends: Thing | None = None  # what is not any more
    stream: int | None = None  # what it is enqueued on; None where it waits, or is the host's affair
    checksum: int | None = None  # of what it reads, as Python had it

    def things(self) -> Iterator[Thing]:
        """Yield what it names."""
        for part in self.parts:
            if isinstance(part, Thing):
                yield part
            elif isinstance(part, Size):
                yield from () if part.variable is None else (part.variable,)
            elif isinstance(part, Place):
                yield part.part or part.buffer


def snake(name: str) -> str:
    """Return a parameter's name as programs in C write variables: xDesc becomes x_desc."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("work_space", "workspace").rstrip("_")


def number(value: Any, c_type: str) -> str:
    """Return a number as C writes it, an enumerator by its name."""
    kind = ENUMS.get(c_type.removeprefix("const "))
    if kind is not None:
        members = zip(kind.__members__.values(), C_MEMBERS[kind], strict=True)
        return next((name for member, name in members if member == value), f"({c_type}){int(value)}")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return str(value[0])
    if isinstance(value, float):
        if not math.isfinite(value):
            return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
        return repr(value) if "double" in c_type else f"{ctypes.c_float(value).value!r}f"
    return f"{value}u" if "unsigned" in c_type or "uint" in c_type else str(value)


def literal(c_type: str, values: Any) -> str:
    """Return an array of C as an expression."""
    kind = c_type.removesuffix("[]").removesuffix("*").strip()
    return f"({kind}[]){{{', '.join(number(value, kind) for value in values)}}}"
