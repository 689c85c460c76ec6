"""`plan_operation`: the plan that a one-line call would run, whatever operation it is of."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction, signature
from typing import Any

from cudnnlite.arguments import shown
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.convolution.backward import ConvolutionTransposePlan
from cudnnlite.plans.operands import use
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.problems.operation import OPERATIONS
from cudnnlite.unknown import why_unknown

# that run an operation of another name, or a plan by hand
_OTHERS = (
    "convolution_transpose",
    "ctc_loss",
    "dropout_backward",
    "dropout_forward",
    "multi_head_attention_forward",
    "transform_filter",
)

# of operations whose arguments have another order than the C function's
_PLAN_TYPES: dict[str, type[OperationPlan]] = {"convolution_transpose": ConvolutionTransposePlan}


def plan_operation(
    handle: Handle, operation: Callable[..., Any], /, *operands: Any, **options: Any
) -> Any:
    """Decide and marshal a call of an operation once, for many calls of its kind; nothing is computed.

    For convolutions and recurrent networks `plan_convolution_forward`, `plan_rnn` and so on say more.

    Parameters
    ----------
    handle : Handle
        The plan belongs to it and is closed with it.
    operation : function
        One that computes in one call: `pooling_forward`, `dropout_forward`, `ctc_loss`, ...; not the backward passes of
        attention and recurrent networks, which run by the plan of the forward call.
    operands, options : object
        What it is called with, after the handle.

    Returns
    -------
    Plan
        To be called as ``plan(*operands, out=..., workspace=...)`` with arrays like these: the operation's in the order of its
        arguments, those that may be left out last; `reserve` besides, where the operation has it.  `out` is a tuple where
        several arrays are written, those that are updated in place behind the others; what an operation updates, or takes a
        shape from, has to be given.  `ctc_loss` and attention are called with their own options.

    Raises
    ------
    ArgumentError
        It is no operation, or not called so; or as the operation itself raises it.
    CudnnError
        As the operation.

    Notes
    -----
    C functions: those that make the operation's descriptors, and tell its sizes (`cudnnGet...Size`).

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x, state = handle.array(np.ones((1, 1, 4, 5), np.float32)), dnn.DropoutState(handle, seed=7)
    ...     with dnn.plan_operation(handle, dnn.dropout_forward, x, 0.5, dropout_state=state) as plan:
    ...         y, reserve = plan(x)
    ...         y, _ = plan(x, out=y, reserve=reserve)  # drops others; nothing is decided or allocated again
    ...     print(np.unique(y.numpy()))
    [0. 2.]
    """
    use(handle)
    known, name = {*OPERATIONS, *_OTHERS}, operation.__name__ if isfunction(operation) else ""
    if name not in known or not operation.__module__.startswith(str(__package__)):
        forward, _, way = name.partition("_backward_")
        plan = f", or that of {forward}_forward with training=True, whose plan has a backward_{way}"
        hint = plan if f"{forward}_forward" in known else ""
        raise ArgumentError(
            f"operation={shown(operation)}; needed: a function such as dnn.pooling_forward{hint}"
        )
    try:
        signature(operation).bind(handle, *operands, **options)
    except TypeError as error:
        raise ArgumentError(
            f"operation={operation.__name__}: {why_unknown(operation, options) or error}"
        ) from None
    make: Callable[..., Any] | None = handle.plans.asked_for(
        lambda: operation(handle, *operands, **options)
    )
    if make is None:
        raise ArgumentError(f"operation={operation.__name__} runs no plan")
    if name in _PLAN_TYPES:
        return make(kind=_PLAN_TYPES[name])
    return make()
