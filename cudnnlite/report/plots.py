"""Charts of searches with matplotlib: times of candidates, time against workspace, and what a model spends where.

Times are in milliseconds.  Figures are made without pyplot, so that a program's own figures and
backend are left alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from cudnnlite.arguments import absolute_path, path_of, refused_as
from cudnnlite.autotune.tuned_problem import Policy, TunedProblem, place_of, shared_workspace
from cudnnlite.errors import ArgumentError, MissingPackageError
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.sizes import format_size
from cudnnlite.texts import printable

COLORS = {
    "ink": "#1f2329",
    "faint": "#626b76",
    "grid": "#dfe3e8",
    "bar": "#a9bacb",
    "chosen": "#0b62c4",
}
COLORS |= {"front": "#b54a00", "find": "#7a3fc8"}
FORMATS = (".png", ".svg", ".pdf")
MOST_PROBLEMS = 40  # bars of a model's chart; the other problems share one
_CUT = 12  # bars of more than so many times the best go on beyond the edge: the short ones are what is compared
_LINEAR = 1 << 16  # an axis of sizes is linear up to here, so that it has a place for 0
_WIDTH, _SQUARE = (
    5.2,
    4.6,
)  # inches: as wide as a telephone's window; the height of a chart that is not of bars
_THICK, _THIN = (
    0.35,
    0.25,
)  # the inches from bar to bar, where a label has two lines and where it has one
_NAMES, _NUMBERS = 2.0, 0.62  # the inches left of the axes, for what stands there
_LEGEND = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": 4}


def import_matplotlib() -> Any:
    """Return matplotlib with what is used of it; MissingPackageError where it is not installed."""
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
    """Draw in the report's style, not in what a program has set: the same chart has the same bytes."""
    with (
        import_matplotlib().style.context(["default", "cudnnlite.report.charts"]),
        warnings.catch_warnings(),
    ):
        # a page is shown in the reader's fonts; a picture has boxes for what matplotlib's own lacks
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from font", category=UserWarning
        )
        yield


