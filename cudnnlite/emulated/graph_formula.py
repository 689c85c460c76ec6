"""Emulated operation graphs of any operations: what an H200 has engines for, and their values in NumPy."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cudnnlite._raw.attributes import ATTRIBUTES
from cudnnlite._raw.enums import (
    BackendNormMode,
    PaddingMode,
    PointwiseMode,
    ResampleMode,
)
from cudnnlite.devices.storage import read_values, write_values
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated.backend import BackendObject
from cudnnlite.emulated.fusion import spec_of
from cudnnlite.emulated.memory import Bytes
from cudnnlite.emulated.precision import round_tf32, to_output, wide_dtype
from cudnnlite.emulated.registry import EmulationState, bad, check_aligned
from cudnnlite.enums import DataType, ReduceTensorOp
from cudnnlite.graph.known_faults import why_float32_attention_is_wrong
from cudnnlite.specs import TensorSpec

Array = np.ndarray[Any, Any]
_ALIGNMENT = 16  # of every tensor in memory
# The attributes that name what an operation writes.
_WRITES = frozenset(
    {"cdesc", "ydesc", "dxdesc", "mean_desc", "inv_variance_desc", "dscale_desc", "dbias_desc"}
    | {"sumdesc", "sqsumdesc"}
)
_READS_STATISTICS = "OPERATION_NORM_BACKWARD"
_HALVES = (DataType.HALF, DataType.BFLOAT16)


class GraphFormula(NamedTuple):
    """A graph of operations that is computed one after the other.

    Attributes
    ----------
    operations : tuple of BackendObject
        In order.
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

    def written_by(self, operation: BackendObject) -> dict[str, BackendObject]:
        """Return what an operation writes, by its attributes."""
        read = {"mean_desc", "inv_variance_desc"} if operation.kind == _READS_STATISTICS else set()
        if operation.kind == "OPERATION_POINTWISE" and "dxdesc" in operation.attributes:
            read = {"ydesc"}
        return {
            name: tensor
            for name, tensor in self.tensors_of(operation).items()
            if name in _WRITES and name not in read
        }

    @property
    def in_memory(self) -> dict[int, BackendObject]:
        """The tensors that are in device memory, by their numbers."""
        return {
            number: tensor
            for number, tensor in self.tensors.items()
            if not tensor.value("is_virtual", False) and not tensor.value("is_by_value", False)
        }


# ------------------------------------------------------------------------- what there are engines for


def why_no_graph_engine(graph: GraphFormula) -> str | None:
    """Return why an H100 has no engine for a graph, or None if it has one.

    The rules reproduce tests/emulated/data/graph_formulas.json; what is not in it is refused.
    """
    counts = Counter(graph.kinds)
    if counts["MATMUL"]:
        return _why_no_product(graph, counts)
    if len(graph.operations) > 1:
        return f"{', '.join(counts)} as one graph"
    (kind,) = counts
    if kind == "POINTWISE" and mode_of(graph.operations[0]) == PointwiseMode.FLOOR_MOD:
        return "FLOOR_MOD, which cuDNN 9.19 does not know"
    if kind in ("NORM_FORWARD", "NORM_BACKWARD", "POINTWISE"):
        return None
    if kind == "RESAMPLE_FWD":
        return _why_no_resample(graph)
    return f"{kind} alone"


def _why_no_resample(graph: GraphFormula) -> str | None:
    """Return why a pooling is refused: an H100 computes wrong numbers of some."""
    x = spec_of(graph.operations[0].value("xdesc"))
    if x.dtype == DataType.BFLOAT16 and x.is_channels_last:
        return "a pooling of bfloat16 with channels last, which cuDNN 9.19 computes wrongly"
    return None


def _why_no_product(graph: GraphFormula, counts: Counter[str]) -> str | None:
    if not set(counts) <= {"MATMUL", "POINTWISE", "REDUCTION", "RESHAPE"}:
        return "a product beside operations that are neither pointwise nor reductions"
    if counts["MATMUL"] == 1:
        return _why_no_epilogue(graph)
    if counts["MATMUL"] == 2:
        return _why_no_attention(graph)
    memory_types = {DataType(tensor.value("data_type")) for tensor in graph.in_memory.values()}
    if counts["MATMUL"] == 5 and memory_types & set(_HALVES):
        return None
    return f"{counts['MATMUL']} products of these types"


