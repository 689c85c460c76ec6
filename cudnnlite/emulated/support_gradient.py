"""What a GPU refuses of the gradients of a convolution, as `emulated.support` says it of the convolution.

The rules reproduce tables recorded on an H200 with cuDNN 9.19 (tests/emulated/data/convolution_backward_*_support.json).
"""

from __future__ import annotations

from typing import Any

from cudnnlite.emulated.support import (
    compute_refusal,
    fft_refusal,
    multiplies_in_tf32,
    refusal,
    tf32_is_forbidden,
    winograd_refusal,
)
from cudnnlite.enums import (
    ConvolutionBwdFilterAlgo,
    ConvolutionFwdAlgo,
    DataType,
    MathType,
    TensorFormat,
)
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST

_NONDETERMINISTIC = ("ALGO_0", "ALGO_3")
_TILE_MAX_OUTPUT = 33  # the longest axis of dy that FFT_TILING was seen to take for the gradient of a filter


def is_deterministic(algorithm: Any) -> bool:
    """Tell whether cuDNN says of an algorithm that it gives the same bits each time."""
    return algorithm.name not in _NONDETERMINISTIC


def rounds_to_tf32(algorithm: Any, dtype: DataType, conv: ConvolutionSpec) -> bool:
    """Tell whether products of float32 are rounded to TF32: of the gradients' algorithms ALGO_1 does, unless FMA forbids."""
    if isinstance(algorithm, ConvolutionFwdAlgo):
        return multiplies_in_tf32(algorithm, dtype, conv)
    allowed = dtype == DataType.FLOAT and conv.math_type != MathType.FMA and not tf32_is_forbidden()
    return allowed and algorithm.name == "ALGO_1"


def why_refused(algorithm: Any, x: TensorSpec, w: FilterSpec, conv: ConvolutionSpec, y: TensorSpec) -> str | None:
    """Return why cuDNN does not support the combination; None if it does.

    The specs are those of x, w and y, or of their gradients.
    """
    if isinstance(algorithm, ConvolutionFwdAlgo):
        return refusal(algorithm, x, w, conv, y)
    name, last, is_filter = (
        algorithm.name,
        w.format == TensorFormat.NHWC,
        isinstance(algorithm, ConvolutionBwdFilterAlgo),
    )
    # what is read has to lie as the filter does; beside a filter in NCHW what stands for the other may mostly lie in any way
    read, other = (x, y) if is_filter else (y, x)
    layout = (CHANNELS_LAST if last else CHANNELS_FIRST)[x.rank]
    if why := compute_refusal(x, conv):
        return why
    general = name in ("ALGO_0", "ALGO_1")
    alike = last or (x.rank == 5 and (name == "ALGO_3" or (name == "ALGO_1" and not is_filter)))
    anyhow = is_filter and general and x.rank == 5 and not last
    if not anyhow and (not read.fits(layout) or (alike and not other.fits(layout))):
        return f"{name} with a filter in {layout} needs images in {layout}"
    if not general:
        return f"{name} has no {layout} form" if last else _special(algorithm, x, w, conv, y)
    if last and (x.dtype == DataType.DOUBLE or (x.rank == 5 and name == "ALGO_0")):
        return f"{name} of {x.dtype.name} has no {layout} form"
    no_half = is_filter and (last or name == "ALGO_0")
    return f"{name} does not accumulate in half" if no_half and conv.compute_type == DataType.HALF else None


def _special(algorithm: Any, x: TensorSpec, w: FilterSpec, conv: ConvolutionSpec, y: TensorSpec) -> str | None:
    """Return why an algorithm other than the two general ones refuses."""
    name, is_filter = algorithm.name, isinstance(algorithm, ConvolutionBwdFilterAlgo)
    if name == "WINOGRAD_NONFUSED":
        return winograd_refusal(x, w, conv)
    if name == "ALGO_3":
        dilated = x.rank == 4 and max(conv.steps(2)[2]) > 1
        return "ALGO_3 takes no dilation, and no half" if dilated or conv.compute_type == DataType.HALF else None
    if name == "FFT_TILING" and is_filter:
        return _tiled(x, w, conv, y)
    if name in ("FFT", "FFT_TILING"):
        return fft_refusal(ConvolutionFwdAlgo[name], x, w, conv, y, most=3)
    return f"{name} runs on no recent GPU"


def _tiled(x: TensorSpec, w: FilterSpec, conv: ConvolutionSpec, y: TensorSpec) -> str | None:
    """Return why FFT_TILING refuses the gradient of a filter, which is a convolution with dy as the filter."""
    size = y.shape[2:]
    padded = any(pad >= taps for pad, taps in zip(conv.steps(x.rank - 2)[0], w.shape[2:], strict=True))
    if x.rank != 4 or 1 not in size or max(size) > _TILE_MAX_OUTPUT or padded:
        return f"FFT_TILING of the gradient of a filter needs a dy of one row or column, of at most {_TILE_MAX_OUTPUT}"
    return fft_refusal(ConvolutionFwdAlgo.FFT_TILING, x, FilterSpec((*w.shape[:2], *size), w.dtype), conv, y)


def why_no_engine(x: TensorSpec, w: FilterSpec, conv: ConvolutionSpec, y: TensorSpec) -> str | None:
    """Return why no engine computes a gradient; an H200 has one for all operands of one type, in any layouts."""
    if not x.dtype == w.dtype == y.dtype:
        return f"operands of several types: {x.dtype.name}, {w.dtype.name}, {y.dtype.name}"
    return compute_refusal(x, conv)
