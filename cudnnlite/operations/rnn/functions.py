"""Recurrent networks: RNN, GRU and LSTM, forward and backward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cudnnlite.devices.foreign import AnyArray
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import RNNAlgo, RNNDataLayout
from cudnnlite.operations.layers.dropout import DropoutState
from cudnnlite.operations.rnn.function import RNNForwardFunction
from cudnnlite.operations.rnn.outputs import (
    RNNGradients,
    RNNOutput,
    RNNReserve,
    RNNTrainingOutput,
)
from cudnnlite.operations.rnn.request import (
    RNNBackwardDataRequest,
    RNNBackwardWeightsRequest,
    RNNForwardRequest,
)
from cudnnlite.operations.rnn.weights import RNNWeights
from cudnnlite.plans.function import BoundCall
from cudnnlite.plans.stateful_function import backward_operation
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.specs import RNNSpec


@RNNForwardFunction
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
    layout: RNNDataLayout | str = RNNDataLayout.SEQ_MAJOR_UNPACKED,
    algorithm: AlgorithmResult | RNNAlgo | str | None = None,
    padding_fill: float = 0.0,
    dropout_state: DropoutState | None = None,
    out: Sequence[AnyArray | None] | None = None,
    reserve: RNNReserve | None = None,
    workspace_limit: int | str | None = None,
    workspace: AnyArray | None = None,
    replay: bool = False,
) -> BoundCall[RNNOutput | RNNTrainingOutput]:
    """Run a recurrent network over a batch of sequences, asynchronously.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and uses its workspace.  The handle keeps the plan for
        the next call of the same kind.
    spec : RNNSpec
        The network.
    weights : RNNWeights
        Its weights.
    x : device array
        The input, of the spec's dtype, packed in C order: (T, N, input_size); (N, T, input_size)
        with ``layout="batch_major"``; (sum of lengths, input_size) with ``layout="packed"``, all
        first steps, then all second steps of the sequences that have one, and so on.  With N = 0,
        neither packed nor in training, the results are empty too, and nothing is called: cuDNN
        takes no batch of 0.
    hx, cx : device array, optional
        The first hidden state of every layer and direction, (num_layers * directions, N,
        state_size), layer0.forward, layer0.backward, layer1.forward, ...; and, for an LSTM, the
        first cell state, (num_layers * directions, N, hidden_size).  Zeros if not given.
    lengths : sequence of int, optional
        On the host.  Of each sequence, 1 to T; all are T if not given.  What lies beyond a
        sequence's end is not read.  For packed data they are needed, and may not increase.
    training : bool
        Whether the backward passes will follow; the reserve space is then returned too, and dropout
        applied.
    algorithm : AlgorithmResult, RNNAlgo or str, optional
        A search's result (applied with its math type), or an algorithm.  If not given, the rule
        below chooses it.
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
        The caller's own scratch memory, instead of the handle's.  The backward passes use the
        handle's.
    replay : bool
        Launch the call as a CUDA graph, as `rnn_forward.plan` describes.

    Returns
    -------
    RNNOutput
        y, laid out as x with vectors of ``spec.output_size``; hy; cy, None if not an LSTM.
    RNNTrainingOutput
        In training: these, and the reserve space.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument, what was given and what is
        allowed.
    NotSupportedError
        The algorithm does not do this network; the message says why.
    WorkspaceLimitError
        More workspace is needed than the limit allows.
    CudnnError
        cuDNN failed.

    Notes
    -----
    C functions: `cudnnRNNForward`; for the first call of a kind, also those of `rnn_forward.plan`.

    float32 data is multiplied in TF32 on Ampere and later unless ``spec.math_type`` is
    `MathType.FMA`.

    Without `algorithm`, STANDARD runs sequences of unequal lengths, single steps, and what the
    others do not do, or cuDNN refuses.  For the rest the rule is, in this order: PERSIST_STATIC for
    a batch of 1 and hidden sizes from 65 (cells without gates: 129) to 512; PERSIST_STATIC_SMALL_H
    where it does the network, but for float32 and FMA up to a batch of 256 only; in half precision
    (float16 and bfloat16, unless the math type is FMA) PERSIST_STATIC, for an LSTM and a batch of
    up to 64, a GRU of hidden size up to 1024 and a batch of up to 32, other cells and a batch of up
    to 32 (64 up to hidden size 2048); STANDARD.  In half precision DEFAULT math means TENSOR_OP,
    but for PERSIST_STATIC_SMALL_H with a hidden size below 128 and a batch below 256; a search's
    result is applied as it is. That is what was fastest on an H200; `rnn_forward.find` measures it
    on yours.

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
    return RNNForwardRequest(
        handle,
        spec,
        weights,
        x,
        hx,
        cx,
        lengths=lengths,
        training=training,
        layout=layout,
        algorithm=algorithm,
        padding_fill=padding_fill,
        dropout_state=dropout_state,
        out=out,
        reserve=reserve,
        workspace_limit=workspace_limit,
        workspace=workspace,
        replay=replay,
    )


@backward_operation
def rnn_backward_data(
    handle: Handle,
    reserve: RNNReserve,
    dy: AnyArray | None = None,
    dhy: AnyArray | None = None,
    dcy: AnyArray | None = None,
    *,
    out: Sequence[AnyArray | None] | None = None,
) -> BoundCall[RNNGradients]:
    """Compute the gradients of input and first states, asynchronously.

    They come from those of output and last states.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    reserve : RNNReserve
        That of what the training call returned.  It holds that call's operands, which must be
        unchanged.  It is overwritten, so that this can be done once for each training call.
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
    return RNNBackwardDataRequest(handle, reserve, dy, dhy, dcy, out=out)


@backward_operation
def rnn_backward_weights(
    handle: Handle,
    reserve: RNNReserve,
    *,
    out: RNNWeights | None = None,
    accumulate: bool = False,
) -> BoundCall[RNNWeights]:
    """Compute the gradients of the weights, asynchronously.

    `rnn_backward_data` comes before; without that it is an ArgumentError.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
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
    ...     # First those of the data; here of half the sum of y * y.
    ...     dx, dhx, dcx = dnn.rnn_backward_data(handle, reserve, y)
    ...     gradients = dnn.rnn_backward_weights(handle, reserve)
    ...     print(gradients["layer0.forward.input.i"].shape)
    (8, 4)
    """
    return RNNBackwardWeightsRequest(handle, reserve, out=out, accumulate=accumulate)
