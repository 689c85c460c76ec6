"""`PoolingSpec`: how a window moves over an image, and what is made of the values in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cudnnlite.enums import NanPropagation, PoolingMode, parse_enum
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST
from cudnnlite.specs.steps import SpatialSpec, Steps, parse_steps, slid
from cudnnlite.specs.tensor import TensorSpec


@dataclass(frozen=True, init=False, repr=False, eq=False)
class PoolingSpec(SpatialSpec):
    """How an image is pooled: a frozen value, equal and hashable by its fields.

    Parameters
    ----------
    window : int or iterable of int
        The window's size: one number for every spatial axis, or one for each.
    padding : int or iterable of int
        On both sides of an axis; smaller than the window.  Padding is never a maximum.
    stride : int or iterable of int, optional
        The window's steps; the window's size if not given.
    mode : PoolingMode or str
        "max", "max_deterministic" (its gradient is the same in every run), "average_count_include_padding" or
        "average_count_exclude_padding".
    nan : NanPropagation or str
        Of maxima: "propagate" (a NaN in a window is its maximum) or "not_propagate".

    Raises
    ------
    ArgumentError
        A value that is not allowed; the message names the argument.

    Notes
    -----
    C function: `cudnnSetPoolingNdDescriptor`.

    Examples
    --------
    >>> pooling = dnn.PoolingSpec(3, padding=1, stride=2)
    >>> pooling.output_spec(dnn.TensorSpec((1, 64, 112, 112))).shape
    (1, 64, 56, 56)
    """

    window: Steps
    padding: Steps
    stride: Steps
    mode: PoolingMode
    nan: NanPropagation
    _stepped = ("window", "padding", "stride")

    def __init__(
        self,
        window: int | Iterable[int],
        padding: int | Iterable[int] = 0,
        stride: int | Iterable[int] | None = None,
        *,
        mode: PoolingMode | str = PoolingMode.MAX,
        nan: NanPropagation | str = NanPropagation.PROPAGATE,
    ) -> None:
        taps = parse_steps(window, "window", 1)
        self._freeze(
            window=taps,
            padding=parse_steps(padding, "padding", 0),
            stride=taps if stride is None else parse_steps(stride, "stride", 1),
            mode=parse_enum(PoolingMode, mode, "mode"),
            nan=parse_enum(NanPropagation, nan, "nan"),
        )
        sizes, pads, _ = self.steps(self.spatial_rank or 1)
        if any(pad >= size for pad, size in zip(pads, sizes, strict=True)):
            raise ArgumentError(
                f"padding={padding!r} must be smaller than window={window!r}: a window would hold no value"
            )

    def output_spec(self, x: TensorSpec) -> TensorSpec:
        """Return the output's spec: packed, in the dtype and layout of `x`; ArgumentError where no window fits."""
        if not 3 <= x.rank <= 5 or x.vector > 1:
            raise ArgumentError(f"x={x}: it must be (N, C, *spatial) of rank 3, 4 or 5, and not of a vector type")
        window, padding, stride = self.steps(x.rank - 2)
        shape = (*x.shape[:2], *slid(x.shape[2:], "window", window, padding, stride, (1,) * len(window)))
        return TensorSpec(shape, x.dtype, (CHANNELS_LAST if x.is_channels_last else CHANNELS_FIRST)[x.rank])


PoolingSpec._defaults = {"padding": 0, "mode": PoolingMode.MAX, "nan": NanPropagation.PROPAGATE}
