"""`OperationFunction`: a public operation, called to compute, asked for a plan or for the problem."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from cudnnlite.devices.handle import Handle
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.plans.plan import Plan
from cudnnlite.problems.problem import Problem
from cudnnlite.unknown import refuse_unknown, why_unknown

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)

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
    """A public operation: called to compute, asked for a plan or for the problem.

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
    plan: Callable[Concatenate[Handle, P], OperationPlan[ResultT]]
    problem: Callable[P, Problem]

    def __init__(self, bind: Callable[Concatenate[Handle, P], BoundCall[ResultT]]) -> None:
        functools.update_wrapper(self, bind)
        self._bind = bind
        self.__signature__ = _signature_of(bind, self._result_type)
        self.plan = self._verb("plan", self._plan, _PLAN_DOC, self._plan_type)
        self.problem = self._verb(
            "problem", self._problem, _PROBLEM_DOC, "Problem", takes_handle=False
        )

    def __call__(self, handle: Handle, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """Bind the arguments and run the request."""
        try:
            request = self._bind(handle, *args, **kwargs)
        except TypeError as error:
            self._explain_unknown(error, kwargs)
            raise
        return request.run()

    def _bound(self, *args: Any, **kwargs: Any) -> Any:
        """Return the request."""
        try:
            return self._bind(*args, **kwargs)
        except TypeError as error:
            self._explain_unknown(error, kwargs)
            raise

    def _explain_unknown(self, error: TypeError, kwargs: dict[str, Any]) -> None:
        """Raise an error that says what may be meant, if it was for an unknown keyword."""
        was_entered = error.__traceback__ is not None and error.__traceback__.tb_next is not None
        if not was_entered and why_unknown(self, kwargs):
            refuse_unknown(self, kwargs)

    def _plan(self, *args: Any, **kwargs: Any) -> Any:
        return self._bound(*args, **kwargs).plan()

    def _problem(self, *args: Any, **kwargs: Any) -> Any:
        return self._bound(None, *args, **kwargs).problem()

    def _verb(
        self,
        verb: str,
        run: Callable[..., Any],
        doc: str,
        returned: str,
        *,
        takes_handle: bool = True,
    ) -> Callable[..., Any]:
        """Return a function that does `run`, with the operation's signature."""

        def function(*args: Any, **kwargs: Any) -> Any:
            return run(*args, **kwargs)

        signature = self.__signature__
        parameters = list(signature.parameters.values())
        if not takes_handle:
            parameters = parameters[1:]
        name = f"{self.__name__}.{verb}"
        function.__name__ = verb
        function.__qualname__ = name
        function.__module__ = self.__module__
        function.__doc__ = doc.format(name=self.__name__, plan=returned)
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=parameters, return_annotation=returned
        )
        return function

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


def _signature_of(bind: Callable[..., Any], result_type: str) -> inspect.Signature:
    """Return a signature that returns what the request's run does: ``Request[X]`` returns X."""
    signature = inspect.signature(bind)
    if not result_type:
        result_type = str(signature.return_annotation).partition("[")[2].removesuffix("]")
    return signature.replace(return_annotation=result_type)
