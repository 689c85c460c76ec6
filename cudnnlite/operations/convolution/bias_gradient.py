"""The gradient of a bias."""

from __future__ import annotations

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.plans.function import operation
from cudnnlite.plans.request import Request
from cudnnlite.problems.convolution_bias import BACKWARD


@operation
def convolution_backward_bias(
    handle: Handle,
    dy: Operand,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Compute the gradient of a bias: the sum of dy over images and positions.

    The gradient of an empty batch is zero.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    dy : device array
        The gradient of the sum that has the bias in it, ``(N, C, *spatial)``; float32, float64 or
        float16.  cuDNN refuses bfloat16 (seen on an H200); `transform_tensor` converts it.
    alpha, beta : float
        Host scalars: db = alpha * result + beta * db.  With beta = 0 `out` is not read.
    out : device array, optional
        db, written in place; a new array if not given.

    Returns
    -------
    DeviceArray
        db, ``(1, C, 1, ...)``.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnConvolutionBackwardBias`, deprecated since cuDNN 9.0.0, still shipped and
    working.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     dy = handle.array(np.ones((2, 3, 4, 5), np.float32))
    ...     print(dnn.convolution_backward_bias(handle, dy).numpy().ravel())
    [40. 40. 40.]
    """
    return Request(handle, BACKWARD, (dy,), (), alpha, beta, out)
