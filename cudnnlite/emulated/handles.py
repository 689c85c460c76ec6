"""Emulated handles and their streams."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

from cudnnlite.emulated.registry import emulates


@emulates("cudnnCreate")
def create(c_call: SimpleNamespace) -> None:
    """`cudnnCreate`: make a handle, the address of a buffer that lives as long as the handle."""
    buffer = ctypes.create_string_buffer(64)
    address = ctypes.addressof(buffer)
    c_call.api.handles[address] = SimpleNamespace(buffer=buffer, stream=0)
    c_call.handle[0] = type(c_call.handle[0])(address)


@emulates("cudnnDestroy")
def destroy(c_call: SimpleNamespace) -> None:
    """`cudnnDestroy`: destroy a handle."""
    del c_call.api.handles[c_call.handle.value]


@emulates("cudnnSetStream")
def set_stream(c_call: SimpleNamespace) -> None:
    """`cudnnSetStream`: store the stream."""
    c_call.api.handles[c_call.handle.value].stream = c_call.streamId.value or 0


@emulates("cudnnGetStream")
def get_stream(c_call: SimpleNamespace) -> None:
    """`cudnnGetStream`: write the stream."""
    stream = c_call.api.handles[c_call.handle.value].stream
    c_call.streamId[0] = type(c_call.streamId[0])(stream)
