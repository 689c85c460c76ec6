"""Which graphs the emulated device serves, against what an H100 did of 1,937 of them.

The GPU's part was recorded by tools/record/graph_support.py.  Nothing is computed here.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from helpers.extents import each_extent, rows_of, traits
from helpers.faults import why_wrong
from tolerances import WRONG_GRAPH

import cudnnlite as dnn
from cudnnlite.errors import CudnnError
from cudnnlite.graph.engines import configurations
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.selection import HEURISTICS_OF_PLANS
from tools.record.graph_cases import FAMILIES, combinations

TABLE = json.loads((Path(__file__).parent / "data" / "graph_support.json").read_text())
ROWS = {tuple(key): outcome for key, outcome in TABLE["rows"]}
# An H100 serves more of these: gradients with uneven padding.
STRICTER = {"convolution"}


def is_served(handle: dnn.Handle, graph: dnn.Graph) -> bool:
    with ExitStack() as stack:
        try:
            native = lower(graph, handle, stack)
        except CudnnError:
            return False
        return bool([*configurations(native, HEURISTICS_OF_PLANS, stack)])


def is_right(outcome: list[Any]) -> bool:
    status, _, error = outcome
    return status == "SUCCESS" and error != "inf" and error < WRONG_GRAPH


def traits_of(row: tuple[Any, list[Any]]) -> list[str]:
    """Return each parameter of a graph with how it ended, and whether its numbers were right."""
    key, outcome = row
    return traits(key, outcome[0], is_right(outcome))


def test_every_graph_is_recorded() -> None:
    assert [*ROWS] == [*combinations()]
    counts = Counter(outcome[0] for outcome in ROWS.values())
    assert counts["SUCCESS"] > 900
    assert counts["NONE_NAMED"] > 700


@each_extent
@pytest.mark.parametrize("family", FAMILIES)
def test_the_emulated_device_serves_what_the_gpu_did(
    own_handle: dnn.Handle, family: str, extent: str
) -> None:
    """Never more; less where the GPU's numbers are wrong, or heads near what is wrong."""
    served = 0
    rows = [(key, outcome) for key, outcome in ROWS.items() if key[0] == family]
    for key, outcome in rows_of(rows, extent, traits_of):
        if outcome[0] == "REFUSED_BY_US":
            continue
        graph = FAMILIES[family](*key[1:]).graph
        fault = why_wrong(graph)
        if not is_right(outcome):
            assert fault is not None or outcome[0] != "SUCCESS", (key, outcome)
            assert fault is not None or not is_served(own_handle, graph), key
        elif fault is None:
            is_emulated = is_served(own_handle, graph)
            served += is_emulated
            assert is_emulated or family in STRICTER, key
        else:
            assert (family, key[1]) == ("attention", "sizes 192 and 128"), (key, fault)
    assert served or family in ("two_products", "alone")
