"""The engines of cuDNN's backend for a convolution: the preferred one, a named one, and all."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import NamedTuple

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.enums import DataType, MathType
from cudnnlite.errors import ArgumentError, CudnnError, WorkspaceLimitWarning
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.engines import REFUSALS, Configuration, Engine
from cudnnlite.graph.faults import why_wrong
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.operation_graph import ALIGNMENT, OperationGraph
from cudnnlite.graph.selection import (
    NoSelection,
    Requirements,
    Selection,
    candidates,
    named,
    select,
)
from cudnnlite.operations.convolution.graphs import data_of
from cudnnlite.operations.convolution.native_convolution import NativeConvolution
from cudnnlite.plans.nearest_graph import none_named
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.warn import warn_user


def why_no_engine(problem: Problem) -> str:
    """Return why no engine is tried for a problem; empty if engines may be tried."""
    algorithms = problem.operation.algorithms
    if algorithms is None:
        return "it has no operation graph"
    for spec in problem.specs.values():
        if numpy_dtype(spec.dtype).kind in "iu" or spec.vector > 1:
            return "integers stay with the descriptor call"
        if spec.size == 0:
            return "graphs have no empty batch"
    return algorithms.why_no_graph(problem) or ""


def _why_none_may_run(native: NativeConvolution) -> str:
    """Return why no engine may run a convolution; empty if they may."""
    why = why_no_engine(native.problem)
    return why or why_wrong(native.data, native.handle.api.engine_version) or ""


def is_aligned(*operands: DeviceArray | None) -> bool:
    """Whether arrays have the alignment that engines need; an array yet to be made will have it."""
    return not any(array.ptr % ALIGNMENT for array in operands if array is not None)


class NoEngine(NamedTuple):
    """The answer that no engine runs a problem.

    Attributes
    ----------
    why : str
        The reasons.
    larger : tuple of (AlgorithmResult, str)
        The engines that only the workspace limit excludes, each with the reason.
    """

    why: str
    larger: tuple[tuple[AlgorithmResult, str], ...] = ()


def preferred_engine(
    native: NativeConvolution, limit: int | None, stack: ExitStack
) -> Selection | NoEngine:
    """Return the first engine of heuristic A, or of the fallback, that may be used.

    `stack` owns its call.
    """
    problem = native.problem
    if why := _why_none_may_run(native):
        return NoEngine(why)
    try:
        graph = native.graph
    except REFUSALS as error:
        return NoEngine(f"cuDNN makes no graph of it ({error.status})")
    selection = select(graph, requirements_of(problem), limit, stack, row_of=row_of)
    if isinstance(selection, NoSelection):
        reasons = "; ".join(dict.fromkeys(why for _, why in selection.passed_over))
        return NoEngine(reasons or none_named(native.handle.device), selection.larger)
    warn_of_limit(selection.larger, selection.row.algorithm, problem)
    return selection


def named_engine(native: NativeConvolution, engine: Engine, stack: ExitStack) -> Selection:
    """Return the engine that the caller named; `stack` owns its call.

    ArgumentError if `why_excluded` does not allow the engine; CudnnError if this cuDNN has no such
    engine for the problem.
    """
    problem = native.problem
    if why := _why_none_may_run(native):
        raise ArgumentError(f"algorithm={engine}: {why}")
    graph = native.graph
    try:
        return named(graph, engine, requirements_of(problem), "algorithm", stack, row_of=row_of)
    except CudnnError as error:
        error.notes += (f"algorithm={engine}: {_why_refused(engine, graph)}",)
        raise


def _why_refused(engine: Engine, graph: OperationGraph) -> str:
    """Return why cuDNN refused an engine, by the engines that the graph has."""
    assert graph.descriptor is not None
    count: int = graph.descriptor.get("engine_global_count")
    if engine.index not in range(count):
        return f"there is no such engine; those for this problem have numbers from 0 to {count - 1}"
    if engine.choices:
        return "for this problem there is no such engine, or it does not have these knobs"
    return "for this problem there is no such engine"


def engine_rows(
    graph: OperationGraph, problem: Problem, *, also_unnamed: bool = False
) -> list[AlgorithmResult]:
    """Return a row for each configuration of cuDNN's heuristics, and for each other engine.

    The configurations come first, the preferred one at the front.  A row that may not be used says
    why not.  Nothing is run.  Engines that the heuristics do not name, and that cuDNN would have to
    compile, are left out unless `also_unnamed`.
    """
    rows = candidates(graph, requirements_of(problem), row_of=row_of)
    return [row for row in rows if also_unnamed or row.heuristic is not None or not row.compiled]


def shared_graph(handle: Handle, problem: Problem, stack: ExitStack) -> OperationGraph | None:
    """Return the graph that all engines for a problem share; None if no engine may be tried."""
    if why_no_engine(problem):
        return None
    data = data_of(problem)
    if why_wrong(data, handle.api.engine_version):
        return None
    try:
        return lower(data, handle, stack)
    except REFUSALS:
        return None


def requirements_of(problem: Problem) -> Requirements:
    """Return what engines for a problem must satisfy."""
    return Requirements(problem.math_type)


def row_of(
    configuration: Configuration, graph: GraphData, requirements: Requirements
) -> AlgorithmResult:
    """Return an engine as a candidate."""
    math_type = configuration.math_type(requirements.math_type)
    first = next(iter(graph.inputs.values()))
    is_half = first.dtype in (DataType.HALF, DataType.BFLOAT16)
    if math_type == MathType.DEFAULT and is_half:
        # The descriptor call's heuristic is asked with this math type, too.
        math_type = MathType.TENSOR_OP
    return configuration.candidate(math_type)


def warn_of_limit(
    larger: Iterable[tuple[AlgorithmResult, str]], choice: object, problem: Problem
) -> None:
    """Warn if the workspace limit excluded what cuDNN's heuristic prefers to the choice."""
    excluded = [f"{row.algorithm} ({why})" for row, why in larger]
    if excluded:
        warn_user(
            f"the workspace limit excluded {', '.join(excluded)}, which cuDNN's heuristic prefers "
            f"to {choice}; tuning {problem.kind} measures what that costs",
            WorkspaceLimitWarning,
        )
