"""`exchanged`: arrays of PyTorch and CuPy as DeviceArrays by their attributes, without a capsule.

A view by `__dlpack__` takes 8 us and more, one by attributes 1 to 2.  The view belongs to the
stream that the library works on: a call on another stream waits for that one, and it for the call.
So memory that the library frees, or writes again, is not touched too early.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cudnnlite._raw.dlpack_exchange import current_stream_of
from cudnnlite.devices import observer
from cudnnlite.devices.arrays import DeviceArray, view
from cudnnlite.devices.device import Device
from cudnnlite.errors import ArgumentError, ArrayTypeError
from cudnnlite.specs import TensorSpec

CurrentStream = Callable[[int, int], int]
# Device, whether it requires gradients, whether it is stored negated, dtype, strides, and shape.
Description = tuple[int, bool, bool, Any, tuple[int, ...], tuple[int, ...]]
# See `DeviceArray.traits`.
Traits = tuple[int, tuple[TensorSpec, Device, Any, bool]]
_MOST_SPECS = 1024
_CUDA = 2  # as DLPack has it


class _Library(NamedTuple):
    """How arrays of a type are read."""

    # array -> its address, and what else a spec depends on.
    read: Callable[[Any], tuple[int, Description]]
    # (DLPack device type, number) -> the address of the stream that the library works on.
    current_stream: CurrentStream


_libraries: dict[type, _Library | None] = {}
# Of arrays that may be read as they are.
_specs: dict[Description, TensorSpec] = {}


def exchanged(device: Device, stream: Any, arrays: Sequence[Any]) -> list[DeviceArray] | None:
    """Return arrays of which some are another library's as DeviceArrays; None if that needs views.

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
    """Return the traits that arrays have as DeviceArrays, although some are another library's.

    None where an array has to be viewed by a protocol: one of a library that is not known here, a
    DeviceArray on another device, and what a view refuses with a reason: an array on another
    device, one that requires gradients, and one without values.
    """
    if device.kind != "cuda" or observer.current is not observer.NOBODY:
        return None
    traits = []
    asked_library = own_stream = None
    for array in arrays:
        kind = type(array)
        if kind is DeviceArray:
            if array.device is not device:
                return None
            traits.append(array.traits)
            continue
        library = _libraries[kind] if kind in _libraries else _library_of(kind)
        if library is None:
            return None
        try:
            ptr, description = library.read(array)
        except RuntimeError:  # a sparse tensor, for instance
            return None
        spec = _specs.get(description) or _spec_of(device, stream, array, description)
        if spec is None or not ptr:
            return None
        if library is not asked_library:
            own_stream = device.stream_at(library.current_stream(_CUDA, device.index), stream)
            asked_library = library
        traits.append((ptr, (spec, device, own_stream, False)))
    return traits


def _library_of(kind: type) -> _Library | None:
    """Return how arrays of a type are read, and remember it; None for a type of another library."""
    modules = {base.__module__ for base in kind.__mro__}
    library = None
    if "torch" in modules:
        current_stream = current_stream_of(kind)
        library = None if current_stream is None else _Library(_read_tensor, current_stream)
    elif kind.__name__ == "ndarray" and any(name.startswith("cupy.") for name in modules):
        library = _Library(_read_cupy_array, _cupy_stream)
    _libraries[kind] = library
    return library


def _read_tensor(tensor: Any) -> tuple[int, Description]:
    return tensor.data_ptr(), (
        tensor.get_device(),
        tensor.requires_grad,
        tensor.is_neg(),
        tensor.dtype,
        tensor.stride(),
        tensor.shape,
    )


def _read_cupy_array(array: Any) -> tuple[int, Description]:
    memory = array.data
    return memory.ptr, (memory.device_id, False, False, array.dtype, array.strides, array.shape)


def _cupy_stream(device_type: int, number: int) -> int:
    address: int = sys.modules["cupy"].cuda.get_current_stream(number).ptr
    return address


def _spec_of(
    device: Device, stream: Any, array: Any, description: Description
) -> TensorSpec | None:
    """Return the spec of an array that may be read as it is, and keep it; None for any other."""
    device_index, requires_grad, is_negated, *_ = description
    if device_index != device.index or requires_grad or is_negated:
        return None
    try:
        spec = view(device, stream, array, "array").spec
    except (ArgumentError, ArrayTypeError):
        return None
    if len(_specs) >= _MOST_SPECS:
        _specs.clear()
    _specs[description] = spec
    return spec
