"""The emulated device's refusals against a GPU's, which tools/record/support.py records."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import cudnnlite as dnn
from cudnnlite.emulated.support import rounds_to_tf32, why_no_engine, why_refused
from cudnnlite.problems.catalogue import OPERATIONS
from cudnnlite.specs.layout import pad_to_rank_4
from tools.record import support as record_support
from tools.record.support import CASES, combinations, further

FILES = {
    "convolution_forward": "convolution",
    "convolution_backward_data": "convolution_backward_data",
    "convolution_backward_filter": "convolution_backward_filter",
}
RECORDED = {
    name: json.loads((Path(__file__).parent / "data" / f"{file}_support.json").read_text())
    for name, file in FILES.items()
}
every_operation = pytest.mark.parametrize("name", FILES)


def algorithms_of(name):
    return [
        algorithm for algorithm in OPERATIONS[name].algorithms.kind if algorithm.name != "COUNT"
    ]


def specs_of(row):
    """Return the specs of a recorded row at the rank that cuDNN receives."""
    specs, conv = record_support.specs_of(row)
    x, w, y = specs.values()
    if x.rank == 3:
        conv = conv.replace(
            padding=(0, conv.padding), stride=(1, conv.stride), dilation=(1, conv.dilation)
        )
        x, y = (dnn.TensorSpec(s.native()[0], s.dtype, strides=s.native()[1]) for s in (x, y))
        w = dnn.FilterSpec(
            pad_to_rank_4(w.shape, filler=1), w.dtype, "NHWC" if w.layout == "NWC" else "NCHW"
        )
    return x, w, conv.replace(compute_type=conv.compute_type_for(x)), y


@every_operation
@pytest.mark.parametrize("case", sorted(CASES))
def test_refuses_exactly_what_the_gpu_refused(name, case):
    differences, compared = [], Counter()
    for row, results in RECORDED[name]["rows"]:
        if row[0] != case or any(result[0] == "BAD_PARAM" for result in results):
            # BAD_PARAM came from a descriptor, which is the real library's on both devices.
            continue
        specs = specs_of(row)
        reasons = {
            algorithm.name: why_refused(algorithm, *specs) for algorithm in algorithms_of(name)
        }
        if name != "convolution_forward":
            reasons["engine"] = why_no_engine(*specs)
        for (algorithm, why), (status, *_) in zip(reasons.items(), results, strict=True):
            compared[status] += 1
            if (why is not None) != (status == "NOT_SUPPORTED"):
                differences.append((row, algorithm, status, why))
    assert not differences
    assert compared["SUCCESS"] > 0
    assert compared["NOT_SUPPORTED"] > 0


@every_operation
def test_the_recording_is_of_the_present_combinations(name):
    recorded = {tuple(row) for row, _ in RECORDED[name]["rows"]}
    assert recorded <= {*combinations(), *(further() if name != "convolution_forward" else ())}
    assert len(recorded) > 600


@every_operation
def test_tf32_only_where_the_gpu_showed_its_error(name):
    errors = {True: [], False: []}
    for row, results in RECORDED[name]["rows"]:
        case, dtype, *_ = row
        if dtype != "float32" or "5x5" in case:  # Winograd of 5x5 has an error of its own
            continue
        _, _, conv, _ = specs_of(row)
        for algorithm, (status, error, *_) in zip(algorithms_of(name), results, strict=False):
            if status == "SUCCESS":
                errors[rounds_to_tf32(algorithm, dnn.DataType.FLOAT, conv)].append(error)
    assert max(errors[False]) < 3e-5
    assert max(errors[True]) > 1e-4
    assert max(errors[True]) < 1e-3
