"""Graphs to be recorded: what they are, the values of their inputs, and what has to come out, in float64."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from graph_oracles import (
    ACTIVATIONS,
    attention,
    attention_gradients,
    causal_mask,
    normalization,
    normalization_gradients,
)

import cudnnlite as dnn
from cudnnlite.dtypes import numpy_dtype, parse_dtype

Array = np.ndarray[Any, Any]
Key = tuple[Any, ...]
HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")
# Batch, heads of queries, heads of keys, steps of queries, steps of keys, size of q and k, size of v.
ATTENTION = {
    "usual": (2, 4, 4, 64, 64, 64, 64),
    "sizes 8": (2, 2, 2, 64, 64, 8, 8),
    "sizes 40": (2, 2, 2, 64, 64, 40, 40),
    "sizes 36": (2, 2, 2, 64, 64, 36, 36),
    "sizes 33": (2, 2, 2, 64, 64, 33, 33),
    "sizes 128": (1, 2, 2, 64, 64, 128, 128),
    "sizes 136": (1, 2, 2, 64, 64, 136, 136),
    "sizes 192 and 128": (1, 2, 2, 64, 64, 192, 128),
    "sizes 256": (1, 2, 2, 64, 64, 256, 256),
    "sizes 264": (1, 2, 2, 64, 64, 264, 264),
    "sizes 64 and 32": (2, 2, 2, 64, 64, 64, 32),
    "sizes 32 and 128": (2, 2, 2, 64, 64, 32, 128),
    "one step": (2, 2, 2, 1, 96, 64, 64),
    "two steps": (2, 2, 2, 2, 96, 64, 64),
    "one step of keys": (2, 2, 2, 96, 1, 64, 64),
    "odd steps": (2, 2, 2, 33, 65, 64, 64),
    "fewer keys": (2, 2, 2, 72, 40, 64, 64),
    "more keys": (2, 2, 2, 40, 72, 64, 64),
    "192 steps": (1, 2, 2, 192, 192, 64, 64),
    "320 steps": (1, 2, 2, 320, 320, 64, 64),
    "512 steps": (1, 2, 2, 512, 512, 64, 64),
    "groups of 2": (2, 4, 2, 64, 64, 64, 64),
    "one head of keys": (2, 4, 1, 64, 64, 64, 64),
}
PRODUCTS = {
    "usual": ((1, 64, 32), (1, 32, 48)),
    "batches": ((3, 64, 32), (3, 32, 48)),
    "one b": ((3, 64, 32), (1, 32, 48)),
    "one a": ((1, 64, 32), (3, 32, 48)),
    "odd": ((1, 33, 17), (1, 17, 19)),
    "even": ((1, 34, 18), (1, 18, 22)),
    "four axes": ((2, 3, 64, 32), (2, 3, 32, 48)),
    "two axes": ((64, 32), (32, 48)),
    "one row": ((1, 1, 64), (1, 64, 64)),
    "one column": ((1, 64, 64), (1, 64, 1)),
}
NORMALIZATIONS = {
    "layer": ("LAYER", (6, 40, 1, 1), (1, 40, 1, 1), (1, 2, 3)),
    "layer of 1024": ("LAYER", (16, 1024, 1, 1), (1, 1024, 1, 1), (1, 2, 3)),
    "layer of 33": ("LAYER", (6, 33, 1, 1), (1, 33, 1, 1), (1, 2, 3)),
    "layer of images": ("LAYER", (3, 8, 5, 4), (1, 8, 5, 4), (1, 2, 3)),
    "layer of channels": ("LAYER", (3, 8, 5, 4), (1, 8, 1, 1), (1,)),
    "layer of rows": ("LAYER", (3, 5, 4, 32), (1, 1, 1, 32), (3,)),
    "layer, rank 3": ("LAYER", (6, 5, 40), (1, 1, 40), (2,)),
    "rms": ("RMS", (6, 40, 1, 1), (1, 40, 1, 1), (1, 2, 3)),
    "rms of 1024": ("RMS", (16, 1024, 1, 1), (1, 1024, 1, 1), (1, 2, 3)),
    "rms of images": ("RMS", (3, 8, 5, 4), (1, 8, 5, 4), (1, 2, 3)),
    "rms of rows": ("RMS", (3, 5, 4, 32), (1, 1, 1, 32), (3,)),
    "instance": ("INSTANCE", (3, 8, 5, 4), (1, 8, 1, 1), (2, 3)),
    "instance of 3 channels": ("INSTANCE", (2, 3, 7, 5), (1, 3, 1, 1), (2, 3)),
    "instance of volumes": ("INSTANCE", (2, 8, 3, 5, 4), (1, 8, 1, 1, 1), (2, 3, 4)),
    "instance of lines": ("INSTANCE", (2, 8, 30), (1, 8, 1), (2,)),
}
# What stands behind a product: how it is added to a graph, and the same in float64.
EPILOGUES: dict[str, tuple[Callable[..., Any], Callable[..., Array]]] = {
    "none": (lambda g, y, z: y, lambda y, z: y),
    "operand": (lambda g, y, z: y + z, lambda y, z: y + z),
    "number": (lambda g, y, z: y * 0.5, lambda y, z: y * 0.5),
    "chain": (
        lambda g, y, z: g.tanh(y * 0.5 + z) * z - 1,
        lambda y, z: np.tanh(y * 0.5 + z) * z - 1,
    ),
    "where": (
        lambda g, y, z: g.where(z > 0, y, g.abs(y)),
        lambda y, z: np.where(z > 0, y, np.abs(y)),
    ),
    "index": (
        lambda g, y, z: g.where(g.index(y, -2) >= g.index(y, -1), y, 0.0),
        lambda y, z: np.where(causal_mask(*y.shape[-2:]), y, 0.0),
    ),
    "sum": (
        lambda g, y, z: g.reduce("ADD", y),
        lambda y, z: y.sum(-1, keepdims=True),
    ),
    "sum of relu": (
        lambda g, y, z: g.reduce("ADD", g.relu(y)),
        lambda y, z: np.maximum(y, 0).sum(-1, keepdims=True),
    ),
    "largest": (lambda g, y, z: g.reduce("MAX", y), lambda y, z: y.max(-1, keepdims=True)),
    "sum of columns": (
        lambda g, y, z: g.reduce("ADD", y, -2),
        lambda y, z: y.sum(-2, keepdims=True),
    ),
    "operation behind a sum": (
        lambda g, y, z: g.exp(g.reduce("MAX", y) * 0.1),
        lambda y, z: np.exp(y.max(-1, keepdims=True) * 0.1),
    ),
    "reshape": (
        lambda g, y, z: g.reshape(y, (*y.shape[:-2], y.shape[-1], y.shape[-2])),
        lambda y, z: y.reshape(*y.shape[:-2], y.shape[-1], y.shape[-2]),
    ),
}
POINTWISE: dict[str, Callable[..., Array]] = {
    "ABS": np.abs,
    "ADD": np.add,
    "ADD_SQUARE": lambda x, b: x + b * b,
    "ATAN2": np.arctan2,
    "CEIL": np.ceil,
    "COS": np.cos,
    "DIV": np.divide,
    "ERF": lambda x: 2 * ACTIVATIONS["gelu"](x * np.sqrt(2)) / (x * np.sqrt(2)) - 1,
    "EXP": np.exp,
    "FLOOR": np.floor,
    "IDENTITY": lambda x: x,
    "LOG": np.log,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "MOD": np.fmod,
    "MUL": np.multiply,
    "NEG": np.negative,
    "POW": np.power,
    "RECIPROCAL": np.reciprocal,
    "RSQRT": lambda x: 1 / np.sqrt(x),
    "SIN": np.sin,
    "SQRT": np.sqrt,
    "SUB": np.subtract,
    "TAN": np.tan,
    "RELU_FWD": ACTIVATIONS["relu"],
    "TANH_FWD": ACTIVATIONS["tanh"],
    "SIGMOID_FWD": ACTIVATIONS["sigmoid"],
    "ELU_FWD": ACTIVATIONS["elu"],
    "GELU_FWD": ACTIVATIONS["gelu"],
    "GELU_APPROX_TANH_FWD": ACTIVATIONS["gelu_tanh"],
    "SOFTPLUS_FWD": ACTIVATIONS["softplus"],
    "SWISH_FWD": ACTIVATIONS["swish"],
    "RELU_BWD": lambda x, dy: dy * (x > 0),
    "TANH_BWD": lambda x, dy: dy * (1 - np.tanh(x) ** 2),
    "SIGMOID_BWD": lambda x, dy: dy * ACTIVATIONS["sigmoid"](x) * (1 - ACTIVATIONS["sigmoid"](x)),
}
# The activations that are modes of cuDNN: mish is not one.
ACTIVATION_MODES = {
    "relu": "RELU_FWD",
    "gelu": "GELU_FWD",
    "gelu_tanh": "GELU_APPROX_TANH_FWD",
    "swish": "SWISH_FWD",
    "softplus": "SOFTPLUS_FWD",
    "sigmoid": "SIGMOID_FWD",
    "tanh": "TANH_FWD",
    "elu": "ELU_FWD",
}
PADS = {"none": ((0, 0), (0, 0)), "even": ((1, 1), (1, 1)), "uneven": ((1, 0), (0, 1))}
POOLINGS = ("MAXPOOL", "AVGPOOL_INCLUDE_PADDING", "AVGPOOL_EXCLUDE_PADDING")
LAYOUTS = {"first": None, "last": {3: "NWC", 4: "NHWC", 5: "NDHWC"}}


# ---------------------------------------------------------------------------------- which graphs


def combinations() -> Iterator[Key]:
    """Yield the keys of all rows, each once: a family, and what its function below takes."""
    yield from dict.fromkeys(
        itertools.chain(attentions(), products(), normalizations(), others(), gradients())
    )


def attentions() -> Iterator[Key]:
    """Yield ("attention", case, dtype, causal, bias, layout, chain) and ("attention_backward", case, dtype, causal)."""
    for case, dtype, causal in itertools.product(ATTENTION, FLOATS, (False, True)):
        yield "attention", case, dtype, causal, "none", "packed", "stats"
        yield "attention_backward", case, dtype, causal
    for dtype, bias, causal in itertools.product(
        FLOATS, ("full", "one batch", "one head", "one"), (False, True)
    ):
        yield "attention", "more keys", dtype, causal, bias, "packed", "stats"
    for dtype, layout in itertools.product(FLOATS, ("steps first", "side by side", "transposed")):
        yield "attention", "usual", dtype, False, "none", layout, "stats"
    for dtype, chain in itertools.product(
        FLOATS, ("virtual stats", "without stats", "without scale", "tanh of scores")
    ):
        yield "attention", "usual", dtype, False, "none", "packed", chain
    for dtype, chain, causal in itertools.product(
        FLOATS, ("within lengths", "window of 8"), (False, True)
    ):
        yield "attention", "usual", dtype, causal, "none", "packed", chain
        yield "attention", "192 steps", dtype, causal, "none", "packed", chain


def products() -> Iterator[Key]:
    """Yield ("product", case, dtype, epilogue, shape of its operand, dtype of the result, which are transposed)."""
    for case, dtype in itertools.product(PRODUCTS, FLOATS):
        for epilogue in ("none", "operand", "sum"):
            yield "product", case, dtype, epilogue, "row", dtype, ""
    for epilogue, dtype, shape in itertools.product(EPILOGUES, FLOATS, ("row", "whole")):
        yield "product", "batches", dtype, epilogue, shape, "float32", ""
    for shape, dtype in itertools.product(("column", "number", "batch"), FLOATS):
        yield "product", "batches", dtype, "operand", shape, dtype, ""
    for transposed, dtype in itertools.product(("a", "b", "ab"), FLOATS):
        yield "product", "batches", dtype, "operand", "row", dtype, transposed
    for activation, dtype in itertools.product(ACTIVATION_MODES, FLOATS):
        yield "product", "usual", dtype, activation, "row", dtype, ""
    for dtype in FLOATS:
        yield "prologue", dtype
        yield "square", dtype
        yield "two_products", dtype


def normalizations() -> Iterator[Key]:
    """Yield ("normalization" or "normalization_backward", case, dtype, of scale, training or has bias, layout)."""
    for case, dtype in itertools.product(NORMALIZATIONS, FLOATS):
        for scale, layout in (("float32", "first"), (dtype, "first"), ("float32", "last")):
            for flag in (False, True):
                yield "normalization", case, dtype, scale, flag, layout
                yield "normalization_backward", case, dtype, scale, flag, layout


def others() -> Iterator[Key]:
    """Yield the keys of graphs without a product: pointwise, alone, poolings."""
    for mode, dtype in itertools.product(POINTWISE, FLOATS):
        yield "pointwise", mode, dtype, "first"
        yield "pointwise", mode, dtype, "last"
    for dtype in FLOATS:
        for name in ALONE:
            yield "alone", name, dtype
    for mode, dtype, layout, pads in itertools.product(POOLINGS, FLOATS, LAYOUTS, PADS):
        for padding_mode in ("NEG_INF", "ZERO"):
            yield "pooling", mode, dtype, layout, pads, padding_mode


def gradients() -> Iterator[Key]:
    """Yield ("convolution", direction, dtype, layout, padding)."""
    for direction, dtype, layout in itertools.product(
        ("FORWARD", "BACKWARD_DATA", "BACKWARD_FILTER"), FLOATS, LAYOUTS
    ):
        for pads in PADS:
            yield "convolution", direction, dtype, layout, pads


# -------------------------------------------------------------------------------------- families


class Case:
    """A graph under construction, with the values of its inputs and what has to come out.

    Attributes
    ----------
    graph : Graph
        What is recorded.
    host : dict of str to array
        The inputs, rounded to their types, in float64.
    stored : dict of str to array
        The inputs in their types.
    expected : dict of str to array
        The outputs in float64.
    """

    def __init__(self) -> None:
        self.graph = dnn.Graph()
        self.host: dict[str, Array] = {}
        self.stored: dict[str, Array] = {}
        self.expected: dict[str, Array] = {}
        self._rng = np.random.default_rng(0)

    def input(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        strides: tuple[int, ...] | None = None,
        values: Array | None = None,
    ) -> Any:
        """Add an input, of normal values unless some are given."""
        if values is None:
            values = self._rng.standard_normal(shape)
        self.stored[name] = values.astype(numpy_dtype(parse_dtype(dtype)))
        self.host[name] = self.stored[name].astype(np.float64)
        return self.graph.input(name, shape, dtype, strides)

    def output(
        self,
        name: str,
        tensor: Any,
        dtype: str,
        expected: Array,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        """Add an output."""
        self.graph.output(name, tensor, dtype, strides)
        self.expected[name] = expected


def strides_of(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return strides with channels first or last."""
    names = LAYOUTS[layout]
    return dnn.TensorSpec(shape, layout=names and names[len(shape)]).strides


