"""What a GPU refuses of convolutions and their gradients: where cuDNN returns NOT_SUPPORTED, and where it multiplies in TF32.

The rules reproduce tables recorded on an H200 with cuDNN 9.19 (tests/emulated/data/convolution*_support.json): every row of
them is a test.  What the tables do not cover is refused, so that what runs on the emulated device runs on a GPU.
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
_TILE_MAX_OUTPUT = (
    33  # the longest axis of dy that FFT_TILING was seen to take for the gradient of a filter
)
_GEMMS = ("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM")


class _Problem(NamedTuple):
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
    def in_half(self) -> bool:
        """Whether it is accumulated in half."""
        return self.conv.compute_type == DataType.HALF


def is_deterministic(algorithm: Any) -> bool:
    """Tell whether cuDNN says of an algorithm that it gives the same bits each time."""
    return algorithm.name not in ("ALGO_0", "ALGO_3")


def rounds_to_tf32(algorithm: Any, dtype: DataType, conv: ConvolutionSpec) -> bool:
    """Tell whether products of float32 are rounded to TF32.

    On the H200 only IMPLICIT_PRECOMP_GEMM does so (relative error 3e-4), and ALGO_1 of the gradients; under FMA_MATH, or with
    the driver's override set to 0, none does.
    """
    return multiplies_in_tf32(dtype, conv.math_type) and algorithm.name in (
        "IMPLICIT_PRECOMP_GEMM",
        "ALGO_1",
    )


def multiplies_in_tf32(dtype: DataType, math_type: MathType) -> bool:
    """Tell whether products of a type may be rounded to TF32."""
    return dtype == DataType.FLOAT and math_type != MathType.FMA and not tf32_is_forbidden()


def tf32_is_forbidden() -> bool:
    """Tell whether NVIDIA's own switch is set, which an H200 obeys in convolutions and in recurrent networks."""
    return os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"


def why_refused(
    algorithm: Any, x: TensorSpec, w: FilterSpec, conv: ConvolutionSpec, y: TensorSpec
) -> str | None:
    """Return why cuDNN does not support the combination; None if it does.

    The specs are those of x, w and y, or of their gradients.
    """
    problem = _Problem(x, w, conv, y)
    if not isinstance(algorithm, ConvolutionFwdAlgo):
        is_filter = isinstance(algorithm, ConvolutionBwdFilterAlgo)
        return _compute(problem) or _gradient(algorithm.name, problem, is_filter=is_filter)
    if x.dtype not in _COMPUTE:
        return _integers(algorithm.name, problem)
    if y.dtype != x.dtype:
        return f"y is {y.dtype.name}, x and w are {x.dtype.name}"
    return _compute(problem) or _forward(algorithm.name, problem)


def why_no_engine(x: TensorSpec, w: FilterSpec, conv: ConvolutionSpec, y: TensorSpec) -> str | None:
    """Return why no engine computes a gradient; an H200 has one for all operands of one type, in any layouts."""
    if not x.dtype == w.dtype == y.dtype:
        return f"operands of several types: {x.dtype.name}, {w.dtype.name}, {y.dtype.name}"
    return _compute(_Problem(x, w, conv, y))


def why_no_forward_engine(
    x: TensorSpec,
    w: FilterSpec,
    conv: ConvolutionSpec,
    y: TensorSpec,
    *,
    is_fused: bool,
) -> str | None:
    """Return why no engine computes a convolution: an H200 has one for what a matrix product computes.

    It has engines for float64 in NDHWC besides, which none of the algorithms computes.  Whether these take pointwise
    operations as well is not recorded, so a fused convolution is refused.
    """
    is_double = x.dtype == w.dtype == y.dtype == DataType.DOUBLE
    is_channels_last = w.format == TensorFormat.NHWC and x.fits("NDHWC") and y.fits("NDHWC")
    if is_double and x.rank == 5 and is_channels_last and not is_fused:
        return _compute(_Problem(x, w, conv, y))
    reasons = [why_refused(ConvolutionFwdAlgo[name], x, w, conv, y) for name in reversed(_GEMMS)]
    return reasons[0] if all(reasons) else None


def _compute(problem: _Problem) -> str | None:
    """Return why floats are not accumulated in the compute type."""
    kind = problem.conv.compute_type_for(problem.x)
    return (
        None
        if kind in _COMPUTE.get(problem.x.dtype, ())
        else f"compute type {kind} for {problem.x.dtype.name}"
    )


def _forward(name: str, problem: _Problem) -> str | None:
    if problem.w.format == TensorFormat.NHWC:
        return _channels_last(name, problem)
    if name in _GEMMS:
        return None
    if name == "GEMM":
        if problem.x.rank != 4:
            return "GEMM has no 3-D form"
        return "GEMM does not accumulate in half" if problem.in_half else None
    return _transformed(name, problem)


def _integers(name: str, problem: _Problem) -> str | None:
    x, w, conv, y = problem
    if name not in _GEMMS:
        return f"{name} has no integer form"
    if y.dtype not in _INTEGER_OUTPUTS.get(x.dtype, ()):
        return f"y is {y.dtype.name}, x and w are {x.dtype.name}"
    if conv.compute_type != DataType.INT32 or x.rank != 4:
        return "integers are accumulated in int32, in two dimensions"
    if max(problem.steps[2]) > 1:
        return "integers are not dilated"
    if x.dtype == DataType.INT8:
        if not (x.fits("NHWC") and w.format == TensorFormat.NHWC and y.fits("NHWC")):
            return "int8 must be NHWC throughout"
        if w.shape[0] % 4 or w.shape[1] % 4:
            return "int8 needs channels in multiples of 4"
    elif vector_length(y.dtype) == 1 and not y.fits("NCHW"):
        return "float output of a vector type must be NCHW"
    return None


