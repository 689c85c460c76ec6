"""Race: which candidate each call runs, what counts of a run, and who wins."""

import random

import pytest

import cudnnlite as dnn
from cudnnlite.search.race import NOT_TRIED, Race
from cudnnlite.search.timing_policy import DEFAULT_TIMING, TimingPolicy

FMA = dnn.MathType.FMA
LOADING_MS = 9.0


def engine(index, knob=0, workspace=0, **fields):
    return dnn.AlgorithmResult(dnn.Engine(index, {2: knob}), FMA, workspace=workspace, **fields)


def run(race, times_ms, repeatable=False, delay=0):
    """Run a race whose candidates take these times, and whose first runs load kernels.

    With `repeatable`, the first run of each call is not timed.  Samples are known `delay` calls
    later.  Returns the candidates in the order of their runs.
    """
    runs, pending = [], []
    for call in range(1000):
        while pending and pending[0][0] <= call:
            _, index, ms, is_first = pending.pop(0)
            race.record(index, ms, is_first=is_first)
        turn = race.next_turn({index for _, index, *_ in pending})
        if race.winner is not None:
            break
        if turn is None:
            continue
        runs.append(turn.candidate)
        loads = turn.is_first and not repeatable
        ms = times_ms[turn.candidate] + LOADING_MS * loads
        pending.append((call + 1 + delay, turn.candidate, ms, loads))
    return runs


@pytest.mark.parametrize("delay", [0, 1, 5, 40])
@pytest.mark.parametrize("repeatable", [False, True])
def test_the_fastest_of_those_that_were_tried_wins(repeatable, delay):
    rng = random.Random(delay)
    for _ in range(50):
        times_ms = [rng.uniform(0.1, 1.0) for _ in range(rng.randint(2, 12))]
        race = Race([engine(index) for index in range(len(times_ms))])
        runs = run(race, times_ms, repeatable, delay)
        timed = [index for index in set(runs) if race.runners[index].times_ms]
        fastest = min(times_ms[index] for index in timed)
        assert timed
        # The first candidate is replaced only by one that is clearly faster.
        allowed = 1.05 if race.winner == 0 else 1.01
        assert times_ms[race.winner] <= allowed * fastest
        assert race.calls <= TimingPolicy().real_calls


def test_the_leader_is_always_that_of_the_times_so_far():
    """A race remembers its leader; another one with the same times looks for it."""

    def anew(race):
        other = Race([])
        other.runners, other.winner = race.runners, race.winner
        return other

    rng = random.Random(1)
    leaders = set()
    for _ in range(100):
        rows = [engine(index, workspace=rng.choice([0, 100])) for index in range(4)]
        race = Race(rows)
        for _ in range(12):
            turn = race.next_turn(())
            leaders.add(race.leader)
            assert race.leader == anew(race).leader
            index = rng.randrange(4) if turn is None else turn.candidate
            if rng.random() < 0.2:
                race.exclude(index, "it failed")
            else:
                race.record(index, rng.choice([1.0, 1.005, 2.0, 3.0]), is_first=rng.random() < 0.5)
            assert race.leader == anew(race).leader
    assert len(leaders) == 4


@pytest.mark.parametrize(("latency", "winner"), [(False, 1), (True, 0)])
def test_the_host_counts_where_calls_decide(latency, winner):
    """The second candidate takes the device less, and the host longer than both."""
    race = Race([engine(0), engine(1)], latency=latency)
    for index, device_ms, host_ms in [(0, 0.012, 0.008), (1, 0.010, 0.040)] * 2:
        race.record(index, device_ms, host_ms=host_ms, is_first=False)
        race.runners[index].runs += 1
    run(race, [0.012, 0.010] if not latency else [0.012, 0.040], repeatable=True)
    assert race.winner == winner
    first, second = race.rows()
    assert first.algorithm.index == winner
    row = first if winner == 1 else second
    assert row.time_ms == 0.010
    assert row.host_us == (pytest.approx(40.0) if latency else None)
    assert row.call_us == (pytest.approx(40.0) if latency else None)


