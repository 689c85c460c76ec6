"""`Memory`: what a trace knows of device memory: allocations, copies, streams, graphs, and what others wrote."""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import weakref
from bisect import bisect, insort
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
_ELSEWHERE = (
    "contextlib.py",
    "weakref.py",
    "runpy.py",
    "<frozen runpy>",
)  # whose lines are nobody's
_STREAMS: dict[int, Part] = {0: "0", 1: "cudaStreamLegacy", 2: "cudaStreamPerThread"}
_SPACES = re.compile("space|states|weights")  # memory that is as large as cuDNN said


@dataclass(eq=False)
class Buffer(Thing):
    """An allocation on a device, or another library's array there: from `base` on so many bytes."""

    base: int = 0
    nbytes: int = 0
    alive: Any = None  # a weak reference to what owns it; None where that is somebody else's: it was there before
    answer: Thing | None = None  # cuDNN's, that is as large
    shared: bool = False  # whether others may write to it unseen: it was there before, or was handed to another library
    digest: bytes | None = None  # of what is shared, when it was looked at last
    unread: bool = False  # whether something was written that nobody has read
    parts: dict[int, tuple[int, Thing]] = field(
        default_factory=dict
    )  # by offset: bytes, and cuDNN's answer where

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
        self._bases: list[int] = []  # of buffers, in order
        self._freed: deque[_Owner] = deque()  # others' threads free as well
        self._streams = dict(_STREAMS)
        self._last_stream: dict[int, int] = {}  # by device
        self._answers: dict[
            int, Thing
        ] = {}  # sizes that cuDNN told, and the variables that hold them
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
        for name in [name for name in vars(of) if hasattr(self, f"_on_{name}")]:
            self.replace(of, name, self._instead(getattr(self, f"_on_{name}"), of, vars(of)[name]))

    def _instead(self, hook: Call, of: Any, own: Call) -> Call:
        def hooked(*arguments: Any, **options: Any) -> Any:
            one, *given = arguments if isinstance(of, type) else (of, *arguments)
            bound = partial(own, one) if isinstance(of, type) else own
            if self.over or getattr(self._mine, "busy", False):
                return bound(*given, **options)
            with self.aside():
                return hook(bound, one, *given, **options)

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
                    self._look(buffer)
                    self._report((buffer, 0), self._read(buffer))

    def _add(self, function: str, *arguments: Part, **more: Any) -> None:
        self.steps.append(Step(function, [*arguments], where=where(), **more))

    def _place(self, address: int, nbytes: int = 1, *, ask: bool = True) -> Place | None:
        """Return in which buffer so many bytes lie, and where; None if on no device; none is asked without `ask`.

        What was taken for an allocation and is too short is replaced by that in which it lies.
        """
        known: Place | None = None
        if before := bisect(self._bases, address):
            buffer = self._buffers[self._bases[before - 1]]
            if address + nbytes <= buffer.base + buffer.nbytes:
                return buffer, address - buffer.base
            if ask and address < buffer.base + buffer.nbytes:
                known = buffer, address - buffer.base
        for device in (
            self.devices | used_devices() if ask and not (known and known[0].alive) else ()
        ):
            with device.current():  # the call that is recorded has made its own so
                found = device.allocation_of(address)
            if found is not None and (known is None or found[1] > known[0].nbytes):
                return self._new(device, *found), address - found[0]
        return known

    def _on(self, device: Any, ptr: int, nbytes: int, written: int = 0) -> Place:
        """Return where so many bytes are, of which some are about to be written; what is left is looked at."""
        self.devices.add(device)
        place = self._place(ptr, nbytes)
        assert place is not None, f"{ptr:#x} is not on {device}"
        if place[0].alive is None:  # CUDA may tell of memory whichever device is asked
            place[0].device = device
        if written < place[0].nbytes:
            self._look(place[0])
        return place

    def _new(self, device: Any, base: int, nbytes: int, owner: Any = None) -> Buffer:
        """Write down an allocation; without an owner it was there before."""
        self.devices.add(device)
        new = Buffer(
            "void *", "memory", "cudaFree", base, nbytes, device=device, shared=owner is None
        )
        if owner is not None:  # before the block nothing had been asked
            # no walk of all buffers at each call; no lock, which its thread may not have; and `append` is C: a callback in
            # Python would lose what a signal handler raises in it
            new.alive = _Owner(owner, self._freed.append)
            new.alive.base = base
            new.answer = self._answers.get(nbytes)
        for old in [*self._buffers.values()]:
            if base < old.base + old.nbytes and old.base < base + nbytes:
                new.unread |= owner is None and old.alive is None and old.unread
                self._forget(old)
        self._buffers[base] = new
        insort(self._bases, base)
        self._add("cudaMalloc", ["&", new], new.size, of=(new,), early=owner is None)
        return new

    def _forget(self, buffer: Buffer) -> None:
        del self._buffers[buffer.base], self._bases[bisect(self._bases, buffer.base) - 1]
        self._add("cudaFree", buffer, of=(buffer,), ends=buffer)

    def _forget_freed(self) -> None:
        while self._freed:
            gone = self._freed.popleft()
            if (buffer := self._buffers.get(gone.base)) is not None and buffer.alive is gone:
                self._forget(buffer)

    # what others may write to

    def _read(self, buffer: Buffer) -> bytes:
        found = np.empty(buffer.nbytes, np.uint8)
        with buffer.device.current():
            buffer.device.synchronize()
            buffer.device.copy_out(found, buffer.base, buffer.device.default_stream)
        return found.tobytes()

    def _look(self, buffer: Buffer) -> None:
        """Load what is in memory that others may write to, where it is not as it was."""
        before = buffer.digest
        if (content := self._note(buffer)) is not None and before != buffer.digest:
            if before is not None:
                self.tell(
                    "memory was written to by somebody else; the program loads what was there then"
                )
            self._load((buffer, 0), content, early=before is None and buffer.alive is None)

    def _note(self, buffer: Buffer) -> bytes | None:
        """Note, and return, what is in memory that others may write to; None of other memory."""
        if not buffer.shared or self._capturing:
            return None
        content = self._read(buffer)
        buffer.digest = hashlib.blake2b(content).digest()
        return content

    def _load(
        self,
        place: Place,
        content: bytes,
        rows: int = 1,
        pitch: int = 0,
        width: int = 0,
        **more: Any,
    ) -> None:
        """Copy from a file, rows or parts; parts of a buffer go where cuDNN says that they lie."""
        (buffer, start), nbytes = place, len(content)
        file = Contents(buffer, content, width)
        if rows > 1:
            self._add(
                "load_rows", buffer.at(start), pitch, nbytes // rows, rows, file, of=(buffer,)
            )
            return
        inside = [
            (at, size)
            for at, (size, _) in buffer.parts.items()
            if start <= at and at + size <= start + nbytes
        ]
        for at, size in sorted(inside) or [(start, nbytes)]:
            self._add("load", buffer.at(at, size), size, file, at - start, of=(buffer,), **more)

    def _report(self, place: Place, content: bytes, rows: int = 1, pitch: int = 0) -> None:
        (buffer, offset), nbytes = place, len(content)
        function, shape = (
            ("report", [nbytes]) if rows == 1 else ("report_rows", [pitch, nbytes // rows, rows])
        )
        self._add(
            function,
            ['"', buffer, '"'],
            buffer.at(offset, nbytes),
            *shape,
            checksum=checksum(content),
        )
        buffer.unread = False

    # in the place of a device's methods, which come first; those that are not here call one that is

    def _on_allocate(self, own: Call, device: Any, nbytes: int, stream: Any) -> Any:
        owner = own(nbytes, stream)
        self._forget_freed()  # to make room
        if nbytes:
            self._new(device, int(owner.handle), nbytes, owner)
        return owner

    def _on_copy_in(self, own: Call, device: Any, ptr: int, source: Any, stream: Any) -> None:
        place = self._on(device, ptr, source.nbytes, source.nbytes)
        own(ptr, source, stream)
        self._load(
            place, source.tobytes(), width=source.itemsize if source.dtype.kind == "f" else 0
        )
        self._note(place[0])

    def _on_copy_rows(
        self, own: Call, device: Any, ptr: int, pitch: int, host: Any, stream: Any, *, out: bool
    ) -> None:
        nbytes = pitch * (len(host) - 1) + host.nbytes // len(host) if host.size else 0
        place = self._on(device, ptr, nbytes, 0 if out else host.nbytes) if nbytes else None
        own(ptr, pitch, host, stream, out=out)
        if place is not None and out:
            device.wait(stream)  # with pinned memory nobody has
            self._report(place, host.tobytes(), len(host), pitch)
        elif place is not None:
            self._load(place, host.tobytes(), len(host), pitch)
            self._note(place[0])

    def _on_copy_within(
        self, own: Call, device: Any, target: int, source: int, nbytes: int, stream: Any
    ) -> None:
        self._place(source, nbytes)  # which may replace what the target is in
        to, (buffer, offset) = (
            self._on(device, target, nbytes, nbytes),
            self._on(device, source, nbytes),
        )
        own(target, source, nbytes, stream)
        self._enqueue(
            stream, "cudaMemcpyAsync", to, buffer.at(offset), nbytes, "cudaMemcpyDeviceToDevice"
        )

    def _on_fill_rows(
        self,
        own: Call,
        device: Any,
        ptr: int,
        pitch: int,
        width: int,
        rows: int,
        pattern: bytes,
        stream: Any,
    ) -> None:
        place = (
            self._on(device, ptr, pitch * (rows - 1) + width, width * rows)
            if width * rows
            else None
        )
        own(ptr, pitch, width, rows, pattern, stream)
        if place is None:
            return
        if len({*pattern}) == 1:
            size = place[0].size if width == place[0].nbytes else width
            shape = (pitch, pattern[0], width, rows) if rows > 1 else (pattern[0], size)
            self._enqueue(stream, f"cudaMemset{'2D' * (rows > 1)}Async", place, *shape)
        elif self._capturing:  # where the program cannot load
            self.tell(
                "a fill with more than one byte went into a CUDA graph: it is not in the program"
            )
        else:
            self._load(place, pattern * (width * rows // len(pattern)), rows, pitch)
            self._note(place[0])

    def _enqueue(self, stream: Any, function: str, to: Place, *arguments: Part) -> None:
        self._order(int(stream.handle), to[0].device)
        self._add(
            function, to[0].at(to[1]), *arguments, self._stream(int(stream.handle)), of=to[:1]
        )
        self._note(to[0])

    def _order(self, stream: int, device: Any) -> None:
        """Wait where the program goes on with another stream of a device."""
        if self._capturing:
            return
        if device is None and len(self.devices) > 1:
            self.tell(
                "a handle that cudnnlite did not make was used beside several devices: the program guesses its own"
            )
        index = getattr(device or next(iter(self.devices), None), "index", 0)
        if self._last_stream.setdefault(index, stream) != stream:
            self._add(
                "cudaDeviceSynchronize",
                note="another stream: Python orders them by events",
                on=device,
            )
        self._last_stream[index] = stream

    def _on_adopt(self, own: Call, device: Any, *arguments: Any) -> Any:
        """Take another library's array for an allocation: what it lies in may be all of that library's memory."""
        foreign = own(*arguments)
        if foreign.nbytes and self._place(foreign.ptr, foreign.nbytes, ask=False) is None:
            self._new(device, foreign.ptr, foreign.nbytes)
        return foreign

    def _on_export_dlpack(
        self, own: Call, device: Any, array: Any, *arguments: Any, **options: Any
    ) -> Any:
        place = self._place(array.ptr)
        if place is not None and not place[0].shared:
            place[0].shared = True
            self._note(place[0])
        return own(array, *arguments, **options)

    _on_cuda_array_interface = _on_export_dlpack

    # streams and graphs

    def _stream(self, address: int) -> Part:
        if address not in self._streams:
            self._streams[address] = thing = Thing("cudaStream_t", "stream", "cudaStreamDestroy")
            self._add("cudaStreamCreate", ["&", thing], of=(thing,), early=True)
        return self._streams[address]

    def _on_capture(self, own: Call, _: Any, *arguments: Any) -> Any:
        self.tell("calls that a search timed in CUDA graphs of its own are not in the program")
        return own(*arguments)

    @contextmanager
    def recorded(self, own: Call, handle: Any) -> Iterator[Any]:
        """Write down that a stream is recorded in the block, and the graph that came of it, if any did."""
        with own(handle) as recorder:
            stream, drawn = (
                self._stream(int(recorder.stream.handle)),
                Thing("cudaGraph_t", "graph", "cudaGraphDestroy"),
            )
            self._add(
                "cudaStreamBeginCapture", stream, "cudaStreamCaptureModeRelaxed", on=handle.device
            )
            self._capturing = True
            try:
                yield recorder
            finally:
                self._capturing = False
                self._add("cudaStreamEndCapture", stream, ["&", drawn], on=handle.device)
        self._things[id(recorder.graph)] = made = Thing(
            "cudaGraphExec_t", "graph_exec", "cudaGraphExecDestroy"
        )
        self._add("cudaGraphInstantiate", ["&", made], drawn, 0)

    def _on_launch(self, own: Call, captured: Any) -> None:
        """Launch a graph that `dnn.capture` recorded."""
        made, stream = self._things.get(id(captured._graph)), int(captured._stream.handle)
        buffers = [*self._buffers.values()] if made else []
        for buffer in buffers:
            self._look(buffer)
        own()
        if made is None:
            self.tell(
                "a CUDA graph that was recorded before the trace was launched: what it does is not in the program"
            )
        else:
            self._order(stream, captured._device)
            self._add("cudaGraphLaunch", made, self._stream(stream), on=captured._device)
        for buffer in buffers:
            self._note(buffer)


def checksum(content: bytes) -> int:
    """Return the sum of (2 i + 1) times byte i, modulo 2^64, as the program in C does."""
    total = 0
    for start in range(0, len(content), 1 << 20):
        part = np.frombuffer(content, np.uint8, min(1 << 20, len(content) - start), start).astype(
            np.uint64
        )
        total += int(
            part @ np.arange(2 * start + 1, 2 * (start + len(part)) + 1, 2, dtype=np.uint64)
        )
    return total % 2**64


def where() -> tuple[str, int]:
    """Return the line outside of cudnnlite that is running; ('', 0) after the end of a script."""
    frame: Any = sys._getframe(1)
    while frame is not None and not (name := frame.f_code.co_filename).startswith(
        f"{_PACKAGE}/cli/"
    ):
        if not name.startswith((_PACKAGE, "<the call of")) and not name.endswith(_ELSEWHERE):
            return name, frame.f_lineno
        frame = frame.f_back
    return "", 0


def used_devices() -> set[Any]:
    """Return the devices that there are, as far as anybody can use them."""
    return {*devices._made.values(), *(owner.device for owner in LIVE if hasattr(owner, "device"))}
