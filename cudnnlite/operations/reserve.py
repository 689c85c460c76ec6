"""`TrainingReserve`: the reserve space of a training call, and what its backward passes must be given again."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from cudnnlite.arguments import shown
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError, ClosedError
from cudnnlite.operations.operands import on_device
from cudnnlite.sizes import format_size

CallT = TypeVar("CallT")
ReserveT = TypeVar("ReserveT", bound="TrainingReserve[Any]")


class TrainingReserve(Generic[CallT]):
    """A reserve space, the forward call that filled it, and how far the backward passes got."""

    _passes: ClassVar[tuple[str, str, str]]  # the functions: forward, over the data, over the weights

    def __init__(self, array: DeviceArray) -> None:
        self.array = array
        self._call: CallT | None = None
        self._has_gradients = False

    @classmethod
    def checked(cls: type[ReserveT], handle: Handle, reserve: Any) -> ReserveT:
        """Return what was given; ArgumentError or ArrayTypeError unless it is such a reserve space on the handle's device."""
        if not isinstance(reserve, cls):
            raise ArgumentError(f"reserve={shown(reserve)} is not what {cls._passes[0]}(..., training=True) returns")
        on_device(handle, reserve.array, "reserve")
        return reserve

    @property
    def nbytes(self) -> int:
        """The size of the reserve space in bytes."""
        return self.array.nbytes

    @property
    def call(self) -> CallT:
        """The forward call that filled it."""
        if self._call is None:
            name = type(self).__name__
            raise ClosedError(f"this {name} holds no forward call: that failed, or the reserve was closed")
        return self._call

    def begin(self) -> None:
        """Note that a plan's call is about to write here: one that fails leaves nothing to go on from."""
        self._call = None

    def finish(self, call: CallT, *, has_gradients: bool = False) -> None:
        """Note the forward call that this is of, and whether the backward pass over the data was here since."""
        self._call, self._has_gradients = call, has_gradients

    def recall(self, *, has_gradients: bool) -> CallT:
        """Return the forward call, for the one backward pass or the other; ArgumentError if it is not that one's turn."""
        call = self.call
        if self._has_gradients and not has_gradients:
            raise ArgumentError("reserve was overwritten by a backward pass over the data; run the forward pass again")
        if has_gradients and not self._has_gradients:
            _, first, second = self._passes
            raise ArgumentError(f"reserve has no gradients yet: {first} comes before {second}")
        return call

    def close(self) -> None:
        """Give up the memory and the operands; harmless when called again."""
        self._call = None
        self.array.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {format_size(self.nbytes)}>"
