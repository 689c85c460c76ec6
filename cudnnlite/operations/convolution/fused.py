"""Forward convolution with a bias, an addition and an activation, in one kernel."""

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
from cudnnlite.plans.operands import with_channel_axis
from cudnnlite.problems import fused_convolution
from cudnnlite.problems.convolution import DEFAULT_CONV
from cudnnlite.problems.fused_convolution import RELU
from cudnnlite.problems.operation import Operation
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.specs import ConvolutionSpec
from cudnnlite.specs.layers import ActivationSpec
from cudnnlite.specs.names import ActivationModeName


@convolution_operation(fused_convolution.FUSED)
def convolution_bias_activation_forward(
    handle: Handle,
    x: Operand,
    w: Operand,
    bias: Operand,
    conv: ConvolutionSpec = DEFAULT_CONV,
    activation: ActivationSpec | ActivationMode | ActivationModeName = RELU,
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
    """Convolve, add a bias and `z`, and apply an activation, asynchronously.

    y = activation(alpha * conv(x, w) + alpha2 * z + bias), in one kernel, without intermediate
    results in memory.

    Some combinations are not supported.  With "identity" the only algorithm of the descriptor call
    is IMPLICIT_PRECOMP_GEMM.  An activation that only engines have cannot be combined with an
    `alpha` other than 1 unless `z` is given.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream, is asynchronous, and uses its workspace.  The handle
        keeps the plan for the next call of the same kind.
    x, w : device arrays
        The images and the filter, as in `convolution_forward`.
    bias : device array
        ``(K,)`` or ``(1, K, 1, ...)``, of the result's data type, or float32 for integers.
    conv : ConvolutionSpec
        Padding, stride, dilation, groups, mode, compute type, math type.
    activation : ActivationSpec, ActivationMode or str
        "relu" or "identity"; by engines also "sigmoid", "tanh", "clipped_relu", "elu", and in NHWC
        "swish".  "relu" if not given.
    z : device array, optional
        The array to add, with the shape, data type and layout of the result.  It may be `out`
        itself.
    alpha, alpha2 : float
        Host scalars.  `alpha2` scales `z`; it is 1 if not given.
    out : device array, optional
        y, written in place; its strides may be any that do not overlap.  A new array if not given.
    algorithm : AlgorithmResult, Engine, ConvolutionFwdAlgo or str, optional
        A result of a search, an engine of cuDNN's backend, or an algorithm of the descriptor call.
        A result is applied with its math type, its layout and its `replay`.  If the operands have
        another layout, each call converts them, and converts the output back.

        If not given, the call takes the first engine of cuDNN's heuristic A that computes as
        precisely as the math type requires.  If there is none, for instance for integers, it takes
        the algorithm that cuDNN's v7 heuristic prefers.  ``plan.choice`` holds the choice and the
        reason for it.
    workspace_limit : int or str, optional
        Bytes, "64 MiB", or "10%" of the device's memory; the handle's limit if not given.
    interface : str, optional
        "graph": an engine, or an error if cuDNN has none.  "descriptor": the descriptor call; it
        takes operands of any alignment, while an engine needs an alignment of 16 bytes.  Either
        interface if not given.
    workspace : device array, optional
        Scratch memory of the caller, used instead of the handle's.  With a plan it is an argument
        of each call.
    replay : bool
        Record the call as a CUDA graph for the addresses of the first call, and launch the graph
        from then on.  A call with other addresses is made without a graph, or through copies to
        buffers of the plan, whichever takes less time; this is measured once, and the measurement
        waits for the stream.  Other addresses that come again are recorded too, up to 8 graphs.
        ``plan.replay`` says what the plan did so far.

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
    ...     w = handle.array(np.ones((4, 3, 3, 3), np.float32))
    ...     bias = handle.array(np.full((1, 4, 1, 1), -20, np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1)
    ...     y = dnn.convolution_bias_activation_forward(handle, x, w, bias, conv, "relu")
    ...     with_z = dnn.convolution_bias_activation_forward(
    ...         handle, x, w, bias, conv, "identity", z=y, alpha2=2.0
    ...     )
    ...     print(y.numpy()[0, 0, 0, :2], with_z.numpy()[0, 0, 1, :2])
    [0. 0.] [-2. 21.]

    A plan for many calls:

    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 3, 8, 8), np.float32))
    ...     w = handle.array(np.ones((4, 3, 3, 3), np.float32))
    ...     bias = handle.array(np.full((1, 4, 1, 1), -20, np.float32))
    ...     with dnn.convolution_bias_activation_forward.plan(handle, x, w, bias) as plan:
    ...         y = plan(x, w, bias)
    ...         y = plan(x, w, bias, out=y)
    ...     print(y.numpy()[0, 0, 0, 0], isinstance(plan.choice.algorithm, dnn.types.Engine))
    7.0 True
    """
    bias = with_channel_axis(handle, bias, x, "bias")
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
        scale_of_z = 1.0 if alpha2 is None else alpha2
        return fused_convolution.FUSED_WITH_Z, (x, w, bias, z), (conv, activation, scale_of_z)
    if alpha2 is not None and real_number(alpha2, "alpha2"):
        raise ArgumentError(f"alpha2={shown(alpha2)} scales z, which is not given")
    return fused_convolution.FUSED, (x, w, bias), (conv, activation)
