"""The gradients of a convolution, and the transposed convolution: one line, a plan for many calls, and cuDNN's two searches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from cudnnlite.arguments import instance_of, shown
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Like, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import ConvolutionBwdDataAlgo, ConvolutionBwdFilterAlgo
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.engines import Engine
from cudnnlite.operations.convolution.algorithms import ranked
from cudnnlite.operations.convolution.documented_choice import documented_choice
from cudnnlite.plans.call import call, find, make_plan, problem_of
from cudnnlite.plans.operands import on_device, tensor_spec, use
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.problems.convolution import DEFAULT_CONV
from cudnnlite.problems.convolution_backward import DATA, FILTER
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec
from cudnnlite.specs.filter import as_tensor, is_as
from cudnnlite.specs.layout import parse_shape
from cudnnlite.specs.steps import parse_steps
from cudnnlite.unknown import refuse_unknown


class ConvolutionBackwardDataPlan(OperationPlan, operation=DATA):
    """A convolution's gradient of its input, made once: `plan(w, dy, out=dx)`.  See `plan_convolution_backward_data`."""


class ConvolutionTransposePlan(ConvolutionBackwardDataPlan):
    """A transposed convolution, made once: `plan(x, w, out=y)`.  See `plan_operation`."""

    def __call__(self, *operands: Any, out: Any = None, workspace: Any = None) -> DeviceArray:
        """Enqueue the operation: its operands have the order of `convolution_transpose`, which is not that of the gradient."""
        w_then_x = operands[::-1]
        return super().__call__(*w_then_x, out=out, workspace=workspace)


class ConvolutionBackwardFilterPlan(OperationPlan, operation=FILTER):
    """A convolution's gradient of its filter, made once: `plan(x, dy, out=dw)`.  See `plan_convolution_backward_filter`."""


@documented_choice(DATA, "plan")
def plan_convolution_backward_data(
    handle: Handle,
    w: Operand,
    dy: Operand,
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    x: Like = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
    algorithm: AlgorithmResult | Engine | ConvolutionBwdDataAlgo | str | None = None,
    workspace_limit: int | str | None = None,
    interface: str | None = None,
    replay: bool = False,
) -> ConvolutionBackwardDataPlan:
    """Decide and marshal the gradient of a convolution's input once, for many calls.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     w, dy = handle.array(np.ones((4, 3, 3, 3), np.float32)), handle.array(np.ones((1, 4, 4, 4), np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1, stride=2)
    ...     with dnn.plan_convolution_backward_data(handle, w, dy, conv, x=(1, 3, 8, 8), workspace_limit="64 MiB") as plan:
    ...         dx = plan(w, dy)
    ...         for _ in range(3):
    ...             dx = plan(w, dy, out=dx)  # nothing is decided or allocated again
    ...     with dnn.plan_convolution_backward_data(handle, w, dy, conv, x=dx, interface="descriptor") as old:
    ...         same = (old(w, dy).numpy() == dx.numpy()).all()
    ...     print(dx.shape, same)
    (1, 3, 8, 8) True
    """
    out = _written(handle, x, "x", dy, "dy", out)
    return make_plan(  # type: ignore[no-any-return]
        handle,
        DATA,
        (w, dy),
        (conv,),
        alpha=alpha,
        beta=beta,
        out=out,
        algorithm=algorithm,
        workspace_limit=workspace_limit,
        interface=interface,
        replay=replay,
    )


@documented_choice(DATA, "call")
def convolution_backward_data(
    handle: Handle,
    w: AnyArray,
    dy: AnyArray,
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    x: Like = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
    algorithm: AlgorithmResult | Engine | ConvolutionBwdDataAlgo | str | None = None,
    workspace_limit: int | str | None = None,
    interface: str | None = None,
    workspace: AnyArray | None = None,
    **unknown: NoReturn,
) -> DeviceArray:
    """Compute the gradient of a convolution's input: how a change of x changes a loss whose gradient at y is dy.

    Parameters
    ----------
    w : device array
        The filter, ``(K, C / groups, *taps)``, packed; float32, float64, float16 or bfloat16.
    dy : device array
        The gradient of the result, ``(N, K, *spatial)``, of the dtype of `w`.
    conv : ConvolutionSpec
        Of the convolution: padding, stride, dilation, groups, mode, compute type, math type.
    x : TensorSpec, shape or device array, optional
        What the convolution's input looked like, ``(N, C, *spatial)``; of a shape, in the dtype and layout of `dy`.  With
        stride 1 it may be left out, as it may where `out` says it.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     w, dy = handle.array(np.ones((4, 3, 3, 3), np.float32)), handle.array(np.ones((1, 4, 4, 4), np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1, stride=2)
    ...     dx = dnn.convolution_backward_data(handle, w, dy, conv, x=(1, 3, 8, 8))
    ...     same = dnn.convolution_backward_data(handle, w, dy, conv, out=dx, algorithm="ALGO_1")
    ...     print(same.shape, same.numpy()[0, 0, :2, :2].tolist())
    (1, 3, 8, 8) [[4.0, 8.0], [8.0, 16.0]]
    """
    if unknown:
        refuse_unknown(convolution_backward_data, unknown)
    given, wanted = ((w, dy), (conv,)), _written(handle, x, "x", dy, "dy", out)
    return call(
        handle,
        DATA,
        *given,
        alpha,
        beta,
        out,
        algorithm,
        workspace_limit,
        workspace,
        interface,
        wanted,
    )


