"""Spatial transformers: grids of points from matrices, samples of images, and both gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cudnnlite.arguments import shown
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.function import operation
from cudnnlite.plans.operands import operand_spec
from cudnnlite.plans.request import Request
from cudnnlite.problems.spatial_transformer import GRID, GRID_BACKWARD, SAMPLE, SAMPLE_BACKWARD
from cudnnlite.specs.layers import SpatialTransformerSpec


def _parse_transformer(
    handle: Handle, transformer: object, array: object, argument: str, grid: object = None
) -> Any:
    """Return the spec of a `transformer` argument.

    If `transformer` is a shape, the data type is that of `array`.  If it is (), the shape is
    ``(N, C, H', W')``, with N and C of `array`, and H' and W' of `grid`.  `argument` is the name of
    `array` in messages.
    """
    if isinstance(transformer, SpatialTransformerSpec):
        return transformer
    if not isinstance(transformer, (tuple, list)):
        raise ArgumentError(
            f"transformer={shown(transformer)} is neither a SpatialTransformerSpec "
            "nor a shape (N, C, H, W)"
        )
    spec = operand_spec(handle, array, argument)
    if transformer == () and grid is not None:
        points = operand_spec(handle, grid, "grid")
        if points.rank != 4 or spec.rank != 4:
            raise ArgumentError(
                f"x has shape {spec.shape}, grid {points.shape}; "
                "needed: (N, C, H, W) and (N, H', W', 2)"
            )
        transformer = (*spec.shape[:2], *points.shape[1:3])
    return SpatialTransformerSpec(transformer, spec.dtype)


@operation
def spatial_transformer_grid(
    handle: Handle,
    theta: Operand,
    transformer: SpatialTransformerSpec | tuple[int, ...],
    *,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Make the grid of points of each image from its matrix.

    PyTorch's `affine_grid` with align_corners does the same.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    theta : device array
        The matrices, ``(N, 2, 3)`` without gaps; float32, float64 or float16.  Each point (x, y, 1)
        of an image is multiplied by its matrix.
    transformer : SpatialTransformerSpec or tuple of int
        The shape of the sampled images, ``(N, C, H, W)``.  If an axis has a single point, the point
        is at -1 (in PyTorch at 0).
    out : device array, optional
        The grid, written in place; a new array if not given.

    Returns
    -------
    DeviceArray
        The grid, ``(N, H, W, 2)``: points (x, y).  The centres of the outermost pixels are at -1
        and 1.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnSpatialTfGridGeneratorForward`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     theta = handle.array(np.array([[[1, 0, 0], [0, 1, 0.5]]], np.float32))
    ...     print(dnn.spatial_transformer_grid(handle, theta, (1, 1, 2, 3)).numpy()[0, 0])
    [[-1.  -0.5]
     [ 0.  -0.5]
     [ 1.  -0.5]]
    """
    return Request(
        handle, GRID, (theta,), (_parse_transformer(handle, transformer, theta, "theta"),), out=out
    )


