"""`rnn_forward` gives the right numbers.

The tests vary the network, its sequences, the arithmetic and the algorithm.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from helpers.extents import each_pair
from rnn_oracles import GATES

import cudnnlite as dnn

from .rnn_problems import (
    ALGORITHMS,
    BIASES,
    CELLS,
    LENGTHS,
    Case,
    Problem,
    each_cell,
    each_direction,
    each_layout,
    each_length,
    overwrite,
    sequences_of,
)

SMALL_H = "PERSIST_STATIC_SMALL_H"


# All combinations in float64, where swapped gates cannot pass. Each test takes all lengths and
# layouts, with and without first states; the message of an error says which it was.


@each_pair(cell=CELLS, num_layers=[1, 3], bidirectional=[False, True], bias=BIASES)
def test_network(
    handle: dnn.Handle, cell: str, num_layers: int, bidirectional: bool, bias: str
) -> None:
    for states in (True, False):
        for case, layout in sequences_of(
            Case(cell, num_layers, bidirectional, bias, states=states)
        ):
            problem = Problem(handle, case, layout)
            problem.assert_forward(problem.forward())


@pytest.mark.parametrize(
    ("cell", "one", "other"),
    [
        pytest.param(cell, one, other, id=f"{cell}-{one}{other}")
        for cell in ("lstm", "gru")
        for one, other in combinations(GATES[cell], 2)
    ],
)
def test_two_gates_taken_for_one_another_are_seen(
    handle: dnn.Handle, cell: str, one: str, other: str
) -> None:
    """The comparison of these tests fails if two matrices or biases of one layer are swapped."""
    problem = Problem(handle, Case(cell, 2, True, lengths=LENGTHS["variable"]))
    problem.assert_forward(problem.forward())
    for kind, bias in product(("input", "recurrent"), ("", ".bias")):
        first, second = (f"layer1.backward.{kind}.{gate}{bias}" for gate in (one, other))
        values = dict(problem.case.values.weights)
        values[first], values[second] = values[second], values[first]
        problem.weights.update(values)
        with pytest.raises(AssertionError, match="relative L2 error"):
            problem.assert_forward(problem.forward())


@pytest.mark.parametrize("moved", ["layers", "directions", "input_and_recurrent_bias"])
def test_parts_taken_for_one_another_are_seen(handle: dnn.Handle, moved: str) -> None:
    """The two biases of a GRU's new gate are not one sum, so that even these show."""
    problem = Problem(handle, Case("gru", 3, True))
    ways = {
        "layers": lambda name: name.translate(str.maketrans("12", "21")),
        "directions": lambda name: (
            name.replace("forward", "x").replace("backward", "forward").replace("x", "backward")
        ),
        "input_and_recurrent_bias": lambda name: (
            name
            if not name.endswith("n.bias")
            else name.replace("input", "x").replace("recurrent", "input").replace("x", "recurrent")
        ),
    }
    values = problem.case.values.weights
    problem.weights.update({name: values[ways[moved](name)] for name in values})
    with pytest.raises(AssertionError, match="relative L2 error"):
        problem.assert_forward(problem.forward())


@each_pair(cell=CELLS, bidirectional=[False, True], training=[False, True])
def test_skipped_input(handle: dnn.Handle, cell: str, bidirectional: bool, training: bool) -> None:
    for bias, (num_layers, lengths) in product(BIASES, ((1, None), (2, LENGTHS["variable"]))):
        case = Case(cell, num_layers, bidirectional, bias, lengths, skip_input=True)
        problem = Problem(handle, case)
        assert not any(
            "layer0.forward.input" in name and "bias" not in name for name in problem.weights
        )
        problem.assert_forward(problem.forward(training=training))


@each_length
@each_cell
def test_training_computes_the_same(handle: dnn.Handle, cell: str, lengths: str) -> None:
    problem = Problem(handle, Case(cell, 3, True, lengths=LENGTHS[lengths]))
    result = problem.forward(training=True)
    assert isinstance(result, dnn.types.RNNTrainingOutput)
    assert result.reserve.nbytes > 0
    problem.assert_forward(result)


