"""Tuning in real calls: the candidates of a problem, and the object that lets calls try them.

The winners of similar problems in the database take turns with the engines in the order of cuDNN's
heuristics.  Algorithms of the descriptor call that are not among the winners come last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any
from weakref import ref

from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.autotune import graphs
from cudnnlite.autotune.convolution import candidates, engines, layouts_to_try
from cudnnlite.autotune.entries import TuningKey, timing_of_real_calls
from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.cached_property import cached_property
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import RNNAlgo
from cudnnlite.errors import CudnnError, NoAlgorithmError, NotSupportedError, WorkspaceLimitError
from cudnnlite.graph.engines import (
    HEURISTICS,
    Configuration,
    Engine,
    configurations,
    configure_if_possible,
)
from cudnnlite.graph.operation_graph import ALIGNMENT, Graph
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.operations.convolution.algorithms import ranked
from cudnnlite.operations.convolution.engines import row_of, shared_graph, why_excluded
from cudnnlite.operations.convolution.layout_conversion import (
    in_layout,
    layout_of_filter,
    problem_in_layout,
)
from cudnnlite.operations.convolution.plan import ConvolutionPlan
from cudnnlite.operations.rnn.choice import heuristic
from cudnnlite.operations.rnn.search import all_candidates, workspace_of
from cudnnlite.plans.graph_plan import GraphPlan
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.plans.trial_call import CANDIDATE_ERRORS, TrialCall
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import HEURISTIC, AlgorithmResult
from cudnnlite.problems.rnn import FORWARD as RNN_FORWARD
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.search.database import database_of
from cudnnlite.search.race import Race, identity_of
from cudnnlite.search.trial_budget import TrialBudget
from cudnnlite.sizes import over_limit
from cudnnlite.specs.rnn_rules import why_not as why_not_rnn

# The most unfinished races that are remembered.  A plan that is made again continues its race.
MOST_RACES = 1024
# The number of the database's winners that are tried between two other candidates.  Of 3186
# convolutions and gradients of networks on an H100, with the winners of one half for the other
# half, the best of the first eight candidates took the device 1.040 times as long as the best of
# all, and 1.085 times without winners (tools/benchmarks/candidate_order.py).
_WINNERS_PER_CANDIDATE = 2
# The most winners that are looked at; cuDNN may have none of them for a problem.
MOST_WINNERS = 16
# The number of candidates in the operands' own layout that come before those in other layouts.  It
# is usually the plan's own choice.
_BEFORE_CONVERSIONS = 1
# The number of engines that are tried in each other layout.
_ENGINES_PER_LAYOUT = 2

Remember = Callable[[TuningKey, AlgorithmTable], None]


class RealCallTuning:
    """Lets the calls of a handle's plans try candidates, and passes on the results.

    Parameters
    ----------
    handle : Handle
        The handle of the plans.
    remember : callable
        (key, table) -> None.  It receives the result of each race.
    device_memory : int
        The bytes of the device's memory, for the tables.
    """

    def __init__(self, handle: Handle, remember: Remember, device_memory: int) -> None:
        self._handle = handle
        self._remember = remember
        self._device_memory = device_memory
        self._budget = TrialBudget()
        self._races: OrderedDict[TuningKey, Race] = OrderedDict()

    def begin(
        self, plan: ConvolutionPlan | GraphPlan, key: TuningKey, policy: TuningPolicy
    ) -> None:
        """Let the calls of a plan try candidates, if there are any beside its own choice.

        The plan runs the choice of cuDNN's heuristic.  If the policy excludes this choice, the plan
        takes over the first candidate that the policy allows; NoAlgorithmError if there is none.
        All other candidates are read when a call is about to try one.
        """
        if plan.choice is None or plan._prepared is None or plan.replay is not None:
            return
        with self._budget.spending():
            self._begin(plan, key, policy)

    def _begin(
        self, plan: ConvolutionPlan | GraphPlan, key: TuningKey, policy: TuningPolicy
    ) -> None:
        choice: Any = plan.choice
        exclusion = _why_excluded(choice, plan.problem, policy)
        candidates = _candidates_of(plan, policy, compiled=bool(exclusion))
        if exclusion:
            choice = _replace_choice(plan, exclusion, candidates)
        race = self._race_of(key, [choice], policy)
        finish = partial(self.finish, key=key, title=str(plan.problem))
        plan._change_call(TrialCall(plan, race, candidates, finish), choice)

    def race_of_rnn(self, problem: Problem, key: TuningKey, policy: TuningPolicy) -> Race:
        """Return the race of a recurrent network's candidates.

        The first of them is the choice without tuning, unless the policy excludes it.
        """
        return self._race_of(key, rnn_rows(self._handle, problem, policy), policy)

    def _race_of(
        self, key: TuningKey, rows: Sequence[AlgorithmResult], policy: TuningPolicy
    ) -> Race:
        """Return the unfinished race of a key if it has the same first candidate, or a new one."""
        race = self._races.get(key)
        if race is None or identity_of(race.runners[0].row) != identity_of(rows[0]):
            latency = policy.objective == "latency"
            race = Race(rows, self._handle.timing, latency=latency, budget=self._budget)
        self._races[key] = race
        self._races.move_to_end(key)
        while len(self._races) > MOST_RACES:
            self._races.popitem(last=False)
        return race

    def finish(self, race: Race, key: TuningKey, title: str) -> None:
        """Pass on the result of a race, once."""
        if race.is_saved:
            return
        timing = timing_of_real_calls(race.calls, self._handle.device)
        if race.ranks_by_latency:
            timing += "; us a call: of the host or the device, whichever is longer, which decides"
        table = AlgorithmTable(
            race.rows(),
            title=title,
            timing=timing,
            device_memory=self._device_memory,
        )
        self._remember(key, table)
        race.is_saved = True
        self._races.pop(key, None)


def allowed_choice(
    handle: Handle, problem: Problem, policy: TuningPolicy, *, is_aligned: bool
) -> AlgorithmResult | None:
    """Return the first candidate that a policy allows, without a measurement.

    It is the choice of cuDNN's heuristic, unless the policy excludes that.  NoAlgorithmError if the
    policy excludes all; None if there is nothing to compute.
    """
    if problem.operation is RNN_FORWARD:
        return replace(rnn_rows(handle, problem, policy)[0], source=HEURISTIC)
    with _heuristic_plan(handle, problem, policy, is_aligned=is_aligned) as plan:
        try:
            choice: AlgorithmResult | None = plan.prepare().choice
        except (NotSupportedError, WorkspaceLimitError) as error:
            raise NoAlgorithmError(f"no algorithm for {problem} is allowed: {error}") from error
        if choice is None:
            return None
        exclusion = _why_excluded(choice, problem, policy)
        if exclusion:
            candidates = _candidates_of(plan, policy, compiled=True)
            choice = _replace_choice(plan, exclusion, candidates)
    return replace(choice, source=HEURISTIC)


def _heuristic_plan(
    handle: Handle, problem: Problem, policy: TuningPolicy, *, is_aligned: bool
) -> ConvolutionPlan | GraphPlan:
    """Return a plan by the heuristic's choice, within the limit and interface of a policy."""
    limit = policy.workspace_limit
    assert limit is None or isinstance(limit, int)
    if isinstance(problem, GraphProblem):
        return GraphPlan(handle, problem.graph, None, limit, graphs.requirements_of(policy))
    return ConvolutionPlan(handle, problem, None, limit, policy.interface, is_aligned=is_aligned)


