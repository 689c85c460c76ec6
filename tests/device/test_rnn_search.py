"""The search that cuDNN lacks for RNNs: its rows, their numbers, and what it must not change."""

from __future__ import annotations

import ctypes
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from rnn_oracles import onnx_rnn

import cudnnlite as dnn
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite.descriptors.rnn import RNNDataDescriptor, read_rnn
from cudnnlite.workbench.tuning.rnn_search import why_too_large
from cudnnlite.workbench.tuning.timing_policy import TimingPolicy

from .problems import memory_of
from .test_plan import count_calls
from .test_rnn_plan import (
    ALGORITHMS,
    CELLS,
    FMA,
    LAYOUTS,
    LENGTHS,
    STANDARD,
    TF32_BOUND,
    Network,
    refuse,
)

QUICK = ("STANDARD", "PERSIST_STATIC")  # nothing is compiled for these
# (dtype, the spec's math type): the math types that keep its promise
ALLOWED = {
    ("float32", "FMA"): ("FMA",),
    ("float32", "DEFAULT"): ("DEFAULT", "FMA", "TENSOR_OP"),
    ("float32", "TENSOR_OP"): ("DEFAULT", "FMA", "TENSOR_OP"),
    ("float32", "TENSOR_OP_ALLOW_CONVERSION"): (
        "DEFAULT",
        "FMA",
        "TENSOR_OP",
        "TENSOR_OP_ALLOW_CONVERSION",
    ),
    ("float64", "DEFAULT"): ("DEFAULT", "FMA", "TENSOR_OP"),
    ("float16", "DEFAULT"): ("DEFAULT", "FMA", "TENSOR_OP"),
    ("float16", "FMA"): ("FMA",),
    ("bfloat16", "DEFAULT"): ("DEFAULT", "FMA", "TENSOR_OP"),
}
ARGUMENTS = FUNCTIONS["cudnnRNNForward"].argnames


def assert_best_is_right(network: Network, table: dnn.AlgorithmTable, **options: Any) -> Any:
    """Apply the best row, and compare with the oracle."""
    best = table.best()
    assert best.ok
    out = network.run(algorithm=best, **options)
    network.assert_right(
        out, bound=max(network.bound, TF32_BOUND) if best.math_type != FMA else None
    )
    return out


def forward_calls(
    monkeypatch: pytest.MonkeyPatch, handle: dnn.Handle, around: Any = None
) -> Counter[str]:
    """Count the forward calls by algorithm.

    `around(algorithm, arguments, call)` may replace a call.
    """
    calls: Counter[str] = Counter()
    api, forward = handle.api, handle.api.cudnnRNNForward

    def call(*arguments: Any) -> Any:
        algorithm = read_rnn(api, arguments[1]).algorithm.name
        calls[algorithm] += 1
        if around is None:
            return forward(*arguments)
        return around(algorithm, arguments, lambda: forward(*arguments))

    monkeypatch.setattr(api, "cudnnRNNForward", call)
    return calls


# ---------------------------------------------------------------- rows


@pytest.mark.parametrize(("dtype", "math_type"), ALLOWED, ids=[" ".join(key) for key in ALLOWED])
def test_every_algorithm_with_every_math_type_that_is_allowed(
    handle: dnn.Handle, dtype: str, math_type: str
) -> None:
    network = Network(handle, dtype=dtype, math_type=math_type)
    table = network.find()
    assert isinstance(table, dnn.AlgorithmTable)
    rows = [(row.algorithm.name, row.math_type.name) for row in table]
    assert len(rows) == len(set(rows))
    assert set(rows) == set(itertools.product(ALGORITHMS, ALLOWED[dtype, math_type]))
    assert_ordered(table)
    assert any(row.ok for row in table if row.algorithm == STANDARD)
    if dtype == "float64":
        for row in table:
            if row.algorithm.name in ("PERSIST_STATIC", "PERSIST_STATIC_SMALL_H"):
                assert not row.ok
                assert "does not do float64" in row.why_not
    assert_best_is_right(network, table)


