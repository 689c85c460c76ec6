"""`Remembered`: what a cache knows of problems on a device, looked up without a handle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cudnnlite.autotune.cache import TuningCache
from cudnnlite.autotune.entries import TuningEntry
from cudnnlite.autotune.keys import DeviceIdentity, TuningKey, make_key
from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.devices.device import Device
from cudnnlite.devices.storage import ALLOCATION_ALIGNMENT
from cudnnlite.operations.problem import Problem
from cudnnlite.search.table import AlgorithmTable


class Remembered(NamedTuple):
    """What a cache knows of problems on a device, under a policy whose workspace limit is in bytes.

    Looking it up needs no handle and runs nothing.  Of the emulated device nothing is remembered: no cache takes its times.
    `memory` is that device's, in bytes.
    """

    cache: TuningCache
    policy: TuningPolicy
    device: DeviceIdentity
    memory: int

    def key(self, problem: Problem, alignments: Mapping[str, int] | None = None) -> TuningKey:
        """Return the key of a problem; an operand of which nothing else is said is aligned as an allocation is."""
        given = (alignments or {}).items()
        full = [name for name, value in given if type(value) is int and value > 0 == value % ALLOCATION_ALIGNMENT]
        return make_key(problem, {name: value for name, value in given if name not in full}, self.policy, self.device)

    def entry(self, problem: Problem) -> TuningEntry | None:
        """Return what is remembered of a problem, if anything."""
        return self.cache.get(self.key(problem))

    def table(self, problem: Problem) -> AlgorithmTable | None:
        """Return the candidates that are remembered of a problem, the best first, if any are."""
        return self.find(self.key(problem))

    def find(self, key: TuningKey) -> AlgorithmTable | None:
        """Return what is remembered under a key, the best first, if anything is."""
        entry = self.cache.get(key)
        if entry is None:
            return None
        timing = f"{entry.timing}, remembered from {entry.tuned_at[:10]}"
        return AlgorithmTable(entry.rows, title=entry.title, timing=timing, device_memory=self.memory)

    def keep(self, entry: TuningEntry) -> None:
        """Put an entry that was made elsewhere into the cache, unless it is there; one of an emulated device is refused."""
        if not entry.key.device.is_emulated and self.cache.get(entry.key) is None:
            self.cache.put(entry)


def identity_of(device: Device) -> DeviceIdentity:
    """Return what times on a device are measured on and with."""
    facts = device.facts()
    version = int(device.api.cudnnGetVersion())
    return DeviceIdentity(facts.name, facts.compute_capability, facts.driver, version, device.kind)
