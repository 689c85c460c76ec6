"""What a GPU refuses: the combinations for which cuDNN returns NOT_SUPPORTED, and where it multiplies in TF32.

The rules reproduce a table recorded on an H200 with cuDNN 9.19 (tests/emulated/data/convolution_support.json): every row of
it is a test.  What the table does not cover is refused, so that what runs on the emulated device runs on a GPU.
"""

from __future__ import annotations

import os

from cudnnlite.dtypes import vector_length
from cudnnlite.enums import ConvolutionFwdAlgo, DataType, MathType, TensorFormat
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST

_FLOATS = (DataType.FLOAT, DataType.DOUBLE, DataType.HALF, DataType.BFLOAT16)
_COMPUTE = {
    DataType.FLOAT: (DataType.FLOAT,),
    DataType.DOUBLE: (DataType.DOUBLE,),
    DataType.HALF: (DataType.FLOAT, DataType.HALF),
    DataType.BFLOAT16: (DataType.FLOAT,),
}
# What the output may be for each integer input.
_INTEGER_OUTPUTS = {
    DataType.INT8: (DataType.INT8, DataType.FLOAT),
    DataType.INT8x4: (DataType.INT8x4, DataType.FLOAT),
    DataType.INT8x32: (DataType.INT8x32,),
}
_FFT_MAX_PADDED = 256  # the padded image must not be larger along either axis
_TILE_MAX_TAPS = 32  # the longest filter axis of FFT_TILING, where neither axis is 1
_TILE_MAX_TAPS_1D = 256  # where one axis is 1
_TILE_MAX_TAPS_3D = 16

_GEMMS = (ConvolutionFwdAlgo.IMPLICIT_GEMM, ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM)


def multiplies_in_tf32(algorithm: ConvolutionFwdAlgo, dtype: DataType, conv: ConvolutionSpec) -> bool:
    """Tell whether products of float32 are rounded to TF32.

    On the H200 only IMPLICIT_PRECOMP_GEMM does so (relative error 3e-4); under FMA_MATH, or with the driver's override set
    to 0, none does.
    """
    precomputed = algorithm == ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM
    return precomputed and dtype == DataType.FLOAT and conv.math_type != MathType.FMA and not tf32_is_forbidden()


def tf32_is_forbidden() -> bool:
    """Tell whether NVIDIA's own switch is set, which an H200 obeys in convolutions and in recurrent networks."""
    return os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"


def refusal(
    algorithm: ConvolutionFwdAlgo, x: TensorSpec, w: FilterSpec, conv: ConvolutionSpec, y: TensorSpec
) -> str | None:
    """Return why cuDNN does not support the combination; None if it does."""
    if x.dtype not in _FLOATS:
        return _integers(algorithm, x, w, conv, y)
    if y.dtype != x.dtype:
        return f"y is {y.dtype.name}, x and w are {x.dtype.name}"
    if why := compute_refusal(x, conv):
        return why
    if w.format == TensorFormat.NHWC:
        return _channels_last(algorithm, x, y)
    if algorithm in _GEMMS:
        return None
    if algorithm == ConvolutionFwdAlgo.GEMM:
        if x.rank != 4:
            return "GEMM has no 3-D form"
        return "GEMM does not accumulate in half" if conv.compute_type == DataType.HALF else None
    if algorithm == ConvolutionFwdAlgo.WINOGRAD_NONFUSED:
        return winograd_refusal(x, w, conv)
    if algorithm in (ConvolutionFwdAlgo.FFT, ConvolutionFwdAlgo.FFT_TILING):
        return fft_refusal(algorithm, x, w, conv, y)
    return f"{algorithm} runs on no recent GPU"


def compute_refusal(x: TensorSpec, conv: ConvolutionSpec) -> str | None:
    """Return why floats are not accumulated in the compute type."""
    kind = conv.compute_type_for(x)
    return None if kind in _COMPUTE.get(x.dtype, ()) else f"compute type {kind} for {x.dtype.name}"


