"""The energy of calls, by a counter of the test's, and the choice by it."""

from types import SimpleNamespace

import pytest

from cudnnlite import ConvolutionFwdAlgo, ConvolutionResult, MathType
from cudnnlite.errors import ArgumentError
from cudnnlite.search.contest import Contest
from cudnnlite.search.energy import MOST_CANDIDATES, energies_of, ranked_by_energy
from cudnnlite.search.timing_policy import TimingPolicy

from .test_timing import Clock, Work

A = ConvolutionFwdAlgo
NAMES = ("GEMM", "FFT", "DIRECT", "WINOGRAD", "FFT_TILING", "IMPLICIT_GEMM")


class Meter:
    """Counts what each run of a work takes; an idle GPU takes nothing."""

    def __init__(self, clock, joules):
        self.clock, self.each, self.is_open = clock, joules, True

    def joules(self):
        return sum(self.each[name] for name in self.clock.log)

    def close(self):
        self.is_open = False


@pytest.fixture(params=[True, False], ids=["recorded", "eager"])
def clock(request, monkeypatch):
    clock = Clock(records=request.param)
    monkeypatch.setattr("cudnnlite.search.timing.time", clock)
    monkeypatch.setattr("cudnnlite.search.energy.time", clock)
    return clock


def handle_of(clock, meter):
    clock.power_meter = lambda: meter
    return SimpleNamespace(device=clock, stream=clock.stream, timing=TimingPolicy())


def row(name, **values):
    return ConvolutionResult(A[name], MathType.FMA, **values)


def test_the_energy_of_each_call_over_a_second(clock):
    meter = Meter(clock, {"GEMM": 0.3, "FFT": 0.2})
    works = [Work(clock, "GEMM", 10.0), Work(clock, "FFT", 3.0)]
    energies = energies_of(handle_of(clock, meter), works, meter)
    assert [energy.joules for energy in energies] == pytest.approx([0.3, 0.2])
    assert [energy.spread for energy in energies] == pytest.approx([0, 0], abs=1e-9)
    assert [energy.watts for energy in energies] == pytest.approx([30, 0.2 / 3e-3])
    for name, ms in (("GEMM", 10.0), ("FFT", 3.0)):
        assert clock.log.count(name) * ms >= 3 * 1000


def test_the_spread_is_that_of_the_samples(clock):
    meter = Meter(clock, {"GEMM": 0.1})
    figures = iter([0.0, 30.0, 100.0, 140.0, 200.0, 250.0])  # 30, 40 and 50 J
    meter.joules = lambda: next(figures)
    (energy,) = energies_of(handle_of(clock, meter), [Work(clock, "GEMM", 1000.0)], meter)
    assert (energy.joules, energy.spread, energy.watts) == pytest.approx((40, 20, 40))


def compete(clock, joules, times):
    meter = Meter(clock, joules)
    contest = Contest(handle_of(clock, meter), objective="energy")
    for name, ms in times.items():
        contest.enter(name, Work(clock, name, ms))
    rows = contest.finish({name: row(name) for name in times})
    timing = contest.timing
    contest.close()
    assert not meter.is_open
    return rows, timing


def test_the_least_energy_wins_among_the_fastest(clock, monkeypatch):
    monkeypatch.setattr(Clock, "__str__", lambda self: "a GPU")
    times = {name: 10.0 + place for place, name in enumerate(NAMES)}
    joules = dict(zip(NAMES, (0.5, 0.4, 0.3, 0.6, 0.1, 0.1), strict=True))
    rows, timing = compete(clock, joules, times)
    assert [result.algorithm.name for result in rows] == [
        *("DIRECT", "FFT", "GEMM", "WINOGRAD"),
        *("FFT_TILING", "IMPLICIT_GEMM"),
    ]
    for result in rows[:MOST_CANDIDATES]:
        assert result.joules == pytest.approx(joules[result.algorithm.name])
        assert result.joules_spread == pytest.approx(0, abs=1e-9)
        assert result.time_ms == pytest.approx(times[result.algorithm.name])
    for result in rows[MOST_CANDIDATES:]:
        assert result.joules is None
        assert result.remark == "energy not measured: not among the 4 fastest"
    assert timing.endswith("mJ: 3 samples of 1 s, by NVML's counter, which decide")


def test_one_kernel_has_one_energy(clock):
    meter = Meter(clock, {"GEMM": 0.5, "FFT": 0.5})
    contest = Contest(handle_of(clock, meter), objective="energy")
    for name in ("GEMM", "FFT"):
        contest.enter(name, Work(clock, name, 10.0), fingerprint="one")
    gemm, fft = contest.finish({name: row(name) for name in ("GEMM", "FFT")})
    assert fft.same_kernel == "GEMM (FMA)"
    assert (fft.joules, fft.joules_spread) == (gemm.joules, gemm.joules_spread)
    assert gemm.joules == pytest.approx(0.5)


def test_between_equal_energies_the_time_decides():
    rows = [
        row("GEMM", time_ms=1.0, joules=0.52, joules_spread=0.05),
        row("FFT", time_ms=2.0, joules=0.50, joules_spread=0.01),
        row("DIRECT", time_ms=3.0, joules=0.60, joules_spread=0.01),
        row("WINOGRAD", time_ms=0.5, why_not="wrong"),
    ]
    ranking = ranked_by_energy(rows)
    assert [result.algorithm.name for result in ranking] == ["GEMM", "FFT", "DIRECT", "WINOGRAD"]
    assert [result.within_noise for result in ranking] == [False, True, False, False]


def test_a_wild_measurement_is_not_the_least_energy():
    wild = row("GEMM", time_ms=1.0, joules=1.5, joules_spread=4.0)
    steady = row("FFT", time_ms=2.0, joules=0.5, joules_spread=0.01)
    ranking = ranked_by_energy([wild, steady])
    assert [result.algorithm.name for result in ranking] == ["FFT", "GEMM"]


def test_without_a_counter_there_is_no_such_contest(clock, monkeypatch):
    monkeypatch.setattr(Clock, "__str__", lambda self: "a GPU")
    with pytest.raises(
        ArgumentError, match="objective='energy': a GPU has no energy counter that NVML reads"
    ):
        Contest(handle_of(clock, None), objective="energy")
