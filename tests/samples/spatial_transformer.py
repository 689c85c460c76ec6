"""Spatial transformers; the oracles are sums over points.

The family's own tests compare with PyTorch's functions.
"""

from __future__ import annotations

import numpy as np

import cudnnlite as dnn
import samples as s

_POINTS = (4, 6)


def _spec(images):
    return dnn.SpatialTransformerSpec((*images[:2], *_POINTS))


def _places(transformer):
    """Yield the index of each point, and the point with a one behind."""
    height, width = transformer.shape[2:]
    for h, w in np.ndindex(height, width):
        yield h, w, np.array([2 * w / (width - 1) - 1, 2 * h / (height - 1) - 1, 1])


def _grid(theta, transformer):
    out = np.empty((len(theta), *transformer.shape[2:], 2))
    for h, w, point in _places(transformer):
        out[:, h, w] = theta @ point
    return out


def _grid_backward(dgrid, transformer):
    return sum(np.multiply.outer(dgrid[:, h, w], point) for h, w, point in _places(transformer))


def _sample(x, grid, transformer):
    """Hats around the pixels, evaluated at each point."""
    hats = [
        np.maximum(0, 1 - abs((grid[..., axis, None] + 1) / 2 * (size - 1) - np.arange(size)))
        for axis, size in ((0, x.shape[3]), (1, x.shape[2]))
    ]
    return np.einsum("nchw,nijw,nijh->ncij", x, *hats)


def _drawn(shapes):
    def drawn(draw, images):
        from hypothesis import strategies as st

        size = st.integers(2, 5)
        images = (*images[:2], draw(size), draw(size))
        transformer = dnn.SpatialTransformerSpec((*images[:2], draw(size), draw(size)))
        return shapes(images, {}, transformer), {"transformer": transformer}

    return drawn


def _shapes(*operands):
    def at(images, plain, transformer=None):
        n, c, *points = (transformer or _spec(images[:2])).shape
        shapes = {
            "theta": (n, 2, 3),
            "dgrid": (n, *points, 2),
            "grid": (n, *points, 2),
            "x": images,
            "dy": (n, c, *points),
        }
        return {operand: shapes[operand] for operand in operands}

    return at


def _sample_of(*operands, **fields):
    images = (2, 5, 4, 3)
    at = _shapes(*operands)
    return s.Sample(
        {"transformer": _spec(images)},
        images,
        at=at,
        drawn=_drawn(at),
        make=_make,
        combinations=_combinations,
        **fields,
    )


def _combinations(name):
    return (key for key in s.usual_combinations(name, ({},)) if key[2] == 4)


def _make(plain):
    return {"transformer": _spec(s.IMAGES[4])}


SAMPLES = {
    "spatial_transformer_grid": _sample_of("theta", reference=_grid),
    "spatial_transformer_grid_backward": _sample_of("dgrid", reference=_grid_backward),
    "spatial_transformer_sample": _sample_of("x", "grid", reference=_sample, loose=True),
    "spatial_transformer_sample_backward": _sample_of(
        "x", "grid", "dy", forward="spatial_transformer_sample"
    ),
}
