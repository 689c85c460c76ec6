"""Engines of cuDNN's backend for an operation: the one that a plan runs unless told otherwise, and all that there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    configure,
    named_by,
    unnamed,
)
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.graph.operation_graph import ALIGNMENT, Graph
from cudnnlite.operations.convolution.graphs import graph_of
from cudnnlite.operations.convolution.native import NativeConvolution
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.sizes import over_limit
from cudnnlite.warn import warn_user


def why_no_engine(problem: Problem) -> str:
    """Return why a problem is not put to the backend; empty if it may be."""
    algorithms = problem.operation.algorithms
    if algorithms is None:
        return "it has no operation graph"
    if any(
        numpy_dtype(spec.dtype).kind in "iu" or spec.vector > 1 for spec in problem.specs.values()
    ):
        return "integers stay with the descriptor call"
    return algorithms.why_no_graph(problem) or ""


def is_aligned(*operands: DeviceArray | None) -> bool:
    """Tell whether arrays lie as engines want them; what does not exist yet will."""
    return not any(array.ptr % ALIGNMENT for array in operands if array is not None)


class NoEngine(NamedTuple):
    """No engine runs a problem."""

    why: str
    larger: tuple[
        tuple[AlgorithmResult, str], ...
    ] = ()  # those that only the workspace limit excludes, and why


class PreferredEngine(NamedTuple):
    """The engine that runs a problem unless something else is asked for."""

    row: AlgorithmResult
    plan: ExecutionPlan


def preferred_engine(
    native: NativeConvolution, limit: int | None, stack: ExitStack
) -> PreferredEngine | NoEngine:
    """Return the first engine that heuristic A, or the fallback, names, that keeps the promises, and that fits the limit.

    `stack` owns its plan.  Where there is none, what was made to find that out is closed, but for
    the graph.
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
        for configuration in _named(graph, modes, search):
            row = row_of(configuration, problem)
            why = excluded(configuration, problem)
            trial = search.enter_context(ExitStack())
            if not why:
                try:
                    # Of a configuration of our own: what a heuristic returns cannot be written
                    # down as a program, because nobody sets its attributes.
                    own_configuration = configure(graph, configuration.engine, trial)
                    plan = ExecutionPlan(graph, own_configuration, trial)
                    row = replace(row, workspace=plan.workspace)
                except REFUSALS as error:
                    why = f"it cannot do this after all ({error.status})"
            if not why and limit is not None and row.workspace > limit:
                why = over_limit(row.workspace, limit)
                too_large.append((row, why))
            if not why:
                tell_limit(too_large, row.algorithm, problem)
                stack.enter_context(search.pop_all())
                return PreferredEngine(replace(row, passed_over=tuple(passed_over)), plan)
            trial.close()
            passed_over.append((row, why))
    reasons = "; ".join(dict.fromkeys(why for _, why in passed_over))
    return NoEngine(reasons or "cuDNN's heuristics name none", tuple(too_large))


def given_engine(
    native: NativeConvolution, engine: Engine, stack: ExitStack
) -> tuple[AlgorithmResult, ExecutionPlan]:
    """Return an engine that was chosen, with its workspace and its notes, and what runs it; `stack` owns what is made.

    ArgumentError where it would break a promise of the problem's; CudnnError where it is none for
    this problem, or this cuDNN.
    """
    problem = native.problem
    if why := why_no_engine(problem):
        raise ArgumentError(f"algorithm={engine}: {why}")
    graph = native.graph
    try:
        configuration = configure(graph, engine, stack)
    except CudnnError as error:
        error.notes += (f"algorithm={engine}: {_what_is_wrong(engine, graph)}",)
        raise
    if why := excluded(configuration, problem):
        raise ArgumentError(f"algorithm={engine}: {why}")
    plan = ExecutionPlan(graph, configuration, stack)
    return replace(row_of(configuration, problem), workspace=plan.workspace), plan


