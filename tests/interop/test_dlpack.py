"""DLPack and the CUDA array interface, with NumPy alone.

The emulated device's memory is the host's.
"""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from device.problems import FLOATS, Problem

import cudnnlite as dnn
from cudnnlite.dtypes import numpy_dtype, parse_dtype

from .libraries import cuda_only, library

X, W = (2, 4, 9, 11), (6, 4, 3, 2)
emulated_only = pytest.mark.parametrize("device", ["emulated"], indirect=True)


class Foreign:
    """Another library's array: it has DLPack's two methods and nothing else."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __dlpack__(self, **options: Any) -> Any:
        return self._source.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._source.__dlpack_device__()


class Copied(Foreign):
    """Another library's copy of an array."""

    def __dlpack__(self, **options: Any) -> Any:
        return self._source.__dlpack__(**options | {"copy": True})


class Plain:
    """Another library's array of before DLPack 1.0, whose method takes nothing but the stream."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __dlpack__(self, stream: Any = None) -> Any:
        return self._source.__dlpack__(stream=stream)

    def __dlpack_device__(self) -> Any:
        return self._source.__dlpack_device__()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", [Foreign, Plain])
def test_foreign_arrays_in_and_out(handle: dnn.Handle, kind: Any, dtype: str, layout: str) -> None:
    """The view has the address, dtype and strides, and `out` is written in place."""
    problem = Problem(handle, X, W, dtype, layout, padding=1)
    for array in (problem.x, problem.w):
        view = handle.view(kind(array))
        assert (view.ptr, view.spec.shape, view.spec.dtype) == (
            array.ptr,
            array.spec.shape,
            array.spec.dtype,
        )
        assert view.spec.fits(layout)
    y = dnn.convolution_forward(handle, kind(problem.x), kind(problem.w), problem.conv)
    problem.assert_right(y, problem.choice())


@pytest.mark.parametrize("dtype", FLOATS)
def test_foreign_output(handle: dnn.Handle, dtype: str) -> None:
    problem = Problem(handle, X, W, dtype, padding=1)
    out = handle.empty(problem.output_spec)
    y = dnn.convolution_forward(handle, problem.x, problem.w, problem.conv, out=Foreign(out))
    assert y.ptr == out.ptr
    problem.assert_right(out, problem.choice())


def test_a_view_keeps_the_memory_alive(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1)
    view = handle.view(Foreign(problem.x))
    problem.x.close()
    problem.x = None
    gc.collect()
    blockers = [handle.array(np.full(X, np.nan, np.float32)) for _ in range(5)]
    np.testing.assert_array_equal(view.numpy(), problem.x_host)
    del blockers


def test_copies_of_device_arrays(handle: dnn.Handle) -> None:
    """`handle.array` copies what is on the device already, as it lies."""
    problem = Problem(handle, X, W, layout="NHWC")
    for source in (problem.x, Foreign(problem.x)):
        copy = handle.array(source)
        assert copy.ptr != problem.x.ptr
        assert copy.spec.fits("NHWC")
        np.testing.assert_array_equal(copy.numpy(), problem.x_host)
    other = handle.array(problem.x, dtype="float16", layout="NCHW")
    assert (other.dtype, other.layout) == (np.float16, "NCHW")


@emulated_only
def test_numpy_may_write_what_may_be_written(handle: dnn.Handle) -> None:
    array = handle.array(np.zeros(X, np.float32))
    assert np.from_dlpack(array).flags.writeable
    locked = dnn.DeviceArray(
        array.spec, array.device, array.ptr, array, handle.stream, readonly=True
    )
    assert not np.from_dlpack(locked).flags.writeable


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"copy": np.array([])}, r"copy=array\(.*; allowed: None, True, False"),
        ({"copy": 1}, "copy=1; allowed: None, True, False"),
        ({"stream": np.array([1, 2])}, "stream=.* is not an integer"),
        ({"stream": -2}, "stream=-2; allowed: "),
        ({"max_version": 1}, "max_version=1 is not a sequence of integers"),
        ({"dl_device": (1,)}, r"dl_device=\(1,\); needed: two integers"),
    ],
    ids=repr,
)
def test_what_a_consumer_asks_is_checked(handle: dnn.Handle, options: Any, message: str) -> None:
    x = handle.array(np.ones(X, np.float32))
    with pytest.raises(dnn.ArgumentError, match=f"^{message}"):
        x.__dlpack__(**options)


@emulated_only
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_consumer_gets_a_copy_where_it_asks_for_one(handle: dnn.Handle, dtype: str) -> None:
    x = handle.array(np.ones(X, np.float32), dtype=dtype)
    view = handle.view(Foreign(x))
    assert view.ptr == x.ptr
    x.__dlpack__(copy=True, max_version=(1, 0), dl_device=(1, 0))
    with pytest.raises(dnn.ArrayTypeError, match="host array"):  # the copy is not on the device
        handle.view(Copied(x))


@emulated_only
def test_other_host_memory_is_refused(handle: dnn.Handle) -> None:
    """As a GPU would refuse it, although it could be read here."""
    problem = Problem(handle, X, W)
    for x in (problem.x_host, Foreign(problem.x_host)):
        with pytest.raises(dnn.ArrayTypeError, match=r"\bx is a host array"):
            dnn.convolution_forward(handle, x, problem.w)
    freed = np.from_dlpack(problem.x).copy()
    with pytest.raises(dnn.ArrayTypeError, match=r"\bw is a host array"):
        dnn.convolution_forward(handle, problem.x, Foreign(freed))


@emulated_only
@pytest.mark.parametrize(
    ("change", "argument"),
    [
        (lambda a: a[:, :, ::-1], "negative strides"),
        (lambda a: np.broadcast_to(a[:, :, :1], a.shape), "strides"),
        (lambda a: a.view(np.complex64), "dtype"),
        (lambda a: a.view(np.uint16), "dtype"),
        (lambda a: a.reshape(2, 2, 2, 3, 3, 4, 3, 1, 1), "rank|shape"),
    ],
    ids=["reversed", "broadcast", "complex64", "uint16", "rank_9"],
)
def test_foreign_arrays_that_cudnn_cannot_read(
    handle: dnn.Handle, change: Any, argument: str
) -> None:
    """The message names the argument that it is about, and what is wrong with it."""
    x, w = handle.array(np.zeros((2, 4, 9, 12), np.float32)), handle.empty(W)
    source = np.from_dlpack(x)
    with pytest.raises(dnn.ArgumentError, match=argument) as caught:
        dnn.convolution_forward(handle, Foreign(change(source)), w)
    assert str(caught.value).startswith("x") or " x" in str(caught.value)


@emulated_only
def test_every_second_image(handle: dnn.Handle) -> None:
    problem = Problem(handle, (4, *X[1:]), W)
    half = Foreign(np.from_dlpack(problem.x)[::2])
    y = dnn.convolution_forward(handle, half, problem.w, problem.conv)
    problem.x_host = problem.x_host[::2]
    problem.y_shape = y.shape
    problem.assert_right(y, dnn.enums.ConvolutionFwdAlgo.IMPLICIT_GEMM)


def test_the_array_itself_takes_precedence(handle: dnn.Handle) -> None:
    x = handle.empty(X)
    assert handle.view(x) is x


# ---------------------------------------------------------------- float8


FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


class TorchType:
    """A data type of PyTorch."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __str__(self) -> str:
        return f"torch.{self._name}"


