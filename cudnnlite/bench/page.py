"""A benchmark's page: the table, and the rows under the roofline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from cudnnlite.bench.rows import BenchRun
from cudnnlite.report.axes import (
    COLORS,
    NUMBERS_MARGIN,
    SQUARE_HEIGHT,
    chart_style,
    import_matplotlib,
    new_axes,
    write_instead,
)
from cudnnlite.report.page import inline_svg
from cudnnlite.report.templates import template_environment, write_page
from cudnnlite.sizes import format_size
from cudnnlite.texts import figure, yes_or_no


def render(template: str, **values: Any) -> str:
    """Return a page of this folder's template; MissingPackageError without jinja2."""
    filters: dict[str, Callable[..., Any]] = {
        "size": lambda value: "" if value is None else format_size(value),
        "figure": figure,
        "yesno": yes_or_no,
    }
    environment = template_environment("cudnnlite.bench", "the page", filters)
    return str(environment.get_template(template).render(**values))


def write_html(path: Path, run: BenchRun) -> None:
    """Write a run as one page that loads nothing.

    Raises
    ------
    ArgumentError, MissingPackageError
        The file cannot be written; jinja2 or matplotlib is not installed.
    """
    with chart_style():
        chart = inline_svg(plot_roofline(run).figure, "roofline", "the rows under the roofline")
    page = render("bench.html", run=run, facts=run.facts, chart=chart)
    write_page(path, page)


@chart_style()
def plot_roofline(run: BenchRun) -> Any:
    """Return axes with the TFLOP/s of each row over its operations a byte, under the roofline.

    A row without a rate is not drawn: the emulated device has none.
    """
    ax = new_axes(SQUARE_HEIGHT, NUMBERS_MARGIN)
    points = [
        (row.flops / row.nbytes, row.tflops)
        for row in run.rows
        if row.tflops and row.nbytes and row.flops
    ]
    if not points:
        return write_instead(ax, "no rates: nothing was timed on a GPU")
    intensities, rates = zip(*points, strict=True)
    ax.set(xscale="log", yscale="log", xlabel="FLOP a byte of operands", ylabel="TFLOP/s")
    formatter = import_matplotlib().ticker.LogFormatter
    for axis in (ax.xaxis, ax.yaxis):  # powers of ten do not fit into the margin
        axis.set_major_formatter(formatter())
        axis.set_minor_formatter(formatter())
    ax.plot(intensities, rates, "o", color=COLORS["chosen"], zorder=3)
    units = {row.unit for row in run.rows if row.tflops}
    _draw_roofs(ax, run.facts.get("roofs"), units, min(intensities), max(intensities))
    return ax


def _draw_roofs(ax: Any, roofs: Any, units: Collection[str], least: float, most: float) -> None:
    """Draw the roof of each unit that multiplies, up to which the memory's bandwidth leads."""
    if not isinstance(roofs, Mapping):
        return
    bandwidth = roofs["bandwidth"] / 1e12
    for unit, flops in roofs["flops"].items():
        if unit not in units:
            continue
        peak = flops / 1e12
        ridge = peak / bandwidth
        left, right = min(least, ridge) / 2, max(most, ridge) * 2
        ax.plot(
            (left, ridge, right),
            (left * bandwidth, peak, peak),
            color=COLORS["front"],
            linewidth=1,
        )
        ax.text(right, peak, unit, ha="right", va="bottom", color=COLORS["faint"], fontsize=8)
