"""Local response normalisation across channels, and divisive normalisation over positions; forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cudnnlite._raw.enums import DivNormMode, LRNMode
from cudnnlite.devices.foreign import AnyArray
from cudnnlite.devices.storage import ALLOCATION_ALIGNMENT
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.family import (
    DeviceArray,
    Handle,
    Operation,
    call,
    check_alike,
    documented,
    gradient_of,
)
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import LRNSpec

_MODE = {"lrnMode": LRNMode.CROSS_CHANNEL_DIM1}  # the only one
FORWARD = Operation(
    "lrn_forward",
    "cudnnLRNCrossChannelForward",
    ("x",),
    ("y",),
    lambda x, **_: x,
    {"norm": LRNSpec},
    in_place=frozenset({"x"}),
    constants=_MODE,
)
BACKWARD = gradient_of(
    FORWARD,
    "cudnnLRNCrossChannelBackward",
    ("y", "dy", "x"),
    in_place=frozenset({"dy"}),
    constants=_MODE,
)


def _divisive(
    name: str,
    function: str,
    reads: tuple[str, ...],
    writes: tuple[str, ...],
    check: Any = check_alike,
) -> Operation:
    """Return one of the four operations: two of cuDNN's three scratch tensors are its workspace, and means may be missing."""

    def _like(x: TensorSpec, norm: LRNSpec, **others: TensorSpec) -> Any:
        for other, spec in others.items():
            if spec.shape != x.shape:
                raise ArgumentError(f"{other} has shape {spec.shape}; needed: that of x, {x.shape}")
        return (x,) * len(writes)

    constants: dict[str, Any] = {"mode": DivNormMode.PRECOMPUTED_MEANS}
    if "means" not in reads:
        constants |= {"means": None, "dmeans": None}
    return Operation(
        name,
        function,
        reads,
        writes,
        _like,
        {"norm": LRNSpec},
        {"temp": "workSpace", "temp2": "workSpace", "dXdMeansDesc": "dxDesc", "dMeans": "dmeans"},
        shared={"means": "x", "dy": "x", "dmeans": "dx"},
        scaled=len(writes),
        scratch=lambda specs: (
            2 * -(-specs["x"].nbytes // ALLOCATION_ALIGNMENT) * ALLOCATION_ALIGNMENT
        ),
        constants=constants,
        check=check,
    )


def _added(specs: Any, options: Any) -> None:
    check_alike(specs)
    if options["beta"] < 0:  # seen on an H200: it leaves out what is there
        raise ArgumentError(
            f"beta={options['beta']!r}; cuDNN ignores a negative one here: allowed from 0 on"
        )


def _odd(specs: Any, options: Any) -> None:
    check_alike(specs)
    if (
        options["norm"].n % 2 == 0
    ):  # seen on an H200: it sums over the window of the forward call, which lies elsewhere
        raise ArgumentError(
            f"norm={options['norm']}: cuDNN computes this gradient wrongly where n is even; allowed: odd n"
        )


DIVISIVE = _divisive(
    "divisive_normalization_forward", "cudnnDivisiveNormalizationForward", ("x",), ("y",), _added
)
DIVISIVE_AROUND = _divisive(
    "divisive_normalization_forward_around",
    "cudnnDivisiveNormalizationForward",
    ("x", "means"),
    ("y",),
    _added,
)
DIVISIVE_BACKWARD = _divisive(
    "divisive_normalization_backward",
    "cudnnDivisiveNormalizationBackward",
    ("x", "dy"),
    ("dx",),
    _odd,
)
DIVISIVE_AROUND_BACKWARD = _divisive(
    "divisive_normalization_backward_around",
    "cudnnDivisiveNormalizationBackward",
    ("x", "dy", "means"),
    ("dx", "dmeans"),
    _odd,
)


@documented(FORWARD, "shaped as `x`")
def lrn_forward(
    handle: Handle,
    x: AnyArray,
    norm: LRNSpec,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Divide each value by those of the channels around it.

    Parameters
    ----------
    x : device array
        ``(N, C, *spatial)``; float32, float64 or float16; cuDNN refuses bfloat16 (seen on an H200).
    norm : LRNSpec
        How many channels, and the numbers of the formula.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.array([1, 2, 3], np.float32).reshape(1, 3, 1, 1))
    ...     print(dnn.lrn_forward(handle, x, dnn.LRNSpec(3, alpha=3, beta=1, k=1)).numpy().ravel().round(4))
    [0.1667 0.1333 0.2143]
    """
    return call(handle, FORWARD, (x,), (norm,), alpha, beta, out)


@documented(BACKWARD, "shaped as `x`")
def lrn_backward(
    handle: Handle,
    y: AnyArray,
    dy: AnyArray,
    x: AnyArray,
    norm: LRNSpec,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Compute the gradient of a normalisation's input.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x, norm = handle.array(np.ones((1, 1, 1, 1), np.float32)), dnn.LRNSpec(1, alpha=1, beta=1, k=1)
    ...     y = dnn.lrn_forward(handle, x, norm)
    ...     print(dnn.lrn_backward(handle, y, x, x, norm).numpy().ravel())
    [0.]
    """
    return call(handle, BACKWARD, (y, dy, x), (norm,), alpha, beta, out)


@documented(DIVISIVE, "shaped as `x`")
def divisive_normalization_forward(
    handle: Handle,
    x: AnyArray,
    norm: LRNSpec,
    *,
    means: AnyArray | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | None = None,
) -> DeviceArray:
    """Divide each value by those of the positions around it, in its own channel.

    ``y = x / (k + alpha / n ** d * sum((x' - mean) ** 2)) ** beta``, the sum over the values x' of a window of `n` along each
    of the d spatial axes, ``(n - 1) // 2`` of them before, what lies outside left out; d is 2 where there is one axis.

    Parameters
    ----------
    x : device array
        ``(N, C, *spatial)``; float32, float64 or float16.
    norm : LRNSpec
        The window, and the numbers of the formula.
    means : device array, optional
        Shaped as `x`: what is subtracted in each value's own window, a local mean that you computed; 0 if not given.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.full((1, 1, 3, 3), 3, np.float32))
    ...     norm = dnn.LRNSpec(3, alpha=1, beta=0.5, k=1)
    ...     print(dnn.divisive_normalization_forward(handle, x, norm, means=x).numpy()[0, 0, 0])
    [3. 3. 3.]
    """
    if means is None:
        return call(handle, DIVISIVE, (x,), (norm,), alpha, beta, out)
    return call(handle, DIVISIVE_AROUND, (x, means), (norm,), alpha, beta, out)


@documented(
    DIVISIVE_BACKWARD,
    "shaped as `x`; with `means` given a tuple of dx and dmeans, as `out` is then",
)
def divisive_normalization_backward(
    handle: Handle,
    x: AnyArray,
    dy: AnyArray,
    norm: LRNSpec,
    *,
    means: AnyArray | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: AnyArray | Sequence[AnyArray] | None = None,
) -> Any:
    """Compute the gradients of a divisive normalisation's input, and of its means.

    Parameters
    ----------
    x, dy : device arrays
        What the forward call was given, and the gradient of what it returned.
    norm : LRNSpec
        As in `divisive_normalization_forward`, but with an odd `n`: where it is even cuDNN 9.19 computes a wrong gradient.
    means : device array, optional
        As in the forward call.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x, norm = handle.array(np.ones((1, 1, 1, 1), np.float32)), dnn.LRNSpec(1, alpha=1, beta=1, k=1)
    ...     print(dnn.divisive_normalization_backward(handle, x, x, norm).numpy().ravel())
    [0.]
    """
    if means is None:
        return call(handle, DIVISIVE_BACKWARD, (x, dy), (norm,), alpha, beta, out)
    return call(handle, DIVISIVE_AROUND_BACKWARD, (x, dy, means), (norm,), alpha, beta, out)
