"""Descriptors: cuDNN holds the requested values, and each native object is destroyed once."""

import copy
import ctypes
import gc
import pickle
import sys
import warnings

import pytest
from helpers.harness import drop

import cudnnlite as dnn
from cudnnlite import (
    ArgumentError,
    ConvolutionDescriptor,
    ConvolutionSpec,
    FilterDescriptor,
    FilterSpec,
    MathType,
    TensorDescriptor,
    TensorSpec,
)
from cudnnlite.enums import TensorFormat
from cudnnlite.errors import ClosedError

DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "int32"]
TENSORS = [
    *[TensorSpec((2, 3, 4, 5), dtype) for dtype in DTYPES],
    TensorSpec((2, 3, 4, 5), "float16", "NHWC"),
    TensorSpec((2, 3, 4, 5, 6), "float32", "NCDHW"),
    TensorSpec((2, 3, 4, 5, 6), "float32", "NDHWC"),
    TensorSpec((2, 3, 4, 5, 6, 2)),
    TensorSpec((1, 2, 1, 2, 1, 2, 1, 2)),
    TensorSpec((2, 3, 4, 5), strides=(200, 64, 8, 1)),
    TensorSpec((2, 3, 4, 5), "float16", strides=(1, 2, 6, 24)),
    TensorSpec((2, 3, 4, 5, 6), strides=(1000, 300, 70, 10, 1)),
    TensorSpec((2, 64, 3, 3), "int8x32"),
    TensorSpec((2, 8, 3, 3), "int8x4"),
    TensorSpec((2, 8, 3, 3), "uint8x4"),
    TensorSpec((1, 1, 1, 1)),
]
FILTERS = [
    *[FilterSpec((4, 3, 2, 5), dtype) for dtype in DTYPES if dtype != "int32"],
    FilterSpec((4, 3, 2, 5), "float16", "NHWC"),
    FilterSpec((4, 3, 2, 5, 3), "float32", "NCDHW"),
    FilterSpec((4, 3, 2, 5, 3), "float32", "NDHWC"),
    FilterSpec((4, 64, 3, 3), "int8x32"),
    FilterSpec((4, 8, 3, 3), "int8x4"),
]
MAKERS = {
    "TensorDescriptor": lambda: TensorDescriptor((1, 2, 3, 4)),
    "FilterDescriptor": lambda: FilterDescriptor((1, 2, 3, 4)),
    "ConvolutionDescriptor": lambda: ConvolutionDescriptor(1),
}
by_maker = pytest.mark.parametrize("kind", MAKERS)

# ---------------------------------------------------------------- reading back


@pytest.mark.parametrize("spec", TENSORS, ids=repr)
def test_a_tensor_reads_back_as_it_was_set(spec):
    with TensorDescriptor(spec) as descriptor:
        assert descriptor.spec is spec
        assert descriptor.read_back() == spec
        assert descriptor.nbytes == spec.nbytes


@pytest.mark.parametrize("spec", FILTERS, ids=repr)
def test_a_filter_reads_back_as_it_was_set(spec):
    with FilterDescriptor(spec) as descriptor:
        assert descriptor.spec is spec
        assert descriptor.read_back() == spec
        assert descriptor.nbytes == spec.nbytes


@pytest.mark.parametrize(
    ("shape", "native"), [((2, 3, 7), (2, 3, 1, 7)), ((2, 3), (2, 3, 1, 1)), ((5,), (5, 1, 1, 1))]
)
def test_tensors_below_rank_four_are_told_to_cudnn_as_rank_four(shape, native):
    with TensorDescriptor(shape) as descriptor:
        assert descriptor.spec == TensorSpec(shape)
        assert descriptor.read_back().shape == native
        assert descriptor.nbytes == TensorSpec(shape).nbytes


@pytest.mark.parametrize(("layout", "native"), [("NCW", "NCHW"), ("NWC", "NHWC")])
def test_one_dimensional_layouts_stay_packed(layout, native):
    with (
        TensorDescriptor((2, 3, 7), "float32", layout) as x,
        FilterDescriptor((4, 3, 5), "float32", layout) as w,
    ):
        assert x.read_back().fits(native)
        assert w.read_back() == FilterSpec((4, 3, 1, 5), "float32", native)


