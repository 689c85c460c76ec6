"""Stopwatch: what is run how often, and what counts, on a device whose clock is told what to say."""

import statistics
from collections import Counter

import pytest

from cudnnlite.timing import GIVE_UP, Stopwatch, Timing


class Clock:
    """A device whose works take what they are said to take: nothing here looks at the real time.

    A work is a `Work`; `elapsed_ms` adds up what the works that ran inside it take.
    """

    def __init__(self, records=True, launch_ms=0.0):
        self.records, self.launch_ms = records, launch_ms
        self.streams, self.log, self.samples = [], [], []
        self.launches = 0
        self._now = 0.0
        self._recording = None

    def spend(self, ms, name):
        if self._recording is not None:
            self._recording.append((ms, name))
        else:
            self._now += ms
            self.log.append(name)

    def elapsed_ms(self, work, stream):
        assert self._recording is None, "timed inside a recording"
        self.streams.append(stream)
        before, already = self._now, len(self.log)
        work()
        self.samples.append((self._now - before, self.log[already:]))
        return self._now - before

    def capture(self, work, stream):
        self.streams.append(stream)
        if not self.records:
            return None
        self._recording = []
        work()
        recorded, self._recording = self._recording, None

        def launch():
            self.launches += 1
            self._now += self.launch_ms
            for ms, name in recorded:
                self.spend(ms, name)

        return launch


class Work:
    """Takes `ms` milliseconds each time; the first `cold` runs take so much more, in order."""

    def __init__(self, clock, name, ms, cold=()):
        self.clock, self.name, self.ms, self.cold = clock, name, ms, list(cold)
        self.calls = 0

    def __call__(self):
        self.calls += 1
        self.clock.spend(self.ms + (self.cold.pop(0) if self.cold else 0.0), self.name)


STREAM = object()


def measure(clock, works, **options):
    """Do what a search does; return the positions that were repeated, their timings, and the first times."""
    stopwatch = Stopwatch(clock, STREAM, **options)
    firsts = stopwatch.look_again(works, [stopwatch.first(work) for work in works])
    worth = worth_repeating(stopwatch, firsts)
    return worth, stopwatch.repeat([works[i] for i in worth], [firsts[i] for i in worth]), firsts


def worth_repeating(stopwatch, firsts):
    return [position for position, ms in enumerate(firsts) if stopwatch.is_worth(ms)]


def test_the_first_run_is_told_as_it_is():
    clock = Clock()
    works = [Work(clock, "a", 2.0), Work(clock, "b", 5.0, cold=[7.0])]
    stopwatch = Stopwatch(clock, STREAM)
    assert [stopwatch.first(work) for work in works] == [2.0, 12.0]
    assert [work.calls for work in works] == [1, 1]
    assert clock.streams == [STREAM] * 2


def test_three_times_the_best_is_given_up():
    assert GIVE_UP == 3.0
    clock = Clock()
    works = [Work(clock, "best", 20.0), Work(clock, "at_the_limit", 60.0), Work(clock, "beyond", 60.5)]
    worth, timings, firsts = measure(clock, works)
    assert firsts == [20.0, 60.0, 60.5]
    assert worth == [0, 1]
    assert works[2].calls == 1, "it was repeated"
    assert [timing.ms for timing in timings] == [20.0, 60.0]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)], ids=str)
def test_the_order_of_the_first_runs_does_not_matter(order):
    """The slow one may come first, when nothing better is known yet."""
    clock = Clock()
    works = [Work(clock, "fast", 30.0), Work(clock, "middle", 80.0), Work(clock, "slow", 400.0)]
    worth, _, _ = measure(clock, [works[i] for i in order])
    assert sorted(order[position] for position in worth) == [0, 1]
    assert works[2].calls == 1


def test_what_may_have_waited_for_kernels_is_looked_at_again():
    """Below 50 ms a first run may have been loading; a second look decides, and only then."""
    clock = Clock()
    works = [
        Work(clock, "best", 0.5), Work(clock, "loaded_first", 0.4, cold=[12.0]), Work(clock, "slow", 2.0),
        Work(clock, "slow_and_loaded", 2.0, cold=[12.0]), Work(clock, "hopeless", 51.0),
    ]  # fmt: skip
    stopwatch = Stopwatch(clock, STREAM)
    firsts = stopwatch.look_again(works, [stopwatch.first(work) for work in works])
    assert firsts == pytest.approx([0.5, 0.4, 2.0, 2.0, 51.0])  # the newest, without the loading
    assert worth_repeating(stopwatch, firsts) == [0, 1]
    assert [work.calls for work in works] == [1, 2, 2, 2, 1]


def test_a_second_look_that_finds_the_best():
    """It was loading at first, and is three times as fast as what seemed to be the best."""
    clock = Clock()
    works = [Work(clock, "loaded", 1.0, cold=[20.0]), Work(clock, "seemed_best", 4.0), Work(clock, "other", 4.0)]
    worth, timings, _ = measure(clock, works)
    best = dict(zip(worth, timings, strict=True))
    assert 0 in best
    assert best[0].ms == 1.0
    assert works[0].calls > 2


def test_one_work_alone():
    clock = Clock()
    worth, (timing,), _ = measure(clock, [Work(clock, "only", 1000.0)])
    assert worth == [0]
    assert timing.ms == 1000.0


def test_no_work_at_all():
    assert measure(Clock(), []) == ([], [], [])


