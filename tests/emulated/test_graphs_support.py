"""Graphs with a convolution, and its fused call: the emulated device against an H200's results.

It is never laxer, and its numbers are right.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers.extents import ALL, SAMPLE, each_extent, rows_of, traits

import cudnnlite as dnn
from cudnnlite._raw.enums import BackendHeurMode
from cudnnlite.graph.engines import named_by
from tools.record.graphs import CASES, combinations, graph_of, record

ROWS = json.loads((Path(__file__).parent / "data" / "graphs.json").read_text())["rows"]
# The largest errors, relative to the largest value: of products in full precision, and in TF32.
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
    """Return why the emulated device may refuse a graph that an H200 took, or "" if it may not.

    `cudnnConvolutionForward` refuses it too, or nothing here makes such graphs, or the H200's
    values were wrong.
    """
    _, _, dtype, layout, other, chain, compute, between, _ = key
    wide = "float64" if dtype == "float64" else "float32"
    if other in ("w other", "y other") or (other == "y strided" and not chain):
        return other
    if dtype == "float64" and layout == "NDHWC":
        return "float64 in NDHWC"
    if between != wide or (chain and compute != wide):
        return "tensors between in another type"
    # An H200's values of additions of a row are wrong.
    return "row" if "row" in chain else ""


def traits_of(row):
    """Return each parameter of a graph with how its engines, or its calls, ended."""
    key, results = row
    return [(key[0], key[2], trait) for trait in traits(key, [status for status, *_ in results])]


SAMPLES = {extent: rows_of(ROWS, extent, traits_of) for extent in (SAMPLE, ALL)}


def test_all_was_recorded():
    assert [row[0] for row in ROWS] == json.loads(json.dumps([*combinations()]))
    counts = Counter((row[0][0], result[0]) for row in ROWS for result in row[1])
    assert counts["graph", "SUCCESS"] > 1300
    assert counts["graph", "NONE_NAMED"] > 500
    assert counts["call", "SUCCESS"] > 2500


@each_extent
@pytest.mark.parametrize(("kind", "case", "dtype"), GROUPS)
def test_the_emulated_device_does_as_the_gpu_did(kind, case, dtype, extent):
    outcomes = Counter()
    rows = [row for row in SAMPLES[extent] if row[0][:3] == [kind, case, dtype]]
    with dnn.Handle(device="emulated") as handle:
        for key, gpu_results in rows:
            results = record(handle, key)
            # A refusal of all at once stands for each.
            results *= len(gpu_results) // len(results)
            pairs = zip(results, gpu_results, strict=True)
            for number, (result, gpu_result) in enumerate(pairs):
                check_result(key, number, result, gpu_result)
                outcomes[gpu_result[0] == "SUCCESS", result[0] == "SUCCESS"] += 1
    assert outcomes[True, True] or kind == "call"


def check_result(key, number, result, gpu_result):
    """Fail where the emulated device is laxer than a GPU, wrong, or stricter without a reason."""
    status, _, error = result
    gpu_status = gpu_result[0]
    if status == "SUCCESS":
        assert gpu_status == "SUCCESS", (key, number, result, gpu_result)
        assert error <= bound_of(key, number), (key, number, result)
    elif gpu_status == "SUCCESS" and key[0] == "graph":
        assert why_stricter(key), (key, number, result)
    elif gpu_status == "SUCCESS":
        # It is as strict as cudnnConvolutionForward, but has the algorithm that is usual.
        assert number != 1 or may_lack_the_usual_algorithm(key), (key, number, result)


def bound_of(key, number):
    """Return the largest error that a result may have."""
    is_graph = key[0] == "graph"
    dtype = key[2]
    y_dtype = dtype if is_graph else key[11]
    may_round = number == 1 if is_graph else key[13] != "FMA" and dtype == "float32"
    return TF32 if y_dtype == "float32" and may_round else BOUNDS[y_dtype]


def may_lack_the_usual_algorithm(key):
    """Return whether the fused call's IMPLICIT_PRECOMP_GEMM may be refused."""
    is_3d = any(name in (key[1], key[3]) for name in ("3d", "NDHWC"))
    has_several_layouts = len({*key[3:6]}) > 1
    return is_3d or "int8" in key or has_several_layouts


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
        ((emulated_status, _, emulated_value),) = record(handle, key)
    assert emulated_status == "SUCCESS"
    if propagate or "relu" not in activation:
        assert emulated_value == value == "nan", "a promise of both"
    elif dtype != "float32":
        # In float32 an H200's strict engine lets the NaN pass.
        assert emulated_value == value == "0.0"


def test_the_gpu_was_right():
    """Every success, except what the emulated device refuses because it is wrong."""
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


@pytest.mark.parametrize("other", ["", "operand_0", "y"])
def test_operands_of_several_types_have_no_engine(other):
    """As was recorded of the fused call: nobody asked an H200 about graphs with them."""
    key = ("graph", "3x3", "float16", "NHWC", "NHWC", ("bias", "relu"), "float32", "float32", 1.0)
    x, w, options = CASES["3x3"]
    conv = dnn.ConvolutionSpec(**options, compute_type="float32")
    y = conv.output_shape(x, w)
    shapes = {"x": x, "w": w, "operand_0": (1, y[1], 1, 1), "y": y}
    specs = {
        n: dnn.TensorSpec(s, "float32" if n == other else "float16", "NHWC")
        for n, s in shapes.items()
    }
    with dnn.Handle("emulated") as handle, ExitStack() as stack:
        graph = graph_of(handle, stack, key, specs, specs.pop("y"), conv)
        assert bool([*named_by(graph, BackendHeurMode.FALLBACK, stack)]) == (not other)
