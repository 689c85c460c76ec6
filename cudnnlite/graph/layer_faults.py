"""What cuDNN computes wrongly of pooling and normalisations, as conditions of `faults.FAULTS`."""

from __future__ import annotations

from collections.abc import Iterator
from operator import gt
from typing import NamedTuple

from cudnnlite.enums import DataType
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.questions import has_channels_last, mode_of, operand, paddings, result
from cudnnlite.graph.records import Node, Shape, TensorRecord
from cudnnlite.specs.layout import CHANNELS_FIRST, same_strides

_COUNT_PADDING = ("AVGPOOL", "AVGPOOL_INCLUDE_PADDING")  # two names of one mode


class _Pooling(NamedTuple):
    """A pooling, or its gradient, of a graph.

    Attributes
    ----------
    node : Node
        The operation.
    x : TensorRecord
        The images; dx of a gradient that does not read them.
    is_last : bool
        Whether cuDNN takes the channels of x for the last axis.
    """

    node: Node
    x: TensorRecord
    is_last: bool

    @property
    def mode(self) -> str:
        """The mode by its name."""
        return mode_of(self.node)

    @property
    def is_forward(self) -> bool:
        """Whether it is no gradient."""
        return self.node.kind == "RESAMPLE_FWD"

    @property
    def is_gradient_of_maxima(self) -> bool:
        """Whether it is a gradient that reads x to find the maxima."""
        return not self.is_forward and self.mode == "MAXPOOL" and "xdesc" in dict(self.node.reads)


def _poolings(graph: GraphData) -> Iterator[_Pooling]:
    for node in graph.nodes:
        if node.kind in ("RESAMPLE_FWD", "RESAMPLE_BWD"):
            x = operand(graph, node, "xdesc") or result(graph, node, "dxdesc")
            if x is not None and len(x.shape) > 2:
                yield _Pooling(node, x, has_channels_last(x.shape, x.strides))


def why_no_indices(graph: GraphData) -> str | None:
    """Return why the indices of maxima would not be written, or None."""
    for pooling in _poolings(graph):
        if "idxdesc" in dict(pooling.node.writes) and not pooling.is_last:
            return "cuDNN writes no indices of maxima with channels first; give channels last"
    return None


def why_gradient_of_maxima_ends_the_process(graph: GraphData) -> str | None:
    """Return why cuDNN may not be asked for gradients of maxima in such a layout, or None."""
    for pooling in _poolings(graph):
        if pooling.is_gradient_of_maxima and pooling.is_last:
            return (
                "cuDNN ends the process when it is asked for gradients of maxima with channels "
                "last; give channels first"
            )
    return None


def _gradients_of_maxima(graph: GraphData) -> Iterator[_Pooling]:
    """Yield those with channels first: with channels last the process ends."""
    for pooling in _poolings(graph):
        if pooling.is_gradient_of_maxima and not pooling.is_last:
            yield pooling


def why_gradient_of_maxima_is_misplaced(graph: GraphData) -> str | None:
    """Return why gradients of maxima would be written in other strides, or None."""
    for pooling in _gradients_of_maxima(graph):
        x, dx = pooling.x, result(graph, pooling.node, "dxdesc")
        if dx is None or len(dx.shape) != len(x.shape):
            continue
        if not same_strides(x.shape, x.strides, dx.strides):
            return (
                "cuDNN writes gradients of maxima as if their strides were those of x; give both "
                "in the same strides"
            )
    return None


def why_gradient_of_maxima_reads_gaps(graph: GraphData) -> str | None:
    """Return which operand of a gradient of maxima would be read as packed, or None."""
    for pooling in _gradients_of_maxima(graph):
        for name in ("ydesc", "dydesc"):
            record = operand(graph, pooling.node, name)
            if record is not None and not record.spec.fits(CHANNELS_FIRST.get(len(record.shape))):
                return (
                    f"cuDNN reads {record.name} as packed with channels first in gradients of "
                    f"maxima; its strides are {record.strides}: give a packed array"
                )
    return None


def why_bfloat16_is_pooled_wrongly(graph: GraphData) -> str | None:
    """Return why a pooling of bfloat16 would be wrong, or None."""
    for pooling in _poolings(graph):
        if pooling.is_forward and pooling.x.dtype == DataType.BFLOAT16 and pooling.is_last:
            advice = (
                "float16 or float32" if _averages_over_more_behind(pooling) else "channels first"
            )
            return f"cuDNN pools bfloat16 with channels last wrongly; give {advice}"
    return None


def why_averages_over_padding_are_wrong(graph: GraphData) -> str | None:
    """Return why averages that count uneven padding would be wrong, or None."""
    for pooling in _poolings(graph):
        if pooling.is_last or not _averages_over_more_behind(pooling):
            continue
        # cuDNN has no engine for float64 with channels last.
        dtype = pooling.x.dtype
        is_float32_needed = dtype == DataType.DOUBLE or (
            pooling.is_forward and dtype == DataType.BFLOAT16
        )
        advice = "float32 with channels last" if is_float32_needed else "channels last"
        return (
            "cuDNN averages over padding wrongly with channels first where there is more padding "
            f"behind an axis than before it; give {advice}"
        )
    return None


def _averages_over_more_behind(pooling: _Pooling) -> bool:
    """Whether averages count padding, of which there is more behind an axis than before it."""
    before, behind = paddings(pooling.node)
    return pooling.mode in _COUNT_PADDING and any(map(gt, behind, before))


def why_normalization_is_wrong(graph: GraphData) -> str | None:
    """Return which parameters of a normalisation would be read in a wrong order, or None."""
    for node in graph.nodes:
        x = operand(graph, node, "xdesc")
        if node.kind not in ("NORM_FORWARD", "NORM_BACKWARD") or x is None:
            continue
        for name, numbers in (*node.reads, *node.writes):
            if name not in ("scale_desc", "bias_desc", "dscale_desc", "dbias_desc"):
                continue
            parameters = graph.tensors[numbers[0]]
            if len(parameters.shape) != len(x.shape):
                continue
            fault = why_parameters_are_wrong(
                name.removesuffix("_desc"), x.strides, parameters.shape, parameters.strides
            )
            if fault is not None:
                return fault
    return None


def why_parameters_are_wrong(
    name: str, x_strides: Shape, shape: Shape, strides: Shape
) -> str | None:
    """Return why parameters of a normalisation would be read, or written, in a wrong order.

    cuDNN takes them in the order in which x lies in memory, whatever strides they have.
    """
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    in_memory = sorted(axes, key=lambda axis: -x_strides[axis])
    if sorted(axes, key=lambda axis: -strides[axis]) != in_memory:
        return (
            f"cuDNN takes {name} in the order in which x lies in memory, axes {in_memory}; "
            f"its strides are {strides}: give it the layout of x"
        )
    return None
