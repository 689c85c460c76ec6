"""`ConvolutionRequest`: a call of a convolution, with its arguments about algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnnlite.arguments import real_number
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.operation_graph import ALIGNMENT
from cudnnlite.operations.convolution.algorithms import (
    check_interface,
    parse_algorithm,
    parse_interface,
    ranked,
    search,
)
from cudnnlite.operations.convolution.convolution_plan import convolution_plan
from cudnnlite.operations.layers.transform import transform_tensor
from cudnnlite.plans.choice import tuned_choice, tuning_key
from cudnnlite.plans.operands import alignment_of, check_writable, on_device, use
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.plans.replay import parse_replay
from cudnnlite.plans.request import Request
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import HEURISTIC, AlgorithmResult, ranking_ms
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.sizes import ALLOCATION_ALIGNMENT
from cudnnlite.specs import FilterSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST
from cudnnlite.specs.math_types import may_be_tf32


class ConvolutionRequest(Request[DeviceArray]):
    """The arguments of one call of a convolution or a gradient of one.

    Parameters
    ----------
    handle, operation, operands, options, alpha, beta, out, result, workspace, workspace_limit
        As in `Request`.
    algorithm : AlgorithmResult, Engine, enum member, str or None
        The algorithm or engine; None for the tuner's choice, or the heuristic's.
    interface : str or None
        "graph", "descriptor", or None for either.
    replay : bool
        Whether the plan records its call as a CUDA graph.
    names : mapping of str to str, optional
        What the public function calls its operands, in its order, and their names in the problem,
        for the plans that `plan` returns; the problem's own if not given.
    """

    __slots__ = ("algorithm", "interface", "names", "replay")

    def __init__(
        self,
        handle: Any,
        operation: Any,
        operands: Any,
        options: Any,
        alpha: float = 1.0,
        beta: float = 0.0,
        out: Any = None,
        result: Any = None,
        workspace: Any = None,
        workspace_limit: int | str | None = None,
        algorithm: Any = None,
        interface: str | None = None,
        replay: bool = False,
        names: Mapping[str, str] | None = None,
    ) -> None:
        # A call of super().__init__ would make each one-line call 0.3 us slower.
        self.handle = handle
        self.operation = operation
        self.operands = operands
        self.options = options
        self.alpha = alpha
        self.beta = beta
        self.out = out
        self.result = result
        self.workspace = workspace
        self.workspace_limit = workspace_limit
        self.reserve = None
        self.own_scalars = None
        self.problem_of = None
        self.algorithm = algorithm
        self.interface = interface
        self.replay = replay
        self.names = names

    def key(self) -> tuple[Any, ...]:
        """Return the key of the plan for calls of this kind.

        If a tuner chooses, the tuner and the alignments of the operands are part of the key, so
        that the plan of its choice is found without asking the tuner.
        """
        key = Request.key(self)
        if self.replay is not False:
            self.replay = parse_replay(self.replay)
        if not self._is_free:
            algorithm = parse_algorithm(self.operation, self.algorithm)
            self.interface = parse_interface(self.interface)
            return (*key, algorithm, self.interface, self.replay)
        if self.handle._chooser is not None:
            return (*key, self._low_alignments(), *tuning_key(self.handle), self.replay)
        return (*key, None, None, True) if self.replay else key

    def _low_alignments(self) -> tuple[int, ...]:
        """Return the alignments of the operands; empty if all have that of allocated memory."""
        addresses = 0
        for operand in (*self.operands, self.out):
            if isinstance(operand, DeviceArray):
                addresses |= operand.ptr
        if addresses % ALLOCATION_ALIGNMENT == 0:
            return ()
        return tuple(self._alignments().values())

    def _arrays(self) -> dict[str, DeviceArray]:
        """Return the operands that are arrays, by name.

        An output that is yet to be allocated is not among them; it will be aligned.
        """
        names = (*self.operation.reads, "out")
        operands = zip(names, (*self.operands, self.out), strict=True)
        return {name: array for name, array in operands if isinstance(array, DeviceArray)}

    @property
    def _is_free(self) -> bool:
        """Whether the caller names neither an algorithm nor an interface."""
        return self.algorithm is None and self.interface is None

    def make_and_keep_plan(self, key: tuple[Any, ...]) -> OperationPlan[DeviceArray]:
        """Return a new plan, which the handle keeps for calls of this kind."""
        problem = self.make_problem()
        limit = self.limit()
        algorithm = parse_algorithm(self.operation, self.algorithm)
        if self._is_free and self.handle._chooser is not None:
            return self._tuned_plan(key, problem, limit)
        # Later calls may have aligned operands, even if this call has not.
        plan = self._new_plan(problem, algorithm, limit, is_aligned=True)
        self.handle.plans.keep(key, plan)
        return plan

    def _tuned_plan(
        self, key: tuple[Any, ...], problem: Problem, limit: int | None
    ) -> OperationPlan[DeviceArray]:
        """Return the plan of the tuner's choice.

        If the tuner has no choice, for instance because it may not measure now, the heuristic's
        plan is used, and the tuner is asked again at the next call.
        """
        plans = self.handle.plans
        choice = self._tuned_choice(problem, limit)
        # The plan is that of a call that names the choice, unless it copies what is not aligned.
        way = "copies" if self._is_of_policy(choice) else None
        named_key = (*Request.key(self), choice or HEURISTIC, way, self.replay)
        plan: OperationPlan[DeviceArray] | None = plans.find(named_key)
        if plan is None:
            # Later calls may have aligned operands, even if this call has not.
            plan = self._new_plan(problem, choice, limit, is_aligned=True)
            plans.keep(named_key, plan)
        if choice is not None and not _is_heuristic(plan):
            plans.keep(key, plan)
        return plan

    def _tuned_choice(self, problem: Problem, limit: int | None) -> AlgorithmResult | None:
        """Return the choice of the handle's tuner; None without a tuner, or if it has no choice."""
        replay = parse_replay(self.replay)
        return tuned_choice(self.handle, problem, self._alignments(), limit, replay=replay)

    def _alignments(self) -> dict[str, int]:
        """Return the alignments of those operands that are arrays, by name."""
        return {name: alignment_of(array) for name, array in self._arrays().items()}

    def make_plan(self) -> OperationPlan[DeviceArray]:
        """Return a new plan, with the tuner's choice if there is one."""
        problem = self.make_problem()
        limit = self.limit()
        algorithm = parse_algorithm(self.operation, self.algorithm)
        if self._is_free and self.handle._chooser is not None:
            algorithm = self._tuned_choice(problem, limit)
        is_aligned = not any(array.ptr % ALIGNMENT for array in self._arrays().values())
        is_aligned = is_aligned or not self._is_free
        return self._new_plan(problem, algorithm, limit, is_aligned=is_aligned, names=self.names)

    def choice_arguments(self) -> dict[str, Any]:
        """Return the arguments that say how to compute, by name.

        An argument that is not given is None.
        """
        replay = True if parse_replay(self.replay) else None
        return {
            "algorithm": self.algorithm,
            "interface": self.interface,
            "replay": replay,
            "workspace_limit": self.workspace_limit,
        }

    def _new_plan(
        self,
        problem: Problem,
        algorithm: object,
        limit: int | None,
        *,
        is_aligned: bool,
        names: Mapping[str, str] | None = None,
    ) -> OperationPlan[DeviceArray]:
        """Return a new plan, prepared."""
        interface = parse_interface(self.interface)
        check_interface(problem, algorithm, interface)
        return convolution_plan(
            self.handle,
            problem,
            algorithm,
            limit,
            interface,
            replay=parse_replay(self.replay),
            is_aligned=is_aligned or algorithm is not None,
            copies_misaligned=self._is_of_policy(algorithm),
            operands=names,
        )

    def _is_of_policy(self, choice: object) -> bool:
        """Whether a choice is the heuristic's within a tuner's policy, which may exclude others."""
        return self._is_free and getattr(choice, "source", "") == HEURISTIC

    def heuristic(self) -> AlgorithmTable:
        """Return the ranking of cuDNN's v7 heuristic; nothing is run."""
        use(self.handle)
        self._refuse_choice("heuristic")
        return ranked(self.handle, self.make_problem())

    def find(self) -> AlgorithmTable:
        """Let cuDNN run and time every algorithm on the operands.

        The search writes to `out` if beta is 0, and to scratch memory otherwise.
        """
        use(self.handle)
        self._refuse_choice("find")
        self._view_arrays()
        problem = self.make_problem().replace(alpha=1.0, beta=0.0)
        operands = dict(zip(self.operation.reads, self.operands, strict=True))
        if self.out is not None:
            check_writable(self.out, "out", frozenset(), **operands)
        uses_scratch = self.out is None or real_number(self.beta, "beta") != 0
        out = None if uses_scratch else self.out
        return search(self.handle, problem, operands, out, self.limit())

    def convert_filter(self) -> DeviceArray:
        """Return the filter in the layout that calls read fastest: itself, or a copy."""
        handle = self.handle
        use(handle)
        choices = self.call_arguments() | self.choice_arguments()
        del choices["workspace_limit"]  # the tuner's choices are within it
        self.refuse(choices, "convert_filter, which convolves nothing")
        operation = self.operation
        names = operation.filters.intersection(operation.reads)
        if not names:
            raise ArgumentError(f"{operation.name} reads no filter that could be converted")
        (name,) = names
        index = operation.reads.index(name)
        w = on_device(handle, self.operands[index], operation.argument(name))
        self.operands = [*self.operands[:index], w, *self.operands[index + 1 :]]
        problem = self.make_problem()
        layout = self._best_layout_of_filter(problem, name)
        if w.spec.fits(layout):
            return w
        return transform_tensor(handle, w, layout=layout)

    def _best_layout_of_filter(self, problem: Problem, name: str) -> str:
        """Return the layout of the filter `name` with which calls take the least time."""
        w: FilterSpec = problem.values[name]
        if w.rank not in CHANNELS_LAST or w.vector > 1:
            return w.layout
        layouts = (CHANNELS_FIRST[w.rank], CHANNELS_LAST[w.rank])
        choices = {}
        for layout in layouts:
            variant = problem.replace(**{name: FilterSpec(w.shape, w.dtype, layout)})
            choice = self._tuned_choice(variant, self.limit())
            ms = None if choice is None else ranking_ms(choice, latency=True)
            if ms is not None:
                choices[layout] = ms
        if len(choices) == len(layouts):
            return min(layouts, key=lambda layout: choices[layout])
        is_half = w.dtype in (DataType.HALF, DataType.BFLOAT16)
        uses_tensor_cores = is_half or may_be_tf32(problem.math_type, w.dtype)
        return layouts[1] if uses_tensor_cores and problem.conv.groups == 1 else w.layout

    def _refuse_choice(self, function_name: str) -> None:
        """Raise ArgumentError if an argument chooses an algorithm, or belongs to a call."""
        choices = self.call_arguments() | self.choice_arguments()
        if function_name == "find":
            # A search uses a workspace, which may be limited.
            del choices["workspace_limit"]
        self.refuse(choices, f"{function_name}, which ranks the algorithms of the descriptor call")
        algorithms = self.operation.algorithms
        assert algorithms is not None
        if function_name == "find" and not algorithms.find:
            raise ArgumentError(
                f"cuDNN has no search for {self.operation.function}; a Tuner measures it"
            )


def _is_heuristic(plan: OperationPlan[DeviceArray]) -> bool:
    """Whether cuDNN's heuristic chose what a plan runs; no if it runs nothing."""
    return plan.choice is not None and plan.choice.source == HEURISTIC
