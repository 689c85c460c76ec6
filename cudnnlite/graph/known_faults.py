"""Graphs that cuDNN computes wrongly, less precisely than claimed, or by ending the process.

Found on an H100 (2026-11-26) and an H200 (2026-11-29), with cuDNN 9.19 if no other version is
named.  Such graphs are refused, and such engines are not used, because the library reports success.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from operator import gt
from typing import NamedTuple

from cudnnlite.dtypes import numpy_dtype
from cudnnlite.enums import DataType
from cudnnlite.graph.chain_faults import (
    BUILT_IN_ENGINE,
    why_chain_is_wrong,
    why_epilogue_is_wrong,
    why_outputs_of_attention_are_wrong,
)
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.operand_strides import why_images_are_wrong, why_strides_are_wrong
from cudnnlite.graph.operand_types import why_types_are_wrong
from cudnnlite.graph.questions import (
    has_channels_last,
    is_attention,
    operand,
    products_of,
    result,
)
from cudnnlite.graph.records import Node, Shape
from cudnnlite.specs.layout import CHANNELS_FIRST, same_strides

_COUNT_PADDING = ("AVGPOOL", "AVGPOOL_INCLUDE_PADDING")  # two names of one mode
MAX_FLOAT32_HEAD = 128  # the largest size of a head whose attention in float32 is right
# By gradient: the engines that take the padding at the start of an axis for that at both ends.
# Engine 6 wrote two columns of an image of one (90:27645), and was right in wider ones.
_ENGINES_OF_EVEN_PADDING: Mapping[str, tuple[int, ...]] = {
    "CONVOLUTION_BACKWARD_FILTER": (1, 18, 20),
    "CONVOLUTION_BACKWARD_DATA": (6, 50),
}
# For each gradient, the engine that reads unwritten scratch memory.  It does if channels are first
# and the size of an image of dy is not a multiple of `_WRITTEN_BYTES`.
_ENGINES_OF_UNWRITTEN_MEMORY = {
    "CONVOLUTION_BACKWARD_FILTER": 70,
    "CONVOLUTION_BACKWARD_DATA": 78,
}
_WRITTEN_BYTES = 16
# Gradients of filters: 100,000 times alpha = 0.5 was infinite in each of 16 problems with these
# engines, and 50,000 with all others, and all of `convolution_forward` and
# `convolution_backward_data` (H200, cuDNN 9.19, 2026-11-29).
_ENGINES_THAT_ROUND_BEFORE_ALPHA = (37, 39)
# The engine that is wrong if a product of float32 is stored as another type
# (`tools/record/layer_graphs.py`, "products").
_ENGINE_OF_FLOAT32_RESULTS = 0


class EngineFault(NamedTuple):
    """What engines of some versions of cuDNN compute wrongly; another engine is taken.

    Attributes
    ----------
    kind, mode : str
        The operation, and its attribute `mode`.
    engines : frozenset of int
        The engines by their numbers.
    since : int
        The first version, as `cudnnGetVersion` returns it, that is taken to have the fault.
    why : str
        The reason, for messages.
    """

    kind: str
    mode: str
    engines: frozenset[int]
    since: int
    why: str


_ENGINE_FAULTS = (
    # Measured on an H200: 9.28.0 has the fault, 9.19.0 has not, and nobody asked the versions
    # between.  With float32 rows of 100 + 0.01 * noise up to 197 of 300 rows were NaN, the others
    # off by up to 0.84 in relative L2; engine 1, which every such graph has, by 0.005.
    EngineFault(
        "NORM_FORWARD",
        "LAYER",
        frozenset({3, 4, 5, 6}),
        92000,
        "it computes NaN or a wrong variance of rows whose deviation is small beside their mean",
    ),
    # It adds the sums of each image up on the default stream: all 26 plans were wrong on another
    # stream that was busy, where there was more than one image, and right on the default stream
    # (H200, cuDNN 9.19, 2026-11-29).  Wherever it serves, engine 2 does, and is right.
    EngineFault(
        "NORM_BACKWARD",
        "INSTANCE",
        frozenset({0}),
        0,
        "it computes dscale and dbias on the default stream, whatever stream the handle has",
    ),
)
_MASK_MODES = ("GEN_INDEX", "BINARY_SELECT")
_MASK_PREFIXES = ("CMP_", "LOGICAL_")
_LENGTHS_MASK = ("GEN_INDEX", "CMP_LT", "GEN_INDEX", "CMP_LT", "LOGICAL_AND", "BINARY_SELECT")
# Masks of attention by their operations, of which ADD and SUB have the type of their result.
_RIGHT_MASKS = frozenset(
    {
        _LENGTHS_MASK,
        ("GEN_INDEX", "GEN_INDEX", "CMP_GE", "BINARY_SELECT"),  # causal
        ("GEN_INDEX", "GEN_INDEX", "ADD FLOAT", "CMP_GT", "BINARY_SELECT"),  # a window
        # causal, up to the last step of keys instead of the first
        (*("GEN_INDEX", "GEN_INDEX", "ADD INT32", "SUB INT32", "CMP_GE", "BINARY_SELECT"),),
    }
)


def why_wrong(graph: GraphData) -> str | None:
    """Return why the numbers of a graph would be wrong, or None if no fault is known."""
    for node in graph.nodes:
        fault = None
        if node.kind in ("RESAMPLE_FWD", "RESAMPLE_BWD"):
            fault = _why_pooling_is_wrong(graph, node)
        elif node.kind in ("NORM_FORWARD", "NORM_BACKWARD"):
            fault = _why_normalization_is_wrong(graph, node)
        if fault is not None:
            return fault
    if not is_attention(graph):
        return (
            why_chain_is_wrong(graph) or why_types_are_wrong(graph) or why_strides_are_wrong(graph)
        )
    return (
        why_outputs_of_attention_are_wrong(graph)
        or why_types_are_wrong(graph)
        or _why_attention_is_wrong(graph)
        or why_strides_are_wrong(graph)
    )


def why_engine_is_wrong(engine: int, graph: GraphData, version: int) -> str | None:
    """Return why the numbers of an engine would be wrong for a graph, or None.

    `version` is that of the cuDNN that has the engine.  The faults of convolutions' gradients were
    found by a sweep over the engines of cuDNN 9.19, from outputs and scratch memory that were filled
    before (`tools/record/gradient_engines.py`).
    """
    for known in _ENGINE_FAULTS:
        if engine in known.engines and version >= known.since and _has_operation(graph, known):
            return known.why
    if engine == _ENGINE_OF_FLOAT32_RESULTS and _narrows_float32_product(graph):
        return "it writes no numbers where a product of float32 has a result of another type"
    fault = why_epilogue_is_wrong(engine, graph)
    if fault is not None:
        return fault
    for node in graph.nodes:
        dy = operand(graph, node, "dy") if node.kind in _ENGINES_OF_EVEN_PADDING else None
        if dy is None:
            continue
        before, behind = _paddings(node)
        if engine in _ENGINES_OF_EVEN_PADDING[node.kind] and before != behind:
            return "it computes a wrong gradient where padding differs at the two ends of an axis"
        reads_unwritten = engine == _ENGINES_OF_UNWRITTEN_MEMORY[node.kind]
        image_nbytes = prod(dy.shape[2:]) * numpy_dtype(dy.dtype).itemsize
        if reads_unwritten and not dy.spec.is_channels_last and image_nbytes % _WRITTEN_BYTES:
            return (
                "it computes a wrong gradient with channels first where an image of dy takes "
                f"{image_nbytes} bytes, no multiple of {_WRITTEN_BYTES}"
            )
    if engine in _ENGINES_THAT_ROUND_BEFORE_ALPHA and _scales_gradient_down(graph):
        return (
            "it rounds the gradient to float16, where large values become infinite, before it "
            "multiplies by alpha"
        )
    if engine != BUILT_IN_ENGINE:
        return why_images_are_wrong(graph)
    return None


def _scales_gradient_down(graph: GraphData) -> bool:
    """Whether a gradient of filters in float16 is multiplied by an alpha below 1."""
    for node in graph.nodes:
        dw = result(graph, node, "dw") if node.kind == "CONVOLUTION_BACKWARD_FILTER" else None
        if dw is not None and dw.dtype == DataType.HALF:
            alpha: float = dict(node.attributes).get("alpha", 1.0)
            return abs(alpha) < 1
    return False


def _has_operation(graph: GraphData, fault: EngineFault) -> bool:
    """Whether a graph has the operation that a fault is about."""
    return any(
        node.kind == fault.kind and dict(node.attributes).get("mode") == fault.mode
        for node in graph.nodes
    )


def _narrows_float32_product(graph: GraphData) -> bool:
    """Whether a graph with a product of float32 matrices has a result of another type.

    The fault was seen where nothing is behind the product; with more behind it nobody asked.
    """
    has_narrow_result = any(y.dtype != DataType.FLOAT for y in graph.outputs.values())
    return has_narrow_result and multiplies_in_tf32(graph)


# --------------------------------------------------------------------------------- attention


def _why_attention_is_wrong(graph: GraphData) -> str | None:
    products = products_of(graph)
    exponentials = [node for node in graph.nodes if dict(node.attributes).get("mode") == "EXP"]
    if not exponentials:
        return (
            "cuDNN has engines for a product of a product as attention alone, with a softmax "
            "between them, and an engine of 9.19 and 9.28 computes others wrongly"
        )
    first, second = products[:2]
    queries, keys = (operand(graph, first, name) for name in ("adesc", "bdesc"))
    values = operand(graph, second, "bdesc") if len(products) == 2 else None
    if queries is None or keys is None:
        return None
    fault = why_strides_end_the_process(
        queries.strides, keys.strides, None if values is None else values.strides
    )
    if fault is None and len(products) > 2:
        fault = _why_shared_bias_is_wrong(graph)
    if fault is None:
        has_lengths = all(len(dict(node.reads)) > 2 for node in products)
        fault = why_masks_are_wrong(list(_mask_labels(graph)), has_lengths=has_lengths)
    if fault is None and values is not None and values.dtype == DataType.FLOAT:
        fault = why_float32_attention_is_wrong(queries.shape, keys.shape, values.shape)
    return fault


def _why_shared_bias_is_wrong(graph: GraphData) -> str | None:
    """Return why gradients of attention would be wrong beside a bias, or None.

    A bias of one step of queries is right in the forward pass alone (H200, 2026-11-29).
    """
    for node in graph.nodes:
        if dict(node.attributes).get("mode") != "ADD":
            continue
        scores = graph.tensors[node.written_numbers[0]]
        for number in node.read_numbers:
            bias = graph.tensors[number]
            if bias.name and bias.value is None and bias.shape[-2] != scores.shape[-2]:
                return (
                    f"{bias.name} has shape {bias.shape}; needed: {scores.shape[-2]} on axis -2, "
                    "because cuDNN 9.19 computes gradients of attention wrongly beside a bias that "
                    "the steps of q share"
                )
    return None


def why_strides_end_the_process(q: Shape, k_transposed: Shape, v: Shape | None) -> str | None:
    """Return why a graph of attention may not have such strides, or None.

    The heuristics of cuDNN 9.19 read beyond their memory where a head is not packed.
    """
    packed = {"q": q[-1], "k": k_transposed[-2], "v": 1 if v is None else v[-1]}
    for name, step in packed.items():
        if step != 1:
            return (
                f"cuDNN 9.19 ends the process where the size of a head has another stride than 1; "
                f"that of {name} has {step}"
            )
    return None


def why_masks_are_wrong(labels: Sequence[str], *, has_lengths: bool) -> str | None:
    """Return why the masks of an attention would be computed wrongly, or None.

    Parameters
    ----------
    labels : sequence of str
        The operations of all masks in order, as `_RIGHT_MASKS` has them.
    has_lengths : bool
        Whether the products take lengths of sequences.
    """
    mask: list[str] = []
    for label in labels:
        mask.append(label)
        if label != "BINARY_SELECT":
            continue
        operations, mask = tuple(mask), []
        if "GEN_INDEX" not in operations:
            continue
        if operations not in _RIGHT_MASKS:
            return (
                f"cuDNN 9.19 computes attention wrongly with the mask {', '.join(operations)}; "
                "right ones are those of Graph.causal, Graph.window and Graph.within_lengths, and "
                "any that is added as a bias"
            )
        if operations == _LENGTHS_MASK and not has_lengths:
            return (
                "cuDNN 9.19 computes attention wrongly where a mask has lengths of sequences that "
                "the products lack: give Graph.matmul m_lengths, n_lengths and k_lengths"
            )
    return None


def is_mask_mode(mode: str) -> bool:
    """Whether pointwise operations of a mode compute or apply a mask."""
    return mode in _MASK_MODES or mode.startswith(_MASK_PREFIXES)


def _mask_labels(graph: GraphData) -> Iterator[str]:
    """Yield the operations that compute and apply masks."""
    for node in graph.nodes:
        mode = dict(node.attributes).get("mode", "")
        x = operand(graph, node, "xdesc")
        if node.kind != "POINTWISE" or x is None:
            continue
        if is_mask_mode(mode):
            yield mode
        elif x.dtype == DataType.INT32:
            result = graph.tensors[node.written_numbers[0]]
            yield f"{mode} {result.dtype.name}"


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


# ---------------------------------------------------------------------------------- the others


def multiplies_in_tf32(graph: GraphData) -> bool:
    """Whether a graph has a product of float32 matrices.

    An engine without the numerical note of tensor cores had the same relative error as the others,
    7e-4: none multiplies in full precision.
    """
    operands = [
        operand(graph, node, name)
        for node in graph.nodes
        if node.kind == "MATMUL"
        for name in ("adesc", "bdesc")
    ]
    return any(record is not None and record.dtype == DataType.FLOAT for record in operands)


def _paddings(node: Node) -> tuple[Shape, Shape]:
    """Return the padding before and behind each spatial axis."""
    attributes = dict(node.attributes)
    return tuple(attributes.get("pre_paddings", ())), tuple(attributes.get("post_paddings", ()))


def _why_pooling_is_wrong(graph: GraphData, node: Node) -> str | None:
    x = operand(graph, node, "xdesc") or result(graph, node, "dxdesc")
    if x is None or len(x.shape) < 3:
        return None
    is_channels_last = has_channels_last(x.shape, x.strides)
    if "idxdesc" in dict(node.writes) and not is_channels_last:
        return "cuDNN 9.19 writes no indices of maxima with channels first; give channels last"
    attributes = dict(node.attributes)
    reads_maxima = attributes.get("mode") == "MAXPOOL" and "xdesc" in dict(node.reads)
    if node.kind == "RESAMPLE_BWD" and is_channels_last and reads_maxima:
        return (
            "cuDNN 9.19 ends the process when it is asked for gradients of maxima with channels "
            "last; give channels first"
        )
    dx = result(graph, node, "dxdesc")
    if dx is not None and reads_maxima and not same_strides(x.shape, x.strides, dx.strides):
        return (
            "cuDNN 9.19 writes gradients of maxima as if their strides were those of x; give both in "
            "the same strides"
        )
    if node.kind == "RESAMPLE_BWD" and reads_maxima:
        for name in ("ydesc", "dydesc"):
            record = operand(graph, node, name)
            if record is not None and not record.spec.fits(CHANNELS_FIRST.get(len(x.shape))):
                return (
                    f"cuDNN 9.19 reads {record.name} as packed with channels first in gradients of "
                    f"maxima; its strides are {record.strides}: give a packed array"
                )
    before, behind = _paddings(node)
    has_more_behind = any(map(gt, behind, before))
    averages_over_more = attributes.get("mode") in _COUNT_PADDING and has_more_behind
    is_forward_of_bfloat16 = node.kind == "RESAMPLE_FWD" and x.dtype == DataType.BFLOAT16
    if is_forward_of_bfloat16 and is_channels_last:
        advice = "float16 or float32" if averages_over_more else "channels first"
        return f"cuDNN 9.19 pools bfloat16 with channels last wrongly; give {advice}"
    if averages_over_more and not is_channels_last:
        # cuDNN has no engine for float64 with channels last.
        advice = "channels last"
        if is_forward_of_bfloat16 or x.dtype == DataType.DOUBLE:
            advice = "float32 with channels last"
        return (
            "cuDNN 9.19 averages over padding wrongly with channels first where there is more "
            f"padding behind an axis than before it; give {advice}"
        )
    return None


def _why_normalization_is_wrong(graph: GraphData, node: Node) -> str | None:
    x = operand(graph, node, "xdesc")
    if x is None:
        return None
    for name, numbers in (*node.reads, *node.writes):
        if name in ("scale_desc", "bias_desc", "dscale_desc", "dbias_desc"):
            parameters = graph.tensors[numbers[0]]
            fault = why_parameters_are_wrong(
                name.removesuffix("_desc"), x.strides, parameters.shape, parameters.strides
            )
            if fault is not None:
                return fault
    return None


def why_parameters_are_wrong(
    name: str, x_strides: Shape, shape: Shape, strides: Shape
) -> str | None:
    """Return why parameters of a normalisation would be read, or written, in a wrong order.

    cuDNN 9.19 takes them in the order in which x lies in memory, whatever strides they have.
    """
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    in_memory = sorted(axes, key=lambda axis: -x_strides[axis])
    if sorted(axes, key=lambda axis: -strides[axis]) != in_memory:
        return (
            f"cuDNN 9.19 takes {name} in the order in which x lies in memory, axes {in_memory}; "
            f"its strides are {strides}: give it the layout of x"
        )
    return None