def test_cudnns_own_four_dimensional_view():
    """A second C function, which cudnnlite does not use, agrees."""
    with TensorDescriptor((2, 3, 4, 5), "float16", "NHWC") as d:
        values = [ctypes.c_int() for _ in range(9)]
        d.api.cudnnGetTensor4dDescriptor(d.ptr, *values)
        assert [value.value for value in values] == [
            int(dnn.DataType.HALF),
            2,
            3,
            4,
            5,
            60,
            1,
            15,
            3,
        ]


CONVOLUTIONS = [
    {"padding": (1, 2), "stride": (3, 4), "dilation": (5, 6)},
    {"padding": (0, 0), "stride": (1, 1), "dilation": (1, 1), "groups": 7},
    {"padding": (1, 2, 3), "stride": (4, 5, 6), "dilation": (7, 8, 9), "groups": 2},
    {"padding": (1, 1), "stride": (1, 1), "dilation": (1, 1), "mode": "convolution"},
    *[
        {"padding": (1, 1), "stride": (1, 1), "dilation": (1, 1), "math_type": kind}
        for kind in MathType
    ],
    {"padding": (1, 1), "stride": (1, 1), "dilation": (1, 1), "reorder_type": "no"},
    *[
        {"padding": (1, 1), "stride": (2, 2), "dilation": (1, 1), "compute_type": kind}
        for kind in ("float64", "float16", "int32")
    ],
]


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
def test_a_convolution_reads_back_as_it_was_set(options):
    expected = ConvolutionSpec(**{"compute_type": "float32", **options})
    with ConvolutionDescriptor(**options) as descriptor:
        assert descriptor.spec == expected
        assert descriptor.read_back() == expected
    with ConvolutionDescriptor(ConvolutionSpec(**options)) as descriptor:
        assert descriptor.read_back() == expected


@pytest.mark.parametrize(
    ("rank", "padding"), [(None, (1, 1)), (2, (1, 1)), (3, (1, 1, 1)), (1, (0, 1))]
)
def test_plain_numbers_are_spread_over_the_spatial_axes(rank, padding):
    with ConvolutionDescriptor(padding=1, spatial_rank=rank) as descriptor:
        read = descriptor.read_back()
        assert (
            read.padding == padding
        )  # a 1-D image is one pixel high, and is not padded along that
        assert read.stride == read.dilation == (1,) * len(padding)


def test_a_spatial_rank_that_contradicts_the_tuples():
    with pytest.raises(ArgumentError, match=r"3 spatial axes.*2"):
        ConvolutionDescriptor(padding=(1, 1, 1), spatial_rank=2)


@pytest.mark.parametrize("argument", [MathType.FMA, "fma", "true_float32"], ids=repr)
def test_set_math_type_reaches_cudnn_and_the_spec(argument):
    with ConvolutionDescriptor(1) as descriptor:
        assert descriptor.read_back().math_type == MathType.DEFAULT
        descriptor.set_math_type(argument)
        assert descriptor.read_back().math_type == MathType.FMA
        assert descriptor.spec.math_type == MathType.FMA
        assert descriptor.spec == ConvolutionSpec(1, compute_type="float32", math_type="fma")


def test_a_refused_math_type_changes_nothing():
    with ConvolutionDescriptor(1) as descriptor:
        with pytest.raises(ValueError, match=r"math_type|BAD_PARAM"):
            descriptor.set_math_type(17)
        assert descriptor.spec.math_type == MathType.DEFAULT
        assert descriptor.read_back().math_type == MathType.DEFAULT


def test_output_shape_of_each_rank():
    for rank in (1, 2, 3):
        with (
            TensorDescriptor((2, 3, *(9,) * rank)) as x,
            FilterDescriptor((4, 3, *(3,) * rank)) as w,
            ConvolutionDescriptor(1, 2, spatial_rank=rank) as conv,
        ):
            assert conv.output_shape(x, w) == (2, 4, *(5,) * rank)


# ---------------------------------------------------------------- what cannot be described

