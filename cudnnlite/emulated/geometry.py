"""What the emulated convolutions share: parts of bounded size, and which pixels the taps of a filter meet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cudnnlite.enums import ConvolutionMode
from cudnnlite.specs import ConvolutionSpec

Array = NDArray[Any]
Shape = tuple[int, ...]
Box = tuple[slice, ...]
VALUES = 2 << 20  # in a matrix of filters or of results; columns may be twice as many


class Algorithm(NamedTuple):
    """One way to convolve, or to compute a gradient of a convolution.

    Attributes
    ----------
    compute : callable
        (first, second, conv, out, scratch), with what the C function reads, in its order.  Images are ``(N, C, *spatial)``,
        filters ``(K, C // groups, *taps)``; all have one compute dtype (float32, float64; int32, whose sums are exact modulo
        2**32) and any strides.  `out` is overwritten, but the gradient of a filter is added to it.  `scratch` is of uint8,
        aligned for complex128.  No algorithm wants more than 256 MiB of it, nor allocates more than 128 MiB besides,
        whatever the problem (but for a row of pixels, where one alone is more).
    size : callable
        (x's shape, w's shape, conv, dtype) -> bytes of scratch; of a part of a batch never more than of the whole.
    unsupported : callable
        (the same) -> why it cannot; None if it can.
    """

    compute: Callable[..., None]
    size: Callable[..., int] = lambda *problem: 0
    unsupported: Callable[..., str | None] = lambda *problem: None

    def run(self, *arguments: Any) -> None:
        """Compute, without warnings."""
        with np.errstate(all="ignore"):
            self.compute(*arguments)


def transform_unsupported(conv: ConvolutionSpec, dtype: DTypeLike) -> str | None:
    """Return why no algorithm that transforms x and w can compute this convolution; None if nothing speaks against it."""
    if np.dtype(dtype).kind != "f":
        return "only floating-point data; integer sums have to be exact"
    _, stride, dilation = conv.steps(conv.spatial_rank or 1)
    return None if {*stride, *dilation} == {1} else f"stride and dilation 1 only; got {stride} and {dilation}"


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


def box_shape(box: Box) -> Shape:
    """Extents of `box`."""
    return tuple(part.stop - part.start for part in box)


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
        for part, extent, at, pad, stride, far in zip(box[1:], image.shape[2:], tap, *steps, strict=True):
            start = part.start * stride + at * far - pad
            low = max(0, -(start // stride))  # the first place whose pixel exists, and behind the last
            high = max(low, min(part.stop - part.start, -((start - extent) // stride)))
            places.append(slice(low, high))
            first = start + low * stride
            pixels.append(slice(first, first + (high - low) * stride, stride))
        yield columns[tuple(places)], image[tuple(pixels)].swapaxes(0, 1)


def gather(columns: Array, image: Array, box: Box, taps: Sequence[Shape], conv: ConvolutionSpec) -> None:
    """Fill `columns` with the pixels that they stand for, and zeros for padding; see `meetings`."""
    columns[...] = 0
    for column, pixels in meetings(columns, image, box, taps, conv):
        column[...] = pixels


def store(target: Array, result: Array, *, add: bool) -> None:
    """Set `target`, ``(n, groups, filters, *places)``, to `result`, ``(groups, filters, n * places)``, or add that to it."""
    result = np.moveaxis(result.reshape(*target.shape[1:3], len(target), *target.shape[3:]), 2, 0)
    if target.dtype.kind == "i":  # by way of int64, so that a sum beyond int32 wraps as it does on the device
        result = result.astype(np.int64, copy=False).astype(np.int32)
    np.copyto(target, target + result if add else result)


def carve(scratch: NDArray[np.uint8], dtype: DTypeLike, *shapes: Shape) -> list[Array]:
    """Return consecutive uninitialised arrays of `dtype` in the front of `scratch`."""
    itemsize, arrays, start = np.dtype(dtype).itemsize, [], 0
    for shape in shapes:
        end = start + itemsize * math.prod(shape)
        arrays.append(scratch[start:end].view(dtype).reshape(shape))
        start = end
    return arrays


def carved(dtype: DTypeLike, *shapes: Shape) -> int:
    """Return the bytes that `carve` takes."""
    return np.dtype(dtype).itemsize * sum(map(math.prod, shapes))
