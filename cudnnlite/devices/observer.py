"""`Observer`: who is told what happens on devices, while it happens; a trace is one.

Devices, the function table, captured graphs and plans that replay tell the one `current` observer.
While nobody observes, that is an `Observer` itself, whose methods do nothing, so that no caller has
to ask whether there is one.
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
    """Is told what happens on devices; a subclass overrides the methods for what it wants to know.

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
        """Surround a copy from the host, ``(rows, bytes)``, to rows on the device; or back, `out`."""
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
current: Observer = NOBODY  # read as `observer.current`: a name that is imported would not change


def attach(new: Observer) -> None:
    """Let an observer be told of every device, on every thread, instead of the one before."""
    global current  # noqa: PLW0603  (whoever observes is told of every device)
    current = new
    observe_calls(new.call)


def detach() -> None:
    """Tell nobody from now on; harmless where nobody observes."""
    global current  # noqa: PLW0603
    current = NOBODY
    observe_calls(None)
