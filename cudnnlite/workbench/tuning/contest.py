"""`Contest`: times the candidates of a search against each other, under the same conditions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import Any

from cudnnlite import AlgorithmResult, AlgorithmTable, Handle
from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.devices.peaks import peaks_of
from cudnnlite.enums import Status
from cudnnlite.errors import CudnnError, DeviceMemoryError, InternalError, WorkspaceLimitError
from cudnnlite.plans.capture import refuse_search
from cudnnlite.problems import call_watch
from cudnnlite.problems.results import named, ranking_ms, within_noise
from cudnnlite.problems.work import work_of
from cudnnlite.types import Engine, Problem
from cudnnlite.workbench.tuning.timing import CallTime, Stopwatch, Timing
from cudnnlite.workbench.tuning.timing_policy import TimingPolicy

_REFUSALS = (2, 3)  # cuDNN's categories of status: a bad parameter, not supported
# The most that the times of two candidates differ if they run the same kernel.
_SAME_KERNEL_RATIO = 1.25
# Host times, and then device times, within these ratios of the least are taken as equal.
_HOST_RATIO = 1.1
_HOST_RATIO_OF_CALLS = 1.5  # a host that was slow for a while: by half, as measured
_DEVICE_RATIO_OF_CALLS = 1.02
# A candidate that converts operands must be faster by more than this: it needs more memory, and
# its kernels wait for one another.
_GAIN_OF_CONVERSIONS = 1.03


class Contest(NonCopyable):
    """Times candidates on a handle whose stream can be recorded: see `own_stream`.

    `timing` says how thoroughly.  `objective` is that of a `TuningPolicy`: the time of
    an eager call ranks candidates, or that of the device.  For `flush_l2` see `Stopwatch`.
    """

    def __init__(
        self,
        handle: Handle,
        timing: TimingPolicy,
        *,
        objective: str = "device",
        flush_l2: bool = False,
    ) -> None:
        self._ranks_by_latency, self._flushes = objective == "latency", flush_l2
        self._give_up, self._may_win = timing.give_up, timing.may_win
        self._stopwatch = Stopwatch(
            handle.device,
            handle.stream,
            timing,
            eager=self._ranks_by_latency,
            flush_l2=flush_l2,
        )
        self._works: dict[Hashable, Callable[[], object]] = {}
        self._first_ms: dict[Hashable, float] = {}
        # The candidate that ran these functions first.
        self._emulated_functions: dict[frozenset[object], Hashable] = {}
        # The candidates that have a fingerprint.
        self._fingerprints: dict[Hashable, list[Hashable]] = {}
        # The candidate that is timed instead of another one: the first that ran the kernel.
        self._same_kernel: dict[Hashable, Hashable] = {}
        self._device = handle.device
        self.memory = handle.device.memory_info()[1]  # all bytes of the device
        self.replayed = False

    def enter(
        self, key: Hashable, work: Callable[[], object], fingerprint: Hashable = None
    ) -> None:
        """Run a candidate's work for the first time; it must be harmless to run it again.

        If several candidates run the same kernel, it is timed once: noise alone would rank them.
        The emulated device says which functions it computed.  On a GPU candidates run the same
        kernel if they have the same fingerprint and take about as long; a candidate without a
        fingerprint is timed by itself.
        """
        first_ms = self._stopwatch.first(work)
        functions = self._device.emulated_functions
        if functions:
            first = self._emulated_functions.setdefault(functions, key)
            if first != key:
                self._same_kernel[key] = first
                self._first_ms[first] = min(self._first_ms[first], first_ms)
                return
        self._works[key], self._first_ms[key] = work, first_ms
        if fingerprint is not None and not functions:
            self._fingerprints.setdefault(fingerprint, []).append(key)

    def times_the_best(self, key: Hashable) -> float:
        """Return a candidate's first run as a multiple of the shortest first run.

        The result is 1 if the candidate was not entered.
        """
        key = self._same_kernel.get(key, key)
        if key not in self._first_ms:
            return 1.0
        return self._first_ms[key] / min(self._first_ms.values())

    def best_ms_so_far(self) -> float:
        """Return the shortest run so far, infinite if there is none.

        First runs that may have loaded kernels are repeated.
        """
        self._look_again()
        return min(self._first_ms.values(), default=inf)

    def is_hopeless(self, key: Hashable) -> bool:
        """Return whether a candidate cannot be the best any more.

        It is run again if its first run may have loaded kernels.
        """
        if key in self._same_kernel:
            return False
        (ms,) = self._stopwatch.look_again([self._works[key]], [self._first_ms[key]])
        self._first_ms[key] = ms
        return not self._stopwatch.may_be_best(ms)

    def finish(self, rows: dict[Hashable, AlgorithmResult]) -> list[AlgorithmResult]:
        """Time all candidates, and return their rows: the best first, those that did not run last.

        The rows have the keys of the candidates.
        """
        rows = dict(rows)
        self._look_again()
        self._find_same_kernels()
        keys = [key for key in self._works if key not in self._same_kernel]
        for key in keys:
            rows[key] = replace(rows[key], time_ms=self._first_ms[key])
        remarks = self._repeat_what_may_win(keys, rows)
        for key in keys:
            rows[key] = replace(rows[key], remark=join_remarks(rows[key].remark, remarks[key]))
        for key, first in self._same_kernel.items():
            remark = join_remarks(rows[key].remark, remarks[first])
            same_kernel = named(rows[first])
            times = _times_of(rows[first])
            rows[key] = replace(rows[key], **times, remark=remark, same_kernel=same_kernel)
        return ranked(list(rows.values()), latency=self._ranks_by_latency)

    def _look_again(self) -> None:
        """Correct the times of first runs, which contain the loading of kernels."""
        keys = list(self._works)
        works = list(self._works.values())
        again = self._stopwatch.look_again(works, [self._first_ms[key] for key in keys])
        self._first_ms.update(zip(keys, again, strict=True))

    def _find_same_kernels(self) -> None:
        """Find the candidates of one fingerprint that take about as long as the first of them."""
        for first, *further in self._fingerprints.values():
            shortest_ms = self._first_ms[first] / _SAME_KERNEL_RATIO
            longest_ms = self._first_ms[first] * _SAME_KERNEL_RATIO
            for key in further:
                if shortest_ms <= self._first_ms[key] <= longest_ms:
                    self._same_kernel[key] = first

    def _repeat_what_may_win(
        self, keys: Sequence[Hashable], rows: dict[Hashable, AlgorithmResult]
    ) -> dict[Hashable, str]:
        """Time all candidates that may win, and write the times into their rows.

        Returns a remark for each candidate; empty if its calls were timed.
        """
        remarks = dict.fromkeys(keys, f"not repeated: more than {self._give_up:g} times the best")
        repeated: set[Hashable] = set()
        candidates = [key for key in keys if self._stopwatch.may_be_best(self._first_ms[key])]
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
            # The best first run may have been lucky: candidates that are hopeless beside that run
            # alone are repeated too.
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
        repeats = self._stopwatch.repeat(works, firsts, thorough=not self._ranks_by_latency)
        timings = dict(zip(keys, repeats, strict=True))
        calls = self._call_times(timings)
        return [(key, timing, calls.get(key)) for key, timing in timings.items()]

    def _call_times(self, timings: dict[Hashable, Timing]) -> dict[Hashable, CallTime]:
        """Time the calls of those candidates whose time on the device is near the best.

        The calls of the others do not matter, and took half of a search's time.
        """
        best_ms = min(timing.ms for timing in timings.values())
        if self._ranks_by_latency:
            # A call takes at least the device's time, and the best call takes at most the shortest
            # first run.
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
            call_times = self._stopwatch.calls(works, firsts, thorough=self._ranks_by_latency)
            calls.update(zip(keys, call_times, strict=True))
            if self._ranks_by_latency:
                # First runs may have been lucky: the first candidate must have timed calls.
                fastest_call_ms = min(call.call_us for call in calls.values()) / 1000
                cutoff_ms = max(cutoff_ms, fastest_call_ms)

    @property
    def timing(self) -> str:
        """How the times were measured: those of the device and those of calls are two series."""
        how = "median of CUDA graph replays" if self.replayed else "median of calls"
        if self._flushes:
            how += ", operands not in the cache"
        series = "us a call: another series"
        if self._ranks_by_latency:
            series += ", which decides"
        return f"{how} on {self._device}; {series}"

    def table(self, rows: Sequence[AlgorithmResult], problem: Problem) -> AlgorithmTable:
        """Return the table of a problem's candidates."""
        return AlgorithmTable(
            rows,
            title=str(problem),
            timing=self.timing,
            device_memory=self.memory,
            work=work_of(problem),
            peaks=peaks_of(self._device),
        )

    def close(self) -> None:
        """Release the memory that timing needed."""
        self._stopwatch.close()


