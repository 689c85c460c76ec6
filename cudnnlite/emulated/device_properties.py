"""The emulated "DEVICEPROP": the GPU that the emulated device stands for."""

from __future__ import annotations

from cudnnlite.emulated.backend import BackendObject
from cudnnlite.emulated.registry import bad_parameter
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.device_properties import DeviceProperties

# The emulated refusals and roundings were recorded on this GPU.
_MODEL = "h200"


def finalize_device_properties(target: BackendObject) -> None:
    """Write the JSON of a handle's device, or check the JSON that describes another."""
    if "json_representation" in target.attributes:
        text = b"".join(target.attributes["json_representation"]).decode()
        try:
            DeviceProperties.from_json(text)
        except ArgumentError as error:
            raise bad_parameter(str(error)) from error
        return
    if "handle" not in target.attributes:
        raise bad_parameter("DEVICEPROP has neither a handle nor a JSON representation")
    text = DeviceProperties.named(_MODEL).to_json()
    target.attributes["json_representation"] = [bytes([byte]) for byte in text.encode()]
