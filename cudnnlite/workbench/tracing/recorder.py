"""`Recorder`: turns calls into statements of C, by the signatures of the function table."""

from __future__ import annotations

import ctypes
import re
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from functools import cache, partial
from itertools import chain, pairwise, repeat
from types import SimpleNamespace
from typing import Any, NamedTuple

from cudnnlite import FilterDescriptor, TensorDescriptor
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
from cudnnlite.descriptors.native import LIVE
from cudnnlite.dtypes import itemsize
from cudnnlite.enums import DataType, Status
from cudnnlite.errors import CudnnError
from cudnnlite.graph.attributes import C_TYPES as ELEMENT_TYPES
from cudnnlite.graph.attributes import ENUMS_OF_ATTRIBUTES
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.types import BackendDescriptor
from cudnnlite.workbench.tracing.memory import Buffer, Location, Memory, where
from cudnnlite.workbench.tracing.program import (
    Expression,
    Statement,
    Variable,
    answer_name,
    array,
    number,
    scalar,
    snake,
)

# Names of untyped pointers to host memory.
_ON_HOST = re.compile("(alpha|beta).*|valuePtr|paddingFill|message")
_NOWHERE = "at {:#x}, memory of which nothing is known"
_UNSEEN_CAPTURE = (
    "calls went into a CUDA graph that the trace saw no begin of: "
    "they are not in the program, nor is what it does"
)
_SCRATCH = ("workspace", "reserve", "states")  # memory whose contents are for cuDNN alone
_WRITTEN = ("y_tensor", "dx_tensor", "dw_tensor")  # what a graph writes
_OPAQUE: dict[str, Any] = {"HANDLE": cudnnHandle_t, "BACKEND_DESCRIPTOR": cudnnBackendDescriptor_t}
_DESCRIPTORS: Any = {
    "cudnnTensorDescriptor_t": TensorDescriptor,
    "cudnnFilterDescriptor_t": FilterDescriptor,
}
_ENUMS = ENUMS_OF_ATTRIBUTES | {"DATA_TYPE": DataType}
_C_NAMES = {
    ctypes.c_int64: "int64_t",
    ctypes.c_int32: "int32_t",
    ctypes.c_bool: "bool",
    ctypes.c_char: "char",
    ctypes.c_float: "float",
    ctypes.c_double: "double",
    ctypes.c_void_p: "void *",
}


