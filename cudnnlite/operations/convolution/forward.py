"""Forward convolution."""

from __future__ import annotations

from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import (
    ConvolutionFwdAlgo,
)
from cudnnlite.graph.engines import Engine
from cudnnlite.operations.convolution.epilogue import Epilogue, EpilogueRequest
from cudnnlite.operations.convolution.function import convolution_operation
from cudnnlite.operations.convolution.request import ConvolutionRequest
from cudnnlite.plans.operands import with_channel_axis
from cudnnlite.problems import convolution, fused_convolution
from cudnnlite.problems.convolution import DEFAULT_CONV
from cudnnlite.problems.operation import Operation
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.specs import ConvolutionSpec
from cudnnlite.specs.names import GraphActivationName


@convolution_operation(convolution.FORWARD)
def convolution_forward(
    handle: Handle,
    x: Operand,
    w: Operand,
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    bias: Operand | None = None,
    activation: Epilogue | GraphActivationName | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
    algorithm: AlgorithmResult | Engine | ConvolutionFwdAlgo | str | None = None,
    workspace_limit: int | str | None = None,
    interface: str | None = None,
    workspace: AnyArray | None = None,
    replay: bool = False,
) -> ConvolutionRequest:
    """Convolve images with a filter: y = alpha * conv(x, w) + beta * y, asynchronously.

    float32 tensors are multiplied in TF32 on Ampere and later unless ``conv.math_type`` is
    `MathType.FMA`.  In half precision without `algorithm`, the math type DEFAULT means TENSOR_OP,
    which uses the tensor cores and is as accurate.  An empty batch gives an empty result without a
    call.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream, is asynchronous, and uses its workspace.  The handle
        keeps the plan for the next call of the same kind.
    x : device array
        The images, ``(N, C, *spatial)`` with 1 to 3 spatial axes; float32, float64, float16,
        bfloat16, or int8 if cuDNN supports it.  An object with `__cuda_array_interface__` or
        `__dlpack__` is used without a copy.
    w : device array
        The filter, ``(K, C / groups, *taps)``, packed, of the dtype of `x`.
    conv : ConvolutionSpec
        Padding, stride, dilation, groups, mode, compute type, math type.
    bias : device array, optional
        ``(K,)`` or ``(1, K, 1, ...)``, added to the result; of the result's data type, or float32
        for integers.  The convolution's kernel adds it if cuDNN has such a kernel: an engine, or
        `cudnnConvolutionBiasActivationForward` with IMPLICIT_PRECOMP_GEMM.  Otherwise
        `cudnnAddTensor` adds it.  ``plan.choice`` says which.
    activation : callable or str, optional
        The epilogue, which runs in the same kernel: a function that takes the graph and its tensor
        y and returns another tensor, such as ``lambda graph, y: graph.gelu(y)``; or the name of an
        activation: "relu", "leaky_relu" (with the slope 0.01), "gelu", "gelu_tanh", "swish",
        "softplus", "sigmoid", "tanh", "elu" or "mish".  cuDNN has engines for it in float16,
        bfloat16 and float32 with channels last; for relu, sigmoid and elu after a bias, in any
        layout.  Each call runs the function again, so a plan, or a name, takes less time.
    alpha, beta : float
        y = alpha * conv(x, w) + beta * y, passed to cuDNN as double for double tensors, as float
        otherwise.  With beta = 0 `out` is not read.
    out : device array, optional
        y, written in place; its strides may be any that do not overlap.  A new array if not given.
    algorithm : AlgorithmResult, Engine, ConvolutionFwdAlgo or str, optional
        A result of a search, an engine of cuDNN's backend, an algorithm of the descriptor call, or
        the text that one of these prints: "engine 2", "FFT_TILING".  A result is applied with its
        math type, its layout and its `replay`.  If the operands have another layout, each call
        converts them, and converts the output back.

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
    C functions: `cudnnBackendExecute`, or `cudnnConvolutionForward`; for the first call of a kind,
    also those of `convolution_forward.plan`. Those of the descriptor call are deprecated since
    cuDNN 9.0.0, still shipped and working.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 3, 8, 8), np.float32))
    ...     w = handle.array(np.ones((4, 3, 3, 3), np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1, stride=2)
    ...     y = dnn.convolution_forward(handle, x, w, conv)
    ...     same = dnn.convolution_forward(handle, x, w, conv, algorithm="IMPLICIT_GEMM")
    ...     print(y.shape, y.numpy()[0, 0, 1, 1], same.numpy()[0, 0, 1, 1])
    (1, 4, 4, 4) 27.0 27.0

    The search of cuDNN, and a plan for many calls:

    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 3, 8, 8), np.float32))
    ...     w = handle.array(np.ones((4, 3, 3, 3), np.float32))
    ...     found = dnn.convolution_forward.find(handle, x, w)
    ...     best = found.best(workspace_limit="1 MiB", deterministic=True)
    ...     ranked = dnn.convolution_forward.heuristic(handle, x, w)
    ...     with dnn.convolution_forward.plan(handle, x, w, algorithm=best) as plan:
    ...         y = plan(x, w)
    ...         for _ in range(3):
    ...             y = plan(x, w, out=y)  # nothing is decided or allocated again
    ...     with dnn.convolution_forward.plan(handle, x, w) as engine:
    ...         same = (engine(x, w).numpy() == y.numpy()).all()
    ...     print(best.time_ms > 0, ranked[0].time_ms, engine.choice.algorithm, same)
    True None engine 2 (TILE_SIZE=0) True

    A function of the result, in the same kernel:

    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 3, 8, 8)), dtype="float16", layout="NHWC")
    ...     w = handle.array(np.ones((4, 3, 3, 3)), dtype="float16", layout="NHWC")
    ...     y = dnn.convolution_forward(handle, x, w, activation=lambda graph, y: graph.gelu(y * 0.5))
    ...     print(y.numpy()[0, 0, 0, 0])
    13.5
    """
    declaration: Operation = convolution.FORWARD
    operands: tuple[Operand, ...] = (x, w)
    options: tuple[object, ...] = (conv,)
    if bias is not None:
        declaration = fused_convolution.BIAS
        operands = (x, w, with_channel_axis(handle, bias, x, "bias"))
        options = (conv, fused_convolution.IDENTITY)
    arguments = (
        handle,
        declaration,
        operands,
        options,
        alpha,
        beta,
        out,
        None,
        workspace,
        workspace_limit,
        algorithm,
        interface,
        replay,
    )
    if activation is not None:
        return EpilogueRequest(activation, *arguments)
    return ConvolutionRequest(*arguments)
