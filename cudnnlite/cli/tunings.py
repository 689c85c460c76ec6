"""What a tuning found, as text and as plain values: a problem's candidates with the reasons, a line for each of several."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from cudnnlite.autotune.cache import parse_cache_path
from cudnnlite.autotune.model_tuning import ModelTuning
from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.autotune.tuned_problem import Policy, TunedProblem, cost
from cudnnlite.enums import Status
from cudnnlite.problems.problem_list import ProblemList, summary
from cudnnlite.problems.results import named
from cudnnlite.problems.table import NUMERIC
from cudnnlite.report import to_json
from cudnnlite.sizes import format_size
from cudnnlite.texts import aligned, counted, printable

# How spreadsheets recognise a formula; the last four are the full-width forms of the first four.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_MOST_REASONS = 3  # in a line
Parts = Mapping[int | None, ModelTuning]  # by the batch size; under None where none was asked for


def to_plain(tuning: ModelTuning) -> dict[str, Any]:
    """Return everything, as JSON can hold it."""
    skipped = [{"name": node.name, "what": node.what, "why": node.why} for node in tuning.skipped]
    return {
        **to_json(tuning.tunings, tuning.facts),
        "skipped": skipped,
        "notes": list(tuning.notes),
    }


def lines_of(
    tuning: ModelTuning,
    policy: TuningPolicy,
    saved: Path | None,
    *,
    explain: bool,
    tables: Sequence[str] = (),
) -> Iterator[str]:
    """Yield the lines for people: of a single problem, or with `explain` of every one, all candidates too.

    `policy` is as the user gave it; `saved` is the folder that remembers it, if any; `tables` stand
    instead of the summary.
    """
    facts, tunings, limit = tuning.facts, tuning.tunings, policy.workspace_limit
    yield f"{facts['device']}, cuDNN {facts['cuDNN']}, cudnnlite {facts['cudnnlite']}"
    for tuned in tunings if explain or len(tunings) == 1 else ():
        yield from ("", *candidates(tuned, tuning.policy, every=explain))
    if tables or len(tunings) > 1:
        yield from tables or ("", *map(printable, str(tuning).splitlines()))
        yield from (
            ["the times are those of the device"]
            if tuning.policy.get("objective") == "device"
            else []
        )
        yield from () if limit is None or tables else workspace_lines(tuning, limit)
    if saved is not None:
        yield from (
            "",
            f"saved in {saved}",
            f"to use it: with dnn.autotuned({_arguments(policy, saved)}): ...",
        )


def title_of(tuned: TunedProblem) -> str:
    """Return what tells a problem from the others: its name in the model, and what is asked."""
    return f"{tuned.title}: {summary(tuned.problem)}" if tuned.names else summary(tuned.problem)


def candidates(tuned: TunedProblem, policy: Policy, *, every: bool = False) -> list[str]:
    """Return the lines of a problem: each candidate, and why it was not chosen; of a failed one a few, or `every`."""
    heading, *cells = tuned.table.cells()
    reasons = tuned.reasons(policy)
    rows = [(*heading[:-1], "outcome")]
    refused: dict[tuple[str, str, str], list[str]] = {}
    for index, (row, reason) in enumerate(zip(tuned.table, reasons, strict=True)):
        if row.ok:
            why = "; ".join(
                part for part in ("chosen" if index == tuned.place else "", reason) if part
            )
            rows.append((*cells[index][:-1], why))
        else:
            refused.setdefault((str(row.algorithm), row.layout, reason), []).append(
                str(row.math_type)
            )
    lines = [title_of(tuned)]
    if len(rows) > 1:
        lines += [f"times: {tuned.table.timing}", *aligned(rows, NUMERIC, empty=("-",))]
    most = len(refused) if every or tuned.chosen is not None else _MOST_REASONS
    for (algorithm, layout, reason), math_types in [*refused.items()][:most]:
        how = ", ".join([*math_types, *([f"in {layout}"] if layout else [])])
        lines.append(f"not {algorithm} ({how}): {reason}")
    lines += (
        [f"nor {counted(len(refused) - most, 'other')}, which --explain lists"]
        if len(refused) > most
        else []
    )
    if tuned.chosen is None:
        return [*lines, f"none can be chosen: {why_none(tuned)}"]
    each = cost(tuned.chosen, policy)
    time = (
        ""
        if each is None
        else f", {each:.4g} ms{' a call' if policy.get('objective') == 'latency' else ''}"
    )
    return [
        *lines,
        f"chosen: {named(tuned.chosen)}{time}, workspace {format_size(tuned.chosen.workspace)}",
    ]


def outcome(tuned: TunedProblem) -> str:
    """Return what was chosen, and its time, which is the device's; what the tables have may be that of a call."""
    row = tuned.chosen
    if row is None:
        return "no algorithm"
    return named(row) + ("" if row.time_ms is None else f", {row.time_ms:.4g} ms on the device")


def workspace_lines(tuning: ModelTuning, limit: int | str) -> list[str]:
    """Return what one workspace for all problems, used in turn, needs within a limit, and what less of it would cost."""
    rows = [row for row in tuning.assign(limit) if row is not None]
    if not rows:
        return []
    least = format_size(max(row.workspace for row in rows))
    limit_text = format_size(limit) if isinstance(limit, int) else limit
    table = [
        ("workspace", "total ms"),
        *((format_size(size), f"{total:.4f}") for size, total in tuning.pareto()),
    ]
    return [
        f"one workspace for all, used in turn: {least} of the {limit_text} allowed; with less:",
        *aligned(table, table[0]),
    ]


