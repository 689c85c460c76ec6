"""Make and install files of the database of choices: see `cudnnlite.search.database`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import NamedTuple

from cudnnlite.arguments import refused_as
from cudnnlite.autotune.cache import IN_MEMORY, TuningCache
from cudnnlite.autotune.tuner import Tuner
from cudnnlite.devices.device import Device
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import RNNAlgo
from cudnnlite.errors import ArgumentError, CudnnError, DeviceMemoryError, TuningCacheError
from cudnnlite.files import write_atomically
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.search.contest import ranked
from cudnnlite.search.database import (
    Database,
    current_setting,
    file_name_of,
    merged_families,
    parse_setting,
    read_database,
    version_of,
)
from cudnnlite.version import __version__

# The file is written again after this time of recording.
_WRITE_SECONDS = 5.0
# Microseconds that a call takes a typical host and a slow one, for the candidate that takes it the
# least.  With eight recordings on hosts of H100s the medians were 7.5 to 11 us.
_TYPICAL_HOST_US = 8.0
_SLOW_HOST_US = 12.0
# Of calls that take up to this multiple of the shortest one, the device's time decides.
_CLOSE_CALLS = 1.05
# An engine that cuDNN compiles is chosen only if it is faster than all others by more than this
# factor and this time.  On an H100 compiling took 0.2 to 1.1 s, and 0.05 s once CUDA had kept the
# result.
_GAIN_OF_COMPILED = 1.1
_LEAST_MS_GAINED = 0.002


class Recorded(NamedTuple):
    """The number of problems of a recording, by their fate."""

    num_old: int  # recorded before
    num_new: int
    num_failed: int  # without a choice
    num_left: int  # not recorded yet


def new_database(device: Device) -> Database:
    """Return an empty database for a device; ArgumentError for the emulated one."""
    if not device.has_real_timing:
        raise ArgumentError(
            f"device={device}: times of the emulated device say nothing about a GPU, and are never "
            "recorded"
        )
    facts = device.facts()
    version = version_of(int(device.api.cudnnGetVersion()))
    return Database(facts.name, facts.compute_capability, version, __version__)


def write_database(database: Database, path: Path) -> None:
    """Write a database's file in one step; TuningCacheError if that fails."""
    with refused_as(TuningCacheError, path):
        write_atomically(path, database.to_json().encode("ascii"))


