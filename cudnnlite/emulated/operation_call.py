"""The emulated half of 'an operation is data': a C call unmarshalled by its declaration.

NumPy arrays go in and come out; descriptors, addresses and rounding are dealt with here.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from cudnnlite.descriptors.native import DESCRIPTORS
from cudnnlite.devices.storage import read_values, share_values, write_values
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated.descriptor_state import descriptor_state
from cudnnlite.emulated.memory import Bytes
from cudnnlite.emulated.precision import scale_add, wide_dtype
from cudnnlite.emulated.registry import (
    EmulationState,
    Implementation,
    RefusalError,
    Work,
    bad_parameter,
    check_aligned,
    check_size,
    null_pointer,
    unsupported,
)
from cudnnlite.enums import DataType, Status
from cudnnlite.problems.operation import RESERVE_ALIGNMENT, Operation
from cudnnlite.problems.problem import SCALARS
from cudnnlite.specs import FilterSpec, TensorSpec
from cudnnlite.specs.filter import as_tensor
from cudnnlite.specs.frozen import FrozenSpec
from cudnnlite.specs.layout import same_strides

Array = np.ndarray[Any, Any]
Values = Mapping[str, Any]  # specs or options, by name
RefusalRule = Callable[[Values, Values], str | None]  # (specs, options) -> why an H200 refuses

# cuDNN documents these for every layer; only a GPU says where bfloat16 is supported.
DOCUMENTED_DTYPES = (DataType.FLOAT, DataType.DOUBLE, DataType.HALF)


class Call:
    """A call of an operation's C function, or of a C function that asks about the operation.

    The descriptors are read back and checked: RefusalError or ArgumentError if they do not fit
    together.

    Attributes
    ----------
    operation : Operation
        The declaration.
    arguments : dict
        The C arguments, by the header's names and by the declaration's.
    specs, options : dict
        The specs of operands, and the options, by name.
    """

    def __init__(self, c_call: SimpleNamespace, operation: Operation) -> None:
        self.api: EmulationState = c_call.api
        self.operation = operation
        self.arguments = dict(vars(c_call))
        for header_name, name in operation.names.items():
            if hasattr(c_call, header_name):
                self.arguments[name] = getattr(c_call, header_name)
        names = (*operation.reads, *operation.writes)
        described = [name for name in names if name not in operation.without_descriptor]
        self.specs: dict[str, Any] = {name: self._read_operand(name) for name in described}
        self.options = {name: self._option(name, kind) for name, kind in operation.options.items()}
        values = self.specs | self.options
        specs = dict(self.specs)
        for name, infer_spec in operation.without_descriptor.items():
            specs[name] = infer_spec(values)
        self.specs = {name: specs[name] for name in names}
        self.alignments = operation.alignments(self.specs, self.options)
        self._check_specs()

    def _check_specs(self) -> None:
        """Refuse operands that do not fit together."""
        expected_specs = self.operation.expected(self.specs | self.options)
        self.operation.check(self.specs, SCALARS | self.options)
        for name, expected in expected_specs.items():
            shape = self.specs[name].shape
            if expected.shape != shape:
                raise bad_parameter(f"{name} has shape {shape}, the result has {expected.shape}")

    def _read_operand(self, name: str) -> Any:
        spec_type = FilterSpec if name in self.operation.filters else TensorSpec
        return self._read_descriptor(name, spec_type)

    def _read_descriptor(self, name: str, spec_type: type) -> Any:
        native = self.arguments[f"{name}Desc"]
        descriptor = DESCRIPTORS[spec_type]
        if descriptor._needs_handle:
            return descriptor_state(self.api, native)
        return descriptor.read(self.api.real, native)

    def _option(self, name: str, kind: Any) -> Any:
        if issubclass(kind, FrozenSpec):
            return self._read_descriptor(name, kind)
        if kind is float:
            return self._float_option(name)
        value = kind(self.arguments[name])
        if value.name not in kind.__members__:
            raise bad_parameter(
                f"{name}={self.arguments[name]}; allowed: {', '.join(kind.__members__)}"
            )
        return value

    def _float_option(self, name: str) -> Any:
        # A C function that returns a size does not receive the floats.
        if name not in self.arguments:
            return 0.0
        if name in self.operation.by_address:
            return self.number(name)
        return self.arguments[name]

    @property
    def compute_dtype(self) -> np.dtype[Any]:
        """The type that values are computed in: float64 beside float64, float32 otherwise."""
        return wide_dtype(next(iter(self.specs.values())).dtype)

    def number(self, name: str) -> float:
        """Return a host scalar, which is a float where integers are computed too."""
        if not self.arguments[name]:
            raise null_pointer(name)
        c_type = ctypes.c_double if self.compute_dtype == np.float64 else ctypes.c_float
        return c_type.from_address(self.arguments[name]).value

    def scalars_of(self, output: str) -> tuple[float, float]:
        """Return alpha and beta of an output, with 1 and 0 for those that it does not have."""
        names = self.operation.scalars_of(output)
        if names is None:
            return 1.0, 0.0
        values = SCALARS | {name: self.number(name) for name in self.operation.scalars}
        alpha, beta = names
        return values[alpha], values[beta]

    def view(self, name: str) -> Bytes:
        """Return the memory of an operand, which must lie inside one allocation and be aligned."""
        address = self.arguments[name] or 0
        spec = self.specs[name]
        alignment = self.alignments.get(name, numpy_dtype(spec.dtype).itemsize)
        check_aligned(name, address, alignment)
        return self.api.memory.view(address, spec.nbytes)

    def check_workspace(self, needed: int) -> None:
        """Refuse a workspace that is too small, or lies outside live allocations."""
        # Scratch memory without a size argument is as large as it has to be.
        nbytes = self.arguments.get("workSpaceSizeInBytes", needed)
        check_size("workspace", nbytes, needed, Status.BAD_PARAM_SIZE_INSUFFICIENT)
        names = self.operation.header("workSpace")
        for name in names:
            self.api.memory.view(self.arguments[name] or 0, needed // len(names))

    def reserve(self, needed: int) -> Bytes:
        """Return the memory of the reserve space, which must be as large as it has to be."""
        address = self.arguments["reserveSpace"] or 0
        nbytes = self.arguments["reserveSpaceSizeInBytes"]
        check_aligned("reserve space", address, RESERVE_ALIGNMENT)
        check_size("reserve space", nbytes, needed, Status.BAD_PARAM_SIZE_INSUFFICIENT)
        return self.api.memory.view(address, needed)

    def reserved_bits(self, shape: tuple[int, ...]) -> Array:
        """Return the bits that the reserve space holds, one for each value."""
        count = math.prod(shape)
        return np.unpackbits(self.reserve(nbytes_of_bits(count)), count=count).reshape(shape)

    def _is_same(self, name: str, other: str) -> bool:
        """Return whether two operands are the same memory, described in the same way."""
        if self.arguments[name] != self.arguments[other]:
            return False
        return bool(self.specs[name] == self.specs[other])

    def _share_values(self, *names: str) -> bool:
        """Return whether values of two operands overlap in memory."""
        (spec, address), (other_spec, other_address) = (
            (as_tensor(self.specs[name]), self.arguments[name] or 0) for name in names
        )
        return share_values(spec, address, other_spec, other_address)

    def views(self) -> dict[str, Bytes]:
        """Return the memory of all operands, by name.

        An operand that is written overlaps no other, and its values do not overlap each other.
        Only the operands that the declaration allows may be the memory that is written.
        """
        views = {name: self.view(name) for name in self.specs}
        for number, output in enumerate(self.operation.writes):
            for name in (*self.operation.reads, *self.operation.writes[:number]):
                if self._share_values(name, output):
                    self._check_in_place(name, output)
            target = as_tensor(self.specs[output])
            if target.overlaps_itself:
                raise bad_parameter(
                    f"values of {output} overlap each other in memory: strides {target.strides}"
                )
        return views

    def _check_in_place(self, name: str, output: str) -> None:
        """Refuse an operand that shares memory with one that is written, unless it may."""
        is_in_place = any(self._is_same(other, output) for other in self.operation.in_place)
        if not is_in_place or not self._is_same(name, output):
            raise bad_parameter(f"{name} and {output} overlap in memory")


def nbytes_of_bits(count: int) -> int:
    """Return the bytes that `count` bits take."""
    return -(-count // 8)


def why_not_one_layout(specs: Values, options: Values) -> str | None:
    """Return why an H200 may refuse: operands of one shape differ in strides, or layouts differ.

    This is the rule for operations about which no recording says more.  A vector has every layout.
    """
    tensors = [spec for spec in specs.values() if max(spec.shape) < spec.size]
    if not tensors:
        return None
    last = tensors[-1]
    same_shape = [spec for spec in tensors if spec.shape == last.shape]
    has_equal_strides = all(
        same_strides(spec.shape, spec.strides, last.strides) for spec in same_shape
    )
    if has_equal_strides and have_common_layout(tensors):
        return None
    operands = ", ".join(f"{name} is {spec}" for name, spec in specs.items())
    return f"operands in several layouts: {operands}"


def have_common_layout(specs: list[Any]) -> bool:
    """Return whether one layout fits all specs."""
    layouts = {spec.layout for spec in specs}
    return any(
        all(spec.layout == layout or spec.fits(layout) for spec in specs) for layout in layouts
    )


def never_refused(specs: Values, options: Values) -> str | None:
    """Return None: an H200 takes these operands in any layouts and strides."""
    return None


def no_workspace(specs: Values) -> int:
    """Return the bytes of workspace that most operations need: none."""
    return 0


@dataclass(frozen=True, eq=False)
class OperationEmulation:
    """The emulation of an operation's C functions; `computes` makes it."""

    operation: Operation
    compute: Callable[..., Any]
    dtypes: tuple[DataType, ...]
    ranks: tuple[int, ...]
    same_dtype: tuple[str, ...] | None
    why_refused: RefusalRule
    refusal_status: Status
    workspace: Callable[[Values], int]
    takes_call: bool

    def __call__(self, *operands: Any, **options: Any) -> Any:
        """Compute, NumPy in, NumPy out."""
        return self.compute(*operands, **options)

    def run(self, c_call: SimpleNamespace) -> Work:
        """Check a call of the operation's C function, and return its work."""
        call = Call(c_call, self.operation)
        self._check_support(call)
        call.check_workspace(self.workspace(call.specs))
        scalars = {name: call.scalars_of(name) for name in self.operation.writes}
        # Addresses are checked now, and again at each launch.
        call.views()
        return partial(self._work, call, scalars)

    def write_workspace_size(self, c_call: SimpleNamespace) -> None:
        """Answer the C function that returns the size of the workspace."""
        c_call.sizeInBytes[0] = self.workspace(Call(c_call, self.operation).specs)

    def _check_support(self, call: Call) -> None:
        """Refuse what an H200 refuses."""
        specs = call.specs
        target = specs[self.operation.writes[0]]
        dtypes = {specs[name].dtype for name in self.same_dtype or specs}
        dtypes_by_name = ", ".join(f"{name} is {spec.dtype.name}" for name, spec in specs.items())
        if len(dtypes) > 1:
            raise bad_parameter(dtypes_by_name)
        if target.dtype not in self.dtypes:
            raise unsupported(dtypes_by_name)
        if target.rank not in self.ranks:
            raise unsupported(f"tensors of rank {target.rank}")
        reason = self.why_refused(specs, call.options)
        if reason is not None:
            raise RefusalError(self.refusal_status, reason)

    def _work(self, call: Call, scalars: Mapping[str, tuple[float, float]]) -> None:
        """Read the operands, compute, and write the results, blended by the outputs' scalars."""
        operation = self.operation
        views = call.views()
        call.api.kernels_run.add(operation.function)
        operands = [
            read_values(views[name], call.specs[name]).astype(call.compute_dtype)
            for name in (*operation.reads, *operation.caller_provided)
        ]
        options = dict(call.options)
        if operation.reserve or self.takes_call:
            options["call"] = call
        with np.errstate(all="ignore"):
            results: Any = self.compute(*operands, **options)
        if not isinstance(results, tuple):
            results = (results,)
        for name, result in zip(operation.writes, results, strict=True):
            _write(views[name], call.specs[name], result, *scalars[name])


