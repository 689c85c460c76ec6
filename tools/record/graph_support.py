"""Record, on a GPU, what cuDNN does of graphs without convolutions, and of gradients with uneven padding.

    python -m tools.record.graph_support OUT.json [PART PARTS]

For each graph of `graph_cases`: the status of the first engine that the heuristics A and FALLBACK name and
that becomes a plan, that engine, and the largest error of an output relative to its largest value,
against formulas in float64.  Graphs that cuDNN is known to compute wrongly are recorded as well.
One part of several is recorded where that is asked; the rows of all of them are put together by
`merge`.  The table of the tests was recorded on an H100 (2026-11-26).  Three of its graphs ended
the process and were entered by hand, "PROCESS_ENDED".
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

import cudnnlite as dnn
from cudnnlite.errors import CudnnError
from cudnnlite.graph.engines import configurations, configure
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.numbers import NumbersInMemory
from cudnnlite.graph.selection import HEURISTICS_OF_PLANS
from tools.record.graph_cases import FAMILIES, Array, Case, Key, combinations
from tools.record.support import upload, write


class Outcome(NamedTuple):
    """What became of a graph.

    Attributes
    ----------
    status : str
        "SUCCESS", "NONE_NAMED" where the heuristics name nothing, "REFUSED_BY_US", or the status
        with which cuDNN refused the graph or the last engine.
    engine : str
        Which one ran or refused, with its notes; "graph" where that was refused.
    error : float, str or None
        Of the worst output; "inf" where it is not finite, or something was left unwritten.
    """

    status: str
    engine: str = ""
    error: float | str | None = None


def record(handle: dnn.Handle, key: Key) -> Outcome:
    """Return what becomes of the graph of a key."""
    family, *options = key
    try:
        case = FAMILIES[family](*options)
    except dnn.ArgumentError as error:
        return Outcome("REFUSED_BY_US", str(error)[:80])
    with ExitStack() as stack:
        try:
            native = lower(case.graph, handle, stack)
        except CudnnError as error:
            return Outcome(error.status.name, "graph")
        outcome = Outcome("NONE_NAMED")
        for configuration in configurations(native, HEURISTICS_OF_PLANS, stack):
            notes = "+".join(sorted(note.name for note in configuration.numerical))
            engine = f"{configuration.engine}: {notes}"
            try:
                with ExitStack() as trial:
                    configured = configure(native, configuration.engine, trial)
                    numbers = NumbersInMemory(case.graph.scalars)
                    call = ExecutionPlan(native, configured, trial, numbers)
                    return Outcome("SUCCESS", engine, run(handle, case, call))
            except CudnnError as error:
                outcome = Outcome(error.status.name, engine)
        return outcome


def run(handle: dnn.Handle, case: Case, call: ExecutionPlan) -> float | str:
    """Make a call over poisoned outputs, and return the largest error."""
    records = case.graph.inputs | case.graph.outputs
    specs = {name: record.spec for name, record in records.items()}
    arrays = {name: upload(handle, specs[name], case.stored[name]) for name in case.graph.inputs}
    for name in case.graph.outputs:
        arrays[name] = handle.empty(specs[name])
        handle.device.fill(arrays[name].ptr, arrays[name].nbytes, 0xFF, handle.stream)
    scratch = 0
    if call.workspace:
        scratch = handle.workspace.reserve(call.workspace, handle.stream)
    call.replace(scratch, **{name: array.ptr for name, array in arrays.items()})
    call()
    errors = [error_of(arrays[name].numpy(), expected) for name, expected in case.expected.items()]
    worst = max(errors, default=0.0)
    return float(f"{worst:.1e}") if np.isfinite(worst) else "inf"


def error_of(result: Array, expected: Array) -> float:
    """Return the largest error relative to the largest value; infinity where one is no number."""
    largest = np.abs(expected).max() or 1.0
    error = np.abs(result.astype(np.float64) - expected).max() / largest
    return float(error) if np.isfinite(error) else np.inf


def merge(path: str, *parts: str) -> None:
    """Put the rows of all parts together, in the order of the combinations."""
    tables = [json.loads(Path(part).read_text()) for part in parts]
    outcomes = {json.dumps(key): row for table in tables for key, row in table["rows"]}
    rows = [
        [key, outcomes[json.dumps(key)]] for key in combinations() if json.dumps(key) in outcomes
    ]
    write(path, rows, about=tables[0]["about"])


def main(path: str, part: str = "0", parts: str = "1", device: str = "cuda") -> None:
    """Record every combination of one part."""
    rows = []
    with dnn.Handle(device) as handle:
        about = {"device": handle.device.name, "cudnn": handle.version}
        for key in list(combinations())[int(part) :: int(parts)]:
            rows.append([key, record(handle, key)])
            if len(rows) % 50 == 0:
                write(path, rows, about=about)
    write(path, rows, about=about)


if __name__ == "__main__":
    if sys.argv[1] == "merge":
        merge(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