@documented_choice(DATA, "get")
def get_convolution_backward_data(
    handle: Handle,
    w: Operand,
    dy: Operand,
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    x: Like = None,
    out: AnyArray | None = None,
) -> AlgorithmTable:
    """Ask cuDNN's v7 heuristic for its ranking of the gradient of a convolution's input; nothing is run.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     w, dy = handle.array(np.ones((4, 3, 3, 3), np.float32)), handle.array(np.ones((1, 4, 6, 6), np.float32))
    ...     ranked = dnn.get_convolution_backward_data(handle, w, dy)
    ...     dx = dnn.convolution_backward_data(handle, w, dy, algorithm=ranked.best(workspace_limit="1 MiB"))
    >>> print(ranked[0].status, ranked[0].time_ms, dx.shape)
    SUCCESS None (1, 3, 8, 8)
    """
    use(handle)
    return ranked(
        handle, problem_of(DATA, (w, dy), (conv,), _written(handle, x, "x", dy, "dy", out))
    )


@documented_choice(DATA, "find")
def find_convolution_backward_data(
    handle: Handle,
    w: AnyArray,
    dy: AnyArray,
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    x: Like = None,
    beta: float = 0.0,
    out: AnyArray | None = None,
    workspace_limit: int | str | None = None,
) -> AlgorithmTable:
    """Let cuDNN run and time every algorithm for the gradient of a convolution's input.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     w, dy = handle.array(np.ones((4, 3, 3, 3), np.float32)), handle.array(np.ones((1, 4, 6, 6), np.float32))
    ...     found = dnn.find_convolution_backward_data(handle, w, dy)
    ...     dx = dnn.convolution_backward_data(handle, w, dy, algorithm=found.best(deterministic=True))
    >>> print(found[0].time_ms > 0, dx.shape)
    True (1, 3, 8, 8)
    """
    return find(
        handle,
        DATA,
        (w, dy),
        (conv,),
        beta,
        out,
        workspace_limit,
        _written(handle, x, "x", dy, "dy", out),
    )


@documented_choice(FILTER, "plan")
def plan_convolution_backward_filter(
    handle: Handle,
    x: Operand,
    dy: Operand,
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    w: Like = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
    algorithm: AlgorithmResult | Engine | ConvolutionBwdFilterAlgo | str | None = None,
    workspace_limit: int | str | None = None,
    interface: str | None = None,
    replay: bool = False,
) -> ConvolutionBackwardFilterPlan:
    """Decide and marshal the gradient of a convolution's filter once, for many calls.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x, dy = handle.array(np.ones((1, 3, 8, 8), np.float32)), handle.array(np.ones((1, 4, 4, 4), np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1, stride=2)
    ...     with dnn.plan_convolution_backward_filter(handle, x, dy, conv, w=(4, 3, 3, 3), workspace_limit="1 GiB") as plan:
    ...         dw = plan(x, dy)
    ...         for _ in range(3):
    ...             dw = plan(x, dy, out=dw)  # nothing is decided or allocated again
    ...     with dnn.plan_convolution_backward_filter(handle, x, dy, conv, w=dw, interface="descriptor") as old:
    ...         same = (old(x, dy).numpy() == dw.numpy()).all()
    ...     print(dw.shape, same)
    (4, 3, 3, 3) True
    """
    out = _written(handle, w, "w", x, "x", out)
    return make_plan(  # type: ignore[no-any-return]
        handle,
        FILTER,
        (x, dy),
        (conv,),
        alpha=alpha,
        beta=beta,
        out=out,
        algorithm=algorithm,
        workspace_limit=workspace_limit,
        interface=interface,
        replay=replay,
    )


