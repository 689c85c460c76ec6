"""The common parts of the charts: style and colours, new axes, named bars, a workspace curve."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

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
LEGEND = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": 4}
# All lengths are in inches.
WIDTH = 5.2  # of a chart: as wide as a telephone's window
SQUARE_HEIGHT = 4.6  # of a chart without bars
TWO_LINE_PITCH = 0.35  # from bar to bar, if a label has two lines
ONE_LINE_PITCH = 0.25  # from bar to bar, if a label has one line
NAMES_MARGIN = 2.0  # left of the axes, for the names of bars
NUMBERS_MARGIN = 0.62  # left of the axes, for numbers
_LINEAR_BYTES = 1 << 16  # An axis of sizes is linear up to here, so that it can show 0.

Point: TypeAlias = tuple[float, float]  # bytes of workspace, milliseconds


def import_matplotlib() -> Any:
    """Return matplotlib with the modules that are used; MissingPackageError if it is missing."""
    try:
        import matplotlib.figure
        import matplotlib.style
    except ImportError as error:
        raise MissingPackageError(
            f"charts need matplotlib ({error}): pip install 'cudnnlite[report]'"
        ) from error
    return matplotlib


@contextmanager
def chart_style() -> Iterator[None]:
    """Draw in the report's style, whatever the program has set: equal charts have equal bytes."""
    style = import_matplotlib().style.context(["default", "cudnnlite.report.charts"])
    with style, warnings.catch_warnings():
        # A page uses the reader's fonts. A picture has boxes for characters that matplotlib's own
        # font lacks.
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from font", category=UserWarning
        )
        yield


def bars_height(count: int, pitch: float = TWO_LINE_PITCH) -> float:
    """Return the height of a chart with `count` bars."""
    return 0.9 + pitch * max(count, 3)


def new_axes(height: float, left: float) -> Any:
    """Return the axes of a new figure of a height, with a margin left of them.

    The margins are fixed: matplotlib's layouts measure the texts there, which would double the time
    of a page.
    """
    figure = import_matplotlib().figure.Figure(figsize=(WIDTH, height))
    figure.subplots_adjust(left / WIDTH, 0.5 / height, 1 - 0.3 / WIDTH, 1 - 0.34 / height)
    return figure.add_subplot()


def write_instead(ax: Any, text: str) -> Any:
    """Write why there is nothing to draw, instead of an empty frame; return the axes."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes, color=COLORS["faint"])
    return ax


def name_bars(ax: Any, names: Sequence[str], details: Sequence[str] = ()) -> None:
    """Write a line or two beside each bar.

    The second line is a tick of its own: the lines of one text shift in another font.
    """
    ax.set_ylim(len(names) - 0.45, -0.55)
    ax.grid(visible=False, axis="y")
    ax.set_yticks(range(len(names)), names, parse_math=False, va="bottom" if details else "center")
    if details:
        places = [row + 0.06 for row in range(len(names))]
        ax.set_yticks(places, details, minor=True, parse_math=False, va="top")
        ax.tick_params(which="minor", labelsize=8, labelcolor=COLORS["faint"], length=0, pad=6.5)


def draw_over_workspace(
    ax: Any,
    steps: Sequence[Point],
    label: str,
    chosen: Point | None,
    visible_points: Iterable[Point],
) -> None:
    """Draw points as steps, and a ring around the chosen point.

    The axes begin at 0, and are long enough for `visible_points` too, which are not drawn.
    """
    sizes, times = zip(*steps, strict=True)
    points = [*steps, *visible_points]
    if chosen:
        points.append(chosen)
    edge = max(1.6 * max(size for size, _ in points), 2 * _LINEAR_BYTES)
    top = 1.15 * max(ms for _, ms in points) or 1.0
    ax.set_xscale("symlog", base=16, linthresh=_LINEAR_BYTES, linscale=0.47)
    ax.set(xlim=(-_LINEAR_BYTES / 4, edge), xlabel="workspace", ylim=(0, top))
    ax.xaxis.set_major_formatter(lambda size, _: format_size(round(size)))
    # Each point's time holds for every larger workspace too, up to the next point or the edge.
    color = COLORS["front"]
    ax.step([*sizes, edge], [*times, times[-1]], where="post", color=color, linewidth=1.2)
    ax.plot(sizes, times, "o", color=color, zorder=3, label=label)
    if chosen:
        ring = {"markersize": 12, "mew": 2, "mfc": "none", "color": COLORS["chosen"]}
        ax.plot(*chosen, "o", label="chosen", **ring)
