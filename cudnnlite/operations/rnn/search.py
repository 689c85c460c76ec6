"""The search that cuDNN lacks: every algorithm and math type of an RNN, timed on the device and checked."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, NamedTuple

from cudnnlite.arguments import sequence
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import itemsize
from cudnnlite.enums import MathType, RNNAlgo, RNNDataLayout, parse_enum
from cudnnlite.errors import ArgumentError, CudnnError, DeviceMemoryError
from cudnnlite.operations.operands import on_device, use
from cudnnlite.operations.replay import Replay, parse_replay, with_replay
from cudnnlite.operations.rnn.accuracy import PrefixCheck
from cudnnlite.operations.rnn.choice import ALGORITHMS, heuristic
from cudnnlite.operations.rnn.outputs import RNNReserve
from cudnnlite.operations.rnn.plan import RNNPlan
from cudnnlite.operations.rnn.problem import RNNRequest, check_spec, data_spec, make_request
from cudnnlite.operations.rnn.weights import RNNWeights
from cudnnlite.search.accuracy import why_inexact
from cudnnlite.search.contest import Contest, failed, joined, own_stream
from cudnnlite.search.results import AlgorithmResult, RNNResult, deciding_ms
from cudnnlite.search.table import AlgorithmTable
from cudnnlite.sizes import format_size
from cudnnlite.specs import RNNDataSpec, RNNSpec
from cudnnlite.specs.math_types import allowed_math_types
from cudnnlite.specs.rnn_data import parse_data_layout
from cudnnlite.specs.rnn_weights import weight_parts
from cudnnlite.unknown import tells_unknown

_HARDLY = 1.03  # so many times the first's time may the heuristic's choice take, and be the first


@tells_unknown
def find_rnn_forward(
    handle: Handle, spec: RNNSpec, weights: RNNWeights, x: AnyArray, hx: AnyArray | None = None, cx: AnyArray | None = None, *,
    lengths: Iterable[int] | None = None, training: bool = False,
    layout: RNNDataLayout | str = RNNDataLayout.SEQ_MAJOR_UNPACKED, algorithms: Iterable[RNNAlgo | str] | None = None,
    workspace_limit: int | str | None = None, replay: bool = False,
) -> AlgorithmTable:  # fmt: skip
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
        Try too what calls take that a plan launches as CUDA graphs (`plan_rnn`'s ``replay=True``): of what may win by that the
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
    `plan_rnn`.  cuDNN 9 has no search for RNNs.

    Which math types a spec allows: FMA (true float32) only itself; others any but TENSOR_OP_ALLOW_CONVERSION, which rounds
    float32 to float16, unless that is the spec's own.

    Examples
    --------
    >>> lstm = dnn.RNNSpec("lstm", input_size=4, hidden_size=8)
    >>> with dnn.Handle() as handle:
    ...     weights = dnn.RNNWeights(handle, lstm)  # load the real ones first: with zeros everything is right
    ...     x = handle.array(np.ones((5, 2, 4), np.float32))
    ...     found = dnn.find_rnn_forward(handle, lstm, weights, x, algorithms=["STANDARD", "PERSIST_STATIC_SMALL_H"])
    ...     best = found.best(workspace_limit="64 MiB")
    ...     y, hy, cy = dnn.rnn_forward(handle, lstm, weights, x, algorithm=best)
    >>> print(best.ok, best.time_ms > 0)
    True True
    """
    use(handle)
    check_spec(spec)
    x = on_device(handle, x, "x")
    data = data_spec(spec, x.spec, lengths, parse_data_layout(layout))
    spec = spec.replace(dropout=0.0)
    return search_rnn_forward(
        handle, spec, weights, x, hx, cx, data, lengths is not None, training,
        list(product(_parse_algorithms(algorithms), allowed_math_types(spec.math_type, spec.dtype))),
        handle.workspace.limit_for(workspace_limit), compile_all=algorithms is not None, latency=True,
        replay=parse_replay(replay) and not training,
    )  # fmt: skip


def search_rnn_forward(
    handle: Handle, spec: RNNSpec, weights: RNNWeights, x: DeviceArray, hx: Any, cx: Any, data: RNNDataSpec,
    with_lengths: bool, training: bool, pairs: Sequence[tuple[RNNAlgo, MathType]], limit: int | None, *,
    max_error: float | None = None, compile_all: bool = False, latency: bool = False, flush_l2: bool = False,
    replay: bool = False,
) -> AlgorithmTable:  # fmt: skip
    """Do what `find_rnn_forward` does, for these pairs of algorithm and math type.

    Parameters
    ----------
    with_lengths : bool
        Whether calls will be given lengths.
    max_error : float, optional
        What has a larger relative L2 error is not timed.
    compile_all : bool
        Compile PERSIST_DYNAMIC for matrices of any size.
    latency, flush_l2 : bool
        See `Contest`.
    replay : bool
        As in `find_rnn_forward`.
    """
    choices = [AlgorithmResult(algorithm, math_type, deterministic=None) for algorithm, math_type in pairs]
    requests = [make_request(handle, spec, data, training, choice, 0.0, None, limit) for choice in choices]
    with own_stream(handle) as stream, ExitStack() as stack:
        standard = AlgorithmResult(RNNAlgo.STANDARD, spec.math_type)
        given = make_request(handle, spec, data, training, standard, 0.0, None, None)
        with RNNPlan[Any](handle, given) as plan:
            hx, cx = plan.check_operands(weights, x, hx, cx, data.lengths if with_lengths else None)
        states = [None if state is None else arrays.on_stream(state, stream) for state in (hx, cx)]
        known = data.lengths if with_lengths else None
        arguments = _Arguments(
            handle, weights.view(handle), arrays.on_stream(x, stream), states[0], states[1], known, data
        )
        contest = Contest(handle, latency=latency, flush_l2=flush_l2)
        stack.callback(contest.close)
        hopeless = "" if compile_all else why_too_large(spec, handle.timing.on_chip)
        rows = contest.finish(_try_out(requests, arguments, contest, max_error, hopeless, stack))
        if replay:
            of_pairs = dict(zip(pairs, requests, strict=True))
            rows = with_replay(rows, lambda row: _replayed(of_pairs[row.algorithm, row.math_type], arguments))
        rows = _heuristic_first(rows, heuristic(spec, data), latency=latency)
    title = f"RNN forward of {data} through {spec}{' in training' if training else ''}"
    return AlgorithmTable(rows, title=title, timing=contest.timing, device_memory=handle.device.memory_info()[1])


