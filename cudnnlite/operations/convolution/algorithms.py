"""The choice among cuDNN's algorithms for an operation: its ranking, its search, and what a plan runs with."""

from __future__ import annotations

import ctypes
from collections.abc import Container
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, NamedTuple

from cudnnlite.arguments import one_of
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import DataType, Determinism, MathType, Status, parse_enum, parse_math_type
from cudnnlite.errors import ArgumentError, CudnnError, NotSupportedError, WorkspaceLimitError
from cudnnlite.graph.engines import Engine
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.operations.convolution.engines import (
    PreferredEngine,
    given_engine,
    preferred_engine,
    tell_limit,
)
from cudnnlite.operations.convolution.native import (
    ConvolutionThenBias,
    NativeConvolution,
    convolution_then_bias,
)
from cudnnlite.plans.native_problem import add_context
from cudnnlite.plans.operands import wait_for_streams
from cudnnlite.problems.fused_convolution import BIAS, adds_bias_apart
from cudnnlite.problems.operation import Algorithms, Operation
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult, named
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.search.contest import refuse_search
from cudnnlite.specs.filter import as_tensor


def parse_algorithm(operation: Operation, algorithm: object) -> Any:
    """Return what the user asked for: a result of a search, a member of the operation's enum, or None."""
    if algorithm is None:
        return None
    if isinstance(algorithm, AlgorithmResult):
        if not algorithm.ok:
            raise ArgumentError(
                f"algorithm={algorithm} cannot be used: {algorithm.why_not or algorithm.status}"
            )
        if not isinstance(algorithm.algorithm, Engine):
            parse_enum(_algorithms(operation).kind, algorithm.algorithm, "algorithm")
        parse_math_type(algorithm.math_type, "algorithm.math_type")
        return algorithm
    if isinstance(algorithm, AlgorithmTable):
        raise ArgumentError(
            "algorithm is a whole table; pass one of its rows, such as found.best()"
        )
    return (
        algorithm
        if isinstance(algorithm, Engine)
        else parse_enum(_algorithms(operation).kind, algorithm, "algorithm")
    )


def parse_interface(interface: object) -> str | None:
    """Return which of cuDNN's interfaces may be used: "descriptor", "graph", or None for either."""
    return one_of(interface, "interface", "descriptor", "graph", None)  # type: ignore[no-any-return]


def _algorithms(operation: Operation) -> Algorithms:
    if operation.algorithms is None:
        raise ArgumentError(f"cuDNN has no choice of algorithms for {operation.name}")
    return operation.algorithms


def check_asked(problem: Problem, algorithm: object, interface: str | None) -> None:
    """Raise ArgumentError where algorithm, interface and padding contradict each other."""
    engine = isinstance(getattr(algorithm, "algorithm", algorithm), Engine)
    kind = interface if algorithm is None else "graph" if engine else "descriptor"
    if kind == "descriptor" and not problem.conv.is_symmetric:
        given = "interface='descriptor'" if algorithm is None else f"algorithm={algorithm}"
        padding = problem.conv.padding
        raise ArgumentError(
            f"{given} with padding={padding}: only graphs pad the two ends of an axis differently"
        )
    if interface not in (None, kind):
        raise ArgumentError(
            f"interface={interface!r} and algorithm={algorithm}, which is of {kind!r}"
        )


class PreparedChoice(NamedTuple):
    """What a plan runs: the choice as it is here, its call, addresses missing, and its workspace in bytes."""

    choice: AlgorithmResult
    call: Any
    workspace: int


def choose(
    native: NativeConvolution,
    algorithm: object,
    limit: int | None,
    interface: str | None,
    stack: ExitStack,
    *,
    is_aligned: bool = True,
) -> AlgorithmResult | PreparedChoice:
    """Return what a plan runs with: what was asked for, or else the engine that cuDNN's heuristic prefers.

    That engine had to be prepared to know that it runs, and is returned so; `stack` owns it.  Where
    no engine serves it is the algorithm that the descriptor call's heuristic prefers, with the
    reason as its remark.  Without `is_aligned` the descriptor call comes first, because engines
    want operands that are aligned; if no algorithm of it serves either, an engine serves copies.
    """
    problem = native.problem
    needs_graph = interface == "graph" or not problem.conv.is_symmetric
    if algorithm is not None or (interface == "descriptor" and not needs_graph):
        return _choose(native, algorithm, limit)
    if not is_aligned and not needs_graph:
        with suppress(NotSupportedError):
            choice = _choose(native, None, limit)
            return replace(choice, remark="no engine serves: an operand is not aligned to 16 bytes")
    preferred = preferred_engine(native, limit, stack)
    if isinstance(preferred, PreferredEngine):
        return _completed(native, preferred.row, preferred.plan)
    if needs_graph and preferred.larger:
        raise WorkspaceLimitError(f"no engine serves: {preferred.why}")
    if needs_graph:
        raise NotSupportedError(
            "cudnnBackendExecute", Status.NOT_SUPPORTED, f"no engine serves: {preferred.why}"
        )
    try:
        choice = _choose(native, None, limit)
    except NotSupportedError as error:
        error.notes += (f"no engine serves: {preferred.why}",)
        raise
    tell_limit(preferred.larger, choice.algorithm, problem)
    return replace(choice, remark=f"no engine serves: {preferred.why}")


