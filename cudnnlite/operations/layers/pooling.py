"""Pooling, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

from cudnnlite.arguments import instance_of
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.operations.graph.function import GraphRequest, graph_operation
from cudnnlite.operations.layers.pooling_plan import pooling_plan, pooling_with_indices_graph
from cudnnlite.plans.function import operation
from cudnnlite.plans.request import Request
from cudnnlite.problems.pooling import BACKWARD, FORWARD
from cudnnlite.specs.layers import PoolingSpec


@operation
def pooling_forward(
    handle: Handle,
    x: Operand,
    pooling: PoolingSpec,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Pool images: compute the maximum or the average of each window.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    x : device array
        The images, ``(N, C, *spatial)`` with 1 to 3 spatial axes; float32, float64, float16 or
        bfloat16.
    pooling : PoolingSpec
        Window, padding, stride, mode.  Where the padding of an axis differs at its two ends, for
        instance by `ceil_mode`, a graph pools: `alpha` and `beta` are not taken.
    alpha, beta : float
        Host scalars: y = alpha * result + beta * y.  With beta = 0 `out` is not read.
    out : device array, optional
        y, written in place; a new array if not given.

    Returns
    -------
    DeviceArray
        y, ``(N, C, *pooled)``, of the dtype and layout of `x`; with the channels first if `x` has
        gaps.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnPoolingForward`, deprecated since cuDNN 9.0.0, still shipped and working; or
    `cudnnBackendExecute`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.arange(16.0, dtype=np.float32).reshape(1, 1, 4, 4))
    ...     print(dnn.pooling_forward(handle, x, dnn.PoolingSpec(2)).numpy().ravel())
    [ 5.  7. 13. 15.]
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.arange(9.0, dtype=np.float32).reshape(1, 1, 3, 3))
    ...     print(dnn.pooling_forward(handle, x, dnn.PoolingSpec(2, ceil_mode=True)).numpy().ravel())
    [4. 5. 7. 8.]
    """
    return Request(handle, FORWARD, (x,), (pooling,), alpha, beta, out, plan_problem=pooling_plan)


@graph_operation
def pooling_with_indices_forward(
    handle: Handle,
    x: Operand,
    pooling: PoolingSpec,
    *,
    out: Sequence[AnyArray | None] | None = None,
    workspace_limit: int | str | None = None,
) -> GraphRequest[tuple[DeviceArray, DeviceArray]]:
    """Compute the maximum of each window of images, and where it is, asynchronously.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call; it keeps the plan for the next call of the same kind.
    x : device array
        The images, ``(N, C, H, W)`` with the channels last in memory; float32 or float16.
    pooling : PoolingSpec
        Window, padding, stride; its mode is "max" or "max_deterministic".
    out : pair of device arrays, optional
        y and indices, written in place; new arrays if not given.
    workspace_limit : int or str, optional
        Bytes, "64 MiB", or "10%" of the device's memory; the handle's limit if not given.

    Returns
    -------
    tuple of two DeviceArray
        y, ``(N, C, *pooled)``, of the dtype and layout of `x`; and indices, int32, shaped and laid
        out as y.  An index is the place of the maximum within its window, whose values are counted
        row by row from 0, padding included.  The first of several equal maxima counts.  If all
        values of a window are -infinity or the least finite one, -65504 in float16, cuDNN finds no
        maximum: the index says nothing, and may be none of the window.
        `PoolingSpec.flat_indices` makes PyTorch's indices of them, which count within the image.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError
        cuDNN has no engine for these sizes on this device.

    Notes
    -----
    C functions: `cudnnBackendExecute`; for the first call of a kind, also those of
    `BackendDescriptor`.

    Examples
    --------
    >>> pooling = dnn.PoolingSpec(2)
    >>> with dnn.Handle() as handle:
    ...     images = np.array([[0, 1, 5, 4], [3, 2, 6, 7]], np.float32)[None, None]
    ...     x = handle.array(images.repeat(8, 1), layout="NHWC")
    ...     y, indices = dnn.pooling_with_indices_forward(handle, x, pooling)
    ...     print(y.numpy()[0, 0], indices.numpy()[0, 0])
    ...     print(pooling.flat_indices(indices.numpy(), x.shape)[0, 0])
    [[3. 7.]] [[2 3]]
    [[4 7]]
    """
    return GraphRequest(
        handle,
        "pooling_with_indices_forward",
        pooling_with_indices_graph,
        {"x": x},
        {"pooling": instance_of(pooling, PoolingSpec, "pooling")},
        ("y", "indices"),
        out,
        workspace_limit,
    )


@operation
def pooling_backward(
    handle: Handle,
    y: Operand,
    dy: Operand,
    x: Operand,
    pooling: PoolingSpec,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Compute the gradient of a pooling's input.

    If a window has several equal maxima, the first one gets the gradient.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    y, dy, x : device arrays
        The forward call's result, the gradient of that result, and the forward call's input.
    pooling : PoolingSpec
        As in `pooling_forward`.  Where the padding of an axis differs at its two ends, maxima need
        the channels first in memory; averages that count the padding need them last if there is
        more of it behind an axis than before it.
    alpha, beta : float
        Host scalars: dx = alpha * result + beta * dx.  With beta = 0 `out` is not read.
    out : device array, optional
        dx, written in place; a new array if not given.

    Returns
    -------
    DeviceArray
        dx, shaped as `x`.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnPoolingBackward`, deprecated since cuDNN 9.0.0, still shipped and working; or
    `cudnnBackendExecute`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.arange(4.0, dtype=np.float32).reshape(1, 1, 2, 2))
    ...     pooling = dnn.PoolingSpec(2)
    ...     y = dnn.pooling_forward(handle, x, pooling)
    ...     print(dnn.pooling_backward(handle, y, y, x, pooling).numpy().ravel())
    [0. 0. 0. 3.]
    """
    return Request(
        handle, BACKWARD, (y, dy, x), (pooling,), alpha, beta, out, plan_problem=pooling_plan
    )
