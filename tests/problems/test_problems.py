"""Problems: what fits together, which are equal, how much work they are, and their JSON."""

import copy
import dataclasses
import itertools
import json
import math
import pickle

import numpy as np
import pytest
from helpers.tunings import specs_of
from hypothesis import given, settings
from hypothesis import strategies as st
from rnn_oracles import random_weights

from cudnnlite import (
    ArgumentError,
    ConvolutionSpec,
    FilterSpec,
    MathType,
    RNNSpec,
    TensorSpec,
    convolution_backward_data,
    convolution_backward_filter,
    convolution_bias_activation_forward,
    convolution_forward,
    rnn_forward,
)
from cudnnlite.enums import DataType
from cudnnlite.errors import CudnnliteError
from cudnnlite.problems.catalogue import TUNABLE
from cudnnlite.problems.convolution import FORWARD
from cudnnlite.problems.problem import problem_from_plain
from cudnnlite.problems.rnn import FORWARD as RNN_FORWARD
from cudnnlite.specs import RNNDataSpec
from cudnnlite.specs.frozen import from_plain, to_plain
from cudnnlite.types import Problem

X, W = TensorSpec((2, 4, 7, 6), "float16", "NHWC"), FilterSpec((6, 2, 3, 2), "float16", "NHWC")

CONV = ConvolutionSpec((1, 2), (2, 1), 1, 2, mode="convolution", math_type="tensor_op")
CONVOLUTION = convolution_forward.problem(X, W, CONV, alpha=0.5, beta=2)
FUSED, FUSED_RESULT = (
    (X, W, TensorSpec((1, 6, 1, 1), "float16", "NHWC"), CONV, "identity"),
    CONVOLUTION.y,
)
LSTM = RNNSpec(
    "lstm", 6, 8, 2, True, projection_size=5, dropout=0.25, clip=(-1, 1), dtype="bfloat16"
)
RNN = rnn_forward.problem(
    LSTM, None, RNNDataSpec((5, 3, 6), (5, 2, 1), "bfloat16", padding_fill=-1), training=True
)
PROBLEMS = {
    "convolution_forward": CONVOLUTION,
    "convolution_backward_data": convolution_backward_data.problem(
        W, CONVOLUTION.y, CONV, out=X, alpha=0.5, beta=2
    ),
    "convolution_backward_filter": convolution_backward_filter.problem(
        X, CONVOLUTION.y, CONV, out=W, alpha=0.5, beta=2
    ),
    "convolution_bias_activation_forward": convolution_bias_activation_forward.problem(
        *FUSED, alpha=0.5
    ),
    "convolution_bias_forward": convolution_forward.problem(X, W, CONV, bias=FUSED[2], alpha=0.5),
    "convolution_bias_addition_activation_forward": convolution_bias_activation_forward.problem(
        *FUSED, z=FUSED_RESULT, out=FUSED_RESULT, alpha2=0.5
    ),
    "rnn_forward": RNN,
}


def test_what_is_added_is_scaled_by_1_as_by_the_call():
    assert convolution_bias_activation_forward.problem(*FUSED, z=FUSED_RESULT).alpha2 == 1.0


def through_json(problem):
    return problem_from_plain(json.loads(json.dumps(problem.to_plain())))


# ---------------------------------------------------------------- what fits together


def test_the_output_is_inferred():
    assert CONVOLUTION.y == TensorSpec((2, 6, 4, 9), "float16", "NHWC")
    assert CONVOLUTION.conv.compute_type == DataType.FLOAT
    assert (
        convolution_forward.problem(X, W, CONV, out=CONVOLUTION.y, alpha=0.5, beta=2) == CONVOLUTION
    )
    other = TensorSpec((2, 6, 4, 9), "float32", strides=(400, 60, 12, 1))
    assert convolution_forward.problem(X, W, CONV, out=other).y == other


