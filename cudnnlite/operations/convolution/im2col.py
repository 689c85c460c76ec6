"""The columns that make a convolution a matrix product."""

from __future__ import annotations

from cudnnlite.arguments import shown
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.function import operation
from cudnnlite.plans.operands import operand_spec
from cudnnlite.plans.request import Request
from cudnnlite.problems.convolution import DEFAULT_CONV
from cudnnlite.problems.im2col import IM2COL
from cudnnlite.specs import ConvolutionSpec, FilterSpec


@operation
def im2col(
    handle: Handle,
    x: Operand,
    w: FilterSpec | tuple[int, ...],
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Copy what each tap of a filter meets into a matrix: a row for each tap, a column for each position.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous; it keeps the plan for the next call of
        the same kind.
    x : device array
        ``(N, C, *spatial)``, one or two spatial axes; float32, float64, float16 or bfloat16.
    w : FilterSpec, array or tuple of int
        What the filter looks like, ``(K, C, *taps)``; its values are not read, and its dtype is
        that of `x`.
    conv : ConvolutionSpec
        Padding, stride and dilation, of one group; with mode="convolution" the taps come in reverse
        order.
    out : device array, optional
        columns, written in place; a new array if not given.

    Returns
    -------
    DeviceArray
        columns, of shape ``(C * taps, N * positions)``, so that ``w.reshape(K, -1) @ columns`` is
        the convolution.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnIm2Col`, deprecated since cuDNN 9.0.0, still shipped and working.

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
        dtype = operand_spec(handle, x, "x").dtype
        try:
            w = FilterSpec(getattr(w, "shape", w), dtype)
        except ArgumentError as error:
            raise ArgumentError(
                f"w={shown(w)} is neither a FilterSpec nor a filter's shape: {error}"
            ) from error
    return Request(handle, IM2COL, (x,), (w, conv), out=out)
