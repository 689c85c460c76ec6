"""What cuDNN computes wrongly of attention, as conditions of `faults.FAULTS`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cudnnlite.dtypes import itemsize
from cudnnlite.enums import DataType
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.questions import (
    LENGTHS,
    VECTOR_BYTES,
    behind_products,
    factors_of,
    has_bias_gradient,
    in_memory,
    is_gradient_of_attention,
    mode_of,
    operand,
    products_of,
)
from cudnnlite.graph.records import Shape, TensorRecord

MAX_FLOAT32_HEAD = 128  # the largest size of a head whose attention in float32 is right
_RANK = 4  # the axes of a tensor: batch, heads, steps and the size of a head
_MASK_MODES = ("GEN_INDEX", "BINARY_SELECT")
_MASK_PREFIXES = ("CMP_", "LOGICAL_")
_LENGTHS_MASK = ("GEN_INDEX", "CMP_LT", "GEN_INDEX", "CMP_LT", "LOGICAL_AND", "BINARY_SELECT")
# Masks of attention by their operations, of which ADD and SUB have the type of their result.
_RIGHT_MASKS = frozenset(
    {
        _LENGTHS_MASK,
        ("GEN_INDEX", "GEN_INDEX", "CMP_GE", "BINARY_SELECT"),  # causal
        ("GEN_INDEX", "GEN_INDEX", "ADD FLOAT", "CMP_GT", "BINARY_SELECT"),  # a window
        # causal, the diagonal ends at the last score
        ("GEN_INDEX", "GEN_INDEX", "ADD INT32", "SUB INT32", "CMP_GE", "BINARY_SELECT"),
    }
)


def why_outputs_are_unwritten(graph: GraphData) -> str | None:
    """Return why a graph of attention may not write what other operations of it read, or None.

    The engines leave such an output unwritten, and one of them computes a wrong result beside it.
    Right are the sums of rows before the products of gradients, and sums that IDENTITY alone
    reads.
    """
    computed = behind_products(graph)
    in_the_middle = None
    for node in graph.nodes:
        if mode_of(node) == "IDENTITY":
            continue
        for number in node.read_numbers:
            if number in computed and graph.tensors[number].name:
                in_the_middle = graph.tensors[number].name
    if in_the_middle is None:
        return None
    return (
        f"cuDNN leaves the output {in_the_middle} of attention unwritten, because other "
        "operations read it; compute it by a graph of its own"
    )


def why_no_softmax(graph: GraphData) -> str | None:
    """Return why a product of a product would be wrong, or None if it is a softmax's."""
    if any(mode_of(node) == "EXP" for node in graph.nodes):
        return None
    return (
        "cuDNN has engines for a product of a product as attention alone, with a softmax between "
        "them, and an engine computes others wrongly"
    )


def _factors(graph: GraphData) -> tuple[TensorRecord | None, ...]:
    """Return q, transposed k and v; None for what is missing, and for v of gradients."""
    first, *others = products_of(graph)
    has_values = bool(others) and not is_gradient_of_attention(graph)
    values = operand(graph, others[0], "bdesc") if has_values else None
    return operand(graph, first, "adesc"), operand(graph, first, "bdesc"), values


def why_heads_are_not_packed(graph: GraphData) -> str | None:
    """Return which operand or output has heads, or rows of a bias, with gaps, or None."""
    for record, axis in _heads_of_products(graph):
        if record.strides[axis] != 1:
            return why_a_head_ends_the_process(record.name, record.strides[axis])
    scores = (node for node in graph.nodes if node.kind == "POINTWISE")
    added = [record for node in scores for record in in_memory(graph, node.read_numbers)]
    for record in (*added, *graph.outputs.values()):
        if record.shape[-1] > 1 and record.strides[-1] != 1:
            return (
                f"cuDNN ends the process, or the CUDA context, where {record.name} has another "
                f"stride than 1 along its last axis; its strides are {record.strides}: give an "
                "array with packed rows"
            )
    return None


def _heads_of_products(graph: GraphData) -> Iterator[tuple[TensorRecord, int]]:
    """Yield the operands of products that are in memory, with the axis that is a head's.

    It is the last one, but for the second factor of a product of two of them: a transposed matrix.
    """
    for node in products_of(graph):
        first, second = (operand(graph, node, name) for name in ("adesc", "bdesc"))
        if first is None or second is None or min(len(first.shape), len(second.shape)) < 2:
            continue
        if first.name:
            yield first, -1
        if second.name:
            yield second, -2 if first.name else -1


