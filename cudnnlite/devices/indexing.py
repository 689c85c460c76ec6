"""The strides of a part of an array, and of other shapes of its memory, without a device."""

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
from cudnnlite.specs.layout import (
    CHANNELS_FIRST,
    CHANNELS_LAST,
    MAX_RANK,
    PACKED,
    runs,
    view_strides,
)

Place: TypeAlias = SupportsIndex | slice | EllipsisType
Index: TypeAlias = Place | tuple[Place, ...]
# The item before the start, the stop and the step of a slice.
_SLICE = object()
# Indices of other items are not remembered: True equals 1 and is refused, and an object may change.
_PLAIN_ITEMS = frozenset({int, type(None), type(_SLICE), EllipsisType})
_MOST_PARTS = 1024
_parts: dict[tuple[Any, ...], tuple[TensorSpec, int]] = {}


class ArrayIndexError(ArgumentError, IndexError):
    """An index is beyond an array's end."""


def indexed(spec: TensorSpec, key: Index) -> tuple[TensorSpec, int]:
    """Return the spec of ``array[key]``, and its offset in bytes; at least one axis stays.

    Parts by plain integers and slices are remembered: a loop takes the same ones again and again.
    """
    items = _items_of(key)
    if not _PLAIN_ITEMS.issuperset(map(type, items)):
        return _new_part(spec, key)
    key_of_part = (spec, *items)
    part = _parts.get(key_of_part)
    if part is None:
        part = _new_part(spec, key)
        if len(_parts) >= _MOST_PARTS:
            _parts.clear()
        _parts[key_of_part] = part
    return part


def _items_of(key: Index) -> list[Any]:
    """Return what an index consists of: a slice, which could not be hashed, as four items."""
    items: list[Any] = []
    for place in key if isinstance(key, tuple) else (key,):
        if isinstance(place, slice):
            items += (_SLICE, place.start, place.stop, place.step)
        else:
            items.append(place)
    return items


def _new_part(spec: TensorSpec, key: Index) -> tuple[TensorSpec, int]:
    places = _places_of_axes(spec, key)
    if spec.vector > 1:
        raise ArgumentError(
            f"an array of {spec} has no parts: its channels lie {spec.vector} together"
        )
    offset = 0
    shape: list[int] = []
    strides: list[int] = []
    for axis, (place, size, stride) in enumerate(
        zip(places, spec.shape, spec.strides, strict=True)
    ):
        if isinstance(place, slice):
            first, count, step = _slice(place, size, axis)
            shape.append(count)
            strides.append(stride * step if count > 1 else stride)
        else:
            first = _number_on_axis(place, size, axis)
        offset += first * stride
    part = part_spec(spec, tuple(shape) or (1,), tuple(strides) or (1,))
    if part.size == 0:
        return part, 0
    return part, offset * itemsize(spec.dtype)


def _places_of_axes(spec: TensorSpec, key: Index) -> list[Place]:
    """Return an integer or a slice for each axis; an ellipsis or the end means whole axes."""
    entries = key if isinstance(key, tuple) else (key,)
    ellipses = [number for number, entry in enumerate(entries) if entry is Ellipsis]
    missing = spec.rank + len(ellipses) - len(entries)
    if len(ellipses) > 1 or missing < 0:
        raise ArgumentError(f"index {shown(key)} has too many entries for shape={spec.shape}")
    position = ellipses[0] if ellipses else len(entries)
    whole_axes = [slice(None)] * missing
    return [*entries[:position], *whole_axes, *entries[position + len(ellipses) :]]


def _number_on_axis(place: Any, size: int, axis: int) -> int:
    """Return an integer index from 0 on; ArrayIndexError beyond the axis' end."""
    hint = "; allowed: integers, slices with steps of 1 or more, and Ellipsis"
    number = integer(place, f"index on axis {axis}", -MAX_INT, hint=hint)
    if not -size <= number < size:
        allowed = f"; allowed: {-size} to {size - 1}" if size else ", which is empty"
        raise ArrayIndexError(f"index {number} on axis {axis}{allowed}")
    return number % size


@lru_cache(maxsize=256)
def part_spec(whole: TensorSpec, shape: tuple[int, ...], strides: tuple[int, ...]) -> TensorSpec:
    """Return the spec of a part of an array.

    If a named layout has the same memory, the spec has that layout: the strides of axes of size 1
    do not matter.
    """
    part = TensorSpec(shape, whole.dtype, strides=strides)
    if part.layout != "strided":
        return part
    layouts = [CHANNELS_FIRST, CHANNELS_LAST]
    if whole.is_channels_last:
        layouts.reverse()
    for names in layouts:
        name = names.get(part.rank, PACKED)
        if part.fits(name):
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
            f"index {shown(place)} on axis {axis}; allowed: "
            "steps of 1 or more, as cuDNN's strides are"
        )
    return first, len(range(first, last, step)), step


