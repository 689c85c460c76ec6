"""The emulated device's refusals against what a GPU refused (recorded by record_support.py)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from record_support import CASES, combinations, spec_of

import cudnnlite as dnn
from cudnnlite.emulated.support import multiplies_in_tf32, refusal
from cudnnlite.specs.layout import as_four

RECORDED = json.loads((Path(__file__).parent / "data" / "convolution_support.json").read_text())
ALGORITHMS = list(dnn.ConvolutionFwdAlgo)[:8]


def specs_of(row):
    """Return the specs of a recorded row at the rank that cuDNN is told."""
    case, dtype, x_layout, w_layout, y_dtype, y_layout, math, _beta, compute = row
    x_shape, w_shape, options = CASES[case]
    conv = dnn.ConvolutionSpec(**options, math_type=math, compute_type=compute)
    x = spec_of(x_shape, dtype, x_layout)
    y = spec_of(conv.output_shape(x_shape, w_shape), y_dtype, y_layout)
    w = dnn.FilterSpec(w_shape, dtype, w_layout)
    if len(x_shape) == 3:
        conv = dnn.ConvolutionSpec(
            **options | {name: (fill, options.get(name, fill)) for name, fill in (("stride", 1), ("dilation", 1))},
            math_type=math,
            compute_type=compute,
        ).replace(padding=(0, options.get("padding", 0)))
        x, y = (dnn.TensorSpec(s.native()[0], s.dtype, strides=s.native()[1]) for s in (x, y))
        w = dnn.FilterSpec(as_four(w.shape, missing=1), dtype, "NHWC" if w_layout == "NWC" else "NCHW")
    return x, w, conv.replace(compute_type=conv.compute_type_for(x)), y


@pytest.mark.parametrize("case", sorted(CASES))
def test_refuses_exactly_what_the_gpu_refused(case):
    differences, compared = [], Counter()
    for row, results in RECORDED["rows"]:
        if row[0] != case or any(result[0] == "BAD_PARAM" for result in results):
            continue  # BAD_PARAM came from a descriptor, which is the real library's on both devices
        specs = specs_of(row)
        for algorithm, (status, *_) in zip(ALGORITHMS, results, strict=True):
            refused = refusal(algorithm, *specs) is not None
            compared[status] += 1
            if refused != (status == "NOT_SUPPORTED"):
                differences.append((row, algorithm.name, status, refusal(algorithm, *specs)))
    assert not differences
    assert compared["SUCCESS"] > 0
    assert compared["NOT_SUPPORTED"] > 0


def test_the_recording_is_of_the_present_combinations():
    recorded = {tuple(row) for row, _ in RECORDED["rows"]}
    assert recorded <= set(combinations())
    assert len(recorded) > 600


def test_tf32_only_where_the_gpu_showed_its_error():
    errors = {True: [], False: []}
    for row, results in RECORDED["rows"]:
        case, dtype, *_ = row
        if dtype != "float32" or "5x5" in case:  # Winograd of 5x5 has an error of its own
            continue
        _, _, conv, _ = specs_of(row)
        for algorithm, (status, error, *_) in zip(ALGORITHMS, results, strict=True):
            if status == "SUCCESS":
                errors[multiplies_in_tf32(algorithm, dnn.DataType.FLOAT, conv)].append(error)
    assert max(errors[False]) < 2e-5
    assert max(errors[True]) > 1e-4
    assert max(errors[True]) < 1e-3