def _why_no_epilogue(graph: GraphFormula) -> str | None:
    """Return why no engine has such operations before, or behind, one product."""
    first, *others = graph.operations
    if first.kind != "OPERATION_MATMUL":
        return "operations before a product"
    if len(first.value("adesc").attributes["dimensions"]) != 3:
        return "a product of other than three axes"
    if others and others[-1].kind == "OPERATION_REDUCTION":
        others.pop()
    if not all(map(_is_pointwise, others)):
        return "operations behind a product that are not pointwise"
    return None


def _why_no_attention(graph: GraphFormula) -> str | None:
    """Return why two products are no attention with its statistics."""
    modes = [mode_of(operation) for operation in graph.operations if _is_pointwise(operation)]
    reductions = [
        ReduceTensorOp(operation.value("desc").value("operator"))
        for operation in graph.operations
        if operation.kind == "OPERATION_REDUCTION"
    ]
    products = [operation for operation in graph.operations if operation.kind == "OPERATION_MATMUL"]
    queries = spec_of(products[0].value("adesc"))
    keys, values = (spec_of(product.value("bdesc")) for product in products)
    fault = why_float32_attention_is_wrong(queries.shape, keys.shape, values.shape)
    if values.dtype == DataType.FLOAT and fault is not None:
        return fault
    is_softmax = reductions == [ReduceTensorOp.MAX, ReduceTensorOp.ADD]
    if not is_softmax or PointwiseMode.LOG not in modes:
        return "two products without a softmax and its statistics between them"
    return None


def _is_pointwise(operation: BackendObject) -> bool:
    return operation.kind == "OPERATION_POINTWISE"


def mode_of(operation: BackendObject) -> PointwiseMode:
    """Return the mode of a pointwise operation."""
    return PointwiseMode(operation.value("pw_descriptor").value("mode"))


# ----------------------------------------------------------------------------------------- values


def compute(graph: GraphFormula, api: EmulationState, addresses: Mapping[int, int | None]) -> None:
    """Compute a graph over the addresses of its tensors, by their numbers."""
    memory = _Memory(graph, api, addresses)
    values: dict[int, Array] = {}

    def read(tensor: BackendObject) -> Array:
        number = tensor.value("unique_id")
        if number not in values:
            return memory.read(tensor)
        return values[number]

    with np.errstate(all="ignore"):
        for operation in graph.operations:
            written = graph.written_by(operation)
            operands = {
                name: read(tensor)
                for name, tensor in graph.tensors_of(operation).items()
                if name not in written
            }
            results = _COMPUTE[operation.kind](operation, operands, written)
            for name, tensor in written.items():
                values[tensor.value("unique_id")] = _stored(results[name], tensor)
    for number in memory.written:
        memory.write(number, values[number])


def check_addresses(
    graph: GraphFormula, api: EmulationState, addresses: Mapping[int, int | None]
) -> None:
    """Refuse addresses that an engine could not use."""
    _Memory(graph, api, addresses)


def _stored(values: Array, tensor: BackendObject) -> Array:
    """Return values as a tensor has them: rounded to its type, in the type that is computed in."""
    dtype = DataType(tensor.value("data_type"))
    if dtype == DataType.BOOLEAN:
        return values.astype(bool)
    stored = to_output(values, numpy_dtype(dtype))
    return stored if numpy_dtype(dtype).kind in "iu" else stored.astype(wide_dtype(dtype))


