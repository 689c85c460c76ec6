"""Enums, data types and sizes: what users may write for them, and what is refused."""

import copy
import functools
import pickle

import ml_dtypes
import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite import ArgumentError, DataType, MathType
from cudnnlite._raw.cenum import CEnum
from cudnnlite.arguments import shown
from cudnnlite.dtypes import (
    compute_type_for,
    dtype_name,
    itemsize,
    numpy_dtype,
    parse_dtype,
    vector_length,
)
from cudnnlite.enums import parse_enum, parse_math_type
from cudnnlite.raw import enums as raw_enums
from cudnnlite.sizes import format_size, parse_size

PUBLIC_ENUMS = [
    dnn.enums.ConvolutionFwdAlgo,
    dnn.enums.ConvolutionMode,
    dnn.DataType,
    dnn.enums.Determinism,
    dnn.MathType,
    dnn.enums.ReorderType,
    dnn.enums.Status,
    dnn.enums.TensorFormat,
]

# ---------------------------------------------------------------- enums


@pytest.mark.parametrize("kind", PUBLIC_ENUMS, ids=lambda kind: kind.__name__)
def test_parse_enum_takes_members_names_and_values(kind):
    assert len(kind.__members__) > 1
    for name, member in kind.__members__.items():
        if name == "COUNT":  # the end of a C enumeration, which nobody can mean
            with pytest.raises(ArgumentError):
                parse_enum(kind, name, "it")
            continue
        assert parse_enum(kind, member, "it") is member
        assert parse_enum(kind, name, "it") is member
        assert parse_enum(kind, name.lower(), "it") is member
        assert parse_enum(kind, int(member), "it") is member


@pytest.mark.parametrize(
    "value",
    [
        "",
        "diagonal",
        " CONVOLUTION",
        "UNKNOWN_17",
        17,
        -1,
        1.0,
        None,
        True,
        b"CONVOLUTION",
        ["CONVOLUTION"],
        MathType.DEFAULT,
    ],
    ids=repr,
)
def test_parse_enum_refuses(value):
    with pytest.raises(ArgumentError) as caught:
        parse_enum(dnn.enums.ConvolutionMode, value, "mode")
    assert str(caught.value) == (
        f"mode={value!r} is not a ConvolutionMode; allowed: CONVOLUTION, CROSS_CORRELATION, in "
        "any case"
    )


def test_a_name_that_is_nearly_one_is_led_to_it_and_not_to_what_it_begins_with():
    with pytest.raises(ArgumentError, match=r"did you mean WINOGRAD_NONFUSED\?$"):
        parse_enum(dnn.enums.ConvolutionFwdAlgo, "winograd_non_fused", "algorithm")


def test_an_enum_whose_name_begins_with_a_vowel_has_its_article():
    with pytest.raises(
        ArgumentError,
        match=r"^cell='LSTM ' is not an RNNMode; allowed: RELU, TANH, LSTM, GRU, in any case$",
    ):
        parse_enum(dnn.enums.RNNMode, "LSTM ", "cell")
    with pytest.raises(ArgumentError, match="is not an ActivationMode"):
        parse_enum(dnn.enums.ActivationMode, "gelu", "mode")


AVERAGES = ["AVERAGE_COUNT_INCLUDE_PADDING", "AVERAGE_COUNT_EXCLUDE_PADDING"]


@pytest.mark.parametrize(
    ("spelling", "members"),
    [
        ("avg", AVERAGES),
        ("Average", AVERAGES),
        ("average-exclude-padding", AVERAGES[1:]),
        ("maximum", ["MAX"]),
        ("maxpool", ["MAX"]),
        ("max_determinstic", ["MAX_DETERMINISTIC"]),
        ("m", []),
        ("least", []),
    ],
)
def test_a_short_name_of_an_enums_member_is_led_to_it(spelling, members):
    with pytest.raises(ArgumentError) as caught:
        dnn.PoolingSpec(2, mode=spelling)
    assert str(caught.value).endswith(
        f"; did you mean {' or '.join(members)}?" if members else ", in any case"
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("tf32", MathType.DEFAULT),
        ("TF32", MathType.DEFAULT),
        ("default", MathType.DEFAULT),
        ("true_float32", MathType.FMA),
        ("float32", MathType.FMA),
        ("Float32", MathType.FMA),
        ("fma", MathType.FMA),
        ("tensor_op", MathType.TENSOR_OP),
        ("tensor_op_allow_conversion", MathType.TENSOR_OP_ALLOW_CONVERSION),
        (MathType.TENSOR_OP, MathType.TENSOR_OP),
        (0, MathType.DEFAULT),
        (3, MathType.FMA),
    ],
)
def test_math_types(value, expected):
    assert parse_math_type(value) is expected


