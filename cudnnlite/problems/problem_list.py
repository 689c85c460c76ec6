"""`ProblemList`: what a model or a program asks of cuDNN: each problem once, with its counts."""

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
from cudnnlite.problems.catalogue import problem_from_plain
from cudnnlite.problems.problem import Problem
from cudnnlite.texts import aligned, counted

FORMAT = "cudnnlite problems"
VERSION = 1


@dataclass(frozen=True)
class ListedProblem:
    """A problem of a list.

    Attributes
    ----------
    problem : Problem
        What is asked.
    count : int
        How often.
    names : tuple of str
        Where, as far as that is known: the names of a model's nodes; each once.
    """

    problem: Problem
    count: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class SkippedNode:
    """What a model asks for, but no problem was made of.

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
        one without a name.  Lists that are saved do not have them.
    """

    name: str
    what: str
    why: str
    open_axes: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.name} ({self.what}): {self.why}"


class ProblemList(Sequence[ListedProblem]):
    """Distinct problems, in the order in which they came, each with how often it occurs and where.

    Prints as a table.

    Parameters
    ----------
    problems : iterable of Problem, optional
        What to add at once.

    Attributes
    ----------
    skipped : list of SkippedNode
        What was asked for too, but is no problem that cudnnlite knows, and why.
    notes : list of str
        What was assumed where a model does not say it.

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
        """Count a problem, which is added at the end if it is new.

        Parameters
        ----------
        problem : Problem
            What is asked.
        name : str
            Where; nothing is remembered if empty.
        count : int
            How often.

        Raises
        ------
        ArgumentError
            It is no problem, the name no string, or the count below 1.
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
        """Count the problems of another list too, and add what it skipped and noted."""
        for listed in sequence(others, "others", "a list of problems"):
            instance_of(listed, ListedProblem, "others")
            self.add(listed.problem, count=listed.count)
            self._name(listed.problem, listed.names)
        if isinstance(others, ProblemList):
            self.skipped += others.skipped
            self.notes += others.notes

    def _name(self, problem: Problem, names: Iterable[str]) -> None:
        """Remember where a problem of the list occurs."""
        self._counts[problem][1].update(dict.fromkeys(names))

    @property
    def total(self) -> int:
        """How often all of them occur."""
        return sum(listed.count for listed in self)

    def __len__(self) -> int:
        return len(self._counts)

    def __iter__(self) -> Iterator[ListedProblem]:
        # of a copy, made in one step: another thread may be adding
        for problem, (count, names) in list(self._counts.items()):
            yield ListedProblem(problem, count, tuple(names))

    @overload
    def __getitem__(self, index: int) -> ListedProblem: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ListedProblem, ...]: ...
    def __getitem__(self, index: int | slice) -> ListedProblem | tuple[ListedProblem, ...]:
        return tuple(self)[index]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the list as JSON, a line for each problem.

        Raises
        ------
        ArgumentError
            The file cannot be written; the message names it.
        """
        file = path_of(path)
        problems = [
            {"count": listed.count, "names": listed.names, "problem": listed.problem.to_plain()}
            for listed in self
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
            file.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ProblemList:
        """Read what `save` wrote.

        Raises
        ------
        ArgumentError
            The file cannot be read, is no such list, or is of a later version; the message names
            the file, and the entry.
        """
        file = path_of(path)
        where = f"path={str(file)!r}"
        with refused_as(ArgumentError, f"{where} cannot be read"):
            data = file.read_bytes()
        with refused_as(ArgumentError, f"{where} is not JSON", ValueError, RecursionError):
            plain = json.loads(data.decode())  # ValueError: not UTF-8, not JSON
        if not isinstance(plain, Mapping) or plain.get("format") != FORMAT:
            raise ArgumentError(
                f'{where} is not a list of problems: it has no "format": "{FORMAT}"'
            )
        if plain.get("version") != VERSION:
            raise ArgumentError(
                f"{where} has version {plain.get('version')!r}; this cudnnlite reads {VERSION}"
            )
        found = cls()
        for part, add in (
            ("problems", found._add_plain),
            ("skipped", found._add_skipped),
            ("notes", found._add_note),
        ):
            entries = plain.get(part)
            if not isinstance(entries, list):
                raise ArgumentError(f"{where}: {part!r} is not a list")
            for number, entry in enumerate(entries):
                mistakes = ValueError, TypeError, KeyError, AttributeError, OverflowError
                with refused_as(ArgumentError, f"{where}, {part}[{number}]", *mistakes):
                    add(entry)
        return found

    def _add_plain(self, entry: Any) -> None:
        if not isinstance(entry, Mapping) or set(entry) != {"count", "names", "problem"}:
            raise ArgumentError(f"{entry!r} is not an object of 'count', 'names', 'problem'")
        names = entry["names"]
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise ArgumentError(f"names={names!r} is not a list of strings")
        problem = problem_from_plain(entry["problem"])
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

    def __str__(self) -> str:
        heading = ("count", "GFLOP", "problem", "where")
        rows = [
            heading,
            *(
                (*_numbers(listed), summary(listed.problem), _where(listed.names))
                for listed in self
            ),
        ]
        lines = [f"{counted(len(self), 'problem')}, {self.total} in all"]
        lines += aligned(rows, heading[:2]) if len(self) else []
        lines += [f"skipped: {node}" for node in self.skipped]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def __repr__(self) -> str:
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        return f"<ProblemList of {counted(len(self), 'problem')}, {self.total} in all{skipped}>"


def summary(problem: Problem) -> str:
    """Return a problem in a few words: what distinguishes it from others of its kind."""
    return problem.operation.words(problem)


def _numbers(listed: ListedProblem) -> tuple[str, str]:
    return str(listed.count), f"{listed.problem.flops / 1e9:.3g}"


def _where(names: tuple[str, ...]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _one_a_line(entries: list[Any]) -> str:
    if not entries:
        return "[]"
    return (
        "[\n  " + ",\n  ".join(json.dumps(entry, ensure_ascii=False) for entry in entries) + "\n ]"
    )
