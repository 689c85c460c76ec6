"""`Recorder`: turns the calls of a block into statements of C, while they are made."""

from __future__ import annotations

import ctypes
import hashlib
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import cudnnlite
from cudnnlite._raw.api import library_api
from cudnnlite._raw.c_types import C_TYPES
from cudnnlite._raw.calls import Call, convert, prepared_calls, through_c, untyped
from cudnnlite._raw.enums import C_NAMES, BackendAttributeName, BackendAttributeType, BackendDescriptorType
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.opaque import Opaque
from cudnnlite._raw.record import Function
from cudnnlite._raw.types import cudnnBackendDescriptor_t, cudnnHandle_t
from cudnnlite.backend.attributes import C_TYPES as ELEMENT_TYPES
from cudnnlite.backend.attributes import ENUMS_OF_ATTRIBUTES
from cudnnlite.backend.descriptor import BackendDescriptor
from cudnnlite.backend.plan import ExecutionPlan
from cudnnlite.descriptors import TensorDescriptor
from cudnnlite.descriptors.native import LIVE
from cudnnlite.dtypes import itemsize
from cudnnlite.enums import DataType, Status
from cudnnlite.errors import CudnnError
from cudnnlite.tracing.things import ENUMS, Buffer, Contents, Part, Place, Size, Step, Thing, literal, number, snake
from cudnnlite.warn import warn_user

_PACKAGE = str(Path(cudnnlite.__file__).parent)
_ON_HOST = ("alpha", "beta", "paddingFill", "value", "message")  # how the untyped pointers to host memory are named
_SCRATCH = ("workspace", "reserve", "states")  # of whose contents nobody knows anything
_STREAMS = {0: "0", 1: "cudaStreamLegacy", 2: "cudaStreamPerThread"}
_STREAM = {"c_type": "cudaStream_t", "name": "stream", "destroy": "CUDA(cudaStreamDestroy({}));"}
_C_NAMES = {ctypes.c_int64: "int64_t", ctypes.c_int32: "int32_t", ctypes.c_bool: "bool", ctypes.c_char: "char"}
_C_NAMES |= {ctypes.c_float: "float", ctypes.c_double: "double"}


class TracedCall(NamedTuple):
    """One call of a C function.

    Attributes
    ----------
    function : str
        Its name.
    arguments : dict
        By the header's names, as C saw them: numbers, enums, tuples for arrays on the host, addresses.
    status : Status
        What it returned; SUCCESS of a function that returns none.
    microseconds : float
        The host's time in it.
    file, line : str and int
        The line of Python, outside of cudnnlite, that it was made for.
    """

    function: str
    arguments: dict[str, Any]
    status: Status
    microseconds: float
    file: str
    line: int

    def __str__(self) -> str:
        told = ", ".join(f"{name}={value:#x}" if type(value) is int and value >= 2**32 else f"{name}={value}"
                         for name, value in self.arguments.items())  # fmt: skip
        failed = f" returned {self.status}" if self.status else ""
        return f"{self.microseconds:9.1f} us  {self.function}({told}){failed}"


class _Freed(weakref.ref[Any]):
    """Tells when memory is gone; `append` of a deque is all that runs then, where an interrupt would be lost."""

    __slots__ = ("buffer",)
    buffer: Buffer


