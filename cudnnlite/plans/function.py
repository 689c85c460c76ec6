"""`OperationFunction`: a public operation: a callable with the verbs `plan` and `problem`."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from cudnnlite.devices.handle import Handle
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.plans.plan import Plan
from cudnnlite.problems.problem import Problem
from cudnnlite.unknown import refuse_unknown, why_unknown

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)

_VERBS_WITHOUT_HANDLE = ("problem", "graph")
_PLAN_DOC = """\
Decide and marshal a call of `{name}` once, for many calls of its kind; nothing is computed.

Parameters
----------
handle : Handle
    The plan belongs to it and is closed with it.
others
    As in `{name}`, but that specs may stand for arrays.

Returns
-------
{plan}
    To be called with arrays like these, in the same order.

Raises
------
ArgumentError, CudnnError
    As in `{name}`.
"""
_PROBLEM_DOC = """\
Return what a call of `{name}` asks for, as data: it can be listed, saved, tuned and looked up.

Parameters
----------
others
    As in `{name}`, without the handle; specs may stand for arrays.

Returns
-------
Problem
    Equal and hashable by all that it holds.

Raises
------
ArgumentError
    Specs that do not fit together; the message names the argument.
"""


class BoundCall(Protocol[ResultT_co]):
    """The arguments of one call, bound to their meaning: a `Request`, or what stands for one."""

    def run(self) -> ResultT_co:
        """Compute."""

    def plan(self) -> Plan:
        """Decide and marshal the call once, for many of its kind."""

    def problem(self) -> Problem:
        """Return what is asked, as data."""


class OperationFunction(Generic[P, ResultT]):
    """A public operation: calling it computes; its verbs return a plan or the problem.

    Parameters
    ----------
    bind : callable
        (handle, arguments) -> the request.  Signature, types and docstring are those of the
        operation.

    Attributes
    ----------
    plan : callable
        (handle, arguments) -> a plan, for many calls of this kind.
    problem : callable
        (arguments) -> what is asked, as data.
    """

    __name__: str
    __qualname__: str
    _plan_type: ClassVar[str] = "OperationPlan"
    _result_type: ClassVar[str] = ""  # where the annotation of `bind` does not say it
    # The arguments that choose how to compute.
    _choices: ClassVar[frozenset[str]] = frozenset()
    plan: Callable[Concatenate[Handle, P], OperationPlan[ResultT]]
    problem: Callable[P, Problem]

    def __init__(self, bind: Callable[Concatenate[Handle, P], BoundCall[ResultT]]) -> None:
        functools.update_wrapper(self, bind)
        self._bind = bind
        self.__signature__ = _signature_of(bind, self._result_type)
        self.plan = self._verb("plan", _PLAN_DOC, self._plan_type)
        self.problem = self._verb("problem", _PROBLEM_DOC, "Problem")

    def __call__(self, handle: Handle, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """Bind the arguments and run the request."""
        try:
            request = self._bind(handle, *args, **kwargs)
        except TypeError as error:
            # Where the function was entered, the error is another one.
            if not _was_entered(error) and why_unknown(self, kwargs):
                refuse_unknown(self, kwargs)
            raise
        return request.run()

    def _verb(self, verb: str, doc: str, returned: str) -> Callable[..., Any]:
        """Return a function that binds arguments and asks the request for the verb."""
        takes_handle = verb not in _VERBS_WITHOUT_HANDLE
        signature = self._signature_of_verb(verb, returned)

        def function(*args: Any, **kwargs: Any) -> Any:
            arguments: tuple[Any, ...] = args if takes_handle else (None, *args)
            try:
                request = self._bind(*arguments, **kwargs)
            except TypeError as error:
                if _was_entered(error):
                    raise
                why = why_unknown(self, kwargs) or _why_unbound(signature, args, kwargs)
                raise TypeError(f"{function.__qualname__}() {why}") from None
            return getattr(request, verb)()

        function.__name__ = verb
        function.__qualname__ = f"{self.__name__}.{verb}"
        function.__module__ = self.__module__
        function.__doc__ = doc.format(name=self.__name__, plan=returned)
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    def _signature_of_verb(self, verb: str, returned: str) -> inspect.Signature:
        """Return the operation's signature without the arguments that a verb refuses."""
        refused = {"workspace"}  # which belongs to the calls of a plan
        if verb != "plan":
            refused |= self._choices
        if verb in ("problem", "graph", "heuristic"):
            refused |= {"workspace_limit"}
        signature = self.__signature__
        parameters = list(signature.parameters.values())
        if verb in _VERBS_WITHOUT_HANDLE:
            parameters = parameters[1:]
        parameters = [parameter for parameter in parameters if parameter.name not in refused]
        return signature.replace(parameters=parameters, return_annotation=returned)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say of a verb of other operations which ones this operation has."""
            if name in ("find", "heuristic"):
                raise AttributeError(
                    f"{self.__name__} has no {name}: there are no algorithms to choose from; "
                    "its verbs are plan and problem"
                )
            raise AttributeError(f"the operation {self.__name__} has no attribute {name!r}")

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Behave as a function does that a class has: so `help` and Sphinx see a function."""
        if instance is None:
            return self
        return types.MethodType(self, instance)

    def __reduce__(self) -> str:
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<operation {self.__name__}{self.__signature__}>"


def operation(
    bind: Callable[Concatenate[Handle, P], BoundCall[ResultT]],
) -> OperationFunction[P, ResultT]:
    """Make a public operation of the function that binds its arguments."""
    return OperationFunction(bind)


def _was_entered(error: TypeError) -> bool:
    """Whether a call raised the error in the function, and not because its arguments do not fit."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is not None


def _why_unbound(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    """Return why arguments do not fit a signature."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    raise AssertionError("the arguments fit the signature")


def _signature_of(bind: Callable[..., Any], result_type: str) -> inspect.Signature:
    """Return a signature that returns what the request's run does: ``Request[X]`` returns X."""
    signature = inspect.signature(bind)
    if not result_type:
        result_type = str(signature.return_annotation).partition("[")[2].removesuffix("]")
    return signature.replace(return_annotation=result_type)
