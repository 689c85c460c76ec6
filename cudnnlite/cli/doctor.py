"""`cudnnlite doctor`: what is installed here, what is wrong with it, and what to do about it."""

from __future__ import annotations

import json
import os
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cudnnlite.cli.common import JSONOption, harmless, misuse, say
from cudnnlite.texts import counted

if TYPE_CHECKING:
    from cudnnlite.workbench.doctor import Examination
    from cudnnlite.workbench.doctor.finding import Finding

EXIT_CODES = (
    "Ends with 0 if nothing is broken (notes and warnings are not), 1 if something is, "
    "2 if the command line is wrong."
)
_STYLES: dict[str, dict[str, Any]] = {
    "ok": {"fg": "green"},
    "note": {"fg": "cyan"},
    "warning": {"fg": "yellow"},
    "broken": {"fg": "red", "bold": True},
}
_TITLES = {"library": "libcudnn", "cuda": "CUDA", "cache": "Tuning cache"}


def doctor(
    packages: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="PACKAGE",
            help=(
                "Import a package first, as your program does: torch, cupy, ...  "
                "Tells which files of cuDNN it loads.  Repeatable."
            ),
        ),
    ] = None,
    as_json: JSONOption = False,
) -> None:
    """Look for problems of cuDNN, CUDA and the tuning cache; name a fix for each.

    A separate process loads libcudnn and tries CUDA, so a crash is only a finding.  Nothing is
    changed.
    """
    from cudnnlite.workbench.doctor import Verdict, examine

    for package in packages or ():
        if not all(part.isidentifier() for part in package.split(".")):
            raise misuse(f"--import {package}: the name of a package is needed")
    examination = examine(packages or ())
    if as_json:
        say(json.dumps(examination.to_plain(), indent=2))
    else:
        say(_text(examination), styled=True)
    if examination.verdict is Verdict.BROKEN:
        raise typer.Exit(1)


def _area_of(finding: Finding) -> str:
    """Return the area of a finding's check: "cuda" of "cuda.driver"."""
    return finding.check.partition(".")[0]


def _plain_text(text: str, **_: object) -> str:
    """Return a text without a style."""
    return text


def _text(examination: Examination) -> str:
    """Return the findings as text with colours.

    Lines are not wrapped, so that paths can be copied.
    """
    paint = _plain_text if "NO_COLOR" in os.environ else typer.style
    plain = examination.to_plain()
    lines = [f"cudnnlite {plain['cudnnlite']}, Python {plain['python']}"]
    for area, findings in groupby(examination.findings, key=_area_of):
        lines += ["", paint(_TITLES.get(area, area.capitalize()), bold=True)]
        for finding in findings:
            word = finding.verdict.word
            lines.append(f"  {paint(f'{word:<8}', **_STYLES[word])} {harmless(finding.text)}")
            lines += [paint(f"             {harmless(line)}", dim=True) for line in finding.lines]
            if finding.fix:
                lines.append(paint(f"           fix: {harmless(finding.fix)}", bold=True))
    counts, style = plain["counts"], _STYLES[plain["status"]]
    broken = counts["broken"] or "nothing"
    warnings, notes = counted(counts["warning"], "warning"), counted(counts["note"], "note")
    totals = paint(f"{broken} broken, {warnings}, {notes}", **style)
    return "\n".join([*lines, "", totals])
