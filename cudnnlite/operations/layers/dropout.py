"""`DropoutState`, the random numbers of dropout, and dropout as a layer."""

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
    """The states of dropout's random number generator, in device memory.

    Each training call with dropout advances them.

    Parameters
    ----------
    handle : Handle
        The states are in the memory of its device.
    seed : int
        0 to 2^64 - 1.  The same seed gives the same masks on the same device and cuDNN version.

    Attributes
    ----------
    array : DeviceArray
        The states: bytes, opaque, 6 MiB on an H200.

    Raises
    ------
    ArgumentError
        `seed` is not an integer from 0 to 2^64 - 1.
    DeviceMemoryError
        There is not enough device memory.

    Notes
    -----
    C functions: `cudnnDropoutGetStatesSize`, `cudnnSetDropoutDescriptor`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     state = dnn.DropoutState(handle, seed=7)
    ...     saved = state.save()  # before a training step, for a checkpoint
    ...     state.restore(saved)  # the next step draws the same masks
    ...     print(np.array_equal(state.save(), saved))
    True
    """

    _instead_of_copy = "save() returns its states, and restore() puts them into another"

    def __init__(self, handle: Handle, seed: int = 0) -> None:
        instance_of(handle, Handle, "handle", "; it comes first: DropoutState(handle, seed)")._use()
        self.seed = integer(seed, "seed", 0, _MAX_SEED)
        size = ctypes.c_size_t()
        handle.api.cudnnDropoutGetStatesSize(handle.ptr, size)
        self.array = arrays.empty(handle.device, handle.stream, TensorSpec((size.value,), "uint8"))
        with DropoutDescriptor(handle, 0.5, self.array, self.seed, initialize=True):
            # A descriptor that is made with `initialize` fills the states.
            pass

    def save(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return a copy of the states on the host, after the calls that advance them."""
        return self.array.numpy()

    def restore(self, saved: object) -> None:
        """Go back to states that `save` returned, so that later calls draw the same numbers again.

        Raises
        ------
        ArgumentError
            `saved` is not the states of such a device.
        """
        states = np.ascontiguousarray(host_array(saved, "saved"))
        if states.dtype != np.uint8 or states.shape != self.array.shape:
            raise ArgumentError(
                f"saved is {states.dtype} of shape {states.shape}; "
                f"these states are uint8 of shape {self.array.shape}"
            )
        self.array.device.copy_in(self.array.ptr, states, self.array.stream)

    def close(self) -> None:
        """Release the memory, which is freed when no other object uses it.

        A second call does nothing.
        """
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
    """Set values to 0 at random, and divide the others by 1 - dropout, as in training.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    x : device array
        The input, of any shape; float32, float64 or float16.
    dropout : float
        Dropout probability.
    dropout_state : DropoutState
        The random numbers, which the call advances.
    reserve : device array, optional
        The reserve space, written in place: a bit for each value says whether it was kept.  New
        memory if not given.
    out : device array, optional
        y, written in place; a new array if not given.  It may be `x` itself.

    Returns
    -------
    tuple of DeviceArray
        y, shaped as `x`, and the reserve space, which the backward call needs.

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
    ...     x = handle.array(np.ones((1, 1, 40, 50), np.float32))
    ...     state = dnn.DropoutState(handle, seed=7)
    ...     y, reserve = dnn.dropout_forward(handle, x, 0.5, dropout_state=state)
    ...     dx = dnn.dropout_backward(handle, x, 0.5, reserve, dropout_state=state)
    ...     y, dx = y.numpy(), dx.numpy()
    ...     print(np.unique(y), 900 < (y == 0).sum() < 1100, (dx == y).all())
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
    """Compute the gradient of dropout's input, which is 0 where a value was dropped.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    dy : device array
        The gradient of the forward call's `y`.
    dropout, dropout_state
        As in the forward call; the state is not advanced.
    reserve : device array
        The reserve space that the forward call returned; it is not changed.
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
    """Raise an error unless `state` is an open DropoutState on the handle's device."""
    instance_of(state, DropoutState, "dropout_state", ": dnn.DropoutState(handle, seed)")
    if handle is not None and state.array.device is not handle.device:
        raise ArgumentError(
            f"dropout_state={state} is on {state.array.device}, the handle on {handle.device}"
        )
    # The address of a closed array raises ClosedError.
    _ = state.array.ptr


def _spec(handle: Handle, dropout: Any, state: Any) -> DropoutSpec:
    """Return the spec of a dropout probability and its states."""
    if handle is not None and type(handle) is not Handle:
        use(handle)
    check_states(handle, state)
    return DropoutSpec(dropout, state)
