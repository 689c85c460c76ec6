"""Which engine runs a graph: the rules, and the one loop over the engines that cuDNN names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from cudnnlite._raw.enums import BackendHeurMode, BackendNumericalNote
from cudnnlite.enums import DataType, MathType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.compiled_plans import configurations_to_try
from cudnnlite.graph.data import GraphData
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
from cudnnlite.graph.faults import why_engine_is_wrong
from cudnnlite.graph.operation_graph import OperationGraph
from cudnnlite.graph.questions import multiplies_in_tf32
from cudnnlite.problems.results import HEURISTIC, MAKES_A_TEXTURE, AlgorithmResult
from cudnnlite.sizes import aligned_size, over_limit

# The heuristics that plans ask, in this order.
HEURISTICS_OF_PLANS = (BackendHeurMode.A, BackendHeurMode.FALLBACK)


class Requirements(NamedTuple):
    """What an engine must satisfy, whoever chooses it.

    Attributes
    ----------
    math_type : MathType
        How it may multiply.
    is_deterministic : bool
        Whether two runs must give the same bits.
    """

    math_type: MathType = MathType.DEFAULT
    is_deterministic: bool = False


NO_REQUIREMENTS = Requirements()
RowOf = Callable[[Configuration, GraphData, Requirements], AlgorithmResult]
MakeCall = Callable[[OperationGraph, Configuration, ExitStack], ExecutionPlan]


class Selection(NamedTuple):
    """The engine that runs a graph.

    Attributes
    ----------
    row : AlgorithmResult
        The engine, with its workspace and the engines that were passed over.
    call : ExecutionPlan
        Its prepared call.
    larger : tuple of (AlgorithmResult, str)
        The engines before it that only the workspace limit excludes.
    """

    row: AlgorithmResult
    call: ExecutionPlan
    larger: tuple[tuple[AlgorithmResult, str], ...] = ()


class NoSelection(NamedTuple):
    """The answer that no engine runs a graph.

    Attributes
    ----------
    passed_over : tuple of (AlgorithmResult, str)
        Every engine that cuDNN names, with the reason.
    larger : tuple of (AlgorithmResult, str)
        Those of them that only the workspace limit excludes.
    """

    passed_over: tuple[tuple[AlgorithmResult, str], ...]
    larger: tuple[tuple[AlgorithmResult, str], ...]


def math_type_of(configuration: Configuration, graph: GraphData, requested: MathType) -> MathType:
    """Return the math type of an engine for a graph."""
    math_type = configuration.math_type(requested)
    if math_type == MathType.FMA and multiplies_in_tf32(graph):
        return MathType.DEFAULT
    return math_type


def row_of(
    configuration: Configuration, graph: GraphData, requirements: Requirements
) -> AlgorithmResult:
    """Return an engine as a candidate."""
    return configuration.candidate(math_type_of(configuration, graph, requirements.math_type))


def why_excluded(
    configuration: Configuration, graph: GraphData, requirements: Requirements
) -> str | None:
    """Return why an engine may not run a graph, or None if it may."""
    notes = configuration.numerical
    requested = requirements.math_type
    needs_fma = requested == MathType.FMA
    if needs_fma and math_type_of(configuration, graph, requested) != MathType.FMA:
        return "it multiplies in fewer bits, math type FMA was asked for"
    reads_float32 = any(record.dtype == DataType.FLOAT for record in graph.inputs.values())
    may_round = requested == MathType.TENSOR_OP_ALLOW_CONVERSION
    if BackendNumericalNote.DOWN_CONVERT_INPUTS in notes and reads_float32 and not may_round:
        return "it rounds its operands to a narrower type"
    has_narrow_sums = BackendNumericalNote.REDUCED_PRECISION_REDUCTION in notes
    if has_narrow_sums and graph.compute_type != DataType.HALF:
        return "it sums in fewer bits than the compute type"
    if requirements.is_deterministic and not configuration.deterministic:
        return "it is not deterministic"
    if not configuration.capturable:
        return MAKES_A_TEXTURE
    return why_engine_is_wrong(configuration.engine.index, graph, configuration.version)


def select(
    graph: OperationGraph,
    requirements: Requirements,
    limit: int | None,
    stack: ExitStack,
    *,
    make_call: MakeCall = ExecutionPlan,
    row_of: RowOf = row_of,
    scratch_nbytes: int = 0,
) -> Selection | NoSelection:
    """Return the first engine that serves a graph, is allowed, and is within the limit.

    Parameters
    ----------
    graph : OperationGraph
        The graph; it stays open for as long as the selection.
    requirements : Requirements
        What the engine must satisfy.
    limit : int or None
        The most workspace in bytes.
    stack : ExitStack
        It owns the selected call.  All other native objects but the graph are closed.
    make_call, row_of : callable
        The prepared call, and the row, of a configuration.
    scratch_nbytes : int
        The bytes of other scratch memory, behind the engine's, that count for the limit.
    """
    passed_over: list[tuple[AlgorithmResult, str]] = []
    larger: list[tuple[AlgorithmResult, str]] = []
    with ExitStack() as search:
        for configuration in configurations_to_try(graph, HEURISTICS_OF_PLANS, search):
            row = row_of(configuration, graph.data, requirements)
            reason = why_excluded(configuration, graph.data, requirements)
            if reason is not None:
                passed_over.append((row, reason))
                continue
            trial = search.enter_context(ExitStack())
            try:
                # The call is made from a configuration that is set attribute by attribute, so that
                # `tracing` can write it down as a program.  cuDNN sets the attributes of the
                # configuration that a heuristic returns.
                configured = configure(graph, configuration.engine, trial)
                call = make_call(graph, configured, trial)
            except REFUSALS as error:
                trial.close()
                passed_over.append((row, f"it cannot do this after all ({error.status})"))
                continue
            row = replace(row, workspace=call.workspace)
            needed = with_scratch(call.workspace, scratch_nbytes)
            if limit is None or needed <= limit:
                stack.enter_context(trial.pop_all())
                row = replace(row, passed_over=tuple(passed_over), source=HEURISTIC)
                return Selection(row, call, tuple(larger))
            trial.close()
            larger.append((row, over_limit(needed, limit)))
            passed_over.append(larger[-1])
    return NoSelection(tuple(passed_over), tuple(larger))


def with_scratch(workspace: int, scratch_nbytes: int) -> int:
    """Return the bytes of an engine's workspace and of other scratch memory behind it."""
    return aligned_size(workspace) + scratch_nbytes if scratch_nbytes else workspace


