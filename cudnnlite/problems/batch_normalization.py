"""Batch normalisation as declarations: inference, training and backward.

Training and backward exist with a relu, too, and with an addition before the relu.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from cudnnlite._raw.enums import BatchNormOps
from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import ActivationMode, BatchNormMode, DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.operation import Description, Operation
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import ActivationSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST, channels_last_hint

_SAVED = ("saved_mean", "saved_inv_variance")
_RUNNING = ("running_mean", "running_var")
_SCALE_AND_BIAS = {"bnScale": "scale", "bnBias": "bias", "bnScaleBiasMeanVarDesc": "scaleDesc"}
_SPEC_OF_SCALE = itemgetter("scale")
_IMAGES = frozenset({"x", "y", "z", "dx", "dy", "dz"})
# The largest batch that inference by channel takes: an H200 refuses 65536 images of any size.
MOST_IMAGES = 65535


def _parameter_spec(x: TensorSpec, mode: BatchNormMode) -> TensorSpec:
    """Return the spec of scale, bias and statistics.

    They have one value for each channel.  With mode PER_ACTIVATION they have one for each value of
    an image.
    """
    if x.rank not in (2, *CHANNELS_FIRST):
        raise ArgumentError(f"x={x}: it must be (N, C, *spatial), of rank 2 to 5")
    shape = (1, *x.shape[1:2], *[1] * (x.rank - 2))
    if mode == BatchNormMode.PER_ACTIVATION:
        shape = (1, *x.shape[1:])
    dtype = DataType.DOUBLE if x.dtype == DataType.DOUBLE else DataType.FLOAT
    if x.rank == 2:  # Vectors are images of one pixel.
        return TensorSpec(shape, dtype)
    return x.packed(shape, dtype)


def _check_parameter(name: str, spec: TensorSpec, x: TensorSpec, mode: BatchNormMode) -> None:
    """Raise ArgumentError unless a parameter has the shape and data type that x needs."""
    expected = _parameter_spec(x, mode)
    if (spec.shape, spec.dtype) != (expected.shape, expected.dtype):
        requirement = f"{expected.shape} in {dtype_name(expected.dtype)}, for mode={mode.name}"
        is_by_channel = mode != BatchNormMode.PER_ACTIVATION
        has_size_of_last_axis = spec.size == x.shape[-1] != x.shape[1]
        hint = channels_last_hint(x.rank) if is_by_channel and has_size_of_last_axis else ""
        raise ArgumentError(f"{name} is {spec}; needed: {requirement}{hint}")


def _check(specs: Any, options: Any) -> None:
    x = specs["x"]
    if x.size == 0:
        raise ArgumentError(
            f"x is {x}; training computes its mean and variance and needs at least one image"
        )
    _check_inference(specs, options)


def _check_training(specs: Any, options: Any) -> None:
    """Raise ArgumentError for statistics of one value, too: an H200 writes NaN into running_var.

    The unbiased variance of one value is 0 / 0.
    """
    _check(specs, options)
    x, scale = specs["x"], specs["scale"]
    if x.size == scale.size:
        unit = "position" if options["mode"] == BatchNormMode.PER_ACTIVATION else "channel"
        raise ArgumentError(
            f"x is {x}, one value per {unit}; training computes a mean and an unbiased variance "
            f"per {unit} and needs at least two values for each"
        )


def _check_inference(specs: Any, options: Any) -> None:
    if not 0 <= options["epsilon"] < float("inf"):
        raise ArgumentError(f"epsilon={options['epsilon']}; needed: a number from 0 on")
    if not 0 <= options.get("momentum", 0) <= 1:
        raise ArgumentError(f"momentum={options['momentum']}; needed: a number from 0 to 1")
    x, scale, mode = specs["x"], specs["scale"], options["mode"]
    for name, spec in specs.items():
        if mode == BatchNormMode.PER_ACTIVATION and spec.is_channels_last:
            raise ArgumentError(
                f"{name} is {spec}; with mode=PER_ACTIVATION the channels must come first"
            )
        if name in _IMAGES:
            if (spec.shape, spec.dtype) != (x.shape, x.dtype):
                raise ArgumentError(f"{name} is {spec}; it must have the shape and dtype of x, {x}")
            continue
        _check_parameter(name, spec, x, mode)
        if not spec.fits(spec.layout) or spec != scale:
            raise ArgumentError(
                f"{name} is {spec}; it must be packed, and have the layout of scale, {scale}"
            )


def _check_fused(specs: Any, options: Any) -> None:
    """Raise ArgumentError for what an H200 refuses or computes wrongly (swish)."""
    _check(specs, options)
    _check_activation(specs, options)


def _check_fused_training(specs: Any, options: Any) -> None:
    _check_training(specs, options)
    _check_activation(specs, options)


def _check_activation(specs: Any, options: Any) -> None:
    x, activation = specs["x"], options["activation"]
    has_addition = bool({"z", "dz"} & specs.keys())
    if activation.mode != ActivationMode.RELU:
        raise ArgumentError(
            f"activation={activation.mode.name}; batch normalisation is fused with RELU only"
        )
    if options["mode"] != BatchNormMode.SPATIAL_PERSISTENT:
        raise ArgumentError(
            f"mode={options['mode'].name} with an activation; allowed: SPATIAL_PERSISTENT"
        )
    if x.dtype == DataType.DOUBLE:
        raise ArgumentError("x is float64; with an activation allowed: float32, float16, bfloat16")
    if has_addition and x.shape[1] % 4:
        raise ArgumentError(
            f"x has {x.shape[1]} channels; with an addition they must be a multiple of 4"
        )
    for name in specs.keys() & _IMAGES:
        if not specs[name].fits(CHANNELS_LAST.get(x.rank, "")):
            hint = f", as {name}.reshape((*{name}.shape, 1, 1)) has them" if x.rank == 2 else ""
            raise ArgumentError(
                f"{name} is {specs[name]}; "
                f"with an activation the channels must be last, without gaps{hint}"
            )


def _infer_training(
    x: TensorSpec, scale: TensorSpec, mode: BatchNormMode, **_: Any
) -> tuple[TensorSpec, ...]:
    """Return the specs of the result and of the statistics, which have the spec of scale.

    A wrong scale is refused first, because its spec is that of the others.
    """
    if scale.shape != _parameter_spec(x, mode).shape:
        _check_parameter("scale", scale, x, mode)
    return x, scale, scale, scale, scale


def _infer_batch_alone(
    x: TensorSpec, scale: TensorSpec, mode: BatchNormMode, **_: Any
) -> tuple[TensorSpec, ...]:
    """Return the specs of the result and of the batch's statistics."""
    return _infer_training(x, scale, mode)[:3]


