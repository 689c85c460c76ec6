"""`Memory`: what a trace knows of device memory: allocations, copies, streams, graphs, and what others wrote."""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from cudnnlite._raw.calls import Call
from cudnnlite.descriptors.native import LIVE
from cudnnlite.devices.choice import devices
from cudnnlite.errors import CaptureError
from cudnnlite.tracing.program import Contents, Part, Step, Thing
from cudnnlite.warn import warn_user

_PACKAGE = str(Path(__file__).parents[1])
_ELSEWHERE = ("contextlib.py", "weakref.py")  # whose lines are nobody's
_STREAMS: dict[int, Part] = {0: "0", 1: "cudaStreamLegacy", 2: "cudaStreamPerThread"}
_SPACES = re.compile("space|states|weights")  # memory that is as large as cuDNN said


@dataclass(eq=False)
class Buffer(Thing):
    """An allocation on a device: from `base` on so many bytes."""

    base: int = 0
    nbytes: int = 0
    device: Any = None
    alive: Any = None  # a weak reference to what owns it; None where that is somebody else's: it was there before
    answer: Thing | None = None  # cuDNN's, that is as large
    shared: bool = False  # whether others may write to it unseen: it was there before, or was handed to another library
    unread: bool = False  # whether something was written that nobody has read
    digests: dict[tuple[int, int], bytes] = field(default_factory=dict)  # when looked at last; by offset and bytes
    parts: dict[int, tuple[int, Thing]] = field(default_factory=dict)  # by offset: bytes, and cuDNN's answer where

    def size(self) -> Part:
        """Return how large it is made: what cuDNN was asked for, where it is scratch memory; else so many bytes."""
        return self.answer if self.answer and _SPACES.search(self.name) else self.nbytes

    def at(self, offset: int, nbytes: int = -1) -> Part:
        """Return somewhere in it; of a part of that size the variable in which cuDNN tells where it is, on whichever device."""
        size, part = self.parts.get(offset, (0, self))
        return part if size == nbytes else ["(char *)", self, f" + {offset}"] if offset else self


class _Owner(weakref.ref[Any]):
    """Tells when what owns an allocation is gone, and where that was."""

    __slots__ = ("base",)
    base: int


Place: TypeAlias = tuple[Buffer, int]  # and an offset in it


