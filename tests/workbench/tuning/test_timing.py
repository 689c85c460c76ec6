"""Stopwatch: what runs how often, and what counts, on a device with a clock of the test's."""

import statistics
from collections import Counter
from itertools import cycle
from types import SimpleNamespace

import pytest

from cudnnlite.workbench.tuning.timing import CallTime, Stopwatch
from cudnnlite.workbench.tuning.timing_policy import TimingPolicy


class Clock:
    """A device whose works take what they are said to take: nothing here looks at the real time.

    A work is a `Work`; `elapsed_ms` adds up what the works that ran inside it take.  Beside that
    there is the host, which `perf_counter` tells the time of: a work holds it up for `host_ms`, and
    the device does one work after the other.
    """

    emulated_functions = frozenset()

    def __init__(self, records=True, launch_ms=0.0):
        self.records, self.launch_ms = records, launch_ms
        self.streams, self.log, self.samples = [], [], []
        self.launches = 0
        self.stream = (
            SimpleNamespace()
        )  # waited for through its device, which tells when it is lost
        self.syncs, self.flushes, self.held = [], [], []
        self._now = self._host = self._busy_until = 0.0
        self._recording = None

    def spend(self, ms, name, host_ms=0.0):
        if self._recording is not None:
            self._recording.append((ms, name))
        else:
            self._now += ms
            self.log.append(name)
            self._host += host_ms
            self._busy_until = max(self._busy_until, self._host) + ms

    def wait(self, stream):
        assert stream is self.stream
        self.syncs.append(len(self.log))
        self._host = max(self._host, self._busy_until)

    def perf_counter(self):
        return self._host / 1000

    def allocate(self, nbytes, stream):
        buffer = SimpleNamespace(
            handle=4096, size=nbytes, close=lambda stream: self.held.remove(buffer)
        )
        self.held.append(buffer)
        self.streams.append(stream)
        return buffer

    def memory_info(self):
        return 1 << 20, 1 << 20

    def fill(self, ptr, nbytes, byte, stream):
        assert [(buffer.handle, buffer.size) for buffer in self.held] == [(ptr, nbytes)]
        self.streams.append(stream)
        self.flushes.append(len(self.samples))

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
    """Takes `ms` milliseconds each time.

    The first `cold` runs take so much more, in order; `noise` is added in turn.
    """

    def __init__(self, clock, name, ms, cold=(), noise=(0.0,), host_ms=0.0):
        self.clock, self.name, self.ms, self.cold, self.noise = (
            clock,
            name,
            ms,
            list(cold),
            cycle(noise),
        )
        self.host_ms, self.calls = host_ms, 0

    def __call__(self):
        self.calls += 1
        more = self.cold.pop(0) if self.cold else next(self.noise)
        self.clock.spend(self.ms + more, self.name, self.host_ms)


STREAM = object()


def measure(clock, works, **options):
    """Do what a search does.

    Return the positions that were repeated, their timings, and the first times.
    """
    stopwatch = Stopwatch(clock, STREAM, **options)
    firsts = stopwatch.look_again(works, [stopwatch.first(work) for work in works])
    worth = worth_repeating(stopwatch, firsts)
    return worth, stopwatch.repeat([works[i] for i in worth], [firsts[i] for i in worth]), firsts


def worth_repeating(stopwatch, firsts):
    return [position for position, ms in enumerate(firsts) if stopwatch.may_be_best(ms)]


def test_the_first_run_is_told_as_it_is():
    clock = Clock()
    works = [Work(clock, "a", 2.0), Work(clock, "b", 5.0, cold=[7.0])]
    stopwatch = Stopwatch(clock, STREAM)
    assert [stopwatch.first(work) for work in works] == [2.0, 12.0]
    assert [work.calls for work in works] == [1, 1]
    assert clock.streams == [STREAM] * 2


def test_three_times_the_best_is_given_up():
    assert TimingPolicy().give_up == 3.0
    clock = Clock()
    works = [
        Work(clock, "best", 20.0),
        Work(clock, "at_the_limit", 60.0),
        Work(clock, "beyond", 60.5),
    ]
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


