"""`rnn_backward_data` and `rnn_backward_weights` give the right gradients.

The gradients are compared with PyTorch's, value by value, where it is installed, and always with
central differences of ONNX's forward pass along random directions.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers.extents import each_pair
from rnn_oracles import GATES
from tolerances import RNN_SUM

import cudnnlite as dnn

from .rnn_problems import (
    ALGORITHMS,
    BIASES,
    CELLS,
    LAYOUTS,
    LENGTHS,
    Case,
    Problem,
    each_cell,
    each_direction,
    each_layout,
    overwrite,
    sequences_of,
)

FULL, VARIABLE = LENGTHS.values()


def check(problem: Problem, algorithm: str | None = "STANDARD", **options: Any) -> None:
    """Run all passes, and compare all that they compute."""
    result = problem.forward(training=True, algorithm=algorithm, **options)
    problem.assert_forward(result, algorithm)
    problem.assert_backward(*problem.backward(result.reserve), algorithm)


# All combinations in float64, except for layouts: each layout with two biases, and each bias with
# one layout.


@each_pair(cell=CELLS, num_layers=[1, 3], bidirectional=[False, True])
def test_gradients(handle: dnn.Handle, cell: str, num_layers: int, bidirectional: bool) -> None:
    bias_layouts = dict(zip(BIASES, [(layout,) for layout in LAYOUTS], strict=False)) | {
        "double": LAYOUTS
    }
    for bias, layouts in bias_layouts.items():
        for case, layout in sequences_of(Case(cell, num_layers, bidirectional, bias), layouts):
            check(Problem(handle, case, layout))


@each_direction
@each_cell
def test_gradients_without_states(handle: dnn.Handle, cell: str, bidirectional: bool) -> None:
    """No hx, cx, dhy and dcy: they are zeros, and dhx and dcx are computed all the same."""
    for case, layout in sequences_of(
        Case(cell, 2, bidirectional, states=False), ["sequence_major", "packed"]
    ):
        check(Problem(handle, case, layout))


@each_direction
@each_cell
def test_gradients_of_skipped_input(handle: dnn.Handle, cell: str, bidirectional: bool) -> None:
    for bias, (num_layers, lengths) in product(BIASES, ((1, VARIABLE), (2, FULL))):
        check(
            Problem(handle, Case(cell, num_layers, bidirectional, bias, lengths, skip_input=True))
        )


@pytest.mark.parametrize("state", ["dhy", "dcy"])
def test_one_gradient_of_two_last_states(handle: dnn.Handle, state: str) -> None:
    problem = Problem(handle, Case("lstm", 2, True, lengths=VARIABLE))
    zero = handle.array(np.zeros_like(problem.case.values.cx))
    with_zeros = {"dhy": problem.dhy, "dcy": problem.dcy} | {
        "dcy" if state == "dhy" else "dhy": zero
    }
    alone = {state: with_zeros[state]}
    gradient_sets = []
    for gradients in (with_zeros, alone):
        reserve = problem.forward(training=True).reserve
        gradient_sets.append(dnn.rnn_backward_data(handle, reserve, problem.dy, **gradients))
    for one, other in zip(*gradient_sets, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize("steps", [1, 2, 31])
@each_layout
def test_number_of_steps(handle: dnn.Handle, layout: str, steps: int) -> None:
    for cell in ("lstm", "gru"):
        for lengths in (None, (steps, 1, (steps + 1) // 2)):
            check(Problem(handle, Case(cell, 2, True, lengths=lengths, steps=steps), layout))


@pytest.mark.parametrize(
    "lengths", [(4, 1, 2), (1, 1, 1), (4, 4, 4)], ids=lambda ls: "".join(map(str, ls))
)
@pytest.mark.parametrize("layout", ["sequence_major", "batch_major"])
def test_sequences_that_all_end_early(
    handle: dnn.Handle, layout: str, lengths: tuple[int, ...]
) -> None:
    """dy is NaN beyond the ends, x too, y what is asked for; dx is 0 there."""
    for cell in GATES:
        problem = Problem(handle, Case(cell, 2, True, lengths=lengths), layout)
        result = problem.forward(training=True, padding_fill=np.nan)
        problem.assert_backward(*problem.backward(result.reserve))


def test_two_gates_taken_for_one_another_are_seen(handle: dnn.Handle) -> None:
    """In the gradients, as in the weights."""
    problem = Problem(handle, Case("lstm", 2, True))
    data, weights = problem.backward(problem.forward(training=True).reserve)
    problem.assert_backward(data, weights)
    for kind, bias in product(("input", "recurrent"), ("", ".bias")):
        values = weights.numpy()
        first, second = (f"layer1.forward.{kind}.{gate}{bias}" for gate in "if")
        values[first], values[second] = values[second], values[first]
        with pytest.raises(AssertionError, match="weights: "):
            problem.assert_backward(data, values)


# Types, arithmetic and algorithms.

# (dtype, math type)
ARITHMETIC = {
    "float32_fma": ("float32", "FMA"),
    "float32": ("float32", "DEFAULT"),
    "float32_conversion": ("float32", "TENSOR_OP_ALLOW_CONVERSION"),
    "float16": ("float16", "DEFAULT"),
    "float16_tensor_op": ("float16", "TENSOR_OP"),
    "bfloat16": ("bfloat16", "DEFAULT"),
}
SIZES = {
    "64": Case("", 1, steps=5, batch=8, input_size=32, hidden_size=64),
    "64_layers": Case("", 2, True, steps=4, batch=4, input_size=64, hidden_size=64),
    "33": Case("", 2, steps=5, batch=3, input_size=17, hidden_size=33),
}


def check_algorithm(handle: dnn.Handle, case: Case, arithmetic: str, algorithm: str | None) -> bool:
    """Compare; False if the algorithm is refused."""
    dtype, math_type = ARITHMETIC[arithmetic]
    problem = Problem(handle, replace(case, dtype=dtype), math_type=math_type)

    def run() -> Any:
        return problem.backward(problem.forward(training=True, algorithm=algorithm).reserve)

    gradients = problem.run_or_refused(run, algorithm, backward=True)
    if gradients is None:
        return False
    problem.assert_backward(*gradients, algorithm)
    return True


@each_pair(arithmetic=ARITHMETIC, algorithm=[None, *ALGORITHMS[:3]], cell=GATES, size=SIZES)
def test_arithmetic(
    handle: dnn.Handle, arithmetic: str, algorithm: str | None, cell: str, size: str
) -> None:
    assert check_algorithm(handle, replace(SIZES[size], cell=cell), arithmetic, algorithm)


# cuDNN compiles a kernel for each: these are few.
@pytest.mark.parametrize(
    ("cell", "size", "arithmetic"),
    [("tanh", "33", "float32_fma"), ("lstm", "64_layers", "float32_fma"), ("gru", "64", "float16")],
)
def test_arithmetic_of_a_compiled_kernel(
    handle: dnn.Handle, cell: str, size: str, arithmetic: str
) -> None:
    assert check_algorithm(handle, replace(SIZES[size], cell=cell), arithmetic, "PERSIST_DYNAMIC")


@pytest.mark.parametrize("cell", ["tanh", "lstm"])
def test_an_algorithm_may_do_the_forward_pass_alone(handle: dnn.Handle, cell: str) -> None:
    """PERSIST_STATIC_SMALL_H takes larger sizes forward than backward.

    Beyond its backward limit the refusal gives the reason.
    """
    size = {"tanh": 320, "lstm": 160}[cell]
    case = Case(cell, dtype="float32", steps=2, batch=2, input_size=16, hidden_size=size)
    problem = Problem(handle, case)
    result = problem.forward(training=True, algorithm="PERSIST_STATIC_SMALL_H")
    problem.assert_forward(result, "PERSIST_STATIC_SMALL_H")
    with pytest.raises(
        dnn.NotSupportedError, match=f"hidden_size={ {'tanh': 256, 'lstm': 128}[cell] } backward"
    ):
        problem.backward(result.reserve)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("cell", ["tanh", "lstm", "gru", "lstm_projection"])
def test_narrow_types_in_every_layout(handle: dnn.Handle, cell: str, dtype: str) -> None:
    """Relu is left out: which values rounding makes 0 has no bound; the float64 test has relu."""
    for case, layout in sequences_of(Case(cell, 2, True, dtype=dtype)):
        check(Problem(handle, case, layout))


# Memory: what is added to, what is replaced, what can be used again.


@each_cell
def test_gradients_are_added_or_replaced(handle: dnn.Handle, cell: str) -> None:
    problem = Problem(handle, Case(cell, 2, True, lengths=VARIABLE))
    data, weights = problem.backward(problem.forward(training=True).reserve)
    gradients = weights.numpy()

    old = {name: 10 * values for name, values in problem.case.values.weights.items()}
    out = dnn.RNNWeights.from_arrays(handle, problem.spec, old)
    _, added = problem.backward(problem.forward(training=True).reserve, out=out, accumulate=True)
    assert added is out
    for name, values in out.numpy().items():
        np.testing.assert_allclose(values - old[name], gradients[name], rtol=1e-12, atol=1e-12)

    for values in (old, {name: np.full_like(w, np.nan) for name, w in old.items()}):
        out.update(values)
        data, replaced = problem.backward(problem.forward(training=True).reserve, out=out)
        assert replaced is out
        problem.assert_backward(data, out)


def test_gradients_of_two_batches_add_up(handle: dnn.Handle) -> None:
    """What accumulation is for: parts of a batch, one after the other."""
    problem = Problem(handle, Case("lstm", 2, True))
    values = problem.case.values
    out = dnn.RNNWeights(handle, problem.spec)
    for part in (slice(0, 1), slice(1, 3)):
        states = [handle.array(np.ascontiguousarray(state[:, part])) for state in values[2:4]]
        x, dy = (
            handle.array(np.ascontiguousarray(array[:, part])) for array in (values.x, values.dy)
        )
        back = [handle.array(np.ascontiguousarray(state[:, part])) for state in values[5:]]
        result = dnn.rnn_forward(handle, problem.spec, problem.weights, x, *states, training=True)
        dnn.rnn_backward_data(handle, result.reserve, dy, *back)
        dnn.rnn_backward_weights(handle, result.reserve, out=out, accumulate=True)
    data, _ = problem.backward(problem.forward(training=True).reserve)
    problem.assert_backward(data, out)


@each_layout
@each_cell
def test_outputs_are_written_in_full(handle: dnn.Handle, cell: str, layout: str) -> None:
    for case, _ in sequences_of(Case(cell, 2, True), [layout]):
        problem = Problem(handle, case, layout)
        out, weights = (
            problem.poisoned(problem.spec.input_size),
            dnn.RNNWeights(handle, problem.spec),
        )
        for _ in range(2):  # into the same memory again
            reserve = problem.forward(training=True).reserve
            data = dnn.rnn_backward_data(
                handle, reserve, problem.dy, problem.dhy, problem.dcy, out=out
            )
            assert all(one is other for one, other in zip(out, data, strict=False))
            assert dnn.rnn_backward_weights(handle, reserve, out=weights) is weights
            problem.assert_backward(data, weights)


@pytest.mark.parametrize("algorithm", ALGORITHMS[:3])
@pytest.mark.parametrize("cell", GATES)
def test_a_reserve_space_is_used_again(handle: dnn.Handle, cell: str, algorithm: str) -> None:
    """A training loop: the same memory, other values each time."""
    case = replace(SIZES["64_layers"], cell=cell, dtype="float32")
    problem, reserve, out = Problem(handle, case), None, None
    for other in (case, replace(case, scale=0.06), case):
        weights, x, hx, cx, *_ = other.values
        for array, values in ((problem.x, x), (problem.hx, hx), (problem.cx, cx)):
            if array is not None:
                overwrite(array, values)
        problem.weights.update(weights)
        other_problem = Problem(handle, other)  # has the gradients that come in
        problem.case = other
        problem.dy, problem.dhy, problem.dcy = (
            other_problem.dy,
            other_problem.dhy,
            other_problem.dcy,
        )
        *out, reserve = (
            part
            for part in problem.forward(
                training=True, algorithm=algorithm, out=out, reserve=reserve
            )
            if part is not None
        )
        problem.assert_backward(*problem.backward(reserve), algorithm)


@each_cell
def test_backward_data_goes_once_for_each_forward_pass(handle: dnn.Handle, cell: str) -> None:
    """cuDNN overwrites the reserve space, so a second pass is refused before it writes."""
    problem = Problem(handle, Case(cell, 2, True, lengths=VARIABLE))
    reserve = problem.forward(training=True).reserve
    data = dnn.rnn_backward_data(handle, reserve, problem.dy, problem.dhy, problem.dcy)
    out = problem.poisoned(problem.spec.input_size)
    with pytest.raises(dnn.ArgumentError, match="reserve was overwritten"):
        dnn.rnn_backward_data(handle, reserve, problem.dy, problem.dhy, problem.dcy, out=out)
    assert all(np.isnan(array.numpy()).all() for array in out)
    problem.assert_backward(data, dnn.rnn_backward_weights(handle, reserve))
    for _ in range(2):  # after another forward pass it goes again
        problem.assert_backward(
            *problem.backward(problem.forward(training=True, reserve=reserve).reserve)
        )


@each_cell
def test_backward_weights_twice_from_one_backward_data(handle: dnn.Handle, cell: str) -> None:
    problem = Problem(handle, Case(cell, 2, True, lengths=VARIABLE))
    reserve = problem.forward(training=True).reserve
    data, weights = problem.backward(reserve)
    problem.assert_backward(data, dnn.rnn_backward_weights(handle, reserve))
    single = weights.numpy()
    dnn.rnn_backward_weights(handle, reserve, out=weights, accumulate=True)
    for name, values in weights.numpy().items():
        np.testing.assert_allclose(values, 2 * single[name], rtol=1e-12, atol=1e-12)


def test_two_forward_calls_before_their_backward_calls(handle: dnn.Handle) -> None:
    """Of different lengths, on one plan; each reserve space knows its own call."""
    problems = [
        Problem(handle, Case("lstm", 2, True, lengths=lengths))
        for lengths in ((3, 5, 1), (2, 2, 4))
    ]
    reserves = [problem.forward(training=True).reserve for problem in problems]
    gradients = [
        dnn.rnn_backward_data(handle, reserve, problem.dy, problem.dhy, problem.dcy)
        for problem, reserve in zip(problems, reserves, strict=True)
    ]
    for problem, reserve, data in zip(problems[::-1], reserves[::-1], gradients[::-1], strict=True):
        problem.assert_backward(data, dnn.rnn_backward_weights(handle, reserve))


def test_the_inputs_are_kept_alive(handle: dnn.Handle) -> None:
    """By the reserve space: nobody else holds x, the states, the weights and y."""
    problem = Problem(handle, Case("gru", 2, True))
    reserve = problem.forward(training=True).reserve
    del problem.x, problem.hx, problem.weights
    for _ in range(4):  # takes memory that was given up
        handle.array(np.full((5, 3, 12), np.nan))
    problem.assert_backward(*problem.backward(reserve))


def test_order_of_the_passes(handle: dnn.Handle) -> None:
    problem = Problem(handle, Case("lstm", 2))
    reserve = problem.forward(training=True).reserve
    out = dnn.RNNWeights(handle, problem.spec)
    for accumulate in (False, True):
        with pytest.raises(dnn.ArgumentError, match="rnn_backward_data comes before"):
            dnn.rnn_backward_weights(handle, reserve, out=out, accumulate=accumulate)
    assert not any(values.any() for values in out.numpy().values())
    problem.assert_backward(*problem.backward(reserve))

    again = problem.forward(training=True, reserve=reserve).reserve
    assert again is reserve
    with pytest.raises(dnn.ArgumentError, match="rnn_backward_data comes before"):
        dnn.rnn_backward_weights(handle, reserve)
    problem.assert_backward(*problem.backward(reserve))

    with pytest.raises(dnn.ArgumentError, match="accumulate=True needs out"):
        dnn.rnn_backward_weights(handle, reserve, accumulate=True)
    with pytest.raises(dnn.ArgumentError, match="training=True"):
        dnn.rnn_backward_data(handle, problem.forward(), problem.dy)
    with pytest.raises(dnn.ArgumentError, match="without training=True"):
        problem.forward(reserve=reserve)


# Clipping.


@pytest.mark.parametrize("algorithm", ["STANDARD", "PERSIST_DYNAMIC"])
@pytest.mark.parametrize("clip", [(-0.3, 0.5), (-1e6, 1e6)], ids=["clipped", "out_of_reach"])
def test_gradients_of_clipping_are_those_of_our_own_forward_pass(
    handle: dnn.Handle, clip: tuple[float, float], algorithm: str
) -> None:
    """Compare with central differences of the forward pass in float64, which other tests check.

    No gradient passes through a clip.  A cell state within a step of the clip's ends would make the
    difference wrong by chance; there are 180, and the step is 1e-6.
    """
    lengths = FULL if algorithm == "PERSIST_DYNAMIC" else VARIABLE
    problem = Problem(handle, Case("lstm", 2, lengths=lengths, clip=clip))
    values, rng = problem.case.values, np.random.default_rng(2)
    result = problem.forward(training=True, algorithm=algorithm)
    data, weights = problem.backward(result.reserve)
    gradients = {
        "x": problem.brought_back(data.dx.numpy()),
        "hx": data.dhx.numpy(),
        "cx": data.dcx.numpy(),
    } | weights.numpy()
    start = {"x": values.x, "hx": values.hx, "cx": values.cx} | values.weights
    directions = {name: rng.standard_normal(array.shape) for name, array in start.items()}

    def loss(moved: set[str], step: float) -> float:
        at = {
            name: array + step * directions[name] * (name in moved) for name, array in start.items()
        }
        problem.weights.update({name: at[name] for name in values.weights})
        for array, name in ((problem.hx, "hx"), (problem.cx, "cx")):
            overwrite(array, at[name])
        overwrite(problem.x, problem.laid_out(at["x"]))
        result = problem.on_host(problem.forward(algorithm=algorithm))
        active = problem.active[..., None]
        return float(
            (result.y * values.dy * active).sum()
            + (result.hy * values.dhy).sum()
            + (result.cy * values.dcy).sum()
        )

    for moved in ({"x"}, {"hx"}, {"cx"}, set(values.weights)):
        expected = (loss(moved, 1e-6) - loss(moved, -1e-6)) / 2e-6
        slope = sum(float((gradients[name] * directions[name]).sum()) for name in moved)
        norm = np.sqrt(sum(float((gradients[name] ** 2).sum()) for name in moved))
        assert abs(slope - expected) <= RNN_SUM * norm, (
            f"{sorted(moved)[0]}: {slope}, by differences {expected}"
        )
