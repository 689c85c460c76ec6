"""`documented`: the parts of a docstring that every operation has, written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from cudnnlite.operations.operation import Operation

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_BEFORE = """\
Parameters
----------
handle : Handle
    Its stream orders the call, which is asynchronous; it keeps the plan for the next call of the same kind.
"""
_AFTER = """\
alpha, beta : float
    Host scalars: {written} = alpha * result + beta * {written}.  With beta = 0 `out` is not read.
out : device array, optional
    {written}, written in place; a new array if not given.

Returns
-------
DeviceArray
    {written}, {shape}.

Raises
------
ArgumentError, ArrayTypeError, ClosedError, ThreadError
    Before anything is written; the message names the argument.
NotSupportedError
    cuDNN does not support the combination.

Notes
-----
C function: `{function}`{deprecated}.

"""


def documented(operation: Operation, shape: str) -> Callable[[FunctionT], FunctionT]:
    """Complete a function's docstring, which has its own parameters and examples.

    Parameters
    ----------
    operation : Operation
        What the function runs.
    shape : str
        Of what it returns, in words.
    """
    since = operation.record.deprecated
    deprecated = f", deprecated since cuDNN {since}, still shipped and working" if since else ""
    after = _AFTER.format(written=operation.writes[0], shape=shape, function=operation.function, deprecated=deprecated)

    def complete(function: FunctionT) -> FunctionT:
        text = inspect.cleandoc(function.__doc__ or "").replace("Parameters\n----------\n", _BEFORE, 1)
        own, heading, examples = text.partition("Examples\n--------\n")
        function.__doc__ = f"{own.rstrip()}\n{after}{heading}{examples}\n"
        return function

    return complete
