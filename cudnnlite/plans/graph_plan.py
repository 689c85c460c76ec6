"""`GraphPlan`: an operation graph, planned once and called many times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import is_not
from threading import get_ident
from typing import Any

import numpy as np

from cudnnlite.arguments import cut, shown
from cudnnlite.cached_property import cached_property
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.enums import Status
from cudnnlite.errors import ArgumentError, NotSupportedError, WorkspaceLimitError
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.engines import Configuration, Engine
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.graph.known_faults import (
    why_wrong,
)
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.node_attributes import parse_number
from cudnnlite.graph.operation_graph import ALIGNMENT, OperationGraph
from cudnnlite.graph.problem import EXECUTE, GraphProblem
from cudnnlite.graph.records import TensorRecord
from cudnnlite.graph.selection import (
    HEURISTICS_OF_PLANS,
    NO_REQUIREMENTS,
    NoSelection,
    Requirements,
    Selection,
    named,
    select,
    why_excluded,
    with_scratch,
)
from cudnnlite.plans.nearest_graph import hints, none_named
from cudnnlite.plans.operation_plan import OperationPlan, Prepared
from cudnnlite.plans.replay import Operand, Replay, ReplayedCall
from cudnnlite.problems import call_watch
from cudnnlite.problems.problem import Problem
from cudnnlite.sizes import aligned_size, over_limit

_NUMBER_BYTES = 16  # of memory for each number that is passed by value


_is_given = partial(is_not, None)


class GraphPlan(OperationPlan[dict[str, DeviceArray]]):
    """The prepared C call of a graph on one handle; ``plan(q=..., k=...)`` computes.

    Attributes
    ----------
    graph : Graph
        The graph that is computed, which can no longer be changed.
    choice : AlgorithmResult
        The engine that each call uses, and the engines that were passed over.
    workspace : int
        The bytes of scratch memory that each call needs, including outputs in scratch memory.
    output_count : int
        How many tensors each call returns.

    Notes
    -----
    C functions of a call: `cudnnBackendExecute`; with addresses that were not seen lately, those
    that describe a variant pack.  `record_problems` does not list graphs.
    """

    _shows_values = False  # users name a graph's tensors, which must not hide a plan's attributes

    def __init__(
        self,
        handle: Handle,
        graph: GraphData,
        engine: Engine | None = None,
        limit: int | None = None,
        requirements: Requirements = NO_REQUIREMENTS,
        *,
        replay: bool = False,
        native: OperationGraph | None = None,
        scratch: Iterable[str] = (),
    ) -> None:
        reason = why_wrong(graph)
        if reason is not None:
            raise ArgumentError(reason)
        self.graph = graph
        self._scratch_outputs = frozenset(scratch)
        super().__init__(handle, GraphProblem(graph, self._scratch_outputs), limit)
        self._description = f"plan of {graph!r}"
        self._output_names = self.problem.operation.writes
        self.output_count = len(self._output_names)
        self._engine = engine
        self._requirements = requirements
        self._numbers = NumbersInMemory(graph.scalars)
        self._replays = replay
        self._native = native
        self._replayed: ReplayedCall | None = None
        self._alignments = dict.fromkeys(self.problem.specs, ALIGNMENT)

    @property
    def replay(self) -> Replay | None:
        """The counts of a plan made with ``replay=True``; None for any other plan."""
        return None if self._replayed is None else self._replayed.state

    def __call__(  # type: ignore[override]
        self,
        *operands: object,
        out: Mapping[str, object] | DeviceArray | None = None,
        workspace: object = None,
        **named_operands: object,
    ) -> dict[str, DeviceArray]:
        """Enqueue the graph on the handle's stream.

        Parameters
        ----------
        *operands, **named_operands : device arrays, or numbers
            The graph's inputs, by name, or in the order in which they were made.  A number that the
            graph passes by value may be given by its name: it has this value for one call.
        out : mapping of str to device array, or device array, optional
            Arrays that are written in place, by the names of outputs.  A graph with one output also
            takes the array alone.  Other outputs are new arrays.  The output of a graph with one
            product may be an operand that is added behind it, of the same spec.
        workspace : device array, optional
            The caller's own scratch memory, instead of the handle's.

        Returns
        -------
        dict of str to DeviceArray
            All outputs of the graph, by name.

        Raises
        ------
        ArgumentError, ArrayTypeError, ClosedError, ThreadError
            Before anything is written.
        CudnnError
            The C function failed.
        """
        if named_operands and not self._numbers.names.isdisjoint(named_operands):
            changes = {
                name: named_operands.pop(name)
                for name in self._numbers.names
                if name in named_operands
            }
            with self._numbers_changed(changes):
                return self(*operands, out=out, workspace=workspace, **named_operands)
        if named_operands:
            operands = self._in_order(operands, named_operands)
        elif len(operands) != self._reads:
            raise self._wrong_count(len(operands))
        if call_watch.active or self._closed or get_ident() != self._thread:
            self.use()
        outputs = self._new_outputs() if out is None else self._outputs_of(out)
        arrays = self._enqueue((*operands, *outputs), workspace, is_new=out is None)
        return dict(zip(self._output_names, arrays[self._reads :]))  # noqa: B905

    @contextmanager
    def _numbers_changed(self, numbers: Mapping[str, object]) -> Iterator[None]:
        """Change the values of numbers for one call."""
        if self._replays:
            raise ArgumentError(
                f"{', '.join(sorted(numbers))}: the call of a plan with replay=True was recorded "
                "with the graph's own numbers"
            )
        self.use()
        values = {
            name: parse_number(value, self.graph.scalars[name].dtype, name)
            for name, value in numbers.items()
        }
        try:
            self._numbers.write(values)
            yield
        finally:
            self._numbers.write(self._numbers.values)

    def _new_outputs(self) -> list[DeviceArray]:
        return [self._new_array(name) for name in self._output_names]

    def _outputs_of(self, out: object) -> list[Any]:
        """Return the arrays of `out` in the order of the outputs, and new arrays for the others."""
        names = self._output_names
        if not isinstance(out, Mapping):
            if len(names) > 1:
                raise ArgumentError(f"out={shown(out)}; needed: a mapping of {', '.join(names)}")
            return [out]
        arrays = [*map(out.get, names)]
        if len(out) == len(names) and all(map(_is_given, arrays)):
            return arrays
        for name in out:
            if name not in names:
                raise ArgumentError(f"out has {shown(name)}; allowed: {', '.join(names)}")
        return [
            self._new_array(name) if array is None else array
            for name, array in zip(names, arrays, strict=True)
        ]

    def _prepare_call(self) -> Prepared:
        native = self._native
        if native is None:
            try:
                native = lower(self.graph, self._handle, self._resources)
            except NotSupportedError as error:
                error.notes = (*error.notes, *self._hints())
                raise
        if self._engine is not None:
            selection = self._requested_engine(native, self._engine)
        else:
            selection = self._preferred_engine(native)
        call = selection.call
        self.choice = selection.row
        self.workspace = self._with_scratch(call.workspace)
        if not self._replays:
            return call
        self._replayed = ReplayedCall(self._handle, call, self._staged_operands())
        self._resources.callback(self._replayed.close)
        return self._replayed

    def _with_scratch(self, workspace: int) -> int:
        """Return the bytes that an engine's workspace and the outputs in scratch memory need."""
        return with_scratch(workspace, scratch_bytes(self.graph, self._scratch_outputs))

    @cached_property
    def _scratch_offsets(self) -> list[tuple[str, int]]:
        """The offset of the engine's workspace, and those of the outputs behind it, by name."""
        offsets, end = [("workSpace", 0)], aligned_size(self.choice.workspace)
        for name, record in self.graph.outputs.items():
            if name in self._scratch_outputs:
                offsets.append((name, end))
                end += aligned_size(record.spec.nbytes)
        return offsets

    def _record(self) -> None:
        """List nothing: neither files of problems nor the tuner can have a graph."""

    def _staged_operands(self) -> dict[str, Operand]:
        operation = self.problem.operation
        return {
            name: Operand(spec.nbytes, name in operation.reads, name in operation.writes)
            for name, spec in self.problem.specs.items()
        }

    def _requested_engine(self, native: OperationGraph, engine: Engine) -> Selection:
        """Return the engine that the user named."""
        selection = named(
            native,
            engine,
            self._requirements,
            "engine",
            self._resources,
            make_call=self._make_call,
        )
        needed = self._with_scratch(selection.call.workspace)
        if self._limit is not None and needed > self._limit:
            raise WorkspaceLimitError(f"engine={engine}: {over_limit(needed, self._limit)}")
        return selection

    def _preferred_engine(self, native: OperationGraph) -> Selection:
        """Return the first engine that is allowed and fits the limit."""
        selection = select(
            native,
            self._requirements,
            self._limit,
            self._resources,
            make_call=self._make_call,
            scratch_nbytes=scratch_bytes(self.graph, self._scratch_outputs),
        )
        if isinstance(selection, Selection):
            return selection
        if not selection.passed_over:
            raise _none_named(self._handle, self.graph, self._hints())
        raise _none_left(self.graph, selection)

    def _make_call(
        self, native: OperationGraph, configuration: Configuration, stack: ExitStack
    ) -> ExecutionPlan:
        return GraphCall(native, configuration, stack, self._numbers)

    def _hints(self) -> list[str]:
        """Return hints for a graph that cuDNN has no engine for.

        This asks cuDNN about up to 24 other graphs.
        """

        def is_allowed(configuration: Configuration, graph: GraphData) -> bool:
            return why_excluded(configuration, graph, self._requirements) is None

        return hints(self._handle, self.graph, HEURISTICS_OF_PLANS, is_allowed)


