"""Emulated spatial transformers, and their descriptors."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from cudnnlite.emulated.descriptor_state import destroy_descriptor, store_state
from cudnnlite.emulated.operation_call import Array, computes, never_refused
from cudnnlite.emulated.registry import bad_parameter, emulates
from cudnnlite.enums import DataType, Status
from cudnnlite.problems import spatial_transformer as declarations
from cudnnlite.specs.layers import SpatialTransformerSpec

_RANKS = (3, 4)


@emulates("cudnnSetSpatialTransformerNdDescriptor")
def set_descriptor(c_call: SimpleNamespace) -> None:
    """`cudnnSetSpatialTransformerNdDescriptor`: set a descriptor; there is one sampler."""
    if c_call.samplerType:
        raise bad_parameter(f"samplerType={c_call.samplerType}; allowed: 0")
    shape = c_call.dimA[: c_call.nbDims]
    dtype = DataType(c_call.dataType)
    store_state(c_call.api, c_call.stDesc, SpatialTransformerSpec, shape, dtype)


@emulates("cudnnDestroySpatialTransformerDescriptor")
def destroy(c_call: SimpleNamespace) -> None:
    """`cudnnDestroySpatialTransformerDescriptor`: destroy a descriptor and its state."""
    destroy_descriptor(c_call, "cudnnDestroySpatialTransformerDescriptor")


def _points(transformer: SpatialTransformerSpec, dtype: Any) -> Array:
    """Return (x, y, 1) of each point before it is moved."""
    height, width = (np.linspace(-1, 1, size, dtype=dtype) for size in transformer.shape[2:])
    ones = np.ones(transformer.shape[2:], dtype)
    return np.stack([*np.meshgrid(width, height), ones], axis=-1)


class _Corner(NamedTuple):
    """One of the four pixels around each point."""

    pixels: tuple[Any, ...]  # an index into the images
    is_inside: Array
    weight: Array  # 0, or NaN of one that is infinite, where the pixel is outside the image
    slopes: tuple[Array, Array]  # of the weight, along x and y


def _corners(grid: Array, shape: tuple[int, ...]) -> Iterator[_Corner]:
    """Yield the four pixels around each point."""
    height, width = shape[2:]
    batch = np.arange(len(grid))[:, None, None]
    x = (grid[..., 0] + 1) / 2 * (width - 1)
    y = (grid[..., 1] + 1) / 2 * (height - 1)
    x_floor, y_floor = _whole(x), _whole(y)
    for right in (0, 1):
        for below in (0, 1):
            column = x_floor + right
            row = y_floor + below
            x_weight = 1 - np.abs(x - x_floor - right)
            y_weight = 1 - np.abs(y - y_floor - below)
            is_inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            pixels = (np.where(is_inside, place, 0).astype(int) for place in (row, column))
            x_sign = 2 * right - 1
            y_sign = 2 * below - 1
            yield _Corner(
                (batch, slice(None), *pixels),
                is_inside,
                x_weight * y_weight * is_inside,
                (x_sign * y_weight * is_inside, y_sign * x_weight * is_inside),
            )


def _whole(values: Array) -> Array:
    """Return values rounded down, as an H200 converts them to int32.

    Large ones are clipped; NaN is 0 of float32, and the lowest number of float64.
    """
    limits = np.iinfo(np.int32)
    nan = 0 if values.dtype == np.float32 else limits.min
    rounded = np.floor(np.nan_to_num(values, nan=nan))
    return np.asarray(np.clip(rounded, limits.min, limits.max))


# An H200 took images of all layouts beside each other, in each of the four operations.


@computes(declarations.GRID, ranks=_RANKS, why_refused=never_refused)
def grid(theta: Array, transformer: SpatialTransformerSpec) -> Array:
    """`cudnnSpatialTfGridGeneratorForward`: return the points."""
    points = _points(transformer, theta.dtype)
    return np.asarray(np.einsum("hwk,njk->nhwj", points, theta))


@computes(declarations.GRID_BACKWARD, ranks=_RANKS, why_refused=never_refused)
def grid_backward(dgrid: Array, transformer: SpatialTransformerSpec) -> Array:
    """`cudnnSpatialTfGridGeneratorBackward`: return the gradient of the matrices."""
    points = _points(transformer, dgrid.dtype)
    return np.asarray(np.einsum("hwk,nhwj->njk", points, dgrid))


@computes(
    declarations.SAMPLE,
    ranks=_RANKS,
    why_refused=never_refused,
    refusal_status=Status.NOT_SUPPORTED,
)
def sample(x: Array, grid: Array, transformer: SpatialTransformerSpec) -> Array:
    """`cudnnSpatialTfSamplerForward`: return the images' values at the points."""
    corners = _corners(grid, x.shape)
    values = sum(x[corner.pixels] * corner.weight[..., None] for corner in corners)
    return np.moveaxis(np.asarray(values), -1, 1)


@computes(
    declarations.SAMPLE_BACKWARD,
    ranks=_RANKS,
    why_refused=never_refused,
    refusal_status=Status.NOT_SUPPORTED,
)
def sample_backward(
    x: Array, grid: Array, dy: Array, transformer: SpatialTransformerSpec
) -> tuple[Array, Array]:
    """`cudnnSpatialTfSamplerBackward`: return the gradients of the images and of the points."""
    dx = np.zeros_like(x)
    dgrid = np.zeros_like(grid)
    channels_last = np.moveaxis(dy, 1, -1)
    for corner in _corners(grid, x.shape):
        weight = np.where(corner.is_inside, corner.weight, 0)
        np.add.at(dx, corner.pixels, channels_last * weight[..., None])
        products = (x[corner.pixels] * channels_last).sum(-1)
        for axis, slope in enumerate(corner.slopes):
            dgrid[..., axis] += products * slope * (x.shape[3 - axis] - 1) / 2
    return dx, dgrid
