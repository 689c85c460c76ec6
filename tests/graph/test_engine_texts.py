"""An engine is named as it is printed."""

from __future__ import annotations

import pytest

import cudnnlite as dnn
from cudnnlite.types import Engine

X, W = dnn.TensorSpec((2, 8, 9, 9)), dnn.FilterSpec((8, 8, 3, 3))


@pytest.mark.parametrize(
    "engine", [Engine(0), Engine(38, {"TILE_SIZE": 5, "STAGES": -2}), Engine(7, {"TILE_SIZE": 0})]
)
def test_what_is_printed_is_the_engine(engine: Engine) -> None:
    assert Engine.from_text(str(engine)) == engine


@pytest.mark.parametrize("text", ["", "7", "engine", "engine -1", "engine 7 ()", "Engine 7", "FFT"])
def test_other_texts_are_no_engine(text: str) -> None:
    assert Engine.from_text(text) is None


def test_a_convolution_takes_the_text(own_handle: dnn.Handle) -> None:
    with dnn.convolution_forward.plan(own_handle, X, W, algorithm="engine 2") as plan:
        assert plan.choice.algorithm == Engine(2)


@pytest.mark.parametrize("number", [2, 0, 7, -1])
def test_a_convolution_takes_no_number(own_handle: dnn.Handle, number: int) -> None:
    """It might be an engine's, or a constant of C."""
    with pytest.raises(dnn.ArgumentError, match=f"algorithm={number}; needed: a name"):
        dnn.convolution_forward.plan(own_handle, X, W, algorithm=number)


def test_a_graph_takes_the_text(own_handle: dnn.Handle) -> None:
    graph = dnn.Graph()
    a, b = graph.input("a", (2, 8, 16), "float16"), graph.input("b", (2, 16, 8), "float16")
    graph.output("y", graph.matmul(a, b), "float16")
    with graph.plan(own_handle) as plan:
        engine = plan.choice.algorithm
    with graph.plan(own_handle, engine=str(engine)) as plan:
        assert plan.choice.algorithm == engine
    for wrong in ("FFT", 7):
        with pytest.raises(dnn.ArgumentError, match="is not an Engine; write 'engine 7'"):
            graph.plan(own_handle, engine=wrong)
