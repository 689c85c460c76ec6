"""Chains of pointwise operations, and outputs in the middle of graphs, as an H200 computed them.

The GPU's part was recorded by tools/record/graph_chains.py.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from helpers.extents import each_extent, rows_of
from helpers.faults import why_engine_is_wrong, why_wrong

import cudnnlite as dnn
from tools.record.graph_chains import TABLE, Case, Key, combinations, is_right
from tools.record.support import upload

ROWS = {Key(*key): versions for key, versions in json.loads(TABLE.read_text())["rows"]}
BASES = ("convolution", "product", "alone", "attention")
FAULTS = ("wrong", "lost")
SMALL_VALUES = Key("convolution", "NHWC", "float16", "float16", "bias,relu slope upper")


def engines_of(key: Key) -> dict[str, set[str]]:
    """Return what became of a graph by each engine, with every version."""
    verdicts: dict[str, set[str]] = {}
    for engines in ROWS[key].values():
        for engine, verdict in engines.items():
            verdicts.setdefault(engine, set()).add(verdict)
    return verdicts


def traits_of(key: Key) -> list[str]:
    """Return each part of a key with what became of it."""
    verdicts = sorted(set().union(*engines_of(key).values()))
    parts = (*key.chain.split(","), key.layout, key.dtype, key.result, key.outputs, key.values)
    return [f"{key.base} {part} {verdicts}" for part in parts]


def test_what_was_recorded() -> None:
    assert {*ROWS} <= {*combinations()}
    counts = Counter(
        verdict
        for versions in ROWS.values()
        for engines in versions.values()
        for verdict in engines.values()
    )
    assert counts["right"] > 500
    assert counts["wrong"] > 80
    assert counts["lost"] > 5
    assert {version for versions in ROWS.values() for version in versions} == {"91900", "92800"}


@pytest.mark.parametrize("base", BASES)
def test_every_fault_is_known(base: str) -> None:
    """It is that of an engine, which is not used, or that of all, and the graph is refused."""
    for key in ROWS:
        verdicts = engines_of(key)
        # Random values behind a convolution hardly reach the fault of a slope with a clip.
        if key.base != base or key == SMALL_VALUES:
            continue
        graph = Case(key).graph
        is_refused = why_wrong(graph) is not None
        known = {
            engine
            for engine in verdicts
            if is_refused or why_engine_is_wrong(int(engine), graph, 91900) is not None
        }
        faulty = {engine for engine, verdict in verdicts.items() if verdict & {*FAULTS}}
        assert known == faulty, key


@each_extent
@pytest.mark.parametrize("base", BASES)
def test_the_emulated_device_does_as_the_gpu_did(
    own_handle: dnn.Handle, base: str, extent: str
) -> None:
    keys = [key for key in ROWS if key.base == base]
    served = 0
    for key in rows_of(keys, extent, traits_of):
        case = Case(key)
        if why_wrong(case.graph) is not None:
            continue
        has_right_engine = any(verdict == {"right"} for verdict in engines_of(key).values())
        try:
            plan = case.graph.plan(own_handle)
        except dnn.NotSupportedError:
            assert not has_right_engine, key
            continue
        assert has_right_engine, key
        with plan:
            arrays = {
                name: upload(own_handle, record.spec, case.hosts[name])
                for name, record in case.graph.inputs.items()
            }
            results = {name: array.numpy() for name, array in plan(**arrays).items()}
        assert is_right(results, case.expected, case.graph), key
        served += 1
    assert served
