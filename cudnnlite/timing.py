"""Timing on the device: what a GPU spends on a piece of work, without the host's share.

Work is recorded into a CUDA graph and replayed between two events; where recording is refused it is enqueued as it is.  Pieces
are taken in shuffled rounds, so that a change of the clock does not favour one of them, and the median counts.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cudnnlite.device import Device

Work = Callable[[], object]

GIVE_UP = 3.0  # work whose first run takes so many times the best one is not run again
_LOADING_MS = 50.0  # what a first run may spend on loading kernels (12 ms were seen): less than this is looked at twice
_ROUNDS = 9
_SAMPLE_MS = 0.5  # a sample repeats short work until it lasts about so long: events tick in half microseconds
_MOST_REPEATS = 64


class Timing(NamedTuple):
    """How long a piece of work takes.

    Attributes
    ----------
    ms : float
        The median.
    spread : float
        The distance between the quartiles, in milliseconds.
    samples : int
        How many samples the median is of.
    replayed : bool
        Whether a recorded graph was timed, so that no host time is contained.
    """

    ms: float
    spread: float
    samples: int
    replayed: bool


class Stopwatch:
    """Times pieces of work on one stream.

    Parameters
    ----------
    device : Device
        Where the work runs.
    stream : stream object
        What it is enqueued on; not the legacy default stream, which cannot be recorded.
    seed : int
        Of the shuffling.
    """

    def __init__(self, device: Device, stream: Any, *, seed: int = 0) -> None:
        self._device, self._stream = device, stream
        self._random = random.Random(seed)
        self._best_first = float("inf")

    def first(self, work: Work) -> float:
        """Run a piece of work once, as it is, and return its milliseconds."""
        ms = self._device.elapsed_ms(work, self._stream)
        self._best_first = min(self._best_first, ms)
        return ms

    def look_again(self, works: Sequence[Work], firsts: Sequence[float]) -> list[float]:
        """Return the milliseconds of the first runs, of a second run where the first may have waited for kernels to load.

        That is where it took more than `GIVE_UP` times the best, but less than `_LOADING_MS`.
        """
        return [
            min(ms, self.first(work)) if self._limit < ms < _LOADING_MS else ms
            for work, ms in zip(works, firsts, strict=True)
        ]

    def is_worth(self, first_ms: float) -> bool:
        """Tell whether work that took so long may still turn out to be the best."""
        return first_ms <= self._limit

    @property
    def _limit(self) -> float:
        return GIVE_UP * self._best_first

    def repeat(self, works: Sequence[Work], firsts: Sequence[float]) -> list[Timing]:
        """Time pieces that ran before, in shuffled rounds.

        Each must have run with the memory that it has now: graphs keep addresses.

        Parameters
        ----------
        works : sequence of callable
            Each enqueues its work on the stream.
        firsts : sequence of float
            What `look_again` returned for each, in milliseconds: it decides how often a sample repeats the work.
        """
        samples = [self._sample(work, ms) for work, ms in zip(works, firsts, strict=True)]
        taken: list[list[float]] = [[] for _ in works]
        order = list(range(len(works)))
        for _ in range(_ROUNDS):
            self._random.shuffle(order)
            for index in order:
                launch, repeats, _ = samples[index]
                taken[index].append(self._device.elapsed_ms(launch, self._stream) / repeats)
        return [_summary(times, replayed) for times, (_, _, replayed) in zip(taken, samples, strict=True)]

    def _sample(self, work: Work, first_ms: float) -> tuple[Work, int, bool]:
        repeats = max(1, min(_MOST_REPEATS, round(_SAMPLE_MS / max(first_ms, 1e-3))))

        def several() -> None:
            for _ in range(repeats):
                work()

        recorded = self._device.capture(several, self._stream)
        if recorded is None:
            return several, repeats, False
        recorded()  # the first launch uploads the graph
        return recorded, repeats, True


def _summary(times: list[float], replayed: bool) -> Timing:
    quartiles = statistics.quantiles(times, n=4) if len(times) > 1 else [0.0, 0.0, 0.0]
    return Timing(statistics.median(times), quartiles[2] - quartiles[0], len(times), replayed)
