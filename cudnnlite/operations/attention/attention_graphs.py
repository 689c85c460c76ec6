"""The graphs of scaled dot-product attention and of its gradients, made from operands' specs."""

from __future__ import annotations

from collections.abc import Mapping

from cudnnlite.dtypes import mixed_types
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.operations.graph.graph import Graph
from cudnnlite.specs import TensorSpec

_DTYPES = (DataType.HALF, DataType.BFLOAT16, DataType.FLOAT)
_LENGTHS = ("q_lengths", "kv_lengths")
BOTTOM_RIGHT = "bottom_right"  # of a causal mask, where the diagonal ends
# What does the same as another mask beside it, for messages.
_MASK_AS_BIAS = "needed: neither, but the whole mask as a bias, 0 or -inf"
# What messages say of operands that are no sequences of heads.
_SHAPES = {
    **dict.fromkeys(_LENGTHS, "(batch, 1, 1, 1)"),
    "bias": "(1 or batch, 1 or heads, 1 or q's steps, k's steps)",
}


def forward_graph(
    specs: Mapping[str, TensorSpec],
    scale: float | None,
    causal: bool | str,
    window: int | None,
    dropout: float,
    return_stats: bool,
    seed: int = 0,
    offset: int = 0,
) -> Graph:
    """Return the graph of attention, with the outputs `o` and, if `return_stats`, `stats`.

    The operations that compute `stats` are always added: cuDNN has no engine for a graph without
    them.
    """
    attention = _Attention(specs, scale, causal, window, dropout)
    graph, inputs = attention.graph, attention.inputs
    q, k, v = (inputs[name] for name in "qkv")
    scores = attention.mask_scores(attention.multiply_by_transposed(q, k))
    if dropout:
        # The probabilities stay in float32 until they are masked and scaled.
        float_probabilities, stats = graph.softmax_with_stats(scores)
        mask = attention.dropout_mask(scores.shape, seed, offset)
        probabilities = graph.pointwise(
            "MUL", float_probabilities * mask, attention.dropout_scale, dtype=q.dtype
        )
    else:
        probabilities, stats = graph.softmax_with_stats(scores, q.dtype)
    if return_stats:
        graph.output("stats", stats)
    o = attention.multiply(probabilities, v, m="q_lengths", k="kv_lengths")
    graph.output("o", o, q.dtype)
    return graph


def backward_graph(
    specs: Mapping[str, TensorSpec],
    scale: float | None,
    causal: bool | str,
    window: int | None,
    dropout: float,
    return_dbias: bool = False,
    seed: int = 0,
    offset: int = 0,
) -> Graph:
    """Return the graph of attention's gradients, with the outputs `dq`, `dk` and `dv`.

    With `return_dbias` it has the output `dbias`, too, and no `dq_sums`: cuDNN's engine for the
    gradient of a bias keeps the gradient of the scores in its workspace instead.
    The outputs `row_sums` and `dq_sums` are scratch memory of cuDNN's kernels, which calls have in
    their workspace.  The order of the values in `dq_sums` is cuDNN's own.
    """
    attention = _Attention(specs, scale, causal, window, dropout)
    graph, inputs = attention.graph, attention.inputs
    q, k, v, o, do, stats = (inputs[name] for name in ("q", "k", "v", "o", "do", "stats"))
    # The gradient of the scores divides the sums by 1 - dropout again.
    keep_probability = graph.scalar("keep_probability", 1 - dropout)
    row_sums = graph.output("row_sums", graph.reduce("ADD", do * o) * keep_probability)
    scores = attention.mask_scores(attention.multiply_by_transposed(q, k))
    probabilities = graph.exp(scores - stats)
    if dropout:
        mask = attention.dropout_mask(scores.shape, seed, offset)
        weights = probabilities * mask * attention.dropout_scale
    else:
        weights = probabilities
    attention.add_gradient("dv", weights.transposed(dtype=q.dtype), do, heads=v.shape[1])

    # The gradient of the scores is probabilities * (dweights * mask - row_sums) / (1 - dropout).
    dweights = attention.multiply_by_transposed(do, v)
    if dropout:
        unscaled_dscores = (dweights * mask - row_sums) * probabilities
        dscores = unscaled_dscores * attention.dropout_scale
    else:
        dscores = (dweights - row_sums) * probabilities
    if return_dbias:
        attention.add_bias_gradient(dscores)
    dproducts = graph.pointwise("MUL", dscores, attention.scale, dtype=q.dtype)
    attention.add_gradient("dk", dproducts.transposed(dtype=q.dtype), q, heads=k.shape[1])

    # cuDNN's engine has k in this product as a RESHAPE of the transposed k above.
    keys = graph.virtual(k.shape, q.dtype)
    graph.node("RESHAPE", reads={"xdesc": k.transposed()}, writes={"ydesc": keys})
    dq = attention.multiply(dproducts, keys, m="q_lengths", k="kv_lengths")
    if not return_dbias:
        dq_sums = graph.output("dq_sums", dq)
        dq = graph.identity(dq_sums)
    graph.output("dq", dq, q.dtype)
    return graph


