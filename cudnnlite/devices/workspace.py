"""`Workspace`: the scratch memory of a handle, a buffer for each stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.devices.device import Device
from cudnnlite.devices.device_choice import get_device
from cudnnlite.errors import CaptureError, ClosedError, WorkspaceLimitError
from cudnnlite.sizes import format_size, parse_size


class Workspace(NonCopyable):
    """Scratch memory for one handle, one buffer for each stream that the handle was set to.

    A buffer only grows.  Calls on one stream run one after the other, so they can share it; when it
    has to grow, the old memory is freed in stream order, behind the calls that still use it.

    Parameters
    ----------
    device : Device
        The device that the memory comes from.
    workspace_limit : int or str, optional
        The largest buffer, also settable as `limit`: bytes, "64 MiB", or "10%" of the device's
        memory.  None: no limit.

    Examples
    --------
    >>> with dnn.Handle(workspace_limit="8 MiB") as handle:
    ...     with handle.workspace.lease(1000, handle.stream) as address:
    ...         print(address > 0, handle.workspace.size >= 1000)
    ...     handle.workspace.release()
    ...     print(handle.workspace.size, handle.workspace.limit)
    True True
    0 8388608
    """

    _instead_of_copy = "it belongs to a handle, and every handle has one"

    def __init__(self, device: Device, workspace_limit: int | str | None = None) -> None:
        self._device: Device = get_device(device)
        # By the stream's address.  The stream is kept alive, so that no other one gets its address.
        self._buffers: dict[int, tuple[Any, Any]] = {}
        self._leased: set[int] = set()
        self._shared: set[int] = set()  # the streams whose buffer has another owner too
        self._peak = 0
        self._closed = False
        # The result of the last `reserve`, which the next call nearly always needs again.
        self._recent_stream: Any = None
        self._recent_size = -1
        self._recent_address = 0
        self._limit = self._parse(workspace_limit, "workspace_limit")

    @property
    def limit(self) -> int | None:
        """The largest buffer in bytes, or None; settable, with the constructor's values.

        A lower limit applies to later calls; `release` frees the buffers that exist.
        """
        return self._limit

    @limit.setter
    def limit(self, value: int | str | None) -> None:
        self._limit = self._parse(value, "limit")

    def _parse(self, value: int | str | None, argument: str) -> int | None:
        """Turn a limit into bytes; a percentage is of the device's whole memory."""
        if value is None:
            return None
        total = None
        if isinstance(value, str) and "%" in value:
            _, total = self._device.memory_info()
        return parse_size(value, argument, total=total)

    def limit_for(self, workspace_limit: int | str | None) -> int | None:
        """Return a call's limit in bytes: its own `workspace_limit`, or this workspace's."""
        if workspace_limit is None:
            return self._limit
        return self._parse(workspace_limit, "workspace_limit")

    @property
    def size(self) -> int:
        """The bytes held now, all streams together."""
        return sum(buffer.size for buffer, _ in self._buffers.values())

    @property
    def peak(self) -> int:
        """The most bytes ever held, all streams together."""
        return self._peak

    def reserve(self, nbytes: int, stream: Any, workspace_limit: int | None = None) -> int:
        """Return the address of at least `nbytes` on `stream`; 0 for no bytes.

        The buffer grows if needed.  The address is valid for calls enqueued on `stream` before the
        next `reserve` or `release`.  A `workspace_limit` in bytes replaces the workspace's own.

        Raises
        ------
        WorkspaceLimitError
            More than the limit, or leased to somebody.
        DeviceMemoryError
            The device has too little memory; the old workspace is kept.
        """
        if stream is self._recent_stream and nbytes <= self._recent_size:
            return self._recent_address
        if not nbytes:
            return 0
        key = int(stream.handle)
        if key in self._leased:
            raise WorkspaceLimitError(
                f"the workspace of stream {key:#x} is leased; bring a buffer of your own"
            )
        buffer, _ = self._buffers.get(key, (None, None))
        if buffer is None or buffer.size < nbytes:
            limit = self._limit if workspace_limit is None else workspace_limit
            buffer = self._grow(nbytes, stream, key, limit)
        self._recent_stream = stream
        self._recent_size = buffer.size
        self._recent_address = int(buffer.handle)
        return self._recent_address

    def _forget_recent(self) -> None:
        """Make the next `reserve` look everything up again."""
        self._recent_stream = None
        self._recent_size = -1
        self._recent_address = 0

    @contextmanager
    def lease(self, nbytes: int, stream: Any) -> Iterator[int]:
        """Hold `nbytes` on `stream` for the time of a `with` block; yields the address.

        Raises
        ------
        WorkspaceLimitError, DeviceMemoryError
            As in `reserve`.
        """
        address = self.reserve(nbytes, stream)
        if not nbytes:
            yield 0
            return
        key = int(stream.handle)
        self._leased.add(key)
        self._forget_recent()
        try:
            yield address
        finally:
            self._leased.discard(key)

    def _grow(self, nbytes: int, stream: Any, key: int, limit: int | None) -> Any:
        if self._closed:
            raise ClosedError("this workspace's handle was closed")
        if limit is not None and nbytes > limit:
            raise WorkspaceLimitError(
                f"a workspace of {format_size(nbytes)} is needed; the limit is {format_size(limit)}"
            )
        try:
            buffer = self._device.allocate(nbytes, stream)
        except CaptureError as error:
            raise CaptureError(
                f"{error}; for a workspace make the call once before, "
                f"or handle.workspace.reserve({nbytes}, handle.stream)"
            ) from None
        old_buffer, _ = self._buffers.get(key, (None, None))
        old_size = 0 if old_buffer is None else old_buffer.size
        self._buffers[key] = buffer, stream
        self._peak = max(self._peak, self.size + old_size)
        if old_buffer is not None and key not in self._shared:
            old_buffer.close(stream)
        self._shared.discard(key)
        return buffer

    def keep(self, stream: Any) -> object:
        """Return the owner of a stream's buffer; None if there is no buffer.

        The memory lives as long as the owner, even if the buffer is replaced or released: a graph
        has its address.
        """
        key = int(stream.handle)
        if key not in self._buffers:
            return None
        self._shared.add(key)
        return self._buffers[key][0]

    def release(self, stream: Any = None) -> None:
        """Free the buffer of one stream, or all buffers, in the order of their streams.

        The next call allocates again.
        """
        if stream is None:
            keys = list(self._buffers)
        else:
            keys = [int(self._device.stream(stream).handle)]
        if self._leased.intersection(keys):
            raise WorkspaceLimitError("the workspace cannot be released while it is leased")
        self._forget_recent()
        released = {key: self._buffers.pop(key) for key in keys if key in self._buffers}
        for key, (buffer, _) in released.items():
            if key not in self._shared:
                buffer.close()
        self._shared.difference_update(released)

    def close(self) -> None:
        """Free all buffers for good."""
        self._closed = True
        self._leased.clear()
        self.release()

    def __repr__(self) -> str:
        limit = "no limit" if self._limit is None else f"limit {format_size(self._limit)}"
        return f"<Workspace {format_size(self.size)}, peak {format_size(self.peak)}, {limit}>"