class PlanByGraph(OperationPlan[DeviceArray]):
    """A plan of an operation that a graph computes; its operands are those of the operation.

    Parameters
    ----------
    handle : Handle
        The plan belongs to it and is closed with it.
    problem : Problem
        The operation.
    graph : Graph
        The graph that computes it.
    plan_graph : callable
        It returns the plan of the graph, and holds no arrays; not called if the results are empty.
    is_listed : bool
        Whether `record_problems` lists the problem.

    Attributes
    ----------
    graph : Graph
        The graph that is computed.
    choice : AlgorithmResult
        The engine that runs.
    """

    def __init__(
        self,
        handle: Handle,
        problem: Problem,
        graph: GraphData,
        plan_graph: Callable[[], GraphPlan],
        *,
        is_listed: bool,
    ) -> None:
        super().__init__(handle, problem)
        if not is_listed:
            self._description = f"plan of {graph!r}"
        self.graph = graph
        self._plan_graph = plan_graph
        self._graph_plan: GraphPlan | None = None
        self._is_listed = is_listed

    @property
    def replay(self) -> Replay | None:
        """The counts of a plan made with ``replay=True``; None for any other plan."""
        return None if self._graph_plan is None else self._graph_plan.replay

    def _prepare_call(self) -> Prepared:
        plan = self._plan_graph()
        self._resources.callback(plan.close)
        assert plan._prepared is not None
        self._graph_plan = plan
        self.choice = plan.choice
        self.workspace = plan.workspace
        self._alignments = dict.fromkeys(self.problem.specs, ALIGNMENT)
        return plan._prepared

    def _record(self) -> None:
        """List the problem, unless it says less than the graph."""
        if self._is_listed:
            super()._record()

    def _function_name(self) -> str:
        return EXECUTE


