"""Activations, forward and backward."""

from __future__ import annotations

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import ActivationMode
from cudnnlite.operations.layers import graph_activation
from cudnnlite.operations.layers.graph_activation import (
    activation_plan,
    graph_name,
    request_by_graph,
)
from cudnnlite.plans.function import operation
from cudnnlite.plans.request import Request
from cudnnlite.problems.activation import BACKWARD, FORWARD
from cudnnlite.specs.layers import ActivationSpec
from cudnnlite.specs.names import ActivationModeName, GraphActivationName


@operation
def activation_forward(
    handle: Handle,
    x: Operand,
    activation: ActivationSpec | ActivationMode | ActivationModeName | GraphActivationName,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Apply a function to each value: sigmoid, relu, tanh, clipped relu, elu, swish, GELU, ...

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    x : device array
        ``(N, C, *spatial)``; float32, float64, float16 or bfloat16.
    activation : ActivationSpec, ActivationMode or str
        The function; a name stands for the spec with the usual coefficient.  "leaky_relu" (with
        the slope 0.01), "gelu", "gelu_tanh" and "softplus" are graphs: of float32, float16 or
        bfloat16, any shape without gaps, no `alpha` and `beta`, and `out` is not `x`.
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
    C functions: `cudnnActivationForward`, deprecated since cuDNN 9.0.0, still shipped and working;
    or `cudnnBackendExecute`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array([[-1.0, 0.0, 2.0, 9.0]], dtype="float32")
    ...     print(dnn.activation_forward(handle, x, "relu").numpy())
    ...     relu6 = dnn.ActivationSpec("clipped_relu", 6)
    ...     print(dnn.activation_forward(handle, x, relu6, out=x).numpy())
    ...     print(dnn.activation_forward(handle, x, "gelu_tanh").numpy().round(3))
    [[0. 0. 2. 9.]]
    [[0. 0. 2. 6.]]
    [[0.    0.    1.955 6.   ]]
    """
    name = graph_name(activation)
    if name is not None:
        declaration = graph_activation.FORWARD[name]
        return request_by_graph(handle, declaration, (x,), alpha, beta, out)
    return Request(
        handle, FORWARD, (x,), (activation,), alpha, beta, out, plan_problem=activation_plan
    )


@operation
def activation_backward(
    handle: Handle,
    y: Operand,
    dy: Operand,
    x: Operand,
    activation: ActivationSpec | ActivationMode | ActivationModeName | GraphActivationName,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Compute the gradient of an activation's input.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    y, dy, x : device arrays
        The forward call's result, the gradient of that result, and the forward call's input.
    activation : ActivationSpec, ActivationMode or str
        As in `activation_forward`.
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
    C functions: `cudnnActivationBackward`, deprecated since cuDNN 9.0.0, still shipped and working;
    or `cudnnBackendExecute`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array([[-1.0, 0.5]], dtype="float32")
    ...     y = dnn.activation_forward(handle, x, "relu")
    ...     dy = handle.array([[3.0, 4.5]], dtype="float32")
    ...     print(dnn.activation_backward(handle, y, dy, x, "relu").numpy())
    [[0.  4.5]]
    """
    name = graph_name(activation)
    if name is not None:
        declaration = graph_activation.BACKWARD[name]
        return request_by_graph(handle, declaration, (y, dy, x), alpha, beta, out)
    return Request(
        handle, BACKWARD, (y, dy, x), (activation,), alpha, beta, out, plan_problem=activation_plan
    )