def why_a_stride_is_wrong(graph: GraphData) -> str | None:
    """Return which tensor of a product has a stride between two vectors, or None.

    Kernels load and store 16 bytes at once.  If a stride other than that of the head, which
    `why_heads_are_not_packed` asks, is no multiple of that, results are wrong, or the CUDA context
    is lost.  The result of attention in float32 was right (57 calls), and is refused, too.
    """
    for record in _tensors_of_products(graph):
        elements = VECTOR_BYTES // itemsize(record.dtype)
        axes = list(zip(record.shape, record.strides, strict=True))
        is_served = any(stride == 1 < size and size % elements == 0 for size, stride in axes)
        if len(axes) != _RANK or not is_served:
            continue
        strides = [stride for size, stride in axes if size > 1]
        strides.remove(1)
        for stride in strides:
            if stride % elements:
                is_written = record.name in graph.outputs
                remedy = "" if is_written else f", such as {record.name}.copy()"
                return (
                    f"{record.name} has the stride {stride}; needed: a multiple of {elements} "
                    f"elements, which is {VECTOR_BYTES} bytes; with others cuDNN computes attention "
                    f"wrongly: give a packed array{remedy}"
                )
    return None


def _tensors_of_products(graph: GraphData) -> list[TensorRecord]:
    """Return what products read and write in memory, with o, dq and sums of gradients.

    o is multiplied by do, which a product reads, too; dq is a rounded result, and where heads of q
    share one of k, dk and dv are sums of results.
    """
    operands: set[int] = set()
    results: set[int] = set()
    for node in products_of(graph):
        operands.update(factors_of(node))
        results.update(node.written_numbers)
    for node in graph.nodes:
        if mode_of(node) == "MUL" and not operands.isdisjoint(node.read_numbers):
            operands.update(node.read_numbers)
        is_passed_on = mode_of(node) == "IDENTITY" or node.kind == "REDUCTION"
        if is_passed_on and not results.isdisjoint(node.read_numbers):
            results.update(node.written_numbers)
    return in_memory(graph, sorted(operands | results))


def why_a_head_ends_the_process(name: str, stride: int) -> str:
    """Return why the elements of a head may not have a stride other than 1.

    The heuristics read beyond their memory then.
    """
    return (
        "cuDNN ends the process where the size of a head has another stride than 1; that of "
        f"{name} has {stride}"
    )


def why_subtractions_are_missing(graph: GraphData) -> str | None:
    """Return why gradients of attention would end the process, or None.

    The heuristics do so where the scores are not reduced by the statistics, or their gradient not
    by the sums of rows.
    """
    modes = [label for label, is_mask in _labels(graph) if not is_mask]
    if not is_gradient_of_attention(graph) or modes.count("SUB") >= 2:
        return None
    return (
        "cuDNN ends the process where gradients of attention lack the subtraction of the "
        "statistics, or of the sums of rows; dnn.scaled_dot_product_attention_backward.graph has "
        "both"
    )


def _labels(graph: GraphData) -> Iterator[tuple[str, bool]]:
    """Yield the mode of each pointwise operation, and whether it belongs to a mask."""
    for node in graph.nodes:
        if node.kind != "POINTWISE":
            continue
        mode = mode_of(node)
        x = operand(graph, node, "xdesc")
        is_of_integers = x is not None and x.dtype == DataType.INT32
        result = graph.tensors[node.written_numbers[0]]
        label = f"{mode} {result.dtype.name}" if is_of_integers else mode
        yield (mode, True) if is_mask_mode(mode) else (label, is_of_integers)


def why_lengths_are_not_packed(graph: GraphData) -> str | None:
    """Return which lengths of sequences would be read as packed, or None.

    Read from a gap they are any number: results are wrong, a kernel runs without an end, or the
    CUDA context is lost.
    """
    for node in products_of(graph):
        for name in LENGTHS:
            record = operand(graph, node, name)
            if record is not None and record.shape[0] > 1 and record.strides[0] != 1:
                return (
                    f"cuDNN reads {record.name} as packed; its strides are {record.strides}: give "
                    f"a packed array, such as {record.name}.copy()"
                )
    return None


def why_heads_of_one_query_are_wrong(graph: GraphData) -> str | None:
    """Return which heads of a single query gradients of attention would take for packed, or None.

    In a batch of one: in the same strides larger batches and more queries are right.  It was seen
    of the statistics and of dq; the others are not worth the attempt.
    """
    q, _, _ = _factors(graph)
    if not is_gradient_of_attention(graph) or q is None or len(q.shape) != _RANK:
        return None
    batch, heads, queries, _ = q.shape
    if not batch == queries == 1 < heads:
        return None
    for record in (*graph.inputs.values(), *graph.outputs.values()):
        if record.shape[:-1] == q.shape[:-1] and record.strides[1] != record.shape[-1]:
            return (
                f"cuDNN takes the heads of {record.name} for packed where there is one query in a "
                f"batch of one; its strides are {record.strides}: give a packed array"
            )
    return None


