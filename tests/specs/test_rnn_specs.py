"""RNNSpec and RNNDataSpec: what they hold and refuse, and the parts of a network's weights."""

import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_one import in_one_test

import cudnnlite as dnn
from cudnnlite import ArgumentError, DataType, MathType, RNNSpec
from cudnnlite.enums import RNNBiasMode, RNNDataLayout, RNNInputMode, RNNMode
from cudnnlite.specs import RNNDataSpec
from cudnnlite.specs.rnn_rules import why_not
from cudnnlite.specs.rnn_weights import weight_parts

SETTINGS = settings(max_examples=60)
INFINITY = math.inf
NAMES = {"RNNSpec": RNNSpec, "RNNDataSpec": RNNDataSpec, "inf": INFINITY}

SPECS = [
    RNNSpec("lstm", 6, 8),
    RNNSpec("gru", 6, 8),
    RNNSpec("relu", 6, 8),
    RNNSpec("tanh", 1, 1),
    RNNSpec("lstm", 6, 8, 3),
    RNNSpec("lstm", 6, 8, 2, True),
    RNNSpec("lstm", 6, 8, projection_size=5),
    *[RNNSpec("gru", 6, 8, bias=mode) for mode in RNNBiasMode if mode != RNNBiasMode.DOUBLE],
    RNNSpec("relu", 8, 8, input_mode="skip"),
    RNNSpec("lstm", 6, 8, 2, dropout=0.25),
    RNNSpec("lstm", 6, 8, clip=(-1, 2.5)),
    RNNSpec("lstm", 6, 8, clip=(-math.inf, 0)),
    *[RNNSpec("lstm", 6, 8, dtype=dtype) for dtype in ("float64", "float16", "bfloat16")],
    RNNSpec("lstm", 6, 8, dtype="float16", compute_type="float16"),
    *[RNNSpec("lstm", 6, 8, math_type=kind) for kind in MathType if kind != MathType.DEFAULT],
    RNNSpec(
        "lstm",
        6,
        6,
        2,
        True,
        projection_size=3,
        bias="single_input",
        input_mode="skip",
        dropout=0.5,
        clip=(0, 1),
        dtype="float16",
        compute_type="float32",
        math_type="tensor_op",
    ),
]
DATA = [
    RNNDataSpec((5, 4, 6)),
    RNNDataSpec((4, 5, 6), layout="batch_major"),
    RNNDataSpec((5, 4, 6), (5, 5, 3, 1)),
    RNNDataSpec((5, 4, 6), (1, 5, 3, 5)),
    RNNDataSpec((4, 5, 6), (4, 4, 4, 4), layout="batch_major"),
    RNNDataSpec((14, 6), (5, 5, 3, 1), layout="packed"),
    RNNDataSpec((6, 6), (2, 2, 2), layout="packed"),
    *[RNNDataSpec((5, 4, 6), dtype=dtype) for dtype in ("float64", "float16", "bfloat16")],
    RNNDataSpec((5, 4, 6), padding_fill=1.5),
    RNNDataSpec((1, 1, 1)),
]

# ---------------------------------------------------------------- values


@in_one_test(SPECS)
def test_repr_evaluates_to_an_equal_network(spec):
    again = eval(repr(spec), dict(NAMES))
    assert again == spec
    assert hash(again) == hash(spec)
    assert str(spec) == repr(spec)


@in_one_test(DATA)
def test_repr_evaluates_to_equal_sequences(spec):
    """Packed sequences keep their lengths even if all are equal, because they need them."""
    assert eval(repr(spec), dict(NAMES)) == spec


@in_one_test(itertools.product([*SPECS, *DATA], range(pickle.HIGHEST_PROTOCOL + 1)))
def test_pickling_keeps_the_value(spec, protocol):
    again = pickle.loads(pickle.dumps(spec, protocol))
    assert again == spec
    assert hash(again) == hash(spec)
    assert type(again) is type(spec)
    assert again.values() == spec.values()


OTHER = {
    "cell": "gru",
    "input_size": 7,
    "hidden_size": 9,
    "num_layers": 2,
    "bidirectional": True,
    "projection_size": 3,
    "bias": "none",
    "input_mode": "skip",
    "dropout": 0.5,
    "clip": (-1, 1),
    "dtype": "float64",
    "compute_type": "float64",
    "math_type": "fma",
}


def test_every_field_is_changed_below():
    assert set(OTHER) == set(SPECS[0].values())


