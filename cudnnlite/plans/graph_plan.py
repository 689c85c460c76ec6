"""`graph_plan`: the plan of an operation graph; `plan_by_graph`: that of an operation by a graph.

`plan_or_graph`: that of an operation by its C function, or by a graph if libcudnn lacks it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError, NotSupportedError, SymbolNotFoundError
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.faults import why_wrong
from cudnnlite.graph.numbers import NumbersInMemory
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.plans.graph_call import WayThroughGraph, graph_call
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.plans.planned_call import PlannedCall
from cudnnlite.problems.problem import SCALARS, Problem

NamedResults: TypeAlias = dict[str, DeviceArray]
_HEURISTIC = WayThroughGraph()


def graph_plan(
    handle: Handle,
    graph: GraphData,
    way: WayThroughGraph = _HEURISTIC,
    limit: int | None = None,
) -> OperationPlan[NamedResults]:
    """Return the plan of a graph, whose calls return all outputs by name.

    Parameters
    ----------
    handle : Handle
        The plan belongs to it and is closed with it.
    graph : GraphData
        It can no longer be changed.
    way : WayThroughGraph
        The engine, or what one must do.
    limit : int or None
        The most workspace in bytes, including outputs in scratch memory.

    Raises
    ------
    ArgumentError
        cuDNN would compute the graph wrongly.
    NotSupportedError, WorkspaceLimitError
        No engine serves.
    """
    _check(handle, graph)
    problem = GraphProblem(graph, way.scratch)
    numbers = NumbersInMemory(graph.scalars)
    plan_call = partial(graph_call, graph, way, numbers)
    return OperationPlan(handle, problem, limit, plan_call, numbers=numbers)


def plan_by_graph(
    handle: Handle,
    problem: Problem,
    graph: GraphData,
    find_way: Callable[[], WayThroughGraph],
    limit: int | None,
    *,
    is_complete: bool,
) -> OperationPlan[DeviceArray]:
    """Return the plan of an operation that a graph computes.

    Its operands are those of the operation.

    Parameters
    ----------
    handle, limit
        As in `graph_plan`.
    problem : Problem
        The operation.
    graph : GraphData
        The graph that computes it; it can no longer be changed.
    find_way : callable
        It returns the engine, or what one must do.
    is_complete : bool
        Whether the problem says all that the graph does.
    """

    def plan_call(
        handle: Handle, problem: Problem, limit: int | None, stack: ExitStack
    ) -> PlannedCall:
        _check(handle, graph)
        graph.freeze()
        numbers = NumbersInMemory(graph.scalars)
        return graph_call(graph, find_way(), numbers, handle, problem, limit, stack)

    return OperationPlan(handle, problem, limit, plan_call, graph=graph, is_complete=is_complete)


def plan_or_graph(
    handle: Handle,
    problem: Problem,
    limit: int | None,
    make_graph: Callable[[Problem], GraphData],
) -> OperationPlan[DeviceArray]:
    """Return the plan of an operation; it runs a graph if libcudnn lacks the C function.

    Parameters
    ----------
    handle, problem, limit
        As in `plan_by_graph`.
    make_graph : callable
        It returns the graph that computes the problem without `alpha` and `beta`, and not in place;
        its tensors have the names of the C function's arguments.

    Raises
    ------
    SymbolNotFoundError
        The C function is missing, and no graph serves.
    """
    try:
        return OperationPlan(handle, problem, limit)
    except SymbolNotFoundError as missing:
        if any(problem.values.get(name, plain) != plain for name, plain in SCALARS.items()):
            raise
        try:
            plan = plan_by_graph(
                handle, problem, make_graph(problem), WayThroughGraph, limit, is_complete=True
            )
        except (NotSupportedError, ArgumentError) as error:
            raise missing from error
        assert plan.choice is not None
        plan.choice = replace(plan.choice, remark=str(missing))
        return plan


def _check(handle: Handle, graph: GraphData) -> None:
    """Raise ArgumentError if every engine would compute a graph wrongly."""
    reason = why_wrong(graph, handle.api.engine_version)
    if reason is not None:
        raise ArgumentError(reason)