class _Memory:
    """The tensors of a graph in memory, by their numbers."""

    def __init__(
        self, graph: GraphFormula, api: EmulationState, addresses: Mapping[int, int | None]
    ) -> None:
        self._addresses = addresses
        self._specs: dict[int, TensorSpec] = {}
        self._views: dict[int, Bytes] = {}
        for number, tensor in graph.in_memory.items():
            if number not in addresses:
                raise bad(f"the variant pack has no tensor {number}")
            address = addresses[number] or 0
            check_aligned(f"tensor {number}", address, _ALIGNMENT)
            self._specs[number] = spec_of(tensor)
            self._views[number] = api.memory.view(address, self._specs[number].nbytes)
        self.written = [
            tensor.value("unique_id")
            for operation in graph.operations
            for tensor in graph.written_by(operation).values()
            if tensor.value("unique_id") in self._views
        ]
        for number in self.written:
            for other, view in self._views.items():
                if other != number and np.shares_memory(view, self._views[number]):
                    raise bad(f"operands {other} and {number} overlap in memory")

    def read(self, tensor: BackendObject) -> Array:
        number = tensor.value("unique_id")
        if tensor.value("is_by_value", False):
            return self._number(tensor)
        values = read_values(self._views[number], spec_of(tensor))
        dtype = DataType(tensor.value("data_type"))
        return values if values.dtype.kind in "iu" else values.astype(wide_dtype(dtype))

    def _number(self, tensor: BackendObject) -> Array:
        """Return a number that is passed by value: its address is one of the host's."""
        dtype = numpy_dtype(DataType(tensor.value("data_type")))
        address = self._addresses.get(tensor.value("unique_id")) or 0
        if not address:
            raise bad(f"number {tensor.value('unique_id')} is a null pointer")
        memory: Any = (ctypes.c_uint8 * dtype.itemsize).from_address(address)
        value: Array = np.frombuffer(memory, dtype).astype(np.float32)
        return value.reshape(tensor.attributes["dimensions"])

    def write(self, number: int, values: Array) -> None:
        spec = self._specs[number]
        output = to_output(np.broadcast_to(values, spec.shape), numpy_dtype(spec.dtype))
        write_values(self._views[number], spec, slice(None), output)


Computation = Callable[
    [BackendObject, Mapping[str, Array], Mapping[str, BackendObject]], Mapping[str, Array]
]


def _matmul(
    operation: BackendObject, operands: Mapping[str, Array], written: Mapping[str, BackendObject]
) -> Mapping[str, Array]:
    a, b = operands["adesc"], operands["bdesc"]
    if _reads_float32(operation):
        a, b = round_tf32(a), round_tf32(b)
    batch = tuple(max(sizes) for sizes in zip(a.shape[:-2], b.shape[:-2], strict=True))
    return {"cdesc": _repeated(a, batch) @ _repeated(b, batch)}


def _reads_float32(operation: BackendObject) -> bool:
    types = [operation.value(name).value("data_type") for name in ("adesc", "bdesc")]
    return types == [DataType.FLOAT, DataType.FLOAT]


def _repeated(values: Array, batch: Sequence[int]) -> Array:
    """Return values whose heads are repeated for the several of the other operand that share one."""
    for axis, size in enumerate(batch):
        values = np.repeat(values, size // values.shape[axis], axis)
    return values


def _reduction(
    operation: BackendObject, operands: Mapping[str, Array], written: Mapping[str, BackendObject]
) -> Mapping[str, Array]:
    x = operands["xdesc"]
    shape = written["ydesc"].attributes["dimensions"]
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1 and x.shape[axis] > 1)
    operator = ReduceTensorOp(operation.value("desc").value("operator"))
    return {"ydesc": _REDUCE[operator](x, axes).reshape(shape)}


_REDUCE: Mapping[ReduceTensorOp, Callable[[Array, tuple[int, ...]], Array]] = {
    ReduceTensorOp.ADD: lambda x, axes: x.sum(axes, keepdims=True),
    ReduceTensorOp.MUL: lambda x, axes: x.prod(axes, keepdims=True),
    ReduceTensorOp.MAX: lambda x, axes: x.max(axes, keepdims=True),
    ReduceTensorOp.MIN: lambda x, axes: x.min(axes, keepdims=True),
    ReduceTensorOp.AMAX: lambda x, axes: np.abs(x).max(axes, keepdims=True),
    ReduceTensorOp.AVG: lambda x, axes: x.mean(axes, keepdims=True),
    ReduceTensorOp.NORM1: lambda x, axes: np.abs(x).sum(axes, keepdims=True),
    ReduceTensorOp.NORM2: lambda x, axes: np.sqrt(np.square(x).sum(axes, keepdims=True)),
}


def _reshape(
    operation: BackendObject, operands: Mapping[str, Array], written: Mapping[str, BackendObject]
) -> Mapping[str, Array]:
    """Return the values in another shape, or with the last two axes swapped.

    Where the strides of the result are those of a transposed one, the axes were swapped.
    """
    x = operands["xdesc"]
    shape = tuple(written["ydesc"].attributes["dimensions"])
    is_swapped = shape == (*x.shape[:-2], x.shape[-1], x.shape[-2])
    return {"ydesc": x.swapaxes(-1, -2) if is_swapped else x.reshape(shape)}


