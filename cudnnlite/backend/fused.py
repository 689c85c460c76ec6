"""The operation graph of a convolution with an addition, a bias and an activation behind it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from cudnnlite._raw.enums import PointwiseMode
from cudnnlite.backend.graph import Graph
from cudnnlite.enums import ActivationMode, DataType
from cudnnlite.specs import ConvolutionSpec
from cudnnlite.specs.layers import ActivationSpec

# by mode: what it is to graphs, and by which attribute its coefficient goes
MODES = {
    ActivationMode.RELU: (PointwiseMode.RELU_FWD, ""),
    ActivationMode.CLIPPED_RELU: (PointwiseMode.RELU_FWD, "relu_upper_clip"),
    ActivationMode.SIGMOID: (PointwiseMode.SIGMOID_FWD, ""),
    ActivationMode.TANH: (PointwiseMode.TANH_FWD, ""),
    ActivationMode.ELU: (PointwiseMode.ELU_FWD, "elu_alpha"),
    ActivationMode.SWISH: (PointwiseMode.SWISH_FWD, "swish_beta"),
}


def fused_graph(
    handle: Any, stack: ExitStack, specs: Mapping[str, Any], conv: ConvolutionSpec, activation: ActivationSpec,
    alpha: float = 1.0, alpha2: float = 0.0,
) -> Graph:  # fmt: skip
    """Return the graph of y = activation(alpha * conv(x, w) + alpha2 * z + bias).

    In this order, and with `alpha` as a scalar of the addition of z, an H200 has engines in every data type and layout; with
    the scalar at the convolution, or at the bias, it has none.

    Parameters
    ----------
    handle, stack
        As in `Graph`.
    specs : mapping
        "x", "w", "bias", "z" where that is added, "y".
    conv, activation : ConvolutionSpec, ActivationSpec
        What is done.
    alpha, alpha2 : float
        The scalars.
    """
    graph = Graph(handle, stack)
    tensors = {name: graph.tensor(name, spec) for name, spec in specs.items()}
    spatial, compute = specs["x"].rank - 2, conv.compute_type_for(specs["x"])
    wide = DataType.DOUBLE if compute == DataType.DOUBLE else DataType.FLOAT
    between = specs["y"].packed(specs["y"].shape, wide)
    steps: list[tuple[PointwiseMode, dict[str, Any]]] = []
    if "z" in tensors:
        steps.append((PointwiseMode.ADD, {"bdesc": tensors["z"], "alphas": (alpha, alpha2)}))
        alpha = 1.0
    steps.append((PointwiseMode.ADD, {"bdesc": tensors["bias"]}))
    if activation.mode != ActivationMode.IDENTITY:
        mode, coefficient = MODES[activation.mode]
        coefficients: dict[str, Any] = {coefficient: activation.coef} if coefficient else {}
        if mode == PointwiseMode.RELU_FWD:
            coefficients["nan_propagation"] = activation.nan
        steps.append((mode, {"coefficients": coefficients}))
    ends = [graph.tensor(f"between {number}", between, virtual=True) for number in range(len(steps))]
    operands = {"x": tensors["x"], "w": tensors["w"], "y": ends[0]}
    graph.convolution("OPERATION_CONVOLUTION_FORWARD", operands, conv, spatial, compute, alpha)
    for number, (mode, given) in enumerate(steps):
        following = tensors["y"] if number == len(steps) - 1 else ends[number + 1]
        graph.pointwise(mode, compute=wide, xdesc=ends[number], ydesc=following, **given)
    return graph.finish()
