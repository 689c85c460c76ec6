"""Data types of operands and outputs that cuDNN takes, and then computes wrongly with.

With other types than those allowed here cuDNN 9.19 and 9.28 report success, but the numbers are
wrong, or a kernel reads beyond an operand and the CUDA context is lost, or the process ends.  An
H200 was asked (2026-11-29): one operand or output at a time had each of ten data types, in
attention and its gradients, products, normalisations and convolutions.  Of 4,073 such graphs 733
were wrong, 125 lost the context, and 28 ended the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import DataType
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.records import Node, TensorRecord

_LENGTHS = ("gemm_m_override_desc", "gemm_n_override_desc", "gemm_k_override_desc")
_SEEDS = ("seed", "offset_desc")
_INTEGERS = (DataType.INT8, DataType.UINT8, DataType.INT32, DataType.INT64)
_FLOATS = (DataType.HALF, DataType.BFLOAT16, DataType.FLOAT)
_STATISTICS = ("mean_desc", "inv_variance_desc")
Rule = tuple[TensorRecord, Iterable[DataType]]  # a tensor in memory, and the types that it may have


def why_types_are_wrong(graph: GraphData) -> str | None:
    """Return which tensor in memory has a data type that cuDNN computes wrongly with, or None."""
    rules: list[Rule] = []
    for node in graph.nodes:
        if node.kind in ("NORM_FORWARD", "NORM_BACKWARD"):
            rules += _rules_of_normalization(graph, node)
    if is_attention(graph):
        rules += _rules_of_attention(graph)
    elif any(node.kind.startswith(("MATMUL", "CONVOLUTION")) for node in graph.nodes):
        rules += _rules_of_products(graph)
    for record, allowed in rules:
        if record.dtype not in allowed:
            names = " or ".join(map(dtype_name, dict.fromkeys(allowed)))
            first_name, first = next(iter(graph.inputs.items()))
            return (
                f"{record.name} is {dtype_name(record.dtype)}; needed beside {first_name} of "
                f"{dtype_name(first.dtype)}: {names}; with others cuDNN computes wrongly"
            )
    return None


def is_attention(graph: GraphData) -> bool:
    """Whether a product multiplies what is computed from the result of another one."""
    computed = behind_products(graph)
    return any(
        node.kind == "MATMUL" and not computed.isdisjoint(node.read_numbers) for node in graph.nodes
    )


def behind_products(graph: GraphData) -> set[int]:
    """Return the numbers of the tensors that are computed from the result of a product."""
    computed: set[int] = set()
    for node in graph.nodes:
        if node.kind == "MATMUL" or not computed.isdisjoint(node.read_numbers):
            computed.update(node.written_numbers)
    return computed


def _in_memory(graph: GraphData, numbers: Iterable[int]) -> Iterator[TensorRecord]:
    """Yield those of the tensors that are in device memory."""
    for number in numbers:
        record = graph.tensors[number]
        if record.name and record.value is None:
            yield record


def _rules_of_normalization(graph: GraphData, node: Node) -> Iterator[Rule]:
    """Yield rules: the parameters have one type, and gradients the type of what they belong to."""
    tensors = {
        name: graph.tensors[numbers[0]] for name, numbers in (*node.reads, *node.writes) if numbers
    }
    x, scale = tensors.get("xdesc"), tensors.get("scale_desc")
    if x is None or scale is None:
        return
    yield scale, (DataType.FLOAT, x.dtype)
    for name, allowed in {
        "bias_desc": scale.dtype,
        "dscale_desc": scale.dtype,
        "dbias_desc": scale.dtype,
        "dxdesc": x.dtype,
        **dict.fromkeys(_STATISTICS, DataType.FLOAT),
    }.items():
        if name in tensors and tensors[name].name:
            yield tensors[name], (allowed,)


def _rules_of_products(graph: GraphData) -> Iterator[Rule]:
    """Yield rules: float64 goes with float64 alone, and results of floats are not integers."""
    records = (*graph.inputs.values(), *graph.outputs.values())
    first = records[0].dtype
    mixes_float64 = len({record.dtype for record in records} - set(_INTEGERS)) > 1
    for record in records:
        is_double = record.dtype == DataType.DOUBLE
        if mixes_float64 and (is_double or first == DataType.DOUBLE):
            yield record, (first,) if first == DataType.DOUBLE else _FLOATS
    for record in graph.outputs.values():
        if record.dtype in _INTEGERS and first not in _INTEGERS:
            yield record, _FLOATS


def _rules_of_attention(graph: GraphData) -> Iterator[Rule]:
    """Yield rules: matrices have one type, sums along rows are float32, a bias has either."""
    products = [node for node in graph.nodes if node.kind == "MATMUL"]
    q = graph.tensors[dict(products[0].reads)["adesc"][0]].dtype
    is_backward = len(products) > 2
    read = {number for node in graph.nodes for number in node.read_numbers}
    for node in graph.nodes:
        for name, numbers in node.reads:
            for record in _in_memory(graph, numbers):
                if name in _LENGTHS:
                    yield record, (DataType.INT32,)
                elif node.kind == "MATMUL":
                    yield record, (q,)
                elif node.kind == "RNG" and name in _SEEDS:
                    yield record, (DataType.INT32, DataType.INT64)
        for number in node.written_numbers:
            for record in _in_memory(graph, (number,)):
                is_row_sum = node.kind == "POINTWISE" and record.shape[-1] == 1
                is_sum_of_dq = node.kind == "MATMUL" and number in read
                needed = DataType.FLOAT if is_row_sum or is_sum_of_dq else q
                yield record, (needed,)
        if node.kind == "POINTWISE":
            yield from _rules_of_scores(graph, node, q, is_backward=is_backward)


def _rules_of_scores(
    graph: GraphData, node: Node, q: DataType, *, is_backward: bool
) -> Iterator[Rule]:
    """Yield rules for what a pointwise operation of an attention reads from memory."""
    mode = dict(node.attributes).get("mode", "")
    written = {number for other in graph.nodes for number in other.written_numbers}
    if mode.startswith("CMP_"):  # a mask by lengths, whose type the products demand
        return
    inputs = list(_in_memory(graph, [n for n in node.read_numbers if n not in written]))
    is_product_of_inputs = len(inputs) > 1
    for record in inputs:
        if is_product_of_inputs:  # of o and do
            yield record, (q,)
        elif is_backward and mode == "SUB":  # of the statistics
            yield record, (DataType.FLOAT,)
        elif is_backward and _has_gradient(graph, record):
            yield record, (q,)
        else:
            yield record, (q, DataType.FLOAT)


def _has_gradient(graph: GraphData, bias: TensorRecord) -> bool:
    """Whether gradients of an attention have that of the bias: sums of the scores' gradient."""
    products = {
        number for node in graph.nodes if node.kind == "MATMUL" for number in node.written_numbers
    }
    return any(
        node.kind == "REDUCTION"
        and products.isdisjoint(node.read_numbers)
        and graph.tensors[node.written_numbers[0]].shape == bias.shape
        for node in graph.nodes
    )
