"""Methods of arrays: parts, shapes, copies and filling, compared with NumPy."""

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite import ArgumentError, TensorSpec
from cudnnlite.errors import CaptureError, ClosedError

from .problems import memory_of, poisoned, random_values, upload, with_gaps

SHAPE = (3, 4, 5, 6)
KEYS = {
    "int": 1,
    "negative": -2,
    "batch": slice(1, 3),
    "steps": (slice(None), slice(None), slice(1, None, 2), slice(None, None, 3)),
    "ellipsis": (..., 2),
    "middle": (1, ..., slice(2, 4)),
    "channel": (slice(None), 3),
    "value": (2, 1, 0, -1),
    "far": slice(1, 900),
    "one": (slice(None), slice(2, 3)),
    "all": ...,
    "numpy": np.int64(2),
    "nobody": slice(2, 1),
}
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int64")


def both(handle, layout, dtype="float32"):
    spec = with_gaps(SHAPE, dtype) if layout == "strided" else TensorSpec(SHAPE, dtype, layout)
    values = random_values(np.random.default_rng(3), SHAPE, dtype)
    return upload(handle, spec, values), values


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "strided"])
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_parts_are_views(handle, layout, key):
    array, values = both(handle, layout)
    part, expected = array[key], values[key]
    assert part.shape == (expected.shape or (1,))
    assert (part.ndim, part.size) == (max(1, expected.ndim), expected.size)
    np.testing.assert_array_equal(part.numpy(), expected.reshape(part.shape))
    if not part.size:
        return
    new = random_values(np.random.default_rng(4), part.shape, "float32")
    part.copy_from(new)
    values[key] = new.reshape(expected.shape)
    np.testing.assert_array_equal(array.numpy(), values)
    part.fill(2.5)
    values[key] = 2.5
    np.testing.assert_array_equal(array.numpy(), values)
    back = np.full(part.shape, np.nan, np.float32)
    part.copy_to(back)
    assert (back == 2.5).all()


def test_a_part_is_an_operand_and_keeps_the_memory(handle):
    array, values = both(handle, "NHWC")
    w = handle.array(np.ones((2, 4, 1, 1), np.float32), layout="NHWC")
    part = array[1:]
    assert part.layout == "NHWC"
    assert part.ptr == array.ptr + values[0].nbytes
    array.close()
    np.testing.assert_array_equal(part.numpy(), values[1:])
    y = dnn.convolution_forward(handle, part, w, dnn.ConvolutionSpec(math_type="fma")).numpy()
    np.testing.assert_allclose(y[:, 0], values[1:].sum(axis=1), rtol=1e-5, atol=1e-5)
    with pytest.raises(ClosedError):
        array[0]


@pytest.mark.parametrize(
    ("key", "equal"), [(1, True), (1, 1.0), (slice(1, 3), slice(1.0, 3.0)), (np.s_[1:2:1], 1.0)]
)
def test_no_parts_by_what_equals_an_index(handle, key, equal):
    """Parts are remembered by their indices, which equal others."""
    array = handle.empty(SHAPE)
    assert array[key].ptr == array[key].ptr == array.ptr + SHAPE[1] * SHAPE[2] * SHAPE[3] * 4
    with pytest.raises(ArgumentError, match="on axis 0"):
        array[equal]


def test_an_empty_axis_has_no_value(handle):
    with pytest.raises(IndexError, match=r"index 3 on axis 0; allowed: -3 to 2"):
        handle.empty(SHAPE)[3]
    with pytest.raises(IndexError, match="index 0 on axis 0, which is empty"):
        handle.empty((0, 3))[0]


def test_rows_can_be_walked(handle):
    array, values = both(handle, "NCHW")
    assert (len(array), len(array[:0]), [*array[:0]]) == (3, 0, [])
    assert [row.numpy()[0, 0, 0] for row in array] == values[:, 0, 0, 0].tolist()


@pytest.mark.parametrize(
    "shape", [(60, 6), (-1,), (3, 1, 20, 6), (1, 3, 4, 5, 6), (3, 2, 2, 30)], ids=str
)
def test_reshape(handle, shape):
    array, values = both(handle, "NCHW")
    np.testing.assert_array_equal(array.reshape(shape).numpy(), values.reshape(shape))
    np.testing.assert_array_equal(array.reshape(*shape).numpy(), values.reshape(shape))
    assert array.reshape(shape).ptr == array.ptr
    np.testing.assert_array_equal(array[:, :2].reshape(3, -1).numpy(), values[:, :2].reshape(3, -1))


