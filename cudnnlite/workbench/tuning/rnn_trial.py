"""`RNNTrial`: the forward pass of a recurrent network on operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from cudnnlite import AlgorithmResult, DeviceArray, Handle, RNNPlan, RNNWeights
from cudnnlite.enums import RNNAlgo
from cudnnlite.operations.rnn.native_rnn import RNNPlanKey
from cudnnlite.types import Problem, RNNReserve
from cudnnlite.workbench.tuning.prefix_check import PrefixCheck
from cudnnlite.workbench.tuning.trial import Pairs, Trial, TrialMemory


class RNNTrial(Trial):
    """The algorithms for a recurrent network on weights, x, hx and cx."""

    def __init__(
        self,
        handle: Handle,
        problem: Problem,
        operands: tuple[RNNWeights, DeviceArray, DeviceArray | None, DeviceArray | None],
        stack: ExitStack,
        memory: TrialMemory,
        *,
        workspace_limit: int | None = None,
        max_error: float | None = None,
    ) -> None:
        super().__init__(handle, stack, memory, workspace_limit, max_error)
        weights, x, hx, cx = operands
        placed = memory.place("weights", weights.array, is_read_only=True)
        x = memory.place("x", x, is_read_only=True)
        self._operands = (weights.in_memory_of(placed), x, hx, cx)
        self._key = plan_key(problem)
        self._x_spec, self._lengths = x.spec, problem.data.lengths
        self._check = PrefixCheck(self._operands, problem.data)
        self.dtype = problem.spec.dtype
        self.basis = f" over the first {self._check.steps} steps"
        self._out: Sequence[DeviceArray | None] | None = None
        self._reserve: RNNReserve | None = None

    def plan(self, row: AlgorithmResult, *, replay: bool = False) -> RNNPlan[Any]:
        """Return a plan of a candidate, which knows its sequences."""
        choice = AlgorithmResult(row.algorithm, row.math_type, deterministic=None)
        plan = RNNPlan[Any](self._handle, self._key._replace(choice=choice, replay=replay))
        try:
            plan.describe(self._x_spec, self._lengths)
        except BaseException:
            plan.close()
            raise
        return plan

    def outputs(self) -> Sequence[DeviceArray]:
        """Return y and the last states."""
        return [array for array in self._out or () if array is not None]

    def call_of(self, plan: RNNPlan[Any], *, has_new_outputs: bool = False) -> Callable[[], object]:
        """Return a function that makes a plan's call once.

        All candidates share one reserve space, which is looked up when the function is called: a
        later candidate may need a larger one.
        """
        if self._out is None:
            self._out = self._new_outputs(plan)
        out = self._out
        if has_new_outputs:
            out = plan.new_outputs()
        if self._key.training:
            self._reserve = RNNReserve(self.memory.reserve(plan.reserve))
        workspace = self.memory.workspace(plan.workspace)
        return lambda: plan(
            *self._operands,
            lengths=self._lengths,
            out=out,
            reserve=self._reserve,
            workspace=workspace,
        )

    def _new_outputs(self, plan: RNNPlan[Any]) -> list[DeviceArray | None]:
        names = ("y", "hy", "cy")
        return [
            None if array is None else self.memory.empty(name, array.spec)
            for name, array in zip(names, plan.new_outputs(), strict=True)
        ]

    def why_no_reference(self) -> str:
        """Return the empty text: every network has a reference."""
        return ""

    def run_with_reference(self, plan: RNNPlan[Any], call: Callable[[], object]) -> Pairs:
        """Return `results_and_reference`, which makes a call of its own."""
        return self.results_and_reference(plan)

    def results_and_reference(self, plan: RNNPlan[Any]) -> Pairs:
        """Return results over the first steps, in a call of their own, and the same in float64."""
        pairs = self._check.run_with_reference(plan)
        plan.describe(self._x_spec, self._lengths)
        return pairs

    def judge(
        self, plan: RNNPlan[Any], call: Callable[[], object], row: AlgorithmResult
    ) -> AlgorithmResult:
        """Return a candidate's row with its errors and, in training, its reserve space."""
        row = super().judge(plan, call, row)
        if self._key.training:
            return replace(row, reserve=plan.reserve)
        return row


def plan_key(problem: Problem) -> RNNPlanKey:
    """Return the key of a plan by STANDARD, without dropout and without a workspace limit."""
    spec, data = problem.spec.replace(dropout=0.0), problem.data
    return RNNPlanKey(
        spec,
        AlgorithmResult(RNNAlgo.STANDARD, spec.math_type, deterministic=None),
        data.batch,
        data.layout,
        padded_io=data.needs_padded_io,
        training=problem.training,
        padding_fill="0.0",
        dropout_state=None,
        workspace_limit=None,
        is_guess=False,
        replay=False,
    )
