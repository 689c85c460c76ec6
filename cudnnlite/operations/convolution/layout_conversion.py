"""`ConvertedConvolution`: a convolution in another layout than its operands lie in, conversions and all, as one call."""

from __future__ import annotations

from contextlib import ExitStack

from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import dtype_name, numpy_dtype
from cudnnlite.errors import ArgumentError, CudnnError
from cudnnlite.operations.convolution.algorithms import prepare
from cudnnlite.operations.convolution.native import NativeConvolution
from cudnnlite.plans.conversion import conversion
from cudnnlite.problems.fused_convolution import BIAS, FUSED, FUSED_WITH_Z
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.sizes import ALLOCATION_ALIGNMENT
from cudnnlite.specs import FilterSpec, TensorSpec
from cudnnlite.specs.filter import as_tensor
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST, VECT_C, parse_layout


class ConvertedConvolution:
    """Bring what is read to a layout, convolve there, bring the result back: a plan calls it as it calls a `PreparedCall`.

    An operand that fits the layout already is used where it is.  Every other one has a place in the
    workspace, and the workspace of the algorithm lies behind them.  A result that is converted back
    is rounded before beta * y is added to it, and once more after: ArgumentError for an integer one
    with beta.
    """

    arguments: tuple[()] = ()
    check = None  # each of its calls does that

    def __init__(
        self,
        handle: Handle,
        problem: Problem,
        choice: AlgorithmResult,
        layout: str,
        stack: ExitStack,
    ) -> None:
        self._layout = layout
        beta, operation = problem.beta, problem.operation
        (written,) = operation.writes
        specs = _memory_of(problem)
        inside = {name: TensorSpec(spec.shape, spec.dtype, layout) for name, spec in specs.items()}
        moved = [name for name, spec in specs.items() if not spec.fits(layout)]
        if written in moved and beta and numpy_dtype(specs[written].dtype).kind in "iu":
            raise ArgumentError(
                f"beta={beta} with algorithm.layout={layout!r} and out={specs[written]}: the convolution is rounded to "
                f"{dtype_name(specs[written].dtype)} before it is converted, so beta * out would come too late; allowed: beta=0"
            )
        filters = {
            name: FilterSpec(specs[name].shape, specs[name].dtype, layout)
            for name in operation.filters
        }
        # alpha before the result is rounded, beta where the old values are
        there = problem.replace(**inside | filters, beta=0.0 if written in moved else beta)
        try:
            inside_call = prepare(NativeConvolution(handle, there, stack), choice, stack)
            self._convolution = inside_call.call
            own = inside_call.workspace
            self._there = {
                name: conversion(handle, specs[name], inside[name], 0.0, stack)
                for name in moved
                if name != written
            }
            self._back = {
                name: conversion(handle, inside[name], specs[name], beta, stack)
                for name in moved
                if name == written
            }
        except CudnnError as error:
            error.involving(layout=layout)
            raise
        self._places: dict[str, int] = {}
        taken = 0
        for name in moved:
            self._places[name] = taken
            taken += -(-inside[name].nbytes // ALLOCATION_ALIGNMENT) * ALLOCATION_ALIGNMENT
        self._places["workSpace"] = taken
        self.workspace = taken + own
        self._calls = [*self._there.values(), self._convolution, *self._back.values()]

    def replace(self, **addresses: int) -> None:
        """Change the addresses; ArgumentError if the workspace is not aligned."""
        workspace = addresses["workSpace"]
        if workspace % ALLOCATION_ALIGNMENT:
            raise ArgumentError(
                f"workspace begins at {workspace:#x}; with algorithm.layout={self._layout!r}, whose operands are converted in "
                f"it, it must be aligned to {ALLOCATION_ALIGNMENT} bytes"
            )
        places = {name: workspace + offset for name, offset in self._places.items()}
        for name, call in self._there.items():
            call.replace(x=addresses[name], y=places[name])
        for name, call in self._back.items():
            call.replace(x=places[name], y=addresses[name])
        self._convolution.replace(**addresses | places)

    def function(self) -> None:
        """Enqueue all of it."""
        try:
            for call in self._calls:
                call()
        except CudnnError as error:
            error.involving(layout=self._layout)
            raise


def conversion_layout(problem: Problem, wanted: str) -> str:
    """Return the layout to convert to for a result's `layout`; empty where every operand is in it, or none is wanted.

    ArgumentError where there is no such layout at this rank, or operands are vectors of channels,
    which stay as they are.
    """
    if not wanted:
        return ""
    if problem.operation in (FUSED, FUSED_WITH_Z, BIAS):
        raise ArgumentError(f"algorithm.layout={wanted!r}; allowed: '', no bias is converted")
    specs = _memory_of(problem)
    images, out = (
        next(specs[name] for name in names)
        for names in (problem.operation.reads, problem.operation.writes)
    )
    rank = images.rank
    layout = parse_layout(wanted, rank, "algorithm.layout")
    vectors = any(spec.vector > 1 for spec in specs.values())
    if vectors and images.fits(layout):
        return ""
    if vectors or layout == VECT_C:
        allowed = images.layout if vectors else f"{CHANNELS_FIRST[rank]}, {CHANNELS_LAST[rank]}"
        raise ArgumentError(
            f"algorithm.layout={wanted!r} with {problem.operation.reads[0]}={images} and out={out}; allowed: {allowed} "
            "(vectors of channels are not converted)"
        )
    if all(spec.fits(layout) for spec in specs.values()):
        return ""
    return layout


def _memory_of(problem: Problem) -> dict[str, TensorSpec]:
    """Return the operands as tensors: a filter's memory is that of a packed one."""
    return {name: as_tensor(spec) for name, spec in problem.specs.items()}