def _times_of(row: AlgorithmResult) -> dict[str, Any]:
    """Return the times of a row by the names of their fields."""
    names = ("time_ms", "spread_ms", *CallTime._fields)
    return {name: getattr(row, name) for name in names}


def ranked(rows: Sequence[AlgorithmResult], *, latency: bool = False) -> list[AlgorithmResult]:
    """Return rows in the order of their times, unusable ones last, with `within_noise` set."""

    def order(row: AlgorithmResult) -> tuple[bool, bool, float]:
        ms = ranking_ms(row, latency=latency)
        if ms is None:
            return not row.ok, True, row.time_ms or 0.0
        return not row.ok, False, ms

    # A table that has another row is ranked again, and its first row may change.
    ordered = sorted((replace(row, within_noise=False) for row in rows), key=order)
    if not ordered:
        return []
    fastest = ordered[0]
    slower = ordered[1:]
    tied = [fastest, *(row for row in slower if within_noise(fastest, row, latency=latency))]
    first = _cheapest(_without_conversions(tied, slower, latency=latency), latency=latency)
    tied_ids = set(map(id, tied))
    rest = [row for row in ordered if row is not first]
    return [first, *(replace(row, within_noise=id(row) in tied_ids) for row in rest)]


def _without_conversions(
    tied: list[AlgorithmResult], slower: Sequence[AlgorithmResult], *, latency: bool
) -> list[AlgorithmResult]:
    """Return the rows that convert no operands, of those tied or nearly as fast.

    `slower` has all rows but the first of `tied`.  If every row converts, the result is `tied`.
    """
    rows = [row for row in tied if not row.layout]
    best_ms = ranking_ms(tied[0], latency=latency)
    if tied[0].layout and best_ms is not None:
        tied_ids = set(map(id, tied))
        for row in slower:
            if not row.ok or row.layout or id(row) in tied_ids:
                continue
            ms = ranking_ms(row, latency=latency)
            if ms is not None and ms <= _GAIN_OF_CONVERSIONS * best_ms:
                rows.append(row)
    return rows or tied


