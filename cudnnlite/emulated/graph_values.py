"""Emulated graphs that are a `GraphFormula`: their values in NumPy, operation by operation."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cudnnlite._raw.enums import BackendNormMode, PaddingMode, PointwiseMode, ResampleMode
from cudnnlite.devices.storage import read_values, share_values, write_values
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated.backend import BackendObject
from cudnnlite.emulated.fusion import mode_of, spec_of
from cudnnlite.emulated.graph_engines import GraphFormula
from cudnnlite.emulated.kernels import KERNELS_WITHOUT_SCRATCH
from cudnnlite.emulated.memory import Bytes
from cudnnlite.emulated.pointwise_modes import BINARY, SLOPES, UNARY
from cudnnlite.emulated.precision import lowest_number, round_tf32, to_output, wide_dtype
from cudnnlite.emulated.registry import EmulationState, bad_parameter, check_aligned
from cudnnlite.enums import DataType, ReduceTensorOp
from cudnnlite.specs import TensorSpec

Array = np.ndarray[Any, Any]
Addresses = Mapping[int, int | None]
_ALIGNMENT = 16  # of every tensor in memory


def numbers_of(graph: GraphFormula, addresses: Addresses) -> dict[int, Array]:
    """Return the numbers that a graph passes by value, read where they are: on the host.

    They are read once for each call: a captured call has the numbers of its capture.
    """
    return {
        unique_id: _number(tensor, addresses.get(unique_id) or 0)
        for unique_id, tensor in graph.tensors.items()
        if tensor.value("is_by_value", False)
    }


def _number(tensor: BackendObject, address: int) -> Array:
    if not address:
        raise bad_parameter(f"number {tensor.value('unique_id')} is a null pointer")
    dtype = numpy_dtype(DataType(tensor.value("data_type")))
    content = (ctypes.c_ubyte * dtype.itemsize).from_address(address)
    value = np.frombuffer(bytes(content), dtype)
    if dtype.kind == "f":
        value = value.astype(np.float32)
    return value.reshape(tensor.attributes["dimensions"])


def check_addresses(graph: GraphFormula, api: EmulationState, addresses: Addresses) -> None:
    """Refuse addresses that an engine could not use."""
    _TensorMemory(graph, api, addresses)


def compute(
    graph: GraphFormula,
    api: EmulationState,
    addresses: Addresses,
    numbers: Mapping[int, Array],
) -> None:
    """Compute a graph over the addresses of its tensors, by their numbers, and its numbers."""
    memory = _TensorMemory(graph, api, addresses)
    values = dict(numbers)

    def read(tensor: BackendObject) -> Array:
        unique_id = tensor.value("unique_id")
        return values[unique_id] if unique_id in values else memory.read(tensor)

    masked = graph.masked_probabilities
    is_attention = sum(operation.kind == "OPERATION_MATMUL" for operation in graph.operations) > 1
    with np.errstate(all="ignore"):
        for operation in graph.operations:
            outputs = graph.outputs_of(operation)
            operands = {
                name: read(tensor)
                for name, tensor in graph.tensors_of(operation).items()
                if name not in outputs
            }
            results = _COMPUTE[operation.kind](operation, operands, outputs)
            if is_attention and operation.kind == "OPERATION_POINTWISE":
                results = {"ydesc": _of_masked_rows(operation, operands, results["ydesc"])}
            if masked is not None and operation is masked[0]:
                # Beyond the lengths of queries the statistics are undefined, and are not used.
                lengths = read(masked[1])
                results = {name: _within(array, -2, lengths) for name, array in results.items()}
            for name, tensor in outputs.items():
                values[tensor.value("unique_id")] = _stored(results[name], tensor)
    for unique_id in memory.output_ids:
        memory.write(unique_id, values[unique_id])


def _of_masked_rows(
    operation: BackendObject, operands: Mapping[str, Array], result: Array
) -> Array:
    """Return the result of a pointwise operation of attention, with rows that are masked at all steps.

    Their probabilities are 0 and their statistics -infinity.  An H200 computes powers of 2: a row is
    masked, too, if its largest score times log2(e) is beyond float32.  That of -1e30 is not.
    """
    mode = mode_of(operation)
    rows = operands.get("bdesc")
    if rows is None or rows.shape[-1] != 1 or result.shape[-1] == 1:
        return result
    if mode == PointwiseMode.SUB:
        scaled = rows.astype(np.float32) * np.float32(math.log2(math.e))
        return np.where(np.isneginf(scaled), -np.inf, result)
    if mode == PointwiseMode.DIV:
        return np.where(rows == 0, 0, result)
    return result


def _stored(values: Array, tensor: BackendObject) -> Array:
    """Return values rounded to a tensor's type, in the type of the computation."""
    dtype = DataType(tensor.value("data_type"))
    if dtype == DataType.BOOLEAN:
        return values.astype(bool)
    stored = to_output(values, numpy_dtype(dtype))
    return stored if numpy_dtype(dtype).kind in "iu" else stored.astype(wide_dtype(dtype))


