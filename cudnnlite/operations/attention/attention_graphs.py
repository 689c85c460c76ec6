"""Scaled dot-product attention and its gradients as formulas: specs in, a graph out."""

from __future__ import annotations

from collections.abc import Mapping

from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.operations.graph.graph import Graph
from cudnnlite.specs import TensorSpec

_DTYPES = (DataType.HALF, DataType.BFLOAT16, DataType.FLOAT)
_LENGTHS = ("q_lengths", "kv_lengths")


def forward_graph(
    specs: Mapping[str, TensorSpec],
    scale: float | None,
    causal: bool,
    window: int | None,
    dropout: float,
    return_stats: bool,
    seed: int = 0,
    offset: int = 0,
) -> Graph:
    """Return attention as its formula.

    The chain of the statistics has to be there, in memory or not: without it cuDNN has no engine.
    """
    attention = _Attention(specs, scale, causal, window, dropout)
    graph, inputs = attention.graph, attention.inputs
    q, k, v = (inputs[name] for name in "qkv")
    scores = attention.masked(attention.scores(q, k))
    probabilities, stats = graph.softmax_with_stats(scores, None if dropout else q.dtype)
    if dropout:
        kept = probabilities * attention.kept(scores.shape, seed, offset)
        probabilities = graph.pointwise("MUL", kept, attention.factor_of_kept, dtype=q.dtype)
    if return_stats:
        graph.output("stats", stats)
    o = attention.product(probabilities, v, m="q_lengths", k="kv_lengths")
    graph.output("o", o, q.dtype)
    return graph


def backward_graph(
    specs: Mapping[str, TensorSpec],
    scale: float | None,
    causal: bool,
    window: int | None,
    dropout: float,
    seed: int = 0,
    offset: int = 0,
) -> Graph:
    """Return the gradients of attention as their formula.

    `row_sums` and `dq_sums` are memory between kernels, in an order of cuDNN's own.
    """
    attention = _Attention(specs, scale, causal, window, dropout)
    graph, inputs = attention.graph, attention.inputs
    q, k, v, o, do, stats = (inputs[name] for name in ("q", "k", "v", "o", "do", "stats"))
    kept_share = graph.scalar("kept_share", 1 - dropout)
    row_sums = graph.output("row_sums", graph.reduce("ADD", do * o) * kept_share)
    scores = attention.masked(attention.scores(q, k))
    probabilities = graph.exp(scores - stats)
    kept_probabilities, kept = probabilities, None
    if dropout:
        kept = attention.kept(scores.shape, seed, offset)
        kept_probabilities = probabilities * kept * attention.factor_of_kept
    attention.add_gradient("dv", kept_probabilities.transposed(q.dtype), do, heads=v.shape[1])
    slopes = attention.scores(do, v)
    if kept is not None:
        slopes = slopes * kept
    slopes = (slopes - row_sums) * probabilities
    if kept is not None:
        slopes = slopes * attention.factor_of_kept
    dscores = graph.pointwise("MUL", slopes, attention.scale, dtype=q.dtype)
    attention.add_gradient("dk", dscores.transposed(q.dtype), q, heads=k.shape[1])
    keys = graph.virtual(k.shape, q.dtype)
    graph.node("RESHAPE", reads={"xdesc": k.transposed()}, writes={"ydesc": keys})
    dq_sums = attention.product(dscores, keys, m="q_lengths", k="kv_lengths")
    graph.output("dq_sums", dq_sums)
    graph.output("dq", graph.identity(dq_sums), q.dtype)
    return graph