class Memory:
    """The part of a recorder that is about memory; its methods `_on_...` stand in for those of devices while it records."""

    def __init__(self) -> None:
        self.steps: list[Step] = []  # what the block did, and what makes what was there before
        self.told: list[str] = []  # what could not be written out
        self.devices: set[Any] = set()  # those that were used
        self._things: dict[int, Thing] = {}  # handles, descriptors, graphs, by address
        self._buffers: dict[int, Buffer] = {}
        self._freed: deque[_Owner] = deque()  # others' threads free as well
        self._streams = dict(_STREAMS)
        self._stream_of: dict[int, int] = {}  # by handle
        self._last_stream: int | None = None
        self._answers: dict[int, Thing] = {}  # sizes that cuDNN told, and the variables that hold them
        self._ranges: dict[int, int] = {}  # how long other libraries say that their arrays are
        self._capturing = False
        self.over = False  # what still stands in then, because of an interrupt, records nothing
        self._replaced: list[tuple[Any, str, Any]] = []  # attributes, and what they were
        self.thread = threading.get_ident()  # whose block it is
        self.renew()

    def renew(self) -> None:
        """Begin with a lock that nobody has."""
        self._lock, self._mine = threading.RLock(), threading.local()

    def stand_in(self, of: Any) -> None:
        """Put methods `_on_...` in the place of those of a class, or of those that one object has of its own."""
        for name, original in [*vars(of).items()]:
            if hasattr(self, f"_on_{name}") and not hasattr(original, "is_traced"):
                hook = getattr(self, f"_on_{name}")
                new = self._instead(hook, original if isinstance(of, type) else partial(_without_first, original))
                self.replace(of, name, new if isinstance(of, type) else partial(new, of))

    def _instead(self, hook: Call, own: Call) -> Call:
        def hooked(one: Any, *arguments: Any, **options: Any) -> Any:
            if self.over or getattr(self._mine, "busy", False):
                return own(one, *arguments, **options)
            with self.aside():
                return hook(own, one, *arguments, **options)

        vars(hooked)["is_traced"] = True
        return hooked

    def replace(self, of: Any, name: str, new: Any) -> None:
        """Set an attribute, until the trace ends."""
        self._replaced.append((of, name, vars(of)[name]))
        setattr(of, name, new)

    def put_back(self) -> None:
        """Undo what `replace` did; harmless when called again, after an interrupt for instance."""
        for replaced in reversed(self._replaced):
            setattr(*replaced)

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
                        self._report((buffer, offset), self._read(buffer, offset, nbytes))

    def _add(self, function: str, *arguments: Part, **more: Any) -> None:
        self.steps.append(Step(function, [*arguments], where=where(), **more))

    def _place(self, address: int) -> Place | None:
        """Return in which buffer an address lies, and where; None if that is not on a device."""
        for buffer in self._buffers.values():
            if buffer.base <= address < buffer.base + buffer.nbytes:
                return buffer, address - buffer.base
        for device in self.devices | used_devices():
            with device.current():  # the call that is recorded has made its own so
                found = device.allocation_of(address)
            if found is not None:
                return self._new(device, *found), address - found[0]
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
            # no walk of all buffers at each call; no lock, which its thread may not have; and `append` is C: a callback in
            # Python would lose what a signal handler raises in it
            new.alive = _Owner(owner, self._freed.append)
            new.alive.base = base
            new.answer = self._answers.get(nbytes)
        for old in [*self._buffers.values()]:
            if base < old.base + old.nbytes and old.base < base + nbytes:
                self._forget(old)
        self._buffers[base] = new
        self._add("cudaMalloc", ["&", new], new.size, of=(new,), early=owner is None)
        return new

    def _forget(self, buffer: Buffer) -> None:
        del self._buffers[buffer.base]
        self._add("cudaFree", buffer, of=(buffer,), ends=buffer)

    def _forget_freed(self) -> None:
        while self._freed:
            gone = self._freed.popleft()
            if (buffer := self._buffers.get(gone.base)) is not None and buffer.alive is gone:
                self._forget(buffer)

    # what others may write to

    def _read(self, buffer: Buffer, offset: int, nbytes: int) -> bytes:
        found = np.empty(nbytes, np.uint8)
        with buffer.device.current():
            buffer.device.synchronize()
            buffer.device.copy_out(found, buffer.base + offset, buffer.device.default_stream)
        return found.tobytes()

    def _look(self, buffer: Buffer, offset: int) -> None:
        """Load what is in memory that others may write to, where it is not as it was."""
        if not buffer.shared or self._capturing:
            return
        known = self._ranges.get(buffer.base + offset)
        window = (0, buffer.nbytes) if known is None else (offset, known)
        content, before = self._read(buffer, *window), buffer.digests.get(window)
        if before != _digest(content):
            buffer.digests[window] = _digest(content)
            if before is not None:
                self.tell("memory was written to by somebody else; the program loads what was there then")
            self._load((buffer, window[0]), content, early=before is None and buffer.alive is None)

    def _look_again(self, buffer: Buffer) -> None:
        for offset, _ in [*buffer.digests]:
            self._look(buffer, offset)

    def _note_written(self, buffer: Buffer) -> None:
        """Note what is in memory that others may write to, after we did."""
        if buffer.shared and not self._capturing:
            windows = buffer.digests or {(0, buffer.nbytes): b""}
            buffer.digests = {window: _digest(self._read(buffer, *window)) for window in windows}

    def _load(
        self, place: Place, content: bytes, rows: int = 1, pitch: int = 0, width: int = 0, early: bool = False
    ) -> None:
        """Copy from a file, rows or parts; parts of a buffer go where cuDNN says that they lie."""
        (buffer, start), nbytes = place, len(content)
        file = Contents(buffer, content, width)
        if rows > 1:
            self._add("load_rows", buffer.at(start), pitch, nbytes // rows, rows, file, of=(buffer,))
            return
        inside = [(at, size) for at, (size, _) in buffer.parts.items() if start <= at and at + size <= start + nbytes]
        for at, size in sorted(inside) or [(start, nbytes)]:
            self._add("load", buffer.at(at, size), size, file, at - start, of=(buffer,), early=early)

    def _loaded(self, place: Place, *content: Any, **more: Any) -> None:
        self._load(place, *content, **more)
        self._note_written(place[0])

    def _report(self, place: Place, content: bytes, rows: int = 1, pitch: int = 0) -> None:
        (buffer, offset), nbytes = place, len(content)
        function, shape = ("report", [nbytes]) if rows == 1 else ("report_rows", [pitch, nbytes // rows, rows])
        self._add(function, ['"', buffer, '"'], buffer.at(offset, nbytes), *shape, checksum=checksum(content))
        buffer.unread = False

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
        self._loaded(self._known(device, ptr), source.tobytes(), width=width)

    def _on_copy_rows(self, own: Call, device: Any, ptr: int, pitch: int, host: Any, stream: Any, *, out: bool) -> None:
        place = self._known(device, ptr) if host.size else None
        if place is not None and out:
            self._look(*place)
        own(device, ptr, pitch, host, stream, out=out)
        if place is not None and out:
            device.wait(stream)  # with pinned memory nobody has
        if place is not None:
            (self._report if out else self._loaded)(place, host.tobytes(), len(host), pitch)

    def _on_copy_within(self, own: Call, device: Any, target: int, source: int, nbytes: int, stream: Any) -> None:
        to, (buffer, offset) = self._known(device, target), self._known(device, source)
        self._look(buffer, offset)
        own(device, target, source, nbytes, stream)
        self._enqueue(stream, "cudaMemcpyAsync", to, buffer.at(offset), nbytes, "cudaMemcpyDeviceToDevice")

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
            self._loaded(place, pattern * (width * rows // len(pattern)), rows, pitch)
        elif rows > 1:
            self._enqueue(stream, "cudaMemset2DAsync", place, pitch, pattern[0], width, rows)
        else:
            size = place[0].size if width == place[0].nbytes else width
            self._enqueue(stream, "cudaMemsetAsync", place, pattern[0], size)

    def _enqueue(self, stream: Any, function: str, to: Place, *arguments: Part) -> None:
        self._order(int(stream.handle))
        self._add(function, to[0].at(to[1]), *arguments, self._stream(int(stream.handle)), of=to[:1])
        self._note_written(to[0])

    def _order(self, stream: int) -> None:
        """Wait where the program goes on with another stream."""
        if self._last_stream not in (None, stream) and not self._capturing:
            self._add("cudaDeviceSynchronize", note="another stream: Python orders them by events")
        self._last_stream = self._last_stream if self._capturing else stream

    def _on_adopt(self, own: Call, device: Any, array: Any, argument: str, stream: Any) -> Any:
        foreign = own(device, array, argument, stream)
        self._ranges[foreign.ptr] = foreign.nbytes
        return foreign

    def _on_export_dlpack(self, own: Call, device: Any, array: Any, *arguments: Any, **options: Any) -> Any:
        place = self._place(array.ptr)
        if place is not None and not place[0].shared:
            place[0].shared = True
            self._note_written(place[0])
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
        recorder = own(device)
        self.stand_in(type(recorder))
        return recorder

    def _on___enter__(self, own: Call, recorder: Any) -> Any:
        """Write down that a stream is recorded from here on."""
        own(recorder)
        self._add("cudaStreamBeginCapture", self._stream(int(recorder.stream.handle)), "cudaStreamCaptureModeRelaxed")
        self._capturing = True
        return recorder

    def _on___exit__(self, own: Call, recorder: Any, *error: Any) -> None:
        """Write down that the recording is over, and the graph that came of it, if any did."""
        try:
            own(recorder, *error)
        finally:
            self._capturing = False
            drawn = Thing("cudaGraph_t", "graph", "cudaGraphDestroy")
            self._add("cudaStreamEndCapture", self._stream(int(recorder.stream.handle)), ["&", drawn])
            if recorder.graph is not None:
                self._things[id(recorder.graph)] = made = Thing("cudaGraphExec_t", "graph_exec", "cudaGraphExecDestroy")
                self._add("cudaGraphInstantiate", ["&", made], drawn, 0)

    def _on_launch(self, own: Call, captured: Any) -> None:
        """Launch a graph that `dnn.capture` recorded."""
        made, stream = self._things.get(id(captured._graph)), int(captured._stream.handle)
        buffers = [*self._buffers.values()] if made else []
        for buffer in buffers:
            self._look_again(buffer)
        own(captured)
        if made is None:
            self.tell(
                "a CUDA graph that was recorded before the trace was launched: what it does is not in the program"
            )
        else:
            self._order(stream)
            self._add("cudaGraphLaunch", made, self._stream(stream))
        for buffer in buffers:
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


def _without_first(function: Call, _: Any, *arguments: Any, **options: Any) -> Any:
    return function(*arguments, **options)


def used_devices() -> set[Any]:
    """Return the devices that there are, as far as anybody can use them."""
    return {*devices._made.values(), *(owner.device for owner in LIVE if hasattr(owner, "device"))}


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