@pytest.mark.parametrize("only", ["hx", "cx"])
def test_one_first_state_of_two(handle: dnn.Handle, only: str) -> None:
    problem = Problem(handle, Case("lstm", 2, True))
    zero = handle.array(np.zeros_like(problem.case.values.cx))
    with_zeros = {"hx": problem.hx, "cx": problem.cx} | {"cx" if only == "hx" else "hx": zero}
    alone = {only: with_zeros[only]}
    results = [
        dnn.rnn_forward(handle, problem.spec, problem.weights, problem.x, **states)
        for states in (with_zeros, alone)
    ]
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


# Types, arithmetic and algorithms.

# (dtype, math type)
ARITHMETIC = {
    "float32_fma": ("float32", "FMA"),
    "float32": ("float32", "DEFAULT"),
    "float32_tensor_op": ("float32", "TENSOR_OP"),
    "float32_conversion": ("float32", "TENSOR_OP_ALLOW_CONVERSION"),
    "float16": ("float16", "DEFAULT"),
    "float16_fma": ("float16", "FMA"),
    "float16_tensor_op": ("float16", "TENSOR_OP"),
    "bfloat16": ("bfloat16", "DEFAULT"),
    "bfloat16_tensor_op": ("bfloat16", "TENSOR_OP"),
}
# 64 suits every kernel, 33 none.
SIZES = {
    "64": Case("", 1, steps=7, batch=8, input_size=32, hidden_size=64),
    "64_layers": Case("", 2, True, steps=4, batch=4, input_size=64, hidden_size=64),
    "33": Case("", 2, steps=5, batch=3, input_size=17, hidden_size=33),
}


def check_algorithm(handle: dnn.Handle, case: Case, arithmetic: str, algorithm: str | None) -> None:
    dtype, math_type = ARITHMETIC[arithmetic]
    problem = Problem(handle, replace(case, dtype=dtype), math_type=math_type)
    result = problem.run_or_refused(lambda: problem.forward(algorithm=algorithm), algorithm)
    if result is not None:
        assert result.y.spec.dtype == problem.spec.dtype
        problem.assert_forward(result, algorithm)


@each_pair(
    arithmetic=ARITHMETIC,
    algorithm=[None, "STANDARD", "PERSIST_STATIC", SMALL_H],
    cell=GATES,
    size=SIZES,
)
def test_arithmetic(
    handle: dnn.Handle, arithmetic: str, algorithm: str | None, cell: str, size: str
) -> None:
    check_algorithm(handle, replace(SIZES[size], cell=cell), arithmetic, algorithm)


# cuDNN compiles a kernel for each: these are few.
@pytest.mark.parametrize(
    ("cell", "size", "arithmetic"),
    [
        ("relu", "33", "float32_fma"),
        ("tanh", "64", "float32"),
        ("lstm", "64_layers", "float32_fma"),
        ("lstm", "33", "float16"),
        ("gru", "64", "float32_conversion"),
        ("gru", "33", "bfloat16"),
    ],
)
def test_arithmetic_of_a_compiled_kernel(
    handle: dnn.Handle, cell: str, size: str, arithmetic: str
) -> None:
    check_algorithm(handle, replace(SIZES[size], cell=cell), arithmetic, "PERSIST_DYNAMIC")


def test_a_compiled_kernel_in_float64(handle: dnn.Handle) -> None:
    """PERSIST_DYNAMIC alone does float64, and it alone is built again for another batch size."""
    for batch in (3, 5):
        problem = Problem(handle, Case("lstm", 1, True, batch=batch))
        result = problem.run_or_refused(
            lambda problem=problem: problem.forward(algorithm="PERSIST_DYNAMIC"), "PERSIST_DYNAMIC"
        )
        assert result is not None
        problem.assert_forward(result, "PERSIST_DYNAMIC")


@pytest.mark.parametrize("algorithm", [None, "PERSIST_STATIC", SMALL_H])
@pytest.mark.parametrize("cell", GATES)
def test_persistent_kernels_in_other_layouts(
    handle: dnn.Handle, cell: str, algorithm: str | None
) -> None:
    for layout in ("batch_major", "packed"):
        problem = Problem(handle, replace(SIZES["64_layers"], cell=cell, dtype="float32"), layout)
        result = problem.run_or_refused(
            lambda: problem.forward(algorithm=algorithm),  # noqa: B023
            algorithm,
        )
        if result is not None:
            problem.assert_forward(result, algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS[1:3])
