"""Softmax against ONNX's reference implementation, PyTorch and finite differences."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.refusals import refuses
from tolerances import OPERATION_BOUNDS, assert_near

import cudnnlite as dnn

from .operation_samples import LAYOUTS, spec_of
from .problems import (
    FLOATS,
    PATTERN,
    Array,
    fill,
    gap_mask,
    memory_of,
    poisoned,
    random_values,
    upload,
)
from .test_pooling import onnx_run

ALGORITHMS, SCALES = ("accurate", "fast", "log"), ("channel", "instance")
SHAPES = {2: (3, 7), 3: (2, 5, 11), 4: (2, 5, 4, 6), 5: (2, 3, 4, 2, 5)}
SLOPE = 1e-7  # of central differences over 1e-4


def host_values(rank: int, dtype: str, seed: int = 0) -> Array:
    return random_values(np.random.default_rng(seed), SHAPES[rank], dtype)


def flat(values: Array, mode: str) -> Array:
    """Return the values with everything that is summed on axis 1."""
    return values.reshape(len(values), -1) if mode == "instance" else values


def onnx_softmax(x: Array, algorithm: str, mode: str) -> Array:
    """Run ONNX's Softmax or LogSoftmax in float64."""
    return onnx_run(
        "LogSoftmax" if algorithm == "log" else "Softmax", flat(x, mode), axis=1
    ).reshape(x.shape)


def torch_softmax(x: Array, dy: Array, algorithm: str, mode: str) -> tuple[Array, Array]:
    """Return PyTorch's (y, dx) in float64."""
    torch: Any = pytest.importorskip("torch")
    leaf = torch.tensor(flat(x, mode).astype(np.float64), requires_grad=True)
    y = (torch.log_softmax if algorithm == "log" else torch.softmax)(leaf, 1)
    y.backward(torch.tensor(flat(dy, mode).astype(np.float64)))
    return y.detach().numpy().reshape(x.shape), leaf.grad.numpy().reshape(x.shape)


def combinations(rank: int) -> Any:
    """Yield dtype and layout."""
    for dtype in FLOATS:
        for layout in LAYOUTS:
            if rank > 2 or layout != "last":
                yield dtype, layout


by_options = pytest.mark.parametrize(
    ("algorithm", "mode"), [(algorithm, mode) for algorithm in ALGORITHMS for mode in SCALES]
)


@by_options
@pytest.mark.parametrize("rank", SHAPES)
def test_forward_is_what_onnx_says(
    handle: dnn.Handle, algorithm: str, mode: str, rank: int
) -> None:
    for dtype, layout in combinations(rank):
        host, spec = host_values(rank, dtype), spec_of(SHAPES[rank], dtype, layout)
        y = dnn.softmax_forward(
            handle,
            upload(handle, spec, host),
            algorithm=algorithm,
            mode=mode,
            out=poisoned(handle, spec),
        ).numpy()
        assert_near(y, onnx_softmax(host, algorithm, mode), OPERATION_BOUNDS[dtype])
        values = flat(y.astype(np.float64), mode)
        sums = (np.exp(values) if algorithm == "log" else values).sum(1)
        few = (
            OPERATION_BOUNDS[dtype]
            * np.abs(values).max()
            * (8 if algorithm == "log" else flat(host, mode).shape[1])
        )
        np.testing.assert_allclose(sums, 1, rtol=0, atol=few)


@by_options
@pytest.mark.parametrize("rank", SHAPES)
def test_both_ways_are_what_pytorch_says(
    handle: dnn.Handle, algorithm: str, mode: str, rank: int
) -> None:
    how = {"algorithm": algorithm, "mode": mode}
    for dtype, layout in combinations(rank):
        host, dy_host, spec = (
            host_values(rank, dtype),
            host_values(rank, dtype, 1),
            spec_of(SHAPES[rank], dtype, layout),
        )
        expected, gradient = torch_softmax(host, dy_host, algorithm, mode)
        rounded = upload(handle, spec, expected.astype(host.dtype))
        dx = dnn.softmax_backward(
            handle, rounded, upload(handle, spec, dy_host), **how, out=poisoned(handle, spec)
        )
        y = dnn.softmax_forward(handle, upload(handle, spec, host), **how)
        assert_near(y.numpy(), expected, OPERATION_BOUNDS[dtype])
        # from a y that was rounded, whose every value is off by as much
        sums = (
            np.abs(flat(dy_host.astype(np.float64), mode).sum(1)).max()
            if algorithm == "log"
            else 0.0
        )
        assert_near(
            dx.numpy(),
            gradient,
            2 * OPERATION_BOUNDS[dtype],
            max(sums, np.abs(dy_host.astype(np.float64)).max()),
        )


