"""Softmax, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from cudnnlite.devices.foreign import AnyArray
from cudnnlite.enums import DataType, SoftmaxAlgorithm, SoftmaxMode
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.family import DeviceArray, Handle, Operation, call, check_alike, documented, gradient_of


def _check(specs: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuse what cuDNN 9.19 computes wrongly on an H200, and calls a success."""
    check_alike(specs)
    name, first = next(iter(specs.items()))
    if first.rank < 2:
        raise ArgumentError(f"{name} is {first}; needed: (N, C, *spatial)")
    if first.dtype == DataType.DOUBLE and options["mode"] == SoftmaxMode.CHANNEL and first.layout == "NDHWC":
        raise ArgumentError(f"{name} is {first}: in float64 and five dimensions the channels must come first")


def _one_way(specs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return mode=INSTANCE where there is one position, and both are the same: it is faster."""
    x = next(iter(specs.values()))
    return {**options, "mode": SoftmaxMode.INSTANCE} if x.size == prod(x.shape[:2]) else options


_OPTIONS, _NAMES = {"algorithm": SoftmaxAlgorithm, "mode": SoftmaxMode}, {"algo": "algorithm"}
FORWARD = Operation(
    "softmax_forward", "cudnnSoftmaxForward", ("x",), ("y",), lambda x, **_: x, _OPTIONS, _NAMES,
    in_place=frozenset({"x"}), check=_check, complete=_one_way,
)  # fmt: skip
BACKWARD = gradient_of(
    FORWARD, "cudnnSoftmaxBackward", ("y", "dy"), in_place=frozenset({"dy"}), complete=_one_way
)  # fmt: skip


@documented(FORWARD, "shaped as `x`")
def softmax_forward(
    handle: Handle, x: AnyArray, *, algorithm: SoftmaxAlgorithm | str = SoftmaxAlgorithm.ACCURATE,
    mode: SoftmaxMode | str = SoftmaxMode.CHANNEL, alpha: float = 1.0, beta: float = 0.0, out: AnyArray | None = None,
) -> DeviceArray:  # fmt: skip
    """Compute the softmax, or its logarithm.

    Parameters
    ----------
    x : device array
        ``(N, C, *spatial)``; float32, float64, float16 or bfloat16.
    algorithm : SoftmaxAlgorithm or str
        "accurate" (the largest value is subtracted first, so that nothing overflows), "fast" (it is not), or "log" (the
        logarithm of the softmax).
    mode : SoftmaxMode or str
        "channel": over C, at each position of each image; "instance": over C and all positions of an image.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.log([[1.0, 2.0, 5.0]]), dtype="float32")
    ...     print(dnn.softmax_forward(handle, x).numpy().round(3))
    [[0.125 0.25  0.625]]
    """
    return call(handle, FORWARD, (x,), (algorithm, mode), alpha, beta, out)


@documented(BACKWARD, "shaped as `y`")
def softmax_backward(
    handle: Handle, y: AnyArray, dy: AnyArray, *, algorithm: SoftmaxAlgorithm | str = SoftmaxAlgorithm.ACCURATE,
    mode: SoftmaxMode | str = SoftmaxMode.CHANNEL, alpha: float = 1.0, beta: float = 0.0, out: AnyArray | None = None,
) -> DeviceArray:  # fmt: skip
    """Compute the gradient of a softmax's input from its output.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     y = handle.array([[0.25, 0.75]], dtype="float32")
    ...     dy = handle.array([[1.0, 0.0]], dtype="float32")
    ...     print(dnn.softmax_backward(handle, y, dy).numpy())
    [[ 0.1875 -0.1875]]
    """
    return call(handle, BACKWARD, (y, dy), (algorithm, mode), alpha, beta, out)