def attention_case(case: str, dtype: str, causal: bool, bias: str, layout: str, chain: str) -> Case:
    """Return attention as the one-line function writes it, or with another chain."""
    batch, heads, groups, rows, columns, size, value_size = ATTENTION[case]
    c = Case()
    tensors = [
        c.input(
            name, (batch, count, steps, width), dtype, head_strides(count, steps, width, layout)
        )
        for name, count, steps, width in (
            ("q", heads, rows, size),
            ("k", groups, columns, size),
            ("v", groups, columns, value_size),
        )
    ]
    q, k, v = tensors
    g, host = c.graph, c.host
    scale = 1.0 if chain == "without scale" else size**-0.5
    lengths = lengths_of(c, rows, columns) if chain == "within lengths" else ()
    m, n = lengths or (None, None)
    scores = g.matmul(q, k.transposed(), m_lengths=m, n_lengths=n)
    if chain != "without scale":
        scores = scores * g.scalar("scale", scale)
    if bias != "none":
        shape = (
            1 if bias in ("one batch", "one") else batch,
            1 if bias in ("one head", "one") else heads,
            rows,
            columns,
        )
        scores = scores + c.input("bias", shape, dtype)
    if chain == "tanh of scores":
        scores = g.tanh(scores)
    scores, mask = masked(c, scores, causal, chain, lengths)
    if chain == "tanh of scores":
        products = np.tanh(scale * host["q"] @ host["k"].swapaxes(-1, -2))
        eye = np.broadcast_to(np.eye(columns), (batch, heads, columns, columns))
        o, stats, _ = attention(products, eye, host["v"], 1.0, None)
    else:
        o, stats, _ = attention(host["q"], host["k"], host["v"], scale, mask, host.get("bias", 0.0))
    if chain == "without stats":
        powers = g.exp(scores - g.reduce("MAX", scores))
        probabilities = g.div(powers, g.reduce("ADD", powers), dtype)
    else:
        probabilities, logarithms = g.softmax_with_stats(scores, dtype)
        if chain != "virtual stats":
            c.output("stats", logarithms, "float32", stats)
    c.output("o", g.matmul(probabilities, v, m_lengths=m, k_lengths=n), dtype, o)
    return c


