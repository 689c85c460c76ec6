"""Emulated matrix of a convolution."""

from __future__ import annotations

import numpy as np

from cudnnlite.emulated.kernels import gather
from cudnnlite.emulated.operation_call import Array, computes, never_refused
from cudnnlite.enums import ConvolutionMode, Status
from cudnnlite.problems import im2col as declarations
from cudnnlite.problems.operation import FLOATS
from cudnnlite.specs import ConvolutionSpec, FilterSpec


@computes(
    declarations.IM2COL,
    dtypes=FLOATS,
    ranks=(2,),
    why_refused=never_refused,
    refusal_status=Status.NOT_SUPPORTED,
)
def im2col(x: Array, w: FilterSpec, conv: ConvolutionSpec) -> Array:
    """`cudnnIm2Col`: return a row for each tap."""
    n, c, *_ = x.shape
    positions = conv.output_shape(x.shape, w.shape)[2:]
    taps = list(np.ndindex(*w.shape[2:]))
    if conv.mode == ConvolutionMode.CONVOLUTION:  # as `correlation_filter` reverses a filter
        taps.reverse()
    columns = np.empty((c, len(taps), n, *positions), x.dtype)
    box = (slice(0, n), *(slice(0, size) for size in positions))
    gather(columns, x, box, taps, conv)
    return columns.reshape(c * len(taps), -1)