class _Attention:
    """What attention and its gradients have in common: operands, scale, masks and dropout.

    Attributes
    ----------
    graph : Graph
        To which operations are added.
    inputs : dict of str to GraphTensor
        The operands, by name.
    scale : GraphTensor
        The factor of the scores.
    factor_of_kept : GraphTensor
        That of the probabilities that dropout leaves; only with dropout.
    """

    def __init__(
        self,
        specs: Mapping[str, TensorSpec],
        scale: float | None,
        causal: bool,
        window: int | None,
        dropout: float,
    ) -> None:
        _check_operands(specs)
        self.graph = Graph()
        self.inputs = {
            name: self.graph.input(name, spec.shape, spec.dtype, spec.strides)
            for name, spec in specs.items()
        }
        size = specs["q"].shape[-1]
        self.scale = self.graph.scalar("scale", size**-0.5 if scale is None else scale)
        self._causal = causal
        self._window = window
        self._dropout = dropout
        if dropout:
            self.factor_of_kept = self.graph.scalar("factor_of_kept", 1 / (1 - dropout))

    def product(
        self,
        a: GraphTensor,
        b: GraphTensor,
        *,
        m: str = "",
        n: str = "",
        k: str = "",
        dtype: DataType | None = None,
    ) -> GraphTensor:
        """Return a matrix product within lengths, by their names, where the inputs have them."""
        return self.graph.matmul(
            a,
            b,
            dtype=dtype,
            m_lengths=self.inputs.get(m),
            n_lengths=self.inputs.get(n),
            k_lengths=self.inputs.get(k),
        )

    def scores(self, rows: GraphTensor, columns: GraphTensor) -> GraphTensor:
        """Return the products of queries, or what stands for them, with keys or values."""
        return self.product(rows, columns.transposed(), m="q_lengths", n="kv_lengths")

    def masked(self, products: GraphTensor) -> GraphTensor:
        """Return scaled scores with the bias added, and those masked that are not attended to."""
        graph, inputs = self.graph, self.inputs
        scores = products * self.scale
        if "bias" in inputs:
            scores = scores + inputs["bias"]
        if "q_lengths" in inputs:
            scores = graph.within_lengths(scores, inputs["q_lengths"], inputs["kv_lengths"])
        if self._causal:
            scores = graph.causal(scores)
        if self._window is not None:
            scores = graph.window(scores, self._window)
        return scores

    def kept(self, shape: tuple[int, ...], seed: int, offset: int) -> GraphTensor:
        """Return 1 for each probability that dropout leaves, and 0 for the others."""
        graph = self.graph
        return graph.bernoulli(
            shape,
            1 - self._dropout,
            graph.scalar("seed", seed, "int64"),
            graph.scalar("offset", offset, "int64"),
        )

    def add_gradient(self, name: str, a: GraphTensor, b: GraphTensor, heads: int) -> None:
        """Let the product a b be written: a sum over the heads of queries that share one of keys."""
        graph = self.graph
        dtype = self.inputs["q"].dtype
        is_shared = heads != a.shape[1]
        products = self.product(
            a, b, m="kv_lengths", k="q_lengths", dtype=dtype if is_shared else None
        )
        if not is_shared:
            graph.output(name, products, dtype)
            return
        total = graph.virtual((products.shape[0], heads, *products.shape[2:]))
        graph.node(
            "REDUCTION",
            {"operator": "ADD", "comp_type": graph.compute_type},
            reads={"xdesc": products},
            writes={"ydesc": total},
        )
        graph.output(name, total, dtype)


def _check_operands(specs: Mapping[str, TensorSpec]) -> None:
    """Raise ArgumentError where operands do not fit together."""
    for name, spec in specs.items():
        if spec.rank != 4:
            needed = "(batch, 1, 1, 1)" if name in _LENGTHS else "(batch, heads, steps, size)"
            raise ArgumentError(f"{name} has shape {spec.shape}; needed: {needed}")
    _check_types(specs)
    q, k, v = (specs[name] for name in "qkv")
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
    _check_lengths(specs, batch)


def _check_types(specs: Mapping[str, TensorSpec]) -> None:
    """Refuse mixed data types, and a last axis with gaps, on which cuDNN ends the process."""
    q = specs["q"]
    if q.dtype not in _DTYPES:
        raise ArgumentError(f"q is {q}; allowed: float16, bfloat16, float32")
    for name in ("q", "k", "v", "o", "do"):
        if name not in specs:
            continue
        spec = specs[name]
        if spec.dtype != q.dtype:
            raise ArgumentError(f"{name} is {spec}; needed: the data type of q, {q}")
        if spec.shape[-1] > 1 and spec.strides[-1] != 1:
            raise ArgumentError(
                f"{name} has strides {spec.strides}; needed: 1 along the last axis, the size of a "
                "head"
            )


def _check_lengths(specs: Mapping[str, TensorSpec], batch: int) -> None:
    lengths = [name for name in _LENGTHS if name in specs]
    if len(lengths) == 1:
        missing = next(name for name in _LENGTHS if name not in specs)
        raise ArgumentError(f"{missing} is missing; cuDNN takes it together with {lengths[0]}")
    for name in lengths:
        spec = specs[name]
        if spec.shape != (batch, 1, 1, 1) or spec.dtype != DataType.INT32:
            raise ArgumentError(f"{name} is {spec}; needed: int32, of shape {(batch, 1, 1, 1)}")


def _check_bias(shape: tuple[int, ...], scores: tuple[int, ...]) -> None:
    fits = all(size in (1, whole) for size, whole in zip(shape[:2], scores[:2], strict=True))
    if not fits or shape[2:] != scores[2:]:
        raise ArgumentError(
            f"bias has shape {shape}; needed: (1 or {scores[0]}, 1 or {scores[1]}, {scores[2]}, "
            f"{scores[3]})"
        )
