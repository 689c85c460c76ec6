"""CUDA or emulated: the only place that chooses between them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from cudnnlite._raw.fork_lock import fork_lock
from cudnnlite.arguments import MAX_INT, integer, refused_as, shown
from cudnnlite.devices.device import Device, DeviceFacts
from cudnnlite.errors import ArgumentError, NoDeviceError
from cudnnlite.warn import warn_user

DEVICE_VARIABLE = "CUDNNLITE_DEVICE"
EMULATED_HANDLE = 'Handle(device="emulated")'  # The command line replaces it in messages.
_HOW_TO_EMULATE = (
    "To run on the emulated device (NumPy: right numbers, slow), "
    f"set {DEVICE_VARIABLE}=emulated, or =auto to fall back to it, or use {EMULATED_HANDLE}"
)


def get_device(device: Any = None) -> Device:
    """Return the device of a name that `Handle` takes; a device object is returned as it is.

    Only 'auto' falls back to the emulated device, and says so once.  ArgumentError for a value that
    names no device; NoDeviceError if there is no such CUDA device, which says how to choose the
    emulated one.
    """
    argument = "device"
    if device is None:
        device, argument = default_device(), DEVICE_VARIABLE
    if hasattr(type(device), "copy_in"):
        return device  # type: ignore[no-any-return]
    kind, index = parse_device(device, argument)
    try:
        return devices.get("cuda" if kind == "auto" else kind, index)
    except NoDeviceError as error:
        if kind == "emulated":
            raise
        if kind != "auto":
            raise NoDeviceError(f"{error}. {_HOW_TO_EMULATE}") from error.__cause__
        devices.tell_fallback(error)
        return devices.get("emulated", 0)


class Devices:
    """The devices of a process, one object for each.

    `make` makes a device of a kind, 'cuda' or 'emulated', and an index.
    """

    def __init__(self, make: Callable[[str, int], Device]) -> None:
        self._make = make
        self._devices: dict[tuple[str, int], Device] = {}
        self._has_warned = False
        self._forked_from_cuda = False

    def get(self, kind: str, index: int) -> Device:
        """Return the one object for that device, made when it is first asked for."""
        if kind == "cuda" and self._forked_from_cuda:
            raise NoDeviceError(
                "no CUDA device: this process was forked from one that used CUDA, which does not "
                'survive that; start processes with multiprocessing.get_context("spawn")'
            )
        with fork_lock:
            if (kind, index) not in self._devices:
                self._devices[kind, index] = self._make(kind, index)
            return self._devices[kind, index]

    def made(self) -> list[Device]:
        """Return the devices that were made so far."""
        return [*self._devices.values()]

    def tell_fallback(self, reason: NoDeviceError) -> None:
        """Warn once that the emulated device is used."""
        if not self._has_warned:
            self._has_warned = True
            warn_user(f"running on the emulated device: {reason}", RuntimeWarning)

    def note_fork(self) -> None:
        """Remember in a forked process that CUDA was in use, which does not survive a fork."""
        self._forked_from_cuda = any(kind == "cuda" for kind, _ in self._devices)


def visible_gpus() -> tuple[DeviceFacts, ...]:
    """Return the facts of the CUDA devices that this process sees, without using one.

    Empty if there is none.
    """
    from cudnnlite.devices.cuda_facts import all_facts

    return all_facts()


def default_device() -> str:
    """Return the name of the device that a `Handle()` without arguments uses."""
    return os.environ.get(DEVICE_VARIABLE) or "cuda"


def parse_device(device: Any, argument: str) -> tuple[str, int]:
    """Return (kind, index) of the name of a device; ArgumentError if it names none."""
    if isinstance(device, int) and not isinstance(device, bool) and 0 <= device <= MAX_INT:
        return "cuda", device
    if isinstance(device, str):
        kind, _, index = device.lower().partition(":")
        if kind in ("cuda", "emulated", "auto") and re.fullmatch(r"\d{0,9}", index):
            return kind, int(index or 0)
    elif hasattr(device, "device_id") and hasattr(device, "compute_capability"):
        return "cuda", integer(device.device_id, f"{argument}.device_id", 0)
    raise ArgumentError(
        f"{argument}={shown(device)} is not a device; "
        "allowed: 'cuda', 'cuda:1', 1, 'emulated', 'auto'"
    )


def make_device(kind: str, index: int) -> Device:
    """Return a device of its own: 'cuda' or 'emulated'."""
    # The imports need file descriptors, and there may be none left.
    with fork_lock, refused_as(NoDeviceError, f"{kind}:{index} cannot be used"):
        if kind == "emulated":
            from cudnnlite.emulated.device import EmulatedDevice

            return EmulatedDevice(index)
        from cudnnlite.devices.cuda import CudaDevice

        return CudaDevice(index)


devices = Devices(make_device)
# The lambda looks `devices` up at the fork: it may have been replaced by then.
os.register_at_fork(after_in_child=lambda: devices.note_fork())  # noqa: PLW0108