def _norm_forward(
    operation: BackendObject, operands: Mapping[str, Array], written: Mapping[str, BackendObject]
) -> Mapping[str, Array]:
    x, scale, epsilon = (operands[name] for name in ("xdesc", "scale_desc", "epsilon_desc"))
    mode = BackendNormMode(operation.value("mode"))
    axes = _normalized_axes(mode, x.shape, scale.shape)
    mean = np.zeros_like(x[tuple(slice(0, 1) for _ in x.shape)])
    if mode != BackendNormMode.RMS:
        mean = x.mean(axes, keepdims=True)
    inv_variance = 1 / np.sqrt(np.square(x - mean).mean(axes, keepdims=True) + epsilon)
    y = (x - mean) * inv_variance * scale
    if "bias_desc" in operands:
        y = y + operands["bias_desc"]
    return {"ydesc": y, "mean_desc": mean, "inv_variance_desc": inv_variance}


def _norm_backward(
    operation: BackendObject, operands: Mapping[str, Array], written: Mapping[str, BackendObject]
) -> Mapping[str, Array]:
    dy, x, scale = (operands[name] for name in ("dydesc", "xdesc", "scale_desc"))
    mode = BackendNormMode(operation.value("mode"))
    axes = _normalized_axes(mode, x.shape, scale.shape)
    inv_variance = operands["inv_variance_desc"]
    normalized = (x - operands.get("mean_desc", np.zeros((1,) * x.ndim, x.dtype))) * inv_variance
    slope = dy * scale
    dx = slope - normalized * (slope * normalized).mean(axes, keepdims=True)
    if mode != BackendNormMode.RMS:
        dx = dx - slope.mean(axes, keepdims=True)
    parameters = tuple(axis for axis, size in enumerate(scale.shape) if size == 1)
    return {
        "dxdesc": dx * inv_variance,
        "dscale_desc": (dy * normalized).sum(parameters, keepdims=True),
        "dbias_desc": dy.sum(parameters, keepdims=True),
    }


def _normalized_axes(
    mode: BackendNormMode, x: Sequence[int], scale: Sequence[int]
) -> tuple[int, ...]:
    if mode == BackendNormMode.INSTANCE:
        return tuple(range(2, len(x)))
    return tuple(axis for axis, size in enumerate(scale) if size == x[axis] and axis > 0)


def _gen_stats(
    operation: BackendObject, operands: Mapping[str, Array], written: Mapping[str, BackendObject]
) -> Mapping[str, Array]:
    x = operands["xdesc"]
    axes = (0, *range(2, x.ndim))
    return {
        "sumdesc": x.sum(axes, keepdims=True),
        "sqsumdesc": np.square(x).sum(axes, keepdims=True),
    }


def _resample(
    operation: BackendObject, operands: Mapping[str, Array], written: Mapping[str, BackendObject]
) -> Mapping[str, Array]:
    """Return a pooling, whose padding may differ at the two ends."""
    x, steps = operands["xdesc"], operation.value("desc")
    window, stride = steps.attributes["window_dims"], steps.attributes["strides"]
    mode = ResampleMode(steps.value("mode"))
    pads = list(
        zip(steps.attributes["pre_paddings"], steps.attributes["post_paddings"], strict=True)
    )
    is_largest = mode == ResampleMode.MAXPOOL
    fill = -np.inf if is_largest else 0.0
    padding_mode = PaddingMode(steps.value("padding_mode", PaddingMode.ZERO))
    if is_largest and padding_mode == PaddingMode.ZERO:
        fill = 0.0
    padded = np.pad(x, [(0, 0), (0, 0), *pads], constant_values=fill)
    spatial = tuple(range(2, x.ndim))
    places = tuple(slice(None, None, step) for step in stride)
    every_window = np.lib.stride_tricks.sliding_window_view(padded, window, spatial)
    kept_places = (slice(None), slice(None), *places)
    windows = every_window[kept_places]
    taps = tuple(range(x.ndim, windows.ndim))
    if is_largest:
        return {"ydesc": windows.max(taps)}
    count: Any = math.prod(window)
    if mode == ResampleMode.AVGPOOL_EXCLUDE_PADDING:
        inside = np.pad(np.ones(x.shape[2:], x.dtype), pads)
        counted = np.lib.stride_tricks.sliding_window_view(inside, window)[places]
        count = counted.sum(tuple(range(len(spatial), counted.ndim)))
    return {"ydesc": windows.sum(taps) / count}


