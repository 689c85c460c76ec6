"""`convolution_operation`: a public operation whose algorithms cuDNN ranks and searches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, cast

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.operations.convolution.request import ConvolutionRequest
from cudnnlite.plans.function import PLAN_DOC, PROBLEM, Method, OperationFunction, PublicFunction
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.problems.operation import Algorithms, Operation
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.table import AlgorithmTable

P = ParamSpec("P")

_HEURISTIC_DOC = """\
Ask cuDNN's v7 heuristic for its ranking of the algorithms of `{name}`; nothing is run.

Parameters
----------
handle : Handle
    The ranking is for its device.
others
    As in `{name}`.  Specs may stand for arrays.  Arguments that choose an algorithm are refused.

Returns
-------
AlgorithmTable
    All algorithms, the preferred one first.  Those that cuDNN refuses come last, with their status.

Raises
------
ArgumentError, ClosedError
    The message names the argument.
NotSupportedError
    cuDNN does not support the combination.

Notes
-----
C functions: `{algorithms.heuristic}`, `{algorithms.count}`,
deprecated since cuDNN 9.0.0, still shipped and working.
"""
_FIND_DOC = """\
Let cuDNN run and time every algorithm of `{name}` on these arrays.

Parameters
----------
handle : Handle
    The call is synchronous: it waits for the stream, and for the search.
beta : float
    With beta = 0, the search writes its results to `out`.  Otherwise it writes to scratch memory.
out : device array, optional
    An array with the shape, dtype and layout of the result; scratch memory if not given.
workspace_limit : int or str, optional
    The most workspace that the search itself may use; the handle's limit if not given.  To see what
    a limit costs, search without one and pass the limit to `AlgorithmTable.best`.
others
    As in `{name}`.  Arguments that choose an algorithm are refused.

Returns
-------
AlgorithmTable
    Every algorithm that cuDNN returned, the fastest first.  Those that failed come last, with their
    status.  cuDNN's times contain tens to hundreds of microseconds of host overhead, so small
    problems are often misranked; a `Tuner` measures better.  A row is applied with its math type.
    In float16 and bfloat16 a row with DEFAULT math runs without tensor cores, which a call without
    `algorithm` would use; a search with ``conv.math_type="tensor_op"`` has rows that use them.

Raises
------
ArgumentError, ArrayTypeError, DeviceMemoryError
    Before anything is written; the message names the argument.
NotSupportedError
    cuDNN does not support the combination.

Notes
-----
C functions: `{algorithms.find}`, `{algorithms.count}`, and, for the size of the
search's own workspace, `{algorithms.workspace}`.  The plain `cudnnFind...` functions allocate
memory themselves and are never used.  All are deprecated since cuDNN 9.0.0, still shipped and
working.
"""

_NO_FIND_DOC = """\
Raise ArgumentError: cuDNN has no search for `{name}`.

Raises
------
ArgumentError
    At every call.  A `Tuner` measures the algorithms instead.
"""

_CONVERT_FILTER_DOC = """\
Return the filter in the layout in which calls of `{name}` read it fastest.

cuDNN's quickest engines read filters whose channels come last.  Where the channels of images and
filter come first, such an engine converts both itself, at every call.  Beside a filter whose
channels come last, a call converts only the images, the result included: `layout` and `conversions`
of its plan's choice say so.

Parameters
----------
handle : Handle
    If it has a tuner (`autotuned`), the tuner measures both layouts.  Otherwise the channels come
    last where tensor cores multiply.
others
    As in `{name}`.  Specs may stand for arrays other than the filter.

Returns
-------
DeviceArray
    The filter itself if its layout is the best, or a converted copy.  Later changes of the original
    are not seen in the copy.  Calls and plans of `{name}` take it with images of either layout.

Raises
------
ArgumentError, ArrayTypeError, ClosedError, CudnnError
    As in `{name}`.

Notes
-----
C function: `cudnnTransformTensor`.
"""
_NO_FILTER_DOC = """\
Raise ArgumentError: `{name}` reads no filter.

Raises
------
ArgumentError
    At every call.
"""
_PLAN_NOTES = """\

Notes
-----
C functions for an engine: those of a `BackendDescriptor`; for each call `cudnnBackendExecute`;
for addresses that were not used lately also the functions that make a variant pack.  For the
descriptor call: `{algorithms.workspace}`; if no algorithm is given, `{algorithms.heuristic}` and
`{algorithms.count}`; for each call `{function}`, and
`cudnnTransformTensor` if operands are converted.
Those of the descriptor call are deprecated since cuDNN 9.0.0, still shipped and working.
"""


class ConvolutionFunction(PublicFunction, Protocol[P]):
    """The type of a public operation whose algorithms cuDNN ranks and searches.

    Attributes
    ----------
    plan, problem : callables
        As those of `OperationFunction`.
    heuristic : callable
        (handle, arguments) -> the ranking of cuDNN's heuristic.
    find : callable
        (handle, arguments) -> the table of cuDNN's search.
    convert_filter : callable
        (handle, arguments) -> the filter in the layout that is read fastest.
    """

    plan: Callable[Concatenate[Handle, P], OperationPlan[DeviceArray]]
    problem: Callable[P, Problem]
    heuristic: Callable[Concatenate[Handle, P], AlgorithmTable]
    find: Callable[Concatenate[Handle, P], AlgorithmTable]
    convert_filter: Callable[Concatenate[Handle, P], DeviceArray]

    def __call__(self, handle: Handle, *args: P.args, **kwargs: P.kwargs) -> DeviceArray:
        """Check the arguments and compute."""


def convolution_operation(
    declaration: Operation,
) -> Callable[[Callable[Concatenate[Handle, P], ConvolutionRequest]], ConvolutionFunction[P]]:
    """Return a decorator that makes a public operation of a function that binds arguments.

    `declaration` has the algorithms.
    """
    algorithms = declaration.algorithms
    if algorithms is None:
        raise ValueError(f"{declaration} has no choice of algorithms")
    methods = _methods(declaration, algorithms)

    def make_operation(
        bind: Callable[Concatenate[Handle, P], ConvolutionRequest],
    ) -> ConvolutionFunction[P]:
        choices = frozenset({"algorithm", "interface", "replay"})
        function = OperationFunction(bind, methods, choices, result_annotation="DeviceArray")
        return cast("ConvolutionFunction[P]", function)

    return make_operation


def _methods(declaration: Operation, algorithms: Algorithms) -> dict[str, Method]:
    """Return the methods of an operation, whose docstrings name its C functions."""
    fields = {"function": declaration.function, "algorithms": algorithms, "results": ""}
    find_doc = _NO_FIND_DOC
    if algorithms.find:
        find_doc = _FIND_DOC
    reads_filter = bool(declaration.filters.intersection(declaration.reads))
    convert_doc = _CONVERT_FILTER_DOC if reads_filter else _NO_FILTER_DOC
    return {
        "plan": Method(f"{PLAN_DOC}{_PLAN_NOTES}", "OperationPlan", fields),
        "problem": PROBLEM,
        "heuristic": Method(_HEURISTIC_DOC, "AlgorithmTable", fields),
        "find": Method(find_doc, "AlgorithmTable", fields),
        "convert_filter": Method(convert_doc, "DeviceArray"),
    }