def _integers(
    algorithm: ConvolutionFwdAlgo, x: TensorSpec, w: FilterSpec, conv: ConvolutionSpec, y: TensorSpec
) -> str | None:
    if algorithm not in _GEMMS:
        return f"{algorithm} has no integer form"
    if y.dtype not in _INTEGER_OUTPUTS.get(x.dtype, ()):
        return f"y is {y.dtype.name}, x and w are {x.dtype.name}"
    if conv.compute_type != DataType.INT32 or x.rank != 4:
        return "integers are accumulated in int32, in two dimensions"
    _, _, dilation = conv.steps(2)
    if max(dilation) > 1:
        return "integers are not dilated"
    if x.dtype == DataType.INT8:
        if not (x.fits("NHWC") and w.format == TensorFormat.NHWC and y.fits("NHWC")):
            return "int8 must be NHWC throughout"
        if w.shape[0] % 4 or w.shape[1] % 4:
            return "int8 needs channels in multiples of 4"
    elif vector_length(y.dtype) == 1 and not y.fits("NCHW"):
        return "float output of a vector type must be NCHW"
    return None


def _channels_last(algorithm: ConvolutionFwdAlgo, x: TensorSpec, y: TensorSpec) -> str | None:
    if not x.fits(CHANNELS_LAST[x.rank]):
        return f"a filter in NHWC needs x in NHWC, not {x.layout}"
    if x.rank == 5:
        if algorithm != ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM or x.dtype == DataType.DOUBLE:
            return f"{algorithm} of {x.dtype.name} has no NDHWC form"
        return None if y.fits(CHANNELS_LAST[5]) else "a filter in NDHWC needs y in NDHWC"
    if algorithm not in _GEMMS:
        return f"{algorithm} has no NHWC form"
    return None if y.fits("NHWC") or y.fits("NCHW") else "a filter in NHWC needs y packed"


def winograd_refusal(x: TensorSpec, w: FilterSpec, conv: ConvolutionSpec) -> str | None:
    """Return why WINOGRAD_NONFUSED refuses floats in NCHW."""
    _, stride, dilation = conv.steps(x.rank - 2)
    if x.dtype == DataType.DOUBLE or w.shape[2:] not in ((3, 3), (5, 5)) or {*stride, *dilation} != {1}:
        return "Winograd needs a 3x3 or 5x5 filter, stride 1, no dilation, not float64"
    return None


def fft_refusal(
    algorithm: ConvolutionFwdAlgo, x: TensorSpec, w: FilterSpec, conv: ConvolutionSpec, y: TensorSpec, most: int = 2
) -> str | None:
    """Return why FFT or FFT_TILING refuses floats; `most` is the largest stride of the latter in two dimensions."""
    padding, stride, dilation = conv.steps(x.rank - 2)
    taps = w.shape[2:]
    if not (x.fits(CHANNELS_FIRST[x.rank]) and y.fits(CHANNELS_FIRST[x.rank])):
        return "FFT needs NCHW throughout"
    if x.dtype == DataType.BFLOAT16 or conv.compute_type == DataType.HALF:
        return "FFT computes in float32 or float64, from float32, float64 or float16"
    if max(dilation) > 1 or any(pad >= tap for pad, tap in zip(padding, taps, strict=True)):
        return "FFT needs no dilation, and padding smaller than the filter"
    if algorithm == ConvolutionFwdAlgo.FFT:
        if x.rank != 4 or x.dtype == DataType.DOUBLE or max(stride) > 1:
            return "FFT is 2-D, of stride 1, not float64"
        if any(size + 2 * pad > _FFT_MAX_PADDED for size, pad in zip(x.shape[2:], padding, strict=True)):
            return f"FFT needs a padded image of at most {_FFT_MAX_PADDED}"
        return None
    if x.rank == 5:
        small = max(taps) <= _TILE_MAX_TAPS_3D and max(stride) == 1
        return None if small else f"3-D FFT_TILING needs stride 1 and at most {_TILE_MAX_TAPS_3D} taps an axis"
    if 1 in taps:
        one = max(stride) == 1 and max(taps) <= _TILE_MAX_TAPS_1D
        return None if one else "FFT_TILING of one-dimensional filters needs stride 1"
    if x.dtype == DataType.DOUBLE or max(stride) > most or max(taps) > _TILE_MAX_TAPS:
        return f"FFT_TILING needs a stride of at most {most} and at most {_TILE_MAX_TAPS} taps an axis, not float64"
    return None