def _alignments(specs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the alignments that training needs on an H200; with less, the CUDA context ends.

    With the channels last, which images of one pixel always have, the persistent kernels load 8
    bytes of the images and 16 of everything else.  The other kernels of the spatial modes load
    pairs of 16-bit values.
    """
    x, mode = specs["x"], options["mode"]
    if mode == BatchNormMode.PER_ACTIVATION or x.dtype == DataType.DOUBLE:
        return {}
    if mode == BatchNormMode.SPATIAL_PERSISTENT and x.fits(CHANNELS_LAST.get(x.rank, "")):
        return {name: 8 if name in _IMAGES else 16 for name in specs}
    if x.dtype == DataType.FLOAT:
        return {}
    return dict.fromkeys(_IMAGES & specs.keys(), 4)


def _hint(problem: Any) -> str:
    images = problem.x.shape[0]
    is_by_channel = problem.options["mode"] != BatchNormMode.PER_ACTIVATION
    if not is_by_channel or images <= MOST_IMAGES:
        return ""
    return f"x has {images} images; cuDNN takes up to {MOST_IMAGES} at once: split the batch"


INFERENCE = Operation(
    "batch_normalization_inference",
    "cudnnBatchNormalizationForwardInference",
    reads=("x", "scale", "bias", "mean", "variance"),
    writes=("y",),
    infer=lambda x, **_: x,
    options={"mode": BatchNormMode, "epsilon": float},
    names={**_SCALE_AND_BIAS, "estimatedMean": "mean", "estimatedVariance": "variance"},
    without_descriptor=dict.fromkeys(("bias", "mean", "variance"), _SPEC_OF_SCALE),
    mixed=True,
    check=_check_inference,
    description=Description(hint=_hint),
)


def _training(
    name: str,
    ops: BatchNormOps,
    extra: tuple[str, ...] = (),
    running: tuple[str, ...] = _RUNNING,
    **absent: None,
) -> Operation:
    """Return the training of one kind: alone, with a relu, or with an addition before the relu.

    Without `running` it computes the statistics of the batch alone, and C receives null pointers.
    """
    activation = {} if ops == BatchNormOps.BN else {"activation": ActivationSpec}
    if not running:
        name = f"_of_batch{name}"
        absent = {**absent, **dict.fromkeys(_RUNNING)}
    return Operation(
        f"batch_normalization_training{name}",
        "cudnnBatchNormalizationForwardTrainingEx",
        reads=("x", "scale", "bias", *extra),
        writes=("y", *_SAVED, *running),
        infer=_infer_training if running else _infer_batch_alone,
        options={"mode": BatchNormMode, "momentum": float, "epsilon": float, **activation},
        names={
            **_SCALE_AND_BIAS,
            "exponentialAverageFactor": "momentum",
            "resultRunningMean": "running_mean",
            "xData": "x",
            "yData": "y",
            "resultRunningVariance": "running_var",
            "resultSaveMean": _SAVED[0],
            "resultSaveInvVariance": _SAVED[1],
            "zData": "z",
            "workspace": "workSpace",
        },
        caller_provided={name: name for name in running},
        call_operands=("x", "scale", "bias", *running, *extra) if running else (),
        without_descriptor=dict.fromkeys(("bias", *running, *_SAVED), _SPEC_OF_SCALE),
        mixed=True,
        check=_check_fused_training if activation else _check_training,
        constants={"bnOps": ops, **absent},
        alignments=_alignments,
        workspace="cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize",
        reserve="cudnnGetBatchNormalizationTrainingExReserveSpaceSize" if activation else "",
    )


def _backward(
    name: str, ops: BatchNormOps, extra: tuple[str, ...] = (), **absent: None
) -> Operation:
    """Return the gradients of one kind: alone, with a relu, or with an addition before the relu."""
    fused = ops != BatchNormOps.BN
    reads: tuple[str, ...] = ("x", "dy", "scale", *_SAVED)
    if fused:
        reads = (*reads, "y", "bias")
    data = {f"{operand}Data": operand for operand in ("x", "y", "dy", "dx", "dz")}
    needs_spec_of_scale = ("dscale", "dbias", *_SAVED, *(["bias"] if fused else []))
    also_blended = (
        {} if fused else dict.fromkeys(("dscale", "dbias"), ("alpha_param", "beta_param"))
    )
    return Operation(
        f"batch_normalization_backward{name}",
        "cudnnBatchNormalizationBackwardEx",
        reads=reads,
        writes=("dx", "dscale", "dbias", *extra),
        infer=lambda x, scale, **_: (x, scale, scale, *[x] * len(extra)),
        options={
            "mode": BatchNormMode,
            "epsilon": float,
            **({"activation": ActivationSpec} if fused else {}),
        },
        names={
            "bnScaleData": "scale",
            "bnBiasData": "bias",
            "dBnScaleBiasDesc": "scaleDesc",
            "dBnScaleData": "dscale",
            "dBnBiasData": "dbias",
            "savedMean": _SAVED[0],
            "savedInvVariance": _SAVED[1],
            "alphaDataDiff": "alpha",
            "betaDataDiff": "beta",
            "alphaParamDiff": "alpha" if fused else "alpha_param",
            "betaParamDiff": "beta" if fused else "beta_param",
            **data,
        },
        without_descriptor=dict.fromkeys(needs_spec_of_scale, _SPEC_OF_SCALE),
        also_blended=also_blended,
        mixed=True,
        check=_check_fused if fused else _check,
        constants={"bnOps": ops, **absent},
        alignments=_alignments,
        workspace="cudnnGetBatchNormalizationBackwardExWorkspaceSize",
        reserve="cudnnGetBatchNormalizationTrainingExReserveSpaceSize" if fused else "",
    )


_RELU, _ADD_RELU = BatchNormOps.BN_ACTIVATION, BatchNormOps.BN_ADD_ACTIVATION


TRAINING = _training("", BatchNormOps.BN, zDesc=None, z=None, activationDesc=None)


TRAINING_RELU = _training("_relu", _RELU, zDesc=None, z=None)


TRAINING_ADD_RELU = _training("_add_relu", _ADD_RELU, ("z",))


TRAINING_OF_BATCH = _training("", BatchNormOps.BN, (), (), zDesc=None, z=None, activationDesc=None)


TRAINING_OF_BATCH_RELU = _training("_relu", _RELU, (), (), zDesc=None, z=None)


TRAINING_OF_BATCH_ADD_RELU = _training("_add_relu", _ADD_RELU, ("z",), ())


BACKWARD = _backward(
    "", BatchNormOps.BN, yDesc=None, y=None, dzDesc=None, dz=None, bias=None, activationDesc=None
)


BACKWARD_RELU = _backward("_relu", _RELU, dzDesc=None, dz=None)


BACKWARD_ADD_RELU = _backward("_add_relu", _ADD_RELU, ("dz",))
