"""Arithmetic on whole tensors: add, scale, set, operations on two tensors, and reductions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any

from cudnnlite.arguments import integer, integers, real_number, shown
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import DataType, NanPropagation, OpTensorOp, ReduceTensorOp
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.graph.graph import Graph
from cudnnlite.operations.layers.graph_activation import pointwise_graph
from cudnnlite.plans.function import operation
from cudnnlite.plans.graph_plan import plan_or_graph
from cudnnlite.plans.operands import operand_spec, tensor_spec, view_operand
from cudnnlite.plans.request import Request
from cudnnlite.problems.pointwise import ADD, OP, REDUCE, REDUCE_WITH_INDICES, SCALE, SET
from cudnnlite.problems.problem import Problem
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import OpTensorSpec, ReduceTensorSpec


@operation
def add_tensor(
    handle: Handle, a: Operand, c: AnyArray, *, alpha: float = 1.0, beta: float = 1.0
) -> Request[DeviceArray]:
    """Add a tensor, for instance a bias, to another one in place.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    a : device array
        The tensor to add.  Each of its sizes is that of `c`, or 1; along an axis of size 1 its
        values are repeated.  Either may have any strides.
    c : device array
        The tensor to add to, which is overwritten by the sum.
    alpha, beta : float
        Host scalars: c = alpha * result + beta * c.  With beta = 0 `c` is not read.

    Returns
    -------
    DeviceArray
        c.

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
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    y : device array
        The tensor, which is overwritten.
    alpha : float
        The factor.

    Returns
    -------
    DeviceArray
        y.

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
    ...     y = handle.array([[1.0, 2.0]], dtype="float32")
    ...     print(dnn.scale_tensor(handle, y, 0.5).numpy())
    [[0.5 1. ]]
    """
    return Request(handle, SCALE, (), (), alpha, 0.0, y)


@operation
def set_tensor(handle: Handle, y: AnyArray, value: float) -> Request[DeviceArray]:
    """Set all values of a tensor to a number.

    Memory in the gaps between its strides is not written.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    y : device array
        The tensor, which is overwritten; float32, float64, float16 or bfloat16.
    value : float
        The number.

    Returns
    -------
    DeviceArray
        y.

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
    """Combine two tensors value by value: c = op(alpha1 * a, alpha2 * b) + beta * c.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    a, b : device arrays
        Each size of `b` is that of `a`, or 1; along an axis of size 1 the values of `b` are
        repeated.  "sqrt" and "not" use `a` alone; pass `a` for `b` too.
    op : OpTensorSpec, OpTensorOp or str
        "add", "mul", "min", "max", "sqrt" or "not".
    alpha1, alpha2, beta : float
        Host scalars: the factors of `a`, of `b`, and of the values in `out`.  With beta = 0 `out`
        is not read.
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
    C functions: `cudnnOpTensor`, deprecated since cuDNN 9.0.0, still shipped and working; or
    `cudnnBackendExecute`, if libcudnn lacks it.

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
    return Request(handle, OP, (a, b), (op, alpha1, alpha2), 1.0, beta, out, plan_problem=_op_plan)


def _op_graph(problem: Problem) -> Graph:
    """Return an operation of two tensors of one shape as a graph."""
    op = problem.op
    if problem.a.shape != problem.b.shape or op.nan != NanPropagation.PROPAGATE:
        raise ArgumentError(f"no graph computes {op} of {problem.a} and {problem.b} alone")
    has_one_operand = op.op in (OpTensorOp.SQRT, OpTensorOp.NOT)
    graph, tensors = pointwise_graph(problem, ("a",) if has_one_operand else ("a", "b"))
    a, *others = [
        tensor if alpha == 1 else graph.pointwise("MUL", tensor, alpha)
        for tensor, alpha in zip(tensors, (problem.alpha1, problem.alpha2), strict=False)
    ]
    if op.op == OpTensorOp.NOT:
        result = graph.pointwise("SUB", 1.0, a)
    else:
        result = graph.pointwise(op.op.name, a, *others)
    graph.output("C", result, problem.c.dtype)
    return graph


_op_plan = partial(plan_or_graph, make_graph=_op_graph)


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
    """Reduce a tensor along some axes to a sum, product, minimum, maximum, mean or norm.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    a : device array
        The tensor to reduce.
    op : ReduceTensorSpec, ReduceTensorOp or str
        "add", "mul", "min", "max", "amax" (of absolute values), "avg", "norm1", "norm2" or
        "mul_no_zeros".
    axes : int or iterable of int, optional
        The axes to reduce; negative ones count from the end.  All axes if not given.  At least one
        of them has a size other than 1.  With `out`, its shape says which, if they are not given:
        it has the size 1 along the axes to reduce, and the sizes of `a` along the others.
    indices : bool or device array
        True: return ``(c, indices)``.  The indices are int32, shaped as c, and say where each
        minimum or maximum ("min", "max", "amax") is.  They count the values along the reduced axes,
        the last axis fastest; the first NaN has the index where NaNs count.  Of values that are all
        -infinity an H200 finds no maximum: the index is 2147483647 or -1.  An int32 array instead of
        True is written in place.
    alpha, beta : float
        Host scalars: c = alpha * result + beta * c.  With beta = 0 `out` is not read.
    out : device array, optional
        c, written in place; a new array if not given.  Of float16 and int8 it may be float32, except
        float16 with `indices`.

    Returns
    -------
    DeviceArray, or tuple of DeviceArray
        c, with a size of 1 along each reduced axis; with `indices`, c and the indices.

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
    a = view_operand(handle, a, "a")
    if out is None:
        if real_number(beta, "beta"):
            raise ArgumentError(f"beta={shown(beta)} needs out, which it scales")
        result = _reduced_spec(tensor_spec(a, "a"), axes)
    else:
        result = operand_spec(handle, out, "out")
        if axes is not None:
            _check_agreement(_reduced_spec(tensor_spec(a, "a"), axes), axes, result)
    if indices is False:
        return Request(handle, REDUCE, (a,), (op,), alpha, beta, out, result)
    results = (result, TensorSpec(result.shape, DataType.INT32))
    indices_out = None if indices is True else indices
    return Request(
        handle, REDUCE_WITH_INDICES, (a,), (op,), alpha, beta, (out, indices_out), results
    )


