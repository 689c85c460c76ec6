"""TrialBudget: which share of the time trials took, and what races do about it."""

from __future__ import annotations

import pytest
from helpers.clock import Clock

import cudnnlite as dnn
from cudnnlite.search.race import Race
from cudnnlite.search.timing_policy import TimingPolicy
from cudnnlite.search.trial_budget import TrialBudget


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch, seconds=100.0)


def test_a_share_of_the_time(clock: Clock) -> None:
    budget = TrialBudget()
    assert budget.allows(0.25)
    with budget.spending():
        clock.seconds += 1.0
    assert not budget.allows(0.25)
    assert budget.allows(1.0)
    clock.seconds += 3.0
    assert budget.allows(0.25)
    budget.spend(1.0)
    assert not budget.allows(0.25)


def test_the_time_counts_after_an_error_too(clock: Clock) -> None:
    budget = TrialBudget()

    def fail() -> None:
        with budget.spending():
            clock.seconds += 1.0
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not budget.allows(0.5)


def rows(count: int) -> list[dnn.AlgorithmResult]:
    return [dnn.AlgorithmResult(dnn.Engine(index), dnn.MathType.FMA) for index in range(count)]


def test_a_race_waits_until_trials_have_their_share(clock: Clock) -> None:
    """The budget is that of several races."""
    budget = TrialBudget()
    timing = TimingPolicy(real_share=0.5, confirming_calls=0)
    first, second = (Race(rows(3), timing, budget=budget) for _ in range(2))
    turn = first.next_turn(())
    assert turn is not None
    assert turn.candidate == 0
    with budget.spending():
        clock.seconds += 1.0
    first.record(0, 1.0, is_first=False)
    for race in (first, second):
        assert race.next_turn(()) is None
        assert race.winner is None
    assert first.calls == 1
    clock.seconds += 1.0
    turn = second.next_turn(())
    assert turn is not None
    assert second.calls == 1


class LateTimer:
    """A timer whose trials end when it is told so."""

    def __init__(self, budget: TrialBudget) -> None:
        self.budget = budget
        self.has_ended = False
        budget.timers.add(self)

    def collect(self) -> None:
        if self.has_ended:
            self.budget.timers.discard(self)


def test_no_trial_begins_before_the_time_of_the_last_one_is_known(clock: Clock) -> None:
    budget = TrialBudget()
    timer = LateTimer(budget)
    clock.seconds += 10.0
    assert not budget.allows(0.5)
    assert budget.allows(1.0)
    timer.has_ended = True
    assert budget.allows(0.5)
    lost = LateTimer(budget)
    assert not budget.allows(0.5)
    del lost  # its plan was closed
    assert budget.allows(0.5)


def test_without_a_share_trials_take_turns_at_once() -> None:
    race = Race(rows(2))
    race.budget.spend(1e6)
    assert race.next_turn(()) is not None
