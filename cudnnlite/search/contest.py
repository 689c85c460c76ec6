"""`Contest`: the candidates of a search against each other, timed under the same conditions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.devices.device import refuse_in_capture
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import Status
from cudnnlite.errors import CudnnError, DeviceMemoryError, InternalError, WorkspaceLimitError
from cudnnlite.graph.engines import Engine
from cudnnlite.problems import recording
from cudnnlite.problems.results import AlgorithmResult, named, ranking_ms, within_noise
from cudnnlite.search.timing import CallTime, Stopwatch, Timing

_REFUSALS = (2, 3)  # cuDNN's categories of status: a bad parameter, not supported
_NOISE = "within the noise of the first"
_ALIKE = 1.25  # times by which second looks at one kernel may differ


class Contest(NonCopyable):
    """Candidates that ran, and what their times are, on a handle whose stream can be recorded: see `own_stream`.

    The handle's `timing` says how thoroughly.  With `latency` the time of an eager call decides, instead of the device's; for
    `flush_l2` see `Stopwatch`.
    """

    def __init__(self, handle: Handle, *, latency: bool = False, flush_l2: bool = False) -> None:
        self._latency, self._flushed = latency, ", operands not in the cache" * flush_l2
        self._give_up, self._may_win = handle.timing.give_up, handle.timing.may_win
        self._stopwatch = Stopwatch(
            handle.device, handle.stream, handle.timing, eager=latency, flush_l2=flush_l2
        )
        self._works: dict[Hashable, Callable[[], object]] = {}
        self._firsts: dict[Hashable, float] = {}
        self._kernels: dict[Any, Hashable] = {}  # with the first candidate that ran them
        self._alike: dict[Hashable, list[Hashable]] = {}  # candidates that seem to run one kernel
        self._twins: dict[Hashable, Hashable] = {}
        self._device = handle.device
        self.memory = handle.device.memory_info()[1]  # what the device has in all
        self.replayed = False

    def enter(self, key: Hashable, work: Callable[[], object], looks: Hashable = None) -> None:
        """Run a candidate's work for the first time; it must be harmless to run it again.

        A kernel that stands for several candidates is timed once, since noise alone would rank them.  The emulated device
        says which one it runs; elsewhere it is one where candidates have the same `looks`, if any, and take about as long.
        """
        first = self._stopwatch.first(work)
        ran = self._device.emulated_functions
        if ran and (twin := self._kernels.setdefault(ran, key)) != key:
            self._twins[key] = twin
            self._firsts[twin] = min(self._firsts[twin], first)
            return
        self._works[key], self._firsts[key] = work, first
        if looks is not None and not ran:
            self._alike.setdefault(looks, []).append(key)

    def times_the_best(self, key: Hashable) -> float:
        """Return how many times the least first run a candidate's took; 1 for what was not entered."""
        key = self._twins.get(key, key)
        return self._firsts[key] / min(self._firsts.values()) if key in self._firsts else 1.0

    def is_hopeless(self, key: Hashable) -> bool:
        """Tell whether a candidate cannot become the best any more, after a second look where kernels were loaded."""
        if key in self._twins:
            return False
        (self._firsts[key],) = self._stopwatch.look_again([self._works[key]], [self._firsts[key]])
        return not self._stopwatch.is_worth(self._firsts[key])

    def finish(self, rows: dict[Hashable, AlgorithmResult]) -> list[AlgorithmResult]:
        """Time all that were entered, and return the rows, given under the same keys, the best first, what did not run last."""
        rows = dict(rows)
        keys = list(self._works)
        firsts = self._stopwatch.look_again(
            list(self._works.values()), [self._firsts[key] for key in keys]
        )
        self._firsts.update(zip(keys, firsts, strict=True))
        for first, *others in self._alike.values():
            least, most = self._firsts[first] / _ALIKE, self._firsts[first] * _ALIKE
            self._twins.update((key, first) for key in others if least <= self._firsts[key] <= most)
        keys = [key for key in keys if key not in self._twins]
        rows |= {key: replace(rows[key], time_ms=self._firsts[key]) for key in keys}
        told = dict.fromkeys(keys, f"not repeated: more than {self._give_up:g} times the best")
        worth = [key for key in keys if self._stopwatch.is_worth(self._firsts[key])]
        repeated: set[Hashable] = set()
        while worth:
            for key, timing, call in self._repeat(worth):
                costs = {} if call is None else call._asdict()
                told[key] = "calls not timed: the device takes longer than the best" * (
                    self._latency and call is None
                )
                rows[key] = replace(rows[key], time_ms=timing.ms, spread_ms=timing.spread, **costs)
                self.replayed |= timing.replayed
            repeated.update(worth)
            # a single run may have been lucky: what only it put behind the best is repeated too
            deciding = [ranking_ms(rows[key], latency=self._latency) for key in repeated]
            best = min((ms for ms in deciding if ms is not None), default=0.0)
            worth = [
                key
                for key in keys
                if key not in repeated and self._firsts[key] <= self._give_up * best
            ]
        for key in keys:
            rows[key] = replace(rows[key], remark=joined(rows[key].remark, told[key]))
        for key, twin in self._twins.items():
            times = {
                name: getattr(rows[twin], name)
                for name in ("time_ms", "spread_ms", *CallTime._fields)
            }
            remark = joined(
                rows[key].remark, told[twin], f"here the same kernel as {named(rows[twin])}"
            )
            rows[key] = replace(rows[key], **times, remark=remark)
        return ranked(list(rows.values()), latency=self._latency)

    def _repeat(
        self, keys: Sequence[Hashable]
    ) -> Iterator[tuple[Hashable, Timing, CallTime | None]]:
        works, firsts = [self._works[key] for key in keys], [self._firsts[key] for key in keys]
        timings = dict(
            zip(
                keys, self._stopwatch.repeat(works, firsts, thorough=not self._latency), strict=True
            )
        )
        best = min(timing.ms for timing in timings.values())
        if self._latency:  # a call takes the device's time at least, and the best one no more than the best first run
            best = max(best, min(self._firsts.values()))
        # what calls cost of something far from that is of no interest: half of a search's time went there
        most = self._may_win * best
        calls: dict[Hashable, CallTime] = {}
        while asked := [key for key in keys if key not in calls and timings[key].ms <= most]:
            works, firsts = (
                [self._works[key] for key in asked],
                [self._firsts[key] for key in asked],
            )
            calls.update(
                zip(
                    asked, self._stopwatch.calls(works, firsts, thorough=self._latency), strict=True
                )
            )
            # first runs may have been lucky: nobody comes first whose calls were not timed
            most = max(most, self._latency * min(call.call_us for call in calls.values()) / 1000)
        for key, timing in timings.items():
            yield key, timing, calls.get(key)

    @property
    def timing(self) -> str:
        """Where the times come from: the device's and those of calls are two series."""
        how = "median of CUDA graph replays" if self.replayed else "median of calls"
        return f"{how}{self._flushed} on {self._device}; us a call: another series{', which decides' * self._latency}"

    def close(self) -> None:
        """Give back the memory that the timing took."""
        self._stopwatch.close()


