"""`Program`: statements of C, and the variables in them, as a program: what is of use, with names, loops and comments."""

from __future__ import annotations

import hashlib
import linecache
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

_WIDTH = 116
_MOST_REPEATED = 64  # statements in the body of a loop
_SPACES = re.compile("space|states|weights")  # memory that is as large as cuDNN said
_TOGETHER = re.compile(r"(\((const )?\w+( \*)?\[\]\))?\{[^{}]*\}")  # what no line ends in

Item = tuple[Any, Any]  # a statement, and the comment that says where it comes from; or how often, and such items


@dataclass(eq=False)
class Thing:
    """What a variable stands for: a handle, a descriptor, a stream, memory, an answer of cuDNN's."""

    c_type: str  # of an array with its length behind: ``int[8]``
    name: str = ""  # what it would like to be called
    destroy: str = ""  # the function that gives it back at the end; empty if nothing has to
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
    alive: Any = None  # a weak reference to what owns it; None where that is somebody else's
    answer: Thing | None = None  # cuDNN's, that is as large
    shared: bool = False  # whether others may write to it unseen: it was there before, or was handed to another library
    unread: bool = False  # whether something was written that nobody has read
    digests: dict[tuple[int, int], bytes] = field(default_factory=dict)  # when looked at last; by offset and bytes
    parts: dict[int, tuple[int, Thing]] = field(default_factory=dict)  # by offset: bytes, and cuDNN's answer where


class Place(NamedTuple):
    """Somewhere in a buffer; `part` is the variable in which cuDNN tells where that is, on whichever device."""

    buffer: Buffer
    offset: int = 0
    part: Thing | None = None


class Size(NamedTuple):
    """How large a buffer is made: what cuDNN was asked for, where it is scratch memory; else so many bytes."""

    buffer: Buffer


class Contents(NamedTuple):
    """The name of a file with what is copied into a buffer; `width` bytes are a floating-point number, 0 if it is none."""

    buffer: Buffer
    content: bytes
    width: int = 0


Part: TypeAlias = "str | int | Thing | Place | Size | Contents | list[Any]"  # a list of parts is written as one


@dataclass(eq=False)
class Step:
    """One call of the program; variables get their names when it is written."""

    function: str
    arguments: list[Part]
    of: tuple[Thing, ...] | None = None  # it is of use where one of these is; None: always
    where: tuple[str, int] = ("", 0)  # the file and line of Python that it was made for
    early: bool = False  # whether it makes what was there before
    ends: Thing | None = None  # what is not there any more
    stream: int | None = None  # what it is enqueued on; None where it waits, or is the host's affair
    failed: bool = False
    note: str = ""
    checksum: int | None = None  # of what it reads, as Python had it

    def things(self) -> Iterator[Thing]:
        """Yield what it names."""
        for part in flat(self.arguments):
            thing = (part.part or part.buffer) if isinstance(part, Place) else sized(part) or part
            if isinstance(thing, Thing):
                yield thing


