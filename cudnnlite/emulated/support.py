"""Which convolutions and gradients cuDNN refuses on a GPU, and which it multiplies in TF32.

The rules reproduce tables recorded on an H200 with cuDNN 9.19
(tests/emulated/data/convolution*_support.json): every row of them is a test.  The
rules refuse all that the tables do not cover, so that a call of the emulated device runs on a GPU.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from cudnnlite.dtypes import vector_length
from cudnnlite.enums import (
    ConvolutionBwdFilterAlgo,
    ConvolutionFwdAlgo,
    DataType,
    MathType,
    TensorFormat,
)
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST

# The types in which cuDNN accumulates each type.
_COMPUTE_TYPES = {
    DataType.FLOAT: (DataType.FLOAT,),
    DataType.DOUBLE: (DataType.DOUBLE,),
    DataType.HALF: (DataType.FLOAT, DataType.HALF),
    DataType.BFLOAT16: (DataType.FLOAT,),
}
# The output's possible types for each integer input.
_INTEGER_OUTPUTS = {
    DataType.INT8: (DataType.INT8, DataType.FLOAT),
    DataType.INT8x4: (DataType.INT8x4, DataType.FLOAT),
    DataType.INT8x32: (DataType.INT8x32,),
}
_FFT_MAX_PADDED = 256  # the padded image must not be larger along either axis
_TILE_MAX_TAPS = 32  # the longest filter axis of FFT_TILING, where neither axis is 1
_TILE_MAX_TAPS_1D = 256  # where one axis is 1
_TILE_MAX_TAPS_3D = 16
# The longest axis of dy for which FFT_TILING was recorded for the gradient of a filter.
_TILE_MAX_OUTPUT = 33
_GEMMS = ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM")


class _ConvolutionOperands(NamedTuple):
    """The operands, or their gradients, and the convolution."""

    x: TensorSpec
    w: FilterSpec
    conv: ConvolutionSpec
    y: TensorSpec

    @property
    def steps(self) -> tuple[tuple[int, ...], ...]:
        """Padding, stride and dilation."""
        return self.conv.steps(self.x.rank - 2)

    @property
    def accumulates_in_half(self) -> bool:
        """Whether the sums are of type half."""
        return self.conv.compute_type == DataType.HALF


def is_deterministic(algorithm: Any) -> bool:
    """Return whether an algorithm gives the same bits each time, according to cuDNN."""
    return algorithm.name not in ("ALGO_0", "ALGO_3")


def rounds_to_tf32(algorithm: Any, dtype: DataType, conv: ConvolutionSpec) -> bool:
    """Return whether products of float32 are rounded to TF32.

    On the H200 only IMPLICIT_PRECOMP_GEMM does so (relative error 3e-4), and ALGO_1 of the
    gradients; under FMA_MATH, or with the driver's override set to 0, none does.
    """
    return multiplies_in_tf32(dtype, conv.math_type) and algorithm.name in (
        "IMPLICIT_PRECOMP_GEMM",
        "ALGO_1",
    )


def multiplies_in_tf32(dtype: DataType, math_type: MathType) -> bool:
    """Return whether products of a type may be rounded to TF32."""
    return dtype == DataType.FLOAT and math_type != MathType.FMA and not tf32_is_forbidden()


def tf32_is_forbidden() -> bool:
    """Return whether NVIDIA's own switch forbids TF32.

    An H200 obeys it in convolutions and in recurrent networks.
    """
    return os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"


def why_refused(
    algorithm: Any, x: TensorSpec, w: FilterSpec, conv: ConvolutionSpec, y: TensorSpec
) -> str | None:
    """Return why cuDNN does not support the combination; None if it does.

    The specs are those of x, w and y, or of their gradients.
    """
    problem = _ConvolutionOperands(x, w, conv, y)
    if not isinstance(algorithm, ConvolutionFwdAlgo):
        is_filter = isinstance(algorithm, ConvolutionBwdFilterAlgo)
        return _why_not_compute_type(problem) or _why_no_gradient(
            algorithm.name, problem, is_filter=is_filter
        )
    if x.dtype not in _COMPUTE_TYPES:
        return _why_no_integers(algorithm.name, problem)
    if y.dtype != x.dtype:
        return f"y is {y.dtype.name}, x and w are {x.dtype.name}"
    return _why_not_compute_type(problem) or _why_no_forward(algorithm.name, problem)


def why_no_engine(x: TensorSpec, w: FilterSpec, conv: ConvolutionSpec, y: TensorSpec) -> str | None:
    """Return why no engine computes a gradient.

    An H200 has an engine for all operands of one type, in any layouts.
    """
    if not x.dtype == w.dtype == y.dtype:
        return f"operands of several types: {x.dtype.name}, {w.dtype.name}, {y.dtype.name}"
    return _why_not_compute_type(_ConvolutionOperands(x, w, conv, y))


def why_no_forward_engine(
    x: TensorSpec,
    w: FilterSpec,
    conv: ConvolutionSpec,
    y: TensorSpec,
    *,
    is_fused: bool,
) -> str | None:
    """Return why no engine computes a convolution.

    An H200 has an engine for what an algorithm with a matrix product computes.  It has engines for
    float64 in NDHWC besides, which none of the algorithms computes.  Whether these take pointwise
    operations as well is not recorded, so a fused convolution is refused.
    """
    is_double = x.dtype == w.dtype == y.dtype == DataType.DOUBLE
    is_channels_last = w.format == TensorFormat.NHWC and x.fits("NDHWC") and y.fits("NDHWC")
    if is_double and x.rank == 5 and is_channels_last and not is_fused:
        return _why_not_compute_type(_ConvolutionOperands(x, w, conv, y))
    reasons = [why_refused(ConvolutionFwdAlgo[name], x, w, conv, y) for name in reversed(_GEMMS)]
    return reasons[0] if all(reasons) else None


def _why_not_compute_type(problem: _ConvolutionOperands) -> str | None:
    """Return why floats are not accumulated in the compute type."""
    dtype = problem.x.dtype
    compute_type = problem.conv.compute_type_for(problem.x)
    if compute_type in _COMPUTE_TYPES.get(dtype, ()):
        return None
    return f"compute type {compute_type} for {dtype.name}"


def _why_no_forward(name: str, problem: _ConvolutionOperands) -> str | None:
    if problem.w.format == TensorFormat.NHWC:
        return _why_not_channels_last(name, problem)
    if name in _GEMMS:
        return None
    if name != "GEMM":
        return _why_no_transform(name, problem)
    if problem.x.rank != 4:
        return "GEMM has no 3-D form"
    if problem.accumulates_in_half:
        return "GEMM does not accumulate in half"
    return None


def _why_no_integers(name: str, problem: _ConvolutionOperands) -> str | None:
    x, _, conv, y = problem
    if name not in _GEMMS:
        return f"{name} has no integer form"
    if y.dtype not in _INTEGER_OUTPUTS.get(x.dtype, ()):
        return f"y is {y.dtype.name}, x and w are {x.dtype.name}"
    if conv.compute_type != DataType.INT32 or x.rank != 4:
        return "integers are accumulated in int32, in two dimensions"
    if max(problem.steps[2]) > 1:
        return "integers are not dilated"
    if x.dtype == DataType.INT8:
        return _why_no_int8(problem)
    if vector_length(y.dtype) == 1 and not y.fits("NCHW"):
        return "float output of a vector type must be NCHW"
    return None


def _why_no_int8(problem: _ConvolutionOperands) -> str | None:
    x, w, _, y = problem
    is_channels_last = x.fits("NHWC") and w.format == TensorFormat.NHWC and y.fits("NHWC")
    if not is_channels_last:
        return "int8 must be NHWC throughout"
    if w.shape[0] % 4 or w.shape[1] % 4:
        return "int8 needs channels in multiples of 4"
    return None


def _why_not_channels_last(name: str, problem: _ConvolutionOperands) -> str | None:
    x, _, _, y = problem
    if not x.fits(CHANNELS_LAST[x.rank]):
        return f"a filter in NHWC needs x in NHWC, not {x.layout}"
    if x.rank == 5:
        if name != "IMPLICIT_PRECOMP_GEMM" or x.dtype == DataType.DOUBLE:
            return f"{name} of {x.dtype.name} has no NDHWC form"
        if not y.fits(CHANNELS_LAST[5]):
            return "a filter in NDHWC needs y in NDHWC"
        return None
    if name not in _GEMMS:
        return f"{name} has no NHWC form"
    if not y.fits("NHWC") and not y.fits("NCHW"):
        return "a filter in NHWC needs y packed"
    return None


def _why_no_transform(name: str, problem: _ConvolutionOperands, max_stride: int = 2) -> str | None:
    """Return why Winograd's algorithm or an FFT refuses floats.

    `max_stride` is that of FFT_TILING in two dimensions.
    """
    if name == "WINOGRAD_NONFUSED":
        return _why_no_winograd(problem)
    if name not in ("FFT", "FFT_TILING"):
        if name.startswith("UNKNOWN"):
            return f"{name} is no algorithm"
        return f"{name} runs on no recent GPU"
    x, w, _, y = problem
    padding, _, dilation = problem.steps
    layout = CHANNELS_FIRST[x.rank]
    if not x.fits(layout) or not y.fits(layout):
        return "FFT needs NCHW throughout"
    if x.dtype == DataType.BFLOAT16 or problem.accumulates_in_half:
        return "FFT computes in float32 or float64, from float32, float64 or float16"
    if max(dilation) > 1 or _is_padded_by_filter(padding, w):
        return "FFT needs no dilation, and padding smaller than the filter"
    if name == "FFT":
        return _why_no_fft(problem)
    return _why_no_fft_tiling(problem, max_stride)


def _is_padded_by_filter(padding: tuple[int, ...], w: FilterSpec) -> bool:
    """Return whether an image has as much padding as the filter has taps, along any axis."""
    return any(pad >= taps for pad, taps in zip(padding, w.shape[2:], strict=True))


def _why_no_winograd(problem: _ConvolutionOperands) -> str | None:
    _, stride, dilation = problem.steps
    is_double = problem.x.dtype == DataType.DOUBLE
    has_filter = problem.w.shape[2:] in ((3, 3), (5, 5))
    if is_double or not has_filter or {*stride, *dilation} != {1}:
        return "Winograd needs a 3x3 or 5x5 filter, stride 1, no dilation, not float64"
    return None


def _why_no_fft(problem: _ConvolutionOperands) -> str | None:
    x = problem.x
    padding, stride, _ = problem.steps
    if x.rank != 4 or x.dtype == DataType.DOUBLE or max(stride) > 1:
        return "FFT is 2-D, of stride 1, not float64"
    padded = [size + 2 * pad for size, pad in zip(x.shape[2:], padding, strict=True)]
    if max(padded) > _FFT_MAX_PADDED:
        return f"FFT needs a padded image of at most {_FFT_MAX_PADDED}"
    return None


def _why_no_fft_tiling(problem: _ConvolutionOperands, max_stride: int) -> str | None:
    taps = problem.w.shape[2:]
    _, stride, _ = problem.steps
    if problem.x.rank == 5:
        if max(taps) > _TILE_MAX_TAPS_3D or max(stride) > 1:
            return f"3-D FFT_TILING needs stride 1 and at most {_TILE_MAX_TAPS_3D} taps an axis"
        return None
    if 1 in taps:
        if max(stride) > 1 or max(taps) > _TILE_MAX_TAPS_1D:
            return "FFT_TILING of one-dimensional filters needs stride 1"
        return None
    is_double = problem.x.dtype == DataType.DOUBLE
    if is_double or max(stride) > max_stride or max(taps) > _TILE_MAX_TAPS:
        return (
            f"FFT_TILING needs a stride of at most {max_stride} and at most {_TILE_MAX_TAPS} taps "
            "an axis, not float64"
        )
    return None


def _why_no_gradient(name: str, problem: _ConvolutionOperands, *, is_filter: bool) -> str | None:
    """Return why an algorithm refuses the gradient of a filter or of images."""
    reason = _why_not_layout_of_gradient(name, problem, is_filter=is_filter)
    if reason is not None:
        return reason
    if name in ("ALGO_0", "ALGO_1"):
        return _why_no_general_gradient(name, problem, is_filter=is_filter)
    if problem.w.format == TensorFormat.NHWC:
        return f"{name} has no {_layout_of_filter(problem)} form"
    if name == "ALGO_3":
        is_dilated = problem.x.rank == 4 and max(problem.steps[2]) > 1
        if is_dilated or problem.accumulates_in_half:
            return "ALGO_3 takes no dilation, and no half"
        return None
    if name == "FFT_TILING" and is_filter:
        return _why_no_fft_tiling_of_filter(problem)
    return _why_no_transform(name, problem, max_stride=3)


def _why_no_general_gradient(
    name: str, problem: _ConvolutionOperands, *, is_filter: bool
) -> str | None:
    """Return why ALGO_0 or ALGO_1 refuses a gradient."""
    x = problem.x
    is_channels_last = problem.w.format == TensorFormat.NHWC
    has_no_form = x.dtype == DataType.DOUBLE or (x.rank == 5 and name == "ALGO_0")
    if is_channels_last and has_no_form:
        return f"{name} of {x.dtype.name} has no {_layout_of_filter(problem)} form"
    has_no_half = is_filter and (is_channels_last or name == "ALGO_0")
    if has_no_half and problem.accumulates_in_half:
        return f"{name} does not accumulate in half"
    return None


def _layout_of_filter(problem: _ConvolutionOperands) -> str:
    """Return the layout of images that corresponds to the filter's."""
    layouts = CHANNELS_LAST if problem.w.format == TensorFormat.NHWC else CHANNELS_FIRST
    return layouts[problem.x.rank]


