"""Record, on a GPU, the times of all candidates for the layers of networks, and the database.

    python -m tools.record.candidates TIMES.jsonl [--seconds N] [--part-of 2 --which 0]
    python -m tools.record.candidates TIMES.jsonl [--list NAMES] [--family TEXT] [--again]
    python -m tools.record.candidates TIMES.jsonl ... --database DATABASE.json

The first command measures problems that neither the file nor the shipped database has, those of
families with few choices first, and adds a line for each.  `--which` is the part of the problems
that this process measures, so that each GPU has its own.  The second one measures the problems of
some networks or families, with `--again` also those of the database.  The last measures nothing: it
puts the choice of each line into a database of the same GPU and cuDNN, and removes problems that no
network has any more.  `cudnnlite cache record` chooses alike, but has more candidates: see
`policy_for`.  The first line of a file says on what it was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import cudnnlite as dnn
from cudnnlite.autotune.database import (
    best_on_a_typical_host,
    new_database,
    refuse_incomplete,
    write_database,
)
from cudnnlite.bench.networks import network_problems
from cudnnlite.search.database import (
    SHIPPED,
    Database,
    digest_of,
    family_of,
    merged_families,
    read_database,
    row_from_plain,
    row_to_plain,
)

# The fields of a candidate that are kept beside its row of a database, in the order of a line.
FIELDS = ("heuristic", "time_ms", "spread_ms", "call_us", "host_us", "compiled")
# Fewer samples than in a user's tuning, for more problems.
TIMING = {"rounds": 5, "further_rounds": 6, "most_further": 1, "calls_ms": 1.0}
# Tensor cores take the channels in groups of eight.
_FEW_CHANNELS = 8


class Measured(NamedTuple):
    """A problem's digest and family, and the candidates that work, with their times."""

    digest: str
    family: str
    rows: tuple[dnn.AlgorithmResult, ...]


def policy_for(problem):
    """Return the policy of the measurement, with the candidates that may win.

    With channels last and fewer than eight of them, as in images, those are all: an algorithm of
    the descriptor call was 2.4 times as fast as the best engine.  For other convolutions none was
    the fastest call, of 981 convolutions and gradients on an H100, so engines alone are measured.
    They convert operands where channels come first, and for depthwise filters: a conversion was the
    fastest call for 104 of 188 large or one-dimensional ones, and for none of 541 other problems
    with channels last.
    """
    if not problem.kind.startswith("convolution"):
        return dnn.TuningPolicy()
    x = problem.specs["x" if "x" in problem.specs else "dx"]
    if x.is_channels_last and x.shape[1] < _FEW_CHANNELS:
        return dnn.TuningPolicy()
    may_convert = not x.is_channels_last or "depthwise" in family_of(problem)
    return dnn.TuningPolicy(interface="graph", layouts=None if may_convert else ())


def line_of(problem, table):
    """Return a line of the file."""
    rows = [
        [row_to_plain(row), *(getattr(row, name) for name in FIELDS)]
        for row in table
        if row.ok and not row.replay and row.time_ms is not None
    ]
    return json.dumps([digest_of(problem), family_of(problem), rows], separators=(",", ":"))


def origin_of(database):
    """Return a file's first line: what the times were measured on."""
    return {"gpu": database.gpu, "capability": database.compute_capability, "cudnn": database.cudnn}


def read(paths, origin=None):
    """Yield what was measured, each problem once, from the files of several processes.

    SystemExit if a file is not of `origin`, if that is given, or has other fields.
    """
    digests = set()
    for path in paths:
        head, *lines = Path(path).read_text(encoding="utf-8").splitlines()
        if origin is not None and json.loads(head) != origin:
            raise SystemExit(f"{path} is of {head}; needed: {origin}")
        for line in lines:
            digest, family, rows = json.loads(line)
            if any(len(row) != 1 + len(FIELDS) for row in rows):
                raise SystemExit(
                    f"{path} has other fields than {', '.join(FIELDS)}: record it again"
                )
            if digest not in digests:
                digests.add(digest)
                yield Measured(digest, family, tuple(map(_row_of, rows)))


def _row_of(plain):
    row, *values = plain
    return replace(row_from_plain(row), **dict(zip(FIELDS, values, strict=True)))


def shipped_database():
    """Return the choices of all databases that come along."""
    families = merged_families(map(read_database, SHIPPED.glob("*.json")))
    return Database("", "", "", families=families)


def problems_to_measure(known, which, part_of, *, names=None, family="", again=False):
    """Return the unknown problems of a part of those that no shipped database has.

    Those of families with few choices come first.  `names` are networks; the default is all.  The
    names of their families contain `family`.  With `again` it does not matter what is shipped.
    """
    shipped = shipped_database()
    problems = [
        problem
        for problem in network_problems(names)
        if family in family_of(problem) and (again or not shipped.find(problem))
    ]
    # A part is the same when the process starts again, whatever was measured before.
    ordered = sorted(
        problems, key=lambda problem: len(shipped.families.get(family_of(problem), ()))
    )
    return [problem for problem in ordered[which::part_of] if digest_of(problem) not in known]


def measure(path, arguments):
    """Measure problems until the time is up, and add a line for each."""
    begin = time.perf_counter()
    num_new = 0
    with dnn.Handle(arguments.device) as handle:
        origin = origin_of(new_database(handle.device))
        if not path.exists():
            path.write_text(json.dumps(origin) + "\n", encoding="utf-8")
        known = {measured.digest for measured in read([path], origin)}
        problems = problems_to_measure(
            known,
            arguments.which,
            arguments.part_of,
            names=arguments.list.split(",") if arguments.list else None,
            family=arguments.family,
            again=arguments.again,
        )
        free_bytes, _ = handle.device.memory_info()
        handle.timing = handle.timing._replace(**TIMING)
        for problem in problems:
            if time.perf_counter() - begin > arguments.seconds:
                break
            try:
                table = dnn.Tuner(handle, ":memory:", policy_for(problem)).tune(problem)
                refuse_incomplete(table, problem, free_bytes)
            except (dnn.CudnnError, dnn.DeviceMemoryError, dnn.ArgumentError) as error:
                print(f"{problem}: {error}")
                continue
            with path.open("a", encoding="utf-8") as file:
                file.write(line_of(problem, table) + "\n")
            num_new += 1
    print(f"{path}: {num_new} new problems, {len(problems) - num_new} left")


def put_choices(paths, target):
    """Put the choices of all files into a database that is there, of the same GPU and cuDNN.

    Problems that no network has any more are removed.
    """
    database = read_database(target)
    num_before = len(database)
    problems = {digest_of(problem): problem for problem in network_problems()}
    for measured in read(paths, origin_of(database)):
        choice = best_on_a_typical_host(measured.rows)
        if choice is not None and measured.digest in problems:
            database.put(problems[measured.digest], choice)
    for rows in database.families.values():
        for digest in rows.keys() - problems.keys():
            del rows[digest]
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
    parser.add_argument("--list", help="measure these networks, as replknet,mamba; all by default")
    parser.add_argument(
        "--family", default="", help="measure families whose names contain this text"
    )
    parser.add_argument("--again", action="store_true", help="measure what the database has, too")
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