class _Attention:
    """A graph, and the formulas that attention and its gradients have in common.

    Attributes
    ----------
    graph : Graph
        The graph that the methods add operations to.
    inputs : dict of str to GraphTensor
        The operands, by name.
    scale : GraphTensor
        The factor of the scores.
    dropout_scale : GraphTensor
        The factor ``1 / (1 - dropout)`` of the probabilities that dropout leaves.  Without dropout
        the attribute does not exist.
    """

    def __init__(
        self,
        specs: Mapping[str, TensorSpec],
        scale: float | None,
        causal: bool | str,
        window: int | None,
        dropout: float,
    ) -> None:
        _check_operands(specs)
        if causal == BOTTOM_RIGHT:
            _check_bottom_right(specs, window)
        self.graph = Graph()
        self.inputs = {
            name: self.graph.input(name, spec.shape, spec.dtype, spec.strides)
            for name, spec in specs.items()
        }
        if scale is None:
            scale = specs["q"].shape[-1] ** -0.5
        self.scale = self.graph.scalar("scale", scale)
        self._causal = causal
        self._window = window
        self._dropout = dropout
        if dropout:
            self.dropout_scale = self.graph.scalar("dropout_scale", 1 / (1 - dropout))

    def multiply(
        self,
        a: GraphTensor,
        b: GraphTensor,
        *,
        m: str = "",
        n: str = "",
        k: str = "",
        dtype: DataType | None = None,
    ) -> GraphTensor:
        """Return the matrix product a b.

        `m`, `n` and `k` name the inputs with the valid lengths of that axis.  A name that no input
        has is ignored.
        """
        return self.graph.matmul(
            a,
            b,
            dtype=dtype,
            m_lengths=self.inputs.get(m),
            n_lengths=self.inputs.get(n),
            k_lengths=self.inputs.get(k),
        )

    def multiply_by_transposed(self, rows: GraphTensor, columns: GraphTensor) -> GraphTensor:
        """Return the product of queries, or of `do`, and the transpose of keys, or of values."""
        return self.multiply(rows, columns.transposed(), m="q_lengths", n="kv_lengths")

    def mask_scores(self, products: GraphTensor) -> GraphTensor:
        """Return the products of queries and keys, scaled, with the bias added, and masked.

        Scores beyond the lengths, behind the diagonal (if causal) and before the window become
        -inf.
        """
        graph, inputs = self.graph, self.inputs
        scores = products * self.scale
        if "bias" in inputs:
            scores = scores + inputs["bias"]
        if "q_lengths" in inputs:
            scores = graph.within_lengths(scores, inputs["q_lengths"], inputs["kv_lengths"])
        if self._causal:
            scores = graph.causal(scores, bottom_right=self._causal == BOTTOM_RIGHT)
        if self._window is not None:
            scores = graph.window(scores, self._window)
        return scores

    def dropout_mask(self, shape: tuple[int, ...], seed: int, offset: int) -> GraphTensor:
        """Return 1 for each probability that dropout leaves, and 0 for the others."""
        graph = self.graph
        return graph.bernoulli(
            shape,
            1 - self._dropout,
            graph.scalar("seed", seed, "int64"),
            graph.scalar("offset", offset, "int64"),
        )

    def add_gradient(self, name: str, a: GraphTensor, b: GraphTensor, heads: int) -> None:
        """Add the output `name`, which is the product a b with `heads` heads.

        If `a` has more heads, the products of all heads of queries that share a head of keys and
        values are summed.
        """
        graph = self.graph
        dtype = self.inputs["q"].dtype
        if heads == a.shape[1]:
            products = self.multiply(a, b, m="kv_lengths", k="q_lengths")
            graph.output(name, products, dtype)
            return
        products = self.multiply(a, b, m="kv_lengths", k="q_lengths", dtype=dtype)
        total = self._add_up(products, (products.shape[0], heads, *products.shape[2:]))
        graph.output(name, total, dtype)

    def add_bias_gradient(self, dscores: GraphTensor) -> None:
        """Add the output `dbias`: the gradient of the scores, summed over broadcast axes."""
        if "bias" not in self.inputs:
            raise ArgumentError("return_dbias=True needs a bias")
        bias = self.inputs["bias"]
        self.graph.output("dbias", self._add_up(dscores, bias.shape), bias.dtype)

    def _add_up(self, values: GraphTensor, shape: tuple[int, ...]) -> GraphTensor:
        """Return the sums of groups of neighbours along the axes that are shorter in `shape`."""
        total = self.graph.virtual(shape)
        self.graph.node(
            "REDUCTION",
            {"operator": "ADD", "comp_type": self.graph.compute_type},
            reads={"xdesc": values},
            writes={"ydesc": total},
        )
        return total


