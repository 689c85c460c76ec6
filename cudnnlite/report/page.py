"""The page of the report: what the template `report.html` is filled with, and the charts in it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from cudnnlite.autotune.tuned import TunedProblem
from cudnnlite.errors import MissingPackageError
from cudnnlite.operations.problem_list import SkippedNode
from cudnnlite.report.axes import COLORS, chart_style, import_matplotlib, time_unit
from cudnnlite.report.plots import plot_model, plot_pareto, plot_times, plot_workspace, timed_rows
from cudnnlite.search.results import AlgorithmResult
from cudnnlite.sizes import format_size
from cudnnlite.texts import printable

# the problems that take the most time have charts; with them for hundreds the page would be tens of MB
MOST_CHARTED = 40
_TEXTS = ("algorithm", "math type", "converted to", "deterministic")  # the columns that are no numbers
_NONE = "–"
# in the tags of an SVG: no link goes to a group, the page has its own fonts and colours, two decimals are enough
_EDITS = (
    ('^<g id="[^"]*"', "<g"),
    ("xlink:href", "href"),
    (r"font-family:[^;]*; ", ""),
    (r'font: ([\d.]+px)[^;"]*', r"font-size: \1"),  # as an older Matplotlib writes it
    (r"(\.\d\d)\d+", r"\1"),
    *((color, f"var(--{name},{color})") for name, color in COLORS.items()),
)


def render(tunings: Sequence[TunedProblem], plain: Mapping[str, Any], skipped: Sequence[SkippedNode] = ()) -> str:
    """Return the page of tunings; `plain` is what `to_json` returns of them."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise MissingPackageError(f"the report needs jinja2 ({error}): pip install 'cudnnlite[report]'") from error
    import_matplotlib()
    spaces = {"trim_blocks": True, "lstrip_blocks": True}
    loader = PackageLoader("cudnnlite.report", "")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, **spaces)
    environment.filters |= {"printable": printable, "size": format_size, "exponent": _exponent, "alone": _alone}
    facts, problems = dict(plain["facts"]), plain["problems"]
    policy = facts.pop("policy", None) or {}
    page: str = environment.get_template("report.html").render(
        problems=problems,
        tunings=tunings,
        model=plain["model"],
        chosen=[tuned.chosen for tuned in tunings],
        full=[str(tuned.problem) for tuned in tunings],
        tables=[_candidates(tuned) for tuned in tunings],
        device=facts.get("device"),
        facts=list(_settings(facts)),
        policy=list(_settings(policy)),
        is_latency=policy.get("objective") == "latency",
        is_emulated="emulated" in " ".join([str(facts.get("device")), *(each["timing"] for each in problems)]).lower(),
        each=time_unit(tuned.chosen.time_ms for tuned in tunings if tuned.chosen),
        whole=time_unit(problem["total_ms"] for problem in problems),
        charts=_charts(tunings, problems),
        overview=_overview(tunings, policy) if len(tunings) > 1 else [],
        most_charted=MOST_CHARTED,
        skipped=skipped,
    )
    return page


def _settings(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and texts of facts, or of a policy."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{name}: ")
        else:
            is_size = name == "workspace_limit" and isinstance(value, int)
            yield before + name.replace("_", " "), format_size(value) if is_size else _setting(value)


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if text and value is not None else _NONE


def _candidates(tuned: TunedProblem) -> dict[str, list[Any]]:
    """Return the table of a problem's candidates: the columns in which some row has something."""
    table, unit = tuned.table, time_unit(row.time_ms for row in tuned.table)
    columns: dict[str, Callable[[AlgorithmResult], str]] = {
        "algorithm": lambda row: str(row.algorithm),
        "math type": lambda row: str(row.math_type),
        "converted to": lambda row: row.layout,
        f"time ({unit.name})": lambda row: unit.text(row.time_ms),
        f"spread ({unit.name})": lambda row: unit.text(row.spread_ms),
        f"call ({unit.name})": lambda row: unit.text(row.call_us and row.call_us / 1000),
        f"host ({unit.name})": lambda row: unit.text(row.host_us and row.host_us / 1000),
        f"cudnnFind ({unit.name})": lambda row: unit.text(row.find_ms),
        "workspace": lambda row: format_size(row.workspace) if row.ok or row.workspace else "",
        "reserve": lambda row: "" if row.reserve is None else format_size(row.reserve),
        "error": lambda row: _exponent(row.error),
        "max error": lambda row: _exponent(row.max_error),
        "deterministic": lambda row: {True: "yes", False: "no", None: ""}[row.deterministic],
    }
    filled = {head: [text(row) for row in table] for head, text in columns.items()}
    shown = [head for head in columns if any(filled[head])] if len(table) else [*columns][:4]
    heads = [(head, "name" if head in _TEXTS else "number") for head in shown]
    rows = zip(*([text or _NONE for text in filled[head]] for head in shown), strict=True)
    return {"heads": heads, "rows": list(rows)}


def _charts(tunings: Sequence[TunedProblem], problems: Sequence[Mapping[str, Any]]) -> dict[int, list[tuple[str, str]]]:
    """Return the captions and charts of the problems that have some, by number."""
    timed = [number for number, tuned in enumerate(tunings) if timed_rows(tuned.table)]
    timed.sort(key=lambda number: -(problems[number]["total_ms"] or 0.0))
    charts = {}
    for number in timed[:MOST_CHARTED]:
        tuned, title = tunings[number], problems[number]["title"]
        drawn = [plot(tuned.table, chosen=tuned.chosen).figure for plot in (plot_times, plot_pareto)]
        told = zip("tw", ("Times", "Time against workspace"), drawn, strict=True)
        charts[number] = [
            (what, inline_svg(figure, f"{key}{number}", f"{what}: {title}")) for key, what, figure in told
        ]
    return charts


def _overview(tunings: Sequence[TunedProblem], policy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the captions and charts of a whole model."""
    drawn = [plot(tunings, policy=policy).figure for plot in (plot_model, plot_workspace)]
    told = zip("ms", ("Where the time goes", "One workspace for all, under its other limits"), drawn, strict=True)
    return [(what, inline_svg(figure, key, f"{what}: all problems")) for key, what, figure in told]


@chart_style()
def inline_svg(figure: Any, name: str, label: str) -> str:
    """Return a figure as an <svg> element that can stand in a page beside others.

    Parameters
    ----------
    figure : matplotlib Figure
        Drawn with `axes.COLORS`: they become the page's variables (``--ink``, ``--bar``, ...), where it has them.
    name : str
        What makes its ids differ from those of other figures; no other figure of the page may have the same.
    label : str
        What it shows, for those who cannot see it.
    """
    written = io.StringIO()
    with import_matplotlib().rc_context({"svg.hashsalt": name}):
        figure.savefig(written, format="svg", transparent=True)
    head, _, rest = written.getvalue().partition("<svg")[2].partition(">")
    found = re.search('viewBox="[^"]*"', head)
    rest = re.sub(r"<(metadata|style)\b.*?</\1>", "", rest, flags=re.DOTALL)
    rest = re.sub("<[^>]*>", _for_a_page, rest)
    return f'<svg {found[0] if found else ""} role="img" aria-label="{escape(label)}">{rest}'


def _for_a_page(tag: re.Match[str]) -> str:
    text = tag[0]
    for pattern, new in _EDITS:
        text = re.sub(pattern, new, text)
    return text


def _exponent(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _alone(ms: float) -> str:
    """Return a time with its own unit."""
    unit = time_unit([ms])
    return f"{unit.text(ms)} {unit.name}"
