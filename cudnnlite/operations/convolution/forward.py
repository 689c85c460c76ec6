"""Forward convolution: one line, a plan for many calls, and cuDNN's two searches."""

from __future__ import annotations

from typing import Any, NoReturn

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import ConvolutionFwdAlgo
from cudnnlite.graph.engines import Engine
from cudnnlite.operations.convolution.algorithms import ranked
from cudnnlite.operations.convolution.documented_choice import documented_choice
from cudnnlite.operations.convolution.fused import BIAS, IDENTITY
from cudnnlite.plans.call import call, find, make_plan, problem_of
from cudnnlite.plans.operands import use
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.problems.convolution import DEFAULT_CONV, FORWARD
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.specs import ConvolutionSpec
from cudnnlite.unknown import refuse_unknown


class ConvolutionForwardPlan(OperationPlan, operation=FORWARD):
    """A forward convolution made once and called many times: `plan(x, w, out=y)`.  See `plan_convolution_forward`."""


@documented_choice(FORWARD, "plan", "conv(x, w)")
def plan_convolution_forward(
    handle: Handle,
    x: Operand,
    w: Operand,
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    bias: AnyArray | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
    algorithm: AlgorithmResult | Engine | ConvolutionFwdAlgo | str | None = None,
    workspace_limit: int | str | None = None,
    interface: str | None = None,
    replay: bool = False,
) -> OperationPlan:
    """Make descriptors, choose an algorithm and marshal the arguments once, for many calls.

    Parameters
    ----------
    x, w : specs or device arrays
        As in `convolution_forward`.
    conv : ConvolutionSpec
        As there.
    bias : TensorSpec or device array, optional
        As in `convolution_forward`; the plan is then another, called as `plan(x, w, bias, out=y)`.

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
    posed: tuple[Any, ...] = (
        (FORWARD, (x, w), (conv,)) if bias is None else (BIAS, (x, w, bias), (conv, IDENTITY))
    )
    return make_plan(  # type: ignore[no-any-return]
        handle,
        *posed,
        alpha=alpha,
        beta=beta,
        out=out,
        algorithm=algorithm,
        workspace_limit=workspace_limit,
        interface=interface,
        replay=replay,
    )


@documented_choice(FORWARD, "call", "conv(x, w)")
def convolution_forward(
    handle: Handle,
    x: AnyArray,
    w: AnyArray,
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    bias: AnyArray | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
    algorithm: AlgorithmResult | Engine | ConvolutionFwdAlgo | str | None = None,
    workspace_limit: int | str | None = None,
    interface: str | None = None,
    workspace: AnyArray | None = None,
    **unknown: NoReturn,
) -> DeviceArray:
    """Convolve images with a filter: y = alpha * conv(x, w) + beta * y, asynchronously.

    float32 tensors are multiplied in TF32 on Ampere and later unless ``conv.math_type`` is `MathType.FMA`.  Without
    `algorithm`, DEFAULT math means TENSOR_OP in half precision, which is as accurate, and uses the tensor cores.  An empty
    batch gives an empty result without a call.

    Parameters
    ----------
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
    if unknown:
        refuse_unknown(convolution_forward, unknown)
    if bias is not None:
        given = (x, w, bias), (conv, IDENTITY)
        return call(
            handle, BIAS, *given, alpha, beta, out, algorithm, workspace_limit, workspace, interface
        )
    return call(
        handle,
        FORWARD,
        (x, w),
        (conv,),
        alpha,
        beta,
        out,
        algorithm,
        workspace_limit,
        workspace,
        interface,
    )


@documented_choice(FORWARD, "get")
def get_convolution_forward(
    handle: Handle,
    x: Operand,
    w: Operand,
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    out: AnyArray | None = None,
) -> AlgorithmTable:
    """Ask cuDNN's v7 heuristic for its ranking; nothing is run.

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


@documented_choice(FORWARD, "find")
def find_convolution_forward(
    handle: Handle,
    x: AnyArray,
    w: AnyArray,
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    beta: float = 0.0,
    out: AnyArray | None = None,
    workspace_limit: int | str | None = None,
) -> AlgorithmTable:
    """Let cuDNN run and time every algorithm on these arrays.

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
