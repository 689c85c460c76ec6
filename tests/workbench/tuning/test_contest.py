"""Contest: the order of the candidates, what is remarked on, and the stream that they run on."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from problems.test_problems import CONVOLUTION

import cudnnlite as dnn
from cudnnlite import AlgorithmResult, MathType
from cudnnlite.enums import ConvolutionFwdAlgo, Status
from cudnnlite.problems import call_watch
from cudnnlite.workbench.tuning.contest import Contest, own_stream, ranked
from cudnnlite.workbench.tuning.problem_list import ProblemList
from cudnnlite.workbench.tuning.recording import record_problems
from cudnnlite.workbench.tuning.timing_policy import TimingPolicy

from .test_timing import Clock, Work

A, M = ConvolutionFwdAlgo, MathType
GIVEN_UP = "not repeated: more than 3 times the best"


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("cudnnlite.workbench.tuning.timing.time", clock)
    return clock


def handle_of(clock):
    """What a contest needs of a handle."""
    return SimpleNamespace(device=clock, stream=clock.stream)


def row(name, **values):
    return AlgorithmResult(A[name], M.FMA, **values)


def compete(clock, works, extra=(), **options):
    """Let works compete under their names; return the rows that come out."""
    contest = Contest(handle_of(clock), TimingPolicy(), **options)
    for work in works:
        contest.enter(work.name, work)
    rows = {work.name: row(work.name) for work in works} | {
        other.algorithm.name: other for other in extra
    }
    return contest, contest.finish(rows)


def names(rows):
    return [entry.algorithm.name for entry in rows]


# ---------------------------------------------------------------- times and order


def test_the_fastest_comes_first_and_what_did_not_run_last(clock):
    refused = row("DIRECT", status=Status.NOT_SUPPORTED)
    excluded = row("FFT_TILING", why_not="not deterministic")
    works = [
        Work(clock, name, ms, host_ms=0.25)
        for name, ms in (("GEMM", 12.0), ("FFT", 10.0), ("WINOGRAD", 31.0))
    ]
    contest, entries = compete(clock, works, [refused, excluded])
    assert names(entries) == ["FFT", "GEMM", "WINOGRAD", "DIRECT", "FFT_TILING"]
    assert [entry.time_ms for entry in entries] == pytest.approx([10.0, 12.0, 31.0, None, None])
    assert entries[3:] == [refused, excluded]
    assert contest.replayed
    assert contest.timing.endswith("; us a call: another series")
    for entry in entries[:2]:
        assert entry.spread_ms == pytest.approx(0.0)
        assert entry.call_us == pytest.approx(1e3 * (entry.time_ms + 0.25))
        assert entry.host_us == pytest.approx(250)
        assert entry.remark == ""


def test_behind_one_kernel_of_the_emulated_device_nobody_wins(clock):
    contest = Contest(handle_of(clock), TimingPolicy())
    for name, ms, kernel in (
        ("GEMM", 14.0, "im2col"),
        ("FFT", 20.0, "fft"),
        ("FFT_TILING", 3.0, "im2col"),
    ):
        clock.emulated_functions = frozenset({kernel})
        contest.enter(name, Work(clock, name, ms))
    assert not contest.is_hopeless("FFT_TILING")
    assert contest.times_the_best("FFT_TILING") == contest.times_the_best("GEMM") == 1
    entries = contest.finish(
        {name: row(name, workspace=1) for name in ("GEMM", "FFT", "FFT_TILING")}
    )
    assert names(entries) == ["GEMM", "FFT_TILING", "FFT"]
    assert entries[1] == replace(
        entries[0],
        algorithm=A.FFT_TILING,
        same_kernel="GEMM (FMA)",
        within_noise=True,
    )


def test_candidates_of_one_fingerprint_that_take_as_long_are_timed_once(clock):
    contest = Contest(handle_of(clock), TimingPolicy())
    times = {"GEMM": 14.0, "FFT": 20.0, "DIRECT": 3.0, "FFT_TILING": 15.0, "WINOGRAD": 14.5}
    fingerprints = {
        "GEMM": "one",
        "FFT_TILING": "one",
        "DIRECT": "one",
    }  # of which the last has another time
    works = {name: Work(clock, name, ms) for name, ms in times.items()}
    for name, work in works.items():
        contest.enter(name, work, fingerprints.get(name))
    entries = contest.finish({name: row(name) for name in times})
    shared = {**times, "FFT_TILING": 14.0}
    assert {entry.algorithm.name: entry.time_ms for entry in entries} == pytest.approx(shared)
    same = {
        entry.algorithm.name: (entry.remark, entry.same_kernel)
        for entry in entries
        if entry.same_kernel
    }
    assert same == {"FFT_TILING": (GIVEN_UP, "GEMM (FMA)")}
    assert sum("here the same kernel as GEMM (FMA)" in entry.comment for entry in entries) == 1
    assert works["FFT_TILING"].calls < works["DIRECT"].calls


def test_the_emulated_device_ranks_no_algorithms_that_run_the_same_kernel():
    with dnn.Handle(device="emulated") as handle, dnn.Tuner(handle, cache=":memory:") as tuner:
        x, w = (
            handle.array(np.ones((1, 4, 9, 8), np.float32)),
            handle.array(np.ones((4, 4, 3, 3), np.float32)),
        )
        found_table = dnn.convolution_forward.find(handle, x, w)
        tuned = tuner.tune(
            dnn.convolution_forward.problem(x.spec, dnn.FilterSpec.from_tensor(w.spec))
        )
        weights = dnn.RNNWeights(handle, dnn.RNNSpec("lstm", 4, 4))
        networks = tuner.tune(
            dnn.rnn_forward.problem(weights.spec, weights, dnn.specs.RNNDataSpec((3, 2, 4)))
        )
    times = [
        {(row.algorithm, row.math_type): row.time_ms for row in table if row.ok}
        for table in (found_table, tuned)
    ]
    assert times[0][A.GEMM, M.DEFAULT] == times[0][A.IMPLICIT_PRECOMP_GEMM, M.DEFAULT]
    assert (
        times[1][A.GEMM, M.DEFAULT] == times[1][A.GEMM, M.FMA] != times[1][A.IMPLICIT_GEMM, M.FMA]
    )
    assert len({entry.time_ms for entry in networks if entry.ok and entry.math_type == M.FMA}) == 1


def test_what_is_hopeless_keeps_its_first_time_and_says_so(clock):
    works = [Work(clock, "FFT", 10.0), Work(clock, "GEMM", 31.0), Work(clock, "WINOGRAD", 99.0)]
    _, entries = compete(clock, works)
    assert names(entries) == ["FFT", "GEMM", "WINOGRAD"]
    for entry, ms in zip(entries[1:], (31.0, 99.0), strict=True):
        assert entry.ok
        assert entry.time_ms == ms
        assert entry.remark == GIVEN_UP
        assert entry.spread_ms is entry.call_us is entry.host_us is None
    assert works[2].calls == 1


def test_calls_of_what_the_device_takes_too_long_for_are_not_timed(clock):
    works = [
        Work(clock, name, ms, host_ms=1.0)
        for name, ms in (("WINOGRAD", 13.5), ("GEMM", 12.0), ("FFT", 10.0))
    ]
    _, entries = compete(clock, works, objective="latency")
    assert names(entries) == ["FFT", "GEMM", "WINOGRAD"]
    assert [entry.call_us for entry in entries] == [pytest.approx(11e3), pytest.approx(13e3), None]
    assert entries[2].remark == "calls not timed: the device takes longer than the best"
    assert (entries[2].host_us, entries[2].time_ms) == (None, pytest.approx(13.5))


def test_what_a_limit_leaves_is_not_a_slower_call_that_was_timed(clock):
    times = (("FFT", 10.0, 0.1), ("GEMM", 9.0, 22.0), ("WINOGRAD", 13.0, 0.1))
    works = [Work(clock, name, ms, host_ms=host_ms) for name, ms, host_ms in times]
    _, entries = compete(clock, works, objective="latency")
    assert names(entries) == ["FFT", "WINOGRAD", "GEMM"]
    assert entries[1].call_us is None
    first = replace(entries[0], workspace=1 << 30, deterministic=False, error=1.0)
    rows = [first, *(replace(entry, error=0.0) for entry in entries[1:])]
    table = dnn.AlgorithmTable(rows, title="t", timing="t")
    for limits in ({"workspace_limit": "1 MiB"}, {"deterministic": True}, {"max_error": 0.5}):
        assert table.best(**limits).algorithm == A.WINOGRAD


def test_nobody_wins_whose_calls_were_not_timed(clock):
    """The device takes longer than 1.25 times the best first run, and less than the best call."""
    times = (("FFT", 10.0, 14.0), ("GEMM", 13.0, 9.0), ("WINOGRAD", 24.5, 0.0))
    works = [Work(clock, name, ms, host_ms=host_ms) for name, ms, host_ms in times]
    _, entries = compete(clock, works, objective="latency")
    assert names(entries) == ["GEMM", "FFT", "WINOGRAD"]
    assert [entry.call_us for entry in entries] == [pytest.approx(22e3), pytest.approx(24e3), None]


def test_nobody_competes(clock):
    refused = row("DIRECT", status=Status.NOT_SUPPORTED)
    contest, entries = compete(clock, [], [refused])
    assert entries == [refused]
    assert not contest.replayed
    assert compete(clock, [])[1] == []


def test_what_fails_at_first_has_not_entered(clock):
    def fail():
        raise KeyError("refused")

    contest = Contest(handle_of(clock), TimingPolicy())
    with pytest.raises(KeyError, match="refused"):
        contest.enter("GEMM", fail)
    contest.enter("FFT", Work(clock, "FFT", 10.0))
    failed = row("GEMM", status=Status.NOT_SUPPORTED)
    entries = contest.finish({"GEMM": failed, "FFT": row("FFT")})
    assert names(entries) == ["FFT", "GEMM"]
    assert entries[1] == failed


def test_where_recording_is_refused_calls_are_timed(clock):
    clock.records = False
    contest, entries = compete(clock, [Work(clock, "FFT", 10.0), Work(clock, "GEMM", 20.0)])
    assert not contest.replayed
    assert [entry.time_ms for entry in entries] == pytest.approx([10.0, 20.0])


def test_what_was_known_of_a_row_stays(clock):
    first_row = row(
        "FFT",
        workspace=7,
        error=1e-7,
        max_error=2e-7,
        deterministic=None,
        find_ms=0.25,
        layout="NHWC",
        remark="odd",
    )
    contest = Contest(handle_of(clock), TimingPolicy())
    contest.enter("key", Work(clock, "FFT", 10.0))
    (entry,) = contest.finish({"key": first_row})
    assert entry.remark == "odd"
    timed = ("time_ms", "spread_ms", "call_us", "host_us", "call_spread_us")
    assert replace(entry, **dict.fromkeys(timed)) == first_row


def test_the_callers_rows_are_not_changed(clock):
    contest = Contest(handle_of(clock), TimingPolicy())
    contest.enter("FFT", Work(clock, "FFT", 10.0))
    rows = {"FFT": row("FFT")}
    contest.finish(rows)
    assert rows == {"FFT": row("FFT")}


@pytest.mark.parametrize(
    ("objective", "order"), [("device", ["FFT", "GEMM"]), ("latency", ["GEMM", "FFT"])]
)
def test_the_objective_decides(clock, objective, order):
    """One is faster on the device, the other when it is called."""
    works = [Work(clock, "FFT", 10.0, host_ms=40.0), Work(clock, "GEMM", 11.0, host_ms=5.0)]
    _, entries = compete(clock, works, objective=objective)
    assert names(entries) == order
    assert {entry.algorithm.name: entry.time_ms for entry in entries} == pytest.approx(
        {"FFT": 10.0, "GEMM": 11.0}
    )
    assert all(entry.remark == "" for entry in entries)


def test_a_latency_contest_takes_more_calls(clock):
    works = {
        objective: [Work(clock, "FFT", 10.0), Work(clock, "GEMM", 12.0)]
        for objective in ("device", "latency")
    }
    for objective, rivals in works.items():
        compete(clock, rivals, objective=objective)
    assert works["latency"][0].calls > works["device"][0].calls


def test_a_second_look_before_something_is_given_up(clock):
    """As PERSIST_DYNAMIC, which is compiled for every math type."""
    contest = Contest(handle_of(clock), TimingPolicy())
    contest.enter("fast", Work(clock, "FFT", 1.0))
    contest.enter("loading", Work(clock, "GEMM", 2.0, cold=[20.0]))
    contest.enter("slow", Work(clock, "WINOGRAD", 3.5))
    assert [contest.is_hopeless(key) for key in ("fast", "loading", "slow")] == [False, False, True]


def test_flushing_takes_memory_until_it_is_closed(clock):
    contest, entries = compete(clock, [Work(clock, "FFT", 10.0)], flush_l2=True)
    assert len(clock.held) == 1
    assert len(clock.flushes) > 5
    assert entries[0].time_ms == pytest.approx(10.0)
    contest.close()
    contest.close()
    assert clock.held == []


# ---------------------------------------------------------------- noise


def timed(name, ms, spread, **values):
    return row(name, time_ms=ms, spread_ms=spread, **values)


@pytest.mark.parametrize(
    ("best_spread", "other_spread", "other_ms", "alike"),
    [
        (0.0, 0.0, 1.0, True),  # the same time
        (0.0, 0.0, 1.001, False),
        (0.0625, 0.0, 1.03125, True),
        (0.0625, 0.0, 1.032, False),
        (0.0, 0.0625, 1.03125, True),
        (0.0, 0.0625, 1.032, False),
        (0.03, 0.0625, 1.03125, True),
        (9.0, 9.0, 1.049, True),
        (9.0, 9.0, 1.051, False),  # noise is at most 5 % of the time
        (None, 0.2, 1.0, False),
        (0.2, None, 1.0, False),
    ],
    ids=str,
)
def test_rows_within_the_noise_of_the_first_are_marked(best_spread, other_spread, other_ms, alike):
    """Half the distance of the quartiles, of whichever has more."""
    best, other = timed("FFT", 1.0, best_spread), timed("GEMM", other_ms, other_spread)
    entries = ranked([other, best] if other_ms > 1 else [best, other])
    assert names(entries) == ["FFT", "GEMM"]
    assert [entry.within_noise for entry in entries] == [False, alike]
    assert entries[1].comment == ("within the noise of the first" if alike else "")


def test_a_wild_measurement_is_not_the_best():
    """Seen on an H100: 28 us with a spread of 60 tied with 6.9 us, and needed no workspace."""
    wild = timed("FFT", 0.0287, 0.060)
    steady = timed("GEMM", 0.0069, 2e-5, workspace=400, host_us=8.1)
    assert names(ranked([wild, steady])) == ["GEMM", "FFT"]
    calls = [replace(entry, call_us=1000 * entry.time_ms) for entry in (wild, steady)]
    calls = [replace(calls[0], call_spread_us=60.0), replace(calls[1], call_spread_us=0.1)]
    assert names(ranked(calls, latency=True)) == ["GEMM", "FFT"]


@pytest.mark.parametrize(
    ("figures", "first"),
    [
        (
            {"host_us": (10, 14), "time_ms": (9e-3, 6e-3)},
            "GEMM",
        ),  # a host that was slow for a while hides it
        ({"host_us": (10, 16), "time_ms": (9e-3, 6e-3)}, "FFT"),
        ({"host_us": (10, 10), "time_ms": (6e-3, 6.1e-3), "workspace": (8, 7)}, "GEMM"),
    ],
)
def test_of_calls_that_the_noise_makes_equal_the_device_decides(figures, first):
    rows = [
        row(
            name,
            call_us=16.0,
            call_spread_us=1.0,
            **{key: pair[number] for key, pair in figures.items()},
        )
        for number, name in enumerate(("FFT", "GEMM"))
    ]
    assert names(ranked(rows, latency=True))[0] == first
    assert names(ranked(rows[::-1], latency=True))[0] == first


@pytest.mark.parametrize(
    ("times", "first"),
    [((1.0, 1.029), "GEMM"), ((1.0, 1.031), "FFT"), ((1.0, None), "FFT"), ((1.0, 1.0), "GEMM")],
)
def test_a_conversion_has_to_be_worth_it(times, first):
    """A candidate that converts operands is not chosen for a gain of less than 3 %."""
    converted = timed("FFT", times[0], 0.001, layout="NHWC")
    plain = timed("GEMM", times[1], 0.001)
    assert names(ranked([converted, plain]))[0] == first
    other = timed("DIRECT", 1.01, 0.001, layout="NHWC")
    assert names(ranked([converted, other]))[0] == "FFT"
    refused = timed("GEMM", 1.01, 0.001, why_not="too wrong")
    assert names(ranked([converted, refused]))[0] == "FFT"


def test_failed_rows_are_like_nothing():
    entries = ranked([timed("FFT", 1.0, 0.5), timed("GEMM", 1.0, 0.5, why_not="too wrong")])
    assert [entry.within_noise for entry in entries] == [False, False]
    entries = ranked(
        [timed("FFT", 1.0, 0.5, why_not="too wrong"), timed("GEMM", 1.0, 0.5, why_not="too wrong")]
    )
    assert [entry.within_noise for entry in entries] == [False, False]


def test_rows_that_are_ranked_again_are_marked_anew():
    rows = [
        timed("FFT", 1.0, 0.5),
        timed("GEMM", 1.02, 0.5, remark="odd"),
        timed("WINOGRAD", 1.04, 0.5),
    ]
    once = ranked(rows)
    assert [entry.within_noise for entry in once] == [False, True, True]
    assert [entry.remark for entry in once] == ["", "odd", ""]
    assert ranked(once) == once
    first, second, _ = once
    ranked_again = ranked([second, replace(first, time_ms=9.0)])
    assert [entry.within_noise for entry in ranked_again] == [False, False], "it is another's now"
    by_calls = ranked(rows, latency=True)
    assert [entry.within_noise for entry in by_calls] == [False] * 3, "it is of the device's times"


def test_remarks_are_joined(clock):
    contest = Contest(handle_of(clock), TimingPolicy())
    contest.enter("fast", Work(clock, "FFT", 1.0))
    contest.enter("slow", Work(clock, "GEMM", 60.0))
    entries = contest.finish({"fast": row("FFT"), "slow": row("GEMM", remark="odd")})
    assert [entry.remark for entry in entries] == ["", f"odd; {GIVEN_UP}"]


def test_rows_without_a_time_come_behind_those_with_one():
    rows = [
        row("DIRECT", status=Status.NOT_SUPPORTED),
        row("GEMM"),
        timed("FFT", 5.0, 0.1),
        timed("WINOGRAD", 1.0, 0.1, why_not="wrong"),
        timed("FFT_TILING", 2.0, 0.1),
    ]
    assert names(ranked(rows)) == ["FFT_TILING", "FFT", "GEMM", "WINOGRAD", "DIRECT"]
    assert ranked([]) == []


def test_by_calls_the_devices_time_stands_in_for_calls_that_were_not_timed():
    rows = [
        timed("FFT", 8.5, 0.1),
        timed("GEMM", 9.0, 0.1, call_us=9e3),
        timed("WINOGRAD", 8.0, 0.1, call_us=8e3),
    ]
    assert names(ranked(rows, latency=True)) == ["WINOGRAD", "FFT", "GEMM"]


# ---------------------------------------------------------------- the stream


def test_a_search_has_a_stream_of_its_own(own_handle):
    before = own_handle.stream
    with own_stream(own_handle) as stream:
        assert own_handle.stream is stream
        assert stream is not before
        own_handle.workspace.reserve(1000, stream)
        assert own_handle.workspace.size == 1000
    assert own_handle.stream is before
    assert own_handle.workspace.size == 0


@pytest.mark.parametrize("where", ["inside", "wait", "release"])
def test_the_stream_is_put_back_whatever_happens(own_handle, monkeypatch, where):
    def fail(*_):
        raise KeyError("broken")

    before = own_handle.stream
    own_handle.workspace.reserve(500, before)
    with monkeypatch.context() as patch:

        def search():
            with own_stream(own_handle) as stream:
                own_handle.workspace.reserve(1000, stream)
                if where == "inside":
                    fail()
                patch.setattr(
                    own_handle.device if where == "wait" else own_handle.workspace, where, fail
                )

        with pytest.raises(KeyError, match="broken"):
            search()
    assert own_handle.stream is before
    if where == "inside":
        assert own_handle.workspace.size == 500


def test_what_a_search_calls_is_not_recorded(own_handle):
    with record_problems() as problems:
        assert isinstance(problems, ProblemList)
        with own_stream(own_handle):
            call_watch.record(CONVOLUTION)
        assert len(problems) == 0
        call_watch.record(CONVOLUTION)
    assert problems.total == 1
