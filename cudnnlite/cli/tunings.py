"""The results of a tuning as lines and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from cudnnlite import AlgorithmResult
from cudnnlite.enums import Status
from cudnnlite.problems.results import named
from cudnnlite.problems.table import NUMERIC
from cudnnlite.sizes import format_size
from cudnnlite.texts import aligned, counted, printable
from cudnnlite.workbench.tuning.cache import parse_cache_path
from cudnnlite.workbench.tuning.model_tuning import ModelTuning
from cudnnlite.workbench.tuning.policy import TuningPolicy
from cudnnlite.workbench.tuning.problem_list import ProblemList, summary
from cudnnlite.workbench.tuning.tuned_problem import Policy, TunedProblem, cost, time_unit

# How spreadsheets recognise a formula; the last four are the full-width forms of the first four.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_MOST_REASONS = 3  # in a line
Parts = Mapping[int | None, ModelTuning]  # by batch size; under None if none is given


def lines_of(
    tuning: ModelTuning,
    policy: TuningPolicy,
    saved: Path | None,
    *,
    explain: bool,
    tables: Sequence[str] = (),
) -> Iterator[str]:
    """Yield the lines for people, with the candidates of a single problem.

    Parameters
    ----------
    tuning : ModelTuning
        The results.
    policy : TuningPolicy
        The policy of the user.
    saved : Path or None
        The folder that remembers them.
    explain : bool
        Whether to list the candidates of every problem.
    tables : sequence of str
        Lines instead of the summary.
    """
    facts, tunings = tuning.facts, tuning.tunings
    yield f"{facts['device']}, cuDNN {facts['cuDNN']}, cudnnlite {facts['cudnnlite']}"
    if explain or len(tunings) == 1:
        for tuned in tunings:
            yield ""
            yield from candidates(tuned, tuning.policy, every=explain)
    if tables or len(tunings) > 1:
        yield from tables or ("", *map(printable, str(tuning).splitlines()))
        if policy.workspace_limit is not None and not tables:
            yield from workspace_lines(tuning, policy.workspace_limit)
    if saved is not None:
        yield ""
        yield f"saved in {saved}"
        yield f"to use it: with dnn.autotuned({_arguments(policy, saved)}): ..."


def title_of(tuned: TunedProblem) -> str:
    """Return a problem's name in the model, if it has one, and its summary."""
    if tuned.names:
        return f"{tuned.title}: {summary(tuned.problem)}"
    return summary(tuned.problem)


def candidates(tuned: TunedProblem, policy: Policy, *, every: bool = False) -> list[str]:
    """Return the lines of a problem: its candidates, why each was not chosen, and the choice.

    Failed candidates are listed with `every`, and a few of them if nothing was chosen.
    """
    heading, *cells = tuned.table.cells()
    rows = [(*heading[:-1], "outcome")]
    failures: dict[tuple[str, str, str], list[str]] = {}  # algorithm, layout, reason -> math types
    firsts = {first for first, *_ in tuned.table.kernels()}
    for index, (row, reason) in enumerate(zip(tuned.table, tuned.reasons(policy), strict=True)):
        if row.ok and index not in firsts:
            continue  # it is named below
        if row.ok:
            remarks = ["chosen"] if index == tuned.place else []
            if reason:
                remarks.append(reason)
            rows.append((*cells[index][:-1], "; ".join(remarks)))
        else:
            failure = (str(row.algorithm), row.layout, reason)
            failures.setdefault(failure, []).append(str(row.math_type))
    lines = [title_of(tuned)]
    if len(rows) > 1:
        lines += [f"times: {tuned.table.timing}", *aligned(rows, NUMERIC, empty=("-",))]
        lines += tuned.table.same_kernel_lines()
    shown_count = len(failures)
    if tuned.chosen is None and not every:
        shown_count = _MOST_REASONS
    lines += _failure_lines(failures, shown_count)
    if tuned.chosen is None:
        return [*lines, f"none can be chosen: {why_none(tuned)}"]
    return [*lines, _choice_line(tuned.chosen, policy)]


def _failure_lines(
    failures: Mapping[tuple[str, str, str], Sequence[str]], shown_count: int
) -> list[str]:
    """Return a line for each failed candidate, and one for those that are not shown."""
    lines = []
    for (algorithm, layout, reason), math_types in [*failures.items()][:shown_count]:
        details = [*math_types]
        if layout:
            details.append(f"in {layout}")
        lines.append(f"not {algorithm} ({', '.join(details)}): {reason}")
    if len(failures) > shown_count:
        hidden = counted(len(failures) - shown_count, "other")
        lines.append(f"nor {hidden}, which --explain lists")
    return lines


def _choice_line(row: AlgorithmResult, policy: Policy) -> str:
    """Return the line of the candidate that was chosen."""
    time = ""
    time_ms = cost(row, policy)
    if time_ms is not None:
        time = f", {time_ms:.4g} {time_unit(policy)}"
    return f"chosen: {named(row)}{time}, workspace {format_size(row.workspace)}"


def outcome(tuned: TunedProblem) -> str:
    """Return the choice with its time on the device; the tables may have that of a call."""
    row = tuned.chosen
    if row is None:
        return "no algorithm"
    if row.time_ms is None:
        return named(row)
    return f"{named(row)}, {row.time_ms:.4g} ms on the device"


