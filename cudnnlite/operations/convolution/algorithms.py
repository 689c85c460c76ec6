"""The choice of a convolution's algorithm: cuDNN's ranking, its search, and a plan's choice."""

from __future__ import annotations

import ctypes
from collections.abc import Container
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, NamedTuple

from cudnnlite.arguments import one_of, shown
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.devices.peaks import peaks_of
from cudnnlite.enums import DataType, Determinism, MathType, Status, parse_enum, parse_math_type
from cudnnlite.errors import (
    ArgumentError,
    CudnnError,
    NotSupportedError,
    SymbolNotFoundError,
    WorkspaceLimitError,
)
from cudnnlite.graph.engines import Engine
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.graph.problem import EXECUTE
from cudnnlite.graph.selection import Selection
from cudnnlite.operations.convolution.engines import (
    named_engine,
    preferred_engine,
    warn_of_limit,
)
from cudnnlite.operations.convolution.native_convolution import (
    CallsInTurn,
    NativeConvolution,
    convolution_then_bias,
    followed_by_activation,
    followed_by_bias,
)
from cudnnlite.plans.capture import refuse_search
from cudnnlite.plans.native_problem import add_context
from cudnnlite.plans.operands import wait_for_streams
from cudnnlite.problems.fused_convolution import BIAS, activates_apart, adds_bias_apart
from cudnnlite.problems.operation import Algorithms, Operation
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import HEURISTIC, AlgorithmResult, named
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.problems.work import work_of
from cudnnlite.specs.filter import as_tensor


def parse_algorithm(operation: Operation, algorithm: object) -> Any:
    """Return the argument as a result of a search, an engine, a member of the enum, or None."""
    if algorithm is None:
        return None
    if isinstance(algorithm, AlgorithmResult):
        if not algorithm.ok:
            raise ArgumentError(
                f"algorithm={algorithm} cannot be used: {algorithm.why_not or algorithm.status}"
            )
        chosen = algorithm.algorithm
        if not isinstance(chosen, Engine):
            chosen = parse_enum(_algorithms(operation).kind, chosen, "algorithm")
        math_type = parse_math_type(algorithm.math_type, "algorithm.math_type")
        if chosen is algorithm.algorithm and math_type is algorithm.math_type:
            return algorithm
        return replace(algorithm, algorithm=chosen, math_type=math_type)
    if isinstance(algorithm, AlgorithmTable):
        raise ArgumentError(
            "algorithm is a whole table; pass one of its rows, such as found.best()"
        )
    if isinstance(algorithm, Engine):
        return algorithm
    if isinstance(algorithm, str) and (engine := Engine.from_text(algorithm)):
        return engine
    kind = _algorithms(operation).kind
    if type(algorithm) is int:
        number = shown(algorithm) if algorithm >= 0 else "2"
        raise ArgumentError(
            f"algorithm={shown(algorithm)}; needed: a name, such as {next(iter(kind)).name!r}, or "
            f"'engine {number}' for an engine"
        )
    return parse_enum(kind, algorithm, "algorithm")


def parse_interface(interface: object) -> str | None:
    """Return which of cuDNN's interfaces may be used: "descriptor", "graph", or None for either."""
    parsed: str | None = one_of(interface, "interface", "descriptor", "graph", None)
    return parsed


def _algorithms(operation: Operation) -> Algorithms:
    if operation.algorithms is None:
        raise ArgumentError(f"cuDNN has no choice of algorithms for {operation.name}")
    return operation.algorithms


def check_interface(problem: Problem, algorithm: object, interface: str | None) -> None:
    """Raise ArgumentError if algorithm, interface and padding contradict each other."""
    if algorithm is None:
        needed_interface = interface
        argument = f"interface={interface!r}"
    else:
        is_engine = isinstance(getattr(algorithm, "algorithm", algorithm), Engine)
        needed_interface = "graph" if is_engine else "descriptor"
        argument = f"algorithm={algorithm}"
    if needed_interface == "descriptor" and not problem.conv.is_symmetric:
        raise ArgumentError(
            f"{argument} with padding={problem.conv.padding}: "
            "only graphs pad the two ends of an axis differently"
        )
    if interface not in (None, needed_interface):
        raise ArgumentError(
            f"interface={interface!r} and algorithm={algorithm}, which is of {needed_interface!r}"
        )


