"""What a GPU refuses of convolutions and of their gradients; of these the rules, as `emulated.support` has the others.

They reproduce tables recorded on an H200 with cuDNN 9.19 (tests/emulated/data/convolution_backward_*_support.json).
"""

from __future__ import annotations

from typing import Any

from cudnnlite.emulated.support import multiplies_in_tf32, refusal, tf32_is_forbidden
from cudnnlite.enums import ConvolutionBwdDataAlgo, ConvolutionBwdFilterAlgo, ConvolutionFwdAlgo, DataType, MathType
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec

_NONDETERMINISTIC = (ConvolutionBwdDataAlgo.ALGO_0, ConvolutionBwdFilterAlgo.ALGO_0, ConvolutionBwdFilterAlgo.ALGO_3)
_TF32 = (ConvolutionBwdDataAlgo.ALGO_1, ConvolutionBwdFilterAlgo.ALGO_1)


def is_deterministic(algorithm: Any) -> bool:
    """Tell whether cuDNN says of an algorithm that it gives the same bits each time."""
    return not any(algorithm is one for one in _NONDETERMINISTIC)


def rounds_to_tf32(algorithm: Any, dtype: DataType, conv: ConvolutionSpec) -> bool:
    """Tell whether products of float32 are rounded to TF32."""
    if isinstance(algorithm, ConvolutionFwdAlgo):
        return multiplies_in_tf32(algorithm, dtype, conv)
    allowed = dtype == DataType.FLOAT and conv.math_type != MathType.FMA and not tf32_is_forbidden()
    return allowed and any(algorithm is one for one in _TF32)


def why_refused(algorithm: Any, x: TensorSpec, w: FilterSpec, conv: ConvolutionSpec, y: TensorSpec) -> str | None:
    """Return why cuDNN does not support the combination; None if it does.

    The specs are those of x, w and y, or of their gradients.
    """
    if isinstance(algorithm, ConvolutionFwdAlgo):
        return refusal(algorithm, x, w, conv, y)
    return None