def _choose(native: NativeConvolution, algorithm: object, limit: int | None) -> AlgorithmResult:
    """Return what was asked for, or the heuristic's first choice within the limit."""
    math_type = native.problem.math_type
    if algorithm is None:
        choice = _heuristic_choice(native, limit)
    elif isinstance(algorithm, AlgorithmResult):
        choice = algorithm
    else:
        choice = AlgorithmResult(algorithm, math_type)
    if math_type == MathType.FMA != choice.math_type:
        raise ArgumentError(
            f"algorithm was found with math type {choice.math_type}; conv asks for FMA, true float32, which that would undo"
        )
    return choice


def _heuristic_choice(native: NativeConvolution, limit: int | None) -> AlgorithmResult:
    problem = native.problem
    if wants_tensor_cores(problem):
        native.descriptors["conv"].set_math_type(MathType.TENSOR_OP)
    algorithms = _algorithms(problem.operation)
    reasons = {
        algorithm: algorithms.why_unsupported(problem, algorithm) for algorithm in algorithms.kind
    }
    if all(reasons.values()):
        why = "; ".join(dict.fromkeys(filter(None, reasons.values())))
        raise NotSupportedError(problem.operation.function, Status.NOT_SUPPORTED, why)
    table = rank(native, [algorithm for algorithm, why in reasons.items() if not why])
    if problem.operation is BIAS and not any(row.ok and _is_within(row, limit) for row in table):
        table = rank(native)  # an algorithm that several calls are needed with is better than none
    if not any(row.ok for row in table):
        raise NotSupportedError(
            algorithms.heuristic, Status.NOT_SUPPORTED, "every algorithm refuses this combination"
        )
    choice = table.best(limit)
    tell_limit([(row, why) for row, why in choice.passed_over if row.ok], choice.algorithm, problem)
    return choice


def _is_within(row: AlgorithmResult, limit: int | None) -> bool:
    return limit is None or row.workspace <= limit


def wants_tensor_cores(problem: Problem) -> bool:
    """Whether DEFAULT math is to be TENSOR_OP: without, cuDNN takes ten times the time for 16 bits on an H200."""
    narrow = problem.values[problem.operation.reads[0]].dtype in (DataType.HALF, DataType.BFLOAT16)
    return narrow and problem.math_type == MathType.DEFAULT


def workspace_of(native: NativeConvolution, algorithm: object) -> int:
    """Return the bytes of workspace that the algorithm needs with the descriptor's present math type."""
    size = ctypes.c_size_t()
    native.ask(_algorithms(native.problem.operation).workspace, algo=algorithm, sizeInBytes=size)
    return size.value


def prepare(native: NativeConvolution, choice: AlgorithmResult, stack: ExitStack) -> PreparedChoice:
    """Prepare the call of a choice; `stack` owns what is made."""
    problem = native.problem
    if isinstance(choice.algorithm, Engine):
        row, plan = given_engine(native, choice.algorithm, stack)
        # Of an engine that somebody named, the math type and determinism are known only now.
        choice = replace(choice, math_type=row.math_type, deterministic=row.deterministic)
        return _completed(native, choice, plan)
    # A result is applied as one: its math type first, then the workspace is asked for again.
    native.descriptors["conv"].set_math_type(choice.math_type)
    size = workspace_of(native, choice.algorithm)
    why = _algorithms(problem.operation).why_unsupported(problem, choice.algorithm)
    if why is None:
        call = native.prepare(algo=choice.algorithm, workSpaceSizeInBytes=size)
        return PreparedChoice(choice, call, size)
    if problem.operation is not BIAS:
        raise NotSupportedError(problem.operation.function, Status.NOT_SUPPORTED, why)
    pair = convolution_then_bias(native, choice.algorithm, size)
    return PreparedChoice(_with_remark(choice, f"{pair.remark}: {why}"), pair, size)


