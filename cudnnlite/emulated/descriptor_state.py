"""The state of descriptors that libcudnn has no getter for, or cannot set without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from cudnnlite.emulated.registry import EmulationState, bad_parameter, null_pointer
from cudnnlite.errors import ArgumentError


def descriptor_state(api: EmulationState, descriptor: Any) -> Any:
    """Return what a live descriptor was set to.

    RefusalError if the descriptor was destroyed, or was never set on this device.
    """
    try:
        return api.descriptor_states[getattr(descriptor, "value", descriptor)]
    except KeyError:
        raise bad_parameter(
            f"the descriptor {descriptor} was destroyed, or never set here"
        ) from None


def store_state(
    api: EmulationState, descriptor: Any, make_state: Callable[..., Any], *values: Any
) -> None:
    """Store what a descriptor is set to; RefusalError if a value is not allowed."""
    if not descriptor.value:
        raise null_pointer("the descriptor")
    try:
        api.descriptor_states[descriptor.value] = make_state(*values)
    except (ArgumentError, IndexError) as error:
        raise bad_parameter(str(error)) from error


def destroy_descriptor(c_call: SimpleNamespace, function: str) -> None:
    """Drop a descriptor's state, and destroy libcudnn's object, whose address may be used again."""
    (descriptor,) = c_call.arguments
    c_call.api.descriptor_states.pop(descriptor.value, None)
    getattr(c_call.api.real, function)(descriptor)
