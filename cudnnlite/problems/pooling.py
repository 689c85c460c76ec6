"""Pooling, forward and backward, as declarations."""

from __future__ import annotations

from cudnnlite.problems.operation import Operation, gradient_of
from cudnnlite.specs.layers import PoolingSpec

FORWARD = Operation(
    "pooling_forward",
    "cudnnPoolingForward",
    ("x",),
    ("y",),
    lambda x, pooling: pooling.output_spec(x),
    {"pooling": PoolingSpec},
)


BACKWARD = gradient_of(FORWARD, "cudnnPoolingBackward", ("y", "dy", "x"))
