"""What a GPU refuses: the combinations for which cuDNN returns NOT_SUPPORTED.

Recorded on a GPU (tests/emulated/data); the emulated device refuses at least those, so that what runs on it runs there.
"""

from __future__ import annotations

import os

from cudnnlite.enums import ConvolutionFwdAlgo, DataType, MathType
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec

# Which NumPy kernel (cudnnlite.emulated.kernels) answers for which algorithm.
KERNELS = {
    ConvolutionFwdAlgo.IMPLICIT_GEMM: "direct_gemm",
    ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM: "im2col_gemm",
    ConvolutionFwdAlgo.GEMM: "im2col_gemm",
    ConvolutionFwdAlgo.FFT: "fft",
    ConvolutionFwdAlgo.FFT_TILING: "fft_tiled",
    ConvolutionFwdAlgo.WINOGRAD: "winograd",
    ConvolutionFwdAlgo.WINOGRAD_NONFUSED: "winograd",
}


def multiplies_in_tf32(dtype: DataType, conv: ConvolutionSpec) -> bool:
    """Tell whether float32 products are rounded to TF32: unless FMA_MATH, or the driver's override forbids it."""
    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        return False
    return dtype == DataType.FLOAT and conv.math_type != MathType.FMA


def refusal(
    algorithm: ConvolutionFwdAlgo, x: TensorSpec, w: FilterSpec, conv: ConvolutionSpec, y: TensorSpec
) -> str | None:
    """Return why cuDNN does not support the combination; None if it does."""
    if algorithm not in KERNELS:
        return f"{algorithm} is not implemented"
    return None
