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
from cudnnlite.report.axes import (
    COLORS,
    NAMES,
    NUMBERS,
    columns,
    grid,
    legend,
    name_bars,
    name_points,
    new_figure,
    note,
    plain_style,
    prepare,
    say,
    shorten,
    size_axis,
    time_axis,
    time_unit,
)
from cudnnlite.search.results import AlgorithmResult, AlgorithmTable
from cudnnlite.sizes import format_size, parse_size
from cudnnlite.texts import printable

FORMATS = (".png", ".svg", ".pdf")
MOST_PROBLEMS = 40  # bars of a model's chart; the other problems share one
_CUT = 12  # bars of more than so many times the best go on beyond the edge: the short ones are what is compared
_SQUARE = 4.6  # the height of a chart that is not of bars, in inches
_THICK, _THIN = 0.35, 0.25  # the inches from bar to bar, where a label has two lines and where it has one


def plot_times(table: AlgorithmTable, ax: Any = None, *, chosen: AlgorithmResult | None = None) -> Any:
    """Draw a bar for each candidate that was timed, the table's first on top.

    Parameters
    ----------
    table : AlgorithmTable
        What a search returned.
    ax : matplotlib Axes, optional
        Where to draw; on a new Figure if not given.
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
    ax = prepare(ax, bars_height(len(timed)), NAMES)
    if not timed:
        return say(ax, "no candidate was timed")
    rows, times = range(len(timed)), [*timed.values()]
    spreads = [table[index].spread_ms or 0.0 for index in timed]
    finds = [(ms, row) for row, index in enumerate(timed) if (ms := table[index].find_ms) is not None]
    cut = max(_CUT * min(times), 1.3 * (timed.get(place, 0.0) if place is not None else 0.0))
    ends = [time + spread / 2 for time, spread in zip(times, spreads, strict=True)] + [ms for ms, _ in finds]
    cut = min(cut, max(ends)) or 1.0
    unit = time_unit(times)

    shown = ["chosen" if index == place else "bar" for index in timed]
    bars = ax.barh(rows, times, height=0.62, color=[COLORS[name] for name in shown])
    legends = dict(zip(shown, bars, strict=True))  # the last of each
    marks = [(legends[name], label) for name, label in (("chosen", "chosen"), ("bar", "candidate")) if name in legends]
    if any(spreads):
        halves = [spread / 2 for spread in spreads]
        ax.errorbar(times, rows, xerr=halves, fmt="none", color=COLORS["ink"], elinewidth=0.9, capsize=2.5)
    edge = 1.2 * cut
    reported = {row: ms for ms, row in finds}
    for row, time, spread in zip(rows, times, spreads, strict=True):
        if time > cut:
            note(ax, f"{unit.text(time)} ▸", edge, row, before=True)
        else:
            end = time + spread / 2
            note(ax, unit.text(time), _clear(end, reported.get(row), 0.012 * edge), row)
    if finds:
        inside = [(ms, row) for ms, row in finds if ms <= cut]
        (line,) = ax.plot(*columns(inside), "D", color=COLORS["find"], markersize=4.5, markerfacecolor="none")
        marks.append((line, "cudnnFind's figure"))
        beyond = [(1.012 * edge, row) for ms, row in finds if ms > cut]
        ax.plot(*columns(beyond), ">", color=COLORS["find"], markersize=4.5, markerfacecolor="none", clip_on=False)
    name_bars(ax, [str(table[index].algorithm) for index in timed], [_how(table[index]) for index in timed])
    ax.set_xlim(0, edge)
    ax.set_ylim(len(timed) - 0.45, -0.55)
    time_axis(ax.xaxis, unit, "time")
    grid(ax, "x")
    legend(ax, marks)
    return ax


def plot_pareto(table: AlgorithmTable, ax: Any = None, *, chosen: AlgorithmResult | None = None) -> Any:
    """Draw time against workspace, with the front: the candidates that none beats in both.

    Parameters
    ----------
    table : AlgorithmTable
        What a search returned.
    ax : matplotlib Axes, optional
        Where to draw; on a new Figure if not given.
    chosen : AlgorithmResult, optional
        The row to mark.

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
    points = {index: (float(table[index].workspace), ms) for index, ms in timed_rows(table).items()}
    ax = prepare(ax, _SQUARE, NUMBERS)
    if not points:
        return say(ax, "no candidate was timed")
    times = [ms for _, ms in points.values()]
    span = None if max(times) <= 4 * min(times) or min(times) <= 0 else (min(times) / 1.3, max(times) * 1.3)
    ax.set_yscale("linear" if span is None else "log")
    ax.set_ylim(*(span or (0, 1.15 * max(times) or 1.0)))
    size_axis(ax, [table[index].workspace for index in points], "workspace")
    time_axis(ax.yaxis, time_unit(times), "time", span)

    front = front_of(table)
    best = [points[index] for index in front]
    others = [point for index, point in points.items() if index not in front]
    marks = []
    # from a point on: what it costs is possible only with its own workspace
    ax.step(*columns([*best, (ax.get_xlim()[1], best[-1][1])]), where="post", color=COLORS["front"], linewidth=1.1)
    (line,) = ax.plot(*columns(best), "o", color=COLORS["front"], markersize=6, zorder=3)
    marks.append((line, "front"))
    if others:
        (line,) = ax.plot(*columns(others), "o", color=COLORS["faint"], markersize=5, markerfacecolor="none")
        marks.append((line, "other candidate"))
    marks += _ring(ax, points.get(place) if place is not None else None)
    name_points(ax, best, [f"{table[index].algorithm}, {_how(table[index])}" for index in front])
    grid(ax)
    legend(ax, marks)
    return ax