class _TensorMemory:
    """The tensors of a graph in memory, by their numbers."""

    def __init__(self, graph: GraphFormula, api: EmulationState, addresses: Addresses) -> None:
        self._specs: dict[int, TensorSpec] = {}
        self._views: dict[int, Bytes] = {}
        for number, tensor in graph.in_memory.items():
            if number not in addresses:
                raise bad_parameter(f"the variant pack has no tensor {number}")
            address = addresses[number] or 0
            check_aligned(f"tensor {number}", address, _ALIGNMENT)
            self._specs[number] = spec_of(tensor)
            self._views[number] = api.memory.view(address, self._specs[number].nbytes)
        self.output_ids = [
            tensor.value("unique_id")
            for operation in graph.operations
            for tensor in graph.outputs_of(operation).values()
            if tensor.value("unique_id") in self._views
        ]
        residuals = _residuals(graph)
        for number in self.output_ids:
            for other in self._views:
                tensors = [(self._specs[key], addresses[key] or 0) for key in (number, other)]
                is_in_place = other in residuals and tensors[0] == tensors[1]
                if other != number and not is_in_place and share_values(*tensors[0], *tensors[1]):
                    raise bad_parameter(f"operands {other} and {number} overlap in memory")

    def read(self, tensor: BackendObject) -> Array:
        values = read_values(self._views[tensor.value("unique_id")], spec_of(tensor))
        is_integer = values.dtype.kind in "iu"
        return (
            values if is_integer else values.astype(wide_dtype(DataType(tensor.value("data_type"))))
        )

    def write(self, number: int, values: Array) -> None:
        spec = self._specs[number]
        output = to_output(np.broadcast_to(values, spec.shape), numpy_dtype(spec.dtype))
        write_values(self._views[number], spec, slice(None), output)


def _residuals(graph: GraphFormula) -> set[int]:
    """Return the numbers of the operands behind a product that its result may be in place of."""
    kinds = [operation.kind for operation in graph.operations]
    if kinds.count("OPERATION_MATMUL") != 1 or {*kinds} != {
        "OPERATION_MATMUL",
        "OPERATION_POINTWISE",
    }:
        return set()
    return {
        tensor.value("unique_id")
        for operation in graph.operations[kinds.index("OPERATION_MATMUL") + 1 :]
        for tensor in graph.tensors_of(operation).values()
    }


Computation = Callable[
    [BackendObject, Mapping[str, Array], Mapping[str, BackendObject]], Mapping[str, Array]
]


def _matmul(
    operation: BackendObject, operands: Mapping[str, Array], outputs: Mapping[str, BackendObject]
) -> Mapping[str, Array]:
    a, b = operands["adesc"], operands["bdesc"]
    if _reads_float32(operation):
        a, b = round_tf32(a), round_tf32(b)
    batch = tuple(max(sizes) for sizes in zip(a.shape[:-2], b.shape[:-2], strict=True))
    a, b = _repeated(a, batch), _repeated(b, batch)
    rows, columns, terms = (operands.get(f"gemm_{axis}_override_desc") for axis in "mnk")
    if terms is not None:
        a, b = _within(a, -1, terms), _within(b, -2, terms)
    c = a @ b
    # An engine for float32 writes nothing beyond the rows: NaN stands for the old values.
    beyond = np.nan if _reads_float32(operation) else 0.0
    c = c if rows is None else _within(c, -2, rows, beyond)
    return {"cdesc": c if columns is None else _within(c, -1, columns)}


def _convolution(
    operation: BackendObject, operands: Mapping[str, Array], outputs: Mapping[str, BackendObject]
) -> Mapping[str, Array]:
    convolution = operation.content
    y = np.empty(outputs["y"].attributes["dimensions"], operands["x"].dtype)
    x, w = operands["x"], operands["w"]
    if x.ndim == 5 and convolution.x.dtype == DataType.FLOAT:
        x, w = round_tf32(x), round_tf32(w)
    KERNELS_WITHOUT_SCRATCH["y"].run(x, w, convolution.conv, y, np.empty(0, np.uint8))
    return {"y": y}


def _within(values: Array, axis: int, lengths: Array, beyond: float = 0.0) -> Array:
    """Return values with another number beyond the lengths of an axis."""
    places = np.arange(values.shape[axis])
    if axis == -2:
        places = places[:, None]
    return np.where(places < lengths, values, values.dtype.type(beyond))


