"""Graphs on a device: one-line operations and graphs of any shape, against formulas in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from graph_oracles import (
    ACTIVATIONS,
    attention,
    attention_bias_gradient,
    attention_gradients,
    causal_mask,
    normalization,
    normalization_gradients,
    window_mask,
)
from helpers.extents import each_pair
from tolerances import GRAPH_BOUNDS, NARROW_ROWS, assert_close, assert_near

import cudnnlite as dnn
from cudnnlite.dtypes import dtype_name, numpy_dtype

from .problems import Array, memory_of, poisoned, random_values, upload

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32")
# Batch, heads of queries, heads of keys, steps of queries, steps of keys, size of q and k, size of v.
ATTENTION = {
    "square": (2, 3, 3, 64, 64, 32, 32),
    "asymmetric": (2, 4, 4, 40, 72, 64, 32),
    "grouped": (1, 6, 2, 64, 128, 32, 64),
    "one head of keys": (2, 4, 1, 33, 65, 128, 128),
    "wide values": (1, 2, 2, 16, 24, 32, 128),
}
STEP = 1e-5  # of central differences


class Operands:
    """Random operands by name: on the host in float64, as they were rounded, and on the device."""

    def __init__(self, handle: dnn.Handle, dtype: str, seed: int = 0) -> None:
        self.handle = handle
        self.dtype = dtype
        self.host: dict[str, Array] = {}
        self.arrays: dict[str, dnn.DeviceArray] = {}
        self._rng = np.random.default_rng(seed)

    def add(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str = "",
        strides: tuple[int, ...] | None = None,
        values: Array | None = None,
    ) -> dnn.DeviceArray:
        """Make an operand, of random values unless some are given."""
        spec = dnn.TensorSpec(shape, dtype or self.dtype, strides=strides)
        if values is None:
            values = random_values(self._rng, shape, spec.dtype)
        stored = values.astype(numpy_dtype(spec.dtype))
        self.host[name] = stored.astype(np.float64)
        self.arrays[name] = upload(self.handle, spec, stored)
        return self.arrays[name]


def bound(dtype: str, kind: str) -> float:
    """Return how far results may be from float64, by the L2 norm."""
    return GRAPH_BOUNDS[kind][dtype]


def near(
    result: dnn.DeviceArray, expected: Array, kind: str, dtype: str = "", *, what: str = ""
) -> None:
    """Compare a result; it has to be finite where that is."""
    values = result.numpy().astype(np.float64)
    assert np.isfinite(values).all(), what
    assert_close(values, expected, bound(dtype or dtype_name(result.spec.dtype), kind))


def new(handle: dnn.Handle, shape: tuple[int, ...], dtype: str) -> dnn.DeviceArray:
    """Return an output full of NaN."""
    return poisoned(handle, dnn.TensorSpec(shape, dtype))


# ---------------------------------------------------------------- attention


def attention_operands(
    handle: dnn.Handle, sizes: tuple[int, ...], dtype: str, names: str = "qkv"
) -> Operands:
    """Return queries, keys and values."""
    batch, heads, groups, rows, columns, size, values = sizes
    shapes = {
        "q": (batch, heads, rows, size),
        "k": (batch, groups, columns, size),
        "v": (batch, groups, columns, values),
    }
    operands = Operands(handle, dtype)
    for name in names:
        operands.add(name, shapes[name])
    return operands


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", ATTENTION)
def test_attention_forward(handle: dnn.Handle, case: str, dtype: str, causal: bool) -> None:
    operands = attention_operands(handle, ATTENTION[case], dtype)
    rows, columns, size = ATTENTION[case][3:6]
    mask = causal_mask(rows, columns) if causal else None
    o, stats, _ = attention(**operands.host, scale=size**-0.5, mask=mask)
    out = new(handle, o.shape, dtype), new(handle, stats.shape, "float32")
    result = dnn.scaled_dot_product_attention_forward(
        handle, **operands.arrays, causal=causal, return_stats=True, out=out
    )
    assert result[0] is out[0]
    near(result[0], o, "attention")
    near(result[1], stats, "stats", dtype)
    alone = dnn.scaled_dot_product_attention_forward(handle, **operands.arrays, causal=causal)
    near(alone, o, "attention")


@pytest.mark.parametrize("shared", ["", "batch", "heads", "both"])
@pytest.mark.parametrize("dtype", HALVES)
def test_attention_with_bias_and_scale(handle: dnn.Handle, dtype: str, shared: str) -> None:
    sizes = ATTENTION["asymmetric"]
    operands = attention_operands(handle, sizes, dtype)
    batch, heads, _, rows, columns, *_ = sizes
    shape = (
        1 if shared in ("batch", "both") else batch,
        1 if shared in ("heads", "both") else heads,
        rows,
        columns,
    )
    operands.add("bias", shape)
    o, *_ = attention(**operands.host, scale=0.3, mask=None)
    out = new(handle, o.shape, dtype)
    dnn.scaled_dot_product_attention_forward(handle, **operands.arrays, scale=0.3, out=out)
    near(out, o, "attention")


@pytest.mark.parametrize("layout", ["batch, steps, heads, size", "of one tensor"])
def test_attention_of_strided_operands(handle: dnn.Handle, layout: str) -> None:
    """As projections leave them: heads within steps, or queries, keys and values side by side."""
    batch, heads, steps, size = 2, 3, 48, 32
    step = heads * size if layout.startswith("batch") else 3 * heads * size
    strides = (steps * step, size, step, 1)
    operands = Operands(handle, "float16")
    for name in "qkv":
        operands.add(name, (batch, heads, steps, size), strides=strides)
    o, *_ = attention(**operands.host, scale=size**-0.5, mask=None)
    near(dnn.scaled_dot_product_attention_forward(handle, **operands.arrays), o, "attention")


@pytest.mark.parametrize("way", ["one line", "plan"])
def test_results_lie_as_their_arrays_do(handle: dnn.Handle, way: str) -> None:
    """Heads within steps, as the next projection reads them."""
    batch, heads, steps, size = 2, 3, 48, 32
    strides = (steps * heads * size, size, heads * size, 1)
    operands = Operands(handle, "float16")
    for name in "qkv":
        operands.add(name, (batch, heads, steps, size), strides=strides)
    spec = dnn.TensorSpec((batch, heads, steps, size), "float16", strides=strides)
    out = poisoned(handle, spec)
    function = dnn.scaled_dot_product_attention_forward
    if way == "one line":
        assert function(handle, **operands.arrays, out=out) is out
    else:
        with function.plan(handle, **operands.arrays, out=spec) as plan:
            assert plan(**operands.arrays, out=out)["o"] is out
            assert plan(**operands.arrays)["o"].spec == spec
        with pytest.raises(dnn.ArgumentError, match="o is an array that is given to a plan"):
            function.plan(handle, **operands.arrays, out=out)
    o, *_ = attention(**operands.host, scale=size**-0.5, mask=None)
    near(out, o, "attention")


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "sizes",
    [(2, 3, 3, 64, 64, 32, 32), (1, 2, 2, 40, 72, 64, 64), (2, 4, 2, 72, 40, 64, 32)],
    ids=str,
)
def test_attention_backward(
    handle: dnn.Handle, sizes: tuple[int, ...], dtype: str, causal: bool
) -> None:
    operands = attention_operands(handle, sizes, dtype)
    q, k, v = (operands.host[name] for name in "qkv")
    scale = sizes[5] ** -0.5
    mask = causal_mask(*sizes[3:5]) if causal else None
    o, stats, _ = attention(q, k, v, scale, mask)
    operands.add("o", o.shape, values=o)
    operands.add("do", o.shape)
    operands.add("stats", stats.shape, "float32", values=stats)
    do = operands.host["do"]
    expected = attention_gradients(q, k, v, do, scale, mask)
    out = tuple(new(handle, gradient.shape, dtype) for gradient in expected)
    results = dnn.scaled_dot_product_attention_backward(
        handle, **operands.arrays, causal=causal, out=out
    )
    for result, array, gradient in zip(results, out, expected, strict=True):
        assert result is array
        near(result, gradient, "attention gradients")
    new_results = dnn.scaled_dot_product_attention_backward(
        handle, **operands.arrays, causal=causal
    )
    for result, gradient in zip(new_results, expected, strict=True):
        near(result, gradient, "attention gradients")


def differences(function: Callable[..., Array], operands: Mapping[str, Array], name: str) -> Array:
    """Return the gradient of the sum of a function's values, by central differences."""
    x = operands[name]
    gradient = np.empty_like(x)
    for place in np.ndindex(x.shape):
        values = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * STEP
            values.append(function(**{**operands, name: moved}).sum())
        gradient[place] = (values[0] - values[1]) / (2 * STEP)
    return gradient


