"""`cudnnlite.workbench.bench` on a device: every kind of problem, and faults that are planted."""

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite import OperationPlan, RNNPlan
from cudnnlite.devices.peaks import CARDS, peaks_from
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.operations.layers.matmul import product_graph
from cudnnlite.problems.rnn import FORWARD as RNN_FORWARD
from cudnnlite.types import Problem
from cudnnlite.workbench.bench.guards import ZONE, GuardedMemory
from cudnnlite.workbench.bench.lists import attention_problem, matmul_problem
from cudnnlite.workbench.bench.measuring import BenchOptions, bench_problem
from cudnnlite.workbench.tuning.problem_list import ListedProblem


def convolution(**options):
    x = dnn.TensorSpec((2, 16, 9, 7), "float16", "NHWC")
    w = dnn.FilterSpec((24, 16, 3, 3), "float16", "NHWC")
    return dnn.convolution_forward.problem(x, w, dnn.ConvolutionSpec(padding=1, **options))


def gradient(kind):
    forward = convolution(stride=2)
    if kind == "data":
        return dnn.convolution_backward_data.problem(
            forward.w, forward.y, forward.conv, x=forward.x
        )
    return dnn.convolution_backward_filter.problem(forward.x, forward.y, forward.conv, w=forward.w)


def product(a, b):
    """Return the product of arrays of any number of axes, as `dnn.matmul` computes it."""
    specs = {"a": dnn.TensorSpec(a, "float16"), "b": dnn.TensorSpec(b, "float16")}
    return GraphProblem(product_graph(specs, None, None, has_alpha=False))


def network(*, training=False, cell="lstm"):
    spec = dnn.RNNSpec(cell, 16, 32, dtype="float32")
    data = dnn.specs.RNNDataSpec((6, 3, 16), (6, 4, 2), dtype="float32")
    return Problem(RNN_FORWARD, spec=spec, data=data, training=training)


PROBLEMS = {
    "convolution": lambda: convolution(),
    "blended": lambda: convolution().replace(beta=0.5),
    "gradient of data": lambda: gradient("data"),
    "gradient of filters": lambda: gradient("filters"),
    "matmul": lambda: matmul_problem(2, 64, 128, 32, "float16", bias=True, activation="relu"),
    "product of 4 axes": lambda: product((2, 3, 16, 32), (2, 3, 32, 24)),
    "batch by a matrix": lambda: product((2, 3, 16, 32), (32, 24)),
    "matrix by a batch": lambda: product((16, 32), (6, 32, 24)),
    "two matrices": lambda: product((16, 32), (32, 24)),
    "attention": lambda: attention_problem(2, 4, 64, 32, "float16", causal=True),
    "lstm": lambda: network(),
    "gru in training": lambda: network(training=True, cell="gru"),
}


def rows_of(handle, problem, mode, **options):
    return bench_problem(
        handle, ListedProblem(problem, 1), BenchOptions(mode, **options), CARDS["H200"]
    )


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_candidate_of_every_kind_is_right(handle, name):
    rows = rows_of(handle, PROBLEMS[name](), "check", every=True)
    served = [row for row in rows if row.status == "ok"]
    assert served
    assert rows[0].is_chosen
    for row in served:
        assert row.findings == (), row.candidate
        assert row.why_not_compared == ""
        assert 0 <= row.error < 1e-2
        assert row.ulp >= 0
        assert row.runs == 5
        assert row.plan_seconds > 0
        assert row.workspace >= 0
        if row.deterministic:
            assert row.same_bits


@pytest.mark.parametrize("name", PROBLEMS)
def test_one_row_is_timed(handle, name):
    (row,) = rows_of(handle, PROBLEMS[name](), "time")
    assert row.is_chosen
    assert row.ok
    assert row.device_us > 0
    assert row.bound in ("arithmetic", "memory")
    is_real = handle.device.has_real_timing
    assert (row.tflops is not None) == (row.gbps is not None) == (row.roofline is not None)
    assert (row.tflops is not None) == is_real
    if is_real:
        assert row.tflops == pytest.approx(row.flops / row.device_us / 1e6)
        assert row.roofline == pytest.approx(row.least_us / row.device_us)


def test_a_mode_does_what_the_one_before_does(handle):
    done = {mode: rows_of(handle, convolution(), mode)[0] for mode in ("plan", "run", "check")}
    listed = bench_problem(None, ListedProblem(convolution(), 1), BenchOptions("list"))[0]
    assert listed.candidate == ""
    assert listed.flops == done["plan"].flops > 0
    assert {row.candidate for row in done.values()} == {done["plan"].candidate}
    assert done["plan"].plan_seconds is not None
    assert done["plan"].same_bits is done["run"].same_bits is None
    assert done["check"].same_bits is True