def _why_not_layout_of_gradient(
    name: str, problem: _ConvolutionOperands, *, is_filter: bool
) -> str | None:
    """Return why the images have the wrong layout.

    The images that are read must have the filter's layout.  With a filter in NCHW, most algorithms
    take any layout of the other images.
    """
    x, w, _, y = problem
    layout = _layout_of_filter(problem)
    is_channels_last = w.format == TensorFormat.NHWC
    read, other = (x, y) if is_filter else (y, x)
    is_general = name in ("ALGO_0", "ALGO_1")
    is_3d = x.rank == 5
    if is_filter and is_general and is_3d and not is_channels_last:
        return None
    is_strict_in_3d = name == "ALGO_3" or (name == "ALGO_1" and not is_filter)
    both_must_fit = is_channels_last or (is_3d and is_strict_in_3d)
    specs_to_fit = (read, other) if both_must_fit else (read,)
    if not all(spec.fits(layout) for spec in specs_to_fit):
        return f"{name} with a filter in {layout} needs images in {layout}"
    return None


def _why_no_fft_tiling_of_filter(problem: _ConvolutionOperands) -> str | None:
    """Return why FFT_TILING does not compute the gradient of a filter.

    The gradient is a convolution with dy as the filter.
    """
    x, w, _, y = problem
    size = y.shape[2:]
    is_row = 1 in size and max(size) <= _TILE_MAX_OUTPUT
    if x.rank != 4 or not is_row or _is_padded_by_filter(problem.steps[0], w):
        return (
            "FFT_TILING of the gradient of a filter needs a dy of one row or column, of at most "
            f"{_TILE_MAX_OUTPUT}"
        )
    dy_as_filter = FilterSpec((*w.shape[:2], *size), w.dtype)
    return _why_no_transform("FFT_TILING", problem._replace(w=dy_as_filter), max_stride=3)