def lengths_of(c: Case, rows: int, columns: int) -> tuple[Any, ...]:
    """Add the lengths of queries, which are all there, and of keys, and return them."""
    batch = c.stored["q"].shape[0]
    key_lengths = np.arange(columns, columns - batch, -1) // 2
    lengths = {"q_lengths": np.full(batch, rows), "kv_lengths": key_lengths}
    shape = (batch, 1, 1, 1)
    return tuple(
        c.input(name, shape, "int32", values=values.reshape(shape))
        for name, values in lengths.items()
    )


def masked(
    c: Case, scores: Any, causal: bool, chain: str, lengths: tuple[Any, ...]
) -> tuple[Any, Array | None]:
    """Return scores with those masked that a step of queries does not attend to, and the mask."""
    g = c.graph
    rows, columns = scores.shape[-2:]
    mask = causal_mask(rows, columns) if causal else None
    if causal:
        scores = g.causal(scores)
    within = None
    if lengths:
        scores = g.within_lengths(scores, *lengths)
        within = np.arange(columns) < c.host["kv_lengths"]
    elif chain == "window of 8":
        scores = g.window(scores, 8)
        within = np.arange(rows)[:, None] < np.arange(columns) + 8
    if within is not None:
        mask = within if mask is None else mask & within
    return scores, mask


