"""`ConvertedConvolution`: a convolution in another layout than that of its operands."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import fields, replace
from math import prod
from typing import Any

from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import dtype_name, numpy_dtype
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError, CudnnError, WorkspaceLimitError
from cudnnlite.graph.operation_graph import Graph
from cudnnlite.operations.convolution.algorithms import choose_and_prepare, prepare
from cudnnlite.operations.convolution.native import NativeConvolution
from cudnnlite.plans.conversion import conversion, filter_conversion
from cudnnlite.problems.convolution import FORWARD
from cudnnlite.problems.convolution_backward import DATA
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult, ConvolutionResult
from cudnnlite.sizes import ALLOCATION_ALIGNMENT, over_limit
from cudnnlite.specs import FilterSpec, TensorSpec
from cudnnlite.specs.filter import as_tensor
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST, VECT_C, parse_layout

_CONVERTIBLE = (*CHANNELS_FIRST.values(), *CHANNELS_LAST.values())
# The least size at which `faster_layout` converts: taps of a filter, and bytes of the images.
_LEAST_TAPS = 25
_LEAST_BYTES = 4 << 20


class ConvertedConvolution:
    """Convert operands to a layout, convolve in it, and convert the result back, as one call.

    A plan calls it like a `PreparedCall`.

    An operand that has the layout already is used in place.  The others are converted into the
    workspace, in front of the workspace of the algorithm or engine.  A result that is converted
    back is rounded twice: before and after beta * y is added to it.  For an integer result this
    would be wrong; with a beta it is an ArgumentError.

    Parameters
    ----------
    handle, problem, stack
        As in `NativeConvolution`.
    choice : AlgorithmResult or None
        The algorithm or engine; None for the one that cuDNN's heuristic prefers in the layout.
    layout : str
        The layout, by its name at the operands' rank.
    graph : Graph, optional
        The graph of the problem in the layout, if the caller keeps it open.
    limit, interface, is_aligned
        As in `choose`, if there is no choice.

    Attributes
    ----------
    choice : ConvolutionResult
        The choice, with the layout and the operands that are converted.
    workspace : int
        Bytes for the converted operands, and behind them for the algorithm or engine.
    """

    arguments: tuple[()] = ()
    # Each of its calls checks its own status.
    check = None

    def __init__(
        self,
        handle: Handle,
        problem: Problem,
        choice: AlgorithmResult | None,
        layout: str,
        stack: ExitStack,
        graph: Graph | None = None,
        *,
        limit: int | None = None,
        interface: str | None = None,
        is_aligned: bool = True,
    ) -> None:
        self._layout = layout
        beta = problem.values.get("beta", 0.0)
        (written,) = problem.operation.writes
        specs = _memory_of(problem)
        converted_specs = converted_operands(problem, layout)
        converts_result = written in converted_specs
        if converts_result and beta and numpy_dtype(specs[written].dtype).kind in "iu":
            raise ArgumentError(
                f"beta={beta} with algorithm.layout={layout!r} and out={specs[written]}: "
                f"the convolution is rounded to {dtype_name(specs[written].dtype)} "
                "before it is converted, so beta * out would come too late; allowed: beta=0"
            )
        # alpha belongs to the convolution: it scales a result that is not rounded yet.  beta
        # belongs to the call that writes to `out`, which has the old values.
        inner_problem = problem_in_layout(problem, layout)
        # The places in the workspace, by the header's names: C may take an operand twice.
        self._offsets: dict[str, int] = {}
        room = 0
        for name, spec in converted_specs.items():
            self._offsets |= dict.fromkeys(problem.operation.header(name), room)
            room += _aligned_size(spec.nbytes)
        self._offsets["workSpace"] = room
        self._conversions: dict[str, Any] = {}
        self._back_conversions: dict[str, Any] = {}
        try:
            native = NativeConvolution(handle, inner_problem, stack, graph)
            if choice is None:
                inner_limit = None if limit is None else _remaining(limit, room)
                prepared = choose_and_prepare(
                    native, inner_limit, interface, stack, is_aligned=is_aligned
                )
            else:
                prepared = prepare(native, choice, stack)
            for name, spec in converted_specs.items():
                if name == written:
                    call = conversion(handle, spec, specs[name], beta, stack)
                    self._back_conversions[name] = call
                elif name in problem.operation.filters:
                    call = filter_conversion(handle, specs[name], spec, stack)
                    self._conversions[name] = call
                else:
                    call = conversion(handle, specs[name], spec, 0.0, stack)
                    self._conversions[name] = call
        except CudnnError as error:
            error.involving(layout=layout)
            raise
        self._convolution = prepared.call
        if choice is None:
            row = in_layout(prepared.choice, layout)
        else:
            row = in_layout(choice, choice.layout)
        self.choice = replace(row, conversions=tuple(converted_specs))
        self.workspace = room + prepared.workspace
        self._calls = [
            *self._conversions.values(),
            self._convolution,
            *self._back_conversions.values(),
        ]

    def replace(self, **addresses: int) -> None:
        """Change the addresses; ArgumentError if the workspace is not aligned."""
        workspace = addresses["workSpace"]
        if workspace % ALLOCATION_ALIGNMENT:
            raise ArgumentError(
                f"workspace begins at {workspace:#x}; with algorithm.layout={self._layout!r}, "
                "whose operands are converted in it, "
                f"it must be aligned to {ALLOCATION_ALIGNMENT} bytes"
            )
        buffers = {name: workspace + offset for name, offset in self._offsets.items()}
        for name, call in self._conversions.items():
            call.replace(x=addresses[name], y=buffers[name])
        for name, call in self._back_conversions.items():
            call.replace(x=buffers[name], y=addresses[name])
        self._convolution.replace(**addresses | buffers)

    def function(self) -> None:
        """Enqueue the conversions and the convolution."""
        try:
            for call in self._calls:
                call()
        except CudnnError as error:
            error.involving(layout=self._layout)
            raise


def in_layout(row: AlgorithmResult, layout: str) -> ConvolutionResult:
    """Return a candidate for operands in a layout as one that converts other operands to it."""
    values = {item.name: getattr(row, item.name) for item in fields(ConvolutionResult)}
    return ConvolutionResult(**values | {"layout": layout})


def _remaining(limit: int, room: int) -> int:
    """Return the bytes of a workspace limit that the converted operands leave free."""
    if room > limit:
        raise WorkspaceLimitError(f"the converted operands: {over_limit(room, limit)}")
    return limit - room


def _aligned_size(nbytes: int) -> int:
    """Return a size that is rounded up to a multiple of the allocations' alignment."""
    blocks = (nbytes + ALLOCATION_ALIGNMENT - 1) // ALLOCATION_ALIGNMENT
    return blocks * ALLOCATION_ALIGNMENT


def problem_in_layout(problem: Problem, layout: str) -> Problem:
    """Return the problem that is computed in a layout, with all its operands in that layout.

    If the result is converted back, beta is 0: the conversion adds the old values.
    """
    changes: dict[str, Any] = {}
    for name, spec in _memory_of(problem).items():
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
        for name, spec in _memory_of(problem).items()
        if not spec.fits(layout)
    }


def conversion_bytes(problem: Problem, layout: str) -> int:
    """Return the bytes that the conversions of a call read and write."""
    specs = _memory_of(problem)
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
    specs = _memory_of(problem)
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

    Empty too if the result could not be converted back: see `ConvertedConvolution`.
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


def _memory_of(problem: Problem) -> dict[str, TensorSpec]:
    """Return the specs of the operands as tensors; a filter's memory is that of a packed tensor."""
    return {name: as_tensor(spec) for name, spec in problem.specs.items()}
