"""`FilterSpec`: shape, data type and format of a convolution's filter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from cudnnlite.arguments import instance_of
from cudnnlite.dtypes import AnyDtype, dtype_name, numpy_dtype, parse_dtype, vector_length
from cudnnlite.enums import DataType, TensorFormat, parse_enum
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.frozen import FrozenSpec
from cudnnlite.specs.layout import (
    CHANNELS_FIRST,
    CHANNELS_LAST,
    VECT_C,
    pad_to_rank_4,
    parse_layout,
    parse_shape,
)
from cudnnlite.specs.tensor import TensorSpec

_FORMATS = {
    **dict.fromkeys(CHANNELS_FIRST.values(), TensorFormat.NCHW),
    **dict.fromkeys(CHANNELS_LAST.values(), TensorFormat.NHWC),
    VECT_C: TensorFormat.NCHW_VECT_C,
}


@dataclass(frozen=True, init=False, repr=False, eq=False)
class FilterSpec(FrozenSpec, c_functions="cudnnSetFilterNdDescriptor"):
    """Shape, dtype and layout of a filter: a frozen value, compared and hashed by its fields.

    Filters have no strides in cuDNN.

    Parameters
    ----------
    shape : iterable of int
        ``(K, C / groups, *taps)``: output channels, input channels of one group, filter height and
        width; rank 3 to 5 (6 to 8 are cuDNN's to refuse).
    dtype : DataType or str or numpy dtype
        The data type, such as "float32".
    layout : str, optional
        "NCHW" (in memory K, C, height, width) or "NHWC" (K, height, width, C), "NCHW_VECT_C", or
        the names of other ranks.

    Examples
    --------
    >>> dnn.FilterSpec((64, 3, 7, 7), "bfloat16", "NHWC")
    FilterSpec((64, 3, 7, 7), 'bfloat16', 'NHWC')
    >>> dnn.FilterSpec((64, 3, 7, 7)).nbytes
    37632
    """

    shape: tuple[int, ...]
    dtype: DataType
    format: TensorFormat

    def __init__(
        self, shape: Iterable[int], dtype: AnyDtype = "float32", layout: str | None = None
    ) -> None:
        sizes = parse_shape(shape, batch_may_be_empty=False)
        if len(sizes) < 3:
            raise ArgumentError(
                f"shape={sizes} has rank {len(sizes)}; a filter is (K, C, *taps): 3 to 8"
            )
        kind = parse_dtype(dtype)
        # A filter has the rules of a tensor for shape, layout and vector types.
        tensor = TensorSpec(sizes, kind, layout)
        name = VECT_C if tensor.vector > 1 else parse_layout(layout, len(sizes))
        self._freeze(shape=sizes, dtype=kind, format=_FORMATS.get(name, TensorFormat.NCHW))

    @classmethod
    def from_tensor(
        cls, spec: TensorSpec, *, channels_last: bool = False, argument: str = "w"
    ) -> FilterSpec:
        """Read a packed tensor as a filter.

        Parameters
        ----------
        spec : TensorSpec
            The array that holds the filter.
        channels_last : bool
            Whether the input has its channels last.  It decides if the array fits both formats,
            with one tap or one channel.
        argument : str
            The array's name, for the message.

        Raises
        ------
        ArgumentError
            The rank is not 3 to 5, or the strides are neither packed channels-first nor packed
            channels-last.
        """
        instance_of(spec, TensorSpec, instance_of(argument, str, "argument"))
        if spec.rank not in CHANNELS_FIRST:
            raise ArgumentError(
                f"{argument} has rank {spec.rank}; needed: 3 to 5, (K, C / groups, *taps)"
            )
        names = (CHANNELS_FIRST[spec.rank], CHANNELS_LAST[spec.rank], VECT_C)
        for name in (names[1], names[0], names[2]) if channels_last else names:
            if spec.fits(name):
                return cls(spec.shape, spec.dtype, name)
        raise ArgumentError(
            f"{argument}={spec}: cuDNN's filters are packed (layouts {', '.join(names)}); "
            "copy it with handle.array(..., layout=...)"
        )

    def __repr__(self) -> str:
        return f"FilterSpec({self.shape}, {dtype_name(self.dtype)!r}, {self.layout!r})"

    @classmethod
    def _from(cls, values: Mapping[str, Any]) -> FilterSpec:
        shape = parse_shape(values["shape"], batch_may_be_empty=False)
        layouts = _layouts(parse_enum(TensorFormat, values["format"], "format"))
        return cls(shape, values["dtype"], layouts.get(len(shape)))

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def layout(self) -> str:
        """The name of the layout at this rank: 'NCHW', 'NWC', ..."""
        return _layouts(self.format).get(self.rank, "packed")

    @property
    def size(self) -> int:
        """The number of values."""
        return prod(self.shape)

    @property
    def tensor(self) -> TensorSpec:
        """The filter's memory as a tensor."""
        return TensorSpec(self.shape, self.dtype, self.layout)

    @property
    def nbytes(self) -> int:
        """The bytes of the packed filter."""
        return self.size * numpy_dtype(self.dtype).itemsize

    @property
    def vector(self) -> int:
        """How many channels one element holds (4 or 32 under NCHW_VECT_C, otherwise 1)."""
        return vector_length(self.dtype)

    def native(self) -> tuple[int, ...]:
        """Return the dims that are passed to cuDNN: rank 4 or more, a 1-D filter one tap high."""
        return pad_to_rank_4(self.shape, filler=1)


def as_tensor(spec: TensorSpec | FilterSpec) -> TensorSpec:
    """Return a tensor's spec as it is, and a filter's as that of the tensor which holds it."""
    return spec.tensor if isinstance(spec, FilterSpec) else spec


def matches_spec(array: TensorSpec, expected: TensorSpec | FilterSpec) -> bool:
    """Return whether an array matches a spec; one tap or one channel fits both filter formats."""
    if not isinstance(expected, FilterSpec):
        return array == expected
    has_same_values = array.shape == expected.shape and array.dtype == expected.dtype
    return has_same_values and array.fits(expected.layout)


def _layouts(kind: TensorFormat) -> dict[int, str]:
    """Return the names of a format's layouts by rank."""
    if kind == TensorFormat.NCHW:
        return CHANNELS_FIRST
    if kind == TensorFormat.NHWC:
        return CHANNELS_LAST
    return {4: VECT_C}
