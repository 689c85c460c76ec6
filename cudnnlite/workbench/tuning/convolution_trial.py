"""`ConvolutionTrial`: a convolution, one of its gradients, or a fused one, on operands."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from cudnnlite import AlgorithmResult, DeviceArray, Handle, OperationPlan
from cudnnlite.cached_property import cached_property
from cudnnlite.devices import arrays
from cudnnlite.enums import DataType
from cudnnlite.graph.operation_graph import OperationGraph
from cudnnlite.operations.convolution.convolution_plan import convolution_plan
from cudnnlite.operations.convolution.engines import is_aligned, shared_graph
from cudnnlite.operations.convolution.layout_conversion import problem_in_layout
from cudnnlite.types import Engine, Problem
from cudnnlite.workbench.tuning.convolution_reference import ConvolutionReference
from cudnnlite.workbench.tuning.policy import TuningPolicy, limit_of
from cudnnlite.workbench.tuning.trial import Pairs, Trial, TrialMemory


class ConvolutionTrial(Trial):
    """The candidates of a convolution on operands, of which "out" is overwritten."""

    def __init__(
        self,
        handle: Handle,
        problem: Problem,
        policy: TuningPolicy,
        operands: Mapping[str, DeviceArray],
        stack: ExitStack,
        memory: TrialMemory,
    ) -> None:
        super().__init__(handle, stack, memory, limit_of(policy), policy.max_error)
        self.must_repeat = policy.deterministic
        self._problem, self._policy = problem, policy
        self._inputs = {
            name: memory.place(name, operands[name], is_read_only=True)
            for name in problem.operation.reads
        }
        (output,) = problem.operation.writes
        self._out = memory.place(output, operands["out"])
        self._out_before: DeviceArray | None = None
        if problem.values.get("beta"):
            self._out_before = arrays.copy_of(self._out, handle.stream)
        self.dtype = self._out.spec.dtype
        self._graphs: dict[str, OperationGraph | None] = {}

    @cached_property
    def _reference(self) -> ConvolutionReference:
        return ConvolutionReference(self._problem, self._inputs, self._out_before)

    def graph_in(self, layout: str) -> OperationGraph | None:
        """Return the graph that all engines share, of the problem in a layout.

        None if the policy allows no engine, or if no engine can take the operands.  One graph for
        each engine would take longer than the finalization of its plan.  The layout is empty for
        the operands' own.
        """
        if self._policy.interface == "descriptor":
            return None
        if not is_aligned(*self._inputs.values(), self._out):
            return None
        if layout not in self._graphs:
            problem = self._problem
            if layout:
                problem = problem_in_layout(problem, layout)
            self._graphs[layout] = shared_graph(self._handle, problem, self._stack)
        return self._graphs[layout]

    def plan(self, row: AlgorithmResult, *, replay: bool = False) -> OperationPlan[DeviceArray]:
        """Return a plan of a candidate."""
        graph = self.graph_in(row.layout) if isinstance(row.algorithm, Engine) else None
        return convolution_plan(self._handle, self._problem, row, replay=replay, graph=graph)

    def outputs(self) -> Sequence[DeviceArray]:
        """Return the one output."""
        return [self._out]

    def call_of(
        self, plan: OperationPlan[DeviceArray], *, has_new_outputs: bool = False
    ) -> Callable[[], object]:
        """Return a function that makes a plan's call once."""
        out = self._out
        if has_new_outputs:
            out = self._handle.empty(out.spec)
        workspace = self.memory.workspace(plan.workspace)
        return partial(plan, *self._inputs.values(), out=out, workspace=workspace)

    def restore_outputs(self) -> None:
        """Poison the output, or give it the values that are blended with the result."""
        if self._out_before is None:
            super().restore_outputs()
            return
        device, stream, out = self._handle.device, self._handle.stream, self._out
        device.copy_within(out.ptr, self._out_before.ptr, out.nbytes, stream)

    def why_no_reference(self) -> str:
        """Return why nothing is compared: integers are exact or saturate."""
        if ConvolutionReference.can_measure(self._problem):
            return ""
        return "integers are not compared"

    def results_and_reference(self, plan: OperationPlan[DeviceArray]) -> Pairs:
        """Return a sample of the output, and the same places in float64."""
        return self._reference.sample_of(self._out), self._reference.expected

    def fingerprint_of(self, row: AlgorithmResult) -> Hashable:
        """Return a value that is equal for two math types that run the same kernel.

        In float32 the last bits of a sum depend on the order of its terms, and so do the errors of
        many values.  If no sum is rounded, or the output has another type, the errors show nothing,
        and the result is None.
        """
        is_float = self.dtype in (DataType.FLOAT, DataType.DOUBLE)
        if not is_float or self.why_no_reference() or not self._reference.is_rounded:
            return None
        return row.algorithm, row.layout, row.workspace, row.error, row.max_error
