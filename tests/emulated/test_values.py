"""Values that an H200 with cuDNN 9.19 computed where a formula does not say what is right.

Infinities, NaN and grids far outside were recorded there; masked rows of attention with 9.28, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite.dtypes import numpy_dtype, parse_dtype

FLOATS = ("float32", "float64", "float16", "bfloat16")
INFINITY = np.inf
NO_POSITION = np.iinfo(np.int32).max


@pytest.fixture
def handle() -> Iterator[dnn.Handle]:
    with dnn.Handle(device="emulated") as handle:
        yield handle


def lowest(dtype: str) -> float:
    return float(ml_dtypes.finfo(numpy_dtype(parse_dtype(dtype))).min)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("padding", [(1, 1), ((0, 1), (0, 1))], ids=["descriptor", "graph"])
def test_the_maximum_of_infinities_is_the_lowest_number(
    handle: dnn.Handle, padding: object, dtype: str
) -> None:
    host = np.full((1, 1, 4, 4), -INFINITY)
    host[..., 3, 3] = 2
    pooling = dnn.PoolingSpec(2, padding=padding, stride=2)
    y = dnn.pooling_forward(handle, handle.array(host, dtype=dtype), pooling).numpy()
    assert y[0, 0, 0, 0] == lowest(dtype)
    assert y.max() == 2


def test_ignored_values_pool_to_the_lowest_number(handle: dnn.Handle) -> None:
    x = handle.array(np.full((1, 1, 2, 2), np.nan, np.float32))
    pooling = dnn.PoolingSpec(2, nan="not_propagate")
    assert dnn.pooling_forward(handle, x, pooling).numpy() == lowest("float32")


@pytest.mark.parametrize(
    ("mode", "layout", "has_gradient"),
    [("max", "NCHW", True), ("max", "NHWC", False), ("max_deterministic", "NCHW", False)],
)
def test_the_gradient_of_a_maximum_of_infinities(
    handle: dnn.Handle, mode: str, layout: str, has_gradient: bool
) -> None:
    x = handle.array(np.full((1, 3, 2, 2), -INFINITY, np.float32), layout=layout)
    pooling = dnn.PoolingSpec(2, padding=1, stride=2, mode=mode)
    y = dnn.pooling_forward(handle, x, pooling)
    dy = handle.array(np.ones(y.shape, np.float32), layout=layout)
    dx = dnn.pooling_backward(handle, y, dy, x, pooling).numpy()
    assert (dx == has_gradient).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("shape", "mode", "layout", "is_masked"),
    [
        ((2, 40, 1, 1), "channel", "NCHW", True),
        ((2, 40, 2, 1), "channel", "NHWC", True),
        ((2, 40, 2, 1), "instance", "NCHW", True),
        ((2, 40, 2, 1), "channel", "NCHW", False),
        ((2, 1000, 1, 1), "channel", "NCHW", False),
    ],
)
def test_softmax_of_infinities(
    handle: dnn.Handle,
    shape: tuple[int, ...],
    mode: str,
    layout: str,
    is_masked: bool,
    dtype: str,
) -> None:
    host = np.zeros(shape)
    host[0] = -INFINITY
    x = handle.array(host, dtype=dtype, layout=layout)
    for algorithm, masked_value in (("accurate", 0), ("log", -INFINITY), ("fast", np.nan)):
        expected = masked_value if is_masked and dtype != "float64" else np.nan
        y = dnn.softmax_forward(handle, x, algorithm=algorithm, mode=mode).numpy()
        np.testing.assert_array_equal(y[0].astype(np.float64), expected)
        assert np.isfinite(y[1].astype(np.float64)).all()


@pytest.mark.parametrize("count", [7, 70, 3000])
def test_reductions_of_infinities(handle: dnn.Handle, count: int) -> None:
    a = handle.array(np.full((1, 1, 1, count), -INFINITY, np.float32))
    largest, position = dnn.reduce_tensor(handle, a, "max", indices=True)
    assert largest.numpy() == lowest("float32")
    assert position.numpy() == (NO_POSITION if count < 3000 else -1)
    smallest, position = dnn.reduce_tensor(handle, a, "min", indices=True)
    assert (smallest.numpy(), position.numpy()) == (-INFINITY, 0)


def test_reductions_of_nan(handle: dnn.Handle) -> None:
    a = handle.array(np.array([3, 1, np.nan, 5, np.nan], np.float32).reshape(1, 1, 1, 5))
    nothing = handle.array(np.full((1, 1, 1, 5), np.nan, np.float32))
    # The index of an ignored NaN's neighbours, the value and the index if all are NaN.
    of_ignored = {
        "max": (3, lowest("float32")),
        "min": (1, -lowest("float32")),
        "amax": (3, 0.0),
    }
    for op, (position, of_nothing) in of_ignored.items():
        value, place = dnn.reduce_tensor(handle, a, op, indices=True)
        assert np.isnan(value.numpy())
        assert place.numpy() == 2
        skips = dnn.specs.ReduceTensorSpec(op, nan="not_propagate", indices="flattened")
        value, place = dnn.reduce_tensor(handle, a, skips, indices=True)
        assert place.numpy() == position
        value, place = dnn.reduce_tensor(handle, nothing, skips, indices=True)
        assert (value.numpy(), place.numpy()) == (np.float32(of_nothing), NO_POSITION)


@pytest.mark.parametrize(
    ("x", "y", "is_finite"),
    [(1e30, 0.1, True), (0.1, -1e30, True), (1e30, 1e30, False), (np.inf, 0.1, False)],
)
def test_points_far_outside(handle: dnn.Handle, x: float, y: float, is_finite: bool) -> None:
    """The weights of both axes are multiplied before the pixels, which are 0."""
    rng = np.random.default_rng(0)
    images = handle.array(rng.standard_normal((1, 2, 5, 4)), dtype="float32")
    host = rng.uniform(-0.9, 0.9, (1, 2, 2, 2)).astype(np.float32)
    host[0, 1, 1] = x, y
    grid = handle.array(host)
    samples = dnn.spatial_transformer_sample(handle, images, grid)
    at_point = samples.numpy()[0, :, 1, 1]
    assert (at_point == 0).all() if is_finite else np.isnan(at_point).all()
    dx, _ = dnn.spatial_transformer_sample_backward(handle, images, grid, samples.copy())
    if is_finite:
        assert np.isfinite(dx.numpy()).all()


def test_no_gradient_of_an_image_comes_from_an_infinite_point(handle: dnn.Handle) -> None:
    images = handle.array(np.ones((1, 1, 5, 4), np.float32))
    grid = handle.array(np.full((1, 2, 2, 2), np.inf, np.float32))
    dy = handle.array(np.ones((1, 1, 2, 2), np.float32))
    dx, _ = dnn.spatial_transformer_sample_backward(handle, images, grid, dy)
    assert (dx.numpy() == 0).all()


@pytest.mark.parametrize(
    ("dtype", "value", "is_masked"),
    [
        ("float16", -INFINITY, True),
        ("float16", -65504.0, False),
        ("bfloat16", lowest("bfloat16"), True),
        ("bfloat16", -1e30, False),
        ("float32", lowest("float32"), True),
        ("float32", -1e30, False),
    ],
)
def test_masked_rows_of_attention(
    handle: dnn.Handle, dtype: str, value: float, is_masked: bool
) -> None:
    """A bias may mask all steps of a row: its output is 0, and so is its gradient."""
    rng = np.random.default_rng(0)
    shape = (1, 2, 16, 32)
    q, k, v, do = (handle.array(rng.standard_normal(shape), dtype=dtype) for _ in range(4))
    mask = np.zeros((1, 1, 16, 16))
    mask[0, 0, 3] = value
    bias = handle.array(mask, dtype=dtype, casting="unsafe")
    o, stats = dnn.scaled_dot_product_attention_forward(
        handle, q, k, v, bias=bias, return_stats=True
    )
    row, others = o.numpy()[:, :, 3].astype(np.float64), o.numpy()[:, :, 4:].astype(np.float64)
    assert (row == 0).all() == is_masked
    assert np.isneginf(stats.numpy()[:, :, 3]).all() == is_masked
    assert np.isfinite(row).all()
    assert (others != 0).all()
    if dtype != "float32":  # attention in float32 has no gradient
        dq, *_ = dnn.scaled_dot_product_attention_backward(handle, q, k, v, o, do, stats, bias=bias)
        gradient = dq.numpy().astype(np.float64)
        assert np.isfinite(gradient).all()
        assert (gradient[:, :, 3] == 0).all() == is_masked


@pytest.mark.parametrize("mode", ["spatial", "spatial_persistent"])
@pytest.mark.parametrize("shape", [(65536, 1, 1, 1), (70000, 1, 2)])
def test_batch_normalisation_takes_65535_images(
    handle: dnn.Handle, shape: tuple[int, ...], mode: str
) -> None:
    x = handle.zeros(shape, "float32")
    parameters = [handle.full((1,) * len(shape), 0.5, "float32") for _ in range(4)]
    with pytest.raises(dnn.NotSupportedError, match="up to 65535 at once: split the batch"):
        dnn.batch_normalization_inference(handle, x, *parameters, mode=mode)
    most = x[:65535]
    y = dnn.batch_normalization_inference(handle, most, *parameters, mode=mode)
    assert y.shape == most.shape


@pytest.mark.parametrize(("training", "most"), [(False, 131072), (True, 70000)])
def test_batch_normalisation_per_activation_takes_fewer_images(
    handle: dnn.Handle, training: bool, most: int
) -> None:
    """An H200 took as many, and refused 1,000,000 images, and 131,072 in training."""
    parameters = [handle.full((1, 1, 1, 1), 0.5, "float32") for _ in range(4)]

    def call(images: int) -> None:
        x = handle.zeros((images, 1, 1, 1), "float32")
        if training:
            scale, bias, *_ = parameters
            dnn.batch_normalization_training(handle, x, scale, bias, mode="per_activation")
        else:
            dnn.batch_normalization_inference(handle, x, *parameters, mode="per_activation")

    call(most)
    with pytest.raises(dnn.NotSupportedError, match="more than"):
        call(most + 1)


@pytest.mark.parametrize("mode", ["BATCH", "GROUP", "ADA_LAYER"])
def test_a_mode_of_normalisation_that_no_gpu_was_asked_about_is_refused(
    own_handle: dnn.Handle, mode: str
) -> None:
    graph = dnn.Graph()
    x = graph.input("x", (2, 16, 3, 3), "float16", layout="NHWC")
    scale, bias = (graph.input(name, (1, 16, 1, 1)) for name in ("scale", "bias"))
    graph.output("y", graph.normalization_forward(mode, x, scale, bias).y, "float16", layout="NHWC")
    with pytest.raises(dnn.NotSupportedError, match="emulated device has no engine for such"):
        graph.plan(own_handle)


def test_layer_normalisation_takes_less_than_2_31_values(handle: dnn.Handle) -> None:
    """As data: no memory of 4 GB is needed to plan it."""
    for rows, is_served in ((174762, True), (175000, False)):
        x = dnn.TensorSpec((rows, 12288, 1, 1), "float16")
        parameters = dnn.TensorSpec((1, 12288, 1, 1))
        plan = dnn.layer_normalization_forward.plan
        if is_served:
            plan(handle, x, parameters, parameters).close()
        else:
            with pytest.raises(dnn.NotSupportedError):
                plan(handle, x, parameters, parameters)
