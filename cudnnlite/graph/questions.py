"""What the rules about faults ask of a graph: its products, its tensors in memory, an attention."""

from __future__ import annotations

from collections.abc import Iterable

from cudnnlite.enums import DataType
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.records import Node, Shape, TensorRecord

VECTOR_BYTES = 16  # what a kernel loads or stores at once
# The operands of a product that are lengths of sequences, one for each sequence of the batch.
LENGTHS = ("gemm_m_override_desc", "gemm_n_override_desc", "gemm_k_override_desc")


def operand(graph: GraphData, node: Node, name: str) -> TensorRecord | None:
    """Return a tensor that an operation reads; None if it is missing, which cuDNN refuses."""
    numbers = dict(node.reads).get(name, ())
    return graph.tensors[numbers[0]] if numbers else None


def result(graph: GraphData, node: Node, name: str) -> TensorRecord | None:
    """Return a tensor that an operation writes; None if it is missing."""
    numbers = dict(node.writes).get(name, ())
    return graph.tensors[numbers[0]] if numbers else None


def in_memory(graph: GraphData, numbers: Iterable[int]) -> list[TensorRecord]:
    """Return those of the tensors that are in device memory."""
    records = [graph.tensors[number] for number in numbers]
    return [record for record in records if record.name and record.value is None]


def mode_of(node: Node) -> str:
    """Return the mode of an operation; "" if it has none."""
    return str(dict(node.attributes).get("mode", ""))


def products_of(graph: GraphData) -> list[Node]:
    """Return the products of matrices, in their order."""
    return [node for node in graph.nodes if node.kind == "MATMUL"]


def factors_of(product: Node) -> list[int]:
    """Return the numbers of the matrices that a product multiplies."""
    reads = dict(product.reads)
    return [number for name in ("adesc", "bdesc") for number in reads.get(name, ())]


def behind_products(graph: GraphData) -> set[int]:
    """Return the numbers of the tensors that are computed from the result of a product."""
    computed: set[int] = set()
    for node in graph.nodes:
        if node.kind == "MATMUL" or not computed.isdisjoint(node.read_numbers):
            computed.update(node.written_numbers)
    return computed


def is_gradient_of_attention(graph: GraphData) -> bool:
    """Whether an attention is that of its gradients: scores, and products of do and v.

    An attention has one product of two operands in memory, those of the scores.
    """
    in_both = [node for node in products_of(graph) if len(in_memory(graph, factors_of(node))) == 2]
    return len(in_both) > 1


def is_attention(graph: GraphData) -> bool:
    """Whether a product multiplies what is computed from the result of another one."""
    computed = behind_products(graph)
    return any(not computed.isdisjoint(node.read_numbers) for node in products_of(graph))


def paddings(node: Node) -> tuple[Shape, Shape]:
    """Return the padding before and behind each spatial axis."""
    attributes = dict(node.attributes)
    return tuple(attributes.get("pre_paddings", ())), tuple(attributes.get("post_paddings", ()))


def multiplies_in_tf32(graph: GraphData) -> bool:
    """Whether a graph has a product of float32 matrices.

    An engine without the numerical note of tensor cores had the same relative error as the others,
    7e-4: none multiplies in full precision.
    """
    operands = [
        operand(graph, node, name) for node in products_of(graph) for name in ("adesc", "bdesc")
    ]
    return any(record is not None and record.dtype == DataType.FLOAT for record in operands)


def has_bias_gradient(graph: GraphData) -> bool:
    """Whether gradients of an attention have that of its bias: sums of the scores' gradient."""
    results = {number for node in products_of(graph) for number in node.written_numbers}
    behind = behind_products(graph)
    return any(
        node.kind == "REDUCTION"
        and results.isdisjoint(node.read_numbers)
        and not behind.isdisjoint(node.read_numbers)
        and bool(in_memory(graph, node.written_numbers))
        for node in graph.nodes
    )


def has_channels_last(shape: Shape, strides: Shape) -> bool:
    """Whether cuDNN takes images, by their strides, for images whose channels are last.

    The stride of an axis of size 1 decides only where the images have no other.  A single channel
    is last if its stride is that of the innermost axis: (63, 1, 7, 1) of the shape (2, 1, 9, 7).
    """
    pixels = zip(shape[2:], strides[2:], strict=True)
    pixel_strides = [stride for size, stride in pixels if size > 1]
    innermost = min(pixel_strides or strides[2:])
    if shape[1] > 1:
        return strides[1] < innermost
    return bool(pixel_strides) and strides[1] <= innermost
