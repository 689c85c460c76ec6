"""PyTorch: tensors in and out without a copy, on the GPU and over the emulated device's memory."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from device.problems import FLOATS, Problem, random_values

import cudnnlite as dnn

from .libraries import cuda_only, library

X, W = (2, 8, 9, 11), (6, 8, 3, 2)
CYCLES = 100_000_000  # what torch.cuda._sleep spins for: about 50 ms


@pytest.fixture
def torch() -> Any:
    """PyTorch, or a skip."""
    return library("torch")


def tensor(torch: Any, handle: dnn.Handle, host: Any, dtype: str, *, last: bool = False) -> Any:
    """Return a tensor of PyTorch on the GPU; on the emulated device, one over its memory."""
    if handle.device.kind == "emulated":
        return torch.from_dlpack(handle.array(host, dtype=dtype, layout="NHWC" if last else None))
    result = torch.from_numpy(np.asarray(host, np.float64)).to("cuda", getattr(torch, dtype))
    result = result.to(memory_format=torch.channels_last) if last else result
    torch.cuda.synchronize()  # the test may be about another stream
    return result


def values_of(result: Any) -> Any:
    """Return a tensor's values as float64."""
    return result.double().cpu().numpy()


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_tensors_in_and_out(handle: dnn.Handle, torch: Any, dtype: str, last: bool) -> None:
    problem = Problem(handle, X, W, dtype, "NHWC" if last else "NCHW", padding=1)
    x, w = (
        tensor(torch, handle, host, dtype, last=last) for host in (problem.x_host, problem.w_host)
    )
    view = handle.view(x)
    assert (view.ptr, view.dtype.name, view.shape) == (x.data_ptr(), dtype, X)
    assert view.layout == ("NHWC" if last else "NCHW")
    y = dnn.convolution_forward(handle, x, w, problem.conv)
    result = torch.from_dlpack(y)
    assert result.data_ptr() == y.ptr
    assert result.dtype == getattr(torch, dtype)
    assert tuple(result.stride()) == y.strides
    assert result.is_contiguous(
        memory_format=torch.channels_last if last else torch.contiguous_format
    )
    problem.assert_right(values_of(result), problem.choice())


@pytest.mark.parametrize("dtype", FLOATS)
def test_tensor_as_out(handle: dnn.Handle, torch: Any, dtype: str) -> None:
    problem = Problem(handle, X, W, dtype, padding=1)
    out = tensor(torch, handle, np.full(problem.y_shape, np.nan), dtype)
    y = dnn.convolution_forward(handle, problem.x, problem.w, problem.conv, out=out)
    assert y.ptr == out.data_ptr()
    handle.synchronize()
    problem.assert_right(values_of(out), problem.choice())


def test_agrees_with_torch(handle: dnn.Handle, torch: Any) -> None:
    problem = Problem(handle, X, W, "float32", padding=(2, 1), stride=(2, 1), math_type="fma")
    y = torch.from_dlpack(problem.run())
    reference = torch.nn.functional.conv2d(
        torch.from_numpy(problem.x_host).double(),
        torch.from_numpy(problem.w_host).double(),
        None,
        (2, 1),
        (2, 1),
    )
    assert torch.allclose(y.double().cpu(), reference, rtol=1e-4, atol=1e-4)


def test_tensor_outlives_the_array_and_the_handle(device: Any, torch: Any) -> None:
    with dnn.Handle(device) as handle:
        problem = Problem(handle, X, W, padding=1)
        y = dnn.convolution_forward(handle, problem.x, problem.w, problem.conv)
        algorithm = problem.choice()
        result = torch.from_dlpack(y)
        y.close()
        del y
        gc.collect()
        for _ in range(20):  # whoever frees memory too early gives it to one of these
            handle.array(np.full(problem.y_shape, np.nan, np.float32))
        problem.assert_right(values_of(result), algorithm)
    gc.collect()
    problem.assert_right(values_of(result), algorithm)


