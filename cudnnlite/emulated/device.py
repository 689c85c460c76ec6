"""`EmulatedDevice`: the emulated half of `cudnnlite.devices.choice`, with NumPy behind the function table."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from cudnnlite._raw.dlpack import BFLOAT, FLOAT, relabel
from cudnnlite._raw.library import load_library
from cudnnlite.arguments import shown
from cudnnlite.devices.device import DeviceFacts, refuse_in_capture
from cudnnlite.devices.foreign import ForeignArray, host_array_error
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated.api import EmulatedApi, Tape
from cudnnlite.emulated.memory import EmulatedBuffer, EmulatedMemory
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError, ArrayTypeError, CaptureError
from cudnnlite.sizes import format_size, parse_size

_DLPACK_CPU = 1
_addresses = itertools.count(0x1000, 0x10)


class EmulatedStream:
    """A stream whose work is always done: calls on the emulated device return when they have finished."""

    def __init__(self, device: EmulatedDevice, handle: int) -> None:
        self.device = device
        self.handle = handle

    def sync(self) -> None:
        """Return: there is nothing to wait for."""

    def wait(self, other: Any) -> None:
        """Return: whatever `other` has to do is done."""

    def __repr__(self) -> str:
        return f"<EmulatedStream {self.handle:#x} of {self.device}>"


class EmulatedRecorder:
    """Records a stream, whose work is not done meanwhile; see `cudnnlite.devices.device.Recorder`."""

    def __init__(self, api: EmulatedApi, stream: Any) -> None:
        self._api, self.stream = api, stream
        self._key = get_ident(), stream.handle
        self.graph: Any = None

    def begin(self) -> None:
        """Begin to record."""
        self._api.tapes[self._key] = []

    def end(self, *, keep: bool = True) -> None:
        """End the recording."""
        tape = self._api.tapes.pop(self._key)
        if keep:
            self.graph = EmulatedGraph(self._api, tape)


class EmulatedGraph:
    """What was recorded; the same surface as `cuda.core`'s graph, as far as cudnnlite uses it."""

    def __init__(self, api: EmulatedApi, tape: Tape) -> None:
        self._api, self._tape = api, tape

    def launch(self, stream: Any) -> None:
        """Do all of it, on the addresses that it was recorded with; each must still lie inside a live allocation."""
        for name, work in self._tape:
            self._api.run(name, work)

    def close(self) -> None:
        """Forget it."""
        self._tape = []


