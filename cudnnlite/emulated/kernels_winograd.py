"""Forward convolutions of the emulated device by minimal filtering: `WINOGRAD`, F(2x2, 3x3).

Called as :mod:`cudnnlite.emulated.kernels` describes, with float32 or float64 data; transformed filters, tiles and products
lie in `scratch`. The sum over the channels is a matrix product for each of 16 points.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cudnnlite.emulated.geometry import (
    Array,
    Shape,
    box_shape,
    boxes,
    carve,
    channels_last,
    checked,
    chunks,
    correlation_filter,
    gather,
    matrices,
    transform_unsupported,
)
from cudnnlite.specs import ConvolutionSpec

_FILTERS = 4096
_CHANNELS = 1024
_FILTER_BYTES = 64 << 20
_TILE_BYTES = 32 << 20
_TILES = 4096

# F(2 x 2, 3 x 3) of Lavin and Gray, 'Fast Algorithms for Convolutional Neural Networks' (2015), arXiv:1509.09308,
# section 4.1: Y = A^T [(G g G^T) * (B^T d B)] A for 4 x 4 tiles d of the image that overlap by two.
_G = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0))
_B = ((0, np.subtract, 2), (1, np.add, 2), (2, np.subtract, 1), (1, np.subtract, 3))  # rows of B^T: d0 - d2, ...


class _Plan(NamedTuple):
    """How much one step takes: filters and channels, and 4 x 4 tiles over batch and space."""

    filters: int
    channels: int
    tiles: int

    @property
    def shapes(self) -> tuple[Shape, Shape, Shape]:
        """Transformed w, x and y: each of the 16 points is one matrix product."""
        return (16, self.filters, self.channels), (16 * self.channels * self.tiles,), (16 * self.filters * self.tiles,)


def _plan(x_shape: Shape, w_shape: Shape, problem: ConvolutionSpec, dtype: DTypeLike) -> _Plan:
    n, k, *out = problem.output_shape(x_shape, w_shape)
    point = 16 * np.dtype(dtype).itemsize
    channels = min(x_shape[1], _CHANNELS)
    filters = min(k, _FILTERS, _FILTER_BYTES // (channels * point))
    tiles = n * math.prod((extent + 1) // 2 for extent in out)
    return _Plan(filters, channels, min(tiles, _TILES, _TILE_BYTES // (max(channels, filters) * point)))


def _compute(x: Array, w: Array, problem: ConvolutionSpec, out: Array, scratch: NDArray[np.uint8]) -> None:
    plan = _plan(x.shape, w.shape, problem, x.dtype)
    u, v_flat, m_flat = carve(scratch, x.dtype, *plan.shapes)
    w, (padding, _, _) = correlation_filter(w, problem), problem.steps(2)
    x_last, y_last = channels_last(x), channels_last(out)
    grid = [len(x), *((extent + 1) // 2 for extent in out.shape[2:])]
    for ks, cs in product(chunks(len(w), plan.filters), chunks(w.shape[1], plan.channels)):
        k, c = box_shape((ks, cs))
        _transform_filters(u[:, :k, :c], w[ks, cs])
        for box in boxes(grid, plan.tiles):
            n, *tiles = box_shape(box)
            points = math.prod((n, *tiles))
            v = matrices(v_flat, 16, c, points, contiguous_columns=x_last)
            corner = [2 * outer.start - pad for outer, pad in zip(box[1:], padding, strict=True)]
            _transform_tiles(v.reshape(16, c, n, *tiles), x[box[0], cs].swapaxes(0, 1), corner, last=x_last)
            m = matrices(m_flat, 16, k, points, contiguous_columns=y_last)
            np.matmul(u[:, :k, :c], v, out=m)
            rows, columns = (slice(2 * outer.start, 2 * outer.stop) for outer in box[1:])
            target = out[box[0], ks, rows, columns].swapaxes(0, 1)
            _transform_products(target, m.reshape(16, k, n, *tiles), add=cs.start > 0)


def _transform_filters(u: Array, w: Array) -> None:
    """Set `u`, ``(16, filters, channels)``, to ``G w G^T``, where `w` is ``(filters, channels, 3, 3)``."""
    for i, row in enumerate(_G):
        taps = [sum(weight * w[:, :, a, b] for a, weight in enumerate(row) if weight) for b in range(3)]
        for j, column in enumerate(_G):
            u[4 * i + j] = sum(weight * taps[b] for b, weight in enumerate(column) if weight)


def _transform_tiles(v: Array, x: Array, corner: list[int], *, last: bool) -> None:
    """Set `v`, ``(16, channels, n, rows, columns)``, to ``B^T d B`` for the tiles d of `x`, ``(channels, n, H, W)``.

    The first tile begins at pixel `corner`, the next ones two pixels further each; `last` tells in which memory order
    `v` is, so that the copy in between has the same.
    """
    _, c, n, rows, columns = v.shape
    shape = (n, 2 * rows + 2, 2 * columns + 2)
    padded = np.moveaxis(np.empty((*shape, c), x.dtype), -1, 0) if last else np.empty((c, *shape), x.dtype)
    gather(padded, x, corner, (1, 1))
    for i, (a, combine, b) in enumerate(_B):
        lines = combine(padded[:, :, a : a + 2 * rows - 1 : 2], padded[:, :, b : b + 2 * rows - 1 : 2])
        for j, (a2, combine2, b2) in enumerate(_B):
            combine2(
                lines[..., a2 : a2 + 2 * columns - 1 : 2], lines[..., b2 : b2 + 2 * columns - 1 : 2], out=v[4 * i + j]
            )


def _transform_products(y: Array, m: Array, *, add: bool) -> None:
    """Set `y`, ``(filters, n, 2 * rows, 2 * columns)`` or one less, to ``A^T m A``, or add that to it.

    `m` is ``(16, filters, n, rows, columns)``.
    """
    for i in range(2):
        lines = [_output_row(i, m[j], m[4 + j], m[8 + j], m[12 + j]) for j in range(4)]
        for j in range(2):
            target = y[:, :, i::2, j::2]
            result = _output_row(j, *lines)[:, :, : target.shape[2], : target.shape[3]]
            if add:
                np.add(target, result, out=target)
            else:
                target[...] = result


def _output_row(row: int, m0: Array, m1: Array, m2: Array, m3: Array) -> Array:
    """One row of A^T applied to four points."""
    result: Array = m1 - m2 - m3 if row else m0 + m1 + m2
    return result


def _size(x_shape: Shape, w_shape: Shape, problem: ConvolutionSpec, dtype: DTypeLike) -> int:
    return np.dtype(dtype).itemsize * sum(map(math.prod, _plan(x_shape, w_shape, problem, dtype).shapes))


def _unsupported(x_shape: Shape, w_shape: Shape, problem: ConvolutionSpec, dtype: DTypeLike) -> str | None:
    if tuple(w_shape[2:]) != (3, 3):
        return f"3 x 3 filters only; got {tuple(w_shape[2:])}"
    if problem.groups > 1:
        return f"one group only; got {problem.groups}"
    return transform_unsupported(problem, dtype)


WINOGRAD = checked(_compute, _size, _unsupported)