def test_no_reshape(handle):
    array, _ = both(handle, "NHWC")
    np.testing.assert_array_equal(
        array.reshape(3, 2, 2, 5, 6).numpy(), array.numpy().reshape(3, 2, 2, 5, 6)
    )
    for shape, message in {
        (3, 120): "without a copy",
        (7, 2): "does not hold",
        (-1, -1): "size -1 2 times; allowed: once",
        (-1, 7): r"^shape=\(-1, 7\) does not hold the 360 values",
        (-1, 0): "does not hold",
    }.items():
        with pytest.raises(ArgumentError, match=message):
            array.reshape(shape)
    vectors = handle.empty((1, 4, 2, 2), "int8x4")
    assert vectors.reshape(1, -1, 2, 2).spec == vectors.spec
    with pytest.raises(ArgumentError, match="does not hold"):
        vectors.reshape(16)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "strided"])
@pytest.mark.parametrize("axes", [(), (0, 2, 3, 1), (-1, 1, 0, 2)], ids=str)
def test_transpose(handle, layout, axes):
    array, values = both(handle, layout)
    expected = values.transpose(axes or None)
    for view in (array.transpose(*axes), array.transpose(axes)):
        np.testing.assert_array_equal(view.numpy(), expected)
        assert view.ptr == array.ptr
    view.fill(2.5)
    assert (array.numpy() == 2.5).all()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_parts_keep_the_layout_that_fits(handle, layout):
    """The stride of an axis of size 1 is free."""
    image, images = (
        handle.zeros((1, 8, 6, 6), layout=layout),
        handle.zeros((4, 8, 6, 6), layout=layout),
    )
    assert image.reshape(image.shape).spec == image.spec
    assert images[:0].reshape(0, 8, 6, 6).spec == images[:0].spec
    assert image.reshape(1, 2, 4, 6, 6).layout == ("NCDHW" if layout == "NCHW" else "strided")
    assert image.reshape(1, 8, 36).layout == layout.replace("H", "")
    thin = {
        "NCHW": (image[:, :1], image[:, 3:4, 2:3]),
        "NHWC": (image[:, :, :1], image[..., 1:2, 2:3]),
    }[layout]
    for part in (*thin, images[2:3], images[1:]):
        assert part.spec == TensorSpec(part.shape, layout=layout)
    assert images[:, :1, ::2].layout == "strided"
    assert handle.zeros(6)[::2][1:2].layout == "packed"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["NHWC", "strided"])
