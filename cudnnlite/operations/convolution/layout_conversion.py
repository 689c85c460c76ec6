"""`converted_convolution`: a convolution in another layout than that of its operands."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from math import prod
from typing import Any

from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import dtype_name, numpy_dtype
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError, CudnnError, WorkspaceLimitError
from cudnnlite.graph.engines import Engine
from cudnnlite.graph.operation_graph import ALIGNMENT, OperationGraph
from cudnnlite.operations.convolution.algorithms import choose_and_prepare, prepare
from cudnnlite.operations.convolution.native_convolution import NativeConvolution
from cudnnlite.plans.conversion import ConvertedCall, memory_of
from cudnnlite.plans.planned_call import PlannedCall
from cudnnlite.problems.convolution import FORWARD
from cudnnlite.problems.convolution_backward import DATA
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.sizes import over_limit
from cudnnlite.specs import FilterSpec, TensorSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST, VECT_C, parse_layout

_CONVERTIBLE = (*CHANNELS_FIRST.values(), *CHANNELS_LAST.values())
# The least size at which `faster_layout` converts: taps of a filter, and bytes of the images.
_LEAST_TAPS = 25
_LEAST_BYTES = 4 << 20


def converted_convolution(
    handle: Handle,
    problem: Problem,
    choice: AlgorithmResult | None,
    layout: str,
    stack: ExitStack,
    graph: OperationGraph | None = None,
    *,
    limit: int | None = None,
    interface: str | None = None,
    is_aligned: bool = True,
) -> PlannedCall:
    """Return a call that converts operands to a layout, convolves in it, and converts the result.

    An integer result that is converted back with a beta would be wrong, because it is rounded
    before beta * y is added to it: that is an ArgumentError.

    Parameters
    ----------
    handle, problem, stack
        As in `NativeConvolution`.
    choice : AlgorithmResult or None
        The algorithm or engine; None for the one that cuDNN's heuristic prefers in the layout.
    layout : str
        The layout, by its name at the operands' rank.
    graph : OperationGraph, optional
        The graph of the problem in the layout, if the caller keeps it open.
    limit, interface, is_aligned
        As in `choose`, if there is no choice.

    Returns
    -------
    PlannedCall
        Its choice names the layout and the operands that are converted.  Its workspace has the
        converted operands, and behind them that of the algorithm or engine.
    """
    _check_beta(problem, layout)
    # alpha belongs to the convolution: it scales a result that is not rounded yet.  beta belongs to
    # the conversion back, which writes to `out` and reads the old values there.
    inner_problem = problem_in_layout(problem, layout)
    try:
        call = ConvertedCall(handle, problem, inner_problem, stack, layout)
        native = NativeConvolution(handle, inner_problem, stack, graph)
        if choice is None:
            inner_limit = None if limit is None else _remaining(limit, call.room)
            prepared = choose_and_prepare(
                native, inner_limit, interface, stack, is_aligned=is_aligned
            )
        else:
            prepared = prepare(native, choice, stack)
    except CudnnError as error:
        error.involving(layout=layout)
        raise
    call.call = prepared.call
    workspace = call.room + prepared.workspace
    row = choice or replace(prepared.choice, layout=layout)
    row = replace(row, conversions=tuple(call.converted), workspace=workspace)
    if not isinstance(row.algorithm, Engine):
        needed = inner_problem.operation.alignments(inner_problem.specs, inner_problem.values)
    elif choice is None and interface is None:
        needed = dict.fromkeys(problem.specs, ALIGNMENT)
    else:  # an engine that the caller named refuses operands that are not aligned
        needed = {}
    in_place = {name: nbytes for name, nbytes in needed.items() if name not in call.converted}
    return PlannedCall(call, row, workspace, alignments=in_place)


def _check_beta(problem: Problem, layout: str) -> None:
    """Raise ArgumentError if an integer result that is converted back has a beta."""
    beta = problem.values.get("beta", 0.0)
    (written,) = problem.operation.writes
    y = memory_of(problem)[written]
    is_integer = numpy_dtype(y.dtype).kind in "iu"
    if beta and is_integer and written in converted_operands(problem, layout):
        raise ArgumentError(
            f"beta={beta} with algorithm.layout={layout!r} and out={y}: "
            f"the convolution is rounded to {dtype_name(y.dtype)} "
            "before it is converted, so beta * out would come too late; allowed: beta=0"
        )


def _remaining(limit: int, room: int) -> int:
    """Return the bytes of a workspace limit that the converted operands leave free."""
    if room > limit:
        raise WorkspaceLimitError(f"the converted operands: {over_limit(room, limit)}")
    return limit - room


def problem_in_layout(problem: Problem, layout: str) -> Problem:
    """Return the problem that is computed in a layout, with all its operands in that layout.

    If the result is converted back, beta is 0: the conversion adds the old values.
    """
    changes: dict[str, Any] = {}
    for name, spec in memory_of(problem).items():
        if name in problem.operation.filters:
            changes[name] = FilterSpec(spec.shape, spec.dtype, layout)
        else:
            changes[name] = TensorSpec(spec.shape, spec.dtype, layout)
    (written,) = problem.operation.writes
    if "beta" in problem.values and written in converted_operands(problem, layout):
        changes["beta"] = 0.0
    inner_problem: Problem = problem.replace(**changes)
    return inner_problem


def converted_operands(problem: Problem, layout: str) -> dict[str, TensorSpec]:
    """Return the specs, in a layout, of the operands that are converted to it, by name."""
    return {
        name: TensorSpec(spec.shape, spec.dtype, layout)
        for name, spec in memory_of(problem).items()
        if not spec.fits(layout)
    }


def conversion_bytes(problem: Problem, layout: str) -> int:
    """Return the bytes that the conversions of a call read and write."""
    specs = memory_of(problem)
    converted_specs = converted_operands(problem, layout)
    nbytes = sum(spec.nbytes + specs[name].nbytes for name, spec in converted_specs.items())
    (written,) = problem.operation.writes
    if written in converted_specs and problem.values.get("beta"):
        nbytes += specs[written].nbytes
    return nbytes


def conversion_layout(problem: Problem, layout_name: str) -> str:
    """Return the layout that operands are converted to, by the `layout` of a search's result.

    Empty if there is none, or if every operand has that layout.  ArgumentError if there is no such
    layout at this rank, or if operands are vectors of channels, which cannot be converted.
    """
    if not layout_name:
        return ""
    specs = memory_of(problem)
    images_name = problem.operation.reads[0]
    images = specs[images_name]
    out = specs[problem.operation.writes[0]]
    rank = images.rank
    layout = parse_layout(layout_name, rank, "algorithm.layout")
    has_vectors = any(spec.vector > 1 for spec in specs.values())
    if has_vectors and images.fits(layout):
        return ""
    if has_vectors or layout == VECT_C:
        allowed = f"{CHANNELS_FIRST[rank]}, {CHANNELS_LAST[rank]}"
        if has_vectors:
            allowed = str(images.layout)
        raise ArgumentError(
            f"algorithm.layout={layout_name!r} with {images_name}={images} and out={out}; "
            f"allowed: {allowed} (vectors of channels are not converted)"
        )
    if all(spec.fits(layout) for spec in specs.values()):
        return ""
    return layout


def layout_of_filter(problem: Problem) -> str:
    """Return the layout of a filter that is not the other operands'; empty if there is none.

    Empty too if the result could not be converted back: see `converted_convolution`.
    """
    specs = problem.specs
    result = specs[problem.operation.writes[0]]
    if problem.values.get("beta") and numpy_dtype(result.dtype).kind in "iu":
        return ""
    for name in problem.operation.filters:
        layout: str = specs[name].layout
        if layout in _CONVERTIBLE and converted_operands(problem, layout):
            return layout
    return ""


def faster_layout(problem: Problem) -> str:
    """Return the layout in which an untuned convolution is faster; empty if in its own.

    A filter whose channels come last, beside images whose channels come first, was converted for
    the engines of that layout: see `convert_filter`.

    cuDNN 9 has an engine for depthwise float32 with the channels last, and a slower one with the
    channels first.  On an H100 and an H200 the conversions paid off for the filters and images
    below, in forward calls and gradients of images.
    """
    layout = layout_of_filter(problem)
    if layout in CHANNELS_LAST.values() and not _first_images(problem).fits(layout):
        return layout
    if problem.operation not in (FORWARD, DATA) or problem.values["beta"]:
        return ""
    images = problem.values[DATA.writes[0] if problem.operation is DATA else "x"]
    w = problem.values["w"]
    if images.rank != 4 or not images.fits("NCHW") or images.dtype != DataType.FLOAT:
        return ""
    _, stride, dilation = problem.conv.steps(2)
    channels = images.shape[1]
    is_depthwise = problem.conv.groups == channels == w.shape[0] > 1
    is_dense = {*stride, *dilation} == {1}
    is_large = prod(w.shape[2:]) >= _LEAST_TAPS and images.nbytes >= _LEAST_BYTES
    if is_depthwise and is_dense and is_large:
        return "NHWC"
    return ""


def _first_images(problem: Problem) -> TensorSpec:
    """Return the spec of the first operand that is no filter."""
    filters = problem.operation.filters
    specs: dict[str, TensorSpec] = problem.specs
    return next(spec for name, spec in specs.items() if name not in filters)