def test_the_median_counts():
    """One disturbed sample changes nothing but the spread."""
    clock = Clock(records=False)
    stopwatch = Stopwatch(clock, STREAM)
    work = Work(clock, "disturbed", 10.0, cold=[0.0, 0.0, 500.0, 0.0, 90.0])
    (timing,) = stopwatch.repeat([work], [10.0])
    assert timing.ms == 10.0
    assert timing.samples == len(clock.samples)
    taken = [ms for ms, _ in clock.samples]
    quartiles = statistics.quantiles(taken, n=4)
    assert timing.spread == pytest.approx(quartiles[2] - quartiles[0])
    assert timing.spread > 0


def test_rounds_are_shuffled_and_fair():
    clock = Clock(records=False)
    works = [Work(clock, name, 10.0) for name in "abcd"]
    Stopwatch(clock, STREAM).repeat(works, [10.0] * 4)
    order = [names[0] for _, names in clock.samples]
    rounds = [order[start : start + 4] for start in range(0, len(order), 4)]
    assert len(rounds) >= 5
    assert all(sorted(one) == list("abcd") for one in rounds), "each once a round"
    assert len({tuple(one) for one in rounds}) > 1, "always in the same order"


def test_the_shuffling_is_the_seeds():
    def order(seed):
        clock = Clock(records=False)
        Stopwatch(clock, STREAM, seed=seed).repeat([Work(clock, name, 10.0) for name in "abcd"], [10.0] * 4)
        return "".join(names[0] for _, names in clock.samples)

    assert order(0) == order(0)
    assert order(0) != order(1)


@pytest.mark.parametrize(
    ("ms", "repeats"), [(0.001, 64), (0.0001, 64), (0.01, 50), (0.05, 10), (0.25, 2), (0.5, 1), (30.0, 1), (0.0, 64)]
)
def test_short_work_is_repeated_within_a_sample(ms, repeats):
    """A sample lasts about half a millisecond; what is told is the time of one."""
    clock = Clock(records=False)
    (timing,) = Stopwatch(clock, STREAM).repeat([Work(clock, "work", ms)], [ms])
    assert {len(names) for _, names in clock.samples} == {repeats}
    assert timing.ms == pytest.approx(ms)
    assert not timing.replayed


@pytest.mark.parametrize("ms", [0.05, 10.0])
def test_a_recorded_graph_is_replayed(ms):
    """The work itself is called while it is recorded, and no more; the first launch, which uploads, is not timed."""
    clock = Clock()
    work = Work(clock, "work", ms)
    (timing,) = Stopwatch(clock, STREAM).repeat([work], [ms])
    repeats = max(1, round(0.5 / ms))
    assert work.calls == repeats
    assert clock.launches == timing.samples + 1
    assert len(clock.samples) == timing.samples
    assert timing.replayed
    assert timing.ms == pytest.approx(ms)


def test_what_cannot_be_recorded_is_enqueued():
    clock = Clock(records=False)
    work = Work(clock, "work", 10.0)
    (timing,) = Stopwatch(clock, STREAM).repeat([work], [10.0])
    assert not timing.replayed
    assert work.calls == timing.samples
    assert clock.launches == 0


def test_each_tells_whether_it_was_replayed():
    clock = Clock()
    recordable, other = Work(clock, "recordable", 10.0), Work(clock, "other", 10.0)
    capture = clock.capture
    captured = []

    def sometimes(work, stream):
        captured.append(work)
        return capture(work, stream) if len(captured) == 1 else None

    clock.capture = sometimes
    timings = Stopwatch(clock, STREAM).repeat([recordable, other], [10.0, 10.0])
    assert [timing.replayed for timing in timings] == [True, False]
    assert [timing.ms for timing in timings] == [10.0, 10.0]


def test_everything_goes_to_the_stream():
    clock = Clock()
    measure(clock, [Work(clock, "a", 10.0), Work(clock, "b", 10.0)])
    assert set(map(id, clock.streams)) == {id(STREAM)}


def test_timings_come_in_the_order_of_the_works():
    clock = Clock()
    times = [7.0, 3.0, 5.0, 4.0]
    timings = Stopwatch(clock, STREAM).repeat([Work(clock, str(ms), ms) for ms in times], times)
    assert [timing.ms for timing in timings] == times
    assert all(isinstance(timing, Timing) for timing in timings)
    assert {timing.samples for timing in timings} == {timings[0].samples}
    assert [timing.spread for timing in timings] == [pytest.approx(0.0)] * 4


def test_a_failure_is_passed_on():
    def fail():
        raise KeyError("broken")

    stopwatch = Stopwatch(Clock(records=False), STREAM)
    with pytest.raises(KeyError, match="broken"):
        stopwatch.first(fail)
    with pytest.raises(KeyError, match="broken"):
        stopwatch.repeat([fail], [1.0])


def test_works_and_times_belong_together():
    clock = Clock()
    stopwatch = Stopwatch(clock, STREAM)
    for call in (stopwatch.repeat, stopwatch.look_again):
        with pytest.raises(ValueError, match="zip"):
            call([Work(clock, "a", 1.0)], [1.0, 2.0])


def test_calls_are_few():
    """A work that is worth it: once at first, then what its samples need."""
    clock = Clock(records=False)
    works = [Work(clock, "a", 10.0), Work(clock, "b", 20.0)]
    _, timings, _ = measure(clock, works)
    assert Counter(clock.log) == {"a": 1 + timings[0].samples, "b": 1 + timings[1].samples}