def test_a_candidate_is_chosen_by_its_name(handle):
    every = rows_of(handle, convolution(), "plan", every=True)
    name = next(row.candidate for row in reversed(every) if row.status == "ok")
    (row,) = rows_of(handle, convolution(), "plan", choice=name)
    assert row.candidate == name
    with pytest.raises(ArgumentError, match="choice='FAST' is no candidate; there are "):
        rows_of(handle, convolution(), "plan", choice="FAST")


def test_the_name_of_a_replayed_candidate_names_its_call(handle):
    every = rows_of(handle, convolution(), "plan", every=True)
    name = next(row.candidate for row in every if row.status == "ok")
    (row,) = rows_of(handle, convolution(), "check", choice=name[:-1] + ", replayed)")
    assert row.candidate == name
    assert row.ok


def test_what_no_candidate_serves_says_why(handle):
    policy = dnn.TuningPolicy(interface="descriptor")
    (row,) = rows_of(handle, attention_problem(1, 2, 16, 8, "float16"), "plan", policy=policy)
    assert row.status == "not served: there is no candidate"
    assert not row.is_chosen


# ---------------------------------------------------------------- faults that are planted


class Fault:
    """Does something wrong with the outputs and the operands after each call of a plan."""

    def __init__(self, monkeypatch, kind, spoil):
        self.calls = 0
        call = kind.__call__

        def faulty(plan, *operands, **options):
            result = call(plan, *operands, **options)
            self.calls += 1
            self.candidate = plan.choice.algorithm, plan.choice.math_type
            out = options.get("out")
            if isinstance(out, dict):
                (out,) = out.values()
            elif isinstance(out, list):
                out = out[0]
            if out is not None:
                spoil(self, out, operands)
            return result

        monkeypatch.setattr(kind, "__call__", faulty)


def write(array, offset, nbytes, byte):
    array.device.fill(array.ptr + offset, nbytes, byte, array.stream)


KINDS = {
    "convolution": OperationPlan,
    "gradient of filters": OperationPlan,
    "batch by a matrix": OperationPlan,
    "attention": OperationPlan,
    "lstm": RNNPlan,
}


@pytest.fixture(params=KINDS)
def fault(request, monkeypatch):
    def plant(spoil):
        Fault(monkeypatch, KINDS[request.param], spoil)
        return PROBLEMS[request.param]()

    return plant


def findings_of(handle, problem):
    (row,) = rows_of(handle, problem, "check")
    assert not row.ok
    return row.findings


def test_a_write_one_element_behind_the_end_is_found(handle, fault):
    problem = fault(lambda planted, out, operands: write(out, out.nbytes, out.dtype.itemsize, 0))
    (finding,) = findings_of(handle, problem)
    assert finding.startswith("writes behind ")
    assert finding.endswith(" bytes, the first 0 behind its end")


def test_a_write_before_the_beginning_is_found(handle, fault):
    problem = fault(lambda planted, out, operands: write(out, -3, 1, 0x11))
    (finding,) = findings_of(handle, problem)
    assert finding.startswith("writes before ")
    assert finding.endswith(": 1 bytes, the first 3 before its beginning")


def test_a_result_that_depends_on_the_run_is_found(handle, fault):
    # The last bit of a small value: no error beside float64 shows it.
    def spoil(planted, out, operands):
        write(out, 0, 1, planted.calls % 2)

    problem = fault(spoil)
    (row,) = rows_of(handle, problem, "check")
    assert row.same_bits is False
    if row.deterministic:
        assert any("have other bits than the first run" in finding for finding in row.findings)


def test_an_input_that_is_changed_is_found(handle, monkeypatch):
    Fault(monkeypatch, OperationPlan, lambda _, out, operands: write(operands[1], 8, 2, 0))
    assert "changes w, which is only read" in findings_of(handle, convolution())


@pytest.mark.parametrize("name", ["convolution", "attention", "batch by a matrix"])
def test_a_wrong_number_is_found(handle, monkeypatch, name):
    def spoil(planted, out, operands):
        values = out.numpy()
        # a corner, which every sample has
        values[(-1,) * values.ndim] += values.dtype.type(2)
        out.copy_from(values)

    Fault(monkeypatch, KINDS[name], spoil)
    assert "wrong: 1 compared value far off" in findings_of(handle, PROBLEMS[name]())


