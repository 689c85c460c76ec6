"""Emulated pooling."""

from typing import Any

import numpy as np

from cudnnlite.emulated.operation import Array, computes
from cudnnlite.enums import NanPropagation, PoolingMode
from cudnnlite.operations.operation import FLOATS
from cudnnlite.specs.layers import PoolingSpec

_MAXIMA = (PoolingMode.MAX, PoolingMode.MAX_DETERMINISTIC)


def _windows(values: Array, pooling: PoolingSpec, fill: float) -> tuple[Array, Array]:
    """Return the padded values, and a writable view of all windows in them, ``(N, C, *pooled, *taps)``."""
    window, padding, stride = pooling.steps(values.ndim - 2)
    padded = np.pad(values, [(0, 0), (0, 0), *zip(padding, padding, strict=True)], constant_values=fill)
    every = np.lib.stride_tricks.sliding_window_view(padded, window, tuple(range(2, values.ndim)), writeable=True)
    strided: Any = (..., *(slice(None, None, step) for step in stride), *(slice(None) for _ in window))
    return padded, every[strided]


def _counts(x: Array, pooling: PoolingSpec) -> Array:
    fill = pooling.mode == PoolingMode.AVERAGE_COUNT_INCLUDE_PADDING
    return np.asarray(_windows(np.ones_like(x), pooling, fill)[1].sum(tuple(range(2 - x.ndim, 0))))


@computes("pooling_forward", "cudnnPoolingForward", dtypes=FLOATS, refuse=lambda specs, options: "")
def forward(x: Array, pooling: PoolingSpec) -> Array:
    """Return the maxima or averages of all windows."""
    taps = tuple(range(2 - x.ndim, 0))
    if pooling.mode not in _MAXIMA:
        return np.asarray(_windows(x, pooling, 0)[1].sum(taps) / _counts(x, pooling))
    maximum = np.maximum if pooling.nan == NanPropagation.PROPAGATE else np.fmax
    return np.asarray(maximum.reduce(_windows(x, pooling, -np.inf)[1], axis=taps))


def _mixed(specs: Any, options: Any) -> str:
    layouts = [spec.layout for spec in specs.values()]
    alike = any(all(s.layout == name or s.fits(name) for s in specs.values()) for name in layouts)
    return "" if alike or options["pooling"].mode not in _MAXIMA else "maxima of operands in several layouts"


@computes("pooling_backward", "cudnnPoolingBackward", dtypes=FLOATS, refuse=_mixed)
def backward(y: Array, dy: Array, x: Array, pooling: PoolingSpec) -> Array:
    """Return the gradient of x: of equal maxima the first has it."""
    padded, target = _windows(np.zeros_like(x), pooling, 0)
    window, padding, _ = pooling.steps(x.ndim - 2)
    numbers = x if pooling.nan == NanPropagation.PROPAGATE else np.where(np.isnan(x), -np.inf, x)
    first = _windows(numbers, pooling, -np.inf)[1].reshape(*y.shape, -1).argmax(-1) if pooling.mode in _MAXIMA else None
    share = dy if first is not None else dy / _counts(x, pooling)
    for number, tap in enumerate(np.ndindex(*window)):
        target[(slice(None),) * x.ndim + tap] += share if first is None else share * (first == number)
    image: Any = (..., *(slice(p, p + size) for p, size in zip(padding, x.shape[2:], strict=True)))
    return np.asarray(padded[image])
