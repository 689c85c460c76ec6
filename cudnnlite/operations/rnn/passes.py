"""Recurrent networks: RNN, GRU and LSTM, forward and backward.

Each function here only binds its arguments.  Its decorator makes the public operation, which has
the function's signature and docstring, runs the bound call, and returns its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cudnnlite.devices.foreign import AnyArray
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import RNNAlgo, RNNDataLayout
from cudnnlite.operations.layers.dropout import DropoutState
from cudnnlite.operations.rnn.forward_function import rnn_operation
from cudnnlite.operations.rnn.outputs import (
    RNNGradients,
    RNNOutput,
    RNNReserve,
    RNNTrainingOutput,
)
from cudnnlite.operations.rnn.request import RNNForwardRequest, plan_of
from cudnnlite.operations.rnn.weights import RNNWeights
from cudnnlite.plans.function import BoundCall
from cudnnlite.plans.stateful_function import BackwardRequest, backward_operation
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.specs import RNNSpec


@rnn_operation
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
        with ``layout="batch_major"``; (sum of lengths, input_size) with ``layout="packed"``, which
        has the first steps of all sequences, then the second steps of those that have one, and so
        on.  T is the number of steps, N the batch.  N may be 0 in inference with data that is not
        packed: the results are then empty, and no C function is called.
    hx, cx : device array, optional
        The first hidden states, (num_layers * directions, N, state_size), in the order
        layer0.forward, layer0.backward, layer1.forward, ...  For an LSTM, `cx` has the first cell
        states, (num_layers * directions, N, hidden_size).  ``spec.state_size`` is the projection
        size if the spec has one, and the hidden size otherwise.  Zeros if not given.
    lengths : sequence of int, optional
        The length of each sequence, 1 to T, on the host; T for all if not given.  Steps beyond a
        sequence's end are not read.  Packed data needs lengths, which must not increase.
    training : bool
        Whether the backward passes will follow.  If so, the reserve space is returned too, and
        dropout is applied.
    algorithm : AlgorithmResult, RNNAlgo or str, optional
        A result of a search, which is applied with its math type, or an algorithm.  If not given,
        the rule below chooses it.
    layout : RNNDataLayout or str
        "sequence_major", "batch_major" or "packed".
    padding_fill : float
        The value of y beyond a sequence's end.
    dropout_state : DropoutState, optional
        The random states, which the call advances; needed in training if the spec has dropout and
        more than one layer.
    out : tuple of device arrays, optional
        (y, hy, cy) for an LSTM, (y, hy) for other cells, written in place; new arrays if not given.
    reserve : RNNReserve, optional
        The reserve space of an earlier training call, to be used again.
    workspace_limit : int or str, optional
        Bytes, "64 MiB", or "10%" of the device's memory; the handle's limit if not given.
    workspace : device array, optional
        Scratch memory of the caller, used instead of the handle's.  The backward passes use the
        handle's.
    replay : bool
        Launch the call as a CUDA graph, as `rnn_forward.plan` describes.

    Returns
    -------
    RNNOutput
        y, laid out as x but with vectors of ``spec.output_size``; hy; and cy, which is None unless
        the network is an LSTM.
    RNNTrainingOutput
        In training: y, hy, cy, and the reserve space.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        An argument is not allowed, and nothing was written.  The message names the argument, its
        value, and what is allowed.
    NotSupportedError
        The algorithm does not support this network; the message says why.
    WorkspaceLimitError
        More workspace is needed than the limit allows.
    CudnnError
        cuDNN failed.

    Notes
    -----
    C functions: `cudnnRNNForward`; for the first call of a kind, also those of `rnn_forward.plan`.

    float32 data is multiplied in TF32 on Ampere and later unless ``spec.math_type`` is
    `MathType.FMA`.

    Without `algorithm`, a rule chooses the algorithm that was fastest on an H200; a `Tuner`
    measures the algorithms on your device.  "Half precision" here is float16 or bfloat16 with a
    math type other than FMA.  The first of these lines that applies decides:

    - Sequences of unequal lengths, or of one step: STANDARD.
    - An LSTM or GRU with a batch of 1 and a hidden size of 65 to 512: PERSIST_STATIC.
    - Another cell with a batch of 1 and a hidden size of 129 to 512: PERSIST_STATIC.
    - Half precision, or a batch of at most 256: PERSIST_STATIC_SMALL_H.
    - Half precision, and a batch of at most the number in this table: PERSIST_STATIC.
    - All else: STANDARD.

    ===========  ===========  =============
    Cell         Hidden size  Largest batch
    ===========  ===========  =============
    LSTM         any          64
    GRU          to 1024      32
    GRU          from 1025    never
    other cells  to 2048      64
    other cells  from 2049    32
    ===========  ===========  =============

    A line does not apply if its algorithm does not support the network.  If the algorithm seems to
    support the network, but cuDNN refuses it, STANDARD runs.

    In half precision DEFAULT math means TENSOR_OP, except for PERSIST_STATIC_SMALL_H with a hidden
    size below 128 and a batch below 256.  A result of a search keeps its math type.

    Examples
    --------
    >>> lstm = dnn.RNNSpec("lstm", input_size=4, hidden_size=8)
    >>> with dnn.Handle() as handle:
    ...     weights = dnn.RNNWeights(handle, lstm)  # zeros
    ...     x = handle.array(np.ones((5, 2, 4), np.float32))  # 5 steps, 2 sequences
    ...     y, hy, cy = dnn.rnn_forward(handle, lstm, weights, x, lengths=[5, 3], padding_fill=-1.0)
    ...     padding = y.numpy()[3:, 1]  # The second sequence has 3 steps.
    ...     print(y.shape, hy.shape, cy.shape, padding.max())
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
    """Compute the gradients of the input and the first states, asynchronously.

    `dy`, `dhy` and `dcy` are the gradients of the output and the last states.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    reserve : RNNReserve
        The reserve space that the training call returned, with that call's operands, which must be
        unchanged.  This function overwrites the reserve space, so it can be called only once for
        each training call.
    dy : device array, optional
        Shaped as y.  Steps beyond a sequence's end are not read.
    dhy, dcy : device array, optional
        Shaped as hy and cy.  At least one of `dy`, `dhy` and `dcy` is needed; those that are not
        given count as zeros.
    out : tuple of device arrays, optional
        (dx, dhx, dcx) for an LSTM, (dx, dhx) for other cells, written in place; new arrays if not
        given.

    Returns
    -------
    RNNGradients
        dx, which is 0 beyond a sequence's end; dhx; and dcx, which is None unless the network is an
        LSTM.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        An argument is not allowed, and nothing was written.  The message names the argument.
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
    return BackwardRequest(
        "rnn_backward_data",
        "rnn_forward",
        "backward_data",
        lambda: plan_of(handle, reserve).backward_data(reserve, dy, dhy, dcy, out=out),
    )


