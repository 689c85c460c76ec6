"""Plans of graphs: what is asked of an engine, and what cuDNN computes wrongly and is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tolerances import RECORDED_GRAPH_BOUNDS, assert_near

import cudnnlite as dnn

from .problems import poisoned, random_values

Array = np.ndarray[Any, Any]


class Operands:
    """Random operands on the device, and beside them what they hold, in float64."""

    def __init__(self, handle: dnn.Handle, seed: int = 0) -> None:
        self.handle = handle
        self.rng = np.random.default_rng(seed)

    def make(
        self, shape: tuple[int, ...], dtype: str, order: tuple[int, ...] | None = None
    ) -> tuple[dnn.DeviceArray, Array]:
        """Return an array whose axes lie in memory in the order given, and its values."""
        values = random_values(self.rng, shape, dtype)
        strides = None
        if order is not None:
            strides = [0] * len(shape)
            step = 1
            for axis in reversed(order):
                strides[axis] = step
                step *= shape[axis]
        spec = dnn.TensorSpec(shape, dtype, strides=strides)
        array = self.handle.empty(spec)
        array.copy_from(values)
        return array, values.astype(np.float64)

    def poisoned(self, shape: tuple[int, ...], dtype: str) -> dnn.DeviceArray:
        return poisoned(self.handle, dnn.TensorSpec(shape, dtype))


def epilogue_graph(dtype: str = "float16") -> dnn.Graph:
    """Return relu(a b * factor + bias)."""
    graph = dnn.Graph()
    a = graph.input("a", (2, 24, 40), dtype)
    b = graph.input("b", (2, 40, 56), dtype)
    bias = graph.input("bias", (1, 1, 56), dtype)
    factor = graph.scalar("factor", 0.5)
    graph.output("y", graph.relu(a @ b * factor + bias), dtype)
    return graph


def epilogue_operands(operands: Operands) -> tuple[dict[str, dnn.DeviceArray], Array]:
    """Return its inputs, and what it computes of them."""
    made = {
        name: operands.make(shape, "float16")
        for name, shape in {"a": (2, 24, 40), "b": (2, 40, 56), "bias": (1, 1, 56)}.items()
    }
    a, b, bias = (values for _, values in made.values())
    return {name: array for name, (array, _) in made.items()}, np.maximum(a @ b * 0.5 + bias, 0)


def test_a_plan_takes_what_it_was_asked_for(handle: dnn.Handle) -> None:
    operands = Operands(handle)
    arrays, expected = epilogue_operands(operands)
    graph = epilogue_graph()
    with graph.plan(handle, deterministic=True, workspace_limit="64 MiB") as plan:
        assert plan.choice.deterministic
        assert plan.workspace <= 64 << 20
        engine = plan.choice.algorithm
        expected_bits = plan(**arrays)["y"].numpy()
    with graph.plan(handle, engine=engine) as plan:
        assert plan.choice.algorithm == engine
        np.testing.assert_array_equal(plan(**arrays)["y"].numpy(), expected_bits)
    assert_near(expected_bits, expected, RECORDED_GRAPH_BOUNDS["float16"])


def test_a_product_in_true_float32_is_refused(handle: dnn.Handle) -> None:
    """An H100 multiplies in TF32, also by the engine that does not note it."""
    graph = dnn.Graph()
    a, b = graph.input("a", (2, 24, 40)), graph.input("b", (2, 40, 56))
    graph.output("y", a @ b)
    operands = Operands(handle)
    (a_array, a_values), (b_array, b_values) = (
        operands.make(shape, "float32") for shape in ((2, 24, 40), (2, 40, 56))
    )
    with pytest.raises(dnn.NotSupportedError, match="math type FMA was asked for"):
        graph.plan(handle, math_type="fma")
    with graph.plan(handle) as plan:
        assert plan.choice.math_type == dnn.MathType.DEFAULT
        assert_near(
            plan(a=a_array, b=b_array)["y"].numpy(),
            a_values @ b_values,
            RECORDED_GRAPH_BOUNDS["float32"],
        )


def test_a_product_of_two_views_of_one_tensor(handle: dnn.Handle) -> None:
    graph = dnn.Graph()
    x = graph.input("x", (2, 24, 40), "float16")
    graph.output("y", x @ x.transposed())
    operands = Operands(handle)
    array, values = operands.make((2, 24, 40), "float16")
    with graph.plan(handle) as plan:
        y = plan(x=array)["y"]
    assert_near(y.numpy(), values @ values.swapaxes(1, 2), RECORDED_GRAPH_BOUNDS["float16"])


def test_the_functions_of_an_operation_that_is_a_graph(handle: dnn.Handle) -> None:
    a, b = dnn.TensorSpec((2, 24, 40), "float16"), dnn.TensorSpec((2, 40, 56), "float16")
    graph = dnn.matmul.graph(a, b, activation="relu")
    assert graph == dnn.matmul.graph(a, b, activation="relu")
    assert graph != dnn.matmul.graph(a, b, activation="gelu")
    assert [*graph.inputs], [*graph.outputs] == (["a", "b"], ["y"])
    with pytest.raises(dnn.ArgumentError, match=r"matmul\.graph\("):
        dnn.matmul.problem(a, b)
    operands = Operands(handle)
    a_array, a_values = operands.make(a.shape, "float16")
    b_array, b_values = operands.make(b.shape, "float16")
    with dnn.matmul.plan(handle, a, b, activation="relu") as plan:
        y = plan(a_array, b_array)["y"]
    assert_near(y.numpy(), np.maximum(a_values @ b_values, 0), RECORDED_GRAPH_BOUNDS["float16"])
