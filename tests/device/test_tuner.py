"""Tuner: every candidate is a row with its reason, and constraints exclude.

The user's data and handle do not change.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.harness import World
from tolerances import bound

import cudnnlite as dnn
from cudnnlite import convolution_forward, rnn_forward
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.plans.choice import set_chooser
from cudnnlite.problems.results import ranking_ms
from cudnnlite.types import Problem
from cudnnlite.workbench.tuning.timing_policy import TimingPolicy

from .problems import ALGORITHMS, FIRST, LAST, PATTERN, Array, fill, memory_of, upload, with_gaps
from .problems import Problem as Case
from .test_memory import used
from .test_plan import count_calls
from .test_rnn_plan import LENGTHS, Network

A, M, S = dnn.enums.ConvolutionFwdAlgo, dnn.MathType, dnn.enums.Status
FORWARD, FIND = "cudnnConvolutionForward", "cudnnFindConvolutionForwardAlgorithmEx"
RNN_FORWARD = "cudnnRNNForward"
HEURISTIC, WORKSPACE = (
    "cudnnGetConvolutionForwardAlgorithm_v7",
    "cudnnGetConvolutionForwardWorkspaceSize",
)
RUNNING = (FORWARD, FIND, RNN_FORWARD)
X, W, Y = (2, 4, 9, 8), (6, 4, 3, 3), (2, 6, 9, 8)
FMA = dnn.ConvolutionSpec(1, math_type="fma")
SMALL = convolution_forward.problem(dnn.TensorSpec(X), dnn.FilterSpec(W), FMA)
LSTM = rnn_forward.problem(
    dnn.RNNSpec("lstm", 6, 8, math_type="fma"), None, dnn.specs.RNNDataSpec((5, 4, 6))
)
PROBLEMS: dict[str, Problem] = {"convolution": SMALL, "rnn": LSTM}
ALLOWED = {
    "FMA": {"FMA"},
    "DEFAULT": {"DEFAULT", "TENSOR_OP", "FMA"},
    "TENSOR_OP": {"DEFAULT", "TENSOR_OP", "FMA"},
    "TENSOR_OP_ALLOW_CONVERSION": {"TENSOR_OP_ALLOW_CONVERSION", "DEFAULT", "TENSOR_OP", "FMA"},
}

QUICK = TimingPolicy(rounds=2, further_rounds=0, sample_ms=0.0, most_calls=1, l2_bytes=1 << 20)


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few samples do, in every tuner: how well times are taken is tested elsewhere."""
    monkeypatch.setattr(dnn.Tuner, "timing", QUICK)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


def tuner_of(handle: dnn.Handle, cache: Any = ":memory:", **policy: Any) -> dnn.Tuner:
    """Return a tuner with a cache in memory and these fields of the policy.

    It uses the descriptor call; `test_engines` covers the graph API.
    """
    return dnn.Tuner(
        handle,
        cache,
        dnn.TuningPolicy(
            **{"interface": "descriptor", "objective": "device", "layouts": (), **policy}
        ),
    )


def problem_of(case: Case, **options: Any) -> Problem:
    """Return the problem that a case's arrays pose."""
    w = dnn.FilterSpec(case.w.shape, case.w.spec.dtype, case.w.layout)
    return convolution_forward.problem(case.x.spec, w, case.conv, **options)


def names(rows: Any) -> list[str]:
    return [f"{row.algorithm.name} {row.math_type.name} {row.layout}".strip() for row in rows]


class Call(NamedTuple):
    """What cuDNN was asked to do once."""

    algorithm: A
    math_type: M
    x: int
    w: int
    y: int


def forward_calls(
    monkeypatch: pytest.MonkeyPatch, handle: dnn.Handle, after: Any = None
) -> list[Call]:
    """Return a list of all `cudnnConvolutionForward` calls; `after(call)` runs behind each."""
    calls: list[Call] = []
    api, forward = handle.api, handle.api.cudnnConvolutionForward
    position = {name: number for number, name in enumerate(FUNCTIONS[FORWARD].argnames)}

    def spy(*arguments: Any) -> None:
        def address(name: str) -> int:
            return ctypes.cast(arguments[position[name]], ctypes.c_void_p).value or 0

        algorithm = arguments[position["algo"]]
        math_type = dnn.ConvolutionDescriptor.read(api, arguments[position["convDesc"]]).math_type
        calls.append(
            Call(
                A(getattr(algorithm, "value", algorithm)),
                math_type,
                address("x"),
                address("w"),
                address("y"),
            )
        )
        forward(*arguments)
        if after is not None:
            after(calls[-1])

    monkeypatch.setattr(api, FORWARD, spy)
    return calls


def assert_ordered(table: dnn.AlgorithmTable, by: str = "time_ms") -> None:
    """What can be used comes first, the best of it first; what cannot says why."""
    ok = [row.ok for row in table]
    assert ok == sorted(ok, reverse=True)
    ranking_times = [ranking_ms(row, latency=by == "call_us") for row in table if row.ok]
    # The first row may tie within the noise, with less host time. A heuristic's choice that is as
    # good may stand before it.
    moved = 1 + any("hardly faster" in row.remark for row in table)
    assert ranking_times[moved:] == sorted(ranking_times[moved:])
    is_tied = moved > 1 or any(row.within_noise for row in table)
    assert ranking_times[0] == min(ranking_times) or is_tied
    for row in table:
        if row.ok:
            assert row.time_ms is not None
            assert row.time_ms > 0
            assert row.workspace >= 0
            assert row.why_not == ""
            assert row.remark or row.spread_ms is not None
        else:
            assert row.time_ms is row.call_us is None
            assert row.why_not or row.status != S.SUCCESS


# ---------------------------------------------------------------- rows


