"""The gradients of a matrix product, as graphs: products with a transposed operand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import AnyDtype
from cudnnlite.enums import DataType, MathType, parse_math_type
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.graph.function import GraphRequest, graph_operation
from cudnnlite.operations.graph.graph import Graph
from cudnnlite.operations.layers.matrices import (
    MatrixGraph,
    Shape,
    parse_alpha,
    parse_result_dtype,
)
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layout import parse_shape


@graph_operation
def matmul_backward_a(
    handle: Handle,
    dy: Operand,
    b: Operand,
    *,
    a: Iterable[int] | None = None,
    alpha: float = 1.0,
    dtype: AnyDtype | None = None,
    math_type: MathType | str = MathType.DEFAULT,
    out: AnyArray | None = None,
    workspace_limit: int | str | None = None,
) -> GraphRequest[DeviceArray]:
    """Compute da = alpha dy bᵀ, the gradient of a product's first operand, asynchronously.

    Parameters
    ----------
    handle, alpha, math_type, workspace_limit
        As in `matmul`.
    dy : device array
        The gradient of ``alpha a b``, ``(..., M, N)``: of y, where that has no activation.
    b : device array
        As in `matmul`, of the data type of `dy`.
    a : shape, optional
        That of `a`, ``(..., M, K)``.  It is needed where `a` is one matrix for a batch: the
        gradient is summed over the batch then, for which the columns of `dy`, and of `b`, have to
        lie in memory as one axis with the batch.  If not given, `a` has the batch of `dy`.
    dtype : dtype, optional
        Of da; that of `dy` if not given, float32 if that is float8.
    out : device array, optional
        da, written in place, of packed rows or columns; a new array if not given.

    Returns
    -------
    DeviceArray
        da, shaped as `a`, packed.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError, NotSupportedError
        As in `matmul`.

    Notes
    -----
    C functions: `cudnnBackendExecute`, as in `matmul`.  The gradient of a bias is the sum of dy
    over the axes along which it was broadcast, by `reduce_tensor`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     dy = handle.array(np.ones((64, 16)), dtype="float16")
    ...     b = handle.array(np.ones((32, 16)), dtype="float16")
    ...     da = dnn.matmul_backward_a(handle, dy, b)
    ...     print(da.shape, da.numpy()[0, 0])
    (64, 32) 16.0
    """
    return _gradient(
        handle, "a", {"dy": dy, "b": b}, a, alpha, dtype, math_type, out, workspace_limit
    )


@graph_operation
def matmul_backward_b(
    handle: Handle,
    dy: Operand,
    a: Operand,
    *,
    b: Iterable[int] | None = None,
    alpha: float = 1.0,
    dtype: AnyDtype | None = None,
    math_type: MathType | str = MathType.DEFAULT,
    out: AnyArray | None = None,
    workspace_limit: int | str | None = None,
) -> GraphRequest[DeviceArray]:
    """Compute db = alpha aᵀ dy, the gradient of a product's second operand, asynchronously.

    Parameters
    ----------
    handle, alpha, math_type, workspace_limit
        As in `matmul`.
    dy : device array
        The gradient of ``alpha a b``, ``(..., M, N)``: of y, where that has no activation.
    a : device array
        As in `matmul`, of the data type of `dy`.
    b : shape, optional
        That of `b`, ``(..., K, N)``.  It is needed where `b` is one matrix for a batch: the
        gradient is summed over the batch then, for which the rows of `a`, and of `dy`, have to lie
        in memory as one axis with the batch, as those of packed arrays do.  If not given, `b` has
        the batch of `dy`.
    dtype : dtype, optional
        Of db; that of `dy` if not given, float32 if that is float8.
    out : device array, optional
        db, written in place, of packed rows or columns; a new array if not given.

    Returns
    -------
    DeviceArray
        db, shaped as `b`, packed.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError, NotSupportedError
        As in `matmul`.

    Notes
    -----
    C functions: `cudnnBackendExecute`, as in `matmul`.

    Examples
    --------
    The weights of a layer, for a batch of 8 sequences:

    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((8, 64, 32)), dtype="float16")
    ...     dy = handle.array(np.ones((8, 64, 16)), dtype="float16")
    ...     dw = dnn.matmul_backward_b(handle, dy, x, b=(32, 16))
    ...     print(dw.shape, dw.numpy()[0, 0])
    (32, 16) 512.0
    """
    return _gradient(
        handle, "b", {"dy": dy, "a": a}, b, alpha, dtype, math_type, out, workspace_limit
    )


def _gradient(
    handle: Handle,
    side: str,
    operands: dict[str, Operand],
    shape: Iterable[int] | None,
    alpha: float,
    dtype: AnyDtype | None,
    math_type: MathType | str,
    out: AnyArray | None,
    workspace_limit: int | str | None,
) -> GraphRequest[DeviceArray]:
    numbers = parse_alpha(alpha)
    return GraphRequest(
        handle,
        f"matmul_backward_{side}",
        gradient_graph,
        {**operands},
        {
            "side": side,
            "shape": None if shape is None else parse_shape(shape, side, batch_may_be_empty=False),
            "dtype": parse_result_dtype(dtype),
            "has_alpha": bool(numbers),
        },
        (f"d{side}",),
        out,
        workspace_limit,
        numbers,
        parse_math_type(math_type),
    )


def gradient_graph(
    specs: Mapping[str, TensorSpec],
    side: str,
    shape: Shape | None,
    dtype: DataType | None,
    has_alpha: bool,
    alpha: float = 1.0,
) -> Graph:
    """Return the gradient of one side of a product as a graph."""
    other = "b" if side == "a" else "a"
    product = MatrixGraph(specs, "dy", other)
    whole = _whole_shape(product, specs["dy"], specs[other], side)
    if shape is None:
        shape = whole
    matrix = whole[-2:]
    is_one_matrix = shape == (1,) * (len(shape) - 2) + matrix and len(shape) <= len(whole)
    if shape != whole and not is_one_matrix:
        # With dy and the other operand swapped the gradient is the transpose.
        is_transpose = shape[-2:] == matrix[::-1] != matrix
        hint = _swapped(other) if is_transpose else ""
        raise ArgumentError(
            f"{side}={shape}; needed beside dy of shape {specs['dy'].shape} and {other} of shape "
            f"{specs[other].shape}: {whole}, or {matrix}{hint}"
        )
    graph = product.graph
    if is_one_matrix and prod(product.batch) != 1:
        axis = _shared_axis(side)
        first, second = ("dy", "b") if side == "a" else ("a", "dy")
        left = product.join_batch(first, axis, is_left=True)
        right = product.join_batch(second, axis, is_left=False)
    elif side == "a":
        left, right = product.matrices("dy"), graph.transposed(product.matrices("b"))
    else:
        left, right = graph.transposed(product.matrices("a")), product.matrices("dy")
    gradient = graph.matmul(left, right)
    if has_alpha:
        gradient = gradient * graph.scalar("alpha", alpha)
    return product.output(f"d{side}", gradient, shape[:-2], dtype)


def _swapped(other: str) -> str:
    """Return the end of a message about operands that fit in the other order."""
    return f"; dy and {other} are probably swapped: dy comes first"


def _shared_axis(side: str) -> int:
    """Return the axis of dy and of the other operand that is the inner one of a gradient."""
    return -1 if side == "a" else -2


def _whole_shape(product: MatrixGraph, dy: TensorSpec, operand: TensorSpec, side: str) -> Shape:
    """Return the shape of a gradient for each of the batch; ArgumentError for wrong operands."""
    axis = _shared_axis(side)
    other, kind = ("b", "columns") if side == "a" else ("a", "rows")
    has_lengths = operand.shape[axis] == dy.shape[axis]
    if not has_lengths or dy.shape[:-2] != product.batch:
        fits_swapped = has_lengths and operand.shape[:-2] == product.batch
        hint = _swapped(other) if fits_swapped else ""
        raise ArgumentError(
            f"{other} has shape {operand.shape}; needed beside dy of shape {dy.shape}: "
            f"{dy.shape[axis]} {kind}, and the batch of dy, or one matrix{hint}"
        )
    rows, columns = dy.shape[-2], operand.shape[-2]
    if side == "b":
        rows, columns = operand.shape[-1], dy.shape[-1]
    return (*product.batch, rows, columns)
