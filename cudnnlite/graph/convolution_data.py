"""`ConvolutionData`: graphs of convolutions, alone or with bias, addition and activation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnnlite._raw.enums import PointwiseMode
from cudnnlite.enums import ActivationMode, DataType
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec
from cudnnlite.specs.filter import as_tensor
from cudnnlite.specs.layers import ActivationSpec

# The pointwise mode of each activation, and the attribute that takes its coefficient.
MODES = {
    ActivationMode.RELU: (PointwiseMode.RELU_FWD, ""),
    ActivationMode.CLIPPED_RELU: (PointwiseMode.RELU_FWD, "relu_upper_clip"),
    ActivationMode.SIGMOID: (PointwiseMode.SIGMOID_FWD, ""),
    ActivationMode.TANH: (PointwiseMode.TANH_FWD, ""),
    ActivationMode.ELU: (PointwiseMode.ELU_FWD, "elu_alpha"),
    ActivationMode.SWISH: (PointwiseMode.SWISH_FWD, "swish_beta"),
}
_WRITTEN = {
    "CONVOLUTION_FORWARD": "y",
    "CONVOLUTION_BACKWARD_DATA": "dx",
    "CONVOLUTION_BACKWARD_FILTER": "dw",
}


def add_input(graph: GraphData, name: str, spec: TensorSpec | FilterSpec) -> GraphTensor:
    """Return a tensor that each call is given, as a spec says; rows are images one pixel high."""
    shape, strides = as_tensor(spec).native()
    return graph.input(name, shape, spec.dtype, strides)


def add_output(
    graph: GraphData, name: str, tensor: GraphTensor, spec: TensorSpec | FilterSpec
) -> GraphTensor:
    """Let a tensor be written to memory as a spec says, and return it."""
    _, strides = as_tensor(spec).native()
    return graph.output(name, tensor, spec.dtype, strides)


class ConvolutionData(GraphData):
    """A graph whose tensors are described by specs; images one pixel high stand for rows."""

    def between(self, spec: TensorSpec | FilterSpec) -> GraphTensor:
        """Return a virtual tensor."""
        shape, strides = as_tensor(spec).native()
        return self.virtual(shape, spec.dtype, strides)

    def convolution(
        self,
        kind: str,
        reads: Mapping[str, GraphTensor],
        spec: TensorSpec | FilterSpec,
        conv: ConvolutionSpec,
        compute: DataType,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> GraphTensor:
        """Return a convolution, or a gradient of one.

        Parameters
        ----------
        kind : str
            "CONVOLUTION_FORWARD", ...
        reads : mapping
            The operands by the names of the operation's attributes.
        spec : TensorSpec or FilterSpec
            The spec of the result.
        conv : ConvolutionSpec
            Padding, stride, dilation and mode.
        compute : DataType
            The data type in which products are summed.
        alpha, beta : float
            The factors of the result, and of the output's old values.
        """
        spatial = spec.rank - 2
        (_, stride, dilation), pads = conv.steps(spatial), conv.pads(spatial)
        if spatial == 1:
            pads, stride, dilation = ((0, 0), *pads), (1, *stride), (1, *dilation)
        before, behind = zip(*pads, strict=True)
        attributes = {
            "comp_type": compute,
            "conv_mode": conv.mode,
            "dilations": dilation,
            "filter_strides": stride,
            "pre_paddings": before,
            "post_paddings": behind,
            "spatial_dims": len(pads),
            "alpha": alpha,
            "beta": beta,
        }
        result = self.between(spec)
        self.node(kind, attributes, reads=reads, writes={_WRITTEN[kind]: result})
        return result

    def function(
        self,
        mode: PointwiseMode,
        spec: TensorSpec | FilterSpec,
        *operands: GraphTensor,
        compute: DataType = DataType.FLOAT,
        alphas: tuple[float, float] = (1.0, 1.0),
        coefficients: Mapping[str, Any] | None = None,
    ) -> GraphTensor:
        """Return a pointwise operation of alphas[0] * x and alphas[1] * b.

        `spec` is that of the result; `coefficients` are attributes of its "POINTWISE" descriptor.
        """
        attributes = {"mode": mode, "math_prec": compute, **(coefficients or {})}
        for name, alpha in zip(("alpha1", "alpha2"), alphas, strict=True):
            if alpha != 1:
                attributes[name] = alpha
        result = self.between(spec)
        reads = dict(zip(("xdesc", "bdesc"), operands, strict=False))
        self.node("POINTWISE", attributes, reads=reads, writes={"ydesc": result})
        return result


def convolution_data(
    kind: str, specs: Mapping[str, Any], conv: ConvolutionSpec, alpha: float, beta: float
) -> ConvolutionData:
    """Return one convolution, or a gradient of one, as a graph.

    `kind` is "CONVOLUTION_FORWARD", ...  `specs` has the specs of the operands, and the result's at
    the end, by the names of the operation's attributes.
    """
    *operand_names, result_name = specs
    compute = conv.compute_type_for(specs[operand_names[0]])
    data = ConvolutionData(compute)
    reads = {name: add_input(data, name, specs[name]) for name in operand_names}
    result = data.convolution(kind, reads, specs[result_name], conv, compute, alpha, beta)
    add_output(data, result_name, result, specs[result_name])
    return data


def fused_data(
    specs: Mapping[str, Any],
    conv: ConvolutionSpec,
    activation: ActivationSpec,
    alpha: float = 1.0,
    alpha2: float = 0.0,
) -> ConvolutionData:
    """Return y = activation(alpha * conv(x, w) + alpha2 * z + bias) as a graph.

    In this order, and with `alpha` as a scalar of the addition of z, an H200 has engines in every
    data type and layout; with the scalar at the convolution, or at the bias, it has none.

    `specs` are of "x", "w", "bias", "z" where that is added, "y".
    """
    compute = conv.compute_type_for(specs["x"])
    wide = DataType.DOUBLE if compute == DataType.DOUBLE else DataType.FLOAT
    data = ConvolutionData(compute)
    operands = {name: add_input(data, name, spec) for name, spec in specs.items() if name != "y"}
    between = specs["y"].packed(specs["y"].shape, wide)
    reads = {name: operands[name] for name in ("x", "w")}
    scale = 1.0 if "z" in operands else alpha
    y = data.convolution("CONVOLUTION_FORWARD", reads, between, conv, compute, scale)
    if "z" in operands:
        alphas = (alpha, alpha2)
        y = data.function(PointwiseMode.ADD, between, y, operands["z"], compute=wide, alphas=alphas)
    y = data.function(PointwiseMode.ADD, between, y, operands["bias"], compute=wide)
    if activation.mode != ActivationMode.IDENTITY:
        mode, coefficient = MODES[activation.mode]
        coefficients: dict[str, Any] = {coefficient: activation.coef} if coefficient else {}
        if mode == PointwiseMode.RELU_FWD:
            coefficients["nan_propagation"] = activation.nan
        y = data.function(mode, between, y, compute=wide, coefficients=coefficients)
    add_output(data, "y", y, specs["y"])
    return data
