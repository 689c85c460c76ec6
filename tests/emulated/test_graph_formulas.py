"""Which graphs the emulated device serves, and their numbers, against what a GPU was seen to do.

The GPU's part was recorded by tools/record/graph_formulas.py.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from helpers.extents import each_extent, rows_of
from helpers.faults import why_wrong
from tolerances import RECORDED_GRAPH_BOUNDS

import cudnnlite as dnn
from tools.record.graph_formulas import cases, outcome

RECORDED = json.loads((Path(__file__).parent / "data" / "graph_formulas.json").read_text())
GRAPHS = cases()
ROWS = {name: (status, difference) for name, status, difference in RECORDED["rows"]}


def test_every_graph_is_recorded() -> None:
    assert [*ROWS] == [*GRAPHS]
    assert Counter(status for status, _ in ROWS.values()).most_common(2) == [
        ("SUCCESS", 338),
        ("NOT_SUPPORTED", 50),
    ]


def traits_of(name: str) -> list[str]:
    """Return each word of a graph's name with how it ended on the GPU."""
    return [f"{word} {ROWS[name][0]}" for word in name.split()]


@each_extent
@pytest.mark.parametrize("kind", sorted({name.partition(" ")[0] for name in GRAPHS}))
def test_what_is_served_and_refused(own_handle: dnn.Handle, kind: str, extent: str) -> None:
    """As on the GPU; what that computes wrongly is refused before it is planned."""
    names = [name for name in GRAPHS if name.partition(" ")[0] == kind]
    for name in rows_of(names, extent, traits_of):
        graph = GRAPHS[name]
        fault = why_wrong(graph)
        if fault is not None:
            with pytest.raises(dnn.ArgumentError, match=f"^{re.escape(fault)}"):
                graph.plan(own_handle)
            continue
        status, results = outcome(own_handle, graph)
        assert (status == "SUCCESS") == (ROWS[name][0] == "SUCCESS"), name
        assert bool(results) == (status == "SUCCESS")


def test_numbers_of_the_gpu_are_those_of_the_emulated_device() -> None:
    """Differences that were recorded, relative to the largest value."""
    compared = 0
    for name, (_, difference) in ROWS.items():
        if difference is None or why_wrong(GRAPHS[name]) is not None:
            continue
        compared += 1
        (dtype,) = RECORDED_GRAPH_BOUNDS.keys() & {*name.split()} or {"float16"}
        assert difference < RECORDED_GRAPH_BOUNDS[dtype], name
    assert compared > 300
