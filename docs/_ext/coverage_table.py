"""The page `reference/coverage.md`: every C function, and the Python names that reach it.

    python docs/_ext/coverage_table.py

writes it, after a change of what the package calls; a test says when.  What can be had without Sphinx is `rows()` and
`page()`, which tests hold against the sources.  In the built pages the Python names are links.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from operation_functions import functions_of, operations
from public_names import things

import cudnnlite
from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.library import Library
from cudnnlite.descriptors.native import DESCRIPTORS
from cudnnlite.emulated.functions import IMPLEMENTATIONS
from cudnnlite.problems.catalogue import OPERATIONS
from cudnnlite.workbench.doctor import probe

PAGE = Path(__file__).parents[1] / "reference" / "coverage.md"
PACKAGE = Path(cudnnlite.__file__).parent
# what is generated names every function, a trace what it records, the emulated device what it stands in for: no calls
NO_CALLS = (
    "workbench/tracing/",
    "_raw/functions.py",
    "_raw/signatures.py",
    "_raw/enums.py",
    "_raw/types.py",
    "emulated/",
)
# reached from a handle; documented on the page of the raw layer
BEHIND_THE_HANDLE = {"Handle.api": CudnnApi, "Handle.api.library": Library}
# commands whose modules call C functions of their own
COMMANDS = {"cudnnlite doctor": probe}
# the order of the page: from what is wrapped most to what is not wrapped at all
HEADERS = ("graph", "ops", "cnn", "adv", "subquadratic_ops", "gnn_ops")

NAME = re.compile(r"`(cudnn[A-Z]\w*)`")
NOTE = re.compile(r"^C functions?\b.*?(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL)

LIBCUDNN, EMULATED, GPU = "libcudnn", "emulated", "refused"
WRAPPED, INSIDE, RAW = "wrapped", "used inside", "raw"
# what only asks for a size or a number, or checks something: called on the way to something else
ASKS = re.compile(r"(Size|Sizes|SizeInBytes|MaxCount|VersionCheck|Size_v8)$")


@dataclass(frozen=True)
class Row:
    """What the table says of one C function.

    Attributes
    ----------
    name, header, since, deprecated
        As in `cudnnlite._raw.record.Function`.
    without_gpu : str
        `LIBCUDNN`: it is libcudnn's own everywhere.  `EMULATED`: the emulated device computes it.  `GPU`: there it is refused.
    names : tuple of str
        The Python names whose docstrings say that they reach it; none: `Handle.api` alone does.
    use : str
        `WRAPPED`: the names do what it does.  `INSIDE`: they call it on their way.  `RAW`: nobody calls it.
    """

    name: str
    header: str
    since: str | None
    deprecated: str | None
    without_gpu: str
    names: tuple[str, ...]
    use: str


def public_docstrings() -> Iterator[tuple[str, str, bool]]:
    """Yield every public name, those of members and commands too, with its docstring, and whether it is a member."""
    named = {name: thing for name, thing in things().items() if callable(thing)}
    for name, thing in (named | BEHIND_THE_HANDLE | COMMANDS).items():
        yield name, inspect.cleandoc(thing.__doc__ or ""), False
        if name in operations():
            for function_name, function in functions_of(name).items():
                yield f"{name}.{function_name}", inspect.cleandoc(function.__doc__ or ""), False
        if inspect.isclass(thing):
            for member, doc in members(thing):
                yield f"{name}.{member}", doc, True


def members(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the public methods and properties that a class gets from this package, with their docstrings."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("cudnnlite")]
    for name in sorted({name for base in own for name in vars(base) if not name.startswith("_")}):
        member = inspect.getattr_static(kind, name)
        plain = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if inspect.isfunction(plain):
            yield name, inspect.cleandoc(plain.__doc__ or "")


def called_according_to(doc: str, *, is_member: bool) -> set[str]:
    """Return the C functions that a docstring says are called.

    That is what a paragraph names which begins with "C function"; of a method or property, whose docstring is short, all that
    it names.
    """
    text = doc if is_member else "\n".join(match[0] for match in NOTE.finditer(doc))
    return {name for name in NAME.findall(text) if not name.endswith("_t")}


def documented() -> dict[str, tuple[str, ...]]:
    """Return the C functions that public docstrings name as theirs, each with the Python names.

    A member is left out where its class names the function too.
    """
    found: dict[str, list[str]] = {}
    for name, doc, is_member in public_docstrings():  # a class comes before its members
        for function in called_according_to(doc, is_member=is_member):
            names = found.setdefault(function, [])
            if not (is_member and name.rpartition(".")[0] in names):
                names.append(name)
    return {function: tuple(sorted(names)) for function, names in found.items()}


@cache
def called() -> dict[str, set[str]]:
    """Return the C functions that the package calls, each with the modules that do, as the sources tell.

    A function is called as an attribute (``api.cudnnCreate``), or by its name in a string (``api.prepare("cudnnRNNForward"``,
    ``_create = "cudnnCreate"``), or as a descriptor whose type says it.
    """
    found: dict[str, set[str]] = {}
    for kind in DESCRIPTORS.values():
        for function in kind._functions():
            found.setdefault(function, set()).add(kind.__module__)
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        if module.startswith(NO_CALLS):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name: Any = node.attr if isinstance(node, ast.Attribute) else None
            if isinstance(node, ast.Constant):
                name = node.value
            if isinstance(name, str) and name in FUNCTIONS:
                found.setdefault(name, set()).add(module)
    return found


def asked() -> set[str]:
    """Return the C functions that are called on the way to something else: for sizes and numbers, and to check."""
    declared = {name for it in OPERATIONS.values() for name in (it.workspace, it.reserve)}
    choices = [it.algorithms for it in OPERATIONS.values() if it.algorithms is not None]
    declared |= {name for it in choices for name in (it.count, it.workspace)}
    return declared - {""} | {name for name in called() if ASKS.search(name)}


def emulated() -> set[str]:
    """Return the C functions that the emulated device computes."""
    return set(IMPLEMENTATIONS)


def rows() -> list[Row]:
    """Return a row for every C function, by header and name."""
    names, computed, inside, calls = documented(), emulated(), asked(), called()
    found = []
    for function in FUNCTIONS.values():
        where = (
            EMULATED if function.name in computed else GPU if function.needs_device else LIBCUDNN
        )
        found.append(
            Row(
                function.name,
                function.header,
                function.since,
                function.deprecated,
                where,
                names.get(function.name, ()),
                RAW
                if function.name not in calls
                else INSIDE
                if function.name in inside
                else WRAPPED,
            )
        )
    return sorted(found, key=lambda row: (HEADERS.index(row.header), row.name))


def totals(table: list[Row]) -> list[tuple[str, int, int, int, int]]:
    """Return (what, all, libcudnn, emulated, refused): of the wrapped functions, those inside, the raw ones, of all."""
    groups = {use: [row for row in table if row.use == use] for use in (WRAPPED, INSIDE, RAW)} | {
        "all": table
    }
    return [
        (
            what,
            len(group),
            *(sum(row.without_gpu == kind for row in group) for kind in (LIBCUDNN, EMULATED, GPU)),
        )
        for what, group in groups.items()
    ]


INTRODUCTION = """\
# Coverage

This table lists every function of cuDNN's headers (9.28.0), and the Python names that reach it. `handle.api` has each function
under its C name, wrapped or not, with typed arguments and a checked status: see [the raw layer](raw.md).

{totals}

A Python name is an operation, descriptor, method or command that calls the function, or a spec that holds its arguments.
"inside" means that the names call it for another purpose, such as the size of a workspace. "raw" means that only `handle.api`
reaches it.

The column "without a GPU" states what the function is on a machine without one:

- **libcudnn**: libcudnn's own function, because it takes no handle and no stream. (Backend descriptors that hold a handle
  still need a GPU.)
