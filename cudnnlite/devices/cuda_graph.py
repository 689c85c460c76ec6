"""`CudaRecorder`: what is enqueued on a stream, recorded as a CUDA graph of cuda.core's."""

from __future__ import annotations

from threading import get_ident
from typing import Any

from cudnnlite.errors import CaptureError


class CudaRecorder:
    """Records a stream; see `cudnnlite.devices.device.Recorder`.

    In its place another stream is recorded, which the device's copies go to meanwhile.  So the legacy default stream, which
    CUDA does not record, is like any other; what is dropped meanwhile is freed (in a stream that is being recorded that fails);
    and what other threads do on the stream is their own affair.  The stand-in waits for nothing: what is recorded does not run.
    """

    def __init__(self, device: Any, stream: Any) -> None:
        self._device, self._key = device, (get_ident(), int(stream.handle))
        self.stream = device.create_stream()
        self.graph: Any = None
        self._builder = self.stream.create_graph_builder()

    def begin(self) -> None:
        """Begin to record."""
        self._builder.begin_building()
        self._device.stand_ins[self._key] = self.stream

    def end(self, *, keep: bool = True) -> None:
        """End the recording; CaptureError where it should be kept and CUDA gave it up."""
        del self._device.stand_ins[self._key]
        try:
            self._builder.end_building()
            if keep:
                self.graph = self._builder.complete()
        except Exception as error:  # cuda.core's own
            if keep:
                raise CaptureError(f"CUDA gave up the recording: {error}") from error
        finally:
            self._builder.close()
