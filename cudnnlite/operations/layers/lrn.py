"""Local response normalisation across channels, and divisive normalisation over positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.plans.function import operation
from cudnnlite.plans.request import Request
from cudnnlite.problems.lrn import (
    BACKWARD,
    DIVISIVE,
    DIVISIVE_AROUND,
    DIVISIVE_AROUND_BACKWARD,
    DIVISIVE_BACKWARD,
    FORWARD,
)
from cudnnlite.specs.layers import LRNSpec


@operation
def lrn_forward(
    handle: Handle,
    x: Operand,
    norm: LRNSpec,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Divide each value by a norm of the values in the channels around it.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    x : device array
        ``(N, C, *spatial)``; float32, float64 or float16; cuDNN refuses bfloat16 (seen on an H200).
    norm : LRNSpec
        The number of channels, and the numbers of the formula.
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
    C functions: `cudnnLRNCrossChannelForward`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.array([1, 2, 3], np.float32).reshape(1, 3, 1, 1))
    ...     y = dnn.lrn_forward(handle, x, dnn.LRNSpec(3, alpha=3, beta=1, k=1))
    ...     print(y.numpy().ravel().round(4))
    [0.1667 0.1333 0.2143]
    """
    return Request(handle, FORWARD, (x,), (norm,), alpha, beta, out)


@operation
def lrn_backward(
    handle: Handle,
    y: Operand,
    dy: Operand,
    x: Operand,
    norm: LRNSpec,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Compute the gradient of a normalisation's input.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    y, dy, x : device arrays
        The forward call's result, the gradient of that result, and the forward call's input.
    norm : LRNSpec
        As in `lrn_forward`.
    alpha, beta : float
        Host scalars: dx = alpha * result + beta * dx.  With beta = 0 `out` is not read.
    out : device array, optional
        dx, written in place; a new array if not given.  It may be `dy` itself.

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
    C functions: `cudnnLRNCrossChannelBackward`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 1, 1, 1), np.float32))
    ...     norm = dnn.LRNSpec(1, alpha=1, beta=1, k=1)
    ...     y = dnn.lrn_forward(handle, x, norm)
    ...     print(dnn.lrn_backward(handle, y, x, x, norm).numpy().ravel())
    [0.]
    """
    return Request(handle, BACKWARD, (y, dy, x), (norm,), alpha, beta, out)


@operation
def divisive_normalization_forward(
    handle: Handle,
    x: Operand,
    norm: LRNSpec,
    *,
    means: Operand | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Divide each value by a norm of the values around it in its channel.

    ``y = x / (k + alpha / n ** d * sum((x' - mean) ** 2)) ** beta``.  The sum is over the values x'
    in a window around x, without those outside of the image.  The window has `n` positions along
    each of the d spatial axes, ``(n - 1) // 2`` of them before x.  With one spatial axis, d is 2.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    x : device array
        ``(N, C, *spatial)``; float32, float64 or float16.
    norm : LRNSpec
        The window, and the numbers of the formula.
    means : device array, optional
        Shaped as `x`: for each value, the mean that is subtracted in its window, as computed by the
        caller; 0 if not given.
    alpha, beta : float
        Host scalars: y = alpha * result + beta * y.  With beta = 0 `out` is not read.
    out : device array, optional
        y, written in place; a new array if not given.

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
    C functions: `cudnnDivisiveNormalizationForward`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.full((1, 1, 3, 3), 3, np.float32))
    ...     norm = dnn.LRNSpec(3, alpha=1, beta=0.5, k=1)
    ...     print(dnn.divisive_normalization_forward(handle, x, norm, means=x).numpy()[0, 0, 0])
    [3. 3. 3.]
    """
    if means is None:
        return Request(handle, DIVISIVE, (x,), (norm,), alpha, beta, out)
    return Request(handle, DIVISIVE_AROUND, (x, means), (norm,), alpha, beta, out)


@operation
def divisive_normalization_backward(
    handle: Handle,
    x: Operand,
    dy: Operand,
    norm: LRNSpec,
    *,
    means: Operand | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | Sequence[AnyArray] | None = None,
) -> Request[Any]:
    """Compute the gradients of a divisive normalisation's input and of its means.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    x, dy : device arrays
        The forward call's input, and the gradient of its result.
    norm : LRNSpec
        As in `divisive_normalization_forward`, but with an odd `n`: for an even one cuDNN 9.19
        computes a wrong gradient.
    means : device array, optional
        As in the forward call.
    alpha, beta : float
        Host scalars: dx = alpha * result + beta * dx.  With beta = 0 `out` is not read.
    out : device array, or tuple of device arrays, optional
        dx, written in place; with `means`, dx and dmeans.  New arrays if not given.

    Returns
    -------
    DeviceArray, or tuple of DeviceArray
        dx, shaped as `x`; with `means`, dx and dmeans.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnDivisiveNormalizationBackward`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 1, 1, 1), np.float32))
    ...     norm = dnn.LRNSpec(1, alpha=1, beta=1, k=1)
    ...     print(dnn.divisive_normalization_backward(handle, x, x, norm).numpy().ravel())
    [0.]
    """
    if means is None:
        return Request(handle, DIVISIVE_BACKWARD, (x, dy), (norm,), alpha, beta, out)
    return Request(handle, DIVISIVE_AROUND_BACKWARD, (x, dy, means), (norm,), alpha, beta, out)
