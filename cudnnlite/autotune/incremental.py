"""Tuning in real calls: the candidates of a problem, and what lets its calls try them.

The database's winners of similar problems come first.  Then come the engines in the order of
cuDNN's heuristics, and between them the algorithms of the descriptor call.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from itertools import islice
from typing import Any

from cudnnlite.autotune import graphs
from cudnnlite.autotune.convolution import candidates, engines, layouts_to_try
from cudnnlite.autotune.entries import TuningKey
from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import RNNAlgo
from cudnnlite.errors import NoAlgorithmError, NotSupportedError, WorkspaceLimitError
from cudnnlite.graph.engines import HEURISTICS, Engine, configurations
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.operation_graph import ALIGNMENT, Graph
from cudnnlite.operations.convolution.algorithms import ranked
from cudnnlite.operations.convolution.engines import row_of, shared_graph, why_excluded
from cudnnlite.operations.convolution.layout_conversion import (
    in_layout,
    layout_of_filter,
    problem_in_layout,
)
from cudnnlite.operations.convolution.plan import ConvolutionPlan
from cudnnlite.operations.rnn.choice import heuristic
from cudnnlite.operations.rnn.search import all_candidates
from cudnnlite.plans.graph_plan import GraphPlan
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.plans.trial_call import CANDIDATE_ERRORS, TrialCall
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.search.database import contestant_of, database_of
from cudnnlite.search.race import Race
from cudnnlite.sizes import over_limit
from cudnnlite.specs.rnn_rules import why_not as why_not_rnn

# So many races are remembered that are not over: a plan that is made again goes on with its race.
MOST_RACES = 1024
# Between two algorithms of the descriptor call so many engines are tried.
_ENGINES_PER_ALGORITHM = 2
# So many engines of a convolution are read for each call that may try one; the database's order
# chooses among them.  cuDNN names up to 80, and to read them all takes 30 ms.
_ENGINES_PER_CALL = 2
# So many engines are tried in each other layout, after so many candidates in the operands' own.
_ENGINES_PER_LAYOUT = 2
_BEFORE_CONVERSIONS = 3

Remember = Callable[[TuningKey, AlgorithmTable], None]
MakePlan = Callable[[AlgorithmResult], OperationPlan[Any]]


class RealCallTuning:
    """Lets the calls of a handle's plans try candidates, and passes on the results.

    Parameters
    ----------
    handle : Handle
        The handle of the plans.
    remember : callable
        (key, table) -> None.  It receives the result of each race.
    """

    def __init__(self, handle: Handle, remember: Remember) -> None:
        self._handle, self._remember = handle, remember
        self._races: OrderedDict[TuningKey, Race] = OrderedDict()

    def begin(
        self, plan: ConvolutionPlan | GraphPlan, key: TuningKey, policy: TuningPolicy
    ) -> None:
        """Let the calls of a plan try candidates, if there are any beside its own choice.

        The plan is that of cuDNN's heuristic.  If the policy excludes its choice, the plan takes
        over the first candidate that the policy allows.  NoAlgorithmError if there is none.
        """
        choice = plan.choice
        if choice is None or plan._prepared is None or plan.replay is not None:
            return
        why = _why_excluded(choice, plan.problem, policy)
        rows, make_plan = _trials_of(plan, choice, policy, compiled=bool(why))
        if why:
            choice, rows = _replace_choice(plan, why, rows, make_plan)
        race = self._race_of(key, [choice, *rows])
        if len(race.runners) < 2:
            return

        def finish(race: Race) -> None:
            self.finish(race, key, plan_title)

        plan_title = str(plan.problem)
        plan._change_call(TrialCall(plan, race, make_plan, finish), choice)

    def race_of_rnn(self, problem: Problem, key: TuningKey, policy: TuningPolicy) -> Race:
        """Return the race of a recurrent network's candidates.

        The first of them is the choice without tuning, unless the policy excludes it.
        """
        return self._race_of(key, rnn_rows(problem, policy))

    def _race_of(self, key: TuningKey, rows: Sequence[AlgorithmResult]) -> Race:
        """Return the race of a key: one that is not over yet goes on, with the same candidates."""
        race = self._races.get(key)
        is_same = race is not None and identity_of(race.runners[0].row) == identity_of(rows[0])
        if race is None or not is_same:
            race = Race(rows, self._handle.timing)
        self._races[key] = race
        self._races.move_to_end(key)
        while len(self._races) > MOST_RACES:
            self._races.popitem(last=False)
        return race

    def finish(self, race: Race, key: TuningKey, title: str) -> None:
        """Pass on the result of a race, once."""
        if race.is_saved:
            return
        device = self._handle.device
        table = AlgorithmTable(
            race.rows(),
            title=title,
            timing=f"events around {race.calls} real calls on {device}",
            device_memory=device.memory_info()[1],
        )
        self._remember(key, table)
        race.is_saved = True
        self._races.pop(key, None)


def identity_of(row: AlgorithmResult) -> tuple[object, ...]:
    """Return what tells candidates apart."""
    return row.algorithm, row.math_type, row.layout


def _replace_choice(
    plan: OperationPlan[Any], why: str, rows: list[AlgorithmResult], make_plan: MakePlan
) -> tuple[AlgorithmResult, list[AlgorithmResult]]:
    """Let a plan take over the first candidate that can be made.

    Returns this candidate, and those after it.
    """
    reasons = [f"{plan.choice.algorithm}: {why}"]
    for index, row in enumerate(rows):
        try:
            other = make_plan(row)
        except CANDIDATE_ERRORS as error:
            reasons.append(f"{row.algorithm}: {error}")
            continue
        choice = replace(other.choice, source=plan.choice.source)
        plan._adopt(other, choice)
        return choice, rows[index + 1 :]
    raise NoAlgorithmError(f"no algorithm for {plan.problem} is allowed: {'; '.join(reasons)}")


def _why_excluded(row: AlgorithmResult, problem: Problem, policy: TuningPolicy) -> str:
    """Return why a policy excludes a choice; empty if it does not."""
    limit = policy.workspace_limit
    if limit is not None and row.workspace > int(limit):
        return over_limit(row.workspace, int(limit))
    is_engine = isinstance(row.algorithm, Engine)
    if policy.interface not in (None, "graph" if is_engine else "descriptor"):
        return f"interface={policy.interface!r}"
    first = next(iter(problem.specs.values()))
    return policy.why_not(row, first.dtype)


def _trials_of(
    plan: ConvolutionPlan | GraphPlan,
    choice: AlgorithmResult,
    policy: TuningPolicy,
    *,
    compiled: bool,
) -> tuple[list[AlgorithmResult], MakePlan]:
    """Return the candidates of a plan beside its own choice, and what makes their plans.

    Engines of a convolution that cuDNN compiles first are left out, unless `compiled`: that takes
    half a second, and of 47 convolutions on an H100 four were faster so, of 4 to 36 us.
    """
    if isinstance(plan, ConvolutionPlan):
        # The graph that all engines share, by the layout that operands are converted to.
        shared: dict[str, Graph | None] = {"": None}
        if policy.interface != "descriptor":
            shared[""] = shared_graph(plan._handle, plan.problem, plan._resources)
        most_engines = _ENGINES_PER_CALL * plan._handle.timing.real_calls
        with closing(
            _convolution_engines(shared[""], plan.problem, policy, compiled=compiled)
        ) as allowed_engines:
            engine_rows = list(islice(allowed_engines, most_engines))
        algorithm_rows = list(_descriptor_calls(plan._handle, plan.problem, policy))
        rows = [*_interleaved(engine_rows, algorithm_rows)]
        rows[_BEFORE_CONVERSIONS:_BEFORE_CONVERSIONS] = _converted_engines(plan, policy, shared)

        def make(row: AlgorithmResult) -> OperationPlan[Any]:
            return plan._with_candidate(row, shared.get(row.layout))

    else:
        lowered = lower(plan.graph, plan._handle, plan._resources)
        rules = graphs.rules_of(lowered, policy)
        rows = [row for row in graphs.engine_candidates(lowered, policy, rules) if row.ok]

        def make(row: AlgorithmResult) -> OperationPlan[Any]:
            return plan._with_engine(row.algorithm, lowered)

    def make_plan(row: AlgorithmResult) -> OperationPlan[Any]:
        other = make(row)
        limit = policy.workspace_limit
        if limit is not None and other.choice.workspace > int(limit):
            other.close()
            raise WorkspaceLimitError(over_limit(other.choice.workspace, int(limit)))
        return other

    rows = [row for row in rows if identity_of(row) != identity_of(choice)]
    return likely_first(rows, plan._handle, plan.problem), make_plan


def likely_first(
    rows: Iterable[AlgorithmResult], handle: Handle, problem: Problem
) -> list[AlgorithmResult]:
    """Return candidates so that those come first that the database has most often.

    Only choices for problems of the same family count.  Otherwise the order stays.
    """
    database = database_of(handle.device)
    wins: Counter[object] = Counter() if database is None else database.wins(problem)
    return sorted(rows, key=lambda row: -wins[contestant_of(row)])


def _interleaved(
    engine_rows: Sequence[AlgorithmResult], algorithm_rows: Sequence[AlgorithmResult]
) -> Iterator[AlgorithmResult]:
    """Yield all rows: after each algorithm of the descriptor call come some engines."""
    engines_left = iter(engine_rows)
    for algorithm in algorithm_rows:
        for _ in range(_ENGINES_PER_ALGORITHM):
            yield from _next_of(engines_left)
        yield algorithm
    yield from engines_left


def _next_of(rows: Iterator[AlgorithmResult]) -> Iterator[AlgorithmResult]:
    for row in rows:
        yield row
        return


def _convolution_engines(
    graph: Graph | None, problem: Problem, policy: TuningPolicy, *, compiled: bool = False
) -> Generator[AlgorithmResult, None, None]:
    """Yield the engines that cuDNN's heuristics name, and that may be used.

    To list all other engines takes longer than most calls, so only a policy with a larger search
    asks for them.
    """
    if graph is None:
        return
    if policy.search != "heuristics":
        yield from (row for row in engines(graph, problem, policy) if row.ok)
        return
    dtype = problem.values[problem.operation.reads[0]].dtype
    with ExitStack() as stack:
        for rank, configuration in enumerate(configurations(graph, HEURISTICS, stack)):
            if configuration.compiled and not compiled:
                continue
            row = replace(row_of(configuration, problem), heuristic=rank)
            if not (why_excluded(configuration, graph, problem) or policy.why_not(row, dtype)):
                yield row


def _converted_engines(
    plan: ConvolutionPlan, policy: TuningPolicy, shared: dict[str, Graph | None]
) -> list[AlgorithmResult]:
    """Return engines that convert operands to another layout, where that may pay.

    `shared` receives the graphs in these layouts.  Conversions seldom pay, except for grouped
    convolutions, and for a filter whose layout is not that of the images.
    """
    problem = plan.problem
    is_likely = problem.conv.groups > 1 or layout_of_filter(problem)
    if policy.interface == "descriptor" or not (policy.layouts or is_likely):
        return []
    rows: list[AlgorithmResult] = []
    for layout in layouts_to_try(plan._handle, problem, policy):
        inner_problem = problem_in_layout(problem, layout)
        graph = shared[layout] = shared_graph(plan._handle, inner_problem, plan._resources)
        with closing(_convolution_engines(graph, inner_problem, policy)) as allowed_engines:
            rows += (
                replace(in_layout(row, layout), heuristic=None)
                for row in islice(allowed_engines, _ENGINES_PER_LAYOUT)
            )
    return rows


def _descriptor_calls(
    handle: Handle, problem: Problem, policy: TuningPolicy
) -> Iterator[AlgorithmResult]:
    """Yield the candidates of the descriptor call that may be used, by its heuristic's rank."""
    if policy.interface == "graph" or not problem.conv.is_symmetric:
        return
    ranking: Sequence[AlgorithmResult] = ()
    with suppress(NotSupportedError):
        ranking = ranked(handle, problem)
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
    yield from sorted(rows, key=lambda row: unranked if row.heuristic is None else row.heuristic)