@pytest.mark.parametrize("math_type", ALLOWED)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_algorithm_with_every_math_type_that_is_allowed(
    handle: dnn.Handle, dtype: str, math_type: str
) -> None:
    case = Case(handle, X, W, dtype, padding=1, math_type=math_type)
    table = tuner_of(handle).tune(problem_of(case))
    pairs = [(row.algorithm, row.math_type.name) for row in table]
    assert len(pairs) == len(set(pairs))
    # to half precision a conversion means nothing that TENSOR_OP does not
    effective_type = (
        "TENSOR_OP"
        if dtype == "float16" and math_type == "TENSOR_OP_ALLOW_CONVERSION"
        else math_type
    )
    assert set(pairs) == set(itertools.product(ALGORITHMS, ALLOWED[effective_type]))
    assert {row.layout for row in table} == {""}
    assert_ordered(table)
    assert table[0].ok
    assert table.title == str(problem_of(case))
    assert str(handle.device) in table.timing


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_dtypes(handle: dnn.Handle, dtype: str) -> None:
    case = Case(handle, X, W, dtype, padding=1)
    table = tuner_of(handle).tune(problem_of(case))
    assert len(table) == 3 * len(ALGORITHMS)
    assert_ordered(table)
    case.assert_right(
        case.run(algorithm=table.best()), table[0].algorithm, math_type=table[0].math_type
    )


@pytest.mark.parametrize("rank", [3, 4, 5])
@pytest.mark.parametrize("layouts", [FIRST, LAST], ids=["first", "last"])
def test_layouts_on_request(handle: dnn.Handle, layouts: dict[int, str], rank: int) -> None:
    """The other layout is tried, under its name at this rank, and the operands' own only once."""
    image, taps = (2, 4, 5, 6, 7)[:rank], (6, 4, 3, 3, 3)[:rank]
    case = Case(handle, image, taps, "float16", layouts[rank], padding=1, math_type="fma")
    other = (LAST if layouts is FIRST else FIRST)[rank]
    table = tuner_of(handle, layouts=["NHWC", "NCHW", "NHWC"]).tune(problem_of(case))
    assert sorted(names(table)) == sorted(
        f"{algorithm.name} FMA {layout}".strip()
        for algorithm in ALGORITHMS
        for layout in ("", other)
    )
    assert_ordered(table)
    converted = [row for row in table if row.ok and row.layout]
    assert converted
    for row in converted:
        assert row.find_ms is None
        assert row.workspace > 0  # the converted operands are in it
        case.assert_right(case.run(algorithm=row), row.algorithm, math_type=row.math_type)
    assert {row.layout for row in tuner_of(handle).tune(problem_of(case))} == {""}


def test_a_filter_in_another_layout_than_the_images(handle: dnn.Handle) -> None:
    """Only where both lie in a layout is there nothing to convert."""
    case = Case(handle, X, W, "float16", "NHWC", w_layout="NCHW", padding=1, math_type="fma")
    table = tuner_of(handle, layouts=["NHWC", "NCHW"]).tune(problem_of(case))
    assert {row.layout for row in table} == {"", "NHWC", "NCHW"}
    for row in table:
        if row.ok:
            case.assert_right(case.run(algorithm=row), row.algorithm)


def test_strided_operands_in_both_layouts(handle: dnn.Handle) -> None:
    case = Case(handle, X, W, padding=1, math_type="fma")
    spec, y = with_gaps(X, "float32"), with_gaps(Y, "float32", last=True)
    case.x = upload(handle, spec, case.x_host)
    table = tuner_of(handle, layouts=["NHWC", "NCHW"]).tune(problem_of(case, out=y))
    assert len(table) == 3 * len(ALGORITHMS)
    assert_ordered(table)
    for row in table:
        if row.ok:
            case.assert_right(
                case.run(algorithm=row, out=upload(handle, y, case.old_host)), row.algorithm
            )


@pytest.mark.parametrize("beta", [0.0, -0.5])
def test_integers(handle: dnn.Handle, beta: float) -> None:
    """Integers are exact, so there is no error.

    A layout that beta excludes is a row like any other.
    """
    case = Case(handle, X, (8, 4, 3, 3), "int8", padding=1)
    table = tuner_of(handle, layouts=["NHWC"]).tune(problem_of(case, beta=beta))
    assert len(table) == 2 * 3 * len(ALGORITHMS)
    assert all(row.error is row.max_error is None for row in table)
    if beta:
        assert all("allowed: beta=0" in row.why_not for row in table if row.layout)
        with pytest.raises(
            dnn.NoAlgorithmError, match=r"IMPLICIT_GEMM \(DEFAULT, in NHWC\): beta=-0.5 with"
        ):
            table.best()
    else:
        assert table[0].layout == "NHWC"
        case.assert_right(case.run(algorithm=table.best()), table[0].algorithm)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_each_row_that_can_be_used_is_right(handle: dnn.Handle, dtype: str) -> None:
    """Each row is applied with its math type, and its error is within the algorithm's bound."""
    case = Case(handle, X, W, dtype, padding=1)
    table = tuner_of(handle).tune(problem_of(case))
    usable = [row for row in table if row.ok]
    assert len(usable) >= 4
    for row in usable:
        case.assert_right(case.run(algorithm=row), row.algorithm, math_type=row.math_type)
        assert row.error is not None
        assert row.max_error is not None
        assert 0 < row.error <= bound(dtype, row.math_type, row.algorithm, W)
        assert row.max_error <= 10 * row.error


def test_math_types_that_run_one_kernel_share_its_times(handle: dnn.Handle) -> None:
    """Math types run one kernel if their results are equal to the last bit.

    Noise would rank them otherwise, and to time each took half of a search.
    """
    case = Case(handle, (2, 32, 14, 13), (24, 32, 3, 3), padding=1)
    kernels: dict[Any, list[dnn.AlgorithmResult]] = {}
    for row in tuner_of(handle).tune(problem_of(case)):
        if row.ok:
            times = (row.time_ms, row.spread_ms, row.call_us, row.host_us)
            kernels.setdefault((row.workspace, row.error, row.max_error, *times), []).append(row)
    shared = [rows for rows in kernels.values() if len(rows) > 1]
    shared_rows = [row for rows in kernels.values() for row in rows if row.same_kernel]
    assert len(shared_rows) == sum(len(rows) - 1 for rows in shared) > 0


