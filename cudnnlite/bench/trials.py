"""One problem on a handle: its candidates, their plans, and calls on operands with guard zones.

The trials of all kinds of problems have the same methods, so that the code that checks and measures
does not depend on the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from cudnnlite.autotune import convolution, graphs, rnn
from cudnnlite.autotune.convolution_reference import ConvolutionReference
from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.autotune.tuner import search_of
from cudnnlite.bench import graph_reference
from cudnnlite.bench.guards import GuardedMemory
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.devices.storage import bytes_spec
from cudnnlite.enums import DataType, RNNAlgo
from cudnnlite.errors import NotSupportedError
from cudnnlite.graph.engines import Engine
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.operation_graph import OperationGraph
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.operations.convolution.algorithms import ranked
from cudnnlite.operations.convolution.convolution_plan import ConvolutionPlan
from cudnnlite.operations.convolution.engines import shared_graph
from cudnnlite.operations.rnn.outputs import RNNReserve
from cudnnlite.operations.rnn.prefix_check import PrefixCheck
from cudnnlite.operations.rnn.rnn_plan import RNNPlan
from cudnnlite.operations.rnn.search import all_candidates, plan_key, why_too_large
from cudnnlite.plans.graph_plan import GraphPlan
from cudnnlite.problems import rnn as rnn_problem
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult

Array = np.ndarray[Any, Any]
Pairs = tuple[list[Array], list[Array]]  # the results, and the expected results
WORKSPACE, RESERVE = "the workspace", "the reserve space"


class Trial(Protocol):
    """One problem on a handle."""

    memory: GuardedMemory
    dtype: DataType  # of the outputs

    def candidates(self) -> list[AlgorithmResult]:
        """Return every candidate, with the reason if it may not be used; nothing is run."""

    def plan(self, row: AlgorithmResult) -> Any:
        """Return a plan of a candidate, prepared; the caller closes it."""

    def outputs(self) -> Sequence[DeviceArray]:
        """Return what calls write."""

    def begin(self, plan: Any) -> Callable[[], object]:
        """Return a function that makes a plan's call once, in memory with guard zones."""

    def restore_outputs(self) -> None:
        """Give the outputs the values before a call: poison, or the values that it blends."""

    def why_no_reference(self) -> str:
        """Return why results are not compared with float64; empty if they are."""

    def results_and_reference(self, plan: Any) -> Pairs:
        """Return results of the last call, or of another one, and the expected results."""


def trial_of(handle: Handle, problem: Problem, policy: TuningPolicy, stack: ExitStack) -> Trial:
    """Return the trial of a problem; ArgumentError if it is of a kind that cannot be tuned.

    `policy` has its workspace limit in bytes.  `stack` owns native objects.
    """
    search_of(problem)
    if isinstance(problem, GraphProblem):
        return GraphTrial(handle, problem, policy, stack)
    if problem.operation is rnn_problem.FORWARD:
        return RNNTrial(handle, problem, policy)
    return ConvolutionTrial(handle, problem, policy, stack)


def _workspace(memory: GuardedMemory, nbytes: int) -> DeviceArray | None:
    """Return guarded scratch memory of exactly `nbytes`; None for 0 bytes."""
    memory.forget(WORKSPACE)
    if not nbytes:
        return None
    return memory.empty(WORKSPACE, bytes_spec(nbytes))


def _poison(handle: Handle, array: DeviceArray) -> None:
    handle.device.fill(array.ptr, array.spec.nbytes, 0xFF, handle.stream)