def rnn_rows(problem: Problem, policy: TuningPolicy) -> list[AlgorithmResult]:
    """Return the candidates of a recurrent network that may be used, the heuristic's choice first.

    PERSIST_DYNAMIC is not among them: to compile it takes up to a minute.  In training an algorithm
    must support the backward passes too.  NoAlgorithmError if the policy excludes all.
    """
    spec, data = problem.spec, problem.data
    rows: list[AlgorithmResult] = []
    reasons: list[str] = []
    for row in all_candidates(problem):
        why = policy.why_not(row, spec.dtype) or why_not_rnn(
            spec, row.algorithm, full=data.is_full, backward=problem.training
        )
        if row.algorithm == RNNAlgo.PERSIST_DYNAMIC:
            why = why or "not compiled in a real call"
        if why:
            reasons.append(f"{row.algorithm} ({row.math_type}): {why}")
        else:
            rows.append(row)
    if not rows:
        raise NoAlgorithmError(f"no algorithm for {problem} is allowed: {'; '.join(reasons)}")
    preferred = identity_of(heuristic(spec, data))
    return sorted(rows, key=lambda row: identity_of(row) != preferred)


def are_aligned(alignments: Iterable[int]) -> bool:
    """Return whether operands have the alignment that all candidates can take."""
    return all(alignment >= ALIGNMENT for alignment in alignments)
