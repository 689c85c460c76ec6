"""Emulated gradient of a convolution's bias."""

from __future__ import annotations

import numpy as np

from cudnnlite.emulated.operation_call import Array, computes
from cudnnlite.problems import convolution_bias as declarations


@computes(declarations.BACKWARD)
def backward(dy: Array) -> Array:
    """`cudnnConvolutionBackwardBias`: return the sums over images and positions."""
    return np.asarray(dy.sum((0, *range(2, dy.ndim)), keepdims=True))
