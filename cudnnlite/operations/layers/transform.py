"""Padding, folding, and another layout or data type: of tensors and of filters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cudnnlite._raw.enums import FoldingDirection
from cudnnlite.arguments import shown
from cudnnlite.devices.foreign import AnyArray
from cudnnlite.dtypes import AnyDtype, parse_dtype
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.family import DeviceArray, Handle, call, documented
from cudnnlite.plans.operands import on_device, use
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


@documented(TRANSFORM, "shaped as `x`, or as padding and folding make it", EXTENDED)
def transform_tensor(
    handle: Handle,
    x: AnyArray,
    *,
    layout: str | None = None,
    dtype: AnyDtype | None = None,
    padding: Iterable[Any] | None = None,
    fold: Iterable[int] | None = None,
    unfold: Iterable[int] | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Copy a tensor into another layout, strides or data type; pad it, and fold blocks of pixels into channels.

    Parameters
    ----------
    x : device array
        ``(N, C, *spatial)``, of any strides; float32, float64, float16, bfloat16 or int8.
    layout : str, optional
        Of the new array: "NCHW", "NHWC", ...; as `x` lies if not given.
    dtype : str, optional
        Of the new array; that of `x` if not given.  From float16 to bfloat16, or back, cuDNN does not convert.
    padding : sequence, optional
        For each axis how many zeros to add: a number, or a pair of them, before and behind.
    fold, unfold : sequence of int, optional
        The blocks along each spatial axis; see `TensorTransformSpec`.  With these or a padding x has rank 4 or 5, `beta` is 0,
        and cuDNN converts to float32, float16 and bfloat16 alone.

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
    use(handle)
    x = on_device(handle, x, "x")
    kind = x.spec.dtype if dtype is None else parse_dtype(dtype)
    if padding is None and fold is None and unfold is None:
        wanted = None
        if layout is not None or dtype is not None:
            wanted = (
                x.spec.packed(x.shape, kind)
                if layout is None
                else TensorSpec(x.shape, kind, layout)
            )
        return call(handle, TRANSFORM, (x,), (), alpha, beta, out, wanted=wanted)
    if layout is None:
        lies = x.spec if out is None else on_device(handle, out, "out").spec
        layout = CHANNELS_LAST.get(x.spec.rank) if lies.is_channels_last else None
    transform = _transform(x.shape, layout, padding, fold, unfold)
    wanted = TensorSpec(transform.output_shape(x.shape), kind, transform.layout)
    return call(handle, EXTENDED, (x,), (transform,), alpha, beta, out, wanted=wanted)


@documented(FILTER, "shaped as `w`, or as padding and folding make it")
def transform_filter(
    handle: Handle,
    w: AnyArray,
    *,
    layout: str | None = None,
    dtype: AnyDtype | None = None,
    padding: Iterable[Any] | None = None,
    fold: Iterable[int] | None = None,
    unfold: Iterable[int] | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Copy a filter into another layout or data type; pad it, and fold blocks of taps into channels.

    Parameters
    ----------
    w : device array
        ``(K, C, *taps)`` without gaps, two or three axes of taps; float32, float64, float16, bfloat16 or int8.
    layout, dtype, padding, fold, unfold
        As in `transform_tensor`; a dtype other than that of `w` is float32, float16 or bfloat16.  `beta` is 0.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     w = handle.array(np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2))
    ...     print(dnn.transform_filter(handle, w, padding=(0, 0, 0, (0, 1))).numpy()[0, 0])
    [[0. 1. 0.]
     [2. 3. 0.]]
    """
    use(handle)
    w = on_device(handle, w, "w")
    source = FilterSpec.from_tensor(w.spec)
    if out is None:
        transform = _transform(
            w.shape, source.layout if layout is None else layout, padding, fold, unfold
        )
        target = FilterSpec(
            transform.output_shape(w.shape, "w"),
            w.spec.dtype if dtype is None else dtype,
            transform.layout,
        )
    else:
        if layout is not None or dtype is not None:
            raise ArgumentError(
                f"layout={shown(layout)}, dtype={shown(dtype)} beside out, which has its own"
            )
        target = FilterSpec.from_tensor(on_device(handle, out, "out").spec, argument="out")
        transform = _transform(w.shape, target.layout, padding, fold, unfold)
        if target.shape != transform.output_shape(w.shape, "w"):
            raise ArgumentError(
                f"out has shape {target.shape}; needed: {transform.output_shape(w.shape)}"
            )
    return call(handle, FILTER, (w,), (source, target, transform), alpha, beta, out)
