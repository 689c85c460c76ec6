"""Convolutions of a graph; whole graphs of one, with bias, addition and activation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cudnnlite._raw.enums import PointwiseMode
from cudnnlite.arguments import instance_of
from cudnnlite.enums import ActivationMode, DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.formulas import check_rank, check_same_rank
from cudnnlite.graph.records import Shape
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec
from cudnnlite.specs.filter import as_tensor
from cudnnlite.specs.layers import ActivationSpec
from cudnnlite.specs.layout import parse_shape

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


def convolution_forward(
    graph: GraphData, x: GraphTensor, w: GraphTensor, conv: ConvolutionSpec | None = None
) -> GraphTensor:
    """Return the convolution of images with a filter; padding may differ at the two ends."""
    check_same_rank(graph, x=x, w=w)
    spec = _parse_spec(conv).for_shapes(x.shape, w.shape)
    shape = spec.output_shape(x.shape, w.shape)
    return _convolve(graph, "CONVOLUTION_FORWARD", {"x": x, "w": w}, shape, spec)


def convolution_backward_data(
    graph: GraphData,
    w: GraphTensor,
    dy: GraphTensor,
    shape: Iterable[int],
    conv: ConvolutionSpec | None = None,
) -> GraphTensor:
    """Return the gradient of the images; `shape` is that of the images."""
    sizes = parse_shape(shape)
    check_same_rank(graph, w=w, dy=dy)
    spec = _parse_spec(conv).for_shapes(sizes, w.shape)
    _check_gradient(spec, sizes, w.shape, dy.shape)
    return _convolve(graph, "CONVOLUTION_BACKWARD_DATA", {"w": w, "dy": dy}, sizes, spec)


def convolution_backward_filter(
    graph: GraphData,
    x: GraphTensor,
    dy: GraphTensor,
    shape: Iterable[int],
    conv: ConvolutionSpec | None = None,
) -> GraphTensor:
    """Return the gradient of the filter; `shape` is that of the filter."""
    sizes = parse_shape(shape, batch_may_be_empty=False)
    check_same_rank(graph, x=x, dy=dy)
    spec = _parse_spec(conv).for_shapes(x.shape, sizes)
    _check_gradient(spec, x.shape, sizes, dy.shape)
    return _convolve(graph, "CONVOLUTION_BACKWARD_FILTER", {"x": x, "dy": dy}, sizes, spec)


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


def add_virtual(graph: GraphData, spec: TensorSpec | FilterSpec) -> GraphTensor:
    """Return a virtual tensor as a spec says."""
    shape, strides = as_tensor(spec).native()
    return graph.virtual(shape, spec.dtype, strides)


def add_convolution(
    graph: GraphData,
    kind: str,
    reads: Mapping[str, GraphTensor],
    spec: TensorSpec | FilterSpec,
    conv: ConvolutionSpec,
    compute: DataType,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> GraphTensor:
    """Return a convolution, or a gradient of one, as a virtual tensor.

    Parameters
    ----------
    graph : GraphData
        The graph that it is added to.
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
    result = add_virtual(graph, spec)
    _add_node(graph, kind, reads, result, conv, spec.rank - 2, compute, alpha, beta)
    return result


def add_pointwise(
    graph: GraphData,
    mode: PointwiseMode,
    spec: TensorSpec | FilterSpec,
    *operands: GraphTensor,
    compute: DataType = DataType.FLOAT,
    alphas: tuple[float, float] = (1.0, 1.0),
    coefficients: Mapping[str, Any] | None = None,
) -> GraphTensor:
    """Return a pointwise operation of alphas[0] * x and alphas[1] * b, as a virtual tensor.

    `spec` is that of the result; `coefficients` are attributes of its "POINTWISE" descriptor.
    """
    attributes = {"mode": mode, "math_prec": compute, **(coefficients or {})}
    for name, alpha in zip(("alpha1", "alpha2"), alphas, strict=True):
        if alpha != 1:
            attributes[name] = alpha
    result = add_virtual(graph, spec)
    reads = dict(zip(("xdesc", "bdesc"), operands, strict=False))
    graph.node("POINTWISE", attributes, reads=reads, writes={"ydesc": result})
    return result


