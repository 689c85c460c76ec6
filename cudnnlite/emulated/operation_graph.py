"""Emulated operation graphs: a convolution, or a gradient of one, with pointwise operations behind.

Each function here is what finalising does with a descriptor of one kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cudnnlite.emulated.backend import BackendObject
from cudnnlite.emulated.fusion import is_classical, spec_of
from cudnnlite.emulated.graph_engines import GraphFormula
from cudnnlite.emulated.graph_shapes import check_shapes
from cudnnlite.emulated.registry import RefusalError, bad_parameter, unsupported
from cudnnlite.enums import ConvolutionMode, DataType, Status
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec

# The attributes with x, w and y, or what stands for them, by the kind of the operation.
_OPERANDS = {
    "OPERATION_CONVOLUTION_FORWARD": ("x", "w", "y"),
    "OPERATION_CONVOLUTION_BACKWARD_DATA": ("dx", "w", "dy"),
    "OPERATION_CONVOLUTION_BACKWARD_FILTER": ("x", "dw", "dy"),
}
_WRITTEN = {
    "OPERATION_CONVOLUTION_FORWARD": "y",
    "OPERATION_CONVOLUTION_BACKWARD_DATA": "dx",
    "OPERATION_CONVOLUTION_BACKWARD_FILTER": "dw",
}
CONVOLUTIONS = tuple(_OPERANDS)


class GraphConvolution(NamedTuple):
    """The convolution in a graph, or a gradient of one.

    `x`, `w` and `y` are the specs of these, or of their gradients; `uids` are the numbers of the
    tensors by the operation's names for them, in the same order.
    """

    x: TensorSpec
    w: FilterSpec
    y: TensorSpec
    conv: ConvolutionSpec
    alpha: float
    beta: float
    uids: Mapping[str, int]
    output_name: str
    pointwise: tuple[BackendObject, ...]


def check_tensor(tensor: BackendObject) -> None:
    """Refuse a "TENSOR" that has no spec, or an alignment that is none."""
    if DataType(tensor.value("data_type")) != DataType.BOOLEAN:
        spec_of(tensor)
    elif not tensor.value("is_virtual", False):
        raise unsupported("truth values in memory")
    alignment = tensor.value("byte_alignment")
    if alignment < 1 or alignment & (alignment - 1):
        raise bad_parameter(f"byte_alignment={alignment} is no power of two")


def check_convolution(convolution: BackendObject) -> None:
    """Refuse a "CONVOLUTION" whose steps are not as many as its axes."""
    names = ("dilations", "filter_strides", "pre_paddings", "post_paddings")
    spatial_dims = convolution.value("spatial_dims")
    if any(len(convolution.attributes[name]) != spatial_dims for name in names):
        raise bad_parameter(f"spatial_dims={spatial_dims} and steps of other lengths")


def finalize_convolution(operation: BackendObject) -> None:
    """Work out the convolution of an operation."""
    names = _OPERANDS[operation.kind]
    x, w, y = (operation.value(name) for name in names)
    x_spec, y_spec = spec_of(x), spec_of(y)
    w_spec = FilterSpec.from_tensor(spec_of(w), channels_last=x_spec.is_channels_last)
    conv = _convolution_spec(operation.value("conv_desc"), x_spec.shape[1] // w_spec.shape[1])
    expected_shape = conv.output_shape(x_spec.shape, w_spec.shape)
    if expected_shape != y_spec.shape:
        raise RefusalError(
            Status.BAD_PARAM_SHAPE_MISMATCH,
            f"y has shape {y_spec.shape}, the result has {expected_shape}",
        )
    operation.content = GraphConvolution(
        x_spec,
        w_spec,
        y_spec,
        conv,
        operation.value("alpha", 1.0),
        operation.value("beta", 0.0),
        {name: operation.value(name).value("unique_id") for name in names},
        _WRITTEN[operation.kind],
        (),
    )


def _convolution_spec(convolution: BackendObject, groups: int) -> ConvolutionSpec:
    steps = convolution.attributes
    return ConvolutionSpec(
        padding=tuple(zip(steps["pre_paddings"], steps["post_paddings"], strict=True)),
        stride=steps["filter_strides"],
        dilation=steps["dilations"],
        groups=groups,
        mode=ConvolutionMode(convolution.value("conv_mode")),
        compute_type=DataType(convolution.value("comp_type")),
    )


def finalize_graph(graph: BackendObject, engine_count: int) -> None:
    """Set a graph's content: a convolution with recorded pointwise operations, or a formula."""
    first, *others = graph.attributes["ops"]
    _check_unique_ids([first, *others])
    has_convolution = any(operation.kind in CONVOLUTIONS for operation in [first, *others])
    if not has_convolution or _has_formula_behind(first, others):
        graph.content = GraphFormula((first, *others))
        check_shapes(graph.content)
        graph.finalize_with(engine_global_count=[engine_count])
        return
    if not _is_supported_chain(first, others):
        raise unsupported(
            "an H200 has graphs of a forward convolution with pointwise operations behind, and of a "
            "gradient alone"
        )
    outputs = [first.value(first.content.output_name), *(other.value("ydesc") for other in others)]
    is_virtual = [tensor.value("is_virtual", False) for tensor in outputs]
    if is_virtual != [True] * len(others) + [False]:
        raise unsupported(
            "of what a graph writes the last tensor alone is in memory, the others virtual"
        )
    if [other.value("xdesc") for other in others] != outputs[:-1]:
        raise unsupported("each pointwise operation reads what the one before it writes")
    graph.content = first.content._replace(pointwise=tuple(others))
    graph.finalize_with(engine_global_count=[engine_count])


def _has_formula_behind(first: BackendObject, others: list[BackendObject]) -> bool:
    """Return whether a forward convolution has pointwise operations behind it that form no chain.

    A formula computes such a graph, as it does for operations that were not recorded behind a
    convolution.
    """
    if first.kind not in CONVOLUTIONS or first.content.output_name != "y":
        return False
    is_pointwise = all(other.kind == "OPERATION_POINTWISE" for other in others)
    return is_pointwise and not is_classical(others)


def _is_supported_chain(first: BackendObject, others: list[BackendObject]) -> bool:
    """Return whether they are a convolution with pointwise operations, or a gradient alone."""
    if first.kind not in CONVOLUTIONS:
        return False
    if others and first.content.output_name != "y":
        return False
    return all(other.kind == "OPERATION_POINTWISE" for other in others)


def _check_unique_ids(operations: list[BackendObject]) -> None:
    """Refuse two tensors with one number."""
    tensors: dict[int, BackendObject] = {}
    for operation in operations:
        for values in operation.attributes.values():
            tensor = values[0]
            if not isinstance(tensor, BackendObject) or tensor.kind != "TENSOR":
                continue
            unique_id = tensor.value("unique_id")
            if tensors.setdefault(unique_id, tensor) is not tensor:
                raise RefusalError(
                    Status.BAD_PARAM_DUPLICATED_ENTRIES,
                    f"two tensors with unique_id={unique_id}",
                )
