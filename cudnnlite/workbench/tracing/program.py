"""`Program`: the useful statements of C as a program with names, loops and comments."""

from __future__ import annotations

import ctypes
import linecache
import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from cudnnlite._raw.calls import ENUMS
from cudnnlite._raw.enums import C_MEMBERS, DataType
from cudnnlite.dtypes import itemsize
from cudnnlite.workbench.tracing.c_text import comment, string_literal
from cudnnlite.workbench.tracing.folder import packaged_file

# The most lines in the body of a loop.
_MOST_REPEATED = 64
# A loop takes two lines of its own, and must replace more.
_LINES_OF_LOOP = 2
_LINE_WIDTH = 116
_INDICES = "ijkl"  # the names of loop indices; deeper loops share the last one


@dataclass(eq=False)
class Variable:
    """A variable of the program: a handle, a descriptor, a stream, memory, or an answer of cuDNN.

    Attributes
    ----------
    c_type : str
        The type of the variable, for an array with its length: ``int[8]``.
    name : str
        The preferred name.
    destroy : str
        The function that destroys it at the end; empty if it needs none.
    named_by_use : bool
        Whether the name was taken from a use of the variable, and is final.
    device : Device or None
        The device of the variable; None if it is on no device, or if the device is not known yet.
    """

    c_type: str
    name: str = ""
    destroy: str = ""
    named_by_use: bool = field(default=False, init=False)
    device: Any = field(default=None, kw_only=True)

    def used_as(self, name: str) -> None:
        """Take the name of a parameter that receives the variable; later calls change nothing."""
        if not self.named_by_use:
            self.name, self.named_by_use = snake(name), True


class Contents(NamedTuple):
    """Bytes that the program copies from a file into memory.

    `width` is the bytes of one real number in them, 0 if they are no real numbers.
    """

    memory: Variable
    content: bytes
    width: int


# Lists are joined; functions are called when the program is written.
Expression: TypeAlias = "str | int | Variable | Contents | list[Any] | Callable[[], Any]"


@dataclass(eq=False)
class Statement:
    """One statement of the program; variables get their names when it is written.

    Attributes
    ----------
    needed_for : iterable of Variable, or None
        The program contains the statement if it uses one of these variables; None for always.
    where : (str, int)
        The file and line of the Python code that made the statement.
    early : bool
        Whether it makes an object from before the trace.
    ends : Variable or None
        The variable that the statement destroys.
    failed : bool
        Whether cuDNN refused it.
    note : str
        A comment behind the statement.
    checksum : int or None
        The checksum, in Python, of the memory that the statement reads.
    call : TracedCall or None
        The call in Python, if the statement is a call of cuDNN that was made in the block.
    on : Device or None
        The device that the statement is for; None for the device of its variables.
    """

    function: str
    arguments: list[Expression]
    needed_for: Iterable[Variable] | None = None
    where: tuple[str, int] = ("", 0)
    early: bool = False
    ends: Variable | None = None
    failed: bool = False
    note: str = ""
    checksum: int | None = None
    call: Any = None
    on: Any = None

    @property
    def device(self) -> Any:
        """The device that must be current; None if any may be."""
        if self.on:
            return self.on
        return next((variable.device for variable in self.variables if variable.device), None)

    @property
    def variables(self) -> list[Variable]:
        """The variables in the arguments."""
        return [part for part in _flatten(self.arguments) if isinstance(part, Variable)]


class Line(NamedTuple):
    """A statement as text, and the line of Python code that made it."""

    text: str
    source: str


class Loop(NamedTuple):
    """A loop of C, and how many times it repeats its body."""

    times: int
    body: tuple[Item, ...]


Item: TypeAlias = "Line | Loop"


