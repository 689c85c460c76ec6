"""The gradients of a convolution, and the transposed convolution."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from cudnnlite.arguments import instance_of
from cudnnlite.devices.foreign import AnyArray, Like, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import (
    ConvolutionBwdDataAlgo,
    ConvolutionBwdFilterAlgo,
)
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.engines import Engine
from cudnnlite.operations.convolution.function import convolution_operation
from cudnnlite.operations.convolution.request import ConvolutionRequest
from cudnnlite.plans.operands import operand_spec
from cudnnlite.problems import convolution_backward
from cudnnlite.problems.convolution import DEFAULT_CONV
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec
from cudnnlite.specs.filter import as_tensor, matches_spec
from cudnnlite.specs.layout import parse_shape


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
    """Compute the gradient of a convolution's input from `dy`, the gradient of its result.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream, is asynchronous, and uses its workspace.  The handle
        keeps the plan for the next call of the same kind.
    w : device array
        The filter, ``(K, C / groups, *taps)``, packed; float32, float64, float16 or bfloat16.
    dy : device array
        The gradient of the result, ``(N, K, *spatial)``, of the dtype of `w`.
    conv : ConvolutionSpec
        The convolution's padding, stride, dilation, groups, mode, compute type and math type.
    x : TensorSpec, shape or device array, optional
        The spec of the convolution's input, ``(N, C, *spatial)``.  A shape stands for a tensor with
        the dtype and layout of `dy`.  It is needed if the stride is not 1 and `out` is not given.
    alpha, beta : float
        dx = alpha * gradient + beta * dx, passed to cuDNN as double for double tensors, as float
        otherwise.  With beta = 0 `out` is not read.
    out : device array, optional
        dx, written in place; its strides may be any that do not overlap.  A new array if not given.
    algorithm : AlgorithmResult, Engine, ConvolutionBwdDataAlgo or str, optional
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
    ...     w = handle.array(np.ones((4, 3, 3, 3), np.float32))
    ...     dy = handle.array(np.ones((1, 4, 4, 4), np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1, stride=2)
    ...     dx = dnn.convolution_backward_data(handle, w, dy, conv, x=(1, 3, 8, 8))
    ...     same = dnn.convolution_backward_data(handle, w, dy, conv, out=dx, algorithm="ALGO_1")
    ...     print(same.shape, same.numpy()[0, 0, :2, :2].tolist())
    (1, 3, 8, 8) [[4.0, 8.0], [8.0, 16.0]]

    A plan for many calls, and the search of cuDNN:

    >>> with dnn.Handle() as handle:
    ...     w = handle.array(np.ones((4, 3, 3, 3), np.float32))
    ...     dy = handle.array(np.ones((1, 4, 4, 4), np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1, stride=2)
    ...     with dnn.convolution_backward_data.plan(handle, w, dy, conv, x=(1, 3, 8, 8)) as plan:
    ...         dx = plan(w, dy)
    ...         dx = plan(w, dy, out=dx)  # nothing is decided or allocated again
    ...     found = dnn.convolution_backward_data.find(handle, w, dy, conv, x=dx)
    ...     plan = dnn.convolution_backward_data.plan(
    ...         handle, w, dy, conv, x=dx, interface="descriptor"
    ...     )
    ...     with plan:
    ...         same = (plan(w, dy).numpy() == dx.numpy()).all()
    ...     print(dx.shape, found[0].time_ms > 0, same)
    (1, 3, 8, 8) True True
    """
    result = _result_spec(handle, x, "x", model=dy, model_name="dy", out=out)
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
    """Compute the gradient of a convolution's filter from `dy`, the gradient of its result.

    The gradient of an empty batch is zero.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream, is asynchronous, and uses its workspace.  The handle
        keeps the plan for the next call of the same kind.
    x : device array
        The images, ``(N, C, *spatial)``; float32, float64, float16 or bfloat16.
    dy : device array
        The gradient of the result, ``(N, K, *spatial)``, of the dtype of `x`.
    conv : ConvolutionSpec
        The convolution's padding, stride, dilation, groups, mode, compute type and math type.
    w : FilterSpec, shape or device array, optional
        The spec of the filter, ``(K, C / groups, *taps)``.  A shape stands for a filter with the
        dtype and layout of `x`.  It is needed if the stride is not 1 and `out` is not given.
    alpha, beta : float
        dw = alpha * gradient + beta * dw, passed to cuDNN as double for double tensors, as float
        otherwise.  With beta = 0 `out` is not read.
    out : device array, optional
        dw, written in place; its strides may be any that do not overlap.  A new array if not given.
    algorithm : AlgorithmResult, Engine, ConvolutionBwdFilterAlgo or str, optional
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
        dw.  For either ``conv.mode`` its taps have the order of the filter's taps.

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
    ...     x = handle.array(np.ones((1, 3, 8, 8), np.float32))
    ...     dy = handle.array(np.ones((1, 4, 4, 4), np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1, stride=2)
    ...     dw = dnn.convolution_backward_filter(handle, x, dy, conv, w=(4, 3, 3, 3))
    ...     # Add the gradient of a second batch.
    ...     total = dnn.convolution_backward_filter(handle, x, dy, conv, beta=1.0, out=dw)
    ...     print(total.shape, total.numpy()[0, 0].tolist())
    (4, 3, 3, 3) [[18.0, 24.0, 24.0], [24.0, 32.0, 32.0], [24.0, 32.0, 32.0]]

    A plan for many calls, and the search of cuDNN:

    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 3, 8, 8), np.float32))
    ...     dy = handle.array(np.ones((1, 4, 4, 4), np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1, stride=2)
    ...     with dnn.convolution_backward_filter.plan(handle, x, dy, conv, w=(4, 3, 3, 3)) as plan:
    ...         dw = plan(x, dy)
    ...         dw = plan(x, dy, out=dw)  # nothing is decided or allocated again
    ...     found = dnn.convolution_backward_filter.find(handle, x, dy, conv, w=dw)
    ...     print(dw.shape, found[0].time_ms > 0)
    (4, 3, 3, 3) True
    """
    result = _result_spec(handle, w, "w", model=x, model_name="x", out=out)
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
    """Compute a transposed convolution, as PyTorch's `conv_transpose1d` to `conv_transpose3d` do.

    The call is `convolution_backward_data` with `x` as dy.  Traces, problem lists and tunings name
    it so.  The result is ``(N, C, *spatial)``.  Its size along an axis is (size - 1) * stride -
    padding before - padding behind + dilation * (taps - 1) + output_padding + 1.  With
    padding="same" it is size * stride.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream, is asynchronous, and uses its workspace.  The handle
        keeps the plan for the next call of the same kind.
    x : device array
        The images, ``(N, K, *spatial)``; float32, float64, float16 or bfloat16.
    w : device array
        The filter, ``(K, C / groups, *taps)``, packed, of the dtype of `x`.
    conv : ConvolutionSpec
        Padding (the pixels cut off at both ends of an axis), stride (the distance between the
        results of neighbouring values), dilation, groups, mode, compute type, math type.
    output_padding : int or iterable of int
        The pixels added to the result at the end of each axis, fewer than the stride.  It selects
        the result's size: with a stride, a convolution maps images of several sizes to the size of
        `x`, and 0 stands for the smallest of them.  If the dilation is larger than the stride, as
        many pixels of the padding behind an axis may be kept that there are fewer than the
        dilation; a graph computes this.
    alpha, beta : float
        y = alpha * result + beta * y, passed to cuDNN as double for double tensors, as float
        otherwise.  With beta = 0 `out` is not read.
    out : device array, optional
        y, written in place; its strides may be any that do not overlap.  A new array if not given.
    algorithm : AlgorithmResult, Engine, ConvolutionBwdDataAlgo or str, optional
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
    C functions: `cudnnBackendExecute`, or `cudnnConvolutionBackwardData`; for the first call of a
    kind, also those of `convolution_transpose.plan`. Those of the descriptor call are deprecated
    since cuDNN 9.0.0, still shipped and working.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 4, 4, 4), np.float32))
    ...     w = handle.array(np.ones((4, 3, 3, 3), np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1, stride=2)
    ...     y = dnn.convolution_transpose(handle, x, w, conv, output_padding=1)
    ...     print(y.shape, y.numpy()[0, 0, :2, :2].tolist())
    (1, 3, 8, 8) [[4.0, 8.0], [8.0, 16.0]]
    """
    x_spec, w_spec = operand_spec(handle, x, "x"), _filter_tensor(handle, w)
    shape = _transposed_shape(x_spec, w_spec, conv, output_padding)
    result = _result_spec(handle, shape, "conv", model=x, model_name="x", out=out)
    return ConvolutionRequest(
        handle,
        convolution_backward.DATA,
        (w, x),
        (conv.with_output_padding(output_padding, x_spec.rank - 2),),
        alpha,
        beta,
        out,
        result,
        workspace,
        workspace_limit,
        algorithm,
        interface,
        replay,
        _OPERANDS_OF_TRANSPOSED,
    )


_OPERANDS_OF_TRANSPOSED = {"x": "dy", "w": "w"}


def _filter_tensor(handle: Handle, w: object) -> TensorSpec:
    """Return the spec of a filter's memory."""
    if isinstance(w, FilterSpec):
        return as_tensor(w)
    return operand_spec(handle, w, "w")


def _fit_together(x: TensorSpec, w: TensorSpec) -> bool:
    """Return whether images and a filter can be operands of a transposed convolution."""
    if x.rank != w.rank or not 3 <= x.rank <= 5:
        return False
    return x.dtype == w.dtype and x.shape[1] == w.shape[0]


def _transposed_shape(
    x: TensorSpec, w: TensorSpec, conv: Any, output_padding: Any
) -> tuple[int, ...]:
    """Return the shape of a transposed convolution's result."""
    spec = instance_of(conv, ConvolutionSpec, "conv")
    if not _fit_together(x, w):
        raise ArgumentError(
            f"x={x}, w={w}; needed: (N, K, *spatial) and (K, C / groups, *taps) "
            "of one dtype and the same rank 3, 4 or 5"
        )
    return spec.transposed_output_shape(x.shape, w.shape, output_padding)


def _result_spec(
    handle: Handle, like: Any, argument: str, *, model: Any, model_name: str, out: Any
) -> TensorSpec | FilterSpec | None:
    """Return the spec of the result, as the argument `like` says; None if `like` is None.

    `like` is an array, a spec or a shape, and `argument` is its name.  A shape takes the dtype and
    layout of `model`, the operand called `model_name`.  ArgumentError if `out` has another spec.
    """
    if like is None:
        return None
    spec = _spec_of(handle, like, argument)
    is_shape = spec is None
    if spec is None:
        shape = parse_shape(like, argument)
        model_spec = operand_spec(handle, model, model_name)
        if len(shape) != model_spec.rank:
            raise ArgumentError(
                f"{argument}={shape} is not of the rank of {model_name}, {model_spec}"
            )
        spec = model_spec.packed(shape)
    if argument == "x" and isinstance(spec, FilterSpec):
        raise ArgumentError(
            f"x={spec} is a filter; needed: a TensorSpec, a shape or a device array"
        )
    _check_out(out, spec, argument, has_only_shape=is_shape)
    return spec


def _spec_of(handle: Handle, like: Any, argument: str) -> TensorSpec | FilterSpec | None:
    """Return the spec of a device array, or a spec itself; None for anything else."""
    if hasattr(like, "__dlpack__") and not isinstance(like, np.ndarray):
        return operand_spec(handle, like, argument)
    spec = getattr(like, "spec", like)
    if isinstance(spec, (TensorSpec, FilterSpec)):
        return spec
    return None


def _check_out(
    out: Any, spec: TensorSpec | FilterSpec, argument: str, *, has_only_shape: bool
) -> None:
    """Refuse an `out` that does not match the result's spec, which `argument` determines.

    With `has_only_shape` the argument is a shape: `out` may have another data type and layout.
    """
    out_spec = getattr(out, "spec", out)
    if not isinstance(out_spec, (TensorSpec, FilterSpec)):
        return
    if has_only_shape:
        if out_spec.shape != spec.shape:
            raise ArgumentError(
                f"out is {out_spec}; the result is as {argument} says, {spec.shape}"
            )
    elif not matches_spec(as_tensor(out_spec), spec):
        raise ArgumentError(f"out is {out_spec}; the result is as {argument} says, {spec}")
