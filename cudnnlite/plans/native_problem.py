"""`NativeProblem`: a problem's descriptors, and its C calls by the header's names."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any

import numpy as np

from cudnnlite._raw.calls import PreparedCall
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite.cached_property import cached_property
from cudnnlite.descriptors.native import DESCRIPTORS
from cudnnlite.descriptors.tensor import check_describable
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import DataType
from cudnnlite.errors import BadParamError, CudnnError, NotSupportedError
from cudnnlite.problems.problem import Problem
from cudnnlite.sizes import aligned_size
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.frozen import FrozenSpec


class NativeProblem:
    """The descriptors of a problem on one handle, and its scalars.

    Parameters
    ----------
    handle : Handle
        The handle of the calls.
    problem : Problem
        The problem whose specs are described.
    stack : ExitStack
        Owns the descriptors.
    """

    def __init__(self, handle: Handle, problem: Problem, stack: ExitStack) -> None:
        self.handle = handle
        self.problem = problem
        self._stack = stack

    def described_values(self) -> dict[str, Any]:
        """Return the specs that have descriptors, by the names of operands and options."""
        operation = self.problem.operation
        operands = {
            name: spec
            for name, spec in self.problem.specs.items()
            if name not in operation.without_descriptor
        }
        options = {
            name: value
            for name, value in self.problem.options.items()
            if isinstance(value, FrozenSpec)
        }
        return operands | options

    @cached_property
    def descriptors(self) -> dict[str, Any]:
        """The descriptors of operands and options, by name, made when they are first used.

        ArgumentError for an operand that has none.  A graph may take it.
        """
        problem = self.problem
        for name, spec in problem.specs.items():
            if name not in problem.operation.without_descriptor:
                check_describable(spec, problem.operation.argument(name))
        first_spec = next(iter(problem.specs.values()))
        return {
            name: self._stack.enter_context(_describe(self.handle, spec, first_spec.rank - 2))
            for name, spec in self.described_values().items()
        }

    @cached_property
    def _arguments_by_name(self) -> dict[str, Any]:
        """The arguments of the problem's C functions, by the header's names."""
        problem, operation, specs = self.problem, self.problem.operation, self.problem.specs
        first_spec = next(iter(specs.values()))
        # cuDNN reads host scalars as double beside double tensors, as float otherwise.
        scalar_type = np.float64 if first_spec.dtype == DataType.DOUBLE else np.float32
        scalars = {
            name: np.array(problem.values[name], scalar_type)
            for name in (*operation.scalars, *operation.by_address)
        }
        self._stack.callback(scalars.clear)  # C has their addresses until then
        plain_options = {
            name: value for name, value in problem.options.items() if name not in self.descriptors
        }
        return {
            **operation.constants,
            **plain_options,
            **{name: value.ctypes.data for name, value in scalars.items()},
            **{f"{name}Desc": descriptor.ptr for name, descriptor in self.descriptors.items()},
            **{f"{name}SizeInBytes": specs[name].nbytes for name in operation.without_descriptor},
            **dict.fromkeys([*specs, "workSpace", "reserveSpace"], 0),
            "handle": self.handle.ptr,
        }

    def _arguments(self, function: str, others: dict[str, Any]) -> list[Any]:
        arguments = self._arguments_by_name | others
        names = self.problem.operation.names
        return [arguments[names.get(name, name)] for name in FUNCTIONS[function].argnames]

    def workspace(self) -> int:
        """Return the bytes of workspace that an operation without a choice of algorithms needs."""
        operation = self.problem.operation
        if operation.workspace:
            return self._size(operation.workspace)
        # Scratch memory that C takes without a size.
        first_spec: TensorSpec = next(iter(self.problem.specs.values()))
        aligned_bytes = aligned_size(first_spec.nbytes)
        return len(operation.header("workSpace")) * aligned_bytes

    def reserve(self) -> int:
        """Return the bytes of reserve space between a forward call and its backward call."""
        operation = self.problem.operation
        return self._size(operation.reserve) if operation.reserve else 0

    def _size(self, function: str) -> int:
        size = ctypes.c_size_t()
        self.ask(function, sizeInBytes=size)
        return size.value

    def ask(self, function: str, **others: object) -> None:
        """Call a C function now.

        `others` are arguments that the problem does not have, by the header's names.
        """
        getattr(self.handle.api, function)(*self._arguments(function, others))

    def prepare(self, function: str = "", **others: object) -> PreparedCall:
        """Return the call of a C function, by default the operation's own, without addresses."""
        function = function or self.problem.operation.function
        return self.handle.api.prepare(function, *self._arguments(function, others))


def _describe(handle: Handle, spec: object, spatial_rank: int) -> Any:
    """Return a descriptor of a spec, whose class may be derived from one of ours."""
    kind = next(DESCRIPTORS[base] for base in type(spec).__mro__ if base in DESCRIPTORS)
    if isinstance(spec, TensorSpec):
        spec = spec.canonical
    return kind._describing(spec, spatial_rank, handle)


def add_context(error: CudnnError, problem: Problem) -> CudnnError:
    """Add specs and hints to an error's message, and return the error."""
    is_refusal = isinstance(error, (NotSupportedError, BadParamError))
    hint = ""
    if isinstance(error, NotSupportedError):
        hint = problem.operation.description.hint(problem)
    if hint and hint != error.detail:
        error.notes = (hint, *error.notes)
    strided = [
        name
        for name in problem.operation.reads
        if getattr(problem.specs.get(name), "layout", "") == "strided"
    ]
    if strided and is_refusal:
        strides = "with gaps, or axes in an order of their own; .copy() is without gaps"
        error.notes += (f"{', '.join(strided)}: {strides}",)
    return error.involving(**problem.specs, **problem.options)