- **emulated**: replaced by the [emulated device](../explanation/emulated_device.md), with NumPy.
- **refused**: needs a GPU; on the emulated device it raises `NotSupportedError`.

"Since" and "deprecated" are the versions that the headers state, if any: 9.0.0 means every cuDNN 9, and "yes" is a mark without
a version. Deprecated functions still work in 9.28. A function that the loaded libcudnn lacks raises `SymbolNotFoundError`.
"""


def page(*, is_built: bool = False) -> str:
    """Return the whole page, as the repository has it, or with Sphinx's links as it is built."""
    table = rows()
    counts = _markdown(
        ("", "functions", LIBCUDNN, EMULATED, GPU),
        [(what, *map(str, numbers)) for what, *numbers in totals(table)],
        "-rrrr",
    )
    parts = [INTRODUCTION.format(totals=counts)]
    for header in HEADERS:
        group = [row for row in table if row.header == header]
        wrapped, inside = (sum(row.use == use for row in group) for use in (WRAPPED, INSIDE))
        parts.append(
            f"## cudnn_{header}.h\n\n{len(group)} functions, {wrapped} of them wrapped, {inside} used inside.\n"
        )
        heading = ("C function", "Python names", "without a GPU", "since", "deprecated")
        parts.append(_markdown(heading, [_cells(row, is_built=is_built) for row in group]) + "\n")
    return "\n".join(parts)


def _cells(row: Row, *, is_built: bool) -> tuple[str, ...]:
    names = "raw"
    if row.names:
        names = ", ".join(_link(name) if is_built else f"`{name}`" for name in row.names)
    if row.use == INSIDE:
        names = f"inside: {names}"
    return f"`{row.name}`", names, row.without_gpu, row.since or "", row.deprecated or ""


def _link(name: str) -> str:
    if name in COMMANDS:
        return f"[`{name}`](command_line.md)"
    target = f"cudnnlite.{name}"
    for prefix in sorted(BEHIND_THE_HANDLE, key=len, reverse=True):
        if name == prefix or name.startswith(f"{prefix}."):
            kind = BEHIND_THE_HANDLE[prefix]
            target = f"{kind.__module__}.{kind.__qualname__}{name.removeprefix(prefix)}"
            break
    return f"{{py:obj}}`{name} <{target}>`"


def _markdown(heading: tuple[str, ...], body: list[tuple[str, ...]], align: str = "") -> str:
    rule = ["---:" if kind == "r" else "---" for kind in align.ljust(len(heading), "-")]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heading, rule, *body))


def _read_page(_app: Any, docname: str, source: list[str]) -> None:
    """Let Sphinx read the page with links."""
    if docname == "reference/coverage":
        source[0] = page(is_built=True)


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("source-read", _read_page)
    app.setup_extension("command_help")  # the other part of the reference that is made at build
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