class Recorder:
    """What was recorded so far.

    Attributes
    ----------
    calls : list of TracedCall
    before, steps : list of Step
        What makes what was there before the block; what the block did.
    told : list of str
        What could not be written out.
    """

    def __init__(self) -> None:
        self.calls: list[TracedCall] = []
        self.before: list[Step] = []
        self.steps: list[Step] = []
        self.told: list[str] = []
        self.failed: Step | None = None
        self.devices: dict[int, Any] = {}
        self._things: dict[int, Thing] = {}  # handles, descriptors, graphs, by address
        self._streams: dict[int, Thing] = {}
        self._buffers: dict[int, Buffer] = {}
        self._answers: dict[int, Thing] = {}  # sizes that cuDNN told, the latest variable of each
        self._dtypes: dict[int, DataType] = {}
        self._stream_of: dict[int, int] = {}  # of each handle
        self._ranges: dict[int, int] = {}  # what other libraries said of their arrays
        self._freed: deque[_Freed] = deque()
        self._refs: dict[int, _Freed] = {}
        self._uids: dict[int, Thing] = {}  # the tensors of graphs by their numbers
        self._packs: dict[int, dict[str, list[Any]]] = {}  # what each variant pack was set to, by its address
        self._stand_ins: dict[int, Thing] = {}
        self._capturing = False
        self._lock, self._mine = threading.RLock(), threading.local()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Record nothing of what this thread does in the block: it is part of something else."""
        with self._lock:
            self._mine.busy = True
            try:
                self._note_freed()
                yield
            finally:
                self._mine.busy = False

    @property
    def busy(self) -> bool:
        """Whether this thread is in the middle of a call."""
        return getattr(self._mine, "busy", False)

    def tell(self, what: str) -> None:
        """Say, once, what the program cannot do."""
        if what not in self.told:
            self.told.append(what)
            warn_user(f"trace: {what}", RuntimeWarning)

    # calls of cuDNN

    def wrap(self, call: Call, record: Function) -> Call:
        """Return a function that records itself and calls another."""
        callback = through_c(record, print)
        see = untyped(callback)

        def traced(*given: Any, _alive: Any = callback) -> Any:
            if self.busy:
                return call(*given)
            with self.aside():
                return self._call(call, record, given, see(*given).args)

        return traced

    def _call(self, call: Call, record: Function, given: Any, seen: Any) -> Any:
        step, outputs = self._statement(record, given, seen, self.steps)
        where, status, start = _where(), 0, time.perf_counter_ns()
        try:
            result = call(*given)
            status = int(result or 0) if record.returns_status else 0
        except CudnnError as error:
            status = int(error.status)
            raise
        finally:
            us = (time.perf_counter_ns() - start) / 1000
            arguments = {
                n: _plain(*each) for n, *each in zip(record.argnames, C_TYPES[record.name], seen, given, strict=True)
            }
            self.calls.append(TracedCall(record.name, arguments, Status(status), us, *where))
            step.where = where
            self._done(record, step, outputs, seen, status)
        return result

    def write_down(self, record: Function, *arguments: Any) -> None:
        """Write a call into what is made before the block, without making it: it was made then."""
        given = convert(record, arguments)
        seen = untyped(callback := through_c(record, print))(*given).args
        step, outputs = self._statement(record, given, seen, self.before)
        self._done(record, step, outputs, seen, 0)
        del callback

    def _statement(self, record: Function, given: Any, seen: Any, steps: list[Step]) -> tuple[Step, list[Any]]:
        """Return a call as a statement, and what it writes: (thing or place, C's pointer)."""
        name, outputs = record.name, []
        parts: list[Part] = [f"CUDNN({name}("]
        dtype = self._dtype(name, seen)
        setter = name.startswith(
            ("cudnnCreate", "cudnnSet", "cudnnDestroy", "cudnnBackend", "cudnnGet", "cudnnRestore")
        )
        for argname, c_type, kind, value, passed in zip(
            record.argnames, C_TYPES[name], record.argtypes, seen, given, strict=True
        ):
            if argname == "arrayOfElements":
                parts += self._elements(seen, "Get" in name)
            elif isinstance(value, Opaque):
                thing = self._stream(value.value or 0) if "Stream" in c_type else self._thing(value)
                parts.append(thing)
                if isinstance(thing, Thing) and not setter:
                    thing.used_as(argname)
            elif kind is ctypes.c_void_p or isinstance(value, ctypes._Pointer):
                address = value if kind is ctypes.c_void_p else ctypes.cast(value, ctypes.c_void_p).value
                on_host = kind is ctypes.c_void_p and argname.startswith(_ON_HOST)
                place = None if not address or on_host else self._place(address)
                if place is not None:
                    parts += [*([] if kind is ctypes.c_void_p else [f"({c_type.replace('[]', ' *')})"]), place]
                    if not (setter and place.buffer.named_by_use):
                        place.buffer.used_as(argname)
                    written = not c_type.startswith("const")
                    self._look(place.buffer, place.offset)
                    outputs += [(place, argname)] if written else []
                elif not address:
                    parts.append("NULL")
                elif on_host:
                    parts.append(_scalar(address, argname, dtype))
                elif kind is ctypes.c_void_p:
                    self.tell(
                        f"{name}: {argname} is at {address:#x}, memory of which nothing is known; the program has NULL"
                    )
                    parts.append("NULL")
                elif c_type.startswith("const"):
                    parts.append(literal(c_type, passed if isinstance(passed, ctypes.Array) else value[:1]))
                else:
                    length = len(passed) if isinstance(passed, ctypes.Array) else 1
                    base = c_type.removesuffix("[]").removesuffix("*").strip()
                    made = "Create" in name
                    variable = Thing(base + (f"[{length}]" if length > 1 else ""), _answer(name, argname))
                    if made:
                        variable.destroy = f"CUDNN({name.replace('Create', 'Destroy')}({{}}));"
                    if name == "cudnnBackendCreateDescriptor":
                        variable.name = BackendDescriptorType(seen[0]).name.lower().replace("graph", "_graph")
                    parts += [variable] if length > 1 else ["&", variable]
                    outputs.append((variable, value))
            elif isinstance(value, int) and c_type == "size_t" and value in self._answers:
                parts.append(self._answers[value])
            else:
                parts.append(number(value, c_type))
            parts.append(", ")
        if record.argnames:
            parts.pop()
        step = Step([*parts, "));"])
        if name == "cudnnBackendExecute":
            self._packed(seen, look=True)
        things = [part for part in parts if isinstance(part, Thing)]
        first = record.argtypes[0] if record.argtypes else None
        if "Create" in name:
            step.begins = outputs[0][0]
            step.of = (step.begins,)
        elif "Destroy" in name:
            step.ends, step.of = (things[0] if things else None), tuple(things)
        elif name == "cudnnBackendGetAttribute":
            step.of = tuple(things[1:])  # descriptors that cuDNN fills
        elif "Get" in name or not record.returns_status:
            step.of = tuple(thing for thing, _ in outputs if isinstance(thing, Thing))
        elif name == "cudnnInitTransformDest":
            step.of = tuple(things[2:3])
        elif name == "cudnnSetStream" or (first is not cudnnHandle_t and name != "cudnnSetDropoutDescriptor"):
            step.of = tuple(things[:1])
        elif first is cudnnHandle_t:
            step.stream = self._stream_of.get(seen[0].value or 0)
        steps.append(step)
        return step, outputs

    def _done(self, record: Function, step: Step, outputs: list[Any], seen: Any, status: int) -> None:
        """Note what a call did."""
        name = record.name
        if status:
            self.failed = step
            step.parts[0] = str(step.parts[0]).replace("CUDNN", "FAILED")
            step.parts[-1] = str(step.parts[-1]).removesuffix(";") + f"; /* {number(status, 'cudnnStatus_t')} */"
            step.of = step.of and ()
            return
        for thing, pointer in outputs:
            if isinstance(thing, Place):
                scratch = snake(pointer).startswith(_SCRATCH)
                thing.buffer.unread = thing.buffer.unread or not scratch
                self._digest_again(thing.buffer)
            elif step.begins is thing:
                self._things[pointer[0].value] = thing
            elif (
                thing.c_type == "void *" and pointer[0]
            ):  # where in a buffer a part lies, and the descriptor of that before it
                place = self._place(pointer[0])
                described = next(before for before, this in pairwise(seen) if this is pointer)
                if place is not None:
                    place.buffer.parts[place.offset] = TensorDescriptor.read(library_api(), described).nbytes, thing
            elif thing.c_type == "size_t":
                self._answers = {size: other for size, other in self._answers.items() if other.name != thing.name}
                self._answers[pointer[0]] = thing
                step.note = str(pointer[0])
        if name == "cudnnBackendExecute":
            for buffer in self._packed(seen):
                self._digest_again(buffer)
        if name == "cudnnSetStream":
            self._stream_of[seen[0].value or 0] = seen[1].value or 0
        elif step.ends is not None:
            self._things.pop(seen[0].value, None)
        elif name.startswith("cudnnSet") and isinstance(seen[0], Opaque):
            dtype = self._dtype(name, seen)
            if dtype is not None and seen[0].value:
                self._dtypes[seen[0].value] = dtype

    def _dtype(self, name: str, seen: Any) -> DataType | None:
        """Return the data type that a call names, or that of its descriptors: float64 if one is."""
        named = [v for v, c_type in zip(seen, C_TYPES[name], strict=True) if c_type == "cudnnDataType_t"]
        if named:
            return DataType(named[0])
        known = [self._dtypes[v.value] for v in seen if isinstance(v, Opaque) and v.value in self._dtypes]
        return DataType.DOUBLE if DataType.DOUBLE in known else known[0] if known else None

    def _elements(self, seen: Any, filled: bool) -> list[Part]:
        """Return what an attribute of a backend descriptor is set to, and note what tensors and memory are called."""
        descriptor, number_of, type_number, count, address = (*seen[:4], seen[-1])
        type_name, attribute = BackendAttributeType(type_number).name, BackendAttributeName(number_of).name
        descriptors = type_name == "BACKEND_DESCRIPTOR"
        if not address or not count or (filled and not descriptors):
            return ["NULL"]
        kind = ELEMENT_TYPES.get(type_name, ctypes.c_int)
        values = list((kind * count).from_address(address))
        pack = self._packs.setdefault(descriptor.value, {})
        if attribute == "TENSOR_UNIQUE_ID":
            self._uids[values[0]] = self._things[descriptor.value]
        elif attribute.startswith("VARIANT_PACK"):
            pack[attribute] = values
        if kind is not ctypes.c_void_p:
            enum = DataType if type_name == "DATA_TYPE" else ENUMS_OF_ATTRIBUTES.get(type_name)
            return [literal(_C_NAMES.get(kind) or (C_NAMES[enum] if enum else "int"), values)]
        opaque = {"HANDLE": cudnnHandle_t, "BACKEND_DESCRIPTOR": cudnnBackendDescriptor_t}.get(type_name)
        found = [self._element(value, opaque) for value in values]
        names = pack.get("VARIANT_PACK_UNIQUE_IDS", ())
        for place, uid in zip(found, names if count > 1 else ("workspace",), strict=False):
            if isinstance(place, Place):
                place.buffer.used_as(self._uids[uid].name.removesuffix("_tensor") if uid in self._uids else str(uid))
        for thing in found:
            if descriptors and isinstance(thing, Thing) and thing.name.startswith("tensor"):
                thing.used_as(attribute.split("_")[-1].removesuffix("DESC") + "_tensor")
        commas = [each for part in found for each in (part, ", ")][:-1]
        return [f"({opaque.__name__ if opaque else 'void *'}[]){{", *commas, "}"]

    def _element(self, value: int | None, opaque: Any) -> Part:
        if not value:
            return "NULL"
        if opaque is not None:
            return self._thing(opaque(value))
        place = self._place(value)
        if place is None:
            self.tell(f"a variant pack has {value:#x}, memory of which nothing is known; the program has NULL")
            return "NULL"
        return place

    def _packed(self, seen: Any, *, look: bool = False) -> list[Buffer]:
        """Return what an execution writes, as far as the names of its tensors say, or may write unseen."""
        pack = self._packs.get(seen[2].value, {})
        there = list(
            zip(pack.get("VARIANT_PACK_DATA_POINTERS", ()), pack.get("VARIANT_PACK_UNIQUE_IDS", ()), strict=False)
        )
        places = [(self._place(address), self._uids.get(uid)) for address, uid in there if address]
        for place, tensor in places:
            if place is not None and look:
                self._look(place.buffer, place.offset)
                place.buffer.unread |= tensor is not None and tensor.name in ("y_tensor", "dx_tensor", "dw_tensor")
        return [place.buffer for place, _ in places if place is not None]

    # what was there before

    def _thing(self, native: Opaque) -> Part:
        """Return a handle or descriptor; one that was made before the block is made before the program's."""
        address = native.value
        if not address:
            return "NULL"
        if address not in self._things:
            owner = LIVE.get(address)
            if owner is None:
                kind = type(native).__name__
                self.tell(
                    f"a {kind} was made before the trace, and not by cudnnlite: the program has NULL in its place"
                )
                return "NULL"
            self._rehearse(owner, address)
        return self._things[address]

    def _rehearse(self, owner: Any, address: int) -> None:
        """Write down how an object was made: by its own methods, on a table that calls nothing."""
        twin = object.__new__(type(owner))
        vars(twin).update(vars(owner), api=_Rehearsal(self, owner.api))
        if hasattr(owner, "device"):
            self.devices[id(owner.device)] = owner.device
        if hasattr(owner, "_set_function"):  # of dropout, whose states are there
            twin._set_function = "cudnnRestoreDropoutDescriptor"
        twin._make(type(owner._native)(address))
        twin._set(owner.spec)
        if not isinstance(owner, BackendDescriptor):
            return
        packs = (plan.pack_values(address) for plan in prepared_calls() if isinstance(plan, ExecutionPlan))
        values = owner.values or next((found for found in packs if found is not None), {})
        for name, value in list(values.items()):
            twin.set(name, value)
        if owner.finalized or not owner.values:
            twin.finalize()

    # memory

    def _stream(self, address: int) -> Part:
        if address in self._stand_ins:
            return self._stand_ins[address]
        if address in _STREAMS:
            return _STREAMS[address]
        if address not in self._streams:
            thing = self._streams[address] = Thing(**_STREAM)
            self.before.append(Step(["CUDA(cudaStreamCreate(&", thing, "));"], (thing,), begins=thing))
        return self._streams[address]

    def _place(self, address: int) -> Place | None:
        """Return where an address lies; None if that is not on a device."""
        for buffer in (self._buffers.get(address), *self._buffers.values()):
            if buffer is not None and buffer.base <= address < buffer.base + buffer.nbytes:
                return Place(buffer, address - buffer.base)
        devices = {id(owner.device): owner.device for owner in list(LIVE.values()) if hasattr(owner, "device")}
        for device in (self.devices | devices).values():
            found = device.allocation_of(address)
            if found is not None:
                self.devices[id(device)] = device
                return Place(self._new(device, *found, self.before, shared=True), address - found[0])
        return None

    def _new(self, device: Any, base: int, nbytes: int, steps: list[Step], *, shared: bool = False) -> Buffer:
        buffer = Buffer("void *", "memory", "CUDA(cudaFree({}));", base, nbytes, device, shared)
        for other in [
            other for other in self._buffers.values() if base < other.base + other.nbytes and other.base < base + nbytes
        ]:
            self._forget(other)
        self._buffers[base] = buffer
        size = Size(buffer, self._answers.get(nbytes))
        where = _where() if steps is self.steps else ("", 0)
        steps.append(Step(["CUDA(cudaMalloc(&", buffer, ", ", size, "));"], (buffer,), where, begins=buffer))
        return buffer

    def _forget(self, buffer: Buffer) -> None:
        if self._buffers.get(buffer.base) is buffer:
            del self._buffers[buffer.base]
            self._refs.pop(buffer.base, None)
            self.steps.append(Step(["CUDA(cudaFree(", buffer, "));"], (buffer,), ends=buffer))

    def _note_freed(self) -> None:
        while self._freed:
            self._forget(self._freed.popleft().buffer)

    def _read(self, buffer: Buffer, offset: int, nbytes: int) -> bytes:
        found = np.empty(nbytes, np.uint8)
        buffer.device.synchronize()
        buffer.device.copy_out(found, buffer.base + offset, buffer.device.default_stream)
        return found.tobytes()

    def _look(self, buffer: Buffer, offset: int) -> None:
        """Load what is in memory that others may write to, where it is not as it was."""
        if not buffer.shared or self._capturing:
            return
        known = self._ranges.get(buffer.base + offset)
        window = (0, buffer.nbytes) if known is None else (offset, known)
        content = self._read(buffer, *window)
        first = window not in buffer.digests
        if first or buffer.digests[window] != _digest(content):
            buffer.digests[window] = _digest(content)
            if not first:
                self.tell("memory was written to by somebody else; the program loads what was there then")
            (self.before if first else self.steps).extend(self._load(Place(buffer, window[0]), content))

    def _load(self, place: Place, content: bytes) -> list[Step]:
        """Return what copies from a file; parts of a buffer go where cuDNN says that they lie."""
        buffer, start, _ = place
        inside = [
            (at, *part) for at, part in buffer.parts.items() if start <= at and at + part[0] <= start + len(content)
        ]
        return [
            Step(
                ["load(", Place(buffer, at, part), f", {size}, ", Contents(buffer, content), f", {at - start});"],
                (buffer,),
                _where(),
            )
            for at, size, part in sorted(inside, key=lambda each: each[0]) or [(start, len(content), None)]
        ]

    def finish(self) -> None:
        """Read what the block wrote and did not read itself."""
        with self.aside():
            for buffer in self._buffers.values():
                if buffer.unread and buffer.name != "memory":
                    self._report(Place(buffer), self._read(buffer, 0, buffer.nbytes))

    def _report(self, place: Place, content: bytes) -> None:
        parts: list[Part] = ['report("', place.buffer, '", ', place, f", {len(content)});"]
        self.steps.append(Step(parts, where=_where(), checksum=checksum(content)))
        place.buffer.unread = False

    # what a device is asked

    def on_allocate(self, own: Call, device: Any, nbytes: int, stream: Any) -> Any:
        """Memory that is there until its last owner is gone."""
        buffer = own(device, nbytes, stream)
        self.devices[id(device)] = device
        self._note_freed()
        if nbytes:
            made = self._new(device, int(buffer.handle), nbytes, self.steps)
            ref = self._refs[made.base] = _Freed(buffer, self._freed.append)
            ref.buffer = made
        return buffer

    def on_copy_in(self, own: Call, device: Any, ptr: int, source: Any, stream: Any) -> None:
        """A copy from the host: the program loads a file."""
        own(device, ptr, source, stream)
        place = self._known(device, ptr)
        self.steps += self._load(place, np.ascontiguousarray(source).tobytes())
        self._digest_again(place.buffer)

    def on_copy_out(self, own: Call, device: Any, target: Any, ptr: int, stream: Any) -> None:
        """A copy to the host: the program prints a checksum."""
        place = self._known(device, ptr)
        self._look(place.buffer, place.offset)
        own(device, target, ptr, stream)
        part = place.buffer.parts.get(place.offset, (0, None))
        self._report(place._replace(part=part[1]) if part[0] == target.nbytes else place, target.tobytes())

    def on_copy_within(self, own: Call, device: Any, target: int, source: int, nbytes: int, stream: Any) -> None:
        """A copy on the device."""
        to, origin = self._known(device, target), self._known(device, source)
        self._look(origin.buffer, origin.offset)
        own(device, target, source, nbytes, stream)
        self._enqueue(
            ["CUDA(cudaMemcpyAsync(", to, ", ", origin, f", {nbytes}, cudaMemcpyDeviceToDevice, "], to, stream
        )

    def on_fill(self, own: Call, device: Any, ptr: int, nbytes: int, byte: int, stream: Any) -> None:
        """Memory set to a byte."""
        own(device, ptr, nbytes, byte, stream)
        place = self._known(device, ptr)
        whole = nbytes == place.buffer.nbytes
        size = Size(place.buffer, self._answers.get(nbytes)) if whole else str(nbytes)
        self._enqueue(["CUDA(cudaMemsetAsync(", place, f", {byte}, ", size, ", "], place, stream)

    def _enqueue(self, parts: list[Part], target: Place, stream: Any) -> None:
        address = int(stream.handle)
        parts += [self._stream(address), "));"]
        self.steps.append(Step(parts, (target.buffer,), _where(), stream=address))
        self._digest_again(target.buffer)

    def _known(self, device: Any, ptr: int) -> Place:
        self.devices[id(device)] = device
        place = self._place(ptr)
        assert place is not None, f"{ptr:#x} is not on {device}"
        return place

    def _digest_again(self, buffer: Buffer) -> None:
        """Note what is in memory that others may write to, after we did."""
        if buffer.shared and not self._capturing:
            windows = buffer.digests or {(0, buffer.nbytes): b""}
            buffer.digests = {window: _digest(self._read(buffer, *window)) for window in windows}

    def on_adopt(self, own: Call, device: Any, array: Any, argument: str, stream: Any) -> Any:
        """Another library's array: it says how long it is."""
        foreign = own(device, array, argument, stream)
        self._ranges[foreign.ptr] = foreign.nbytes
        return foreign

    def on_export_dlpack(self, own: Call, device: Any, array: Any, *arguments: Any, **options: Any) -> Any:
        """Memory that another library gets."""
        place = self._place(array.ptr)
        if place is not None and not place.buffer.shared:
            place.buffer.shared = True
            self._digest_again(place.buffer)
        return own(device, array, *arguments, **options)

    on_cuda_array_interface = on_export_dlpack

    def on_capture(self, own: Call, device: Any, work: Callable[[], object], stream: Any) -> Any:
        """A search that times a graph of its own."""
        self.tell("calls that were timed in CUDA graphs of a search are not in the program")
        return own(device, work, stream)

    def on_recorder(self, own: Call, device: Any, stream: Any) -> Any:
        """What records a graph."""
        return _TracedRecorder(self, own(device, stream))

    def begin_capture(self, stream: Any) -> None:
        """A graph is recorded from now on."""
        address, own = int(stream.handle), Thing(**_STREAM)
        if address in _STREAMS:  # of the emulated device: CUDA does not record it
            self.before.append(Step(["CUDA(cudaStreamCreate(&", own, "));"], (own,), begins=own))
            self._stand_ins[address] = own
            self._put_handles_on(address)
        begin: list[Part] = ["CUDA(cudaStreamBeginCapture(", self._stream(address), ", cudaStreamCaptureModeRelaxed));"]
        self.steps.append(Step(begin, where=_where()))
        self._capturing = True

    def _put_handles_on(self, address: int) -> None:
        for handle, stream in self._stream_of.items():
            if stream == address and handle in self._things:
                parts: list[Part] = ["CUDNN(cudnnSetStream(", self._things[handle], ", ", self._stream(address), "));"]
                self.steps.append(Step(parts, where=_where()))

    def end_capture(self, stream: Any, graph: Any) -> None:
        """A graph was recorded; None: and thrown away."""
        self._capturing = False
        there, drawn = self._stream(int(stream.handle)), Thing("cudaGraph_t", "graph", "CUDA(cudaGraphDestroy({}));")
        self.steps.append(
            Step(["CUDA(cudaStreamEndCapture(", there, ", &", drawn, "));"], where=_where(), begins=drawn)
        )
        if graph is not None:
            made = self._things[id(graph)] = Thing("cudaGraphExec_t", "graph_exec", "CUDA(cudaGraphExecDestroy({}));")
            self.steps.append(
                Step(["CUDA(cudaGraphInstantiate(&", made, ", ", drawn, ", 0));"], where=_where(), begins=made)
            )
        if self._stand_ins.pop(int(stream.handle), None) is not None:
            self._put_handles_on(int(stream.handle))

    def on_launch(self, own: Call, captured: Any) -> None:
        """A graph that `dnn.capture` recorded is launched."""
        made = self._things.get(id(captured._graph))
        if made is None:
            self.tell(
                "a CUDA graph that was recorded before the trace was launched: what it does is not in the program"
            )
            return own(captured)
        for buffer in self._buffers.values():
            if buffer.shared:
                self._look(buffer, 0)
        own(captured)
        address = int(captured._stream.handle)
        parts: list[Part] = ["CUDA(cudaGraphLaunch(", made, ", ", self._stream(address), "));"]
        self.steps.append(Step(parts, where=_where(), stream=address))
        for buffer in self._buffers.values():
            self._digest_again(buffer)
        return None


class _Rehearsal:
    """A function table that writes calls down and makes none."""

    def __init__(self, recorder: Recorder, api: Any) -> None:
        self._recorder, self.has = recorder, api.has

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self._recorder.write_down(FUNCTIONS[name], *arguments)


class _TracedRecorder:
    """A device's recorder that says when it begins and ends."""

    def __init__(self, recorder: Recorder, own: Any) -> None:
        self._recorder, self._own, self.stream = recorder, own, own.stream
        self.graph: Any = None

    def begin(self) -> None:
        """Begin."""
        self._own.begin()
        self._recorder.begin_capture(self.stream)

    def end(self, *, keep: bool = True) -> None:
        """End."""
        try:
            self._own.end(keep=keep)
            self.graph = self._own.graph
        finally:
            self._recorder.end_capture(self.stream, self.graph)


def checksum(content: bytes) -> int:
    """Return the sum of (2 i + 1) times byte i, modulo 2^64, as the program in C does."""
    total = 0
    for start in range(0, len(content), 1 << 20):
        part = np.frombuffer(content, np.uint8, min(1 << 20, len(content) - start), start).astype(np.uint64)
        total += int(part @ np.arange(2 * start + 1, 2 * (start + len(part)) + 1, 2, dtype=np.uint64))
    return total % 2**64


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _where() -> tuple[str, int]:
    """Return the line outside of cudnnlite that is running."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_PACKAGE, "<the call of")) and not name.endswith(("contextlib.py", "weakref.py")):
            return name, frame.f_lineno
        frame = frame.f_back
    return "", 0


def _answer(function: str, argname: str) -> str:
    """Return the name of a variable for what a function tells."""
    words = snake(function).split("_")
    return "_".join(words[-2:]) if argname == "sizeInBytes" and words[-1] == "size" else snake(argname)


def _scalar(address: int, argname: str, dtype: DataType | None) -> str:
    """Return a host scalar: in double beside float64, in float otherwise; what fills a tensor in the tensor's own type."""
    if dtype == DataType.DOUBLE:
        return f"&(double){{{number(ctypes.c_double.from_address(address).value, 'double')}}}"
    if dtype in (None, DataType.FLOAT) or argname.startswith(("alpha", "beta")):
        return f"&(float){{{number(ctypes.c_float.from_address(address).value, 'float')}}}"
    content = ctypes.string_at(address, itemsize(dtype))
    return f"(unsigned char[]){{{', '.join(map(hex, content))}}}"


def _plain(c_type: str, value: Any, passed: Any) -> Any:
    """Return an argument for people."""
    if isinstance(value, ctypes._Pointer):
        values = passed if isinstance(passed, ctypes.Array) else value[:1] if value else ()
        plain = tuple(_plain(c_type.rstrip("[] *"), each, None) for each in values)
        return plain if isinstance(passed, ctypes.Array) else plain[0] if plain else None
    if isinstance(value, ctypes.Structure):
        return {name: getattr(value, name) for name, *_ in value._fields_ if name != "reserved"}
    kind = ENUMS.get(c_type.removeprefix("const "))
    return getattr(value, "value", value) if kind is None else kind(value)
