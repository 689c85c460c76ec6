"""`graph_call`: the call of a graph, by the engine that is named or the first that serves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cudnnlite.arguments import cut
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import Status
from cudnnlite.errors import NotSupportedError, WorkspaceLimitError
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.engines import Configuration, Engine
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.numbers import NumbersInMemory
from cudnnlite.graph.operation_graph import ALIGNMENT, OperationGraph
from cudnnlite.graph.selection import (
    HEURISTICS_OF_PLANS,
    NO_REQUIREMENTS,
    NoSelection,
    Requirements,
    Selection,
    named,
    select,
    why_excluded,
    with_scratch,
)
from cudnnlite.plans.nearest_graph import hints, none_named
from cudnnlite.plans.planned_call import PlannedCall
from cudnnlite.plans.replay import Operand, ReplayedCall
from cudnnlite.problems.problem import Problem
from cudnnlite.sizes import aligned_size, over_limit


@dataclass(frozen=True)
class WayThroughGraph:
    """How a graph is computed.

    Attributes
    ----------
    engine : Engine or None
        The engine; None for the first that the heuristics name and that meets the requirements.
    requirements : Requirements
        What an engine must do.
    replay : bool
        Whether calls are recorded as CUDA graphs and launched.
    scratch : collection of str
        The outputs that are in scratch memory, behind the engine's.
    native : OperationGraph or None
        The graph's descriptors, if the caller keeps them open.
    source : str
        Who chose the engine; empty for the caller, or the heuristics.
    """

    engine: Engine | None = None
    requirements: Requirements = NO_REQUIREMENTS
    replay: bool = False
    scratch: Collection[str] = ()
    native: OperationGraph | None = None
    source: str = ""


def graph_call(
    graph: GraphData,
    way: WayThroughGraph,
    numbers: NumbersInMemory,
    handle: Handle,
    problem: Problem,
    limit: int | None,
    stack: ExitStack,
) -> PlannedCall:
    """Return the call of a graph that computes a problem; with `partial` it is a `PlanCall`."""
    native = way.native
    if native is None:
        try:
            native = lower(graph, handle, stack)
        except NotSupportedError as error:
            error.notes = (*error.notes, *_hints(handle, graph, way.requirements))
            raise
    make_call = partial(ExecutionPlan, numbers=numbers)
    if way.engine is not None:
        selection = named(
            native, way.engine, way.requirements, "engine", stack, make_call=make_call
        )
    else:
        selection = _preferred(native, graph, way, limit, stack, make_call)
    call: Any = selection.call
    choice = selection.row
    workspace = with_scratch(call.workspace, scratch_bytes(graph, way.scratch))
    if way.engine is not None and limit is not None and workspace > limit:
        raise WorkspaceLimitError(f"engine={way.engine}: {over_limit(workspace, limit)}")
    if way.replay:
        call = ReplayedCall(handle, call, _staged_operands(problem))
        stack.callback(call.close)
    return PlannedCall(
        call,
        replace(choice, source=way.source) if way.source else choice,
        workspace,
        alignments=dict.fromkeys(problem.specs, ALIGNMENT),
        scratch_offsets=_scratch_offsets(graph, choice.workspace, way.scratch),
    )


def _preferred(
    native: OperationGraph,
    graph: GraphData,
    way: WayThroughGraph,
    limit: int | None,
    stack: ExitStack,
    make_call: Any,
) -> Selection:
    """Return the first engine that is allowed and fits the limit."""
    selection = select(
        native,
        way.requirements,
        limit,
        stack,
        make_call=make_call,
        scratch_nbytes=scratch_bytes(graph, way.scratch),
    )
    if isinstance(selection, Selection):
        return selection
    if not selection.passed_over:
        handle = native.handle
        raise _none_named(handle, graph, _hints(handle, graph, way.requirements))
    raise _none_left(graph, selection)


def _hints(handle: Handle, graph: GraphData, requirements: Requirements) -> list[str]:
    """Return hints for a graph that cuDNN has no engine for.

    This asks cuDNN about up to 24 other graphs.
    """

    def is_allowed(configuration: Configuration, other: GraphData) -> bool:
        return why_excluded(configuration, other, requirements) is None

    return hints(handle, graph, HEURISTICS_OF_PLANS, is_allowed)


def _staged_operands(problem: Problem) -> dict[str, Operand]:
    operation = problem.operation
    return {
        name: Operand(spec.nbytes, name in operation.reads, name in operation.writes)
        for name, spec in problem.specs.items()
    }


def _scratch_offsets(
    graph: GraphData, engine_nbytes: int, scratch: Collection[str]
) -> list[tuple[str, int]]:
    """Return the offset of the engine's workspace, and those of the outputs behind it, by name."""
    offsets, end = [("workSpace", 0)], aligned_size(engine_nbytes)
    for name, record in graph.outputs.items():
        if name in scratch:
            offsets.append((name, end))
            end += aligned_size(record.spec.nbytes)
    return offsets


def scratch_bytes(graph: GraphData, scratch: Iterable[str]) -> int:
    """Return the bytes of the outputs that are in scratch memory."""
    outputs = graph.outputs
    return sum(aligned_size(outputs[name].spec.nbytes) for name in scratch)


def _none_named(
    handle: Handle, graph: GraphData, hints_of_graph: Sequence[str]
) -> NotSupportedError:
    """Return the error for a graph that the heuristics name no engine for."""
    detail = "; ".join([f"{none_named(handle.device)} for such a graph", *hints_of_graph])
    return NotSupportedError(
        "cudnnBackendFinalize", Status.NOT_SUPPORTED, f"graph of {_kinds(graph)}: {detail}"
    )


def _none_left(graph: GraphData, selection: NoSelection) -> NotSupportedError | WorkspaceLimitError:
    """Return the error for a graph whose engines were all passed over."""
    reasons = "; ".join(f"{row.algorithm}: {reason}" for row, reason in selection.passed_over)
    message = f"graph of {_kinds(graph)}: {reasons}"
    if selection.larger:
        return WorkspaceLimitError(message)
    return NotSupportedError("cudnnBackendFinalize", Status.NOT_SUPPORTED, message)


def _kinds(graph: GraphData) -> str:
    return cut(", ".join(row[1] for row in graph.rows()))
