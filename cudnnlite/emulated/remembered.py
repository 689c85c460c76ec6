"""What is remembered of handles, and of descriptors that libcudnn has no getter for or cannot set without a GPU."""

from __future__ import annotations

import ctypes
from functools import partial
from types import SimpleNamespace
from typing import Any

from cudnnlite.descriptors.layers import transform_of
from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.registry import bad, emulates, null
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.layers import SpatialTransformerSpec


def remembered(api: EmulatedApi, descriptor: Any) -> Any:
    """Return what a live descriptor was set to; RefusalError if it was destroyed, or never set on this device."""
    try:
        return api.remembered[getattr(descriptor, "value", descriptor)]
    except KeyError:
        raise bad(f"the descriptor {descriptor} was destroyed, or never set here") from None


def remember(api: EmulatedApi, descriptor: Any, kind: Any, *values: Any) -> None:
    """Note what a descriptor is set to; a value that is not allowed is refused."""
    if not descriptor.value:
        raise null("the descriptor")
    try:
        api.remembered[descriptor.value] = kind(*values)
    except (ArgumentError, IndexError) as error:
        raise bad(str(error)) from error


def _forget(function: str, given: SimpleNamespace) -> None:
    """Forget a descriptor, and destroy libcudnn's: another may get its address."""
    (descriptor,) = given.arguments
    given.api.remembered.pop(descriptor.value, None)
    getattr(given.api.real, function)(descriptor)


for _kind in ("Dropout", "RNN", "SpatialTransformer", "TensorTransform"):
    emulates(f"cudnnDestroy{_kind}Descriptor")(partial(_forget, f"cudnnDestroy{_kind}Descriptor"))


@emulates("cudnnSetSpatialTransformerNdDescriptor")
def set_spatial_transformer(given: SimpleNamespace) -> None:
    """Set a spatial transformer; there is one sampler."""
    if given.samplerType:
        raise bad(f"samplerType={given.samplerType}; allowed: 0")
    remember(
        given.api,
        given.stDesc,
        SpatialTransformerSpec,
        given.dimA[: given.nbDims],
        DataType(given.dataType),
    )


@emulates("cudnnSetTensorTransformDescriptor")
def set_transform(given: SimpleNamespace) -> None:
    """Set a transformation, of which libcudnn knows nothing where there is no driver."""
    descriptor, *values = given.arguments
    remember(given.api, descriptor, transform_of, *values)


@emulates("cudnnGetTensorTransformDescriptor")
def get_transform(given: SimpleNamespace) -> None:
    """Tell what a transformation was set to."""
    spec, rank = remembered(given.api, given.transformDesc), given.nbDimsRequested
    given.destFormat[0], given.direction[0] = spec.format, spec.direction
    for axis, (front, back) in enumerate(spec.padding[:rank]):
        given.padBeforeA[axis], given.padAfterA[axis] = front, back
    for axis, size in enumerate(spec.fold[:rank]):
        given.foldA[axis] = size


@emulates("cudnnCreate")
def create(given: SimpleNamespace) -> None:
    """Make a handle: the address of something that lives as long."""
    cell = ctypes.create_string_buffer(64)
    given.api.handles[ctypes.addressof(cell)] = SimpleNamespace(cell=cell, stream=0)
    given.handle[0] = type(given.handle[0])(ctypes.addressof(cell))


@emulates("cudnnDestroy")
def destroy(given: SimpleNamespace) -> None:
    """Destroy a handle."""
    del given.api.handles[given.handle.value]


@emulates("cudnnSetStream")
def set_stream(given: SimpleNamespace) -> None:
    """Remember the stream."""
    given.api.handles[given.handle.value].stream = given.streamId.value or 0


@emulates("cudnnGetStream")
def get_stream(given: SimpleNamespace) -> None:
    """Tell the stream."""
    given.streamId[0] = type(given.streamId[0])(given.api.handles[given.handle.value].stream)
