"""What an H200 did of graphs with a convolution, and of its fused call: the emulated device is never laxer, and right."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

import cudnnlite as dnn
from cudnnlite._raw.enums import BackendHeurMode
from cudnnlite.graph.engines import named_by
from tools.record.graphs import CASES, combinations, graph_of, record

ROWS = json.loads((Path(__file__).parent / "data" / "graphs.json").read_text())["rows"]
# the largest error relative to the largest value, of what is multiplied in full and of what may be in TF32
BOUNDS = {"float64": 1e-13, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2, "int8": 0.0}
TF32 = 5e-3
GROUPS = sorted(
    {
        (row[0][0], row[0][1] if row[0][0] != "nan" else "", row[0][2])
        for row in ROWS
        if row[0][0] != "nan"
    }
)


def why_stricter(key):
    """Return why the emulated device may refuse a graph that an H200 took; empty where it may not.

    As `cudnnConvolutionForward` does, or because nothing here makes such graphs, or because their values were wrong.
    """
    _, _, dtype, layout, other, chain, compute, between, _ = key
    wide = "float64" if dtype == "float64" else "float32"
    if other in ("w other", "y other") or (other == "y strided" and not chain):
        return other
    if dtype == "float64" and layout == "NDHWC":
        return "float64 in NDHWC"
    if between != wide or (chain and compute != wide):
        return "tensors between in another type"
    return "row" if "row" in chain else ""  # whose values an H200 gets wrong


def test_all_was_recorded():
    assert [row[0] for row in ROWS] == json.loads(json.dumps([*combinations()]))
    counts = Counter((row[0][0], result[0]) for row in ROWS for result in row[1])
    assert counts["graph", "SUCCESS"] > 1300
    assert counts["graph", "NONE_NAMED"] > 500
    assert counts["call", "SUCCESS"] > 2500


@pytest.mark.parametrize(("kind", "case", "dtype"), GROUPS)
def test_the_emulated_device_does_as_the_gpu_did(kind, case, dtype):
    seen = Counter()
    with dnn.Handle(device="emulated") as handle:
        for key, results in ROWS:
            if (key[0], key[1], key[2]) != (kind, case, dtype):
                continue
            found = record(handle, key)
            y_dtype = dtype if kind == "graph" else key[11]
            precise = kind == "graph" or key[13] == "FMA" or dtype != "float32"
            found *= len(results) // len(found)  # a refusal of all at once
            for number, (mine, gpu) in enumerate(zip(found, results, strict=True)):
                seen[gpu[0] == "SUCCESS", mine[0] == "SUCCESS"] += 1
                if mine[0] == "SUCCESS":
                    assert gpu[0] == "SUCCESS", (key, number, mine, gpu)
                    may_round = y_dtype == "float32" and (
                        number == 1 if kind == "graph" else not precise
                    )
                    assert mine[2] <= (TF32 if may_round else BOUNDS[y_dtype]), (key, number, mine)
                elif kind == "graph" and gpu[0] == "SUCCESS":
                    assert why_stricter(key), (key, number, mine)
                elif (
                    gpu[0] == "SUCCESS"
                ):  # as strict as cudnnConvolutionForward; but the algorithm that is usual is there
                    assert (
                        number != 1
                        or any(name in (case, key[3]) for name in ("3d", "NDHWC"))
                        or "int8" in key
                        or (len({*key[3:6]}) > 1)
                    ), (key, number, mine)
    assert seen[True, True] or kind == "call"


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row[0][0] == "nan"],
    ids=lambda row: "-".join(map(str, row[0][1:])),
)
def test_what_becomes_of_a_nan(row):
    key, ((status, _, value),) = row
    assert status == "SUCCESS"
    _, _, activation, propagate, dtype = key
    with dnn.Handle(device="emulated") as handle:
        ((mine, _, got),) = record(handle, key)
    assert mine == "SUCCESS"
    if propagate or "relu" not in activation:
        assert got == value == "nan", "a promise of both"
    elif dtype != "float32":  # where an H200's strict engine lets it pass
        assert got == value == "0.0"


def test_the_gpu_was_right():
    """All that it called a success, but what the emulated device refuses for that."""
    for key, results in ROWS:
        for number, (status, engine, error) in enumerate(results):
            if status != "SUCCESS" or key[0] == "nan":
                continue
            if key[0] == "graph" and (why_stricter(key) or key[6] == "float16"):
                continue
            y_dtype = key[2] if key[0] == "graph" else key[11]
            narrow = "TENSOR_CORE" in str(engine) or key[0] == "call"
            bound = TF32 if y_dtype == "float32" and narrow else 5 * BOUNDS[y_dtype]
            assert error <= bound, (key, number, status, engine, error)


@pytest.mark.parametrize("other", ["", "0", "y"])
def test_operands_of_several_types_have_no_engine(other):
    """As was recorded of the fused call: nobody asked an H200 about graphs with them."""
    key = ("graph", "3x3", "float16", "NHWC", "NHWC", ("bias", "relu"), "float32", "float32", 1.0)
    x, w, options = CASES["3x3"]
    conv = dnn.ConvolutionSpec(**options, compute_type="float32")
    y = conv.output_shape(x, w)
    shapes = {"x": x, "w": w, "0": (1, y[1], 1, 1), "y": y}
    specs = {
        n: dnn.TensorSpec(s, "float32" if n == other else "float16", "NHWC")
        for n, s in shapes.items()
    }
    with dnn.Handle("emulated") as handle, ExitStack() as stack:
        graph = graph_of(handle, stack, key, specs, specs.pop("y"), conv)
        assert bool([*named_by(graph, BackendHeurMode.FALLBACK, stack)]) == (not other)
