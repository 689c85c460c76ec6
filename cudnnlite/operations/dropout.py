"""`DropoutState`: the random numbers of dropout, which can be saved and restored."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from cudnnlite.arguments import instance_of, integer
from cudnnlite.descriptors import DropoutDescriptor
from cudnnlite.devices import arrays
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.rnn.formats import host_array
from cudnnlite.specs import TensorSpec

_MAX_SEED = 2**64 - 1


class DropoutState:
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

    def restore(self, saved: Any) -> None:
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
