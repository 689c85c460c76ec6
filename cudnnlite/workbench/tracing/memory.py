"""`Memory`: what a trace knows of device memory: allocations, copies, graphs, what others wrote."""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import weakref
from bisect import bisect, insort
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import numpy as np

from cudnnlite.descriptors.native import LIVE
from cudnnlite.devices.device import Device, StreamRecorder
from cudnnlite.devices.device_choice import devices
from cudnnlite.devices.foreign import ForeignArray
from cudnnlite.devices.observer import Observer
from cudnnlite.errors import CaptureError
from cudnnlite.warn import warn_user
from cudnnlite.workbench.tracing.program import Contents, Expression, Statement, Variable

_PACKAGE = str(Path(__file__).parents[2])
# Frames of these files are no lines of the traced program.
_PYTHONS_OWN = ("contextlib.py", "weakref.py", "runpy.py", "<frozen runpy>")
_STREAMS: dict[int, Expression] = {0: "0", 1: "cudaStreamLegacy", 2: "cudaStreamPerThread"}
# Names of memory whose size cuDNN says.
_SIZED_BY_CUDNN = re.compile("space|states|weights")

MemoryT = TypeVar("MemoryT", bound="Memory")
Arguments = ParamSpec("Arguments")


@dataclass(eq=False)
class Buffer(Variable):
    """An allocation on a device, or another library's array there: `nbytes` from `base` on.

    Attributes
    ----------
    alive : weak reference or None
        A reference to the owner of the memory; None for memory from before the trace, whose owner
        is not known.
    answer : Variable or None
        Holds the number of bytes, if cuDNN was asked for it.
    shared : bool
        Whether others may write to it unseen: it was there before the trace, or was handed to
        another library.
    digest : bytes or None
        The digest of shared memory when the trace last read it.
    unread : bool
        Whether the program wrote something there that it has not read since.
    parts : dict
        The parts whose addresses cuDNN returned, by offset: the bytes of the part, and the variable
        with its address.
    """

    base: int = 0
    nbytes: int = 0
    alive: Any = None
    answer: Variable | None = None
    shared: bool = False
    digest: bytes | None = None
    unread: bool = False
    parts: dict[int, tuple[int, Variable]] = field(default_factory=dict)

    def size(self) -> Expression:
        """Return the size to allocate: a number, or of scratch memory what cuDNN wrote it to."""
        if self.answer and _SIZED_BY_CUDNN.search(self.name):
            return self.answer
        return self.nbytes

    def at(self, offset: int, nbytes: int = -1) -> Expression:
        """Return an address in it; of a part of that size the variable that cuDNN wrote it to."""
        part_nbytes, part = self.parts.get(offset, (0, self))
        if part_nbytes == nbytes:
            return part
        if offset == 0:
            return self
        return ["(char *)", self, f" + {offset}"]


class _OwnerReference(weakref.ref[Any]):
    """Tells when the owner of an allocation is gone, and where that allocation was."""

    __slots__ = ("base",)
    base: int


Location: TypeAlias = tuple[Buffer, int]  # with the offset in the buffer


def _notification(
    method: Callable[Concatenate[MemoryT, Arguments], None],
) -> Callable[Concatenate[MemoryT, Arguments], None]:
    """Turn a method into one that an observer skips while it records one statement."""

    @wraps(method)
    def notify(self: MemoryT, /, *arguments: Arguments.args, **options: Arguments.kwargs) -> None:
        if not self.is_busy:
            with self.as_one_statement():
                method(self, *arguments, **options)

    return notify