def _pointwise(
    operation: BackendObject, operands: Mapping[str, Array], written: Mapping[str, BackendObject]
) -> Mapping[str, Array]:
    pointwise, mode = operation.value("pw_descriptor"), mode_of(operation)
    if "dxdesc" in written:
        slope = _slope(mode, operands["xdesc"], pointwise)
        return {"dxdesc": operands["dydesc"] * slope}
    x = operands["xdesc"]
    shape = written["ydesc"].attributes["dimensions"]
    if mode == PointwiseMode.GEN_INDEX:
        axis = pointwise.value("axis")
        places = np.arange(x.shape[axis], dtype=np.int32)
        result = places.reshape([-1 if other == axis else 1 for other in range(x.ndim)])
    elif mode == PointwiseMode.BINARY_SELECT:
        result = np.where(operands["tdesc"], x, operands["bdesc"])
    elif mode in BINARY:
        result = BINARY[mode](x, operands["bdesc"])
    else:
        result = UNARY[mode](x, pointwise)
    return {"ydesc": np.broadcast_to(result, shape)}


def _clipped(x: Array, pointwise: BackendObject) -> Any:
    lower = pointwise.value("relu_lower_clip", 0.0)
    upper = pointwise.value("relu_upper_clip", math.inf)
    slope = pointwise.value("relu_lower_clip_slope", 0.0)
    below = lower + slope * (x - lower) if slope else np.full_like(x, lower)
    return np.minimum(np.where(x > lower, x, below), upper).astype(x.dtype)


def _sigmoid(x: Array) -> Any:
    return 1 / (1 + np.exp(-x))


def _erf(x: Array) -> Any:
    values = [math.erf(value) for value in x.ravel().tolist()]
    return np.array(values, x.dtype).reshape(x.shape)


def _gelu(x: Array) -> Array:
    half = x.dtype.type(0.5)
    result: Array = half * x * (1 + _erf(x * x.dtype.type(math.sqrt(0.5))))
    return result


def _gelu_by_tanh(x: Array) -> Any:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return (0.5 * x * (1 + np.tanh(inner))).astype(x.dtype)


UNARY: Mapping[PointwiseMode, Callable[[Array, BackendObject], Any]] = {
    PointwiseMode.ABS: lambda x, _: np.abs(x),
    PointwiseMode.CEIL: lambda x, _: np.ceil(x),
    PointwiseMode.COS: lambda x, _: np.cos(x),
    PointwiseMode.EXP: lambda x, _: np.exp(x),
    PointwiseMode.FLOOR: lambda x, _: np.floor(x),
    PointwiseMode.LOG: lambda x, _: np.log(x),
    PointwiseMode.NEG: lambda x, _: -x,
    PointwiseMode.RSQRT: lambda x, _: 1 / np.sqrt(x),
    PointwiseMode.SIN: lambda x, _: np.sin(x),
    PointwiseMode.SQRT: lambda x, _: np.sqrt(x),
    PointwiseMode.TAN: lambda x, _: np.tan(x),
    PointwiseMode.ERF: lambda x, _: _erf(x),
    PointwiseMode.IDENTITY: lambda x, _: x,
    PointwiseMode.RECIPROCAL: lambda x, _: 1 / x,
    PointwiseMode.LOGICAL_NOT: lambda x, _: np.logical_not(x),
    PointwiseMode.RELU_FWD: _clipped,
    PointwiseMode.TANH_FWD: lambda x, _: np.tanh(x),
    PointwiseMode.SIGMOID_FWD: lambda x, _: _sigmoid(x),
    PointwiseMode.ELU_FWD: lambda x, pointwise: np.where(
        x > 0, x, pointwise.value("elu_alpha", 1.0) * np.expm1(np.minimum(x, 0))
    ).astype(x.dtype),
    PointwiseMode.GELU_FWD: lambda x, _: _gelu(x),
    PointwiseMode.GELU_APPROX_TANH_FWD: lambda x, _: _gelu_by_tanh(x),
    PointwiseMode.SOFTPLUS_FWD: lambda x, pointwise: (
        np.logaddexp(0, pointwise.value("softplus_beta", 1.0) * x)
        / pointwise.value("softplus_beta", 1.0)
    ).astype(x.dtype),
    PointwiseMode.SWISH_FWD: lambda x, pointwise: (
        x * _sigmoid(pointwise.value("swish_beta", 1.0) * x)
    ).astype(x.dtype),
}
BINARY: Mapping[PointwiseMode, Callable[[Array, Array], Array]] = {
    PointwiseMode.ADD: np.add,
    PointwiseMode.ADD_SQUARE: lambda x, b: x + np.square(b),
    PointwiseMode.ATAN2: np.arctan2,
    PointwiseMode.DIV: np.divide,
    PointwiseMode.FLOOR_MOD: np.mod,
    PointwiseMode.MAX: np.maximum,
    PointwiseMode.MIN: np.minimum,
    PointwiseMode.MOD: np.fmod,
    PointwiseMode.MUL: np.multiply,
    PointwiseMode.POW: np.power,
    PointwiseMode.SUB: np.subtract,
    PointwiseMode.CMP_EQ: np.equal,
    PointwiseMode.CMP_NEQ: np.not_equal,
    PointwiseMode.CMP_GT: np.greater,
    PointwiseMode.CMP_GE: np.greater_equal,
    PointwiseMode.CMP_LT: np.less,
    PointwiseMode.CMP_LE: np.less_equal,
    PointwiseMode.LOGICAL_AND: np.logical_and,
    PointwiseMode.LOGICAL_OR: np.logical_or,
}


