"""The search for a graph: it times the engines of cuDNN's heuristics, or every engine."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from cudnnlite import AlgorithmResult, AlgorithmTable, DeviceArray, Handle, OperationPlan
from cudnnlite.devices import arrays
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.faults import why_wrong
from cudnnlite.graph.operation_graph import OperationGraph
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.graph.selection import candidates
from cudnnlite.plans.graph_call import WayThroughGraph
from cudnnlite.plans.graph_plan import NamedResults, graph_plan
from cudnnlite.plans.operands import on_device
from cudnnlite.sizes import ALLOCATION_ALIGNMENT
from cudnnlite.types import Engine
from cudnnlite.workbench.tuning.contest import Contest, own_stream
from cudnnlite.workbench.tuning.graph_trial import GraphTrial
from cudnnlite.workbench.tuning.policy import TuningPolicy, requirements_of
from cudnnlite.workbench.tuning.replayed_rows import with_replay
from cudnnlite.workbench.tuning.synthetic_operands import random_array
from cudnnlite.workbench.tuning.timing_policy import TimingPolicy
from cudnnlite.workbench.tuning.trial import TrialMemory

_LENGTHS = {
    "gemm_m_override_desc": ("adesc", -2),
    "gemm_n_override_desc": ("bdesc", -1),
    "gemm_k_override_desc": ("adesc", -1),
}


def operands_of(
    handle: Handle, problem: GraphProblem, alignments: Mapping[str, int] | None = None
) -> dict[str, DeviceArray]:
    """Make up the inputs of a graph: normal values, and lengths of sequences that are whole."""
    lengths = _whole_lengths(problem.graph)
    alignments = alignments or {}
    operands = {}
    for seed, name in enumerate(problem.operation.reads, start=1):
        spec = problem.values[name]
        if name in lengths:
            operands[name] = handle.array(np.full(spec.shape, lengths[name]), dtype=spec.dtype)
            continue
        alignment = alignments.get(name, ALLOCATION_ALIGNMENT)
        operands[name] = random_array(handle, spec, seed, alignment=alignment)
    return operands


def _whole_lengths(graph: GraphData) -> dict[str, int]:
    """Return, for each input with lengths of sequences, the length of a whole one."""
    lengths = {}
    for node in graph.nodes:
        reads = dict(node.reads)
        for attribute, (matrix, axis) in _LENGTHS.items():
            if node.kind == "MATMUL" and attribute in reads:
                (number,), (whole,) = reads[attribute], reads[matrix]
                lengths[graph.tensors[number].name] = graph.tensors[whole].shape[axis]
    return lengths


def check_operands(
    handle: Handle, problem: GraphProblem, operands: Mapping[str, Any]
) -> dict[str, DeviceArray]:
    """Return the user's inputs; ArgumentError if they do not fit the graph."""
    names = problem.operation.reads
    if set(operands) != set(names):
        raise ArgumentError(f"operands={sorted(map(str, operands))}; needed: {', '.join(names)}")
    checked = {name: on_device(handle, operands[name], name) for name in names}
    for name, array in checked.items():
        if array.spec != problem.values[name]:
            raise ArgumentError(f"{name} is {array.spec}; the graph has {problem.values[name]}")
    return checked


def search_graph(
    handle: Handle,
    problem: GraphProblem,
    policy: TuningPolicy,
    operands: Mapping[str, DeviceArray],
    timing: TimingPolicy,
) -> AlgorithmTable:
    """Time every engine for a graph on operands; waits for the handle.

    Returns the best first by the policy's objective; candidates that cannot be used, or are
    excluded and did not run, come last.
    """
    reason = why_wrong(problem.graph, handle.api.engine_version)
    if reason is not None:
        raise ArgumentError(reason)
    with own_stream(handle) as stream, ExitStack() as stack:
        inputs = {name: arrays.on_stream(array, stream) for name, array in operands.items()}
        trial = GraphTrial(handle, problem, policy, inputs, stack, TrialMemory(handle))
        contest = Contest(handle, timing, objective=policy.objective, flush_l2=policy.flush_l2)
        stack.callback(contest.close)
        results: dict[Hashable, AlgorithmResult] = {
            row: trial.run(row, contest) for row in engine_candidates(trial.native, policy)
        }
        rows = contest.finish(results)
        if policy.objective == "latency" and trial.may_be_replayed:
            rows = with_replay(rows, trial.measure_replay)
        return contest.table(rows, problem)


def list_candidates(
    handle: Handle, problem: GraphProblem, policy: TuningPolicy, trial: GraphTrial
) -> list[AlgorithmResult]:
    """Return every engine with the knobs that cuDNN suggests; nothing is run."""
    return [*engine_candidates(trial.native, policy)]


def plan_of(
    handle: Handle, problem: GraphProblem, choice: AlgorithmResult
) -> OperationPlan[NamedResults]:
    """Return the plan of an engine that was chosen for a graph."""
    engine = choice.algorithm
    assert isinstance(engine, Engine)
    return graph_plan(handle, problem.graph, WayThroughGraph(engine))


def engine_candidates(
    native: OperationGraph, policy: TuningPolicy
) -> Generator[AlgorithmResult, None, None]:
    """Yield every engine with the knobs that cuDNN suggests, and why it is excluded."""
    if policy.interface == "descriptor":
        return
    dtype = next(iter(native.data.inputs.values())).dtype
    for row in candidates(native, requirements_of(policy)):
        if policy.search == "heuristics" and row.heuristic is None:
            return
        yield replace(row, why_not=row.why_not or policy.why_not(row, dtype))
