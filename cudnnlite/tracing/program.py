"""`Program`: statements of C, and the variables in them, as a program in C: what is of use, with names, loops and comments."""

from __future__ import annotations

import ctypes
import linecache
import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from cudnnlite._raw.calls import ENUMS
from cudnnlite._raw.enums import C_MEMBERS, DataType
from cudnnlite.dtypes import itemsize
from cudnnlite.tracing.c_text import comment, string_literal
from cudnnlite.tracing.folder import packaged_file

_MOST_REPEATED = 64  # statements in the body of a loop
# a statement, and the comment that says where it comes from; or how often, and such items
Item: TypeAlias = tuple[Any, Any]


@dataclass(eq=False)
class Variable:
    """What a variable stands for: a handle, a descriptor, a stream, memory, an answer of cuDNN's."""

    c_type: str  # of an array with its length behind: ``int[8]``
    name: str = ""  # what it would like to be called
    destroy: str = ""  # the function that gives it back at the end; empty if nothing has to
    named_by_use: bool = field(default=False, init=False)
    device: Any = field(
        default=None, kw_only=True
    )  # where it is; None of what is on none, or nobody knows yet

    def used_as(self, name: str) -> None:
        """Take the name of the first parameter that it is given as, where that is no mere setter's."""
        if not self.named_by_use:
            self.name, self.named_by_use = snake(name), True


class Contents(NamedTuple):
    """The name of a file with what is copied into memory; `width` bytes are a floating-point number, 0 if it is none."""

    memory: Variable
    content: bytes
    width: int


Expression: TypeAlias = "str | int | Variable | Contents | list[Any] | Callable[[], Any]"  # the last are lists, and known later


@dataclass(eq=False)
class Statement:
    """One statement of the program; variables get their names when it is written."""

    function: str
    arguments: list[Expression]
    of: Iterable[Variable] | None = None  # it is of use where one of these is; None: always
    where: tuple[str, int] = ("", 0)  # the file and line of Python that it was made for
    early: bool = False  # whether it makes what was there before
    ends: Variable | None = None  # what is not there any more
    failed: bool = False
    note: str = ""
    checksum: int | None = None  # of what it reads, as Python had it
    call: Any = None  # what Python called, if it is a call of cuDNN's that was made in the block
    on: Any = None  # the device that it was made for; None: that of what it names

    @property
    def device(self) -> Any:
        """The device that has to be current; None where none has to."""
        return self.on or next((thing.device for thing in self.things if thing.device), None)

    @property
    def things(self) -> list[Variable]:
        """What it names."""
        return [part for part in _flat(self.arguments) if isinstance(part, Variable)]


