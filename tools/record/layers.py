"""Record, on a GPU, what cuDNN supports of the layers that no sample describes: attention, CTC, dropout, filters, fused ones.

    python -m tools.record.layers OUT.json [KIND ...]

For each combination below: the status of each step, and how far what they wrote is from the
emulated device's, relative to the largest value; None where that refuses.  With kinds named, only
theirs.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter

import numpy as np

import cudnnlite as dnn
from cudnnlite.dtypes import numpy_dtype, parse_dtype
from cudnnlite.errors import CudnnError
from tools.record import support as record_support
from tools.record.support import LAST

FLOATS = ("float32", "float64", "float16", "bfloat16")
COLUMNS = ["kind", "options", "statuses", "error"]


def made(handle, rng, shape, dtype="float32", layout="first"):
    """Return a device array of small numbers that every type holds."""
    kind = parse_dtype(dtype)
    name = {"first": None, "last": LAST.get(len(shape))}.get(layout, layout)
    values = rng.integers(1, 9, shape) / (1 if numpy_dtype(kind).kind in "iu" else 4)
    return record_support.upload(
        handle, record_support.spec_of(shape, kind, name), np.asarray(values, numpy_dtype(kind))
    )


# ---------------------------------------------------------------- attention

ATTENTION = {
    "heads": 2,
    "q_size": 8,
    "q_proj_size": 4,
    "o_proj_size": 8,
    "batch": 2,
    "beam": 1,
    "steps": 3,
    "reach": 5,
    "order": (0, 1, 2),
}
PROJECTIONS = (
    {"q_proj_size": 0, "o_proj_size": 0},
    {"o_proj_size": 0},
    {"q_proj_size": 0},
    {"v_proj_size": 0},
    {"v_proj_size": 3},
    {"v_size": 7, "k_size": 6},
    {"q_proj_size": 0, "k_proj_size": 8, "v_proj_size": 0},
)
ATTENTION_VARIANTS = (
    {},
    *PROJECTIONS,
    *(variant | {"bias": True} for variant in ({}, *PROJECTIONS)),
    *({"math_type": kind} for kind in ("FMA", "TENSOR_OP", "TENSOR_OP_ALLOW_CONVERSION")),
    *({"compute_type": kind} for kind in FLOATS),
    {"heads": 1},
    {"heads": 3},
    {"heads": 16},
    {"q_size": 5, "o_proj_size": 3},
    {"q_proj_size": 1, "o_proj_size": 1},
    {"q_proj_size": 128},
    {"beam": 2},
    {"beam": 2, "batch": 1},
    {"batch": 1},
    {"steps": 1},
    {"reach": 1},
    {"steps": 1, "reach": 1, "batch": 1},
    {"steps": 70, "reach": 130},
    *({"order": order, "beam": 2} for order in itertools.permutations(range(3))),
    {"residual": True},
    {"residual": True, "bias": True},
    {"residual": True, "beam": 2},
    {"step": 0},
    {"step": 2},
    {"lengths": "short"},
    {"lengths": "none"},
    {"window": "causal"},
    {"window": "empty"},
    {"scale": 0.0},
    {"room": 3},
    {"dropout": 0.5},
    {"post_dropout": 0.5},
)


def attention(handle, rng, dtype, training, **variant):
    """Yield the output; in training the gradients after it."""
    given = ATTENTION | variant
    batch, beam, steps, reach, order = (
        given.pop(name) for name in ("batch", "beam", "steps", "reach", "order")
    )
    step, residual, lengths, window, room = (
        given.pop(n, None) for n in ("step", "residual", "lengths", "window", "room")
    )
    if room:
        given |= {
            "max_q_length": steps + room,
            "max_kv_length": reach + room,
            "max_batch": batch + 1,
            "max_beam": beam + 1,
        }
    spec = dnn.AttentionSpec(**given, dtype=dtype)
    values = {name: rng.integers(-4, 5, shape) / 8 for name, shape in spec.weight_shapes().items()}
    weights = dnn.AttentionWeights.from_arrays(handle, spec, values)

    def data(*shape):
        lying = [shape[axis] for axis in order] + [shape[3]]
        strides, step = {3: 1}, shape[3]
        for axis, size in zip(reversed(order), reversed(lying[:3]), strict=True):
            strides[axis], step = step, step * size
        flat = handle.array(rng.integers(-4, 5, step) / 4, dtype=dtype)
        lies = dnn.TensorSpec(shape, dtype, strides=[strides[axis] for axis in range(4)])
        return dnn.DeviceArray(lies, flat.device, flat.ptr, flat, flat.stream)

    q, k, v = (
        data(batch, beam, steps, spec.q_size),
        data(batch, 1, reach, spec.k_size),
        data(batch, 1, reach, spec.v_size),
    )
    shorter = {None: 0, "short": 1, "none": reach}[lengths]
    options = {"kv_lengths": [reach - shorter if i == 0 else reach for i in range(batch)]}
    options["q_lengths"] = [
        max(steps - shorter, 0) if i == 0 else steps for i in range(batch * beam)
    ]
    ends = {
        "causal": ([0] * steps, [min(t + 1, reach) for t in range(steps)]),
        "empty": ([0] * steps, [0] * steps),
    }
    options |= {
        "window": ends.get(window),
        "residual": data(*q.shape) if residual else None,
        "step": step,
    }
    out = data(batch, beam, steps, spec.output_size)
    drops = spec.dropout or spec.post_dropout
    state = dnn.DropoutState(handle, 1) if drops and training else None
    found = dnn.multi_head_attention_forward(
        handle, spec, weights, q, k, v, training=training, dropout_state=state, out=out, **options
    )
    y = found.y if training else found
    yield [] if state else [y.numpy()]
    if training and not drops:
        live = np.arange(steps) < np.reshape(options["q_lengths"], (batch, beam, 1))
        dy = data(*y.shape)
        dy = (
            record_support.upload(
                handle,
                dnn.TensorSpec(dy.shape, dtype, strides=dy.spec.strides),
                np.where(live[..., None], dy.numpy(), 0),
            )
            if lengths is not None and order == (0, 1, 2)
            else dy
        )
        yield [
            gradient.numpy()
            for gradient in dnn.multi_head_attention_backward_data(handle, found.reserve, dy)
        ]
        yield [*dnn.multi_head_attention_backward_weights(handle, found.reserve).numpy().values()]


# ---------------------------------------------------------------- CTC

CTC_VARIANTS = (
    {"sequences_first": True},
    {"grad_mode": "SKIP_OOB"},
    {"steps": 1, "labels": ([1], [2], [3])},
    {"alphabet": 2},
    {"alphabet": 1},
    {"steps": 300, "labels": ([1, 2] * 63, [3], [4])},
    {"steps": 300, "labels": ([1, 2] * 127 + [1], [3], [4])},
    {"steps": 300, "labels": ([1, 2] * 128, [3], [4])},
    *({"alphabet": size} for size in (5000, 6000, 10000, 12000)),
    {"longest": 20},
    {"labels": ([1, 1, 1, 1], [2], [3])},
    *({"compute_type": kind} for kind in FLOATS),
)


def ctc(handle, rng, dtype, where, algorithm, normalization, gradients, **variant):
    """Yield costs and gradients."""
    steps, alphabet = variant.pop("steps", 6), variant.pop("alphabet", 5)
    labels = variant.pop(
        "labels", ([1, 2], [1], [1, 1, 1]) if alphabet == 2 else ([1, 2, 3], [4], [2, 2])
    )
    if alphabet <= 2:
        labels = ([1], [1], [1])
    x = rng.standard_normal((steps, 3, alphabet))
    if normalization == "none":
        x = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    if variant.pop("sequences_first", False):
        lying = handle.array(np.ascontiguousarray(x.swapaxes(0, 1)), dtype=dtype)
        lies = dnn.TensorSpec(x.shape, lying.spec.dtype, strides=(alphabet, steps * alphabet, 1))
        logits = dnn.DeviceArray(lies, lying.device, lying.ptr, lying, lying.stream)
    else:
        logits = handle.array(x, dtype=dtype)
    spec = dnn.CTCLossSpec(
        normalization, max_label_length=variant.pop("longest", max(map(len, labels))), **variant
    )
    numbers = [
        [n for label in labels for n in label],
        [*map(len, labels)],
        [steps, max(steps - 1, 1), steps],
    ]
    given = [handle.array(np.array(n, np.int32)) for n in numbers] if where == "device" else numbers
    out = None
    if spec.grad_mode.name == "SKIP_OOB":  # which leaves what lies beyond the end
        out = (None, handle.array(np.zeros(x.shape), dtype=dtype))
    costs, slopes = dnn.ctc_loss(
        handle, logits, *given, spec, algorithm=algorithm, gradients=gradients, out=out
    )
    yield [costs.numpy(), *([slopes.numpy()] if gradients else [])]


# ---------------------------------------------------------------- dropout, filters, fused batch
# normalisation


def dropout(handle, rng, dtype, shape, layout, chance, in_place=False):
    """Yield what is kept, scaled, and its gradient: divided by what was given, and where it was dropped by what is left."""
    state = dnn.DropoutState(handle, 3)
    x, dy = made(handle, rng, shape, dtype, layout), made(handle, rng, shape, dtype, layout)
    given, slopes = x.numpy().astype(np.float64), dy.numpy().astype(np.float64)
    y, reserve = dnn.dropout_forward(
        handle, x, chance, dropout_state=state, out=x if in_place else None
    )
    got, left = y.numpy().astype(np.float64), 1 / ((1 - chance) or np.inf)
    yield [np.where(got, got / given, left)]
    dx = dnn.dropout_backward(
        handle, dy, chance, reserve, dropout_state=state, out=dy if in_place else None
    )
    yield [np.where(got, dx.numpy() / slopes, left + dx.numpy())]


def transform_filter(handle, rng, dtype, to, shape, source, target, **options):
    """Yield the filter."""
    w = made(handle, rng, shape, dtype, source)
    yield [
        dnn.transform_filter(
            handle,
            w,
            layout=LAST.get(len(shape))
            if target == "last"
            else "NCHW"
            if len(shape) == 4
            else "NCDHW",
            dtype=to,
            **options,
        ).numpy()
    ]


def fused_normalization(
    handle, rng, dtype, shape, layout, added, mode="spatial_persistent", activation="relu"
):
    """Yield y and the statistics, and then the gradients."""
    wide, each = (
        "float64" if dtype == "float64" else "float32",
        (1, shape[1], *[1] * (len(shape) - 2)),
    )
    x, z, dy = (made(handle, rng, shape, dtype, layout) for _ in range(3))
    small = "first" if layout == "strided" else layout
    scale, bias, mean, var = (made(handle, rng, each, wide, small) for _ in range(4))
    y, *saved, reserve = dnn.batch_normalization_training(
        handle,
        x,
        scale,
        bias,
        running_mean=mean,
        running_var=var,
        mode=mode,
        activation=activation,
        z=z if added else None,
    )
    yield [a.numpy() for a in (y, *saved, mean, var)]
    given = {
        "mode": mode,
        "activation": activation,
        "y": y,
        "bias": bias,
        "reserve": reserve,
        "added": added,
    }
    yield [
        a.numpy() for a in dnn.batch_normalization_backward(handle, x, dy, scale, *saved, **given)
    ]


KINDS = {f.__name__: f for f in (attention, ctc, dropout, transform_filter, fused_normalization)}
SHAPES = ((7,), (3, 5), (2, 4, 9), (2, 4, 5, 3), (2, 4, 3, 5, 2), (2, 3, 2, 3, 2, 2))


def combinations():
    """Yield (kind, options)."""
    for variant, dtype, training in itertools.product(ATTENTION_VARIANTS, FLOATS, (False, True)):
        yield "attention", {"dtype": dtype, "training": training, **variant}
    ways = (("host", "device"), ("deterministic", "non_deterministic"))
    names = ("dtype", "where", "algorithm", "normalization", "gradients")
    for values in itertools.product(FLOATS, *ways, ("softmax", "none"), (True, False)):
        yield "ctc", dict(zip(names, values, strict=True))
    for values, variant in itertools.product(
        itertools.product(FLOATS[:2], *ways, ("softmax",), (True,)), CTC_VARIANTS
    ):
        yield "ctc", dict(zip(names, values, strict=True)) | variant
    for dtype, shape, layout in itertools.product(
        (*FLOATS, "int8"), SHAPES, ("first", "last", "strided")
    ):
        if layout != "last" or len(shape) in LAST:
            yield "dropout", {"dtype": dtype, "shape": shape, "layout": layout, "chance": 0.5}
    for dtype, chance, in_place in itertools.product(FLOATS[:3], (0.0, 0.25, 1.0), (False, True)):
        yield (
            "dropout",
            {
                "dtype": dtype,
                "shape": SHAPES[3],
                "layout": "first",
                "chance": chance,
                "in_place": in_place,
            },
        )
    names = ("dtype", "to", "shape", "source", "target")
    some, large = (4, 8, 2, 4), (4, 8, 2, 4, 2)
    ways = (
        {},
        {"padding": (0, 0, 1, (0, 2))},
        {"padding": (1, 2, 0, 0)},
        {"fold": (2, 2)},
        {"unfold": (2, 2)},
    )
    for kind, source, target, how in itertools.product(
        (*FLOATS, "int8"), ("first", "last"), ("first", "last"), ways
    ):
        yield (
            "transform_filter",
            dict(zip(names, (kind, kind, some, source, target), strict=True)) | how,
        )
    for kind, source, target in itertools.product(
        (*FLOATS, "int8"), ("first", "last"), ("first", "last")
    ):
        for how in (
            {},
            {"fold": (2, 2, 2)},
            {"unfold": (2, 1, 2)},
            {"padding": (0, 0, 1, (0, 2), 1)},
        ):
            yield (
                "transform_filter",
                dict(zip(names, (kind, kind, large, source, target), strict=True)) | how,
            )
    for (kind, to), target in itertools.product(
        itertools.permutations((*FLOATS, "int8"), 2), ("first", "last")
    ):
        yield "transform_filter", dict(zip(names, (kind, to, some, "first", target), strict=True))
    names = ("dtype", "shape", "layout", "added")
    shapes = (
        (4, 4, 9),
        (3, 8, 5, 4),
        (2, 12, 3, 4, 5),
        (3, 6, 5, 4),
        (2, 1, 5, 4),
        (1, 8, 5, 4),
        (2, 8, 1, 1),
        (2, 64, 33, 35),
    )
    for values in itertools.product(FLOATS, shapes, ("first", "last", "strided"), (False, True)):
        yield "fused_normalization", dict(zip(names, values, strict=True))
    for mode, activation in (
        ("spatial", "relu"),
        ("per_activation", "relu"),
        ("spatial_persistent", "tanh"),
    ):
        yield (
            "fused_normalization",
            dict(zip(names, ("float32", shapes[1], "last", False), strict=True))
            | {"mode": mode, "activation": activation},
        )


def record(handle, kind, options):
    """Return the status of each step, and all that they wrote."""
    statuses, found = [], []
    try:
        for arrays in KINDS[kind](handle, np.random.default_rng(0), **options):
            statuses.append("SUCCESS")
            found += arrays
    except CudnnError as error:
        statuses.append(error.status.name)
    except dnn.ArgumentError:  # we do not let cuDNN compute what it computes wrongly
        statuses.append("REFUSED_BY_US")
    return statuses, found


def difference(found, expected):
    """Return how far the one is from the other, relative to the largest value; infinite where one alone has NaNs."""
    pairs = [
        [np.asarray(values, np.float64) for values in pair]
        for pair in zip(found, expected, strict=True)
    ]
    largest = max((np.nanmax(np.abs(wanted), initial=0) for _, wanted in pairs), default=0) or 1
    gaps = [np.nanmax(np.abs(got - wanted), initial=0) for got, wanted in pairs]
    alike = all(np.array_equal(np.isnan(got), np.isnan(wanted)) for got, wanted in pairs)
    return float(f"{max(gaps, default=0) / largest:.1e}") if alike else float("inf")


def main(path, *kinds, device="cuda") -> int:
    rows = []
    with dnn.Handle(device) as handle, dnn.Handle("emulated") as emulated:
        for kind, options in combinations():
            if kind in (kinds or KINDS):
                statuses, found = record(handle, kind, options)
                ours, expected = record(emulated, kind, options)
                rows.append(
                    [
                        kind,
                        options,
                        statuses,
                        difference(found, expected) if ours == statuses else None,
                    ]
                )
        header = {
            "device": handle.device.name,
            "cudnn": handle.api.library.version_text,
            "columns": COLUMNS,
        }
    record_support.write(path, rows, **header)
    for (kind, status), count in sorted(Counter((row[0], row[2][-1]) for row in rows).items()):
        print(f"{count:6} {kind} {status}")
    print(f"{sum(row[3] is None for row in rows):6} rows are not as emulated")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