@pytest.mark.parametrize("cell", GATES)
def test_persistent_kernels_with_skipped_input(
    handle: dnn.Handle, cell: str, algorithm: str
) -> None:
    for bidirectional in (False, True):
        case = Case(
            cell,
            2,
            bidirectional,
            skip_input=True,
            dtype="float32",
            hidden_size=64,
            steps=4,
            batch=8,
        )
        problem = Problem(handle, case)
        result = problem.run_or_refused(
            lambda: problem.forward(algorithm=algorithm),  # noqa: B023
            algorithm,
        )
        if result is not None:
            problem.assert_forward(result, algorithm)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@each_cell
def test_narrow_types_in_every_layout(handle: dnn.Handle, cell: str, dtype: str) -> None:
    for case, layout in sequences_of(Case(cell, 2, True, dtype=dtype)):
        problem = Problem(handle, case, layout)
        problem.assert_forward(problem.forward(), None)


# Lengths and padding.


@each_pair(
    dtype=["float64", "float32", "float16", "bfloat16"],
    layout=["sequence_major", "batch_major"],
    fill=[0.0, 7.5, -np.inf, np.nan],
)
def test_padding_is_filled(handle: dnn.Handle, dtype: str, layout: str, fill: float) -> None:
    """Padding is filled beyond each sequence's end, and beyond the longest sequence.

    x holds NaN there, on which no result depends.
    """
    for bidirectional, lengths in product(
        (False, True), ((3, 5, 1), (4, 1, 2), (1, 1, 1), (4, 4, 4))
    ):
        problem = Problem(
            handle, Case("gru", 2, bidirectional, lengths=lengths, dtype=dtype), layout
        )
        out = problem.poisoned(problem.spec.output_size)
        problem.assert_forward(problem.forward(padding_fill=fill, out=out), None, fill)