def assert_ordered(table: dnn.AlgorithmTable) -> None:
    """The usable rows come first, the fastest of them first; the others say why."""
    ok = [row.ok for row in table]
    assert ok == sorted(ok, reverse=True)
    assert all(row.time_ms is not None and row.time_ms > 0 for row in table if row.ok)
    times = [row.call_us for row in table if row.ok and row.call_us is not None]
    # The first row may tie within the noise, with less host time. The heuristic's choice may stand
    # before it.
    moved = 2 if len(table) > 1 and "hardly faster" in table[1].remark else 1
    assert times[moved:] == sorted(times[moved:])
    for row in table:
        assert row.deterministic is None
        if row.ok:
            assert row.error is not None
            assert row.why_not == ""
            assert row.workspace >= 0
        else:
            assert row.time_ms is None
            assert row.why_not


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_reserve_space_is_told_in_training(handle: dnn.Handle, training: bool) -> None:
    network = Network(handle, lengths=LENGTHS)
    table = network.find(training=training, algorithms=QUICK)
    for row in table:
        assert (row.reserve is not None) == (training and row.ok)
    assert ("reserve" in table.cells()[0]) == training
    assert ("in training" in table.title) == training
    if training:
        best = table.best()
        with network.plan(training=True, algorithm=best) as plan:
            network.call(plan)
            assert (plan.reserve, plan.workspace) == (best.reserve, best.workspace)
        out = network.run(training=True, algorithm=best)
        dnn.rnn_backward_data(handle, out.reserve, out.y)
        dnn.rnn_backward_weights(handle, out.reserve)


# The largest relative error that the arithmetic explains.
ERRORS = {
    ("float64", "FMA"): 1e-12,
    ("float32", "FMA"): 2e-5,
    ("float32", "DEFAULT"): 5e-3,
    ("float16", "FMA"): 1e-2,
    ("bfloat16", "FMA"): 5e-2,
}


@pytest.mark.parametrize(("dtype", "math_type"), ERRORS, ids=[" ".join(key) for key in ERRORS])
def test_errors_are_plausible(handle: dnn.Handle, dtype: str, math_type: str) -> None:
    network = Network(handle, num_layers=2, bidirectional=True, dtype=dtype, math_type=math_type)
    table = network.find(algorithms=QUICK)
    errors = [row.error for row in table if row.ok]
    assert errors
    assert all(0 <= error < ERRORS[dtype, math_type] for error in errors)
    assert dtype == "float64" or min(errors) > 0


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_what_is_told_beside_the_time(handle: dnn.Handle, training: bool) -> None:
    """Spread and calls of what was repeated; the largest error beside the L2 error."""
    table = Network(handle, math_type="default").find(training=training)
    repeated = [row for row in table if row.ok and not row.remark.startswith("not repeated")]
    assert repeated
    for row in table:
        assert (row.spread_ms is not None) == (row in repeated)
        if row.call_us is None:
            has_reason = "calls not timed" in row.remark or bool(row.same_kernel)
            assert row.host_us is None
            assert has_reason or row not in repeated
        else:
            assert row in repeated
            assert row.spread_ms >= 0
            assert 0 < row.host_us <= row.call_us
        assert (row.max_error is None) == (row.error is None)
        assert row.error is None or 0 < row.max_error < 20 * row.error
        assert row.find_ms is None
        assert row.layout == ""