def _cheapest(tied: Sequence[AlgorithmResult], *, latency: bool) -> AlgorithmResult:
    """Return the row with the least workspace of rows whose times differ by noise alone.

    If calls decide, the device's time counts before the workspace: a slow host hides it, and a
    faster one shows it.
    """
    host_ratio = _HOST_RATIO_OF_CALLS if latency else _HOST_RATIO
    rows = _near_the_least(tied, [row.host_us for row in tied], host_ratio)
    if latency:
        rows = _near_the_least(rows, [row.time_ms for row in rows], _DEVICE_RATIO_OF_CALLS)
    return min(rows, key=lambda row: row.workspace)


def _near_the_least(
    rows: Sequence[AlgorithmResult], values: Sequence[float | None], ratio: float
) -> list[AlgorithmResult]:
    """Return the rows with values up to `ratio` times the least, and those without a value."""
    least = min((value for value in values if value is not None), default=0.0)
    return [
        row
        for row, value in zip(rows, values, strict=True)
        if value is None or value <= ratio * least
    ]


def join_remarks(*remarks: str) -> str:
    """Join the remarks that are not empty."""
    return "; ".join(filter(None, remarks))


def failed(
    row: AlgorithmResult, error: CudnnError | DeviceMemoryError, memory: int
) -> AlgorithmResult:
    """Return the row of a failed candidate; `transient` if it may work another time.

    What cuDNN refuses, it will always refuse.  Memory may be free later, unless the workspace is
    more than all memory of the device: `memory` bytes.
    """
    has_memory = row.workspace < memory
    if not isinstance(error, CudnnError):
        is_limit = isinstance(error, WorkspaceLimitError)
        return replace(row, why_not=str(error), transient=has_memory and not is_limit)
    why = "; ".join(error.notes) or error.detail
    is_refused = int(error.status) // 1000 in _REFUSALS
    # An engine that cannot be compiled now cannot be compiled later.
    cannot_compile = isinstance(row.algorithm, Engine) and isinstance(error, InternalError)
    transient = has_memory and not is_refused and not cannot_compile
    return replace(row, status=Status(error.status), why_not=why, transient=transient)


@contextmanager
def own_stream(handle: Handle) -> Iterator[Any]:
    """Put the handle on a new stream, which can be recorded, for the time of a search.

    Everything else that runs on the device is waited for: it would disturb the times.  The handle's
    workspace limit is off meanwhile, because a search has its own limit.  `record_problems` does
    not list the calls of a search.
    """
    stream_before, limit_before = handle.stream, handle.workspace.limit
    refuse_search(handle)
    handle.device.synchronize()
    stream = handle.device.create_stream()
    handle.stream, handle.workspace.limit = stream, None
    try:
        with call_watch.paused():
            yield stream
    finally:
        try:
            handle.device.wait(stream)
            handle.workspace.release(stream)
        finally:
            handle.stream, handle.workspace.limit = stream_before, limit_before
