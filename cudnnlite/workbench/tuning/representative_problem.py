"""`representative_problem`: the problem that is measured for all problems with the same choice."""

from __future__ import annotations

from math import floor, log2

from cudnnlite.graph.problem import GraphProblem, with_seeds_of_zero
from cudnnlite.problems.rnn import FORWARD
from cudnnlite.specs import RNNDataSpec
from cudnnlite.types import Problem


def representative_problem(problem: Problem) -> Problem:
    """Return the problem that is measured for a call with this one.

    A convolution represents itself, and a graph with dropout one with the seed 0.  Sequences have
    many lengths, and without rounding each would be measured: the number of steps is rounded to 1,
    2, 3, 4, 6, 8, 12, 16, ..., and lengths that differ become evenly spaced ones.
    """
    if isinstance(problem, GraphProblem):
        graph = with_seeds_of_zero(problem.graph)
        return problem if graph is problem.graph else GraphProblem(graph)
    if problem.operation is not FORWARD:
        return problem
    data = problem.data
    steps = rounded(data.max_length)
    if data.is_full:
        lengths = (steps,) * data.batch
    elif data.batch == 1:  # The sequence is shorter than the array.
        lengths = (steps - 1,)
    else:  # The lengths fall evenly from the first sequence to the last.
        lengths = tuple(
            max(1, steps - number * steps // data.batch) for number in range(data.batch)
        )
    values = data.values() | {"max_length": steps, "lengths": lengths}
    representative: Problem = problem.replace(data=RNNDataSpec.from_values(values))
    return representative


def rounded(number: int) -> int:
    """Return the nearest of 1, 2, 3, 4, 6, 8, 12, 16, ...: powers of two, and 1.5 times these."""
    below = 1 << floor(log2(number))
    steps = (below, below + below // 2, 2 * below)
    return min(steps, key=lambda step: (abs(step - number), step))
