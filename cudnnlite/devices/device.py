"""`Device`: what the layers above need of a device, CUDA or emulated.

A device pairs the function table with memory and streams.  On CUDA these are cuda.core's; the
emulated device has the same methods, so that nothing above asks which one it has.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import get_ident
from typing import Any, NamedTuple, Protocol

import numpy as np

from cudnnlite._raw.api import CudnnApi
from cudnnlite.devices.foreign import ForeignArray
from cudnnlite.errors import CaptureError
from cudnnlite.sizes import format_size


class DeviceFacts(NamedTuple):
    """The facts that distinguish a device from others."""

    name: str  # 'NVIDIA H200'
    compute_capability: str  # '9.0'
    driver: str  # its version
    uuid: str  # which one of its kind it is


class DeviceFigures(NamedTuple):
    """The figures of a GPU that its peaks follow from."""

    name: str  # 'NVIDIA H200'
    compute_capability: str  # '9.0'
    multiprocessors: int
    clock_hz: float  # the highest clock of the multiprocessors
    memory_clock_hz: float
    bus_bits: int  # the width of the memory bus

    @property
    def bandwidth(self) -> float:
        """The bytes a second between the GPU and its memory; memory transfers twice a clock."""
        return 2 * self.memory_clock_hz * self.bus_bits / 8


class StreamRecorder(Protocol):
    """Records the calls on a stream in a `with` block; CaptureError at its end on failure.

    `stream` is the stream that is recorded.  `graph` is the graph after a block without an error:
    `launch(stream)` enqueues it, `close()` frees it.
    """

    stream: Any
    graph: Any

    def __enter__(self) -> StreamRecorder:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End, whatever happened meanwhile."""


class StandIns(dict[tuple[int, int], Any]):
    """The streams of a device that are recorded in place of others, by thread and replaced stream.

    So the legacy default stream, which CUDA does not record, can be captured.  Memory that is
    dropped meanwhile is freed on the replaced stream; CUDA cannot free memory on a stream that is
    being recorded.  Other threads and libraries may use the replaced stream.  A stand-in waits for
    nothing, because recorded work does not run.
    """

    def of(self, stream: Any) -> Any:
        """Return the stream that this thread's work is enqueued on: the stand-in, or `stream`."""
        if not self:
            return stream
        return self.get((get_ident(), int(stream.handle)), stream)


