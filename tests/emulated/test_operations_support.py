"""The operations that `computes` emulates, against what an H200 refused and computed.

The emulated device is never laxer.
"""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers.extents import each_extent, rows_of, traits
from samples import FLOATS, combinations

import cudnnlite as dnn
from tools.record import layers as record_layers
from tools.record.operations import record

ROWS = json.loads((Path(__file__).parent / "data" / "operations_support.json").read_text())["rows"]
# The largest errors against float64, relative to the largest value: those of an H200, and a margin.
BOUNDS = {"float64": 1e-14, "float32": 1e-6, "float16": 1.5e-3, "bfloat16": 1.2e-2}
GROUPS = sorted({(row[0], row[2]) for row in ROWS})


def is_at_a_kink(row):
    """Return whether some values are at a kink.

    The oracle has the slope of one side there, as PyTorch has, and an H200 that of the other.
    """
    return row[0] == "activation_backward" and row[1]["mode"] in ("CLIPPED_RELU", "ELU")


def test_all_was_recorded():
    keys = [*combinations()]
    assert [json.dumps(row[:8]) for row in ROWS] == [json.dumps(key) for key in keys]
    assert len({json.dumps(key) for key in keys}) == len(keys)
    assert Counter(row[8] for row in ROWS)["SUCCESS"] > 6500


@each_extent
@pytest.mark.parametrize(("kind", "rank"), GROUPS, ids=lambda value: str(value))
def test_the_emulated_device_does_as_the_gpu_did(kind, rank, extent):
    rows = [row for row in ROWS if (row[0], row[2]) == (kind, rank)]
    with dnn.Handle(device="emulated") as handle:
        for row in rows_of(rows, extent, lambda row: traits(row[:8], row[8])):
            check_row(row, *record(handle, *row[:8]))


def check_row(row, status, error):
    """Fail where the emulated device does not do as the GPU did."""
    dtype, y_dtype, gpu_status, gpu_error = row[3], row[6], row[8], row[9]
    if status == "REFUSED_BY_US":
        # It was refused before cuDNN was asked, which refuses it too or computes it wrongly.
        assert gpu_status != "SUCCESS" or dtype not in FLOATS, row
        return
    if dtype not in FLOATS and status == "NOT_SUPPORTED":
        # The emulated device has fewer operations on integers than a GPU.
        return
    if row[0] == "reduce_tensor" and (dtype, y_dtype) == ("float16", "float32"):
        # The table is older than the permission; an H200 reduces these.
        assert status == "SUCCESS", row
    else:
        assert status == gpu_status, row
    if status == "SUCCESS" and is_at_a_kink(row):
        assert error == pytest.approx(gpu_error, abs=BOUNDS[y_dtype]), row
    elif status == "SUCCESS":
        assert error <= BOUNDS.get(y_dtype, 0), row


@pytest.mark.parametrize(
    ("name", "operands", "options"),
    [
        (
            "lrn_forward",
            {"x": dnn.TensorSpec((1, 2, 1, 1, 1), layout="NDHWC")},
            {"norm": dnn.LRNSpec()},
        ),
        (
            "batch_normalization_inference",
            {"x": dnn.TensorSpec((2, 3, 4, 5), layout="NHWC"), "out": (2, 3, 4, 5)}
            | dict.fromkeys(("scale", "bias", "mean", "variance"), (1, 3, 1, 1)),
            {"mode": "spatial_persistent"},
        ),
        ("transform_tensor", {"x": dnn.TensorSpec((2, 3, 4, 5), "int8"), "out": (2, 3, 4, 5)}, {}),
        ("transform_tensor", {"x": dnn.TensorSpec((2, 3, 4, 5), "uint8"), "out": (2, 3, 4, 5)}, {}),
    ],
)
def test_what_no_row_covers_is_refused(name, operands, options):
    with dnn.Handle(device="emulated") as handle:
        arrays = {operand: handle.empty(shape) for operand, shape in operands.items()}
        with pytest.raises((dnn.errors.BadParamError, dnn.NotSupportedError)):
            getattr(dnn, name)(handle, **arrays, **options)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_gpu_was_right(dtype):
    """Every success of what we do not refuse, against an oracle in float64.

    Values at kinks are compared one by one with the emulated device's, by another test.
    """
    for row in ROWS:
        # FAST does not subtract the largest value
        overflows = row[1].get("algorithm") == "FAST" and dtype == "float16"
        if row[3] == dtype and row[8] == "SUCCESS" and not (overflows or is_at_a_kink(row)):
            assert row[9] <= BOUNDS[row[6]], row
    assert np.isinf(max(row[9] for row in ROWS if row[8] == "SUCCESS" and row[3] == "float16"))


LAYERS = json.loads((Path(__file__).parent / "data" / "layers_support.json").read_text())["rows"]
# The largest differences between a GPU's results and the emulated device's.  In attention these are
# due to TF32, and to roundings of float16.
DIFFERENCES = {
    "attention": 0.1,
    "ctc": 5e-4,
    "dropout": 2e-3,
    "transform_filter": 0.0,
    "fused_normalization": 2e-2,
}


@each_extent
@pytest.mark.parametrize("kind", record_layers.KINDS)
def test_the_emulated_device_does_as_the_gpu_did_of_layers(kind, extent):
    rows = [row for row in LAYERS if row[0] == kind]
    keys = [key for key in record_layers.combinations() if key[0] == kind]
    assert [json.dumps(row[:2]) for row in rows] == [json.dumps(key) for key in keys]
    assert max(difference for *_, difference in rows) <= DIFFERENCES[kind]
    keys_and_statuses = [(key, row[2]) for key, row in zip(keys, rows, strict=True)]
    with dnn.Handle(device="emulated") as handle:
        for key, statuses in rows_of(keys_and_statuses, extent, traits_of_layer):
            assert record_layers.record(handle, *key)[0] == statuses, key


def traits_of_layer(key_and_statuses):
    """Return each option of a layer with what cuDNN answered."""
    (_, options), statuses = key_and_statuses
    return traits(options.items(), statuses)
