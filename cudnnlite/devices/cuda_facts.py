"""The CUDA of this machine: devices, driver and versions, read without using a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from cudnnlite.devices.device import DeviceFacts, DeviceFigures

_DRIVER_VERSION = Path("/sys/module/nvidia/version")


def all_facts() -> tuple[DeviceFacts, ...]:
    """Return the facts of the visible devices, without making one current; [] without a driver."""
    try:
        from cuda import core
        from cuda.bindings import driver

        return tuple(facts_of(device, driver) for device in core.Device.get_all_devices())
    except Exception:  # as in `CudaDevice`
        return ()


def facts_of(device: Any, driver: Any) -> DeviceFacts:
    """Return the facts of a `cuda.core.Device`."""
    major, minor = device.compute_capability
    return DeviceFacts(
        str(device.name), f"{major}.{minor}", _driver_version(driver), str(device.uuid)
    )


def figures_of(device: Any) -> DeviceFigures:
    """Return the figures of a `cuda.core.Device` that its peaks follow from."""
    properties = device.properties
    major, minor = device.compute_capability
    return DeviceFigures(
        str(device.name),
        f"{major}.{minor}",
        int(properties.multiprocessor_count),
        1e3 * properties.clock_rate,  # CUDA has kilohertz
        1e3 * properties.memory_clock_rate,
        int(properties.global_memory_bus_width),
    )


def _driver_version(driver: Any) -> str:
    """Return the kernel module's version, such as '580.65.06'.

    If that cannot be read, return the version of CUDA that the driver supports.
    """
    module_version = _kernel_module()
    if module_version:
        return module_version
    result, version = driver.cuDriverGetVersion()
    if result:
        return "unknown"
    return f"CUDA {format_cuda_version(version)}"


def _kernel_module() -> str:
    try:
        return _DRIVER_VERSION.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        return ""


def format_cuda_version(version: int) -> str:
    """Format CUDA's version number: 12090 becomes '12.9'."""
    return f"{version // 1000}.{version % 1000 // 10}"


class CudaState(NamedTuple):
    """The facts about CUDA that a process can learn without using a device."""

    # The version of cuda-bindings; empty if it cannot be imported.
    bindings: str
    # The CUDA version that the driver supports: 13000 is 13.0; 0 if there is no driver.
    supports: int = 0
    # The kernel module's version: '580.65.06'; empty if it cannot be read.
    driver: str = ""
    # CUDA's name of the error: 'CUDA_ERROR_NO_DEVICE'; empty if the error is not CUDA's.
    code: str = ""
    # The text of the error; empty if there is none.
    error: str = ""
    # The devices that the process sees.
    devices: tuple[DeviceFacts, ...] = ()


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
