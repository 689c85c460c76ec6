"""`EmulatedDevice`: a device whose cuDNN functions are computed by NumPy."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from weakref import ref

import numpy as np

from cudnnlite._raw.dlpack import STAND_INS, relabel
from cudnnlite._raw.library import load_library
from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.arguments import shown
from cudnnlite.devices import observer
from cudnnlite.devices.device import (
    DeviceFacts,
    StandIns,
    check_allocation,
    check_host_copy,
    check_wait,
)
from cudnnlite.devices.foreign import ForeignArray, host_array_error
from cudnnlite.devices.storage import as_row
from cudnnlite.dtypes import PLAIN_NAMES, numpy_dtype
from cudnnlite.emulated.api import EmulatedApi, Tape
from cudnnlite.emulated.memory import EmulatedBuffer, EmulatedMemory, host_memory
from cudnnlite.errors import ArgumentError, ArrayTypeError, DeviceMemoryError
from cudnnlite.sizes import format_size, parse_size

_DLPACK_CPU = 1
_stream_handles = itertools.count(0x1000, 0x10)


class EmulatedStream:
    """A stream whose work is always done: calls on it return when they have finished."""

    def __init__(self, device: EmulatedDevice, handle: int) -> None:
        self.device = device
        self.handle = handle

    def sync(self) -> None:
        """Do nothing: no work is ever pending."""

    def wait(self, other: Any) -> None:
        """Do nothing: the work of `other` is done."""

    def __repr__(self) -> str:
        return f"<EmulatedStream {self.handle:#x} of {self.device}>"


class EmulatedRecorder:
    """Records the work on a stream instead of doing it; see `devices.device.StreamRecorder`."""

    def __init__(self, api: EmulatedApi, stream: EmulatedStream) -> None:
        self._api, self.stream = api, stream
        self.graph: Any = None

    def __enter__(self) -> EmulatedRecorder:
        self._api.tapes[self.stream.handle] = []
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        tape = self._api.tapes.pop(self.stream.handle)
        if error_type is None:
            self.graph = EmulatedGraph(self._api, tape)


class EmulatedGraph(NonCopyable):
    """Recorded work, with those methods of `cuda.core`'s graph that cudnnlite uses."""

    def __init__(self, api: EmulatedApi, tape: Tape) -> None:
        self._api, self._tape = api, tape

    def launch(self, stream: Any) -> None:
        """Do the recorded work.  The recorded addresses must still be inside live allocations."""
        for name, work in self._tape:
            self._api.run(name, work)

    def close(self) -> None:
        """Drop the recorded work."""
        self._tape = []