def record_database(
    handle: Handle,
    problems: Iterable[Problem],
    path: Path,
    seconds: float | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Recorded:
    """Measure problems, and write the choices to a file.

    A file that is there is continued: its problems are not measured again.  It is written every few
    seconds and at the end, also after an interrupt.  After `seconds` no other problem is begun.
    `report` receives a line for each problem without a choice.

    ArgumentError for the emulated device, or if the file is that of another GPU or cuDNN.
    """
    database = new_database(handle.device)
    free_bytes, _ = handle.device.memory_info()
    if path.exists():
        database = _continued(path, database)
    begin = written_at = time.perf_counter()
    num_old = num_new = num_failed = num_left = 0
    with TuningCache(IN_MEMORY) as cache:
        tuner = Tuner(handle, cache)
        try:
            for problem in problems:
                if database.find(problem) is not None:
                    num_old += 1
                    continue
                if seconds is not None and time.perf_counter() - begin > seconds:
                    num_left += 1
                    continue
                try:
                    database.put(problem, _recorded_choice(tuner, problem, free_bytes))
                    num_new += 1
                except (ArgumentError, CudnnError, DeviceMemoryError) as error:
                    num_failed += 1
                    report(f"{problem}: {error}")
                if time.perf_counter() - written_at > _WRITE_SECONDS:
                    write_database(database, path)
                    written_at = time.perf_counter()
        finally:
            write_database(database, path)
    return Recorded(num_old, num_new, num_failed, num_left)


def _continued(path: Path, database: Database) -> Database:
    """Return the database in a file, which has to be of the same GPU and cuDNN."""
    continued = read_database(path)
    for name in ("gpu", "compute_capability", "cudnn"):
        if getattr(continued, name) != getattr(database, name):
            raise ArgumentError(
                f"{path} is of {name}={getattr(continued, name)!r}; here it is "
                f"{getattr(database, name)!r}"
            )
    return continued


def _recorded_choice(tuner: Tuner, problem: Problem, free_bytes: int) -> AlgorithmResult:
    """Measure a problem, and return the choice for the database; ArgumentError if there is none.

    `free_bytes` is the device's memory that was free before.
    """
    table = tuner.tune(problem)
    refuse_incomplete(table, problem, free_bytes)
    choice = best_on_a_typical_host(table)
    if choice is None:
        raise ArgumentError("no candidate works")
    return choice


def refuse_incomplete(table: AlgorithmTable, problem: Problem, free_bytes: int) -> None:
    """Raise ArgumentError if a candidate failed that may be the best another time.

    That is one for which memory was lacking, though it fits what was free before.
    """
    operand_bytes = sum(spec.nbytes for spec in problem.specs.values())
    for row in table:
        if row.transient and operand_bytes + row.workspace <= free_bytes:
            raise ArgumentError(f"{row.algorithm} failed, perhaps temporarily: {row.why_not}")


class _Call(NamedTuple):
    """A candidate, and the milliseconds of its call on a typical host; infinite if not timed."""

    row: AlgorithmResult
    ms: float


def best_on_a_typical_host(rows: Iterable[AlgorithmResult]) -> AlgorithmResult | None:
    """Return the row with the shortest call on a typical host, or None.

    A call takes the time of the device or of the host, whichever is longer.  Hosts differ, but the
    ratio of two candidates' times does not, as one may launch more kernels than the other.  So a
    call is computed from the times of both; how long it was on the host of the recording does not
    count.  Of calls that are about as short the device's time decides, and then the workspace.  An
    engine that cuDNN compiles has to be clearly faster than the others, because it makes the first
    call long.  Replayed rows are left out, and so is PERSIST_DYNAMIC: cuDNN compiles it for up to a
    minute.
    """
    eager = [
        row
        for row in rows
        # Algorithms of other operations have the same numbers.
        if row.ok and not row.replay and row.algorithm is not RNNAlgo.PERSIST_DYNAMIC
    ]
    calls = _worth_compiling(_calls_on_a_typical_host(eager))
    cutoff_ms = _CLOSE_CALLS * min((call.ms for call in calls), default=inf)
    close = [replace(call.row, host_us=None) for call in calls if call.ms <= cutoff_ms]
    return next(iter(ranked(close)), None)


def _calls_on_a_typical_host(rows: Sequence[AlgorithmResult]) -> list[_Call]:
    """Return the calls of rows; where the host was not timed, the device's time counts."""
    hosts_us = [row.host_us for row in rows if row.host_us is not None]
    # A longer least time says more about the candidates than about the host.
    host_ratio = _TYPICAL_HOST_US / min([_SLOW_HOST_US, *hosts_us])

    def call_of(row: AlgorithmResult) -> _Call:
        if row.time_ms is None:
            return _Call(row, inf)
        host_ms = host_ratio * (row.host_us or 0.0) / 1000
        return _Call(row, max(row.time_ms, host_ms))

    return list(map(call_of, rows))


def _worth_compiling(calls: Sequence[_Call]) -> Sequence[_Call]:
    """Return the calls without engines that cuDNN compiles for little gain.

    If there are no others, as for attention, all are returned.
    """
    ready_ms = min((call.ms for call in calls if not call.row.compiled), default=inf)
    if ready_ms == inf:
        return calls
    cutoff_ms = min(ready_ms / _GAIN_OF_COMPILED, ready_ms - _LEAST_MS_GAINED)
    return [call for call in calls if not call.row.compiled or call.ms < cutoff_ms]


def _with_installed(database: Database, target: Path) -> Database:
    """Return a database with the rows of an installed file that it lacks."""
    if not target.exists():
        return database
    try:
        installed = read_database(target)
    except ArgumentError as error:
        raise ArgumentError(
            f"{error}. It was installed before, and may be removed: this cudnnlite does not use it"
        ) from error
    return replace(database, families=merged_families([installed, database]))


def install_database(source: Path) -> Path:
    """Add a database's choices to those in the folder where they are looked up; return the file.

    Earlier choices stay for the problems that `source` has none for.

    ArgumentError if one of the two files is no database, or if `CUDNNLITE_DATABASE` is "off" or the
    path of a file.
    """
    database = read_database(source)
    folder = parse_setting(current_setting())
    if folder is None:
        raise ArgumentError("CUDNNLITE_DATABASE=off: no database is used")
    if folder.is_file():
        raise ArgumentError(f"{folder} is a file; CUDNNLITE_DATABASE has to name a folder")
    target = folder / file_name_of(database)
    write_database(_with_installed(database, target), target)
    return target