class ConvolutionTrial:
    """A convolution, one of its gradients, or a fused one."""

    def __init__(
        self, handle: Handle, problem: Problem, policy: TuningPolicy, stack: ExitStack
    ) -> None:
        self._handle, self._problem, self._policy, self._stack = handle, problem, policy, stack
        self.memory = GuardedMemory(handle)
        operands = convolution.operands_of(handle, problem)
        self._inputs = {
            name: self.memory.place(name, operands[name], is_read_only=True)
            for name in problem.operation.reads
        }
        (output,) = problem.operation.writes
        self._out = self.memory.place(output, operands["out"])
        self._out_before = operands["out"] if problem.values.get("beta") else None
        self.dtype = self._out.spec.dtype
        self._graph: OperationGraph | None = None
        if policy.interface != "descriptor":
            self._graph = shared_graph(handle, problem, stack)
        self._reference: ConvolutionReference | None = None

    def candidates(self) -> list[AlgorithmResult]:
        """Return the candidates of the descriptor call, then engines."""
        rows: list[AlgorithmResult] = []
        if self._policy.interface != "graph" and self._problem.conv.is_symmetric:
            ranking: Sequence[AlgorithmResult] = ()
            with suppress(NotSupportedError):
                ranking = ranked(self._handle, self._problem)
            rows += convolution.candidates(
                self._problem, self._policy, ranking, ranks_by_descriptor_call=self._graph is None
            )
        if self._graph is not None:
            rows += convolution.engines(self._graph, self._problem, self._policy)
        return rows

    def plan(self, row: AlgorithmResult) -> ConvolutionPlan:
        """Return a plan of a candidate."""
        graph = self._graph if isinstance(row.algorithm, Engine) else None
        return ConvolutionPlan(self._handle, self._problem, row, graph=graph).prepare()

    def outputs(self) -> Sequence[DeviceArray]:
        """Return the one output."""
        return [self._out]

    def begin(self, plan: ConvolutionPlan) -> Callable[[], object]:
        """Return a function that makes a plan's call once."""
        workspace = _workspace(self.memory, plan.workspace)
        return partial(plan, *self._inputs.values(), out=self._out, workspace=workspace)

    def restore_outputs(self) -> None:
        """Poison the output, or give it the values that are blended with the result."""
        if self._out_before is None:
            _poison(self._handle, self._out)
            return
        device, stream, out = self._handle.device, self._handle.stream, self._out
        device.copy_within(out.ptr, self._out_before.ptr, out.spec.nbytes, stream)

    def why_no_reference(self) -> str:
        """Return why nothing is compared: integers are exact or saturate."""
        if ConvolutionReference.can_measure(self._problem):
            return ""
        return "integers are not compared"

    def results_and_reference(self, plan: ConvolutionPlan) -> Pairs:
        """Return a sample of the output, and the same places in float64."""
        if self._reference is None:
            self._reference = ConvolutionReference(self._problem, self._inputs, self._out_before)
        return self._reference.sample_of(self._out), self._reference.expected


class GraphTrial:
    """A graph of operations."""

    def __init__(
        self, handle: Handle, problem: GraphProblem, policy: TuningPolicy, stack: ExitStack
    ) -> None:
        self._handle, self._problem, self._policy = handle, problem, policy
        self.memory = GuardedMemory(handle)
        operands = graphs.operands_of(handle, problem)
        self._inputs = {
            name: self.memory.place(name, array, is_read_only=True)
            for name, array in operands.items()
        }
        self._outputs = {
            name: self.memory.empty(name, problem.values[name]) for name in problem.graph.outputs
        }
        self.dtype = next(iter(self._outputs.values())).spec.dtype
        self._native = lower(problem.graph, handle, stack)
        self._expected: list[Array] | None = None

    def candidates(self) -> list[AlgorithmResult]:
        """Return every engine with the knobs that cuDNN suggests."""
        return [*graphs.engine_candidates(self._native, self._policy)]

    def plan(self, row: AlgorithmResult) -> GraphPlan:
        """Return a plan of a candidate."""
        requirements = graphs.requirements_of(self._policy)
        plan = GraphPlan(
            self._handle,
            self._problem.graph,
            row.algorithm,
            None,
            requirements,
            native=self._native,
        )
        return plan.prepare()

    def outputs(self) -> Sequence[DeviceArray]:
        """Return every output of the graph."""
        return [*self._outputs.values()]

    def begin(self, plan: GraphPlan) -> Callable[[], object]:
        """Return a function that makes a plan's call once."""
        workspace = _workspace(self.memory, plan.workspace)
        return partial(plan, *self._inputs.values(), out=self._outputs, workspace=workspace)

    def restore_outputs(self) -> None:
        """Poison all outputs."""
        for array in self._outputs.values():
            _poison(self._handle, array)

    def why_no_reference(self) -> str:
        """Return which operation has no reference, or that the graph is too large for one."""
        return graph_reference.why_no_reference(self._problem.graph)

    def results_and_reference(self, plan: GraphPlan) -> Pairs:
        """Return the outputs for the first and the last image, and the same in float64."""
        graph = self._problem.graph
        images = graph_reference.computed_images(graph)
        if self._expected is None:
            inputs = {name: array.numpy() for name, array in self._inputs.items()}
            self._expected = []
            for image in images:
                values = graph_reference.reference(graph, inputs, image)
                self._expected += [values[name] for name in self._outputs]
        # Operations see an output in the shape of its record; its array may have other axes.
        outputs = [
            array.numpy().reshape(graph.outputs[name].shape)
            for name, array in self._outputs.items()
        ]
        results = [
            graph_reference.image_of(values, image) for image in images for values in outputs
        ]
        return results, self._expected


