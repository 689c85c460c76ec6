"""The type of `rnn_forward`, with its overloads, and the methods of the operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol, cast, overload

from cudnnlite.devices.foreign import AnyArray
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import RNNAlgo, RNNDataLayout
from cudnnlite.operations.layers.dropout import DropoutState
from cudnnlite.operations.rnn.outputs import RNNOutput, RNNReserve, RNNTrainingOutput
from cudnnlite.operations.rnn.rnn_plan import RNNPlan
from cudnnlite.operations.rnn.weights import RNNWeights
from cudnnlite.plans.function import BoundCall, Method, OperationFunction, PublicFunction
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.specs import RNNDataSpec, RNNSpec, TensorSpec

_PLAN_DOC = """\
Make descriptors and choose an algorithm once, for many calls with the same batch size and layout.

Parameters
----------
handle : Handle
    The plan belongs to it and is closed with it.
spec : RNNSpec
    The network.
weights : RNNWeights or None
    Checked if they are given.  Each call of the plan has its own.
x : TensorSpec, RNNDataSpec or device array
    An input, as in `rnn_forward`.  An RNNDataSpec has the lengths and the layout, too.
hx, cx : TensorSpec or device array, optional
    Checked if they are given.
lengths : sequence of int, optional
    As in `rnn_forward`.  The calls of the plan may have other lengths.  A plan that is made without
    lengths takes sequences of full length only, so that it may use algorithms that need them.
training, layout, algorithm, padding_fill, dropout_state, workspace_limit
    As in `rnn_forward`.
out, reserve
    Refused here: they are arguments of each call of the plan.
replay : bool
    Record the forward call as a CUDA graph for the addresses of the first call, and launch the
    graph from then on.  The host then makes one launch where cuDNN enqueues hundreds of kernels.  A
    call with other addresses is made without a graph, or through copies to buffers of the plan,
    whichever takes less time; this is measured once, and the measurement waits for the stream.
    Addresses that come again are recorded too, up to 8 graphs for each of up to 4 kinds of
    sequences.  ``plan.replay`` says what the plan did so far.

Returns
-------
RNNPlan
    To be called as `plan(weights, x, hx, cx)`; in training it has `backward_data` and
    `backward_weights`.

Raises
------
ArgumentError
    As in `rnn_forward`.
NotSupportedError
    The algorithm does not support this network.  cuDNN refuses some networks at the first call
    only.

Notes
-----
C functions: `cudnnSetRNNDescriptor_v8`, `cudnnSetRNNDataDescriptor`, `cudnnBuildRNNDynamic` for
PERSIST_DYNAMIC, `cudnnGetRNNWeightSpaceSize`, `cudnnGetRNNTempSpaceSizes`; for each call
`cudnnRNNForward`.

Examples
--------
>>> gru = dnn.RNNSpec("gru", input_size=4, hidden_size=8)
>>> with dnn.Handle() as handle:
...     weights = dnn.RNNWeights(handle, gru)
...     x = handle.array(np.ones((5, 2, 4), np.float32))
...     with dnn.rnn_forward.plan(handle, gru, None, x, lengths=[5, 3]) as plan:
...         for lengths in ([5, 3], [2, 4]):
...             y, hy, _ = plan(weights, x, lengths=lengths)
...     print(y.shape, hy.shape)
(5, 2, 8) (1, 2, 8)
"""
_PROBLEM_DOC = """\
Return the problem of a call of `rnn_forward` as data: to list, save, tune and look it up.

Parameters
----------
spec : RNNSpec
    The network.
weights : RNNWeights or None
    Checked if they are given.
x : TensorSpec, RNNDataSpec or device array
    An input, as in `rnn_forward`.  An RNNDataSpec has the lengths and the layout, too.
lengths, layout, training
    As in `rnn_forward`.
hx, cx : TensorSpec or device array, optional
    Checked if they are given.
others
    Not part of the problem.

Returns
-------
Problem
    The network, its sequences, and whether backward passes follow.

Raises
------
ArgumentError
    Specs that do not fit together; the message names the argument.

Examples
--------
>>> lstm = dnn.RNNSpec("lstm", input_size=4, hidden_size=8)
>>> problem = dnn.rnn_forward.problem(lstm, None, dnn.specs.RNNDataSpec((5, 2, 4), (5, 3)))
>>> print(problem.data.lengths, problem.training, problem.flops)
(5, 3) False 6144
"""
_HEURISTIC_DOC = """\
Return what `rnn_forward` runs without a measurement; nothing is run.

