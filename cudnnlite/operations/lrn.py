"""Local response normalisation, forward and backward."""

from __future__ import annotations

from typing import Any

from cudnnlite._raw.enums import LRNMode
from cudnnlite.operations.family import DeviceArray, Handle, Operation, call, check_alike, documented, gradient_of
from cudnnlite.specs.lrn import LRNSpec

_MODE = {"lrnMode": LRNMode.CROSS_CHANNEL_DIM1}  # the only one
FORWARD = Operation(
    "lrn_forward", "cudnnLRNCrossChannelForward", ("x",), ("y",), lambda x, **_: x, {"norm": LRNSpec},
    check=check_alike, constants=_MODE,
)  # fmt: skip
BACKWARD = gradient_of(FORWARD, "cudnnLRNCrossChannelBackward", ("y", "dy", "x"), constants=_MODE)


@documented(FORWARD, "shaped as `x`")
def lrn_forward(
    handle: Handle, x: Any, norm: LRNSpec, *, alpha: float = 1.0, beta: float = 0.0, out: Any = None
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
    handle: Handle, y: Any, dy: Any, x: Any, norm: LRNSpec, *, alpha: float = 1.0, beta: float = 0.0, out: Any = None
) -> DeviceArray:
    """Compute the gradient of a normalisation's input.

    Parameters
    ----------
    y, dy, x : device arrays
        What the forward call returned, the gradient of that, and what it was given.
    norm : LRNSpec
        As in `lrn_forward`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x, norm = handle.array(np.ones((1, 1, 1, 1), np.float32)), dnn.LRNSpec(1, alpha=1, beta=1, k=1)
    ...     y = dnn.lrn_forward(handle, x, norm)
    ...     print(dnn.lrn_backward(handle, y, x, x, norm).numpy().ravel())
    [0.]
    """
    return call(handle, BACKWARD, (y, dy, x), (norm,), alpha, beta, out)