class TracedCall(NamedTuple):
    """One call of a C function.

    Attributes
    ----------
    function : str
        The name of the C function.
    arguments : dict
        The arguments of the C call by the header's names: numbers, enums, addresses, and tuples for
        arrays on the host.
    status : Status
        The status that the function returned; SUCCESS if it returns none.
    microseconds : float
        The host's time in the call.
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
        texts = [f"{name}={_printed(value, kind)}" for (name, value), kind in pairs]
        end = f" returned {self.status}" if self.status else ""
        return f"{self.microseconds:9.1f} us  {self.function}({', '.join(texts)}){end}"


class Argument(NamedTuple):
    """One argument of a call: name and types in the header, what C sees, what ctypes was passed."""

    name: str
    c_type: str
    kind: Any
    value: Any
    passed: Any

    @property
    def is_pointer(self) -> bool:
        """Whether it is an address, typed or not; handles and descriptors are none."""
        return self.kind is ctypes.c_void_p or isinstance(self.value, ctypes._Pointer)


class Effects(NamedTuple):
    """The memory that a call may write, as it is known before the call.

    Attributes
    ----------
    outputs : list of (Variable, pointer)
        The program's variables that the call sets, and where in Python's memory C writes them.
    buffers : dict of Buffer to bool
        The device memory that the call receives, and whether the call writes results there.
    """

    outputs: list[tuple[Variable, Any]]
    buffers: dict[Buffer, bool]

    def use(self, buffer: Buffer, *, written: bool) -> None:
        """Add memory that the call is given."""
        self.buffers[buffer] = self.buffers.get(buffer, False) or written


class Recorder(Memory):
    """The recording so far; `failed` is the statement that failed last."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: Statement | None = None
        self._stream_of: dict[int, int] = {}  # by handle
        self._dtypes: dict[int, DataType] = {}  # by descriptor
        # Tensors of graphs by their numbers, with their attributes.
        self._tensors: dict[int, tuple[Variable, Any]] = {}
        # The attributes of each backend descriptor.  And the memory in each variant pack, by
        # address, with the number of the tensor there.
        self._attributes: dict[int, dict[str, tuple[int, int, Any]]] = defaultdict(dict)
        self._pack_buffers: dict[int, dict[int, tuple[Buffer, Any]]] = defaultdict(dict)
        # The attributes of tensors that are passed by value, by their numbers.  And the values of
        # such tensors in each variant pack, by address.
        self._by_value: dict[int, dict[str, tuple[int, int, Any]]] = {}
        self._pack_scalars: dict[int, dict[int, tuple[int, Expression]]] = defaultdict(dict)

    def call(self, function: Call, record: Function, *arguments: Any) -> Any:
        """Make a C call, and record it."""
        if self.is_busy:
            return function(*arguments)
        with self.as_one_statement():
            return self._record_call(function, record, arguments)

    def _record_call(self, function: Call, record: Function, passed: tuple[Any, ...]) -> Any:
        arguments = _arguments(record, passed)
        is_lost = self._goes_into_unseen_capture(arguments)
        if is_lost:
            self.warn(_UNSEEN_CAPTURE)
            self._capturing = True  # Nothing may be waited for.
        statement, effects = self._add_call(record, arguments)
        status, start = 0, time.perf_counter_ns()
        try:
            result = function(*passed)
            if record.returns_status:
                status = int(result or 0)
        except CudnnError as error:  # the emulated device's
            status = int(error.status)
            raise
        finally:
            microseconds = (time.perf_counter_ns() - start) / 1000
            readable = {argument.name: self._readable(argument) for argument in arguments}
            if record.name == "cudnnBackendSetAttribute":
                readable |= self._readable_attribute(arguments)
            statement.call = TracedCall(
                record.name, readable, Status(status), microseconds, *statement.where
            )
            if status:
                self._note_failure(statement, status)
            else:
                self._note_success(statement, effects, arguments)
            if is_lost:
                self._capturing = False
                self._give_up(statement, effects)
        return result

    def _goes_into_unseen_capture(self, arguments: list[Argument]) -> bool:
        """Tell whether a call is captured into a CUDA graph that the trace does not know of."""
        if self._capturing or not arguments or arguments[0].kind is not cudnnHandle_t:
            return False
        owner = _owner_of(arguments[0].value.value)
        return owner is not None and owner.device.is_capturing(owner.stream)

    def _give_up(self, statement: Statement, effects: Effects) -> None:
        """Leave out a call that went into a graph, which may write to the call's memory unseen."""
        statement.needed_for = ()
        for buffer in effects.buffers:
            buffer.shared = True
            buffer.digest = buffer.digest or b""

    def _note_failure(self, statement: Statement, status: int) -> None:
        self.failed = statement
        statement.failed = True
        statement.needed_for = statement.needed_for and ()
        statement.note = number(status, "cudnnStatus_t")

    def write_down(self, record: Function, *arguments: Any, early: bool = True) -> None:
        """Write down a call without making it; usually among those made before the block."""
        arguments_in_c = _arguments(record, convert(record, arguments))
        statement, effects = self._add_call(record, arguments_in_c, early=early)
        self._note_success(statement, effects, arguments_in_c)

    def _add_call(
        self, record: Function, arguments: list[Argument], *, early: bool = False
    ) -> tuple[Statement, Effects]:
        """Add a call as a statement, behind those that it needs; return it and its effects."""
        handles = [argument.value.value for argument in arguments if argument.kind is cudnnHandle_t]
        owner = _owner_of(handles[0]) if handles else None
        device = getattr(owner, "device", None)
        statement = Statement(record.name, [], where=where(), early=early, on=device)
        effects = Effects([], {})
        for argument in arguments:
            expression = self._expression(record.name, argument, arguments, effects)
            statement.arguments.append(expression)
        if any(self._is_replaced(variable) for variable in statement.variables):
            # The memory of a later argument has replaced that of an earlier one.
            return self._add_call(record, arguments, early=early)
        if record.name == "cudnnBackendCreateDescriptor":
            kind = BackendDescriptorType(arguments[0].value).name.lower()
            effects.outputs[0][0].name = kind.replace("graph", "_graph")
        statement.needed_for = self._reasons(record, statement, effects, has_handle=bool(handles))
        if "Destroy" in record.name:
            statement.ends = next(iter(statement.needed_for or ()), None)
        if statement.needed_for is None and not early:
            self._order(self._stream_of.get(handles[0] or 0, 0), statement.device)
        if record.name == "cudnnBackendExecute":
            self._use_pack(arguments[2].value, effects)
        for buffer in effects.buffers:
            if device and buffer.alive is None:  # CUDA tells of memory whichever device is asked.
                buffer.device = device
            self._load_if_changed(buffer)
        self.statements.append(statement)
        return statement, effects

    def _is_replaced(self, variable: Variable) -> bool:
        return isinstance(variable, Buffer) and self._buffers.get(variable.base) is not variable

    def _reasons(
        self, record: Function, statement: Statement, effects: Effects, *, has_handle: bool
    ) -> list[Variable] | None:
        """Return for which variables the program makes a call; None if it makes it in any case."""
        name = record.name
        outputs = [variable for variable, _ in effects.outputs]
        inputs = [variable for variable in statement.variables if variable not in outputs]
        if "Create" in name:
            return outputs[:1]
        if "Destroy" in name:
            return inputs
        if name == "cudnnBackendGetAttribute":  # It fills descriptors.
            return inputs[1:]
        if "Get" in name or not record.returns_status:
            return outputs
        if name == "cudnnInitTransformDest":  # It sets the last descriptor, and tells the size.
            return inputs[-1:] + outputs
        if name == "cudnnSetStream" or not has_handle:
            return inputs[:1]
        return None

    def _use_pack(self, native: Opaque, effects: Effects) -> None:
        """Add the memory that is in a variant pack.

        The pack is set again where other memory, or another number, is at its addresses than when
        it was set.
        """
        pack = native.value or 0
        buffers, scalars = self._pack_buffers[pack], self._pack_scalars[pack]
        has_moved = any(
            not self._is_in(address, buffer) for address, (buffer, _) in buffers.items()
        )
        has_changed = any(
            self._passed_scalar(address, tensor_number) != expression
            for address, (tensor_number, expression) in scalars.items()
        )
        if has_moved or has_changed:
            attributes = [*self._attributes[pack].values()]
            self.write_down(FUNCTIONS["cudnnBackendInitialize"], native, early=False)
            set_attribute = FUNCTIONS["cudnnBackendSetAttribute"]
            for number_in_c, kind, values in attributes:
                self.write_down(
                    set_attribute, native, number_in_c, kind, len(values), values, early=False
                )
            self.write_down(FUNCTIONS["cudnnBackendFinalize"], native, early=False)
        for buffer, tensor_number in self._pack_buffers[pack].values():
            name = "workspace"
            if tensor_number in self._tensors:
                name = self._tensors[tensor_number][0].name
            buffer.used_as(name.removesuffix("_tensor"))
            effects.use(buffer, written=name in _WRITTEN)

    def _is_in(self, address: int, buffer: Buffer) -> bool:
        location = self._find(address)
        return location is not None and location[0] is buffer

    # ------------------------------------------------------------ arguments as expressions

    def _expression(
        self, function: str, argument: Argument, arguments: list[Argument], effects: Effects
    ) -> Expression:
        """Return an argument as the program writes it."""
        name, c_type, _, value, _ = argument
        if name == "arrayOfElements":
            values = (other.value for other in arguments)
            return self._elements(*values, filled="Get" in function)
        if isinstance(value, Opaque):
            is_stream = "Stream" in c_type
            variable = (
                self._stream(value.value or 0) if is_stream else self._native(value, function, name)
            )
            if isinstance(variable, Variable) and arguments[0].kind is cudnnHandle_t:
                variable.used_as(name)
            return variable
        if argument.is_pointer:
            return self._pointer(function, argument, arguments, effects)
        if c_type == "size_t" and value in self._answers:
            return self._answers[value]
        if isinstance(value, (int, float)):
            return number(value, c_type)
        return self._unknown(function, name, f"a {type(value).__name__}")

    def _pointer(
        self, function: str, argument: Argument, arguments: list[Argument], effects: Effects
    ) -> Expression:
        """Return a pointer to device memory, or to host memory that C reads or writes."""
        name, c_type, kind, value, _ = argument
        is_untyped = kind is ctypes.c_void_p
        address = value
        if not is_untyped:
            address = ctypes.addressof(value.contents) if value else None
        if not address:
            return "NULL"
        if is_untyped and _ON_HOST.fullmatch(name):
            return scalar(address, name, self._dtype(arguments))
        location = self._find(address)
        if location and location[0].alive is None:
            # It may be but a part of what the call uses.
            location = self._find(address, _described_nbytes(arguments, value))
        if location:
            return self._device_pointer(argument, location, effects)
        if is_untyped:
            return self._unknown(function, name, _NOWHERE.format(address))
        if c_type.startswith("const"):
            return self._host_array(function, argument)
        return _output(function, argument, effects)

    def _device_pointer(
        self, argument: Argument, location: Location, effects: Effects
    ) -> Expression:
        name, c_type, kind, _, _ = argument
        buffer, offset = location
        buffer.used_as(name)
        is_read_only = c_type.startswith("const") or snake(name).startswith(_SCRATCH)
        effects.use(buffer, written=not is_read_only)
        address = buffer.at(offset)
        if kind is ctypes.c_void_p:
            return address
        return [f"({c_type.replace('[]', ' *')})", address]

    def _host_array(self, function: str, argument: Argument) -> Expression:
        """Return the host array that C reads through an argument."""
        element = argument.value._type_
        if issubclass(element, ctypes.Structure):
            return self._unknown(function, argument.name, f"a {element.__name__}")
        base = _base_type(argument.c_type)
        return array(base, [number(value, base) for value in _pointed_values(argument)])

    def _unknown(self, function: str, argname: str, description: str) -> str:
        self.warn(f"{function}: {argname} is {description}; the program has NULL")
        return "NULL"

    def _dtype(self, arguments: list[Argument]) -> DataType | None:
        """Return the data type that a call names, or that of its descriptors: float64 if one is."""
        for argument in arguments:
            if argument.c_type == "cudnnDataType_t":
                return DataType(argument.value)
        addresses = [getattr(argument.value, "value", 0) for argument in arguments]
        dtypes = [self._dtypes[address] for address in addresses if address in self._dtypes]
        if DataType.DOUBLE in dtypes:
            return DataType.DOUBLE
        return next(iter(dtypes), None)

    # ------------------------------------------------------------ after a call

    def _note_success(
        self, statement: Statement, effects: Effects, arguments: list[Argument]
    ) -> None:
        """Note what a call did that ended well."""
        name = statement.function
        first = getattr(arguments[0].value, "value", None) or 0 if arguments else 0
        for variable, pointer in effects.outputs:
            self._note_output(statement, variable, pointer, arguments)
        for buffer, written in effects.buffers.items():
            buffer.unread |= written
            self._update_digest(buffer)
        if name == "cudnnSetStream":
            self._stream_of[first] = arguments[1].value.value or 0
        elif statement.ends is not None:
            self._forget_descriptor(first)
            del self._variables[first]
        elif name == "cudnnBackendInitialize":
            self._forget_descriptor(first)
        elif name.startswith("cudnnSet") and first:
            dtype = self._dtype(arguments)
            if dtype is not None:
                self._dtypes[first] = dtype

    def _forget_descriptor(self, address: int) -> None:
        self._attributes.pop(address, None)
        self._pack_buffers.pop(address, None)
        self._pack_scalars.pop(address, None)

    def _note_output(
        self, statement: Statement, variable: Variable, pointer: Any, arguments: list[Argument]
    ) -> None:
        """Note what a call wrote on the host: a native object, a size, or where a part is."""
        function, value = statement.function, pointer[0]
        if "Create" in function:
            variable.destroy = function.replace("Create", "Destroy")
            self._variables[value.value] = variable
        elif variable.c_type == "size_t":
            others = self._answers.items()
            self._answers = {size: other for size, other in others if other.name != variable.name}
            self._answers[value] = variable
            statement.note = str(value)
        elif variable.c_type == "void *" and value:
            nbytes = _described_nbytes(arguments, pointer)
            location = self._find(value) if nbytes else None
            if location is not None:
                buffer, offset = location
                buffer.parts[offset] = nbytes, variable

    def _readable(self, argument: Argument) -> Any:
        """Return an argument for people; a pointer to a device is shown as an address."""
        value, c_type = argument.value, argument.c_type
        if not isinstance(value, ctypes._Pointer):
            return _readable_value(value, c_type)
        address = ctypes.addressof(value.contents) if value else None
        if address is None or self._find(address) is not None:
            return address
        element_type = c_type.rstrip("[] *")
        values = [_readable_value(element, element_type) for element in _pointed_values(argument)]
        return tuple(values) if isinstance(argument.passed, ctypes.Array) else values[0]

    def _readable_attribute(self, arguments: list[Argument]) -> dict[str, Any]:
        """Return the values of a backend descriptor's attribute; nothing if they are addresses."""
        descriptor, attribute, kind, count, address = (argument.value for argument in arguments)
        if not address or not count:  # The call sets nothing.
            return {}
        type_name = BackendAttributeType(kind).name
        element = ELEMENT_TYPES.get(type_name, ctypes.c_int)
        if type_name in _OPAQUE or element is ctypes.c_void_p:
            return {}
        name = BackendAttributeName(attribute).name
        _, _, values = self._attributes[descriptor.value][name]
        enum = _ENUMS.get(type_name)
        elements = tuple(value if enum is None else enum(value) for value in values)
        return {"arrayOfElements": elements}

    # ------------------------------------------------------------ graphs, and what is older than
    # the trace

    def _elements(
        self, native: Any, attribute: int, kind: int, count: int, *rest: Any, filled: bool
    ) -> Expression:
        """Return the values of a backend descriptor's attribute, and name the objects in it."""
        name, type_name = BackendAttributeName(attribute).name, BackendAttributeType(kind).name
        address = rest[-1]
        opaque, enum = _OPAQUE.get(type_name), _ENUMS.get(type_name)
        if not address or not count:
            return "NULL"
        if filled and opaque is not cudnnBackendDescriptor_t:
            return "NULL"
        element = ELEMENT_TYPES.get(type_name, ctypes.c_int)
        array_type = element * count
        values = array_type(*array_type.from_address(address))
        attributes = self._attributes[native.value]
        attributes[name] = attribute, kind, values
        if name == "TENSOR_UNIQUE_ID":
            self._tensors[values[0]] = self._variables[native.value], attributes
        if name in ("TENSOR_UNIQUE_ID", "TENSOR_IS_BY_VALUE"):
            self._note_by_value(attributes)
        if opaque:
            return array(opaque.__name__, self._descriptors(name, opaque, values))
        c_type = C_NAMES[enum] if enum else _C_NAMES[element]
        if element is not ctypes.c_void_p:
            return array(c_type, [number(value, c_type) for value in values])
        numbers: Iterable[Any] = ()
        if name == "VARIANT_PACK_DATA_POINTERS" and "VARIANT_PACK_UNIQUE_IDS" in attributes:
            _, _, numbers = attributes["VARIANT_PACK_UNIQUE_IDS"]
        pairs = zip(values, chain(numbers, repeat(None)), strict=False)
        return array(c_type, [self._pack_pointer(native.value, *pair) for pair in pairs])

    def _descriptors(self, name: str, opaque: Any, values: Any) -> list[Expression]:
        """Return the variables of handles or descriptors; tensors are named by their role."""
        role = name.rsplit("_", maxsplit=1)[-1].removesuffix("DESC") + "_tensor"
        variables = []
        for value in values:
            variable = self._native(opaque(value), "cudnnBackendSetAttribute", name)
            if isinstance(variable, Variable) and variable.name == "tensor":
                variable.used_as(role)
            variables.append(variable)
        return variables

    def _pack_pointer(
        self, pack: int, address: int | None, tensor_number: int | None
    ) -> Expression:
        """Return an address in a variant pack, and note what memory it is."""
        if not address:
            return "NULL"
        location = self._find(address, self._tensor_extent(tensor_number))
        if location is None and tensor_number in self._by_value:
            expression = self._passed_scalar(address, tensor_number)
            self._pack_scalars[pack][address] = tensor_number, expression
            return expression
        if location is None:
            description = _NOWHERE.format(address)
            return self._unknown("cudnnBackendSetAttribute", "arrayOfElements", description)
        buffer, offset = location
        self._pack_buffers[pack][address] = buffer, tensor_number
        return buffer.at(offset)

    def _note_by_value(self, attributes: dict[str, tuple[int, int, Any]]) -> None:
        """Note a tensor that is passed by value, once its number is known."""
        _, _, by_value = attributes.get("TENSOR_IS_BY_VALUE", (0, 0, [False]))
        if by_value[0] and "TENSOR_UNIQUE_ID" in attributes:
            _, _, numbers = attributes["TENSOR_UNIQUE_ID"]
            self._by_value[numbers[0]] = attributes

    def _passed_scalar(self, address: int, tensor_number: int) -> Expression:
        """Return the number that a graph is passed by value, as C keeps it for executions."""
        _, _, dtypes = self._by_value[tensor_number]["TENSOR_DATA_TYPE"]
        dtype = DataType(dtypes[0])
        return ["by_value(", scalar(address, "number", dtype), f", {itemsize(dtype)})"]

    def _tensor_extent(self, tensor_number: int | None) -> int:
        """Return how many bytes a tensor of a graph spans; 1 where nobody knows."""
        if tensor_number not in self._tensors:
            return 1
        _, attributes = self._tensors[tensor_number]
        values = {name: array_in_c for name, (_, _, array_in_c) in attributes.items()}
        with suppress(KeyError, ValueError, CudnnError):
            vector = values.get("TENSOR_VECTOR_COUNT", [1])[0]
            element_bytes = itemsize(DataType(values["TENSOR_DATA_TYPE"][0])) * vector
            pairs = zip(values["TENSOR_DIMENSIONS"], values["TENSOR_STRIDES"], strict=True)
            last = sum((size - 1) * stride for size, stride in pairs)
            return int(element_bytes * (1 + last))
        return 1

    def _native(self, native: Opaque, function: str, argname: str) -> Expression:
        """Return the variable of a handle or descriptor, which may be older than the trace."""
        address = native.value
        if not address:
            return "NULL"
        if address in self._variables:
            return self._variables[address]
        if "Destroy" in function:
            # The block did not use it: the program neither makes it nor destroys it.  A plan that
            # the handle's cache evicts during the block has such descriptors.
            return "NULL"
        owner = _owner_of(address)
        if owner is None:
            description = (
                f"a {type(native).__name__} that was made before the trace, and not by cudnnlite"
            )
            return self._unknown(function, argname, description)
        self._write_down_older(owner, address)
        return self._variables[address]

    def _write_down_older(self, owner: Any, address: int) -> None:
        """Write down how an object is made, by its owner's methods on a table without calls."""
        table = {name: partial(self.write_down, record) for name, record in FUNCTIONS.items()}
        twin = object.__new__(type(owner))
        vars(twin).update(vars(owner), api=SimpleNamespace(has=owner.api.has, **table))
        if hasattr(owner, "_set_function"):  # of dropout, whose states are there
            twin._set_function = "cudnnRestoreDropoutDescriptor"
        twin._make(type(owner._native)(address))
        twin._set(owner.spec)
        if not isinstance(owner, BackendDescriptor):
            return
        for name, value in [*(owner.values or _pack_values(address)).items()]:
            twin.set(name, value)
        if owner.finalized or not owner.values:
            twin.finalize()


