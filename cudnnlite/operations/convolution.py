"""Forward convolution: one line, a plan for many calls, and cuDNN's two searches."""

from __future__ import annotations

from typing import Any

from cudnnlite.backend.engines import Engine
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import ConvolutionFwdAlgo
from cudnnlite.operations.algorithms import ranked
from cudnnlite.operations.call import call, find, make_plan, problem_of
from cudnnlite.operations.convolution_problem import DEFAULT_CONV, FORWARD
from cudnnlite.operations.fused_convolution import BIAS, IDENTITY
from cudnnlite.operations.operands import use
from cudnnlite.operations.operation_plan import OperationPlan
from cudnnlite.search.results import AlgorithmResult
from cudnnlite.search.table import AlgorithmTable
from cudnnlite.specs import ConvolutionSpec


class ConvolutionForwardPlan(OperationPlan, operation=FORWARD):
    """A forward convolution made once and called many times: `plan(x, w, out=y)`.  See `plan_convolution_forward`.

    Attributes
    ----------
    x, w, conv, y : specs
        What it was made for.
    choice : AlgorithmResult or None
        Algorithm, math type and layout that each call uses, with what was passed over; None for an empty batch.
    workspace : int
        Bytes that each call needs; converted operands are among them.

    Notes
    -----
    C functions of a call: `cudnnConvolutionForward`, and `cudnnTransformTensor` where operands are converted.
    """


def plan_convolution_forward(
    handle: Handle,
    x: Any,
    w: Any,
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    bias: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    algorithm: AlgorithmResult | Engine | ConvolutionFwdAlgo | str | None = None,
    workspace_limit: int | str | None = None,
    interface: str | None = None,
    replay: bool = False,
) -> OperationPlan:
    """Make descriptors, choose an algorithm and marshal the arguments once, for many calls.

    Parameters
    ----------
    handle : Handle
        The plan belongs to it and is closed with it.
    x : TensorSpec or device array
        The images, ``(N, C, *spatial)`` with 1 to 3 spatial axes.
    w : FilterSpec or device array
        The filter, ``(K, C / groups, *taps)``, packed.
    conv : ConvolutionSpec
        Padding, stride, dilation, groups, mode, compute type, math type.
    bias : TensorSpec or device array, optional
        As in `convolution_forward`; the plan is then called as `plan(x, w, bias, out=y)`.
    alpha, beta : float
        y = alpha * conv(x, w) + beta * y.  Passed to cuDNN as double for double tensors, as float otherwise.
    out : TensorSpec or device array, optional
        What the result should look like; the dtype and layout of `x` if not given.
    algorithm : AlgorithmResult, Engine, ConvolutionFwdAlgo or str, optional
        A search's result, an engine of cuDNN's backend, or an algorithm of the descriptor call.  A result is applied with its
        math type and its layout: where the operands lie in another, each call converts them, and the output back.  If not
        given: the first engine that cuDNN's heuristic A names and that keeps the math type's promise; where there is none (for
        integers, say) the algorithm that the v7 heuristic prefers.  ``plan.choice`` tells which, and why.
    workspace_limit : int or str, optional
        Bytes, "64 MiB", or "10%" of the device's memory; the handle's limit if not given.
    interface : str, optional
        "graph": an engine or an error; "descriptor": the descriptor call, which takes operands of any alignment where an
        engine wants 16 bytes.
    replay : bool
        Record the call as a CUDA graph for the addresses that it was first made with, and launch that from then on.  With
        others it is made as it is, or through copies to buffers of the plan, whichever was measured to take less time, once,
        which waits for the stream; what comes again is recorded too, up to 8 graphs.  ``plan.replay`` tells.

    Returns
    -------
    ConvolutionForwardPlan
        To be called as `plan(x, w, out=y)`; with a bias another such plan, as `plan(x, w, bias, out=y)`.

    Raises
    ------
    ArgumentError
        Shapes, dtypes or options that do not fit together; the message names the argument.
    NoAlgorithmError, WorkspaceLimitError
        Nothing fits the limit.
    NotSupportedError
        cuDNN does not support the combination.

    Warns
    -----
    WorkspaceLimitWarning
        The limit excluded an algorithm that cuDNN's heuristic prefers.

    Notes
    -----
    C functions: of an engine, those of a `BackendDescriptor`, and of its call `cudnnBackendExecute`; for a call with addresses
    that were not seen lately `cudnnBackendInitialize` too.  Of the descriptor call `cudnnGetConvolutionForwardWorkspaceSize`;
    where no algorithm is given, `cudnnGetConvolutionForwardAlgorithm_v7` and `cudnnGetConvolutionForwardAlgorithmMaxCount`; of
    a call, `cudnnConvolutionForward`, and `cudnnTransformTensor` where operands are converted.  Those of the descriptor call
    are deprecated since cuDNN 9.0, still shipped and working.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 3, 8, 8), np.float32))
    ...     w = handle.array(np.ones((4, 3, 3, 3), np.float32))
    ...     with dnn.plan_convolution_forward(handle, x, w, workspace_limit="64 MiB") as plan:
    ...         y = plan(x, w)
    ...         for _ in range(3):
    ...             y = plan(x, w, out=y)  # nothing is decided or allocated again
    ...     with dnn.plan_convolution_forward(handle, x, w, interface="descriptor") as old:
    ...         same = (old(x, w).numpy() == y.numpy()).all()
    ...     print(y.shape, plan.closed, plan.choice.algorithm, same)
    (1, 4, 6, 6) True engine 2 (TILE_SIZE=0) True
    """
    posed: tuple[Any, ...] = (FORWARD, (x, w), (conv,)) if bias is None else (BIAS, (x, w, bias), (conv, IDENTITY))
    return make_plan(  # type: ignore[no-any-return]
        handle, *posed, alpha=alpha, beta=beta, out=out, algorithm=algorithm,
        workspace_limit=workspace_limit, interface=interface, replay=replay,
    )  # fmt: skip


