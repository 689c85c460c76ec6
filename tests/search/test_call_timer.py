"""`CallTimer`: how long the device may have waited for the host in a sample."""

from __future__ import annotations

from typing import Any, cast

import pytest

import cudnnlite as dnn
from cudnnlite.devices.device import Device
from cudnnlite.plans import trial_call
from cudnnlite.search.race import Race


class Clock:
    """The times of a host and of a device, which the test sets."""

    def __init__(self) -> None:
        self.host_ms = 0.0
        self.device_ms = 0.0

    def seconds(self) -> float:
        return self.host_ms / 1000

    def record_event(self, stream: Any) -> float:
        return self.device_ms

    def elapsed_between(self, start: float, end: float) -> float:
        return end - start


@pytest.mark.parametrize(
    ("runs", "device_ms", "host_ms", "wait_ms"),
    [
        (4, 0.020, 0.016, 0.016 + 0.0075),  # each run may wait for the host's calls and a launch
        (1, 0.044, 0.012, 0.012 + 0.03),
        (1, 0.101, 0.016, 0.0),  # the device has longer work than the host
        (64, 0.040, 0.016, 0.0),
    ],
)
def test_a_short_run_may_have_waited_for_the_host(
    monkeypatch: pytest.MonkeyPatch, runs: int, device_ms: float, host_ms: float, wait_ms: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(trial_call, "perf_counter", clock.seconds)
    race = Race([dnn.AlgorithmResult(dnn.Engine(0), dnn.MathType.FMA)], latency=True)
    timer = trial_call.CallTimer(cast("Device", clock), race)
    with timer.timing(0, None, runs=runs, untimed_runs=1):
        clock.host_ms += runs * host_ms
        clock.device_ms += runs * device_ms
    timer.collect()
    runner = race.runners[0]
    assert runner.device_ms == pytest.approx(device_ms)
    assert runner.host_ms == pytest.approx(host_ms)
    assert runner.wait_ms == pytest.approx(wait_ms)
