"""Timing: the device's time for a piece of work, and the time of a call with the host's share.

Work is recorded into a CUDA graph, which is replayed between two events; work that cannot be
recorded is enqueued as it is.  The pieces are timed in shuffled rounds, so that a change of the
clock does not favour one of them, and the median counts.  Pieces that are close to the best are
timed in further rounds.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.devices.device import Device
from cudnnlite.search.timing_policy import DEFAULT_TIMING, TimingPolicy

Work = Callable[[], object]
SampleT = TypeVar("SampleT")
# Work that takes so many times the limit of what may still win is not recorded: it may be thousands
# of kernels, and recording them takes seconds.
_FAR = 10.0


class Timing(NamedTuple):
    """The device's time for a piece of work: median and quartile distance, in milliseconds.

    `samples` is their number.  `replayed` says whether a recorded graph was timed, so that the
    times contain nothing of the host's.
    """

    ms: float
    spread: float
    samples: int
    replayed: bool


class CallTime(NamedTuple):
    """The wall time of one of many calls in a row, in microseconds; medians.

    `call_us` is the time from one call to the next, until the device's work is done: the host's
    time or the device's, whichever is longer.  `host_us` is the time until the call returns.
    `call_spread_us` is the distance between the quartiles of `call_us`.
    """

    call_us: float
    host_us: float
    call_spread_us: float = 0.0


class _Launch(NamedTuple):
    """What a sample of `Stopwatch.repeat` runs: a piece of work, so many times."""

    run: Work
    repeats: int
    replayed: bool


class _Quartiles(NamedTuple):
    low: float
    median: float
    high: float


class Stopwatch(NonCopyable):
    """Times pieces of work on one stream; not the legacy default stream, which cannot be recorded.

    With `eager` the time of an eager call decides which work is given up, the host's share
    included.  With `flush_l2` the second-level cache is overwritten before each sample of `repeat`,
    which then runs the work once: it finds its operands in memory.
    """

    def __init__(
        self,
        device: Device,
        stream: Any,
        policy: TimingPolicy = DEFAULT_TIMING,
        *,
        seed: int = 0,
        eager: bool = False,
        flush_l2: bool = False,
    ) -> None:
        self._device, self._stream, self._policy = device, stream, policy
        self._eager = eager
        self._random = random.Random(seed)
        self._best_first = float("inf")
        self._flushed = device.allocate(policy.l2_bytes, stream) if flush_l2 else None

    def first(self, work: Work) -> float:
        """Run a piece of work once, as it is, and return its milliseconds."""
        ms = self._device.elapsed_ms(work, self._stream)
        self._best_first = min(self._best_first, ms)
        return ms

    def look_again(self, works: Sequence[Work], firsts: Sequence[float]) -> list[float]:
        """Return about how many milliseconds each piece takes: its first run, or a shorter one.

        A first run contains the host's time (190 us for a convolution that takes 10 us on the
        device) and the loading of kernels.  So work whose first run took less than `loading_ms` is
        recorded, and replayed once.  It is run again as it is if eager calls count, or if it cannot
        be recorded and took more than `give_up` times the best.  Work that took far too long is
        run again first, and recorded only if loading was the cause.
        """
        times_ms = [self._second_look(work, ms) for work, ms in zip(works, firsts, strict=True)]
        self._best_first = min([self._best_first, *times_ms])
        return times_ms

    def _second_look(self, work: Work, first_ms: float) -> float:
        if first_ms >= self._policy.loading_ms:
            return first_ms
        if self._eager:
            return self._run_again(work, first_ms)
        far_ms = _FAR * max(self._limit, self._policy.always_ms)
        if first_ms > far_ms:
            first_ms = self._run_again(work, first_ms)
            if first_ms > far_ms:
                return first_ms
        recorded = self._device.capture(work, self._stream)
        if recorded is not None:
            recorded()  # the first launch uploads the graph
            return self._run_again(recorded, first_ms)
        if first_ms <= self._limit:
            return first_ms
        return self._run_again(work, first_ms)

    def _run_again(self, work: Work, first_ms: float) -> float:
        """Return the milliseconds of another run, or those of the first run if they are fewer."""
        return min(first_ms, self._device.elapsed_ms(work, self._stream))

    def is_worth(self, first_ms: float) -> bool:
        """Tell whether work whose first run took so long may still be the best."""
        return first_ms <= max(self._limit, self._policy.always_ms)

    @property
    def _limit(self) -> float:
        return self._policy.give_up * self._best_first

    def repeat(
        self, works: Sequence[Work], firsts: Sequence[float], *, thorough: bool = True
    ) -> list[Timing]:
        """Time pieces that ran before, in shuffled rounds.

        A recorded graph keeps addresses: the memory of the work must stay the same meanwhile.
        `firsts` are the milliseconds that `look_again` returned: they decide how often a sample
        repeats the work.  `thorough` asks for more rounds, because a choice depends on the times.
        """
        launches = [self._prepare(work, ms) for work, ms in zip(works, firsts, strict=True)]

        def measure(index: int) -> float:
            launch = launches[index]
            if self._flushed is not None:
                self._device.fill(int(self._flushed.handle), self._policy.l2_bytes, 0, self._stream)
            return self._device.elapsed_ms(launch.run, self._stream) / launch.repeats

        rounds, further = self._count_rounds(thorough)
        sampler = _Sampler(measure, float, self._policy, self._random)
        samples = sampler.sample(len(works), rounds, further)
        return [
            _summarize(times, launch.replayed)
            for times, launch in zip(samples, launches, strict=True)
        ]

    def calls(
        self, works: Sequence[Work], times_ms: Sequence[float], *, thorough: bool = False
    ) -> list[CallTime]:
        """Time calls as a program makes them, one after the other, in shuffled rounds.

        `times_ms` are about the milliseconds of each: they decide how many calls are made in a row.
        `thorough` is as in `repeat`.
        """
        policy = self._policy
        counts = [
            max(1, min(policy.most_calls, round(policy.calls_ms / max(ms, 1e-3))))
            for _, ms in zip(works, times_ms, strict=True)
        ]

        def measure(index: int) -> CallTime:
            work, count = works[index], counts[index]
            self._device.wait(self._stream)
            start = time.perf_counter()
            for _ in range(count):
                work()
            returned = time.perf_counter()
            self._device.wait(self._stream)
            end = time.perf_counter()
            return CallTime((end - start) / count * 1e6, (returned - start) / count * 1e6)

        rounds, further = self._count_rounds(thorough)
        sampler = _Sampler(measure, lambda call: call.call_us, self._policy, self._random)
        # A sample lasts several times as long as one of `repeat`.
        samples = sampler.sample(len(works), rounds, further // 2)
        return [_summarize_calls(times) for times in samples]

    def _count_rounds(self, thorough: bool) -> tuple[int, int]:
        """Return the number of rounds, and of the rounds that are added where pieces are close."""
        if thorough:
            return self._policy.rounds, self._policy.further_rounds
        return min(3, self._policy.rounds), 0

    def close(self) -> None:
        """Release the memory that flushing overwrites; harmless when called again."""
        if self._flushed is not None:
            self._flushed.close(self._stream)
            self._flushed = None

    def _prepare(self, work: Work, first_ms: float) -> _Launch:
        """Return what one sample runs: recorded, if it can be, and long enough to be timed."""
        repeats = 1
        if self._flushed is None:
            repeats = round(self._policy.sample_ms / max(first_ms, 1e-3))
            repeats = max(1, min(self._policy.most_repeats, repeats))

        def run() -> None:
            for _ in range(repeats):
                work()

        recorded = self._device.capture(run, self._stream)
        if recorded is None:
            return _Launch(run, repeats, replayed=False)
        recorded()  # the first launch uploads the graph
        return _Launch(recorded, repeats, replayed=True)


class _Sampler(Generic[SampleT]):
    """Takes samples of pieces of work in shuffled rounds.

    `measure` takes a sample of the piece with that index, `value_of` returns the number that
    compares samples: less is better.
    """

    def __init__(
        self,
        measure: Callable[[int], SampleT],
        value_of: Callable[[SampleT], float],
        policy: TimingPolicy,
        random: random.Random,
    ) -> None:
        self._measure, self._value_of = measure, value_of
        self._policy, self._random = policy, random
        self._samples: list[list[SampleT]] = []
        self._deadline = time.perf_counter() + policy.most_seconds

    def sample(self, count: int, rounds: int, further_rounds: int) -> list[list[SampleT]]:
        """Return samples of the pieces.

        Pieces that cannot win have fewer samples, and pieces near the best have more.
        """
        self._samples = [[] for _ in range(count)]
        if count == 0:
            return []
        least_rounds = self._policy.least_rounds
        self._take(list(range(count)), min(rounds, least_rounds))
        self._take(self._indices_that_may_win(), rounds - least_rounds)
        if further_rounds:
            self._separate_close_ones(rounds, further_rounds)
        return self._samples

    def _take(self, indices: list[int], rounds: int) -> None:
        """Take a sample of each of these pieces in every round, until the time is up."""
        for _ in range(rounds):
            has_enough = len(self._samples[indices[0]]) >= self._policy.least_rounds
            if has_enough and time.perf_counter() > self._deadline:
                return
            self._random.shuffle(indices)
            for index in indices:
                self._samples[index].append(self._measure(index))

    def _values(self) -> list[list[float]]:
        return [list(map(self._value_of, samples)) for samples in self._samples]

    def _indices_that_may_win(self) -> list[int]:
        values = self._values()
        cutoff = self._policy.may_win * min(map(statistics.median, values))
        return [index for index, numbers in enumerate(values) if min(numbers) <= cutoff]

    def _separate_close_ones(self, rounds: int, further_rounds: int) -> None:
        """Take more samples of the pieces near the best.

        It ends when no other piece is near, or when the noise of the best is small enough.
        """
        ratio = self._policy.close
        for _ in range(self._policy.most_further):
            quartiles = [_quartiles(values) for values in self._values()]
            best = min(quartiles, key=lambda quartile: quartile.median)
            close = [
                index
                for index, (low, median, _) in enumerate(quartiles)
                if min(low, median / ratio) <= best.median
            ]
            if len(close) < 2:
                return
            has_further = len(self._samples[close[0]]) > rounds
            is_precise = best.high - best.low <= (ratio - 1) * best.median
            if has_further and is_precise:
                return
            self._take(close, further_rounds)


def _summarize(times: list[float], replayed: bool) -> Timing:
    low, median, high = _quartiles(times)
    return Timing(median, high - low, len(times), replayed)


def _summarize_calls(times: list[CallTime]) -> CallTime:
    low, median, high = _quartiles([call.call_us for call in times])
    host_us = statistics.median(call.host_us for call in times)
    return CallTime(median, host_us, high - low)


def _quartiles(times: list[float]) -> _Quartiles:
    """Return the quartiles; of a single value, that one."""
    if len(times) == 1:
        return _Quartiles(times[0], times[0], times[0])
    low, median, high = statistics.quantiles(times, n=4)
    return _Quartiles(low, median, high)
