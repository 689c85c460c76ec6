"""The RNN oracles agree with each other, and differ if two weights are swapped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rnn_oracles import (
    BIASES,
    GATES,
    HAS_TORCH,
    onnx_directional_derivative,
    onnx_rnn,
    random_weights,
    torch_rnn,
    torch_rnn_gradients,
)

EXAMPLE = json.loads((Path(__file__).parents[1] / "data" / "worked_examples.json").read_text())[
    "lstm_two_steps"
]
CELLS = {cell: (cell, None) for cell in GATES} | {"lstm_projection": ("lstm", 2)}
LENGTHS = {"full": None, "variable": (3, 5, 1, 3), "with_empty": (0, 5, 3, 5)}
T, N, H = 5, 4, 4
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
each_cell = pytest.mark.parametrize("name", CELLS)


def problem(
    name: str, input_size: int = 3, num_layers: int = 1, bidirectional: bool = False, **options: Any
) -> tuple:
    """Return the cell and random weights, x, hx and cx."""
    cell, projection = CELLS[name]
    rng = np.random.default_rng(len(name) + 10 * num_layers + bidirectional)
    weights = random_weights(
        rng, cell, input_size, H, num_layers, bidirectional, projection, **options
    )
    states = num_layers * (1 + bidirectional)
    hx, cx = rng.standard_normal((states, N, projection or H)), rng.standard_normal((states, N, H))
    return (
        cell,
        weights,
        rng.standard_normal((T, N, input_size)),
        hx,
        cx if cell == "lstm" else None,
    )


def assert_same(result: Any, other: Any) -> None:
    for values, expected in zip(result, other, strict=True):
        assert (values is None) == (expected is None)
        if values is not None:
            np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-12)


@needs_torch
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("bidirectional", [False, True], ids=["uni", "bi"])
@pytest.mark.parametrize("num_layers", [1, 3])
@each_cell
def test_oracles_agree(name: str, num_layers: int, bidirectional: bool, lengths: str) -> None:
    cell, weights, x, hx, cx = problem(name, num_layers=num_layers, bidirectional=bidirectional)
    result = onnx_rnn(cell, weights, x, hx, cx, LENGTHS[lengths])
    assert_same(result, torch_rnn(cell, weights, x, hx, cx, LENGTHS[lengths]))
    assert_same(onnx_rnn(cell, weights, x), torch_rnn(cell, weights, x))  # the states are 0


@needs_torch
@pytest.mark.parametrize("skip_input", [False, True], ids=["linear", "skip"])
@pytest.mark.parametrize("bias", BIASES)
@each_cell
def test_oracles_agree_on_biases_and_skipped_inputs(name: str, bias: str, skip_input: bool) -> None:
    cell, weights, x, hx, cx = problem(name, H, 2, True, bias=bias, skip_input=skip_input)
    assert any(key.endswith(".bias") for key in weights) == (bias != "none")
    assert ("layer0.backward.input." + GATES[cell][0] in weights) != skip_input
    result = onnx_rnn(cell, weights, x, hx, cx, LENGTHS["variable"])
    assert_same(result, torch_rnn(cell, weights, x, hx, cx, LENGTHS["variable"]))


@needs_torch
@pytest.mark.parametrize(
    ("num_layers", "bidirectional", "lengths", "options"),
    [
        (1, False, "full", {}),
        (3, True, "variable", {}),
        (2, False, "with_empty", {"bias": "single_recurrent", "skip_input": True}),
    ],
    ids=["simple", "3_layers_bi_variable", "skip_with_empty"],
)
@each_cell
def test_gradients_agree(
    name: str, num_layers: int, bidirectional: bool, lengths: str, options: dict
) -> None:
    cell, weights, x, hx, cx = problem(name, H, num_layers, bidirectional, **options)
    rng = np.random.default_rng(1)
    shapes = [None if a is None else a.shape for a in onnx_rnn(cell, weights, x, hx, cx)]
    dy, dhy, dcy = (None if shape is None else rng.standard_normal(shape) for shape in shapes)
    result, torch_gradients = torch_rnn_gradients(
        cell, weights, x, dy, dhy, dcy, hx, cx, LENGTHS[lengths]
    )
    assert_same(result, torch_rnn(cell, weights, x, hx, cx, LENGTHS[lengths]))
    assert set(torch_gradients.weights) == set(weights)

    gradients = {
        "x": torch_gradients.dx,
        "hx": torch_gradients.dhx,
        "cx": torch_gradients.dcx,
        **torch_gradients.weights,
    }
    gradients = {key: gradient for key, gradient in gradients.items() if gradient is not None}
    everything = {key: rng.standard_normal(gradient.shape) for key, gradient in gradients.items()}
    parts = [{key: everything[key]} for key in ("x", "hx", "cx") if key in everything]
    for direction in [everything, *parts]:
        expected = onnx_directional_derivative(
            cell, weights, x, hx, cx, LENGTHS[lengths], dy, dhy, dcy, direction
        )
        derivative = sum((gradients[key] * moved).sum() for key, moved in direction.items())
        assert derivative == pytest.approx(expected, rel=1e-7, abs=1e-7)


def example() -> tuple:
    """Return the worked example's weights and x; the lecture calls g a."""
    setup = EXAMPLE["setup"]
    weights = {}
    for gate in "ifgo":
        name = "a" if gate == "g" else gate
        weights[f"layer0.forward.input.{gate}"] = np.array([setup["W"][name]])
        weights[f"layer0.forward.recurrent.{gate}"] = np.array([[setup["U"][name]]])
        weights[f"layer0.forward.input.{gate}.bias"] = np.array([setup["b"][name]])
    return weights, np.array(setup["x"], np.float64)[:, None]


def test_worked_example() -> None:
    weights, x = example()
    result = onnx_rnn("lstm", weights, x)
    expected = EXAMPLE["float64"]
    np.testing.assert_allclose(result.y.ravel(), [expected["out0"], expected["out1"]], rtol=1e-12)
    np.testing.assert_allclose(result.hy.ravel(), [expected["out1"]], rtol=1e-12)
    np.testing.assert_allclose(result.cy.ravel(), [expected["state1"]], rtol=1e-12)
    one_step = onnx_rnn("lstm", weights, x, lengths=[1])
    np.testing.assert_allclose(one_step.cy.ravel(), [expected["state0"]], rtol=1e-12)


def test_worked_example_differentiated() -> None:
    weights, x = example()
    expected = EXAMPLE["gradients_float64"]
    gradients = {"x": np.array(expected["dx"])[:, None]}
    for number, gate in enumerate("ifgo"):
        gradients[f"layer0.forward.input.{gate}"] = np.array([expected["dW_order_i_f_a_o"][number]])
        gradients[f"layer0.forward.recurrent.{gate}"] = np.array([expected["dU"][number]])
        gradients[f"layer0.forward.input.{gate}.bias"] = np.array([expected["db"][number]])
    dy = np.array(expected["dy"]).reshape(2, 1, 1)
    for key, gradient in gradients.items():
        for at in np.ndindex(gradient.shape):
            direction = np.zeros(gradient.shape)
            direction[at] = 1
            derivative = onnx_directional_derivative(
                "lstm", weights, x, None, None, None, dy, None, None, {key: direction}
            )
            assert derivative == pytest.approx(gradient[at], abs=1e-9), (key, at)