def test_the_gradients_that_are_compared_with_are_right() -> None:
    rng = np.random.default_rng(0)
    q, do = (rng.standard_normal((1, 4, 4, 3)) for _ in range(2))
    k, v = (rng.standard_normal((1, 2, 5, 3)) for _ in range(2))
    bias = rng.standard_normal((1, 1, 4, 5))
    kept = rng.choice([0, 2], (1, 4, 4, 5))
    others = (0.7, causal_mask(4, 5), bias, kept)

    def loss(q: Array, k: Array, v: Array) -> Array:
        return attention(q, k, v, *others)[0] * do

    operands = {"q": q, "k": k, "v": v}
    gradients = attention_gradients(q, k, v, do, *others)
    for name, gradient in zip(operands, gradients, strict=True):
        assert_close(gradient, differences(loss, operands, name), 1e-8)

    def loss_of_bias(bias: Array) -> Array:
        return attention(q, k, v, 0.7, causal_mask(4, 5), bias, kept)[0] * do

    gradient = attention_bias_gradient(q, k, v, do, *others)
    assert_close(gradient, differences(loss_of_bias, {"bias": bias}, "bias"), 1e-8)


# ---------------------------------------------------------------- lengths, windows and dropout


def check_both_directions(
    handle: dnn.Handle,
    operands: Operands,
    scores: tuple[Array | None, Array | float, Array | float],
    rows: Array | None = None,
    columns: Array | None = None,
    return_dbias: bool = False,
    **options: Any,
) -> None:
    """Compare o and the gradients with the oracle; within lengths, beyond which all are zero.

    `scores` are the mask, the bias and the factors of dropout; `rows` and `columns` say which steps
    are within the lengths.
    """
    q, k, v = (operands.host[name] for name in "qkv")
    dtype = operands.dtype
    scale = q.shape[-1] ** -0.5
    o, stats, _ = attention(q, k, v, scale, *scores)
    if rows is not None:
        o, stats = np.where(rows, o, 0), np.where(rows, stats, 0)
    out = new(handle, o.shape, dtype), new(handle, stats.shape, "float32")
    results = dnn.scaled_dot_product_attention_forward(
        handle, **operands.arrays, **options, return_stats=True, out=out
    )
    near(results[0], o, "attention")
    values = results[1].numpy()
    written = values if rows is None else np.where(rows, values, 0)
    assert_close(written, stats, bound(dtype, "stats"))
    if dtype == "float32":
        return
    operands.add("o", o.shape, values=o)
    operands.add("do", o.shape)
    do = operands.host["do"] if rows is None else np.where(rows, operands.host["do"], 0)
    gradients = list(attention_gradients(q, k, v, do, scale, *scores))
    if rows is not None and columns is not None:
        gradients = [
            np.where(steps, gradient, 0)
            for steps, gradient in zip((rows, columns, columns), gradients, strict=True)
        ]
    if return_dbias:
        gradients.append(attention_bias_gradient(q, k, v, do, scale, *scores))
        options["return_dbias"] = True
    new_gradients = tuple(new(handle, gradient.shape, dtype) for gradient in gradients)
    computed = dnn.scaled_dot_product_attention_backward(
        handle, **operands.arrays, stats=results[1], **options, out=new_gradients
    )
    for result, gradient in zip(computed, gradients, strict=True):
        near(result, gradient, "attention gradients")


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "sizes", [(1, 2, 2, 192, 192, 64, 64), (2, 4, 2, 40, 136, 64, 32)], ids=str
)
def test_a_window(handle: dnn.Handle, sizes: tuple[int, ...], dtype: str, causal: bool) -> None:
    operands = attention_operands(handle, sizes, dtype)
    rows, columns = sizes[3:5]
    mask = window_mask(rows, columns, 9)
    if causal:
        mask &= causal_mask(rows, columns)
    check_both_directions(handle, operands, (mask, 0.0, 1.0), causal=causal, window=9)


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "sizes",
    [(2, 4, 2, 40, 136, 64, 32), (1, 2, 2, 64, 64, 32, 32), (2, 4, 4, 2, 72, 64, 64), (3, 2, 2, 1, 40, 32, 32)],
    ids=str,
)  # fmt: skip
def test_a_diagonal_that_ends_at_the_last_score(
    handle: dnn.Handle, sizes: tuple[int, ...], dtype: str, bias: bool
) -> None:
    """As where queries continue a cache of keys: the last one attends to all."""
    operands = attention_operands(handle, sizes, dtype)
    batch, heads, _, rows, columns = sizes[:5]
    added: Any = 0.0
    if bias:
        operands.add("bias", (batch, heads, rows, columns))
        added = operands.host["bias"]
    mask = causal_mask(rows, columns, bottom_right=True)
    check_both_directions(handle, operands, (mask, added, 1.0), causal="bottom_right")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window": 17}], ids=str)
@pytest.mark.parametrize("heads", [4, 2])
def test_lengths(handle: dnn.Handle, heads: int, options: dict[str, Any], dtype: str) -> None:
    """Each sequence has its own; what is beyond them is not read, and zero where it is written."""
    sizes = (2, 4, heads, 64, 72, 64, 32)
    operands = attention_operands(handle, sizes, dtype)
    q_lengths, kv_lengths = (
        np.array(lengths).reshape(2, 1, 1, 1) for lengths in ([40, 64], [33, 70])
    )
    operands.add("q_lengths", q_lengths.shape, "int32", values=q_lengths)
    operands.add("kv_lengths", kv_lengths.shape, "int32", values=kv_lengths)
    rows = np.arange(64)[:, None] < q_lengths
    columns = np.arange(72)[:, None] < kv_lengths
    mask = np.broadcast_to(columns.swapaxes(-1, -2), (2, 1, 64, 72))
    if "causal" in options:
        mask = mask & causal_mask(64, 72)
    if "window" in options:
        mask = mask & window_mask(64, 72, options["window"])
    # Rows beyond the lengths, and those whose window ends before them, attend to nothing.
    is_empty = ~mask.any(-1, keepdims=True)
    assert not (is_empty & rows).any()
    check_both_directions(handle, operands, (mask | is_empty, 0.0, 1.0), rows, columns, **options)


def test_lengths_are_arrays_or_integers(handle: dnn.Handle) -> None:
    """Of one axis, or four; where one is given alone, all steps of the other are valid."""
    operands = attention_operands(handle, (3, 2, 1, 24, 40, 32, 32), "float16")
    rows, columns, all_rows = [24, 7, 1], [40, 33, 9], [24] * 3

    def array(lengths: list[int], *axes: int) -> dnn.DeviceArray:
        return handle.array(np.reshape(lengths, (3, *axes)), dtype="int32")

    def both(q_lengths: Any, kv_lengths: Any) -> list[Any]:
        lengths = {"q_lengths": q_lengths, "kv_lengths": kv_lengths}
        given = operands.arrays | lengths
        o, stats = dnn.scaled_dot_product_attention_forward(handle, **given, return_stats=True)
        gradients = dnn.scaled_dot_product_attention_backward(
            handle, **given, o=o, do=o, stats=stats
        )
        return [result.numpy() for result in (o, *gradients)]

    expected = both(array(rows, 1, 1, 1), array(columns, 1, 1, 1))
    on_host = np.array(rows), np.array(columns, np.int32)
    for q_lengths, kv_lengths in ((rows, tuple(columns)), (array(rows), array(columns)), on_host):
        for result, other in zip(both(q_lengths, kv_lengths), expected, strict=True):
            np.testing.assert_array_equal(result, other)
    for result, other in zip(both(None, columns), both(all_rows, columns), strict=True):
        np.testing.assert_array_equal(result, other)
    for result, other in zip(both(rows, None), both(rows, [40] * 3), strict=True):
        np.testing.assert_array_equal(result, other)
    specs = {name: operand.spec for name, operand in operands.arrays.items()}
    graphs = [
        dnn.scaled_dot_product_attention_forward.graph(**specs, q_lengths=of_q, kv_lengths=of_k)
        for of_q, of_k in ((rows, columns), (array(rows), array(columns).spec))
    ]
    assert graphs[0] == graphs[1]
    alone = dnn.scaled_dot_product_attention_forward.graph(**specs, kv_lengths=columns)
    assert alone == graphs[0]


def test_lengths_of_integers_are_no_part_of_a_recorded_graph(handle: dnn.Handle) -> None:
    operands = attention_operands(handle, (2, 2, 2, 8, 8, 16, 16), "float16")
    out = dnn.scaled_dot_product_attention_forward(handle, **operands.arrays, kv_lengths=[3, 8])
    with (
        pytest.raises(dnn.errors.CaptureError, match="give q_lengths and kv_lengths as arrays"),
        dnn.capture(handle),
    ):
        dnn.scaled_dot_product_attention_forward(
            handle, **operands.arrays, kv_lengths=[3, 8], out=out
        )


@pytest.mark.parametrize("dtype", HALVES)
def test_a_bias_in_both_directions(handle: dnn.Handle, dtype: str) -> None:
    operands = attention_operands(handle, ATTENTION["asymmetric"], dtype)
    operands.add("bias", (1, 4, 40, 72))
    check_both_directions(handle, operands, (None, operands.host["bias"], 1.0))


