"""Padding, stride, dilation and windows: a number for all spatial axes, or one for each axis."""

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
Padding = int | str | tuple[int | tuple[int, int], ...]
AnySteps = int | Iterable[int]  # as users give them
SAME = "same"
# Other libraries' names of paddings in numbers, for messages.
NAMED_PADDING = {"valid": ". 'valid' is 0"}


def parse_steps(
    value: Any,
    argument: str,
    smallest: int,
    alternative: str = "one for each spatial axis",
) -> Steps:
    """Return an integer, or one for each axis.

    `alternative` is what a message says is allowed besides an integer.
    """
    with suppress(TypeError):
        index(value)
        return integer(value, argument, smallest)  # It refuses a bool.
    try:
        numbers = integers(value, argument, MAX_SPATIAL_RANK)
    except ArgumentError:
        hint = ""
        if isinstance(value, str) and argument == "padding":
            hint = NAMED_PADDING.get(value.lower(), "")
        raise ArgumentError(
            f"{argument}={shown(value)}; allowed: an integer, or {alternative}{hint}"
        ) from None
    if not 1 <= len(numbers) <= MAX_SPATIAL_RANK:
        raise ArgumentError(
            f"{argument}={shown(value)} has {len(numbers)} entries; allowed: "
            f"1 to {MAX_SPATIAL_RANK}"
        )
    return tuple(integer(number, argument, smallest) for number in numbers)


def parse_padding(value: Any) -> Padding:
    """Return "same", an integer, or for each axis an integer, or a pair: before and behind it."""
    if isinstance(value, str) and value.lower() == SAME:
        return SAME
    has_pairs = isinstance(value, (tuple, list)) and any(map(_is_pair, value))
    if not has_pairs:
        return parse_steps(
            value,
            "padding",
            0,
            "one or (before, behind) for each axis, as in ((0, 1), (0, 1)), or 'same'",
        )
    pairs = [axis if _is_pair(axis) else (axis, axis) for axis in value]
    if any(len(pair) != 2 for pair in pairs):
        raise ArgumentError(
            f"padding={shown(value)}; "
            "allowed for a spatial axis: an integer, or two, before and behind it"
        )
    ends = [[integer(end, "padding", 0) for end in pair] for pair in pairs]
    if len(ends) > MAX_SPATIAL_RANK:
        raise ArgumentError(
            f"padding={shown(value)} has {len(ends)} entries; allowed: 1 to {MAX_SPATIAL_RANK}"
        )
    return tuple(before if before == behind else (before, behind) for before, behind in ends)


def _is_pair(axis: object) -> bool:
    return isinstance(axis, (tuple, list))


def pads_of(padding: Iterable[int | tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the padding before and behind each axis."""
    return tuple((axis, axis) if isinstance(axis, int) else axis for axis in padding)


def same_padding(size: int, reach: int, stride: int) -> tuple[int, int]:
    """Return the padding before and behind an axis with which a window has size / stride places.

    That is rounded up, and an odd pixel is behind.  `reach` is how far a window extends.
    """
    last_start = (size - 1) // stride * stride
    total = max(0, last_start + reach - size)
    return total // 2, total - total // 2


def pads_with_last_window(
    size: int, taps: int, pads: tuple[int, int], stride: int
) -> tuple[int, int]:
    """Return the padding with which a last window that reaches beyond the end gives a value, too.

    A window that would begin in the padding behind an axis gives none.
    """
    before, behind = pads
    last_start = size + before + behind - taps
    missing = -last_start % stride
    if last_start < 0 or last_start + missing >= size + before:
        return pads
    return before, behind + missing


def slid(image: Sequence[int], window: str, *steps: Sequence[Any]) -> tuple[int, ...]:
    """Return the number of positions of a window in an image, for each axis.

    `steps` are taps, padding, stride and dilation.  The padding of an axis may be a pair: before
    and behind.  `window` is what a message calls it.
    """
    positions = []
    for axis, (size, taps, padding, stride, dilation) in enumerate(
        zip(image, *steps, strict=True), start=2
    ):
        reach = dilation * (taps - 1) + 1
        both_paddings = sum(padding) if isinstance(padding, tuple) else 2 * padding
        padded = size + both_paddings
        if reach > padded:
            raise ArgumentError(
                f"axis {axis}: {window} reaches over {reach}, "
                f"x, padded, has only {padded} of {(*image,)}"
            )
        positions.append((padded - reach) // stride + 1)
    return tuple(positions)


class SpatialSpec(FrozenSpec):
    """A spec with fields, `_stepped`, that have a number for all spatial axes, or one for each."""

    _stepped: ClassVar[tuple[str, ...]]

    @property
    def spatial_rank(self) -> int | None:
        """The number of spatial axes, which is the length of the tuples; None if there are none."""
        values = {name: getattr(self, name) for name in self._stepped}
        lengths = {name: len(value) for name, value in values.items() if isinstance(value, tuple)}
        if len(set(lengths.values())) > 1:
            *first_names, last_name = self._stepped
            raise ArgumentError(
                f"{', '.join(first_names)} and {last_name} speak of different numbers of "
                f"spatial axes: {lengths}"
            )
        return next(iter(lengths.values()), None)

    def steps(self, spatial_rank: int) -> tuple[tuple[int, ...], ...]:
        """Return these fields with one number for each of `spatial_rank` axes.

        Raises
        ------
        ArgumentError
            The spec's own tuples have another length.
        """
        values = [self._per_axis(name, spatial_rank) for name in self._stepped]
        if SAME in values[self._stepped.index("padding")]:
            raise ArgumentError(
                f"padding={SAME!r} is as many pixels as the image needs; "
                f"{type(self).__name__}.for_shapes(...) returns them as numbers"
            )
        return tuple(values)

    def _per_axis(self, name: str, spatial_rank: int) -> tuple[Any, ...]:
        """Return one of these fields with an entry for each axis; ArgumentError as `steps`."""
        integer(spatial_rank, "spatial_rank", 1, MAX_SPATIAL_RANK)
        if self.spatial_rank not in (None, spatial_rank):
            raise ArgumentError(
                f"{self} has {self.spatial_rank} spatial axes, the arrays have {spatial_rank}"
            )
        value = getattr(self, name)
        return value if isinstance(value, tuple) else (value,) * spatial_rank
