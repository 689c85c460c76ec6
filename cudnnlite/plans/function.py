"""`OperationFunction`: a public operation, a callable with the methods `plan` and `problem`."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
)

from cudnnlite.devices.handle import Handle
from cudnnlite.plans.operands import check_handle
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.plans.plan import Plan
from cudnnlite.problems.problem import Problem
from cudnnlite.unknown import refuse_unknown, was_entered, why_unknown

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)

# The methods that need no device.
_METHODS_WITHOUT_HANDLE = ("problem", "graph")
# The methods that prepare and run nothing, and so refuse a workspace limit.
_METHODS_WITHOUT_WORKSPACE_LIMIT = ("problem", "graph", "heuristic")
PLAN_DOC = """\
Prepare calls of `{name}` with the same specs and options; nothing is computed.

The plan has the choice of an algorithm, if there is one, and the arguments of the C function.

Parameters
----------
handle : Handle
    The plan belongs to it and is closed with it.
others
    As in `{name}`.  A spec may be given instead of each array.

Returns
-------
OperationPlan
    To be called with arrays of these specs, in the order of the arguments of `{name}`.{results}

Raises
------
ArgumentError, CudnnError
    As in `{name}`.
"""
_PROBLEM_DOC = """\
Return the problem that a call of `{name}` solves: its specs, options and scalars.

A problem can be listed, saved and tuned, and choices are looked up by it.

Parameters
----------
others
    As in `{name}`, without the handle.  A spec may be given instead of each array.

Returns
-------
Problem
    Compared and hashed by all its values.

Raises
------
ArgumentError
    Specs that do not fit together; the message names the argument.
