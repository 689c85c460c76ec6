"""Emulated `cudnnConvolutionBiasActivationForward`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cudnnlite.devices.storage import read_values, write_values
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.convolution import ConvolutionCall
from cudnnlite.emulated.memory import Bytes
from cudnnlite.emulated.operation import Array
from cudnnlite.emulated.precision import to_output
from cudnnlite.emulated.registry import Work, emulates, unsupported
from cudnnlite.enums import ActivationMode, NanPropagation

_FUNCTION = "cudnnConvolutionBiasActivationForward"


@emulates(_FUNCTION)
def forward(api: EmulatedApi, *arguments: Any) -> Work:
    """Compute y = activation(alpha1 * conv(x, w) + alpha2 * z + bias); z may be y."""
    z, y = arguments[12], arguments[17]
    alone = "convolution_bias_activation_forward"  # in whose eyes the z that is y is its old values
    with_z = "convolution_bias_addition_activation_forward"
    call = ConvolutionCall(api, alone if z == y else with_z, _FUNCTION, arguments)
    activation = call.options["activation"]
    if activation.mode not in (ActivationMode.IDENTITY, ActivationMode.RELU):
        raise unsupported(f"activation {activation.mode.name}")
    alpha, alpha2 = call.number("alpha"), call.number("alpha2")
    kind, added = call.compute, "y" if z == y else "z"

    def finish(batch: slice, result: Array, views: Mapping[str, Bytes]) -> None:
        values = result.astype(kind) * kind.type(alpha)
        if alpha2:
            values += kind.type(alpha2) * read_values(views[added], call.specs[added])[batch].astype(kind)
        values += read_values(views["bias"], call.specs["bias"]).astype(kind)
        if activation.mode == ActivationMode.RELU:
            values = (np.maximum if activation.nan == NanPropagation.PROPAGATE else np.fmax)(values, 0)
        write_values(views["y"], call.y, batch, to_output(values, numpy_dtype(call.y.dtype)))

    return call.convolve(call.algorithm, finish)
