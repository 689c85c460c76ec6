"""The search for a convolution or one of its gradients.

It times and checks every algorithm, math type and layout.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import product
from typing import Any

from cudnnlite import AlgorithmResult, AlgorithmTable, DeviceArray, Handle
from cudnnlite.devices import arrays
from cudnnlite.enums import MathType
from cudnnlite.errors import (
    ArgumentError,
    CudnnError,
    DeviceMemoryError,
    NotSupportedError,
    SymbolNotFoundError,
)
from cudnnlite.graph.operation_graph import OperationGraph
from cudnnlite.operations.convolution.algorithms import ranked, search, wants_tensor_cores
from cudnnlite.operations.convolution.engines import engine_rows
from cudnnlite.operations.convolution.layout_conversion import (
    conversion_bytes,
    conversion_layout,
    layout_of_filter,
    problem_in_layout,
)
from cudnnlite.plans.operands import on_device
from cudnnlite.plans.request import Request
from cudnnlite.sizes import ALLOCATION_ALIGNMENT
from cudnnlite.specs.filter import as_tensor, matches_spec
from cudnnlite.specs.layout import LAYOUTS, layout_of_rank
from cudnnlite.specs.math_types import allowed_math_types
from cudnnlite.types import Engine, Problem
from cudnnlite.workbench.tuning.contest import Contest, own_stream
from cudnnlite.workbench.tuning.convolution_trial import ConvolutionTrial
from cudnnlite.workbench.tuning.policy import TuningPolicy, limit_of
from cudnnlite.workbench.tuning.replayed_rows import with_replay
from cudnnlite.workbench.tuning.synthetic_operands import random_array
from cudnnlite.workbench.tuning.timing_policy import TimingPolicy
from cudnnlite.workbench.tuning.trial import TrialMemory

# An engine is given up, with all its knobs, if its first run takes more than this multiple of the
# best time.  Otherwise one depthwise convolution took minutes to tune.
_SLOW = 30
# The second-level cache is faster than memory: by less than this on an H100.
_CACHE_SPEED = 2.0


def operands_of(
    handle: Handle, problem: Problem, alignments: Mapping[str, int] | None = None
) -> dict[str, DeviceArray]:
    """Return synthetic operands: normal values, with a scale that makes the output's about 1."""
    (output,) = problem.operation.writes
    second = problem.operation.reads[1]
    specs = {name: as_tensor(problem.values[name]) for name in problem.operation.reads}
    specs["out"] = as_tensor(problem.values[output])
    alignments = {**dict.fromkeys(specs, ALLOCATION_ALIGNMENT), **(alignments or {})}
    scales = dict.fromkeys(specs, 1.0) | {second: _scale_of_second(problem, specs["out"].size)}
    return {
        name: random_array(handle, spec, seed, scale=scales[name], alignment=alignments[name])
        for seed, (name, spec) in enumerate(specs.items(), start=1)
    }


def _scale_of_second(problem: Problem, output_size: int) -> float:
    """Return the scale of the second operand.

    It compensates for alpha and for the number of products in a sum.  Neither the output nor the
    second operand may leave the range of float16.
    """
    products = problem.flops // (2 * max(1, output_size))
    inverse_alpha = 1 / abs(problem.alpha or 1.0)
    return float(max(1, products) ** -0.5 * min(max(inverse_alpha, 2.0**-10), 2.0**10))


def check_operands(
    handle: Handle, problem: Problem, operands: Mapping[str, Any]
) -> dict[str, DeviceArray]:
    """Return the user's operands, with scratch memory as the output.

    ArgumentError if they do not fit the problem.
    """
    operation = problem.operation
    (output,) = operation.writes
    has_beta = bool(problem.values.get("beta"))
    allowed = (*operation.reads, "out")
    required_names = set(allowed if has_beta else operation.reads)
    if not required_names <= set(operands) <= set(allowed):
        raise ArgumentError(
            f"operands={sorted(map(str, operands))}; needed: {sorted(required_names)}, "
            f"allowed: {', '.join(allowed)}"
        )
    checked = {name: on_device(handle, array, name) for name, array in operands.items()}
    # A request explains a wrong filter better than the comparison of specs below.
    reads = [checked[name] for name in operation.reads]
    Request(handle, operation, reads, [*problem.options.values()]).specs()
    for name, array in checked.items():
        spec = problem.values[output if name == "out" else name]
        if not matches_spec(array.spec, spec):
            raise ArgumentError(f"{name} is {array.spec}; the problem has {spec}")
    if has_beta:
        return checked | {"out": arrays.copy_of(checked["out"], handle.stream)}
    return checked | {"out": handle.empty(as_tensor(problem.values[output]))}


