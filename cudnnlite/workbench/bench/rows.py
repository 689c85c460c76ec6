"""`BenchRow` and `BenchRun`: the results of a benchmark as values, as JSON and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any

from cudnnlite.arguments import refused_as
from cudnnlite.errors import ArgumentError
from cudnnlite.files import read_named_file

FORMAT = "cudnnlite bench"
VERSION = 2


@dataclass(frozen=True)
class BenchRow:
    """One candidate for one problem.

    Attributes
    ----------
    problem : str
        The problem in a few words.
    name : str
        The name of the layer, or the name in a list of problems; empty if there is none.
    count : int
        How often the model has the problem.
    key : str
        The options that ask for the problem, by which runs are compared.
    line : str
        The command that repeats the row.
    candidate : str
        The algorithm or engine with its math type; empty if nothing was tried.
    is_chosen : bool
        Whether the tuner, or cuDNN's heuristic where nothing is timed, chooses it.
    status : str
        "ok", or why the candidate cannot be used.
    flops, nbytes : int
        The arithmetic operations of the direct method, and the bytes of all operands.
    device_us, device_spread_us : float or None
        The median of times on the device, and the distance between their quartiles.
    call_us, host_us : float or None
        The wall time of a call in a series, and the time until a call returns.
    tflops, gbps : float or None
        `flops` and `nbytes` over the time on the device, in 10**12 and 10**9 a second.
    roofline : float or None
        `least_us` as a share of the time on the device.
    bound : str
        "arithmetic" or "memory": the peak that `least_us` follows from; empty if none is known.
    unit : str
        The GPU's unit that multiplies, as the peaks name it; empty if none is known.
    least_us : float or None
        The least time that the peaks of the GPU allow.
    error, max_error, ulp : float or None
        The relative L2 error of the results against float64, the largest error relative to the
        largest value, and the largest error in units of the last place.
    why_not_compared : str
        Why there are no errors, if a check found no reference.
    deterministic : bool or None
        Whether cuDNN calls the candidate deterministic; None if it says nothing.
    same_bits : bool or None
        Whether all `runs` gave the same bits; None if there was only one run.
    runs : int
        The number of runs whose bits were compared.
    findings : tuple of str
        What is wrong with the results or with what the call writes.
    workspace : int or None
        The bytes of workspace that a call needs.
    plan_seconds : float or None
        The time until the plan was ready, compilation included.  In the mode "time" the tuner has
        already made a plan, so that compiled kernels are cached.
    kernels : tuple of str
        The names of its kernels, each once, in the order of their first launches, from the CUDA
        graph of a call; empty if it cannot be recorded.
    """

    problem: str
    name: str = ""
    count: int = 1
    key: str = ""
    line: str = ""
    candidate: str = ""
    is_chosen: bool = False
    status: str = "ok"
    flops: int = 0
    nbytes: int = 0
    device_us: float | None = None
    device_spread_us: float | None = None
    call_us: float | None = None
    host_us: float | None = None
    tflops: float | None = None
    gbps: float | None = None
    roofline: float | None = None
    bound: str = ""
    unit: str = ""
    least_us: float | None = None
    error: float | None = None
    max_error: float | None = None
    ulp: float | None = None
    why_not_compared: str = ""
    deterministic: bool | None = None
    same_bits: bool | None = None
    runs: int = 0
    findings: tuple[str, ...] = ()
    workspace: int | None = None
    plan_seconds: float | None = None
    kernels: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the candidate can be used, and nothing is wrong with its results."""
        return self.status == "ok" and not self.findings

    def to_plain(self) -> dict[str, Any]:
        """Return every field as JSON can hold it; numbers that are not finite are texts."""
        plain = asdict(self)
        for name, value in plain.items():
            if isinstance(value, float) and not isfinite(value):
                plain[name] = str(value)
            elif isinstance(value, tuple):
                plain[name] = list(value)
        return plain


_FLOATS = {item.name for item in fields(BenchRow) if "float" in str(item.type)}
_TUPLES = {item.name for item in fields(BenchRow) if str(item.type).startswith("tuple")}


def row_from_plain(plain: Mapping[str, Any]) -> BenchRow:
    """Return the row that `BenchRow.to_plain` wrote; TypeError or ValueError if it is no row."""
    values = dict(plain)
    for name in _FLOATS & set(values):
        if values[name] is not None:
            values[name] = float(values[name])
    for name in _TUPLES & set(values):
        values[name] = tuple(map(str, values[name]))
    row = BenchRow(**values)
    if not isinstance(row.problem, str) or not isinstance(row.status, str):
        raise TypeError("its problem or status is no text")
    return row


@dataclass(frozen=True)
class BenchRun:
    """The results of a benchmark.

    Attributes
    ----------
    rows : tuple of BenchRow
        The rows in the order of the problems; the chosen candidate of a problem is its first row.
    facts : mapping
        The mode, device, versions, clocks, peaks and time.
    """

    rows: tuple[BenchRow, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_real_timing(self) -> bool:
        """Whether its times are those of a GPU."""
        return bool(self.facts.get("has real timing", False))

    @property
    def chosen(self) -> tuple[BenchRow, ...]:
        """One row for each problem: the chosen one, or the one that says why there is none."""
        by_problem: dict[tuple[str, str, str], BenchRow] = {}
        for row in self.rows:
            key = (row.problem, row.name, row.key)
            first = by_problem.setdefault(key, row)
            if row.is_chosen and not first.is_chosen:
                by_problem[key] = row
        return tuple(by_problem.values())

    @property
    def faulty(self) -> tuple[BenchRow, ...]:
        """The rows whose results are wrong, or whose calls write outside of their outputs."""
        return tuple(row for row in self.rows if row.findings)

    @property
    def unserved(self) -> tuple[BenchRow, ...]:
        """The rows of problems for which no candidate can be used."""
        return tuple(row for row in self.chosen if row.status != "ok")

    def to_plain(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "facts": dict(self.facts),
            "rows": [row.to_plain() for row in self.rows],
        }


def run_from_plain(plain: Any, where: str) -> BenchRun:
    """Return the run that `BenchRun.to_plain` wrote; ArgumentError if `plain` is no run.

    `where` is the name of the file in the message.
    """
    if not isinstance(plain, Mapping) or plain.get("format") != FORMAT:
        raise ArgumentError(f'{where} is no saved run: it has no "format": "{FORMAT}"')
    if plain.get("version") != VERSION:
        raise ArgumentError(
            f"{where} has version {plain.get('version')!r}; this cudnnlite reads {VERSION}"
        )
    mistakes = (TypeError, ValueError, KeyError, AttributeError)
    with refused_as(ArgumentError, f"{where} is no saved run", *mistakes):
        rows: Sequence[Any] = plain["rows"]
        return BenchRun(tuple(map(row_from_plain, rows)), dict(plain["facts"]))


def load_run(path: Path) -> BenchRun:
    """Return a run from a file of `cudnnlite bench --json`; ArgumentError if it is none."""
    with refused_as(ArgumentError, f"{path} cannot be read"):
        text = read_named_file(path)
    with refused_as(ArgumentError, f"{path} is not JSON", ValueError, RecursionError):
        plain = json.loads(text.decode())
    return run_from_plain(plain, str(path))
