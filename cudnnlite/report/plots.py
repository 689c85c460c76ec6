"""Charts of searches, with matplotlib: candidates' times, time over workspace, a model's total.

Times are in milliseconds.  Figures are made without pyplot, so that the program's own figures and
backend do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from cudnnlite.arguments import absolute_path, path_of, refused_as
from cudnnlite.autotune.tuned_problem import (
    Policy,
    TunedProblem,
    place_of,
    shared_workspace,
    time_unit,
)
from cudnnlite.errors import ArgumentError
from cudnnlite.files import write_named_file
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.report.axes import (
    COLORS,
    LEGEND,
    NAMES_MARGIN,
    NUMBERS_MARGIN,
    ONE_LINE_PITCH,
    SQUARE_HEIGHT,
    TWO_LINE_PITCH,
    WIDTH,
    Point,
    bars_height,
    chart_style,
    draw_over_workspace,
    import_matplotlib,
    name_bars,
    new_axes,
    write_instead,
)
from cudnnlite.sizes import format_size
from cudnnlite.texts import printable

FORMATS = (".png", ".svg", ".pdf")
MOST_PROBLEMS = 40  # The bars of a model's chart; the other problems share one.
# Bars are cut at this multiple of the best, so that short bars can be compared.
_CUT = 12
_NAME_LENGTH = 25
# Without the date, equal charts have equal bytes.
_METADATA = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


@chart_style()
def plot_times(
    table: AlgorithmTable, ax: Any = None, *, chosen: AlgorithmResult | None = None
) -> Any:
    """Draw a bar for each candidate that was timed, the table's first on top.

    Parameters
    ----------
    table : AlgorithmTable
        The result of a search.
    ax : matplotlib Axes, optional
        The axes to draw in, which keep their frame; those of a new Figure if not given.
    chosen : AlgorithmResult, optional
        The row to mark; ArgumentError if the table does not have it.

    Returns
    -------
    Axes
        Each bar is as long as the time in milliseconds.  At its end, half the distance between the
        quartiles is drawn to both sides; a diamond is at the time that cudnnFind reported.  A bar
        of more than twelve times the best goes on beyond the edge.
    """
    place = None if chosen is None else place_of(table, chosen)
    timed = timed_rows(table)
    ax = ax or new_axes(bars_height(len(timed)), NAMES_MARGIN)
    if not timed:
        return write_instead(ax, "no candidate was timed")
    rows = [table[index] for index in timed]
    times = list(timed.values())
    _draw_bars(ax, timed, place)
    _draw_spreads(ax, rows, times)
    _draw_find_times(ax, rows)
    cut = max(_CUT * min(times), 1.2 * timed.get(place, 0.0))
    edge = 1.1 * min(ax.dataLim.x1, cut) or 1.0
    names = [shorten(str(row.algorithm)) for row in rows]
    details = []
    for row, ms in zip(rows, times, strict=True):
        arrow = " ▸" if ms > edge else ""
        details.append(f"{_variant(row)}, {ms:.4g} ms{arrow}")
    name_bars(ax, names, details)
    ax.set(xlim=(0, edge), xlabel="device time (ms)")
    ax.legend(**LEGEND)
    return ax


def _draw_bars(ax: Any, timed: dict[Any, float], place: int | None) -> None:
    """Draw the times as bars, that of the row at `place` in another colour."""
    chosen_bars, bars = [], []
    for position, (index, ms) in enumerate(timed.items()):
        if index == place:
            chosen_bars.append((position, ms))
        else:
            bars.append((position, ms))
    if chosen_bars:
        positions, times = zip(*chosen_bars, strict=True)
        ax.barh(positions, times, 0.62, color=COLORS["chosen"], label="chosen")
    if bars:
        positions, times = zip(*bars, strict=True)
        ax.barh(positions, times, 0.62, color=COLORS["bar"], label="candidate")


def _draw_spreads(ax: Any, rows: Sequence[AlgorithmResult], times: Sequence[float]) -> None:
    """Draw half the distance between the quartiles to both sides of each bar's end."""
    halves = [(row.spread_ms or 0) / 2 for row in rows]
    if any(halves):
        line = {"fmt": "none", "color": COLORS["ink"], "elinewidth": 0.9, "capsize": 2.5}
        ax.errorbar(times, range(len(rows)), xerr=halves, **line)


def _draw_find_times(ax: Any, rows: Sequence[AlgorithmResult]) -> None:
    """Draw a diamond at each time that cudnnFind reported."""
    positions = [position for position, row in enumerate(rows) if row.find_ms is not None]
    if positions:
        times = [rows[position].find_ms for position in positions]
        diamond = {"color": COLORS["find"], "ms": 4.5, "mfc": "none"}
        ax.plot(times, positions, "D", label="cudnnFind's figure", **diamond)


