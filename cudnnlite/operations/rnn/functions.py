"""Recurrent networks: RNN, GRU and LSTM, forward and backward, in one line each; and a plan for many calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, overload

from cudnnlite.arguments import instance_of, shown
from cudnnlite.devices.foreign import AnyArray
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import RNNAlgo, RNNDataLayout
from cudnnlite.errors import ArgumentError, NotSupportedError, WorkspaceLimitError
from cudnnlite.operations.layers.dropout import DropoutState
from cudnnlite.operations.rnn.outputs import (
    RNNGradients,
    RNNOutput,
    RNNReserve,
    RNNTrainingOutput,
    without_sequences,
)
from cudnnlite.operations.rnn.plan import RNNPlan
from cudnnlite.operations.rnn.problem import data_spec, make_request
from cudnnlite.operations.rnn.weights import RNNWeights
from cudnnlite.plans.operands import on_device, use
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.problems.rnn import forward_problem
from cudnnlite.specs import RNNDataSpec, RNNSpec, TensorSpec
from cudnnlite.specs.rnn_data import parse_data_layout
from cudnnlite.unknown import tells_unknown


@overload
def plan_rnn(
    handle: Handle,
    spec: RNNSpec,
    x: AnyArray | TensorSpec | RNNDataSpec,
    *,
    lengths: Iterable[int] | None = ...,
    layout: RNNDataLayout | str = ...,
    training: Literal[False] = ...,
    algorithm: AlgorithmResult | RNNAlgo | str | None = ...,
    padding_fill: float = ...,
    dropout_state: DropoutState | None = ...,
    workspace_limit: int | str | None = ...,
    replay: bool = ...,
) -> RNNPlan[RNNOutput]: ...
@overload
def plan_rnn(
    handle: Handle,
    spec: RNNSpec,
    x: AnyArray | TensorSpec | RNNDataSpec,
    *,
    lengths: Iterable[int] | None = ...,
    layout: RNNDataLayout | str = ...,
    training: Literal[True],
    algorithm: AlgorithmResult | RNNAlgo | str | None = ...,
    padding_fill: float = ...,
    dropout_state: DropoutState | None = ...,
    workspace_limit: int | str | None = ...,
    replay: bool = ...,
) -> RNNPlan[RNNTrainingOutput]: ...
@overload
def plan_rnn(
    handle: Handle,
    spec: RNNSpec,
    x: AnyArray | TensorSpec | RNNDataSpec,
    *,
    lengths: Iterable[int] | None = ...,
    layout: RNNDataLayout | str = ...,
    training: bool,
    algorithm: AlgorithmResult | RNNAlgo | str | None = ...,
    padding_fill: float = ...,
    dropout_state: DropoutState | None = ...,
    workspace_limit: int | str | None = ...,
    replay: bool = ...,
) -> RNNPlan[Any]: ...
@tells_unknown
def plan_rnn(
    handle: Handle,
    spec: RNNSpec,
    x: AnyArray | TensorSpec | RNNDataSpec,
    *,
    lengths: Iterable[int] | None = None,
    layout: RNNDataLayout | str = RNNDataLayout.SEQ_MAJOR_UNPACKED,
    training: bool = False,
    algorithm: AlgorithmResult | RNNAlgo | str | None = None,
    padding_fill: float = 0.0,
    dropout_state: DropoutState | None = None,
    workspace_limit: int | str | None = None,
    replay: bool = False,
) -> RNNPlan[Any]:
    """Make descriptors and choose an algorithm once, for many calls with the same batch size and layout.

    Parameters
    ----------
    handle : Handle
        The plan belongs to it and is closed with it.
    spec : RNNSpec
        The network.
    x : TensorSpec, RNNDataSpec or device array
        An input, as in `rnn_forward`; an RNNDataSpec has lengths and layout.
    lengths : sequence of int, optional
        As in `rnn_forward`.  Calls may have other lengths; a plan that was made without any takes full sequences only, as
        some algorithms do.
    layout, training, algorithm, padding_fill, dropout_state, workspace_limit
        As in `rnn_forward`.
    replay : bool
        Record the forward call as a CUDA graph for the addresses that it was first made with, and launch that from then on:
        what cuDNN enqueues by hundreds of kernels costs the host one launch.  With other addresses the call is made as it is,
        or through copies to buffers of the plan, whichever was measured to take less time, once, which waits for the stream;
        what comes again is recorded too, up to 8 graphs for each of up to 4 kinds of sequences.  ``plan.replay`` tells.

    Returns
    -------
    RNNPlan
        To be called as `plan(weights, x, hx, cx)`.

    Raises
    ------
    ArgumentError
        As in `rnn_forward`.
    NotSupportedError
        The algorithm does not do this network; some refusals come with the first call only.

    Notes
    -----
    C functions: `cudnnSetRNNDescriptor_v8`, `cudnnSetRNNDataDescriptor`, `cudnnBuildRNNDynamic` for PERSIST_DYNAMIC,
    `cudnnGetRNNWeightSpaceSize`, `cudnnGetRNNTempSpaceSizes`; of a call, `cudnnRNNForward`.

    Examples
    --------
    >>> gru = dnn.RNNSpec("gru", input_size=4, hidden_size=8)
    >>> with dnn.Handle() as handle:
    ...     weights = dnn.RNNWeights(handle, gru)
    ...     x = handle.array(np.ones((5, 2, 4), np.float32))
    ...     with dnn.plan_rnn(handle, gru, x, lengths=[5, 3]) as plan:
    ...         for lengths in ([5, 3], [2, 4]):
    ...             y, hy, _ = plan(weights, x, lengths=lengths)
    ...     print(y.shape, hy.shape)
    (5, 2, 8) (1, 2, 8)
    """
    use(handle)
    instance_of(spec, RNNSpec, "spec")
    if isinstance(x, (tuple, list)):
        raise ArgumentError(
            f"x={shown(x)} is neither a spec nor a device array: dnn.TensorSpec(shape, dtype)"
        )
    if isinstance(x, RNNDataSpec):
        if lengths is not None or parse_data_layout(layout) not in (
            x.layout,
            RNNDataLayout.SEQ_MAJOR_UNPACKED,
        ):
            raise ArgumentError(
                f"lengths or layout are given beside a whole spec, {x}, which has its own"
            )
        layout, lengths = x.layout, None if x.is_full and not x.is_packed else x.lengths
        x = x.tensor()
    x_spec = x if isinstance(x, TensorSpec) else on_device(handle, x, "x").spec
    data = data_spec(spec, x_spec, lengths, parse_data_layout(layout))
    limit = handle.workspace.limit_for(workspace_limit)
    algorithm = _tuned(handle, spec, data, training, algorithm, limit, lengths is not None)
    plan = RNNPlan[Any](
        handle,
        make_request(
            handle,
            spec,
            data,
            training,
            algorithm,
            padding_fill,
            dropout_state,
            limit,
            lengths is not None,
        ),
        replay=replay,
    )
    try:
        plan.describe(x_spec, data.lengths)
    except BaseException:
        plan.close()
        raise
    return plan


@overload
def rnn_forward(
    handle: Handle,
    spec: RNNSpec,
    weights: RNNWeights,
    x: AnyArray,
    hx: AnyArray | None = ...,
    cx: AnyArray | None = ...,
    *,
    lengths: Iterable[int] | None = ...,
    training: Literal[False] = ...,
    layout: RNNDataLayout | str = ...,
    algorithm: AlgorithmResult | RNNAlgo | str | None = ...,
    dropout_state: DropoutState | None = ...,
    padding_fill: float = ...,
    out: Sequence[AnyArray | None] | None = ...,
    reserve: RNNReserve | None = ...,
    workspace_limit: int | str | None = ...,
    workspace: AnyArray | None = ...,
) -> RNNOutput: ...
@overload
def rnn_forward(
    handle: Handle,
    spec: RNNSpec,
    weights: RNNWeights,
    x: AnyArray,
    hx: AnyArray | None = ...,
    cx: AnyArray | None = ...,
    *,
    lengths: Iterable[int] | None = ...,
    training: Literal[True],
    layout: RNNDataLayout | str = ...,
    algorithm: AlgorithmResult | RNNAlgo | str | None = ...,
    dropout_state: DropoutState | None = ...,
    padding_fill: float = ...,
    out: Sequence[AnyArray | None] | None = ...,
    reserve: RNNReserve | None = ...,
    workspace_limit: int | str | None = ...,
    workspace: AnyArray | None = ...,
) -> RNNTrainingOutput: ...
@overload
def rnn_forward(
    handle: Handle,
    spec: RNNSpec,
    weights: RNNWeights,
    x: AnyArray,
    hx: AnyArray | None = ...,
    cx: AnyArray | None = ...,
    *,
    lengths: Iterable[int] | None = ...,
    training: bool,
    layout: RNNDataLayout | str = ...,
    algorithm: AlgorithmResult | RNNAlgo | str | None = ...,
    dropout_state: DropoutState | None = ...,
    padding_fill: float = ...,
    out: Sequence[AnyArray | None] | None = ...,
    reserve: RNNReserve | None = ...,
    workspace_limit: int | str | None = ...,
    workspace: AnyArray | None = ...,
) -> Any: ...
@tells_unknown
def rnn_forward(
    handle: Handle,
    spec: RNNSpec,
    weights: RNNWeights,
    x: AnyArray,
    hx: AnyArray | None = None,
    cx: AnyArray | None = None,
    *,
    lengths: Iterable[int] | None = None,
    training: bool = False,
    algorithm: AlgorithmResult | RNNAlgo | str | None = None,
    layout: RNNDataLayout | str = RNNDataLayout.SEQ_MAJOR_UNPACKED,
    padding_fill: float = 0.0,
    dropout_state: DropoutState | None = None,
    out: Sequence[AnyArray | None] | None = None,
    reserve: RNNReserve | None = None,
    workspace_limit: int | str | None = None,
    workspace: AnyArray | None = None,
) -> Any:
    """Run a recurrent network over a batch of sequences, asynchronously.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, its workspace serves it; it keeps the plan for the next call of the same kind.
    spec : RNNSpec
        The network.
    weights : RNNWeights
        Its weights.
    x : device array
        The input, of the spec's dtype, packed in C order: (T, N, input_size); (N, T, input_size) with
        ``layout="batch_major"``; (sum of lengths, input_size) with ``layout="packed"``, all first steps, then all second
        steps of the sequences that have one, and so on.  With N = 0, neither packed nor in training, the results are empty
        too, and nothing is called: cuDNN takes no batch of 0.
    hx, cx : device array, optional
        The first hidden state of every layer and direction, (num_layers * directions, N, state_size), layer0.forward,
        layer0.backward, layer1.forward, ...; and, for an LSTM, the
        first cell state, (num_layers * directions, N, hidden_size).  Zeros if not given.
    lengths : sequence of int, optional
        On the host.  Of each sequence, 1 to T; all are T if not given.  What lies beyond a sequence's end is not read.  For
        packed data they are needed, and may not increase.
    training : bool
        Whether the backward passes will follow; the reserve space is then returned too, and dropout applied.
    algorithm : AlgorithmResult, RNNAlgo or str, optional
        A search's result (applied with its math type), or an algorithm.  If not given, the rule below chooses it.
    layout : RNNDataLayout or str
        "sequence_major", "batch_major" or "packed".
    padding_fill : float
        What y holds beyond a sequence's end.
    dropout_state : DropoutState, optional
        Needed in training where the spec has dropout and more than one layer; advanced by the call.
    out : tuple of device arrays, optional
        (y, hy, cy), (y, hy) if not an LSTM: written in place instead of new arrays.
    reserve : RNNReserve, optional
        Of an earlier training call, to be used again.
    workspace_limit : int or str, optional
        Bytes, "64 MiB", or "10%" of the device's memory; the handle's limit if not given.
    workspace : device array, optional
        The caller's own scratch memory, instead of the handle's.  The backward passes use the handle's.

    Returns
    -------
    RNNOutput
        y, laid out as x with vectors of ``spec.output_size``; hy; cy, None if not an LSTM.
    RNNTrainingOutput
        In training: these, and the reserve space.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument, what was given and what is allowed.
    NotSupportedError
        The algorithm does not do this network; the message says why.
    WorkspaceLimitError
        More workspace is needed than the limit allows.
    CudnnError
        cuDNN failed.

    Notes
    -----
    C functions: `cudnnRNNForward`; for the first call of a kind, also those of `rnn_forward.plan`.

    float32 data is multiplied in TF32 on Ampere and later unless ``spec.math_type`` is `MathType.FMA`.

    Without `algorithm`, STANDARD runs sequences of unequal lengths, single steps, and what the others do not do, or cuDNN
    refuses.  For the rest the rule is, in this order: PERSIST_STATIC for a batch of 1 and hidden sizes from 65 (cells
    without gates: 129) to 512; PERSIST_STATIC_SMALL_H where it does the network, but for float32 and FMA up to a batch of
    256 only; in half precision (float16 and bfloat16, unless the math type is FMA) PERSIST_STATIC, for an LSTM and a batch
    of up to 64, a GRU of hidden size up to 1024 and a batch of up to 32, other cells and a batch of up to 32 (64 up to
    hidden size 2048); STANDARD.  In half precision DEFAULT math means TENSOR_OP, but for PERSIST_STATIC_SMALL_H with a
    hidden size below 128 and a batch below 256; a search's result is applied as it is.
    That is what was fastest on an H200; `rnn_forward.find` measures it on yours.

    Examples
    --------
    >>> lstm = dnn.RNNSpec("lstm", input_size=4, hidden_size=8)
    >>> with dnn.Handle() as handle:
    ...     weights = dnn.RNNWeights(handle, lstm)  # zeros
    ...     x = handle.array(np.ones((5, 2, 4), np.float32))  # 5 steps, 2 sequences
    ...     y, hy, cy = dnn.rnn_forward(handle, lstm, weights, x, lengths=[5, 3], padding_fill=-1.0)
    ...     print(y.shape, hy.shape, cy.shape, y.numpy()[3:, 1].max())
    (5, 2, 8) (1, 2, 8) (1, 2, 8) -1.0
    """
    use(handle)
    instance_of(spec, RNNSpec, "spec")
    x, order = on_device(handle, x, "x"), parse_data_layout(layout)
    if x.size == 0 and training is False:
        empty = without_sequences(handle, spec, x.spec, lengths, order, hx, cx, out)
        if empty is not None:
            return empty
    data = data_spec(spec, x.spec, lengths, order)
    # with a buffer of the caller's own, that is all there is: no limit of the handle's is asked
    limit = (
        handle.workspace.limit_for(workspace_limit)
        if workspace is None or workspace_limit is not None
        else None
    )
    if algorithm is None and handle.chooser is not None and workspace is not None and limit is None:
        limit = on_device(
            handle, workspace, "workspace"
        ).nbytes  # what is chosen must make do with it
    choice = _tuned(handle, spec, data, training, algorithm, limit, False)
    request = make_request(handle, spec, data, training, choice, padding_fill, dropout_state, limit)
    if (
        choice is not algorithm
    ):  # what was tuned is a guess too: it was measured with similar lengths, maybe
        request = request._replace(guessed=True)
    lengths = None if lengths is None else data.lengths
    arguments: dict[str, Any] = {
        "lengths": lengths,
        "out": out,
        "reserve": reserve,
        "workspace": workspace,
    }
    try:
        plan = handle.plans.get(request, RNNPlan, handle, request)
        return plan(weights, x, hx, cx, **arguments)
    except (NotSupportedError, WorkspaceLimitError):
        if not request.guessed or request.choice.algorithm == RNNAlgo.STANDARD:
            raise
    # what the heuristic took for possible is not: from now on its request means STANDARD
    choice = AlgorithmResult(RNNAlgo.STANDARD, request.choice.math_type, deterministic=None)
    plan = RNNPlan(handle, request._replace(choice=choice))
    handle.plans.keep(request, plan)
    return plan(weights, x, hx, cx, **arguments)


def rnn_backward_data(
    handle: Handle,
    reserve: RNNReserve,
    dy: AnyArray | None = None,
    dhy: AnyArray | None = None,
    dcy: AnyArray | None = None,
    *,
    out: Sequence[AnyArray | None] | None = None,
) -> RNNGradients:
    """Compute the gradients of input and first states from those of output and last states, asynchronously.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous; it keeps the plan for the next call of the same kind.
    reserve : RNNReserve
        That of what the training call returned.  It holds that call's operands, which must be unchanged.  It is overwritten, so
        that this can be done once for each training call.
    dy : device array, optional
        Shaped as y.  What lies beyond a sequence's end is not read.
    dhy, dcy : device array, optional
        Shaped as hy and cy.  Of the three, zeros for what is not given; one is needed.
    out : tuple of device arrays, optional
        (dx, dhx, dcx), (dx, dhx) if not an LSTM: written in place instead of new arrays.

    Returns
    -------
    RNNGradients
        dx, 0 beyond a sequence's end; dhx; dcx, None if not an LSTM.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnRNNBackwardData_v8`.

    Examples
    --------
    >>> lstm = dnn.RNNSpec("lstm", input_size=4, hidden_size=8)
    >>> with dnn.Handle() as handle:
    ...     weights = dnn.RNNWeights(handle, lstm)
    ...     x = handle.array(np.ones((5, 2, 4), np.float32))
    ...     y, hy, cy, reserve = dnn.rnn_forward(handle, lstm, weights, x, training=True)
    ...     dy = handle.array(np.ones(y.shape, np.float32))  # the gradient of the sum of y
    ...     dx, dhx, dcx = dnn.rnn_backward_data(handle, reserve, dy)
    ...     print(dx.shape, dhx.shape, dcx.shape)
    (5, 2, 4) (1, 2, 8) (1, 2, 8)
    """
    return _plan_of(handle, reserve).backward_data(reserve, dy, dhy, dcy, out=out)


def rnn_backward_weights(
    handle: Handle, reserve: RNNReserve, *, out: RNNWeights | None = None, accumulate: bool = False
) -> RNNWeights:
    """Compute the gradients of the weights, asynchronously; after `rnn_backward_data`, without which it is an ArgumentError.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous; it keeps the plan for the next call of the same kind.
    reserve : RNNReserve
        That of what the training call returned, with which `rnn_backward_data` was called.
    out : RNNWeights, optional
        Where to write the gradients; new weights if not given.
    accumulate : bool
        Add to `out` instead of replacing what it holds.

    Returns
    -------
    RNNWeights
        The gradient of each matrix and bias under its name.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnRNNBackwardWeights_v8`.

    Examples
    --------
    >>> lstm = dnn.RNNSpec("lstm", input_size=4, hidden_size=8)
    >>> with dnn.Handle() as handle:
    ...     weights = dnn.RNNWeights(handle, lstm)
    ...     x = handle.array(np.ones((5, 2, 4), np.float32))
    ...     y, hy, cy, reserve = dnn.rnn_forward(handle, lstm, weights, x, training=True)
    ...     dx, dhx, dcx = dnn.rnn_backward_data(handle, reserve, y)  # first; here of half the sum of y * y
    ...     gradients = dnn.rnn_backward_weights(handle, reserve)
    ...     print(gradients["layer0.forward.input.i"].shape)
    (8, 4)
    """
    return _plan_of(handle, reserve).backward_weights(reserve, out=out, accumulate=accumulate)


def _tuned(
    handle: Handle,
    spec: RNNSpec,
    data: RNNDataSpec,
    training: Any,
    algorithm: Any,
    limit: int | None,
    padded: bool,
) -> Any:
    """Return the algorithm that was given; where none was, what the handle's chooser says, if there is one.

    With `padded`, later calls may have lengths that differ, even where these do not.
    """
    if algorithm is not None or handle.chooser is None or not isinstance(training, bool):
        return algorithm
    if padded and data.is_full and not data.is_packed:
        steps = max(2, data.max_length)
        unequal = {"max_length": steps, "lengths": (*(steps,) * (data.batch - 1), steps - 1)}
        data = RNNDataSpec.from_values(data.values() | unequal)
    return handle.chooser.choose(forward_problem(spec, data, training), {}, limit, for_call=True)


def _plan_of(handle: Handle, reserve: Any) -> RNNPlan[Any]:
    use(handle)
    request = RNNReserve.checked(handle, reserve).call.plan
    return handle.plans.get(request, RNNPlan, handle, request)  # type: ignore[no-any-return]
