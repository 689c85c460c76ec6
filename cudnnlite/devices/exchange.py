"""`exchanged`: arrays of PyTorch, CuPy and JAX as DeviceArrays, in the least time.

A view by `__dlpack__` takes 8 us and more; a view by the attributes of PyTorch's and CuPy's arrays
takes 1 to 2 us.  The view belongs to the stream that the library works on.  A call on another
stream waits for the library's, which then waits for the call.  So the library neither frees nor
overwrites memory that the call still uses.

JAX names no stream, and its attributes are slow.  Its capsule makes our stream wait for the array,
and is read here, once.  JAX does not wait for our stream before it frees an array, so the caller
keeps the array until the call is done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cudnnlite._raw.dlpack import CUDA_DEVICE, read_capsule
from cudnnlite._raw.dlpack_exchange import current_stream_of
from cudnnlite.devices import observer
from cudnnlite.devices.arrays import DeviceArray, view
from cudnnlite.devices.device import Device
from cudnnlite.devices.foreign import is_of_jax
from cudnnlite.errors import ArgumentError, ArrayTypeError
from cudnnlite.specs import TensorSpec

CurrentStream = Callable[[int, int], int]
# The number of the device, or -1 for an array that may not be read as it is; then dtype, strides
# and shape in the library's own form.
ArrayDescription = tuple[Any, ...]
# See `DeviceArray._traits`.
Traits = tuple[int, tuple[TensorSpec, Device, Any, bool]]
_MOST_SPECS = 1024
# The addresses of the default stream in `Device.address_of` and in DLPack.
_DEFAULT_STREAM, _DLPACK_DEFAULT_STREAM = 0, 1
_UNREADABLE = -1
# Reading raises these for a sparse or deleted array, one on several devices, one without values,
# and an object that is no array.  A view then raises an error that says why.
_READING_ERRORS = (RuntimeError, BufferError, TypeError, ValueError, AttributeError)


class _ArrayReader(NamedTuple):
    """The functions that read arrays of one type."""

    # (array, or the object that `export` returned) -> address and description.
    read: Callable[[Any], tuple[int, ArrayDescription]]
    # (DLPack device type, number) -> the address of the stream that the library works on.  None if
    # `export` makes our stream wait for the array.
    current_stream: CurrentStream | None
    # (array, the address of our stream) -> the object that is read and holds the memory.  None if
    # that is the array itself.
    export: Callable[[Any, int], Any] | None = None
    is_immutable: bool = False


_libraries: dict[type, _ArrayReader | None] = {}
# The specs of arrays that need no conversion.
_specs: dict[ArrayDescription, TensorSpec] = {}


def exchanged(device: Device, stream: Any, arrays: Sequence[Any]) -> list[DeviceArray] | None:
    """Return arrays, some of another library, as DeviceArrays; None if an array needs a view.

    See `foreign_traits`.
    """
    foreign = foreign_traits(device, stream, arrays)
    return None if foreign is None else [*map(as_device_array, *foreign)]


def as_device_array(traits: Traits, owner: Any) -> DeviceArray:
    """Return the DeviceArray with these traits: the owner itself, or a view that holds it."""
    if type(owner) is DeviceArray:
        return owner
    ptr, (spec, device, stream, readonly) = traits
    return DeviceArray(spec, device, ptr, owner, stream, readonly=readonly)


def foreign_traits(
    device: Device, stream: Any, arrays: Sequence[Any]
) -> tuple[list[Traits], list[Any]] | None:
    """Return the traits that arrays, some of another library, have as DeviceArrays.

    With them return the objects that hold the memory, which the caller keeps until the call is
    enqueued.  None if an array needs a view by a protocol: an array of an unknown library, and one
    that a view refuses with a reason (it is on another device, requires gradients, or has no
    values).
    """
    if device.kind != "cuda" or observer.current is not observer.NOBODY:
        return None
    traits: list[Traits] = []
    owners: list[Any] = []
    last_library = library_stream = None
    for array in arrays:
        kind = type(array)
        if kind is DeviceArray:
            if array.device is not device:
                return None
            traits.append(array._traits)
            owners.append(array)
            continue
        library = _libraries[kind] if kind in _libraries else _library_of(kind)
        if library is None:
            return None
        owner = array
        try:
            if library.export is not None:
                owner = library.export(array, device.address_of(stream))
            ptr, description = library.read(owner)
        except _READING_ERRORS:
            return None
        if description[0] != device.index:
            return None
        spec = _specs.get(description) or _spec_of(device, stream, array, description)
        if spec is None or not ptr:
            return None
        if library is not last_library:
            library_stream = _stream_of(library, device, stream)
            last_library = library
        traits.append((ptr, (spec, device, library_stream, library.is_immutable)))
        owners.append(owner)
    return traits, owners


def _stream_of(library: _ArrayReader, device: Device, stream: Any) -> Any:
    """Return the stream that a library's arrays belong to; ours if it waits for them already."""
    if library.current_stream is None:
        return stream
    return device.stream_at(library.current_stream(CUDA_DEVICE, device.index), stream)


def _library_of(kind: type) -> _ArrayReader | None:
    """Return the library of a type, and remember it; None for a type that cannot be read here."""
    modules = {base.__module__ for base in kind.__mro__}
    library = None
    if "torch" in modules:
        current_stream = current_stream_of(kind)
        library = None if current_stream is None else _ArrayReader(_read_tensor, current_stream)
    elif kind.__name__ == "ndarray" and any(name.startswith("cupy.") for name in modules):
        library = _ArrayReader(_read_cupy_array, _cupy_stream)
    elif is_of_jax(kind):
        library = _ArrayReader(read_capsule, None, _export_capsule, is_immutable=True)
    _libraries[kind] = library
    return library


def _read_tensor(tensor: Any) -> tuple[int, ArrayDescription]:
    number = tensor.get_device()
    if tensor.requires_grad or tensor.is_neg():
        number = _UNREADABLE
    return tensor.data_ptr(), (number, tensor.dtype, tensor.stride(), tensor.shape)


def _read_cupy_array(array: Any) -> tuple[int, ArrayDescription]:
    memory = array.data
    return memory.ptr, (memory.device_id, array.dtype, array.strides, array.shape)


def _cupy_stream(device_type: int, number: int) -> int:
    address: int = sys.modules["cupy"].cuda.get_current_stream(number).ptr
    return address


def _export_capsule(array: Any, stream_address: int) -> Any:
    """Return the capsule of an array; our stream then waits for the array."""
    address = stream_address
    if address == _DEFAULT_STREAM:
        address = _DLPACK_DEFAULT_STREAM
    return array.__dlpack__(stream=address)


def _spec_of(
    device: Device, stream: Any, array: Any, description: ArrayDescription
) -> TensorSpec | None:
    """Return and remember the spec of an array that may be read as it is; None for any other."""
    try:
        spec = view(device, stream, array, "array").spec
    except (ArgumentError, ArrayTypeError):
        return None
    if len(_specs) >= _MOST_SPECS:
        _specs.clear()
    _specs[description] = spec
    return spec
