"""Matrix products with what follows them, as a graph: one kernel."""

from __future__ import annotations

from collections.abc import Mapping

from cudnnlite.arguments import one_of
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import AnyDtype, parse_dtype
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.graph.activations import ACTIVATIONS
from cudnnlite.operations.graph.function import GraphRequest, graph_operation
from cudnnlite.operations.graph.graph import Graph
from cudnnlite.specs import TensorSpec


@graph_operation
def matmul(
    handle: Handle,
    a: Operand,
    b: Operand,
    *,
    bias: Operand | None = None,
    activation: str | None = None,
    dtype: AnyDtype | None = None,
    out: AnyArray | None = None,
    workspace_limit: int | str | None = None,
) -> GraphRequest[DeviceArray]:
    """Compute y = activation(a b + bias) for each batch, asynchronously, in one kernel.

    float32 operands are multiplied in TF32 on Ampere and later.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call; it keeps the plan for the next call of the same kind.
    a : device array
        ``(batch, M, K)``; float16, bfloat16 or float32, any strides: a transposed matrix is one.
    b : device array
        ``(batch, K, N)``, of the data type of `a`; one of the batches may be 1.
    bias : device array, optional
        ``(1, 1, N)``, or any shape that is broadcast to ``(batch, M, N)``.
    activation : str, optional
        "relu", "leaky_relu" (with the slope 0.01), "gelu", "gelu_tanh", "swish", "softplus",
        "sigmoid", "tanh" or "elu".
    dtype : dtype, optional
        Of y; that of `a` if not given.
    out : device array, optional
        y, written in place; a new array if not given.
    workspace_limit : int or str, optional
        Bytes, "64 MiB", or "10%" of the device's memory; the handle's limit if not given.

    Returns
    -------
    DeviceArray
        y, ``(batch, M, N)``, packed.

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
    ...     a = handle.array(np.ones((1, 64, 32)), dtype="float16")
    ...     b = handle.array(np.ones((1, 32, 16)), dtype="float16")
    ...     print(dnn.matmul(handle, a, b, activation="relu").numpy()[0, 0, :3])
    [32. 32. 32.]
    """
    if activation is not None:
        one_of(activation, "activation", *ACTIVATIONS)
    data_type = None if dtype is None else parse_dtype(dtype)
    return GraphRequest(
        handle,
        "matmul",
        product_graph,
        {"a": a, "b": b, "bias": bias},
        {"activation": activation, "dtype": data_type},
        ("y",),
        out,
        workspace_limit,
    )


def product_graph(
    specs: Mapping[str, TensorSpec], activation: str | None, dtype: DataType | None
) -> Graph:
    """Return the product with what follows it as a graph."""
    for name, spec in specs.items():
        if spec.rank != 3:
            raise ArgumentError(f"{name} has shape {spec.shape}; needed: (batch, rows, columns)")
    a, b = specs["a"], specs["b"]
    if b.dtype != a.dtype:
        raise ArgumentError(f"b is {b}; needed: the data type of a, {a}")
    graph = Graph()
    tensors = {
        name: graph.input(name, spec.shape, spec.dtype, spec.strides)
        for name, spec in specs.items()
    }
    y = graph.matmul(tensors["a"], tensors["b"])
    if "bias" in tensors:
        bias = tensors["bias"]
        if any(size not in (1, whole) for size, whole in zip(bias.shape, y.shape, strict=True)):
            raise ArgumentError(
                f"bias has shape {bias.shape}; needed: {y.shape}, or 1 along some of its axes"
            )
        y = y + bias
    if activation is not None:
        y = ACTIVATIONS[activation](graph, y)
    graph.output("y", y, a.dtype if dtype is None else dtype)
    return graph