def why_none(tuned: TunedProblem) -> str:
    """Return in one line why nothing was chosen: what limits excluded, or else what cuDNN says."""
    excluded = [row.why_not for row in tuned.table if row.status == Status.SUCCESS and row.why_not]
    refused = [str(row.status) for row in tuned.table if row.status != Status.SUCCESS]
    reasons = list(dict.fromkeys(excluded or refused))
    if not reasons:
        return " ".join(tuned.why_none.split()) or "there is no candidate"
    more = (
        f"; and {counted(len(reasons) - _MOST_REASONS, 'other reason')}"
        if len(reasons) > _MOST_REASONS
        else ""
    )
    return "; ".join(reasons[:_MOST_REASONS]) + more


def _arguments(policy: TuningPolicy, saved: Path) -> str:
    """Return how a program asks for what was saved: the policy is part of what it is remembered under."""
    options = [
        f"{item.name}={value!r}"
        for item in fields(policy)
        if (value := getattr(policy, item.name)) != item.default
    ]
    cache = "" if saved == parse_cache_path(None) else f", cache={str(saved)!r}"
    wanted = f", policy=dnn.TuningPolicy({', '.join(options)})" if options else ""
    return f"handle{cache}{wanted}"


def joined(lists: Mapping[int | None, ProblemList]) -> ProblemList:
    """Return all that is to be tuned: of several batch sizes the names say of which a problem is."""
    if len(lists) == 1:
        return next(iter(lists.values()))
    every = ProblemList()
    for batch, listed in lists.items():
        for each in listed:
            every.extend(
                [replace(each, names=tuple(f"batch {batch}: {name}" for name in each.names))]
            )
        every.skipped += [node for node in listed.skipped if node not in every.skipped]
        every.notes += [note for note in listed.notes if note not in every.notes]
    return every


def parts_of(tuning: ModelTuning, lists: Mapping[int | None, ProblemList]) -> Parts:
    """Return what was found for each list: of problems that several have, the count and the names are each list's own."""
    found = {tuned.problem: tuned for tuned in tuning.tunings}
    parts = {}
    for batch, listed in lists.items():
        own = [
            found[each.problem]._replace(count=each.count, names=each.names)
            for each in listed
            if each.problem in found
        ]
        parts[batch] = replace(tuning, tunings=tuple(own), skipped=(), notes=())
    return parts


def totals_of(parts: Parts) -> dict[str, Any]:
    """Return what each of several batch sizes takes, as a report's facts."""
    found = {}
    for batch, part in parts.items() if len(parts) > 1 else ():
        workspace = max(
            (tuned.chosen.workspace for tuned in part.tunings if tuned.chosen), default=0
        )
        each = None if part.total_ms is None or batch is None else part.total_ms / batch
        found[str(batch)] = {
            "ms in all": part.total_ms,
            "ms a sample": each,
            "workspace": workspace,
        }
    return {"batches": found} if found else {}


def sweep_lines(parts: Parts) -> list[str]:
    """Return, of several batch sizes, a table for each, and one that compares them."""
    lines: list[str] = []
    for batch, part in parts.items() if len(parts) > 1 else ():
        lines += ["", f"batch {batch}", *map(printable, str(part).splitlines())]
    heading = ("batch", "ms in all", "ms a sample", "samples a second", "workspace")
    rows = [heading]
    for batch, facts in totals_of(parts).get("batches", {}).items():
        total, each = facts["ms in all"], facts["ms a sample"]
        figures = (f"{total:.4f}", f"{each:.4g}", f"{1000 / each:.0f}") if each else ("-", "-", "-")
        rows.append((batch, *figures, format_size(facts["workspace"])))
    return [*lines, "", *aligned(rows, heading)] if lines else []


def csv_of(parts: Parts) -> str:
    """Return a line for each candidate of each problem, the chosen ones marked, with a heading."""
    rows = []
    for batch, part in parts.items():
        for tuned in part.tunings:
            what: dict[str, Any] = {} if batch is None else {"batch": batch}
            what |= {
                "problem": summary(tuned.problem),
                "names": "; ".join(tuned.names),
                "count": tuned.count,
            }
            columns = tuned.table.to_dict()
            for index, values in enumerate(zip(*columns.values(), strict=True)):
                rows.append(
                    {
                        **what,
                        "chosen": index == tuned.place,
                        **dict(zip(columns, values, strict=True)),
                    }
                )
    heading = list(dict.fromkeys(name for row in rows for name in row))
    return csv_text([heading, *([row.get(name) for name in heading] for row in rows)])


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV; a text that a spreadsheet would take for a formula gets an apostrophe before it."""
    lines = []
    for row in rows:
        line = io.StringIO(newline="")
        # A writer quotes what is in its line terminator, and spreadsheets begin a row at a carriage
        # return too.
        csv.writer(line, lineterminator="\r\n").writerow(map(_without_formula, row))
        lines.append(line.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines)


def _without_formula(cell: Any) -> Any:
    """Return a cell that is no formula; numbers, negative ones too, and a lone "-" stay as they are."""
    if isinstance(cell, str) and len(cell) > 1 and cell.startswith(_FORMULA_STARTS):
        return f"'{cell}"
    return cell
