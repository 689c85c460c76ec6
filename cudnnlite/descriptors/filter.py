"""`FilterDescriptor`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.types import cudnnFilterDescriptor_t
from cudnnlite.arguments import shown
from cudnnlite.descriptors.c_ints import c_ints
from cudnnlite.descriptors.native import NativeObject
from cudnnlite.descriptors.tensor import check_describable
from cudnnlite.enums import DataType, TensorFormat
from cudnnlite.errors import ArgumentError
from cudnnlite.specs import FilterSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST, MAX_RANK, VECT_C


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
    CudnnError
        cuDNN refused the description.

    Notes
    -----
    C functions: `cudnnCreateFilterDescriptor`, `cudnnSetFilterNdDescriptor`, `cudnnGetFilterNdDescriptor`,
    `cudnnDestroyFilterDescriptor`.

    Examples
    --------
    >>> with dnn.FilterDescriptor((64, 3, 7, 7), "float16", "NHWC") as w_desc:
    ...     print(w_desc.read_back(), w_desc.nbytes)
    FilterSpec((64, 3, 7, 7), 'float16', 'NHWC') 18816
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
                f"dtype={shown(dtype)} and layout={shown(layout)} beside a whole spec, {shape}, which has its own"
            )
        check_describable(spec, "shape")
        super().__init__(spec)

    def _set(self, spec: FilterSpec) -> None:
        dims = spec.native()
        self.api.cudnnSetFilterNdDescriptor(self.ptr, spec.dtype, spec.format, len(dims), c_ints(dims))

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
        """The bytes of the filter, by cuDNN's own reckoning (`cudnnGetFilterSizeInBytes`)."""
        size = ctypes.c_size_t()
        self.api.cudnnGetFilterSizeInBytes(self.ptr, size)
        return size.value
