"""Batch normalisation: inference, training, backward; the last two also with an addition and a relu in one call."""

from __future__ import annotations

from typing import Any

from cudnnlite.arguments import one_of, real_number, shown
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import ActivationMode, BatchNormMode, parse_enum
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.function import operation
from cudnnlite.plans.operands import operand_spec
from cudnnlite.plans.request import Request
from cudnnlite.problems.batch_normalization import (
    BACKWARD,
    BACKWARD_ADD_RELU,
    BACKWARD_RELU,
    INFERENCE,
    TRAINING,
    TRAINING_ADD_RELU,
    TRAINING_RELU,
)
from cudnnlite.specs.layers import ActivationSpec
from cudnnlite.specs.layout import CHANNELS_LAST

_AUTO = {"auto": BatchNormMode.SPATIAL}  # what it is where it makes no difference


@operation
def batch_normalization_inference(
    handle: Handle,
    x: Operand,
    scale: Operand,
    bias: Operand,
    mean: Operand,
    variance: Operand,
    *,
    mode: BatchNormMode | str = BatchNormMode.SPATIAL,
    epsilon: float = 1e-5,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Normalise by statistics that are given: ``scale * (x - mean) / sqrt(variance + epsilon) + bias``.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous; it keeps the plan for the next call of
        the same kind.
    x : device array
        ``(N, C, *spatial)``; float32, float64, float16 or bfloat16.
    scale, bias, mean, variance : device arrays
        ``(1, C, 1, ...)``, or ``(1, C, *spatial)`` per activation; float64 beside float64, float32
        otherwise.
    mode : BatchNormMode or str
        "spatial", or "auto" as in training: statistics for each channel; "per_activation": for each
        value of an image, channels first; "spatial_persistent".
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
    ...     print(dnn.batch_normalization_inference(handle, x, one, one, one, one, epsilon=0).numpy().ravel())
    [3. 5.]
    """
    kind = parse_enum(BatchNormMode, mode, "mode", _AUTO)
    return Request(
        handle, INFERENCE, (x, scale, bias, mean, variance), (kind, epsilon), alpha, beta, out
    )


@operation
def batch_normalization_training(
    handle: Handle,
    x: Operand,
    scale: Operand,
    bias: Operand,
    *,
    running_mean: Operand,
    running_var: Operand,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
    mode: BatchNormMode | str = "auto",
    activation: ActivationSpec | ActivationMode | str | None = None,
    z: Operand | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: object = None,
) -> Request[tuple[DeviceArray, ...]]:
    """Normalise by the batch's own statistics, and follow them with running ones.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous; it keeps the plan for the next call of
        the same kind.
    x, scale, bias
        As in `batch_normalization_inference`.
    running_mean, running_var : device arrays
        Shaped as `scale`; updated in place: ``running = (1 - momentum) * running + momentum *
        batch``.  The variance is the unbiased one.
    momentum : float
        How fast, from 0 to 1; 1 / (calls so far) gives the mean over all calls.
    epsilon, mode
        As in `batch_normalization_inference`.  "auto" is "spatial" with the channels first, and
        "spatial_persistent" with the channels last, where the other took 7 to 67 times as long on
        an H200, or with an activation, which needs it.  That took as little as a third with the
        channels first too, but NVIDIA warns of overflows.
    activation : ActivationSpec, ActivationMode or str, optional
        "relu": of the result, in the same call, which then returns ``(y, saved_mean,
        saved_inv_variance, reserve)``.  cuDNN does it of float32, float16 and bfloat16 with the
        channels last and without gaps, and has no other function.
    z : device array, optional
        Shaped as `x`: added before the activation, a residual for instance; the channels are a
        multiple of 4.
    alpha, beta : float
        Host scalars: y = alpha * result + beta * y.  With beta = 0 `out[0]` is not read.
    out : tuple of device arrays, optional
        y, saved_mean, saved_inv_variance, written in place; new arrays if not given, or where one
        is None.

    Returns
    -------
    tuple of DeviceArray
        y, saved_mean, saved_inv_variance, y shaped as `x`, the others as `scale`; what the backward
        call wants.

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
    ...     print(y.numpy().ravel(), saved_mean.numpy().ravel(), mean.numpy().ravel(), var.numpy().ravel())
    [0. 2.] [2.] [1.] [1.]
    """
    written = TRAINING.gathered(out, running_mean, running_var)
    if z is not None and activation is None:
        raise _addition_without_activation("z")
    options = (_mode(mode, handle, x, activation), momentum, epsilon)
    operands = (x, scale, bias)
    if activation is None:
        return Request(handle, TRAINING, operands, options, alpha, beta, written)
    options_with_activation = (*options, activation)
    if z is None:
        return Request(
            handle, TRAINING_RELU, operands, options_with_activation, alpha, beta, written
        )
    return Request(
        handle, TRAINING_ADD_RELU, (*operands, z), options_with_activation, alpha, beta, written
    )


def _addition_without_activation(argument: str) -> ArgumentError:
    return ArgumentError(
        f"{argument} is given without an activation; cuDNN adds z before a relu alone: "
        "activation='relu'"
    )


def _mode(mode: object, handle: Handle, x: object, activation: object) -> Any:
    """Return the mode that "auto" stands for, or the mode itself."""
    if not (isinstance(mode, str) and mode.lower() == "auto"):
        return parse_enum(BatchNormMode, mode, "mode", _AUTO)
    if activation is not None:  # which needs it
        return BatchNormMode.SPATIAL_PERSISTENT
    spec = operand_spec(handle, x, "x")
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
    mode: BatchNormMode | str = "auto",
    epsilon: float = 1e-5,
    activation: ActivationSpec | ActivationMode | str | None = None,
    y: Operand | None = None,
    bias: Operand | None = None,
    reserve: AnyArray | None = None,
    added: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: object = None,
) -> Request[tuple[DeviceArray, ...]]:
    """Compute the gradients of a batch normalisation's input, scale and bias.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous; it keeps the plan for the next call of
        the same kind.
    x, dy, scale : device arrays
        What the training call was given, and the gradient of its y.
    saved_mean, saved_inv_variance : device arrays
        What it returned besides.
    mode, epsilon, activation
        As in the training call.
    y, bias, reserve : device arrays
        With an activation: what the training call returned, and what it was given.
    added : bool
        Whether that was given a `z`: then its gradient is returned last, ``(dx, dscale, dbias,
        dz)``.  With an activation `alpha` and `beta` are 1 and 0.
    alpha, beta : float
        Host scalars: each = alpha * result + beta * each.  With beta = 0 `out[0]` is not read.
    out : tuple of device arrays, optional
        dx, dscale, dbias, written in place; new arrays if not given, or where one is None.

    Returns
    -------
    tuple of DeviceArray
        dx, dscale, dbias, dx shaped as `x`, the others as `scale`.

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
    ...     dx, dscale, dbias = dnn.batch_normalization_backward(handle, x, x, one, mean, one, epsilon=0)
    ...     print(dx.numpy().ravel(), dscale.numpy().ravel(), dbias.numpy().ravel())
    [0. 0.] [2.] [4.]
    """
    if one_of(added, "added", True, False) and activation is None:
        raise _addition_without_activation("added")
    options = (_mode(mode, handle, x, activation), epsilon)
    if activation is None:
        for name, array in (("y", y), ("bias", bias), ("reserve", reserve)):
            if array is not None:
                raise ArgumentError(
                    f"{name} is given without the activation of the training call; there it has no use"
                )
        return Request(
            handle,
            BACKWARD,
            (x, dy, scale, saved_mean, saved_inv_variance),
            options,
            alpha,
            beta,
            BACKWARD.gathered(out),
        )
    if (real_number(alpha, "alpha"), real_number(beta, "beta")) != (1, 0):
        raise ArgumentError(
            f"alpha={shown(alpha)}, beta={shown(beta)} with an activation; allowed: 1 and 0"
        )
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