def search_convolution(
    handle: Handle,
    problem: Problem,
    policy: TuningPolicy,
    operands: Mapping[str, DeviceArray],
    timing: TimingPolicy,
) -> AlgorithmTable:
    """Time and check every candidate on operands; waits for the handle.

    cuDNN's own search runs first; its times are a column of the table.  Then each candidate that
    the policy does not exclude runs once and is checked.  The candidates that pass are timed
    against each other.

    The operand "out" is overwritten.  The rows are in the order of the policy's objective, the best
    first.  Candidates that cannot be used, or are excluded and did not run, come last.
    """
    with own_stream(handle) as stream, ExitStack() as stack:
        operands = {name: arrays.on_stream(array, stream) for name, array in operands.items()}
        trial = ConvolutionTrial(handle, problem, policy, operands, stack, TrialMemory(handle))
        contest = Contest(handle, timing, objective=policy.objective, flush_l2=policy.flush_l2)
        stack.callback(contest.close)
        find_times = _times_of_find(handle, problem, policy, operands)
        rows = [
            replace(row, find_ms=find_times.get((row.algorithm, row.math_type)))
            for row in list_candidates(handle, problem, policy, trial)
        ]
        results = _enter_all(rows, trial, contest)
        results |= _enter_layouts(handle, problem, policy, trial, contest)
        rows = contest.finish(results)
        if policy.objective == "latency":
            rows = with_replay(rows, trial.measure_replay)
        return contest.table(rows, problem)


def _enter_layouts(
    handle: Handle,
    problem: Problem,
    policy: TuningPolicy,
    trial: ConvolutionTrial,
    contest: Contest,
) -> dict[Hashable, AlgorithmResult]:
    """Run the candidates that convert operands to other layouts, and return the results.

    Unless the policy names the layouts, a layout is left out if its conversions alone take longer
    than the best candidate so far.
    """
    results: dict[Hashable, AlgorithmResult] = {}
    for layout in layouts_to_try(handle, problem, policy):
        if policy.layouts is None and not _may_win(handle, problem, layout, contest):
            continue
        inner_problem = problem_in_layout(problem, layout)
        graph = trial.graph_in(layout)
        rows: list[AlgorithmResult] = []
        # Unless asked for, algorithms are not tried where engines are: they run the same kernels.
        tries_algorithms = policy.layouts is not None or graph is None
        if tries_algorithms and _tries_descriptor_calls(problem, policy):
            rows += candidates(problem, policy, ranking_of(handle, inner_problem), layout)
        if graph is not None:
            rows += (
                # The rank is that of the problem in the other layout, and not of this one.
                replace(row, layout=layout, heuristic=None)
                for row in engines(graph, inner_problem, policy)
            )
        results |= _enter_all(rows, trial, contest)
    return results


def _may_win(handle: Handle, problem: Problem, layout: str, contest: Contest) -> bool:
    """Return whether the conversions to a layout take less time than the best candidate so far."""
    figures = handle.device.figures()
    if figures is None:
        return True
    seconds = conversion_bytes(problem, layout) / (_CACHE_SPEED * figures.bandwidth)
    return 1000 * seconds < contest.best_ms_so_far()


def list_candidates(
    handle: Handle, problem: Problem, policy: TuningPolicy, trial: ConvolutionTrial
) -> list[AlgorithmResult]:
    """Return the candidates without a conversion: those of the descriptor call, then engines."""
    graph = trial.graph_in("")
    rows: list[AlgorithmResult] = []
    if _tries_descriptor_calls(problem, policy):
        ranking = ranking_of(handle, problem)
        rows += candidates(problem, policy, ranking, ranks_by_descriptor_call=graph is None)
    if graph is not None:
        rows += engines(graph, problem, policy)
    return rows


def _tries_descriptor_calls(problem: Problem, policy: TuningPolicy) -> bool:
    # The descriptor call cannot pad the two sides of an axis differently.
    return bool(policy.interface != "graph" and problem.conv.is_symmetric)


def ranking_of(handle: Handle, problem: Problem) -> Sequence[AlgorithmResult]:
    """Return the ranking of the descriptor call's heuristic; empty if there is none.

    Without it nothing says which algorithms are deterministic.
    """
    with suppress(NotSupportedError, SymbolNotFoundError):
        return ranked(handle, problem)
    return ()


