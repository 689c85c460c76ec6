"""`TrialBudget`: the time that the trials of a program's calls took, as a share of all time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Protocol
from weakref import WeakSet


class Timer(Protocol):
    """What times trials on the device."""

    def collect(self) -> None:
        """Note the times of the trials that have ended, and leave `timers` if all have."""


class TrialBudget:
    """The time since it was made, and the part of it that trials took.

    The time of a trial is the host's, plus the device's.  The two overlap, so the sum is an upper
    bound.

    Attributes
    ----------
    timers : WeakSet of Timer
        Those whose last trials have not ended, of all races with this budget.
    """

    def __init__(self) -> None:
        self.timers: WeakSet[Timer] = WeakSet()
        self._begin = perf_counter()
        self._spent_s = 0.0

    def is_overspent(self, share: float) -> bool:
        """Return whether the trials whose times are known took more than this share of the time."""
        return share < 1 and self._spent_s > share * (perf_counter() - self._begin)

    def allows(self, share: float) -> bool:
        """Return whether another trial may begin; asks the device for the times of the last ones.

        It may if trials took at most this share of the time, and if the times of all are known.
        """
        if share >= 1:
            return True
        if self.is_overspent(share):
            return False
        for timer in list(self.timers):
            timer.collect()
        return not self.timers and not self.is_overspent(share)

    def spend(self, ms: float) -> None:
        """Add the time of a trial."""
        self._spent_s += ms / 1000

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Add the host's time in a block, also after an error."""
        begin = perf_counter()
        try:
            yield
        finally:
            self.spend(1000 * (perf_counter() - begin))
