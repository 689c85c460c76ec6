"""Emulated descriptors that libcudnn has no getter for, or cannot set without a GPU: what each was set to."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from cudnnlite.descriptors.layers import transform_of
from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.registry import RefusalError, emulates
from cudnnlite.enums import DataType, Status
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.layers import SpatialTransformerSpec

# By the address of the native descriptor, which is libcudnn's.
_specs: WeakKeyDictionary[EmulatedApi, dict[int, Any]] = WeakKeyDictionary()


def remembered(api: EmulatedApi, descriptor: Any) -> Any:
    """Return what a live descriptor was set to; RefusalError if it was destroyed, or never set on this device."""
    try:
        return _specs[api][getattr(descriptor, "value", descriptor)]
    except KeyError:
        raise RefusalError(Status.BAD_PARAM, f"the descriptor {descriptor} was destroyed, or never set here") from None


def remember(api: EmulatedApi, descriptor: Any, kind: Any, *values: Any) -> None:
    """Note what a descriptor is set to; a value that is not allowed is refused."""
    if not descriptor.value:
        raise RefusalError(Status.BAD_PARAM_NULL_POINTER, "the descriptor is a null pointer")
    try:
        _specs.setdefault(api, {})[descriptor.value] = kind(*values)
    except (ArgumentError, IndexError) as error:
        raise RefusalError(Status.BAD_PARAM, str(error)) from error


def forget(api: EmulatedApi, descriptor: Any, destroy: str) -> None:
    """Forget a descriptor, and destroy libcudnn's."""
    _specs.get(api, {}).pop(descriptor.value, None)
    getattr(api.real, destroy)(descriptor)


@emulates("cudnnSetSpatialTransformerNdDescriptor")
def set_spatial_transformer(api: EmulatedApi, descriptor: Any, sampler: int, dtype: int, rank: int, shape: Any) -> None:
    """Set a spatial transformer; there is one sampler."""
    if sampler:
        raise RefusalError(Status.BAD_PARAM, f"samplerType={sampler}; allowed: 0")
    remember(api, descriptor, SpatialTransformerSpec, shape[:rank], DataType(dtype))


@emulates("cudnnDestroySpatialTransformerDescriptor")
def destroy_spatial_transformer(api: EmulatedApi, descriptor: Any) -> None:
    """Forget the transformer."""
    forget(api, descriptor, "cudnnDestroySpatialTransformerDescriptor")


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


@emulates("cudnnDestroyTensorTransformDescriptor")
def destroy_transform(api: EmulatedApi, descriptor: Any) -> None:
    """Forget the transformation."""
    forget(api, descriptor, "cudnnDestroyTensorTransformDescriptor")
