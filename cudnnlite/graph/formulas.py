"""Pointwise operations, products, sums and views of a graph, with inferred shapes and data types.

Each function of a formula module adds operations to a graph; `Graph` has it as a method.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cudnnlite._raw.enums import PointwiseMode
from cudnnlite.arguments import integer, integers, one_of, real_number, shown
from cudnnlite.dtypes import AnyDtype
from cudnnlite.enums import DataType, ReduceTensorOp, parse_enum
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.data import GraphData, check_tensor, parse_strides
from cudnnlite.graph.records import Shape
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.specs.layout import MAX_RANK, parse_shape

_TWO_OPERANDS = frozenset(
    {"ADD", "ADD_SQUARE", "ATAN2", "DIV", "FLOOR_MOD", "MAX", "MIN", "MOD", "MUL", "POW", "SUB"}
)
_LOGICAL = ("CMP_", "LOGICAL_")
# float32's smallest number with all its bits, and its largest.
_SMALLEST, _LARGEST = (float(getattr(np.finfo(np.float32), name)) for name in ("tiny", "max"))


# ---------------------------------------------------------------- pointwise


def pointwise(
    graph: GraphData,
    /,
    mode: PointwiseMode | str,
    x: GraphTensor | float,
    b: GraphTensor | float | None = None,
    t: GraphTensor | None = None,
    *,
    dtype: AnyDtype | str | None = None,
    precision: AnyDtype | str | None = None,
    **attributes: Any,
) -> GraphTensor:
    """Add a pointwise operation; operands are broadcast as in NumPy, and have one rank.

    Parameters
    ----------
    mode : PointwiseMode or str
        Any that cuDNN has: "ADD", "EXP", "GELU_FWD", "BINARY_SELECT", "GEN_INDEX", ...
    x, b, t : GraphTensor or float
        One to three operands.  In a backward mode (``*_BWD``) `x` is the forward operand and
        `b` the gradient of the result.
    dtype : dtype, optional
        The data type of the result.  If not given: bool for comparisons, int32 for indices, the
        graph's compute type otherwise.
    precision : dtype, optional
        The data type in which the operation computes.
    **attributes
        Attributes of cuDNN's descriptor: ``relu_upper_clip=6.0``, ``axis=2``, ...

    Raises
    ------
    ArgumentError
        The message names the argument.
    """
    name = parse_enum(PointwiseMode, mode, "mode").name
    values = [value for value in (x, b, t) if value is not None]
    operand_count = _operand_count(name)
    if len(values) != operand_count:
        raise ArgumentError(f"mode={name} takes {operand_count} operands; {len(values)} were given")
    operands = [graph.as_tensor(value) for value in values]
    is_logical = name.startswith(_LOGICAL)
    if dtype is None:
        dtype = _result_type(name, graph.compute_type)
    if precision is None:
        precision = DataType.BOOLEAN if is_logical else graph.compute_type
    result = graph.virtual(_broadcast_shape(name, operands), dtype)
    if name.endswith("_BWD"):
        reads = {"dydesc": operands[1], "xdesc": operands[0]}
        writes = {"dxdesc": result}
    else:
        reads = dict(zip(("xdesc", "bdesc", "tdesc"), operands, strict=False))
        writes = {"ydesc": result}
    configuration = {"mode": name, "math_prec": precision, **attributes}
    graph.node("POINTWISE", configuration, reads=reads, writes=writes)
    return result


def exp(graph: GraphData, x: GraphTensor) -> GraphTensor:
    """Return e**x."""
    return pointwise(graph, "EXP", x)


def log(graph: GraphData, x: GraphTensor) -> GraphTensor:
    """Return the natural logarithm."""
    return pointwise(graph, "LOG", x)


def sqrt(graph: GraphData, x: GraphTensor) -> GraphTensor:
    """Return the square root."""
    return pointwise(graph, "SQRT", x)


def rsqrt(graph: GraphData, x: GraphTensor) -> GraphTensor:
    """Return one over the square root."""
    return pointwise(graph, "RSQRT", x)


def reciprocal(graph: GraphData, x: GraphTensor) -> GraphTensor:
    """Return 1 / x."""
    return pointwise(graph, "RECIPROCAL", x)


def abs(graph: GraphData, x: GraphTensor) -> GraphTensor:
    """Return the absolute value."""
    return pointwise(graph, "ABS", x)


def erf(graph: GraphData, x: GraphTensor) -> GraphTensor:
    """Return the error function."""
    return pointwise(graph, "ERF", x)


def identity(graph: GraphData, x: GraphTensor, dtype: AnyDtype | None = None) -> GraphTensor:
    """Return x, in another data type where one is given."""
    return pointwise(graph, "IDENTITY", x, dtype=dtype)


def div(
    graph: GraphData, x: GraphTensor, b: GraphTensor | float, dtype: AnyDtype | None = None
) -> GraphTensor:
    """Return x / b, with `dtype` as the data type if it is given.

    If b is a number, x is multiplied by its reciprocal, which rounds once more: behind products
    and convolutions cuDNN has engines for "MUL", and none for "DIV".
    """
    factor = None if isinstance(b, GraphTensor) else _reciprocal(real_number(b, "b"))
    if factor is not None:
        return pointwise(graph, "MUL", x, factor, dtype=dtype)
    return pointwise(graph, "DIV", x, b, dtype=dtype)


def relu(
    graph: GraphData,
    x: GraphTensor,
    *,
    negative_slope: float = 0.0,
    lower: float = 0.0,
    upper: float = math.inf,
) -> GraphTensor:
    """Return max(x, lower), at most `upper`; leaky with a `negative_slope`.

    Where x is below `lower`, a leaky ReLU is lower + negative_slope * (x - lower).  cuDNN
    computes a ReLU wrongly that has a slope and an upper clip, or a slope above 1: these are
    written as the minimum of two values.
    """
    slope = real_number(negative_slope, "negative_slope")
    floor = real_number(lower, "lower")
    clip = real_number(upper, "upper")
    attributes: dict[str, Any] = {"relu_lower_clip": floor} if floor else {}
    if not slope:
        if clip != math.inf:
            attributes["relu_upper_clip"] = clip
        return pointwise(graph, "RELU_FWD", x, **attributes)
    if slope > 1:
        line = pointwise(graph, "MUL", x, slope)
        if floor:
            line = pointwise(graph, "ADD", line, floor * (1 - slope))
        leaky = pointwise(graph, "MIN", x, line)
    else:
        leaky = pointwise(graph, "RELU_FWD", x, relu_lower_clip_slope=slope, **attributes)
    return leaky if clip == math.inf else pointwise(graph, "MIN", leaky, clip)


def gelu(graph: GraphData, x: GraphTensor, *, approximate: bool = False) -> GraphTensor:
    """Return x times the normal distribution of x, by tanh if `approximate`."""
    is_approximate = one_of(approximate, "approximate", True, False)
    return pointwise(graph, "GELU_APPROX_TANH_FWD" if is_approximate else "GELU_FWD", x)


def tanh(graph: GraphData, x: GraphTensor) -> GraphTensor:
    """Return the hyperbolic tangent."""
    return pointwise(graph, "TANH_FWD", x)


def sigmoid(graph: GraphData, x: GraphTensor) -> GraphTensor:
    """Return 1 / (1 + exp(-x))."""
    return pointwise(graph, "SIGMOID_FWD", x)


def elu(graph: GraphData, x: GraphTensor, alpha: float = 1.0) -> GraphTensor:
    """Return x above 0, alpha * (exp(x) - 1) below."""
    return pointwise(graph, "ELU_FWD", x, elu_alpha=alpha)


def swish(graph: GraphData, x: GraphTensor, beta: float = 1.0) -> GraphTensor:
    """Return x * sigmoid(beta * x)."""
    return pointwise(graph, "SWISH_FWD", x, swish_beta=beta)


def softplus(graph: GraphData, x: GraphTensor, beta: float = 1.0) -> GraphTensor:
    """Return log(1 + exp(beta * x)) / beta."""
    return pointwise(graph, "SOFTPLUS_FWD", x, softplus_beta=beta)


def where(
    graph: GraphData, mask: GraphTensor, x: GraphTensor, other: GraphTensor | float
) -> GraphTensor:
    """Return `x` where a mask is true, `other` elsewhere."""
    return pointwise(graph, "BINARY_SELECT", x, other, mask)


def index(graph: GraphData, x: GraphTensor, axis: int) -> GraphTensor:
    """Return, for each value of `x`, its place along an axis, as int32."""
    rank = check_tensor(graph, x, "x").rank
    place = integer(axis, "axis", -rank, rank - 1) % rank
    return pointwise(graph, "GEN_INDEX", x, axis=place)


# ------------------------------------------------ products, sums and views


def matmul(
    graph: GraphData,
    a: GraphTensor,
    b: GraphTensor,
    *,
    dtype: AnyDtype | None = None,
    compute_type: AnyDtype | None = None,
    m_lengths: GraphTensor | None = None,
    n_lengths: GraphTensor | None = None,
    k_lengths: GraphTensor | None = None,
) -> GraphTensor:
    """Return the matrix product of the last two axes, for each batch.

    The axes before them are equal, or one is a multiple of the other: several heads of queries
    that share one of keys.

    Parameters
    ----------
    a, b : GraphTensor
        ``(..., M, K)`` and ``(..., K, N)``.
    dtype : dtype, optional
        The data type of the result; the graph's compute type if not given.
    compute_type : dtype, optional
        The data type in which products are summed; the graph's compute type if not given.
    m_lengths, n_lengths, k_lengths : GraphTensor, optional
        int32, ``(batch, 1, 1, 1)``: how many rows, columns, and products of a sum each matrix
        of a batch has.  cuDNN takes them in attention alone.
    """
    first, second = check_rank(graph, a, "a", 2), check_rank(graph, b, "b", 2)
    if first.rank != second.rank or first.shape[-1] != second.shape[-2]:
        raise ArgumentError(
            f"b has shape {second.shape}; needed beside a of shape {first.shape}: the same "
            f"rank, and {first.shape[-1]} rows"
        )
    batch = []
    for size, other in zip(first.shape[:-2], second.shape[:-2], strict=True):
        least, most = sorted((size, other))
        is_empty = least == 0 and most <= 1
        if not is_empty and (least == 0 or most % least):
            raise ArgumentError(f"b has shape {second.shape}; a has {first.shape}")
        batch.append(0 if is_empty else most)
    result = graph.virtual((*batch, first.shape[-2], second.shape[-1]), dtype)
    lengths = {
        "gemm_m_override_desc": m_lengths,
        "gemm_n_override_desc": n_lengths,
        "gemm_k_override_desc": k_lengths,
    }
    given_lengths = {name: tensor for name, tensor in lengths.items() if tensor is not None}
    graph.node(
        "MATMUL",
        {"comp_type": graph.compute_type if compute_type is None else compute_type},
        reads={"adesc": first, "bdesc": second, **given_lengths},
        writes={"cdesc": result},
    )
    return result


def reduce(
    graph: GraphData, operator: ReduceTensorOp | str, x: GraphTensor, axes: int | Iterable[int] = -1
) -> GraphTensor:
    """Reduce axes to one value each: "ADD", "MAX", "MIN", "AVG", "AMAX", "NORM2", "MUL", ..."""
    rank = check_tensor(graph, x, "x").rank
    listed = integers(axes, "axes", MAX_RANK) if isinstance(axes, Iterable) else (axes,)
    places = {integer(axis, "axes", -rank, rank - 1) % rank for axis in listed}
    if not places:
        raise ArgumentError(f"axes={shown(axes)}; needed: one axis at least")
    shape = tuple(1 if axis in places else size for axis, size in enumerate(x.shape))
    result = graph.virtual(shape)
    name = parse_enum(ReduceTensorOp, operator, "operator").name
    attributes = {"operator": name, "comp_type": graph.compute_type}
    graph.node("REDUCTION", attributes, reads={"xdesc": x}, writes={"ydesc": result})
    return result


def softmax(graph: GraphData, x: GraphTensor, dtype: AnyDtype | None = None) -> GraphTensor:
    """Return exp(x) over its sum along the last axis, by five operations."""
    return softmax_with_stats(graph, x, dtype)[0]


def softmax_with_stats(
    graph: GraphData, x: GraphTensor, dtype: AnyDtype | None = None
) -> tuple[GraphTensor, GraphTensor]:
    """Return the softmax along the last axis, and the logarithm of the sum of exp(x)."""
    largest = reduce(graph, "MAX", x)
    powers = exp(graph, pointwise(graph, "SUB", x, largest))
    total = reduce(graph, "ADD", powers)
    stats = pointwise(graph, "ADD", largest, log(graph, total))
    return div(graph, powers, total, dtype=dtype), stats


def transposed(graph: GraphData, x: GraphTensor, dtype: AnyDtype | None = None) -> GraphTensor:
    """Swap the last two axes.

    The result is a view if the tensor is in memory.  For a virtual tensor it is a RESHAPE,
    which may have another data type, `dtype`.
    """
    tensor = check_rank(graph, x, "x", 2)
    shape = (*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2])
    strides = (*tensor.strides[:-2], tensor.strides[-1], tensor.strides[-2])
    if tensor.name and dtype is None:
        return graph.view(tensor, shape, strides)
    result = graph.virtual(shape, tensor.dtype if dtype is None else dtype, strides)
    graph.node("RESHAPE", reads={"xdesc": tensor}, writes={"ydesc": result})
    return result


def reshape(
    graph: GraphData, x: GraphTensor, shape: Iterable[int], strides: Iterable[int] | None = None
) -> GraphTensor:
    """Return the same values in another shape."""
    tensor, sizes = check_tensor(graph, x, "x"), parse_shape(shape, all_may_be_empty=True)
    if math.prod(sizes) != math.prod(tensor.shape):
        raise ArgumentError(
            f"shape={sizes}; needed: {math.prod(tensor.shape)} values, "
            f"as x of shape {tensor.shape} has"
        )
    result = graph.virtual(sizes, tensor.dtype, parse_strides(strides, sizes))
    graph.node("RESHAPE", reads={"xdesc": x}, writes={"ydesc": result})
    return result


# --------------------------------------------------------------- arguments


def check_rank(graph: GraphData, tensor: GraphTensor, argument: str, least: int) -> GraphTensor:
    """Return a tensor of a graph that has `least` axes or more; ArgumentError for any other."""
    if check_tensor(graph, tensor, argument).rank < least:
        raise ArgumentError(f"{argument} has shape {tensor.shape}; needed: {least} axes at least")
    return tensor


def check_same_rank(graph: GraphData, **tensors: GraphTensor) -> None:
    """Raise ArgumentError unless tensors are of a graph and of one rank, from 2 on."""
    (first, x), *others = tensors.items()
    check_rank(graph, x, first, 2)
    for argument, tensor in others:
        if check_tensor(graph, tensor, argument).rank != x.rank:
            raise ArgumentError(
                f"{argument} has shape {tensor.shape}; needed: the rank of {first}, {x.shape}"
            )


def _operand_count(mode: str) -> int:
    if mode == "BINARY_SELECT":
        return 3
    is_binary = mode in _TWO_OPERANDS or mode.startswith("CMP_") or mode.endswith("_BWD")
    return 2 if is_binary or mode in ("LOGICAL_AND", "LOGICAL_OR") else 1


def _broadcast_shape(name: str, operands: Sequence[GraphTensor]) -> Shape:
    """Return the shape of a result; ArgumentError if operands do not fit together."""
    shapes = [operand.shape for operand in operands if operand.record.value is None]
    try:
        if len(set(map(len, shapes))) > 1:
            raise ValueError
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        listed = ", ".join(map(str, shapes))
        raise ArgumentError(
            f"{name} of shapes {listed}: they have one rank, and sizes that are equal or 1"
        ) from None


def _result_type(mode: str, compute_type: DataType) -> DataType:
    if mode.startswith(_LOGICAL):
        return DataType.BOOLEAN
    return DataType.INT32 if mode == "GEN_INDEX" else compute_type


def _reciprocal(number: float) -> float | None:
    """Return one over a number; None if float32 has no room for it, or too few bits."""
    if number == 0:
        return None
    inverse = 1 / number
    return inverse if _SMALLEST <= math.fabs(inverse) <= _LARGEST else None