def _candidates_of(
    plan: ConvolutionPlan | GraphPlan, policy: TuningPolicy, *, compiled: bool
) -> _PlanCandidates:
    if isinstance(plan, ConvolutionPlan):
        return _ConvolutionCandidates(plan, policy, compiled=compiled)
    return _GraphCandidates(plan, policy)


def _replace_choice(
    plan: OperationPlan[Any], exclusion: str, candidates: _PlanCandidates
) -> AlgorithmResult:
    """Let a plan take over the first candidate that can be made, and return it."""
    reasons = [f"{plan.choice.algorithm}: {exclusion}"]
    for row in candidates:
        try:
            other = candidates.make_plan(row)
        except CANDIDATE_ERRORS as error:
            reasons.append(f"{row.algorithm}: {error}")
            continue
        choice: AlgorithmResult = replace(other.choice, source=plan.choice.source)
        plan._adopt(other, choice)
        return choice
    raise NoAlgorithmError(f"no algorithm for {plan.problem} is allowed: {'; '.join(reasons)}")


def _why_over_limit(row: AlgorithmResult, policy: TuningPolicy) -> str:
    """Return by how much a choice exceeds a policy's workspace; empty if it does not."""
    limit = policy.workspace_limit
    if limit is None or row.workspace <= int(limit):
        return ""
    return over_limit(row.workspace, int(limit))