def why_shared_bias_is_wrong(graph: GraphData) -> str | None:
    """Return why gradients of attention would be wrong beside a bias, or None.

    A bias of one step of queries is right in the forward pass alone.
    """
    if not is_gradient_of_attention(graph):
        return None
    for node in graph.nodes:
        if mode_of(node) != "ADD":
            continue
        scores = graph.tensors[node.written_numbers[0]]
        for number in node.read_numbers:
            bias = graph.tensors[number]
            if len(bias.shape) < 2 or len(scores.shape) < 2:
                continue
            if bias.name and bias.value is None and bias.shape[-2] != scores.shape[-2]:
                return (
                    f"{bias.name} has shape {bias.shape}; needed: {scores.shape[-2]} on axis -2, "
                    "because cuDNN computes gradients of attention wrongly beside a bias that the "
                    "steps of q share"
                )
    return None


def why_a_mask_is_wrong(graph: GraphData) -> str | None:
    """Return why the masks of a graph would be computed wrongly, or None."""
    has_lengths = all(
        not dict(node.reads).keys().isdisjoint(LENGTHS) for node in products_of(graph)
    )
    masks = [label for label, is_mask in _labels(graph) if is_mask]
    return why_masks_are_wrong(masks, has_lengths=has_lengths)


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
                f"cuDNN computes attention wrongly with the mask {', '.join(operations)}; right "
                "ones are those of Graph.causal, Graph.window and Graph.within_lengths, and any "
                "that is added as a bias"
            )
        if operations == _LENGTHS_MASK and not has_lengths:
            return (
                "cuDNN computes attention wrongly where a mask has lengths of sequences that the "
                "products lack: give Graph.matmul m_lengths, n_lengths and k_lengths"
            )
    return None


def is_mask_mode(mode: str) -> bool:
    """Whether pointwise operations of a mode compute or apply a mask."""
    return mode in _MASK_MODES or mode.startswith(_MASK_PREFIXES)


def why_float32_is_wrong(graph: GraphData) -> str | None:
    """Return why an attention in float32 would be wrong, or None."""
    queries, keys, values = _factors(graph)
    if queries is None or keys is None or values is None or values.dtype != DataType.FLOAT:
        return None
    if min(len(record.shape) for record in (queries, keys, values)) < 2:
        return None
    return why_float32_attention_is_wrong(queries.shape, keys.shape, values.shape)


def why_float32_attention_is_wrong(q: Shape, k_transposed: Shape, v: Shape) -> str | None:
    """Return why attention of these shapes in float32 would be wrong, or None.

    Heads that are too large were found by their numbers.  One query whose heads share those of the
    keys leaves some of its output unwritten.
    """
    if max(k_transposed[-2], v[-1]) > MAX_FLOAT32_HEAD:
        return (
            f"cuDNN computes attention in float32 wrongly where a head is larger than "
            f"{MAX_FLOAT32_HEAD}; float16 and bfloat16 are right"
        )
    is_grouped = len(q) == _RANK and q[1] != k_transposed[1]
    if q[-2] == 1 and is_grouped:
        return (
            "cuDNN computes attention of one query in float32 wrongly where heads of q share one "
            "of k; float16 and bfloat16 are right, and two queries are"
        )
    return None


def why_keys_are_wrong(graph: GraphData) -> str | None:
    """Return why k may not have such strides where attention has the gradient of its bias.

    The kernel that multiplies the gradient of the scores by k takes k for a packed array: of one
    step too, where the heads are no neighbours.
    """
    products = products_of(graph)
    k_transposed = operand(graph, products[0], "bdesc")
    if k_transposed is None or not is_gradient_of_attention(graph) or not has_bias_gradient(graph):
        return None
    if len(k_transposed.shape) < 2:
        return None
    size, steps = k_transposed.shape[-2:]
    axis, step = "steps", k_transposed.strides[-1]
    if steps == 1:
        axes = zip(k_transposed.shape[:-2], k_transposed.strides[:-2], strict=True)
        axis, step = "heads", min((stride for n, stride in axes if n > 1), default=size)
    if step == size:
        return None
    return (
        f"cuDNN computes the gradient dq wrongly beside that of a bias where the {axis} of "
        f"{k_transposed.name} are no neighbours in memory: they are {step} elements apart, needed: "
        f"{size}; give a packed array"
    )
