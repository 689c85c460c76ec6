"""`CudaRecorder`: what is enqueued on a stream, recorded as a CUDA graph of cuda.core's."""

from __future__ import annotations

from threading import get_ident
from typing import Any

from cudnnlite.errors import CaptureError

LEGACY_STREAMS = (0, 1)  # the addresses of the legacy default stream, which CUDA does not record


class CudaRecorder:
    """Records a stream; see `cudnnlite.devices.device.Recorder`.

    In place of the legacy default stream another one is recorded, which the device's copies go to meanwhile.  It waits for
    nothing: what is recorded does not run, and is ordered by the stream that the graph is launched on.
    """

    def __init__(self, device: Any, stream: Any) -> None:
        self._device, self._replaces = device, int(stream.handle) in LEGACY_STREAMS
        self.stream = device.create_stream() if self._replaces else stream
        self.graph: Any = None
        device.activate()
        self._builder = self.stream.create_graph_builder()

    def begin(self) -> None:
        """Begin to record."""
        self._builder.begin_building()
        if self._replaces:
            self._device.stand_ins[get_ident()] = self.stream

    def end(self, *, keep: bool = True) -> None:
        """End the recording; CaptureError where it should be kept and CUDA gave it up."""
        if self._replaces:
            del self._device.stand_ins[get_ident()]
        try:
            self._builder.end_building()
            if keep:
                self.graph = self._builder.complete()
        except Exception as error:  # cuda.core's own
            if keep:
                raise CaptureError(f"CUDA gave up the recording: {error}") from error
        finally:
            self._builder.close()
