"""RNN, RNN data and dropout descriptors.

cuDNN holds the requested values, and each native object is destroyed exactly once.
"""

import ctypes
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from specs.test_rnn_specs import DATA, SPECS, sequences

import cudnnlite as dnn
from cudnnlite import ArgumentError, MathType, RNNDescriptor, RNNSpec, TensorDescriptor, TensorSpec
from cudnnlite._raw.api import library_api
from cudnnlite.descriptors import DropoutDescriptor, RNNDataDescriptor
from cudnnlite.descriptors.rnn import RNNStateDescriptor, read_rnn
from cudnnlite.enums import RNNAlgo, RNNBiasMode
from cudnnlite.errors import ClosedError
from cudnnlite.specs import RNNDataSpec

SETTINGS = settings(
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
LSTM = RNNSpec("lstm", 6, 8)
CLIPPED = RNNSpec("lstm", 6, 8, clip=(-1.5, 2.25))

# ---------------------------------------------------------------- reading back


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_a_network_reads_back_as_it_was_set(spec):
    """The spec as cuDNN has it: without dropout, and without a projection to the hidden size.

    Dropout has a descriptor of its own.
    """
    expected = spec.replace(dropout=0.0)
    if not spec.projects:
        expected = expected.replace(projection_size=None)
    with RNNDescriptor(spec) as descriptor:
        assert descriptor.spec is spec
        assert descriptor.read_back() == expected
        reading = read_rnn(descriptor.api, descriptor.ptr)
        assert (reading.algorithm, reading.padded_io, reading.dropout.value) == (
            RNNAlgo.STANDARD,
            False,
            None,
        )


def has_bfloat16():
    return library_api().cudnnGetVersion() >= 91300


def dtypes():
    return st.sampled_from(["float32", "float64", "float16", *["bfloat16"] * has_bfloat16()])


@pytest.mark.parametrize(
    ("make", "spec"),
    [
        (RNNDescriptor, RNNSpec("lstm", 6, 8, dtype="bfloat16")),
        (RNNDataDescriptor, RNNDataSpec((5, 4, 6), None, "bfloat16")),
    ],
)
def test_an_old_cudnn_without_bfloat16_is_told_with_the_version_needed(make, spec):
    """So are the other tests of it skipped: `needed_version` in tests/conftest.py."""
    if has_bfloat16():
        make(spec).close()
        return
    with pytest.raises(
        dnn.NotSupportedError, match=r"bfloat16 need cuDNN 9\.13 or newer; this is 9\.\d+\.\d+"
    ):
        make(spec)


@st.composite
def specs(draw):
    cell = draw(st.sampled_from(["lstm", "gru", "relu", "tanh"]))
    hidden = draw(st.integers(1, 3000))
    skip = draw(st.booleans())
    options = {}
    if cell == "lstm":
        options["projection_size"] = draw(st.none() | st.integers(1, hidden))
        ends = st.floats(-1e6, 1e6) | st.sampled_from([-np.inf, np.inf])
        options["clip"] = draw(st.none() | st.tuples(ends, ends).map(sorted).map(tuple))
    return RNNSpec(
        cell,
        hidden if skip else draw(st.integers(1, 3000)),
        hidden,
        draw(st.integers(1, 12)),
        draw(st.booleans()),
        bias=draw(st.sampled_from(list(RNNBiasMode))),
        input_mode="skip" if skip else "linear",
        dtype=draw(dtypes()),
        math_type=draw(st.sampled_from(list(MathType))),
        **options,
    )


@SETTINGS
@given(specs(), st.booleans())
def test_any_network_reads_back(spec, padded):
    expected = spec if spec.projects else spec.replace(projection_size=None)
    with RNNDescriptor(spec, padded_io=padded) as descriptor:
        assert descriptor.read_back() == expected
        assert read_rnn(descriptor.api, descriptor.ptr).padded_io is padded


@pytest.mark.parametrize(
    "algorithm", ["STANDARD", "PERSIST_STATIC", "PERSIST_DYNAMIC", "PERSIST_STATIC_SMALL_H"]
)
def test_the_algorithm_reads_back(algorithm):
    for argument in (algorithm, algorithm.lower(), RNNAlgo[algorithm], int(RNNAlgo[algorithm])):
        with RNNDescriptor(LSTM, argument) as descriptor:
            assert descriptor.algorithm is RNNAlgo[algorithm]
            assert read_rnn(descriptor.api, descriptor.ptr).algorithm is RNNAlgo[algorithm]


@pytest.mark.parametrize(
    "algorithm", ["PERSIST_STATIC", "PERSIST_DYNAMIC", "PERSIST_STATIC_SMALL_H"]
)
def test_what_an_algorithm_does_not_do_is_refused_by_cudnn(world, algorithm):
    with pytest.raises(dnn.NotSupportedError, match="cudnnSetRNNDescriptor_v8"):
        RNNDescriptor(RNNSpec("lstm", 6, 8, projection_size=4), algorithm)
    assert world.ledger.leaked() == {}


@pytest.mark.parametrize("spec", DATA, ids=repr)
def test_sequences_read_back_as_they_were_set(spec):
    with RNNDataDescriptor(spec) as descriptor:
        assert descriptor.spec is spec
        assert descriptor.read_back() == spec


@SETTINGS
@given(sequences(), st.deferred(dtypes), st.integers(-128, 128))
def test_any_sequences_read_back(problem, dtype, fill):
    _, _, _, lengths, layout, shape = problem
    options = {
        "dtype": dtype,
        "layout": layout,
        "padding_fill": fill,
    }  # each of these is one in every type
    spec = RNNDataSpec(shape, lengths, **options)
    with (
        RNNDataDescriptor(shape, lengths, **options) as descriptor,
        RNNDataDescriptor(spec) as other,
    ):
        assert descriptor.spec == spec
        assert descriptor.read_back() == other.read_back() == spec


@SETTINGS
@given(st.lists(sequences(), min_size=2, max_size=5))
def test_one_descriptor_for_many_sequences(problems):
    """`set` leaves nothing of what was described before."""
    specs_ = [
        RNNDataSpec(shape, lengths, layout=layout) for _, _, _, lengths, layout, shape in problems
    ]
    with RNNDataDescriptor(specs_[0]) as descriptor:
        native = descriptor.ptr.value
        for spec in (*specs_, *reversed(specs_)):
            descriptor.set(spec)
            assert descriptor.spec is spec
            assert descriptor.read_back() == spec
            assert descriptor.ptr.value == native


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [("float32", np.inf), ("float64", -0.1), ("float16", -np.inf), ("float32", 0.1)],
)
def test_a_padding_fill_is_rounded_to_the_type(dtype, fill):
    with RNNDataDescriptor((5, 4, 6), dtype=dtype, padding_fill=fill) as descriptor:
        assert descriptor.read_back().padding_fill == float(np.dtype(dtype).type(fill))


