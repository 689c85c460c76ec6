"""enums.py against gcc's values, and how an enumeration treats values that it does not know."""

import copy
import keyword
import pickle
import re

import header_text
import pytest

from cudnnlite import MathType
from cudnnlite._raw.attributes import KINDS_SINCE
from cudnnlite._raw.enums import C_MEMBERS, C_NAMES
from cudnnlite.enums import Status
from cudnnlite.raw import enums


def generated():
    """``{enumeration in C: {enumerator in C: value}}``."""
    return {
        C_NAMES[kind]: dict(zip(c_members, map(int, kind.__members__.values()), strict=True))
        for kind, c_members in C_MEMBERS.items()
    }


def is_sentinel(c_member):
    return c_member.endswith(("_COUNT", "_COUNTS"))


@pytest.mark.processes
def test_every_value_is_the_compilers(tmp_path):
    names = [name for members in header_text.enums().values() for name in members]
    assert len(names) == len(set(names))
    lines = header_text.run_c(
        tmp_path, [f'printf("{name} %lld\\n", (long long){name});' for name in names]
    )
    compiled = {name: int(value) for name, value in lines}
    in_headers = {
        kind: {name: compiled[name] for name in members}
        for kind, members in header_text.enums().items()
    }
    ours = generated()
    if header_text.is_generation_version():
        assert in_headers == ours
        assert all(list(in_headers[kind]) == list(ours[kind]) for kind in ours)
        return
    for kind in ours.keys() & in_headers.keys():
        for name in ours[kind].keys() & in_headers[kind].keys():
            # a count grows with its enumeration
            assert ours[kind][name] == in_headers[kind][name] or is_sentinel(name), name


def test_class_and_member_names():
    assert set(C_NAMES) == set(C_MEMBERS)
    for kind, c_name in C_NAMES.items():
        assert f"cudnn{kind.__name__}_t" == c_name
        assert getattr(enums, kind.__name__) is kind
        for name, c_name in zip(kind.__members__, C_MEMBERS[kind], strict=True):
            assert name.isidentifier()
            assert not keyword.iskeyword(name)
            assert not name.startswith("_")
            # every word of the Python name is a word of the C name
            assert is_sentinel(c_name) or set(name.split("_")) <= set(c_name.split("_")), (
                name,
                c_name,
            )


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("MathType", ["DEFAULT", "TENSOR_OP", "TENSOR_OP_ALLOW_CONVERSION", "FMA"]),
        ("TensorFormat", ["NCHW", "NHWC", "NCHW_VECT_C"]),
        ("ConvolutionMode", ["CONVOLUTION", "CROSS_CORRELATION"]),
        ("ReorderType", ["DEFAULT", "NO"]),
        ("Determinism", ["NON_DETERMINISTIC", "DETERMINISTIC"]),
        ("RNNMode", ["RELU", "TANH", "LSTM", "GRU"]),
        (
            "RNNAlgo",
            ["STANDARD", "PERSIST_STATIC", "PERSIST_DYNAMIC", "PERSIST_STATIC_SMALL_H", "COUNT"],
        ),
        ("RNNBiasMode", ["NO", "SINGLE_INP", "DOUBLE", "SINGLE_REC"]),
        ("DirectionMode", ["UNIDIRECTIONAL", "BIDIRECTIONAL"]),
        ("ForwardMode", ["INFERENCE", "TRAINING"]),
        ("NanPropagation", ["NOT_PROPAGATE", "PROPAGATE"]),
        ("NormMode", ["PER_ACTIVATION", "PER_CHANNEL"]),
        ("BatchNormMode", ["PER_ACTIVATION", "SPATIAL", "SPATIAL_PERSISTENT"]),
        ("GenStatsMode", ["SUM_SQSUM"]),
        ("IndicesType", ["INDICES_32BIT", "INDICES_64BIT", "INDICES_16BIT", "INDICES_8BIT"]),
        (
            "ConvolutionFwdAlgo",
            [
                *(
                    "IMPLICIT_GEMM",
                    "IMPLICIT_PRECOMP_GEMM",
                    "GEMM",
                    "DIRECT",
                    "FFT",
                    "FFT_TILING",
                    "WINOGRAD",
                ),
                *("WINOGRAD_NONFUSED", "COUNT"),
            ],
        ),
        (
            "ConvolutionBwdDataAlgo",
            ["ALGO_0", "ALGO_1", "FFT", "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED", "COUNT"],
        ),
    ],
)
def test_names_that_the_public_layers_rely_on(kind, names):
    assert list(getattr(enums, kind).__members__) == names


def test_deprecated_alias_is_the_canonical_member():
    assert Status.ALLOC_FAILED is Status.INTERNAL_ERROR_HOST_ALLOCATION_FAILED
    assert Status(4003).name == "INTERNAL_ERROR_HOST_ALLOCATION_FAILED"


def test_unknown_value():
    unknown = MathType(17)
    assert unknown is MathType(17)
    assert isinstance(unknown, MathType)
    assert unknown == 17
    assert hash(unknown) == hash(17)
    assert unknown.name == str(unknown) == f"{unknown}" == "UNKNOWN_17"
    assert unknown.value == 17
    assert repr(unknown) == "<MathType.UNKNOWN_17: 17>"
    assert unknown is not Status(17)
    assert unknown not in list(MathType)
    assert MathType(-2).name == "UNKNOWN_-2"


@pytest.mark.parametrize("value", ["17", None, 1.5, b"1", "DEFAULT"])
def test_not_an_integer(value):
    with pytest.raises(ValueError, match="is not a valid MathType"):
        MathType(value)


@pytest.mark.parametrize("member", [MathType.FMA, Status.ALLOC_FAILED, MathType(17)])
def test_copies_are_the_same_object(member):
    assert copy.deepcopy(member) is member
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(member, protocol)) is member


def test_text():
    assert str(MathType.FMA) == f"{MathType.FMA}" == "FMA"
    assert repr(MathType.FMA) == "<MathType.FMA: 3>"
    assert f"{MathType.FMA:>5}|{MathType.FMA:d}|{MathType.FMA:02x}" == "  FMA|3|03"


def test_the_versions_that_introduced_kinds_of_backend_descriptors_are_the_headers():
    matches = re.findall(
        r"CUDNN_BACKEND_(\w+)_DESCRIPTOR += \d+,.*@since cuDNN (\d+)\.(\d+)\.(\d+) ",
        "".join(header_text.raw_texts().values()),
    )
    versions = {name: int(a) * 10000 + int(b) * 100 + int(c) for name, a, b, c in matches}
    kinds = enums.BackendDescriptorType.__members__
    if header_text.is_generation_version():
        assert versions.keys() == kinds.keys()
    assert len(versions.keys() & kinds.keys()) > 30
    for name in versions.keys() & kinds.keys():
        assert KINDS_SINCE.get(name, 90000) == versions[name], name
