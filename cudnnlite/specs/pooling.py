"""`PoolingSpec`: how a window moves over an image, and what is made of the values in it."""

from dataclasses import dataclass
from typing import Any

from cudnnlite.arguments import instance_of, shown
from cudnnlite.enums import NanPropagation, PoolingMode, parse_enum
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.steps import AnySteps, SpatialSpec, Steps, parse_steps, slid
from cudnnlite.specs.tensor import TensorSpec


@dataclass(frozen=True, init=False, repr=False, eq=False)
class PoolingSpec(SpatialSpec):
    """How images are pooled: a frozen value, equal and hashable by its fields.

    Parameters
    ----------
    window, padding, stride : int or iterable of int
        One number for every spatial axis, or one for each.  Padding is on both sides, smaller than the window, and never a
        maximum.  The stride is the window's size if not given (once: `replace` keeps it).
    mode : PoolingMode or str
        "max", "max_deterministic", "average_count_include_padding" or "average_count_exclude_padding".
    nan : NanPropagation or str
        Whether the maximum of a window with a NaN in it is that: "propagate" or "not_propagate".

    Notes
    -----
    C function: `cudnnSetPoolingNdDescriptor`.

    Examples
    --------
    >>> dnn.PoolingSpec(3, padding=1, stride=2).output_spec(dnn.TensorSpec((1, 64, 112, 112))).shape
    (1, 64, 56, 56)
    """

    window: Steps
    padding: Steps
    stride: Steps
    mode: PoolingMode
    nan: NanPropagation
    _stepped = ("window", "padding", "stride")

    def __init__(
        self, window: AnySteps, padding: AnySteps = 0, stride: AnySteps | None = None, *,
        mode: PoolingMode | str = PoolingMode.MAX, nan: NanPropagation | str = NanPropagation.PROPAGATE,
    ) -> None:  # fmt: skip
        taps, pads = parse_steps(window, "window", 1), parse_steps(padding, "padding", 0)
        steps = taps if stride is None else parse_steps(stride, "stride", 1)
        kind, propagation = parse_enum(PoolingMode, mode, "mode"), parse_enum(NanPropagation, nan, "nan")
        self._freeze(window=taps, padding=pads, stride=steps, mode=kind, nan=propagation)
        sizes, margins, _ = self.steps(self.spatial_rank or 1)
        if any(margin >= size for margin, size in zip(margins, sizes, strict=True)):
            raise ArgumentError(
                f"padding={shown(padding)} must be smaller than window={shown(window)}: it would hold no value"
            )

    @classmethod
    def whole(
        cls, x: Any, *, mode: PoolingMode | str = PoolingMode.AVERAGE_COUNT_INCLUDE_PADDING,
        nan: NanPropagation | str = NanPropagation.PROPAGATE,
    ) -> "PoolingSpec":  # fmt: skip
        """Return the pooling over the whole image, to one value for each channel; of a spec, or an array that has one.

        Raises
        ------
        ArgumentError
            `x` has no spatial axes.
        """
        spec = getattr(x, "spec", x)
        if not isinstance(spec, TensorSpec) or spec.rank < 3:
            raise ArgumentError(f"x={shown(x)}: it must be (N, C, *spatial)")
        return cls(spec.shape[2:], mode=mode, nan=nan)

    def output_spec(self, x: TensorSpec) -> TensorSpec:
        """Return the output's spec: packed, in the dtype and layout of `x`; ArgumentError where no window fits."""
        if not 3 <= instance_of(x, TensorSpec, "x").rank <= 5:
            raise ArgumentError(f"x={x}: it must be (N, C, *spatial), of rank 3, 4 or 5")
        window, padding, stride = self.steps(x.rank - 2)
        return x.packed((*x.shape[:2], *slid(x.shape[2:], "the window", window, padding, stride, (1,) * len(window))))
