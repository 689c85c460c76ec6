"""`SpatialTransformerDescriptor`."""

from __future__ import annotations

import ctypes
from typing import Any

from cudnnlite._raw.enums import SamplerType
from cudnnlite._raw.types import cudnnSpatialTransformerDescriptor_t
from cudnnlite.descriptors.native import NativeObject
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.spatial_transformer import SpatialTransformerSpec


class SpatialTransformerDescriptor(NativeObject[cudnnSpatialTransformerDescriptor_t], describes=SpatialTransformerSpec):
    """A `cudnnSpatialTransformerDescriptor_t`; cuDNN has no getter for it, so that it cannot be read back.

    Parameters
    ----------
    spec : SpatialTransformerSpec
        What it describes.
    api : CudnnApi, optional
        The function table; on the emulated device that of the handle.

    Notes
    -----
    C functions: `cudnnCreateSpatialTransformerDescriptor`, `cudnnSetSpatialTransformerNdDescriptor`,
    `cudnnDestroySpatialTransformerDescriptor`.

    Examples
    --------
    >>> with dnn.SpatialTransformerDescriptor(dnn.SpatialTransformerSpec((2, 3, 8, 8))) as transformer_desc:
    ...     print(transformer_desc.spec.shape)
    (2, 3, 8, 8)
    """

    _type = cudnnSpatialTransformerDescriptor_t
    _create, _destroy = "cudnnCreateSpatialTransformerDescriptor", "cudnnDestroySpatialTransformerDescriptor"
    by_handle = True

    def _set(self, spec: Any) -> None:
        shape = (ctypes.c_int * len(spec.shape))(*spec.shape)
        function = self.api.cudnnSetSpatialTransformerNdDescriptor
        function(self.ptr, SamplerType.BILINEAR, spec.dtype, len(spec.shape), shape)

    def read_back(self) -> Any:
        """Refuse: cuDNN has no getter for it."""
        raise ArgumentError("cuDNN has no function that reads a spatial transformer; see .spec")
