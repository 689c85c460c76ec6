"""Emulated local response and divisive normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cudnnlite.emulated.operation_call import Array, Values, computes
from cudnnlite.enums import Status
from cudnnlite.problems import lrn as declarations
from cudnnlite.specs.layers import LRNSpec


def _window_sums(values: Array, axes: Sequence[int], before: int, behind: int) -> Array:
    """Return the sum over a window around each value.

    Along each of `axes` the window has `before` values before it, and `behind` behind it.
    """
    pads = [(before, behind) if axis in axes else (0, 0) for axis in range(values.ndim)]
    window = (before + behind + 1,) * len(axes)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, pads), window, tuple(axes))
    # The axes of the window come last.
    window_axes = tuple(range(values.ndim, windows.ndim))
    return np.asarray(windows.sum(window_axes))


def _channels_before(norm: LRNSpec) -> int:
    return (norm.n - 1) // 2


def _divisor(x: Array, norm: LRNSpec) -> Array:
    before = _channels_before(norm)
    sums = _window_sums(x * x, (1,), before, norm.n - 1 - before)
    return np.asarray(norm.k + norm.alpha / norm.n * sums)


def _why_refused(specs: Values, options: Values) -> str | None:
    """Return why 3-D images that are not NCDHW are refused, in an H200's words; None for others.

    An axis of size 1 is no exception.  2-D images may have any layout.
    """
    if any(spec.rank == 5 and spec.layout != "NCDHW" for spec in specs.values()):
        return "(xDesc->nbDims > 4) && !isTensorNCHW_HWpacked(xDesc)"
    return None


@computes(declarations.FORWARD, why_refused=_why_refused)
def forward(x: Array, norm: LRNSpec) -> Array:
    """`cudnnLRNCrossChannelForward`: return the normalised values."""
    return np.asarray(x * _divisor(x, norm) ** -norm.beta)


@computes(declarations.BACKWARD, why_refused=_why_refused, refusal_status=Status.NOT_SUPPORTED)
def backward(y: Array, dy: Array, x: Array, norm: LRNSpec) -> Array:
    """`cudnnLRNCrossChannelBackward`: return the gradient of x."""
    divisor = _divisor(x, norm)
    before = _channels_before(norm)
    # The sum is over the channels whose windows contain this one.
    sums = _window_sums(dy * y / divisor, (1,), norm.n - 1 - before, before)
    factor = 2 * norm.alpha * norm.beta / norm.n
    return np.asarray(dy * divisor**-norm.beta - factor * x * sums)


def _image_sums(values: Array, n: int) -> Array:
    """Return, for each position, the sum over the window of the image around it."""
    before = (n - 1) // 2
    return _window_sums(values, range(2, values.ndim), before, n - 1 - before)


def _weight(x: Array, norm: LRNSpec) -> float:
    """Return the factor of the sum of squares: alpha over the number of pixels in a window.

    A window has two axes at least, because cuDNN receives 1-D images as images one pixel high.
    """
    return float(norm.alpha / norm.n ** max(2, x.ndim - 2))


def _image_divisor(x: Array, means: Array, norm: LRNSpec) -> Array:
    sums = _image_sums(x, norm.n)
    square_sums = _image_sums(x * x, norm.n)
    counts = _image_sums(np.ones_like(x), norm.n)
    squares = square_sums - 2 * means * sums + means * means * counts
    return np.asarray(norm.k + _weight(x, norm) * squares)


def _workspace(specs: Values) -> int:
    return int(2 * specs["x"].nbytes)


@computes(declarations.DIVISIVE_AROUND, refusal_status=Status.NOT_SUPPORTED, workspace=_workspace)
def divisive_around(x: Array, means: Array, norm: LRNSpec) -> Array:
    """`cudnnDivisiveNormalizationForward`: return the values, divided by their windows' norms."""
    return np.asarray(x * _image_divisor(x, means, norm) ** -norm.beta)


@computes(declarations.DIVISIVE, refusal_status=Status.NOT_SUPPORTED, workspace=_workspace)
def divisive(x: Array, norm: LRNSpec) -> Array:
    """`cudnnDivisiveNormalizationForward`: return the same for means of 0."""
    return np.asarray(divisive_around(x, np.zeros_like(x), norm))


@computes(
    declarations.DIVISIVE_AROUND_BACKWARD,
    refusal_status=Status.NOT_SUPPORTED,
    workspace=_workspace,
)
def divisive_around_backward(
    x: Array, dy: Array, means: Array, norm: LRNSpec
) -> tuple[Array, Array]:
    """`cudnnDivisiveNormalizationBackward`: return the gradients of x and of the means."""
    divisor = _image_divisor(x, means, norm)
    factor = 2 * norm.beta * _weight(x, norm)
    slope = dy * x * divisor ** (-norm.beta - 1)
    slope_sums = x * _image_sums(slope, norm.n) - _image_sums(slope * means, norm.n)
    distances = _image_sums(x, norm.n) - means * _image_sums(np.ones_like(x), norm.n)
    return dy * divisor**-norm.beta - factor * slope_sums, factor * slope * distances


@computes(declarations.DIVISIVE_BACKWARD, refusal_status=Status.NOT_SUPPORTED, workspace=_workspace)
def divisive_backward(x: Array, dy: Array, norm: LRNSpec) -> Array:
    """`cudnnDivisiveNormalizationBackward`: return the gradient of x for means of 0."""
    dx, _ = divisive_around_backward(x, dy, np.zeros_like(x), norm)
    return np.asarray(dx)
