"""The descriptors of a convolution: each owns one native object, is made from a spec, and reads itself back.

Descriptors need no device: they belong to the process-wide libcudnn and serve every handle.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.types import cudnnConvolutionDescriptor_t, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t
from cudnnlite.dtypes import dtype_name, vector_length
from cudnnlite.enums import ConvolutionMode, DataType, MathType, ReorderType, TensorFormat, parse_math_type
from cudnnlite.errors import ArgumentError
from cudnnlite.native import NativeObject
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST, MAX_INT, MAX_RANK, MAX_SPATIAL_RANK, VECT_C, span
from cudnnlite.specs.tensor import tensor_spec_of


def read_tensor_spec(api: CudnnApi, native: Any) -> TensorSpec:
    """Read a `cudnnTensorDescriptor_t` back (`cudnnGetTensorNdDescriptor`)."""
    dtype, rank = ctypes.c_int(), ctypes.c_int()
    dims, strides = _ints([0] * MAX_RANK), _ints([0] * MAX_RANK)
    api.cudnnGetTensorNdDescriptor(native, MAX_RANK, dtype, rank, dims, strides)
    kind, shape = DataType(dtype.value), tuple(dims[: rank.value])
    if vector_length(kind) > 1:
        return TensorSpec(shape, kind, VECT_C)
    return TensorSpec(shape, kind, strides=strides[: rank.value])


def read_filter_spec(api: CudnnApi, native: Any) -> FilterSpec:
    """Read a `cudnnFilterDescriptor_t` back (`cudnnGetFilterNdDescriptor`)."""
    dtype, layout, rank = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    dims = _ints([0] * MAX_RANK)
    api.cudnnGetFilterNdDescriptor(native, MAX_RANK, dtype, layout, rank, dims)
    names = {TensorFormat.NHWC: CHANNELS_LAST, TensorFormat.NCHW_VECT_C: {4: VECT_C}}
    name = names.get(TensorFormat(layout.value), CHANNELS_FIRST).get(rank.value)
    return FilterSpec(dims[: rank.value], DataType(dtype.value), name)


def read_convolution_spec(api: CudnnApi, native: Any) -> ConvolutionSpec:
    """Read a `cudnnConvolutionDescriptor_t` back (`cudnnGetConvolutionNdDescriptor` and its companions)."""
    rank, mode, compute = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    groups, math, reorder = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    padding, stride, dilation = (_ints([0] * MAX_SPATIAL_RANK) for _ in range(3))
    api.cudnnGetConvolutionNdDescriptor(native, MAX_SPATIAL_RANK, rank, padding, stride, dilation, mode, compute)
    api.cudnnGetConvolutionGroupCount(native, groups)
    api.cudnnGetConvolutionMathType(native, math)
    api.cudnnGetConvolutionReorderType(native, reorder)
    return ConvolutionSpec(
        padding[: rank.value],
        stride[: rank.value],
        dilation[: rank.value],
        groups.value,
        mode=ConvolutionMode(mode.value),
        compute_type=DataType(compute.value),
        math_type=MathType(math.value),
        reorder_type=ReorderType(reorder.value),
    )


def _ints(values: Iterable[int]) -> Any:
    numbers = tuple(values)
    return (ctypes.c_int * len(numbers))(*numbers)


class TensorDescriptor(NativeObject):
    """A `cudnnTensorDescriptor_t`.

    Parameters
    ----------
    shape : iterable of int or TensorSpec
        ``(N, C, *spatial)``, whatever the layout; or a whole spec.
    dtype, layout, strides
        As in `TensorSpec`.

    Raises
    ------
    ArgumentError
        As in `TensorSpec`; also for an empty batch and for 2^31 values or more, which cuDNN's descriptors cannot express.
    CudnnError
        cuDNN refused the description.

    Notes
    -----
    C functions: `cudnnCreateTensorDescriptor`, `cudnnSetTensorNdDescriptor` (`cudnnSetTensorNdDescriptorEx` for
    NCHW_VECT_C), `cudnnGetTensorNdDescriptor`, `cudnnDestroyTensorDescriptor`.
    """

    _type = cudnnTensorDescriptor_t
    _create = "cudnnCreateTensorDescriptor"
    _destroy = "cudnnDestroyTensorDescriptor"

    def __init__(
        self,
        shape: Iterable[int] | TensorSpec,
        dtype: Any = None,
        layout: str | None = None,
        *,
        strides: Iterable[int] | None = None,
    ) -> None:
        spec = tensor_spec_of(shape, dtype, layout, strides)
        check_describable(spec, "shape")
        super().__init__(spec)

    def _set(self, spec: TensorSpec) -> None:
        dims, strides = spec.native()
        if spec.vector > 1:
            self.api.cudnnSetTensorNdDescriptorEx(
                self.ptr, TensorFormat.NCHW_VECT_C, spec.dtype, len(dims), _ints(dims)
            )
        else:
            self.api.cudnnSetTensorNdDescriptor(self.ptr, spec.dtype, len(dims), _ints(dims), _ints(strides))

    def read_back(self) -> TensorSpec:
        """Return what cuDNN holds, at the rank that cuDNN was told (`cudnnGetTensorNdDescriptor`)."""
        return read_tensor_spec(self.api, self.ptr)

    @property
    def nbytes(self) -> int:
        """The bytes that a buffer must hold, by cuDNN's own reckoning (`cudnnGetTensorSizeInBytes`)."""
        size = ctypes.c_size_t()
        self.api.cudnnGetTensorSizeInBytes(self.ptr, size)
        return size.value


