"""The page of the report: what stands in its tables, and its charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cudnnlite.autotune.tuned import Policy, TunedProblem, cost, describe
from cudnnlite.errors import MissingPackageError
from cudnnlite.operations.problem_list import SkippedNode
from cudnnlite.report.axes import TimeUnit, plain_style, time_unit
from cudnnlite.report.plots import front_of, plot_model, plot_pareto, plot_times, plot_workspace, timed_rows
from cudnnlite.search.results import AlgorithmResult, within_noise
from cudnnlite.sizes import format_size
from cudnnlite.texts import printable

# the problems that take the most time have charts; with them for hundreds the page would be tens of MB
MOST_CHARTED = 40
_NONE = "–"


class Cell(NamedTuple):
    """What stands in a cell of a table."""

    text: str
    kind: str = ""  # the classes: 'number', 'name', 'text'
    link: str = ""  # an id of the page
    below: str = ""  # a second, smaller line


class Table(NamedTuple):
    """A table: headings, rows of cells, and which row is marked."""

    caption: str
    heads: list[Cell]
    rows: list[list[Cell]]
    marked: int | None = None
    foot: list[Cell] | None = None


class Section(NamedTuple):
    """What the page says of one problem."""

    anchor: str
    title: str
    description: str
    origin: str
    full: str
    names: str
    why_none: str
    table: Table
    charts: list[Any]
    no_charts: str


def render(
    tunings: Sequence[TunedProblem], facts: Mapping[str, Any], policy: Policy, skipped: Sequence[SkippedNode] = ()
) -> str:
    """Return the page."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise MissingPackageError(f"the report needs jinja2 ({error}): pip install 'cudnnlite[report]'") from error
    environment = Environment(
        loader=PackageLoader("cudnnlite.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    charted = _charted(tunings, policy)
    with plain_style():
        sections = [_section(number, tuned, policy, number in charted) for number, tuned in enumerate(tunings)]
        overview = _overview(tunings, policy) if len(tunings) > 1 else []
    page: str = environment.get_template("report.html").render(
        heading=_heading(tunings, facts),
        emulated="emulated" in " ".join([str(facts.get("device")), *(t.table.timing for t in tunings)]).lower(),
        tiles=_tiles(tunings, policy),
        facts=_named(facts, leave_out="policy"),
        policy=_named(policy),
        summary=_summary(tunings, policy) if tunings else None,
        overview=overview,
        sections=sections,
        skipped=[(printable(node.name), printable(node.what), printable(node.why)) for node in skipped],
    )
    return page


def _heading(tunings: Sequence[TunedProblem], facts: Mapping[str, Any]) -> str:
    what = printable(tunings[0].title) if len(tunings) == 1 else f"{len(tunings)} problems"
    return f"{what} on {facts['device']}" if facts.get("device") else what


def _named(values: Mapping[str, Any], leave_out: str = "") -> list[tuple[str, str]]:
    """Return names and texts of what may be nested."""
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        if name == leave_out:
            continue
        if isinstance(value, Mapping):
            found += [(f"{name}: {inner}", text) for inner, text in _named(value)]
        elif name == "workspace_limit" and isinstance(value, int):
            found.append(("workspace limit", format_size(value)))
        elif isinstance(value, (list, tuple)):
            found.append((str(name), ", ".join(map(str, value)) or _NONE))
        else:
            texts = {None: _NONE, "": _NONE, True: "yes", False: "no"}
            known = value is None or isinstance(value, (bool, str))
            found.append((str(name).replace("_", " "), texts.get(value, str(value)) if known else str(value)))
    return found


def _tiles(tunings: Sequence[TunedProblem], policy: Policy) -> list[tuple[str, str]]:
    """Return the figures that stand on top: (what, figure)."""
    totals = [total for tuned in tunings if (total := tuned.total_ms(policy)) is not None]
    chosen = [tuned.chosen for tuned in tunings if tuned.chosen]
    tiles = []
    if len(tunings) == 1 and chosen:
        tiles.append((f"chosen, math {chosen[0].math_type}", str(chosen[0].algorithm)))
    if totals:
        calls = sum(tuned.count for tuned in tunings if tuned.total_ms(policy) is not None)
        tiles.append((f"total of {calls} calls" if calls > 1 else "a call", _alone(sum(totals))))
    if chosen:
        tiles.append(("workspace", format_size(max(row.workspace for row in chosen))))
    if len(tunings) > 1:
        remembered = sum(tuned.from_cache for tuned in tunings)
        origin = f"{remembered} from the cache" if remembered else "all measured"
        tiles.append((f"problems, {origin}", str(len(tunings))))
    if len(chosen) < len(tunings):
        tiles.append(("without an algorithm", str(len(tunings) - len(chosen))))
    return tiles


def _summary(tunings: Sequence[TunedProblem], policy: Policy) -> Table:
    """Return the table of all problems."""
    each = time_unit(ms for tuned in tunings if tuned.chosen and (ms := tuned.chosen.time_ms) is not None)
    totals = [tuned.total_ms(policy) for tuned in tunings]
    whole = time_unit(total for total in totals if total is not None)
    calls = policy.get("objective") == "latency"
    heads = [Cell("problem", "name"), Cell("count", "number"), Cell("algorithm", "name"), Cell("math type", "name"),
             Cell("layout", "name"), Cell(f"time ({each.name})", "number"),
             *([Cell(f"call ({each.name})", "number")] if calls else []),
             Cell("workspace", "number"), Cell("error", "number"), Cell("runner-up", "name"),
             Cell(f"total ({whole.name})", "number")]  # fmt: skip
    rows = []
    for number, (tuned, total) in enumerate(zip(tunings, totals, strict=True)):
        below = describe(tuned.problem) if tuned.names else ""
        cells = [Cell(printable(tuned.title), "name", f"p{number + 1}", below), Cell(str(tuned.count), "number")]
        row = tuned.chosen
        if row is None:
            cells += [Cell("none", "name failed"), *[Cell(_NONE, head.kind) for head in heads[3:]]]
        else:
            times = [row.time_ms, *([cost(row, policy)] if calls else [])]
            cells += [Cell(name, "name") for name in (str(row.algorithm), str(row.math_type), row.layout or "as given")]
            cells += [Cell(_NONE if ms is None else each.text(ms), "number") for ms in times]
            cells += [Cell(format_size(row.workspace), "number"), Cell(_small(row.error), "number")]
            cells += [_runner_up(tuned, policy), Cell(_NONE if total is None else whole.text(total), "number")]
        rows.append(cells)
    foot = None
    if len(tunings) > 1:
        known = [total for total in totals if total is not None]
        left = f"{len(totals) - len(known)} of them without a time" if len(known) < len(totals) else ""
        calls_of_all = Cell(str(sum(tuned.count for tuned in tunings)), "number")
        whole_total = Cell(whole.text(sum(known)) if known else _NONE, "number")
        foot = [Cell("all", "name", "", left), calls_of_all, *[Cell("") for _ in heads[3:]], whole_total]
    return Table("What was chosen for each problem", heads, rows, None, foot)


def _runner_up(tuned: TunedProblem, policy: Policy) -> Cell:
    index = tuned.runner_up(policy)
    if index is None or tuned.chosen is None:
        return Cell(_NONE, "name")
    row = tuned.table[index]
    least, each = cost(tuned.chosen, policy), cost(row, policy)
    apart = f"+{(each / least - 1) * 100:.1f} %" if least and each is not None else ""
    close = within_noise(row, tuned.chosen, latency=policy.get("objective") == "latency")
    how = (str(row.math_type), row.layout, apart, "within the noise" if close else "")
    return Cell(str(row.algorithm), "name", "", ", ".join(part for part in how if part))


def _section(number: int, tuned: TunedProblem, policy: Policy, charted: bool) -> Section:
    title = printable(tuned.title)
    plots = (
        (plot_times, f"t{number}", "Times", f"Bar chart of the candidates' times for {title}"),
        (plot_pareto, f"w{number}", "Time against workspace", f"Time against workspace for {title}"),
    )
    charts = [_svg(plot(tuned.table, chosen=tuned.chosen), *told) for plot, *told in plots if charted]
    left_out = f"Charts: only of the {MOST_CHARTED} problems that take the most time."
    calls = f"{tuned.count} calls in the model; " if tuned.count > 1 else ""
    return Section(
        anchor=f"p{number + 1}",
        title=title,
        description=describe(tuned.problem),
        origin=calls + ("remembered, not measured now" if tuned.from_cache else "measured now"),
        full=str(tuned.problem),
        names=", ".join(map(printable, tuned.names)) if len(tuned.names) > 1 else "",
        why_none="\n".join(map(printable, tuned.why_none.splitlines())) if tuned.chosen is None else "",
        table=_candidates(tuned, policy),
        charts=charts,
        no_charts=left_out if not charted and timed_rows(tuned.table) else "",
    )


class _Column(NamedTuple):
    """A column of a problem's table: shown where some row has something in it."""

    head: str
    kind: str
    text: Callable[[AlgorithmResult], str]


def _candidates(tuned: TunedProblem, policy: Policy) -> Table:
    """Return the table of all candidates of a problem."""
    unit = time_unit(row.time_ms for row in tuned.table if row.time_ms is not None)
    columns = [
        _Column("algorithm", "name", lambda row: str(row.algorithm)),
        _Column("math type", "name", lambda row: str(row.math_type)),
        _Column("converted to", "name", lambda row: row.layout),
        _Column(f"time ({unit.name})", "number", lambda row: _time(row.time_ms, unit)),
        _Column(f"spread ({unit.name})", "number", lambda row: _time(row.spread_ms, unit)),
        _Column(f"call ({unit.name})", "number", lambda row: _time(row.call_us, unit, 1e-3)),
        _Column(f"host ({unit.name})", "number", lambda row: _time(row.host_us, unit, 1e-3)),
        _Column(f"cudnnFind ({unit.name})", "number", lambda row: _time(row.find_ms, unit)),
        _Column("workspace", "number", lambda row: format_size(row.workspace) if row.ok or row.workspace else ""),
        _Column("reserve", "number", lambda row: "" if row.reserve is None else format_size(row.reserve)),
        _Column("error", "number", lambda row: "" if row.error is None else _small(row.error)),
        _Column("max error", "number", lambda row: "" if row.max_error is None else _small(row.max_error)),
        _Column("deterministic", "name", lambda row: {True: "yes", False: "no", None: ""}[row.deterministic]),
    ]
    table = tuned.table
    shown = [column for column in columns if any(column.text(row) for row in table)] if len(table) else columns[:4]
    front, place = set(front_of(table)), tuned.place
    rows = []
    for index, (row, why) in enumerate(zip(table, tuned.reasons(policy), strict=True)):
        cells = [Cell(column.text(row) or _NONE, column.kind) for column in shown]
        parts = ["chosen", why] if index == place else [why]
        parts += ["on the front"] if index in front else []
        rows.append([*cells, Cell("; ".join(part for part in parts if part), "text" if row.ok else "text failed")])
    heads = [*(Cell(column.head, column.kind) for column in shown), Cell("chosen, or why not", "text")]
    return Table(f"{len(table)} candidates, times: {printable(table.timing)}", heads, rows, place)


def _charted(tunings: Sequence[TunedProblem], policy: Policy) -> set[int]:
    """Return the numbers of the problems that have charts."""
    timed = [number for number, tuned in enumerate(tunings) if timed_rows(tuned.table)]
    timed.sort(key=lambda number: -(tunings[number].total_ms(policy) or 0.0))
    return set(timed[:MOST_CHARTED])


def _overview(tunings: Sequence[TunedProblem], policy: Policy) -> list[tuple[str, Any]]:
    """Return the charts of a whole model."""
    return [
        _svg(plot_model(tunings, policy=policy), "m", "Where the time goes", "Bar chart of the total time of each problem"),
        _svg(plot_workspace(tunings, policy=policy), "s", "One workspace for all, under its other limits",
             "Total time of all problems against the workspace that they share"),
    ]  # fmt: skip


def _svg(ax: Any, name: str, caption: str, label: str) -> tuple[str, Any]:
    from markupsafe import Markup

    from cudnnlite.report.svg import inline_svg

    return caption, Markup(inline_svg(ax.figure, name, label))


def _time(value: float | None, unit: TimeUnit, ms: float = 1.0) -> str:
    """Return a figure of so many milliseconds each in a table's unit; empty for none."""
    return "" if value is None else unit.text(value * ms)


def _alone(ms: float) -> str:
    """Return a time with its own unit."""
    unit = time_unit([ms])
    return f"{unit.text(ms)} {unit.name}"


def _small(value: float | None) -> str:
    return _NONE if value is None else f"{value:.1e}"
