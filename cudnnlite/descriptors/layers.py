"""The descriptors of layers, one for each spec."""

from __future__ import annotations

import ctypes
from typing import Any

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.enums import FoldingDirection, IndicesType, SamplerType
from cudnnlite._raw.types import (
    cudnnActivationDescriptor_t,
    cudnnCTCLossDescriptor_t,
    cudnnLRNDescriptor_t,
    cudnnOpTensorDescriptor_t,
    cudnnPoolingDescriptor_t,
    cudnnReduceTensorDescriptor_t,
    cudnnSpatialTransformerDescriptor_t,
    cudnnTensorTransformDescriptor_t,
)
from cudnnlite.descriptors.declared import DeclaredDescriptor, SpatialDescriptor
from cudnnlite.descriptors.native import NativeObject, c_ints
from cudnnlite.enums import ActivationMode, DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.layers import (
    ActivationSpec,
    CTCLossSpec,
    LRNSpec,
    OpTensorSpec,
    PoolingSpec,
    ReduceTensorSpec,
    SpatialTransformerSpec,
    TensorTransformSpec,
)


class PoolingDescriptor(SpatialDescriptor[cudnnPoolingDescriptor_t], describes=PoolingSpec):
    """A `cudnnPoolingDescriptor_t`.

    Examples
    --------
    >>> with dnn.descriptors.PoolingDescriptor(dnn.PoolingSpec((3, 2), stride=2)) as pooling_desc:
    ...     print(pooling_desc.read_back().window)
    (3, 2)
    """

    _one_pixel_steps = (1, 0, 1)  # window, padding and stride
    _setter, _getter = "cudnnSetPoolingNdDescriptor", "cudnnGetPoolingNdDescriptor"
    _arguments = (
        "mode",
        "maxpoolingNanOpt:nan",
        "windowDimA:window",
        "paddingA:padding",
        "strideA:stride",
    )

    def __init__(self, spec: PoolingSpec, spatial_rank: int | None = None) -> None:
        if isinstance(spec, PoolingSpec) and not spec.is_symmetric:
            raise ArgumentError(
                f"spec={spec}; allowed: padding in numbers that are the same at both ends of an "
                "axis, and no ceil_mode, for cuDNN's descriptor has nothing else"
            )
        super().__init__(spec, spatial_rank)


class LRNDescriptor(DeclaredDescriptor[cudnnLRNDescriptor_t], describes=LRNSpec):
    """A `cudnnLRNDescriptor_t`.

    Examples
    --------
    >>> with dnn.descriptors.LRNDescriptor(dnn.LRNSpec(7)) as norm_desc:
    ...     print(norm_desc.read_back())
    LRNSpec(n=7)
    """

    _arguments = "lrnN:n", "lrnAlpha:alpha", "lrnBeta:beta", "lrnK:k"


class OpTensorDescriptor(DeclaredDescriptor[cudnnOpTensorDescriptor_t], describes=OpTensorSpec):
    """A `cudnnOpTensorDescriptor_t`.

    Examples
    --------
    >>> with dnn.descriptors.OpTensorDescriptor(dnn.specs.OpTensorSpec("mul")) as op_desc:
    ...     print(op_desc.read_back())
    OpTensorSpec(op='MUL')
    """

    _arguments = "opTensorOp:op", "opTensorNanOpt:nan", "opTensorCompType:compute_type"


class ReduceTensorDescriptor(
    DeclaredDescriptor[cudnnReduceTensorDescriptor_t], describes=ReduceTensorSpec
):
    """A `cudnnReduceTensorDescriptor_t`; indices are of 32 bits, the only ones that cuDNN has.

    Examples
    --------
    >>> with dnn.descriptors.ReduceTensorDescriptor(dnn.specs.ReduceTensorSpec("avg")) as op_desc:
    ...     print(op_desc.read_back())
    ReduceTensorSpec(op='AVG')
    """

    _arguments = (
        "reduceTensorOp:op",
        "reduceTensorNanOpt:nan",
        "reduceTensorCompType:compute_type",
        "reduceTensorIndices:indices",
    )
    # The base class declares it as a ClassVar.
    _constants = {"reduceTensorIndicesType": IndicesType.INDICES_32BIT}  # noqa: RUF012


class CTCLossDescriptor(DeclaredDescriptor[cudnnCTCLossDescriptor_t], describes=CTCLossSpec):
    """A `cudnnCTCLossDescriptor_t`; of float32 where the spec has no compute type.

    Examples
    --------
    >>> loss = dnn.CTCLossSpec("none", max_label_length=20)
    >>> with dnn.descriptors.CTCLossDescriptor(loss) as ctc_desc:
    ...     print(ctc_desc.read_back())
    CTCLossSpec(normalization='NONE', max_label_length=20, compute_type='float32')
    """

    _setter, _getter = "cudnnSetCTCLossDescriptor_v9", "cudnnGetCTCLossDescriptor_v9"
    _arguments = (
        "compType:compute_type",
        "normMode:normalization",
        "ctcGradMode:grad_mode",
        "maxLabelLength:max_label_length",
    )

    def _value(self, field: str) -> Any:
        value = super()._value(field)
        return DataType.FLOAT if value is None else value


