"""The results of a tuning: plain values for programs, and an HTML page, made of `report.html`."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any

from cudnnlite._raw.cenum import CEnum
from cudnnlite.arguments import instance_of, sequence, shown
from cudnnlite.autotune.entries import row_to_plain
from cudnnlite.autotune.model_tuning import ModelTuning
from cudnnlite.autotune.tuned_problem import Policy, TunedProblem, cost, time_unit
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.problem_list import SkippedNode, summary
from cudnnlite.problems.results import AlgorithmResult, named, within_noise
from cudnnlite.problems.table import NUMERIC, AlgorithmTable
from cudnnlite.report import plots
from cudnnlite.report.axes import COLORS, chart_style, import_matplotlib
from cudnnlite.report.templates import template_environment, write_page
from cudnnlite.sizes import format_size
from cudnnlite.texts import figure

SCHEMA = 1  # of `to_json`: increased when a key changes its meaning or goes away
# The number of problems with charts, those that take the most time: with charts of hundreds the
# page would have tens of MB.
MOST_CHARTED = 40
# Edits of the tags of an SVG: no link goes to a group, the page has its own fonts and colours, and
# two decimals are enough.
_EDITS = [
    (re.compile(pattern), new)
    for pattern, new in (
        ('^<g id="[^"]*"', "<g"),
        ("xlink:href", "href"),
        (r"font-family:[^;]*; ", ""),
        (r'font: ([\d.]+px)[^;"]*', r"font-size: \1"),  # as an older Matplotlib writes it
        (r"(\.\d\d)\d+", r"\1"),
        *((color, f"var(--{name},{color})") for name, color in COLORS.items()),
    )
]


def to_json(tunings: Sequence[TunedProblem], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that the report shows, as values that JSON can hold.

    Parameters
    ----------
    tunings : sequence of TunedProblem
        The tuned problems.
    facts : mapping
        Versions, device, time; under 'policy' what `TuningPolicy.to_plain` returns, under 'model'
        what was tuned.

    Returns
    -------
    dict
        'schema' (the number of this layout), 'facts', 'problems' and 'model'.  A problem has all
        its candidates under 'rows', each as `cudnnlite.autotune.entries.row_to_plain` writes it;
        'chosen', 'runner_up' and 'pareto' are indices of these; the runner-up runs another kernel
        than the choice.  'kernels' has lists of indices: the rows of a list were timed as one.
        'tflops' and 'roofline' (a share) of a row are None if the peaks of the device are not
        known.  The 'gains' of a model compare the choices with the candidates that "cudnnFind" and
        the "heuristic" rank first: how many times as fast the choices are, the math types of those
        candidates, and the number of problems for which both times are known; None if there is no
        such problem.  A figure that is missing, or that is no finite number, is None.

    Raises
    ------
    ArgumentError
        `tunings` or `facts` is something else, or a chosen row is not in its table.
    """
    for index, tuned in enumerate(sequence(tunings, "tunings", "a sequence of TunedProblem")):
        instance_of(tuned, TunedProblem, f"tunings[{index}]")
    if not isinstance(facts, Mapping):
        raise ArgumentError(f"facts={shown(facts)} is not a mapping of names to what they are")
    policy = facts.get("policy") or {}
    if not isinstance(policy, Mapping):
        raise ArgumentError(
            f"facts['policy']={shown(policy)} is not a mapping; allowed: a policy's to_plain()"
        )
    run = ModelTuning(tuple(tunings), {"policy": policy})
    model = {
        "calls": sum(tuned.count for tuned in tunings),
        "chosen": len(tunings) - len(run.failed),
        "from_cache": run.remembered,
        "total_ms": run.total_ms,
        "gains": {"cudnnFind": _gain(run, "find_ms"), "heuristic": _gain(run, "heuristic")},
        "workspace": max(
            (tuned.chosen.workspace for tuned in tunings if tuned.chosen), default=None
        ),
        "shared_workspace": [{"workspace": size, "total_ms": ms} for size, ms in run.pareto()],
    }
    problems = [_problem(tuned, policy) for tuned in tunings]
    plain: dict[str, Any] = _plain(
        {"schema": SCHEMA, "facts": facts, "problems": problems, "model": model}
    )
    return plain


