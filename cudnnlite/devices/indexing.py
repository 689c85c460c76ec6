"""Which part of an array an index means, and how other shapes lie in the same memory: strides, and no device."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod
from types import EllipsisType
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

from cudnnlite.arguments import MAX_INT, integer, integers, shown
from cudnnlite.devices.storage import memory_axes
from cudnnlite.dtypes import itemsize
from cudnnlite.errors import ArgumentError
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST, MAX_RANK, PACKED

Place: TypeAlias = SupportsIndex | slice | EllipsisType
Index: TypeAlias = Place | tuple[Place, ...]


class ArrayIndexError(ArgumentError, IndexError):
    """An index is beyond an array's end."""


def indexed(spec: TensorSpec, key: Index) -> tuple[TensorSpec, int]:
    """Return the spec of ``array[key]``, and where it begins in bytes; an array keeps one axis at least."""
    keys = key if isinstance(key, tuple) else (key,)
    gaps = [number for number, each in enumerate(keys) if each is Ellipsis]
    missing = spec.rank + len(gaps) - len(keys)
    if len(gaps) > 1 or missing < 0:
        raise ArgumentError(f"index {shown(key)} has too many entries for shape={spec.shape}")
    at = gaps[0] if gaps else len(keys)
    whole: list[Place] = [*keys[:at], *[slice(None)] * missing, *keys[at + len(gaps) :]]
    if spec.vector > 1:
        raise ArgumentError(
            f"an array of {spec} has no parts: its channels lie {spec.vector} together"
        )
    start, shape, strides = 0, [], []
    for axis, (place, size, stride) in enumerate(zip(whole, spec.shape, spec.strides, strict=True)):
        if isinstance(place, slice):
            first, count, step = _slice(place, size, axis)
            shape.append(count)
            strides.append(stride * step if count > 1 else stride)
        else:
            hint = "; allowed: integers, slices with steps of 1 or more, and Ellipsis"
            number = integer(place, f"index on axis {axis}", -MAX_INT, hint=hint)
            if not -size <= number < size:
                allowed = f"; allowed: {-size} to {size - 1}" if size else ", which is empty"
                raise ArrayIndexError(f"index {number} on axis {axis}{allowed}")
            first = number % size
        start += first * stride
    part = part_spec(spec, tuple(shape) or (1,), tuple(strides) or (1,))
    return part, start * itemsize(spec.dtype) if part.size else 0


@lru_cache(maxsize=256)
def part_spec(whole: TensorSpec, shape: tuple[int, ...], strides: tuple[int, ...]) -> TensorSpec:
    """Return the spec of a part, in a layout with a name where one fits: the strides of axes of size 1 are free."""
    part = TensorSpec(shape, whole.dtype, strides=strides)
    if part.layout == "strided":
        for names in (
            (CHANNELS_LAST, CHANNELS_FIRST)
            if whole.is_channels_last
            else (CHANNELS_FIRST, CHANNELS_LAST)
        ):
            if part.fits(name := names.get(part.rank, PACKED)):
                return TensorSpec(shape, whole.dtype, name)
    return part


def _slice(place: slice, size: int, axis: int) -> tuple[int, int, int]:
    """Return the first place, how many there are, and the step."""
    try:
        first, last, step = place.indices(size)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"index {shown(place)} on axis {axis}: {error}") from None
    if step < 1:
        raise ArgumentError(
            f"index {shown(place)} on axis {axis}; allowed: steps of 1 or more, as cuDNN's strides are"
        )
    return first, len(range(first, last, step)), step


def reshaped(spec: TensorSpec, shape: Any) -> TensorSpec:
    """Return another shape, of which one size may be -1, for the same values in the same order."""
    sizes = integers(shape, "shape", MAX_RANK)
    if sizes.count(-1) > 1:
        raise ArgumentError(
            f"shape={shown(shape)} has size -1 {sizes.count(-1)} times; allowed: once"
        )
    if -1 in sizes and (rest := -prod(sizes)) > 0 and spec.size % rest == 0:
        sizes = tuple(spec.size // rest if size == -1 else size for size in sizes)
    if sizes == spec.shape:
        return spec
    wanted = TensorSpec(sizes, spec.dtype) if spec.vector == 1 and -1 not in sizes else None
    if wanted is None or wanted.size != spec.size:
        raise ArgumentError(f"shape={shown(shape)} does not hold the {spec.size} values of {spec}")
    strides = _strides(runs(spec.shape, spec.strides), wanted.shape)
    if spec.size and strides is None:
        raise ArgumentError(
            f"{spec} has no shape {sizes} without a copy: handle.array(x.numpy().reshape({sizes}))"
        )
    return part_spec(spec, sizes, strides or wanted.strides)


def runs(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return (size, stride) of the axes, neighbours that lie without a gap as one."""
    found: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if found and size != 1 and found[-1][1] == size * stride:
            found[-1] = found[-1][0] * size, stride
        elif size != 1:
            found.append((size, stride))
    return found


def _strides(left: list[tuple[int, int]], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the strides of another shape over the same runs of values; None where it cuts across them."""
    room, stride, strides = 1, 1, []
    for size in reversed(shape):
        if room == 1 and size != 1 and left:
            room, stride = left.pop()
        strides.append(stride)
        if size == 0 or room % size:
            return None
        room, stride = room // size, stride * size
    return tuple(reversed(strides))


def memory_axes_order(spec: TensorSpec) -> tuple[int, ...]:
    """Return the memory axes from the outermost to the innermost."""
    shape, strides = memory_axes(spec)
    return tuple(sorted(range(len(shape)), key=lambda axis: (-strides[axis], -shape[axis])))


class Rows(NamedTuple):
    """Memory with regular gaps, in bytes: blocks that begin at `starts`, each of `rows` rows of `width`, `pitch` apart."""

    width: int
    pitch: int
    rows: int
    starts: list[int]


def rows_of(spec: TensorSpec, *, single: bool = False) -> Rows:
    """Return what is to be copied or filled of an array's memory: all of it but the gaps; rows of `single` values if asked."""
    shape, strides = memory_axes(spec)
    order, each = memory_axes_order(spec), itemsize(spec.dtype) // spec.vector
    left = runs(tuple(shape[axis] for axis in order), tuple(strides[axis] for axis in order))
    width = left.pop()[0] if left and left[-1][1] == 1 and not single else 1
    count, pitch = left.pop() if left else (1, width)
    starts = [
        sum(places) * each
        for places in product(*(range(0, size * step, step) for size, step in left))
    ]
    return Rows(width * each, pitch * each, count, starts if spec.size else [])
