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
    """Copy the values under each tap of a filter into a matrix.

    The matrix has a row for each channel and tap, and a column for each position of each image.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    x : device array
        ``(N, C, *spatial)``, one or two spatial axes; float32, float64, float16 or bfloat16.
    w : FilterSpec, array or tuple of int
        The shape of the filter, ``(K, C, *taps)``.  Its values are not read; its dtype must be that
        of `x`.
    conv : ConvolutionSpec
        Padding, stride and dilation; it has one group.  With mode="convolution" the taps come in
        reverse order.
    out : device array, optional
        The columns, written in place; a new array if not given.

    Returns
    -------
    DeviceArray
        The columns, ``(C * taps, N * positions)``: ``w.reshape(K, -1) @ columns`` is the
        convolution.

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
