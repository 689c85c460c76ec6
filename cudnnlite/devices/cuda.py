"""`CudaDevice`: a CUDA GPU through cuda.core, which this module and `cuda_facts` alone import."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import RLock
from typing import Any

import numpy as np

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.library import load_library
from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.arguments import shown
from cudnnlite.cached_property import cached_property
from cudnnlite.devices import observer
from cudnnlite.devices.cuda_clocks import clocks_of
from cudnnlite.devices.cuda_facts import facts_of, figures_of
from cudnnlite.devices.cuda_graph import CudaRecorder, LateBuffer
from cudnnlite.devices.cuda_kernels import kernel_names_of
from cudnnlite.devices.cuda_loss import Loss, telling_loss
from cudnnlite.devices.device import (
    DeviceFacts,
    DeviceFigures,
    StandIns,
    check_allocation,
    check_host_copy,
    check_wait,
)
from cudnnlite.devices.foreign import ForeignArray, host_array_error, is_of_jax
from cudnnlite.devices.storage import as_row, host_bytes
from cudnnlite.errors import (
    ArgumentError,
    ArrayTypeError,
    CaptureError,
    CudnnError,
    CudnnliteError,
    DeviceMemoryError,
    NoDeviceError,
)
from cudnnlite.sizes import format_size
from cudnnlite.specs.layout import packed_strides

_DLPACK_CPU, _DLPACK_CUDA = 1, 2
_FIRST_ADDRESS = 4096  # Nothing is ever mapped below.
# The addresses that CUDA, DLPack and the array interface give its default streams.
_LEGACY_STREAM, _PER_THREAD_STREAM = 1, 2
_MOST_STREAMS = 64  # of other libraries that are remembered


def stream_address(stream: Any) -> int:
    """Return the address of another library's stream; ArgumentError if it is none."""
    address = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    is_address = isinstance(address, int) and not isinstance(address, bool) and 0 <= address < 2**64
    if not is_address or _PER_THREAD_STREAM < address < _FIRST_ADDRESS:
        raise ArgumentError(
            f"stream={shown(stream)} is not a CUDA stream; allowed: an address or a stream object"
        )
    return int(address)


def _plain_address(address: int) -> int:
    """Return the address of a stream; that of the default stream is 0 in both its names."""
    return 0 if address == _LEGACY_STREAM else address


