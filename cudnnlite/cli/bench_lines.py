"""The results of a benchmark as lines for people, and as CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from cudnnlite.cli.tunings import csv_text
from cudnnlite.sizes import format_size
from cudnnlite.texts import aligned, counted, figure, printable, yes_or_no
from cudnnlite.workbench.bench.rows import BenchRow, BenchRun

_LONGEST_KERNEL = 48  # characters of a kernel's name in the table; the other outputs have all


class _Column(NamedTuple):
    """A column of the table; it is left out where no row has a value in it."""

    name: str
    cell: Callable[[BenchRow], str]
    is_number: bool = True


def _kernels(row: BenchRow) -> str:
    if not row.kernels:
        return ""
    name = row.kernels[0]
    if len(name) > _LONGEST_KERNEL:
        name = f"{name[:_LONGEST_KERNEL]}..."
    if len(row.kernels) == 1:
        return name
    return f"{name} and {len(row.kernels) - 1} more"


def _outcome(row: BenchRow) -> str:
    texts = [] if row.status == "ok" else [row.status]
    texts += row.findings
    if row.is_chosen and not texts:
        return "chosen"
    return "; ".join(texts) or "ok"


_COLUMNS = (
    _Column("count", lambda row: "" if row.count == 1 else str(row.count)),
    _Column("GFLOP", lambda row: f"{row.flops / 1e9:.4g}"),
    _Column("MB", lambda row: f"{row.nbytes / 1e6:.4g}"),
    _Column("candidate", lambda row: row.candidate, is_number=False),
    _Column("device us", lambda row: figure(row.device_us, ".2f")),
    _Column("+-", lambda row: figure(row.device_spread_us, ".2f")),
    _Column("us a call", lambda row: figure(row.call_us, ".1f")),
    _Column("TFLOP/s", lambda row: figure(row.tflops, ".4g")),
    _Column("GB/s", lambda row: figure(row.gbps, ".4g")),
    _Column("least us", lambda row: figure(row.least_us, ".2f")),
    _Column("roofline", lambda row: figure(row.roofline, ".0%")),
    _Column("bound by", lambda row: row.bound, is_number=False),
    _Column("error", lambda row: figure(row.error, ".1e")),
    _Column("ulp", lambda row: figure(row.ulp, ".3g")),
    _Column("same bits", lambda row: yes_or_no(row.same_bits), is_number=False),
    _Column("workspace", lambda row: "" if row.workspace is None else format_size(row.workspace)),
    _Column("plan s", lambda row: figure(row.plan_seconds, ".3f")),
    _Column("kernel", _kernels, is_number=False),
    _Column("problem", lambda row: row.name or row.problem, is_number=False),
    _Column("outcome", _outcome, is_number=False),
)
_NUMBERS = [column.name for column in _COLUMNS if column.is_number]
_NO_GPU = (
    "the times are not a GPU's: rates, the roofline, what wastes most and the kernels are told of "
    "one alone"
)


def lines_of(run: BenchRun) -> Iterator[str]:
    """Yield the lines for people: the facts, a table, and the line that repeats each row."""
    facts = run.facts
    head = [facts[name] for name in ("device",) if name in facts]
    if "cuDNN" in facts:
        head.append(f"cuDNN {facts['cuDNN']}")
    head.append(f"cudnnlite {facts['cudnnlite']}")
    for name in ("clock", "memory clock", "power limit"):
        if name in facts:
            head.append(f"{name} {facts[name]}")
    yield printable(", ".join(map(str, head)))
    if "peaks" in facts:
        yield printable(f"peaks of {facts['peaks']}")
    heading = [column.name for column in _COLUMNS]
    cells = [[printable(column.cell(row)) for column in _COLUMNS] for row in run.rows]
    yield from aligned([heading, *cells], _NUMBERS, empty=("",))
    reasons = dict.fromkeys(row.why_not_compared for row in run.rows if row.why_not_compared)
    for reason in reasons:
        yield f"not compared with float64: {reason}"
    yield from model_lines(run)
    if not run.has_real_timing and any(row.device_us is not None for row in run.rows):
        yield _NO_GPU
    yield "to repeat a row:"
    for row in run.rows:
        if row.status == "ok" or not row.candidate:
            yield f"  {printable(row.line)}"


def model_lines(run: BenchRun) -> Iterator[str]:
    """Yield lines with the time of all problems, and the one that wastes the most time.

    Nothing for a single problem, and without times of a GPU.
    """
    wastes = {}
    device_us = least_us = 0.0
    for row in run.chosen:
        if row.device_us is None or row.least_us is None or row.roofline is None:
            continue
        device_us += row.count * row.device_us
        least_us += row.count * row.least_us
        wastes[row] = row.count * (row.device_us - row.least_us)
    if len(wastes) < 2:
        return
    worst = max(wastes, key=lambda row: wastes[row])
    yield (
        f"{len(wastes)} problems: {device_us / 1e3:.4g} ms on the device, "
        f"the least time is {least_us / 1e3:.4g} ms ({least_us / device_us:.0%})"
    )
    yield printable(
        f"furthest above its least time: {worst.name or worst.problem}, "
        f"by {wastes[worst] / 1e3:.4g} ms in {counted(worst.count, 'call')}"
    )


def csv_of(run: BenchRun) -> str:
    """Return the rows as CSV with a heading; a missing value is an empty cell."""
    if not run.rows:
        return ""
    plain = [row.to_plain() for row in run.rows]
    heading = [*plain[0]]
    rows = []
    for values in plain:
        cells = []
        for name in heading:
            value = values[name]
            cells.append("; ".join(value) if isinstance(value, list) else value)
        rows.append(cells)
    return csv_text([heading, *rows])
