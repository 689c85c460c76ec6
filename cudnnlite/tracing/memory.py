"""`Memory`: what a trace knows of device memory: allocations, copies, streams, graphs, and what others wrote."""

from __future__ import annotations

import hashlib
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from cudnnlite._raw.calls import Call
from cudnnlite.descriptors.native import LIVE
from cudnnlite.errors import CaptureError
from cudnnlite.tracing.program import Buffer, Contents, Part, Place, Size, Step, Thing
from cudnnlite.warn import warn_user

_PACKAGE = str(Path(__file__).parents[1])
_ELSEWHERE = ("contextlib.py", "weakref.py")  # whose lines are nobody's
_STREAMS: dict[int, Part] = {0: "0", 1: "cudaStreamLegacy", 2: "cudaStreamPerThread"}


class Memory:
    """The part of a recorder that is about memory; its methods `_on_...` stand in for those of devices while it records.

    Attributes
    ----------
    steps : list of Step
        What the block did, and what makes what was there before.
    told : list of str
        What could not be written out.
    devices : set
        Those that were used.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.told: list[str] = []
        self.devices: set[Any] = set()
        self._things: dict[int, Thing] = {}  # handles, descriptors, graphs, by address
        self._buffers: dict[int, Buffer] = {}
        self._streams = dict(_STREAMS)
        self._stream_of: dict[int, int] = {}  # by handle
        self._answers: dict[int, Thing] = {}  # sizes that cuDNN told, and the variables that hold them
        self._ranges: dict[int, int] = {}  # how long other libraries say that their arrays are
        self._capturing = False
        self._lock, self._mine = threading.RLock(), threading.local()

    @property
    def busy(self) -> bool:
        """Whether this thread is in the middle of a call."""
        return getattr(self._mine, "busy", False)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Record nothing of what this thread does in the block: it is part of something else."""
        with self._lock:
            self._mine.busy = True
            try:
                self._forget_freed()
                yield
            finally:
                self._mine.busy = False

    def tell(self, what: str) -> None:
        """Say, once, what the program cannot do."""
        if what not in self.told:
            self.told.append(what)
            warn_user(f"trace: {what}", RuntimeWarning)

    def finish(self) -> None:
        """Read what the block wrote and did not read itself."""
        with self.aside(), suppress(CaptureError):  # in a capture nothing can be read
            for buffer in self._buffers.values():
                if buffer.unread and buffer.named_by_use:
                    self._look_again(buffer)
                    for offset, nbytes in [*buffer.digests] or [(0, buffer.nbytes)]:
                        self._report(Place(buffer, offset), self._read(buffer, offset, nbytes))

    def _add(self, function: str, *arguments: Part, **more: Any) -> None:
        self.steps.append(Step(function, [*arguments], where=where(), **more))

    def _place(self, address: int) -> Place | None:
        """Return where an address lies; None if that is not on a device."""
        for buffer in self._buffers.values():
            if buffer.base <= address < buffer.base + buffer.nbytes:
                return Place(buffer, address - buffer.base)
        for device in self.devices | {owner.device for owner in LIVE if hasattr(owner, "device")}:
            if (found := device.allocation_of(address)) is not None:
                return Place(self._new(device, *found), address - found[0])
        return None

    def _known(self, device: Any, ptr: int) -> Place:
        self.devices.add(device)
        place = self._place(ptr)
        assert place is not None, f"{ptr:#x} is not on {device}"
        return place

    def _new(self, device: Any, base: int, nbytes: int, owner: Any = None) -> Buffer:
        """Write down an allocation; without an owner it was there before."""
        self.devices.add(device)
        new = Buffer("void *", "memory", "cudaFree", base, nbytes, device, shared=owner is None)
        if owner is not None:  # before the block nothing had been asked
            new.alive, new.answer = weakref.ref(owner), self._answers.get(nbytes)
        for old in [*self._buffers.values()]:
            if base < old.base + old.nbytes and old.base < base + nbytes:
                self._forget(old)
        self._buffers[base] = new
        self._add("cudaMalloc", ["&", new], Size(new), of=(new,), early=owner is None)
        return new

    def _forget(self, buffer: Buffer) -> None:
        del self._buffers[buffer.base]
        self._add("cudaFree", buffer, of=(buffer,), ends=buffer)

    def _forget_freed(self) -> None:
        for buffer in [*self._buffers.values()]:
            if buffer.alive is not None and buffer.alive() is None:
                self._forget(buffer)

    # what others may write to

    def _read(self, buffer: Buffer, offset: int, nbytes: int) -> bytes:
        found = np.empty(nbytes, np.uint8)
        buffer.device.synchronize()
        buffer.device.copy_out(found, buffer.base + offset, buffer.device.default_stream)
        return found.tobytes()

    def _look(self, place: Place) -> None:
        """Load what is in memory that others may write to, where it is not as it was."""
        buffer, known = place.buffer, self._ranges.get(place.buffer.base + place.offset)
        if not buffer.shared or self._capturing:
            return
        window = (0, buffer.nbytes) if known is None else (place.offset, known)
        content, before = self._read(buffer, *window), buffer.digests.get(window)
        if before != _digest(content):
            buffer.digests[window] = _digest(content)
            if before is not None:
                self.tell("memory was written to by somebody else; the program loads what was there then")
            self._write(Place(buffer, window[0]), content, early=before is None and buffer.alive is None)

    def _look_again(self, buffer: Buffer) -> None:
        for offset, _ in [*buffer.digests]:
            self._look(Place(buffer, offset))

    def _note_written(self, buffer: Buffer) -> None:
        """Note what is in memory that others may write to, after we did."""
        if buffer.shared and not self._capturing:
            windows = buffer.digests or {(0, buffer.nbytes): b""}
            buffer.digests = {window: _digest(self._read(buffer, *window)) for window in windows}

    def _write(
        self, place: Place, content: bytes, rows: int = 1, pitch: int = 0, *, width: int = 0, early: bool = False
    ) -> None:
        """Copy from a file, rows or parts; parts of a buffer go where cuDNN says that they lie."""
        buffer, start, _ = place
        of, file, end = (buffer,), Contents(buffer, content, width), start + len(content)
        if rows > 1:
            self._add("load_rows", place, pitch, len(content) // rows, rows, file, of=of)
            return
        inside: list[Any] = [(at, *part) for at, part in buffer.parts.items() if start <= at and at + part[0] <= end]
        for at, size, part in sorted(inside, key=lambda each: each[0]) or [(start, len(content), None)]:
            self._add("load", Place(buffer, at, part), size, file, at - start, of=of, early=early)

    def _written(self, place: Place, *content: Any, **more: Any) -> None:
        self._write(place, *content, **more)
        self._note_written(place.buffer)

    def _report(self, place: Place, content: bytes, rows: int = 1, pitch: int = 0) -> None:
        size, part = place.buffer.parts.get(place.offset, (0, None))
        there = place._replace(part=part) if size == len(content) else place
        function, shape = (
            ("report", [len(content)]) if rows == 1 else ("report_rows", [pitch, len(content) // rows, rows])
        )
        self._add(function, ['"', place.buffer, '"'], there, *shape, checksum=checksum(content))
        place.buffer.unread = False

    # in the place of a device's methods, which come first; those that are not here call one that is

    def _on_allocate(self, own: Call, device: Any, nbytes: int, stream: Any) -> Any:
        owner = own(device, nbytes, stream)
        self._forget_freed()  # to make room
        if nbytes:
            self._new(device, int(owner.handle), nbytes, owner)
        return owner

    def _on_copy_in(self, own: Call, device: Any, ptr: int, source: Any, stream: Any) -> None:
        own(device, ptr, source, stream)
        width = source.itemsize if source.dtype.kind == "f" else 0
        self._written(self._known(device, ptr), source.tobytes(), width=width)

    def _on_copy_rows(self, own: Call, device: Any, ptr: int, pitch: int, host: Any, stream: Any, *, out: bool) -> None:
        place = self._known(device, ptr) if host.size else None
        if place is not None and out:
            self._look(place)
        own(device, ptr, pitch, host, stream, out=out)
        if place is not None and out:
            device.wait(stream)  # with pinned memory nobody has
        if place is not None:
            (self._report if out else self._written)(place, host.tobytes(), len(host), pitch)

    def _on_copy_within(self, own: Call, device: Any, target: int, source: int, nbytes: int, stream: Any) -> None:
        to, origin = self._known(device, target), self._known(device, source)
        self._look(origin)
        own(device, target, source, nbytes, stream)
        self._enqueue(stream, "cudaMemcpyAsync", to, origin, nbytes, "cudaMemcpyDeviceToDevice")

    def _on_fill_rows(
        self, own: Call, device: Any, ptr: int, pitch: int, width: int, rows: int, pattern: bytes, stream: Any
    ) -> None:
        own(device, ptr, pitch, width, rows, pattern, stream)
        if not width * rows:
            return
        place = self._known(device, ptr)
        if len(set(pattern)) > 1 and self._capturing:  # where the program cannot load
            self.tell("a fill with more than one byte went into a CUDA graph: it is not in the program")
        elif len(set(pattern)) > 1:
            self._written(place, pattern * (width * rows // len(pattern)), rows, pitch)
        elif rows > 1:
            self._enqueue(stream, "cudaMemset2DAsync", place, pitch, pattern[0], width, rows)
        else:
            size = Size(place.buffer) if width == place.buffer.nbytes else width
            self._enqueue(stream, "cudaMemsetAsync", place, pattern[0], size)

    def _enqueue(self, stream: Any, function: str, to: Place, *arguments: Part) -> None:
        address = int(stream.handle)
        self._add(function, to, *arguments, self._stream(address), of=(to.buffer,), stream=address)
        self._note_written(to.buffer)

    def _on_adopt(self, own: Call, device: Any, array: Any, argument: str, stream: Any) -> Any:
        foreign = own(device, array, argument, stream)
        self._ranges[foreign.ptr] = foreign.nbytes
        return foreign

    def _on_export_dlpack(self, own: Call, device: Any, array: Any, *arguments: Any, **options: Any) -> Any:
        place = self._place(array.ptr)
        if place is not None and not place.buffer.shared:
            place.buffer.shared = True
            self._note_written(place.buffer)
        return own(device, array, *arguments, **options)

    _on_cuda_array_interface = _on_export_dlpack

    # streams and graphs

    def _stream(self, address: int) -> Part:
        if address not in self._streams:
            self._streams[address] = thing = Thing("cudaStream_t", "stream", "cudaStreamDestroy")
            self._add("cudaStreamCreate", ["&", thing], of=(thing,), early=True)
        return self._streams[address]

    def _on_capture(self, own: Call, device: Any, work: Any, stream: Any) -> Any:
        self.tell("calls that a search timed in CUDA graphs of its own are not in the program")
        return own(device, work, stream)

    def _on_recorder(self, own: Call, device: Any) -> Any:
        """Let what records a graph say when it begins and ends; its own methods run first."""
        return _TracedRecorder(own(device), self)

    def began_graph(self, address: int) -> None:
        """Write down that a stream is recorded from here on."""
        self._add("cudaStreamBeginCapture", self._stream(address), "cudaStreamCaptureModeRelaxed")
        self._capturing = True

    def ended_graph(self, address: int, graph: Any) -> None:
        """Write down that the recording is over, and the graph that came of it, if any did."""
        self._capturing = False
        drawn = Thing("cudaGraph_t", "graph", "cudaGraphDestroy")
        self._add("cudaStreamEndCapture", self._stream(address), ["&", drawn])
        if graph is not None:
            self._things[id(graph)] = made = Thing("cudaGraphExec_t", "graph_exec", "cudaGraphExecDestroy")
            self._add("cudaGraphInstantiate", ["&", made], drawn, 0)

    def on_launch(self, own: Call, captured: Any) -> None:
        """Launch a graph that `dnn.capture` recorded."""
        made, address = self._things.get(id(captured._graph)), int(captured._stream.handle)
        for buffer in [*self._buffers.values()] if made else ():
            self._look_again(buffer)
        own(captured)
        if made is None:
            self.tell(
                "a CUDA graph that was recorded before the trace was launched: what it does is not in the program"
            )
            return
        self._add("cudaGraphLaunch", made, self._stream(address), stream=address)
        for buffer in self._buffers.values():
            self._note_written(buffer)


class _TracedRecorder:
    """What records a graph on a device, and tells a trace when it begins and ends."""

    def __init__(self, own: Any, memory: Memory) -> None:
        self._own, self._memory, self.stream = own, memory, own.stream

    @property
    def graph(self) -> Any:
        return self._own.graph

    def __enter__(self) -> _TracedRecorder:
        self._own.__enter__()
        self._memory.began_graph(int(self.stream.handle))
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._own.__exit__(*error)
        finally:
            self._memory.ended_graph(int(self.stream.handle), self.graph)


def checksum(content: bytes) -> int:
    """Return the sum of (2 i + 1) times byte i, modulo 2^64, as the program in C does."""
    total = 0
    for start in range(0, len(content), 1 << 20):
        part = np.frombuffer(content, np.uint8, min(1 << 20, len(content) - start), start).astype(np.uint64)
        total += int(part @ np.arange(2 * start + 1, 2 * (start + len(part)) + 1, 2, dtype=np.uint64))
    return total % 2**64


def where() -> tuple[str, int]:
    """Return the line outside of cudnnlite that is running."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_PACKAGE, "<the call of")) and not name.endswith(_ELSEWHERE):
            return name, frame.f_lineno
        frame = frame.f_back
    return "", 0


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