class ActivationDescriptor(
    DeclaredDescriptor[cudnnActivationDescriptor_t], describes=ActivationSpec
):
    """A `cudnnActivationDescriptor_t`.

    Examples
    --------
    >>> elu = dnn.ActivationSpec("elu", 0.5)
    >>> with dnn.descriptors.ActivationDescriptor(elu) as activation_desc:
    ...     print(activation_desc.read_back().coef)
    0.5
    """

    _arguments = "mode", "reluNanOpt:nan", "coef"
    # For swish alone.
    _other_functions = (
        "cudnnSetActivationDescriptorSwishBeta",
        "cudnnGetActivationDescriptorSwishBeta",
    )

    def _set(self, spec: Any) -> None:
        super()._set(spec)
        if spec.mode == ActivationMode.SWISH:
            self.api.cudnnSetActivationDescriptorSwishBeta(self.ptr, spec.coef)

    @classmethod
    def read(cls, api: CudnnApi, native: Any) -> Any:
        """Read a native object back, by the getters."""
        spec = super().read(api, native)
        if spec.mode != ActivationMode.SWISH:
            return spec
        beta = ctypes.c_double()
        api.cudnnGetActivationDescriptorSwishBeta(native, beta)
        return spec.replace(coef=beta.value)


class SpatialTransformerDescriptor(
    NativeObject[cudnnSpatialTransformerDescriptor_t], describes=SpatialTransformerSpec
):
    """A `cudnnSpatialTransformerDescriptor_t`; it cannot be read back, as cuDNN has no getter.

    Examples
    --------
    >>> images = dnn.SpatialTransformerSpec((2, 3, 8, 8))
    >>> with dnn.descriptors.SpatialTransformerDescriptor(images) as transformer_desc:
    ...     print(transformer_desc.spec.shape)
    (2, 3, 8, 8)
    """

    _setter = "cudnnSetSpatialTransformerNdDescriptor"
    _needs_handle = True

    def _set(self, spec: Any) -> None:
        set_ = self.api.cudnnSetSpatialTransformerNdDescriptor
        set_(self.ptr, SamplerType.BILINEAR, spec.dtype, len(spec.shape), c_ints(spec.shape))

    def read_back(self) -> Any:
        """Refuse: cuDNN has no getter for it."""
        raise ArgumentError("cuDNN has no function that reads a spatial transformer; see .spec")


class TensorTransformDescriptor(
    NativeObject[cudnnTensorTransformDescriptor_t], describes=TensorTransformSpec
):
    """A `cudnnTensorTransformDescriptor_t`.

    Without a GPU driver libcudnn cannot set one, but the emulated device can.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     spec = dnn.specs.TensorTransformSpec((0, 0, 1, 1), layout="NHWC")
    ...     with dnn.descriptors.TensorTransformDescriptor(spec, api=handle.api) as transform_desc:
    ...         print(transform_desc.read_back() == spec)
    True
    """

    _needs_handle = True

    def _set(self, spec: Any) -> None:
        rank = len(spec.padding)
        before, after = (c_ints(ends) for ends in zip(*spec.padding, strict=True))
        fold = (ctypes.c_uint * len(spec.fold))(*spec.fold) if spec.fold else None
        self.api.cudnnSetTensorTransformDescriptor(
            self.ptr, rank, spec.format, before, after, fold, spec.direction
        )

    def read_back(self) -> Any:
        """Return the spec as cuDNN holds it."""
        rank = len(self.spec.padding)
        kind, direction, fold = ctypes.c_int(), ctypes.c_int(), (ctypes.c_uint * rank)()
        before, after = c_ints([0] * rank), c_ints([0] * rank)
        self.api.cudnnGetTensorTransformDescriptor(
            self.ptr, rank, kind, before, after, fold, direction
        )
        return transform_of(rank, kind.value, before, after, fold, direction.value)


def transform_of(
    rank: int, kind: int, before: Any, after: Any, fold: Any, direction: int
) -> TensorTransformSpec:
    """Return the spec of the setter's arguments; null arrays mean no padding and no folding."""
    no_padding = (0,) * rank
    starts = before[:rank] if before else no_padding
    ends = after[:rank] if after else no_padding
    blocks = tuple(fold[: rank - 2]) if fold else ()
    if max(blocks, default=0) <= 1:  # blocks of one pixel
        blocks = ()
    layout = (("NCHW", "NCDHW"), ("NHWC", "NDHWC"))[kind][rank - 4]
    padding = zip(starts, ends, strict=True)
    return TensorTransformSpec(padding, blocks, FoldingDirection(direction), layout)