@pytest.mark.parametrize("shape", [(2, 1, 1, 72), (1, 4, 1, 72), (1, 1, 1, 72)], ids=str)
@pytest.mark.parametrize("dtype", HALVES)
def test_a_bias_that_steps_share(handle: dnn.Handle, dtype: str, shape: tuple[int, ...]) -> None:
    """An H200 computes the forward pass rightly, and the gradients wrongly."""
    operands = attention_operands(handle, ATTENTION["asymmetric"], dtype)
    operands.add("bias", shape)
    host, scale = operands.host, operands.host["q"].shape[-1] ** -0.5
    o, _, _ = attention(host["q"], host["k"], host["v"], scale, None, host["bias"], 1.0)
    near(dnn.scaled_dot_product_attention_forward(handle, **operands.arrays), o, "attention")
    operands.add("o", o.shape, values=o)
    operands.add("do", o.shape)
    stats = handle.full((*o.shape[:3], 1), 1.0, "float32")
    with pytest.raises(dnn.ArgumentError, match=r"^bias has shape .*; needed: 40 on axis -2"):
        dnn.scaled_dot_product_attention_backward(handle, **operands.arrays, stats=stats)


@each_pair(
    steps=[(64, 128), (40, 72)],
    shared=["nothing", "batch", "heads", "both"],
    dtype=HALVES,
    causal=[False, True],
)
def test_the_gradient_of_a_bias(
    handle: dnn.Handle, steps: tuple[int, int], shared: str, dtype: str, causal: bool
) -> None:
    """Summed over the batch and the heads that share a bias; heads of queries share keys."""
    operands = attention_operands(handle, (2, 4, 2, *steps, 64, 32), dtype)
    batch = 1 if shared in ("batch", "both") else 2
    heads = 1 if shared in ("heads", "both") else 4
    operands.add("bias", (batch, heads, *steps))
    scores = (causal_mask(*steps) if causal else None, operands.host["bias"], 1.0)
    check_both_directions(handle, operands, scores, causal=causal, return_dbias=True)


@each_pair(
    heads=[4, 2],
    shared=["nothing", "batch", "heads", "both"],
    dtype=HALVES,
    causal=[False, True],
)
def test_the_gradient_of_a_bias_within_lengths(
    handle: dnn.Handle, heads: int, shared: str, dtype: str, causal: bool
) -> None:
    """Steps beyond the lengths have no part in it, whatever their statistics are."""
    operands = attention_operands(handle, (2, 4, heads, 64, 128, 64, 32), dtype)
    lengths = np.array([[40, 64], [33, 120]]).reshape(2, 2, 1, 1, 1)
    for name, values in zip(("q_lengths", "kv_lengths"), lengths, strict=True):
        operands.add(name, (2, 1, 1, 1), "int32", values=values)
    bias_batch = 1 if shared in ("batch", "both") else 2
    bias_heads = 1 if shared in ("heads", "both") else 4
    operands.add("bias", (bias_batch, bias_heads, 64, 128))
    rows = np.arange(64)[:, None] < lengths[0]
    columns = np.arange(128)[:, None] < lengths[1]
    mask = np.broadcast_to(columns.swapaxes(-1, -2), (2, 1, 64, 128))
    if causal:
        mask = mask & causal_mask(64, 128)
    scores = (mask, operands.host["bias"], 1.0)
    check_both_directions(handle, operands, scores, rows, columns, causal=causal, return_dbias=True)


def test_undefined_statistics_have_no_part_in_the_gradient_of_a_bias(
    own_handle: dnn.Handle,
) -> None:
    operands = attention_operands(own_handle, (2, 2, 2, 64, 64, 32, 32), "float16")
    operands.add("bias", (1, 2, 64, 64))
    operands.add("q_lengths", (2, 1, 1, 1), "int32", values=np.reshape([40, 64], (2, 1, 1, 1)))
    operands.add("kv_lengths", (2, 1, 1, 1), "int32", values=np.reshape([64, 64], (2, 1, 1, 1)))
    o, stats = dnn.scaled_dot_product_attention_forward(
        own_handle, **operands.arrays, return_stats=True
    )
    gradients = []
    for undefined in (np.nan, 0.0):
        host = stats.numpy()
        host[0, :, 40:] = undefined
        dq, dk, dv, dbias = dnn.scaled_dot_product_attention_backward(
            own_handle,
            **operands.arrays,
            o=o,
            do=o,
            stats=own_handle.array(host),
            return_dbias=True,
        )
        gradients.append([array.numpy() for array in (dq, dk, dv, dbias)])
    for one, other in zip(*gradients, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, other)


def test_the_gradient_of_a_bias_with_dropout(handle: dnn.Handle) -> None:
    sizes = (2, 4, 2, 64, 128, 64, 64)
    options = {"dropout": 0.25, "seed": 7, "offset": 3}
    kept = np.where(dropped(handle, "float16", sizes, **options) > 0.5, 4 / 3, 0.0)
    operands = attention_operands(handle, sizes, "float16")
    operands.add("bias", (1, 4, 64, 128))
    scores = (None, operands.host["bias"], kept)
    check_both_directions(handle, operands, scores, return_dbias=True, **options)


def test_float32_within_lengths(handle: dnn.Handle) -> None:
    operands = attention_operands(handle, (2, 2, 2, 64, 72, 64, 64), "float32")
    lengths = np.array([[40, 64], [33, 70]]).reshape(2, 2, 1, 1, 1)
    operands.add("q_lengths", (2, 1, 1, 1), "int32", values=lengths[0])
    operands.add("kv_lengths", (2, 1, 1, 1), "int32", values=lengths[1])
    mask = np.arange(72) < lengths[1]
    o, *_ = attention(*(operands.host[name] for name in "qkv"), scale=0.125, mask=mask)
    result = dnn.scaled_dot_product_attention_forward(
        handle, **operands.arrays, out=new(handle, o.shape, "float32")
    )
    rows = np.broadcast_to(np.arange(64)[:, None] < lengths[0], o.shape)
    assert_close(result.numpy()[rows], o[rows], bound("float32", "attention"))


def dropped(handle: dnn.Handle, dtype: str, sizes: tuple[int, ...], **options: Any) -> Array:
    """Return the factors that dropout has for the weights of the values.

    Where all weights are equal and the values are rows of a unit matrix, the result shows them.
    """
    batch, heads, groups, rows, columns, *_ = sizes
    operands = Operands(handle, dtype)
    operands.add("q", (batch, heads, rows, 64), values=np.zeros((batch, heads, rows, 64)))
    operands.add("k", (batch, groups, columns, 64))
    unit = np.broadcast_to(np.eye(columns), (batch, groups, columns, columns))
    operands.add("v", unit.shape, values=unit)
    o = dnn.scaled_dot_product_attention_forward(handle, **operands.arrays, **options)
    return o.numpy().astype(np.float64) * columns


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("dtype", HALVES)
def test_dropout(handle: dnn.Handle, dtype: str, causal: bool) -> None:
    """The weights that are dropped are the same in both directions, and others by another seed."""
    sizes = (2, 4, 2, 64, 128, 64, 64)
    options = {"dropout": 0.25, "seed": 7, "offset": 3}
    factors = dropped(handle, dtype, sizes, **options)
    assert_close(factors, np.where(factors > 0.5, 4 / 3, 0), 1e-2)
    kept = np.where(factors > 0.5, 4 / 3, 0.0)
    assert abs((kept > 0).mean() - 0.75) < 0.02
    assert (kept == np.where(dropped(handle, dtype, sizes, **options) > 0.5, 4 / 3, 0)).all()
    for name in ("seed", "offset"):
        others = dropped(handle, dtype, sizes, **{**options, name: 8}) > 0.5
        assert 0.3 < (others != (kept > 0)).mean() < 0.45, name  # 2 * 0.25 * 0.75
    operands = attention_operands(handle, sizes, dtype)
    mask = causal_mask(64, 128) if causal else None
    check_both_directions(handle, operands, (mask, 0.0, kept), causal=causal, **options)


def test_a_plan_takes_the_seed_with_each_call(handle: dnn.Handle) -> None:
    operands = attention_operands(handle, (1, 2, 2, 64, 64, 64, 64), "float16")
    function = dnn.scaled_dot_product_attention_forward
    with function.plan(handle, **operands.arrays, dropout=0.5, seed=1) as plan:
        first = plan(**operands.arrays)["o"].numpy()
        second = plan(**operands.arrays, seed=2)["o"].numpy()
    for seed, planned in ((1, first), (2, second)):
        alone = function(handle, **operands.arrays, dropout=0.5, seed=seed).numpy()
        assert (alone == planned).all()
    assert (first != second).any()