def _surrounding(
    method: Callable[Concatenate[MemoryT, Arguments], Iterator[None]],
) -> Callable[Concatenate[MemoryT, Arguments], AbstractContextManager[None]]:
    """Make a context manager of a method that yields once; its block is one statement."""
    manager = contextmanager(method)

    @wraps(method)
    @contextmanager
    def surround(
        self: MemoryT, /, *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Iterator[None]:
        if self.is_busy:
            yield
        else:
            with self.as_one_statement(), manager(self, *arguments, **options):
                yield

    return surround


class Memory(Observer):
    """The part of a trace's recorder that is about memory, streams and graphs.

    Attributes
    ----------
    statements : list of Statement
        The statements of the block, and those that make the objects from before the block.
    warnings : list of str
        The limits of the program in C.
    devices : set of Device
        The devices that were used.
    over : bool
        Whether the trace has ended; an observer that is called after that records nothing.
    thread : int
        The thread that runs the block.
    """

    needs_each_call = True

    def __init__(self) -> None:
        self.statements: list[Statement] = []
        self.warnings: list[str] = []
        self.devices: set[Any] = set()
        self.over = False
        self.thread = threading.get_ident()
        self._variables: dict[int, Variable] = {}  # handles, descriptors and graphs by address
        self._buffers: dict[int, Buffer] = {}  # by base
        self._bases: list[int] = []  # of `_buffers`, in order
        self._freed: deque[_OwnerReference] = deque()  # filled by whichever thread frees memory
        self._streams = dict(_STREAMS)
        self._last_stream: dict[int, int] = {}  # by the device's index
        self._answers: dict[int, Variable] = {}  # sizes that cuDNN told, and where they are held
        self._captured: dict[int, Variable] = {}  # graphs that are captured, by the stream
        self._capturing = False
        self.renew_locks()

    def renew_locks(self) -> None:
        """Take new locks, in a forked process: a thread that is not there may have had the old."""
        self._lock = threading.RLock()
        self._thread_state = threading.local()

    @property
    def is_busy(self) -> bool:
        """Whether what this thread does is not recorded: it is part of a statement, or too late."""
        return self.over or getattr(self._thread_state, "is_busy", False)

    @contextmanager
    def as_one_statement(self) -> Iterator[None]:
        """Record nothing of what this thread does in the block: it is part of one statement."""
        with self._lock:
            self._thread_state.is_busy = True
            try:
                self._forget_freed()
                yield
            finally:
                self._thread_state.is_busy = False

    def warn(self, message: str) -> None:
        """Say, once, what the program cannot do."""
        if message not in self.warnings:
            self.warnings.append(message)
            warn_user(f"trace: {message}", RuntimeWarning)

    def finish(self) -> None:
        """Read what the block wrote and did not read itself."""
        with self.as_one_statement(), suppress(CaptureError):  # nothing can be read in a capture
            for buffer in self._buffers.values():
                if buffer.unread and buffer.named_by_use:
                    self._load_if_changed(buffer)
                    self._add_report((buffer, 0), self._read(buffer))

    def _add(self, function: str, *arguments: Expression, **options: Any) -> None:
        self.statements.append(Statement(function, [*arguments], where=where(), **options))

    # ------------------------------------------------------------ where something is

    def _find(self, address: int, nbytes: int = 1) -> Location | None:
        """Return where `nbytes` at an address are; None if they are on no device.

        A buffer that is too short for them is replaced by the allocation that CUDA says they are
        in.
        """
        location = self._find_known(address)
        if location is not None:
            buffer, offset = location
            if buffer.alive or offset + nbytes <= buffer.nbytes:
                return location
        for device in self.devices | used_devices():
            with device.current():  # The recorded call has made its own device current.
                allocation = device.allocation_of(address)
            if allocation is None:
                continue
            base, size = allocation
            if location is None or size > location[0].nbytes:
                return self._add_buffer(device, base, size), address - base
        return location

    def _find_known(self, address: int) -> Location | None:
        """Return the buffer that an address is in, and the offset; None if there is none."""
        position = bisect(self._bases, address)
        if position == 0:
            return None
        buffer = self._buffers[self._bases[position - 1]]
        offset = address - buffer.base
        return (buffer, offset) if offset < buffer.nbytes else None

    def _find_on(self, device: Any, address: int, nbytes: int, written: int = 0) -> Location:
        """Return where `nbytes` at an address of a device are.

        `written` of them are about to be overwritten; what else there is in the buffer, the program
        has to load before.
        """
        self.devices.add(device)
        location = self._find(address, nbytes)
        assert location is not None, f"{address:#x} is not on {device}"
        buffer, _ = location
        if buffer.alive is None:  # CUDA tells of an allocation whichever device is asked.
            buffer.device = device
        if written < buffer.nbytes:
            self._load_if_changed(buffer)
        return location

    def _add_buffer(self, device: Any, base: int, nbytes: int, owner: Any = None) -> Buffer:
        """Allocate memory in the program; before the block where it has no owner."""
        self.devices.add(device)
        is_older = owner is None
        new = Buffer("void *", "memory", "cudaFree", base, nbytes, device=device, shared=is_older)
        if not is_older:
            # The callback is `append`, which is C: a signal handler's exception would be lost in
            # one of Python.  It needs no lock either, which the thread that frees memory may not
            # have.
            new.alive = _OwnerReference(owner, self._freed.append)
            new.alive.base = base
            new.answer = self._answers.get(nbytes)
        for old in [*self._buffers.values()]:
            if base < old.base + old.nbytes and old.base < base + nbytes:
                if is_older and old.alive is None:
                    new.unread |= old.unread
                self._forget(old)
        self._buffers[base] = new
        insort(self._bases, base)
        self._add("cudaMalloc", ["&", new], new.size, needed_for=(new,), early=is_older)
        return new

    def _forget(self, buffer: Buffer) -> None:
        del self._buffers[buffer.base], self._bases[bisect(self._bases, buffer.base) - 1]
        self._add("cudaFree", buffer, needed_for=(buffer,), ends=buffer)

    def _forget_freed(self) -> None:
        while self._freed:
            owner = self._freed.popleft()
            buffer = self._buffers.get(owner.base)
            if buffer is not None and buffer.alive is owner:
                self._forget(buffer)

    # ------------------------------------------------------------ what others may write to

    def _read(self, buffer: Buffer) -> bytes:
        content = np.empty(buffer.nbytes, np.uint8)
        with buffer.device.current():
            buffer.device.synchronize()
            buffer.device.copy_out(content, buffer.base, buffer.device.default_stream)
        return content.tobytes()

    def _load_if_changed(self, buffer: Buffer) -> None:
        """Load shared memory, if its contents differ from those that the trace read last."""
        before = buffer.digest
        content = self._update_digest(buffer)
        if content is None or before == buffer.digest:
            return
        if before is not None:
            self.warn(
                "memory was written to by somebody else; the program loads what was there then"
            )
        self._add_load((buffer, 0), content, early=before is None and buffer.alive is None)

    def _update_digest(self, buffer: Buffer) -> bytes | None:
        """Return the contents of shared memory; None for other memory, and in a capture."""
        if not buffer.shared or self._capturing:
            return None
        content = self._read(buffer)
        buffer.digest = hashlib.blake2b(content).digest()
        return content

    def _add_load(
        self, to: Location, content: bytes, width: int = 0, *, early: bool = False
    ) -> None:
        """Copy from a file, or its parts to where cuDNN says; `width` as in `Contents`."""
        (buffer, start), end = to, to[1] + len(content)
        parts = [
            (offset, nbytes)
            for offset, (nbytes, _) in buffer.parts.items()
            if start <= offset and offset + nbytes <= end
        ]
        file = Contents(buffer, content, width)
        for offset, nbytes in sorted(parts) or [(start, len(content))]:
            arguments = (buffer.at(offset, nbytes), nbytes, file, offset - start)
            self._add("load", *arguments, needed_for=(buffer,), early=early)

    def _add_load_rows(self, to: Location, content: bytes, rows: int, pitch: int) -> None:
        if rows == 1:
            self._add_load(to, content)
            return
        buffer, offset = to
        file = Contents(buffer, content, 0)
        arguments = (buffer.at(offset), pitch, len(content) // rows, rows, file)
        self._add("load_rows", *arguments, needed_for=(buffer,))

    def _add_report(self, of: Location, content: bytes, rows: int = 1, pitch: int = 0) -> None:
        """Let the program print the checksum of memory."""
        (buffer, offset), nbytes = of, len(content)
        function, shape = "report", [nbytes]
        if rows > 1:
            function, shape = "report_rows", [pitch, nbytes // rows, rows]
        address = buffer.at(offset, nbytes)
        self._add(function, ['"', buffer, '"'], address, *shape, checksum=checksum(content))
        buffer.unread = False

    # ------------------------------------------------------------ what devices tell

    @_notification
    def memory_allocated(self, device: Device, buffer: Any, nbytes: int) -> None:
        """Allocate it in the program."""
        if nbytes:
            self._add_buffer(device, int(buffer.handle), nbytes, buffer)

    @_notification
    def memory_adopted(self, device: Device, array: ForeignArray) -> None:
        """Allocate the array alone: it may be in an allocation of all that library's memory."""
        if not array.nbytes:
            return
        location = self._find_known(array.ptr)
        if location is None or location[1] + array.nbytes > location[0].nbytes:
            self._add_buffer(device, array.ptr, array.nbytes)

    @_notification
    def memory_exported(self, device: Device, array: ForeignArray) -> None:
        """Look out for what another library writes there."""
        location = self._find(array.ptr)
        if location is None:
            return
        buffer, _ = location
        if not buffer.shared:
            buffer.shared = True
            self._update_digest(buffer)

    @_surrounding
    def copying_in(self, device: Device, ptr: int, source: np.ndarray[Any, Any]) -> Iterator[None]:
        """Load a file in the program."""
        to = self._find_on(device, ptr, source.nbytes, source.nbytes)
        yield
        self._add_load(to, source.tobytes(), source.itemsize if source.dtype.kind == "f" else 0)
        self._update_digest(to[0])

    @_surrounding
    def copying_rows(
        self,
        device: Device,
        ptr: int,
        pitch: int,
        host: np.ndarray[Any, Any],
        stream: Any,
        *,
        out: bool,
    ) -> Iterator[None]:
        """Load a file in the program, or print a checksum."""
        if not host.size:
            yield
            return
        rows, width = host.shape
        at = self._find_on(device, ptr, pitch * (rows - 1) + width, 0 if out else host.nbytes)
        yield
        if out:
            device.wait(stream)  # Nobody has waited for a copy to pinned memory.
            self._add_report(at, host.tobytes(), rows, pitch)
        else:
            self._add_load_rows(at, host.tobytes(), rows, pitch)
            self._update_digest(at[0])

    @_surrounding
    def copying_within(
        self, device: Device, target: int, source: int, nbytes: int, stream: Any
    ) -> Iterator[None]:
        """Make the same copy in the program."""
        self._find(source, nbytes)  # first: this may replace the buffer that the target is in
        to = self._find_on(device, target, nbytes, nbytes)
        buffer, offset = self._find_on(device, source, nbytes)
        yield
        arguments = (buffer.at(offset), nbytes, "cudaMemcpyDeviceToDevice")
        self._add_on_stream(stream, "cudaMemcpyAsync", to, *arguments)

    @_surrounding
    def filling_rows(
        self,
        device: Device,
        ptr: int,
        pitch: int,
        width: int,
        rows: int,
        pattern: bytes,
        stream: Any,
    ) -> Iterator[None]:
        """Set the memory to a byte in the program, or load a longer pattern."""
        nbytes = width * rows
        if not nbytes:
            yield
            return
        at = self._find_on(device, ptr, pitch * (rows - 1) + width, nbytes)
        yield
        if len({*pattern}) > 1:
            self._add_pattern(at, pattern * (nbytes // len(pattern)), rows, pitch)
        elif rows > 1:
            self._add_on_stream(stream, "cudaMemset2DAsync", at, pitch, pattern[0], width, rows)
        else:
            is_whole = width == at[0].nbytes
            size = at[0].size if is_whole else width
            self._add_on_stream(stream, "cudaMemsetAsync", at, pattern[0], size)

    def _add_pattern(self, to: Location, content: bytes, rows: int, pitch: int) -> None:
        if self._capturing:
            self.warn(
                "a fill with more than one byte went into a CUDA graph: it is not in the program"
            )
            return
        self._add_load_rows(to, content, rows, pitch)
        self._update_digest(to[0])

    # ------------------------------------------------------------ streams and graphs

    def _stream(self, address: int) -> Expression:
        if address not in self._streams:
            self._streams[address] = stream = Variable(
                "cudaStream_t", "stream", "cudaStreamDestroy"
            )
            self._add("cudaStreamCreate", ["&", stream], needed_for=(stream,), early=True)
        return self._streams[address]

    def _add_on_stream(
        self, stream: Any, function: str, to: Location, *arguments: Expression
    ) -> None:
        buffer, offset = to
        address = int(stream.handle)
        self._order(address, buffer.device)
        self._add(
            function, buffer.at(offset), *arguments, self._stream(address), needed_for=(buffer,)
        )
        self._update_digest(buffer)

    def _order(self, stream: int, device: Any) -> None:
        """Wait where the program goes on with another stream of a device."""
        if self._capturing:
            return
        if device is None and len(self.devices) > 1:
            self.warn(
                "a handle that cudnnlite did not make was used beside several devices: "
                "the program guesses its own"
            )
        index = getattr(device or next(iter(self.devices), None), "index", 0)
        if self._last_stream.setdefault(index, stream) != stream:
            note = "another stream: Python orders them by events"
            self._add("cudaDeviceSynchronize", note=note, on=device)
        self._last_stream[index] = stream

    @contextmanager
    def capturing(self, device: Device, recorder: StreamRecorder) -> Iterator[None]:
        """Let the program capture the statements that are recorded in the block."""
        address = int(recorder.stream.handle)
        stream = self._stream(address)
        graph = Variable("cudaGraph_t", "graph", "cudaGraphDestroy")
        self._add("cudaStreamBeginCapture", stream, "cudaStreamCaptureModeRelaxed", on=device)
        self._capturing = True
        try:
            yield
        finally:
            self._capturing = False
            self._add("cudaStreamEndCapture", stream, ["&", graph], on=device)
            self._captured[address] = graph

    def graph_captured(self, device: Device, recorder: StreamRecorder) -> None:
        """Make the graph ready for its launches in the program."""
        graph = self._captured.pop(int(recorder.stream.handle), None)
        if graph is None:  # The capture began before the trace.
            return
        launchable = Variable("cudaGraphExec_t", "graph_exec", "cudaGraphExecDestroy")
        self._variables[id(recorder.graph)] = launchable
        self._add("cudaGraphInstantiate", ["&", launchable], graph, 0)

    @_surrounding
    def capturing_for_timing(self, device: Device) -> Iterator[None]:
        """Say that this is not in the program."""
        self.warn("calls that a search timed in CUDA graphs of its own are not in the program")
        yield

    @_surrounding
    def launching(self, device: Device, graph: Any, stream: Any) -> Iterator[None]:
        """Launch the graph in the program, if that has captured it."""
        launchable = self._variables.get(id(graph))
        if launchable is None:
            yield
            self.warn(
                "a CUDA graph that was recorded before the trace was launched: "
                "what it does is not in the program"
            )
            return
        buffers = [*self._buffers.values()]
        for buffer in buffers:
            self._load_if_changed(buffer)
        yield
        address = int(stream.handle)
        self._order(address, device)
        self._add("cudaGraphLaunch", launchable, self._stream(address), on=device)
        for buffer in buffers:
            self._update_digest(buffer)


def checksum(content: bytes) -> int:
    """Return the sum of (2 i + 1) times byte i, modulo 2^64, as the program in C does."""
    total = 0
    for start in range(0, len(content), 1 << 20):
        part = content[start : start + (1 << 20)]
        values = np.frombuffer(part, np.uint8).astype(np.uint64)
        weights = np.arange(2 * start + 1, 2 * (start + len(part)) + 1, 2, dtype=np.uint64)
        total += int(values @ weights)
    return total % 2**64


def where() -> tuple[str, int]:
    """Return the line outside of cudnnlite that is running; ('', 0) after the end of a script."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(f"{_PACKAGE}/cli/"):
            break
        is_ours = name.startswith((_PACKAGE, "<the call of"))
        if not is_ours and not name.endswith(_PYTHONS_OWN):
            return name, frame.f_lineno
        frame = frame.f_back
    return "", 0


def used_devices() -> set[Any]:
    """Return the devices that there are, as far as anybody can use them."""
    with_owners = {owner.device for owner in LIVE if hasattr(owner, "device")}
    return with_owners.union(devices.made())