WRONG = {
    "x": ({"x": (2, 4, 7, 6)}, r"x=\(2, 4, 7, 6\) is not a TensorSpec"),
    "x_filter": ({"x": W}, "x=FilterSpec.* is not a TensorSpec"),
    "w": ({"w": X}, "w=TensorSpec.* is not a FilterSpec"),
    "conv": ({"conv": None}, "conv=None is not a ConvolutionSpec"),
    "conv_number": ({"conv": 1}, "conv=1 is not a ConvolutionSpec"),
    "y": ({"y": (2, 6, 4, 9)}, r"y=\(2, 6, 4, 9\) is not a TensorSpec"),
    "y_shape": (
        {"y": TensorSpec((2, 6, 4, 8), "float16")},
        r"out has shape \(2, 6, 4, 8\); the result has",
    ),
    "y_overlap": (
        {"y": TensorSpec((2, 6, 4, 9), "float16", strides=(1, 1, 1, 1))},
        "values overlap each other",
    ),
    "channels": ({"w": FilterSpec((6, 4, 3, 2), "float16")}, "channels"),
    "groups": ({"w": FilterSpec((7, 2, 3, 2), "float16")}, "groups"),
    "dtype": ({"w": FilterSpec((6, 2, 3, 2))}, "must have the same dtype"),
    "too_large": ({"w": FilterSpec((6, 2, 30, 2), "float16")}, "30"),
    "rank": ({"w": FilterSpec((6, 2, 3), "float16")}, "rank"),
    "alpha_text": ({"alpha": "1"}, "alpha='1' must be a real number"),
    "alpha_none": ({"alpha": None}, "alpha=None must be a real number"),
    "alpha_list": ({"alpha": [1]}, r"alpha=\[1\] must be a real number"),
    "alpha_complex": ({"alpha": 1j}, "alpha=1j must be a real number"),
    "alpha_huge": ({"alpha": 10**400}, "alpha=1000.* must be a real number"),
    "beta_text": ({"beta": "0"}, "beta='0' must be a real number"),
    "beta_spec": ({"beta": X}, "beta=TensorSpec.* must be a real number"),
}


@pytest.mark.parametrize("name", WRONG)
def test_convolutions_that_are_none(name):
    changes, message = WRONG[name]
    with pytest.raises(ArgumentError, match=message):
        Problem(FORWARD, **{"x": X, "w": W, "conv": CONV} | changes)


WRONG_ARGUMENTS = {
    "x": ({"x": (2, 4, 7, 6)}, "x of type tuple is neither a TensorSpec nor a device array"),
    "x_host": ({"x": np.ones((2, 4, 7, 6))}, r"x of type ndarray is .*: handle\.array\(x\)"),
    "x_filter": ({"x": W}, "x of type FilterSpec is neither"),
    "w": ({"w": None}, "w of type NoneType is neither"),
    "out": ({"out": (2, 6, 4, 9)}, r"out of type tuple is .*: handle\.empty\(shape, dtype\)"),
    "out_shape": ({"out": X}, r"out has shape \(2, 4, 7, 6\); the result has"),
    "bias": ({"bias": 1.0}, "bias of type float is neither"),
    **{name: WRONG[name] for name in ("conv", "channels", "groups", "dtype", "alpha_text")},
}


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
def test_arguments_of_a_convolution_that_are_none(name):
    """Arrays of this library and specs say what they are; without a handle nothing else does."""
    changes, message = WRONG_ARGUMENTS[name]
    with pytest.raises(ArgumentError, match=message):
        convolution_forward.problem(**{"x": X, "w": W, "conv": CONV} | changes)


def test_a_filter_may_be_described_as_a_tensor():
    """As an array is; it is read in the layout of the images."""
    described = TensorSpec(W.shape, W.dtype, "NHWC")
    assert convolution_forward.problem(X, described, CONV, alpha=0.5, beta=2) == CONVOLUTION


WRONG_RNN = {
    "spec": ({"spec": "lstm"}, "spec='lstm' is not an RNNSpec"),
    "data": ({"data": (5, 3, 6)}, r"data=\(5, 3, 6\) is not an RNNDataSpec"),
    "training": ({"training": 1}, "training=1 is not a bool"),
    "training_none": ({"training": None}, "training=None is not a bool"),
    "size": (
        {"data": RNNDataSpec((5, 3, 7), None, "bfloat16")},
        "data=.* is not an input of RNNSpec",
    ),
    "dtype": ({"data": RNNDataSpec((5, 3, 6))}, "data=.* is not an input of RNNSpec"),
}


@pytest.mark.parametrize("name", WRONG_RNN)
def test_networks_that_are_none(name):
    changes, message = WRONG_RNN[name]
    with pytest.raises(ArgumentError, match=message):
        Problem(RNN_FORWARD, **{"spec": LSTM, "data": RNN.data, "training": False} | changes)


# ---------------------------------------------------------------- what is the same problem


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ConvolutionSpec(1), ConvolutionSpec((1, 1))),
        (ConvolutionSpec(stride=2), ConvolutionSpec(stride=[2, 2])),
        (ConvolutionSpec(dilation=1), ConvolutionSpec(dilation=(1, 1), compute_type="float32")),
        (ConvolutionSpec(mode=1), ConvolutionSpec(mode="cross_correlation", math_type="default")),
    ],
    ids=["padding", "stride", "dilation", "rest"],
)
def test_what_can_be_written_in_two_ways_is_one_problem(one, other):
    w = FilterSpec((6, 4, 3, 2), "float16", "NHWC")
    first, second = (convolution_forward.problem(X, w, conv) for conv in (one, other))
    assert first == second
    assert hash(first) == hash(second)
    assert first.to_plain() == second.to_plain()
    assert len({first, second}) == 1


