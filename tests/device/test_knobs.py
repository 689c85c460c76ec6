"""The search over engines' knobs.

It ends within its seconds and follows the policy, and its result is a choice like any other.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite._raw.enums import BackendKnobType
from cudnnlite.autotune.convolution import operands_of, rules_of
from cudnnlite.autotune.knobs import FINALISTS, search_knobs
from cudnnlite.enums import MathType
from cudnnlite.graph.engines import Knob, knobs_of, neighbours
from cudnnlite.operations.convolution.engines import engine_rows, shared_graph
from cudnnlite.operations.convolution.graphs import graph_of

from .problems import Problem
from .test_memory import used
from .test_tuner import hurry

PROBLEM = dnn.convolution_forward.problem(
    dnn.TensorSpec((2, 8, 14, 13), "float32", "NHWC"),
    dnn.FilterSpec((6, 8, 3, 2), "float32", "NHWC"),
    dnn.ConvolutionSpec(padding=1, math_type="fma"),
)


def policy(**fields: Any) -> dnn.TuningPolicy:
    """Return a policy that has the knobs searched."""
    return dnn.TuningPolicy(
        **{"search": "knobs", "search_seconds": 1.5, "interface": "graph", **fields}
    )


def test_a_knob_of_few_values_is_tried_whole_and_one_of_many_nearby() -> None:
    few, many = Knob(BackendKnobType.TILE_SIZE, 0, 3, 1), Knob(BackendKnobType.SPLIT_K, 1, 255, 1)
    assert few.near(2) == [0, 1, 3]
    assert few.near(None) == [0, 1, 2, 3]
    assert many.near(8) == [7, 9, 4, 16, 1, 255]
    assert many.near(255) == [254, 127, 1]
    every_fourth = Knob(BackendKnobType.STAGES, 4, 200, 4)
    assert every_fourth.near(40) == [36, 44, 20, 80, 4, 200]
    near = list(
        neighbours(dnn.Engine(7, {"TILE_SIZE": 1}), (few, Knob(BackendKnobType.STAGES, 0, 1, 1)))
    )
    assert near[:3] == [dnn.Engine(7, {"TILE_SIZE": value}) for value in (0, 2, 3)]
    assert near[3:] == [dnn.Engine(7, {"TILE_SIZE": 1, "STAGES": value}) for value in (0, 1)]


def test_an_engine_tells_its_knobs(handle: dnn.Handle) -> None:
    with ExitStack() as stack:
        graph = graph_of(handle, PROBLEM, stack)
        for row in engine_rows(graph, PROBLEM):
            ranges = {knob.kind: knob for knob in knobs_of(graph, row.algorithm.index)}
            for kind, value in row.algorithm.choices:
                is_engine_choice = (
                    value == -1
                )  # the engine's own choice, outside of the range that cuDNN tells
                assert is_engine_choice or ranges[kind].least <= value <= ranges[kind].most, (
                    row.algorithm,
                    kind,
                )


def test_what_has_no_engines_says_that_it_has_no_knobs(handle: dnn.Handle) -> None:
    lstm = dnn.rnn_forward.problem(dnn.RNNSpec("lstm", 4, 8), None, dnn.RNNDataSpec((3, 2, 4)))
    for search, has_remark in (("knobs", True), ("heuristics", False)):
        with dnn.Tuner(handle, cache=":memory:", policy=policy(search=search)) as tuner:
            for problem in (lstm, PROBLEM):
                table = tuner.tune(problem)
                assert ("no knobs searched" in table.timing) == (has_remark and problem is lstm)


def test_what_is_found_is_new_keeps_the_promises_and_is_right(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    with ExitStack() as stack:
        engines = {
            row.algorithm for row in engine_rows(shared_graph(handle, PROBLEM, stack), PROBLEM)
        }
    with dnn.Tuner(handle, cache=":memory:", policy=policy()) as tuner:
        table = tuner.tune(PROBLEM)
    knob_rows = [row for row in table if "found by its knobs" in row.remark]
    assert 1 <= len(knob_rows) <= FINALISTS
    assert "settings of knobs tried" in table.timing
    problem = Problem(
        handle, PROBLEM.x.shape, PROBLEM.w.shape, "float32", "NHWC", padding=1, math_type="fma"
    )
    for row in knob_rows:
        assert row.algorithm not in engines
        assert row.math_type == MathType.FMA
        if row.ok:
            y = dnn.convolution_forward(handle, problem.x, problem.w, problem.conv, algorithm=row)
            np.testing.assert_allclose(y.numpy(), problem.expected(), rtol=1e-4, atol=1e-5)


def test_it_ends_and_leaves_nothing(handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    operands = operands_of(handle, PROBLEM)
    arrays = {"x": operands["x"], "w": operands["w"], "y": operands["out"]}
    handle.stream = handle.device.create_stream()
    for _ in range(2):
        before = used(handle.device)
        with ExitStack() as stack:
            graph = shared_graph(handle, PROBLEM, stack)
            engines = [row.algorithm for row in engine_rows(graph, PROBLEM) if not row.why_not]
            limits = policy(search_seconds=0.3)
            rules = rules_of(graph, PROBLEM, limits)
            result = search_knobs(graph, rules, arrays, engines, limits)
    assert result.trials >= result.runs >= 1
    assert used(handle.device) == before


def test_a_limit_of_the_workspace_holds(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    with dnn.Tuner(handle, cache=":memory:", policy=policy(workspace_limit=0)) as tuner:
        table = tuner.tune(PROBLEM)
    assert all(row.workspace == 0 for row in table if "knobs" in row.remark)


def test_the_bar_is_on_stderr_and_only_when_asked_for(
    handle: dnn.Handle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    for progress in (False, True):
        with dnn.Tuner(
            handle, cache=":memory:", policy=policy(search_seconds=0.2), progress=progress
        ) as tuner:
            tuner.tune(PROBLEM)
        out, err = capsys.readouterr()
        assert out == ""
        assert ("settings ran" in err) == progress


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"search": "all"}, "search='all'; allowed: 'heuristics', 'engines', 'knobs'"),
        ({"search_seconds": 0}, "search_seconds=0; needed: a number of seconds above 0"),
        ({"search_seconds": float("nan")}, "search_seconds=nan"),
        ({"search_seconds": True}, "search_seconds=True"),
        ({"search_seconds": "10"}, "search_seconds='10'"),
    ],
)
def test_bad_policies(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(dnn.ArgumentError, match=message):
        dnn.TuningPolicy(**fields)


def test_an_engine_is_a_value_of_pythons_own_numbers() -> None:
    engine = dnn.Engine(np.int64(3), {"STAGES": np.int64(2)})
    assert json.loads(json.dumps(engine.to_plain())) == dnn.Engine(3, {"STAGES": 2}).to_plain()
