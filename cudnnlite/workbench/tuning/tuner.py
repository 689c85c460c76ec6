"""`Tuner`: measure the best algorithm for each problem once, and save it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, NamedTuple

from cudnnlite import AlgorithmResult, AlgorithmTable, Handle, OperationPlan
from cudnnlite.arguments import instance_of, one_of, shown
from cudnnlite.cached_property import cached_property
from cudnnlite.descriptors.native import Closable
from cudnnlite.devices.peaks import peaks_of
from cudnnlite.errors import (
    ArgumentError,
    CaptureError,
    CudnnError,
    DeviceMemoryError,
    TuningWarning,
)
from cudnnlite.graph.compiled_plans import PlanStore
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.operation_graph import ALIGNMENT
from cudnnlite.graph.problem import KIND, GraphProblem
from cudnnlite.operations.convolution.convolution_plan import convolution_plan
from cudnnlite.plans.capture import refuse_search
from cudnnlite.plans.choice import set_chooser
from cudnnlite.plans.operands import alignment_of, use
from cudnnlite.problems import rnn as rnn_problem
from cudnnlite.problems.convolution import FORWARD
from cudnnlite.problems.convolution_backward import DATA, FILTER
from cudnnlite.problems.fused_convolution import BIAS, FUSED, FUSED_WITH_Z
from cudnnlite.problems.operation import Operation
from cudnnlite.problems.results import CACHE, SEARCH
from cudnnlite.problems.roofline import Peaks
from cudnnlite.types import Engine, Problem
from cudnnlite.unknown import suggest_keywords
from cudnnlite.version import __version__
from cudnnlite.warn import log, warn_user
from cudnnlite.workbench.tuning import convolution, graphs, rnn
from cudnnlite.workbench.tuning.allowed_choice import allowed_choice, is_passed_over
from cudnnlite.workbench.tuning.cache import TuningCache, check_cache_kind
from cudnnlite.workbench.tuning.convolution_trial import ConvolutionTrial
from cudnnlite.workbench.tuning.entries import DeviceIdentity, TuningEntry, TuningKey, make_key
from cudnnlite.workbench.tuning.gpu_locks import measuring_alone
from cudnnlite.workbench.tuning.graph_trial import GraphTrial
from cudnnlite.workbench.tuning.policy import TuningPolicy
from cudnnlite.workbench.tuning.representative_problem import representative_problem
from cudnnlite.workbench.tuning.timing_policy import (
    DEFAULT_TIMING,
    ONE_LOOK,
    TimingPolicy,
    parse_timing,
)
from cudnnlite.workbench.tuning.trial import Trial

SLOW_SECONDS = 1.0  # A measurement inside a call is logged if it takes longer.
# The most choices of problems that were not measured that a tuner remembers.
_MOST_ALLOWED_CHOICES = 1024


class Search(NamedTuple):
    """The functions that search for the best candidate of an operation's problems."""

    # (handle, problem, alignments) -> synthetic operands by name
    operands_of: Callable[..., Mapping[str, Any]]
    # (handle, problem, operands) -> the user's operands by name, checked against the problem. No
    # array of the user is written.
    check_operands: Callable[..., Mapping[str, Any]]
    # (handle, problem, policy, operands, timing) -> the candidates, the best first
    search: Callable[..., AlgorithmTable]
    # (handle, problem, policy, operands, stack, memory) -> what runs and judges candidates
    make_trial: Callable[..., Trial]
    # (handle, problem, policy, trial) -> the candidates, with the reason if one is excluded
    list_candidates: Callable[..., list[AlgorithmResult]]
    # The operands whose alignment is part of the key. With another alignment, another choice may be
    # the best.
    aligned_operands: tuple[str, ...] = ()
    # (handle, problem, choice) -> a plan; None if there are no compiled plans of such problems
    make_plan: Callable[..., Any] | None = None