def write_html(
    path: str | Path,
    tunings: Sequence[TunedProblem],
    facts: Mapping[str, Any],
    skipped: Sequence[SkippedNode] = (),
) -> None:
    """Write the report: one page that contains its style and charts, and loads nothing.

    Parameters
    ----------
    path : str or Path
        The file, in a folder that exists; it is overwritten.
    tunings, facts
        As in `to_json`, and refused as there.  The same ones give the same bytes.
    skipped : sequence of SkippedNode
        The nodes of the model that were not tuned; the page lists them.

    Raises
    ------
    ArgumentError, MissingPackageError
        An argument is not allowed, or the file cannot be written; jinja2 or matplotlib is not
        installed.
    """
    path = plots.file_of(path)
    plain = to_json(tunings, facts)
    filters: dict[str, Callable[..., Any]] = {
        "size": format_size,
        "kind": lambda head: (head, "number" if head in NUMERIC else "name"),
        "figure": lambda value, form=".4g": figure(value, form) or "-",
        "names_of": lambda table, indices: ", ".join(named(table[index]) for index in indices),
    }
    environment = template_environment("cudnnlite.report", "the report", filters)
    import_matplotlib()
    page = environment.get_template("report.html").render(
        **plain,
        tunings=tunings,
        cells=[tuned.table.cells() for tuned in tunings],
        charts=_charts(tunings, facts.get("policy") or {}),
        most_charted=MOST_CHARTED,
        unit=time_unit(facts.get("policy")),
        skipped=skipped,
    )
    write_page(path, page)


def _gain(run: ModelTuning, rank: str) -> dict[str, Any] | None:
    """Return how many times as fast the choices are as the rows that a field ranks first.

    None if no problem has both. Only rows that may be chosen count.
    """
    ranked_ms, chosen_ms, problems = 0.0, 0.0, 0
    math_types: set[str] = set()
    for tuned in run.tunings:
        ranked_rows = [row for row in tuned.table if row.ok and getattr(row, rank) is not None]
        total_ms = tuned.total_ms(run.policy)
        if not ranked_rows or not total_ms:
            continue
        first = min(ranked_rows, key=lambda row: getattr(row, rank))
        # If the call was not timed, the device time is used, which is a lower bound.
        first_ms = cost(first, run.policy) or first.time_ms or 0.0
        ranked_ms += tuned.count * first_ms
        chosen_ms += total_ms
        problems += 1
        math_types.add(str(first.math_type))
    if not problems:
        return None
    return {
        "ratio": ranked_ms / chosen_ms,
        "problems": problems,
        "math_types": sorted(math_types),
    }


def _problem(tuned: TunedProblem, policy: Policy) -> dict[str, Any]:
    """Return a problem with all its rows, as `to_json` describes it."""
    rows = []
    for index, (row, reason) in enumerate(zip(tuned.table, tuned.reasons(policy), strict=True)):
        is_chosen = index == tuned.place
        plain = {name: _finite(value) for name, value in row_to_plain(row).items()}
        rates = _rates(tuned.table, row)
        why_not_chosen = "" if is_chosen else reason
        rows.append({**plain, **rates, "ok": row.ok, "why_not_chosen": why_not_chosen})
    return {
        "title": tuned.title,
        "names": tuned.names,
        "count": tuned.count,
        "from_cache": tuned.from_cache,
        "why_none": tuned.why_none,
        "timing": tuned.table.timing,
        "searched_with": tuned.table.searched_with,
        "description": summary(tuned.problem),
        "problem": tuned.problem.to_plain(),
        "flops": tuned.problem.flops,
        "chosen": tuned.place,
        "total_ms": tuned.total_ms(policy),
        "runner_up": _runner_up(tuned, policy),
        "pareto": plots.front_of(tuned.table),
        "has_rates": any(row["tflops"] is not None for row in rows),
        "kernels": [list(group) for group in tuned.table.kernels()],
        "rows": rows,
    }


