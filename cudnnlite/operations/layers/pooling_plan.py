"""`PoolingPlan`: a pooling as a graph, where the descriptor call cannot say its padding."""

from __future__ import annotations

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.enums import PoolingMode
from cudnnlite.graph.convolution_data import add_input, add_output
from cudnnlite.graph.problem import EXECUTE
from cudnnlite.operations.graph.graph import Graph
from cudnnlite.plans.graph_plan import GraphPlan, take_over
from cudnnlite.plans.operation_plan import OperationPlan, Prepared
from cudnnlite.plans.request import Request
from cudnnlite.problems.problem import Problem

# By mode: how a graph pools, and what it pads with.
_MODES = {
    PoolingMode.MAX: ("MAXPOOL", "NEG_INF"),
    PoolingMode.MAX_DETERMINISTIC: ("MAXPOOL", "NEG_INF"),
    PoolingMode.AVERAGE_COUNT_INCLUDE_PADDING: ("AVGPOOL_INCLUDE_PADDING", "ZERO"),
    PoolingMode.AVERAGE_COUNT_EXCLUDE_PADDING: ("AVGPOOL_EXCLUDE_PADDING", "ZERO"),
}


class PoolingPlan(OperationPlan[DeviceArray]):
    """A pooling by a graph, made once and called many times.

    Attributes
    ----------
    choice : AlgorithmResult
        The engine that runs.
    """

    def _prepare_call(self) -> Prepared:
        plan = GraphPlan(self._handle, pooling_graph(self.problem), None, self._limit).prepare()
        return take_over(self, plan)

    def _function_name(self) -> str:
        return EXECUTE


class PoolingRequest(Request[DeviceArray]):
    """The arguments of one call of a pooling."""

    def make_plan(self) -> OperationPlan[DeviceArray]:
        """Return a new plan: of a graph where padding differs at the two ends of an axis."""
        problem = self.make_problem()
        kind: type[OperationPlan[DeviceArray]] = PoolingPlan
        if problem.pooling.is_symmetric:
            kind = OperationPlan
        return kind(self.handle, problem, self.limit()).prepare()


def pooling_graph(problem: Problem) -> Graph:
    """Return a pooling as a graph; images with one spatial axis are one pixel high."""
    pooling, spatial = problem.pooling, problem.x.rank - 2
    window, _, stride = pooling.steps(spatial)
    pads = pooling.pads(spatial)
    if spatial == 1:
        window, stride, pads = (1, *window), (1, *stride), ((0, 0), *pads)
    mode, padding_mode = _MODES[pooling.mode]
    graph = Graph()
    x = add_input(graph, "x", problem.x)
    y = graph.resample_forward(
        mode,
        x,
        window,
        stride=stride,
        padding=pads,
        padding_mode=padding_mode,
        nan_propagation=pooling.nan,
    )
    add_output(graph, "y", y, problem.y)
    return graph