_CONVOLUTION = Search(
    convolution.operands_of,
    convolution.check_operands,
    convolution.search_convolution,
    ConvolutionTrial,
    convolution.list_candidates,
    make_plan=convolution_plan,
)
SEARCHES: dict[Operation, Search] = {
    operation: _CONVOLUTION._replace(aligned_operands=(*operation.reads, "out"))
    for operation in (FORWARD, DATA, FILTER, FUSED, FUSED_WITH_Z, BIAS)
}
SEARCHES[rnn_problem.FORWARD] = Search(
    rnn.operands_of, rnn.check_operands, rnn.search_rnn, rnn.make_trial, rnn.list_candidates
)
_GRAPH = Search(
    graphs.operands_of,
    graphs.check_operands,
    graphs.search_graph,
    GraphTrial,
    graphs.list_candidates,
    make_plan=graphs.plan_of,
)


class Tuner(Closable):
    """Finds the best algorithm for a problem on a handle's device, and saves it.

    Parameters
    ----------
    handle : Handle
        The handle to measure on.  A measurement waits for all other work on its device.
    cache : TuningCache, str or Path, optional
        The cache for the choices: a cache, a folder, or ":memory:".  The default is that of
        `TuningCache`.  Times of the emulated device are saved only in a rehearsal, which a handle
        on a GPU refuses.
    policy : TuningPolicy, optional
        The conditions for a choice.  By default the choice has the least wall time of a call.
    measure : bool
        If False, operations do not measure: if a choice is not in the cache, the heuristic chooses,
        with a warning.  This is for machines that share a cache.

    Attributes
    ----------
    handle, cache, policy
        The arguments.
    measured : int
        How many problems this tuner measured itself.
    measures : bool
        Whether operations may measure.
    owns_cache : bool
        Whether this tuner opened the cache.
    revision : int
        How many calls of `tune` had to measure.  Plans have this number in their keys, so that
        plans of older choices are not used again.

    Raises
    ------
    ArgumentError
        Not a handle, a cache or a policy.

    Examples
    --------
    >>> x, w = dnn.TensorSpec((1, 8, 14, 14)), dnn.FilterSpec((8, 8, 3, 3))
    >>> problem = dnn.convolution_forward.problem(x, w)
    >>> with dnn.Handle() as handle, dnn.Tuner(handle, cache=":memory:") as tuner:
    ...     table = tuner.tune(problem)  # table.explain() says why an algorithm was not chosen
    ...     best = tuner.choose(problem)  # from the cache: nothing is measured
    ...     print(table[0].ok, best.algorithm == table.best().algorithm, tuner.measured)
    True True 1
    """

    _instead_of_copy = "make another Tuner on a handle, with the same cache"

    def __init__(
        self,
        handle: Handle,
        cache: TuningCache | str | os.PathLike[str] | None = None,
        policy: TuningPolicy | None = None,
        *,
        measure: bool = True,
    ) -> None:
        use(handle)
        if policy is None:
            policy = TuningPolicy()
        self.policy = instance_of(policy, TuningPolicy, "policy")
        one_of(measure, "measure", True, False)
        self.handle, self.measures = handle, measure
        self.owns_cache = not isinstance(cache, TuningCache)
        if not isinstance(cache, TuningCache):
            cache = TuningCache(cache)
        self.cache = cache
        check_cache_kind(cache, is_gpu=handle.device.has_real_timing)
        self.measured = 0
        self._timing = DEFAULT_TIMING if handle.device.has_real_timing else ONE_LOOK
        # The query is made now, because CUDA refuses it while a graph is recorded.
        _, self._device_memory = handle.device.memory_info()
        self._uses_cache = handle.device.has_real_timing or cache.rehearsal
        # Some tables are kept here, and not in the cache: those of an emulated device unless the
        # cache is a rehearsal, those with a candidate whose failure may be temporary, and those in
        # which no candidate works.
        self._tables: dict[TuningKey, AlgorithmTable] = {}
        self.revision = 0
        # What the policy allows for problems that are not measured.
        self._allowed_choices: dict[TuningKey, AlgorithmResult | None] = {}
        # The problems for which a warning said that the heuristic chooses.
        self._heuristic_problems: set[Problem] = set()
        self._has_logged_slowness = False

    @property
    def timing(self) -> TimingPolicy:
        """How thoroughly this tuner measures; settable.

        ArgumentError if it is set to another type, or to one with a field out of range.
        """
        return self._timing

    @timing.setter
    def timing(self, timing: TimingPolicy) -> None:
        self._timing = parse_timing(timing)

    @cached_property
    def device(self) -> DeviceIdentity:
        """The device and versions of the measurements, which are part of every key."""
        return DeviceIdentity.of(self.handle.device)

    @cached_property
    def _peaks(self) -> Peaks | None:
        """The peaks of the device, which every table has."""
        return peaks_of(self.handle.device)

    @cached_property
    def plan_store(self) -> PlanStore | None:
        """The compiled plans in the cache; None if they are not kept."""
        return self.cache.plans_for(self.device) if self._uses_cache else None

    def __repr__(self) -> str:
        return f"<Tuner on {self.handle.device} with {self.cache!r}, {self.policy}>"

    def close(self) -> None:
        """Close the cache, if it was opened here.  A second call does nothing."""
        if self.owns_cache:
            self.cache.close()

    def tune(
        self, problem: Problem | GraphData, operands: Mapping[str, Any] | None = None
    ) -> AlgorithmTable:
        """Return every candidate for a problem, the best first, from the cache or measured now.

        Parameters
        ----------
        problem : Problem or Graph
            The problem; the candidates for a graph are engines.
        operands : mapping, optional
            Data to measure with, instead of synthetic values.  For a convolution these are the
            inputs ("x" and "w"), and "out" if beta is not 0.  For an RNN they are "x" and
            "weights", and "hx" and "cx" if there are any.  For a graph they are all inputs, by
            name.  No array is written.  With operands the problem is always measured, and the
            result replaces the saved one.

        Returns
        -------
        AlgorithmTable
            ``table.explain()`` says why each candidate was not chosen; ``table.best()`` is the
            choice, if there is one.

        Raises
        ------
        ArgumentError
            The problem cannot be tuned, or the operands do not fit it.
        CudnnError, DeviceMemoryError
            The device failed.
        """
        problem = as_problem(problem)
        search = search_of(problem)
        self.handle._use()
        policy = self._policy_within(limit=None)
        if operands is None:
            no_alignments: dict[str, int] = {}
            table = self._look_up(self._key(problem, no_alignments, policy))
            if table is not None:
                return table
            self.revision += 1
            return self._measure(problem, no_alignments, policy)
        if not isinstance(operands, Mapping):
            raise ArgumentError(f"operands={shown(operands)} is not a mapping of names to arrays")
        operands = search.check_operands(self.handle, problem, operands)
        alignments = {
            name: alignment_of(array)
            for name, array in operands.items()
            if name in search.aligned_operands
        }
        self.revision += 1
        return self._measure(problem, alignments, policy, operands)

    def choose(
        self,
        problem: Problem | GraphData,
        alignments: Mapping[str, int] | None = None,
        workspace_limit: int | str | None = None,
        *,
        for_call: bool = False,
        replay: bool = False,
    ) -> AlgorithmResult | None:
        """Return the best candidate for a problem, from the cache or measured now.

        Parameters
        ----------
        problem : Problem or Graph
            The problem.  If the lengths of an RNN are new, a problem with similar lengths is used,
            so that many lengths need few measurements.
        alignments : mapping, optional
            The alignment of each operand's address: a power of two, in bytes.  The default, and the
            maximum, is 256.
        workspace_limit : int or str, optional
            The maximal workspace, in addition to the policy's: bytes, "64 MiB", or "10%" of the
            device's memory.  The default is the handle's limit.
        for_call : bool
            Whether an operation calls this method.  Then a measurement that fails for lack of
            memory, or because of a capture, is no error: the heuristic chooses.
        replay : bool
            Whether the choice is for a plan with ``replay=True``.  Each of its calls costs the host
            one launch, whatever the candidate, so that the time on the device decides.

        Returns
        -------
        AlgorithmResult or None
            A row of the table: the `algorithm` for an operation, or the `engine` for a graph.
            None if the heuristic chooses, with a warning if a measurement is necessary and not
            possible: a CUDA graph is recorded on the handle's stream, or `measure` is False.  With
            `for_call` also if there is too little memory, or if a CUDA graph is recorded on another
            stream of the device.  If the policy may exclude the heuristic's choice, the result is
            the first candidate that it allows, and not None.

        Raises
        ------
        NoAlgorithmError
            No candidate satisfies the policy; the message says what excluded each of them.
        ArgumentError, CudnnError, DeviceMemoryError
            As in `tune`.
        """
        problem = as_problem(problem)
        search_of(problem)
        self.handle._use()
        policy = self._policy_within(workspace_limit)
        alignments = dict(alignments or {})
        representative = representative_problem(problem)
        # If no candidate worked in an earlier measurement, a call does not measure again.
        allow_failed = for_call
        table = self._look_up(self._key(problem, alignments, policy), allow_failed)
        if table is None and representative != problem:
            table = self._look_up(self._key(representative, alignments, policy), allow_failed)
        source = CACHE
        if table is None:
            source = SEARCH
            table = self._measure_if_possible(representative, alignments, policy, for_call=for_call)
        if table is None:
            return self._allowed_choice(representative, alignments, policy)
        best = best_replayed(table) if replay else table.best()
        if is_passed_over(best, representative, self.handle.api.engine_version):
            return self._allowed_choice(representative, alignments, policy)
        return replace(best, source=source)

    def _allowed_choice(
        self, problem: Problem, alignments: Mapping[str, int], policy: TuningPolicy
    ) -> AlgorithmResult | None:
        """Return the first candidate that the policy allows; None if it allows all.

        `policy` is the tuner's, within the limit of a call.
        """
        if not self.policy.is_narrow:
            return None
        key = self._key(problem, alignments, policy)
        if key not in self._allowed_choices:
            if len(self._allowed_choices) >= _MOST_ALLOWED_CHOICES:
                self._allowed_choices.clear()
            is_aligned = all(alignment >= ALIGNMENT for alignment in alignments.values())
            choice = allowed_choice(self.handle, problem, policy, is_aligned=is_aligned)
            self._allowed_choices[key] = choice
        return self._allowed_choices[key]

    def _measure_if_possible(
        self,
        problem: Problem,
        alignments: Mapping[str, int],
        policy: TuningPolicy,
        *,
        for_call: bool,
    ) -> AlgorithmTable | None:
        """Measure a problem and return its table; None, with a warning, if that is not possible."""
        if not self.measures:
            self._warn_of_heuristic(problem, "and this tuner does not measure")
            return None
        if self.handle.device.is_capturing(self.handle.stream):
            self._warn_of_heuristic(
                problem, "and it cannot be tuned while a CUDA graph is recorded"
            )
            return None
        start = time.perf_counter()
        try:
            table = self._measure(problem, alignments, policy)
        except DeviceMemoryError as error:
            if not for_call:
                raise
            self._warn_of_heuristic(problem, f"and there is too little memory to tune it ({error})")
            return None
        except CaptureError as error:  # A graph is recorded on another stream of the device.
            if not for_call:
                raise
            self._warn_of_heuristic(problem, f"and it cannot be tuned now ({error})")
            return None
        if for_call:
            self._log_slowness(problem, time.perf_counter() - start)
        return table

    def _warn_of_heuristic(self, problem: Problem, why: str) -> None:
        """Warn that the heuristic chooses for a problem, unless a warning has named it before.

        `why` goes on after "was never tuned, ".
        """
        if problem in self._heuristic_problems:
            return
        self._heuristic_problems.add(problem)
        consequence = "cuDNN's heuristic chooses; call tune_model before such calls"
        warn_user(f"{problem} was never tuned, {why}: {consequence}", TuningWarning)

    def _log_slowness(self, problem: Problem, seconds: float) -> None:
        """Log, once, that a measurement inside a call took long."""
        if self._has_logged_slowness or seconds <= SLOW_SECONDS:
            return
        self._has_logged_slowness = True
        hint = "other calls under `autotuned` may take as long; call tune_model before them"
        if not self._uses_cache:
            hint += "; times of the emulated device are not saved"
        log.warning("measuring %s took %.1f s; %s", problem, seconds, hint)

    def is_remembered(self, problem: Problem | GraphData) -> bool:
        """Return whether `tune` would measure nothing for a problem."""
        problem = as_problem(problem)
        search_of(problem)
        key = self._key(problem, {}, self._policy_within(limit=None))
        return self._look_up(key) is not None

    def _policy_within(self, limit: int | str | None) -> TuningPolicy:
        """Return the policy with a workspace limit in bytes; for None it is the handle's limit."""
        return self.policy.within(self.handle.workspace.limit_for(limit), self._device_memory)

    def _key(
        self, problem: Problem, alignments: Mapping[str, int], policy: TuningPolicy
    ) -> TuningKey:
        return make_key(problem, alignments, policy, self.device)

    def _look_up(self, key: TuningKey, allow_failed: bool = False) -> AlgorithmTable | None:
        """Return the table of a key, or None.

        With `allow_failed` it may be a table in which no candidate works.
        """
        table = self._tables.get(key)
        if table is not None and _is_useful(table):
            return table
        if self._uses_cache:
            entry = self.cache.get(key)
            if entry is not None:
                return entry.table(self._device_memory, self._peaks)
        if allow_failed:
            return table
        return None

    def _measure(
        self,
        problem: Problem,
        alignments: Mapping[str, int],
        policy: TuningPolicy,
        operands: Mapping[str, Any] | None = None,
    ) -> AlgorithmTable:
        """Measure a problem, and remember the table in the cache or in this tuner.

        Without operands, synthetic ones are used.
        """
        key = self._key(problem, alignments, policy)
        with measuring_alone(self.handle.device, self.cache):
            if operands is None:
                table = self._look_up(key)
                if table is not None:  # Another worker measured it while this one waited.
                    return table
            refuse_search(self.handle)
            search = search_of(problem)
            start = time.perf_counter()
            log.info("tuning %s on %s", problem, self.handle.device)
            # Calls of the search do not use tuned choices.
            with _use_chooser(self.handle, None):
                if operands is None:
                    operands = search.operands_of(self.handle, problem, alignments)
                table = search.search(self.handle, problem, policy, operands, self.timing)
            seconds = time.perf_counter() - start
            best = next((row for row in table if row.ok), "no candidate works")
            log.info("tuned %s in %.1f s: %s", problem, seconds, best)
            self.measured += 1
            self._remember(key, table, seconds)
            self._keep_compiled_plan(problem, table)
            return table

    def _keep_compiled_plan(self, problem: Problem, table: AlgorithmTable) -> None:
        """Let the cache keep the plan of the choice, if cuDNN compiles its engine.

        cuDNN has compiled the engine for the measurement, and does not compile it again.
        """
        make_plan = search_of(problem).make_plan
        choice = next((row for row in table if row.ok), None)
        is_engine = choice is not None and isinstance(choice.algorithm, Engine)
        if self.plan_store is None or make_plan is None or not is_engine:
            return
        with _use_chooser(self.handle, self):
            try:
                make_plan(self.handle, problem, choice).close()
            except (CudnnError, DeviceMemoryError) as error:
                log.info("the plan of %s is not kept: %s", choice, error)

    def _remember(self, key: TuningKey, table: AlgorithmTable, seconds: float) -> None:
        """Remember a table in the cache.

        If the next measurement may have another result, only this tuner remembers it.
        """
        temporary_failures = [row for row in table if row.transient]
        if temporary_failures:
            names = ", ".join(sorted({str(row.algorithm) for row in temporary_failures}))
            why = temporary_failures[0].why_not or temporary_failures[0].status
            failure = f"{names} failed, perhaps temporarily ({why})"
            warn_user(
                f"{table.title}: {failure}; the choice is kept for this tuner only", TuningWarning
            )
        if temporary_failures or not self._uses_cache or not _is_useful(table):
            self._tables[key] = table
            return
        self._tables.pop(key, None)
        entry = TuningEntry(
            key,
            title=table.title,
            timing=table.timing,
            rows=tuple(table),
            chosen=0,
            tuned_at=datetime.now(timezone.utc).isoformat(),
            seconds=seconds,
            cudnnlite=__version__,
        )
        self.cache.put(entry)