def _check_agreement(reduced: TensorSpec, axes: object, out: TensorSpec) -> None:
    """Raise ArgumentError unless `out` has the shape of the tensor that is reduced along axes."""
    if out.shape != reduced.shape:
        raise ArgumentError(
            f"axes={shown(axes)} beside out: they make a result of shape {reduced.shape}, "
            f"out has {out.shape}"
        )


def _reduced_spec(a: TensorSpec, axes: object) -> TensorSpec:
    """Return the spec of a tensor that is reduced along the axes of an argument."""
    layout = None if a.layout in ("strided", "packed") else a.layout
    if axes is None:
        axes = tuple(range(a.rank))
    elif hasattr(axes, "__index__"):
        axes = (axes,)
    if type(axes) is tuple:
        try:
            return _remembered_spec(a, axes, tuple(map(type, axes)), layout)
        except TypeError:  # something that cannot be hashed, which is refused by name below
            pass
    if isinstance(axes, (set, frozenset)):
        axes = tuple(axes)
    return _spec_along(a, axes, layout)


@lru_cache(maxsize=256)
def _remembered_spec(
    a: TensorSpec, axes: tuple[Any, ...], kinds: tuple[type, ...], layout: str | None
) -> TensorSpec:
    """Return the spec along axes; `kinds` are the types of the axes, because True equals 1.

    The layout is part of the key, too: equal specs may have layouts of different names.
    """
    return _spec_along(a, axes, layout)


def _spec_along(a: TensorSpec, axes: object, layout: str | None) -> TensorSpec:
    """Return the spec of a tensor with sizes of 1 along some axes; ArgumentError for others."""
    numbers = integers(axes, "axes", a.rank)
    reduced_axes = {integer(axis, "axes", -a.rank, a.rank - 1) % a.rank for axis in numbers}
    if len(reduced_axes) != len(numbers):
        raise ArgumentError(f"axes={shown(axes)} names an axis twice")
    shape = tuple(1 if axis in reduced_axes else size for axis, size in enumerate(a.shape))
    return TensorSpec(shape, a.dtype, layout)
