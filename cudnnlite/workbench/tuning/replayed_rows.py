"""Rows of replayed calls: what a search adds where launched CUDA graphs may win."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from cudnnlite import AlgorithmResult
from cudnnlite.errors import CudnnError, DeviceMemoryError
from cudnnlite.workbench.tuning.contest import ranked

# Lower bound for the host time of a graph launch with copies of its operands; 24 us were measured.
_LEAST_LAUNCH_US = 20.0
# Rows that are tried: to record and measure one takes 10 ms and more.
_MAX_TRIED = 2
# The best call must take this many times the device's time, or there is little to gain.
_LEAST_GAIN = 1.1


def with_replay(
    rows: Sequence[AlgorithmResult], measure: Callable[[AlgorithmResult], Any]
) -> list[AlgorithmResult]:
    """Return rows of eager calls, with those of replayed calls that were measured beside them.

    Parameters
    ----------
    rows : sequence of AlgorithmResult
        The rows with the times of eager calls.
    measure : callable
        A function that makes a plan with ``replay=True`` for a row, calls it twice, each time with
        another output array, and returns its `replay`.

    Returns
    -------
    list of AlgorithmResult
        Ranked by the time of a call.
    """
    ranking = list(rows)
    for row in _candidates(rows):
        try:
            replay = measure(row)
        except (CudnnError, DeviceMemoryError):
            continue
        if replay is not None and replay.costs is not None:
            ranking.append(_replayed(row, replay.costs))
    return ranked(ranking, latency=True)


def _candidates(rows: Sequence[AlgorithmResult]) -> list[AlgorithmResult]:
    """Return the rows that may win when they are replayed: those that take the device the least.

    Rows with equal times come from one measurement; only the first of them is tried.
    """
    best_call_us = min(
        (row.call_us for row in rows if row.ok and row.call_us is not None), default=0.0
    )
    by_times: dict[tuple[float, float], AlgorithmResult] = {}
    for row in rows:
        if not row.ok or row.call_us is None or row.time_ms is None:
            continue
        device_us = row.time_ms * 1e3
        if max(_LEAST_GAIN * device_us, _LEAST_LAUNCH_US) < best_call_us:
            by_times.setdefault((device_us, row.call_us), row)
    return [by_times[times] for times in sorted(by_times)[:_MAX_TRIED]]


def _replayed(row: AlgorithmResult, costs: Any) -> AlgorithmResult:
    """Return the row of the same call, replayed by way of the plan's buffers."""
    # The replay measured the C call alone; the plan's checks come on top.
    checks_us = max(0.0, (row.call_us or 0.0) - costs.eager_us)
    return replace(
        row,
        replay=True,
        heuristic=None,
        call_us=costs.staged_us + checks_us,
        host_us=None,
        call_spread_us=None,
        remark="",
    )