def test_filling_and_copying_leave_gaps_alone(handle, dtype, layout):
    array, values = both(handle, layout, dtype)
    before = memory_of(array)
    copied = handle.array(array)
    assert copied.spec == array.spec
    np.testing.assert_array_equal(memory_of(copied), before)
    array.fill(1.5 if array.dtype.kind not in "iu" else -3)
    assert len(set(array.numpy().ravel().tolist())) == 1
    array.copy_from(values)
    np.testing.assert_array_equal(memory_of(array), before)
    back = handle.pinned(array.spec)
    array.copy_to(back)
    handle.synchronize()
    np.testing.assert_array_equal(back, values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_copy_is_packed_as_its_whole_lies(handle, layout, dtype):
    whole, values = both(handle, layout, dtype)
    for key in (
        ...,
        (..., slice(2), slice(2)),
        (slice(None), slice(1)),
        (2, ..., slice(1, None, 2)),
    ):
        copied = whole[key].copy()
        np.testing.assert_array_equal(copied.numpy(), values[key])
        rank = values[key].ndim
        assert copied.layout == (
            layout if rank == 4 else {"NCHW": "NCW", "NHWC": "strided"}[layout]
        )
        assert copied.nbytes == values[key].nbytes
        assert copied.ptr != whole.ptr
    packed = upload(handle, with_gaps(SHAPE, dtype, last=layout == "NHWC"), values).copy()
    assert packed.spec == whole.spec
    np.testing.assert_array_equal(packed.numpy(), values)
    vectors = handle.full((2, 8, 3, 4), 7, "int8x4")
    assert vectors.copy().spec == vectors.spec


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_copy_of_a_part_is_a_filter(handle, layout):
    w = handle.array(
        random_values(np.random.default_rng(7), (4, 8, 3, 3), "float32"), layout=layout
    )
    x, part = handle.full((1, 8, 5, 5), 1, layout=layout), w[:, :, :2, :2]
    with pytest.raises(ArgumentError, match="filters are packed"):
        dnn.convolution_forward(handle, x, part)
    y = dnn.convolution_forward(
        handle, x, part.copy(), dnn.ConvolutionSpec(math_type="fma")
    ).numpy()
    np.testing.assert_allclose(y[0, :, 2, 2], part.numpy().sum((1, 2, 3)), rtol=1e-4, atol=1e-4)


def test_vector_types(handle):
    values = random_values(np.random.default_rng(5), (2, 8, 3, 4), "int8")
    array = handle.full(values.shape, 7, "int8x4")
    assert (array.numpy() == 7).all()
    array.copy_from(values)
    back = np.empty_like(values)
    array.copy_to(back)
    np.testing.assert_array_equal(array.numpy(), values)
    np.testing.assert_array_equal(back, values)
    with pytest.raises(ArgumentError, match="no parts"):
        array[0]


def test_zeros_full_and_the_context_manager(handle):
    with handle.zeros(SHAPE, "float64", "NHWC") as zeros:
        assert (zeros.layout, zeros.numpy().any(), zeros.dtype) == ("NHWC", False, np.float64)
    with pytest.raises(ClosedError):
        zeros.fill(1)
    assert handle.full((0, 2), 3).numpy().shape == (0, 2)
    arrays = (handle.zeros(5), handle.full(np.int64(5), 1), handle.empty(5), handle.pinned(5))
    assert [array.shape for array in arrays] == [(5,)] * 4
    for wrong in (True, 2.0, -1):
        with pytest.raises(ArgumentError, match="shape="):
            handle.empty(wrong)


def test_what_is_lost_may_be(handle):
    """A refusal names an argument, which its function has."""
    array = handle.zeros((2, 3), "int8")
    for call, message in {
        lambda **how: handle.zeros((2, 3)).fill(1e300, **how): "too large",
        lambda **how: handle.zeros((2, 3)).copy_from(np.full((2, 3), 1e300), **how): "too large",
        lambda **how: array.fill(2.5, **how): "fractions",
        lambda **how: array.copy_from(np.full((2, 3), 2.5), **how): "fractions",
        lambda **how: handle.full((2, 3), 2.5, "int8", **how): "fractions",
    }.items():
        with pytest.raises(ArgumentError, match=f'{message}.*casting="unsafe" lets them'):
            call()
        with pytest.raises(ArgumentError, match="casting='safe'; allowed: 'unsafe', None"):
            call(casting="safe")
        call(casting="unsafe")
    assert array.numpy().tolist() == [[2] * 3] * 2


@pytest.mark.parametrize("own_stream", [False, True], ids=["another stream", "its stream"])
def test_pinned_memory_and_streams(handle, own_stream):
    stream = handle.stream if own_stream else handle.device.create_stream()
    values = random_values(np.random.default_rng(6), (8, 16, 32, 33), "float16")
    staging, back = (
        handle.pinned(values.shape, "float16", "NHWC"),
        handle.pinned(values.shape, "float16", "NHWC"),
    )
    staging[...] = values
    array = poisoned(handle, TensorSpec(values.shape, "float16", "NHWC"))
    array.copy_from(staging, stream=stream)
    array[0].fill(3, stream=stream)
    array.copy_to(back, stream=stream)
    handle.synchronize()  # the array's stream waits for the other
    values[0] = 3
    np.testing.assert_array_equal(back, values)


def test_a_device_array_as_source(handle):
    array, values = both(handle, "NHWC")
    other = poisoned(handle, array.spec)
    other.copy_from(array)
    np.testing.assert_array_equal(other.numpy(), values)
    other.copy_from(other)
    for source in (handle.empty(SHAPE), handle.empty(SHAPE, "float16", "NHWC"), array[1:]):
        with pytest.raises(ArgumentError, match="transform_tensor"):
            other.copy_from(source)
    with pytest.raises(ArgumentError, match="overlaps"):
        other[1:].copy_from(other[:2])


def test_in_a_capture(handle):
    array, values = both(handle, "NCHW")
    x, w = handle.zeros(SHAPE), handle.array(np.ones((2, 4, 1, 1), np.float32))
    y = dnn.convolution_forward(handle, x, w)
    with dnn.capture(handle) as graph:
        x.copy_from(array)
        x[0].fill(0)
        for refused in (lambda: x.copy_from(values), lambda: array.copy_to(values)):
            with pytest.raises(CaptureError):
                refused()
        dnn.convolution_forward(handle, x, w, out=y)
    assert not x.numpy().any()
    graph.launch()
    np.testing.assert_array_equal(x.numpy()[1:], values[1:])
    assert not x.numpy()[0].any()
    graph.close()
