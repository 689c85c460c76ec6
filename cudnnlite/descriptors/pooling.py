"""`PoolingDescriptor`."""

from __future__ import annotations

import ctypes
from typing import Any

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.types import cudnnPoolingDescriptor_t
from cudnnlite.descriptors.c_ints import c_ints
from cudnnlite.descriptors.spatial import SpatialDescriptor
from cudnnlite.enums import NanPropagation, PoolingMode
from cudnnlite.specs.layout import MAX_SPATIAL_RANK
from cudnnlite.specs.pooling import PoolingSpec


class PoolingDescriptor(SpatialDescriptor, describes=PoolingSpec):
    """A `cudnnPoolingDescriptor_t`; parameters as of `SpatialDescriptor`: a `PoolingSpec`, and the spatial rank.

    Notes
    -----
    C functions: `cudnnCreatePoolingDescriptor`, `cudnnSetPoolingNdDescriptor`, `cudnnGetPoolingNdDescriptor`,
    `cudnnDestroyPoolingDescriptor`; deprecated since cuDNN 9.0.

    Examples
    --------
    >>> with dnn.PoolingDescriptor(dnn.PoolingSpec((3, 2), stride=2)) as pooling_desc:
    ...     print(pooling_desc.read_back().window)
    (3, 2)
    """

    _type = cudnnPoolingDescriptor_t
    _create = "cudnnCreatePoolingDescriptor"
    _destroy = "cudnnDestroyPoolingDescriptor"
    _missing = (1, 0, 1)

    def _set(self, spec: PoolingSpec) -> None:
        steps = map(c_ints, self._steps)
        self.api.cudnnSetPoolingNdDescriptor(self.ptr, spec.mode, spec.nan, len(self._steps[0]), *steps)

    @staticmethod
    def read(api: CudnnApi, native: Any) -> PoolingSpec:
        """Read a `cudnnPoolingDescriptor_t` back (`cudnnGetPoolingNdDescriptor`)."""
        mode, nan, rank = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        sizes = [c_ints([0] * MAX_SPATIAL_RANK) for _ in range(3)]
        api.cudnnGetPoolingNdDescriptor(native, MAX_SPATIAL_RANK, mode, nan, rank, *sizes)
        window, padding, stride = (values[: rank.value] for values in sizes)
        return PoolingSpec(window, padding, stride, mode=PoolingMode(mode.value), nan=NanPropagation(nan.value))
