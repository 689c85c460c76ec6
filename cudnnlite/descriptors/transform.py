"""`TensorTransformDescriptor`."""

from __future__ import annotations

import ctypes
from typing import Any

from cudnnlite._raw.enums import FoldingDirection
from cudnnlite._raw.types import cudnnTensorTransformDescriptor_t
from cudnnlite.descriptors.native import NativeObject
from cudnnlite.specs.transform import TensorTransformSpec


class TensorTransformDescriptor(NativeObject[cudnnTensorTransformDescriptor_t], describes=TensorTransformSpec):
    """A `cudnnTensorTransformDescriptor_t`; where there is no GPU driver libcudnn cannot set one, but the emulated device can.

    Parameters
    ----------
    spec : TensorTransformSpec
        What it describes.
    api : CudnnApi, optional
        The function table; on the emulated device that of the handle.

    Notes
    -----
    C functions: `cudnnCreateTensorTransformDescriptor`, `cudnnSetTensorTransformDescriptor`,
    `cudnnGetTensorTransformDescriptor`, `cudnnDestroyTensorTransformDescriptor`; deprecated since cuDNN 9.0.0.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     spec = dnn.TensorTransformSpec((0, 0, 1, 1), layout="NHWC")
    ...     with dnn.TensorTransformDescriptor(spec, api=handle.api) as transform_desc:
    ...         print(transform_desc.read_back() == spec)
    True
    """

    _type = cudnnTensorTransformDescriptor_t
    _create, _destroy = "cudnnCreateTensorTransformDescriptor", "cudnnDestroyTensorTransformDescriptor"
    by_handle = True

    def _set(self, spec: Any) -> None:
        rank = len(spec.padding)
        before, after = ((ctypes.c_int * rank)(*ends) for ends in zip(*spec.padding, strict=True))
        fold = (ctypes.c_uint * len(spec.fold))(*spec.fold) if spec.fold else None
        self.api.cudnnSetTensorTransformDescriptor(self.ptr, rank, spec.format, before, after, fold, spec.direction)

    def read_back(self) -> Any:
        """Return what cuDNN holds."""
        rank = len(self.spec.padding)
        kind, direction, fold = ctypes.c_int(), ctypes.c_int(), (ctypes.c_uint * rank)()
        before, after = (ctypes.c_int * rank)(), (ctypes.c_int * rank)()
        self.api.cudnnGetTensorTransformDescriptor(self.ptr, rank, kind, before, after, fold, direction)
        return transform_of(rank, kind.value, before, after, fold, direction.value)


def transform_of(rank: int, kind: int, before: Any, after: Any, fold: Any, direction: int) -> TensorTransformSpec:
    """Return the spec of what the setter is given; blocks of one pixel fold nothing."""
    ends = zip(before[:rank] if before else (0,) * rank, after[:rank] if after else (0,) * rank, strict=True)
    blocks = tuple(fold[: rank - 2]) if fold else ()
    layout = (("NCHW", "NCDHW"), ("NHWC", "NDHWC"))[kind][rank - 4]
    folds = blocks if max(blocks, default=0) > 1 else ()
    return TensorTransformSpec(ends, folds, FoldingDirection(direction), layout)
