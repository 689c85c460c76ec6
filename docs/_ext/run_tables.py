"""The directive `run`: the table of one published benchmark run, and where and how it was measured.

``{run} attention`` prints `docs/runs/attention.json`; with ``:folded:`` the reader opens the table.
A cell of two numbers is a geometric mean and the worst row.  What can be had without Sphinx is
`read_run()` and `Run`.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from statistics import geometric_mean
from typing import Any, ClassVar, NamedTuple

RUNS = Path(__file__).resolve().parents[1] / "runs"
# Decimal prints a figure with the digits of the file.
Cell = str | Decimal | list[Decimal] | None


class Ratio(NamedTuple):
    """One column of a run divided by another, over all rows that have both.

    Attributes
    ----------
    name : str
        The two columns.
    mean, worst : str
        The geometric mean and the largest ratio, as they are printed.
    """

    name: str
    mean: str
    worst: str


@dataclass(frozen=True)
class Run:
    """A published run of a program.

    Attributes
    ----------
    title : str
        What was measured; it stands above the table.
    command : str
        The command line that measures it.
    device : str
        The GPU.
    versions : dict
        The versions of cuDNN and of the libraries beside it.
    date : str
        Year, month and day.
    unit : str
        What the numbers are.
    columns : list of str
        The names of the columns.
    rows : list of list
        A cell for each column: a text, a number, a mean with the worst row, or None.
    summary : list of list
        The ratios that stand above the table: each a column, and the column that divides it.
    remarks : list of str
        Sentences about this run.
    """

    title: str
    command: str
    device: str
    versions: dict[str, str]
    date: str
    unit: str
    columns: list[str]
    rows: list[list[Cell]]
    summary: Sequence[tuple[str, str]] = ()
    remarks: Sequence[str] = ()

    def column(self, name: str) -> list[Cell]:
        """Return the cells of a column."""
        place = self.columns.index(name)
        return [row[place] for row in self.rows]

    def ratios(self) -> list[Ratio]:
        """Return the ratios of the summary."""
        return [self._ratio(name, divisor) for name, divisor in self.summary]

    def _ratio(self, name: str, divisor: str) -> Ratio:
        pairs = zip(self.column(name), self.column(divisor), strict=True)
        ratios = [
            float(ours / theirs)
            for ours, theirs in pairs
            if isinstance(ours, Decimal) and isinstance(theirs, Decimal)
        ]
        return Ratio(f"{name} / {divisor}", f"{geometric_mean(ratios):.3f}", f"{max(ratios):.2f}")

    def table(self) -> str:
        """Return columns and rows in Markdown."""
        return _markdown(self.columns, [[text_of(cell) for cell in row] for row in self.rows])

    def summary_table(self) -> str:
        """Return the ratios in Markdown."""
        return _markdown(["ratio", "geometric mean", "worst"], self.ratios())

    def source(self) -> str:
        """Return the line below the table, in Markdown."""
        versions = (f"{name} {version}" for name, version in self.versions.items())
        facts = ", ".join([self.device, *versions, self.date, f"`{self.command}`"])
        return " ".join([f"{self.unit}. {facts}.", *self.remarks])


def read_run(name: str) -> Run:
    """Return the run in `docs/runs/NAME.json`."""
    text = (RUNS / f"{name}.json").read_text(encoding="utf-8")
    return Run(**json.loads(text, parse_float=Decimal, parse_int=Decimal))


def text_of(cell: Cell) -> str:
    """Return a cell as it is printed."""
    if cell is None:
        return ""
    if isinstance(cell, list):
        mean, worst = cell
        return f"{mean} ({worst})"
    return str(cell)


def _markdown(heading: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(heading) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heading, rule, *body))


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    from docutils import nodes
    from docutils.parsers.rst import directives
    from sphinx.util.docutils import SphinxDirective

    class RunTable(SphinxDirective):
        """The table of one run."""

        required_arguments = 1
        option_spec: ClassVar[dict[str, Any]] = {"folded": directives.flag}

        def run(self) -> list[nodes.Node]:
            """Return summary, table and source."""
            name = self.arguments[0]
            self.env.note_dependency(str(RUNS / f"{name}.json"))
            run = read_run(name)
            content = self.parse_text_to_nodes(run.table())
            if "folded" in self.options:
                content = folded(f"{run.title}: {len(run.rows)} rows", content)
            else:
                (table,) = content
                table.insert(0, nodes.title("", run.title))
            summary = []
            if run.summary:
                summary = self.parse_text_to_nodes(run.summary_table())
            return [*summary, *content, *self.parse_text_to_nodes(run.source())]

    def folded(title: str, content: list[nodes.Node]) -> list[nodes.Node]:
        opening = f"<details><summary>{html.escape(title)}</summary>"
        return [
            nodes.raw("", opening, format="html"),
            *content,
            nodes.raw("", "</details>", format="html"),
        ]

    app.add_directive("run", RunTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