class Program:
    """A program in C.

    Parameters
    ----------
    steps : sequence of Step
        What was done; what makes what was there before comes first.
    head : iterable of str
        The lines of its first comment.
    seed : int, optional
        Floating-point inputs are generated from it.

    Attributes
    ----------
    text : str
        The source.
    files : dict
        What it reads, by path.
    checksums : list of (str, int)
        What it prints, if its inputs are Python's.
    """

    def __init__(self, steps: Sequence[Step], head: Iterable[str], seed: int | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.checksums: list[tuple[str, int]] = []
        self._seed = seed
        self._inputs: dict[Any, str] = {}
        self._names: dict[Thing, str] = {}
        self._types: dict[str, str] = {}  # of the variables that are declared
        prelude = files("cudnnlite.tracing").joinpath("prelude.c").read_text()
        self._busy = {*"ijkl", *re.findall(r"(\w+)\(", prelude)}  # names that are taken
        body = _rendered(_folded(self._lines(_useful(sorted(steps, key=lambda step: not step.early)))), 0)
        comment = "\n * ".join(map(_harmless, head))
        self.text = "\n".join(
            [
                f"/* {comment}\n */",
                prelude,
                "int main(void)",
                "{",
                *self._declared(body),
                "    return EXIT_SUCCESS;",
                "}\n",
            ]
        )

    def _lines(self, steps: list[Step]) -> list[Item]:
        last = {thing: step for step in steps for thing in step.things()}
        lines: list[Item] = []
        alive: dict[Thing, None] = {}
        stream, capturing = None, False
        for step in steps:
            comment = "made before the trace" if step.early else _source(*step.where)
            if step.stream is not None and not capturing:
                if stream not in (None, step.stream):
                    waits = "CUDA(cudaDeviceSynchronize()); /* another stream: Python orders them by events */"
                    lines.append((waits, comment))
                stream = step.stream
            capturing = step.function == "cudaStreamBeginCapture" or (
                capturing and step.function != "cudaStreamEndCapture"
            )
            lines.append((self._statement(step), comment))
            if step.checksum is not None:
                self.checksums.append((self._names[next(step.things())], step.checksum))
            for thing in step.things():
                ends = thing is step.ends
                if ends:
                    alive.pop(thing, None)
                elif thing.destroy:
                    alive[thing] = None
                if ends or (last[thing] is step and not thing.destroy):
                    self._busy.discard(self._names[thing])
        return lines + [(self._statement(Step(thing.destroy, [thing])), "given back") for thing in reversed(alive)]

    def _statement(self, step: Step) -> str:
        function = step.function
        if function == "load" and self._generates(step.arguments[2]):
            function = "generate"
        call = f"{function}({', '.join(map(self._text, step.arguments))})"
        macro = "FAILED" if step.failed else {"cuda": "CUDA", "cudn": "CUDNN"}.get(function[:4])
        return (f"{macro}({call});" if macro else f"{call};") + (f" /* {step.note} */" if step.note else "")

    def _text(self, part: Part) -> str:
        if isinstance(part, list):
            return "".join(map(self._text, part))
        if isinstance(part, Thing):
            return self._name(part)
        if isinstance(part, Place):
            name = self._name(part.part or part.buffer)
            return f"(char *){name} + {part.offset}" if part.offset and not part.part else name
        if isinstance(part, Size):
            variable = sized(part)
            return str(part.buffer.nbytes) if variable is None else self._name(variable)
        return self._input(part) if isinstance(part, Contents) else str(part)

    def _name(self, thing: Thing) -> str:
        if thing not in self._names:
            name, number = thing.name, 1
            while name in self._busy or self._types.get(name, thing.c_type) != thing.c_type:
                number += 1
                name = f"{thing.name}_{number}"
            self._names[thing], self._types[name] = name, thing.c_type
            self._busy.add(name)
        return self._names[thing]

    def _generates(self, part: Part) -> bool:
        return self._seed is not None and isinstance(part, Contents) and part.width > 0

    def _input(self, part: Contents) -> str:
        """Return the path of a file, or the width of numbers and a seed; of what is equal the same."""
        key, generates = hashlib.blake2b(part.content).digest(), self._generates(part)
        if (key, generates) not in self._inputs:
            if generates:
                self._inputs[key, True] = f"{part.width}, {(self._seed or 0) + len(self._inputs)}u"
            else:
                name, number = self._name(part.buffer), 1
                path = f"inputs/{name}.bin"
                while path in self.files:
                    number += 1
                    path = f"inputs/{name}_{number}.bin"
                self.files[path], self._inputs[key, False] = part.content, f'"{path}"'
        return self._inputs[key, generates]

    def _declared(self, body: Iterable[str]) -> list[str]:
        """Return a block with its variables before it."""
        lines, by_type = [*body], defaultdict(list)
        for name, c_type in self._types.items():
            kind, bracket, length = c_type.partition("[")
            star = "*" * kind.endswith("*")
            by_type[kind.removesuffix("*").strip()].append(f"{star}{name}{bracket}{length}")
        declared = [line for kind, names in by_type.items() for line in _wrapped(f"{kind} {', '.join(names)};", 4)]
        return declared + lines


def flat(parts: Iterable[Any]) -> Iterator[Any]:
    """Yield parts, those in lists too."""
    for part in parts:
        yield from flat(part) if isinstance(part, list) else (part,)


def sized(part: Any) -> Thing | None:
    """Return the variable that says a size, if one does."""
    return part.buffer.answer if isinstance(part, Size) and _SPACES.search(part.buffer.name) else None


def snake(name: str) -> str:
    """Return a parameter's name as programs in C write variables: xDesc becomes x_desc."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("work_space", "workspace").rstrip("_")


def _useful(steps: list[Step]) -> list[Step]:
    """Return what does something, and what that needs; queries whose answers nobody uses are none of it."""
    by_thing: dict[Thing, list[Step]] = defaultdict(list)
    for step in steps:
        for thing in step.of or ():
            by_thing[thing].append(step)
    todo, kept = [step for step in steps if step.of is None], set[Step]()
    while todo:
        step = todo.pop()
        if step not in kept:
            kept.add(step)
            for thing in step.things():
                todo += by_thing.pop(thing, ())
    return [step for step in steps if step in kept]


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


def _rendered(items: Iterable[Any], depth: int, said: str = "") -> Iterator[str]:
    """Yield the lines of a block, with a comment wherever it goes on for another line of Python."""
    space, index = "    " * (depth + 1), "ijkl"[min(depth, 3)]
    for item in items:
        first = item
        while not isinstance(first[0], str):
            first = first[1][0]
        if first[1] != said:
            said = first[1]
            yield from ("", f"{space}/* {_harmless(said)} */")
        if item is first:
            yield from _wrapped(item[0], len(space))
        else:
            yield f"{space}for (int {index} = 0; {index} < {item[0]}; {index}++) {{"
            yield from _rendered(item[1], depth + 1, said)
            yield f"{space}}}"


def _wrapped(text: str, indent: int) -> list[str]:
    """Return a statement in lines; what stands in braces stays together."""
    lines = textwrap.wrap(
        _TOGETHER.sub(lambda found: found[0].replace(" ", "\xa0"), text), _WIDTH, initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 8), break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace("\xa0", " ") for line in lines]


def _source(file: str, line: int) -> str:
    """Return a line of Python with where it stands."""
    name = "notebook" if "ipykernel_" in file else Path(file).name
    return f"{name}:{line}: {' '.join(linecache.getline(file, line).split())}" if file else ""


def _harmless(text: str) -> str:
    """Return a text that a comment may hold."""
    return text.replace("*/", "* /").replace("/*", "/ *").replace("\\", "/")
