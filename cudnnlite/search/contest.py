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
# How much the times of two candidates may differ that look as if they ran the same kernel.
_SAME_KERNEL_RATIO = 1.25


class Contest(NonCopyable):
    """Candidates that ran, and what their times are, on a handle whose stream can be recorded: see `own_stream`.

    The handle's `timing` says how thoroughly.  With `latency` the time of an eager call decides,
    instead of the device's; for `flush_l2` see `Stopwatch`.
    """

    def __init__(self, handle: Handle, *, latency: bool = False, flush_l2: bool = False) -> None:
        self._ranks_by_latency, self._flushes = latency, flush_l2
        self._give_up, self._may_win = handle.timing.give_up, handle.timing.may_win
        self._stopwatch = Stopwatch(
            handle.device, handle.stream, handle.timing, eager=latency, flush_l2=flush_l2
        )
        self._works: dict[Hashable, Callable[[], object]] = {}
        self._first_ms: dict[Hashable, float] = {}
        # With the candidate that ran them first.
        self._emulated_functions: dict[frozenset[object], Hashable] = {}
        self._fingerprints: dict[Hashable, list[Hashable]] = {}  # with the candidates that have one
        self._same_kernel: dict[Hashable, Hashable] = {}  # with the candidate that is timed instead
        self._device = handle.device
        self.memory = handle.device.memory_info()[1]  # what the device has in all
        self.replayed = False

    def enter(
        self, key: Hashable, work: Callable[[], object], fingerprint: Hashable = None
    ) -> None:
        """Run a candidate's work for the first time; it must be harmless to run it again.

        A kernel that stands for several candidates is timed once, since noise alone would rank
        them.  The emulated device says what it computes.  On a GPU candidates run the same kernel
        if they have the same fingerprint and take about as long; without a fingerprint a candidate
        is timed by itself.
        """
        first_ms = self._stopwatch.first(work)
        functions = self._device.emulated_functions
        if functions:
            timed = self._emulated_functions.setdefault(functions, key)
            if timed != key:
                self._same_kernel[key] = timed
                self._first_ms[timed] = min(self._first_ms[timed], first_ms)
                return
        self._works[key], self._first_ms[key] = work, first_ms
        if fingerprint is not None and not functions:
            self._fingerprints.setdefault(fingerprint, []).append(key)

    def times_the_best(self, key: Hashable) -> float:
        """Return how many times the least first run a candidate's took; 1 for what was not entered."""
        key = self._same_kernel.get(key, key)
        if key not in self._first_ms:
            return 1.0
        return self._first_ms[key] / min(self._first_ms.values())

    def is_hopeless(self, key: Hashable) -> bool:
        """Tell whether a candidate cannot become the best any more, after a second look where kernels were loaded."""
        if key in self._same_kernel:
            return False
        (ms,) = self._stopwatch.look_again([self._works[key]], [self._first_ms[key]])
        self._first_ms[key] = ms
        return not self._stopwatch.is_worth(ms)

    def finish(self, rows: dict[Hashable, AlgorithmResult]) -> list[AlgorithmResult]:
        """Time all that were entered, and return the rows, given under the same keys, the best first, what did not run last."""
        rows = dict(rows)
        self._look_again()
        self._find_same_kernels()
        keys = [key for key in self._works if key not in self._same_kernel]
        for key in keys:
            rows[key] = replace(rows[key], time_ms=self._first_ms[key])
        remarks = self._repeat_what_may_win(keys, rows)
        for key in keys:
            rows[key] = replace(rows[key], remark=joined(rows[key].remark, remarks[key]))
        for key, timed in self._same_kernel.items():
            same = f"here the same kernel as {named(rows[timed])}"
            rows[key] = replace(
                rows[key],
                **_times_of(rows[timed]),
                remark=joined(rows[key].remark, remarks[timed], same),
            )
        return ranked(list(rows.values()), latency=self._ranks_by_latency)

    def _look_again(self) -> None:
        """Correct the times of first runs, which contain the loading of kernels."""
        keys = list(self._works)
        works = list(self._works.values())
        again = self._stopwatch.look_again(works, [self._first_ms[key] for key in keys])
        self._first_ms.update(zip(keys, again, strict=True))

    def _find_same_kernels(self) -> None:
        """Note which candidates of one fingerprint take about as long as the first of them."""
        for first, *others in self._fingerprints.values():
            least = self._first_ms[first] / _SAME_KERNEL_RATIO
            most = self._first_ms[first] * _SAME_KERNEL_RATIO
            for key in others:
                if least <= self._first_ms[key] <= most:
                    self._same_kernel[key] = first

    def _repeat_what_may_win(
        self, keys: Sequence[Hashable], rows: dict[Hashable, AlgorithmResult]
    ) -> dict[Hashable, str]:
        """Write times into the rows of all candidates that may win; return a remark for each, empty if its calls are timed."""
        remarks = dict.fromkeys(keys, f"not repeated: more than {self._give_up:g} times the best")
        repeated: set[Hashable] = set()
        candidates = [key for key in keys if self._stopwatch.is_worth(self._first_ms[key])]
        while candidates:
            for key, timing, call in self._repeat(candidates):
                times: dict[str, Any] = {"time_ms": timing.ms, "spread_ms": timing.spread}
                if call is not None:
                    times |= call._asdict()
                rows[key] = replace(rows[key], **times)
                remarks[key] = ""
                if self._ranks_by_latency and call is None:
                    remarks[key] = "calls not timed: the device takes longer than the best"
                self.replayed |= timing.replayed
            repeated.update(candidates)
            # A single first run may have been lucky: what only that run put behind the best is
            # repeated too.
            cutoff_ms = self._give_up * self._best_ms([rows[key] for key in repeated])
            candidates = [
                key for key in keys if key not in repeated and self._first_ms[key] <= cutoff_ms
            ]
        return remarks

    def _best_ms(self, rows: Sequence[AlgorithmResult]) -> float:
        times = [ranking_ms(row, latency=self._ranks_by_latency) for row in rows]
        return min((ms for ms in times if ms is not None), default=0.0)

    def _repeat(self, keys: Sequence[Hashable]) -> list[tuple[Hashable, Timing, CallTime | None]]:
        """Time candidates on the device, and the calls of those that may win."""
        works = [self._works[key] for key in keys]
        firsts = [self._first_ms[key] for key in keys]
        timed = self._stopwatch.repeat(works, firsts, thorough=not self._ranks_by_latency)
        timings = dict(zip(keys, timed, strict=True))
        calls = self._call_times(timings)
        return [(key, timing, calls.get(key)) for key, timing in timings.items()]

    def _call_times(self, timings: dict[Hashable, Timing]) -> dict[Hashable, CallTime]:
        """Time the calls of those candidates whose time on the device is near the best.

        What calls cost of the others is of no interest: half of a search's time went there.
        """
        best_ms = min(timing.ms for timing in timings.values())
        if self._ranks_by_latency:
            # A call takes the device's time at least, and the best one no more than the best first
            # run.
            best_ms = max(best_ms, min(self._first_ms.values()))
        cutoff_ms = self._may_win * best_ms
        calls: dict[Hashable, CallTime] = {}
        while True:
            keys = [
                key
                for key, timing in timings.items()
                if key not in calls and timing.ms <= cutoff_ms
            ]
            if not keys:
                return calls
            works = [self._works[key] for key in keys]
            firsts = [self._first_ms[key] for key in keys]
            timed = self._stopwatch.calls(works, firsts, thorough=self._ranks_by_latency)
            calls.update(zip(keys, timed, strict=True))
            if self._ranks_by_latency:
                # First runs may have been lucky: nobody comes first whose calls were not timed.
                fastest_call_ms = min(call.call_us for call in calls.values()) / 1000
                cutoff_ms = max(cutoff_ms, fastest_call_ms)

    @property
    def timing(self) -> str:
        """Where the times come from: the device's and those of calls are two series."""
        how = "median of CUDA graph replays" if self.replayed else "median of calls"
        if self._flushes:
            how += ", operands not in the cache"
        series = "us a call: another series"
        if self._ranks_by_latency:
            series += ", which decides"
        return f"{how} on {self._device}; {series}"

    def close(self) -> None:
        """Give back the memory that the timing took."""
        self._stopwatch.close()


