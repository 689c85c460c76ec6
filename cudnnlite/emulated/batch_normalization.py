"""Emulated batch normalisation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from cudnnlite._raw.enums import BatchNormOps
from cudnnlite.descriptors import TensorDescriptor
from cudnnlite.emulated.operation_call import (
    Array,
    Call,
    Values,
    computes,
    nbytes_of_bits,
    why_not_one_layout,
)
from cudnnlite.emulated.registry import emulates, unsupported
from cudnnlite.enums import BatchNormMode, Status
from cudnnlite.problems import batch_normalization as declarations
from cudnnlite.problems.operation import FLOATS
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import ActivationSpec

_WORKSPACE = 1592  # bytes that an H200 wants for small images; it wants more for larger ones
_IMAGES = ("x", "y", "dy", "dx")
# The largest batches that an H200 took with PER_ACTIVATION; it refused 1,000,000 images, and 131,072
# in training.
_MOST_PER_ACTIVATION = 131_072
_MOST_TRAINED_PER_ACTIVATION = 70_000


def _axes(x: Array, mode: BatchNormMode) -> tuple[int, ...]:
    if mode == BatchNormMode.PER_ACTIVATION:
        return (0,)
    return (0, *range(2, x.ndim))


def _has_channels_first(spec: TensorSpec) -> bool:
    """Return whether the axes have their order in memory too, with gaps or without."""
    strides = [stride for size, stride in zip(spec.shape, spec.strides, strict=True) if size > 1]
    return strides == sorted(strides, reverse=True)


def _why_refused(specs: Values, options: Values) -> str | None:
    """Return why an H200 refuses layouts, without an activation.

    SPATIAL takes images with gaps beside packed ones, if the channels come first; PER_ACTIVATION
    takes no images but those with channels first.
    """
    mode = options["mode"]
    channels_first = all(_has_channels_first(spec) for spec in specs.values())
    if mode == BatchNormMode.SPATIAL and channels_first:
        return None
    if mode == BatchNormMode.PER_ACTIVATION and not channels_first:
        return "PER_ACTIVATION: the channels do not come first"
    images = {name: spec for name, spec in specs.items() if name in _IMAGES}
    return why_not_one_layout(images, options)


def _why_training_refused(specs: Values, options: Values) -> str | None:
    if options["mode"] == BatchNormMode.PER_ACTIVATION:
        _refuse_more_images(specs["x"], _MOST_TRAINED_PER_ACTIVATION)
    return _why_refused(specs, options)


def _why_inference_refused(specs: Values, options: Values) -> str | None:
    is_by_channel = options["mode"] != BatchNormMode.PER_ACTIVATION
    most = declarations.MOST_IMAGES if is_by_channel else _MOST_PER_ACTIVATION
    _refuse_more_images(specs["x"], most)
    if options["mode"] == BatchNormMode.SPATIAL:
        return None
    return _why_refused(specs, options)


def _refuse_more_images(x: TensorSpec, most: int) -> None:
    """Raise RefusalError for a larger batch than an H200 was seen to take."""
    if x.shape[0] > most:
        raise unsupported(f"{x.shape[0]} images, more than {most}")


def _why_fused_refused(specs: Values, options: Values) -> str | None:
    """Refuse channels that are not next to each other in memory, also a single channel."""
    if specs["x"].strides[1] == 1:
        return None
    return "the channels come first"


def _training_workspace(specs: Values) -> int:
    """`cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize`: return the bytes."""
    return _WORKSPACE


def _backward_workspace(specs: Values) -> int:
    """`cudnnGetBatchNormalizationBackwardExWorkspaceSize`: return the bytes."""
    return _WORKSPACE


@emulates("cudnnGetBatchNormalizationTrainingExReserveSpaceSize")
def reserve_size(c_call: SimpleNamespace) -> None:
    """`cudnnGetBatchNormalizationTrainingExReserveSpaceSize`: with an addition a bit a value."""
    count = TensorDescriptor.read(c_call.api.real, c_call.xDesc).size
    has_addition = c_call.bnOps == BatchNormOps.BN_ADD_ACTIVATION
    c_call.sizeInBytes[0] = nbytes_of_bits(count) if has_addition else 0


@computes(
    declarations.INFERENCE,
    dtypes=FLOATS,
    same_dtype=("x", "y"),
    why_refused=_why_inference_refused,
)
def inference(
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    mode: BatchNormMode,
    epsilon: float,
) -> Array:
    """`cudnnBatchNormalizationForwardInference`: return the normalised values."""
    return np.asarray(scale * (x - mean) / np.sqrt(variance + x.dtype.type(epsilon)) + bias)


@computes(
    declarations.TRAINING,
    dtypes=FLOATS,
    same_dtype=("x", "y"),
    why_refused=_why_training_refused,
    workspace=_training_workspace,
)
def training(
    x: Array,
    scale: Array,
    bias: Array,
    running_mean: Array,
    running_var: Array,
    mode: BatchNormMode,
    momentum: float,
    epsilon: float,
) -> tuple[Array, ...]:
    """`cudnnBatchNormalizationForwardTrainingEx`: return values, batch and running statistics."""
    axes = _axes(x, mode)
    weight = x.dtype.type(momentum)
    mean = x.mean(axes, keepdims=True)
    variance = x.var(axes, keepdims=True)
    inverse_deviation = 1 / np.sqrt(variance + x.dtype.type(epsilon))
    count = x.dtype.type(x.size // mean.size)
    unbiased = variance * count / (count - 1)
    y = scale * (x - mean) * inverse_deviation + bias
    new_mean = (1 - weight) * running_mean + weight * mean
    new_var = (1 - weight) * running_var + weight * unbiased
    return y, mean, inverse_deviation, new_mean, new_var


@computes(
    declarations.TRAINING_RELU,
    dtypes=FLOATS,
    same_dtype=("x", "y"),
    why_refused=_why_fused_refused,
    refusal_status=Status.NOT_SUPPORTED,
    workspace=_training_workspace,
)
def training_relu(
    *operands: Array, activation: ActivationSpec, call: Call, **options: Any
) -> tuple[Array, ...]:
    """`cudnnBatchNormalizationForwardTrainingEx`: return the same, with a relu behind it."""
    y, *statistics = training(*operands, **options)
    return np.maximum(y, 0), *statistics


@computes(
    declarations.TRAINING_ADD_RELU,
    dtypes=FLOATS,
    same_dtype=("x", "y", "z"),
    why_refused=_why_fused_refused,
    refusal_status=Status.NOT_SUPPORTED,
    workspace=_training_workspace,
)
def training_add_relu(
    x: Array,
    scale: Array,
    bias: Array,
    z: Array,
    *running: Array,
    activation: ActivationSpec,
    call: Call,
    **options: Any,
) -> tuple[Array, ...]:
    """`cudnnBatchNormalizationForwardTrainingEx`: return the same, with z added before the relu.

    The reserve space notes which values are positive.
    """
    y, *statistics = training(x, scale, bias, *running, **options)
    y = y + z
    call.reserve(nbytes_of_bits(x.size))[:] = np.packbits(y > 0)
    return np.maximum(y, 0), *statistics


@computes(
    declarations.TRAINING_OF_BATCH,
    dtypes=FLOATS,
    same_dtype=("x", "y"),
    why_refused=_why_training_refused,
    workspace=_training_workspace,
)
def training_of_batch(x: Array, scale: Array, bias: Array, **options: Any) -> tuple[Array, ...]:
    """`cudnnBatchNormalizationForwardTrainingEx`: return the same, without running statistics."""
    y, mean, inverse_deviation, *_ = training(x, scale, bias, scale, scale, **options)
    return y, mean, inverse_deviation


@computes(
    declarations.TRAINING_OF_BATCH_RELU,
    dtypes=FLOATS,
    same_dtype=("x", "y"),
    why_refused=_why_fused_refused,
    refusal_status=Status.NOT_SUPPORTED,
    workspace=_training_workspace,
)
def training_of_batch_relu(
    x: Array, scale: Array, bias: Array, call: Call, **options: Any
) -> tuple[Array, ...]:
    """`cudnnBatchNormalizationForwardTrainingEx`: return the same, with a relu behind it."""
    y, mean, inverse_deviation, *_ = training_relu(
        x, scale, bias, scale, scale, call=call, **options
    )
    return y, mean, inverse_deviation


@computes(
    declarations.TRAINING_OF_BATCH_ADD_RELU,
    dtypes=FLOATS,
    same_dtype=("x", "y", "z"),
    why_refused=_why_fused_refused,
    refusal_status=Status.NOT_SUPPORTED,
    workspace=_training_workspace,
)
def training_of_batch_add_relu(
    x: Array, scale: Array, bias: Array, z: Array, call: Call, **options: Any
) -> tuple[Array, ...]:
    """`cudnnBatchNormalizationForwardTrainingEx`: return the same, with z added before the relu."""
    y, mean, inverse_deviation, *_ = training_add_relu(
        x, scale, bias, z, scale, scale, call=call, **options
    )
    return y, mean, inverse_deviation


@computes(
    declarations.BACKWARD,
    dtypes=FLOATS,
    same_dtype=("x", "dy", "dx"),
    why_refused=_why_refused,
    workspace=_backward_workspace,
)
def backward(
    x: Array,
    dy: Array,
    scale: Array,
    saved_mean: Array,
    saved_inv_variance: Array,
    mode: BatchNormMode,
    epsilon: float,
) -> tuple[Array, Array, Array]:
    """`cudnnBatchNormalizationBackwardEx`: return the gradients of x, scale and bias."""
    axes = _axes(x, mode)
    normalised = (x - saved_mean) * saved_inv_variance
    dbias = dy.sum(axes, keepdims=True)
    dscale = (dy * normalised).sum(axes, keepdims=True)
    count = x.dtype.type(x.size // dbias.size)
    centred = dy - (dbias + normalised * dscale) / count
    return scale * saved_inv_variance * centred, dscale, dbias


@computes(
    declarations.BACKWARD_RELU,
    dtypes=FLOATS,
    same_dtype=("x", "dy", "dx", "y"),
    why_refused=_why_fused_refused,
    refusal_status=Status.NOT_SUPPORTED,
    workspace=_backward_workspace,
)
def backward_relu(
    x: Array,
    dy: Array,
    scale: Array,
    saved_mean: Array,
    saved_inv_variance: Array,
    y: Array,
    bias: Array,
    activation: ActivationSpec,
    call: Call,
    **options: Any,
) -> tuple[Array, Array, Array]:
    """`cudnnBatchNormalizationBackwardEx`: return the same gradients through the relu."""
    is_positive = scale * (x - saved_mean) * saved_inv_variance + bias > 0
    dz = np.where(is_positive, dy, 0)
    dx, dscale, dbias = backward(x, dz, scale, saved_mean, saved_inv_variance, **options)
    return dx, dscale, dbias


@computes(
    declarations.BACKWARD_ADD_RELU,
    dtypes=FLOATS,
    same_dtype=("x", "dy", "dx", "dz", "y"),
    why_refused=_why_fused_refused,
    refusal_status=Status.NOT_SUPPORTED,
    workspace=_backward_workspace,
)
def backward_add_relu(
    x: Array,
    dy: Array,
    scale: Array,
    saved_mean: Array,
    saved_inv_variance: Array,
    y: Array,
    bias: Array,
    activation: ActivationSpec,
    call: Call,
    **options: Any,
) -> tuple[Array, Array, Array, Array]:
    """`cudnnBatchNormalizationBackwardEx`: return the same gradients, and that of z.

    The reserve space says which values are positive.
    """
    dz = np.where(call.reserved_bits(x.shape), dy, 0)
    dx, dscale, dbias = backward(x, dz, scale, saved_mean, saved_inv_variance, **options)
    return dx, dscale, dbias, dz
