"""Record, on a GPU, what cuDNN supports of the operations that `computes` emulates.

    python -m tools.record.operations OUT.json [OPERATION ...]

For each combination that the samples name (tests/samples): the status, and the largest error
relative to the largest value, against the samples' oracles in float64.  With operations named, only
theirs are recorded; the others are those of the table that is there.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from tools.record import support as record_support
from tools.record.support import LAST

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from samples import (
    DTYPES,
    FLOATS,
    IMAGES,
    SAMPLES,
    combinations,
    hosts_of,
    operands_of_one_layout,
    reference_of,
    shapes_of,
)

import cudnnlite as dnn
from cudnnlite.errors import CudnnError
from cudnnlite.plans.request import Request
from cudnnlite.problems.catalogue import OPERATIONS

INTEGERS = DTYPES[len(FLOATS) :]
TABLE = Path(__file__).parents[2] / "tests/emulated/data/operations_support.json"
COLUMNS = ["operation", "options", "rank", "dtype", "x", "y", "y_dtype", "beta", "status", "error"]


def upload(handle, values, dtype, layout):
    """Return a device array with those values, converted; 'strided' has gaps on every axis."""
    name = {"first": None, "last": LAST.get(values.ndim)}.get(layout, layout)
    spec = record_support.spec_of(values.shape, dtype, name)
    return record_support.upload(handle, spec, values.astype(dnn.dtypes.numpy_dtype(spec.dtype)))


def operand_maker(rng, dtype):
    """Return what makes the values of one operand after the other, of a shape."""
    is_integer = dtype in INTEGERS
    stored = dnn.dtypes.numpy_dtype(dnn.dtypes.parse_dtype(dtype))
    shapes = []

    def make(shape):
        shapes.append(shape)
        if len(shapes) > 1:
            values = rng.integers(0, 5, shape) if is_integer else rng.integers(-8, 9, shape) / 4
            return values.astype(stored)
        # The first operand has no equal maxima, and values that are exact in every type.
        values = rng.permutation(int(np.prod(shape))).reshape(shape)
        return (values % 100 if is_integer else values / 64 - 3).astype(stored)

    return make


def dtype_of(sample, operand, dtype):
    """Return the data type of an operand beside others of a type."""
    return "float32" if operand in sample.wide and dtype in FLOATS[2:] else dtype


def layout_of(operation, sample, operand, layout):
    """Return the layout of an operand beside others of a layout."""
    has_no_gaps = operand in sample.packed and layout == "strided"
    return "first" if has_no_gaps or operand in operands_of_one_layout(operation) else layout


def expected_values(operation, name, hosts, options, scalars, dtypes):
    """Return what has to be written, in float64, by the samples' oracles."""
    results = reference_of(name)(*hosts.values(), **options)
    expected = {}
    for written, result in zip(operation.writes, results, strict=True):
        before = hosts.get(written, np.ones(result.shape))
        values = np.broadcast_to(result, before.shape)
        if operation.scalars_of(written) is not None:
            values = scalars["alpha"] * values + scalars["beta"] * before
        if dtypes[written] in INTEGERS:
            # An integer beyond the range of its type is the nearest one in it.
            limits = np.iinfo(dnn.dtypes.numpy_dtype(dnn.dtypes.parse_dtype(dtypes[written])))
            values = values.clip(limits.min, limits.max)
        expected[written] = values
    return expected


def record(handle, name, plain, rank, dtype, x_layout, y_layout, y_dtype, beta):
    """Return (status, error)."""
    operation, sample = OPERATIONS[name], SAMPLES[name]
    make = operand_maker(np.random.default_rng(rank), dtype)
    options = dict(sample.make(plain))
    shapes = shapes_of(name, IMAGES.get(rank, (3, 7)), plain)
    hosts = {
        operand: values.astype(np.float64)
        for operand, values in hosts_of(name, shapes, options, make).items()
    }
    scalars = {
        "alpha": 0.75 if beta and "alpha" in operation.scalars else 1.0,
        "beta": beta if "beta" in operation.scalars else 0.0,
    }
    arrays = {
        operand: upload(
            handle,
            hosts[operand],
            dtype_of(sample, operand, dtype),
            layout_of(operation, sample, operand, x_layout),
        )
        for operand in operation.reads
    }
    is_in_place = y_layout == "in_place"
    dtypes = {written: dtype_of(sample, written, y_dtype) for written in operation.writes}
    if is_in_place:
        in_place = next(arrays[operand] for operand in operation.in_place)
        dtypes[operation.writes[0]] = in_place.dtype.name
    expected = expected_values(operation, name, hosts, options, scalars, dtypes)
    outputs = {}
    for written, values in expected.items():
        if is_in_place and written == operation.writes[0]:
            outputs[written] = in_place
            continue
        before = hosts.get(written, np.ones(values.shape))
        layout = layout_of(operation, sample, written, "first" if is_in_place else y_layout)
        outputs[written] = upload(handle, before, dtypes[written], layout)
    out = tuple(outputs.values()) if len(outputs) > 1 else next(iter(outputs.values()))
    ordered = [options[option] for option in operation.options]
    try:
        Request(handle, operation, [*arrays.values()], ordered, **scalars, out=out).run()
    except CudnnError as error:
        return error.status.name, None
    except dnn.ArgumentError:
        # We do not let cuDNN compute what it computes wrongly.
        return "REFUSED_BY_US", None
    errors = [
        np.abs(outputs[written].numpy().astype(np.float64) - values).max()
        / (np.abs(values).max() or 1)
        for written, values in expected.items()
    ]
    return "SUCCESS", float(max(errors))


def recorded_rows():
    """Return (status, error) of each combination in the recorded table, by its JSON."""
    rows = json.loads(TABLE.read_text(encoding="utf-8"))["rows"]
    return {json.dumps(row[:8]): row[8:] for row in rows}


def main(path, *names, device="cuda") -> int:
    rows = []
    recorded = recorded_rows() if names else {}
    with dnn.Handle(device) as handle:
        for key in combinations():
            if key[0] in (names or SAMPLES):
                rows.append([*key, *record(handle, *key)])
            elif json.dumps(key) in recorded:
                rows.append([*key, *recorded[json.dumps(key)]])
        header = {
            "device": handle.device.name,
            "cudnn": handle.api.library.version_text,
            "columns": COLUMNS,
        }
    record_support.write(path, rows, **header)
    for (kind, status), count in sorted(Counter((row[0], row[8]) for row in rows).items()):
        print(f"{count:6} {kind} {status}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
