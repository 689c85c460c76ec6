"""`ConvolutionSpec`: how a filter moves over an image, and in which arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from typing import Any

from cudnnlite.dtypes import compute_type_for, dtype_name, parse_dtype
from cudnnlite.enums import ConvolutionMode, DataType, MathType, ReorderType, parse_enum, parse_math_type
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.filter import FilterSpec
from cudnnlite.specs.frozen import FrozenSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST, MAX_INT, MAX_SPATIAL_RANK, VECT_C
from cudnnlite.specs.tensor import TensorSpec


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ConvolutionSpec(FrozenSpec):
    """How a convolution is done: a frozen value, equal and hashable by its fields.

    Parameters
    ----------
    padding, stride, dilation : int or iterable of int
        One number for every spatial axis, or one for each.  Padding is in zeros on both sides; a dilation of 1 means none.
    groups : int
        The number of independent groups that the channels are divided into.
    mode : ConvolutionMode or str
        "cross_correlation" (what deep learning calls a convolution; the default) or "convolution" (the filter rotated).
    compute_type : DataType or str, optional
        What cuDNN accumulates in.  If not given: float64 for float64 tensors, int32 for int8, float32 for the others.
    math_type : MathType or str
        `MathType.DEFAULT` ("tf32"): on float32 tensors cuDNN multiplies in TF32 on Ampere and later GPUs.
        `MathType.FMA` ("true_float32"): never.  TENSOR_OP and TENSOR_OP_ALLOW_CONVERSION as in cuDNN.
    reorder_type : ReorderType or str
        Whether cuDNN reorders an int8x32 filter itself (DEFAULT), or it was done before (NO).

    Raises
    ------
    ArgumentError
        A value that is not allowed.

    Notes
    -----
    C functions: `cudnnSetConvolutionNdDescriptor`, `cudnnSetConvolutionGroupCount`, `cudnnSetConvolutionMathType`,
    `cudnnSetConvolutionReorderType`.

    Examples
    --------
    >>> conv = dnn.ConvolutionSpec(padding=3, stride=2, math_type=dnn.TRUE_FLOAT32)
    >>> conv.output_shape((1, 3, 224, 224), (64, 3, 7, 7))
    (1, 64, 112, 112)
    >>> conv.replace(stride=(2, 1))
    ConvolutionSpec(padding=3, stride=(2, 1), math_type='FMA')
    """

    padding: int | tuple[int, ...]
    stride: int | tuple[int, ...]
    dilation: int | tuple[int, ...]
    groups: int
    mode: ConvolutionMode
    compute_type: DataType | None
    math_type: MathType
    reorder_type: ReorderType

    def __init__(
        self,
        padding: int | Iterable[int] = 0,
        stride: int | Iterable[int] = 1,
        dilation: int | Iterable[int] = 1,
        groups: int = 1,
        *,
        mode: ConvolutionMode | str = ConvolutionMode.CROSS_CORRELATION,
        compute_type: Any = None,
        math_type: MathType | str = MathType.DEFAULT,
        reorder_type: ReorderType | str = ReorderType.DEFAULT,
    ) -> None:
        self._freeze(
            padding=_parse_steps(padding, "padding", 0),
            stride=_parse_steps(stride, "stride", 1),
            dilation=_parse_steps(dilation, "dilation", 1),
            groups=_parse_step(groups, "groups", 1),
            mode=parse_enum(ConvolutionMode, mode, "mode"),
            compute_type=None if compute_type is None else parse_dtype(compute_type, "compute_type"),
            math_type=parse_math_type(math_type),
            reorder_type=parse_enum(ReorderType, reorder_type, "reorder_type"),
        )
        self.spatial_rank  # noqa: B018  (raises if the lengths disagree)

    def __repr__(self) -> str:
        parts = []
        for name, value in self.values().items():
            if value != _DEFAULTS[name]:
                shown = dtype_name(value) if isinstance(value, DataType) else getattr(value, "name", value)
                parts.append(f"{name}={shown!r}")
        return f"ConvolutionSpec({', '.join(parts)})"

    @property
    def spatial_rank(self) -> int | None:
        """The number of spatial axes that the tuples speak of; None where padding, stride and dilation are plain numbers."""
        lengths = {
            name: len(v) for name in ("padding", "stride", "dilation") if isinstance(v := getattr(self, name), tuple)
        }
        if len(set(lengths.values())) > 1:
            raise ArgumentError(f"padding, stride and dilation speak of different numbers of spatial axes: {lengths}")
        return next(iter(lengths.values()), None)

    def replace(self, **changes: Any) -> ConvolutionSpec:
        """Return a copy with some fields changed."""
        return ConvolutionSpec(**self.values() | changes)

    def steps(self, spatial_rank: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return padding, stride and dilation with one number for each of `spatial_rank` axes.

        Raises
        ------
        ArgumentError
            The spec's own tuples have another length.
        """
        if self.spatial_rank not in (None, spatial_rank):
            raise ArgumentError(f"{self} has {self.spatial_rank} spatial axes, the arrays have {spatial_rank}")
        padding, stride, dilation = (
            value if isinstance(value, tuple) else (value,) * spatial_rank
            for value in (self.padding, self.stride, self.dilation)
        )
        return padding, stride, dilation

    def compute_type_for(self, x: TensorSpec) -> DataType:
        """Return the type that cuDNN accumulates in for this input."""
        return compute_type_for(x.dtype) if self.compute_type is None else self.compute_type

    def output_shape(self, x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the output's shape.

        That is ``(N, K, *spatial)`` for an input ``(N, C, *spatial)`` and a filter ``(K, C / groups, *taps)``.

        Raises
        ------
        ArgumentError
            The ranks differ or are not 3 to 5, the groups do not divide the channels, the channels do not match, or the
            dilated filter is larger than the padded input.
        """
        rank = len(x_shape)
        if not 3 <= rank <= 5 or len(w_shape) != rank:
            raise ArgumentError(
                f"x of rank {rank} and w of rank {len(w_shape)}: both must be (N, C, *spatial), of the same rank 3, 4 or 5"
            )
        (n, c, *image), (k, c_group, *taps) = x_shape, w_shape
        if c % self.groups or k % self.groups:
            raise ArgumentError(f"groups={self.groups} does not divide the channels of x ({c}) and of w ({k}, axis 0)")
        if c_group * self.groups != c:
            raise ArgumentError(
                f"w {w_shape} takes {c_group} channels in each of groups={self.groups}, x {x_shape} has {c}; "
                f"w's axis 1 must be {c // self.groups}"
            )
        padding, stride, dilation = self.steps(rank - 2)
        out = []
        for axis, (size, tap, p, s, d) in enumerate(zip(image, taps, padding, stride, dilation, strict=True), start=2):
            reach, padded = d * (tap - 1) + 1, size + 2 * p
            if reach > padded:
                raise ArgumentError(f"axis {axis}: the filter reaches over {reach}, the padded input has only {padded}")
            out.append((padded - reach) // s + 1)
        return (n, k, *out)

    def output_spec(self, x: TensorSpec, w: FilterSpec, *, dtype: Any = None) -> TensorSpec:
        """Return the output's spec: the input's dtype (or `dtype`) and the input's layout, packed.

        Raises
        ------
        ArgumentError
            As in `output_shape`; also where the dtypes of x and w differ.
        """
        shape = self.output_shape(x.shape, w.shape)
        if x.dtype != w.dtype:
            raise ArgumentError(
                f"x is {dtype_name(x.dtype)}, w is {dtype_name(w.dtype)}; they must have the same dtype"
            )
        kind = x.dtype if dtype is None else parse_dtype(dtype)
        if kind != x.dtype and x.vector > 1:
            return TensorSpec(shape, kind, CHANNELS_FIRST[4])
        return TensorSpec(
            shape, kind, VECT_C if x.vector > 1 else (CHANNELS_LAST if x.is_channels_last else CHANNELS_FIRST)[x.rank]
        )


def _parse_step(value: Any, argument: str, smallest: int) -> int:
    try:
        number = index(value)
    except TypeError:
        raise ArgumentError(f"{argument}={value!r} is not an integer") from None
    if not smallest <= number <= MAX_INT:
        raise ArgumentError(f"{argument}={value!r}; allowed: {smallest} to {MAX_INT}")
    return number


def _parse_steps(value: Any, argument: str, smallest: int) -> int | tuple[int, ...]:
    try:
        return _parse_step(index(value), argument, smallest)
    except TypeError:
        pass
    try:
        numbers = tuple(index(number) for number in value)
    except TypeError:
        same = "; it is the same at both ends of an axis" if argument == "padding" else ""
        raise ArgumentError(f"{argument}={value!r}; allowed: an integer, or one for each spatial axis{same}") from None
    if not 1 <= len(numbers) <= MAX_SPATIAL_RANK:
        raise ArgumentError(f"{argument}={numbers} has {len(numbers)} entries; allowed: 1 to {MAX_SPATIAL_RANK}")
    return tuple(_parse_step(number, argument, smallest) for number in numbers)


_DEFAULTS = ConvolutionSpec().values()
