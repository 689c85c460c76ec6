"""Local response normalisation across channels, and divisive normalisation over positions; forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cudnnlite.devices.foreign import AnyArray
from cudnnlite.plans.family import (
    DeviceArray,
    Handle,
    call,
    documented,
)
from cudnnlite.problems.lrn import (
    BACKWARD,
    DIVISIVE,
    DIVISIVE_AROUND,
    DIVISIVE_AROUND_BACKWARD,
    DIVISIVE_BACKWARD,
    FORWARD,
)
from cudnnlite.specs.layers import LRNSpec


@documented(FORWARD, "shaped as `x`")
def lrn_forward(
    handle: Handle,
    x: AnyArray,
    norm: LRNSpec,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Divide each value by those of the channels around it.

    Parameters
    ----------
    x : device array
        ``(N, C, *spatial)``; float32, float64 or float16; cuDNN refuses bfloat16 (seen on an H200).
    norm : LRNSpec
        How many channels, and the numbers of the formula.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.array([1, 2, 3], np.float32).reshape(1, 3, 1, 1))
    ...     print(dnn.lrn_forward(handle, x, dnn.LRNSpec(3, alpha=3, beta=1, k=1)).numpy().ravel().round(4))
    [0.1667 0.1333 0.2143]
    """
    return call(handle, FORWARD, (x,), (norm,), alpha, beta, out)


@documented(BACKWARD, "shaped as `x`")
def lrn_backward(
    handle: Handle,
    y: AnyArray,
    dy: AnyArray,
    x: AnyArray,
    norm: LRNSpec,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Compute the gradient of a normalisation's input.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x, norm = handle.array(np.ones((1, 1, 1, 1), np.float32)), dnn.LRNSpec(1, alpha=1, beta=1, k=1)
    ...     y = dnn.lrn_forward(handle, x, norm)
    ...     print(dnn.lrn_backward(handle, y, x, x, norm).numpy().ravel())
    [0.]
    """
    return call(handle, BACKWARD, (y, dy, x), (norm,), alpha, beta, out)


@documented(DIVISIVE, "shaped as `x`")
def divisive_normalization_forward(
    handle: Handle,
    x: AnyArray,
    norm: LRNSpec,
    *,
    means: AnyArray | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Divide each value by those of the positions around it, in its own channel.

    ``y = x / (k + alpha / n ** d * sum((x' - mean) ** 2)) ** beta``, the sum over the values x' of a window of `n` along each
    of the d spatial axes, ``(n - 1) // 2`` of them before, what lies outside left out; d is 2 where there is one axis.

    Parameters
    ----------
    x : device array
        ``(N, C, *spatial)``; float32, float64 or float16.
    norm : LRNSpec
        The window, and the numbers of the formula.
    means : device array, optional
        Shaped as `x`: what is subtracted in each value's own window, a local mean that you computed; 0 if not given.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.full((1, 1, 3, 3), 3, np.float32))
    ...     norm = dnn.LRNSpec(3, alpha=1, beta=0.5, k=1)
    ...     print(dnn.divisive_normalization_forward(handle, x, norm, means=x).numpy()[0, 0, 0])
    [3. 3. 3.]
    """
    if means is None:
        return call(handle, DIVISIVE, (x,), (norm,), alpha, beta, out)
    return call(handle, DIVISIVE_AROUND, (x, means), (norm,), alpha, beta, out)


@documented(
    DIVISIVE_BACKWARD,
    "shaped as `x`; with `means` given a tuple of dx and dmeans, as `out` is then",
)
def divisive_normalization_backward(
    handle: Handle,
    x: AnyArray,
    dy: AnyArray,
    norm: LRNSpec,
    *,
    means: AnyArray | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | Sequence[AnyArray] | None = None,
) -> Any:
    """Compute the gradients of a divisive normalisation's input, and of its means.

    Parameters
    ----------
    x, dy : device arrays
        What the forward call was given, and the gradient of what it returned.
    norm : LRNSpec
        As in `divisive_normalization_forward`, but with an odd `n`: where it is even cuDNN 9.19 computes a wrong gradient.
    means : device array, optional
        As in the forward call.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x, norm = handle.array(np.ones((1, 1, 1, 1), np.float32)), dnn.LRNSpec(1, alpha=1, beta=1, k=1)
    ...     print(dnn.divisive_normalization_backward(handle, x, x, norm).numpy().ravel())
    [0.]
    """
    if means is None:
        return call(handle, DIVISIVE_BACKWARD, (x, dy), (norm,), alpha, beta, out)
    return call(handle, DIVISIVE_AROUND_BACKWARD, (x, dy, means), (norm,), alpha, beta, out)