class Program:
    """A program in C: its `text`, the `files` that it reads, by path, and what it prints of Python's inputs, `checksums`.

    With a seed, floating-point inputs are generated from that.
    """

    def __init__(
        self, steps: Iterable[Statement], head: Iterable[str], seed: int | None = None
    ) -> None:
        self.files: dict[str, bytes] = {}
        self.checksums: list[tuple[str, int]] = []
        self._seed = seed
        self._inputs: dict[tuple[bytes, int], str] = {}
        self._names: dict[Variable, str] = {}
        self._types: dict[str, str] = {}  # of the variables that are declared
        prelude = packaged_file("prelude.c").decode()
        self._busy = {*"ijkl", *re.findall(r"(\w+)\(", prelude)}  # names that are taken
        body = _rendered(
            _folded(self._lines(useful(sorted(steps, key=lambda step: not step.early))))
        )
        start = [comment(*head), prelude, "int main(void)", "{"]
        self.text = "\n".join(
            [*start, *self._declared(), *body, "    return EXIT_SUCCESS;", "}", ""]
        )

    def _lines(self, steps: list[Statement]) -> list[Item]:
        ended = {step.ends for step in steps}
        alive = {
            thing: None
            for step in steps
            for thing in step.things
            if thing.destroy and thing not in ended
        }
        steps = steps + [Statement(thing.destroy, [thing]) for thing in reversed(alive)]
        last = {thing: step for step in steps for thing in step.things}
        for step in steps:
            for thing in step.things:
                if thing.c_type.startswith(
                    ("cudnnHandle", "cudnnBackend", "cuda")
                ):  # what is made for one device
                    thing.device = thing.device or step.device
        lines: list[Item] = []
        current, homes = 0, [step.device and step.device.index for step in steps]
        for step, home in zip(steps, homes, strict=True):
            if home not in (None, current) and len({*homes} - {None}) > 1:
                current = home
                lines.append((f"CUDA(cudaSetDevice({home}));", _source(step)))
            lines.append((self._statement(step), _source(step)))
            if step.checksum is not None:
                self.checksums.append((self._names[step.things[0]], step.checksum))
            self._busy -= {self._names[thing] for thing in step.things if last[thing] is step}
        return lines

    def _statement(self, step: Statement) -> str:
        function, arguments = step.function, [*map(self._text, step.arguments)]
        if function == "load" and not arguments[2].startswith('"'):
            function = "generate"
        call = f"{function}({', '.join(arguments)})"
        macro = "FAILED" if step.failed else {"cuda": "CUDA", "cudn": "CUDNN"}.get(function[:4])
        return (f"{macro}({call});" if macro else f"{call};") + (
            f" {comment(step.note)}" if step.note else ""
        )

    def _text(self, part: Expression) -> str:
        if isinstance(part, Contents):
            return self._input(part)
        if isinstance(part, Variable):
            return self._name(part)
        return (
            str(part) if isinstance(part, (str, int)) else "".join(map(self._text, _flat([part])))
        )

    def _name(self, thing: Variable) -> str:
        if thing not in self._names:
            taken = {
                name for name, c_type in self._types.items() if c_type != thing.c_type
            } | self._busy
            self._names[thing] = name = _another(thing.name, taken)
            self._types[name] = thing.c_type
            self._busy.add(name)
        return self._names[thing]

    def _input(self, part: Contents) -> str:
        """Return the path of a file, or the width of numbers and a seed; of what is equal the same.

        Equal bytes of two types are not: numbers of one would be infinities of the other.
        """
        key = part.content, 0 if self._seed is None else part.width
        if key not in self._inputs and key[1]:
            self._inputs[key] = f"{part.width}, {(self._seed or 0) + len(self._inputs)}u"
        elif key not in self._inputs:
            name = _another(self._name(part.memory), {Path(path).stem for path in self.files})
            path = f"inputs/{name}.bin"
            self.files[path], self._inputs[key] = part.content, string_literal(path)
        return self._inputs[key]

    def _declared(self) -> Iterator[str]:
        by_type = defaultdict(list)
        for name, c_type in self._types.items():
            kind, bracket, length = c_type.partition("[")
            by_type[kind.rstrip(" *")].append("*" * kind.endswith("*") + name + bracket + length)
        for kind, names in by_type.items():
            yield _wrapped(f"{kind} {', '.join(names)};", "    ")


def useful(steps: list[Statement]) -> list[Statement]:
    """Return what does something, and what that needs; queries whose answers nobody uses are none of it."""
    by_thing: dict[Variable, list[Statement]] = defaultdict(list)
    for step in steps:
        for thing in step.of or ():
            by_thing[thing].append(step)
    todo, kept = [step for step in steps if step.of is None], set[Statement]()
    while todo:
        step = todo.pop()
        if step not in kept:
            kept.add(step)
            for thing in step.things:
                todo += by_thing.pop(thing, ())
    return [step for step in steps if step in kept]


def _flat(parts: Iterable[Any]) -> Iterator[Any]:
    """Yield parts, those in lists too."""
    for part in parts:
        found = part() if callable(part) else part
        yield from _flat(found) if isinstance(found, list) else (found,)


def _another(name: str, taken: Iterable[str]) -> str:
    """Return a name that is not taken, by a number behind it if need be."""
    return next(
        each
        for each in chain([name], (f"{name}_{number}" for number in count(2)))
        if each not in taken
    )


def snake(name: str) -> str:
    """Return a parameter's name as programs in C write variables: xDesc becomes x_desc."""
    return (
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
        .lower()
        .replace("work_space", "workspace")
        .rstrip("_")
    )


def answer_name(function: str, argname: str) -> str:
    """Return the name of a variable for what a function tells."""
    words = snake(function).split("_")
    return (
        "_".join(words[-2:]) if argname == "sizeInBytes" and words[-1] == "size" else snake(argname)
    )


