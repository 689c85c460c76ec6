"""The operation graphs of convolutions."""

from __future__ import annotations

from cudnnlite.graph.convolution_formulas import convolution_data, fused_data
from cudnnlite.graph.data import GraphData
from cudnnlite.problems.fused_convolution import (
    BIAS,
    FUSED,
    FUSED_WITH_Z,
    IDENTITY,
    activates_apart,
    adds_bias_apart,
)
from cudnnlite.problems.problem import Problem


def data_of(problem: Problem) -> GraphData:
    """Return a problem's operation graph as data.

    If `adds_bias_apart` is true, the graph has the convolution without the bias; if
    `activates_apart` is true, without the activation.
    """
    is_fused = problem.operation in (FUSED, FUSED_WITH_Z, BIAS)
    if is_fused and not adds_bias_apart(problem):
        alpha2 = problem.values.get("alpha2", 0.0)
        activation = IDENTITY if activates_apart(problem) else problem.activation
        return fused_data(problem.specs, problem.conv, activation, problem.alpha, alpha2)
    algorithms = problem.operation.algorithms
    assert algorithms is not None
    specs = {name: spec for name, spec in problem.specs.items() if name != "bias"}
    kind = algorithms.graph.removeprefix("OPERATION_")
    return convolution_data(kind, specs, problem.conv, problem.alpha, problem.beta)