def _heuristic_first(rows: list[AlgorithmResult], own: AlgorithmResult, *, latency: bool) -> list[AlgorithmResult]:
    """Return rows with the heuristic's own choice first, where the first is hardly faster: another run may say otherwise."""
    if not rows:
        return rows
    pair = own.algorithm, own.math_type
    row = next((row for row in rows if (row.algorithm, row.math_type) == pair and row.ok and not row.replay), rows[0])
    best, time = (deciding_ms(each, latency=latency) for each in (rows[0], row))
    if row is rows[0] or best is None or time is None or time > _HARDLY * best:
        return rows
    told = replace(rows[0], remark=joined(rows[0].remark, "hardly faster than the heuristic's choice"))
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
    one = [part.shape for part in weight_parts(spec) if part.recurrent and not part.bias and part.pseudo_layer == 0]
    nbytes = sum(prod(shape) for shape in one) * itemsize(spec.dtype)
    if nbytes < on_chip:
        return ""
    size, most = format_size(nbytes), format_size(on_chip)
    return f"not compiled: a layer's recurrent matrices take {size}, and what can be kept on the chip is below {most}"


class _Arguments(NamedTuple):
    """What every candidate is called with, on the handle's present stream."""

    handle: Handle
    weights: RNNWeights
    x: DeviceArray
    hx: DeviceArray | None
    cx: DeviceArray | None
    lengths: tuple[int, ...] | None
    data: RNNDataSpec


class _Outputs:
    """What all candidates write to, one after the other."""

    def __init__(self) -> None:
        self.out: Sequence[DeviceArray] | None = None
        self.reserve: RNNReserve | None = None

    def make_room(self, plan: RNNPlan[Any]) -> None:
        """Allocate what a plan writes to, where it is not there yet, or too small."""
        if self.out is None:
            self.out = [array for array in plan.new_outputs() if array is not None]
        if self.reserve is None or self.reserve.nbytes < plan.reserve:
            self.reserve = plan.new_reserve()


def _candidate(plan: RNNPlan[Any], given: _Arguments, to: _Outputs) -> Callable[[], object]:
    """Return what makes a plan's call once, without an allocation."""
    plan.describe(given.x.spec, given.lengths)
    to.make_room(plan)
    return lambda: plan(
        given.weights, given.x, given.hx, given.cx, lengths=given.lengths, out=to.out, reserve=to.reserve
    )


def _try_out(
    requests: list[RNNRequest], arguments: _Arguments, contest: Contest, max_error: float | None, hopeless: str,
    stack: ExitStack,
) -> dict[Hashable, AlgorithmResult]:  # fmt: skip
    """Run and check each candidate once; return a row for each request.  `stack` keeps the plans of those that entered.

    PERSIST_DYNAMIC is compiled for each math type, for a minute where the matrices are large; in float32 an H200 took a
    quarter more with one math type than with another, at most.  So if one turns out to be hopeless, all are.
    """
    handle = arguments.handle
    check = PrefixCheck(arguments.weights, arguments.x, arguments.hx, arguments.cx, arguments.data)
    rows: dict[Hashable, AlgorithmResult] = {}
    outputs = _Outputs()
    for request in requests:
        choice, plan = request.choice, None
        row = RNNResult(choice.algorithm, choice.math_type, deterministic=None)
        compiles = row.algorithm == RNNAlgo.PERSIST_DYNAMIC
        if hopeless and compiles:
            rows[request] = replace(row, why_not=hopeless)
            continue
        try:
            plan = stack.enter_context(RNNPlan[Any](handle, request))
            error, largest = check.errors_of(plan)
            candidate = _candidate(plan, arguments, outputs)
            reserve = plan.reserve if request.training else None
            wrong = check.why_wrong(error, row.math_type) or why_inexact(error, max_error)
            row = replace(row, error=error, max_error=largest, workspace=plan.workspace, reserve=reserve, why_not=wrong)
            if not wrong:
                contest.enter(request, candidate)
                if compiles and contest.is_hopeless(request):
                    most = f"{handle.timing.give_up:g} times the best"
                    hopeless = f"not compiled: with {row.math_type} math it took more than {most}"
        except (CudnnError, DeviceMemoryError) as refusal:
            rows[request] = failed(handle, replace(row, workspace=plan.workspace if plan else 0), refusal)
        else:
            rows[request] = row
    return rows


def _replayed(request: RNNRequest, arguments: _Arguments) -> Replay | None:
    """Return what a plan that launches graphs tells after two calls: the first is recorded, the second has other results."""
    with RNNPlan[Any](arguments.handle, request, replay=True) as plan:
        both = _Outputs(), _Outputs()
        for outputs in both:
            _candidate(plan, arguments, outputs)()
        return plan.replay
