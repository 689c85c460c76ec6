"""Values that are invalid for almost every argument, and values of other kinds."""

from __future__ import annotations

import decimal
import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import cudnnlite as dnn

DIGITS = 10**4000  # nearly as many digits as Python writes out
MORE_DIGITS = 10**5000  # more than that

NUMBERS = (
    0,
    1,
    2,
    -1,
    2**31 - 1,
    2**31,
    2**32,
    2**32 + 1,
    2**63,
    2**64,
    10**400,
    DIGITS,
    -DIGITS,
    MORE_DIGITS,
    -MORE_DIGITS,
    0.0,
    0.5,
    -1.5,
    1e308,
    1e-320,
    float("nan"),
    float("inf"),
    float("-inf"),
    1j,
    True,
    False,
    np.int8(-3),
    np.int64(3),
    np.uint64(2**64 - 1),
    np.float16(0.5),
    np.float64("nan"),
    np.bool_(True),
    np.complex64(1j),
    Fraction(1, 3),
    decimal.Decimal("sNaN"),
)
TEXTS = (
    "",
    " ",
    "x",
    "\0",
    "\ud800",
    "f4,,,",
    "float",
    "i4, (2,2)f8",
    "float33",
    "O",
    "V3",
    "M8[ns]",
    "9" * 5000,
    "9" * 5000 + " MiB",
    "-1",
    "%",
    "101%",
    "64 MiB",
    "1e400",
    "~nouser/x",
    "~",
    "/",
    "/dev/full",
    "/dev/null/x",
    "/proc/self/mem",
    "x" * 5000,
    "cuda:²",
    "emulated:" + "9" * 5000,
    "cuda:99999999999999999999",
    "nhwc",
    "NCHW_VECT_C",
    "int8x32",
    "fma",
    "UNKNOWN_17",
    "COUNT",
    "\x1b[31m",
    b"",
    b"x",
    b"\x80",
    b"\x08\x01",
    bytearray(3),
    memoryview(b"ab"),
)


class Liar:
    """Claims to be what it is not."""

    def __init__(self, **claims: Any) -> None:
        self.__dict__.update(claims)


class BadIndex:
    def __index__(self) -> Any:
        return "x"  # noqa: PLE0305


class BadDLPack:
    def __dlpack_device__(self) -> Any:
        return "x"

    def __dlpack__(self, **options: Any) -> Any:
        return object()


class BadRepr:
    """Has an exception of its own for whoever shows it."""

    def __repr__(self) -> str:
        raise OSError("no repr")


def nested(kind: Any, depth: int = 3000) -> Any:
    """Return a list or a tuple that is nested deeper than Python's stack."""
    value = kind()
    for _ in range(depth):
        value = kind([value])
    return value


class BadFile:
    def __fspath__(self) -> Any:
        return 3


class BadInterface:
    __cuda_array_interface__ = "x"


ENUMS = (
    dnn.enums.RNNMode(9),
    dnn.enums.ConvolutionFwdAlgo(17),
    dnn.MathType(-1),
    dnn.DataType(99),
    dnn.DataType.FLOAT,
    dnn.DataType.INT8x4,
    dnn.enums.Status(3),
    dnn.enums.PoolingMode.MAX,
    dnn.enums.ActivationMode(77),
    dnn.enums.TensorFormat.NHWC,
    dnn.enums.RNNDataLayout(55),
    dnn.enums.RNNBiasMode(8),
    dnn.enums.RNNAlgo(33),
)
SPECS = (
    dnn.TensorSpec((2, 3, 4, 5)),
    dnn.TensorSpec((2, 0x7FFFFFFF, 0x7FFFFFFF)),
    dnn.TensorSpec((0, 3, 4, 5), "float16"),
    dnn.FilterSpec((2, 3, 1, 1)),
    dnn.ConvolutionSpec(1),
    dnn.RNNSpec("lstm", 2, 3),
    dnn.specs.RNNDataSpec((2, 3, 4)),
    dnn.ActivationSpec("relu"),
    dnn.PoolingSpec(2),
    dnn.LRNSpec(),
)
ARRAYS = (
    np.zeros(()),
    np.arange(6.0).reshape(2, 3),
    np.array(["x"]),
    np.array([None]),
    np.zeros((2, 0)),
    np.zeros((1,) * 12),
    np.zeros(3, "M8[ns]"),
    np.zeros(2, "f4,f4"),
    np.ma.masked_array([1, 2], [True, False]),
    np.ma.masked,
    np.float32(1),
    np.dtype("float32"),
    np.float32,
    np.ones(2, bool),
)
THINGS = (
    None,
    ...,
    NotImplemented,
    (),
    (3,),
    (1, 2, 3, 4),
    (0, 0),
    (None,),
    ("x",),
    (-1, 2),
    (2**31, 2),
    (DIGITS, 1),
    (MORE_DIGITS, 1),
    nested(list),
    nested(tuple),
    {"x": MORE_DIGITS},
    [],
    [[1, 2], [3]],
    [[]],
    {},
    {"x": 1},
    {1: 2},
    {"a": None},
    set(),
    frozenset({1}),
    range(3),
    range(2**62),
    object,
    int,
    len,
    type,
    dnn,
    TypeError(),
    Path("nowhere"),
    Liar(),
    Liar(spec=3),
    Liar(spec=SPECS[0]),
    Liar(shape=(2, 3), dtype="f4"),
    Liar(ptr=3),
    Liar(handle=3),
    Liar(copy_in=3),
    Liar(device_id="x", compute_capability=1),
    Liar(submit=3),
    BadIndex(),
    BadRepr(),
    (BadRepr(),),
    {"x": BadRepr()},
    BadDLPack(),
    BadFile(),
    BadInterface(),
    lambda *_, **__: None,
)


def _one_of(values: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    """Return the strategy that draws one of some values, whose `repr` may raise."""
    return st.integers(0, len(values) - 1).map(values.__getitem__)


ENDLESS = st.builds(itertools.count) | st.builds(itertools.repeat, st.just(1))
FIXED = (*NUMBERS, *TEXTS, *ENUMS, *SPECS, *ARRAYS, *THINGS)
RANDOM = (
    st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9)
    | st.lists(st.integers(-2, 2**33), max_size=9)
    | st.lists(_one_of(NUMBERS), max_size=4)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
    | ENDLESS
)


def invalid_values(*more: Any) -> st.SearchStrategy[Any]:
    """Return the strategy that draws invalid values.

    `more` are objects of ours that fit elsewhere.
    """
    return _one_of((*FIXED, *more)) | RANDOM
