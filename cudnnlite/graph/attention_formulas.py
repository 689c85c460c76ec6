"""Masks and dropout of attention's scores.

A mask is written in the one way that cuDNN 9.19 computes rightly: `attention_faults` refuses others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from cudnnlite.arguments import integer, one_of, real_number
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.data import GraphData, check_tensor
from cudnnlite.graph.formulas import check_rank, index, pointwise, where
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.specs.layout import parse_shape

MOST_STEPS = 1 << 24  # which float32 counts exactly: cuDNN compares steps as floats in a window


def causal(
    graph: GraphData,
    scores: GraphTensor,
    masked: float = -math.inf,
    *,
    bottom_right: bool = False,
) -> GraphTensor:
    """Return scores with those after the diagonal masked: each row sees no later columns.

    The diagonal begins at the first score.  With `bottom_right` it ends at the last score, so the
    last row sees all columns; there must be no more rows than columns.
    """
    check_rank(graph, scores, "scores", 2)
    ends_at_last = one_of(bottom_right, "bottom_right", True, False)
    row = index(graph, scores, -2)
    column = index(graph, scores, -1)
    if ends_at_last:
        rows, columns = scores.shape[-2:]
        if rows > columns:
            raise ArgumentError(f"scores has {rows} rows; needed: at most its {columns} columns")
        row = pointwise(graph, "ADD", row, graph.as_tensor(columns, "int32"), dtype="int32")
        row = pointwise(graph, "SUB", row, graph.as_tensor(rows, "int32"), dtype="int32")
    is_visible = pointwise(graph, "CMP_GE", row, column)
    return where(graph, is_visible, scores, masked)


def window(
    graph: GraphData, scores: GraphTensor, size: int, masked: float = -math.inf
) -> GraphTensor:
    """Return scores with those masked that are `size` steps or more before the diagonal."""
    check_rank(graph, scores, "scores", 2)
    steps = float(integer(size, "size", 1, MOST_STEPS))
    row = index(graph, scores, -2)
    column = index(graph, scores, -1)
    end = pointwise(graph, "ADD", column, steps, dtype="float32", precision="float32")
    is_near = pointwise(graph, "CMP_GT", end, row)
    return where(graph, is_near, scores, masked)


def within_lengths(
    graph: GraphData,
    scores: GraphTensor,
    row_lengths: GraphTensor,
    column_lengths: GraphTensor,
    masked: float = -math.inf,
) -> GraphTensor:
    """Return scores with those masked that are beyond the lengths of their sequence.

    The products before and behind take the same lengths, or cuDNN computes wrong numbers.
    """
    check_rank(graph, scores, "scores", 2)
    rows = pointwise(graph, "CMP_LT", index(graph, scores, -2), graph.as_tensor(row_lengths))
    columns = pointwise(graph, "CMP_LT", index(graph, scores, -1), graph.as_tensor(column_lengths))
    is_within = pointwise(graph, "LOGICAL_AND", rows, columns)
    return where(graph, is_within, scores, masked)


def bernoulli(
    graph: GraphData,
    shape: Iterable[int],
    probability: float,
    seed: GraphTensor,
    offset: GraphTensor,
) -> GraphTensor:
    """Return ones with a probability, and zeros elsewhere.

    Parameters
    ----------
    shape : iterable of int
        The shape of the result.
    probability : float
        The probability that a value is one.
    seed, offset : GraphTensor
        int64, one value each.  The same pair gives the same numbers.
    """
    chance = real_number(probability, "probability")
    if not 0 <= chance <= 1:
        raise ArgumentError(f"probability={chance}; needed: 0 to 1")
    for name, tensor in {"seed": seed, "offset": offset}.items():
        if check_tensor(graph, tensor, name).dtype != DataType.INT64:
            raise ArgumentError(f"{name} is {tensor.record}; needed: int64")
    result = graph.virtual(parse_shape(shape))
    graph.node(
        "RNG",
        {"distribution": "BERNOULLI", "bernoulli_dist_probability": chance},
        reads={"seed": seed, "offset_desc": offset},
        writes={"ydesc": result},
    )
    return result
