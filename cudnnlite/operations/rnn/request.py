"""`RNNForwardRequest`: one call of `rnn_forward`; and the plan by which backward passes run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from cudnnlite.arguments import instance_of, one_of, shown
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import RNNAlgo, RNNDataLayout
from cudnnlite.errors import ArgumentError, NotSupportedError, WorkspaceLimitError
from cudnnlite.operations.layers.dropout import DropoutState, check_states
from cudnnlite.operations.rnn.choice import heuristic, parse_algorithm
from cudnnlite.operations.rnn.native_rnn import RNNPlanKey
from cudnnlite.operations.rnn.outputs import (
    RNNOutput,
    RNNReserve,
    RNNTrainingOutput,
    without_sequences,
)
from cudnnlite.operations.rnn.rnn_plan import RNNPlan, check_state_specs
from cudnnlite.operations.rnn.sequences import data_spec
from cudnnlite.operations.rnn.weights import RNNWeights
from cudnnlite.plans.choice import tuned_choice, tuning_key
from cudnnlite.plans.operands import on_device, operand_spec, usable_workspace, use
from cudnnlite.plans.replay import parse_replay
from cudnnlite.plans.stateful_function import refuse_arguments_of_calls
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import HEURISTIC, AlgorithmResult
from cudnnlite.problems.rnn import FORWARD
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.specs import RNNDataSpec, RNNSpec
from cudnnlite.specs.frozen import exact_key
from cudnnlite.specs.rnn_data import parse_data_layout, parse_fill

# The end of the message about a spec that is none.
_ORDER = "; the order of the operands is handle, spec, weights, x"
# The value of the argument `layout`, if the caller does not pass one.
_DEFAULT_LAYOUT = RNNDataLayout.SEQ_MAJOR_UNPACKED


class KeptChoice(NamedTuple):
    """The choice of a tuner for a problem, kept beside the handle's plans.

    The tuner is then asked once, and problems with the same choice share a plan.
    """

    result: AlgorithmResult

    def close(self) -> None:
        """Do nothing: it owns nothing."""


@dataclass(eq=False, slots=True)
class RNNForwardRequest:
    """The arguments of one call of `rnn_forward`, or of one of its functions."""

    handle: Any  # None in `rnn_forward.problem`
    spec: Any
    weights: Any
    x: Any
    hx: Any
    cx: Any
    lengths: Any
    training: Any
    layout: Any
    algorithm: Any
    padding_fill: Any
    dropout_state: Any
    out: Any
    reserve: Any
    workspace_limit: Any
    workspace: Any
    replay: Any

    def run(self) -> Any:
        """Compute, by the plan that the handle keeps for calls of this kind."""
        use(self.handle)
        instance_of(self.spec, RNNSpec, "spec", _ORDER)
        self.x = on_device(self.handle, self.x, "x")
        layout = parse_data_layout(self.layout)
        if self.x.size == 0 and self.training is False:
            empty = self._without_sequences(layout)
            if empty is not None:
                return empty
        data = self._with_fill(data_spec(self.spec, self.x.spec, self.lengths, layout))
        if self.lengths is not None:
            self.lengths = data.lengths  # checked, and a tuple
        limit = self._limit_of_call()
        return self._run_by_plan(self._plan_key(data, limit))

    def _without_sequences(self, layout: RNNDataLayout) -> RNNOutput | None:
        return without_sequences(
            self.handle,
            self.spec,
            self.x.spec,
            self.lengths,
            layout,
            self.hx,
            self.cx,
            self.out,
        )

    def _run_by_plan(self, key: RNNPlanKey) -> Any:
        """Call the plan of a key.

        If cuDNN refuses a choice that the user did not make, call a plan of STANDARD instead.
        """
        plans = self.handle.plans
        has_fallback = key.is_guess and key.choice.algorithm != RNNAlgo.STANDARD
        plan: RNNPlan[Any] | None = None
        try:
            plan = plans.get(key, RNNPlan, self.handle, key)
            return self._call(plan)
        except NotSupportedError:
            if not has_fallback:
                raise
        except WorkspaceLimitError:
            # The workspace may be leased to another call.  STANDARD would not help then.
            is_too_large = plan is not None and plan.exceeds_limit
            if not (has_fallback and is_too_large):
                raise
        # From now on the refused key finds the plan of STANDARD.
        standard = _choice_of(RNNAlgo.STANDARD, key.choice.math_type, key.choice.source)
        plan = RNNPlan[Any](self.handle, key._replace(choice=standard))
        plans.keep(key, plan)
        return self._call(plan)

    def _call(self, plan: Any) -> Any:
        return plan(
            self.weights,
            self.x,
            self.hx,
            self.cx,
            lengths=self.lengths,
            out=self.out,
            reserve=self.reserve,
            workspace=self.workspace,
        )

    def plan(self) -> RNNPlan[Any]:
        """Return a plan: it has chosen an algorithm and prepared the C call for many calls."""
        use(self.handle)
        refuse_arguments_of_calls(
            "rnn_forward", out=self.out, reserve=self.reserve, workspace=self.workspace
        )
        data = self._data()
        limit = self.handle.workspace.limit_for(self.workspace_limit)
        key = self._plan_key(data, limit, lengths_vary=self.lengths is not None)
        plan = RNNPlan[Any](self.handle, key)
        try:
            plan.describe(self.x, data.lengths)
            plan.check_descriptions(self.weights, self.hx, self.cx)
        except BaseException:
            plan.close()
            raise
        return plan

    def problem(self) -> Problem:
        """Return the problem of the call, as data."""
        self._refuse_choice("problem, which describes what is computed, and not how")
        return self._make_problem()

    def _make_problem(self) -> Problem:
        data = self._data()
        one_of(self.training, "training", True, False)
        if self.weights is not None:
            _check_kind(self.weights, self.spec)
        check_state_specs(self.spec, data.batch, self.handle, self.hx, self.cx)
        return Problem(FORWARD, spec=self.spec, data=data, training=self.training)

    def heuristic(self) -> AlgorithmTable:
        """Return the choice without a measurement, as a table of one row."""
        use(self.handle)
        self._refuse_choice("heuristic, which runs nothing")
        problem = self._make_problem()
        result = heuristic(problem.spec, problem.data)
        row = AlgorithmResult(result.algorithm, result.math_type, deterministic=None, heuristic=0)
        timing = (
            "Not measured: a rule of cudnnlite, by what was fastest on an H200; "
            "cuDNN has no heuristic for RNNs."
        )
        return AlgorithmTable([row], title=str(problem), timing=timing)

    def _refuse_choice(self, receiver: str) -> None:
        """Raise ArgumentError if an argument chooses an algorithm, or belongs to a call."""
        for name in ("algorithm", "workspace", "workspace_limit", "out", "reserve"):
            if getattr(self, name) is not None:
                raise ArgumentError(f"{name} is given to {receiver}")
        if parse_replay(self.replay):
            raise ArgumentError(f"replay is given to {receiver}")

    def _data(self) -> RNNDataSpec:
        """Return the sequences of an input, which is an array, a TensorSpec or an RNNDataSpec.

        `self.x` becomes a TensorSpec.
        """
        instance_of(self.spec, RNNSpec, "spec", _ORDER)
        layout = parse_data_layout(self.layout)
        if isinstance(self.x, RNNDataSpec):
            layout = self._take_data_spec(self.x, layout)
        if isinstance(self.x, (tuple, list)):
            raise ArgumentError(
                f"x={shown(self.x)} is neither a spec nor a device array: "
                "dnn.TensorSpec(shape, dtype)"
            )
        self.x = operand_spec(self.handle, self.x, "x")
        return self._with_fill(data_spec(self.spec, self.x, self.lengths, layout))

    def _with_fill(self, data: RNNDataSpec) -> RNNDataSpec:
        """Return the sequences with the padding fill of the call."""
        fill = self.padding_fill
        if type(fill) is float and exact_key([fill]) == exact_key([data.padding_fill]):
            # A replacement takes 20 us.
            return data
        self.padding_fill = parse_fill(self.padding_fill, self.spec.dtype)
        return data.replace(padding_fill=self.padding_fill)

    def _take_data_spec(self, x: RNNDataSpec, layout: RNNDataLayout) -> RNNDataLayout:
        """Take x, lengths and fill from an RNNDataSpec, and return its layout."""
        is_other_layout = layout not in (x.layout, _DEFAULT_LAYOUT)
        if self.lengths is not None or is_other_layout:
            raise ArgumentError(
                f"lengths or layout are given beside a whole spec, {x}, which has its own"
            )
        self._take_fill(x)
        if x.is_packed or not x.is_full:  # full padded sequences need no lengths
            self.lengths = x.lengths
        self.x = x.tensor()
        return x.layout

    def _take_fill(self, x: RNNDataSpec) -> None:
        """Take the padding fill of an RNNDataSpec; ArgumentError if the call has another one."""
        fill = parse_fill(self.padding_fill, self.spec.dtype)
        if exact_key([fill]) not in (exact_key([0.0]), exact_key([x.padding_fill])):
            raise ArgumentError(
                f"padding_fill={fill:g} is given beside a whole spec, {x}, which has its own"
            )
        self.padding_fill = x.padding_fill

    def _limit_of_call(self) -> int | None:
        """Return the most workspace in bytes that a call may use.

        A workspace of the caller is limited by its own size: the call checks that, and a tuner
        chooses within it.
        """
        if self.workspace is None or self.workspace_limit is not None:
            limit: int | None = self.handle.workspace.limit_for(self.workspace_limit)
            return limit
        if self.algorithm is None and self.handle._chooser is not None:
            return usable_workspace(on_device(self.handle, self.workspace, "workspace"))
        return None

    def _plan_key(
        self, data: RNNDataSpec, limit: int | None, *, lengths_vary: bool = False
    ) -> RNNPlanKey:
        """Return the key of a plan.

        With `lengths_vary`, the plan's calls may have lengths that differ, even if those of `data`
        do not.
        """
        one_of(self.training, "training", True, False)
        replay = parse_replay(self.replay)
        dropout_state = self._parse_dropout_state()
        result = parse_algorithm(self.algorithm, self.spec, data.batch)
        is_guess = result is None
        if result is None and self.handle._chooser is not None:
            tuned_data = _with_unequal_lengths(data) if lengths_vary else data
            result = self._tuned_choice(tuned_data, limit, replay=replay)
        if result is None:
            is_full = data.is_full and not lengths_vary
            result = heuristic(self.spec, data, full=is_full)
        is_padded = data.needs_padded_io or (lengths_vary and not data.is_packed)
        return RNNPlanKey(
            self.spec,
            _choice_of(result.algorithm, result.math_type, result.source),
            data.batch,
            data.layout,
            is_padded,
            self.training,
            exact_key([data.padding_fill])[0],
            dropout_state,
            limit,
            is_guess,
            replay or result.replay,
        )

    def _tuned_choice(
        self, data: RNNDataSpec, limit: int | None, *, replay: bool
    ) -> AlgorithmResult | None:
        """Return the choice of the handle's tuner; None if it has no choice now.

        A choice is kept until the tuner's revision changes.  If there is none, the tuner is asked
        again at the next call.
        """
        plans, tuning = self.handle.plans, tuning_key(self.handle)
        key = ("rnn_forward", self.spec, data, self.training, limit, replay, *tuning)
        kept_choice = plans.find(key)
        if kept_choice is not None:
            return kept_choice.result  # type: ignore[no-any-return]
        problem = Problem(FORWARD, spec=self.spec, data=data, training=self.training)
        choice = tuned_choice(self.handle, problem, {}, limit, replay=replay)
        result = parse_algorithm(choice, self.spec, data.batch)
        if result is not None and result.source != HEURISTIC:
            plans.keep(key, KeptChoice(result))
        return result

    def _parse_dropout_state(self) -> DropoutState | None:
        """Return the random states of the network's dropout; None if it drops no values."""
        spec, state = self.spec, self.dropout_state
        has_dropout = self.training and spec.dropout > 0 and spec.num_layers > 1
        if not has_dropout:
            if state is not None:
                # It is not used, but has to be of the right type.
                instance_of(
                    state, DropoutState, "dropout_state", ": dnn.DropoutState(handle, seed)"
                )
            return None
        if state is None:
            raise ArgumentError(
                f"dropout_state=None; {spec} drops {spec.dropout:g}: "
                "training needs a DropoutState(handle, seed)"
            )
        check_states(self.handle, state)
        return state  # type: ignore[no-any-return]


