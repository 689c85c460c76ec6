"""`graph_operation`: a public operation that is written as a graph, and its requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from operator import attrgetter
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Protocol, TypeVar, cast

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import DataType, MathType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.selection import Requirements
from cudnnlite.operations.graph.graph import Graph, find_way, kept_plan, set_output_strides
from cudnnlite.plans.choice import tuning_key
from cudnnlite.plans.function import PLAN_DOC, Method, OperationFunction, PublicFunction
from cudnnlite.plans.graph_plan import NamedResults, graph_plan
from cudnnlite.plans.operands import all_on_device, operand_spec, use
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.frozen import exact_key
from cudnnlite.specs.layout import span

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)
Formula = Callable[..., Graph]  # (specs by name, **options) -> the graph

_GRAPH_DOC = """\
Return the graph of `{name}`, as data: it can be printed, saved, changed and planned.

Parameters
----------
others
    As in `{name}`, without the handle; specs may stand for arrays.

Returns
-------
Graph
    Its inputs and outputs have the names of the arguments and results.

Raises
------
ArgumentError
    Specs that do not fit together; the message names the argument.
"""
_NO_PROBLEM_DOC = """\
Raise ArgumentError: a graph describes a call of `{name}`, and `{name}.graph` returns it.

Raises
------
ArgumentError
    In any case.
