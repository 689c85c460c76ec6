"""What a tuning found: plain values for programs, and for people one HTML page made of the template `report.html`."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any

from cudnnlite._raw.cenum import CEnum
from cudnnlite.arguments import instance_of, refused_as, sequence, shown
from cudnnlite.autotune.entries import row_to_plain
from cudnnlite.autotune.model_tuning import ModelTuning
from cudnnlite.autotune.tuned_problem import Policy, TunedProblem, cost
from cudnnlite.errors import ArgumentError, MissingPackageError
from cudnnlite.problems.problem_list import SkippedNode, summary
from cudnnlite.problems.results import within_noise
from cudnnlite.problems.table import NUMERIC
from cudnnlite.report import plots
from cudnnlite.sizes import format_size
from cudnnlite.texts import printable

SCHEMA = 1  # of `to_json`: a higher one where a key changes its meaning or goes
# the problems that take the most time have charts; with them for hundreds the page would be tens of
# MB
MOST_CHARTED = 40
# in the tags of an SVG: no link goes to a group, the page has its own fonts and colours, two
# decimals are enough
_EDITS = [
    (re.compile(pattern), new)
    for pattern, new in (
        ('^<g id="[^"]*"', "<g"),
        ("xlink:href", "href"),
        (r"font-family:[^;]*; ", ""),
        (r'font: ([\d.]+px)[^;"]*', r"font-size: \1"),  # as an older Matplotlib writes it
        (r"(\.\d\d)\d+", r"\1"),
        *((color, f"var(--{name},{color})") for name, color in plots.COLORS.items()),
    )
]


def to_json(tunings: Sequence[TunedProblem], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that the report shows, as values that JSON can hold.

    Parameters
    ----------
    tunings : sequence of TunedProblem
        What was tuned.
    facts : mapping
        Versions, device, time; under 'policy' what `TuningPolicy.to_plain` returns, under 'model'
        what was tuned.

    Returns
    -------
    dict
        'schema' (the number of this layout), 'facts', 'problems' and 'model'.  A problem has all
        its candidates under 'rows', each as `cudnnlite.autotune.entries.row_to_plain` writes it;
        'chosen', 'runner_up' and 'pareto' are indices of these. Of a model 'gains' are, for
        "cudnnFind" and the "heuristic", how many times as fast the choices are as the candidates
        that it ranks first, of which math types these are, and of how many problems that is known;
        None where it is of none. A figure that is missing, or that is no finite number, is None.

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
    """Write the report: one page with its style and its charts inside, that asks nothing of the network.

    Parameters
    ----------
    path : str or Path
        The file, in a folder that exists; it is overwritten.
    tunings, facts
        As in `to_json`, and refused as there.  The same ones give the same bytes.
    skipped : sequence of SkippedNode
        What the model asks for too, but is no problem that was tuned: the page counts and lists it.

    Raises
    ------
    ArgumentError, MissingPackageError
        An argument is no good, or the file cannot be written; jinja2 or matplotlib is not
        installed.
    """
    path, plain = plots.file_of(path), to_json(tunings, facts)
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise MissingPackageError(
            f"the report needs jinja2 ({error}): pip install 'cudnnlite[report]'"
        ) from error
    plots.import_matplotlib()
    environment = Environment(
        loader=PackageLoader("cudnnlite.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "printable": printable,
        "size": format_size,
        "kind": lambda head: (head, "number" if head in NUMERIC else "name"),
        "figure": lambda value, form=".4g": "-" if value is None else format(value, form),
    }
    page = environment.get_template("report.html").render(
        **plain,
        tunings=tunings,
        cells=[tuned.table.cells() for tuned in tunings],
        charts=_charts(tunings, facts.get("policy") or {}),
        most_charted=MOST_CHARTED,
        skipped=skipped,
    )
    with refused_as(ArgumentError, f"path={str(path)!r} cannot be written"):
        path.write_bytes(page.encode("utf-8", errors="replace"))


def _gain(run: ModelTuning, rank: str) -> dict[str, Any] | None:
    """Return how many times as fast the choices are as those that a field ranks first, among what may be chosen."""
    spent, math_types = [], set()
    for tuned in run.tunings:
        ranked = [row for row in tuned.table if row.ok and getattr(row, rank) is not None]
        if ranked and (total := tuned.total_ms(run.policy)):
            first = min(ranked, key=lambda row: getattr(row, rank))
            math_types.add(str(first.math_type))
            # of what is no match for the best no call was timed: it takes the device's time at
            # least
            spent.append((tuned.count * (cost(first, run.policy) or first.time_ms or 0.0), total))
    before, after = map(sum, zip(*spent, strict=True)) if spent else (0, 1)
    return (
        {"ratio": before / after, "problems": len(spent), "math_types": sorted(math_types)}
        if spent
        else None
    )


def _problem(tuned: TunedProblem, policy: Policy) -> dict[str, Any]:
    rows = []
    for index, (row, why) in enumerate(zip(tuned.table, tuned.reasons(policy), strict=True)):
        plain = {
            name: None if value in ("nan", "inf", "-inf") else value
            for name, value in row_to_plain(row).items()
        }
        rows.append({**plain, "ok": row.ok, "why_not_chosen": "" if index == tuned.place else why})
    return {
        **{
            name: getattr(tuned, name)
            for name in ("title", "names", "count", "from_cache", "why_none")
        },
        **{name: getattr(tuned.table, name) for name in ("timing", "searched_with")},
        "description": summary(tuned.problem),
        "problem": tuned.problem.to_plain(),
        "flops": tuned.problem.flops,
        "chosen": tuned.place,
        "total_ms": tuned.total_ms(policy),
        "runner_up": _runner_up(tuned, policy),
        "pareto": plots.front_of(tuned.table),
        "rows": rows,
    }


def _runner_up(tuned: TunedProblem, policy: Policy) -> dict[str, Any] | None:
    index = tuned.runner_up(policy)
    if tuned.chosen is None or index is None:
        return None
    least, each = cost(tuned.chosen, policy), cost(tuned.table[index], policy)
    noise = within_noise(
        tuned.table[index], tuned.chosen, latency=policy.get("objective") == "latency"
    )
    slower = None if least is None or each is None else each - least
    return {
        "row": index,
        "slower_ms": slower,
        "ratio": each / least if least and each else None,
        "within_noise": noise,
    }


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it: enums by name, no NaN and no infinity."""
    if isinstance(value, CEnum):
        return value.name
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _charts(tunings: Sequence[TunedProblem], policy: Policy) -> dict[int, list[tuple[str, str]]]:
    """Return captions and charts by the number of the problem; those of the whole model by -1."""
    found: dict[int, list[tuple[str, str]]] = {}

    def add(number: int, what: str, title: str, ax: Any) -> None:
        svg = inline_svg(ax.figure, f"{what}{number}", f"{what}: {title}")
        found.setdefault(number, []).append((what, svg))

    if len(tunings) > 1:
        add(-1, "Where the time goes", "all problems", plots.plot_model(tunings, policy=policy))
        shared = plots.plot_workspace(tunings, policy=policy)
        add(-1, "One workspace for all, under its other limits", "all problems", shared)
    timed = [number for number, tuned in enumerate(tunings) if plots.timed_rows(tuned.table)]
    for number in sorted(timed, key=lambda number: -(tunings[number].total_ms(policy) or 0.0))[
        :MOST_CHARTED
    ]:
        tuned = tunings[number]
        add(number, "Times", tuned.title, plots.plot_times(tuned.table, chosen=tuned.chosen))
        add(
            number,
            "Time against workspace",
            tuned.title,
            plots.plot_pareto(tuned.table, chosen=tuned.chosen),
        )
    return found


@plots.chart_style()
def inline_svg(figure: Any, name: str, label: str) -> str:
    """Return a figure as an <svg> element that can stand in a page beside others, none of which has the same name.

    Its colours become the page's variables (``--ink``, ``--bar``, ...), where it has them; the
    label is for those who cannot see it.
    """
    written = io.StringIO()
    with plots.import_matplotlib().rc_context({"svg.hashsalt": name}):
        figure.savefig(written, format="svg", transparent=True)
    head, rest = written.getvalue().partition("<svg")[2].split(">", 1)
    rest = re.sub(r"<(metadata|style)\b.*?</\1>", "", rest, flags=re.DOTALL)
    rest = re.sub(
        "<[^>]*>",
        lambda tag: reduce(lambda text, edit: edit[0].sub(edit[1], text), _EDITS, tag[0]),
        rest,
    )
    box = re.findall('viewBox="[^"]*"', head)[0]
    return f'<svg {box} role="img" aria-label="{escape(label)}">{rest}'
