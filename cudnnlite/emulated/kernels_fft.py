"""Forward convolutions of the emulated device by FFT, of whole images (`FFT`) or of overlapping tiles (`FFT_TILED`).

Called as :mod:`cudnnlite.emulated.kernels` describes, with float32 or float64 data; the transforms lie in `scratch`. The sum
over the channels is a matrix product for each frequency. Of each tile the part is kept that does not wrap round; a filter
that is long against the usual tile of 32 x 32 (16 x 16 x 16) makes the tiles larger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cudnnlite.emulated.geometry import (
    Array,
    Shape,
    box_shape,
    boxes,
    carve,
    checked,
    chunks,
    correlation_filter,
    gather,
    split_groups,
    transform_unsupported,
)
from cudnnlite.specs import ConvolutionSpec

_BYTES = 128 << 20  # of scratch
_POINTS = 1 << 20  # of the largest single transform
_POINTS_AT_ONCE = 1 << 17  # transformed in one call, if there are so many: more leaves the cache
_FILTERS = 1024
_TILES = 4096


class _Plan(NamedTuple):
    """Sizes of an overlap-save convolution."""

    size: Shape  # of one transform, per spatial axis
    step: Shape  # outputs that one transform yields, per spatial axis
    grid: Shape  # transforms per spatial axis
    points: int  # of one spectrum
    filters: int  # of one group, transformed at once
    channels: int  # of one group, likewise
    tiles: int  # over batch and grid, likewise

    @property
    def shapes(self) -> tuple[Shape, Shape, Shape]:
        """Transformed x, w and y, frequency first: each frequency is one matrix product."""
        return (
            (self.points, self.tiles, self.channels),
            (self.points, self.filters, self.channels),
            (self.points, self.tiles, self.filters),
        )


def _fast_length(n: int) -> int:
    """Smallest ``2**a * 3**b * 5**c`` that is at least `n`."""
    best = 1 << (n - 1).bit_length()
    five = 1
    while five < best:
        three = five
        while three < best:
            best = min(best, three << max(0, (-(-n // three) - 1).bit_length()))
            three *= 3
        five *= 5
    return best


def _transform_size(out: Sequence[int], taps: Sequence[int], *, tiled: bool) -> Shape:
    """Extents of one transform: the padded image, or a tile of it."""
    size = tuple(_fast_length(extent + tap - 1) for extent, tap in zip(out, taps, strict=True))
    if tiled:  # cuDNN tiles by 32 x 32
        least = 16 if len(out) == 3 else 32
        size = tuple(min(whole, _fast_length(max(least, 2 * tap))) for whole, tap in zip(size, taps, strict=True))
    return size


def _plan(x_shape: Shape, w_shape: Shape, problem: ConvolutionSpec, dtype: DTypeLike, *, tiled: bool) -> _Plan:
    n, k, *out = problem.output_shape(x_shape, w_shape)
    taps = w_shape[2:]
    size = _transform_size(out, taps, tiled=tiled)
    step = tuple(min(extent, s - tap + 1) for extent, s, tap in zip(out, size, taps, strict=True))
    grid = tuple(-(-extent // s) for extent, s in zip(out, step, strict=True))
    filters, channels = min(k // problem.groups, _FILTERS), w_shape[1]
    points = math.prod((*size[:-1], size[-1] // 2 + 1))
    budget = _BYTES // (2 * np.dtype(dtype).itemsize * points)  # transforms of x, w and y together
    # Filters and channels are chosen without regard to the batch, so that a part of it never needs more scratch.
    tiles = max(1, math.isqrt(budget // 3))
    while filters * channels + tiles * (filters + channels) > budget and max(filters, channels) > 1:
        if filters >= channels:
            filters = (filters + 1) // 2
        else:
            channels = (channels + 1) // 2
    tiles = max(tiles, (budget - filters * channels) // (filters + channels))
    return _Plan(size, step, grid, points, filters, channels, min(n * math.prod(grid), _TILES, tiles))


def _transform_images(spectra: Array, images: Array, corner: Sequence[int], size: Shape) -> None:
    """Set `spectra`, ``(frequencies, a, b)``, to those of boxes of `images`, ``(a, b, *spatial)``.

    All boxes begin at pixel `corner` and have extents `size`; beyond the images lie zeros.
    """
    for part in boxes(images.shape[:2], max(1, _POINTS_AT_ONCE // math.prod(size))):
        padded = np.empty((*box_shape(part), *size), images.dtype)
        gather(padded, images[part], corner, [1] * len(size))
        hat = np.fft.rfftn(padded, axes=tuple(range(2, padded.ndim)))
        where = (slice(None), *part)
        spectra[where] = np.moveaxis(hat.reshape(*hat.shape[:2], -1), -1, 0)


def _invert_spectra(images: Array, spectra: Array, size: Shape) -> None:
    """Set `images`, ``(a, b, *spatial)``, to the first pixels of what has `spectra`, ``(frequencies, a, b)``."""
    first = (slice(None), slice(None), *(slice(0, extent) for extent in images.shape[2:]))
    for part in boxes(images.shape[:2], max(1, _POINTS_AT_ONCE // math.prod(size))):
        where = (slice(None), *part)
        hat = np.moveaxis(spectra[where], 0, -1).reshape(*box_shape(part), *size[:-1], -1)
        pixels = np.fft.irfftn(hat, s=size, axes=tuple(range(2, hat.ndim)))
        images[part] = pixels[first]


def _overlap_save(
    x: Array, w: Array, problem: ConvolutionSpec, out: Array, scratch: NDArray[np.uint8], *, tiled: bool
) -> None:
    plan = _plan(x.shape, w.shape, problem, x.dtype, tiled=tiled)
    padding, _, _ = problem.steps(x.ndim - 2)
    x_flat, w_hat, y_flat = carve(scratch, np.result_type(x.dtype, np.complex64), *plan.shapes)
    x_groups = split_groups(x, 1, problem.groups)
    w_groups = split_groups(correlation_filter(w, problem), 0, problem.groups)
    y_groups = split_groups(out, 1, problem.groups)
    filters, channels = w_groups.shape[1:3]
    transformed: Any = None  # which block of filters w_hat holds
    blocks = product(range(problem.groups), chunks(filters, plan.filters), boxes((len(x), *plan.grid), plan.tiles))
    for g, ks, box in blocks:
        ns, k = box[0], ks.stop - ks.start
        n = ns.stop - ns.start
        tiles = [
            tuple(i * step for i, step in zip(tile, plan.step, strict=True))
            for tile in product(*(range(part.start, part.stop) for part in box[1:]))
        ]
        ys = y_flat[:, : n * len(tiles), :k]
        for cs in chunks(channels, plan.channels):
            c = cs.stop - cs.start
            xs, ws = x_flat[:, : n * len(tiles), :c], w_hat[:, :k, :c]
            if transformed != (g, ks, cs):
                _transform_images(ws, w_groups[g, ks, cs], [0] * len(plan.size), plan.size)
                np.conjugate(ws, out=ws)  # correlation, not convolution
                transformed = (g, ks, cs)
            for i, start in enumerate(tiles):
                corner = [pixel - pad for pixel, pad in zip(start, padding, strict=True)]
                _transform_images(xs[:, i :: len(tiles)], x_groups[ns, g, cs], corner, plan.size)
            _multiply_spectra(xs, ws, ys, add=cs.start > 0)
        for i, start in enumerate(tiles):
            window = (ns, g, ks, *(slice(pixel, pixel + step) for pixel, step in zip(start, plan.step, strict=True)))
            _invert_spectra(y_groups[window], ys[:, i :: len(tiles)], plan.size)


def _multiply_spectra(x: Array, w: Array, y: Array, *, add: bool) -> None:
    """Set `y`, ``(frequencies, tiles, filters)``, to ``x @ w.T`` for each frequency, or add that to it."""
    for part in chunks(len(y), max(1, _POINTS // y[0].size)):
        if add:
            y[part] += np.matmul(x[part], w[part].swapaxes(1, 2))
        else:
            np.matmul(x[part], w[part].swapaxes(1, 2), out=y[part])


def _size(x_shape: Shape, w_shape: Shape, problem: ConvolutionSpec, dtype: DTypeLike, *, tiled: bool) -> int:
    shapes = _plan(x_shape, w_shape, problem, dtype, tiled=tiled).shapes
    return 2 * np.dtype(dtype).itemsize * sum(map(math.prod, shapes))


def _unsupported(
    x_shape: Shape, w_shape: Shape, problem: ConvolutionSpec, dtype: DTypeLike, *, tiled: bool
) -> str | None:
    if len(x_shape) > 4 and not tiled:
        return "the FFT of whole images has two spatial axes at most"
    if why := transform_unsupported(problem, dtype):
        return why
    points = math.prod(_transform_size(problem.output_shape(x_shape, w_shape)[2:], w_shape[2:], tiled=tiled))
    return f"one transform has {points} points; {_POINTS} at most" if points > _POINTS else None


FFT, FFT_TILED = (
    checked(partial(_overlap_save, tiled=tiled), partial(_size, tiled=tiled), partial(_unsupported, tiled=tiled))
    for tiled in (False, True)
)
