"""Softmax, forward and backward."""

from __future__ import annotations

from cudnnlite.devices.foreign import AnyArray
from cudnnlite.enums import SoftmaxAlgorithm, SoftmaxMode
from cudnnlite.plans.family import (
    DeviceArray,
    Handle,
    call,
    documented,
)
from cudnnlite.problems.softmax import BACKWARD, FORWARD


@documented(FORWARD, "shaped as `x`")
def softmax_forward(
    handle: Handle,
    x: AnyArray,
    *,
    algorithm: SoftmaxAlgorithm | str = SoftmaxAlgorithm.ACCURATE,
    mode: SoftmaxMode | str = SoftmaxMode.CHANNEL,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Compute the softmax, or its logarithm.

    Parameters
    ----------
    x : device array
        ``(N, C, *spatial)``; float32, float64, float16 or bfloat16.
    algorithm : SoftmaxAlgorithm or str
        "accurate" (the largest value is subtracted first, so that nothing overflows), "fast" (it is not), or "log" (the
        logarithm of the softmax).
    mode : SoftmaxMode or str
        "channel": over C, at each position of each image; "instance": over C and all positions of an image.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.log([[1.0, 2.0, 5.0]]), dtype="float32")
    ...     print(dnn.softmax_forward(handle, x).numpy().round(3))
    [[0.125 0.25  0.625]]
    """
    return call(handle, FORWARD, (x,), (algorithm, mode), alpha, beta, out)


@documented(BACKWARD, "shaped as `y`")
def softmax_backward(
    handle: Handle,
    y: AnyArray,
    dy: AnyArray,
    *,
    algorithm: SoftmaxAlgorithm | str = SoftmaxAlgorithm.ACCURATE,
    mode: SoftmaxMode | str = SoftmaxMode.CHANNEL,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Compute the gradient of a softmax's input from its output.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     y = handle.array([[0.25, 0.75]], dtype="float32")
    ...     dy = handle.array([[1.0, 0.0]], dtype="float32")
    ...     print(dnn.softmax_backward(handle, y, dy).numpy())
    [[ 0.1875 -0.1875]]
    """
    return call(handle, BACKWARD, (y, dy), (algorithm, mode), alpha, beta, out)
