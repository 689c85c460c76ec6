"""`CudaRecorder`: what is enqueued on a stream, recorded as a CUDA graph of cuda.core's."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from cudnnlite.errors import CaptureError


class CudaRecorder:
    """Records what is enqueued on a stream in a `with` block; see `cudnnlite.devices.device.Recorder`."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.graph: Any = None
        self._builder = stream.create_graph_builder()

    def __enter__(self) -> CudaRecorder:
        self._builder.begin_building()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._builder.end_building()
            if kind is None:
                self.graph = self._builder.complete()
        except Exception as given_up:  # cuda.core's own
            if kind is None:
                raise CaptureError(f"CUDA gave up the recording: {given_up}") from given_up
        finally:
            self._builder.close()
