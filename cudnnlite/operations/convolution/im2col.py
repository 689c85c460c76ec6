"""The columns that make a convolution a matrix product."""

from __future__ import annotations

from cudnnlite.arguments import shown
from cudnnlite.devices.foreign import AnyArray
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.family import DeviceArray, Handle, call, documented
from cudnnlite.plans.operands import on_device, use
from cudnnlite.problems.convolution import DEFAULT_CONV
from cudnnlite.problems.im2col import IM2COL
from cudnnlite.specs import ConvolutionSpec, FilterSpec


@documented(
    IM2COL,
    "of shape ``(C * taps, N * positions)``, so that ``w.reshape(K, -1) @ columns`` is the convolution",
)
def im2col(
    handle: Handle,
    x: AnyArray,
    w: FilterSpec | tuple[int, ...],
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Copy what each tap of a filter meets into a matrix: a row for each tap, a column for each position.

    Parameters
    ----------
    x : device array
        ``(N, C, *spatial)``, one or two spatial axes; float32, float64, float16 or bfloat16.
    w : FilterSpec, array or tuple of int
        What the filter looks like, ``(K, C, *taps)``; its values are not read, and its dtype is that of `x`.
    conv : ConvolutionSpec
        Padding, stride and dilation, of one group; with mode="convolution" the taps come in reverse order.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3))
    ...     print(dnn.im2col(handle, x, (1, 1, 2, 2)).numpy())
    [[0. 1. 3. 4.]
     [1. 2. 4. 5.]
     [3. 4. 6. 7.]
     [4. 5. 7. 8.]]
    """
    if not isinstance(w, FilterSpec):
        use(handle)
        x = on_device(handle, x, "x")
        try:
            w = FilterSpec(getattr(w, "shape", w), x.spec.dtype)
        except ArgumentError as error:
            raise ArgumentError(
                f"w={shown(w)} is neither a FilterSpec nor a filter's shape: {error}"
            ) from error
    return call(handle, IM2COL, (x,), (w, conv), out=out)