def plot_model(tunings: Sequence[TunedProblem], ax: Any = None, *, policy: Policy | None = None) -> Any:
    """Draw a bar for what a model spends on each problem: count times time, the largest on top.

    Parameters
    ----------
    tunings : sequence of TunedProblem
        The model.  Problems for which nothing was chosen have no bar; of more than 40, the smallest share one.
    ax : matplotlib Axes, optional
        Where to draw; on a new Figure if not given.
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
    bars = [(total, _in_short(tuned)) for total, tuned in totals[:MOST_PROBLEMS]]
    left = [total for total, _ in totals[MOST_PROBLEMS:]]
    bars += [(sum(left), f"{len(left)} others")] if left else []
    ax = prepare(ax, bars_height(len(bars), _THIN), NAMES)
    if not bars:
        return say(ax, "no problem was timed")
    whole = sum(total for total, _ in bars) or 1.0
    longest = max(total for total, _ in bars) or 1.0
    unit = time_unit(total for total, _ in bars)
    ax.barh(range(len(bars)), [total for total, _ in bars], height=0.66, color=COLORS["chosen"])
    for row, (total, _) in enumerate(bars):
        note(ax, f"{unit.text(total)} ({100 * total / whole:.1f} %)", total, row)
    ax.set_yticks(range(len(bars)), [label for _, label in bars], parse_math=False)
    ax.set_xlim(0, 1.45 * longest)
    ax.set_ylim(len(bars) - 0.45, -0.55)
    time_axis(ax.xaxis, unit, "total time")
    grid(ax, "x")
    return ax


def plot_workspace(tunings: Sequence[TunedProblem], ax: Any = None, *, policy: Policy | None = None) -> Any:
    """Draw what a model costs against the workspace that its problems use in turn.

    Parameters
    ----------
    tunings : sequence of TunedProblem
        The model.
    ax : matplotlib Axes, optional
        Where to draw; on a new Figure if not given.
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
    curve = shared_workspace(tunings, policy)
    ax = prepare(ax, _SQUARE, NUMBERS)
    if not curve:
        return say(ax, "no problem was timed")
    totals = _totals(tunings, policy)
    chosen = (
        float(max((tuned.chosen.workspace for _, tuned in totals if tuned.chosen), default=0)),
        sum(total for total, _ in totals),
    )
    limit = _limit(policy)
    unit = time_unit([total for _, total in curve])
    size_axis(ax, [size for size, _ in curve] + [round(chosen[0]), limit or 0], "workspace")
    ax.set_ylim(0, 1.15 * max(curve[0][1], chosen[1]) or 1.0)
    time_axis(ax.yaxis, unit, "total time")
    steps = [(float(size), total) for size, total in curve]
    ax.step(*columns([*steps, (ax.get_xlim()[1], steps[-1][1])]), where="post", color=COLORS["front"], linewidth=1.4)
    (line,) = ax.plot(*columns(steps), "o", color=COLORS["front"], markersize=4)
    marks = [(line, "the fastest that fits"), *_ring(ax, chosen if totals else None)]
    if limit is not None:
        line = ax.axvline(limit, color=COLORS["faint"], linestyle="--", linewidth=1)
        marks.append((line, f"limit {format_size(limit)}"))
    grid(ax)
    legend(ax, marks)
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
    with plain_style():
        figure = _two_charts(tunings, policy)
        # without the date, the same chart has the same bytes
        metadata = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        figure.savefig(path, format=kind[1:], dpi=150, metadata=metadata[kind])


