"""Traces as programs in C compile without a warning.

On a GPU they print Python's checksums.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device.operation_samples import SAMPLES as OPERATIONS
from device.operation_samples import Case
from device.test_two_devices import second_devices

import cudnnlite as dnn
from cudnnlite.devices.device_choice import make_device
from cudnnlite.workbench.tracing.memory import checksum

from . import trace_samples
from .c_toolchain import CToolchain
from .trace_samples import upload

ADDED_BY_ATOMICS = {
    "spatial_transformer_grid_backward",
    "spatial_transformer_sample_backward",
}  # in whichever order
pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    trace_samples.live_values.clear()


def built(toolchain: CToolchain, traced: dnn.workbench.Trace, folder: Path) -> Path:
    """Return the program of a trace, beside what it reads."""
    traced.save(folder)
    toolchain.build(folder / "program.c", folder / "program")
    return folder / "program"


def assert_it_prints_the_same(
    toolchain: CToolchain, traced: dnn.workbench.Trace, folder: Path, device: Any
) -> None:
    """Fail unless the program can be built, and on a GPU prints Python's checksums."""
    program = built(toolchain, traced, folder)
    assert traced.checksums
    if getattr(device, "kind", device) == "cuda":
        assert toolchain.run(program, folder).split() == [
            word for pair in traced.checksums for word in pair
        ]
    else:
        assert "never run on a GPU" in traced.as_c()


@pytest.mark.parametrize("sample", trace_samples.SAMPLES, ids=lambda sample: sample.__name__)
def test_a_program_prints_what_python_computed(
    sample: trace_samples.Sample, device: Any, toolchain: CToolchain, tmp_path: Path
) -> None:
    with dnn.trace() as traced, dnn.Handle(device) as handle:
        sample(handle)
    assert traced.warnings == []
    assert_it_prints_the_same(toolchain, traced, tmp_path, device)


@pytest.mark.parametrize("second", second_devices())
def test_a_program_of_two_devices(second: str, toolchain: CToolchain, tmp_path: Path) -> None:
    with (
        dnn.trace() as traced,
        dnn.Handle(f"{second.partition(':')[0]}:0") as first,
        dnn.Handle(second) as other,
    ):
        for sample in trace_samples.SAMPLES:
            sample(first), sample(other)
    text = traced.as_c()
    assert traced.warnings == trace_samples.uses_of_what_is_gone(text) == []
    assert (
        text.count("cudaSetDevice(0)") > len(trace_samples.SAMPLES) < text.count("cudaSetDevice(1)")
    )
    assert_it_prints_the_same(toolchain, traced, tmp_path, first.device)