class RNNTrial:
    """The forward pass of a recurrent network."""

    def __init__(self, handle: Handle, problem: Problem, policy: TuningPolicy) -> None:
        self._handle, self._problem, self._policy = handle, problem, policy
        self.memory = GuardedMemory(handle)
        operands = rnn.operands_of(handle, problem)
        weights = operands["weights"]
        placed = self.memory.place("weights", weights.array, is_read_only=True)
        self._weights = weights.in_memory_of(placed)
        self._x = self.memory.place("x", operands["x"], is_read_only=True)
        self.dtype = problem.spec.dtype
        self._key = plan_key(problem)
        self._check = PrefixCheck((self._weights, self._x, None, None), problem.data)
        self._out: list[DeviceArray | None] | None = None

    def candidates(self) -> list[AlgorithmResult]:
        """Return every algorithm with every math type."""
        return [replace(row, why_not=self._why_not(row)) for row in all_candidates(self._problem)]

    def _why_not(self, row: AlgorithmResult) -> str:
        reason = self._policy.why_not(row, self._problem.spec.dtype)
        if not reason and row.algorithm == RNNAlgo.PERSIST_DYNAMIC:
            return why_too_large(self._problem.spec, self._handle.timing.on_chip)
        return reason

    def plan(self, row: AlgorithmResult) -> RNNPlan[Any]:
        """Return a plan of a candidate, which knows its sequences."""
        choice = AlgorithmResult(row.algorithm, row.math_type, deterministic=None)
        plan = RNNPlan[Any](self._handle, self._key._replace(choice=choice))
        plan.describe(self._x.spec, self._problem.data.lengths)
        return plan

    def outputs(self) -> Sequence[DeviceArray]:
        """Return y and the last states."""
        return [array for array in self._out or () if array is not None]

    def begin(self, plan: RNNPlan[Any]) -> Callable[[], object]:
        """Return a function that makes a plan's call once."""
        if self._out is None:
            names = ("y", "hy", "cy")
            new = zip(names, plan.new_outputs(), strict=True)
            self._out = [
                None if array is None else self.memory.empty(name, array.spec)
                for name, array in new
            ]
        workspace = _workspace(self.memory, plan.workspace)
        self.memory.forget(RESERVE)
        reserve = None
        if self._key.training:
            reserve = RNNReserve(self.memory.empty(RESERVE, bytes_spec(plan.reserve)))
        return partial(
            plan,
            self._weights,
            self._x,
            lengths=self._problem.data.lengths,
            out=self._out,
            reserve=reserve,
            workspace=workspace,
        )

    def restore_outputs(self) -> None:
        """Poison all outputs."""
        for array in self.outputs():
            _poison(self._handle, array)

    def why_no_reference(self) -> str:
        """Return the empty text: every network has a reference."""
        return ""

    def results_and_reference(self, plan: RNNPlan[Any]) -> Pairs:
        """Return results over the first steps, in a call of their own, and the same in float64."""
        pairs = self._check.run_with_reference(plan)
        plan.describe(self._x.spec, self._problem.data.lengths)
        return pairs