def _slope(mode: PointwiseMode, x: Array, pointwise: BackendObject) -> Any:
    """Return the derivative of an activation."""
    if mode == PointwiseMode.RELU_BWD:
        lower = pointwise.value("relu_lower_clip", 0.0)
        upper = pointwise.value("relu_upper_clip", math.inf)
        below = pointwise.value("relu_lower_clip_slope", 0.0)
        return np.where(x > lower, np.where(x < upper, 1.0, 0.0), below).astype(x.dtype)
    if mode == PointwiseMode.TANH_BWD:
        return 1 - np.square(np.tanh(x))
    if mode == PointwiseMode.SIGMOID_BWD:
        return _sigmoid(x) * (1 - _sigmoid(x))
    if mode == PointwiseMode.ELU_BWD:
        alpha = pointwise.value("elu_alpha", 1.0)
        return np.where(x > 0, 1.0, alpha * np.exp(np.minimum(x, 0))).astype(x.dtype)
    if mode == PointwiseMode.SOFTPLUS_BWD:
        return _sigmoid(pointwise.value("softplus_beta", 1.0) * x).astype(x.dtype)
    if mode == PointwiseMode.SWISH_BWD:
        beta = pointwise.value("swish_beta", 1.0)
        gate = _sigmoid(beta * x)
        return (gate + beta * x * gate * (1 - gate)).astype(x.dtype)
    if mode == PointwiseMode.GELU_BWD:
        density = np.exp(-np.square(x) / 2) / math.sqrt(2 * math.pi)
        return (0.5 * (1 + _erf(x / math.sqrt(2))) + x * density).astype(x.dtype)
    # GELU by tanh
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    tanh = np.tanh(inner)
    return (0.5 * (1 + tanh) + 0.5 * x * (1 - np.square(tanh)) * slope).astype(x.dtype)


_COMPUTE: Mapping[str, Computation] = {
    "OPERATION_MATMUL": _matmul,
    "OPERATION_REDUCTION": _reduction,
    "OPERATION_RESHAPE": _reshape,
    "OPERATION_POINTWISE": _pointwise,
    "OPERATION_NORM_FORWARD": _norm_forward,
    "OPERATION_NORM_BACKWARD": _norm_backward,
    "OPERATION_GEN_STATS": _gen_stats,
    "OPERATION_RESAMPLE_FWD": _resample,
}
OPERATIONS = tuple(_COMPUTE)
CONFIGURATIONS = ("MATMUL", "REDUCTION", "RESAMPLE")


def check_operation(operation: BackendObject) -> None:
    """Refuse an operation that lacks what it computes or reads."""
    tensors = [
        name
        for name, (_, type_name, _) in ATTRIBUTES[operation.kind].items()
        if type_name == "BACKEND_DESCRIPTOR" and name in operation.attributes
    ]
    if not set(tensors) & _WRITES or len(tensors) < 2:
        raise bad(f"{operation.kind} has no tensor that it reads, or none that it writes")
