"""`AttentionFormulas`: masks and dropout of attention's scores as methods of a graph.

A mask is written in the one way that cuDNN 9.19 computes rightly: `known_faults` refuses others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from cudnnlite.arguments import integer, real_number
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.formulas import GraphFormulas
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.specs.layout import parse_shape
from cudnnlite.unknown import methods_of

MOST_STEPS = 1 << 24  # which float32 counts exactly: cuDNN compares steps as floats in a window


@methods_of("Graph")
class AttentionFormulas(GraphFormulas):
    """A graph with a method for each mask of attention, and for dropout."""

    def causal(self, scores: GraphTensor, masked: float = -math.inf) -> GraphTensor:
        """Return scores with those behind the diagonal masked: of steps that are yet to come."""
        self._check_rank(scores, "scores", 2)
        row = self.index(scores, -2)
        column = self.index(scores, -1)
        return self.where(row >= column, scores, masked)

    def window(self, scores: GraphTensor, size: int, masked: float = -math.inf) -> GraphTensor:
        """Return scores with those masked that are `size` steps or more before the diagonal."""
        self._check_rank(scores, "scores", 2)
        steps = float(integer(size, "size", 1, MOST_STEPS))
        row = self.index(scores, -2)
        column = self.index(scores, -1)
        end = self.pointwise("ADD", column, steps, dtype="float32", precision="float32")
        return self.where(end > row, scores, masked)

    def within_lengths(
        self,
        scores: GraphTensor,
        row_lengths: GraphTensor,
        column_lengths: GraphTensor,
        masked: float = -math.inf,
    ) -> GraphTensor:
        """Return scores with those masked that are beyond the lengths of their sequence.

        The products before and behind take the same lengths, or cuDNN computes wrong numbers.
        """
        self._check_rank(scores, "scores", 2)
        rows = self.index(scores, -2) < row_lengths
        columns = self.index(scores, -1) < column_lengths
        return self.where(self.pointwise("LOGICAL_AND", rows, columns), scores, masked)

    def bernoulli(
        self,
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
            if self._own(tensor, name).dtype != DataType.INT64:
                raise ArgumentError(f"{name} is {tensor.record}; needed: int64")
        result = self.virtual(parse_shape(shape))
        self.node(
            "RNG",
            {"distribution": "BERNOULLI", "bernoulli_dist_probability": chance},
            reads={"seed": seed, "offset_desc": offset},
            writes={"ydesc": result},
        )
        return result