def _why_excluded(row: AlgorithmResult, problem: Problem, policy: TuningPolicy) -> str:
    """Return why a policy excludes a choice; empty if it does not."""
    excess = _why_over_limit(row, policy)
    if excess:
        return excess
    interface = "graph" if isinstance(row.algorithm, Engine) else "descriptor"
    if policy.interface not in (None, interface):
        return f"interface={policy.interface!r}"
    first_spec = next(iter(problem.specs.values()))
    return policy.why_not(row, first_spec.dtype)


class _PlanCandidates(NonCopyable, ABC):
    """The candidates for a plan's calls, its own choice among them; see `Candidates`.

    Native objects that are open while candidates are read, such as the answers of cuDNN's
    heuristics, are closed at the end of the list, after an error, and by `close`.  The graphs of
    candidates are closed with the plan, because it may take over a candidate's plan.

    Parameters
    ----------
    plan : ConvolutionPlan or GraphPlan
        A prepared plan.  It owns the candidates, which have no strong reference to it.
    policy : TuningPolicy
        The candidates that it excludes are left out.
    """

    _instead_of_copy = "they belong to a plan"

    def __init__(self, plan: ConvolutionPlan | GraphPlan, policy: TuningPolicy) -> None:
        self._plan = ref(plan)
        self._handle = plan._handle
        self._problem = plan.problem
        self._policy = policy
        self._reading: Generator[AlgorithmResult, None, None] | None = None
        # When the plan is closed, it closes the candidates first, and then their graphs.
        self._graph_owner = plan._resources.enter_context(ExitStack())
        plan._resources.callback(self.close)

    @abstractmethod
    def _read(self) -> Generator[AlgorithmResult, None, None]:
        """Yield the candidates that the policy allows, those that the heuristics prefer first."""

    @abstractmethod
    def _make(self, plan: Any, row: AlgorithmResult) -> OperationPlan[Any]:
        """Return a prepared plan of a candidate for the problem of `plan`."""

    def __iter__(self) -> Iterator[AlgorithmResult]:
        return self

    def __next__(self) -> AlgorithmResult:
        if self._reading is None:
            self._reading = self._ordered()
        try:
            return next(self._reading)
        except StopIteration:
            raise
        except BaseException:
            self._reading = None
            raise

    def close(self) -> None:
        """End the reading, and close the native objects that it needs."""
        if self._reading is not None:
            self._reading.close()

    def _ordered(self) -> Generator[AlgorithmResult, None, None]:
        """Yield the candidates, the likely ones first, and some twice."""
        with closing(self._read()) as rows, closing(self._winners()) as winners:
            yield from interleaved(winners, rows)
        yield from self._unlikely()

    def _unlikely(self) -> Iterable[AlgorithmResult]:
        """Return candidates that seldom win, which come last."""
        return ()

    def _winners(self) -> Generator[AlgorithmResult, None, None]:
        """Yield the choices of the database for similar problems, the most frequent ones first."""
        database = database_of(self._handle.device)
        if database is None:
            return
        for winner in database.winners(self._problem)[:MOST_WINNERS]:
            row = self._candidate_like(winner)
            if row is not None:
                yield row

    @abstractmethod
    def _candidate_like(self, winner: AlgorithmResult) -> AlgorithmResult | None:
        """Return another problem's choice as a candidate.

        None if cuDNN has no such candidate for this problem, or if it is excluded.
        """

    def make_plan(self, row: AlgorithmResult) -> OperationPlan[Any]:
        """Return a prepared plan of a candidate for the same problem."""
        other = self._make(self._plan(), row)
        excess = _why_over_limit(other.choice, self._policy)
        if excess:
            other.close()
            raise WorkspaceLimitError(excess)
        return other


