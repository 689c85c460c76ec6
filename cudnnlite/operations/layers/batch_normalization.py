"""Batch normalisation: inference, training and backward, with an addition and a relu."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnnlite.arguments import one_of, real_number, shown
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import ActivationMode, BatchNormMode, parse_enum
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.function import operation
from cudnnlite.plans.operands import tensor_spec, view_operand, with_channel_axis
from cudnnlite.plans.request import Request
from cudnnlite.problems.batch_normalization import (
    BACKWARD,
    BACKWARD_ADD_RELU,
    BACKWARD_RELU,
    INFERENCE,
    TRAINING,
    TRAINING_ADD_RELU,
    TRAINING_OF_BATCH,
    TRAINING_OF_BATCH_ADD_RELU,
    TRAINING_OF_BATCH_RELU,
    TRAINING_RELU,
)
from cudnnlite.specs.layers import ActivationSpec
from cudnnlite.specs.layout import CHANNELS_LAST
from cudnnlite.specs.names import ActivationModeName, BatchNormModeName

# The mode that "auto" stands for in inference, where all spatial modes are the same.
_AUTO = {"auto": BatchNormMode.SPATIAL}


@operation
def batch_normalization_inference(
    handle: Handle,
    x: Operand,
    scale: Operand,
    bias: Operand,
    mean: Operand,
    variance: Operand,
    *,
    mode: BatchNormMode | BatchNormModeName = BatchNormMode.SPATIAL,
    epsilon: float = 1e-5,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Normalise by given statistics: scale * (x - mean) / sqrt(variance + epsilon) + bias.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    x : device array
        ``(N, C, *spatial)``, or ``(N, C)``; float32, float64, float16 or bfloat16.  An H200 takes
        up to 65535 images, unless with mode="per_activation".
    scale, bias, mean, variance : device arrays
        ``(C,)`` or ``(1, C, 1, ...)``, or ``(1, C, *spatial)`` with mode="per_activation"; float64
        if `x` is float64, float32 otherwise.
    mode : BatchNormMode or str
        "spatial" and "spatial_persistent": statistics for each channel.  "per_activation":
        statistics for each value of an image, with the channels first.  "auto" stands for "spatial"
        here.
    epsilon : float
        Added to the variance.
    alpha, beta : float
        Host scalars: y = alpha * result + beta * y.  With beta = 0 `out` is not read.
    out : device array, optional
        y, written in place; a new array if not given.

    Returns
    -------
    DeviceArray
        y, shaped as `x`.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnBatchNormalizationForwardInference`, deprecated since cuDNN 9.0.0, still
    shipped and working.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.array([3, 5], np.float32).reshape(1, 2, 1, 1))
    ...     one = handle.array(np.ones((1, 2, 1, 1), np.float32))
    ...     y = dnn.batch_normalization_inference(handle, x, one, one, one, one, epsilon=0)
    ...     print(y.numpy().ravel())
    [3. 5.]
    """
    kind = parse_enum(BatchNormMode, mode, "mode", _AUTO)
    parameters = _by_channel(handle, x, scale=scale, bias=bias, mean=mean, variance=variance)
    return Request(handle, INFERENCE, (x, *parameters), (kind, epsilon), alpha, beta, out)


