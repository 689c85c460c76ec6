"""What a table of invalid input is made of: cases, and the bench that their calls are made on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from device.problems import memory_of

import cudnnlite as dnn

ARRAY = dnn.ArrayTypeError
NOT_SUPPORTED = dnn.NotSupportedError


class Case(NamedTuple):
    """A call with an invalid argument, and how it is refused.

    Attributes
    ----------
    call : callable
        Gets a bench.
    message : str
        The pattern that the message must match.
    error : type, optional
        The exception.
    """

    call: Callable[[Any], Any]
    message: str
    error: type[dnn.CudnnliteError] = dnn.ArgumentError


class Bench:
    """A handle, and arrays that no refused call may change."""

    def __init__(self, handle: dnn.Handle) -> None:
        self.handle = handle
        self._watched: dict[str, tuple[dnn.DeviceArray, Any]] = {}

    def watch(self, **arrays: dnn.DeviceArray) -> None:
        """Remember what is in some arrays now."""
        for name, array in arrays.items():
            self._watched[name] = array, memory_of(array)

    def assert_untouched(self) -> None:
        """Fail if a watched array was written."""
        for name, (array, before) in self._watched.items():
            assert (memory_of(array) == before).all(), f"{name} was written"

    def assert_works(self) -> None:
        """Make good calls, which the refused ones must not have broken."""

    def empty(
        self, *shape: int, dtype: str = "float32", layout: str | None = None
    ) -> dnn.DeviceArray:
        """Return a new array."""
        return self.handle.empty(shape, dtype, layout)

    def over(
        self, array: dnn.DeviceArray, shape: Any = None, offset: int = 0, **options: Any
    ) -> dnn.DeviceArray:
        """Return an array over another one's memory."""
        spec = shape if isinstance(shape, dnn.TensorSpec) else array.spec
        if isinstance(shape, tuple):
            spec = dnn.TensorSpec(shape)
        return dnn.DeviceArray(
            spec, array.device, array.ptr + offset, array, self.handle.stream, **options
        )


def grouped(**groups: dict[str, Case]) -> dict[str, Case]:
    """Return the cases of all groups, by the group and their name."""
    return {
        f"{group}, {name}": case for group, cases in groups.items() for name, case in cases.items()
    }
