"""`examples/serve_resnet50.py`: its model, the answers of its servers, and the program itself."""

from __future__ import annotations

import gc
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.examples import example_module
from onnx.reference import ReferenceEvaluator

import cudnnlite as dnn
from cudnnlite.devices.device_choice import DEVICE_VARIABLE

SMALL = {"blocks": (2, 1), "width": 8, "image": 40, "classes": 10}


@pytest.fixture(scope="module")
def serving() -> Iterator[Any]:
    with example_module("serve_resnet50") as module:
        yield module


def images(batch: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((batch, 3, 40, 40)).astype(np.float32)


@pytest.mark.exhaustive
def test_the_model_is_resnet50(serving: Any) -> None:
    proto = serving.resnet()
    onnx.checker.check_model(proto)
    kinds = [node.op_type for node in proto.graph.node]
    assert (kinds.count("Conv"), kinds.count("Add"), kinds.count("Relu")) == (53, 16, 49)
    sizes = {one.name: int(np.prod(one.dims)) for one in proto.graph.initializer}
    trained = sum(size for name, size in sizes.items() if not name.endswith((".mean", ".variance")))
    assert trained == 25_557_032  # as torchvision counts the parameters of its resnet50
    again = serving.resnet()
    assert again.SerializeToString() == proto.SerializeToString()


@pytest.mark.parametrize(
    ("arithmetic", "tolerance"), [("float16", 1e-2), ("tf32", 1e-2), ("float32", 1e-4)]
)
def test_servers_answer_as_the_reference(
    arithmetic: str, tolerance: float, handle: dnn.Handle, serving: Any
) -> None:
    handle.stream = handle.device.create_stream()
    proto = serving.resnet(**SMALL)
    server = serving.Server(handle, proto, 3, arithmetic)
    for seed in range(2):  # the graph reads what was copied since it was recorded
        batch = images(3, seed)
        server.fill(batch)
        server.start()
        logits = server.finish().astype(np.float64)
        (expected,) = ReferenceEvaluator(proto).run(None, {"image": batch})
        assert logits.shape == (3, 10)
        assert np.abs(logits - expected).max() < tolerance * np.abs(expected).max()
    server.close()


def test_a_batch_of_another_size_is_refused(handle: dnn.Handle, serving: Any) -> None:
    handle.stream = handle.device.create_stream()
    server = serving.Server(handle, serving.resnet((1,), 8, 40, 5), 2)
    server.fill(images(2))
    before = server.images.copy()
    for batch in (1, 3):  # of one image NumPy would make as many as are needed
        with pytest.raises(
            ValueError,
            match=rf"^images have shape \({batch}, 3, 40, 40\); needed: \(2, 3, 40, 40\)",
        ):
            server.fill(images(batch, 1))
    np.testing.assert_array_equal(server.images, before)
    server.close()


def test_every_convolution_is_one_call(handle: dnn.Handle, serving: Any) -> None:
    handle.stream = handle.device.create_stream()
    server = serving.Server(handle, serving.resnet(**SMALL), 1)
    kinds = [step.kind for step in server.network.steps]
    assert [kind for kind in kinds if kind != "Conv"] == [
        "Copy",
        "MaxPool",
        "GlobalAveragePool",
        "Gemm",
    ]
    rows = serving.layer_table(server, serving.PEAKS["H200"], "float16", repeats=2)
    assert [row[1] for row in rows] == kinds
    assert all(row[2] > 0 and row[4] > 0 for row in rows)
    np.testing.assert_allclose(
        rows[1][3], 2 * 8 * 20 * 20 * 4 * 49 / 989e12 * 1e6
    )  # a channel of zeros among them
    server.close()


def test_channels_of_zeros_change_nothing(handle: dnn.Handle, serving: Any) -> None:
    proto, arithmetic = serving.resnet(**SMALL), serving.ARITHMETICS["float16"]
    (expected,) = ReferenceEvaluator(proto).run(None, {"image": images(2)})
    for channels, calls in ((3, ["Conv", "MaxPool"]), (4, ["Copy", "Conv"]), (8, ["Copy", "Conv"])):
        with serving.Network(
            handle, proto, batch=2, **{**arithmetic, "channels": channels}
        ) as network:
            assert [step.kind for step in network.steps][:2] == calls
            assert network.steps[calls.index("Conv")].reads[0].shape == (2, channels, 40, 40)
            logits = network(image=images(2))["logits"].astype(np.float64)
        assert np.abs(logits - expected).max() < 1e-2 * np.abs(expected).max()


@pytest.mark.exhaustive
def test_tuning_keeps_the_results(
    handle: dnn.Handle, serving: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cudnnlite")
    handle.stream = handle.device.create_stream()
    proto, answers = serving.resnet((1,), 8, 16, 5), []
    for tune in (False, True):
        server = serving.Server(handle, proto, 2, "float16", tune)
        server.fill(images(2)[:, :, :16, :16])
        server.start()
        answers.append(server.finish().astype(np.float32))
        server.close()
    np.testing.assert_allclose(answers[1], answers[0], atol=1e-2 * np.abs(answers[0]).max())
    tuned = [one for one in caplog.messages if one.startswith("tuned ")]
    assert len(tuned) == 6  # five convolutions and a product


def test_pytorch_gets_the_same_network(serving: Any) -> None:
    torch = pytest.importorskip("torch")
    proto, batch = serving.resnet(**SMALL), images(2)
    (expected,) = ReferenceEvaluator(proto).run(None, {"image": batch})
    logits = serving.torch_model(proto)(torch.from_numpy(batch)).numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.exhaustive
def test_the_program_serves_on_two_devices(
    serving: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    gc.collect()  # arrays of other tests on these devices are not counted
    monkeypatch.setenv(DEVICE_VARIABLE, "emulated")
    monkeypatch.setattr(serving, "EVERY", 0.1)
    arguments = [
        "--batch",
        "2",
        "--minutes",
        "0.005",
        "--devices",
        "1,0",
        "--layers",
        "--json",
        str(tmp_path / "figures"),
    ]
    monkeypatch.setattr(sys, "argv", ["serve", *arguments])
    serving.main()
    output = capsys.readouterr().out
    assert "emulated (NumPy), small" in output
    assert re.search(r"latency with both copies: p50 [\d.]+ ms, p99 [\d.]+ ms", output)
    line = r"(emulated:\d): .*device [\d.]+ MiB, grew by 0.0; logits as on the others to 0e\+00"
    assert re.findall(line, output) == [
        "emulated:1",
        "emulated:1",
        "emulated:0",
    ]  # one alone, then both
    assert re.search(r"2 GPUs: [\d,]+ images/s, [\d.]+ of one", output)
    memory = r"resident [\d.]+ to [\d.]+ MiB, device ([\d.]+) to \1 MiB"
    assert re.search(rf"emulated:0, minute 1: p50 [\d.]+ ms, p99 [\d.]+ ms .*; {memory}", output)
    figures = [json.loads(line) for line in (tmp_path / "figures").read_text().splitlines()]
    told_of = [one["what"] for one in figures]
    assert [told_of.count(kind) for kind in ("network", "latency", "throughput", "together")] == [
        1,
        1,
        3,
        1,
    ]
    assert told_of.count("layer") == 22  # a row for each call, and their sums
    assert min(one["p99_ms"] - one["p50_ms"] for one in figures if one["what"] == "minute") >= 0


def test_a_gpu_that_fails_is_not_waited_for(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make_server = serving.Server

    def fails_on_the_second(handle: dnn.Handle, *arguments: Any) -> Any:
        if handle.device.index == 1:
            raise RuntimeError("no such luck")
        return make_server(handle, *arguments)

    monkeypatch.setattr(serving, "Server", fails_on_the_second)
    options, model = (
        SimpleNamespace(arithmetic="float16", tune=False),
        serving.resnet((1,), 8, 16, 5),
    )
    with pytest.raises(RuntimeError, match="no such luck"):
        serving.served(
            ["emulated:0", "emulated:1"], model, images(2)[:, :, :16, :16], options, print
        )


def test_percentiles_of_counted_times_are_numpys(serving: Any) -> None:
    times, counted = np.random.default_rng(0).gamma(3, 1e-3, 5000), serving.Latencies()
    for one in times:
        counted.add(one)
    percentiles = [float(text) for text in re.findall(r"([\d.]+) ms", str(counted))]
    np.testing.assert_allclose(percentiles, 1e3 * np.percentile(times, (50, 99)), rtol=0.01)
