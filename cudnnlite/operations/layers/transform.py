"""Changes of layout, data type, padding and folding, of tensors and of filters."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from cudnnlite._raw.enums import FoldingDirection
from cudnnlite.arguments import shown
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import AnyDtype, dtype_name, parse_dtype
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.graph.graph import Graph
from cudnnlite.operations.layers.graph_activation import pointwise_graph
from cudnnlite.plans.function import operation
from cudnnlite.plans.graph_plan import plan_or_graph
from cudnnlite.plans.operands import operand_spec
from cudnnlite.plans.request import Request
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.transform import EXTENDED, FILTER, TRANSFORM
from cudnnlite.specs import FilterSpec, TensorSpec
from cudnnlite.specs.layers import TensorTransformSpec
from cudnnlite.specs.layout import CHANNELS_LAST, parse_layout


def _transform(
    shape: tuple[int, ...], layout: str | None, padding: Any, fold: Any, unfold: Any
) -> TensorTransformSpec:
    """Return the spec of a transformation from its arguments."""
    if fold is not None and unfold is not None:
        raise ArgumentError(f"fold={shown(fold)} and unfold={shown(unfold)}; allowed: one of them")
    direction, blocks = FoldingDirection.FOLD, fold
    if unfold is not None:
        direction, blocks = FoldingDirection.UNFOLD, unfold
    if blocks is None:
        blocks = ()
    if padding is None:
        padding = (0,) * len(shape)
    return TensorTransformSpec(padding, blocks, direction, layout)


def _check_agreement(out: TensorSpec, layout: str | None, dtype: AnyDtype | None) -> None:
    """Raise ArgumentError if `layout` or `dtype` is not that of `out`."""
    if dtype is not None and parse_dtype(dtype) != out.dtype:
        raise ArgumentError(f"dtype={shown(dtype)} beside out, which is {dtype_name(out.dtype)}")
    if layout is not None and not out.fits(parse_layout(layout, out.rank)):
        raise ArgumentError(f"layout={shown(layout)} beside out, which is {out}")


@operation
def transform_tensor(
    handle: Handle,
    x: Operand,
    *,
    layout: str | None = None,
    dtype: AnyDtype | None = None,
    padding: Iterable[Any] | None = None,
    fold: Iterable[int] | None = None,
    unfold: Iterable[int] | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Copy a tensor to another layout or data type, with padding or folding.

    Folding turns each block of pixels into channels of one pixel.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    x : device array
        ``(N, C, *spatial)``, with any strides; float32, float64, float16, bfloat16 or int8.
    layout : str, optional
        The layout of the result: "NCHW", "NHWC", ...; that of `out`, or of `x`, if not given.
    dtype : str, optional
        The dtype of the result; that of `out`, or of `x`, if not given.  cuDNN does not convert
        between float16 and bfloat16, and to float64 only packed images of more than one pixel in
        one layout.
    padding : sequence, optional
        For each axis the number of zeros to add at both ends, or a pair of numbers: zeros before
        and zeros behind.
    fold, unfold : sequence of int, optional
        The size of a block along each spatial axis; see `TensorTransformSpec`.  With folding or
        padding `x` must have rank 4 or 5, `beta` must be 0, and cuDNN converts to float32, float16
        and bfloat16 alone.
    alpha, beta : float
        Host scalars: y = alpha * result + beta * y.  With beta = 0 `out` is not read.
    out : device array, optional
        y, written in place; a new array if not given.

    Returns
    -------
    DeviceArray
        y, shaped as `x`, or as padding and folding make it.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnTransformTensor`, `cudnnTransformTensorEx`, deprecated since cuDNN 9.0.0,
    still shipped and working; or `cudnnBackendExecute`, if libcudnn lacks the first.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2))
    ...     y = dnn.transform_tensor(handle, x, layout="NHWC")
    ...     print(y.spec.layout, y.spec.strides, (y.numpy() == x.numpy()).all())
    ...     print(dnn.transform_tensor(handle, x, padding=(0, 0, 0, (1, 0))).numpy()[0, 0])
    ...     print(dnn.transform_tensor(handle, x, fold=(2, 2)).numpy().ravel())
    NHWC (8, 1, 4, 2) True
    [[0. 0. 1.]
     [0. 2. 3.]]
    [0. 4. 1. 5. 2. 6. 3. 7.]
    """
    if out is not None:
        _check_agreement(operand_spec(handle, out, "out"), layout, dtype)
    source = operand_spec(handle, x, "x")
    is_plain_copy = padding is None and fold is None and unfold is None
    declaration = TRANSFORM if is_plain_copy else EXTENDED
    result_dtype = source.dtype
    if dtype is not None:
        result_dtype = parse_dtype(dtype)
        if result_dtype not in declaration.dtypes:
            allowed = ", ".join(map(dtype_name, declaration.dtypes))
            raise ArgumentError(f"dtype={shown(dtype)}; allowed: {allowed}")
    if is_plain_copy:
        result = None
        if out is None and layout is not None:
            result = TensorSpec(source.shape, result_dtype, layout)
        elif out is None and dtype is not None:
            result = source.packed(source.shape, result_dtype)
        return Request(
            handle, declaration, (x,), (), alpha, beta, out, result, plan_problem=_copy_plan
        )
    if layout is None:
        model = source if out is None else operand_spec(handle, out, "out")
        layout = CHANNELS_LAST.get(source.rank) if model.is_channels_last else None
    transform = _transform(source.shape, layout, padding, fold, unfold)
    result = TensorSpec(transform.output_shape(source.shape), result_dtype, transform.layout)
    return Request(handle, declaration, (x,), (transform,), alpha, beta, out, result)


