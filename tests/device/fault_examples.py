"""Graphs that have each fault of cuDNN, and a worker that runs them with all rules off.

    PYTHONPATH=tests python -m device.fault_examples DEVICE

A request is the name of a fault; the answer is what its graphs do, as `Fault.seen` says it, or
"not served".  The worker may die of a request.  Results are compared with sums in float64.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from graph_oracles import (
    attention,
    attention_bias_gradient,
    attention_gradients,
    normalization,
    normalization_gradients,
)
from oracles import onnx_convolution, onnx_gradient_of_w, onnx_gradient_of_x

import cudnnlite as dnn
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.errors import CudnnError, DeviceLostError
from cudnnlite.graph import faults
from cudnnlite.graph.engines import HEURISTICS, configurations
from cudnnlite.graph.exclusions import VARIABLE
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.nearest import changes
from cudnnlite.operations.convolution.graphs import data_of
from cudnnlite.types import Engine, GraphTensor
from device.problems import busy, fill_scratch, poisoned, upload

Array = np.ndarray[Any, Any]
NHWC = "NHWC"
# From the worst to the best; a fault is as bad as its worst run.
OUTCOMES = ("process", "context", "wrong", "fails", "right", "not served")
# What was seen of these came from larger random graphs; an H200 computes the examples rightly, or
# has no engine for them (9.19).  The rules stay, as a call lost the device.
UNSHOWN = ("rows behind a normalisation", "no softmax")
_TOLERANCE = 0.03  # of the largest result


class Example(NamedTuple):
    """A graph, the values of its inputs, and what its outputs are.

    Attributes
    ----------
    graph : Graph
    values : mapping of str to array
        The inputs in float64, as they are in their data types.
    expected : mapping of str to array
        Outputs in float64.
    is_busy : bool
        Whether it runs on a stream that is busy.
    """

    graph: dnn.Graph
    values: dict[str, Array]
    expected: dict[str, Array]
    is_busy: bool = False


class Operands:
    """A graph with inputs of random values."""

    def __init__(self, graph: dnn.Graph | None = None) -> None:
        self.graph = graph or dnn.Graph()
        self.values: dict[str, Array] = {}
        for name, record in self.graph.inputs.items():
            self.draw(name, record.shape, record.dtype)

    def draw(
        self, name: str, shape: tuple[int, ...], dtype: Any, host: Array | None = None
    ) -> None:
        """Draw the values of an input."""
        rng = np.random.default_rng((len(self.values), *shape))
        host = rng.standard_normal(shape) if host is None else host
        plain = numpy_dtype(dnn.TensorSpec(shape, dtype).dtype)
        self.values[name] = host.astype(plain).astype(np.float64)

    def add(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str = "float16",
        strides: tuple[int, ...] | None = None,
        layout: str | None = None,
        host: Array | None = None,
    ) -> tuple[GraphTensor, Array]:
        """Add an input, and return it with its values."""
        self.draw(name, shape, dtype, host)
        return self.graph.input(name, shape, dtype, strides, layout=layout), self.values[name]

    def example(self, is_busy: bool = False, **expected: Array) -> Example:
        """Return the example; `expected` are its outputs."""
        return Example(self.graph, self.values, expected, is_busy)


# By fault: functions that return its examples.
EXAMPLES: dict[str, list[Callable[[], Example]]] = {}


def shows(name: str, **variants: Any) -> Callable[[Any], Any]:
    """Register a function as an example of a fault: one for each value of its only argument."""

    def register(function: Any) -> Any:
        ways = [partial(function, value) for values in variants.values() for value in values]
        EXAMPLES.setdefault(name, []).extend(ways or [function])
        return function

    return register


def steps(shape: tuple[int, ...], layout: str | None = None, by: int = 1) -> tuple[int, ...]:
    """Return the strides of a layout, multiplied."""
    return tuple(by * stride for stride in dnn.TensorSpec(shape, layout=layout).strides)


# -------------------------------------------------------------------------- pooling


def windows(x: Array, size: tuple[int, int], pads: Any, fill: float) -> Iterator[Any]:
    """Yield the places of a pooling's results with the padded windows, of stride 2."""
    padded = np.pad(x, ((0, 0), (0, 0), *pads), constant_values=fill)
    rows, columns = ((n - k) // 2 + 1 for n, k in zip(padded.shape[2:], size, strict=True))
    for i, j in itertools.product(range(rows), range(columns)):
        window = (..., slice(2 * i, 2 * i + size[0]), slice(2 * j, 2 * j + size[1]))
        yield (..., i, j), window, padded[window]


def pooled(x: Array, size: tuple[int, int], pads: Any, mode: str) -> Array:
    """Return a pooling."""
    fill = -np.inf if mode == "MAXPOOL" else 0.0
    parts = list(windows(x, size, pads, fill))
    shape = (*x.shape[:2], parts[-1][0][1] + 1, parts[-1][0][2] + 1)
    y = np.empty(shape)
    for place, _, values in parts:
        y[place] = values.max((-2, -1)) if mode == "MAXPOOL" else values.mean((-2, -1))
    return y


def pooling_gradient(x: Array, dy: Array, size: tuple[int, int], pads: Any, mode: str) -> Array:
    """Return dx."""
    fill = -np.inf if mode == "MAXPOOL" else 0.0
    padded = np.pad(np.zeros_like(x), ((0, 0), (0, 0), *pads))
    for place, window, values in windows(x, size, pads, fill):
        gradient = dy[place][..., None, None]
        if mode == "MAXPOOL":
            flat = values.reshape(*values.shape[:2], -1)
            is_first = np.arange(flat.shape[-1]) == flat.argmax(-1, keepdims=True)
            gradient = gradient * is_first.reshape(values.shape)
        else:
            gradient = np.broadcast_to(gradient / np.prod(size), values.shape)
        padded[window] += gradient
    (top, _), (left, _) = pads
    return padded[:, :, top : top + x.shape[2], left : left + x.shape[3]]


IMAGES, EVEN, UNEVEN = (2, 8, 6, 9), ((0, 0), (0, 0)), ((0, 1), (0, 0))
MAXIMA = {"window": (2, 2), "stride": (2, 2), "padding": EVEN, "padding_mode": "NEG_INF"}
AVERAGES = {"window": (3, 2), "stride": (2, 2), "padding": UNEVEN, "padding_mode": "ZERO"}


@shows("indices")
def _() -> Example:
    o = Operands()
    x, host = o.add("x", IMAGES, layout="NCHW")
    result = o.graph.resample_forward_with_indices(x, (2, 2), stride=(2, 2), padding=EVEN)
    o.graph.output("y", result.y, "float16")
    o.graph.output("indices", result.indices)
    places = [v.reshape(*v.shape[:2], -1).argmax(-1) for _, _, v in windows(host, (2, 2), EVEN, 0)]
    y = pooled(host, (2, 2), EVEN, "MAXPOOL")
    return o.example(y=y, indices=np.stack(places, -1).reshape(y.shape))


def maxima_gradient(layout: str, step_of_dx: int, step: int) -> Example:
    o = Operands()
    x, host = o.add("x", IMAGES, layout=layout)
    y_host = pooled(host, (2, 2), EVEN, "MAXPOOL")
    y, _ = o.add("y", y_host.shape, layout=layout, host=y_host)
    dy, dy_host = o.add("dy", y_host.shape, "float16", steps(y_host.shape, layout, step))
    dx = o.graph.resample_backward("MAXPOOL", dy, IMAGES, x=x, y=y, **MAXIMA)
    o.graph.output("dx", dx, "float16", steps(IMAGES, layout, step_of_dx))
    return o.example(dx=pooling_gradient(host, dy_host, (2, 2), EVEN, "MAXPOOL"))


shows("gradient of maxima, channels last")(lambda: maxima_gradient(NHWC, 1, 1))
shows("gradient of maxima, strides of dx")(lambda: maxima_gradient("NCHW", 2, 1))
shows("gradient of maxima, gaps")(lambda: maxima_gradient("NCHW", 1, 2))


def averages(dtype: str, layout: str, channels: int, forward: bool) -> Example:
    o = Operands()
    shape = (2, channels, *IMAGES[2:])
    x, host = o.add("x", shape, dtype, layout=layout)
    y = pooled(host, (3, 2), UNEVEN, "AVGPOOL")
    if forward:
        result = o.graph.resample_forward("AVGPOOL_INCLUDE_PADDING", x, **AVERAGES)
        o.graph.output("y", result, dtype, layout=layout)
        return o.example(y=y)
    o = Operands()
    dy, dy_host = o.add("dy", y.shape, dtype, layout=layout)
    dx = o.graph.resample_backward("AVGPOOL_INCLUDE_PADDING", dy, shape, **AVERAGES)
    o.graph.output("dx", dx, dtype, layout=layout)
    return o.example(dx=pooling_gradient(host, dy_host, (3, 2), UNEVEN, "AVGPOOL"))


shows("pooling of bfloat16", channels=(1, 8))(lambda n: averages("bfloat16", NHWC, n, True))
shows("averages over padding", forward=(True, False))(lambda f: averages("float32", "NCHW", 8, f))


# ------------------------------------------------------------------- normalisations


@shows("parameters of a normalisation")
def _() -> Example:
    o = Operands()
    x, host = o.add("x", (4, 8, 3, 4), layout=NHWC)
    scale, of_scale = o.add("scale", (1, 8, 3, 4), "float32")
    bias, of_bias = o.add("bias", (1, 8, 3, 4), "float32")
    y = o.graph.normalization_forward("LAYER", x, scale, bias, epsilon=1e-3).y
    o.graph.output("y", y, "float16", layout=NHWC)
    return o.example(y=normalization(host, of_scale, of_bias, (1, 2, 3), centered=True)[0])


@shows("gradient behind a normalisation", mode=("RELU_BWD", "TANH_BWD"))
def _(mode: str) -> Example:
    o = Operands()
    (x, host), (dy, of_dy) = (o.add(name, (6, 64, 1, 1), "float32") for name in ("x", "dy"))
    scale, of_scale = o.add("scale", (1, 64, 1, 1), "float32")
    y = o.graph.normalization_forward("RMS", x, scale, epsilon=1e-3).y
    o.graph.output("dx", o.graph.pointwise(mode, y, dy), "float32")
    inner = normalization(host, of_scale, 0.0, (1, 2, 3), centered=False)[0]
    slope = inner > 0 if mode == "RELU_BWD" else 1 - np.tanh(inner) ** 2
    return o.example(dx=of_dy * slope)


@shows("rows behind a normalisation", chain=("SUB", "MUL", "SUB RELU", "DIV TANH"))
def _(chain: str) -> Example:
    o = Operands()
    x, host = o.add("x", (6, 64, 1, 1), "float32")
    (scale, of_scale), (bias, of_bias) = (
        o.add(name, (1, 64, 1, 1), "float32") for name in ("scale", "bias")
    )
    b, of_b = o.add("b", (6, 64, 1, 1), "float32", (64, 1, 64, 64))
    y = o.graph.normalization_forward("LAYER", x, scale, bias, epsilon=1e-3).y
    inner = normalization(host, of_scale, of_bias, (1, 2, 3), centered=True)[0]
    mode, *others = chain.split()
    y = o.graph.pointwise(mode, y, b)
    values = {"SUB": inner - of_b, "MUL": inner * of_b, "DIV": inner / of_b}[mode]
    if others == ["RELU"]:
        y, values = o.graph.relu(y), np.maximum(values, 0)
    elif others:
        y, values = o.graph.tanh(y), np.tanh(values)
    o.graph.output("y", y, "float32")
    return o.example(y=values)


@shows("variance of rows", training=(False, True))
def _(training: bool) -> Example:
    o = Operands()
    rows = 100 + 0.01 * np.random.default_rng(3).standard_normal((60, 64, 1, 1))
    x, host = o.add("x", rows.shape, "float32", host=rows)
    (scale, of_scale), (bias, of_bias) = (
        o.add(name, (1, 64, 1, 1), "float32") for name in ("scale", "bias")
    )
    result = o.graph.normalization_forward("LAYER", x, scale, bias, training=training, epsilon=1e-3)
    y, mean, inverse = normalization(host, of_scale, of_bias, (1, 2, 3), centered=True)
    o.graph.output("y", result.y, "float32")
    if not training:
        return o.example(y=y)
    o.graph.output("mean", result.mean)
    o.graph.output("inv_variance", result.inv_variance)
    return o.example(y=y, mean=mean, inv_variance=inverse)


@shows("default stream")
def _() -> Example:
    x, scale, statistics = (
        dnn.TensorSpec(shape) for shape in ((6, 8, 6, 5), (1, 8, 1, 1), (6, 8, 1, 1))
    )
    operation = dnn.instance_normalization_backward
    o = Operands(operation.graph(x, x, scale, statistics, statistics))
    host, of_scale = o.values["x"], o.values["scale"]
    _, mean, inverse = normalization(host, of_scale, 0.0, (2, 3), centered=True)
    o.draw("mean", mean.shape, "float32", mean)
    o.draw("inv_variance", inverse.shape, "float32", inverse)
    dx, dscale, dbias = normalization_gradients(
        o.values["dy"], host, of_scale, mean, inverse, (2, 3), centered=True
    )
    return o.example(is_busy=True, dx=dx, dscale=dscale, dbias=dbias)


# ------------------------------------------------------------------------ attention


def drawn(graph: dnn.Graph) -> Operands:
    """Return a graph of attention with the values of its operands."""
    o = Operands(graph)
    if "stats" in o.values:
        q, k, v = (o.values[name] for name in "qkv")
        result, stats, _ = attention(q, k, v, q.shape[-1] ** -0.5, None, o.values.get("bias", 0.0))
        o.draw("o", result.shape, graph.inputs["o"].dtype, result)
        o.draw("stats", stats.shape, "float32", stats)
    return o


def forward(
    q: dnn.TensorSpec, k: dnn.TensorSpec, of_o: tuple[int, ...] | None = None, **options: Any
) -> Example:
    graph = dnn.scaled_dot_product_attention_forward.graph(q, k, k, **options)
    if of_o is not None:
        plain = graph.to_plain()
        for tensor in plain["tensors"]:
            if tensor.get("name") == "o":
                tensor["strides"] = list(of_o)
        graph = dnn.Graph.from_plain(plain)
    o = drawn(graph)
    values = o.values
    result = attention(values["q"], values["k"], values["v"], q.shape[-1] ** -0.5, None)[0]
    return o.example(o=result)


def backward(k: dnn.TensorSpec, bias: tuple[int, ...], **options: Any) -> Example:
    batch, heads, _, size = k.shape
    q, stats = dnn.TensorSpec((batch, heads, 9, size), "float16"), (batch, heads, 9, 1)
    v = dnn.TensorSpec(k.shape, "float16")
    graph = dnn.scaled_dot_product_attention_backward.graph(
        q,
        k,
        v,
        q,
        q,
        dnn.TensorSpec(stats, "float32"),
        bias=dnn.TensorSpec(bias, "float16"),
        **options,
    )
    return with_gradients(drawn(graph))


def with_gradients(o: Operands) -> Example:
    """Return gradients of attention with what they are."""
    hosts = [o.values[name] for name in ("q", "k", "v", "do")]
    rest = (hosts[0].shape[-1] ** -0.5, None, o.values.get("bias", 0.0))
    expected = dict(zip(("dq", "dk", "dv"), attention_gradients(*hosts, *rest), strict=True))
    if "dbias" in o.graph.outputs:
        expected["dbias"] = attention_bias_gradient(*hosts, *rest)
    return o.example(**expected)


HEADS = (2, 2, 16, 32)
shows("heads with gaps")(
    lambda: forward(
        dnn.TensorSpec(HEADS, "float16"), dnn.TensorSpec(HEADS, "float16"), steps(HEADS, by=2)
    )
)
shows("strides between vectors", row=(33, 34, 36))(
    lambda row: forward(
        dnn.TensorSpec(HEADS, "float16"),
        dnn.TensorSpec(HEADS, "float16", strides=(32 * row, 16 * row, row, 1)),
    )
)
shows("strides between vectors")(
    lambda: forward(
        dnn.TensorSpec(HEADS, "float16"), dnn.TensorSpec(HEADS, "float16"), (1028, 514, 32, 1)
    )
)


@shows("missing subtractions")
def _() -> Example:
    q, stats = dnn.TensorSpec(HEADS, "float16"), dnn.TensorSpec((*HEADS[:3], 1))
    graph = dnn.scaled_dot_product_attention_backward.graph(q, q, q, q, q, stats)
    without = {change.description: change.graph for change in changes(graph)}["without SUB"]
    return Operands(dnn.Graph.from_plain(without.to_plain())).example()


def gradients(
    heads: int,
    keys: int,
    of_stats: tuple[int, ...] | None = None,
    of_dq: tuple[int, ...] | None = None,
    **lengths: tuple[int, ...],
) -> Example:
    """Return gradients of attention; of its lengths, strides are given by their names."""
    batch = 2 if lengths else 1
    shape = (batch, heads, 9 if lengths else 1, 16)
    q, k = dnn.TensorSpec(shape, "float16"), dnn.TensorSpec((batch, heads, keys, 16), "float16")
    stats = dnn.TensorSpec((*shape[:3], 1), strides=of_stats)
    specs = {
        name: dnn.TensorSpec((batch, 1, 1, 1), "int32", strides=strides)
        for name, strides in lengths.items()
    }
    out = (dnn.TensorSpec(shape, "float16", strides=of_dq), k, k)
    graph = dnn.scaled_dot_product_attention_backward.graph(q, k, k, q, q, stats, out=out, **specs)
    o = drawn(graph)
    for name, record in graph.inputs.items():
        if name in specs:
            longest = shape[2] if name == "q_lengths" else keys
            o.draw(name, record.shape, "int32", np.full(record.shape, longest))
    return with_gradients(o)


PACKED, IN_STEPS = (1, 1, 1, 1), (2, 1, 1, 1)
shows("lengths with gaps")(lambda: gradients(2, 16, q_lengths=PACKED, kv_lengths=IN_STEPS))
shows("lengths with gaps")(lambda: gradients(2, 16, q_lengths=IN_STEPS, kv_lengths=PACKED))
shows("heads of a single query", strides=((54, 27, 3, 3), (4, 2, 1, 1)))(
    lambda strides: gradients(2, 16, strides)
)
shows("heads of a single query")(lambda: gradients(2, 16, of_dq=(48, 24, 24, 1)))
# Of two sequences of two heads and nine steps.
shows("strides between vectors", of_dq=((306, 153, 17, 1), (324, 162, 18, 1), (360, 180, 20, 1)))(
    lambda of_dq: gradients(2, 16, of_dq=of_dq, q_lengths=PACKED, kv_lengths=PACKED)
)
shows("bias that steps share")(
    lambda: backward(dnn.TensorSpec((2, 2, 8, 16), "float16"), (2, 2, 1, 8))
)
shows("keys beside a bias", strides=((384, 192, 24, 1), (256, 16, 32, 1)))(
    lambda strides: backward(
        dnn.TensorSpec((2, 2, 8, 16), "float16", strides=strides), (2, 1, 9, 8), return_dbias=True
    )
)
shows("attention in float32", size=(160, 256))(
    lambda size: forward(dnn.TensorSpec((1, 2, 16, size)), dnn.TensorSpec((1, 2, 16, size)))
)
shows("attention in float32")(
    lambda: forward(dnn.TensorSpec((2, 4, 1, 64)), dnn.TensorSpec((2, 2, 16, 64)))
)


def masked(o: Operands, mask: str, scores: GraphTensor) -> tuple[GraphTensor, Array]:
    """Return scores of which some are masked, and which are not."""
    g = o.graph
    i, j = np.indices((16, 16))
    if mask == "lengths":  # which the products lack
        lengths = np.array([16, 5.0]).reshape(2, 1, 1, 1)
        of_rows, _ = o.add("rows", (2, 1, 1, 1), "int32", host=np.full((2, 1, 1, 1), 16.0))
        of_columns, _ = o.add("columns", (2, 1, 1, 1), "int32", host=lengths)
        return g.within_lengths(scores, of_rows, of_columns, -1e30), j < lengths
    rows, columns = g.index(scores, 2), g.index(scores, 3)
    kept, of_kept = {
        "after": lambda: (g.pointwise("CMP_LE", rows, columns), i <= j),
        "difference": lambda: (g.pointwise("CMP_LT", rows - columns, 3), i - j < 3),
    }[mask]()
    return g.where(kept, scores, -1e30), of_kept


def by_hand(mask: str, output: str, of_q: tuple[int, ...] | None = None) -> Example:
    """Return an attention from its operations: with a mask from a row's end, or another output."""
    o = Operands()
    q, queries = o.add("q", HEADS, strides=of_q)
    v, of_v = o.add("v", HEADS)
    k, of_k = o.add("k", (2, 2, 32, 16), strides=(1024, 512, 1, 32))
    g = o.graph
    scores = g.matmul(q, k)
    of_scores = queries @ of_k
    if mask:
        scores, kept = masked(o, mask, scores)
        of_scores = np.where(kept, of_scores, -1e30)
    expected = {}
    if output:
        g.output(output, scores, "float32")
        expected[output] = of_scores
    probabilities, _ = g.softmax_with_stats(scores, "float16")
    g.output("o", g.matmul(probabilities, v), "float16")
    powers = np.exp(of_scores - of_scores.max(-1, keepdims=True))
    return o.example(o=powers / powers.sum(-1, keepdims=True) @ of_v, **expected)


shows("outputs within attention")(lambda: by_hand("", "scores"))
shows("masks", mask=("after", "difference", "lengths"))(lambda mask: by_hand(mask, ""))
shows("heads with gaps")(lambda: by_hand("", "", steps(HEADS, by=2)))


@shows("no softmax", function=("", "RELU", "scale"))
def _(function: str) -> Example:
    o = Operands()
    (a, of_a), (c, of_c) = (o.add(name, HEADS) for name in "ac")
    b, of_b = o.add("b", (2, 2, 32, 16), strides=(1024, 512, 1, 32))
    inner, values = o.graph.matmul(a, b), of_a @ of_b
    if function == "RELU":
        inner, values = o.graph.relu(inner), np.maximum(values, 0)
    elif function:
        inner, values = inner * 0.25, values * 0.25
    o.graph.output("y", o.graph.matmul(o.graph.identity(inner, "float16"), c), "float16")
    return o.example(y=values @ of_c)


# ------------------------------------------------------------- pointwise operations


@shows(
    "slope of ReLU",
    attributes=(
        {"relu_upper_clip": 2.0, "relu_lower_clip_slope": 0.25},
        {"relu_lower_clip_slope": 4.0},
    ),
)
def _(attributes: dict[str, float]) -> Example:
    o = Operands()
    x, host = o.add(
        "x",
        (2, 16, 5, 7),
        layout=NHWC,
        host=4 * np.random.default_rng(1).standard_normal((2, 16, 5, 7)),
    )
    o.graph.output("y", o.graph.pointwise("RELU_FWD", x, **attributes), "float16", layout=NHWC)
    below = np.where(host > 0, host, attributes["relu_lower_clip_slope"] * host)
    return o.example(y=np.minimum(below, attributes.get("relu_upper_clip", np.inf)))


@shows("shape of a pointwise operand", shape=((24, 40), (3, 24, 40)))
def _(shape: tuple[int, ...]) -> Example:
    o = Operands()
    x, host = o.add("x", shape, "float32")
    other = (1, 24, 1) if len(shape) == 3 else (24, 40)
    b, of_b = o.add("b", other, "float32")
    o.graph.output("y", x + b, "float32")
    return o.example(y=host + of_b)


PIXELS_ALONE = (
    ((3, 2, 4, 5), (40, 1, 2, 8)),
    ((2, 3, 20, 3), (1, 120, 6, 2)),
    ((4, 5, 4), (1, 16, 4)),
    ((1, 2, 8, 1), (32, 1, 4, 2)),
)


@shows("pixels", case=PIXELS_ALONE)
def _(case: tuple[tuple[int, ...], tuple[int, ...]]) -> Example:
    shape, strides = case
    o = Operands()
    x, host = o.add("x", shape, "float32", strides)
    layout = NHWC if len(shape) == 4 else None
    o.graph.output("y", o.graph.relu(x + 2.0), "float32", layout=layout)
    return o.example(y=np.maximum(host + 2, 0))


# ------------------------------------------------------------------------- products


def product(
    a: tuple[int, ...],
    b: tuple[int, ...],
    dtype: str = "float16",
    result: str | None = None,
    of_b: tuple[int, ...] | None = None,
    of_y: tuple[int, ...] | None = None,
    behind: Any = None,
    dtype_of_b: str | None = None,
) -> Example:
    """Return a product with a chain behind it.

    `behind` gets the operands, the product and its values, and returns what is behind them.
    """
    o = Operands()
    x, of_x = o.add("a", a, dtype)
    w, of_w = o.add("b", b, dtype_of_b or dtype, of_b)
    y, values = o.graph.matmul(x, w), of_x @ of_w
    if behind is not None:
        y, values = behind(o, y, values)
    o.graph.output("y", y, result or dtype, of_y)
    return o.example(y=values)


def plus(shape: tuple[int, ...], dtype: str = "float16", strides: Any = None) -> Any:
    def behind(o: Operands, y: GraphTensor, values: Array) -> tuple[GraphTensor, Array]:
        bias, of_bias = o.add("bias", shape, dtype, strides)
        return y + bias, values + of_bias

    return behind


def elu(o: Operands, y: GraphTensor, values: Array) -> tuple[GraphTensor, Array]:
    return o.graph.elu(y), np.where(values > 0, values, np.expm1(values))


def clipped(o: Operands, y: GraphTensor, values: Array) -> tuple[GraphTensor, Array]:
    return o.graph.pointwise("RELU_FWD", y, relu_upper_clip=2.0), values.clip(0, 2)


shows("data types", result=("int8", "int32"))(
    lambda result: product((2, 8, 16), (2, 16, 8), result=result)
)


shows(
    "matrices", case=(((1, 16, 16), (1728, 3, 72)), ((8, 2), (6, 3)), ((2, 32, 1), (864, 3, 96)))
)(lambda case: product((*case[0][:-1], 8), (*case[0][:-2], 8, case[0][-1]), of_y=case[1]))
shows("float32 to a narrow result", result=("float16", "bfloat16"))(
    lambda result: product((2, 8, 16), (2, 16, 8), "float32", result)
)
shows("clips behind a product")(
    lambda: product((1, 8, 8), (1, 8, 8), result="float32", behind=clipped)
)
shows("one bias for all matrices")(
    lambda: product((3, 3, 8), (3, 8, 1), of_b=(8, 1, 8), of_y=(3, 1, 3), behind=plus((3, 3, 1)))
)
shows("one bias for all matrices", shape=((3, 3, 1, 1), (3, 1, 1)))(
    lambda shape: product((*shape[:-1], 40), (*shape[:-2], 40, 1), behind=plus(shape))
)
shows("result of one column", dtype=("float16", "float32"))(
    lambda dtype: product(
        (1, 3, 32), (1, 32, 1), dtype, of_b=(32, 1, 32), of_y=(3, 1, 3), behind=elu
    )
)
shows("misaligned rows", b=((1, 40, 2), (1, 40, 6)))(lambda b: product((1, 3, 40), b, behind=elu))


# --------------------------------------------------------------------- convolutions

PIXELS, FILTERS = (2, 8, 3, 4), (16, 8, 3, 3)


def convolution(
    behind: Any,
    dtype: str = "float32",
    of_x: tuple[int, ...] | None = None,
    result: str | None = None,
    factor: float = 1.0,
) -> Example:
    """Return a convolution of whole numbers, which is exact, with a chain behind it."""
    o = Operands()
    rng = np.random.default_rng(8)
    layout = None if of_x else NHWC
    of_images, of_filters = factor * rng.integers(-2, 3, PIXELS), 1.0 * rng.integers(-1, 2, FILTERS)
    x, images = o.add("x", PIXELS, dtype, of_x, layout, of_images)
    w, filters = o.add("w", FILTERS, dtype, layout=NHWC, host=of_filters)
    y = o.graph.convolution_forward(x, w, dnn.ConvolutionSpec(padding=1))
    values = onnx_convolution(images, filters, ((1, 1), (1, 1)), (1, 1), (1, 1), 1, False)
    y, values = behind(o, y, values)
    o.graph.output("y", y, result or dtype, layout=NHWC)
    return o.example(y=values)


def tanh_of(dtype: str) -> Any:
    def behind(o: Operands, y: GraphTensor, values: Array) -> tuple[GraphTensor, Array]:
        y, values = plus((1, 16, 1, 1), dtype)(o, y, values)
        return o.graph.tanh(y), np.tanh(values)

    return behind


def gate(o: Operands, y: GraphTensor, values: Array) -> tuple[GraphTensor, Array]:
    dy, of_dy = o.add("dy", values.shape, "float32", layout=NHWC)
    return o.graph.pointwise("RELU_BWD", y, dy), of_dy * (values > 0)


def half_more(_: Operands, y: GraphTensor, values: Array) -> tuple[GraphTensor, Array]:
    return y + 0.5, values + 0.5


def nothing(_: Operands, y: GraphTensor, values: Array) -> tuple[GraphTensor, Array]:
    return y, values


def sum_and_relu(o: Operands, y: GraphTensor, values: Array) -> tuple[GraphTensor, Array]:
    sums, of_sums = plus((1, 16, 1, 1), "float32")(o, y, values)
    o.graph.output("sums", sums, "float32", layout=NHWC)
    return o.graph.relu(sums), np.maximum(of_sums, 0)


shows("sum behind a convolution")(lambda: convolution(sum_and_relu))
shows("shape behind a convolution", shape=((1, 16, 3, 4), (1, 1, 3, 4)))(
    lambda shape: convolution(plus(shape, "float32", steps(shape, NHWC)))
)
shows("gaps behind a convolution", shape=((1, 16, 1, 1), (2, 1, 3, 4), (2, 16, 3, 4)))(
    lambda shape: convolution(plus(shape, "float32", steps(shape, NHWC, 2)))
)
shows("tanh behind a convolution", dtype=("float32", "float16"))(
    lambda dtype: convolution(tanh_of(dtype), dtype, factor=40.0)
)
shows("gradient behind a convolution")(lambda: convolution(gate))
X_WITH_GAPS = (192, 24, 4, 1)
shows("images behind a convolution")(lambda: convolution(half_more, "float32", X_WITH_GAPS))
shows("images behind a convolution")(
    lambda: convolution(nothing, "float32", X_WITH_GAPS, "bfloat16")
)


def gradient(
    kind: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    padding: Any,
    dtype: str = "float32",
    layout: str | None = None,
    groups: int = 1,
    stride: int = 1,
    alpha: float = 1.0,
    constant: float = 0.0,
) -> Example:
    """Return a convolution, or a gradient of it, without a chain; all values may be a constant."""
    conv = dnn.ConvolutionSpec(padding=padding, groups=groups, stride=stride)
    y = conv.output_shape(x, w)
    of_x, of_w, of_y = (dnn.TensorSpec(shape, dtype, layout) for shape in (x, w, y))
    of_w = dnn.FilterSpec(w, dtype, layout or {3: "NCW", 4: "NCHW"}[len(w)])
    axes = len(x) - 2
    rest = (padding, (stride,) * axes, (1,) * axes, groups, False)
    if kind == "data":
        problem = dnn.convolution_backward_data.problem(of_w, of_y, conv, x=of_x, alpha=alpha)
    elif kind == "filter":
        problem = dnn.convolution_backward_filter.problem(of_x, of_y, conv, w=of_w, alpha=alpha)
    else:
        problem = dnn.convolution_forward.problem(of_x, of_w, conv, alpha=alpha)
    graph = dnn.Graph.from_plain(data_of(problem).to_plain())
    o = Operands(graph)
    if constant:
        o.values.update({name: np.full_like(old, constant) for name, old in o.values.items()})
    shapes = {"x": x, "w": w, "dy": y}
    host = {name: values.reshape(shapes[name]) for name, values in o.values.items()}
    if kind == "data":
        return o.example(dx=alpha * onnx_gradient_of_x(x, host["w"], host["dy"], *rest))
    if kind == "filter":
        return o.example(dw=alpha * onnx_gradient_of_w(host["x"], w, host["dy"], *rest))
    return o.example(y=alpha * onnx_convolution(host["x"], host["w"], *rest))


shows("uneven padding")(lambda: gradient("forward", (2, 2, 5), (2, 1, 3), ((1, 2),), groups=2))
shows("uneven padding")(
    lambda: gradient("forward", (2, 8, 8), (8, 1, 5), ((2, 1),), "float16", groups=8)
)
shows("uneven padding, dx")(lambda: gradient("data", (1, 2, 8), (2, 1, 3), ((1, 2),), groups=2))
shows("uneven padding, dx")(
    lambda: gradient("data", (2, 8, 8, 9), (8, 8, 3, 3), ((1, 0), (0, 1)), "float16", NHWC)
)
shows("uneven padding, dw")(
    lambda: gradient("filter", (2, 8, 8, 9), (8, 8, 3, 3), ((1, 0), (0, 1)), "float16", NHWC)
)
shows("uneven padding, dw")(
    lambda: gradient("filter", (3, 8, 8), (8, 1, 5), ((2, 0),), "float16", groups=8)
)
shows("gradient of one axis")(lambda: gradient("filter", (3, 1, 8), (8, 1, 3), ((1, 2),)))
shows("gradient of one axis")(
    lambda: gradient("filter", (2, 8, 8), (2, 4, 4), ((1, 1),), "float32", "NWC", groups=2)
)
shows("unwritten scratch")(lambda: gradient("forward", (1, 8, 9), (1, 8, 2), ((2, 1),), stride=2))
shows("unwritten scratch, dx", shape=((2, 8, 3, 5), (2, 16, 7, 5)))(
    lambda shape: gradient("data", shape, (4, shape[1], 3, 3), ((1, 1), (1, 1)))
)
shows("unwritten scratch, dw", shape=((2, 8, 3, 5), (2, 16, 7, 5)))(
    lambda shape: gradient("filter", shape, (4, shape[1], 3, 3), ((1, 1), (1, 1)))
)
shows("alpha of dw")(
    lambda: gradient(
        "filter",
        (2, 32, 16, 16),
        (32, 32, 3, 3),
        ((1, 1), (1, 1)),
        "float16",
        NHWC,
        alpha=0.5,
        constant=14.0,
    )
)


# -------------------------------------------------------------------------- running


def outcome_of(handle: dnn.Handle, fault: faults.Fault) -> str:
    """Return the worst of what the engines with a fault do with its examples."""
    outcomes = {"not served"}
    for make in EXAMPLES[fault.name]:
        example = make()
        for engine in _engines(handle, fault, example.graph):
            for _ in range(5 if example.is_busy else 1):  # what is not in stream order may be right
                outcomes.add(_run(handle, example, engine))
            if "context" in outcomes:
                return "context"
    return min(outcomes, key=OUTCOMES.index)


def _engines(handle: dnn.Handle, fault: faults.Fault, graph: dnn.Graph) -> list[Engine]:
    """Return the engines of a fault that are named for a graph, two of a number; by number else."""
    found: list[Engine] = []
    with ExitStack() as stack:
        try:
            native = lower(graph, handle, stack)
            named = [c.engine for c in configurations(native, HEURISTICS, stack)]
        except CudnnError:
            named = []
    for engine in named:
        is_suspect = fault.engines is None or engine.index in fault.engines
        if is_suspect and [e.index for e in found].count(engine.index) < 2:
            found.append(engine)
    if isinstance(fault.engines, frozenset):
        found += [Engine(index) for index in fault.engines - {e.index for e in found}]
    return found


def _run(handle: dnn.Handle, example: Example, engine: Engine) -> str:
    graph = example.graph
    arrays = {
        name: upload(
            handle,
            record.spec,
            example.values[name].reshape(record.spec.shape).astype(numpy_dtype(record.dtype)),
        )
        for name, record in graph.inputs.items()
    }
    try:
        plan = graph.plan(handle, engine=engine)
    except DeviceLostError:
        return "context"
    except dnn.CudnnliteError:
        return "not served"
    try:
        with plan:
            fill_scratch(handle, 0x7B)
            out = {name: poisoned(handle, record.spec) for name, record in graph.outputs.items()}
            held = busy(handle) if example.is_busy else None
            plan(**arrays, out=out)
            got = {name: array.numpy().astype(np.float64) for name, array in out.items()}
            del held
    except DeviceLostError:
        return "context"
    except CudnnError:
        return "fails"
    is_right = all(_is_near(got[name], values) for name, values in example.expected.items())
    return "right" if is_right else "wrong"


def _is_near(got: Array, values: Array) -> bool:
    values = values.reshape(got.shape)
    size = max(float(np.abs(values).max()), 1e-3)
    return bool(np.isfinite(got).all() and np.abs(got - values).max() <= _TOLERANCE * size)


def main(device: str) -> None:
    """Answer requests."""
    warnings.simplefilter("ignore")
    known = {fault.name: fault for fault in faults.FAULTS}
    faults.FAULTS = ()
    os.environ.pop(VARIABLE, None)
    handle = dnn.Handle(device)
    handle.stream = handle.device.create_stream()
    for line in sys.stdin:
        answer = outcome_of(handle, known[json.loads(line)])
        print(json.dumps(answer), flush=True)
        if answer == "context":
            os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