def test_the_plain_names_of_math_types_are_what_cudnn_means():
    assert (int(dnn.TF32), int(dnn.TRUE_FLOAT32)) == (0, 3)  # CUDNN_DEFAULT_MATH, CUDNN_FMA_MATH


@pytest.mark.parametrize(
    "value", ["tf-32", "float16", "", 17, None, DataType.FLOAT, True], ids=repr
)
def test_math_type_refuses(value):
    with pytest.raises(
        ArgumentError,
        match=(
            r"how=.*is not a MathType; allowed: tf32, true_float32, float32, DEFAULT, TENSOR_OP, "
            r".*, FMA, in"
        ),
    ):
        parse_math_type(value, "how")


ALL_ENUMS = sorted(raw_enums.C_NAMES, key=lambda kind: kind.__name__)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_enum_members_stay_single_objects(duplicate):
    members = [member for kind in ALL_ENUMS for member in kind]
    assert len(members) > 300
    assert all(duplicate(member) is member for member in members)


def test_a_value_from_a_newer_cudnn_is_named_and_single():
    unknown = DataType(987)
    assert unknown.name == "UNKNOWN_987"
    assert unknown == 987
    assert str(unknown) == "UNKNOWN_987"
    assert DataType(987) is unknown
    assert pickle.loads(pickle.dumps(unknown)) is unknown
    assert unknown not in list(DataType)
    with pytest.raises(ArgumentError, match="dtype=UNKNOWN_987"):
        parse_dtype(unknown)


@pytest.mark.parametrize("value", ["FLOAT", None, 1.5], ids=repr)
def test_enum_classes_take_integers_only(value):
    with pytest.raises(ValueError, match="is not a valid DataType"):
        DataType(value)


def test_every_enum_is_open():
    assert all(issubclass(kind, CEnum) for kind in ALL_ENUMS)


# ---------------------------------------------------------------- data types

# Name, cuDNN's value for it (cudnn_graph.h), bytes of an element, NumPy type of one value, channels
# an element.
TYPES = [
    ("float32", 0, 4, np.float32, 1),
    ("float64", 1, 8, np.float64, 1),
    ("float16", 2, 2, np.float16, 1),
    ("int8", 3, 1, np.int8, 1),
    ("int32", 4, 4, np.int32, 1),
    ("int8x4", 5, 4, np.int8, 4),
    ("uint8", 6, 1, np.uint8, 1),
    ("uint8x4", 7, 4, np.uint8, 4),
    ("int8x32", 8, 32, np.int8, 32),
    ("bfloat16", 9, 2, ml_dtypes.bfloat16, 1),
    ("int64", 10, 8, np.int64, 1),
    ("float8_e4m3fn", 12, 1, ml_dtypes.float8_e4m3fn, 1),
    ("float8_e5m2", 13, 1, ml_dtypes.float8_e5m2, 1),
]
by_type = pytest.mark.parametrize(
    ("name", "value", "size", "kind", "channels"), TYPES, ids=[row[0] for row in TYPES]
)


@by_type
def test_data_types(name, value, size, kind, channels):
    dtype = parse_dtype(name)
    assert int(dtype) == value
    assert dtype_name(dtype) == name
    assert itemsize(dtype) == size
    assert numpy_dtype(dtype) == np.dtype(kind)
    assert vector_length(dtype) == channels


@by_type
def test_data_types_are_taken_however_they_are_written(name, value, size, kind, channels):
    expected = DataType(value)
    ways = [name.upper(), expected]
    if name != "float32":  # FLOAT: see below
        ways += [expected.name, expected.name.lower()]
    if channels == 1:
        ways += [kind, np.dtype(kind), np.zeros(1, kind).dtype]
    assert [parse_dtype(way) for way in ways] == [expected] * len(ways)


@pytest.mark.parametrize("name", [kind.name for kind in map(DataType, (row[1] for row in TYPES))])
def test_case_does_not_decide_which_type_a_name_means(name):
    """NumPy's 'float' is float64, and cuDNN's FLOAT is float32.

    A spelling may mean one of them or neither, but not both.
    """
    types = set()
    for spelling in (name, name.lower(), name.capitalize()):
        try:
            types.add(parse_dtype(spelling))
        except ArgumentError:
            types.add("refused")
    assert len(types) == 1


def test_strings_of_numpy():
    assert parse_dtype("f4") == parse_dtype("<f4") == parse_dtype("single") == DataType.FLOAT
    assert parse_dtype("e") == DataType.HALF