@documented_choice(FILTER, "call")
def convolution_backward_filter(
    handle: Handle,
    x: AnyArray,
    dy: AnyArray,
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    w: Like = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
    algorithm: AlgorithmResult | Engine | ConvolutionBwdFilterAlgo | str | None = None,
    workspace_limit: int | str | None = None,
    interface: str | None = None,
    workspace: AnyArray | None = None,
    **unknown: NoReturn,
) -> DeviceArray:
    """Compute the gradient of a convolution's filter: how a change of w changes a loss whose gradient at y is dy.

    That of an empty batch is zero.

    Parameters
    ----------
    x : device array
        The images, ``(N, C, *spatial)``; float32, float64, float16 or bfloat16.
    dy : device array
        The gradient of the result, ``(N, K, *spatial)``, of the dtype of `x`.
    conv : ConvolutionSpec
        Of the convolution: padding, stride, dilation, groups, mode, compute type, math type.
    w : FilterSpec, shape or device array, optional
        What the filter looked like, ``(K, C / groups, *taps)``; of a shape, in the dtype and layout of `x`.  With stride 1 it
        may be left out, as it may where `out` says it.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x, dy = handle.array(np.ones((1, 3, 8, 8), np.float32)), handle.array(np.ones((1, 4, 4, 4), np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1, stride=2)
    ...     dw = dnn.convolution_backward_filter(handle, x, dy, conv, w=(4, 3, 3, 3))
    ...     total = dnn.convolution_backward_filter(handle, x, dy, conv, beta=1.0, out=dw)  # of two batches
    ...     print(total.shape, total.numpy()[0, 0].tolist())
    (4, 3, 3, 3) [[18.0, 24.0, 24.0], [24.0, 32.0, 32.0], [24.0, 32.0, 32.0]]
    """
    if unknown:
        refuse_unknown(convolution_backward_filter, unknown)
    given, wanted = ((x, dy), (conv,)), _written(handle, w, "w", x, "x", out)
    return call(
        handle,
        FILTER,
        *given,
        alpha,
        beta,
        out,
        algorithm,
        workspace_limit,
        workspace,
        interface,
        wanted,
    )


@documented_choice(FILTER, "get")
def get_convolution_backward_filter(
    handle: Handle,
    x: Operand,
    dy: Operand,
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    w: Like = None,
    out: AnyArray | None = None,
) -> AlgorithmTable:
    """Ask cuDNN's v7 heuristic for its ranking of the gradient of a convolution's filter; nothing is run.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x, dy = handle.array(np.ones((1, 3, 8, 8), np.float32)), handle.array(np.ones((1, 4, 6, 6), np.float32))
    ...     ranked = dnn.get_convolution_backward_filter(handle, x, dy)
    ...     dw = dnn.convolution_backward_filter(handle, x, dy, algorithm=ranked.best(workspace_limit="1 MiB"))
    >>> print(ranked[0].status, ranked[0].time_ms, dw.shape)
    SUCCESS None (4, 3, 3, 3)
    """
    use(handle)
    return ranked(
        handle, problem_of(FILTER, (x, dy), (conv,), _written(handle, w, "w", x, "x", out))
    )


@documented_choice(FILTER, "find")
def find_convolution_backward_filter(
    handle: Handle,
    x: AnyArray,
    dy: AnyArray,
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    w: Like = None,
    beta: float = 0.0,
    out: AnyArray | None = None,
    workspace_limit: int | str | None = None,
) -> AlgorithmTable:
    """Let cuDNN run and time every algorithm for the gradient of a convolution's filter.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x, dy = handle.array(np.ones((1, 3, 8, 8), np.float32)), handle.array(np.ones((1, 4, 6, 6), np.float32))
    ...     found = dnn.find_convolution_backward_filter(handle, x, dy)
    ...     dw = dnn.convolution_backward_filter(handle, x, dy, algorithm=found.best(deterministic=True))
    >>> print(found[0].time_ms > 0, dw.shape)
    True (4, 3, 3, 3)
    """
    return find(
        handle,
        FILTER,
        (x, dy),
        (conv,),
        beta,
        out,
        workspace_limit,
        _written(handle, w, "w", x, "x", out),
    )


