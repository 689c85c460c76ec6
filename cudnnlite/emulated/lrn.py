"""Emulated local response normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cudnnlite.emulated.operation import Array, computes, in_one_layout
from cudnnlite.enums import Status
from cudnnlite.specs.lrn import LRNSpec


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
