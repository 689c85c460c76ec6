"""`search_rnn_forward`: time and check every algorithm and math type for a recurrent network.

cuDNN has no such search.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from cudnnlite import (
    AlgorithmResult,
    AlgorithmTable,
    DeviceArray,
    Handle,
    RNNPlan,
    RNNSpec,
    RNNWeights,
)
from cudnnlite.devices import arrays
from cudnnlite.dtypes import itemsize
from cudnnlite.enums import RNNAlgo
from cudnnlite.operations.rnn.choice import ALGORITHMS, heuristic
from cudnnlite.operations.rnn.native_rnn import NativeRNN
from cudnnlite.problems.results import ranking_ms
from cudnnlite.sizes import format_size
from cudnnlite.specs.math_types import allowed_math_types
from cudnnlite.specs.rnn_weights import weight_parts
from cudnnlite.types import Problem
from cudnnlite.workbench.tuning.contest import Contest, join_remarks, own_stream
from cudnnlite.workbench.tuning.replayed_rows import with_replay
from cudnnlite.workbench.tuning.rnn_trial import RNNTrial, plan_key
from cudnnlite.workbench.tuning.timing_policy import TimingPolicy
from cudnnlite.workbench.tuning.trial import TrialMemory

# The heuristic's choice is put first if it takes at most this multiple of the shortest time.
_TIE_RATIO = 1.03


def all_candidates(
    problem: Problem, algorithms: Iterable[RNNAlgo] = ALGORITHMS
) -> list[AlgorithmResult]:
    """Return a row for each algorithm with each math type that the network allows."""
    math_types = allowed_math_types(problem.spec.math_type, problem.spec.dtype)
    return [
        AlgorithmResult(algorithm, math_type, deterministic=None)
        for algorithm, math_type in product(algorithms, math_types)
    ]


def compiled_if_small(problem: Problem, row: AlgorithmResult, on_chip: int) -> AlgorithmResult:
    """Return a candidate, with the reason if it is PERSIST_DYNAMIC and not compiled."""
    if row.why_not or row.algorithm != RNNAlgo.PERSIST_DYNAMIC:
        return row
    return replace(row, why_not=why_too_large(problem.spec, on_chip))


def workspace_of(handle: Handle, problem: Problem, candidate: AlgorithmResult) -> int:
    """Return the bytes of workspace that a candidate needs; nothing is run."""
    choice = AlgorithmResult(candidate.algorithm, candidate.math_type, deterministic=None)
    with ExitStack() as stack:
        network = NativeRNN(handle, plan_key(problem)._replace(choice=choice), stack)
        network.describe_data(problem.data)
        return network.workspace


def search_rnn_forward(
    handle: Handle,
    problem: Problem,
    operands: Mapping[str, Any],
    candidates: Iterable[AlgorithmResult],
    workspace_limit: int | None,
    timing: TimingPolicy,
    *,
    max_error: float | None = None,
    objective: str = "device",
    flush_l2: bool = False,
    replay: bool = False,
) -> AlgorithmTable:
    """Time and check candidates; waits for the handle.

    Each candidate first runs over the first steps of the sequences.  Its results for a few
    sequences are compared with a float64 reference, so that an algorithm with wrong results is not
    chosen.  In training, `cudnnRNNBackwardData_v8` is called too: a candidate whose gradient cuDNN
    refuses cannot be used.

    Then the candidate runs once in full.  A time below 50 ms may contain time of the host and the
    loading of kernels, so the candidate runs a second time, from a CUDA graph.  A candidate that
    takes more than three times as long as the best is not repeated.  The others are replayed from
    CUDA graphs in shuffled rounds; their time is the median.  These are times of the device.  A
    call outside of a graph also takes the host's time, which is long for STANDARD, because it
    launches kernels for each step, and short for the PERSIST algorithms.

    Parameters
    ----------
    operands : mapping
        "weights", "x" and, optionally, "hx" and "cx".
    candidates : iterable of AlgorithmResult
        Those with a `why_not` are not run.
    workspace_limit : int or None
        In bytes; candidates that need more are not run.
    timing : TimingPolicy
        How thoroughly candidates are timed.
    max_error : float or None
        The largest relative L2 error of a candidate that is timed.
    objective, flush_l2
        See `Contest`.
    replay : bool
        Whether calls are also timed as a plan with ``replay=True`` makes them: as launches of CUDA
        graphs.  Of the candidates that may become the fastest in this way, the two with the least
        time on the device get a second row, with `replay`.  Its time is that of a call with new
        addresses, copies included.
    """
    with own_stream(handle) as stream, ExitStack() as stack:
        contest = Contest(handle, timing, objective=objective, flush_l2=flush_l2)
        stack.callback(contest.close)
        trial = RNNTrial(
            handle,
            problem,
            _on_stream(handle, problem, operands, stream),
            stack,
            TrialMemory(handle),
            workspace_limit=workspace_limit,
            max_error=max_error,
        )
        rows = contest.finish(_enter_all(candidates, trial, contest, timing.give_up))
        if replay:
            rows = with_replay(rows, trial.measure_replay)
        preferred = heuristic(problem.spec, problem.data)
        rows = _heuristic_first(rows, preferred, latency=objective == "latency")
        return contest.table(rows, problem)


def _enter_all(
    candidates: Iterable[AlgorithmResult], trial: RNNTrial, contest: Contest, give_up: float
) -> dict[Hashable, AlgorithmResult]:
    """Run each candidate, and return the results.

    cuDNN compiles PERSIST_DYNAMIC for each math type, which takes a minute for large matrices.
    On an H200 the times of its math types differed by at most a quarter in float32.  So if it is
    far too slow with one math type, it is not compiled for the others.
    """
    results: dict[Hashable, AlgorithmResult] = {}
    why_not_compiled = ""
    for candidate in candidates:
        is_persist_dynamic = candidate.algorithm == RNNAlgo.PERSIST_DYNAMIC
        if is_persist_dynamic and why_not_compiled and not candidate.why_not:
            results[candidate] = replace(candidate, why_not=why_not_compiled)
            continue
        results[candidate] = trial.run(candidate, contest)
        if is_persist_dynamic and results[candidate].ok and contest.is_hopeless(candidate):
            why_not_compiled = (
                f"not compiled: with {candidate.math_type} math it took more than "
                f"{give_up:g} times the best"
            )
    return results


def _on_stream(
    handle: Handle, problem: Problem, operands: Mapping[str, Any], stream: Any
) -> tuple[RNNWeights, DeviceArray, DeviceArray | None, DeviceArray | None]:
    """Check the operands as a call does, and return weights, x, hx and cx on a stream."""
    weights, x = operands["weights"], operands["x"]
    with RNNPlan[Any](handle, plan_key(problem)) as plan:
        states = plan.check_operands(
            weights, x, operands.get("hx"), operands.get("cx"), problem.data.lengths
        )
    hx, cx = (_state_on_stream(state, stream) for state in states)
    return weights.view(handle), arrays.on_stream(x, stream), hx, cx


def _state_on_stream(state: DeviceArray | None, stream: Any) -> DeviceArray | None:
    if state is None:
        return None
    return arrays.on_stream(state, stream)


def _heuristic_first(
    rows: list[AlgorithmResult], choice: AlgorithmResult, *, latency: bool
) -> list[AlgorithmResult]:
    """Return rows with the heuristic's choice first, unless the fastest is clearly faster.

    Between the two, the order of times would be noise: another run may reverse it.
    """
    fastest = rows[0]
    choice_row = _eager_row_of(choice, rows)
    if choice_row is None or choice_row is fastest:
        return rows
    fastest_ms = ranking_ms(fastest, latency=latency)
    choice_ms = ranking_ms(choice_row, latency=latency)
    if fastest_ms is None or choice_ms is None or choice_ms > _TIE_RATIO * fastest_ms:
        return rows
    remark = join_remarks(fastest.remark, "hardly faster than the heuristic's choice")
    slower_rows = [row for row in rows[1:] if row is not choice_row]
    return [choice_row, replace(fastest, remark=remark), *slower_rows]


def _eager_row_of(choice: AlgorithmResult, rows: list[AlgorithmResult]) -> AlgorithmResult | None:
    """Return the row of a choice that is not replayed; None if the choice cannot be used."""
    for row in rows:
        is_choice = (row.algorithm, row.math_type) == (choice.algorithm, choice.math_type)
        if is_choice and row.ok and not row.replay:
            return row
    return None


def why_too_large(spec: RNNSpec, on_chip: int) -> str:
    """Return why PERSIST_DYNAMIC is not compiled for a network; empty if it is.

    `on_chip` is the size of the chip's registers and shared memory in bytes: 64 MiB on an H200.
    There, with recurrent matrices of that size or more in a layer, PERSIST_DYNAMIC took 4.6 to 51
    times as long as the best algorithm (15 problems in float32), and up to 55 s to compile.
    """
    # The recurrent matrices of the first layer; those of other layers have the same sizes.
    shapes = [
        part.shape
        for part in weight_parts(spec)
        if part.recurrent and not part.bias and part.pseudo_layer == 0
    ]
    nbytes = sum(prod(shape) for shape in shapes) * itemsize(spec.dtype)
    if nbytes < on_chip:
        return ""
    return (
        f"not compiled: a layer's recurrent matrices take {format_size(nbytes)}, "
        f"and what can be kept on the chip is below {format_size(on_chip)}"
    )
