"""Scaled dot-product attention as a graph: one kernel from queries to the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cudnnlite.arguments import one_of, real_number
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.operations.graph.function import GraphRequest, graph_operation
from cudnnlite.operations.graph.graph import Graph
from cudnnlite.specs import TensorSpec

_DTYPES = (DataType.HALF, DataType.BFLOAT16, DataType.FLOAT)


@graph_operation
def scaled_dot_product_attention_forward(
    handle: Handle,
    q: Operand,
    k: Operand,
    v: Operand,
    *,
    scale: float | None = None,
    causal: bool = False,
    bias: Operand | None = None,
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
        Queries, ``(batch, heads, steps, size)``; float16, bfloat16 or float32, whose sizes go up to
        128.  Any strides whose last axis is packed.
    k, v : device array
        Keys and values, ``(batch, heads, steps, size)``, of q's data type.  The heads of q may be a
        multiple of theirs: then several heads of queries share one of keys and values.
    scale : float, optional
        ``size ** -0.5``, if not given.
    causal : bool
        Whether a query attends to the keys up to its own step alone.
    bias : device array, optional
        Added to the scores, ``(1 or batch, 1 or heads, q's steps, k's steps)``.
    return_stats : bool
        Whether the logarithms of the sums of exponentials are returned too, which
        `scaled_dot_product_attention_backward` reads.
    out : device array, or a pair of them, optional
        Written in place: o, or o and stats; new arrays if not given.
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
    options = {
        "scale": None if scale is None else real_number(scale, "scale"),
        "causal": one_of(causal, "causal", True, False),
        "return_stats": one_of(return_stats, "return_stats", True, False),
    }
    return GraphRequest(
        handle,
        "scaled_dot_product_attention_forward",
        forward_graph,
        {"q": q, "k": k, "v": v, "bias": bias},
        options,
        ("o", "stats") if return_stats else ("o",),
        out,
        workspace_limit,
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
    causal: bool = False,
    out: Sequence[AnyArray | None] | None = None,
    workspace_limit: int | str | None = None,
) -> GraphRequest[tuple[DeviceArray, DeviceArray, DeviceArray]]:
    """Compute the gradients of scaled dot-product attention, asynchronously.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call; it keeps the plan for the next call of the same kind.
    q, k, v : device array
        As in `scaled_dot_product_attention_forward`, with as many heads each; float16 or bfloat16.
    o, stats : device array
        What that returned, with ``return_stats=True``.
    do : device array
        The gradient of o, of its shape and data type.
    scale, causal
        As there.
    out : tuple of three device arrays, optional
        dq, dk and dv, written in place; new arrays if not given.
    workspace_limit : int or str, optional
        Bytes, "64 MiB", or "10%" of the device's memory; the handle's limit if not given.

    Returns
    -------
    tuple of three DeviceArray
        dq, dk and dv, of the shapes of q, k and v, packed.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError
        cuDNN has no engine for these sizes on this device.

    Notes
    -----
    C functions: `cudnnBackendExecute`, as in `scaled_dot_product_attention_forward`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     q = handle.array(np.ones((1, 2, 64, 32)), dtype="float16")
    ...     o, stats = dnn.scaled_dot_product_attention_forward(handle, q, q, q, return_stats=True)
    ...     dq, dk, dv = dnn.scaled_dot_product_attention_backward(handle, q, q, q, o, q, stats)
    ...     print(dv.shape, dv.numpy()[0, 0, 0, 0])
    (1, 2, 64, 32) 1.0
    """
    options = {
        "scale": None if scale is None else real_number(scale, "scale"),
        "causal": one_of(causal, "causal", True, False),
    }
    return GraphRequest(
        handle,
        "scaled_dot_product_attention_backward",
        backward_graph,
        {"q": q, "k": k, "v": v, "o": o, "do": do, "stats": stats},
        options,
        ("dq", "dk", "dv"),
        out,
        workspace_limit,
    )


def forward_graph(
    specs: Mapping[str, TensorSpec], scale: float | None, causal: bool, return_stats: bool
) -> Graph:
    """Return attention as its formula.

    The chain of the statistics has to be there, in memory or not: without it cuDNN has no engine.
    """
    _check_operands(specs)
    graph = Graph()
    q, k, v = (_input(graph, specs, name) for name in "qkv")
    scores = graph.matmul(q, k.transposed()) * _scale(graph, scale, q)
    if "bias" in specs:
        scores = scores + _input(graph, specs, "bias")
    if causal:
        scores = graph.causal(scores)
    probabilities, stats = graph.softmax_with_stats(scores, q.dtype)
    if return_stats:
        graph.output("stats", stats)
    graph.output("o", graph.matmul(probabilities, v), q.dtype)
    return graph


def backward_graph(specs: Mapping[str, TensorSpec], scale: float | None, causal: bool) -> Graph:
    """Return the gradients of attention as their formula.

    `row_sums` and `dq_sums` are memory between kernels, in an order of cuDNN's own.
    """
    _check_operands(specs)
    graph = Graph()
    q, k, v, o, do, stats = (
        _input(graph, specs, name) for name in ("q", "k", "v", "o", "do", "stats")
    )
    factor = _scale(graph, scale, q)
    one = graph.scalar("one", 1.0)
    row_sums = graph.output("row_sums", graph.reduce("ADD", do * o) * one)
    scores = graph.matmul(q, k.transposed()) * factor - stats
    if causal:
        scores = graph.causal(scores)
    probabilities = graph.exp(scores)
    graph.output("dv", graph.matmul(probabilities.transposed(q.dtype), do), q.dtype)
    slopes = (graph.matmul(do, v.transposed()) - row_sums) * probabilities
    dscores = graph.pointwise("MUL", slopes, factor, dtype=q.dtype)
    graph.output("dk", graph.matmul(dscores.transposed(q.dtype), q), q.dtype)
    keys = graph.virtual(k.shape, q.dtype)
    graph.node("RESHAPE", reads={"xdesc": k.transposed()}, writes={"ydesc": keys})
    dq_sums = graph.output("dq_sums", graph.matmul(dscores, keys))
    graph.output("dq", graph.identity(dq_sums), q.dtype)
    return graph


def _input(graph: Graph, specs: Mapping[str, TensorSpec], name: str) -> GraphTensor:
    spec = specs[name]
    return graph.input(name, spec.shape, spec.dtype, spec.strides)


def _scale(graph: Graph, scale: float | None, q: GraphTensor) -> GraphTensor:
    return graph.scalar("scale", q.shape[-1] ** -0.5 if scale is None else scale)


def _check_operands(specs: Mapping[str, TensorSpec]) -> None:
    """Raise ArgumentError where operands do not fit together."""
    q, k, v = (specs[name] for name in "qkv")
    for name, spec in specs.items():
        if spec.rank != 4:
            raise ArgumentError(
                f"{name} has shape {spec.shape}; needed: (batch, heads, steps, size)"
            )
    if q.dtype not in _DTYPES:
        raise ArgumentError(f"q is {q}; allowed: float16, bfloat16, float32")
    for name in ("k", "v", "o", "do"):
        if name in specs and specs[name].dtype != q.dtype:
            raise ArgumentError(f"{name} is {specs[name]}; needed: the data type of q, {q}")
    batch, heads, steps, size = q.shape
    if k.shape[0] != batch or k.shape[3] != size or heads % k.shape[1]:
        raise ArgumentError(
            f"k has shape {k.shape}; needed beside q of shape {q.shape}: the batch {batch}, the "
            f"size {size}, and heads that divide {heads}"
        )
    if v.shape[:3] != k.shape[:3]:
        raise ArgumentError(f"v has shape {v.shape}; needed: {k.shape[:3]} first, as k has")
    result = (batch, heads, steps, v.shape[3])
    for name, shape in {"o": result, "do": result, "stats": (batch, heads, steps, 1)}.items():
        if name in specs and specs[name].shape != shape:
            raise ArgumentError(f"{name} has shape {specs[name].shape}; needed: {shape}")
    if "bias" in specs:
        _check_bias(specs["bias"].shape, (batch, heads, steps, k.shape[2]))


def _check_bias(shape: tuple[int, ...], scores: tuple[int, ...]) -> None:
    fits = all(size in (1, whole) for size, whole in zip(shape[:2], scores[:2], strict=True))
    if not fits or shape[2:] != scores[2:]:
        raise ArgumentError(
            f"bias has shape {shape}; needed: (1 or {scores[0]}, 1 or {scores[1]}, {scores[2]}, "
            f"{scores[3]})"
        )
