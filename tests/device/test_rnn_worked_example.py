"""The LSTM of a lecture: two steps, two inputs, one hidden value.

Outputs, gradients and the training step are those of the lecture.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn

from .rnn_problems import ALGORITHMS, Case, Problem

EXAMPLE = json.loads((Path(__file__).parents[1] / "data" / "worked_examples.json").read_text())[
    "lstm_two_steps"
]
SETUP, PRINTED, EXACT = EXAMPLE["setup"], EXAMPLE["forward"], EXAMPLE["float64"]
GRADIENTS = EXAMPLE["gradients_float64"]
GATES = {"i": "i", "f": "f", "g": "a", "o": "o"}  # ours, and the lecture's name
ORDER = "ifao"  # of its gradients
# One bias a gate: beside the other one, which is zero, or alone.
BIASES = ("single_input", "single_recurrent", "double")
# The printed figures have 5 digits and are off by up to 3.4e-5.
CLOSE_TO_PRINTED, CLOSE = 1e-4, {"float32": 1e-5, "float64": 1e-13}

# Everything that may run it: the choice that is made without a word, and every algorithm.
every_way = pytest.mark.parametrize(
    ("dtype", "bias", "algorithm"),
    [
        pytest.param(*way, id="-".join(map(str, way)))
        for way in product(CLOSE, BIASES, (None, *ALGORITHMS))
        if way[2] in (None, "STANDARD")
        or way[:2] == ("float32", "double")
        or way[1:] == ("double", "PERSIST_DYNAMIC")
    ],
)


def example_weights(bias: str) -> dict[str, Any]:
    """Return the matrices and biases by our names."""
    values: dict[str, Any] = {}
    for gate, theirs in GATES.items():
        values[f"layer0.forward.input.{gate}"] = np.array([SETUP["W"][theirs]])
        values[f"layer0.forward.recurrent.{gate}"] = np.array([[SETUP["U"][theirs]]])
        for place in ("input", "recurrent"):
            if bias in ("double", f"single_{place}"):
                has_bias = place == "input" or bias == "single_recurrent"
                values[f"layer0.forward.{place}.{gate}.bias"] = np.array(
                    [SETUP["b"][theirs] if has_bias else 0.0]
                )
    return values


class Lecture(Problem):
    """The example on a handle: a Problem whose values are not random."""

    def __init__(self, handle: dnn.Handle, dtype: str, bias: str) -> None:
        case = Case(
            "lstm",
            bias=bias,
            dtype=dtype,
            steps=2,
            batch=1,
            input_size=2,
            hidden_size=1,
            states=False,
        )
        super().__init__(handle, case)
        self.weights.update(example_weights(bias))
        self.x = handle.array(np.array(SETUP["x"], self.dtype)[:, None])
        self.dy = handle.array(np.array(GRADIENTS["dy"], self.dtype)[:, None, None])

    def run(self, algorithm: str | None, **options: Any) -> Any:
        """Run it forward; return None if it is refused as the rules recorded on an H200 predict."""
        return self.run_or_refused(lambda: self.forward(algorithm=algorithm, **options), algorithm)


def assert_near(values: Any, expected: Any, allowed: float) -> None:
    np.testing.assert_allclose(
        np.ravel(values).astype(np.float64), np.ravel(expected), rtol=0, atol=allowed
    )


@every_way
def test_outputs(handle: dnn.Handle, dtype: str, bias: str, algorithm: str | None) -> None:
    """Two steps in one call, and in two, which show the state between them."""
    lecture, close = Lecture(handle, dtype, bias), CLOSE[dtype]
    result = lecture.run(algorithm)
    assert result is not None
    for allowed, out, state in (
        (CLOSE_TO_PRINTED, PRINTED["out"], PRINTED["state"]),
        (close, [EXACT["out0"], EXACT["out1"]], [EXACT["state0"], EXACT["state1"]]),
    ):
        assert_near(result.y.numpy(), out, allowed)
        assert_near(result.hy.numpy(), out[1], allowed)
        assert_near(result.cy.numpy(), state[1], allowed)

        hy = cy = None
        for step in range(2):
            x = handle.array(np.array(SETUP["x"], lecture.dtype)[step : step + 1, None])
            y, hy, cy = dnn.rnn_forward(
                handle, lecture.spec, lecture.weights, x, hy, cy, algorithm=algorithm
            )
            assert_near(y.numpy(), out[step], allowed)
            assert_near(cy.numpy(), state[step], allowed)


@every_way
def test_gradients(handle: dnn.Handle, dtype: str, bias: str, algorithm: str | None) -> None:
    lecture, close = Lecture(handle, dtype, bias), CLOSE[dtype]
    result = lecture.run(algorithm, training=True)
    assert result is not None
    # what comes in is the loss's gradient: the output less the label
    assert_near(result.y.numpy().ravel() - SETUP["labels"], GRADIENTS["dy"], close)
    data, weights = lecture.backward(result.reserve)
    assert_near(data.dx.numpy(), GRADIENTS["dx"], close)
    gradients = weights.numpy()
    for gate, theirs in GATES.items():
        at = ORDER.index(theirs)
        assert_near(
            gradients[f"layer0.forward.input.{gate}"], GRADIENTS["dW_order_i_f_a_o"][at], close
        )
        assert_near(gradients[f"layer0.forward.recurrent.{gate}"], GRADIENTS["dU"][at], close)
        biases = [values for name, values in gradients.items() if name.endswith(f".{gate}.bias")]
        assert len(biases) == (2 if bias == "double" else 1)
        for values in biases:  # both of two, whose sum is what counts
            assert_near(values, GRADIENTS["db"][at], close)


@pytest.mark.parametrize("dtype", CLOSE)
def test_a_step_of_training(handle: dnn.Handle, dtype: str) -> None:
    """The weights that gradient descent with a rate of 0.1 ends with."""
    lecture, rate = Lecture(handle, dtype, "single_input"), 0.1
    result = lecture.forward(training=True)
    lecture.dy = handle.array(
        result.y.numpy() - np.array(SETUP["labels"], lecture.dtype)[:, None, None]
    )
    _, gradients = lecture.backward(result.reserve)
    moved = gradients.numpy()
    lecture.weights.update(
        {name: values - rate * moved[name] for name, values in lecture.weights.numpy().items()}
    )
    after = lecture.weights.numpy()
    for allowed, expected in (
        (CLOSE_TO_PRINTED, EXAMPLE["published_after_update"]),
        (CLOSE[dtype], EXACT),
    ):
        for gate, theirs in GATES.items():
            assert_near(after[f"layer0.forward.input.{gate}"], expected["W"][theirs], allowed)
            assert_near(after[f"layer0.forward.recurrent.{gate}"], expected["U"][theirs], allowed)
            assert_near(after[f"layer0.forward.input.{gate}.bias"], expected["b"][theirs], allowed)


@pytest.mark.parametrize("algorithm", ALGORITHMS[1:3])
@pytest.mark.parametrize("bias", ["single_input", "single_recurrent"])
def test_a_single_bias_is_not_for_every_algorithm(
    handle: dnn.Handle, bias: str, algorithm: str
) -> None:
    with pytest.raises(dnn.NotSupportedError, match="wants bias='double'"):
        Lecture(handle, "float32", bias).forward(algorithm=algorithm)