@chart_style()
def plot_pareto(
    table: AlgorithmTable, ax: Any = None, *, chosen: AlgorithmResult | None = None
) -> Any:
    """Draw time against workspace, with the front: the candidates that none beats in both.

    Parameters
    ----------
    table, ax, chosen
        As in `plot_times`.

    Returns
    -------
    Axes
        To the right bytes, linear up to 64 KiB and logarithmic from there; upwards milliseconds,
        logarithmic if they differ by more than a factor of four.
    """
    place = None if chosen is None else place_of(table, chosen)
    points = {index: (table[index].workspace, ms) for index, ms in timed_rows(table).items()}
    ax = ax or new_axes(SQUARE_HEIGHT, NUMBERS_MARGIN)
    if not points:
        return write_instead(ax, "no candidate was timed")
    front = front_of(table)
    steps = [points[index] for index in front]
    draw_over_workspace(ax, steps, "front", points.get(place), points.values())
    _draw_candidates(ax, [points[index] for index in points if index not in front])
    _scale_times(ax, [ms for _, ms in points.values()])
    labels = [
        f"{shorten(str(table[index].algorithm))}, {_variant(table[index])}" for index in front
    ]
    _name_points(ax, steps, labels)
    ax.legend(**LEGEND)
    return ax


def _draw_candidates(ax: Any, points: Sequence[Point]) -> None:
    """Draw the candidates that are not on the front."""
    if points:
        sizes, times = zip(*points, strict=True)
        ax.plot(sizes, times, "o", color=COLORS["faint"], mfc="none", label="other candidate")


def _scale_times(ax: Any, times: Sequence[float]) -> None:
    """Name the axis of times; make it logarithmic if they differ much."""
    ax.set_ylabel("device time (ms)")
    if max(times) > 4 * min(times) > 0:
        ax.set(yscale="log", ylim=(min(times) / 1.3, max(times) * 1.3))
        ax.yaxis.get_major_locator().set_params(subs=(1, 2, 5), numticks=9)
        ax.yaxis.set_major_formatter("{x:g}")
        ax.set_yticks([], minor=True)


def _name_points(ax: Any, points: Sequence[Point], labels: Sequence[str]) -> None:
    """Write a label beside each point, where none was written before."""
    boxes: list[Any] = []
    for point, label in zip(points, labels, strict=True):
        x_in_axes, _ = (ax.transData - ax.transAxes).transform(point)
        if x_in_axes > 0.5:
            offset, alignment = (-4, 4), "right"
        else:
            offset, alignment = (4, 4), "left"
        name = ax.annotate(
            label,
            point,
            textcoords="offset points",
            fontsize=8,
            xytext=offset,
            ha=alignment,
        )
        box = name.get_window_extent()
        if box.count_overlaps(boxes):
            name.remove()
        else:
            boxes.append(box)


@chart_style()
def plot_model(
    tunings: Sequence[TunedProblem], ax: Any = None, *, policy: Policy | None = None
) -> Any:
    """Draw a bar for the time of each problem of a model: count times milliseconds, largest first.

    Parameters
    ----------
    tunings : sequence of TunedProblem
        The model.  Problems without a choice have no bar; of more than 40, the smallest share one.
    ax : matplotlib Axes, optional
        As in `plot_times`, and returned.
    policy : mapping, optional
        The result of `TuningPolicy.to_plain`; its objective decides which time counts.
    """
    totals = _totals(tunings, policy)
    names = [shorten((*tuned.names, tuned.title)[0], tuned.count) for tuned, _ in totals]
    times = [ms for _, ms in totals]
    rest = times[MOST_PROBLEMS:]
    if rest:
        names[MOST_PROBLEMS:] = [f"{len(rest)} others"]
        times[MOST_PROBLEMS:] = [sum(rest)]
    ax = ax or new_axes(bars_height(len(times), ONE_LINE_PITCH), NAMES_MARGIN)
    if not times:
        return write_instead(ax, "no problem was timed")
    whole = sum(times) or 1.0
    labels = [f"{ms:.4g} ({100 * ms / whole:.1f} %)" for ms in times]
    bars = ax.barh(range(len(times)), times, 0.66, color=COLORS["chosen"])
    ax.bar_label(bars, labels, padding=4, fontsize=8)
    name_bars(ax, names)
    ax.set(xlim=(0, 1.45 * max(times) or 1.0), xlabel=f"total ({time_unit(policy)})")
    return ax


@chart_style()
def plot_workspace(
    tunings: Sequence[TunedProblem], ax: Any = None, *, policy: Policy | None = None
) -> Any:
    """Draw a model's total milliseconds against the bytes of one workspace for all its problems.

    Parameters
    ----------
    tunings, ax
        As in `plot_model`.
    policy : mapping, optional
        Its objective says which time counts; its workspace limit is drawn as a line, if it is in
        bytes.
    """
    curve = shared_workspace(tunings, policy)
    totals = _totals(tunings, policy)
    ax = ax or new_axes(SQUARE_HEIGHT, NUMBERS_MARGIN)
    if not curve:
        return write_instead(ax, "no problem was timed")
    choice = None
    if totals:
        size = max((tuned.chosen.workspace for tuned, _ in totals if tuned.chosen), default=0)
        choice = (size, sum(ms for _, ms in totals))
    limit = (policy or {}).get("workspace_limit")
    visible_points: list[Point] = []
    if isinstance(limit, int):
        visible_points.append((limit, 0.0))
    draw_over_workspace(ax, curve, "the fastest that fits", choice, visible_points)
    if isinstance(limit, int):  # "10%" is of a memory whose size is not known here.
        label = f"limit {format_size(limit)}"
        ax.axvline(limit, color=COLORS["faint"], linestyle="--", linewidth=1, label=label)
    ax.set_ylabel(f"total ({time_unit(policy)})")
    ax.legend(**LEGEND)
    return ax


