"""Emulated forward convolution with a bias, an addition and an activation behind it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated.convolution_call import ConvolutionCall, ReadOperand
from cudnnlite.emulated.operation_call import Array
from cudnnlite.emulated.precision import to_output
from cudnnlite.emulated.registry import Work, emulates, unsupported
from cudnnlite.enums import ActivationMode, NanPropagation
from cudnnlite.problems.fused_convolution import FUSED, FUSED_WITH_Z


@emulates("cudnnConvolutionBiasActivationForward")
def forward(c_call: SimpleNamespace) -> Work:
    """`cudnnConvolutionBiasActivationForward`: write activation(alpha1 * conv + alpha2 * z + bias).

    z may have the address of y: then the values that y holds before the call are added.
    """
    is_in_place = c_call.z == c_call.y
    call = ConvolutionCall(c_call, FUSED if is_in_place else FUSED_WITH_Z)
    addition = "y" if is_in_place else "z"
    activation = call.options["activation"]
    if activation.mode not in (ActivationMode.IDENTITY, ActivationMode.RELU):
        raise unsupported(f"activation {activation.mode.name}")
    dtype = call.compute_dtype
    alpha = dtype.type(call.number("alpha"))
    alpha2 = dtype.type(call.number("alpha2"))
    maximum = np.maximum if activation.nan == NanPropagation.PROPAGATE else np.fmax

    def finish_result(result: Array, read_operand: ReadOperand) -> Array:
        values = result.astype(dtype) * alpha
        if alpha2:
            values += alpha2 * read_operand(addition).astype(dtype)
        values += read_operand("bias").astype(dtype)
        if activation.mode == ActivationMode.RELU:
            values = maximum(values, 0)
        return to_output(values, numpy_dtype(call.y.dtype))

    return call.convolution_work(call.algorithm, finish_result)
