"""Record, on a GPU, what cuDNN supports of the operations that `emulated.operation.computes` emulates.

    python -m tools.record.operations OUT.json [OPERATION ...]

For each combination that the samples name (tests/samples): the status, and the largest error
relative to the largest value, against the samples' oracles in float64.  With operations named, only
theirs.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np

from tools.record import support as record_support
from tools.record.support import LAST

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from cudnnlite.plans.call import call
from samples import DTYPES, FLOATS, IMAGES, SAMPLES, combinations, hosts_of, reference_of, shapes_of

import cudnnlite as dnn
from cudnnlite.errors import CudnnError
from cudnnlite.problems.catalogue import OPERATIONS

COLUMNS = ["operation", "options", "rank", "dtype", "x", "y", "y_dtype", "beta", "status", "error"]


def upload(handle, values, dtype, layout):
    """Return a device array with those values, converted; 'strided' has gaps on every axis."""
    name = {"first": None, "last": LAST.get(values.ndim)}.get(layout, layout)
    spec = record_support.spec_of(values.shape, dtype, name)
    return record_support.upload(handle, spec, values.astype(dnn.dtypes.numpy_dtype(spec.dtype)))


def record(handle, name, plain, rank, dtype, x_layout, y_layout, y_dtype, beta):
    """Return (status, error)."""
    operation, sample, rng = OPERATIONS[name], SAMPLES[name], np.random.default_rng(rank)
    images, integer = IMAGES.get(rank, (3, 7)), dtype in DTYPES[len(FLOATS) :]
    stored = dnn.dtypes.numpy_dtype(dnn.dtypes.parse_dtype(dtype))

    made = []

    def make(shape):
        made.append(shape)
        if len(made) == 1:  # no equal maxima; exact in every type
            values = rng.permutation(int(np.prod(shape))).reshape(shape)
            return (values % 100 if integer else values / 64 - 3).astype(stored)
        return (rng.integers(0, 5, shape) if integer else rng.integers(-8, 9, shape) / 4).astype(
            stored
        )

    def type_of(operand, usual):
        return "float32" if operand in sample.wide and usual in FLOATS[2:] else usual

    def layout_of(operand, usual):
        packed = operand in sample.packed and usual == "strided"
        return "first" if packed or operand in operation.without_descriptor else usual

    options = dict(sample.make(plain))
    hosts = {
        n: host.astype(np.float64)
        for n, host in hosts_of(name, shapes_of(name, images, plain), options, make).items()
    }
    results = dict(
        zip(operation.writes, reference_of(name)(*hosts.values(), **options), strict=True)
    )
    scalars = {"alpha": 0.75 if beta and "alpha" in operation.scalars else 1.0}
    scalars["beta"] = beta if "beta" in operation.scalars else 0.0
    arrays = {
        n: upload(handle, hosts[n], type_of(n, dtype), layout_of(n, x_layout))
        for n in operation.reads
    }
    wanted, outs = {}, {}
    for number, (written, result) in enumerate(results.items()):
        before = hosts.get(written, np.ones(result.shape))
        in_place = y_layout == "in_place" and number == 0
        layout = "first" if y_layout == "in_place" else y_layout
        outs[written] = upload(
            handle, before, type_of(written, y_dtype), layout_of(written, layout)
        )
        if in_place:
            outs[written] = next(arrays[operand] for operand in operation.in_place)
        wanted[written] = np.broadcast_to(result, before.shape)
        if number < operation.blended_outputs:
            wanted[written] = scalars["alpha"] * wanted[written] + scalars["beta"] * before
        if (
            outs[written].dtype.name in DTYPES[len(FLOATS) :]
        ):  # an integer beyond its range is the nearest one in it
            limits = np.iinfo(dnn.dtypes.numpy_dtype(outs[written].spec.dtype))
            wanted[written] = wanted[written].clip(limits.min, limits.max)
    out = tuple(outs.values()) if len(outs) > 1 else next(iter(outs.values()))
    ordered = [options[option] for option in operation.options]
    try:
        call(handle, operation, [*arrays.values()], ordered, **scalars, out=out)
    except CudnnError as error:
        return error.status.name, None
    except dnn.ArgumentError:  # we do not let cuDNN compute what it computes wrongly
        return "REFUSED_BY_US", None
    errors = [
        np.abs(outs[n].numpy().astype(np.float64) - w).max() / (np.abs(w).max() or 1)
        for n, w in wanted.items()
    ]
    return "SUCCESS", float(max(errors))


def main(path, *names, device="cuda") -> int:
    rows = []
    with dnn.Handle(device) as handle:
        for key in combinations():
            if key[0] in (names or SAMPLES):
                rows.append([*key, *record(handle, *key)])
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