def test_one_slow_sample_of_the_host_puts_nobody_out():
    race = Race([engine(0), engine(1), engine(2)], latency=True)
    for index, host_ms in [(0, 0.010), (1, 0.014), (2, 0.040)]:
        race.runners[index].runs += 1
        race.record(index, 0.005, host_ms=host_ms, is_first=False)
    assert [race.is_out(index) for index in range(3)] == [False, False, True]
    race.record(1, 0.005, host_ms=0.014, is_first=False)
    assert race.is_out(1)


def test_a_slow_host_does_not_replace_the_first():
    """Its calls took the host twice as long for a while; the other one takes the device longer."""
    race = Race([engine(0), engine(1)], latency=True)
    for index, device_ms, host_ms in [(0, 0.020, 0.040), (1, 0.029, 0.010)] * 2:
        race.runners[index].runs += 1
        race.record(index, device_ms, host_ms=host_ms, is_first=False)
    assert race.leader == 0


def test_loading_does_not_count():
    """The first candidate loads kernels for much longer than the second one takes."""
    race = Race([engine(0), engine(1)])
    run(race, [0.1, 0.2])
    assert race.winner == 0
    assert race.runners[0].ms == 0.1


def test_a_first_run_that_is_the_fastest_counts_as_a_bound():
    race = Race([engine(0), engine(1)])
    race.next_turn(())
    race.record(0, 5.0, is_first=True)
    assert race.next_turn(()).candidate == 1
    race.record(1, 0.5, is_first=True)
    assert race.leader == 1
    assert race.next_turn(()).candidate == 0  # whose own first run says nothing against it
    race.record(0, 0.4, is_first=False)
    assert not race.is_out(1)


def test_what_is_far_off_has_one_sample():
    race = Race([engine(0), engine(1), engine(2)])
    runs = run(race, [1.0, 3.0, 0.8])
    assert runs.count(1) == 2  # the first run, and the one that counts
    assert race.is_out(1)
    assert race.winner == 2


def test_the_first_candidate_stays_unless_another_is_clearly_faster():
    for times_ms, winner in (([1.0, 0.96], 0), ([1.0, 0.95], 1)):
        race = Race([engine(0), engine(1)])
        run(race, times_ms)
        assert race.winner == winner


def test_short_runs_are_repeated_and_those_of_unknown_length_less_often():
    race = Race([engine(0), engine(1), engine(2)], TimingPolicy(real_sample_ms=0.1))
    assert race.next_turn(()).repeats == 1  # nothing is known yet
    race.record(0, 0.02, is_first=False)
    assert race.next_turn(()) == (1, True, 4)
    race.record(1, 0.021, is_first=False)
    assert race.next_turn(()) == (2, True, 4)
    race.record(2, 0.5, is_first=False)
    assert race.next_turn(()) == (0, False, 5)
    race = Race([engine(0), engine(1)], TimingPolicy(real_sample_ms=0.1))
    race.next_turn(())
    race.record(0, 7.0, is_first=False)
    assert race.next_turn(()).repeats == 1


def test_a_first_run_beyond_any_loading_is_enough():
    race = Race([engine(0), engine(1)])
    runs = run(race, [1.0, 500.0])
    assert runs.count(1) == 1
    assert race.is_out(1)


def test_a_slow_setting_says_nothing_about_the_other_settings_of_its_engine():
    race = Race([engine(0), engine(1, 0), engine(1, 1), engine(2)])
    run(race, [1.0, 9.0, 0.1, 1.2])
    assert race.winner == 2


