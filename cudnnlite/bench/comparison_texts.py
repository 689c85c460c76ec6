"""A comparison of two runs as lines for people, as Markdown for an issue, and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cudnnlite.bench.comparison import SERVED, STILL_WRONG, Pair, RunComparison
from cudnnlite.bench.page import render
from cudnnlite.bench.rows import BenchRow, BenchRun
from cudnnlite.report.templates import write_page
from cudnnlite.sizes import format_size
from cudnnlite.texts import aligned, counted, printable

_HEADING = ("A us", "B us", "B/A", "choice of A", "choice of B", "problem", "verdict")
_NO_TIMES = "the times are not compared: a side was not timed on a GPU"
_NOTHING_RAN = "--mode list plans and runs nothing: what is served and chosen is not compared"


def side_line(letter: str, name: str, run: BenchRun) -> str:
    """Return a side in a line: its name, and where it ran."""
    facts = run.facts
    words = [f"{letter}: {name}"]
    if "device" in facts:
        words.append(str(facts["device"]))
    if "cuDNN" in facts:
        words.append(f"cuDNN {facts['cuDNN']}")
    words.append(counted(len(run.chosen), "problem"))
    return printable(", ".join(words))


def summary_lines(comparison: RunComparison) -> Iterator[str]:
    """Yield the results for the model."""
    totals, mean = comparison.totals, comparison.mean
    if totals is not None and mean is not None:
        a, b = totals
        slower = ": slower" if comparison.model_is_slower else ""
        yield f"the model: {a / 1e3:.4f} ms with A, {b / 1e3:.4f} ms with B, {b / a:.4f}{slower}"
        yield f"geometric mean of B/A: {mean:.4f}"
    elif "list" in (comparison.a.facts.get("mode"), comparison.b.facts.get("mode")):
        yield _NOTHING_RAN
    elif not comparison.has_times:
        yield _NO_TIMES
    yield from map(printable, comparison.notes)
    counts = comparison.counts()
    if counts:
        yield ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    else:
        yield f"no difference that counts in {counted(len(comparison.pairs), 'problem')}"


def lines_of(
    comparison: RunComparison, names: Sequence[str], *, every: bool = False
) -> Iterator[str]:
    """Yield the lines for people: the sides, the pairs that differ, and the sums.

    With `every` all pairs are listed.
    """
    yield side_line("A", names[0], comparison.a)
    yield side_line("B", names[1], comparison.b)
    pairs = [pair for pair in comparison.pairs if every or pair.verdicts]
    if pairs:
        rows = [_HEADING, *(_cells(pair, comparison) for pair in pairs)]
        yield from aligned(rows, _HEADING[:3], empty=("-",))
    for pair in pairs:
        yield from (f"{printable(pair.title)}: {reason}" for reason in reasons_of(pair))
    yield from summary_lines(comparison)


def reasons_of(pair: Pair) -> Iterator[str]:
    """Yield why a side is worse, where the figures do not say it."""
    if pair.a is not None and SERVED in pair.verdicts:
        yield printable(f"with A {pair.a.status}")
    row = pair.b
    if row is None or not (pair.fails or STILL_WRONG in pair.verdicts):
        return
    if row.status != "ok":
        yield printable(row.status)
    for finding in row.findings:
        yield printable(finding)
    if pair.a is not None and pair.a.error is not None and row.error is not None:
        yield f"error {pair.a.error:.1e} with A, {row.error:.1e} with B"


def _cells(pair: Pair, comparison: RunComparison) -> tuple[str, ...]:
    times = ("-", "-", "-")
    if pair.ratio is not None:
        times = (_us(pair.a, comparison), _us(pair.b, comparison), f"{pair.ratio:.4f}")
    verdict = "; ".join(pair.verdicts) or "-"
    return (*times, *_choices(pair), printable(pair.title), verdict)


def _us(row: BenchRow | None, comparison: RunComparison) -> str:
    us = None if row is None else comparison.us_of(row)
    return "-" if us is None else f"{us:.2f}"


def _choices(pair: Pair) -> tuple[str, str]:
    """Return what both sides choose, with its workspace if that differs."""
    a, b = _choice(pair.a), _choice(pair.b)
    size_of_a, size_of_b = _workspace(pair.a), _workspace(pair.b)
    if size_of_a is not None and size_of_b is not None and size_of_a != size_of_b:
        return f"{a}, {format_size(size_of_a)}", f"{b}, {format_size(size_of_b)}"
    if a == b != "-":
        return a, "same"
    return a, b


def _workspace(row: BenchRow | None) -> int | None:
    """Return the workspace of the served candidate; None without one, or if it is not known."""
    if row is None or row.status != "ok":
        return None
    return row.workspace


def _choice(row: BenchRow | None) -> str:
    if row is None or row.status != "ok":
        return "-"
    return printable(row.candidate) or "-"


def markdown_of(comparison: RunComparison, names: Sequence[str]) -> str:
    """Return the comparison as Markdown, with the lines that repeat what became worse."""
    lines = ["### cudnnlite compare", ""]
    for letter, name, run in zip("AB", names, (comparison.a, comparison.b), strict=True):
        lines.append(f"- {escaped(side_line(letter, name, run))}")
    lines += ["", *map(escaped, summary_lines(comparison))]
    pairs = [pair for pair in comparison.pairs if pair.verdicts]
    if pairs:
        lines += ["", table_row(_HEADING), table_row(["---"] * len(_HEADING))]
        lines += [table_row(escaped_cells(_cells(pair, comparison))) for pair in pairs]
    for pair in pairs:
        if not pair.fails:
            continue
        lines += ["", f"**{escaped(printable(pair.title))}**: {', '.join(pair.verdicts)}"]
        lines += [f"- {escaped(reason)}" for reason in reasons_of(pair)]
        line = pair.either.line
        if line:
            lines += ["", "```console", f"$ {printable(line)}", "```"]
    return "\n".join(lines) + "\n"


def escaped_cells(cells: Sequence[str]) -> list[str]:
    """Return cells as Markdown shows them unchanged."""
    return [escaped(cell) for cell in cells]


def table_row(cells: Sequence[str]) -> str:
    """Return cells as a row of a table of Markdown."""
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Return a text without what Markdown would read as markup."""
    for character in "\\`*_<>|[]":
        text = text.replace(character, f"\\{character}")
    return text


