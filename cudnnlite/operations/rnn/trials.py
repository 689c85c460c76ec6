"""Tuning in real calls of a recurrent network: each call runs a candidate's plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from cudnnlite.devices import observer
from cudnnlite.devices.handle import Handle
from cudnnlite.operations.rnn.native import RNNPlanKey
from cudnnlite.operations.rnn.outputs import RNNGradients, RNNReserve
from cudnnlite.operations.rnn.plan import RNNPlan
from cudnnlite.operations.rnn.weights import RNNWeights
from cudnnlite.plans.trial_call import CANDIDATE_ERRORS, CallTimer, exclude
from cudnnlite.problems.results import HEURISTIC, REAL_CALLS, AlgorithmResult
from cudnnlite.search.race import Race
from cudnnlite.warn import log

ResultT = TypeVar("ResultT")
OutputT = TypeVar("OutputT")


class RNNTrials:
    """Lets the forward calls of one kind try the candidates of a race.

    A candidate that fails is taken out of the race, and the first candidate computes the result.
    While a CUDA graph is recorded or calls are traced, no candidate is tried.

    Parameters
    ----------
    handle : Handle
        The handle of the calls.
    race : Race
        The candidates; the first is what calls run without a race.
    finish : callable
        (race) -> None.  It is called when the race has a winner.
    title : str
        The name of the problem, for the log.
    """

    def __init__(
        self, handle: Handle, race: Race, finish: Callable[[Race], None], title: str
    ) -> None:
        self._handle, self._race, self._finish, self._title = handle, race, finish, title
        self._timer = CallTimer(handle.device, race)
        # From now on calls run this candidate, whatever becomes of the race, which others share.
        self.winner: AlgorithmResult | None = None

    def close(self) -> None:
        """Do nothing: it owns nothing."""

    def run(self, call: Callable[[RNNPlanKey], ResultT], key: RNNPlanKey) -> ResultT:
        """Make a call by one of the candidates.

        `call` runs the plan of a key, which is `key` with the candidate's algorithm.
        """
        if self.winner is not None:
            return call(_key_by(self.winner, key))
        stream = self._handle.stream
        is_watched = observer.current is not observer.NOBODY
        if is_watched or self._handle.device.is_capturing(stream):
            return call(self._key_of(0, key))
        self._timer.collect()
        turn = self._race.next_turn(self._timer.pending)
        index = self._race.leader if turn is None else turn.candidate
        try:
            if turn is None:
                result = call(self._key_of(index, key))
                if self._race.winner is not None:
                    self._settle()
                return result
            with (
                self._race.budget.spending(),
                self._timer.timing(index, stream, is_first=turn.is_first),
            ):
                return call(self._key_of(index, key))
        except CANDIDATE_ERRORS as error:
            if index == 0:
                raise
            # If the call itself is wrong, the first candidate refuses it too, and nothing is
            # excluded.
            result = call(self._key_of(0, key))
            exclude(self._race, index, error)
            return result

    def first_key(self, key: RNNPlanKey) -> RNNPlanKey:
        """Return the key of the plan that runs without trials, which a policy may prescribe."""
        first = self._key_of(0, key)
        return first._replace(choice=replace(first.choice, source=HEURISTIC))

    def _key_of(self, index: int, key: RNNPlanKey) -> RNNPlanKey:
        return _key_by(self._race.runners[index].row, key)

    def _settle(self) -> None:
        self._finish(self._race)
        self.winner = replace(self._race.rows()[0], source=REAL_CALLS)
        log.info("%s: tuned in %d real calls: %s", self._title, self._race.calls, self.winner)


def _key_by(row: AlgorithmResult, key: RNNPlanKey) -> RNNPlanKey:
    """Return the key of the same plan with a candidate's algorithm."""
    if (row.algorithm, row.math_type) == (key.choice.algorithm, key.choice.math_type):
        return key
    choice = AlgorithmResult(row.algorithm, row.math_type, deterministic=None)
    return key._replace(choice=choice, is_guess=False)


class TrialRNNPlan(RNNPlan[OutputT]):
    """A plan whose calls try candidates, until the fastest is known; see `RNNPlan`.

    Its own algorithm is the one without tuning.  A reserve space is used by a plan with the
    algorithm of the forward call that filled it.
    """

    def __init__(self, handle: Handle, key: RNNPlanKey, trials: RNNTrials) -> None:
        super().__init__(handle, key)
        self._trials = trials
        self._other_plans: dict[RNNPlanKey, RNNPlan[OutputT]] = {}
        self._resources.callback(self._close_others)

    @property
    def choice(self) -> AlgorithmResult:
        """Algorithm and math type: the winner's, or as long as there is none the first ones."""
        return self._trials.winner or super().choice

    def __call__(self, *operands: Any, **options: Any) -> OutputT:
        """Enqueue the forward pass on the handle's stream, as `RNNPlan` does."""
        self.use()
        return self._trials.run(partial(self._run, operands, options), self.key)

    def _run(self, operands: tuple[Any, ...], options: dict[str, Any], key: RNNPlanKey) -> OutputT:
        if key is self.key:
            return super().__call__(*operands, **options)
        return self._plan_of(key)(*operands, **options)

    def _plan_of(self, key: RNNPlanKey) -> RNNPlan[OutputT]:
        plan = self._other_plans.get(key)
        if plan is None:
            plan = self._other_plans[key] = RNNPlan(self._handle, key)
        return plan

    def _close_others(self) -> None:
        while self._other_plans:
            self._other_plans.popitem()[1].close()

    def backward_data(self, reserve: RNNReserve, *gradients: Any, **options: Any) -> RNNGradients:
        """Enqueue the backward pass over the data; see `rnn_backward_data`."""
        plan = self._plan_for(reserve)
        if plan is self:
            return super().backward_data(reserve, *gradients, **options)
        return plan.backward_data(reserve, *gradients, **options)

    def backward_weights(self, reserve: RNNReserve, **options: Any) -> RNNWeights:
        """Enqueue the backward pass over the weights; see `rnn_backward_weights`."""
        plan = self._plan_for(reserve)
        if plan is self:
            return super().backward_weights(reserve, **options)
        return plan.backward_weights(reserve, **options)

    def _plan_for(self, reserve: RNNReserve) -> RNNPlan[OutputT]:
        """Return the plan that may use a reserve space; this one if no candidate's may."""
        self.use()
        key: RNNPlanKey = RNNReserve.checked(self._handle, reserve).call.key
        is_own = self.key.computes_as(key)
        is_candidates = self.key.computes_as(key._replace(choice=self.key.choice))
        if is_own or not is_candidates:
            return self
        return self._plan_of(key)
