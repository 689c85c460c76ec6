"""`ConvolutionFunction`: a public operation whose algorithms cuDNN ranks and searches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.operations.convolution.plan import ConvolutionPlan
from cudnnlite.operations.convolution.request import ConvolutionRequest
from cudnnlite.plans.function import OperationFunction
from cudnnlite.problems.operation import Algorithms, Operation
from cudnnlite.problems.table import AlgorithmTable

P = ParamSpec("P")

_HEURISTIC_DOC = """\
Ask cuDNN's v7 heuristic for its ranking of the algorithms of `{name}`; nothing is run.

Parameters
----------
handle : Handle
    The device that it ranks for.
others
    As in `{name}`, but that specs may stand for arrays, and nothing chooses an algorithm.

Returns
-------
AlgorithmTable
    All algorithms, the preferred first, those that cuDNN refuses with their status last.

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
    Waited for: the search synchronises.
beta : float
    With beta = 0, `out` serves as the search's output and is overwritten.  Otherwise it is left alone.
out : device array, optional
    What the result should look like; scratch memory if not given.
workspace_limit : int or str, optional
    The most workspace that the search itself may use; the handle's limit if not given.  To see what a limit costs, search
    without one and give the limit to `AlgorithmTable.best`.
others
    As in `{name}`, but that nothing chooses an algorithm.

Returns
-------
AlgorithmTable
    Every algorithm that cuDNN returned, the fastest first, the failed ones with their status last.  cuDNN's times contain
    tens to hundreds of microseconds of host overhead, so small problems are often misranked: the tuner measures better.
    A row is applied with its math type: in float16 and bfloat16 a best row with DEFAULT math runs without tensor cores,
    which a call without `algorithm` would use; ``conv.math_type="tensor_op"`` searches among those.

Raises
------
ArgumentError, ArrayTypeError, DeviceMemoryError
    Before anything is written; the message names the argument.
NotSupportedError
    cuDNN does not support the combination.

Notes
-----
C functions: `{algorithms.find}`, `{algorithms.count}`, and, for the size of the
search's own workspace, `{algorithms.workspace}`.  Plain `cudnnFind...`, which allocates behind
the caller's back, is never used.  All are deprecated since cuDNN 9.0.0, still shipped and working.
"""

_NO_FIND_DOC = """\
Raise ArgumentError: cuDNN has no search for `{name}`.

Raises
------
ArgumentError
    In any case; a `Tuner` measures what a search would.
"""

_PLAN_NOTES = """\

Notes
-----
C functions: of an engine, those of a `BackendDescriptor`, and of its call `cudnnBackendExecute`; with
addresses that were not seen lately `cudnnBackendInitialize` and so on of a variant pack.  Of the
descriptor call `{algorithms.workspace}`; where no algorithm is given,
`{algorithms.heuristic}` and `{algorithms.count}`; of a call,
`{function}`, and `cudnnTransformTensor` where operands are converted.
Those of the descriptor call are deprecated since cuDNN 9.0.0, still shipped and working.
"""


class ConvolutionFunction(OperationFunction[P, DeviceArray]):
    """A public operation whose algorithms cuDNN ranks and searches.

    Attributes
    ----------
    plan, problem : callables
        As those of `OperationFunction`.
    heuristic : callable
        (handle, arguments) -> the ranking of cuDNN's heuristic.
    find : callable
        (handle, arguments) -> what cuDNN's search measured.
    """

    _plan_type = "ConvolutionPlan"
    _result_type = "DeviceArray"
    _choices = frozenset({"algorithm", "interface", "replay"})
    plan: Callable[Concatenate[Handle, P], ConvolutionPlan]
    heuristic: Callable[Concatenate[Handle, P], AlgorithmTable]
    find: Callable[Concatenate[Handle, P], AlgorithmTable]

    def __init__(
        self,
        bind: Callable[Concatenate[Handle, P], ConvolutionRequest],
        function: str,
        algorithms: Algorithms,
    ) -> None:
        super().__init__(bind)
        plan_notes = _PLAN_NOTES.format(function=function, algorithms=algorithms)
        self.plan.__doc__ = f"{self.plan.__doc__}{plan_notes}"
        heuristic_doc = _HEURISTIC_DOC.format(name=self.__name__, algorithms=algorithms)
        find_doc = _NO_FIND_DOC.format(name=self.__name__)
        if algorithms.find:
            find_doc = _FIND_DOC.format(name=self.__name__, algorithms=algorithms)
        self.heuristic = self._verb("heuristic", heuristic_doc, "AlgorithmTable")
        self.find = self._verb("find", find_doc, "AlgorithmTable")


def convolution_operation(
    declaration: Operation,
) -> Callable[[Callable[Concatenate[Handle, P], ConvolutionRequest]], ConvolutionFunction[P]]:
    """Make public operations of functions that bind arguments; `declaration` has the algorithms."""
    algorithms = declaration.algorithms
    if algorithms is None:
        raise ValueError(f"{declaration} has no choice of algorithms")
    return lambda bind: ConvolutionFunction(bind, declaration.function, algorithms)