class Steady(EmulatedDevice):
    """An emulated device that does not say which kernel it ran, as a GPU does not.

    Every run takes about as long.
    """

    kind = "cuda"
    ran = frozenset[str]()
    _runs = itertools.count(1)

    def elapsed_ms(self, work: Any, stream: Any) -> float:
        super().elapsed_ms(work, stream)
        return 0.02 + 1e-7 * next(self._runs)


@pytest.mark.parametrize("device", ["emulated"], indirect=True)
def test_the_last_bits_tell_kernels_apart(device: Any) -> None:
    """The rule is for rounded sums.

    In exact sums the kernels of all math types agree.
    """
    one = convolution_forward.problem(dnn.TensorSpec(X), dnn.FilterSpec(W), dnn.ConvolutionSpec(1))
    half = convolution_forward.problem(
        dnn.TensorSpec(X, "float16"), dnn.FilterSpec(W, "float16"), one.conv
    )
    whole = {
        name: np.arange(1, 1 + np.prod(shape)).reshape(shape) % 7
        for name, shape in (("x", X), ("w", W))
    }
    with dnn.Handle(Steady(43, capacity="256 MiB")) as handle, tuner_of(handle) as tuner:
        integers = {name: handle.array(values.astype(np.float32)) for name, values in whole.items()}
        precomp = {
            row.math_type: row
            for row in tuner.tune(one)
            if row.algorithm == A.IMPLICIT_PRECOMP_GEMM
        }
        assert {kind for kind, row in precomp.items() if row.same_kernel} == {M.TENSOR_OP}, (
            "FMA has another kernel"
        )
        assert precomp[M.TENSOR_OP].time_ms == precomp[M.DEFAULT].time_ms != precomp[M.FMA].time_ms
        for problem, operands in ((one.replace(alpha=1 / 7), integers), (half, None)):
            usable = [row for row in tuner.tune(problem, operands=operands) if row.ok]
            assert len(usable) > 10
            assert not [row for row in usable if row.same_kernel]


def test_what_cudnn_says_of_each(handle: dnn.Handle) -> None:
    """Determinism is the heuristic's word, and cudnnFind's figure stays beside ours."""
    table = tuner_of(handle).tune(SMALL)
    table_of_heuristic = dnn.convolution_forward.heuristic(handle, SMALL.x, SMALL.w, SMALL.conv)
    determinism = {row.algorithm: row.deterministic for row in table_of_heuristic}
    for row in table:
        assert row.deterministic == determinism.get(row.algorithm)
        assert row.find_ms is None or row.find_ms > 0
    assert any(row.find_ms is not None for row in table if row.ok)


def test_cudnn_is_asked_for_tensor_cores_in_half_precision(handle: dnn.Handle) -> None:
    """cuDNN's search has the math type of a call that names none.

    Without tensor cores it is ten times slower, and beating it means nothing.
    """
    x, w = dnn.TensorSpec((2, 8, 9, 8), "float16"), dnn.FilterSpec((8, 8, 3, 3), "float16")
    table = tuner_of(handle).tune(dnn.convolution_forward.problem(x, w, dnn.ConvolutionSpec()))
    assert "TENSOR_OP" in {row.math_type.name for row in table if row.find_ms is not None}


def test_what_cudnn_refuses_says_so(handle: dnn.Handle) -> None:
    problem = convolution_forward.problem(
        SMALL.x, SMALL.w, dnn.ConvolutionSpec(1, 2, math_type="fma")
    )
    table = tuner_of(handle).tune(problem)
    refused = {row.algorithm: row for row in table if not row.ok}
    assert A.WINOGRAD_NONFUSED in refused, "Winograd has no strides"
    for row in refused.values():
        assert row.status.name.startswith("NOT_SUPPORTED")
        assert row.status.name in str(table)


@pytest.mark.parametrize("objective", ["device", "latency"])
def test_the_objective_orders_them(handle: dnn.Handle, objective: str) -> None:
    table = tuner_of(handle, objective=objective).tune(SMALL)
    assert_ordered(table, "time_ms" if objective == "device" else "call_us")
    assert table.best() == table[0]
    for row in table:
        assert not row.replay or objective == "latency"
        if row.replay:  # of a launched graph with its copies the host's time alone is not told
            assert row.call_us > 0
            assert row.host_us is None
        elif row.call_us is not None:
            assert 0 < row.host_us <= row.call_us


def test_flushing_the_cache(handle: dnn.Handle) -> None:
    before = used(handle.device)
    table = tuner_of(handle, flush_l2=True).tune(SMALL)
    assert "operands not in the cache" in table.timing
    assert_ordered(table)
    assert used(handle.device) <= before


@pytest.mark.parametrize("alpha", [1e6, -1e-6, 0.0, 3.0])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_scalars_that_stretch_the_range(handle: dnn.Handle, dtype: str, alpha: float) -> None:
    """What is made up to measure with is chosen so that float16 holds the result."""
    case = Case(handle, X, W, dtype, padding=1, math_type="fma")
    table = tuner_of(handle).tune(problem_of(case, alpha=alpha))
    assert any(row.ok for row in table)
    assert all(row.status != S.SUCCESS for row in table if not row.ok)


@pytest.mark.parametrize("beta", [2.0, -30.0])
def test_beta_again_and_again(handle: dnn.Handle, beta: float) -> None:
    """A candidate runs many times on its own result: that overflows, and nobody minds."""
    case = Case(handle, X, W, "float16", padding=1)
    table = tuner_of(handle).tune(problem_of(case, beta=beta))
    assert_ordered(table)
    out = upload(handle, case.output_spec, case.old_host)
    y = case.run(out=out, beta=beta, algorithm=table.best())
    case.assert_right(y, table[0].algorithm, beta=beta, math_type=table[0].math_type)


# ---------------------------------------------------------------- what must not be chosen


