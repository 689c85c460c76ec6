"""`Described`: a problem told to cuDNN: its descriptors, and calls with their arguments found by the header's names."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any

import numpy as np

from cudnnlite._raw.calls import PreparedCall
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite.descriptors import DESCRIPTORS, check_describable
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import DataType
from cudnnlite.errors import BadParamError, CudnnError, NotSupportedError
from cudnnlite.graph.operation_graph import Graph, convolution_graph
from cudnnlite.kept import kept
from cudnnlite.problems.problem import Problem
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.frozen import FrozenSpec


class Described:
    """The descriptors of a problem on one handle, and its scalars, owned by `stack`.

    `partly`: a convolution that no descriptor can describe is left out; a graph describes it.  `graph` is the problem's, where
    somebody has it, and keeps it for as long as this is used.
    """

    def __init__(
        self,
        handle: Handle,
        problem: Problem,
        stack: ExitStack,
        *,
        partly: bool = False,
        graph: Graph | None = None,
    ) -> None:
        self.handle, self.problem, self._stack, self._partly, self._graph = (
            handle,
            problem,
            stack,
            partly,
            graph,
        )
        for name, spec in problem.specs.items():
            if name not in problem.operation.bare:
                check_describable(spec, problem.operation.argument(name))

    @property
    def graph(self) -> Graph:
        """The problem's operation graph; NotSupportedError if cuDNN has none."""
        if self._graph is None:
            self._graph = graph_of(self.handle, self.problem, self._stack)
        return self._graph

    @kept
    def descriptors(self) -> dict[str, Any]:
        """The descriptors of operands and options, by name, made when they are first asked for."""
        problem, operation = self.problem, self.problem.operation
        left_out = {*operation.bare, *operation.shared}
        described = {name: spec for name, spec in problem.specs.items() if name not in left_out} | {
            name: value
            for name, value in problem.options.items()
            if isinstance(value, FrozenSpec)
            and (getattr(value, "is_symmetric", True) or not self._partly)
        }
        rank = next(iter(problem.specs.values())).rank - 2
        return {
            name: self._stack.enter_context(_descriptor_of(self.handle, spec, rank))
            for name, spec in described.items()
        }

    @kept
    def _values(self) -> dict[str, Any]:
        """What the arguments of its C functions are, by the header's names."""
        problem, operation, specs = self.problem, self.problem.operation, self.problem.specs
        # in the host type that cuDNN wants for them: double beside double tensors, float otherwise
        kind = np.float64 if next(iter(specs.values())).dtype == DataType.DOUBLE else np.float32
        scalars = {
            name: np.array(problem.values[name], kind)
            for name in (*operation.scalars, *operation.by_address)
        }
        self._stack.callback(scalars.clear)  # C has their addresses until then
        values: dict[str, Any] = {name: value.ctypes.data for name, value in scalars.items()}
        values |= {f"{name}Desc": descriptor.ptr for name, descriptor in self.descriptors.items()}
        values |= {f"{name}SizeInBytes": specs[name].nbytes for name in operation.bare}
        values |= dict.fromkeys([*specs, "workSpace", "reserveSpace"], 0) | {
            "handle": self.handle.ptr
        }
        plain = {
            name: value for name, value in problem.options.items() if name not in self.descriptors
        }
        return {**operation.constants, **plain, **values}

    def _arguments(self, function: str, given: dict[str, Any]) -> list[Any]:
        values, names = self._values | given, self.problem.operation.names
        return [values[names.get(name, name)] for name in FUNCTIONS[function].argnames]

    def workspace(self) -> int:
        """Return the bytes of workspace that an operation without a choice of algorithms needs."""
        operation = self.problem.operation
        return (
            self._size(operation.workspace)
            if operation.workspace
            else operation.scratch(self.problem.specs)
        )

    def reserve(self) -> int:
        """Return the bytes of reserve space that an operation keeps for its backward call, or needs of its forward call."""
        return self._size(self.problem.operation.reserve) if self.problem.operation.reserve else 0

    def _size(self, function: str) -> int:
        size = ctypes.c_size_t()
        self.ask(function, sizeInBytes=size)
        return size.value

    def ask(self, function: str, **given: Any) -> None:
        """Call a C function now; what the problem does not say is given by the header's names."""
        getattr(self.handle.api, function)(*self._arguments(function, given))

    def prepare(self, function: str = "", **given: Any) -> PreparedCall:
        """Return the operation's call, or another that takes what it takes, addresses missing."""
        function = function or self.problem.operation.function
        return self.handle.api.prepare(function, *self._arguments(function, given))


def graph_of(handle: Handle, problem: Problem, stack: ExitStack) -> Graph:
    """Return a problem's operation graph; NotSupportedError if cuDNN has none."""
    algorithms = problem.operation.algorithms
    assert algorithms is not None
    if algorithms.build is not None:
        return algorithms.build(handle, stack, problem)  # type: ignore[no-any-return]
    return convolution_graph(
        handle, stack, algorithms.graph, problem.specs, problem.conv, problem.alpha, problem.beta
    )


def _descriptor_of(handle: Handle, spec: Any, spatial_rank: int) -> Any:
    """Return a descriptor of a spec, whose class may be derived from one of ours."""
    kind = next(DESCRIPTORS[base] for base in type(spec).__mro__ if base in DESCRIPTORS)
    if isinstance(spec, TensorSpec):
        spec = spec.canonical
    return kind.describing(spec, spatial_rank, handle)


def involve(error: CudnnError, problem: Problem) -> CudnnError:
    """Add the specs to an error's message, and what is known to be refused; returns the error."""
    hint = problem.operation.hint(problem) if isinstance(error, NotSupportedError) else ""
    gaps = [
        name
        for name in problem.operation.reads
        if getattr(problem.specs.get(name), "layout", "") == "strided"
    ]
    packs = (
        f"{', '.join(gaps)}: with gaps, or axes in an order of their own; .copy() is without gaps"
        if gaps
        else ""
    )
    error.notes += tuple(
        filter(None, (hint, packs * isinstance(error, (NotSupportedError, BadParamError))))
    )
    return error.involving(**problem.specs, **problem.options)