def _times_of(row: AlgorithmResult) -> dict[str, Any]:
    """Return the times of a row by the names of their fields."""
    return {name: getattr(row, name) for name in ("time_ms", "spread_ms", *CallTime._fields)}


def ranked(rows: Sequence[AlgorithmResult], *, latency: bool = False) -> list[AlgorithmResult]:
    """Return rows in the order of their times, those that cannot be used last, and set `within_noise` of each."""

    def order(row: AlgorithmResult) -> tuple[bool, bool, float]:
        ms = ranking_ms(row, latency=latency)
        if ms is None:
            return not row.ok, True, row.time_ms or 0.0
        return not row.ok, False, ms

    # A table that gained a row is ranked again, and its first may have been another.
    ordered = sorted((replace(row, within_noise=False) for row in rows), key=order)
    if not ordered:
        return []
    fastest, *others = ordered
    tied = [fastest, *(row for row in others if within_noise(fastest, row, latency=latency))]
    first = _cheapest(tied, latency=latency)
    hidden = set(map(id, tied))
    return [
        first,
        *(replace(row, within_noise=id(row) in hidden) for row in ordered if row is not first),
    ]


def _cheapest(tied: Sequence[AlgorithmResult], *, latency: bool) -> AlgorithmResult:
    """Return, of rows that the noise makes equal, the one with the least host time, or nearly so, and the least workspace.

    Where calls decide, the device's time counts before the workspace: a host that was slow for a
    while, by half as seen, hides it, and a faster one shows it.
    """
    host_ratio = 1.5 if latency else 1.1
    rows = _near_the_least(tied, [row.host_us for row in tied], host_ratio)
    if latency:
        rows = _near_the_least(rows, [row.time_ms for row in rows], 1.02)
    return min(rows, key=lambda row: row.workspace)


