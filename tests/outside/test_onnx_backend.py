"""ONNX judges the program that runs its models, by its own tests of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.examples import example_module

import cudnnlite as dnn

from .onnx_backend import cases, judge, missing_operation


@pytest.fixture(scope="module")
def program() -> Iterator[Any]:
    """The module of examples/, found as a script there finds it."""
    with example_module("onnx_network") as module:
        yield module


def test_nodes_of_onnx(handle: dnn.Handle, program: Any) -> None:
    """None is wrong, and each refusal is the program's own."""
    asked = [case for case in cases() if not missing_operation(case, program)]
    outcomes = [judge(handle, case, program) for case in asked]
    assert [outcome for outcome in outcomes if outcome[0] == "wrong"] == []
    right = sum(outcome == "right" for outcome, _ in outcomes)
    assert right > 220
    assert len(asked) > 290
