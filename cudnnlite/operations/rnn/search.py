"""The search that cuDNN lacks: every algorithm and math type of an RNN, timed and checked."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from cudnnlite.arguments import instance_of, one_of, sequence
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import itemsize
from cudnnlite.enums import RNNAlgo, RNNDataLayout, parse_enum
from cudnnlite.errors import ArgumentError, CudnnError, DeviceMemoryError
from cudnnlite.operations.rnn.accuracy import PrefixCheck
from cudnnlite.operations.rnn.choice import ALGORITHMS, heuristic
from cudnnlite.operations.rnn.native import RNNPlanKey
from cudnnlite.operations.rnn.outputs import RNNReserve
from cudnnlite.operations.rnn.plan import RNNPlan
from cudnnlite.operations.rnn.sequences import data_spec
from cudnnlite.operations.rnn.weights import RNNWeights
from cudnnlite.plans.operands import on_device, use
from cudnnlite.plans.replay import Replay, parse_replay
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult, RNNResult, ranking_ms
from cudnnlite.problems.rnn import forward_problem
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.search.accuracy import why_inexact
from cudnnlite.search.contest import Contest, failed, joined, own_stream
from cudnnlite.search.replayed_rows import with_replay
from cudnnlite.sizes import format_size
from cudnnlite.specs import RNNDataSpec, RNNSpec
from cudnnlite.specs.math_types import allowed_math_types
from cudnnlite.specs.rnn_data import parse_data_layout
from cudnnlite.specs.rnn_weights import weight_parts
from cudnnlite.unknown import suggest_keywords

_HARDLY = 1.03  # so many times the first's time may the heuristic's choice take, and be the first


def find(
    handle: Handle,
    spec: RNNSpec,
    weights: RNNWeights,
    x: AnyArray,
    hx: AnyArray | None = None,
    cx: AnyArray | None = None,
    *,
    lengths: Iterable[int] | None = None,
    training: bool = False,
    layout: RNNDataLayout | str = RNNDataLayout.SEQ_MAJOR_UNPACKED,
    algorithms: Iterable[RNNAlgo | str] | None = None,
    workspace_limit: int | str | None = None,
    replay: bool = False,
) -> AlgorithmTable:
    """Time every algorithm and math type that the spec allows on these arrays, and check it.

    Each candidate first runs over the first steps of the sequences; what it computes for some of
    them is compared with a reference in float64, so that an algorithm which computes garbage is not
    chosen; in training, the backward pass over the data is tried too. Then it runs once in full,
    and, if that takes less than 50 ms (of which the host and the loading of kernels may have a
    share), a second time, recorded; what takes more than three times the best is not repeated. The
    others are recorded into CUDA graphs and replayed in shuffled rounds; the median counts. So the
    times are the device's; a call outside a graph also costs the host's share, which is large for
    STANDARD (it launches kernels for each step) and small for the PERSIST algorithms.

    Parameters
    ----------
    handle : Handle
        Waited for: the search synchronises.
    spec, weights, x, hx, cx, lengths, training, layout
        As in `rnn_forward`.  Dropout is left out, so that no random numbers are used up; its masks
        are part of the reserve space of a real call, and not of the table's.
    algorithms : iterable of RNNAlgo or str, optional
        What to try.  If not given: all, but PERSIST_DYNAMIC only where the recurrent matrices of a
        layer take less than 64 MiB; it must keep them on the chip, and an H200 has not more
        registers and shared memory.  cuDNN compiles a kernel for it, which takes most of the search
        (55 s for an LSTM of hidden size 4096); where its first math type turns out slower than
        three times the best, no other is compiled.
    workspace_limit : int or str, optional
        What needs more is not tried; the handle's limit if not given.
    replay : bool
        Try too what calls take that a plan launches as CUDA graphs (`rnn_forward.plan`'s
        ``replay=True``): of what may win by that the two that take the device the least have a
        second row, with `replay`, and the time of a call whose addresses are new, copies counted.
        Not in training.

    Returns
    -------
    AlgorithmTable
        The least wall time of a call first; what the same calls take in a CUDA graph is their
        `time_ms`.  With workspace, reserve space (in training) and relative L2 error; those that
        cannot be used last, with the reason.  cuDNN does not say which are deterministic.  Pass a
        row, such as ``table.best()``, to `rnn_forward` as `algorithm`.

    Raises
    ------
    ArgumentError, ArrayTypeError, DeviceMemoryError
        As in `rnn_forward`.

    Notes
    -----
    C functions: `cudnnRNNForward`, which is timed; in training, `cudnnRNNBackwardData_v8`, which is
    tried; and those of `rnn_forward.plan`.  cuDNN 9 has no search for RNNs.

    Which math types a spec allows: FMA (true float32) only itself; others any but
    TENSOR_OP_ALLOW_CONVERSION, which rounds float32 to float16, unless that is the spec's own.

    Examples
    --------
    >>> lstm = dnn.RNNSpec("lstm", input_size=4, hidden_size=8)
    >>> with dnn.Handle() as handle:
    ...     weights = dnn.RNNWeights(handle, lstm)  # load real ones: zeros are always right
    ...     x = handle.array(np.ones((5, 2, 4), np.float32))
    ...     algorithms = ["STANDARD", "PERSIST_STATIC_SMALL_H"]
    ...     table = dnn.rnn_forward.find(handle, lstm, weights, x, algorithms=algorithms)
    ...     best = table.best(workspace_limit="64 MiB")
    ...     y, hy, cy = dnn.rnn_forward(handle, lstm, weights, x, algorithm=best)
    >>> print(best.ok, best.time_ms > 0)
    True True
    """
    use(handle)
    instance_of(spec, RNNSpec, "spec")
    x = on_device(handle, x, "x")
    data = data_spec(spec, x.spec, lengths, parse_data_layout(layout))
    one_of(training, "training", True, False)
    problem = forward_problem(spec.replace(dropout=0.0), data, training)
    operands = {"weights": weights, "x": x, "hx": hx, "cx": cx}
    rows = candidates(problem, _parse_algorithms(algorithms))
    return search_rnn_forward(
        handle,
        problem,
        operands,
        rows,
        handle.workspace.limit_for(workspace_limit),
        compile_all=algorithms is not None,
        latency=True,
        replay=parse_replay(replay) and not training,
    )


# As errors, `help` and pickle name it.
find.__module__ = "cudnnlite.operations.rnn.functions"
find.__qualname__ = "rnn_forward.find"
find = suggest_keywords(find)


def candidates(problem: Problem, algorithms: Iterable[RNNAlgo] = ALGORITHMS) -> list[RNNResult]:
    """Return every algorithm with every math type that the network allows."""
    math_types = allowed_math_types(problem.spec.math_type, problem.spec.dtype)
    return [RNNResult(*pair, deterministic=None) for pair in product(algorithms, math_types)]


def search_rnn_forward(
    handle: Handle,
    problem: Problem,
    operands: Mapping[str, Any],
    rows: Iterable[RNNResult],
    limit: int | None,
    *,
    max_error: float | None = None,
    compile_all: bool = False,
    latency: bool = False,
    flush_l2: bool = False,
    replay: bool = False,
    note: str = "",
) -> AlgorithmTable:
    """Do what `rnn_forward.find` does, for these candidates.

    Parameters
    ----------
    operands : mapping
        "weights", "x" and perhaps "hx" and "cx".
    rows : iterable of RNNResult
        The candidates; one with a `why_not` is not run.
    max_error : float or None
        What has a larger relative L2 error is not timed.
    compile_all : bool
        Compile PERSIST_DYNAMIC for matrices of any size.
    latency, flush_l2
        See `Contest`.
    note : str
        Added to what the table says of its times.
    """
    spec, data = problem.spec.replace(dropout=0.0), problem.data
    standard = AlgorithmResult(RNNAlgo.STANDARD, spec.math_type, deterministic=None)
    key = RNNPlanKey(
        spec,
        standard,
        data.batch,
        data.layout,
        padded_io=data.needs_padded_io,
        training=problem.training,
        padding_fill=0.0,
        dropout_state=None,
        workspace_limit=None,
        is_guess=False,
        replay=False,
    )
    with own_stream(handle) as stream, ExitStack() as stack:
        operands_on_stream = _on_stream(handle, key, operands, data, stream)
        contest = Contest(handle, latency=latency, flush_l2=flush_l2)
        stack.callback(contest.close)
        why_not_compiled = ""
        if not compile_all:
            why_not_compiled = why_too_large(spec, handle.timing.on_chip)
        trial = _Trial(handle, key._replace(workspace_limit=limit), operands_on_stream, data, stack)
        results = contest.finish(trial.run(rows, contest, max_error, why_not_compiled))
        if replay:
            results = with_replay(results, trial.replayed)
        results = _heuristic_first(results, heuristic(spec, data), latency=latency)
    return AlgorithmTable(
        results, title=str(problem), timing=contest.timing + note, device_memory=contest.memory
    )


def _on_stream(
    handle: Handle,
    key: RNNPlanKey,
    operands: Mapping[str, Any],
    data: RNNDataSpec,
    stream: Any,
) -> tuple[Any, ...]:
    """Return weights, x, hx and cx on a stream, after the checks of a call."""
    weights, x = operands["weights"], operands["x"]
    with RNNPlan[Any](handle, key) as plan:
        states = plan.check_operands(
            weights, x, operands.get("hx"), operands.get("cx"), data.lengths
        )
    hx, cx = (None if state is None else arrays.on_stream(state, stream) for state in states)
    return weights.view(handle), arrays.on_stream(x, stream), hx, cx


def _heuristic_first(
    rows: list[AlgorithmResult], choice: AlgorithmResult, *, latency: bool
) -> list[AlgorithmResult]:
    """Return rows with the heuristic's choice first, where the first is hardly faster.

    Another run may rank them the other way.
    """
    fastest = rows[0]
    row = _row_of(choice, rows)
    if row is None or row is fastest:
        return rows
    fastest_ms = ranking_ms(fastest, latency=latency)
    row_ms = ranking_ms(row, latency=latency)
    if fastest_ms is None or row_ms is None or row_ms > _HARDLY * fastest_ms:
        return rows
    remark = joined(fastest.remark, "hardly faster than the heuristic's choice")
    others = [other for other in rows[1:] if other is not row]
    return [row, replace(fastest, remark=remark), *others]


def _row_of(choice: AlgorithmResult, rows: list[AlgorithmResult]) -> AlgorithmResult | None:
    """Return the row of an algorithm and math type, if that can be used."""
    for row in rows:
        is_choice = (row.algorithm, row.math_type) == (choice.algorithm, choice.math_type)
        if is_choice and row.ok and not row.replay:
            return row
    return None


def _parse_algorithms(algorithms: Any) -> list[RNNAlgo]:
    if algorithms is None:
        return list(ALGORITHMS)
    names = sequence(algorithms, "algorithms", "a sequence of algorithms", most=99)
    parsed = [parse_enum(RNNAlgo, name, "algorithms") for name in names]
    if not parsed:
        raise ArgumentError("algorithms is empty; there is nothing to time")
    return parsed


def why_too_large(spec: RNNSpec, on_chip: int) -> str:
    """Return why PERSIST_DYNAMIC is not compiled for a network; empty if it is.

    `on_chip` is how many bytes the chip keeps.  On an H200, with 64 MiB of registers and shared
    memory, it took 4.6 to 51 times the time of the best where a layer's recurrent matrices were as
    large or larger (15 problems in float32), and up to 55 s to compile.
    """
    matrices = [
        part.shape
        for part in weight_parts(spec)
        if part.recurrent and not part.bias and part.pseudo_layer == 0
    ]
    nbytes = sum(prod(shape) for shape in matrices) * itemsize(spec.dtype)
    if nbytes < on_chip:
        return ""
    return (
        f"not compiled: a layer's recurrent matrices take {format_size(nbytes)}, "
        f"and what can be kept on the chip is below {format_size(on_chip)}"
    )


class _Trial:
    """Runs and checks each candidate once; all write to the same memory.

    Parameters
    ----------
    handle : Handle
        On the stream of the search.
    key : RNNPlanKey
        What plans are made for, but for their choices.
    operands : sequence
        Weights, x, hx and cx, on the handle's present stream.
    data : RNNDataSpec
        The sequences in x.
    stack : ExitStack
        Keeps the plans of those that may win.
    """

    def __init__(
        self,
        handle: Handle,
        key: RNNPlanKey,
        operands: Sequence[Any],
        data: RNNDataSpec,
        stack: ExitStack,
    ) -> None:
        self._handle = handle
        self._key = key
        self._operands = operands
        self._stack = stack
        self._x_spec = operands[1].spec
        self._lengths = data.lengths
        self._check = PrefixCheck(operands, data)
        self._out: Sequence[DeviceArray | None] | None = None
        self._reserve: RNNReserve | None = None

    def run(
        self,
        candidates: Iterable[RNNResult],
        contest: Contest,
        max_error: float | None,
        why_not_compiled: str,
    ) -> dict[Hashable, AlgorithmResult]:
        """Return the row of each candidate; those that may be chosen are entered into the contest.

        PERSIST_DYNAMIC is compiled for each math type, for a minute where the matrices are large;
        in float32 an H200 took a quarter more with one math type than with another, at most.  So if
        one turns out to be hopeless, all are.
        """
        rows: dict[Hashable, AlgorithmResult] = {}
        for candidate in candidates:
            is_compiled = candidate.algorithm == RNNAlgo.PERSIST_DYNAMIC
            why_not = candidate.why_not
            if not why_not and is_compiled:
                why_not = why_not_compiled
            if why_not:
                rows[candidate] = replace(candidate, why_not=why_not)
                continue
            rows[candidate] = self._row_of(candidate, contest, max_error)
            if is_compiled and rows[candidate].ok and contest.is_hopeless(candidate):
                factor = f"{self._handle.timing.give_up:g} times the best"
                why_not_compiled = (
                    f"not compiled: with {candidate.math_type} math it took more than {factor}"
                )
        return rows

    def _row_of(
        self, candidate: RNNResult, contest: Contest, max_error: float | None
    ) -> AlgorithmResult:
        """Run and check a candidate; enter it into the contest unless it is wrong or refused."""
        plan = None
        try:
            plan = self._stack.enter_context(self._plan(candidate))
            error, largest_error = self._check.errors_of(plan)
            call = self._call_of(plan)
            why_not = self._check.why_wrong(error, candidate.math_type)
            row = replace(
                candidate,
                error=error,
                max_error=largest_error,
                workspace=plan.workspace,
                reserve=plan.reserve if self._key.training else None,
                why_not=why_not or why_inexact(error, max_error),
            )
            if row.ok:
                contest.enter(candidate, call)
        except (CudnnError, DeviceMemoryError) as refusal:
            workspace = 0 if plan is None else plan.workspace
            return failed(replace(candidate, workspace=workspace), refusal, contest.memory)
        return row

    def replayed(self, row: AlgorithmResult) -> Replay | None:
        """Return what a plan that launches graphs did in two calls.

        One is recorded, the other has other results.
        """
        with self._plan(row, replay=True) as plan:
            plan.describe(self._x_spec, self._lengths)
            for out in (plan.new_outputs(), plan.new_outputs()):
                plan(*self._operands, lengths=self._lengths, out=out)
            return plan.replay

    def _plan(self, row: AlgorithmResult, *, replay: bool = False) -> RNNPlan[Any]:
        choice = AlgorithmResult(row.algorithm, row.math_type, deterministic=None)
        return RNNPlan(self._handle, self._key._replace(choice=choice, replay=replay))

    def _call_of(self, plan: RNNPlan[Any]) -> Callable[[], object]:
        """Return a function that makes a plan's call once, without an allocation.

        The reserve space is as large as any plan needs.
        """
        plan.describe(self._x_spec, self._lengths)
        self._out = self._out or plan.new_outputs()
        if self._reserve is None or self._reserve.nbytes < plan.reserve:
            self._reserve = plan.new_reserve()
        return lambda: plan(
            *self._operands, lengths=self._lengths, out=self._out, reserve=self._reserve
        )
