"""`Observer`: receives what happens on devices while it happens, as a trace does.

Devices, the function table, captured graphs and plans that replay call the one `current` observer.
While nobody observes, that is an `Observer` itself, whose methods do nothing, so that no caller has
to check for an observer.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np

from cudnnlite._raw.calls import Call, observe_calls
from cudnnlite._raw.record import Function
from cudnnlite.devices.device import Device, Recorder
from cudnnlite.devices.foreign import ForeignArray

_NOTHING: AbstractContextManager[None] = nullcontext()


class Observer:
    """Receives what happens on devices; a subclass overrides the methods that it needs.

    A method whose name is a participle (`copying_in`) returns a context manager, which is entered
    before the work that it is about and left after it.  The other methods are called once.

    Attributes
    ----------
    needs_each_call : bool
        Whether plans that replay have to make their C calls one by one, because a launched graph
        hides them.
    """

    needs_each_call: ClassVar[bool] = False

    def call(self, function: Call, record: Function, *arguments: Any) -> Any:
        """Make a C call with converted arguments, and return what it returns.

        Libcudnn's functions that the emulated device calls for its own come here too, within the
        call that they serve.
        """
        return function(*arguments)

    def memory_allocated(self, device: Device, buffer: Any, nbytes: int) -> None:
        """Take note of `nbytes` from `buffer.handle` on, which live as long as `buffer`."""

    def memory_adopted(self, device: Device, array: ForeignArray) -> None:
        """Take note of another library's array, which is used from now on."""

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
        """Surround a copy from the host, ``(rows, bytes)``, to rows on the device; `out`: back."""
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
        """Surround the setting of rows on the device to a repeated pattern."""
        return _NOTHING

    def capturing(self, device: Device, recorder: Recorder) -> AbstractContextManager[None]:
        """Surround what is recorded on `recorder.stream`, and does not run meanwhile."""
        return _NOTHING

    def graph_captured(self, device: Device, recorder: Recorder) -> None:
        """Take note that `recorder.graph` can be launched now."""

    def capturing_for_timing(self, device: Device) -> AbstractContextManager[None]:
        """Surround what a search records in a graph of its own, to time it."""
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