class Program:
    """A program in C: its `text`, the `files` that it reads, and the `checksums` that it prints.

    With a seed, the program generates floating-point inputs from the seed.
    """

    def __init__(
        self, statements: Iterable[Statement], head: Iterable[str], seed: int | None = None
    ) -> None:
        self.files: dict[str, bytes] = {}
        self.checksums: list[tuple[str, int]] = []
        self._seed = seed
        self._inputs: dict[tuple[bytes, int], str] = {}
        self._names: dict[Variable, str] = {}
        self._types: dict[str, str] = {}  # the types of the declared variables, by name
        prelude = packaged_file("prelude.c").decode()
        # The names of loop indices, functions, and variables that are used later.
        self._taken_names = {*_INDICES, *re.findall(r"(\w+)\(", prelude)}
        in_order = sorted(statements, key=lambda statement: not statement.early)
        lines = self._lines(useful(in_order))
        body = _render(_fold(lines))
        start = [comment(*head), prelude, "int main(void)", "{"]
        end = ["    return EXIT_SUCCESS;", "}", ""]
        self.text = "\n".join([*start, *self._declarations(), *body, *end])

    def _lines(self, statements: list[Statement]) -> list[Line]:
        statements = statements + _releases(statements)
        _place_on_devices(statements)
        last_uses = {
            variable: statement for statement in statements for variable in statement.variables
        }
        indices = [statement.device.index if statement.device else None for statement in statements]
        has_several_devices = len({*indices} - {None}) > 1
        lines: list[Line] = []
        current_index = 0
        for statement, index in zip(statements, indices, strict=True):
            source = _source(statement)
            if has_several_devices and index not in (None, current_index):
                current_index = index
                lines.append(Line(f"CUDA(cudaSetDevice({index}));", source))
            lines.append(Line(self._statement(statement), source))
            if statement.checksum is not None:
                self.checksums.append((self._names[statement.variables[0]], statement.checksum))
            # A variable of the same type may reuse a name after its last use.
            self._taken_names -= {
                self._names[variable]
                for variable in statement.variables
                if last_uses[variable] is statement
            }
        return lines

    def _statement(self, statement: Statement) -> str:
        function = statement.function
        arguments = [self._text(argument) for argument in statement.arguments]
        if function == "load":
            is_path = arguments[2].startswith('"')
            if not is_path:
                function = "generate"
        text = f"{function}({', '.join(arguments)})"
        macro = ""
        if statement.failed:
            macro = "FAILED"
        elif function.startswith("cudnn"):
            macro = "CUDNN"
        elif function.startswith("cuda"):
            macro = "CUDA"
        if macro:
            text = f"{macro}({text})"
        note = f" {comment(statement.note)}" if statement.note else ""
        return f"{text};{note}"

    def _text(self, expression: Expression) -> str:
        if isinstance(expression, Contents):
            return self._input(expression)
        if isinstance(expression, Variable):
            return self._name(expression)
        if isinstance(expression, (str, int)):
            return str(expression)
        return "".join(map(self._text, _flatten([expression])))

    def _name(self, variable: Variable) -> str:
        if variable not in self._names:
            names_of_other_types = {
                name for name, c_type in self._types.items() if c_type != variable.c_type
            }
            name = _free_name(variable.name, names_of_other_types | self._taken_names)
            self._names[variable] = name
            self._types[name] = variable.c_type
            self._taken_names.add(name)
        return self._names[variable]

    def _input(self, file: Contents) -> str:
        """Return the path of a file, or the width of numbers and a seed.

        Equal files share one path or seed.  Equal bytes of two types are not equal files: numbers
        of one type would be infinities of the other.
        """
        width = 0 if self._seed is None else file.width
        key = file.content, width
        if key in self._inputs:
            return self._inputs[key]
        if width:
            text = f"{width}, {(self._seed or 0) + len(self._inputs)}u"
        else:
            name = _free_name(self._name(file.memory), {Path(path).stem for path in self.files})
            path = f"inputs/{name}.bin"
            self.files[path] = file.content
            text = string_literal(path)
        self._inputs[key] = text
        return text

    def _declarations(self) -> Iterator[str]:
        by_type = defaultdict(list)
        for name, c_type in self._types.items():
            base, bracket, length = c_type.partition("[")
            star = "*" if base.endswith("*") else ""
            by_type[base.rstrip(" *")].append(star + name + bracket + length)
        for base, names in by_type.items():
            yield _wrap(f"{base} {', '.join(names)};", "    ")


def _releases(statements: list[Statement]) -> list[Statement]:
    """Return statements that destroy the variables still alive at the end, the latest first."""
    destroyed = {statement.ends for statement in statements}
    variables = [variable for statement in statements for variable in statement.variables]
    alive = dict.fromkeys(
        variable for variable in variables if variable.destroy and variable not in destroyed
    )
    return [Statement(variable.destroy, [variable]) for variable in reversed(alive)]


def _place_on_devices(statements: list[Statement]) -> None:
    """Set the devices of handles, streams and graphs by the statements that name them first."""
    types_of_one_device = ("cudnnHandle", "cudnnBackend", "cuda")
    for statement in statements:
        for variable in statement.variables:
            if variable.device is None and variable.c_type.startswith(types_of_one_device):
                variable.device = statement.device


def useful(statements: list[Statement]) -> list[Statement]:
    """Return the statements with an effect, and those that they need; no unused queries."""
    makers: dict[Variable, list[Statement]] = defaultdict(list)
    for statement in statements:
        for variable in statement.needed_for or ():
            makers[variable].append(statement)
    pending = [statement for statement in statements if statement.needed_for is None]
    needed_statements = set[Statement]()
    while pending:
        statement = pending.pop()
        if statement not in needed_statements:
            needed_statements.add(statement)
            for variable in statement.variables:
                pending += makers.pop(variable, ())
    return [statement for statement in statements if statement in needed_statements]


def _flatten(parts: Iterable[Any]) -> Iterator[Any]:
    """Yield parts, the parts of lists, and the results of functions."""
    for part in parts:
        value = part() if callable(part) else part
        if isinstance(value, list):
            yield from _flatten(value)
        else:
            yield value


def _free_name(name: str, taken_names: Iterable[str]) -> str:
    """Return a name that is not taken, with a number behind it if necessary."""
    candidates = chain([name], (f"{name}_{suffix}" for suffix in count(2)))
    return next(candidate for candidate in candidates if candidate not in taken_names)