@pytest.mark.parametrize(
    ("records", "eager"), [(False, False), (True, True)], ids=["not_recorded", "eager"]
)
def test_what_may_have_waited_for_kernels_is_looked_at_again(records, eager):
    """Below 50 ms a first run may have been loading; a second look decides, and only then."""
    clock = Clock(records)
    works = [
        Work(clock, "best", 0.5),
        Work(clock, "loaded_first", 0.4, cold=[12.0]),
        Work(clock, "slow", 2.0),
        Work(clock, "slow_and_loaded", 2.0, cold=[12.0]),
        Work(clock, "hopeless", 51.0),
    ]
    stopwatch = Stopwatch(clock, STREAM, eager=eager)
    firsts = stopwatch.look_again(works, [stopwatch.first(work) for work in works])
    assert firsts == pytest.approx([0.5, 0.4, 2.0, 2.0, 51.0])  # the newest, without the loading
    assert worth_repeating(stopwatch, firsts) == [0, 1]
    assert [work.calls for work in works] == [
        1 + eager,
        2,
        2,
        2,
        1,
    ]  # eager calls count only when they are warm


def test_the_hosts_share_of_a_first_run_is_left_behind_by_a_replay():
    """A graph tells a short kernel with a slow host from a slow kernel.

    The host may take twenty times as long as the device.
    """
    clock = Clock()
    works = [
        Work(clock, "short", 0.01, cold=[0.19]),
        Work(clock, "shorter", 0.008, cold=[0.3, 0.0]),
        Work(clock, "slow", 0.2),
        Work(clock, "hopeless", 51.0),
    ]
    stopwatch = Stopwatch(clock, STREAM)
    firsts = stopwatch.look_again(works, [stopwatch.first(work) for work in works])
    assert firsts == pytest.approx([0.01, 0.008, 0.2, 51.0])
    assert worth_repeating(stopwatch, firsts) == [0, 1]
    assert [work.calls for work in works] == [
        2,
        2,
        2,
        1,
    ]  # once as it is, once while it was recorded
    assert clock.launches == 2 * 3, "the first launch of a graph uploads it, and is not timed"
    assert set(map(id, clock.streams)) == {id(STREAM)}


def test_what_is_far_from_the_best_twice_is_not_recorded():
    """A depthwise convolution by transforms has thousands of kernels and took seconds to record.

    A work that was only slow to load is recorded.
    """
    clock = Clock()
    works = [
        Work(clock, "best", 0.1),
        Work(clock, "many", 17.0),
        Work(clock, "loading", 0.09, cold=[17.0]),
    ]
    stopwatch = Stopwatch(clock, STREAM)
    firsts = stopwatch.look_again(works, [stopwatch.first(work) for work in works])
    assert firsts == pytest.approx([0.1, 17.0, 0.09])
    assert clock.launches == 2 * 2
    assert works[1].calls == 2


def test_where_eager_calls_count_nothing_is_recorded_for_the_second_look():
    clock = Clock()
    works = [
        Work(clock, "nothing at all", 0.0),
        Work(clock, "best", 0.1),
        Work(clock, "many", 17.0),
    ]
    stopwatch = Stopwatch(clock, STREAM, eager=True)
    stopwatch.look_again(works, [stopwatch.first(work) for work in works])
    assert (clock.launches, [work.calls for work in works]) == (0, [2, 2, 2])


@pytest.mark.parametrize("ms", [0.001, 0.029])
def test_what_launching_a_graph_takes_is_never_given_up(ms):
    clock = Clock()
    works = [Work(clock, "best", 1e-4), Work(clock, "little", ms), Work(clock, "more", 0.031)]
    worth, _, _ = measure(clock, works)
    assert worth == [0, 1]


def test_a_second_look_that_finds_the_best():
    """It was loading at first, and is three times as fast as what seemed to be the best."""
    clock = Clock()
    works = [
        Work(clock, "loaded", 1.0, cold=[20.0]),
        Work(clock, "seemed_best", 4.0),
        Work(clock, "other", 4.0),
    ]
    worth, timings, _ = measure(clock, works)
    best = dict(zip(worth, timings, strict=True))
    assert 0 in best
    assert best[0].ms == 1.0
    assert works[0].calls > 2