def head_strides(heads: int, steps: int, size: int, layout: str) -> tuple[int, ...] | None:
    """Return strides of queries, keys or values."""
    if layout == "steps first":
        return (steps * heads * size, size, heads * size, 1)
    if layout == "side by side":
        return (3 * steps * heads * size, size, 3 * heads * size, 1)
    if layout == "transposed":
        return (heads * steps * size, steps * size, 1, steps)
    return None


def attention_backward_case(case: str, dtype: str, causal: bool) -> Case:
    """Return the gradients of attention as the one-line function writes them."""
    batch, heads, groups, rows, columns, size, value_size = ATTENTION[case]
    c = Case()
    shapes = {
        "q": (batch, heads, rows, size),
        "k": (batch, groups, columns, size),
        "v": (batch, groups, columns, value_size),
        "do": (batch, heads, rows, value_size),
    }
    specs = {name: dnn.TensorSpec(shape, dtype) for name, shape in shapes.items()}
    specs["o"] = specs["do"]
    specs["stats"] = dnn.TensorSpec((batch, heads, rows, 1))
    ordered = {name: specs[name] for name in ("q", "k", "v", "o", "do", "stats")}
    inputs = Case()
    for name, shape in shapes.items():
        inputs.input(name, shape, dtype)
    c.host, c.stored = inputs.host, inputs.stored
    c.graph = dnn.scaled_dot_product_attention_backward.graph(**ordered, causal=causal)
    mask = causal_mask(rows, columns) if causal else None
    scale = size**-0.5
    q, k, v, do = (c.host[name] for name in shapes)
    o, stats, _ = attention(q, k, v, scale, mask)
    c.stored["o"] = o.astype(c.stored["q"].dtype)
    c.stored["stats"] = stats.astype(np.float32)
    if heads == groups:
        gradients = attention_gradients(q, k, v, do, scale, mask)
        c.expected = dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    return c


