"""The emulated device's memory: host memory behind addresses that are checked at every use.

It is stricter than hardware: a pointer must lie inside one live allocation, new memory is all NaN
("poisoned"), and freed memory is overwritten.  A large allocation is poisoned part by part, when a
part is first used, so that unused parts take no memory of the host.
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
_OVERHEAD = 512  # bytes that a block takes besides its own: alignment, and Python's objects
_PART_BYTES = 2 << 20  # as large as a huge page
Bytes = npt.NDArray[np.uint8]


class IllegalAddressError(Exception):
    """A pointer is not inside a live allocation; a GPU may report an illegal memory access."""


_memories = Alive()


class EmulatedMemory(NonCopyable):
    """The allocations of one emulated device.

    Parameters
    ----------
    capacity : int
        Bytes of memory that the device reports.  So many may be allocated, unless the host has
        less.
    large : int
        Allocations of at least this many bytes are poisoned part by part.
    """

    def __init__(self, capacity: int, large: int = 16 << 20) -> None:
        self.capacity = capacity
        self._limit = min(capacity, host_memory())
        self.large = large
        self.peak = 0
        self._used = 0
        self._blocks: dict[int, Bytes] = {}
        # For each large block, which of its parts were never used, and take no memory of the host.
        self._untouched: dict[int, npt.NDArray[np.bool_]] = {}
        self._addresses: list[int] = []
        self._quarantine: deque[Bytes] = deque()
        self._quarantined = 0
        # The live buffers, by address.
        self._buffer_refs: dict[int, _BufferRef] = {}
        # The buffers that no longer exist; the next use of this memory frees their allocations.
        # `append` is called when a buffer goes.  It is C code: if a signal handler raised an
        # exception inside of a finalizer in Python, the exception would be lost.
        self._dropped: deque[_BufferRef] = deque()
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
                raise self._allocation_error(nbytes)
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
            buffer_ref = _BufferRef(buffer, self._dropped.append)
            buffer_ref.address = address
            try:
                if nbytes < self.large:
                    # An interrupt may have left an entry of an earlier block at this address.
                    self._untouched.pop(address, None)
                else:
                    self._untouched[address] = np.ones(-(-nbytes // _PART_BYTES), bool)
                self._buffer_refs[address], self._blocks[address] = buffer_ref, block
                self._used += nbytes
                bisect.insort(self._addresses, address)
            except BaseException:  # raised by a signal handler
                self._repair()
                raise
            self.peak = max(self.peak, self._used)
            return buffer

    def _allocation_error(self, nbytes: int) -> DeviceMemoryError:
        text = (
            f"{format_size(nbytes)} of emulated device memory are not there: "
            f"{format_size(self.left)} of {format_size(self.capacity)} are free"
        )
        if self._limit < self.capacity:
            text += ", which is what the host has left for this process"
        return DeviceMemoryError(text)

    def free(self, address: int) -> None:
        """Free the allocation at `address`, and overwrite it."""
        with self._lock:
            try:
                block = self._blocks.pop(address)
                self._buffer_refs.pop(address, None)
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
        """Return the used parts of a freed block, and remove its entry in `_untouched`."""
        untouched = self._untouched.pop(address, None)
        if untouched is None:
            return [block]
        return [
            block[part * _PART_BYTES : (part + 1) * _PART_BYTES]
            for part in np.flatnonzero(~untouched)
        ]

    def _poison_untouched_parts(self, start: int, offset: int, nbytes: int) -> None:
        """Poison the parts of the block at `start` that a range is in and that were never used."""
        untouched = self._untouched.get(start)
        if untouched is None:
            return
        first, end = offset // _PART_BYTES, -(-(offset + nbytes) // _PART_BYTES)
        for part in first + np.flatnonzero(untouched[first:end]):
            self._blocks[start][part * _PART_BYTES : (part + 1) * _PART_BYTES] = POISON_NEW
            # If an interrupt comes before this line, the part is only poisoned again.
            untouched[part] = False

    def _free_dropped(self) -> None:
        """Free the allocations whose buffers no longer exist."""
        while self._dropped:
            with self._lock:
                if self._dropped:
                    dropped = self._dropped[0]
                    address = dropped.address
                    # Another buffer may have the address by now.
                    is_same_buffer = self._buffer_refs.get(address) is dropped
                    if is_same_buffer and address in self._blocks:
                        self.free(address)
                    # The entry goes last, so that an interrupt leaves it for another attempt.
                    self._dropped.popleft()

    def contains(self, address: int, nbytes: int) -> bool:
        """Return whether the range lies inside one live allocation."""
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
            self._poison_untouched_parts(start, address - start, nbytes)
            return self._blocks[start][address - start : address - start + nbytes]

    def ints(self, pointer: Any, count: int) -> npt.NDArray[np.int32]:
        """Return `count` C ints at a pointer; IllegalAddressError as in `view`."""
        return self.view(ctypes.addressof(pointer.contents), 4 * count).view(np.int32)

    def allocation_of(self, address: int) -> tuple[int, int] | None:
        """Return base and bytes of the allocation that an address is in; None if there is none."""
        with self._lock:
            self._free_dropped()
            start = self._find(address, 1)
            return None if start is None else (start, self._blocks[start].nbytes)

    def _find(self, address: int, nbytes: int) -> int | None:
        """Return the address of the allocation that a range lies in; None if there is none."""
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


class _BufferRef(weakref.ref["EmulatedBuffer"]):
    """A weak reference to a buffer that keeps the address of its memory."""

    __slots__ = ("address",)
    address: int


class EmulatedBuffer(NonCopyable):
    """One allocation, with those attributes of `cuda.core.Buffer` that cudnnlite uses."""

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
            self._memory.view(self.handle, self.size)  # poisons parts that were never used
        return host_bytes(self)


def host_memory() -> int:
    """Return the bytes that this process may have: the host's, or what `ulimit -v` allows."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return total if limit == resource.RLIM_INFINITY else min(total, limit)