def _check_operands(specs: Mapping[str, TensorSpec]) -> None:
    """Raise ArgumentError if the operands do not fit together."""
    for name, spec in specs.items():
        if spec.rank != 4:
            required_shape = _SHAPES.get(name, "(batch, heads, steps, size)")
            raise ArgumentError(f"{name} has shape {spec.shape}; needed: {required_shape}")
    _check_types(specs)
    q, k, v = (specs[name] for name in "qkv")
    batch, heads, steps, size = q.shape
    if k.shape[0] != batch or k.shape[3] != size or heads % k.shape[1]:
        raise ArgumentError(
            f"k has shape {k.shape}; needed beside q of shape {q.shape}: the batch {batch}, the "
            f"size {size}, and heads that divide {heads}"
        )
    if v.shape[:3] != k.shape[:3]:
        raise ArgumentError(
            f"v has shape {v.shape}; needed: the batch, heads and steps of k, {k.shape[:3]}"
        )
    result = (batch, heads, steps, v.shape[3])
    for name, shape in {"o": result, "do": result, "stats": (batch, heads, steps, 1)}.items():
        if name in specs and specs[name].shape != shape:
            raise ArgumentError(f"{name} has shape {specs[name].shape}; needed: {shape}")
    if "bias" in specs:
        _check_bias(specs["bias"].shape, (batch, heads, steps, k.shape[2]))
    _check_lengths(specs, batch)


def _check_bottom_right(specs: Mapping[str, TensorSpec], window: int | None) -> None:
    """Raise ArgumentError for what cuDNN does not have with a diagonal that ends at the end."""
    rows, columns = specs["q"].shape[2], specs["k"].shape[2]
    if rows > columns:
        raise ArgumentError(
            f"q has {rows} steps, k {columns}; needed with causal={BOTTOM_RIGHT!r}: no fewer steps "
            "of k, as the first steps of q would see none"
        )
    if window is not None:
        raise ArgumentError(f"window={window} beside causal={BOTTOM_RIGHT!r}; {_MASK_AS_BIAS}")
    if "kv_lengths" in specs:
        raise ArgumentError(f"lengths beside causal={BOTTOM_RIGHT!r}; {_MASK_AS_BIAS}")


def _check_types(specs: Mapping[str, TensorSpec]) -> None:
    """Raise ArgumentError for mixed data types, and for a last axis with gaps.

    With such gaps cuDNN ends the process.
    """
    q = specs["q"]
    if q.dtype not in _DTYPES:
        raise ArgumentError(f"q is {q}; allowed: float16, bfloat16, float32")
    for name in ("q", "k", "v", "o", "do"):
        if name not in specs:
            continue
        spec = specs[name]
        if spec.dtype != q.dtype:
            raise ArgumentError(mixed_types(name, spec.dtype, "q", q.dtype))
        if spec.shape[-1] > 1 and spec.strides[-1] != 1:
            raise ArgumentError(
                f"{name} has strides {spec.strides}; needed: 1 along the last axis, the size of a "
                f"head: dnn.transform_tensor(handle, {name}, layout='NCHW') returns such an array"
            )


def _check_lengths(specs: Mapping[str, TensorSpec], batch: int) -> None:
    for name in _LENGTHS:
        if name not in specs:
            continue
        spec = specs[name]
        if spec.shape != (batch, 1, 1, 1) or spec.dtype != DataType.INT32:
            raise ArgumentError(
                f"{name} is {spec}; needed: int32, of shape {(batch, 1, 1, 1)}, or a list of integers"
            )


def _check_bias(shape: tuple[int, ...], scores_shape: tuple[int, ...]) -> None:
    batch, heads, q_steps, k_steps = scores_shape
    pairs = zip(shape[:3], scores_shape[:3], strict=True)
    is_broadcast = all(size in (1, whole) for size, whole in pairs)
    if not is_broadcast or shape[3] != k_steps:
        raise ArgumentError(
            f"bias has shape {shape}; needed: "
            f"(1 or {batch}, 1 or {heads}, 1 or {q_steps}, {k_steps})"
        )