def test_a_sample_that_may_be_too_long_is_not_the_only_one():
    """The device waited for the host in the first samples of two candidates."""
    race = Race([engine(0), engine(1), engine(2)])
    samples_ms = {0: [0.012], 1: [0.025, 0.009], 2: [0.040]}
    while race.winner is None:
        turn = race.next_turn(())
        if turn is not None:
            times_ms = samples_ms[turn.candidate]
            ms = times_ms.pop(0) if len(times_ms) > 1 else times_ms[0]
            race.record(turn.candidate, ms, is_first=False, wait_ms=0.015)
    assert race.winner == 1
    assert len(race.runners[2].times_ms) == 1


def test_the_first_and_then_the_most_promising_are_compared():
    times_ms = [0.96, 0.9, 0.8]
    race = Race([engine(index) for index in range(3)])
    for index, ms in enumerate(times_ms):
        assert race.next_turn(()).candidate == index
        race.record(index, ms, is_first=False)
    compared = []
    while race.winner is None:
        turn = race.next_turn(())
        if turn is not None:
            compared.append(turn.candidate)
            race.record(turn.candidate, times_ms[turn.candidate], is_first=False)
    assert compared[:3] == [0, 2, 1]
    assert race.winner == 2


@pytest.mark.parametrize(("ms_again", "winner"), [(0.100, 1), (0.071, 0)])
def test_the_first_runs_again_if_the_device_may_have_waited(ms_again, winner):
    race = Race([engine(0), engine(1)])
    for index, ms in enumerate([0.100, 0.070]):
        race.runners[index].runs += 1
        race.record(index, ms, is_first=False, wait_ms=0.03)
    assert race.leader == 1
    assert race.next_turn(()).candidate == 0
    race.record(0, ms_again, is_first=False)
    run(race, [ms_again, 0.070], repeatable=True)
    assert race.winner == winner


def test_what_the_device_waited_for_does_not_make_a_candidate_more_promising():
    """Its least possible time is not below zero, and then the time that was measured decides."""
    race = Race([engine(index) for index in range(3)])
    for index, (ms, wait_ms) in enumerate([(0.011, 0.0), (0.020, 0.030), (0.012, 0.015)]):
        race.runners[index].runs += 1
        race.record(index, ms, is_first=False, wait_ms=wait_ms)
    race.runners[0].times_ms.append(0.011)
    assert race.next_turn(()).candidate == 2


def test_of_equal_times_the_least_workspace_wins():
    rows = [engine(0), engine(1, workspace=9), engine(2, workspace=3), engine(3, workspace=3)]
    race = Race(rows)
    run(race, [2.0, 1.0, 1.001, 1.002])
    assert race.winner == 2


def test_the_last_calls_try_nothing_new():
    race = Race(
        [engine(index) for index in range(30)], TimingPolicy(real_calls=6, confirming_calls=3)
    )
    runs = run(race, [1.0] * 30)
    assert len(runs) == 6
    assert len(set(runs[-3:])) < 3
    assert race.winner is not None
    assert sum(row.why_not == NOT_TRIED for row in race.rows()) >= 26


def test_what_failed_does_not_win():
    race = Race([engine(0), engine(1)])
    race.next_turn(())
    race.exclude(0, "it fails")
    run(race, [0.1, 0.5])
    assert race.winner == 1
    race.exclude(1, "no memory for it", is_transient=True)
    assert race.winner is None
    rows = race.rows()
    assert [row.why_not for row in rows[1:]] == ["no memory for it"]
    assert rows[1].transient


def test_a_lost_sample_is_taken_again():
    """An interrupt came between a run and its second event."""
    race = Race([engine(0), engine(1)])
    race.next_turn(())
    assert race.next_turn(()).candidate == 0
    assert race.next_turn(()).candidate == 0


def test_rows_have_the_winner_first():
    race = Race([engine(index) for index in range(4)])
    run(race, [0.4, 0.3, 0.1, 0.2])
    rows = race.rows()
    assert [row.algorithm.index for row in rows] == [2, 3, 1, 0]
    assert rows[0].time_ms == 0.1
    assert all(row.ok for row in rows)