def _write(memory: Bytes, spec: Any, result: Any, alpha: float, beta: float) -> None:
    """Write alpha * result + beta * what the memory holds."""
    old_values = read_values(memory, spec) if beta else None
    whole = np.broadcast_to(result, spec.shape)
    blend = scale_add(whole, alpha, beta, old_values, numpy_dtype(spec.dtype))
    write_values(memory, spec, slice(None), blend)


def computes(
    operation: Operation,
    *,
    dtypes: tuple[DataType, ...] = DOCUMENTED_DTYPES,
    ranks: tuple[int, ...] = (4, 5),
    same_dtype: tuple[str, ...] | None = None,
    why_refused: RefusalRule = why_not_one_layout,
    refusal_status: Status = Status.BAD_PARAM,
    workspace: Callable[[Values], int] = no_workspace,
    takes_call: bool = False,
) -> Callable[[Callable[..., Any]], OperationEmulation]:
    """Turn the decorated function, NumPy in, NumPy out, into the emulation of an operation.

    It receives the operands in the order of `Operation.reads`, then those of
    `Operation.caller_provided`, in float32 or float64, and the options by name; where there is a
    reserve space, `call` besides.  It returns the result before alpha, beta and rounding, or what
    can be broadcast to the result's shape; a tuple where more than one operand is written.

    Without options an operation takes what cuDNN documents: float32, float64 and float16, of rank 4
    or 5, in one layout.  Rows that were recorded on a GPU say what else it takes or refuses.

    Parameters
    ----------
    operation : Operation
        The declaration.
    dtypes, ranks : tuple
        What an H200 takes.  (cuDNN receives 1-D images at rank 4.)
    same_dtype : tuple of str, optional
        The operands that must have one data type; all if not given.
    why_refused : callable
        (specs, options) -> why an H200 refuses them, or None if it does not.
    refusal_status : Status
        The status of that refusal.
    workspace : callable
        (specs) -> bytes of workspace.
    takes_call : bool
        Whether the function receives `call` without a reserve space, too.
    """

    def decorate(compute: Callable[..., Any]) -> OperationEmulation:
        return OperationEmulation(
            operation,
            compute,
            dtypes,
            ranks,
            same_dtype,
            why_refused,
            refusal_status,
            workspace,
            takes_call,
        )

    return decorate


def call_operation(
    implementations: Mapping[Operation, Implementation], c_call: SimpleNamespace
) -> Work | None:
    """Call a C function for one of its operations, which differ in their null pointers."""
    nulls = {
        operation: {name for name in operation.nulls if hasattr(c_call, name)}
        for operation in implementations
    }
    missing = {name for names in nulls.values() for name in names if not getattr(c_call, name)}
    for operation, names in nulls.items():
        if names == missing:
            return implementations[operation](c_call)
    raise RefusalError(
        Status.BAD_PARAM_NULL_POINTER, f"{', '.join(sorted(missing))}: null pointers"
    )
