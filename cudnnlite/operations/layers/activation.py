"""Activations, forward and backward."""

from __future__ import annotations

from cudnnlite.devices.foreign import AnyArray
from cudnnlite.enums import ActivationMode
from cudnnlite.plans.family import (
    DeviceArray,
    Handle,
    call,
    documented,
)
from cudnnlite.problems.activation import BACKWARD, FORWARD
from cudnnlite.specs.layers import ActivationSpec


@documented(FORWARD, "shaped as `x`")
def activation_forward(
    handle: Handle,
    x: AnyArray,
    activation: ActivationSpec | ActivationMode | str,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Apply a function to each value: sigmoid, relu, tanh, clipped relu, elu or swish.

    Parameters
    ----------
    x : device array
        ``(N, C, *spatial)``; float32, float64, float16 or bfloat16.
    activation : ActivationSpec, ActivationMode or str
        Which one; a name stands for the spec with its usual coefficient.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array([[-1.0, 0.0, 2.0, 9.0]], dtype="float32")
    ...     print(dnn.activation_forward(handle, x, "relu").numpy())
    ...     print(dnn.activation_forward(handle, x, dnn.ActivationSpec("clipped_relu", 6), out=x).numpy())
    [[0. 0. 2. 9.]]
    [[0. 0. 2. 6.]]
    """
    return call(handle, FORWARD, (x,), (activation,), alpha, beta, out)


@documented(BACKWARD, "shaped as `x`")
def activation_backward(
    handle: Handle,
    y: AnyArray,
    dy: AnyArray,
    x: AnyArray,
    activation: ActivationSpec | ActivationMode | str,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Compute the gradient of an activation's input.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array([[-1.0, 0.5]], dtype="float32")
    ...     y = dnn.activation_forward(handle, x, "relu")
    ...     print(dnn.activation_backward(handle, y, handle.array(x.numpy() + 4), x, "relu").numpy())
    [[0.  4.5]]
    """
    return call(handle, BACKWARD, (y, dy, x), (activation,), alpha, beta, out)
