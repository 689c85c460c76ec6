"""TensorSpec, FilterSpec, ConvolutionSpec: what they hold and refuse; cuDNN agrees."""

import copy
import dataclasses
import inspect
import itertools
import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from in_one import in_one_test

import cudnnlite as dnn
from cudnnlite import ArgumentError, ConvolutionSpec, FilterSpec, PoolingSpec, TensorSpec
from cudnnlite.dtypes import itemsize
from cudnnlite.specs.frozen import SPECS, from_plain, to_plain

SETTINGS = settings(max_examples=120)
LAYOUTS = {3: ("NCW", "NWC"), 4: ("NCHW", "NHWC"), 5: ("NCDHW", "NDHWC")}
SHAPES = {3: (2, 5, 7), 4: (2, 3, 5, 4), 5: (3, 2, 4, 5, 6)}
ALL_LAYOUTS = [(rank, name) for rank, names in LAYOUTS.items() for name in names]

sizes = st.integers(1, 5)
shapes = st.lists(sizes, min_size=1, max_size=4).map(tuple)


def numpy_strides(shape, layout):
    """Strides, in elements, of a logical (N, C, *spatial) view on an array that NumPy laid out."""
    axes = "NC" + layout.replace("N", "").replace("C", "")
    memory = np.empty([shape[axes.index(letter)] for letter in layout], np.uint8)
    return memory.transpose([layout.index(letter) for letter in axes]).strides


@pytest.mark.parametrize(
    "make",
    [
        lambda value: dnn.ActivationSpec("elu", value),
        lambda value: dnn.RNNSpec("lstm", 2, 3, clip=(-1.0 if math.isnan(value) else value, 1.0)),
        lambda value: dnn.specs.RNNDataSpec((3, 2, 4), padding_fill=value),
        lambda value: dnn.convolution_forward.problem(
            TensorSpec((1, 1, 3, 3)), TensorSpec((1, 1, 1, 1)), alpha=value
        ),
        lambda value: _graph_of(value),
    ],
)
def test_zeros_differ_and_nan_equals_nan(make):
    """In every value that may be a part of a key."""
    positive, negative = make(0.0), make(-0.0)
    assert positive != negative
    assert len({positive, negative, make(0.0), make(-0.0)}) == 2
    assert make(float("nan")) == make(-float("nan"))
    assert hash(make(float("nan"))) == hash(make(float("nan")))
    assert pickle.loads(pickle.dumps(negative)) == negative
    assert repr(positive) != repr(negative) or isinstance(positive, dnn.Graph)


def _graph_of(value):
    graph = dnn.Graph()
    x = graph.input("x", (1, 2, 3))
    graph.output("y", x + graph.scalar("number", value))
    return graph


# ---------------------------------------------------------------- layouts and strides


@pytest.mark.parametrize(("rank", "layout"), ALL_LAYOUTS)
def test_strides_are_those_of_numpy(rank, layout):
    spec = TensorSpec(SHAPES[rank], "float32", layout)
    assert spec.strides == numpy_strides(SHAPES[rank], layout)
    assert spec.layout == layout
    assert spec.rank == rank
    assert spec.is_channels_last == layout.endswith("C")
    names = {layout, LAYOUTS[4][LAYOUTS[rank].index(layout)]}
    assert {other for _, other in ALL_LAYOUTS if spec.fits(other)} == names


@pytest.mark.parametrize("rank", LAYOUTS)
def test_channels_first_is_the_default(rank):
    assert TensorSpec(SHAPES[rank]).layout == LAYOUTS[rank][0]


@pytest.mark.parametrize("layout", ["nhwc", "Nhwc"])
def test_layout_is_taken_in_any_case(layout):
    assert TensorSpec(SHAPES[4], "float32", layout) == TensorSpec(SHAPES[4], "float32", "NHWC")


