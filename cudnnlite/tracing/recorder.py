"""`Recorder`: turns the calls of a block into statements of C, by the signatures of the function table, while they are made."""

from __future__ import annotations

import ctypes
import re
import time
from collections import defaultdict
from contextlib import suppress
from functools import cache, partial
from itertools import chain, pairwise, repeat
from types import SimpleNamespace
from typing import Any, NamedTuple

from cudnnlite._raw.api import library_api
from cudnnlite._raw.calls import ENUMS, PREPARED, Call, convert, through_c, untyped
from cudnnlite._raw.enums import (
    C_NAMES,
    BackendAttributeName,
    BackendAttributeType,
    BackendDescriptorType,
)
from cudnnlite._raw.functions import C_TYPES, FUNCTIONS
from cudnnlite._raw.opaque import Opaque
from cudnnlite._raw.record import Function
from cudnnlite._raw.types import cudnnBackendDescriptor_t, cudnnHandle_t
from cudnnlite.descriptors import FilterDescriptor, TensorDescriptor
from cudnnlite.descriptors.native import LIVE
from cudnnlite.dtypes import itemsize
from cudnnlite.enums import DataType, Status
from cudnnlite.errors import CudnnError
from cudnnlite.graph.attributes import C_TYPES as ELEMENT_TYPES
from cudnnlite.graph.attributes import ENUMS_OF_ATTRIBUTES
from cudnnlite.graph.backend_descriptor import BackendDescriptor
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.tracing.memory import Buffer, Memory, where
from cudnnlite.tracing.program import (
    Expression,
    Statement,
    Variable,
    answer_name,
    array,
    number,
    scalar,
    snake,
)

_ON_HOST = re.compile(
    "(alpha|beta).*|valuePtr|paddingFill|message"
)  # how untyped pointers to host memory are named
_NOWHERE = "at {:#x}, memory of which nothing is known"
_LOST = "calls went into a CUDA graph that the trace saw no begin of: they are not in the program, nor is what it does"
_SCRATCH = ("workspace", "reserve", "states")  # of whose contents nobody knows anything
_WRITTEN = ("y_tensor", "dx_tensor", "dw_tensor")  # by a graph
_OPAQUE: dict[str, Any] = {"HANDLE": cudnnHandle_t, "BACKEND_DESCRIPTOR": cudnnBackendDescriptor_t}
_KINDS: Any = {
    "cudnnTensorDescriptor_t": TensorDescriptor,
    "cudnnFilterDescriptor_t": FilterDescriptor,
}
_ENUMS = ENUMS_OF_ATTRIBUTES | {"DATA_TYPE": DataType}
_C_NAMES = {
    ctypes.c_int64: "int64_t",
    ctypes.c_int32: "int32_t",
    ctypes.c_bool: "bool",
    ctypes.c_char: "char",
}
_C_NAMES |= {ctypes.c_float: "float", ctypes.c_double: "double", ctypes.c_void_p: "void *"}


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
        pairs = zip(self.arguments.items(), FUNCTIONS[self.function].argtypes, strict=True)
        told = ", ".join(
            f"{n}={hex(v) if type(v) is int and _is_address(v, k) else v}" for (n, v), k in pairs
        )
        end = f" returned {self.status}" if self.status else ""
        return f"{self.microseconds:9.1f} us  {self.function}({told}){end}"


class Argument(NamedTuple):
    """One argument of a call: its name and types in the header, what C sees, and what was passed to ctypes."""

    name: str
    c_type: str
    kind: Any
    value: Any
    passed: Any


