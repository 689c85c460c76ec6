"""Convolutions of the emulated device, and their gradients, as products with matrices of columns.

The matrices are made in parts of bounded size.  A column holds what one place of the output is
computed from: its rows are the channels and taps (im2col).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cudnnlite.enums import ConvolutionMode
from cudnnlite.specs import ConvolutionSpec

Array = NDArray[Any]
Shape = tuple[int, ...]
Box = tuple[slice, ...]
VALUES = 2 << 20  # in a matrix of filters or of results; a matrix of columns may have twice as many
TAPS = 64  # in one matrix of columns
# Places in one matrix of columns: an image or two of 56 x 56, for more do not fit into the cache.
PLACES = 4096
# The same where there are more taps than TAPS: each is gathered once for a block of places.
MANY_PLACES = 65536


class Algorithm(NamedTuple):
    """One way to convolve, or to compute a gradient of a convolution.

    Attributes
    ----------
    compute : callable
        (first, second, conv, out, scratch), with what the C function reads, in its order.  Images
        are ``(N, C, *spatial)``, filters ``(K, C // groups, *taps)``; all have one compute dtype
        (float32, float64; int32, whose sums are exact modulo 2**32) and any strides.  `out` is
        overwritten, but the gradient of a filter is added to it.  `scratch` is of uint8, aligned
        for float64.  No algorithm needs more than 256 MiB of it, nor allocates more than 128 MiB
        besides, whatever the problem (except for a row of pixels, where one alone is more).
    size : callable
        (x's shape, w's shape, conv, dtype) -> bytes of scratch; of a part of a batch never more
        than of the whole.
    """

    compute: Callable[..., None]
    size: Callable[..., int] = lambda *problem: 0

    def run(self, *arguments: Any) -> None:
        """Compute, without warnings."""
        with np.errstate(all="ignore"):
            self.compute(*arguments)


class _Blocks(NamedTuple):
    """The sizes of one matrix product.

    `filters` is the number for each group, `places` that of the output's places, over images and
    space.
    """

    taps: int
    filters: int
    places: int


def _blocks(x: Shape, w: Shape, conv: ConvolutionSpec, max_taps: int) -> _Blocks:
    n, k, *spatial = conv.output_shape(x, w)
    channels = x[1]
    taps = math.prod(w[2:])
    block_taps = min(taps, max_taps, max(1, VALUES // channels))
    filters = min(k // conv.groups, max(1, VALUES // (channels * block_taps)))
    max_places = min(
        MANY_PLACES if taps > TAPS else PLACES,
        2 * VALUES // (channels * block_taps),
        VALUES // (conv.groups * filters),
    )
    places = min(n * math.prod(spatial), max(1, max_places))
    return _Blocks(block_taps, filters, places)


def _size(x: Shape, w: Shape, conv: ConvolutionSpec, dtype: DTypeLike) -> int:
    blocks = _blocks(x, w, conv, TAPS)
    kind = np.dtype(dtype)
    # Sums of integers may need a matrix of int64 or float64.
    itemsize = 8 if kind.kind == "i" else kind.itemsize
    return x[1] * blocks.taps * blocks.places * itemsize


def correlation_filter(w: Array, conv: ConvolutionSpec) -> Array:
    """Return a view of `w` whose cross-correlation is what `conv` asks for.

    It is rotated where `conv` is a convolution proper.  A gradient is written through it too.
    """
    if conv.mode == ConvolutionMode.CONVOLUTION:
        return np.flip(w, tuple(range(2, w.ndim)))
    return w


def split_groups(a: Array, axis: int, groups: int) -> Array:
    """Return a view of `a` with `axis` split into ``(groups, size // groups)``; never a copy."""
    return a.reshape(*a.shape[:axis], groups, -1, *a.shape[axis + 1 :])


def chunks(size: int, step: int) -> Iterator[slice]:
    """Yield slices of at most `step` that cover ``range(size)``."""
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def boxes(extents: Sequence[int], limit: int) -> Iterator[Box]:
    """Yield boxes of at most `limit` points that cover a grid.

    Inner axes stay whole for as long as they fit.
    """
    if not extents:
        yield ()
        return
    for outer in chunks(extents[0], max(1, limit // math.prod(extents[1:]))):
        for inner in boxes(extents[1:], limit):
            yield (outer, *inner)


def tap_views(
    columns: Array, image: Array, box: Box, taps: Sequence[Shape], conv: ConvolutionSpec
) -> Iterator[tuple[Array, Array]]:
    """Yield, for each tap, views of `columns` and of their pixels in `image`, ``(C, n, *places)``.

    Places whose pixels are padding are left out.

    Parameters
    ----------
    columns : ndarray
        ``(C, len(taps), n, *places)``.
    image : ndarray
        ``(N, C, *spatial)``.
    box : tuple of slice
        The images, and the places of the output along each axis.
    taps : sequence of tuple
        Places in the filter.
    """
    steps = conv.steps(image.ndim - 2)
    for number, tap in enumerate(taps):
        places: list[Any] = [slice(None), number, slice(None)]
        pixels: list[Any] = [box[0], slice(None)]
        for out_slice, size, tap_index, padding, stride, dilation in zip(
            box[1:], image.shape[2:], tap, *steps, strict=True
        ):
            first_pixel = out_slice.start * stride + tap_index * dilation - padding
            count = out_slice.stop - out_slice.start
            # The first place whose pixel exists, and the one behind the last.
            low = max(0, -(first_pixel // stride))
            high = max(low, min(count, -((first_pixel - size) // stride)))
            places.append(slice(low, high))
            start = first_pixel + low * stride
            pixels.append(slice(start, start + (high - low) * stride, stride))
        yield columns[tuple(places)], image[tuple(pixels)].swapaxes(0, 1)


def gather(
    columns: Array, image: Array, box: Box, taps: Sequence[Shape], conv: ConvolutionSpec
) -> None:
    """Fill `columns` with their pixels, and with zeros for padding; see `tap_views`."""
    for number, (column, pixels) in enumerate(tap_views(columns, image, box, taps, conv)):
        if column.shape[1:] != columns.shape[2:]:
            columns[:, number] = 0
        column[...] = pixels


class _Part(NamedTuple):
    """One of the matrix products that make up a convolution."""

    box: Box  # images, and places of the output
    output_index: tuple[Any, ...]  # of the part in `split_groups` of the output
    # Of the cross-correlation: they index a filter that went through `correlation_filter` alone.
    taps: list[Shape]
    filters: Array  # (groups, filters, channels of a group, taps), from such a filter
    columns: Array  # room for (C, taps, n, *places)


def _parts(
    x: Shape,
    w: Array,
    y: Shape,
    conv: ConvolutionSpec,
    dtype: DTypeLike,
    scratch: NDArray[np.uint8],
) -> Iterator[_Part]:
    """Yield the matrix products; without `scratch` each has a single tap."""
    blocks = _blocks(x, w.shape, conv, TAPS if scratch.size else 1)
    if scratch.size:
        space: Array = scratch.view(dtype)
    else:
        space = np.empty(x[1] * blocks.taps * blocks.places, dtype)
    filters = split_groups(correlation_filter(w, conv), 0, conv.groups)
    taps = list(np.ndindex(*w.shape[2:]))
    filter_slices = chunks(filters.shape[1], blocks.filters)
    for filter_slice, box in product(filter_slices, boxes((y[0], *y[2:]), blocks.places)):
        # Taps are the innermost loop: what they add up to stays in the cache.
        for tap_slice in chunks(len(taps), blocks.taps):
            shape = (x[1], *(part.stop - part.start for part in (tap_slice, *box)))
            part_filters = [_at_tap(filters, tap)[:, filter_slice] for tap in taps[tap_slice]]
            yield _Part(
                box,
                (box[0], slice(None), filter_slice, *box[1:]),
                taps[tap_slice],
                np.stack(part_filters, -1),
                space[: math.prod(shape)].reshape(shape),
            )


def _at_tap(filters: Array, tap: Shape) -> Array:
    """Return a view of the values that grouped filters have at a tap."""
    index: Any = (..., *tap)
    return np.asarray(filters[index])


def _product_dtype(x: Array, w: Array) -> np.dtype[Any]:
    """Return a type in which sums of products are exact, or as good as in the operands' type."""
    if x.dtype.kind == "f":
        return x.dtype
    largest = [max(abs(int(a.min())), abs(int(a.max()))) for a in (x, w)]
    is_exact = largest[0] * largest[1] * math.prod(w.shape[1:]) < 2**53
    # A product of float64 goes through BLAS, one of integers through a loop 50 times slower.
    return np.dtype(np.float64 if is_exact else np.int64)


def _convolve(
    x: Array, w: Array, conv: ConvolutionSpec, out: Array, scratch: NDArray[np.uint8]
) -> None:
    """Convolve, without `scratch` tap by tap."""
    dtype = _product_dtype(x, w)
    grouped = split_groups(out, 1, conv.groups)
    for part in _parts(x.shape, w, out.shape, conv, dtype, scratch):
        columns = part.columns
        gather(columns, x, part.box, part.taps, conv)
        rows = part.filters.astype(dtype, copy=False).reshape(*part.filters.shape[:2], -1)
        target = grouped[part.output_index]
        result = rows @ columns.reshape(conv.groups, rows.shape[2], -1)
        result = np.moveaxis(result.reshape(*target.shape[1:3], *columns.shape[2:]), 2, 0)
        if out.dtype.kind == "i":
            # By way of int64 a sum beyond int32 wraps as it does on the device.
            result = result.astype(np.int64, copy=False).astype(np.int32)
        if any(part.taps[0]):
            np.add(target, result, out=target)
        else:
            target[...] = result


def _gradient_of_images(
    w: Array, dy: Array, conv: ConvolutionSpec, out: Array, scratch: NDArray[np.uint8]
) -> None:
    """Scatter: each place adds its columns, ``w.T @ dy``, to the pixels that it was made from."""
    out[...] = 0
    grouped = split_groups(dy, 1, conv.groups)
    for part in _parts(out.shape, w, dy.shape, conv, out.dtype, scratch):
        columns = part.columns
        matrix = part.filters.reshape(*part.filters.shape[:2], -1).swapaxes(1, 2)
        places = np.moveaxis(grouped[part.output_index], 0, 2)
        places = places.reshape(conv.groups, part.filters.shape[1], -1)
        np.matmul(matrix, places, out=columns.reshape(conv.groups, matrix.shape[1], -1))
        for column, pixels in tap_views(columns, out, part.box, part.taps, conv):
            np.add(pixels, column, out=pixels)


def _gradient_of_filter(
    x: Array, dy: Array, conv: ConvolutionSpec, out: Array, scratch: NDArray[np.uint8]
) -> None:
    """Gather: ``dy @ columns.T``, all images together; added to `out`."""
    grouped = split_groups(dy, 1, conv.groups)
    gradient = split_groups(correlation_filter(out, conv), 0, conv.groups)
    # The parts' filters are of no use here: the gradient stands in for a filter by its shape.
    for part in _parts(x.shape, out, dy.shape, conv, out.dtype, scratch):
        gather(part.columns, x, part.box, part.taps, conv)
        places = np.moveaxis(grouped[part.output_index], 0, 2)
        places = places.reshape(conv.groups, part.filters.shape[1], -1)
        result = places @ part.columns.reshape(conv.groups, -1, places.shape[2]).swapaxes(1, 2)
        slopes = np.moveaxis(result.reshape(part.filters.shape), -1, 0)
        for tap, slope in zip(part.taps, slopes, strict=True):
            _at_tap(gradient, tap)[:, part.output_index[2]] += slope


# Both tables are by the operand that is written.
WITHOUT_SCRATCH: Mapping[str, Algorithm] = {
    "y": Algorithm(_convolve),
    "dx": Algorithm(_gradient_of_images),
    "dw": Algorithm(_gradient_of_filter),
}
TAP_BY_TAP = WITHOUT_SCRATCH["y"]
KERNELS: Mapping[str, Algorithm] = {
    "y": Algorithm(_convolve, _size),
    "dx": Algorithm(_gradient_of_images, _size),
    "dw": Algorithm(_gradient_of_filter, _size),
}