class EmulatedDevice:
    """The emulated device; see `cudnnlite.devices.device.Device`.

    Parameters
    ----------
    index : int
        Several can exist side by side, each with memory of its own.
    capacity : int or str
        The size of its memory.
    """

    kind = "emulated"
    name = "emulated (NumPy)"
    needs_activation = False

    def __init__(self, index: int = 0, *, capacity: int | str = "16 GiB") -> None:
        self.index = index
        self.memory = EmulatedMemory(parse_size(capacity, "capacity"))
        self.default_stream = EmulatedStream(self, 1)
        # an address that was given is good as long as somebody keeps its stream
        self._streams: WeakValueDictionary[int, EmulatedStream] = WeakValueDictionary({1: self.default_stream})
        self.api = EmulatedApi(load_library(), self.memory)

    def __repr__(self) -> str:
        return f"<emulated:{self.index}>"

    @property
    def times_mean_nothing(self) -> bool:
        """True; but not where a subclass passes for a GPU."""
        return self.kind == "emulated"

    @property
    def ran(self) -> frozenset[object]:
        """The kernels behind what was timed last: none where the times mean something."""
        return frozenset(self.api.ran if self.times_mean_nothing else ())

    def facts(self) -> DeviceFacts:
        """Return what it is."""
        return DeviceFacts(self.name, "", "", f"emulated:{self.index}")

    def activate(self) -> None:
        """Do nothing: no device is current."""

    def synchronize(self) -> None:
        """Return: there is nothing to wait for; CaptureError while a graph is recorded, as a GPU would refuse."""
        if self.api.tapes:
            raise CaptureError(
                f"{self} cannot be waited for while a CUDA graph is recorded on it: end the capture first"
            )

    def stream(self, stream: Any) -> EmulatedStream:
        """Return the stream for None, an address, or a stream of this device."""
        if stream is None:
            return self.default_stream
        if isinstance(stream, EmulatedStream) and stream.device is self:
            return stream
        if isinstance(stream, int) and stream in self._streams:
            return self._streams[stream]
        raise ArgumentError(f"stream={shown(stream)} is not a stream of {self}")

    def create_stream(self) -> EmulatedStream:
        """Make a stream."""
        stream = EmulatedStream(self, next(_addresses))
        self._streams[stream.handle] = stream
        return stream

    @property
    def open_streams(self) -> int:
        """How many streams there are."""
        return len(self._streams)

    def allocate(self, nbytes: int, stream: Any) -> EmulatedBuffer:
        """Return poisoned memory."""
        what = f"{format_size(nbytes)} of device memory cannot be allocated"
        refuse_in_capture(self._records(stream), stream, what, "allocate them before the capture")
        return self.memory.allocate(nbytes)

    def memory_info(self) -> tuple[int, int]:
        """Return (free, total) bytes."""
        return self.memory.left, self.memory.capacity

    def memory_used(self) -> int:
        """Return the bytes that are allocated now."""
        return self.memory.used

    def allocation_of(self, ptr: int) -> tuple[int, int] | None:
        """Return the first address and the bytes of the allocation that an address lies in; None if there is none."""
        return self.memory.allocation_of(ptr)

    def copy_in(self, ptr: int, source: np.ndarray[Any, Any], stream: Any) -> None:
        """Copy a contiguous host array to the device."""
        refuse_in_capture(
            self._records(stream), stream, "a copy from the host cannot be recorded", "make it before the capture"
        )
        self.memory.view(ptr, source.nbytes)[:] = _bytes(source)

    def copy_out(self, target: np.ndarray[Any, Any], ptr: int, stream: Any) -> None:
        """Copy device memory to a contiguous host array."""
        refuse_in_capture(
            self._records(stream), stream, "a copy to the host waits, and cannot", "read results after a launch"
        )
        _bytes(target)[:] = self.memory.view(ptr, target.nbytes)

    def copy_within(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Copy device memory to device memory."""

        def work() -> None:
            self.memory.view(target, nbytes)[:] = self.memory.view(source, nbytes)

        self._enqueue(stream, "cudaMemcpyAsync", work)

    def fill(self, ptr: int, nbytes: int, byte: int, stream: Any) -> None:
        """Set device memory to a repeated byte."""
        self._enqueue(stream, "cudaMemsetAsync", lambda: self.memory.view(ptr, nbytes).fill(byte))

    def elapsed_ms(self, work: Callable[[], object], stream: Any) -> float:
        """Do `work` and return the milliseconds it took: NumPy's, which say nothing of a GPU."""
        self.api.ran.clear()
        start = time.perf_counter()
        work()
        return (time.perf_counter() - start) * 1000

    def capture(self, work: Callable[[], object], stream: Any) -> Callable[[], object] | None:
        """Return None: the times of a replay would say no more than those of calls."""
        return None

    def recorder(self, stream: Any) -> EmulatedRecorder:
        """Return what records the calls on `stream`."""
        return EmulatedRecorder(self.api, stream)

    def is_capturing(self, stream: Any) -> bool:
        """Tell whether a graph is being recorded on `stream`."""
        return self._records(stream)

    def _records(self, stream: Any) -> bool:
        return bool(self.api.tapes) and (get_ident(), stream.handle) in self.api.tapes

    def _enqueue(self, stream: Any, name: str, work: Callable[[], object]) -> None:
        self.api.enqueue(stream.handle, name, work) if self.api.tapes else work()

    def adopt(self, array: Any, argument: str, stream: Any) -> ForeignArray:
        """View an array that another library made over this device's memory (from a DeviceArray's `__dlpack__`).

        Any other host memory is refused, as a GPU would refuse it.
        """
        try:
            bridge = _Bridge(array)
            view = np.from_dlpack(bridge)
            view = view.view(numpy_dtype(DataType.BFLOAT16)) if bridge.is_bfloat16 else view
        except (TypeError, ValueError, AttributeError, RuntimeError, BufferError) as error:
            raise ArrayTypeError(f"{argument} of type {type(array).__name__} cannot be viewed: {error}") from error
        strides = tuple(stride // view.itemsize for stride in view.strides)
        foreign = ForeignArray(view.ctypes.data, view.shape, strides, view.dtype, not view.flags.writeable, view)
        if isinstance(array, np.ndarray) or not self.memory.contains(foreign.ptr, foreign.nbytes):
            raise host_array_error(array, argument)
        return foreign

    def export_dlpack(self, array: ForeignArray, stream: Any, consumer: int | None, **options: Any) -> Any:
        """Return a DLPack capsule; NumPy makes it, so the memory is the host's, as it really is."""
        owner = array.owner
        memory = owner.bytes() if isinstance(owner, EmulatedBuffer) else self.memory.view(array.ptr, array.nbytes)
        start = array.ptr - memory.ctypes.data if array.nbytes else 0
        strides = tuple(stride * array.dtype.itemsize for stride in array.strides)
        view: np.ndarray[Any, Any] = np.ndarray(array.shape, array.dtype, memory, start, strides)
        view.flags.writeable = not array.readonly
        try:
            return view.__dlpack__(**options)
        except TypeError:  # NumPy before 2.1 takes no options
            return view.__dlpack__()

    def dlpack_device(self) -> tuple[int, int]:
        """Return DLPack's (kDLCPU, 0)."""
        return _DLPACK_CPU, 0

    def cuda_array_interface(self, array: ForeignArray, stream: Any) -> dict[str, Any]:
        """Refuse: the memory is the host's, and a reader would crash."""
        raise AttributeError(
            "arrays on the emulated device have no __cuda_array_interface__: their memory is the host's"
        )


class _Bridge:
    """Passes on a foreign array's capsule; bfloat16, which NumPy does not know, as float16."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.is_bfloat16 = False

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self._array.__dlpack_device__()
        return int(kind), index

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._array.__dlpack__(**options)
        self.is_bfloat16 = relabel(capsule, BFLOAT, FLOAT)
        return capsule


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.reshape(-1).view(np.uint8)