def _reads_float32(operation: BackendObject) -> bool:
    types = [operation.value(name).value("data_type") for name in ("adesc", "bdesc")]
    return types == [DataType.FLOAT, DataType.FLOAT]


def _repeated(values: Array, batch: Sequence[int]) -> Array:
    """Return values with each head repeated for the heads of the other operand that share it."""
    for axis, size in enumerate(batch):
        values = np.repeat(values, size // values.shape[axis], axis)
    return values


def _reduction(
    operation: BackendObject, operands: Mapping[str, Array], outputs: Mapping[str, BackendObject]
) -> Mapping[str, Array]:
    """Reduce each axis to its size in the result: to 1, or to groups of neighbours."""
    x = operands["xdesc"]
    shape = outputs["ydesc"].attributes["dimensions"]
    sizes = zip(shape, x.shape, strict=True)
    grouped = x.reshape([part for size, whole in sizes for part in (size, whole // size)])
    axes = tuple(range(1, grouped.ndim, 2))
    operator = ReduceTensorOp(operation.value("desc").value("operator"))
    return {"ydesc": _REDUCE[operator](grouped, axes).reshape(shape)}


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
    operation: BackendObject, operands: Mapping[str, Array], outputs: Mapping[str, BackendObject]
) -> Mapping[str, Array]:
    """Return the values in another shape, or with the last two axes swapped.

    The axes are swapped if the result has the strides of a transposed tensor.
    """
    x = operands["xdesc"]
    shape = tuple(outputs["ydesc"].attributes["dimensions"])
    is_swapped = shape == (*x.shape[:-2], x.shape[-1], x.shape[-2])
    return {"ydesc": x.swapaxes(-1, -2) if is_swapped else x.reshape(shape)}


def _norm_forward(
    operation: BackendObject, operands: Mapping[str, Array], outputs: Mapping[str, BackendObject]
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
    operation: BackendObject, operands: Mapping[str, Array], outputs: Mapping[str, BackendObject]
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
    operation: BackendObject, operands: Mapping[str, Array], outputs: Mapping[str, BackendObject]
) -> Mapping[str, Array]:
    x = operands["xdesc"]
    axes = (0, *range(2, x.ndim))
    return {
        "sumdesc": x.sum(axes, keepdims=True),
        "sqsumdesc": np.square(x).sum(axes, keepdims=True),
    }


def _resample(
    operation: BackendObject, operands: Mapping[str, Array], outputs: Mapping[str, BackendObject]
) -> Mapping[str, Array]:
    """Return a pooling, whose padding may differ at the two ends."""
    x, steps = operands["xdesc"], operation.value("desc")
    mode = ResampleMode(steps.value("mode"))
    is_largest = mode == ResampleMode.MAXPOOL
    pads_with_zeros = PaddingMode(steps.value("padding_mode", PaddingMode.ZERO)) == PaddingMode.ZERO
    fill = -np.inf if is_largest and not pads_with_zeros else 0.0
    windows = _windows(x, steps, fill)
    taps = tuple(range(x.ndim, windows.ndim))
    if is_largest:
        # On an H200 the maximum of -infinities is the lowest number of the data type.
        maxima = windows.max(taps, initial=_lowest_of(operation))
        return {"ydesc": maxima, "idxdesc": _places_of_maxima(windows, x.ndim)}
    return {"ydesc": windows.sum(taps) / _counts(x, steps)}


def _lowest_of(operation: BackendObject) -> float:
    return lowest_number(DataType(operation.value("xdesc").value("data_type")))


def _places_of_maxima(windows: Array, rank: int) -> Array:
    """Return the place of the first maximum within each window, in C order."""
    return np.asarray(windows.reshape(*windows.shape[:rank], -1).argmax(-1))


def _counts(x: Array, steps: BackendObject) -> Any:
    """Return how many values each window of an average has."""
    if ResampleMode(steps.value("mode")) != ResampleMode.AVGPOOL_EXCLUDE_PADDING:
        return math.prod(steps.attributes["window_dims"])
    taps = tuple(range(x.ndim, 2 * x.ndim - 2))
    return _windows(np.ones_like(x), steps, 0.0).sum(taps)


def _resample_backward(
    operation: BackendObject, operands: Mapping[str, Array], outputs: Mapping[str, BackendObject]
) -> Mapping[str, Array]:
    """Return the gradient of a pooling: of a maximum to its place, of an average to its window."""
    dy, steps = operands["dydesc"], operation.value("desc")
    shape = outputs["dxdesc"].attributes["dimensions"]
    is_largest = ResampleMode(steps.value("mode")) == ResampleMode.MAXPOOL
    window, stride, before, behind = (
        steps.attributes[name]
        for name in ("window_dims", "strides", "pre_paddings", "post_paddings")
    )
    places: Any = None
    if "idxdesc" in operands:
        places = operands["idxdesc"]
    elif is_largest:
        # A pixel of -infinity is above the padding.
        x = np.maximum(operands["xdesc"], _lowest_of(operation))
        places = _places_of_maxima(_windows(x, steps, -np.inf), len(shape))
    else:
        dy = dy / _counts(np.ones(shape, dy.dtype), steps)
    pads = [(0, 0), (0, 0), *zip(before, behind, strict=True)]
    padded = np.pad(np.zeros(shape, dy.dtype), pads)
    for place, tap in enumerate(np.ndindex(*window)):
        pixels = tuple(
            slice(start, start + step * (count - 1) + 1, step)
            for start, step, count in zip(tap, stride, dy.shape[2:], strict=True)
        )
        places_at_tap = (slice(None), slice(None), *pixels)
        pixels_at_tap = padded[places_at_tap]
        pixels_at_tap += np.where(places == place, dy, 0) if is_largest else dy
    image = tuple(slice(start, start + size) for (start, _), size in zip(pads, shape, strict=True))
    return {"dxdesc": padded[image]}


def _windows(x: Array, steps: BackendObject, fill: float) -> Array:
    """Return the windows of a pooling as further axes, one for each output value."""
    window, stride, before, behind = (
        steps.attributes[name]
        for name in ("window_dims", "strides", "pre_paddings", "post_paddings")
    )
    pads = [(0, 0), (0, 0), *zip(before, behind, strict=True)]
    padded = np.pad(x, pads, constant_values=fill)
    every_window = np.lib.stride_tricks.sliding_window_view(padded, window, tuple(range(2, x.ndim)))
    starts = tuple(slice(None, None, step) for step in stride)
    places = (slice(None), slice(None), *starts)
    return every_window[places]


def _rng(
    operation: BackendObject, operands: Mapping[str, Array], outputs: Mapping[str, BackendObject]
) -> Mapping[str, Array]:
    """Draw ones with a probability, by another generator than cuDNN's."""
    seed, offset = (int(operands[name].reshape(-1)[0]) for name in ("seed", "offset_desc"))
    probability = operation.value("desc").value("bernoulli_dist_probability")
    shape = outputs["ydesc"].attributes["dimensions"]
    numbers = np.random.default_rng([seed, offset]).random(shape)
    return {"ydesc": (numbers < probability).astype(np.float32)}


def _pointwise(
    operation: BackendObject, operands: Mapping[str, Array], outputs: Mapping[str, BackendObject]
) -> Mapping[str, Array]:
    pointwise, mode = operation.value("pw_descriptor"), mode_of(operation)
    if "dxdesc" in outputs:
        x = operands["xdesc"]
        return {"dxdesc": operands["dydesc"] * SLOPES[mode](x, pointwise).astype(x.dtype)}
    x = _scaled(operation, "alpha1", operands["xdesc"])
    shape = outputs["ydesc"].attributes["dimensions"]
    if mode == PointwiseMode.GEN_INDEX:
        axis = pointwise.value("axis")
        places = np.arange(x.shape[axis], dtype=np.int32)
        result = places.reshape([-1 if other == axis else 1 for other in range(x.ndim)])
    elif mode == PointwiseMode.BINARY_SELECT:
        result = np.where(operands["tdesc"], x, operands["bdesc"])
    elif mode in BINARY:
        result = BINARY[mode](x, _scaled(operation, "alpha2", operands["bdesc"]))
    else:
        result = UNARY[mode](x, pointwise)
    return {"ydesc": np.broadcast_to(result, shape)}


def _scaled(operation: BackendObject, name: str, x: Array) -> Any:
    """Return an operand times the factor that a pointwise operation has for it."""
    factor = operation.value(name, 1.0)
    return x if factor == 1.0 else x * x.dtype.type(factor)


_COMPUTE: Mapping[str, Computation] = {
    "OPERATION_CONVOLUTION_FORWARD": _convolution,
    "OPERATION_MATMUL": _matmul,
    "OPERATION_REDUCTION": _reduction,
    "OPERATION_RESHAPE": _reshape,
    "OPERATION_RNG": _rng,
    "OPERATION_POINTWISE": _pointwise,
    "OPERATION_NORM_FORWARD": _norm_forward,
    "OPERATION_NORM_BACKWARD": _norm_backward,
    "OPERATION_GEN_STATS": _gen_stats,
    "OPERATION_RESAMPLE_FWD": _resample,
    "OPERATION_RESAMPLE_BWD": _resample_backward,
}