def save_chart(
    path: str | Path, tunings: Sequence[TunedProblem], *, policy: Policy | None = None
) -> None:
    """Write a picture: of one problem its times and its front, of several the time of each.

    Parameters
    ----------
    path : str or Path
        Its suffix is .png, .svg or .pdf.
    tunings : sequence of TunedProblem
        At least one.
    policy : mapping, optional
        As in `plot_model`.

    Raises
    ------
    ArgumentError
        Another suffix, a folder that does not exist, or no problems.  Nothing is written then.
    """
    path = file_of(path)
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise ArgumentError(
            f"path={str(path)!r} ends in {path.suffix!r}; allowed: {', '.join(FORMATS)}"
        )
    if not tunings:
        raise ArgumentError("tunings is empty; there is nothing to draw")
    with chart_style():
        figure = import_matplotlib().figure.Figure(layout="constrained")
        _draw_pair(figure, tunings, policy)
        with refused_as(ArgumentError, f"path={str(path)!r} cannot be written"):
            picture = BytesIO()
            figure.savefig(picture, format=suffix[1:], dpi=150, metadata=_METADATA[suffix])
            write_named_file(path, picture.getvalue())


def _draw_pair(figure: Any, tunings: Sequence[TunedProblem], policy: Policy | None) -> None:
    """Draw two charts side by side: of the only problem, or of the model."""
    left, right = figure.subplots(1, 2)
    tuned = tunings[0]
    if len(tunings) == 1:
        title, pitch = tuned.title, TWO_LINE_PITCH
        plot_times(tuned.table, left, chosen=tuned.chosen)
    else:
        title, pitch = f"{len(tunings)} problems", ONE_LINE_PITCH
        plot_model(tunings, left, policy=policy)
    height = max(SQUARE_HEIGHT, bars_height(len(left.patches), pitch))
    # The size comes first: the names in `plot_pareto` are measured in the final figure.
    figure.set_size_inches(2 * WIDTH, 0.6 + height)
    if len(tunings) == 1:
        plot_pareto(tuned.table, right, chosen=tuned.chosen)
    else:
        plot_workspace(tunings, right, policy=policy)
    right.set(box_aspect=0.9, anchor="N")
    figure.suptitle(title, x=0.008, ha="left", fontsize=11, parse_math=False)
    timing = f"times: {printable(tuned.table.timing)}"
    figure.supxlabel(timing, x=0.992, ha="right", fontsize=8, parse_math=False)


def file_of(path: str | Path) -> Path:
    """Return the path of a file in a folder that exists; ArgumentError if it is none."""
    path = path_of(path)
    if path.is_dir() or not absolute_path(path).parent.is_dir():
        raise ArgumentError(f"path={str(path)!r}; allowed: a file in a folder that exists")
    return path


def front_of(table: AlgorithmTable) -> list[int]:
    """Return the indices of the table's Pareto front, the one with the least workspace first."""
    places = {id(table[index]): index for index in timed_rows(table)}
    return [places[id(row)] for row in reversed(table.pareto("device")) if id(row) in places]


def timed_rows(table: AlgorithmTable) -> dict[Any, float]:
    """Return the times of the rows that can be used and were timed, by index."""
    return {
        index: row.time_ms for index, row in enumerate(table) if row.ok and row.time_ms is not None
    }


def shorten(name: str, count: int = 1) -> str:
    """Return a name in 25 characters, with its count.

    The middle is left out, because the names of layers differ at their ends.
    """
    name = printable(name)
    multiplier = f" × {count}" if count > 1 else ""
    length = _NAME_LENGTH - len(multiplier)
    if len(name) > length:
        head = (length - 1) // 2
        tail = length - 1 - head
        name = f"{name[:head]}…{name[-tail:]}"
    return name + multiplier


def _totals(
    tunings: Sequence[TunedProblem], policy: Policy | None
) -> list[tuple[TunedProblem, float]]:
    """Return the problems with their times in the model, the largest first."""
    totals = []
    for tuned in tunings:
        ms = tuned.total_ms(policy)
        if ms is not None:
            totals.append((tuned, ms))
    return sorted(totals, key=lambda pair: -pair[1])


def _variant(row: AlgorithmResult) -> str:
    """Return the properties that distinguish rows of one algorithm: math type, layout, replay."""
    parts = [str(row.math_type)]
    if row.layout:
        parts.append(row.layout)
    if row.replay:
        parts.append("replayed")
    return ", ".join(parts)
