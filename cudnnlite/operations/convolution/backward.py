"""The gradients of a convolution, and the transposed convolution."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from cudnnlite.arguments import instance_of, shown
from cudnnlite.devices.foreign import AnyArray, Like, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import (
    ConvolutionBwdDataAlgo,
    ConvolutionBwdFilterAlgo,
)
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.engines import Engine
from cudnnlite.operations.convolution.function import convolution_operation
from cudnnlite.operations.convolution.plan import ConvolutionTransposePlan
from cudnnlite.operations.convolution.request import ConvolutionRequest
from cudnnlite.plans.operands import operand_spec
from cudnnlite.problems import convolution_backward
from cudnnlite.problems.convolution import DEFAULT_CONV
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec
from cudnnlite.specs.filter import as_tensor, is_as
from cudnnlite.specs.layout import parse_shape
from cudnnlite.specs.steps import parse_steps


@convolution_operation(convolution_backward.DATA)
def convolution_backward_data(
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
    workspace: AnyArray | None = None,
    replay: bool = False,
) -> ConvolutionRequest:
    """Compute the gradient of a convolution's input: how a change of x changes a loss whose gradient at y is dy.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous, its workspace serves it; it keeps the
        plan for the next one.
    w : device array
        The filter, ``(K, C / groups, *taps)``, packed; float32, float64, float16 or bfloat16.
    dy : device array
        The gradient of the result, ``(N, K, *spatial)``, of the dtype of `w`.
    conv : ConvolutionSpec
        Of the convolution: padding, stride, dilation, groups, mode, compute type, math type.
    x : TensorSpec, shape or device array, optional
        What the convolution's input looked like, ``(N, C, *spatial)``; of a shape, in the dtype and
        layout of `dy`.  With stride 1 it may be left out, as it may where `out` says it.
    alpha, beta : float
        dx = alpha * gradient + beta * dx, passed to cuDNN as double for double tensors, as float
        otherwise.  With beta = 0 `out` is not read.
    out : device array, optional
        dx, written in place, any strides without overlap; a new array if not given.
    algorithm : AlgorithmResult, Engine, ConvolutionBwdDataAlgo or str, optional
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
        dx.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnBackendExecute`, or `cudnnConvolutionBackwardData`; for the first call of a
    kind, also those of `convolution_backward_data.plan`. Those of the descriptor call are
    deprecated since cuDNN 9.0.0, still shipped and working.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     w, dy = handle.array(np.ones((4, 3, 3, 3), np.float32)), handle.array(np.ones((1, 4, 4, 4), np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1, stride=2)
    ...     dx = dnn.convolution_backward_data(handle, w, dy, conv, x=(1, 3, 8, 8))
    ...     same = dnn.convolution_backward_data(handle, w, dy, conv, out=dx, algorithm="ALGO_1")
    ...     print(same.shape, same.numpy()[0, 0, :2, :2].tolist())
    (1, 3, 8, 8) [[4.0, 8.0], [8.0, 16.0]]

    A plan for many calls, and what cuDNN's search finds:

    >>> with dnn.Handle() as handle:
    ...     w, dy = handle.array(np.ones((4, 3, 3, 3), np.float32)), handle.array(np.ones((1, 4, 4, 4), np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1, stride=2)
    ...     with dnn.convolution_backward_data.plan(handle, w, dy, conv, x=(1, 3, 8, 8)) as plan:
    ...         dx = plan(w, dy)
    ...         dx = plan(w, dy, out=dx)  # nothing is decided or allocated again
    ...     found = dnn.convolution_backward_data.find(handle, w, dy, conv, x=dx)
    ...     with dnn.convolution_backward_data.plan(handle, w, dy, conv, x=dx, interface="descriptor") as old:
    ...         same = (old(w, dy).numpy() == dx.numpy()).all()
    ...     print(dx.shape, found[0].time_ms > 0, same)
    (1, 3, 8, 8) True True
    """
    result = _result_spec(handle, x, "x", dy, "dy", out)
    return ConvolutionRequest(
        handle,
        convolution_backward.DATA,
        (w, dy),
        (conv,),
        alpha,
        beta,
        out,
        result,
        workspace,
        workspace_limit,
        algorithm,
        interface,
        replay,
    )


@convolution_operation(convolution_backward.FILTER)
def convolution_backward_filter(
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
    workspace: AnyArray | None = None,
    replay: bool = False,
) -> ConvolutionRequest:
    """Compute the gradient of a convolution's filter: how a change of w changes a loss whose gradient at y is dy.

    That of an empty batch is zero.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous, its workspace serves it; it keeps the
        plan for the next one.
    x : device array
        The images, ``(N, C, *spatial)``; float32, float64, float16 or bfloat16.
    dy : device array
        The gradient of the result, ``(N, K, *spatial)``, of the dtype of `x`.
    conv : ConvolutionSpec
        Of the convolution: padding, stride, dilation, groups, mode, compute type, math type.
    w : FilterSpec, shape or device array, optional
        What the filter looked like, ``(K, C / groups, *taps)``; of a shape, in the dtype and layout
        of `x`.  With stride 1 it may be left out, as it may where `out` says it.
    alpha, beta : float
        dw = alpha * gradient + beta * dw, passed to cuDNN as double for double tensors, as float
        otherwise.  With beta = 0 `out` is not read.
    out : device array, optional
        dw, written in place, any strides without overlap; a new array if not given.
    algorithm : AlgorithmResult, Engine, ConvolutionBwdFilterAlgo or str, optional
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
        dw, with its taps in the order of the filter, whatever ``conv.mode`` is.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnBackendExecute`, or `cudnnConvolutionBackwardFilter`; for the first call of a
    kind, also those of `convolution_backward_filter.plan`. Those of the descriptor call are
    deprecated since cuDNN 9.0.0, still shipped and working.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x, dy = handle.array(np.ones((1, 3, 8, 8), np.float32)), handle.array(np.ones((1, 4, 4, 4), np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1, stride=2)
    ...     dw = dnn.convolution_backward_filter(handle, x, dy, conv, w=(4, 3, 3, 3))
    ...     total = dnn.convolution_backward_filter(handle, x, dy, conv, beta=1.0, out=dw)  # of two batches
    ...     print(total.shape, total.numpy()[0, 0].tolist())
    (4, 3, 3, 3) [[18.0, 24.0, 24.0], [24.0, 32.0, 32.0], [24.0, 32.0, 32.0]]

    A plan for many calls, and what cuDNN's search finds:

    >>> with dnn.Handle() as handle:
    ...     x, dy = handle.array(np.ones((1, 3, 8, 8), np.float32)), handle.array(np.ones((1, 4, 4, 4), np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1, stride=2)
    ...     with dnn.convolution_backward_filter.plan(handle, x, dy, conv, w=(4, 3, 3, 3)) as plan:
    ...         dw = plan(x, dy)
    ...         dw = plan(x, dy, out=dw)  # nothing is decided or allocated again
    ...     found = dnn.convolution_backward_filter.find(handle, x, dy, conv, w=dw)
    ...     print(dw.shape, found[0].time_ms > 0)
    (4, 3, 3, 3) True
    """
    result = _result_spec(handle, w, "w", x, "x", out)
    return ConvolutionRequest(
        handle,
        convolution_backward.FILTER,
        (x, dy),
        (conv,),
        alpha,
        beta,
        out,
        result,
        workspace,
        workspace_limit,
        algorithm,
        interface,
        replay,
    )


@convolution_operation(convolution_backward.DATA)
def convolution_transpose(
    handle: Handle,
    x: Operand,
    w: Operand,
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
    replay: bool = False,
) -> ConvolutionRequest:
    """Convolve transposed, as PyTorch's `conv_transpose1d` to `conv_transpose3d`: from the shape of a result to that of images.

    It is `convolution_backward_data` with `x` as dy, and is recorded and tuned as that.  The result
    is ``(N, C, *spatial)``, along an axis (size - 1) * stride - 2 * padding + dilation * (taps - 1)
    + output_padding + 1.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous, its workspace serves it; it keeps the
        plan for the next one.
    x : device array
        ``(N, K, *spatial)``; float32, float64, float16 or bfloat16.
    w : device array
        The filter, ``(K, C / groups, *taps)``, packed, of the dtype of `x`.
    conv : ConvolutionSpec
        Padding (what is cut off at both ends), stride (how far the results of neighbouring values
        lie apart), dilation, groups, mode, compute type, math type.
    output_padding : int or iterable of int
        What is added to the result at the end of each axis, below the stride: of the images that a
        convolution with this stride brings to the size of `x` the smallest has 0.
    alpha, beta : float
        y = alpha * result + beta * y, passed to cuDNN as double for double tensors, as float
        otherwise.  With beta = 0 `out` is not read.
    out : device array, optional
        y, written in place, any strides without overlap; a new array if not given.
    algorithm : AlgorithmResult, Engine, ConvolutionBwdDataAlgo or str, optional
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
    C functions: `cudnnBackendExecute`, or `cudnnConvolutionBackwardData`; for the first call of a
    kind, also those of `convolution_transpose.plan`. Those of the descriptor call are deprecated
    since cuDNN 9.0.0, still shipped and working.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x, w = handle.array(np.ones((1, 4, 4, 4), np.float32)), handle.array(np.ones((4, 3, 3, 3), np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1, stride=2)
    ...     y = dnn.convolution_transpose(handle, x, w, conv, output_padding=1)
    ...     print(y.shape, y.numpy()[0, 0, :2, :2].tolist())
    (1, 3, 8, 8) [[4.0, 8.0], [8.0, 16.0]]
    """
    x_spec, w_spec = operand_spec(handle, x, "x"), _filter_tensor(handle, w)
    shape = _transposed_shape(x_spec, w_spec, conv, output_padding)
    result = _result_spec(handle, shape, "conv", x, "x", out)
    return ConvolutionRequest(
        handle,
        convolution_backward.DATA,
        (w, x),
        (conv,),
        alpha,
        beta,
        out,
        result,
        workspace,
        workspace_limit,
        algorithm,
        interface,
        replay,
        ConvolutionTransposePlan,
    )


def _filter_tensor(handle: Handle, w: object) -> TensorSpec:
    """Return the spec of a filter's memory."""
    return as_tensor(w) if isinstance(w, FilterSpec) else operand_spec(handle, w, "w")


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


def _result_spec(
    handle: Handle, like: Any, argument: str, beside: Any, name: str, out: Any
) -> TensorSpec | FilterSpec | None:
    """Return what the result looks like: as `like` says, an array, a spec, or a shape beside `beside`.

    None where nobody says anything.  ArgumentError where `out` is something else.
    """
    if like is None:
        return None
    is_array = hasattr(like, "__dlpack__") and not isinstance(like, np.ndarray)
    spec = operand_spec(handle, like, argument) if is_array else getattr(like, "spec", like)
    is_shape = not isinstance(spec, (TensorSpec, FilterSpec))
    if is_shape:
        shape = parse_shape(like, argument)
        model = operand_spec(handle, beside, name)
        if len(shape) != model.rank:
            raise ArgumentError(f"{argument}={shape} is not of the rank of {name}, {model}")
        spec = model.packed(shape)
    if argument == "x" and isinstance(spec, FilterSpec):
        raise ArgumentError(
            f"x={spec} is a filter; needed: a TensorSpec, a shape or a device array"
        )
    out_spec = getattr(out, "spec", out)
    if not isinstance(out_spec, (TensorSpec, FilterSpec)):
        return spec
    if is_shape:  # `out` may have another data type and layout
        needed, fits = spec.shape, out_spec.shape == spec.shape
    else:
        needed, fits = spec, is_as(as_tensor(out_spec), spec)
    if not fits:
        raise ArgumentError(f"out is {out_spec}; the result is as {argument} says, {needed}")
    return spec
