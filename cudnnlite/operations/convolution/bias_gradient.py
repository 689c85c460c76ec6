"""The gradient of a bias."""

from __future__ import annotations

from cudnnlite.devices.foreign import AnyArray
from cudnnlite.plans.family import DeviceArray, Handle, call, documented
from cudnnlite.problems.convolution_bias import BACKWARD


@documented(BACKWARD, "``(1, C, 1, ...)``")
def convolution_backward_bias(
    handle: Handle,
    dy: AnyArray,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Compute the gradient of a bias, which is the sum over images and positions, and zero for an empty batch.

    Parameters
    ----------
    dy : device array
        The gradient of what the bias was added to, ``(N, C, *spatial)``; float32, float64 or float16; cuDNN
        refuses bfloat16 (seen on an H200), which `transform_tensor` converts.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     dy = handle.array(np.ones((2, 3, 4, 5), np.float32))
    ...     print(dnn.convolution_backward_bias(handle, dy).numpy().ravel())
    [40. 40. 40.]
    """
    return call(handle, BACKWARD, (dy,), (), alpha, beta, out)