class EmulatedDevice(NonCopyable):
    """The emulated device; see `cudnnlite.devices.device.Device`.

    Parameters
    ----------
    index : int
        The number of the device.  Several devices can exist side by side, each with its own memory.
    capacity : int or str
        The size of the device's memory.
    """

    _instead_of_copy = "its name, such as 'emulated:0', stands for it"
    kind = "emulated"
    name = "emulated (NumPy)"
    needs_activation = False

    def __init__(self, index: int = 0, *, capacity: int | str = "16 GiB") -> None:
        self.index = index
        self.memory = EmulatedMemory(parse_size(capacity, "capacity"))
        self.default_stream = EmulatedStream(self, 1)
        self.unrecordable = None  # every stream can be recorded
        # A stream's handle is valid while the stream object exists.
        self._streams: dict[int, ref[EmulatedStream]] = {1: ref(self.default_stream)}
        self.api = EmulatedApi(load_library(), self.memory)
        self.stand_ins = StandIns()

    def __repr__(self) -> str:
        return f"<emulated:{self.index}>"

    @property
    def has_real_timing(self) -> bool:
        """False.  A subclass for tests that has another `kind`, as a GPU would, returns True."""
        return self.kind != "emulated"

    @property
    def emulated_functions(self) -> frozenset[object]:
        """The emulated functions that `elapsed_ms` ran last; empty with real timing."""
        if self.has_real_timing:
            return frozenset()
        return frozenset(self.api.kernels_run)

    def facts(self) -> DeviceFacts:
        """Return the device's name and UUID; there are no other facts."""
        return DeviceFacts(self.name, "", "", f"emulated:{self.index}")

    def figures(self) -> None:
        """Return None: NumPy has no peaks."""

    def clocks(self) -> dict[str, str]:
        """Return nothing: NumPy has no clock."""
        return {}

    def kernel_names(self, work: Callable[[], object], stream: Any) -> None:
        """Return None: NumPy's functions are no kernels."""

    def activate(self) -> None:
        """Do nothing: no device is current."""

    def current(self) -> AbstractContextManager[None]:
        """Do nothing: no device is current."""
        return nullcontext()

    def synchronize(self) -> None:
        """Do nothing: no work is ever pending.  CaptureError while a graph is recorded."""
        check_wait(self)

    def holding_waits(self) -> AbstractContextManager[None]:
        """Do nothing: `synchronize` disturbs no recording."""
        return nullcontext()

    def wait(self, stream: Any) -> None:
        """Do nothing: no work is ever pending."""

    def closing(self) -> AbstractContextManager[None]:
        """Do nothing: this device is never lost."""
        return nullcontext()

    def stream(self, stream: Any) -> EmulatedStream:
        """Return a stream of this device; `stream` is one, its handle, or None for the default."""
        if stream is None:
            return self.default_stream
        if isinstance(stream, EmulatedStream) and stream.device is self:
            return stream
        if isinstance(stream, int) and not isinstance(stream, bool) and stream in self._streams:
            live_stream = self._streams[stream]()
            if live_stream is not None:
                return live_stream
        raise ArgumentError(f"stream={shown(stream)} is not a stream of {self}")

    def create_stream(self) -> EmulatedStream:
        """Make a stream."""
        stream = EmulatedStream(self, next(_stream_handles))
        # A WeakValueDictionary will not do: its callback is Python code, in which the exception of
        # a signal handler would be lost.  `dict.pop` is C code.
        self._streams[stream.handle] = ref(stream, partial(self._streams.pop, stream.handle))
        return stream

    def allocate(self, nbytes: int, stream: Any) -> EmulatedBuffer:
        """Return poisoned memory."""
        check_allocation(self, nbytes, stream)
        buffer = self.memory.allocate(nbytes)
        observer.current.memory_allocated(self, buffer, nbytes)
        return buffer

    def memory_info(self) -> tuple[int, int]:
        """Return (free, total) bytes."""
        return self.memory.left, self.memory.capacity

    def memory_used(self) -> int:
        """Return the bytes that are allocated now."""
        return self.memory.used

    def allocation_of(self, ptr: int) -> tuple[int, int] | None:
        """Return base and bytes of the allocation that an address is in; None if there is none."""
        return self.memory.allocation_of(ptr)

    def copy_in(self, ptr: int, source: np.ndarray[Any, Any], stream: Any) -> None:
        """Copy a contiguous host array to the device."""
        # `copy_rows` would notify the observer of rows, instead of a whole array.
        with observer.current.copying_in(self, ptr, source):
            self._copy_rows(ptr, source.nbytes, as_row(source), stream, out=False)

    def copy_out(self, target: np.ndarray[Any, Any], ptr: int, stream: Any) -> None:
        """Copy device memory to a contiguous host array."""
        self.copy_rows(ptr, target.nbytes, as_row(target), stream, out=True)

    def copy_within(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Copy device memory to device memory."""

        def work() -> None:
            self.memory.view(target, nbytes)[:] = self.memory.view(source, nbytes)

        with observer.current.copying_within(self, target, source, nbytes, stream):
            self._enqueue(stream, "cudaMemcpyAsync", work)

    def pinned(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Return ordinary host memory: no copy of this device is asynchronous."""
        too_much = DeviceMemoryError(
            f"{format_size(nbytes)} of pinned memory are more than the host has left"
        )
        if nbytes > host_memory():
            raise too_much
        try:
            return np.empty(nbytes, np.uint8)
        except MemoryError:
            raise too_much from None

    def copy_rows(
        self, ptr: int, pitch: int, host: np.ndarray[Any, Any], stream: Any, *, out: bool
    ) -> None:
        """Copy between contiguous host memory and rows on the device."""
        with observer.current.copying_rows(self, ptr, pitch, host, stream, out=out):
            self._copy_rows(ptr, pitch, host, stream, out=out)

    def _copy_rows(
        self, ptr: int, pitch: int, host: np.ndarray[Any, Any], stream: Any, *, out: bool
    ) -> None:
        check_host_copy(self, stream, out=out)
        rows = self._rows(ptr, pitch, host.shape[1], host.shape[0])
        if out:
            host[...] = rows
        else:
            rows[...] = host

    def fill_rows(
        self, ptr: int, pitch: int, width: int, rows: int, pattern: bytes, stream: Any
    ) -> None:
        """Set rows to a repeated pattern."""

        def work() -> None:
            target = self._rows(ptr, pitch, width, rows)
            # np.resize would make a list of all the repetitions.
            target[...] = np.frombuffer(pattern * (width // len(pattern) + 1), np.uint8, width)

        name = "cudaMemsetAsync" if rows == 1 else "cudaMemset2DAsync"
        with observer.current.filling_rows(self, ptr, pitch, width, rows, pattern, stream):
            self._enqueue(stream, name, work)

    def _rows(self, ptr: int, pitch: int, width: int, rows: int) -> np.ndarray[Any, Any]:
        memory = self.memory.view(ptr, (rows - 1) * pitch + width)
        return np.lib.stride_tricks.as_strided(memory, (rows, width), (pitch, 1))

    def fill(self, ptr: int, nbytes: int, byte: int, stream: Any) -> None:
        """Set device memory to a repeated byte."""
        self.fill_rows(ptr, nbytes, nbytes, 1, bytes([byte]), stream)

    def elapsed_ms(self, work: Callable[[], object], stream: Any) -> float:
        """Do `work` and return the milliseconds it took: NumPy's, which say nothing of a GPU."""
        self.api.kernels_run.clear()
        start = time.perf_counter()
        work()
        return (time.perf_counter() - start) * 1000

    def capture(self, work: Callable[[], object], stream: Any) -> Callable[[], object] | None:
        """Return None: the times of a replay would say no more than those of calls."""
        return None

    def recorder(self) -> EmulatedRecorder:
        """Return a recorder with a new stream."""
        return EmulatedRecorder(self.api, self.create_stream())

    def is_capturing(self, stream: Any) -> bool:
        """Return whether a graph is being recorded on `stream`."""
        return bool(self.stand_ins) and self.stand_ins.of(stream).handle in self.api.tapes

    def _enqueue(self, stream: Any, name: str, work: Callable[[], object]) -> None:
        # `stand_ins` is empty unless a graph is being recorded; then the work may go on its tape.
        if self.stand_ins:
            self.api.enqueue(self.stand_ins.of(stream).handle, name, work)
        else:
            work()

    def adopt(self, array: Any, argument: str, stream: Any) -> ForeignArray:
        """View another library's array over this device's memory.

        The other library made it from a DeviceArray by `__dlpack__`.  An array over other host
        memory is refused, as on a GPU.  So is every NumPy array, which cannot be in a GPU's memory.
        """
        try:
            bridge = _Bridge(array)
            view = np.from_dlpack(bridge)
            if bridge.dtype_name:
                view = view.view(numpy_dtype(PLAIN_NAMES[bridge.dtype_name]))
        except (TypeError, ValueError, AttributeError, RuntimeError, BufferError) as error:
            raise ArrayTypeError(
                f"{argument} of type {type(array).__name__} cannot be viewed: {error}"
            ) from error
        strides = tuple(stride // view.itemsize for stride in view.strides)
        foreign = ForeignArray(
            view.ctypes.data, view.shape, strides, view.dtype, not view.flags.writeable, view
        )
        is_on_device = self.memory.contains(foreign.ptr, foreign.nbytes)
        if isinstance(array, np.ndarray) or not is_on_device:
            raise host_array_error(array, argument)
        observer.current.memory_adopted(self, foreign)
        return foreign

    def address_of(self, stream: Any) -> int:
        """Return the address that a stream of this device goes by."""
        return int(stream.handle)

    def stream_at(self, address: int, stream: Any) -> Any:
        """Return `stream`: this device has no streams of other libraries."""
        return stream

    def export_dlpack(
        self, array: ForeignArray, stream: Any, consumer: int | None, **options: Any
    ) -> Any:
        """Return a DLPack capsule of host memory, made by NumPy."""
        observer.current.memory_exported(self, array)
        owner = array.owner
        if isinstance(owner, EmulatedBuffer):
            memory = owner.bytes()  # These bytes keep the allocation alive.
        else:
            memory = self.memory.view(array.ptr, array.nbytes)
        start = 0
        if array.nbytes:
            start = array.ptr - memory.ctypes.data
        strides = tuple(stride * array.dtype.itemsize for stride in array.strides)
        view: np.ndarray[Any, Any] = np.ndarray(array.shape, array.dtype, memory, start, strides)
        view.flags.writeable = not array.readonly
        try:
            return view.__dlpack__(**options)
        except TypeError:  # NumPy before 2.1 takes no options.
            if options.get("copy"):
                view = view.copy()
            return view.__dlpack__()

    def dlpack_device(self) -> tuple[int, int]:
        """Return DLPack's (kDLCPU, 0)."""
        return _DLPACK_CPU, 0

    def cuda_array_interface(self, array: ForeignArray, stream: Any) -> dict[str, Any]:
        """Raise AttributeError: the memory is the host's, and a reader would crash."""
        raise AttributeError(
            "arrays on the emulated device have no __cuda_array_interface__: "
            "their memory is the host's"
        )


class _Bridge:
    """Passes another library's array to NumPy, a type that NumPy does not know as its stand-in.

    Attributes
    ----------
    dtype_name : str
        The name of that type; empty if NumPy knows it.
    """

    def __init__(self, array: Any) -> None:
        self._array = array
        self.dtype_name = ""

    def __dlpack_device__(self) -> tuple[int, int]:
        device_type, index = self._array.__dlpack_device__()
        return int(device_type), index

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._array.__dlpack__(**options)
        for name, stand_in in STAND_INS.items():
            # This changes the capsule in place, and returns whether it held the type.
            if relabel(capsule, stand_in.foreign_code, stand_in.code):
                self.dtype_name = name
                break
        return capsule