def convolution_data(
    kind: str, specs: Mapping[str, Any], conv: ConvolutionSpec, alpha: float, beta: float
) -> GraphData:
    """Return one convolution, or a gradient of one, as a graph.

    `kind` is "CONVOLUTION_FORWARD", ...  `specs` has the specs of the operands, and the result's at
    the end, by the names of the operation's attributes.
    """
    *operand_names, result_name = specs
    compute = conv.compute_type_for(specs[operand_names[0]])
    graph = GraphData(compute)
    reads = {name: add_input(graph, name, specs[name]) for name in operand_names}
    result = add_convolution(graph, kind, reads, specs[result_name], conv, compute, alpha, beta)
    add_output(graph, result_name, result, specs[result_name])
    return graph


def fused_data(
    specs: Mapping[str, Any],
    conv: ConvolutionSpec,
    activation: ActivationSpec,
    alpha: float = 1.0,
    alpha2: float = 0.0,
) -> GraphData:
    """Return y = activation(alpha * conv(x, w) + alpha2 * z + bias) as a graph.

    In this order, and with `alpha` as a scalar of the addition of z, an H200 has engines in every
    data type and layout; with the scalar at the convolution, or at the bias, it has none.

    `specs` are of "x", "w", "bias", "z" where that is added, "y".
    """
    compute = conv.compute_type_for(specs["x"])
    wide = DataType.DOUBLE if compute == DataType.DOUBLE else DataType.FLOAT
    graph = GraphData(compute)
    operands = {name: add_input(graph, name, spec) for name, spec in specs.items() if name != "y"}
    between = specs["y"].packed(specs["y"].shape, wide)
    reads = {name: operands[name] for name in ("x", "w")}
    scale = 1.0 if "z" in operands else alpha
    y = add_convolution(graph, "CONVOLUTION_FORWARD", reads, between, conv, compute, scale)
    if "z" in operands:
        alphas = (alpha, alpha2)
        y = add_pointwise(
            graph, PointwiseMode.ADD, between, y, operands["z"], compute=wide, alphas=alphas
        )
    y = add_pointwise(graph, PointwiseMode.ADD, between, y, operands["bias"], compute=wide)
    if activation.mode != ActivationMode.IDENTITY:
        mode, coefficients = pointwise_of(activation)
        y = add_pointwise(graph, mode, between, y, compute=wide, coefficients=coefficients)
    add_output(graph, "y", y, specs["y"])
    return graph


def pointwise_of(activation: ActivationSpec) -> tuple[PointwiseMode, dict[str, Any]]:
    """Return the pointwise mode of an activation, and attributes of its "POINTWISE" descriptor."""
    mode, coefficient = MODES[activation.mode]
    coefficients: dict[str, Any] = {coefficient: activation.coef} if coefficient else {}
    if mode == PointwiseMode.RELU_FWD:
        coefficients["nan_propagation"] = activation.nan
    return mode, coefficients


def _convolve(
    graph: GraphData,
    kind: str,
    reads: Mapping[str, GraphTensor],
    shape: Shape,
    conv: ConvolutionSpec,
) -> GraphTensor:
    """Return a convolution, or a gradient of one, whose result has a shape."""
    for argument, tensor in reads.items():
        check_rank(graph, tensor, argument, 3)
        if tensor.rank != len(shape):
            raise ArgumentError(
                f"shape={shape}; needed: {tensor.rank} axes, as {argument} of shape "
                f"{tensor.shape} has"
            )
    result = graph.virtual(shape)
    _add_node(graph, kind, reads, result, conv, len(shape) - 2, graph.compute_type)
    return result


def _add_node(
    graph: GraphData,
    kind: str,
    reads: Mapping[str, GraphTensor],
    result: GraphTensor,
    conv: ConvolutionSpec,
    spatial: int,
    compute: DataType,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> None:
    """Add the operation of a convolution with `spatial` axes, or of a gradient of one."""
    _, stride, dilation = conv.steps(spatial)
    pads = conv.pads(spatial)
    if result.rank > spatial + 2:  # rows are images one pixel high
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
    graph.node(kind, attributes, reads=reads, writes={_WRITTEN[kind]: result})


def _check_gradient(conv: ConvolutionSpec, x: Shape, w: Shape, dy: Shape) -> None:
    """Raise ArgumentError unless `dy` has the shape of the convolution's result."""
    result = conv.output_shape(x, w)
    if result != dy:
        raise ArgumentError(f"dy has shape {dy}; the convolution of {x} with {w} has {result}")


def _parse_spec(conv: ConvolutionSpec | None) -> ConvolutionSpec:
    if conv is None:
        return ConvolutionSpec()
    spec: ConvolutionSpec = instance_of(conv, ConvolutionSpec, "conv")
    return spec
