"""The calls of plans as ranges of NVTX, by a package of that name that prints them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NVTX = """\
from contextlib import contextmanager


@contextmanager
def annotate(message, domain):
    print(f"{domain}: {message}", flush=True)
    yield
    print("end", flush=True)
"""
PROGRAM = """\
import numpy as np
import cudnnlite as dnn

with dnn.Handle("emulated") as handle:
    x, w = (handle.array(np.ones(shape), dtype="float32") for shape in ((1, 3, 8, 8), (4, 3, 3, 3)))
    dnn.convolution_forward(handle, x, w, algorithm="GEMM")
    dnn.matmul(handle, *[handle.array(np.ones((4, 8, 8)), dtype="float16")] * 2)
    spec = dnn.RNNSpec("lstm", 4, 4)
    weights = dnn.RNNWeights(handle, spec)
    x = handle.array(np.ones((3, 2, 4)), dtype="float32")
    reserve = dnn.rnn_forward(handle, spec, weights, x, training=True).reserve
    dnn.rnn_backward_data(handle, reserve, x)
    q = handle.array(np.ones((1, 2, 16, 16)), dtype="float16")
    for seed in (1, 2):
        dnn.scaled_dot_product_attention_forward(handle, q, q, q, dropout=0.5, seed=seed)
    dnn.ctc_loss(handle, x, [1, 1], [1, 1], [3, 3])
    spec = dnn.AttentionSpec(1, 4)
    weights = dnn.AttentionWeights(handle, spec)
    dnn.multi_head_attention_forward(handle, spec, weights, x, x, x)
"""


def run(tmp_path: Path, wanted: str, nvtx: str = NVTX) -> subprocess.CompletedProcess[str]:
    (tmp_path / "nvtx.py").write_text(nvtx, encoding="utf-8")
    paths = (str(tmp_path), *sys.path)
    environment = os.environ | {"CUDNNLITE_NVTX": wanted, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.processes
def test_a_call_is_a_range_of_what_it_computes_and_by_what(tmp_path: Path) -> None:
    lines = run(tmp_path, "1").stdout.splitlines()
    ranges = [line for line in lines if line != "end"]
    assert lines == [line for name in ranges for line in (name, "end")]
    convolution, product, network, gradients, *attention, loss, heads = ranges
    assert convolution.startswith("cudnnlite: convolution forward of TensorSpec((1, 3, 8, 8)")
    assert convolution.endswith(", GEMM")
    assert product.startswith("cudnnlite: <Graph of 1 operation: a, b -> y>, engine ")
    assert network.startswith("cudnnlite: RNNPlan of RNNSpec('lstm'")
    assert gradients.endswith(", backward_data")
    assert len(attention) == 2  # a call with another seed is one range
    assert "CTC" in loss
    assert "AttentionSpec" in heads


@pytest.mark.processes
def test_nothing_is_a_range_unless_it_is_wanted(tmp_path: Path) -> None:
    for wanted in ("", "0"):
        assert run(tmp_path, wanted).stdout == ""


@pytest.mark.processes
def test_a_missing_package_is_told(tmp_path: Path) -> None:
    process = run(tmp_path, "1", "raise ImportError")
    assert "MissingPackageError: CUDNNLITE_NVTX=1 needs nvtx: pip install nvtx" in process.stderr