def test_the_largest_error_is_relative_to_the_largest_value(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is that of y, hy and cy together.

    The first value of hy is overwritten with 100, so its error is known.
    """
    network = Network(handle)
    expected = network.expected()

    def around(algorithm: str, arguments: tuple[Any, ...], call: Any) -> None:
        call()
        target = address(arguments[ARGUMENTS.index("hy")])
        handle.device.copy_in(target, np.full(1, 100, np.float32), handle.stream)

    forward_calls(monkeypatch, handle, around)
    (row,) = network.find(algorithms=["STANDARD"])
    first = onnx_rnn("lstm", network.values, network.x_host[:4], network.hx_host, network.cx_host)
    values = np.concatenate([part.ravel() for part in (first.y, first.hy, first.cy)])
    assert expected.y.shape[0] == 5  # the check is over the first four steps
    distance = 100 - first.hy.flat[0]
    assert row.max_error == pytest.approx(distance / np.abs(values).max(), rel=1e-4)
    assert row.error == pytest.approx(distance / np.linalg.norm(values), rel=1e-4)


# ---------------------------------------------------------------- what is not compiled

# Bytes of the recurrent matrices of one direction of one layer: gates * state * hidden.
MATRICES = {
    "lstm": (("lstm", {}), 4 * 8 * 8 * 4),
    "gru": (("gru", {}), 3 * 8 * 8 * 4),
    "tanh": (("tanh", {}), 8 * 8 * 4),
    "half": (("lstm", {"dtype": "float16"}), 4 * 8 * 8 * 2),
    "layers": (("gru", {"num_layers": 3, "bidirectional": True}), 3 * 8 * 8 * 4),
}


@pytest.mark.parametrize("name", MATRICES)
def test_what_does_not_fit_on_the_chip_is_not_compiled(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (cell, options), nbytes = MATRICES[name]
    network = Network(handle, cell, **options)
    builds = count_calls(monkeypatch, handle.api, "cudnnBuildRNNDynamic")
    table = network.find(timing=TimingPolicy(on_chip=nbytes))
    (row,) = (row for row in table if row.algorithm.name == "PERSIST_DYNAMIC")
    assert row.why_not.startswith("not compiled: a layer's recurrent matrices take ")
    assert row.time_ms is row.error is None
    assert builds == []
    assert len(table) == 4
    assert_best_is_right(network, table)
    table = network.find(timing=TimingPolicy(on_chip=nbytes + 1))
    assert not any(row.why_not.startswith("not compiled: a layer's") for row in table)
    assert len(builds) == 1


def test_where_its_first_math_type_is_hopeless_no_other_is_compiled(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(handle, dtype="float16", math_type="DEFAULT")
    builds = count_calls(monkeypatch, handle.api, "cudnnBuildRNNDynamic")
    hasty = TimingPolicy(rounds=1, give_up=0.01, always_ms=0.0)  # nothing is quick enough
    rows = network.find(algorithms=["PERSIST_DYNAMIC"], timing=hasty)
    whys = {row.math_type.name: row.why_not for row in rows}
    (first,) = (name for name, why in whys.items() if not why)
    assert [*whys.values()].count(
        f"not compiled: with {first} math it took more than 0.01 times the best"
    ) == 2
    assert len(builds) == 1


def test_what_fits_on_the_chip_of_an_h200() -> None:
    """132 multiprocessors have 484 KiB each.

    Fifteen problems with 64 MiB and more took 4.6 to 51 times the time of the best.
    """

    def told(hidden_size: int, dtype: str = "float32", cell: str = "lstm") -> str:
        return why_too_large(
            dnn.RNNSpec(cell, 16, hidden_size, dtype=dtype), TimingPolicy().on_chip
        )

    assert told(2047) == ""
    assert "take 64 MiB, and what can be kept on the chip is below 64 MiB" in told(2048)
    assert told(2048, "float16") == told(2048, cell="gru") == ""
    assert told(4096, "float16")


# ---------------------------------------------------------------- problems

PROBLEMS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in CELLS},
    **{f"{name}_lengths": (name, {"lengths": LENGTHS}) for name in ("lstm", "gru")},
    **{
        f"{layout}_{kind}": ("gru", {"layout": layout, "lengths": lengths})
        for layout in LAYOUTS
        for kind, lengths in (("full", None), ("unequal", LENGTHS))
    },
    "bidirectional": (
        "lstm",
        {"bidirectional": True, "num_layers": 2, "lengths": LENGTHS, "layout": "packed"},
    ),
    "projection_of_layers": (
        "lstm_projection",
        {"bidirectional": True, "num_layers": 2, "lengths": LENGTHS},
    ),
    "long_unequal": ("lstm", {"lengths": (9, 8, 7, 6), "steps": 9}),  # the first steps are full
    "long_unequal_packed": ("lstm", {"lengths": (9, 8, 7, 6), "steps": 9, "layout": "packed"}),
    "one_step": ("relu", {"steps": 1}),
    "one_sequence": ("tanh", {"batch": 1}),
    "many_sequences": ("gru", {"batch": 33, "steps": 3}),
    "no_bias": ("lstm", {"bias": "none"}),
    "single_bias": ("gru", {"bias": "single_input"}),
    "skip": ("relu", {"input_mode": "skip", "input_size": 8}),
    "clip": ("lstm", {"clip": (-50.0, 50.0)}),
    "float64": ("gru", {"dtype": "float64"}),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_finds_what_is_right(handle: dnn.Handle, problem: str) -> None:
    name, options = PROBLEMS[problem]
    network = Network(handle, name, **options)
    for training in (False, True):
        table = network.find(algorithms=QUICK, training=training)
        assert len(table) == len(QUICK) * (3 if options.get("math_type") else 1)
        assert_ordered(table)
        unequal = options.get("lengths") is not None
        if (
            unequal
            or name == "lstm_projection"
            or "bias" in options
            or options.get("dtype") == "float64"
        ):
            (row,) = (row for row in table if row.algorithm.name == "PERSIST_STATIC")
            assert row.status == dnn.enums.Status.NOT_SUPPORTED
            assert row.why_not.startswith("PERSIST_STATIC ")
    assert_best_is_right(network, network.find(algorithms=QUICK))


@pytest.mark.parametrize("algorithm", ALGORITHMS[1:])
@pytest.mark.parametrize("problem", ["lstm_projection", "no_bias", "lstm_lengths"])
def test_an_algorithm_that_does_not_do_it_alone(
    handle: dnn.Handle, problem: str, algorithm: str
) -> None:
    """The table says why, whichever C function refuses first."""
    name, options = PROBLEMS[problem]
    table = Network(handle, name, **options).find(algorithms=[algorithm])
    (row,) = table
    assert not row.ok
    assert row.why_not.startswith(f"{algorithm} ")
    with pytest.raises(dnn.NoAlgorithmError):
        table.best()


def test_without_states(handle: dnn.Handle) -> None:
    network = Network(handle)
    table = network.find(hx=None, cx=None, algorithms=QUICK)
    nothing = [np.zeros_like(values) for values in (network.hx_host, network.cx_host)]
    out = network.run(hx=None, cx=None, algorithm=table.best())
    network.assert_right(out, network.expected(hx=nothing[0], cx=nothing[1]))


@pytest.mark.parametrize("name", CELLS)
def test_weights_that_are_still_zero(handle: dnn.Handle, name: str) -> None:
    """Everything that comes out is 0, and so is what an error would be relative to."""
    network = Network(handle, name)
    table = network.find(
        weights=dnn.RNNWeights(handle, network.spec), hx=None, cx=None, algorithms=QUICK
    )
    (row,) = (row for row in table if row.algorithm == STANDARD)
    assert row.ok
    assert row.error is not None
    assert row.error < 1e-6


@pytest.mark.parametrize("layout", ["sequence_major", "batch_major"])
def test_the_padding_is_not_looked_at(handle: dnn.Handle, layout: str) -> None:
    network = Network(handle, layout=layout, lengths=LENGTHS)
    beyond = np.arange(len(network.x_host))[:, None] >= np.array(LENGTHS)
    values = network.x_host.copy()
    values[beyond] = np.nan
    x = handle.array(network.pack(values))
    table = network.find(x=x, algorithms=["STANDARD"])
    assert table[0].ok
    network.assert_right(network.run(x=x, algorithm=table.best()))


def test_what_cannot_go_back_is_not_for_training(handle: dnn.Handle) -> None:
    network = Network(handle, hidden_size=160)
    table = network.find(algorithms=["PERSIST_STATIC_SMALL_H"])
    assert table[0].ok
    trained = network.find(algorithms=["PERSIST_STATIC_SMALL_H", "STANDARD"], training=True)
    assert [row.ok for row in trained] == [True, False]
    assert trained[1].status == dnn.enums.Status.NOT_SUPPORTED
    assert "goes up to hidden_size=128 backward for LSTM, not 160" in trained[1].why_not
    out = network.run(training=True, algorithm=trained.best())
    dnn.rnn_backward_data(handle, out.reserve, out.y)


# ---------------------------------------------------------------- what must not be chosen


def address(argument: Any) -> int:
    """Return what a prepared argument points to."""
    return ctypes.cast(argument, ctypes.c_void_p).value or 0


@pytest.mark.parametrize("victim", ["y", "hy", "cy"])
@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x3C], ids=["zeros", "nan", "numbers"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_algorithm_that_computes_garbage(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, dtype: str, byte: int, victim: str
) -> None:
    """As PERSIST_DYNAMIC does without its build: SUCCESS, and the wrong numbers."""
    network = Network(handle, dtype=dtype, math_type="default")
    state_bytes = network.hx.nbytes

    def around(algorithm: str, arguments: tuple[Any, ...], call: Any) -> None:
        call()
        if algorithm == "PERSIST_STATIC":
            spec = RNNDataDescriptor.read(handle.api, arguments[ARGUMENTS.index("yDesc")]).tensor()
            nbytes = spec.nbytes if victim == "y" else state_bytes
            target = address(arguments[ARGUMENTS.index(victim)])
            handle.device.fill(target, nbytes, byte, handle.stream)

    calls = forward_calls(monkeypatch, handle, around)
    table = network.find(algorithms=QUICK)
    rows = [row for row in table if row.algorithm.name == "PERSIST_STATIC"]
    assert len(rows) == 3
    for row in rows:
        assert not row.ok
        assert row.status == dnn.enums.Status.SUCCESS
        assert row.time_ms is None
        assert row.why_not.startswith("wrong: relative error ")
        assert row.error is not None
        assert row.error > 0.1
        assert np.isinf(row.error) == (byte == 0xFF)
    assert calls["PERSIST_STATIC"] == len(rows), "what computes garbage is not timed"
    assert table.best().algorithm == STANDARD
    assert_best_is_right(network, table)
    assert "wrong: relative error" in str(table)


@pytest.mark.parametrize(
    "order", [("STANDARD", "PERSIST_STATIC"), ("PERSIST_STATIC", "STANDARD")], ids="-".join
)
@pytest.mark.parametrize("slow", QUICK)
def test_a_slow_algorithm_is_run_once(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, slow: str, order: tuple[str, ...]
) -> None:
    """Once over the first steps, for the check, and once in full."""
    network = Network(handle)

    measured, ran_slow = handle.device.elapsed_ms, []

    def elapsed_ms(work: Any, stream: Any) -> float:
        ran_slow.clear()
        ms = measured(work, stream)
        return ms + 1e6 if ran_slow else ms

    def around(algorithm: str, arguments: tuple[Any, ...], call: Any) -> None:
        if algorithm == slow:
            ran_slow.append(algorithm)
        call()
        getattr(handle.api, "kernels_run", set()).add(
            algorithm
        )  # emulated, as if each had a kernel of its own

    calls = forward_calls(monkeypatch, handle, around)
    monkeypatch.setattr(handle.device, "elapsed_ms", elapsed_ms)
    table = network.find(algorithms=order)
    quick, last = table
    assert last.algorithm.name == slow
    assert calls[slow] == 2
    assert calls[quick.algorithm.name] > 2
    assert last.ok  # it can be used, and is known to be slow
    assert last.remark == "not repeated: more than 3 times the best"
    assert quick.remark == ""
    assert last.remark in str(table)
    assert table.best().algorithm == quick.algorithm
    monkeypatch.undo()
    network.assert_right(network.run(algorithm=last))


@pytest.mark.parametrize(
    "function", ["cudnnSetRNNDescriptor_v8", "cudnnGetRNNTempSpaceSizes", "cudnnRNNForward"]
)
@pytest.mark.parametrize(
    "status", [dnn.enums.Status.NOT_SUPPORTED, dnn.enums.Status.EXECUTION_FAILED], ids=str
)
def test_what_cudnn_refuses_is_a_row(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, status: dnn.enums.Status, function: str
) -> None:
    network = Network(handle)
    refused = refuse(monkeypatch, handle, function, status)
    for order in (QUICK, QUICK[::-1]):
        refused.clear()
        table = network.find(algorithms=order)
        assert [row.algorithm.name for row in table] == ["STANDARD", "PERSIST_STATIC"]
        assert table[1].status == status
        assert table[1].time_ms is None
        assert status.name in str(table)
        assert len(refused) == 1
        assert_best_is_right(network, table)


# ---------------------------------------------------------------- workspace


def test_the_limit_excludes_with_the_reason(handle: dnn.Handle) -> None:
    network = Network(handle)
    needed = {row.algorithm: row.workspace for row in network.find(algorithms=QUICK)}
    most = max(needed.values())
    assert most > 0
    table = network.find(algorithms=QUICK, workspace_limit=most - 1)
    for row in table:
        assert row.ok == (needed[row.algorithm] < most)
        if not row.ok:
            assert row.why_not.startswith("needs ")
            assert "the limit is" in row.why_not
            assert row.time_ms is None
    assert all(row.ok for row in network.find(algorithms=QUICK, workspace_limit=most))


def test_the_handles_limit_counts_where_the_search_has_none(device: Any) -> None:
    with dnn.Handle(device, workspace_limit=1) as handle:
        network = Network(handle)
        assert not network.find(algorithms=["STANDARD"])[0].ok
        table = network.find(algorithms=["STANDARD"], workspace_limit="1 GiB")
        assert table[0].ok
        with pytest.raises(dnn.WorkspaceLimitError, match="STANDARD needs a workspace"):
            network.run(algorithm=table.best())
        network.assert_right(network.run(algorithm=table.best(), workspace_limit="1 GiB"))


# ---------------------------------------------------------------- what it leaves alone


def test_nothing_is_written_but_its_own(handle: dnn.Handle) -> None:
    network = Network(handle, num_layers=2, lengths=LENGTHS)
    out = network.run(training=True)
    arrays = {
        "x": network.x,
        "hx": network.hx,
        "cx": network.cx,
        "weights": network.weights.array,
        "y": out.y,
        "hy": out.hy,
        "cy": out.cy,
        "reserve": out.reserve.array,
    }
    before = {name: memory_of(array) for name, array in arrays.items()}
    for training in (False, True):
        network.find(training=training)
    for name, array in arrays.items():
        np.testing.assert_array_equal(memory_of(array), before[name], err_msg=name)
    dnn.rnn_backward_data(handle, out.reserve, out.y)  # a training call before it is not disturbed
    dnn.rnn_backward_weights(handle, out.reserve)


def test_read_only_operands(handle: dnn.Handle) -> None:
    network = Network(handle)
    x = dnn.DeviceArray(
        network.x.spec, handle.device, network.x.ptr, network.x, handle.stream, readonly=True
    )
    weights = network.weights.view(handle)
    array = weights.array
    weights.array = dnn.DeviceArray(
        array.spec, handle.device, array.ptr, array, handle.stream, readonly=True
    )
    table = network.find(x=x, weights=weights, algorithms=QUICK)
    network.assert_right(network.run(x=x, weights=weights, algorithm=table.best()))


def test_dropout_states_are_not_advanced(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search needs no dropout state and drops nothing.

    Its result still serves the network with dropout.
    """
    network = Network(handle, num_layers=2, dropout=0.5)
    state = dnn.DropoutState(handle, 3)
    before = state.save()
    expected = network.run(training=True, dropout_state=state, algorithm="standard").y.numpy()
    state.restore(before)
    calls = count_calls(
        monkeypatch,
        handle.api,
        "cudnnSetDropoutDescriptor",
        "cudnnRestoreDropoutDescriptor",
        "cudnnCreateDropoutDescriptor",
    )
    table = network.find(training=True, algorithms=["STANDARD"])
    assert calls == []
    np.testing.assert_array_equal(state.save(), before)
    result = network.run(training=True, dropout_state=state, algorithm=table.best())
    np.testing.assert_allclose(result.y.numpy(), expected, rtol=1e-4, atol=1e-6)  # the same masks
    assert (state.save() != before).any()


def test_operands_of_another_stream(handle: dnn.Handle) -> None:
    network = Network(handle)
    handle.synchronize()
    handle.stream = handle.device.create_stream()
    other = Network(handle, seed=1)
    table = network.find(x=other.x, cx=other.cx, algorithms=QUICK)
    assert table[0].ok
    out = dnn.rnn_forward(
        handle, network.spec, network.weights, other.x, network.hx, other.cx, algorithm=table.best()
    )
    network.assert_right(out, network.expected(x_host=other.x_host, cx=other.cx_host))
    handle.stream.sync()