@contextmanager
@suggest_keywords
def autotuned(
    handle: Handle,
    *,
    cache: TuningCache | str | os.PathLike[str] | None = None,
    policy: TuningPolicy | None = None,
    measure: bool = True,
) -> Iterator[Tuner]:
    """Use tuned choices for the operations on a handle, until the block ends.

    The choices are for operations without an `algorithm`.  Unless its choice is in the cache, the
    first call of each problem measures, and waits for the device.  On an H200 the measurement took
    0.1 s for a convolution, and 1.3 s for a recurrent network (medians).  It takes longer if cuDNN
    compiles PERSIST_DYNAMIC.

    Parameters
    ----------
    handle : Handle
        The handle of the operations.
    cache, policy, measure
        As in `Tuner`.

    Yields
    ------
    Tuner
        The tuner that chooses.

    Raises
    ------
    ArgumentError
        As in `Tuner`.

    Examples
    --------
    >>> with dnn.Handle() as handle, dnn.autotuned(handle, cache=":memory:") as tuner:
    ...     x = handle.array(np.ones((1, 8, 14, 14), np.float32))
    ...     w = handle.array(np.ones((8, 8, 3, 3), np.float32))
    ...     y = dnn.convolution_forward(handle, x, w)  # measures
    ...     y = dnn.convolution_forward(handle, x, w)  # uses the result
    ...     print(tuner.measured)
    1
    """
    with Tuner(handle, cache, policy, measure=measure) as tuner, _use_chooser(handle, tuner):
        yield tuner