def test_a_nan_for_a_padding_fill():
    with RNNDataDescriptor((5, 4, 6), padding_fill=np.nan) as descriptor:
        assert np.isnan(descriptor.read_back().padding_fill)


@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 5, 6), (2, 3, 2000)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_states_are_told_as_rank_three(shape, dtype):
    """Where other tensors are brought to rank 4."""
    spec = TensorSpec(shape, dtype)
    with RNNStateDescriptor(spec) as descriptor, TensorDescriptor(spec) as other:
        assert descriptor.read_back() == spec
        assert len(other.read_back().shape) == 4


# ---------------------------------------------------------------- clipping


def spied(monkeypatch, api, without=()):
    """Return a list of the clip functions that are called; those of `without` are hidden."""
    calls = []
    has = type(api).has
    monkeypatch.setattr(
        api, "has", lambda name: name not in without and has(api, name), raising=False
    )
    for version in ("_v8", "_v9"):
        for verb in ("Set", "Get"):
            name = f"cudnnRNN{verb}Clip{version}"
            function = getattr(api, name)
            monkeypatch.setattr(
                api,
                name,
                lambda *a, name=name, function=function: calls.append(name) or function(*a),
                raising=False,
            )
    return calls


@pytest.mark.parametrize(
    "clip", [(-1.5, 2.25), (-np.inf, np.inf), (0.0, 0.0), (-np.inf, 3.0)], ids=str
)
@pytest.mark.parametrize("version", ["_v9", "_v8"])
def test_clipping(monkeypatch, own_device, version, clip):
    """Through version 9 of the function; through version 8 where the library is older."""
    without = () if version == "_v9" else ("cudnnRNNSetClip_v9", "cudnnRNNGetClip_v9")
    calls = spied(monkeypatch, own_device.api, without)
    spec = LSTM.replace(clip=clip)
    with RNNDescriptor(spec, api=own_device.api) as descriptor:
        assert calls == [f"cudnnRNNSetClip{version}"]
        assert descriptor.read_back() == spec
        assert calls == [f"cudnnRNNSetClip{version}", f"cudnnRNNGetClip{version}"]


