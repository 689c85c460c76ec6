"""`NvmlMeter`: a GPU's energy counter, clocks and power limit, as NVML reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudnnlite._raw.noncopyable import NonCopyable


def open_meter(uuid: str) -> NvmlMeter | None:
    """Return the meter of a GPU; None if NVML is not there, or if the GPU has no energy counter."""
    try:
        from cuda.bindings import nvml
    except Exception:  # an older cuda-python has no NVML, a damaged one raises other errors
        return None
    try:
        nvml.init_v2()
    except Exception:  # NVML's own: no driver, or a container without the library
        return None
    meter = NvmlMeter(nvml, uuid)
    try:
        meter.joules()
    except Exception:  # NVML's own: the GPU is a part of one, or older than Volta
        meter.close()
        return None
    return meter


class NvmlMeter(NonCopyable):
    """Reads what NVML knows of one GPU; made by `open_meter`."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml, self._uuid = nvml, uuid
        self._is_open = True

    @property
    def _gpu(self) -> Any:
        prefixed = self._uuid if self._uuid.startswith(("GPU-", "MIG-")) else f"GPU-{self._uuid}"
        return self._nvml.device_get_handle_by_uuid(prefixed)

    def joules(self) -> float:
        """Return the energy that the GPU has used since the driver was loaded."""
        return 1e-3 * float(self._nvml.device_get_total_energy_consumption(self._gpu))

    def facts(self) -> dict[str, str]:
        """Return the present clocks and the power limit in words; what NVML refuses is missing."""
        gpu, nvml = self._gpu, self._nvml
        readers: dict[str, Callable[[], str]] = {
            "clock": lambda: f"{nvml.device_get_clock_info(gpu, nvml.ClockType.CLOCK_SM)} MHz",
            "memory clock": lambda: (
                f"{nvml.device_get_clock_info(gpu, nvml.ClockType.CLOCK_MEM)} MHz"
            ),
            "power limit": lambda: f"{nvml.device_get_enforced_power_limit(gpu) / 1000:.0f} W",
        }
        facts = {}
        for name, read in readers.items():
            try:
                facts[name] = read()
            except Exception:  # NVML's own, for what this GPU does not tell
                continue
        return facts

    def close(self) -> None:
        """Stop reading; harmless when called again."""
        if self._is_open:
            self._is_open = False
            self._nvml.shutdown()
