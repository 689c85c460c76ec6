"""The program of random calls: every operation is drawn, the emulated device is right, faults are seen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from device import calls

import cudnnlite as dnn
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.plans.function import OperationFunction
from fuzz import random_calls
from fuzz.random_calls import BEHIND_OTHERS, GENERATORS, Caller, Report
from fuzz.random_comparison import Expected, WrongError, compare
from fuzz.random_draw import Draw
from fuzz.random_graphs import RandomGraph, Tracked, unclear_places
from fuzz.random_sequences import is_at_a_kink

SEED, CALLS = 55, 250
OPERATIONS = [name for name in dnn.__all__ if isinstance(getattr(dnn, name), OperationFunction)]


def test_every_public_operation_is_drawn():
    assert {*GENERATORS, *BEHIND_OTHERS} - {"graph"} == {*OPERATIONS}


def test_every_public_operation_is_a_call_as_data():
    """What is true of plans, keys and captures of all operations is tested by `device.calls`."""
    assert {*calls.CALLS} == {*OPERATIONS}


def test_calls_are_right_on_the_emulated_device():
    report, device = Report(), EmulatedDevice(6, capacity="256 MiB")
    caller = Caller(device)
    for index in range(CALLS):
        report.add(SEED, index, caller.call(SEED, index), "")
    caller.close()
    shown = "\n".join(report.lines())
    assert not report.bad, shown
    assert report.calls == CALLS
    right = sum(counts["right"] for counts in report.totals().values())
    assert right > CALLS * 0.6, shown
    assert report.wrong_dtypes["refused"] + report.wrong_dtypes["right"] > CALLS / 20


def test_a_call_is_repeated_by_its_seed_and_index(capsys):
    caller = Caller(EmulatedDevice(6, capacity="256 MiB"), ["pooling_forward", "add_tensor"])
    first = [caller.call(3, index) for index in range(5)]
    assert [caller.call(3, index, show=True) for index in range(5)] == first
    caller.close()
    assert "3:4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("got", "values", "is_right"),
    [
        (1.0, 1.0, True),
        (1.01, 1.0, False),
        (np.nan, 1.0, False),
        (np.inf, 1.0, False),
        (np.nan, np.nan, True),
        (0.0, np.nan, False),
        (np.inf, np.inf, True),
        (-np.inf, np.inf, False),
        (0.0, 1e-40, True),
        (0.0, 1e39, True),  # what overflows on the way may be anything
    ],
)
def test_comparison(got: float, values: float, is_right: bool):
    result = np.array([2.0, got], np.float32)
    expected = Expected(np.array([2.0, values]))
    if is_right:
        compare(result, expected, [result])
        return
    with pytest.raises(WrongError, match="y: "):
        compare(result, expected, [result])


def _off_by_a_percent(numpy: Any) -> Any:
    def changed(self: Any) -> Any:
        values = numpy(self)
        return (values * 1.5).astype(values.dtype) if values.dtype.kind == "f" else values

    return changed


def test_a_wrong_result_is_told(monkeypatch):
    """Nothing that computes passes if all results are half as large again."""
    caller, report = Caller(EmulatedDevice(6, capacity="256 MiB")), Report()
    monkeypatch.setattr(dnn.DeviceArray, "numpy", _off_by_a_percent(dnn.DeviceArray.numpy))
    monkeypatch.setattr(Caller, "check_device", lambda self: None)
    for index in range(100):
        report.add(SEED, index, caller.call(SEED, index), "")
    monkeypatch.undo()
    caller.close()
    totals = sum(report.totals().values(), start=type(report.wrong_dtypes)())
    assert totals["wrong"] > 3 * totals["right"]


@pytest.mark.parametrize(("got", "is_right"), [(np.inf, True), (65504, True), (0.0, False)])
def test_what_is_too_large_for_the_data_type(got: float, is_right: bool):
    result = np.array([got], np.float16)
    expected = Expected(np.array([1e6]))
    if is_right:
        compare(result, expected, [result])
        return
    with pytest.raises(WrongError, match="y: "):
        compare(result, expected, [result])


def test_indices_are_compared_exactly():
    result = np.array([2, 3], np.int32)
    compare(result, Expected(np.array([2.0, 4.0])), [result])  # a rounded number
    indices = Expected(np.array([2.0, 4.0]), name="indices", is_exact=True)
    with pytest.raises(WrongError, match="indices: "):
        compare(result, indices, [result])


def test_statistics_that_a_call_updates_are_compared(emulated):
    compared = 0
    for call, _ in drawn(emulated, "batch_normalization_training", "normal"):
        if not call.updated or call.options.get("momentum") == 0.0:
            continue
        expected = call.updated["running_mean"]
        call.updated = {"running_mean": replace(expected, values=expected.values + 1)}
        with pytest.raises((WrongError, dnn.errors.CudnnliteError)) as raised:
            call.run()
        compared += isinstance(raised.value, WrongError)
    assert compared


@pytest.fixture
def emulated():
    with dnn.Handle(EmulatedDevice(6, capacity="256 MiB")) as handle:
        yield handle


def drawn(handle: dnn.Handle, name: str, kind: str) -> Iterator[tuple[Any, Expected]]:
    """Yield calls of an operation with values of one size, and what they should write."""
    for index in range(40):
        draw = Draw(handle, SEED, index)
        draw.kind = kind
        with np.errstate(all="ignore"):
            call = GENERATORS[name](draw)
        if not draw.wrong:
            yield call, call.results[0]


def running_sums(x: Any, norm: dnn.LRNSpec) -> Any:
    """Return an LRN whose sums go from channel to channel, as an H200's kernel has them."""
    wide = np.float64 if x.dtype == np.float64 else np.float32
    squares, channels = x.astype(wide) ** 2, x.shape[1]
    before, behind = (norm.n - 1) // 2, norm.n // 2
    total, sums = squares[:, :behind].sum(1, dtype=wide), np.empty_like(squares)
    for channel in range(channels):
        if channel + behind < channels:
            total = total + squares[:, channel + behind]
        if channel > before and norm.n > 1:
            total = total - squares[:, channel - before - 1]
        sums[:, channel] = total if norm.n > 1 else squares[:, channel]
    return x.astype(wide) * (norm.k + norm.alpha / norm.n * sums) ** wide(-norm.beta)