def _output(function: str, argument: Argument, effects: Effects) -> Expression:
    """Return where C writes on the host."""
    base, count = _base_type(argument.c_type), len(_pointed_values(argument))
    c_type = f"{base}[{count}]" if count > 1 else base
    variable = Variable(c_type, answer_name(function, argument.name))
    effects.outputs.append((variable, argument.value))
    return variable if count > 1 else ["&", variable]


def _owner_of(address: int | None) -> Any:
    """Return whose native object is at an address; None if it is none of ours."""
    for owner in LIVE:
        if not owner.closed and owner.ptr.value == address:
            return owner
    return None


def _pack_values(address: int) -> dict[str, Any]:
    """Return the attributes of the variant pack at an address; empty if there is none."""
    for plan in PREPARED:
        values = plan.pack_values(address) if isinstance(plan, ExecutionPlan) else None
        if values is not None:
            return values
    return {}


@cache
def _c_view(record: Function) -> tuple[Any, Call]:
    """Return a function that returns what C sees of arguments, behind what keeps it alive."""
    callback = through_c(record, print)
    return callback, untyped(callback)


def _arguments(record: Function, passed: Any) -> list[Argument]:
    _, call = _c_view(record)
    values = call(*passed).args
    return [*map(Argument, record.argnames, C_TYPES[record.name], record.argtypes, values, passed)]


