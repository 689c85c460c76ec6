"""Emulated gradient of a bias."""

from __future__ import annotations

import numpy as np

from cudnnlite.emulated.operation import Array, computes


@computes("convolution_backward_bias", "cudnnConvolutionBackwardBias")
def backward(dy: Array) -> Array:
    """Return the sums over images and positions."""
    return np.asarray(dy.sum((0, *range(2, dy.ndim)), keepdims=True))