class Recorder(Memory):
    """What was recorded so far; `failed` is the statement that failed last."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: Statement | None = None
        self._stream_of: dict[int, int] = {}  # by handle
        self._dtypes: dict[int, DataType] = {}  # by descriptor
        self._uids: dict[
            int, tuple[Variable, Any]
        ] = {}  # tensors of graphs by their numbers, and what they were set to
        # by graph's descriptor: what it was set to, and what memory is in it by address, with the number of a tensor
        self._set: dict[int, dict[str, tuple[int, int, Any]]] = defaultdict(dict)
        self._held: dict[int, dict[int, tuple[Buffer, Any]]] = defaultdict(dict)

    def call(self, function: Call, record: Function, *arguments: Any) -> Any:
        """Make a C call, and record it."""
        if self.is_busy:
            return function(*arguments)
        with self.as_one_statement():
            return self._record_call(function, record, arguments)

    def _record_call(self, function: Call, record: Function, passed: tuple[Any, ...]) -> Any:
        seen = _arguments(record, passed)
        owner: Any = _owner(seen[0].value.value) if seen and seen[0].kind is cudnnHandle_t else None
        lost = not self._capturing and owner is not None and owner.device.is_capturing(owner.stream)
        if lost:
            self.warn(_LOST)
            self._capturing = True  # nothing may be waited for
        step, outputs, memory = self._statement(record, seen)
        status, start = 0, time.perf_counter_ns()
        try:
            result = function(*passed)
            status = int(result or 0) if record.returns_status else 0
        except CudnnError as error:  # the emulated device's
            status = int(error.status)
            raise
        finally:
            us = (time.perf_counter_ns() - start) / 1000
            arguments = {each.name: self._plain(each) for each in seen}
            step.call = TracedCall(record.name, arguments, Status(status), us, *step.where)
            if status:
                self.failed, step.failed, step.of = step, True, step.of and ()
                step.note = number(status, "cudnnStatus_t")
            else:
                self._done(step, outputs, memory, seen)
            if lost:
                self._capturing, step.of = False, ()
                for buffer in memory:  # which the graph may write to, unseen
                    buffer.shared, buffer.digest = True, buffer.digest or b""
        return result

    def write_down(self, record: Function, *arguments: Any, early: bool = True) -> None:
        """Write down a call without making it; usually among those that were made before the block."""
        seen = _arguments(record, convert(record, arguments))
        self._done(*self._statement(record, seen, early=early), seen)

    def _statement(
        self, record: Function, seen: list[Argument], *, early: bool = False
    ) -> tuple[Statement, Any, Any]:
        """Return a call as a statement, the variables that it writes with C's pointers to them, and the memory it is given.

        Of that memory it is told whether the call writes what somebody may want to read.
        """
        name, handles = (
            record.name,
            [each.value.value for each in seen if each.kind is cudnnHandle_t],
        )
        step = Statement(
            name,
            [],
            where=where(),
            early=early,
            on=getattr(next(map(_owner, handles), None), "device", None),
        )
        outputs, memory = list[tuple[Variable, Any]](), dict[Buffer, bool]()
        for each in seen:
            if each.name == "arrayOfElements":
                part = self._elements(*(one.value for one in seen), filled="Get" in name)
            elif isinstance(each.value, Opaque):
                is_stream = "Stream" in each.c_type
                part = (
                    self._stream(each.value.value or 0)
                    if is_stream
                    else self._thing(each.value, name, each.name)
                )
                if isinstance(part, Variable) and seen[0].kind is cudnnHandle_t:
                    part.used_as(each.name)
            elif each.kind is ctypes.c_void_p or isinstance(each.value, ctypes._Pointer):
                part = self._pointer(name, each, outputs, memory, seen)
            elif each.c_type == "size_t" and each.value in self._answers:
                part = self._answers[each.value]
            elif isinstance(each.value, (int, float)):
                part = number(each.value, each.c_type)
            else:
                part = self._unknown(name, each.name, f"a {type(each.value).__name__}")
            step.arguments.append(part)
        if any(
            isinstance(thing, Buffer) and self._buffers.get(thing.base) is not thing
            for thing in step.things
        ):
            return self._statement(
                record, seen, early=early
            )  # a later argument's memory has replaced it
        made = [thing for thing, _ in outputs]
        owned = [thing for thing in step.things if thing not in made]
        if "Create" in name:
            step.of = made[:1]
            if name == "cudnnBackendCreateDescriptor":
                made[0].name = (
                    BackendDescriptorType(seen[0].value).name.lower().replace("graph", "_graph")
                )
        elif "Destroy" in name:
            step.of, step.ends = owned, next(iter(owned), None)
        elif "Get" in name or not record.returns_status:  # a query; some fill descriptors
            step.of = owned[1:] if name == "cudnnBackendGetAttribute" else made
        elif name == "cudnnInitTransformDest":  # describes the last, and tells how large that is
            step.of = owned[-1:] + made
        elif name == "cudnnSetStream" or not handles:
            step.of = owned[:1]
        elif not early:
            self._order(self._stream_of.get(handles[0] or 0, 0), step.device)
        if name == "cudnnBackendExecute":
            self._look_into(seen[2].value, memory)
        for buffer in memory:
            if step.on and buffer.alive is None:  # as in `_on`
                buffer.device = step.on
            self._load_if_changed(buffer)
        self.statements.append(step)
        return step, outputs, memory

    def _look_into(self, pack: Opaque, memory: dict[Buffer, bool]) -> None:
        """Tell what memory is in a variant pack; it is set again where other memory is at an address than when it was set."""
        address, held = pack.value or 0, self._held[pack.value or 0]
        if any(
            (place := self._find(at)) is None or place[0] is not buffer
            for at, (buffer, _) in held.items()
        ):
            values = [
                (attribute, kind, len(array), array)
                for attribute, kind, array in self._set[address].values()
            ]
            self.write_down(FUNCTIONS["cudnnBackendInitialize"], pack, early=False)
            for each in values:
                self.write_down(FUNCTIONS["cudnnBackendSetAttribute"], pack, *each, early=False)
            self.write_down(FUNCTIONS["cudnnBackendFinalize"], pack, early=False)
        for buffer, uid in self._held[address].values():
            name = self._uids[uid][0].name if uid in self._uids else "workspace"
            buffer.used_as(name.removesuffix("_tensor"))
            memory[buffer] = memory.get(buffer, False) or name in _WRITTEN

    def _pointer(
        self, function: str, argument: Argument, outputs: Any, memory: Any, seen: list[Argument]
    ) -> Expression:
        """Return an argument that points somewhere: to a device, to what C reads on the host, or to what it writes there."""
        name, c_type, kind, value, _ = argument
        is_untyped, const = kind is ctypes.c_void_p, c_type.startswith("const")
        address = value if is_untyped else ctypes.addressof(value.contents) if value else None
        if not address:
            return "NULL"
        if is_untyped and _ON_HOST.fullmatch(name):
            return scalar(address, name, self._dtype(seen))
        place = self._find(address)
        if place and place[0].alive is None:  # it may be but a part of what the call uses
            place = self._find(address, _described(seen, value))
        if place:
            buffer, offset = place
            buffer.used_as(name)
            memory[buffer] = memory.get(buffer, False) or not (
                const or snake(name).startswith(_SCRATCH)
            )
            there = buffer.at(offset)
            return there if is_untyped else [f"({c_type.replace('[]', ' *')})", there]
        if is_untyped:
            return self._unknown(function, name, _NOWHERE.format(address))
        if const and issubclass(value._type_, ctypes.Structure):
            return self._unknown(function, name, f"a {value._type_.__name__}")
        values, base = _pointed(argument), c_type.removesuffix("[]").removesuffix("*").strip()
        if const:
            return array(base, [number(each, base) for each in values])
        variable = Variable(
            base + (f"[{len(values)}]" if len(values) > 1 else ""), answer_name(function, name)
        )
        outputs.append((variable, value))
        return variable if len(values) > 1 else ["&", variable]

    def _unknown(self, function: str, argname: str, what: str) -> str:
        self.warn(f"{function}: {argname} is {what}; the program has NULL")
        return "NULL"

    def _done(
        self, step: Statement, outputs: Any, memory: dict[Buffer, bool], seen: list[Argument]
    ) -> None:
        """Note what a call did that ended well."""
        name, first = step.function, getattr(seen[0].value, "value", None) or 0 if seen else 0
        for thing, pointer in outputs:
            if "Create" in name:
                thing.destroy = name.replace("Create", "Destroy")
                self._variables[pointer[0].value] = thing
            elif thing.c_type == "size_t":
                self._answers = {
                    size: other for size, other in self._answers.items() if other.name != thing.name
                }
                self._answers[pointer[0]] = thing
                step.note = str(pointer[0])
            elif (
                thing.c_type == "void *" and pointer[0]
            ):  # where a part lies, that the descriptor before it describes
                described = _described(seen, pointer)
                if described and (place := self._find(pointer[0])) is not None:
                    place[0].parts[place[1]] = described, thing
        for buffer, written in memory.items():
            buffer.unread |= written
            self._update_digest(buffer)
        if name == "cudnnSetStream":
            self._stream_of[first] = seen[1].value.value or 0
        elif step.ends is not None or name == "cudnnBackendInitialize":
            self._set.pop(first, None)
            self._held.pop(first, None)
            if step.ends is not None:
                del self._variables[first]
        elif name.startswith("cudnnSet") and first and (dtype := self._dtype(seen)) is not None:
            self._dtypes[first] = dtype

    def _dtype(self, seen: list[Argument]) -> DataType | None:
        """Return the data type that a call names, or that of its descriptors: float64 if one is."""
        named = [DataType(each.value) for each in seen if each.c_type == "cudnnDataType_t"][:1]
        known = named or [
            self._dtypes[at]
            for each in seen
            if (at := getattr(each.value, "value", 0)) in self._dtypes
        ]
        return DataType.DOUBLE if DataType.DOUBLE in known else next(iter(known), None)

    def _plain(self, argument: Argument) -> Any:
        """Return an argument for people; what is on a device is an address, and is not followed."""
        _, c_type, _, value, passed = argument
        if not isinstance(value, ctypes._Pointer):
            return _simple(value, c_type)
        address = ctypes.addressof(value.contents) if value else None
        if address is None or self._find(address) is not None:
            return address
        plain = tuple(_simple(each, c_type.rstrip("[] *")) for each in _pointed(argument))
        return plain if isinstance(passed, ctypes.Array) else plain[0]

    def _elements(
        self, native: Any, attribute: int, kind: int, count: int, *rest: Any, filled: bool
    ) -> Expression:
        """Return what an attribute of a backend descriptor is set to, and note what tensors and memory are called."""
        name, type_name, at = (
            BackendAttributeName(attribute).name,
            BackendAttributeType(kind).name,
            rest[-1],
        )
        opaque, enum = _OPAQUE.get(type_name), _ENUMS.get(type_name)
        if not (at and count) or (filled and opaque is not cudnnBackendDescriptor_t):
            return "NULL"
        element = ELEMENT_TYPES.get(type_name, ctypes.c_int)
        values, pack = (
            (element * count)(*(element * count).from_address(at)),
            self._set[native.value],
        )
        pack[name] = attribute, kind, values
        if name == "TENSOR_UNIQUE_ID":
            self._uids[values[0]] = self._variables[native.value], pack
        c_type = opaque.__name__ if opaque else C_NAMES[enum] if enum else _C_NAMES[element]
        if opaque:
            parts = [
                self._thing(opaque(value), "cudnnBackendSetAttribute", name) for value in values
            ]
            for part in parts:
                if isinstance(part, Variable) and part.name == "tensor":
                    part.used_as(name.split("_")[-1].removesuffix("DESC") + "_tensor")
        elif element is ctypes.c_void_p:
            uids = (
                pack.get("VARIANT_PACK_UNIQUE_IDS", ((),))[-1]
                if name == "VARIANT_PACK_DATA_POINTERS"
                else ()
            )
            pairs = zip(values, chain(uids, repeat(None)), strict=False)
            parts = [self._hold(native.value, at, uid) for at, uid in pairs]
        else:
            parts = [number(value, c_type) for value in values]
        return array(c_type, parts)

    def _hold(self, pack: int, address: int | None, uid: int | None) -> Expression:
        """Note what memory is in a variant pack."""
        if not address or (place := self._find(address, self._extent(uid))) is None:
            what = _NOWHERE.format(address)
            return (
                self._unknown("cudnnBackendSetAttribute", "arrayOfElements", what)
                if address
                else "NULL"
            )
        self._held[pack][address] = place[0], uid
        return place[0].at(place[1])

    def _extent(self, uid: int | None) -> int:
        """Return how many bytes a tensor of a graph spans; 1 where nobody knows."""
        found = (
            {name: values for name, (*_, values) in self._uids[uid][1].items()}
            if uid in self._uids
            else {}
        )
        with suppress(KeyError, ValueError, CudnnError):
            one = (
                itemsize(DataType(found["TENSOR_DATA_TYPE"][0]))
                * found.get("TENSOR_VECTOR_COUNT", [1])[0]
            )
            pairs = zip(found["TENSOR_DIMENSIONS"], found["TENSOR_STRIDES"], strict=True)
            return int(one * (1 + sum((size - 1) * stride for size, stride in pairs)))
        return 1

    def _thing(self, native: Opaque, function: str, argname: str) -> Expression:
        """Return a handle or descriptor; how one was made before the block is written down before the program."""
        address = native.value
        if not address or address in self._variables:
            return self._variables[address] if address else "NULL"
        if "Destroy" in function:
            # The block did not use it: the program neither makes it nor destroys it.  A plan that the handle's cache evicts
            # during the block has such descriptors.
            return "NULL"
        if (owner := _owner(address)) is None:
            what = f"a {type(native).__name__} that was made before the trace, and not by cudnnlite"
            return self._unknown(function, argname, what)
        # by its own methods, on a table that writes calls down and makes none
        table = {name: partial(self.write_down, record) for name, record in FUNCTIONS.items()}
        twin = object.__new__(type(owner))
        vars(twin).update(vars(owner), api=SimpleNamespace(has=owner.api.has, **table))
        if hasattr(owner, "_set_function"):  # of dropout, whose states are there
            twin._set_function = "cudnnRestoreDropoutDescriptor"
        twin._make(type(owner._native)(address))
        twin._set(owner.spec)
        if isinstance(owner, BackendDescriptor):
            packs = (
                plan.pack_values(address) for plan in PREPARED if isinstance(plan, ExecutionPlan)
            )
            values = owner.values or next((found for found in packs if found is not None), {})
            for name, value in [*values.items()]:
                twin.set(name, value)
            if owner.finalized or not owner.values:
                twin.finalize()
        return self._variables[address]


def _owner(address: int | None) -> Any:
    """Return whose native object is at an address; None if it is none of ours."""
    return next((owner for owner in LIVE if not owner.closed and owner.ptr.value == address), None)


@cache
def _seeing(record: Function) -> tuple[Any, Call]:
    """Return what keeps a function alive, and that function: of converted arguments it returns what C sees."""
    callback = through_c(record, print)
    return callback, untyped(callback)


def _arguments(record: Function, given: Any) -> list[Argument]:
    seen = _seeing(record)[1](*given).args
    return [*map(Argument, record.argnames, C_TYPES[record.name], record.argtypes, seen, given)]


def _described(seen: list[Argument], pointer: Any) -> int:
    """Return how many bytes the descriptor before an argument describes; 0 where that is no tensor's and no filter's."""
    with suppress(StopIteration, KeyError, ValueError, CudnnError):
        before = next(one for one, other in pairwise(seen) if other.value is pointer and one.value)
        return int(
            _KINDS[before.c_type.removeprefix("const ")].read(library_api(), before.value).nbytes
        )
    return 0


def _is_address(value: int, kind: Any) -> bool:
    """Tell by its type whether a number is an address, or is where one is written; of other pointers' by its size."""
    pointed = kind._type_ if issubclass(kind, ctypes._Pointer) else kind
    return value >= 2**32 or issubclass(pointed, ctypes.c_void_p)


def _pointed(argument: Argument) -> Any:
    """Return what an argument points to on the host."""
    return argument.passed if isinstance(argument.passed, ctypes.Array) else argument.value[:1]


def _simple(value: Any, c_type: str) -> Any:
    """Return a value of C for people."""
    if isinstance(value, ctypes.Structure):
        return {name: getattr(value, name) for name, *_ in value._fields_ if name != "reserved"}
    kind = ENUMS.get(c_type)
    return getattr(value, "value", value) if kind is None else kind(value)
