"""What the charts share: colours and style, units, axes of times and of workspaces."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from cudnnlite.errors import MissingPackageError
from cudnnlite.sizes import format_size

COLORS = {
    "ink": "#1f2329",
    "faint": "#626b76",
    "grid": "#dfe3e8",
    "bar": "#a9bacb",
    "chosen": "#0b62c4",
    "front": "#b54a00",
    "find": "#7a3fc8",
}
WIDTH = 5.2  # inches of one chart: as wide as a telephone's window, so that the letters stay legible there
_LINEAR = 1 << 16  # an axis of sizes is linear up to here, so that it has a place for 0


class TimeUnit(NamedTuple):
    """How the times of one table or chart are written: so that the least of them has three digits."""

    name: str
    per_ms: float
    decimals: int

    def text(self, ms: float | None) -> str:
        """Return a time in this unit, without its name; empty for none."""
        return "" if ms is None else f"{ms * self.per_ms:.{self.decimals}f}"


def time_unit(times: Iterable[float | None]) -> TimeUnit:
    """Return the unit in which times, in milliseconds, read best: one for all of them, so that they can be compared."""
    known = [ms for ms in times if ms is not None and ms > 0 and math.isfinite(ms)]
    if not known:
        return TimeUnit("ms", 1.0, 3)
    middle = statistics.median(known)
    name, per_ms = ("µs", 1000.0) if middle < 1 else ("ms", 1.0) if middle < 1000 else ("s", 0.001)
    least = min(known) * per_ms
    return TimeUnit(name, per_ms, max(0, min(4, 2 - math.floor(math.log10(least)))))


def import_matplotlib() -> Any:
    """Return matplotlib with what is used of it; MissingPackageError where it is not installed."""
    try:
        import matplotlib.figure
        import matplotlib.style
    except ImportError as error:
        raise MissingPackageError(f"charts need matplotlib ({error}): pip install 'cudnnlite[report]'") from error
    return matplotlib


@contextmanager
def chart_style() -> Iterator[None]:
    """Draw in the report's style, not in what a program has set: the same chart has the same bytes."""
    with import_matplotlib().style.context(["default", "cudnnlite.report.charts"]), warnings.catch_warnings():
        # a page is shown in the reader's fonts; a picture has boxes for what matplotlib's own lacks
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        yield


def new_axes(height: float, left: float) -> Any:
    """Return the axes of a new figure, so many inches high, with so many left of them.

    To measure the texts that stand there, as matplotlib's layouts do, would double the time of a page.
    """
    figure = import_matplotlib().figure.Figure(figsize=(WIDTH, height))
    figure.subplots_adjust(left / WIDTH, 0.5 / height, 1 - 0.14 / WIDTH, 1 - 0.34 / height)
    return figure.add_subplot()


def say(ax: Any, text: str) -> Any:
    """Write why there is nothing to be seen, instead of an empty frame."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes, color=COLORS["faint"])
    return ax


def time_axis(axis: Any, times: Iterable[float], what: str) -> TimeUnit:
    """Label an axis of milliseconds in the unit in which some times read best, and return that."""
    unit = time_unit(times)
    if axis.get_scale() == "linear":
        axis.get_major_locator().set_params(nbins=6)
    else:
        axis.get_major_locator().set_params(subs=(1, 2, 5), numticks=9)
        axis.set_ticks([], minor=True)
    axis.set_major_formatter(lambda ms, _: f"{ms * unit.per_ms:.6g}")
    axis.set_label_text(f"{what} ({unit.name})")
    return unit


def workspace_axis(ax: Any, sizes: Sequence[int]) -> None:
    """Make the horizontal axis one of bytes, from 0 to beyond the largest."""
    ax.set_xscale("symlog", base=16, linthresh=_LINEAR, linscale=0.47)
    ax.set_xlim(-_LINEAR / 4, max(1.6 * max(sizes), 2 * _LINEAR))
    ax.xaxis.set_major_formatter(lambda size, _: format_size(round(size)))
    ax.set_xlabel("workspace")


def note(ax: Any, text: str, point: tuple[float, float], *, left: bool = False, up: float = 0) -> Any:
    """Write a text right of a point, or left of it; so many points above it."""
    place = {"xytext": (-4 if left else 4, up), "textcoords": "offset points", "fontsize": 8}
    return ax.annotate(text, point, ha="right" if left else "left", va="bottom" if up else "center", **place)


def legend(ax: Any) -> None:
    """Say above the axes what the marks mean."""
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4)
