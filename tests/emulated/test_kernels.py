"""The emulated convolutions against SciPy and the ONNX reference implementation, in float64."""

from __future__ import annotations

import contextlib
import math
import tracemalloc
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import HAS_TORCH, onnx_convolution
from scipy.signal import correlate

import cudnnlite as dnn
from cudnnlite.emulated import convolution_call, kernels
from cudnnlite.emulated.kernels import KERNELS, KERNELS_WITHOUT_SCRATCH
from cudnnlite.enums import ConvolutionMode
from cudnnlite.specs import ConvolutionSpec

TOLERANCE = {
    "float64": 1e-12,
    "float32": 1e-5,
}  # largest relative L2 error against the float64 oracle
ALGORITHMS = {"tap by tap": KERNELS_WITHOUT_SCRATCH["y"], "columns": KERNELS["y"]}
MIB = 1 << 20
GUARD = 64

TINY = {
    "MAX_VALUES": 64,
    "MAX_TAPS": 4,
    "MAX_POSITIONS": 5,
}  # every loop over blocks turns more than once for the shapes below


def scipy_convolution(x: np.ndarray, w: np.ndarray, problem: ConvolutionSpec) -> np.ndarray:
    """Correlate every pair of planes with SciPy; dilation and stride by zeros and by dropping."""
    if problem.mode == ConvolutionMode.CONVOLUTION:
        w = np.flip(w, tuple(range(2, w.ndim)))
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in problem.padding)])
    extents = [(t - 1) * d + 1 for t, d in zip(w.shape[2:], problem.dilation, strict=True)]
    dilated = np.zeros((*w.shape[:2], *extents), w.dtype)
    dilated[(..., *(slice(None, None, d) for d in problem.dilation))] = w
    strided = tuple(slice(None, None, s) for s in problem.stride)
    channels, filters = w.shape[1], len(w) // problem.groups
    return np.array(
        [
            [
                sum(
                    correlate(
                        image[k // filters * channels + c],
                        dilated[k, c],
                        mode="valid",
                        method="direct",
                    )
                    for c in range(channels)
                )[strided]
                for k in range(len(w))
            ]
            for image in padded
        ]
    )


def relaid(a: np.ndarray, order: tuple[int, ...], gap: int) -> np.ndarray:
    """Return a copy whose axes have an order in memory, the last a stride of `gap` elements."""
    base = np.empty([*(a.shape[axis] for axis in order[:-1]), a.shape[order[-1]] * gap], a.dtype)
    view = base[..., ::gap].transpose(np.argsort(order))
    view[...] = a
    return view


def run(
    name: str, x: np.ndarray, w: np.ndarray, problem: ConvolutionSpec, out: np.ndarray
) -> np.ndarray:
    """Run an algorithm with poisoned output and scratch, and check the memory around."""
    algorithm = ALGORITHMS[name]
    size = algorithm.scratch_bytes(x.shape, w.shape, problem, x.dtype)
    buffer = np.full(size + 2 * GUARD, 0xFF, np.uint8)
    out[...] = np.nan if out.dtype.kind == "f" else -123456789
    before = x.copy(), w.copy()
    algorithm.run(x, w, problem, out, buffer[GUARD : GUARD + size])
    assert (buffer[:GUARD] == 0xFF).all()
    assert (buffer[GUARD + size :] == 0xFF).all()
    np.testing.assert_array_equal(before[0], x)
    np.testing.assert_array_equal(before[1], w)
    return out


def relative_error(y: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(y - expected) / max(np.linalg.norm(expected), 1e-30))


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], ConvolutionSpec]:
    """Shapes of x and w and a problem."""
    axes = draw(st.integers(1, 3))

    def per_axis(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(axes))

    groups, taps, padding = draw(st.sampled_from([1, 1, 2, 3])), per_axis(1, 4), per_axis(0, 5)
    stride, dilation = per_axis(1, 5), per_axis(1, 3)
    spatial = tuple(
        max(1, d * (t - 1) + 1 - 2 * p) + draw(st.integers(0, 9 if axes < 3 else 4))
        for d, t, p in zip(dilation, taps, padding, strict=True)
    )
    x_shape = (draw(st.integers(1, 3)), groups * draw(st.integers(1, 4)), *spatial)
    w_shape = (groups * draw(st.integers(1, 3)), x_shape[1] // groups, *taps)
    return (
        x_shape,
        w_shape,
        ConvolutionSpec(
            padding, stride, dilation, groups, mode=draw(st.sampled_from(ConvolutionMode))
        ),
    )


@st.composite
def layouts(draw: st.DrawFn, axes: int) -> tuple[tuple[int, ...], int]:
    """Memory order of the axes (NCHW, NHWC, or any) and the gap between neighbours."""
    first = tuple(range(axes))
    order = draw(st.sampled_from([first, (0, *first[2:], 1)]) | st.permutations(first).map(tuple))
    return order, draw(st.sampled_from([1, 1, 1, 2]))


def block_limits(tiny: bool):
    return mock.patch.multiple(kernels, **TINY) if tiny else contextlib.nullcontext()


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@settings(max_examples=60)
@given(data=st.data())
def test_agrees_with_scipy(dtype: str, name: str, data: st.DataObject) -> None:
    x_shape, w_shape, problem = data.draw(convolutions())
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    x, w = (rng.standard_normal(shape).astype(dtype) for shape in (x_shape, w_shape))
    expected = scipy_convolution(x.astype(np.float64), w.astype(np.float64), problem)
    x, w, out = (relaid(a, *data.draw(layouts(a.ndim))) for a in (x, w, expected.astype(dtype)))
    with block_limits(data.draw(st.booleans())):
        y = run(name, x, w, problem, out)
    assert problem.output_shape(x_shape, w_shape) == expected.shape
    assert relative_error(y, expected) <= TOLERANCE[dtype]


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(max_examples=60)
@given(data=st.data())
def test_integer_sums_are_exact(name: str, data: st.DataObject) -> None:
    x_shape, w_shape, problem = data.draw(convolutions())
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    # all but the first wrap round in int32; products of 26 bits just fit float64, their sums do not
    bits = data.draw(st.sampled_from([7, 15, 26, 31]))
    x, w = (
        rng.integers(-(2**bits), 2**bits, shape).astype(np.int32) for shape in (x_shape, w_shape)
    )
    expected = scipy_convolution(x.astype(np.int64), w.astype(np.int64), problem).astype(np.int32)
    x, w, out = (relaid(a, *data.draw(layouts(a.ndim))) for a in (x, w, expected))
    expected = expected.copy()
    with block_limits(data.draw(st.booleans())):
        np.testing.assert_array_equal(run(name, x, w, problem, out), expected)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_integer_sums_beyond_float64_are_exact(name: str) -> None:
    """Products fit the 53 bits of float64, their sum (odd, of 57 bits) does not."""
    value = 2**26 - 1
    x, w = np.full((1, 3, 3, 3), value, np.int32), np.full((1, 3, 3, 3), value, np.int32)
    y = run(name, x, w, same(2), np.empty((1, 1, 1, 1), np.int32))
    assert int(y.item()) % 2**32 == 27 * value**2 % 2**32


def same(axes: int, **changes: object) -> ConvolutionSpec:
    """Return the plain problem, but for `changes`."""
    return ConvolutionSpec((0,) * axes, (1,) * axes, (1,) * axes).replace(**changes)


EDGES = {
    "1-D": ((2, 3, 11), (4, 3, 5), same(1, padding=(2,))),
    "1-D as 2-D": ((2, 3, 1, 11), (4, 3, 1, 5), same(2, padding=(0, 2))),
    "3-D": ((1, 2, 6, 5, 7), (3, 2, 3, 2, 3), same(3, padding=(1, 0, 2))),
    "one pixel": ((1, 1, 1, 1), (1, 1, 1, 1), same(2)),
    "fully connected": ((7, 5, 4, 3), (6, 5, 4, 3), same(2)),
    "pointwise": ((2, 5, 6, 6), (4, 5, 1, 1), same(2)),
    "rows of channels": ((5, 4, 1, 1), (6, 4, 1, 1), same(2)),
    "same 3x3": ((2, 5, 9, 8), (4, 5, 3, 3), same(2, padding=(1, 1))),
    "flipped 3x3": (
        (2, 5, 9, 8),
        (4, 5, 3, 3),
        same(2, padding=(1, 0), mode=ConvolutionMode.CONVOLUTION),
    ),
    "two groups": ((2, 6, 7, 5), (4, 3, 3, 3), same(2, padding=(1, 1), groups=2)),
    "depthwise": ((2, 6, 7, 5), (6, 1, 3, 3), same(2, padding=(1, 1), groups=6)),
    "depthwise, multiplier": (
        (2, 3, 7, 5),
        (6, 1, 3, 2),
        same(2, groups=3, mode=ConvolutionMode.CONVOLUTION),
    ),
    "dilated, strided": (
        (2, 3, 17, 14),
        (4, 3, 3, 2),
        same(2, padding=(2, 1), stride=(2, 3), dilation=(3, 4)),
    ),
    "stride above kernel": ((2, 3, 13, 12), (4, 3, 2, 1), same(2, stride=(5, 4))),
    "padding above kernel": ((2, 3, 5, 4), (4, 3, 3, 3), same(2, padding=(6, 7))),
    "filter above image": ((2, 3, 2, 3), (4, 3, 6, 5), same(2, padding=(3, 2))),
    "3x3 above image": ((2, 3, 1, 1), (4, 3, 3, 3), same(2, padding=(1, 2))),
    "several tiles": ((1, 2, 67, 40), (2, 2, 5, 4), same(2, padding=(2, 1))),
    "larger tiles": ((1, 1, 90, 80), (1, 1, 40, 20), same(2, mode=ConvolutionMode.CONVOLUTION)),
}


@pytest.mark.parametrize("case", EDGES)
def test_edges_agree_with_onnx(case: str) -> None:
    x_shape, w_shape, problem = EDGES[case]
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(x_shape), rng.standard_normal(w_shape)
    flipped = problem.mode == ConvolutionMode.CONVOLUTION
    expected = onnx_convolution(
        x, w, problem.padding, problem.stride, problem.dilation, problem.groups, flipped
    )
    assert problem.output_shape(x_shape, w_shape) == expected.shape
    assert relative_error(scipy_convolution(x, w, problem), expected) < 1e-12
    for name in ALGORITHMS:
        y = run(name, x, w, problem, np.empty(expected.shape))
        assert relative_error(y, expected) < TOLERANCE["float64"], name


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_larger_convolution_in_both_layouts(name: str) -> None:
    """More than one block with the real limits, by what hypothesis is too slow for."""
    problem = same(2, padding=(1, 1))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 20, 75, 70), dtype=np.float32)
    w = rng.standard_normal((6, 20, 3, 3), dtype=np.float32)
    expected = scipy_convolution(x.astype(np.float64), w.astype(np.float64), problem)
    for order in [(0, 1, 2, 3), (0, 2, 3, 1)]:
        operands = [relaid(a, order, 1) for a in (x, w, expected.astype(np.float32))]
        y = run(name, operands[0], operands[1], problem, operands[2])
        assert relative_error(y, expected) < TOLERANCE["float32"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_not_a_number_spreads_quietly(name: str) -> None:
    x, w = np.ones((1, 2, 6, 6), np.float32), np.ones((2, 2, 3, 3), np.float32)
    x[0, 0, 2, 2], x[0, 1, 0, 0], w[0, 0, 0, 0] = np.nan, np.inf, 3e38
    y = run(name, x, w, same(2, padding=(1, 1)), np.empty((1, 2, 6, 6), np.float32))
    assert np.isnan(y[0, 0, 2, 2])


HUGE = [
    ((256, 512, 224, 224), (512, 512, 3, 3), same(2, padding=(1, 1))),
    ((1, 1, 1000, 1000), (1, 1, 3, 3), same(2)),
    ((64, 64, 60, 60), (64, 64, 3, 3), same(2)),
    ((64, 25088, 1, 1), (4096, 25088, 1, 1), same(2)),
    ((1, 1 << 20, 3, 3), (1, 1 << 20, 3, 3), same(2)),
    ((4096, 4, 1, 1), (1 << 16, 4, 1, 1), same(2)),
    ((8, 16384, 8, 8), (16384, 1, 3, 3), same(2, groups=16384)),
    ((4, 8, 64, 512, 512), (16, 8, 3, 3, 3), same(3)),
    ((4, 64, 700, 700), (64, 64, 300, 300), same(2)),
]


@pytest.mark.parametrize(("x_shape", "w_shape", "problem"), HUGE)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_workspace_is_bounded_and_grows_with_the_batch(
    x_shape, w_shape, problem: ConvolutionSpec, dtype: str
) -> None:
    size = KERNELS["y"].scratch_bytes(x_shape, w_shape, problem, dtype)
    assert size <= 256 * MIB
    for n in {1, 2, 3, x_shape[0] // 3, x_shape[0] // 2, x_shape[0] - 1} & set(
        range(1, x_shape[0])
    ):
        assert KERNELS["y"].scratch_bytes((n, *x_shape[1:]), w_shape, problem, dtype) <= size, n


def test_a_small_problem_wants_little_workspace() -> None:
    assert KERNELS["y"].scratch_bytes((1, 1, 8, 8), (1, 1, 3, 3), same(2), "float64") < 64 * 1024


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(
    ("x_shape", "w_shape"),
    [
        ((1, 96, 640, 640), (2, 96, 3, 3)),
        ((48, 40_000, 3, 3), (200, 40_000, 3, 3)),
        ((1, 64, 3, 3), (20_000, 64, 3, 3)),
    ],
)
def test_temporaries_are_bounded(name: str, x_shape, w_shape) -> None:
    """The operands are far larger than what may be allocated: one number with strides of zero."""
    x, w = np.broadcast_to(np.float32(2), x_shape), np.broadcast_to(np.float32(0.5), w_shape)
    problem = same(2)
    out = np.empty(problem.output_shape(x_shape, w_shape), np.float32)
    scratch = np.empty(
        ALGORITHMS[name].scratch_bytes(x_shape, w_shape, problem, np.float32), np.uint8
    )
    tracemalloc.start()
    try:
        ALGORITHMS[name].run(x, w, problem, out, scratch)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 128 * MIB
    np.testing.assert_allclose(out, math.prod(w_shape[1:]), rtol=1e-4)


@pytest.mark.parametrize("taps", [31, 63, 91])
def test_work_grows_with_the_taps_and_not_with_their_square(taps):
    """Each tap is gathered once for each block of positions; 91 x 91 on 512 x 512 took 135 s."""
    x, w = np.zeros((1, 1, 512, 512), np.float32), np.zeros((1, 1, taps, taps), np.float32)
    out, algorithm = (
        np.empty(ConvolutionSpec().output_shape(x.shape, w.shape), np.float32),
        KERNELS["y"],
    )
    size = algorithm.scratch_bytes(x.shape, w.shape, ConvolutionSpec(), "float32")
    assert size <= 32 << 20
    with mock.patch.object(kernels, "gather", wraps=kernels.gather) as gather:
        algorithm.run(x, w, ConvolutionSpec(), out, np.empty(size, np.uint8))
    assert sum(len(call.args[3]) for call in gather.call_args_list) <= 4 * taps**2


def test_many_taps_in_parts():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 2, 70, 65)), rng.standard_normal((3, 2, 41, 37))
    problem = ConvolutionSpec(padding=3)
    out = np.empty(problem.output_shape(x.shape, w.shape))
    results = [run(name, x, w, problem, out.copy()) for name in ALGORITHMS]
    assert kernels.MAX_TAPS < 41 * 37
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, ((0, 0), (0, 0), (3, 3), (3, 3))), (41, 37), (2, 3)
    )
    expected = np.einsum("nchwij,kcij->nkhw", windows, w)
    for result in results:
        np.testing.assert_allclose(result, expected, rtol=1e-11, atol=1e-10)


