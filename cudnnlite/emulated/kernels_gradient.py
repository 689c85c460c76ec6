"""The gradients of a convolution: for each tap one matrix product over the places where it meets the image.

A kernel is called as ``run(first, second, problem, out=gradient, scratch=workspace)``, with what the C function reads, in its
order; arrays are as `emulated.kernels` has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cudnnlite.emulated.geometry import Array, Box, Shape, carve, chunks, correlation_filter, reached, split_groups
from cudnnlite.specs import ConvolutionSpec

_PRODUCT_BYTES = 32 << 20  # of the gathered or produced values of one product, but for a row of one image at least


def gradient_of_images(
    w: Array, dy: Array, problem: ConvolutionSpec, *, out: Array, scratch: NDArray[np.uint8]
) -> None:
    """Scatter: each tap adds ``w[:, :, tap].T @ dy`` to the pixels that it was multiplied with; `out` is overwritten."""
    out[...] = 0
    by_group = split_groups(correlation_filter(w, problem), 0, problem.groups)
    filters = np.moveaxis(by_group, (0, 1, 2), (-3, -1, -2))  # (*taps, groups, C / groups, K / groups)
    points = _most_points(out.shape, dy.shape, out.itemsize)
    (products,) = carve(scratch, out.dtype, (points * out.shape[1],))
    with np.errstate(all="ignore"):
        for tap, box, pixels in _meetings(out.shape, w.shape, dy.shape, problem, points):
            source, target = split_groups(dy[box], 1, problem.groups), out[pixels]
            matrix = filters[tap].copy()  # BLAS takes no gaps
            product = products[: target.size].reshape(len(source), *matrix.shape[:2], -1)
            np.matmul(matrix, source.reshape(*source.shape[:3], -1), out=product)
            target += product.reshape(target.shape)


def gradient_of_filter(
    x: Array, dy: Array, problem: ConvolutionSpec, *, out: Array, scratch: NDArray[np.uint8]
) -> None:
    """Gather: each tap is ``dy @ x.T`` over the pixels that it was multiplied with, all images together; added to `out`."""
    by_group = split_groups(correlation_filter(out, problem), 0, problem.groups)
    gradient = np.moveaxis(by_group, (0, 1, 2), (-3, -2, -1))  # (*taps, groups, K / groups, C / groups)
    points = _most_points(x.shape, dy.shape, x.itemsize)
    (columns,) = carve(scratch, x.dtype, (points * x.shape[1],))
    with np.errstate(all="ignore"):
        for tap, box, pixels in _meetings(x.shape, out.shape, dy.shape, problem, points):
            left, right = (np.moveaxis(split_groups(a, 1, problem.groups), 0, 2) for a in (dy[box], x[pixels]))
            column = columns[: right.size].reshape(right.shape)  # (groups, C / groups, n, *places)
            column[...] = right
            matrix = column.reshape(*right.shape[:2], -1).swapaxes(1, 2)
            gradient[tap] += left.reshape(*left.shape[:2], -1) @ matrix


def _most_points(x: Shape, dy: Shape, itemsize: int) -> int:
    """Return how many places of the output, over images and space, one product takes."""
    return min(dy[0] * math.prod(dy[2:]), max(math.prod(dy[3:]), _PRODUCT_BYTES // (x[1] * itemsize)))


def _meetings(x: Shape, w: Shape, dy: Shape, problem: ConvolutionSpec, points: int) -> Iterator[tuple[Shape, Box, Box]]:
    """Yield each tap with the places of the output, and the pixels of the image, that it brings together.

    Padding is nowhere: of the places only those are named whose pixels exist.
    """
    images, rows = (max(1, points // math.prod(dy[axis:])) for axis in (2, 3))
    steps = problem.steps(len(x) - 2)
    for tap in np.ndindex(*w[2:]):
        axes = []
        for size, extent, at, pad, step, far in zip(dy[2:], x[2:], tap, *steps, strict=True):
            axes.append((at * far - pad, step, *reached(size, extent, at * far - pad, step)))
        _, _, first, last = axes[0]
        for batch in chunks(dy[0], images):
            for part in chunks(last - first, rows) if all(low < high for *_, low, high in axes) else ():
                axes[0] = (*axes[0][:2], first + part.start, first + part.stop)
                box = [slice(low, high) for *_, low, high in axes]
                pixels = [
                    slice(start + low * step, start + (high - 1) * step + 1, step) for start, step, low, high in axes
                ]
                yield tap, (batch, slice(None), *box), (batch, slice(None), *pixels)


def gradient_workspace(x: Shape, dy: Shape, dtype: DTypeLike) -> int:
    """Return the bytes of scratch that both want, for the shapes of the image and of the output."""
    itemsize = np.dtype(dtype).itemsize
    return _most_points(x, dy, itemsize) * x[1] * itemsize


GRADIENTS: Mapping[str, Callable[..., Any]] = MappingProxyType({"dx": gradient_of_images, "dw": gradient_of_filter})
