"""Which convolution algorithms a GPU runs without workspace.

The rules come from two recordings on an H200 with cuDNN 9.19: tests/emulated/data/workspaces.json,
and the workspaces in tests/emulated/data/convolution_backward_*_support.json.  No algorithm needs
less than it did there: what the recordings do not decide needs workspace.
"""

from __future__ import annotations

import math
from typing import Any

from cudnnlite.enums import (
    ConvolutionBwdFilterAlgo,
    ConvolutionFwdAlgo,
    DataType,
    MathType,
    TensorFormat,
)
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec

_HALVES = (DataType.HALF, DataType.BFLOAT16)
_TENSOR_OPS = (MathType.TENSOR_OP, MathType.TENSOR_OP_ALLOW_CONVERSION)
# The largest gradients of filters, with 2-D images, that were computed without workspace.
_MAX_CHANNELS = 8
_MAX_PIXELS = 2 * 32 * 36  # of all images
_MAX_TAPS = 9 * 9


def needs_workspace(algorithm: Any, x: TensorSpec, w: FilterSpec, conv: ConvolutionSpec) -> bool:
    """Return whether an algorithm needs workspace, for a problem that it supports.

    The specs are those of x and w, or of their gradients.
    """
    if isinstance(algorithm, ConvolutionFwdAlgo):
        return algorithm != ConvolutionFwdAlgo.IMPLICIT_GEMM
    if algorithm.name == "ALGO_0":
        return False
    if algorithm.name == "ALGO_1":
        if isinstance(algorithm, ConvolutionBwdFilterAlgo):
            return _filter_needs_workspace(x, w, conv)
        return _images_need_workspace(x, w, conv)
    if algorithm.name == "ALGO_3":
        return _algo_3_needs_workspace(x, w)
    return True  # Winograd's algorithm and the Fourier transforms


def _images_need_workspace(x: TensorSpec, w: FilterSpec, conv: ConvolutionSpec) -> bool:
    """Answer for ALGO_1 of the gradient of images."""
    _, stride, _ = conv.steps(x.rank - 2)
    if x.rank == 5 and w.format == TensorFormat.NHWC:
        if math.prod(w.shape[2:]) == 1:
            return x.dtype != DataType.BFLOAT16
        return x.dtype == DataType.FLOAT and max(stride) > 1
    if conv.math_type in _TENSOR_OPS:
        return True
    if x.dtype == DataType.BFLOAT16:
        return False
    if x.rank == 5 and x.dtype != DataType.FLOAT:
        return False
    is_plain = conv.math_type == MathType.FMA and conv.groups == 1 and w.format == TensorFormat.NCHW
    return not (x.dtype == DataType.FLOAT and is_plain)


def _filter_needs_workspace(x: TensorSpec, w: FilterSpec, conv: ConvolutionSpec) -> bool:
    """Answer for ALGO_1 of the gradient of a filter."""
    _, stride, dilation = conv.steps(x.rank - 2)
    if x.rank == 5:
        if x.dtype == DataType.DOUBLE:
            return False
        is_fma = x.dtype == DataType.FLOAT and conv.math_type == MathType.FMA
        return not is_fma or max(dilation) > 1
    if conv.math_type in _TENSOR_OPS and math.prod(w.shape[2:]) == 1:
        return True
    if x.shape[2] == 1 and max(stride) > 1 and max(dilation) > 1:
        return x.dtype not in _HALVES
    return not _is_small(x, w)


def _algo_3_needs_workspace(x: TensorSpec, w: FilterSpec) -> bool:
    if x.rank == 5:
        return x.dtype in _HALVES
    return not _is_small(x, w)


def _is_small(x: TensorSpec, w: FilterSpec) -> bool:
    """Return whether the gradient of a filter is no larger than those recorded without workspace.

    The images are 2-D.
    """
    pixels = x.shape[0] * math.prod(x.shape[2:])
    channels = max(x.shape[1], w.shape[0])
    taps = math.prod(w.shape[2:])
    return channels <= _MAX_CHANNELS and pixels <= _MAX_PIXELS and taps <= _MAX_TAPS
