"""Timing: how long the device takes for a piece of work, and how long a call takes with the host.

Work is recorded into a CUDA graph, which is replayed between two events; work that cannot be
recorded is enqueued directly.  The pieces are timed in shuffled rounds, so that a change of the
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
from cudnnlite.workbench.tuning.timing_policy import DEFAULT_TIMING, TimingPolicy

Work = Callable[[], object]
SampleT = TypeVar("SampleT")
# Work that takes more than this multiple of the longest time that may still win is not recorded: it
# may consist of thousands of kernels, and recording them takes seconds.
_FAR = 10.0
# The rounds of a timing that is not thorough.
_ROUGH_ROUNDS = 3
# Shorter times are rounded up to this one where a number of repeats is computed from them.
_SHORTEST_MS = 1e-3


class Timing(NamedTuple):
    """The device's time for a piece of work, in milliseconds.

    `ms` is the median, `spread` the distance between the quartiles, and `samples` the number of
    samples.  If `replayed`, a recorded graph was timed, and the times contain no host time.
    """

    ms: float
    spread: float
    samples: int
    replayed: bool


class CallTime(NamedTuple):
    """The wall time of a call, in microseconds: the mean of one sample, or the median of samples.

    A sample makes many calls in a row.  `call_us` is the time from one call to the next, until the
    device's work is done: the host's time or the device's, whichever is longer.  `host_us` is the
    time until a call returns.  `call_spread_us` is the distance between the quartiles of `call_us`.
    """

    call_us: float
    host_us: float
    call_spread_us: float = 0.0


class _Launch(NamedTuple):
    """The launch of a sample of `Stopwatch.repeat`: `run` does a piece of work `repeats` times.

    If `replayed`, it launches a recorded graph.
    """

    run: Work
    repeats: int
    replayed: bool


class _Quartiles(NamedTuple):
    low: float
    median: float
    high: float


class Stopwatch(NonCopyable):
    """Times pieces of work on one stream; not the legacy default stream, which cannot be recorded.

    With `eager`, the time that decides which work is given up is that of an eager call, and
    includes host time.  With `flush_l2`, the second-level cache is overwritten before each sample
    of `repeat`, and a sample runs the work once, so that the work reads its operands from memory.
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
        self._generator = random.Random(seed)
        self._shortest_ms = float("inf")  # The least time of any work so far.
        self._flush_buffer: Any = None
        if flush_l2:
            self._flush_buffer = device.allocate(policy.l2_bytes, stream)

    def first(self, work: Work) -> float:
        """Run a piece of work for the first time, eagerly, and return its milliseconds."""
        ms = self._device.elapsed_ms(work, self._stream)
        self._shortest_ms = min(self._shortest_ms, ms)
        return ms

    def look_again(self, works: Sequence[Work], first_runs_ms: Sequence[float]) -> list[float]:
        """Return about how many milliseconds each piece takes: its first run, or a shorter one.

        A first run contains host time (190 us for a convolution that takes 10 us on the device) and
        the loading of kernels.  So most pieces run again; see the comments of the cases.
        """
        times_ms = [
            self._second_look(work, first_ms)
            for work, first_ms in zip(works, first_runs_ms, strict=True)
        ]
        self._shortest_ms = min([self._shortest_ms, *times_ms])
        return times_ms

    def _second_look(self, work: Work, first_ms: float) -> float:
        """Return the milliseconds of the shortest run of one piece, for `look_again`."""
        # Host time and the loading of kernels never take that long: the work is slow itself.
        if first_ms >= self._policy.loading_ms:
            return first_ms
        if self._eager:
            return self._run_again(work, first_ms)
        # Work that took far too long is recorded only if the loading of kernels was the cause.
        shortest_ms = first_ms
        far_ms = _FAR * max(self._give_up_ms, self._policy.always_ms)
        if first_ms > far_ms:
            shortest_ms = self._run_again(work, first_ms)
            if shortest_ms > far_ms:
                return shortest_ms
        graph = self._device.capture(work, self._stream)
        if graph is not None:
            graph()  # The first launch uploads the graph.
            return self._run_again(graph, shortest_ms)
        # Work that cannot be recorded runs again only if it would be given up.
        if shortest_ms <= self._give_up_ms:
            return shortest_ms
        return self._run_again(work, shortest_ms)

    def _run_again(self, work: Work, shortest_ms: float) -> float:
        """Return the milliseconds of another run, or `shortest_ms` if that is less."""
        return min(shortest_ms, self._device.elapsed_ms(work, self._stream))

    def may_be_best(self, ms: float) -> bool:
        """Return whether work that took `ms` milliseconds so far may still be the best."""
        return ms <= max(self._give_up_ms, self._policy.always_ms)

    @property
    def _give_up_ms(self) -> float:
        """The time beyond which work is given up; it falls as faster work is found."""
        return self._policy.give_up * self._shortest_ms

    def repeat(
        self, works: Sequence[Work], times_ms: Sequence[float], *, thorough: bool = True
    ) -> list[Timing]:
        """Time pieces that ran before, in shuffled rounds.

        A recorded graph keeps addresses, so that the work must keep its memory until this returns.
        `times_ms` are the approximate times of the pieces, as `look_again` returns them: they
        decide how often a sample repeats the work.  `thorough` means more rounds, because a
        choice depends on the times.
        """
        launches = [self._prepare(work, ms) for work, ms in zip(works, times_ms, strict=True)]

        def measure(index: int) -> float:
            launch = launches[index]
            if self._flush_buffer is not None:
                address = int(self._flush_buffer.handle)
                self._device.fill(address, self._policy.l2_bytes, 0, self._stream)
            return self._device.elapsed_ms(launch.run, self._stream) / launch.repeats

        rounds, further_rounds = self._count_rounds(thorough)
        sampler = _Sampler(
            measure,
            value_of=lambda ms: ms,
            policy=self._policy,
            generator=self._generator,
        )
        samples = sampler.sample(len(launches), rounds, further_rounds)
        return [
            _summarize(times, launch.replayed)
            for times, launch in zip(samples, launches, strict=True)
        ]

    def calls(
        self, works: Sequence[Work], times_ms: Sequence[float], *, thorough: bool = False
    ) -> list[CallTime]:
        """Time calls as a program makes them, one after the other, in shuffled rounds.

        `times_ms` are the approximate times of the calls: they decide how many calls a sample makes
        in a row.  `thorough` is as in `repeat`.
        """
        calls = [(work, self._count_calls(ms)) for work, ms in zip(works, times_ms, strict=True)]

        def measure(index: int) -> CallTime:
            work, count = calls[index]
            self._device.wait(self._stream)
            start = time.perf_counter()
            for _ in range(count):
                work()
            returned = time.perf_counter()
            self._device.wait(self._stream)
            end = time.perf_counter()
            return CallTime((end - start) / count * 1e6, (returned - start) / count * 1e6)

        rounds, further_rounds = self._count_rounds(thorough)
        sampler = _Sampler(
            measure,
            value_of=lambda call_time: call_time.call_us,
            policy=self._policy,
            generator=self._generator,
        )
        # A sample lasts several times as long as one of `repeat`.
        samples = sampler.sample(len(calls), rounds, further_rounds // 2)
        return [_summarize_calls(call_times) for call_times in samples]

    def _count_calls(self, ms: float) -> int:
        """Return how many calls a sample makes, of calls that take about `ms` milliseconds."""
        calls = round(self._policy.calls_ms / max(ms, _SHORTEST_MS))
        return max(1, min(self._policy.most_calls, calls))

    def _count_rounds(self, thorough: bool) -> tuple[int, int]:
        """Return the number of rounds, and of the further rounds of pieces close to the best."""
        if thorough:
            return self._policy.rounds, self._policy.further_rounds
        return min(_ROUGH_ROUNDS, self._policy.rounds), 0

    def close(self) -> None:
        """Release the memory that flushing overwrites; harmless when called again."""
        if self._flush_buffer is not None:
            self._flush_buffer.close(self._stream)
            self._flush_buffer = None

    def _prepare(self, work: Work, ms: float) -> _Launch:
        """Return the launch for a sample of a piece that takes about `ms` milliseconds.

        It repeats the work until that is long enough to be timed, and is recorded if possible.
        """
        repeats = 1
        if self._flush_buffer is None:
            repeats = round(self._policy.sample_ms / max(ms, _SHORTEST_MS))
            repeats = max(1, min(self._policy.most_repeats, repeats))

        def run() -> None:
            for _ in range(repeats):
                work()

        graph = self._device.capture(run, self._stream)
        if graph is None:
            return _Launch(run, repeats, replayed=False)
        graph()  # The first launch uploads the graph.
        return _Launch(graph, repeats, replayed=True)


class _Sampler(Generic[SampleT]):
    """Takes samples of pieces of work in shuffled rounds.

    `measure` takes an index, and returns a sample of the piece with that index.  `value_of` returns
    the number by which samples are compared: less is better.
    """

    def __init__(
        self,
        measure: Callable[[int], SampleT],
        value_of: Callable[[SampleT], float],
        policy: TimingPolicy,
        generator: random.Random,
    ) -> None:
        self._measure, self._value_of = measure, value_of
        self._policy, self._generator = policy, generator
        self._samples: list[list[SampleT]] = []
        self._deadline = time.perf_counter() + policy.most_seconds

    def sample(self, count: int, rounds: int, further_rounds: int) -> list[list[SampleT]]:
        """Return a list of samples for each of `count` pieces.

        Pieces that cannot win have fewer samples, and pieces close to the best have more.
        """
        self._samples = [[] for _ in range(count)]
        if count == 0:
            return []
        least_rounds = self._policy.least_rounds
        self._take(list(range(count)), min(rounds, least_rounds))
        self._take(self._indices_that_may_win(), max(0, rounds - least_rounds))
        if further_rounds:
            self._separate_close_pieces(rounds, further_rounds)
        return self._samples

    def _take(self, indices: list[int], rounds: int) -> None:
        """Take a sample of each of these pieces in every round, until the time is up."""
        for _ in range(rounds):
            # The first rounds are always taken; there all pieces have equally many samples.
            has_first_rounds = len(self._samples[indices[0]]) >= self._policy.least_rounds
            if has_first_rounds and time.perf_counter() > self._deadline:
                return
            self._generator.shuffle(indices)
            for index in indices:
                self._samples[index].append(self._measure(index))

    def _values(self) -> list[list[float]]:
        """Return the values of all samples, for each piece."""
        return [list(map(self._value_of, samples)) for samples in self._samples]

    def _indices_that_may_win(self) -> list[int]:
        values_of_pieces = self._values()
        cutoff = self._policy.may_win * min(map(statistics.median, values_of_pieces))
        return [index for index, values in enumerate(values_of_pieces) if min(values) <= cutoff]

    def _separate_close_pieces(self, rounds: int, further_rounds: int) -> None:
        """Take more samples of the pieces close to the best.

        The method ends when no other piece is close, or when the noise of the best is small enough.
        """
        close_ratio = self._policy.close
        for _ in range(self._policy.most_further):
            quartiles = [_quartiles(values) for values in self._values()]
            best = min(quartiles, key=lambda quartile: quartile.median)
            close_indices = [
                index
                for index, piece in enumerate(quartiles)
                if _is_close(piece, best, close_ratio)
            ]
            if len(close_indices) < 2:
                return
            took_further_rounds = len(self._samples[close_indices[0]]) > rounds
            is_precise = best.high - best.low <= (close_ratio - 1) * best.median
            if took_further_rounds and is_precise:
                return
            self._take(close_indices, further_rounds)


def _is_close(piece: _Quartiles, best: _Quartiles, close_ratio: float) -> bool:
    """Return whether a piece is close to the best by its median, or within its own noise."""
    is_within_noise = piece.low <= best.median
    return is_within_noise or piece.median / close_ratio <= best.median


def _summarize(times: list[float], replayed: bool) -> Timing:
    low, median, high = _quartiles(times)
    return Timing(median, high - low, len(times), replayed)


def _summarize_calls(call_times: list[CallTime]) -> CallTime:
    low, median, high = _quartiles([call_time.call_us for call_time in call_times])
    host_us = statistics.median(call_time.host_us for call_time in call_times)
    return CallTime(median, host_us, high - low)


def _quartiles(times: list[float]) -> _Quartiles:
    """Return the quartiles; a single value is all three of them."""
    if len(times) == 1:
        return _Quartiles(times[0], times[0], times[0])
    low, median, high = statistics.quantiles(times, n=4)
    return _Quartiles(low, median, high)
