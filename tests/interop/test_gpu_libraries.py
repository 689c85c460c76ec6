"""CuPy, JAX and Numba: their arrays in and ours out, without a copy, in stream order."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from device.problems import Problem, random_values

import cudnnlite as dnn
from cudnnlite.devices.exchange import exchanged

from .libraries import cuda_only, library

X, W = (2, 8, 9, 11), (6, 8, 3, 2)
pytestmark = cuda_only


# CuPy


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_cupy_in_and_out(handle: dnn.Handle, dtype: str) -> None:
    cupy = library("cupy")
    problem = Problem(handle, X, W, dtype, padding=1)
    x, w = cupy.asarray(problem.x_host), cupy.asarray(problem.w_host)
    cupy.cuda.Device().synchronize()
    assert handle.view(x).ptr == x.data.ptr
    y = dnn.convolution_forward(handle, x, w, problem.conv)
    for export in (cupy.from_dlpack(y), cupy.asarray(y)):
        assert export.data.ptr == y.ptr
        assert export.dtype == dtype
        problem.assert_right(cupy.asnumpy(export), problem.choice())
    out = cupy.full(problem.y_shape, np.nan, dtype)
    cupy.cuda.Device().synchronize()
    assert dnn.convolution_forward(handle, x, w, problem.conv, out=out).ptr == out.data.ptr
    handle.synchronize()
    problem.assert_right(cupy.asnumpy(out), problem.choice())


def test_cupy_strides_and_stream(handle: dnn.Handle) -> None:
    cupy = library("cupy")
    host = random_values(np.random.default_rng(0), (4, 8, 12, 14), "float32")
    problem = Problem(handle, X, W, math_type="fma")
    problem.x_host = host[::2, :, 2:11, 3:14]
    stream = cupy.cuda.Stream(non_blocking=True)
    handle.stream = stream
    assert int(handle.stream.handle) == stream.ptr
    with stream:
        x = cupy.asarray(host)[::2, :, 2:11, 3:14]
        y = dnn.convolution_forward(handle, x, problem.w, problem.conv, algorithm="IMPLICIT_GEMM")
        export = cupy.from_dlpack(y)
        problem.assert_right(cupy.asnumpy(export), dnn.enums.ConvolutionFwdAlgo.IMPLICIT_GEMM)
    stream.synchronize()


def test_cupy_reversed_view(handle: dnn.Handle) -> None:
    cupy = library("cupy")
    x = cupy.zeros(X, "float32")[:, :, ::-1]
    with pytest.raises(dnn.CudnnliteError, match=r"\bx\b.*stride"):
        dnn.convolution_forward(handle, x, handle.empty(W))


def test_cupy_outlives_the_array(handle: dnn.Handle) -> None:
    cupy = library("cupy")
    problem = Problem(handle, X, W, padding=1)
    export = cupy.from_dlpack(dnn.convolution_forward(handle, problem.x, problem.w, problem.conv))
    gc.collect()
    for _ in range(20):
        handle.array(np.full(problem.y_shape, np.nan, np.float32))
    problem.assert_right(cupy.asnumpy(export), problem.choice())


# JAX


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_jax_in_and_out(handle: dnn.Handle, dtype: str) -> None:
    jax = library("jax")
    problem = Problem(handle, X, W, dtype, padding=1)
    x, w = jax.numpy.asarray(problem.x_host), jax.numpy.asarray(problem.w_host)
    assert x.dtype == dtype
    jax.block_until_ready((x, w))
    assert handle.view(x).ptr == x.unsafe_buffer_pointer()
    y = dnn.convolution_forward(handle, x, w, problem.conv)
    export = jax.dlpack.from_dlpack(y)
    assert export.unsafe_buffer_pointer() == y.ptr
    assert export.dtype == dtype
    problem.assert_right(np.asarray(export), problem.choice())


def test_jax_array_is_no_output(handle: dnn.Handle) -> None:
    """JAX's arrays never change; writing to one would change what other arrays share."""
    jax = library("jax")
    problem = Problem(handle, X, W, padding=1)
    out = jax.numpy.zeros(problem.y_shape, "float32")
    jax.block_until_ready(out)
    with pytest.raises(dnn.ArrayTypeError, match=r"\bout\b.*read-only"):
        dnn.convolution_forward(handle, problem.x, problem.w, problem.conv, out=out)
    handle.synchronize()
    assert not np.asarray(out).any()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_jax_is_read_as_a_view_reads_it(handle: dnn.Handle, dtype: str) -> None:
    """Its capsule is read without a view; the address and the description are the same."""
    jax = library("jax")
    x = jax.numpy.zeros((2, 3, 5, 7), dtype)
    (array,) = exchanged(handle.device, handle.stream, [x]) or [None]
    expected = handle.view(x)
    assert array is not None
    assert (array.ptr, array.spec, array.readonly) == (expected.ptr, expected.spec, True)
    assert array.ptr == x.unsafe_buffer_pointer()


