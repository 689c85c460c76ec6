"""The gradient of a bias."""

from __future__ import annotations

import numpy as np

import samples as s


def _reference(dy):
    """Return the gradient by its definition: of the sum of (0 + bias) * dy."""
    return np.einsum("ncp->c", dy.reshape(*dy.shape[:2], -1)).reshape(1, -1, *[1] * (dy.ndim - 2))


SAMPLES = {
    "convolution_backward_bias": s.Sample(
        {}, at=lambda i, plain: {"dy": i}, reference=_reference, loose=True
    )
}