def plan_of(handle: Handle, reserve: Any) -> RNNPlan[RNNTrainingOutput]:
    """Return a plan of the forward call that filled a reserve space.

    A later call with the same key may have fallen back to STANDARD, whose plan cannot read this
    reserve space.  Then a plan with the original choice is made.
    """
    use(handle)
    key: RNNPlanKey = RNNReserve.checked(handle, reserve).call.key
    plan: RNNPlan[RNNTrainingOutput] = handle.plans.get(key, RNNPlan, handle, key)
    if not plan.key.computes_as(key):
        key = key._replace(is_guess=False)
        plan = handle.plans.get(key, RNNPlan, handle, key)
    return plan


@lru_cache(maxsize=64)
def _choice_of(algorithm: Any, math_type: Any, source: str) -> AlgorithmResult:
    """Return algorithm and math type without measurements, so that equal choices compare equal."""
    return AlgorithmResult(algorithm, math_type, deterministic=None, source=source)


def _with_unequal_lengths(data: RNNDataSpec) -> RNNDataSpec:
    """Return sequences of the same kind whose lengths differ; packed sequences are unchanged."""
    if data.is_packed or not data.is_full:
        return data
    steps = max(2, data.max_length)
    longest_sequences = (steps,) * (data.batch - 1)
    lengths = (*longest_sequences, steps - 1)
    values = data.values() | {"max_length": steps, "lengths": lengths}
    data_with_lengths: RNNDataSpec = RNNDataSpec.from_values(values)
    return data_with_lengths


def _check_kind(weights: Any, spec: RNNSpec) -> None:
    """Raise ArgumentError unless the weights are for a network."""
    instance_of(weights, RNNWeights, "weights")
    if weights.kind != spec.weights_of():
        raise ArgumentError(f"weights are for {weights.spec}; the network is {spec}")
