"""Activations that are graphs, against formulas of NumPy and their slopes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from graph_oracles import ACTIVATIONS
from helpers.extents import each_pair
from tolerances import GRAPH_BOUNDS, OPERATION_BOUNDS, assert_near

import cudnnlite as dnn
from cudnnlite.graph.problem import GraphProblem

from .problems import Array, poisoned, random_values, upload

NAMES = ("leaky_relu", "gelu", "gelu_tanh", "softplus")
DTYPES = ("float32", "float16", "bfloat16")
SHAPES: dict[str, tuple[tuple[int, ...], str | None]] = {
    "vector": ((48,), None),
    "matrix": ((6, 40), None),
    "rows": ((2, 8, 40), None),
    "images": ((2, 8, 5, 16), None),
    "channels last": ((2, 8, 5, 7), "NHWC"),
    "3-D": ((2, 4, 3, 5, 8), None),
    "one value": ((1, 1, 1, 1), None),
}
STEP = 1e-6


def function_of(name: str) -> Any:
    if name == "leaky_relu":
        return lambda x: np.where(x > 0, x, 0.01 * x)
    return ACTIVATIONS[name]


def bound_of(name: str, dtype: str) -> float:
    """Return the bound of an activation; a GPU approximates the tanh of float32."""
    bounds = GRAPH_BOUNDS["pointwise"] if name == "gelu_tanh" else OPERATION_BOUNDS
    return max(bounds[dtype], OPERATION_BOUNDS[dtype])


@each_pair(case=SHAPES, name=NAMES, dtype=DTYPES)
def test_both_directions(handle: dnn.Handle, case: str, name: str, dtype: str) -> None:
    """The gradient is the slope of the formula, by central differences in float64."""
    shape, layout = SHAPES[case]
    spec, rng = dnn.TensorSpec(shape, dtype, layout), np.random.default_rng(0)
    x_host, dy_host = (random_values(rng, shape, dtype) for _ in range(2))
    x, dy = upload(handle, spec, x_host), upload(handle, spec, dy_host)
    wide, formula = x_host.astype(np.float64), function_of(name)
    y = dnn.activation_forward(handle, x, name, out=poisoned(handle, spec))
    bound = bound_of(name, dtype)
    assert_near(y.numpy(), formula(wide), bound, 1.0)
    slope: Array = (formula(wide + STEP) - formula(wide - STEP)) / (2 * STEP)
    dx = dnn.activation_backward(handle, y, dy, x, name, out=poisoned(handle, spec))
    assert_near(dx.numpy(), dy_host.astype(np.float64) * slope, bound, 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_plans_and_problems(handle: dnn.Handle, name: str) -> None:
    host = np.random.default_rng(0).standard_normal((4, 6, 8), np.float32)
    x = handle.array(host)
    expected = function_of(name)(host.astype(np.float64))
    with dnn.activation_forward.plan(handle, x.spec, name.upper().replace("_", "-")) as plan:
        assert isinstance(plan.choice.algorithm, dnn.types.Engine)
        for _ in range(2):
            assert_near(plan(x).numpy(), expected, bound_of(name, "float32"), 1.0)
    problem = dnn.activation_forward.problem(x, name)
    assert isinstance(problem, GraphProblem)
    with problem.graph.plan(handle) as plan:
        assert_near(plan(x)["y"].numpy(), expected, bound_of(name, "float32"), 1.0)


def test_large_values(handle: dnn.Handle) -> None:
    host = np.array([[-1e4, -20.0, 0.0, 20.0, 80.0, math.inf]], np.float32)
    x = handle.array(host)
    for name in NAMES:
        y = dnn.activation_forward(handle, x, name).numpy()[0]
        np.testing.assert_allclose(y[3:], [20, 80, math.inf], rtol=1e-6)
        np.testing.assert_allclose(y[0], -100 if name == "leaky_relu" else 0, atol=1e-6)
