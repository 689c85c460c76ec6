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
EMULATED_HANDLE = 'Handle(device="emulated")'  # the command line says its own instead
_HOW_TO_EMULATE = (
    f"To run on the emulated device (NumPy: right numbers, slow), set {DEVICE_VARIABLE}=emulated, or =auto to fall back to it, "
    f"or use {EMULATED_HANDLE}"
)


def get_device(device: Any = None) -> Device:
    """Return the device that the user asked for, as `Handle` takes it, or one that this function returned.

    Only 'auto' falls back to the emulated device, and says so once.  ArgumentError for what is no
    device; NoDeviceError, which says how to choose the emulated one, where there is no such CUDA
    device.
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
    """The devices of a process, one object for each, and what is said of them once a process."""

    def __init__(
        self, make: Callable[[str, int], Device]
    ) -> None:  # of a kind, 'cuda' or 'emulated', and an index
        self._make = make
        self._made: dict[tuple[str, int], Device] = {}
        self._told_fallback = self._forked_from_cuda = False

    def get(self, kind: str, index: int) -> Device:
        """Return the one object for that device, made when it is first asked for."""
        if kind == "cuda" and self._forked_from_cuda:
            raise NoDeviceError(
                "no CUDA device: this process was forked from one that used CUDA, which does not survive that; start "
                'processes with multiprocessing.get_context("spawn")'
            )
        with fork_lock:
            if (kind, index) not in self._made:
                self._made[kind, index] = self._make(kind, index)
            return self._made[kind, index]

    def made(self) -> list[Device]:
        """Return the devices that somebody asked for so far."""
        return [*self._made.values()]

    def tell_fallback(self, reason: NoDeviceError) -> None:
        """Warn that the emulated device is taken, once."""
        if not self._told_fallback:
            self._told_fallback = True
            warn_user(f"running on the emulated device: {reason}", RuntimeWarning)

    def note_fork(self) -> None:
        """Remember in a forked process that CUDA, which does not survive that, was in use."""
        self._forked_from_cuda = any(kind == "cuda" for kind, _ in self._made)


def visible_gpus() -> tuple[DeviceFacts, ...]:
    """Return what the CUDA devices are that this process sees, in their order, without using one; empty if there is none."""
    from cudnnlite.devices.cuda_facts import all_facts

    return all_facts()


def default_device() -> str:
    """Return what a `Handle()` without arguments asks for."""
    return os.environ.get(DEVICE_VARIABLE) or "cuda"


def parse_device(device: Any, argument: str) -> tuple[str, int]:
    """Return (kind, index) of what names a device; ArgumentError if it names none."""
    if isinstance(device, int) and not isinstance(device, bool) and 0 <= device <= MAX_INT:
        return "cuda", device
    if isinstance(device, str):
        kind, _, index = device.lower().partition(":")
        if kind in ("cuda", "emulated", "auto") and re.fullmatch(r"\d{0,9}", index):
            return kind, int(index or 0)
    elif hasattr(device, "device_id") and hasattr(device, "compute_capability"):
        return "cuda", integer(device.device_id, f"{argument}.device_id", 0)
    raise ArgumentError(
        f"{argument}={shown(device)} is not a device; allowed: 'cuda', 'cuda:1', 1, 'emulated', 'auto'"
    )


def make_device(kind: str, index: int) -> Device:
    """Return a device of its own: 'cuda' or 'emulated'."""
    # These import much, for which there may be no file descriptor left.
    with fork_lock, refused_as(NoDeviceError, f"{kind}:{index} cannot be used"):
        if kind == "emulated":
            from cudnnlite.emulated.device import EmulatedDevice

            return EmulatedDevice(index)
        from cudnnlite.devices.cuda import CudaDevice

        return CudaDevice(index)


devices = Devices(make_device)  # of this process
os.register_at_fork(after_in_child=lambda: devices.note_fork())  # noqa: PLW0108  (whatever `devices` is by then)
