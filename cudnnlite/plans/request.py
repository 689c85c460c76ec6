"""`Request`: the arguments of one call; it can be run, planned, or turned into a problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from struct import Struct
from typing import Any, Generic, TypeAlias, TypeVar

from cudnnlite.arguments import real_number
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError, ArrayTypeError
from cudnnlite.plans.operands import all_on_device, on_device, tensor_spec, usable_workspace, use
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.problems.operation import Operation
from cudnnlite.problems.problem import Problem, parse_option
from cudnnlite.specs import FilterSpec, TensorSpec
from cudnnlite.specs.frozen import exact_key

ResultT = TypeVar("ResultT")
PlanProblem: TypeAlias = Callable[[Handle, Problem, int | None], OperationPlan[Any]]
_spec_hash = attrgetter("spec._hash")
# The bits of `alpha` and `beta`.  `exact_key` would make each one-line call slower.
_bits_of_scalars = Struct("2d").pack


class Request(Generic[ResultT]):
    """The arguments of one call of an operation, bound to their meaning.

    Parameters
    ----------
    handle : Handle or None
        The handle that runs it; None if only the problem is requested.
    operation : Operation
        The declaration.
    operands : sequence
        Arrays, or specs for a plan or a problem, in the order of `Operation.reads`.
    options : sequence
        The values of the options, in the order of `Operation.options`.
    alpha, beta : float
        Host scalars.
    out : array, tuple of arrays, spec or None
        The outputs, in the order of `Operation.writes`; None for a new array.
    result : TensorSpec, FilterSpec, tuple of them, or None
        The specs of new results, if they do not follow from the operands.
    workspace : array or None
        The caller's own scratch memory.
    workspace_limit : int, str or None
        The most workspace that a call may use.
    reserve : array or None
        The memory that a forward call writes for the backward call.
    own_scalars : mapping of str to float or None
        The scalars of outputs that have their own, by the names of `Operation.shared_scalars`; None
        for the value of `alpha` or `beta`.
    plan_problem : callable
        (handle, problem, limit) -> the plan.
    problem_of : callable, optional
        (problem) -> the problem that `problem` returns, if that is another one.
    """

    __slots__ = (
        "alpha",
        "beta",
        "handle",
        "operands",
        "operation",
        "options",
        "out",
        "own_scalars",
        "plan_problem",
        "problem_of",
        "reserve",
        "result",
        "workspace",
        "workspace_limit",
    )

    def __init__(
        self,
        handle: Handle | None,
        operation: Operation,
        operands: Sequence[Any],
        options: Sequence[Any] = (),
        alpha: float = 1.0,
        beta: float = 0.0,
        out: object = None,
        result: object = None,
        workspace: object = None,
        workspace_limit: int | str | None = None,
        reserve: object = None,
        *,
        own_scalars: Mapping[str, float | None] | None = None,
        plan_problem: PlanProblem = OperationPlan,
        problem_of: Callable[[Problem], Problem] | None = None,
    ) -> None:
        self.handle: Any = handle
        self.operation = operation
        self.operands = operands
        self.options = options
        self.alpha = alpha
        self.beta = beta
        self.out: Any = out
        self.result: Any = result
        self.workspace = workspace
        self.workspace_limit = workspace_limit
        self.reserve = reserve
        self.own_scalars = own_scalars
        self.plan_problem = plan_problem
        self.problem_of = problem_of

    def run(self) -> ResultT:
        """Compute, by the plan that the handle keeps for calls of this kind."""
        if type(self.handle) is not Handle:
            use(self.handle)
        try:
            operands = self.operands
            if operands and not isinstance(operands[-1], DeviceArray):
                self._view_arrays()  # quicker than finding out in `key`
            key = self.key()
            plan = self.handle.plans.find(key)
        except ArrayTypeError:  # of a call, which takes arrays and no specs
            raise
        except TypeError:  # an argument of a wrong type cannot be hashed; the problem names it
            self.make_problem()
            raise
        if plan is None:
            use(self.handle)
            plan = self.make_and_keep_plan(key)
        result: ResultT = plan(
            *self.operands, out=self.out, workspace=self.workspace, reserve=self.reserve
        )
        return result

    def make_and_keep_plan(self, key: tuple[Any, ...]) -> OperationPlan[ResultT]:
        """Return a new plan, which the handle keeps for calls of this kind."""
        plan = self.make_plan()
        self.handle.plans.keep(key, plan)
        return plan

    def plan(self) -> OperationPlan[ResultT]:
        """Return a plan: it has chosen an algorithm and prepared the C call for many calls."""
        use(self.handle)
        self.refuse(self.call_arguments(), "a plan; give it to the plan's calls")
        return self.make_plan()

    def make_plan(self) -> OperationPlan[ResultT]:
        """Return a new plan, on a handle that may be used."""
        return self.plan_problem(self.handle, self.make_problem(), self.limit())

    def problem(self) -> Problem:
        """Return the problem of the call, as data."""
        self.refuse(
            self.call_arguments() | self.choice_arguments(),
            "problem, which describes what is computed, and not how",
        )
        problem = self.make_problem()
        return problem if self.problem_of is None else self.problem_of(problem)

    def call_arguments(self) -> dict[str, Any]:
        """Return the arguments that only a call uses, by name; None if not given."""
        arguments = {"workspace": self.workspace}
        if not self.operation.needs_reserve:
            arguments["reserve"] = self.reserve
        return arguments

    def choice_arguments(self) -> dict[str, Any]:
        """Return the arguments that say how to compute, by name; None if not given."""
        return {"workspace_limit": self.workspace_limit}

    def refuse(self, arguments: Mapping[str, Any], receiver: str) -> None:
        """Raise ArgumentError if one of the arguments was given."""
        for name, value in arguments.items():
            if value is not None:
                raise ArgumentError(f"{name} is given to {receiver}")

    def key(self) -> tuple[Any, ...]:
        """Return a key that is equal for calls of one kind.

        It contains the hash of each spec, which is computed once and is quick to compare.  A plan
        compares the specs themselves, and refuses specs other than its own.
        """
        operation = self.operation
        option_types = operation.option_types
        if (*map(type, self.options),) != option_types:
            self._parse_options()
        if type(self.alpha) is not float or type(self.beta) is not float:
            self.alpha = real_number(self.alpha, "alpha")
            self.beta = real_number(self.beta, "beta")
        limit = self.handle.workspace.limit
        if self.workspace_limit is not None or self.workspace is not None:
            limit = self.limit()
        options = exact_key(self.options) if float in option_types else self.options
        if self.own_scalars:
            options = (*options, *self._own_numbers())
        try:
            return (
                operation,
                *map(_spec_hash, self.operands),
                self._output_hash() if operation.writes_one else self._output_hashes(),
                *options,
                _bits_of_scalars(self.alpha, self.beta),
                limit,
            )
        except AttributeError:  # arrays of other libraries, which have no spec yet
            self._view_arrays()
            return self.key()

    def _own_numbers(self) -> tuple[Any, ...]:
        """Return the values of the outputs' own scalars, as a part of a key."""
        assert self.own_scalars is not None
        return exact_key(
            None if value is None else real_number(value, name)
            for name, value in self.own_scalars.items()
        )

    def _output_hash(self) -> Any:
        """Return the hash of the spec of the only output, None if nobody described it."""
        if self.out is not None:
            return self.out.spec._hash
        return None if self.result is None else self.result._hash

    def _output_hashes(self) -> Any:
        """Return the hashes of the specs of several outputs, None for what nobody described."""
        if self.out is None and self.result is None:
            return None
        specs = [getattr(described, "spec", described) for described in self._outputs()]
        return tuple(None if spec is None else spec._hash for spec in specs)

    def limit(self) -> int | None:
        """Return the most workspace in bytes that a call may use.

        All of the caller's own, where there is one.
        """
        if self.workspace is not None and self.workspace_limit is None:
            self.workspace = on_device(self.handle, self.workspace, "workspace")
            return usable_workspace(self.workspace)
        limit: int | None = self.handle.workspace.limit_for(self.workspace_limit)
        return limit

    def _parse_options(self) -> None:
        """Bring options to the types that C takes, so that equal calls have equal keys."""
        self.options = [
            value if type(value) is kind else parse_option(value, name, kind)
            for value, (name, kind) in zip(
                self.options, self.operation.options.items(), strict=True
            )
        ]

    def _view_arrays(self) -> None:
        """View operands and outputs as arrays on the handle's device."""
        self.handle._use()
        operation = self.operation
        if self.out is None:
            arguments = map(operation.argument, operation.reads)
            self.operands = all_on_device(self.handle, self.operands, arguments)
            return
        outputs = operation.all_written(self.out)
        written = {
            name: array
            for name, array in zip(operation.writes, outputs, strict=True)
            if array is not None
        }
        arguments = map(operation.argument, chain(operation.reads, written))
        views = all_on_device(self.handle, [*self.operands, *written.values()], arguments)
        count = len(self.operands)
        self.operands = views[:count]
        remaining = iter(views[count:])
        out = tuple(None if array is None else next(remaining) for array in outputs)
        self.out = out[0] if operation.writes_one else out

    def make_problem(self) -> Problem:
        """Return the specs of operands and outputs, options and scalars, as one value."""
        operation = self.operation
        options = dict(zip(operation.options, self.options, strict=True))
        scalars = self.scalars()
        return Problem(
            operation,
            **self.specs(),
            **options,
            **{name: scalars.get(name) for name in operation.scalars},
        )

    def scalars(self) -> dict[str, float | None]:
        """Return the scalars by name."""
        return {"alpha": self.alpha, "beta": self.beta, **(self.own_scalars or {})}

    def specs(self) -> dict[str, Any]:
        """Return the specs of operands and outputs by name, None for an output without a spec.

        A filter whose strides fit both layouts has that of the first input.
        """
        operation = self.operation
        specs: dict[str, Any] = {}
        for name, operand in zip(operation.reads, self.operands, strict=True):
            specs[name] = self._spec_of(operand, name)
        for name, operand in zip(operation.writes, self._outputs(), strict=True):
            specs[name] = None if operand is None else self._spec_of(operand, name)
        for name in operation.filters:
            if isinstance(specs[name], TensorSpec):
                tensor = next(
                    specs[other] for other in operation.reads if other not in operation.filters
                )
                specs[name] = FilterSpec.from_tensor(
                    specs[name],
                    channels_last=tensor.is_channels_last,
                    argument=operation.argument(name),
                )
        return specs

    def _outputs(self) -> Sequence[Any]:
        """Return the array or the spec of each output; None if the caller gave neither."""
        if len(self.operation.writes) == 1:
            return (self.result if self.out is None else self.out,)
        arrays = self.operation.all_written(self.out)
        if self.result is None:
            return arrays
        return [
            spec if array is None else array
            for array, spec in zip(arrays, self.result, strict=True)
        ]

    def _spec_of(self, operand: object, name: str) -> TensorSpec | FilterSpec:
        if isinstance(operand, FilterSpec) and name in self.operation.filters:
            return operand
        argument = self.operation.argument(name)
        spec_kinds: tuple[type, ...] = (TensorSpec,)
        if name in self.operation.filters:
            spec_kinds = (TensorSpec, FilterSpec)
        is_described = hasattr(operand, "spec") or isinstance(operand, TensorSpec)
        if not is_described and self.handle is not None:
            operand = on_device(self.handle, operand, argument, spec_kinds)
        return tensor_spec(operand, argument, spec_kinds)
