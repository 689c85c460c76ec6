"""Devices: CUDA or emulated.  The only place that chooses between them.

A device pairs the function table with memory and streams.  On CUDA these are cuda.core's; the emulated device has the same
methods, so that nothing above this module asks which one it has.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from cudnnlite._raw.api import CudnnApi
from cudnnlite.errors import ArgumentError, NoDeviceError
from cudnnlite.foreign import ForeignArray
from cudnnlite.warn import warn_user

DEVICE_VARIABLE = "CUDNNLITE_DEVICE"
_HOW_TO_EMULATE = (
    f"To run on the emulated device (NumPy: right numbers, slow), set {DEVICE_VARIABLE}=emulated, or =auto to fall back to it, "
    'or use Handle(device="emulated")'
)

_devices: dict[tuple[str, int], Device] = {}
_lock = threading.Lock()
_told_fallback = False
_forked_from_cuda = False


class DeviceFacts(NamedTuple):
    """What a device is, to tell it from others.

    Attributes
    ----------
    name : str
        'NVIDIA H200'.
    compute_capability : str
        '9.0'.
    driver : str
        The driver's version.
    uuid : str
        Which one of its kind it is.
    """

    name: str
    compute_capability: str
    driver: str
    uuid: str


class Device(Protocol):
    """What the layers above need of a device."""

    @property
    def kind(self) -> str:
        """'cuda' or 'emulated'."""

    @property
    def index(self) -> int:
        """The ordinal among devices of its kind."""

    @property
    def name(self) -> str:
        """What it is: 'NVIDIA H200'."""

    @property
    def api(self) -> CudnnApi:
        """The function table for calls on this device."""

    @property
    def default_stream(self) -> Any:
        """The stream that a handle uses unless told otherwise."""

    @property
    def needs_activation(self) -> bool:
        """Whether `activate` must run before each use, because other devices of its kind may be current."""

    def facts(self) -> DeviceFacts:
        """Return what tells it from other devices."""

    def activate(self) -> None:
        """Make it this thread's current device."""

    def synchronize(self) -> None:
        """Wait for everything on this device."""

    def stream(self, stream: Any) -> Any:
        """Return a stream object with `handle` and `sync()` for None, an address, or anyone's stream object."""

    def create_stream(self) -> Any:
        """Make a stream."""

    def allocate(self, nbytes: int, stream: Any) -> Any:
        """Return a buffer with `handle`, `size` and `close()`, ordered on `stream`; DeviceMemoryError if there is none."""

    def memory_info(self) -> tuple[int, int]:
        """Return (free, total) bytes."""

    def memory_used(self) -> int:
        """Return the bytes that are allocated through this device now."""

    def copy_in(self, ptr: int, source: np.ndarray[Any, Any], stream: Any) -> None:
        """Copy a contiguous host array to the device, in stream order."""

    def copy_out(self, target: np.ndarray[Any, Any], ptr: int, stream: Any) -> None:
        """Copy device memory to a contiguous host array, and wait for it."""

    def copy_within(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Copy device memory to device memory, in stream order."""

    def fill(self, ptr: int, nbytes: int, byte: int, stream: Any) -> None:
        """Set device memory to a repeated byte, in stream order."""

    def elapsed_ms(self, work: Callable[[], object], stream: Any) -> float:
        """Do `work`, wait for it, and return the milliseconds that passed on `stream`."""

    def capture(self, work: Callable[[], object], stream: Any) -> Callable[[], object] | None:
        """Record what `work` enqueues on `stream`; return what enqueues all of it at once, or None where that is not done."""

    def is_capturing(self, stream: Any) -> bool:
        """Tell whether a graph is being recorded on `stream`, where nothing may be waited for."""

    def adopt(self, array: Any, argument: str, stream: Any) -> ForeignArray:
        """Look at an array that another library made on this device, without a copy; ArrayTypeError if it is not there."""

    def export_dlpack(self, array: ForeignArray, stream: Any, consumer: int | None, **options: Any) -> Any:
        """Return a DLPack capsule; `consumer` is the reader's stream, which is made to wait for `stream`."""

    def dlpack_device(self) -> tuple[int, int]:
        """Return DLPack's (device type, index)."""

    def cuda_array_interface(self, array: ForeignArray, stream: Any) -> dict[str, Any]:
        """Return the `__cuda_array_interface__`; AttributeError where there is none to give."""


def get_device(device: Any = None) -> Device:
    """Return the device that the user asked for.

    Parameters
    ----------
    device : str, int, Device or cuda.core.Device, optional
        'cuda', 'cuda:1', 1, 'emulated', 'emulated:1', 'auto', a cuda.core device, or one that this function returned.  If
        not given, the environment variable `CUDNNLITE_DEVICE` decides, and 'cuda' if that is not set.  Only 'auto' falls
        back to the emulated device, and says so once.

    Raises
    ------
    ArgumentError
        Not a device.
    NoDeviceError
        There is no such CUDA device; the message says how to choose the emulated one.
    """
    argument = "device"
    if device is None:
        device, argument = default_device(), DEVICE_VARIABLE
    if hasattr(device, "copy_in"):
        found: Device = device
        return found
    kind, index = parse_device(device, argument)
    try:
        return _device("cuda" if kind == "auto" else kind, index)
    except NoDeviceError as error:
        if kind != "auto":
            raise NoDeviceError(f"{error}. {_HOW_TO_EMULATE}") from error.__cause__
        _tell_fallback(error)
        return _device("emulated", 0)


def _device(kind: str, index: int) -> Device:
    """Return the one object for that device, made when it is first asked for."""
    if kind == "cuda" and _forked_from_cuda:
        raise NoDeviceError(
            "no CUDA device: this process was forked from one that used CUDA, which does not survive that; start processes "
            'with multiprocessing.get_context("spawn")'
        )
    with _lock:
        if (kind, index) not in _devices:
            _devices[kind, index] = _make(kind, index)
        return _devices[kind, index]


def visible_gpus() -> tuple[DeviceFacts, ...]:
    """Return what the CUDA devices are that this process sees, in their order, without using one; empty if there is none."""
    from cudnnlite.cuda_device import all_facts

    return all_facts()


def default_device() -> str:
    """Return what a `Handle()` without arguments asks for."""
    return os.environ.get(DEVICE_VARIABLE) or "cuda"


def parse_device(device: Any, argument: str) -> tuple[str, int]:
    """Return (kind, index) of what names a device; ArgumentError if it names none."""
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return "cuda", device
    if isinstance(device, str):
        kind, _, index = device.lower().partition(":")
        if kind in ("cuda", "emulated", "auto") and (index.isdecimal() or not index):
            return kind, int(index or 0)
    elif hasattr(device, "device_id") and hasattr(device, "compute_capability"):
        return "cuda", int(device.device_id)
    raise ArgumentError(f"{argument}={device!r} is not a device; allowed: 'cuda', 'cuda:1', 1, 'emulated', 'auto'")


def _make(kind: str, index: int) -> Device:
    if kind == "emulated":
        from cudnnlite.emulated.device import EmulatedDevice

        return EmulatedDevice(index)
    from cudnnlite.cuda_device import CudaDevice

    return CudaDevice(index)


def _note_fork() -> None:
    """Remember in a forked process that CUDA, which does not survive that, was in use."""
    global _forked_from_cuda  # noqa: PLW0603  (a fact of the process)
    _forked_from_cuda = any(kind == "cuda" for kind, _ in _devices)


os.register_at_fork(after_in_child=_note_fork)


def _tell_fallback(reason: NoDeviceError) -> None:
    global _told_fallback  # noqa: PLW0603  ("says so once" is once a process)
    if not _told_fallback:
        _told_fallback = True
        warn_user(f"running on the emulated device: {reason}", RuntimeWarning)