@pytest.mark.parametrize(
    "scalar", [2, 2.0, np.float32(2), np.float64(2), np.int64(2), np.array(2.0)], ids=repr
)
def test_scalars_are_floats(scalar):
    problem = convolution_forward.problem(X, W, CONV, alpha=scalar, beta=scalar)
    assert type(problem.alpha) is type(problem.beta) is float
    assert problem == convolution_forward.problem(X, W, CONV, alpha=2.0, beta=2.0)
    assert through_json(problem) == problem


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_a_problem_is_a_value(problem):
    for again in (copy.copy(problem), copy.deepcopy(problem), pickle.loads(pickle.dumps(problem))):
        assert again == problem
        assert hash(again) == hash(problem)
    assert "float16" in str(problem)
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.alpha = 3


def test_kinds_are_told_apart():
    assert {*PROBLEMS} == {*TUNABLE}
    assert [problem.kind for problem in PROBLEMS.values()] == [*PROBLEMS]
    assert {problem.operation.name for problem in PROBLEMS.values()} == {*PROBLEMS}
    assert CONVOLUTION.operation is FORWARD
    assert RNN.operation is RNN_FORWARD
    assert CONVOLUTION != RNN
    assert "in training" in str(RNN)
    assert "in training" not in str(RNN.replace(training=False))


def test_the_specs_of_a_problem():
    assert specs_of(CONVOLUTION) == {"x": X, "w": W, "conv": CONVOLUTION.conv, "y": CONVOLUTION.y}
    assert specs_of(RNN) == {"spec": LSTM, "data": RNN.data}


@pytest.mark.parametrize("math_type", MathType, ids=str)
def test_the_math_type_is_the_users(math_type):
    assert (
        convolution_forward.problem(X, W, CONV.replace(math_type=math_type)).math_type == math_type
    )
    assert RNN.replace(spec=LSTM.replace(math_type=math_type)).math_type == math_type


# ---------------------------------------------------------------- how much work it is


@pytest.mark.parametrize(
    ("x", "w", "conv"),
    [
        ((2, 3, 5, 4), (4, 3, 3, 2), ConvolutionSpec(1)),
        ((1, 4, 7), (6, 2, 3), ConvolutionSpec(2, 2, 2, 2)),
        ((2, 2, 3, 4, 5), (3, 2, 2, 1, 3), ConvolutionSpec((0, 1, 1), (1, 2, 1))),
        ((3, 4, 5, 5), (8, 1, 3, 3), ConvolutionSpec(1, groups=4)),
    ],
    ids=["2d", "1d_groups", "3d", "depthwise"],
)
def test_flops_of_a_convolution_are_those_of_its_loops(x, w, conv):
    """Every multiplication and every addition of the direct sum, counted."""
    problem = convolution_forward.problem(TensorSpec(x), FilterSpec(w), conv)
    counted = 0
    for _ in itertools.product(*map(range, problem.y.shape)):
        for _ in itertools.product(*map(range, w[1:])):
            counted += 2
    assert problem.flops == counted


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("lengths", [None, (5, 2, 1)])
@pytest.mark.parametrize(
    ("cell", "options"),
    [
        ("relu", {}),
        ("tanh", {"num_layers": 3}),
        ("lstm", {"bidirectional": True}),
        ("lstm", {"num_layers": 2, "bidirectional": True, "projection_size": 5}),
        ("gru", {"num_layers": 2, "bias": "none"}),
        ("gru", {"num_layers": 2, "input_mode": "skip"}),
    ],
    ids=str,
)
def test_flops_of_a_network_are_those_of_its_matrices(cell, options, lengths, training):
    """Each value of each matrix is multiplied and added once for each step of each sequence."""
    skip = options.get("input_mode") == "skip"
    inputs = 8 if skip else 6
    spec = RNNSpec(cell, inputs, 8, **options)
    weights = random_weights(
        np.random.default_rng(0),
        cell,
        inputs,
        8,
        spec.num_layers,
        spec.bidirectional,
        spec.projection_size,
        skip_input=skip,
    )
    values = sum(array.size for name, array in weights.items() if not name.endswith(".bias"))
    steps = 15 if lengths is None else sum(lengths)
    problem = rnn_forward.problem(
        spec, None, RNNDataSpec((5, 3, inputs), lengths), training=training
    )
    assert problem.flops == 2 * values * steps


