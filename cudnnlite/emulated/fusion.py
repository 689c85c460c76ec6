"""Emulated pointwise operations behind a convolution, and which of them an H200 has engines for.

The rules reproduce a table recorded on an H200 with cuDNN 9.19 (tests/emulated/data/graphs.json):
what is not in it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cudnnlite._raw.enums import PointwiseMode
from cudnnlite.emulated import pointwise_modes
from cudnnlite.emulated.backend import BackendObject
from cudnnlite.emulated.registry import bad_parameter, unsupported
from cudnnlite.enums import ConvolutionMode, DataType, TensorFormat
from cudnnlite.graph.chain_faults import repeats_whole_pixels_or_channels
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec
from cudnnlite.specs.layout import CHANNELS_LAST, same_strides

Array = np.ndarray[Any, Any]
BINARY: Mapping[PointwiseMode, Callable[..., Array]] = {
    PointwiseMode.ADD: np.add,
    PointwiseMode.MUL: np.multiply,
}
# What another ReLU than max(x, 0) has; `graph_values` computes it.
_LOWER_CLIPS = ("relu_lower_clip", "relu_lower_clip_slope")
# Attributes of activations, with the values that they have if they are not set.
_COEFFICIENTS = {"relu_upper_clip": np.inf, "elu_alpha": 1.0, "swish_beta": 1.0}
UNARY: Mapping[PointwiseMode, Callable[..., Array]] = {
    PointwiseMode.IDENTITY: lambda x, upper, alpha, beta: x,
    PointwiseMode.RELU_FWD: lambda x, upper, alpha, beta: np.clip(x, 0, upper),
    PointwiseMode.TANH_FWD: lambda x, upper, alpha, beta: np.tanh(x),
    PointwiseMode.SIGMOID_FWD: lambda x, upper, alpha, beta: 1 / (1 + np.exp(-x)),
    PointwiseMode.SWISH_FWD: lambda x, upper, alpha, beta: x / (1 + np.exp(-beta * x)),
    PointwiseMode.ELU_FWD: lambda x, upper, alpha, beta: (
        np.maximum(x, 0) + alpha * np.expm1(np.minimum(x, 0))
    ),
}
# Activations that the engines for a convolution with a bias have built in.
_BUILT_IN = {
    PointwiseMode.RELU_FWD,
    PointwiseMode.TANH_FWD,
    PointwiseMode.SIGMOID_FWD,
    PointwiseMode.ELU_FWD,
}


def spec_of(tensor: BackendObject) -> TensorSpec:
    """Return the spec of a "TENSOR"; ArgumentError if there is none."""
    shape = tuple(tensor.attributes["dimensions"])
    strides = tuple(tensor.attributes["strides"])
    return TensorSpec(shape, DataType(tensor.value("data_type")), strides=strides)


def mode_of(operation: BackendObject) -> PointwiseMode:
    """Return the mode of an "OPERATION_POINTWISE"."""
    return PointwiseMode(operation.value("pw_descriptor").value("mode"))


def result_of(operation: BackendObject) -> BackendObject:
    """Return the tensor that an "OPERATION_POINTWISE" writes."""
    tensor: BackendObject = operation.value("dxdesc") or operation.value("ydesc")
    return tensor


def operands_of_mode(mode: PointwiseMode) -> set[str]:
    """Return the attributes of the tensors that a pointwise operation needs."""
    if mode.name.endswith("_BWD"):
        return {"xdesc", "dydesc", "dxdesc"}
    if mode == PointwiseMode.BINARY_SELECT:
        return {"xdesc", "bdesc", "tdesc", "ydesc"}
    if mode in pointwise_modes.BINARY:
        return {"xdesc", "bdesc", "ydesc"}
    return {"xdesc", "ydesc"}


def check_mode(pointwise: BackendObject) -> None:
    """Refuse a "POINTWISE" of an unknown mode, or with an unknown attribute."""
    mode = PointwiseMode(pointwise.value("mode"))
    if mode not in pointwise_modes.MODES:
        raise unsupported(f"pointwise mode {pointwise.value('mode')}")
    allowed = {"mode", "math_prec", "nan_propagation", "axis", *_COEFFICIENTS}
    allowed |= {*_LOWER_CLIPS, "softplus_beta"}
    unknown = sorted(pointwise.attributes.keys() - allowed)
    if unknown:
        raise unsupported(f"the emulated device knows nothing of {', '.join(unknown)}")


def check_operation(operation: BackendObject) -> None:
    """Refuse an "OPERATION_POINTWISE" that lacks an operand, or has one too many."""
    operand_names = operands_of_mode(mode_of(operation))
    missing = sorted(operand_names - operation.attributes.keys())
    if missing:
        raise bad_parameter(f"OPERATION_POINTWISE lacks {', '.join(missing)}")
    allowed = operand_names | {"pw_descriptor", "alpha1", "alpha2"}
    superfluous = sorted(operation.attributes.keys() - allowed)
    if superfluous:
        raise bad_parameter(f"OPERATION_POINTWISE has {', '.join(superfluous)}")


def compute_pointwise(operation: BackendObject, x: Array, b: Array | None = None) -> Array:
    """Return the result of a pointwise operation."""
    pointwise = operation.value("pw_descriptor")
    mode = mode_of(operation)
    to_dtype = x.dtype.type
    if mode == PointwiseMode.RELU_FWD and not pointwise.value("nan_propagation"):
        x = np.where(np.isnan(x), to_dtype(0), x)
    if b is None:
        coefficients = [
            to_dtype(pointwise.value(name, default)) for name, default in _COEFFICIENTS.items()
        ]
        return UNARY[mode](x, *coefficients)
    alpha1 = to_dtype(operation.value("alpha1", 1.0))
    alpha2 = to_dtype(operation.value("alpha2", 1.0))
    return BINARY[mode](alpha1 * x, alpha2 * b)


def is_classical(operations: Sequence[BackendObject]) -> bool:
    """Return whether an H200 was asked about such operations behind a convolution.

    Each reads the result of the one before it, and other operands from memory.  The last result
    alone is in memory.
    """
    if not operations:
        return True
    y = result_of(operations[-1])
    for operation in operations:
        mode, pointwise = mode_of(operation), operation.value("pw_descriptor")
        b, result = operation.value("bdesc"), operation.value("ydesc")
        has_lower_clip = any(pointwise.value(name, 0.0) for name in _LOWER_CLIPS)
        if mode not in (*UNARY, *BINARY) or has_lower_clip:
            return False
        if result is not y and not result.value("is_virtual", False):
            return False
        if b is None:
            continue
        if b.value("is_by_value", False) or b.value("is_virtual", False):
            return False
        if _is_of_further_shape(mode, spec_of(b), spec_of(y)):
            return False
    return True


def _is_of_further_shape(mode: PointwiseMode, b: TensorSpec, y: TensorSpec) -> bool:
    """Return whether an operand is one that engines serve in general graphs alone.

    It is one value for each pixel, or a factor that is not one for each channel.
    """
    if b.rank != y.rank or not repeats_whole_pixels_or_channels(b.shape, y.shape):
        return False
    channels = (1, y.shape[1], *[1] * (y.rank - 2))
    usual = [channels]
    if mode == PointwiseMode.ADD:
        usual += [y.shape, (1,) * y.rank]
    return b.shape not in usual


class FusedConvolution(NamedTuple):
    """A convolution with pointwise operations behind it, as far as engines depend on it.

    `alpha` and `beta` are the convolution's; `chain` has the operations in order.
    """

    x: TensorSpec
    w: FilterSpec
    conv: ConvolutionSpec
    alpha: float
    beta: float
    chain: Sequence[BackendObject]

    @property
    def y(self) -> TensorSpec:
        """The result of the last operation."""
        return spec_of(result_of(self.chain[-1]))


def why_no_fused_engine(
    problem: FusedConvolution, *, uses_tensor_cores: bool, is_first: bool
) -> str | None:
    """Return why an H200 has no such engine for a fused convolution, or None if it has one.

    Engine 0, the first, alone has tanh behind a bias built in.
    """
    chain, y = problem.chain, problem.y
    if (problem.alpha, problem.beta) != (1.0, 0.0):
        return "a scalar at the convolution, with operations behind it"
    reason = _why_not_one_precision(problem)
    if reason is not None:
        return reason
    classes = [_class_of(operation, y) for operation in chain]
    dtypes = {y.dtype} | {
        spec_of(operation.value("bdesc")).dtype
        for operation in chain
        if "bdesc" in operation.attributes
    }
    if None in classes or dtypes != {problem.x.dtype}:
        return (
            "an operand of another type, layout or shape than the result's, a value for each "
            "channel, or one value"
        )
    alphas = [
        (operation.value("alpha1", 1.0), operation.value("alpha2", 1.0)) for operation in chain
    ]
    if _is_built_in(classes, alphas):
        if is_first or mode_of(chain[-1]) != PointwiseMode.TANH_FWD:
            return None
        if not uses_tensor_cores:
            return "tanh behind a bias, which has engine 0, and engines with tensor cores"
    if set(alphas) != {(1.0, 1.0)}:
        return "scalars elsewhere than at the addition of an image before a bias"
    return why_no_general_engine(problem, uses_tensor_cores=uses_tensor_cores)


def _why_not_one_precision(problem: FusedConvolution) -> str | None:
    """Return why an operation, or a tensor between operations, has another type than all others."""
    wide = DataType.DOUBLE if problem.x.dtype == DataType.DOUBLE else DataType.FLOAT
    dtypes = {problem.conv.compute_type}
    for operation in problem.chain:
        dtypes.add(spec_of(operation.value("xdesc")).dtype)
        dtypes.add(DataType(operation.value("pw_descriptor").value("math_prec")))
    if dtypes == {wide}:
        return None
    return (
        f"operations behind a convolution are computed in {wide.name}, and so are the tensors "
        "between"
    )


def _is_built_in(classes: Sequence[str | None], alphas: Sequence[tuple[float, float]]) -> bool:
    """Return whether engines have a chain built in.

    It is a bias, with an activation behind it or without.  An image may be added before, with
    scalars.
    """
    first = 1 if classes[0] == "added image" else 0
    has_no_scalars = all(pair == (1.0, 1.0) for pair in alphas[first:])
    chain = list(classes[first:])
    return has_no_scalars and chain in (["added channels"], ["added channels", "built in"])


def why_no_general_engine(problem: FusedConvolution, *, uses_tensor_cores: bool) -> str | None:
    """Return why no engine computes operations that are not built in."""
    x, w = problem.x, problem.w
    if x.rank == 3:
        return "these operations have engines for images of two and three dimensions alone"
    layout = CHANNELS_LAST[x.rank]
    is_channels_last = x.fits(layout) and problem.y.fits(layout) and w.format == TensorFormat.NHWC
    if x.dtype == DataType.DOUBLE or not is_channels_last:
        return (
            "these operations have engines with channels last in memory alone, and none in float64"
        )
    is_bfloat16 = x.dtype == DataType.BFLOAT16
    is_rotated = problem.conv.mode == ConvolutionMode.CONVOLUTION
    is_depthwise_bfloat16 = is_bfloat16 and w.shape[1] == 1
    if is_rotated or is_depthwise_bfloat16:
        return (
            "these operations have no engines behind a rotated filter, nor behind a depthwise one "
            "in bfloat16"
        )
    needs_tensor_cores = is_bfloat16 or x.rank == 5
    if needs_tensor_cores and not uses_tensor_cores:
        return (
            "these operations in bfloat16, and in three dimensions, have engines with tensor cores "
            "alone"
        )
    return None


def _class_of(operation: BackendObject, y: TensorSpec) -> str | None:
    """Return the class of an operation, as far as engines differ; None if it has none."""
    mode = mode_of(operation)
    if mode in UNARY:
        return "built in" if mode in _BUILT_IN else "function"
    if mode not in BINARY:
        return None
    b = spec_of(operation.value("bdesc"))
    is_addition = mode == PointwiseMode.ADD
    if b.shape == y.shape and same_strides(y.shape, y.strides, b.strides):
        return "added image" if is_addition else None
    if b.shape == (1, y.shape[1], *[1] * (y.rank - 2)):
        return "added channels" if is_addition else "multiplied channels"
    if b.size == 1 and is_addition:
        return "added number"
    return None