def front_of(table: AlgorithmTable) -> list[int]:
    """Return the indices of the table's Pareto front, the one with the least workspace first."""
    front = {id(row) for row in table.pareto()}
    return sorted(
        (index for index in timed_rows(table) if id(table[index]) in front), key=lambda index: table[index].workspace
    )


def bars_height(count: int, pitch: float = _THICK) -> float:
    """Return the inches that a chart of so many bars needs."""
    return 0.9 + pitch * max(count, 3)


def _two_charts(tunings: Sequence[TunedProblem], policy: Policy | None) -> Any:
    """Return the figure that `save_chart` writes."""
    one, *others = tunings
    if others:
        bars = bars_height(min(len(_totals(tunings, policy)), MOST_PROBLEMS + 1), _THIN)
        title = f"{len(tunings)} problems"
    else:
        bars = bars_height(len(timed_rows(one.table)))
        title = printable(one.title)
    figure, axes = new_figure([(bars, NAMES), (max(_SQUARE, min(bars, 1.3 * _SQUARE)), NUMBERS)], heading=0.45)
    if others:
        plot_model(tunings, axes[0], policy=policy)
        plot_workspace(tunings, axes[1], policy=policy)
    else:
        plot_times(one.table, axes[0], chosen=one.chosen)
        plot_pareto(one.table, axes[1], chosen=one.chosen)
    high = figure.get_figheight()
    figure.text(0.008, 1 - 0.1 / high, title, va="top", fontsize=11, parse_math=False)
    timing = f"times: {printable(one.table.timing)}"
    figure.text(0.992, 1 - 0.12 / high, timing, va="top", ha="right", fontsize=8, parse_math=False)
    return figure


def _clear(end: float, mark: float | None, step: float) -> float:
    """Return where a note after a bar's end has room: after a mark that would lie in it."""
    if mark is None or not end - step <= mark < end + 9 * step:
        return end
    return max(end, mark + step)


def timed_rows(table: AlgorithmTable) -> dict[int, float]:
    """Return the times of the rows that can be used and were timed, by index."""
    return {
        index: row.time_ms
        for index, row in enumerate(table)
        if row.ok and row.time_ms is not None and isfinite(row.time_ms)
    }


def _totals(tunings: Sequence[TunedProblem], policy: Policy | None) -> list[tuple[float, TunedProblem]]:
    """Return what the model spends on each problem, the largest first."""
    totals = [(total, tuned) for tuned in tunings if (total := tuned.total_ms(policy)) is not None]
    return sorted(totals, key=lambda pair: -pair[0])


def _limit(policy: Policy | None) -> int | None:
    """Return the policy's workspace limit in bytes; None for none, and for a part of a memory that nobody names."""
    limit = (policy or {}).get("workspace_limit")
    if limit is None or (isinstance(limit, str) and limit.strip().endswith("%")):
        return None
    return parse_size(limit, "workspace_limit")


def _in_short(tuned: TunedProblem) -> str:
    times = f" × {tuned.count}" if tuned.count > 1 else ""
    return shorten((*tuned.names, tuned.title)[0], 25 - len(times)) + times


def _how(row: AlgorithmResult) -> str:
    return ", ".join(part for part in (str(row.math_type), row.layout) if part)


def _ring(ax: Any, point: tuple[float, float] | None) -> list[tuple[Any, str]]:
    """Mark what was chosen; returns what the legend says of it."""
    if point is None:
        return []
    (line,) = ax.plot(
        [point[0]], [point[1]], "o", color=COLORS["chosen"], markerfacecolor="none", markersize=12, markeredgewidth=2
    )
    return [(line, "chosen")]
