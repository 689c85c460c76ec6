"""Emulated operations over windows: pooling, local response and divisive normalisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cudnnlite.emulated.operation import Array, computes
from cudnnlite.enums import NanPropagation, PoolingMode, Status
from cudnnlite.problems.operation import FLOATS
from cudnnlite.specs.layers import LRNSpec, PoolingSpec

_MAXIMA = (PoolingMode.MAX, PoolingMode.MAX_DETERMINISTIC)


def _windows(values: Array, pooling: PoolingSpec, fill: float) -> tuple[Array, Array]:
    """Return the padded values, and a writable view of all windows in them, ``(N, C, *pooled, *taps)``."""
    window, padding, stride = pooling.steps(values.ndim - 2)
    padded = np.pad(
        values, [(0, 0), (0, 0), *zip(padding, padding, strict=True)], constant_values=fill
    )
    every = np.lib.stride_tricks.sliding_window_view(
        padded, window, tuple(range(2, values.ndim)), writeable=True
    )
    strided: Any = (
        ...,
        *(slice(None, None, step) for step in stride),
        *(slice(None) for _ in window),
    )
    return padded, every[strided]


def _counts(x: Array, pooling: PoolingSpec) -> Array:
    fill = pooling.mode == PoolingMode.AVERAGE_COUNT_INCLUDE_PADDING
    return np.asarray(_windows(np.ones_like(x), pooling, fill)[1].sum(tuple(range(2 - x.ndim, 0))))


@computes("pooling_forward", dtypes=FLOATS, refuse=lambda specs, options: "")
def pool(x: Array, pooling: PoolingSpec) -> Array:
    """Return the maxima or averages of all windows."""
    taps = tuple(range(2 - x.ndim, 0))
    if pooling.mode not in _MAXIMA:
        return np.asarray(_windows(x, pooling, 0)[1].sum(taps) / _counts(x, pooling))
    maximum = np.maximum if pooling.nan == NanPropagation.PROPAGATE else np.fmax
    return np.asarray(maximum.reduce(_windows(x, pooling, -np.inf)[1], axis=taps))


def _mixed(specs: Any, options: Any) -> str:
    images = [spec for spec in specs.values() if spec.size > 1]  # one value lies in every layout
    layouts = [spec.layout for spec in images]
    alike = not images or any(
        all(s.layout == name or s.fits(name) for s in images) for name in layouts
    )
    return (
        ""
        if alike or options["pooling"].mode not in _MAXIMA
        else "maxima of operands in several layouts"
    )


@computes("pooling_backward", dtypes=FLOATS, refuse=_mixed)
def pool_backward(y: Array, dy: Array, x: Array, pooling: PoolingSpec) -> Array:
    """Return the gradient of x: of equal maxima the first has it."""
    padded, target = _windows(np.zeros_like(x), pooling, 0)
    window, padding, _ = pooling.steps(x.ndim - 2)
    numbers = x if pooling.nan == NanPropagation.PROPAGATE else np.where(np.isnan(x), -np.inf, x)
    first = (
        _windows(numbers, pooling, -np.inf)[1].reshape(*y.shape, -1).argmax(-1)
        if pooling.mode in _MAXIMA
        else None
    )
    share = dy if first is not None else dy / _counts(x, pooling)
    for number, tap in enumerate(np.ndindex(*window)):
        target[(slice(None),) * x.ndim + tap] += (
            share if first is None else share * (first == number)
        )
    image: Any = (..., *(slice(p, p + size) for p, size in zip(padding, x.shape[2:], strict=True)))
    return np.asarray(padded[image])


def _around(values: Array, axes: Sequence[int], before: int, behind: int) -> Array:
    """Return, for each place, the sum over so many before and behind it along some axes."""
    padded = np.pad(
        values, [(before, behind) if axis in axes else (0, 0) for axis in range(values.ndim)]
    )
    windows = np.lib.stride_tricks.sliding_window_view(
        padded, (before + behind + 1,) * len(axes), tuple(axes)
    )
    return np.asarray(windows.sum(tuple(range(-len(axes), 0))))


def _divisor(x: Array, norm: LRNSpec) -> Array:
    before = (norm.n - 1) // 2
    return np.asarray(
        norm.k + norm.alpha / norm.n * _around(x * x, (1,), before, norm.n - 1 - before)
    )


def _lrn_refused(specs: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """3-D images lie in NCDHW, strides of axes of size 1 too; an H200 says it in these words.  Others lie as they like."""
    if any(spec.rank == 5 and spec.layout != "NCDHW" for spec in specs.values()):
        return "(xDesc->nbDims > 4) && !isTensorNCHW_HWpacked(xDesc)"
    return ""


@computes("lrn_forward", refuse=_lrn_refused)
def lrn(x: Array, norm: LRNSpec) -> Array:
    """Return the normalised values."""
    return np.asarray(x * _divisor(x, norm) ** -norm.beta)


@computes("lrn_backward", refuse=_lrn_refused, refused=Status.NOT_SUPPORTED)
def lrn_backward(y: Array, dy: Array, x: Array, norm: LRNSpec) -> Array:
    """Return the gradient of x."""
    divisor, before = _divisor(x, norm), (norm.n - 1) // 2
    others = _around(
        dy * y / divisor, (1,), norm.n - 1 - before, before
    )  # those in whose window a channel lies
    return np.asarray(dy * divisor**-norm.beta - 2 * norm.alpha * norm.beta / norm.n * x * others)


def _window_sums(values: Array, n: int) -> Array:
    """Return, for each position, the sum over the window around it."""
    before = (n - 1) // 2
    return _around(values, range(2, values.ndim), before, n - 1 - before)


def _share(x: Array, norm: LRNSpec) -> float:
    return float(norm.alpha / norm.n ** max(2, x.ndim - 2))  # images of one axis are one pixel high


def _spread_around(x: Array, means: Array, norm: LRNSpec) -> Array:
    first, second, count = (_window_sums(values, norm.n) for values in (x, x * x, np.ones_like(x)))
    squares = second - 2 * means * first + means * means * count
    return np.asarray(norm.k + _share(x, norm) * squares)


def _divisive(way: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what has means, and the same where they are 0."""
    how: dict[str, Any] = {
        "refused": Status.NOT_SUPPORTED,
        "workspace": lambda specs: 2 * specs["x"].nbytes,
    }

    def register(compute: Callable[..., Any]) -> Callable[..., Any]:
        def without(*operands: Array, norm: LRNSpec) -> Any:
            found = compute(*operands, np.zeros_like(operands[0]), norm)
            return found if way == "forward" else found[0]

        computes(f"divisive_normalization_{way}", **how)(without)
        return computes(f"divisive_normalization_{way}_around", **how)(compute)

    return register


@_divisive("forward")
def divide_around(x: Array, means: Array, norm: LRNSpec) -> Array:
    """Return the values, divided by what their windows hold."""
    return np.asarray(x * _spread_around(x, means, norm) ** -norm.beta)


@_divisive("backward")
def divide_around_backward(x: Array, dy: Array, means: Array, norm: LRNSpec) -> tuple[Array, ...]:
    """Return the gradients of x and of the means."""
    spread, each = _spread_around(x, means, norm), 2 * norm.beta * _share(x, norm)
    slope = dy * x * spread ** (-norm.beta - 1)
    around = x * _window_sums(slope, norm.n) - _window_sums(slope * means, norm.n)
    distances = _window_sums(x, norm.n) - means * _window_sums(np.ones_like(x), norm.n)
    return dy * spread**-norm.beta - each * around, each * slope * distances
