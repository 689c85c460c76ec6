"""`Program`: the statements of a trace as a program in C: what is of use, with names, loops and comments."""

from __future__ import annotations

import hashlib
import linecache
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from cudnnlite.tracing.things import Contents, Part, Place, Size, Step, Thing

_WIDTH = 116
_MOST_REPEATED = 64  # statements in the body of a loop
_TAKEN = {"i", "j", "k", "l", "host", "load", "load_rows", "report", "report_rows", "contents", "print_sum", "main"}
_INDICES = "ijkl"

Item = tuple[Any, Any]  # a statement, and the comment that says where it comes from; or how often, and such items


class Program:
    """A program in C.

    Parameters
    ----------
    before, steps : sequence of Step
        What makes what was there before, and what was done.
    head : iterable of str
        The lines of its first comment.

    Attributes
    ----------
    text : str
        The source.
    files : dict
        What it reads, by path.
    checksums : list of (str, int)
        What it prints.
    left_out : int
        How many calls are of no use to it.
    """

    def __init__(self, before: Sequence[Step], steps: Sequence[Step], head: Iterable[str]) -> None:
        self.files: dict[str, bytes] = {}
        self.checksums: list[tuple[str, int]] = []
        self._paths: dict[bytes, str] = {}
        self._names: dict[Thing, str] = {}
        self._types: dict[str, str] = {}  # of the variables that are declared
        self._busy: set[str] = set()
        kept = _useful([*before, *steps])
        early = set(before)
        self.left_out = len(before) + len(steps) - len(kept)
        lines = self._lines(kept, early)
        body = list(_rendered(_folded(lines), 0))
        comment = textwrap.indent("\n".join(map(_harmless, head)), " * ", lambda _: True).replace(" * ", "/* ", 1)
        prelude = files("cudnnlite.tracing").joinpath("prelude.c").read_text()
        start = self._declared()
        self.text = "\n".join(
            [comment, " */", prelude, "int main(void)", "{", *start, *body, "    return EXIT_SUCCESS;", "}", ""]
        )

    def _lines(self, kept: list[Step], early: set[Step]) -> list[Item]:
        last = {thing: number for number, step in enumerate(kept) for thing in step.things()}
        lines: list[Item] = []
        alive: dict[Thing, None] = {}
        stream, capturing = None, False
        for number, step in enumerate(kept):
            comment = "made before the trace" if step in early else _source(*step.where)
            if step.stream is not None and not capturing:
                if stream not in (None, step.stream):
                    lines.append(
                        ("CUDA(cudaDeviceSynchronize()); /* another stream: Python orders them by events */", comment)
                    )
                stream = step.stream
            text = "".join(map(self._text, step.parts))
            capturing = "cudaStreamBeginCapture" in text or (capturing and "cudaStreamEndCapture" not in text)
            lines.append((text + (f" /* {step.note} */" if step.note else ""), comment))
            if step.checksum is not None:
                self.checksums.append((self._names[next(step.things())], step.checksum))
            if step.begins is not None and step.begins.destroy:
                alive[step.begins] = None
            if step.ends is not None:
                alive.pop(step.ends, None)
            for thing in step.things():
                if thing is step.ends or (last[thing] == number and not thing.destroy):
                    self._busy.discard(self._names[thing])
        lines += [(thing.destroy.format(self._names[thing]), "given back") for thing in reversed(alive)]
        return lines

    def _text(self, part: Part) -> str:
        if isinstance(part, str):
            return part
        if isinstance(part, Thing):
            return self._name(part)
        if isinstance(part, Place):
            name = self._name(part.part or part.buffer)
            return f"(char *){name} + {part.offset}" if part.offset and not part.part else name
        if isinstance(part, Size):
            return str(part.buffer.nbytes) if part.variable is None else self._name(part.variable)
        return f'"{self._path(part)}"'

    def _name(self, thing: Thing) -> str:
        if thing not in self._names:
            base, number = thing.name or "thing", 1
            name = base if base not in _TAKEN else f"{base}_"
            while name in self._busy or self._types.get(name, thing.c_type) != thing.c_type:
                number += 1
                name = f"{base}_{number}"
            self._names[thing] = name
            self._types[name] = thing.c_type
            self._busy.add(name)
        return self._names[thing]

    def _path(self, part: Contents) -> str:
        key = hashlib.blake2b(part.content).digest()
        if key not in self._paths:
            name, number = self._name(part.buffer), 1
            path = f"inputs/{name}.bin"
            while path in self.files:
                number += 1
                path = f"inputs/{name}_{number}.bin"
            self.files[path], self._paths[key] = part.content, path
        return self._paths[key]

    def _declared(self) -> list[str]:
        by_type = defaultdict(list)
        for name, c_type in self._types.items():
            kind, bracket, length = c_type.partition("[")
            star = "*" if kind.endswith("*") else ""
            by_type[kind.removesuffix("*").strip()].append(f"{star}{name}{bracket}{length}")
        return [line for kind, names in by_type.items() for line in _wrapped(f"{kind} {', '.join(names)};", 4)]


def _useful(steps: list[Step]) -> list[Step]:
    """Return what does something, and what that needs; queries whose answers nobody uses are none of it."""
    by_thing: dict[Thing, list[Step]] = defaultdict(list)
    kept: set[Step] = set()
    for step in steps:
        for thing in step.of or ():
            by_thing[thing].append(step)
    todo = [step for step in steps if step.of is None]
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


def _rendered(items: Iterable[Any], depth: int) -> Iterator[str]:
    """Yield the lines of a block, with a comment wherever it goes on for another line of Python."""
    space, said = "    " * (depth + 1), ""
    for item in items:
        first = item
        while not isinstance(first[0], str):
            first = first[1][0]
        if first[1] != said:
            said = first[1]
            yield from ("", f"{space}/* {_harmless(said)} */")
        if item is first:
            yield from _wrapped(item[0], 4 * (depth + 1))
            continue
        index = _INDICES[min(depth, 3)]
        yield f"{space}for (int {index} = 0; {index} < {item[0]}; {index}++) {{"
        inner = list(_rendered(item[1], depth + 1))
        yield from inner[2:] if inner[1].strip() == f"/* {_harmless(said)} */" else inner
        yield f"{space}}}"


def _wrapped(text: str, indent: int) -> list[str]:
    """Return a statement in lines; what stands in braces stays together."""
    space, whole = (
        " " * indent,
        re.sub(r"(\((const )?\w+( \*)?\[\]\))?\{[^{}]*\}", lambda found: found[0].replace(" ", "\xa0"), text),
    )
    lines = textwrap.wrap(
        whole,
        _WIDTH,
        initial_indent=space,
        subsequent_indent=space + " " * 8,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\xa0", " ") for line in lines]


def _source(file: str, line: int) -> str:
    """Return a line of Python with where it stands."""
    if not file:
        return ""
    text = " ".join(linecache.getline(file, line).split())
    name = "notebook" if "ipykernel_" in file else Path(file).name
    return f"{name}:{line}: {text}"


def _harmless(text: str) -> str:
    """Return a text that a comment may hold."""
    return text.replace("*/", "* /").replace("/*", "/ *").replace("\\", "/")