class FilterDescriptor(NativeObject):
    """A `cudnnFilterDescriptor_t`.

    Parameters
    ----------
    shape : iterable of int or FilterSpec
        ``(K, C / groups, *taps)``, whatever the layout; or a whole spec.
    dtype, layout
        As in `FilterSpec`.

    Raises
    ------
    ArgumentError
        As in `FilterSpec`; also for 2^31 values or more.
    CudnnError
        cuDNN refused the description.

    Notes
    -----
    C functions: `cudnnCreateFilterDescriptor`, `cudnnSetFilterNdDescriptor`, `cudnnGetFilterNdDescriptor`,
    `cudnnDestroyFilterDescriptor`.
    """

    _type = cudnnFilterDescriptor_t
    _create = "cudnnCreateFilterDescriptor"
    _destroy = "cudnnDestroyFilterDescriptor"

    def __init__(self, shape: Iterable[int] | FilterSpec, dtype: Any = None, layout: str | None = None) -> None:
        if not isinstance(shape, FilterSpec):
            spec = FilterSpec(shape, "float32" if dtype is None else dtype, layout)
        elif dtype is None and layout is None:
            spec = shape
        else:
            raise ArgumentError(
                f"dtype={dtype!r} and layout={layout!r} beside a whole spec, {shape}, which has its own"
            )
        check_describable(spec, "shape")
        super().__init__(spec)

    def _set(self, spec: FilterSpec) -> None:
        dims = spec.native()
        self.api.cudnnSetFilterNdDescriptor(self.ptr, spec.dtype, spec.format, len(dims), _ints(dims))

    def read_back(self) -> FilterSpec:
        """Return what cuDNN holds, at the rank that cuDNN was told (`cudnnGetFilterNdDescriptor`)."""
        return read_filter_spec(self.api, self.ptr)

    @property
    def nbytes(self) -> int:
        """The bytes of the filter, by cuDNN's own reckoning (`cudnnGetFilterSizeInBytes`)."""
        size = ctypes.c_size_t()
        self.api.cudnnGetFilterSizeInBytes(self.ptr, size)
        return size.value