# name: (x shape, w shape, ConvolutionSpec options)
LARGE = {
    "images": ((11, 16, 230, 231), (2, 8, 3, 2), {"padding": 1, "groups": 2}),
    "rows": ((1, 40, 500, 501), (2, 40, 2, 3), {"padding": (0, 1), "dilation": (2, 1)}),
    "stride": (
        (3, 24, 301, 280),
        (3, 8, 3, 3),
        {"stride": (2, 1), "groups": 3, "mode": "convolution"},
    ),
}


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
@pytest.mark.parametrize("name", LARGE)
def test_large_gradients_are_computed_in_parts(name):
    import torch

    x_shape, w_shape, options = LARGE[name]
    rng, conv = np.random.default_rng(0), ConvolutionSpec(**options)
    x, w = (rng.standard_normal(shape, np.float32) for shape in (x_shape, w_shape))
    dy = rng.standard_normal(conv.output_shape(x_shape, w_shape), np.float32)
    (padding, stride, dilation), rotate = (
        conv.steps(2),
        (2, 3) if conv.mode == ConvolutionMode.CONVOLUTION else (),
    )
    tensors = (torch.from_numpy(array) for array in (dy, x, np.flip(w, rotate).copy()))
    steps = (
        [0],
        list(stride),
        list(padding),
        list(dilation),
        False,
        [0, 0],
        conv.groups,
        [True, True, False],
    )
    dx, dw = (a.numpy() for a in torch.ops.aten.convolution_backward(*tensors, *steps)[:2])
    size = KERNELS["dx"].scratch_bytes(x_shape, w_shape, conv, np.float32)
    assert size < x.nbytes * math.prod(w_shape[2:])  # in parts
    scratch = np.full(size, 0xFF, np.uint8)
    x_gradient = np.full(x_shape, np.nan, np.float32)
    KERNELS["dx"].run(w, dy, conv, x_gradient, scratch)
    assert relative_error(x_gradient, dx) < 1e-6
    w_gradient = np.ones(w_shape, np.float32)  # the gradient of a filter is added
    KERNELS["dw"].run(x, dy, conv, w_gradient, scratch)
    assert relative_error(w_gradient - 1, np.flip(dw, rotate)) < 1e-5


def test_a_batch_in_parts(monkeypatch):
    """Each part meets its own of what is added, and the bias that all share."""
    rng, results = np.random.default_rng(0), []
    hosts = [
        rng.standard_normal(shape)
        for shape in ((5, 3, 6, 7), (4, 3, 3, 2), (1, 4, 1, 1), (5, 4, 4, 6))
    ]
    for limit in (convolution_call.BATCH_BYTES, 1):
        monkeypatch.setattr(convolution_call, "BATCH_BYTES", limit)
        with dnn.Handle("emulated") as handle:
            x, w, bias, z = map(handle.array, hosts)
            y = dnn.convolution_bias_activation_forward(
                handle, x, w, bias, activation="relu", z=z, alpha2=0.5, algorithm="IMPLICIT_GEMM"
            )
            dx = dnn.convolution_backward_data(
                handle, w, z, x=x, beta=2.0, out=handle.array(hosts[0]), algorithm="ALGO_0"
            )
            results.append((y.numpy(), dx.numpy()))
    for whole, parts in zip(*results, strict=True):
        np.testing.assert_allclose(parts, whole, rtol=1e-12, atol=1e-12)