def test_view_outlives_the_tensor(handle: dnn.Handle, torch: Any) -> None:
    host = random_values(np.random.default_rng(0), X, "float32")
    source = tensor(torch, handle, host, "float32")
    view = handle.view(source)
    del source
    gc.collect()
    blockers = [tensor(torch, handle, np.full(X, np.nan), "float32") for _ in range(20)]
    np.testing.assert_array_equal(view.numpy(), host)
    del blockers


@pytest.mark.parametrize("argument", ["x", "w", "out"])
def test_tensor_that_wants_gradients(handle: dnn.Handle, torch: Any, argument: str) -> None:
    """cudnnlite has no gradients to give; it says so rather than cut the graph silently."""
    problem = Problem(handle, X, W)
    leaf = tensor(
        torch, handle, np.zeros({"x": X, "w": W, "out": problem.y_shape}[argument]), "float32"
    )
    arguments = {"x": problem.x, "w": problem.w, argument: leaf.requires_grad_()}
    with pytest.raises(dnn.ArrayTypeError, match=rf"\b{argument}\b.*grad"):
        dnn.convolution_forward(handle, conv=problem.conv, **arguments)
    arguments[argument] = leaf.detach()
    dnn.convolution_forward(handle, conv=problem.conv, **arguments)
    handle.synchronize()


@pytest.mark.parametrize("argument", ["x", "w", "out"])
def test_host_tensor_is_refused(handle: dnn.Handle, torch: Any, argument: str) -> None:
    problem = Problem(handle, X, W)
    host_tensor = torch.zeros({"x": X, "w": W, "out": problem.y_shape}[argument])
    arguments = {"x": problem.x, "w": problem.w, argument: host_tensor}
    with pytest.raises(dnn.ArrayTypeError, match=rf"\b{argument} is a host array"):
        dnn.convolution_forward(handle, conv=problem.conv, **arguments)


@pytest.mark.parametrize("dtype", ["complex64", "bool"])
def test_tensor_of_a_dtype_that_cudnn_has_not(handle: dnn.Handle, torch: Any, dtype: str) -> None:
    if handle.device.kind == "cuda":
        wrong_tensor = torch.zeros(X, dtype=getattr(torch, dtype), device="cuda")
    else:
        wrong_tensor = torch.from_dlpack(handle.array(np.zeros((*X[:-1], 88), np.uint8))).view(
            getattr(torch, dtype)
        )[..., :11]
    with pytest.raises(dnn.CudnnliteError, match=r"\bx\b"):
        dnn.convolution_forward(handle, wrong_tensor, handle.empty(W))


def test_expanded_tensor(handle: dnn.Handle, torch: Any) -> None:
    expanded = tensor(torch, handle, np.zeros((1, *X[1:])), "float32").expand(X)
    with pytest.raises(dnn.ArgumentError, match=r"\bx\b.*stride"):
        dnn.convolution_forward(handle, expanded, handle.empty(W))


def test_sliced_tensor(handle: dnn.Handle, torch: Any) -> None:
    """Every second image and a window of each: strides with gaps and an offset."""
    host = random_values(np.random.default_rng(0), (4, 8, 12, 14), "float32")
    problem = Problem(handle, X, W, math_type="fma")
    problem.x_host = host[::2, :, 2:11, 3:14]
    window = tensor(torch, handle, host, "float32")[::2, :, 2:11, 3:14]
    y = dnn.convolution_forward(handle, window, problem.w, problem.conv, algorithm="IMPLICIT_GEMM")
    problem.assert_right(y, dnn.enums.ConvolutionFwdAlgo.IMPLICIT_GEMM)


def test_handle_array_copies_a_tensor(handle: dnn.Handle, torch: Any) -> None:
    host = random_values(np.random.default_rng(0), X, "float32")
    source = tensor(torch, handle, host, "float32")
    copy = handle.array(source)
    assert copy.ptr != source.data_ptr()
    np.testing.assert_array_equal(copy.numpy(), host)
    on_host = handle.array(torch.from_numpy(host))
    np.testing.assert_array_equal(on_host.numpy(), host)


