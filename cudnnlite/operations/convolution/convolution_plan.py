"""`ConvolutionPlan`: a convolution with its algorithm or engine chosen."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import itemsize
from cudnnlite.errors import ArgumentError, NotSupportedError, WorkspaceLimitError
from cudnnlite.graph.engines import Engine
from cudnnlite.graph.operation_graph import ALIGNMENT, OperationGraph
from cudnnlite.graph.problem import EXECUTE
from cudnnlite.operations.convolution.algorithms import PreparedChoice, choose, prepare
from cudnnlite.operations.convolution.layout_conversion import (
    ConvertedConvolution,
    conversion_layout,
    converted_operands,
    faster_layout,
    layout_of_filter,
)
from cudnnlite.operations.convolution.native_convolution import NativeConvolution
from cudnnlite.plans.operation_plan import OperationPlan, Prepared
from cudnnlite.plans.replay import Operand, Replay, ReplayedCall
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.sizes import format_size
from cudnnlite.warn import log


class ConvolutionPlan(OperationPlan[DeviceArray]):
    """A convolution, or a gradient of one, made once and called many times.

    Parameters
    ----------
    handle : Handle
        The plan belongs to it and is closed with it.
    problem : Problem
        The convolution, or the gradient of one.
    algorithm : AlgorithmResult, Engine, enum member or None
        The algorithm or engine; None for the heuristic's choice.
    limit : int or None
        The most workspace in bytes.
    interface : str or None
        "graph", "descriptor", or None for either.
    replay : bool
        Whether calls are recorded as CUDA graphs and launched.
    is_aligned : bool
        Whether operands have the alignment that engines need.
    graph : OperationGraph, optional
        The problem's graph, if the caller keeps it open for as long as this plan is used.

    Attributes
    ----------
    problem : Problem
        The problem that the plan computes; its specs and options are attributes of the plan too.
    choice : AlgorithmResult or None
        Algorithm, math type and layout of each call, with the candidates that were passed over;
        None for an empty batch.
    workspace : int
        Bytes of workspace that each call needs, with the room for converted operands.
    descriptors : dict
        The descriptors of operands and options, by name; empty if an engine runs, and for an empty
        batch.

    Notes
    -----
    An engine that the heuristic chose needs aligned operands.  At the first call with operands that
    are not aligned, the plan makes a second plan, which uses the descriptor call, and logs it.  If
    a tuner's policy may exclude that, the operands are copied instead, with an AlignmentWarning.

    C functions of a call: `cudnnBackendExecute`, or the descriptor call and the conversions of
    operands for it.
    """

    choice: AlgorithmResult | None

    def __init__(
        self,
        handle: Handle,
        problem: Problem,
        algorithm: object = None,
        limit: int | None = None,
        interface: str | None = None,
        *,
        replay: bool = False,
        is_aligned: bool = True,
        graph: OperationGraph | None = None,
    ) -> None:
        super().__init__(handle, problem, limit)
        self.choice = None
        self._algorithm = algorithm
        self._interface = interface
        self._replays = replay
        self._is_aligned = is_aligned
        self._graph = graph
        self._replayed: ReplayedCall | None = None
        self._misaligned_plan: ConvolutionPlan | None = None
        self._copies_misaligned = False

    @property
    def replay(self) -> Replay | None:
        """What a plan made with ``replay=True`` did so far; None for any other plan."""
        if self._replayed is None:
            return None
        return self._replayed.state

    def _function_name(self) -> str:
        if self.descriptors:
            return super()._function_name()
        return EXECUTE

    def _prepare_call(self) -> Prepared:
        if self._algorithm is None and self._interface is None:
            layout = faster_layout(self.problem)
            if layout:
                # The workspace limit, or this cuDNN, may not allow it; or an operand is too large
                # for the descriptor of a conversion.
                with suppress(NotSupportedError, WorkspaceLimitError, ArgumentError):
                    return self._converted_call(None, layout)
        native = NativeConvolution(self._handle, self.problem, self._resources, self._graph)
        try:
            choice = choose(
                native,
                self._algorithm,
                self._limit,
                self._interface,
                self._resources,
                is_aligned=self._is_aligned,
            )
        except NotSupportedError:
            layout = layout_of_filter(self.problem)
            if self._algorithm is not None or not layout:
                raise
            return self._converted_call(None, layout)
        if isinstance(choice, PreparedChoice):
            prepared = choice
        else:
            layout = conversion_layout(self.problem, choice.layout)
            if layout:
                return self._converted_call(choice, layout)
            prepared = prepare(native, choice, self._resources)
        self._note_interface(native, prepared.choice)
        return self._finish(prepared.choice, prepared.call, prepared.workspace)

    def _converted_call(self, choice: AlgorithmResult | None, layout: str) -> Prepared:
        """Return the call in another layout, with the conversions of operands around it.

        Without a choice, cuDNN's heuristic chooses in that layout.
        """
        with ExitStack() as stack:
            call = ConvertedConvolution(
                self._handle,
                self.problem,
                choice,
                layout,
                stack,
                self._graph,
                limit=self._limit,
                interface=self._interface,
                is_aligned=self._is_aligned,
            )
            self._resources.enter_context(stack.pop_all())
        self._alignments = {}
        if choice is None and isinstance(call.choice.algorithm, Engine):
            converted = converted_operands(self.problem, layout)
            in_place = [name for name in self.problem.specs if name not in converted]
            self._alignments = dict.fromkeys(in_place, ALIGNMENT)
        return self._finish(call.choice, call, call.workspace, layout)

    def _finish(
        self, choice: AlgorithmResult, call: Any, workspace: int, layout: str = ""
    ) -> Prepared:
        """Set `choice` and `workspace`, and return the call.

        With `replay` it is a call that is recorded as a CUDA graph.
        """
        self.workspace = workspace
        self._check_limit(choice, layout)
        self.choice = replace(choice, workspace=workspace)
        if not (self._replays or getattr(choice, "replay", False)):
            return call  # type: ignore[no-any-return]
        self._replayed = ReplayedCall(self._handle, call, self._staged_operands())
        self._resources.callback(self._replayed.close)
        return self._replayed

    def _note_interface(self, native: NativeConvolution, choice: AlgorithmResult) -> None:
        """Set the descriptors of the descriptor call, or the alignments that an engine needs."""
        if not isinstance(choice.algorithm, Engine):
            self.descriptors = native.descriptors
        elif self._interface is None and self._algorithm is None:
            self._alignments = dict.fromkeys(self.problem.specs, ALIGNMENT)
        else:
            # An engine that the caller named refuses operands that are not aligned.
            self._alignments = {}

    def _run_misaligned(
        self, alignments: Mapping[str, int], arrays: tuple[DeviceArray, ...], workspace: object
    ) -> tuple[DeviceArray, ...]:
        """Make a call with operands that are not aligned, by the descriptor call if it serves."""
        runs_an_engine = not self.descriptors
        if runs_an_engine and self._is_aligned and not self._copies_misaligned:
            if self._misaligned_plan is None:
                plan = ConvolutionPlan(
                    self._handle, self.problem, limit=self._limit, is_aligned=False
                )
                self._misaligned_plan = plan.prepare()
                log.info("%s: operands that are not aligned run %s", self, plan.choice)
                self._resources.callback(plan.close)
            self._misaligned_plan.run(arrays[: self._reads], arrays[-1], workspace)
            return arrays
        return super()._run_misaligned(alignments, arrays, workspace)

    def copy_misaligned(self) -> None:
        """Let calls copy operands that are not aligned, and not run another algorithm for them."""
        assert self.choice is not None
        self._copies_misaligned = True
        if isinstance(self.choice.algorithm, Engine):
            self._alignments = dict.fromkeys(self.problem.specs, ALIGNMENT)

    def _check_limit(self, choice: AlgorithmResult, layout: str) -> None:
        if self._limit is None or self.workspace <= self._limit:
            return
        conversions = f" in {layout}, converted operands included," if layout else ""
        raise WorkspaceLimitError(
            f"{choice.algorithm}{conversions} needs a workspace of "
            f"{format_size(self.workspace)}; the limit is {format_size(self._limit)}"
        )

    def _staged_operands(self) -> dict[str, Operand]:
        """Return the operands that a graph may have copies of, by the names of cuDNN's header.

        There are none if a result has gaps, because a copy would overwrite them, and none if one
        array is two arguments of the C function.  Weights are not copied: they seldom change.
        """
        operation = self.problem.operation
        staged: dict[str, Operand] = {}
        for name, spec in self.problem.specs.items():
            is_written = name in operation.writes
            is_filter = name in operation.filters
            if is_written and not (is_filter or _is_packed(spec)):
                return {}
            header_names = operation.header(name)
            if len(header_names) > 1:
                return {}
            if is_written or not is_filter:
                operand = Operand(spec.nbytes, self._is_read(name), is_written)
                staged |= dict.fromkeys(header_names, operand)
        return staged


class ConvolutionTransposePlan(ConvolutionPlan):
    """A plan of a transposed convolution: cuDNN computes the gradient of a convolution's input."""

    def __call__(  # type: ignore[override]
        self, x: object, w: object, *, out: object = None, workspace: object = None
    ) -> Any:
        """Enqueue the operation; its operands have the order of `convolution_transpose`.

        Parameters, results and errors are those of `ConvolutionPlan`.
        """
        return self.run((w, x), out, workspace)


def _is_packed(spec: Any) -> bool:
    return bool(spec.nbytes == spec.size * itemsize(spec.dtype) // spec.vector)