class PreparedChoice(NamedTuple):
    """A choice that is ready to run.

    Attributes
    ----------
    choice : AlgorithmResult
        The choice, with the facts of its preparation.
    call : PreparedCall or the like
        The call, without the addresses of its operands.
    workspace : int
        The bytes of workspace that the call needs.
    """

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
    """Return the choice of a plan: `algorithm`, or the preferred engine if it is None.

    An engine is returned prepared, because only preparing it shows whether it runs; `stack` owns
    it.  If no engine serves, the result is the algorithm that the descriptor call's heuristic
    prefers, with the reason as its remark.  Engines need aligned operands.  Without `is_aligned`
    the descriptor call comes first; if it does not serve, an engine runs on copies.
    """
    problem = native.problem
    needs_graph = interface == "graph" or not problem.conv.is_symmetric
    needs_descriptor_call = interface == "descriptor" and not needs_graph
    if algorithm is not None or needs_descriptor_call:
        return _choose(native, algorithm, limit)
    if not is_aligned and not needs_graph:
        # ArgumentError: an operand is too large for a descriptor.
        with suppress(NotSupportedError, ArgumentError, SymbolNotFoundError):
            choice = _choose(native, None, limit)
            return replace(choice, remark="no engine serves: an operand is not aligned to 16 bytes")
    preferred = preferred_engine(native, limit, stack)
    if isinstance(preferred, Selection):
        return _completed(native, preferred.row, preferred.call)
    if needs_graph and preferred.larger:
        raise WorkspaceLimitError(f"no engine serves: {preferred.why}")
    if needs_graph:
        raise NotSupportedError(EXECUTE, Status.NOT_SUPPORTED, f"no engine serves: {preferred.why}")
    try:
        choice = _choose(native, None, limit)
    except NotSupportedError as error:
        error.notes += (f"no engine serves: {preferred.why}",)
        raise
    except ArgumentError as error:  # an operand is too large for a descriptor
        raise ArgumentError(f"{error}; no engine serves: {preferred.why}") from error
    except SymbolNotFoundError as error:
        raise SymbolNotFoundError(f"{error}; no engine serves: {preferred.why}") from error
    warn_of_limit(preferred.larger, choice.algorithm, problem)
    return replace(choice, remark=f"no engine serves: {preferred.why}")


def choose_and_prepare(
    native: NativeConvolution,
    limit: int | None,
    interface: str | None,
    stack: ExitStack,
    *,
    is_aligned: bool,
) -> PreparedChoice:
    """Return the prepared choice of cuDNN's heuristics; the parameters are those of `choose`."""
    choice = choose(native, None, limit, interface, stack, is_aligned=is_aligned)
    if isinstance(choice, PreparedChoice):
        return choice
    return prepare(native, choice, stack)