def convolution_forward(
    handle: Handle,
    x: Any,
    w: Any,
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    bias: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    algorithm: AlgorithmResult | Engine | ConvolutionFwdAlgo | str | None = None,
    workspace_limit: int | str | None = None,
    interface: str | None = None,
    workspace: Any = None,
) -> DeviceArray:
    """Convolve images with a filter: y = alpha * conv(x, w) + beta * y, asynchronously.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, its workspace serves it; it keeps the plan for the next call of the same kind.
    x : device array
        The images, ``(N, C, *spatial)`` with 1 to 3 spatial axes; float32, float64, float16, bfloat16, or int8 where cuDNN
        supports it.  Any object with `__cuda_array_interface__` or `__dlpack__` is taken without a copy.
    w : device array
        The filter, ``(K, C / groups, *taps)``, packed, of the dtype of `x`.
    conv : ConvolutionSpec
        Padding, stride, dilation, groups, mode, compute type, math type.
    bias : device array, optional
        ``(1, K, 1, ...)``, added to the result: in the same kernel where cuDNN has one (an engine, or
        `cudnnConvolutionBiasActivationForward` with IMPLICIT_PRECOMP_GEMM), otherwise by `cudnnAddTensor`; ``plan.choice`` of
        `plan_convolution_forward` tells.  Of the result's data type; float32 beside integers.
    alpha, beta : float
        Host scalars.  With beta = 0 `out` is not read.
    out : device array, optional
        Written in place; any strides without overlap.  A new array of the dtype and layout of `x` if not given.
    algorithm : AlgorithmResult, Engine, ConvolutionFwdAlgo or str, optional
        As in `plan_convolution_forward`.
    workspace_limit : int or str, optional
        Bytes, "64 MiB", or "10%" of the device's memory; the handle's limit if not given.
    interface : str, optional
        As in `plan_convolution_forward`; where an operand is not aligned to 16 bytes, the descriptor call is made.
    workspace : device array, optional
        The caller's own scratch memory, instead of the handle's.

    Returns
    -------
    DeviceArray
        y, ``(N, K, *spatial)``.  An empty batch gives an empty result without a call.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument, what was given and what is allowed.
    CudnnError
        cuDNN refused or failed; the message has the C function, the status, cuDNN's own words and the specs.

    Notes
    -----
    C functions: `cudnnBackendExecute`, or `cudnnConvolutionForward`; for the first call of a kind, also those of
    `plan_convolution_forward`.

    float32 tensors are multiplied in TF32 on Ampere and later unless
    ``conv.math_type`` is `MathType.FMA`.  Without `algorithm`, DEFAULT math means TENSOR_OP in half precision (float16 and
    bfloat16), which is as accurate, and uses the tensor cores.

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
    """
    if bias is not None:
        given = (x, w, bias), (conv, IDENTITY)
        return call(handle, BIAS, *given, alpha, beta, out, algorithm, workspace_limit, workspace, interface)
    return call(handle, FORWARD, (x, w), (conv,), alpha, beta, out, algorithm, workspace_limit, workspace, interface)


