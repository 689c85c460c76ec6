"""What a tuning found, as text and as plain values: a problem's candidates with the reasons, a line for each of several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from cudnnlite.autotune.cache import parse_cache_path
from cudnnlite.autotune.model_tuning import ModelTuning
from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.autotune.tuned import Policy, TunedProblem, cost
from cudnnlite.enums import Status
from cudnnlite.operations.problem_list import summary
from cudnnlite.report import to_json
from cudnnlite.search.results import named
from cudnnlite.search.table import NUMERIC
from cudnnlite.sizes import format_size
from cudnnlite.texts import aligned, counted, printable

_MOST_REASONS = 3  # in a line


def to_plain(tuning: ModelTuning) -> dict[str, Any]:
    """Return everything, as JSON can hold it."""
    skipped = [{"name": node.name, "what": node.what, "why": node.why} for node in tuning.skipped]
    return {**to_json(tuning.tunings, tuning.facts), "skipped": skipped, "notes": list(tuning.notes)}


def lines_of(tuning: ModelTuning, policy: TuningPolicy, saved: Path | None, *, explain: bool) -> Iterator[str]:
    """Yield the lines for people: of a single problem, or with `explain` of every one, all candidates too.

    `policy` is as the user gave it; `saved` is the folder that remembers it, if any.
    """
    facts, tunings, limit = tuning.facts, tuning.tunings, policy.workspace_limit
    yield f"{facts['device']}, cuDNN {facts['cuDNN']}, cudnnlite {facts['cudnnlite']}"
    for tuned in tunings if explain or len(tunings) == 1 else ():
        yield from ("", *candidates(tuned, tuning.policy))
    if len(tunings) > 1:
        yield from ("", *map(printable, str(tuning).splitlines()))
        yield from ["the times are those of the device"] if tuning.policy.get("objective") == "device" else []
        yield from () if limit is None else workspace_lines(tuning, limit)
    if saved is not None:
        yield from ("", f"saved in {saved}", f"to use it: with dnn.autotuned({_arguments(policy, saved)}): ...")


def title_of(tuned: TunedProblem) -> str:
    """Return what tells a problem from the others: its name in the model, and what is asked."""
    return f"{tuned.title}: {summary(tuned.problem)}" if tuned.names else summary(tuned.problem)


def candidates(tuned: TunedProblem, policy: Policy) -> list[str]:
    """Return the lines of a problem: every candidate, and why it was not chosen."""
    heading, *cells = tuned.table.cells()
    reasons = tuned.reasons(policy)
    rows = [(*heading[:-1], "outcome")]
    refused: dict[tuple[str, str, str], list[str]] = {}
    for index, (row, reason) in enumerate(zip(tuned.table, reasons, strict=True)):
        if row.ok:
            why = "; ".join(part for part in ("chosen" if index == tuned.place else "", reason) if part)
            rows.append((*cells[index][:-1], why))
        else:
            refused.setdefault((str(row.algorithm), row.layout, reason), []).append(str(row.math_type))
    lines = [title_of(tuned)]
    if len(rows) > 1:
        lines += [f"times: {tuned.table.timing}", *aligned(rows, NUMERIC, empty=("-",))]
    for (algorithm, layout, reason), math_types in refused.items():
        how = ", ".join([*math_types, *([f"in {layout}"] if layout else [])])
        lines.append(f"not {algorithm} ({how}): {reason}")
    if tuned.chosen is None:
        return [*lines, f"none can be chosen: {why_none(tuned)}"]
    each = cost(tuned.chosen, policy)
    time = "" if each is None else f", {each:.4g} ms{' a call' if policy.get('objective') == 'latency' else ''}"
    return [*lines, f"chosen: {named(tuned.chosen)}{time}, workspace {format_size(tuned.chosen.workspace)}"]


def outcome(tuned: TunedProblem) -> str:
    """Return what was chosen, and its time."""
    row = tuned.chosen
    if row is None:
        return "no algorithm"
    return named(row) + ("" if row.time_ms is None else f", {row.time_ms:.4g} ms")


def workspace_lines(tuning: ModelTuning, limit: int | str) -> list[str]:
    """Return what one workspace for all problems, used in turn, needs within a limit, and what less of it would cost."""
    rows = [row for row in tuning.assign(limit) if row is not None]
    if not rows:
        return []
    least = format_size(max(row.workspace for row in rows))
    told = format_size(limit) if isinstance(limit, int) else limit
    table = [("workspace", "total ms"), *((format_size(size), f"{total:.4f}") for size, total in tuning.pareto())]
    return [
        f"one workspace for all, used in turn: {least} of the {told} allowed; with less:",
        *aligned(table, table[0]),
    ]


def why_none(tuned: TunedProblem) -> str:
    """Return in one line why nothing was chosen: what limits excluded, or else what cuDNN says."""
    excluded = [row.why_not for row in tuned.table if row.status == Status.SUCCESS and row.why_not]
    refused = [str(row.status) for row in tuned.table if row.status != Status.SUCCESS]
    reasons = list(dict.fromkeys(excluded or refused))
    if not reasons:
        return " ".join(tuned.why_none.split()) or "there is no candidate"
    more = f"; and {counted(len(reasons) - _MOST_REASONS, 'other reason')}" if len(reasons) > _MOST_REASONS else ""
    return "; ".join(reasons[:_MOST_REASONS]) + more


def _arguments(policy: TuningPolicy, saved: Path) -> str:
    """Return how a program asks for what was saved: the policy is part of what it is remembered under."""
    options = [
        f"{item.name}={value!r}" for item in fields(policy) if (value := getattr(policy, item.name)) != item.default
    ]
    cache = "" if saved == parse_cache_path(None) else f", cache={str(saved)!r}"
    wanted = f", policy=dnn.TuningPolicy({', '.join(options)})" if options else ""
    return f"handle{cache}{wanted}"