UINT8 = TorchType("uint8")


class OldTensor:
    """A tensor of an older release of PyTorch, which exports no float8."""

    def __init__(self, array: dnn.DeviceArray, name: str) -> None:
        self.dtype = TorchType(name)
        self._array = array

    def view(self, dtype: TorchType) -> Any:
        assert dtype is UINT8
        spec = dnn.TensorSpec(self._array.shape, "uint8", strides=self._array.strides)
        array = self._array
        return Foreign(dnn.DeviceArray(spec, array.device, array.ptr, array, array.stream))

    def float(self) -> Any:
        return self._array.numpy().astype(np.float32)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("float8 types are not supported by dlpack")


@pytest.fixture
def old_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(uint8=UINT8))


def float8_values(shape: tuple[int, ...], dtype: str) -> Any:
    values = np.random.default_rng(len(shape)).standard_normal(shape)
    return values.astype(numpy_dtype(parse_dtype(dtype)))


@emulated_only
@pytest.mark.parametrize("dtype", ["bfloat16", *FLOAT8])
def test_types_that_numpy_does_not_know_go_out_and_in(handle: dnn.Handle, dtype: str) -> None:
    """As DLPack has them since version 1.1; strides too."""
    host = float8_values((2, 3, 5, 4), dtype)
    array = handle.array(host, layout="NHWC")
    view = handle.view(Foreign(array))
    assert (view.ptr, view.spec) == (array.ptr, array.spec)
    np.testing.assert_array_equal(view.numpy().astype(np.float32), host.astype(np.float32))