class Device(Protocol):
    """The interface of a device to the layers above."""

    @property
    def kind(self) -> str:
        """'cuda' or 'emulated'."""

    @property
    def index(self) -> int:
        """The ordinal among devices of its kind."""

    @property
    def name(self) -> str:
        """The name of the card: 'NVIDIA H200'."""

    @property
    def api(self) -> CudnnApi:
        """The function table for calls on this device."""

    @property
    def stand_ins(self) -> StandIns:
        """What is being recorded."""

    @property
    def default_stream(self) -> Any:
        """The stream that a handle uses unless told otherwise."""

    @property
    def unrecordable(self) -> Any:
        """The stream that is never recorded and needs no check; None if there is none."""

    @property
    def needs_activation(self) -> bool:
        """Whether `activate` must run before each use: another device may be current."""

    @property
    def has_real_timing(self) -> bool:
        """Whether its times are those of a GPU.

        If not, no cache keeps them, candidates are timed once, and nobody has to measure alone.
        """

    @property
    def emulated_functions(self) -> frozenset[object]:
        """The functions that the emulated device ran in the work that was timed last.

        Candidates with the same functions run the same NumPy code, so that noise alone would rank
        them.  Empty on a GPU, where nothing tells which kernels ran.
        """

    def facts(self) -> DeviceFacts:
        """Return the facts that identify the device."""

    def figures(self) -> DeviceFigures | None:
        """Return the figures that its peaks follow from; None if it is no GPU."""

    def clocks(self) -> dict[str, str]:
        """Return the present clocks and the power limit in words; empty if nothing tells them."""

    def kernel_names(self, work: Callable[[], object], stream: Any) -> tuple[str, ...] | None:
        """Return the names of the kernels that `work` enqueues on `stream`, in order.

        The work is recorded as a CUDA graph, and does not run.  None if it cannot be recorded, or
        if the device is no GPU.
        """

    def activate(self) -> None:
        """Make it this thread's current device."""

    def current(self) -> AbstractContextManager[None]:
        """Make it this thread's current device in the block; then restore the previous one."""

    def synchronize(self) -> None:
        """Wait for everything on this device."""

    def holding_waits(self) -> AbstractContextManager[object]:
        """Let `synchronize` of other threads wait for the end of the block, which records a stream.

        CUDA refuses to wait for a device while one of its streams is recorded, and gives up that
        recording.
        """
        ...

    def wait(self, stream: Any) -> None:
        """Wait for everything on a stream."""

    def closing(self) -> AbstractContextManager[None]:
        """Ignore errors in the block if the device is lost, as nothing can be freed then."""

    def stream(self, stream: Any) -> Any:
        """Return a stream object with `handle` and `sync()`.

        `stream` is None, an address, or any library's stream object.
        """

    def create_stream(self) -> Any:
        """Make a stream."""

    def allocate(self, nbytes: int, stream: Any) -> Any:
        """Return a buffer with `handle`, `size` and `close()`, ordered on `stream`.

        DeviceMemoryError if there is not enough memory.
        """

    def memory_info(self) -> tuple[int, int]:
        """Return (free, total) bytes."""

    def memory_used(self) -> int:
        """Return the bytes that are allocated through this device now."""

    def allocation_of(self, ptr: int) -> tuple[int, int] | None:
        """Return the first address and the bytes of an address's allocation; None if none."""

    def copy_in(self, ptr: int, source: np.ndarray[Any, Any], stream: Any) -> None:
        """Copy a contiguous host array to the device, in stream order."""

    def copy_out(self, target: np.ndarray[Any, Any], ptr: int, stream: Any) -> None:
        """Copy device memory to a contiguous host array, and wait for it."""

    def copy_within(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Copy device memory to device memory, in stream order."""

    def copy_rows(
        self, ptr: int, pitch: int, host: np.ndarray[Any, Any], stream: Any, *, out: bool
    ) -> None:
        """Copy contiguous host memory, ``(rows, bytes)``, to rows on the device; with `out`, back.

        The rows are `pitch` bytes apart.  With pinned host memory the copy is enqueued; a copy of
        other memory to the host is waited for.
        """

    def pinned(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Return bytes of host memory that copies to and from the device need not wait for."""

    def fill_rows(
        self, ptr: int, pitch: int, width: int, rows: int, pattern: bytes, stream: Any
    ) -> None:
        """Set rows to a repeated pattern of 1, 2 or 4 bytes, in stream order.

        Rows have `width` bytes and are `pitch` bytes apart.
        """

    def fill(self, ptr: int, nbytes: int, byte: int, stream: Any) -> None:
        """Set device memory to a repeated byte, in stream order."""

    def elapsed_ms(self, work: Callable[[], object], stream: Any) -> float:
        """Do `work`, wait for it, and return the milliseconds that passed on `stream`."""

    def capture(self, work: Callable[[], object], stream: Any) -> Callable[[], object] | None:
        """Record what `work` enqueues on `stream`.

        Return a function that enqueues all of it at once, or None if it cannot be recorded.
        """

    def recorder(self) -> StreamRecorder:
        """Return a recorder with a stream of its own."""

    def is_capturing(self, stream: Any) -> bool:
        """Tell whether a graph is being recorded on `stream`, where nothing may be waited for."""

    def adopt(self, array: Any, argument: str, stream: Any) -> ForeignArray:
        """View another library's array on this device; ArrayTypeError if it is not on it."""

    def address_of(self, stream: Any) -> int:
        """Return the address of one of our streams; 0 for the default stream."""
        ...

    def stream_at(self, address: int, stream: Any) -> Any:
        """Return the stream at another library's address; `stream` itself if it has the address."""
        ...

    def export_dlpack(
        self, array: ForeignArray, stream: Any, consumer: int | None, **options: Any
    ) -> Any:
        """Return a DLPack capsule; `consumer` is the reader's stream, which waits for `stream`."""

    def dlpack_device(self) -> tuple[int, int]:
        """Return DLPack's (device type, index)."""

    def cuda_array_interface(self, array: ForeignArray, stream: Any) -> dict[str, Any]:
        """Return the `__cuda_array_interface__`; AttributeError if there is none."""


def refuse_in_capture(device: Device, stream: Any, problem: str, remedy: str) -> None:
    """Raise CaptureError if a graph is being recorded on `stream`."""
    if device.is_capturing(stream):
        raise CaptureError(f"{problem} while a CUDA graph is recorded on {stream}: {remedy}")


def check_allocation(device: Device, nbytes: int, stream: Any) -> None:
    """Raise CaptureError for new memory while a graph is recorded on `stream`."""
    problem = f"{format_size(nbytes)} of device memory cannot be allocated"
    refuse_in_capture(device, stream, problem, "allocate them before the capture")


def check_wait(device: Device) -> None:
    """Raise CaptureError for waiting for a device while a graph is recorded on it.

    CUDA would give up the recording.
    """
    if device.stand_ins:
        raise CaptureError(
            f"{device} cannot be waited for while a CUDA graph is recorded on it: "
            "end the capture first"
        )


def check_host_copy(device: Device, stream: Any, *, out: bool) -> None:
    """Raise CaptureError for a copy from the host, or to it, while a graph is recorded."""
    if out:
        refuse_in_capture(
            device, stream, "a copy to the host waits, and cannot", "read results after a launch"
        )
    refuse_in_capture(
        device, stream, "a copy from the host cannot be recorded", "make it before the capture"
    )


def check_recorded_together(device: Device, stream: Any, other: Any) -> None:
    """Raise CaptureError if only one of two streams is recorded.

    CUDA would give up the recording, or record the other stream too.
    """
    if device.is_capturing(stream) != device.is_capturing(other):
        raise CaptureError(
            f"an operand belongs to {other}, the call is made on {stream}, and a CUDA graph is "
            "recorded on one of the two; before the capture, handle.view(array) makes it belong "
            "to the handle's stream"
        )