"""


class Method(NamedTuple):
    """A method of public operations, as `help` shows it.

    Parameters
    ----------
    doc : str
        A template of the docstring: `name` is the operation's name.
    returns : str
        The annotation of the result.
    fields : mapping of str to object
        The other fields of the template.
    """

    doc: str
    returns: str
    fields: Mapping[str, object] = {}


PROBLEM = Method(_PROBLEM_DOC, "Problem")
# The methods of an operation that a declaration describes, and nothing else.
_METHODS = {"plan": Method(PLAN_DOC, "OperationPlan", {"results": ""}), "problem": PROBLEM}


class BoundCall(Protocol[ResultT_co]):
    """The checked arguments of one call, which can be run, planned, or returned as a problem.

    Most operations use the class `Request`; some have a class of their own with these methods.
    """

    def run(self) -> ResultT_co:
        """Compute."""

    def plan(self) -> Plan:
        """Prepare calls with the same specs and options, and return their plan."""

    def problem(self) -> Problem:
        """Return the problem: the specs, options and scalars, without the arrays."""


class OperationFunction(Generic[P, ResultT]):
    """A public operation: a call of it computes, and its methods return a plan or the problem.

    Every public operation is of this class.  For an operation with other methods, or with
    overloads, type checkers use a protocol, which is defined beside its methods.

    Parameters
    ----------
    bind : callable
        (handle, arguments) -> BoundCall.  The operation takes over its signature, types and
        docstring.
    methods : mapping of str to Method
        The methods by name: each binds its arguments and calls the bound call's method of that
        name.
    choices : frozenset of str
        The arguments that only a call and `plan` have, such as the algorithm.
    result_annotation : str
        The return annotation that `help` shows for the operation.  If it is empty, it is taken
        from the annotation of `bind`.

    Attributes
    ----------
    plan : callable
        (handle, arguments) -> a plan for many calls with the same specs and options.
    problem : callable
        (arguments) -> the problem, without arrays.
    """

    __name__: str
    __qualname__: str
    plan: Callable[Concatenate[Handle, P], OperationPlan[ResultT]]
    problem: Callable[P, Problem]

    def __init__(
        self,
        bind: Callable[Concatenate[Handle, P], BoundCall[ResultT]],
        methods: Mapping[str, Method] = _METHODS,
        choices: frozenset[str] = frozenset(),
        result_annotation: str = "",
    ) -> None:
        functools.update_wrapper(self, bind)
        self._bind = bind
        self._choices = choices
        self.__signature__ = _signature_of(bind, result_annotation)
        for name, method in methods.items():
            setattr(self, name, self._make_method(name, method))

    def __call__(self, handle: Handle, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """Check the arguments and compute."""
        try:
            bound_call = self._bind(handle, *args, **kwargs)
        except TypeError as error:
            # A TypeError that `bind` raised itself is not about keywords: it passes as it is.
            if not was_entered(error):
                self._refuse_unknown_keyword(kwargs)
                check_handle(handle)  # without it, an argument seems to be missing at the end
            raise
        return bound_call.run()

    def _refuse_unknown_keyword(self, options: dict[str, Any]) -> None:
        """Raise TypeError with a hint if the operation does not have a keyword."""
        if why_unknown(self, options):
            refuse_unknown(self, options)

    def _make_method(self, name: str, description: Method) -> Callable[..., Any]:
        """Return a function that binds its arguments and calls the bound call's method `name`."""
        takes_handle = name not in _METHODS_WITHOUT_HANDLE
        signature = self._method_signature(name, description.returns)

        def method(*args: Any, **kwargs: Any) -> Any:
            bind_args: tuple[Any, ...] = args
            if not takes_handle:
                bind_args = (None, *args)
            try:
                bound_call = self._bind(*bind_args, **kwargs)
            except TypeError as error:
                if was_entered(error):
                    raise
                if takes_handle and args:
                    check_handle(args[0])
                why = why_unknown(self, kwargs) or _why_unbound(signature, args, kwargs)
                raise TypeError(f"{method.__qualname__}() {why}") from None
            return getattr(bound_call, name)()

        method.__name__ = name
        method.__qualname__ = f"{self.__name__}.{name}"
        method.__module__ = self.__module__
        method.__doc__ = description.doc.format(name=self.__name__, **description.fields)
        method.__signature__ = signature  # type: ignore[attr-defined]
        return method

    def _method_signature(self, name: str, return_annotation: str) -> inspect.Signature:
        """Return the signature that `help` shows for a method.

        It is the operation's signature without the arguments that the bound call refuses.
        """
        hidden = {"workspace"}  # Only a call has a workspace: that of a plan is given to its calls.
        if name != "plan":
            hidden |= self._choices
        if name in _METHODS_WITHOUT_WORKSPACE_LIMIT:
            hidden |= {"workspace_limit"}
        parameters = list(self.__signature__.parameters.values())
        if name in _METHODS_WITHOUT_HANDLE:
            parameters = parameters[1:]
        shown = [parameter for parameter in parameters if parameter.name not in hidden]
        return self.__signature__.replace(parameters=shown, return_annotation=return_annotation)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError; if other operations have `name`, say what this one has."""
            if name == "find" and ("heuristic" in vars(self) or "graph" in vars(self)):
                raise AttributeError(
                    f"{self.__name__} has no find: cuDNN has no search for it; "
                    f"dnn.tune(handle, dnn.{self.__name__}, ...) measures"
                )
            if name in ("find", "heuristic"):
                described_by = "graph" if "graph" in vars(self) else "problem"
                raise AttributeError(
                    f"{self.__name__} has no {name}: there are no algorithms to choose from; "
                    f"its functions are plan and {described_by}"
                )
            if name == "graph":
                raise AttributeError(
                    f"{self.__name__} has no graph: it is a call of its own; problem describes it"
                )
            raise AttributeError(f"the operation {self.__name__} has no attribute {name!r}")

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind like a function that is an attribute of a class.

        `help` and Sphinx treat an object with `__get__` as a function.
        """
        if instance is None:
            return self
        return types.MethodType(self, instance)

    def __reduce__(self) -> str:
        return self.__qualname__  # For pickle: the name of the global that holds the operation.

    def __repr__(self) -> str:
        return f"<operation {self.__name__}{self.__signature__}>"


class PublicFunction(Protocol):
    """The attributes of every public operation, for type checkers, without its call and methods."""

    __name__: str
    __qualname__: str
    __signature__: inspect.Signature

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind like a function that is an attribute of a class."""


def operation(
    bind: Callable[Concatenate[Handle, P], BoundCall[ResultT]],
) -> OperationFunction[P, ResultT]:
    """Decorate a function that binds arguments: return the public operation that runs them."""
    return OperationFunction(bind)


def _why_unbound(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    """Return why arguments do not fit the signature of a method.

    Call it only after `bind` refused them: all that the signature takes, `bind` takes too.
    """
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    raise AssertionError("the arguments fit the signature")


def _signature_of(bind: Callable[..., Any], result_annotation: str) -> inspect.Signature:
    """Return the signature of `bind` with the annotation of the operation's result.

    If `result_annotation` is empty, that is X of ``BoundCall[X]`` or ``Request[X]``.
    """
    signature = inspect.signature(bind)
    if not result_annotation:
        result_annotation = str(signature.return_annotation).partition("[")[2].removesuffix("]")
    return signature.replace(return_annotation=result_annotation)
