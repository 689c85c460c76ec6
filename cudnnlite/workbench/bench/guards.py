"""Guard zones: memory before and behind every operand of a trial that nobody may write."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from cudnnlite import DeviceArray, Handle, TensorSpec
from cudnnlite.devices import arrays
from cudnnlite.devices.storage import bytes_spec
from cudnnlite.types import Problem
from cudnnlite.workbench.tuning.policy import TuningPolicy
from cudnnlite.workbench.tuning.trial import Trial, TrialMemory
from cudnnlite.workbench.tuning.tuner import search_of

ZONE = 4096  # bytes on each side; a multiple of the allocator's alignment
_WORKSPACE, _RESERVE = "the workspace", "the reserve space"
_PATTERN = 0xA7  # as a value of any floating-point type small and negative, so that sums show it


class _Zones(NamedTuple):
    """An operand in the middle of its memory."""

    name: str
    memory: DeviceArray
    operand: DeviceArray
    # For a read-only operand, the array that it is a copy of, and its digest; None for an operand
    # that is written.
    source: DeviceArray | None = None
    digest: bytes | None = None


class GuardedMemory(TrialMemory):
    """Operands with guard zones around each, on the handle's stream.

    An operand has the allocator's alignment, and the zone behind it begins at its last byte's
    successor.
    """

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle)
        self._zones: list[_Zones] = []

    def place(self, name: str, array: DeviceArray, *, is_read_only: bool = False) -> DeviceArray:
        """Return a copy of an array that has guard zones; waits for the array if it is only read.

        A write to an operand that is only read is found as one to a zone is.  Then `array` is kept,
        to be copied again.
        """
        operand = self.empty(name, array.spec)
        device, stream = self._handle.device, self._handle.stream
        device.copy_within(operand.ptr, array.ptr, array.spec.nbytes, stream)
        if is_read_only:
            zones = self._zones.pop()
            digest = digest_of(self._handle, operand)
            self._zones.append(zones._replace(source=array, digest=digest))
        return operand

    def empty(self, name: str, spec: TensorSpec) -> DeviceArray:
        """Return a new operand that has guard zones; its contents are undefined."""
        device, stream = self._handle.device, self._handle.stream
        memory = arrays.empty(device, stream, bytes_spec(2 * ZONE + spec.nbytes))
        device.fill(memory.ptr, memory.spec.nbytes, _PATTERN, stream)
        operand = arrays.part_of(memory, spec, ZONE)
        self._zones.append(_Zones(name, memory, operand))
        return operand

    def workspace(self, nbytes: int) -> DeviceArray | None:
        """Return scratch memory of exactly `nbytes`; None for 0 bytes."""
        self.forget(_WORKSPACE)
        if not nbytes:
            return None
        return self.empty(_WORKSPACE, bytes_spec(nbytes))

    def reserve(self, nbytes: int) -> DeviceArray:
        """Return a reserve space of exactly `nbytes`."""
        self.forget(_RESERVE)
        return self.empty(_RESERVE, bytes_spec(nbytes))

    def forget(self, name: str) -> None:
        """Do not check an operand any more."""
        self._zones = [zones for zones in self._zones if zones.name != name]

    def findings(self) -> list[str]:
        """Wait for the handle, and return a description of each forbidden write.

        The changed bytes are restored, so that no later call is blamed for them.
        """
        self._handle.synchronize()
        return [finding for zones in self._zones for finding in self._findings_of(zones)]

    def _findings_of(self, zones: _Zones) -> list[str]:
        findings = []
        nbytes = zones.operand.spec.nbytes
        before = self._changes(zones.memory.ptr)
        behind = self._changes(zones.memory.ptr + ZONE + nbytes)
        if before.size:
            findings.append(
                f"writes before {zones.name}: {before.size} bytes, "
                f"the first {ZONE - int(before[0])} before its beginning"
            )
        if behind.size:
            findings.append(
                f"writes behind {zones.name}: {behind.size} bytes, "
                f"the first {int(behind[0])} behind its end"
            )
        if zones.source is not None and digest_of(self._handle, zones.operand) != zones.digest:
            findings.append(f"changes {zones.name}, which is only read")
        if findings:
            self._restore(zones)
        return findings

    def _restore(self, zones: _Zones) -> None:
        device, stream = self._handle.device, self._handle.stream
        nbytes = zones.operand.spec.nbytes
        for address in (zones.memory.ptr, zones.memory.ptr + ZONE + nbytes):
            device.fill(address, ZONE, _PATTERN, stream)
        if zones.source is not None:
            device.copy_within(zones.operand.ptr, zones.source.ptr, nbytes, stream)

    def _changes(self, address: int) -> np.ndarray[Any, Any]:
        """Return the places in the zone at an address where the pattern is not any more."""
        zone = np.empty(ZONE, np.uint8)
        self._handle.device.copy_out(zone, address, self._handle.stream)
        return np.flatnonzero(zone != _PATTERN)


def guarded_trial(
    handle: Handle, problem: Problem, policy: TuningPolicy, stack: ExitStack, memory: GuardedMemory
) -> Trial:
    """Return the trial of a problem on synthetic operands with guard zones.

    `policy` has its workspace limit in bytes.  `stack` owns native objects.  ArgumentError if the
    problem is of a kind that cannot be tuned.
    """
    search = search_of(problem)
    operands = search.operands_of(handle, problem)
    return search.make_trial(handle, problem, policy, operands, stack, memory)


def digest_of(handle: Handle, array: DeviceArray) -> bytes:
    """Wait for an array, and return a digest of its memory, gaps included."""
    content = np.empty(array.spec.nbytes, np.uint8)
    if content.size:
        handle.device.copy_out(content, array.ptr, handle.stream)
    return hashlib.blake2b(content.data, digest_size=16).digest()
