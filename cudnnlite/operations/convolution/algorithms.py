"""The choice among cuDNN's algorithms for an operation: its ranking, its search, and what a plan runs with."""

from __future__ import annotations

import ctypes
from collections.abc import Container
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from cudnnlite.arguments import one_of
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import DataType, Determinism, MathType, Status, parse_enum, parse_math_type
from cudnnlite.errors import ArgumentError, CudnnError, NotSupportedError, WorkspaceLimitError
from cudnnlite.graph.engines import Engine
from cudnnlite.operations.convolution.engines import given_engine, preferred_engine, tell_limit
from cudnnlite.plans.native_problem import Described, involve
from cudnnlite.plans.operands import wait_for_streams
from cudnnlite.problems.operation import Algorithms, Operation
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult, named
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.search.contest import refuse_search
from cudnnlite.specs.filter import as_tensor


def parse_algorithm(operation: Operation, algorithm: Any) -> Any:
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


UNALIGNED = "unaligned"  # an interface that nobody asks for: what a call with such operands has


def parse_interface(interface: Any) -> str | None:
    """Return which of cuDNN's interfaces may be used: "descriptor", "graph", or None for either."""
    return one_of(interface, "interface", "descriptor", "graph", None)  # type: ignore[no-any-return]


def _algorithms(operation: Operation) -> Algorithms:
    if operation.algorithms is None:
        raise ArgumentError(f"cuDNN has no choice of algorithms for {operation.name}")
    return operation.algorithms


def check_asked(problem: Problem, algorithm: Any, interface: str | None) -> None:
    """Raise ArgumentError where algorithm, interface and padding contradict each other."""
    engine = isinstance(getattr(algorithm, "algorithm", algorithm), Engine)
    kind = interface if algorithm is None else "graph" if engine else "descriptor"
    if kind == "descriptor" and not problem.conv.is_symmetric:
        given = "interface='descriptor'" if algorithm is None else f"algorithm={algorithm}"
        padding = problem.conv.padding
        raise ArgumentError(
            f"{given} with padding={padding}: only graphs pad the two ends of an axis differently"
        )
    if interface not in (None, UNALIGNED, kind):
        raise ArgumentError(
            f"interface={interface!r} and algorithm={algorithm}, which is of {kind!r}"
        )


def choose(
    described: Described, algorithm: Any, limit: int | None, interface: str | None
) -> AlgorithmResult:
    """Return what a plan runs with: what was asked for, or else the engine that cuDNN's heuristic prefers.

    Where no engine serves it is the algorithm that the descriptor call's heuristic prefers, with the reason as its remark.
    """
    problem = described.problem
    if not problem.conv.is_symmetric:  # which graphs alone do
        interface = "graph"
    if algorithm is not None or interface == "descriptor":
        return _choose(described, algorithm, limit)
    if interface == UNALIGNED:
        with suppress(NotSupportedError):
            choice = _choose(described, None, limit)
            return replace(choice, remark="no engine serves: an operand is not aligned to 16 bytes")
        # no algorithm of the descriptor call does either: an engine serves copies of the operands
    found = preferred_engine(described, limit)
    if isinstance(found, AlgorithmResult):
        return found
    if interface == "graph" and found.larger:
        raise WorkspaceLimitError(f"no engine serves: {found.why}")
    if interface == "graph":
        raise NotSupportedError(
            "cudnnBackendExecute", Status.NOT_SUPPORTED, f"no engine serves: {found.why}"
        )
    try:
        choice = _choose(described, None, limit)
    except NotSupportedError as error:
        error.notes += (f"no engine serves: {found.why}",)
        raise
    tell_limit(found.larger, choice.algorithm, problem)
    return replace(choice, remark=f"no engine serves: {found.why}")


def _choose(described: Described, algorithm: Any, limit: int | None) -> AlgorithmResult:
    """Return what was asked for, or the heuristic's first choice within the limit."""
    math_type = described.problem.math_type
    if algorithm is None:
        choice = _heuristic_choice(described, limit)
    elif isinstance(algorithm, AlgorithmResult):
        choice = algorithm
    else:
        choice = AlgorithmResult(algorithm, math_type)
    if math_type == MathType.FMA != choice.math_type:
        raise ArgumentError(
            f"algorithm was found with math type {choice.math_type}; conv asks for FMA, true float32, which that would undo"
        )
    return choice


def _heuristic_choice(described: Described, limit: int | None) -> AlgorithmResult:
    problem = described.problem
    if wants_tensor_cores(problem):
        described.descriptors["conv"].set_math_type(MathType.TENSOR_OP)
    algorithms = _algorithms(problem.operation)
    reasons = {algorithm: algorithms.fits(problem, algorithm) for algorithm in algorithms.kind}
    if all(reasons.values()):
        why = "; ".join(dict.fromkeys(reasons.values()))
        raise NotSupportedError(problem.operation.function, Status.NOT_SUPPORTED, why)
    table = rank(described, [algorithm for algorithm, why in reasons.items() if not why])
    if algorithms.apart is not None and not any(row.ok and _is_within(row, limit) for row in table):
        table = rank(
            described
        )  # an algorithm that several calls are needed with is better than none
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