@pytest.mark.parametrize(
    "value",
    [
        "complex64",
        "bool",
        "int16",
        "",
        "O",
        np.complex128,
        np.bool_,
        object,
        Ellipsis,
        [],
        {},
        ["float32"],
        1.0,
        True,
        None,
        MathType.DEFAULT,
        DataType.BOOLEAN,
        DataType.INT4,
        999,
        np.timedelta64(3, "s"),
        np.timedelta64("NaT", "s"),
        np.datetime64(3, "s"),
    ],
    ids=repr,
)
def test_data_types_refused(value):
    with pytest.raises(
        ArgumentError, match=r"^kind=.*allowed: float32, float64, float16, bfloat16, int8"
    ):
        parse_dtype(value, "kind")


@pytest.mark.parametrize(
    ("good", "bad"), [(1, True), (1, 1.0), (0, False), (0, MathType.DEFAULT), (2, 2.0)], ids=repr
)
def test_what_was_parsed_before_does_not_decide(good, bad):
    """1 and True are equal and hash alike, so a cache must tell them apart."""
    parse_dtype(good)
    with pytest.raises(ArgumentError):
        parse_dtype(bad)


@pytest.mark.parametrize(
    ("name", "compute"),
    [
        ("float64", "float64"),
        ("float32", "float32"),
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("int8", "int32"),
        ("uint8", "int32"),
        ("int8x4", "int32"),
        ("int8x32", "int32"),
        ("uint8x4", "int32"),
    ],
)
def test_compute_types(name, compute):
    assert dtype_name(compute_type_for(parse_dtype(name))) == compute


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (0, 0),
        (123, 123),
        ("123", 123),
        ("0", 0),
        ("123 B", 123),
        ("123b", 123),
        ("2 KiB", 2048),
        ("64 MiB", 64 * 2**20),
        ("64mib", 64 * 2**20),
        ("  64  MiB ", 64 * 2**20),
        ("1.5 GiB", 3 * 2**29),
        ("1 kB", 1000),
        ("3 MB", 3_000_000),
        ("1.5GB", 1_500_000_000),
        (2**40, 2**40),
        ("0.5 KiB", 512),
        ("0%", 0),
        ("100%", 8000),
        ("10%", 800),
        ("12.5 %", 1000),
    ],
    ids=repr,
)
def test_sizes(text, expected):
    assert parse_size(text, "limit", total=8000) == expected
    assert type(parse_size(text, "limit", total=8000)) is int


@pytest.mark.parametrize(
    "value",
    [
        -1,
        1.5,
        True,
        None,
        "",
        " ",
        "MiB",
        "-5 MiB",
        "1e3",
        "5 XB",
        "64 megabytes",
        "64 MiB!",
        "1,5 GiB",
        "0x10",
        "101%",
        "-1%",
        "%",
        "nan",
        "inf",
        b"64",
        [64],
    ],
    ids=repr,
)
def test_sizes_refused(value):
    with pytest.raises(ArgumentError, match=r"^limit="):
        parse_size(value, "limit", total=8000)


def test_a_percentage_needs_something_to_be_a_part_of():
    with pytest.raises(ArgumentError, match=r"limit='10%'.*allowed"):
        parse_size("10%", "limit")


def test_bytes_are_exact_however_many():
    assert parse_size(str(2**53 + 1), "limit") == 2**53 + 1


def test_integers_of_numpy_are_sizes():
    assert parse_size(np.int64(4096), "limit") == 4096


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (2**20, "1 MiB"),
        (2**30, "1 GiB"),
        (80 * 2**30, "80 GiB"),
        (64 * 2**20, "64 MiB"),
        (1234567, "1.177 MiB"),
    ],
)
def test_sizes_are_written_in_the_largest_unit_that_fits(nbytes, text):
    assert format_size(nbytes) == text


@pytest.mark.parametrize("nbytes", [0, 1, 1023, 1024, 3 * 2**18, 2**20, 7 * 2**29])
def test_what_is_written_can_be_read(nbytes):
    assert parse_size(format_size(nbytes), "it") == nbytes


class WithoutRepr(type):
    """A class whose name and whose objects cannot be shown by Python's means."""

    @property
    def __name__(cls):
        raise RuntimeError("no name")


class Hidden(metaclass=WithoutRepr):
    def __repr__(self):
        raise OSError("no repr")


def test_every_value_is_shown():
    nested = functools.reduce(lambda value, _: [value], range(3000), [])
    assert shown(10**5000) == shown(-(10**5000)) == "<int that cannot be shown>"
    assert shown(nested) == shown([nested, 1]) == "<list that cannot be shown>"
    assert shown({"x": 10**5000}) == "<dict that cannot be shown>"
    assert shown(Hidden()) == "<Hidden that cannot be shown>"
    assert shown([1, "x"]) == "[1, 'x']"
    for value in ("x" * 10**6, b"x" * 10**6, ["x" * 10**6]):
        assert len(shown(value)) == 403
        assert shown(value).endswith("x...")
