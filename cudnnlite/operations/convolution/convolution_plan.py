"""`convolution_plan`: the plan of a convolution, with its algorithm or engine chosen."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import itemsize
from cudnnlite.errors import (
    ArgumentError,
    NotSupportedError,
    SymbolNotFoundError,
    WorkspaceLimitError,
)
from cudnnlite.graph.engines import Engine
from cudnnlite.graph.operation_graph import ALIGNMENT, OperationGraph
from cudnnlite.operations.convolution.algorithms import PreparedChoice, choose, prepare
from cudnnlite.operations.convolution.layout_conversion import (
    conversion_layout,
    converted_convolution,
    faster_layout,
    layout_of_filter,
)
from cudnnlite.operations.convolution.native_convolution import NativeConvolution
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.plans.planned_call import PlannedCall
from cudnnlite.plans.replay import Operand, ReplayedCall
from cudnnlite.problems.problem import Problem, is_read
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.sizes import format_size


def convolution_plan(
    handle: Handle,
    problem: Problem,
    algorithm: object = None,
    limit: int | None = None,
    interface: str | None = None,
    *,
    replay: bool = False,
    is_aligned: bool = True,
    copies_misaligned: bool = False,
    graph: OperationGraph | None = None,
    operands: Mapping[str, str] | None = None,
) -> OperationPlan[DeviceArray]:
    """Return the plan of a convolution, or of a gradient of one.

    Parameters
    ----------
    handle, problem, limit, operands
        As in `OperationPlan`.
    algorithm : AlgorithmResult, Engine, enum member or None
        The algorithm or engine; None for the heuristic's choice.
    interface : str or None
        "graph", "descriptor", or None for either.
    replay : bool
        Whether calls are recorded as CUDA graphs and launched.
    is_aligned : bool
        Whether operands have the alignment that engines need.
    copies_misaligned : bool
        Whether an engine copies operands that are not aligned, because another algorithm for them
        may be excluded.
    graph : OperationGraph, optional
        The problem's graph, if the caller keeps it open for as long as this plan is used.
    """
    way = ConvolutionWay(algorithm, interface, replay, is_aligned, copies_misaligned, graph)
    return OperationPlan(handle, problem, limit, way.plan_call, operands=operands)


@dataclass(frozen=True)
class ConvolutionWay:
    """How a convolution is computed; the attributes are parameters of `convolution_plan`."""

    algorithm: object
    interface: str | None
    replays: bool
    is_aligned: bool
    copies_misaligned: bool
    graph: OperationGraph | None

    @property
    def _is_free(self) -> bool:
        """Whether the heuristic chooses among algorithms and engines."""
        return self.algorithm is None and self.interface is None

    def plan_call(
        self, handle: Handle, problem: Problem, limit: int | None, stack: ExitStack
    ) -> PlannedCall:
        """Return the call: a `PlanCall`."""
        planned = self._choose_call(handle, problem, limit, stack)
        choice = planned.choice
        assert choice is not None
        if self.copies_misaligned and isinstance(choice.algorithm, Engine):
            planned = planned._replace(alignments=dict.fromkeys(problem.specs, ALIGNMENT))
        elif self._is_free and self.is_aligned and isinstance(choice.algorithm, Engine):
            # The engine needs aligned operands; the descriptor call may not.
            make_plan = partial(convolution_plan, handle, problem, limit=limit, is_aligned=False)
            planned = planned._replace(make_unaligned_plan=make_plan)
        if not (self.replays or choice.replay):
            return planned
        call = ReplayedCall(handle, planned.call, _staged_operands(problem))
        stack.callback(call.close)
        return planned._replace(call=call)

    def _choose_call(
        self, handle: Handle, problem: Problem, limit: int | None, stack: ExitStack
    ) -> PlannedCall:
        """Return the call, which is within the limit."""
        if self._is_free:
            layout = faster_layout(problem)
            if layout:
                # The workspace limit, or this cuDNN, may not allow it; or an operand is too large
                # for the descriptor of a conversion; or libcudnn has no conversions.
                with suppress(
                    NotSupportedError, WorkspaceLimitError, ArgumentError, SymbolNotFoundError
                ):
                    return self._converted_call(handle, problem, None, layout, limit, stack)
        native = NativeConvolution(handle, problem, stack, self.graph)
        try:
            choice = choose(
                native, self.algorithm, limit, self.interface, stack, is_aligned=self.is_aligned
            )
        except (NotSupportedError, SymbolNotFoundError):
            layout = layout_of_filter(problem)
            if self.algorithm is not None or not layout:
                raise
            with suppress(SymbolNotFoundError):  # the first error says more
                return self._converted_call(handle, problem, None, layout, limit, stack)
            raise
        if isinstance(choice, PreparedChoice):
            return self._own_call(native, choice, limit)
        layout = conversion_layout(problem, choice.layout)
        if layout:
            return self._converted_call(handle, problem, choice, layout, limit, stack)
        return self._own_call(native, prepare(native, choice, stack), limit)

    def _own_call(
        self, native: NativeConvolution, prepared: PreparedChoice, limit: int | None
    ) -> PlannedCall:
        """Return the call of an algorithm or engine on the operands as they are."""
        choice, workspace = prepared.choice, prepared.workspace
        planned = PlannedCall(prepared.call, replace(choice, workspace=workspace), workspace)
        _check_limit(planned, limit)
        if not isinstance(choice.algorithm, Engine):
            return planned._replace(descriptors=native.descriptors)
        # An engine that the caller named refuses operands that are not aligned.
        alignments = dict.fromkeys(native.problem.specs, ALIGNMENT) if self._is_free else {}
        return planned._replace(alignments=alignments)

    def _converted_call(
        self,
        handle: Handle,
        problem: Problem,
        choice: AlgorithmResult | None,
        layout: str,
        limit: int | None,
        stack: ExitStack,
    ) -> PlannedCall:
        """Return the call in another layout, with the conversions of operands around it.

        Without a choice, cuDNN's heuristic chooses in that layout.
        """
        with ExitStack() as own:
            planned = converted_convolution(
                handle,
                problem,
                choice,
                layout,
                own,
                self.graph,
                limit=limit,
                interface=self.interface,
                is_aligned=self.is_aligned,
            )
            _check_limit(planned, limit, layout)
            stack.enter_context(own.pop_all())
            return planned


def _check_limit(planned: PlannedCall, limit: int | None, layout: str = "") -> None:
    """Raise WorkspaceLimitError for a call that needs more; `layout` is that of conversions."""
    if limit is None or planned.workspace <= limit:
        return
    assert planned.choice is not None
    conversions = f" in {layout}, converted operands included," if layout else ""
    raise WorkspaceLimitError(
        f"{planned.choice.algorithm}{conversions} needs a workspace of "
        f"{format_size(planned.workspace)}; the limit is {format_size(limit)}"
    )


def _staged_operands(problem: Problem) -> dict[str, Operand]:
    """Return the operands that a graph may have copies of, by the names of cuDNN's header.

    There are none if a result has gaps, because a copy would overwrite them, and none if one array
    is two arguments of the C function.  Weights are not copied: they seldom change.
    """
    operation = problem.operation
    staged: dict[str, Operand] = {}
    for name, spec in problem.specs.items():
        is_written = name in operation.writes
        is_filter = name in operation.filters
        if is_written and not (is_filter or _is_packed(spec)):
            return {}
        header_names = operation.header(name)
        if len(header_names) > 1:
            return {}
        if is_written or not is_filter:
            operand = Operand(spec.nbytes, is_read(problem, name), is_written)
            staged |= dict.fromkeys(header_names, operand)
    return staged


def _is_packed(spec: Any) -> bool:
    return bool(spec.nbytes == spec.size * itemsize(spec.dtype) // spec.vector)