@pytest.mark.usefixtures("old_torch")
@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_of_a_pytorch_that_does_not_export_it(handle: dnn.Handle, dtype: str) -> None:
    """Operands, and a result, are read as bytes where they are."""
    a, b = (handle.array(float8_values(shape, dtype)) for shape in ((32, 64), (48, 64)))
    transposed = b.transpose()
    tensors = [OldTensor(array, dtype) for array in (a, transposed)]
    view = handle.view(tensors[1])
    assert (view.ptr, view.spec) == (transposed.ptr, transposed.spec)
    y = dnn.matmul(handle, *tensors)
    expected = a.numpy().astype(np.float64) @ b.numpy().astype(np.float64).T
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-4)
    out = handle.full((32, 48), np.nan, dtype=dtype)
    dnn.matmul(handle, *tensors, dtype=dtype, out=OldTensor(out, dtype))
    rounded = dnn.matmul(handle, a, transposed, dtype=dtype)
    np.testing.assert_array_equal(out.numpy().view(np.uint8), rounded.numpy().view(np.uint8))


@pytest.mark.usefixtures("old_torch")
@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_of_pytorch_on_the_host(handle: dnn.Handle, dtype: str) -> None:
    source = handle.array(float8_values((3, 4), dtype))
    copy = handle.array(HostTensor(source, dtype))
    assert copy.spec == source.spec
    np.testing.assert_array_equal(copy.numpy().view(np.uint8), source.numpy().view(np.uint8))


class HostTensor:
    """A tensor of PyTorch's on the host, of a type that NumPy does not read."""

    def __init__(self, array: dnn.DeviceArray, name: str) -> None:
        self.dtype = TorchType(name)
        self._values = array.numpy()

    def float(self) -> Any:
        return self._values.astype(np.float32)


@pytest.mark.usefixtures("old_torch")
@pytest.mark.parametrize("name", ["float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"])
def test_float8_that_cudnn_has_no_type_for(handle: dnn.Handle, name: str) -> None:
    array = handle.array(float8_values((16, 16), "float8_e5m2"))
    with pytest.raises(
        dnn.ArgumentError, match=rf"^a is {name}; allowed: float8_e4m3fn, float8_e5"
    ):
        dnn.matmul(handle, OldTensor(array, name), array)


@cuda_only
@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_of_pytorch_on_a_gpu(handle: dnn.Handle, dtype: str) -> None:
    torch = library("torch")
    a, b = (
        torch.randn(shape, device="cuda").to(getattr(torch, dtype))
        for shape in ((32, 64), (48, 64))
    )
    torch.cuda.synchronize()
    for _ in range(2):  # the second call reads the tensors without a view
        y = dnn.matmul(handle, a, b.t())
        expected = a.double() @ b.double().t()
        np.testing.assert_allclose(y.numpy(), expected.cpu().numpy(), rtol=1e-3, atol=1e-2)