def workspace_lines(tuning: ModelTuning, limit: int | str) -> list[str]:
    """Return the size of one workspace that all problems use in turn, and the times with less."""
    rows = [row for row in tuning.assign(limit) if row is not None]
    if not rows:
        return []
    largest = format_size(max(row.workspace for row in rows))
    allowed = format_size(limit) if isinstance(limit, int) else limit
    heading = ("workspace", f"{time_unit(tuning.policy)} in all")
    sizes = [(format_size(size), f"{total_ms:.4f}") for size, total_ms in tuning.pareto()]
    return [
        f"one workspace for all, used in turn: {largest} of the {allowed} allowed; with less:",
        *aligned([heading, *sizes], heading),
    ]


def why_none(tuned: TunedProblem) -> str:
    """Return in one line why nothing was chosen: by the limits, or else by cuDNN's refusals."""
    by_limits = [row.why_not for row in tuned.table if row.status == Status.SUCCESS and row.why_not]
    by_cudnn = [str(row.status) for row in tuned.table if row.status != Status.SUCCESS]
    reasons = list(dict.fromkeys(by_limits or by_cudnn))
    if not reasons:
        return " ".join(tuned.why_none.split()) or "there is no candidate"
    texts = reasons[:_MOST_REASONS]
    if len(reasons) > _MOST_REASONS:
        texts.append(f"and {counted(len(reasons) - _MOST_REASONS, 'other reason')}")
    return "; ".join(texts)


def _arguments(policy: TuningPolicy, saved: Path) -> str:
    """Return the arguments by which a program finds the saved entry, whose key has the policy."""
    arguments = ["handle"]
    if saved != parse_cache_path(None):
        arguments.append(f"cache={str(saved)!r}")
    values = {field.name: getattr(policy, field.name) for field in fields(policy)}
    defaults = {field.name: field.default for field in fields(policy)}
    options = [f"{name}={value!r}" for name, value in values.items() if value != defaults[name]]
    if options:
        arguments.append(f"policy=dnn.TuningPolicy({', '.join(options)})")
    return ", ".join(arguments)


def join_lists(lists: Mapping[int | None, ProblemList]) -> ProblemList:
    """Return all problems of several batch sizes as one list; names say of which size each is."""
    if len(lists) == 1:
        return next(iter(lists.values()))
    union = ProblemList()
    for batch, problems in lists.items():
        for problem in problems:
            names = tuple(f"batch {batch}: {name}" for name in problem.names)
            union.extend([replace(problem, names=names)])
        union.skipped += [node for node in problems.skipped if node not in union.skipped]
        union.notes += [note for note in problems.notes if note not in union.notes]
    return union


def parts_of(tuning: ModelTuning, lists: Mapping[int | None, ProblemList]) -> Parts:
    """Return the results of each list, with its own counts and names of problems."""
    by_problem = {tuned.problem: tuned for tuned in tuning.tunings}
    parts = {}
    for batch, problems in lists.items():
        tunings = [
            by_problem[entry.problem]._replace(count=entry.count, names=entry.names)
            for entry in problems
            if entry.problem in by_problem
        ]
        parts[batch] = replace(tuning, tunings=tuple(tunings), skipped=(), notes=())
    return parts


def totals_of(parts: Parts) -> dict[str, Any]:
    """Return the time and the workspace of each of several batch sizes, as a report's facts."""
    if len(parts) == 1:
        return {}
    batches = {}
    for batch, part in parts.items():
        rows = [tuned.chosen for tuned in part.tunings if tuned.chosen]
        sample_ms = None
        if part.total_ms is not None and batch is not None:
            sample_ms = part.total_ms / batch
        batches[str(batch)] = {
            "ms in all": part.total_ms,
            "ms a sample": sample_ms,
            "workspace": max((row.workspace for row in rows), default=0),
        }
    return {"batches": batches} if batches else {}


def sweep_lines(parts: Parts) -> list[str]:
    """Return, of several batch sizes, a table for each, and one that compares them."""
    if len(parts) <= 1:
        return []
    unit = time_unit(next(iter(parts.values())).policy)
    lines = []
    for batch, part in parts.items():
        lines += ["", f"batch {batch}", *map(printable, str(part).splitlines())]
    heading = ("batch", f"{unit} in all", f"{unit} a sample", "samples a second", "workspace")
    rows = [heading]
    for batch, facts in totals_of(parts)["batches"].items():
        total_ms, sample_ms = facts["ms in all"], facts["ms a sample"]
        figures = ("-", "-", "-")
        if sample_ms:
            figures = (f"{total_ms:.4f}", f"{sample_ms:.4g}", f"{1000 / sample_ms:.0f}")
        rows.append((batch, *figures, format_size(facts["workspace"])))
    return [*lines, "", *aligned(rows, heading)]


def csv_of(parts: Parts) -> str:
    """Return a line for each candidate of each problem, the chosen ones marked, with a heading."""
    rows: list[dict[str, Any]] = []
    for batch, part in parts.items():
        size = {} if batch is None else {"batch": batch}
        rows += [{**size, **row} for row in part.rows()]
    heading = list(dict.fromkeys(name for row in rows for name in row))
    return csv_text([heading, *([row.get(name) for name in heading] for row in rows)])


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV; a text that looks like a formula gets an apostrophe before it."""
    lines = []
    for row in rows:
        line = io.StringIO(newline="")
        # A writer quotes the characters of its terminator.  It has a carriage return, because
        # spreadsheets begin a row there.
        csv.writer(line, lineterminator="\r\n").writerow(map(_without_formula, row))
        lines.append(line.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines)


def _without_formula(cell: Any) -> Any:
    """Return a cell that is no formula; numbers and a lone "-" stay as they are."""
    if isinstance(cell, str) and len(cell) > 1 and cell.startswith(_FORMULA_STARTS):
        return f"'{cell}"
    return cell