# ---------------------------------------------------------------- in JSON and back

DTYPES = ("float32", "float64", "float16", "bfloat16")


@st.composite
def convolutions(draw):
    """Draw a convolution: rank, strides, layouts, dtypes, scalars, and all fields of its spec."""
    rank = draw(st.integers(1, 3))

    def steps(low, high):
        return draw(st.one_of(st.integers(low, high), st.tuples(*[st.integers(low, high)] * rank)))

    groups, channels = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    dtype = draw(st.sampled_from(DTYPES))
    image = tuple(draw(st.integers(9, 12)) for _ in range(rank))
    shape = (draw(st.integers(0, 3)), groups * channels, *image)
    layouts = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}[rank]
    if draw(st.booleans()):
        gap = draw(st.integers(0, 3))
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size + gap)
        x = TensorSpec(shape, dtype, strides=strides)
    else:
        x = TensorSpec(shape, dtype, draw(st.sampled_from(layouts)))
    taps = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    w = FilterSpec(
        (groups * draw(st.integers(1, 4)), channels, *taps), dtype, draw(st.sampled_from(layouts))
    )
    conv = ConvolutionSpec(
        steps(0, 2),
        steps(1, 3),
        steps(1, 3),
        groups,
        mode=draw(st.sampled_from(["convolution", "cross_correlation"])),
        compute_type=draw(st.sampled_from([None, "float32", "float64"])),
        math_type=draw(st.sampled_from(MathType)),
        reorder_type=draw(st.sampled_from(["DEFAULT", "NO"])),
    )
    scalars = st.one_of(st.floats(-3.4e38, 3.4e38), st.just(math.inf), st.integers(-5, 5))
    y = None
    if draw(st.booleans()):
        y = TensorSpec(
            conv.output_shape(x.shape, w.shape),
            draw(st.sampled_from(DTYPES)),
            draw(st.sampled_from(layouts)),
        )
    return convolution_forward.problem(x, w, conv, out=y, alpha=draw(scalars), beta=draw(scalars))


@st.composite
def networks(draw):
    """Draw a network and sequences, everything that the specs have."""
    cell = draw(st.sampled_from(["relu", "tanh", "lstm", "gru"]))
    hidden, skip = draw(st.integers(1, 9)), draw(st.booleans())
    inputs = hidden if skip else draw(st.integers(1, 9))
    dtype = draw(st.sampled_from(DTYPES))
    lstm = cell == "lstm"
    clips = st.tuples(st.floats(-9, 0), st.floats(0, 9))
    spec = RNNSpec(
        cell,
        inputs,
        hidden,
        draw(st.integers(1, 3)),
        draw(st.booleans()),
        projection_size=draw(st.integers(1, hidden)) if lstm and draw(st.booleans()) else None,
        bias=draw(st.sampled_from(["none", "single_input", "single_recurrent", "double"])),
        input_mode="skip" if skip else "linear",
        dropout=draw(st.floats(0, 1, exclude_max=True)),
        clip=draw(clips) if lstm and draw(st.booleans()) else None,
        dtype=dtype,
        math_type=draw(st.sampled_from(MathType)),
    )
    lengths = sorted(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)), reverse=True)
    layout = draw(st.sampled_from(["sequence_major", "batch_major", "packed"]))
    steps = lengths[0] if layout == "packed" else lengths[0] + draw(st.integers(0, 2))
    shape = {
        "packed": (sum(lengths), inputs),
        "batch_major": (len(lengths), steps, inputs),
        "sequence_major": (steps, len(lengths), inputs),
    }[layout]
    given_lengths = None if layout != "packed" and draw(st.booleans()) else lengths
    fill = draw(st.floats(width=16))  # NaN among them
    return rnn_forward.problem(
        spec,
        None,
        RNNDataSpec(shape, given_lengths, dtype, layout, padding_fill=fill),
        training=draw(st.booleans()),
    )


@settings(max_examples=150, derandomize=True, database=None)
@given(st.one_of(convolutions(), networks()))
def test_every_problem_comes_back_from_json(problem):
    again = through_json(problem)
    assert again.operation is problem.operation
    assert again == problem
    assert hash(again) == hash(problem)
    assert str(again) == str(problem)
    assert again.to_plain() == problem.to_plain() or "nan" in str(problem.to_plain())
    for spec in specs_of(problem).values():
        plain = to_plain(spec)
        assert set(plain) == {"spec", *spec.values()}
        assert from_plain(json.loads(json.dumps(plain))) == spec