@documented_choice(DATA, "call", "result", "y")
def convolution_transpose(
    handle: Handle,
    x: AnyArray,
    w: AnyArray,
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    output_padding: int | Iterable[int] = 0,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
    algorithm: AlgorithmResult | Engine | ConvolutionBwdDataAlgo | str | None = None,
    workspace_limit: int | str | None = None,
    interface: str | None = None,
    workspace: AnyArray | None = None,
    **unknown: NoReturn,
) -> DeviceArray:
    """Convolve transposed, as PyTorch's `conv_transpose1d` to `conv_transpose3d`: from the shape of a result to that of images.

    It is `convolution_backward_data` with `x` as dy, and is recorded and tuned as that.  The result is ``(N, C, *spatial)``,
    along an axis (size - 1) * stride - 2 * padding + dilation * (taps - 1) + output_padding + 1.

    Parameters
    ----------
    x : device array
        ``(N, K, *spatial)``; float32, float64, float16 or bfloat16.
    w : device array
        The filter, ``(K, C / groups, *taps)``, packed, of the dtype of `x`.
    conv : ConvolutionSpec
        Padding (what is cut off at both ends), stride (how far the results of neighbouring values lie apart), dilation,
        groups, mode, compute type, math type.
    output_padding : int or iterable of int
        What is added to the result at the end of each axis, below the stride: of the images that a convolution with this
        stride brings to the size of `x` the smallest has 0.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x, w = handle.array(np.ones((1, 4, 4, 4), np.float32)), handle.array(np.ones((4, 3, 3, 3), np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1, stride=2)
    ...     y = dnn.convolution_transpose(handle, x, w, conv, output_padding=1)
    ...     print(y.shape, y.numpy()[0, 0, :2, :2].tolist())
    (1, 3, 8, 8) [[4.0, 8.0], [8.0, 16.0]]
    """
    if unknown:
        refuse_unknown(convolution_transpose, unknown)
    use(handle)
    x, w = on_device(handle, x, "x"), on_device(handle, w, "w")
    shape = _transposed_shape(x.spec, w.spec, conv, output_padding)
    given, wanted = ((w, x), (conv,)), _written(handle, shape, "conv", x, "x", out)
    return call(
        handle,
        DATA,
        *given,
        alpha,
        beta,
        out,
        algorithm,
        workspace_limit,
        workspace,
        interface,
        wanted,
    )


def _transposed_shape(
    x: TensorSpec, w: TensorSpec, conv: Any, output_padding: Any
) -> tuple[int, ...]:
    instance_of(conv, ConvolutionSpec, "conv")
    if not 3 <= x.rank == w.rank <= 5 or x.dtype != w.dtype or x.shape[1] != w.shape[0]:
        raise ArgumentError(
            f"x={x}, w={w}; needed: (N, K, *spatial) and (K, C / groups, *taps) of one dtype and the same rank 3, 4 or 5"
        )
    extra = parse_steps(output_padding, "output_padding", 0)
    extra = extra if isinstance(extra, tuple) else (extra,) * (x.rank - 2)
    steps = conv.steps(x.rank - 2)
    if len(extra) != x.rank - 2 or any(
        more >= stride for more, stride in zip(extra, steps[1], strict=True)
    ):
        raise ArgumentError(
            f"output_padding={shown(output_padding)}; allowed: below the stride, {conv.stride}, for each spatial axis"
        )
    axes = zip(x.shape[2:], w.shape[2:], *steps, extra, strict=True)
    image = [
        (size - 1) * step - 2 * pad + far * (taps - 1) + more + 1
        for size, taps, pad, step, far, more in axes
    ]
    if min(image) < 1:
        raise ArgumentError(
            f"padding={conv.padding} cuts off all of the result of x {x.shape} and w {w.shape}: {image}"
        )
    return (x.shape[0], w.shape[1] * conv.groups, *image)


def _written(handle: Any, like: Any, argument: str, beside: Any, name: str, out: Any) -> Any:
    """Return what is written: `out`, or the spec that `like` says; None where nobody said anything."""
    if like is None:
        return out
    use(handle)
    if hasattr(like, "__dlpack__") and not isinstance(like, np.ndarray):
        like = on_device(handle, like, argument)
    spec, made = getattr(like, "spec", like), None
    if not isinstance(spec, (TensorSpec, FilterSpec)):
        shape = parse_shape(like, argument)
        known = (
            beside
            if isinstance(beside, TensorSpec)
            else tensor_spec(on_device(handle, beside, name), name)
        )
        if len(shape) != known.rank:
            raise ArgumentError(f"{argument}={shape} is not of the rank of {name}, {known}")
        spec = made = known.packed(
            shape
        )  # of a shape alone, `out` may have another dtype and layout
    if argument == "x" and isinstance(spec, FilterSpec):
        raise ArgumentError(
            f"x={spec} is a filter; needed: a TensorSpec, a shape or a device array"
        )
    if out is None:
        return spec
    given = getattr(out, "spec", out)
    if isinstance(given, (TensorSpec, FilterSpec)):
        wanted, fits = (
            (spec.shape, given.shape == spec.shape)
            if made
            else (spec, is_as(as_tensor(given), spec))
        )
        if not fits:
            raise ArgumentError(f"out is {given}; the result is as {argument} says, {wanted}")
    return out
