"""Convolutions of the emulated device, and their gradients, as products with matrices of columns; the table of all kernels.

A column is what one place of the output sees of an image: its rows are the channels and taps (im2col).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cudnnlite.emulated import geometry
from cudnnlite.emulated.geometry import (
    Algorithm,
    Array,
    Box,
    Shape,
    box_shape,
    boxes,
    carved,
    chunks,
    correlation_filter,
    gather,
    meetings,
    split_groups,
    store,
)
from cudnnlite.emulated.kernels_transformed import FFT, FFT_TILED, WINOGRAD
from cudnnlite.emulated.operation import computes
from cudnnlite.enums import ConvolutionMode, Status
from cudnnlite.operations.operation import FLOATS
from cudnnlite.specs import ConvolutionSpec, FilterSpec

TAPS = 64  # in one matrix of columns
PLACES = 8192  # more makes OpenBLAS no faster and falls out of the cache;
MANY_PLACES = 65536  # but with many taps each is gathered once for each block of places


class _Blocks(NamedTuple):
    """How much one matrix product takes: taps, filters of each group, places of the output over images and space."""

    taps: int
    filters: int
    places: int


def _blocks(x: Shape, w: Shape, conv: ConvolutionSpec, most_taps: int) -> _Blocks:
    (n, k, *out), taps, values = conv.output_shape(x, w), math.prod(w[2:]), geometry.VALUES
    part = min(taps, most_taps, max(1, values // x[1]))
    filters = min(k // conv.groups, max(1, values // (x[1] * part)))
    most = min(
        MANY_PLACES if taps > most_taps else PLACES, 2 * values // (x[1] * part), values // (conv.groups * filters)
    )
    return _Blocks(part, filters, min(n * math.prod(out), max(1, most)))


def _size(x: Shape, w: Shape, conv: ConvolutionSpec, dtype: DTypeLike) -> int:
    blocks = _blocks(x, w, conv, TAPS)
    return carved(np.int64 if np.dtype(dtype).kind == "i" else dtype, (x[1] * blocks.taps * blocks.places,))


def _parts(
    x: Shape, w: Array, y: Shape, conv: ConvolutionSpec, dtype: DTypeLike, scratch: NDArray[np.uint8] | None
) -> Iterator[tuple[Box, tuple[Any, ...], list[Shape], Array, Array]]:
    """Yield what one product after the other is about.

    That is: images and places; where in the output's `split_groups` they are, for some filters of each group; some taps;
    those filters, and room for columns, ``(C, taps, n, *places)``.  Without `scratch` it is one tap at a time.
    """
    blocks = _blocks(x, w.shape, conv, 1 if scratch is None else TAPS)
    space = np.empty(x[1] * blocks.taps * blocks.places, dtype) if scratch is None else scratch.view(dtype)
    filters, taps = split_groups(correlation_filter(w, conv), 0, conv.groups), list(np.ndindex(*w.shape[2:]))
    for ts, ks in product(chunks(len(taps), blocks.taps), chunks(filters.shape[1], blocks.filters)):
        some = np.stack([_at_tap(filters, tap)[:, ks] for tap in taps[ts]], -1)
        for box in boxes((y[0], *y[2:]), blocks.places):
            shape = (x[1], ts.stop - ts.start, *box_shape(box))
            columns = space[: math.prod(shape)].reshape(shape)
            yield box, (box[0], slice(None), ks, *box[1:]), taps[ts], some, columns


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


def _rows(some: Array, dtype: DTypeLike) -> Array:
    """Return filters ``(groups, filters, channels, taps)`` as matrices."""
    return some.astype(dtype, copy=False).reshape(*some.shape[:2], -1)


def _convolve(
    x: Array, w: Array, conv: ConvolutionSpec, out: Array, scratch: NDArray[np.uint8], *, tap_by_tap: bool
) -> None:
    """Convolve with an explicit matrix of columns (``GEMM`` and others), or one of each tap (``IMPLICIT_GEMM``)."""
    dtype, grouped = _product_dtype(x, w), split_groups(out, 1, conv.groups)
    for box, place, taps, some, columns in _parts(x.shape, w, out.shape, conv, dtype, None if tap_by_tap else scratch):
        gather(columns, x, box, taps, conv)
        result = _rows(some, dtype) @ columns.reshape(conv.groups, -1, math.prod(box_shape(box)))
        store(grouped[place], result, add=any(taps[0]))


def _gradient_of_images(w: Array, dy: Array, conv: ConvolutionSpec, out: Array, scratch: NDArray[np.uint8]) -> None:
    """Scatter: each place adds its columns, ``w.T @ dy``, to the pixels that it saw."""
    out[...] = 0
    grouped = split_groups(dy, 1, conv.groups)
    for box, place, taps, some, columns in _parts(out.shape, w, dy.shape, conv, out.dtype, scratch):
        matrix = _rows(some, out.dtype).swapaxes(1, 2)
        places = np.moveaxis(grouped[place], 0, 2).reshape(conv.groups, some.shape[1], -1)
        np.matmul(matrix, places, out=columns.reshape(conv.groups, matrix.shape[1], -1))
        for column, pixels in meetings(columns, out, box, taps, conv):
            np.add(pixels, column, out=pixels)


def _gradient_of_filter(x: Array, dy: Array, conv: ConvolutionSpec, out: Array, scratch: NDArray[np.uint8]) -> None:
    """Gather: ``dy @ columns.T``, all images together; added to `out`."""
    grouped = split_groups(dy, 1, conv.groups)
    gradient = split_groups(correlation_filter(out, conv), 0, conv.groups)
    for box, place, taps, some, columns in _parts(x.shape, out, dy.shape, conv, out.dtype, scratch):
        gather(columns, x, box, taps, conv)
        places = np.moveaxis(grouped[place], 0, 2).reshape(conv.groups, some.shape[1], -1)
        result = places @ columns.reshape(conv.groups, -1, places.shape[2]).swapaxes(1, 2)
        for tap, slope in zip(taps, np.moveaxis(result.reshape(some.shape), -1, 0), strict=True):
            _at_tap(gradient, tap)[:, place[2]] += slope


ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {
        "direct_gemm": Algorithm(partial(_convolve, tap_by_tap=True)),
        "im2col_gemm": Algorithm(partial(_convolve, tap_by_tap=False), _size),
        "fft": FFT, "fft_tiled": FFT_TILED, "winograd": WINOGRAD,
    }
)  # fmt: skip
GRADIENTS: Mapping[str, Algorithm] = MappingProxyType(
    {"dx": Algorithm(_gradient_of_images, _size), "dw": Algorithm(_gradient_of_filter, _size)}
)


@computes(
    "im2col", "cudnnIm2Col", dtypes=FLOATS, ranks=(2,), refuse=lambda specs, options: "", refused=Status.NOT_SUPPORTED
)
def im2col(x: Array, w: FilterSpec, conv: ConvolutionSpec) -> Array:
    """Return a row for each tap."""
    n, c, *_ = x.shape
    places, taps = conv.output_shape(x.shape, w.shape)[2:], list(np.ndindex(*w.shape[2:]))
    columns = np.empty((c, len(taps), n, *places), x.dtype)
    taps = taps[::-1] if conv.mode == ConvolutionMode.CONVOLUTION else taps
    gather(columns, x, (slice(0, n), *(slice(0, size) for size in places)), taps, conv)
    return columns.reshape(c * len(taps), -1)