@by_options
@pytest.mark.parametrize("shape", [(1, 6), (1, 3, 4), (1, 3, 2, 3), (1, 2, 3, 2, 2)])
def test_backward_is_the_slope_of_forward(
    handle: dnn.Handle, algorithm: str, mode: str, shape: tuple[int, ...]
) -> None:
    """Each value of one image is moved up and down, in a batch of as many images."""
    rng, step, how = np.random.default_rng(2), 1e-4, {"algorithm": algorithm, "mode": mode}
    x, dy = rng.standard_normal(shape), rng.standard_normal(shape)
    moves = step * np.eye(x.size).reshape(x.size, *shape[1:])
    up, down = (
        dnn.softmax_forward(handle, handle.array(x + sign * moves), **how).numpy()
        for sign in (1, -1)
    )
    y = dnn.softmax_forward(handle, handle.array(x), **how)
    dx = dnn.softmax_backward(handle, y, handle.array(dy), **how).numpy()
    slope = ((up - down) * dy).reshape(x.size, -1).sum(1) / (2 * step)
    assert_near(dx, slope.reshape(shape), SLOPE, np.abs(dy).max())


@pytest.mark.parametrize("algorithm", ["accurate", "log"])
@pytest.mark.parametrize("mode", SCALES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_large_values_do_not_overflow(
    handle: dnn.Handle, algorithm: str, mode: str, dtype: str
) -> None:
    for size in (1000.0, -1000.0):
        host = (host_values(4, dtype) + size).astype(dtype)
        y = dnn.softmax_forward(handle, handle.array(host), algorithm=algorithm, mode=mode).numpy()
        largest = (
            abs(size) if algorithm == "log" else 0
        )  # cuDNN subtracts the logarithm and the maximum as one rounded sum
        assert_near(y, onnx_softmax(host, algorithm, mode), OPERATION_BOUNDS[dtype], largest)
    # further apart, and ONNX's LogSoftmax takes the logarithm of 0
    host = np.where(np.arange(240).reshape(SHAPES[4]) % 2, 1000.0, 400.0).astype(dtype)
    y = dnn.softmax_forward(handle, handle.array(host), algorithm=algorithm, mode=mode).numpy()
    assert_near(y, onnx_softmax(host, algorithm, mode), OPERATION_BOUNDS[dtype])


# What an H200 computes correctly between two layouts in four dimensions.  For the rest it returns
# success with a wrong result, so that packed copies are computed.
BETWEEN = {
    "channel": {*itertools.permutations(LAYOUTS, 2)} - {("first", "strided")},
    "instance": {("last", "first"), ("strided", "first")},
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", SCALES)
def test_layouts_may_differ(handle: dnn.Handle, dtype: str, mode: str) -> None:
    host, old = host_values(4, dtype), host_values(4, dtype, 1)
    expected = onnx_softmax(host, "accurate", mode)
    for one, other in itertools.permutations(LAYOUTS, 2):
        x = upload(handle, spec_of(host.shape, dtype, one), host)
        out_spec = spec_of(host.shape, dtype, other)
        with dnn.softmax_forward.plan(handle, x.spec, mode=mode, out=out_spec) as plan:
            y = plan(x, out=poisoned(handle, out_spec))
            assert (plan.workspace == 0) == ((one, other) in BETWEEN[mode])
        assert_near(y.numpy(), expected, OPERATION_BOUNDS[dtype])
        out = upload(handle, out_spec, old)
        dnn.softmax_forward(handle, x, mode=mode, alpha=2.0, beta=0.5, out=out)
        blended = 2 * expected + 0.5 * old.astype(np.float64)
        assert_near(out.numpy(), blended, 2 * OPERATION_BOUNDS[dtype])
        assert (memory_of(out)[gap_mask(out_spec)] == PATTERN).all()


# Shape, the order of the axes in memory, the axis behind which is a gap, its size, and the mode:
# an H200 reads the gaps of these as data, or writes into them, and returns success.
GAPS: list[tuple[Any, ...]] = [
    ((2, 2, 3, 2, 4), (0, 2, 3, 4, 1), 4, 1, "channel"),
    ((2, 4, 3, 2, 3), (0, 2, 3, 4, 1), 1, 3, "channel"),
    ((5, 3, 2, 4, 3), (0, 3, 2, 4, 1), None, 0, "channel"),
    ((3, 6, 4), (0, 1, 2), 1, 2, "instance"),
    ((3, 6, 4), (0, 2, 1), 2, 1, "instance"),
    ((3, 4, 2, 5), (0, 2, 3, 1), 2, 1, "instance"),
    ((3, 2, 3, 2, 4), (0, 2, 3, 4, 1), 2, 1, "instance"),
    ((1, 5, 7, 1), (1, 0, 3, 2), 0, 8, "channel"),
]


@pytest.mark.parametrize(("shape", "order", "axis", "gap", "mode"), GAPS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_gaps_that_cudnn_reads_are_copied_away(
    handle: dnn.Handle,
    algorithm: str,
    shape: tuple[int, ...],
    order: tuple[int, ...],
    axis: int | None,
    gap: int,
    mode: str,
) -> None:
    strides, step = [0] * len(shape), 1
    for place in reversed(order):
        strides[place] = step
        step *= shape[place] + (gap if place == axis else 0)
    how = {"algorithm": algorithm, "mode": mode}
    for dtype in FLOATS:
        spec = dnn.TensorSpec(shape, dtype, strides=strides)
        host, dy_host = (
            random_values(np.random.default_rng(seed), shape, dtype) for seed in range(2)
        )
        expected = onnx_softmax(host, algorithm, mode)
        with dnn.softmax_forward.plan(handle, spec, **how, out=spec) as plan:
            assert plan.workspace > 0  # for the copies
            y = plan(upload(handle, spec, host, gaps=0xFF), out=poisoned(handle, spec))
        assert_near(y.numpy(), expected, OPERATION_BOUNDS[dtype])
        assert (memory_of(y)[gap_mask(spec)] == 0xFF).all()
        rounded = expected.astype(host.dtype)
        dx = dnn.softmax_backward(
            handle,
            upload(handle, spec, rounded, gaps=0xFF),
            upload(handle, spec, dy_host, gaps=0xFF),
            **how,
            out=poisoned(handle, spec),
        )
        packed_dx = dnn.softmax_backward(
            handle, handle.array(rounded), handle.array(dy_host), **how
        )
        assert_near(dx.numpy(), packed_dx.numpy(), OPERATION_BOUNDS[dtype])
        assert (memory_of(dx)[gap_mask(spec)] == 0xFF).all()


# Shape, data type, layouts of x and out, and mode: packed copies are computed, and an operand that is
# packed already, whatever its layout is called, is its own copy.
ALREADY_PACKED: list[tuple[Any, ...]] = [
    ((2, 1, 2, 2, 2), "float64", "NCDHW", "NDHWC", "instance"),
    ((3, 1, 1, 1, 4), "float64", "NDHWC", "NDHWC", "channel"),
    ((1, 1, 8, 9), "float32", "NHWC", "NCHW", "instance"),
    ((1, 3, 2, 3, 1), "float32", "NDHWC", "NCDHW", "instance"),
]


@pytest.mark.parametrize(("shape", "dtype", "layout", "out_layout", "mode"), ALREADY_PACKED)
@pytest.mark.parametrize("beta", [0.0, -2.0])
def test_what_is_packed_already_is_not_copied(
    handle: dnn.Handle,
    shape: tuple[int, ...],
    dtype: str,
    layout: str,
    out_layout: str,
    mode: str,
    beta: float,
) -> None:
    how = {"algorithm": "log", "mode": mode}
    spec, out_spec = (dnn.TensorSpec(shape, dtype, name) for name in (layout, out_layout))
    host, old = (random_values(np.random.default_rng(seed), shape, dtype) for seed in range(2))
    x = upload(handle, spec, host)
    expected = onnx_softmax(host, "log", mode) + beta * old.astype(np.float64)
    with dnn.softmax_forward.plan(handle, spec, **how, beta=beta, out=out_spec) as plan:
        y = plan(x, out=upload(handle, out_spec, old))
    assert_near(y.numpy(), expected, 2 * OPERATION_BOUNDS[dtype])
    out = upload(handle, out_spec, old)
    dnn.softmax_forward(handle, x, **how, beta=beta, out=out)
    assert_near(out.numpy(), expected, 2 * OPERATION_BOUNDS[dtype])


def test_a_view_with_gaps_in_place(handle: dnn.Handle) -> None:
    spec = dnn.TensorSpec((3, 6, 4), "float32", strides=(32, 4, 1))
    host = random_values(np.random.default_rng(0), spec.shape, "float32")
    x = upload(handle, spec, host)
    dnn.softmax_forward(handle, x, mode="instance", out=x)
    expected = onnx_softmax(host, "accurate", "instance")
    assert_near(x.numpy(), expected, OPERATION_BOUNDS["float32"])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", SCALES)
def test_layouts_of_gradients_that_differ_are_refused(
    handle: dnn.Handle, dtype: str, mode: str
) -> None:
    """cuDNN 9.19 computes something else, and calls it a success."""
    shape = SHAPES[4]
    backward = partial(dnn.softmax_backward, handle)
    for one, other in itertools.permutations(LAYOUTS, 2):
        y, dy, out = (handle.empty(spec_of(shape, dtype, layout)) for layout in (one, other, other))
        fill(out, PATTERN)
        refuses(dnn.ArgumentError, r"\bout is", partial(backward, y, y, mode=mode, out=out))
        refuses(dnn.ArgumentError, r"\bdy is", partial(backward, y, dy, mode=mode))
        assert (memory_of(out) == PATTERN).all()


@pytest.mark.parametrize("algorithm", ["fast", "accurate", "log"])
@pytest.mark.parametrize("mode", SCALES)
def test_some_channels_of_images_are_never_computed_wrongly(
    handle: dnn.Handle, mode: str, algorithm: str
) -> None:
    """There are gaps between the images.

    cuDNN 9.19 reads and overwrites them in mode INSTANCE, so that packed copies are computed.
    """
    whole = np.random.default_rng(0).standard_normal((3, 9, 4, 5)).astype(np.float32)
    x = handle.array(whole)[:, :6]
    y = dnn.softmax_forward(handle, x, mode=mode, algorithm=algorithm)
    assert_near(y.numpy(), onnx_softmax(whole[:, :6], algorithm, mode), OPERATION_BOUNDS["float32"])
    np.testing.assert_array_equal(x.numpy(), whole[:, :6])


@pytest.mark.parametrize("algorithm", ["fast", "accurate", "log"])
@pytest.mark.parametrize("mode", SCALES)
def test_some_classes_of_rows(handle: dnn.Handle, mode: str, algorithm: str) -> None:
    """One position an image: both modes are the same, and the one that is right is run."""
    whole = np.random.default_rng(0).standard_normal((5, 9, 1, 1)).astype(np.float32)
    y = dnn.softmax_forward(handle, handle.array(whole)[:, :6], mode=mode, algorithm=algorithm)
    assert_near(y.numpy(), onnx_softmax(whole[:, :6], algorithm, mode), OPERATION_BOUNDS["float32"])


@pytest.mark.parametrize("algorithm", ["fast", "accurate", "log"])
def test_strides_of_axes_of_size_1_do_not_matter(handle: dnn.Handle, algorithm: str) -> None:
    """cuDNN 9.19 looks at them, and wrote elsewhere."""
    host = np.random.default_rng(0).standard_normal((3, 5, 5, 1)).astype(np.float32)
    out = handle.empty(dnn.TensorSpec(host.shape, "float32", strides=(25, 5, 1, 75)))
    fill(out, 0xFF)
    dnn.softmax_forward(handle, handle.array(host), algorithm=algorithm, out=out)
    assert_near(out.numpy(), onnx_softmax(host, algorithm, "channel"), OPERATION_BOUNDS["float32"])


def test_layouts_that_are_the_same_memory_are_none_that_differ(handle: dnn.Handle) -> None:
    host = np.random.default_rng(0).standard_normal((2, 7, 1, 1))
    x, out = handle.array(host), handle.empty(dnn.TensorSpec(host.shape, "float64", "NHWC"))
    assert_near(
        dnn.softmax_forward(handle, x, out=out).numpy(),
        onnx_softmax(host, "accurate", "channel"),
        1e-13,
    )


def test_options_by_name(handle: dnn.Handle) -> None:
    host = host_values(4, "float64")
    x = handle.array(host)
    expected = onnx_softmax(host, "log", "instance")
    for algorithm in ("log", "LOG", "Log", dnn.enums.SoftmaxAlgorithm.LOG, 2):
        for mode in ("instance", "INSTANCE", "Instance", dnn.enums.SoftmaxMode.INSTANCE, 0):
            assert_near(
                dnn.softmax_forward(handle, x, algorithm=algorithm, mode=mode).numpy(),
                expected,
                1e-13,
            )
    assert_near(
        dnn.softmax_forward(handle, x).numpy(), onnx_softmax(host, "accurate", "channel"), 1e-13
    )
    for call in (
        partial(dnn.softmax_forward, handle, x),
        partial(dnn.softmax_backward, handle, x, x),
    ):
        for option, allowed in (
            ("algorithm", "FAST, ACCURATE, LOG"),
            ("mode", "INSTANCE, CHANNEL"),
        ):
            for wrong in ("exact", 3, None, dnn.enums.PoolingMode.MAX):
                refuses(
                    dnn.ArgumentError, rf"\b{option}=.*{allowed}", partial(call, **{option: wrong})
                )
