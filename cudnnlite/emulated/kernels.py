"""Convolutions of the emulated device, and their gradients, as products with matrices of columns, in parts of bounded size.

A column is what one place of the output sees of an image: its rows are the channels and taps (im2col).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cudnnlite.emulated.operation import computes
from cudnnlite.enums import ConvolutionMode, Status
from cudnnlite.problems.operation import FLOATS
from cudnnlite.specs import ConvolutionSpec, FilterSpec

Array = NDArray[Any]
Shape = tuple[int, ...]
Box = tuple[slice, ...]
VALUES = 2 << 20  # in a matrix of filters or of results; columns may be twice as many
TAPS = 64  # in one matrix of columns
PLACES = 4096  # an image or two of 56 x 56: more falls out of the cache;
MANY_PLACES = 65536  # but with many taps each is gathered once for each block of places


class Algorithm(NamedTuple):
    """One way to convolve, or to compute a gradient of a convolution.

    Attributes
    ----------
    compute : callable
        (first, second, conv, out, scratch), with what the C function reads, in its order.  Images are ``(N, C, *spatial)``,
        filters ``(K, C // groups, *taps)``; all have one compute dtype (float32, float64; int32, whose sums are exact modulo
        2**32) and any strides.  `out` is overwritten, but the gradient of a filter is added to it.  `scratch` is of uint8,
        aligned for float64.  None wants more than 256 MiB of it, nor allocates more than 128 MiB besides, whatever the
        problem (but for a row of pixels, where one alone is more).
    size : callable
        (x's shape, w's shape, conv, dtype) -> bytes of scratch; of a part of a batch never more than of the whole.
    """

    compute: Callable[..., None]
    size: Callable[..., int] = lambda *problem: 0

    def run(self, *arguments: Any) -> None:
        """Compute, without warnings."""
        with np.errstate(all="ignore"):
            self.compute(*arguments)


class _Blocks(NamedTuple):
    """How much one matrix product takes: taps, filters of each group, places of the output over images and space."""

    taps: int
    filters: int
    places: int


def _blocks(x: Shape, w: Shape, conv: ConvolutionSpec, most_taps: int) -> _Blocks:
    (n, k, *out), taps, values = conv.output_shape(x, w), math.prod(w[2:]), VALUES
    part = min(taps, most_taps, max(1, values // x[1]))
    filters = min(k // conv.groups, max(1, values // (x[1] * part)))
    most = min(
        MANY_PLACES if taps > TAPS else PLACES,
        2 * values // (x[1] * part),
        values // (conv.groups * filters),
    )
    return _Blocks(part, filters, min(n * math.prod(out), max(1, most)))


def _size(x: Shape, w: Shape, conv: ConvolutionSpec, dtype: DTypeLike) -> int:
    blocks = _blocks(x, w, conv, TAPS)
    return (
        x[1]
        * blocks.taps
        * blocks.places
        * (8 if np.dtype(dtype).kind == "i" else np.dtype(dtype).itemsize)
    )


def correlation_filter(w: Array, conv: ConvolutionSpec) -> Array:
    """View of `w` that, cross-correlated, does what `conv` asks (rotated where it is a convolution proper)."""
    return np.flip(w, tuple(range(2, w.ndim))) if conv.mode == ConvolutionMode.CONVOLUTION else w


def split_groups(a: Array, axis: int, groups: int) -> Array:
    """View of `a` with `axis` split into ``(groups, size // groups)``; never a copy, whatever the strides."""
    return a.reshape(*a.shape[:axis], groups, -1, *a.shape[axis + 1 :])


def chunks(size: int, step: int) -> Iterator[slice]:
    """Slices of at most `step` that cover ``range(size)``."""
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def boxes(extents: Sequence[int], limit: int) -> Iterator[Box]:
    """Boxes of at most `limit` points that cover a grid; inner axes stay whole for as long as they fit."""
    if not extents:
        yield ()
        return
    for outer in chunks(extents[0], max(1, limit // math.prod(extents[1:]))):
        for rest in boxes(extents[1:], limit):
            yield (outer, *rest)


def meetings(
    columns: Array, image: Array, box: Box, taps: Sequence[Shape], conv: ConvolutionSpec
) -> Iterator[tuple[Array, Array]]:
    """Yield views of `columns` and of the pixels of `image` that they stand for, ``(C, n, *places)``, for each tap.

    Padding is nowhere: of the places those are left out whose pixels do not exist.

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
        for part, extent, at, pad, stride, far in zip(
            box[1:], image.shape[2:], tap, *steps, strict=True
        ):
            start = part.start * stride + at * far - pad
            low = max(
                0, -(start // stride)
            )  # the first place whose pixel exists, and behind the last
            high = max(low, min(part.stop - part.start, -((start - extent) // stride)))
            places.append(slice(low, high))
            first = start + low * stride
            pixels.append(slice(first, first + (high - low) * stride, stride))
        yield columns[tuple(places)], image[tuple(pixels)].swapaxes(0, 1)


def gather(
    columns: Array, image: Array, box: Box, taps: Sequence[Shape], conv: ConvolutionSpec
) -> None:
    """Fill `columns` with the pixels that they stand for, and zeros for padding; see `meetings`."""
    for number, (column, pixels) in enumerate(meetings(columns, image, box, taps, conv)):
        if column.shape[1:] != columns.shape[2:]:
            columns[:, number] = 0
        column[...] = pixels


def _parts(
    x: Shape,
    w: Array,
    y: Shape,
    conv: ConvolutionSpec,
    dtype: DTypeLike,
    scratch: NDArray[np.uint8],
) -> Iterator[tuple[Box, tuple[Any, ...], list[Shape], Array, Array]]:
    """Yield what one product after the other is about.

    That is: images and places; where in the output's `split_groups` they are, for some filters of each group; some taps;
    those filters, and room for columns, ``(C, taps, n, *places)``.  Without `scratch` it is one tap at a time.
    """
    blocks = _blocks(x, w.shape, conv, TAPS if scratch.size else 1)
    space = (
        scratch.view(dtype) if scratch.size else np.empty(x[1] * blocks.taps * blocks.places, dtype)
    )
    filters, taps = (
        split_groups(correlation_filter(w, conv), 0, conv.groups),
        list(np.ndindex(*w.shape[2:])),
    )
    for ks, box in product(
        chunks(filters.shape[1], blocks.filters), boxes((y[0], *y[2:]), blocks.places)
    ):
        for ts in chunks(
            len(taps), blocks.taps
        ):  # innermost, while what they add up to is in the cache
            shape = (x[1], *(part.stop - part.start for part in (ts, *box)))
            some = np.stack([_at_tap(filters, tap)[:, ks] for tap in taps[ts]], -1)
            yield (
                box,
                (box[0], slice(None), ks, *box[1:]),
                taps[ts],
                some,
                space[: math.prod(shape)].reshape(shape),
            )


def _at_tap(filters: Array, tap: Shape) -> Array:
    """View the values that grouped filters have there."""
    place: Any = (..., *tap)
    return np.asarray(filters[place])


def _product_dtype(x: Array, w: Array) -> np.dtype[Any]:
    """Return the type in which the sums of products of `x` and `w` are exact, or as good as their own."""
    if x.dtype.kind == "f":
        return x.dtype
    largest = [max(abs(int(a.min())), abs(int(a.max()))) for a in (x, w)]
    # float64 goes through BLAS, an integer product through a plain loop 50 times slower
    exact = largest[0] * largest[1] * math.prod(w.shape[1:]) < 2**53
    return np.dtype(np.float64 if exact else np.int64)


def _convolve(
    x: Array, w: Array, conv: ConvolutionSpec, out: Array, scratch: NDArray[np.uint8]
) -> None:
    """Convolve, without `scratch` tap by tap."""
    dtype, grouped = _product_dtype(x, w), split_groups(out, 1, conv.groups)
    for box, place, taps, some, columns in _parts(x.shape, w, out.shape, conv, dtype, scratch):
        gather(columns, x, box, taps, conv)
        rows, target = some.astype(dtype, copy=False).reshape(*some.shape[:2], -1), grouped[place]
        result = rows @ columns.reshape(conv.groups, rows.shape[2], -1)
        result = np.moveaxis(result.reshape(*target.shape[1:3], *columns.shape[2:]), 2, 0)
        if (
            out.dtype.kind == "i"
        ):  # by way of int64, so that a sum beyond int32 wraps as it does on the device
            result = result.astype(np.int64, copy=False).astype(np.int32)
        if any(taps[0]):
            np.add(target, result, out=target)
        else:
            target[...] = result


def _gradient_of_images(
    w: Array, dy: Array, conv: ConvolutionSpec, out: Array, scratch: NDArray[np.uint8]
) -> None:
    """Scatter: each place adds its columns, ``w.T @ dy``, to the pixels that it saw."""
    out[...] = 0
    grouped = split_groups(dy, 1, conv.groups)
    for box, place, taps, some, columns in _parts(out.shape, w, dy.shape, conv, out.dtype, scratch):
        matrix = some.reshape(*some.shape[:2], -1).swapaxes(1, 2)
        places = np.moveaxis(grouped[place], 0, 2).reshape(conv.groups, some.shape[1], -1)
        np.matmul(matrix, places, out=columns.reshape(conv.groups, matrix.shape[1], -1))
        for column, pixels in meetings(columns, out, box, taps, conv):
            np.add(pixels, column, out=pixels)


def _gradient_of_filter(
    x: Array, dy: Array, conv: ConvolutionSpec, out: Array, scratch: NDArray[np.uint8]
) -> None:
    """Gather: ``dy @ columns.T``, all images together; added to `out`."""
    grouped = split_groups(dy, 1, conv.groups)
    gradient = split_groups(correlation_filter(out, conv), 0, conv.groups)
    for box, place, taps, some, columns in _parts(x.shape, out, dy.shape, conv, out.dtype, scratch):
        gather(columns, x, box, taps, conv)
        places = np.moveaxis(grouped[place], 0, 2).reshape(conv.groups, some.shape[1], -1)
        result = places @ columns.reshape(conv.groups, -1, places.shape[2]).swapaxes(1, 2)
        for tap, slope in zip(taps, np.moveaxis(result.reshape(some.shape), -1, 0), strict=True):
            _at_tap(gradient, tap)[:, place[2]] += slope


# Both tables are by what is written.
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


@computes(
    "im2col",
    dtypes=FLOATS,
    ranks=(2,),
    refuse=lambda specs, options: "",
    refused=Status.NOT_SUPPORTED,
)
def im2col(x: Array, w: FilterSpec, conv: ConvolutionSpec) -> Array:
    """Return a row for each tap."""
    n, c, *_ = x.shape
    places, taps = conv.output_shape(x.shape, w.shape)[2:], list(np.ndindex(*w.shape[2:]))
    columns = np.empty((c, len(taps), n, *places), x.dtype)
    taps = taps[::-1] if conv.mode == ConvolutionMode.CONVOLUTION else taps
    gather(columns, x, (slice(0, n), *(slice(0, size) for size in places)), taps, conv)
    return columns.reshape(c * len(taps), -1)
