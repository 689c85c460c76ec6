"""What cuDNN 9.19 computes wrongly, or less precisely than its engines say.

Found on an H100 (2026-11-26).  Such graphs are refused, because the library reports success.
"""

from __future__ import annotations

from operator import gt

from cudnnlite.enums import DataType
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.records import Node, TensorRecord

_COUNT_PADDING = ("AVGPOOL", "AVGPOOL_INCLUDE_PADDING")  # two names of one mode
MAX_FLOAT32_HEAD = 128  # the largest size of a head whose attention in float32 is right


def why_wrong(graph: GraphData) -> str | None:
    """Return why the numbers of a graph would be wrong, or None if no fault is known."""
    for node in graph.nodes:
        if node.kind == "RESAMPLE_FWD":
            fault = _why_pooling_is_wrong(graph, node)
            if fault is not None:
                return fault
    products = [node for node in graph.nodes if node.kind == "MATMUL"]
    if len(products) != 2:
        return None
    queries = _operand(graph, products[0], "adesc")
    keys, values = (_operand(graph, product, "bdesc") for product in products)
    if queries is None or keys is None or values is None or values.dtype != DataType.FLOAT:
        return None
    return why_float32_attention_is_wrong(queries.shape, keys.shape, values.shape)


def why_float32_attention_is_wrong(
    q: tuple[int, ...], k_transposed: tuple[int, ...], v: tuple[int, ...]
) -> str | None:
    """Return why attention of these shapes in float32 would be wrong, or None.

    Heads that are too large were found by their numbers.  One query whose heads share those of the
    keys leaves some of its output unwritten.
    """
    if max(k_transposed[-2], v[-1]) > MAX_FLOAT32_HEAD:
        return (
            f"cuDNN 9.19 computes attention in float32 wrongly where a head is larger than "
            f"{MAX_FLOAT32_HEAD}; float16 and bfloat16 are right"
        )
    is_grouped = len(q) == 4 and q[1] != k_transposed[1]
    if q[-2] == 1 and is_grouped:
        return (
            "cuDNN 9.19 computes attention of one query in float32 wrongly where heads of q share "
            "one of k; float16 and bfloat16 are right, and two queries are"
        )
    return None


def multiplies_in_tf32(graph: GraphData) -> bool:
    """Whether a graph has a product of float32 matrices.

    An engine without the numerical note of tensor cores had the same relative error as the others,
    7e-4: none multiplies in full precision.
    """
    operands = [
        _operand(graph, node, name)
        for node in graph.nodes
        if node.kind == "MATMUL"
        for name in ("adesc", "bdesc")
    ]
    return any(record is not None and record.dtype == DataType.FLOAT for record in operands)


def _operand(graph: GraphData, node: Node, name: str) -> TensorRecord | None:
    """Return what an operation reads; None where it lacks that, which cuDNN refuses."""
    numbers = dict(node.reads).get(name, ())
    return graph.tensors[numbers[0]] if numbers else None


def _why_pooling_is_wrong(graph: GraphData, node: Node) -> str | None:
    x = _operand(graph, node, "xdesc")
    if x is None or len(x.shape) < 3:
        return None
    is_channels_last = x.strides[1] == 1 and x.shape[1] > 1
    if is_channels_last and x.dtype == DataType.BFLOAT16:
        return "cuDNN 9.19 pools bfloat16 with channels last wrongly; give channels first"
    attributes = dict(node.attributes)
    before, behind = (attributes.get(name, ()) for name in ("pre_paddings", "post_paddings"))
    has_more_behind = any(map(gt, behind, before))
    counts_padding = attributes.get("mode") in _COUNT_PADDING
    if counts_padding and has_more_behind and not is_channels_last:
        return (
            "cuDNN 9.19 averages over padding wrongly with channels first where there is more "
            "padding behind an axis than before it; give channels last"
        )
    return None