class ConvolutionDescriptor(NativeObject):
    """A `cudnnConvolutionDescriptor_t`.

    Parameters
    ----------
    padding, stride, dilation, groups, mode, compute_type, math_type, reorder_type
        As in `ConvolutionSpec`; `padding` may be a whole spec.  The compute type is float32 if not given.
    spatial_rank : int, optional
        The number of spatial axes, where padding, stride and dilation are plain numbers; 2 if not given.  A 1-D
        convolution is told to cuDNN, which has none, as a 2-D one over images one pixel high.

    Raises
    ------
    ArgumentError
        As in `ConvolutionSpec`.
    CudnnError
        cuDNN refused the description.

    Notes
    -----
    C functions: `cudnnCreateConvolutionDescriptor`, `cudnnSetConvolutionNdDescriptor`, `cudnnSetConvolutionGroupCount`,
    `cudnnSetConvolutionMathType`, `cudnnSetConvolutionReorderType`, and the `Get` of each.
    """

    _type = cudnnConvolutionDescriptor_t
    _create = "cudnnCreateConvolutionDescriptor"
    _destroy = "cudnnDestroyConvolutionDescriptor"

    def __init__(
        self,
        padding: int | Iterable[int] | ConvolutionSpec = 0,
        stride: int | Iterable[int] = 1,
        dilation: int | Iterable[int] = 1,
        groups: int = 1,
        *,
        spatial_rank: int | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(padding, ConvolutionSpec):
            spec = ConvolutionSpec(padding, stride, dilation, groups, **options)
        elif (stride, dilation, groups, options) == (1, 1, 1, {}):
            spec = padding
        else:
            raise ArgumentError(f"stride, dilation, groups or options are given beside a whole spec, {padding}")
        self._spatial_rank = spec.spatial_rank or 2 if spatial_rank is None else spatial_rank
        if self._spatial_rank not in range(1, MAX_SPATIAL_RANK + 1):
            raise ArgumentError(f"spatial_rank={spatial_rank!r}; allowed: 1 to {MAX_SPATIAL_RANK}")
        spec.steps(self._spatial_rank)
        super().__init__(spec if spec.compute_type is not None else spec.replace(compute_type=DataType.FLOAT))

    def _set(self, spec: ConvolutionSpec) -> None:
        padding, stride, dilation = spec.steps(self._spatial_rank)
        if self._spatial_rank == 1:  # one pixel high
            padding, stride, dilation = (0, *padding), (1, *stride), (1, *dilation)
        assert spec.compute_type is not None
        self.api.cudnnSetConvolutionNdDescriptor(
            self.ptr, len(padding), _ints(padding), _ints(stride), _ints(dilation), spec.mode, spec.compute_type
        )
        self.api.cudnnSetConvolutionGroupCount(self.ptr, spec.groups)
        self.api.cudnnSetConvolutionMathType(self.ptr, spec.math_type)
        self.api.cudnnSetConvolutionReorderType(self.ptr, spec.reorder_type)

    def set_math_type(self, math_type: MathType | str) -> None:
        """Change the math type of the native object in place (`cudnnSetConvolutionMathType`)."""
        kind = parse_math_type(math_type)
        self.api.cudnnSetConvolutionMathType(self.ptr, kind)
        self._spec = self._spec.replace(math_type=kind)

    def read_back(self) -> ConvolutionSpec:
        """Return what cuDNN holds (`cudnnGetConvolutionNdDescriptor` and its companions)."""
        return read_convolution_spec(self.api, self.ptr)

    def output_shape(self, x: TensorDescriptor, w: FilterDescriptor) -> tuple[int, ...]:
        """Return the output's shape as cuDNN computes it (`cudnnGetConvolutionNdForwardOutputDim`).

        A 1-D convolution's is of rank 3 again.  For a spec's own answer, see `ConvolutionSpec.output_shape`.
        """
        for argument, given, kind in (("x", x, TensorDescriptor), ("w", w, FilterDescriptor)):
            if not isinstance(given, kind):
                raise ArgumentError(
                    f"{argument}={given!r} is not a {kind.__name__}; shapes go to ConvolutionSpec.output_shape"
                )
        rank = len(x.spec.native()[0])
        dims = _ints([0] * rank)
        self.api.cudnnGetConvolutionNdForwardOutputDim(self.ptr, x.ptr, w.ptr, rank, dims)
        shape = tuple(dims)
        return (*shape[:2], shape[3]) if x.spec.rank == 3 else shape


def check_describable(spec: TensorSpec | FilterSpec, argument: str) -> None:
    """Raise ArgumentError for what a spec may be but no descriptor can: an empty batch, or 2^31 values or more.

    cuDNN would refuse the latter too, with NOT_SUPPORTED and without a word.
    """
    if spec.size == 0:
        raise ArgumentError(f"{argument}={spec} is empty; cuDNN has no descriptor for that")
    values = max(spec.size, span(spec.shape, spec.strides) if isinstance(spec, TensorSpec) else 0)
    if values > MAX_INT:
        raise ArgumentError(
            f"{argument}={spec} spans {values:,} values of {dtype_name(spec.dtype)}; cuDNN's descriptors end at {MAX_INT:,}"
        )
