"""Pooling, forward and backward, as declarations."""

from __future__ import annotations

from cudnnlite.problems.operation import Operation, gradient_of
from cudnnlite.specs.layers import PoolingSpec

_OUTPUT, _OPTIONS = (lambda x, pooling: pooling.output_spec(x)), {"pooling": PoolingSpec}


FORWARD = Operation("pooling_forward", "cudnnPoolingForward", ("x",), ("y",), _OUTPUT, _OPTIONS)


BACKWARD = gradient_of(FORWARD, "cudnnPoolingBackward", ("y", "dy", "x"))