@contextmanager
def _use_chooser(handle: Handle, tuner: Tuner | None) -> Iterator[None]:
    """Let a tuner, or with None nobody, choose for a handle's operations in the block."""
    before = handle._chooser, handle._plan_store
    set_chooser(handle, tuner, None if tuner is None else tuner.plan_store)
    try:
        yield
    finally:
        set_chooser(handle, *before)


def best_replayed(table: AlgorithmTable) -> AlgorithmResult:
    """Return the candidate with the least time on the device; NoAlgorithmError if none works."""
    rows = [row for row in table if row.ok and row.time_ms is not None]
    if not rows:
        return table.best()
    return min(rows, key=lambda row: row.time_ms or 0.0)


def as_problem(problem: Problem | GraphData) -> Problem:
    """Return a problem as it is, and a graph as a `GraphProblem`."""
    if isinstance(problem, GraphData):
        return GraphProblem(problem)
    return problem


def find_search(problem: Problem) -> Search | None:
    """Return the search for a problem; None if there are no candidates to choose from."""
    if isinstance(problem, GraphProblem):
        return _GRAPH
    return SEARCHES.get(problem.operation)


def search_of(problem: Any) -> Search:
    """Return the search for a problem; ArgumentError if it is no problem that can be tuned."""
    search = find_search(problem) if isinstance(problem, Problem) else None
    if search is not None:
        return search
    names = ", ".join([*(operation.name for operation in SEARCHES), KIND])
    hint = ""
    problem_of_plan = getattr(problem, "problem", None)
    if isinstance(problem, OperationPlan) and isinstance(problem_of_plan, GraphProblem):
        hint = "; plan.graph can"
    elif isinstance(problem_of_plan, Problem) and problem_of_plan.operation in SEARCHES:
        hint = "; plan.problem can"
    raise ArgumentError(f"problem={shown(problem)} cannot be tuned{hint}; allowed: {names}")


def _is_useful(table: AlgorithmTable) -> bool:
    """Return whether a candidate works."""
    return any(row.ok for row in table)
