"""Record, on a GPU, what cuDNN supports of the layers that no sample describes.

These are attention, CTC, dropout, transformations of filters and fused batch normalisation.

    python -m tools.record.layers OUT.json [KIND ...]

For each combination below: the status of each step, and the largest difference between the results
and the emulated device's, relative to the largest value; None where the emulated device refuses.
With kinds named, only theirs.
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
from tools.record.support import FIRST, LAST

FLOATS = ("float32", "float64", "float16", "bfloat16")
COLUMNS = ["kind", "options", "statuses", "error"]


def small_numbers(handle, rng, shape, dtype="float32", layout="first"):
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


class AttentionCase:
    """The operands of attention, in one order of their axes in memory."""

    def __init__(self, handle, rng, dtype, **options):
        self.handle, self.rng, self.dtype = handle, rng, dtype
        sizes = ("batch", "beam", "steps", "reach")
        self.batch, self.beam, self.steps, self.reach = (options.pop(name) for name in sizes)
        self.order = options.pop("order")
        self.step = options.pop("step", None)
        self.has_residual = options.pop("residual", False)
        self.lengths = options.pop("lengths", None)
        self.window_name = options.pop("window", None)
        room = options.pop("room", None)
        if room:
            options |= {
                "max_q_length": self.steps + room,
                "max_kv_length": self.reach + room,
                "max_batch": self.batch + 1,
                "max_beam": self.beam + 1,
            }
        self.spec = dnn.AttentionSpec(**options, dtype=dtype)

    def weights(self):
        """Return weights that every type holds."""
        shapes = self.spec.weight_shapes()
        values = {name: self.rng.integers(-4, 5, shape) / 8 for name, shape in shapes.items()}
        return dnn.AttentionWeights.from_arrays(self.handle, self.spec, values)

    def data(self, *shape):
        """Return an array of numbers that every type holds."""
        in_memory = [shape[axis] for axis in self.order] + [shape[3]]
        strides, stride = {3: 1}, shape[3]
        for axis, size in zip(reversed(self.order), reversed(in_memory[:3]), strict=True):
            strides[axis] = stride
            stride *= size
        flat = self.handle.array(self.rng.integers(-4, 5, stride) / 4, dtype=self.dtype)
        spec = dnn.TensorSpec(shape, self.dtype, strides=[strides[axis] for axis in range(4)])
        return dnn.DeviceArray(spec, flat.device, flat.ptr, flat, flat.stream)

    def q_lengths(self):
        """Return the lengths of the queries, of which the first may be shorter."""
        count = self.batch * self.beam
        first = max(self.steps - self._missing(), 0)
        return [first, *[self.steps] * (count - 1)]

    def kv_lengths(self):
        """Return the lengths of the keys, of which the first may be shorter."""
        return [self.reach - self._missing(), *[self.reach] * (self.batch - 1)]

    def _missing(self):
        return {None: 0, "short": 1, "none": self.reach}[self.lengths]

    def window(self):
        """Return the first keys that the steps see, and the ends."""
        starts = [0] * self.steps
        if self.window_name == "causal":
            return starts, [min(step + 1, self.reach) for step in range(self.steps)]
        return (starts, starts) if self.window_name == "empty" else None

    def output_gradient(self):
        """Return the gradient of the output, with zeros beyond lengths that are short."""
        dy = self.data(self.batch, self.beam, self.steps, self.spec.output_size)
        if self.lengths is None or self.order != (0, 1, 2):
            return dy
        ends = np.reshape(self.q_lengths(), (self.batch, self.beam, 1))
        is_live = np.arange(self.steps) < ends
        spec = dnn.TensorSpec(dy.shape, self.dtype, strides=dy.spec.strides)
        values = np.where(is_live[..., None], dy.numpy(), 0)
        return record_support.upload(self.handle, spec, values)


def attention(handle, rng, dtype, training, **variant):
    """Yield the output; in training the gradients after it."""
    case = AttentionCase(handle, rng, dtype, **(ATTENTION | variant))
    spec = case.spec
    weights = case.weights()
    q = case.data(case.batch, case.beam, case.steps, spec.q_size)
    k = case.data(case.batch, 1, case.reach, spec.k_size)
    v = case.data(case.batch, 1, case.reach, spec.v_size)
    residual = case.data(*q.shape) if case.has_residual else None
    out = case.data(case.batch, case.beam, case.steps, spec.output_size)
    has_dropout = bool(spec.dropout or spec.post_dropout)
    state = dnn.DropoutState(handle, 1) if has_dropout and training else None
    result = dnn.multi_head_attention_forward(
        handle,
        spec,
        weights,
        q,
        k,
        v,
        q_lengths=case.q_lengths(),
        kv_lengths=case.kv_lengths(),
        window=case.window(),
        residual=residual,
        step=case.step,
        training=training,
        dropout_state=state,
        out=out,
    )
    y = result.y if training else result
    yield [] if state else [y.numpy()]
    if training and not has_dropout:
        dy = case.output_gradient()
        gradients = dnn.multi_head_attention_backward_data(handle, result.reserve, dy)
        yield [gradient.numpy() for gradient in gradients]
        weight_gradients = dnn.multi_head_attention_backward_weights(handle, result.reserve)
        yield [*weight_gradients.numpy().values()]


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


def ctc_logits(handle, rng, dtype, shape, *, has_softmax, sequences_first):
    """Return logits, or probabilities where cuDNN does not normalise."""
    steps, _, alphabet = shape
    values = rng.standard_normal(shape)
    if not has_softmax:
        values = np.exp(values) / np.exp(values).sum(-1, keepdims=True)
    if not sequences_first:
        return handle.array(values, dtype=dtype)
    array = handle.array(np.ascontiguousarray(values.swapaxes(0, 1)), dtype=dtype)
    strides = (alphabet, steps * alphabet, 1)
    spec = dnn.TensorSpec(shape, array.spec.dtype, strides=strides)
    return dnn.DeviceArray(spec, array.device, array.ptr, array, array.stream)


def ctc_labels(alphabet):
    """Return the labels of three sequences."""
    if alphabet <= 2:
        return [1], [1], [1]
    return [1, 2, 3], [4], [2, 2]


def ctc(handle, rng, dtype, where, algorithm, normalization, gradients, **variant):
    """Yield costs and gradients."""
    steps, alphabet = variant.pop("steps", 6), variant.pop("alphabet", 5)
    labels = variant.pop("labels", ctc_labels(alphabet))
    logits = ctc_logits(
        handle,
        rng,
        dtype,
        (steps, 3, alphabet),
        has_softmax=normalization != "none",
        sequences_first=variant.pop("sequences_first", False),
    )
    max_label_length = variant.pop("longest", max(map(len, labels)))
    spec = dnn.CTCLossSpec(normalization, max_label_length=max_label_length, **variant)
    numbers = [
        [number for label in labels for number in label],
        [len(label) for label in labels],
        [steps, max(steps - 1, 1), steps],
    ]
    if where == "device":
        numbers = [handle.array(np.array(values, np.int32)) for values in numbers]
    out = None
    if spec.grad_mode.name == "SKIP_OOB":
        # This mode leaves what is beyond the end.
        out = (None, handle.array(np.zeros(logits.shape), dtype=dtype))
    costs, slopes = dnn.ctc_loss(
        handle, logits, *numbers, spec, algorithm=algorithm, gradients=gradients, out=out
    )
    yield [costs.numpy(), *([slopes.numpy()] if gradients else [])]


# ---------------------------------------------------------------- other layers


def dropout(handle, rng, dtype, shape, layout, chance, in_place=False):
    """Yield the scale of each value, and the scale of its gradient.

    Where a value is 0, the scale of all others stands for its own, to which the gradient is added.
    """
    state = dnn.DropoutState(handle, 3)
    x = small_numbers(handle, rng, shape, dtype, layout)
    dy = small_numbers(handle, rng, shape, dtype, layout)
    x_values, dy_values = x.numpy().astype(np.float64), dy.numpy().astype(np.float64)
    scale = 1 / ((1 - chance) or np.inf)
    y, reserve = dnn.dropout_forward(
        handle, x, chance, dropout_state=state, out=x if in_place else None
    )
    y_values = y.numpy().astype(np.float64)
    yield [np.where(y_values, y_values / x_values, scale)]
    dx = dnn.dropout_backward(
        handle, dy, chance, reserve, dropout_state=state, out=dy if in_place else None
    )
    yield [np.where(y_values, dx.numpy() / dy_values, scale + dx.numpy())]


def transform_filter(handle, rng, dtype, to, shape, source, target, **options):
    """Yield the filter."""
    w = small_numbers(handle, rng, shape, dtype, source)
    layout = (LAST if target == "last" else FIRST)[len(shape)]
    yield [dnn.transform_filter(handle, w, layout=layout, dtype=to, **options).numpy()]


def fused_normalization(
    handle, rng, dtype, shape, layout, added, mode="spatial_persistent", activation="relu"
):
    """Yield y and the statistics, and then the gradients."""
    wide = "float64" if dtype == "float64" else "float32"
    parameter_shape = (1, shape[1], *[1] * (len(shape) - 2))
    parameter_layout = "first" if layout == "strided" else layout
    x, z, dy = (small_numbers(handle, rng, shape, dtype, layout) for _ in range(3))
    scale, bias, mean, var = (
        small_numbers(handle, rng, parameter_shape, wide, parameter_layout) for _ in range(4)
    )
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
    yield [array.numpy() for array in (y, *saved, mean, var)]
    gradients = dnn.batch_normalization_backward(
        handle,
        x,
        dy,
        scale,
        *saved,
        mode=mode,
        activation=activation,
        y=y,
        bias=bias,
        reserve=reserve,
        added=added,
    )
    yield [gradient.numpy() for gradient in gradients]


KINDS = {f.__name__: f for f in (attention, ctc, dropout, transform_filter, fused_normalization)}
SHAPES = ((7,), (3, 5), (2, 4, 9), (2, 4, 5, 3), (2, 4, 3, 5, 2), (2, 3, 2, 3, 2, 2))


def combinations():  # noqa: C901  (one table: a block of loops for each operation)
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
    small, large = (4, 8, 2, 4), (4, 8, 2, 4, 2)
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
            dict(zip(names, (kind, kind, small, source, target), strict=True)) | how,
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
        yield "transform_filter", dict(zip(names, (kind, to, small, "first", target), strict=True))
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
    """Return the status of each step, and all results."""
    statuses, results = [], []
    try:
        for arrays in KINDS[kind](handle, np.random.default_rng(0), **options):
            statuses.append("SUCCESS")
            results += arrays
    except CudnnError as error:
        statuses.append(error.status.name)
    except dnn.ArgumentError:
        # We do not let cuDNN compute what it computes wrongly.
        statuses.append("REFUSED_BY_US")
    return statuses, results


def difference(results, expected):
    """Return the largest difference, relative to the largest value.

    It is infinite where one alone has NaNs.
    """
    pairs = [
        (np.asarray(result, np.float64), np.asarray(values, np.float64))
        for result, values in zip(results, expected, strict=True)
    ]
    has_same_nans = all(np.array_equal(np.isnan(a), np.isnan(b)) for a, b in pairs)
    if not has_same_nans:
        return float("inf")
    largest = max((np.nanmax(np.abs(b), initial=0) for _, b in pairs), default=0) or 1
    gaps = [np.nanmax(np.abs(a - b), initial=0) for a, b in pairs]
    return float(f"{max(gaps, default=0) / largest:.1e}")


def main(path, *kinds, device="cuda") -> int:
    rows = []
    with dnn.Handle(device) as handle, dnn.Handle("emulated") as emulated:
        for kind, options in combinations():
            if kind in (kinds or KINDS):
                statuses, results = record(handle, kind, options)
                emulated_statuses, expected = record(emulated, kind, options)
                gap = None
                if emulated_statuses == statuses:
                    gap = difference(results, expected)
                rows.append([kind, options, statuses, gap])
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