def product_case(
    case: str, dtype: str, epilogue: str, shape: str, result: str, transposed: str
) -> Case:
    """Return a product with what follows it."""
    a_shape, b_shape = PRODUCTS[case]
    c = Case()

    def strides(name: str, sizes: tuple[int, ...]) -> tuple[int, ...] | None:
        if name not in transposed:
            return None
        return (*dnn.TensorSpec(sizes).strides[:-2], 1, sizes[-2])

    a = c.input("a", a_shape, dtype, strides("a", a_shape))
    b = c.input("b", b_shape, dtype, strides("b", b_shape))
    y = a @ b
    expected = c.host["a"] @ c.host["b"]
    ones = (1,) * (len(y.shape) - 2)
    shapes = {
        "row": (*ones, 1, y.shape[-1]),
        "column": (*ones, y.shape[-2], 1),
        "batch": (*y.shape[:-2], 1, 1),
        "number": (*ones, 1, 1),
        "whole": y.shape,
    }
    z: Any = None
    if epilogue in ("operand", "chain", "where"):
        z = c.input("z", shapes[shape], dtype)
    if epilogue in ACTIVATION_MODES:
        y = c.graph.pointwise(ACTIVATION_MODES[epilogue], y)
        expected = ACTIVATIONS[epilogue](expected)
    else:
        add, compute = EPILOGUES[epilogue]
        y, expected = add(c.graph, y, z), compute(expected, c.host.get("z"))
    if not c.graph.outputs:
        c.output("y", y, result, expected)
    return c


