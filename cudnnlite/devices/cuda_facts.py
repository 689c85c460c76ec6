"""What there is of CUDA on this machine: devices, driver and versions, told without using a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from cudnnlite.devices.device import DeviceFacts

_DRIVER_VERSION = Path("/sys/module/nvidia/version")


def all_facts() -> tuple[DeviceFacts, ...]:
    """Return what the visible devices are, without making one of them current; none where there is no driver."""
    try:
        from cuda import core
        from cuda.bindings import driver

        return tuple(facts_of(device, driver) for device in core.Device.get_all_devices())
    except Exception:  # as in `CudaDevice`
        return ()


def facts_of(device: Any, driver: Any) -> DeviceFacts:
    """Return what a `cuda.core.Device` is."""
    major, minor = device.compute_capability
    return DeviceFacts(
        str(device.name), f"{major}.{minor}", _driver_version(driver), str(device.uuid)
    )


def _driver_version(driver: Any) -> str:
    """Return the kernel module's version ('580.65.06'); where that cannot be read, that of CUDA which it supports."""
    if module := _kernel_module():
        return module
    result, version = driver.cuDriverGetVersion()
    return f"CUDA {format_cuda_version(version)}" if not result else "unknown"


def _kernel_module() -> str:
    try:
        return _DRIVER_VERSION.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        return ""


def format_cuda_version(version: int) -> str:
    """Format CUDA's version number: 12090 becomes '12.9'."""
    return f"{version // 1000}.{version % 1000 // 10}"


class CudaState(NamedTuple):
    """What a process can learn of CUDA without using a device."""

    bindings: str  # the version of cuda-bindings; empty if it cannot be imported
    supports: int = (
        0  # the CUDA version that the driver supports: 13000 is 13.0; 0 if there is no driver
    )
    driver: str = ""  # the kernel module's version: '580.65.06'; empty where that cannot be read
    code: str = ""  # CUDA's name for what is wrong: 'CUDA_ERROR_NO_DEVICE'; empty where it is not CUDA that says so
    error: str = ""  # what is wrong; empty if nothing is
    devices: tuple[DeviceFacts, ...] = ()  # those that it sees


def cuda_state() -> CudaState:
    """Return what this process can learn of CUDA without using a device; does not raise."""
    module = _kernel_module()
    try:
        from cuda import bindings, core
        from cuda.bindings import driver
    except Exception as error:  # a damaged cuda-python raises others than ImportError
        return CudaState("", driver=module, error=f"cuda-python cannot be imported ({error})")
    state = CudaState(str(getattr(bindings, "__version__", "unknown")), driver=module)
    try:
        result, version = driver.cuDriverGetVersion()
        state = state._replace(supports=0 if result else int(version))
        (result,) = driver.cuInit(0)
        if result:
            return state._replace(
                code=result.name, error=f"cuInit returned {result.name} ({int(result)})"
            )
        return state._replace(
            devices=tuple(facts_of(device, driver) for device in core.Device.get_all_devices())
        )
    except Exception as error:  # as in `CudaDevice`
        return state._replace(error=" ".join(str(error).split()).rstrip("."))