def workspace_of(described: Described, algorithm: Any) -> int:
    """Return the bytes of workspace that the algorithm needs with the descriptor's present math type."""
    size = ctypes.c_size_t()
    described.ask(
        _algorithms(described.problem.operation).workspace, algo=algorithm, sizeInBytes=size
    )
    return size.value


def prepare(
    described: Described, choice: AlgorithmResult, stack: ExitStack
) -> tuple[AlgorithmResult, Any, int]:
    """Return a choice as it is here, its call, addresses missing, and the bytes of workspace that it needs."""
    if isinstance(choice.algorithm, Engine):
        row, plan = given_engine(described, choice.algorithm, stack)
        # of an engine that somebody named nothing was known but that
        choice = replace(choice, math_type=row.math_type, deterministic=row.deterministic)
        completed = _algorithms(described.problem.operation).completed(described, plan)
        if completed is not plan:
            choice = replace(
                choice, remark="; ".join(filter(None, (choice.remark, completed.remark)))
            )
        return choice, completed, plan.workspace
    # a result is applied as one: its math type first, then the workspace is asked again
    described.descriptors["conv"].set_math_type(choice.math_type)
    size, algorithms = (
        workspace_of(described, choice.algorithm),
        _algorithms(described.problem.operation),
    )
    if why := algorithms.fits(described.problem, choice.algorithm):
        if algorithms.apart is None:
            raise NotSupportedError(described.problem.operation.function, Status.NOT_SUPPORTED, why)
        apart = algorithms.apart(described, choice.algorithm, size)
        remark = "; ".join(filter(None, (choice.remark, f"{apart.remark}: {why}")))
        return replace(choice, remark=remark), apart, size
    return choice, described.prepare(algo=choice.algorithm, workSpaceSizeInBytes=size), size


def rank(described: Described, only: Container[Any] | None = None) -> AlgorithmTable:
    """Ask cuDNN's heuristic, with the descriptor's present math type; nothing is run.  Of `only` some, if that is given."""
    return _filled(
        described,
        f"none, ranked by cuDNN's heuristic on {described.handle.device}",
        "heuristic",
        only=only,
    )


def _filled(
    described: Described,
    timing: str,
    function: str,
    searched_with: int | None = None,
    *,
    only: Container[Any] | None = None,
    **given: Any,
) -> AlgorithmTable:
    """Call a function that fills result structures, and turn them into a table."""
    algorithms, device = _algorithms(described.problem.operation), described.handle.device
    room, count = ctypes.c_int(), ctypes.c_int()
    described.ask(algorithms.count, count=room)
    results = (algorithms.result * room.value)()
    told = {"requestedAlgoCount": room.value, "returnedAlgoCount": count, "perfResults": results}
    described.ask(getattr(algorithms, function), **told, **given)
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
        title=str(described.problem),
        timing=timing,
        device_memory=memory,
        searched_with=searched_with,
    )


def ranked(handle: Handle, problem: Problem) -> AlgorithmTable:
    """Return the ranking of cuDNN's heuristic for a problem."""
    with ExitStack() as stack:
        try:
            return rank(Described(handle, problem, stack))
        except CudnnError as error:
            involve(error, problem)
            raise


def found(
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
            described = Described(handle, problem, stack)
            y = arrays.empty(handle.device, stream, as_tensor(spec)) if out is None else out
            size = _search_workspace(described, limit)
            scratch = handle.device.allocate(size, stream)
            stack.callback(scratch.close, stream)
            for other in wait_for_streams(stream, *operands.values(), y):
                stack.callback(other.wait, stream)
            addresses: dict[str, Any] = {name: array.ptr for name, array in operands.items()} | {
                written: y.ptr
            }
            return _filled(
                described,
                f"cudnnFind on {handle.device}",
                "find",
                size,
                workSpace=int(scratch.handle),
                workSpaceSizeInBytes=size,
                **addresses,
            )
        except CudnnError as error:
            involve(error, problem)
            raise


def _search_workspace(described: Described, limit: int | None) -> int:
    """Return the workspace that lets every algorithm run which fits the limit and, with a margin, the free memory."""
    free = described.handle.device.memory_info()[0] // 2
    most = free if limit is None else min(limit, free)
    sizes = [0]
    for algorithm in _algorithms(described.problem.operation).kind:
        if algorithm.name != "COUNT":
            try:
                sizes.append(workspace_of(described, algorithm))
            except NotSupportedError:  # the search will say so too
                continue
    return max(size for size in sizes if size <= most)