cuDNN has no heuristic for recurrent networks.  cudnnlite chooses the algorithm that was fastest on
an H200, by a rule that `rnn_forward` documents.

Parameters
----------
handle : Handle
    The choice is for its device.
others
    As in `rnn_forward`.  Specs may stand for arrays, and weights may be None.  Arguments that
    choose an algorithm are refused.

Returns
-------
AlgorithmTable
    One row: algorithm and math type, without a time or a workspace.

Raises
------
ArgumentError, ClosedError, ThreadError
    The message names the argument.

Examples
--------
>>> gru, x = dnn.RNNSpec("gru", input_size=4, hidden_size=8), dnn.specs.RNNDataSpec((5, 2, 4))
>>> with dnn.Handle() as handle:
...     print(dnn.rnn_forward.heuristic(handle, gru, None, x)[0].algorithm)
PERSIST_STATIC_SMALL_H
"""
_METHODS = {
    "plan": Method(_PLAN_DOC, "RNNPlan"),
    "problem": Method(_PROBLEM_DOC, "Problem"),
    "heuristic": Method(_HEURISTIC_DOC, "AlgorithmTable"),
}


class RNNPlanMethod(Protocol):
    """The type of `rnn_forward.plan`."""

    @overload
    def __call__(
        self,
        handle: Handle,
        spec: RNNSpec,
        weights: RNNWeights | None,
        x: AnyArray | TensorSpec | RNNDataSpec,
        hx: AnyArray | TensorSpec | None = ...,
        cx: AnyArray | TensorSpec | None = ...,
        *,
        training: Literal[False] = ...,
        lengths: Iterable[int] | None = ...,
        layout: RNNDataLayout | str = ...,
        algorithm: AlgorithmResult | RNNAlgo | str | None = ...,
        padding_fill: float = ...,
        dropout_state: DropoutState | None = ...,
        out: Sequence[AnyArray | None] | None = ...,
        reserve: RNNReserve | None = ...,
        workspace_limit: int | str | None = ...,
        workspace: AnyArray | None = ...,
        replay: bool = ...,
    ) -> RNNPlan[RNNOutput]: ...
    @overload
    def __call__(
        self,
        handle: Handle,
        spec: RNNSpec,
        weights: RNNWeights | None,
        x: AnyArray | TensorSpec | RNNDataSpec,
        hx: AnyArray | TensorSpec | None = ...,
        cx: AnyArray | TensorSpec | None = ...,
        *,
        training: Literal[True],
        lengths: Iterable[int] | None = ...,
        layout: RNNDataLayout | str = ...,
        algorithm: AlgorithmResult | RNNAlgo | str | None = ...,
        padding_fill: float = ...,
        dropout_state: DropoutState | None = ...,
        out: Sequence[AnyArray | None] | None = ...,
        reserve: RNNReserve | None = ...,
        workspace_limit: int | str | None = ...,
        workspace: AnyArray | None = ...,
        replay: bool = ...,
    ) -> RNNPlan[RNNTrainingOutput]: ...
    @overload
    def __call__(
        self,
        handle: Handle,
        spec: RNNSpec,
        weights: RNNWeights | None,
        x: AnyArray | TensorSpec | RNNDataSpec,
        hx: AnyArray | TensorSpec | None = ...,
        cx: AnyArray | TensorSpec | None = ...,
        *,
        training: bool,
        lengths: Iterable[int] | None = ...,
        layout: RNNDataLayout | str = ...,
        algorithm: AlgorithmResult | RNNAlgo | str | None = ...,
        padding_fill: float = ...,
        dropout_state: DropoutState | None = ...,
        out: Sequence[AnyArray | None] | None = ...,
        reserve: RNNReserve | None = ...,
        workspace_limit: int | str | None = ...,
        workspace: AnyArray | None = ...,
        replay: bool = ...,
    ) -> RNNPlan[Any]: ...


class ProblemMethod(Protocol):
    """The type of `rnn_forward.problem`."""

    def __call__(
        self,
        spec: RNNSpec,
        weights: RNNWeights | None,
        x: AnyArray | TensorSpec | RNNDataSpec,
        hx: AnyArray | TensorSpec | None = ...,
        cx: AnyArray | TensorSpec | None = ...,
        *,
        training: bool = ...,
        lengths: Iterable[int] | None = ...,
        layout: RNNDataLayout | str = ...,
        algorithm: AlgorithmResult | RNNAlgo | str | None = ...,
        padding_fill: float = ...,
        dropout_state: DropoutState | None = ...,
        out: Sequence[AnyArray | None] | None = ...,
        reserve: RNNReserve | None = ...,
        workspace_limit: int | str | None = ...,
        workspace: AnyArray | None = ...,
        replay: bool = ...,
    ) -> Problem:
        """Return the problem of a call, as data."""


class HeuristicMethod(Protocol):
    """The type of `rnn_forward.heuristic`."""

    def __call__(
        self,
        handle: Handle,
        spec: RNNSpec,
        weights: RNNWeights | None,
        x: AnyArray | TensorSpec | RNNDataSpec,
        hx: AnyArray | TensorSpec | None = ...,
        cx: AnyArray | TensorSpec | None = ...,
        *,
        training: bool = ...,
        lengths: Iterable[int] | None = ...,
        layout: RNNDataLayout | str = ...,
        algorithm: AlgorithmResult | RNNAlgo | str | None = ...,
        padding_fill: float = ...,
        dropout_state: DropoutState | None = ...,
        out: Sequence[AnyArray | None] | None = ...,
        reserve: RNNReserve | None = ...,
        workspace_limit: int | str | None = ...,
        workspace: AnyArray | None = ...,
        replay: bool = ...,
    ) -> AlgorithmTable:
        """Return the choice of a call without a measurement."""


class RNNForwardFunction(PublicFunction, Protocol):
    """The type of `rnn_forward`.

    Attributes
    ----------
    plan, problem : callables
        As those of `OperationFunction`.
    heuristic : callable
        (handle, arguments) -> what a call runs without a measurement.
    """

    plan: RNNPlanMethod
    problem: ProblemMethod
    heuristic: HeuristicMethod

    @overload
    def __call__(
        self,
        handle: Handle,
        spec: RNNSpec,
        weights: RNNWeights,
        x: AnyArray,
        hx: AnyArray | None = ...,
        cx: AnyArray | None = ...,
        *,
        training: Literal[False] = ...,
        lengths: Iterable[int] | None = ...,
        layout: RNNDataLayout | str = ...,
        algorithm: AlgorithmResult | RNNAlgo | str | None = ...,
        padding_fill: float = ...,
        dropout_state: DropoutState | None = ...,
        out: Sequence[AnyArray | None] | None = ...,
        reserve: RNNReserve | None = ...,
        workspace_limit: int | str | None = ...,
        workspace: AnyArray | None = ...,
        replay: bool = ...,
    ) -> RNNOutput: ...
    @overload
    def __call__(
        self,
        handle: Handle,
        spec: RNNSpec,
        weights: RNNWeights,
        x: AnyArray,
        hx: AnyArray | None = ...,
        cx: AnyArray | None = ...,
        *,
        training: Literal[True],
        lengths: Iterable[int] | None = ...,
        layout: RNNDataLayout | str = ...,
        algorithm: AlgorithmResult | RNNAlgo | str | None = ...,
        padding_fill: float = ...,
        dropout_state: DropoutState | None = ...,
        out: Sequence[AnyArray | None] | None = ...,
        reserve: RNNReserve | None = ...,
        workspace_limit: int | str | None = ...,
        workspace: AnyArray | None = ...,
        replay: bool = ...,
    ) -> RNNTrainingOutput: ...
    @overload
    def __call__(
        self,
        handle: Handle,
        spec: RNNSpec,
        weights: RNNWeights,
        x: AnyArray,
        hx: AnyArray | None = ...,
        cx: AnyArray | None = ...,
        *,
        training: bool,
        lengths: Iterable[int] | None = ...,
        layout: RNNDataLayout | str = ...,
        algorithm: AlgorithmResult | RNNAlgo | str | None = ...,
        padding_fill: float = ...,
        dropout_state: DropoutState | None = ...,
        out: Sequence[AnyArray | None] | None = ...,
        reserve: RNNReserve | None = ...,
        workspace_limit: int | str | None = ...,
        workspace: AnyArray | None = ...,
        replay: bool = ...,
    ) -> Any: ...


def rnn_operation(bind: Callable[..., BoundCall[Any]]) -> RNNForwardFunction:
    """Make `rnn_forward` of the function that binds its arguments."""
    choices = frozenset({"algorithm", "replay", "out", "reserve"})
    return cast("RNNForwardFunction", OperationFunction(bind, _METHODS, choices))
