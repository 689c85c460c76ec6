"""Forward convolutions of the emulated device that transform images and filters: Winograd's, and by FFT.

The sum over the channels is a matrix product for each point of the transforms.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cudnnlite.emulated import geometry
from cudnnlite.emulated.geometry import (
    Algorithm,
    Array,
    Shape,
    box_shape,
    boxes,
    carve,
    carved,
    chunks,
    correlation_filter,
    gather,
    split_groups,
    store,
    transform_unsupported,
)
from cudnnlite.specs import ConvolutionSpec

CHANNELS, TILES = 1024, 4096  # in one step of Winograd's
BYTES = 32 << 20  # of spectra
_POINTS = 1 << 20  # of the largest single transform

# F(2 x 2, 3 x 3) of Lavin and Gray, 'Fast Algorithms for Convolutional Neural Networks' (2015), arXiv:1509.09308,
# section 4.1: Y = A^T [(G g G^T) * (B^T d B)] A for 4 x 4 tiles d of the image that overlap by two.  Both sides of a tile
# at once: the Kronecker product of a matrix with itself.
_G, _B, _A = (
    np.kron(matrix, matrix)
    for matrix in (
        np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]),
        np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]]),
        np.array([[1, 1, 1, 0], [0, 1, -1, -1]]),
    )
)


def _winograd_steps(x: Shape, w: Shape, conv: ConvolutionSpec) -> tuple[int, int, int]:
    """Return how much one step takes: filters, channels, and tiles over batch and space."""
    (n, k, *out), values = conv.output_shape(x, w), 2 * geometry.VALUES // 16
    channels = min(x[1], CHANNELS)
    filters = min(k, max(1, values // channels))
    tiles = n * math.prod((extent + 1) // 2 for extent in out)
    return filters, channels, min(tiles, TILES, max(1, values // max(channels, filters)))


def _winograd_size(x: Shape, w: Shape, conv: ConvolutionSpec, dtype: DTypeLike) -> int:
    filters, channels, tiles = _winograd_steps(x, w, conv)
    return carved(dtype, (16, filters, channels), (16, channels, tiles))


def _winograd(x: Array, w: Array, conv: ConvolutionSpec, out: Array, scratch: NDArray[np.uint8]) -> None:
    """Convolve by minimal filtering (``WINOGRAD``): 16 products for the 2 x 2 outputs of a tile, instead of 36."""
    steps, w = _winograd_steps(x.shape, w.shape, conv), correlation_filter(w, conv)
    weights, room = carve(scratch, x.dtype, (16 * steps[0] * steps[1],), (16 * steps[1] * steps[2],))
    of_filter, of_tile, of_products = (matrix.astype(x.dtype) for matrix in (_G, _B, _A))
    taps, every_other = list(np.ndindex(4, 4)), conv.replace(stride=2)
    grid = [len(x), *((extent + 1) // 2 for extent in out.shape[2:])]
    for ks, cs in product(chunks(len(w), steps[0]), chunks(w.shape[1], steps[1])):
        k, c = box_shape((ks, cs))
        u = weights[: 16 * k * c].reshape(16, k, c)
        np.matmul(of_filter, w[ks, cs].reshape(-1, 9).T, out=u.reshape(16, -1))
        for box in boxes(grid, steps[2]):
            places = box_shape(box)
            tiles = room[: 16 * c * math.prod(places)].reshape(c, 16, *places)
            gather(tiles, x[:, cs], box, taps, every_other)
            m = u @ (of_tile @ tiles.reshape(c, 16, -1)).swapaxes(0, 1)
            results = (of_products @ m.reshape(16, -1)).reshape(2, 2, 1, k, *places)
            place = (box[0], ks, *(slice(2 * part.start, 2 * part.stop) for part in box[1:]))
            target = out[place][:, None]
            for i, j in np.ndindex(2, 2):
                part = target[..., i::2, j::2]
                store(part, results[i, j][..., : part.shape[-2], : part.shape[-1]], add=cs.start > 0)


def _winograd_unsupported(x: Shape, w: Shape, conv: ConvolutionSpec, dtype: DTypeLike) -> str | None:
    if tuple(w[2:]) != (3, 3):
        return f"3 x 3 filters only; got {tuple(w[2:])}"
    return f"one group only; got {conv.groups}" if conv.groups > 1 else transform_unsupported(conv, dtype)


class _Overlap(NamedTuple):
    """Sizes of an overlap-save convolution."""

    size: Shape  # of one transform, by axis
    step: Shape  # outputs that one transform yields, by axis
    filters: int  # of one group, transformed at once
    channels: int  # of one group, likewise
    tiles: int  # over batch and space, likewise

    @property
    def shapes(self) -> tuple[Shape, Shape]:
        """Transformed w and x, frequency first."""
        points = math.prod((*self.size[:-1], self.size[-1] // 2 + 1))
        return (points, self.channels, self.filters), (points, self.tiles, self.channels)


def _fast_length(n: int) -> int:
    """Return the smallest ``2**a * 3**b * 5**c`` that is at least `n`."""
    powers = range(n.bit_length() + 1)
    odd: list[int] = [3**b * 5**c for b in powers for c in powers]
    return min(factor << max(0, (-(-n // factor) - 1).bit_length()) for factor in odd)


def _transform_size(out: Shape, taps: Shape, *, tiled: bool) -> Shape:
    """Return the extents of one transform: of the padded image, or of a tile, as cuDNN has them or for a longer filter."""
    size = tuple(_fast_length(extent + tap - 1) for extent, tap in zip(out, taps, strict=True))
    if not tiled:
        return size
    least = 16 if len(out) == 3 else 32
    return tuple(min(whole, _fast_length(max(least, 2 * tap))) for whole, tap in zip(size, taps, strict=True))


def _overlap(x: Shape, w: Shape, conv: ConvolutionSpec, dtype: DTypeLike, *, tiled: bool) -> _Overlap:
    n, k, *out = conv.output_shape(x, w)
    size = _transform_size(tuple(out), w[2:], tiled=tiled)
    step = tuple(min(extent, s - tap + 1) for extent, s, tap in zip(out, size, w[2:], strict=True))
    spectra = BYTES // (2 * np.dtype(dtype).itemsize * math.prod((*size[:-1], size[-1] // 2 + 1)))  # of w, x and y
    # filters and channels are chosen without regard to the batch, so that a part of it never needs more scratch
    channels = max(1, min(w[1], math.isqrt(spectra // 3)))
    filters = max(1, min(k // conv.groups, spectra // 3 // channels))
    tiles = max(1, (spectra - filters * channels) // (filters + channels))
    whole = n * math.prod(-(-extent // s) for extent, s in zip(out, step, strict=True))
    return _Overlap(size, step, filters, channels, min(whole, tiles))


def _overlap_size(x: Shape, w: Shape, conv: ConvolutionSpec, dtype: DTypeLike, *, tiled: bool) -> int:
    return 2 * carved(dtype, *_overlap(x, w, conv, dtype, tiled=tiled).shapes)


def _transform(spectra: Array, images: Array) -> None:
    """Set `spectra`, ``(points, a, b)``, to those of `images`, ``(a, b, *spatial)``."""
    transformed = np.fft.rfftn(images, axes=tuple(range(2, images.ndim)))
    spectra[...] = np.moveaxis(transformed.reshape(*images.shape[:2], -1), -1, 0)


def _overlap_save(
    x: Array, w: Array, conv: ConvolutionSpec, out: Array, scratch: NDArray[np.uint8], *, tiled: bool
) -> None:
    """Convolve by FFT, of whole images or of overlapping tiles: of each the part is kept that does not wrap round."""
    plan, spatial = _overlap(x.shape, w.shape, conv, x.dtype, tiled=tiled), x.ndim - 2
    room = carve(scratch, np.result_type(x.dtype, np.complex64), *plan.shapes)
    images, results = split_groups(x, 1, conv.groups), split_groups(out, 1, conv.groups)
    filters = split_groups(correlation_filter(w, conv), 0, conv.groups)
    starts = [[*range(0, extent, step)] for extent, step in zip(out.shape[2:], plan.step, strict=True)]
    blocks = (chunks(filters.shape[1], plan.filters), chunks(filters.shape[2], plan.channels))
    for g, ks, cs in product(range(conv.groups), *blocks):
        k, c = box_shape((ks, cs))
        of_filters, padded = room[0][:, :c, :k], np.zeros((c, k, *plan.size), x.dtype)
        front: Any = (..., *(slice(0, size) for size in w.shape[2:]))
        padded[front] = filters[g, ks, cs].swapaxes(0, 1)
        _transform(of_filters, padded)
        np.conjugate(of_filters, out=of_filters)  # correlation, not convolution
        for box in boxes((len(x), *map(len, starts)), plan.tiles):
            n = box[0].stop - box[0].start
            corners = list(product(*(row[part] for row, part in zip(starts, box[1:], strict=True))))
            of_images = room[1][:, : n * len(corners), :c]
            for i, corner in enumerate(corners):
                window: Any = (box[0], *(slice(at, at + size) for at, size in zip(corner, plan.size, strict=True)))
                padded = np.empty((c, 1, n, *plan.size), x.dtype)
                gather(padded, images[:, g, cs], window, [(0,) * spatial], conv)
                _transform(of_images[:, i * n : (i + 1) * n], padded[:, 0].swapaxes(0, 1))
            spectra = of_images @ of_filters
            for i, corner in enumerate(corners):
                window = (box[0], g, ks, *(slice(at, at + s) for at, s in zip(corner, plan.step, strict=True)))
                target = results[window]
                tile = np.moveaxis(spectra[:, i * n : (i + 1) * n], 0, -1).reshape(n, k, *plan.size[:-1], -1)
                pixels = np.fft.irfftn(tile, s=plan.size, axes=tuple(range(2, 2 + spatial)))
                front = (..., *(slice(0, extent) for extent in target.shape[2:]))
                store(target[:, None], pixels[front].swapaxes(0, 1), add=cs.start > 0)


def _fft_unsupported(x: Shape, w: Shape, conv: ConvolutionSpec, dtype: DTypeLike, *, tiled: bool) -> str | None:
    if len(x) > 4 and not tiled:
        return "the FFT of whole images has two spatial axes at most"
    points = math.prod(_transform_size(conv.output_shape(x, w)[2:], w[2:], tiled=tiled))
    most = f"one transform has {points} points; {_POINTS} at most" if points > _POINTS else None
    return transform_unsupported(conv, dtype) or most


WINOGRAD = Algorithm(_winograd, _winograd_size, _winograd_unsupported)
FFT, FFT_TILED = (
    Algorithm(partial(_overlap_save, tiled=on), partial(_overlap_size, tiled=on), partial(_fft_unsupported, tiled=on))
    for on in (False, True)
)
