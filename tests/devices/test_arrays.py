"""DeviceArray: round trips, views, refusals, ownership, export."""

import copy
import gc
import operator
import pickle
import re

import ml_dtypes
import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite import ArgumentError, ArrayTypeError, DeviceArray, TensorSpec
from cudnnlite.errors import ClosedError
from cudnnlite.other_libraries import OPERATORS

DTYPES = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "uint8",
    "int32",
    "int64",
    "float8_e4m3fn",
    "float8_e5m2",
]
SHAPES = {
    1: (7,),
    2: (3, 4),
    3: (2, 5, 7),
    4: (2, 3, 5, 4),
    5: (2, 3, 2, 3, 4),
    6: (1, 2, 3, 1, 2, 3),
}
LAYOUTS = [(rank, None) for rank in SHAPES] + [
    (3, "NCW"),
    (3, "NWC"),
    (4, "NCHW"),
    (4, "NHWC"),
    (5, "NCDHW"),
    (5, "NDHWC"),
]


def numpy_type(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def counting(shape, dtype="float32"):
    """Values that are all different, and exact in every type."""
    values = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    return (
        (values % 120).astype(numpy_type(dtype))
        if np.dtype(numpy_type(dtype)).itemsize < 4
        else values.astype(dtype)
    )


def raw_bytes(array):
    """The device's memory, as it lies there."""
    return bytes(array.device.memory.view(array.ptr, array.nbytes))


# ---------------------------------------------------------------- round trips


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rank", "layout"), LAYOUTS)
def test_round_trip(own_handle, dtype, rank, layout):
    values = counting(SHAPES[rank], dtype)
    array = own_handle.array(values, layout=layout)
    back = array.numpy()
    assert back.dtype == values.dtype
    assert back.tobytes() == values.tobytes()
    assert array.spec == TensorSpec(SHAPES[rank], dtype, layout)
    assert (array.shape, array.dtype, array.strides) == (
        values.shape,
        values.dtype,
        array.spec.strides,
    )
    if layout:
        assert array.layout == layout


@pytest.mark.parametrize(("rank", "layout"), [(3, "NWC"), (4, "NHWC"), (5, "NDHWC")])
def test_channels_last_memory_is_channels_last(own_handle, rank, layout):
    values = counting(SHAPES[rank])
    array = own_handle.array(values, layout=layout)
    assert raw_bytes(array) == np.moveaxis(values, 1, -1).tobytes()
    assert own_handle.array(values).nbytes == array.nbytes
    assert raw_bytes(own_handle.array(values)) == values.tobytes()


@pytest.mark.parametrize(("dtype", "vector"), [("int8x4", 4), ("int8x32", 32), ("uint8x4", 4)])
def test_vector_types_are_packed_channel_by_channel(own_handle, dtype, vector):
    n, c, h, w = shape = (2, 64, 3, 2)
    values = np.random.default_rng(1).integers(0, 120, shape).astype(dtype.partition("x")[0])
    array = own_handle.array(values, dtype=dtype)
    expected = bytearray()
    for image in range(n):  # the packing as cuDNN's documentation words it, value by value
        for block in range(c // vector):
            for row in range(h):
                for column in range(w):
                    expected += bytes(
                        int(values[image, block * vector + lane, row, column])
                        for lane in range(vector)
                    )
    assert raw_bytes(array) == expected
    assert array.numpy().tobytes() == values.tobytes()
    assert array.layout == "NCHW_VECT_C"
    assert array.dtype == values.dtype


@pytest.mark.parametrize(
    "make",
    [
        lambda v: v.transpose(0, 1, 3, 2),
        lambda v: v[:, ::-1],
        lambda v: v[:, :, ::2, 1:],
        lambda v: v.astype(">f4"),
        lambda v: np.asfortranarray(v),
        lambda v: np.broadcast_to(v[:1], v.shape),
        lambda v: v.tolist(),
        lambda v: np.ma.masked_array(v),
    ],
    ids=[
        "transposed",
        "reversed",
        "sliced",
        "big-endian",
        "Fortran",
        "broadcast",
        "list",
        "subclass",
    ],
)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_host_arrays_of_any_kind(own_handle, make, layout):
    values = make(counting(SHAPES[4]))
    array = own_handle.array(values, dtype="float32", layout=layout)
    assert (array.numpy() == np.asarray(values)).all()
    assert array.shape == np.shape(values)
    assert array.layout == layout


def test_host_memory_is_copied(own_handle):
    values = counting((1, 2, 3, 4))
    array = own_handle.array(values)
    values[:] = -1
    back = array.numpy()
    back[:] = -2
    assert array.numpy().ravel().tolist() == list(range(24))


def test_scalars_become_one_value(own_handle):
    array = own_handle.array(3.5)
    assert array.shape == (1,)
    assert array.numpy().tolist() == [3.5]


@pytest.mark.parametrize(
    ("source_type", "target_type"),
    [("float64", "float16"), ("int32", "float32"), ("float32", "bfloat16")],
)
def test_conversion(own_handle, source_type, target_type):
    array = own_handle.array(counting((1, 2, 3, 4), source_type), dtype=target_type)
    assert array.dtype == numpy_type(target_type)
    assert (array.numpy().astype("float64").ravel() == np.arange(24)).all()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_an_empty_batch(own_handle, own_device, layout):
    array = own_handle.array(np.empty((0, 3, 4, 5), np.float32), layout=layout)
    assert array.shape == (0, 3, 4, 5)
    assert array.nbytes == own_device.memory_used() == 0
    assert array.numpy().shape == (0, 3, 4, 5)
    assert own_handle.array(array).shape == (0, 3, 4, 5)


def test_empty(own_handle, own_device):
    array = own_handle.empty((2, 3, 4, 5), "float16", "NHWC")
    assert array.spec == TensorSpec((2, 3, 4, 5), "float16", "NHWC")
    assert own_device.memory_used() == array.nbytes == 240
    strided = own_handle.empty(TensorSpec((2, 3), strides=(10, 2)))
    assert strided.nbytes == 60
    assert strided.numpy().shape == (2, 3)


def test_numpy_of_a_strided_array_reads_between_the_gaps(own_handle):
    spec = TensorSpec((2, 3), strides=(10, 2))
    array = own_handle.empty(spec)
    memory = np.arange(15, dtype=np.float32)
    array.device.copy_in(array.ptr, memory, None)
    assert array.numpy().tolist() == [[0, 2, 4], [10, 12, 14]]


def test_numpy_owns_its_memory_in_the_arrays_order(own_handle):
    back = own_handle.array(counting(SHAPES[4]), layout="NHWC").numpy()
    assert back.strides == tuple(
        4 * stride for stride in TensorSpec(SHAPES[4], layout="NHWC").strides
    )
    assert back.flags.writeable


# ---------------------------------------------------------------- from arrays on the device


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_copy_of_a_device_array(own_handle, layout):
    original = own_handle.array(counting(SHAPES[4]), layout=layout)
    duplicate = own_handle.array(original)
    assert duplicate.spec == original.spec
    assert duplicate.ptr != original.ptr
    assert raw_bytes(duplicate) == raw_bytes(original)


def test_a_copy_in_another_dtype_and_layout(own_handle):
    values = counting(SHAPES[4])
    copied = own_handle.array(own_handle.array(values), dtype="float16", layout="NHWC")
    assert copied.spec == TensorSpec(SHAPES[4], "float16", "NHWC")
    assert (copied.numpy() == values).all()


def test_a_copy_keeps_strides(own_handle):
    spec = TensorSpec((2, 3), strides=(10, 2))
    original = own_handle.empty(spec)
    original.device.copy_in(original.ptr, np.arange(15, dtype=np.float32), None)
    assert own_handle.array(original).spec == spec
    assert own_handle.array(original).numpy().tolist() == [[0, 2, 4], [10, 12, 14]]


def test_views_of_device_arrays_are_themselves(own_handle):
    array = own_handle.empty((1, 2, 3, 4))
    assert own_handle.view(array) is array


class Exporter:
    """Another library's array on this device: it has `__dlpack__`, and nothing of ours."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_a_view_shares_memory_and_keeps_it(own_handle, own_device):
    array = own_handle.array(counting((1, 2, 3, 4)), layout="NHWC")
    view = own_handle.view(Exporter(array))
    assert view.ptr == array.ptr
    assert view.spec.shape == (1, 2, 3, 4)
    assert view.spec.fits("NHWC")
    assert (view.numpy() == array.numpy()).all()
    del array
    gc.collect()
    assert own_device.memory_used() == 96
    assert view.numpy().ravel().tolist() == list(range(24))
    del view
    gc.collect()
    assert own_device.memory_used() == 0


def test_a_view_is_an_operand(own_handle):
    x, w = (
        own_handle.array(counting((1, 2, 5, 5))),
        own_handle.array(np.ones((2, 2, 3, 3), np.float32)),
    )
    expected = dnn.convolution_forward(own_handle, x, w).numpy()
    assert (dnn.convolution_forward(own_handle, Exporter(x), Exporter(w)).numpy() == expected).all()


# ---------------------------------------------------------------- refusals


def test_a_host_array_of_another_library_is_refused(own_handle):
    with pytest.raises(ArrayTypeError, match=r"^array is a host array .Exporter"):
        own_handle.view(Exporter(np.zeros((1, 2, 3, 4), np.float32)))


def test_part_of_the_devices_memory_is_not_enough(own_handle):
    """An array that reaches beyond its allocation, as a wrong pointer does."""
    array = own_handle.empty((4,))
    wide = np.lib.stride_tricks.as_strided(np.from_dlpack(array), (5,), (4,))
    with pytest.raises(ArrayTypeError, match="is a host array"):
        own_handle.view(Exporter(wide))


X = TensorSpec((1, 3, 8, 8))
W = dnn.FilterSpec((4, 3, 3, 3))


@pytest.mark.parametrize("x", [(1, 3), W, X], ids=["tuple", "wrong_spec", "spec"])
def test_a_call_takes_no_specs_and_names_none(own_handle, x):
    with pytest.raises(ArrayTypeError) as caught:
        dnn.pooling_forward(own_handle, x, dnn.PoolingSpec(2))
    _, _, allowed = str(caught.value).partition(";")
    assert "Spec" not in allowed


def test_ragged_lists_are_refused(own_handle, own_device):
    with pytest.raises(ValueError, match=r"."):
        own_handle.array([[1.0, 2.0], [3.0]])
    assert own_device.memory_used() == 0


@pytest.mark.parametrize("axes", [(1,), (2, 3)])
def test_negative_strides_are_refused(own_handle, axes):
    array = own_handle.array(counting((1, 2, 3, 4)))
    flipped = np.flip(np.from_dlpack(array), axes)
    with pytest.raises((ArgumentError, ArrayTypeError)):
        own_handle.view(Exporter(flipped))


@pytest.mark.parametrize(
    "convert",
    [
        np.asarray,
        np.array,
        lambda a: np.asarray(a, np.float32),
        lambda a: np.add(a, 1),
        lambda a: np.ones(1) + a,
    ],
)
def test_numpy_does_not_get_it_by_itself(own_handle, convert):
    array = own_handle.array(counting((1, 2, 3, 4)))
    with pytest.raises(ArrayTypeError, match=r"call its numpy\(\)"):
        convert(array)


# ---------------------------------------------------------------- ownership


def test_memory_is_freed_when_dropped(own_handle, own_device):
    array = own_handle.array(counting((1, 2, 3, 4)))
    assert own_device.memory_used() == 96
    del array
    gc.collect()
    assert own_device.memory_used() == 0


def test_a_closed_array(own_handle, own_device):
    array = own_handle.array(counting((1, 2, 3, 4)))
    array.close()
    assert own_device.memory_used() == 0
    uses = [
        lambda: array.ptr,
        array.numpy,
        array.__dlpack__,
        lambda: np.from_dlpack(array),
        lambda: own_handle.array(array),
        lambda: dnn.convolution_forward(own_handle, array, own_handle.empty((2, 2, 2, 2))),
    ]
    for use in uses:
        with pytest.raises(ClosedError, match="this DeviceArray was closed"):
            use()
    assert array.shape == (1, 2, 3, 4)  # its spec stays
    array.close()


def test_closed_operands_write_nothing(own_handle):
    x, w = (
        own_handle.array(counting((1, 2, 5, 5))),
        own_handle.array(np.ones((2, 2, 3, 3), np.float32)),
    )
    out = own_handle.array(np.full((1, 2, 3, 3), 7, np.float32))
    dnn.convolution_forward(own_handle, x, w)
    for closed in (own_handle.array(x), own_handle.array(w), own_handle.array(out)):
        closed.close()
        operands = {2: (closed, w, out), 5: (x, w, out)}
        arguments = (
            (x, closed, out)
            if closed.shape == w.shape
            else operands[2]
            if closed.shape == x.shape
            else (x, w, closed)
        )
        with pytest.raises(ClosedError):
            dnn.convolution_forward(own_handle, arguments[0], arguments[1], out=arguments[2])
    assert (out.numpy() == 7).all()


def test_a_closed_empty_array_is_closed_too(own_handle):
    array = own_handle.empty((0, 2, 3, 4))
    array.close()
    with pytest.raises(ClosedError):
        array.numpy()


def test_arrays_outlive_their_handle(own_device):
    with dnn.Handle(own_device) as handle:
        array = handle.array(counting((1, 2, 3, 4)))
    assert array.numpy().ravel().tolist() == list(range(24))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_no_second_owner(own_handle, duplicate):
    array = own_handle.empty((1, 2, 3, 4))
    with pytest.raises(
        TypeError,
        match=(
            r"a DeviceArray cannot be copied or pickled; pickle its numpy\(\), and copy it by its "
            r"copy\(\)"
        ),
    ):
        duplicate(array)


def test_repr(own_handle):
    array = own_handle.empty((2, 3, 4, 5), "bfloat16", "NHWC")
    assert repr(array) == "<DeviceArray (2, 3, 4, 5) bfloat16 NHWC on <emulated:5>>"
    array.close()
    assert repr(array) == "<closed DeviceArray (2, 3, 4, 5) bfloat16 NHWC on <emulated:5>>"


def test_unknown_attributes(own_handle):
    array = own_handle.empty((1,))
    assert not hasattr(array, "data")
    with pytest.raises(AttributeError, match="datta"):
        array.datta
    with pytest.raises(AttributeError):
        array.something_new = 1


# ---------------------------------------------------------------- export


@pytest.mark.parametrize(
    "dtype", [dtype for dtype in DTYPES if not dtype.startswith(("bfloat", "float8"))]
)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_dlpack_shares_memory(own_handle, own_device, dtype, layout):
    values = counting(SHAPES[4], dtype)
    array = own_handle.array(values, layout=layout)
    exported = np.from_dlpack(array)
    assert exported.ctypes.data == array.ptr
    assert exported.dtype == values.dtype
    assert exported.strides == tuple(stride * values.itemsize for stride in array.strides)
    assert (exported == values).all()
    own_device.memory.view(array.ptr, values.itemsize)[:] = 0
    assert exported[0, 0, 0, 0] == 0


def test_dlpack_keeps_the_memory(own_handle, own_device):
    array = own_handle.array(counting((1, 2, 3, 4)))
    exported = np.from_dlpack(array)[0, 1:]
    array.close()
    del array
    gc.collect()
    assert own_device.memory_used() == 96
    assert exported.ravel().tolist() == list(range(12, 24))
    del exported
    gc.collect()
    assert own_device.memory_used() == 0


def test_an_unused_capsule_gives_the_memory_back(own_handle, own_device):
    array = own_handle.array(counting((1, 2, 3, 4)))
    capsule = array.__dlpack__()
    del array
    gc.collect()
    assert own_device.memory_used() == 96
    del capsule
    gc.collect()
    assert own_device.memory_used() == 0


def test_dlpack_of_an_empty_batch(own_handle):
    assert np.from_dlpack(own_handle.empty((0, 2, 3, 4))).shape == (0, 2, 3, 4)


def test_dlpack_of_a_vector_type_has_its_lanes_as_an_axis(own_handle):
    values = counting((1, 8, 2, 2), "int8")
    exported = np.from_dlpack(own_handle.array(values, dtype="int8x4"))
    assert exported.shape == (1, 2, 2, 2, 4)
    assert (np.moveaxis(exported, -1, 2).reshape(1, 8, 2, 2) == values).all()


def test_dlpack_device(own_handle):
    assert own_handle.empty((1,)).__dlpack_device__() == (
        1,
        0,
    )  # kDLCPU: the memory is the host's, as it really is


def test_the_emulated_device_has_no_cuda_array_interface(own_handle):
    array = own_handle.empty((1,))
    assert not hasattr(array, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match="their memory is the host's"):
        array.__cuda_array_interface__


def test_type_of_what_is_made(own_handle):
    assert type(own_handle.empty((1,))) is DeviceArray
    assert not own_handle.empty((1,)).readonly


# ---------------------------------------------------------------- truth, equality, operators


@pytest.mark.parametrize("values", [[0.0], [1.0, 2.0]])
def test_it_has_no_truth_value(own_handle, values):
    array = own_handle.array(values, dtype="float32")
    for ask in (bool, lambda a: a or None, lambda a: not a, lambda a: any([a])):
        with pytest.raises(ArrayTypeError, match=r"no truth value; x\.numpy\(\) .*`x is None`"):
            ask(array)


@pytest.mark.parametrize(
    "make_other",
    [
        lambda array: array.copy(),
        lambda array: array[:],
        lambda array: array.numpy(),
        lambda array: Exporter(array),
        lambda array: 1,
        lambda array: np.float32(1),
    ],
)
def test_it_is_not_compared_with_arrays_and_numbers(own_handle, make_other):
    array = own_handle.array(counting((2, 3)))
    other = make_other(array)
    for compare in (operator.eq, operator.ne):
        with pytest.raises(ArrayTypeError, match=r"compared with ==; x\.numpy\(\)"):
            compare(array, other)
        with pytest.raises(ArrayTypeError, match=r"x\.numpy\(\)|call its numpy\(\)"):
            compare(other, array)


def test_it_is_equal_to_itself_and_its_hash_is_its_own(own_handle):
    first, second = (own_handle.array(counting((2, 3))) for _ in range(2))
    assert first == first  # noqa: PLR0124
    assert (first != first) is False  # noqa: PLR0124
    assert {first: 1, second: 2}[second] == 2
    assert first in [first, second]
    for nothing in (None, "text", object()):
        assert first != nothing
    for values in (3.0, (2, 3), [[1, 2]]):
        with pytest.raises(ArrayTypeError, match="not compared"):
            assert first == values


OPERATIONS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "@": operator.matmul,
    "**": operator.pow,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@pytest.mark.parametrize("symbol", OPERATIONS)
def test_an_operator_names_what_computes_it(own_handle, symbol):
    array = own_handle.array(counting((2, 3)))
    for operands in ((array, array), (array, 1), (array, array.numpy())):
        with pytest.raises(TypeError, match=rf"no operator {re.escape(symbol)}; ") as caught:
            OPERATIONS[symbol](*operands)
        assert str(caught.value).endswith(OPERATORS[symbol])
    with pytest.raises(TypeError, match="no operator"):
        OPERATIONS[symbol](1, array)


def test_a_sign_is_an_operator_too(own_handle):
    with pytest.raises(TypeError, match=r"no operator -x; dnn\.scale_tensor"):
        _ = -own_handle.array(counting((2, 3)))


def test_an_item_is_not_assigned(own_handle):
    array = own_handle.array(counting((2, 3)))
    with pytest.raises(TypeError, match=r"no item assignment; x\[0\]\.fill\(1\) and x\[0\]\."):
        array[0] = 1
    np.testing.assert_array_equal(array.numpy(), counting((2, 3)))
    array[0].fill(1)
    assert (array.numpy()[0] == 1).all()


def test_it_prints_where_its_values_are(own_handle):
    array = own_handle.empty((2, 3))
    assert str(array) == f"{repr(array)[:-1]}; its numpy() has the values>"
    array.close()
    assert str(array) == repr(array)