def test_a_head_with_gaps_is_refused(handle: dnn.Handle) -> None:
    """cuDNN's heuristics would end the process."""
    packed = dnn.TensorSpec((2, 2, 64, 32), "float16")
    transposed = dnn.TensorSpec((2, 2, 64, 32), "float16", strides=(4096, 2048, 1, 64))
    for place, name in enumerate("qkv"):
        specs = [packed] * 3
        specs[place] = transposed
        with pytest.raises(dnn.ArgumentError, match=f"{name} has strides"):
            dnn.scaled_dot_product_attention_forward.plan(handle, *specs)
        graph = dnn.Graph()
        q, k, v = (
            graph.input(tensor, spec.shape, spec.dtype, spec.strides)
            for tensor, spec in zip("qkv", specs, strict=True)
        )
        weights = graph.softmax(q @ k.transposed(), "float16")
        graph.output("o", weights @ v, "float16")
        with pytest.raises(dnn.ArgumentError, match=f"that of {name} has 64"):
            graph.plan(handle)


@pytest.mark.parametrize("kind", ["window of int32", "lengths of the mask alone"])
def test_masks_that_are_computed_wrongly_are_refused(handle: dnn.Handle, kind: str) -> None:
    graph = dnn.Graph()
    q, k, v = (graph.input(name, (2, 2, 64, 64), "float16") for name in "qkv")
    scores = q @ k.transposed()
    if kind == "window of int32":
        size = graph.scalar("size", 8, "int32")
        end = graph.pointwise("ADD", graph.index(scores, -1), size, dtype="int32")
        scores = graph.where(graph.index(scores, -2) < end, scores, -math.inf)
    else:
        lengths = [graph.input(name, (2, 1, 1, 1), "int32") for name in ("rows", "columns")]
        scores = graph.within_lengths(scores, *lengths)
    weights, _ = graph.softmax_with_stats(scores, "float16")
    graph.output("o", weights @ v, "float16")
    with pytest.raises(dnn.ArgumentError, match="computes attention wrongly"):
        graph.plan(handle)


# ---------------------------------------------------------------- sizes that cuDNN treats apart


@pytest.mark.parametrize("rows", [1, 2])
def test_one_step_of_queries_beside_many_of_keys(handle: dnn.Handle, rows: int) -> None:
    """As in generation: with a causal mask the first step sees the first key alone."""
    operands = attention_operands(handle, (2, 2, 2, rows, 96, 64, 64), "float16")
    for causal in (False, True):
        mask = causal_mask(rows, 96) if causal else None
        o, *_ = attention(**operands.host, scale=0.125, mask=mask)
        result = dnn.scaled_dot_product_attention_forward(
            handle, **operands.arrays, causal=causal, out=new(handle, o.shape, "float16")
        )
        near(result, o, "attention", what=f"causal={causal}")


@pytest.mark.parametrize("steps", [64, 128, 192, 320])
def test_a_mask_with_steps_beyond_a_multiple_of_128(handle: dnn.Handle, steps: int) -> None:
    operands = attention_operands(handle, (1, 2, 2, steps, steps, 64, 64), "bfloat16")
    o, stats, _ = attention(**operands.host, scale=0.125, mask=causal_mask(steps, steps))
    results = dnn.scaled_dot_product_attention_forward(
        handle,
        **operands.arrays,
        causal=True,
        return_stats=True,
        out=(new(handle, o.shape, "bfloat16"), new(handle, stats.shape, "float32")),
    )
    near(results[0], o, "attention")
    near(results[1], stats, "stats", "bfloat16")


# ---------------------------------------------------------------- products


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((1, 64, 32), (1, 32, 48)),
        ((3, 40, 24), (3, 24, 56)),
        ((3, 40, 24), (1, 24, 56)),
        ((1, 128, 8), (1, 8, 16)),
    ],
    ids=str,
)
def test_products(handle: dnn.Handle, a: tuple[int, ...], b: tuple[int, ...], dtype: str) -> None:
    operands = Operands(handle, dtype)
    operands.add("a", a), operands.add("b", b)
    expected = operands.host["a"] @ operands.host["b"]
    out = new(handle, expected.shape, dtype)
    assert dnn.matmul(handle, **operands.arrays, out=out) is out
    near(out, expected, "product")


@pytest.mark.parametrize("side", ["a", "b", "both"])
def test_products_of_transposed_matrices(handle: dnn.Handle, side: str) -> None:
    operands = Operands(handle, "float16")
    rows, inner, columns = 48, 32, 64
    operands.add("a", (2, rows, inner), strides=(rows * inner, 1, rows) if side != "b" else None)
    operands.add(
        "b", (2, inner, columns), strides=(inner * columns, 1, inner) if side != "a" else None
    )
    out = new(handle, (2, rows, columns), "float16")
    dnn.matmul(handle, **operands.arrays, out=out)
    near(out, operands.host["a"] @ operands.host["b"], "product")


@each_pair(
    shape=[None, (1, 1, 48), (2, 64, 48)],
    activation=[None, *ACTIVATIONS],
    dtype=["float16", "bfloat16"],
)
def test_products_with_bias_and_activation(
    handle: dnn.Handle, shape: tuple[int, ...] | None, activation: str | None, dtype: str
) -> None:
    operands = Operands(handle, dtype)
    operands.add("a", (2, 64, 32)), operands.add("b", (2, 32, 48))
    expected = operands.host["a"] @ operands.host["b"]
    if shape is not None:
        operands.add("bias", shape)
        expected = expected + operands.host["bias"]
    if activation is not None:
        expected = ACTIVATIONS[activation](expected)
    out = new(handle, expected.shape, "float32")
    dnn.matmul(handle, **operands.arrays, activation=activation, dtype="float32", out=out)
    near(out, expected, "product", dtype)


# ---------------------------------------------------------------- normalisations


# By name of a family: shape of x, shape of scale, normalised axes.
NORMALIZATIONS = {
    "layer": ((6, 40, 1, 1), (1, 40, 1, 1), (1, 2, 3)),
    "layer of rows": ((6, 40), (1, 40), (1,)),
    "layer of images": ((3, 8, 5, 4), (1, 8, 5, 4), (1, 2, 3)),
    "rms": ((6, 40, 1, 1), (1, 40, 1, 1), (1, 2, 3)),
    "rms of rows": ((6, 40), (1, 40), (1,)),
    "rms of images": ((3, 8, 5, 4), (1, 8, 5, 4), (1, 2, 3)),
    "instance": ((3, 8, 5, 4), (1, 8, 1, 1), (2, 3)),
    "instance of volumes": ((2, 8, 3, 5, 4), (1, 8, 1, 1, 1), (2, 3, 4)),
}


def normalization_case(
    handle: dnn.Handle, case: str, dtype: str
) -> tuple[str, Operands, tuple[int, ...]]:
    """Return the family, its operands, and the axes."""
    shape, parameters, axes = NORMALIZATIONS[case]
    family = case.partition(" ")[0]
    operands = Operands(handle, dtype)
    operands.add("x", shape)
    operands.add("scale", parameters, "float32")
    if family != "rms":
        operands.add("bias", parameters, "float32")
    return family, operands, axes


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", NORMALIZATIONS)
def test_normalisations_forward(handle: dnn.Handle, case: str, dtype: str) -> None:
    family, operands, axes = normalization_case(handle, case, dtype)
    forward = getattr(dnn, f"{family}_normalization_forward")
    host = {"bias": 0.0, **operands.host}
    y, mean, inverse = normalization(**host, axes=axes, centered=family != "rms")
    statistics = [inverse] if family == "rms" else [mean, inverse]
    out = new(handle, y.shape, dtype)
    assert forward(handle, **operands.arrays, epsilon=1e-3, out=out) is out
    near(out, y, "normalisation")
    outputs = (new(handle, y.shape, dtype), *(new(handle, s.shape, "float32") for s in statistics))
    results = forward(handle, **operands.arrays, epsilon=1e-3, training=True, out=outputs)
    near(results[0], y, "normalisation")
    for result, expected in zip(results[1:], statistics, strict=True):
        near(result, expected, "normalisation", "float32")


@pytest.mark.parametrize("family", ["layer", "rms"])
def test_normalisations_of_rows_are_those_of_images_of_one_pixel(
    handle: dnn.Handle, family: str
) -> None:
    """x is (N, C) and scale (C,), also if x is a view with gaps."""
    operands = Operands(handle, "float16")
    operands.add("x", (6, 40), strides=(48, 1))
    operands.add("scale", (40,), "float32")
    if family == "layer":
        operands.add("bias", (40,), "float32")
    forward = getattr(dnn, f"{family}_normalization_forward")
    backward = getattr(dnn, f"{family}_normalization_backward")

    def both_directions(*shapes: tuple[int, ...]) -> list[dnn.DeviceArray]:
        x, scale, *bias = (
            array.copy().reshape(shape)
            for array, shape in zip(operands.arrays.values(), shapes, strict=False)
        )
        y, *statistics = forward(
            handle, x, scale, **dict(zip(["bias"], bias, strict=False)), training=True
        )
        return [y, *statistics, *backward(handle, y, x, scale, *statistics)]

    rows = both_directions((6, 40), (40,), (40,))
    images = both_directions((6, 40, 1, 1), (1, 40, 1, 1), (1, 40, 1, 1))
    for row, image in zip(rows, images, strict=True):
        np.testing.assert_array_equal(row.numpy().ravel(), image.numpy().ravel())
    statistics = [(6, 1)] * (2 if family == "layer" else 1)
    gradients = [(6, 40), *[(40,)] * len(statistics)]
    assert [row.shape for row in rows] == [(6, 40), *statistics, *gradients]
    y = forward(handle, **operands.arrays)
    np.testing.assert_array_equal(y.numpy(), rows[0].numpy())
    for name, shape in {
        "scale": (6,),
        **({"bias": (39,)} if "bias" in operands.arrays else {}),
    }.items():
        wrong = {name: handle.full(shape, 1.0)}
        match = (
            rf"{name} has shape \({shape[0]},\); needed beside x \(6, 40\): \(40,\) or \(1, 40\)"
        )
        with pytest.raises(dnn.ArgumentError, match=match):
            forward(handle, **operands.arrays | wrong)
    of_rows, of_images = (
        forward.graph(**{name: dnn.TensorSpec(shape, "float32") for name, shape in shapes.items()})
        for shapes in (
            {"x": (6, 40), **dict.fromkeys([*operands.arrays][1:], (40,))},
            {"x": (6, 40, 1, 1), **dict.fromkeys([*operands.arrays][1:], (1, 40, 1, 1))},
        )
    )
    views = {
        record.name: (record.shape, record.strides)
        for record in of_rows.tensors
        if record.view_of is not None
    }
    assert views == {
        name: (record.shape, record.strides) for name, record in of_images.inputs.items()
    }


