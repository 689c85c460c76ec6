"""`PlannedCall`: a prepared call, with what its plan has to know of it.

A way to compute a problem is a function that returns one.  `descriptor_call` is that of most
operations; convolutions and graphs have others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

from cudnnlite.devices.handle import Handle
from cudnnlite.plans.conversion import ConvertedCall
from cudnnlite.plans.native_problem import NativeProblem
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult


class Prepared(Protocol):
    """One or several C calls, which a plan makes by ``prepared.function(*prepared.arguments)``."""

    @property
    def function(self) -> Callable[..., int | None]:
        """The function to call.  It returns a status: 0 or None for success."""

    @property
    def check(self) -> Callable[[int], None] | None:
        """The function that raises the error of a status; None if `function` itself raises it."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of `function`."""

    def replace(self, **addresses: int) -> None:
        """Change the addresses of operands and of ``workSpace``."""


class PlannedCall(NamedTuple):
    """A prepared call, which has no addresses yet.

    Attributes
    ----------
    call : Prepared
        The call.
    choice : AlgorithmResult or None
        The algorithm or engine, with the candidates that were passed over.
    workspace, reserve : int
        The bytes of workspace and of reserve space that the call needs.
    descriptors : mapping
        The descriptors of operands and options, by name; empty if an engine runs.
    alignments : mapping of str to int, or None
        The alignments that operands need, in bytes; None for those of the declaration.
    scratch_offsets : list of (str, int), or None
        What lies in the workspace, and where; None for equal parts by the header's names.
    make_unaligned_plan : callable or None
        It returns the plan for operands that are not aligned; None if these are copied.
    """

    call: Prepared
    choice: AlgorithmResult | None = None
    workspace: int = 0
    reserve: int = 0
    descriptors: Mapping[str, Any] = MappingProxyType({})
    alignments: Mapping[str, int] | None = None
    scratch_offsets: list[tuple[str, int]] | None = None
    make_unaligned_plan: Callable[[], Any] | None = None


# (handle, problem, limit, stack): the most workspace in bytes, and the owner of native objects.
PlanCall: TypeAlias = Callable[[Handle, Problem, int | None, ExitStack], PlannedCall]


def descriptor_call(
    handle: Handle, problem: Problem, limit: int | None, stack: ExitStack
) -> PlannedCall:
    """Return the call of the operation's C function; a `PlanCall`.

    Operands that it does not take in their strides are copied before and behind it.
    """
    packed_problem = problem.operation.packed(problem)
    if packed_problem is None:
        native = NativeProblem(handle, problem, stack)
        workspace, reserve = native.workspace(), native.reserve()
        call = native.prepare(workSpaceSizeInBytes=workspace, reserveSpaceSizeInBytes=reserve)
        return PlannedCall(call, None, workspace, reserve, native.descriptors)
    converted_call = ConvertedCall(handle, problem, packed_problem, stack)
    native = NativeProblem(handle, packed_problem, stack)
    converted_call.call = native.prepare()
    return PlannedCall(
        converted_call, workspace=converted_call.room, descriptors=native.descriptors
    )