def _described_nbytes(arguments: list[Argument], pointer: Any) -> int:
    """Return the bytes of the tensor or filter described before an argument; 0 if none is."""
    with suppress(StopIteration, KeyError, ValueError, CudnnError):
        before = next(
            argument
            for argument, following in pairwise(arguments)
            if following.value is pointer and argument.value
        )
        descriptor = _DESCRIPTORS[before.c_type.removeprefix("const ")]
        return int(descriptor.read(library_api(), before.value).nbytes)
    return 0


def _printed(value: Any, kind: Any) -> str:
    """Return an argument's value as a trace prints it: addresses in hexadecimal."""
    return hex(value) if type(value) is int and _is_address(value, kind) else str(value)


def _is_address(value: int, kind: Any) -> bool:
    """Tell whether a number is an address: by its type, or of some pointers by its size."""
    pointed = kind._type_ if issubclass(kind, ctypes._Pointer) else kind
    return value >= 2**32 or issubclass(pointed, ctypes.c_void_p)


def _base_type(c_type: str) -> str:
    """Return the type of the elements of a pointer or an array of C."""
    return c_type.removesuffix("[]").removesuffix("*").strip()


def _pointed_values(argument: Argument) -> Any:
    """Return the host values that an argument points to."""
    return argument.passed if isinstance(argument.passed, ctypes.Array) else argument.value[:1]


def _readable_value(value: Any, c_type: str) -> Any:
    """Return a value of C for people."""
    if isinstance(value, ctypes.Structure):
        return {name: getattr(value, name) for name, *_ in value._fields_ if name != "reserved"}
    enum = ENUMS.get(c_type)
    return getattr(value, "value", value) if enum is None else enum(value)
