"""Layouts: the order of the axes of a tensor in memory.

Shapes are always written ``(N, C, *spatial)``, whatever the layout, as cuDNN does; the layout only
sets the strides.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from cudnnlite.arguments import MAX_INT, integers, shown
from cudnnlite.enums import TensorFormat, members_by_c_name
from cudnnlite.errors import ArgumentError

MAX_RANK = 8  # CUDNN_DIM_MAX
# MAX_RANK without N and C.  cuDNN refuses a convolution descriptor of seven spatial axes.
MAX_SPATIAL_RANK = 6

CHANNELS_FIRST = {3: "NCW", 4: "NCHW", 5: "NCDHW"}
CHANNELS_LAST = {3: "NWC", 4: "NHWC", 5: "NDHWC"}
# The names of a layout at each rank, by its name at rank 4.
LAYOUTS = {"NCHW": CHANNELS_FIRST, "NHWC": CHANNELS_LAST}
# What other libraries call them.
_OTHER_NAMES = {
    **dict.fromkeys(("CHANNELS_LAST", "CHANNELS_LAST_3D", "HWC"), CHANNELS_LAST),
    **dict.fromkeys(("CHANNELS_FIRST", "CONTIGUOUS", "CHW"), CHANNELS_FIRST),
}
VECT_C = "NCHW_VECT_C"
# The names of the layouts of rank-3 arrays of recurrent networks.  All of them are C order.
RNN_LAYOUTS = ("sequence_major", "batch_major", "states")
PACKED = "packed"  # C order; the only layout of ranks 1, 2, and 6 to 8


def parse_layout(layout: object, rank: int, argument: str = "layout") -> str:
    """Return the name of a layout at a rank, or raise ArgumentError if the rank does not have it.

    `layout` is a name, here or in C, a member of an enum such as `TensorFormat`, or None for
    channels first.  NCHW and NHWC go with every rank: 'NHWC' is 'NDHWC' at rank 5.
    """
    allowed = [names[rank] for names in (CHANNELS_FIRST, CHANNELS_LAST) if rank in names]
    if rank == 4:
        allowed.append(VECT_C)
    if layout is None:
        return CHANNELS_FIRST.get(rank, PACKED)
    name = layout if isinstance(layout, str) else str(getattr(layout, "name", ""))
    name = plain_layout(name).upper()
    name = layout_of_rank(name, rank) or name
    if name in allowed:
        return name
    if not allowed and name == PACKED.upper():
        return PACKED
    meant = _OTHER_NAMES.get(name, {}).get(rank)
    raise ArgumentError(
        f"{argument}={shown(layout)} is not a layout of rank {rank}; allowed: "
        f"{', '.join(allowed) or PACKED}{f'; it is {meant!r}' if meant else ''}"
    )


def plain_layout(layout: str) -> str:
    """Return our name for a layout that has its name in C, and any other name as it is."""
    c_member = members_by_c_name(TensorFormat).get(layout.upper())
    return layout if c_member is None else c_member.name


def layout_of_rank(layout: str, rank: int) -> str:
    """Return a layout's name at a rank, such as 'NWC' for 'NHWC' at rank 3.

    The text is empty if the rank does not have the layout.
    """
    return LAYOUTS.get(layout, {}).get(rank, "")


def parse_shape(
    shape: Iterable[Any],
    argument: str = "shape",
    *,
    batch_may_be_empty: bool = True,
    all_may_be_empty: bool = False,
) -> tuple[int, ...]:
    """Return a shape of 1 to 8 sizes that are C ints, or raise ArgumentError.

    Sizes are positive, except those of an empty batch: unless `batch_may_be_empty` is False, axis 0
    may have size 0, and so may axis 1 of a rank-3 shape, the batch of sequence-major arrays, and of
    a rank-2 shape, a matrix without columns.  With `all_may_be_empty` each axis may.
    """
    # If the rank is too large, `integers` returns the first MAX_RANK + 1 sizes.
    sizes = integers(shape, argument, most=MAX_RANK)
    if not 1 <= len(sizes) <= MAX_RANK:
        raise ArgumentError(
            f"{argument}={shown(shape)} has rank {len(sizes)}; allowed: 1 to {MAX_RANK}"
        )
    for axis, size in enumerate(sizes):
        may_be_batch = axis == 0 or (axis == 1 and len(sizes) in (2, 3))
        smallest = 1
        if all_may_be_empty or (batch_may_be_empty and may_be_batch):
            smallest = 0
        if not smallest <= size <= MAX_INT:
            raise ArgumentError(
                f"{argument}={shown(sizes)}: size {shown(size)} on axis {axis}; allowed: "
                f"{smallest} to {MAX_INT}"
            )
    return sizes


def packed_strides(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return the strides, in elements, of a packed tensor of shape ``(N, C, *spatial)``."""
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(memory_order(len(shape), layout)):
        strides[axis] = step
        step *= max(1, shape[axis])
    return tuple(strides)


def memory_order(rank: int, layout: str) -> tuple[int, ...]:
    """Return the axes of ``(N, C, *spatial)`` from the outermost in memory to the innermost."""
    if layout == CHANNELS_LAST.get(rank):
        return (0, *range(2, rank), 1)
    # This holds for NCHW_VECT_C, too: each of its elements is a vector of channels.
    return tuple(range(rank))


def channels_last_hint(rank: int) -> str:
    """Return how to pass images with channels last, as the hint of a message on a wrong shape."""
    axes = (0, rank - 1, *range(1, rank - 1))
    return (
        ". Shapes are (N, C, *spatial) in every layout; if x was given as (N, *spatial, C): "
        f"handle.array(x.transpose{axes}, layout={CHANNELS_LAST[rank]!r})"
    )


def same_strides(shape: tuple[int, ...], strides: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two tuples of strides address the same memory.

    The strides of axes of size 1 do not matter.
    """
    return all(size <= 1 or a == b for size, a, b in zip(shape, strides, other, strict=True))


def span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return how many elements lie from the first to the last, which count, and gaps as well."""
    if prod(shape) == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def pad_to_rank_4(values: tuple[int, ...], *, filler: int) -> tuple[int, ...]:
    """Return a shape or strides with at least the four entries that cuDNN's operations need.

    At rank 3, (N, C, W), `filler` is inserted as the height, before the width, so that a 1-D
    convolution is a 2-D one whose images are one pixel high.  At ranks 1 and 2 it is appended.
    """
    if len(values) >= 4:
        return values
    if len(values) == 3:
        return (values[0], values[1], filler, values[2])
    return values + (filler,) * (4 - len(values))


def runs(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return (size, stride) of the axes; neighbours without a gap between them become one axis."""
    axes: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1] == size * stride:
            axes[-1] = axes[-1][0] * size, stride
        else:
            axes.append((size, stride))
    return axes


def view_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], new_shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the strides of another shape for the same values in the same order.

    None if the same memory has no such view.
    """
    axes = runs(shape, strides)
    room, stride, new_strides = 1, 1, []
    for size in reversed(new_shape):
        if room == 1 and size != 1 and axes:
            room, stride = axes.pop()
        new_strides.append(stride)
        if size == 0 or room % size:
            return None
        room, stride = room // size, stride * size
    return tuple(reversed(new_strides))
