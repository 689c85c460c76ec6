"""What an H200 refused and computed of the operations that `computes` emulates: the emulated device is never laxer."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from record_operations import FLOATS, WINDOWS, record

import cudnnlite as dnn
from cudnnlite.emulated import pooling, softmax

ROWS = json.loads((Path(__file__).parent / "data" / "operations_support.json").read_text())["rows"]
# by how much a result may differ from float64, relative to the largest value: an H200's own errors, and some room
BOUNDS = {"float64": 1e-14, "float32": 1e-6, "float16": 1.5e-3, "bfloat16": 1.2e-2}
GROUPS = sorted({(row[0], row[1]["mode"], row[2]) for row in ROWS})


def by_emulation(kind, x, dy, options, rank):
    """Return (y, result) by the NumPy functions, in float64: what PyTorch says of them is tests/device/test_pooling.py's."""
    if kind.startswith("pooling"):
        window, padding, stride = WINDOWS[options["window"]]
        spec = dnn.PoolingSpec(window, padding, stride, mode=options["mode"], nan=options.get("nan", "propagate"))
        y = pooling.forward(x, spec)
        return y, y if kind.endswith("forward") else pooling.backward(y, dy(y.shape), x, spec)
    how = dnn.SoftmaxAlgorithm[options["algorithm"]], dnn.SoftmaxMode[options["mode"]]
    y = softmax.forward(x, *how)
    return y, y if kind.endswith("forward") else softmax.backward(y, dy(y.shape), *how)


def test_enough_was_recorded():
    assert len(ROWS) == 2808
    assert Counter(row[8] for row in ROWS)["SUCCESS"] > 2500


@pytest.mark.parametrize(("kind", "mode", "rank"), GROUPS, ids=lambda value: str(value))
def test_the_emulated_device_does_as_the_gpu_did(kind, mode, rank):
    with dnn.Handle(device="emulated") as handle:
        for row in ROWS:
            key, (status, _) = row[:8], row[8:]
            if (key[0], key[1]["mode"], key[2]) == (kind, mode, rank):
                got, error = record(handle, by_emulation, *key)
                if key[3] not in FLOATS:
                    assert got in ("NOT_SUPPORTED", "REFUSED_BY_US"), row  # integers: less than a GPU
                    continue
                assert got == status, row
                if got == "SUCCESS":
                    assert error <= BOUNDS[key[6]], row


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_gpu_was_right(dtype):
    """All that it called a success, of what we let through: against PyTorch, when it was recorded."""
    for row in ROWS:
        overflows = (
            row[1].get("algorithm") == "FAST" and dtype == "float16"
        )  # which does not subtract the largest value
        if row[3] == dtype and row[8] == "SUCCESS" and not overflows:
            assert row[9] <= BOUNDS[dtype], row
    assert np.isinf(max(row[9] for row in ROWS if row[8] == "SUCCESS" and row[3] == "float16"))