def scratch_bytes(graph: GraphData, scratch: Iterable[str]) -> int:
    """Return the bytes of the outputs that are in scratch memory."""
    outputs = graph.outputs
    return sum(aligned_size(outputs[name].spec.nbytes) for name in scratch)


class GraphCall(ExecutionPlan):
    """An execution plan that passes a graph's numbers by value."""

    def __init__(
        self,
        native: OperationGraph,
        configuration: Configuration,
        stack: ExitStack,
        numbers: NumbersInMemory,
    ) -> None:
        super().__init__(native, configuration, stack)
        self._numbers = numbers
        self._other_views = native.other_views

    def replace(self, workSpace: int = 0, **addresses: int) -> None:
        """Change the addresses of operands and workspace."""
        for view, name in self._other_views.items():
            addresses[view] = addresses[name]
        addresses.update(self._numbers.addresses)
        self._point_to(addresses, workSpace)


class NumbersInMemory:
    """Host memory with the numbers that a graph passes by value; C reads it at each call."""

    def __init__(self, scalars: Mapping[str, TensorRecord]) -> None:
        self.names = frozenset(scalars)
        self.values = {name: record.value for name, record in scalars.items()}
        memory = np.zeros((len(scalars) + 1) * _NUMBER_BYTES, np.uint8)
        start = -memory.ctypes.data % _NUMBER_BYTES
        self._places = {}
        for place, (name, record) in enumerate(scalars.items()):
            offset = start + place * _NUMBER_BYTES
            dtype = numpy_dtype(record.dtype)
            self._places[name] = memory[offset : offset + dtype.itemsize].view(dtype)
        self.addresses = {name: place.ctypes.data for name, place in self._places.items()}
        self.write(self.values)

    def write(self, values: Mapping[str, float | None]) -> None:
        """Change the values of numbers."""
        for name, value in values.items():
            self._places[name][0] = value


def _none_named(
    handle: Handle, graph: GraphData, hints_of_graph: Sequence[str]
) -> NotSupportedError:
    """Return the error for a graph that the heuristics name no engine for."""
    detail = "; ".join([f"{none_named(handle.device)} for such a graph", *hints_of_graph])
    return NotSupportedError(
        "cudnnBackendFinalize", Status.NOT_SUPPORTED, f"graph of {_kinds(graph)}: {detail}"
    )


def _none_left(graph: GraphData, selection: NoSelection) -> NotSupportedError | WorkspaceLimitError:
    """Return the error for a graph whose engines were all passed over."""
    reasons = "; ".join(f"{row.algorithm}: {reason}" for row, reason in selection.passed_over)
    message = f"graph of {_kinds(graph)}: {reasons}"
    if selection.larger:
        return WorkspaceLimitError(message)
    return NotSupportedError("cudnnBackendFinalize", Status.NOT_SUPPORTED, message)


def _kinds(graph: GraphData) -> str:
    return cut(", ".join(row[1] for row in graph.rows()))
