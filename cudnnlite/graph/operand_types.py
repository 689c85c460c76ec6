"""Data types of operands and outputs that cuDNN takes, and then computes wrongly with.

With other types than those allowed here cuDNN 9.19 and 9.28 report success, but the numbers are
wrong, or a kernel reads beyond an operand and the CUDA context is lost, or the process ends.  An
H200 was asked (2026-11-29): one operand or output at a time had each of ten data types, in
attention and its gradients, products, normalisations and convolutions.  Of 4,073 such graphs 733
were wrong, 125 lost the context, and 28 ended the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import DataType
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.questions import (
    LENGTHS,
    has_bias_gradient,
    in_memory,
    is_attention,
    is_gradient_of_attention,
    mode_of,
    operand,
    products_of,
)
from cudnnlite.graph.records import Node, TensorRecord

_SEEDS = ("seed", "offset_desc")
_INTEGERS = (DataType.INT8, DataType.UINT8, DataType.INT32, DataType.INT64)
_FLOATS = (DataType.HALF, DataType.BFLOAT16, DataType.FLOAT)
_STATISTICS = ("mean_desc", "inv_variance_desc")
# The first operand of what multiplies, by kind.
_FACTORS = {
    "MATMUL": "adesc",
    "CONVOLUTION_FORWARD": "x",
    "CONVOLUTION_BACKWARD_DATA": "w",
    "CONVOLUTION_BACKWARD_FILTER": "x",
}


class Rule(NamedTuple):
    """The data types that a tensor in memory may have, beside another tensor.

    Attributes
    ----------
    record : TensorRecord
        The tensor.
    allowed : tuple of DataType
        Its types.
    model : TensorRecord
        The tensor whose type decides that.
    """

    record: TensorRecord
    allowed: tuple[DataType, ...]
    model: TensorRecord


def why_types_are_wrong(graph: GraphData) -> str | None:
    """Return which tensor in memory has a data type that cuDNN computes wrongly with, or None."""
    for record, allowed, model in _rules(graph):
        if record.dtype not in allowed:
            names = " or ".join(map(dtype_name, dict.fromkeys(allowed)))
            beside = model.name or "factors"
            return (
                f"{record.name} is {dtype_name(record.dtype)}; needed beside {beside} of "
                f"{dtype_name(model.dtype)}: {names}; with others cuDNN computes wrongly"
            )
    return None


def _rules(graph: GraphData) -> Iterator[Rule]:
    for node in graph.nodes:
        if node.kind in ("NORM_FORWARD", "NORM_BACKWARD"):
            yield from _rules_of_normalization(graph, node)
    if is_attention(graph):
        yield from _rules_of_attention(graph)
        return
    for node in graph.nodes:
        names = _FACTORS.get(node.kind)
        factor = operand(graph, node, names) if names else None
        if factor is not None:
            yield from _rules_of_products(graph, factor)
            return


def _rules_of_normalization(graph: GraphData, node: Node) -> Iterator[Rule]:
    """Yield rules: the parameters have one type, and gradients the type of what they belong to."""
    tensors = {
        name: graph.tensors[numbers[0]] for name, numbers in (*node.reads, *node.writes) if numbers
    }
    x, scale = tensors.get("xdesc"), tensors.get("scale_desc")
    if x is None or scale is None:
        return
    yield Rule(scale, (DataType.FLOAT, x.dtype), x)
    for name, allowed in {
        "bias_desc": scale.dtype,
        "dscale_desc": scale.dtype,
        "dbias_desc": scale.dtype,
        "dxdesc": x.dtype,
        **dict.fromkeys(_STATISTICS, DataType.FLOAT),
    }.items():
        if name in tensors and tensors[name].name:
            yield Rule(tensors[name], (allowed,), x)


def _rules_of_products(graph: GraphData, factor: TensorRecord) -> Iterator[Rule]:
    """Yield rules: float64 goes with float64 alone, and results of floats are not integers.

    `factor` is the first operand of the first product or convolution.
    """
    records = (*graph.inputs.values(), *graph.outputs.values())
    multiplies_float64 = factor.dtype == DataType.DOUBLE
    mixes_float64 = len({record.dtype for record in records} - set(_INTEGERS)) > 1
    for record in records:
        if mixes_float64 and multiplies_float64:
            yield Rule(record, (DataType.DOUBLE,), factor)
        elif mixes_float64 and record.dtype == DataType.DOUBLE:
            yield Rule(record, _FLOATS, factor)
    for record in graph.outputs.values():
        if record.dtype in _INTEGERS and factor.dtype not in _INTEGERS:
            yield Rule(record, _FLOATS, factor)
    allowed = _INTEGERS if factor.dtype in _INTEGERS else (factor.dtype,)
    if factor.dtype not in (*_INTEGERS, *_FLOATS, DataType.DOUBLE):
        return
    for node in graph.nodes:
        if node.kind in _FACTORS:
            for record in in_memory(graph, node.read_numbers):
                yield Rule(record, allowed, factor)


def _rules_of_attention(graph: GraphData) -> Iterator[Rule]:
    """Yield rules: matrices have one type, sums along rows are float32, a bias has either."""
    products = products_of(graph)
    q = operand(graph, products[0], "adesc")
    if q is None:
        return
    is_backward = is_gradient_of_attention(graph)
    read = {number for node in graph.nodes for number in node.read_numbers}
    written = {number for node in graph.nodes for number in node.written_numbers}
    for node in graph.nodes:
        for name, numbers in node.reads:
            for record in in_memory(graph, numbers):
                if name in LENGTHS:
                    yield Rule(record, (DataType.INT32,), q)
                elif node.kind == "MATMUL":
                    yield Rule(record, (q.dtype,), q)
                elif node.kind == "RNG" and name in _SEEDS:
                    yield Rule(record, (DataType.INT32, DataType.INT64), q)
        for number in node.written_numbers:
            is_sum_of_dq = node.kind == "MATMUL" and number in read
            for record in in_memory(graph, (number,)):
                is_row_sum = node.kind == "POINTWISE" and record.shape[-1] == 1
                needed = DataType.FLOAT if is_row_sum or is_sum_of_dq else q.dtype
                yield Rule(record, (needed,), q)
        if node.kind == "POINTWISE":
            inputs = in_memory(graph, [n for n in node.read_numbers if n not in written])
            for record in inputs:
                allowed = _types_of_scores(graph, node, q, inputs, is_backward=is_backward)
                yield Rule(record, allowed, q)


def _types_of_scores(
    graph: GraphData,
    node: Node,
    q: TensorRecord,
    inputs: list[TensorRecord],
    *,
    is_backward: bool,
) -> tuple[DataType, ...]:
    """Return the types that inputs of a pointwise operation of an attention may have."""
    mode = mode_of(node)
    if mode.startswith("CMP_"):  # a mask by lengths, whose type the products demand
        return tuple(DataType)
    if len(inputs) > 1:  # the product of o and do
        return (q.dtype,)
    if is_backward and mode == "SUB":  # of the statistics
        return (DataType.FLOAT,)
    if is_backward and has_bias_gradient(graph):
        return (q.dtype,)
    return (q.dtype, DataType.FLOAT)
