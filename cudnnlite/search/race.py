"""`Race`: which candidate each real call of a problem runs, by the times of the calls so far."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.search.timing_policy import DEFAULT_TIMING, TimingPolicy
from cudnnlite.search.trial_budget import TrialBudget

# The most samples of a candidate: the least of three has little noise.
_MOST_SAMPLES = 3
# Times up to this multiple of the least are taken as equal; then the workspace decides.
_TIE_RATIO = 1.01
# Another candidate replaces the first one, which cuDNN's heuristic prefers, only if it is faster by
# more than this factor.  Among many candidates, one has a small time by chance: on an H100 a sample
# of short repeats varied by some percent.
_GAIN_OVER_THE_FIRST = 1.05
# The most repeats of a candidate without a time, which may be a slow one.
_MOST_REPEATS_AT_FIRST = 4
# One sample of a host that was slow for a while is too long by this factor at most, as measured.
_HOST_RATIO = 1.5
# The shortest time from which a number of repeats is computed.
_SHORTEST_MS = 1e-3
NOT_TRIED = "not tried: the likelier candidates came first"
_NO_CANDIDATES: Iterator[AlgorithmResult] = iter(())


class Turn(NamedTuple):
    """The candidate that a call runs, by its index.

    If `is_first`, this candidate has not run before, and its run may load kernels.  If the call may
    repeat the candidate, it runs it `repeats` times and times these runs.
    """

    candidate: int
    is_first: bool
    repeats: int


@dataclass
class Runner:
    """A candidate in a race, with the milliseconds of its runs.

    `first_ms`, the time of its first run, is an upper bound: kernels may be loaded in that run.
    `device_ms` and `host_ms` are the least times of the device, and of the host until a call
    returned.  In a run of the last sample, the device may have waited for the host for `wait_ms`.
    """

    row: AlgorithmResult
    runs: int = 0
    first_ms: float = inf
    times_ms: list[float] = field(default_factory=list)
    device_ms: float = inf
    host_ms: float = inf
    wait_ms: float = 0.0
    why_out: str = ""
    is_transient: bool = False

    @property
    def ms(self) -> float:
        """The least time; infinite if none is known."""
        return min(self.times_ms, default=self.first_ms)


def identity_of(row: AlgorithmResult) -> tuple[object, ...]:
    """Return the fields that distinguish candidates."""
    return row.algorithm, row.math_type, row.layout


class Race:
    """Lets candidates take turns in the calls of a program, until the fastest is known.

    The candidates of `rows` take turns first.  The caller may have further ones; a call reads the
    next of them when it is about to try one.

    Each candidate's first run may load kernels, so its time is an upper bound.  While this bound is
    the least of all times, the candidate needs no other run.  No candidate is excluded because of
    its bound.  A candidate whose next run takes clearly longer than the best is excluded.  Those
    close to the best run again.  A call that repeats its candidate does not time the first run.

    Parameters
    ----------
    rows : sequence of AlgorithmResult
        The first candidates, the likely ones first.  What calls run without a race is at the front.
    timing : TimingPolicy
        How many calls may try candidates, and which times are close.
    latency : bool
        Whether the time of a call decides: the host's time where it is longer than the device's.
    budget : TrialBudget, optional
        The time that trials took, in all races that have the budget.  By default it is a new one.

    Attributes
    ----------
    runners : list of Runner
        The candidates so far with their times: those of `rows`, and then further ones.
    calls : int
        How many calls have tried a candidate.
    winner : int or None
        The index of the fastest candidate; None as long as the race goes on.
    ranks_by_latency : bool
        Whether the time of a call decides.
    budget : TrialBudget
        The time that trials took; those who run candidates note it.
    is_saved : bool
        Whether the result was saved.  Several plans may end one race.
    """

    def __init__(
        self,
        rows: Sequence[AlgorithmResult],
        timing: TimingPolicy = DEFAULT_TIMING,
        *,
        latency: bool = False,
        budget: TrialBudget | None = None,
    ) -> None:
        self.runners = [Runner(row) for row in rows]
        self.ranks_by_latency = latency
        self.budget = TrialBudget() if budget is None else budget
        self._identities = {identity_of(row) for row in rows}
        self._held_back: list[AlgorithmResult] = []  # read, but to be tried later, if at all
        self.calls = 0
        self._leader: int | None = None  # None: to be looked for
        self.winner: int | None = None
        self.is_saved = False
        self._timing = timing

    @property
    def best_ms(self) -> float:
        """The least time of a candidate that is not excluded; infinite if none is known."""
        return min((runner.ms for runner in self.runners if not runner.why_out), default=inf)

    @property
    def leader(self) -> int:
        """The index of the fastest candidate so far.

        It is the winner, once there is one.  If several are equally fast, it is the one with the
        least workspace, and then the first.  The first candidate leads unless another is clearly
        faster, even if a slow host made the first one's calls longer.
        """
        if self.winner is not None:
            return self.winner
        if self._leader is None:
            self._leader = self.fastest_of(range(len(self.runners)))
        return self._leader

    def fastest_of(self, indices: Iterable[int]) -> int:
        """Return the index of the fastest of some candidates, by the rules for the leader.

        It is 0, the first candidate, if none of them can be used.
        """
        usable = [
            index
            for index in indices
            if self.runners[index].runs and not self.runners[index].why_out
        ]
        best_ms = min((self.runners[index].ms for index in usable), default=inf)
        first = self.runners[0]
        if 0 in usable and self._least_ms(first) <= _GAIN_OVER_THE_FIRST * best_ms:
            return 0
        tied = [index for index in usable if self.runners[index].ms <= _TIE_RATIO * best_ms]
        return min(tied, key=lambda index: self.runners[index].row.workspace, default=0)

    @property
    def is_overspent(self) -> bool:
        """Whether the race goes on, but trials took more than their share of the time."""
        return self.winner is None and self.budget.is_overspent(self._timing.real_share)

    @property
    def is_waiting(self) -> bool:
        """Whether the race goes on, but no trial may begin now: see `TrialBudget.allows`."""
        return self.winner is None and not self.budget.allows(self._timing.real_share)

    def is_out(self, index: int) -> bool:
        """Return whether a candidate will not run any more: it failed, or is clearly slower."""
        runner = self.runners[index]
        return bool(runner.why_out) or self._is_slower(runner)

    def _least_ms(self, runner: Runner, wait_ms: float = 0.0) -> float:
        """Return the time that a candidate takes at least, as the host may have been slow.

        For `wait_ms` of its time the device may have waited for the host.
        """
        if not self.ranks_by_latency:
            return max(runner.ms - wait_ms, 0.0)
        return max(runner.device_ms - wait_ms, runner.host_ms / _HOST_RATIO)

    def _sure_ms(self, runner: Runner) -> float:
        """Return the time by which a candidate is judged: after one sample, the least possible."""
        if len(runner.times_ms) != 1:
            return runner.ms
        return self._least_ms(runner, runner.wait_ms)

    def _is_slower(self, runner: Runner) -> bool:
        """Return whether a candidate's samples are clearly slower than the best."""
        if not runner.times_ms:
            return False
        return not self._is_close(runner)

    def next_turn(
        self, pending: Collection[int], candidates: Iterator[AlgorithmResult] = _NO_CANDIDATES
    ) -> Turn | None:
        """Return the candidate that the next call runs; None if it runs the leader.

        If no candidate needs another run, and no time is pending, the leader becomes the winner.
        As long as trials took more than their share of the time, the result is None.

        Parameters
        ----------
        pending : collection of int
            The indices of the candidates whose last run is not timed yet.
        candidates : iterator of AlgorithmResult
            Further candidates, the likely ones first; those that the race has are skipped.  It may
            raise any error, which ends this call's turn.  The next call reads from it again.
        """
        if self.winner is not None or self.is_waiting:
            return None
        index = self._next_index(pending, candidates)
        if index is None:
            if not pending:
                self.winner = self.leader
            return None
        runner = self.runners[index]
        turn = Turn(index, is_first=not runner.runs, repeats=self._repeats_of(runner))
        self.calls += 1
        runner.runs += 1
        self._leader = None
        return turn

    def _repeats_of(self, runner: Runner) -> int:
        """Return how many runs of a candidate last long enough to be timed together."""
        is_known = runner.ms < inf
        expected_ms = runner.ms if is_known else self.best_ms
        most_repeats = self._timing.most_repeats if is_known else _MOST_REPEATS_AT_FIRST
        repeats = round(self._timing.real_sample_ms / max(expected_ms, _SHORTEST_MS))
        return max(1, min(most_repeats, repeats))

    def _next_index(
        self, pending: Collection[int], candidates: Iterator[AlgorithmResult]
    ) -> int | None:
        if self.calls >= self._timing.real_calls:
            return None
        untimed = self._next_untimed(pending, candidates)
        if untimed is not None:
            return untimed
        if self._held_back and self._least_sampled_ms == inf and self.leader not in pending:
            return self.leader  # by its time, those that were held back are tried or left out
        return self._next_close(pending)

    def _next_untimed(
        self, pending: Collection[int], candidates: Iterator[AlgorithmResult]
    ) -> int | None:
        """Return the first candidate that has no time yet, unless the last calls have begun."""
        leader = self.leader
        # Each candidate that ran once, untimed, needs one more call.
        num_second_runs = sum(
            runner.runs == 1 and not runner.times_ms and not runner.why_out
            for runner in self.runners
        )
        calls_left = self._timing.real_calls - self.calls - num_second_runs
        may_try_new = calls_left > self._timing.confirming_calls
        for index, runner in enumerate(self.runners):
            if runner.times_ms or runner.why_out or index in pending:
                continue
            if index == leader and runner.first_ms < inf:
                continue
            if runner.runs or may_try_new:
                return index
        return self._next_new(candidates) if may_try_new else None

    def _next_new(self, candidates: Iterator[AlgorithmResult]) -> int | None:
        """Return the next further candidate, which joins the race; None if there is none.

        None too if the latest ones were so slow that the rest, less likely still, is not read.  A
        candidate that cuDNN has to compile is held back until the time of calls is known, and left
        out if they are short.
        """
        while not self._rest_is_slow:
            try:
                row = self._next_row(candidates)
            except BaseException:
                # The failed reading counts as a call that tries a candidate, so that the race ends
                # if candidates can never be read.
                self.calls += 1
                raise
            if row is None:
                return None
            identity = identity_of(row)
            if identity in self._identities:
                continue
            if row.compiled and not self.runners[0].row.compiled:
                if self._least_sampled_ms == inf:
                    self._held_back.append(row)
                    continue
                if self._least_sampled_ms < self._timing.real_compile_ms:
                    continue
            self._identities.add(identity)
            self.runners.append(Runner(row))
            return len(self.runners) - 1
        return None

    def _next_row(self, candidates: Iterator[AlgorithmResult]) -> AlgorithmResult | None:
        """Return the next further candidate, those that were held back first."""
        if self._held_back and self._least_sampled_ms < inf:
            return self._held_back.pop(0)
        return next(candidates, None)

    @property
    def _least_sampled_ms(self) -> float:
        """The device's least time for a candidate; infinite if all times may include loading."""
        return min(
            (runner.device_ms for runner in self.runners if runner.times_ms and not runner.why_out),
            default=inf,
        )

    @property
    def _rest_is_slow(self) -> bool:
        """Whether the latest candidates with a time were all clearly slower than the best."""
        if not self._timing.real_losers:
            return False
        timed = [runner for runner in self.runners[1:] if runner.times_ms and not runner.why_out]
        latest = timed[-self._timing.real_losers :]
        cutoff_ms = self._timing.may_win * self.best_ms
        losers = [runner for runner in latest if self._least_ms(runner) > cutoff_ms]
        return len(losers) == self._timing.real_losers

    def _next_close(self, pending: Collection[int]) -> int | None:
        """Return the candidate close to the best that has the fewest samples.

        Of several it is the first one, which leads unless another is clearly faster, and then the
        one whose time may be the least.  None if no other one is close to the best, or if there are
        enough samples of each.
        """
        close = [
            index
            for index, runner in enumerate(self.runners)
            if runner.ms < inf and not runner.why_out and self._is_close(runner)
        ]
        undersampled = [
            index
            for index in close
            if index not in pending and len(self.runners[index].times_ms) < _MOST_SAMPLES
        ]
        if len(close) < 2 or not undersampled:
            return None

        def order(index: int) -> tuple[int, bool, float, float]:
            runner = self.runners[index]
            return len(runner.times_ms), index > 0, self._sure_ms(runner), runner.ms

        return min(undersampled, key=order)

    def _is_close(self, runner: Runner) -> bool:
        """Return whether a candidate is close to the best; one sample is judged less strictly."""
        ratio = self._timing.may_win if len(runner.times_ms) == 1 else self._timing.close
        return self._sure_ms(runner) <= ratio * self.best_ms

    def record(
        self,
        index: int,
        device_ms: float,
        *,
        is_first: bool,
        host_ms: float = 0.0,
        wait_ms: float = 0.0,
    ) -> None:
        """Record the times of a run: of the device, and of the host until the call returned.

        The device may have waited for `wait_ms` of its time.  This counts while the candidate has no
        other sample.
        """
        runner = self.runners[index]
        runner.device_ms = min(runner.device_ms, device_ms)
        runner.host_ms = min(runner.host_ms, host_ms)
        ms = max(device_ms, host_ms) if self.ranks_by_latency else device_ms
        if is_first:
            runner.first_ms = ms
        # Loading never takes longer than `loading_ms`: such a candidate is slow itself.
        is_slow = ms - self._timing.loading_ms > self._timing.give_up * self.best_ms
        if is_slow or not is_first:
            runner.times_ms.append(ms)
            runner.wait_ms = wait_ms
        self._leader = None

    def exclude(self, index: int, why: str, *, is_transient: bool = False) -> None:
        """Exclude a candidate that failed; if it was the winner, the race goes on."""
        runner = self.runners[index]
        runner.why_out, runner.is_transient = why, is_transient
        self._leader = None
        if self.winner == index:
            self.winner = None

    def rows(self) -> list[AlgorithmResult]:
        """Return the candidates with their times: the winner or leader first, failed ones last."""
        leader = self.leader
        order = sorted(range(len(self.runners)), key=lambda index: self.runners[index].ms)
        rows = [self._row_of(self.runners[index]) for index in order if index != leader]
        usable = [row for row in rows if row.ok]
        unusable = [row for row in rows if not row.ok]
        return [self.row(leader), *usable, *unusable]

    def row(self, index: int) -> AlgorithmResult:
        """Return the row of a candidate that may be chosen, with its times if there are any."""
        runner = self.runners[index]
        row = self._row_of(runner)
        return row if row.ok else runner.row  # nothing was timed: calls go on as without a race

    def _row_of(self, runner: Runner) -> AlgorithmResult:
        """Return a candidate's row with its times, or with the reason why it has none."""
        if runner.why_out:
            return replace(runner.row, why_not=runner.why_out, transient=runner.is_transient)
        if runner.ms == inf:
            return replace(runner.row, why_not=NOT_TRIED)
        spread_ms = max(runner.times_ms, default=runner.ms) - runner.ms
        if not self.ranks_by_latency:
            return replace(runner.row, time_ms=runner.ms, spread_ms=spread_ms)
        return replace(
            runner.row,
            time_ms=runner.device_ms,
            call_us=1000 * runner.ms,
            call_spread_us=1000 * spread_ms,
            host_us=1000 * runner.host_ms,
        )
