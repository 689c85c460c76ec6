"""Emulated local response normalisation, and divisive normalisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cudnnlite.emulated.operation import Array, computes, in_one_layout
from cudnnlite.enums import Status
from cudnnlite.specs.layers import LRNSpec


def _around(values: Array, before: int, behind: int) -> Array:
    """Return, for each channel, the sum over so many before and behind it."""
    padded = np.pad(values, [(0, 0), (before, behind), *[(0, 0)] * (values.ndim - 2)])
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, before + behind + 1, 1).sum(-1))


def _divisor(x: Array, norm: LRNSpec) -> Array:
    before = (norm.n - 1) // 2
    return np.asarray(norm.k + norm.alpha / norm.n * _around(x * x, before, norm.n - 1 - before))


def _refused(specs: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """3-D images lie in NCDHW, strides of axes of size 1 too; an H200 says it in these words."""
    if any(spec.rank == 5 and spec.layout != "NCDHW" for spec in specs.values()):
        return "(xDesc->nbDims > 4) && !isTensorNCHW_HWpacked(xDesc)"
    return in_one_layout(specs, options)


@computes("lrn_forward", "cudnnLRNCrossChannelForward", refuse=_refused)
def forward(x: Array, norm: LRNSpec) -> Array:
    """Return the normalised values."""
    return np.asarray(x * _divisor(x, norm) ** -norm.beta)


@computes("lrn_backward", "cudnnLRNCrossChannelBackward", refuse=_refused, refused=Status.NOT_SUPPORTED)
def backward(y: Array, dy: Array, x: Array, norm: LRNSpec) -> Array:
    """Return the gradient of x."""
    divisor, before = _divisor(x, norm), (norm.n - 1) // 2
    others = _around(dy * y / divisor, norm.n - 1 - before, before)  # those in whose window a channel lies
    return np.asarray(dy * divisor**-norm.beta - 2 * norm.alpha * norm.beta / norm.n * x * others)


def _windows(values: Array, n: int) -> Array:
    """Return, for each position, the sum over the window around it."""
    axes, before = tuple(range(2, values.ndim)), (n - 1) // 2
    padded = np.pad(values, [(0, 0), (0, 0), *[(before, n - 1 - before)] * len(axes)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (n,) * len(axes), axes)
    return np.asarray(windows.sum(tuple(range(-len(axes), 0))))


def _share(x: Array, norm: LRNSpec) -> float:
    return float(norm.alpha / norm.n ** max(2, x.ndim - 2))  # images of one axis are one pixel high


def _spread_around(x: Array, means: Array, norm: LRNSpec) -> Array:
    squares = (
        _windows(x * x, norm.n) - 2 * means * _windows(x, norm.n) + means * means * _windows(np.ones_like(x), norm.n)
    )
    return np.asarray(norm.k + _share(x, norm) * squares)


def _divisive(operation: str, function: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return computes(operation, function, refused=Status.NOT_SUPPORTED, workspace=lambda specs: 2 * specs["x"].nbytes)


@_divisive("divisive_normalization_forward_around", "cudnnDivisiveNormalizationForward")
def divide_around(x: Array, means: Array, norm: LRNSpec) -> Array:
    """Return the values, divided by what their windows hold."""
    return np.asarray(x * _spread_around(x, means, norm) ** -norm.beta)


@_divisive("divisive_normalization_forward", "cudnnDivisiveNormalizationForward")
def divide(x: Array, norm: LRNSpec) -> Array:
    """Return the same, without means."""
    return np.asarray(divide_around(x, np.zeros_like(x), norm))


@_divisive("divisive_normalization_backward_around", "cudnnDivisiveNormalizationBackward")
def divide_around_backward(x: Array, dy: Array, means: Array, norm: LRNSpec) -> tuple[Array, ...]:
    """Return the gradients of x and of the means."""
    spread, each = _spread_around(x, means, norm), 2 * norm.beta * _share(x, norm)
    slope = dy * x * spread ** (-norm.beta - 1)
    around = x * _windows(slope, norm.n) - _windows(slope * means, norm.n)
    distances = _windows(x, norm.n) - means * _windows(np.ones_like(x), norm.n)
    return dy * spread**-norm.beta - each * around, each * slope * distances


@_divisive("divisive_normalization_backward", "cudnnDivisiveNormalizationBackward")
def divide_backward(x: Array, dy: Array, norm: LRNSpec) -> Array:
    """Return the gradient of x, without means."""
    return np.asarray(divide_around_backward(x, dy, np.zeros_like(x), norm)[0])
