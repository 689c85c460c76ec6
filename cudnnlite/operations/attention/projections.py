"""The projections of multi-head attention as matrix products over the weights' own memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cudnnlite.enums import DataType
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.operations.graph.graph import Graph
from cudnnlite.specs import TensorSpec


class WeightMatrix(NamedTuple):
    """The weights of all heads as the matrix W of y = x W^T.

    Attributes
    ----------
    out_size, in_size : int
        The lengths of y and x.
    out_stride, in_stride : int
        The strides of y and x, in elements.
    """

    out_size: int
    in_size: int
    out_stride: int
    in_stride: int

    @property
    def is_packed(self) -> bool:
        """Whether its rows are packed in memory; otherwise its columns are."""
        return self.in_stride == 1


def weight_matrix(name: str, part: TensorSpec) -> WeightMatrix | None:
    """Return the weights of all heads as one matrix; None if their strides do not allow that.

    `part` is the spec of (heads, rows, columns).  An output projection reads the results of all
    heads side by side; the others write those of all heads side by side.
    """
    heads, rows, columns = part.shape
    head_stride, row_stride, column_stride = part.strides
    if name == "wo":
        matrix = WeightMatrix(rows, heads * columns, row_stride, column_stride)
        merges = head_stride == columns * column_stride
    else:
        matrix = WeightMatrix(heads * rows, columns, row_stride, column_stride)
        merges = head_stride == rows * row_stride
    if heads > 1 and not merges:
        return None
    return matrix if 1 in (matrix.in_stride, matrix.out_stride) else None


def projection_graph(
    matrix: WeightMatrix, rows: int, dtype: DataType, *, bias: bool, residual: bool
) -> Graph:
    """Return y = x W^T + bias + residual, of (1, rows, size)."""
    graph = Graph()
    x = graph.input("x", (1, rows, matrix.in_size), dtype)
    strides = (matrix.in_size * matrix.out_size, matrix.in_stride, matrix.out_stride)
    w = graph.input("w", (1, matrix.in_size, matrix.out_size), dtype, strides)
    y = graph.matmul(x, w)
    if bias:
        y = y + graph.input("bias", (1, 1, matrix.out_size), dtype)
    if residual:
        y = y + graph.input("residual", (1, rows, matrix.out_size), dtype)
    graph.output("y", y, dtype)
    return graph


def joint_projection_graph(
    matrix: WeightMatrix, rows: int, dtype: DataType, count: int, strides: Mapping[str, int]
) -> Graph:
    """Return several projections of the same vectors as one product, (count, rows, size).

    The projections are a batch: `strides` says how far apart their weights "w", results "y", and
    biases "bias", if they have them, are in elements.
    """
    graph = Graph()
    x = graph.input("x", (1, rows, matrix.in_size), dtype)
    w_strides = (strides["w"], matrix.in_stride, matrix.out_stride)
    w = graph.input("w", (count, matrix.in_size, matrix.out_size), dtype, w_strides)
    y = graph.matmul(x, w)
    if "bias" in strides:
        bias_strides = (strides["bias"], matrix.out_size, 1)
        y = y + graph.input("bias", (count, 1, matrix.out_size), dtype, bias_strides)
    graph.output("y", y, dtype, (strides["y"], matrix.out_size, 1))
    return graph


def input_gradient_graph(matrix: WeightMatrix, rows: int, dtype: DataType) -> Graph:
    """Return dx = dy W, of (1, rows, size)."""
    graph = Graph()
    dy = graph.input("dy", (1, rows, matrix.out_size), dtype)
    strides = (matrix.in_size * matrix.out_size, matrix.out_stride, matrix.in_stride)
    w = graph.input("w", (1, matrix.out_size, matrix.in_size), dtype, strides)
    graph.output("dx", graph.matmul(dy, w), dtype)
    return graph


def weight_gradient_graph(matrix: WeightMatrix, rows: int, dtype: DataType) -> Graph:
    """Return dw = dy^T x, or its transpose: whichever has the packed rows of the weights."""
    graph = Graph()
    dy = _operand(graph, "dy", rows, matrix.out_size, dtype, transposed=matrix.is_packed)
    x = _operand(graph, "x", rows, matrix.in_size, dtype, transposed=not matrix.is_packed)
    operands = (dy, x) if matrix.is_packed else (x, dy)
    graph.output("dw", graph.matmul(*operands), dtype)
    return graph


def bias_gradient_graph(size: int, rows: int, dtype: DataType) -> Graph:
    """Return the sums of dy over its rows, as the product with a row of ones.

    cuDNN has no engine for a sum alone.
    """
    graph = Graph()
    ones = graph.input("ones", (1, 1, rows), dtype)
    dy = graph.input("dy", (1, rows, size), dtype)
    graph.output("db", graph.matmul(ones, dy), dtype)
    return graph


def _operand(
    graph: Graph, name: str, rows: int, size: int, dtype: DataType, *, transposed: bool
) -> GraphTensor:
    """Add packed vectors, (1, rows, size), as an input, or their transpose."""
    if transposed:
        return graph.input(name, (1, size, rows), dtype, (rows * size, 1, size))
    return graph.input(name, (1, rows, size), dtype)