@chart_style()
def plot_times(
    table: AlgorithmTable, ax: Any = None, *, chosen: AlgorithmResult | None = None
) -> Any:
    """Draw a bar for each candidate that was timed, the table's first on top.

    Parameters
    ----------
    table : AlgorithmTable
        What a search returned.
    ax : matplotlib Axes, optional
        Where to draw, in the frame that they have; on a new Figure if not given.
    chosen : AlgorithmResult, optional
        The row to mark; ArgumentError if it is none of the table's.

    Returns
    -------
    Axes
        Each bar is as long as the time in milliseconds, with half the distance between the
        quartiles to both sides of its end, and a diamond at the time that cudnnFind reported.  What
        is more than twelve times the best is beyond the edge.
    """
    place = None if chosen is None else place_of(table, chosen)
    timed = timed_rows(table)
    ax = ax or _new_axes(_bars_height(len(timed)), _NAMES)
    if not timed:
        return _say(ax, "no candidate was timed")
    rows, times = [table[index] for index in timed], [*timed.values()]
    for kind, label in (("chosen", "chosen"), ("bar", "candidate")):
        if bars := [
            (at, ms)
            for at, (index, ms) in enumerate(timed.items())
            if (index == place) == (kind == "chosen")
        ]:
            ax.barh(*zip(*bars, strict=True), 0.62, color=COLORS[kind], label=label)
    if any(halves := [(row.spread_ms or 0) / 2 for row in rows]):
        ax.errorbar(
            times,
            range(len(rows)),
            xerr=halves,
            fmt="none",
            color=COLORS["ink"],
            elinewidth=0.9,
            capsize=2.5,
        )
    if finds := [(row.find_ms, at) for at, row in enumerate(rows) if row.find_ms is not None]:
        ax.plot(
            *zip(*finds, strict=True),
            "D",
            color=COLORS["find"],
            ms=4.5,
            mfc="none",
            label="cudnnFind's figure",
        )
    edge = 1.1 * min(ax.dataLim.x1, max(_CUT * min(times), 1.2 * timed.get(place, 0.0))) or 1.0
    details = [
        f"{_how(row)}, {ms:.4g} ms{' ▸' if ms > edge else ''}"
        for row, ms in zip(rows, times, strict=True)
    ]
    _name_bars(ax, [shorten(str(row.algorithm)) for row in rows], details)
    ax.set(xlim=(0, edge), xlabel="time (ms)")
    ax.legend(**_LEGEND)
    return ax


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
        logarithmic where they differ much.
    """
    place = None if chosen is None else place_of(table, chosen)
    points = {index: (table[index].workspace, ms) for index, ms in timed_rows(table).items()}
    ax = ax or _new_axes(_SQUARE, _NUMBERS)
    if not points:
        return _say(ax, "no candidate was timed")
    front, (_, times) = front_of(table), zip(*points.values(), strict=True)
    _against_workspace(
        ax, [points[index] for index in front], "front", points.get(place), points.values()
    )
    if others := [point for index, point in points.items() if index not in front]:
        ax.plot(
            *zip(*others, strict=True),
            "o",
            color=COLORS["faint"],
            mfc="none",
            label="other candidate",
        )
    ax.set_ylabel("time (ms)")
    if max(times) > 4 * min(times) > 0:
        ax.set(yscale="log", ylim=(min(times) / 1.3, max(times) * 1.3))
        ax.yaxis.get_major_locator().set_params(subs=(1, 2, 5), numticks=9)
        ax.yaxis.set_major_formatter("{x:g}")
        ax.set_yticks([], minor=True)
    taken: list[Any] = []
    for index in front:  # names for which there is room
        to_left = (ax.transData - ax.transAxes).transform(points[index])[0] > 0.5
        where = {"xytext": (-4 if to_left else 4, 4), "ha": "right" if to_left else "left"}
        label = f"{shorten(str(table[index].algorithm))}, {_how(table[index])}"
        name = ax.annotate(label, points[index], textcoords="offset points", fontsize=8, **where)
        box = name.get_window_extent()
        if box.count_overlaps(taken):
            name.remove()
        else:
            taken.append(box)
    ax.legend(**_LEGEND)
    return ax


@chart_style()
def plot_model(
    tunings: Sequence[TunedProblem], ax: Any = None, *, policy: Policy | None = None
) -> Any:
    """Draw a bar for what a model spends on each problem: count times time, in milliseconds, the largest on top.

    Parameters
    ----------
    tunings : sequence of TunedProblem
        The model.  Problems for which nothing was chosen have no bar; of more than 40, the smallest
        share one.
    ax : matplotlib Axes, optional
        As in `plot_times`, and returned.
    policy : mapping, optional
        What `TuningPolicy.to_plain` returns: its objective says which time counts.
    """
    totals = _totals(tunings, policy)
    names, times = (
        [shorten((*tuned.names, tuned.title)[0], tuned.count) for tuned, _ in totals],
        [ms for _, ms in totals],
    )
    if rest := times[MOST_PROBLEMS:]:
        names[MOST_PROBLEMS:], times[MOST_PROBLEMS:] = [f"{len(rest)} others"], [sum(rest)]
    ax = ax or _new_axes(_bars_height(len(times), _THIN), _NAMES)
    if not times:
        return _say(ax, "no problem was timed")
    whole = sum(times) or 1.0
    bars = ax.barh(range(len(times)), times, 0.66, color=COLORS["chosen"])
    ax.bar_label(
        bars,
        [f"{total:.4g} ({100 * total / whole:.1f} %)" for total in times],
        padding=4,
        fontsize=8,
    )
    _name_bars(ax, names)
    ax.set(xlim=(0, 1.45 * max(times) or 1.0), xlabel="total time (ms)")
    return ax


@chart_style()
def plot_workspace(
    tunings: Sequence[TunedProblem], ax: Any = None, *, policy: Policy | None = None
) -> Any:
    """Draw what a model costs, in milliseconds, against the workspace that its problems use in turn, in bytes.

    Parameters
    ----------
    tunings, ax
        As in `plot_model`.
    policy : mapping, optional
        Its objective says which time counts; its workspace limit, where that is in bytes, is drawn
        as a line.
    """
    curve, totals = shared_workspace(tunings, policy), _totals(tunings, policy)
    ax = ax or _new_axes(_SQUARE, _NUMBERS)
    if not curve:
        return _say(ax, "no problem was timed")
    limit = (policy or {}).get("workspace_limit")
    limits = (
        [(limit, 0.0)] if isinstance(limit, int) else []
    )  # "10%" of a memory that nobody names is no line
    size = max((tuned.chosen.workspace for tuned, _ in totals if tuned.chosen), default=0)
    chosen = (size, sum(total for _, total in totals)) if totals else None
    _against_workspace(ax, curve, "the fastest that fits", chosen, limits)
    for size, _ in limits:
        ax.axvline(
            size,
            color=COLORS["faint"],
            linestyle="--",
            linewidth=1,
            label=f"limit {format_size(size)}",
        )
    ax.set_ylabel("total time (ms)")
    ax.legend(**_LEGEND)
    return ax


def save_chart(
    path: str | Path, tunings: Sequence[TunedProblem], *, policy: Policy | None = None
) -> None:
    """Write a picture: of one problem its times and its front, of several what a model spends on each.

    Parameters
    ----------
    path : str or Path
        Its suffix is .png, .svg or .pdf; ArgumentError, and nothing is written, if it is not, or
        its folder does not exist.
    tunings : sequence of TunedProblem
        At least one.
    policy : mapping, optional
        As in `plot_model`.
    """
    path = file_of(path)
    if (kind := path.suffix.lower()) not in FORMATS:
        raise ArgumentError(
            f"path={str(path)!r} ends in {path.suffix!r}; allowed: {', '.join(FORMATS)}"
        )
    if not tunings:
        raise ArgumentError("tunings is empty; there is nothing to draw")
    with chart_style():
        one, *others = tunings
        first = partial(plot_times, one.table, chosen=one.chosen)
        second = partial(plot_pareto, one.table, chosen=one.chosen)
        if others:
            first, second = (
                partial(plot, tunings, policy=policy) for plot in (plot_model, plot_workspace)
            )
        figure = import_matplotlib().figure.Figure(layout="constrained")
        left, right = figure.subplots(1, 2)
        bars = len(first(left).patches)
        figure.set_size_inches(
            2 * _WIDTH, 0.6 + max(_SQUARE, _bars_height(bars, _THIN if others else _THICK))
        )
        second(right)
        right.set(box_aspect=0.9, anchor="N")
        title = f"{len(tunings)} problems" if others else one.title
        figure.suptitle(title, x=0.008, ha="left", fontsize=11, parse_math=False)
        figure.supxlabel(
            f"times: {printable(one.table.timing)}",
            x=0.992,
            ha="right",
            fontsize=8,
            parse_math=False,
        )
        # without the date, the same chart has the same bytes
        metadata = {
            ".png": {"Software": None},
            ".svg": {"Date": None},
            ".pdf": {"CreationDate": None},
        }
        with refused_as(ArgumentError, f"path={str(path)!r} cannot be written"):
            figure.savefig(path, format=kind[1:], dpi=150, metadata=metadata[kind])


def file_of(path: str | Path) -> Path:
    """Return the path of a file that can be written; ArgumentError if it is none."""
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
    """Return a name in 25 characters, with its count: the middle is left out, for layers' names differ at their ends."""
    name, times = printable(name), f" × {count}" if count > 1 else ""
    most = 25 - len(times)
    head = (most - 1) // 2
    return (name if len(name) <= most else f"{name[:head]}…{name[head + 1 - most :]}") + times