def get_convolution_forward(
    handle: Handle, x: Any, w: Any, conv: ConvolutionSpec = DEFAULT_CONV, *, out: Any = None
) -> AlgorithmTable:
    """Ask cuDNN's v7 heuristic for its ranking; nothing is run.

    Parameters
    ----------
    handle : Handle
        The device that it ranks for.
    x, w, conv, out
        As in `plan_convolution_forward`.

    Returns
    -------
    AlgorithmTable
        All algorithms, the preferred first, those that cuDNN refuses with their status last.

    Raises
    ------
    ArgumentError
        As in `plan_convolution_forward`.

    Notes
    -----
    C functions: `cudnnGetConvolutionForwardAlgorithm_v7`, `cudnnGetConvolutionForwardAlgorithmMaxCount`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 3, 8, 8), np.float32))
    ...     w = handle.array(np.ones((4, 3, 3, 3), np.float32))
    ...     ranked = dnn.get_convolution_forward(handle, x, w)
    ...     y = dnn.convolution_forward(handle, x, w, algorithm=ranked.best(workspace_limit=0))
    >>> print(ranked[0].status, ranked[0].time_ms)
    SUCCESS None
    """
    use(handle)
    return ranked(handle, problem_of(FORWARD, (x, w), (conv,), out))


def find_convolution_forward(
    handle: Handle,
    x: Any,
    w: Any,
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    beta: float = 0.0,
    out: Any = None,
    workspace_limit: int | str | None = None,
) -> AlgorithmTable:
    """Let cuDNN run and time every algorithm on these arrays.

    Parameters
    ----------
    handle : Handle
        Waited for: the search synchronises.
    x, w : device arrays
        As in `convolution_forward`.
    conv : ConvolutionSpec
        As in `convolution_forward`.
    beta : float
        With beta = 0, `out` serves as the search's output and is overwritten.  Otherwise it is left alone, and scratch
        memory is used in its place.
    out : device array, optional
        What the result should look like; scratch memory of the dtype and layout of `x` if not given.
    workspace_limit : int or str, optional
        The most workspace that the search itself may use; the handle's limit if not given.  To see what a limit costs,
        search without one and give the limit to `AlgorithmTable.best`.

    Returns
    -------
    AlgorithmTable
        Every algorithm that cuDNN returned, the fastest first, the failed ones with their status last.  cuDNN's times
        contain tens to hundreds of microseconds of host overhead, so small problems are often misranked.  A row is applied
        with its math type: in float16 and bfloat16 a best row with DEFAULT math runs without tensor cores, which a call
        without `algorithm` would use; ``conv.math_type="tensor_op"`` searches among those.

    Raises
    ------
    ArgumentError, ArrayTypeError, DeviceMemoryError
        As in `convolution_forward`.

    Notes
    -----
    C functions: `cudnnFindConvolutionForwardAlgorithmEx`, `cudnnGetConvolutionForwardAlgorithmMaxCount`, and, for the size of
    the search's own workspace, `cudnnGetConvolutionForwardWorkspaceSize`.  Plain `cudnnFind...`, which allocates behind the
    caller's back, is never used.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 3, 8, 8), np.float32))
    ...     w = handle.array(np.ones((4, 3, 3, 3), np.float32))
    ...     found = dnn.find_convolution_forward(handle, x, w)
    ...     best = found.best(workspace_limit="1 MiB", deterministic=True)
    ...     y = dnn.convolution_forward(handle, x, w, algorithm=best)
    >>> print(best.time_ms > 0, best.deterministic, best.workspace <= 2**20)
    True True True
    """
    return find(handle, FORWARD, (x, w), (conv,), beta, out, workspace_limit)
