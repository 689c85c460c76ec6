"""The problems of several batch sizes: what each size takes, and every candidate as lines of CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cudnnlite.autotune.model_tuning import ModelTuning
from cudnnlite.operations.problem_list import ProblemList, summary
from cudnnlite.sizes import format_size
from cudnnlite.texts import aligned, printable

Parts = Mapping[int | None, ModelTuning]  # by the batch size; under None where none was asked for


def joined(lists: Mapping[int | None, ProblemList]) -> ProblemList:
    """Return all that is to be tuned: of several batch sizes the names say of which a problem is."""
    if len(lists) == 1:
        return next(iter(lists.values()))
    every = ProblemList()
    for batch, listed in lists.items():
        for each in listed:
            every.extend([replace(each, names=tuple(f"batch {batch}: {name}" for name in each.names))])
        every.skipped += [node for node in listed.skipped if node not in every.skipped]
        every.notes += [note for note in listed.notes if note not in every.notes]
    return every


def parts_of(tuning: ModelTuning, lists: Mapping[int | None, ProblemList]) -> Parts:
    """Return what was found for each list: of problems that several have, the count and the names are each list's own."""
    found = {tuned.problem: tuned for tuned in tuning.tunings}
    parts = {}
    for batch, listed in lists.items():
        own = [
            found[each.problem]._replace(count=each.count, names=each.names) for each in listed if each.problem in found
        ]
        parts[batch] = replace(tuning, tunings=tuple(own), skipped=(), notes=())
    return parts


def totals_of(parts: Parts) -> dict[str, Any]:
    """Return what each of several batch sizes takes, as a report's facts."""
    found = {}
    for batch, part in parts.items() if len(parts) > 1 else ():
        workspace = max((tuned.chosen.workspace for tuned in part.tunings if tuned.chosen), default=0)
        each = None if part.total_ms is None or batch is None else part.total_ms / batch
        found[str(batch)] = {"ms in all": part.total_ms, "ms a sample": each, "workspace": workspace}
    return {"batches": found} if found else {}


def sweep_lines(parts: Parts) -> list[str]:
    """Return, of several batch sizes, a table for each, and one that compares them."""
    lines: list[str] = []
    for batch, part in parts.items() if len(parts) > 1 else ():
        lines += ["", f"batch {batch}", *map(printable, str(part).splitlines())]
    heading = ("batch", "ms in all", "ms a sample", "samples a second", "workspace")
    rows = [heading]
    for batch, told in totals_of(parts).get("batches", {}).items():
        total, each = told["ms in all"], told["ms a sample"]
        figures = (f"{total:.4f}", f"{each:.4g}", f"{1000 / each:.4g}") if each else ("-", "-", "-")
        rows.append((batch, *figures, format_size(told["workspace"])))
    return [*lines, "", *aligned(rows, heading)] if lines else []


def csv_of(parts: Parts) -> str:
    """Return a line for each candidate of each problem, the chosen ones marked, with a heading."""
    rows = []
    for batch, part in parts.items():
        for tuned in part.tunings:
            what: dict[str, Any] = {} if batch is None else {"batch": batch}
            what |= {"problem": summary(tuned.problem), "names": "; ".join(tuned.names), "count": tuned.count}
            columns = tuned.table.to_dict()
            for index, values in enumerate(zip(*columns.values(), strict=True)):
                rows.append({**what, "chosen": index == tuned.place, **dict(zip(columns, values, strict=True))})
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
