"""Record, on a GPU, what cuDNN supports of the operations that `emulated.operation.computes` emulates.

    python tests/emulated/record_operations.py OUT.json

For each combination below: the status, and the largest error relative to the largest value, against PyTorch in float64 on the
CPU, which this script alone needs.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import record_support

import cudnnlite as dnn
from cudnnlite.errors import CudnnError

LAST = {3: "NWC", 4: "NHWC", 5: "NDHWC"}
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32")
FLOATS = DTYPES[:4]
IMAGES = {3: (2, 4, 17), 4: (2, 4, 12, 9), 5: (2, 4, 7, 6, 9)}
WINDOWS = {  # window, padding, stride
    "2": (2, 0, None), "3": (3, 1, 2), "3_padded": (3, 2, 1), "5_overlapping": (5, 1, 1), "1": (1, 0, 2), "6": (6, 3, 3),
}  # fmt: skip
MODES = ("MAX", "MAX_DETERMINISTIC", "AVERAGE_COUNT_INCLUDE_PADDING", "AVERAGE_COUNT_EXCLUDE_PADDING")


def spec_of(shape, dtype, layout):
    """Return a TensorSpec; 'strided' has gaps on every axis."""
    return record_support.spec_of(shape, dtype, {"first": None, "last": LAST.get(len(shape))}.get(layout, layout))


def upload(handle, values, spec):
    """Return a device array of that spec with those values, converted."""
    return record_support.upload(handle, spec, values.astype(dnn.dtypes.numpy_dtype(spec.dtype)))


def combinations():
    """Yield the keys of rows: operation, options, rank, dtype, layouts of what is read and written, dtype written, beta."""
    for kind in ("pooling_forward", "pooling_backward"):
        for window, mode, rank, dtype in itertools.product(WINDOWS, MODES, IMAGES, FLOATS):
            for layout in ("first", "last", "strided"):
                yield kind, {"window": window, "mode": mode}, rank, dtype, layout, layout, dtype, 0.0
        for dtype, mode, layout in itertools.product(DTYPES[4:], MODES, ("first", "last")):
            yield kind, {"window": "2", "mode": mode}, 4, dtype, layout, layout, dtype, 0.0
        for (one, other), dtype, mode in itertools.product(
            itertools.permutations(("first", "last", "strided"), 2), FLOATS, MODES[1:3]
        ):
            yield kind, {"window": "3", "mode": mode}, 4, dtype, one, other, dtype, 0.0
        for dtype, mode, rank in itertools.product(FLOATS, MODES, (4, 5)):
            yield kind, {"window": "3", "mode": mode}, rank, dtype, "first", "first", dtype, 0.5
        for dtype, other in itertools.permutations(FLOATS, 2):
            yield kind, {"window": "3", "mode": "MAX"}, 4, dtype, "first", "first", other, 0.0
        yield (
            kind,
            {"window": "3", "mode": "MAX", "nan": "NOT_PROPAGATE"},
            4,
            "float32",
            "first",
            "first",
            "float32",
            0.0,
        )
    for kind in ("softmax_forward", "softmax_backward"):
        for algorithm, mode, rank, dtype in itertools.product(
            ("FAST", "ACCURATE", "LOG"), ("CHANNEL", "INSTANCE"), (2, 3, 4, 5), FLOATS
        ):
            for layout in ("first", "last", "strided") if rank > 2 else ("first", "strided"):
                yield kind, {"algorithm": algorithm, "mode": mode}, rank, dtype, layout, layout, dtype, 0.0
            yield kind, {"algorithm": algorithm, "mode": mode}, rank, dtype, "first", "first", dtype, 0.5
        for (one, other), dtype, mode in itertools.product(
            itertools.permutations(("first", "last", "strided"), 2), FLOATS, ("CHANNEL", "INSTANCE")
        ):
            yield kind, {"algorithm": "ACCURATE", "mode": mode}, 4, dtype, one, other, dtype, 0.0
        for dtype, other in itertools.permutations(FLOATS, 2):
            yield kind, {"algorithm": "ACCURATE", "mode": "CHANNEL"}, 4, dtype, "first", "first", other, 0.0
        for dtype in DTYPES[4:]:
            yield kind, {"algorithm": "ACCURATE", "mode": "CHANNEL"}, 4, dtype, "first", "first", dtype, 0.0


def torch_pooling(torch, x, options, rank):
    window, padding, stride = WINDOWS[options["window"]]
    axes = rank - 2
    if options["mode"].startswith("MAX"):
        padded = torch.nn.functional.pad(x, (padding, padding) * axes, value=-float("inf"))
        return getattr(torch.nn.functional, f"max_pool{axes}d")(padded, window, stride)
    padded = torch.nn.functional.pad(x, (padding, padding) * axes)
    pool = getattr(torch.nn.functional, f"avg_pool{axes}d")
    sums = pool(padded, window, stride)
    if options["mode"].endswith("EXCLUDE_PADDING"):
        ones = torch.nn.functional.pad(torch.ones_like(x), (padding, padding) * axes)
        return sums / pool(ones, window, stride)
    return sums


def by_torch(kind, x, dy, options, rank):
    """Return (y, result) by PyTorch in float64."""
    import torch

    leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    if kind.startswith("pooling"):
        y = torch_pooling(torch, leaf, options, rank)
    else:
        flat = leaf.reshape(leaf.shape[0], -1) if options["mode"] == "INSTANCE" else leaf
        soft = torch.log_softmax if options["algorithm"] == "LOG" else torch.softmax
        y = soft(flat, 1).reshape(leaf.shape)
    if kind.endswith("forward"):
        return y.detach().numpy(), y.detach().numpy()
    (y * torch.tensor(dy(tuple(y.shape)), dtype=torch.float64)).sum().backward()
    return y.detach().numpy(), leaf.grad.numpy()


def record(handle, expected, kind, options, rank, dtype, x_layout, y_layout, y_dtype, beta):
    """Return (status, error)."""
    rng = np.random.default_rng(rank)
    shape = IMAGES.get(rank, (3, 7))
    integer = dtype in DTYPES[4:]
    x = rng.permutation(int(np.prod(shape))).reshape(shape)  # no equal maxima; exact in every type
    x = x % 100 if integer else x / 64 - 3
    gradients = {}

    def dy(size):
        return gradients.setdefault(size, rng.integers(-8, 9, size) / 4 if not integer else rng.integers(0, 5, size))

    x = x.astype(dnn.dtypes.numpy_dtype(dnn.dtypes.parse_dtype(dtype))).astype(np.float64)
    y, wanted = expected(kind, x, dy, options, rank)
    call = {"alpha": 0.75 if beta else 1.0, "beta": beta}
    if kind.startswith("pooling"):
        window, padding, stride = WINDOWS[options["window"]]
        extra = (dnn.PoolingSpec(window, padding, stride, mode=options["mode"], nan=options.get("nan", "propagate")),)
    else:
        extra, call = (), call | options
    x_array = upload(handle, x, spec_of(shape, dtype, x_layout))
    backward = kind.endswith("backward")
    out_shape = shape if backward else y.shape
    before = np.ones(out_shape)
    out = upload(handle, before, spec_of(out_shape, y_dtype, y_layout))
    operands = [x_array]
    if backward:
        y_array, dy_array = (upload(handle, values, spec_of(y.shape, dtype, x_layout)) for values in (y, dy(y.shape)))
        operands = [y_array, dy_array, x_array] if kind.startswith("pooling") else [y_array, dy_array]
    try:
        got = getattr(dnn, kind)(handle, *operands, *extra, out=out, **call).numpy().astype(np.float64)
    except CudnnError as error:
        return error.status.name, None
    except dnn.ArgumentError:  # we do not let cuDNN compute what it computes wrongly
        return "REFUSED_BY_US", None
    wanted = call["alpha"] * wanted + beta * before
    return "SUCCESS", float(np.abs(got - wanted).max() / np.abs(wanted).max())


def main() -> int:
    rows = []
    with dnn.Handle("cuda") as handle:
        for key in combinations():
            status, error = record(handle, by_torch, *key)
            rows.append([*key, status, error])
        version = handle.api.library.version_text
        header = {"device": handle.device.name, "cudnn": version}
    header |= {"columns": ["operation", "options", "rank", "dtype", "x", "y", "y_dtype", "beta", "status", "error"]}
    lines = ",\n".join(json.dumps(row) for row in rows)
    Path(sys.argv[1]).write_text(json.dumps(header)[:-1] + f', "rows": [\n{lines}\n]}}\n')
    for (kind, status), count in sorted(Counter((row[0], row[8]) for row in rows).items()):
        print(f"{count:6} {kind} {status}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