def number(value: Any, c_type: str) -> str:
    """Return a number as C writes it, an enumerator by its name."""
    kind = ENUMS.get(c_type)
    if kind is not None:
        members = zip(kind.__members__.values(), C_MEMBERS[kind], strict=True)
        return next(
            (name for member, name in members if member == value), f"({c_type}){int(value)}"
        )
    if isinstance(value, (bool, bytes)):
        return str(value).lower() if isinstance(value, bool) else str(value[0])
    if isinstance(value, float):
        if not math.isfinite(value):
            return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
        return repr(value) if "double" in c_type else f"{ctypes.c_float(value).value!r}f"
    return f"{value}u" if "unsigned" in c_type or "uint" in c_type else str(value)


def array(c_type: str, parts: list[Any]) -> Expression:
    """Return an array in C; its spaces are such that no line ends in it."""
    start = f"({c_type}[]){{".replace(" ", "\xa0")
    return [start, *[piece for part in parts for piece in (",\xa0", part)][1:], "}"]


def scalar(address: int, argname: str, dtype: DataType | None) -> Expression:
    """Return a host scalar: in double beside float64, in float otherwise; what fills a tensor in the tensor's own type."""
    if dtype == DataType.DOUBLE:
        return f"&(double){{{number(ctypes.c_double.from_address(address).value, 'double')}}}"
    if dtype in (None, DataType.FLOAT) or argname.startswith(("alpha", "beta")):
        return f"&(float){{{number(ctypes.c_float.from_address(address).value, 'float')}}}"
    content = (ctypes.c_ubyte * itemsize(dtype)).from_address(address)
    return array("unsigned char", [*map(hex, content)])


def _folded(lines: list[Item]) -> list[Item]:
    """Return lines with what is repeated as loops, short ones first, and repeated loops as loops of loops."""
    period = 1
    while period <= min(_MOST_REPEATED, len(lines) // 2):
        keys, folded, at = [_key(line) for line in lines], [], 0
        while at < len(lines):
            times, body = 1, keys[at : at + period]
            while keys[at + times * period : at + (times + 1) * period] == body:
                times += 1
            is_loop = (times - 1) * period > 2
            folded.append((times, tuple(lines[at : at + period])) if is_loop else lines[at])
            at += times * period if is_loop else 1
        period = period + 1 if len(folded) == len(lines) else 1
        lines = folded
    return lines


def _key(item: Any) -> object:
    """Return what has to be equal: statements, not comments."""
    return item[0] if isinstance(item[0], str) else (item[0], tuple(map(_key, item[1])))


def _rendered(items: Iterable[Any], space: str = "    ", said: str = "") -> Iterator[str]:
    """Yield the lines of a block, with a comment wherever it goes on for another line of Python."""
    index = "ijkl"[min(len(space) // 4 - 1, 3)]
    for item in items:
        first = item
        while not isinstance(first[0], str):
            first = first[1][0]
        if first[1] != said:
            said = first[1]
            yield f"\n{space}{comment(said)}"
        if item is first:
            yield _wrapped(item[0], space)
        else:
            yield f"{space}for (int {index} = 0; {index} < {item[0]}; {index}++) {{"
            yield from _rendered(item[1], space + "    ", said)
            yield f"{space}}}"


def _wrapped(text: str, space: str) -> str:
    options: Any = {
        "initial_indent": space,
        "subsequent_indent": space + 8 * " ",
        "break_long_words": False,
    }
    return textwrap.fill(text, 116, break_on_hyphens=False, **options).replace("\xa0", " ")


def _source(step: Statement) -> str:
    """Return the line of Python that a statement is for, with where it stands."""
    (file, line), name = (
        step.where,
        "notebook" if "ipykernel_" in step.where[0] else Path(step.where[0]).name,
    )
    if step.early or not file:
        return (
            "made before the trace"
            if step.early
            else "given back"
            if step.checksum is None
            else "read at the end"
        )
    text = ""
    with suppress(
        ValueError
    ):  # a name with a zero byte, which code that was not read from a file may have
        text = linecache.getline(file, line)
    return f"{name}:{line}: {' '.join(text.split())}"
