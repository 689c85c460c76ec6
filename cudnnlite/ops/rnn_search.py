"""The search that cuDNN lacks: every algorithm and math type of an RNN, timed on the device and checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from cudnnlite import arrays
from cudnnlite.arrays import DeviceArray
from cudnnlite.enums import RNNAlgo, RNNDataLayout, Status, parse_enum
from cudnnlite.errors import ArgumentError, CudnnError, DeviceMemoryError
from cudnnlite.handle import Handle
from cudnnlite.ops.operands import on_device, use
from cudnnlite.ops.rnn_accuracy import PrefixCheck
from cudnnlite.ops.rnn_choice import ALGORITHMS, allowed_math_types
from cudnnlite.ops.rnn_outputs import RNNReserve
from cudnnlite.ops.rnn_plan import RNNPlan
from cudnnlite.ops.rnn_problem import RNNRequest, check_spec, data_spec, make_request
from cudnnlite.results import AlgorithmResult, AlgorithmTable
from cudnnlite.rnn_weights import RNNWeights
from cudnnlite.specs import RNNDataSpec, RNNSpec
from cudnnlite.specs.rnn_data import parse_data_layout
from cudnnlite.timing import GIVE_UP, Stopwatch


def find_rnn_forward(
    handle: Handle,
    spec: RNNSpec,
    weights: RNNWeights,
    x: Any,
    hx: Any = None,
    cx: Any = None,
    *,
    lengths: Sequence[int] | None = None,
    training: bool = False,
    layout: RNNDataLayout | str = RNNDataLayout.SEQ_MAJOR_UNPACKED,
    algorithms: Iterable[RNNAlgo | str] = ALGORITHMS,
    workspace_limit: int | str | None = None,
) -> AlgorithmTable:
    """Time every algorithm and math type that the spec allows on these arrays, and check what each computes.

    Each candidate first runs over the first steps of the sequences; what it computes for some of them is compared with a
    reference in float64, so that an algorithm which computes garbage is not chosen; in training, the backward pass over the
    data is tried too.  Then it runs once in full; if that takes three times the best, it is not repeated (but once, where it
    took less than 50 ms, of which kernels that were loaded may have a share).  The others are recorded into CUDA graphs and
    replayed in shuffled rounds; the median counts.  So the times are the device's; a call outside a graph also costs the
    host's share, which is large for STANDARD (it launches kernels for each step) and small for the PERSIST algorithms.

    Parameters
    ----------
    handle : Handle
        Waited for: the search synchronises.
    spec, weights, x, hx, cx, lengths, training, layout
        As in `rnn_forward`.  Dropout is left out, so that no random numbers are used up; its masks are part of the reserve
        space of a real call, and not of the table's.
    algorithms : iterable of RNNAlgo or str
        What to try; all if not given.  For PERSIST_DYNAMIC cuDNN compiles a kernel, which takes most of the search; where its
        first math type turns out slower than three times the best, no other is compiled.
    workspace_limit : int or str, optional
        What needs more is not tried; the handle's limit if not given.

    Returns
    -------
    AlgorithmTable
        The fastest first, with workspace, reserve space (in training) and relative L2 error; those that cannot be used
        last, with the reason.  cuDNN does not say which are deterministic.  Pass a row, such as ``found.best()``, to
        `rnn_forward` as `algorithm`.

    Raises
    ------
    ArgumentError, ArrayTypeError, DeviceMemoryError
        As in `rnn_forward`.

    Notes
    -----
    C function that is timed: `cudnnRNNForward`; cuDNN 9 has no search for RNNs.

    Which math types a spec allows: FMA (true float32) only itself; others any but TENSOR_OP_ALLOW_CONVERSION, which rounds
    float32 to float16, unless that is the spec's own.
    """
    use(handle)
    check_spec(spec)
    x = on_device(handle, x, "x")
    data = data_spec(spec, x.spec, lengths, parse_data_layout(layout))
    spec = spec.replace(dropout=0.0)
    choices = [
        AlgorithmResult(algorithm, math_type, deterministic=None)
        for algorithm in _parse_algorithms(algorithms)
        for math_type in allowed_math_types(spec)
    ]
    limit = handle.workspace.limit_for(workspace_limit)
    requests = [make_request(handle, spec, data, training, choice, 0.0, None, limit) for choice in choices]
    with _own_stream(handle) as stream:
        standard = AlgorithmResult(RNNAlgo.STANDARD, spec.math_type)
        with RNNPlan(handle, requests[0]._replace(choice=standard, workspace_limit=None)) as plan:
            hx, cx = plan.check_operands(weights, x, hx, cx, lengths)
        states = [None if state is None else arrays.on_stream(state, stream) for state in (hx, cx)]
        known = None if lengths is None else data.lengths
        arguments = _Arguments(
            handle, weights.view(handle), arrays.on_stream(x, stream), states[0], states[1], known, data
        )
        rows, replayed = _measure(requests, arguments)
    how = "median of CUDA graph replays" if replayed else "median of calls"
    title = f"RNN forward of {data} through {spec}{' in training' if training else ''}"
    return AlgorithmTable(
        rows, title=title, timing=f"{how} on {handle.device}", device_memory=handle.device.memory_info()[1]
    )


def _parse_algorithms(algorithms: Any) -> list[RNNAlgo]:
    if isinstance(algorithms, (str, int)) or not isinstance(algorithms, Iterable):
        raise ArgumentError(f"algorithms={algorithms!r} is not a sequence of algorithms")
    found = [parse_enum(RNNAlgo, algorithm, "algorithms") for algorithm in algorithms]
    if not found:
        raise ArgumentError("algorithms is empty; there is nothing to time")
    return found


@contextmanager
def _own_stream(handle: Handle) -> Iterator[Any]:
    """Put the handle on a stream of its own, which can be recorded, for the time of the search."""
    before = handle.stream
    own = handle.device.create_stream()
    own.wait(before)
    handle.stream = own
    try:
        yield own
    finally:
        own.sync()
        handle.workspace.release(own)
        handle.stream = before


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

    def make_room(self, plan: RNNPlan) -> None:
        """Allocate what a plan writes to, where it is not there yet, or too small."""
        if self.out is None:
            self.out = [array for array in plan.new_outputs() if array is not None]
        if self.reserve is None or self.reserve.nbytes < plan.reserve:
            self.reserve = plan.new_reserve()


class _Candidate:
    """One algorithm and math type; called, it makes the call once, without an allocation."""

    def __init__(self, plan: RNNPlan, arguments: _Arguments, outputs: _Outputs) -> None:
        self._plan, self._arguments, self._outputs = plan, arguments, outputs
        plan.describe(arguments.x.spec, arguments.lengths)
        outputs.make_room(plan)
        self.first = 0.0

    def __call__(self) -> None:
        given, to = self._arguments, self._outputs
        self._plan(given.weights, given.x, given.hx, given.cx, lengths=given.lengths, out=to.out, reserve=to.reserve)


def _why_hopeless(stopwatch: Stopwatch, candidate: _Candidate, request: RNNRequest) -> str:
    """Return why PERSIST_DYNAMIC is not compiled for further math types; empty if it is.

    On an H200 a search that compiled for three math types took a minute for an LSTM of hidden size 4096, and in float32 the
    times differed by a quarter at most between them.
    """
    (candidate.first,) = stopwatch.look_again([candidate], [candidate.first])
    if stopwatch.is_worth(candidate.first):
        return ""
    return f"not compiled: with {request.choice.math_type} math it took more than {GIVE_UP:g} times the best"


def _measure(requests: list[RNNRequest], arguments: _Arguments) -> tuple[list[AlgorithmResult], bool]:
    """Return a row for each request, best first, and whether the times are of replayed graphs."""
    handle = arguments.handle
    stopwatch = Stopwatch(handle.device, handle.stream)
    check = PrefixCheck(arguments.weights, arguments.x, arguments.hx, arguments.cx, arguments.data)
    rows: dict[RNNRequest, AlgorithmResult] = {}
    running: dict[RNNRequest, _Candidate] = {}
    outputs = _Outputs()
    hopeless = ""
    with ExitStack() as stack:
        for request in requests:
            row = AlgorithmResult(request.choice.algorithm, request.choice.math_type, deterministic=None)
            plan = None
            if hopeless and request.choice.algorithm == RNNAlgo.PERSIST_DYNAMIC:
                rows[request] = replace(row, why_not=hopeless)
                continue
            try:
                plan = stack.enter_context(RNNPlan(handle, request))
                error = check.error_of(plan)
                candidate = _Candidate(plan, arguments, outputs)
                reserve = plan.reserve if request.training else None
                row = replace(row, error=error, workspace=plan.workspace, reserve=reserve)
                wrong = check.why_wrong(error, request.choice.math_type)
                if wrong:
                    row = replace(row, why_not=wrong)
                else:
                    candidate.first = stopwatch.first(candidate)
                    running[request] = candidate
                    if request.choice.algorithm == RNNAlgo.PERSIST_DYNAMIC:
                        hopeless = _why_hopeless(stopwatch, candidate, request)
            except CudnnError as refused:
                row = replace(row, status=Status(refused.status), why_not="; ".join(refused.notes) or refused.detail)
            except DeviceMemoryError as refused:
                row = replace(row, why_not=str(refused), workspace=plan.workspace if plan else 0)
            rows[request] = row
        candidates = list(running.items())
        works, firsts = [c for _, c in candidates], [c.first for _, c in candidates]
        firsts = stopwatch.look_again(works, firsts)
        worth = [position for position, ms in enumerate(firsts) if stopwatch.is_worth(ms)]
        timings = stopwatch.repeat([works[position] for position in worth], [firsts[position] for position in worth])
        remark = f"not repeated: more than {GIVE_UP:g} times the best"
        for (request, _), ms in zip(candidates, firsts, strict=True):
            rows[request] = replace(rows[request], time_ms=ms, remark=remark)
        for position, timing in zip(worth, timings, strict=True):
            request = candidates[position][0]
            rows[request] = replace(rows[request], time_ms=timing.ms, remark="")
    ordered = sorted(rows.values(), key=lambda row: (not row.ok, row.time_ms is None, row.time_ms))
    return ordered, any(timing.replayed for timing in timings)
