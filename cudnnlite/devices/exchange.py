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
# See `DeviceArray.traits`.
Traits = tuple[int, tuple[TensorSpec, Device, Any, bool]]
_MOST_SPECS = 1024
_CUDA = 2  # as DLPack has it

_streams: dict[type, CurrentStream | None] = {}
# By device, dtype, strides and shape of tensors that may be read as they are.
_specs: dict[tuple[Any, ...], TensorSpec] = {}


def exchanged(device: Device, stream: Any, arrays: Sequence[Any]) -> list[DeviceArray] | None:
    """Return arrays of which some are PyTorch's as DeviceArrays; None where one needs another way.

    See `foreign_traits`.
    """
    traits = foreign_traits(device, stream, arrays)
    return None if traits is None else [*map(as_device_array, arrays, traits)]


def as_device_array(array: Any, traits: Traits) -> DeviceArray:
    """Return the DeviceArray of an array with these traits: itself, or a view."""
    if type(array) is DeviceArray:
        return array
    ptr, (spec, device, stream, _) = traits
    return DeviceArray(spec, device, ptr, array, stream)


def foreign_traits(device: Device, stream: Any, arrays: Sequence[Any]) -> list[Traits] | None:
    """Return the traits that arrays of which some are PyTorch's have as DeviceArrays.

    None where an array needs another way: one of another library, a DeviceArray on another device,
    and a tensor that a view by `__dlpack__` refuses with a reason: one on another device, one that
    requires gradients, and one without values.
    """
    if device.kind != "cuda" or observer.current is not observer.NOBODY:
        return None
    traits = []
    own_stream = None
    for array in arrays:
        kind = type(array)
        if kind is DeviceArray:
            if array.device is not device:
                return None
            traits.append(array.traits)
            continue
        current_stream = _streams[kind] if kind in _streams else _stream_of(kind)
        if current_stream is None:
            return None
        try:
            description = (
                array.get_device(),
                array.requires_grad,
                array.is_neg(),
                array.dtype,
                array.stride(),
                array.shape,
            )
        except RuntimeError:  # a sparse tensor, for instance
            return None
        spec = _specs.get(description) or _spec_of(device, stream, array, description)
        ptr = array.data_ptr() if spec is not None else 0
        if not ptr:
            return None
        if own_stream is None:
            own_stream = device.stream_at(current_stream(_CUDA, device.index), stream)
        traits.append((ptr, (spec, device, own_stream, False)))
    return traits


def _stream_of(kind: type) -> CurrentStream | None:
    """Return how to ask for the stream of a type's library, if that is PyTorch."""
    is_torch = any(base.__module__ == "torch" for base in kind.__mro__)
    _streams[kind] = current_stream_of(kind) if is_torch else None
    return _streams[kind]


def _spec_of(
    device: Device, stream: Any, tensor: Any, description: tuple[Any, ...]
) -> TensorSpec | None:
    """Return the spec of a tensor that may be read as it is, and keep it; None for any other."""
    device_index, requires_grad, is_negated, *_ = description
    if device_index != device.index or requires_grad or is_negated:
        return None
    try:
        spec = view(device, stream, tensor, "tensor").spec
    except (ArgumentError, ArrayTypeError):
        return None
    if len(_specs) >= _MOST_SPECS:
        _specs.clear()
    _specs[description] = spec
    return spec