def _channels_last(name: str, problem: _Problem) -> str | None:
    x, _, _, y = problem
    if not x.fits(CHANNELS_LAST[x.rank]):
        return f"a filter in NHWC needs x in NHWC, not {x.layout}"
    if x.rank == 5:
        if name != "IMPLICIT_PRECOMP_GEMM" or x.dtype == DataType.DOUBLE:
            return f"{name} of {x.dtype.name} has no NDHWC form"
        return None if y.fits(CHANNELS_LAST[5]) else "a filter in NDHWC needs y in NDHWC"
    if name not in _GEMMS:
        return f"{name} has no NHWC form"
    return None if y.fits("NHWC") or y.fits("NCHW") else "a filter in NHWC needs y packed"


def _transformed(name: str, problem: _Problem, most: int = 2) -> str | None:
    """Return why Winograd's or an FFT refuses floats; `most` is the largest stride of FFT_TILING in two dimensions."""
    x, w, _, y = problem
    (padding, stride, dilation), taps = problem.steps, w.shape[2:]
    if name == "WINOGRAD_NONFUSED":
        if (
            x.dtype == DataType.DOUBLE
            or taps not in ((3, 3), (5, 5))
            or {*stride, *dilation} != {1}
        ):
            return "Winograd needs a 3x3 or 5x5 filter, stride 1, no dilation, not float64"
        return None
    if name not in ("FFT", "FFT_TILING"):
        return (
            f"{name} is no algorithm"
            if name.startswith("UNKNOWN")
            else f"{name} runs on no recent GPU"
        )
    if not (x.fits(CHANNELS_FIRST[x.rank]) and y.fits(CHANNELS_FIRST[x.rank])):
        return "FFT needs NCHW throughout"
    if x.dtype == DataType.BFLOAT16 or problem.in_half:
        return "FFT computes in float32 or float64, from float32, float64 or float16"
    if max(dilation) > 1 or any(pad >= tap for pad, tap in zip(padding, taps, strict=True)):
        return "FFT needs no dilation, and padding smaller than the filter"
    if name == "FFT":
        if x.rank != 4 or x.dtype == DataType.DOUBLE or max(stride) > 1:
            return "FFT is 2-D, of stride 1, not float64"
        fits = all(
            size + 2 * pad <= _FFT_MAX_PADDED
            for size, pad in zip(x.shape[2:], padding, strict=True)
        )
        return None if fits else f"FFT needs a padded image of at most {_FFT_MAX_PADDED}"
    if x.rank == 5:
        small = max(taps) <= _TILE_MAX_TAPS_3D and max(stride) == 1
        return (
            None
            if small
            else f"3-D FFT_TILING needs stride 1 and at most {_TILE_MAX_TAPS_3D} taps an axis"
        )
    if 1 in taps:
        one = max(stride) == 1 and max(taps) <= _TILE_MAX_TAPS_1D
        return None if one else "FFT_TILING of one-dimensional filters needs stride 1"
    if x.dtype == DataType.DOUBLE or max(stride) > most or max(taps) > _TILE_MAX_TAPS:
        return f"FFT_TILING needs a stride of at most {most} and at most {_TILE_MAX_TAPS} taps an axis, not float64"
    return None


def _gradient(name: str, problem: _Problem, *, is_filter: bool) -> str | None:
    x, w, _, y = problem
    last, general = w.format == TensorFormat.NHWC, name in ("ALGO_0", "ALGO_1")
    # what is read has to lie as the filter does; beside a filter in NCHW what stands for the other may mostly lie in any way
    read, other = (x, y) if is_filter else (y, x)
    layout = (CHANNELS_LAST if last else CHANNELS_FIRST)[x.rank]
    alike = last or (x.rank == 5 and (name == "ALGO_3" or (name == "ALGO_1" and not is_filter)))
    anyhow = is_filter and general and x.rank == 5 and not last
    if not anyhow and (not read.fits(layout) or (alike and not other.fits(layout))):
        return f"{name} with a filter in {layout} needs images in {layout}"
    if general:
        if last and (x.dtype == DataType.DOUBLE or (x.rank == 5 and name == "ALGO_0")):
            return f"{name} of {x.dtype.name} has no {layout} form"
        no_half = is_filter and (last or name == "ALGO_0")
        return f"{name} does not accumulate in half" if no_half and problem.in_half else None
    if last:
        return f"{name} has no {layout} form"
    if name == "ALGO_3":
        dilated = x.rank == 4 and max(problem.steps[2]) > 1
        return "ALGO_3 takes no dilation, and no half" if dilated or problem.in_half else None
    if name != "FFT_TILING" or not is_filter:
        return _transformed(name, problem, most=3)
    # the gradient of a filter is a convolution with dy as the filter
    size = y.shape[2:]
    padded = any(pad >= taps for pad, taps in zip(problem.steps[0], w.shape[2:], strict=True))
    if x.rank != 4 or 1 not in size or max(size) > _TILE_MAX_OUTPUT or padded:
        return f"FFT_TILING of the gradient of a filter needs a dy of one row or column, of at most {_TILE_MAX_OUTPUT}"
    return _transformed(name, problem._replace(w=FilterSpec((*w.shape[:2], *size), w.dtype)))