@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x3C], ids=["zeros", "nan", "numbers"])
def test_an_algorithm_that_computes_garbage(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, byte: int
) -> None:
    case = Case(handle, X, W, padding=1)

    def spoil(call: Call) -> None:
        if call.algorithm == A.GEMM:
            handle.device.fill(call.y, int(np.prod(Y)) * 4, byte, handle.stream)

    calls = forward_calls(monkeypatch, handle, spoil)
    table = tuner_of(handle).tune(problem_of(case))
    rows = [row for row in table if row.algorithm == A.GEMM]
    assert len(rows) == 3
    for row in rows:
        assert not row.ok
        assert row.status == S.SUCCESS
        assert row.why_not.startswith("wrong: relative error ")
        assert row.error is not None
        assert row.error > 0.1
        assert np.isinf(row.error) == (byte == 0xFF)
    assert sum(call.algorithm == A.GEMM for call in calls) == 3, (
        "what computes garbage is not timed"
    )
    assert table.best().algorithm != A.GEMM
    assert "GEMM (FMA): not chosen: wrong: relative error" in table.explain()


def test_an_algorithm_that_writes_nothing(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output is poisoned before each candidate, so an older result does not count."""
    forward = handle.api.cudnnConvolutionForward
    position = FUNCTIONS[FORWARD].argnames.index("algo")

    def lazy(*arguments: Any) -> None:
        if getattr(arguments[position], "value", arguments[position]) != A.IMPLICIT_GEMM:
            forward(*arguments)

    monkeypatch.setattr(handle.api, FORWARD, lazy)
    table = tuner_of(handle).tune(problem_of(Case(handle, X, W, padding=1)))
    rows = [row for row in table if row.algorithm == A.IMPLICIT_GEMM]
    assert len(rows) == 3
    assert all(np.isinf(row.error) and row.why_not.startswith("wrong: ") for row in rows)
    assert table[0].ok


@pytest.mark.parametrize("function", [FORWARD, WORKSPACE])
@pytest.mark.parametrize("status", [S.NOT_SUPPORTED, S.EXECUTION_FAILED, S.INTERNAL_ERROR], ids=str)
def test_what_fails_is_a_row(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, status: dnn.enums.Status, function: str
) -> None:
    """One candidate's failure is its own, and the message is cuDNN's."""
    real, failed = getattr(handle.api, function), []
    position = FUNCTIONS[function].argnames.index("algo")

    def refuse(*arguments: Any) -> None:
        if getattr(arguments[position], "value", arguments[position]) != A.GEMM:
            return real(*arguments)
        failed.append(function)
        raise dnn.CudnnError(function, status, "for a reason")

    monkeypatch.setattr(handle.api, function, refuse)
    monkeypatch.setattr(
        handle.api, FIND, lambda *_: (_ for _ in ()).throw(dnn.CudnnError(FIND, status, "no"))
    )
    tuner = tuner_of(handle)
    if status == S.NOT_SUPPORTED:
        table = tuner.tune(SMALL)
    else:
        with pytest.warns(
            dnn.errors.TuningWarning, match=r"GEMM failed, perhaps temporarily \(for a reason\)"
        ):
            table = tuner.tune(SMALL)
    (row,) = (row for row in table if row.algorithm == A.GEMM)
    assert failed
    assert row.status == status
    assert row.why_not == "for a reason"
    assert row.transient == (status != S.NOT_SUPPORTED)
    assert row.find_ms is None
    assert table[0].ok
    assert_ordered(table)


def test_memory_that_is_not_there_is_a_row(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = {row.algorithm: row.workspace for row in tuner_of(handle).tune(SMALL) if row.ok}
    most = max(needed.values())
    assert most > 0
    allocate = handle.device.allocate

    def little(nbytes: int, stream: Any) -> Any:
        if nbytes == most:
            raise dnn.DeviceMemoryError("no more")
        return allocate(nbytes, stream)

    monkeypatch.setattr(handle.device, "allocate", little)
    with pytest.warns(
        dnn.errors.TuningWarning,
        match=r"perhaps temporarily \(no more\); the choice is kept for this tuner only",
    ):
        table = tuner_of(handle).tune(SMALL)
    assert {row.algorithm for row in table if row.transient} == {
        row.algorithm for row in table if row.why_not == "no more"
    }
    failed = {row.algorithm for row in table if row.why_not == "no more"}
    assert failed == {algorithm for algorithm, size in needed.items() if size == most}
    assert table[0].ok


# ---------------------------------------------------------------- the user's operands


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("layouts", [(), ("NHWC",)], ids=["own", "converted"])
def test_the_operands_are_measured_and_not_written(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, beta: float, layouts: Any
) -> None:
    case = Case(handle, X, W, padding=1)
    out = upload(handle, with_gaps(Y, "float32"), case.old_host)
    operands = {"x": case.x, "w": case.w, "out": out}
    before = {name: memory_of(array) for name, array in operands.items()}
    with monkeypatch.context() as patch:
        calls = forward_calls(patch, handle)
        table = tuner_of(handle, layouts=layouts).tune(
            problem_of(case, out=out.spec, beta=beta), operands
        )
    for name, array in operands.items():
        np.testing.assert_array_equal(memory_of(array), before[name], err_msg=name)
    assert out.ptr not in {call.y for call in calls}
    read = {(call.x, call.w) for call in calls}
    assert (case.x.ptr, case.w.ptr) in read
    assert bool(layouts) or read == {(case.x.ptr, case.w.ptr)}
    y = case.run(out=out, beta=beta, algorithm=table.best())
    case.assert_right(y, table[0].algorithm, beta=beta, math_type=table[0].math_type)


def test_errors_are_those_of_the_users_data(handle: dnn.Handle) -> None:
    """Small whole numbers are exact in TF32, and so are their sums."""
    case = Case(
        handle,
        X,
        W,
        padding=1,
        values=lambda rng, shape, dtype: rng.integers(-4, 5, shape).astype(dtype),
    )
    problem = problem_of(case, beta=2.0)
    out = upload(handle, case.output_spec, case.old_host)
    table = tuner_of(handle).tune(problem, {"x": case.x, "w": case.w, "out": out})
    exact = {
        row.algorithm: row.error
        for row in table
        if row.ok and row.algorithm in (A.IMPLICIT_GEMM, A.GEMM)
    }
    assert exact
    assert set(exact.values()) == {0.0}
    made_up = tuner_of(handle).tune(problem)
    assert all(row.error > 0 for row in made_up if row.ok)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["x", "w", "out"])
def test_operands_that_are_not_finite(handle: dnn.Handle, name: str, value: float) -> None:
    """Nothing can be checked with them, and that is no algorithm's fault."""
    case = Case(handle, X, W, padding=1)
    hosts = {"x": case.x_host, "w": case.w_host, "out": case.old_host}
    hosts[name] = hosts[name].copy()
    hosts[name][-1, -1, -1, -1] = value
    operands = {key: handle.array(host) for key, host in hosts.items()}
    tuner, stream = tuner_of(handle), handle.stream
    with (
        np.errstate(all="ignore"),
        pytest.raises(dnn.ArgumentError, match="values that are not finite"),
    ):
        tuner.tune(problem_of(case, beta=1.0), operands)
    assert handle.stream is stream
    assert not tuner.is_remembered(problem_of(case, beta=1.0))


def misaligned(handle: dnn.Handle, values: Array, offset: int) -> dnn.DeviceArray:
    """Return an array that begins so many bytes behind an aligned address."""
    whole = handle.empty((values.size + offset // values.itemsize + 64,))
    array = dnn.DeviceArray(
        dnn.TensorSpec(values.shape), handle.device, whole.ptr + offset, whole, handle.stream
    )
    handle.device.copy_in(array.ptr, np.ascontiguousarray(values), handle.stream)
    handle.synchronize()
    return array


def test_operands_of_another_alignment_are_another_problem(handle: dnn.Handle) -> None:
    case = Case(handle, X, W, padding=1, math_type="fma")
    tuner = tuner_of(handle)
    x = misaligned(handle, case.x_host, 4)
    table = tuner.tune(SMALL, {"x": x, "w": case.w})
    assert tuner.measured == 1
    assert not tuner.is_remembered(SMALL)
    assert tuner.choose(SMALL, {"x": 4}) == table[0]
    assert tuner.choose(SMALL, {"x": 4, "w": 256, "out": 512}) == table[0]
    assert tuner.measured == 1
    tuner.choose(SMALL, {"x": 8})
    tuner.choose(SMALL, {"w": 4})
    assert tuner.measured == 3
    case.assert_right(
        dnn.convolution_forward(handle, x, case.w, case.conv, algorithm=table[0]),
        table[0].algorithm,
    )


@pytest.mark.parametrize("alignment", [4, 8, 64, 128, 256])
@pytest.mark.parametrize("operand", ["x", "w", "out"])
def test_what_is_made_up_is_aligned_as_it_is_asked_for(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, operand: str, alignment: int
) -> None:
    calls = forward_calls(monkeypatch, handle)
    tuner_of(handle, math_type="fma").choose(SMALL, {operand: alignment})
    assert calls
    for call in calls:
        addresses = {"x": call.x, "w": call.w, "out": call.y}
        for name, address in addresses.items():
            least_alignment = alignment if name == operand else 256
            assert address % least_alignment == 0
            assert least_alignment == 256 or address % (2 * least_alignment) != 0, (
                f"{name} is aligned better"
            )


def test_to_measure_with_operands_replaces_what_was_remembered(handle: dnn.Handle) -> None:
    case = Case(handle, X, W, padding=1, math_type="fma")
    tuner = tuner_of(handle)
    tuner.tune(SMALL)
    ours = tuner.tune(SMALL, {"x": case.x, "w": case.w})
    assert tuner.measured == 2
    assert list(tuner.tune(SMALL)) == list(ours)
    assert tuner.measured == 2


def test_operands_of_another_stream(handle: dnn.Handle) -> None:
    case = Case(handle, X, W, padding=1, math_type="fma")
    handle.synchronize()
    handle.stream = handle.device.create_stream()
    table = tuner_of(handle).tune(SMALL, {"x": case.x, "w": case.w})
    case.assert_right(case.run(algorithm=table.best()), table[0].algorithm)
    handle.stream.sync()


# ---------------------------------------------------------------- constraints


def test_the_workspace_limit_excludes_with_the_reason(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = {row.algorithm: row.workspace for row in tuner_of(handle).tune(SMALL) if row.ok}
    most = max(needed.values())
    calls = forward_calls(monkeypatch, handle)
    table = tuner_of(handle, workspace_limit=most - 1).tune(SMALL)
    for row in table:
        if row.algorithm in needed:
            assert row.ok == (needed[row.algorithm] < most)
            assert row.workspace == needed[row.algorithm]
        if not row.ok and row.status == S.SUCCESS:
            assert row.why_not.startswith("needs ")
            assert ", the limit is " in row.why_not
    assert not {call.algorithm for call in calls} & {
        a for a, size in needed.items() if size == most
    }, "it was run"
    none = tuner_of(handle, workspace_limit=0).choose(SMALL)
    assert none.workspace == 0


@pytest.mark.parametrize("policy_limit", [None, 10**9, 0])
def test_the_handles_limit_counts_too(device: Any, policy_limit: int | None) -> None:
    with dnn.Handle(device, workspace_limit=0) as handle:
        case = Case(handle, X, W, padding=1, math_type="fma")
        tuner = tuner_of(handle, workspace_limit=policy_limit)
        table = tuner.tune(SMALL)
        assert {row.workspace for row in table if row.ok} == {0}
        choice = tuner.choose(SMALL)
        assert tuner.measured == 1, "both mean the same problem"
        assert choice == table[0]
        case.assert_right(case.run(algorithm=choice), choice.algorithm)
        if policy_limit is None:
            assert max(row.workspace for row in tuner.tune(SMALL)) > 0
            table = tuner.tune(SMALL)
            tuner.choose(SMALL, workspace_limit=10**9)
            assert tuner.measured == 2
            handle.workspace.limit = 10**9
            other = tuner.tune(SMALL)
            assert (tuner.measured, other == table) == (2, False)
            # A limit of the call replaces the handle's, so a candidate beyond the handle's limit is
            # tried.
            with dnn.Handle(device) as unlimited:
                expected = tuner_of(unlimited, workspace_limit=10**9).tune(SMALL)
            expected_limits = {
                (row.algorithm, row.math_type): (row.ok, row.workspace) for row in expected
            }
            assert {
                (row.algorithm, row.math_type): (row.ok, row.workspace) for row in other
            } == expected_limits
            assert max(row.workspace for row in other if row.ok) > 0


def test_a_limit_in_percent_is_of_the_devices_memory(handle: dnn.Handle) -> None:
    tuner = tuner_of(handle, workspace_limit="0%")
    assert tuner.choose(SMALL).workspace == 0
    generous = tuner_of(handle, tuner.cache, workspace_limit="100%").tune(SMALL)
    assert max(row.workspace for row in generous if row.ok) > 0


def as_told_deterministic(
    monkeypatch: pytest.MonkeyPatch, handle: dnn.Handle, *algorithms: A
) -> None:
    """Let cuDNN call these algorithms deterministic, and no other."""
    real = handle.api.cudnnGetConvolutionForwardAlgorithm_v7

    def tell(*arguments: Any) -> None:
        real(*arguments)
        *_, count, results = arguments
        for number in range(getattr(count, "value", 0) or len(ALGORITHMS)):
            results[number].determinism = A(results[number].algo) in algorithms

    monkeypatch.setattr(handle.api, HEURISTIC, tell)


def test_what_is_not_deterministic_is_not_run(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_told_deterministic(monkeypatch, handle, A.IMPLICIT_GEMM, A.FFT)
    calls = forward_calls(monkeypatch, handle)
    table = tuner_of(handle, deterministic=True).tune(SMALL)
    assert {call.algorithm for call in calls} <= {A.IMPLICIT_GEMM, A.FFT}
    assert table.best().algorithm in (A.IMPLICIT_GEMM, A.FFT)
    for row in table:
        assert bool(row.deterministic) == (row.algorithm in (A.IMPLICIT_GEMM, A.FFT))
        assert row.deterministic or row.why_not in (
            "not deterministic",
            "cuDNN does not say if it is deterministic",
        )


def test_what_cudnn_does_not_call_deterministic_may_be_either(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise dnn.NotSupportedError(HEURISTIC, S.NOT_SUPPORTED, "no ranking")

    monkeypatch.setattr(handle.api, HEURISTIC, refuse)
    table = tuner_of(handle).tune(SMALL)
    assert table[0].ok
    assert {row.deterministic for row in table} == {None}
    with pytest.raises(dnn.NoAlgorithmError, match="cuDNN does not say if it is deterministic"):
        tuner_of(handle, deterministic=True).choose(SMALL)


def test_a_bound_on_the_error_excludes_tf32(handle: dnn.Handle) -> None:
    case = Case(handle, X, W, padding=1)
    table = tuner_of(handle, max_error=5e-6).tune(problem_of(case))
    excluded = [row for row in table if row.why_not.startswith("its error is ")]
    if handle.device.kind == "emulated":  # a GPU takes so few channels in float32
        assert any(
            row.algorithm == A.IMPLICIT_PRECOMP_GEMM and row.math_type == M.DEFAULT
            for row in excluded
        )
    for row in table:
        if row.error is not None:
            assert row.ok == (row.error <= 5e-6)
    assert all(", the bound is 5.0e-06" in row.why_not for row in excluded)
    assert_ordered(table)


@pytest.mark.parametrize("math_type", ["FMA", "DEFAULT", "TENSOR_OP"])
def test_only_one_math_type(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, math_type: str
) -> None:
    calls = forward_calls(monkeypatch, handle)
    table = tuner_of(handle, math_type=math_type).tune(problem_of(Case(handle, X, W, padding=1)))
    assert {call.math_type.name for call in calls} == {math_type}
    for row in table:
        if row.math_type.name != math_type:
            assert row.why_not == f"math type {row.math_type}, wanted {math_type}"
    assert table.best().math_type.name == math_type


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tf32_that_is_not_allowed(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Float32 only: there is no TF32 in the other types."""
    calls = forward_calls(monkeypatch, handle)
    table = tuner_of(handle, allow_tf32=False).tune(
        problem_of(Case(handle, X, W, dtype, padding=1))
    )
    excluded = {row.math_type.name for row in table if "may multiply in TF32" in row.why_not}
    assert excluded == ({"DEFAULT", "TENSOR_OP"} if dtype == "float32" else set())
    assert not excluded & {call.math_type.name for call in calls}
    assert table.best().math_type.name not in excluded


IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "error": ({"max_error": 0}, "its error is"),
    "math_type": ({"math_type": "tensor_op"}, "math type FMA, wanted TENSOR_OP"),
    "deterministic": ({"deterministic": True}, "not deterministic"),
    "several": ({"max_error": 0, "workspace_limit": 0}, "the limit is 0 B"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_nothing_satisfies_says_what_excluded_each(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    policy, reason = IMPOSSIBLE[name]
    as_told_deterministic(monkeypatch, handle)
    tuner = tuner_of(handle, **policy)
    table = tuner.tune(SMALL)
    assert not any(row.ok for row in table)
    with pytest.raises(dnn.NoAlgorithmError) as caught:
        tuner.choose(SMALL)
    message = str(caught.value)
    assert message.startswith(f"no algorithm for {SMALL} satisfies the limits:")
    for algorithm in ALGORITHMS:
        assert f"\n  {algorithm} (FMA): " in message
    assert reason in message
    assert "none can be chosen" in table.explain()
    assert not tuner.is_remembered(SMALL), "another driver, or more memory, may do it"


# ---------------------------------------------------------------- RNNs


def network_problem(network: Network, training: bool = False) -> Problem:
    data = dnn.specs.RNNDataSpec(
        network.x.shape, network.lengths, network.spec.dtype, network.layout
    )
    return rnn_forward.problem(network.spec, None, data, training=training)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("layout", ["sequence_major", "batch_major", "packed"])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "unequal"])
def test_an_rnn(handle: dnn.Handle, lengths: Any, layout: str, training: bool) -> None:
    network = Network(handle, lengths=lengths, layout=layout, math_type="default")
    tuner = tuner_of(handle)
    table = tuner.tune(network_problem(network, training))
    pairs = [(row.algorithm.name, row.math_type.name) for row in table]
    names_of_all = ("STANDARD", "PERSIST_STATIC", "PERSIST_DYNAMIC", "PERSIST_STATIC_SMALL_H")
    assert sorted(pairs) == sorted(itertools.product(names_of_all, ALLOWED["DEFAULT"]))
    assert_ordered(table)
    for row in table:
        assert row.deterministic is None
        assert (row.reserve is not None) == (training and row.error is not None)
        assert row.call_us is None or 0 < row.host_us <= row.call_us
    assert any(row.call_us is not None for row in table)
    best = tuner.choose(network_problem(network, training))
    assert tuner.measured == 1
    assert best == table[0]
    network.assert_right(network.run(algorithm=best, training=training), bound=5e-3)


def test_the_operands_of_an_rnn(handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what is measured, states and all, and are not written."""
    network = Network(handle, lengths=LENGTHS)
    operands = {"x": network.x, "weights": network.weights, "hx": network.hx, "cx": network.cx}
    buffers = {name: getattr(array, "array", array) for name, array in operands.items()}
    before = {name: memory_of(array) for name, array in buffers.items()}
    position = {name: number for number, name in enumerate(FUNCTIONS[RNN_FORWARD].argnames)}
    forward, addresses = handle.api.cudnnRNNForward, []

    def spy(*arguments: Any) -> None:
        operand_names = {"x": "x", "weightSpace": "weights", "hx": "hx", "cx": "cx"}
        addresses.append(
            {
                ours: ctypes.cast(arguments[position[theirs]], ctypes.c_void_p).value
                for theirs, ours in operand_names.items()
            }
        )
        forward(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(handle.api, RNN_FORWARD, spy)
        table = tuner_of(handle).tune(network_problem(network), operands)
    assert {name: array.ptr for name, array in buffers.items()} in addresses
    assert all(
        call["hx"] == network.hx.ptr and call["weights"] == network.weights.array.ptr
        for call in addresses
    )
    for name, array in buffers.items():
        np.testing.assert_array_equal(memory_of(array), before[name], err_msg=name)
    network.assert_right(network.run(algorithm=table.best()))


def test_an_rnn_has_no_alignment(handle: dnn.Handle) -> None:
    """Its calls tell none, so what is tuned with a misaligned input serves them too."""
    network = Network(handle)
    problem = network_problem(network)
    x, hx = (misaligned(handle, values, 128) for values in (network.x_host, network.hx_host))
    tuner = tuner_of(handle)
    table = tuner.tune(problem, {"x": x, "weights": network.weights, "hx": hx})
    assert tuner.is_remembered(problem)
    assert tuner.choose(problem) == table[0]
    assert tuner.measured == 1


RNN_CONSTRAINTS: dict[str, tuple[dict[str, Any], str, set[str]]] = {
    "math_type": ({"math_type": "fma"}, r"math type \w+, wanted FMA", {"FMA"}),
    "tf32": ({"allow_tf32": False}, r"\w+ may multiply in TF32, which is not allowed", {"FMA"}),
    "error": ({"max_error": 1e-5}, r"its error is .*, the bound is 1.0e-05", {"FMA"}),
}


@pytest.mark.parametrize("name", RNN_CONSTRAINTS)
def test_constraints_of_an_rnn(handle: dnn.Handle, name: str) -> None:
    policy, reason, left = RNN_CONSTRAINTS[name]
    network = Network(handle, math_type="default")
    tuner = tuner_of(handle, **policy)
    table = tuner.tune(network_problem(network))
    assert {row.math_type.name for row in table if row.ok} == left
    assert_ordered(table)
    excluded = [row for row in table if row.math_type != M.FMA]
    assert len(excluded) == 8
    assert all(re.fullmatch(reason, row.why_not) for row in excluded)
    assert table[0].remark == ""


def test_an_rnn_that_must_be_deterministic(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_calls(monkeypatch, handle.api, RNN_FORWARD)
    with pytest.raises(dnn.NoAlgorithmError) as caught:
        tuner_of(handle, deterministic=True).choose(LSTM)
    assert str(caught.value).count("cuDNN does not say if it is deterministic") == 4
    assert calls == []


def test_a_workspace_limit_of_an_rnn(handle: dnn.Handle) -> None:
    with pytest.raises(
        dnn.NoAlgorithmError, match=r"STANDARD \(FMA\): needs \S+ [KM]iB, the limit is 0 B"
    ):
        tuner_of(handle, workspace_limit=0).choose(LSTM)
    assert tuner_of(handle, workspace_limit="1 GiB").choose(LSTM).ok


# ---------------------------------------------------------------- what it leaves alone


def state_of(handle: dnn.Handle) -> Any:
    return (
        handle.stream,
        handle._chooser,
        handle.workspace.limit,
        handle.workspace.size,
        len(handle.plans),
        used(handle.device),
    )


class Broken(KeyboardInterrupt):
    """What no search catches."""


@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("where", ["nowhere", "timing", "plan", "check", "memory", "operands"])
def test_everything_is_put_back(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, where: str, kind: str
) -> None:
    """Stream, chooser, limit, workspace, plans and memory, however the search ends."""
    problem = PROBLEMS[kind]

    def fail(*_: Any, **__: Any) -> Any:
        raise Broken

    tuner, chooser = tuner_of(handle), object()
    tuner.tune(problem)  # whatever is loaded once is loaded
    other = tuner_of(handle)
    handle.synchronize()
    set_chooser(handle, chooser)
    handle.stream, handle.workspace.limit = handle.device.create_stream(), "32 MiB"
    handle.workspace.reserve(1000, handle.stream)
    before = state_of(handle)
    with monkeypatch.context() as patch:
        if where == "timing":
            patch.setattr(handle.device, "elapsed_ms", fail)
        elif where == "plan":
            patch.setattr(
                handle.api,
                WORKSPACE if kind == "convolution" else "cudnnGetRNNTempSpaceSizes",
                fail,
            )
        elif where == "check":
            patch.setattr("cudnnlite.workbench.tuning.trial.relative_errors", fail)
        elif where == "memory":
            patch.setattr(handle.device, "fill", fail)
            patch.setattr("cudnnlite.operations.rnn.rnn_plan.RNNPlan.new_outputs", fail)
        elif where == "operands":
            patch.setattr("cudnnlite.workbench.tuning.synthetic_operands.fill_random", fail)
        if where == "nowhere":
            assert other.tune(problem)[0].ok
        else:
            with pytest.raises(Broken):
                other.tune(problem)
            assert not other.is_remembered(problem)
    assert state_of(handle) == before
    set_chooser(handle, None)
    assert other.tune(problem)[0].ok
    assert handle.stream is before[0]
    handle.stream.sync()


@pytest.mark.parametrize("kind", PROBLEMS)
def test_after_each_failure_the_handle_is_as_before(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Each C call of a search fails once and becomes a row or an error.

    The handle then works on, and nothing is left behind.
    """
    network = rnn_forward.problem(
        dnn.RNNSpec("tanh", 3, 4, math_type="fma"), None, dnn.specs.RNNDataSpec((2, 2, 3))
    )
    problem = SMALL if kind == "convolution" else network
    status, nth, rows, errors = S.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, 0, 0, 0
    while True:
        world, table, failure = World(monkeypatch), None, None
        with dnn.Handle(world.device) as handle:
            tuner = tuner_of(handle)
            monkeypatch.setattr(dnn.Tuner, "timing", QUICK._replace(rounds=1, on_chip=0))
            stream, chooser = handle.stream, object()
            set_chooser(handle, chooser)
            world.ledger.fail(len(world.ledger.started) + nth + 1, status)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter(
                        "ignore", dnn.errors.TuningWarning
                    )  # of a choice that is not kept
                    table = tuner.tune(problem)
            except dnn.CudnnError as error:
                failure = error.function, error.status
            failed = world.ledger.failed
            world.ledger.disarm()
            at = f"call {nth + 1}, {failed}"
            assert handle._chooser is chooser, at
            assert handle.stream is stream or failed == "cudnnSetStream", at
            if failed is None:
                assert table is not None
                break
            live = {
                kind: count
                for kind, count in world.ledger.live.items()
                if count and kind != "Handle"
            }
            assert live == (
                {failed.removeprefix("cudnnDestroy"): 1} if "Destroy" in failed else {}
            ), at
            if table is None:
                assert failure == (failed, status), at
                errors += 1
            else:
                assert all(row.status in (S.SUCCESS, S.NOT_SUPPORTED, status) for row in table), at
                assert all(
                    row.why_not for row in table if not row.ok and row.status == S.SUCCESS
                ), at
                rows += sum(row.status == status for row in table)
            assert world.memory_used == 0, at
            handle.stream = stream
            if nth % 5 == 0:
                assert tuner_of(handle).tune(problem)[0].ok, at
        nth += 1 if nth < 60 else 17
    assert rows > 5
    assert errors > 5


# ---------------------------------------------------------------- devices


def test_facts_tell_devices_apart(handle: dnn.Handle) -> None:
    facts = handle.device.facts()
    assert facts == handle.device.facts()
    assert all(isinstance(fact, str) for fact in facts)
    assert facts.name == handle.device.name
    assert facts.uuid
    identity = dnn.Tuner(handle, ":memory:").device
    assert (identity.gpu, identity.compute_capability, identity.driver) == facts[:3]
    assert identity.cudnn == handle.version
    assert identity.kind == handle.device.kind
    if handle.device.kind == "cuda":
        assert [number.isdecimal() for number in facts.compute_capability.split(".")] == [
            True,
            True,
        ]
        assert facts.driver[0].isdecimal() or facts.driver.startswith("CUDA ")
    else:
        assert facts.uuid != EmulatedDevice(43).facts().uuid


def test_whether_a_graph_is_being_recorded(handle: dnn.Handle) -> None:
    capturing: list[bool] = []
    stream = handle.device.create_stream()
    array = handle.empty((64,))
    handle.synchronize()
    assert not handle.device.is_capturing(handle.stream)
    assert not handle.device.is_capturing(stream)

    def work() -> None:
        capturing.append(handle.device.is_capturing(stream))
        handle.device.fill(array.ptr, array.nbytes, PATTERN, stream)

    recorded = handle.device.capture(work, stream)
    assert capturing == ([True] if handle.device.kind == "cuda" else [])
    assert not handle.device.is_capturing(stream)
    if recorded is not None:
        recorded()
        stream.sync()
        assert (memory_of(array) == PATTERN).all()
    else:
        fill(array, 0)
    del work, recorded


def test_random_operands_repeat_no_axis(handle: dnn.Handle) -> None:
    """Values are drawn once and copied: no two channels, images or filters may be alike."""
    from cudnnlite.workbench.tuning.convolution import operands_of
    from cudnnlite.workbench.tuning.synthetic_operands import fill_random

    operands = operands_of(handle, SMALL)
    assert {name: array.spec.shape for name, array in operands.items()} == {
        "x": X,
        "w": W,
        "out": Y,
    }
    for seed, array in enumerate(operands.values()):
        fill_random(array, seed, num_values=1009)
        values = array.numpy()
        assert np.isfinite(values).all()
        for axis in range(4):
            for one, two in itertools.combinations(np.moveaxis(values, axis, 0), 2):
                assert (one != two).any()
    operands = operands_of(handle, SMALL)
    assert operands["x"].numpy().std() == pytest.approx(1, rel=0.1)
    y = dnn.convolution_forward(handle, operands["x"], operands["w"], FMA)
    assert 0.3 < y.numpy().std() < 3, "of the order of 1"