@pytest.mark.parametrize("name", OTHER)
def test_every_field_changes_equality_and_hash(name):
    spec = RNNSpec("lstm", 8, 8)
    other = spec.replace(**{name: OTHER[name]})
    assert other != spec
    assert hash(other) != hash(spec)
    changed = [name, "compute_type"] if name == "dtype" else [name]
    assert [key for key, value in other.values().items() if value != spec.values()[key]] == changed
    assert other.replace(**{name: spec.values()[name]}) == spec


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_length", 6),
        ("batch", 5),
        ("vector_size", 7),
        ("lengths", (5, 5, 5, 1)),
        ("dtype", DataType.HALF),
        ("layout", RNNDataLayout.BATCH_MAJOR_UNPACKED),
        ("padding_fill", 1.0),
    ],
)
def test_every_field_of_sequences_changes_equality_and_hash(name, value):
    spec = RNNDataSpec((5, 4, 6))
    other = RNNDataSpec.__new__(RNNDataSpec)
    other._freeze(**spec.values() | {name: value})
    assert other != spec
    assert hash(other) != hash(spec)


def test_replace_refuses_what_the_constructor_refuses():
    with pytest.raises(ArgumentError, match="projection_size=9"):
        RNNSpec("lstm", 6, 8).replace(projection_size=9)
    with pytest.raises(TypeError, match="hiden"):
        RNNSpec("lstm", 6, 8).replace(hiden_size=9)


# ---------------------------------------------------------------- spellings

SPELLINGS = {
    "cell": ([RNNMode.LSTM, "lstm", "LSTM", "Lstm", 2], RNNMode.LSTM),
    "input_size": ([6, np.int64(6), np.uint8(6)], 6),
    "num_layers": ([1, np.int32(1)], 1),
    "bidirectional": ([False], False),
    "bias": ([RNNBiasMode.DOUBLE, "double", "DOUBLE", True, 2], RNNBiasMode.DOUBLE),
    "input_mode": ([RNNInputMode.LINEAR, "linear", 0], RNNInputMode.LINEAR),
    "dropout": ([0, 0.0, np.float32(0)], 0.0),
    "dtype": (
        ["float32", np.float32, np.dtype("float32"), DataType.FLOAT, "FLOAT32"],
        DataType.FLOAT,
    ),
    "compute_type": ([None, "float32", DataType.FLOAT], DataType.FLOAT),
    "math_type": ([MathType.DEFAULT, "default", "tf32", dnn.TF32, 0], MathType.DEFAULT),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, (values, _) in SPELLINGS.items() for value in values],
    ids=lambda value: repr(value) if not isinstance(value, str) else value,
)
def test_spellings(name, value):
    spec = RNNSpec(**{"cell": "lstm", "input_size": 6, "hidden_size": 8} | {name: value})
    assert spec == RNNSpec("lstm", 6, 8)
    assert getattr(spec, name) == SPELLINGS[name][1]
    assert type(getattr(spec, name)) is type(SPELLINGS[name][1])


@pytest.mark.parametrize(
    ("argument", "mode"),
    [
        ("none", "NO"),
        ("no", "NO"),
        (False, "NO"),
        ("single_input", "SINGLE_INP"),
        ("single_inp", "SINGLE_INP"),
        ("SINGLE_INPUT", "SINGLE_INP"),
        ("single_recurrent", "SINGLE_REC"),
        ("single_rec", "SINGLE_REC"),
        (0, "NO"),
        (RNNBiasMode.SINGLE_REC, "SINGLE_REC"),
    ],
)
def test_biases(argument, mode):
    assert RNNSpec("gru", 6, 8, bias=argument).bias is RNNBiasMode[mode]


@pytest.mark.parametrize("bias", ["none", "single_input", "single_recurrent"])
def test_a_bias_is_told_as_it_is_documented(bias):
    assert (
        repr(RNNSpec("lstm", 3, 4, bias=bias))
        == f"RNNSpec('lstm', input_size=3, hidden_size=4, bias={bias!r})"
    )


@pytest.mark.parametrize(
    "clip", [(-1, 1), [-1.0, 1.0], np.array([-1, 1]), range(-1, 2, 2), (np.float32(-1), np.int8(1))]
)
def test_clips(clip):
    spec = RNNSpec("lstm", 6, 8, clip=clip)
    assert spec.clip == (-1.0, 1.0)
    assert all(type(end) is float for end in spec.clip)


@pytest.mark.parametrize("clip", [(0, 0), (-math.inf, math.inf), (2, 3), (-3, -2)], ids=str)
def test_unusual_clips(clip):
    assert RNNSpec("lstm", 6, 8, clip=clip).clip == clip


@pytest.mark.parametrize(
    ("dtype", "compute"),
    [("float32", "FLOAT"), ("float64", "DOUBLE"), ("float16", "FLOAT"), ("bfloat16", "FLOAT")],
)
def test_compute_types(dtype, compute):
    assert RNNSpec("lstm", 6, 8, dtype=dtype).compute_type is DataType[compute]


