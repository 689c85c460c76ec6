"""The cost of each wish for a model: a table of a run without wishes, and a run with each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cudnnlite.bench.comparison import Pair, RunComparison
from cudnnlite.bench.comparison_texts import (
    escaped_cells,
    section_of,
    side_line,
    table_row,
    write_sections,
)
from cudnnlite.bench.rows import BenchRun
from cudnnlite.sizes import format_size
from cudnnlite.texts import aligned, figure, printable

_HEADING = ("ms", "of A's", "served", "error", "workspace", "costs most", "wish")


def cost_lines(comparisons: Sequence[RunComparison], names: Sequence[str]) -> Iterator[str]:
    """Yield the lines for people: the sides, and a row for each.

    Parameters
    ----------
    comparisons : sequence of RunComparison
        The comparisons of one first run with each of the others.
    names : sequence of str
        The names of the first run and of the others.
    """
    yield side_line("A", names[0], comparisons[0].a)
    yield from aligned(_rows(comparisons, names), _HEADING[:5], empty=("",))
    for comparison, name in zip(comparisons, names[1:], strict=True):
        yield from (printable(f"B with {name}: {note}") for note in comparison.notes)
    if not any(comparison.has_times for comparison in comparisons):
        yield "the times are not compared: a side was not timed on a GPU"


def cost_markdown(comparisons: Sequence[RunComparison], names: Sequence[str]) -> str:
    """Return the table as Markdown."""
    heading, *rows = _rows(comparisons, names)
    lines = [table_row(heading), table_row(["---"] * len(heading))]
    lines += [table_row(escaped_cells(row)) for row in rows]
    return "\n".join(lines) + "\n"


def write_html(path: Path, comparisons: Sequence[RunComparison], names: Sequence[str]) -> None:
    """Write the table as one page that loads nothing, and below it each run beside the first.

    Raises
    ------
    ArgumentError, MissingPackageError
        The file cannot be written; jinja2 is not installed.
    """
    sections = [
        section_of(comparison, side_line("B", name, comparison.b))
        for comparison, name in zip(comparisons, names[1:], strict=True)
    ]
    side = side_line("A", names[0], comparisons[0].a)
    write_sections(path, [side], sections, _rows(comparisons, names))


def _rows(comparisons: Sequence[RunComparison], names: Sequence[str]) -> list[tuple[str, ...]]:
    first = comparisons[0]
    without = (_ms(_time_of(first, first.a)), "", *_facts_of(first.a), "", printable(names[0]))
    rows: list[tuple[str, ...]] = [_HEADING, without]
    for comparison, name in zip(comparisons, names[1:], strict=True):
        totals, share = comparison.totals, ""
        if totals is not None:
            share = f"{totals[1] / totals[0]:.4f}"
        time = _ms(_time_of(comparison, comparison.b))
        most = _costliest(comparison)
        rows.append((time, share, *_facts_of(comparison.b), most, printable(name)))
    return rows


def _ms(us: float | None) -> str:
    return "" if us is None else f"{us / 1e3:.4f}"


def _time_of(comparison: RunComparison, run: BenchRun) -> float | None:
    """Return the microseconds of all problems that a run has times for; None if it has none."""
    if not run.has_real_timing:
        return None
    times = [(row.count, comparison.us_of(row)) for row in run.chosen]
    sums_us = [count * us for count, us in times if us is not None]
    return sum(sums_us) if sums_us else None


def _facts_of(run: BenchRun) -> tuple[str, str, str]:
    """Return how many problems are served, the largest error and the largest workspace."""
    served = [row for row in run.chosen if row.status == "ok"]
    errors = [row.error for row in served if row.error is not None]
    sizes = [row.workspace for row in served if row.workspace is not None]
    error = figure(max(errors, default=None), ".1e")
    workspace = format_size(max(sizes)) if sizes else ""
    return f"{len(served)} of {len(run.chosen)}", error, workspace


def _costliest(comparison: RunComparison) -> str:
    """Return the problem that takes the most time more than without the wish; empty if none."""
    costliest = max(comparison.pairs, key=lambda pair: _lost_us(pair, comparison))
    lost_us = _lost_us(costliest, comparison)
    if lost_us <= 0:
        return ""
    return printable(f"{costliest.title}: {lost_us / 1e3:+.4f} ms")


def _lost_us(pair: Pair, comparison: RunComparison) -> float:
    if pair.ratio is None or pair.a is None:
        return 0.0
    return pair.a.count * (comparison.us_of(pair.a) or 0.0) * (pair.ratio - 1)


def costs_to_plain(comparisons: Sequence[RunComparison], names: Sequence[str]) -> dict[str, Any]:
    """Return all comparisons as JSON can hold them; `names` are those of all runs."""
    return {
        "comparisons": [
            comparison.to_plain((names[0], name))
            for comparison, name in zip(comparisons, names[1:], strict=True)
        ],
        "fails": any(comparison.fails for comparison in comparisons),
    }