def _copy_graph(problem: Problem) -> Graph:
    """Return a copy of a tensor in its own layout, which may have another data type, as a graph."""
    graph, (x,) = pointwise_graph(problem, ("x",))
    graph.output("y", graph.identity(x), problem.y.dtype)
    return graph


_copy_plan = partial(plan_or_graph, make_graph=_copy_graph)


@operation
def transform_filter(
    handle: Handle,
    w: Operand,
    *,
    layout: str | None = None,
    dtype: AnyDtype | None = None,
    padding: Iterable[Any] | None = None,
    fold: Iterable[int] | None = None,
    unfold: Iterable[int] | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Copy a filter to another layout or data type, with padding or folding.

    Folding turns each block of taps into channels of one tap.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    w : device array
        The filter, ``(K, C, *taps)`` without gaps, with two or three axes of taps; float32,
        float64, float16, bfloat16 or int8.
    layout, dtype, padding, fold, unfold
        As in `transform_tensor`.  A dtype other than that of `w` must be float32, float16 or
        bfloat16.
    alpha, beta : float
        Host scalars: y = alpha * result.  `beta` must be 0.
    out : device array, optional
        y, written in place; a new array if not given.

    Returns
    -------
    DeviceArray
        y, shaped as `w`, or as padding and folding make it.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnTransformFilter`, deprecated since cuDNN 9.0.0, still shipped and working.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     w = handle.array(np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2))
    ...     print(dnn.transform_filter(handle, w, padding=(0, 0, 0, (0, 1))).numpy()[0, 0])
    [[0. 1. 0.]
     [2. 3. 0.]]
    """
    spec = operand_spec(handle, w, "w")
    source = FilterSpec.from_tensor(spec)
    if out is None:
        if layout is None:
            layout = source.layout
        if dtype is None:
            dtype = spec.dtype
        transform = _transform(spec.shape, layout, padding, fold, unfold)
        shape = transform.output_shape(spec.shape, "w")
        target = FilterSpec(shape, dtype, transform.layout)
    else:
        _check_agreement(operand_spec(handle, out, "out"), layout, dtype)
        target = FilterSpec.from_tensor(operand_spec(handle, out, "out"), argument="out")
        transform = _transform(spec.shape, target.layout, padding, fold, unfold)
        if target.shape != transform.output_shape(spec.shape, "w"):
            raise ArgumentError(
                f"out has shape {target.shape}; needed: {transform.output_shape(spec.shape)}"
            )
    return Request(handle, FILTER, (w,), (source, target, transform), alpha, beta, out)
