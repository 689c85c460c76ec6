"""Numbers for each spatial axis: padding, stride, dilation, windows; one that stands for all axes, or one for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import index
from typing import Any, ClassVar

from cudnnlite.arguments import integer, integers, shown
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.frozen import FrozenSpec
from cudnnlite.specs.layout import MAX_SPATIAL_RANK

Steps = int | tuple[int, ...]
AnySteps = int | Iterable[int]  # as users give them


def parse_steps(value: Any, argument: str, smallest: int) -> Steps:
    """Return an integer, or one for each axis."""
    with suppress(TypeError):
        return integer(index(value), argument, smallest)
    try:
        numbers = integers(value, argument, MAX_SPATIAL_RANK)
    except ArgumentError:
        same = "; it is the same at both ends of an axis" if argument == "padding" else ""
        allowed = f"allowed: an integer, or one for each spatial axis{same}"
        raise ArgumentError(f"{argument}={shown(value)}; {allowed}") from None
    if not 1 <= len(numbers) <= MAX_SPATIAL_RANK:
        raise ArgumentError(f"{argument}={shown(value)} has {len(numbers)} entries; allowed: 1 to {MAX_SPATIAL_RANK}")
    return tuple(integer(number, argument, smallest) for number in numbers)


def slid(image: Sequence[int], what: str, *steps: Sequence[int]) -> tuple[int, ...]:
    """Return how often a window fits an image, for each axis; `steps` are taps, padding, stride and dilation."""
    out = []
    for axis, (size, taps, padding, stride, dilation) in enumerate(zip(image, *steps, strict=True), start=2):
        reach, padded = dilation * (taps - 1) + 1, size + 2 * padding
        if reach > padded:
            raise ArgumentError(
                f"axis {axis}: {what} reaches over {reach}, x, padded, has only {padded} of {(*image,)}"
            )
        out.append((padded - reach) // stride + 1)
    return tuple(out)


class SpatialSpec(FrozenSpec):
    """A spec some of whose fields, `_stepped`, have a number for every spatial axis, or one for each."""

    _stepped: ClassVar[tuple[str, ...]]

    @property
    def spatial_rank(self) -> int | None:
        """The number of spatial axes that the tuples speak of; None where all are plain numbers."""
        lengths = {name: len(v) for name in self._stepped if isinstance(v := getattr(self, name), tuple)}
        if len(set(lengths.values())) > 1:
            *others, last = self._stepped
            raise ArgumentError(f"{', '.join(others)} and {last} speak of different numbers of spatial axes: {lengths}")
        return next(iter(lengths.values()), None)

    def steps(self, spatial_rank: int) -> tuple[tuple[int, ...], ...]:
        """Return these fields with one number for each of `spatial_rank` axes.

        Raises
        ------
        ArgumentError
            The spec's own tuples have another length.
        """
        integer(spatial_rank, "spatial_rank", 1, MAX_SPATIAL_RANK)
        if self.spatial_rank not in (None, spatial_rank):
            raise ArgumentError(f"{self} has {self.spatial_rank} spatial axes, the arrays have {spatial_rank}")
        values = (getattr(self, name) for name in self._stepped)
        return tuple(value if isinstance(value, tuple) else (value,) * spatial_rank for value in values)