@pytest.mark.parametrize("shape", [(7,), (3, 4), (1, 2, 3, 2, 2, 2), (2,) * 7, (2,) * 8])
def test_ranks_without_a_named_layout_are_packed(shape):
    spec = TensorSpec(shape)
    assert spec.strides == np.empty(shape, np.uint8).strides
    assert spec.layout == "packed"


@pytest.mark.parametrize(("dtype", "vector"), [("int8x4", 4), ("uint8x4", 4), ("int8x32", 32)])
def test_vector_strides_count_vectors(dtype, vector):
    spec = TensorSpec((2, 64, 3, 5), dtype)
    assert spec.layout == "NCHW_VECT_C"
    assert spec.vector == vector
    assert spec.strides == np.empty((2, 64 // vector, 3, 5), np.uint8).strides
    assert spec.size == 2 * 64 * 3 * 5
    assert spec.nbytes == 2 * 64 * 3 * 5
    assert spec.fits("NCHW_VECT_C")
    assert not spec.fits("NCHW")
    assert spec == TensorSpec((2, 64, 3, 5), dtype, "NCHW_VECT_C")


def test_strides_that_are_a_layout_are_recognised():
    spec = TensorSpec(SHAPES[4], strides=numpy_strides(SHAPES[4], "NHWC"))
    assert spec.layout == "NHWC"
    assert spec == TensorSpec(SHAPES[4], layout="NHWC")


def test_gaps_are_strided():
    spec = TensorSpec((2, 3, 4, 5), strides=(200, 64, 8, 1))
    assert spec.layout == "strided"
    assert not spec.is_channels_last
    assert spec.strides == (200, 64, 8, 1)


def test_strides_of_single_axes_do_not_matter_to_fits():
    spec = TensorSpec((1, 4, 1, 3), strides=(999, 3, 777, 1))
    assert spec.layout == "strided"  # they are other numbers
    assert spec.fits("NCHW")  # but the same memory
    assert not spec.fits("NHWC")


@pytest.mark.parametrize("rank", [3, 4, 5])
@pytest.mark.parametrize("spec_class", [TensorSpec, FilterSpec])
def test_the_names_at_rank_4_go_with_every_rank(spec_class, rank):
    for name, at_rank in zip(LAYOUTS[4], LAYOUTS[rank], strict=True):
        spec = spec_class(SHAPES[rank], layout=at_rank)
        for layout in (name, name.lower(), f"CUDNN_TENSOR_{name}", dnn.enums.TensorFormat[name]):
            assert spec_class(SHAPES[rank], layout=layout) == spec
        if spec_class is TensorSpec:
            assert spec.fits(name)
    with pytest.raises(dnn.ArgumentError, match="layout='NHWC' is not a layout of rank 2"):
        TensorSpec((2, 3), layout="NHWC")


@pytest.mark.parametrize(("layout", "channels_last"), [("NCHW", False), ("NHWC", True)])
def test_one_channel_fits_both_layouts(layout, channels_last):
    spec = TensorSpec((2, 1, 3, 3), layout=layout)
    assert spec.fits("NCHW")
    assert spec.fits("NHWC")
    assert spec.is_channels_last == channels_last  # as it was written


def test_empty_batch():
    spec = TensorSpec((0, 3, 4, 5))
    assert (spec.size, spec.nbytes) == (0, 0)
    assert spec.strides == TensorSpec((1, 3, 4, 5)).strides
    assert not spec.overlaps_itself


@pytest.mark.parametrize(
    ("shape", "native"), [((2, 3, 7), (2, 3, 1, 7)), ((2, 3), (2, 3, 1, 1)), ((5,), (5, 1, 1, 1))]
)
def test_native_brings_low_ranks_to_four(shape, native):
    dims, strides = TensorSpec(shape).native()
    assert dims == native
    assert len(strides) == 4


@pytest.mark.parametrize("layout", ["NCW", "NWC"])
def test_a_native_one_dimensional_image_addresses_the_same_memory(layout):
    spec = TensorSpec((2, 3, 7), "float32", layout)
    dims, strides = spec.native()
    n, c, w = spec.strides
    assert dims == (2, 3, 1, 7)
    assert (strides[0], strides[1], strides[3]) == (n, c, w)
    assert TensorSpec(dims, strides=strides).fits({"NCW": "NCHW", "NWC": "NHWC"}[layout])


@pytest.mark.parametrize("rank", [4, 5])
def test_native_leaves_full_ranks_alone(rank):
    spec = TensorSpec(SHAPES[rank], layout=LAYOUTS[rank][1])
    assert spec.native() == (spec.shape, spec.strides)


def test_native_filter_is_one_tap_high():
    assert FilterSpec((6, 3, 5)).native() == (6, 3, 1, 5)
    assert FilterSpec((6, 3, 5, 2)).native() == (6, 3, 5, 2)


# --------------------------------------------------------------- bytes and overlaps, by enumeration


def addresses(shape, strides):
    """Every element's offset, one by one."""
    return [
        sum(i * s for i, s in zip(at, strides, strict=True))
        for at in itertools.product(*map(range, shape))
    ]


strided = shapes.flatmap(
    lambda shape: st.tuples(
        st.just(shape),
        st.lists(st.integers(1, 30), min_size=len(shape), max_size=len(shape)).map(tuple),
    )
)


@SETTINGS
@given(strided, st.sampled_from(["float32", "float64", "float16", "bfloat16", "int8"]))
def test_nbytes_reach_from_the_first_value_to_the_last(case, dtype):
    shape, strides = case
    width = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int8": 1}[dtype]
    spec = TensorSpec(shape, dtype, strides=strides)
    assert spec.nbytes == (max(addresses(shape, strides)) + 1) * width
    assert spec.size == len(addresses(shape, strides))


@SETTINGS
@given(strided)
def test_every_overlap_is_seen(case):
    shape, strides = case
    offsets = addresses(shape, strides)
    if len(set(offsets)) < len(offsets):
        assert TensorSpec(shape, strides=strides).overlaps_itself


@SETTINGS
@given(
    st.lists(st.tuples(sizes, st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=4),
    st.randoms(),
    st.data(),
)
def test_a_numpy_slice_is_never_taken_for_an_overlap(axes, random, data):
    """Axes in any order in memory, with steps and gaps, as slicing and transposing make them."""
    strides, step = [], 1
    for size, pitch, gap in axes:
        strides.append(step * pitch)
        step *= size * pitch + gap
    order = list(range(len(axes)))
    random.shuffle(order)
    shape = tuple(axes[axis][0] for axis in order)
    spec = TensorSpec(shape, strides=[strides[axis] for axis in order])
    offsets = addresses(shape, spec.strides)
    assert len(set(offsets)) == len(offsets)
    assert not spec.overlaps_itself


@pytest.mark.parametrize(("rank", "layout"), ALL_LAYOUTS)
def test_packed_layouts_do_not_overlap(rank, layout):
    assert not TensorSpec(SHAPES[rank], layout=layout).overlaps_itself


def test_vector_types_do_not_overlap():
    assert not TensorSpec((2, 64, 3, 5), "int8x32").overlaps_itself


@pytest.mark.parametrize("strides", [(12, 4, 1, 1), (1, 1, 1, 1), (2, 1, 1, 1)])
def test_windows_overlap(strides):
    assert TensorSpec((2, 2, 2, 2), strides=strides).overlaps_itself


# --------------------------------------------------- values: equality, hash, frozen, repr, pickling

EXAMPLES = [
    TensorSpec((2, 3, 4, 5)),
    TensorSpec((2, 3, 4, 5), "bfloat16", "NHWC"),
    TensorSpec((0, 3, 4, 5), "float16"),
    TensorSpec((2, 3, 4), "float64", "NWC"),
    TensorSpec((2, 3, 4, 5, 6), "int32", "NDHWC"),
    TensorSpec((2, 64, 4, 5), "int8x32"),
    TensorSpec((2, 8, 4, 5), "uint8x4", "NCHW_VECT_C"),
    TensorSpec((2, 3, 4, 5), strides=(200, 64, 8, 1)),
    TensorSpec((5,)),
    TensorSpec((2, 3)),
    TensorSpec((2,) * 6),
    FilterSpec((4, 3, 3, 3)),
    FilterSpec((4, 3, 3, 3), "float16", "NHWC"),
    FilterSpec((4, 3, 3), "float64", "NWC"),
    FilterSpec((4, 3, 3, 3, 3), "float32", "NDHWC"),
    FilterSpec((4, 64, 3, 3), "int8x32"),
    FilterSpec((2,) * 6),
    ConvolutionSpec(),
    ConvolutionSpec((1, 2), (3, 4), (5, 6), 7),
    ConvolutionSpec(1, stride=(2, 3, 4), mode="convolution", compute_type="float64"),
    ConvolutionSpec(math_type="true_float32", reorder_type="no", compute_type="float16"),
    ConvolutionSpec(math_type="tensor_op_allow_conversion"),
]
each_example = in_one_test(EXAMPLES)


@each_example
def test_repr_evaluates_to_an_equal_value(spec):
    names = {"TensorSpec": TensorSpec, "FilterSpec": FilterSpec, "ConvolutionSpec": ConvolutionSpec}
    again = eval(repr(spec), names)
    assert again == spec
    assert hash(again) == hash(spec)


@in_one_test(itertools.product(EXAMPLES, range(pickle.HIGHEST_PROTOCOL + 1)))
def test_pickling_keeps_the_value(spec, protocol):
    again = pickle.loads(pickle.dumps(spec, protocol))
    assert again == spec
    assert hash(again) == hash(spec)
    assert repr(again) == repr(spec)


@in_one_test(itertools.product(EXAMPLES, [copy.copy, copy.deepcopy]))
def test_copies_are_equal(spec, duplicate):
    assert duplicate(spec) == spec
    assert {spec: 1}[duplicate(spec)] == 1


@each_example
def test_a_pickled_spec_is_found_in_a_dictionary_of_another_process(spec):
    """hash(None) is an address before Python 3.12, so a pickled hash would be another process's."""
    other_process = copy.copy(spec)
    object.__setattr__(other_process, "_hash", 12345)
    again = pickle.loads(pickle.dumps(other_process))
    assert again == spec
    assert hash(again) == hash(spec)


def test_examples_differ_from_each_other():
    assert len(set(EXAMPLES)) == len(EXAMPLES)
    for one, other in itertools.combinations(EXAMPLES, 2):
        assert one != other


@each_example
def test_frozen(spec):
    for item in dataclasses.fields(spec):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(spec, item.name, getattr(spec, item.name))
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(spec, item.name)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.something_else = 1


# For each field, a variant that differs in it; a field without an entry fails the test.
VARIANTS = {
    TensorSpec: (
        TensorSpec((2, 64, 4, 4), "int8"),
        {
            "shape": TensorSpec((2, 64, 4, 5), "int8", strides=(1024, 16, 4, 1)),
            "dtype": TensorSpec((2, 64, 4, 4), "uint8"),
            "strides": TensorSpec((2, 64, 4, 4), "int8", "NHWC"),
            "vector": TensorSpec((2, 64, 4, 4), "int8x4"),
        },
    ),
    FilterSpec: (
        FilterSpec((4, 3, 3, 3)),
        {
            "shape": FilterSpec((4, 3, 3, 2)),
            "dtype": FilterSpec((4, 3, 3, 3), "float16"),
            "format": FilterSpec((4, 3, 3, 3), "float32", "NHWC"),
        },
    ),
    ConvolutionSpec: (
        ConvolutionSpec(),
        {
            "padding": ConvolutionSpec(1),
            "stride": ConvolutionSpec(stride=2),
            "dilation": ConvolutionSpec(dilation=2),
            "groups": ConvolutionSpec(groups=2),
            "mode": ConvolutionSpec(mode="convolution"),
            "compute_type": ConvolutionSpec(compute_type="float32"),
            "math_type": ConvolutionSpec(math_type="fma"),
            "reorder_type": ConvolutionSpec(reorder_type="no"),
        },
    ),
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, item.name)
        for kind in VARIANTS
        for item in dataclasses.fields(kind)
        if item.name != "_hash"
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_every_field_changes_equality_and_hash(kind, name):
    base, variants = VARIANTS[kind]
    other = variants[name]
    assert getattr(base, name) != getattr(other, name)
    assert base != other
    assert hash(base) != hash(other)


def test_kinds_of_spec_are_not_equal_to_each_other():
    assert TensorSpec((4, 3, 3, 3)) != FilterSpec((4, 3, 3, 3))
    assert TensorSpec((4, 3, 3, 3)) != (4, 3, 3, 3)


@pytest.mark.parametrize(
    "shape", [[2, 3, 4, 5], np.array([2, 3, 4, 5]), (np.int64(2), 3, np.uint8(4), 5), range(2, 6)]
)
def test_shapes_from_anything_that_iterates_integers(shape):
    spec = TensorSpec(shape)
    assert spec == TensorSpec((2, 3, 4, 5))
    assert hash(spec) == hash(TensorSpec((2, 3, 4, 5)))
    assert all(type(size) is int for size in spec.shape)


def test_numbers_from_numpy_become_plain():
    conv = ConvolutionSpec(np.int64(1), np.array([2, 2]), groups=np.int32(3))
    assert conv == ConvolutionSpec(1, (2, 2), groups=3)
    assert type(conv.padding) is int
    assert [type(step) for step in conv.stride] == [int, int]


def test_a_number_and_a_tuple_are_different_values():
    assert ConvolutionSpec(1) != ConvolutionSpec((1, 1))
    assert ConvolutionSpec(1).spatial_rank is None
    assert ConvolutionSpec((1, 1)).spatial_rank == 2


def test_replace_changes_what_is_named_and_nothing_else():
    conv = ConvolutionSpec(
        (1, 2), (3, 4), (5, 6), 7, mode="convolution", math_type="fma", reorder_type="no"
    )
    assert conv.replace() == conv
    changed = conv.replace(groups=8)
    assert changed.groups == 8
    assert changed != conv
    assert changed.replace(groups=7) == conv
    with pytest.raises(ArgumentError, match="groups=0"):
        conv.replace(groups=0)


@pytest.mark.parametrize("kind", SPECS.values(), ids=SPECS)
def test_a_misspelt_field_is_hinted_at(kind):
    for name in inspect.signature(kind).parameters:
        with pytest.raises(
            TypeError,
            match=rf"{kind.__name__}.__init__\(\) got .*'{name}_'; did you mean {name}\?$",
        ):
            kind(**{f"{name}_": 1})


@pytest.mark.parametrize(
    ("spec", "shape", "expected"),
    [
        (TensorSpec((2, 3, 4, 5)), (3, 8, 7, 9), TensorSpec((3, 8, 7, 9))),
        (
            TensorSpec((2, 3, 4, 5), "float16", "NHWC"),
            (3, 8, 7, 9),
            TensorSpec((3, 8, 7, 9), "float16", "NHWC"),
        ),
        (TensorSpec((2, 3, 4, 5), layout="NHWC"), (3, 8, 7), TensorSpec((3, 8, 7), layout="NWC")),
        (TensorSpec((2, 8, 4, 5), "int8x4"), (3, 4, 7, 9), TensorSpec((3, 4, 7, 9), "int8x4")),
        (TensorSpec((3, 4)), (5, 6, 7), TensorSpec((5, 6, 7))),
        (TensorSpec((3, 4, 5, 6)), (7, 8), TensorSpec((7, 8))),
        (
            TensorSpec((2, 3), strides=(9, 2)),
            (4, 3),
            TensorSpec((4, 3), strides=(9, 2)),
        ),  # a part of something
    ],
)
def test_another_shape_lies_in_the_same_layout(spec, shape, expected):
    assert spec.replace(shape=shape) == expected
    assert spec.replace(shape=shape, strides=expected.strides) == expected


def test_derived_classes_take_what_they_take():
    class Handing(ConvolutionSpec):
        """Of a user: hands its keywords on."""

        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)

    class Taking(ConvolutionSpec):
        """Of a user in whose module a spec of ours has no name of its own."""

        def __init__(self, like: "dnn.RNNSpec | None" = None, pad: int = 1):
            super().__init__(padding=pad)

    assert Handing(2, stride=3).stride == 3
    with pytest.raises(TypeError, match=r"'paddin'; did you mean padding\?$"):
        Handing(paddin=2)
    assert Taking(pad=2).padding == 2
    with pytest.raises(TypeError, match=r"'pads'; did you mean pad\?$"):
        Taking(pads=2)


def test_replace_hints_at_the_field_that_is_meant():
    with pytest.raises(
        TypeError, match=r"^PoolingSpec has no field 'strid'; did you mean stride\?$"
    ):
        PoolingSpec(2).replace(strid=1)
    spec, filters = TensorSpec((1, 2, 3, 4)), FilterSpec((1, 2, 3, 4))
    for own_spec, fields in (
        (spec, "shape, dtype, strides, vector"),
        (filters, "shape, dtype, format"),
    ):
        with pytest.raises(TypeError, match=f"has no field 'layout'; its fields: {fields}$"):
            own_spec.replace(layout="NHWC")  # not left as it was without a word
    with pytest.raises(ArgumentError, match=r"not a TensorSpec's: .* no field 'typ'"):
        TensorSpec.from_values(spec.values() | {"typ": 1})


def test_steps_spread_plain_numbers():
    assert ConvolutionSpec(1, 2, 3).steps(3) == ((1, 1, 1), (2, 2, 2), (3, 3, 3))
    assert ConvolutionSpec((1, 2), 2).steps(2) == ((1, 2), (2, 2), (1, 1))


def test_padding_of_the_two_ends_of_an_axis():
    conv = ConvolutionSpec(((0, 1), 2, [3, 3]))
    assert conv.padding == ((0, 1), 2, 3), "one number where both are the same"
    assert not conv.is_symmetric
    assert conv.pads(3) == ((0, 1), (2, 2), (3, 3))
    assert conv.steps(3) == ((0, 2, 3), (1, 1, 1), (1, 1, 1))
    assert conv.output_shape((2, 4, 9, 8, 7), (6, 4, 3, 2, 1)) == (2, 6, 8, 11, 13)
    assert eval(repr(conv)) == conv
    assert from_plain(json.loads(json.dumps(to_plain(conv)))) == conv
    assert pickle.loads(pickle.dumps(conv)) == conv
    alike = ConvolutionSpec([(1, 1), (2, 2)])
    assert alike == ConvolutionSpec((1, 2))
    assert alike.is_symmetric
    assert ConvolutionSpec(((1, 2),)).output_shape((1, 1, 5), (1, 1, 2)) == (1, 1, 7)
    with pytest.raises(ArgumentError, match="speak of different numbers"):
        ConvolutionSpec(((1, 2),), stride=(1, 1))


# ---------------------------------------------------------------- what is refused


def test_the_largest_sizes_are_taken():
    assert TensorSpec((1, 2**31 - 1)).shape == (1, 2**31 - 1)
    assert TensorSpec((2, 2), strides=(2**63 - 1, 1)).strides == (2**63 - 1, 1)
    assert ConvolutionSpec(2**31 - 1).padding == 2**31 - 1


# ---------------------------------------------------------------- shape inference


@st.composite
def problems(draw):
    rank = draw(st.integers(1, 3))

    def axis(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    groups = draw(st.integers(1, 3))
    c_group, k_group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    image, taps = axis(1, 12), axis(1, 5)
    conv = ConvolutionSpec(axis(0, 4), axis(1, 4), axis(1, 3), groups)
    return (
        conv,
        (draw(st.integers(1, 3)), c_group * groups, *image),
        (k_group * groups, c_group, *taps),
    )


def ask_cudnn(conv, x_shape, w_shape):
    """cuDNN's own answer, through real descriptors; None where it refuses."""
    with (
        dnn.TensorDescriptor(x_shape) as x,
        dnn.FilterDescriptor(w_shape) as w,
        dnn.ConvolutionDescriptor(conv, spatial_rank=len(x_shape) - 2) as descriptor,
    ):
        try:
            return descriptor.output_shape(x, w)
        except dnn.errors.BadParamError:
            return None


@SETTINGS
@given(problems())
def test_output_shape_agrees_with_cudnn(problem):
    conv, x, w = problem
    try:
        expected = conv.output_shape(x, w)
    except ArgumentError:
        expected = None
    assert ask_cudnn(conv, x, w) == expected


@SETTINGS
@given(problems(), st.integers(1, 6))
def test_channels_that_do_not_fit_are_refused_by_both(problem, other):
    conv, x, w = problem
    assume(other * conv.groups != x[1])
    wrong = (w[0], other, *w[2:])
    with pytest.raises(ArgumentError):
        conv.output_shape(x, wrong)
    assert ask_cudnn(conv, x, wrong) is None


def test_output_shape_of_a_well_known_layer():
    assert ConvolutionSpec(3, 2).output_shape((1, 3, 224, 224), (64, 3, 7, 7)) == (1, 64, 112, 112)


@pytest.mark.parametrize(
    ("conv", "x_shape", "w_shape", "output_padding"),
    [
        (ConvolutionSpec(padding=1, stride=2), (2, 6, 7, 5), (6, 4, 3, 3), 0),
        (ConvolutionSpec(padding=1, stride=2), (2, 6, 7, 5), (6, 4, 3, 3), (1, 0)),
        (ConvolutionSpec((0, 2), (3, 2), (1, 2)), (1, 4, 6, 8), (4, 5, 2, 3), (2, 1)),
        (ConvolutionSpec(((0, 1), 1), groups=2), (3, 4, 5, 6), (4, 3, 2, 4), 0),
        (ConvolutionSpec(stride=4), (1, 2, 9), (2, 3, 5), 3),
        (ConvolutionSpec(1, (1, 2, 2)), (1, 2, 3, 4, 5), (2, 1, 3, 2, 3), (0, 1, 1)),
        (ConvolutionSpec("same", stride=2), (1, 2, 4, 5), (2, 3, 3, 2), 0),
    ],
)
def test_a_convolution_leads_back_from_the_transposed_shape(conv, x_shape, w_shape, output_padding):
    shape = conv.transposed_output_shape(x_shape, w_shape, output_padding)
    assert shape[:2] == (x_shape[0], w_shape[1] * conv.groups)
    assert conv.output_shape(shape, w_shape) == x_shape


@pytest.mark.parametrize(
    ("conv", "w_shape", "output_padding", "padding"),
    [
        (ConvolutionSpec(2, 1, 2), (6, 4, 3, 3), 1, ((2, 1), (2, 1))),
        (ConvolutionSpec(((0, 4), 1), 2, (5, 1)), (6, 4, 2, 3), (4, 0), ((0, 1), (1, 1))),
    ],
)
def test_an_output_padding_of_the_stride_keeps_padding(conv, w_shape, output_padding, padding):
    shape = conv.transposed_output_shape((2, 6, 7, 5), w_shape, output_padding)
    found = conv.with_output_padding(output_padding, 2)
    assert found.pads(2) == padding
    assert found.output_shape(shape, w_shape) == (2, 6, 7, 5)


def test_a_transposed_shape_as_pytorch_documents_it():
    conv = ConvolutionSpec(padding=1, stride=2)
    assert conv.transposed_output_shape((1, 16, 6, 6), (16, 16, 3, 3), 1) == (1, 16, 12, 12)


def test_output_shape_of_an_empty_batch():
    assert ConvolutionSpec(1).output_shape((0, 3, 8, 8), (4, 3, 3, 3)) == (0, 4, 8, 8)


@pytest.mark.parametrize(("rank", "layout"), ALL_LAYOUTS)
def test_output_has_the_layout_and_dtype_of_the_input(rank, layout):
    x = TensorSpec((2, 3, *(8,) * (rank - 2)), "float16", layout)
    w = FilterSpec((4, 3, *(3,) * (rank - 2)), "float16", layout)
    y = ConvolutionSpec().output_spec(x, w)
    assert y == TensorSpec((2, 4, *(6,) * (rank - 2)), "float16", layout)


def test_output_of_a_strided_input_is_packed():
    x = TensorSpec((2, 3, 8, 8), strides=(1000, 100, 10, 1))
    assert ConvolutionSpec().output_spec(x, FilterSpec((4, 3, 3, 3))) == TensorSpec((2, 4, 6, 6))


def test_output_of_a_vector_type():
    x, w = TensorSpec((2, 32, 8, 8), "int8x32"), FilterSpec((64, 32, 3, 3), "int8x32")
    assert ConvolutionSpec(1).output_spec(x, w) == TensorSpec((2, 64, 8, 8), "int8x32")
    assert ConvolutionSpec(1).output_spec(x, w, dtype="float32") == TensorSpec(
        (2, 64, 8, 8), "float32"
    )


@pytest.mark.parametrize(
    ("dtype", "compute"),
    [
        ("float32", "FLOAT"),
        ("float16", "FLOAT"),
        ("bfloat16", "FLOAT"),
        ("float64", "DOUBLE"),
        ("int8", "INT32"),
        ("int8x4", "INT32"),
        ("int8x32", "INT32"),
    ],
)
def test_compute_type(dtype, compute):
    x = TensorSpec((1, 32, 8, 8), dtype)
    assert ConvolutionSpec().compute_type_for(x).name == compute
    assert ConvolutionSpec(compute_type="float16").compute_type_for(x) == dnn.DataType.HALF


# ---------------------------------------------------------------- filters


@pytest.mark.parametrize(("rank", "layout"), ALL_LAYOUTS)
def test_filter_from_tensor(rank, layout):
    spec = FilterSpec.from_tensor(TensorSpec(SHAPES[rank], "float16", layout))
    assert spec == FilterSpec(SHAPES[rank], "float16", layout)
    assert spec.layout == layout
    assert spec.nbytes == math.prod(SHAPES[rank]) * itemsize(spec.dtype)
    assert spec.format == (
        dnn.enums.TensorFormat.NHWC if layout.endswith("C") else dnn.enums.TensorFormat.NCHW
    )


@pytest.mark.parametrize("channels_last", [False, True])
def test_an_ambiguous_filter_is_read_as_asked(channels_last):
    one_tap = TensorSpec((4, 3, 1, 1))
    assert FilterSpec.from_tensor(one_tap, channels_last=channels_last).layout == (
        "NHWC" if channels_last else "NCHW"
    )


def test_an_unambiguous_filter_keeps_its_layout():
    assert FilterSpec.from_tensor(TensorSpec((4, 3, 2, 2)), channels_last=True).layout == "NCHW"
    assert (
        FilterSpec.from_tensor(TensorSpec((4, 3, 2, 2), layout="NHWC"), channels_last=False).layout
        == "NHWC"
    )


def test_vector_filter():
    spec = FilterSpec((8, 64, 3, 3), "int8x32")
    assert (spec.layout, spec.vector, spec.format) == (
        "NCHW_VECT_C",
        32,
        dnn.enums.TensorFormat.NCHW_VECT_C,
    )
    assert spec.nbytes == 8 * 64 * 3 * 3
    assert FilterSpec.from_tensor(TensorSpec((8, 64, 3, 3), "int8x32")) == spec
