"""TimingPolicy: which values of its fields are allowed together."""

import pytest

import cudnnlite as dnn
from cudnnlite.search.race import Race
from cudnnlite.search.timing_policy import DEFAULT_TIMING, ONE_LOOK, TimingPolicy, parse_timing


@pytest.mark.parametrize("timing", [DEFAULT_TIMING, ONE_LOOK], ids=["default", "one look"])
def test_what_handles_begin_with_is_allowed(timing):
    assert parse_timing(timing) is timing


def number_tried(timing, repeatable):
    """Return how many candidates the calls of a race try.

    Unless calls are repeatable, each candidate's first run may load kernels.
    """
    rows = [dnn.AlgorithmResult(dnn.Engine(index), dnn.MathType.FMA) for index in range(9)]
    race = Race(rows, timing)
    while race.winner is None:
        turn = race.next_turn(())
        if turn is not None:
            is_first = turn.is_first and not repeatable
            race.record(turn.candidate, 1.0, is_first=is_first)
    return sum(runner.runs > 0 for runner in race.runners)


@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("confirming_calls", [0, 1, 4, 50])
def test_with_the_fewest_real_calls_a_new_candidate_is_tried(confirming_calls, repeatable):
    refused = TimingPolicy(real_calls=confirming_calls + 2, confirming_calls=confirming_calls)
    with pytest.raises(dnn.ArgumentError, match="no call would try a new candidate; allowed: "):
        parse_timing(refused)
    timing = parse_timing(refused._replace(real_calls=confirming_calls + 3))
    assert number_tried(timing, repeatable) >= 2
