"""Emulated handles: create, destroy, streams."""

from __future__ import annotations

import ctypes
from typing import Any

from cudnnlite.emulated.api import EmulatedApi, RefusalError, emulates
from cudnnlite.enums import Status


class HandleState:
    """What an emulated `cudnnHandle_t` points at."""

    def __init__(self) -> None:
        self._cell = ctypes.create_string_buffer(64)  # its address is the handle
        self.address = ctypes.addressof(self._cell)
        self.stream = 0


def handle_state(api: EmulatedApi, handle: Any) -> HandleState:
    """Return the state of a live handle.

    Raises
    ------
    RefusalError
        The handle is null, destroyed, or not of this device.
    """
    state: HandleState | None = api.handles.get(handle.value)
    if state is None:
        raise RefusalError(Status.BAD_PARAM, f"{handle.value or 0:#x} is not a live handle of the emulated device")
    return state


@emulates("cudnnCreate")
def create(api: EmulatedApi, handle: Any) -> None:
    """Make a handle."""
    state = HandleState()
    api.handles[state.address] = state
    handle[0] = type(handle[0])(state.address)


@emulates("cudnnDestroy")
def destroy(api: EmulatedApi, handle: Any) -> None:
    """Destroy a handle."""
    del api.handles[handle_state(api, handle).address]


@emulates("cudnnSetStream")
def set_stream(api: EmulatedApi, handle: Any, stream: Any) -> None:
    """Remember the stream."""
    handle_state(api, handle).stream = stream.value or 0


@emulates("cudnnGetStream")
def get_stream(api: EmulatedApi, handle: Any, stream: Any) -> None:
    """Tell the stream."""
    stream[0] = type(stream[0])(handle_state(api, handle).stream)