def test_handle_array_copies_a_tensor_of_a_type_that_numpy_has_not(
    handle: dnn.Handle, torch: Any
) -> None:
    host = torch.from_numpy(random_values(np.random.default_rng(0), X, "float32")).bfloat16()
    copy = handle.array(host)
    assert copy.spec.dtype == dnn.DataType.BFLOAT16
    np.testing.assert_array_equal(copy.numpy().astype(np.float32), host.float().numpy())
    assert handle.array(host, dtype="float32").spec.dtype == dnn.DataType.FLOAT
    ours = host.as_subclass(type("Tensor", (torch.Tensor,), {}))  # whose module is not PyTorch's
    np.testing.assert_array_equal(handle.array(ours).numpy(), copy.numpy())


def test_what_is_torchs_and_no_tensor_is_no_array(handle: dnn.Handle, torch: Any) -> None:
    for value in (torch.nn.Linear(2, 3), torch.device("cpu"), torch.float32):
        with pytest.raises(dnn.ArrayTypeError, match="objects cannot be copied to a device"):
            handle.array(value)


def test_a_tensor_on_the_host_that_wants_gradients_is_detached_first(
    handle: dnn.Handle, torch: Any
) -> None:
    with pytest.raises(dnn.ArrayTypeError, match="detach"):
        handle.array(torch.ones(3, requires_grad=True))


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64", "int8"])
def test_torchs_data_types_are_data_types(handle: dnn.Handle, torch: Any, name: str) -> None:
    assert handle.zeros((2, 3), dtype=getattr(torch, name)).spec == dnn.TensorSpec((2, 3), name)
    with pytest.raises(dnn.ArgumentError, match="dtype='complex64' is not a data type"):
        handle.zeros((2, 3), dtype=torch.complex64)


# Order between streams: each producer is busy first, so that a consumer that does not wait reads
# too early.


@cuda_only
def test_a_tensor_of_a_busy_torch_stream_is_waited_for(handle: dnn.Handle, torch: Any) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    source = tensor(torch, handle, problem.x_host, "float32")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.full(X, float("nan"), device="cuda")
        torch.cuda._sleep(CYCLES)
        x.copy_(source)
        y = dnn.convolution_forward(handle, x, problem.w, problem.conv, algorithm="IMPLICIT_GEMM")
    problem.assert_right(y, dnn.enums.ConvolutionFwdAlgo.IMPLICIT_GEMM)


@cuda_only
def test_torch_waits_for_the_handles_stream(handle: dnn.Handle, torch: Any) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    handle.synchronize()
    stream = torch.cuda.Stream()
    handle.stream = stream
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
    y = dnn.convolution_forward(
        handle, problem.x, problem.w, problem.conv, algorithm="IMPLICIT_GEMM"
    )
    product = torch.from_dlpack(y) * 1  # on PyTorch's current stream
    problem.assert_right(values_of(product), dnn.enums.ConvolutionFwdAlgo.IMPLICIT_GEMM)


@cuda_only
@pytest.mark.parametrize("way", ["object", "address"])
def test_a_torch_stream_as_the_handles(handle: dnn.Handle, torch: Any, way: str) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    handle.synchronize()
    stream = torch.cuda.Stream()
    handle.stream = stream if way == "object" else stream.cuda_stream
    assert int(handle.stream.handle) == stream.cuda_stream
    with torch.cuda.stream(stream):
        x = torch.full(X, float("nan"), device="cuda")
        torch.cuda._sleep(CYCLES)
        x.copy_(torch.from_numpy(problem.x_host))
        y = dnn.convolution_forward(handle, x, problem.w, problem.conv, algorithm="IMPLICIT_GEMM")
    problem.assert_right(y, dnn.enums.ConvolutionFwdAlgo.IMPLICIT_GEMM)


@cuda_only
def test_through_the_cuda_array_interface(handle: dnn.Handle, torch: Any) -> None:
    problem = Problem(handle, X, W, padding=1)
    y = dnn.convolution_forward(handle, problem.x, problem.w, problem.conv)
    interface = y.__cuda_array_interface__
    assert interface["data"] == (y.ptr, False)
    assert interface["shape"] == y.shape
    result = torch.as_tensor(y, device="cuda")
    assert result.data_ptr() == y.ptr
    problem.assert_right(values_of(result), problem.choice())
