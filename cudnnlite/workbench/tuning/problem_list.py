"""`ProblemList`: the problems of a model or a program, each once, with its count and names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from cudnnlite.arguments import (
    instance_of,
    integer,
    path_of,
    refused_as,
    sequence,
    shown,
)
from cudnnlite.errors import ArgumentError
from cudnnlite.files import read_named_file, write_named_file
from cudnnlite.operations.graph.graph import any_problem_from_plain
from cudnnlite.problems.frames import data_frame
from cudnnlite.texts import aligned, counted
from cudnnlite.types import Problem

FORMAT = "cudnnlite problems"
VERSION = 1


@dataclass(frozen=True)
class ListedProblem:
    """A problem of a list.

    Attributes
    ----------
    problem : Problem
        The problem.
    count : int
        How often it occurs.
    names : tuple of str
        Where it occurs, as far as that is known: the names of a model's nodes, each once.
    """

    problem: Problem
    count: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class SkippedNode:
    """A node of a model that no problem was made of.

    Attributes
    ----------
    name : str
        The node's name.
    what : str
        The operation, as the model calls it.
    why : str
        The reason.
    open_axes : tuple of str
        The names of the axes whose sizes the model does not say, if they are the reason; "?" for
        an axis without a name.  They are not saved.
    """

    name: str
    what: str
    why: str
    open_axes: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.name} ({self.what}): {self.why}"


class ProblemList(Sequence[ListedProblem]):
    """Distinct problems in the order in which they were added, each with its count and names.

    Prints as a table.

    Parameters
    ----------
    problems : iterable of Problem, optional
        Problems to add.

    Attributes
    ----------
    skipped : list of SkippedNode
        The nodes that are no problem that cudnnlite knows, with the reasons.
    notes : list of str
        The assumptions that replace what a model does not say.

    Examples
    --------
    >>> x = dnn.TensorSpec((1, 8, 14, 14), "float16", "NHWC")
    >>> w = dnn.FilterSpec((8, 8, 3, 3), "float16", "NHWC")
    >>> problem = dnn.convolution_forward.problem(x, w, dnn.ConvolutionSpec(padding=1))
    >>> problems = dnn.ProblemList([problem, problem])
    >>> problems.add(problem, name="layer3", count=2)
    >>> problems.save("problems.json")
    >>> print(dnn.ProblemList.load("problems.json"))
    1 problem, 4 in all
    count     GFLOP  problem                                                     where
        4  0.000226  1x8x14x14 by 8x8x3x3 to 1x8x14x14, float16 NHWC, padding=1  layer3
    """

    def __init__(self, problems: Iterable[Problem] = ()) -> None:
        # How often each problem occurs, and its names in order.
        self._counts: dict[Problem, tuple[int, dict[str, None]]] = {}
        self.skipped: list[SkippedNode] = []
        self.notes: list[str] = []
        for problem in sequence(problems, "problems", "an iterable of problems"):
            self.add(problem)

    def add(self, problem: Problem, name: str = "", count: int = 1) -> None:
        """Count a problem; a new one is added at the end.

        Parameters
        ----------
        problem : Problem
            The problem.
        name : str
            Where it occurs; empty if that is not known.
        count : int
            How often it occurs.

        Raises
        ------
        ArgumentError
            `problem` is not a problem, `name` not a string, or `count` below 1.
        """
        instance_of(problem, Problem, "problem")
        if not isinstance(name, str):
            raise ArgumentError(f"name={shown(name)} is not a string")
        count = integer(count, "count", 1, 2**63 - 1)
        before, names = self._counts.get(problem, (0, {}))
        self._counts[problem] = (before + count, names)
        if name:
            names[name] = None

    def extend(self, others: Iterable[ListedProblem]) -> None:
        """Count the problems of another list, and add its skipped nodes and notes if it has any."""
        for item in sequence(others, "others", "a list of problems"):
            instance_of(item, ListedProblem, "others")
            self.add(item.problem, count=item.count)
            self._name(item.problem, item.names)
        if isinstance(others, ProblemList):
            self.skipped += others.skipped
            self.notes += others.notes

    def _name(self, problem: Problem, names: Iterable[str]) -> None:
        """Add names to a problem of the list."""
        self._counts[problem][1].update(dict.fromkeys(names))

    @property
    def total(self) -> int:
        """The sum of all counts."""
        return sum(item.count for item in self)

    def __len__(self) -> int:
        return len(self._counts)

    def __iter__(self) -> Iterator[ListedProblem]:
        # A copy, made in one step, because another thread may add a problem.
        for problem, (count, names) in list(self._counts.items()):
            yield ListedProblem(problem, count, tuple(names))

    @overload
    def __getitem__(self, index: int) -> ListedProblem: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ListedProblem, ...]: ...
    def __getitem__(self, index: int | slice) -> ListedProblem | tuple[ListedProblem, ...]:
        return tuple(self)[index]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the list as JSON, one problem a line.

        Raises
        ------
        ArgumentError
            The file cannot be written; the message names it.
        """
        file = path_of(path)
        problems = [
            {"count": item.count, "names": item.names, "problem": item.problem.to_plain()}
            for item in self
        ]
        skipped = [{"name": node.name, "what": node.what, "why": node.why} for node in self.skipped]
        parts: dict[str, list[Any]] = {
            "problems": problems,
            "skipped": skipped,
            "notes": self.notes,
        }
        lists = [f' "{name}": {_one_a_line(entries)}' for name, entries in parts.items()]
        text = ",\n".join([f'{{\n "format": "{FORMAT}", "version": {VERSION}', *lists]) + "\n}\n"
        with refused_as(ArgumentError, f"path={str(file)!r} cannot be written"):
            write_named_file(file, text.encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ProblemList:
        """Return the list that `save` wrote.

        Raises
        ------
        ArgumentError
            The file cannot be read, is not such a list, or has another version; the message names
            the file and the entry.
        """
        file = path_of(path)
        location = f"path={str(file)!r}"
        with refused_as(ArgumentError, f"{location} cannot be read"):
            data = read_named_file(file)
        # ValueError stands for text that is not UTF-8, too.
        with refused_as(ArgumentError, f"{location} is not JSON", ValueError, RecursionError):
            plain = json.loads(data.decode())
        if not isinstance(plain, Mapping) or plain.get("format") != FORMAT:
            raise ArgumentError(
                f'{location} is not a list of problems: it has no "format": "{FORMAT}"'
            )
        if plain.get("version") != VERSION:
            raise ArgumentError(
                f"{location} has version {plain.get('version')!r}; this cudnnlite reads {VERSION}"
            )
        problems = cls()
        adders = {
            "problems": problems._add_plain,
            "skipped": problems._add_skipped,
            "notes": problems._add_note,
        }
        mistakes = ValueError, TypeError, KeyError, AttributeError, OverflowError
        for part, add in adders.items():
            entries = plain.get(part)
            if not isinstance(entries, list):
                raise ArgumentError(f"{location}: {part!r} is not a list")
            for number, entry in enumerate(entries):
                with refused_as(ArgumentError, f"{location}, {part}[{number}]", *mistakes):
                    add(entry)
        return problems

    def _add_plain(self, entry: Any) -> None:
        if not isinstance(entry, Mapping) or set(entry) != {"count", "names", "problem"}:
            raise ArgumentError(f"{entry!r} is not an object of 'count', 'names', 'problem'")
        names = entry["names"]
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise ArgumentError(f"names={names!r} is not a list of strings")
        problem = any_problem_from_plain(entry["problem"])
        self.add(problem, count=entry["count"])
        self._name(problem, names)

    def _add_skipped(self, entry: Any) -> None:
        texts = entry if isinstance(entry, Mapping) else {}
        if set(texts) != {"name", "what", "why"} or not all(
            isinstance(text, str) for text in texts.values()
        ):
            raise ArgumentError(f"{entry!r} is not an object of 'name', 'what', 'why'")
        self.skipped.append(SkippedNode(**texts))

    def _add_note(self, entry: Any) -> None:
        if not isinstance(entry, str):
            raise ArgumentError(f"{entry!r} is not a string")
        self.notes.append(entry)

    def to_pandas(self) -> Any:
        """Return the problems as a `pandas.DataFrame`; MissingPackageError without pandas."""
        return data_frame(
            [
                {
                    "count": item.count,
                    "flops": item.problem.flops,
                    "problem": summary(item.problem),
                    "names": "; ".join(item.names),
                }
                for item in self
            ]
        )

    def __str__(self) -> str:
        heading = ("count", "GFLOP", "problem", "where")
        rows = [(*_numbers(item), summary(item.problem), _where(item.names)) for item in self]
        lines = [f"{counted(len(self), 'problem')}, {self.total} in all"]
        if rows:
            lines += aligned([heading, *rows], heading[:2])
        lines += skipped_lines(self.skipped)
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def __repr__(self) -> str:
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        return f"<ProblemList of {counted(len(self), 'problem')}, {self.total} in all{skipped}>"


def skipped_lines(nodes: Sequence[SkippedNode]) -> list[str]:
    """Return a line for each operation and reason, with the nodes that are skipped for it."""
    names: dict[tuple[str, str], tuple[str, ...]] = {}
    for node in nodes:
        key = (node.what, node.why)
        names[key] = (*names.get(key, ()), node.name)
    return [
        f"skipped: {_where(nodes_of_key)} ({what}): {why}"
        for (what, why), nodes_of_key in names.items()
    ]


def summary(problem: Problem) -> str:
    """Return a problem in a few words that distinguish it from others of its kind."""
    return problem.operation.description.words(problem)


def _numbers(item: ListedProblem) -> tuple[str, str]:
    """Return the columns count and GFLOP."""
    return str(item.count), f"{item.problem.flops / 1e9:.3g}"


def _where(names: tuple[str, ...]) -> str:
    """Return the column of names: the first two, and how many there are beyond them."""
    text = ", ".join(names[:2])
    return f"{text} and {len(names) - 2} more" if len(names) > 2 else text


def _one_a_line(entries: list[Any]) -> str:
    """Return a JSON array with an entry a line."""
    if not entries:
        return "[]"
    lines = ",\n  ".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    return f"[\n  {lines}\n ]"
