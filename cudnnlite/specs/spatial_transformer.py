"""`SpatialTransformerSpec`: what images are sampled to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cudnnlite.dtypes import dtype_name, parse_dtype
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.frozen import FrozenSpec
from cudnnlite.specs.layout import parse_shape

_DTYPES = (DataType.FLOAT, DataType.DOUBLE, DataType.HALF)  # an H200 refuses bfloat16


@dataclass(frozen=True, init=False, repr=False, eq=False)
class SpatialTransformerSpec(FrozenSpec):
    """What a spatial transformer makes of images: a frozen value, equal and hashable by its fields.

    Parameters
    ----------
    shape : iterable of int
        ``(N, C, H, W)`` of what is sampled: H by W points for each image.  cuDNN samples 2-D images only, bilinearly.
    dtype : DataType or str
        Of everything, float32, float64 or float16; an operation sets it to that of its operands.

    Notes
    -----
    C function: `cudnnSetSpatialTransformerNdDescriptor`.

    Examples
    --------
    >>> dnn.SpatialTransformerSpec((2, 3, 8, 8), "float16")
    SpatialTransformerSpec(shape=(2, 3, 8, 8), dtype='float16')
    """

    shape: tuple[int, ...]
    dtype: DataType

    def __init__(self, shape: Iterable[int], dtype: Any = DataType.FLOAT) -> None:
        sizes, kind = parse_shape(shape, batch_may_be_empty=False), parse_dtype(dtype)
        if len(sizes) != 4:
            raise ArgumentError(
                f"shape={sizes} has rank {len(sizes)}; needed: (N, C, H, W), cuDNN samples 2-D images only"
            )
        if kind not in _DTYPES:
            raise ArgumentError(f"dtype={dtype_name(kind)}; allowed: {', '.join(map(dtype_name, _DTYPES))}")
        self._freeze(shape=sizes, dtype=kind)
