"""Batch normalisation: inference, training, backward; the last two also with an addition and a relu in one call."""

from __future__ import annotations

from typing import Any

from cudnnlite.arguments import one_of, real_number, shown
from cudnnlite.devices.foreign import AnyArray
from cudnnlite.enums import ActivationMode, BatchNormMode, parse_enum
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.family import DeviceArray, Handle, call, documented
from cudnnlite.plans.operands import on_device, use
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


@documented(INFERENCE, "shaped as `x`")
def batch_normalization_inference(
    handle: Handle,
    x: AnyArray,
    scale: AnyArray,
    bias: AnyArray,
    mean: AnyArray,
    variance: AnyArray,
    *,
    mode: BatchNormMode | str = BatchNormMode.SPATIAL,
    epsilon: float = 1e-5,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Normalise by statistics that are given: ``scale * (x - mean) / sqrt(variance + epsilon) + bias``.

    Parameters
    ----------
    x : device array
        ``(N, C, *spatial)``; float32, float64, float16 or bfloat16.
    scale, bias, mean, variance : device arrays
        ``(1, C, 1, ...)``, or ``(1, C, *spatial)`` per activation; float64 beside float64, float32 otherwise.
    mode : BatchNormMode or str
        "spatial", or "auto" as in training: statistics for each channel; "per_activation": for each value of an image,
        channels first; "spatial_persistent".
    epsilon : float
        Added to the variance.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.array([3, 5], np.float32).reshape(1, 2, 1, 1))
    ...     one = handle.array(np.ones((1, 2, 1, 1), np.float32))
    ...     print(dnn.batch_normalization_inference(handle, x, one, one, one, one, epsilon=0).numpy().ravel())
    [3. 5.]
    """
    kind = parse_enum(BatchNormMode, mode, "mode", _AUTO)
    return call(
        handle, INFERENCE, (x, scale, bias, mean, variance), (kind, epsilon), alpha, beta, out
    )


@documented(
    TRAINING,
    "y shaped as `x`, the others as `scale`; what the backward call wants",
    TRAINING_RELU,
    TRAINING_ADD_RELU,
)
def batch_normalization_training(
    handle: Handle,
    x: AnyArray,
    scale: AnyArray,
    bias: AnyArray,
    *,
    running_mean: AnyArray,
    running_var: AnyArray,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
    mode: BatchNormMode | str = "auto",
    activation: ActivationSpec | ActivationMode | str | None = None,
    z: AnyArray | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
) -> tuple[DeviceArray, ...]:
    """Normalise by the batch's own statistics, and follow them with running ones.

    Parameters
    ----------
    x, scale, bias
        As in `batch_normalization_inference`.
    running_mean, running_var : device arrays
        Shaped as `scale`; updated in place: ``running = (1 - momentum) * running + momentum * batch``.  The variance is the
        unbiased one.
    momentum : float
        How fast, from 0 to 1; 1 / (calls so far) gives the mean over all calls.
    epsilon, mode
        As in `batch_normalization_inference`.  "auto" is "spatial" with the channels first, and "spatial_persistent" with
        the channels last, where the other took 7 to 67 times as long on an H200, or with an activation, which needs it.  That
        took as little as a third with the channels first too, but NVIDIA warns of overflows.
    activation : ActivationSpec, ActivationMode or str, optional
        "relu": of the result, in the same call, which then returns ``(y, saved_mean, saved_inv_variance, reserve)``.  cuDNN
        does it of float32, float16 and bfloat16 with the channels last and without gaps, and has no other function.
    z : device array, optional
        Shaped as `x`: added before the activation, a residual for instance; the channels are a multiple of 4.

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
    operands: tuple[Any, ...] = (x, scale, bias)
    operation, options = (
        TRAINING,
        (_mode(mode, handle, x, activation, "z" * (z is not None)), momentum, epsilon),
    )
    if activation is not None:
        operation, operands = (
            (TRAINING_RELU, operands) if z is None else (TRAINING_ADD_RELU, (*operands, z))
        )
        options = (*options, activation)  # type: ignore[assignment]
    return call(handle, operation, operands, options, alpha, beta, written)  # type: ignore[return-value]