class _ConvolutionCandidates(_PlanCandidates):
    """The engines and algorithms for a convolution, some of them in other layouts.

    Of the engines that cuDNN compiles at run time, only winners of the database are tried: they
    were clearly faster than all others for a similar problem.  With `compiled`, those that cuDNN's
    heuristics name for the operands' own layout are tried, too.  Compiling takes half a second.
    """

    def __init__(self, plan: ConvolutionPlan, policy: TuningPolicy, *, compiled: bool) -> None:
        super().__init__(plan, policy)
        self._compiled = compiled
        # The graph that all engines share, by the layout that operands are converted to.
        self._graphs: dict[str, Graph | None] = {}
        if plan._graph is not None:
            self._graphs[""] = plan._graph

    @cached_property
    def _descriptor_calls(self) -> list[AlgorithmResult]:
        """The allowed algorithms of the descriptor call, in the order of its heuristic."""
        problem, policy = self._problem, self._policy
        if policy.interface == "graph" or not problem.conv.is_symmetric:
            return []
        ranking: Sequence[AlgorithmResult] = ()
        with suppress(NotSupportedError):
            ranking = ranked(self._handle, problem)
        refused = {identity_of(row) for row in ranking if not row.ok}
        algorithms = problem.operation.algorithms
        assert algorithms is not None
        rows = [
            row
            for row in candidates(problem, policy, ranking, ranks_by_descriptor_call=True)
            if row.ok
            and identity_of(row) not in refused
            and algorithms.why_unsupported(problem, row.algorithm) is None
        ]
        unranked = len(rows)
        return sorted(rows, key=lambda row: unranked if row.heuristic is None else row.heuristic)

    @cached_property
    def _layouts(self) -> list[str]:
        """The layouts to convert operands to."""
        return layouts_to_try(self._handle, self._problem, self._policy)

    def _make(self, plan: ConvolutionPlan, row: AlgorithmResult) -> OperationPlan[Any]:
        return plan._with_candidate(row, self._graphs.get(row.layout))

    def _read(self) -> Generator[AlgorithmResult, None, None]:
        with closing(self._engines(self._problem, "")) as rows:
            yield from islice(rows, _BEFORE_CONVERSIONS)
            yield from self._converted_engines()
            yield from rows

    def _unlikely(self) -> Iterable[AlgorithmResult]:
        return self._descriptor_calls

    def _converted_engines(self) -> Iterator[AlgorithmResult]:
        """Yield engines that convert operands to another layout, if that may be faster.

        It seldom is, except for grouped convolutions, and for a filter whose layout is not that of
        the images.
        """
        problem, policy = self._problem, self._policy
        if policy.interface == "descriptor":
            return
        is_likely_faster = problem.conv.groups > 1 or layout_of_filter(problem)
        if not (policy.layouts or is_likely_faster):
            return
        for layout in self._layouts:
            inner_problem = problem_in_layout(problem, layout)
            with closing(self._engines(inner_problem, layout)) as engine_rows:
                for row in islice(engine_rows, _ENGINES_PER_LAYOUT):
                    yield replace(in_layout(row, layout), heuristic=None)

    def _engines(self, problem: Problem, layout: str) -> Generator[AlgorithmResult, None, None]:
        """Yield the engines that the policy allows for the problem in a layout.

        The engines are those that cuDNN's heuristics name.  Listing all others takes longer than
        most calls, so only a policy with a larger search does it.
        """
        graph = self._graph_in(problem, layout)
        if graph is None:
            return
        if self._policy.search != "heuristics":
            yield from (row for row in engines(graph, problem, self._policy) if row.ok)
            return
        with ExitStack() as stack:
            may_be_compiled = self._compiled and not layout
            for rank, configuration in enumerate(configurations(graph, HEURISTICS, stack)):
                if configuration.compiled and not may_be_compiled:
                    continue
                row = self._row_of(configuration, graph, problem)
                if row is not None:
                    yield replace(row, heuristic=rank)

    def _graph_in(self, problem: Problem, layout: str) -> Graph | None:
        """Return the graph of the problem in a layout; None if no engine may be tried."""
        if self._policy.interface == "descriptor":
            return None
        if layout not in self._graphs:
            self._graphs[layout] = shared_graph(self._handle, problem, self._graph_owner)
        return self._graphs[layout]

    def _row_of(
        self, configuration: Configuration, graph: Graph, problem: Problem
    ) -> AlgorithmResult | None:
        """Return an engine for a problem as a candidate; None if it is excluded."""
        if why_excluded(configuration, graph, problem):
            return None
        row = row_of(configuration, problem)
        dtype = problem.values[problem.operation.reads[0]].dtype
        return None if self._policy.why_not(row, dtype) else row

    def _candidate_like(self, winner: AlgorithmResult) -> AlgorithmResult | None:
        layout = winner.layout
        if not isinstance(winner.algorithm, Engine):
            identity = identity_of(winner)
            return next(
                (row for row in self._descriptor_calls if identity_of(row) == identity), None
            )
        if layout and layout not in self._layouts:
            return None
        problem = problem_in_layout(self._problem, layout) if layout else self._problem
        graph = self._graph_in(problem, layout)
        if graph is None:
            return None
        with ExitStack() as stack:
            configuration = configure_if_possible(graph, winner.algorithm, stack)
            if configuration is None:
                return None
            row = self._row_of(configuration, graph, problem)
        if row is None or not layout:
            return row
        return in_layout(row, layout)


