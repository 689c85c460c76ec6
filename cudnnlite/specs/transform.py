"""`TensorTransformSpec`: how a tensor is padded, folded, and laid out anew."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cudnnlite._raw.enums import FoldingDirection
from cudnnlite.arguments import instance_of, integer, sequence, shown
from cudnnlite.enums import TensorFormat, parse_enum
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.frozen import FrozenSpec
from cudnnlite.specs.layout import CHANNELS_LAST, parse_layout, parse_shape


@dataclass(frozen=True, init=False, repr=False, eq=False)
class TensorTransformSpec(FrozenSpec):
    """How a tensor of rank 4 or 5 is padded, folded, and laid out anew: a frozen value, equal and hashable by its fields.

    Folding takes blocks of pixels apart: ``(N, C, H, W)`` becomes ``(N, f * g * C, H / f, W / g)``, of which channel
    ``(i * g + j) * C + c`` has row i and column j of each block of channel c.  Unfolding is the way back.

    Parameters
    ----------
    padding : iterable of int or of pairs of int
        For each axis of ``(N, C, *spatial)``, how many zeros come before and behind.
    fold : iterable of int
        The size of the blocks along each spatial axis; empty: no folding.
    direction : FoldingDirection or str
        "fold", after the padding, or "unfold", without one.
    layout : str
        Of the result: "NCHW", "NHWC", "NCDHW" or "NDHWC".

    Notes
    -----
    C function: `cudnnSetTensorTransformDescriptor`.

    Examples
    --------
    >>> spec = dnn.TensorTransformSpec((0, 0, (1, 2), 0), fold=(2, 3))
    >>> spec.output_shape((8, 3, 5, 6))
    (8, 18, 4, 2)
    """

    padding: tuple[tuple[int, int], ...]
    fold: tuple[int, ...]
    direction: FoldingDirection
    layout: str

    def __init__(
        self, padding: Iterable[Any], fold: Iterable[int] = (), direction: FoldingDirection | str = FoldingDirection.FOLD,
        layout: str | None = None,
    ) -> None:  # fmt: skip
        given = sequence(padding, "padding", "a sequence of numbers, one for each axis")
        pairs = tuple(tuple(pad) if isinstance(pad, (tuple, list)) else (pad, pad) for pad in given)
        sizes = sequence(fold, "fold", "a sequence of numbers, one for each spatial axis")
        blocks = tuple(integer(size, "fold", 1) for size in sizes)
        if len(pairs) not in (4, 5) or any(len(pair) != 2 for pair in pairs):
            raise ArgumentError(
                f"padding={shown(padding)}; needed: a number, or a pair of them, for each of 4 or 5 axes"
            )
        ends: Any = tuple((integer(a, "padding", 0), integer(b, "padding", 0)) for a, b in pairs)
        way = parse_enum(FoldingDirection, direction, "direction")
        if blocks and len(blocks) != len(pairs) - 2:
            raise ArgumentError(f"fold={shown(blocks)}; needed: a number for each of {len(pairs) - 2} spatial axes")
        if way == FoldingDirection.UNFOLD and any(max(end) for end in ends):
            raise ArgumentError(f"padding={shown(padding)} with direction=UNFOLD; allowed: 0")
        self._freeze(padding=ends, fold=blocks, direction=way, layout=parse_layout(layout, len(pairs)))

    @property
    def format(self) -> TensorFormat:
        """The layout as cuDNN calls it."""
        return TensorFormat.NHWC if self.layout in CHANNELS_LAST.values() else TensorFormat.NCHW

    def output_shape(self, shape: tuple[int, ...], argument: str = "x") -> tuple[int, ...]:
        """Return the shape of what comes out; ArgumentError if the spec does not fit."""
        shape = parse_shape(shape, instance_of(argument, str, "argument"))
        if len(shape) != len(self.padding):
            raise ArgumentError(
                f"{argument} has shape {shape}; the transformation is one of {len(self.padding)} axes: {self}"
            )
        n, c, *image = (before + size + after for size, (before, after) in zip(shape, self.padding, strict=True))
        volume = 1
        for size in self.fold:
            volume *= size
        if not self.fold:
            return (n, c, *image)
        if self.direction == FoldingDirection.UNFOLD:
            if c % volume:
                raise ArgumentError(f"{argument} has {c} channels, which fold={self.fold} does not divide")
            return (n, c // volume, *(size * step for size, step in zip(image, self.fold, strict=True)))
        if any(size % step for size, step in zip(image, self.fold, strict=True)):
            raise ArgumentError(f"{argument} is padded to {(n, c, *image)}, which fold={self.fold} does not divide")
        return (n, c * volume, *(size // step for size, step in zip(image, self.fold, strict=True)))