@pytest.mark.parametrize("name", ["convolution", "gradient of filters", "attention"])
def test_zeros_are_called_zeros(handle, monkeypatch, name):
    Fault(monkeypatch, KINDS[name], lambda _, out, operands: write(out, 0, out.nbytes, 0))
    assert "zeros where the reference is not" in findings_of(handle, PROBLEMS[name]())


@pytest.mark.parametrize("name", ["convolution", "attention"])
def test_what_is_not_written_is_found(handle, monkeypatch, name):
    Fault(monkeypatch, KINDS[name], lambda _, out, operands: write(out, 0, 2, 0xFF))
    assert any("were not written" in finding for finding in findings_of(handle, PROBLEMS[name]()))


@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 1, 1), (2, 33, 9)])
def test_guard_zones_of_an_operand(handle, shape):
    memory = GuardedMemory(handle)
    values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    array = memory.place("x", handle.array(values), is_read_only=True)
    other = memory.empty("y", array.spec)
    np.testing.assert_array_equal(array.numpy(), values)
    assert array.ptr % 256 == 0
    assert memory.findings() == []
    device, stream = handle.device, handle.stream
    device.fill(other.ptr, other.nbytes, 0, stream)
    assert memory.findings() == []
    for offset, expected in (
        (-ZONE, f"writes before y: 1 bytes, the first {ZONE} before its beginning"),
        (other.nbytes + ZONE - 1, f"writes behind y: 1 bytes, the first {ZONE - 1} behind its end"),
    ):
        fresh = GuardedMemory(handle)
        other = fresh.empty("y", array.spec)
        device.fill(other.ptr + offset, 1, 0, stream)
        assert fresh.findings() == [expected]
        fresh.forget("y")
        assert fresh.findings() == []


def test_what_is_found_is_restored(handle):
    memory = GuardedMemory(handle)
    values = np.arange(30, dtype=np.float32).reshape(2, 3, 5)
    array = memory.place("x", handle.array(values), is_read_only=True)
    for offset in (-1, 0, array.nbytes):
        write(array, offset, 1, 0x55)
        assert len(memory.findings()) == 1
        assert memory.findings() == []
        np.testing.assert_array_equal(array.numpy(), values)


def test_a_candidate_is_not_blamed_for_another(handle, monkeypatch):
    spoiled = []

    def spoil(planted, out, operands):
        spoiled.append(planted.candidate)
        if planted.candidate == spoiled[0]:
            write(out, out.nbytes, 2, 0)
            write(operands[0], 0, 2, 0)

    Fault(monkeypatch, OperationPlan, spoil)
    first, *others = [
        row for row in rows_of(handle, convolution(), "check", every=True) if row.status == "ok"
    ]
    # The repeated calls read what the first one changed.
    wrong, changed, behind = first.findings
    assert wrong.startswith("wrong: ")
    assert changed == "changes x, which is only read"
    assert behind.startswith("writes behind y: 2 bytes")
    assert others
    assert all(row.findings == () for row in others)


# ---------------------------------------------------------------- what a GPU alone has


def test_the_emulated_device_has_no_kernels_and_no_clocks():
    with dnn.Handle(device="emulated") as handle:
        assert handle.device.figures() is None
        assert handle.device.clocks() == {}
        assert handle.device.kernel_names(lambda: None, handle.stream) is None
        (row,) = rows_of(handle, convolution(), "time")
        assert row.kernels == ()


@pytest.mark.gpu
def test_peaks_of_this_gpu_are_those_of_its_card():
    with dnn.Handle(device="cuda") as handle:
        figures = handle.device.figures()
    peaks = peaks_from(figures)
    assert peaks is not None
    stated = [card for card in CARDS.values() if card.card == figures.name]
    if not stated:
        pytest.skip(f"NVIDIA's figures for {figures.name} are not in the table")
    for unit, flops in stated[0].flops.items():
        assert peaks.flops[unit] == pytest.approx(flops, rel=0.02), unit
    assert peaks.bandwidth == pytest.approx(stated[0].bandwidth, rel=0.03)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROBLEMS)
def test_kernels_have_names(name):
    with dnn.Handle(device="cuda") as handle:
        (row,) = rows_of(handle, PROBLEMS[name](), "run")
        assert row.kernels
        assert all(kernel.isprintable() for kernel in row.kernels)
        again = rows_of(handle, PROBLEMS[name](), "run")[0]
        assert again.kernels == row.kernels


@pytest.mark.gpu
def test_the_clocks_of_a_gpu():
    with dnn.Handle(device="cuda") as handle:
        clocks = handle.device.clocks()
    if not clocks:
        pytest.skip("NVML does not tell the clocks of this GPU")
    assert clocks["clock"].endswith(" MHz")
    assert clocks["power limit"].endswith(" W")
