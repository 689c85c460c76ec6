"""The energy of calls, by the GPU's counter over at least a second of repetitions."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from cudnnlite.devices.device import PowerMeter
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.results import MOST_NOISE_OF_CALLS, AlgorithmResult, noise_of

Work = Callable[[], object]
SAMPLES = 3
# The candidates whose energy a search measures: the fastest ones, which take three seconds each.
MOST_CANDIDATES = 4


class Energy(NamedTuple):
    """The energy and power of a call.

    Attributes
    ----------
    joules : float
        The energy of a call, with the idle power of the GPU included: the median of the samples.
    spread : float
        The largest minus the smallest sample, in joules.
    watts : float
        The mean power while calls were repeated: the median of the samples.
    """

    joules: float
    spread: float
    watts: float


def open_meter(handle: Handle) -> PowerMeter:
    """Return the meter of a handle's device for a search whose objective is the energy.

    ArgumentError if nothing tells the energy of the device.
    """
    meter = handle.device.power_meter()
    if meter is None:
        raise ArgumentError(
            f"objective='energy': {handle.device} has no energy counter that NVML reads; "
            "allowed: 'latency', 'device'"
        )
    return meter


def energies_of(
    handle: Handle,
    works: Sequence[Work],
    meter: PowerMeter,
    *,
    samples: int = SAMPLES,
) -> list[Energy]:
    """Repeat calls, as CUDA graphs if they can be recorded, and return the energy of each.

    The handle's `timing` says how long a sample lasts.  The samples of all calls are taken in
    shuffled rounds: a GPU that has become warm takes more.
    """
    device, stream, seconds = handle.device, handle.stream, handle.timing.energy_seconds
    launches = [device.capture(work, stream) or work for work in works]
    for launch in launches:
        launch()
    device.wait(stream)
    figures: list[list[tuple[float, float]]] = [[] for _ in launches]
    order = list(range(len(launches)))
    generator = random.Random(0)
    for _ in range(samples):
        generator.shuffle(order)
        for index in order:
            figures[index].append(_sample(handle, launches[index], meter, seconds))
    return [_energy(samples_of_call) for samples_of_call in figures]


def _energy(figures: Sequence[tuple[float, float]]) -> Energy:
    """Return the energy of a call from (joules, watts) of its samples."""
    joules = [joules for joules, _ in figures]
    watts = statistics.median(watts for _, watts in figures)
    return Energy(statistics.median(joules), max(joules) - min(joules), watts)


def _sample(handle: Handle, launch: Work, meter: PowerMeter, seconds: float) -> tuple[float, float]:
    """Return the joules of a call and the watts, measured over at least `seconds`."""
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


def ranked_by_energy(rows: Sequence[AlgorithmResult]) -> list[AlgorithmResult]:
    """Return rows in the order of their energy; those without one behind, in the given order.

    If rows differ only by noise, the given order decides which is the first of them.
    """
    plain = [replace(row, within_noise=False) for row in rows]
    rows_with_energy = [row for row in plain if row.ok and row.joules is not None]
    others = [row for row in plain if not (row.ok and row.joules is not None)]
    if not rows_with_energy:
        return others
    least = min(rows_with_energy, key=lambda row: row.joules or 0.0)
    tied = [row for row in rows_with_energy if row is least or energy_within_noise(row, least)]
    first = tied[0]
    rest = sorted(
        (row for row in rows_with_energy if row is not first), key=lambda row: row.joules or 0.0
    )
    tied_ids = set(map(id, tied))
    return [first, *(replace(row, within_noise=id(row) in tied_ids) for row in rest), *others]


def energy_within_noise(row: AlgorithmResult, other: AlgorithmResult) -> bool:
    """Return whether the energies of two rows differ by less than the noise: see `noise_of`.

    False if that of one was not measured.
    """
    if row.joules is None or other.joules is None:
        return False
    one, another = (
        (row.joules, row.joules_spread or 0.0),
        (other.joules, other.joules_spread or 0.0),
    )
    return abs(row.joules - other.joules) <= noise_of(one, another, MOST_NOISE_OF_CALLS)