def reshaped(spec: TensorSpec, shape: Any) -> TensorSpec:
    """Return the spec of another shape of the same values in their order; one size may be -1."""
    sizes = _parse_new_shape(spec, shape)
    if sizes == spec.shape:
        return spec
    packed = None
    if spec.vector == 1 and -1 not in sizes:
        packed = TensorSpec(sizes, spec.dtype)
    if packed is None or packed.size != spec.size:
        raise ArgumentError(f"shape={shown(shape)} does not hold the {spec.size} values of {spec}")
    strides = view_strides(spec.shape, spec.strides, packed.shape)
    if spec.size and strides is None:
        raise ArgumentError(
            f"{spec} has no shape {sizes} without a copy: handle.array(x.numpy().reshape({sizes}))"
        )
    return part_spec(spec, sizes, strides or packed.strides)


def transposed(spec: TensorSpec, axes: Any) -> TensorSpec:
    """Return the spec of the same memory with its axes in another order; reversed for ()."""
    numbers = integers(axes, "axes", MAX_RANK)
    order = tuple(axis + spec.rank if axis < 0 else axis for axis in numbers)
    if not numbers:
        order = tuple(reversed(range(spec.rank)))
    if sorted(order) != list(range(spec.rank)):
        swapped = ""
        if len(order) == 2 < spec.rank and all(0 <= axis < spec.rank for axis in order):
            axes_with_two_swapped = list(range(spec.rank))
            first, second = order
            axes_with_two_swapped[first], axes_with_two_swapped[second] = second, first
            swapped = f"; {tuple(axes_with_two_swapped)} swaps the two, as in PyTorch"
        raise ArgumentError(f"axes={shown(axes)}; needed: each axis of {spec} once{swapped}")
    if spec.vector > 1:
        raise ArgumentError(
            f"an array of {spec} has no other order of axes: its channels lie {spec.vector} together"
        )
    shape = tuple(spec.shape[axis] for axis in order)
    return part_spec(spec, shape, tuple(spec.strides[axis] for axis in order))


def _parse_new_shape(spec: TensorSpec, shape: Any) -> tuple[int, ...]:
    """Return the sizes of a new shape; -1 stays only if no size fits there."""
    sizes = integers(shape, "shape", MAX_RANK)
    if sizes.count(-1) > 1:
        raise ArgumentError(
            f"shape={shown(shape)} has size -1 {sizes.count(-1)} times; allowed: once"
        )
    if -1 not in sizes:
        return sizes
    other_sizes = -prod(sizes)
    if other_sizes <= 0 or spec.size % other_sizes:
        return sizes
    return tuple(spec.size // other_sizes if size == -1 else size for size in sizes)


def memory_axes_order(spec: TensorSpec) -> tuple[int, ...]:
    """Return the memory axes from the outermost to the innermost."""
    shape, strides = memory_axes(spec)
    return tuple(sorted(range(len(shape)), key=lambda axis: (-strides[axis], -shape[axis])))


class Rows(NamedTuple):
    """Memory with regular gaps, in bytes.

    A block begins at each of `starts`, and has `rows` rows of `width`, `pitch` apart.
    """

    width: int
    pitch: int
    rows: int
    starts: list[int]


@lru_cache(maxsize=256)  # each copy and each fill calls it
def rows_of(spec: TensorSpec, *, single: bool = False) -> Rows:
    """Return the memory of an array without its gaps; with `single` each row is one value."""
    shape, strides = memory_axes(spec)
    order = memory_axes_order(spec)
    value_bytes = itemsize(spec.dtype) // spec.vector
    axes = runs(tuple(shape[axis] for axis in order), tuple(strides[axis] for axis in order))
    width = 1
    if axes and axes[-1][1] == 1 and not single:
        width, _ = axes.pop()
    rows, pitch = axes.pop() if axes else (1, width)
    starts = []
    if spec.size:
        steps = [range(0, size * stride, stride) for size, stride in axes]
        starts = [sum(positions) * value_bytes for positions in product(*steps)]
    return Rows(width * value_bytes, pitch * value_bytes, rows, starts)
