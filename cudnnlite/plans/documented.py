"""`documented`: the parts of a docstring that every operation has, written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite.problems.operation import Operation
from cudnnlite.unknown import FunctionT, tells_unknown

_HANDLE = """\
handle : Handle
    Its stream orders the call, which is asynchronous; it keeps the plan for the next call of the same kind.
"""
_SCALARS = """\
alpha, beta : float
    Host scalars: {scaled} = alpha * result + beta * {scaled}.  With beta = 0 `{argument}` is not read.
"""
_OUT = """\
out : device array, optional
    {written}, written in place; a new array if not given.{in_place}
"""
_OUTS = """\
out : tuple of device arrays, optional
    {written}, written in place; new arrays if not given, or where one is None.
"""
_RETURNS = """
Returns
-------
{returns}
    {written}, {shape}.
"""
_AFTER = """
Raises
------
ArgumentError, ArrayTypeError, ClosedError, ThreadError
    Before anything is written; the message names the argument.
NotSupportedError, BadParamError
    cuDNN does not support the combination.

Notes
-----
C functions: {functions}{deprecated}.

"""


_GIVEN = {
    "y": "its result",
    "dy": "the gradient of its result",
    "x": "its input",
    "grid": "its grid",
}


def _called(operation: Operation) -> list[str]:
    """Return the C functions: of the call, of its workspace's size and of its reserve space's."""
    return [name for name in (operation.function, operation.workspace, operation.reserve) if name]


def documented(
    operation: Operation, shape: str, *variants: Operation
) -> Callable[[FunctionT], FunctionT]:
    """Complete the docstring of a function that runs an operation, which has its own parameters and examples.

    `shape` is that of what it returns, in words; `variants` are operations that it runs besides, of other arguments.
    """
    outputs = operation.outputs or operation.writes
    scalars = _SCALARS if len(operation.scalars) == 2 else ""
    out = (
        _OUT
        if "out" in map(operation.argument, operation.writes)
        else _OUTS
        if operation.outputs
        else ""
    )
    own = (scalars + out + _RETURNS).format(
        written=", ".join(outputs),
        scaled=outputs[0] if operation.scaled == 1 else "each",
        argument=operation.argument(operation.writes[0]),
        in_place="".join(
            f"  It may be `{name}` itself."
            for name in operation.reads
            if name in operation.in_place
        ),
        returns="DeviceArray" if len(outputs) == 1 else "tuple of DeviceArray",
        shape=shape,
    )
    functions = [name for each in (operation, *variants) for name in _called(each)]
    return calling(*functions, before=own, gradient=operation)


def calling(
    *functions: str, before: str = "", gradient: Operation | None = None
) -> Callable[[FunctionT], FunctionT]:
    """Complete the docstring of a function that calls these C functions: the handle, what is raised, and which they are.

    `before` is what comes before what is raised.  Of a `gradient` the parameters may be left out, which say the same of all.
    """
    since = FUNCTIONS[functions[0]].deprecated
    after = before + _AFTER.format(
        functions=", ".join(dict.fromkeys(f"`{name}`" for name in functions)),
        deprecated=f", deprecated since cuDNN {since}, still shipped and working" if since else "",
    )

    def complete(function: FunctionT) -> FunctionT:
        return completed(function, lambda: _of_a_gradient(gradient, function), _HANDLE, after)

    return complete


def _of_a_gradient(operation: Operation | None, function: Callable[..., Any]) -> str:
    """Return what is said of the parameters: the operands, and the options, which are the forward call's."""
    assert operation is not None
    told = ", ".join(_GIVEN[name] for name in operation.reads)
    lines = [f"{', '.join(operation.reads)} : device arrays", f"    Of the forward call: {told}."]
    forward = operation.name.replace("_backward", "" if "sample" in operation.name else "_forward")
    for name in operation.options:
        kinds = function.__annotations__[name].replace(" | ", " or ")
        lines += [f"{name} : {kinds}", f"    As in `{forward}`."]
    return "\n".join([*lines, ""])


def completed(
    function: FunctionT, parameters: Callable[[], str], handle: str, after: str
) -> FunctionT:
    """Give a function its docstring: its own text, with `after` before the examples; and hints at unknown keywords.

    It has `parameters` where it tells of none, and before them `handle`.
    """
    if function.__doc__ is None:  # python -OO removes docstrings
        return tells_unknown(function)
    own, heading, examples = inspect.cleandoc(function.__doc__).partition("Examples\n--------\n")
    if "\nParameters\n" not in own:
        own = f"{own}Parameters\n----------\n{parameters()}"
    if "\nhandle : " not in own:
        own = own.replace("Parameters\n----------\n", f"Parameters\n----------\n{handle}", 1)
    function.__doc__ = f"{own.rstrip()}\n{after}{heading}{examples}\n"
    return tells_unknown(function)