@operation
def spatial_transformer_grid_backward(
    handle: Handle,
    dgrid: Operand,
    transformer: SpatialTransformerSpec | tuple[int, ...],
    *,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Compute the gradient of the matrices that a grid was made from.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    dgrid : device array
        The gradient of the grid that `spatial_transformer_grid` returned, without gaps.
    transformer : SpatialTransformerSpec or tuple of int
        As in `spatial_transformer_grid`.
    out : device array, optional
        dtheta, written in place; a new array if not given.

    Returns
    -------
    DeviceArray
        dtheta, of shape ``(N, 2, 3)``.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnSpatialTfGridGeneratorBackward`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     dgrid = handle.array(np.ones((1, 2, 3, 2), np.float32))
    ...     print(dnn.spatial_transformer_grid_backward(handle, dgrid, (1, 1, 2, 3)).numpy()[0])
    [[0. 0. 6.]
     [0. 0. 6.]]
    """
    return Request(
        handle,
        GRID_BACKWARD,
        (dgrid,),
        (_parse_transformer(handle, transformer, dgrid, "dgrid"),),
        out=out,
    )


@operation
def spatial_transformer_sample(
    handle: Handle,
    x: Operand,
    grid: Operand,
    transformer: SpatialTransformerSpec | tuple[int, ...] = (),
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Sample images at the points of a grid, bilinearly.

    PyTorch's `grid_sample` with align_corners does the same.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    x : device array
        The images, ``(N, C, H, W)``; float32, float64 or float16.  Outside of an image, values are
        0.
    grid : device array
        The points, ``(N, H', W', 2)`` without gaps, as `spatial_transformer_grid` returns them.
    transformer : SpatialTransformerSpec or tuple of int, optional
        The shape of the sampled images, ``(N, C, H', W')``.  The default is taken from the shapes
        of `x` and `grid`.
    alpha, beta : float
        Host scalars: y = alpha * result + beta * y.  With beta = 0 `out` is not read.
    out : device array, optional
        y, written in place; a new array if not given.

    Returns
    -------
    DeviceArray
        y, of shape ``(N, C, H', W')``.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnSpatialTfSamplerForward`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3))
    ...     theta = handle.array(np.array([[[-1, 0, 0], [0, 1, 0]]], np.float32))  # a mirror
    ...     grid = dnn.spatial_transformer_grid(handle, theta, x.shape)
    ...     print(dnn.spatial_transformer_sample(handle, x, grid).numpy()[0, 0])
    [[2. 1. 0.]
     [5. 4. 3.]]
    """
    return Request(
        handle,
        SAMPLE,
        (x, grid),
        (_parse_transformer(handle, transformer, x, "x", grid),),
        alpha,
        beta,
        out,
    )


@operation
def spatial_transformer_sample_backward(
    handle: Handle,
    x: Operand,
    grid: Operand,
    dy: Operand,
    transformer: SpatialTransformerSpec | tuple[int, ...] = (),
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    alpha_dgrid: float | None = None,
    beta_dgrid: float | None = None,
    out: Sequence[AnyArray] | None = None,
) -> Request[tuple[DeviceArray, ...]]:
    """Compute the gradients of `spatial_transformer_sample` with respect to its images and grid.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    x, grid, dy : device arrays
        The forward call's images and grid, and the gradient of its result.
    transformer : SpatialTransformerSpec or tuple of int, optional
        As in `spatial_transformer_sample`.
    alpha, beta : float
        Host scalars: dx = alpha * result + beta * dx.  With beta = 0 `out[0]` is not read.
    alpha_dgrid, beta_dgrid : float, optional
        The same of dgrid, C's `alphaDgrid` and `betaDgrid`.  With beta_dgrid = 0 `out[1]` is not
        read.  The defaults are the values of `alpha` and `beta`.
    out : tuple of device arrays, optional
        dx and dgrid, written in place.  New arrays are made if it is not given, and for an entry
        that is None.

    Returns
    -------
    tuple of DeviceArray
        dx and dgrid, shaped as `x` and as `grid`.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnSpatialTfSamplerBackward`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3))
    ...     grid = handle.array(np.zeros((1, 2, 2, 2), np.float32))  # four points in the middle
    ...     dy = handle.array(np.ones((1, 1, 2, 2), np.float32))
    ...     dx, dgrid = dnn.spatial_transformer_sample_backward(handle, x, grid, dy)
    ...     print(dx.numpy()[0, 0], dgrid.numpy()[0, 0, 0])
    [[0. 2. 0.]
     [0. 2. 0.]] [1.  1.5]
    """
    options = (_parse_transformer(handle, transformer, x, "x", grid),)
    return Request(
        handle,
        SAMPLE_BACKWARD,
        (x, grid, dy),
        options,
        alpha,
        beta,
        out,
        own_scalars={"alpha_dgrid": alpha_dgrid, "beta_dgrid": beta_dgrid},
    )
