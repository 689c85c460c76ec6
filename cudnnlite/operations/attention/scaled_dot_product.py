"""Scaled dot-product attention as a graph: one kernel from queries to the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cudnnlite.arguments import integer, one_of, real_number
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.attention_formulas import MOST_STEPS
from cudnnlite.operations.attention.attention_graphs import (
    BOTTOM_RIGHT,
    backward_graph,
    forward_graph,
)
from cudnnlite.operations.attention.lengths import both_lengths
from cudnnlite.operations.attention.scaled_dot_product_types import (
    scaled_dot_product_attention_operation,
)
from cudnnlite.operations.graph.function import GraphRequest, graph_operation

_OPTIONAL = frozenset({"bias", "q_lengths", "kv_lengths"})
# Numbers are passed by value as doubles, which are exact up to this one.
_LARGEST_SEED = 1 << 53


@scaled_dot_product_attention_operation
def scaled_dot_product_attention_forward(
    handle: Handle,
    q: Operand,
    k: Operand,
    v: Operand,
    *,
    scale: float | None = None,
    causal: bool | Literal["bottom_right"] = False,
    bias: Operand | None = None,
    q_lengths: Operand | Sequence[int] | None = None,
    kv_lengths: Operand | Sequence[int] | None = None,
    window: int | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    return_stats: bool = False,
    out: AnyArray | Sequence[AnyArray | None] | None = None,
    workspace_limit: int | str | None = None,
) -> GraphRequest[DeviceArray | tuple[DeviceArray, DeviceArray]]:
    """Compute o = softmax(scale * q k^T + bias) v, asynchronously, in one kernel.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call; it keeps the plan for the next call of the same kind.
    q : device array
        Queries, ``(batch, heads, steps, size)``; float16, bfloat16, or float32 with sizes up to
        128.  The last axis must be packed; other strides are multiples of 16 bytes.
    k, v : device array
        Keys and values, ``(batch, heads, steps, size)``, of q's data type.  The number of q's heads
        may be a multiple of theirs; then several heads of q share one head of k and v.
    scale : float, optional
        The factor of ``q k^T``; ``size ** -0.5`` if not given.
    causal : bool or str
        Whether a query attends only to the keys up to its own step.  With "bottom_right", steps are
        counted from the end, so the last query attends to all keys, as if q continues a cache of
        keys; k then needs at least as many steps as q.  "bottom_right" excludes lengths and a
        window; pass such a mask as `bias`: 0, and -inf for masked keys.
    bias : device array, optional
        Added to the scores, ``(1 or batch, 1 or heads, 1 or q's steps, k's steps)``, of q's data
        type or float32.  A mask of each sequence's keys has the shape ``(batch, 1, 1, k's steps)``;
        for gradients, the bias needs all of q's steps.
    q_lengths, kv_lengths : device array or sequence of int, optional
        The number of steps of queries, and of keys and values, in each sequence, from 1 on: a
        packed int32 array of shape ``(batch,)`` or ``(batch, 1, 1, 1)``, or integers, which each
        call copies to the device.  If only one of the two is given, all steps of the other are
        valid, and a plan or graph still has both as inputs.  Call a plan with arrays of
        ``(batch, 1, 1, 1)``.  Beyond q_lengths, float16 and bfloat16 outputs are zero, and float32
        outputs are not written; stats are undefined there.
    window : int, optional
        A query of step t attends to the keys of the steps after ``t - window``; earlier keys are
        masked.  Keys after step t are not masked, unless `causal` is true.
    dropout : float
        The dropout probability of the softmax, below 1.  The other values of the softmax are
        divided by ``1 - dropout``.  Only for float16 and bfloat16.
    seed, offset : int
        The seed and the offset of the random numbers of `dropout`, from 0 to 2**53.  The same pair
        drops the same values, in the backward pass too.  A captured call always uses the pair of
        its capture.
    return_stats : bool
        Whether to return stats, too: the logarithms of the sums of exponentials, which
        `scaled_dot_product_attention_backward` reads.
    out : device array, or a pair of them, optional
        o, or o and stats, written in place; new arrays if not given.  The last axis of o must be
        packed; its other strides are multiples of 16 bytes.  For a plan, give a spec with the strides.
    workspace_limit : int or str, optional
        Bytes, "64 MiB", or "10%" of the device's memory; the handle's limit if not given.

    Returns
    -------
    DeviceArray, or a tuple of two
        o, of q's data type, packed; with `return_stats` stats too, float32,
        ``(batch, heads, steps, 1)``.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError
        cuDNN has no engine for these sizes on this device.

    Notes
    -----
    C functions: `cudnnBackendExecute`; for the first call of a kind, also those of
    `BackendDescriptor`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     q = handle.array(np.ones((2, 4, 64, 32)), dtype="float16")
    ...     o = dnn.scaled_dot_product_attention_forward(handle, q, q, q, causal=True)
    ...     print(o.shape, o.numpy()[0, 0, 0, 0])
    (2, 4, 64, 32) 1.0
    """
    options = _options(scale, causal, window, dropout)
    options["return_stats"] = one_of(return_stats, "return_stats", True, False)
    return GraphRequest(
        handle,
        "scaled_dot_product_attention_forward",
        forward_graph,
        {
            "q": q,
            "k": k,
            "v": v,
            "bias": bias,
            **both_lengths(handle, q_lengths, kv_lengths, q, k),
        },
        options,
        ("o", "stats") if return_stats else ("o",),
        out,
        workspace_limit,
        _random_numbers(options, seed, offset),
        optional=_OPTIONAL,
    )


@graph_operation
def scaled_dot_product_attention_backward(
    handle: Handle,
    q: Operand,
    k: Operand,
    v: Operand,
    o: Operand,
    do: Operand,
    stats: Operand,
    *,
    scale: float | None = None,
    causal: bool | Literal["bottom_right"] = False,
    bias: Operand | None = None,
    q_lengths: Operand | Sequence[int] | None = None,
    kv_lengths: Operand | Sequence[int] | None = None,
    window: int | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    return_dbias: bool = False,
    out: Sequence[AnyArray | None] | None = None,
    workspace_limit: int | str | None = None,
) -> GraphRequest[tuple[DeviceArray, ...]]:
    """Compute the gradients of scaled dot-product attention, asynchronously.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call; it keeps the plan for the next call of the same kind.
    q, k, v : device array
        As in `scaled_dot_product_attention_forward`; float16 or bfloat16.  One query in a batch of
        one has packed heads, in all operands and gradients.
    o, stats : device array
        The results of `scaled_dot_product_attention_forward` with ``return_stats=True``.
    do : device array
        The gradient of o, of its shape and data type.
    scale, causal, bias, q_lengths, kv_lengths, window, dropout, seed, offset
        The arguments of the forward call, unchanged.  A bias that all steps of q share is refused:
        cuDNN 9.19 computes the gradients wrongly beside it.
    return_dbias : bool
        Whether the gradient of `bias` is returned too.  NVIDIA documents it from compute capability
        9.0 on; cuDNN may have no engine for it.  The bias has q's data type then, and the steps of
        k are neighbours in memory.
    out : tuple of device arrays, optional
        dq, dk and dv, and dbias with `return_dbias`, written in place; new arrays if not given.
    workspace_limit : int or str, optional
        Bytes, "64 MiB", or "10%" of the device's memory; the handle's limit if not given.

    Returns
    -------
    tuple of three DeviceArray, or of four
        dq, dk and dv, of the shapes of q, k and v, packed; zero beyond the lengths.  With
        `return_dbias` dbias too, of the shape and data type of `bias`: summed over the batch and
        the heads that share a bias.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError
        cuDNN has no engine for these sizes on this device.

    Notes
    -----
    C functions: `cudnnBackendExecute`, as in `scaled_dot_product_attention_forward`.

    The workspace contains the other results of cuDNN's kernels: float32 sums of the size of dq, or,
    with `return_dbias`, the gradient of all scores.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     q = handle.array(np.ones((1, 2, 64, 32)), dtype="float16")
    ...     o, stats = dnn.scaled_dot_product_attention_forward(handle, q, q, q, return_stats=True)
    ...     dq, dk, dv = dnn.scaled_dot_product_attention_backward(handle, q, q, q, o, q, stats)
    ...     print(dv.shape, dv.numpy()[0, 0, 0, 0])
    (1, 2, 64, 32) 1.0
    """
    options = _options(scale, causal, window, dropout)
    options["return_dbias"] = one_of(return_dbias, "return_dbias", True, False)
    return GraphRequest(
        handle,
        "scaled_dot_product_attention_backward",
        backward_graph,
        {
            "q": q,
            "k": k,
            "v": v,
            "o": o,
            "do": do,
            "stats": stats,
            "bias": bias,
            **both_lengths(handle, q_lengths, kv_lengths, q, k),
        },
        options,
        ("dq", "dk", "dv", "dbias") if return_dbias else ("dq", "dk", "dv"),
        out,
        workspace_limit,
        _random_numbers(options, seed, offset),
        optional=_OPTIONAL,
    )


def _options(
    scale: float | None, causal: bool | str, window: int | None, dropout: float
) -> dict[str, Any]:
    """Return the options of the formulas; ArgumentError if one is not allowed."""
    probability = real_number(dropout, "dropout")
    if not 0 <= probability < 1:
        raise ArgumentError(f"dropout={probability}; needed: from 0 on, below 1")
    return {
        "scale": None if scale is None else real_number(scale, "scale"),
        "causal": one_of(causal, "causal", True, False, BOTTOM_RIGHT),
        "window": None if window is None else integer(window, "window", 1, MOST_STEPS),
        "dropout": probability,
    }


def _random_numbers(options: Mapping[str, Any], seed: int, offset: int) -> dict[str, int]:
    """Return the numbers that a call with dropout passes by value; empty without dropout."""
    is_default = type(seed) is type(offset) is int and seed == offset == 0
    if is_default and not options["dropout"]:
        return {}
    numbers = {
        "seed": integer(seed, "seed", 0, _LARGEST_SEED),
        "offset": integer(offset, "offset", 0, _LARGEST_SEED),
    }
    return numbers if options["dropout"] else {}
