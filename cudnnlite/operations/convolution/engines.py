"""The engines of cuDNN's backend for a convolution: the preferred one, a named one, and all."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from cudnnlite._raw.enums import BackendHeurMode, BackendNumericalNote
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.enums import DataType, MathType
from cudnnlite.errors import ArgumentError, CudnnError, WorkspaceLimitWarning
from cudnnlite.graph.engines import (
    HEURISTICS,
    REFUSALS,
    Configuration,
    Engine,
    configurations,
    configure,
    unnamed,
)
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.graph.known_faults import why_engine_is_wrong
from cudnnlite.graph.operation_graph import ALIGNMENT, OperationGraph
from cudnnlite.operations.convolution.graphs import graph_of
from cudnnlite.operations.convolution.native import NativeConvolution
from cudnnlite.plans.nearest_graph import none_named
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import HEURISTIC, MAKES_A_TEXTURE, AlgorithmResult
from cudnnlite.sizes import over_limit
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


class PreferredEngine(NamedTuple):
    """The engine that runs a problem when the caller names no algorithm."""

    row: AlgorithmResult
    plan: ExecutionPlan


def preferred_engine(
    native: NativeConvolution, limit: int | None, stack: ExitStack
) -> PreferredEngine | NoEngine:
    """Return the first engine of heuristic A, or of the fallback, that may be used.

    It has to be allowed by `why_excluded`, and its workspace has to be within the limit.  `stack`
    owns its plan.  All other native objects but the graph are closed.
    """
    problem = native.problem
    if why := why_no_engine(problem):
        return NoEngine(why)
    passed_over: list[tuple[AlgorithmResult, str]] = []
    too_large: list[tuple[AlgorithmResult, str]] = []
    with ExitStack() as search:
        try:
            graph = native.graph
        except REFUSALS as error:
            return NoEngine(f"cuDNN makes no graph of it ({error.status})")
        modes = (BackendHeurMode.A, BackendHeurMode.FALLBACK)
        for configuration in configurations(graph, modes, search):
            row = row_of(configuration, problem)
            why = why_excluded(configuration, graph, problem)
            trial = search.enter_context(ExitStack())
            if not why:
                try:
                    # The plan is made from a configuration that is set attribute by attribute,
                    # so that `tracing` can write it down as a program.  cuDNN sets the attributes
                    # of the configuration that a heuristic returns.
                    plan_configuration = configure(graph, configuration.engine, trial)
                    plan = ExecutionPlan(graph, plan_configuration, trial)
                    row = replace(row, workspace=plan.workspace)
                except REFUSALS as error:
                    why = f"it cannot do this after all ({error.status})"
            if not why and limit is not None and row.workspace > limit:
                why = over_limit(row.workspace, limit)
                too_large.append((row, why))
            if not why:
                warn_of_limit(too_large, row.algorithm, problem)
                stack.enter_context(trial.pop_all())
                row = replace(row, passed_over=tuple(passed_over), source=HEURISTIC)
                return PreferredEngine(row, plan)
            trial.close()
            passed_over.append((row, why))
    reasons = "; ".join(dict.fromkeys(why for _, why in passed_over))
    return NoEngine(reasons or none_named(native.handle.device), tuple(too_large))


def named_engine(
    native: NativeConvolution, engine: Engine, stack: ExitStack
) -> tuple[AlgorithmResult, ExecutionPlan]:
    """Return the row and the execution plan of an engine that the caller named.

    `stack` owns the plan.  ArgumentError if `why_excluded` does not allow the engine; CudnnError if
    this cuDNN has no such engine for the problem.
    """
    problem = native.problem
    if why := why_no_engine(problem):
        raise ArgumentError(f"algorithm={engine}: {why}")
    graph = native.graph
    try:
        configuration = configure(graph, engine, stack)
    except CudnnError as error:
        error.notes += (f"algorithm={engine}: {_why_refused(engine, graph)}",)
        raise
    if why := why_excluded(configuration, graph, problem):
        raise ArgumentError(f"algorithm={engine}: {why}")
    plan = ExecutionPlan(graph, configuration, stack)
    return replace(row_of(configuration, problem), workspace=plan.workspace), plan


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
    graph: OperationGraph, problem: Problem, *, compiled: bool = False
) -> list[AlgorithmResult]:
    """Return a row for each configuration of cuDNN's heuristics, and for each other engine.

    The configurations come first, the preferred one at the front.  A row that may not be used says
    why not.  Nothing is run.  Engines that the heuristics do not name, and that cuDNN would have to
    compile, are left out unless `compiled`.
    """
    with ExitStack() as stack:
        ranked = list(configurations(graph, HEURISTICS, stack))
        unranked = unnamed(graph, {configuration.engine.index for configuration in ranked}, stack)
        rows = []
        for rank, configuration in enumerate(ranked):
            why_not = why_excluded(configuration, graph, problem)
            row = row_of(configuration, problem)
            rows.append(replace(row, why_not=why_not, heuristic=rank))
        for configuration in unranked:
            if compiled or not configuration.compiled:
                why_not = why_excluded(configuration, graph, problem)
                rows.append(replace(row_of(configuration, problem), why_not=why_not))
        return rows


def shared_graph(handle: Handle, problem: Problem, stack: ExitStack) -> OperationGraph | None:
    """Return the graph that all engines for a problem share; None if no engine may be tried."""
    if why_no_engine(problem):
        return None
    try:
        return graph_of(handle, problem, stack)
    except REFUSALS:
        return None


def row_of(configuration: Configuration, problem: Problem) -> AlgorithmResult:
    """Return an engine as a candidate."""
    math_type = configuration.math_type(problem.math_type)
    first = problem.values[problem.operation.reads[0]]
    is_half = first.dtype in (DataType.HALF, DataType.BFLOAT16)
    if math_type == MathType.DEFAULT and is_half:
        # The descriptor call's heuristic is asked with this math type, too.
        math_type = MathType.TENSOR_OP
    return configuration.candidate(math_type)


def why_excluded(configuration: Configuration, graph: OperationGraph, problem: Problem) -> str:
    """Return why an engine may not be used for a problem; empty if it may."""
    math_type = problem.math_type
    first = problem.values[problem.operation.reads[0]]
    notes = configuration.numerical
    if math_type == MathType.FMA and configuration.math_type(math_type) != MathType.FMA:
        return "it multiplies in fewer bits, math type FMA was asked for"
    may_convert = first.dtype != DataType.FLOAT or math_type == MathType.TENSOR_OP_ALLOW_CONVERSION
    if BackendNumericalNote.DOWN_CONVERT_INPUTS in notes and not may_convert:
        return "it rounds its operands to a narrower type"
    has_narrow_sums = BackendNumericalNote.REDUCED_PRECISION_REDUCTION in notes
    if has_narrow_sums and problem.conv.compute_type_for(first) != DataType.HALF:
        return "it sums in fewer bits than the compute type"
    if not configuration.capturable:
        return MAKES_A_TEXTURE
    engine = configuration.engine.index
    return why_engine_is_wrong(engine, graph.data, configuration.version) or ""


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
