"""`TrialCall`: the call of a plan that tunes in real calls, in which candidates take turns."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.devices import observer
from cudnnlite.devices.device import Device
from cudnnlite.errors import (
    ArgumentError,
    BadParamError,
    CudnnError,
    DeviceMemoryError,
    NotSupportedError,
)
from cudnnlite.graph.operation_graph import ALIGNMENT
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.problems.results import REAL_CALLS, AlgorithmResult, named
from cudnnlite.search.race import Race, Turn
from cudnnlite.warn import log

# Errors of one candidate; others, such as that of a lost device, are errors of the call.
CANDIDATE_ERRORS = (CudnnError, DeviceMemoryError, ArgumentError)
# After these errors nothing was written, so that another candidate may compute the result.
_NOTHING_WRITTEN = (NotSupportedError, BadParamError, ArgumentError, DeviceMemoryError)
# The time that two events and the launches between them add to a sample: on an H100 0.016 ms in the
# median over samples of short candidates, and more than 0.04 in one of ten.
_EVENTS_MS = 0.03


class _Sample(NamedTuple):
    """Runs of a candidate between two events, and perhaps one untimed run before them."""

    candidate: int
    is_first: bool
    runs: int
    untimed_runs: int
    start: Any
    end: Any
    host_ms: float  # until all runs were enqueued

    def longest_wait_ms(self, device_ms: float) -> float:
        """Return how long of `device_ms`, the time of a run, the device may have waited.

        It waits if it ends a run before the host has enqueued the next one: at most as long as that
        takes.  A run that took twice as long was itself longer than that, so the device was busy.
        """
        enqueue_ms = (self.host_ms + _EVENTS_MS) / self.runs
        return enqueue_ms if device_ms < 2 * enqueue_ms else 0.0


class CallTimer:
    """Times the runs of a race's candidates by events, without waiting for them."""

    def __init__(self, device: Device, race: Race) -> None:
        self._device = device
        self._race = race
        self._samples: list[_Sample] = []

    @property
    def pending(self) -> set[int]:
        """The candidates whose last run is not timed yet."""
        return {sample.candidate for sample in self._samples}

    @contextmanager
    def timing(
        self,
        index: int,
        stream: Any,
        *,
        is_first: bool = False,
        runs: int = 1,
        untimed_runs: int = 0,
    ) -> Iterator[None]:
        """Time a candidate's runs, which the block enqueues on a stream, if the block succeeds.

        `untimed_runs` were enqueued before.
        """
        start = self._device.record_event(stream)
        begin = perf_counter()
        yield
        host_ms = 1000 * (perf_counter() - begin)
        end = self._device.record_event(stream)
        self._samples.append(_Sample(index, is_first, runs, untimed_runs, start, end, host_ms))
        self._race.budget.timers.add(self)

    def collect(self) -> None:
        """Pass the times of the runs that have ended to the race."""
        for sample in list(self._samples):
            ms = self._device.elapsed_between(sample.start, sample.end)
            if ms is not None:
                self._samples.remove(sample)
                device_ms = ms / sample.runs
                self._race.budget.spend(device_ms * (sample.runs + sample.untimed_runs))
                self._race.record(
                    sample.candidate,
                    device_ms,
                    is_first=sample.is_first,
                    host_ms=sample.host_ms / sample.runs,
                    wait_ms=sample.longest_wait_ms(device_ms),
                )
        if not self._samples:
            self._race.budget.timers.discard(self)


class Candidates(Iterator[AlgorithmResult], Protocol):
    """The candidates for a plan's calls, the likely ones first, read when they are asked for.

    After an error, reading begins again at the first one.
    """

    def make_plan(self, row: AlgorithmResult) -> OperationPlan[Any]:
        """Return a prepared plan of a candidate for the same problem."""

    def close(self) -> None:
        """End the reading, and close the native objects that it needs; plans stay usable."""