class _GraphCandidates(_PlanCandidates):
    """The engines for a graph."""

    def __init__(self, plan: GraphPlan, policy: TuningPolicy) -> None:
        super().__init__(plan, policy)
        assert plan._native is not None
        self._graph = plan._native

    def _make(self, plan: GraphPlan, row: AlgorithmResult) -> OperationPlan[Any]:
        return plan._with_engine(row.algorithm, self._graph)

    def _read(self) -> Generator[AlgorithmResult, None, None]:
        rules = graphs.rules_of(self._graph, self._policy)
        rows = graphs.engine_candidates(self._graph, self._policy, rules)
        with closing(rows):
            yield from (row for row in rows if row.ok)

    def _candidate_like(self, winner: AlgorithmResult) -> AlgorithmResult | None:
        if self._policy.interface == "descriptor":
            return None
        rules = graphs.rules_of(self._graph, self._policy)
        with ExitStack() as stack:
            configuration = configure_if_possible(self._graph, winner.algorithm, stack)
            if configuration is None:
                return None
            row = rules.row_of(configuration)
            return None if rules.why_excluded(configuration, row) else row


def interleaved(
    winners: Iterator[AlgorithmResult], rows: Iterator[AlgorithmResult]
) -> Iterator[AlgorithmResult]:
    """Yield one row, then some winners, and so on; each is read when it is asked for."""
    for row in rows:
        yield row
        yield from islice(winners, _WINNERS_PER_CANDIDATE)
    yield from winners


def rnn_rows(handle: Handle, problem: Problem, policy: TuningPolicy) -> list[AlgorithmResult]:
    """Return the allowed candidates of a recurrent network, the heuristic's choice first.

    Each row has its workspace.  PERSIST_DYNAMIC is not among them: compiling it takes up to a
    minute.  In training an algorithm must support the backward passes too.  NoAlgorithmError if the
    policy excludes all.
    """
    spec, data = problem.spec, problem.data
    rows: list[AlgorithmResult] = []
    reasons: list[str] = []
    for candidate in all_candidates(problem):
        row: AlgorithmResult = candidate
        exclusion = policy.why_not(row, spec.dtype) or why_not_rnn(
            spec, row.algorithm, full=data.is_full, backward=problem.training
        )
        if not exclusion and row.algorithm == RNNAlgo.PERSIST_DYNAMIC:
            exclusion = "not compiled in a real call"
        if not exclusion:
            try:
                row = replace(row, workspace=workspace_of(handle, problem, row))
                exclusion = _why_over_limit(row, policy)
            except CudnnError as error:
                exclusion = str(error)
        if exclusion:
            reasons.append(f"{row.algorithm} ({row.math_type}): {exclusion}")
        else:
            rows.append(row)
    if not rows:
        raise NoAlgorithmError(f"no algorithm for {problem} is allowed: {'; '.join(reasons)}")
    preferred = identity_of(heuristic(spec, data))
    return sorted(rows, key=lambda row: identity_of(row) != preferred)


def are_aligned(alignments: Iterable[int]) -> bool:
    """Return whether operands are aligned enough for all candidates."""
    return all(alignment >= ALIGNMENT for alignment in alignments)
