"""The search for a graph: it times the engines of cuDNN's heuristics, or every engine."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.autotune.synthetic_operands import random_array
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.devices.peaks import peaks_of
from cudnnlite.dtypes import itemsize
from cudnnlite.enums import MathType, parse_math_type
from cudnnlite.errors import ArgumentError, CudnnError, DeviceMemoryError
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.engines import Engine
from cudnnlite.graph.known_faults import why_wrong
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.operation_graph import OperationGraph
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.graph.selection import Requirements, candidates
from cudnnlite.plans.graph_plan import GraphPlan
from cudnnlite.plans.operands import on_device
from cudnnlite.plans.replay import Replay
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.problems.work import work_of
from cudnnlite.search import accuracy
from cudnnlite.search.contest import Contest, failed, join_remarks, own_stream
from cudnnlite.search.replayed_rows import with_replay
from cudnnlite.sizes import ALLOCATION_ALIGNMENT, over_limit
from cudnnlite.specs import TensorSpec

_POISON = 0xFF  # NaN in every floating-point format
_MOST_COMPARED = 1 << 22  # values of an output that are compared with those of another engine
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
) -> AlgorithmTable:
    """Time every engine for a graph on operands; waits for the handle.

    The results of each are compared with those of the engine that the heuristics prefer: how exact
    they are beside float64 is not measured.  Returns the best first by the policy's objective;
    candidates that cannot be used, or are excluded and did not run, come last.
    """
    reason = why_wrong(problem.graph)
    if reason is not None:
        raise ArgumentError(reason)
    is_by_latency = policy.objective == "latency"
    with own_stream(handle) as stream, ExitStack() as stack:
        inputs = {name: arrays.on_stream(array, stream) for name, array in operands.items()}
        trial = _GraphTrial(handle, problem, policy, inputs, stack)
        contest = Contest(handle, objective=policy.objective, flush_l2=policy.flush_l2)
        stack.callback(contest.close)
        results: dict[Hashable, AlgorithmResult] = {
            row: trial.run(row, contest) for row in engine_candidates(trial.native, policy)
        }
        rows = contest.finish(results)
        if is_by_latency and trial.may_be_replayed:
            rows = with_replay(rows, trial.measure_replay)
        return AlgorithmTable(
            rows,
            title=str(problem),
            timing=contest.timing,
            device_memory=contest.memory,
            work=work_of(problem),
            peaks=peaks_of(handle.device),
        )


class _GraphTrial:
    """Runs each engine once, over poisoned memory, and compares its results.

    Attributes
    ----------
    native : OperationGraph
        The graph's descriptors, which all engines share.
    """

    def __init__(
        self,
        handle: Handle,
        problem: GraphProblem,
        policy: TuningPolicy,
        inputs: Mapping[str, DeviceArray],
        stack: ExitStack,
    ) -> None:
        self._handle = handle
        self._graph = problem.graph
        self._policy = policy
        self._stack = stack
        self._requirements = requirements_of(policy)
        self._inputs = inputs
        self._outputs = {name: handle.empty(problem.values[name]) for name in problem.graph.outputs}
        self._expected: dict[str, np.ndarray[Any, Any]] | None = None
        self.native = lower(self._graph, handle, stack)

    @property
    def may_be_replayed(self) -> bool:
        """Whether a recorded call does what a call does: the numbers of dropout change."""
        return all(node.kind != "RNG" for node in self._graph.nodes)

    def run(self, candidate: AlgorithmResult, contest: Contest) -> AlgorithmResult:
        """Return a candidate with its result; one that may be chosen enters the contest."""
        if candidate.why_not:
            return candidate
        row = candidate
        try:
            plan = self._stack.enter_context(self._make_plan(row))
            row = replace(row, workspace=plan.workspace)
            limit = self._policy.workspace_limit
            if limit is not None and plan.workspace > int(limit):
                return replace(row, why_not=over_limit(plan.workspace, int(limit)))
            row = self._check(plan, row)
            if not row.why_not:
                call = partial(plan, *self._inputs.values(), out=self._outputs)
                contest.enter(candidate, call)
        except (CudnnError, DeviceMemoryError) as error:
            return failed(row, error, contest.memory)
        return row

    def measure_replay(self, row: AlgorithmResult) -> Replay | None:
        """Return the `replay` of a plan that launches graphs, after two calls.

        The first call is recorded; the second one has other outputs.
        """
        with self._make_plan(row, replay=True) as plan:
            plan(*self._inputs.values(), out=self._outputs)
            plan(*self._inputs.values())
            return plan.replay

    def _make_plan(self, row: AlgorithmResult, *, replay: bool = False) -> GraphPlan:
        engine = row.algorithm
        assert isinstance(engine, Engine)
        plan = GraphPlan(
            self._handle,
            self._graph,
            engine,
            None,
            self._requirements,
            replay=replay,
            native=self.native,
        )
        return plan.prepare()

    def _check(self, plan: GraphPlan, row: AlgorithmResult) -> AlgorithmResult:
        """Run a plan over poisoned memory, and compare its results with the first engine's."""
        device, stream = self._handle.device, self._handle.stream
        for array in self._outputs.values():
            device.fill(array.ptr, array.nbytes, _POISON, stream)
        plan(*self._inputs.values(), out=self._outputs)
        if self._policy.max_error is not None:
            return replace(row, why_not="its error beside float64 is not measured for graphs")
        results = {name: _values_of(self._outputs[name]) for name in self._compared_names()}
        if self._expected is None:
            self._expected = results
            return row
        expected = [*self._expected.values()]
        if not all(np.isfinite(values.astype(np.float64)).all() for values in expected):
            remark = "not compared: the results of made-up operands are not finite"
            return replace(row, remark=join_remarks(row.remark, remark))
        errors = accuracy.relative_errors([*results.values()], expected)
        dtype = next(iter(self._outputs.values())).spec.dtype
        reason = accuracy.why_wrong(errors.l2, dtype, row.math_type)
        if reason:
            reason += " beside the engine that the heuristics prefer"
        return replace(row, why_not=reason)

    def _compared_names(self) -> list[str]:
        """Return the outputs that no operation reads again: others are memory between kernels."""
        read_again = {
            self._graph.tensors[number].name
            for node in self._graph.nodes
            for number in node.read_numbers
        }
        names = [name for name in self._outputs if name not in read_again]
        return names or [*self._outputs]


def plan_of(handle: Handle, problem: GraphProblem, choice: AlgorithmResult) -> GraphPlan:
    """Return the plan of an engine that was chosen for a graph."""
    engine = choice.algorithm
    assert isinstance(engine, Engine)
    return GraphPlan(handle, problem.graph, engine).prepare()


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


def requirements_of(policy: TuningPolicy) -> Requirements:
    """Return the requirements of a policy for engines."""
    math_type = MathType.DEFAULT if policy.math_type is None else parse_math_type(policy.math_type)
    if not policy.allow_tf32:
        math_type = MathType.FMA
    return Requirements(math_type, policy.deterministic)


def _values_of(array: DeviceArray) -> np.ndarray[Any, Any]:
    """Return the values of an output, or the first of many."""
    spec = array.spec
    if spec.size > _MOST_COMPARED and spec.size * itemsize(spec.dtype) == array.nbytes:
        array = arrays.part_of(array, TensorSpec((_MOST_COMPARED,), spec.dtype), 0)
    return array.numpy()