def test_both_versions_tell_the_same():
    """What one has set the other one reads."""
    api = dnn.raw.library_api() if hasattr(dnn.raw, "library_api") else None
    with RNNDescriptor(CLIPPED) as descriptor:
        api = descriptor.api
        mode, nans, low, high = ctypes.c_int(), ctypes.c_int(), ctypes.c_double(), ctypes.c_double()
        api.cudnnRNNGetClip_v8(descriptor.ptr, mode, nans, low, high)
        assert (mode.value, low.value, high.value) == (1, -1.5, 2.25)
        api.cudnnRNNSetClip_v8(descriptor.ptr, 1, 1, -3.0, 4.0)
        assert descriptor.read_back().clip == (-3.0, 4.0)


def test_without_clipping_nothing_is_set(monkeypatch, own_device):
    calls = spied(monkeypatch, own_device.api)
    with RNNDescriptor(LSTM, api=own_device.api) as descriptor:
        assert calls == []
        assert descriptor.read_back().clip is None


# ---------------------------------------------------------------- dropout


@pytest.fixture
def states(own_handle):
    size = ctypes.c_size_t()
    own_handle.api.cudnnDropoutGetStatesSize(own_handle.ptr, size)
    return own_handle.empty((size.value,), "uint8")


@pytest.mark.parametrize(
    ("probability", "seed"), [(0.0, 0), (0.5, 1), (0.25, 2**64 - 1), (0.875, 12345)]
)
def test_dropout_reads_back_as_it_was_set(own_handle, states, probability, seed):
    with DropoutDescriptor(own_handle, probability, states, seed, initialize=True) as descriptor:
        assert descriptor.spec == (probability, seed)
        assert descriptor.read_back() == (probability, seed)
    with DropoutDescriptor(own_handle, probability / 2, states, seed) as descriptor:
        assert descriptor.read_back() == (probability / 2, seed)


def test_only_initializing_writes_the_states(own_handle, states):
    def bytes_of():
        return states.numpy()

    poisoned = bytes_of()
    with DropoutDescriptor(own_handle, 0.5, states, 7):
        np.testing.assert_array_equal(bytes_of(), poisoned)
    with DropoutDescriptor(own_handle, 0.5, states, 7, initialize=True):
        filled = bytes_of()
        assert (filled != poisoned).any()
    with DropoutDescriptor(own_handle, 0.25, states, 8):
        np.testing.assert_array_equal(bytes_of(), filled)
    with DropoutDescriptor(own_handle, 0.5, states, 8, initialize=True):
        assert (bytes_of() != filled).any()


def test_a_network_keeps_its_dropout(own_handle, states):
    with DropoutDescriptor(own_handle, 0.5, states, 1, initialize=True) as dropout:
        with RNNDescriptor(LSTM.replace(num_layers=2), dropout=dropout, api=own_handle.api) as rnn:
            assert read_rnn(rnn.api, rnn.ptr).dropout.value == dropout.ptr.value
        with RNNDescriptor(LSTM) as rnn:
            assert read_rnn(rnn.api, rnn.ptr).dropout.value is None


@pytest.mark.parametrize("probability", [-0.5, 1.5, float("nan")])
def test_no_probability(own_handle, states, probability):
    with pytest.raises(dnn.CudnnError, match="cudnnSetDropoutDescriptor"):
        DropoutDescriptor(own_handle, probability, states, 1, initialize=True)


def test_closed_states_are_refused(own_handle, states):
    states.close()
    with pytest.raises(ClosedError):
        DropoutDescriptor(own_handle, 0.5, states, 1, initialize=True)


