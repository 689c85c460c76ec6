"""Emulated batch normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from cudnnlite._raw.enums import BatchNormOps
from cudnnlite.descriptors import TensorDescriptor
from cudnnlite.emulated.operation import Array, Call, bits_bytes, computes, in_one_layout
from cudnnlite.emulated.registry import emulates
from cudnnlite.enums import BatchNormMode, Status
from cudnnlite.problems.operation import FLOATS
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
    "batch_normalization_inference", dtypes=FLOATS, alike=("x", "y"), refuse=_inference_refused
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
    """Return the normalised values."""
    return np.asarray(scale * (x - mean) / np.sqrt(variance + x.dtype.type(epsilon)) + bias)


@emulates("cudnnGetBatchNormalizationTrainingExReserveSpaceSize")
def reserve_size(given: SimpleNamespace) -> None:
    """Tell how large the reserve space is: with an addition a bit for each value."""
    count = TensorDescriptor.read(given.api.real, given.xDesc).size
    given.sizeInBytes[0] = bits_bytes(count) if given.bnOps == BatchNormOps.BN_ADD_ACTIVATION else 0


def training(
    x: Array,
    scale: Array,
    bias: Array,
    *given: Array,
    mode: BatchNormMode,
    momentum: float,
    epsilon: float,
    activation: Any = None,
    call: Any = None,
) -> tuple[Array, ...]:
    """Return the normalised values, the batch's mean and inverse deviation, and the running statistics.

    With an activation through a relu; with a z, which is added before, the reserve space notes what was positive.
    """
    *z, running_mean, running_var = given
    axes, new = _axes(x, mode), x.dtype.type(momentum)
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + x.dtype.type(epsilon))
    count = x.size // mean.size
    unbiased = variance * x.dtype.type(count / max(count - 1, 1))
    running = ((1 - new) * running_mean + new * mean, (1 - new) * running_var + new * unbiased)
    y = scale * (x - mean) * inverse + bias
    if z:
        y = y + z[0]
        call.reserve(bits_bytes(x.size))[:] = np.packbits(y > 0)
    return (y if activation is None else np.maximum(y, 0), mean, inverse, *running)


def backward(
    x: Array,
    dy: Array,
    scale: Array,
    saved_mean: Array,
    saved_inv_variance: Array,
    mode: BatchNormMode,
    epsilon: float,
) -> tuple[Array, ...]:
    """Return the gradients of x, scale and bias."""
    axes, normal = _axes(x, mode), (x - saved_mean) * saved_inv_variance
    dbias, dscale = dy.sum(axes, keepdims=True), (dy * normal).sum(axes, keepdims=True)
    count = x.dtype.type(x.size // dbias.size)
    return scale * saved_inv_variance * (dy - (dbias + normal * dscale) / count), dscale, dbias


def fused_backward(
    x: Array,
    dy: Array,
    scale: Array,
    saved_mean: Array,
    saved_inv_variance: Array,
    y: Array,
    bias: Array,
    call: Call,
    activation: Any,
    **options: Any,
) -> tuple[Array, ...]:
    """Return the same through the relu; with an addition the gradient of z too: the reserve space says what was positive."""
    added = "dz" in call.specs
    positive = (
        call.kept_bits(x.shape)
        if added
        else scale * (x - saved_mean) * saved_inv_variance + bias > 0
    )
    dz = np.where(positive, dy, 0)
    return (
        *backward(x, dz, scale, saved_mean, saved_inv_variance, **options),
        *([dz] if added else []),
    )


def _fused_refused(specs: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Refuse channels that do not lie next to each other, also where there is one."""
    return "" if specs["x"].strides[1] == 1 else "the channels come first"


_WORKSPACE = 1592  # what an H200 wants for small images; for larger ones more
for _name, _read, _written in (("", (), ()), ("_relu", (), ()), ("_add_relu", ("z",), ("dz",))):
    for _way, _compute, _alike in (
        ("training", training, ("x", "y", *_read)),
        (
            "backward",
            fused_backward if _name else backward,
            ("x", "dy", "dx", *_written, *(["y"] if _name else [])),
        ),
    ):
        computes(
            f"batch_normalization_{_way}{_name}",
            dtypes=FLOATS,
            alike=_alike,
            refuse=_fused_refused if _name else _refused,
            refused=Status.NOT_SUPPORTED if _name else Status.BAD_PARAM,
            workspace=lambda specs: _WORKSPACE,
        )(_compute)