def _mode(mode: Any, handle: Handle, x: Any, activation: Any, addition: str) -> Any:
    """Return the mode that "auto" stands for, or what was given; `addition` is the argument that asks for one, if any does."""
    if addition and activation is None:
        raise ArgumentError(
            f"{addition} is given without an activation; cuDNN adds z before a relu alone: activation='relu'"
        )
    if not (isinstance(mode, str) and mode.lower() == "auto"):
        return parse_enum(BatchNormMode, mode, "mode", _AUTO)
    use(handle)
    spec = on_device(handle, x, "x").spec
    last = spec.is_channels_last and spec.fits(CHANNELS_LAST.get(spec.rank, ""))
    return (
        BatchNormMode.SPATIAL_PERSISTENT
        if last or activation is not None
        else BatchNormMode.SPATIAL
    )


@documented(BACKWARD, "dx shaped as `x`, the others as `scale`", BACKWARD_RELU, BACKWARD_ADD_RELU)
def batch_normalization_backward(
    handle: Handle,
    x: AnyArray,
    dy: AnyArray,
    scale: AnyArray,
    saved_mean: AnyArray,
    saved_inv_variance: AnyArray,
    *,
    mode: BatchNormMode | str = "auto",
    epsilon: float = 1e-5,
    activation: ActivationSpec | ActivationMode | str | None = None,
    y: AnyArray | None = None,
    bias: AnyArray | None = None,
    reserve: AnyArray | None = None,
    added: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
) -> tuple[DeviceArray, ...]:
    """Compute the gradients of a batch normalisation's input, scale and bias.

    Parameters
    ----------
    x, dy, scale : device arrays
        What the training call was given, and the gradient of its y.
    saved_mean, saved_inv_variance : device arrays
        What it returned besides.
    mode, epsilon, activation
        As in the training call.
    y, bias, reserve : device arrays
        With an activation: what the training call returned, and what it was given.
    added : bool
        Whether that was given a `z`: then its gradient is returned last, ``(dx, dscale, dbias, dz)``.  With an activation
        `alpha` and `beta` are 1 and 0.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.array([1, 3], np.float32).reshape(2, 1, 1, 1))
    ...     one, mean = (handle.array(np.full((1, 1, 1, 1), v, np.float32)) for v in (1, 2))
    ...     dx, dscale, dbias = dnn.batch_normalization_backward(handle, x, x, one, mean, one, epsilon=0)
    ...     print(dx.numpy().ravel(), dscale.numpy().ravel(), dbias.numpy().ravel())
    [0. 0.] [2.] [4.]
    """
    addition = "added" * one_of(added, "added", True, False)
    options: tuple[Any, ...] = (_mode(mode, handle, x, activation, addition), epsilon)
    if activation is None:
        for name, array in (("y", y), ("bias", bias), ("reserve", reserve)):
            if array is not None:
                raise ArgumentError(
                    f"{name} is given without the activation of the training call; there it has no use"
                )
        operands: tuple[Any, ...] = (x, dy, scale, saved_mean, saved_inv_variance)
        written = BACKWARD.gathered(out)
        return call(handle, BACKWARD, operands, options, alpha, beta, written)  # type: ignore[return-value]
    if (real_number(alpha, "alpha"), real_number(beta, "beta")) != (1, 0):
        raise ArgumentError(
            f"alpha={shown(alpha)}, beta={shown(beta)} with an activation; allowed: 1 and 0"
        )
    for name, array in (("y", y), ("bias", bias), ("reserve", reserve)):
        if array is None:
            raise ArgumentError(
                f"{name} has to be given with an activation: as the training call had it"
            )
    operation = BACKWARD_ADD_RELU if added else BACKWARD_RELU
    operands, written = (
        (x, dy, scale, saved_mean, saved_inv_variance, y, bias),
        operation.gathered(out),
    )
    options = (*options, activation)
    return call(handle, operation, operands, options, out=written, reserve=reserve)  # type: ignore[return-value]
