"""Emulated batch normalisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cudnnlite._raw.enums import BatchNormOps
from cudnnlite.descriptors import TensorDescriptor
from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.operation import Array, Call, computes, in_one_layout
from cudnnlite.emulated.registry import emulates
from cudnnlite.enums import BatchNormMode, Status
from cudnnlite.operations.operation import FLOATS
from cudnnlite.specs import TensorSpec


def _axes(x: Array, mode: BatchNormMode) -> tuple[int, ...]:
    return (0,) if mode == BatchNormMode.PER_ACTIVATION else (0, *range(2, x.ndim))


def _channels_first(spec: TensorSpec) -> bool:
    """Tell whether the axes lie in memory in their order, with gaps or without."""
    steps = [stride for size, stride in zip(spec.shape, spec.strides, strict=True) if size > 1]
    return steps == sorted(steps, reverse=True)


def _refused(specs: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """SPATIAL takes images with gaps beside packed ones, channels first; PER_ACTIVATION takes channels first alone."""
    images = {name: spec for name, spec in specs.items() if name in ("x", "y", "dy", "dx")}
    first = all(_channels_first(spec) for spec in specs.values())
    if options["mode"] == BatchNormMode.SPATIAL and first:
        return ""
    if options["mode"] == BatchNormMode.PER_ACTIVATION and not first:
        return "PER_ACTIVATION: the channels do not come first"
    return in_one_layout(images, options)


def _inference_refused(specs: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    return "" if options["mode"] == BatchNormMode.SPATIAL else _refused(specs, options)


@computes(
    "batch_normalization_inference", "cudnnBatchNormalizationForwardInference", dtypes=FLOATS, alike=("x", "y"),
    refuse=_inference_refused,
)  # fmt: skip
def inference(
    x: Array, scale: Array, bias: Array, mean: Array, variance: Array, mode: BatchNormMode, epsilon: float
) -> Array:
    """Return the normalised values."""
    return np.asarray(scale * (x - mean) / np.sqrt(variance + x.dtype.type(epsilon)) + bias)


@computes(
    "batch_normalization_training", "cudnnBatchNormalizationForwardTraining", dtypes=FLOATS, alike=("x", "y"),
    refuse=_refused,
)  # fmt: skip
def training(
    x: Array, scale: Array, bias: Array, running_mean: Array, running_var: Array, mode: BatchNormMode, momentum: float,
    epsilon: float,
) -> tuple[Array, ...]:  # fmt: skip
    """Return the normalised values, the batch's mean and inverse deviation, and the running statistics."""
    axes, new = _axes(x, mode), x.dtype.type(momentum)
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + x.dtype.type(epsilon))
    count = x.size // mean.size
    unbiased = variance * x.dtype.type(count / max(count - 1, 1))
    running = ((1 - new) * running_mean + new * mean, (1 - new) * running_var + new * unbiased)
    return (scale * (x - mean) * inverse + bias, mean, inverse, *running)