def test_shapes_that_normalisations_refuse(handle: dnn.Handle) -> None:
    rows, images = handle.full((6, 40), 1.0), handle.full((6, 40, 1, 1), 1.0)
    vector = handle.full((40,), 1.0)
    with pytest.raises(dnn.ArgumentError, match=r"x has shape \(6, 40\); needed: rank 3 to 5"):
        dnn.instance_normalization_forward(handle, rows, vector, vector)
    with pytest.raises(dnn.ArgumentError, match=r"x has shape \(40,\); needed: rank 2 to 5"):
        dnn.layer_normalization_forward(handle, vector, vector, vector)
    with pytest.raises(dnn.ArgumentError, match=r"; scale\.reshape\(1, 40, 1, 1\) is such a view"):
        dnn.layer_normalization_forward(handle, images, vector, vector)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("family", ["layer", "rms", "instance"])
def test_normalisations_of_views(handle: dnn.Handle, family: str, layout: str, dtype: str) -> None:
    """cuDNN 9.19 refuses images with gaps beside a result without: a call copies them."""
    shape, parameters, axes = NORMALIZATIONS[
        "instance" if family == "instance" else "layer of images"
    ]
    strides = dnn.TensorSpec(shape, layout=layout).strides
    gapped = (2 * strides[0], *strides[1:])  # every second image
    centered = family != "rms"
    operands = Operands(handle, dtype)
    operands.add("x", shape, strides=gapped)
    operands.add(
        "scale", parameters, "float32", strides=dnn.TensorSpec(parameters, layout=layout).strides
    )
    if centered:
        operands.add(
            "bias", parameters, "float32", strides=dnn.TensorSpec(parameters, layout=layout).strides
        )
    host = {"bias": 0.0, **operands.host}
    y, mean, inverse = normalization(**host, axes=axes, centered=centered)
    forward = getattr(dnn, f"{family}_normalization_forward")
    results = forward(handle, **operands.arrays, epsilon=1e-3, training=True)
    near(results[0], y, "normalisation")
    assert results[0].is_packed
    assert results[0].spec.fits(layout)
    with pytest.raises(dnn.ArgumentError, match=r"\bx is .*no gaps"):
        forward.plan(handle, **{name: array.spec for name, array in operands.arrays.items()})
    with pytest.raises(dnn.ArgumentError, match=r"^out is .*needed: an array without gaps"):
        forward(
            handle,
            **operands.arrays,
            out=poisoned(handle, dnn.TensorSpec(shape, dtype, strides=gapped)),
        )
    operands.add("dy", shape, strides=gapped)
    gradients = normalization_gradients(
        operands.host["dy"], host["x"], host["scale"], mean, inverse, axes, centered=centered
    )
    names = ("dy", "x", "scale")
    statistics = results[1:]
    backward = getattr(dnn, f"{family}_normalization_backward")
    results = backward(handle, *(operands.arrays[name] for name in names), *statistics)
    for result, gradient in zip(results, gradients, strict=False):
        near(result, gradient, "normalisation gradients", dtype)
    assert results[0].spec.fits(layout)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(30, 768, 1, 1), (6, 64, 1, 1), (9, 33, 1, 1)])