def test_further_candidates_are_asked_for_one_at_a_time():
    candidates = iter([engine(0), engine(1), engine(1, 1), engine(2)])
    race = Race([engine(0)])
    assert race.next_turn((), candidates).candidate == 0
    assert len(race.runners) == 1
    race.record(0, 1.0, is_first=False)
    assert race.next_turn((), candidates).candidate == 1  # engine 0 is in the race
    assert [runner.row.algorithm.index for runner in race.runners] == [0, 1]
    race.record(1, 9.0, is_first=False)
    assert race.next_turn((), candidates).candidate == 2
    race.record(2, 1.0, is_first=False)
    assert race.next_turn((), candidates).candidate == 3
    race.record(3, 0.5, is_first=False)
    while race.winner is None:
        turn = race.next_turn((), candidates)
        if turn is not None:
            race.record(turn.candidate, 0.5 if turn.candidate == 3 else 1.0, is_first=False)
    assert race.winner == 3


def test_the_last_calls_ask_for_no_candidate():
    race = Race([engine(0)], TimingPolicy(real_calls=4, confirming_calls=2))
    candidates = (engine(index) for index in range(1, 30))
    while race.winner is None:
        turn = race.next_turn((), candidates)
        if turn is not None:
            race.record(turn.candidate, 1.0, is_first=False)
    assert len(race.runners) == 2


def run_further(times_ms, timing=DEFAULT_TIMING, delay=0):
    """Run a race whose further candidates take these times; return how many joined it."""
    race = Race([engine(0)], timing)
    candidates = (engine(index) for index in range(1, len(times_ms)))
    pending = []
    for call in range(100):
        while pending and pending[0][0] <= call:
            _, index = pending.pop(0)
            race.record(index, times_ms[index], is_first=False)
        turn = race.next_turn({index for _, index in pending}, candidates)
        if turn is not None:
            pending.append((call + 1 + delay, turn.candidate))
    assert race.winner is not None
    return len(race.runners)


def test_the_rest_is_left_out_behind_many_slow_ones():
    patient = TimingPolicy(real_calls=30)
    times_ms = [1.0, *[2.0] * 5, *[0.1] * 5]
    assert run_further(times_ms, patient) == 1 + 3
    assert run_further(times_ms, patient._replace(real_losers=6)) == len(times_ms)
    assert run_further(times_ms, patient._replace(real_losers=0)) == len(times_ms)
    # While the times of the slow ones are not known yet, others are tried.
    assert run_further([1.0, *[2.0] * 20], patient, delay=3) == 1 + 3 + 3


def test_a_close_candidate_begins_the_count_again():
    timing = TimingPolicy(real_calls=30)
    assert run_further([1.0, *[2.0] * 2, 1.1, *[2.0] * 9], timing) == 1 + 2 + 1 + 3
    # The first one, which calls run anyway, may be the slow one.
    assert run_further([9.0, *[1.0] * 6], timing._replace(real_losers=1)) == 7


def turn_behind(first, candidates, device_ms, **fields):
    """Return a race whose first candidate took these ms, and the engine of its next turn."""
    race = Race([first], latency=True)
    race.next_turn(())
    race.record(0, device_ms, **{"is_first": False} | fields)
    turn = race.next_turn((), candidates)
    return race, race.runners[turn.candidate].row.algorithm.index


@pytest.mark.parametrize(
    ("device_ms", "host_ms", "is_first_compiled", "expected"),
    [
        (0.04, 0.0, False, 2),
        (0.06, 0.0, False, 1),
        (0.04, 0.06, False, 2),
        (0.04, 0.0, True, 1),
    ],
)
def test_cudnn_compiles_no_engine_for_short_calls(device_ms, host_ms, is_first_compiled, expected):
    """The device's time decides, and nothing if the first candidate is compiled anyway."""
    first = engine(0, compiled=is_first_compiled)
    candidates = iter([engine(1, compiled=True), engine(2)])
    _, tried = turn_behind(first, candidates, device_ms, host_ms=host_ms)
    assert tried == expected


