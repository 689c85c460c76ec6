"""`ConvertedConvolution`: a convolution in another layout than that of its operands."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

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
    """Convert operands to a layout, convolve in it, and convert the result back, as one call.

    A plan calls it like a `PreparedCall`.

    An operand that has the layout already is used in place.  The others are converted into the
    workspace, in front of the workspace of the algorithm.  A result that is converted back is
    rounded twice: before and after beta * y is added to it.  For an integer result this would be
    wrong; with a beta it is an ArgumentError.
    """

    arguments: tuple[()] = ()
    # Each of its calls checks its own status.
    check = None

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
        converted_specs: dict[str, TensorSpec] = {}
        for name, spec in specs.items():
            if not spec.fits(layout):
                converted_specs[name] = TensorSpec(spec.shape, spec.dtype, layout)
        converts_result = written in converted_specs
        if converts_result and beta and numpy_dtype(specs[written].dtype).kind in "iu":
            raise ArgumentError(
                f"beta={beta} with algorithm.layout={layout!r} and out={specs[written]}: "
                f"the convolution is rounded to {dtype_name(specs[written].dtype)} "
                "before it is converted, so beta * out would come too late; allowed: beta=0"
            )
        # alpha belongs to the convolution: it scales a result that is not rounded yet.  beta
        # belongs to the call that writes to `out`, which has the old values.
        inner_beta = 0.0 if converts_result else beta
        inner_problem = _problem_in_layout(problem, layout, inner_beta)
        self._conversions: dict[str, Any] = {}
        self._back_conversions: dict[str, Any] = {}
        try:
            native = NativeConvolution(handle, inner_problem, stack)
            prepared = prepare(native, choice, stack)
            for name, spec in converted_specs.items():
                if name == written:
                    call = conversion(handle, spec, specs[name], beta, stack)
                    self._back_conversions[name] = call
                else:
                    call = conversion(handle, specs[name], spec, 0.0, stack)
                    self._conversions[name] = call
        except CudnnError as error:
            error.involving(layout=layout)
            raise
        self._convolution = prepared.call
        self._offsets: dict[str, int] = {}
        offset = 0
        for name, spec in converted_specs.items():
            self._offsets[name] = offset
            offset += _aligned_size(spec.nbytes)
        self._offsets["workSpace"] = offset
        self.workspace = offset + prepared.workspace
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


def _aligned_size(nbytes: int) -> int:
    """Return a size that is rounded up to a multiple of the allocations' alignment."""
    blocks = (nbytes + ALLOCATION_ALIGNMENT - 1) // ALLOCATION_ALIGNMENT
    return blocks * ALLOCATION_ALIGNMENT


def _problem_in_layout(problem: Problem, layout: str, beta: float) -> Problem:
    """Return a problem with all operands in a layout, and another beta."""
    specs: dict[str, TensorSpec | FilterSpec] = {}
    for name, spec in _memory_of(problem).items():
        if name in problem.operation.filters:
            specs[name] = FilterSpec(spec.shape, spec.dtype, layout)
        else:
            specs[name] = TensorSpec(spec.shape, spec.dtype, layout)
    inner_problem: Problem = problem.replace(**specs, beta=beta)
    return inner_problem


def conversion_layout(problem: Problem, layout_name: str) -> str:
    """Return the layout that operands are converted to, by the `layout` of a search's result.

    Empty if there is none, or if every operand has that layout.  ArgumentError if there is no such
    layout at this rank, or if operands are vectors of channels, which cannot be converted.
    """
    if not layout_name:
        return ""
    if problem.operation in (FUSED, FUSED_WITH_Z, BIAS):
        raise ArgumentError(f"algorithm.layout={layout_name!r}; allowed: '', no bias is converted")
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


def _memory_of(problem: Problem) -> dict[str, TensorSpec]:
    """Return the specs of the operands as tensors; a filter's memory is that of a packed tensor."""
    return {name: as_tensor(spec) for name, spec in problem.specs.items()}
