"""`documented_choice`: what the docstrings of operations with a choice of algorithms have in common, written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from cudnnlite.plans.documented import completed
from cudnnlite.problems.operation import Operation
from cudnnlite.unknown import FunctionT

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
    A search's result, an engine of cuDNN's backend, or an algorithm of the descriptor call.  A result is applied with its math
    type, its layout (where the operands lie in another, each call converts them, and the output back) and its way to make the
    call.  If not given: the first engine that cuDNN's heuristic A names and that keeps the math type's promise; where there is
    none (for integers, say) the algorithm that the v7 heuristic prefers.  ``plan.choice`` tells which, and why.
"""
_INTERFACE = """\
interface : str, optional
    "graph": an engine or an error; "descriptor": the descriptor call, which takes operands of any alignment where an engine
    wants 16 bytes.
"""
_SCALARS = """\
alpha, beta : float
    {written} = alpha * {result} + beta * {written}, passed to cuDNN as double for double tensors, as float otherwise.  With
    beta = 0 `out` is not read.
"""
_OPERANDS = """\
{reads} : {kinds}
    As in `{operation}`.
{others}
    As there.
"""
_ALPHAS = """\
alpha, alpha2 : float
    Host scalars.
"""
_PARAMETERS = {
    "call": "{scalars}"
    """\
out : device array, optional
    {written}, written in place, any strides without overlap; a new array if not given.
"""
    + _CHOICE
    + _LIMIT
    + _INTERFACE
    + """\
workspace : device array, optional
    The caller's own scratch memory, instead of the handle's.
""",
    "plan": "{scalars}"
    """\
out : spec or device array, optional
    What the result should look like.
"""
    + _CHOICE
    + _LIMIT
    + _INTERFACE
    + """\
replay : bool
    Record the call as a CUDA graph for the addresses that it was first made with, and launch that from then on.  With others it
    is made as it is, or through copies to buffers of the plan, whichever was measured to take less time, once, which waits for
    the stream; what comes again is recorded too, up to 8 graphs.  ``plan.replay`` tells.
""",
    "get": """\
out : spec or device array, optional
    What the result should look like.
""",
    "find": """\
beta : float
    With beta = 0, `out` serves as the search's output and is overwritten.  Otherwise it is left alone.
out : device array, optional
    What the result should look like; scratch memory if not given.
workspace_limit : int or str, optional
    The most workspace that the search itself may use; the handle's limit if not given.  To see what a limit costs, search
    without one and give the limit to `AlgorithmTable.best`.
""",
}
_RETURNS = {
    "call": "DeviceArray\n    {written}.",
    "plan": "{name}Plan\n    To be called as ``plan({reads}, out={written})``.",
    "get": "AlgorithmTable\n    All algorithms, the preferred first, those that cuDNN refuses with their status last.",
    "find": """\
AlgorithmTable
    Every algorithm that cuDNN returned, the fastest first, the failed ones with their status last.  cuDNN's times contain tens
    to hundreds of microseconds of host overhead, so small problems are often misranked: the tuner measures better.  A row is
    applied with its math type: in float16 and bfloat16 a best row with DEFAULT math runs without tensor cores, which a call
    without `algorithm` would use; ``conv.math_type="tensor_op"`` searches among those.""",
}
_ERRORS = {
    "call": "ArrayTypeError, ClosedError, ThreadError",
    "plan": "NoAlgorithmError, WorkspaceLimitError",
    "get": "ClosedError",
    "find": "ArrayTypeError, DeviceMemoryError",
}
_FUNCTIONS = {
    "call": "`cudnnBackendExecute`, or `{function}`; for the first call of a kind, also those of\n`plan_{operation}`.",
    "plan": "of an engine, those of a `BackendDescriptor`, and of its call `cudnnBackendExecute`; with addresses\nthat were "
    "not seen lately `cudnnBackendInitialize` and so on of a variant pack.  Of the descriptor\ncall "
    "`{workspace}`; where no algorithm is given, `{heuristic}` and\n`{count}`; of a call, `{function}`, and\n"
    "`cudnnTransformTensor` where operands are converted.",
    "get": "`{heuristic}`, `{count}`.",
    "find": "`{find}`, `{count}`,\nand, for the size of the search's own workspace, `{workspace}`.  Plain\n`cudnnFind...`, "
    "which allocates behind the caller's back, is never used.",
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
{warns}
Notes
-----
C functions: {functions}
Those of the descriptor call are deprecated since cuDNN {since}, still shipped and working.

"""
_WARNS = """
Warns
-----
WorkspaceLimitWarning
    The limit excluded what cuDNN's heuristic prefers.
"""


def documented_choice(
    operation: Operation, what: str, result: str = "gradient", written: str = ""
) -> Callable[[FunctionT], FunctionT]:
    """Complete the docstring of a "call", "plan", "get" (cuDNN's heuristic) or "find" (its search).

    It has its own parameters, where they are not those of the call, and examples.

    `result` is what alpha scales, `written` what is written, where the function has another name for it.
    """
    algorithms = operation.algorithms
    assert algorithms is not None
    words = {
        "written": written or operation.writes[0],
        "reads": ", ".join(operation.reads),
        "name": "".join(word.capitalize() for word in operation.name.split("_")),
        "operation": operation.name,
        "function": operation.function,
        "since": operation.record.deprecated,
        "kind": algorithms.kind.__name__,
        "result": result,
        **{name: getattr(algorithms, name) for name in ("count", "heuristic", "find", "workspace")},
    }
    before = f"handle : Handle\n    {_HANDLES[what]}\n"
    parts = {"returns": _RETURNS, "errors": _ERRORS, "functions": _FUNCTIONS}
    words["scalars"] = (_SCALARS if "beta" in operation.scalars else _ALPHAS).format(**words)
    sections = _AFTER.format(
        since=words["since"],
        warns=_WARNS if what == "plan" else "",
        **{name: texts[what].format(**words) for name, texts in parts.items()},
    )
    after = _PARAMETERS[what].format(**words) + sections

    def complete(function: FunctionT) -> FunctionT:
        known = inspect.signature(function).parameters
        others = ", ".join(
            name for name in known if name in ("conv", "x", "w") and name not in operation.reads
        )
        kinds = "device arrays" if what == "find" else "specs or device arrays"
        return completed(
            function, lambda: _OPERANDS.format(kinds=kinds, others=others, **words), before, after
        )

    return complete