def _enter_all(
    rows: Sequence[AlgorithmResult], trial: ConvolutionTrial, contest: Contest
) -> dict[Hashable, AlgorithmResult]:
    """Run each candidate, and return the results.

    If a setting of an engine is far too slow, its further settings do not run.
    """
    results: dict[Hashable, AlgorithmResult] = {}
    slow_engines: set[int] = set()
    for row in rows:
        engine = row.algorithm.index if isinstance(row.algorithm, Engine) else None
        if engine in slow_engines and not row.why_not:
            why = f"not tried: engine {engine} took more than {_SLOW} times the best"
            results[row] = replace(row, why_not=why)
            continue
        results[row] = trial.run(row, contest)
        if engine is not None and contest.times_the_best(row) > _SLOW:
            slow_engines.add(engine)
    return results


def candidates(
    problem: Problem,
    policy: TuningPolicy,
    ranking: Sequence[AlgorithmResult],
    layout: str = "",
    *,
    ranks_by_descriptor_call: bool = False,
) -> Iterator[AlgorithmResult]:
    """Yield each algorithm in each math type, with the reason if the policy excludes it.

    Operands are converted to `layout`, if it is not empty.  `ranking` is that of the descriptor
    call's heuristic for the problem in that layout.  `ranks_by_descriptor_call` says whether
    this heuristic chooses for problems that were not tuned, because there are no engines.
    """
    algorithms = problem.operation.algorithms
    assert algorithms is not None
    kinds = [algorithm for algorithm in algorithms.kind if algorithm.name != "COUNT"]
    dtype = problem.values[problem.operation.reads[0]].dtype
    math_types = allowed_math_types(problem.math_type, dtype)
    deterministic = {row.algorithm: row.deterministic for row in ranking}
    ranks: dict[tuple[Any, MathType], int] = {}
    if ranks_by_descriptor_call:
        ranks = {(row.algorithm, row.math_type): rank for rank, row in enumerate(ranking)}
    for math_type, algorithm in product(math_types, kinds):
        row = AlgorithmResult(
            algorithm,
            math_type,
            deterministic=deterministic.get(algorithm),
            layout=layout,
            heuristic=ranks.get((algorithm, math_type)),
        )
        yield replace(row, why_not=policy.why_not(row, dtype))


def layouts_to_try(handle: Handle, problem: Problem, policy: TuningPolicy) -> list[str]:
    """Return the layouts to convert operands to."""
    if any(spec.vector != 1 for spec in problem.specs.values()):
        return []
    names = policy.layouts
    if names is None and handle.device.figures() is None:
        # Without a bandwidth nothing says which conversions cannot win.
        return list(filter(None, [layout_of_filter(problem)]))
    rank = problem.values[problem.operation.reads[0]].rank
    layouts = [
        conversion_layout(problem, layout_of_rank(name, rank))
        for name in (LAYOUTS if names is None else names)
        if layout_of_rank(name, rank)
    ]
    # The text is empty if every operand has the layout already.
    return list(dict.fromkeys(filter(None, layouts)))


def engines(
    graph: OperationGraph, problem: Problem, policy: TuningPolicy
) -> Iterator[AlgorithmResult]:
    """Yield every engine with the knobs that cuDNN suggests.

    If the policy excludes an engine, its row has the reason.
    """
    dtype = problem.values[problem.operation.reads[0]].dtype
    for row in engine_rows(graph, problem, also_unnamed=policy.search != "heuristics"):
        yield replace(row, why_not=row.why_not or policy.why_not(row, dtype))


def _times_of_find(
    handle: Handle, problem: Problem, policy: TuningPolicy, operands: Mapping[str, DeviceArray]
) -> dict[tuple[Any, MathType], float]:
    """Return the times that cudnnFind reports, by algorithm and math type; none if it fails."""
    algorithms = problem.operation.algorithms
    assert algorithms is not None
    if not algorithms.find or not _tries_descriptor_calls(problem, policy):
        return {}
    try:
        inputs = {name: operands[name] for name in problem.operation.reads}
        if wants_tensor_cores(problem):
            problem = problem.replace(conv=problem.conv.replace(math_type=MathType.TENSOR_OP))
        limit = handle.workspace.limit_for(limit_of(policy))
        rows = search(handle, problem, inputs, operands["out"], limit)
    except (CudnnError, DeviceMemoryError, SymbolNotFoundError):
        return {}
    return {
        (row.algorithm, row.math_type): row.time_ms
        for row in rows
        if row.ok and row.time_ms is not None
    }
