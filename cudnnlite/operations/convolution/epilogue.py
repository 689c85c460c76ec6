"""Convolutions followed by any pointwise operations, which a function writes into their graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from cudnnlite.arguments import shown
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.errors import ArgumentError, NotSupportedError
from cudnnlite.graph.convolution_formulas import add_input, add_output
from cudnnlite.graph.engines import Engine
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.graph.selection import Requirements
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.operations.convolution.request import ConvolutionRequest
from cudnnlite.operations.graph.activations import ACTIVATIONS, parse_activation
from cudnnlite.operations.graph.graph import Graph, find_way, kept_plan
from cudnnlite.plans.graph_plan import plan_by_graph
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.plans.replay import parse_replay
from cudnnlite.problems.problem import Problem
from cudnnlite.unknown import was_entered

_SERVED = (
    "an epilogue has engines in float16, bfloat16 and float32 with channels last (layout='NHWC') in "
    "x, w and y; after a bias relu, sigmoid and elu have some in any layout; "
    "dnn.activation_forward is a call of its own"
)
Epilogue = Callable[[Graph, GraphTensor], GraphTensor]


class EpilogueRequest(ConvolutionRequest):
    """The arguments of one call of a convolution with an epilogue.

    Parameters
    ----------
    activation : callable or str
        (graph, y) -> what is written, or the name of an activation.
    others
        As in `ConvolutionRequest`.
    """

    __slots__ = ("_graph", "activation")

    def __init__(self, activation: Epilogue | str, *arguments: Any) -> None:
        super().__init__(*arguments)
        if not callable(activation):
            function = "a function (graph, y) -> tensor"
            activation = parse_activation(activation, "activation", function)
        self.activation = activation
        self._graph: Graph | None = None
        self._check_arguments()

    def _check_arguments(self) -> None:
        """Refuse arguments of descriptor calls, and scalars, which no engine has here."""
        for name, plain in {"alpha": 1.0, "beta": 0.0}.items():
            if getattr(self, name) != plain:
                raise ArgumentError(
                    f"{name}={shown(getattr(self, name))}; allowed with an epilogue: {plain}, for "
                    "the epilogue can scale"
                )
        if self.interface not in (None, "graph"):
            raise ArgumentError(
                f"interface={shown(self.interface)}; allowed with an epilogue: 'graph'"
            )
        engine = getattr(self.algorithm, "algorithm", self.algorithm)
        if engine is not None and not isinstance(engine, Engine):
            raise ArgumentError(
                f"algorithm={shown(self.algorithm)}; allowed with an epilogue: an Engine, or a "
                "result of dnn.tune"
            )

    def key(self) -> tuple[Any, ...]:
        """Return the key of the plan for calls of this kind.

        A function may write another graph each time: the graph itself is part of the key.
        """
        key = super().key()
        if isinstance(self.activation, str):
            return (*key, self.activation)
        return (*key, self.epilogue_graph())

    def make_and_keep_plan(self, key: tuple[Any, ...]) -> OperationPlan[DeviceArray]:
        """Return a new plan, which the handle keeps for calls of this kind."""
        return kept_plan(self.handle, key, self.make_plan)

    def make_plan(self) -> OperationPlan[DeviceArray]:
        """Return a new plan; the error names what has engines."""
        problem, graph, limit = self.make_problem(), self.epilogue_graph(), self.limit()
        requirements = Requirements(problem.conv.math_type)
        find = partial(
            find_way,
            self.handle,
            graph,
            self.algorithm,
            requirements,
            limit,
            replay=parse_replay(self.replay),
        )
        try:
            return plan_by_graph(self.handle, problem, graph, find, limit, is_complete=False)
        except NotSupportedError as error:
            error.notes += (_SERVED,)
            raise

    def problem(self) -> Problem:
        """Return the graph as a problem, which the tuner takes."""
        super().problem()  # refuses arguments that say how to compute
        return GraphProblem(self.epilogue_graph())

    def heuristic(self) -> NoReturn:
        """Raise ArgumentError: no algorithm of the descriptor call has an epilogue."""
        self._refuse_ranking("heuristic")

    def find(self) -> NoReturn:
        """Raise ArgumentError: no algorithm of the descriptor call has an epilogue."""
        self._refuse_ranking("find")

    def _refuse_ranking(self, function_name: str) -> NoReturn:
        raise ArgumentError(
            f"activation is given to {function_name}, which ranks the algorithms of the descriptor call; "
            "dnn.tune(handle, dnn.convolution_forward, ..., activation=...) ranks the engines"
        )

    def epilogue_graph(self) -> Graph:
        """Return the convolution, the addition of the bias and the epilogue as a graph.

        The function may write another graph each time: it is asked once, so that the key of a plan
        has the graph that the plan computes.
        """
        if self._graph is None:
            self._graph = self._make_graph(self.make_problem())
        return self._graph

    def _make_graph(self, problem: Problem) -> Graph:
        graph = Graph(problem.conv.compute_type)
        operands = {
            name: add_input(graph, name, problem.specs[name]) for name in problem.operation.reads
        }
        y = graph.convolution_forward(operands["x"], operands["w"], _native_conv(problem))
        if "bias" in operands:
            y = y + operands["bias"]
        result = self._apply(graph, y)
        if result.shape != y.shape:
            raise ArgumentError(
                f"activation returns a tensor of shape {result.shape}; needed: {y.shape}"
            )
        add_output(graph, "y", result, problem.y)
        return graph

    def _apply(self, graph: Graph, y: GraphTensor) -> GraphTensor:
        """Return the result of the epilogue on y; ArgumentError if it is no tensor of the graph."""
        if isinstance(self.activation, str):
            return ACTIVATIONS[self.activation](graph, y)
        inputs = [*graph.inputs]
        try:
            result = self.activation(graph, y)
        except TypeError as error:
            if was_entered(error):
                raise
            raise ArgumentError(f"activation must take (graph, y): {error}") from error
        if not isinstance(result, GraphTensor) or result.graph is not graph:
            raise ArgumentError(
                f"activation returns {shown(result)}; needed: a tensor of the graph that it is given"
            )
        added = [name for name in (*graph.inputs, *graph.outputs) if name not in inputs]
        if added:
            raise ArgumentError(
                f"activation makes {', '.join(added)}; allowed: what it computes of y and of "
                "numbers, for a call has no further arrays; a Graph has them: (1, C, 1, 1), "
                "(N, 1, H, W), or (N, C, H, W)"
            )
        return result


def _native_conv(problem: Problem) -> Any:
    """Return the options of a convolution of images that are two-dimensional at least."""
    conv, spatial = problem.conv, problem.x.rank - 2
    if spatial > 1:
        return conv
    (_, stride, dilation), pads = conv.steps(spatial), conv.pads(spatial)
    return conv.replace(padding=((0, 0), *pads), stride=(1, *stride), dilation=(1, *dilation))
