"""Emulated pooling."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from cudnnlite.emulated.operation_call import (
    Array,
    Call,
    Values,
    computes,
    have_common_layout,
    never_refused,
)
from cudnnlite.emulated.precision import lowest_number
from cudnnlite.enums import NanPropagation, PoolingMode
from cudnnlite.problems import pooling as declarations
from cudnnlite.problems.operation import FLOATS
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import PoolingSpec

_MAXIMA = (PoolingMode.MAX, PoolingMode.MAX_DETERMINISTIC)


def _windows(values: Array, pooling: PoolingSpec, fill: float) -> tuple[Array, Array]:
    """Return the padded values, and a writable view of all windows, ``(N, C, *pooled, *taps)``."""
    window, padding, stride = pooling.steps(values.ndim - 2)
    pads = [(0, 0), (0, 0), *zip(padding, padding, strict=True)]
    padded = np.pad(values, pads, constant_values=fill)
    all_windows = np.lib.stride_tricks.sliding_window_view(
        padded, window, tuple(range(2, values.ndim)), writeable=True
    )
    pooled_axes = [slice(None, None, step) for step in stride]
    tap_axes = [slice(None) for _ in window]
    index: Any = (..., *pooled_axes, *tap_axes)
    return padded, all_windows[index]


def _tap_axes(x: Array) -> tuple[int, ...]:
    return tuple(range(2 - x.ndim, 0))


def _counts(x: Array, pooling: PoolingSpec) -> Array:
    """Return how many values each average is taken over."""
    counts_padding = pooling.mode == PoolingMode.AVERAGE_COUNT_INCLUDE_PADDING
    _, windows = _windows(np.ones_like(x), pooling, float(counts_padding))
    return np.asarray(windows.sum(_tap_axes(x)))


@computes(declarations.FORWARD, dtypes=FLOATS, why_refused=never_refused, takes_call=True)
def forward(x: Array, pooling: PoolingSpec, call: Call | None = None) -> Array:
    """`cudnnPoolingForward`: return the maxima or averages of all windows."""
    if pooling.mode not in _MAXIMA:
        _, windows = _windows(x, pooling, 0)
        return np.asarray(windows.sum(_tap_axes(x)) / _counts(x, pooling))
    # On an H200 the maximum of -infinities, or of NaNs that do not count, is the lowest number.
    return _maxima(x, pooling, _lowest_of(x, call))


def _maxima(x: Array, pooling: PoolingSpec, least: float) -> Array:
    """Return the maxima of all windows, or `least` if that is larger."""
    maximum: Any = np.maximum if pooling.nan == NanPropagation.PROPAGATE else np.fmax
    _, windows = _windows(x, pooling, -np.inf)
    return np.asarray(maximum.reduce(windows, axis=_tap_axes(x), initial=least))


def _lowest_of(x: Array, call: Call | None) -> float:
    """Return the lowest number of the images' data type in memory."""
    if call is None:
        return float(np.finfo(x.dtype).min)
    return lowest_number(call.specs["x"].dtype)


def _why_gradient_refused(specs: Values, options: Values) -> str | None:
    # A single value has every layout.
    images = [spec for spec in specs.values() if spec.size > 1]
    if options["pooling"].mode not in _MAXIMA or not images or have_common_layout(images):
        return None
    return "maxima of operands in several layouts"


@computes(declarations.BACKWARD, dtypes=FLOATS, why_refused=_why_gradient_refused, takes_call=True)
def backward(
    y: Array, dy: Array, x: Array, pooling: PoolingSpec, call: Call | None = None
) -> Array:
    """`cudnnPoolingBackward`: return the gradient of x, which the first of equal maxima has."""
    padded, windows = _windows(np.zeros_like(x), pooling, 0)
    window, padding, _ = pooling.steps(x.ndim - 2)
    if call is not None and _drops_infinite_maxima(call.specs["x"], pooling):
        dy = np.where(np.isneginf(_maxima(x, pooling, -np.inf)), 0, dy)
    # A pixel of -infinity is above the padding.
    shares = _shares(dy, np.maximum(x, _lowest_of(x, call)), pooling)
    for tap, share in zip(np.ndindex(*window), shares, strict=True):
        at_tap = windows[(slice(None),) * x.ndim + tap]
        at_tap += share
    pixels = [slice(pad, pad + size) for pad, size in zip(padding, x.shape[2:], strict=True)]
    index: Any = (..., *pixels)
    return np.asarray(padded[index])


def _drops_infinite_maxima(x: TensorSpec, pooling: PoolingSpec) -> bool:
    """Return whether windows of -infinity have no gradient; otherwise their first pixel has it.

    On an H200 they have none with MAX_DETERMINISTIC, and none with several channels that come last.
    """
    has_channels_last = x.shape[1] > 1 and x.strides[1] == 1
    is_deterministic = pooling.mode == PoolingMode.MAX_DETERMINISTIC
    return pooling.mode in _MAXIMA and (is_deterministic or has_channels_last)


def _shares(dy: Array, x: Array, pooling: PoolingSpec) -> Iterator[Array]:
    """Yield, for each tap, the gradient of the values that the windows have there."""
    window, _, _ = pooling.steps(x.ndim - 2)
    numbers = range(math.prod(window))
    if pooling.mode not in _MAXIMA:
        average_share = dy / _counts(x, pooling)
        yield from (average_share for _ in numbers)
        return
    if pooling.nan != NanPropagation.PROPAGATE:
        x = np.where(np.isnan(x), np.finfo(x.dtype).min, x)
    _, windows = _windows(x, pooling, -np.inf)
    maximum_taps = windows.reshape(*dy.shape, -1).argmax(-1)
    # Pixels that are not chosen get 0, also of an infinite gradient (seen on an H200).
    yield from (np.where(maximum_taps == number, dy, 0) for number in numbers)