def test_full_lengths_may_be_told(handle: dnn.Handle) -> None:
    problem = Problem(handle, Case("lstm", 2, True))
    expected = problem.on_host(problem.forward())
    for lengths in ([5, 5, 5], (5, 5, 5), np.array([5, 5, 5])):
        result = problem.on_host(problem.forward(lengths=lengths))
        for one, other in zip(result, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("steps", [1, 2, 31])
@each_layout
def test_number_of_steps(handle: dnn.Handle, layout: str, steps: int) -> None:
    for lengths in (None, (steps, 1, (steps + 1) // 2)):
        problem = Problem(handle, Case("lstm", 2, True, lengths=lengths, steps=steps), layout)
        problem.assert_forward(problem.forward())


@pytest.mark.parametrize("batch", [1, 2, 33])
@pytest.mark.parametrize("cell", GATES)
def test_batch(handle: dnn.Handle, cell: str, batch: int) -> None:
    problem = Problem(
        handle, Case(cell, 2, dtype="float32", hidden_size=32, input_size=8, batch=batch, steps=4)
    )
    for algorithm in (None, "STANDARD"):
        problem.assert_forward(problem.forward(algorithm=algorithm), algorithm)


def test_smallest_network(handle: dnn.Handle) -> None:
    for cell in GATES:
        problem = Problem(handle, Case(cell, steps=1, batch=1, input_size=1, hidden_size=1))
        problem.assert_forward(problem.forward())


def test_the_state_carries_over(handle: dnn.Handle) -> None:
    """A sequence in two pieces gives what it gives in one.

    On the device, hy and cy go into the next call unchanged.
    """
    problem = Problem(handle, Case("lstm", 2))
    x = problem.case.values.x
    run = [handle, problem.spec, problem.weights]
    y1, hy, cy = dnn.rnn_forward(*run, handle.array(x[:2]), problem.hx, problem.cx)
    y2, hy, cy = dnn.rnn_forward(*run, handle.array(x[2:]), hy, cy)
    y = handle.array(np.concatenate([y1.numpy(), y2.numpy()]))
    problem.assert_forward(dnn.types.RNNOutput(y, hy, cy))


# Clipping.

# An H200 keeps the bounds in single precision, so these are exact in it.
CLIPS = {
    "both": (-0.3125, 0.5),
    "below": (-0.3125, np.inf),
    "above": (-np.inf, 0.375),
    "one_value": (0.25, 0.25),
}


@each_length
@each_direction
@pytest.mark.parametrize("cell", ["lstm", "lstm_projection"])
@pytest.mark.parametrize("clip", CLIPS)
def test_clipping(
    handle: dnn.Handle, clip: str, cell: str, bidirectional: bool, lengths: str
) -> None:
    """Clipped is what is read of a cell state, cx too; cy is not."""
    low, high = CLIPS[clip]
    case = Case(cell, 2, bidirectional, lengths=LENGTHS[lengths], clip=(low, high))
    (expected,) = case.results
    assert low == -np.inf or (expected.cy < low).any()
    assert high == np.inf or (expected.cy > high).any()
    problem = Problem(handle, case)
    problem.assert_forward(problem.forward())


@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS[:3]])
@pytest.mark.parametrize("clip", ["both", "above"])
def test_clipping_by_every_algorithm(handle: dnn.Handle, clip: str, algorithm: str | None) -> None:
    case = Case(
        "lstm", 2, clip=CLIPS[clip], dtype="float32", hidden_size=64, input_size=32, batch=8
    )
    problem = Problem(handle, case)
    result = problem.run_or_refused(lambda: problem.forward(algorithm=algorithm), algorithm)
    if result is not None:
        problem.assert_forward(result, algorithm)


def test_wide_clipping_changes_nothing(handle: dnn.Handle) -> None:
    plain = Problem(handle, Case("lstm", 2, True))
    for clip in ((-1e6, 1e6), (-np.inf, np.inf)):
        problem = Problem(handle, Case("lstm", 2, True))
        problem.spec = problem.spec.replace(clip=clip)
        plain.assert_forward(problem.forward())


# Memory: what is written, and what is read again.


@each_layout
@each_cell
def test_outputs_are_written_in_full(handle: dnn.Handle, cell: str, layout: str) -> None:
    for case, _ in sequences_of(Case(cell, 2, True), [layout]):
        problem = Problem(handle, case, layout)
        for training in (False, True):
            out = problem.poisoned(problem.spec.output_size)
            result = problem.forward(out=out, training=training)
            assert all(one is other for one, other in zip(out, result, strict=False))
            problem.assert_forward(result)
        again = problem.poisoned(problem.spec.output_size)
        problem.assert_forward(problem.forward(out=again, training=True, reserve=result.reserve))


@pytest.mark.parametrize("algorithm", ALGORITHMS[:3])
@pytest.mark.parametrize("cell", GATES)
def test_outputs_are_written_in_full_by_every_algorithm(
    handle: dnn.Handle, cell: str, algorithm: str
) -> None:
    problem = Problem(handle, replace(SIZES["64_layers"], cell=cell, dtype="float32"))
    out = problem.poisoned(problem.spec.output_size)
    result = problem.run_or_refused(
        lambda: problem.forward(out=out, algorithm=algorithm), algorithm
    )
    assert result is not None
    problem.assert_forward(result, algorithm)


def test_values_are_read_anew(handle: dnn.Handle) -> None:
    """The same arrays, at the same places, with other values."""
    case = Case("lstm", 2, True)
    problem, out = Problem(handle, case), None
    for other in (case, replace(case, scale=0.5), replace(case, scale=0.25), case):
        weights, x, hx, cx, *_ = other.values
        for array, values in ((problem.x, x), (problem.hx, hx), (problem.cx, cx)):
            overwrite(array, values)
        problem.weights.update(weights)
        problem.case = other
        out = problem.forward(out=out)
        problem.assert_forward(out)


def test_one_matrix_is_read_anew(handle: dnn.Handle) -> None:
    problem = Problem(handle, Case("gru", 2))
    problem.assert_forward(problem.forward())
    values = problem.case.values.weights
    for name in values:
        problem.weights[name] = np.zeros_like(values[name])
    assert not any(array.any() for array in problem.weights.numpy().values())
    for name in values:
        problem.weights[name] = values[name]
    problem.assert_forward(problem.forward())


def test_inputs_are_left_alone(handle: dnn.Handle) -> None:
    problem = Problem(handle, Case("lstm", 2, True, lengths=LENGTHS["variable"]))
    problem.forward(training=True)
    values = problem.case.values
    np.testing.assert_array_equal(problem.x.numpy(), problem.laid_out(values.x))
    for array, expected in ((problem.hx, values.hx), (problem.cx, values.cx)):
        np.testing.assert_array_equal(array.numpy(), expected)
    for name, weights in problem.weights.numpy().items():
        np.testing.assert_array_equal(weights, values.weights[name])