def write_html(
    path: Path, comparison: RunComparison, names: Sequence[str], notes: Sequence[str] = ()
) -> None:
    """Write the comparison as one page that loads nothing, with notes behind its summary.

    Raises
    ------
    ArgumentError, MissingPackageError
        The file cannot be written; jinja2 is not installed.
    """
    sides = [
        side_line(letter, name, run)
        for letter, name, run in zip("AB", names, (comparison.a, comparison.b), strict=True)
    ]
    write_sections(path, sides, [section_of(comparison, notes=notes)])


class Section(NamedTuple):
    """The part of a page about one comparison: a summary, and a row for each pair."""

    title: str
    summary: list[str]
    rows: list[tuple[Pair, tuple[str, ...], list[str]]]


def section_of(comparison: RunComparison, title: str = "", notes: Sequence[str] = ()) -> Section:
    """Return what a page shows of a comparison, with notes behind its summary."""
    summary = [*summary_lines(comparison), *notes]
    rows = [(pair, _cells(pair, comparison), [*reasons_of(pair)]) for pair in comparison.pairs]
    return Section(title, summary, rows)


def write_sections(
    path: Path,
    sides: Sequence[str],
    sections: Sequence[Section],
    costs: Sequence[Sequence[str]] = (),
) -> None:
    """Write sections as one page that loads nothing.

    Parameters
    ----------
    path : Path
        The path of the page.
    sides : sequence of str
        Lines about the sides, which come first.
    sections : sequence of Section
        One for each comparison.
    costs : sequence of sequence of str
        The rows of a table before the sections, its heading first; no table if there are none.

    Raises
    ------
    ArgumentError, MissingPackageError
        The file cannot be written; jinja2 is not installed.
    """
    page = render("compare.html", sides=sides, costs=costs, sections=sections, heading=_HEADING)
    write_page(path, page)
