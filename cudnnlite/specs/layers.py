"""The specs of layers: which function, window, order or probability."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from cudnnlite._raw.enums import FoldingDirection, ReduceTensorIndices
from cudnnlite.arguments import instance_of, integer, one_of, real_number, sequence, shown
from cudnnlite.dtypes import AnyDtype, dtype_name, parse_dtype
from cudnnlite.enums import (
    ActivationMode,
    CTCGradMode,
    DataType,
    LossNormalizationMode,
    NanPropagation,
    OpTensorOp,
    PoolingMode,
    ReduceTensorOp,
    TensorFormat,
    parse_enum,
)
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.frozen import FrozenSpec
from cudnnlite.specs.layout import CHANNELS_LAST, channels_last_hint, parse_layout, parse_shape
from cudnnlite.specs.names import ActivationModeName, PoolingModeName
from cudnnlite.specs.steps import (
    SAME,
    AnySteps,
    Padding,
    SpatialSpec,
    Steps,
    pads_of,
    pads_with_last_window,
    parse_padding,
    parse_steps,
    same_padding,
    slid,
)
from cudnnlite.specs.tensor import TensorSpec

_SAMPLED = (DataType.FLOAT, DataType.DOUBLE, DataType.HALF)  # an H200 refuses bfloat16


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ActivationSpec(
    FrozenSpec, c_functions="cudnnSetActivationDescriptor cudnnSetActivationDescriptorSwishBeta"
):
    """A function of each value by itself: a frozen value, compared and hashed by its fields.

    Parameters
    ----------
    mode : ActivationMode or str
        "sigmoid", "relu", "tanh", "clipped_relu", "elu", "swish" or "identity" (which cuDNN has in
        fused convolutions only).
    coef : float, optional
        The upper limit of "clipped_relu", the alpha of "elu", the beta of "swish"; 1 if not given.
        The others have none.
    nan : NanPropagation or str
        Whether the relu of a NaN is a NaN: "propagate" or "not_propagate".

    Examples
    --------
    >>> dnn.ActivationSpec("clipped_relu", 6)
    ActivationSpec(mode='CLIPPED_RELU', coef=6.0)
    """

    mode: ActivationMode
    coef: float
    nan: NanPropagation
    named_by = ActivationMode

    def __init__(
        self,
        mode: ActivationMode | ActivationModeName,
        coef: float | None = None,
        *,
        nan: NanPropagation | str = NanPropagation.PROPAGATE,
    ) -> None:
        kind = parse_enum(ActivationMode, mode, "mode")
        propagation = parse_enum(NanPropagation, nan, "nan")
        has_coef = kind in (ActivationMode.CLIPPED_RELU, ActivationMode.ELU, ActivationMode.SWISH)
        if coef is None:
            number = 1.0 if has_coef else 0.0
        else:
            number = real_number(coef, "coef")
        if number and not has_coef:
            raise ArgumentError(
                f"coef={shown(coef)} with mode={kind.name}; allowed: 0, it has no coefficient"
            )
        self._freeze(mode=kind, coef=number, nan=propagation)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class DropoutSpec(FrozenSpec):
    """Dropout probability: a frozen value.

    The state of the random numbers is part of it, by its identity, but is no field: files and
    copies do not have it.
    """

    dropout: float

    def __init__(self, dropout: float, state: Any = None) -> None:
        self._freeze(dropout=parse_probability(dropout), state=state)


def parse_probability(value: Any, argument: str = "dropout") -> float:
    """Return a probability of dropping values; ArgumentError if it is none."""
    number = -1.0 if isinstance(value, (bool, str)) else real_number(value, argument)
    if 0 <= number <= 1:
        return number
    raise ArgumentError(f"{argument}={shown(value)}; allowed: a probability from 0 to 1")


@dataclass(frozen=True, init=False, repr=False, eq=False)
class LRNSpec(FrozenSpec, c_functions="cudnnSetLRNDescriptor"):
    """Local response normalisation: a frozen value, compared and hashed by its fields.

    ``y = x / (k + alpha / n * sum(x ** 2)) ** beta``, the sum over `n` channels.

    Parameters
    ----------
    n : int
        How many channels, 1 to 16: ``(n - 1) // 2`` before, the others behind.  Of divisive
        normalisation: how many positions along each spatial axis, and the sum is divided by n once
        for each of those axes.
    alpha, beta, k : float
        As above; cuDNN wants `beta` from 0.01 and `k` from 1e-5 on.

    Examples
    --------
    >>> dnn.LRNSpec(3, k=1)
    LRNSpec(n=3, k=1.0)
    """

    n: int
    alpha: float
    beta: float
    k: float

    def __init__(self, n: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 2.0) -> None:
        self._freeze(
            n=integer(n, "n", 1, 16),  # CUDNN_LRN_MAX_N
            alpha=real_number(alpha, "alpha"),
            beta=_parse_from(beta, "beta", 0.01),  # CUDNN_LRN_MIN_BETA
            k=_parse_from(k, "k", 1e-5),  # CUDNN_LRN_MIN_K
        )


def _parse_from(value: Any, argument: str, smallest: float) -> float:
    """Return a real number that is not smaller than a limit, and not NaN."""
    number = real_number(value, argument)
    if not number >= smallest:
        raise ArgumentError(f"{argument}={shown(value)}; allowed: from {smallest} on")
    return number


@dataclass(frozen=True, init=False, repr=False, eq=False)
class OpTensorSpec(FrozenSpec, c_functions="cudnnSetOpTensorDescriptor"):
    """An operation on two values: a frozen value, compared and hashed by its fields.

    Parameters
    ----------
    op : OpTensorOp or str
        "add", "mul", "min", "max", "sqrt" or "not".
    nan : NanPropagation or str
        Whether the minimum or maximum of a number and a NaN is a NaN: "propagate" or
        "not_propagate".
    compute_type : DataType or str
        The type of the computation: float32; an operation on float64 operands sets it to float64.

    Examples
    --------
    >>> dnn.specs.OpTensorSpec("max", nan="not_propagate")
    OpTensorSpec(op='MAX', nan='NOT_PROPAGATE')
    """

    op: OpTensorOp
    nan: NanPropagation
    compute_type: DataType
    named_by = OpTensorOp

    def __init__(
        self,
        op: OpTensorOp | str,
        *,
        nan: NanPropagation | str = NanPropagation.PROPAGATE,
        compute_type: AnyDtype = DataType.FLOAT,
    ) -> None:
        kind, propagation = parse_enum(OpTensorOp, op, "op"), parse_enum(NanPropagation, nan, "nan")
        self._freeze(
            op=kind, nan=propagation, compute_type=parse_dtype(compute_type, "compute_type")
        )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ReduceTensorSpec(FrozenSpec, c_functions="cudnnSetReduceTensorDescriptor"):
    """A reduction of many values: a frozen value, compared and hashed by its fields.

    Parameters
    ----------
    op : ReduceTensorOp or str
        "add", "mul", "min", "max", "amax" (the largest absolute value), "avg", "norm1", "norm2" or
        "mul_no_zeros".
    nan : NanPropagation or str
        Whether a NaN makes the minimum or maximum one: "propagate" or "not_propagate".
    compute_type : DataType or str
        The type of the computation: float32; an operation on float64 operands sets it to float64.
    indices : ReduceTensorIndices or str
        "flattened" to get the index of the minimum or maximum too, as `reduce_tensor(...,
        indices=True)` does; otherwise "no".

    Examples
    --------
    >>> dnn.specs.ReduceTensorSpec("norm2").op
    <ReduceTensorOp.NORM2: 7>
    """

    op: ReduceTensorOp
    nan: NanPropagation
    compute_type: DataType
    indices: ReduceTensorIndices
    named_by = ReduceTensorOp

    def __init__(
        self,
        op: ReduceTensorOp | str,
        *,
        nan: NanPropagation | str = NanPropagation.PROPAGATE,
        compute_type: AnyDtype = DataType.FLOAT,
        indices: ReduceTensorIndices | str = ReduceTensorIndices.NO,
    ) -> None:
        kind, propagation = (
            parse_enum(ReduceTensorOp, op, "op"),
            parse_enum(NanPropagation, nan, "nan"),
        )
        places = parse_enum(ReduceTensorIndices, indices, "indices")
        self._freeze(
            op=kind,
            nan=propagation,
            compute_type=parse_dtype(compute_type, "compute_type"),
            indices=places,
        )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class CTCLossSpec(FrozenSpec, c_functions="cudnnSetCTCLossDescriptor_v9"):
    """How a CTC loss is computed: a frozen value, compared and hashed by its fields.

    Parameters
    ----------
    normalization : LossNormalizationMode or str
        "softmax": the values are logits, which cuDNN normalises; "none": they are probabilities
        already.
    grad_mode : CTCGradMode or str
        The gradients beyond the end of an input: "zero_oob" writes zeros, "skip_oob" leaves them as
        they are.
    max_label_length : int
        The length of the longest label that a call may have; 0 for the longest label of the call,
        which is known only if the labels are on the host.
    compute_type : DataType or str, optional
        The type of the computation and of the costs; the type of the logits if not given.  cuDNN
        9.19 takes no other.

    Examples
    --------
    >>> dnn.CTCLossSpec(normalization="none")
    CTCLossSpec(normalization='NONE')
    """

    normalization: LossNormalizationMode
    grad_mode: CTCGradMode
    max_label_length: int
    compute_type: DataType | None

    def __init__(
        self,
        normalization: LossNormalizationMode | str = LossNormalizationMode.SOFTMAX,
        grad_mode: CTCGradMode | str = CTCGradMode.ZERO_OOB,
        max_label_length: int = 0,
        compute_type: AnyDtype | None = None,
    ) -> None:
        self._freeze(
            normalization=parse_enum(LossNormalizationMode, normalization, "normalization"),
            grad_mode=parse_enum(CTCGradMode, grad_mode, "grad_mode"),
            max_label_length=integer(max_label_length, "max_label_length", 0),
            compute_type=None
            if compute_type is None
            else parse_dtype(compute_type, "compute_type"),
        )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class PoolingSpec(SpatialSpec, c_functions="cudnnSetPoolingNdDescriptor"):
    """How images are pooled: a frozen value, compared and hashed by its fields.

    Parameters
    ----------
    window, padding, stride : int or iterable of int
        One number for every spatial axis, or one for each.  Padding and stride are keywords,
        because libraries differ in their order.  Padding is added on both sides, is smaller than
        the window, and is never the maximum.  A pair of numbers pads an axis before and behind it:
        ``padding=((0, 1), 2)``.  With "same", the size of the result is that of the image divided
        by the stride, rounded up, and an odd pixel is behind.  The stride is the window's size if
        not given; `replace` with another window keeps it.
    mode : PoolingMode or str
        "max", "max_deterministic", "average_count_include_padding" or
        "average_count_exclude_padding".
    nan : NanPropagation or str
        Whether the maximum of a window with a NaN is a NaN: "propagate" or "not_propagate".
    ceil_mode : bool
        Whether a last window that reaches beyond the end of an axis gives a value, too; positions
        beyond the padding are not counted.  A window that begins behind the image gives none.

    Examples
    --------
    >>> dnn.PoolingSpec(3, padding=1, stride=2).output_spec(dnn.TensorSpec((1, 64, 112, 112))).shape
    (1, 64, 56, 56)
    >>> dnn.PoolingSpec(2, ceil_mode=True).for_shapes((1, 64, 7, 8)).padding
    ((0, 1), 0)
    """

    window: Steps
    padding: Padding
    stride: Steps
    mode: PoolingMode
    nan: NanPropagation
    ceil_mode: bool
    _stepped = ("window", "padding", "stride")

    def __init__(
        self,
        window: AnySteps,
        *,
        padding: int | str | Iterable[Any] = 0,
        stride: AnySteps | None = None,
        mode: PoolingMode | PoolingModeName = PoolingMode.MAX,
        nan: NanPropagation | str = NanPropagation.PROPAGATE,
        ceil_mode: bool = False,
    ) -> None:
        taps, pads = parse_steps(window, "window", 1), parse_padding(padding)
        self._freeze(
            window=taps,
            padding=pads,
            stride=taps if stride is None else parse_steps(stride, "stride", 1),
            mode=parse_enum(PoolingMode, mode, "mode"),
            nan=parse_enum(NanPropagation, nan, "nan"),
            ceil_mode=one_of(ceil_mode, "ceil_mode", True, False),
        )
        rank = self.spatial_rank or 1  # raises if the lengths disagree
        if pads == SAME:
            return
        sizes = self._per_axis("window", rank)
        if any(max(ends) >= size for ends, size in zip(self.pads(rank), sizes, strict=True)):
            raise ArgumentError(
                f"padding={shown(padding)} must be smaller than window={shown(window)}: "
                "it would hold no value"
            )

    @property
    def is_symmetric(self) -> bool:
        """Whether every axis is padded alike on both of its sides, whatever the image."""
        if self.ceil_mode:
            return False
        return isinstance(self.padding, int) or all(isinstance(axis, int) for axis in self.padding)

    def steps(self, spatial_rank: int) -> tuple[tuple[int, ...], ...]:
        """Return window, padding and stride with one number for each of `spatial_rank` axes.

        The padding is what is before an axis; `pads` has both sides.

        Raises
        ------
        ArgumentError
            The spec's own tuples have another length, or the padding depends on the image.
        """
        window, _, stride = super().steps(spatial_rank)
        return window, tuple(before for before, _ in self.pads(spatial_rank)), stride

    def pads(self, spatial_rank: int) -> tuple[tuple[int, int], ...]:
        """Return the padding before and behind each axis; ArgumentError as `steps`."""
        return pads_of(super().steps(spatial_rank)[1])

    def for_shapes(self, x_shape: tuple[int, ...]) -> PoolingSpec:
        """Return the spec for images of a shape: "same" and `ceil_mode` as numbers of padding.

        The padding is the same at both ends of an axis where that gives the same values.

        Raises
        ------
        ArgumentError
            An average would count what `ceil_mode` adds behind padding.
        """
        if self.is_symmetric:
            return self
        rank = len(x_shape) - 2
        taps, strides = self._per_axis("window", rank), self._per_axis("stride", rank)
        sizes = x_shape[2:]
        if self.padding == SAME:
            pads = [*map(same_padding, sizes, taps, strides)]
        else:
            pads = [*self.pads(rank)]
        ends = pads
        if self.ceil_mode:
            ends = [*map(pads_with_last_window, sizes, taps, pads, strides)]
        counts_padding = self.mode == PoolingMode.AVERAGE_COUNT_INCLUDE_PADDING
        mode = self.mode
        if ends != pads and counts_padding:
            if any(map(any, pads)):
                raise ArgumentError(
                    f"pooling={self}: a last window reaches beyond the padding of x {x_shape}, "
                    "which cuDNN would count in its average; allowed: "
                    "mode='average_count_exclude_padding', or no padding"
                )
            mode = PoolingMode.AVERAGE_COUNT_EXCLUDE_PADDING
        padding = [*map(_shortest_pads, sizes, taps, ends, strides)]
        return self.replace(padding=padding, mode=mode, ceil_mode=False)

    @classmethod
    def whole(
        cls,
        x: Any,
        *,
        mode: PoolingMode | PoolingModeName = PoolingMode.AVERAGE_COUNT_INCLUDE_PADDING,
        nan: NanPropagation | str = NanPropagation.PROPAGATE,
    ) -> PoolingSpec:
        """Return the pooling over the whole image, to one value for each channel.

        The image is a spec, or an array that has one.

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
        """Return the output's spec: packed, in the dtype and layout of `x`.

        The channels are first if `x` has gaps.

        ArgumentError if no window fits.
        """
        if not 3 <= instance_of(x, TensorSpec, "x").rank <= 5:
            raise ArgumentError(f"x={x}: it must be (N, C, *spatial), of rank 3, 4 or 5")
        pooling = self.for_shapes(x.shape)
        window, _, stride = pooling.steps(x.rank - 2)
        padding = pooling.pads(x.rank - 2)
        try:
            pooled = slid(x.shape[2:], "the window", window, padding, stride, (1,) * len(window))
        except ArgumentError as error:
            fits = all(
                n + sum(pad) >= taps
                for n, pad, taps in zip(x.shape[1:-1], padding, window, strict=True)
            )
            raise ArgumentError(f"{error}{channels_last_hint(x.rank) * fits}") from None
        return x.packed((*x.shape[:2], *pooled))

    def flat_indices(self, indices: Any, x_shape: Iterable[int]) -> Any:
        """Return where maxima are in their images, as PyTorch counts.

        Parameters
        ----------
        indices : array
            Places within windows, ``(N, C, *pooled)``: what `pooling_with_indices_forward`
            returned, a DeviceArray, which is copied to the host, or an array on the host.
        x_shape : iterable of int
            The shape of the images, ``(N, C, *spatial)``.

        Returns
        -------
        numpy.ndarray
            int64, shaped as `indices`: 0 is the first pixel of an image, counted row by row.

        Raises
        ------
        ArgumentError
            The shapes do not fit together, or an index is none of a window.
        """
        sizes = parse_shape(x_shape)
        expected = self.output_spec(TensorSpec(sizes)).shape
        places = np.asarray(indices.numpy() if hasattr(indices, "numpy") else indices)
        if places.shape != expected or places.dtype.kind not in "iu":
            raise ArgumentError(
                f"indices is {places.dtype} of shape {places.shape}; needed: integers of shape "
                f"{expected}"
            )
        spatial = len(sizes) - 2
        pooling = self.for_shapes(sizes)
        window, before, stride = pooling.steps(spatial)
        if places.size and not 0 <= places.min() <= places.max() < prod(window):
            raise ArgumentError(
                f"indices has values from {places.min()} to {places.max()}; allowed: 0 to "
                f"{prod(window) - 1}, places of a window {window}"
            )
        taps = np.unravel_index(places.astype(np.int64), window)
        starts = np.ogrid[tuple(slice(size) for size in expected[2:])]
        pixels = [
            start * step - pad + tap
            for start, step, pad, tap in zip(starts, stride, before, taps, strict=True)
        ]
        # The maximum may be in the padding if all pixels of the window are -inf.
        return np.ravel_multi_index(pixels, sizes[2:], mode="clip")