def test_one_sequence_of_the_most_steps_is_valid():
    most_steps = 2**31 - 1
    assert RNNDataSpec((most_steps, 1, 1)).lengths == (most_steps,)


# ---------------------------------------------------------------- what follows from a network


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("projection", [None, 3, 8])
def test_sizes(projection, bidirectional):
    spec = RNNSpec("lstm", 6, 8, 4, bidirectional, projection_size=projection)
    directions, state = 1 + bidirectional, projection or 8
    assert spec.directions == directions
    assert spec.state_size == state
    assert spec.output_size == directions * state
    assert spec.projects == (projection == 3)
    assert [spec.layer_input_size(layer) for layer in range(4)] == [6, *[directions * state] * 3]
    assert spec.hidden_shape(5) == (4 * directions, 5, state)
    assert spec.cell_shape(5) == (4 * directions, 5, 8)


def test_a_projection_to_the_hidden_size_is_none():
    spec = RNNSpec("lstm", 6, 8, projection_size=8)
    assert spec == RNNSpec("lstm", 6, 8)
    assert spec.projection_size is None
    with pytest.raises(ArgumentError, match="projection_size=True"):
        RNNSpec("lstm", 6, 1, projection_size=True)


@pytest.mark.parametrize(
    ("cell", "gates"), [("lstm", "ifgo"), ("gru", "rzn"), ("relu", "h"), ("tanh", "h")]
)
def test_gates(cell, gates):
    assert RNNSpec(cell, 6, 8).gates == tuple(gates)


def test_what_the_weights_depend_on():
    spec = RNNSpec(
        "lstm",
        6,
        8,
        2,
        dropout=0.5,
        clip=(-1, 1),
        dtype="float16",
        compute_type="float16",
        math_type="fma",
    )
    assert spec.weights_of() == RNNSpec("lstm", 6, 8, 2, dtype="float16")
    assert spec.weights_of().weights_of() == spec.weights_of()
    for name, value in OTHER.items():
        base = RNNSpec("lstm", 8, 8)
        same = base.replace(**{name: value}).weights_of() == base.weights_of()
        assert same == (name in ("dropout", "clip", "compute_type", "math_type")), name


# ---------------------------------------------------------------- parts of the weights


@in_one_test(SPECS)
def test_parts(spec):
    """Each once, by cuDNN's numbers: gates from 0, recurrent ones behind, the projection at 8."""
    parts = list(weight_parts(spec))
    assert len({part.name for part in parts}) == len(parts)
    assert len({(part.pseudo_layer, part.linear_layer, part.bias) for part in parts}) == len(parts)
    gates = len(spec.gates)
    for part in parts:
        assert part.pseudo_layer == part.layer * spec.directions + part.direction
        if part.gate:
            assert part.linear_layer == spec.gates.index(part.gate) + gates * part.recurrent
        else:
            assert (part.linear_layer, part.shape) == (8, (spec.projection_size, spec.hidden_size))
        assert part.name.endswith(".bias") == part.bias == (len(part.shape) == 1)
        assert f"layer{part.layer}.{('forward', 'backward')[part.direction]}." in part.name
    skipped = gates * spec.directions * (spec.input_mode == RNNInputMode.SKIP)
    matrices = 2 * gates * spec.num_layers * spec.directions - skipped
    biases = (
        {RNNBiasMode.NO: 0, RNNBiasMode.DOUBLE: 2}.get(spec.bias, 1)
        * gates
        * spec.num_layers
        * spec.directions
    )
    assert len(parts) == matrices + biases + spec.projects * spec.num_layers * spec.directions


# ---------------------------------------------------------------- sequences


@st.composite
def sequences(draw):
    layout = draw(st.sampled_from(["sequence_major", "batch_major", "packed"]))
    batch, size = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    lengths = draw(st.lists(st.integers(1, 7), min_size=batch, max_size=batch))
    steps = max(lengths) + draw(st.integers(0, 3))
    if layout == "packed":
        lengths.sort(reverse=True)
        return lengths[0], batch, size, tuple(lengths), layout, (sum(lengths), size)
    shape = (steps, batch, size) if layout == "sequence_major" else (batch, steps, size)
    return steps, batch, size, tuple(lengths), layout, shape


