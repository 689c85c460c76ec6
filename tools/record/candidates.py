"""Record, on a GPU, the times of all candidates for the layers of networks, and the database.

    python -m tools.record.candidates TIMES.jsonl [--seconds N] [--part-of 2 --which 0]
    python -m tools.record.candidates TIMES.jsonl ... --database DATABASE.json

The first command measures problems that neither the file nor the shipped database has, those of
families with few choices first, and adds a line for each.  `--which` is the part of the problems
that this process measures, so that each GPU has its own.  The second command measures nothing: it
puts the choice of each line into a database, as `cudnnlite cache record` would.

`tools/benchmarks/candidate_order.py` says by these times in which order to try candidates.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import cudnnlite as dnn
from cudnnlite.autotune.database import best_on_any_host, read_database, write_database
from cudnnlite.bench.networks import network_problems
from cudnnlite.search.database import (
    SHIPPED,
    digest_of,
    family_of,
    row_from_plain,
    row_to_plain,
)

# The times of a candidate that are kept, in the order of a line.
TIMES = ("heuristic", "time_ms", "spread_ms", "call_us", "host_us")
# Fewer samples than in a user's tuning, for more problems.
TIMING = {"rounds": 5, "further_rounds": 6, "most_further": 1, "calls_ms": 1.0}


class Measured(NamedTuple):
    """A problem's digest and family, and the candidates that work, with their times."""

    digest: str
    family: str
    rows: tuple[dnn.AlgorithmResult, ...]


def policy_for(problem):
    """Return the policy of the measurement, without candidates that never won.

    On an H100 no algorithm of the descriptor call was the fastest call for any of 981 convolutions
    and gradients, and no conversion for any of 541 with channels last.
    """
    if not problem.kind.startswith("convolution"):
        return dnn.TuningPolicy()
    is_last = "channels last" in family_of(problem)
    return dnn.TuningPolicy(interface="graph", layouts=() if is_last else None)


def line_of(problem, table):
    """Return a line of the file."""
    rows = [
        [row_to_plain(row), *(getattr(row, name) for name in TIMES)]
        for row in table
        if row.ok and not row.replay and row.time_ms is not None
    ]
    return json.dumps([digest_of(problem), family_of(problem), rows], separators=(",", ":"))


def read(paths):
    """Yield what was measured, from the files of several processes."""
    for path in paths:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            digest, family, rows = json.loads(line)
            yield Measured(digest, family, tuple(map(_row_of, rows)))


def _row_of(plain):
    row, *times = plain
    return replace(row_from_plain(row), **dict(zip(TIMES, times, strict=True)))


def problems_to_measure(known):
    """Return the problems without a choice, those of families with few choices first."""
    shipped = [read_database(path) for path in SHIPPED.glob("*.json")]
    sizes = Counter()
    for database in shipped:
        for family, rows in database.families.items():
            sizes[family] += len(rows)
    problems = [
        problem
        for problem in network_problems()
        if digest_of(problem) not in known
        and not any(database.find(problem) for database in shipped)
    ]
    return sorted(problems, key=lambda problem: sizes[family_of(problem)])


def measure(path, arguments):
    """Measure problems until the time is up, and add a line for each."""
    begin = time.perf_counter()
    known = {measured.digest for measured in read([path])} if path.exists() else set()
    problems = problems_to_measure(known)[arguments.which :: arguments.part_of]
    num_new = 0
    with dnn.Handle(arguments.device) as handle, path.open("a", encoding="utf-8") as file:
        handle.timing = handle.timing._replace(**TIMING)
        for problem in problems:
            if time.perf_counter() - begin > arguments.seconds:
                break
            tuner = dnn.Tuner(handle, ":memory:", policy_for(problem))
            try:
                table = tuner.tune(problem)
            except (dnn.CudnnError, dnn.DeviceMemoryError, dnn.ArgumentError) as error:
                print(f"{problem}: {error}")
                continue
            if any(row.transient for row in table):
                print(f"{problem}: a candidate lacked memory")
                continue
            file.write(line_of(problem, table) + "\n")
            file.flush()
            num_new += 1
    print(f"{path}: {num_new} new problems, {len(problems) - num_new} left")


def put_choices(paths, target):
    """Put the choices of all files into a database that is there."""
    database = read_database(target)
    num_before = len(database)
    for measured in read(paths):
        choice = best_on_any_host(measured.rows)
        if choice is not None:
            rows = database.families.setdefault(measured.family, {})
            rows[measured.digest] = row_to_plain(choice)
    database.cudnnlite = dnn.__version__
    write_database(database, target)
    print(f"{target}: {len(database)} choices, {len(database) - num_before} more")


def main():
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="TIMES.jsonl")
    parser.add_argument("--database", type=Path, help="put choices there, and measure nothing")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin nothing after so long")
    parser.add_argument("--part-of", type=int, default=1, help="how many processes share the work")
    parser.add_argument("--which", type=int, default=0, help="of them, from 0")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    if arguments.database:
        put_choices(arguments.files, arguments.database)
        return
    if len(arguments.files) > 1:
        parser.error("name one file to measure")
    measure(arguments.files[0], arguments)


if __name__ == "__main__":
    sys.exit(main())
