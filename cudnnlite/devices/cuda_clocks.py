"""The clocks and the power limit of a GPU, as NVML tells them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def clocks_of(uuid: str) -> dict[str, str]:
    """Return the present clocks and the power limit in words; what NVML does not tell is missing.

    The result is empty without NVML.
    """
    try:
        from cuda.bindings import nvml
    except Exception:  # an older cuda-python has no NVML, a damaged one raises other errors
        return {}
    try:
        nvml.init_v2()
    except Exception:  # NVML's own: no driver, or a container without the library
        return {}
    prefixed = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    readers: dict[str, Callable[[Any], str]] = {
        "clock": lambda gpu: f"{nvml.device_get_clock_info(gpu, nvml.ClockType.CLOCK_SM)} MHz",
        "memory clock": lambda gpu: (
            f"{nvml.device_get_clock_info(gpu, nvml.ClockType.CLOCK_MEM)} MHz"
        ),
        "power limit": lambda gpu: f"{nvml.device_get_enforced_power_limit(gpu) / 1000:.0f} W",
    }
    facts = {}
    for name, read in readers.items():
        try:
            facts[name] = read(nvml.device_get_handle_by_uuid(prefixed))
        except Exception:  # NVML's own, for what this GPU does not tell
            continue
    nvml.shutdown()
    return facts
