"""The results of a tuning: plain values for programs, and an HTML page, made of `report.html`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from cudnnlite import AlgorithmResult, AlgorithmTable
from cudnnlite._raw.cenum import CEnum
from cudnnlite.arguments import refused_as
from cudnnlite.errors import ArgumentError, MissingPackageError
from cudnnlite.files import write_named_file
from cudnnlite.problems.results import named, within_noise
from cudnnlite.problems.table import NUMERIC
from cudnnlite.sizes import format_size
from cudnnlite.texts import figure, printable
from cudnnlite.workbench.tuning.entries import row_to_plain
from cudnnlite.workbench.tuning.model_tuning import ModelTuning
from cudnnlite.workbench.tuning.problem_list import summary
from cudnnlite.workbench.tuning.tuned_problem import Policy, TunedProblem, cost, time_unit

SCHEMA = 1  # of `to_plain`: increased when a key changes its meaning or goes away
# Bars are cut at this multiple of the best, so that short bars can be compared.
_CUT = 12


def to_plain(tuning: ModelTuning) -> dict[str, Any]:
    """Return everything that the page shows, as values that JSON can hold.

    Returns
    -------
    dict
        'schema' (the number of this layout), 'facts', 'problems', 'model', 'skipped' and 'notes'.
        A problem has all its candidates under 'rows', each as
        `cudnnlite.workbench.tuning.entries.row_to_plain` writes it; 'chosen', 'runner_up' and 'pareto' are
        indices of these; the runner-up runs another kernel than the choice.  'kernels' has lists of
        indices: the rows of a list were timed as one.  'tflops' and 'roofline' (a share) of a row
        are None if the peaks of the device are not known.  The 'gains' of a model compare the
        choices with the candidates that "cudnnFind" and the "heuristic" rank first: how many times
        as fast the choices are, the math types of those candidates, and the number of problems for
        which both times are known; None if there is no such problem.  A figure that is missing, or
        that is no finite number, is None.
    """
    tunings = tuning.tunings
    model = {
        "calls": sum(tuned.count for tuned in tunings),
        "chosen": len(tunings) - len(tuning.failed),
        "from_cache": tuning.remembered,
        "total_ms": tuning.total_ms,
        "gains": {"cudnnFind": _gain(tuning, "find_ms"), "heuristic": _gain(tuning, "heuristic")},
        "workspace": max(
            (tuned.chosen.workspace for tuned in tunings if tuned.chosen), default=None
        ),
        "shared_workspace": [{"workspace": size, "total_ms": ms} for size, ms in tuning.pareto()],
    }
    problems = [_problem(tuned, tuning.policy) for tuned in tunings]
    skipped = [{"name": node.name, "what": node.what, "why": node.why} for node in tuning.skipped]
    plain: dict[str, Any] = _plain(
        {
            "schema": SCHEMA,
            "facts": tuning.facts,
            "problems": problems,
            "model": model,
            "skipped": skipped,
            "notes": tuning.notes,
        }
    )
    return plain


def write_html(path: Path, tuning: ModelTuning) -> None:
    """Write the page, which contains its style and loads nothing.

    The same results give the same bytes.

    Raises
    ------
    ArgumentError, MissingPackageError
        The file cannot be written; jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise MissingPackageError(
            f"the report needs jinja2 ({error}): pip install 'cudnnlite[report]'"
        ) from error
    environment = Environment(
        loader=PackageLoader("cudnnlite.workbench.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "printable": printable,
        "size": format_size,
        "kind": lambda head: (head, "number" if head in NUMERIC else "name"),
        "figure": lambda value, form=".4g": figure(value, form) or "-",
        "names_of": lambda table, indices: ", ".join(named(table[index]) for index in indices),
    }
    environment.filters |= filters
    tunings = tuning.tunings
    page = environment.get_template("report.html").render(
        **to_plain(tuning),
        tunings=tunings,
        cells=[tuned.table.cells() for tuned in tunings],
        bars=[_bars(tuned.table) for tuned in tunings],
        unit=time_unit(tuning.policy),
    )
    with refused_as(ArgumentError, f"path={str(path)!r} cannot be written"):
        write_named_file(path, page.encode("utf-8", errors="replace"))


def _gain(tuning: ModelTuning, rank: str) -> dict[str, Any] | None:
    """Return how many times as fast the choices are as the rows that a field ranks first.

    None if no problem has both. Only rows that may be chosen count.
    """
    ranked_ms, chosen_ms, problems = 0.0, 0.0, 0
    math_types: set[str] = set()
    for tuned in tuning.tunings:
        ranked_rows = [row for row in tuned.table if row.ok and getattr(row, rank) is not None]
        total_ms = tuned.total_ms(tuning.policy)
        if not ranked_rows or not total_ms:
            continue
        first = min(ranked_rows, key=lambda row: getattr(row, rank))
        # If the call was not timed, the device time is used, which is a lower bound.
        first_ms = cost(first, tuning.policy) or first.time_ms or 0.0
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
    """Return a problem with all its rows, as `to_plain` describes it."""
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
        "pareto": _front_of(tuned.table),
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


def _bars(table: AlgorithmTable) -> dict[int, float]:
    """Return the lengths of the bars of the rows that were timed, in percent of the longest."""
    times = _times(table)
    if not times:
        return {}
    longest_ms = min(max(times.values()), _CUT * min(times.values())) or 1.0
    return {index: 100 * min(ms / longest_ms, 1.0) for index, ms in times.items()}


def _front_of(table: AlgorithmTable) -> list[int]:
    """Return the indices of the table's Pareto front, the one with the least workspace first."""
    places = {id(table[index]): index for index in _times(table)}
    return [places[id(row)] for row in reversed(table.pareto("device")) if id(row) in places]


def _times(table: AlgorithmTable) -> dict[int, float]:
    """Return the times of the rows that can be used and were timed, by index."""
    return {
        index: row.time_ms for index, row in enumerate(table) if row.ok and row.time_ms is not None
    }