@operation
def batch_normalization_training(
    handle: Handle,
    x: Operand,
    scale: Operand,
    bias: Operand,
    *,
    running_mean: Operand | None = None,
    running_var: Operand | None = None,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
    mode: BatchNormMode | BatchNormModeName = "auto",
    activation: ActivationSpec | ActivationMode | ActivationModeName | None = None,
    z: Operand | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: object = None,
) -> Request[tuple[DeviceArray, ...]]:
    """Normalise by the statistics of the batch, and update the running statistics.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    x, scale, bias
        As in `batch_normalization_inference`.  `x` has at least two values for each of `scale`,
        because the unbiased variance of one value is not a number.
    running_mean, running_var : device arrays, optional
        Shaped as `scale`; updated in place: ``running = (1 - momentum) * running + momentum *
        batch``.  The variance is the unbiased one.  Both or none; without them nothing is averaged
        over calls.
    momentum : float
        The weight of the batch's statistics, from 0 to 1.  1 / (calls so far) gives the mean over
        all calls.
    epsilon
        As in `batch_normalization_inference`.
    mode : BatchNormMode or str
        As in `batch_normalization_inference`, except for "auto".  "auto" is "spatial_persistent"
        with an activation, which needs it, and with the channels last, where "spatial" took 7 to 67
        times as long on an H200.  Otherwise it is "spatial".  With the channels first,
        "spatial_persistent" took as little as a third of the time, but NVIDIA warns of overflows.
    activation : ActivationSpec, ActivationMode or str, optional
        "relu", applied to the result in the same call, which then returns ``(y, saved_mean,
        saved_inv_variance, reserve)``.  cuDNN has no other function here, and supports float32,
        float16 and bfloat16 with the channels last and without gaps.
    z : device array, optional
        An array that is added before the activation, a residual for instance.  It is shaped as `x`;
        the number of channels must be a multiple of 4.
    alpha, beta : float
        Host scalars: y = alpha * result + beta * y.  With beta = 0 `out[0]` is not read.
    out : tuple of device arrays, optional
        y, saved_mean, saved_inv_variance, written in place.  New arrays are made if it is not
        given, and for an entry that is None.

    Returns
    -------
    tuple of DeviceArray
        y, shaped as `x`; saved_mean and saved_inv_variance, shaped as `scale`, for the backward
        call.  With an activation also the reserve space.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnBatchNormalizationForwardTrainingEx`,
    `cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize`,
    `cudnnGetBatchNormalizationTrainingExReserveSpaceSize`, deprecated since cuDNN 9.0.0, still
    shipped and working.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.array([1, 3], np.float32).reshape(2, 1, 1, 1))
    ...     one, mean, var = (handle.array(np.full((1, 1, 1, 1), v, np.float32)) for v in (1, 0, 0))
    ...     y, saved_mean, saved_inv_variance = dnn.batch_normalization_training(
    ...         handle, x, one, one, running_mean=mean, running_var=var, momentum=0.5, epsilon=0)
    ...     print(y.numpy().ravel(), *(a.numpy().ravel() for a in (saved_mean, mean, var)))
    [0. 2.] [2.] [1.] [1.]
    """
    if z is not None and activation is None:
        raise _addition_without_activation("z")
    kind = _parse_mode(mode, activation)
    x = view_operand(handle, x, "x")
    if kind is None:
        kind = _mode_of_layout(x)
    options: tuple[Any, ...] = (kind, momentum, epsilon)
    operands = (x, *_by_channel(handle, x, scale=scale, bias=bias))
    running = _by_channel(handle, x, running_mean=running_mean, running_var=running_var)
    has_running = running_mean is not None and running_var is not None
    if not has_running:
        _check_both_absent(running_mean, running_var)
        running = []
    declaration = TRAINING if has_running else TRAINING_OF_BATCH
    if activation is not None:
        options = (*options, activation)
        declaration = TRAINING_RELU if has_running else TRAINING_OF_BATCH_RELU
    if z is not None:
        operands = (*operands, z)
        declaration = TRAINING_ADD_RELU if has_running else TRAINING_OF_BATCH_ADD_RELU
    written = declaration.gathered(out, *running)
    return Request(handle, declaration, operands, options, alpha, beta, written)


def _by_channel(handle: Handle, x: object, **parameters: Any) -> list[Any]:
    """Return parameters, those of shape ``(C,)`` as ``(1, C, 1, ...)``."""
    return [with_channel_axis(handle, parameter, x, name) for name, parameter in parameters.items()]


def _check_both_absent(running_mean: object, running_var: object) -> None:
    """Raise ArgumentError if one of the running statistics is given."""
    running = {"running_mean": running_mean, "running_var": running_var}
    missing = [name for name, array in running.items() if array is None]
    if len(missing) == 1:
        raise ArgumentError(f"{missing[0]} has to be given where the other is, or neither of them")


def _addition_without_activation(argument: str) -> ArgumentError:
    return ArgumentError(
        f"{argument} is given without an activation; cuDNN adds z before a relu alone: "
        "activation='relu'"
    )


def _check_unscaled(scalars: Mapping[str, float]) -> None:
    """Raise ArgumentError for a factor that cuDNN does not apply through an activation."""
    for name, value in scalars.items():
        default = 0 if name.startswith("beta") else 1
        if real_number(value, name) != default:
            raise ArgumentError(f"{name}={shown(value)} with an activation; allowed: {default}")


def _parse_mode(mode: object, activation: object) -> BatchNormMode | None:
    """Return the mode; None for "auto" where the layout of x decides."""
    if not (isinstance(mode, str) and mode.lower() == "auto"):
        return parse_enum(BatchNormMode, mode, "mode", _AUTO)
    if activation is not None:
        # cuDNN has activations in this mode alone.
        return BatchNormMode.SPATIAL_PERSISTENT
    return None


def _mode_of_layout(x: object) -> BatchNormMode:
    """Return the mode that "auto" stands for, by the layout of x."""
    spec = tensor_spec(x, "x")
    if spec.is_channels_last and spec.fits(CHANNELS_LAST.get(spec.rank, "")):
        return BatchNormMode.SPATIAL_PERSISTENT
    return BatchNormMode.SPATIAL