def test_the_median_counts():
    """One disturbed sample changes nothing but the spread."""
    clock = Clock(records=False)
    stopwatch = Stopwatch(clock, STREAM)
    work = Work(clock, "disturbed", 10.0, cold=[0.0, 0.0, 500.0, 0.0, 90.0])
    (timing,) = stopwatch.repeat([work], [10.0])
    assert timing.ms == 10.0
    assert timing.samples == len(clock.samples)
    times = [ms for ms, _ in clock.samples]
    quartiles = statistics.quantiles(times, n=4)
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


@pytest.mark.parametrize(
    ("ms", "repeats"),
    [(0.001, 64), (0.0001, 64), (0.01, 50), (0.05, 10), (0.25, 2), (0.5, 1), (30.0, 1), (0.0, 64)],
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
    """The work itself is called only while it is recorded.

    The first launch, which uploads the graph, is not timed.
    """
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


def test_everything_goes_to_the_stream():
    clock = Clock()
    measure(clock, [Work(clock, "a", 10.0), Work(clock, "b", 10.0)])
    assert set(map(id, clock.streams)) == {id(STREAM)}


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


# ---------------------------------------------------------------- further rounds

ROUNDS, FURTHER, MOST, LEAST = 9, 18, 4, 3


def samples_of(*works):
    """Return how many samples are taken of works that take these times, (ms, noise)."""
    clock = Clock(records=False)
    all_works = [
        Work(clock, str(number), ms, noise=noise) for number, (ms, noise) in enumerate(works)
    ]
    timings = Stopwatch(clock, STREAM).repeat(all_works, [ms for ms, _ in works])
    assert [timing.samples for timing in timings] == [work.calls for work in all_works]
    return [timing.samples for timing in timings]


CALM, LOUD = (0.0,), (-2.0, 0.0, 2.0)


def test_what_lies_far_behind_is_not_looked_at_further():
    assert samples_of((10.0, CALM), (10.6, CALM), (25.0, CALM)) == [ROUNDS, ROUNDS, LEAST]


def test_what_lies_close_is_taken_further():
    """Once where nothing is noisy; the others, which cannot win, are left."""
    assert samples_of((25.0, CALM), (10.4, CALM), (10.0, CALM), (10.6, CALM)) == [
        LEAST,
        ROUNDS + FURTHER,
        ROUNDS + FURTHER,
        ROUNDS,
    ]


def test_as_long_as_the_best_is_noisy():
    most = ROUNDS + MOST * FURTHER
    assert samples_of((10.0, LOUD), (10.1, LOUD)) == [most, most]


def test_what_its_own_noise_may_have_kept_behind_is_taken_further():
    """Its median is a tenth behind, its lower quartile is not."""
    quiet, noisy, far = samples_of((10.0, CALM), (11.0, LOUD), (13.5, LOUD))
    assert quiet == noisy == ROUNDS + FURTHER
    assert far == ROUNDS


def test_noise_of_one_alone_decides_nothing():
    assert samples_of((10.0, LOUD)) == [ROUNDS]
    assert samples_of((10.0, LOUD), (30.0, CALM)) == [ROUNDS, LEAST]


def test_the_medians_are_those_of_all_rounds():
    """What the first rounds were disturbed by does not count in the end."""
    clock = Clock(records=False)
    lucky = Work(clock, "lucky", 10.0, cold=[-0.4] * ROUNDS)
    steady = Work(clock, "steady", 9.8)
    timings = Stopwatch(clock, STREAM).repeat([lucky, steady], [10.0, 9.8])
    assert [timing.ms for timing in timings] == pytest.approx([10.0, 9.8])


# ---------------------------------------------------------------- calls


@pytest.fixture
def clock(monkeypatch):
    """A clock that tells the time of the host, too."""
    clock = Clock()
    monkeypatch.setattr("cudnnlite.workbench.tuning.timing.time", clock)
    return clock


@pytest.mark.parametrize(
    ("ms", "host_ms", "call_us"),
    [
        (5.0, 1.0, 5500),
        (0.5, 1.0, 1000 + 500 / 8),
        (1.0, 1.0, 1500),
        (0.0, 1.0, 1000),
        (0.5, 0.0, 500),
    ],
    ids=["device_bound", "host_bound", "both", "no_work", "no_host"],
)
def test_a_call_takes_the_longer_of_host_and_device(clock, ms, host_ms, call_us):
    """From one to the next, over as many as are made in a row, the end of the last one counted."""
    work = Work(clock, "work", ms, host_ms=host_ms)
    (call,) = Stopwatch(clock, clock.stream).calls([work], [ms])
    assert isinstance(call, CallTime)
    count = work.calls // 3
    expected = (host_ms + ms * count if ms >= host_ms else host_ms * count + ms) / count * 1e3
    assert call.call_us == pytest.approx(expected)
    assert call.host_us == pytest.approx(host_ms * 1e3)
    assert call.host_us <= call.call_us
    if ms == 0.5 and host_ms == 1.0:
        assert call.call_us == pytest.approx(call_us)


@pytest.mark.parametrize(
    ("ms", "count"),
    [(0.0, 20), (0.001, 20), (0.2, 20), (0.4, 10), (1.0, 4), (2.0, 2), (4.0, 1), (50.0, 1)],
)
def test_as_many_calls_in_a_row_as_take_four_milliseconds(clock, ms, count):
    """But never so many that the launch queue fills, where a call would wait for the device."""
    work = Work(clock, "work", ms)
    Stopwatch(clock, clock.stream).calls([work], [ms])
    assert work.calls == 3 * count
    rows = [later - before for before, later in zip(clock.syncs, clock.syncs[1:], strict=False)]
    assert [row for row in rows if row] == [count] * 3


def test_the_device_is_idle_before_and_done_after(clock):
    Stopwatch(clock, clock.stream).calls([Work(clock, "a", 1.0), Work(clock, "b", 4.0)], [1.0, 4.0])
    assert clock.syncs[0] == 0
    assert clock.syncs[-1] == len(clock.log)
    assert len(clock.syncs) == 2 * 2 * 3


def test_medians_of_calls(clock):
    work = Work(clock, "work", 3.0, cold=[400.0, 0.0, 0.0])
    other = Work(clock, "other", 7.0, cold=[0.0, 0.0, 400.0])
    calls = Stopwatch(clock, clock.stream).calls([work, other], [3.0, 7.0])
    assert [call.call_us for call in calls] == pytest.approx([3000, 7000])


def test_thoroughly_where_the_choice_depends_on_it(clock):
    """By the time of a call: the device's share of these two is the same."""
    works = [
        Work(clock, name, 1.0, host_ms=ms) for name, ms in (("a", 5.0), ("b", 5.1), ("c", 9.0))
    ]
    stopwatch = Stopwatch(clock, clock.stream)
    stopwatch.calls(works, [3.0] * 3)
    assert [work.calls for work in works] == [3, 3, 3]
    stopwatch.calls(works, [3.0] * 3, thorough=True)
    assert [work.calls - 3 for work in works] == [
        ROUNDS + FURTHER // 2,
        ROUNDS + FURTHER // 2,
        LEAST,
    ]


def test_calls_of_nothing(clock):
    assert Stopwatch(clock, clock.stream).calls([], [], thorough=True) == []
    with pytest.raises(ValueError, match="zip"):
        Stopwatch(clock, clock.stream).calls([Work(clock, "a", 1.0)], [1.0, 2.0])


# --------------------------------------------------------------- operands that are not in the cache


@pytest.mark.parametrize("records", [True, False])
def test_the_cache_is_flushed_before_every_sample(records):
    clock = Clock(records)
    stopwatch = Stopwatch(clock, STREAM, flush_l2=True)
    assert len(clock.held) == 1
    assert clock.held[0].size >= 128 << 20, "an H200 has 50 MiB of L2 cache, others more"
    work = Work(clock, "work", 0.01)
    stopwatch.first(work)
    assert clock.flushes == []
    (timing,) = stopwatch.repeat([work], [0.01])
    assert clock.flushes == list(range(1, 1 + timing.samples))
    assert {len(names) for _, names in clock.samples} == {1}, (
        "the second piece would find its operands in the cache"
    )
    assert timing.ms == pytest.approx(0.01)
    assert set(map(id, clock.streams)) == {id(STREAM)}
    stopwatch.close()
    assert clock.held == []
    stopwatch.close()


def test_without_it_nothing_is_allocated():
    clock = Clock()
    stopwatch = Stopwatch(clock, STREAM)
    stopwatch.repeat([Work(clock, "work", 0.01)], [0.01])
    stopwatch.close()
    assert clock.held == clock.flushes == []
