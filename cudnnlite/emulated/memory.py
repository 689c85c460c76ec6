"""The emulated device's memory: host memory behind addresses that are checked at every use.

Stricter than hardware: a pointer must lie inside one live allocation, new memory is all NaN, freed memory all garbage.
A large allocation becomes so part by part, where it is looked at: what nobody uses takes no memory of the host's.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cudnnlite._raw.calls import Alive
from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.arguments import refusals_ignored
from cudnnlite.devices.storage import host_bytes
from cudnnlite.errors import DeviceMemoryError
from cudnnlite.sizes import format_size

ALIGNMENT = 256  # as cudaMalloc gives
POISON_NEW = 0xFF  # NaN in every floating-point format, -1 in signed integers
POISON_FREED = 0xA5
QUARANTINE = 16 << 20  # freed memory whose addresses are not handed out again yet, in bytes
_OVERHEAD = 512  # what a block takes beside its bytes: alignment, and Python's objects
_UNASKED = 16 << 20  # so many bytes are allocated without a look at what the host has left
_PART = 2 << 20  # bytes; as large as a huge page
# of both versions of control groups: where they are, and the files with the limit, the use, and what of that is a mere cache
_GROUPS = {
    "": ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": (
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
}

Bytes = npt.NDArray[np.uint8]


class IllegalAddressError(Exception):
    """A pointer does not lie inside a live allocation: what a GPU reports as an illegal memory access, if at all."""


_memories = Alive()


class EmulatedMemory(NonCopyable):
    """The allocations of one emulated device.

    Parameters
    ----------
    capacity : int
        Bytes that may be allocated at once.
    large : int
        Bytes from which an allocation is poisoned part by part.
    """

    def __init__(self, capacity: int, large: int = 16 << 20) -> None:
        self.capacity = capacity
        self.large = large
        self.peak = 0
        self._used = 0
        self._blocks: dict[int, Bytes] = {}
        # Of large blocks: which of their parts nobody has looked at, so that they have no memory.
        self._untouched: dict[int, npt.NDArray[np.bool_]] = {}
        self._addresses: list[int] = []
        self._quarantine: deque[Bytes] = deque()
        self._quarantined = 0
        # Buffers that are gone, to be freed by the next use of this memory.  `append` is C: a finalizer in Python would lose
        # what a signal handler raises in it.
        self._owners: dict[int, _Owner] = {}
        self._dropped: deque[_Owner] = deque()
        self._unasked = _UNASKED  # what was allocated since the host was asked
        self._lock = threading.RLock()
        _memories.add(self)

    def __len__(self) -> int:
        self._free_dropped()
        return len(self._blocks)

    @property
    def used(self) -> int:
        """The bytes that are allocated now."""
        self._free_dropped()
        return self._used

    @property
    def left(self) -> int:
        """The bytes that can be allocated: what is free, as far as the host has it."""
        return min(self.capacity - self.used, host_memory())

    def allocate(self, nbytes: int) -> EmulatedBuffer:
        """Allocate poisoned memory.

        Raises
        ------
        DeviceMemoryError
            More than is free; the message says how much that is.
        """
        with self._lock:
            self._free_dropped()
            self._unasked += nbytes
            if nbytes > self.capacity - self.used or (
                self._unasked > _UNASKED and nbytes > self.left
            ):
                raise self._too_much(nbytes)
            if nbytes == 0:
                return EmulatedBuffer(self, 0, 0)
            self._unasked %= _UNASKED
            try:
                raw = np.empty(nbytes + ALIGNMENT, np.uint8)
            except MemoryError as error:  # a limit of the process
                raise self._too_much(nbytes) from error
            offset = -raw.ctypes.data % ALIGNMENT
            block = raw[offset : offset + nbytes]
            address = block.ctypes.data
            if nbytes < self.large:
                block[:] = POISON_NEW
            buffer = EmulatedBuffer(self, address, nbytes)
            owner = _Owner(buffer, self._dropped.append)
            owner.address = address
            try:
                if nbytes < self.large:
                    # An interrupt may have left those of an earlier block at this address.
                    self._untouched.pop(address, None)
                else:
                    self._untouched[address] = np.ones(-(-nbytes // _PART), bool)
                self._owners[address], self._blocks[address] = owner, block
                self._used += nbytes
                bisect.insort(self._addresses, address)
            except BaseException:  # a signal handler's
                self._repair()
                raise
            self.peak = max(self.peak, self._used)
            return buffer

    def _too_much(self, nbytes: int) -> DeviceMemoryError:
        left = self.left
        why = (
            ", which is what the host has left for this process"
            if left < self.capacity - self.used
            else ""
        )
        return DeviceMemoryError(
            f"{format_size(nbytes)} of emulated device memory are not there: {format_size(left)} of "
            f"{format_size(self.capacity)} are free{why}"
        )

    def free(self, address: int) -> None:
        """Fill the allocation at `address` with garbage and forget it."""
        with self._lock:
            try:
                block = self._blocks.pop(address)
                self._owners.pop(address, None)
                self._addresses.remove(address)
                self._used -= block.nbytes
            except BaseException:
                self._repair()
                raise
            for part in self._touched_parts(address, block):
                part[:] = POISON_FREED
            self._quarantine.append(block)
            self._quarantined += block.nbytes + _OVERHEAD
            while self._quarantined > QUARANTINE:
                self._quarantined -= self._quarantine.popleft().nbytes + _OVERHEAD

    def _repair(self) -> None:
        """Bring the books in order after an interrupt between two of them; the blocks are what there is."""
        self._addresses[:] = sorted(self._blocks)
        self._used = sum(block.nbytes for block in self._blocks.values())

    def _touched_parts(self, address: int, block: Bytes) -> list[Bytes]:
        """Return the parts of a block that is freed which have memory, and forget the others."""
        untouched = self._untouched.pop(address, None)
        if untouched is None:
            return [block]
        return [block[part * _PART : (part + 1) * _PART] for part in np.flatnonzero(~untouched)]

    def _poison(self, start: int, offset: int, nbytes: int) -> None:
        """Poison those parts of a range in the block at `start` that nobody has looked at."""
        untouched = self._untouched.get(start)
        if untouched is None:
            return
        first, end = offset // _PART, -(-(offset + nbytes) // _PART)
        for part in first + np.flatnonzero(untouched[first:end]):
            self._blocks[start][part * _PART : (part + 1) * _PART] = POISON_NEW
            untouched[part] = False  # last: an interrupt before it lets the part be poisoned again

    @property
    def promised(self) -> int:
        """The bytes that are allocated, and for which the host has given no memory yet."""
        return sum(_PART * int(untouched.sum()) for untouched in tuple(self._untouched.values()))

    def _free_dropped(self) -> None:
        while self._dropped:
            with self._lock:
                if self._dropped:
                    owner = self._dropped[0]
                    if self._owners.get(owner.address) is owner and owner.address in self._blocks:
                        self.free(owner.address)
                    self._dropped.popleft()

    def contains(self, address: int, nbytes: int) -> bool:
        """Tell whether the range lies inside one live allocation."""
        with self._lock:
            self._free_dropped()
            return self._find(address, nbytes) is not None

    def view(self, address: int, nbytes: int) -> Bytes:
        """Return the bytes at `address`, for reading and writing.

        Raises
        ------
        IllegalAddressError
            The range does not lie inside one live allocation.
        """
        if nbytes == 0:
            return np.empty(0, np.uint8)
        with self._lock:
            self._free_dropped()
            start = self._find(address, nbytes)
            if start is None:
                raise IllegalAddressError(
                    f"{nbytes} bytes at {address:#x} do not lie inside one live allocation of the emulated device"
                )
            self._poison(start, address - start, nbytes)
            return self._blocks[start][address - start : address - start + nbytes]

    def ints(self, pointer: Any, count: int) -> npt.NDArray[np.int32]:
        """Return so many C ints at a pointer; IllegalAddressError as in `view`."""
        return self.view(ctypes.addressof(pointer.contents), 4 * count).view(np.int32)

    def allocation_of(self, address: int) -> tuple[int, int] | None:
        """Return the first address and the bytes of the live allocation that an address lies in; None if there is none."""
        with self._lock:
            self._free_dropped()
            start = self._find(address, 1)
            return None if start is None else (start, self._blocks[start].nbytes)

    def _find(self, address: int, nbytes: int) -> int | None:
        position = bisect.bisect_right(self._addresses, address) - 1
        if position < 0:
            return None
        start = self._addresses[position]
        return start if address + nbytes <= start + self._blocks[start].nbytes else None


def _after_fork() -> None:
    for (
        memory
    ) in _memories:  # of the threads that used it, one that may have had the lock is not there
        memory._lock = threading.RLock()
        memory._repair()


os.register_at_fork(after_in_child=_after_fork)


class _Owner(weakref.ref["EmulatedBuffer"]):
    """Tells when a buffer is gone, and where its memory was."""

    __slots__ = ("address",)
    address: int


class EmulatedBuffer(NonCopyable):
    """One allocation; the same surface as `cuda.core.Buffer`, as far as cudnnlite uses it."""

    def __init__(self, memory: EmulatedMemory, address: int, nbytes: int) -> None:
        self.handle = address
        self.size = nbytes
        self.is_closed = False
        self._memory = memory

    def close(self, stream: Any = None) -> None:
        """Free the memory; harmless when called again."""
        if self.size and not self.is_closed:
            self.is_closed = True
            self._memory.free(self.handle)

    def bytes(self) -> Bytes:
        """Return the memory as an array that keeps this buffer, and so the allocation, alive."""
        if not self.is_closed:
            self._memory.view(self.handle, self.size)  # poisons what nobody has looked at
        return host_bytes(self)


def host_memory(root: Path = Path("/")) -> int:
    """Return the bytes that can still be had; a lot where the system does not say."""
    return max(0, min(_left(root), default=1 << 62))


def _left(root: Path) -> Iterator[int]:
    # Limits of memory that is used do not count what is promised; one of addresses does.
    promised = sum(memory.promised for memory in _memories)
    with refusals_ignored():
        yield _named(root / "proc/meminfo", "MemAvailable:") * 1024 - promised
    with refusals_ignored():
        _, _, limit = (
            (root / "proc/self/limits").read_text().partition("Max address space")
        )  # as `ulimit -v` sets it
        if limit.split()[:1] not in ([], ["unlimited"]):
            yield int(limit.split()[0]) - _named(root / "proc/self/status", "VmSize:") * 1024
    with refusals_ignored():
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in _GROUPS:
                place, limit, use, cache = _GROUPS[controllers]
                group = Path(path.lstrip("/"))
                # each bounds those inside it; a container does not see all of them
                for where in (root / place / folder for folder in (group, *group.parents)):
                    with refusals_ignored():
                        most, used = ((where / name).read_text().strip() for name in (limit, use))
                        if most.isdigit():  # not "max"
                            cached = _named(where / "memory.stat", cache)
                            yield int(most) - int(used) + cached - promised


def _named(file: Path, name: str) -> int:
    """Return the number behind a name in a file of names and numbers."""
    return next(
        (
            int(words[1])
            for line in file.read_text().splitlines()
            if (words := line.split())[0] == name
        ),
        0,
    )
