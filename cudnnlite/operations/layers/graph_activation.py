"""Activations as graphs: leaky relu, GELU and softplus; all if libcudnn lacks the C function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

from cudnnlite.arguments import shown
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import itemsize
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.convolution_formulas import pointwise_of
from cudnnlite.graph.problem import EXECUTE, GraphProblem, OperationByGraph
from cudnnlite.graph.selection import NO_REQUIREMENTS
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.operations.graph.activations import LEAKY_SLOPE, activation_key
from cudnnlite.operations.graph.graph import Graph, find_way
from cudnnlite.plans.graph_plan import plan_by_graph, plan_or_graph
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.plans.request import Request
from cudnnlite.problems.operation import check_alike
from cudnnlite.problems.problem import Problem
from cudnnlite.specs import TensorSpec

# Of activations that are graphs alone, the mode without its direction, and its attributes.
_MODES: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "leaky_relu": ("RELU", {"relu_lower_clip_slope": LEAKY_SLOPE}),
    "gelu": ("GELU", {}),
    "gelu_tanh": ("GELU_APPROX_TANH", {}),
    "softplus": ("SOFTPLUS", {}),
}
# An H100 compiles none in float64.
_DTYPES = (DataType.FLOAT, DataType.HALF, DataType.BFLOAT16)


def _check(specs: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuse operands in several layouts, and gaps, with which they are no three axes."""
    check_alike(specs)
    for name, spec in specs.items():
        if spec.nbytes != spec.size * itemsize(spec.dtype):
            raise ArgumentError(
                f"{name} is {spec}; needed: values without gaps, as {name}.copy() has"
            )


def _forward(name: str) -> OperationByGraph:
    return OperationByGraph(
        f"{name}_forward", EXECUTE, ("x",), ("y",), lambda x: x, dtypes=_DTYPES, check=_check
    )


def _backward(name: str) -> OperationByGraph:
    return OperationByGraph(
        f"{name}_backward",
        EXECUTE,
        ("y", "dy", "x"),
        ("dx",),
        _same_shapes,
        dtypes=_DTYPES,
        check=_check,
    )


def _same_shapes(y: TensorSpec, dy: TensorSpec, x: TensorSpec) -> TensorSpec:
    for name, spec in {"y": y, "dy": dy}.items():
        if spec.shape != x.shape:
            raise ArgumentError(f"{name} has shape {spec.shape}; needed: {x.shape}")
    return x


FORWARD = {name: _forward(name) for name in _MODES}
BACKWARD = {name: _backward(name) for name in _MODES}


def graph_name(activation: object) -> str | None:
    """Return the name of an activation that is a graph; None for those of the C function."""
    if not isinstance(activation, str):
        return None
    name = activation_key(activation)
    return name if name in _MODES else None


def request_by_graph(
    handle: Handle | None,
    operation: OperationByGraph,
    operands: Sequence[Any],
    alpha: float,
    beta: float,
    out: Any,
) -> Request[DeviceArray]:
    """Return the arguments of one call of such an activation, bound."""
    for name, value, plain in (("alpha", alpha, 1.0), ("beta", beta, 0.0)):
        if value != plain:
            raise ArgumentError(
                f"{name}={shown(value)}; allowed with an activation that is a graph: {plain}"
            )
    return Request(
        handle,
        operation,
        operands,
        (),
        alpha,
        beta,
        out,
        plan_problem=_plan_of_graph,
        problem_of=_graph_problem,
    )


def _plan_of_graph(
    handle: Handle, problem: Problem, limit: int | None
) -> OperationPlan[DeviceArray]:
    graph = activation_graph(problem)
    find = partial(find_way, handle, graph, None, NO_REQUIREMENTS, limit)
    return plan_by_graph(handle, problem, graph, find, limit, is_complete=False)


def _graph_problem(problem: Problem) -> GraphProblem:
    """Return the graph as a problem, which the tuner takes."""
    return GraphProblem(activation_graph(problem))


def activation_graph(problem: Problem) -> Graph:
    """Return an activation, or its gradient, as a graph."""
    operation = problem.operation
    reads = ("x", "dy") if "dy" in operation.reads else ("x",)
    graph, tensors = pointwise_graph(problem, reads)
    mode, attributes = _pointwise_of(problem)
    result = graph.pointwise(mode, *tensors, **attributes)
    graph.output(operation.writes[0], result, problem.x.dtype)
    return graph


activation_plan = partial(plan_or_graph, make_graph=activation_graph)


def pointwise_graph(problem: Problem, reads: Sequence[str]) -> tuple[Graph, list[GraphTensor]]:
    """Return a graph with some operands of a pointwise operation, and these operands.

    In the graph they have their names in the C function.
    A pointwise operation alone has engines for tensors of three axes, as which every tensor without
    gaps can be seen: its axes in the order of memory, with those in the middle as one.
    ArgumentError for operands in several layouts, or with gaps.
    """
    _check(problem.specs, problem.options)
    x = problem.specs[reads[0]]
    if x.size == 0:
        raise ArgumentError(f"{reads[0]}={x} is empty; a graph has sizes from 1 on")
    axes = sorted(range(x.rank), key=lambda axis: -x.strides[axis])
    sizes = [x.shape[axis] for axis in axes if x.shape[axis] > 1]
    first, last = (sizes[:-1] or [1])[0], (sizes or [1])[-1]
    shape = (first, prod(sizes) // (first * last), last)
    graph = Graph()
    names = [problem.operation.header(name)[0] for name in reads]
    return graph, [graph.input(name, shape, x.dtype) for name in names]


def _pointwise_of(problem: Problem) -> tuple[str, Mapping[str, Any]]:
    """Return the mode of the pointwise operation, and its attributes."""
    name, _, direction = problem.operation.name.rpartition("_")
    if name in _MODES:
        mode, attributes = _MODES[name]
    else:
        forward_mode, attributes = pointwise_of(problem.activation)
        mode = forward_mode.name.removesuffix("_FWD")
        if direction == "backward" and mode in ("SIGMOID", "TANH"):
            raise ArgumentError(f"the C function computes the gradient of {mode.lower()} from y")
    if direction == "forward":
        return f"{mode}_FWD", attributes
    # No GPU was asked about the gradient of a relu with this attribute.
    return f"{mode}_BWD", {n: v for n, v in attributes.items() if n != "nan_propagation"}
