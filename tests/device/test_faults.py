"""The table of cuDNN's faults: each has graphs that show it, and is as bad as the table says."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import pytest

import cudnnlite as dnn
from cudnnlite._raw.library import version_number
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.faults import FAULTS, Fault, why_engine_is_wrong, why_wrong

from .fault_examples import EXAMPLES, OUTCOMES, UNSHOWN
from .processes import Process

TESTS = Path(__file__).parents[1]
by_name = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)


@by_name
def test_the_rule_sees_its_examples(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a row of the table, which only graphs of its operation ask."""
    monkeypatch.setattr("cudnnlite.graph.faults.FAULTS", (fault,))
    numbers = (n for n in itertools.count() if fault.engines is None or n in fault.engines)
    engine = next(numbers)
    version = next(version_number(text) for text, seen in fault.seen.items() if seen != "right")
    for make in EXAMPLES[fault.name]:
        graph, reason = make().graph, fault.why(make().graph)
        of_all, of_engine = (reason, None) if fault.engines is None else (None, reason)
        assert reason, make
        assert why_wrong(graph, version) == of_all
        assert why_engine_is_wrong(engine, graph, version) == of_engine


def test_each_example_is_of_a_fault() -> None:
    names = [fault.name for fault in FAULTS]
    assert len({*names}) == len(names)
    assert EXAMPLES.keys() == {*names}


@by_name
def test_what_was_seen_is_an_outcome(fault: Fault) -> None:
    assert {*fault.seen.values()} <= {*OUTCOMES}
    assert any(outcome != "right" for outcome in fault.seen.values())


@pytest.mark.gpu
@pytest.mark.processes
@by_name
def test_a_gpu_does_what_was_seen(fault: Fault) -> None:
    """With all rules off; the process may die."""
    with dnn.Handle("cuda") as handle:
        version = handle.version
    seen = {version_number(text): outcome for text, outcome in fault.seen.items()}
    worker = Process([sys.executable, "-m", "device.fault_examples", "cuda"], 60.0, 120.0)
    try:
        answer = worker.ask(fault.name)
    finally:
        worker.close()
    outcome = answer
    if isinstance(answer, list):  # only a signal that is not ours is cuDNN's end of the process
        assert re.match(r"exit -(?!9:)", answer[1]), answer
        outcome = "process"
    if version not in seen:
        pytest.xfail(f"no record of {version}: {outcome}")
    expected = {seen[version]}
    if fault.name in UNSHOWN:
        expected = {"right", "not served"}
    elif "context" in expected:  # a kernel reads beyond its memory, which may be another tensor's
        expected.add("wrong")
    assert outcome in expected, answer


A_FAULT = Fault(
    "one",
    "MATMUL",
    lambda graph: "it is",
    {"9.10.0": "right", "9.19.0": "wrong", "9.28.0": "right"},
)


@pytest.mark.parametrize(
    ("version", "is_in"),
    [(90900, False), (91000, False), (91100, True), (91900, True), (92000, True), (92800, False), (92900, False)],
)  # fmt: skip
def test_versions_that_nobody_tried(version: int, is_in: bool) -> None:
    """They have what one of their tried neighbours has, and the reason says so."""
    assert A_FAULT.is_in(version) == is_in
    reason = A_FAULT.reason(GraphData(), version)
    if version == 91900:
        assert reason == "it is"
    elif is_in:
        assert reason == f"it is (seen with cuDNN 9.19.0; nobody tried 9.{version // 100 % 100}.0)"
    else:
        assert reason is None
