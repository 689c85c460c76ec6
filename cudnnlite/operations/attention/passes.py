"""Multi-head attention, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray
from cudnnlite.devices.handle import Handle
from cudnnlite.operations.attention.forward_function import attention_operation
from cudnnlite.operations.attention.pass_operands import (
    AttentionGradients,
    AttentionReserve,
    AttentionTrainingOutput,
)
from cudnnlite.operations.attention.request import AttentionForwardRequest, plan_of
from cudnnlite.operations.attention.weights import AttentionWeights
from cudnnlite.operations.layers.dropout import DropoutState
from cudnnlite.plans.function import BoundCall
from cudnnlite.plans.stateful_function import BackwardRequest, backward_operation
from cudnnlite.specs.attention import AttentionSpec


@attention_operation
def multi_head_attention_forward(
    handle: Handle,
    spec: AttentionSpec,
    weights: AttentionWeights,
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    *,
    q_lengths: Sequence[int] | None = None,
    kv_lengths: Sequence[int] | None = None,
    window: tuple[Sequence[int], Sequence[int]] | None = None,
    residual: AnyArray | None = None,
    step: int | None = None,
    training: bool = False,
    dropout_state: DropoutState | None = None,
    out: AnyArray | None = None,
    reserve: AttentionReserve | None = None,
) -> BoundCall[DeviceArray | AttentionTrainingOutput]:
    """Compute multi-head attention of queries to keys and values, asynchronously.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    spec : AttentionSpec
        The attention: heads, sizes, scale, dropout.
    weights : AttentionWeights
        The projections.
    q, k, v : device arrays
        ``(batch, beam, time, vector)``, or ``(batch, time, vector)`` for one beam, of the spec's
        dtype.  Keys and values have one beam, and the same number of steps.  The arrays are packed,
        with the vectors last in memory.  Batch, beam and time may have any order in memory, the
        same in all three; a view of ``(time, batch, vector)`` is allowed.
    q_lengths : sequence of int, optional
        The number of steps of each beam of each entry of the batch, from 0 on, on the host.  All
        steps if not given.
    kv_lengths : sequence of int, optional
        The number of steps of the keys and values of each entry of the batch, from 0 on, on the
        host.  Steps beyond it are not attended to.  Their values have to be finite all the same,
        because cuDNN multiplies them by 0.
    window : tuple of two sequences of int, optional
        Two numbers for each step of the queries: the first step of the keys that it attends to, and
        the step after the last one.  ``([0] * T, range(1, T + 1))`` is causal.  If a query attends
        to no key, its output is the bias of the output projection, or 0.
    residual : device array, optional
        An array that is added to the output, with the shape and layout of the output.  Vectors of
        the output must then be as long as those of the queries.
    step : int, optional
        The only step of the queries that is computed; in inference alone.  The other steps of `out`
        are not written.  All steps if not given.
    training : bool
        Whether the backward passes will follow.  Dropout is applied in training alone; after a call
        with dropout, a backward pass is refused.
    dropout_state : DropoutState, optional
        The random states; needed in training if the spec has dropout.
    out : device array, optional
        The output, written in place; a new array if not given.
    reserve : AttentionReserve, optional
        In training, the reserve space of an earlier call, which is overwritten; a new one if not
        given.

    Returns
    -------
    DeviceArray, or AttentionTrainingOutput in training
        The output, shaped as `q` but with vectors of `AttentionSpec.output_size`, in the same order
        in memory.  Beyond a query's end the output is the bias of the output projection, or 0.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnMultiHeadAttnForward`, `cudnnGetMultiHeadAttnBuffers`, deprecated since cuDNN
    9.0.0, still shipped and working.

    Examples
    --------
    >>> spec = dnn.AttentionSpec(1, 2, scale=1.0)  # no projections: softmax(q k') v
    >>> with dnn.Handle() as handle:
    ...     weights = dnn.AttentionWeights(handle, spec)
    ...     q = handle.array(np.zeros((1, 2, 2), np.float32))
    ...     v = handle.array(np.array([[[0, 2], [4, 6]]], np.float32))
    ...     causal = ([0, 0], [1, 2])
    ...     y = dnn.multi_head_attention_forward(handle, spec, weights, q, v, v, window=causal)
    ...     print(y.numpy()[0])
    [[0. 2.]
     [2. 4.]]
    """
    return AttentionForwardRequest(
        handle,
        spec,
        weights,
        q,
        k,
        v,
        q_lengths=q_lengths,
        kv_lengths=kv_lengths,
        window=window,
        residual=residual,
        step=step,
        training=training,
        dropout_state=dropout_state,
        out=out,
        reserve=reserve,
    )


@backward_operation
def multi_head_attention_backward_data(
    handle: Handle,
    reserve: AttentionReserve,
    dy: AnyArray,
    *,
    out: Sequence[AnyArray | None] | None = None,
) -> BoundCall[AttentionGradients]:
    """Compute the gradients of queries, keys and values, once for each forward call.

    `multi_head_attention_backward_weights` computes those of the weights afterwards.

    With dropout it is an ArgumentError: on an H200 cuDNN 9.19 returns SUCCESS and wrong gradients.
    With `dropout` those of queries and keys are wrong, with `post_dropout` those of everything
    before an output projection.

    Parameters
    ----------
    handle : Handle
        The handle of the forward call, or another one of its device.
    reserve : AttentionReserve
        The reserve space that the forward call in training returned.
    dy : device array
        The gradient of the output, with its layout.  It must be 0 beyond a query's end, where cuDNN
        adds it to the gradient of the output's bias in some cases.  It is the gradient of a
        residual, too.
    out : tuple of device arrays, optional
        dq, dk and dv, written in place; new arrays if not given.

    Returns
    -------
    AttentionGradients
        dq, dk and dv, with the layouts of q, k and v.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C function: `cudnnMultiHeadAttnBackwardData`, deprecated since cuDNN 9.0.0, still shipped and
    working.

    Examples
    --------
    >>> spec = dnn.AttentionSpec(1, 2, q_proj_size=2, o_proj_size=2)
    >>> with dnn.Handle() as handle:
    ...     eye = dict.fromkeys(["wq", "wk", "wv", "wo"], np.eye(2)[None])
    ...     weights = dnn.AttentionWeights.from_arrays(handle, spec, eye)
    ...     x = handle.array(np.ones((1, 2, 2), np.float32))
    ...     forward = dnn.multi_head_attention_forward
    ...     y, reserve = forward(handle, spec, weights, x, x, x, training=True)
    ...     gradients = dnn.multi_head_attention_backward_data(handle, reserve, x)
    ...     dweights = dnn.multi_head_attention_backward_weights(handle, reserve)
    ...     print(gradients.dv.numpy()[0], dweights["wo"].numpy()[0])
    [[1. 1.]
     [1. 1.]] [[2. 2.]
     [2. 2.]]
    """
    return BackwardRequest(
        "multi_head_attention_backward_data",
        "multi_head_attention_forward",
        "backward_data",
        lambda: plan_of(handle, reserve).backward_data(reserve, dy, out=out),
    )


@backward_operation
def multi_head_attention_backward_weights(
    handle: Handle,
    reserve: AttentionReserve,
    *,
    out: AttentionWeights | None = None,
    accumulate: bool = False,
) -> BoundCall[AttentionWeights]:
    """Compute the gradients of the weights, after those of the data.

    Parameters
    ----------
    handle : Handle
        As in `multi_head_attention_backward_data`.
    reserve : AttentionReserve
        The reserve space that the forward call in training returned, after
        `multi_head_attention_backward_data` was called with it.
    out : AttentionWeights, optional
        The gradients, written in place; new weights if not given.
    accumulate : bool
        Whether the gradients are added to the values of `out`.

    Returns
    -------
    AttentionWeights
        The gradients, by the names of the weights.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C function: `cudnnMultiHeadAttnBackwardWeights`, deprecated since cuDNN 9.0.0, still shipped and
    working.

    Examples
    --------
    See `multi_head_attention_backward_data`.
    """
    return BackwardRequest(
        "multi_head_attention_backward_weights",
        "multi_head_attention_forward",
        "backward_weights",
        lambda: plan_of(handle, reserve).backward_weights(reserve, out=out, accumulate=accumulate),
    )
