"""The energy of a call, by the GPU's counter over at least a second of repetitions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from cudnnlite.devices.device import PowerMeter
from cudnnlite.devices.handle import Handle

SAMPLES = 3
SECONDS = 1.0  # of a sample: the counter moves every 20 to 100 ms


class Energy(NamedTuple):
    """What a call costs.

    Attributes
    ----------
    joules : float
        The energy of a call, what the GPU takes when idle included: the median of the samples.
    spread : float
        The largest minus the smallest sample, in joules.
    watts : float
        The mean power while calls were repeated: the median of the samples.
    """

    joules: float
    spread: float
    watts: float


def energy_of(
    handle: Handle,
    work: Callable[[], object],
    meter: PowerMeter,
    *,
    samples: int = SAMPLES,
    seconds: float = SECONDS,
) -> Energy:
    """Repeat a call, as a CUDA graph if it can be recorded, and return its energy."""
    device, stream = handle.device, handle.stream
    launch = device.capture(work, stream) or work
    launch()
    device.wait(stream)
    figures = [_sample(handle, launch, meter, seconds) for _ in range(samples)]
    joules = [joules for joules, _ in figures]
    return Energy(
        statistics.median(joules),
        max(joules) - min(joules),
        statistics.median(watts for _, watts in figures),
    )


def _sample(
    handle: Handle, launch: Callable[[], object], meter: PowerMeter, seconds: float
) -> tuple[float, float]:
    """Return the joules of a call and the watts, over at least so many seconds."""
    count, at_once = 0, 1
    before, start = meter.joules(), time.perf_counter()
    while True:
        for _ in range(at_once):
            launch()
        handle.device.wait(handle.stream)
        count += at_once
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            break
        # The host must not wait after each short call, or the GPU would be idle.
        if elapsed < seconds / 10:
            at_once *= 2
    used = meter.joules() - before
    return used / count, used / elapsed
