"""The geometry that the emulated convolutions share: tiles of bounded size, padded reads."""

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


def check_operands(x: Array, w: Array, problem: ConvolutionSpec, out: Array) -> None:
    """Raise unless `x`, `w` and `out` have one compute dtype and `out` has the right shape."""
    expected = problem.output_shape(x.shape, w.shape)
    if out.shape != expected:
        raise ValueError(f"out has shape {out.shape}; {expected} expected")
    if not x.dtype == w.dtype == out.dtype or out.dtype.name not in {"float32", "float64", "int32"}:
        raise ValueError(f"one of float32, float64, int32 expected for all; got {x.dtype}, {w.dtype}, {out.dtype}")


def transform_unsupported(problem: ConvolutionSpec, dtype: DTypeLike) -> str | None:
    """Why no algorithm that transforms x and w can compute this convolution; None if nothing speaks against it."""
    if np.dtype(dtype).kind != "f":
        return "only floating-point data; integer sums have to be exact"
    _, stride, dilation = problem.steps(problem.spatial_rank or 1)
    if max(stride) > 1:
        return f"stride 1 only; got {stride}"
    if max(dilation) > 1:
        return f"dilation 1 only; got {dilation}"
    return None


class Algorithm(NamedTuple):
    """One way to convolve: the function, the workspace it needs, and why it cannot (None if it can)."""

    run: Callable[..., None]
    workspace: Callable[..., int]
    unsupported: Callable[..., str | None] = lambda *problem: None


def checked(
    compute: Callable[..., None],
    size: Callable[..., int],
    unsupported: Callable[..., str | None] = lambda *problem: None,
) -> Algorithm:
    """Return an algorithm that raises ValueError where operands do not fit together, or there is a reason against it.

    Parameters
    ----------
    compute : callable
        (x, w, problem, out, scratch).
    size, unsupported : callable
        (x's shape, w's shape, problem, dtype) -> bytes of scratch; a reason.
    """

    def workspace(x_shape: Shape, w_shape: Shape, problem: ConvolutionSpec, dtype: DTypeLike) -> int:
        problem.output_shape(x_shape, w_shape)
        if reason := unsupported(x_shape, w_shape, problem, dtype):
            raise ValueError(reason)
        return size(x_shape, w_shape, problem, dtype)

    def run(x: Array, w: Array, problem: ConvolutionSpec, *, out: Array, scratch: NDArray[np.uint8]) -> None:
        check_operands(x, w, problem, out)
        workspace(x.shape, w.shape, problem, x.dtype)
        with np.errstate(all="ignore"):
            compute(x, w, problem, out, scratch)

    return Algorithm(run, workspace, unsupported)


def correlation_filter(w: Array, problem: ConvolutionSpec) -> Array:
    """View of `w` that, cross-correlated, does what `problem` asks (rotated where it is a convolution proper)."""
    return np.flip(w, tuple(range(2, w.ndim))) if problem.mode == ConvolutionMode.CONVOLUTION else w


def split_groups(a: Array, axis: int, groups: int) -> Array:
    """View of `a` with `axis` split into ``(groups, size // groups)``; never a copy, whatever the strides."""
    return a.reshape(*a.shape[:axis], groups, -1, *a.shape[axis + 1 :])


def channels_last(a: Array) -> bool:
    """Whether the channels of ``(N, C, *spatial)`` lie closer together in memory than neighbouring pixels."""
    pixels = [abs(stride) for stride, size in zip(a.strides[2:], a.shape[2:], strict=True) if size > 1]
    return a.shape[1] > 1 and all(abs(a.strides[1]) < stride for stride in pixels)


def chunks(size: int, step: int) -> Iterator[slice]:
    """Slices of at most `step` that cover ``range(size)``."""
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def boxes(extents: Sequence[int], limit: int) -> Iterator[Box]:
    """Boxes of at most `limit` points that cover a grid; inner axes stay whole for as long as they fit."""
    if not extents:
        yield ()
        return
    inner = math.prod(extents[1:])
    for outer in chunks(extents[0], max(1, limit // inner)):
        for rest in boxes(extents[1:], limit):
            yield (outer, *rest)


def box_shape(box: Box) -> Shape:
    """Extents of `box`."""
    return tuple(part.stop - part.start for part in box)


def reached(size: int, extent: int, start: int, step: int) -> tuple[int, int]:
    """Return the range of those i below `size` for which ``start + i * step`` lies in ``range(extent)``; it may be empty."""
    return max(0, -(start // step)), min(
        size, -((start - extent) // step)
    )  # ceil(-start / step), ceil((extent - start) / step)


def gather(dst: Array, src: Array, starts: Sequence[int], steps: Sequence[int]) -> None:
    """Fill `dst` with ``src[..., start + i * step, ...]``, zero wherever that lies outside `src`.

    Both have leading axes and then spatial ones, any strides. Of the starts and steps there is one for each spatial axis;
    starts may be negative or beyond `src`, steps are positive.
    """
    inside_dst: list[Any] = [...]
    inside_src: list[Any] = [...]
    covered = True
    axes = len(starts)
    for size, extent, start, step in zip(dst.shape[-axes:], src.shape[-axes:], starts, steps, strict=True):
        low, high = reached(size, extent, start, step)
        if low >= high:
            dst[...] = 0
            return
        covered &= low == 0 and high == size
        inside_dst.append(slice(low, high))
        inside_src.append(slice(start + low * step, start + (high - 1) * step + 1, step))
    if not covered:
        dst[...] = 0
    dst[tuple(inside_dst)] = src[tuple(inside_src)]


def matrices(flat: Array, batch: int, rows: int, columns: int, *, contiguous_columns: bool) -> Array:
    """View ``(batch, rows, columns)`` of the front of `flat`, in which columns are contiguous if asked, else rows."""
    flat = flat[: batch * rows * columns]
    shape = (batch, columns, rows) if contiguous_columns else (batch, rows, columns)
    view: Array = flat.reshape(shape)
    return view.swapaxes(1, 2) if contiguous_columns else view


def carve(scratch: NDArray[np.uint8], dtype: DTypeLike, *shapes: Shape) -> list[Array]:
    """Consecutive uninitialised arrays of `dtype` in the front of `scratch`.

    Raises
    ------
    ValueError
        If `scratch` is too small.
    """
    itemsize = np.dtype(dtype).itemsize
    needed = itemsize * sum(map(math.prod, shapes))
    if scratch.size < needed:
        raise ValueError(f"scratch has {scratch.size} bytes; {needed} needed")
    arrays, offset = [], 0
    for shape in shapes:
        end = offset + itemsize * math.prod(shape)
        arrays.append(scratch[offset:end].view(dtype).reshape(shape))
        offset = end
    return arrays