def prologue_case(dtype: str) -> Case:
    """Return a product of what an operation computes."""
    c = Case()
    a, b = c.input("a", (1, 64, 32), dtype), c.input("b", (1, 32, 48), dtype)
    c.output(
        "y",
        c.graph.pointwise("RELU_FWD", a, dtype=dtype) @ b,
        dtype,
        np.maximum(c.host["a"], 0) @ c.host["b"],
    )
    return c


def square_case(dtype: str) -> Case:
    """Return the product of a matrix with its own transpose: one tensor in two views."""
    c = Case()
    a = c.input("a", (2, 64, 32), dtype)
    c.output("y", a @ a.transposed(), dtype, c.host["a"] @ c.host["a"].swapaxes(-1, -2))
    return c


def two_products_case(dtype: str) -> Case:
    """Return a product of a product."""
    c = Case()
    a, b, d = (c.input(name, (1, 64, 64), dtype) for name in ("a", "b", "d"))
    c.output(
        "y", c.graph.identity(a @ b, dtype) @ d, dtype, c.host["a"] @ c.host["b"] @ c.host["d"]
    )
    return c


def normalization_case(case: str, dtype: str, scale: str, training: bool, layout: str) -> Case:
    """Return a normalisation."""
    mode, shape, parameters, axes = NORMALIZATIONS[case]
    c = Case()
    x = c.input("x", shape, dtype, strides_of(shape, layout))
    weights = c.input("scale", parameters, scale)
    bias = None if mode == "RMS" else c.input("bias", parameters, scale)
    result = c.graph.normalization_forward(mode, x, weights, bias, epsilon=1e-3, training=training)
    host = {"bias": 0.0, **c.host}
    y, mean, inverse = normalization(**host, axes=axes, centered=mode != "RMS")
    c.output("y", result.y, dtype, y, strides_of(shape, layout))
    if result.mean is not None:
        c.output("mean", result.mean, "float32", mean)
    if result.inv_variance is not None:
        c.output("inv_variance", result.inv_variance, "float32", inverse)
    return c


