"""CUDA graphs: `CudaRecorder` records one; `LateBuffer` outlives another library's recording."""

from __future__ import annotations

import sys
from typing import Any

from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.errors import CaptureError


class CudaRecorder(NonCopyable):
    """Records the calls on a stream; see `cudnnlite.devices.device.StreamRecorder`."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.graph: Any = None
        self._builder = stream.create_graph_builder()

    def __enter__(self) -> CudaRecorder:
        self._builder.begin_building()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._builder.end_building()
            if kind is None:
                self.graph = self._builder.complete()
        except Exception as error:  # an error of cuda.core
            if kind is None:
                raise CaptureError(f"CUDA gave up the recording: {error}") from error
        finally:
            self._builder.close()


class LateBuffer(NonCopyable):
    """A buffer on another library's stream.

    While that stream is recorded, CUDA frees nothing; the device frees the buffer later.
    """

    __slots__ = ("__weakref__", "_buffer", "_device", "_stream", "handle", "size")

    def __init__(self, device: Any, buffer: Any, stream: Any) -> None:
        self._device, self._buffer, self._stream = device, buffer, stream
        self.handle, self.size = buffer.handle, buffer.size

    def close(self, stream: Any = None) -> None:
        """Free the buffer in the order of its stream, or of `stream`; harmless when repeated."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._device.free(buffer, self._stream if stream is None else stream)

    def __del__(self) -> None:
        if not sys.is_finalizing():  # At the end the driver may have been shut down.
            self.close()