def test_layer_normalisation_of_rows_with_a_small_deviation(
    handle: dnn.Handle, shape: tuple[int, ...], training: bool
) -> None:
    """Engines of cuDNN 9.28 compute NaN: the square of the mean takes away the whole variance."""
    rng = np.random.default_rng(0)
    constant = np.broadcast_to(rng.uniform(20, 80, (shape[0], 1, 1, 1)), shape)
    parameters = (1, *shape[1:])
    scale, bias = (handle.array(np.full(parameters, value, np.float32)) for value in (1, 0))
    for values in (100 + 0.01 * rng.standard_normal(shape), constant):
        host = values.astype(np.float32)
        x = handle.array(host)
        results = dnn.layer_normalization_forward(handle, x, scale, bias, training=training)
        y = results[0] if training else results
        wide = host.astype(np.float64)
        centered = wide - wide.mean(1, keepdims=True)
        expected = centered / np.sqrt(np.square(centered).mean(1, keepdims=True) + 1e-5)
        assert_near(y.numpy(), expected, NARROW_ROWS, 1.0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("family", ["layer", "rms"])
def test_normalisations_with_channels_last(handle: dnn.Handle, family: str, dtype: str) -> None:
    """The parameters lie as x does, and so does y; parameters in another order are refused."""
    shape, parameters, axes = NORMALIZATIONS[f"{family} of images"]
    last = {size: dnn.TensorSpec(size, layout="NHWC").strides for size in (shape, parameters)}
    forward = getattr(dnn, f"{family}_normalization_forward")
    operands = Operands(handle, dtype)
    operands.add("x", shape, strides=last[shape])
    operands.add("scale", parameters, "float32", strides=last[parameters])
    if family == "layer":
        operands.add("bias", parameters, "float32", strides=last[parameters])
    host = {"bias": 0.0, **operands.host}
    y, *_ = normalization(**host, axes=axes, centered=family == "layer")
    out = poisoned(handle, dnn.TensorSpec(shape, dtype, layout="NHWC"))
    assert forward(handle, **operands.arrays, epsilon=1e-3, out=out) is out
    near(out, y, "normalisation")
    operands.add("scale", parameters, "float32")
    with pytest.raises(dnn.ArgumentError, match="takes scale in the order in which x lies"):
        forward(handle, **operands.arrays, epsilon=1e-3)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", NORMALIZATIONS)
def test_normalisations_backward(handle: dnn.Handle, case: str, dtype: str) -> None:
    family, operands, axes = normalization_case(handle, case, dtype)
    host, arrays = operands.host, operands.arrays
    bias = host.get("bias", 0.0)
    _, mean, inverse = normalization(host["x"], host["scale"], bias, axes, centered=family != "rms")
    operands.add("dy", host["x"].shape)
    if family != "rms":
        operands.add("mean", mean.shape, "float32", values=mean)
    operands.add("inv_variance", inverse.shape, "float32", values=inverse)
    expected = normalization_gradients(
        host["dy"], host["x"], host["scale"], mean, inverse, axes, centered=family != "rms"
    )
    arrays = {name: array for name, array in arrays.items() if name != "bias"}
    expected = expected[:2] if family == "rms" else expected
    out = (
        new(handle, expected[0].shape, dtype),
        *(new(handle, gradient.shape, "float32") for gradient in expected[1:]),
    )
    backward = getattr(dnn, f"{family}_normalization_backward")
    results = backward(handle, **arrays, out=out)
    for result, gradient in zip(results, expected, strict=True):
        near(result, gradient, "normalisation gradients", dtype)


@pytest.mark.parametrize("centered", [False, True])
def test_the_gradients_of_normalisations_are_right(centered: bool) -> None:
    rng = np.random.default_rng(0)
    operands = {"x": rng.standard_normal((2, 5, 1, 1)), "scale": rng.standard_normal((1, 5, 1, 1))}
    dy = rng.standard_normal((2, 5, 1, 1))

    def loss(x: Array, scale: Array) -> Array:
        return normalization(x, scale, 0.0, (1, 2, 3), centered=centered)[0] * dy

    _, mean, inverse = normalization(**operands, bias=0.0, axes=(1, 2, 3), centered=centered)
    dx, dscale, _ = normalization_gradients(
        dy, **operands, mean=mean, inverse=inverse, axes=(1, 2, 3), centered=centered
    )
    assert_close(dx, differences(loss, operands, "x"), 1e-7)
    assert_close(dscale, differences(loss, operands, "scale"), 1e-7)


def test_a_product_divided_by_a_number(handle: dnn.Handle) -> None:
    """It is multiplied by the reciprocal, for which there is an engine."""
    operands = Operands(handle, "float16")
    operands.add("a", (2, 64, 32)), operands.add("b", (2, 32, 48))
    graph = dnn.Graph()
    a, b = (graph.input(name, array.shape, "float16") for name, array in operands.arrays.items())
    graph.output("y", (a @ b) / 5.5, "float16")
    with graph.plan(handle) as plan:
        y = plan(**operands.arrays)["y"]
    near(y, operands.host["a"] @ operands.host["b"] / 5.5, "product")


# ---------------------------------------------------------------- plans


def product_graph(dtype: str = "float16") -> dnn.Graph:
    """Return a product with a factor that is passed by value, and a bias."""
    graph = dnn.Graph()
    a, b = graph.input("a", (2, 64, 32), dtype), graph.input("b", (2, 32, 48), dtype)
    bias = graph.input("bias", (1, 1, 48), dtype)
    y = (a @ b) * graph.scalar("factor", 0.5) + bias
    graph.output("y", graph.relu(y), dtype)
    return graph


def product_operands(handle: dnn.Handle, seed: int = 0, dtype: str = "float16") -> Operands:
    operands = Operands(handle, dtype, seed)
    operands.add("a", (2, 64, 32)), operands.add("b", (2, 32, 48)), operands.add("bias", (1, 1, 48))
    return operands


def product(a: Array, b: Array, bias: Array, factor: float = 0.5) -> Array:
    return np.maximum(factor * (a @ b) + bias, 0)


@pytest.mark.parametrize("replay", [False, True], ids=["", "replay"])
def test_a_plan_is_kept_over_new_buffers(handle: dnn.Handle, replay: bool) -> None:
    with product_graph().plan(handle, replay=replay) as plan:
        for seed in range(5):
            operands = product_operands(handle, seed)
            out = new(handle, (2, 64, 48), "float16")
            results = plan(**operands.arrays, out={"y": out})
            assert [*results] == ["y"]
            assert results["y"] is out
            near(out, product(**operands.host), "product")
            near(plan(*operands.arrays.values())["y"], product(**operands.host), "product")
        assert (plan.replay is None) == (not replay)


def test_a_call_in_a_captured_graph(handle: dnn.Handle) -> None:
    operands = product_operands(handle)
    out = new(handle, (2, 64, 48), "float16")
    with product_graph().plan(handle) as plan:
        plan(**operands.arrays, out=out)
        out = new(handle, (2, 64, 48), "float16")
        with dnn.capture(handle) as captured:
            plan(**operands.arrays, out=out)
        with captured:
            captured.launch()
            near(out, product(**operands.host), "product")


def attention_with_gradients(
    handle: dnn.Handle, sizes: tuple[int, ...] = ATTENTION["asymmetric"]
) -> tuple[Operands, Sequence[Array]]:
    """Return the operands of `scaled_dot_product_attention_backward`, and the gradients."""
    operands = attention_operands(handle, sizes, "float16")
    q, k, v = (operands.host[name] for name in "qkv")
    scale = q.shape[-1] ** -0.5
    o, stats, _ = attention(q, k, v, scale, None)
    operands.add("o", o.shape, values=o)
    operands.add("do", o.shape)
    operands.add("stats", stats.shape, "float32", values=stats)
    return operands, attention_gradients(q, k, v, operands.host["do"], scale, None)


def test_gradients_of_attention_in_a_captured_graph(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they write beside the gradients is in the workspace: a call allocates nothing."""
    operands, expected = attention_with_gradients(handle)
    function = dnn.scaled_dot_product_attention_backward
    out = function(handle, **operands.arrays)  # makes the plan and the workspace
    out = tuple(new(handle, gradient.shape, "float16") for gradient in expected)
    sizes: list[int] = []
    allocate = handle.device.allocate

    def allocate_and_note(nbytes: int, stream: Any) -> Any:
        sizes.append(nbytes)
        return allocate(nbytes, stream)

    monkeypatch.setattr(handle.device, "allocate", allocate_and_note)
    function(handle, **operands.arrays, out=out)
    assert not sizes
    out = tuple(new(handle, gradient.shape, "float16") for gradient in expected)
    sizes.clear()
    with dnn.capture(handle) as captured:
        function(handle, **operands.arrays, out=out)
    assert not sizes
    with captured:
        captured.launch()
        for result, gradient in zip(out, expected, strict=True):
            near(result, gradient, "attention gradients")


@pytest.mark.parametrize("replay", [False, True], ids=["", "replay"])
def test_scratch_memory_of_a_plan(handle: dnn.Handle, replay: bool) -> None:
    """The plan of the function returns the gradients alone; that of the graph all that it writes."""
    operands, expected = attention_with_gradients(handle)
    specs = {name: array.spec for name, array in operands.arrays.items()}
    graph = dnn.scaled_dot_product_attention_backward.graph(**specs)
    sums = [name for name in graph.outputs if name not in ("dq", "dk", "dv")]
    nbytes = sum(graph.outputs[name].spec.nbytes for name in sums)
    with dnn.scaled_dot_product_attention_backward.plan(handle, **specs) as plan:
        assert plan.workspace >= plan.choice.workspace + nbytes
        workspace = new(handle, (plan.workspace,), "uint8")
        for own in (None, workspace):
            results = plan(**operands.arrays, workspace=own)
            assert {*results} == {"dq", "dk", "dv"}
            for name, gradient in zip(("dq", "dk", "dv"), expected, strict=True):
                near(results[name], gradient, "attention gradients")
        with pytest.raises(dnn.ArgumentError, match="workspace"):
            plan(**operands.arrays, workspace=new(handle, (plan.workspace - 256,), "uint8"))
    with graph.plan(handle, replay=replay) as plan:
        assert {*plan(**operands.arrays)} == {"dq", "dk", "dv", *sums}
    with pytest.raises(dnn.WorkspaceLimitError, match=r"needs .*, the limit is"):
        dnn.scaled_dot_product_attention_backward.plan(handle, **specs, workspace_limit=nbytes - 1)


def test_scratch_outputs_behind_an_odd_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are aligned, and inside of the workspace, which ends where the last of them does."""
    monkeypatch.setattr("cudnnlite.emulated.engines.workspace_bytes", lambda _: 1001)
    with dnn.Handle("emulated") as handle:
        operands, expected = attention_with_gradients(handle, (1, 3, 1, 33, 65, 64, 64))
        specs = {name: array.spec for name, array in operands.arrays.items()}
        with dnn.scaled_dot_product_attention_backward.plan(handle, **specs) as plan:
            assert plan.choice.workspace == 1001
            workspace = new(handle, (plan.workspace,), "uint8")
            for own in (None, workspace):
                results = plan(**operands.arrays, workspace=own)
                for name, gradient in zip(("dq", "dk", "dv"), expected, strict=True):
                    near(results[name], gradient, "attention gradients")


def test_what_is_promised_is_kept(handle: dnn.Handle) -> None:
    operands = product_operands(handle)
    with product_graph().plan(handle, deterministic=True, workspace_limit="64 MiB") as plan:
        assert plan.choice.deterministic
        assert plan.workspace == plan.choice.workspace <= 64 << 20
        first, second = (memory_of(plan(**operands.arrays)["y"]).tobytes() for _ in range(2))
        assert first == second
        engine = plan.choice.algorithm
    with product_graph().plan(handle, engine=engine) as plan:
        assert plan.choice.algorithm == engine
        near(plan(**operands.arrays)["y"], product(**operands.host), "product")


def test_an_engine_that_does_not_keep_what_is_asked(handle: dnn.Handle) -> None:
    with product_graph().plan(handle) as plan:
        engine = plan.choice.algorithm
    with pytest.raises(dnn.ArgumentError, match=r"engine=engine .*FMA was asked for"):
        product_graph("float32").plan(handle, engine=engine, math_type="fma")
    with pytest.raises(dnn.ArgumentError, match="engine=3 is not an Engine"):
        product_graph().plan(handle, engine=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a", "bias", "y"])
def test_operands_that_are_not_aligned(handle: dnn.Handle, name: str) -> None:
    """They are copied to where kernels can load them."""
    operands = product_operands(handle)
    shape = (2, 64, 48) if name == "y" else operands.arrays[name].shape
    size = math.prod(shape)
    part = handle.zeros((size + 1,), "float16")[1:].reshape(shape)
    assert part.ptr % 16
    out = part if name == "y" else new(handle, (2, 64, 48), "float16")
    if name != "y":
        part.copy_from(operands.arrays[name].numpy())
        operands.arrays[name] = part
    argument = "out" if name == "y" else name
    with product_graph().plan(handle) as plan:
        with pytest.warns(dnn.errors.AlignmentWarning, match=f"^{argument} begins at"):
            result = plan(**operands.arrays, out=out)["y"]
        assert result is out
        near(out, product(**operands.host), "product")


def test_a_graph_can_be_planned_again_and_saved(handle: dnn.Handle) -> None:
    graph = product_graph()
    operands = product_operands(handle)
    for again in (graph, dnn.Graph.from_json(graph.to_json())):
        with again.plan(handle) as plan:
            assert plan.graph == graph
            near(plan(**operands.arrays)["y"], product(**operands.host), "product")


def test_numbers_are_those_of_the_graph(handle: dnn.Handle) -> None:
    """Two graphs that differ in a number alone; each call passes its own."""
    operands = product_operands(handle)
    plans = {}
    for factor in (0.5, -2.0):
        graph = dnn.Graph()
        tensors = {
            name: graph.input(name, array.shape, "float16")
            for name, array in operands.arrays.items()
        }
        y = (tensors["a"] @ tensors["b"]) * factor + tensors["bias"]
        graph.output("y", graph.relu(y), "float16")
        plans[factor] = graph.plan(handle)
    for factor, plan in [*plans.items()] * 2:
        with np.errstate(all="ignore"):
            result = plan(**operands.arrays)["y"]
        near(result, product(**operands.host, factor=factor), "product", what=str(factor))
    for plan in plans.values():
        plan.close()


def test_a_number_may_have_another_value_for_one_call(handle: dnn.Handle) -> None:
    operands = product_operands(handle)
    with product_graph().plan(handle) as plan:
        out = new(handle, (2, 64, 48), "float16")
        for factor in (0.25, None, -3.0, 0.5, None):
            more = {} if factor is None else {"factor": factor}
            plan(**operands.arrays, **more, out=out)
            expected = product(**operands.host, factor=0.5 if factor is None else factor)
            near(out, expected, "product", what=f"factor={factor}")
        with pytest.raises(dnn.ArgumentError, match="factor='2' must be a real number"):
            plan(**operands.arrays, factor="2")
        near(plan(**operands.arrays)["y"], product(**operands.host), "product")
    with (
        product_graph().plan(handle, replay=True) as plan,
        pytest.raises(dnn.ArgumentError, match=r"factor: .*replay=True was recorded"),
    ):
        plan(**operands.arrays, factor=2.0)


def test_a_captured_call_has_the_number_of_its_capture(handle: dnn.Handle) -> None:
    operands = product_operands(handle)
    out = new(handle, (2, 64, 48), "float16")
    with product_graph().plan(handle) as plan:
        plan(**operands.arrays, out=out)
        with dnn.capture(handle) as captured:
            plan(**operands.arrays, factor=-2.0, out=out)
        plan(**operands.arrays, out=out)
        with captured:
            captured.launch()
            near(out, product(**operands.host, factor=-2.0), "product")


def test_the_one_line_functions_keep_their_plans(handle: dnn.Handle) -> None:
    operands = attention_operands(handle, (1, 2, 2, 64, 64, 32, 32), "float16")
    o, *_ = attention(**operands.host, scale=0.5, mask=None)
    for _ in range(3):
        result = dnn.scaled_dot_product_attention_forward(handle, **operands.arrays, scale=0.5)
        near(result, o, "attention")
    o, *_ = attention(**operands.host, scale=0.25, mask=None)
    near(
        dnn.scaled_dot_product_attention_forward(handle, **operands.arrays, scale=0.25),
        o,
        "attention",
        what="another number is another graph",
    )
    specs = {name: array.spec for name, array in operands.arrays.items()}
    with dnn.scaled_dot_product_attention_forward.plan(handle, **specs, scale=0.25) as plan:
        near(plan(**operands.arrays)["o"], o, "attention")


# ---------------------------------------------------------------- graphs of one's own


def run(
    handle: dnn.Handle, graph: dnn.Graph, arrays: Mapping[str, dnn.DeviceArray]
) -> dict[str, dnn.DeviceArray]:
    """Return what a graph writes into outputs full of NaN."""
    out = {name: poisoned(handle, record.spec) for name, record in graph.outputs.items()}
    with graph.plan(handle) as plan:
        return plan(**arrays, out=out)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_chain_behind_a_product(handle: dnn.Handle, dtype: str) -> None:
    graph = dnn.Graph()
    operands = Operands(handle, dtype)
    for name, shape in {"a": (1, 64, 32), "b": (1, 32, 64), "gate": (1, 64, 64)}.items():
        operands.add(name, shape)
        graph.input(name, shape, dtype)
    a, b, gate = (graph.tensor(name) for name in ("a", "b", "gate"))
    graph.output("y", graph.relu(graph.sigmoid(a @ b * 0.25) * gate + 0.1), dtype)
    host = operands.host
    y = host["gate"] / (1 + np.exp(-0.25 * (host["a"] @ host["b"])))
    near(run(handle, graph, operands.arrays)["y"], np.maximum(y + 0.1, 0), "product")


@pytest.mark.parametrize("operator", ["ADD", "MAX"])
def test_a_reduction_behind_a_product(handle: dnn.Handle, operator: str) -> None:
    graph = dnn.Graph()
    operands = Operands(handle, "float16")
    operands.add("a", (2, 64, 32)), operands.add("b", (2, 32, 128))
    a, b = graph.input("a", (2, 64, 32), "float16"), graph.input("b", (2, 32, 128), "float16")
    graph.output("y", graph.reduce(operator, graph.relu(a @ b)))
    values = np.maximum(operands.host["a"] @ operands.host["b"], 0)
    expected = {"ADD": values.sum, "MAX": values.max}[operator](-1, keepdims=True)
    near(run(handle, graph, operands.arrays)["y"], expected, "product", "float16")


@pytest.mark.parametrize("mode", ["ADD", "MUL", "MAX", "EXP", "TANH_FWD", "SQRT"])
def test_one_pointwise_operation(handle: dnn.Handle, mode: str) -> None:
    graph = dnn.Graph()
    operands = Operands(handle, "float32")
    shape = (2, 24, 40)
    operands.add("x", shape, values=np.random.default_rng(0).uniform(0.25, 2, shape))
    x = graph.input("x", shape)
    second = ()
    if mode in ("ADD", "MUL", "MAX"):
        operands.add("b", shape)
        second = (graph.input("b", shape),)
    graph.output("y", graph.pointwise(mode, x, *second))
    function: Any = {
        "ADD": np.add,
        "MUL": np.multiply,
        "MAX": np.maximum,
        "EXP": np.exp,
        "TANH_FWD": np.tanh,
        "SQRT": np.sqrt,
    }[mode]
    expected = function(*operands.host.values())
    near(run(handle, graph, operands.arrays)["y"], expected, "pointwise")


CONVOLUTION = dnn.ConvolutionSpec(1)


@pytest.mark.parametrize("uneven", [False, True], ids=["", "uneven"])
@pytest.mark.parametrize("direction", ["forward", "data", "filter"])
def test_convolutions_in_graphs(handle: dnn.Handle, direction: str, uneven: bool) -> None:
    """Padding may differ at the two ends; of gradients that was recorded with channels last."""
    conv = dnn.ConvolutionSpec(((0, 1), (2, 1))) if uneven else CONVOLUTION
    shapes = {"x": (2, 16, 8, 9), "w": (24, 16, 3, 3)}
    shapes["dy"] = conv.output_shape(shapes["x"], shapes["w"])
    needed = {"forward": "x w", "data": "w dy", "filter": "x dy"}[direction].split()
    graph, operands = dnn.Graph(), Operands(handle, "float16")
    for name in needed:
        strides = dnn.TensorSpec(shapes[name], layout="NHWC").strides
        operands.add(name, shapes[name], strides=strides)
        graph.input(name, shapes[name], "float16", strides)
    first, second = (graph.tensor(name) for name in needed)
    if direction == "forward":
        y, written = graph.convolution_forward(first, second, conv), "y"
    elif direction == "data":
        y, written = graph.convolution_backward_data(first, second, shapes["x"], conv), "dx"
    else:
        y, written = graph.convolution_backward_filter(first, second, shapes["w"], conv), "dw"
    strides = dnn.TensorSpec(y.shape, layout="NHWC").strides
    graph.output(written, y, "float16", strides)
    result = run(handle, graph, operands.arrays)[written]
    near(result, convolved(direction, conv, shapes, operands.host), "product")


def convolved(
    direction: str, conv: dnn.ConvolutionSpec, shapes: dict[str, Any], host: Mapping[str, Array]
) -> Array:
    """Return a correlation with stride 1, or a gradient of it, tap by tap."""
    pads = [(0, 0), (0, 0), *conv.pads(2)]
    x = np.pad(host.get("x", np.zeros(shapes["x"])), pads)
    w = host.get("w", np.zeros(shapes["w"]))
    rows, columns = shapes["dy"][2:]
    y, dx, dw = np.zeros(shapes["dy"]), np.zeros_like(x), np.zeros(shapes["w"])
    for i, j in np.ndindex(shapes["w"][2:]):
        view = (slice(None), slice(None), slice(i, i + rows), slice(j, j + columns))
        y += np.einsum("nchw,kc->nkhw", x[view], w[:, :, i, j])
        if "dy" in host:
            dx[view] += np.einsum("nkhw,kc->nchw", host["dy"], w[:, :, i, j])
            dw[:, :, i, j] = np.einsum("nkhw,nchw->kc", host["dy"], x[view])
    inside = tuple(
        slice(before, size - behind) for size, (before, behind) in zip(x.shape, pads, strict=True)
    )
    return {"forward": y, "data": dx[inside], "filter": dw}[direction]


PADS = ((1, 0), (0, 1))


@pytest.mark.parametrize("channels_last", [False, True], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("mode", ["MAXPOOL", "AVGPOOL_INCLUDE_PADDING", "AVGPOOL_EXCLUDE_PADDING"])
def test_poolings_with_uneven_padding(handle: dnn.Handle, mode: str, channels_last: bool) -> None:
    shape = (2, 8, 7, 9)
    strides = dnn.TensorSpec(shape, layout="NHWC" if channels_last else "NCHW").strides
    graph, operands = dnn.Graph(), Operands(handle, "float16")
    operands.add("x", shape, strides=strides)
    x = graph.input("x", shape, "float16", strides)
    is_largest = mode == "MAXPOOL"
    y = graph.resample_forward(
        mode,
        x,
        (3, 2),
        stride=(2, 1),
        padding=PADS,
        padding_mode="NEG_INF" if is_largest else "ZERO",
    )
    layout = "NHWC" if channels_last else "NCHW"
    graph.output("y", y, strides=dnn.TensorSpec(y.shape, layout=layout).strides)
    if mode == "AVGPOOL_INCLUDE_PADDING" and not channels_last:
        with pytest.raises(dnn.ArgumentError, match="averages over padding wrongly"):
            graph.plan(handle)
        return
    host = operands.host["x"]
    fill = -np.inf if is_largest else 0.0
    padded = np.pad(host, [(0, 0), (0, 0), (1, 0), (0, 1)], constant_values=fill)
    inside = np.pad(np.ones(shape[2:]), [(1, 0), (0, 1)])
    expected = np.empty(y.shape)
    for row, column in np.ndindex(y.shape[2:]):
        taps = (slice(2 * row, 2 * row + 3), slice(column, column + 2))
        window = padded[(slice(None), slice(None), *taps)]
        count = inside[taps].sum() if mode == "AVGPOOL_EXCLUDE_PADDING" else 6
        values = window.max((2, 3)) if is_largest else window.sum((2, 3)) / count
        expected[:, :, row, column] = values
    near(run(handle, graph, operands.arrays)["y"], expected, "pointwise")


# ---------------------------------------------------------------- what is refused


def softmax_alone() -> dnn.Graph:
    graph = dnn.Graph()
    graph.output("y", graph.softmax(graph.input("x", (2, 4, 8, 16), "float16")), "float16")
    return graph


def reduction_alone() -> dnn.Graph:
    graph = dnn.Graph()
    graph.output("y", graph.reduce("ADD", graph.input("x", (2, 8, 16), "float16")))
    return graph


def statistics_alone() -> dnn.Graph:
    graph = dnn.Graph()
    x = graph.input(
        "x", (2, 8, 4, 4), "float16", dnn.TensorSpec((2, 8, 4, 4), layout="NHWC").strides
    )
    for name, tensor in zip(("total", "squares"), graph.gen_stats(x), strict=True):
        graph.output(name, tensor)
    return graph


def product_of_four_axes() -> dnn.Graph:
    graph = dnn.Graph()
    a = graph.input("a", (2, 3, 64, 32), "float16")
    graph.output("y", a @ graph.input("b", (2, 3, 32, 48), "float16"), "float16")
    return graph


def float32_gradients() -> dnn.Graph:
    q, stats = dnn.TensorSpec((1, 2, 64, 32)), dnn.TensorSpec((1, 2, 64, 1))
    return dnn.scaled_dot_product_attention_backward.graph(q, q, q, q, q, stats)


def attention_without_statistics() -> dnn.Graph:
    graph = dnn.Graph()
    q, k, v = (graph.input(name, (1, 2, 64, 32), "float16") for name in "qkv")
    scores = q @ k.transposed()
    powers = graph.exp(scores - graph.reduce("MAX", scores))
    p = graph.div(powers, graph.reduce("ADD", powers), "float16")
    graph.output("o", p @ v, "float16")
    return graph


@pytest.mark.parametrize(
    "graph",
    [
        softmax_alone,
        reduction_alone,
        statistics_alone,
        product_of_four_axes,
        float32_gradients,
        attention_without_statistics,
    ],
)
def test_graphs_without_an_engine(handle: dnn.Handle, graph: Callable[[], dnn.Graph]) -> None:
    """What an H100 with cuDNN 9.19 refuses, the emulated device refuses."""
    with pytest.raises(dnn.NotSupportedError) as refusal:
        graph().plan(handle)
    if handle.device.kind == "emulated":  # cuDNN may refuse before it is asked for engines
        assert "graph of" in str(refusal.value)


def broken(
    kind: str, shape: tuple[int, ...], reads: tuple[str, ...], **attributes: Any
) -> dnn.Graph:
    """Return a graph of one operation, whose result has a shape of its own."""
    graph = dnn.Graph()
    x = graph.input("x", (2, 8, 6, 6), "float16", layout="NHWC")
    written = "cdesc" if kind == "MATMUL" else "ydesc"
    y = graph.virtual(shape)
    graph.node(kind, attributes, reads=dict.fromkeys(reads, x), writes={written: y})
    graph.output("y", y, "float16")
    return graph


COMPUTE = {"comp_type": "float32"}
POINTWISE = {"math_prec": "float32"}
BROKEN = {
    "product": broken("MATMUL", (2, 8, 6, 7), ("adesc", "bdesc"), **COMPUTE),
    "product of one": broken("MATMUL", (2, 8, 6, 6), ("adesc",), **COMPUTE),
    "sum": broken("REDUCTION", (2, 8, 6, 3), ("xdesc",), operator="ADD", **COMPUTE),
    "reshape": broken("RESHAPE", (2, 8, 6, 5), ("xdesc",)),
    "addition": broken("POINTWISE", (2, 8, 6, 7), ("xdesc", "bdesc"), mode="ADD", **POINTWISE),
    "addition of one": broken("POINTWISE", (2, 8, 6, 6), ("xdesc",), mode="ADD", **POINTWISE),
    "rank": broken("POINTWISE", (1, 2, 8, 6, 6), ("xdesc",), mode="EXP", **POINTWISE),
}


@pytest.mark.parametrize("case", BROKEN)
def test_operations_that_do_not_fit_together(handle: dnn.Handle, case: str) -> None:
    """Whatever is written as a node is refused by cuDNN, if not before: nothing else comes out."""
    with pytest.raises((dnn.CudnnError, dnn.ArgumentError)):
        BROKEN[case].plan(handle)


def spec(*shape: int, dtype: str = "float16") -> dnn.TensorSpec:
    return dnn.TensorSpec(shape, dtype)


QUERIES = spec(2, 4, 64, 32)
HALVES = spec(2, 4, 64, 32, dtype="bfloat16")


def test_float16_beside_bfloat16_behind_a_product(own_handle: dnn.Handle) -> None:
    """The emulated device has none of it, because no GPU was asked; the refusal names a remedy."""
    bias = spec(1, 1, 64, 64, dtype="bfloat16")
    with pytest.raises(dnn.ArgumentError, match=r"^bias is bfloat16; .*: float16 or float32"):
        FORWARD.plan(own_handle, QUERIES, QUERIES, QUERIES, bias=bias)
    a, b, row = spec(1, 16, 32), spec(1, 32, 8), spec(1, 1, 8, dtype="bfloat16")
    with pytest.raises(dnn.NotSupportedError, match="served with bias as float32"):
        dnn.matmul.plan(own_handle, a, b, bias=row)


FORWARD = dnn.scaled_dot_product_attention_forward


def test_outputs_that_do_not_fit(handle: dnn.Handle) -> None:
    operands = product_operands(handle)
    with product_graph().plan(handle) as plan:
        for out, match in {
            "wrong name": ({"z": new(handle, (2, 64, 48), "float16")}, "out has 'z'; allowed: y"),
            "wrong shape": ({"y": new(handle, (2, 64, 40), "float16")}, "out has shape"),
            "wrong type": ({"y": new(handle, (2, 64, 48), "float32")}, "out is .*made for"),
            "an operand": ({"y": operands.arrays["a"]}, "out has shape"),
        }.values():
            with pytest.raises(dnn.ArgumentError, match=match):
                plan(**operands.arrays, out=out)
        with pytest.raises(TypeError, match=r"takes a, b, bias; 2 arrays|is missing bias"):
            plan(operands.arrays["a"], operands.arrays["b"])
        with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
            plan(**operands.arrays, z=1)
    q = handle.zeros((1, 1, 64, 32), "float16")
    with pytest.raises(dnn.ArgumentError, match="out has to be a tuple of o, stats"):
        FORWARD(handle, q, q, q, return_stats=True, out=q)
    with pytest.raises(dnn.ArgumentError, match=r"matmul.graph\(...\) returns it"):
        dnn.matmul.problem(spec(1, 64, 32), spec(1, 32, 16))
