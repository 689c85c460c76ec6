"""`conversion`: a prepared `cudnnTransformTensor` from one layout to another."""

from __future__ import annotations

from contextlib import ExitStack

from cudnnlite._raw.calls import PreparedCall
from cudnnlite.devices.handle import Handle
from cudnnlite.plans.native_problem import NativeProblem
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.transform import TRANSFORM
from cudnnlite.specs import TensorSpec


def conversion(
    handle: Handle, source: TensorSpec, target: TensorSpec, beta: float, stack: ExitStack
) -> PreparedCall:
    """Return the call for target = source + beta * target; gaps keep their values."""
    problem = Problem(TRANSFORM, x=source, y=target, beta=beta)
    return NativeProblem(handle, problem, stack).prepare()
