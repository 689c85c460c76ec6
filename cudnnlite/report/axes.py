"""What the charts share: colours, axes of times and of sizes, notes beside bars and points."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from cudnnlite.errors import MissingPackageError
from cudnnlite.sizes import format_size
from cudnnlite.texts import printable

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
NAMES, NUMBERS = 2.0, 0.62  # inches to the left of the axes, for what stands there; measuring texts would be slow
_RIGHT, _TOP, _BOTTOM = 0.14, 0.34, 0.5
_FONT = 8.5
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "cudnnlite", "path.simplify": False}
_LINEAR = 1 << 16  # a size axis is linear up to here, so that it has a place for 0
_SIZES = (0, *(1 << power for power in range(16, 48, 4)))
_CHARACTER = 0.62 * _FONT  # the width of one, in points, about


class TimeUnit(NamedTuple):
    """How the times of one table or chart are written.

    Attributes
    ----------
    name : str
        'µs', 'ms' or 's'.
    per_ms : float
        How many of it make a millisecond.
    decimals : int
        So many that the least of the times has three digits.
    """

    name: str
    per_ms: float
    decimals: int

    def text(self, ms: float) -> str:
        """Return a time in this unit, without its name."""
        return f"{ms * self.per_ms:.{self.decimals}f}"


def time_unit(times: Iterable[float]) -> TimeUnit:
    """Return the unit in which times, in milliseconds, read best: one for all of them, so that they can be compared."""
    known = [ms for ms in times if ms > 0 and math.isfinite(ms)]
    if not known:
        return TimeUnit("ms", 1.0, 3)
    middle = statistics.median(known)
    name, per_ms = ("µs", 1000.0) if middle < 1 else ("ms", 1.0) if middle < 1000 else ("s", 0.001)
    least = min(known) * per_ms
    return TimeUnit(name, per_ms, max(0, min(4, 2 - math.floor(math.log10(least)))))


def shorten(text: str, most: int = 24) -> str:
    """Return a text with its middle left out, where it is long: names of layers differ at their ends."""
    text = printable(text)
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[head + 1 - most :]}"


@contextmanager
def plain_style() -> Iterator[None]:
    """Draw in matplotlib's own style, not in what a program has set; text stays text, and the same chart has the same bytes."""
    matplotlib = import_matplotlib()
    with matplotlib.style.context("default"), matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # a page is shown in the reader's fonts; a picture has boxes for what matplotlib's own lacks
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        yield


def import_matplotlib() -> Any:
    """Return matplotlib with its figures and styles; MissingPackageError where it is not installed."""
    try:
        import matplotlib.figure
        import matplotlib.style
    except ImportError as error:
        raise MissingPackageError(f"charts need matplotlib ({error}): pip install 'cudnnlite[report]'") from error
    return matplotlib


def new_figure(charts: Sequence[tuple[float, float]], heading: float = 0.0) -> tuple[Any, list[Any]]:
    """Return a Figure and its axes, side by side.

    Parameters
    ----------
    charts : sequence of (float, float)
        For each chart its height, and what lies left of its axes, in inches.
    heading : float
        The inches above all of them.

    Raises
    ------
    MissingPackageError
        matplotlib is not installed.
    """
    matplotlib = import_matplotlib()
    wide, high = WIDTH * len(charts), heading + max(height for height, _ in charts)
    figure, axes = matplotlib.figure.Figure(figsize=(wide, high)), []
    for place, (height, left) in enumerate(charts):
        bottom = high - heading - height + _BOTTOM
        size = (WIDTH - left - _RIGHT) / wide, (height - _TOP - _BOTTOM) / high
        axes.append(figure.add_axes(((WIDTH * place + left) / wide, bottom / high, *size)))
    return figure, axes


def prepare(ax: Any, height: float, left: float) -> Any:
    """Return the axes to draw on, new ones if None, with a frame that does not stand out."""
    ax = new_figure([(height, left)])[1][0] if ax is None else ax
    ax.set_facecolor("none")
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(COLORS["faint"])
    ax.tick_params(labelsize=_FONT, labelcolor=COLORS["ink"], color=COLORS["faint"], length=3)
    ax.set_axisbelow(True)
    return ax


