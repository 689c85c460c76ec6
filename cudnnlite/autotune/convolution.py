"""The search for a convolution or a gradient of it: every algorithm, math type and layout, timed on the device and checked."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from cudnnlite.autotune.convolution_reference import ConvolutionReference
from cudnnlite.autotune.knobs import climb
from cudnnlite.autotune.policy import NO_KNOBS, TuningPolicy
from cudnnlite.autotune.synthetic_operands import random_array
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import DataType, MathType
from cudnnlite.errors import ArgumentError, CudnnError, DeviceMemoryError, NotSupportedError
from cudnnlite.graph.engines import Engine
from cudnnlite.graph.operation_graph import Graph
from cudnnlite.operations.convolution.algorithms import ranked, search, wants_tensor_cores
from cudnnlite.operations.convolution.engines import engine_rows, is_aligned, shared_graph
from cudnnlite.operations.convolution.layout_conversion import conversion_layout
from cudnnlite.operations.convolution.plan import ConvolutionPlan
from cudnnlite.plans.operands import on_device
from cudnnlite.plans.replay import Replay
from cudnnlite.plans.request import Request
from cudnnlite.problems.fused_convolution import BIAS, FUSED, FUSED_WITH_Z
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult, ConvolutionResult
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.search.accuracy import remark_on, why_inexact, why_wrong
from cudnnlite.search.contest import Contest, failed, joined, own_stream
from cudnnlite.search.replayed_rows import with_replay
from cudnnlite.sizes import ALLOCATION_ALIGNMENT, over_limit
from cudnnlite.specs.filter import as_tensor, is_as
from cudnnlite.specs.layout import layout_of_rank
from cudnnlite.specs.math_types import allowed_math_types

_SLOW = 30  # times the best: one depthwise convolution took minutes to tune by engines that are no match for it
_POISON = 0xFF  # NaN in every floating-point format


def operands_of(
    handle: Handle, problem: Problem, alignments: Mapping[str, int] | None = None
) -> dict[str, DeviceArray]:
    """Make up operands: normal values, scaled so that the output's are of the order of 1."""
    (written,) = problem.operation.writes
    specs = {name: as_tensor(problem.values[name]) for name in problem.operation.reads}
    specs["out"] = as_tensor(problem.values[written])
    aligned = {**dict.fromkeys(specs, ALLOCATION_ALIGNMENT), **(alignments or {})}
    # of how many products a value is the sum; alpha must not bring them out of float16's range, nor
    # the second operand
    terms = problem.flops // (2 * max(1, specs["out"].size))
    scale = max(1, terms) ** -0.5 * min(max(1 / abs(problem.alpha or 1.0), 2.0**-10), 2.0**10)
    second = problem.operation.reads[1]
    return {
        name: random_array(
            handle, spec, seed, scale=scale if name == second else 1.0, alignment=aligned[name]
        )
        for seed, (name, spec) in enumerate(specs.items(), start=1)
    }


def check_operands(
    handle: Handle, problem: Problem, operands: Mapping[str, Any]
) -> dict[str, DeviceArray]:
    """Return the user's operands, with scratch memory as the output; ArgumentError if they are not the problem's."""
    operation = problem.operation
    (written,) = operation.writes
    wanted = {*operation.reads, "out"} if problem.values.get("beta") else {*operation.reads}
    if not wanted <= set(operands) <= {*operation.reads, "out"}:
        allowed = ", ".join((*operation.reads, "out"))
        raise ArgumentError(
            f"operands={sorted(map(str, operands))}; needed: {sorted(wanted)}, allowed: {allowed}"
        )
    checked = {name: on_device(handle, array, name) for name, array in operands.items()}
    # The message of a filter that is none at all is better than that of another spec.
    reads = [checked[name] for name in operation.reads]
    Request(handle, operation, reads, [*problem.options.values()]).specs()
    for name, array in checked.items():
        spec = problem.values[written if name == "out" else name]
        if not is_as(array.spec, spec):
            raise ArgumentError(f"{name} is {array.spec}; the problem has {spec}")
    if "out" in checked and problem.values.get("beta"):
        return checked | {"out": arrays.copy_of(checked["out"], handle.stream)}
    return checked | {"out": handle.empty(as_tensor(problem.values[written]))}


