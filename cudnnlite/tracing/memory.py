"""`Memory`: what a trace knows of device memory: allocations, copies, streams, graphs, and what others wrote."""

from __future__ import annotations

import hashlib
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from cudnnlite._raw.calls import Call
from cudnnlite.descriptors.native import LIVE
from cudnnlite.errors import CaptureError
from cudnnlite.tracing.things import Buffer, Contents, Part, Place, Size, Step, Thing
from cudnnlite.warn import warn_user

_PACKAGE = str(Path(__file__).parents[1])
_ELSEWHERE = ("contextlib.py", "weakref.py")  # whose lines are nobody's
_STREAMS = {0: "0", 1: "cudaStreamLegacy", 2: "cudaStreamPerThread"}


class _Freed(weakref.ref[Any]):
    """Tells when memory is gone; `append` of a deque is all that runs then, where an interrupt would be lost."""

    __slots__ = ("buffer",)
    buffer: Buffer


class Memory:
    """The part of a recorder that is about memory; its methods `_on_...` stand in for those of devices while it records.

    Attributes
    ----------
    before, steps : list of Step
        What makes what was there before the block; what the block did.
    told : list of str
        What could not be written out.
    devices : dict
        Those that were used.
    """

    def __init__(self) -> None:
        self.before: list[Step] = []
        self.steps: list[Step] = []
        self.told: list[str] = []
        self.devices: dict[int, Any] = {}
        self._things: dict[int, Thing] = {}  # handles, descriptors, graphs, by address
        self._buffers: dict[int, Buffer] = {}
        self._streams: dict[int, Part] = dict(_STREAMS)
        self._stream_of: dict[int, int] = {}  # by handle
        self._answers: dict[int, Thing] = {}  # sizes that cuDNN told, and the variables that hold them
        self._ranges: dict[int, int] = {}  # how long other libraries say that their arrays are
        self._freed: deque[_Freed] = deque()
        self._refs: dict[int, _Freed] = {}
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
                while self._freed:
                    self._forget(self._freed.popleft().buffer)
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

    def _add(self, *parts: Part, of: tuple[Thing, ...] | None = None, **more: Any) -> None:
        self.steps.append(Step([*parts], of, where(), **more))

    def _place(self, address: int) -> Place | None:
        """Return where an address lies; None if that is not on a device."""
        for buffer in (self._buffers.get(address), *self._buffers.values()):
            if buffer is not None and buffer.base <= address < buffer.base + buffer.nbytes:
                return Place(buffer, address - buffer.base)
        there = {id(owner.device): owner.device for owner in LIVE if hasattr(owner, "device")}
        for device in (self.devices | there).values():
            found = device.allocation_of(address)
            if found is not None:
                return Place(self._new(device, *found, steps=self.before), address - found[0])
        return None

    def _new(self, device: Any, base: int, nbytes: int, *, steps: list[Step]) -> Buffer:
        self.devices[id(device)] = device
        outside = steps is self.before
        new = Buffer("void *", "memory", "CUDA(cudaFree({}));", base, nbytes, device, outside, shared=outside)
        for old in [*self._buffers.values()]:
            if base < old.base + old.nbytes and old.base < base + nbytes:
                self._forget(old)
        self._buffers[base] = new
        size = Size(new, None if outside else self._answers.get(nbytes))  # before the block nothing has been asked
        steps.append(Step(["CUDA(cudaMalloc(&", new, ", ", size, "));"], (new,), where(), begins=new))
        return new

    def _forget(self, buffer: Buffer) -> None:
        if self._buffers.get(buffer.base) is buffer:
            del self._buffers[buffer.base]
            self._refs.pop(buffer.base, None)
            self._add("CUDA(cudaFree(", buffer, "));", of=(buffer,), ends=buffer)

    def _known(self, device: Any, ptr: int) -> Place:
        self.devices[id(device)] = device
        place = self._place(ptr)
        assert place is not None, f"{ptr:#x} is not on {device}"
        return place

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
            first = before is None and buffer.outside
            (self.before if first else self.steps).extend(self._load(Place(buffer, window[0]), content))

    def _look_again(self, buffer: Buffer) -> None:
        for offset, _ in [*buffer.digests]:
            self._look(Place(buffer, offset))

    def _note_written(self, buffer: Buffer) -> None:
        """Note what is in memory that others may write to, after we did."""
        if buffer.shared and not self._capturing:
            windows = buffer.digests or {(0, buffer.nbytes): b""}
            buffer.digests = {window: _digest(self._read(buffer, *window)) for window in windows}

    def _load(self, place: Place, content: bytes) -> list[Step]:
        """Return what copies from a file; parts of a buffer go where cuDNN says that they lie."""
        buffer, start, _ = place
        parts = [(at, *part) for at, part in sorted(buffer.parts.items(), key=lambda each: each[0])]
        inside: list[Any] = [part for part in parts if start <= part[0] and part[0] + part[1] <= start + len(content)]
        file = Contents(buffer, content)
        return [
            Step(["load(", Place(buffer, at, part), f", {size}, ", file, f", {at - start});"], (buffer,), where())
            for at, size, part in inside or [(start, len(content), None)]
        ]

    def _report(self, place: Place, content: bytes) -> None:
        size, part = place.buffer.parts.get(place.offset, (0, None))
        there = place._replace(part=part) if size == len(content) else place
        self._add('report("', place.buffer, '", ', there, f", {len(content)});", checksum=checksum(content))
        place.buffer.unread = False

    # in the place of a device's methods, which come first

    def _on_allocate(self, own: Call, device: Any, nbytes: int, stream: Any) -> Any:
        buffer = own(device, nbytes, stream)
        while self._freed:  # to make room
            self._forget(self._freed.popleft().buffer)
        if nbytes:
            made = self._new(device, int(buffer.handle), nbytes, steps=self.steps)
            ref = self._refs[made.base] = _Freed(buffer, self._freed.append)
            ref.buffer = made
        return buffer

    def _on_copy_in(self, own: Call, device: Any, ptr: int, source: Any, stream: Any) -> None:
        own(device, ptr, source, stream)
        self._loaded(self._known(device, ptr), source.tobytes())

    def _loaded(self, place: Place, content: bytes) -> None:
        self.steps += self._load(place, content)
        self._note_written(place.buffer)

    def _on_copy_rows(self, own: Call, device: Any, ptr: int, pitch: int, host: Any, stream: Any, *, out: bool) -> None:
        if not host.size:
            own(device, ptr, pitch, host, stream, out=out)
            return
        place, (rows, width) = self._known(device, ptr), host.shape
        if out:
            self._look(place)
        own(device, ptr, pitch, host, stream, out=out)
        if out:
            device.wait(stream)  # with pinned memory nobody has
        content = host.tobytes()
        if rows == 1:
            (self._report if out else self._loaded)(place, content)
        elif out:
            there: list[Part] = [place, f", {pitch}, {width}, {rows});"]
            self._add('report_rows("', place.buffer, '", ', *there, checksum=checksum(content))
            place.buffer.unread = False
        else:
            there = [place, f", {pitch}, {width}, {rows}, ", Contents(place.buffer, content), ");"]
            self._add("load_rows(", *there, of=(place.buffer,))
            self._note_written(place.buffer)

    def _on_copy_out(self, own: Call, device: Any, target: Any, ptr: int, stream: Any) -> None:
        place = self._known(device, ptr)
        self._look(place)
        own(device, target, ptr, stream)
        self._report(place, target.tobytes())

    def _on_copy_within(self, own: Call, device: Any, target: int, source: int, nbytes: int, stream: Any) -> None:
        to, origin = self._known(device, target), self._known(device, source)
        self._look(origin)
        own(device, target, source, nbytes, stream)
        self._enqueue(stream, to, "CUDA(cudaMemcpyAsync(", to, ", ", origin, f", {nbytes}, cudaMemcpyDeviceToDevice, ")

    def _on_fill(self, own: Call, device: Any, ptr: int, nbytes: int, byte: int, stream: Any) -> None:
        own(device, ptr, nbytes, byte, stream)
        self._filled(self._known(device, ptr), nbytes, byte, stream)

    def _filled(self, place: Place, nbytes: int, byte: int, stream: Any) -> None:
        whole = nbytes == place.buffer.nbytes and not place.buffer.outside
        size = Size(place.buffer, self._answers.get(nbytes)) if whole else str(nbytes)
        self._enqueue(stream, place, "CUDA(cudaMemsetAsync(", place, f", {byte}, ", size, ", ")

    def _on_fill_rows(
        self, own: Call, device: Any, ptr: int, pitch: int, width: int, rows: int, pattern: bytes, stream: Any
    ) -> None:
        own(device, ptr, pitch, width, rows, pattern, stream)
        if not width * rows:
            return
        place, single = self._known(device, ptr), len(set(pattern)) == 1
        if single and rows == 1:
            self._filled(place, width, pattern[0], stream)
        elif single:
            end = f", {pitch}, {pattern[0]}, {width}, {rows}, "
            self._enqueue(stream, place, "CUDA(cudaMemset2DAsync(", place, end)
        elif self._capturing:  # where the program cannot load
            self.tell("a fill with more than one byte went into a CUDA graph: it is not in the program")
        elif rows == 1:
            self._loaded(place, pattern * (width // len(pattern)))
        else:
            file = Contents(place.buffer, pattern * (width // len(pattern) * rows))
            self._add("load_rows(", place, f", {pitch}, {width}, {rows}, ", file, ");", of=(place.buffer,))
            self._note_written(place.buffer)

    def _enqueue(self, stream: Any, to: Place, *parts: Part) -> None:
        address = int(stream.handle)
        self._add(*parts, self._stream(address), "));", of=(to.buffer,), stream=address)
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
            thing = self._streams[address] = Thing("cudaStream_t", "stream", "CUDA(cudaStreamDestroy({}));")
            self.before.append(Step(["CUDA(cudaStreamCreate(&", thing, "));"], (thing,), begins=thing))
        return self._streams[address]

    def _on_capture(self, own: Call, device: Any, work: Any, stream: Any) -> Any:
        self.tell("calls that a search timed in CUDA graphs of its own are not in the program")
        return own(device, work, stream)

    def _on_recorder(self, own: Call, device: Any) -> Any:
        """Let what records a graph say when it begins and ends; its own methods run first."""
        return _TracedRecorder(own(device), self)

    def began_graph(self, address: int) -> None:
        """Write down that a stream is recorded from here on."""
        self._add("CUDA(cudaStreamBeginCapture(", self._stream(address), ", cudaStreamCaptureModeRelaxed));")
        self._capturing = True

    def ended_graph(self, address: int, graph: Any) -> None:
        """Write down that the recording is over, and the graph that came of it, if any did."""
        self._capturing = False
        drawn = Thing("cudaGraph_t", "graph", "CUDA(cudaGraphDestroy({}));")
        self._add("CUDA(cudaStreamEndCapture(", self._stream(address), ", &", drawn, "));", begins=drawn)
        if graph is not None:
            made = Thing("cudaGraphExec_t", "graph_exec", "CUDA(cudaGraphExecDestroy({}));")
            self._things[id(graph)] = made
            self._add("CUDA(cudaGraphInstantiate(&", made, ", ", drawn, ", 0));", begins=made)

    def on_launch(self, own: Call, captured: Any) -> None:
        """Launch a graph that `dnn.capture` recorded."""
        made, address = self._things.get(id(captured._graph)), int(captured._stream.handle)
        if made is None:
            self.tell(
                "a CUDA graph that was recorded before the trace was launched: what it does is not in the program"
            )
            own(captured)
            return
        for buffer in [*self._buffers.values()]:
            self._look_again(buffer)
        own(captured)
        self._add("CUDA(cudaGraphLaunch(", made, ", ", self._stream(address), "));", stream=address)
        for buffer in self._buffers.values():
            self._note_written(buffer)


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
