"""Spatial transformers: grids of points made from matrices, images sampled there, and the gradients of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cudnnlite.arguments import shown
from cudnnlite.devices.foreign import AnyArray
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.family import DeviceArray, Handle, call, documented
from cudnnlite.plans.operands import on_device, use
from cudnnlite.problems.spatial_transformer import GRID, GRID_BACKWARD, SAMPLE, SAMPLE_BACKWARD
from cudnnlite.specs.layers import SpatialTransformerSpec


def _spec(handle: Handle, transformer: Any, array: Any, argument: str, grid: Any = None) -> Any:
    """Return the spec of a shape, in an array's dtype; that of () is what the images and the grid say."""
    if isinstance(transformer, SpatialTransformerSpec):
        return transformer
    if not isinstance(transformer, (tuple, list)):
        what = "is neither a SpatialTransformerSpec nor a shape (N, C, H, W)"
        raise ArgumentError(f"transformer={shown(transformer)} {what}")
    use(handle)
    spec = on_device(handle, array, argument).spec
    if transformer == () and grid is not None:
        points = on_device(handle, grid, "grid").spec
        if points.rank != 4 or spec.rank != 4:
            needed = "(N, C, H, W) and (N, H', W', 2)"
            raise ArgumentError(f"x has shape {spec.shape}, grid {points.shape}; needed: {needed}")
        transformer = (*spec.shape[:2], *points.shape[1:3])
    return SpatialTransformerSpec(transformer, spec.dtype)


@documented(
    GRID,
    "of shape ``(N, H, W, 2)``: points (x, y), of which -1 and 1 are the centres of the outermost pixels",
)
def spatial_transformer_grid(
    handle: Handle,
    theta: AnyArray,
    transformer: SpatialTransformerSpec | tuple[int, ...],
    *,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Make a grid of points from a matrix for each image; as PyTorch's `affine_grid` with align_corners.

    Parameters
    ----------
    theta : device array
        ``(N, 2, 3)`` without gaps: what (x, y, 1) of each point is multiplied with; float32, float64 or float16.
    transformer : SpatialTransformerSpec or tuple of int
        ``(N, C, H, W)`` of what will be sampled.  Along an axis of one point that lies at -1 (in PyTorch at 0).

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     theta = handle.array(np.array([[[1, 0, 0], [0, 1, 0.5]]], np.float32))
    ...     print(dnn.spatial_transformer_grid(handle, theta, (1, 1, 2, 3)).numpy()[0, 0])
    [[-1.  -0.5]
     [ 0.  -0.5]
     [ 1.  -0.5]]
    """
    return call(handle, GRID, (theta,), (_spec(handle, transformer, theta, "theta"),), out=out)


@documented(GRID_BACKWARD, "of shape ``(N, 2, 3)``")
def spatial_transformer_grid_backward(
    handle: Handle,
    dgrid: AnyArray,
    transformer: SpatialTransformerSpec | tuple[int, ...],
    *,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Compute the gradient of the matrices that a grid was made from.

    Parameters
    ----------
    dgrid : device array
        The gradient of what `spatial_transformer_grid` returned, without gaps.
    transformer : SpatialTransformerSpec or tuple of int
        As there.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     dgrid = handle.array(np.ones((1, 2, 3, 2), np.float32))
    ...     print(dnn.spatial_transformer_grid_backward(handle, dgrid, (1, 1, 2, 3)).numpy()[0])
    [[0. 0. 6.]
     [0. 0. 6.]]
    """
    return call(
        handle, GRID_BACKWARD, (dgrid,), (_spec(handle, transformer, dgrid, "dgrid"),), out=out
    )


@documented(SAMPLE, "of shape ``(N, C, H', W')``")
def spatial_transformer_sample(
    handle: Handle,
    x: AnyArray,
    grid: AnyArray,
    transformer: SpatialTransformerSpec | tuple[int, ...] = (),
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Sample images at the points of a grid, bilinearly; as PyTorch's `grid_sample` with align_corners.

    Parameters
    ----------
    x : device array
        ``(N, C, H, W)``; float32, float64 or float16.  It is 0 outside.
    grid : device array
        ``(N, H', W', 2)`` without gaps, what `spatial_transformer_grid` returns.
    transformer : SpatialTransformerSpec or tuple of int, optional
        ``(N, C, H', W')``; if not given, what `x` and `grid` say.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3))
    ...     theta = handle.array(np.array([[[-1, 0, 0], [0, 1, 0]]], np.float32))  # a mirror
    ...     print(dnn.spatial_transformer_sample(handle, x, dnn.spatial_transformer_grid(handle, theta, x.shape)).numpy()[0, 0])
    [[2. 1. 0.]
     [5. 4. 3.]]
    """
    return call(
        handle, SAMPLE, (x, grid), (_spec(handle, transformer, x, "x", grid),), alpha, beta, out
    )


@documented(SAMPLE_BACKWARD, "shaped as `x` and as `grid`")
def spatial_transformer_sample_backward(
    handle: Handle,
    x: AnyArray,
    grid: AnyArray,
    dy: AnyArray,
    transformer: SpatialTransformerSpec | tuple[int, ...] = (),
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Sequence[AnyArray] | None = None,
) -> tuple[DeviceArray, ...]:
    """Compute the gradients of the images that were sampled, and of the grid.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3))
    ...     grid = handle.array(np.zeros((1, 2, 2, 2), np.float32))  # four times the middle
    ...     dy = handle.array(np.ones((1, 1, 2, 2), np.float32))
    ...     dx, dgrid = dnn.spatial_transformer_sample_backward(handle, x, grid, dy)
    ...     print(dx.numpy()[0, 0], dgrid.numpy()[0, 0, 0])
    [[0. 2. 0.]
     [0. 2. 0.]] [1.  1.5]
    """
    options = (_spec(handle, transformer, x, "x", grid),)
    return call(handle, SAMPLE_BACKWARD, (x, grid, dy), options, alpha, beta, out)  # type: ignore[return-value]
