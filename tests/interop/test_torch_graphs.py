"""Operations inside `torch.cuda.graph`: recorded with PyTorch's, and refused as in `capture`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tolerances import assert_close

import cudnnlite as dnn

from .libraries import cuda_only, library

pytestmark = cuda_only
BOUND = 1e-4  # true float32, sums of 36 products


def test_a_convolution_between_torchs_own_operations(handle: dnn.Handle) -> None:
    torch = library("torch")
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    handle.synchronize()
    handle.stream = side
    conv = dnn.ConvolutionSpec(padding=1, math_type="fma")
    w = torch.randn(5, 4, 3, 3, device="cuda")
    x, y = torch.randn(3, 4, 9, 11, device="cuda"), torch.empty(3, 5, 9, 11, device="cuda")
    torch.cuda.synchronize()
    dnn.convolution_forward(handle, x, w, conv, out=y)  # once before: plan and workspace
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        doubled = x * 2
        dnn.convolution_forward(handle, doubled, w, conv, out=y)
        result = y + 1
    for seed in range(2):
        torch.manual_seed(seed)
        x.copy_(torch.randn(3, 4, 9, 11))
        graph.replay()
        torch.cuda.synchronize()
        expected = torch.nn.functional.conv2d(x.cpu().double() * 2, w.cpu().double(), padding=1) + 1
        assert_close(result.cpu().numpy(), expected.numpy(), BOUND)


def test_what_is_dropped_in_torchs_capture_is_freed_after_it(
    handle: dnn.Handle, capfd: Any
) -> None:
    torch = library("torch")
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    handle.synchronize()
    handle.stream = side
    y = handle.array(np.ones(5, np.float32))
    handle.synchronize()
    before = handle.device.memory_used()
    large = handle.empty((1 << 22,))
    with torch.cuda.graph(graph, stream=side):
        dnn.set_tensor(handle, y, 2.0)
        del large
    graph.replay()
    torch.cuda.synchronize()
    handle.device.memory_used()  # which gives back what could not be
    handle.synchronize()
    assert handle.device.memory_used() <= before
    assert (y.numpy() == 2).all()
    assert "cuMemFreeAsync" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("output", "pass out="),
        ("workspace", "handle.workspace.reserve"),
        ("numpy", "read results"),
        ("waiting", "synchronize after a launch"),
        ("capture", "end that capture first"),
        ("search", "search before"),
    ],
)
def test_refused_in_torchs_capture(handle: dnn.Handle, action: str, words: str) -> None:
    torch = library("torch")
    side = torch.cuda.Stream()
    handle.synchronize()
    handle.stream = side
    values = np.random.default_rng(0).standard_normal((3, 4, 9, 11), dtype=np.float32)
    x, w = handle.array(values), handle.array(values[:, :, :3, :3])
    y = dnn.convolution_forward(handle, x, w)
    expected = y.numpy()
    handle.synchronize()
    actions: dict[str, Callable[[], Any]] = {
        "output": lambda: dnn.convolution_forward(handle, x, w),
        "workspace": lambda: handle.workspace.reserve(handle.workspace.size + 1, handle.stream),
        "numpy": y.numpy,
        "waiting": handle.synchronize,
        "capture": dnn.capture(handle).__enter__,
        "search": lambda: dnn.convolution_forward.find(handle, x, w, out=y),
    }
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        with pytest.raises(dnn.errors.CaptureError, match=words):
            actions[action]()
        dnn.convolution_forward(handle, x, w, out=y)  # the refusal has not ended PyTorch's capture
    graph.replay()
    torch.cuda.synchronize()
    np.testing.assert_array_equal(y.numpy(), expected)
    assert not handle.device.is_capturing(handle.stream)
