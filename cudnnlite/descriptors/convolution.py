"""`ConvolutionDescriptor`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.types import cudnnConvolutionDescriptor_t
from cudnnlite.arguments import instance_of
from cudnnlite.descriptors.declared import SpatialDescriptor
from cudnnlite.descriptors.native import c_ints
from cudnnlite.descriptors.tensor import FilterDescriptor, TensorDescriptor
from cudnnlite.enums import DataType, MathType, parse_math_type
from cudnnlite.errors import ArgumentError
from cudnnlite.specs import ConvolutionSpec
from cudnnlite.specs.steps import SAME

# The fields that have a setter and a getter of their own.
_SEPARATE = {
    "groups": ("cudnnSetConvolutionGroupCount", "cudnnGetConvolutionGroupCount"),
    "math_type": ("cudnnSetConvolutionMathType", "cudnnGetConvolutionMathType"),
    "reorder_type": ("cudnnSetConvolutionReorderType", "cudnnGetConvolutionReorderType"),
}


class ConvolutionDescriptor(
    SpatialDescriptor[cudnnConvolutionDescriptor_t], describes=ConvolutionSpec
):
    """A `cudnnConvolutionDescriptor_t`.

    Parameters
    ----------
    padding, stride, dilation, groups, mode, compute_type, math_type, reorder_type
        As in `ConvolutionSpec`; `padding` may be a whole spec.  The compute type is float32 if not
        given.
    spatial_rank : int, optional
        The number of spatial axes if padding, stride and dilation are plain numbers; 2 if not
        given.  cuDNN has no 1-D convolution; it receives one as a 2-D convolution over images one
        pixel high.

    Examples
    --------
    >>> x_desc, w_desc = dnn.TensorDescriptor((1, 3, 224, 224)), dnn.FilterDescriptor((64, 3, 7, 7))
    >>> with x_desc, w_desc, dnn.ConvolutionDescriptor(padding=3, stride=2) as conv_desc:
    ...     conv_desc.set_math_type("fma")
    ...     print(conv_desc.output_shape(x_desc, w_desc), conv_desc.read_back().math_type)
    (1, 64, 112, 112) FMA
    """

    _setter, _getter = "cudnnSetConvolutionNdDescriptor", "cudnnGetConvolutionNdDescriptor"
    _other_functions = tuple(name for pair in _SEPARATE.values() for name in pair)
    _arguments = (
        "padA:padding",
        "filterStrideA:stride",  # in the setter
        "strideA:stride",  # in the getter
        "dilationA:dilation",
        "mode",
        "computeType:compute_type",
    )
    _one_pixel_steps = (0, 1, 1)  # padding, stride and dilation

    def __init__(
        self,
        padding: int | str | Iterable[int] | ConvolutionSpec = 0,
        stride: int | Iterable[int] = 1,
        dilation: int | Iterable[int] = 1,
        groups: int = 1,
        *,
        spatial_rank: int | None = None,
        **options: Any,
    ) -> None:
        if isinstance(padding, ConvolutionSpec):
            has_defaults = (stride, dilation, groups) == (1, 1, 1)
            if options or not has_defaults:
                raise ArgumentError(
                    f"stride, dilation, groups or options are given beside a whole spec, {padding}"
                )
            spec = padding
        else:
            spec = ConvolutionSpec(padding, stride, dilation, groups, **options)
        if spec.padding == SAME:
            raise ArgumentError(
                f"padding={spec.padding!r}: a descriptor has numbers; "
                "ConvolutionSpec.for_shapes computes them from the shapes of an image and a filter"
            )
        if not spec.is_symmetric:
            raise ArgumentError(
                f"padding={spec.padding} differs at the two ends of an axis; "
                "cuDNN's descriptor has one padding for both, "
                "only graphs (interface='graph') have two"
            )
        if spec.compute_type is None:
            spec = spec.replace(compute_type=DataType.FLOAT)
        super().__init__(spec, spatial_rank)

    def _set(self, spec: ConvolutionSpec) -> None:
        super()._set(spec)
        for field, (setter, _) in _SEPARATE.items():
            getattr(self.api, setter)(self.ptr, getattr(spec, field))

    def set_math_type(self, math_type: MathType | str) -> None:
        """Change the math type of the native object in place (`cudnnSetConvolutionMathType`)."""
        kind = parse_math_type(math_type)
        self.api.cudnnSetConvolutionMathType(self.ptr, kind)
        self._spec = self._spec.replace(math_type=kind)

    @classmethod
    def read(cls, api: CudnnApi, native: Any) -> ConvolutionSpec:
        """Read a `cudnnConvolutionDescriptor_t` back.

        C functions: `cudnnGetConvolutionNdDescriptor`, and the getters of single fields.
        """
        separate_fields = {}
        value = ctypes.c_int()
        for field, (_, getter) in _SEPARATE.items():
            getattr(api, getter)(native, value)
            separate_fields[field] = value.value
        return super().read(api, native).replace(**separate_fields)  # type: ignore[no-any-return]

    def output_shape(self, x: TensorDescriptor, w: FilterDescriptor) -> tuple[int, ...]:
        """Return the output's shape as cuDNN computes it (`cudnnGetConvolutionNdForwardOutputDim`).

        The shape of a 1-D convolution has rank 3.  `ConvolutionSpec.output_shape` does the same
        without cuDNN.
        """
        hint = "; shapes go to ConvolutionSpec.output_shape"
        instance_of(x, TensorDescriptor, "x", hint)
        instance_of(w, FilterDescriptor, "w", hint)
        native_dims, _ = x.spec.native()
        rank = len(native_dims)
        dims = c_ints([0] * rank)
        self.api.cudnnGetConvolutionNdForwardOutputDim(self.ptr, x.ptr, w.ptr, rank, dims)
        shape = tuple(dims)
        if x.spec.rank == 3:
            return (*shape[:2], shape[3])
        return shape
