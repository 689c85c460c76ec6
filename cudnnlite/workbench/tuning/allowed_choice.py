"""`allowed_choice`: the first candidate that a policy allows, without a measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from cudnnlite import AlgorithmResult, DeviceArray, Handle, OperationPlan
from cudnnlite.enums import RNNAlgo
from cudnnlite.errors import (
    ArgumentError,
    CudnnError,
    DeviceMemoryError,
    NoAlgorithmError,
    NotSupportedError,
    WorkspaceLimitError,
)
from cudnnlite.graph.faults import why_engine_is_wrong, why_wrong
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.operations.convolution.convolution_plan import convolution_plan
from cudnnlite.operations.convolution.engines import shared_graph
from cudnnlite.operations.convolution.graphs import data_of
from cudnnlite.operations.convolution.layout_conversion import problem_in_layout
from cudnnlite.operations.rnn.choice import heuristic
from cudnnlite.plans.graph_call import WayThroughGraph
from cudnnlite.plans.graph_plan import NamedResults, graph_plan
from cudnnlite.problems.results import HEURISTIC
from cudnnlite.problems.rnn import FORWARD as RNN_FORWARD
from cudnnlite.sizes import over_limit
from cudnnlite.specs.rnn_rules import why_not as why_not_rnn
from cudnnlite.types import Engine, Problem
from cudnnlite.workbench.tuning import graphs
from cudnnlite.workbench.tuning.convolution import (
    candidates,
    engines,
    layouts_to_try,
    ranking_of,
)
from cudnnlite.workbench.tuning.policy import TuningPolicy, limit_of, requirements_of
from cudnnlite.workbench.tuning.rnn_search import all_candidates, workspace_of

# Errors of one candidate; others, such as that of a lost device, are errors of the call.
_CANDIDATE_ERRORS = (CudnnError, DeviceMemoryError, ArgumentError)

# Makes a prepared plan of a candidate; of None, it is a plan of the heuristic's choice.
_MakePlan = Callable[[AlgorithmResult | None], OperationPlan[Any]]


def is_passed_over(row: AlgorithmResult, problem: Problem, version: int) -> bool:
    """Whether a measured engine is known to be wrong, or excluded, since it was measured.

    It is asked about the graph that it runs: in the layout to which operands are converted.
    """
    if not isinstance(row.algorithm, Engine):
        return False
    if isinstance(problem, GraphProblem):
        graph = problem.graph
    else:
        graph = data_of(problem_in_layout(problem, row.layout) if row.layout else problem)
    why = why_engine_is_wrong(row.algorithm.index, graph, version) or why_wrong(graph, version)
    return why is not None


def allowed_choice(
    handle: Handle, problem: Problem, policy: TuningPolicy, *, is_aligned: bool
) -> AlgorithmResult | None:
    """Return the first candidate that a policy allows, without a measurement.

    It is the choice of cuDNN's heuristic, unless the policy excludes that.  NoAlgorithmError if the
    policy excludes all; None if there is nothing to compute.
    """
    if problem.operation is RNN_FORWARD:
        return replace(_choice_for_rnn(handle, problem, policy), source=HEURISTIC)
    if isinstance(problem, GraphProblem):
        make_plan: _MakePlan = partial(_plan_of_graph, handle, problem, policy)
        rows = _candidates_for_graph(handle, problem, policy)
    else:
        make_plan = partial(_plan_of_convolution, handle, problem, policy, is_aligned=is_aligned)
        rows = _candidates_for_convolution(handle, problem, policy)
    choice = _choice_of_heuristic(problem, make_plan)
    if choice is None:
        return None
    exclusion = _why_excluded(choice, problem, policy)
    if exclusion:
        reason = f"{choice.algorithm}: {exclusion}"
        choice = _first_served(problem, rows, make_plan, reason)
    return replace(choice, source=HEURISTIC)


def _choice_of_heuristic(problem: Problem, make_plan: _MakePlan) -> AlgorithmResult | None:
    """Return the choice of cuDNN's heuristic; None if there is nothing to compute."""
    try:
        with make_plan(None) as plan:
            choice: AlgorithmResult | None = plan.choice
            return choice
    except (NotSupportedError, WorkspaceLimitError) as error:
        raise _none_allowed(problem, [str(error)]) from error


def _first_served(
    problem: Problem, rows: Iterable[AlgorithmResult], make_plan: _MakePlan, reason: str
) -> AlgorithmResult:
    """Return the first candidate that is allowed and can be made; NoAlgorithmError without one.

    `reason` says why the heuristic's choice is excluded.
    """
    reasons = [reason]
    for row in rows:
        if row.why_not:
            reasons.append(f"{row.algorithm}: {row.why_not}")
            continue
        try:
            with make_plan(row) as plan:
                choice = plan.choice
        except _CANDIDATE_ERRORS as error:
            reasons.append(f"{row.algorithm}: {error}")
            continue
        assert choice is not None
        return choice
    raise _none_allowed(problem, reasons)


def _none_allowed(problem: Problem, reasons: Iterable[str]) -> NoAlgorithmError:
    return NoAlgorithmError(f"no algorithm for {problem} is allowed: {'; '.join(reasons)}")


