"""Two libraries compared without a device: what their files say, and what cuDNN answers for GPUs.

A file says which functions it exports and which parts lie beside it.  What is served and chosen is
asked of cuDNN itself; `run_of_answers` makes a run of the answers, which compares as others do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from cudnnlite._raw.elf import exported_names
from cudnnlite.absent.candidates import Candidates
from cudnnlite.arguments import refused_as
from cudnnlite.bench.rows import BenchRow, BenchRun
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.problem_list import ListedProblem, summary
from cudnnlite.problems.work import work_of
from cudnnlite.texts import counted, printable

_FUNCTION = re.compile("cudnn[A-Z][A-Za-z0-9_]*")
_MOST_NAMES = 12  # in a line for people
NO_DEVICE = (
    "no GPU: what is served and chosen is what was recorded on a GPU with one cuDNN; the libraries "
    "themselves were asked for descriptors and shapes alone.  --gpu NAME asks them for more"
)
ABSENT_DEVICE = (
    "each cuDNN was asked which engine it serves first on that GPU, which is absent: nothing ran, "
    "and nothing is said of times"
)


class LibraryFacts(NamedTuple):
    """The facts in the files of a cuDNN.

    Attributes
    ----------
    path : str
        Of its front, libcudnn.so.9.
    functions : frozenset of str
        The C functions that the front exports.
    parts : frozenset of str
        The names of the files of its parts, which lie beside it.
    """

    path: str
    functions: frozenset[str]
    parts: frozenset[str]


def library_facts(path: Path) -> LibraryFacts:
    """Return what the files of a cuDNN say; ArgumentError if its front cannot be read."""
    with refused_as(ArgumentError, f"{path} is no libcudnn", ValueError, OSError):
        names = exported_names(path)
    functions = frozenset(name for name in names if _FUNCTION.fullmatch(name))
    parts = frozenset(file.name for file in path.parent.glob("libcudnn_*.so.*"))
    return LibraryFacts(str(path), functions, parts)


def library_lines(a: LibraryFacts, b: LibraryFacts) -> Iterator[str]:
    """Yield what the files of two libraries differ in, for people."""
    for letter, facts in zip("AB", (a, b), strict=True):
        functions = counted(len(facts.functions), "function")
        parts = counted(len(facts.parts), "part")
        yield printable(f"{letter} exports {functions}, and has {parts}: {facts.path}")
    for letter, kind, names in (
        ("A", "functions", a.functions - b.functions),
        ("B", "functions", b.functions - a.functions),
        ("A", "parts", a.parts - b.parts),
        ("B", "parts", b.parts - a.parts),
    ):
        if names:
            yield f"{kind} of {letter} alone: {_listed(names)}"


def _listed(names: Iterable[str]) -> str:
    """Return names in their order, the first of many."""
    ordered = sorted(names)
    text = ", ".join(map(printable, ordered[:_MOST_NAMES]))
    if len(ordered) > _MOST_NAMES:
        text += f" and {len(ordered) - _MOST_NAMES} more"
    return text


def libraries_to_plain(a: LibraryFacts, b: LibraryFacts) -> dict[str, Any]:
    """Return what the files of two libraries differ in, as JSON can hold it."""
    return {
        "functions in A only": sorted(a.functions - b.functions),
        "functions in B only": sorted(b.functions - a.functions),
        "parts in A only": sorted(a.parts - b.parts),
        "parts in B only": sorted(b.parts - a.parts),
    }


def run_of_answers(
    items: Sequence[ListedProblem], answers: Sequence[Candidates], gpu: str, libcudnn: str
) -> BenchRun:
    """Return the answers of one library about problems as a run without times.

    The rows have no kernels: cuDNN numbers those that it compiles in the order of its work.

    Parameters
    ----------
    items : sequence of ListedProblem
        The problems that cuDNN was asked about.
    answers : sequence of Candidates
        The answer for each problem.
    gpu : str
        The name of the GPU that cuDNN was asked about.
    libcudnn : str
        The path of the library.
    """
    rows = [_row_of(item, answer) for item, answer in zip(items, answers, strict=True)]
    facts = {
        "mode": "plan",
        "device": f"{gpu}, which is absent",
        "cuDNN": ", ".join(sorted({answer.cudnn for answer in answers})),
        "libcudnn": libcudnn,
        "has real timing": False,
    }
    return BenchRun(tuple(rows), facts)


def _row_of(item: ListedProblem, answer: Candidates) -> BenchRow:
    work = work_of(item.problem)
    row = BenchRow(
        summary(item.problem),
        "; ".join(item.names),
        item.count,
        key=str(item.problem.to_plain()),
        flops=work.flops,
        nbytes=work.nbytes,
    )
    choice = answer.choice
    if choice is None:
        return replace(row, status=f"not served: {answer.why_not}")
    return replace(
        row,
        candidate=str(choice.engine),
        is_chosen=True,
        deterministic=choice.deterministic,
        workspace=choice.workspace,
        plan_seconds=choice.seconds,
    )
