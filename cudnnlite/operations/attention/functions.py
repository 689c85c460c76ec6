"""Multi-head attention, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray
from cudnnlite.devices.handle import Handle
from cudnnlite.operations.attention.function import AttentionForwardFunction
from cudnnlite.operations.attention.plan import (
    AttentionGradients,
    AttentionReserve,
    AttentionTrainingOutput,
)
from cudnnlite.operations.attention.request import (
    AttentionBackwardDataRequest,
    AttentionBackwardWeightsRequest,
    AttentionForwardRequest,
)
from cudnnlite.operations.attention.weights import AttentionWeights
from cudnnlite.operations.layers.dropout import DropoutState
from cudnnlite.plans.function import BoundCall
from cudnnlite.plans.stateful_function import backward_operation
from cudnnlite.specs.attention import AttentionSpec


@AttentionForwardFunction
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
    """Let queries attend to keys and values, asynchronously.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    spec : AttentionSpec
        Heads, sizes, scale, dropout.
    weights : AttentionWeights
        Its projections.
    q, k, v : device arrays
        ``(batch, beam, time, vector)``, or ``(batch, time, vector)`` for one beam, of the spec's
        dtype; keys and values have one beam, and as many steps as each other.  Packed, with the
        vectors last, and batch, beam and time in any one order in memory: a view of ``(time, batch,
        vector)`` will do.
    q_lengths : sequence of int, optional
        On the host: the steps that each beam of each entry of the batch has, from 0 on; all if not
        given.
    kv_lengths : sequence of int, optional
        The same of keys and values, from 0 on.  What lies beyond is not attended to, and has to be
        finite all the same: cuDNN multiplies it by 0.
    window : tuple of two sequences of int, optional
        For each step of the queries the first step of the keys that it attends to, and the one
        behind the last: ``([0] * T, range(1, T + 1))`` is causal.  A step that has none left gets
        what the bias of the output says, or 0.
    residual : device array, optional
        Added to the output, which must be as long as a query, and laid out as it is.
    step : int, optional
        Only this step of the queries, in inference; the other steps of `out` are left as they are.
    training : bool
        Whether the backward passes will follow; dropout takes place in training alone, and allows
        no backward pass.
    dropout_state : DropoutState, optional
        Needed in training where the spec has dropout.
    out : device array, optional
        The output, written in place; a new array if not given.
    reserve : AttentionReserve, optional
        In training: what an earlier call returned, to be written over; a new one if not given.

    Returns
    -------
    DeviceArray, or AttentionTrainingOutput in training
        Shaped as `q`, with vectors of `AttentionSpec.output_size`, in the same order in memory.
        Beyond a query's end stands what the bias of the output says, or 0.

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

    Those of the weights come after.  With dropout they are refused: on an H200 cuDNN 9.19 calls
    gradients a success that are not those of the output (with `dropout` of queries and keys, with
    `post_dropout` of what lies before an output projection).

    Parameters
    ----------
    handle : Handle
        That of the forward call, or another of its device.
    reserve : AttentionReserve
        That of what the forward call in training returned.
    dy : device array
        The gradient of its output, laid out as that, and 0 beyond a query's end: the gradient of
        the output's bias counts what stands there in some cases, and not in others.  (It is the
        gradient of a residual, too.)
    out : tuple of device arrays, optional
        dq, dk and dv, written in place; new arrays if not given.

    Returns
    -------
    AttentionGradients
        Laid out as q, k and v.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnMultiHeadAttnBackwardData`, deprecated since cuDNN 9.0.0, still shipped and
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
    return AttentionBackwardDataRequest(handle, reserve, dy, out=out)


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
        What the forward call in training returned, after the backward pass over the data.
    out : AttentionWeights, optional
        Written in place; new weights if not given.
    accumulate : bool
        Whether they are added to what `out` holds.

    Returns
    -------
    AttentionWeights
        The gradients by the weights' names.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnMultiHeadAttnBackwardWeights`, deprecated since cuDNN 9.0.0, still shipped
    and working.

    Examples
    --------
    See `multi_head_attention_backward_data`.
    """
    return AttentionBackwardWeightsRequest(handle, reserve, out=out, accumulate=accumulate)
