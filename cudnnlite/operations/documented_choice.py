"""`documented_choice`: what the docstrings of operations with a choice of algorithms have in common, written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from cudnnlite.operations.operation import Operation

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_HANDLES = {
    "call": "Its stream orders the call, which is asynchronous, its workspace serves it; it keeps the plan for the next one.",
    "plan": "The plan belongs to it and is closed with it.",
    "get": "The device that it ranks for.",
    "find": "Waited for: the search synchronises.",
}
_LIMIT = """\
workspace_limit : int or str, optional
    Bytes, "64 MiB", or "10%" of the device's memory; the handle's limit if not given.
"""
_CHOICE = """\
algorithm : AlgorithmResult, Engine, {kind} or str, optional
    A search's result, an engine of cuDNN's backend, or an algorithm of the descriptor call.  If not given: the first engine
    that cuDNN's heuristic A names and that keeps the math type's promise; where there is none, the algorithm that the v7
    heuristic prefers.  ``plan.choice`` tells which, and why.
"""
_INTERFACE = """\
interface : str, optional
    "graph": an engine or an error; "descriptor": the descriptor call, which takes operands of any alignment.
"""
_SCALARS = """\
alpha, beta : float
    {written} = alpha * gradient + beta * {written}.  With beta = 0 `out` is not read.
"""
_PARAMETERS = {
    "call": _SCALARS + """\
out : device array, optional
    {written}, written in place; a new array if not given.
""" + _CHOICE + _LIMIT + _INTERFACE + """\
workspace : device array, optional
    The caller's own scratch memory, instead of the handle's.
""",
    "plan": _SCALARS + """\
out : spec or device array, optional
    What the result should look like.
""" + _CHOICE + _LIMIT + _INTERFACE + """\
replay : bool
    Record the call as a CUDA graph, and launch that; as in `plan_convolution_forward`.
""",
    "get": "",
    "find": """\
beta : float
    With beta = 0, `out` serves as the search's output and is overwritten.  Otherwise it is left alone.
out : device array, optional
    What the result should look like; scratch memory if not given.
""" + _LIMIT,
}  # fmt: skip
_RETURNS = {
    "call": "DeviceArray\n    {written}.",
    "plan": "{name}Plan\n    To be called as ``plan({reads}, out={written})``.",
    "get": "AlgorithmTable\n    All algorithms, the preferred first, those that cuDNN refuses with their status last.",
    "find": """\
AlgorithmTable
    Every algorithm that cuDNN returned, the fastest first, the failed ones with their status last.  Its times contain tens to
    hundreds of microseconds of host overhead: the tuner measures better.""",
}
_ERRORS = {
    "call": "ArrayTypeError, ClosedError, ThreadError",
    "plan": "NoAlgorithmError, WorkspaceLimitError",
    "get": "ClosedError",
    "find": "ArrayTypeError, DeviceMemoryError",
}
_FUNCTIONS = {
    "call": "`cudnnBackendExecute`, or `{function}`; for the first call of a kind, also those of\n`plan_{operation}`.",
    "plan": "of an engine, those of a `BackendDescriptor`, and of its call `cudnnBackendExecute`.  Of the descriptor\ncall "
    "`{workspace}`; where no algorithm is given, `{heuristic}` and\n`{count}`; of a call, `{function}`, and\n"
    "`cudnnTransformTensor` where operands are converted.",
    "get": "`{heuristic}`, `{count}`.",
    "find": "`{find}`, `{count}`,\nand, for the size of the search's own workspace, `{workspace}`.",
}
_AFTER = """
Returns
-------
{returns}

Raises
------
ArgumentError, {errors}
    Before anything is written; the message names the argument.
NotSupportedError
    cuDNN does not support the combination.

Notes
-----
C functions: {functions}
Those of the descriptor call are deprecated since cuDNN {since}, still shipped and working.

"""


def documented_choice(operation: Operation, what: str) -> Callable[[FunctionT], FunctionT]:
    """Complete a docstring, which has its own parameters and examples.

    Parameters
    ----------
    operation : Operation
        What the function is about.
    what : str
        What it does: "call", "plan", "get" (cuDNN's heuristic), "find" (its search).
    """
    algorithms = operation.algorithms
    assert algorithms is not None
    words = {
        "written": operation.writes[0],
        "reads": ", ".join(operation.reads),
        "name": "".join(word.capitalize() for word in operation.name.split("_")),
        "operation": operation.name,
        "function": operation.function,
        "since": operation.record.deprecated,
        "kind": algorithms.kind.__name__,
        **{name: getattr(algorithms, name) for name in ("count", "heuristic", "find", "workspace")},
    }
    before = f"Parameters\n----------\nhandle : Handle\n    {_HANDLES[what]}\n"
    parts = {"returns": _RETURNS, "errors": _ERRORS, "functions": _FUNCTIONS}
    sections = _AFTER.format(
        since=words["since"], **{name: texts[what].format(**words) for name, texts in parts.items()}
    )
    after = _PARAMETERS[what].format(**words) + sections

    def complete(function: FunctionT) -> FunctionT:
        text = inspect.cleandoc(function.__doc__ or "").replace("Parameters\n----------\n", before, 1)
        own, heading, examples = text.partition("Examples\n--------\n")
        function.__doc__ = f"{own.rstrip()}\n{after}{heading}{examples}\n"
        return function

    return complete