def normalization_backward_case(
    case: str, dtype: str, scale: str, has_bias: bool, layout: str
) -> Case:
    """Return the gradients of a normalisation."""
    mode, shape, parameters, axes = NORMALIZATIONS[case]
    c = Case()
    strides = strides_of(shape, layout)
    dy, x = c.input("dy", shape, dtype, strides), c.input("x", shape, dtype, strides)
    weights = c.input("scale", parameters, scale)
    centered = mode != "RMS"
    host = c.host
    _, mean, inverse = normalization(host["x"], host["scale"], 0.0, axes, centered=centered)
    means = c.input("mean", mean.shape, "float32", values=mean) if centered else None
    inverses = c.input("inv_variance", inverse.shape, "float32", values=inverse)
    result = c.graph.normalization_backward(
        mode, dy, x, weights, means, inverses, has_bias=has_bias
    )
    dx, dscale, dbias = normalization_gradients(
        host["dy"], host["x"], host["scale"], mean, inverse, axes, centered=centered
    )
    c.output("dx", result.dx, dtype, dx, strides)
    c.output("dscale", result.dscale, scale, dscale)
    if result.dbias is not None:
        c.output("dbias", result.dbias, scale, dbias)
    return c


def pointwise_case(mode: str, dtype: str, layout: str) -> Case:
    """Return one pointwise operation."""
    c = Case()
    shape = (2, 8, 4, 8)
    strides = strides_of(shape, layout)
    x = c.input("x", shape, dtype, strides, np.random.default_rng(0).uniform(0.25, 2, shape))
    function = POINTWISE[mode]
    needs_two = mode.endswith("_BWD") or mode in (
        *("ADD", "ADD_SQUARE", "ATAN2", "DIV", "MAX", "MIN", "MOD", "MUL", "POW", "SUB"),
    )
    second = ()
    if needs_two:
        values = np.random.default_rng(1).uniform(0.25, 2, shape)
        second = (c.input("b", shape, dtype, strides, values),)
    y = c.graph.pointwise(mode, x, *second)
    c.output("y", y, dtype, function(*c.host.values()), strides)
    return c


def softmax_alone(c: Case, x: Any) -> tuple[Any, Array]:
    powers = np.exp(c.host["x"])
    return c.graph.softmax(x), powers / powers.sum(-1, keepdims=True)


# Graphs of few operations, without a product: from an input, what comes out.
ALONE: dict[str, Callable[[Case, Any], tuple[Any, Array]]] = {
    "softmax": softmax_alone,
    "sum": lambda c, x: (c.graph.reduce("ADD", x), c.host["x"].sum(-1, keepdims=True)),
    "sum of images": lambda c, x: (
        c.graph.reduce("ADD", x, (2, 3)),
        c.host["x"].sum((2, 3), keepdims=True),
    ),
    "largest": lambda c, x: (c.graph.reduce("MAX", x), c.host["x"].max(-1, keepdims=True)),
    "two operations": lambda c, x: (c.graph.tanh(c.graph.abs(x)), np.tanh(np.abs(c.host["x"]))),
    "a number": lambda c, x: (x * 0.5, c.host["x"] * 0.5),
    "a comparison": lambda c, x: (
        c.graph.where(x > 0.0, x, 1.0),
        np.where(c.host["x"] > 0, c.host["x"], 1.0),
    ),
    "an index": lambda c, x: (
        c.graph.index(x, 2),
        np.broadcast_to(np.arange(4.0)[:, None], (2, 8, 4, 8)),
    ),
    "a transpose": lambda c, x: (
        c.graph.node(
            "RESHAPE",
            reads={"xdesc": x.transposed()},
            writes={"ydesc": c.graph.virtual((2, 8, 8, 4), x.dtype)},
        ),
        c.host["x"].swapaxes(-1, -2),
    ),
    "statistics": lambda c, x: (
        c.graph.gen_stats(x)[0],
        c.host["x"].sum((0, 2, 3), keepdims=True),
    ),
}


def alone_case(name: str, dtype: str) -> Case:
    """Return a graph without a product."""
    c = Case()
    shape = (2, 8, 4, 8)
    strides = strides_of(shape, "last" if name == "statistics" else "first")
    y, expected = ALONE[name](c, c.input("x", shape, dtype, strides))
    result = {"an index": "int32", "statistics": "float32"}.get(name, dtype)
    c.output("y", y, result, expected)
    if name == "statistics":
        squares = c.graph.tensor(y.number + 1)
        c.output("squares", squares, result, (c.host["x"] ** 2).sum((0, 2, 3), keepdims=True))
    return c


