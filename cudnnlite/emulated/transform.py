"""Emulated conversion of tensors from one layout to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cudnnlite._raw.enums import FoldingDirection
from cudnnlite.emulated.operation import computes
from cudnnlite.enums import DataType, Status
from cudnnlite.operations.operation import FLOATS
from cudnnlite.specs import FilterSpec
from cudnnlite.specs.layers import TensorTransformSpec
from cudnnlite.specs.layout import CHANNELS_FIRST


def _refused(specs: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Refuse to convert data types but of packed tensors with channels first: of others no H200 was asked."""
    kinds = {spec.dtype for spec in specs.values()}
    packed = all(spec.fits(CHANNELS_FIRST[spec.rank]) for spec in specs.values())
    if len(kinds) == 1 or (packed and kinds <= {*FLOATS} and kinds != {DataType.HALF, DataType.BFLOAT16}):
        return ""
    return f"from {specs['x']} to {specs['y']}"


@computes(
    "transform_tensor", "cudnnTransformTensor", dtypes=(*FLOATS, DataType.INT8), alike=("y",), refuse=_refused,
    refused=Status.NOT_SUPPORTED,
)  # fmt: skip
def transform_tensor(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the values, to be laid out in another way, or stored in another type."""
    return x


@computes(
    "transform_tensor_ex", "cudnnTransformTensorEx", dtypes=(*FLOATS, DataType.INT8), alike=("y",),
    refuse=lambda specs, options: "",
)  # fmt: skip
def transform_extended(x: np.ndarray[Any, Any], transform: TensorTransformSpec) -> np.ndarray[Any, Any]:
    """Return the values padded and folded, or unfolded."""
    padded = np.pad(x, transform.padding)
    n, c, *image = padded.shape
    axes, fold = range(len(image)), transform.fold
    if not fold:
        return np.asarray(padded)
    if transform.direction == FoldingDirection.UNFOLD:
        taken = padded.reshape(n, *fold, -1, *image)
        last = 1 + len(fold)  # where the channels are
        order = (0, last, *(axis for i in axes for axis in (last + 1 + i, 1 + i)))
        return np.asarray(taken.transpose(order).reshape(transform.output_shape(x.shape)))
    blocks = padded.reshape(
        n, c, *(part for size, step in zip(image, fold, strict=True) for part in (size // step, step))
    )
    order = (0, *(3 + 2 * i for i in axes), 1, *(2 + 2 * i for i in axes))
    return np.asarray(blocks.transpose(order).reshape(transform.output_shape(x.shape)))


@computes(
    "transform_filter_ex", "cudnnTransformFilter", dtypes=(*FLOATS, DataType.INT8), alike=("y",),
    refuse=lambda specs, options: "",
)  # fmt: skip
def transform_filter(
    x: np.ndarray[Any, Any], source: FilterSpec, target: FilterSpec, transform: TensorTransformSpec
) -> np.ndarray[Any, Any]:
    """Return the same of a filter."""
    return np.asarray(transform_extended(x, transform))
