"""`cudnnlite doctor`: what is installed here, what is wrong with it, and what to do about it."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cudnnlite.cli.common import JSONOption, harmless, misuse, say, say_styled
from cudnnlite.texts import counted

if TYPE_CHECKING:
    from cudnnlite.doctor import Examination

EXIT_CODES = (
    "Ends with 0 if nothing is broken (notes and warnings are not), 1 if something is, 2 if the command line is wrong."
)
_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "broken": "bold red"}
_TITLES = {
    "library": "libcudnn",
    "cuda": "CUDA",
    "environment": "Environment",
    "cache": "Tuning cache",
    "doctor": "Doctor",
}


def doctor(
    packages: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="PACKAGE",
            help="Import a package first, as your program does: torch, cupy, ...  Tells what of cuDNN it loads.  Repeatable.",
        ),
    ] = None,
    as_json: JSONOption = False,
) -> None:
    """Look for what is wrong with cuDNN, CUDA and the tuning cache here; name a fix for each problem.

    What has to be tried is tried in a process of its own.  Nothing is changed.
    """
    from cudnnlite.doctor import Verdict, examine

    for package in packages or ():
        if not all(part.isidentifier() for part in package.split(".")):
            raise misuse(f"--import {package}: the name of a package is needed")
    examination = examine(packages or ())
    if as_json:
        say(json.dumps(examination.to_plain(), indent=2))
    else:
        say_styled(_text(examination))
    if examination.verdict is Verdict.BROKEN:
        raise typer.Exit(1)


def _text(examination: Examination) -> str:
    """Return what is printed, unwrapped, so that paths can be copied; in colours where stdout is a terminal."""
    from rich.console import Console
    from rich.text import Text

    plain = examination.to_plain()
    parts: list[Any] = [f"cudnnlite {plain['cudnnlite']}, Python {plain['python']}\n"]
    for area, findings in groupby(examination.findings, key=lambda finding: finding.check.partition(".")[0]):
        parts.append((f"\n{_TITLES.get(area, area)}\n", "bold"))
        for finding in findings:
            word = finding.verdict.word
            parts += ["  ", (f"{word:<8}", _STYLES[word]), f" {harmless(finding.text)}\n"]
            parts += [(f"             {harmless(line)}\n", "dim") for line in finding.lines]
            parts += [(f"           fix: {harmless(finding.fix)}\n", "bold")] if finding.fix else []
    counts = plain["counts"]
    told = f"{counted(counts['warning'], 'warning')}, {counted(counts['note'], 'note')}"
    parts.append((f"\n{counts['broken'] or 'nothing'} broken, {told}", _STYLES[plain["status"]]))
    console = Console(highlight=False, soft_wrap=True)
    with console.capture() as capture:
        console.print(Text.assemble(*parts), end="")
    return capture.get()
