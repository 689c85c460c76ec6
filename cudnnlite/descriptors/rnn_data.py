"""`RNNDataDescriptor`."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.library import format_version
from cudnnlite._raw.types import cudnnRNNDataDescriptor_t
from cudnnlite.descriptors.c_ints import c_ints
from cudnnlite.descriptors.native import NativeObject
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.enums import DataType, RNNDataLayout
from cudnnlite.errors import ArgumentError, NotSupportedError
from cudnnlite.specs import RNNDataSpec


class RNNDataDescriptor(NativeObject[cudnnRNNDataDescriptor_t]):
    """A `cudnnRNNDataDescriptor_t`: sequences, their lengths, and what fills the padding of an output.

    Parameters
    ----------
    shape : iterable of int or RNNDataSpec
        The array's shape; or a whole spec.
    lengths, dtype, layout, padding_fill
        As in `RNNDataSpec`.

    Raises
    ------
    ArgumentError
        As in `RNNDataSpec`.
    CudnnError
        cuDNN refused the description.

    Notes
    -----
    C functions: `cudnnCreateRNNDataDescriptor`, `cudnnSetRNNDataDescriptor`, `cudnnGetRNNDataDescriptor`,
    `cudnnDestroyRNNDataDescriptor`.

    Examples
    --------
    >>> with dnn.RNNDataDescriptor((5, 3, 64), lengths=[5, 2, 4], padding_fill=-1.0) as x_desc:
    ...     print(x_desc.read_back())
    RNNDataSpec((5, 3, 64), lengths=(5, 2, 4), dtype='float32', layout='sequence_major', padding_fill=-1.0)
    """

    _type = cudnnRNNDataDescriptor_t
    _create = "cudnnCreateRNNDataDescriptor"
    _destroy = "cudnnDestroyRNNDataDescriptor"

    def __init__(self, shape: Any, lengths: Any = None, **options: Any) -> None:
        if not isinstance(shape, RNNDataSpec):
            spec = RNNDataSpec(shape, lengths, **options)
        elif lengths is None and not options:
            spec = shape
        else:
            raise ArgumentError(f"lengths or options are given beside a whole spec, {shape}, which has its own")
        super().__init__(spec)

    def _set(self, spec: RNNDataSpec) -> None:
        fill = np.array([spec.padding_fill]).astype(numpy_dtype(spec.dtype))  # cuDNN copies it
        try:
            self.api.cudnnSetRNNDataDescriptor(
                self.ptr, spec.dtype, spec.layout, spec.max_length, spec.batch, spec.vector_size, c_ints(spec.lengths),
                fill.ctypes.data,
            )  # fmt: skip
        except NotSupportedError as error:
            raise name_needed_version(error, spec.dtype, self.api) from None

    def set(self, spec: RNNDataSpec) -> None:
        """Describe other sequences with the same native object (`cudnnSetRNNDataDescriptor`)."""
        self._set(spec)
        self._spec = spec

    def read_back(self) -> RNNDataSpec:
        """Return what cuDNN holds (`cudnnGetRNNDataDescriptor`)."""
        return read_rnn_data_spec(self.api, self.ptr)


def name_needed_version(error: NotSupportedError, dtype: DataType, api: CudnnApi) -> NotSupportedError:
    """Add which cuDNN is needed where an older one refused a dtype: 9.12 and before refuse bfloat16, 9.13 takes it."""
    if dtype == DataType.BFLOAT16 and (version := api.cudnnGetVersion()) < 91300:
        needed = "recurrent networks in bfloat16 need cuDNN 9.13 or newer"
        error.notes += (f"{needed}; this is {format_version(version)}",)
    return error


def read_rnn_data_spec(api: CudnnApi, native: Any) -> RNNDataSpec:
    """Read a `cudnnRNNDataDescriptor_t` back (`cudnnGetRNNDataDescriptor`)."""
    dtype, layout, steps, batch, size = (ctypes.c_int() for _ in range(5))
    fill = np.zeros(1, np.float64)  # room for any type
    numbers = (dtype, layout, steps, batch, size)
    api.cudnnGetRNNDataDescriptor(native, *numbers, 0, c_ints([0]), fill.ctypes.data)
    lengths = c_ints([0] * batch.value)
    api.cudnnGetRNNDataDescriptor(native, *numbers, batch.value, lengths, fill.ctypes.data)
    kind = DataType(dtype.value)
    values = {
        "max_length": steps.value,
        "batch": batch.value,
        "vector_size": size.value,
        "lengths": tuple(lengths),
        "dtype": kind,
        "layout": RNNDataLayout(layout.value),
        "padding_fill": float(fill.view(numpy_dtype(kind))[0]),
    }
    spec: RNNDataSpec = RNNDataSpec.__new__(RNNDataSpec)
    spec._freeze(**values)  # as it is: a packed descriptor may have a longer maximum than its longest sequence
    return spec