def say(ax: Any, text: str) -> Any:
    """Write why there is nothing to be seen, instead of an empty frame."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes, fontsize=_FONT + 1, color=COLORS["faint"])
    return ax


def grid(ax: Any, axis: str = "both") -> None:
    """Draw faint lines at the ticks."""
    ax.grid(axis=axis, color=COLORS["grid"], linewidth=0.8)


def time_axis(axis: Any, unit: TimeUnit, what: str, span: tuple[float, float] | None = None) -> None:
    """Label an axis of milliseconds in another unit; `span`: it is logarithmic, from and to these times."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    if span is None:
        axis.set_major_locator(MaxNLocator(6))
    else:
        axis.set_major_locator(FixedLocator(_round_times(*span)))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms * unit.per_ms:.6g}"))
    axis.set_label_text(f"{what} ({unit.name})", fontsize=_FONT, color=COLORS["faint"])


def _round_times(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten in a range; only the powers where there are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    inside = [tick for tick in ticks if low <= tick <= high]
    return inside if len(inside) <= 9 else [10.0**power for power in powers if low <= 10.0**power <= high]


def size_axis(ax: Any, sizes: Sequence[int], what: str) -> None:
    """Make the horizontal axis one of bytes, from 0 to beyond the largest."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    most = max([*sizes, 0])
    ax.set_xscale("symlog", base=2, linthresh=_LINEAR, linscale=1)
    ax.set_xlim(-_LINEAR / 4, max(most * 1.6, 2 * _LINEAR))
    ticks = [size for size in _SIZES if size <= max(most * 1.6, 2 * _LINEAR)]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda size, _: format_size(round(size))))
    ax.set_xlabel(what, fontsize=_FONT, color=COLORS["faint"])


def note(ax: Any, text: str, x: float, y: float, *, before: bool = False) -> None:
    """Write a text just after a point, or just before it."""
    ax.annotate(
        text,
        (x, y),
        xytext=(-4 if before else 4, 0),
        textcoords="offset points",
        ha="right" if before else "left",
        va="center",
        fontsize=_FONT - 0.5,
        color=COLORS["ink"],
    )


def name_bars(ax: Any, names: Sequence[str], details: Sequence[str]) -> None:
    """Write two lines beside each bar: two texts, because one of two lines is not aligned in another font."""
    ax.set_yticks(range(len(names)), names, va="bottom", parse_math=False)
    for row, detail in enumerate(details):
        ax.annotate(
            shorten(detail),
            (0, row),
            xycoords=("axes fraction", "data"),
            xytext=(-6.5, -1.5),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=_FONT - 0.5,
            color=COLORS["faint"],
            parse_math=False,
        )


def name_points(ax: Any, points: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Write names beside points, but those for which there is no room."""
    box = ax.get_window_extent()
    scale = 72 / ax.figure.dpi
    taken: list[tuple[float, float, float, float]] = []
    for point, name in zip(points, names, strict=True):
        x, y = ax.transData.transform(point) * scale
        left = x - box.x0 * scale > 0.5 * box.width * scale
        wide = _CHARACTER * len(name)
        start = x - wide - 6 if left else x + 6
        place = (start, y + 2, start + wide, y + 3 + _FONT)
        if any(place[0] < b[2] and b[0] < place[2] and place[1] < b[3] and b[1] < place[3] for b in taken):
            continue
        taken.append(place)
        ax.annotate(
            name,
            point,
            xytext=(-5 if left else 5, 4),
            textcoords="offset points",
            ha="right" if left else "left",
            va="bottom",
            fontsize=_FONT - 0.5,
            color=COLORS["ink"],
        )


def legend(ax: Any, marks: Sequence[tuple[Any, str]]) -> None:
    """Say above the axes what the marks mean."""
    ax.legend(
        [mark for mark, _ in marks],
        [text for _, text in marks],
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=len(marks),
        frameon=False,
        fontsize=_FONT,
        labelcolor=COLORS["ink"],
        borderaxespad=0.2,
        handletextpad=0.4,
        columnspacing=1.2,
    )


def columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Return all x and all y."""
    return [x for x, _ in points], [y for _, y in points]