def test_running_sums_over_channels_are_right(emulated):
    compared = 0
    for call, expected in drawn(emulated, "lrn_forward", "largest"):
        x = call.draw.operands["x"].host
        with np.errstate(all="ignore"):
            result = running_sums(x, call.options["norm"]).astype(x.dtype)
            compare(result, expected, call.draw.hosts)
        compared += not np.all(expected.open)
    assert compared > 20


@pytest.mark.parametrize("kind", ["tiny", "normal"])
def test_the_exponential_function_minus_one_is_right(emulated, kind):
    compared = 0
    for call, expected in drawn(emulated, "activation_forward", kind):
        activation, x = call.options["activation"], call.draw.operands["x"].host
        if activation.mode.name == "ELU":
            wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
            y = np.where(wide > 0, wide, wide.dtype.type(activation.coef) * (np.exp(wide) - 1))
            compare(y.astype(x.dtype), expected, call.draw.hosts)
            compared += 1
    assert compared


@pytest.mark.parametrize(
    "name", ["spatial_transformer_grid", "spatial_transformer_grid_backward", "convolution_forward"]
)
def test_sums_that_overflow_are_open(emulated, name):
    """An order of additions may overflow where another does not."""
    for call, expected in drawn(emulated, name, "largest"):
        if "float64" in {host.dtype.name for host in call.draw.hosts}:
            dtype = call.draw.hosts[0].dtype
            result = np.nan_to_num(expected.values, nan=0.0, posinf=1.0, neginf=1.0)
            compare(result.astype(dtype), expected, call.draw.hosts)


@pytest.mark.parametrize(
    ("mode", "x", "is_open"),
    [
        ("POW", -2.0, True),
        ("POW", 0.0, True),
        ("POW", 2.0, False),
        ("POW", np.inf, True),
        ("SWISH_FWD", 1e3, False),
        ("SWISH_BWD", 3e38, True),
        ("TAN", 1.57, True),
        ("TAN", 1.2, False),
        ("GELU_FWD", -7e4, True),
        ("GELU_FWD", 7e4, False),
        ("GELU_FWD", -3e4, False),
        ("RECIPROCAL", -0.005, True),
        ("RECIPROCAL", -0.02, False),
    ],
)
def test_places_of_functions_that_engines_compute_in_other_ways(mode, x, is_open):
    tracked = Tracked(None, np.array([x]), np.array([0.01]))
    operands = [tracked]
    if mode == "POW":
        operands.append(Tracked(None, np.zeros(1), np.zeros(1)))
    assert unclear_places(mode, "float16", operands, behind_product=True) == is_open


def test_the_slope_of_relu_at_zero_is_open():
    pytest.importorskip("torch")  # the oracle of the state that is 0
    names = ("layer0.forward.input.h", "layer0.forward.recurrent.h")
    weights = {name: np.ones((1, 1)) for name in (*names, *(n.replace("0", "1") for n in names))}
    x, dy = np.array([-1.0, 0.5]).reshape(2, 1, 1), np.ones((2, 1, 1))
    assert is_at_a_kink("relu", weights, x, dy, None, None)
    assert not is_at_a_kink("relu", weights, np.abs(x), dy, None, None)
    assert not is_at_a_kink("relu", {name: weights[name] for name in names}, x, dy, None, None)
    assert not is_at_a_kink("relu", {**weights, "layer1.forward.bias": x[0]}, x, dy, None, None)


@pytest.mark.processes
def test_a_process_that_dies_is_told(monkeypatch, tmp_path, capsys):
    path = tmp_path / "report.json"
    arguments = ["--device", "emulated", "--calls", "2", "--json", str(path)]
    monkeypatch.setattr("sys.argv", ["random_calls.py", *arguments, "--operations", "set_tensor"])
    monkeypatch.setattr(random_calls, "__file__", "/dev/null")  # a program that answers nothing
    assert random_calls.main() == 1
    assert json.loads(path.read_text())["counts"] == [["set_tensor", "", {"dead": 2}]]
    assert "dead" in capsys.readouterr().out


def test_a_plan_of_a_graph_is_called_with_other_values(own_handle):
    """A further turn draws the same graph and the same operands, with other values."""
    planned = 0
    for index in range(12):
        draws = [Draw(own_handle, SEED, index), Draw(own_handle, SEED, index).again(1)]
        graphs = [RandomGraph(draw) for draw in draws]
        try:
            with np.errstate(all="ignore"):
                [graph.make() for graph in graphs]
        except dnn.ArgumentError:
            continue
        planned += 1
        first, other = (graph.graph.to_json() for graph in graphs)
        assert first == other
        specs, hosts = (
            [[getattr(operand, name) for operand in draw.operands.values()] for draw in draws]
            for name in ("spec", "host")
        )
        assert specs[0] == specs[1]
        assert any(a.tobytes() != b.tobytes() for a, b in zip(*hosts, strict=True))
    assert planned > 6