@backward_operation
def rnn_backward_weights(
    handle: Handle,
    reserve: RNNReserve,
    *,
    out: RNNWeights | None = None,
    accumulate: bool = False,
) -> BoundCall[RNNWeights]:
    """Compute the gradients of the weights, asynchronously.

    `rnn_backward_data` has to be called first; otherwise this is an ArgumentError.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    reserve : RNNReserve
        The reserve space that the training call returned, after `rnn_backward_data` was called with
        it.
    out : RNNWeights, optional
        The gradients, written in place; new weights if not given.
    accumulate : bool
        Whether the gradients are added to the values of `out`.

    Returns
    -------
    RNNWeights
        The gradient of each matrix and bias, by name.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        An argument is not allowed, and nothing was written.  The message names the argument.
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
    ...     # The loss is half the sum of y * y, so that dy = y.  Call rnn_backward_data first.
    ...     dx, dhx, dcx = dnn.rnn_backward_data(handle, reserve, y)
    ...     gradients = dnn.rnn_backward_weights(handle, reserve)
    ...     print(gradients["layer0.forward.input.i"].shape)
    (8, 4)
    """
    return BackwardRequest(
        "rnn_backward_weights",
        "rnn_forward",
        "backward_weights",
        lambda: plan_of(handle, reserve).backward_weights(reserve, out=out, accumulate=accumulate),
    )
