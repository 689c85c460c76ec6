"""Poolings as graphs, for padding that a descriptor cannot express, and without descriptors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import DataType, PoolingMode
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.convolution_formulas import add_input, add_output
from cudnnlite.graph.layer_faults import why_averages_over_padding_are_wrong
from cudnnlite.operations.graph.graph import Graph
from cudnnlite.plans.graph_call import WayThroughGraph
from cudnnlite.plans.graph_plan import plan_by_graph, plan_or_graph
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.problems.pooling import BACKWARD, FORWARD
from cudnnlite.problems.problem import Problem
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import PoolingSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST

# The mode in which a graph pools, and the value that it pads with.
_MODES = {
    PoolingMode.MAX: ("MAXPOOL", "NEG_INF"),
    PoolingMode.MAX_DETERMINISTIC: ("MAXPOOL", "NEG_INF"),
    PoolingMode.AVERAGE_COUNT_INCLUDE_PADDING: ("AVGPOOL_INCLUDE_PADDING", "ZERO"),
    PoolingMode.AVERAGE_COUNT_EXCLUDE_PADDING: ("AVGPOOL_EXCLUDE_PADDING", "ZERO"),
}


def pooling_plan(handle: Handle, problem: Problem, limit: int | None) -> OperationPlan[DeviceArray]:
    """Return the plan of a pooling.

    It runs a graph if the padding differs at an axis' two ends, or if libcudnn lacks the function.
    """
    if not pools_by_graph(problem):
        return plan_or_graph(handle, problem, limit, pooling_graph)
    graph = pooling_graph(problem)
    return plan_by_graph(handle, problem, graph, WayThroughGraph, limit, is_complete=True)


def pools_by_graph(problem: Problem) -> bool:
    """Return whether a problem is a pooling, or its gradient, that only a graph computes."""
    return problem.operation in (FORWARD, BACKWARD) and not problem.pooling.is_symmetric


def pooling_graph(problem: Problem) -> Graph:
    """Return a pooling, or its gradient, as a graph.

    Images with one spatial axis are one pixel high.  Images of one channel have both layouts: they
    are described with channels first, for which cuDNN has all gradients and data types, unless it
    pools them wrongly then.
    """
    x = problem.x
    first, last = (names.get(x.rank, "") for names in (CHANNELS_FIRST, CHANNELS_LAST))
    has_both = all(spec.fits(first) and spec.fits(last) for spec in problem.specs.values())
    if not has_both:
        return _graph_in(problem, last if x.is_channels_last else first)
    graph = _graph_in(problem, first)
    pools_wrongly = why_averages_over_padding_are_wrong(graph) is not None
    if pools_wrongly and x.dtype in (DataType.FLOAT, DataType.HALF):
        return _graph_in(problem, last)
    return graph


def _graph_in(problem: Problem, layout: str) -> Graph:
    """Return a pooling as a graph whose images have a layout, if their memory has it.

    Images of one pixel, or of one channel, have both layouts, and cuDNN needs all images in one.
    """
    specs = {
        name: TensorSpec(spec.shape, spec.dtype, layout) if spec.fits(layout) else spec
        for name, spec in problem.specs.items()
    }
    graph = Graph()
    tensors = {name: add_input(graph, name, specs[name]) for name in problem.operation.reads}
    arguments = _graph_arguments(problem.pooling, problem.x.rank - 2)
    if problem.operation is FORWARD:
        pooled = graph.resample_forward(x=tensors["x"], **arguments)
        add_output(graph, "y", pooled, specs["y"])
    else:
        x, y, dy = (tensors[name] for name in ("x", "y", "dy"))
        dx = graph.resample_backward(dy=dy, shape=x.shape, x=x, y=y, **arguments)
        add_output(graph, "dx", dx, specs["dx"])
    return graph


def _graph_arguments(pooling: PoolingSpec, spatial: int) -> dict[str, Any]:
    """Return the arguments that a pooling and its gradient have in common."""
    window, _, stride = pooling.steps(spatial)
    pads = pooling.pads(spatial)
    if spatial == 1:
        window, stride, pads = (1, *window), (1, *stride), ((0, 0), *pads)
    mode, padding_mode = _MODES[pooling.mode]
    return {
        "mode": mode,
        "window": window,
        "stride": stride,
        "padding": pads,
        "padding_mode": padding_mode,
        "nan_propagation": pooling.nan,
    }


def pooling_with_indices_graph(specs: Mapping[str, TensorSpec], pooling: PoolingSpec) -> Graph:
    """Return the graph of a max pooling that also returns the indices of the maxima."""
    x = specs["x"]
    if _MODES[pooling.mode][0] != "MAXPOOL":
        raise ArgumentError(f"pooling={pooling}; needed: the mode max or max_deterministic")
    if x.rank != 4:
        raise ArgumentError(f"x has shape {x.shape}; needed: (N, C, H, W)")
    if x.dtype not in (DataType.FLOAT, DataType.HALF):
        raise ArgumentError(f"x is {x}; allowed: float32, float16")
    y = pooling.output_spec(x)
    pooling = pooling.for_shapes(x.shape)
    window, _, stride = pooling.steps(2)
    graph = Graph()
    result = graph.resample_forward_with_indices(
        graph.input("x", x.shape, x.dtype, x.strides),
        window,
        stride=stride,
        padding=pooling.pads(2),
        nan_propagation=pooling.nan,
    )
    graph.output("y", result.y, x.dtype, y.strides)
    graph.output("indices", result.indices, DataType.INT32, y.strides)
    return graph