JUNK = (
    None,
    True,
    -7,
    0,
    0.5,
    float("nan"),
    10**30,
    "",
    "x",
    [],
    ["a"],
    [[]],
    [None],
    [-1],
    {},
    {"spec": "x"},
    {"spec": []},
    {"spec": {}},
    {"spec": "TensorSpec"},
    {"a": 1},
)


def places(plain, path=()):
    """Yield the path of everything inside."""
    yield path
    items = (
        plain.items()
        if isinstance(plain, dict)
        else enumerate(plain)
        if isinstance(plain, list)
        else ()
    )
    for name, inner in items:
        yield from places(inner, (*path, name))


def replaced(plain, path, value):
    """Return a copy with that one place exchanged; without it where the value is the marker."""
    if not path:
        return value
    changed = copy.copy(plain)
    if value is REMOVED and len(path) == 1:
        del changed[path[0]]
    else:
        changed[path[0]] = replaced(plain[path[0]], path[1:], value)
    return changed


REMOVED = object()


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_anything_damaged_is_refused_or_a_problem(problem):
    """Exchange every place for every kind of junk.

    The result is an ArgumentError, or a problem with that value.
    """
    plain = json.loads(json.dumps(problem.to_plain()))
    refused = 0
    for path in places(plain):
        for junk in JUNK:
            damaged = replaced(plain, path, junk)
            try:
                result = problem_from_plain(damaged)
            except ArgumentError:
                refused += 1
                continue
            except Exception as error:
                raise AssertionError(
                    f"{path} = {junk!r} raises {type(error).__name__}: {error}"
                ) from error
            assert through_json(result) == result or "nan" in str(result.to_plain()), (path, junk)
    assert refused > 300


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_what_is_missing_or_too_much_is_named(problem):
    plain = json.loads(json.dumps(problem.to_plain()))
    for path in places(plain):
        if not path or isinstance(path[-1], int):
            continue
        changed = replaced(plain, path, REMOVED)
        try:
            result = problem_from_plain(changed)
        except ArgumentError:
            continue
        assert len(path) == 1, f"{path} may be left out, and what is meant is then anybody's guess"
        left_out = set(problem.values) - set(changed)
        assert left_out <= {"conv", "activation", "y", "z", "alpha", "alpha2", "beta", "training"}
        assert result.operation is problem.operation
    with pytest.raises(ArgumentError, match="tiling"):
        problem_from_plain(plain | {"tiling": 1})
    (first, *_) = specs_of(problem)
    with pytest.raises(ArgumentError, match="tiling"):
        problem_from_plain(plain | {first: plain[first] | {"tiling": 1}})


@pytest.mark.parametrize(
    "plain",
    [
        None,
        3,
        "rnn_forward",
        [],
        {},
        {"kind": None},
        {"kind": "pooling"},
        {"kind": []},
        {"kind": {}},
        {1: 2},
    ],
    ids=str,
)
def test_what_is_no_problem(plain):
    with pytest.raises(
        ArgumentError, match=r"is not a problem; allowed: .*convolution_forward.*rnn_forward"
    ):
        problem_from_plain(plain)


@pytest.mark.parametrize(
    "plain", [None, 3, "TensorSpec", [], {}, {"spec": "Spec"}, {"spec": []}, {"spec": {}}], ids=str
)
def test_what_is_no_spec(plain):
    with pytest.raises(
        ArgumentError, match=r"w=.* is not a spec; allowed: .*TensorSpec.*RNNDataSpec"
    ):
        from_plain(plain, "w")


def test_what_has_no_plain_form():
    with pytest.raises(TypeError, match="of type object has no plain form"):
        to_plain(object())
    assert to_plain((1, [MathType.FMA, DataType.HALF], None, "a")) == [
        1,
        ["FMA", "float16"],
        None,
        "a",
    ]
    assert issubclass(ArgumentError, CudnnliteError)


@pytest.mark.parametrize("w", [None, (4, 3, 3, 2)])
def test_a_filter_gradient_of_swapped_operands_says_so(w):
    x, dy = TensorSpec((2, 3, 8, 9)), TensorSpec((2, 4, 6, 8))
    dw = None if w is None else FilterSpec(w)
    assert convolution_backward_filter.problem(x, dy, w=dw).dw.shape == (4, 3, 3, 2)
    with pytest.raises(ArgumentError, match=r"x and dy are probably swapped: x comes first$"):
        convolution_backward_filter.problem(dy, x, w=dw)
    with pytest.raises(ArgumentError, match=r"^((?!swapped).)*$"):
        convolution_backward_filter.problem(x, TensorSpec((2, 4, 9, 8)), w=dw)