# ---------------------------------------------------------------- what cannot be described


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RNNDescriptor("lstm"), "spec='lstm' is not an RNNSpec"),
        (lambda: RNNDescriptor(None), "spec=None"),
        (lambda: RNNDescriptor(RNNDataSpec((5, 4, 6))), "spec=RNNDataSpec"),
        (lambda: RNNDescriptor(LSTM, "NOPE"), "algorithm='NOPE'.*PERSIST_STATIC"),
        (lambda: RNNDescriptor(LSTM, 99), "algorithm=99"),
        (lambda: RNNDescriptor(LSTM, None), "algorithm=None"),
        (lambda: RNNDescriptor(LSTM, dnn.enums.ConvolutionFwdAlgo.GEMM), "algorithm="),
        (lambda: RNNDataDescriptor((5, 4)), "shape="),
        (lambda: RNNDataDescriptor((5, 4, 6), (6, 5, 5, 5)), "lengths="),
        (lambda: RNNDataDescriptor((5, 4, 6), layout="NTC"), "layout='NTC'"),
        (lambda: RNNDataDescriptor(RNNDataSpec((5, 4, 6)), (5, 5, 5, 5)), "^lengths=.*RNNDataSpec"),
        (
            lambda: RNNDataDescriptor(RNNDataSpec((5, 4, 6)), dtype="float16"),
            "^dtype=.*RNNDataSpec",
        ),
        (lambda: RNNDataDescriptor(RNNDataSpec((5, 4, 6)), dtype=None), "^dtype=None.*RNNDataSpec"),
        (lambda: RNNDataDescriptor((5, 4, 6), dtype=None), "^dtype=None"),
        (lambda: RNNDataDescriptor((5, 4, 6), layout=None), "^layout=None"),
        (lambda: RNNDataDescriptor((5, 4, 6), padding_fill=None), "^padding_fill=None"),
        (lambda: RNNDataDescriptor(None), "shape"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_arguments_make_no_native_object(world, make, message):
    with pytest.raises(ArgumentError, match=message):
        make()
    assert world.ledger.started == []


def test_an_unknown_option_is_refused_though_it_is_none():
    with pytest.raises(TypeError, match="bogus"):
        RNNDataDescriptor((5, 4, 6), bogus=None)


def test_what_cudnn_refuses_is_destroyed_again(world):
    with pytest.raises(dnn.CudnnError, match="cudnnSetRNNDescriptor_v8"):
        RNNDescriptor(LSTM.replace(dtype="float32", compute_type="int32"))
    assert world.ledger.started[-1] == "cudnnDestroyRNNDescriptor"
    assert world.ledger.leaked() == {}


def test_a_refused_description_of_other_sequences(world):
    """The spec then is what cuDNN still holds."""
    before = RNNDataSpec((5, 4, 6))
    with RNNDataDescriptor(before) as descriptor:
        world.ledger.fail_next("cudnnSetRNNDataDescriptor", dnn.enums.Status.BAD_PARAM)
        with pytest.raises(dnn.errors.BadParamError):
            descriptor.set(RNNDataSpec((9, 4, 6)))
        assert descriptor.spec is before
        assert descriptor.read_back() == before


# ---------------------------------------------------------------- lifetime

MAKERS = {
    "RNNDescriptor": lambda: RNNDescriptor(LSTM),
    "RNNDescriptor_clipped": lambda: RNNDescriptor(CLIPPED),
    "RNNDataDescriptor": lambda: RNNDataDescriptor((5, 4, 6)),
    "RNNStateDescriptor": lambda: RNNStateDescriptor(TensorSpec((1, 4, 8))),
}
COUNTED = {"RNNStateDescriptor": "TensorDescriptor"}
by_maker = pytest.mark.parametrize("maker", MAKERS)


@by_maker
def test_closing(world, maker):
    kind = maker.partition("_")[0]
    native = COUNTED.get(kind, kind)
    descriptor = MAKERS[maker]()
    assert world.ledger.leaked() == {native: 1}
    assert repr(descriptor) == f"<{kind} {descriptor.spec}, at {descriptor.ptr.value:#x}>"
    descriptor.close()
    descriptor.close()
    assert descriptor.closed
    assert world.ledger.leaked() == {}
    assert [name for name in world.ledger.finished if "Destroy" in name] == [
        f"cudnnDestroy{native}"
    ]
    assert repr(descriptor) == f"<{kind} {descriptor.spec}, closed>"
    for use in (lambda: descriptor.ptr, descriptor.read_back):
        with pytest.raises(ClosedError, match=f"this {kind} was closed"):
            use()


def test_closed_sequences_are_not_described_again():
    descriptor = RNNDataDescriptor((5, 4, 6))
    descriptor.close()
    with pytest.raises(ClosedError):
        descriptor.set(RNNDataSpec((9, 4, 6)))
    assert descriptor.spec == RNNDataSpec((5, 4, 6))


def test_dropout_is_given_back(own_handle, states):
    descriptor = DropoutDescriptor(own_handle, 0.5, states, 1, initialize=True)
    native = descriptor.ptr.value
    assert repr(descriptor) == f"<DropoutDescriptor (0.5, 1), at {native:#x}>"
    descriptor.close()
    descriptor.close()
    with pytest.raises(ClosedError, match="this DropoutDescriptor was closed"):
        descriptor.read_back()
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(descriptor)