@computes(
    "batch_normalization_backward", "cudnnBatchNormalizationBackward", dtypes=FLOATS, alike=("x", "dy", "dx"),
    refuse=_refused,
)  # fmt: skip
def backward(
    x: Array, dy: Array, scale: Array, saved_mean: Array, saved_inv_variance: Array, mode: BatchNormMode, epsilon: float
) -> tuple[Array, ...]:
    """Return the gradients of x, scale and bias."""
    axes, normal = _axes(x, mode), (x - saved_mean) * saved_inv_variance
    dbias, dscale = dy.sum(axes, keepdims=True), (dy * normal).sum(axes, keepdims=True)
    count = x.dtype.type(x.size // dbias.size)
    return scale * saved_inv_variance * (dy - (dbias + normal * dscale) / count), dscale, dbias


_WORKSPACE = 1592  # what an H200 wants for small images; for larger ones more


def _fused(
    operation: str, function: str, size: str, alike: tuple[str, ...]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return computes(
        operation, function, dtypes=FLOATS, alike=alike, refuse=lambda specs, options: "", refused=Status.NOT_SUPPORTED,
        workspace=lambda specs: _WORKSPACE, workspace_function=size,
    )  # fmt: skip


@emulates("cudnnGetBatchNormalizationTrainingExReserveSpaceSize")
def reserve_size(api: EmulatedApi, handle: Any, mode: int, ops: int, activation: Any, x: Any, size: Any) -> None:
    """Tell how large the reserve space is: with an addition a bit for each value."""
    spec = TensorDescriptor.read(api.real, x)
    size[0] = -(-spec.size // 8) if ops == BatchNormOps.BN_ADD_ACTIVATION else 0


def _relu(
    x: Array, scale: Array, bias: Array, z: Any, running_mean: Array, running_var: Array, call: Call, options: Any
) -> tuple[Array, ...]:
    y, *others = training(x, scale, bias, running_mean, running_var, **options)
    y = y if z is None else y + z
    if z is not None:
        call.reserve(-(-x.size // 8))[:] = np.packbits(y > 0)
    return (np.maximum(y, 0), *others)


@_fused(
    "batch_normalization_training_relu", "cudnnBatchNormalizationForwardTrainingEx",
    "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize", ("x", "y"),
)  # fmt: skip
def training_relu(
    x: Array,
    scale: Array,
    bias: Array,
    running_mean: Array,
    running_var: Array,
    call: Call,
    activation: Any,
    **options: Any,
) -> tuple[Array, ...]:
    """Return what training does, through a relu."""
    return _relu(x, scale, bias, None, running_mean, running_var, call, options)


@_fused(
    "batch_normalization_training_add_relu", "cudnnBatchNormalizationForwardTrainingEx",
    "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize", ("x", "z", "y"),
)  # fmt: skip
def training_add_relu(
    x: Array, scale: Array, bias: Array, z: Array, running_mean: Array, running_var: Array, call: Call, activation: Any,
    **options: Any,
) -> tuple[Array, ...]:  # fmt: skip
    """Return the same with z added before the relu; the reserve space notes what was positive."""
    return _relu(x, scale, bias, z, running_mean, running_var, call, options)


@_fused(
    "batch_normalization_backward_relu", "cudnnBatchNormalizationBackwardEx",
    "cudnnGetBatchNormalizationBackwardExWorkspaceSize", ("x", "y", "dy", "dx"),
)  # fmt: skip
def backward_relu(
    x: Array, y: Array, dy: Array, scale: Array, bias: Array, saved_mean: Array, saved_inv_variance: Array, call: Call,
    activation: Any, **options: Any,
) -> tuple[Array, ...]:  # fmt: skip
    """Return the gradients of x, scale and bias, through the relu."""
    positive = scale * (x - saved_mean) * saved_inv_variance + bias > 0
    found: tuple[Array, ...] = backward(x, np.where(positive, dy, 0), scale, saved_mean, saved_inv_variance, **options)
    return found


@_fused(
    "batch_normalization_backward_add_relu", "cudnnBatchNormalizationBackwardEx",
    "cudnnGetBatchNormalizationBackwardExWorkspaceSize", ("x", "y", "dy", "dx", "dz"),
)  # fmt: skip
def backward_add_relu(
    x: Array, y: Array, dy: Array, scale: Array, bias: Array, saved_mean: Array, saved_inv_variance: Array, call: Call,
    activation: Any, **options: Any,
) -> tuple[Array, ...]:  # fmt: skip
    """Return the same, and the gradient of z; the reserve space says what was positive."""
    positive = np.unpackbits(call.reserve(-(-x.size // 8)), count=x.size).reshape(x.shape)
    dz = np.where(positive, dy, 0)
    return (*backward(x, dz, scale, saved_mean, saved_inv_variance, **options), dz)
