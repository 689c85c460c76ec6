"""`ConvolutionSpec`: how a filter moves over an image, and in which arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cudnnlite.arguments import instance_of, integer, shown
from cudnnlite.dtypes import AnyDtype, compute_type_for, dtype_name, parse_dtype
from cudnnlite.enums import (
    ConvolutionMode,
    DataType,
    MathType,
    ReorderType,
    parse_enum,
    parse_math_type,
)
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.filter import FilterSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, channels_last_hint, parse_shape
from cudnnlite.specs.names import ConvolutionModeName, MathTypeName
from cudnnlite.specs.steps import (
    SAME,
    Padding,
    SpatialSpec,
    pads_of,
    parse_padding,
    parse_steps,
    same_padding,
    slid,
)
from cudnnlite.specs.tensor import TensorSpec

# what cuDNN's descriptors take as images and as filters; which of the integers, and how laid out,
# is the device's to say
_DTYPES = (
    DataType.FLOAT,
    DataType.DOUBLE,
    DataType.HALF,
    DataType.BFLOAT16,
    DataType.INT8,
    DataType.UINT8,
    DataType.INT8x4,
    DataType.UINT8x4,
    DataType.INT8x32,
)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ConvolutionSpec(
    SpatialSpec,
    c_functions="cudnnSetConvolutionNdDescriptor cudnnSetConvolutionGroupCount cudnnSetConvolutionMathType "
    "cudnnSetConvolutionReorderType",
):
    """How a convolution is done: a frozen value, compared and hashed by its fields.

    Parameters
    ----------
    padding, stride, dilation : int or iterable of int
        One number for every spatial axis, or one for each.  Zeros are added on both sides; a
        dilation of 1 means no dilation.  An axis may be padded by a pair of numbers, before and
        behind it: ``padding=((0, 1), 2)``.  If the two numbers differ, the convolution runs through
        cuDNN's graph interface, because the descriptor call has one number for both.  With "same",
        the size of the result is that of the image divided by the stride, rounded up; if the
        padding is odd, as for a filter of even size, the greater half is behind the axis
        (SAME_UPPER of ONNX).  The fields are the arguments, numbers or tuples; `steps` and `pads`
        have a number for each axis.
    groups : int
        The number of independent groups that the channels are divided into.
    mode : ConvolutionMode or str
        "cross_correlation" (what deep learning calls a convolution; the default) or "convolution"
        (the filter rotated).
    compute_type : DataType or str, optional
        The type of cuDNN's sums.  If not given: float64 for float64 tensors, int32 for int8,
        float32 for the others.
    math_type : MathType or str
        `MathType.DEFAULT` ("tf32"): cuDNN multiplies float32 in TF32 on Ampere and later GPUs.
        `MathType.FMA` ("true_float32"): cuDNN never uses TF32.  TENSOR_OP and
        TENSOR_OP_ALLOW_CONVERSION mean what they mean in cuDNN.
    reorder_type : ReorderType or str
        Whether cuDNN reorders an int8x32 filter itself (DEFAULT), or the filter already is
        reordered (NO).

    Examples
    --------
    >>> conv = dnn.ConvolutionSpec(padding=3, stride=2, math_type=dnn.TRUE_FLOAT32)
    >>> conv.output_shape((1, 3, 224, 224), (64, 3, 7, 7))
    (1, 64, 112, 112)
    >>> conv.replace(stride=(2, 1))
    ConvolutionSpec(padding=3, stride=(2, 1), math_type='FMA')
    >>> dnn.ConvolutionSpec("same", stride=2).for_shapes((1, 3, 8, 8), (4, 3, 3, 3)).padding
    ((0, 1), (0, 1))
    """

    padding: Padding
    stride: int | tuple[int, ...]
    dilation: int | tuple[int, ...]
    groups: int
    mode: ConvolutionMode
    compute_type: DataType | None
    math_type: MathType
    reorder_type: ReorderType
    _stepped = ("padding", "stride", "dilation")

    def __init__(
        self,
        padding: int | str | Iterable[Any] = 0,
        stride: int | Iterable[int] = 1,
        dilation: int | Iterable[int] = 1,
        groups: int = 1,
        *,
        mode: ConvolutionMode | ConvolutionModeName = ConvolutionMode.CROSS_CORRELATION,
        compute_type: AnyDtype | None = None,
        math_type: MathType | MathTypeName = MathType.DEFAULT,
        reorder_type: ReorderType | str = ReorderType.DEFAULT,
    ) -> None:
        self._freeze(
            padding=parse_padding(padding),
            stride=parse_steps(stride, "stride", 1),
            dilation=parse_steps(dilation, "dilation", 1),
            groups=integer(groups, "groups", 1),
            mode=parse_enum(ConvolutionMode, mode, "mode"),
            compute_type=None
            if compute_type is None
            else parse_dtype(compute_type, "compute_type"),
            math_type=parse_math_type(math_type),
            reorder_type=parse_enum(ReorderType, reorder_type, "reorder_type"),
        )
        self.spatial_rank  # noqa: B018  (raises if the lengths disagree)

    @property
    def is_symmetric(self) -> bool:
        """Whether every axis is padded alike on both of its sides; "same" may not be."""
        return isinstance(self.padding, int) or all(isinstance(axis, int) for axis in self.padding)

    def for_shapes(self, x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> ConvolutionSpec:
        """Return the spec for images and filters of these shapes: "same" padding as numbers."""
        if self.padding != SAME:
            return self
        rank = len(x_shape)
        if not 3 <= rank <= 5 or len(w_shape) != rank:
            return self.replace(padding=0)  # Whoever computes with it refuses these shapes.
        strides = self._per_axis("stride", rank - 2)
        dilations = self._per_axis("dilation", rank - 2)
        axes = zip(x_shape[2:], w_shape[2:], strides, dilations, strict=True)
        pads = [
            same_padding(size, dilation * (taps - 1) + 1, stride)
            for size, taps, stride, dilation in axes
        ]
        return self.replace(padding=pads)

    def steps(self, spatial_rank: int) -> tuple[tuple[int, ...], ...]:
        """Return padding, stride and dilation with one number for each of `spatial_rank` axes.

        The padding is what is before an axis; `pads` has both sides.

        Raises
        ------
        ArgumentError
            The spec's own tuples have another length.
        """
        padding, stride, dilation = super().steps(spatial_rank)
        return (
            tuple(axis if isinstance(axis, int) else axis[0] for axis in padding),
            stride,
            dilation,
        )

    def pads(self, spatial_rank: int) -> tuple[tuple[int, int], ...]:
        """Return the padding before and behind each axis; ArgumentError as `steps`."""
        padding: Any = super().steps(spatial_rank)[0]
        return pads_of(padding)

    def compute_type_for(self, x: TensorSpec) -> DataType:
        """Return the type that cuDNN accumulates in for this input."""
        dtype = instance_of(getattr(x, "dtype", None), DataType, "x.dtype")
        return compute_type_for(dtype) if self.compute_type is None else self.compute_type

    def output_shape(self, x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the output's shape.

        That is ``(N, K, *spatial)`` for an input ``(N, C, *spatial)`` and a filter ``(K, C /
        groups, *taps)``.

        Raises
        ------
        ArgumentError
            The ranks differ or are not 3 to 5, the groups do not divide the channels, the channels
            do not match, or the dilated filter is larger than the padded input.
        """
        x_shape, w_shape = parse_shape(x_shape, "x_shape"), parse_shape(w_shape, "w_shape")
        rank = len(x_shape)
        if not 3 <= rank <= 5 or len(w_shape) != rank:
            raise ArgumentError(
                f"x of rank {rank} and w of rank {len(w_shape)}: "
                "both must be (N, C, *spatial), of the same rank 3, 4 or 5"
            )
        self._check_channels(x_shape, w_shape)
        conv = self.for_shapes(x_shape, w_shape)
        _, stride, dilation = conv.steps(rank - 2)
        padding = conv.pads(rank - 2)
        window = f"the filter w {w_shape}"
        image = slid(x_shape[2:], window, w_shape[2:], padding, stride, dilation)
        return (x_shape[0], w_shape[0], *image)

    def transposed_output_shape(
        self,
        x_shape: tuple[int, ...],
        w_shape: tuple[int, ...],
        output_padding: int | Iterable[int] = 0,
    ) -> tuple[int, ...]:
        """Return the shape of `convolution_transpose`'s result.

        That is ``(N, C, *spatial)`` for images ``(N, K, *spatial)`` and a filter ``(K, C / groups,
        *taps)``: the images that a convolution maps to the size of x, of which `output_padding`
        chooses one.

        Raises
        ------
        ArgumentError
            The ranks differ or are not 3 to 5, the channels do not match, the padding cuts off all
            of the result, or an output padding is too large.
        """
        x_shape, w_shape = parse_shape(x_shape, "x_shape"), parse_shape(w_shape, "w_shape")
        rank = len(x_shape)
        if len(w_shape) != rank or not 3 <= rank <= 5 or x_shape[1] != w_shape[0]:
            raise ArgumentError(
                f"x_shape={x_shape}, w_shape={w_shape}; needed: (N, K, *spatial) and (K, C / "
                "groups, *taps) of the same rank 3, 4 or 5"
            )
        channels = w_shape[1] * self.groups
        if self.padding == SAME:
            return (x_shape[0], channels, *self._same_transposed_sizes(x_shape, output_padding))
        _, strides, dilations = self.steps(rank - 2)
        extras = self._output_paddings(output_padding, rank - 2)
        axes = zip(
            x_shape[2:], w_shape[2:], self.pads(rank - 2), strides, dilations, extras, strict=True
        )
        sizes = [
            (size - 1) * stride - sum(padding) + dilation * (taps - 1) + extra + 1
            for size, taps, padding, stride, dilation, extra in axes
        ]
        if min(sizes) < 1:
            raise ArgumentError(
                f"padding={self.padding} cuts off all of the result "
                f"of x {x_shape} and w {w_shape}: {sizes}"
            )
        return (x_shape[0], channels, *sizes)

    def _same_transposed_sizes(self, x_shape: tuple[int, ...], output_padding: Any) -> list[int]:
        """Return the largest images whose convolution with "same" padding has the size of x."""
        if output_padding != 0:
            raise ArgumentError(
                f"output_padding={shown(output_padding)}; allowed with padding={SAME!r}: 0, "
                "for the result has the size of x times the stride"
            )
        strides = self._per_axis("stride", len(x_shape) - 2)
        return [size * stride for size, stride in zip(x_shape[2:], strides, strict=True)]

    def with_output_padding(self, output_padding: Any, spatial_rank: int) -> ConvolutionSpec:
        """Return the spec of the convolution that maps a transposed result to the size of x.

        An output padding of the stride or more keeps what the padding behind an axis cuts off
        otherwise: there is less of this padding then.

        Raises
        ------
        ArgumentError
            An output padding is too large.
        """
        if self.padding == SAME:
            return self
        extras = self._output_paddings(output_padding, spatial_rank)
        _, strides, _ = self.steps(spatial_rank)
        kept = [max(0, extra - stride + 1) for extra, stride in zip(extras, strides, strict=True)]
        if not any(kept):
            return self
        pads = zip(self.pads(spatial_rank), kept, strict=True)
        return self.replace(
            padding=[(before, behind - pixels) for (before, behind), pixels in pads]
        )

    def _output_paddings(self, output_padding: Any, spatial_rank: int) -> tuple[int, ...]:
        """Return the output padding of each spatial axis."""
        extras = parse_steps(output_padding, "output_padding", 0)
        if not isinstance(extras, tuple):
            extras = (extras,) * spatial_rank
        _, strides, dilations = self.steps(spatial_rank)
        # Behind the padding there would be zeros, for which cuDNN has no convolution.
        most = [
            min(max(stride, dilation), stride + behind) - 1
            for stride, dilation, (_, behind) in zip(
                strides, dilations, self.pads(spatial_rank), strict=True
            )
        ]
        is_small = len(extras) == len(most) and all(
            extra <= limit for extra, limit in zip(extras, most, strict=True)
        )
        if not is_small:
            raise ArgumentError(
                f"output_padding={shown(output_padding)}; allowed with stride={self.stride}, "
                f"dilation={self.dilation} and padding={self.padding}: 0 to {tuple(most)} along the "
                "spatial axes"
            )
        return extras

    def _check_channels(self, x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> None:
        """Raise ArgumentError if the channels of x, w and the groups do not match.

        The message considers that x, or both x and w, may have been given with their channels last.
        """
        channels = x_shape[1]
        filters, group_channels = w_shape[:2]
        remedy = ""
        if channels % self.groups or filters % self.groups:
            problem = (
                f"groups={self.groups} does not divide the channels of x ({channels}) "
                f"and of w ({filters}, axis 0)"
            )
        elif group_channels * self.groups != channels:
            problem = (
                f"w {w_shape} takes {group_channels} channels in each of groups={self.groups}, "
                f"x {x_shape} has {channels}"
            )
            remedy = f"w's axis 1 must be {channels // self.groups}"
        else:
            return
        needed_by_w = group_channels * self.groups
        needed_by_w_channels_last = w_shape[-1] * self.groups
        matches = (needed_by_w, needed_by_w_channels_last)
        if x_shape[-1] in matches and channels not in matches:
            problem += channels_last_hint(len(x_shape))
            if x_shape[-1] != needed_by_w:
                problem += ", and w likewise"
            if remedy:
                remedy = f"otherwise {remedy}"
        if remedy:
            problem += f"; {remedy}"
        raise ArgumentError(problem)

    def output_spec(
        self, x: TensorSpec, w: FilterSpec, *, dtype: AnyDtype | None = None
    ) -> TensorSpec:
        """Return the output's spec: the input's dtype (or `dtype`) and the input's layout, packed.

        Raises
        ------
        ArgumentError
            As in `output_shape`; also where the dtypes of x and w differ, or cuDNN convolves none
            such.
        """
        instance_of(x, TensorSpec, "x"), instance_of(w, FilterSpec, "w")
        shape = self.output_shape(x.shape, w.shape)
        if x.dtype != w.dtype or x.dtype not in _DTYPES:
            raise ArgumentError(
                f"x is {dtype_name(x.dtype)}, w is {dtype_name(w.dtype)}; "
                f"{_remedy_of_dtypes(x.dtype, w.dtype)}"
            )
        kind = x.dtype if dtype is None else parse_dtype(dtype)
        if kind != x.dtype and x.vector > 1:
            return TensorSpec(shape, kind, CHANNELS_FIRST[4])
        return x.packed(shape, kind)


def _remedy_of_dtypes(x: DataType, w: DataType) -> str:
    """Return which data types a convolution has, and the conversion of one of its operands."""
    if x == w:
        return f"{_allowed_dtypes()}; {_conversion('x', DataType.FLOAT)}"
    if w not in _DTYPES:
        return f"{_allowed_dtypes()}; {_conversion('w', x)}"
    # float64 is what NumPy makes by default, so the user hardly meant it.
    if w == DataType.DOUBLE and x in _DTYPES:
        return f"they must have the same dtype; {_conversion('w', x)}"
    return f"they must have the same dtype; {_conversion('x', w)}"


def _allowed_dtypes() -> str:
    return f"allowed: {', '.join(map(dtype_name, _DTYPES))}"


def _conversion(name: str, dtype: DataType) -> str:
    """Return how an operand is converted: to float32 if no convolution has the data type."""
    target = dtype if dtype in _DTYPES else DataType.FLOAT
    return f"handle.array({name}, dtype={dtype_name(target)!r}) converts"
