"""Timing: what a GPU spends on a piece of work, without the host's share; and what a call costs with it.

Work is recorded into a CUDA graph and replayed between two events; where recording is refused it is
enqueued as it is.  Pieces are taken in shuffled rounds, so that a change of the clock does not
favour one of them, and the median counts.  Where several lie close to the best, these are taken in
more rounds.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.devices.device import Device
from cudnnlite.search.timing_policy import DEFAULT_TIMING, TimingPolicy

Work = Callable[[], object]
SampleT = TypeVar("SampleT")
_FAR = 10.0  # times what may still win: what takes longer may be thousands of kernels, and to record them takes seconds


class Timing(NamedTuple):
    """How long a piece of work takes: the median and the distance between the quartiles, in milliseconds, of so many samples.

    `replayed`: a recorded graph was timed, so that no host time is contained.
    """

    ms: float
    spread: float
    samples: int
    replayed: bool


class CallTime(NamedTuple):
    """What a call costs among many made one after the other, in microseconds of wall time; medians.

    `call_us` is from one to the next, with the device's work done: the host's time or the device's,
    whichever is longer; `host_us` until it returns; `call_spread_us` the distance between the
    quartiles of `call_us`.
    """

    call_us: float
    host_us: float
    call_spread_us: float = 0.0


class Stopwatch(NonCopyable):
    """Times pieces of work on one stream; not the legacy default stream, which cannot be recorded.

    With `eager` the work will be called eagerly, so that the host's time counts where hopeless work
    is given up.  With `flush_l2` the second-level cache is overwritten before each sample of
    `repeat`, which is then of one piece of work: it finds its operands in memory.
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
        """Return about how many milliseconds each takes, after a second look where the first run says little.

        A first run contains the host's time (a convolution of 10 us spent 190 us there) and the
        loading of kernels.  So work that took less than `loading_ms` is recorded, and replayed
        once.  Where eager calls count it is run again instead, and so is what took far too long,
        which is recorded only if that was the loading; and what cannot be recorded, if it took more
        than `give_up` times the best.
        """
        looked = [self._second(work, ms) for work, ms in zip(works, firsts, strict=True)]
        self._best_first = min([self._best_first, *looked])
        return looked

    def _second(self, work: Work, first_ms: float) -> float:
        if first_ms >= self._policy.loading_ms:
            return first_ms
        far = _FAR * max(self._limit, self._policy.always_ms)
        if self._eager or first_ms > far:
            first_ms = min(first_ms, self._device.elapsed_ms(work, self._stream))
        if self._eager or first_ms > far:
            return first_ms
        recorded = self._device.capture(work, self._stream)
        if recorded is not None:
            recorded()  # the first launch uploads the graph
            return min(first_ms, self._device.elapsed_ms(recorded, self._stream))
        return (
            first_ms
            if first_ms <= self._limit
            else min(first_ms, self._device.elapsed_ms(work, self._stream))
        )

    def is_worth(self, first_ms: float) -> bool:
        """Tell whether work that took so long may still turn out to be the best."""
        return first_ms <= max(self._limit, self._policy.always_ms)

    @property
    def _limit(self) -> float:
        return self._policy.give_up * self._best_first

    def repeat(
        self, works: Sequence[Work], firsts: Sequence[float], *, thorough: bool = True
    ) -> list[Timing]:
        """Time pieces that ran before, in shuffled rounds, each with the memory that it has now: graphs keep addresses.

        `firsts` are what `look_again` returned, in milliseconds: they decide how often a sample
        repeats the work.  `thorough`: the choice will depend on it, and it takes more rounds.
        """
        samples = [self._sample(work, ms) for work, ms in zip(works, firsts, strict=True)]

        def measure(index: int) -> float:
            launch, repeats, _ = samples[index]
            if self._flushed is not None:
                self._device.fill(int(self._flushed.handle), self._policy.l2_bytes, 0, self._stream)
            return self._device.elapsed_ms(launch, self._stream) / repeats

        rounds, further = self._thoroughness(thorough)
        taken = self._rounds(measure, len(works), rounds, further, float)
        return [
            _summary(times, replayed)
            for times, (_, _, replayed) in zip(taken, samples, strict=True)
        ]

    def calls(
        self, works: Sequence[Work], times_ms: Sequence[float], *, thorough: bool = False
    ) -> list[CallTime]:
        """Measure calls as a program makes them, one after the other, in shuffled rounds.

        `times_ms`, about how long each takes, decides how many are made in a row.  `thorough`: the
        choice will depend on it.
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

        rounds, further = self._thoroughness(
            thorough
        )  # a sample lasts several times as long as one of `repeat`
        taken = self._rounds(
            measure, len(works), rounds, further // 2, lambda sample: sample.call_us
        )
        return [_call_time(samples) for samples in taken]

    def _thoroughness(self, thorough: bool) -> tuple[int, int]:
        policy = self._policy
        return (policy.rounds, policy.further_rounds) if thorough else (min(3, policy.rounds), 0)

    def close(self) -> None:
        """Give back the memory that flushing took; harmless when called again."""
        if self._flushed is not None:
            self._flushed.close(self._stream)
            self._flushed = None

    def _rounds(
        self,
        measure: Callable[[int], SampleT],
        count: int,
        rounds: int,
        further: int,
        value: Callable[[SampleT], float],
    ) -> list[list[SampleT]]:
        """Take samples of each in shuffled rounds, and of those whose medians lie close to the best in further rounds."""
        taken: list[list[SampleT]] = [[] for _ in range(count)]

        deadline = time.perf_counter() + self._policy.most_seconds

        def take(order: list[int], rounds: int) -> None:
            for _ in range(rounds):
                if (
                    len(taken[order[0]]) >= self._policy.least_rounds
                    and time.perf_counter() > deadline
                ):
                    return
                self._random.shuffle(order)
                for index in order:
                    taken[index].append(measure(index))

        if count:
            take(list(range(count)), min(rounds, self._policy.least_rounds))
            values = [list(map(value, samples)) for samples in taken]
            most = self._policy.may_win * min(map(statistics.median, values))
            take(
                [index for index, each in enumerate(values) if min(each) <= most],
                rounds - self._policy.least_rounds,
            )
        near = self._policy.close
        for _ in range(self._policy.most_further if further else 0):
            middles = [_quartiles(list(map(value, samples))) for samples in taken]
            best = min(middles, key=lambda quartiles: quartiles[1], default=(0.0, 0.0, 0.0))
            close = [
                index
                for index, (low, median, _) in enumerate(middles)
                if min(low, median / near) <= best[1]
            ]
            if len(close) < 2 or (
                len(taken[close[0]]) > rounds and best[2] - best[0] <= (near - 1) * best[1]
            ):
                break
            take(close, further)
        return taken

    def _sample(self, work: Work, first_ms: float) -> tuple[Work, int, bool]:
        repeats = max(
            1, min(self._policy.most_repeats, round(self._policy.sample_ms / max(first_ms, 1e-3)))
        )
        if self._flushed is not None:
            repeats = 1

        def several() -> None:
            for _ in range(repeats):
                work()

        recorded = self._device.capture(several, self._stream)
        if recorded is None:
            return several, repeats, False
        recorded()  # the first launch uploads the graph
        return recorded, repeats, True


def _summary(times: list[float], replayed: bool) -> Timing:
    low, median, high = _quartiles(times)
    return Timing(median, high - low, len(times), replayed)


def _call_time(samples: list[CallTime]) -> CallTime:
    low, median, high = _quartiles([sample.call_us for sample in samples])
    return CallTime(median, statistics.median(sample.host_us for sample in samples), high - low)


def _quartiles(times: list[float]) -> tuple[float, float, float]:
    """Return the quartiles; of a single value, that one."""
    low, median, high = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
    return low, median, high