def search_convolution(
    handle: Handle,
    problem: Problem,
    policy: TuningPolicy,
    operands: Mapping[str, DeviceArray],
    progress: bool = False,
) -> AlgorithmTable:
    """Time and check every candidate on operands; the handle is waited for.

    cuDNN's own search runs first, whose times are a column of the table.  Then each candidate that
    the policy does not exclude runs once and is checked; those that pass are timed against each
    other, with what a search over knobs adds to them.

    Of the operands "out" is overwritten: bring a copy.  `progress`: whether a bar on stderr shows
    how far a search over knobs is.  Returns the best first by the policy's objective; what cannot
    be used, or is excluded and not run, comes last.
    """
    limit = policy.workspace_limit
    assert limit is None or isinstance(limit, int)
    latency = policy.objective == "latency"
    with own_stream(handle) as stream, ExitStack() as stack:
        arrays_here = {name: arrays.on_stream(array, stream) for name, array in operands.items()}
        graph = None  # one for all engines: to make it anew took longer than to finalise a plan
        if policy.interface != "descriptor" and is_aligned(*arrays_here.values()):
            graph = shared_graph(handle, problem, stack)
        trial = _Trial(handle, problem, arrays_here, graph, stack)
        rows: list[AlgorithmResult] = []
        if policy.interface != "graph" and problem.conv.is_symmetric:  # graphs alone pad otherwise
            rows += _descriptor_calls(
                handle, problem, policy, arrays_here, ranks_by_descriptor_call=graph is None
            )
        if graph is not None:
            rows += engines(graph, problem, policy)
        contest = Contest(handle, latency=latency, flush_l2=policy.flush_l2)
        stack.callback(contest.close)
        entered = _enter_all(rows, trial, policy, contest)
        knobs = NO_KNOBS if policy.search == "knobs" else ""
        seeds = [
            row.algorithm
            for row in entered.values()
            if row.ok and isinstance(row.algorithm, Engine)
        ]
        if policy.search == "knobs" and seeds and graph is not None:
            named = {name: arrays_here[name] for name in problem.operation.reads}
            named[problem.operation.writes[0]] = arrays_here["out"]
            climbed = climb(graph, problem, named, seeds, policy, progress)
            knobs = f"; {climbed}"
            for row in climbed.rows:
                entered[row] = trial.run(row, row, policy, limit, contest)
        ordered = contest.finish(entered)
        if latency:
            ordered = with_replay(ordered, trial.replayed)
    timing = f"{contest.timing}{knobs}"
    return AlgorithmTable(ordered, title=str(problem), timing=timing, device_memory=contest.memory)


def _descriptor_calls(
    handle: Handle,
    problem: Problem,
    policy: TuningPolicy,
    operands: Mapping[str, DeviceArray],
    *,
    ranks_by_descriptor_call: bool,
) -> Iterator[AlgorithmResult]:
    """Yield the candidates of the descriptor call, with the times that cudnnFind reports.

    `ranks_by_descriptor_call` is that of `candidates`.
    """
    algorithms, limit = problem.operation.algorithms, policy.workspace_limit
    assert algorithms is not None
    assert limit is None or isinstance(limit, int)
    reported = _reported(handle, problem, operands, limit) if algorithms.find else {}
    ranking: Sequence[AlgorithmResult] = ()
    # Where there is no heuristic nothing says what is deterministic.
    with suppress(NotSupportedError):
        ranking = ranked(handle, problem)
    for row in candidates(
        problem, policy, ranking, ranks_by_descriptor_call=ranks_by_descriptor_call
    ):
        if row.layout:
            yield row
        else:
            yield replace(row, find_ms=reported.get((row.algorithm, row.math_type)))


