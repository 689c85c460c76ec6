"""The search that cuDNN lacks: every algorithm and math type of an RNN, timed on the device and checked."""

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
from cudnnlite.operations.rnn.outputs import RNNReserve
from cudnnlite.operations.rnn.plan import RNNPlan
from cudnnlite.operations.rnn.problem import RNNRequest, data_spec, make_request
from cudnnlite.operations.rnn.weights import RNNWeights
from cudnnlite.plans.operands import on_device, use
from cudnnlite.plans.replay import Replay, parse_replay, with_replay
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult, RNNResult, ranking_ms
from cudnnlite.problems.rnn import forward_problem
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.search.accuracy import why_inexact
from cudnnlite.search.contest import Contest, failed, joined, own_stream
from cudnnlite.sizes import format_size
from cudnnlite.specs import RNNDataSpec, RNNSpec
from cudnnlite.specs.math_types import allowed_math_types
from cudnnlite.specs.rnn_data import parse_data_layout
from cudnnlite.specs.rnn_weights import weight_parts
from cudnnlite.unknown import tells_unknown

_HARDLY = 1.03  # so many times the first's time may the heuristic's choice take, and be the first


@tells_unknown
def find_rnn_forward(
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
    """Time every algorithm and math type that the spec allows on these arrays, and check what each computes.

    Each candidate first runs over the first steps of the sequences; what it computes for some of them is compared with a
    reference in float64, so that an algorithm which computes garbage is not chosen; in training, the backward pass over the
    data is tried too. Then it runs once in full, and, if that takes less than 50 ms (of which the host and the loading of
    kernels may have a share), a second time, recorded; what takes more than three times the best is not repeated. The
    others are recorded into CUDA graphs and replayed in shuffled rounds; the median counts. So the times are the device's;
    a call outside a graph also costs the host's share, which is large for STANDARD (it launches kernels for each step) and
    small for the PERSIST algorithms.

    Parameters
    ----------
    handle : Handle
        Waited for: the search synchronises.
    spec, weights, x, hx, cx, lengths, training, layout
        As in `rnn_forward`.  Dropout is left out, so that no random numbers are used up; its masks are part of the reserve
        space of a real call, and not of the table's.
    algorithms : iterable of RNNAlgo or str, optional
        What to try.  If not given: all, but PERSIST_DYNAMIC only where the recurrent matrices of a layer take less than
        64 MiB; it must keep them on the chip, and an H200 has not more registers and shared memory.  cuDNN compiles a kernel
        for it, which takes most of the search (55 s for an LSTM of hidden size 4096); where its first math type turns out
        slower than three times the best, no other is compiled.
    workspace_limit : int or str, optional
        What needs more is not tried; the handle's limit if not given.
    replay : bool
        Try too what calls take that a plan launches as CUDA graphs (`rnn_forward.plan`'s ``replay=True``): of what may win by that the
        two that take the device the least have a second row, with `replay`, and the time of a call whose addresses are new,
        copies counted.  Not in training.

    Returns
    -------
    AlgorithmTable
        The least wall time of a call first; what the same calls take in a CUDA graph is their `time_ms`.  With workspace,
        reserve space (in training) and relative L2 error; those that cannot be used last, with the reason.  cuDNN does not
        say which are deterministic.  Pass a row, such as ``found.best()``, to `rnn_forward` as `algorithm`.

    Raises
    ------
    ArgumentError, ArrayTypeError, DeviceMemoryError
        As in `rnn_forward`.

    Notes
    -----
    C functions: `cudnnRNNForward`, which is timed; in training, `cudnnRNNBackwardData_v8`, which is tried; and those of
    `rnn_forward.plan`.  cuDNN 9 has no search for RNNs.

    Which math types a spec allows: FMA (true float32) only itself; others any but TENSOR_OP_ALLOW_CONVERSION, which rounds
    float32 to float16, unless that is the spec's own.

    Examples
    --------
    >>> lstm = dnn.RNNSpec("lstm", input_size=4, hidden_size=8)
    >>> with dnn.Handle() as handle:
    ...     weights = dnn.RNNWeights(handle, lstm)  # load the real ones first: with zeros everything is right
    ...     x = handle.array(np.ones((5, 2, 4), np.float32))
    ...     found = dnn.rnn_forward.find(handle, lstm, weights, x, algorithms=["STANDARD", "PERSIST_STATIC_SMALL_H"])
    ...     best = found.best(workspace_limit="64 MiB")
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
    """Do what `rnn_forward.find` does, for these candidates; the operands are "weights", "x" and perhaps "hx" and "cx".

    `rows`: the candidates; one with a `why_not` is not run.  `max_error`: what has a larger relative L2 error is not timed.
    `compile_all`: compile PERSIST_DYNAMIC for matrices of any size.  `latency`, `flush_l2`: see `Contest`.  `note`: what else
    is to be said of the times.
    """
    spec, data = problem.spec.replace(dropout=0.0), problem.data
    standard = AlgorithmResult(RNNAlgo.STANDARD, spec.math_type)
    request = make_request(handle, spec, data, problem.training, standard, 0.0, None, None)
    with own_stream(handle) as stream, ExitStack() as stack:
        weights, x = operands["weights"], operands["x"]
        with RNNPlan[Any](handle, request) as plan:
            states = plan.check_operands(
                weights, x, operands.get("hx"), operands.get("cx"), data.lengths
            )
        hx, cx = (None if state is None else arrays.on_stream(state, stream) for state in states)
        own = weights.view(handle), arrays.on_stream(x, stream), hx, cx
        contest = Contest(handle, latency=latency, flush_l2=flush_l2)
        stack.callback(contest.close)
        hopeless = "" if compile_all else why_too_large(spec, handle.timing.on_chip)
        trial = _Trial(handle, request._replace(workspace_limit=limit), own, data, stack)
        found = contest.finish(trial.run(rows, contest, max_error, hopeless))
        if replay:
            found = with_replay(found, trial.replayed)
        found = _heuristic_first(found, heuristic(spec, data), latency=latency)
    return AlgorithmTable(
        found, title=str(problem), timing=contest.timing + note, device_memory=contest.memory
    )


def _heuristic_first(
    rows: list[AlgorithmResult], own: AlgorithmResult, *, latency: bool
) -> list[AlgorithmResult]:
    """Return rows with the heuristic's own choice first, where the first is hardly faster: another run may say otherwise."""
    pair = own.algorithm, own.math_type
    row = next(
        (
            row
            for row in rows
            if (row.algorithm, row.math_type) == pair and row.ok and not row.replay
        ),
        rows[0],
    )
    best, time = (ranking_ms(each, latency=latency) for each in (rows[0], row))
    if row is rows[0] or best is None or time is None or time > _HARDLY * best:
        return rows
    told = replace(
        rows[0], remark=joined(rows[0].remark, "hardly faster than the heuristic's choice")
    )
    return [row, told, *(other for other in rows[1:] if other is not row)]


def _parse_algorithms(algorithms: Any) -> list[RNNAlgo]:
    if algorithms is None:
        return list(ALGORITHMS)
    given = sequence(algorithms, "algorithms", "a sequence of algorithms", most=99)
    found = [parse_enum(RNNAlgo, algorithm, "algorithms") for algorithm in given]
    if not found:
        raise ArgumentError("algorithms is empty; there is nothing to time")
    return found


def why_too_large(spec: RNNSpec, on_chip: int) -> str:
    """Return why PERSIST_DYNAMIC is not compiled for a network where the chip keeps so many bytes; empty if it is.

    On an H200, with 64 MiB of registers and shared memory, it took 4.6 to 51 times the time of the best where a layer's
    recurrent matrices were as large or larger (15 problems in float32), and up to 55 s to compile.
    """
    one = [
        part.shape
        for part in weight_parts(spec)
        if part.recurrent and not part.bias and part.pseudo_layer == 0
    ]
    nbytes = sum(prod(shape) for shape in one) * itemsize(spec.dtype)
    if nbytes < on_chip:
        return ""
    size, most = format_size(nbytes), format_size(on_chip)
    return f"not compiled: a layer's recurrent matrices take {size}, and what can be kept on the chip is below {most}"


class _Trial:
    """Runs and checks each candidate once; all write to the same memory.  `stack` keeps the plans of those that may win.

    `operands`: weights, x, hx and cx, on the handle's present stream.
    """

    def __init__(
        self,
        handle: Handle,
        request: RNNRequest,
        operands: Sequence[Any],
        data: RNNDataSpec,
        stack: ExitStack,
    ) -> None:
        self._handle, self._request, self._operands, self._stack = handle, request, operands, stack
        self._x, self._lengths = operands[1].spec, data.lengths
        self._check = PrefixCheck(operands, data)
        self._out: Sequence[DeviceArray | None] | None = None
        self._reserve: RNNReserve | None = None

    def run(
        self,
        candidates: Iterable[RNNResult],
        contest: Contest,
        max_error: float | None,
        hopeless: str,
    ) -> dict[Hashable, AlgorithmResult]:
        """Return the row of each candidate with what came of it; those that may be chosen are entered into the contest.

        PERSIST_DYNAMIC is compiled for each math type, for a minute where the matrices are large; in float32 an H200 took a
        quarter more with one math type than with another, at most.  So if one turns out to be hopeless, all are.
        """
        rows: dict[Hashable, AlgorithmResult] = {}
        for candidate in candidates:
            row, plan = candidate, None
            compiles = row.algorithm == RNNAlgo.PERSIST_DYNAMIC
            why_not = row.why_not or (hopeless if compiles else "")
            if why_not:
                rows[candidate] = replace(row, why_not=why_not)
                continue
            try:
                plan = self._stack.enter_context(self._plan(row))
                error, largest = self._check.errors_of(plan)
                call = self._call_of(plan)
                reserve = plan.reserve if self._request.training else None
                wrong = self._check.why_wrong(error, row.math_type) or why_inexact(error, max_error)
                row = replace(
                    row,
                    error=error,
                    max_error=largest,
                    workspace=plan.workspace,
                    reserve=reserve,
                    why_not=wrong,
                )
                if not wrong:
                    contest.enter(candidate, call)
                    if compiles and contest.is_hopeless(candidate):
                        most = f"{self._handle.timing.give_up:g} times the best"
                        hopeless = (
                            f"not compiled: with {row.math_type} math it took more than {most}"
                        )
            except (CudnnError, DeviceMemoryError) as refusal:
                row = replace(row, workspace=plan.workspace if plan else 0)
                rows[candidate] = failed(row, refusal, contest.memory)
            else:
                rows[candidate] = row
        return rows

    def replayed(self, row: AlgorithmResult) -> Replay | None:
        """Return what a plan that launches graphs tells after two calls: one is recorded, the other has other results."""
        with self._plan(row, replay=True) as plan:
            plan.describe(self._x, self._lengths)
            for out in (plan.new_outputs(), plan.new_outputs()):
                plan(*self._operands, lengths=self._lengths, out=out)
            return plan.replay

    def _plan(self, row: AlgorithmResult, *, replay: bool = False) -> RNNPlan[Any]:
        choice = AlgorithmResult(row.algorithm, row.math_type, deterministic=None)
        return RNNPlan(self._handle, self._request._replace(choice=choice), replay=replay)

    def _call_of(self, plan: RNNPlan[Any]) -> Callable[[], object]:
        """Return what makes a plan's call once, without an allocation; the reserve space is as large as any needs."""
        plan.describe(self._x, self._lengths)
        self._out = self._out or plan.new_outputs()
        if self._reserve is None or self._reserve.nbytes < plan.reserve:
            self._reserve = plan.new_reserve()
        return lambda: plan(
            *self._operands, lengths=self._lengths, out=self._out, reserve=self._reserve
        )