def test_jax_in_many_calls_of_a_plan(handle: dnn.Handle) -> None:
    """New arrays in each, which JAX may be computing still; the handle is on a stream of its own."""
    jax = library("jax")
    handle.stream = handle.device.create_stream()
    size = 2048
    factor = jax.numpy.full((size, size), 1 / size, "float32")
    grown = jax.jit(lambda start: ((start * factor) @ factor @ factor).reshape(1, 1, size, size))
    jax.block_until_ready(grown(1.0))
    out = handle.empty((1, 1, size, size))
    with dnn.op_tensor.plan(handle, out.spec, out.spec, "add") as plan:
        for number in range(1, 6):
            out.fill(np.nan)
            x = grown(float(number * size))
            assert plan(x, x, out=out) is out
            expected = 2 * np.asarray(x)
            np.testing.assert_array_equal(out.numpy(), expected)
            with pytest.raises(dnn.ArrayTypeError, match=r"\bout\b.*read-only"):
                plan(x, out, out=x)


def test_jax_outlives_the_array(handle: dnn.Handle) -> None:
    jax = library("jax")
    problem = Problem(handle, X, W, padding=1)
    export = jax.dlpack.from_dlpack(
        dnn.convolution_forward(handle, problem.x, problem.w, problem.conv)
    )
    gc.collect()
    for _ in range(20):
        handle.array(np.full(problem.y_shape, np.nan, np.float32))
    problem.assert_right(np.asarray(export), problem.choice())


def test_jax_array_on_the_host(handle: dnn.Handle) -> None:
    jax = library("jax")
    x = jax.device_put(np.zeros(X, np.float32), jax.devices("cpu")[0])
    with pytest.raises(dnn.ArrayTypeError, match=r"\bx\b.*host array"):
        dnn.convolution_forward(handle, x, handle.empty(W))


# Numba


def test_numba_in_and_out(handle: dnn.Handle) -> None:
    cuda = library("numba.cuda")
    problem = Problem(handle, X, W, "float32", padding=1)
    x, w = cuda.to_device(problem.x_host), cuda.to_device(problem.w_host)
    cuda.synchronize()
    assert handle.view(x).ptr == x.__cuda_array_interface__["data"][0]
    y = dnn.convolution_forward(handle, x, w, problem.conv)
    export = cuda.as_cuda_array(y)
    assert export.__cuda_array_interface__["data"][0] == y.ptr
    problem.assert_right(export.copy_to_host(), problem.choice())


def test_numba_output(handle: dnn.Handle) -> None:
    cuda = library("numba.cuda")
    problem = Problem(handle, X, W, "float32", padding=1)
    out = cuda.to_device(np.full(problem.y_shape, np.nan, np.float32))
    cuda.synchronize()
    dnn.convolution_forward(handle, problem.x, problem.w, problem.conv, out=out)
    handle.synchronize()
    problem.assert_right(out.copy_to_host(), problem.choice())
