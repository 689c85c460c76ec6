"""`TensorDescriptor` and `FilterDescriptor`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.types import cudnnFilterDescriptor_t, cudnnTensorDescriptor_t
from cudnnlite.arguments import MAX_INT
from cudnnlite.descriptors.native import NativeObject, c_ints
from cudnnlite.dtypes import AnyDtype, dtype_name, vector_length
from cudnnlite.enums import DataType, TensorFormat
from cudnnlite.errors import ArgumentError
from cudnnlite.specs import FilterSpec, TensorSpec
from cudnnlite.specs.frozen import whole_or_made
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST, MAX_RANK, VECT_C, span
from cudnnlite.specs.tensor import tensor_spec_of


class TensorDescriptor(NativeObject[cudnnTensorDescriptor_t], describes=TensorSpec):
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
        As in `TensorSpec`; also for an empty batch and for 2^31 values or more, which cuDNN's
        descriptors cannot express.

    Examples
    --------
    >>> with dnn.TensorDescriptor((1, 3, 224, 224), "float16", "NHWC") as x_desc:
    ...     print(x_desc.read_back(), x_desc.nbytes)
    TensorSpec((1, 3, 224, 224), 'float16', 'NHWC') 301056
    """

    _setter, _getter = "cudnnSetTensorNdDescriptor", "cudnnGetTensorNdDescriptor"
    _other_functions = "cudnnSetTensorNdDescriptorEx", "cudnnGetTensorSizeInBytes"  # of NCHW_VECT_C

    def __init__(
        self,
        shape: Iterable[int] | TensorSpec,
        dtype: AnyDtype | None = None,
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
                self.ptr, TensorFormat.NCHW_VECT_C, spec.dtype, len(dims), c_ints(dims)
            )
        else:
            self.api.cudnnSetTensorNdDescriptor(
                self.ptr, spec.dtype, len(dims), c_ints(dims), c_ints(strides)
            )

    @staticmethod
    def read(api: CudnnApi, native: Any) -> TensorSpec:
        """Read a `cudnnTensorDescriptor_t` back (`cudnnGetTensorNdDescriptor`)."""
        dtype, rank = ctypes.c_int(), ctypes.c_int()
        dims, strides = c_ints([0] * MAX_RANK), c_ints([0] * MAX_RANK)
        api.cudnnGetTensorNdDescriptor(native, MAX_RANK, dtype, rank, dims, strides)
        kind, shape = DataType(dtype.value), tuple(dims[: rank.value])
        if vector_length(kind) > 1:
            return TensorSpec(shape, kind, VECT_C)
        return TensorSpec(shape, kind, strides=strides[: rank.value])

    @property
    def nbytes(self) -> int:
        """The bytes that a buffer must hold, as cuDNN counts them (`cudnnGetTensorSizeInBytes`)."""
        size = ctypes.c_size_t()
        self.api.cudnnGetTensorSizeInBytes(self.ptr, size)
        return size.value


class FilterDescriptor(NativeObject[cudnnFilterDescriptor_t], describes=FilterSpec):
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

    Examples
    --------
    >>> with dnn.FilterDescriptor((64, 3, 7, 7), "float16", "NHWC") as w_desc:
    ...     print(w_desc.read_back(), w_desc.nbytes)
    FilterSpec((64, 3, 7, 7), 'float16', 'NHWC') 18816
    """

    _setter, _getter = "cudnnSetFilterNdDescriptor", "cudnnGetFilterNdDescriptor"
    _other_functions = ("cudnnGetFilterSizeInBytes",)

    def __init__(
        self,
        shape: Iterable[int] | FilterSpec,
        dtype: AnyDtype | None = None,
        layout: str | None = None,
    ) -> None:
        spec = whole_or_made(FilterSpec, shape, dtype=dtype, layout=layout)
        check_describable(spec, "shape")
        super().__init__(spec)

    def _set(self, spec: FilterSpec) -> None:
        dims = spec.native()
        self.api.cudnnSetFilterNdDescriptor(
            self.ptr, spec.dtype, spec.format, len(dims), c_ints(dims)
        )

    @staticmethod
    def read(api: CudnnApi, native: Any) -> FilterSpec:
        """Read a `cudnnFilterDescriptor_t` back (`cudnnGetFilterNdDescriptor`)."""
        dtype, layout, rank = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        dims = c_ints([0] * MAX_RANK)
        api.cudnnGetFilterNdDescriptor(native, MAX_RANK, dtype, layout, rank, dims)
        names = {TensorFormat.NHWC: CHANNELS_LAST, TensorFormat.NCHW_VECT_C: {4: VECT_C}}
        name = names.get(TensorFormat(layout.value), CHANNELS_FIRST).get(rank.value)
        return FilterSpec(dims[: rank.value], DataType(dtype.value), name)

    @property
    def nbytes(self) -> int:
        """The bytes of the filter, as cuDNN counts them (`cudnnGetFilterSizeInBytes`)."""
        size = ctypes.c_size_t()
        self.api.cudnnGetFilterSizeInBytes(self.ptr, size)
        return size.value


def check_describable(spec: TensorSpec | FilterSpec, argument: str) -> None:
    """Raise ArgumentError for a spec without a descriptor: an empty batch, or 2^31 values or more.

    cuDNN refuses the latter too, with NOT_SUPPORTED and without a message.
    """
    if spec.size == 0:
        raise ArgumentError(f"{argument}={spec} is empty; cuDNN has no descriptor for that")
    values, largest_stride = spec.size, 0
    if isinstance(spec, TensorSpec):
        values = max(values, span(spec.shape, spec.strides))
        largest_stride = max(spec.strides)
    if values > MAX_INT:
        raise ArgumentError(
            f"{argument}={spec} spans {values:,} values of {dtype_name(spec.dtype)}; "
            f"cuDNN's descriptors end at {MAX_INT:,}; split the batch"
        )
    if largest_stride > MAX_INT:
        raise ArgumentError(
            f"{argument}={spec} has a stride of {largest_stride:,} on an axis of size 1; "
            f"cuDNN's descriptors end at {MAX_INT:,}"
        )