HUGE = (2**16, 2**15)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: TensorDescriptor((0, 3, 4, 5)),
            r"TensorSpec\(\(0, 3, 4, 5\).*is empty; cuDNN has no descriptor",
        ),
        (
            lambda: TensorDescriptor((*HUGE, 1, 1)),
            r"TensorSpec.*2,147,483,648 values of float32.*2,147,483,647",
        ),
        (lambda: TensorDescriptor((2, 2), strides=(2**31 - 1, 1)), "spans 2,147,483,649 values"),
        (lambda: FilterDescriptor((*HUGE, 1, 1)), r"FilterSpec.*2,147,483,648 values of float32"),
    ],
    ids=["empty", "many values", "wide strides", "filter"],
)
def test_sizes_that_cudnn_cannot_express(world, make, message):
    with pytest.raises(ArgumentError, match=message):
        make()
    assert world.ledger.started == []  # refused before anything was made


def test_the_largest_tensor_is_taken():
    with TensorDescriptor((1, 1, 1, 2**31 - 1), "int8") as descriptor:
        assert descriptor.nbytes == 2**31 - 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TensorDescriptor((1, 2), "complex64"), "dtype='complex64'"),
        (lambda: TensorDescriptor((1, 2, 3, 4), "float32", "CHWN"), "layout='CHWN'"),
        (lambda: TensorDescriptor((1, 2, 3, 4), strides=(1,)), "strides="),
        (lambda: FilterDescriptor((1, 2)), "rank 2"),
        (lambda: ConvolutionDescriptor(-1), "padding=-1"),
        (lambda: ConvolutionDescriptor(math_type="fast"), "math_type='fast'"),
        (lambda: ConvolutionDescriptor(spatial_rank=0), "spatial"),
        (lambda: ConvolutionDescriptor(spatial_rank=-1), "spatial"),
    ],
)
def test_bad_arguments_make_no_native_object(world, make, message):
    with pytest.raises(ValueError, match=message):
        make()
    assert world.ledger.leaked() == {}


def test_an_unknown_option_is_a_type_error():
    with pytest.raises(TypeError, match="dilatation"):
        ConvolutionDescriptor(dilatation=2)


def test_what_cudnn_refuses_is_destroyed_again(world):
    with pytest.raises(dnn.CudnnError, match="cudnnSet"):
        FilterDescriptor((4, 3, 2, 5), "int32")  # not ours to refuse: cuDNN may come to take it
    assert world.ledger.started[-1].startswith("cudnnDestroy")
    assert world.ledger.leaked() == {}


def test_one_descriptor_does_not_pass_for_another():
    with (
        TensorDescriptor((1, 2, 3, 4)) as x,
        FilterDescriptor((1, 2, 3, 4)) as w,
        ConvolutionDescriptor() as conv,
    ):
        for wrong in (w.ptr, conv.ptr, w, 1.5, 5, x.ptr.value, "x", b"x", object()):
            with pytest.raises(ctypes.ArgumentError, match="cudnnTensorDescriptor_t is needed"):
                x.api.cudnnGetTensorSizeInBytes(wrong, ctypes.c_size_t())
        size = ctypes.c_size_t()
        x.api.cudnnGetTensorSizeInBytes(x, size)  # the object stands for its pointer
        assert size.value == 96
        with pytest.raises(ctypes.ArgumentError):
            x.api.cudnnSetFilterNdDescriptor(
                x.ptr, 0, TensorFormat.NCHW, 4, (ctypes.c_int * 4)(1, 1, 1, 1)
            )
        with pytest.raises(ctypes.ArgumentError):
            x.api.cudnnSetConvolutionGroupCount(w.ptr, 1)
        assert x.nbytes == 96  # all of it without harm


# ---------------------------------------------------------------- lifetime


@by_maker
def test_closing(world, kind):
    descriptor = MAKERS[kind]()
    assert world.ledger.leaked() == {kind: 1}
    assert not descriptor.closed
    descriptor.close()
    assert descriptor.closed
    assert world.ledger.leaked() == {}
    descriptor.close()
    assert world.ledger.leaked() == {}
    assert [name for name in world.ledger.finished if "Destroy" in name] == [f"cudnnDestroy{kind}"]


@by_maker
def test_with_closes_even_after_an_error(world, kind):
    with pytest.raises(KeyError), MAKERS[kind]() as descriptor:
        raise KeyError
    assert descriptor.closed
    assert world.ledger.leaked() == {}