def _choose(native: NativeConvolution, algorithm: object, limit: int | None) -> AlgorithmResult:
    """Return the row of the named algorithm or engine, or of the descriptor call's heuristic."""
    math_type = native.problem.math_type
    if algorithm is None:
        choice = _heuristic_choice(native, limit)
    elif isinstance(algorithm, AlgorithmResult):
        choice = algorithm
    else:
        choice = AlgorithmResult(algorithm, math_type)
    if math_type == MathType.FMA and choice.math_type != MathType.FMA:
        raise ArgumentError(
            f"algorithm was found with math type {choice.math_type}; "
            "conv requires FMA, true float32, which that would undo"
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
        # An algorithm that needs two calls, one for the bias, is better than none.
        table = rank(native)
    if not any(row.ok for row in table):
        hint = problem.operation.description.hint(problem)
        why = hint or "every algorithm refuses this combination"
        raise NotSupportedError(algorithms.heuristic, Status.NOT_SUPPORTED, why)
    choice = table.best(limit)
    larger = [(row, why) for row, why in choice.passed_over if row.ok]
    warn_of_limit(larger, choice.algorithm, problem)
    return replace(choice, source=HEURISTIC)


def _is_within(row: AlgorithmResult, limit: int | None) -> bool:
    return limit is None or row.workspace <= limit


def wants_tensor_cores(problem: Problem) -> bool:
    """Whether TENSOR_OP stands for DEFAULT math.

    With DEFAULT math in 16 bits cuDNN does not use the tensor cores, and takes ten times as long
    on an H200.
    """
    first = problem.values[problem.operation.reads[0]]
    is_half = first.dtype in (DataType.HALF, DataType.BFLOAT16)
    return is_half and problem.math_type == MathType.DEFAULT


def workspace_of(native: NativeConvolution, algorithm: object) -> int:
    """Return the bytes of workspace that an algorithm needs.

    They depend on the math type that the convolution descriptor has at this time.
    """
    size = ctypes.c_size_t()
    native.ask(_algorithms(native.problem.operation).workspace, algo=algorithm, sizeInBytes=size)
    return size.value


def prepare(native: NativeConvolution, choice: AlgorithmResult, stack: ExitStack) -> PreparedChoice:
    """Prepare the call of a choice; `stack` owns its native objects."""
    problem = native.problem
    if isinstance(choice.algorithm, Engine):
        selection = named_engine(native, choice.algorithm, stack)
        row = selection.row
        # These facts about a named engine are known only now.
        choice = replace(
            choice,
            math_type=row.math_type,
            deterministic=row.deterministic,
            compiled=row.compiled,
        )
        return _completed(native, choice, selection.call)
    # The workspace depends on the math type, which is therefore set first.
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
    """Return an engine's plan, followed by the call that adds or computes what it leaves out."""
    pair: CallsInTurn
    if adds_bias_apart(native.problem):
        pair = followed_by_bias(native, plan)
    elif activates_apart(native.problem):
        pair = followed_by_activation(native, plan)
    else:
        return PreparedChoice(choice, plan, plan.workspace)
    return PreparedChoice(_with_remark(choice, pair.remark), pair, plan.workspace)


def _with_remark(choice: AlgorithmResult, remark: str) -> AlgorithmResult:
    """Return a choice with a remark appended to the one that it has."""
    return replace(choice, remark="; ".join(filter(None, (choice.remark, remark))))


def rank(native: NativeConvolution, only: Container[Any] | None = None) -> AlgorithmTable:
    """Return the ranking of cuDNN's heuristic for the math type of the descriptor; nothing is run.

    With `only`, the table has no other algorithms than these.
    """
    rows = _query_results(native, _algorithms(native.problem.operation).heuristic)
    if only is not None:
        rows = [row for row in rows if row.algorithm in only]
    timing = f"none, ranked by cuDNN's heuristic on {native.handle.device}"
    return _table_of(native, rows, timing)


def _query_results(
    native: NativeConvolution, function: str, **arguments: object
) -> list[AlgorithmResult]:
    """Return the results that a C function writes, one for each algorithm."""
    algorithms = _algorithms(native.problem.operation)
    capacity, count = ctypes.c_int(), ctypes.c_int()
    native.ask(algorithms.count, count=capacity)
    results = (algorithms.result * capacity.value)()
    native.ask(
        function,
        requestedAlgoCount=capacity.value,
        returnedAlgoCount=count,
        perfResults=results,
        **arguments,
    )
    return [_row_of(algorithms, result) for result in results[: count.value]]


def _row_of(algorithms: Algorithms, result: Any) -> AlgorithmResult:
    """Return one of cuDNN's result structures as a row."""
    time_ms = result.time if result.time >= 0 else None
    return AlgorithmResult(
        algorithms.kind(result.algo),
        MathType(result.mathType),
        status=Status(result.status),
        time_ms=time_ms,
        workspace=result.memory,
        deterministic=result.determinism == Determinism.DETERMINISTIC,
    )


def _table_of(
    native: NativeConvolution,
    rows: list[AlgorithmResult],
    timing: str,
    searched_with: int | None = None,
) -> AlgorithmTable:
    device = native.handle.device
    if not device.has_real_timing:
        rows = _with_equal_kernels(rows)
    return AlgorithmTable(
        rows,
        title=str(native.problem),
        timing=timing,
        device_memory=device.memory_info()[1],
        searched_with=searched_with,
        work=work_of(native.problem),
        peaks=peaks_of(device),
    )


def _with_equal_kernels(rows: list[AlgorithmResult]) -> list[AlgorithmResult]:
    """Return rows that name the first row with the same kernel.

    The emulated device times each of its kernels once, so that equal times mean one kernel.
    """
    first_rows: dict[float, AlgorithmResult] = {}
    marked_rows = []
    for row in rows:
        first = row
        if row.time_ms is not None:
            first = first_rows.setdefault(row.time_ms, row)
        if first is row:
            marked_rows.append(row)
        else:
            marked_rows.append(replace(row, same_kernel=named(first)))
    return marked_rows


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
    (written,) = problem.operation.writes
    stream = handle.stream
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
            y = out
            if y is None:
                y = arrays.empty(handle.device, stream, as_tensor(spec))
            size = _search_workspace(native, limit)
            scratch = handle.device.allocate(size, stream)
            stack.callback(scratch.close, stream)
            for other in wait_for_streams(stream, *operands.values(), y):
                stack.callback(other.wait, stream)
            addresses: dict[str, Any] = {name: array.ptr for name, array in operands.items()}
            addresses[written] = y.ptr
            rows = _query_results(
                native,
                _algorithms(problem.operation).find,
                workSpace=int(scratch.handle),
                workSpaceSizeInBytes=size,
                **addresses,
            )
            return _table_of(native, rows, f"cudnnFind on {handle.device}", size)
        except CudnnError as error:
            add_context(error, problem)
            raise


def _search_workspace(native: NativeConvolution, limit: int | None) -> int:
    """Return the largest workspace of an algorithm within the limit and half of the free memory."""
    usable = native.handle.device.memory_info()[0] // 2
    if limit is not None:
        usable = min(limit, usable)
    sizes = [0]
    for algorithm in _algorithms(native.problem.operation).kind:
        if algorithm.name != "COUNT":
            # The search has a row for an algorithm that is not supported.
            with suppress(NotSupportedError):
                sizes.append(workspace_of(native, algorithm))
    return max(size for size in sizes if size <= usable)