def _enter_all(
    rows: Sequence[AlgorithmResult], trial: _Trial, policy: TuningPolicy, contest: Contest
) -> dict[Hashable, AlgorithmResult]:
    """Run each candidate, and return what came of it by the candidate; but no settings of engines that are far too slow."""
    limit = policy.workspace_limit
    assert limit is None or isinstance(limit, int)
    entered: dict[Hashable, AlgorithmResult] = {}
    slow: set[int] = set()  # engines that no knob can save
    for row in rows:
        engine = row.algorithm.index if isinstance(row.algorithm, Engine) else None
        if engine in slow and not row.why_not:
            why = f"not tried: engine {engine} took more than {_SLOW} times the best"
            entered[row] = replace(row, why_not=why)
            continue
        entered[row] = trial.run(row, row, policy, limit, contest)
        if engine is not None and contest.times_the_best(row) > _SLOW:
            slow.add(engine)
    return entered


def candidates(
    problem: Problem,
    policy: TuningPolicy,
    ranking: Sequence[AlgorithmResult],
    *,
    ranks_by_descriptor_call: bool = False,
) -> Iterator[ConvolutionResult]:
    """Yield algorithm x math type x layout, with a reason where the policy excludes it before it is tried.

    `ranking` is that of the descriptor call's heuristic; `ranks_by_descriptor_call`: whether it
    chooses where nothing was tuned, because there are no engines.
    """
    deterministic = {row.algorithm: row.deterministic for row in ranking}
    places = {
        (row.algorithm, row.math_type, ""): place
        for place, row in enumerate(ranking if ranks_by_descriptor_call else ())
    }
    layouts, specs, first = [""], problem.specs.values(), problem.values[problem.operation.reads[0]]
    algorithms = problem.operation.algorithms
    assert algorithms is not None
    for layout in (
        () if problem.operation in (FUSED, FUSED_WITH_Z, BIAS) else policy.layouts
    ):  # a convolution alone is converted
        name = layout_of_rank(layout, first.rank)
        if name and all(spec.vector == 1 for spec in specs):
            layouts.append(
                conversion_layout(problem, name)
            )  # empty again where every operand lies so
    kinds = [algorithm for algorithm in algorithms.kind if algorithm.name != "COUNT"]
    math_types = allowed_math_types(problem.math_type, first.dtype)
    for layout, math_type, algorithm in product(dict.fromkeys(layouts), math_types, kinds):
        row = ConvolutionResult(
            algorithm, math_type, deterministic=deterministic.get(algorithm), layout=layout
        )
        row = replace(row, heuristic=places.get((algorithm, math_type, layout)))
        yield replace(row, why_not=policy.why_not(row, first.dtype))


def engines(graph: Graph, problem: Problem, policy: TuningPolicy) -> Iterator[AlgorithmResult]:
    """Yield every engine with the knobs that cuDNN says, with a reason where the policy excludes it before it is tried."""
    dtype = problem.values[problem.operation.reads[0]].dtype
    for row in engine_rows(graph, problem, compiled=policy.search != "heuristics"):
        yield replace(row, why_not=row.why_not or policy.why_not(row, dtype))