@by_maker
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_with_gives_the_descriptor_itself(kind):
    descriptor = MAKERS[kind]()
    with descriptor as same:
        assert same is descriptor


@pytest.mark.parametrize(
    "use",
    [
        lambda t, f, c, live: t.ptr,
        lambda t, f, c, live: t.read_back(),
        lambda t, f, c, live: t.nbytes,
        lambda t, f, c, live: f.ptr,
        lambda t, f, c, live: f.read_back(),
        lambda t, f, c, live: f.nbytes,
        lambda t, f, c, live: c.ptr,
        lambda t, f, c, live: c.read_back(),
        lambda t, f, c, live: c.set_math_type(MathType.FMA),
        lambda t, f, c, live: c.output_shape(*live[:2]),
        lambda t, f, c, live: live[2].output_shape(t, live[1]),
        lambda t, f, c, live: live[2].output_shape(live[0], f),
    ],
)
def test_use_after_close(use):
    closed = [make() for make in MAKERS.values()]
    for descriptor in closed:
        descriptor.close()
    with (
        TensorDescriptor((1, 2, 9, 9)) as x,
        FilterDescriptor((1, 2, 3, 4)) as w,
        ConvolutionDescriptor() as conv,
    ):
        assert conv.output_shape(x, w) == (1, 1, 7, 6)
        with pytest.raises(
            ClosedError, match=r"^this (Tensor|Filter|Convolution)Descriptor was closed$"
        ):
            use(*closed, (x, w, conv))


@by_maker
def test_a_failed_set_math_type_on_a_closed_descriptor_leaves_its_spec(kind):
    if kind != "ConvolutionDescriptor":
        assert not hasattr(getattr(dnn, kind), "set_math_type")
        return
    descriptor = ConvolutionDescriptor(1)
    descriptor.close()
    with pytest.raises(ClosedError):
        descriptor.set_math_type(MathType.FMA)
    assert descriptor.spec.math_type == MathType.DEFAULT


@by_maker
def test_a_leak_warns_and_is_destroyed(world, kind):
    leaked = [MAKERS[kind]()]
    spec = str(leaked[0].spec)
    with pytest.warns(
        ResourceWarning, match="was never closed; use `with`, or call close"
    ) as caught:
        drop(leaked)
    assert str(caught[0].message).startswith(f"{kind} {spec}")
    assert len(caught) == 1
    assert world.ledger.leaked() == {}


@by_maker
def test_a_leak_is_destroyed_even_where_the_warning_is_an_error(world, monkeypatch, kind):
    """`python -W error` makes the warning an exception.

    The object is destroyed all the same.
    """
    errors = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: errors.append(args.exc_value))
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: errors.append(error))
    descriptor = MAKERS[kind]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del descriptor
        gc.collect()
    assert [type(error) for error in errors] == [ResourceWarning]
    errors.clear()
    assert world.ledger.leaked() == {}


def test_no_warning_once_closed():
    descriptor = TensorDescriptor((1, 2, 3, 4))
    descriptor.close()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del descriptor
        gc.collect()
    assert caught == []


@by_maker
@pytest.mark.parametrize(
    "duplicate",
    [
        copy.copy,
        copy.deepcopy,
        pickle.dumps,
        lambda d: pickle.dumps(d, 0),
        lambda d: pickle.dumps(d, 2),
    ],
)
def test_no_second_owner(world, kind, duplicate):
    with (
        MAKERS[kind]() as descriptor,
        pytest.raises(TypeError, match=f"{kind} cannot be copied or pickled"),
    ):
        duplicate(descriptor)
    assert [name for name in world.ledger.finished if "Destroy" in name] == [f"cudnnDestroy{kind}"]


@by_maker
def test_repr(kind):
    with MAKERS[kind]() as descriptor:
        address = descriptor.ptr.value
        assert address
        assert repr(descriptor) == f"<{kind} {descriptor.spec}, at {address:#x}>"
    assert repr(descriptor) == f"<{kind} {descriptor.spec}, closed>"


def test_two_descriptors_are_two_objects():
    with TensorDescriptor((1, 2, 3, 4)) as one, TensorDescriptor((1, 2, 3, 4)) as other:
        assert one.ptr.value != other.ptr.value
        assert one.spec == other.spec
