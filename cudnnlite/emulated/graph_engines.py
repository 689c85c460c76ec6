"""Emulated graphs that are a `GraphFormula`, and which of them an H100 has engines for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from cudnnlite._raw.enums import BackendNormMode, PaddingMode, PointwiseMode, ResampleMode
from cudnnlite.emulated.backend import BackendObject
from cudnnlite.emulated.fusion import (
    FusedConvolution,
    mode_of,
    spec_of,
    why_no_general_engine,
)
from cudnnlite.emulated.registry import unsupported
from cudnnlite.emulated.support import why_no_forward_engine
from cudnnlite.enums import DataType, NanPropagation, ReduceTensorOp
from cudnnlite.graph.attention_faults import (
    is_mask_mode,
    why_a_head_ends_the_process,
    why_float32_attention_is_wrong,
    why_masks_are_wrong,
)
from cudnnlite.graph.chain_faults import (
    repeats_whole_pixels_or_channels,
    why_operand_alone_is_wrong,
    why_operand_behind_convolution_is_wrong,
)
from cudnnlite.graph.layer_faults import why_parameters_are_wrong
from cudnnlite.graph.questions import LENGTHS, has_channels_last
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST, same_strides, span

# An H200 normalises 174762 x 12288 values, and refuses 175000 x 12288 and (2**24 + 8) x 128.
_MOST_NORMALIZED = 2**31 - 1
# The attributes that name what an operation writes.
_WRITES = frozenset(
    {"cdesc", "ydesc", "dxdesc", "mean_desc", "inv_variance_desc", "dscale_desc", "dbias_desc"}
    | {"sumdesc", "sqsumdesc", "y", "idxdesc"}
)
_PRODUCT = "OPERATION_MATMUL"
_READS_STATISTICS = "OPERATION_NORM_BACKWARD"
# No other mode was tried.
_NORM_MODES = (BackendNormMode.LAYER, BackendNormMode.RMS, BackendNormMode.INSTANCE)
_HALVES = (DataType.HALF, DataType.BFLOAT16)
_FLOATS = (*_HALVES, DataType.FLOAT)
_FLOAT8 = (DataType.FP8_E4M3, DataType.FP8_E5M2)
_SOFTMAX = ("REDUCE_MAX", "SUB", "EXP", "REDUCE_ADD", "LOG", "ADD", "DIV")
_DROPOUT = ("RNG", "MUL", "MUL")
_INDEX_TYPES = (DataType.INT8, DataType.INT32, DataType.INT64)
_HEAD_MULTIPLE = 8  # of which the sizes of an attention's heads have to be multiples
_MAX_HEAD_OF_GRADIENTS = 256
# The modes that an H200 served in a chain: alone, and behind a product or a convolution.  It refused
# chains with CMP_GT and BINARY_SELECT.
_IN_A_CHAIN = frozenset(
    {
        PointwiseMode.EXP,
        PointwiseMode.ERF,
        PointwiseMode.MAX,
        PointwiseMode.MIN,
        PointwiseMode.ADD,
        PointwiseMode.MUL,
        PointwiseMode.SUB,
        PointwiseMode.RELU_FWD,
        PointwiseMode.GELU_FWD,
        PointwiseMode.GELU_APPROX_TANH_FWD,
        PointwiseMode.SWISH_FWD,
        PointwiseMode.SOFTPLUS_FWD,
        PointwiseMode.SIGMOID_FWD,
        PointwiseMode.TANH_FWD,
        PointwiseMode.ELU_FWD,
    }
)
# The attributes of operations that are emulated; any other could change the result.
_ATTRIBUTES = {
    "MATMUL": (
        "adesc bdesc cdesc desc gemm_m_override_desc gemm_n_override_desc gemm_k_override_desc"
    ),
    "RNG": "ydesc seed desc offset_desc",
    "REDUCTION": "xdesc ydesc desc",
    "RESHAPE": "xdesc ydesc",
    "NORM_FORWARD": (
        "mode phase xdesc ydesc scale_desc bias_desc epsilon_desc mean_desc inv_variance_desc"
    ),
    "NORM_BACKWARD": (
        "mode xdesc dydesc scale_desc mean_desc inv_variance_desc dxdesc dscale_desc dbias_desc"
    ),
    "GEN_STATS": "mode math_prec xdesc sumdesc sqsumdesc",
    "RESAMPLE_FWD": "xdesc ydesc idxdesc desc alpha beta",
    "RESAMPLE_BWD": "dxdesc dydesc xdesc ydesc idxdesc desc alpha beta",
}
OPERATIONS = tuple(f"OPERATION_{kind}" for kind in _ATTRIBUTES)
CONFIGURATIONS = ("MATMUL", "REDUCTION", "RESAMPLE", "RNG")


class GraphFormula(NamedTuple):
    """A graph of operations that is computed one after the other.

    Attributes
    ----------
    operations : tuple of BackendObject
        The operations in their order.
    """

    operations: tuple[BackendObject, ...]

    @property
    def kinds(self) -> list[str]:
        """The kinds of its operations."""
        return [operation.kind.removeprefix("OPERATION_") for operation in self.operations]

    def tensors_of(self, operation: BackendObject) -> dict[str, BackendObject]:
        """Return the tensors of an operation, by its attributes."""
        return {
            name: values[0]
            for name, values in operation.attributes.items()
            if isinstance(values[0], BackendObject) and values[0].kind == "TENSOR"
        }

    @property
    def tensors(self) -> dict[int, BackendObject]:
        """All tensors, by their numbers."""
        return {
            tensor.value("unique_id"): tensor
            for operation in self.operations
            for tensor in self.tensors_of(operation).values()
        }

    def outputs_of(self, operation: BackendObject) -> dict[str, BackendObject]:
        """Return what an operation writes, by its attributes."""
        read = {"mean_desc", "inv_variance_desc"} if operation.kind == _READS_STATISTICS else set()
        if "dxdesc" in operation.attributes:
            read |= {"ydesc", "idxdesc"}
        return {
            name: tensor
            for name, tensor in self.tensors_of(operation).items()
            if name in _WRITES and name not in read
        }

    @property
    def masked_probabilities(self) -> tuple[BackendObject, BackendObject] | None:
        """The operation that computes the probabilities of attention's gradients, and the lengths.

        None for other graphs, and without lengths of queries.
        """
        products = [operation for operation in self.operations if operation.kind == _PRODUCT]
        is_backward = len(products) > 2
        if not is_backward or "gemm_m_override_desc" not in products[0].attributes:
            return None
        exponentials = (
            operation
            for operation in self.operations
            if operation.kind == "OPERATION_POINTWISE" and mode_of(operation) == PointwiseMode.EXP
        )
        return next(exponentials), products[0].value("gemm_m_override_desc")

    @property
    def in_memory(self) -> dict[int, BackendObject]:
        """The tensors that are in device memory, by their numbers."""
        return {
            number: tensor
            for number, tensor in self.tensors.items()
            if not tensor.value("is_virtual", False) and not tensor.value("is_by_value", False)
        }


# ---------------------------------------------------------------------- what there are engines for


def why_no_graph_engine(graph: GraphFormula) -> str | None:
    """Return why an H100 has no engine for a graph, or None if it has one.

    The rules were recorded on an H100 with cuDNN 9.19 (2026-11-26); a graph that was not tried is
    refused.  tools/record/graph_support.py records them.
    """
    counts = Counter(graph.kinds)
    memory_types = {DataType(tensor.value("data_type")) for tensor in graph.in_memory.values()}
    if memory_types.issuperset(_HALVES) and graph.kinds != ["MATMUL"]:
        return "float16 beside bfloat16, which no GPU was asked about"
    if graph.kinds[0] == "CONVOLUTION_FORWARD":
        return _why_no_convolution_epilogue(graph)
    if graph.kinds in (["RESAMPLE_FWD"], ["RESAMPLE_BWD"]):
        return _why_no_resample(graph.operations[0])
    integers = _lengths_and_seeds(graph) if counts["MATMUL"] > 1 else set()
    allowed = (*_FLOATS, *_FLOAT8) if counts["MATMUL"] == 1 else _FLOATS
    for number, tensor in graph.in_memory.items():
        if DataType(tensor.value("data_type")) not in allowed and number not in integers:
            return f"tensors of {DataType(tensor.value('data_type')).name} in memory"
    if counts["MATMUL"]:
        return _why_no_product(graph, counts)
    if [*counts] == ["POINTWISE"]:
        return _why_no_pointwise(graph)
    if len(graph.operations) > 1:
        return f"{', '.join(counts)} as one graph"
    (kind,) = counts
    if kind in ("NORM_FORWARD", "NORM_BACKWARD"):
        return _why_no_normalization(graph)
    return f"{kind} alone"


def _why_no_pointwise(graph: GraphFormula) -> str | None:
    """Return why a chain of pointwise operations alone is refused."""
    modes = [mode_of(operation) for operation in graph.operations]
    if PointwiseMode.FLOOR_MOD in modes:
        return "FLOOR_MOD, which cuDNN 9.19 does not know"
    not_in_a_chain = [mode.name for mode in modes if mode not in (*_IN_A_CHAIN, PointwiseMode.DIV)]
    if len(modes) > 1 and not_in_a_chain:
        return f"{not_in_a_chain[0]} in a chain of pointwise operations alone"
    results = [
        tensor for operation in graph.operations for tensor in graph.outputs_of(operation).values()
    ]
    shape = tuple(results[-1].attributes["dimensions"])
    for tensor in results:
        if tuple(tensor.attributes["dimensions"]) != shape:
            return "pointwise operations alone with results of several shapes"
    has_pixels = max(shape[2:], default=1) > 1
    for spec in map(spec_of, graph.in_memory.values()):
        layout = {3: "NCW", 4: "NHWC", 5: "NDHWC"}.get(spec.rank)
        if layout is None or not spec.fits(layout):
            return "pointwise operations alone, unless on packed rows, or on images in NHWC"
        if spec.rank == 3:
            reason = why_operand_alone_is_wrong(spec.shape, shape)
            if reason is not None:
                return reason
            continue
        if shape[1] == 1 and has_pixels:
            return "pointwise operations alone on images of one channel"
        if not repeats_whole_pixels_or_channels(spec.shape, shape):
            return (
                "pointwise operations alone with an operand that is neither an image nor one value "
                "for each channel, for each pixel, or for all"
            )
    return None


def _lengths_and_seeds(graph: GraphFormula) -> set[int]:
    """Return the numbers of the tensors with lengths of sequences, or with seeds of dropout."""
    numbers = set()
    for operation in graph.operations:
        is_random = operation.kind == "OPERATION_RNG"
        for name, tensor in graph.tensors_of(operation).items():
            is_seed = is_random and name != "ydesc"
            if is_seed or name in LENGTHS:
                numbers.add(tensor.value("unique_id"))
    return numbers


def _why_no_normalization(graph: GraphFormula) -> str | None:
    """Return why a normalisation, or its gradients, are refused."""
    (operation,) = graph.operations
    x = spec_of(operation.value("xdesc"))
    scale = spec_of(operation.value("scale_desc"))
    images = [
        spec_of(operation.value(name))
        for name in ("xdesc", "ydesc", "dydesc", "dxdesc")
        if name in operation.attributes
    ]
    if any(not same_strides(x.shape, x.strides, image.strides) for image in images):
        return "a normalisation of images in several layouts"
    if span(x.shape, x.strides) != x.size:
        return "a normalisation of images with gaps"
    if x.size > _MOST_NORMALIZED:
        return f"a normalisation of {x.size} values, more than {_MOST_NORMALIZED}"
    mode = BackendNormMode(operation.value("mode"))
    if mode not in _NORM_MODES:
        return f"a normalisation in mode {mode.name}"
    if mode == BackendNormMode.INSTANCE:
        is_backward = operation.kind == _READS_STATISTICS
        if is_backward and "dbias_desc" not in operation.attributes:
            return "gradients of an instance normalisation without that of its bias"
        if x.rank == 3 and scale.dtype != DataType.FLOAT:
            return "an instance normalisation of three axes with parameters that are not float32"
    elif not _is_innermost(scale, x):
        return "a normalisation over other axes than the innermost of x"
    return _why_no_parameters(operation, x)


def _is_innermost(parameters: TensorSpec, x: TensorSpec) -> bool:
    """Return whether the axes that have parameters are the innermost of x in memory."""
    axes = sorted(
        (axis for axis, size in enumerate(x.shape) if size > 1), key=lambda axis: -x.strides[axis]
    )
    has_parameters = [parameters.shape[axis] > 1 for axis in axes]
    return has_parameters == sorted(has_parameters)


def _why_no_parameters(operation: BackendObject, x: TensorSpec) -> str | None:
    """Return why parameters are refused: cuDNN takes them in the order of x."""
    for name in ("scale_desc", "bias_desc", "dscale_desc", "dbias_desc"):
        if name in operation.attributes:
            parameters = spec_of(operation.value(name))
            reason = why_parameters_are_wrong(
                name.removesuffix("_desc"), x.strides, parameters.shape, parameters.strides
            )
            if reason is not None:
                return reason
    return None


def _why_no_resample(operation: BackendObject) -> str | None:
    """Return why a pooling is refused: no engine was named, or the numbers were wrong.

    Images of four axes were recorded on an H100.  For those of five the planner of cuDNN 9.28 has
    engines in the same layouts and types.
    """
    steps = operation.value("desc")
    mode = ResampleMode(steps.value("mode"))
    is_largest = mode == ResampleMode.MAXPOOL
    needed_padding = PaddingMode.NEG_INF if is_largest else PaddingMode.ZERO
    padding_mode = PaddingMode(steps.value("padding_mode", PaddingMode.ZERO))
    if padding_mode != needed_padding:
        return f"{mode.name} with {padding_mode.name} in its padding"
    if steps.value("nan_propagation") == NanPropagation.NOT_PROPAGATE:
        return "a pooling that loses NaN, which no GPU was asked about"
    specs = {
        name: spec_of(tensor)
        for name, tensor in GraphFormula((operation,)).tensors_of(operation).items()
    }
    indices = specs.pop("idxdesc", None)
    # Images of dy may have one pixel, in which both layouts are the same.
    x = specs["xdesc"] if "xdesc" in specs else specs["dxdesc"]
    if x.rank not in (4, 5):
        return "a pooling of other than four or five axes"
    is_channels_last = has_channels_last(x.shape, x.strides)
    layout = (CHANNELS_LAST if is_channels_last else CHANNELS_FIRST)[x.rank]
    if x.dtype not in (*_FLOATS, DataType.DOUBLE):
        return f"a pooling of {x.dtype.name}"
    is_alike = all(spec.dtype == x.dtype and spec.fits(layout) for spec in specs.values())
    if not is_alike:
        return "a pooling of several layouts or types, or with gaps"
    if is_channels_last and x.dtype == DataType.DOUBLE:
        return "a pooling of float64 with channels last"
    is_forward = operation.kind == "OPERATION_RESAMPLE_FWD"
    if is_forward and is_channels_last and x.dtype == DataType.BFLOAT16:
        return "a pooling of bfloat16 with channels last, which cuDNN 9.19 computes wrongly"
    pads = zip(steps.attributes["pre_paddings"], steps.attributes["post_paddings"], strict=True)
    has_more_behind = any(behind > before for before, behind in pads)
    counts_padding = mode == ResampleMode.AVGPOOL_INCLUDE_PADDING
    if counts_padding and has_more_behind and not is_channels_last:
        return "an average over padding behind an axis, which cuDNN 9.19 computes wrongly"
    if indices is not None:
        return _why_no_indices(indices, is_largest=is_largest, is_channels_last=is_channels_last)
    if operation.kind == "OPERATION_RESAMPLE_BWD":
        return _why_no_resample_backward(
            specs, is_largest=is_largest, is_channels_last=is_channels_last
        )
    return None


def _why_no_indices(indices: TensorSpec, *, is_largest: bool, is_channels_last: bool) -> str | None:
    """Return why the places of maxima are refused: a GPU left them unwritten, or was not asked."""
    if not is_largest:
        return "indices of averages"
    if indices.rank != 4:
        return "indices of maxima of other than four axes"
    if not is_channels_last:
        return "indices of maxima with channels first, which cuDNN 9.19 does not write"
    if indices.dtype not in _INDEX_TYPES or not indices.fits("NHWC"):
        return "indices of maxima that are no integers in the layout of the result"
    return None


def _why_no_resample_backward(
    specs: Mapping[str, TensorSpec], *, is_largest: bool, is_channels_last: bool
) -> str | None:
    """Return why gradients of a pooling without indices are refused."""
    if is_channels_last and is_largest:
        return "gradients of maxima with channels last, without their indices"
    if not is_channels_last and not {"xdesc", "ydesc"} <= specs.keys():
        return "gradients of a pooling with channels first, without its input and its result"
    return None


def _why_no_product(graph: GraphFormula, counts: Counter[str]) -> str | None:
    if not set(counts) <= {"MATMUL", "POINTWISE", "REDUCTION", "RESHAPE", "RNG"}:
        return "a product beside operations that are neither pointwise nor reductions"
    if counts["MATMUL"] == 1:
        return _why_no_epilogue(graph)
    if counts["MATMUL"] == 2:
        return _why_no_attention(graph)
    return _why_no_attention_backward(graph)


def _why_no_epilogue(graph: GraphFormula) -> str | None:
    """Return why no engine has such operations before, or behind, one product."""
    first, *others = graph.operations
    if others and _is_prologue(first, others[0]):
        first, *others = others
    if first.kind != _PRODUCT:
        return "operations before a product"
    if len(first.value("adesc").attributes["dimensions"]) != 3:
        return "a product of other than three axes"
    reason = _why_no_types(graph, first) or _why_no_outputs(graph, first)
    if reason is not None:
        return reason
    if others and others[-1].kind == "OPERATION_REDUCTION":
        reduction = others.pop()
        x, y = (spec_of(reduction.value(name)) for name in ("xdesc", "ydesc"))
        if any(size not in (1, whole) for size, whole in zip(y.shape, x.shape, strict=True)):
            return "a reduction to groups behind one product"
        if y.dtype != DataType.FLOAT:
            return f"a reduction to {y.dtype.name} behind one product"
    for operation in others:
        if operation.kind != "OPERATION_POINTWISE":
            return "operations behind a product that are not pointwise"
        if mode_of(operation) not in _IN_A_CHAIN:
            return f"{mode_of(operation).name} behind a product"
    return None


def _why_no_outputs(graph: GraphFormula, product: BackendObject) -> str | None:
    """Return why a graph with a product has no engine for its outputs, as an H200 answered."""
    before, last = graph.operations[0], graph.operations[-1]
    outputs = [
        tensor
        for operation in graph.operations
        for tensor in graph.outputs_of(operation).values()
        if not tensor.value("is_virtual", False)
    ]
    if before is product or len(outputs) == 1:
        return None
    if product.value("adesc") in outputs:
        return "an output of an operation before a product"
    if last.kind == "OPERATION_REDUCTION":
        return "further outputs beside a reduction and a prologue, which no GPU was asked about"
    return None


def _why_no_types(graph: GraphFormula, product: BackendObject) -> str | None:
    """Return why a product has no engine for the types in memory, as an H100 answered.

    `tools/record/layer_graphs.py` asked it, as "products".
    """
    operands = [product.value(name) for name in ("adesc", "bdesc")]
    a, b = map(spec_of, operands)
    are_float8 = a.dtype in _FLOAT8 and b.dtype in _FLOAT8
    if a.dtype != b.dtype and not are_float8:
        return f"a product of {a.dtype.name} and {b.dtype.name}"
    may_be_float8 = [*operands, *graph.outputs_of(graph.operations[-1]).values()]
    numbers = {tensor.value("unique_id") for tensor in may_be_float8}
    for number, tensor in graph.in_memory.items():
        spec = spec_of(tensor)
        is_bias = spec.dtype == a.dtype == b.dtype and spec.size == spec.shape[-1]
        if spec.dtype in _FLOAT8 and number not in numbers and not is_bias:
            return "an operand of float8 behind a product that is no bias of its operands' type"
    return None


def _is_prologue(operation: BackendObject, product: BackendObject) -> bool:
    """Return whether an operation before a product is one that was served: ReLU of its a."""
    if operation.kind != "OPERATION_POINTWISE" or product.kind != _PRODUCT:
        return False
    x, y = operation.value("xdesc"), operation.value("ydesc")
    return (
        mode_of(operation) == PointwiseMode.RELU_FWD
        and y is product.value("adesc")
        and x.value("data_type") == y.value("data_type")
    )


def _why_no_convolution_epilogue(graph: GraphFormula) -> str | None:
    """Return why no engine has such operations behind a convolution.

    A GPU was asked about the chains that `fusion` knows.  These are served where those of swish
    are, if an H100 had an engine with the same operations behind a product of matrices.
    """
    first, *others = graph.operations
    problem = FusedConvolution(
        first.content.x,
        first.content.w,
        first.content.conv,
        first.content.alpha,
        first.content.beta,
        others,
    )
    x, y = problem.x, problem.y
    reason = why_no_forward_engine(
        x, problem.w, problem.conv, x.packed(y.shape, x.dtype), is_fused=True
    )
    if reason is None:
        reason = why_no_general_engine(problem, uses_tensor_cores=True)
    if reason is not None:
        return reason
    for operation in others:
        if mode_of(operation) not in _IN_A_CHAIN:
            return f"{mode_of(operation).name} behind a convolution"
        if DataType(operation.value("pw_descriptor").value("math_prec")) != DataType.FLOAT:
            return "operations behind a convolution that are not computed in float32"
        if operation.value("alpha1", 1.0) != 1.0 or operation.value("alpha2", 1.0) != 1.0:
            return "scalars of operations behind a convolution"
    return _why_no_operands(graph, problem)


def _why_no_operands(graph: GraphFormula, problem: FusedConvolution) -> str | None:
    """Return why tensors behind a convolution are refused."""
    y = problem.y
    layout = CHANNELS_LAST[y.rank]
    results = {
        tensor.value("unique_id")
        for operation in graph.operations
        for tensor in graph.outputs_of(operation).values()
    }
    read_by_convolution = set(graph.operations[0].content.uids.values()) - results
    for number, tensor in graph.tensors.items():
        is_in_memory = number in graph.in_memory
        dtype = DataType(tensor.value("data_type"))
        allowed = [problem.x.dtype if is_in_memory else DataType.FLOAT]
        if is_in_memory and number in results:
            allowed.append(DataType.FLOAT)
        if dtype not in allowed:
            return f"a tensor of {dtype.name} behind a convolution of {problem.x.dtype.name}"
        if not is_in_memory or number in read_by_convolution:
            continue
        spec = spec_of(tensor)
        if not spec.fits(layout):
            return "a tensor behind a convolution without channels last"
        if number not in results and spec.rank == y.rank:
            reason = why_operand_behind_convolution_is_wrong(spec.shape, y.shape)
            if reason is not None:
                return reason
    return None


def _why_no_attention(graph: GraphFormula) -> str | None:
    """Return why two products are no attention with its statistics."""
    first, *behind = [label for label, is_mask in _labels(graph) if not is_mask]
    has_dropout = "RNG" in behind
    end = (*_SOFTMAX, *(_DROPOUT if has_dropout else ()), "MATMUL")
    is_softmax = tuple(behind[-len(end) :]) == end
    between = behind[: -len(end)]
    is_pointwise = not {"MATMUL", "RESHAPE", "RNG"}.intersection(between) and not any(
        label.startswith("REDUCE_") for label in between
    )
    if first != "MATMUL" or not is_softmax or not is_pointwise:
        return "two products without a softmax and its statistics between them"
    queries, keys = (spec_of(graph.operations[0].value(name)) for name in ("adesc", "bdesc"))
    values = spec_of(graph.operations[-1].value("bdesc"))
    reason = (
        _why_no_heads((queries.shape[-1], values.shape[-1]))
        or _why_no_packed_heads(q=queries.strides[-1], k=keys.strides[-2], v=values.strides[-1])
        or _why_no_masks(graph)
    )
    if reason is not None or values.dtype != DataType.FLOAT:
        return reason
    if has_dropout:
        return "dropout in an attention of float32"
    return why_float32_attention_is_wrong(queries.shape, keys.shape, values.shape)


def _why_no_attention_backward(graph: GraphFormula) -> str | None:
    """Return why more than two products are no gradients of attention."""
    labels = [label for label, is_mask in _labels(graph) if not is_mask]
    if labels not in [
        _attention_backward(bias, has_dropout, is_grouped)
        for bias in ("none", "added", "differentiated")
        for has_dropout in (False, True)
        for is_grouped in (False, True)
    ]:
        return f"{labels.count('MATMUL')} products that are no gradients of attention"
    memory_types = {DataType(tensor.value("data_type")) for tensor in graph.in_memory.values()}
    if not memory_types & set(_HALVES):
        return "gradients of attention in float32"
    scores, dv, *_ = (operation for operation in graph.operations if operation.kind == _PRODUCT)
    sizes = [spec_of(scores.value("adesc")).shape[-1], spec_of(dv.value("bdesc")).shape[-1]]
    if max(sizes) > _MAX_HEAD_OF_GRADIENTS:
        return f"gradients of attention with heads larger than {_MAX_HEAD_OF_GRADIENTS}"
    return _why_no_heads(sizes) or _why_no_masks(graph)


def _why_no_heads(sizes: Iterable[int]) -> str | None:
    """Return why heads of such sizes are refused."""
    if any(size % _HEAD_MULTIPLE for size in sizes):
        return f"heads whose size is no multiple of {_HEAD_MULTIPLE}"
    return None


def _attention_backward(bias: str, has_dropout: bool, is_grouped: bool) -> list[str]:
    """Return the operations of the gradients of an attention, without its masks.

    `bias` is "none", "added", or "differentiated": then it has its own gradient, and dq has no
    float32 sums.
    """
    addition = () if bias == "none" else ("ADD",)
    bias_gradient = ("REDUCE_ADD",) if bias == "differentiated" else ()
    rounding = () if bias == "differentiated" else ("IDENTITY",)
    drop = _DROPOUT if has_dropout else ()
    factor = ("MUL",) if has_dropout else ()
    sum_of_heads = ("REDUCE_ADD",) if is_grouped else ()
    return [
        *("MUL", "REDUCE_ADD", "MUL", "MATMUL", "MUL", *addition, "SUB", "EXP", *drop),
        *("RESHAPE", "MATMUL", *sum_of_heads),
        *("MATMUL", *factor, "SUB", "MUL", *factor, *bias_gradient),
        *("MUL", "RESHAPE", "MATMUL", *sum_of_heads),
        *("RESHAPE", "MATMUL", *rounding),
    ]


def _why_no_packed_heads(**strides: int) -> str | None:
    for name, stride in strides.items():
        if stride != 1:
            return why_a_head_ends_the_process(name, stride)
    return None


def _why_no_masks(graph: GraphFormula) -> str | None:
    masks = [label for label, is_mask in _labels(graph) if is_mask]
    products = [operation for operation in graph.operations if operation.kind == _PRODUCT]
    has_lengths = all(not operation.attributes.keys().isdisjoint(LENGTHS) for operation in products)
    return why_masks_are_wrong(masks, has_lengths=has_lengths)


def _labels(graph: GraphFormula) -> Iterator[tuple[str, bool]]:
    """Yield each operation's name, and whether it belongs to a mask.

    Pointwise operations have the name of their mode, reductions that of their operator.
    """
    for operation in graph.operations:
        label = operation.kind.removeprefix("OPERATION_")
        if label == "REDUCTION":
            label = f"REDUCE_{ReduceTensorOp(operation.value('desc').value('operator')).name}"
        if label != "POINTWISE":
            yield label, False
            continue
        mode = mode_of(operation).name
        dtype = DataType(operation.value("xdesc").value("data_type"))
        if is_mask_mode(mode):
            yield mode, True
        elif dtype == DataType.INT32:
            result = DataType(operation.value("ydesc").value("data_type"))
            yield f"{mode} {result.name}", True
        else:
            yield mode, False


# --------------------------------------------------------------------------------- descriptors


def check_operation(operation: BackendObject) -> None:
    """Refuse an operation with an attribute that is not emulated."""
    allowed = _ATTRIBUTES[operation.kind.removeprefix("OPERATION_")].split()
    unknown = sorted(operation.attributes.keys() - set(allowed))
    if unknown:
        raise unsupported(f"{operation.kind} with {', '.join(unknown)} is not emulated")
    if operation.value("alpha", 1.0) != 1.0 or operation.value("beta", 0.0) != 0.0:
        raise unsupported(f"{operation.kind} with alpha or beta is not emulated")
