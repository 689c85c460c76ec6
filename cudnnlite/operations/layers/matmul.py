"""Matrix products with a bias and an activation, as a graph: one kernel."""

from __future__ import annotations

from collections.abc import Mapping

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import AnyDtype, dtype_name, float64_hint
from cudnnlite.enums import DataType, MathType, parse_math_type
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.graph.activations import ACTIVATIONS, parse_activation
from cudnnlite.operations.graph.function import GraphRequest, graph_operation
from cudnnlite.operations.graph.graph import Graph
from cudnnlite.operations.layers.matrices import (
    FLOAT8,
    MatrixGraph,
    is_broadcast,
    parse_alpha,
    parse_result_dtype,
)
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.names import GraphActivationName

_OPTIONAL = frozenset({"bias", "a_descale", "b_descale"})
_BIAS_DTYPES = (DataType.HALF, DataType.BFLOAT16, DataType.FLOAT)


@graph_operation
def matmul(
    handle: Handle,
    a: Operand,
    b: Operand,
    *,
    bias: Operand | None = None,
    activation: GraphActivationName | None = None,
    alpha: float = 1.0,
    a_descale: Operand | None = None,
    b_descale: Operand | None = None,
    dtype: AnyDtype | None = None,
    math_type: MathType | str = MathType.DEFAULT,
    out: AnyArray | None = None,
    workspace_limit: int | str | None = None,
) -> GraphRequest[DeviceArray]:
    """Compute y = activation(alpha * a @ b + bias) for a batch, asynchronously, in one kernel.

    float32 operands are multiplied in TF32 on Ampere and later.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call; it keeps the plan for the next call of the same kind.
    a : device array
        ``(..., M, K)``; float16, bfloat16, float32, float8_e4m3fn or float8_e5m2.  Its matrices may
        have any strides, for instance those of a transposed matrix.  It must be possible to view
        the axes before the last two as one axis.
    b : device array
        ``(..., K, N)``, of the data type of `a`; if `a` is float8, of either float8 type.  The axes
        before the last two are those of `a`, unless `a` or `b` is one matrix for the whole batch,
        without these axes or with size 1 along each.
    bias : device array, optional
        ``(N,)``, or ``(M, N)``, ``(1, N)``, ``(M, 1)`` or ``(1, 1)``, one for the whole batch or
        one for each matrix, broadcast as in NumPy.  With several batch axes, it has the size of the
        batch along all of them, or 1 along all.  float16, bfloat16 or float32, or a float8 type
        that `a` or `b` has.  Its rows, or its columns, must be packed, because kernels read other
        strides wrongly.
    activation : str, optional
        "relu", "leaky_relu" (with the slope 0.01), "gelu", "gelu_tanh", "swish", "softplus",
        "sigmoid", "tanh", "elu" or "mish".
    alpha : float
        The factor of the product, passed by value: calls that differ only in `alpha` share a plan,
        unless it is 1.
    a_descale, b_descale : device array, optional
        One float32 value each, by which the product is also multiplied: the number by which `a` or
        `b` was divided to fit float8.
    dtype : dtype, optional
        The data type of y; that of `a` if not given, or float32 if `a` is float8.  Values beyond
        the range of float8 become its largest values.
    math_type : MathType or str
        "fma" or "true_float32": only engines without tensor cores.  cuDNN 9.19 has none for
        products on an H100, whatever the data type, so the call is refused.  Tensor cores multiply
        float16 and bfloat16 exactly, too; for true float32, use a convolution with filters of one
        tap.
    out : device array, optional
        y, written in place; a new array if not given.  Its rows, or its columns, must be packed.
        It may be `bias`, if both have the same shape, strides and data type.
    workspace_limit : int or str, optional
        Bytes, "64 MiB", or "10%" of the device's memory; the handle's limit if not given.

    Returns
    -------
    DeviceArray
        y, ``(..., M, N)``, packed.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError
        cuDNN has no engine for these operands on this device.

    Notes
    -----
    C functions: `cudnnBackendExecute`; for the first call of a kind, also those of
    `BackendDescriptor`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     a = handle.array(np.ones((64, 32)), dtype="float16")
    ...     b = handle.array(np.ones((32, 16)), dtype="float16")
    ...     y = dnn.matmul(handle, a, b, activation="relu", alpha=0.5)
    ...     print(y.shape, y.numpy()[0, :3])
    (64, 16) [16. 16. 16.]
    """
    function = None
    if activation is not None:
        function = parse_activation(activation, "activation", "None")
    numbers = parse_alpha(alpha)
    return GraphRequest(
        handle,
        "matmul",
        product_graph,
        {"a": a, "b": b, "bias": bias, "a_descale": a_descale, "b_descale": b_descale},
        {"activation": function, "dtype": parse_result_dtype(dtype), "has_alpha": bool(numbers)},
        ("y",),
        out,
        workspace_limit,
        numbers,
        parse_math_type(math_type),
        optional=_OPTIONAL,
    )


def product_graph(
    specs: Mapping[str, TensorSpec],
    activation: str | None,
    dtype: DataType | None,
    has_alpha: bool,
    alpha: float = 1.0,
) -> Graph:
    """Return the graph of a product with its bias and activation."""
    product = MatrixGraph(specs, "a", "b")
    graph = product.graph
    a, b = specs["a"], specs["b"]
    if a.shape[-1] != b.shape[-2]:
        raise ArgumentError(
            f"b has shape {b.shape}; needed beside a of shape {a.shape}: {a.shape[-1]} rows"
        )
    y = graph.matmul(product.matrices("a"), product.matrices("b"))
    for name in ("a_descale", "b_descale"):
        if name in specs:
            y = y * product.number(name)
    if has_alpha:
        y = y * graph.scalar("alpha", alpha)
    if "bias" in specs:
        _check_bias_dtype(specs)
        shape = (*product.batch, *y.shape[-2:])
        if not is_broadcast(specs["bias"].shape, shape):
            raise ArgumentError(
                f"bias has shape {specs['bias'].shape}; needed: one that is broadcast to {shape}"
            )
        y = y + product.matrices("bias")
    if activation is not None:
        y = ACTIVATIONS[activation](graph, y)
    return product.output("y", y, product.batch, dtype)


def _check_bias_dtype(specs: Mapping[str, TensorSpec]) -> None:
    """Raise ArgumentError if the bias has a data type that no engine adds to a product."""
    bias_dtype = specs["bias"].dtype
    operand_dtypes = {specs["a"].dtype, specs["b"].dtype}
    allowed = [*_BIAS_DTYPES, *(dtype for dtype in FLOAT8 if dtype in operand_dtypes)]
    if bias_dtype not in allowed:
        names = ", ".join(map(dtype_name, allowed))
        hint = float64_hint(bias_dtype, DataType.FLOAT)
        raise ArgumentError(f"bias is {dtype_name(bias_dtype)}; allowed: {names}{hint}")
