"""The answers of two libraries about problems on an absent GPU, as runs to compare."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cudnnlite._raw.library import front_of
from cudnnlite.arguments import refused_as
from cudnnlite.cli.bench import name_of, problems_of_words, words_for
from cudnnlite.cli.common import failure, tell
from cudnnlite.cli.plan import gpu_of
from cudnnlite.errors import LibraryError
from cudnnlite.texts import counted, printable
from cudnnlite.workbench.absent.asking import candidates, why_not_asked
from cudnnlite.workbench.bench.libraries import run_of_answers
from cudnnlite.workbench.bench.rows import BenchRow, BenchRun
from cudnnlite.workbench.tuning.problem_list import ListedProblem, summary


def runs_of_libraries(words: Sequence[str], libraries: Sequence[str], gpu: str) -> list[BenchRun]:
    """Return each library's answers about the problems that options of `bench` name.

    Ends the command for a GPU or an option that is not known; LibraryError for a library that
    cannot be asked.
    """
    properties = gpu_of(gpu)
    fronts = [front_of(Path(library)).resolve() for library in libraries]
    items = _askable(problems_of_words(words))
    command = _command(libraries, gpu)
    runs = []
    for library, front in zip(libraries, fronts, strict=True):
        problems = counted(len(items), "problem")
        tell(printable(f"asking {library} about {problems} on {properties.name}"))
        with refused_as(LibraryError, f"--libcudnn {library}", LibraryError):
            answers = candidates([item.problem for item in items], properties, cudnn=front)
        run = run_of_answers(items, answers, properties.name, str(front))
        rows = [_with_line(row, item, command) for row, item in zip(run.rows, items, strict=True)]
        runs.append(replace(run, rows=tuple(rows)))
    return runs


def _command(libraries: Sequence[str], gpu: str) -> str:
    """Return the command line up to the options that name problems."""
    words = ["cudnnlite", "compare"]
    for library in libraries:
        words += ["--libcudnn", library]
    return shlex.join([*words, "--gpu", gpu, "--"])


def _askable(listed: Sequence[ListedProblem]) -> list[ListedProblem]:
    """Return the problems that cuDNN can plan without a GPU; a message names the others."""
    items = []
    for item in listed:
        reason = why_not_asked(item.problem)
        if reason:
            title = ": ".join([*item.names[:1], summary(item.problem)])
            tell(printable(f"skipped: {title}: only a GPU can be asked about it ({reason})"))
        else:
            items.append(item)
    if not items:
        raise failure("there is nothing to compare")
    return items


def _with_line(row: BenchRow, item: ListedProblem, command: str) -> BenchRow:
    """Return a row with the options that name its problem, and the line that repeats it."""
    options = words_for(item.problem)
    title = name_of(item.problem, options) or row.problem
    return replace(row, problem=title, key=options, line=f"{command} {options}")