def snake(name: str) -> str:
    """Return a parameter's name as programs in C write variables: xDesc becomes x_desc."""
    return (
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
        .lower()
        .replace("work_space", "workspace")
        .rstrip("_")
    )


def answer_name(function: str, argname: str) -> str:
    """Return the name of a variable for the answer of a query."""
    words = snake(function).split("_")
    if argname == "sizeInBytes" and words[-1] == "size":
        return "_".join(words[-2:])
    return snake(argname)


def number(value: Any, c_type: str) -> str:
    """Return a number as C writes it, an enumerator by its name."""
    enum = ENUMS.get(c_type)
    if enum is not None:
        members = zip(enum.__members__.values(), C_MEMBERS[enum], strict=True)
        names = (name for member, name in members if member == value)
        return next(names, f"({c_type}){int(value)}")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return str(value[0])
    if isinstance(value, float):
        return _real_number(value, c_type)
    if "unsigned" in c_type or "uint" in c_type:
        return f"{value}u"
    return str(value)


def _real_number(value: float, c_type: str) -> str:
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    if "double" in c_type:
        return repr(value)
    return f"{ctypes.c_float(value).value!r}f"


def array(c_type: str, parts: list[Any]) -> Expression:
    """Return an array in C; its spaces do not break, so that it stays on one line."""
    start = f"({c_type}[]){{".replace(" ", "\xa0")
    pieces = [piece for part in parts for piece in (",\xa0", part)]
    return [start, *pieces[1:], "}"]


def scalar(address: int, argname: str, dtype: DataType | None) -> Expression:
    """Return the host scalar at an address, as C writes it.

    Beside float64 it is a double.  Otherwise alpha and beta are floats, and the value of a fill has
    the data type of the tensor.
    """
    if dtype == DataType.DOUBLE:
        return f"&(double){{{number(ctypes.c_double.from_address(address).value, 'double')}}}"
    if dtype in (None, DataType.FLOAT) or argname.startswith(("alpha", "beta")):
        return f"&(float){{{number(ctypes.c_float.from_address(address).value, 'float')}}}"
    content = (ctypes.c_ubyte * itemsize(dtype)).from_address(address)
    return array("unsigned char", [*map(hex, content)])


def _fold(items: Sequence[Item]) -> Sequence[Item]:
    """Return items with loops in place of repetitions: short loops first, then loops of loops."""
    period = 1
    while period <= min(_MOST_REPEATED, len(items) // 2):
        folded = _fold_period(items, period)
        is_changed = len(folded) < len(items)
        # New loops may repeat, too.
        period = 1 if is_changed else period + 1
        items = folded
    return items


def _fold_period(items: Sequence[Item], period: int) -> list[Item]:
    """Return items with loops over bodies of `period` items, if a loop is shorter."""
    keys = [_key(item) for item in items]
    folded: list[Item] = []
    start = 0
    while start < len(items):
        body_keys = keys[start : start + period]
        times = 1
        while keys[start + times * period : start + (times + 1) * period] == body_keys:
            times += 1
        if (times - 1) * period > _LINES_OF_LOOP:
            folded.append(Loop(times, tuple(items[start : start + period])))
            start += times * period
        else:
            folded.append(items[start])
            start += 1
    return folded


def _key(item: Item) -> object:
    """Return the part of an item that must be equal: the statements, without comments."""
    if isinstance(item, Line):
        return item.text
    return item.times, tuple(map(_key, item.body))


def _render(items: Iterable[Item], depth: int = 1, source: str = "") -> Iterator[str]:
    """Yield the lines of a block, with a comment before each new line of Python code."""
    indent = depth * "    "
    index = _INDICES[min(depth, len(_INDICES)) - 1]
    for item in items:
        item_source = _first_source(item)
        if item_source != source:
            source = item_source
            yield f"\n{indent}{comment(source)}"
        if isinstance(item, Line):
            yield _wrap(item.text, indent)
        else:
            yield f"{indent}for (int {index} = 0; {index} < {item.times}; {index}++) {{"
            yield from _render(item.body, depth + 1, source)
            yield f"{indent}}}"


def _first_source(item: Item) -> str:
    """Return the source of a line, or of the first line of a loop."""
    if isinstance(item, Line):
        return item.source
    return _first_source(item.body[0])


def _wrap(text: str, indent: str) -> str:
    options: Any = {
        "initial_indent": indent,
        "subsequent_indent": indent + 8 * " ",
        "break_long_words": False,
    }
    wrapped = textwrap.fill(text, _LINE_WIDTH, break_on_hyphens=False, **options)
    return wrapped.replace("\xa0", " ")


def _source(statement: Statement) -> str:
    """Return the line of Python code that made a statement, after its file and number."""
    file, line = statement.where
    if statement.early:
        return "made before the trace"
    if not file:
        return "given back" if statement.checksum is None else "read at the end"
    name = "notebook" if "ipykernel_" in file else Path(file).name
    text = ""
    # Code that was not read from a file may have a name with a zero byte, which is a ValueError.
    with suppress(ValueError):
        text = linecache.getline(file, line)
    return f"{name}:{line}: {' '.join(text.split())}"
