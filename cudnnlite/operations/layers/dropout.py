"""`DropoutState`: the random numbers of dropout, which can be saved and restored; and dropout as a layer."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.arguments import instance_of, integer
from cudnnlite.descriptors import DropoutDescriptor
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.function import operation
from cudnnlite.plans.host_arrays import host_array
from cudnnlite.plans.operands import use
from cudnnlite.plans.request import Request
from cudnnlite.problems.dropout import BACKWARD, FORWARD
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import DropoutSpec

_MAX_SEED = 2**64 - 1


class DropoutState(NonCopyable):
    """The random number generator's states, in device memory; every training call with dropout advances them.

    Parameters
    ----------
    handle : Handle
        Whose device the states are on.
    seed : int
        0 to 2^64 - 1.  The same seed gives the same masks on the same device and cuDNN version.

    Attributes
    ----------
    array : DeviceArray
        The states: bytes, opaque, 6 MiB on an H200.

    Raises
    ------
    ArgumentError
        Not a seed.
    DeviceMemoryError
        There is not enough device memory.

    Notes
    -----
    C functions: `cudnnDropoutGetStatesSize`, `cudnnSetDropoutDescriptor`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     state = dnn.DropoutState(handle, seed=7)
    ...     saved = state.save()  # before a training step; goes into a checkpoint
    ...     state.restore(saved)  # the next step draws the same masks
    ...     print(np.array_equal(state.save(), saved))
    True
    """

    _instead_of_copy = "save() returns its states, and restore() puts them into another"

    def __init__(self, handle: Handle, seed: int = 0) -> None:
        instance_of(handle, Handle, "handle", "; it comes first: DropoutState(handle, seed)").use()
        self.seed = integer(seed, "seed", 0, _MAX_SEED)
        size = ctypes.c_size_t()
        handle.api.cudnnDropoutGetStatesSize(handle.ptr, size)
        self.array = arrays.empty(handle.device, handle.stream, TensorSpec((size.value,), "uint8"))
        with DropoutDescriptor(handle, 0.5, self.array, self.seed, initialize=True):
            pass  # describing it with "initialize" is what fills the states

    def save(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the states as they are now, on the host; waits for the calls that advance them."""
        return self.array.numpy()

    def restore(self, saved: object) -> None:
        """Go back to states that `save` returned; the calls after it draw the same numbers again.

        Raises
        ------
        ArgumentError
            Not what `save` returned on such a device.
        """
        states = np.ascontiguousarray(host_array(saved, "saved"))
        if states.dtype != np.uint8 or states.shape != self.array.shape:
            raise ArgumentError(
                f"saved is {states.dtype} of shape {states.shape}; these states are uint8 of shape {self.array.shape}"
            )
        self.array.device.copy_in(self.array.ptr, states, self.array.stream)

    def close(self) -> None:
        """Give up the memory; it is freed when nobody else holds it.  Harmless when called again."""
        self.array.close()

    def __repr__(self) -> str:
        return f"<DropoutState of seed {self.seed} on {self.array.device}>"


@operation
def dropout_forward(
    handle: Handle,
    x: Operand,
    dropout: float,
    *,
    dropout_state: DropoutState,
    out: AnyArray | None = None,
    reserve: AnyArray | None = None,
) -> Request[tuple[DeviceArray, DeviceArray]]:
    """Set values to 0 at random, and divide the others by 1 - dropout: what a layer does in training.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous; it keeps the plan for the next call of
        the same kind.
    x : device array
        Of any shape; float32, float64 or float16.
    dropout : float
        Dropout probability.
    dropout_state : DropoutState
        Where the random numbers come from; advanced by the call.
    reserve : device array, optional
        Bytes to write which values were kept into, a bit for each; new memory if not given.
    out : device array, optional
        y, written in place; a new array if not given.  It may be `x` itself.

    Returns
    -------
    DeviceArray
        y, shaped as `x`; and the reserve space, which the backward call needs: a tuple of both.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnDropoutForward`, `cudnnDropoutGetReserveSpaceSize`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x, state = handle.array(np.ones((1, 1, 40, 50), np.float32)), dnn.DropoutState(handle, seed=7)
    ...     y, reserve = dnn.dropout_forward(handle, x, 0.5, dropout_state=state)
    ...     dx = dnn.dropout_backward(handle, x, 0.5, reserve, dropout_state=state)
    ...     print(np.unique(y.numpy()), 900 < (y.numpy() == 0).sum() < 1100, (dx.numpy() == y.numpy()).all())
    [0. 2.] True True
    """
    options = (_spec(handle, dropout, dropout_state),)
    return Request(handle, FORWARD, (x,), options, out=out, reserve=reserve)


@operation
def dropout_backward(
    handle: Handle,
    dy: Operand,
    dropout: float,
    reserve: AnyArray,
    *,
    dropout_state: DropoutState,
    out: AnyArray | None = None,
) -> Request[DeviceArray]:
    """Compute the gradient of what dropout was given: 0 where a value was dropped.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous; it keeps the plan for the next call of
        the same kind.
    dy : device array
        The gradient of what the forward call returned.
    dropout, dropout_state
        As in the forward call; the state is not advanced.
    reserve : device array
        What the forward call returned; it is not changed.
    out : device array, optional
        dx, written in place; a new array if not given.  It may be `dy` itself.

    Returns
    -------
    DeviceArray
        dx, shaped as `dy`.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnDropoutBackward`, `cudnnDropoutGetReserveSpaceSize`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x, state = handle.array(np.ones((1, 8), np.float32)), dnn.DropoutState(handle)
    ...     y, reserve = dnn.dropout_forward(handle, x, 0, dropout_state=state)
    ...     print(dnn.dropout_backward(handle, x, 0, reserve, dropout_state=state).numpy())
    [[1. 1. 1. 1. 1. 1. 1. 1.]]
    """
    options = (_spec(handle, dropout, dropout_state),)
    return Request(handle, BACKWARD, (dy,), options, out=out, reserve=reserve)


def check_states(handle: Handle | None, state: Any) -> None:
    """Refuse what are no random states, or another device's, or were closed."""
    instance_of(state, DropoutState, "dropout_state", ": dnn.DropoutState(handle, seed)")
    if handle is not None and state.array.device is not handle.device:
        raise ArgumentError(
            f"dropout_state={state} is on {state.array.device}, the handle on {handle.device}"
        )
    _ = state.array.ptr  # ClosedError if it was closed


def _spec(handle: Handle, dropout: Any, state: Any) -> DropoutSpec:
    """Return the probability with the states."""
    if handle is not None:
        use(handle)
    check_states(handle, state)
    return DropoutSpec(dropout, state)
