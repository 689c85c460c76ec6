"""`AttentionForwardRequest`: one call of multi-head attention; and the backward passes' plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from cudnnlite.arguments import instance_of, one_of
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.attention.attention_plan import AttentionPlan, kept_plan
from cudnnlite.operations.attention.pass_operands import AttentionReserve, AttentionTrainingOutput
from cudnnlite.operations.attention.plan_key import AttentionPlanKey, attention_plan_key
from cudnnlite.operations.layers.dropout import DropoutState, check_states
from cudnnlite.plans.operands import on_device, operand_spec, use
from cudnnlite.plans.stateful_function import refuse_arguments_of_calls, refuse_problem
from cudnnlite.specs.attention import AttentionSpec

_FORWARD = "multi_head_attention_forward"


@dataclass(eq=False, slots=True)
class AttentionForwardRequest:
    """The arguments of one call of `multi_head_attention_forward`, or of its plan."""

    handle: Any
    spec: Any
    weights: Any
    q: Any
    k: Any
    v: Any
    q_lengths: Any
    kv_lengths: Any
    window: Any
    residual: Any
    step: Any
    training: Any
    dropout_state: Any
    out: Any
    reserve: Any

    def run(self) -> Any:
        """Compute, by the plan that the handle keeps for calls of this kind."""
        self._check()
        self.q = on_device(self.handle, self.q, "q")
        self.k = on_device(self.handle, self.k, "k")
        self.v = on_device(self.handle, self.v, "v")
        plan = self._find_or_make_plan()
        return plan(
            self.weights,
            self.q,
            self.k,
            self.v,
            residual=self.residual,
            step=self.step,
            out=self.out,
            reserve=self.reserve,
        )

    def _find_or_make_plan(self) -> AttentionPlan[Any]:
        """Return the plan that the handle keeps for calls of this kind."""
        plans = self.handle.plans
        kind = self._kind()
        plan: AttentionPlan[Any] | None = None if kind is None else plans.find(kind)
        if plan is None:
            plan = kept_plan(self.handle, self._plan_key())
            if kind is not None:
                plans.keep(kind, plan)
        return plan

    def _kind(self) -> tuple[Any, ...] | None:
        """Return another key of the plan; None for a call with lengths, a window or dropout.

        To make an `AttentionPlanKey` takes 200 us (two cores, no GPU).
        """
        options = (self.q_lengths, self.kv_lengths, self.window, self.dropout_state)
        is_plain = all(option is None for option in options)
        if not is_plain or type(self.training) is not bool:
            return None
        return (_FORWARD, self.spec, self.q.spec, self.k.spec, self.v.spec, self.training)

    def plan(self) -> AttentionPlan[Any]:
        """Return a new plan, for many calls of this kind."""
        self._check()
        refuse_arguments_of_calls(
            _FORWARD,
            residual=self.residual,
            step=self.step,
            out=self.out,
            reserve=self.reserve,
        )
        plan = AttentionPlan[Any](self.handle, self._plan_key())
        try:
            if self.weights is not None:
                plan.check_weights(self.weights)
        except BaseException:
            plan.close()
            raise
        return plan

    def problem(self) -> NoReturn:
        """Raise ArgumentError: there is no declaration."""
        refuse_problem(_FORWARD)

    def _check(self) -> None:
        use(self.handle)
        instance_of(self.spec, AttentionSpec, "spec")

    def _plan_key(self) -> AttentionPlanKey:
        specs = {
            name: operand_spec(self.handle, getattr(self, name), name) for name in ("q", "k", "v")
        }
        dropout_state = self._parse_dropout_state()
        return attention_plan_key(
            self.spec,
            specs,
            self.q_lengths,
            self.kv_lengths,
            self.window,
            training=self.training,
            dropout_state=dropout_state,
        )

    def _parse_dropout_state(self) -> DropoutState | None:
        """Return the random states of a training call; None in inference."""
        one_of(self.training, "training", True, False)
        state = self.dropout_state
        drops = self.spec.dropout or self.spec.post_dropout
        if self.training and drops and state is None:
            raise ArgumentError(
                "dropout_state is not given, which training with dropout needs: "
                "DropoutState(handle)"
            )
        if state is not None:
            check_states(self.handle, state)
        if not self.training:
            return None
        return state  # type: ignore[no-any-return]


def plan_of(handle: Handle, reserve: Any) -> AttentionPlan[AttentionTrainingOutput]:
    """Return a plan of the forward call that filled a reserve space."""
    use(handle)
    return kept_plan(handle, AttentionReserve.checked(handle, reserve).call.key)