class TrialCall(NonCopyable):
    """The call of a plan whose candidates take turns in the user's calls.

    The plan calls it like a `PreparedCall`.  Each call runs one candidate over the user's operands;
    the result is right with every candidate.  When the race is over, the plan takes over the call
    of the winner, and this object is not called any more.

    A candidate that needs more workspace than the plan's first choice has memory of its own during
    its run.  If the caller brings the workspace when the race is over, the plan takes over the
    fastest candidate that it suffices for.  While a CUDA graph is recorded or calls are traced, and
    if operands are not aligned, calls run the race's first candidate and try no other.

    Parameters
    ----------
    plan : OperationPlan
        A prepared plan, which calls the race's first candidate.
    race : Race
        The race.  Several plans of one problem may share it.
    candidates : Candidates
        The further candidates.  They are closed when the race is over, and with the plan.
    finish : callable
        (race) -> None.  It is called when the race has a winner, unless there was one candidate.

    Attributes
    ----------
    leased : int
        The bytes of the handle's workspace that a call may use.
    """

    _instead_of_copy = "it belongs to a plan"
    check = None  # `function` raises errors itself
    arguments: tuple[()] = ()

    def __init__(
        self,
        plan: OperationPlan[Any],
        race: Race,
        candidates: Candidates,
        finish: Callable[[Race], None],
    ) -> None:
        # The plan owns this object; a strong reference would be a cycle.
        self._plan = weakref.ref(plan)
        self._handle = plan._handle
        self._device = plan._handle.device
        self._first_call: Any = plan._prepared
        self._race = race
        self._candidates = candidates
        self._finish = finish
        self._timer = CallTimer(self._device, race)
        # The plans of all candidates but the first, by their indices in the race.
        self._plans: dict[int, OperationPlan[Any]] = {}
        self._addresses: dict[str, int] = {}
        self.leased = plan.choice.workspace
        # The ends of the last runs that were not timed, by the candidate and its stream's address.
        # No candidate's plan is closed before them.
        self._untimed_ends: dict[tuple[int, int], Any] = {}
        plan._resources.callback(self.close)

    def close(self) -> None:
        """Close the candidates and their plans; harmless when called again."""
        self._candidates.close()
        for index in list(self._plans):
            self._plans.pop(index).close()

    def replace(self, **addresses: int) -> None:
        """Change the addresses."""
        self._addresses = addresses

    def function(self) -> None:
        """Run a candidate on the handle's stream."""
        if self._race.is_overspent and not self._timer.pending and self._race.leader == 0:
            self._run_first()  # quicker than what follows, and asks for no event
            return
        stream = self._handle._stream
        is_watched = observer.current is not observer.NOBODY
        if is_watched or not self._is_aligned or self._device.is_capturing(stream):
            self._run_first()
            return
        self._timer.collect()
        if self._race.is_waiting:
            self._run_leader(self._leader, stream)
            return
        with self._race.budget.spending():
            self._close_losers()
            turn = self._next_turn()
            if turn is not None and self._try(turn, stream):
                return
        leader = self._leader
        # If the device has done all runs of other candidates, their plans may be closed.
        others_have_ended = all(map(self._has_ended, self._plans.keys() - {leader}))
        may_settle = turn is None and others_have_ended and not self._timer.pending
        has_run = self._run_leader(leader, stream)
        if has_run and self._race.winner is not None and may_settle:
            with self._race.budget.spending():
                self._settle(leader)

    def _next_turn(self) -> Turn | None:
        """Return the candidate that this call runs; None for the leader."""
        try:
            return self._race.next_turn(self._timer.pending, self._candidates)
        except CANDIDATE_ERRORS as error:
            log.info("%s: no candidate can be read now: %s", self._plan(), error)
            return None

    @property
    def _is_aligned(self) -> bool:
        """Whether all candidates can take the operands."""
        return not any(address % ALIGNMENT for address in self._addresses.values())

    @property
    def _is_repeatable(self) -> bool:
        plan = self._plan()
        assert plan is not None
        return may_run_twice(plan, self._addresses)

    def _run_first(self) -> None:
        """Run the race's first candidate, the plan's own choice."""
        self._first_call.replace(**self._addresses)
        call_prepared(self._first_call)

    @property
    def _leader(self) -> int:
        """The index of the fastest candidate so far that the caller's workspace suffices for.

        If the caller brings none, the handle's suffices for all.
        """
        plan = self._plan()
        assert plan is not None
        nbytes, race = plan._callers_workspace, self._race
        if nbytes is None:
            return race.leader
        fitting = [
            index
            for index, runner in enumerate(race.runners)
            if plan._with_scratch(runner.row.workspace) <= nbytes
        ]
        return race.leader if race.leader in fitting else race.fastest_of(fitting)

    def _run_leader(self, leader: int, stream: Any) -> bool:
        """Run the fastest candidate so far; the first one if that fails and wrote nothing.

        Returns whether the fastest one ran.
        """
        if leader:
            try:
                with self._placed(leader, stream) as call:
                    call_prepared(call)
                self._note_untimed(leader, stream)
                return True
            except CANDIDATE_ERRORS as error:
                exclude(self._race, leader, error)
                if not self._may_run_another(error):
                    raise
        self._run_first()
        return leader == 0

    def _try(self, turn: Turn, stream: Any) -> bool:
        """Run a candidate and time it; return False if it failed and wrote nothing."""
        if turn.candidate == 0:
            self._first_call.replace(**self._addresses)
            self._time(turn, self._first_call, stream)
            return True
        try:
            with self._placed(turn.candidate, stream) as call:
                self._time(turn, call, stream)
        except CANDIDATE_ERRORS as error:
            self._note_untimed(turn.candidate, stream)  # some of the repeats may be enqueued
            exclude(self._race, turn.candidate, error)
            if not self._may_run_another(error):
                raise
            return False
        return True

    def _note_untimed(self, index: int, stream: Any) -> None:
        """Note that runs of a candidate were enqueued on a stream without being timed."""
        self._untimed_ends[index, int(stream.handle)] = self._device.record_event(stream)

    def _time(self, turn: Turn, call: Any, stream: Any) -> None:
        """Run a candidate, and time it.

        If the call may be repeated, the candidate runs once untimed, and then `turn.repeats` times
        between two events.  The device does the first run while the repeats are enqueued.  Unless its
        runs are shorter than the host's calls, it never waits, so the time is its own.
        """
        if not self._is_repeatable:
            with self._timer.timing(turn.candidate, stream, is_first=turn.is_first):
                call_prepared(call)
            return
        call_prepared(call)
        with self._timer.timing(turn.candidate, stream, runs=turn.repeats, untimed_runs=1):
            for _ in range(turn.repeats):
                call_prepared(call)

    def _may_run_another(self, error: Exception) -> bool:
        """Return whether another candidate may compute the result after an error of one."""
        return isinstance(error, _NOTHING_WRITTEN) or self._is_repeatable

    @contextmanager
    def _placed(self, index: int, stream: Any) -> Iterator[Any]:
        """Yield the call of a candidate, over the operands of this call and with a workspace."""
        plan = self._plan_of(index)
        call: Any = plan._prepared
        if plan.workspace <= self.leased:
            call.replace(**self._addresses)
            yield call
            return
        scratch = self._device.allocate(plan.workspace, stream)
        try:
            start = int(scratch.handle)
            places = {name: start + offset for name, offset in plan._scratch_offsets}
            call.replace(**self._addresses | places)
            yield call
        finally:
            scratch.close(stream)  # freed in stream order, behind the call

    def _plan_of(self, index: int) -> OperationPlan[Any]:
        plan = self._plans.get(index)
        if plan is None:
            runner = self._race.runners[index]
            plan = self._plans[index] = self._candidates.make_plan(runner.row)
            runner.row = plan.choice
        return plan

    def _has_ended(self, index: int) -> bool:
        """Whether the device has done every run of a candidate that was not timed."""
        for place, end in list(self._untimed_ends.items()):
            if place[0] == index and self._device.elapsed_between(end, end) is not None:
                del self._untimed_ends[place]
        return all(place[0] != index for place in self._untimed_ends)

    def _close_losers(self) -> None:
        """Close the plans of excluded candidates that do not run now."""
        pending = self._timer.pending
        for index in list(self._plans):
            if self._race.is_out(index) and index not in pending and self._has_ended(index):
                self._plans.pop(index).close()

    def _settle(self, winner: int) -> None:
        """Let the plan take over the winner's call, if there is memory for its workspace."""
        plan = self._plan()
        assert plan is not None
        if winner:
            try:
                winner_plan = self._plan_of(winner)
                if plan._callers_workspace is None:
                    workspace = plan._with_scratch(winner_plan.workspace)
                    self._handle.workspace.reserve(workspace, self._handle._stream, plan._limit)
            except CANDIDATE_ERRORS as error:
                exclude(self._race, winner, error)
                return
        if len(self._race.runners) == 1:  # there was no other candidate
            plan._change_call(self._first_call, plan.choice)
            self.close()
            return
        self._finish(self._race)
        choice = replace(self._race.row(winner), source=REAL_CALLS)
        if winner:
            plan._adopt(winner_plan, choice)
            self._plans.pop(winner, None)  # from now on the plan owns it
        else:
            plan._change_call(self._first_call, choice)
        log.info("%s: tuned in %d real calls: %s", plan, self._race.calls, choice)
        self.close()


def exclude(race: Race, index: int, error: Exception) -> None:
    """Exclude a candidate that failed from a race, and log why."""
    log.info("%s is not tried any more in real calls: %s", named(race.runners[index].row), error)
    is_transient = isinstance(error, DeviceMemoryError)
    race.exclude(index, str(error), is_transient=is_transient)


def may_run_twice(plan: OperationPlan[Any], addresses: Mapping[str, int]) -> bool:
    """Return whether a call over these addresses may run twice: it reads nothing that it writes."""
    problem = plan.problem
    operation = problem.operation
    written: list[tuple[int, int]] = []
    read: list[tuple[int, int]] = []
    for name, spec in problem.specs.items():
        for header_name in operation.header(name):
            start = addresses[header_name]
            if name in operation.writes:
                written.append((start, start + spec.nbytes))
            if plan._is_read(name):
                read.append((start, start + spec.nbytes))
    return not any(
        start < read_end and read_start < end
        for start, end in written
        for read_start, read_end in read
    )


def call_prepared(prepared: Any) -> None:
    """Make the prepared call of a plan, and raise the error of its status."""
    status = prepared.function(*prepared.arguments)
    if status:
        prepared.check(status)