def _why_excluded(row: AlgorithmResult, problem: Problem, policy: TuningPolicy) -> str:
    """Return why a policy excludes a choice within its workspace limit; empty if it does not."""
    interface = "graph" if isinstance(row.algorithm, Engine) else "descriptor"
    if policy.interface not in (None, interface):
        return f"interface={policy.interface!r}"
    first_spec = next(iter(problem.specs.values()))
    return policy.why_not(row, first_spec.dtype)


def _plan_of_convolution(
    handle: Handle,
    problem: Problem,
    policy: TuningPolicy,
    row: AlgorithmResult | None,
    *,
    is_aligned: bool,
) -> OperationPlan[DeviceArray]:
    """Return a prepared plan of a candidate for a convolution, or of the heuristic's choice."""
    return convolution_plan(
        handle,
        problem,
        row,
        limit_of(policy),
        policy.interface,
        is_aligned=is_aligned or row is not None,
    )


def _candidates_for_convolution(
    handle: Handle, problem: Problem, policy: TuningPolicy
) -> Iterator[AlgorithmResult]:
    """Yield engines, then algorithms of the descriptor call, then engines in other layouts."""
    yield from _engines_for(handle, problem, policy)
    yield from _descriptor_calls(handle, problem, policy)
    for layout in layouts_to_try(handle, problem, policy):
        for row in _engines_for(handle, problem_in_layout(problem, layout), policy):
            yield replace(row, layout=layout)


def _engines_for(handle: Handle, problem: Problem, policy: TuningPolicy) -> list[AlgorithmResult]:
    """Return the engines for a convolution, with the reason if the policy excludes one."""
    if policy.interface == "descriptor":
        return []
    with ExitStack() as stack:
        graph = shared_graph(handle, problem, stack)
        return [] if graph is None else list(engines(graph, problem, policy))


def _descriptor_calls(
    handle: Handle, problem: Problem, policy: TuningPolicy
) -> list[AlgorithmResult]:
    """Return the algorithms of the descriptor call, in the order of its heuristic."""
    if policy.interface == "graph" or not problem.conv.is_symmetric:
        return []
    ranking = ranking_of(handle, problem)
    refused = {(row.algorithm, row.math_type) for row in ranking if not row.ok}
    rows = [
        row
        for row in candidates(problem, policy, ranking, ranks_by_descriptor_call=True)
        if (row.algorithm, row.math_type) not in refused
    ]
    last = len(rows)
    return sorted(rows, key=lambda row: last if row.heuristic is None else row.heuristic)


def _plan_of_graph(
    handle: Handle, problem: GraphProblem, policy: TuningPolicy, row: AlgorithmResult | None
) -> OperationPlan[NamedResults]:
    """Return a prepared plan of an engine for a graph, or of the heuristic's choice."""
    engine = None
    if row is not None:
        engine = row.algorithm
        assert isinstance(engine, Engine)
    way = WayThroughGraph(engine, requirements_of(policy))
    return graph_plan(handle, problem.graph, way, limit_of(policy))


def _candidates_for_graph(
    handle: Handle, problem: GraphProblem, policy: TuningPolicy
) -> Iterator[AlgorithmResult]:
    """Yield the engines for a graph, with the reason if the policy excludes one."""
    with ExitStack() as stack:
        native = lower(problem.graph, handle, stack)
        rows = [*graphs.engine_candidates(native, policy)]
    yield from rows


def _choice_for_rnn(handle: Handle, problem: Problem, policy: TuningPolicy) -> AlgorithmResult:
    """Return the choice without tuning for a recurrent network, or the first allowed candidate.

    It has its workspace.  In training it supports the backward passes too.
    """
    preferred = heuristic(problem.spec, problem.data)

    def is_other(row: AlgorithmResult) -> bool:
        return (row.algorithm, row.math_type) != (preferred.algorithm, preferred.math_type)

    reasons = []
    for row in sorted(all_candidates(problem), key=is_other):
        exclusion = _why_not_rnn(problem, row, policy)
        if not exclusion:
            try:
                return replace(row, workspace=_allowed_workspace(handle, problem, row, policy))
            except (CudnnError, WorkspaceLimitError) as error:
                exclusion = str(error)
        reasons.append(f"{row.algorithm} ({row.math_type}): {exclusion}")
    raise _none_allowed(problem, reasons)


def _allowed_workspace(
    handle: Handle, problem: Problem, row: AlgorithmResult, policy: TuningPolicy
) -> int:
    """Return the bytes of workspace that a recurrent network's candidate needs.

    WorkspaceLimitError if the policy does not allow them.
    """
    workspace, limit = workspace_of(handle, problem, row), limit_of(policy)
    if limit is not None and workspace > limit:
        raise WorkspaceLimitError(over_limit(workspace, limit))
    return workspace


def _why_not_rnn(problem: Problem, row: AlgorithmResult, policy: TuningPolicy) -> str:
    """Return why a recurrent network's candidate is excluded; empty if it is not."""
    spec = problem.spec
    if row.algorithm == RNNAlgo.PERSIST_DYNAMIC:
        return "compiling it takes up to a minute"
    return policy.why_not(row, spec.dtype) or why_not_rnn(
        spec, row.algorithm, full=problem.data.is_full, backward=problem.training
    )
