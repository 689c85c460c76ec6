"""Emulated handles: create, destroy, streams."""

from __future__ import annotations

import ctypes
from typing import Any

from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.registry import emulates


class HandleState:
    """What an emulated `cudnnHandle_t` points at."""

    def __init__(self) -> None:
        self._cell = ctypes.create_string_buffer(64)  # its address is the handle
        self.address = ctypes.addressof(self._cell)
        self.stream = 0


@emulates("cudnnCreate")
def create(api: EmulatedApi, handle: Any) -> None:
    """Make a handle."""
    state = HandleState()
    api.handles[state.address] = state
    handle[0] = type(handle[0])(state.address)


@emulates("cudnnDestroy")
def destroy(api: EmulatedApi, handle: Any) -> None:
    """Destroy a handle."""
    del api.handles[handle.value]


@emulates("cudnnSetStream")
def set_stream(api: EmulatedApi, handle: Any, stream: Any) -> None:
    """Remember the stream."""
    api.handles[handle.value].stream = stream.value or 0


@emulates("cudnnGetStream")
def get_stream(api: EmulatedApi, handle: Any, stream: Any) -> None:
    """Tell the stream."""
    stream[0] = type(stream[0])(api.handles[handle.value].stream)
