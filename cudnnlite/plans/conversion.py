"""`conversion`: a prepared `cudnnTransformTensor` from one layout to another.

`ConvertedCall` is a call whose operands are converted before and behind it.
"""

from __future__ import annotations

from contextlib import ExitStack
from math import prod
from typing import Any

from cudnnlite._raw.calls import PreparedCall
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError, CudnnError
from cudnnlite.plans.native_problem import NativeProblem
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.transform import TRANSFORM
from cudnnlite.sizes import ALLOCATION_ALIGNMENT, aligned_size
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.filter import as_tensor
from cudnnlite.specs.layout import same_strides

# The most taps of a filter for which the kernel for rank 5 is quicker.
_MOST_TAPS = 25


class ConvertedCall:
    """Convert operands to other strides, make a call, and convert its result back, as one call.

    A plan calls it like a `PreparedCall`.

    Operands that both problems have in the same memory are used in place.  The others are converted
    into the workspace, in front of the workspace of the call.  A result that is converted back is
    rounded twice: before and after beta * y is added to it.

    Parameters
    ----------
    handle : Handle
        The handle of the calls.
    problem : Problem
        The problem of the plan.
    inner_problem : Problem
        The same problem in the strides that the call computes in, with beta 0 if the result is
        converted back: the conversion adds the old values with the beta of `problem`.
    stack : ExitStack
        Owns the descriptors.
    layout : str
        The layout that operands are converted to, for messages; empty if it goes without saying.

    Attributes
    ----------
    converted : dict of str to TensorSpec
        The specs of the copies, by the names of the operands.
    room : int
        Bytes for the copies; the workspace of the call begins behind them.
    call : Prepared
        The call, which the owner sets.
    """

    arguments: tuple[()] = ()
    # Each of its calls checks its own status.
    check = None
    call: Any = None

    def __init__(
        self,
        handle: Handle,
        problem: Problem,
        inner_problem: Problem,
        stack: ExitStack,
        layout: str = "",
    ) -> None:
        self._layout = layout
        specs = memory_of(problem)
        self.converted = {
            name: spec
            for name, spec in memory_of(inner_problem).items()
            if not same_strides(spec.shape, spec.strides, specs[name].strides)
        }
        # The places in the workspace, by the header's names: C may take an operand twice.
        self._offsets: dict[str, int] = {}
        self.room = 0
        for name, spec in self.converted.items():
            self._offsets |= dict.fromkeys(problem.operation.header(name), self.room)
            self.room += aligned_size(spec.nbytes)
        self._offsets |= dict.fromkeys(problem.operation.header("workSpace"), self.room)
        self._conversions: dict[str, PreparedCall] = {}
        self._back_conversions: dict[str, PreparedCall] = {}
        for name, spec in self.converted.items():
            if name in problem.operation.writes:
                beta = problem.values.get("beta", 0.0)
                call = conversion(handle, spec, specs[name], beta, stack)
                self._back_conversions[name] = call
            elif name in problem.operation.filters:
                call = filter_conversion(handle, specs[name], spec, stack)
                self._conversions[name] = call
            else:
                call = conversion(handle, specs[name], spec, 0.0, stack)
                self._conversions[name] = call

    def replace(self, **addresses: int) -> None:
        """Change the addresses; ArgumentError if the workspace is not aligned."""
        # There is none if the packed strides are other numbers for the same memory.
        workspace = addresses.pop("workSpace", 0)
        if workspace % ALLOCATION_ALIGNMENT:
            raise ArgumentError(
                f"workspace begins at {workspace:#x}; copies of {', '.join(self.converted)} are in "
                f"it, so it must be aligned to {ALLOCATION_ALIGNMENT} bytes"
            )
        buffers = {name: workspace + offset for name, offset in self._offsets.items()}
        for name, call in self._conversions.items():
            call.replace(x=addresses[name], y=buffers[name])
        for name, call in self._back_conversions.items():
            call.replace(x=buffers[name], y=addresses[name])
        self.call.replace(**addresses | buffers)

    def function(self) -> None:
        """Enqueue the conversions and the call."""
        try:
            for convert in self._conversions.values():
                convert()
            call = self.call
            if status := call.function(*call.arguments):
                call.check(status)
            for convert in self._back_conversions.values():
                convert()
        except CudnnError as error:
            if self._layout:
                error.involving(layout=self._layout)
            raise


def conversion(
    handle: Handle, source: TensorSpec, target: TensorSpec, beta: float, stack: ExitStack
) -> PreparedCall:
    """Return the call for target = source + beta * target; gaps keep their values."""
    problem = Problem(TRANSFORM, x=source, y=target, beta=beta)
    return NativeProblem(handle, problem, stack).prepare()


def filter_conversion(
    handle: Handle, source: TensorSpec, target: TensorSpec, stack: ExitStack
) -> PreparedCall:
    """Return the call that copies a filter to another layout.

    To channels that come last, cuDNN's kernel for tensors of rank 5 is quicker for few taps: 8.8 us
    instead of 12.4 for 512x512x3x3 in float32, 1.6 instead of 2.0 for 240x1x5x5, on an H100.
    """
    is_small = source.rank == 4 and prod(source.shape[2:]) <= _MOST_TAPS
    if is_small and not source.is_channels_last and target.is_channels_last:
        source, target = _with_another_axis(source), _with_another_axis(target)
    return conversion(handle, source, target, 0.0, stack)


def _with_another_axis(spec: TensorSpec) -> TensorSpec:
    """Return the spec of the same memory with an axis of size 1 behind the others."""
    return TensorSpec((*spec.shape, 1), spec.dtype, strides=(*spec.strides, 1))


def memory_of(problem: Problem) -> dict[str, TensorSpec]:
    """Return the specs of the operands as tensors; a filter's memory is that of a packed tensor."""
    return {name: as_tensor(spec) for name, spec in problem.specs.items()}
