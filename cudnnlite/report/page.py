"""What a tuning found, for people: one HTML page that needs nothing else, made of the template `report.html`."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from cudnnlite.autotune.tuned import TunedProblem
from cudnnlite.errors import ArgumentError, MissingPackageError
from cudnnlite.operations.problem_list import SkippedNode
from cudnnlite.report.plain import to_json
from cudnnlite.report.plots import (
    COLORS,
    chart_style,
    import_matplotlib,
    plot_model,
    plot_pareto,
    plot_times,
    plot_workspace,
    timed_rows,
)
from cudnnlite.search.table import NUMERIC, AlgorithmTable
from cudnnlite.sizes import format_size
from cudnnlite.texts import printable

# the problems that take the most time have charts; with them for hundreds the page would be tens of MB
MOST_CHARTED = 40
_NONE = "-"
# in the tags of an SVG: no link goes to a group, the page has its own fonts and colours, two decimals are enough
_EDITS = (
    ('^<g id="[^"]*"', "<g"),
    ("xlink:href", "href"),
    (r"font-family:[^;]*; ", ""),
    (r'font: ([\d.]+px)[^;"]*', r"font-size: \1"),  # as an older Matplotlib writes it
    (r"(\.\d\d)\d+", r"\1"),
    *((color, f"var(--{name},{color})") for name, color in COLORS.items()),
)


def write_html(
    path: str | Path,
    tunings: Sequence[TunedProblem],
    facts: Mapping[str, Any],
    skipped: Sequence[SkippedNode] = (),
) -> None:
    """Write the report: one page with its style and its charts inside, that asks nothing of the network.

    Parameters
    ----------
    path : str or Path
        The file, in a folder that exists; it is overwritten.
    tunings, facts
        As in `to_json`, and refused as there.  The same ones give the same bytes.
    skipped : sequence of SkippedNode
        What the model asks for too, but is no problem that was tuned: the page says so.

    Raises
    ------
    ArgumentError, MissingPackageError
        An argument is no good; jinja2 or matplotlib is not installed.  Nothing is written.
    """
    path = Path(path)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ArgumentError(f"path={str(path)!r}; allowed: a file in a folder that exists")
    plain = to_json(tunings, facts)
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise MissingPackageError(f"the report needs jinja2 ({error}): pip install 'cudnnlite[report]'") from error
    import_matplotlib()
    environment = Environment(
        loader=PackageLoader("cudnnlite.report", ""), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"printable": printable, "size": format_size, "figure": _figure}
    facts, problems = dict(plain["facts"]), plain["problems"]
    policy = facts.pop("policy", None) or {}
    page = environment.get_template("report.html").render(
        problems=problems,
        tunings=tunings,
        tables=[_candidates(tuned.table) for tuned in tunings],
        model=plain["model"],
        device=facts.get("device"),
        facts=list(_settings(facts)),
        policy=list(_settings(policy)),
        is_latency=policy.get("objective") == "latency",
        is_emulated="emulated" in " ".join([str(facts.get("device")), *(each["timing"] for each in problems)]).lower(),
        charts=_charts(tunings, problems),
        overview=_overview(tunings, policy) if len(tunings) > 1 else [],
        most_charted=MOST_CHARTED,
        skipped=skipped,
    )
    path.write_bytes(page.encode("utf-8", errors="replace"))


def _settings(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and texts of facts, or of a policy."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{name}: ")
            continue
        if isinstance(value, bool):
            text = "yes" if value else "no"
        elif name == "workspace_limit" and isinstance(value, int):
            text = format_size(value)
        else:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value or "")
        yield before + name.replace("_", " "), text or _NONE


def _candidates(table: AlgorithmTable) -> tuple[list[tuple[str, str]], list[tuple[str, ...]]]:
    """Return the heads of a problem's table, each with its kind, and the rows: as the table prints, but for the status."""
    heads, *rows = table.cells()
    return [(head, "number" if head in NUMERIC else "name") for head in heads[:-1]], rows


def _charts(tunings: Sequence[TunedProblem], problems: Sequence[Mapping[str, Any]]) -> dict[int, list[tuple[str, str]]]:
    """Return the captions and charts of the problems that have some, by number."""
    timed = [number for number, tuned in enumerate(tunings) if timed_rows(tuned.table)]
    timed.sort(key=lambda number: -(problems[number]["total_ms"] or 0.0))
    charts = {}
    for number in timed[:MOST_CHARTED]:
        tuned, title = tunings[number], problems[number]["title"]
        drawn = [plot(tuned.table, chosen=tuned.chosen) for plot in (plot_times, plot_pareto)]
        told = zip("tw", ("Times", "Time against workspace"), drawn, strict=True)
        charts[number] = [_chart(ax, f"{key}{number}", what, title) for key, what, ax in told]
    return charts


def _overview(tunings: Sequence[TunedProblem], policy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the captions and charts of a whole model."""
    workspaces = "One workspace for all, under its other limits"
    kinds = (("m", "Where the time goes", plot_model), ("s", workspaces, plot_workspace))
    return [_chart(plot(tunings, policy=policy), key, what, "all problems") for key, what, plot in kinds]


def _chart(ax: Any, name: str, what: str, title: str) -> tuple[str, str]:
    return what, inline_svg(ax.figure, name, f"{what}: {title}")


@chart_style()
def inline_svg(figure: Any, name: str, label: str) -> str:
    """Return a figure as an <svg> element that can stand in a page beside others, none of which has the same name.

    Its colours become the page's variables (``--ink``, ``--bar``, ...), where it has them; the label is for those who cannot
    see it.
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


def _figure(value: float | None, form: str = ".4g") -> str:
    return _NONE if value is None else format(value, form)
