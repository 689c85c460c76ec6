"""Graphs with one change: they leave the graph as it is, and are graphs themselves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import cudnnlite as dnn
from cudnnlite.graph.nearest import changes, descriptor_call


def epilogue() -> dnn.Graph:
    graph = dnn.Graph()
    a, b = graph.input("a", (3, 33, 20), "float16"), graph.input("b", (3, 20, 48), "float16")
    bias = graph.input("bias", (1, 1, 48))
    y = graph.softplus(a @ b + bias)
    graph.output("y", y, "float16")
    graph.output("total", graph.reduce("ADD", y))
    return graph


def attention() -> dnn.Graph:
    specs = {name: dnn.TensorSpec((2, 2, 36, 20), "float64") for name in "qkv"}
    graph = dnn.Graph("float64")
    q, k, v = (graph.input(name, spec.shape, spec.dtype) for name, spec in specs.items())
    probabilities, stats = graph.softmax_with_stats(graph.causal(q @ k.transposed() * 0.2))
    graph.output("stats", stats)
    graph.output("o", probabilities @ v)
    return graph


def images() -> dnn.Graph:
    graph = dnn.Graph()
    x = graph.input("x", (2, 6, 5, 4), "bfloat16")
    steps: Any = {"stride": (2, 1), "padding": ((0, 0), (1, 0))}
    graph.output("y", graph.resample_forward("MAXPOOL", x, (2, 2), **steps), "bfloat16")
    return graph


@pytest.mark.parametrize("make", [epilogue, attention, images])
def test_each_change_is_another_graph(make: Callable[[], dnn.Graph]) -> None:
    graph, before = make(), make().to_json()
    graph.freeze()
    others = [*changes(graph)]
    assert graph.to_json() == before
    assert len({change.description for change in others}) == len(others) > 4
    assert before not in {change.graph.to_json() for change in others}
    for change in others:
        assert change.graph == dnn.Graph.from_json(change.graph.to_json()), change.description
        assert set(change.graph.outputs), change.description


def test_small_changes_come_first() -> None:
    descriptions = [description for description, _ in changes(epilogue())]
    assert descriptions[:4] == [
        "with y as float32",
        "with a, b, y as bfloat16",
        "with a, b, y as float32",
        "with axes of 20 rounded up to 24",
    ]
    order = [
        *("with axes of 33 rounded up to 40", "without the last operation, REDUCTION"),
        *("up to operation 3, SOFTPLUS_FWD", "up to operation 1, MATMUL"),
        "with the result of operation 1, MATMUL, as an output",
    ]
    positions = [descriptions.index(description) for description in order]
    assert all(first < second for first, second in pairwise(positions))


def test_float64_is_left_everywhere_at_once() -> None:
    others = [change for change in changes(attention()) if "as float32" in change.description]
    descriptions = [change.description for change in others]
    assert descriptions == [
        "with stats, o as float32",
        "with q, k, v, stats, o as float32, as handle.array(values, dtype='float32') makes them",
    ]
    change = others[-1]
    assert "float64" not in str(change.graph.to_plain()["nodes"])
    assert "float64" not in str(change.graph.to_plain()["tensors"])


def test_sizes_are_rounded_everywhere() -> None:
    by_description = {change.description: change.graph for change in changes(attention())}
    graph = by_description["with axes of 20 rounded up to 24"]
    assert graph.inputs["q"].shape == graph.outputs["o"].shape == (2, 2, 36, 24)
    assert graph.inputs["q"].strides == (2 * 36 * 24, 36 * 24, 24, 1)
    (k_transposed,) = (record for record in graph.tensors if record.view_of is not None)
    assert (k_transposed.shape, k_transposed.strides[-2:]) == ((2, 2, 24, 36), (1, 24))


def test_an_operation_less() -> None:
    by_description = {change.description: change.graph for change in changes(epilogue())}
    graph = by_description["without ADD"]
    assert [row[1] for row in graph.rows()] == ["MATMUL", "SOFTPLUS_FWD", "REDUCTION"]
    assert [*graph.outputs] == ["y", "total"]


@pytest.mark.parametrize(
    ("mode", "call"),
    [
        ("RELU_FWD", "activation_forward"),
        ("TANH_BWD", "activation_backward"),
        ("MUL", "op_tensor"),
        ("IDENTITY", "transform_tensor"),
        ("ERF", None),
        ("GELU_FWD", None),
    ],
)
def test_descriptor_calls(mode: str, call: str | None) -> None:
    graph = dnn.Graph()
    operands = [graph.input(name, (4, 24, 40)) for name in ("x", "b")]
    takes_two = mode == "MUL" or mode.endswith("_BWD")
    graph.output("y", graph.pointwise(mode, *operands[: 1 + takes_two]))
    assert descriptor_call(graph) == call
    assert call is None or hasattr(dnn, call)