def ranked(rows: Sequence[AlgorithmResult], *, latency: bool = False) -> list[AlgorithmResult]:
    """Return rows in the order of their times, those that cannot be used last; what the noise hides is remarked on."""

    def order(row: AlgorithmResult) -> tuple[bool, bool, float]:
        time = ranking_ms(row, latency=latency)
        return not row.ok, time is None, (row.time_ms or 0.0) if time is None else time

    # a table that gained a row is ranked again, and its first may have been another
    found = [
        replace(row, remark=joined(row.remark, leave=_NOISE)) if _NOISE in row.remark else row
        for row in rows
    ]
    found.sort(key=order)
    if found:
        tied = [
            row for row in found if row is found[0] or within_noise(found[0], row, latency=latency)
        ]
        first = _least(tied, latency=latency)
        found = [first, *(row for row in found if row is not first)]
        told = [replace(row, remark=joined(row.remark, _NOISE)) for row in tied]
        noted = dict(zip(map(id, tied), told, strict=True))
        found[1:] = [noted.get(id(row), row) for row in found[1:]]
    return found


def _least(tied: Sequence[AlgorithmResult], *, latency: bool) -> AlgorithmResult:
    """Return, of rows that the noise makes equal, the one with the least host time, or nearly so, and the least workspace.

    Where calls decide, the device's time counts before the workspace: a host that was slow for a while, by half as seen, hides
    it, and a faster one shows it.
    """
    rows = _near_the_least(tied, [row.host_us for row in tied], 1.5 if latency else 1.1)
    if latency:
        rows = _near_the_least(rows, [row.time_ms for row in rows], 1.02)
    return min(rows, key=lambda row: row.workspace)


def _near_the_least(
    rows: Sequence[AlgorithmResult], values: Sequence[float | None], times: float
) -> list[AlgorithmResult]:
    least = min((value for value in values if value is not None), default=0.0)
    return [
        row
        for row, value in zip(rows, values, strict=True)
        if value is None or value <= times * least
    ]


def joined(*remarks: str, leave: str = "") -> str:
    """Return remarks as one, each once, and without one."""
    parts = (part for remark in remarks for part in remark.split("; "))
    return "; ".join(part for part in dict.fromkeys(parts) if part not in ("", leave))


def failed(
    row: AlgorithmResult, error: CudnnError | DeviceMemoryError, memory: int
) -> AlgorithmResult:
    """Return the row of a candidate that could not be run, with the reason, and whether that may be gone another time.

    What cuDNN refuses, it will always refuse.  Memory may be there when others have given theirs back, unless the device has
    not got so much: `memory` is its bytes.
    """
    fits = row.workspace < memory
    if isinstance(error, CudnnError):
        why = "; ".join(error.notes) or error.detail
        # what an engine cannot compile, it never will
        refused = int(error.status) // 1000 in _REFUSALS or (
            isinstance(row.algorithm, Engine) and isinstance(error, InternalError)
        )
        return replace(
            row, status=Status(error.status), why_not=why, transient=not refused and fits
        )
    return replace(
        row, why_not=str(error), transient=fits and not isinstance(error, WorkspaceLimitError)
    )


def refuse_search(handle: Handle) -> None:
    """Raise CaptureError if a graph is being recorded on the handle's stream."""
    refuse_in_capture(
        handle.device,
        handle.stream,
        "a search waits, and cannot be made",
        "search before the capture",
    )


@contextmanager
def own_stream(handle: Handle) -> Iterator[Any]:
    """Put the handle on a stream of its own for the time of a search: one that can be captured.

    Whatever else the device has to do is waited for: it would disturb the times.  The handle's workspace limit does not count
    meanwhile, because a search has one of its own.  Its calls are not what the program is asked for: `record_problems` leaves
    them out.
    """
    before, limit = handle.stream, handle.workspace.limit
    refuse_search(handle)
    handle.device.synchronize()
    own = handle.device.create_stream()
    handle.stream, handle.workspace.limit = own, None
    try:
        with recording.paused():
            yield own
    finally:
        try:
            handle.device.wait(own)
            handle.workspace.release(own)
        finally:
            handle.stream, handle.workspace.limit = before, limit