class CudaDevice(NonCopyable):
    """A CUDA device; see `cudnnlite.devices.device.Device`."""

    _instead_of_copy = "its name, such as 'cuda:0', stands for it"
    kind = "cuda"
    has_real_timing = True
    emulated_functions: frozenset[object] = frozenset()

    def __init__(self, index: int) -> None:
        try:
            from cuda import core
            from cuda.bindings import driver
        except ImportError as error:
            raise NoDeviceError(
                f"no CUDA device: cuda-python cannot be imported ({error}); "
                "install it with cudnnlite's extra cu12 or cu13"
            ) from error
        self._core, self._driver = core, driver
        self._not_recorded = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
        try:
            self._device = core.Device(index)
            self._device.set_current()
            count = len(core.Device.get_all_devices())
        # cuda.core raises its own errors, and RuntimeError without a driver.
        except Exception as error:
            reason = str(error).rstrip(".")
            if type(error).__name__ == "DynamicLibNotFoundError":  # Its text is about the search.
                reason = "no NVIDIA driver is installed (libcuda.so.1 was not found)"
            # The traceback of the other package would come before this message and hide it.
            raise NoDeviceError(f"no CUDA device {index}: {reason}") from None
        self.index = index
        self.loss = Loss(f"cuda:{index}", driver)
        self.needs_activation = count > 1
        self._waits = RLock()
        self.default_stream = default = self._device.default_stream
        # The functions that fill a row or several with a repeated pattern, by the pattern's bytes.
        self._memsets = {
            1: driver.cuMemsetD8Async,
            2: driver.cuMemsetD16Async,
            4: driver.cuMemsetD32Async,
        }
        self._memsets_2d = {
            1: driver.cuMemsetD2D8Async,
            2: driver.cuMemsetD2D16Async,
            4: driver.cuMemsetD2D32Async,
        }
        self.unrecordable = default if int(default.handle) in (0, _LEGACY_STREAM) else None
        self.stand_ins = StandIns()
        # Addresses of other libraries' streams, which they may record.
        self._borrowed: set[int] = set()
        # The last stream that another library's was compared with, and its address.
        self._compared: tuple[Any, int] = (None, 0)
        self._streams_at: dict[int, Any] = {}  # other libraries' streams by their addresses
        # Memory that was dropped while its stream was recorded, and that stream.
        self._unfreed: list[tuple[Any, Any]] = []

    def __repr__(self) -> str:
        return f"<cuda:{self.index} {self.name}>"

    @cached_property
    def api(self) -> CudnnApi:
        """The function table; the first look at it loads libcudnn."""
        return CudnnApi(load_library(), memory=self.memory_info)

    @property
    def name(self) -> str:
        """The GPU's name."""
        return str(self._device.name)

    def facts(self) -> DeviceFacts:
        """Return name, compute capability, driver and UUID."""
        return facts_of(self._device, self._driver)

    def figures(self) -> DeviceFigures:
        """Return the figures that its peaks follow from."""
        return figures_of(self._device)

    def clocks(self) -> dict[str, str]:
        """Return the present clocks and the power limit, as NVML tells them."""
        return clocks_of(str(self._device.uuid))

    def kernel_names(self, work: Callable[[], object], stream: Any) -> tuple[str, ...] | None:
        """Return the names of the kernels that `work` enqueues; None if it cannot be recorded."""
        self.activate()
        if int(stream.handle) in (0, _LEGACY_STREAM):
            return None  # CUDA does not capture the legacy default stream
        with self._waits:
            return kernel_names_of(work, int(stream.handle), self._driver)

    @telling_loss
    def activate(self) -> None:
        """Make it this thread's current device."""
        self._device.set_current()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it this thread's current device in the block; then restore the previous one."""
        failed, previous_context = self._driver.cuCtxGetCurrent()
        self.activate()
        try:
            yield
        finally:
            if not failed:
                self._driver.cuCtxSetCurrent(previous_context)

    @telling_loss
    def synchronize(self) -> None:
        """Wait for everything on this device."""
        check_wait(self)
        self.activate()
        with self._waits:
            self._device.sync()

    def holding_waits(self) -> AbstractContextManager[object]:
        """Let `synchronize` of other threads wait for the end of the block."""
        return self._waits

    @telling_loss
    def wait(self, stream: Any) -> None:
        """Wait for everything on a stream."""
        stream.sync()

    def closing(self) -> AbstractContextManager[None]:
        """Ignore errors in the block if the device is lost, as nothing can be freed then."""
        return self.loss.closing()

    def stream(self, stream: Any) -> Any:
        """Return a `cuda.core.Stream` for None, an address, or another library's stream object."""
        if stream is None:
            return self.default_stream
        if isinstance(stream, self._core.Stream):
            return stream
        if hasattr(stream, "__cuda_stream__"):
            return self._borrow(stream)
        address = stream_address(stream)
        if not address:
            return self.default_stream
        return self._borrow(_BorrowedStream(address, stream))

    def _borrow(self, stream: Any) -> Any:
        borrowed = self._device.create_stream(stream)
        address = int(borrowed.handle)
        if _plain_address(address) == _plain_address(int(self.default_stream.handle)):
            return self.default_stream
        self._borrowed.add(address)
        return borrowed

    @telling_loss
    def create_stream(self) -> Any:
        """Make a `cuda.core.Stream`."""
        self.activate()  # a new thread has no current device yet
        return self._device.create_stream()

    def allocate(self, nbytes: int, stream: Any) -> Any:
        """Return a `cuda.core.Buffer` from the device's stream-ordered pool."""
        if self.stand_ins:  # CUDA does not know of a capture on the stream itself.
            check_allocation(self, nbytes, stream)
        try:
            if self._unfreed:
                self._free_now()
            buffer: Any = self._device.memory_resource.allocate(nbytes, stream=stream)
        except Exception as error:
            check_allocation(self, nbytes, stream)
            if "OUT_OF_MEMORY" not in str(error):
                self.loss.tell(error)  # not by `telling_loss`, whose call would cost each result's
                raise
            free, total = self.memory_info()
            raise DeviceMemoryError(
                f"{format_size(nbytes)} of device memory could not be allocated on {self}: "
                f"{format_size(free)} of {format_size(total)} were free"
            ) from error
        if self._borrowed and int(stream.handle) in self._borrowed:
            buffer = LateBuffer(self, buffer, stream)
        observer.current.memory_allocated(self, buffer, nbytes)
        return buffer

    def free(self, buffer: Any, stream: Any) -> None:
        """Free memory in the order of a stream; later, if the stream is being recorded."""
        if self._is_recorded(stream):
            self._unfreed.append((buffer, stream))
        else:
            buffer.close(stream)

    def _free_now(self) -> None:
        unfreed, self._unfreed = self._unfreed, []
        for buffer, stream in unfreed:
            self.free(buffer, stream)

    @telling_loss
    def memory_info(self) -> tuple[int, int]:
        """Return (free, total) bytes; unused memory of the pool is free."""
        self.activate()
        result, free, total = self._driver.cuMemGetInfo()
        self._check(self._driver.cuMemGetInfo, (result,))
        pool = getattr(self._device.memory_resource, "attributes", None)  # only a pool has any
        if pool is not None:
            free += pool.reserved_mem_current - pool.used_mem_current
        return free, total

    @telling_loss
    def memory_used(self) -> int:
        """Return the bytes in use in the device's memory pool, by whoever uses that pool."""
        self._free_now()
        pool = getattr(self._device.memory_resource, "attributes", None)
        return int(pool.used_mem_current) if pool is not None else 0

    def allocation_of(self, ptr: int) -> tuple[int, int] | None:
        """Return base and bytes of the allocation that an address is in; None if on the host."""
        self.activate()
        unknown, base, nbytes = self._driver.cuMemGetAddressRange(ptr)
        return None if unknown else (int(base), int(nbytes))

    def copy_in(self, ptr: int, source: np.ndarray[Any, Any], stream: Any) -> None:
        """Copy a contiguous host array, which may be changed after the return, in stream order."""
        with observer.current.copying_in(self, ptr, source):
            self._copy_rows(ptr, source.nbytes, as_row(source), stream, out=False)
            if self._is_pinned(source):  # CUDA reads pinned memory after the return.
                self.wait(stream)

    def copy_out(self, target: np.ndarray[Any, Any], ptr: int, stream: Any) -> None:
        """Copy device memory to a contiguous host array, and wait for it."""
        self.copy_rows(ptr, target.nbytes, as_row(target), stream, out=True)
        self.wait(stream)

    def _is_pinned(self, host: np.ndarray[Any, Any]) -> bool:
        # For unknown memory `cuPointerGetAttribute` returns an error, which compute-sanitizer
        # reports; the plural function does not.
        buffer_id = self._driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_BUFFER_ID
        result, ids = self._driver.cuPointerGetAttributes(1, [buffer_id], host.ctypes.data)
        return bool(result) or bool(ids[0])

    @telling_loss
    def pinned(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Return page-locked host memory; it goes with its last array."""
        self.activate()
        try:
            return host_bytes(self._core.LegacyPinnedMemoryResource().allocate(nbytes))
        except Exception as error:
            raise DeviceMemoryError(f"{format_size(nbytes)} of pinned memory: {error}") from error

    def copy_rows(
        self, ptr: int, pitch: int, host: np.ndarray[Any, Any], stream: Any, *, out: bool
    ) -> None:
        """Copy between contiguous host memory and rows on the device (`cuMemcpy2DAsync`)."""
        with observer.current.copying_rows(self, ptr, pitch, host, stream, out=out):
            self._copy_rows(ptr, pitch, host, stream, out=out)

    @telling_loss
    def _copy_rows(
        self, ptr: int, pitch: int, host: np.ndarray[Any, Any], stream: Any, *, out: bool
    ) -> None:
        self.activate()
        check_host_copy(self, stream, out=out)
        rows, width = host.shape
        if rows == 1:  # of any size; a pitch ends at 2 GiB
            on_host = self._core.Buffer.from_handle(host.ctypes.data, width)
            on_device = self._core.Buffer.from_handle(ptr, width)
            if out:
                on_device.copy_to(on_host, stream=stream)
            else:
                on_host.copy_to(on_device, stream=stream)
        else:
            device_memory = self._driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
            host_memory = self._driver.CUmemorytype.CU_MEMORYTYPE_HOST
            copy = self._driver.CUDA_MEMCPY2D()
            copy.WidthInBytes, copy.Height = width, rows
            if out:
                copy.srcMemoryType, copy.dstMemoryType = device_memory, host_memory
                copy.srcDevice, copy.srcPitch = ptr, pitch
                copy.dstHost, copy.dstPitch = host.ctypes.data, width
            else:
                copy.srcMemoryType, copy.dstMemoryType = host_memory, device_memory
                copy.srcHost, copy.srcPitch = host.ctypes.data, width
                copy.dstDevice, copy.dstPitch = ptr, pitch
            copy_rows = self._driver.cuMemcpy2DAsync
            self._check(copy_rows, copy_rows(copy, int(stream.handle)))
        if out and not self._is_pinned(host):
            stream.sync()

    def fill_rows(
        self, ptr: int, pitch: int, width: int, rows: int, pattern: bytes, stream: Any
    ) -> None:
        """Set rows to a repeated pattern (`cuMemsetD2D8Async`, `...D16Async`, `...D32Async`)."""
        if observer.current is observer.NOBODY:  # new arrays of zeros are filled often
            self._fill_rows(ptr, pitch, width, rows, pattern, stream)
            return
        with observer.current.filling_rows(self, ptr, pitch, width, rows, pattern, stream):
            self._fill_rows(ptr, pitch, width, rows, pattern, stream)

    def _fill_rows(
        self, ptr: int, pitch: int, width: int, rows: int, pattern: bytes, stream: Any
    ) -> None:
        if self.needs_activation:
            self.activate()
        handle = self.stand_ins.of(stream).handle
        value = int.from_bytes(pattern, "little")
        count = width // len(pattern)
        if rows == 1:
            fill = self._memsets[len(pattern)]
            result = fill(ptr, value, count, handle)
        else:
            fill = self._memsets_2d[len(pattern)]
            result = fill(ptr, pitch, value, count, rows, handle)
        self._check(fill, result)

    def _check(self, function: Callable[..., Any], result: tuple[Any, ...]) -> None:
        """Raise the error of a driver's function: DeviceLostError if the device is lost."""
        if result[0]:
            error = RuntimeError(f"{function.__name__}: {result[0]}")
            self.loss.tell(error)
            raise error

    def copy_within(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Copy device memory to device memory, in stream order."""
        if observer.current is observer.NOBODY:  # a plan that replays copies each new operand
            self._copy_within(target, source, nbytes, stream)
            return
        with observer.current.copying_within(self, target, source, nbytes, stream):
            self._copy_within(target, source, nbytes, stream)

    @telling_loss
    def _copy_within(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        self.activate()
        buffer = self._core.Buffer.from_handle
        buffer(source, nbytes).copy_to(buffer(target, nbytes), stream=self.stand_ins.of(stream))

    def fill(self, ptr: int, nbytes: int, byte: int, stream: Any) -> None:
        """Set device memory to a repeated byte, in stream order."""
        self.fill_rows(ptr, nbytes, nbytes, 1, bytes([byte]), stream)

    @telling_loss
    def elapsed_ms(self, work: Callable[[], object], stream: Any) -> float:
        """Do `work`, wait for it, and return the milliseconds between two events around it."""
        self.activate()
        timed = self._core.EventOptions(timing_enabled=True)
        start = stream.record(options=timed)
        work()
        end = stream.record(options=timed)
        end.sync()
        return float(end - start)

    def capture(self, work: Callable[[], object], stream: Any) -> Callable[[], object] | None:
        """Record what `work` enqueues into a CUDA graph; None if cuDNN or CUDA refuses."""
        self.activate()
        if int(stream.handle) in (0, _LEGACY_STREAM):
            return None  # CUDA does not capture the legacy default stream
        recorder = CudaRecorder(stream)
        try:
            with self._waits, observer.current.capturing_for_timing(self), recorder:
                work()
        except (CudnnError, CaptureError):
            return None
        except CudnnliteError:  # our own refusal: the work itself is wrong
            raise
        except Exception:  # cuda.core's, for what CUDA does not record
            return None
        return lambda: recorder.graph.launch(stream)

    @telling_loss
    def recorder(self) -> CudaRecorder:
        """Return what records a stream of its own."""
        return CudaRecorder(self.create_stream())

    def is_capturing(self, stream: Any) -> bool:
        """Tell whether a graph is being recorded on `stream`."""
        return self._is_recorded(self.stand_ins.of(stream))

    def _is_recorded(self, stream: Any) -> bool:
        result, status = self._driver.cuStreamIsCapturing(stream.handle)
        if result:
            self.loss.tell()
        # While another stream is captured, this query fails for the legacy stream.  Waiting for it
        # would fail too.
        return bool(result) or status != self._not_recorded

    def adopt(self, array: Any, argument: str, stream: Any) -> ForeignArray:
        """View another library's array; its producer's stream is waited for."""
        self.activate()
        try:
            if _is_on_host(array):
                raise host_array_error(array, argument)
            view = self._core.utils.StridedMemoryView.from_any_interface(
                array, stream_ptr=int(stream.handle)
            )
            shape, strides, dtype = view.shape, view.strides, view.dtype
        except ArrayTypeError:
            raise
        except Exception as error:  # Each library raises its own kind.
            self.loss.tell(error)
            raise ArrayTypeError(
                f"{argument} of type {type(array).__name__} cannot be viewed: {error}"
            ) from error
        if not view.is_device_accessible:
            raise host_array_error(array, argument)
        if not self._holds(view, is_dlpack=hasattr(array, "__dlpack__")):
            raise ArrayTypeError(
                f"{argument} is on another device than the handle, which is on cuda:{self.index}"
            )
        if strides is None:
            strides = packed_strides(tuple(shape), "packed")
        readonly = view.readonly or is_of_jax(type(array))
        adopted = ForeignArray(view.ptr, tuple(shape), tuple(strides), dtype, readonly, view)
        observer.current.memory_adopted(self, adopted)
        return adopted

    def address_of(self, stream: Any) -> int:
        """Return the address of one of our streams; 0 for the default stream."""
        # Another thread may replace the pair at any time.
        compared, address = self._compared
        if stream is not compared:
            address = _plain_address(int(stream.handle))
            self._compared = (stream, address)
        return address

    def stream_at(self, address: int, stream: Any) -> Any:
        """Return the stream at another library's address; `stream` itself if it has the address."""
        if _plain_address(address) == self.address_of(stream):
            return stream
        # Another thread may clear the dictionary at any time.
        theirs = self._streams_at.get(address)
        if theirs is None:
            if len(self._streams_at) >= _MOST_STREAMS:
                self._streams_at.clear()
            theirs = self._streams_at[address] = self.stream(address)
        return theirs

    def _holds(self, view: Any, *, is_dlpack: bool) -> bool:
        """Tell whether an array is on this device."""
        is_of_pool = False
        if not is_dlpack and view.ptr:
            attribute = self._driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
            failed, pool = self._driver.cuPointerGetAttribute(attribute, view.ptr)
            is_of_pool = not failed and bool(int(pool))
        if is_of_pool:  # CUDA says device 0 for the memory of any pool.
            return self._has_access(pool)
        return bool(view.device_id == self.index)

    def _has_access(self, pool: Any) -> bool:
        """Tell whether this device has access to a memory pool."""
        location = self._driver.CUmemLocation()
        location.type = self._driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = self.index
        failed, access = self._driver.cuMemPoolGetAccess(pool, location)
        return not failed and bool(access)

    def export_dlpack(
        self, array: ForeignArray, stream: Any, consumer: int | None, **options: Any
    ) -> Any:
        """Return a DLPack capsule of the array."""
        observer.current.memory_exported(self, array)
        return self._export_dlpack(array, stream, consumer, options)

    @telling_loss
    def _export_dlpack(
        self, array: ForeignArray, stream: Any, consumer: int | None, options: dict[str, Any]
    ) -> Any:
        self.activate()
        if consumer != -1:  # -1: the consumer wants no ordering
            address = _LEGACY_STREAM if consumer is None else int(consumer)
            if address != int(stream.handle):
                self._core.Stream.from_handle(address).wait(stream)
        buffer = self._core.Buffer.from_handle(array.ptr, array.nbytes, owner=array.owner)
        view = self._core.utils.StridedMemoryView.from_buffer(
            buffer, array.shape, array.strides, dtype=array.dtype, is_readonly=array.readonly
        )
        return view.__dlpack__(stream=-1, **options)

    def dlpack_device(self) -> tuple[int, int]:
        """Return DLPack's (kDLCUDA, index)."""
        return _DLPACK_CUDA, self.index

    def cuda_array_interface(self, array: ForeignArray, stream: Any) -> dict[str, Any]:
        """Return version 3 of the CUDA array interface, with the stream to wait for."""
        observer.current.memory_exported(self, array)
        return array.cuda_array_interface(int(stream.handle))


def _is_on_host(array: Any) -> bool:
    """Tell whether DLPack says that an array is on the host."""
    if not hasattr(array, "__dlpack_device__"):
        return False
    device_type, *_ = array.__dlpack_device__()
    return int(device_type) == _DLPACK_CPU


class _BorrowedStream:
    """Another library's stream with the protocol that cuda.core needs; it keeps its owner alive."""

    def __init__(self, address: int, owner: object) -> None:
        self._address = address
        self._owner = owner

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address
