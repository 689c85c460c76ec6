"""`exchanged`: PyTorch's tensors as DeviceArrays by their attributes, instead of a capsule each.

A view by `__dlpack__` takes 8 us, one by attributes about 1.5.  The view belongs to the stream that
PyTorch works on: a call on another stream waits for that one, and it for the call.  So memory that
PyTorch frees, or writes again, is not touched too early.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cudnnlite._raw.dlpack_exchange import current_stream_of
from cudnnlite.devices import observer
from cudnnlite.devices.arrays import DeviceArray, view
from cudnnlite.devices.device import Device
from cudnnlite.errors import ArgumentError, ArrayTypeError
from cudnnlite.specs import TensorSpec

CurrentStream = Callable[[int, int], int]
_MOST_SPECS = 1024
_CUDA = 2  # as DLPack has it

_streams: dict[type, CurrentStream | None] = {}
_specs: dict[tuple[Any, ...], TensorSpec] = {}


def exchanged(device: Device, stream: Any, arrays: Sequence[Any]) -> list[DeviceArray] | None:
    """Return arrays of which some are PyTorch's as DeviceArrays; None where one needs another way.

    That is an array of another library, a DeviceArray on another device, and a tensor that a view
    by `__dlpack__` refuses with a reason: one on another device, one that requires gradients, and
    one without values.
    """
    if device.kind != "cuda" or observer.current is not observer.NOBODY:
        return None
    views = []
    own_stream = None
    for array in arrays:
        kind = type(array)
        if kind is DeviceArray:
            if array.device is not device:
                return None
            views.append(array)
            continue
        current_stream = _streams[kind] if kind in _streams else _stream_of(kind)
        if current_stream is None:
            return None
        spec = _spec_of(device, stream, array)
        ptr = 0 if spec is None else array.data_ptr()
        if spec is None or not ptr:
            return None
        if own_stream is None:
            own_stream = device.stream_at(current_stream(_CUDA, device.index), stream)
        views.append(DeviceArray(spec, device, ptr, array, own_stream))
    return views


def _stream_of(kind: type) -> CurrentStream | None:
    """Return how to ask for the stream of a type's library, if that is PyTorch."""
    is_torch = any(base.__module__ == "torch" for base in kind.__mro__)
    _streams[kind] = current_stream_of(kind) if is_torch else None
    return _streams[kind]


def _spec_of(device: Device, stream: Any, tensor: Any) -> TensorSpec | None:
    """Return the spec of a tensor that may be read as it is; None for any other."""
    try:
        if tensor.get_device() != device.index or tensor.requires_grad or tensor.is_neg():
            return None
        description = (tensor.shape, tensor.stride(), tensor.dtype)
    except RuntimeError:  # a sparse tensor, for instance
        return None
    spec = _specs.get(description)
    if spec is not None:
        return spec
    try:
        spec = view(device, stream, tensor, "tensor").spec
    except (ArgumentError, ArrayTypeError):
        return None
    if len(_specs) >= _MOST_SPECS:
        _specs.clear()
    _specs[description] = spec
    return spec
