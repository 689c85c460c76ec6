"""Arithmetic on whole tensors: add, scale, set, operations on two of them, reductions, transformation."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from cudnnlite.arguments import integer, integers, real_number, shown
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import DataType, OpTensorOp, ReduceTensorOp
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.function import operation
from cudnnlite.plans.operands import operand_spec
from cudnnlite.plans.request import Request
from cudnnlite.problems.pointwise import ADD, OP, REDUCE, REDUCE_WITH_INDICES, SCALE, SET
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import OpTensorSpec, ReduceTensorSpec


@operation
def add_tensor(
    handle: Handle, a: Operand, c: AnyArray, *, alpha: float = 1.0, beta: float = 1.0
) -> Request[DeviceArray]:
    """Add a tensor to another in place, a bias for instance.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous; it keeps the plan for the next call of
        the same kind.
    a : device array
        What is added; each of its sizes is that of `c`, or 1: it is repeated along that axis.
    c : device array
        What it is added to, and where the sum goes.
    alpha, beta : float
        Host scalars: c = alpha * result + beta * c.  With beta = 0 `c` is not read.

    Returns
    -------
    DeviceArray
        c, which was given.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnAddTensor`, deprecated since cuDNN 9.0.0, still shipped and working.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     y = handle.array(np.zeros((1, 2, 1, 3), np.float32))
    ...     bias = handle.array(np.array([1, 2], np.float32).reshape(1, 2, 1, 1))
    ...     print(dnn.add_tensor(handle, bias, y).numpy().ravel())
    [1. 1. 1. 2. 2. 2.]
    """
    return Request(handle, ADD, (a,), (), alpha, beta, c)


@operation
def scale_tensor(handle: Handle, y: AnyArray, alpha: float) -> Request[DeviceArray]:
    """Multiply all values of a tensor by a number, in place.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous; it keeps the plan for the next call of
        the same kind.
    y : device array
        What is scaled, and where it goes.
    alpha : float
        The number.

    Returns
    -------
    DeviceArray
        y, which was given.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnScaleTensor`, deprecated since cuDNN 9.0.0, still shipped and working.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     print(dnn.scale_tensor(handle, handle.array([[1.0, 2.0]], dtype="float32"), 0.5).numpy())
    [[0.5 1. ]]
    """
    return Request(handle, SCALE, (), (), alpha, 0.0, y)


@operation
def set_tensor(handle: Handle, y: AnyArray, value: float) -> Request[DeviceArray]:
    """Set all values of a tensor; gaps between its strides keep what they hold.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous; it keeps the plan for the next call of
        the same kind.
    y : device array
        What is written: float32, float64, float16 or bfloat16.
    value : float
        The number.

    Returns
    -------
    DeviceArray
        y, which was given.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnSetTensor`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     print(dnn.set_tensor(handle, handle.empty((1, 3)), 7).numpy())
    [[7. 7. 7.]]
    """
    return Request(handle, SET, (), (value,), 1.0, 0.0, y)


@operation
def op_tensor(
    handle: Handle,
    a: Operand,
    b: Operand,
    op: OpTensorSpec | OpTensorOp | str,
    *,
    alpha1: float = 1.0,
    alpha2: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Add, multiply, or take the smaller or larger of two tensors, value by value: c = op(alpha1 * a, alpha2 * b) + beta * c.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous; it keeps the plan for the next call of
        the same kind.
    a, b : device arrays
        Each size of `b` is that of `a`, or 1: it is repeated along that axis.  "sqrt" and "not" are
        of `a` alone: give it twice.
    op : OpTensorSpec, OpTensorOp or str
        "add", "mul", "min", "max", "sqrt" or "not".
    alpha1, alpha2, beta : float
        Host scalars, of `a`, of `b`, and of what `out` holds; with beta = 0 it is not read.
    out : device array, optional
        c, written in place; a new array if not given.  It may be `a` itself.

    Returns
    -------
    DeviceArray
        c, shaped as `a`.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnOpTensor`, deprecated since cuDNN 9.0.0, still shipped and working.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     a = handle.array(np.arange(6, dtype=np.float32).reshape(1, 2, 1, 3))
    ...     b = handle.array(np.array([10, 20], np.float32).reshape(1, 2, 1, 1))
    ...     print(dnn.op_tensor(handle, a, b, "add").numpy().ravel())
    ...     print(dnn.op_tensor(handle, a, b, "min", alpha2=0.2).numpy().ravel())
    [10. 11. 12. 23. 24. 25.]
    [0. 1. 2. 3. 4. 4.]
    """
    return Request(handle, OP, (a, b), (op, alpha1, alpha2), 1.0, beta, out)


@operation
def reduce_tensor(
    handle: Handle,
    a: Operand,
    op: ReduceTensorSpec | ReduceTensorOp | str,
    *,
    axes: int | Iterable[int] | None = None,
    indices: bool | AnyArray = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> Request[Any]:
    """Reduce a tensor along some axes: sum, product, smallest, largest, mean, norms.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous; it keeps the plan for the next call of
        the same kind.
    a : device array
        What is reduced.
    op : ReduceTensorSpec, ReduceTensorOp or str
        "add", "mul", "min", "max", "amax" (of absolute values), "avg", "norm1", "norm2" or
        "mul_no_zeros".
    axes : int or iterable of int, optional
        Along which; negative ones count from the end.  All if not given; where `out` is given its
        shape says it: each size is that of `a`, or 1 along the axes that are reduced.  One of them
        at least has another size than 1.
    indices : bool or device array
        True: return ``(c, indices)``, where each minimum or maximum ("min", "max", "amax") was
        found, as int32, shaped as c: counted over the axes that are reduced, the last one first.
        Or the int32 array to write them into.
    alpha, beta : float
        Host scalars: c = alpha * result + beta * c.  With beta = 0 `out` is not read.
    out : device array, optional
        c, written in place; a new array if not given.

    Returns
    -------
    DeviceArray
        c, with a size of 1 along each axis that was reduced.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnReduceTensor`, `cudnnGetReductionWorkspaceSize`, deprecated since cuDNN
    9.0.0, still shipped and working.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     a = handle.array(np.arange(6, dtype=np.float32).reshape(1, 2, 1, 3))
    ...     print(dnn.reduce_tensor(handle, a, "add", axes=(0, 2, 3)).numpy().ravel())
    ...     print(dnn.reduce_tensor(handle, a, "max").numpy().ravel())
    [ 3. 12.]
    [5.]
    """
    if out is None:
        if real_number(beta, "beta"):
            raise ArgumentError(f"beta={shown(beta)} needs out, which it scales")
        result = _reduced(operand_spec(handle, a, "a"), axes)
    elif axes is not None:
        raise ArgumentError(f"axes={shown(axes)} is given beside out, whose shape says it")
    else:
        result = operand_spec(handle, out, "out")
    if indices is False:
        return Request(handle, REDUCE, (a,), (op,), alpha, beta, out, result)
    results = (result, TensorSpec(result.shape, DataType.INT32))
    outputs = (out, None if indices is True else indices)
    return Request(handle, REDUCE_WITH_INDICES, (a,), (op,), alpha, beta, outputs, results)


def _reduced(a: TensorSpec, axes: object) -> TensorSpec:
    axes = range(a.rank) if axes is None else (axes,) if hasattr(axes, "__index__") else axes
    listed = integers(
        tuple(axes) if isinstance(axes, (set, frozenset)) else axes, "axes", a.rank
    )  # in whichever order
    gone = frozenset(integer(axis, "axes", -a.rank, a.rank - 1) % a.rank for axis in listed)
    if len(gone) != len(listed):
        raise ArgumentError(f"axes={shown(axes)} names an axis twice")
    return _without(a, gone, None if a.layout in ("strided", "packed") else a.layout)


@lru_cache(maxsize=64)  # equal specs may have layouts of other names
def _without(a: TensorSpec, gone: frozenset[int], layout: str | None) -> TensorSpec:
    return TensorSpec(
        tuple(1 if axis in gone else size for axis, size in enumerate(a.shape)), a.dtype, layout
    )