def pooling_case(mode: str, dtype: str, layout: str, pads: str, padding_mode: str) -> Case:
    """Return a pooling."""
    c = Case()
    shape, padding = (2, 8, 7, 9), PADS[pads]
    x = c.input("x", shape, dtype, strides_of(shape, layout))
    y = c.graph.resample_forward(
        mode, x, (3, 2), stride=(2, 1), padding=padding, padding_mode=padding_mode
    )
    is_largest = mode == "MAXPOOL"
    fill = -np.inf if is_largest and padding_mode == "NEG_INF" else 0.0
    padded = np.pad(c.host["x"], [(0, 0), (0, 0), *padding], constant_values=fill)
    inside = np.pad(np.ones(shape[2:]), padding)
    expected = np.empty(y.shape)
    for row, column in np.ndindex(y.shape[2:]):
        taps = (slice(2 * row, 2 * row + 3), slice(column, column + 2))
        window = padded[(slice(None), slice(None), *taps)]
        count = inside[taps].sum() if mode == "AVGPOOL_EXCLUDE_PADDING" else 6
        expected[:, :, row, column] = (
            window.max((2, 3)) if is_largest else window.sum((2, 3)) / count
        )
    c.output("y", y, dtype, expected, strides_of(y.shape, layout))
    return c


def convolution_case(direction: str, dtype: str, layout: str, pads: str) -> Case:
    """Return a convolution with stride 1, or a gradient of one."""
    conv = dnn.ConvolutionSpec(PADS[pads])
    c = Case()
    shapes = {"x": (2, 16, 8, 9), "w": (24, 16, 3, 3)}
    shapes["dy"] = conv.output_shape(shapes["x"], shapes["w"])
    names = {"FORWARD": "xw", "BACKWARD_DATA": ("w", "dy"), "BACKWARD_FILTER": ("x", "dy")}
    first, second = (
        c.input(name, shapes[name], dtype, strides_of(shapes[name], layout))
        for name in names[direction]
    )
    g, host = c.graph, c.host
    x = np.pad(host.get("x", np.zeros(shapes["x"])), [(0, 0), (0, 0), *conv.pads(2)])
    w, dy = host.get("w", np.zeros(shapes["w"])), host.get("dy", np.zeros(shapes["dy"]))
    y, dx, dw = np.zeros(shapes["dy"]), np.zeros_like(x), np.zeros(shapes["w"])
    rows, columns = shapes["dy"][2:]
    for i, j in np.ndindex(3, 3):
        view = (slice(None), slice(None), slice(i, i + rows), slice(j, j + columns))
        y += np.einsum("nchw,kc->nkhw", x[view], w[:, :, i, j])
        dx[view] += np.einsum("nkhw,kc->nchw", dy, w[:, :, i, j])
        dw[:, :, i, j] = np.einsum("nkhw,nchw->kc", dy, x[view])
    if direction == "FORWARD":
        result, expected = g.convolution_forward(first, second, conv), y
    elif direction == "BACKWARD_DATA":
        result = g.convolution_backward_data(first, second, shapes["x"], conv)
        (top, _), (left, _) = conv.pads(2)
        expected = dx[:, :, top : top + 8, left : left + 9]
    else:
        result, expected = g.convolution_backward_filter(first, second, shapes["w"], conv), dw
    c.output("y", result, dtype, expected, strides_of(result.shape, layout))
    return c


FAMILIES: dict[str, Callable[..., Case]] = {
    "attention": attention_case,
    "attention_backward": attention_backward_case,
    "product": product_case,
    "prologue": prologue_case,
    "square": square_case,
    "two_products": two_products_case,
    "normalization": normalization_case,
    "normalization_backward": normalization_backward_case,
    "pointwise": pointwise_case,
    "alone": alone_case,
    "pooling": pooling_case,
    "convolution": convolution_case,
}
