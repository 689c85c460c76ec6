"""Normalisations and poolings of a graph, each of which cuDNN has as one operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from cudnnlite._raw.enums import (
    BackendNormFwdPhase,
    BackendNormMode,
    PaddingMode,
    ResampleMode,
)
from cudnnlite.arguments import integer, integers, one_of, real_number, sequence, shown
from cudnnlite.enums import DataType, NanPropagation, parse_enum
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.data import GraphData, check_tensor
from cudnnlite.graph.formulas import check_rank, check_same_rank
from cudnnlite.graph.records import Shape
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.specs.layout import MAX_RANK, parse_shape
from cudnnlite.specs.steps import pads_with_last_window


class Normalized(NamedTuple):
    """The results of a normalisation.

    `mean` and `inv_variance` are None for inference.  For RMS `mean` is always None.
    `inv_variance` is cuDNN's name of the inverse standard deviation.
    """

    y: GraphTensor
    mean: GraphTensor | None
    inv_variance: GraphTensor | None


class NormalizationGradients(NamedTuple):
    """The gradients of a normalisation.  `dbias` is None if it has no bias."""

    dx: GraphTensor
    dscale: GraphTensor
    dbias: GraphTensor | None


class MaximaWithIndices(NamedTuple):
    """The maxima of a pooling, and the place of each within its window."""

    y: GraphTensor
    indices: GraphTensor


# ----------------------------------------------------------- normalisation


def normalization_forward(
    graph: GraphData,
    mode: BackendNormMode | str,
    x: GraphTensor,
    scale: GraphTensor,
    bias: GraphTensor | None = None,
    *,
    epsilon: float = 1e-5,
    training: bool = False,
) -> Normalized:
    """Add a normalisation: "LAYER", "RMS" or "INSTANCE".

    Parameters
    ----------
    mode : BackendNormMode or str
        "LAYER" and "RMS" normalise the axes along which `scale` is as long as `x`, "INSTANCE"
        the spatial axes.
    x, scale, bias : GraphTensor
        All of the same rank.  `scale` and `bias` have size 1 along every axis that they do not
        scale.
    epsilon : float
        Added to the variance.
    training : bool
        Whether the mean (except for RMS) and `inv_variance` are computed for backward passes.
    """
    name = parse_enum(BackendNormMode, mode, "mode").name
    check_same_rank(graph, x=x, scale=scale)
    real_number(epsilon, "epsilon")
    one_of(training, "training", True, False)
    y = graph.virtual(x.shape, x.dtype)
    phase = BackendNormFwdPhase.TRAINING if training else BackendNormFwdPhase.INFERENCE
    reads = {"xdesc": x, "scale_desc": scale, "epsilon_desc": graph.as_tensor(epsilon)}
    if bias is not None:
        reads["bias_desc"] = bias
    writes = {"ydesc": y}
    mean = inv_variance = None
    if training:
        shape = _statistics_shape(name, x.shape, scale.shape)
        inv_variance = writes["inv_variance_desc"] = graph.virtual(shape)
        if name != "RMS":
            mean = writes["mean_desc"] = graph.virtual(shape)
    attributes = {"mode": name, "phase": phase.name}
    graph.node("NORM_FORWARD", attributes, reads=reads, writes=writes)
    return Normalized(y, mean, inv_variance)


def normalization_backward(
    graph: GraphData,
    mode: BackendNormMode | str,
    dy: GraphTensor,
    x: GraphTensor,
    scale: GraphTensor,
    mean: GraphTensor | None,
    inv_variance: GraphTensor,
    *,
    has_bias: bool = True,
) -> NormalizationGradients:
    """Add the gradients of a normalisation.

    `mean` and `inv_variance` are those that `normalization_forward` computed for training.
    """
    name = parse_enum(BackendNormMode, mode, "mode").name
    check_same_rank(graph, x=x, dy=dy, scale=scale)
    one_of(has_bias, "has_bias", True, False)
    reads = {"dydesc": dy, "xdesc": x, "scale_desc": scale, "inv_variance_desc": inv_variance}
    if mean is not None:
        reads["mean_desc"] = mean
    dx = graph.virtual(x.shape, x.dtype)
    dscale = graph.virtual(scale.shape)
    writes = {"dxdesc": dx, "dscale_desc": dscale}
    dbias = None
    if has_bias:
        dbias = writes["dbias_desc"] = graph.virtual(scale.shape)
    graph.node("NORM_BACKWARD", {"mode": name}, reads=reads, writes=writes)
    return NormalizationGradients(dx, dscale, dbias)


def gen_stats(graph: GraphData, x: GraphTensor) -> tuple[GraphTensor, GraphTensor]:
    """Return the sum and the sum of squares of each channel."""
    tensor = check_rank(graph, x, "x", 2)
    ones = (1,) * (tensor.rank - 2)
    shape = (1, tensor.shape[1], *ones)
    total, squares = graph.virtual(shape), graph.virtual(shape)
    graph.node(
        "GEN_STATS",
        {"mode": "SUM_SQSUM", "math_prec": graph.compute_type},
        reads={"xdesc": x},
        writes={"sumdesc": total, "sqsumdesc": squares},
    )
    return total, squares


# ----------------------------------------------------------------- pooling


def resample_forward(
    graph: GraphData,
    mode: ResampleMode | str,
    x: GraphTensor,
    window: Iterable[int],
    *,
    stride: Iterable[int],
    padding: Iterable[tuple[int, int]],
    padding_mode: PaddingMode | str = "NEG_INF",
    ceil_mode: bool = False,
    nan_propagation: NanPropagation | str = "PROPAGATE",
) -> GraphTensor:
    """Return a pooling: "MAXPOOL", "AVGPOOL_INCLUDE_PADDING", "AVGPOOL_EXCLUDE_PADDING".

    `padding` has one pair (before, behind) per spatial axis; the two may differ.  With
    `ceil_mode`, a last window that reaches beyond the end gives a value, too, unless it would
    begin in the padding there.  cuDNN pads maxima by "NEG_INF" alone, averages by "ZERO" alone.
    """
    tensor = check_rank(graph, x, "x", 3)
    attributes, sizes = _resampling(
        graph, mode, tensor.shape, window, stride, padding, padding_mode, nan_propagation, ceil_mode
    )
    result = graph.virtual((*tensor.shape[:2], *sizes), tensor.dtype)
    graph.node("RESAMPLE_FWD", attributes, reads={"xdesc": tensor}, writes={"ydesc": result})
    return result


def resample_forward_with_indices(
    graph: GraphData,
    x: GraphTensor,
    window: Iterable[int],
    *,
    stride: Iterable[int],
    padding: Iterable[tuple[int, int]],
    ceil_mode: bool = False,
    nan_propagation: NanPropagation | str = "PROPAGATE",
) -> MaximaWithIndices:
    """Return a pooling by maxima, and the place of each maximum within its window.

    The places count the values of a window in C order from 0, those in the padding included.
    They are int32; `output` gives them another integer type in memory.  cuDNN computes them of
    images with channels last alone.  `padding` and `ceil_mode` are as in `resample_forward`.
    """
    tensor = check_rank(graph, x, "x", 3)
    attributes, sizes = _resampling(
        graph,
        "MAXPOOL",
        tensor.shape,
        window,
        stride,
        padding,
        "NEG_INF",
        nan_propagation,
        ceil_mode,
    )
    shape = (*tensor.shape[:2], *sizes)
    result = MaximaWithIndices(
        graph.virtual(shape, tensor.dtype), graph.virtual(shape, DataType.INT32)
    )
    graph.node(
        "RESAMPLE_FWD",
        attributes,
        reads={"xdesc": tensor},
        writes={"ydesc": result.y, "idxdesc": result.indices},
    )
    return result


def resample_backward(
    graph: GraphData,
    mode: ResampleMode | str,
    dy: GraphTensor,
    shape: Iterable[int],
    window: Iterable[int],
    *,
    stride: Iterable[int],
    padding: Iterable[tuple[int, int]],
    padding_mode: PaddingMode | str = "NEG_INF",
    ceil_mode: bool = False,
    nan_propagation: NanPropagation | str = "PROPAGATE",
    x: GraphTensor | None = None,
    y: GraphTensor | None = None,
    indices: GraphTensor | None = None,
) -> GraphTensor:
    """Return the gradient of a pooling's input, whose shape is `shape`.

    The other arguments are those of `resample_forward`.  Beside `dy`, cuDNN reads the input `x`
    and the result `y` with channels first, and the `indices` of maxima with channels last.
    """
    gradient = check_rank(graph, dy, "dy", 3)
    sizes = parse_shape(shape)
    if len(sizes) != gradient.rank:
        raise ArgumentError(f"shape={sizes}; needed: {gradient.rank} axes, as dy has")
    attributes, pooled = _resampling(
        graph, mode, sizes, window, stride, padding, padding_mode, nan_propagation, ceil_mode
    )
    result_shape = (*sizes[:2], *pooled)
    reads = {"dydesc": gradient}
    expected = {"dy": result_shape, "x": sizes, "y": result_shape, "indices": result_shape}
    tensors = {"dy": dy, "x": x, "y": y, "indices": indices}
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if check_tensor(graph, tensor, name).shape != expected[name]:
            raise ArgumentError(
                f"{name} has shape {tensor.shape}; needed for images of shape {sizes}: "
                f"{expected[name]}"
            )
        reads["idxdesc" if name == "indices" else f"{name}desc"] = tensor
    result = graph.virtual(sizes, gradient.dtype)
    graph.node("RESAMPLE_BWD", attributes, reads=reads, writes={"dxdesc": result})
    return result


def _resampling(
    graph: GraphData,
    mode: ResampleMode | str,
    shape: Shape,
    window: Iterable[int],
    stride: Iterable[int],
    padding: Iterable[tuple[int, int]],
    padding_mode: PaddingMode | str,
    nan_propagation: NanPropagation | str,
    ceil_mode: bool,
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return the attributes of a pooling of images of `shape`, and its spatial sizes."""
    spatial = len(shape) - 2
    windows = _per_axis(window, "window", spatial)
    strides = _per_axis(stride, "stride", spatial)
    pads = _pads(padding, spatial)
    one_of(ceil_mode, "ceil_mode", True, False)
    sizes = []
    for axis, size in enumerate(shape[2:]):
        before, behind = pads[axis]
        last_start = size + before + behind - windows[axis]
        if last_start < 0:
            raise ArgumentError(f"window={windows} is larger than x of shape {shape}")
        if ceil_mode:
            pads[axis] = pads_with_last_window(size, windows[axis], pads[axis], strides[axis])
            last_start = size + sum(pads[axis]) - windows[axis]
        sizes.append(last_start // strides[axis] + 1)
    pre_paddings, post_paddings = zip(*pads, strict=True)
    attributes = {
        "mode": parse_enum(ResampleMode, mode, "mode"),
        "comp_type": graph.compute_type,
        "spatial_dims": spatial,
        "window_dims": windows,
        "strides": strides,
        "pre_paddings": pre_paddings,
        "post_paddings": post_paddings,
        "padding_mode": parse_enum(PaddingMode, padding_mode, "padding_mode"),
        "nan_propagation": parse_enum(NanPropagation, nan_propagation, "nan_propagation"),
        "alpha": 1.0,
        "beta": 0.0,
    }
    return attributes, tuple(sizes)


def _per_axis(values: Iterable[int], argument: str, count: int) -> tuple[int, ...]:
    """Return one positive integer per spatial axis; ArgumentError for anything else."""
    sizes = integers(values, argument, MAX_RANK)
    if len(sizes) != count:
        raise ArgumentError(f"{argument}={shown(values)}; needed: {count}, one per spatial axis")
    return tuple(integer(size, argument, smallest=1) for size in sizes)


def _pads(padding: object, count: int) -> list[tuple[int, int]]:
    """Return the padding before and behind, for each spatial axis."""
    pairs = [
        integers(pair, "padding", 2)
        for pair in sequence(padding, "padding", "a sequence of pairs", MAX_RANK)
    ]
    if len(pairs) != count or any(len(pair) != 2 for pair in pairs):
        raise ArgumentError(
            f"padding={shown(padding)}; needed: {count} pairs (before, behind), one per spatial axis"
        )
    return [(integer(pair[0], "padding", 0), integer(pair[1], "padding", 0)) for pair in pairs]


def _statistics_shape(mode: str, x: Shape, scale: Shape) -> Shape:
    """Return the shape of `mean` and `inv_variance`: 1 along the axes that are normalised."""
    if mode == "INSTANCE":
        return (*x[:2], *(1,) * (len(x) - 2))
    return tuple(
        1 if scale_size == size else size for size, scale_size in zip(x, scale, strict=True)
    )
