"""`Observer`: receives what happens on devices while it happens, as a trace does.

There is one observer at a time, `current`.  Devices, the function table, captured graphs and plans
that replay call its methods.  If nobody observes, `current` is a plain `Observer`, whose methods do
nothing, so that callers need not check whether there is an observer.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np

from cudnnlite._raw.calls import Call, observe_calls
from cudnnlite._raw.record import Function
from cudnnlite.devices.device import Device, StreamRecorder
from cudnnlite.devices.foreign import ForeignArray

_NOTHING: AbstractContextManager[None] = nullcontext()


class Observer:
    """Receives what happens on devices; a subclass overrides the methods that it needs.

    A method whose name is a participle (`copying_in`) returns a context manager: the caller enters
    it before the work and leaves it after the work.  The other methods are called once.

    Attributes
    ----------
    needs_each_call : bool
        Whether plans that replay have to make their C calls one by one, because a launched graph
        hides them.
    """

    needs_each_call: ClassVar[bool] = False

    def call(self, function: Call, record: Function, *arguments: Any) -> Any:
        """Make a C call with converted arguments, and return its result.

        On the emulated device an emulated function may call functions of libcudnn.  These calls
        come here too, within the call of the emulated function.
        """
        return function(*arguments)

    def memory_allocated(self, device: Device, buffer: Any, nbytes: int) -> None:
        """Take note of a new allocation: `nbytes` at `buffer.handle`, freed with `buffer`."""

    def memory_adopted(self, device: Device, array: ForeignArray) -> None:
        """Take note of another library's array that is used from now on."""

    def memory_exported(self, device: Device, array: ForeignArray) -> None:
        """Take note of an array that another library may write to from now on."""

    def copying_in(
        self, device: Device, ptr: int, source: np.ndarray[Any, Any]
    ) -> AbstractContextManager[None]:
        """Surround a copy of a whole host array to the device."""
        return _NOTHING

    def copying_rows(
        self,
        device: Device,
        ptr: int,
        pitch: int,
        host: np.ndarray[Any, Any],
        stream: Any,
        *,
        out: bool,
    ) -> AbstractContextManager[None]:
        """Surround a copy of rows from `host`, ``(rows, bytes)``, to the device.

        With `out`, the copy goes from the device to `host`.
        """
        return _NOTHING

    def copying_within(
        self, device: Device, target: int, source: int, nbytes: int, stream: Any
    ) -> AbstractContextManager[None]:
        """Surround a copy from device memory to device memory."""
        return _NOTHING

    def filling_rows(
        self,
        device: Device,
        ptr: int,
        pitch: int,
        width: int,
        rows: int,
        pattern: bytes,
        stream: Any,
    ) -> AbstractContextManager[None]:
        """Surround the filling of rows on the device with a repeated pattern."""
        return _NOTHING

    def capturing(self, device: Device, recorder: StreamRecorder) -> AbstractContextManager[None]:
        """Surround calls that are recorded on `recorder.stream`, and are not run meanwhile."""
        return _NOTHING

    def graph_captured(self, device: Device, recorder: StreamRecorder) -> None:
        """Take note that `recorder.graph` can be launched now."""

    def capturing_for_timing(self, device: Device) -> AbstractContextManager[None]:
        """Surround calls that a search records as a graph of its own, to time them."""
        return _NOTHING

    def launching(self, device: Device, graph: Any, stream: Any) -> AbstractContextManager[None]:
        """Surround the launch of a graph that was captured."""
        return _NOTHING


NOBODY = Observer()
# Read as `observer.current`: an imported name would not change.
current: Observer = NOBODY


def attach(new: Observer) -> None:
    """Make an observer the current one of every device, on every thread."""
    global current  # noqa: PLW0603  (an observer receives the events of every device)
    current = new
    observe_calls(new.call)


def detach() -> None:
    """Remove the observer; harmless if there is none."""
    global current  # noqa: PLW0603
    current = NOBODY
    observe_calls(None)
