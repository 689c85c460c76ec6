"""Pooling, forward and backward."""

from __future__ import annotations

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.operations.layers.pooling_plan import PoolingRequest
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
        instance by `ceil_mode`, a graph pools: x has 1 or 2 spatial axes, and `alpha` and `beta`
        are not taken.
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
    return PoolingRequest(handle, FORWARD, (x,), (pooling,), alpha, beta, out)


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
        As in `pooling_forward`, with padding that is the same at both ends of an axis.
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
    C functions: `cudnnPoolingBackward`, deprecated since cuDNN 9.0.0, still shipped and working.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.arange(4.0, dtype=np.float32).reshape(1, 1, 2, 2))
    ...     pooling = dnn.PoolingSpec(2)
    ...     y = dnn.pooling_forward(handle, x, pooling)
    ...     print(dnn.pooling_backward(handle, y, y, x, pooling).numpy().ravel())
    [0. 0. 0. 3.]
    """
    return Request(handle, BACKWARD, (y, dy, x), (pooling,), alpha, beta, out)
