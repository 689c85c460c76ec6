"""Emulated spatial transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cudnnlite.emulated.operation import Array, computes
from cudnnlite.enums import Status
from cudnnlite.specs.layers import SpatialTransformerSpec


def _transforms(way: str, refused: Status = Status.BAD_PARAM) -> Callable[..., Any]:
    """Register one of the four operations; an H200 took images of all layouts beside each other."""
    return computes(
        f"spatial_transformer_{way}",
        ranks=(3, 4),
        refuse=lambda specs, options: "",
        refused=refused,
    )


def _base(transformer: SpatialTransformerSpec, dtype: Any) -> Array:
    """Return (x, y, 1) of each point before it is moved."""
    height, width = (np.linspace(-1, 1, size, dtype=dtype) for size in transformer.shape[2:])
    return np.stack([*np.meshgrid(width, height), np.ones(transformer.shape[2:], dtype)], axis=-1)


def _corners(grid: Array, shape: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield, of the four pixels around each point: indices, weights, and the weights' slopes; 0 for those outside."""
    places = [(grid[..., axis] + 1) / 2 * (size - 1) for axis, size in enumerate(shape[:1:-1])]
    lows = [np.floor(place) for place in places]
    for right in (0, 1):
        for below in (0, 1):
            sides = zip(lows, places, (right, below), strict=True)
            (w, u), (h, v) = (
                (low + step, 1 - np.abs(place - low - step)) for low, place, step in sides
            )
            inside = (w >= 0) & (w < shape[3]) & (h >= 0) & (h < shape[2])
            at = tuple(np.where(inside, index, 0).astype(int) for index in (h, w))
            signs = (2 * right - 1, 2 * below - 1)
            batch = np.arange(len(grid))[:, None, None]
            yield (
                (batch, slice(None), *at),
                u * v * inside,
                (signs[0] * v * inside, signs[1] * u * inside),
            )


@_transforms("grid")
def grid(theta: Array, transformer: SpatialTransformerSpec) -> Array:
    """Return the points."""
    return np.asarray(np.einsum("hwk,njk->nhwj", _base(transformer, theta.dtype), theta))


@_transforms("grid_backward")
def grid_backward(dgrid: Array, transformer: SpatialTransformerSpec) -> Array:
    """Return the gradient of the matrices."""
    return np.asarray(np.einsum("hwk,nhwj->njk", _base(transformer, dgrid.dtype), dgrid))


@_transforms("sample", Status.NOT_SUPPORTED)
def sample(x: Array, grid: Array, transformer: SpatialTransformerSpec) -> Array:
    """Return what lies at the points."""
    found = sum(x[at] * weight[..., None] for at, weight, _ in _corners(grid, x.shape))
    return np.moveaxis(np.asarray(found), -1, 1)


@_transforms("sample_backward", Status.NOT_SUPPORTED)
def sample_backward(
    x: Array, grid: Array, dy: Array, transformer: SpatialTransformerSpec
) -> tuple[Array, ...]:
    """Return the gradients of the images and of the points."""
    dx, dgrid = np.zeros_like(x), np.zeros_like(grid)
    last = np.moveaxis(dy, 1, -1)
    for at, weight, slopes in _corners(grid, x.shape):
        np.add.at(dx, at, last * weight[..., None])
        along = (x[at] * last).sum(-1)
        for axis, slope in enumerate(slopes):
            dgrid[..., axis] += along * slope * (x.shape[3 - axis] - 1) / 2
    return dx, dgrid