def named(
    graph: OperationGraph,
    engine: Engine,
    requirements: Requirements,
    argument: str,
    stack: ExitStack,
    *,
    make_call: MakeCall = ExecutionPlan,
    row_of: RowOf = row_of,
) -> Selection:
    """Return the engine that the caller named, by `argument`; `stack` owns its call.

    Raises
    ------
    ArgumentError
        `why_excluded` does not allow the engine.
    CudnnError
        This cuDNN has no such engine for the graph.
    """
    configuration = configure(graph, engine, stack)
    reason = why_excluded(configuration, graph.data, requirements)
    if reason is not None:
        raise ArgumentError(f"{argument}={engine}: {reason}")
    call = make_call(graph, configuration, stack)
    row = row_of(configuration, graph.data, requirements)
    return Selection(replace(row, workspace=call.workspace), call)


def candidates(
    graph: OperationGraph, requirements: Requirements, *, row_of: RowOf = row_of
) -> Iterator[AlgorithmResult]:
    """Yield a row for each configuration of cuDNN's heuristics, and for each other engine.

    The configurations come first, the preferred one at the front, with their rank.  A row that may
    not be used says why not.  Nothing is run.
    """
    with ExitStack() as stack:
        indices: set[int] = set()

        def candidate(configuration: Configuration) -> AlgorithmResult:
            row = row_of(configuration, graph.data, requirements)
            why_not = why_excluded(configuration, graph.data, requirements) or ""
            return replace(row, why_not=why_not)

        for rank, configuration in enumerate(configurations(graph, HEURISTICS, stack)):
            indices.add(configuration.engine.index)
            yield replace(candidate(configuration), heuristic=rank)
        yield from map(candidate, unnamed(graph, indices, stack))
