"""A comparison of two runs as lines for people, and as Markdown for an issue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cudnnlite.sizes import format_size
from cudnnlite.texts import aligned, counted, printable
from cudnnlite.workbench.bench.comparison import SERVED, STILL_WRONG, Pair, RunComparison
from cudnnlite.workbench.bench.rows import BenchRow, BenchRun

_HEADING = ("A us", "B us", "B/A", "choice of A", "choice of B", "problem", "verdict")
_NO_TIMES = "the times are not compared: a side was not timed on a GPU"
_NOTHING_RAN = "--mode list plans and runs nothing: what is served and chosen is not compared"


def _side_line(letter: str, name: str, run: BenchRun) -> str:
    """Return a side in a line: its name, and where it ran."""
    facts = run.facts
    words = [f"{letter}: {name}"]
    if "device" in facts:
        words.append(str(facts["device"]))
    if "cuDNN" in facts:
        words.append(f"cuDNN {facts['cuDNN']}")
    words.append(counted(len(run.chosen), "problem"))
    return printable(", ".join(words))


def _summary_lines(comparison: RunComparison) -> Iterator[str]:
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
    comparison: RunComparison,
    names: Sequence[str],
    *,
    every: bool = False,
    notes: Sequence[str] = (),
) -> Iterator[str]:
    """Yield the lines for people: the sides, the pairs that differ, the sums, and the notes.

    With `every` all pairs are listed.
    """
    yield _side_line("A", names[0], comparison.a)
    yield _side_line("B", names[1], comparison.b)
    pairs = [pair for pair in comparison.pairs if every or pair.verdicts]
    if pairs:
        rows = [_HEADING, *(_cells(pair, comparison) for pair in pairs)]
        yield from aligned(rows, _HEADING[:3], empty=("-",))
    for pair in pairs:
        yield from (f"{printable(pair.title)}: {reason}" for reason in _reasons_of(pair))
    yield from _summary_lines(comparison)
    yield from notes


def _reasons_of(pair: Pair) -> Iterator[str]:
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


def markdown_of(comparison: RunComparison, names: Sequence[str], notes: Sequence[str] = ()) -> str:
    """Return the comparison as Markdown, with the lines that repeat what became worse.

    The notes are behind the summary.
    """
    lines = ["### cudnnlite compare", ""]
    for letter, name, run in zip("AB", names, (comparison.a, comparison.b), strict=True):
        lines.append(f"- {_escaped(_side_line(letter, name, run))}")
    lines += ["", *map(_escaped, [*_summary_lines(comparison), *notes])]
    pairs = [pair for pair in comparison.pairs if pair.verdicts]
    if pairs:
        lines += ["", _table_row(_HEADING), _table_row(["---"] * len(_HEADING))]
        lines += [_table_row(map(_escaped, _cells(pair, comparison))) for pair in pairs]
    for pair in pairs:
        if not pair.fails:
            continue
        lines += ["", f"**{_escaped(printable(pair.title))}**: {', '.join(pair.verdicts)}"]
        lines += [f"- {_escaped(reason)}" for reason in _reasons_of(pair)]
        line = pair.either.line
        if line:
            lines += ["", "```console", f"$ {printable(line)}", "```"]
    return "\n".join(lines) + "\n"


def _table_row(cells: Iterable[str]) -> str:
    """Return cells as a row of a table of Markdown."""
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Return a text without what Markdown would read as markup."""
    for character in "\\`*_<>|[]":
        text = text.replace(character, f"\\{character}")
    return text
