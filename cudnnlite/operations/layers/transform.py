"""Padding, folding, and another layout or data type: of tensors and of filters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cudnnlite._raw.enums import FoldingDirection
from cudnnlite.arguments import shown
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import AnyDtype, parse_dtype
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.function import operation
from cudnnlite.plans.operands import operand_spec
from cudnnlite.plans.request import Request
from cudnnlite.problems.transform import EXTENDED, FILTER, TRANSFORM
from cudnnlite.specs import FilterSpec, TensorSpec
from cudnnlite.specs.layers import TensorTransformSpec
from cudnnlite.specs.layout import CHANNELS_LAST


def _transform(
    shape: tuple[int, ...], layout: str | None, padding: Any, fold: Any, unfold: Any
) -> TensorTransformSpec:
    if fold is not None and unfold is not None:
        raise ArgumentError(f"fold={shown(fold)} and unfold={shown(unfold)}; allowed: one of them")
    way = FoldingDirection.FOLD if unfold is None else FoldingDirection.UNFOLD
    ends = (0,) * len(shape) if padding is None else padding
    blocks = fold if unfold is None else unfold
    return TensorTransformSpec(ends, () if blocks is None else blocks, way, layout)


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
    """Copy a tensor into another layout, strides or data type; pad it, and fold blocks of pixels into channels.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous; it keeps the plan for the next call of
        the same kind.
    x : device array
        ``(N, C, *spatial)``, of any strides; float32, float64, float16, bfloat16 or int8.
    layout : str, optional
        Of the new array: "NCHW", "NHWC", ...; as `x` lies if not given.
    dtype : str, optional
        Of the new array; that of `x` if not given.  From float16 to bfloat16, or back, cuDNN does
        not convert.
    padding : sequence, optional
        For each axis how many zeros to add: a number, or a pair of them, before and behind.
    fold, unfold : sequence of int, optional
        The blocks along each spatial axis; see `TensorTransformSpec`.  With these or a padding x
        has rank 4 or 5, `beta` is 0, and cuDNN converts to float32, float16 and bfloat16 alone.
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
    still shipped and working.

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
    for name, value in (("layout", layout), ("dtype", dtype)):
        if value is not None and out is not None:
            raise ArgumentError(f"{name}={shown(value)} is given beside out, which has its own")
    source = operand_spec(handle, x, "x")
    result_dtype = source.dtype if dtype is None else parse_dtype(dtype)
    if padding is None and fold is None and unfold is None:
        result = None
        if layout is not None:
            result = TensorSpec(source.shape, result_dtype, layout)
        elif dtype is not None:
            result = source.packed(source.shape, result_dtype)
        return Request(handle, TRANSFORM, (x,), (), alpha, beta, out, result)
    if layout is None:
        model = source if out is None else operand_spec(handle, out, "out")
        layout = CHANNELS_LAST.get(source.rank) if model.is_channels_last else None
    transform = _transform(source.shape, layout, padding, fold, unfold)
    result = TensorSpec(transform.output_shape(source.shape), result_dtype, transform.layout)
    return Request(handle, EXTENDED, (x,), (transform,), alpha, beta, out, result)


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
    """Copy a filter into another layout or data type; pad it, and fold blocks of taps into channels.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous; it keeps the plan for the next call of
        the same kind.
    w : device array
        ``(K, C, *taps)`` without gaps, two or three axes of taps; float32, float64, float16,
        bfloat16 or int8.
    layout, dtype, padding, fold, unfold
        As in `transform_tensor`; a dtype other than that of `w` is float32, float16 or bfloat16.
        `beta` is 0.
    alpha, beta : float
        Host scalars: y = alpha * result + beta * y.  With beta = 0 `out` is not read.
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
        transform = _transform(
            spec.shape, source.layout if layout is None else layout, padding, fold, unfold
        )
        target = FilterSpec(
            transform.output_shape(spec.shape, "w"),
            spec.dtype if dtype is None else dtype,
            transform.layout,
        )
    else:
        if layout is not None or dtype is not None:
            raise ArgumentError(
                f"layout={shown(layout)}, dtype={shown(dtype)} beside out, which has its own"
            )
        target = FilterSpec.from_tensor(operand_spec(handle, out, "out"), argument="out")
        transform = _transform(spec.shape, target.layout, padding, fold, unfold)
        if target.shape != transform.output_shape(spec.shape, "w"):
            raise ArgumentError(
                f"out has shape {target.shape}; needed: {transform.output_shape(spec.shape)}"
            )
    return Request(handle, FILTER, (w,), (source, target, transform), alpha, beta, out)
