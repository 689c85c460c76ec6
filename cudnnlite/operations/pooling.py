"""Pooling, forward and backward."""

from __future__ import annotations

from typing import Any

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.operations.call import call
from cudnnlite.operations.documented import documented
from cudnnlite.operations.operation import Operation
from cudnnlite.specs import PoolingSpec, TensorSpec
from cudnnlite.specs.checks import check_same_shapes


def _input(y: TensorSpec, dy: TensorSpec, x: TensorSpec, pooling: PoolingSpec) -> TensorSpec:
    check_same_shapes(pooling.output_spec(x), y=y, dy=dy)
    return x


_OPTIONS = {"pooling": PoolingSpec}
FORWARD = Operation(
    "pooling_forward", "cudnnPoolingForward", ("x",), ("y",), lambda x, pooling: pooling.output_spec(x), _OPTIONS
)
BACKWARD = Operation("pooling_backward", "cudnnPoolingBackward", ("y", "dy", "x"), ("dx",), _input, _OPTIONS)


@documented(FORWARD, "``(N, C, *pooled)``, of the dtype and layout of `x`")
def pooling_forward(
    handle: Handle, x: Any, pooling: PoolingSpec, *, alpha: float = 1.0, beta: float = 0.0, out: Any = None
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
    return call(handle, FORWARD, (x,), (pooling,), alpha=alpha, beta=beta, out=out)


@documented(BACKWARD, "shaped as `x`")
def pooling_backward(
    handle: Handle,
    y: Any,
    dy: Any,
    x: Any,
    pooling: PoolingSpec,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
) -> DeviceArray:
    """Compute the gradient of a pooling's input; of equal maxima in a window the first has it.

    Parameters
    ----------
    y, dy, x : device arrays
        What the forward call returned, the gradient of that, and what it was given.
    pooling : PoolingSpec
        As in `pooling_forward`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x, pooling = handle.array(np.arange(4.0, dtype=np.float32).reshape(1, 1, 2, 2)), dnn.PoolingSpec(2)
    ...     y = dnn.pooling_forward(handle, x, pooling)
    ...     print(dnn.pooling_backward(handle, y, y, x, pooling).numpy().ravel())
    [0. 0. 0. 3.]
    """
    return call(handle, BACKWARD, (y, dy, x), (pooling,), alpha=alpha, beta=beta, out=out)
