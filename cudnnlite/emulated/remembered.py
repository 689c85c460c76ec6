"""What is remembered of handles, and of descriptors that libcudnn has no getter for or cannot set without a GPU."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from cudnnlite.descriptors.layers import transform_of
from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.registry import bad, emulates, null
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.layers import SpatialTransformerSpec

# By the address of the native descriptor, which is libcudnn's.
_specs: WeakKeyDictionary[EmulatedApi, dict[int, Any]] = WeakKeyDictionary()


def remembered(api: EmulatedApi, descriptor: Any) -> Any:
    """Return what a live descriptor was set to; RefusalError if it was destroyed, or never set on this device."""
    try:
        return _specs[api][getattr(descriptor, "value", descriptor)]
    except KeyError:
        raise bad(f"the descriptor {descriptor} was destroyed, or never set here") from None


def remember(api: EmulatedApi, descriptor: Any, kind: Any, *values: Any) -> None:
    """Note what a descriptor is set to; a value that is not allowed is refused."""
    if not descriptor.value:
        raise null("the descriptor")
    try:
        _specs.setdefault(api, {})[descriptor.value] = kind(*values)
    except (ArgumentError, IndexError) as error:
        raise bad(str(error)) from error


def _forget(function: str, api: EmulatedApi, descriptor: Any) -> None:
    """Forget a descriptor, and destroy libcudnn's."""
    _specs.get(api, {}).pop(descriptor.value, None)
    getattr(api.real, function)(descriptor)


for _kind in ("Dropout", "SpatialTransformer", "TensorTransform"):
    emulates(f"cudnnDestroy{_kind}Descriptor")(partial(_forget, f"cudnnDestroy{_kind}Descriptor"))


@emulates("cudnnSetSpatialTransformerNdDescriptor")
def set_spatial_transformer(api: EmulatedApi, descriptor: Any, sampler: int, dtype: int, rank: int, shape: Any) -> None:
    """Set a spatial transformer; there is one sampler."""
    if sampler:
        raise bad(f"samplerType={sampler}; allowed: 0")
    remember(api, descriptor, SpatialTransformerSpec, shape[:rank], DataType(dtype))


@emulates("cudnnSetTensorTransformDescriptor")
def set_transform(
    api: EmulatedApi, descriptor: Any, rank: int, kind: int, before: Any, after: Any, fold: Any, direction: int
) -> None:
    """Set a transformation, of which libcudnn knows nothing where there is no driver."""
    remember(api, descriptor, transform_of, rank, kind, before, after, fold, direction)


@emulates("cudnnGetTensorTransformDescriptor")
def get_transform(
    api: EmulatedApi, descriptor: Any, rank: int, kind: Any, before: Any, after: Any, fold: Any, direction: Any
) -> None:
    """Tell what a transformation was set to."""
    spec = remembered(api, descriptor)
    kind[0], direction[0] = spec.format, spec.direction
    for axis, (front, back) in enumerate(spec.padding[:rank]):
        before[axis], after[axis] = front, back
    for axis, size in enumerate(spec.fold[:rank]):
        fold[axis] = size


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
