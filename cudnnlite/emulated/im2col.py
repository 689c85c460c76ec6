"""Emulated columns."""

from __future__ import annotations

from math import prod

import numpy as np

from cudnnlite.emulated.geometry import gather
from cudnnlite.emulated.operation import Array, computes
from cudnnlite.enums import ConvolutionMode, Status
from cudnnlite.operations.operation import FLOATS
from cudnnlite.specs import ConvolutionSpec, FilterSpec


@computes(
    "im2col", "cudnnIm2Col", dtypes=FLOATS, ranks=(2,), refuse=lambda specs, options: "", refused=Status.NOT_SUPPORTED
)
def im2col(x: Array, w: FilterSpec, conv: ConvolutionSpec) -> Array:
    """Return a row for each tap."""
    taps, (padding, stride, dilation) = w.shape[2:], conv.steps(x.ndim - 2)
    n, c = x.shape[:2]
    columns = np.empty((c, *taps, n, *conv.output_shape(x.shape, w.shape)[2:]), x.dtype)
    for tap in np.ndindex(*taps):
        starts = [step * place - pad for step, place, pad in zip(dilation, tap, padding, strict=True)]
        place = (slice(None), *tap)
        gather(columns[place], x.swapaxes(0, 1), starts, stride)
    if conv.mode == ConvolutionMode.CONVOLUTION:
        columns = np.flip(columns, tuple(range(1, 1 + len(taps))))
    return columns.reshape(c * prod(taps), -1)
