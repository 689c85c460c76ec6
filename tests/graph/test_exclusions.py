"""A user's own exclusions: a file of rows like those of the table of faults."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite.graph.exclusions import VARIABLE
from cudnnlite.graph.faults import why_wrong

WriteRows = Callable[[Any], Path]


@pytest.fixture
def write_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteRows:
    """Return a function that writes a file of exclusions, which the environment names."""
    names = map("faults{}.json".format, itertools.count())  # each file is read once

    def write(rows: Any) -> Path:
        path = tmp_path / next(names)
        path.write_text(json.dumps(rows))
        monkeypatch.setenv(VARIABLE, str(path))
        return path

    return write


def product() -> dnn.Graph:
    graph = dnn.Graph()
    a, b = graph.input("a", (2, 8, 16), "float16"), graph.input("b", (2, 16, 8), "float16")
    graph.output("y", graph.relu(graph.matmul(a, b)), "float16")
    return graph


def convolution() -> dnn.Graph:
    graph = dnn.Graph()
    x, w = graph.input("x", (2, 8, 9, 9)), graph.input("w", (8, 8, 3, 3))
    graph.output("y", graph.convolution_forward(x, w, dnn.ConvolutionSpec()))
    return graph


def test_an_engine_is_passed_over(write_rows: WriteRows, own_handle: dnn.Handle) -> None:
    with convolution().plan(own_handle) as plan:
        first = plan.choice.algorithm.index
    write_rows([{"operation": "CONVOLUTION_FORWARD", "engines": [first], "why": "seen wrong"}])
    with pytest.raises(dnn.ArgumentError, match=rf"seen wrong \({VARIABLE}\)"):
        convolution().plan(own_handle, engine=dnn.types.Engine(first))
    with convolution().plan(own_handle) as plan:
        assert plan.choice.algorithm.index != first
        assert any("seen wrong" in reason for _, reason in plan.choice.passed_over)


def test_a_choice_of_before_is_not_taken(write_rows: WriteRows, own_handle: dnn.Handle) -> None:
    """The heuristic chooses where a table has an engine that is excluded since."""
    with dnn.autotuned(own_handle, cache=":memory:"):
        with convolution().plan(own_handle) as plan:
            first = plan.choice.algorithm.index
        row = {"operation": "CONVOLUTION_FORWARD", "engines": [first], "why": "seen wrong"}
        write_rows([row])
        with convolution().plan(own_handle) as plan:
            assert plan.choice.algorithm.index != first


def test_no_engine_of_a_convolution_is_taken_for_a_row_without_numbers(
    write_rows: WriteRows, own_handle: dnn.Handle
) -> None:
    """The algorithms of the descriptor call are no engines, and serve it."""
    problem = dnn.convolution_forward.problem(
        dnn.TensorSpec((2, 8, 9, 9)), dnn.FilterSpec((8, 8, 3, 3))
    )
    write_rows([{"operation": "CONVOLUTION_FORWARD", "why": "no graphs"}])
    with dnn.convolution_forward.plan(own_handle, problem.x, problem.w) as plan:
        assert not isinstance(plan.choice.algorithm, dnn.types.Engine)
        assert "no graphs" in plan.choice.remark
    with pytest.raises(dnn.ArgumentError, match="no graphs"):
        dnn.convolution_forward.plan(
            own_handle, problem.x, problem.w, algorithm=dnn.types.Engine(0)
        )
    rows = dnn.Tuner(own_handle, ":memory:").tune(problem)
    assert not any(isinstance(row.algorithm, dnn.types.Engine) for row in rows)


def test_a_row_about_products_is_about_those_of_attention(
    write_rows: WriteRows, own_handle: dnn.Handle
) -> None:
    write_rows([{"operation": "MATMUL", "why": "no products"}])
    q = own_handle.array(np.ones((1, 2, 16, 32), np.float16))
    with pytest.raises(dnn.ArgumentError, match="no products"):
        dnn.scaled_dot_product_attention_forward(own_handle, q, q, q)


def test_a_graph_is_refused(write_rows: WriteRows, own_handle: dnn.Handle) -> None:
    write_rows([{"operation": "attention", "why": "we have our own"}])
    q = own_handle.array(np.ones((1, 2, 16, 32), np.float16))
    with pytest.raises(dnn.ArgumentError, match="we have our own"):
        dnn.scaled_dot_product_attention_forward(own_handle, q, q, q)
    product().plan(own_handle).close()


@pytest.mark.parametrize(
    ("since", "until", "is_meant"),
    [("9.19.0", "9.24", True), ("9.20", "9.24", False), ("9.0", "9.19.0", False), ("9.0", None, True)],
)  # fmt: skip
def test_versions(
    write_rows: WriteRows, since: str, until: str | None, is_meant: bool, own_handle: dnn.Handle
) -> None:
    """`since` is the first version that is meant, `until` the first that is not."""
    row: dict[str, Any] = {"since": since, "why": "old"}
    write_rows([row if until is None else row | {"until": until}])
    assert (why_wrong(product(), 91900) is not None) == is_meant


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"why": "no list"}, "a list of objects"),
        ([["MATMUL"]], "row 0: .* needed: an object with operation, engines"),
        ([{"why": "a"}, {"why": "b", "engine": 3}], "row 1: field 'engine'; allowed: operation"),
        ([{"operation": "MATMULT", "why": "a"}], "row 0: operation='MATMULT'; allowed"),
        ([{"engines": "7", "why": "a"}], "row 0: engines"),
        ([{"engines": [7.5], "why": "a"}], "row 0: engines"),
        ([{"engines": [7]}], "row 0: why=None; needed: the reason"),
        ([{"engines": [], "why": "a"}], r"row 0: engines=\[\]; needed: numbers from 0"),
        ([{"engines": [-3], "why": "a"}], r"row 0: engines=\[-3\]; needed"),
        (
            [{"since": "9.20", "until": "9.19", "why": "a"}],
            "row 0: since='9.20', until='9.19'; needed: since before until",
        ),
        (
            [{"until": "9.0", "why": "a"}],
            "row 0: until='9.0'; needed: since before until, from 9.0",
        ),
        ([{"since": "8.9.7", "why": "a"}], "row 0: since='8.9.7'; needed: .* from 9.0 on"),
        ([{"since": 9.19, "why": "a"}], r"row 0: since=9.19; needed: a version such as '9.28.0'"),
        ([{"until": "soon", "why": "a"}], "row 0: until='soon'"),
    ],
)
def test_a_row_of_another_form_is_named(
    write_rows: WriteRows, rows: Any, message: str, own_handle: dnn.Handle
) -> None:
    path = write_rows(rows)
    with pytest.raises(dnn.ArgumentError, match=message) as caught:
        product().plan(own_handle)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(
    write_rows: WriteRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_handle: dnn.Handle
) -> None:
    for name, content in (("missing.json", None), ("text.json", "{no"), ("folder", b"")):
        path = tmp_path / name
        if content == b"":
            path.mkdir()
        elif content is not None:
            path.write_text(str(content))
        monkeypatch.setenv(VARIABLE, str(path))
        with pytest.raises(dnn.ArgumentError, match=f"{VARIABLE}='.*{name}': it cannot be read"):
            product().plan(own_handle)


@pytest.mark.processes
def test_the_planner_for_absent_gpus_obeys(write_rows: WriteRows) -> None:
    write_rows([{"operation": "MATMUL", "why": "not here"}])
    with pytest.raises(dnn.ArgumentError, match="not here"):
        dnn.candidates(product(), "h200")


def test_a_tuner_s_policy_excludes_by_name(own_handle: dnn.Handle) -> None:
    spec = dnn.TensorSpec((2, 8, 9, 9))
    problem = dnn.convolution_forward.problem(
        spec, dnn.TensorSpec((8, 8, 3, 3)), dnn.ConvolutionSpec()
    )
    everything = dnn.Tuner(own_handle, ":memory:").tune(problem)
    names = {str(row.algorithm) for row in everything if not row.why_not}
    first = str(everything[0].algorithm)
    assert len(names) > 1
    policy = dnn.TuningPolicy(exclude=first)
    assert policy.exclude == (first,)
    for row in dnn.Tuner(own_handle, ":memory:", policy).tune(problem):
        assert (row.why_not == f"exclude has {first!r}") == (str(row.algorithm) == first)


def test_an_engine_without_knobs_is_each_of_its_configurations() -> None:
    engine = dnn.types.Engine(2, {"TILE_SIZE": 1})
    row = dnn.AlgorithmResult(engine, dnn.MathType.FMA)
    for excluded in (dnn.types.Engine(2), engine, "engine 2"):
        assert dnn.TuningPolicy(exclude=[excluded]).why_not(row, dnn.enums.DataType.FLOAT)
    assert not dnn.TuningPolicy(exclude="engine 3").why_not(row, dnn.enums.DataType.FLOAT)
    with pytest.raises(dnn.ArgumentError, match=r"exclude=\[7\]; allowed: algorithms"):
        dnn.TuningPolicy(exclude=[7])
