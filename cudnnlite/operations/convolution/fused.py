"""Forward convolution with a bias, an addition and an activation, in one kernel where cuDNN has one."""

from __future__ import annotations

from typing import Any

from cudnnlite.arguments import real_number, shown
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import (
    ActivationMode,
    ConvolutionFwdAlgo,
)
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.engines import Engine
from cudnnlite.operations.convolution.function import convolution_operation
from cudnnlite.operations.convolution.request import ConvolutionRequest
from cudnnlite.problems import fused_convolution
from cudnnlite.problems.convolution import DEFAULT_CONV
from cudnnlite.problems.fused_convolution import RELU
from cudnnlite.problems.operation import Operation
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.specs import ConvolutionSpec
from cudnnlite.specs.layers import ActivationSpec


@convolution_operation(fused_convolution.FUSED)
def convolution_bias_activation_forward(
    handle: Handle,
    x: Operand,
    w: Operand,
    bias: Operand,
    conv: ConvolutionSpec = DEFAULT_CONV,
    activation: ActivationSpec | ActivationMode | str = RELU,
    *,
    z: Operand | None = None,
    alpha: float = 1.0,
    alpha2: float | None = None,
    out: AnyArray | None = None,
    algorithm: AlgorithmResult | Engine | ConvolutionFwdAlgo | str | None = None,
    workspace_limit: int | str | None = None,
    interface: str | None = None,
    workspace: AnyArray | None = None,
    replay: bool = False,
) -> ConvolutionRequest:
    """Convolve, add, and apply a function, asynchronously: y = activation(alpha * conv(x, w) + alpha2 * z + bias).

    One kernel does it, without results in between.  With "identity" the descriptor call has
    IMPLICIT_PRECOMP_GEMM only; some combinations neither it nor an engine does: an alpha with an
    activation that engines alone have, for instance, which they do not scale without z.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous, its workspace serves it; it keeps the
        plan for the next one.
    x, w : device arrays
        The images and the filter, as in `convolution_forward`.
    bias : device array
        ``(1, K, 1, ...)``, of the result's data type; float32 beside integers.
    conv : ConvolutionSpec
        Padding, stride, dilation, groups, mode, compute type, math type.
    activation : ActivationSpec, ActivationMode or str
        "relu", "identity"; as engines also "sigmoid", "tanh", "clipped_relu", "elu", and in NHWC
        "swish".  "relu" if not given.
    z : device array, optional
        What is added: of the result's shape and data type, and with its layout.  It may be `out`
        itself.
    alpha, alpha2 : float
        Host scalars.
    out : device array, optional
        y, written in place, any strides without overlap; a new array if not given.
    algorithm : AlgorithmResult, Engine, ConvolutionFwdAlgo or str, optional
        A search's result, an engine of cuDNN's backend, or an algorithm of the descriptor call.  A
        result is applied with its math type, its layout (where the operands lie in another, each
        call converts them, and the output back) and its way to make the call.  If not given: the
        first engine that cuDNN's heuristic A names and that keeps the math type's promise; where
        there is none (for integers, say) the algorithm that the v7 heuristic prefers.
        ``plan.choice`` tells which, and why.
    workspace_limit : int or str, optional
        Bytes, "64 MiB", or "10%" of the device's memory; the handle's limit if not given.
    interface : str, optional
        "graph": an engine or an error; "descriptor": the descriptor call, which takes operands of
        any alignment where an engine wants 16 bytes.
    workspace : device array, optional
        The caller's own scratch memory, instead of the handle's; a plan's calls take it themselves.
    replay : bool
        Record the call as a CUDA graph for the addresses that it was first made with, and launch
        that from then on.  With others it is made as it is, or through copies to buffers of the
        plan, whichever was measured to take less time, once, which waits for the stream; what comes
        again is recorded too, up to 8 graphs. ``plan.replay`` tells.

    Returns
    -------
    DeviceArray
        y.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnBackendExecute`, or `cudnnConvolutionBiasActivationForward`; for the first
    call of a kind, also those of `convolution_bias_activation_forward.plan`. Those of the
    descriptor call are deprecated since cuDNN 9.0.0, still shipped and working.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 3, 8, 8), np.float32))
    ...     w, bias = handle.array(np.ones((4, 3, 3, 3), np.float32)), handle.array(np.full((1, 4, 1, 1), -20, np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1)
    ...     y = dnn.convolution_bias_activation_forward(handle, x, w, bias, conv, "relu")
    ...     more = dnn.convolution_bias_activation_forward(handle, x, w, bias, conv, "identity", z=y, alpha2=2.0)
    ...     print(y.numpy()[0, 0, 0, :2], more.numpy()[0, 0, 1, :2])
    [0. 0.] [-2. 21.]

    A plan for many calls:

    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 3, 8, 8), np.float32))
    ...     w, bias = handle.array(np.ones((4, 3, 3, 3), np.float32)), handle.array(np.full((1, 4, 1, 1), -20, np.float32))
    ...     with dnn.convolution_bias_activation_forward.plan(handle, x, w, bias) as plan:
    ...         y = plan(x, w, bias)
    ...         y = plan(x, w, bias, out=y)
    ...     print(y.numpy()[0, 0, 0, 0], isinstance(plan.choice.algorithm, dnn.Engine))
    7.0 True
    """
    declaration, operands, options = _select_operation(x, w, bias, conv, activation, z, alpha2)
    return ConvolutionRequest(
        handle,
        declaration,
        operands,
        options,
        alpha,
        0.0,
        out,
        None,
        workspace,
        workspace_limit,
        algorithm,
        interface,
        replay,
    )


def _select_operation(
    x: object, w: object, bias: object, conv: object, activation: object, z: object, alpha2: object
) -> tuple[Operation, tuple[Any, ...], tuple[Any, ...]]:
    """Return the operation, its operands and its options."""
    if z is not None:
        return (
            fused_convolution.FUSED_WITH_Z,
            (x, w, bias, z),
            (conv, activation, 1.0 if alpha2 is None else alpha2),
        )
    if alpha2 is not None and real_number(alpha2, "alpha2"):
        raise ArgumentError(f"alpha2={shown(alpha2)} scales z, which is not given")
    return fused_convolution.FUSED, (x, w, bias), (conv, activation)