class _Trial:
    """Runs each candidate once, over poisoned memory, and measures what it computes."""

    def __init__(
        self,
        handle: Handle,
        problem: Problem,
        operands: Mapping[str, DeviceArray],
        graph: Graph | None,
        stack: ExitStack,
    ) -> None:
        self._handle, self._problem, self._graph, self._stack = handle, problem, graph, stack
        self._read = {name: operands[name] for name in problem.operation.reads}
        self._y = operands["out"]
        self._before = (
            arrays.copy_of(self._y, handle.stream) if problem.values.get("beta") else None
        )
        self._reference: ConvolutionReference | None = None
        if ConvolutionReference.can_measure(problem):
            self._reference = ConvolutionReference(problem, self._read, self._before)

    def run(
        self,
        key: Hashable,
        row: AlgorithmResult,
        policy: TuningPolicy,
        limit: int | None,
        contest: Contest,
    ) -> AlgorithmResult:
        """Return the row with what came of it; a candidate that may be chosen is entered into the contest."""
        if row.why_not:
            return row
        try:
            plan = self._stack.enter_context(self._plan(row))
            row = replace(row, workspace=plan.workspace)
            if limit is not None and plan.workspace > limit:
                return replace(row, why_not=over_limit(plan.workspace, limit))
            row = self._check(plan, row, policy)
            if not row.why_not:
                call = partial(plan, *self._read.values(), out=self._y)
                contest.enter(key, call, self._fingerprint_of(row))
        except (CudnnError, DeviceMemoryError) as error:
            return failed(row, error, contest.memory)
        except ArgumentError as refused:
            if not row.layout:
                raise
            return replace(
                row, why_not=str(refused)
            )  # it cannot be converted: an integer output with beta
        return row

    def _fingerprint_of(self, row: AlgorithmResult) -> Hashable:
        """Return what two math types of an algorithm have in common where they run the same kernel; None if nothing tells.

        In float32 the order of a sum shows in its last bits, so in the errors of many values, if
        they are rounded at all.
        """
        exact = self._reference is None or not self._reference.is_rounded
        if exact or self._y.spec.dtype not in (DataType.FLOAT, DataType.DOUBLE):
            return None
        return row.algorithm, row.layout, row.workspace, row.error, row.max_error

    def replayed(self, row: AlgorithmResult) -> Replay | None:
        """Return what a plan that launches graphs tells after two calls: the first is recorded, then it has another result."""
        with self._plan(row, replay=True) as plan:
            for out in (
                self._y,
                arrays.empty(self._handle.device, self._handle.stream, self._y.spec),
            ):
                plan(*self._read.values(), out=out)
            return plan.replay

    def _plan(self, row: AlgorithmResult, *, replay: bool = False) -> ConvolutionPlan:
        graph = self._graph if isinstance(row.algorithm, Engine) else None
        plan = ConvolutionPlan(self._handle, self._problem, row, replay=replay, graph=graph)
        return plan.prepare()

    def _check(
        self, plan: ConvolutionPlan, row: AlgorithmResult, policy: TuningPolicy
    ) -> AlgorithmResult:
        """Run a plan over poisoned memory, and return the row with its errors."""
        device, stream, y = self._handle.device, self._handle.stream, self._y
        if self._before is None:
            device.fill(y.ptr, y.nbytes, _POISON, stream)
        else:
            device.copy_within(y.ptr, self._before.ptr, y.nbytes, stream)
        plan(*self._read.values(), out=y)
        if self._reference is None:
            inexact = "" if policy.max_error is None else "its error was not measured"
            return replace(row, why_not=inexact)
        error, max_error = self._reference.errors_of(y)
        dtype, math_type = y.spec.dtype, row.math_type
        wrong = why_wrong(error, dtype, math_type) or why_inexact(error, policy.max_error)
        remark = joined(row.remark, remark_on(error, dtype, math_type))
        return replace(row, error=error, max_error=max_error, why_not=wrong, remark=remark)


def _reported(
    handle: Handle, problem: Problem, operands: Mapping[str, DeviceArray], limit: int | None
) -> dict[tuple[Any, MathType], float]:
    """Return the times that cudnnFind reports, by algorithm and math type; none where it fails."""
    try:
        read = {name: operands[name] for name in problem.operation.reads}
        if wants_tensor_cores(problem):
            problem = problem.replace(conv=problem.conv.replace(math_type=MathType.TENSOR_OP))
        rows = search(handle, problem, read, operands["out"], handle.workspace.limit_for(limit))
    except (CudnnError, DeviceMemoryError):
        return {}
    return {
        (row.algorithm, row.math_type): row.time_ms
        for row in rows
        if row.ok and row.time_ms is not None
    }