def _bars_height(count: int, pitch: float = _THICK) -> float:
    """Return the inches that a chart of so many bars needs."""
    return 0.9 + pitch * max(count, 3)


def _new_axes(height: float, left: float) -> Any:
    """Return the axes of a new figure, so many inches high, with so many left of them.

    To measure the texts that stand there, as matplotlib's layouts do, would double the time of a
    page.
    """
    figure = import_matplotlib().figure.Figure(figsize=(_WIDTH, height))
    figure.subplots_adjust(left / _WIDTH, 0.5 / height, 1 - 0.3 / _WIDTH, 1 - 0.34 / height)
    return figure.add_subplot()


def _say(ax: Any, text: str) -> Any:
    """Write why there is nothing to be seen, instead of an empty frame."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes, color=COLORS["faint"])
    return ax


def _name_bars(ax: Any, names: Sequence[str], details: Sequence[str] = ()) -> None:
    """Write a line beside each bar, or two: as two ticks, because a text of two lines is not aligned in another font."""
    ax.set_ylim(len(names) - 0.45, -0.55)
    ax.grid(visible=False, axis="y")
    ax.set_yticks(range(len(names)), names, parse_math=False, va="bottom" if details else "center")
    if details:
        ax.set_yticks(
            [row + 0.06 for row in range(len(names))],
            details,
            minor=True,
            parse_math=False,
            va="top",
        )
        ax.tick_params(which="minor", labelsize=8, labelcolor=COLORS["faint"], length=0, pad=6.5)


def _against_workspace(
    ax: Any, steps: Any, label: str, chosen: tuple[float, float] | None, others: Any
) -> None:
    """Draw points (bytes, ms) as steps, and a ring around what was chosen; the axes begin at 0 and show other points too."""
    (x, y), every = zip(*steps, strict=True), [*steps, *others, *([chosen] if chosen else [])]
    edge = max(1.6 * max(size for size, _ in every), 2 * _LINEAR)
    ax.set_xscale("symlog", base=16, linthresh=_LINEAR, linscale=0.47)
    ax.set(
        xlim=(-_LINEAR / 4, edge),
        xlabel="workspace",
        ylim=(0, 1.15 * max(ms for _, ms in every) or 1.0),
    )
    ax.xaxis.set_major_formatter(lambda size, _: format_size(round(size)))
    # what is possible from each point on, to the edge, for it costs its own workspace
    ax.step([*x, edge], [*y, y[-1]], where="post", color=COLORS["front"], linewidth=1.2)
    ax.plot(x, y, "o", color=COLORS["front"], zorder=3, label=label)
    if chosen:
        ax.plot(
            *chosen, "o", markersize=12, mew=2, mfc="none", color=COLORS["chosen"], label="chosen"
        )


def _totals(
    tunings: Sequence[TunedProblem], policy: Policy | None
) -> list[tuple[TunedProblem, float]]:
    """Return what the model spends on each problem, the largest first."""
    totals = [(tuned, total) for tuned in tunings if (total := tuned.total_ms(policy)) is not None]
    return sorted(totals, key=lambda pair: -pair[1])


def _how(row: AlgorithmResult) -> str:
    return ", ".join(
        part for part in (str(row.math_type), row.layout, "replayed" if row.replay else "") if part
    )
