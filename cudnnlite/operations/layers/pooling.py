"""Pooling, forward and backward."""

from __future__ import annotations

from cudnnlite.devices.foreign import AnyArray
from cudnnlite.plans.family import DeviceArray, Handle, call, documented
from cudnnlite.problems.pooling import BACKWARD, FORWARD
from cudnnlite.specs.layers import PoolingSpec


@documented(
    FORWARD, "``(N, C, *pooled)``, of the dtype and layout of `x`, channels first if that has gaps"
)
def pooling_forward(
    handle: Handle,
    x: AnyArray,
    pooling: PoolingSpec,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Pool images: the maximum or the average of each window.

    Parameters
    ----------
    x : device array
        The images, ``(N, C, *spatial)`` with 1 to 3 spatial axes; float32, float64, float16 or bfloat16.
    pooling : PoolingSpec
        Window, padding, stride, mode.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.arange(16.0, dtype=np.float32).reshape(1, 1, 4, 4))
    ...     print(dnn.pooling_forward(handle, x, dnn.PoolingSpec(2)).numpy().ravel())
    [ 5.  7. 13. 15.]
    """
    return call(handle, FORWARD, (x,), (pooling,), alpha, beta, out)


@documented(BACKWARD, "shaped as `x`")
def pooling_backward(
    handle: Handle,
    y: AnyArray,
    dy: AnyArray,
    x: AnyArray,
    pooling: PoolingSpec,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Compute the gradient of a pooling's input; of equal maxima in a window the first has it.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x, pooling = handle.array(np.arange(4.0, dtype=np.float32).reshape(1, 1, 2, 2)), dnn.PoolingSpec(2)
    ...     y = dnn.pooling_forward(handle, x, pooling)
    ...     print(dnn.pooling_backward(handle, y, y, x, pooling).numpy().ravel())
    [0. 0. 0. 3.]
    """
    return call(handle, BACKWARD, (y, dy, x), (pooling,), alpha, beta, out)
