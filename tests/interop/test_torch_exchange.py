"""PyTorch's tensors read by DLPack's C exchange API: the same as by a capsule, in stream order."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite.devices.exchange import exchanged

from .libraries import cuda_only, library

pytestmark = cuda_only


@pytest.fixture
def torch() -> Any:
    return library("torch")


@pytest.fixture
def side_stream(torch: Any) -> Iterator[Any]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        yield stream
    stream.synchronize()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "int32"])
@pytest.mark.parametrize("shape", ["packed", "channels last", "a part", "transposed"])
def test_what_is_read_is_what_a_capsule_has(
    handle: dnn.Handle, torch: Any, dtype: str, shape: str
) -> None:
    tensor = torch.zeros((4, 6, 8, 10), device="cuda").to(getattr(torch, dtype))
    if shape == "channels last":
        tensor = tensor.to(memory_format=torch.channels_last)
    elif shape == "a part":
        tensor = tensor[1:, 2:, ::2]
    elif shape == "transposed":
        tensor = tensor.transpose(1, 3)
    (array,) = exchanged(handle.device, handle.stream, [tensor]) or [None]
    expected = handle.view(tensor)
    assert array is not None
    assert (array.ptr, array.spec) == (expected.ptr, expected.spec)


def test_what_is_refused_is_refused_as_before(handle: dnn.Handle, torch: Any) -> None:
    x = torch.ones((2, 3, 4, 4), device="cuda")
    with pytest.raises(dnn.ArrayTypeError, match="requires grad"):
        dnn.activation_forward(handle, x.requires_grad_(), "relu")
    with pytest.raises(dnn.ArrayTypeError, match="host array"):
        dnn.activation_forward(handle, torch.ones((2, 3, 4, 4)), "relu")
    with pytest.raises(dnn.ArgumentError, match="x"):
        dnn.activation_forward(handle, torch.ones((1,) * 9, device="cuda"), "relu")


@pytest.mark.parametrize("way", ["plan", "one line"])
def test_a_call_waits_for_the_stream_of_the_tensors(
    handle: dnn.Handle, torch: Any, side_stream: Any, way: str
) -> None:
    """The handle is on another stream than PyTorch, which is still busy with x."""
    handle.stream = handle.device.create_stream()
    x = torch.zeros((8, 16, 64, 64), device="cuda")
    side_stream.synchronize()
    plan = dnn.activation_forward.plan(handle, x, "relu")
    for value in (1.0, 2.0, 3.0):
        torch.cuda._sleep(20_000_000)
        x.fill_(value)
        y = plan(x) if way == "plan" else dnn.activation_forward(handle, x, "relu")
        assert (y.numpy() == value).all()


def test_a_tensor_that_is_freed_stays_intact_until_the_call_has_run(
    handle: dnn.Handle, torch: Any, side_stream: Any
) -> None:
    """PyTorch gives its memory to the next tensor of its stream, which must come after the call."""
    handle.stream = handle.device.create_stream()
    shape = (8, 64, 128, 128)
    x = torch.full(shape, 1.0, device="cuda")
    plan = dnn.activation_forward.plan(handle, x, "relu")
    y = handle.empty(shape)
    plan(x, out=y)
    del x
    external = torch.cuda.ExternalStream(int(handle.stream.handle))
    for value in (2.0, 3.0, 4.0):
        x = torch.full(shape, value, device="cuda")
        address = x.data_ptr()
        side_stream.synchronize()
        with torch.cuda.stream(external):
            torch.cuda._sleep(40_000_000)  # the call is queued behind it
        plan(x, out=y)
        del x
        gc.collect()
        other = torch.full(shape, -1.0, device="cuda")
        assert other.data_ptr() == address  # the same memory: else this shows nothing
        assert (y.numpy() == value).all()
        del other


def test_a_million_calls_would_not_grow(handle: dnn.Handle, torch: Any) -> None:
    """Of tensors of many shapes, new and freed; ten thousand calls here."""
    handle.stream = torch.cuda.current_stream()
    shapes = [(1, 2, 3 + number % 10, 4 + number // 10) for number in range(100)]

    def rounds(count: int) -> None:
        for _ in range(count):
            for shape in shapes:
                dnn.activation_forward(handle, torch.empty(shape, device="cuda"), "relu")

    rounds(2)
    torch.cuda.synchronize()
    gc.collect()
    objects, memory = len(gc.get_objects()), torch.cuda.memory_allocated()
    rounds(100)
    torch.cuda.synchronize()
    gc.collect()
    assert len(gc.get_objects()) < objects + 500
    assert torch.cuda.memory_allocated() == memory


def test_results_are_right(handle: dnn.Handle, torch: Any) -> None:
    rng = np.random.default_rng(0)
    x, w = (
        torch.tensor(rng.standard_normal(shape), dtype=torch.float64, device="cuda")
        for shape in ((2, 6, 9, 8), (4, 6, 3, 3))
    )
    y = dnn.convolution_forward(handle, x, w, dnn.ConvolutionSpec(padding=1))
    expected = torch.nn.functional.conv2d(x, w, padding=1)
    torch.testing.assert_close(torch.from_dlpack(y), expected)