def _what_is_wrong(engine: Engine, graph: Graph) -> str:
    """Return what the graph has instead of an engine that cuDNN refused."""
    assert graph.descriptor is not None
    count: int = graph.descriptor.get("engine_global_count")
    if engine.index not in range(count):
        return f"there is no such engine; those for this problem have numbers from 0 to {count - 1}"
    if engine.choices:
        return "for this problem there is no such engine, or it has not got these knobs"
    return "for this problem there is no such engine"


def engine_rows(graph: Graph, problem: Problem, *, compiled: bool = False) -> list[AlgorithmResult]:
    """Return every configuration that cuDNN's heuristics name, the preferred first, then each engine that none of them names.

    With what excludes it; nothing is run.  Those of the second kind that cuDNN compiles first are
    left out, unless `compiled`.
    """
    with ExitStack() as stack:
        named = list(_named(graph, HEURISTICS, stack))
        every = unnamed(graph, {each.engine.index for each in named}, stack)
        others = [each for each in every if compiled or not each.compiled]
        return [
            replace(
                row_of(each, problem),
                why_not=excluded(each, problem),
                heuristic=place if place < len(named) else None,
            )
            for place, each in enumerate((*named, *others))
        ]


def shared_graph(handle: Handle, problem: Problem, stack: ExitStack) -> Graph | None:
    """Return the graph that all engines for a problem have in common; None where it is not put to the backend."""
    try:
        return None if why_no_engine(problem) else graph_of(handle, problem, stack)
    except REFUSALS:
        return None


def row_of(configuration: Configuration, problem: Problem) -> AlgorithmResult:
    """Return an engine as a candidate."""
    math_type = configuration.math_type(problem.math_type)
    half = problem.values[problem.operation.reads[0]].dtype in (DataType.HALF, DataType.BFLOAT16)
    if math_type == MathType.DEFAULT and half:  # as the descriptor call's heuristic is asked
        math_type = MathType.TENSOR_OP
    return AlgorithmResult(
        configuration.engine, math_type, deterministic=configuration.deterministic
    )


def excluded(configuration: Configuration, problem: Problem) -> str:
    """Return why an engine may not be used for a problem; empty if it may."""
    asked, first = problem.math_type, problem.values[problem.operation.reads[0]]
    notes = configuration.numerical
    if asked == MathType.FMA and configuration.math_type(asked) != MathType.FMA:
        return "it multiplies in fewer bits, math type FMA was asked for"
    converts = BackendNumericalNote.DOWN_CONVERT_INPUTS in notes
    if converts and first.dtype == DataType.FLOAT and asked != MathType.TENSOR_OP_ALLOW_CONVERSION:
        return "it rounds its operands to a narrower type"
    narrow = BackendNumericalNote.REDUCED_PRECISION_REDUCTION in notes
    if narrow and problem.conv.compute_type_for(first) != DataType.HALF:
        return "it sums in fewer bits than the compute type"
    if not configuration.capturable:
        return "it makes a texture when it runs, which no CUDA graph can record"
    return ""


def _named(
    graph: Graph, modes: Iterable[BackendHeurMode], stack: ExitStack
) -> Iterator[Configuration]:
    seen: set[Engine] = set()
    for mode in modes:
        for configuration in named_by(graph, mode, stack):
            if configuration.engine not in seen:
                seen.add(configuration.engine)
                yield configuration


def tell_limit(
    larger: Iterable[tuple[AlgorithmResult, str]], chosen: object, problem: Problem
) -> None:
    """Warn where the limit excluded what the heuristic prefers."""
    told = [f"{row.algorithm} ({why})" for row, why in larger]
    if told:
        warn_user(
            f"the workspace limit excluded {', '.join(told)}, which cuDNN's heuristic prefers to {chosen}; tuning "
            f"{problem.kind} measures what that costs",
            WorkspaceLimitWarning,
        )