@operation
def batch_normalization_backward(
    handle: Handle,
    x: Operand,
    dy: Operand,
    scale: Operand,
    saved_mean: Operand,
    saved_inv_variance: Operand,
    *,
    mode: BatchNormMode | BatchNormModeName = "auto",
    epsilon: float = 1e-5,
    activation: ActivationSpec | ActivationMode | ActivationModeName | None = None,
    y: Operand | None = None,
    bias: Operand | None = None,
    reserve: AnyArray | None = None,
    added: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    alpha_param: float | None = None,
    beta_param: float | None = None,
    out: object = None,
) -> Request[tuple[DeviceArray, ...]]:
    """Compute the gradients of a batch normalisation's input, scale and bias.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    x, dy, scale : device arrays
        `x` and `scale` of the training call, and the gradient of its `y`.
    saved_mean, saved_inv_variance : device arrays
        The statistics that the training call returned.
    mode, epsilon, activation
        As in the training call.
    y, bias, reserve : device arrays
        Needed with an activation, and refused without one: `y` and `reserve` as the training call
        returned them, and its `bias`.
    added : bool
        Whether the training call had a `z`.  Then the gradient of `z` is returned last: ``(dx,
        dscale, dbias, dz)``.
    alpha, beta : float
        Host scalars: dx = alpha * result + beta * dx.  With beta = 0 `out[0]` is not read.  With an
        activation they must be 1 and 0.
    alpha_param, beta_param : float, optional
        The same of dscale and dbias, C's `alphaParamDiff` and `betaParamDiff`.  With beta_param = 0
        `out[1]` and `out[2]` are not read.  The defaults are the values of `alpha` and `beta`.
    out : tuple of device arrays, optional
        dx, dscale, dbias, written in place.  New arrays are made if it is not given, and for an
        entry that is None.

    Returns
    -------
    tuple of DeviceArray
        dx, shaped as `x`; dscale and dbias, shaped as `scale`; with `added` also dz, shaped as `x`.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnBatchNormalizationBackwardEx`,
    `cudnnGetBatchNormalizationBackwardExWorkspaceSize`,
    `cudnnGetBatchNormalizationTrainingExReserveSpaceSize`, deprecated since cuDNN 9.0.0, still
    shipped and working.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.array([1, 3], np.float32).reshape(2, 1, 1, 1))
    ...     one, mean = (handle.array(np.full((1, 1, 1, 1), v, np.float32)) for v in (1, 2))
    ...     dx, dscale, dbias = dnn.batch_normalization_backward(
    ...         handle, x, x, one, mean, one, epsilon=0
    ...     )
    ...     print(dx.numpy().ravel(), dscale.numpy().ravel(), dbias.numpy().ravel())
    [0. 0.] [2.] [4.]
    """
    if one_of(added, "added", True, False) and activation is None:
        raise _addition_without_activation("added")
    kind = _parse_mode(mode, activation)
    x = view_operand(handle, x, "x")
    if kind is None:
        kind = _mode_of_layout(x)
    scale, saved_mean, saved_inv_variance, bias = _by_channel(
        handle,
        x,
        scale=scale,
        saved_mean=saved_mean,
        saved_inv_variance=saved_inv_variance,
        bias=bias,
    )
    options = (kind, epsilon)
    if activation is None:
        for name, array in (("y", y), ("bias", bias), ("reserve", reserve)):
            if array is not None:
                raise ArgumentError(
                    f"{name} is given without the activation of the training call, "
                    "and is used with an activation alone"
                )
        return Request(
            handle,
            BACKWARD,
            (x, dy, scale, saved_mean, saved_inv_variance),
            options,
            alpha,
            beta,
            BACKWARD.gathered(out),
            own_scalars={"alpha_param": alpha_param, "beta_param": beta_param},
        )
    scalars = {"alpha": alpha, "beta": beta}
    if alpha_param is not None:
        scalars["alpha_param"] = alpha_param
    if beta_param is not None:
        scalars["beta_param"] = beta_param
    _check_unscaled(scalars)
    for name, array in (("y", y), ("bias", bias), ("reserve", reserve)):
        if array is None:
            raise ArgumentError(
                f"{name} has to be given with an activation: as the training call had it"
            )
    declaration = BACKWARD_ADD_RELU if added else BACKWARD_RELU
    return Request(
        handle,
        declaration,
        (x, dy, scale, saved_mean, saved_inv_variance, y, bias),
        (*options, activation),
        out=declaration.gathered(out),
        reserve=reserve,
    )