@pytest.mark.parametrize("seed", range(4))
def test_samples_in_any_order_on_a_device_whose_methods_were_set(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A monkeypatch that is undone leaves methods on the device itself.

    Freed addresses are handed out again at once.
    """
    rng = np.random.default_rng(seed)
    monkeypatch.setattr("cudnnlite.emulated.memory.QUARANTINE", 0)
    with dnn.Handle(make_device("emulated", 0)) as handle:
        for name in ("allocate", "fill", "copy_in", "copy_rows")[: seed + 1]:
            setattr(handle.device, name, getattr(handle.device, name))
        left = dict(vars(handle.device))
        for number in rng.permutation(2 * len(trace_samples.SAMPLES)):
            sample = trace_samples.SAMPLES[number // 2]
            with dnn.trace() as traced, dnn.Handle(handle.device) as other:
                sample(other)
            assert traced.warnings == []
            before = [step.function for step in traced._recorder.statements if step.early]
            assert set(before) <= {"cudaStreamCreate"}, sample.__name__
            assert trace_samples.uses_of_what_is_gone(traced.as_c()) == [], sample.__name__
            assert vars(handle.device) == left


@pytest.mark.parametrize("sample", trace_samples.STEADY, ids=lambda sample: sample.__name__)
def test_of_a_second_run_the_program_is_the_same(sample: trace_samples.Sample) -> None:
    texts = []
    for _ in range(2):
        with dnn.trace() as traced, dnn.Handle("emulated") as handle:
            sample(handle)
        texts.append(traced.as_c())
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_with_what_was_there_before(
    name: str, handle: dnn.Handle, toolchain: CToolchain, tmp_path: Path
) -> None:
    case = Case(handle, name)
    case.call()
    with dnn.trace() as traced:
        case.call()
    if name in ADDED_BY_ATOMICS and handle.device.kind == "cuda":
        printed = toolchain.run(built(toolchain, traced, tmp_path), tmp_path).split()
        assert printed[::2] == [written for written, _ in traced.checksums]
    else:
        assert_it_prints_the_same(toolchain, traced, tmp_path, handle.device)


def test_what_another_library_wrote_is_loaded_again(
    device: Any, toolchain: CToolchain, tmp_path: Path
) -> None:
    from_dlpack: Any = (
        np.from_dlpack if device == "emulated" else pytest.importorskip("torch").from_dlpack
    )
    with dnn.trace() as traced, dnn.Handle(device) as handle:
        x = upload(handle, (2, 3, 5, 4))
        first = dnn.activation_forward(handle, x, "relu").numpy()
        theirs = from_dlpack(x)
        theirs += 1
        with pytest.warns(RuntimeWarning, match="written to by somebody else"):
            second = dnn.activation_forward(handle, x, "relu").numpy()
    assert (second > first).any()
    assert traced.as_c().count("load(x, 480,") == 2
    assert_it_prints_the_same(toolchain, traced, tmp_path, device)


def generated(nbytes: int, width: int, seed: int) -> bytes:
    """Return what the program's `generate` makes."""
    i = np.arange(nbytes, dtype=np.uint64)
    mixed = (np.uint64(seed << 40) | i) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (mixed >> np.uint64(56)).astype(np.uint8)
    return (
        np.where(i % np.uint64(width) == width - 1, values & 0x80 | 0x3F, values)
        .astype(np.uint8)
        .tobytes()
    )


@pytest.mark.parametrize(
    ("dtype", "low"), [("float16", 1.75), ("float32", 0.5), ("float64", 2**-15)]
)
def test_inputs_are_generated_from_a_seed(
    dtype: str, low: float, device: Any, toolchain: CToolchain, tmp_path: Path
) -> None:
    with dnn.trace() as traced, dnn.Handle(device) as handle:
        x = upload(handle, (2, 3, 5, 4), dtype)
        x.numpy()
        dnn.activation_forward(handle, x, "relu").numpy()
        handle.array(np.arange(4, dtype=np.int32).reshape(1, 1, 1, 4)).numpy()
    traced.save(tmp_path, seed=7)
    assert [path.name for path in (tmp_path / "inputs").iterdir()] == [
        "memory.bin"
    ]  # integers are what they were
    assert traced.as_c(7) == (tmp_path / "program.c").read_text() != traced.as_c(8)
    assert "inputs/x.bin" in traced.as_c()
    with pytest.raises(dnn.ArgumentError, match="seed=-1; allowed"):
        traced.as_c(-1)
    content = generated(x.nbytes, x.dtype.itemsize, 7)
    values = np.abs(np.frombuffer(content, dtype))
    assert low <= values.min() < values.max() < 2
    toolchain.build(tmp_path / "program.c", tmp_path / "program")
    if device == "cuda":
        positive = np.maximum(np.frombuffer(content, dtype), 0).tobytes()
        expected = [
            f"x {checksum(content):016x}",
            f"y {checksum(positive):016x}",
            f"memory {traced.checksums[2][1]}",
        ]
        assert toolchain.run(tmp_path / "program", tmp_path).splitlines() == expected


@pytest.mark.gpu
def test_another_librarys_memory(toolchain: CToolchain, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    x, out = torch.randn(64, 3, 9, 8, device="cuda"), torch.empty(5, 3, 9, 8, device="cuda")
    torch.cuda.synchronize()
    with dnn.trace() as traced, dnn.Handle() as handle:
        for batch in (x[3:7], x[20:25]):
            mine = dnn.softmax_forward(handle, batch)
        dnn.activation_forward(handle, torch.from_dlpack(mine)[1:], "tanh").numpy()
        dnn.activation_forward(handle, x[1:6], "relu", out=out)  # which the trace reads at its end
    assert traced.warnings == []
    assert len(traced.checksums) >= 3
    assert_it_prints_the_same(toolchain, traced, tmp_path, "cuda")


@pytest.mark.gpu
def test_a_graph_of_another_library_is_told_and_what_it_writes_is_loaded(
    toolchain: CToolchain, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with dnn.Handle(stream=side) as handle:
        x, y = handle.array(np.ones((2, 3, 5, 4), np.float32)), handle.empty((2, 3, 5, 4))
        dnn.activation_forward(handle, x, "tanh", out=y)
        handle.synchronize()

        def record_and_replay() -> None:
            with torch.cuda.graph(graph, stream=side):
                dnn.activation_forward(handle, x, "tanh", out=y)
            graph.replay()
            torch.cuda.synchronize()
            dnn.scale_tensor(handle, y, 2.0).numpy()

        with (
            dnn.trace() as traced,
            pytest.warns(RuntimeWarning, match="saw no begin of|somebody else"),
        ):
            record_and_replay()
    assert "cudnnActivationForward" not in traced.as_c().partition("int main")[2]
    assert_it_prints_the_same(toolchain, traced, tmp_path, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("sample", trace_samples.SAMPLES, ids=lambda sample: sample.__name__)
def test_the_sanitizer_finds_nothing(
    sample: trace_samples.Sample, toolchain: CToolchain, tmp_path: Path
) -> None:
    sanitizer = shutil.which("compute-sanitizer", path="/usr/local/cuda/bin") or shutil.which(
        "compute-sanitizer"
    )
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    with dnn.trace() as traced, dnn.Handle() as handle:
        sample(handle)
    program = built(toolchain, traced, tmp_path)
    output = toolchain.run([sanitizer, "--leak-check", "full", str(program)], tmp_path)
    assert re.search(r"ERROR SUMMARY: 0 errors", output), output
