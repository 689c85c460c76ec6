"""What graphs compute, as formulas in float64: attention, normalisations, activations, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
}


def attention(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    mask: Array | None,
    bias: Array | float = 0.0,
    kept: Array | float = 1.0,
) -> tuple[Array, Array, Array]:
    """Return o, stats and the probabilities; `kept` are the factors of dropout."""
    groups = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, groups, 1) for x in (k, v))
    scores = scale * q @ k.swapaxes(-1, -2) + bias
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    largest = scores.max(-1, keepdims=True)
    powers = np.exp(scores - largest)
    total = powers.sum(-1, keepdims=True)
    return kept * powers / total @ v, largest + np.log(total), powers / total


def score_gradients(
    q: Array,
    k: Array,
    v: Array,
    do: Array,
    scale: float,
    mask: Array | None,
    bias: Array | float,
    kept: Array | float,
) -> tuple[Array, Array]:
    """Return the gradient of the scores, and the probabilities."""
    o, _, p = attention(q, k, v, scale, mask, bias, kept)
    v = np.repeat(v, q.shape[1] // v.shape[1], 1)
    dp = do @ v.swapaxes(-1, -2) * kept
    return p * (dp - (do * o).sum(-1, keepdims=True)), p


def attention_gradients(
    q: Array,
    k: Array,
    v: Array,
    do: Array,
    scale: float,
    mask: Array | None,
    bias: Array | float = 0.0,
    kept: Array | float = 1.0,
) -> tuple[Array, Array, Array]:
    """Return dq, dk and dv."""
    ds, p = score_gradients(q, k, v, do, scale, mask, bias, kept)
    ds = ds * scale
    heads = k.shape[1]
    groups = q.shape[1] // heads
    k = np.repeat(k, groups, 1)

    def of_shared_heads(gradient: Array) -> Array:
        batch, _, *others = gradient.shape
        return gradient.reshape(batch, heads, groups, *others).sum(2)

    dk = of_shared_heads(ds.swapaxes(-1, -2) @ q)
    dv = of_shared_heads((p * kept).swapaxes(-1, -2) @ do)
    return ds @ k, dk, dv


def attention_bias_gradient(
    q: Array,
    k: Array,
    v: Array,
    do: Array,
    scale: float,
    mask: Array | None,
    bias: Array,
    kept: Array | float = 1.0,
) -> Array:
    """Return dbias, of the shape of `bias`."""
    ds, _ = score_gradients(q, k, v, do, scale, mask, bias, kept)
    shared = tuple(axis for axis, size in enumerate(bias.shape) if size < ds.shape[axis])
    return ds.sum(shared, keepdims=True)


def causal_mask(rows: int, columns: int, *, bottom_right: bool = False) -> Array:
    """Return which steps of keys a step of queries attends to."""
    shift = columns - rows if bottom_right else 0
    return np.arange(rows)[:, None] + shift >= np.arange(columns)


def window_mask(rows: int, columns: int, size: int) -> Array:
    """Return which steps of keys are less than `size` steps before a step of queries."""
    return np.arange(rows)[:, None] < np.arange(columns) + size


def normalization(
    x: Array, scale: Array, bias: Array | float, axes: tuple[int, ...], *, centered: bool
) -> tuple[Array, Array, Array]:
    """Return y, mean and inverse deviation."""
    mean = x.mean(axes, keepdims=True) if centered else np.zeros((1,) * x.ndim)
    inverse = 1 / np.sqrt(np.square(x - mean).mean(axes, keepdims=True) + 1e-3)
    return scale * (x - mean) * inverse + bias, mean, inverse


def normalization_gradients(
    dy: Array,
    x: Array,
    scale: Array,
    mean: Array,
    inverse: Array,
    axes: tuple[int, ...],
    *,
    centered: bool,
) -> tuple[Array, ...]:
    """Return dx, dscale and dbias, from the definition of each."""
    normalized = (x - mean) * inverse
    slope = dy * scale
    dx = slope - normalized * (slope * normalized).mean(axes, keepdims=True)
    if centered:
        dx = dx - slope.mean(axes, keepdims=True)
    others = tuple(axis for axis, size in enumerate(scale.shape) if size == 1)
    return (
        dx * inverse,
        (dy * normalized).sum(others, keepdims=True),
        dy.sum(others, keepdims=True),
    )
