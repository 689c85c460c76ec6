"""Emulated pooling."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnnlite.emulated.operation import Array, computes
from cudnnlite.enums import NanPropagation, PoolingMode
from cudnnlite.specs import PoolingSpec

_MAXIMA = (PoolingMode.MAX, PoolingMode.MAX_DETERMINISTIC)


def _windows(values: Array, pooling: PoolingSpec, fill: float) -> tuple[Array, Array]:
    """Return the padded values, and a writable view of all windows in them, ``(N, C, *pooled, *taps)``."""
    window, padding, stride = pooling.steps(values.ndim - 2)
    padded = np.pad(values, [(0, 0), (0, 0), *zip(padding, padding, strict=True)], constant_values=fill)
    every = np.lib.stride_tricks.sliding_window_view(padded, window, tuple(range(2, values.ndim)), writeable=True)
    chosen: Any = (..., *(slice(None, None, step) for step in stride), *(slice(None) for _ in window))
    return padded, every[chosen]


def _sums(values: Array, pooling: PoolingSpec, fill: float = 0) -> Array:
    return np.asarray(_windows(values, pooling, fill)[1].sum(tuple(range(2 - values.ndim, 0))))


def _counts(x: Array, pooling: PoolingSpec) -> Array:
    """Return by how many values each window's sum is divided."""
    return _sums(np.ones_like(x), pooling, pooling.mode == PoolingMode.AVERAGE_COUNT_INCLUDE_PADDING)


@computes("pooling_forward", "cudnnPoolingForward")
def forward(x: Array, pooling: PoolingSpec) -> Array:
    """Return the maxima or averages of all windows."""
    if pooling.mode not in _MAXIMA:
        return np.asarray(_sums(x, pooling) / _counts(x, pooling))
    maximum = np.maximum if pooling.nan == NanPropagation.PROPAGATE else np.fmax
    return np.asarray(maximum.reduce(_windows(x, pooling, -np.inf)[1], axis=tuple(range(2 - x.ndim, 0))))


@computes("pooling_backward", "cudnnPoolingBackward")
def backward(y: Array, dy: Array, x: Array, pooling: PoolingSpec) -> Array:
    """Return the gradient of x: of equal maxima the first has it."""
    padded, target = _windows(np.zeros_like(x), pooling, 0)
    window, padding, _ = pooling.steps(x.ndim - 2)
    first = _windows(x, pooling, -np.inf)[1].reshape(*y.shape, -1).argmax(-1) if pooling.mode in _MAXIMA else None
    share = dy if first is not None else dy / _counts(x, pooling)
    for number, tap in enumerate(np.ndindex(*window)):
        chosen: Any = (..., *tap)
        target[chosen] += share if first is None else share * (first == number)
    inside: Any = (..., *(slice(pad, pad + size) for pad, size in zip(padding, x.shape[2:], strict=True)))
    return np.asarray(padded[inside])
