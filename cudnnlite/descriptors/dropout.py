"""`DropoutDescriptor`."""

from __future__ import annotations

import ctypes
from typing import Any

from cudnnlite._raw.types import cudnnDropoutDescriptor_t, cudnnHandle_t
from cudnnlite.arguments import integer, one_of, real_number, shown
from cudnnlite.descriptors.native import NativeObject
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.layers import DropoutSpec


class DropoutDescriptor(NativeObject[cudnnDropoutDescriptor_t], describes=DropoutSpec):
    """A `cudnnDropoutDescriptor_t`: a probability, and the random numbers' states on a device.

    Unlike the other descriptors it belongs to a handle.  Each training call that uses it advances
    the states.

    Parameters
    ----------
    handle : Handle
        The handle whose device holds the states.
    probability : float
        The probability that an output is set to zero.
    states : device array
        The random numbers' states, which an earlier `cudnnSetDropoutDescriptor` wrote.  The
        descriptor keeps the array alive.
    seed : int
        The seed that the states were made from.
    initialize : bool
        Whether the states are made from the seed now.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     state = dnn.DropoutState(handle, seed=7)
    ...     with dnn.descriptors.DropoutDescriptor(handle, 0.5, state.array, state.seed) as desc:
    ...         print(desc.read_back())
    (0.5, 7)
    """

    _other_functions = ("cudnnRestoreDropoutDescriptor",)
    _needs_handle = True
    _spec_type = tuple  # probability and seed

    @classmethod
    def _describing(cls, spec: Any, spatial_rank: int, handle: Any) -> Any:
        """Return a descriptor of a probability, with the states that it was given."""
        return cls(handle, spec.dropout, spec.state.array, spec.state.seed)

    def __init__(
        self,
        handle: Any,
        probability: float,
        states: Any,
        seed: int = 0,
        *,
        initialize: bool = False,
    ) -> None:
        self._handle = handle
        self._states = states
        one_of(initialize, "initialize", True, False)
        self._set_function = (
            "cudnnSetDropoutDescriptor" if initialize else "cudnnRestoreDropoutDescriptor"
        )
        if not isinstance(getattr(handle, "ptr", None), cudnnHandle_t):
            raise ArgumentError(f"handle={shown(handle)} is not a Handle")
        if not hasattr(states, "ptr") or not hasattr(states, "nbytes"):
            raise ArgumentError(f"states={shown(states)} is not a device array")
        spec = real_number(probability, "probability"), integer(seed, "seed", 0, 2**64 - 1)
        super().__init__(spec, api=handle.api)

    def _set(self, spec: tuple[float, int]) -> None:
        probability, seed = spec
        function = getattr(self.api, self._set_function)
        function(
            self.ptr, self._handle.ptr, probability, self._states.ptr, self._states.nbytes, seed
        )

    def read_back(self) -> tuple[float, int]:
        """Return (probability, seed) as cuDNN holds them (`cudnnGetDropoutDescriptor`)."""
        probability, states, seed = ctypes.c_float(), ctypes.c_void_p(), ctypes.c_ulonglong()
        self.api.cudnnGetDropoutDescriptor(self.ptr, self._handle.ptr, probability, states, seed)
        return probability.value, seed.value