def _near_the_least(
    rows: Sequence[AlgorithmResult], values: Sequence[float | None], ratio: float
) -> list[AlgorithmResult]:
    """Return the rows whose values are at most so many times the least; those without a value too."""
    least = min((value for value in values if value is not None), default=0.0)
    return [
        row
        for row, value in zip(rows, values, strict=True)
        if value is None or value <= ratio * least
    ]


def joined(*remarks: str) -> str:
    """Return remarks as one, without empty ones."""
    return "; ".join(filter(None, remarks))


def failed(
    row: AlgorithmResult, error: CudnnError | DeviceMemoryError, memory: int
) -> AlgorithmResult:
    """Return the row of a candidate that could not be run, with the reason, and whether that may be gone another time.

    What cuDNN refuses, it will always refuse.  Memory may be there when others have given theirs
    back, unless the device has not got so much: `memory` is its bytes.
    """
    has_memory = row.workspace < memory
    if not isinstance(error, CudnnError):
        is_limit = isinstance(error, WorkspaceLimitError)
        return replace(row, why_not=str(error), transient=has_memory and not is_limit)
    why = "; ".join(error.notes) or error.detail
    is_refused = int(error.status) // 1000 in _REFUSALS
    # What an engine cannot compile, it never will.
    cannot_compile = isinstance(row.algorithm, Engine) and isinstance(error, InternalError)
    transient = has_memory and not is_refused and not cannot_compile
    return replace(row, status=Status(error.status), why_not=why, transient=transient)


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

    Whatever else the device has to do is waited for: it would disturb the times.  The handle's
    workspace limit does not count meanwhile, because a search has one of its own.  Its calls are
    not what the program is asked for: `record_problems` leaves them out.
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
