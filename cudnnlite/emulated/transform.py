"""Emulated copies between layouts and types, and the descriptors of padding and folding."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from cudnnlite._raw.enums import FoldingDirection
from cudnnlite.descriptors.layers import transform_of
from cudnnlite.emulated.descriptor_state import (
    descriptor_state,
    destroy_descriptor,
    store_state,
)
from cudnnlite.emulated.operation_call import Array, Values, computes, never_refused
from cudnnlite.emulated.registry import emulates
from cudnnlite.enums import DataType, Status
from cudnnlite.problems import transform as declarations
from cudnnlite.problems.operation import FLOATS
from cudnnlite.specs import FilterSpec
from cudnnlite.specs.layers import TensorTransformSpec

_DTYPES = (*FLOATS, DataType.INT8)
_HALVES = {DataType.HALF, DataType.BFLOAT16}


@emulates("cudnnSetTensorTransformDescriptor")
def set_descriptor(c_call: SimpleNamespace) -> None:
    """`cudnnSetTensorTransformDescriptor`: libcudnn cannot do it without a driver."""
    descriptor, *values = c_call.arguments
    store_state(c_call.api, descriptor, transform_of, *values)


@emulates("cudnnGetTensorTransformDescriptor")
def get_descriptor(c_call: SimpleNamespace) -> None:
    """`cudnnGetTensorTransformDescriptor`: write what a descriptor was set to."""
    spec = descriptor_state(c_call.api, c_call.transformDesc)
    rank = c_call.nbDimsRequested
    c_call.destFormat[0] = spec.format
    c_call.direction[0] = spec.direction
    for axis, (front, back) in enumerate(spec.padding[:rank]):
        c_call.padBeforeA[axis] = front
        c_call.padAfterA[axis] = back
    for axis, size in enumerate(spec.fold[:rank]):
        c_call.foldA[axis] = size


@emulates("cudnnDestroyTensorTransformDescriptor")
def destroy(c_call: SimpleNamespace) -> None:
    """`cudnnDestroyTensorTransformDescriptor`: destroy a descriptor and its state."""
    destroy_descriptor(c_call, "cudnnDestroyTensorTransformDescriptor")


def _why_conversion_refused(specs: Values, options: Values) -> str | None:
    """Refuse to convert between float16 and bfloat16, and integers, as an H200 does.

    Floats may have any layouts and strides.
    """
    dtypes = {spec.dtype for spec in specs.values()}
    if len(dtypes) == 1 or (dtypes <= {*FLOATS} and dtypes != _HALVES):
        return None
    return f"from {specs['x']} to {specs['y']}"


@computes(
    declarations.TRANSFORM,
    dtypes=_DTYPES,
    same_dtype=("y",),
    why_refused=_why_conversion_refused,
    refusal_status=Status.NOT_SUPPORTED,
)
def copy(x: Array) -> Array:
    """`cudnnTransformTensor`: return the values, which y stores in its layout and type."""
    return x


@computes(declarations.EXTENDED, dtypes=_DTYPES, same_dtype=("y",), why_refused=never_refused)
def extend(x: Array, transform: TensorTransformSpec) -> Array:
    """`cudnnTransformTensorEx`: return the values padded and folded, or unfolded."""
    padded = np.pad(x, transform.padding)
    if not transform.fold:
        return np.asarray(padded)
    if transform.direction == FoldingDirection.UNFOLD:
        blocks = _unfolded_blocks(padded, transform.fold)
    else:
        blocks = _folded_blocks(padded, transform.fold)
    return np.asarray(blocks.reshape(transform.output_shape(x.shape)))


def _folded_blocks(padded: Array, fold: tuple[int, ...]) -> Array:
    """Return the values with the axes of a block of pixels in front of the channels."""
    n, channels, *image = padded.shape
    axes = range(len(image))
    block_axes = [
        size for pixels, step in zip(image, fold, strict=True) for size in (pixels // step, step)
    ]
    blocks = padded.reshape(n, channels, *block_axes)
    order = (0, *(3 + 2 * axis for axis in axes), 1, *(2 + 2 * axis for axis in axes))
    return np.asarray(blocks.transpose(order))


def _unfolded_blocks(padded: Array, fold: tuple[int, ...]) -> Array:
    """Return the values with the axes of a block behind those of the image."""
    n, _, *image = padded.shape
    blocks = padded.reshape(n, *fold, -1, *image)
    channel_axis = 1 + len(fold)
    image_and_fold_axes = [
        axis for number in range(len(image)) for axis in (channel_axis + 1 + number, 1 + number)
    ]
    return np.asarray(blocks.transpose(0, channel_axis, *image_and_fold_axes))


@computes(declarations.FILTER, dtypes=_DTYPES, same_dtype=("y",), why_refused=never_refused)
def extend_filter(
    x: Array, source: FilterSpec, target: FilterSpec, transform: TensorTransformSpec
) -> Array:
    """`cudnnTransformFilter`: return a filter padded and folded, or unfolded."""
    return np.asarray(extend(x, transform))
