"""Layouts: the order of the axes of a tensor in memory.

Shapes are always written ``(N, C, *spatial)``, whatever the layout, as cuDNN does; the layout only
decides the strides.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from cudnnlite.arguments import MAX_INT, integers, shown
from cudnnlite.errors import ArgumentError

MAX_RANK = 8  # CUDNN_DIM_MAX
MAX_SPATIAL_RANK = 6  # cuDNN refuses a convolution descriptor of seven dimensions

CHANNELS_FIRST = {3: "NCW", 4: "NCHW", 5: "NCDHW"}
CHANNELS_LAST = {3: "NWC", 4: "NHWC", 5: "NDHWC"}
LAYOUTS = {"NCHW": CHANNELS_FIRST, "NHWC": CHANNELS_LAST}  # for every rank, by what users call both
VECT_C = "NCHW_VECT_C"
# of rank 3 in C order: of recurrent networks, in their own words
SEQUENCES = ("sequence_major", "batch_major", "states")
PACKED = "packed"  # C order, at the ranks that have no layouts with names


def parse_layout(layout: object, rank: int, argument: str = "layout") -> str:
    """Return the layout's name for this rank; None means channels first.

    ArgumentError if the rank has no such layout.
    """
    allowed = [names[rank] for names in (CHANNELS_FIRST, CHANNELS_LAST) if rank in names]
    if rank == 4:
        allowed.append(VECT_C)
    if layout is None:
        return CHANNELS_FIRST.get(rank, PACKED)
    name = (layout if isinstance(layout, str) else str(getattr(layout, "name", ""))).upper()
    if name in allowed:
        return name
    if not allowed and name == PACKED.upper():
        return PACKED
    raise ArgumentError(
        f"{argument}={shown(layout)} is not a layout of rank {rank}; allowed: "
        f"{', '.join(allowed) or PACKED}"
    )


def layout_of_rank(layout: str, rank: int) -> str:
    """Return the name of 'NCHW' or 'NHWC' at a rank: 'NWC' for 'NHWC' at rank 3; empty if it has none."""
    return LAYOUTS.get(layout, {}).get(rank, "")


def parse_shape(
    shape: Iterable[Any], argument: str = "shape", *, batch_may_be_empty: bool = True
) -> tuple[int, ...]:
    """Return a shape of 1 to 8 positive C ints, or raise ArgumentError.

    The first size of an empty batch is 0, or the second of three.
    """
    sizes = integers(shape, argument, MAX_RANK)
    if not 1 <= len(sizes) <= MAX_RANK:
        raise ArgumentError(
            f"{argument}={shown(shape)} has rank {len(sizes)}; allowed: 1 to {MAX_RANK}"
        )
    for axis, size in enumerate(sizes):
        smallest = 0 if batch_may_be_empty and (axis == 0 or (axis, len(sizes)) == (1, 3)) else 1
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
    return tuple(range(rank))


def if_channels_last(rank: int) -> str:
    """Return the hint of a message about a wrong shape: how to pass images with channels last."""
    axes = (0, rank - 1, *range(1, rank - 1))
    return (
        ". Shapes are (N, C, *spatial) in every layout; if x was given as (N, *spatial, C): "
        f"handle.array(x.transpose{axes}, layout={CHANNELS_LAST[rank]!r})"
    )


def same_strides(shape: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Tell whether two strides address the same memory: those of axes of size 1 do not matter."""
    return all(size <= 1 or a == b for size, a, b in zip(shape, one, other, strict=True))


def span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return how many elements lie between the first and the last one, both included."""
    if prod(shape) == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def as_four(values: tuple[int, ...], *, missing: int) -> tuple[int, ...]:
    """Bring a shape or strides of rank below 4 to the rank 4 that cuDNN's operations want.

    (N, C, W) becomes (N, C, 1, W): the missing height goes before the width, so that a 1-D
    convolution is a 2-D one whose images are one pixel high.  Lower ranks get ones behind.
    """
    if len(values) >= 4:
        return values
    if len(values) == 3:
        return (values[0], values[1], missing, values[2])
    return values + (missing,) * (4 - len(values))
