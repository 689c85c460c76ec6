"""`stateful_operation` and `backward_operation`: public operations without a `Problem`.

A CTC loss and attention have plans, and nothing that a tuner could choose.  A backward pass with
weights runs by the plan of the forward call, whose descriptors and reserve space it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Protocol, TypeVar, cast

from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.function import BoundCall, Method, OperationFunction, PublicFunction

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)
PlanT = TypeVar("PlanT")

_NO_PROBLEM_DOC = """\
Raise ArgumentError: `{name}` has no `Problem`, so its calls cannot be listed or tuned.

Raises
------
ArgumentError
    Always.
"""
_NO_PLAN_DOC = """\
Raise ArgumentError: `{name}` runs by the plan of the forward call, which has this pass as a method.

Raises
------
ArgumentError
    Always; the message names the way.
"""


_NO_PROBLEM = Method(_NO_PROBLEM_DOC, "NoReturn")
_NO_PLAN = Method(_NO_PLAN_DOC, "NoReturn")


class StatefulFunction(PublicFunction, Protocol[P, ResultT_co, PlanT]):
    """The type of a public operation that has no `Problem`.

    `PlanT` is NoReturn for a backward pass, which the plan of the forward call makes.
    """

    plan: Callable[Concatenate[Handle, P], PlanT]
    problem: Callable[P, NoReturn]

    def __call__(self, handle: Handle, *args: P.args, **kwargs: P.kwargs) -> ResultT_co:
        """Check the arguments and compute."""


@dataclass(eq=False, slots=True)
class BackwardRequest(Generic[ResultT]):
    """One call of a backward pass, such as `rnn_backward_data`, with its arguments.

    Parameters
    ----------
    name, forward : str
        The names of the function, and of the forward function.
    method : str
        The name of the plan's method: "backward_data".
    run : callable
        () -> the results; it computes them by the plan of the forward call.
    """

    name: str
    forward: str
    method: str
    run: Callable[[], ResultT]

    def plan(self) -> NoReturn:
        """Raise ArgumentError: the forward call's plan is the one."""
        raise ArgumentError(
            f"{self.name} runs by the plan of the forward call: make that by "
            f"{self.forward}.plan(..., training=True); its {self.method} is this pass"
        )

    def problem(self) -> NoReturn:
        """Raise ArgumentError: there is no declaration."""
        raise ArgumentError(
            f"{self.name} cannot be listed or tuned: it runs by the plan of the "
            f"forward call, {self.forward}.plan(..., training=True)"
        )


def refuse_problem(name: str) -> NoReturn:
    """Raise the ArgumentError of an operation that has no declaration."""
    raise ArgumentError(
        f"{name} has no Problem: there are no algorithms to choose from, so it cannot be listed "
        f"or tuned; {name}.plan makes its plan"
    )


def refuse_arguments_of_calls(plan_of: str, **arguments: Any) -> None:
    """Raise ArgumentError if an argument is given to `plan` that belongs to the plan's calls."""
    for name, value in arguments.items():
        if value is not None:
            raise ArgumentError(
                f"{name} is given for a plan, {plan_of}.plan; give it to the plan's calls"
            )


def stateful_operation(
    bind: Callable[Concatenate[Handle, P], BoundCall[ResultT]], plan: Method
) -> StatefulFunction[P, ResultT, Any]:
    """Make a public operation of the function that binds its arguments, with a method `plan`."""
    methods = {"plan": plan, "problem": _NO_PROBLEM}
    return cast("StatefulFunction[P, ResultT, Any]", OperationFunction(bind, methods))


def backward_operation(
    bind: Callable[Concatenate[Handle, P], BoundCall[ResultT]],
) -> StatefulFunction[P, ResultT, NoReturn]:
    """Make a public operation of the function that binds a backward pass's arguments."""
    return stateful_operation(bind, _NO_PLAN)
