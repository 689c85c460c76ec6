"""The emulated device's memory: host memory behind addresses that are checked at every use.

Stricter than hardware: a pointer must lie inside one live allocation, new memory is all NaN, freed
memory all garbage. A large allocation becomes so part by part, where it is looked at: what nobody
uses takes no memory of the host's.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import resource
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from cudnnlite._raw.calls import Alive
from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.devices.storage import host_bytes
from cudnnlite.errors import DeviceMemoryError
from cudnnlite.sizes import format_size

ALIGNMENT = 256  # as cudaMalloc gives
POISON_NEW = 0xFF  # NaN in every floating-point format, -1 in signed integers
POISON_FREED = 0xA5
QUARANTINE = 16 << 20  # bytes of freed memory whose addresses are not handed out again yet
_OVERHEAD = 512  # bytes that a block takes beside its own: alignment, and Python's objects
_PART = 2 << 20  # bytes; as large as a huge page
Bytes = npt.NDArray[np.uint8]


class IllegalAddressError(Exception):
    """A pointer is not inside a live allocation: on a GPU an illegal memory access, if reported."""


_memories = Alive()


class EmulatedMemory(NonCopyable):
    """The allocations of one emulated device.

    Parameters
    ----------
    capacity : int
        Bytes of memory that the device says it has; as many may be allocated, as far as the host
        has them.
    large : int
        Bytes from which an allocation is poisoned part by part.
    """

    def __init__(self, capacity: int, large: int = 16 << 20) -> None:
        self.capacity = capacity
        self._limit = min(capacity, host_memory())
        self.large = large
        self.peak = 0
        self._used = 0
        self._blocks: dict[int, Bytes] = {}
        # Of each large block: whether nobody has looked at a part, so that the host gave no memory
        # for it.
        self._untouched: dict[int, npt.NDArray[np.bool_]] = {}
        self._addresses: list[int] = []
        self._quarantine: deque[Bytes] = deque()
        self._quarantined = 0
        # Buffers that are gone, to be freed by the next use of this memory.  They are put there by
        # `append`, which is C: a finalizer in Python would lose what a signal handler raises in it.
        self._owners: dict[int, _Owner] = {}
        self._dropped: deque[_Owner] = deque()
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
        """The bytes that are free."""
        return self._limit - self.used

    def allocate(self, nbytes: int) -> EmulatedBuffer:
        """Allocate poisoned memory.

        Raises
        ------
        DeviceMemoryError
            More than is free; the message says how much that is.
        """
        with self._lock:
            self._free_dropped()
            if nbytes == 0:
                return EmulatedBuffer(self, 0, 0)
            if nbytes > self.left:
                raise self._too_much(nbytes)
            try:
                raw = np.empty(nbytes + ALIGNMENT, np.uint8)
            except MemoryError as error:
                raise DeviceMemoryError(
                    f"{format_size(nbytes)} of emulated device memory are not there: "
                    "the host gives this process no more"
                ) from error
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
        text = (
            f"{format_size(nbytes)} of emulated device memory are not there: "
            f"{format_size(self.left)} of {format_size(self.capacity)} are free"
        )
        if self._limit < self.capacity:
            text += ", which is what the host has left for this process"
        return DeviceMemoryError(text)

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
        """Rebuild `_addresses` and `_used` from `_blocks` after an interrupt."""
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
                    f"{nbytes} bytes at {address:#x} do not lie inside one live allocation "
                    "of the emulated device"
                )
            self._poison(start, address - start, nbytes)
            return self._blocks[start][address - start : address - start + nbytes]

    def ints(self, pointer: Any, count: int) -> npt.NDArray[np.int32]:
        """Return so many C ints at a pointer; IllegalAddressError as in `view`."""
        return self.view(ctypes.addressof(pointer.contents), 4 * count).view(np.int32)

    def allocation_of(self, address: int) -> tuple[int, int] | None:
        """Return base and bytes of the allocation that an address is in; None if there is none."""
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
    for memory in _memories:
        # A thread that had the lock is not in the forked process.
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


def host_memory() -> int:
    """Return the bytes that this process may have: the host's, or what `ulimit -v` allows."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return total if limit == resource.RLIM_INFINITY else min(total, limit)