@pytest.mark.parametrize(("sample_ms", "expected"), [(0.04, 3), (0.06, 1)])
def test_an_engine_to_compile_is_held_back_until_calls_have_a_time(sample_ms, expected):
    """A first run that may have loaded kernels says nothing."""
    candidates = iter([engine(1, compiled=True), engine(2), engine(3)])
    race, tried = turn_behind(engine(0), candidates, 4.0, is_first=True)
    assert tried == 2
    race.record(1, sample_ms, is_first=False)
    numbers = []
    while len(numbers) < 2:
        turn = race.next_turn((), candidates)
        race.record(turn.candidate, sample_ms, is_first=False)
        numbers.append(race.runners[turn.candidate].row.algorithm.index)
    # The first candidate runs again, because its only time is a bound.
    assert numbers == [0, expected]


def test_an_engine_to_compile_is_held_back_while_a_time_is_pending():
    race = Race([engine(0)])
    race.next_turn(())
    candidates = iter([engine(1, compiled=True)])
    assert race.next_turn({0}, candidates) is None
    race.record(0, 0.06, is_first=False)
    turn = race.next_turn((), candidates)
    assert race.runners[turn.candidate].row.algorithm.index == 1


def test_a_race_ends_where_candidates_can_never_be_read():
    def failing():
        raise dnn.NotSupportedError("cudnnX", dnn.Status.NOT_SUPPORTED, "never")
        yield

    race = Race([engine(0)], TimingPolicy(real_calls=6))
    errors = 0
    for _ in range(20):
        try:
            turn = race.next_turn((), failing())
        except dnn.NotSupportedError:
            errors += 1
            continue
        if turn is not None:
            race.record(turn.candidate, 1.0, is_first=False)
    assert race.winner == 0
    assert 0 < errors < 6


def test_engines_to_compile_are_tried_although_calls_may_not_repeat():
    """Such calls have a bound alone at first, which says nothing about the time of calls."""
    race = Race([engine(0)])
    assert race.next_turn(()) is not None
    race.record(0, 20.0, is_first=True)
    candidates = iter([engine(1, compiled=True)])
    again = race.next_turn((), candidates)
    assert (again.candidate, again.is_first) == (0, False)
    assert race.next_turn({0}, candidates) is None
    assert race.winner is None
    race.record(0, 0.06, is_first=False)
    turn = race.next_turn((), candidates)
    assert race.runners[turn.candidate].row.algorithm.index == 1


@pytest.mark.parametrize("failures", [0, 3])
def test_a_candidate_that_fails_takes_one_call(failures):
    timing = TimingPolicy(real_losers=0)
    race = Race([engine(0)], timing)
    candidates = iter(engine(index) for index in range(1, 40))
    for _ in range(timing.real_calls - timing.confirming_calls):
        turn = race.next_turn((), candidates)
        if 1 <= turn.candidate <= failures:
            race.exclude(turn.candidate, "not today")
        else:
            race.record(turn.candidate, 1.0, is_first=False)
    assert len(race.runners) == timing.real_calls - timing.confirming_calls


@pytest.mark.parametrize(
    ("indices", "expected"), [((0, 1, 2, 3), 3), ((0, 1, 2), 1), ((0, 2), 0), ((2,), 2), ((), 0)]
)
def test_the_fastest_of_some_follows_the_rules_for_the_leader(indices, expected):
    """The first one stays unless another is clearly faster; of equal ones, the least workspace."""
    workspaces, times_ms = (0, 6, 7, 9), (1.0, 0.9, 0.99, 0.5)
    race = Race([engine(index, workspace=size) for index, size in enumerate(workspaces)])
    for index, ms in enumerate(times_ms):
        race.next_turn(())
        race.record(index, ms, is_first=False)
    assert race.fastest_of(indices) == expected
    race.exclude(1, "not today")
    assert race.fastest_of((1, 2)) == 2