def _completed(
    native: NativeConvolution, choice: AlgorithmResult, plan: ExecutionPlan
) -> PreparedChoice:
    """Return an engine's plan, with the addition of the bias behind it where the engine leaves that out."""
    if not adds_bias_apart(native.problem):
        return PreparedChoice(choice, plan, plan.workspace)
    pair = ConvolutionThenBias(native, plan)
    return PreparedChoice(_with_remark(choice, pair.remark), pair, plan.workspace)


def _with_remark(choice: AlgorithmResult, remark: str) -> AlgorithmResult:
    """Return a choice with a remark behind the one that it has."""
    return replace(choice, remark="; ".join(filter(None, (choice.remark, remark))))


def rank(native: NativeConvolution, only: Container[Any] | None = None) -> AlgorithmTable:
    """Ask cuDNN's heuristic, with the descriptor's present math type; nothing is run.  Of `only` some, if that is given."""
    return _filled(
        native,
        f"none, ranked by cuDNN's heuristic on {native.handle.device}",
        "heuristic",
        only=only,
    )


def _filled(
    native: NativeConvolution,
    timing: str,
    function: str,
    searched_with: int | None = None,
    *,
    only: Container[Any] | None = None,
    **given: object,
) -> AlgorithmTable:
    """Call a function that fills result structures, and turn them into a table."""
    algorithms, device = _algorithms(native.problem.operation), native.handle.device
    room, count = ctypes.c_int(), ctypes.c_int()
    native.ask(algorithms.count, count=room)
    results = (algorithms.result * room.value)()
    told = {"requestedAlgoCount": room.value, "returnedAlgoCount": count, "perfResults": results}
    native.ask(getattr(algorithms, function), **told, **given)
    rows = [
        AlgorithmResult(
            algorithms.kind(result.algo),
            MathType(result.mathType),
            Status(result.status),
            result.time if result.time >= 0 else None,
            result.memory,
            result.determinism == Determinism.DETERMINISTIC,
        )
        for result in results[: count.value]
        if only is None or result.algo in only
    ]
    firsts: dict[float, AlgorithmResult] = {}
    for place, row in enumerate(
        () if device.has_real_timing else rows
    ):  # which times each kernel once
        if row.time_ms is not None and (first := firsts.setdefault(row.time_ms, row)) is not row:
            rows[place] = replace(row, remark=f"here the same kernel as {named(first)}")
    memory = device.memory_info()[1]
    return AlgorithmTable(
        rows,
        title=str(native.problem),
        timing=timing,
        device_memory=memory,
        searched_with=searched_with,
    )


def ranked(handle: Handle, problem: Problem) -> AlgorithmTable:
    """Return the ranking of cuDNN's heuristic for a problem."""
    with ExitStack() as stack:
        try:
            return rank(NativeConvolution(handle, problem, stack, for_descriptor_call=True))
        except CudnnError as error:
            add_context(error, problem)
            raise


def search(
    handle: Handle,
    problem: Problem,
    operands: dict[str, DeviceArray],
    out: DeviceArray | None,
    limit: int | None,
) -> AlgorithmTable:
    """Let cuDNN run and time every algorithm on these arrays; `out` is overwritten."""
    (written,), stream = problem.operation.writes, handle.stream
    refuse_search(handle)
    spec = problem.values[written]
    if spec.size == 0:
        first = problem.operation.reads[0]
        raise ArgumentError(
            f"{first}={problem.values[first]} is an empty batch; there is nothing to time"
        )
    with ExitStack() as stack:
        try:
            native = NativeConvolution(handle, problem, stack, for_descriptor_call=True)
            y = arrays.empty(handle.device, stream, as_tensor(spec)) if out is None else out
            size = _search_workspace(native, limit)
            scratch = handle.device.allocate(size, stream)
            stack.callback(scratch.close, stream)
            for other in wait_for_streams(stream, *operands.values(), y):
                stack.callback(other.wait, stream)
            addresses: dict[str, Any] = {name: array.ptr for name, array in operands.items()} | {
                written: y.ptr
            }
            return _filled(
                native,
                f"cudnnFind on {handle.device}",
                "find",
                size,
                workSpace=int(scratch.handle),
                workSpaceSizeInBytes=size,
                **addresses,
            )
        except CudnnError as error:
            add_context(error, problem)
            raise


def _search_workspace(native: NativeConvolution, limit: int | None) -> int:
    """Return the workspace that lets every algorithm run which fits the limit and, with a margin, the free memory."""
    free = native.handle.device.memory_info()[0] // 2
    most = free if limit is None else min(limit, free)
    sizes = [0]
    for algorithm in _algorithms(native.problem.operation).kind:
        if algorithm.name != "COUNT":
            try:
                sizes.append(workspace_of(native, algorithm))
            except NotSupportedError:  # the search will say so too
                continue
    return max(size for size in sizes if size <= most)
