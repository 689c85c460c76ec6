"""Convolutions and their gradients in NumPy, computed as products of matrices.

A column of the matrix for x (im2col) holds the pixels that one position of the output is computed
from: one row for each channel and each tap of the filter.  The matrix is made and multiplied block
by block, so that the memory stays bounded.
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
# Images of a batch, and the positions of the output along each spatial axis.
Box = tuple[slice, ...]
# The limits of one block.  Its matrix of columns has at most 2 * MAX_VALUES values; the matrix of
# filters and that of results have at most MAX_VALUES each.
MAX_VALUES = 2 << 20
MAX_TAPS = 64
# Positions of the output: one or two images of 56 x 56, because more do not fit into the cache.
MAX_POSITIONS = 4096
# The limit for filters of more than MAX_TAPS taps.  Each block gathers all the taps again, so fewer
# and larger blocks are faster.
MAX_POSITIONS_MANY_TAPS = 65536


class Kernel(NamedTuple):
    """A NumPy function that convolves, or that computes a gradient of a convolution.

    Whatever the problem, a kernel needs at most 256 MiB of scratch and allocates at most 128 MiB
    besides, except if a single row of pixels takes more.

    Attributes
    ----------
    compute : callable
        (first, second, conv, out, scratch).  `first` and `second` are the operands that the C
        function reads, in its order.  Images are ``(N, C, *spatial)``, filters
        ``(K, C // groups, *taps)``, with any strides.  All have one compute dtype: float32, float64
        or int32, whose sums are exact modulo 2**32.  `out` is overwritten, but the gradient of a
        filter is added to it.  `scratch` is of uint8, aligned for float64.
    scratch_bytes : callable
        (x's shape, w's shape, conv, dtype) -> the size of scratch in bytes.  Part of a batch never
        needs more than the whole batch.
    """

    compute: Callable[..., None]
    scratch_bytes: Callable[..., int] = lambda *problem: 0

    def run(self, *arguments: Any) -> None:
        """Compute, without warnings about overflow and NaN."""
        with np.errstate(all="ignore"):
            self.compute(*arguments)


class _BlockSize(NamedTuple):
    """The largest size of a block.

    Attributes
    ----------
    taps : int
        Taps of the filter.
    filters : int
        Filters of each group.
    positions : int
        Positions of the output, in all images of the block.
    """

    taps: int
    filters: int
    positions: int


def _block_size(x: Shape, w: Shape, conv: ConvolutionSpec, max_taps: int) -> _BlockSize:
    n, k, *spatial = conv.output_shape(x, w)
    channels = x[1]
    all_taps = math.prod(w[2:])
    taps = min(all_taps, max_taps, max(1, MAX_VALUES // channels))
    filters = min(k // conv.groups, max(1, MAX_VALUES // (channels * taps)))
    max_positions = min(
        MAX_POSITIONS_MANY_TAPS if all_taps > MAX_TAPS else MAX_POSITIONS,
        2 * MAX_VALUES // (channels * taps),
        MAX_VALUES // (conv.groups * filters),
    )
    positions = min(n * math.prod(spatial), max(1, max_positions))
    return _BlockSize(taps, filters, positions)


def _scratch_bytes(x: Shape, w: Shape, conv: ConvolutionSpec, dtype: DTypeLike) -> int:
    """Return the bytes of the matrix of columns for one block."""
    block_size = _block_size(x, w, conv, MAX_TAPS)
    dtype = np.dtype(dtype)
    # Integers are multiplied as int64 or float64: see `_product_dtype`.
    itemsize = 8 if dtype.kind == "i" else dtype.itemsize
    return x[1] * block_size.taps * block_size.positions * itemsize


def correlation_filter(w: Array, conv: ConvolutionSpec) -> Array:
    """Return the view of `w` whose cross-correlation with images is the result of `conv`.

    If the mode of `conv` is CONVOLUTION, the view is reversed along each spatial axis.  Gradients
    of a filter are written through such a view, too.
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


def boxes(extents: Sequence[int], limit: int) -> Iterator[tuple[slice, ...]]:
    """Yield boxes of at most `limit` points that cover a grid of size `extents`.

    The last axes are the last to be split.
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
    """Yield, for each tap, the view of its values in `columns` and that of their pixels in `image`.

    Both have the axes ``(C, n, *positions)``.  Positions at which the tap meets padding are left
    out.

    Parameters
    ----------
    columns : ndarray
        ``(C, len(taps), n, *positions)``.
    image : ndarray
        ``(N, C, *spatial)``.
    box : tuple of slice
        The n images, and the positions of the output along each axis.
    taps : sequence of tuple
        The indices of the taps in the filter.
    """
    steps = conv.steps(image.ndim - 2)
    for tap_number, tap in enumerate(taps):
        column_index: list[Any] = [slice(None), tap_number, slice(None)]
        image_index: list[Any] = [box[0], slice(None)]
        for out_slice, size, tap_index, padding, stride, dilation in zip(
            box[1:], image.shape[2:], tap, *steps, strict=True
        ):
            # The pixel of the first position; it is negative if that lies in the padding.
            first_pixel = out_slice.start * stride + tap_index * dilation - padding
            count = out_slice.stop - out_slice.start
            # The first position whose pixel exists, and the end of those positions.  A negated
            # floor division rounds up.
            start = max(0, -(first_pixel // stride))
            stop = max(start, min(count, -((first_pixel - size) // stride)))
            column_index.append(slice(start, stop))
            first_pixel += start * stride
            image_index.append(slice(first_pixel, first_pixel + (stop - start) * stride, stride))
        yield columns[tuple(column_index)], image[tuple(image_index)].swapaxes(0, 1)


def gather(
    columns: Array, image: Array, box: Box, taps: Sequence[Shape], conv: ConvolutionSpec
) -> None:
    """Copy pixels of `image` into `columns`, and zeros for padding; see `tap_views`."""
    views = tap_views(columns, image, box, taps, conv)
    for tap_number, (column, pixels) in enumerate(views):
        has_padding = column.shape[1:] != columns.shape[2:]
        if has_padding:
            columns[:, tap_number] = 0
        column[...] = pixels


class _Block(NamedTuple):
    """A part of a convolution that is computed by one matrix product.

    Attributes
    ----------
    box : tuple of slice
        Images, and positions of the output.
    output_index : tuple
        Where its results are in the output, whose channels went through `split_groups`.
    taps : list of tuple
        Indices into a filter that went through `correlation_filter`.
    filters : ndarray
        ``(groups, filters, channels of a group, taps)``, a copy of the values at those taps.
    columns : ndarray
        ``(C, taps, n, *positions)``, scratch memory for the matrix of columns.
    """

    box: Box
    output_index: tuple[Any, ...]
    taps: list[Shape]
    filters: Array
    columns: Array


def _blocks(
    x: Shape,
    w: Array,
    y: Shape,
    conv: ConvolutionSpec,
    dtype: DTypeLike,
    scratch: NDArray[np.uint8],
) -> Iterator[_Block]:
    """Yield the blocks of a convolution; without `scratch`, each has a single tap."""
    block_size = _block_size(x, w.shape, conv, MAX_TAPS if scratch.size else 1)
    if scratch.size:
        column_memory: Array = scratch.view(dtype)
    else:
        column_memory = np.empty(x[1] * block_size.taps * block_size.positions, dtype)
    filters = split_groups(correlation_filter(w, conv), 0, conv.groups)
    taps = list(np.ndindex(*w.shape[2:]))
    filter_slices = chunks(filters.shape[1], block_size.filters)
    for filter_slice, box in product(filter_slices, boxes((y[0], *y[2:]), block_size.positions)):
        # Taps are the innermost loop: the results that they are summed in stay in the cache.
        for tap_slice in chunks(len(taps), block_size.taps):
            shape = (x[1], *(part.stop - part.start for part in (tap_slice, *box)))
            block_filters = [_at_tap(filters, tap)[:, filter_slice] for tap in taps[tap_slice]]
            yield _Block(
                box,
                (box[0], slice(None), filter_slice, *box[1:]),
                taps[tap_slice],
                np.stack(block_filters, -1),
                column_memory[: math.prod(shape)].reshape(shape),
            )


def _at_tap(filters: Array, tap: Shape) -> Array:
    """Return a view of the values that grouped filters have at a tap."""
    index: Any = (..., *tap)
    return np.asarray(filters[index])


def _product_dtype(x: Array, w: Array) -> np.dtype[Any]:
    """Return the type to multiply in: that of floats, and one for integers that does not round."""
    if x.dtype.kind == "f":
        return x.dtype
    max_x, max_w = (max(abs(int(a.min())), abs(int(a.max()))) for a in (x, w))
    fits_float64 = max_x * max_w * math.prod(w.shape[1:]) < 2**53
    # NumPy multiplies float64 by BLAS, which is 50 times as fast as its loop over integers.
    return np.dtype(np.float64 if fits_float64 else np.int64)


def _convolve(
    x: Array, w: Array, conv: ConvolutionSpec, out: Array, scratch: NDArray[np.uint8]
) -> None:
    """Convolve: ``filters @ columns`` for each block."""
    dtype = _product_dtype(x, w)
    grouped_out = split_groups(out, 1, conv.groups)
    for block in _blocks(x.shape, w, out.shape, conv, dtype, scratch):
        columns = block.columns
        gather(columns, x, block.box, block.taps, conv)
        matrix = block.filters.astype(dtype, copy=False).reshape(*block.filters.shape[:2], -1)
        target = grouped_out[block.output_index]
        result = matrix @ columns.reshape(conv.groups, matrix.shape[2], -1)
        result = np.moveaxis(result.reshape(*target.shape[1:3], *columns.shape[2:]), 2, 0)
        if out.dtype.kind == "i":
            # A sum beyond int32 wraps as it does on a GPU, but only if it is converted from int64.
            result = result.astype(np.int64, copy=False).astype(np.int32)
        has_first_tap = not any(block.taps[0])
        if has_first_tap:
            target[...] = result
        else:
            np.add(target, result, out=target)


def _gradient_of_images(
    w: Array, dy: Array, conv: ConvolutionSpec, out: Array, scratch: NDArray[np.uint8]
) -> None:
    """Compute ``filters.T @ dy`` for each block, and add its columns to the pixels they are of."""
    out[...] = 0
    grouped_dy = split_groups(dy, 1, conv.groups)
    for block in _blocks(out.shape, w, dy.shape, conv, out.dtype, scratch):
        columns = block.columns
        matrix = block.filters.reshape(*block.filters.shape[:2], -1).swapaxes(1, 2)
        block_dy = _rows_of_filters(grouped_dy, block)
        np.matmul(matrix, block_dy, out=columns.reshape(conv.groups, matrix.shape[1], -1))
        for column, pixels in tap_views(columns, out, block.box, block.taps, conv):
            np.add(pixels, column, out=pixels)


def _gradient_of_filter(
    x: Array, dy: Array, conv: ConvolutionSpec, out: Array, scratch: NDArray[np.uint8]
) -> None:
    """Add ``dy @ columns.T`` of each block to `out`."""
    grouped_dy = split_groups(dy, 1, conv.groups)
    gradient = split_groups(correlation_filter(out, conv), 0, conv.groups)
    # `out` stands in for the filter, of which only the shape matters here.
    for block in _blocks(x.shape, out, dy.shape, conv, out.dtype, scratch):
        gather(block.columns, x, block.box, block.taps, conv)
        block_dy = _rows_of_filters(grouped_dy, block)
        columns = block.columns.reshape(conv.groups, -1, block_dy.shape[2])
        block_gradient = (block_dy @ columns.swapaxes(1, 2)).reshape(block.filters.shape)
        filter_slice = block.output_index[2]
        for tap_number, tap in enumerate(block.taps):
            _at_tap(gradient, tap)[:, filter_slice] += block_gradient[..., tap_number]


def _rows_of_filters(grouped_dy: Array, block: _Block) -> Array:
    """Return a block of dy as matrices ``(groups, filters, n * positions)``."""
    block_dy: Array = np.moveaxis(grouped_dy[block.output_index], 0, 2)
    return block_dy.reshape(*block_dy.shape[:2], -1)


# By the operand that is written.  Kernels without scratch multiply tap by tap.
KERNELS_WITHOUT_SCRATCH: Mapping[str, Kernel] = {
    "y": Kernel(_convolve),
    "dx": Kernel(_gradient_of_images),
    "dw": Kernel(_gradient_of_filter),
}
KERNELS: Mapping[str, Kernel] = {
    "y": Kernel(_convolve, _scratch_bytes),
    "dx": Kernel(_gradient_of_images, _scratch_bytes),
    "dw": Kernel(_gradient_of_filter, _scratch_bytes),
}
