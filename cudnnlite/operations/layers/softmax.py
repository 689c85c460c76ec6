"""Softmax, forward and backward."""

from __future__ import annotations

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import SoftmaxAlgorithm, SoftmaxMode
from cudnnlite.plans.function import operation
from cudnnlite.plans.request import Request
from cudnnlite.problems.softmax import BACKWARD, FORWARD
from cudnnlite.specs.names import SoftmaxAlgorithmName, SoftmaxModeName


@operation
def softmax_forward(
    handle: Handle,
    x: Operand,
    *,
    algorithm: SoftmaxAlgorithm | SoftmaxAlgorithmName = SoftmaxAlgorithm.ACCURATE,
    mode: SoftmaxMode | SoftmaxModeName = SoftmaxMode.CHANNEL,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Compute the softmax, or its logarithm.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    x : device array
        ``(N, C, *spatial)``; float32, float64, float16 or bfloat16.
    algorithm : SoftmaxAlgorithm or str
        "accurate": subtracts the largest value first, so that nothing overflows.  "fast": does not
        subtract it.  "log": the logarithm of the softmax.
    mode : SoftmaxMode or str
        "channel": over the channels, at each position of each image.  "instance": over all channels
        and positions of an image.
    alpha, beta : float
        Host scalars: y = alpha * result + beta * y.  With beta = 0 `out` is not read.
    out : device array, optional
        y, written in place; a new array if not given.  It may be `x` itself.

    Returns
    -------
    DeviceArray
        y, shaped as `x`.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnSoftmaxForward`.  In some strides with gaps or with orders of the axes of
    their own, and between some layouts, cuDNN computes wrongly: then the call works on packed copies
    in the workspace, by `cudnnTransformTensor`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.log([[1.0, 2.0, 5.0]]), dtype="float32")
    ...     print(dnn.softmax_forward(handle, x).numpy().round(3))
    [[0.125 0.25  0.625]]
    """
    return Request(handle, FORWARD, (x,), (algorithm, mode), alpha, beta, out)


@operation
def softmax_backward(
    handle: Handle,
    y: Operand,
    dy: Operand,
    *,
    algorithm: SoftmaxAlgorithm | SoftmaxAlgorithmName = SoftmaxAlgorithm.ACCURATE,
    mode: SoftmaxMode | SoftmaxModeName = SoftmaxMode.CHANNEL,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Compute the gradient of a softmax's input from its output.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    y, dy : device arrays
        The forward call's result, and the gradient of that result.
    algorithm, mode
        As in `softmax_forward`.
    alpha, beta : float
        Host scalars: dx = alpha * result + beta * dx.  With beta = 0 `out` is not read.
    out : device array, optional
        dx, written in place; a new array if not given.  It may be `dy` itself.

    Returns
    -------
    DeviceArray
        dx, shaped as `y`.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnSoftmaxBackward`; `cudnnTransformTensor` as in `softmax_forward`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     y = handle.array([[0.25, 0.75]], dtype="float32")
    ...     dy = handle.array([[1.0, 0.0]], dtype="float32")
    ...     print(dnn.softmax_backward(handle, y, dy).numpy())
    [[ 0.1875 -0.1875]]
    """
    return Request(handle, BACKWARD, (y, dy), (algorithm, mode), alpha, beta, out)