def _rates(table: AlgorithmTable, row: AlgorithmResult) -> dict[str, Any]:
    """Return the rates of a row relative to the device's peaks; None if they are unknown."""
    least = table.roofline_of(row)
    if least is None or not row.time_ms:
        return {"tflops": table.tflops_of(row), "roofline": None, "bound": ""}
    share = least.share(row.time_ms / 1e3)
    return {"tflops": table.tflops_of(row), "roofline": share, "bound": least.bound}


def _finite(value: Any) -> Any:
    """Return None for the texts that stand for NaN and infinity, any other value as it is."""
    return None if value in ("nan", "inf", "-inf") else value


def _runner_up(tuned: TunedProblem, policy: Policy) -> dict[str, Any] | None:
    """Return the best other row, compared with the chosen one; None if there is none."""
    index = tuned.runner_up(policy)
    if tuned.chosen is None or index is None:
        return None
    row = tuned.table[index]
    chosen_ms, row_ms = cost(tuned.chosen, policy), cost(row, policy)
    slower_ms = ratio = None
    if chosen_ms is not None and row_ms is not None:
        slower_ms = row_ms - chosen_ms
        if chosen_ms and row_ms:
            ratio = row_ms / chosen_ms
    is_latency = policy.get("objective") == "latency"
    return {
        "row": index,
        "slower_ms": slower_ms,
        "ratio": ratio,
        "within_noise": within_noise(row, tuned.chosen, latency=is_latency),
    }


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it: enums by name, no NaN and no infinity."""
    if isinstance(value, CEnum):
        return value.name
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def _charts(tunings: Sequence[TunedProblem], policy: Policy) -> dict[int, list[tuple[str, str]]]:
    """Return captions and charts by the number of the problem; those of the whole model by -1."""
    charts: dict[int, list[tuple[str, str]]] = {}

    def add(number: int, caption: str, title: str, ax: Any) -> None:
        svg = inline_svg(ax.figure, f"{caption}{number}", f"{caption}: {title}")
        charts.setdefault(number, []).append((caption, svg))

    if len(tunings) > 1:
        add(-1, "Where the time goes", "all problems", plots.plot_model(tunings, policy=policy))
        shared = plots.plot_workspace(tunings, policy=policy)
        add(-1, "One workspace for all, under its other limits", "all problems", shared)
    for number in _charted_problems(tunings, policy):
        tuned = tunings[number]
        times = plots.plot_times(tuned.table, chosen=tuned.chosen)
        add(number, "Times", tuned.title, times)
        front = plots.plot_pareto(tuned.table, chosen=tuned.chosen)
        add(number, "Time against workspace", tuned.title, front)
    return charts


def _charted_problems(tunings: Sequence[TunedProblem], policy: Policy) -> list[int]:
    """Return the numbers of the problems with charts, that with the most time first."""
    timed = [number for number, tuned in enumerate(tunings) if plots.timed_rows(tuned.table)]
    timed.sort(key=lambda number: -(tunings[number].total_ms(policy) or 0.0))
    return timed[:MOST_CHARTED]


@chart_style()
def inline_svg(figure: Any, name: str, label: str) -> str:
    """Return a figure as an <svg> element; each figure in a page needs a name of its own.

    Its colours become the page's variables (``--ink``, ``--bar``, ...), if the page has them; the
    label is for readers who cannot see it.
    """
    file = io.StringIO()
    with import_matplotlib().rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", transparent=True)
    head, rest = file.getvalue().partition("<svg")[2].split(">", 1)
    rest = re.sub(r"<(metadata|style)\b.*?</\1>", "", rest, flags=re.DOTALL)
    rest = re.sub("<[^>]*>", _edit_tag, rest)
    box = re.findall('viewBox="[^"]*"', head)[0]
    return f'<svg {box} role="img" aria-label="{escape(label)}">{rest}'


def _edit_tag(match: re.Match[str]) -> str:
    """Return a tag of an SVG with all edits made."""
    tag = match[0]
    for pattern, replacement in _EDITS:
        tag = pattern.sub(replacement, tag)
    return tag