def _shortest_pads(
    size: int, taps: int, pads: tuple[int, int], stride: int
) -> int | tuple[int, int]:
    """Return the padding as one number, if no window reaches the pixels that would differ."""
    before, behind = pads
    starts = (size + before + behind - taps) // stride
    if starts == (size + 2 * before - taps) // stride:
        return before
    return before, behind


@dataclass(frozen=True, init=False, repr=False, eq=False)
class SpatialTransformerSpec(FrozenSpec, c_functions="cudnnSetSpatialTransformerNdDescriptor"):
    """A spatial transformer's result: a frozen value, compared and hashed by its fields.

    Parameters
    ----------
    shape : iterable of int
        The shape of the result, ``(N, C, H, W)``: H by W points for each image.  cuDNN samples only
        2-D images, bilinearly.
    dtype : DataType or str
        The data type of all operands: float32, float64 or float16.  An operation sets it to the
        type of its operands.

    Examples
    --------
    >>> dnn.SpatialTransformerSpec((2, 3, 8, 8), "float16")
    SpatialTransformerSpec(shape=(2, 3, 8, 8), dtype='float16')
    """

    shape: tuple[int, ...]
    dtype: DataType

    def __init__(self, shape: Iterable[int], dtype: AnyDtype = DataType.FLOAT) -> None:
        sizes, kind = parse_shape(shape, batch_may_be_empty=False), parse_dtype(dtype)
        if (rank := len(sizes)) != 4:
            raise ArgumentError(
                f"shape={sizes} has rank {rank}; needed: "
                "(N, C, H, W), cuDNN samples 2-D images only"
            )
        if kind not in _SAMPLED:
            raise ArgumentError(
                f"dtype={dtype_name(kind)}; allowed: {', '.join(map(dtype_name, _SAMPLED))}"
            )
        self._freeze(shape=sizes, dtype=kind)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class TensorTransformSpec(FrozenSpec, c_functions="cudnnSetTensorTransformDescriptor"):
    """Padding, folding and a new layout for a tensor of rank 4 or 5.

    A frozen value, compared and hashed by its fields.

    Folding takes blocks of pixels apart: ``(N, C, H, W)`` becomes ``(N, f * g * C, H / f, W / g)``,
    of which channel ``(i * g + j) * C + c`` has row i and column j of each block of channel c.
    Unfolding is the way back.

    Parameters
    ----------
    padding : iterable of int or of pairs of int
        The number of zeros before and behind, for each axis of ``(N, C, *spatial)``.
    fold : iterable of int
        The size of the blocks along each spatial axis; empty: no folding.
    direction : FoldingDirection or str
        "fold", after the padding, or "unfold", without one.
    layout : str
        The layout of the result: "NCHW", "NHWC", "NCDHW" or "NDHWC".

    Examples
    --------
    >>> spec = dnn.specs.TensorTransformSpec((0, 0, (1, 2), 0), fold=(2, 3))
    >>> spec.output_shape((8, 3, 5, 6))
    (8, 18, 4, 2)
    """

    padding: tuple[tuple[int, int], ...]
    fold: tuple[int, ...]
    direction: FoldingDirection
    layout: str

    def __init__(
        self,
        padding: Iterable[Any],
        fold: Iterable[int] = (),
        direction: FoldingDirection | str = FoldingDirection.FOLD,
        layout: str | None = None,
    ) -> None:
        items = sequence(padding, "padding", "a sequence of numbers, one for each axis")
        sizes = sequence(fold, "fold", "a sequence of numbers, one for each spatial axis")
        blocks = tuple(integer(size, "fold", 1) for size in sizes)
        ends = _parse_ends(items)
        way = parse_enum(FoldingDirection, direction, "direction")
        rank = len(ends)
        if blocks and len(blocks) != rank - 2:
            raise ArgumentError(
                f"fold={shown(blocks)}; needed: a number for each of {rank - 2} spatial axes"
            )
        has_padding = any(max(pair) for pair in ends)
        if has_padding and way == FoldingDirection.UNFOLD:
            raise ArgumentError(f"padding={shown(padding)} with direction=UNFOLD; allowed: 0")
        self._freeze(padding=ends, fold=blocks, direction=way, layout=parse_layout(layout, rank))

    @property
    def format(self) -> TensorFormat:
        """The layout as cuDNN calls it."""
        return TensorFormat.NHWC if self.layout in CHANNELS_LAST.values() else TensorFormat.NCHW

    def output_shape(self, shape: tuple[int, ...], argument: str = "x") -> tuple[int, ...]:
        """Return the shape of the result; ArgumentError if the spec does not fit."""
        shape = parse_shape(shape, instance_of(argument, str, "argument"))
        rank = len(self.padding)
        if len(shape) != rank:
            raise ArgumentError(
                f"{argument} has shape {shape}; the transformation is one of {rank} axes: {self}"
            )
        padded = tuple(
            before + size + after for size, (before, after) in zip(shape, self.padding, strict=True)
        )
        if self.direction == FoldingDirection.UNFOLD:
            return self._unfolded(padded, argument)
        return self._folded(padded, argument)

    def _folded(self, shape: tuple[int, ...], argument: str) -> tuple[int, ...]:
        batch, channels, *image = shape
        blocks = self.fold or (1,) * len(image)
        if any(size % block for size, block in zip(image, blocks, strict=True)):
            raise ArgumentError(
                f"{argument} is padded to {shape}, which fold={self.fold} does not divide"
            )
        folded_image = (size // block for size, block in zip(image, blocks, strict=True))
        return (batch, channels * prod(blocks), *folded_image)

    def _unfolded(self, shape: tuple[int, ...], argument: str) -> tuple[int, ...]:
        batch, channels, *image = shape
        blocks = self.fold or (1,) * len(image)
        if channels % prod(blocks):
            raise ArgumentError(
                f"{argument} has {channels} channels, which fold={self.fold} does not divide"
            )
        unfolded_image = (size * block for size, block in zip(image, blocks, strict=True))
        return (batch, channels // prod(blocks), *unfolded_image)


def _parse_ends(items: tuple[Any, ...]) -> tuple[tuple[int, int], ...]:
    """Return the padding before and behind each axis of a tensor of rank 4 or 5."""
    pairs = [tuple(item) if isinstance(item, (tuple, list)) else (item, item) for item in items]
    if len(pairs) not in (4, 5) or any(len(pair) != 2 for pair in pairs):
        requirement = "a number, or a pair of them, for each of 4 or 5 axes"
        raise ArgumentError(f"padding={shown(items)}; needed: {requirement}")
    return tuple(
        (integer(before, "padding", 0), integer(behind, "padding", 0)) for before, behind in pairs
    )