"""
_PLAN_RESULTS = """
    A call of the plan returns a dict of all results by name, also if there is only one."""
_METHODS = {
    "plan": Method(PLAN_DOC, "OperationPlan", {"results": _PLAN_RESULTS}),
    "graph": Method(_GRAPH_DOC, "Graph"),
    "problem": Method(_NO_PROBLEM_DOC, "NoReturn"),
}

_spec_hash = attrgetter("spec._hash")


class GraphRequest(Generic[ResultT]):
    """The arguments of one call of an operation that is written as a graph.

    Parameters
    ----------
    handle : Handle or None
        The handle that runs it; None if only the graph is requested.
    name : str
        The function's name.
    formula : callable
        (specs, **options) -> the graph.
    operands : dict
        Arrays by name, or specs for a plan or a graph.
    options : dict
        The options of the formula; their values are hashable.
    results : sequence of str
        The outputs that a call returns; the others are in scratch memory, in the workspace.
    out : array, sequence of arrays, or None
        The outputs, in the order of `results`; specs for a plan or a graph.
    workspace_limit : int, str or None
        The most workspace that a call may use.
    numbers : dict, optional
        Further arguments of the formula, which each call passes by value: calls with others are of
        the same kind.
    math_type : MathType
        The conversions of a product's operands that engines may make.
    optional : frozenset of str
        The operands that may be None: they are left out of the graph.
    without_gaps : callable, optional
        (handle, array, argument) -> the array, or its copy without gaps, where the graph's engines
        take no gaps.  Each call copies; a plan refuses gaps.
    """

    def __init__(
        self,
        handle: Handle | None,
        name: str,
        formula: Formula,
        operands: dict[str, Any],
        options: dict[str, Any],
        results: tuple[str, ...],
        out: Any = None,
        workspace_limit: int | str | None = None,
        numbers: dict[str, Any] | None = None,
        math_type: MathType = MathType.DEFAULT,
        *,
        optional: frozenset[str] = frozenset(),
        without_gaps: Callable[[Handle, DeviceArray, str], DeviceArray] | None = None,
    ) -> None:
        self._handle: Any = handle
        self._name = name
        self._formula = formula
        self._operands = operands
        self._options = options
        self._results = results
        self._out = out
        self._workspace_limit = workspace_limit
        self._numbers = {} if numbers is None else numbers
        self._math_type = math_type
        self._optional = optional
        self._without_gaps = without_gaps

    def graph(self) -> Graph:
        """Return the request as a graph."""
        of_engines = {
            "workspace_limit": self._workspace_limit is not None,
            "math_type": self._math_type != MathType.DEFAULT,
        }
        for name, is_given in of_engines.items():
            if is_given:
                raise ArgumentError(
                    f"{name} is given to graph, which describes what is computed, and not how"
                )
        return self._make_graph()

    def _make_graph(self) -> Graph:
        specs = {
            name: operand_spec(self._handle, operand, name)
            for name, operand in self._operands.items()
            if operand is not None or name not in self._optional
        }
        graph = self._graph_of(specs)
        for name, result in self._outputs().items():
            record = graph.outputs.get(name)
            if record is None or result is None:
                continue
            spec = operand_spec(self._handle, result, self._output_argument(name))
            self._check_output_dtype(name, spec.dtype, record.spec.dtype)
            if spec.shape == record.spec.shape:  # the plan names another shape
                set_output_strides(graph, name, spec.strides)
        if self._without_gaps is not None:
            self._refuse_gaps(graph)
        return graph

    def _refuse_gaps(self, graph: Graph) -> None:
        """Raise ArgumentError for an output with gaps."""
        for name, record in graph.outputs.items():
            spec = record.spec
            if span(spec.shape, spec.strides) != spec.size:
                raise ArgumentError(
                    f"{self._output_argument(name)} is {spec}; needed: an array without gaps"
                )

    def _output_argument(self, name: str) -> str:
        """Return how a message calls what the caller gives for a result."""
        return "out" if len(self._results) == 1 else f"out[{name!r}]"

    def _check_output_dtype(self, name: str, dtype: DataType, needed: DataType) -> None:
        """Raise ArgumentError if an array of `out` has another data type than the result."""
        if dtype == needed:
            return
        message = (
            f"{self._output_argument(name)} is {dtype_name(dtype)}; needed: {dtype_name(needed)}"
        )
        if "dtype" in self._options:
            message += f"; dtype={dtype_name(dtype)!r} asks for it"
        raise ArgumentError(message)

    def _graph_of(self, specs: Mapping[str, TensorSpec]) -> Graph:
        return self._formula(specs, **self._options, **self._numbers)

    def problem(self) -> NoReturn:
        """Raise ArgumentError: there is a graph instead."""
        raise ArgumentError(f"{self._name} is a graph as data: {self._name}.graph(...) returns it")

    def plan(self) -> OperationPlan[NamedResults]:
        """Return a plan: it has chosen an engine and prepared the C call for many calls."""
        for name, result in self._outputs().items():
            if result is not None and not isinstance(result, TensorSpec):
                raise ArgumentError(
                    f"{name} is an array that is given to a plan; give it to the plan's calls, and "
                    "its spec to the plan"
                )
        return self._make_plan()

    def run(self) -> ResultT:
        """Compute, by the plan that the handle keeps for calls of this kind."""
        handle = self._handle
        if type(handle) is not Handle:
            use(handle)
        operands = [operand for operand in self._operands.values() if operand is not None]
        if not operands or not isinstance(operands[0], DeviceArray):
            operands = self._view_operands()  # quicker than the exception below
        try:
            key = self._key()
        except AttributeError:  # arrays of other libraries, which have no spec yet
            operands = self._view_operands()
            key = self._key()
        plan = handle.plans.find(key)
        if plan is None:
            if self._replace_operands():
                return self.run()
            plan = kept_plan(handle, key, self._make_plan)
        if len(self._results) == 1:
            results = plan(*operands, out=self._out, **self._numbers)
            return results[self._results[0]]  # type: ignore[no-any-return]
        out = None if self._out is None else self._outputs()
        results = plan(*operands, out=out, **self._numbers)
        return tuple(results[name] for name in self._results)  # type: ignore[return-value]

    def _replace_operands(self) -> bool:
        """Replace operands with gaps that no plan takes by copies; return whether there was one."""
        if self._without_gaps is None:
            return False
        operands = {name: array for name, array in self._operands.items() if array is not None}
        copies = {
            name: self._without_gaps(self._handle, array, name) for name, array in operands.items()
        }
        self._operands.update(copies)
        return any(copies[name] is not array for name, array in operands.items())

    def _key(self) -> tuple[Any, ...]:
        """Return a key that is equal for calls of one kind.

        It contains the hash of each spec, which is computed once and is quick to compare.  A plan
        compares the specs themselves, and refuses specs other than its own.
        """
        workspace = self._handle.workspace
        limit = workspace.limit
        if self._workspace_limit is not None:
            limit = workspace.limit_for(self._workspace_limit)
        hashes = [
            None if operand is None else operand.spec._hash for operand in self._operands.values()
        ]
        key = (self._name, limit, self._math_type, *exact_key(self._options.values()), *hashes)
        if self._out is not None:
            results = self._outputs().values()
            key += tuple(None if result is None else _spec_hash(result) for result in results)
        return key + tuning_key(self._handle)

    def _view_operands(self) -> list[Any]:
        """View operands and outputs as arrays on the handle's device; return the operands."""
        self._handle._use()
        operands = {name: array for name, array in self._operands.items() if array is not None}
        if self._out is None:
            operand_views = all_on_device(self._handle, [*operands.values()], operands)
            self._operands.update(zip(operands, operand_views, strict=True))
            return operand_views
        outputs = self._outputs()
        written = {name: array for name, array in outputs.items() if array is not None}
        arguments = chain(operands, map(self._output_argument, written))
        arrays = [*operands.values(), *written.values()]
        views = all_on_device(self._handle, arrays, arguments)
        operand_views = views[: len(operands)]
        self._operands.update(zip(operands, operand_views, strict=True))
        output_views = iter(views[len(operands) :])
        results = tuple(None if array is None else next(output_views) for array in outputs.values())
        self._out = results if len(self._results) > 1 else results[0]
        return operand_views

    def _make_plan(self) -> OperationPlan[NamedResults]:
        handle = self._handle
        use(handle)
        requirements = Requirements(self._math_type)
        limit = handle.workspace.limit_for(self._workspace_limit)
        graph = self._make_graph()
        scratch = [name for name in graph.outputs if name not in self._results]
        way = find_way(handle, graph, None, requirements, limit, scratch=scratch)
        return graph_plan(handle, graph, way, limit)

    def _outputs(self) -> dict[str, Any]:
        """Return the caller's arguments for results, by name: arrays, specs or None."""
        if self._out is None:
            return {}
        arrays = (self._out,) if len(self._results) == 1 else self._out
        if not isinstance(arrays, (tuple, list)) or len(arrays) != len(self._results):
            raise ArgumentError(f"out has to be a tuple of {', '.join(self._results)}")
        return dict(zip(self._results, arrays, strict=True))


class GraphFunction(PublicFunction, Protocol[P, ResultT_co]):
    """The type of a public operation that is written as a graph.

    Attributes
    ----------
    plan : callable
        (handle, arguments) -> a plan, called with the operands by name.
    graph : callable
        (arguments) -> the graph, as data.
    """

    plan: Callable[Concatenate[Handle, P], OperationPlan[NamedResults]]
    problem: Callable[P, NoReturn]
    graph: Callable[P, Graph]

    def __call__(self, handle: Handle, *args: P.args, **kwargs: P.kwargs) -> ResultT_co:
        """Check the arguments and compute."""


def graph_operation(
    bind: Callable[Concatenate[Handle, P], GraphRequest[ResultT]],
) -> GraphFunction[P, ResultT]:
    """Make a public operation of the function that binds its arguments."""
    function = OperationFunction(bind, _METHODS, choices=frozenset({"math_type"}))
    return cast("GraphFunction[P, ResultT]", function)