@SETTINGS
@given(
    sequences(),
    st.sampled_from(["float32", "float64", "float16", "bfloat16"]),
    st.floats(-100, 100),
)
def test_sequences(problem, dtype, fill):
    steps, batch, size, lengths, layout, shape = problem
    spec = RNNDataSpec(shape, lengths, dtype, layout, padding_fill=fill)
    assert (spec.max_length, spec.batch, spec.vector_size, spec.lengths) == (
        steps,
        batch,
        size,
        lengths,
    )
    assert spec.shape == shape
    assert spec.is_packed == (layout == "packed")
    assert spec.is_full == all(length == steps for length in lengths)
    assert spec.padding_fill == fill
    assert spec.tensor() == dnn.TensorSpec(shape, dtype)
    assert (
        RNNDataSpec(list(shape), np.array(lengths), spec.dtype, spec.layout, padding_fill=fill)
        == spec
    )
    wider = spec.with_vectors(size + 3, 2.0)
    assert wider.shape == (*shape[:-1], size + 3)
    assert (wider.lengths, wider.layout, wider.max_length, wider.padding_fill) == (
        lengths,
        spec.layout,
        steps,
        2.0,
    )
    assert wider.with_vectors(size, fill) == spec
    assert spec.with_vectors(size).padding_fill == 0.0


@SETTINGS
@given(sequences())
def test_sequences_of_full_length_need_no_lengths(problem):
    steps, batch, _, _, layout, shape = problem
    if layout != "packed":
        assert RNNDataSpec(shape, layout=layout) == RNNDataSpec(
            shape, [steps] * batch, layout=layout
        )
        assert RNNDataSpec(shape, layout=layout).is_full


@SETTINGS
@given(sequences(), st.data())
def test_one_wrong_length_is_refused(problem, data):
    steps, batch, _, lengths, layout, shape = problem
    position = data.draw(st.integers(0, batch - 1))
    wrong = list(lengths)
    wrong[position] = data.draw(st.sampled_from([0, -1, steps + 1, steps + 100]))
    with pytest.raises(ArgumentError, match="lengths"):
        RNNDataSpec(shape, wrong, layout=layout)


@pytest.mark.parametrize(
    ("argument", "layout"),
    [
        ("sequence_major", "SEQ_MAJOR_UNPACKED"),
        ("SEQUENCE_MAJOR", "SEQ_MAJOR_UNPACKED"),
        ("seq_major_unpacked", "SEQ_MAJOR_UNPACKED"),
        (RNNDataLayout.SEQ_MAJOR_UNPACKED, "SEQ_MAJOR_UNPACKED"),
        ("batch_major", "BATCH_MAJOR_UNPACKED"),
        (RNNDataLayout.BATCH_MAJOR_UNPACKED, "BATCH_MAJOR_UNPACKED"),
    ],
)
def test_layouts(argument, layout):
    assert RNNDataSpec((2, 2, 2), layout=argument).layout is RNNDataLayout[layout]


# ---------------------------------------------------------------- the rules

STANDARD, STATIC, DYNAMIC, SMALL = (
    dnn.enums.RNNAlgo[name]
    for name in ("STANDARD", "PERSIST_STATIC", "PERSIST_DYNAMIC", "PERSIST_STATIC_SMALL_H")
)


@in_one_test(itertools.product(SPECS, [False, True], [False, True]))
def test_standard_does_everything(spec, full, backward):
    assert why_not(spec, STANDARD, full=full, backward=backward) == ""


@pytest.mark.parametrize("algorithm", [STATIC, DYNAMIC, SMALL], ids=str)
def test_every_reason_is_told(algorithm):
    spec = RNNSpec(
        "lstm", 6, 8, projection_size=4, bias="none", dtype="float16", compute_type="float16"
    )
    reasons = why_not(spec, algorithm, full=False)
    for reason in (
        "compute in float16",
        "bias='double', not NO",
        "no projection (projection_size=4)",
        "full length",
    ):
        assert reason in reasons
    assert reasons.startswith(f"{algorithm.name} ")
    assert why_not(RNNSpec("lstm", 6, 8, 3, True, projection_size=8), algorithm) == ""


def test_limits_of_the_hidden_size():
    for cell, algorithm, largest in (
        ("lstm", SMALL, (192, 128)),
        ("gru", SMALL, (192, 128)),
        ("relu", SMALL, (384, 256)),
        ("tanh", SMALL, (384, 256)),
        ("lstm", STATIC, (1536, 1536)),
        ("gru", STATIC, (1536, 1536)),
        ("tanh", STATIC, (2560, 2560)),
    ):
        for backward in (False, True):
            limit = largest[backward]
            assert why_not(RNNSpec(cell, 6, limit), algorithm, backward=backward) == ""
            reasons = why_not(RNNSpec(cell, 6, limit + 1), algorithm, backward=backward)
            assert (
                f"hidden_size={limit} {'backward' if backward else 'forward'} for "
                f"{cell.upper()}, not {limit + 1}"
            ) in reasons
    assert why_not(RNNSpec("lstm", 6, 100_000), DYNAMIC) == ""
