"""Forward convolutions of the emulated device: blocked matrix products, and the table of all algorithms.

An algorithm is called as ``run(x, w, problem, out=y, scratch=workspace)``:

- `x` is ``(N, C, *spatial)``, `w` is ``(K, C // groups, *taps)``, `out` is ``(N, K, *out)``; all have one compute dtype
  (float32, float64 or int32, whose sums are exact modulo 2**32) and any strides. `out` is overwritten and never read.
- `scratch` is a writable uint8 array of at least ``workspace(x.shape, w.shape, problem, dtype)`` bytes, aligned for
  complex128. No algorithm wants more than 256 MiB, nor allocates more than 128 MiB besides, whatever the problem; a
  part of a batch never needs more than the whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cudnnlite.emulated.geometry import (
    Algorithm,
    Array,
    Box,
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
    split_groups,
)
from cudnnlite.emulated.kernels_fft import FFT, FFT_TILED
from cudnnlite.emulated.kernels_winograd import WINOGRAD
from cudnnlite.specs import ConvolutionSpec

_REDUCTION = 16384  # longest sum in one product: groups x taps x channels of a filter block
_FILTER_BYTES = 16 << 20
_COLUMN_BYTES = 32 << 20
_PRODUCT_BYTES = 16 << 20
_POSITIONS = 8192  # more makes OpenBLAS no faster and falls out of the cache


class _Blocks(NamedTuple):
    """How much of each axis one matrix product takes."""

    groups: int
    filters: int  # of one group
    channels: int  # of one group
    taps: int
    positions: int  # of the output, over batch and space
    column_taps: int  # taps gathered into the column matrix at once: 1, or all of the block's

    @property
    def column_size(self) -> int:
        return self.groups * self.channels * self.column_taps * self.positions


def _blocks(x_shape: Shape, w_shape: Shape, problem: ConvolutionSpec, itemsize: int, *, one_tap: bool) -> _Blocks:
    """Choose block sizes that respect the byte limits above for every problem."""
    n, k, *out = problem.output_shape(x_shape, w_shape)
    channels = min(w_shape[1], _REDUCTION // 4)
    taps = min(math.prod(w_shape[2:]), _REDUCTION // channels)
    groups = min(problem.groups, _REDUCTION // (channels * taps))
    depth = groups * channels * taps
    filters = min(k // problem.groups, max(1, _FILTER_BYTES // (depth * itemsize)))
    column_taps = 1 if one_tap else taps
    positions = min(
        n * math.prod(out),
        _POSITIONS,
        _COLUMN_BYTES // (groups * channels * column_taps * itemsize),
        max(1, _PRODUCT_BYTES // (groups * filters * itemsize)),
    )
    return _Blocks(groups, filters, channels, taps, positions, column_taps)


def _product_dtype(x: Array, w: Array) -> np.dtype[Any]:
    """Dtype in which the sums of products of `x` and `w` are exact, or as good as their own."""
    if x.dtype.kind == "f":
        return x.dtype
    largest = [max(abs(int(a.min())), abs(int(a.max()))) for a in (x, w)]
    # float64 goes through BLAS, an integer product through a plain loop 50 times slower
    exact = largest[0] * largest[1] * math.prod(w.shape[1:]) < 2**53
    return np.dtype(np.float64 if exact else np.int64)


def _blocked_gemm(x: Array, w: Array, problem: ConvolutionSpec, out: Array, columns: Array, blocks: _Blocks) -> None:
    """Convolve with products of a filter matrix and a column matrix (taps x channels by output positions).

    Both matrices are laid out so that the copies into and out of them follow the memory order of `x` and `out`; BLAS
    takes either order.

    Parameters
    ----------
    columns : ndarray
        Flat, ``blocks.column_size`` elements, of the dtype of the products. Overwritten.
    """
    dtype = columns.dtype
    taps = list(np.ndindex(*w.shape[2:]))
    x_groups = split_groups(x, 1, problem.groups)
    w_groups = split_groups(correlation_filter(w, problem), 0, problem.groups)
    y_groups = split_groups(out, 1, problem.groups)
    x_last, y_last = channels_last(x), channels_last(out)
    products = np.empty(blocks.groups * blocks.filters * blocks.positions, dtype)
    limits = zip(
        (problem.groups, w_groups.shape[1], w.shape[1], len(taps)),
        (blocks.groups, blocks.filters, blocks.channels, blocks.taps),
        strict=True,
    )
    for gs, ks, cs, ts in product(*(chunks(size, step) for size, step in limits)):
        g, k, c, t = box_shape((gs, ks, cs, ts))
        filters = np.empty((g, k, t, c), dtype)
        for i, tap in enumerate(taps[ts]):
            one_tap = (gs, ks, cs, *tap)
            filters[:, :, i] = w_groups[one_tap]
        for box in boxes((len(x), *out.shape[2:]), blocks.positions):
            points = math.prod(box_shape(box))
            inside = (box[0], gs, ks, *box[1:])
            for part in chunks(t, blocks.column_taps):
                depth = (part.stop - part.start) * c
                column = matrices(columns, g, depth, points, contiguous_columns=x_last)
                _gather_columns(column, x_groups[box[0], gs, cs], box, taps[ts][part], problem)
                result = matrices(products, g, k, points, contiguous_columns=y_last)
                np.matmul(filters[:, :, part].reshape(g, k, depth), column, out=result)
                _store(y_groups[inside], result, add=cs.start + ts.start + part.start > 0)


def _gather_columns(columns: Array, x: Array, box: Box, taps: Sequence[Shape], problem: ConvolutionSpec) -> None:
    """Fill `columns`, ``(groups, taps * channels, points of box)``, from `x`, ``(n, groups, channels, *spatial)``."""
    per_tap = columns.reshape(len(columns), len(taps), -1, *box_shape(box))
    padding, stride, dilation = problem.steps(len(box) - 1)
    for i, tap in enumerate(taps):
        corner = [
            outputs.start * step - pad + offset * reach
            for outputs, step, pad, offset, reach in zip(box[1:], stride, padding, tap, dilation, strict=True)
        ]
        gather(np.moveaxis(per_tap[:, i], 2, 0), x, corner, stride)


def _store(target: Array, result: Array, *, add: bool) -> None:
    """Set `target`, ``(n, groups, filters, *box)``, to `result`, ``(groups, filters, n * prod(box))``, or add that."""
    result = np.moveaxis(result.reshape(*target.shape[1:3], len(target), *target.shape[3:]), 2, 0)
    if target.dtype.kind == "i":  # by way of int64, so that a sum beyond int32 wraps as it does on the device
        result = result.astype(np.int64, copy=False).astype(np.int32)
    if add:
        np.add(target, result, out=target)
    else:
        target[...] = result


def _tap_by_tap(x: Array, w: Array, problem: ConvolutionSpec, out: Array, scratch: NDArray[np.uint8]) -> None:
    """Convolve with one matrix product for each tap (``IMPLICIT_GEMM``); `scratch` is not used."""
    dtype = _product_dtype(x, w)
    blocks = _blocks(x.shape, w.shape, problem, dtype.itemsize, one_tap=True)
    _blocked_gemm(x, w, problem, out, np.empty(blocks.column_size, dtype), blocks)


def _by_columns(x: Array, w: Array, problem: ConvolutionSpec, out: Array, scratch: NDArray[np.uint8]) -> None:
    """Convolve as products with an explicit column matrix, a block of which lies in `scratch` (``GEMM`` and others)."""
    dtype = _product_dtype(x, w)
    blocks = _blocks(x.shape, w.shape, problem, dtype.itemsize, one_tap=False)
    (columns,) = carve(scratch, dtype, (blocks.column_size,))
    _blocked_gemm(x, w, problem, out, columns, blocks)


def _columns_size(x_shape: Shape, w_shape: Shape, problem: ConvolutionSpec, dtype: DTypeLike) -> int:
    itemsize = max(np.dtype(dtype).itemsize, 8 if np.dtype(dtype).kind == "i" else 0)
    return _blocks(x_shape, w_shape, problem, itemsize, one_tap=False).column_size * itemsize


ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {
        "direct_gemm": checked(_tap_by_tap, lambda *problem: 0), "im2col_gemm": checked(_by_columns, _columns_size),
        "fft": FFT, "fft_tiled": FFT_TILED, "winograd": WINOGRAD,
    }
)  # fmt: skip
