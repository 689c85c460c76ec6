"""Charts of searches with matplotlib: times of candidates, time against workspace, and what a model spends where.

The data of an axis of times is in milliseconds; its ticks are labelled in the unit that reads best.  Figures are made without
pyplot, so that a program's own figures and backend are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from cudnnlite.autotune.tuned import Policy, TunedProblem, place_of, shared_workspace
from cudnnlite.errors import ArgumentError
from cudnnlite.report import axes
from cudnnlite.report.axes import COLORS, chart_style
from cudnnlite.search.results import AlgorithmResult, AlgorithmTable
from cudnnlite.sizes import format_size, parse_size
from cudnnlite.texts import printable

FORMATS = (".png", ".svg", ".pdf")
MOST_PROBLEMS = 40  # bars of a model's chart; the other problems share one
_CUT = 12  # bars of more than so many times the best go on beyond the edge: the short ones are what is compared
_SQUARE = 4.6  # the height of a chart that is not of bars, in inches
_THICK, _THIN = 0.35, 0.25  # the inches from bar to bar, where a label has two lines and where it has one
_NAMES, _NUMBERS = 2.0, 0.62  # the inches left of the axes, for what stands there
_RING = {"marker": "o", "markersize": 12, "markeredgewidth": 2, "linestyle": "none", "markerfacecolor": "none"}
_FIND = {"color": COLORS["find"], "markersize": 4.5, "linestyle": "none", "markerfacecolor": "none"}


@chart_style()
def plot_times(table: AlgorithmTable, ax: Any = None, *, chosen: AlgorithmResult | None = None) -> Any:
    """Draw a bar for each candidate that was timed, the table's first on top.

    Parameters
    ----------
    table : AlgorithmTable
        What a search returned.
    ax : matplotlib Axes, optional
        Where to draw, in the frame that they have; on a new Figure if not given.
    chosen : AlgorithmResult, optional
        The row to mark.

    Returns
    -------
    Axes
        Each bar is as long as the time in milliseconds, with half the distance between the quartiles to both sides of its
        end, and a diamond at the time that cudnnFind reported.  Bars of more than twelve times the best are cut off.

    Raises
    ------
    ArgumentError
        `chosen` is no row of the table.
    MissingPackageError
        matplotlib is not installed.
    """
    place = None if chosen is None else place_of(table, chosen)
    timed = timed_rows(table)
    ax = ax or axes.new_axes(_bars_height(len(timed)), _NAMES)
    if not timed:
        return axes.say(ax, "no candidate was timed")
    times, kinds = [*timed.values()], ["chosen" if index == place else "bar" for index in timed]
    halves = [(table[index].spread_ms or 0.0) / 2 for index in timed]
    ends = [ms + half for ms, half in zip(times, halves, strict=True)]
    finds = {row: ms for row, index in enumerate(timed) if (ms := table[index].find_ms) is not None}
    longest = 1.3 * timed[place] if place in timed else 0.0
    cut = min(max(_CUT * min(times), longest), max(*ends, *finds.values(), 0.0)) or 1.0
    edge = 1.2 * cut

    labels = {kinds.index(kind): label for kind, label in (("chosen", "chosen"), ("bar", "candidate")) if kind in kinds}
    ax.barh(
        range(len(times)), times, height=0.62, color=[COLORS[kind] for kind in kinds],
        label=[labels.get(row, "_") for row in range(len(times))],
    )  # fmt: skip
    if any(halves):
        ax.errorbar(times, range(len(times)), xerr=halves, fmt="none", color=COLORS["ink"], elinewidth=0.9, capsize=2.5)
    if finds:
        inside = {row: ms for row, ms in finds.items() if ms <= cut}
        beyond = [row for row in finds if row not in inside]
        ax.plot([*inside.values()], [*inside], marker="D", label="cudnnFind's figure", **_FIND)
        ax.plot([1.012 * edge] * len(beyond), beyond, marker=">", clip_on=False, **_FIND)
    unit = axes.time_axis(ax.xaxis, times, "time")
    for row, (ms, end) in enumerate(zip(times, ends, strict=True)):
        if ms > cut:
            axes.note(ax, f"{unit.text(ms)} ▸", (edge, row), left=True)
        else:
            find = finds.get(row, -1.0) + 0.012 * edge  # the note stands behind a diamond that would lie in it
            axes.note(ax, unit.text(ms), (find if end <= find <= end + 0.12 * edge else end, row))
    _name_bars(ax, [str(table[index].algorithm) for index in timed], [_how(table[index]) for index in timed])
    ax.set_xlim(0, edge)
    axes.legend(ax)
    return ax


@chart_style()
def plot_pareto(table: AlgorithmTable, ax: Any = None, *, chosen: AlgorithmResult | None = None) -> Any:
    """Draw time against workspace, with the front: the candidates that none beats in both.

    Parameters
    ----------
    table, ax, chosen
        As in `plot_times`.

    Returns
    -------
    Axes
        To the right bytes, linear up to 64 KiB and logarithmic from there; upwards milliseconds, logarithmic where they
        differ much.

    Raises
    ------
    ArgumentError
        `chosen` is no row of the table.
    MissingPackageError
        matplotlib is not installed.
    """
    place = None if chosen is None else place_of(table, chosen)
    points = {index: (table[index].workspace, ms) for index, ms in timed_rows(table).items()}
    ax = ax or axes.new_axes(_SQUARE, _NUMBERS)
    if not points:
        return axes.say(ax, "no candidate was timed")
    times = [ms for _, ms in points.values()]
    if max(times) > 4 * min(times) > 0:
        ax.set_yscale("log")
        ax.set_ylim(min(times) / 1.3, max(times) * 1.3)
    else:
        ax.set_ylim(0, 1.15 * max(times) or 1.0)
    axes.workspace_axis(ax, [size for size, _ in points.values()])
    axes.time_axis(ax.yaxis, times, "time")

    front = front_of(table)
    others = [point for index, point in points.items() if index not in front]
    _steps(ax, [points[index] for index in front], "front", 6)
    if others:
        ax.plot(*zip(*others, strict=True), "o", color=COLORS["faint"], markersize=5, markerfacecolor="none",
                label="other candidate")  # fmt: skip
    if place in points:
        ax.plot(*points[place], color=COLORS["chosen"], label="chosen", **_RING)
    taken: list[Any] = []
    for index in front:  # names for which there is room
        right = ax.transAxes.inverted().transform(ax.transData.transform(points[index]))[0] > 0.5
        name = axes.note(ax, f"{table[index].algorithm}, {_how(table[index])}", points[index], left=right, up=4)
        box = name.get_window_extent()
        if any(box.overlaps(other) for other in taken):
            name.remove()
        else:
            taken.append(box)
    axes.legend(ax)
    return ax


@chart_style()
def plot_model(tunings: Sequence[TunedProblem], ax: Any = None, *, policy: Policy | None = None) -> Any:
    """Draw a bar for what a model spends on each problem: count times time, the largest on top.

    Parameters
    ----------
    tunings : sequence of TunedProblem
        The model.  Problems for which nothing was chosen have no bar; of more than 40, the smallest share one.
    ax : matplotlib Axes, optional
        Where to draw, in the frame that they have; on a new Figure if not given.
    policy : mapping, optional
        What `TuningPolicy.to_plain` returns: its objective says which time counts.

    Returns
    -------
    Axes
        Each bar is as long as the total in milliseconds.

    Raises
    ------
    MissingPackageError
        matplotlib is not installed.
    """
    totals = _totals(tunings, policy)
    names, times = [_in_short(tuned) for tuned, _ in totals], [total for _, total in totals]
    if rest := times[MOST_PROBLEMS:]:
        names[MOST_PROBLEMS:], times[MOST_PROBLEMS:] = [f"{len(rest)} others"], [sum(rest)]
    ax = ax or axes.new_axes(_bars_height(len(times), _THIN), _NAMES)
    if not times:
        return axes.say(ax, "no problem was timed")
    bars = ax.barh(range(len(times)), times, height=0.66, color=COLORS["chosen"])
    unit, whole = axes.time_axis(ax.xaxis, times, "total time"), sum(times) or 1.0
    shares = [f"{unit.text(total)} ({100 * total / whole:.1f} %)" for total in times]
    ax.bar_label(bars, shares, padding=4, fontsize=8)
    _name_bars(ax, names)
    ax.set_xlim(0, 1.45 * max(times) or 1.0)
    return ax


@chart_style()
def plot_workspace(tunings: Sequence[TunedProblem], ax: Any = None, *, policy: Policy | None = None) -> Any:
    """Draw what a model costs against the workspace that its problems use in turn.

    Parameters
    ----------
    tunings, ax
        As in `plot_model`.
    policy : mapping, optional
        Its objective says which time counts; its workspace limit, where that is in bytes, is drawn as a line.

    Returns
    -------
    Axes
        To the right bytes, upwards the total in milliseconds of `cudnnlite.autotune.tuned.shared_workspace`.

    Raises
    ------
    MissingPackageError
        matplotlib is not installed.
    """
    curve, totals, limit = shared_workspace(tunings, policy), _totals(tunings, policy), _limit(policy)
    ax = ax or axes.new_axes(_SQUARE, _NUMBERS)
    if not curve:
        return axes.say(ax, "no problem was timed")
    workspace = max((tuned.chosen.workspace for tuned, _ in totals if tuned.chosen), default=0)
    spent = sum(total for _, total in totals)
    axes.workspace_axis(ax, [*(size for size, _ in curve), workspace, limit or 0])
    axes.time_axis(ax.yaxis, [total for _, total in curve], "total time")
    ax.set_ylim(0, 1.15 * max(curve[0][1], spent) or 1.0)
    _steps(ax, curve, "the fastest that fits", 4)
    if totals:
        ax.plot(workspace, spent, color=COLORS["chosen"], label="chosen", **_RING)
    if limit is not None:
        ax.axvline(limit, color=COLORS["faint"], linestyle="--", linewidth=1, label=f"limit {format_size(limit)}")
    axes.legend(ax)
    return ax


def save_chart(path: str | Path, tunings: Sequence[TunedProblem], *, policy: Policy | None = None) -> None:
    """Write a picture: of one problem its times and its front, of several what a model spends on each.

    Parameters
    ----------
    path : str or Path
        Its suffix is .png, .svg or .pdf.
    tunings : sequence of TunedProblem
        At least one.
    policy : mapping, optional
        What `TuningPolicy.to_plain` returns; see `plot_model`.

    Raises
    ------
    ArgumentError
        Another suffix, a folder that does not exist, nothing to draw; nothing is written.
    MissingPackageError
        matplotlib is not installed.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise ArgumentError(f"path={str(path)!r} ends in {path.suffix!r}; allowed: {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise ArgumentError(f"path={str(path)!r}: its folder does not exist")
    if not tunings:
        raise ArgumentError("tunings is empty; there is nothing to draw")
    with chart_style():
        figure = _two_charts(tunings, policy)
        # without the date, the same chart has the same bytes
        metadata = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        figure.savefig(path, format=kind[1:], dpi=150, metadata=metadata[kind])


def front_of(table: AlgorithmTable) -> list[int]:
    """Return the indices of the table's Pareto front, the one with the least workspace first."""
    front = {id(row) for row in table.pareto("device")}
    return sorted((i for i in timed_rows(table) if id(table[i]) in front), key=lambda i: table[i].workspace)


def timed_rows(table: AlgorithmTable) -> dict[int, float]:
    """Return the times of the rows that can be used and were timed, by index."""
    return {
        index: row.time_ms
        for index, row in enumerate(table)
        if row.ok and row.time_ms is not None and isfinite(row.time_ms)
    }


def _bars_height(count: int, pitch: float = _THICK) -> float:
    """Return the inches that a chart of so many bars needs."""
    return 0.9 + pitch * max(count, 3)


def _two_charts(tunings: Sequence[TunedProblem], policy: Policy | None) -> Any:
    """Return the figure that `save_chart` writes."""
    one, *others = tunings
    count = min(len(_totals(tunings, policy)), MOST_PROBLEMS + 1) if others else len(timed_rows(one.table))
    size = 2 * axes.WIDTH, 0.6 + max(_SQUARE, _bars_height(count, _THIN if others else _THICK))
    figure = axes.import_matplotlib().figure.Figure(figsize=size, layout="constrained")
    left, right = figure.subplots(1, 2)
    if others:
        plot_model(tunings, left, policy=policy)
        plot_workspace(tunings, right, policy=policy)
    else:
        plot_times(one.table, left, chosen=one.chosen)
        plot_pareto(one.table, right, chosen=one.chosen)
    right.set(box_aspect=0.9, anchor="N")
    title = f"{len(tunings)} problems" if others else one.title
    figure.suptitle(title, x=0.008, ha="left", fontsize=11, parse_math=False)
    figure.supxlabel(f"times: {printable(one.table.timing)}", x=0.992, ha="right", fontsize=8, parse_math=False)
    return figure


def _name_bars(ax: Any, names: Sequence[str], details: Sequence[str] = ()) -> None:
    """Write a line beside each bar, or two: as two ticks, because a text of two lines is not aligned in another font."""
    ax.set_ylim(len(names) - 0.45, -0.55)
    ax.grid(visible=False, axis="y")
    ax.set_yticks(range(len(names)), names, parse_math=False, va="bottom" if details else "center")
    if details:
        places, texts = [row + 0.06 for row in range(len(names))], [shorten(detail) for detail in details]
        ax.set_yticks(places, texts, minor=True, parse_math=False, va="top")
        ax.tick_params(which="minor", labelsize=8, labelcolor=COLORS["faint"], length=0, pad=6.5)


def _steps(ax: Any, points: Sequence[tuple[float, float]], label: str, size: int) -> None:
    """Draw what is possible from each point on, to the edge, for it costs its own workspace; and the points."""
    x, y = zip(*points, strict=True)
    ax.step([*x, ax.get_xlim()[1]], [*y, y[-1]], where="post", color=COLORS["front"], linewidth=1.2)
    ax.plot(x, y, "o", color=COLORS["front"], markersize=size, zorder=3, label=label)


def _totals(tunings: Sequence[TunedProblem], policy: Policy | None) -> list[tuple[TunedProblem, float]]:
    """Return what the model spends on each problem, the largest first."""
    totals = [(tuned, total) for tuned in tunings if (total := tuned.total_ms(policy)) is not None]
    return sorted(totals, key=lambda pair: -pair[1])


def _limit(policy: Policy | None) -> int | None:
    """Return the policy's workspace limit in bytes; None for none, and for a part of a memory that nobody names."""
    limit = (policy or {}).get("workspace_limit")
    if limit is None or (isinstance(limit, str) and limit.strip().endswith("%")):
        return None
    return parse_size(limit, "workspace_limit")


def shorten(text: str, most: int = 24) -> str:
    """Return a text with its middle left out, where it is long: names of layers differ at their ends."""
    text = printable(text)
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[head + 1 - most :]}"


def _in_short(tuned: TunedProblem) -> str:
    times = f" × {tuned.count}" if tuned.count > 1 else ""
    return shorten((*tuned.names, tuned.title)[0], 25 - len(times)) + times


def _how(row: AlgorithmResult) -> str:
    return ", ".join(part for part in (str(row.math_type), row.layout) if part)
